/* tests/tools/quant_speed.c - times the products of SmolLM2-135M with quantized weights: each shape
 * and all products of a step, beside a plain read of as many bytes.
 *
 *     quant_speed [THREADS [TYPE [MODE]]]     TYPE: Q8_0 Q4_0 Q4_1 (default) Q4_K Q6_K; MODE: i8
 * f32
 *
 * Every layer has weights of its own, so that they come from memory as in a model. K types have
 * d_model 512 instead of 576, a multiple of their block. All kernels take their turn in each round;
 * the best round of each shape counts. A step of 512 rows has one row at the head. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/pool.h"
#include "backend/cpu/quant.h"
#include "base/clock.h"

enum { N_LAYERS = 30, N_SHAPES = 5, ROUNDS = 7, MAX_ROWS = 512, MAX_KERNELS = 4, D_FF = 1536 };

typedef struct shape {
    const char *name;
    uint32_t k, n;
    int layers;
    rose_format type;
    size_t bytes; /* of a layer */
    uint8_t *w;
} shape;

typedef struct kernel {
    const char *name;
    const rose_quant_kernels *table;
} kernel;

typedef struct speed {
    rose_pool *pool;
    uint32_t n_threads;
    shape shapes[N_SHAPES];
    kernel kernels[MAX_KERNELS];
    uint32_t n_kernels;
    bool i8;
    float *x, *y;
    uint8_t *scratch;
    size_t scratch_stride;
    rose_matmul_fn *fn; /* the job: */
    rose_matmul a;
    const uint8_t *bytes;
    size_t n_bytes;
    uint64_t sink[ROSE_POOL_MAX_THREADS];
} speed;

static void *take(size_t bytes)
{
    const size_t rounded = (bytes + 63) / 64 * 64;
    uint8_t *p = aligned_alloc(64, rounded);
    if (p == NULL) {
        fprintf(stderr, "quant_speed: out of memory\n");
        exit(1);
    }
    for (size_t i = 0; i < rounded; i++)
        p[i] = (uint8_t)((i * 2654435761u) >> 13);
    return p;
}

/* Fp16 factors are set to 0.01, or their random bits would make infinities. */
static void set_factors(uint8_t *blocks, rose_format t, uint64_t n)
{
    const uint64_t size = rose_values_bytes(t, rose_formats[t].block);
    const uint64_t at = t == ROSE_Q6_K ? 208 : 0;
    const uint16_t factor = 0x211F;
    for (uint64_t b = 0; b < rose_values_bytes(t, n); b += size) {
        memcpy(blocks + b + at, &factor, sizeof factor);
        if (t == ROSE_Q4_1 || t == ROSE_Q4_K) memcpy(blocks + b + 2, &factor, sizeof factor);
    }
}

static void prepare(shape *s, rose_format t)
{
    const uint64_t n = (uint64_t)s->k * s->n;
    uint8_t *blocks = take(rose_values_bytes(t, n));
    const rose_tensor w = {
        .name = "w", .data = blocks, .dtype = t, .n_dims = 2, .shape = {s->n, s->k}};
    set_factors(blocks, t, n);
    s->type = t;
    s->bytes = rose_panels_bytes(s->type, s->k, s->n);
    s->w = take(s->bytes * (size_t)s->layers);
    rose_pack_panels(s->w, NULL, s->type, &w, s->k, s->n, true, 0, s->n / ROSE_PANEL);
    for (int i = 1; i < s->layers; i++)
        memcpy(s->w + (size_t)i * s->bytes, s->w, s->bytes);
    free(blocks);
}

static void product_thread(void *arg, uint32_t tid, uint32_t n)
{
    speed *s = arg;
    rose_matmul a = s->a;
    a.scratch = s->scratch + tid * s->scratch_stride;
    rose_cpu_matmul_share(s->fn, &a, tid, n);
}

typedef uint64_t words __attribute__((vector_size(64)));

static void read_thread(void *arg, uint32_t tid, uint32_t n)
{
    speed *s = arg;
    const size_t part = s->n_bytes / n / 256 * 256;
    const uint8_t *p = s->bytes + part * tid;
    words sum[4] = {0};
    for (size_t i = 0; i < part; i += sizeof sum) {
        words w[4];
        memcpy(w, p + i, sizeof w);
        for (int l = 0; l < 4; l++) {
            __builtin_prefetch((const void *)((uintptr_t)(p + i) + 8192 + 64 * (uintptr_t)l));
            sum[l] ^= w[l];
        }
    }
    for (int l = 1; l < 4; l++)
        sum[0] ^= sum[l];
    s->sink[tid] = sum[0][0] ^ sum[0][1];
}

static void multiply(speed *s, const shape *h, int layer, const kernel *k, uint32_t rows)
{
    s->fn = (s->i8 ? k->table->i8 : k->table->f32)[h->type];
    s->a = (rose_matmul){.w = h->w + (size_t)layer * h->bytes,
                         .k_pad = h->k,
                         .n = h->n,
                         .x = s->x,
                         .ldx = h->k,
                         .m_rows = h->layers == 1 && rows == MAX_ROWS ? 1 : rows,
                         .y = s->y,
                         .ldy = h->n};
    rose_pool_run(s->pool, product_thread, s);
}

static void read_weights(speed *s, const shape *h, int layer)
{
    s->bytes = h->w + (size_t)layer * h->bytes;
    s->n_bytes = h->bytes;
    rose_pool_run(s->pool, read_thread, s);
}

/* Microseconds in each shape during one step: the layers in order, then the head. k NULL: weights
 * are read alone. */
