/* bench/kernels_cuda.c - GPU 0 of kernels_internal.h: times our GEMM kernels and cuBLASLt on the
 * same shapes. All memory is allocated at open, for the largest shape. */
#include "bench/kernels_internal.h"

#if ROSE_CUDA

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/philox.h"

enum { MATRICES = 12, PATTERN = 1 << 22, TRIES = 5 };

typedef struct cuda_bench {
    rose_kernel_bench public; /* first: a rose_kernel_bench is one of these */
    rose_cuda_device device;
    const rose_gemm_kernel *forced; /* NULL: the engine's choice */
    rose_format type;
    cudaStream_t stream;
    cudaEvent_t start, end;
    rose_cublaslt *library;
    void *w, *x, *y; /* device: MATRICES matrices, one input, and one output for both sides */
    float *bias;     /* device memory: biases that are all zero; the bytes mean zero both in fp32
                      * and in 16 bits */
    /* Device memory [MATRICES][max_rows]: the keys of the largest logits, zeroed before each
     * run, as a step does. */
    unsigned long long *key;
    uint64_t w_bytes, x_bytes, y_bytes;
    uint32_t max_rows, max_out, rest_ms;
    cudaGraphExec_t side[ROSE_KERNEL_SIDES]; /* of the shape that is prepared */
} cuda_bench;

static rose_status cuda_status(cudaError_t e, const char *what, rose_err *err)
{
    return rose_cuda_status(err, e, what);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Outputs of one matrix, padded to whole tiles as the engine does. */
static uint32_t padded_outputs(const rose_kernel_shape *s)
{
    return (s->n_out + 127) / 128 * 128;
}

static uint64_t matrix_bytes(const rose_kernel_shape *s)
{
    return (uint64_t)padded_outputs(s) * s->n_in * 2;
}

/* Bytes that our side writes: fp32 for the residual and for logits. */
static uint64_t output_bytes(const rose_kernel_shape *s)
{
    const uint64_t rows =
        ((uint64_t)s->rows + ROSE_CUDA_ROW_PAD - 1) / ROSE_CUDA_ROW_PAD * ROSE_CUDA_ROW_PAD;
    return rows * s->n_out * (s->role == ROSE_KERNEL_QKV || s->role == ROSE_KERNEL_ACT ? 2 : 4);
}

static void add_size(cuda_bench *b, const rose_kernel_shape *s)
{
    const uint64_t rows = (uint64_t)s->rows + ROSE_CUDA_ROW_PAD;
    b->w_bytes = larger(b->w_bytes, matrix_bytes(s) * MATRICES);
    b->x_bytes = larger(b->x_bytes, rows * s->n_in * 2);
    b->y_bytes = larger(b->y_bytes, output_bytes(s));
    b->max_rows = (uint32_t)larger(b->max_rows, s->rows);
    b->max_out = (uint32_t)larger(b->max_out, s->n_out);
}

/* Fill with random numbers in (-scale, scale), as a repeated pattern. Zeros would run faster than
 * real data. */
static cudaError_t fill(void *to, uint64_t bytes, float scale, rose_format t)
{
    uint16_t *pattern = malloc(PATTERN * sizeof *pattern);
    cudaError_t e = pattern != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
    for (uint32_t i = 0; pattern != NULL && i < PATTERN; i++) {
        const float v = (2 * rose_philox_uniform(7, i, 0) - 1) * scale;
        pattern[i] = t == ROSE_F16 ? rose_f32_to_f16(v) : rose_f32_to_bf16(v);
    }
    for (uint64_t at = 0; at < bytes && e == cudaSuccess; at += PATTERN * sizeof *pattern) {
        const uint64_t left = bytes - at, n = PATTERN * sizeof *pattern;
        e = cudaMemcpy((uint8_t *)to + at, pattern, left < n ? left : n, cudaMemcpyHostToDevice);
    }
    free(pattern);
    return e;
}

static size_t key_bytes(const cuda_bench *b)
{
    return (size_t)MATRICES * b->max_rows * sizeof *b->key;
}

static cudaError_t allocate(cuda_bench *b)
{
    cudaError_t e = cudaMalloc(&b->w, b->w_bytes);
    if (e == cudaSuccess) e = cudaMalloc(&b->x, b->x_bytes);
    if (e == cudaSuccess) e = cudaMalloc(&b->y, b->y_bytes);
    if (e == cudaSuccess) e = cudaMalloc((void **)&b->bias, b->max_out * sizeof *b->bias);
    if (e == cudaSuccess) e = cudaMalloc((void **)&b->key, key_bytes(b));
    if (e == cudaSuccess) e = fill(b->w, b->w_bytes, 0.05f, b->type);
    if (e == cudaSuccess) e = fill(b->x, b->x_bytes, 1, b->type);
    if (e == cudaSuccess) e = cudaMemset(b->y, 0, b->y_bytes);
    if (e == cudaSuccess) e = cudaMemset(b->bias, 0, b->max_out * sizeof *b->bias);
    /* b->stream does not wait for the copies above. */
    if (e == cudaSuccess) e = cudaDeviceSynchronize();
    return e;
}

static void drop_sides(cuda_bench *b)
{
    for (uint32_t i = 0; i < ROSE_KERNEL_SIDES; i++) {
        if (b->side[i] != NULL) cudaGraphExecDestroy(b->side[i]);
        b->side[i] = NULL;
    }
}

static void bench_close(rose_kernel_bench *base)
{
    cuda_bench *b = (cuda_bench *)base;
    if (b->stream != NULL) cudaStreamSynchronize(b->stream);
    drop_sides(b);
    rose_cublaslt_close(b->library);
    cudaFree(b->w);
    cudaFree(b->x);
    cudaFree(b->y);
    cudaFree(b->bias);
    cudaFree(b->key);
    if (b->start != NULL) cudaEventDestroy(b->start);
    if (b->end != NULL) cudaEventDestroy(b->end);
    if (b->stream != NULL) cudaStreamDestroy(b->stream);
    cudaGetLastError();
    free(b);
}

/* NULL: the engine's own choice. */
static rose_status choose_own(cuda_bench *b, const char *name, rose_err *err)
{
    b->forced = name != NULL ? rose_gemm_named(name) : NULL;
    if (name != NULL && b->forced == NULL)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "bench kernels: there is no kernel %s", name);
    return ROSE_OK;
}

