/* backend/cuda/attend.h - attention of every model family: RoPE and append to the KV cache, decode,
 * prefill. Plain C, because C files and CUDA files include it. T is fp16 or bf16.
 *
 * The rule. The context is cut at absolute positions into splits of 512, and each split into inner
 * blocks of 64. Each inner block with a visible position is computed by itself:
 *     s = sum over head_dim, in order, by the tensor cores; then scale and soft cap (attend_score)
 *     m = max s, p = T(exp2(s - m)), l = sum of p, o = sum of p V over the positions, in order
 * The inner blocks of a split are merged in ascending order. The splits are then merged likewise:
 *     M' = max(M, m), a = exp2(M - M'), b = exp2(m - M'), L = fma(l, b, L a), O = fma(o, b, O a)
 * Inner blocks do not depend on each other. The bits are therefore the same for every division of
 * the context over thread blocks, and for a row alone or in a tile of a prompt.
 *
 * Pages: for each layer and KV head a page holds K, then V, each [2][hd_pad / 8][8 tokens][8 dims]
 * of T; the first index is the half of the page's 16 tokens. The dims from head_dim to hd_pad are
 * zero. Every slot of a page is finite, also an unused one: the pool is zeroed at open, and the
 * append saturates. hd_pad is rose_cuda_attend_pad(head_dim).
 *
 * Launchers neither allocate nor synchronise. Only the engine thread calls them. */
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
#define ROSE_ATTEND_NONE UINT32_MAX /* no item, no partial result, no inner block */

/* The step after the QKV GEMM: it applies QK-norm and RoPE to the GEMM's rows, which include the
 * bias, and rounds to T. It writes q to `q`, and K and V to the pages. */
typedef struct rose_cuda_rotary {
    const void *qkv; /* [rows][(n_q + 2 n_kv) head_dim]: q, then K, then V */
    bool qkv_f32;    /* qkv is fp32, not T */
    uint32_t rows, n_q;
    rose_cuda_kv kv;       /* n_heads: KV heads */
    const uint32_t *slot;  /* [rows] page * 16 + token; ROSE_CUDA_NO_SLOT: K and V are not stored */
    const uint32_t *where; /* [rows] positions; NULL without RoPE */
    /* [head_dim] weights of QK-norm, 1 already added if the model has 1 + w; NULL: no QK-norm */
    const float *q_norm, *k_norm;
    float eps;
    const float *cos, *sin; /* [positions][rot_dim / 2]; NULL without RoPE */
    uint32_t rot_dim;       /* even; the first rot_dim values of a head rotate */
    void *q;                /* T [rows][n_q][hd_pad] */
} rose_cuda_rotary;

/* A unit of decode: one thread block for each KV head computes positions begin .. end - 1 of an
 * item with one row. `part` is the unit's first partial result. If `part` is NONE, the unit has all
 * visible positions and writes the output. If `item` is NONE, the unit is padding. The other
 * fields are copied from the item, so that a thread block reads one entry only. `written`: from
 * this position on the step itself writes the pages. */
typedef struct rose_attend_unit {
    uint32_t item, begin, end, part;
    uint32_t row, pos, table, written;
} rose_attend_unit;

/* The partial results that are merged into the output of an item; folds[i] belongs to item i. If
 * `inner` is NONE, they belong to splits. Otherwise they belong to inner blocks, and the first
 * block is number `inner` of its split. If `item` is NONE, the item has no partial results. */
typedef struct rose_attend_fold {
    uint32_t item, part, n_parts, inner;
} rose_attend_fold;

/* How a decode step is divided. */
typedef struct rose_attend_cutting {
    uint32_t n_units, n_folds; /* n_folds: the number of items */
    uint32_t inner;            /* not 0: partial results are those of inner blocks, not of splits */
} rose_attend_cutting;

