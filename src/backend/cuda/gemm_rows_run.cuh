/* backend/cuda/gemm_rows_run.cuh - which kernel of gemm_rows.cuh takes a GEMM, how large its blocks
 * are, and their launch. Instantiated for one type by gemm_rows_f16.cu and gemm_rows_bf16.cu. */
#ifndef ROSE_BACKEND_CUDA_GEMM_ROWS_RUN_CUH
#define ROSE_BACKEND_CUDA_GEMM_ROWS_RUN_CUH

#include "backend/cuda/gemm_rows.cuh"
#include "backend/cuda/launch.cuh"

static inline uint32_t rows_up_div(uint32_t x, uint32_t by)
{
    return (x + by - 1) / by;
}

/* Bytes of the rows that a block has once. */
static inline size_t rows_x_bytes(uint32_t rb, const rose_cuda_matrix *m)
{
    return (size_t)rb * m->k_pad * 16;
}

/* Slots of a ring. A warp with a single tile needs no more of them than its part has pieces. */
static inline uint32_t rows_slots(const rows_plan *p, const rose_cuda_matrix *m, uint32_t sms)
{
    const uint32_t slots = ROWS_SLOTS;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < m->n_parts; i++)
        if (m->cut[i + 1] - m->cut[i] > longest) longest = m->cut[i + 1] - m->cut[i];
    const uint32_t pieces = rows_up_div(longest, p->stage);
    return p->n_tiles <= sms * p->tiles && pieces < slots ? pieces : slots;
}

/* Bytes of shared memory, and the offsets in it. */
static inline size_t rows_bytes(rows_plan *p, uint32_t rb, rows_from from,
                                const rose_cuda_matrix *m, uint32_t sms)
{
    const uint32_t wide = ROWS_WIDE(p->nb), warps = p->tiles * m->n_parts;
    p->slot_bytes = p->stage * 16 * (p->nb + (from == ROWS_RING ? rb : 0));
    p->ring_bytes = rows_slots(p, m, sms) * p->slot_bytes;
    p->x_at = ROWS_BARRIERS + warps * p->ring_bytes;
    p->sums_at = p->x_at + (from == ROWS_RING ? 0 : (uint32_t)rows_x_bytes(rb, m));
    return (size_t)p->sums_at + (size_t)warps * rb * 8 * wide * sizeof(float) + ROWS_BEYOND;
}

/* One wave of blocks of as few tiles as that allows; then smaller slots, then several waves' work
 * for each block, until a block is in its budget. Returns the bytes. */
static inline size_t rows_fit(rows_plan *p, uint32_t rb, rows_from from, const rose_cuda_matrix *m,
                              uint32_t sms, size_t budget)
{
    const uint32_t most = m->n_parts > 1 ? ROWS_WARPS / ROSE_GEMM_PARTS : ROWS_WARPS / 2;
    const uint32_t turns = rows_up_div(p->n_tiles, sms * most);
    p->tiles = rows_up_div(p->n_tiles, sms * turns);
    p->stage = ROWS_STAGE;
    while (rows_bytes(p, rb, from, m, sms) > budget && p->stage > 64)
        p->stage /= 2;
    while (rows_bytes(p, rb, from, m, sms) > budget && p->tiles > 1)
        p->tiles = (p->tiles + 1) / 2;
    while (rows_bytes(p, rb, from, m, sms) > budget && p->stage > (rb == 4 ? 32u : 64u))
        p->stage /= 2;
    p->grid = rows_up_div(p->n_tiles, p->tiles);
    const uint32_t waves = rows_up_div(p->grid, sms);
    p->grid = rows_up_div(p->grid, waves);
    p->warps = p->tiles * m->n_parts;
    return rows_bytes(p, rb, from, m, sms);
}

/* Whether the rings are too small for the memory's bandwidth: a block with 40 KB of weights under
 * way read 2.4 TB/s of 4.3, one with 80 KB 3.8 (19456 x 2560; H200). A block that has not much more
 * to read at all gains nothing by larger ones. */
static inline bool rows_starved(const rows_plan *p, const rose_cuda_matrix *m)
{
    const size_t under_way =
        (size_t)p->warps * (p->ring_bytes / p->slot_bytes) * p->stage * p->nb * 16;
    const size_t all = (size_t)m->n_pad * m->k_pad * 2 / p->grid;
    return under_way < ROWS_ENOUGH && under_way * 4 < all;
}

/* Bytes of shared memory that a block may take if no other needs a place beside it. */
static inline size_t rows_room(const rose_cuda_device *d)
{
    return d->shared_max / 8 * 7;
}

/* Whether the rows lie in shared memory once: where they leave room for rings. They may take more
 * of it where several tiles share them. Each warp of a matrix with parts needs a part of the rows
 * only, and begins sooner if it copies that itself (out and down of Qwen3-0.6B, 1 to 8 rows: 0.86
 * to 0.9 of the time; H100). */
static inline bool rows_whole(const rows_plan *p, uint32_t rb, const rose_cuda_matrix *m,
                              const rose_cuda_device *d)
{
    const size_t bytes = rows_x_bytes(rb, m), rings = m->n_parts * p->nb * ROWS_SLOTS * 1024;
    const uint32_t share = p->n_tiles > d->sms ? 4 : 2; /* sevenths of shared memory */
    return m->n_parts == 1 && m->k_pad <= ROWS_CHUNK * ROWS_CHUNKS &&
           bytes <= d->shared_max / 7 * share && bytes + rings <= d->shared_max / 4 * 3;
}

