/* backend/cuda/megakernel.h - a decode step of one sequence in one launch: what the kernel takes.
 * Plain C on both sides: the kernel in megakernel.cu, its host side in mega.c. For GPT-2 shapes
 * with heads of 64, a width of at most 768 and an MLP of 1 to 4 times that, 16-bit types, on sm_90
 * and later, where the whole grid fits on the chip. */
#ifndef ROSE_BACKEND_CUDA_MEGAKERNEL_H
#define ROSE_BACKEND_CUDA_MEGAKERNEL_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROSE_CUDA_MEGA_HEAD_DIM = 64,
    ROSE_CUDA_MEGA_PEERS = 8, /* blocks of a head */
    ROSE_CUDA_MEGA_MAX_D = 768,
    ROSE_CUDA_MEGA_MAX_FF_TILES = 4,
    ROSE_CUDA_MEGA_MAX_LAYERS = 64,
    ROSE_CUDA_MEGA_SUMS = 128,      /* floats: 4 chunks x 4 tiles x 8, 16 chunks x 8 */
    ROSE_CUDA_MEGA_FIXED = 47104,   /* bytes of shared memory that no size changes */
    ROSE_CUDA_MEGA_PART_BYTES = 40, /* of shared memory for a split */
};

/* Matrices and vectors are those of layer 0; the strides lead to the next layer's. A slot of an
 * exchange is a value and the number under which it was published, 8 bytes. */
typedef struct rose_cuda_mega {
    const uint32_t *tokens, *where, *slot, *table; /* of the one row; device */
    const uint32_t *sampled;                       /* as rose_cuda_embed */
    const uint32_t *turn; /* a number that differs from that of the last step */
    const void *tok;      /* as head */
    const float *pos;
    const void *w[4];  /* qkv, proj, fc1, fc2 */
    uint64_t w_stride; /* bytes */
    const float *ln1_w, *ln1_b, *ln2_w, *ln2_b;
    const float *b_qkv, *b_proj, *b_fc1, *b_fc2; /* or NULL */
    uint64_t p_stride;                           /* floats */
    const float *lnf_w, *lnf_b;
    const void *head;
    rose_cuda_kv kv;   /* layer 0 */
    uint64_t kv_layer; /* elements */
    uint2 *x, *x_mid;  /* slots of x [ROSE_CUDA_MEGA_MAX_D]: after the MLP, after the attention */
    uint2 *attended, *hidden; /* slots of pairs of T: [d / 2], [d_ff / 2] */
    float *logits;            /* [vocab] */
    unsigned long long *key;
    float scale[ROSE_CUDA_MEGA_MAX_LAYERS]; /* of the scores, times log2(e) */
    float eps;
    uint32_t d, ff_tiles; /* d_ff / d */
    uint32_t n_heads, n_layers, vocab, act;
    uint32_t shared_bytes; /* of a block */
} rose_cuda_mega;

/* Whether this device holds the whole grid at once. */
cudaError_t rose_cuda_mega_fits(rose_cuda_type t, const rose_cuda_mega *a, bool *fits);
cudaError_t rose_cuda_mega_run(const rose_cuda_launch *l, const rose_cuda_mega *a);

#ifdef __cplusplus
}
#endif

#endif
