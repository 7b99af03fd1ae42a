/* tests/backend/test_cuda_cudnn.c - attention of prompts by cuDNN, end to end on small random
 * models: its logits beside those of our own kernels, whole, in chunks, among others, in more
 * groups than one, with its buffers poisoned before. Its refusals need no GPU
 * (test_cudnn_choice.py). Exits 77 without a GPU or the library (ROSE_CUDNN_LIBRARY: its path).
 *
 * Whether the library knows the graph is asked first, for a GPU that need not be here: that wants
 * a libcuda.so.1 that can be loaded, for which the one in the toolkit's stubs will do. */
#define FX_MAX_SEQS 256
#define FX_MAX_ROWS 1200
#include <dlfcn.h>

#include "backend/cuda/cudnn.h"
#include "backend/cuda_fixture.h"
#include "base/log.h"

enum { N_PROMPT = 141, N_TOKENS = 150 };

static const fx_shape g_shapes[] = {
    {"GPT-2's widths", 2, 768, 12, 3072, 1003, 256, ROSE_ACT_GELU_TANH, ROSE_F32, false, false,
     false, false},
    {"heads of 24", 3, 96, 4, 384, 611, 256, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
     false},
    {"heads of 16, scaled by layer", 3, 80, 5, 200, 1000, 256, ROSE_ACT_GELU_ERF, ROSE_F16, true,
     true, true, false},
    {"heads of 128", 2, 256, 2, 1024, 300, 256, ROSE_ACT_SILU, ROSE_BF16, true, false, false,
     false},
    {"heads of 96", 2, 384, 4, 1536, 505, 256, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
     true},
};
enum { N_SHAPES = sizeof g_shapes / sizeof *g_shapes };

static const fx_shape g_long = {"1500 positions",   2,        256,   4,     1024,  300,  1500,
                                ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false};

/* ---- the library alone, beside sums in double precision ---- */

enum { HEADS = 2, DIM = 64, D = HEADS * DIM, Q_ROWS = 400, KV_ROWS = 800, PLAN_SEQS = 8 };

typedef struct length {
    int32_t q_row, q_len, kv_row, kv_len;
} length;

/* Rows lie apart from each other, contexts begin at whole pages: as in a step. */
static const length g_lengths[] = {
    {0, 5, 0, 9}, {10, 128, 16, 128}, {150, 33, 144, 33}, {200, 130, 192, 200}, {350, 2, 400, 300}};
enum { N_LENGTHS = sizeof g_lengths / sizeof *g_lengths };

typedef struct direct {
    uint16_t *q, *k, *v;                  /* [..][D], host */
    void *d_q, *d_k, *d_v, *d_o, *tables; /* device */
    rose_cuda_type type;
} direct;

static float value_of(rose_cuda_type t, uint16_t x)
{
    return t == ROSE_CUDA_F16 ? rose_f16_to_f32(x) : rose_bf16_to_f32(x);
}

/* Row `row` of sequence s, one head, as exact as can be; and the sums of absolute values. */
static void expect_row(const direct *x, const length *s, int32_t row, uint32_t head, double scale,
                       double out[DIM], double size[DIM])
{
    static double p[1024];
    const int32_t n = s->kv_len - s->q_len + row + 1;
    const uint16_t *q = x->q + (size_t)(s->q_row + row) * D + head * DIM;
    double max = -INFINITY, sum = 0;
    for (int32_t j = 0; j < n; j++) {
        const uint16_t *k = x->k + (size_t)(s->kv_row + j) * D + head * DIM;
        p[j] = 0;
        for (uint32_t i = 0; i < DIM; i++)
            p[j] += (double)value_of(x->type, q[i]) * (double)value_of(x->type, k[i]) * scale;
        if (p[j] > max) max = p[j];
    }
    memset(out, 0, DIM * sizeof *out);
    memset(size, 0, DIM * sizeof *size);
    for (int32_t j = 0; j < n; j++)
        sum += p[j] = exp(p[j] - max);
    for (int32_t j = 0; j < n; j++)
        for (uint32_t i = 0; i < DIM; i++) {
            const size_t at = (size_t)(s->kv_row + j) * D + head * DIM + i;
            const double v = p[j] / sum * (double)value_of(x->type, x->v[at]);
            out[i] += v;
            size[i] += fabs(v);
        }
}