typedef struct rose_cuda_attend {
    const void *q;               /* T [rows][n_q][hd_pad] */
    rose_cuda_kv kv;             /* n_heads: KV heads */
    uint32_t n_q;                /* a multiple of the KV heads */
    const uint32_t *tables;      /* page tables, where items find theirs */
    const rose_cuda_item *items; /* [n_items]; at most item_rows rows each; 0 rows: padding */
    uint32_t n_items, item_rows;
    float scale, softcap; /* softcap 0: none */
    uint32_t window;      /* a row sees this many positions, its own included; 0: all */
    /* T, blocked as kernels.h says: n_q * head_dim values in a row, padded to out_k_pad */
    void *out;
    uint32_t out_k_pad;
    /* Decode: from rose_attend_cut, with the same window. All in device memory, so that a captured
     * graph serves every division; the kernel reads how many entries there are. */
    const rose_attend_cutting *cutting;
    /* At least grid_units entries, aligned to 16 bytes: a block reads its first one before it knows
     * cutting->n_units. */
    const rose_attend_unit *units;
    const rose_attend_fold *folds; /* [cutting->n_folds] */
    /* The grid has blocks for this many units, but no more than are resident; blocks take further
     * units in turn. */
    uint32_t grid_units;
    /* For tests and benchmarks: warps of a thread block, 1, 2, 4 or 8, and pieces in flight of a
     * warp alone, 4 or 8; 0: as chosen. */
    uint32_t warps, slots;
    /* Scratch memory of rose_attend_limits.bytes, aligned to 16 bytes; and counters, [max_seqs][KV
     * heads] zeros, which the kernel leaves as zeros: the last block of an item folds its partial
     * results. Launches that may run at the same time have their own of both. */
    float *parts;
    uint32_t *arrivals;
    /* Decode: the kernel does the work of rose_cuda_rotary_run itself, and q above is not used. The
     * rows of the items are rows of `fused`, whose q is not used either. Two items must not belong
     * to the same sequence, because one would need what the other appends. NULL:
     * rose_cuda_rotary_run has run. */
    const rose_cuda_rotary *fused;
} rose_cuda_attend;

/* ---- how decode divides contexts over thread blocks (attend.c; host only) ---- */

typedef struct rose_attend_limits {
    uint32_t sms, n_kv;
    uint32_t max_units, max_parts;
    uint64_t bytes; /* of rose_cuda_attend.parts: max_parts x n_q x (hd_pad + 4) floats */
} rose_attend_limits;

/* Returns head_dim padded as in pages and q rows (48, 64, 80, 96, 128 or 256); 0: over 256. */
uint32_t rose_cuda_attend_pad(uint32_t head_dim);

/* Computes the size of the scratch memory for partial results. Contexts that share pages can
 * together be longer than the pool. rose_attend_cut then makes one unit of each of some contexts.
 */
rose_attend_limits rose_attend_limits_of(uint32_t sms, uint32_t n_q, uint32_t n_kv,
                                         uint32_t head_dim, uint32_t max_seqs,
                                         uint32_t max_model_len, uint32_t pool_pages);

/* Divides items with one row each into units. Neighbours of one sequence have the same `table`, and
 * ascending positions. unit: positions of a unit, 0, or for tests and benchmarks 64, 128, 256 or a
 * multiple of 512. `units` has room for max_units entries and `folds` for n_items. n_items is at
 * most the max_seqs of the limits. O(units), no allocation. */
rose_attend_cutting rose_attend_cut(const rose_attend_limits *l, const rose_cuda_item *items,
                                    uint32_t n_items, uint32_t window, uint32_t unit,
                                    rose_attend_unit *units, rose_attend_fold *folds);

/* ---- launchers ---- */

/* Must be called once for each device, while it is the current one, before the first launch. */
cudaError_t rose_cuda_attend_prepare(void);

cudaError_t rose_cuda_rotary_run(const rose_cuda_launch *l, const rose_cuda_rotary *a);
/* Decode: every item has exactly one row. The launch needs l->device. Returns cudaErrorNotSupported
 * for type F32 and for more than 16 query heads on a KV head; rose_cuda_attend_refuses says why. */
cudaError_t rose_cuda_decode_run(const rose_cuda_launch *l, const rose_cuda_attend *a);
/* Prefill: items have any number of rows. Neighbouring rows of an item have neighbouring positions.
 */
cudaError_t rose_cuda_prompt_run(const rose_cuda_launch *l, const rose_cuda_attend *a);
/* Takes every type and any number of rows, and uses no tensor cores. The rule is the same, but with
 * fused multiply-adds and exp2f, so the bits differ from those of the other two launchers. */
cudaError_t rose_cuda_attend_plain(const rose_cuda_launch *l, const rose_cuda_attend *a);
/* For --paged-attn off: copies the pages that the items see to `dense`, where entry i of the page
 * tables becomes page i of n_heads x 32 x hd_pad values. Attention then runs with `dense` as
 * kv.base, that many page_elems, and tables that hold 0, 1, 2, ... It must not be fused, and the
 * launch needs ROSE_CUDA_WITHOUT_PAGED, so that decode does not read pages early. `dense` has room
 * for all entries of the tables. */
cudaError_t rose_cuda_gather_run(const rose_cuda_launch *l, const rose_cuda_attend *a, void *dense);
/* Returns NULL if the decode and prompt kernels support the shape, else what they lack. */
const char *rose_cuda_attend_refuses(rose_format type, uint32_t n_q, uint32_t n_kv,
                                     uint32_t head_dim);

#ifdef __cplusplus
}
#endif

#endif
