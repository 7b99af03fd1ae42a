/* tests/backend/kernels_bench.h - timings of the kernels at GPT-2's shapes, for test_kernels
 * --bench. Bandwidth is measured beside it, in the same run, by a plain prefetched read loop over a
 * buffer of the same size: the ceiling of a decode step. Not a test. */
#ifndef KERNELS_BENCH_H
#define KERNELS_BENCH_H

#include <pthread.h>

#include "base/clock.h"
#include "kernels_data.h"

enum { BENCH_ROUNDS = 15, BENCH_MAX_THREADS = 2 };

/* A job for n_threads threads, each with its index; all start together. */
typedef struct bench_job {
    void (*run)(const struct bench_job *j, uint32_t thread);
    const rose_cpu_kernels *table;
    rose_matmul a;
    rose_format type;
    uint32_t n_panels, n_threads, repeats;
    const uint8_t *bytes;
    size_t n_bytes;
    uint64_t *sink; /* [BENCH_MAX_THREADS] */
} bench_job;

typedef struct bench_thread {
    pthread_t id;
    pthread_barrier_t *barrier;
    const bench_job *job;
    uint32_t index;
    int cpu;
    uint64_t start_ns[BENCH_ROUNDS], end_ns[BENCH_ROUNDS];
} bench_thread;

static void bench_matmul_run(const bench_job *j, uint32_t thread)
{
    rose_matmul a = j->a;
    size_t scratch = rose_matmul_scratch(a.k_pad);
    a.scratch = (uint8_t *)a.scratch + thread * rose_round_up((uint32_t)scratch, 64);
    uint32_t p0 = j->n_panels * thread / j->n_threads;
    uint32_t p1 = j->n_panels * (thread + 1) / j->n_threads;
    j->table->matmul[j->type](&a, p0, p1);
}

static void bench_read_run(const bench_job *j, uint32_t thread)
{
    size_t part = j->n_bytes / j->n_threads / 64 * 64;
    const uint8_t *p = j->bytes + part * thread;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < part; i += 64) {
        uint64_t w[8];
        memcpy(w, p + i, sizeof w);
        __builtin_prefetch((const void *)((uintptr_t)(p + i) + 4096));
        for (int l = 0; l < 8; l++)
            sum[l] += w[l];
    }
    for (int l = 1; l < 8; l++)
        sum[0] ^= sum[l];
    j->sink[thread] = sum[0];
}

static void *bench_thread_main(void *arg)
{
    bench_thread *t = arg;
    rose_thread_setup("bench", t->cpu);
    rose_thread_ftz();
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        pthread_barrier_wait(t->barrier);
        t->start_ns[r] = rose_now_ns();
        for (uint32_t i = 0; i < t->job->repeats; i++)
            t->job->run(t->job, t->index);
        t->end_ns[r] = rose_now_ns();
    }
    return NULL;
}

/* Best time of one run in ns, first start to last end: the threads' own clocks, since this one may
 * wake late on a busy machine. */
static double bench_time(bench_job *j, uint32_t n_threads)
{
    static bench_thread t[BENCH_MAX_THREADS];
    pthread_barrier_t barrier;
    int cpus[BENCH_MAX_THREADS];
    uint32_t n_cpus = rose_cpus_allowed(cpus, BENCH_MAX_THREADS);
    double best = 1e18;

    j->n_threads = n_threads;
    pthread_barrier_init(&barrier, NULL, n_threads);
    for (uint32_t i = 0; i < n_threads; i++) {
        t[i] = (bench_thread){.barrier = &barrier, .job = j, .index = i};
        t[i].cpu = i < n_cpus ? cpus[n_cpus - 1 - i] : -1;
        if (pthread_create(&t[i].id, NULL, bench_thread_main, &t[i]) != 0) exit(1);
    }
    for (uint32_t i = 0; i < n_threads; i++)
        pthread_join(t[i].id, NULL);
    pthread_barrier_destroy(&barrier);
    for (int r = 0; r < BENCH_ROUNDS; r++) {
        uint64_t start = t[0].start_ns[r], end = t[0].end_ns[r];
        for (uint32_t i = 1; i < n_threads; i++) {
            if (t[i].start_ns[r] < start) start = t[i].start_ns[r];
            if (t[i].end_ns[r] > end) end = t[i].end_ns[r];
        }
        if ((double)(end - start) < best) best = (double)(end - start);
    }
    return best / j->repeats;
}

