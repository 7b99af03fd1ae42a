/* tests/tools/gpu_steps.c - times single steps of a backend on a model: decode steps of several
 * batch sizes at one context length, and prefill of many prompts. For `make bench-gpu`. gpu_steps
 * MODEL DEVICE DTYPE CONTEXT [TRIAL]   -> one JSON object on stdout, a table on stderr. TRIAL: bits
 * of --cuda-trial. Times are host times
 * from step() to the end of collect(): what an engine sees. Steps repeat at the same positions (the
 * KV they write is the same), so the context stays as stated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/philox.h"

enum { MAX_SEQS = 256, STRIDE = 64, PAGE = ROSE_KV_PAGE_TOKENS, PREFILL_SEQS = 128, PREFILL = 256 };

typedef struct bench {
    const rose_backend_ops *ops;
    void *ctx;
    rose_memory_plan plan;
    uint32_t vocab, trial;
    uint32_t *tokens, *pages;
    uint32_t first[MAX_SEQS + 1], pos[MAX_SEQS], out_row[MAX_SEQS], out_pos[MAX_SEQS];
    rose_sampling params[MAX_SEQS];
} bench;

static void die(const char *what, const rose_err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(1);
}

static double run_step(bench *b, const rose_batch *batch)
{
    rose_err err = {""};
    rose_step_result r;
    uint64_t ticket, start = rose_now_ns();
    if (b->ops->step(b->ctx, batch, &ticket, &err) != ROSE_OK ||
        b->ops->collect(b->ctx, ticket, &r, &err) != ROSE_OK)
        die("step", &err);
    return (double)(rose_now_ns() - start) * 1e-3;
}

/* Sequences seq .. seq + n - 1 of n_rows rows each from position pos, one output each. */
static rose_batch make_batch(bench *b, uint32_t seq, uint32_t n, uint32_t pos, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n; i++) {
        b->first[i] = i * n_rows;
        b->pos[i] = pos;
        b->out_row[i] = (i + 1) * n_rows - 1;
        b->out_pos[i] = pos + n_rows;
    }
    b->first[n] = n * n_rows;
    return (rose_batch){.n_seqs = n,
                        .n_tokens = n * n_rows,
                        .tokens = b->tokens,
                        .seq_first = b->first,
                        .seq_pos = b->pos,
                        .pages = b->pages + (size_t)seq * STRIDE,
                        .page_stride = STRIDE,
                        .n_outputs = n,
                        .out_row = b->out_row,
                        .out_pos = b->out_pos,
                        .out_params = b->params};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void decode(bench *b, uint32_t n, uint32_t context, bool sampled, bool last)
{
    enum { REPEATS = 200, WARM = 20 };
    double us[REPEATS];
    for (uint32_t i = 0; i < MAX_SEQS; i++)
        b->params[i] =
            sampled ? (rose_sampling){.temperature = 0.7f, .top_p = 0.9f, .top_k = 50, .seed = i}
                    : (rose_sampling){.top_p = 1};
    rose_batch batch = make_batch(b, 0, n, context - 1, 1);
    for (int i = 0; i < WARM + REPEATS; i++) {
        double t = run_step(b, &batch);
        if (i >= WARM) us[i - WARM] = t;
    }
    qsort(us, REPEATS, sizeof *us, compare);
    printf("    {\"sequences\": %u, \"sampled\": %s, \"us_median\": %.2f, \"us_min\": %.2f, "
           "\"us_p90\": %.2f}%s\n",
           n, sampled ? "true" : "false", us[REPEATS / 2], us[0], us[REPEATS * 9 / 10],
           last ? "" : ",");
    fprintf(stderr, "decode %3u sequences at %u, %s: median %.1f us, min %.1f, p90 %.1f\n", n,
            context, sampled ? "sampled" : "greedy ", us[REPEATS / 2], us[0], us[REPEATS * 9 / 10]);
}

/* Decode steps of 64 sequences, of which n_wishes want 5 log-probabilities and penalties. */
static void decode_with_rules(bench *b, uint32_t n_wishes, uint32_t context, bool last)
{
    enum { N = 64, REPEATS = 200, WARM = 20, N_TOP = 5 };
    static uint32_t seen[STRIDE * PAGE], counts[STRIDE * PAGE];
    static rose_logprob reports[N][1 + N_TOP];
    rose_output_rules rules[N];
    const rose_output_rules *each[N] = {NULL};
    double us[REPEATS];
    for (uint32_t i = 0; i < context; i++) {
        seen[i] = i * 7 % b->vocab;
        counts[i] = 1;
    }
    for (uint32_t i = 0; i < N; i++) {
        b->params[i] = (rose_sampling){.top_p = 1};
        rules[i] = (rose_output_rules){.score_id = ROSE_TOKEN_NONE,
                                       .report = reports[i],
                                       .n_top = N_TOP,
                                       .seen_ids = seen,
                                       .seen_counts = counts,
                                       .n_seen = context,
                                       .repetition = 1.1f,
                                       .frequency = 0.1f};
        if (i < n_wishes) each[i] = &rules[i];
    }
    rose_batch batch = make_batch(b, 0, N, context - 1, 1);
    if (n_wishes > 0) batch.out_rules = each;
    for (int i = 0; i < WARM + REPEATS; i++) {
        double t = run_step(b, &batch);
        if (i >= WARM) us[i - WARM] = t;
    }
    qsort(us, REPEATS, sizeof *us, compare);
    printf("    {\"sequences\": %d, \"with_rules\": %u, \"us_median\": %.2f}%s\n", N, n_wishes,
           us[REPEATS / 2], last ? "" : ",");
    fprintf(stderr,
            "decode %d sequences at %u, %u with log-probabilities and penalties: median %.1f us\n",
            N, context, n_wishes, us[REPEATS / 2]);
}