/* ---- one shape ---- */

static rose_gemm_io make_io(const cuda_bench *b, const rose_kernel_shape *s)
{
    rose_gemm_io io = {.h = b->x, .rows = s->rows, .out = b->y, .out_pitch = s->n_out};
    switch (s->role) {
    case ROSE_KERNEL_QKV:
        io.end = ROSE_END_ROWS;
        break;
    case ROSE_KERNEL_RESIDUAL:
        io.end = ROSE_END_RESIDUAL;
        io.x = b->y;
        io.ld_x = s->n_out;
        break;
    case ROSE_KERNEL_ACT:
        io.end = s->gated ? ROSE_END_GATED : ROSE_END_ACT;
        io.out_pitch = s->gated ? s->n_out / 2 : s->n_out;
        io.act = s->gated ? ROSE_ACT_SILU : ROSE_ACT_GELU_TANH;
        break;
    case ROSE_KERNEL_HEAD:
        io.end = ROSE_END_LOGITS;
        io.logits = b->y;
        io.ld_logits = s->n_out;
        break;
    }
    return io;
}

static rose_status enqueue_own(cuda_bench *b, const rose_kernel_shape *s, rose_err *err)
{
    rose_cuda_launch at = {
        .device = &b->device, .stream = b->stream, .type = b->type, .forced = b->forced};
    rose_gemm_io io = make_io(b, s);
    for (uint32_t i = 0; i < MATRICES; i++) {
        rose_cuda_matrix m = {.w = (uint8_t *)b->w + i * matrix_bytes(s),
                              .bias = s->role == ROSE_KERNEL_HEAD ? NULL : b->bias};
        const uint32_t parts = s->role == ROSE_KERNEL_RESIDUAL ? ROSE_GEMM_PARTS : 1;
        rose_cuda_matrix_shape(&m, b->type, s->n_in, s->n_out, parts, 0, s->gated);
        if (s->role == ROSE_KERNEL_HEAD) io.key = b->key + (size_t)i * b->max_rows;
        rose_status st = cuda_status(rose_gemm_run(&at, &m, &io), "launching a GEMM", err);
        if (st != ROSE_OK) return st;
        at.dependent = true;
    }
    return ROSE_OK;
}

