/* backend/cuda/megakernel.h - the arguments of the megakernel, which runs a decode step of one
 * sequence in one launch. Plain C, for the kernel in megakernel.cu and its host side in mega.c.
 *
 * The megakernel supports GPT-2 shapes in 16-bit types: heads of 64, a width of at most 768, an MLP
 * 1 to 4 times as wide. It runs on sm_90 and later, if the whole grid fits on the GPU at once. */
#ifndef ROSE_BACKEND_CUDA_MEGAKERNEL_H
#define ROSE_BACKEND_CUDA_MEGAKERNEL_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROSE_CUDA_MEGA_HEAD_DIM = 64,
    ROSE_CUDA_MEGA_PEERS = 8, /* blocks in the cluster of a head */
    ROSE_CUDA_MEGA_MAX_D = 768,
    ROSE_CUDA_MEGA_MAX_FF_TILES = 4,
    ROSE_CUDA_MEGA_MAX_LAYERS = 64,
    ROSE_CUDA_MEGA_SUMS = 128,      /* floats: 4 chunks x 4 tiles x 8, or 16 chunks x 8 */
    ROSE_CUDA_MEGA_FIXED = 47104,   /* bytes of shared memory that do not depend on any size */
    ROSE_CUDA_MEGA_PART_BYTES = 40, /* bytes of shared memory for each split */
};

/* Matrices and vectors are those of layer 0; the strides give the distance to the next layer.
 * Blocks exchange values through slots in device memory. A slot is 8 bytes: a value of 4 bytes and
 * the number of the layer and step that wrote it. */
typedef struct rose_cuda_mega {
    const uint32_t *tokens, *where, *slot, *table; /* tables of the one row, device memory */
    const uint32_t *sampled;                       /* as in rose_cuda_embed */
    const uint32_t *turn;                          /* a number that is different in every step */
    const void *tok;                               /* packed like head */
    const float *pos;
    const void *w[4];  /* qkv, proj, fc1, fc2 */
    uint64_t w_stride; /* bytes */
    const float *ln1_w, *ln1_b, *ln2_w, *ln2_b;
    const float *b_qkv, *b_proj, *b_fc1, *b_fc2; /* each may be NULL */
    uint64_t p_stride;                           /* floats */
    const float *lnf_w, *lnf_b;
    const void *head;
    rose_cuda_kv kv;   /* the pages of layer 0 */
    uint64_t kv_layer; /* distance between two layers, in values of T */
    /* Slots of the residual stream x [ROSE_CUDA_MEGA_MAX_D]: after the MLP, and after attention. */
    uint2 *x, *x_mid;
    /* Slots of the output of attention [d / 2] and of the MLP's hidden values [d_ff / 2]; each
     * holds a pair of T. */
    uint2 *attended, *hidden;
    float *logits; /* [vocab] */
    unsigned long long *key;
    float scale[ROSE_CUDA_MEGA_MAX_LAYERS]; /* factor for attention scores, including log2(e) */
    float eps;
    uint32_t d, ff_tiles; /* ff_tiles = d_ff / d */
    uint32_t n_heads, n_layers, vocab, act;
    uint32_t shared_bytes; /* shared memory of a block */
} rose_cuda_mega;

/* Whether this GPU can hold the whole grid at once. */
cudaError_t rose_cuda_mega_fits(const rose_cuda_device *d, rose_cuda_type t,
                                const rose_cuda_mega *a, bool *fits);
cudaError_t rose_cuda_mega_run(const rose_cuda_launch *l, const rose_cuda_mega *a);

#ifdef __cplusplus
}
#endif

#endif
