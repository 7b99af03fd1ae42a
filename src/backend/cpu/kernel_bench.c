/* backend/cpu/kernel_bench.c - backend/kernel_bench.h on the CPU: our products beside oneDNN's, on
 * the same values and as many threads. oneDNN has two ways to say it, a matmul and an inner
 * product: each runs once before, the faster is measured.
 *
 * Matrices are taken in turn until 256 MB have passed, or twelve times, so that they come from
 * memory as a model's layers do. Each side's threads are let fall asleep before the other runs:
 * ours after ROSE_POOL_SPIN_US, OpenMP's after GOMP_SPINCOUNT. Both sides' threads are pinned to
 * the same CPUs: a woken thread that the system puts on its neighbour's CPU makes a product three
 * times as long, run after run. Where oneDNN has no bf16 product (a CPU without AVX-512) its fp32
 * one runs beside ours of bf16; `about` says so. */
#include "backend/kernel_bench.h"

#if ROSE_DNNL /* set by the Makefile */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/numerics.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/pool.h"
#include "base/clock.h"

enum { MAX_COPIES = 12, MAX_REPEATS = 1000 };
#define PASS_BYTES (256u << 20)

struct rose_kernel_bench {
    rose_onednn *library;
    rose_pool *pool;
    rose_cpu_kernels kernels;
    bool bf16, library_bf16;
    uint32_t n_threads, rest_ms;
    char about[200];
};

/* One shape on both sides. */
typedef struct product {
    rose_kernel_bench *b;
    const rose_kernel_shape *s;
    uint32_t n_copies;
    float *plain;                /* [n_in][n_out] */
    void *own_w[MAX_COPIES];     /* panels */
    void *library_w[MAX_COPIES]; /* oneDNN's layout */
    float *x, *y, *bias;         /* ours: fp32 values that are bf16 in bf16 mode */
    void *library_x, *library_y; /* in the library's type */
    uint8_t *scratch;            /* [n_threads] */
    size_t scratch_stride;
    uint32_t copy; /* that the pool's job multiplies with */
    rose_onednn_product *way;
} product;

static void *take(size_t bytes)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, rounded);
    if (p != NULL) memset(p, 0, rounded);
    return p;
}

static void bench_close(rose_kernel_bench *b)
{
    if (b == NULL) return;
    rose_pool_destroy(b->pool);
    rose_onednn_close(b->library);
    free(b);
}

/* Read by OpenMP when the library is loaded; then it also pins the calling thread to the first. */
static bool set_openmp(uint32_t n_threads, const int *cpus, uint32_t n_cpus)
{
    char threads[16], places[ROSE_POOL_MAX_THREADS * 8] = "";
    size_t at = 0;
    for (uint32_t i = 0; i < n_threads && n_cpus > 0; i++)
        at += (size_t)snprintf(places + at, sizeof places - at, "%s{%d}", i > 0 ? "," : "",
                               cpus[i % n_cpus] % 10000);
    snprintf(threads, sizeof threads, "%u", n_threads);
    return setenv("OMP_NUM_THREADS", threads, 1) == 0 &&
           setenv("GOMP_SPINCOUNT", "100000", 0) == 0 &&
           (n_cpus == 0 || setenv("OMP_PLACES", places, 1) == 0) &&
           setenv("OMP_PROC_BIND", n_cpus > 0 ? "close" : "false", 1) == 0;
}

/* The library's type: ours, or fp32 where it has no such product. */
static rose_status choose_type(rose_kernel_bench *b, rose_err *err)
{
    rose_onednn_product *p;
    b->library_bf16 = b->bf16;
    rose_status st = rose_onednn_product_create(&p, b->library, 0, b->bf16, 1, 64, 64, NULL);
    rose_onednn_product_destroy(p);
    if (st == ROSE_OK) return ROSE_OK;
    if (st == ROSE_E_UNSUPPORTED) b->library_bf16 = false;
    st = rose_onednn_product_create(&p, b->library, 0, b->library_bf16, 1, 64, 64, err);
    rose_onednn_product_destroy(p);
    return st;
}

