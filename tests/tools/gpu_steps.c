/* tests/tools/gpu_steps.c - times single steps of a backend on a model: decode steps of several
 * batch sizes at one context length, steps with rules, prefill of many prompts, and steps of one
 * prompt, back to back and after a pause. For `make bench-gpu`.
 *
 *     gpu_steps MODEL DEVICE DTYPE CONTEXT[:PART] [WAY ...]
 *
 * ROSE_LOAD_FORMAT=dummy opens a folder that has only config.json, with random weights.
 * ROSE_TUNE_DIR=DIR reads the choices of kernels that `roseinfer tune --tune-dir DIR` has written.
 * PART: decode, prefill or prompt alone. -> one JSON object on stdout, a table on stderr. Each WAY
 * is a value of --cuda-without ("" = all is used, also without a WAY), or no-cuda-graph, no-pdl,
 * no-megakernel, or naive (--prefill-backend); all are open at once and take every measurement in
 * turn, round by round, so that their ratios of one round can be compared. Times are host times
 * from step() to the end of collect(), of a step alone; of decode steps also, "in_flight" 2, as an
 * engine runs them, each enqueued before the one in front is collected: the mean of a round. Steps
 * repeat at the same positions (the KV they write is the same), so the context stays as stated. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/philox.h"

enum { MAX_SEQS = 256, STRIDE = 64, PAGE = ROSE_KV_PAGE_TOKENS, PREFILL_SEQS = 128, PREFILL = 256 };
enum { STEP_TOKENS = 32768, MAX_WAYS = 20, ROUNDS = 7, REPEATS = 30, WARM = 6, PAUSED = 10 };

typedef struct bench {
    const rose_backend_ops *ops;
    const char *way[MAX_WAYS];
    void *ctx[MAX_WAYS];
    int n_ways;
    uint32_t vocab, stride;
    uint32_t *tokens, *pages;
    rose_batch_seq seqs[MAX_SEQS];
    rose_batch_out outs[MAX_SEQS]; /* make_batch keeps their params and rules */
    const char *comma;             /* before the next row of JSON */
} bench;

/* What one way took: all times of a round sorted, us; then of every round. */
typedef struct times {
    double us[MAX_WAYS][ROUNDS][REPEATS];
    double middle[MAX_WAYS][ROUNDS];
} times;

static void die(const char *what, const rose_err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(1);
}

static uint64_t enqueue(bench *b, int way, const rose_batch *batch)
{
    rose_err err = {""};
    uint64_t ticket;
    if (b->ops->step(b->ctx[way], batch, &ticket, &err) != ROSE_OK) die("step", &err);
    return ticket;
}

static void collect(bench *b, int way, uint64_t ticket)
{
    rose_err err = {""};
    rose_step_result r;
    if (b->ops->collect(b->ctx[way], ticket, &r, &err) != ROSE_OK) die("collect", &err);
}

static double run_step(bench *b, int way, const rose_batch *batch)
{
    const uint64_t start = rose_now_ns();
    collect(b, way, enqueue(b, way, batch));
    return (double)(rose_now_ns() - start) * 1e-3;
}

/* Sequences seq .. seq + n - 1 of n_rows rows each from position pos, one output each. */
static rose_batch make_batch(bench *b, uint32_t seq, uint32_t n, uint32_t pos, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n; i++) {
        b->seqs[i] = (rose_batch_seq){.first = i * n_rows, .n = n_rows, .pos = pos};
        for (uint32_t k = 0; k < ROSE_MAX_POOLS; k++)
            b->seqs[i].table[k] = b->pages + (size_t)(seq + i) * b->stride;
        b->outs[i].row = (i + 1) * n_rows - 1;
        b->outs[i].pos = pos + n_rows;
    }
    return (rose_batch){.n_seqs = n,
                        .n_tokens = n * n_rows,
                        .tokens = b->tokens,
                        .n_outputs = n,
                        .seqs = b->seqs,
                        .outs = b->outs};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(times *t, int n_ways, int repeats)
{
    for (int k = 0; k < n_ways; k++)
        for (int r = 0; r < ROUNDS; r++) {
            qsort(t->us[k][r], (size_t)repeats, sizeof(double), compare);
            t->middle[k][r] = t->us[k][r][repeats / 2];
        }
}