/* All rows of o: those of sequences as they should be, the others untouched (0xFFFF). */
static void check_direct(const direct *x, double scale)
{
    const double unit = x->type == ROSE_CUDA_F16 ? 2e-3 : 1.6e-2;
    static uint16_t o[Q_ROWS * D];
    static bool owned[Q_ROWS];
    double worst = 0;
    memset(owned, 0, sizeof owned);
    assert_int_equal(cudaMemcpy(o, x->d_o, sizeof o, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int s = 0; s < N_LENGTHS; s++)
        for (int32_t row = 0; row < g_lengths[s].q_len; row++)
            for (uint32_t h = 0; h < HEADS; h++) {
                double want[DIM], size[DIM];
                expect_row(x, &g_lengths[s], row, h, scale, want, size);
                owned[g_lengths[s].q_row + row] = true;
                for (uint32_t i = 0; i < DIM; i++) {
                    const size_t at = (size_t)(g_lengths[s].q_row + row) * D + h * DIM + i;
                    const double e = fabs((double)value_of(x->type, o[at]) - want[i]);
                    if (e > worst) worst = e;
                    if (!(e <= unit * (0.5 + size[i])))
                        fail_msg("type %d, scale %g: sequence %d of %d rows and %d keys, row %d, "
                                 "head %u, dim %u: %g (0x%04x), not %g",
                                 x->type, scale, s, g_lengths[s].q_len, g_lengths[s].kv_len, row, h,
                                 i, (double)value_of(x->type, o[at]), o[at], want[i]);
                }
            }
    for (uint32_t row = 0; row < Q_ROWS; row++)
        for (uint32_t i = 0; i < D && !owned[row]; i++)
            if (o[row * D + i] != 0xFFFF)
                fail_msg("type %d: row %u, which no sequence has, was written: 0x%04x", x->type,
                         row, o[row * D + i]);
    print_message("  type %d, scale %g: largest error %.1e\n", x->type, scale, worst);
}

static void run_direct(rose_cuda_type t)
{
    fx_random r = {.seed = fx_seed() + t};
    direct x = {.type = t};
    int32_t tables[4][PLAN_SEQS + 1];
    rose_err err = {""};
    rose_cudnn *c;
    rose_cudnn_plan *plan;
    const float scales[2] = {0.125f, 0.5f};
    const rose_cudnn_problem p = {t, HEADS, DIM, PLAN_SEQS, 256, 512};

    for (int i = 0; i <= PLAN_SEQS; i++) {
        const bool has = i < N_LENGTHS;
        const length *s = &g_lengths[has ? i : N_LENGTHS - 1];
        tables[0][i] = has ? s->q_len : 0;
        tables[1][i] = has ? s->kv_len : 0;
        tables[2][i] = (has ? s->q_row : s->q_row + s->q_len) * D;
        tables[3][i] = (has ? s->kv_row : s->kv_row + s->kv_len) * D;
    }
    x.q = fx_random_16(&r, t, (size_t)Q_ROWS * D, 1);
    x.k = fx_random_16(&r, t, (size_t)KV_ROWS * D, 1);
    x.v = fx_random_16(&r, t, (size_t)KV_ROWS * D, 1);
    x.d_q = fx_to_device(x.q, (size_t)Q_ROWS * D * 2);
    x.d_k = fx_to_device(x.k, (size_t)KV_ROWS * D * 2);
    x.d_v = fx_to_device(x.v, (size_t)KV_ROWS * D * 2);
    x.d_o = fx_to_device(NULL, (size_t)Q_ROWS * D * 2);
    x.tables = fx_to_device(NULL, sizeof tables + 256 * 4);
    void *workspace = fx_to_device(NULL, ROSE_CUDNN_WORKSPACE);
    if (rose_cudnn_open(&c, fx_cudnn, NULL, &err) != ROSE_OK) fail_msg("%s", err.msg);
    if (rose_cudnn_plan_make(&plan, c, &p, &err) != ROSE_OK) fail_msg("%s", err.msg);
    print_message("  engine %lld, workspace %llu bytes\n", (long long)rose_cudnn_plan_engine(plan),
                  (unsigned long long)rose_cudnn_plan_workspace(plan));
    int32_t *at[4];
    for (int i = 0; i < 4; i++) {
        at[i] = (int32_t *)(void *)((uint8_t *)x.tables + 256 * i);
        assert_int_equal(cudaMemcpy(at[i], tables[i], sizeof tables[i], cudaMemcpyHostToDevice),
                         cudaSuccess);
    }
    for (int i = 0; i < 2; i++) {
        const rose_cudnn_operands a = {x.d_q, x.d_k, x.d_v, x.d_o,     at[0],
                                       at[1], at[2], at[3], workspace, &scales[i]};
        if (rose_cudnn_plan_bind(plan, &a, &err) != ROSE_OK) fail_msg("%s", err.msg);
    }
    for (uint32_t i = 0; i < 4; i++) { /* each binding twice, in turn */
        assert_int_equal(cudaMemset(x.d_o, 0xFF, (size_t)Q_ROWS * D * 2), cudaSuccess);
        if (rose_cudnn_plan_run(plan, i % 2, &err) != ROSE_OK) fail_msg("%s", err.msg);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        check_direct(&x, (double)scales[i % 2]);
    }
    rose_cudnn_plan_drop(plan);
    rose_cudnn_close(c);
    void *const all[] = {x.d_q, x.d_k, x.d_v, x.d_o, x.tables, workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cudaFree(all[i]);
    free(x.q);
    free(x.k);
    free(x.v);
}

static void test_direct(void **state)
{
    (void)state;
    run_direct(ROSE_CUDA_F16);
    run_direct(ROSE_CUDA_BF16);
}

/* ---- the backend ---- */

/* How prompts attend in an open backend. */
typedef enum way { CUDNN, FLASH, NAIVE } way;

static rose_cuda_cudnn *g_cudnn; /* of the backend that is open */
static uint64_t g_over;          /* bytes that backends took beyond their plans */

static void attend_by(fx_backend *f, way w)
{
    rose_cuda *c = fx_cuda(f);
    c->cudnn = w == CUDNN ? g_cudnn : NULL;
    c->naive = w == NAIVE;
}

static fx_backend open_with(const rose_model *m, rose_compute type)
{
    size_t before = 0, after = 0, total = 0;
    assert_int_equal(cudaMemGetInfo(&before, &total), cudaSuccess);
    fx_prefill = ROSE_PREFILL_CUDNN;
    fx_backend f = fx_open(m, type, NULL, 0, 1);
    fx_prefill = ROSE_PREFILL_AUTO;
    assert_int_equal(cudaMemGetInfo(&after, &total), cudaSuccess);
    print_message("planned %.1f MiB, taken %.1f\n", (double)f.plan.total / 1048576,
                  (double)(before - after) / 1048576);
    if (before > after + f.plan.total) g_over += before - after - f.plan.total;
    g_cudnn = fx_cuda(&f)->cudnn;
    assert_int_equal(f.plan.prefill, ROSE_PREFILL_CUDNN);
    assert_non_null(g_cudnn);
    return f;
}

static void close_with(fx_backend *f)
{
    attend_by(f, CUDNN);
    fx_close(f);
}

/* What a row of K or V may be that nobody has written: finite, and not small. */
static void poison(fx_backend *f)
{
    const rose_cuda *c = fx_cuda(f);
    const rose_cuda_cudnn_scratch *s = &c->scratch.cudnn;
    const size_t kv = (size_t)((uint8_t *)s->o - (uint8_t *)s->k);
    const size_t o = (size_t)((uint8_t *)s->q_len - (uint8_t *)s->o);
    uint16_t *v = malloc(kv);
    assert_non_null(v);
    for (size_t i = 0; i < kv / 2; i++)
        v[i] = fx_16(c->type, i % 2 == 0 ? 1000.0f : -1000.0f);
    assert_int_equal(cudaMemcpy(s->k, v, kv, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemset(s->o, 0xFF, o), cudaSuccess);
    free(v);
}

/* The relative L2 error of the logits of positions 0 .. n - 1; says where a NaN is. */
static double distance(const rose_model *m, const fx_seq *want, const fx_seq *got, uint32_t n)
{
    const uint32_t vocab = m->arch.vocab_size;
    double diff = 0, size = 0;
    for (size_t i = 0; i < (size_t)n * vocab; i++) {
        const double e = (double)got->logits[i] - (double)want->logits[i];
        if (!(fabs(e) < 1e30)) {
            print_message("position %zu, logit %zu: %g, not %g\n", i / vocab, i % vocab,
                          (double)got->logits[i], (double)want->logits[i]);
            return INFINITY;
        }
        diff += e * e;
        size += (double)want->logits[i] * (double)want->logits[i];
    }
    return sqrt(diff / size);
}

static double most(rose_compute type)
{
    return type == ROSE_COMPUTE_F16 ? 5e-3 : 4e-2; /* as either is from fp32: test_cuda_model.c */
}

/* Positions whose error is largest, for whoever reads the log. */
static void check(const rose_model *m, const fx_seq *want, const fx_seq *got, uint32_t n,
                  rose_compute type, const char *what)
{
    const double e = distance(m, want, got, n);
    print_message("  %s, %s: relative error %.1e\n", what, rose_compute_name(type), e);
    if (e < most(type)) return;
    for (uint32_t p = 0; p < n; p++) {
        const uint32_t vocab = m->arch.vocab_size;
        double diff = 0, size = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            const double a = (double)want->logits[(size_t)p * vocab + i];
            const double b = (double)got->logits[(size_t)p * vocab + i];
            diff += (b - a) * (b - a);
            size += a * a;
        }
        if (!(sqrt(diff / size) < most(type)))
            print_message("    position %u: %.1e\n", p, sqrt(diff / size));
    }
    fail_msg("%s: relative error %g, more than %g", what, e, most(type));
}

/* Whole and in chunks beside flash and naive; flash and naive beside each other, for the scale. */
static void test_alone(void **state)
{
    static const uint32_t chunks[] = {N_PROMPT, 100, 50, 17, 2};
    (void)state;
    for (int i = 0; i < N_SHAPES; i++)
        for (rose_compute t = ROSE_COMPUTE_BF16; t <= ROSE_COMPUTE_F16; t++) {
            if (i > 0 && (t == ROSE_COMPUTE_F16) == (i % 2 == 0)) continue; /* plans take long */
            rose_model *m = fx_model(&g_shapes[i], fx_seed() + (uint64_t)i);
            fx_backend f = open_with(m, t);
            print_message("%s\n", g_shapes[i].name);
            attend_by(&f, FLASH);
            fx_seq flash = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT);
            attend_by(&f, NAIVE);
            fx_seq naive = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT);
            check(m, &flash, &naive, N_TOKENS, t, "naive beside flash");
            attend_by(&f, CUDNN);
            for (size_t j = 0; j < sizeof chunks / sizeof *chunks; j++) {
                char what[80];
                snprintf(what, sizeof what, "cudnn beside flash, chunks of %u", chunks[j]);
                poison(&f);
                fx_seq got = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, chunks[j]);
                check(m, &flash, &got, N_TOKENS, t, what);
                if (j == 0) check(m, &naive, &got, N_TOKENS, t, "cudnn beside naive");
                fx_seq_free(&got);
            }
            fx_seq_free(&flash);
            fx_seq_free(&naive);
            close_with(&f);
            fx_model_free(m);
        }
}