static rose_status bench_open(rose_kernel_bench **out, const rose_kernel_opts *o, rose_err *err)
{
    rose_status st;
    rose_isa isa;
    rose_kernel_bench *b = calloc(1, sizeof *b);

    *out = NULL;
    if (b == NULL) return rose_fail(err, ROSE_E_NOMEM, "kernel benchmark: out of memory");
    if ((st = rose_isa_parse(o->isa != NULL ? o->isa : "auto", &isa, err)) != ROSE_OK) goto done;
    if (o->dtype == ROSE_COMPUTE_F16) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED, "device cpu has float32 and bfloat16");
        goto done;
    }
    b->bf16 = o->dtype != ROSE_COMPUTE_F32;
    b->rest_ms = o->rest_ms;
    if (isa == ROSE_ISA_AVX512_BF16 && !b->bf16) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED, "isa %s multiplies bfloat16, not float32",
                       rose_isa_name(isa));
        goto done;
    }
    int cpus[ROSE_POOL_MAX_THREADS];
    const uint32_t n_cpus = rose_cpus_allowed(cpus, ROSE_POOL_MAX_THREADS);
    b->n_threads = o->n_threads > 0 ? o->n_threads : n_cpus > 0 ? n_cpus : 1;
    if (b->n_threads > ROSE_POOL_MAX_THREADS) {
        st = rose_fail(err, ROSE_E_INVAL, "threads %u: at most %d", b->n_threads,
                       ROSE_POOL_MAX_THREADS);
        goto done;
    }
    if (!set_openmp(b->n_threads, cpus, n_cpus)) {
        st = rose_fail(err, ROSE_E_NOMEM, "kernel benchmark: out of memory");
        goto done;
    }
    if ((st = rose_onednn_open(&b->library, o->library, err)) != ROSE_OK) goto done;
    if ((st = rose_pool_create(&b->pool, b->n_threads, cpus, n_cpus, err)) != ROSE_OK) goto done;
    rose_cpu_kernels_init(&b->kernels, isa);
    if ((st = choose_type(b, err)) != ROSE_OK) goto done;
    snprintf(b->about, sizeof b->about, "CPU at level %s, %u threads, %s%s",
             rose_isa_name(b->kernels.isa), b->n_threads, rose_onednn_version(b->library),
             b->bf16 == b->library_bf16 ? "" : " in float32 (it has no bfloat16 product here)");
done:
    if (st != ROSE_OK) {
        bench_close(b);
        b = NULL;
    }
    *out = b;
    return st;
}

static const char *bench_about(const rose_kernel_bench *b)
{
    return b->about;
}

/* ---- one shape ---- */

static void own_thread(void *arg, uint32_t tid, uint32_t n)
{
    const product *p = arg;
    const rose_kernel_shape *s = p->s;
    const bool residual = s->role == ROSE_KERNEL_RESIDUAL;
    const rose_matmul a = {
        .w = p->own_w[p->copy],
        .k_pad = s->n_in,
        .n = s->n_out,
        .x = p->x,
        .ldx = s->n_in,
        .m_rows = s->rows,
        .bias = s->role == ROSE_KERNEL_HEAD ? NULL : p->bias,
        .epilogue = residual                     ? ROSE_EPI_RESIDUAL
                    : s->role == ROSE_KERNEL_ACT ? ROSE_EPI_GELU_TANH
                                                 : ROSE_EPI_NONE,
        .round_bf16 = p->b->bf16 && (s->role == ROSE_KERNEL_QKV || s->role == ROSE_KERNEL_ACT),
        .y = p->y,
        .ldy = s->n_out,
        .scratch = p->scratch + tid * p->scratch_stride,
    };
    rose_cpu_matmul_share(p->b->bf16 ? p->b->kernels.matmul_bf16 : p->b->kernels.matmul_f32, &a,
                          tid, n);
}

static rose_status own_pass(product *p, rose_err *err)
{
    (void)err;
    for (p->copy = 0; p->copy < p->n_copies; p->copy++)
        rose_pool_run(p->b->pool, own_thread, p);
    return ROSE_OK;
}

static rose_status library_pass(product *p, rose_err *err)
{
    for (uint32_t i = 0; i < p->n_copies; i++) {
        rose_status st = rose_onednn_run(p->way, p->library_x, p->library_w[i], p->library_y, err);
        if (st != ROSE_OK) return st;
    }
    return ROSE_OK;
}

