/* backend/cuda/mega.h - the megakernel: a decode step of one sequence in one launch. Plain C, for
 * the kernel (megakernel.cu) and its host side (mega.c).
 *
 * It supports models of 16-bit types whose layers have the usual parts: a norm before attention and
 * one before the MLP, full attention with heads of 64 or 128, an MLP with or without a gate. It
 * needs sm_90a and a block on every SM at the same time.
 *
 * Blocks exchange values through slots in device memory. A slot is 8 bytes: 4 bytes of value, then
 * the number of the layer and step that wrote the slot. */
#ifndef ROSE_BACKEND_CUDA_MEGA_H
#define ROSE_BACKEND_CUDA_MEGA_H

#include "backend/cuda/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROSE_MEGA_MAX_D = 2048,
    ROSE_MEGA_MAX_GROUP = 8, /* query heads that share a KV head */
    ROSE_MEGA_WARPS = 8,     /* that compute */
    ROSE_MEGA_COPIERS = 2,   /* warps that copy, each to half of the rings */
    ROSE_MEGA_THREADS = (ROSE_MEGA_WARPS + ROSE_MEGA_COPIERS) * 32,
    ROSE_MEGA_PIECE = 4096, /* bytes of a place in a warp's ring */
    ROSE_MEGA_MIN_PIECES = 2,
    ROSE_MEGA_MAX_PIECES = 16
};

/* What a layer computes, in order; then the head. Attention is no matrix. */
typedef enum rose_mega_op {
    ROSE_MEGA_QKV,
    ROSE_MEGA_ATTEND,
    ROSE_MEGA_OUT,
    ROSE_MEGA_UP,
    ROSE_MEGA_DOWN,
    ROSE_MEGA_HEAD,
    ROSE_MEGA_N_OPS
} rose_mega_op;

/* The shape of a matrix, which is the same in all layers. */
typedef struct rose_mega_matrix {
    uint32_t n, k_pad;
    uint32_t shares;  /* what is divided over the blocks: strips of 8 outputs, or pairs of strips */
    uint32_t strips;  /* in a share: 2 if the matrix is gated, else 1 */
    uint32_t n_parts; /* of k: 1 or ROSE_GEMM_PARTS */
    uint32_t cut[ROSE_GEMM_PARTS + 1]; /* in groups of 16 */
} rose_mega_matrix;

typedef struct rose_mega_layer {
    const void *w[ROSE_MEGA_HEAD]; /* by op; [ATTEND] is not used */
    const float *bias[ROSE_MEGA_HEAD];
    rose_cuda_norm_by norm[2];    /* before attention, before the MLP */
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    void *kv;                     /* the layer's part of page 0 */
    float scale;                  /* of attention scores */
    uint32_t rope;                /* 1: the layer rotates q and k */
} rose_mega_layer;

/* Where things lie in a block's shared memory, in bytes. The rings of the warps come first. */
typedef struct rose_mega_places {
    uint32_t full, empty; /* barriers [warps][pieces] */
    uint32_t shares;      /* the block's share of each op */
    uint32_t layers;      /* a copy of rose_mega.layers */
    uint32_t x;           /* [d] floats: the residual stream before the first layer */
    uint32_t red;         /* [64] floats: sums of a norm */
    uint32_t own;         /* floats: values of the residual stream that this block computes */
    uint32_t row;         /* T: the input of a GEMM */
    uint32_t q;           /* T [n_q][head_dim]: rotated queries */
    uint32_t kv;          /* T [n_kv][2][head_dim]: the row's own K and V */
    uint32_t inner;       /* [warps][group][head_dim + 2] floats: results of inner blocks */
    uint32_t stage;       /* [warps][head_dim] floats */
    uint32_t sums;        /* [jobs][8] floats: sums of a GEMM */
    uint32_t end;
} rose_mega_places;

typedef struct rose_mega {
    const rose_mega_layer *layers; /* [n_layers] device memory */
    rose_cuda_norm_by last;        /* before the head */
    const void *head, *tok;        /* packed weights */
    const float *pos;              /* learned positions or NULL */
    const float *cos, *sin;        /* [positions][rot_dim / 2] or NULL */
    /* Tables of the one row, device memory. */
    const uint32_t *tokens, *where, *slot, *table;
    const uint32_t *turn;    /* a number that differs in every step */
    const uint32_t *sampled; /* as in rose_cuda_embed */
    /* Slots. x: the residual stream after the MLP; mid: after attention, both [d] floats. qkv: the
     * sums of the QKV GEMM. parts: results of splits, [splits][n_q][head_dim + 2], in contexts of
     * more than one split. attended and hidden hold pairs of T. */
    uint64_t *x, *mid, *qkv, *parts, *attended, *hidden;
    float *logits; /* [vocab] */
    unsigned long long *key;
    rose_mega_matrix matrix[ROSE_MEGA_N_OPS];
    uint64_t page_elems; /* as rose_cuda_kv */
    float embed_scale, eps /* of QK-norm */, softcap /* of the logits */;
    uint32_t d, tok_k_pad, n_layers, n_q, n_kv, head_dim, rot_dim, vocab, act;
    bool gated;
    /* rose_mega_measure fills these. */
    rose_mega_places at;
    uint32_t grid, pieces /* of a warp's ring */;
} rose_mega;

/* Number of slots for contexts of up to `positions`; sets the addresses if base is not NULL. */
uint64_t rose_mega_layout(rose_mega *a, uint64_t *base, uint32_t positions);
/* Sizes for that many blocks. Returns false if a block's shared memory does not suffice. */
bool rose_mega_measure(rose_mega *a, uint32_t grid, size_t shared_max);
void rose_mega_matrix_of(rose_mega_matrix *to, const rose_cuda_matrix *m);

/* Whether the GPU can hold a block on every SM at the same time. Call after rose_mega_measure. */
cudaError_t rose_mega_prepare(const rose_cuda_device *d, rose_format t, const rose_mega *a,
                              bool *fits);
cudaError_t rose_mega_run(const rose_cuda_launch *l, const rose_mega *a);

#ifdef __cplusplus
}
#endif

#endif