template <typename T, int RB, int FROM, bool HEAD>
static cudaError_t launch_rows(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                               const rose_gemm_io *io, rows_plan *p)
{
    const rose_cuda_device *d = at->device;
    const bool one = FROM != ROWS_NORMED && m->n_parts == 1 && p->n_tiles > d->sms * ROWS_WARPS;
    const size_t room = one ? d->shared_max : rows_room(d), budget = ROWS_BUDGET;
    /* Parts read a long k, for which deep rings count more than a place beside the next kernel. */
    const bool wide = m->n_parts > 1 || (FROM != ROWS_RING && rows_x_bytes(RB, m) > budget / 2);
    const size_t most = one || wide || room < budget ? room : budget;
    size_t bytes = rows_fit(p, RB, (rows_from)FROM, m, d->sms, most);
    if (most < room && rows_starved(p, m))
        bytes = rows_fit(p, RB, (rows_from)FROM, m, d->sms, room);
    if (bytes > d->shared_max) return cudaErrorInvalidConfiguration;
    const uint32_t threads = FROM == ROWS_NORMED ? (uint32_t)ROWS_NORM_THREADS : p->warps * 32;
    return launch_kernel(at, rows_kernel<T, RB, FROM, HEAD>, dim3(p->grid), threads, bytes, *m, *io,
                         *p);
}

/* Blocks of 8 outputs in a tile. Two read fewer bytes of shared memory for each product; with one
 * more SMs have work. */
static inline uint32_t rows_nb(const rose_cuda_matrix *m, bool head, const rose_cuda_device *d)
{
    const uint32_t few = m->n_parts > 1 ? d->sms : d->sms * 4;
    return m->gated || head || rows_up_div(m->n, 8) > few ? 2 : 1;
}

template <typename T, int RB>
static cudaError_t run_rows(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                            const rose_gemm_io *io)
{
    const rose_cuda_device *d = at->device;
    const bool head = io->end == ROSE_END_LOGITS;
    const uint32_t n8 = rows_up_div(m->n, 8);
    rows_plan p = {};
    p.nb = rows_nb(m, head, d);
    p.n_tiles = rows_up_div(n8, p.nb);
    bool whole = rows_whole(&p, RB, m, d);
    /* Rows that many tiles share stay even where they leave little for the rings. */
    if (whole && RB <= 2 && p.n_tiles <= d->sms * (ROWS_WARPS / 2)) {
        rows_plan with = p;
        rows_fit(&with, RB, ROWS_WHOLE, m, d->sms, rows_room(d));
        whole = !rows_starved(&with, m);
    }
    /* The rings of fewer warps read fewer copies of the rows. */
    if (RB > 1 && !whole && n8 > d->sms) p.nb = 2;
    p.n_tiles = rows_up_div(n8, p.nb);
    if (whole && head) return launch_rows<T, RB, ROWS_WHOLE, true>(at, m, io, &p);
    if (whole) return launch_rows<T, RB, ROWS_WHOLE, false>(at, m, io, &p);
    if (head) return launch_rows<T, RB, ROWS_RING, true>(at, m, io, &p);
    return launch_rows<T, RB, ROWS_RING, false>(at, m, io, &p);
}

template <typename T>
static cudaError_t run_normed(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                              const rose_gemm_io *io)
{
    const uint32_t n8 = rows_up_div(m->n, 8);
    rows_plan p = {};
    if (!rose_gemm_can_norm(m, io)) return cudaErrorInvalidValue;
    p.nb = rows_nb(m, false, at->device);
    p.n_tiles = rows_up_div(n8, p.nb);
    return launch_rows<T, 1, ROWS_NORMED, false>(at, m, io, &p);
}

/* The smallest kernel that takes the rows. */
template <typename T>
static cudaError_t run_gemm_rows(const rose_cuda_launch *at, const rose_cuda_matrix *m,
                                 const rose_gemm_io *io)
{
    if ((io->end == ROSE_END_RESIDUAL) != (m->n_parts > 1) ||
        (io->end == ROSE_END_GATED && !m->gated))
        return cudaErrorInvalidValue;
    if (io->h == NULL) return run_normed<T>(at, m, io);
    if (io->rows <= 8) return run_rows<T, 1>(at, m, io);
    if (io->rows <= 16) return run_rows<T, 2>(at, m, io);
    if (io->rows <= 32) return run_rows<T, 4>(at, m, io);
    return cudaErrorInvalidValue;
}

template <typename T> static cudaError_t prepare_rows(const rose_cuda_device *d)
{
#define EACH(RB)                                                                                   \
    (const void *)rows_kernel<T, RB, ROWS_WHOLE, false>,                                           \
        (const void *)rows_kernel<T, RB, ROWS_WHOLE, true>,                                        \
        (const void *)rows_kernel<T, RB, ROWS_RING, false>,                                        \
        (const void *)rows_kernel<T, RB, ROWS_RING, true>
    const void *const kernels[] = {(const void *)rows_kernel<T, 1, ROWS_NORMED, false>, EACH(1),
                                   EACH(2), EACH(4)};
#undef EACH
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && e == cudaSuccess; i++)
        e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)d->shared_max);
    return e;
}

#endif
