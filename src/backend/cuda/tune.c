/* backend/cuda/tune.c - times the GEMM kernels of the table on the shapes of a model, and keeps the
 * fastest kernel for each shape and bucket of rows, where tune_steps.c finds that steps get faster.
 * All kernels give the same bits, so a bad measurement costs speed alone.
 *
 * It runs at open, after the weights are loaded and before steps are captured. Rows, outputs and
 * copies of the matrix lie in the memory of the KV pages, which is zeroed afterwards. Successive
 * launches use different copies, so that the weights are not in the L2, as in a real step. Threads:
 * the engine thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backend/cuda/cuda_internal.h"
#include "base/clock.h"
#include "base/log.h"

enum {
    COPIES = 128, /* of a matrix, at most */
    FEW = 16,     /* launches in a run of RUN_US, at most */
    RUN_US = 600,
    RUNS = 5,
    SHAPE_MS = 2500,
    MODEL_MS = 20000,
    STEPS_MS = 9000 /* of tune_steps.c, and what MODEL_MS leaves */
};
/* Kernels that take this many times the least estimate are not timed. */
#define HOPELESS 2.5
/* A kernel replaces the choice of the estimate only if it is faster by this factor. */
#define FASTER 0.97

static const uint32_t g_buckets[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};

/* The matrices of one shape, and the memory of a run. */
typedef struct tuning {
    rose_cuda_rank *rank;
    const rose_cuda_matrix *m;
    rose_cuda_matrix copy[COPIES];
    uint32_t n;
    rose_gemm_io io;
    cudaEvent_t start, end;
    uint64_t until; /* the time limit */
} tuning;

/* Place copies of the matrix from byte `at` of the KV memory on, until they are three times the L2.
 * Their values do not matter. Without room the matrix itself serves. */
static void place_copies(tuning *t, uint64_t at)
{
    const uint64_t bytes = (uint64_t)t->m->n_pad * t->m->k_pad * 2;
    const uint64_t room = (t->rank->c->plan.kv - at) / bytes,
                   want = 3 * t->rank->device.l2 / bytes + 1;
    const uint64_t most = want < COPIES ? want : COPIES;
    t->n = (uint32_t)(room < most ? room : most);
    for (uint32_t i = 0; i < t->n; i++) {
        t->copy[i] = *t->m;
        t->copy[i].w = (uint8_t *)t->rank->kv_base + at + i * bytes;
    }
    if (t->n > 0) return;
    t->copy[0] = *t->m;
    t->n = 1;
}

/* Place what t->io.rows rows need. False if the memory is too small. */
static bool place(tuning *t)
{
    const rose_cuda_matrix *m = t->m;
    const uint64_t rows = rose_align_up(t->io.rows, ROSE_CUDA_ROW_PAD);
    const uint64_t h = rows * m->k_pad * 2, out = rows * m->n_pad * sizeof(float);
    const uint64_t keys = rose_align_up(rows * sizeof(unsigned long long), 256);
    uint8_t *base = t->rank->kv_base;
    if (h + out + keys > t->rank->c->plan.kv) return false;
    t->io.h = base;
    t->io.x = t->io.logits = (float *)(void *)(base + h);
    t->io.out = base + h;
    t->io.key = (unsigned long long *)(void *)(base + h + out);
    t->io.ld_x = t->io.ld_logits = m->n_pad;
    t->io.out_pitch = t->io.end == ROSE_END_GATED ? m->n_pad / 2 : m->n_pad;
    place_copies(t, h + out + keys);
    return true;
}

static rose_cuda_launch launch_of(const tuning *t, const rose_gemm_kernel *g)
{
    return (rose_cuda_launch){.device = &t->rank->device,
                              .stream = t->rank->stream,
                              .type = t->rank->c->type,
                              .shared = rose_cuda_carveout(t->rank->c->without, t->io.rows),
                              .without = t->rank->c->without,
                              .forced = g};
}

