/* backend/cuda/attend.h - attention of every model family: rotation and append, decode, prompts.
 * Plain C, because both sides include it.
 *
 * The rule (docs/NUMERICS.md, CUDA rule 6). The context has inner blocks of 64 and splits of 512
 * absolute positions. Each inner block with a visible position starts from zero:
 *     s = chain over head_dim through the tensor cores, then scale and soft cap (attend_score)
 *     m = max s, p = T(exp2(s - m)), l = sum of p, o = chain over the positions of p V
 * Results of inner blocks are merged ascending within their split, splits are merged ascending:
 *     M' = max(M, m), a = exp2(M - M'), b = exp2(m - M'), L = fma(l, b, L a), O = fma(o, b, O a)
 * Inner blocks do not depend on each other. So the bits are the same for every division of the
 * context over thread blocks, and for a row alone or in a tile of a prompt.
 *
 * Pages: for each layer and KV head a page holds K, then V, each [2][hd_pad / 8][8 tokens][8 dims]
 * of T. Padding of head_dim is zeros. Every slot of a page is finite, also an unused one: the pool
 * is zeroed at open, and the append saturates. hd_pad is rose_cuda_attend_pad(head_dim).
 *
 * Launchers neither allocate nor synchronise. Threads: the engine thread. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_H
#define ROSE_BACKEND_CUDA_ATTEND_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROSE_ATTEND_INNER = 64,
    ROSE_ATTEND_SPLIT = 512,
    ROSE_ATTEND_MAX_GROUP = 16, /* query heads that share a KV head */
    ROSE_ATTEND_MAX_HEAD_DIM = 256
};
#define ROSE_ATTEND_NONE UINT32_MAX

/* Rows of the QKV GEMM, with bias: QK-norm, RoPE, rounding; q to `q`, K and V to the pages. */
typedef struct rose_cuda_rotary {
    const void *qkv; /* [rows][(n_q + 2 n_kv) head_dim]: q, then K, then V */
    bool qkv_f32;    /* qkv is fp32, not T */
    uint32_t rows, n_q;
    rose_cuda_kv kv;       /* n_heads: KV heads */
    const uint32_t *slot;  /* [rows] page * 16 + token; ROSE_CUDA_NO_SLOT: K and V go nowhere */
    const uint32_t *where; /* [rows] positions; NULL without RoPE */
    /* [head_dim] weights of QK-norm, with the 1 added where the architecture says so; or NULL */
    const float *q_norm, *k_norm;
    float eps;
    const float *cos, *sin; /* [positions][rot_dim / 2]; NULL without RoPE */
    uint32_t rot_dim;       /* even; the first rot_dim values of a head rotate */
    void *q;                /* T [rows][n_q][hd_pad] */
} rose_cuda_rotary;

/* A thread block of decode for each KV head: positions begin .. end - 1 of an item with one row.
 * `part` is its first partial result. NONE: these are all visible positions, and the block writes
 * the output. item NONE: padding. */
typedef struct rose_attend_unit {
    uint32_t item, begin, end, part;
} rose_attend_unit;

/* The partial results that give the output of an item. `inner` is NONE if they are splits, else
 * they are inner blocks, and the first is number `inner` of its split. item NONE: padding. */
typedef struct rose_attend_fold {
    uint32_t item, part, n_parts, inner;
} rose_attend_fold;

typedef struct rose_cuda_attend {
    const void *q;   /* T [rows][n_q][hd_pad] */
    rose_cuda_kv kv; /* n_heads: KV heads */
    uint32_t n_q;    /* a multiple of the KV heads */
    const uint32_t *tables;
    const rose_cuda_item *items; /* [n_items] with n_rows <= item_rows; 0 rows: padding */
    uint32_t n_items, item_rows;
    float scale, softcap; /* softcap 0: none */
    uint32_t window;      /* a row sees this many positions, its own included; 0: all */
    void *out;            /* T, blocked, out_k_pad values in a row: [n_q head_dim] */
    uint32_t out_k_pad;
    /* Decode: from rose_attend_cut, with the same window. */
    const rose_attend_unit *units; /* [n_units] */
    const rose_attend_fold *folds; /* [n_folds] */
    uint32_t n_units, n_folds;
    uint32_t warps; /* of a thread block: rose_attend_cutting.warps */
    bool inner;     /* partial results are those of inner blocks */
    float *parts;   /* rose_attend_limits.bytes */
} rose_cuda_attend;

/* ---- how decode divides contexts over thread blocks (attend.c; host only) ---- */

typedef struct rose_attend_limits {
    uint32_t sms, n_kv;
    uint32_t max_units, max_parts;
    uint64_t bytes; /* of rose_cuda_attend.parts: max_parts x n_q x (hd_pad + 2) floats */
} rose_attend_limits;

typedef struct rose_attend_cutting {
    uint32_t n_units, n_folds, warps;
    bool inner;
} rose_attend_cutting;

/* head_dim as pages and q rows hold it: 48, 64, 80, 96, 128 or 256; 0: more than 256. */
uint32_t rose_cuda_attend_pad(uint32_t head_dim);

/* The scratch for partial results. Contexts that share pages can together be longer than the pool;
 * rose_attend_cut then gives some of them to one thread block each. */
rose_attend_limits rose_attend_limits_of(uint32_t sms, uint32_t n_q, uint32_t n_kv,
                                         uint32_t head_dim, uint32_t max_seqs,
                                         uint32_t max_model_len, uint32_t pool_pages);

/* Divides items of one row. units has room for max_units, folds for n_items (at most the max_seqs
 * of the limits). O(units), no allocation. */
rose_attend_cutting rose_attend_cut(const rose_attend_limits *l, const rose_cuda_item *items,
                                    uint32_t n_items, uint32_t window, rose_attend_unit *units,
                                    rose_attend_fold *folds);
/* The same with thread blocks of `unit` positions (64, 128, 256 or a multiple of 512), for tests
 * and benchmarks. 0: rose_attend_cut. */
rose_attend_cutting rose_attend_cut_by(const rose_attend_limits *l, const rose_cuda_item *items,
                                       uint32_t n_items, uint32_t window, uint32_t unit,
                                       rose_attend_unit *units, rose_attend_fold *folds);

/* ---- launchers ---- */

/* Once for each device, which is the current one, before the first launch there. */
cudaError_t rose_cuda_attend_prepare(void);

cudaError_t rose_cuda_rotary_run(const rose_cuda_launch *l, const rose_cuda_rotary *a);
/* The items have one row. Type F32 and groups of more than 16 are refused (cudaErrorNotSupported):
 * rose_cuda_attend_refuses says why. */
cudaError_t rose_cuda_decode_run(const rose_cuda_launch *l, const rose_cuda_attend *a);
/* Items of any number of rows; rows that follow each other have positions that follow. */
cudaError_t rose_cuda_prompt_run(const rose_cuda_launch *l, const rose_cuda_attend *a);
/* Any type, without tensor cores: items of any number of rows. The rule is the same, with chains of
 * fused multiply-adds and exp2f; bits differ from those of the other two. */
cudaError_t rose_cuda_attend_plain(const rose_cuda_launch *l, const rose_cuda_attend *a);
/* NULL if decode and prompt kernels take the shape, else what they do not support. */
const char *rose_cuda_attend_refuses(rose_cuda_type type, uint32_t n_q, uint32_t n_kv,
                                     uint32_t head_dim);

#ifdef __cplusplus
}
#endif

#endif