/* `what`: JSON fields that tell the measurement; unit: us or ms. */
static void print_rows(bench *b, const times *t, const char *what, const char *unit, double scale)
{
    for (int k = 0; k < b->n_ways; k++) {
        double sorted[ROUNDS];
        memcpy(sorted, t->middle[k], sizeof sorted);
        qsort(sorted, ROUNDS, sizeof *sorted, compare);
        printf("%s    {%s, \"way\": \"%s\", \"%s_median\": %.3f, \"%s_min\": %.3f, "
               "\"%s_rounds\": [",
               b->comma, what, b->way[k], unit, sorted[ROUNDS / 2] * scale, unit, sorted[0] * scale,
               unit);
        for (int r = 0; r < ROUNDS; r++)
            printf("%s%.3f", r > 0 ? ", " : "", t->middle[k][r] * scale);
        printf("]}");
        b->comma = ",\n";
        fprintf(stderr, "%s, \"%s\": median %.2f %s, least of %d rounds %.2f\n", what, b->way[k],
                sorted[ROUNDS / 2] * scale, unit, ROUNDS, sorted[0] * scale);
    }
    fflush(stdout); /* it may be ended when its time is up */
}

/* The same step in every way in turn, each after a pause. */
static void run_steps(bench *b, times *t, const rose_batch *batch, uint32_t pause_ms)
{
    const struct timespec pause = {0, (long)pause_ms * 1000000};
    const int repeats = pause_ms > 0 ? PAUSED : REPEATS, warm = pause_ms > 0 ? 1 : WARM;
    for (int r = 0; r < ROUNDS; r++)
        for (int k = 0; k < b->n_ways; k++)
            for (int i = -warm; i < repeats; i++) {
                if (pause_ms > 0) nanosleep(&pause, NULL);
                const double us = run_step(b, k, batch);
                if (i >= 0) t->us[k][r][i] = us;
            }
    summarise(t, b->n_ways, repeats);
}

/* The same step twice in flight, one after the other, in every way in turn. */
static void run_ahead(bench *b, times *t, const rose_batch *batch)
{
    for (int r = 0; r < ROUNDS; r++)
        for (int k = 0; k < b->n_ways; k++) {
            uint64_t start = 0, last = enqueue(b, k, batch);
            for (int i = -WARM; i < REPEATS; i++) {
                if (i == 0) start = rose_now_ns();
                const uint64_t next = enqueue(b, k, batch);
                collect(b, k, last);
                last = next;
            }
            t->us[k][r][0] = (double)(rose_now_ns() - start) * 1e-3 / REPEATS;
            collect(b, k, last);
        }
    summarise(t, b->n_ways, 1);
}

static void decode(bench *b, times *t, uint32_t n, uint32_t context, bool sampled)
{
    char what[80];
    for (uint32_t i = 0; i < MAX_SEQS; i++)
        b->outs[i].params =
            sampled ? (rose_sampling){.temperature = 0.7f, .top_p = 0.9f, .top_k = 50, .seed = i}
                    : (rose_sampling){.top_p = 1};
    const rose_batch batch = make_batch(b, 0, n, context - 1, 1);
    for (int in_flight = 1; in_flight <= 2; in_flight++) {
        if (in_flight == 1)
            run_steps(b, t, &batch, 0);
        else
            run_ahead(b, t, &batch);
        snprintf(what, sizeof what, "\"sequences\": %u, \"sampled\": %s, \"in_flight\": %d", n,
                 sampled ? "true" : "false", in_flight);
        print_rows(b, t, what, "us", 1);
    }
}

/* Decode steps of 64 sequences, of which n_wishes want 5 log-probabilities and penalties. */
static void decode_with_rules(bench *b, times *t, uint32_t n_wishes, uint32_t context)
{
    enum { N = 64, N_TOP = 5 };
    static uint32_t seen[STRIDE * PAGE], counts[STRIDE * PAGE];
    static rose_logprob reports[N][1 + N_TOP];
    rose_output_rules rules[N];
    char what[80];
    for (uint32_t i = 0; i < context; i++) {
        seen[i] = i * 7 % b->vocab;
        counts[i] = 1;
    }
    for (uint32_t i = 0; i < N; i++) {
        b->outs[i].params = (rose_sampling){.top_p = 1};
        rules[i] = (rose_output_rules){.score_id = ROSE_TOKEN_NONE,
                                       .report = reports[i],
                                       .n_top = N_TOP,
                                       .seen_ids = seen,
                                       .seen_counts = counts,
                                       .n_seen = context,
                                       .repetition = 1.1f,
                                       .frequency = 0.1f};
        b->outs[i].rules = i < n_wishes ? &rules[i] : NULL;
    }
    rose_batch batch = make_batch(b, 0, N, context - 1, 1);
    run_steps(b, t, &batch, 0);
    for (uint32_t i = 0; i < N; i++)
        b->outs[i].rules = NULL;
    snprintf(what, sizeof what, "\"sequences\": %d, \"with_rules\": %u", N, n_wishes);
    print_rows(b, t, what, "us", 1);
}