static rose_status enqueue_library(cuda_bench *b, const rose_kernel_shape *s, uint32_t choice,
                                   rose_err *err)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < MATRICES && st == ROSE_OK; i++)
        st = rose_cublaslt_run(b->library, choice, b->x, (uint8_t *)b->w + i * matrix_bytes(s),
                               b->y, b->stream, err);
    return st;
}

enum { OWN = -1 };

/* Capture the launches of one side as a graph. choice: OWN, or the number of a cuBLASLt algorithm.
 */
static rose_status capture(cuda_bench *b, const rose_kernel_shape *s, int choice,
                           cudaGraphExec_t *exec, rose_err *err)
{
    cudaGraph_t graph = NULL;
    cudaError_t e = cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) return cuda_status(e, "capturing", err);
    rose_status st =
        choice == OWN ? enqueue_own(b, s, err) : enqueue_library(b, s, (uint32_t)choice, err);
    e = cudaStreamEndCapture(b->stream, &graph);
    if (e == cudaSuccess) e = cudaGraphInstantiate(exec, graph, 0);
    if (graph != NULL) cudaGraphDestroy(graph);
    return st != ROSE_OK ? st : cuda_status(e, "capturing", err);
}

static rose_status time_graph(cuda_bench *b, cudaGraphExec_t g, double *us, rose_err *err)
{
    float ms = 0;
    cudaError_t e = cudaMemsetAsync(b->key, 0, key_bytes(b), b->stream);
    if (e == cudaSuccess) e = cudaEventRecord(b->start, b->stream);
    if (e == cudaSuccess) e = cudaGraphLaunch(g, b->stream);
    if (e == cudaSuccess) e = cudaEventRecord(b->end, b->stream);
    if (e == cudaSuccess) e = cudaEventSynchronize(b->end);
    if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, b->start, b->end);
    *us = (double)ms * 1e3 / MATRICES;
    return cuda_status(e, "timing a GEMM", err);
}

/* Find the fastest cuBLASLt algorithm for the shape, by the best of a few runs of each. */
static rose_status choose_library(cuda_bench *b, const rose_kernel_shape *s, rose_cublaslt_end end,
                                  cudaGraphExec_t *best, rose_err *err)
{
    const rose_cublaslt_product p = {b->type, end, s->rows, s->n_out, s->n_in, b->bias};
    uint32_t n;
    double best_us = 0;
    rose_status st = rose_cublaslt_prepare(b->library, &p, &n, err);
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++) {
        cudaGraphExec_t g = NULL;
        double us = 0, least = 0;
        /* The algorithm cannot run: try the next one. */
        if (capture(b, s, (int)i, &g, NULL) != ROSE_OK) {
            if (g != NULL) cudaGraphExecDestroy(g);
            cudaGetLastError();
            continue;
        }
        for (int r = 0; r < TRIES && st == ROSE_OK; r++) {
            st = time_graph(b, g, &us, err);
            if (r == 0 || us < least) least = us;
        }
        if (*best == NULL || least < best_us) {
            if (*best != NULL) cudaGraphExecDestroy(*best);
            *best = g;
            best_us = least;
        } else {
            cudaGraphExecDestroy(g);
        }
    }
    if (st == ROSE_OK && *best == NULL)
        st = rose_fail(err, ROSE_E_BACKEND,
                       "cuBLASLt: no algorithm runs for %u rows, %u outputs, %u inputs", s->rows,
                       s->n_out, s->n_in);
    return st;
}

/* cuBLASLt with an epilogue that is as close to ours as it has. It finds no largest logit, and
 * multiplies no gate. It leaves out the bias of a residual if it has no algorithm
 * with both. Returns what the epilogue does, or NULL if no algorithm runs. (A lost device is
 * noticed by the next run.) */
static const char *choose_same(cuda_bench *b, const rose_kernel_shape *s, cudaGraphExec_t *best)
{
    static const struct {
        rose_kernel_role role;
        rose_cublaslt_end end;
        const char *what;
    } ends[] = {{ROSE_KERNEL_QKV, ROSE_CUBLASLT_BIAS, "bias"},
                {ROSE_KERNEL_RESIDUAL, ROSE_CUBLASLT_ADD_BIAS, "fp32 residual, bias"},
                {ROSE_KERNEL_RESIDUAL, ROSE_CUBLASLT_ADD, "fp32 residual, no bias"},
                {ROSE_KERNEL_ACT, ROSE_CUBLASLT_BIAS_GELU, "bias, GELU"},
                {ROSE_KERNEL_HEAD, ROSE_CUBLASLT_STORE_F32, "fp32"}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends[i].role == s->role && choose_library(b, s, ends[i].end, best, NULL) == ROSE_OK)
            return ends[i].what;
    return NULL;
}

