/* bench/kernels_cpu.c - the CPU of kernels_internal.h. It times our GEMMs and oneDNN's
 * on the same values with the same number of threads.
 *
 * A pass multiplies with the copies of w in turn until it has read 256 MB or twelve copies. Each
 * w then comes from memory, as the layers of a model do. The threads of one side fall asleep
 * before the other side runs: ours after ROSE_POOL_SPIN_US, OpenMP's after GOMP_SPINCOUNT. Both
 * sides pin their threads to the same CPUs. If the system woke two threads on one CPU, a GEMM
 * would take three times as long. */
#include "bench/kernels_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { MAX_COPIES = 12 };
#define PASS_BYTES (256u << 20)

typedef struct cpu_bench cpu_bench;

/* One shape, our side. */
typedef struct product {
    cpu_bench *b;
    rose_kernel_shape s;
    uint32_t n_copies;
    float *plain;        /* [n_in][n_out] */
    void *w[MAX_COPIES]; /* panels */
    float *x, *y, *bias; /* fp32 values that are bf16 in bf16 mode */
    uint8_t *scratch;    /* [n_threads] */
    size_t scratch_stride;
    uint32_t copy; /* the copy of w that the pool's job multiplies with */
} product;

struct cpu_bench {
    rose_kernel_bench public; /* first: a rose_kernel_bench is one of these */
    rose_onednn *library;     /* NULL: public.missing says why */
    rose_pool *pool;
    rose_cpu_kernels kernels;
    bool bf16;
    uint32_t n_threads, rest_ms;
    product p; /* the shape that is prepared */
};

void *rose_kernel_take(size_t bytes)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, rounded);
    if (p != NULL) memset(p, 0, rounded);
    return p;
}

static void release(product *p)
{
    for (uint32_t i = 0; i < MAX_COPIES; i++)
        free(p->w[i]);
    free(p->plain);
    free(p->x);
    free(p->y);
    free(p->bias);
    free(p->scratch);
    *p = (product){0};
}

static void bench_close(rose_kernel_bench *base)
{
    cpu_bench *b = (cpu_bench *)base;
    release(&b->p);
    rose_pool_destroy(b->pool);
    if (b->library != NULL) b->library->close(b->library);
    free(b);
}

static rose_status check(cpu_bench *b, const rose_kernel_opts *o, rose_isa *isa, rose_err *err)
{
    rose_status st = rose_isa_parse(o->isa != NULL ? o->isa : "auto", isa, err);
    if (st != ROSE_OK) return st;
    if (o->dtype == ROSE_COMPUTE_F16)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "device cpu has float32 and bfloat16");
    b->bf16 = o->dtype != ROSE_COMPUTE_F32;
    if (*isa == ROSE_ISA_AVX512_BF16 && !b->bf16)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "isa %s multiplies bfloat16, not float32",
                         rose_isa_name(*isa));
    if (o->n_threads > ROSE_POOL_MAX_THREADS)
        return rose_fail(err, ROSE_E_INVAL, "threads %u: at most %d", o->n_threads,
                         ROSE_POOL_MAX_THREADS);
    return ROSE_OK;
}

/* If the user named a library, it must exist; otherwise we measure only our side when there is
 * none. */
static rose_status open_library(cpu_bench *b, const char *path, const int *cpus, uint32_t n_cpus,
                                rose_err *err)
{
    const rose_onednn_opts oo = {
        .path = path, .bf16 = b->bf16, .n_threads = b->n_threads, .cpus = cpus, .n_cpus = n_cpus};
    const rose_status st = rose_onednn_open(&b->library, &oo, &b->public.missing);
    if (st == ROSE_OK || (st == ROSE_E_UNSUPPORTED && path == NULL)) return ROSE_OK;
    return rose_fail(err, st, "%s", b->public.missing.msg);
}

/* ---- one shape ---- */

static void own_thread(void *arg, uint32_t tid, uint32_t n)
{
    const product *p = arg;
    const rose_kernel_shape *s = &p->s;
    const bool residual = s->role == ROSE_KERNEL_RESIDUAL;
    const rose_matmul a = {
        .w = p->w[p->copy],
        .k_pad = s->n_in,
        .n = s->gated ? s->n_out / 2 : s->n_out,
        .gated = s->gated,
        .x = p->x,
        .ldx = s->n_in,
        .m_rows = s->rows,
        .bias = s->role == ROSE_KERNEL_HEAD ? NULL : p->bias,
        .epilogue = residual                     ? ROSE_EPI_RESIDUAL
                    : s->gated                   ? ROSE_EPI_SILU
                    : s->role == ROSE_KERNEL_ACT ? ROSE_EPI_GELU_TANH
                                                 : ROSE_EPI_NONE,
        .round_bf16 = p->b->bf16 && (s->role == ROSE_KERNEL_QKV || s->role == ROSE_KERNEL_ACT),
        .y = p->y,
        .ldy = s->n_out,
        .scratch = p->scratch + tid * p->scratch_stride,
    };
    rose_cpu_matmul_share(p->b->kernels.matmul[p->b->bf16 ? ROSE_BF16 : ROSE_F32], &a, tid, n);
}

static void own_pass(product *p)
{
    for (p->copy = 0; p->copy < p->n_copies; p->copy++)
        rose_pool_run(p->b->pool, own_thread, p);
}

static void fill(float *x, size_t n, float scale, bool bf16, uint32_t *state)
{
    for (size_t i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        x[i] = rose_round_if(bf16, ((float)(*state >> 8) / 8388608.0f - 1.0f) * scale);
    }
}