static void prefill(bench *b, bool last)
{
    enum { REPEATS = 7 };
    const uint32_t most = b->plan.max_step_tokens / PREFILL;
    const uint32_t n = most < PREFILL_SEQS ? most : PREFILL_SEQS;
    double us[REPEATS];
    for (int r = 0; r < REPEATS; r++) {
        us[r] = 0;
        for (uint32_t seq = 0; seq < PREFILL_SEQS; seq += n) {
            uint32_t left = PREFILL_SEQS - seq < n ? PREFILL_SEQS - seq : n;
            rose_batch batch = make_batch(b, seq, left, 0, PREFILL);
            us[r] += run_step(b, &batch);
        }
    }
    qsort(us, REPEATS, sizeof *us, compare);
    printf("    {\"prompts\": %d, \"tokens\": %d, \"max_step_tokens\": %u, \"ms_median\": %.3f, "
           "\"ms_min\": %.3f}%s\n",
           PREFILL_SEQS, PREFILL, b->plan.max_step_tokens, us[REPEATS / 2] * 1e-3, us[0] * 1e-3,
           last ? "" : ",");
    fprintf(stderr, "prefill %d x %d in steps of %u tokens: median %.2f ms, min %.2f\n",
            PREFILL_SEQS, PREFILL, b->plan.max_step_tokens, us[REPEATS / 2] * 1e-3, us[0] * 1e-3);
}

static void open_backend(bench *b, const char *dir, const char *dtype, uint32_t step_tokens)
{
    rose_err err = {""};
    rose_model *m = NULL;
    rose_backend_opts o;
    rose_backend_opts_default(&o);
    o.dtype = strcmp(dtype, "float32") == 0    ? ROSE_COMPUTE_F32
              : strcmp(dtype, "bfloat16") == 0 ? ROSE_COMPUTE_BF16
              : strcmp(dtype, "float16") == 0  ? ROSE_COMPUTE_F16
                                               : ROSE_COMPUTE_AUTO;
    o.cuda_trial = b->trial;
    o.max_seqs = MAX_SEQS;
    o.max_step_tokens = step_tokens;
    o.kv_pages = MAX_SEQS * STRIDE;
    uint64_t start = rose_now_ns();
    if (rose_model_open(&m, dir, &err) != ROSE_OK) die("model", &err);
    if (b->ops->plan(m, &o, &b->plan, &err) != ROSE_OK) die("plan", &err);
    uint64_t planned = rose_now_ns();
    if (b->ops->open(&b->ctx, m, &o, &b->plan, &err) != ROSE_OK) die("open", &err);
    fprintf(stderr, "model and plan %.0f ms, open %.0f ms (weights, KV, graphs)\n",
            (double)(planned - start) * 1e-6, (double)(rose_now_ns() - planned) * 1e-6);
    b->vocab = m->arch.vocab_size;
    rose_model_close(m);
}

int main(int argc, char **argv)
{
    static bench b;
    static const uint32_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256},
                          steps[] = {2048, 8192, 32768};
    rose_err err = {""};
    if (argc != 5 && argc != 6) {
        fprintf(stderr, "usage: gpu_steps MODEL DEVICE DTYPE CONTEXT [TRIAL]\n");
        return 2;
    }
    b.trial = argc == 6 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0;
    const uint32_t context = (uint32_t)strtoul(argv[4], NULL, 10);
    if (context < 1 || context > STRIDE * PAGE) return 2;
    if (rose_backend_pick(&b.ops, argv[2], &err) != ROSE_OK) die("device", &err);
    b.tokens = calloc(32768, sizeof *b.tokens);
    b.pages = calloc((size_t)MAX_SEQS * STRIDE, sizeof *b.pages);
    if (b.tokens == NULL || b.pages == NULL) return 1;
    for (uint32_t i = 0; i < MAX_SEQS * STRIDE; i++) /* shuffled: an odd step through the pool */
        b.pages[i] = i * 1237 % (MAX_SEQS * STRIDE);
    printf("{\n  \"device\": \"%s\", \"dtype\": \"%s\", \"context\": %u, \"trial\": %u,\n  "
           "\"decode\": [\n",
           b.ops->name, argv[3], context, b.trial);
    open_backend(&b, argv[1], argv[3], 2048);
    for (uint32_t i = 0; i < 32768; i++)
        b.tokens[i] = (uint32_t)(rose_philox_uniform(5, i, 0) * (float)b.vocab) % b.vocab;
    for (uint32_t seq = 0; seq < MAX_SEQS; seq += 4) { /* real K and V in every page */
        rose_batch batch = make_batch(&b, seq, 4, 0, context);
        run_step(&b, &batch);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        decode(&b, sizes[i], context, false, false);
        decode(&b, sizes[i], context, true, i + 1 == sizeof sizes / sizeof *sizes);
    }
    printf("  ],\n  \"rules\": [\n");
    decode_with_rules(&b, 0, context, false);
    decode_with_rules(&b, 1, context, false);
    decode_with_rules(&b, 64, context, true);
    printf("  ],\n  \"prefill\": [\n");
    for (size_t i = 0; i < 3; i++) {
        b.ops->close(b.ctx);
        open_backend(&b, argv[1], argv[3], steps[i]);
        prefill(&b, i == 2);
    }
    printf("  ]\n}\n");
    b.ops->close(b.ctx);
    return 0;
}