/* All prompts in steps of step_tokens; a pass to warm up, and one that counts, each round. */
static void prefill(bench *b, times *t, uint32_t step_tokens)
{
    const uint32_t most = step_tokens / PREFILL;
    const uint32_t n = most < PREFILL_SEQS ? most : PREFILL_SEQS;
    char what[120];
    for (int r = 0; r < ROUNDS; r++)
        for (int k = 0; k < b->n_ways; k++)
            for (int i = 0; i < 2; i++) {
                double us = 0;
                for (uint32_t seq = 0; seq < PREFILL_SEQS; seq += n) {
                    const uint32_t left = PREFILL_SEQS - seq < n ? PREFILL_SEQS - seq : n;
                    const rose_batch batch = make_batch(b, seq, left, 0, PREFILL);
                    us += run_step(b, k, &batch);
                }
                t->us[k][r][0] = us;
            }
    summarise(t, b->n_ways, 1);
    snprintf(what, sizeof what, "\"prompts\": %d, \"tokens\": %d, \"max_step_tokens\": %u",
             PREFILL_SEQS, PREFILL, step_tokens);
    print_rows(b, t, what, "ms", 1e-3);
}

/* Steps of one prompt, of which one output is wanted. */
static void one_prompt(bench *b, times *t, uint32_t n_rows, uint32_t pause_ms)
{
    char what[120];
    b->outs[0].params = (rose_sampling){.top_p = 1};
    const rose_batch batch = make_batch(b, 0, 1, 0, n_rows);
    run_steps(b, t, &batch, pause_ms);
    snprintf(what, sizeof what, "\"prompts\": 1, \"tokens\": %u, \"pause_ms\": %u", n_rows,
             pause_ms);
    print_rows(b, t, what, "us", 1);
}

static void choose_way(rose_backend_opts *o, const char *way)
{
    if (strcmp(way, "no-cuda-graph") == 0)
        o->cuda.graph = false;
    else if (strcmp(way, "no-pdl") == 0)
        o->cuda.pdl = false;
    else if (strcmp(way, "no-megakernel") == 0)
        o->cuda.megakernel = false;
    else if (strcmp(way, "naive") == 0)
        o->cuda.prefill = ROSE_PREFILL_NAIVE;
    else
        o->cuda.without = way;
}

static void open_backend(bench *b, int way, const char *dir, const char *dtype)
{
    rose_err err = {""};
    rose_model *m = NULL;
    rose_memory_plan plan;
    rose_backend_opts o;
    rose_backend_opts_default(&o);
    o.dtype = strcmp(dtype, "float32") == 0    ? ROSE_COMPUTE_F32
              : strcmp(dtype, "bfloat16") == 0 ? ROSE_COMPUTE_BF16
              : strcmp(dtype, "float16") == 0  ? ROSE_COMPUTE_F16
                                               : ROSE_COMPUTE_AUTO;
    choose_way(&o, b->way[way]);
    o.cuda.tune_dir = getenv("ROSE_TUNE_DIR");
    o.max_seqs = MAX_SEQS;
    o.max_step_tokens = STEP_TOKENS;
    o.kv_pages = MAX_SEQS * b->stride;
    uint64_t start = rose_now_ns();
    if (rose_model_open_as(&m, dir, getenv("ROSE_LOAD_FORMAT"), &err) != ROSE_OK)
        die("model", &err);
    if (m->arch.max_positions > STEP_TOKENS) o.max_model_len = STEP_TOKENS;
    if (b->ops->plan(m, &o, &plan, &err) != ROSE_OK) die("plan", &err);
    /* whole contexts in every pool, as all have the same tables */
    const uint64_t first = o.kv_pages;
    for (uint32_t k = 1; k < plan.n_pools; k++)
        while (plan.pools[k].n_blocks < first) {
            o.kv_pages += (uint32_t)first;
            if (b->ops->plan(m, &o, &plan, &err) != ROSE_OK) die("plan", &err);
        }
    uint64_t planned = rose_now_ns();
    if (b->ops->open(&b->ctx[way], m, &o, &plan, &err) != ROSE_OK) die("open", &err);
    fprintf(stderr, "model and plan %.0f ms, open %.0f ms (weights, KV, graphs), %.0f MiB\n",
            (double)(planned - start) * 1e-6, (double)(rose_now_ns() - planned) * 1e-6,
            (double)plan.total / 1048576);
    b->vocab = m->arch.vocab_size;
    rose_model_close(m);
}