/* A pass to wake the threads, then one that counts. */
static rose_status timed(product *p, rose_status (*pass)(product *, rose_err *), double *us,
                         rose_err *err)
{
    rose_sleep_ms(p->b->rest_ms);
    rose_status st = pass(p, err);
    const uint64_t start = rose_now_ns();
    if (st == ROSE_OK) st = pass(p, err);
    *us = (double)(rose_now_ns() - start) * 1e-3 / p->n_copies;
    return st;
}

static void store_rounded(void *out, const float *in, size_t n, bool bf16)
{
    if (!bf16) {
        memcpy(out, in, n * sizeof *in);
        return;
    }
    for (size_t i = 0; i < n; i++)
        ((uint16_t *)out)[i] = rose_bf16_from_f32(in[i]);
}

static void fill(float *x, size_t n, float scale, bool bf16, uint32_t *state)
{
    for (size_t i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        x[i] = rose_round_if(bf16, ((float)(*state >> 8) / 8388608.0f - 1.0f) * scale);
    }
}

static rose_status allocate(product *p, rose_err *err)
{
    const rose_kernel_shape *s = p->s;
    const rose_weight_type type = p->b->bf16 ? ROSE_W_BF16 : ROSE_W_F32;
    const size_t size = p->b->library_bf16 ? 2 : 4, w = rose_panels_bytes(type, s->n_in, s->n_out);
    bool ok = true;

    p->n_copies = (uint32_t)(PASS_BYTES / w) + 1;
    if (p->n_copies > MAX_COPIES) p->n_copies = MAX_COPIES;
    p->scratch_stride = (rose_matmul_scratch(s->n_in) + 63) / 64 * 64 + 128;
    ok = (p->plain = take((size_t)s->n_in * s->n_out * sizeof(float))) != NULL && ok;
    ok = (p->x = take((size_t)s->rows * s->n_in * sizeof(float))) != NULL && ok;
    ok = (p->y = take((size_t)s->rows * s->n_out * sizeof(float))) != NULL && ok;
    ok = (p->bias = take(s->n_out * sizeof(float))) != NULL && ok;
    ok = (p->library_x = take((size_t)s->rows * s->n_in * size)) != NULL && ok;
    ok = (p->library_y = take((size_t)s->rows * s->n_out * size)) != NULL && ok;
    ok = (p->scratch = take(p->b->n_threads * p->scratch_stride)) != NULL && ok;
    for (uint32_t i = 0; i < p->n_copies; i++)
        ok = (p->own_w[i] = take(w)) != NULL && ok;
    return ok ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "kernel benchmark: out of memory");
}

static void release_library_weights(product *p)
{
    for (uint32_t i = 0; i < MAX_COPIES; i++) {
        free(p->library_w[i]);
        p->library_w[i] = NULL;
    }
}

static void release(product *p)
{
    release_library_weights(p);
    rose_onednn_product_destroy(p->way);
    for (uint32_t i = 0; i < MAX_COPIES; i++)
        free(p->own_w[i]);
    free(p->plain);
    free(p->x);
    free(p->y);
    free(p->bias);
    free(p->library_x);
    free(p->library_y);
    free(p->scratch);
}

/* Every copy holds the same values: only where they lie matters. */
static void pack_own(product *p)
{
    const rose_kernel_shape *s = p->s;
    const rose_weight_type type = p->b->bf16 ? ROSE_W_BF16 : ROSE_W_F32;
    const rose_tensor t = {.name = "w",
                           .data = p->plain,
                           .dtype = ROSE_F32,
                           .n_dims = 2,
                           .shape = {s->n_in, s->n_out}};
    rose_pack_panels(p->own_w[0], NULL, type, &t, s->n_in, s->n_out, false, 0,
                     (s->n_out + ROSE_PANEL - 1) / ROSE_PANEL);
    for (uint32_t i = 1; i < p->n_copies; i++)
        memcpy(p->own_w[i], p->own_w[0], rose_panels_bytes(type, s->n_in, s->n_out));
}

