/* backend/cuda/schedule.c - how the kernels of a step run side by side: the split between L1 and
 * shared memory, and decode steps in two halves on two streams. No bit depends on it. */
#include "backend/cuda/cuda_internal.h"

/* In steps of up to this many rows all of the L1 is shared memory, so that the next kernel can
 * already be on the SM. Kernels are so short there that this saves 2 to 3 % (2 to 16 rows). From 32
 * rows on it costs 1 to 2 % (H100). */
enum { SHARED_ROWS = 16 };

/* Attention of one half of a step is bound by memory. Meanwhile the GEMMs of the other half use the
 * tensor cores. The limits below were measured with GPT-2 124M on an H100. */
enum {
    HALVES_FROM = 25,
    HALVES_TO = 32, /* steps of HALVES_FROM to HALVES_TO rows run in two halves: there attention
                     * has many blocks, and kernels are short */
    /* From here on attention uses few blocks, which still saturate the memory bandwidth, so that
     * GEMM blocks find room on the same SMs. In between, the extra kernels cost more than the
     * overlap saves. */
    BESIDE_FROM = 81,
    /* Most bytes of a layer's weights: both halves read them, and the second half should find them
     * in the L2. */
    MAX_WEIGHTS_BYTES = 32 << 20
};

bool rose_cuda_carveout(uint32_t without, uint32_t n_rows)
{
    return n_rows <= SHARED_ROWS && (without & ROSE_CUDA_WITHOUT_CARVEOUT) == 0;
}

static uint64_t layer_bytes(const rose_cuda *c)
{
    const rose_cuda_layer *l = &c->weights.layers[0];
    const rose_cuda_matrix *all[] = {&l->qkv, &l->out, &l->up, &l->down};
    uint64_t n = 0;
    for (int i = 0; i < 4; i++)
        n += (uint64_t)all[i]->k_pad * all[i]->n_pad;
    return n * rose_cuda_type_size(c->type);
}

bool rose_cuda_may_halve(uint32_t n)
{
    return (n >= HALVES_FROM && n <= HALVES_TO) || n >= BESIDE_FROM;
}

bool rose_cuda_halves(const rose_cuda *c, uint32_t n)
{
    if ((c->without & ROSE_CUDA_WITHOUT_HALVES) != 0 || c->plain || n > c->scratch.out_block ||
        c->device.code < 90 || layer_bytes(c) > MAX_WEIGHTS_BYTES)
        return false;
    return rose_cuda_may_halve(n);
}

uint32_t rose_cuda_half_row(uint32_t n_rows)
{
    return (n_rows + 15) / 16 * 8; /* whole blocks of 8 rows */
}

/* Let the attention of the second half wait for the attention of the first half. From then on one
 * half runs GEMMs while the other attends. This only affects speed, as the halves share no row. */
static cudaError_t wait_for(rose_cuda *c, const rose_cuda_pass *first, rose_cuda_pass *second)
{
    cudaError_t e = cudaEventRecord(c->fork, first->launch.stream);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(second->launch.stream, c->fork, 0);
    /* The next kernel now follows two kernels, which programmatic dependent launch does not
     * support. */
    second->launch.dependent = false;
    return e;
}

/* The two halves after the embedding, which `all` has launched. */
static void begin_halves(const rose_cuda_pass *all, rose_cuda_pass half[2])
{
    const rose_cuda *c = all->c;
    const bool beside = all->n_rows >= BESIDE_FROM;
    for (uint32_t i = 0; i < 2; i++) {
        half[i] = *all;
        half[i].half = i;
        half[i].launch.beside = beside;
        /* Kernels of both halves must have the same split of L1 and shared memory to share an
         * SM. */
        half[i].launch.shared = beside;
    }
    half[0].n_rows = half[1].first = rose_cuda_half_row(all->n_rows);
    half[1].n_rows = all->n_rows - half[1].first;
    half[1].launch.stream = c->side;
    /* The second half's first kernel follows an event of the other stream. */
    half[1].launch.dependent = false;
}

/* A decode step whose layers run as two halves of the rows, each half on its own stream. The
 * outputs of all rows are computed together at the end. Used only in a capture, in which the second
 * stream forks from the first one and joins it again. */
static cudaError_t forward_halves(rose_cuda *c, const rose_cuda_shape *s)
{
    rose_cuda_pass half[2], all = rose_cuda_pass_begin(c, s);

    /* for all rows at once: a graph with a single first kernel starts sooner (10 us less with 128
     * sequences, H100) */
    rose_cuda_pass_embed(&all);
    cudaError_t e = cudaEventRecord(c->fork, c->stream);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(c->side, c->fork, 0);
    begin_halves(&all, half);
    /* The last norm follows two kernels, so it is not a dependent launch. */
    all.launch.dependent = false;
    for (uint32_t j = 0; j < c->arch.n_layers; j++) {
        for (int i = 0; i < 2; i++) {
            rose_cuda_pass_before(&half[i], j);
            if (i == 1 && j == 0 && half[i].launch.beside && e == cudaSuccess)
                e = wait_for(c, &half[0], &half[1]);
            rose_cuda_pass_attend(&half[i], j);
        }
        for (int i = 0; i < 2; i++)
            rose_cuda_pass_after(&half[i], j);
    }
    for (int i = 0; i < 2; i++)
        if (e == cudaSuccess) e = half[i].e;
    if (e == cudaSuccess) e = cudaEventRecord(c->join, c->side);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(c->stream, c->join, 0);
    if (e == cudaSuccess) rose_cuda_pass_outputs(&all, 0, s->n_outputs);
    return e != cudaSuccess ? e : all.e;
}

/* A decode step of one sequence: one kernel, then the sampler. */
static cudaError_t forward_fast(rose_cuda *c, const rose_cuda_shape *s)
{
    rose_cuda_pass p = rose_cuda_pass_begin(c, s);
    cudaError_t e = c->fast(c, &p.launch);
    p.launch.dependent = c->pdl;
    if (e == cudaSuccess) rose_cuda_pass_sample(&p, 0, 1);
    return e != cudaSuccess ? e : p.e;
}

cudaError_t rose_cuda_forward_captured(rose_cuda *c, const rose_cuda_shape *s)
{
    if (s->n_halves == 2) return forward_halves(c, s);
    if (s->n_single == 1 && s->n_rows == 1 && c->fast != NULL) return forward_fast(c, s);
    return rose_cuda_forward(c, s, NULL);
}
