/* tests/backend/attend_bench.h - how long the attention kernels take on this GPU;
 * test_cuda_attend.c includes it. Every launch is one of many in a captured graph and reads other
 * pages than the one before, so that the L2 cache does not hold them. bf16. The page tables are in
 * random order. */
#ifndef ROSE_TESTS_ATTEND_BENCH_H
#define ROSE_TESTS_ATTEND_BENCH_H

#include "backend/attend_cases.h"

enum { BENCH_MAX_POS = 131072, BENCH_ROWS = 8192, BENCH_LAUNCHES = 400 };
static const size_t g_bench_pool = (size_t)2 << 30, g_bench_parts = (size_t)1 << 30;

static struct bench {
    void *pool, *rows, *q, *out;
    float *parts, *table;
    uint32_t *perm, *slot, *arrivals, n_pages; /* perm: [n_pages] of 64 KiB */
    cudaStream_t stream;
    cudaEvent_t start, stop;
} g_bench;

static void bench_ok(cudaError_t e)
{
    if (e == cudaSuccess) return;
    printf("bench: %s\n", cudaGetErrorString(e));
    exit(2);
}

static void *bench_random(size_t bytes)
{
    enum { CHUNK = 16 << 20 };
    static uint16_t *some;
    uint8_t *p = at_device(NULL, bytes);
    if (some == NULL) {
        some = malloc(CHUNK);
        assert_non_null(some);
        for (size_t i = 0; i < CHUNK / 2; i++)
            some[i] = rose_f32_to_bf16(at_float());
    }
    for (size_t i = 0; i < bytes; i += CHUNK)
        bench_ok(
            cudaMemcpy(p + i, some, bytes - i < CHUNK ? bytes - i : CHUNK, cudaMemcpyHostToDevice));
    return p;
}

static void bench_open(void)
{
    struct bench *b = &g_bench;
    b->n_pages = (uint32_t)(g_bench_pool >> 16);
    uint32_t *perm = calloc(b->n_pages, 4), *slot = calloc(2 * BENCH_ROWS, 4);
    assert_true(perm != NULL && slot != NULL);
    for (uint32_t i = 0; i < b->n_pages; i++) {
        const uint32_t j = at_any(i + 1);
        perm[i] = perm[j];
        perm[j] = i;
    }
    for (uint32_t i = 0; i < BENCH_ROWS; i++)
        slot[i] = slot[BENCH_ROWS + i] = i;
    b->pool = bench_random(g_bench_pool);
    b->rows = bench_random((size_t)BENCH_ROWS * 48 * 128 * 4);
    b->q = bench_random((size_t)BENCH_ROWS * 32 * 128 * 2);
    b->out = at_device(NULL, (size_t)BENCH_ROWS * 32 * 128 * 2);
    b->parts = at_device(NULL, g_bench_parts);
    b->table = bench_random((size_t)BENCH_ROWS * 128 * 4);
    b->perm = at_device(perm, b->n_pages * 4);
    b->slot = at_device(slot, 2 * BENCH_ROWS * 4);
    b->arrivals = at_device(NULL, 128 * 32 * 4);
    bench_ok(cudaStreamCreate(&b->stream));
    bench_ok(cudaEventCreate(&b->start));
    bench_ok(cudaEventCreate(&b->stop));
    free(perm), free(slot);
}

/* What a launch does; `what` says which kernels. */
enum { BENCH_DECODE, BENCH_BOTH, BENCH_FUSED, BENCH_PROMPT, BENCH_ROTARY };
typedef struct bench_job {
    int what;
    rose_cuda_attend a;
    rose_cuda_rotary r;
    const rose_cuda_item *items; /* [sets][n_items] */
    uint32_t sets;
} bench_job;

static void bench_launch(const rose_cuda_launch *at, const bench_job *j, uint32_t i)
{
    rose_cuda_attend a = j->a;
    a.items = j->items + (size_t)(i % j->sets) * a.n_items;
    a.fused = j->what == BENCH_FUSED ? &j->r : NULL;
    if (j->what == BENCH_BOTH || j->what == BENCH_ROTARY) bench_ok(rose_cuda_rotary_run(at, &j->r));
    if (j->what == BENCH_PROMPT) bench_ok(rose_cuda_prompt_run(at, &a));
    if (j->what <= BENCH_FUSED) bench_ok(rose_cuda_decode_run(at, &a));
}