/* Shuffled pages with real K and V in each. */
static void fill_pages(bench *b, uint32_t context)
{
    const uint32_t n = MAX_SEQS * b->stride;
    for (uint32_t i = 0; i < n; i++) /* an odd step through the pool */
        b->pages[i] = i * 1237 % n;
    for (uint32_t i = 0; i < STEP_TOKENS; i++)
        b->tokens[i] = (uint32_t)(rose_philox_uniform(5, i, 0) * (float)b->vocab) % b->vocab;
    for (uint32_t seq = 0; seq < MAX_SEQS; seq += 4)
        for (int k = 0; k < b->n_ways; k++) {
            const rose_batch batch = make_batch(b, seq, 4, 0, context);
            run_step(b, k, &batch);
        }
}

static void part(bench *b, const char *name)
{
    printf("  \"%s\": [\n", name);
    b->comma = "";
}

int main(int argc, char **argv)
{
    static bench b;
    static times t;
    static const uint32_t sizes[] = {1, 2, 4, 8, 16, 32, 64, 128, 256},
                          steps[] = {2048, 8192, 32768};
    rose_err err = {""};
    if (argc < 5 || argc > 5 + MAX_WAYS) {
        fprintf(stderr, "usage: gpu_steps MODEL DEVICE DTYPE CONTEXT[:PART] [WAY ...]\n");
        return 2;
    }
    char *only;
    const uint32_t context = (uint32_t)strtoul(argv[4], &only, 10);
    const uint32_t longest = context > PREFILL ? context : PREFILL;
    const uint32_t one =
        strchr(only, '=') != NULL ? (uint32_t)strtoul(strchr(only, '=') + 1, NULL, 10) : 0;
    if (one > 0) *strchr(only, '=') = 0;
    const bool decodes = *only == 0 || strcmp(only, ":decode") == 0,
               prefills = *only == 0 || strcmp(only, ":prefill") == 0,
               prompts = *only == 0 || strcmp(only, ":prompt") == 0;
    if (context < 1 || context > STRIDE * PAGE || (!decodes && !prefills && !prompts)) return 2;
    b.stride = (longest + PAGE - 1) / PAGE;
    b.n_ways = argc > 5 ? argc - 5 : 1;
    for (int k = 0; k < b.n_ways; k++)
        b.way[k] = argc > 5 ? argv[5 + k] : "";
    if (rose_backend_pick(&b.ops, argv[2], &err) != ROSE_OK) die("device", &err);
    b.tokens = calloc(STEP_TOKENS, sizeof *b.tokens);
    b.pages = calloc((size_t)MAX_SEQS * STRIDE, sizeof *b.pages);
    if (b.tokens == NULL || b.pages == NULL) return 1;
    for (int k = 0; k < b.n_ways; k++)
        open_backend(&b, k, argv[1], argv[3]);
    if (one == 0 || decodes) fill_pages(&b, context);
    printf("{\n  \"device\": \"%s\", \"dtype\": \"%s\", \"context\": %u,\n", b.ops->name, argv[3],
           context);
    part(&b, "decode");
    if (decodes && one > 0 && one <= MAX_SEQS) decode(&b, &t, one, context, false);
    for (size_t i = 0; decodes && one == 0 && i < sizeof sizes / sizeof *sizes; i++) {
        decode(&b, &t, sizes[i], context, false);
        decode(&b, &t, sizes[i], context, true);
    }
    printf("\n  ],\n");
    part(&b, "rules");
    static const uint32_t wishes[] = {0, 1, 64};
    for (size_t i = 0; decodes && one == 0 && i < 3; i++)
        decode_with_rules(&b, &t, wishes[i], context);
    printf("\n  ],\n");
    part(&b, "prefill");
    for (size_t i = 0; prefills && i < 3; i++)
        if (one == 0 || steps[i] == one) prefill(&b, &t, steps[i]);
    printf("\n  ],\n");
    part(&b, "prompt");
    static const uint32_t lengths[] = {16, 64, 200, 256, 512};
    for (size_t i = 0; prompts && i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i] > longest || (one > 0 && lengths[i] != one)) continue;
        one_prompt(&b, &t, lengths[i], 0);
        one_prompt(&b, &t, lengths[i], 25);
    }
    printf("\n  ]\n}\n");
    for (int k = 0; k < b.n_ways; k++)
        b.ops->close(b.ctx[k]);
    return 0;
}