static bool allocate(product *p)
{
    const rose_kernel_shape *s = &p->s;
    const size_t w = rose_panels_bytes(p->b->bf16 ? ROSE_BF16 : ROSE_F32, s->n_in, s->n_out);
    bool ok = true;

    p->n_copies = (uint32_t)(PASS_BYTES / w) + 1;
    if (p->n_copies > MAX_COPIES) p->n_copies = MAX_COPIES;
    p->scratch_stride = (rose_matmul_scratch(s->n_in) + 63) / 64 * 64 + 128;
    ok = (p->plain = rose_kernel_take((size_t)s->n_in * s->n_out * sizeof(float))) != NULL && ok;
    ok = (p->x = rose_kernel_take((size_t)s->rows * s->n_in * sizeof(float))) != NULL && ok;
    ok = (p->y = rose_kernel_take((size_t)s->rows * s->n_out * sizeof(float))) != NULL && ok;
    ok = (p->bias = rose_kernel_take(s->n_out * sizeof(float))) != NULL && ok;
    ok = (p->scratch = rose_kernel_take(p->b->n_threads * p->scratch_stride)) != NULL && ok;
    for (uint32_t i = 0; i < p->n_copies; i++)
        ok = (p->w[i] = rose_kernel_take(w)) != NULL && ok;
    return ok;
}

/* Every copy holds the same values: only their addresses must differ. */
static void pack_own(product *p)
{
    const rose_kernel_shape *s = &p->s;
    const rose_format type = p->b->bf16 ? ROSE_BF16 : ROSE_F32;
    const rose_tensor t = {.name = "w",
                           .data = p->plain,
                           .dtype = ROSE_F32,
                           .n_dims = 2,
                           .shape = {s->n_in, s->n_out}};
    rose_pack_panels(p->w[0], NULL, type, &t, s->n_in, s->n_out, false, 0,
                     (s->n_out + ROSE_PANEL - 1) / ROSE_PANEL);
    for (uint32_t i = 1; i < p->n_copies; i++)
        memcpy(p->w[i], p->w[0], rose_panels_bytes(type, s->n_in, s->n_out));
}

static rose_status bench_prepare(rose_kernel_bench *base, const rose_kernel_shape *s,
                                 rose_kernel_sides *out, rose_err *err)
{
    cpu_bench *b = (cpu_bench *)base;
    product *p = &b->p;
    uint32_t state = 1;

    *out = (rose_kernel_sides){
        .has = {[ROSE_KERNEL_OWN] = true, [ROSE_KERNEL_LIBRARY] = b->library != NULL}};
    if (s->rows == 0 || s->n_in % ROSE_K_GROUP != 0 || s->n_out % ROSE_PANEL != 0)
        return rose_fail(err, ROSE_E_INVAL, "kernel benchmark: %u x %u, %u rows", s->n_out, s->n_in,
                         s->rows);
    release(p);
    *p = (product){.b = b, .s = *s};
    if (!allocate(p)) return rose_fail(err, ROSE_E_NOMEM, "kernel benchmark: out of memory");
    fill(p->plain, (size_t)s->n_in * s->n_out, 0.05f, b->bf16, &state);
    fill(p->x, (size_t)s->rows * s->n_in, 1.0f, b->bf16, &state);
    pack_own(p);
    if (b->library == NULL) return ROSE_OK;
    return b->library->prepare(b->library, s, p->plain, p->x, p->n_copies, err);
}

/* Runs two passes: the first wakes the threads, the second is timed. */
static rose_status bench_time(rose_kernel_bench *base, rose_kernel_side side, double *us,
                              rose_err *err)
{
    cpu_bench *b = (cpu_bench *)base;
    rose_status st = ROSE_OK;
    uint64_t start = 0;
    rose_sleep_ms(b->rest_ms);
    for (int i = 0; i < 2 && st == ROSE_OK; i++) {
        start = rose_now_ns();
        if (side == ROSE_KERNEL_OWN)
            own_pass(&b->p);
        else
            st = b->library->pass(b->library, err);
    }
    *us = (double)(rose_now_ns() - start) * 1e-3 / b->p.n_copies;
    return st;
}

rose_status rose_kernel_bench_cpu(rose_kernel_bench **out, const rose_kernel_opts *o, rose_err *err)
{
    rose_isa isa;
    int cpus[ROSE_POOL_MAX_THREADS];
    const uint32_t n_cpus = rose_cpus_allowed(cpus, ROSE_POOL_MAX_THREADS);
    cpu_bench *b = calloc(1, sizeof *b);

    *out = NULL;
    if (b == NULL) return rose_fail(err, ROSE_E_NOMEM, "kernel benchmark: out of memory");
    b->public = (rose_kernel_bench){
        .library = "oneDNN", .prepare = bench_prepare, .time = bench_time, .close = bench_close};
    rose_status st = check(b, o, &isa, err);
    b->rest_ms = o->rest_ms;
    b->n_threads = o->n_threads > 0 ? o->n_threads : n_cpus > 0 ? n_cpus : 1;
    if (st == ROSE_OK) st = open_library(b, o->library, cpus, n_cpus, err);
    if (st == ROSE_OK) st = rose_pool_create(&b->pool, b->n_threads, cpus, n_cpus, err);
    if (st != ROSE_OK) {
        bench_close(&b->public);
        return st;
    }
    rose_cpu_kernels_init(&b->kernels, isa);
    snprintf(b->public.about, sizeof b->public.about, "CPU at level %s, %u threads, %s",
             rose_isa_name(b->kernels.isa), b->n_threads,
             b->library != NULL ? b->library->about : "no oneDNN");
    *out = &b->public;
    return ROSE_OK;
}