/* n sequences of several lengths and chunks in a step, with single rows among them; the logits of
 * the first rows of each go to its fx_seq. */
static fx_seq *run_crowd(const rose_model *m, fx_backend *f, uint32_t n, uint32_t longest,
                         uint32_t chunk)
{
    fx_random r = {.seed = fx_seed() + n};
    fx_seq *all = calloc(n, sizeof *all);
    static fx_part parts[FX_MAX_SEQS];
    bool left = true;

    assert_non_null(all);
    for (uint32_t i = 0; i < n; i++)
        all[i] = fx_seq_make(m, fx_seed() + 7 * i, 1 + fx_below(&r, longest));
    while (left) {
        uint32_t n_parts = 0, rows = 0;
        left = false;
        for (uint32_t i = 0; i < n; i++) {
            fx_seq *s = &all[i];
            uint32_t most_now = s->n_tokens - s->done;
            if (most_now > chunk) most_now = chunk;
            if (i % 5 == 4 && most_now > 1) most_now = 1; /* as if it decoded */
            if (most_now == 0 || rows + most_now > FX_MAX_ROWS) continue;
            rows += most_now;
            parts[n_parts++] = (fx_part){s, most_now, FX_LAST};
            left = left || s->done + most_now < s->n_tokens;
        }
        if (n_parts == 0) break;
        fx_step(f, parts, n_parts);
        for (uint32_t i = 0; i < n; i++)
            left = left || all[i].done < all[i].n_tokens;
    }
    for (uint32_t i = 0; i < n; i++)
        fx_seq_drop(f, &all[i]);
    return all;
}