static rose_status bench_prepare(rose_kernel_bench *base, const rose_kernel_shape *s,
                                 rose_kernel_sides *out, rose_err *err)
{
    cuda_bench *b = (cuda_bench *)base;
    double us;
    *out = (rose_kernel_sides){.has = {[ROSE_KERNEL_OWN] = true, [ROSE_KERNEL_LIBRARY] = true}};
    drop_sides(b);
    rose_status st = capture(b, s, OWN, &b->side[ROSE_KERNEL_OWN], err);
    if (st == ROSE_OK)
        st = choose_library(b, s, ROSE_CUBLASLT_STORE, &b->side[ROSE_KERNEL_LIBRARY], err);
    if (st == ROSE_OK) out->same = choose_same(b, s, &b->side[ROSE_KERNEL_LIBRARY_SAME]);
    out->has[ROSE_KERNEL_LIBRARY_SAME] = out->same != NULL;
    for (int r = 0; r < TRIES && st == ROSE_OK; r++)
        st = time_graph(b, b->side[ROSE_KERNEL_OWN], &us, err);
    return st;
}

static rose_status bench_time(rose_kernel_bench *base, rose_kernel_side side, double *us,
                              rose_err *err)
{
    cuda_bench *b = (cuda_bench *)base;
    rose_sleep_ms(b->rest_ms);
    return time_graph(b, b->side[side], us, err);
}

rose_status rose_kernel_bench_cuda(rose_kernel_bench **out, const rose_kernel_opts *o,
                                   rose_err *err)
{
    rose_status st = ROSE_OK;
    struct cudaDeviceProp about;
    cuda_bench *b = NULL;

    *out = NULL;
    if (o->dtype == ROSE_COMPUTE_F32) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "bench kernels: the GEMMs on CUDA are measured in float16 or bfloat16");
        goto done;
    }
    if ((b = calloc(1, sizeof *b)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "bench kernels: out of memory");
        goto done;
    }
    b->public = (rose_kernel_bench){.library = "cuBLASLt",
                                    .same = true,
                                    .prepare = bench_prepare,
                                    .time = bench_time,
                                    .close = bench_close};
    if ((st = rose_cuda_device_open(0, &b->device, err)) != ROSE_OK) goto done;
    b->type = o->dtype == ROSE_COMPUTE_BF16 ? ROSE_BF16 : ROSE_F16;
    b->rest_ms = o->rest_ms;
    if ((st = choose_own(b, o->kernel, err)) != ROSE_OK) goto done;
    if ((st = rose_cublaslt_open(&b->library, o->library, err)) != ROSE_OK) goto done;
    for (uint32_t i = 0; i < o->n_largest; i++)
        add_size(b, &o->largest[i]);
    cudaError_t e = cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaEventCreate(&b->start);
    if (e == cudaSuccess) e = cudaEventCreate(&b->end);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&about, b->device.index);
    if (e == cudaSuccess) e = rose_gemm_prepare(&b->device);
    if (e == cudaSuccess) e = allocate(b);
    if ((st = cuda_status(e, "bench kernels", err)) != ROSE_OK) goto done;
    const size_t v = rose_cublaslt_version(b->library);
    snprintf(b->public.about, sizeof b->public.about, "%.80s, cuBLASLt %zu.%zu.%zu", about.name,
             v / 10000, v / 100 % 100, v % 100);
    *out = &b->public;
done:
    if (st != ROSE_OK && b != NULL) bench_close(&b->public);
    return st;
}

#else

rose_status rose_kernel_bench_cuda(rose_kernel_bench **out, const rose_kernel_opts *o,
                                   rose_err *err)
{
    const rose_backend_ops *ops;
    (void)o;
    *out = NULL;
    return rose_backend_cuda(&ops, 0, err); /* says that the program was built without CUDA */
}

#endif