/* Microseconds of one launch, the median of five graphs. */
static double bench_time(const bench_job *j, double floor_us)
{
    struct bench *b = &g_bench;
    rose_cuda_launch at = {.device = at_gpu(), .stream = b->stream, .type = ROSE_BF16};
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    const double n_us = 600 / (floor_us * 1.3 + 5);
    const uint32_t n = n_us < 4 ? 4 : (uint32_t)n_us;
    float us[6];
    bench_launch(&at, j, 0); /* loads the kernels */
    at.dependent = true;
    bench_ok(cudaStreamSynchronize(b->stream));
    bench_ok(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < n; i++)
        bench_launch(&at, j, i);
    bench_ok(cudaStreamEndCapture(b->stream, &graph));
    bench_ok(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 6; i++) {
        bench_ok(cudaEventRecord(b->start, b->stream));
        bench_ok(cudaGraphLaunch(exec, b->stream));
        bench_ok(cudaEventRecord(b->stop, b->stream));
        bench_ok(cudaEventSynchronize(b->stop));
        bench_ok(cudaEventElapsedTime(&us[i], b->start, b->stop));
        us[i] *= 1e3f / (float)n;
        for (int k = i; k > 1 && us[k] < us[k - 1]; k--) { /* the first is warm-up */
            const float x = us[k];
            us[k] = us[k - 1], us[k - 1] = x;
        }
    }
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph);
    return (double)us[3];
}

typedef struct bench_shape {
    const char *name;
    uint32_t n_q, n_kv, hd;
    bool rope, norm, f32;
} bench_shape;

static bench_job bench_job_of(const bench_shape *s, uint32_t rows)
{
    struct bench *b = &g_bench;
    bench_job j = {.sets = 1};
    j.r.kv = (rose_cuda_kv){b->pool, (uint64_t)s->n_kv * 32 * s->hd, s->hd, s->hd, s->n_kv};
    j.r.qkv = b->rows;
    j.r.qkv_f32 = s->f32;
    j.r.rows = rows;
    j.r.n_q = j.a.n_q = s->n_q;
    j.r.slot = b->slot;
    j.r.where = b->slot + BENCH_ROWS;
    j.r.q_norm = j.r.k_norm = s->norm ? b->table : NULL;
    j.r.eps = 1e-6f;
    j.r.cos = j.r.sin = s->rope ? b->table : NULL;
    j.r.rot_dim = s->hd;
    j.r.q = b->q;
    j.a.q = b->q;
    j.a.kv = j.r.kv;
    j.a.tables = b->perm;
    j.a.scale = 1 / sqrtf((float)s->hd);
    j.a.out = b->out;
    j.a.out_k_pad = s->n_q * s->hd;
    j.a.parts = b->parts;
    j.a.arrivals = b->arrivals;
    return j;
}

/* Decode of n sequences of `context` positions, for one division; unit and j->a.warps 0: as chosen.
 * Negative: it does not fit. */
static double bench_unit(bench_job *j, const rose_cuda_item *items, uint32_t n, uint32_t context,
                         uint32_t unit, double floor_us)
{
    rose_attend_limits l =
        rose_attend_limits_of(g_gpu.sms, j->a.n_q, j->a.kv.n_heads, j->a.kv.head_dim, n, context,
                              n * ((context + 15) / 16));
    if (unit != 0) l.max_parts = n * ((context + 63) / 64);
    l.max_units = l.max_parts + n;
    if ((uint64_t)l.max_parts * j->a.n_q * (j->a.kv.hd_pad + 4) * 4 > g_bench_parts) return -1;
    rose_attend_unit *units = calloc(l.max_units, sizeof *units);
    rose_attend_fold *folds = calloc(n, sizeof *folds);
    assert_true(units != NULL && folds != NULL);
    const rose_attend_cutting c = rose_attend_cut(&l, items, n, 0, unit, units, folds);
    void *dev[] = {at_device(&c, sizeof c), at_device(units, c.n_units * sizeof *units),
                   at_device(folds, n * sizeof *folds)};
    j->a.cutting = dev[0];
    j->a.units = dev[1];
    j->a.folds = dev[2];
    j->a.grid_units = c.n_units;
    const double us = bench_time(j, floor_us);
    for (int i = 0; i < 3; i++)
        at_free(dev[i]);
    free(units), free(folds);
    return us;
}