static void free_crowd(fx_seq *all, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        fx_seq_free(&all[i]);
    free(all);
}

/* All logits that were asked for; the others are zeros on both sides. */
static void check_crowd(const rose_model *m, fx_backend *f, uint32_t n, uint32_t longest,
                        uint32_t chunk, rose_compute t)
{
    char what[80];
    attend_by(f, FLASH);
    fx_seq *want = run_crowd(m, f, n, longest, chunk);
    attend_by(f, CUDNN);
    poison(f);
    fx_seq *got = run_crowd(m, f, n, longest, chunk);
    double worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double e = distance(m, &want[i], &got[i], want[i].n_tokens);
        if (!(e <= worst)) worst = e;
        if (!(e < most(t)))
            print_message("    sequence %u of %u tokens: %.1e\n", i, want[i].n_tokens, e);
    }
    snprintf(what, sizeof what, "%u sequences of up to %u, chunks of %u", n, longest, chunk);
    print_message("  %s, %s: worst relative error %.1e\n", what, rose_compute_name(t), worst);
    if (!(worst < most(t))) fail_msg("%s: %g", what, worst);
    free_crowd(want, n);
    free_crowd(got, n);
}

/* Groups of one plan and of several, cut by number and by what the buffers hold: 80 contexts of up
 * to 250 are some 10,000 tokens, and these 1,712. */