/* The product in one of oneDNN's ways, packed, as p->way. */
static rose_status prepare_way(product *p, int way, rose_err *err)
{
    const rose_kernel_shape *s = p->s;
    const size_t n = (size_t)s->n_in * s->n_out;
    void *plain = take(n * (p->b->library_bf16 ? 2 : 4));
    rose_status st =
        plain == NULL ? rose_fail(err, ROSE_E_NOMEM, "kernel benchmark: out of memory") : ROSE_OK;

    release_library_weights(p);
    rose_onednn_product_destroy(p->way);
    p->way = NULL;
    if (st == ROSE_OK)
        st = rose_onednn_product_create(&p->way, p->b->library, way, p->b->library_bf16, s->rows,
                                        s->n_out, s->n_in, err);
    if (st != ROSE_OK) goto done;
    store_rounded(plain, p->plain, n, p->b->library_bf16);
    for (uint32_t i = 0; i < p->n_copies && st == ROSE_OK; i++) {
        if ((p->library_w[i] = take(rose_onednn_weight_bytes(p->way))) == NULL)
            st = rose_fail(err, ROSE_E_NOMEM, "kernel benchmark: out of memory");
        else
            st = rose_onednn_pack(p->way, plain, p->library_w[i], err);
    }
done:
    free(plain);
    return st;
}

static rose_status best_way(product *p, rose_err *err)
{
    double us[ROSE_ONEDNN_WAYS];
    for (int i = 0; i < ROSE_ONEDNN_WAYS; i++) {
        rose_status st = prepare_way(p, i, err);
        if (st == ROSE_OK) st = timed(p, library_pass, &us[i], err);
        if (st != ROSE_OK) return st;
    }
    return us[0] < us[1] ? prepare_way(p, 0, err) : ROSE_OK; /* the last is prepared */
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static rose_status bench_run(rose_kernel_bench *b, const rose_kernel_shape *s, uint32_t repeats,
                             rose_kernel_times *out, rose_err *err)
{
    product p = {.b = b, .s = s};
    double own[MAX_REPEATS], library[MAX_REPEATS];
    uint32_t state = 1;
    rose_status st = ROSE_OK;

    *out = (rose_kernel_times){0};
    if (repeats == 0 || repeats > MAX_REPEATS || s->rows == 0 || s->n_in % ROSE_K_GROUP != 0 ||
        s->n_out % ROSE_PANEL != 0)
        return rose_fail(err, ROSE_E_INVAL, "kernel benchmark: %u x %u, %u rows, %u repeats",
                         s->n_out, s->n_in, s->rows, repeats);
    if ((st = allocate(&p, err)) != ROSE_OK) goto done;
    fill(p.plain, (size_t)s->n_in * s->n_out, 0.05f, b->bf16, &state);
    fill(p.x, (size_t)s->rows * s->n_in, 1.0f, b->bf16, &state);
    store_rounded(p.library_x, p.x, (size_t)s->rows * s->n_in, b->library_bf16);
    pack_own(&p);
    if ((st = best_way(&p, err)) != ROSE_OK) goto done;
    for (uint32_t i = 0; i < repeats && st == ROSE_OK; i++) {
        st = timed(&p, own_pass, &own[i], err);
        if (st == ROSE_OK) st = timed(&p, library_pass, &library[i], err);
    }
    if (st != ROSE_OK) goto done;
    qsort(own, repeats, sizeof *own, by_value);
    qsort(library, repeats, sizeof *library, by_value);
    *out = (rose_kernel_times){.own_us = own[repeats / 2], .library_us = library[repeats / 2]};
done:
    release(&p);
    return st;
}

rose_status rose_kernel_bench_cpu(const rose_kernel_bench_ops **out, rose_err *err)
{
    static const rose_kernel_bench_ops ops = {.library = "oneDNN",
                                              .open = bench_open,
                                              .about = bench_about,
                                              .run = bench_run,
                                              .close = bench_close};
    (void)err;
    *out = &ops;
    return ROSE_OK;
}

#else

rose_status rose_kernel_bench_cpu(const rose_kernel_bench_ops **out, rose_err *err)
{
    *out = NULL;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "device cpu: this program was built without oneDNN's header (Debian: "
                     "libdnnl-dev)");
}

#endif