static void bench_decode(const bench_shape *s, uint32_t n, uint32_t context)
{
    static const uint32_t units[] = {0, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
    static const char *const names[] = {"decode", "rotary, decode", "fused"};
    const uint32_t pages = (context + 15) / 16;
    const size_t bytes = (size_t)n * context * s->n_kv * s->hd * 4;
    bench_job j = bench_job_of(s, n);
    const size_t in_pool = g_bench_pool / (j.a.kv.page_elems * 2);
    const uint32_t fit =
        (uint32_t)(in_pool < g_bench.n_pages ? in_pool : g_bench.n_pages) / (n * pages);
    j.sets = fit > BENCH_LAUNCHES ? BENCH_LAUNCHES : fit;
    if (j.sets == 0) return;
    rose_cuda_item *items = calloc((size_t)j.sets * n, sizeof *items);
    assert_non_null(items);
    for (uint32_t i = 0; i < j.sets * n; i++)
        items[i] = (rose_cuda_item){i % n, 1, context - 1, i * pages};
    j.items = at_device(items, (size_t)j.sets * n * sizeof *items);
    j.a.n_items = n;
    j.a.item_rows = 1;
    const double floor_us = (double)bytes / 3.119e6; /* at 3,119 GB/s */
    for (j.what = BENCH_DECODE; j.what <= BENCH_FUSED; j.what++) {
        printf("%s, %u x %u, floor %.2f us, %s:", s->name, n, context, floor_us, names[j.what]);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            if (units[i] > 512 && units[i] >= context * 2) continue;
            const double us = bench_unit(&j, items, n, context, units[i], floor_us);
            if (us < 0) continue;
            if (i == 0)
                printf(" auto %.2f", us);
            else
                printf(" %u: %.2f", units[i], us);
        }
        for (j.a.warps = 1; j.a.warps <= 8; j.a.warps *= 2)
            printf("; %u warps: auto %.2f 512: %.2f whole: %.2f", j.a.warps,
                   bench_unit(&j, items, n, context, 0, floor_us),
                   bench_unit(&j, items, n, context, 512, floor_us),
                   bench_unit(&j, items, n, context, (context + 511) / 512 * 512, floor_us));
        j.a.warps = 0;
        printf("\n");
        fflush(stdout);
    }
    at_free((void *)(uintptr_t)j.items);
    free(items);
}

/* Prompts of `length` rows, in items of at most `most` rows. */
static void bench_prompt(const bench_shape *s, uint32_t n, uint32_t length, uint32_t window,
                         uint32_t most)
{
    bench_job j = bench_job_of(s, n * length);
    static rose_cuda_item items[BENCH_ROWS];
    uint32_t n_items = 0;
    assert_true(n * length <= BENCH_ROWS);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t at = 0; at < length; at += most)
            items[n_items++] =
                (rose_cuda_item){i * length + at, length - at < most ? length - at : most, at,
                                 i * ((length + 15) / 16)};
    j.what = BENCH_PROMPT;
    j.items = at_device(items, n_items * sizeof *items);
    j.a.n_items = n_items;
    j.a.item_rows = length < most ? length : most;
    j.a.window = window;
    const double pairs =
        window != 0 && window < length ? (double)length * window : 0.5 * length * (length + 1);
    const double flop = 4.0 * n * s->n_q * s->hd * pairs, us = bench_time(&j, flop / 4e8);
    printf("%s, prompts %u x %u, window %u, items of %u: %.1f us, %.0f TFLOP/s\n", s->name, n,
           length, window, j.a.item_rows, us, flop / us / 1e6);
    fflush(stdout);
    at_free((void *)(uintptr_t)j.items);
}

static void bench_prompts(const bench_shape *s, uint32_t n, uint32_t length, uint32_t window)
{
    const uint32_t group = s->n_q / s->n_kv;
    bench_job j = bench_job_of(s, n * length);
    bench_prompt(s, n, length, window, length);
    bench_prompt(s, n, length, window, (s->hd > 64 ? 128 : 192) / group);
    bench_prompt(s, n, length, window, 64 / group);
    j.what = BENCH_ROTARY;
    printf("%s, rotary %u rows: %.2f us\n", s->name, n * length, bench_time(&j, 20));
}

/* argv: nothing, or SHAPE SEQUENCES CONTEXT, for one line of one shape. */
static int bench_attend(int argc, char **argv)
{
    static const bench_shape shapes[] = {{"GPT-2 12/12 x 64", 12, 12, 64, false, false, false},
                                         {"Qwen3-0.6B 16/8 x 128", 16, 8, 128, true, true, true},
                                         {"Llama-1B 32/8 x 64", 32, 8, 64, true, false, true},
                                         {"Qwen3-8B 32/8 x 128", 32, 8, 128, true, true, true}};
    static const uint32_t cases[][2] = {{1, 300},  {2, 300},   {8, 300},    {16, 300}, {32, 300},
                                        {64, 300}, {128, 300}, {128, 2048}, {1, 8000}, {1, 131072}};
    bench_open();
    if (argc == 3) {
        bench_decode(&shapes[(uint32_t)atoi(argv[0]) % 4], (uint32_t)atoi(argv[1]),
                     (uint32_t)atoi(argv[2]));
        return 0;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            bench_decode(&shapes[i], cases[k][0], cases[k][1]);
        bench_prompts(&shapes[i], 1, 256, 0);
        bench_prompts(&shapes[i], 32, 256, 0);
        bench_prompts(&shapes[i], 1, 2048, 0);
        bench_prompts(&shapes[i], 4, 2048, 0);
        bench_prompts(&shapes[i], 1, 8192, 1024);
    }
    printf("bench: done\n");
    return 0;
}

#endif