/* Capture n launches of a kernel, the copies in turn. */
static cudaError_t capture(const tuning *t, const rose_gemm_kernel *g, uint32_t n,
                           cudaGraphExec_t *exec)
{
    rose_cuda_launch at = launch_of(t, g);
    cudaGraph_t graph = NULL;
    cudaError_t e = cudaStreamBeginCapture(at.stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) return e;
    for (uint32_t i = 0; i < n && e == cudaSuccess; i++) {
        e = rose_gemm_run(&at, &t->copy[i % t->n], &t->io);
        at.dependent = t->rank->c->pdl;
    }
    const cudaError_t ended = cudaStreamEndCapture(at.stream, &graph);
    if (e == cudaSuccess) e = ended;
    if (e == cudaSuccess) e = cudaGraphInstantiate(exec, graph, 0);
    if (graph != NULL) cudaGraphDestroy(graph);
    return e;
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* The median of RUNS runs of n launches, after one that is not counted. *us: of one launch. */
static cudaError_t time_kernel(const tuning *t, const rose_gemm_kernel *g, uint32_t n, double *us)
{
    float ms[RUNS];
    cudaGraphExec_t exec = NULL;
    cudaError_t e = capture(t, g, n, &exec);
    for (int i = -1; i < RUNS && e == cudaSuccess; i++) {
        e = cudaEventRecord(t->start, t->rank->stream);
        if (e == cudaSuccess) e = cudaGraphLaunch(exec, t->rank->stream);
        if (e == cudaSuccess) e = cudaEventRecord(t->end, t->rank->stream);
        if (e == cudaSuccess) e = rose_cuda_wait(t->rank->c, t->end);
        if (e == cudaSuccess && i >= 0) e = cudaEventElapsedTime(&ms[i], t->start, t->end);
    }
    if (exec != NULL && !t->rank->c->lost) cudaGraphExecDestroy(exec);
    if (e != cudaSuccess) return e;
    qsort(ms, RUNS, sizeof *ms, compare);
    *us = (double)ms[RUNS / 2] * 1e3 / n;
    return cudaSuccess;
}

/* Launches of a run: all copies, or a few of one that is large. */
static uint32_t launches_of(const tuning *t, double least)
{
    const double fit = RUN_US / least < FEW ? RUN_US / least : FEW;
    const uint32_t few = fit < 2 ? 2 : (uint32_t)fit;
    return t->n > few ? t->n : few;
}

/* Times the kernels of a shape and number of rows, as many as the time allows. */
static cudaError_t tune_rows(const tuning *t, rose_gemm_tuning *line)
{
    const rose_cuda_matrix *m = t->m;
    const rose_cuda_launch at = launch_of(t, NULL);
    const rose_gemm_kernel *guess = rose_gemm_choose(&at, m, &t->io), *fastest = guess;
    const double least = rose_gemm_cost(guess, &at, m, &t->io);
    const uint32_t launches = launches_of(t, least);
    double guess_us = 0, fastest_us = 0;
    cudaError_t e = time_kernel(t, guess, launches, &guess_us);
    fastest_us = guess_us * FASTER;
    for (uint32_t i = 0; i < rose_gemm_n_kernels && e == cudaSuccess; i++) {
        const rose_gemm_kernel *g = &rose_gemm_kernels[i];
        double us;
        if (g == guess || !rose_gemm_takes(g, &at, m, &t->io) ||
            rose_gemm_cost(g, &at, m, &t->io) > HOPELESS * least)
            continue;
        if (rose_now_ns() >= t->until)
            break; /* what is fastest so far is not slower than the guess */
        e = time_kernel(t, g, launches, &us);
        if (e != cudaSuccess || us >= fastest_us) continue;
        fastest = g;
        fastest_us = us;
    }
    if (e != cudaSuccess) return e;
    rose_log(ROSE_LOG_INFO, "cuda",
             "tune: n %u, k %u, end %d, %u rows: %s %.1f us; the estimate's choice %s %.1f us",
             m->n, m->k, (int)t->io.end, t->io.rows, fastest->name,
             fastest == guess ? guess_us : fastest_us, guess->name, guess_us);
    line->kernel = fastest;
    line->guess = guess;
    line->guess_us = (float)guess_us;
    line->us = (float)(fastest == guess ? guess_us : fastest_us);
    return e;
}

/* Times the buckets up to most_rows, one of them at least, and puts what was measured into
 * rank->c->tuned. */
static rose_status tune_shape(tuning *t, uint32_t most_rows, rose_err *err)
{
    const rose_cuda_matrix *m = t->m;
    rose_gemm_tuning line = {
        .n = m->n, .k = m->k, .n_parts = m->n_parts, .format = m->format, .end = t->io.end};
    const uint64_t limit = rose_now_ns() + (uint64_t)SHAPE_MS * 1000000;
    const uint64_t model = t->until;
    if (limit < t->until) t->until = limit;
    for (size_t i = 0; i < sizeof g_buckets / sizeof *g_buckets; i++) {
        line.bucket = g_buckets[i];
        t->io.rows = line.bucket < most_rows ? line.bucket : most_rows;
        if ((i > 0 && rose_now_ns() >= t->until) || !place(t)) break;
        const cudaError_t e = tune_rows(t, &line);
        if (e != cudaSuccess) return rose_cuda_status(err, e, "timing GEMM kernels");
        if (rose_gemm_tuned_set(&t->rank->c->tuned, &line) == ROSE_E_NOMEM)
            return rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
        if (line.bucket >= most_rows) break;
    }
    t->until = model;
    return ROSE_OK;
}

/* Whether a layer before this one has a matrix of the same role and shape. */
static bool met(const rose_cuda_rank *rank, uint32_t layer, rose_role role)
{
    const rose_cuda_matrix *m = &rank->weights.layers[layer].m[role];
    for (uint32_t i = 0; i < layer; i++) {
        const rose_cuda_matrix *other = &rank->weights.layers[i].m[role];
        if (other->n == m->n && other->k == m->k) return true;
    }
    return false;
}

static rose_status tune_matrix(tuning *t, uint32_t layer, rose_role role, rose_err *err)
{
    rose_cuda_rank *rank = t->rank;
    const rose_cuda_layer *l = &rank->weights.layers[layer];
    const bool apart = role == ROSE_UP && (rank->c->without & ROSE_CUDA_WITHOUT_MLP) != 0;
    /* Rows that are normed or rotated are fp32 (forward.c). */
    const bool f32 = apart || (role == ROSE_QKV && (l->rope >= 0 || l->q_norm != NULL));
    t->m = &l->m[role];
    t->io = (rose_gemm_io){.act = l->act, .out_f32 = f32};
    t->io.end = t->m->n_parts > 1          ? ROSE_END_RESIDUAL
                : role != ROSE_UP || apart ? ROSE_END_ROWS
                : t->m->gated              ? ROSE_END_GATED
                                           : ROSE_END_ACT;
    return tune_shape(t, rank->c->plan.max_step_tokens, err);
}

static rose_status tune_all(tuning *t, rose_err *err)
{
    rose_cuda_rank *rank = t->rank;
    rose_status st = ROSE_OK;
    for (uint32_t layer = 0; layer < rank->c->arch.n_layers; layer++)
        for (int role = 0; role < ROSE_N_ROLES && st == ROSE_OK; role++)
            if (!met(rank, layer, (rose_role)role))
                st = tune_matrix(t, layer, (rose_role)role, err);
    if (st != ROSE_OK) return st;
    t->m = &rank->weights.head;
    t->io = (rose_gemm_io){.end = ROSE_END_LOGITS};
    return tune_shape(t, rank->scratch.out_block, err);
}

static rose_status measure_model(rose_cuda_rank *rank, rose_err *err)
{
    tuning t = {.rank = rank};
    const uint64_t began = rose_now_ns();
    if (rank->c->type == ROSE_F32) return ROSE_OK; /* fp32 has one kernel */
    t.until = began + (uint64_t)MODEL_MS * 1000000;
    cudaError_t e = cudaEventCreateWithFlags(&t.start, cudaEventDefault);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&t.end, cudaEventDefault);
    /* Small values: zeros would take less power, and so run faster, than real rows. */
    if (e == cudaSuccess) e = cudaMemsetAsync(rank->kv_base, 0x3c, rank->c->plan.kv, rank->stream);
    rose_status st = e == cudaSuccess ? tune_all(&t, err) : rose_cuda_status(err, e, "tuning");
    if (rank->c->lost) return st;
    if (st == ROSE_OK) e = cudaMemsetAsync(rank->kv_base, 0, rank->c->plan.kv, rank->stream);
    if (st == ROSE_OK && e == cudaSuccess) e = rose_cuda_finish(rank);
    if (st == ROSE_OK) st = rose_cuda_status(err, e, "tuning");
    if (t.start != NULL) cudaEventDestroy(t.start);
    if (t.end != NULL) cudaEventDestroy(t.end);
    if (st == ROSE_OK)
        st = rose_cuda_tune_steps(rank, began + (uint64_t)(MODEL_MS + STEPS_MS) * 1000000, err);
    if (st != ROSE_OK) return st;
    rose_log(ROSE_LOG_INFO, "cuda", "tuned %u GEMM shapes in %.1f s", rank->c->tuned.n_lines,
             rose_ms_between(began, rose_now_ns()) / 1e3);
    return st;
}