static void test_crowds(void **state)
{
    (void)state;
    const rose_compute t = ROSE_COMPUTE_F16;
    rose_model *m = fx_model(&g_shapes[1], fx_seed());
    fx_backend f = open_with(m, t);
    check_crowd(m, &f, 2, 200, 200, t);
    check_crowd(m, &f, 7, 150, 150, t);
    check_crowd(m, &f, 40, 28, 28, t);
    check_crowd(m, &f, 80, 250, 14, t);
    close_with(&f);
    fx_model_free(m);
}

/* One long prompt, in whole as far as a step takes it, and in chunks that are no multiple of
 * anything; and beside it short ones. */
static void test_long(void **state)
{
    (void)state;
    for (rose_compute t = ROSE_COMPUTE_BF16; t <= ROSE_COMPUTE_F16; t++) {
        rose_model *m = fx_model(&g_long, fx_seed());
        fx_backend f = open_with(m, t);
        static const uint32_t chunks[] = {1200, 501, 257};
        fx_seq all[4];
        for (int i = 0; i < 4; i++) { /* FLASH first */
            char what[80];
            attend_by(&f, i == 0 ? FLASH : CUDNN);
            poison(&f);
            all[i] = fx_seq_make(m, fx_seed() + 5, 1500);
            while (all[i].done < 1500) {
                const uint32_t chunk = chunks[i == 0 ? 0 : i - 1], left = 1500 - all[i].done;
                /* whose last rows only, for FX_MAX_SEQS outputs */
                const uint32_t n = left < chunk ? left : chunk, end = all[i].done + n;
                fx_part p[2] = {{&all[i], n > 60 ? n - 60 : n, FX_LAST}, {0}};
                fx_step(&f, p, 1);
                if (all[i].done < end) fx_step(&f, &(fx_part){&all[i], 60, FX_ALL}, 1);
            }
            fx_seq_drop(&f, &all[i]);
            if (i == 0) continue;
            snprintf(what, sizeof what, "chunks of %u", chunks[i - 1]);
            /* of the last 60 rows, which all ways asked for */
            const size_t at = (size_t)1440 * m->arch.vocab_size;
            fx_seq want = all[0], got = all[i];
            want.logits += at;
            got.logits += at;
            check(m, &want, &got, 60, t, what);
        }
        for (int i = 0; i < 4; i++)
            fx_seq_free(&all[i]);
        check_crowd(m, &f, 12, 700, 400, t);
        close_with(&f);
        fx_model_free(m);
    }
}