/* Weights of GPT-2's layers and head as one matrix of depth 768: 248 MB in bf16, 124 in int8. */
static void bench_matmul(const rose_cpu_kernels *t, rose_format type)
{
    static const char *const names[] = {"f32", "bf16", "i8"};
    static const uint32_t ms[] = {1, 2, 3, 4, 6, 8, 16, 32, 64, 256};
    const uint32_t k = 768, n = type == ROSE_F32 ? 80640 : 161280;
    size_t bytes = rose_panels_bytes(type, k, n);
    guarded mw, mx, my, ms_mem;
    uint64_t sink[BENCH_MAX_THREADS] = {0};
    uint16_t *w = guarded_alloc(&mw, bytes);
    float *x = guarded_alloc(&mx, 256 * k * sizeof(float));
    float *y = guarded_alloc(&my, (size_t)256 * 2048 * sizeof(float) + n * 8 * sizeof(float));
    for (size_t i = 0; i < bytes / 2; i++)
        w[i] = (uint16_t)(0x3c00 + (i * 7919 & 0x1ff));
    fill(x, 256 * k, DATA_NORMAL, true);
    memset(y, 0, my.bytes);
    bench_job j = {.table = t,
                   .type = type,
                   .bytes = (uint8_t *)w,
                   .n_bytes = bytes,
                   .sink = sink,
                   .repeats = 1};
    j.a = (rose_matmul){.w = w, .k_pad = k, .x = x, .ldx = k, .y = y};
    j.a.scratch = guarded_alloc(&ms_mem, BENCH_MAX_THREADS * (rose_matmul_scratch(k) + 64));

    for (uint32_t threads = 1; threads <= BENCH_MAX_THREADS; threads++) {
        j.run = bench_read_run;
        double ns = bench_time(&j, threads);
        printf("%-6s read loop            %u threads          %12.0f ns  %6.1f GB/s\n",
               rose_isa_name(t->isa), threads, ns, (double)bytes / ns);
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
            bool scalar = t->isa == ROSE_ISA_SCALAR;
            j.run = bench_matmul_run;
            j.a.m_rows = ms[i];
            j.a.n = ms[i] <= 8 && !scalar ? n : 2048; /* few rows: from memory; many: from cache */
            j.a.ldy = j.a.n;
            j.n_panels = j.a.n / 16;
            ns = bench_time(&j, threads);
            double macs = (double)j.a.n * k;
            printf("%-6s matmul %-4s n %6u m %3u %u threads %12.0f ns  %6.1f GB/s  %7.1f GFLOP/s\n",
                   rose_isa_name(t->isa), names[type], j.a.n, ms[i], threads, ns,
                   macs * (double)rose_format_size(type) / ns, macs * ms[i] * 2 / ns);
            if (scalar && ms[i] >= 2) break;
        }
    }
    guarded_free(&mw);
    guarded_free(&mx);
    guarded_free(&my);
    guarded_free(&ms_mem);
}