/* ---- the file ---- */

/* "DIR/tune-NVIDIA-H100-80GB-HBM3.txt" */
static rose_status file_of(const char *dir, const char *gpu, char *out, size_t cap, rose_err *err)
{
    const int n = snprintf(out, cap, "%s/tune-%s.txt", dir, gpu);
    if (n < 0 || (size_t)n >= cap)
        return rose_fail(err, ROSE_E_INVAL, "tuned GEMM kernels: the path %.60s... is too long",
                         dir);
    for (char *p = out + strlen(dir) + 1; *p != '\0'; p++)
        if (*p == ' ' || *p == '/') *p = '-';
    return ROSE_OK;
}

rose_status rose_cuda_tune(rose_cuda_rank *rank, const char *dir, bool measure, rose_err *err)
{
    struct cudaDeviceProp about;
    char path[2048];
    const cudaError_t e = cudaGetDeviceProperties(&about, rank->device.index);
    if (e != cudaSuccess) return rose_cuda_status(err, e, "asking for the GPU's name");
    rose_status st = dir != NULL ? file_of(dir, about.name, path, sizeof path, err) : ROSE_OK;
    if (st == ROSE_OK && dir != NULL) rose_gemm_tuned_read(&rank->c->tuned, path, about.name);
    if (st == ROSE_OK && measure) st = measure_model(rank, err);
    if (st != ROSE_OK) return st;
    rose_err why = {""};
    if (measure && dir != NULL) mkdir(dir, 0777); /* where it fails, the write says why */
    if (measure && dir != NULL &&
        rose_gemm_tuned_write(&rank->c->tuned, path, about.name, &why) != ROSE_OK)
        rose_log(ROSE_LOG_WARN, "cuda", "%s; the measured choices serve this run alone", why.msg);
    rose_gemm_tuned_add(&rank->c->tuned, rose_gemm_shipped, about.name);
    return ROSE_OK;
}