/* The same way twice gives the same bits: nothing depends on what the buffers held. */
static void test_repeats(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shapes[0], fx_seed());
    fx_backend f = open_with(m, ROSE_COMPUTE_F16);
    fx_seq want = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 50);
    for (int i = 0; i < 10; i++) {
        poison(&f);
        fx_seq got = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 50);
        fx_same(m, &want, &got, "repeats");
        fx_seq_free(&got);
    }
    fx_seq_free(&want);
    close_with(&f);
    fx_model_free(m);
}

/* What all the others have opened. */
static void test_memory(void **state)
{
    (void)state;
    assert_int_equal(g_over, 0);
}

/* ---- a GPU that is not here ---- */

static const char g_h100[] =
    "{\"cudaDeviceId\":0,\"deviceVer\":900,\"driverVer\":13000,\"totalGlobalMem\":85000000000,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"smCountOrigin\":0,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"oversizedSharedMemoryPerBlock\":0,\"reservedSharedMemoryPerBlock\":1024,"
    "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"
    "\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
    "\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,"
    "\"deviceName\":\"NVIDIA H100 80GB HBM3\"}";

static void test_elsewhere(void **state)
{
    static const uint32_t dims[] = {8, 16, 24, 64, 80, 96, 128}, seqs[] = {1, 8, 32};
    rose_cudnn *c;
    rose_err err = {""};
    (void)state;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        print_message("NOT RUN: %s\n", dlerror());
        skip();
    }
    if (rose_cudnn_open(&c, fx_cudnn, g_h100, &err) != ROSE_OK) fail_msg("%s", err.msg);
    for (rose_cuda_type t = ROSE_CUDA_F16; t <= ROSE_CUDA_BF16; t++)
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
            for (size_t j = 0; j < sizeof seqs / sizeof *seqs; j++) {
                const rose_cudnn_problem p = {.type = t,
                                              .n_heads = 12,
                                              .head_dim = dims[i],
                                              .n_seqs = seqs[j],
                                              .q_rows = 1024,
                                              .kv_rows = 8192};
                if (rose_cudnn_supports(c, &p, &err) != ROSE_OK) fail_msg("%s", err.msg);
            }
    rose_cudnn_close(c);
    dlclose(driver);
}

/* 0, or what main returns: the library is looked for before anything is asked of it. */
static int find_library(void)
{
    rose_cudnn *c;
    rose_err err = {""};
    const rose_status st = rose_cudnn_open(&c, fx_cudnn, g_h100, &err);
    if (st != ROSE_OK) printf("%s (ROSE_CUDNN_LIBRARY: its path)\n", err.msg);
    if (st == ROSE_OK) print_message("cuDNN %zu\n", rose_cudnn_version(c));
    if (st == ROSE_OK) rose_cudnn_close(c);
    return st == ROSE_OK ? 0 : st == ROSE_E_UNSUPPORTED ? 77 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct),  cmocka_unit_test(test_alone),
        cmocka_unit_test(test_crowds),  cmocka_unit_test(test_long),
        cmocka_unit_test(test_repeats), cmocka_unit_test(test_memory)};
    const struct CMUnitTest anywhere[] = {cmocka_unit_test(test_elsewhere)};
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    fx_cudnn = getenv("ROSE_CUDNN_LIBRARY");
    const int found = find_library();
    if (found != 0) return found;
    const int failed = cmocka_run_group_tests(anywhere, NULL, NULL);
    if (failed != 0 || !fx_use_gpu()) return failed != 0 ? failed : 77;
    rose_log_set_level(ROSE_LOG_DEBUG);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