static void step(speed *s, const kernel *k, uint32_t rows, double *us)
{
    for (int i = 0; i < N_SHAPES; i++)
        us[i] = 0.0;
    for (int layer = 0; layer < N_LAYERS; layer++)
        for (int i = 0; i < N_SHAPES; i++) {
            const shape *h = &s->shapes[i];
            if (h->layers == 1 && layer < N_LAYERS - 1) continue; /* the head comes last */
            const uint64_t start = rose_now_ns();
            if (k != NULL)
                multiply(s, h, h->layers == 1 ? 0 : layer, k, rows);
            else
                read_weights(s, h, h->layers == 1 ? 0 : layer);
            us[i] += (double)(rose_now_ns() - start) * 1e-3;
        }
}

static void report(const speed *s, const char *name, const double *us, uint32_t rows)
{
    double total = 0.0, bytes = 0.0, macs = 0.0;
    printf("%4u rows %-10s", rows, name);
    for (int i = 0; i < N_SHAPES; i++) {
        const shape *h = &s->shapes[i];
        printf(" %s %.1f us", h->name, us[i] / h->layers);
        total += us[i];
        bytes += (double)h->bytes * h->layers;
        macs += (double)h->n * h->k * h->layers * (h->layers == 1 && rows == MAX_ROWS ? 1 : rows);
    }
    printf("; step %.0f us, %.1f GB/s, %.0f GMAC/s, %.0f tok/s\n", total, bytes * 1e-3 / total,
           macs * 1e-3 / total, rows * 1e6 / total);
    fflush(stdout);
}

static void measure(speed *s, uint32_t rows)
{
    double best[MAX_KERNELS + 1][N_SHAPES];
    for (int r = 0; r < ROUNDS; r++)
        for (uint32_t k = 0; k <= s->n_kernels; k++) {
            double us[N_SHAPES];
            step(s, k == s->n_kernels ? NULL : &s->kernels[k], rows, us);
            for (int i = 0; i < N_SHAPES; i++)
                best[k][i] = r == 0 || us[i] < best[k][i] ? us[i] : best[k][i];
        }
    for (uint32_t k = 0; k <= s->n_kernels; k++)
        report(s, k == s->n_kernels ? "read" : s->kernels[k].name, best[k], rows);
}

static void list_kernels(speed *s)
{
    const rose_isa isa = rose_isa_probe();
#if defined(__x86_64__)
    if (isa != ROSE_ISA_SCALAR) s->kernels[s->n_kernels++] = (kernel){"avx2", &rose_quant_avx2};
    if (isa != ROSE_ISA_SCALAR && rose_cpu_has_avxvnni())
        s->kernels[s->n_kernels++] = (kernel){"avxvnni", &rose_quant_avxvnni};
    if (isa >= ROSE_ISA_AVX512) s->kernels[s->n_kernels++] = (kernel){"avx512", &rose_quant_avx512};
    if (isa >= ROSE_ISA_AVX512 && rose_cpu_has_avx512vnni())
        s->kernels[s->n_kernels++] = (kernel){"avx512vnni", &rose_quant_avx512vnni};
#else
    (void)isa;
#endif
    if (s->n_kernels == 0) s->kernels[s->n_kernels++] = (kernel){"ref", &rose_quant_ref};
}

static rose_format parse_type(const char *name)
{
    rose_format f;
    if (rose_format_named(name, &f) && rose_quant_has(f)) return f;
    fprintf(stderr, "quant_speed: type %s: expected Q8_0, Q4_0, Q4_1, Q4_K or Q6_K\n", name);
    exit(1);
}

int main(int argc, char **argv)
{
    static const uint32_t rows[] = {1, 4, 16, MAX_ROWS};
    static speed s;
    int cpus[ROSE_POOL_MAX_THREADS];
    const uint32_t n_cpus = rose_cpus_allowed(cpus, ROSE_POOL_MAX_THREADS);
    const rose_format t = parse_type(argc > 2 ? argv[2] : "Q4_1");
    const uint32_t d = rose_formats[t].block > 32 ? 512 : 576;
    rose_err err = {""};

    s.n_threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : n_cpus;
    s.i8 = argc <= 3 || strcmp(argv[3], "f32") != 0;
    if (rose_pool_create(&s.pool, s.n_threads, cpus, n_cpus, &err) != ROSE_OK) {
        fprintf(stderr, "quant_speed: %s\n", err.msg);
        return 1;
    }
    list_kernels(&s);
    const shape shapes[N_SHAPES] = {{.name = "qkv", .k = d, .n = 960, .layers = N_LAYERS},
                                    {.name = "proj", .k = d, .n = d, .layers = N_LAYERS},
                                    {.name = "gate_up", .k = d, .n = 2 * D_FF, .layers = N_LAYERS},
                                    {.name = "down", .k = D_FF, .n = d, .layers = N_LAYERS},
                                    {.name = "head", .k = d, .n = 49152, .layers = 1}};
    memcpy(s.shapes, shapes, sizeof shapes);
    for (int i = 0; i < N_SHAPES; i++)
        prepare(&s.shapes[i], s.shapes[i].layers == 1 ? ROSE_Q8_0 : t);
    s.x = take((size_t)MAX_ROWS * D_FF * sizeof *s.x);
    for (size_t i = 0; i < (size_t)MAX_ROWS * D_FF; i++)
        s.x[i] = (float)(int)(i * 40503u % 255) / 127.0f - 1.0f;
    s.y = take((size_t)MAX_ROWS * 2 * D_FF * sizeof *s.y);
    s.scratch_stride = (rose_matmul_scratch(D_FF) + 63) / 64 * 64 + 128;
    s.scratch = take(s.n_threads * s.scratch_stride);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (argc <= 4 || strtoul(argv[4], NULL, 10) == rows[i]) measure(&s, rows[i]);
    return 0;
}