/* One layer's attention for 12 heads of 64: bytes of K and V over time. */
static void bench_attention(const rose_cpu_kernels *t, bool bf16)
{
    enum { HEADS = 12, HD = 64, N = 1024, PAGES = N / 16 + 1 };
    size_t block = rose_kv_head_bytes(bf16, HD);
    guarded mkv, ms, mq;
    uint8_t *kv = guarded_alloc(&mkv, block * HEADS * PAGES);
    float *q = guarded_alloc(&mq, 2 * 16 * HD * sizeof(float));
    void *scratch = guarded_alloc(&ms, rose_attention_scratch(N + 16, HD));
    uint32_t pages[PAGES];
    memset(kv, 0, mkv.bytes);
    fill(q, 16 * HD, DATA_NORMAL, bf16);
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = i * 37 % PAGES;
    for (uint32_t rows = 1; rows <= 16; rows *= 4) {
        double best = 1e18;
        for (int r = 0; r < BENCH_ROUNDS; r++) {
            uint64_t start = rose_now_ns();
            for (uint32_t h = 0; h < HEADS; h++) {
                rose_attention a = {.q = q,
                                    .ldq = HD,
                                    .ldo = HD,
                                    .n_heads = 1,
                                    .n_rows = rows,
                                    .n_ctx = N - 16,
                                    .head_dim = HD,
                                    .scale = 0.125f,
                                    .kv = kv + h * block,
                                    .page_stride = block * HEADS,
                                    .pages = pages,
                                    .bf16 = bf16,
                                    .out = q + 16 * HD,
                                    .scratch = scratch};
                t->attention(&a);
            }
            double ns = (double)(rose_now_ns() - start);
            if (ns < best) best = ns;
        }
        double bytes = (double)HEADS * N * HD * 2 * (bf16 ? 2 : 4);
        printf("%-6s attention %-4s ctx %d rows %2u %20.0f ns  %6.1f GB/s  %7.1f GFLOP/s\n",
               rose_isa_name(t->isa), bf16 ? "bf16" : "f32", N, rows, best, bytes / best,
               (double)HEADS * N * HD * 4 * rows / best);
    }
    guarded_free(&mkv);
    guarded_free(&mq);
    guarded_free(&ms);
}

static void bench_rows(const rose_cpu_kernels *t)
{
    static float x[50304], w[50304], b[768];
    static double sums[50304 / ROSE_SUM_BLOCK + 1];
    double best[4] = {1e18, 1e18, 1e18, 1e18};
    fill(x, 50304, DATA_NORMAL, false);
    for (int r = 0; r < BENCH_ROUNDS * 3; r++) {
        uint32_t at;
        uint64_t s[5] = {rose_now_ns()};
        for (int i = 0; i < 100; i++)
            t->layernorm(x, x + 768, b, 1e-5f, 768, true, w);
        s[1] = rose_now_ns();
        t->max_index(x, 50257, &at);
        s[2] = rose_now_ns();
        t->exp_weights(x, 50257, 4.0f, 1.0f, w);
        s[3] = rose_now_ns();
        t->exp_sums(x, 50257, 4.0f, 1.0f, 0, NULL, sums);
        s[4] = rose_now_ns();
        for (int i = 0; i < 4; i++)
            best[i] = fmin(best[i], (double)(s[i + 1] - s[i]));
    }
    printf("%-6s layernorm 768: %.0f ns; max_index 50257: %.0f ns; exp_weights 50257: %.0f ns; "
           "exp_sums: %.0f ns\n",
           rose_isa_name(t->isa), best[0] / 100, best[1], best[2], best[3]);
}

static void bench_level(rose_isa isa, const char *filter)
{
    rose_cpu_kernels t;
    rose_cpu_kernels_init(&t, isa);
    if (filter == NULL || strstr("matmul_bf16", filter) != NULL) bench_matmul(&t, ROSE_BF16);
    if (filter == NULL || strstr("matmul_i8", filter) != NULL) bench_matmul(&t, ROSE_I8);
    if (filter == NULL || strstr("matmul_f32", filter) != NULL) bench_matmul(&t, ROSE_F32);
    if (filter == NULL || strstr("attention", filter) != NULL) {
        bench_attention(&t, true);
        bench_attention(&t, false);
    }
    if (filter == NULL || strstr("rows", filter) != NULL) bench_rows(&t);
}

#endif
