/* tests/tools/gpu_overlap.c - what the overlap schedule or speculation is worth: two engines on one
 * device in one process, with and without it, take the same requests in turn (off, on, off, on,
 * ...), and must give the same ids. Prints a table to stderr and JSON to stdout; exit code 1 where
 * ids differ. With weights of --load-format dummy the time is that of real ones.
 *
 *     gpu_overlap MODEL DEVICE [dummy]               the overlap schedule
 *     gpu_overlap MODEL DEVICE [dummy] TOKENS CHANCE speculation: guesses of TOKENS ids, each of
 * them right with this chance, whatever the others are */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/philox.h"
#include "engine/engine.h"

enum { ROUNDS = 9, MAX_REQS = 256, PROMPT = 256, MAX_OUT = 128 };

typedef struct side {
    rose_engine *e;
    rose_wakeq *sink;
    double ns[ROUNDS], tpot[ROUNDS], ttft[ROUNDS];
    uint64_t hash;
} side;

typedef struct load {
    uint32_t n, n_out;
    bool sampled;
    uint32_t kv_pages; /* 0 = enough for all */
} load;

/* What is compared: overlap, or speculation with guesses of n_tokens ids (0: overlap). */
static uint32_t n_tokens, vocab;
static double chance;
static uint32_t outputs[MAX_REQS][MAX_OUT]; /* of the side without speculation */

static void die(const char *what, const rose_err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(1);
}

static void make_prompt(uint32_t i, uint32_t *prompt)
{
    for (uint32_t k = 0; k < PROMPT; k++)
        prompt[k] = (uint32_t)(rose_philox_uniform(11, i * PROMPT + k, 0) * (float)vocab) % vocab;
}

/* A source of guesses (spec/spec.h), which has seen the outputs. */
static uint32_t seen_before(void *user, const uint32_t *text, uint32_t n, uint32_t n_prompt,
                            uint32_t cap, uint32_t *ids)
{
    static uint32_t first[MAX_REQS][2], n_calls;
    const uint32_t at = n - n_prompt;
    uint32_t i = 0, prompt[PROMPT];
    (void)user;
    for (uint32_t k = 0; n_calls == 0 && k < MAX_REQS; k++) {
        make_prompt(k, prompt);
        memcpy(first[k], prompt, sizeof first[k]);
    }
    while (i < MAX_REQS && memcmp(first[i], text, sizeof first[i]) != 0)
        i++;
    for (uint32_t k = 0; k < cap && i < MAX_REQS && at + k < MAX_OUT; k++) {
        const bool right = (double)rose_philox_uniform(12, n_calls++, 0) < chance;
        ids[k] = right ? outputs[i][at + k] : (outputs[i][at + k] + 1) % vocab;
    }
    return i == MAX_REQS ? 0 : at + cap < MAX_OUT ? cap : MAX_OUT - at;
}

static void open_side(side *s, const rose_backend_ops *ops, const rose_model *m, const load *l,
                      bool on)
{
    rose_err err = {""};
    rose_engine_opts o;
    rose_engine_opts_default(&o);
    o.backend.max_step_tokens = 8192;
    o.backend.kv_pages = l->kv_pages > 0 ? l->kv_pages : MAX_REQS * (PROMPT + MAX_OUT) / 16;
    o.overlap = on || n_tokens > 0;
    o.spec.method = ROSE_SPEC_NONE;
    if (on && n_tokens > 0) {
        o.spec.n_tokens = n_tokens;
        o.spec.other = seen_before;
    }
    o.prefix_cache = l->kv_pages > 0; /* else a round would find the one before */
    if (rose_engine_open(&s->e, ops, m, &o, &err) != ROSE_OK) die("engine", &err);
    if (rose_wakeq_create(&s->sink, MAX_REQS + 1, NULL) != ROSE_OK) exit(1);
}

static void close_side(side *s)
{
    rose_engine_close(s->e);
    rose_wakeq_destroy(s->sink);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *v)
{
    double t[ROUNDS];
    memcpy(t, v, sizeof t);
    qsort(t, ROUNDS, sizeof *t, compare);
    return t[ROUNDS / 2];
}

static void submit(side *s, const load *l, uint32_t i)
{
    static uint32_t prompt[PROMPT];
    rose_err err = {""};
    rose_request *r;
    make_prompt(i, prompt);
    const rose_request_opts o = {
        .prompt = prompt,
        .n_prompt = PROMPT,
        .max_tokens = l->n_out,
        .sampling = {.temperature = l->sampled ? 0.7f : 0, .top_p = 0.9f, .top_k = 50, .seed = i},
        .ignore_eos = true,
        .sink = s->sink,
        .user = (void *)(uintptr_t)i};
    if (rose_engine_submit(s->e, &o, &r, &err) != ROSE_OK) die("submit", &err);
}

/* All requests at once; the median request's TTFT and TPOT, and the time of all. */
static void run(side *s, const load *l, bool on, int round)
{
    static uint32_t n_got[MAX_REQS];
    static double ttft[MAX_REQS], tpot[MAX_REQS];
    uint64_t hash = 0, start = rose_now_ns();
    uint32_t live = l->n, n = 0;
    memset(n_got, 0, sizeof n_got);
    for (uint32_t i = 0; i < l->n; i++)
        submit(s, l, i);
    while (live > 0) {
        void *p;
        rose_event ev;
        rose_wakeq_clear(s->sink);
        while (rose_wakeq_pop(s->sink, &p) == ROSE_OK) {
            const uint64_t i = (uintptr_t)rose_request_user(p);
            while (rose_request_poll(p, &ev) == ROSE_OK) {
                if (!on) outputs[i][n_got[i]] = ev.id;
                /* a sum: the order of arrival does not matter */
                hash += (ev.id + 1) * (i * 1000003 + ++n_got[i]) * UINT64_C(0x9E3779B97F4A7C15);
                if (ev.finish == ROSE_FINISH_NONE) continue;
                rose_request_times t = rose_request_get_times(p);
                ttft[n] = (double)(t.first_token - t.submitted);
                tpot[n++] = (double)(t.finished - t.first_token) / (l->n_out - 1);
                rose_request_release(p);
                live--;
                break;
            }
        }
        if (live > 0) rose_wakeq_wait(s->sink, 1000000000u);
    }
    s->hash = hash;
    if (round < 0) return;
    s->ns[round] = (double)(rose_now_ns() - start);
    qsort(ttft, n, sizeof *ttft, compare);
    qsort(tpot, n, sizeof *tpot, compare);
    s->ttft[round] = ttft[n / 2];
    s->tpot[round] = tpot[n / 2];
}

static double mean(const rose_hist *h, uint64_t steps)
{
    return steps > 0 ? (double)rose_count_get(&h->sum) / (double)steps * 1e-3 : 0;
}

static void report(const side *s, const load *l, bool on, bool last)
{
    const char *what = n_tokens > 0 ? "speculation" : "overlap";
    const rose_spec_stats sp = rose_engine_get_spec(s->e);
    rose_engine_stats st = rose_engine_get_stats(s->e);
    const rose_engine_hists *h = rose_engine_get_hists(s->e);
    double rate = (double)l->n * l->n_out / median(s->ns) * 1e9;
    double host = mean(&h->host_ns, st.steps), compute = mean(&h->compute_ns, st.steps);
    double exposed = mean(&h->exposed_ns, st.steps);
    printf("  {\"requests\": %u, \"output\": %u, \"sampled\": %s, \"kv_pages\": %u, \"%s\": %s, "
           "\"tok_per_s\": %.1f, \"tpot_us\": %.2f, \"ttft_us\": %.1f, \"host_us\": %.2f, "
           "\"compute_us\": %.2f, \"exposed_us\": %.2f, \"steps\": %llu, \"preemptions\": %llu, "
           "\"guessed\": %llu, \"right\": %llu}%s\n",
           l->n, l->n_out, l->sampled ? "true" : "false", l->kv_pages, what, on ? "true" : "false",
           rate, median(s->tpot) * 1e-3, median(s->ttft) * 1e-3, host, compute, exposed,
           (unsigned long long)st.steps, (unsigned long long)st.preemptions,
           (unsigned long long)sp.n_tried, (unsigned long long)sp.n_right, last ? "" : ",");
    fprintf(stderr,
            "%3u x %3u %s%s %s %s: %8.0f tok/s, TPOT %7.1f us, TTFT %8.1f us; a step: host %5.1f, "
            "compute %7.1f, exposed %5.1f us; %llu of %llu guessed ids right\n",
            l->n, l->n_out, l->sampled ? "sampled" : "greedy ",
            l->kv_pages > 0 ? ", few pages" : "", what, on ? "on " : "off", rate,
            median(s->tpot) * 1e-3, median(s->ttft) * 1e-3, host, compute, exposed,
            (unsigned long long)sp.n_right, (unsigned long long)sp.n_tried);
}

static bool measure(const rose_backend_ops *ops, const rose_model *m, const load *l, bool last)
{
    side on = {0}, off = {0};
    open_side(&on, ops, m, l, true);
    open_side(&off, ops, m, l, false);
    for (int round = -2; round < ROUNDS; round++) {
        run(&off, l, false, round);
        run(&on, l, true, round);
        if (on.hash == off.hash) continue;
        fprintf(stderr, "the ids differ, with %u requests\n", l->n);
        return false;
    }
    report(&on, l, true, false);
    report(&off, l, false, last);
    close_side(&on);
    close_side(&off);
    return true;
}

int main(int argc, char **argv)
{
    static const load loads[] = {{1, 128, false, 0}, {1, 128, true, 0},    {8, 64, true, 0},
                                 {32, 64, true, 0},  {128, 64, true, 0},   {128, 64, false, 0},
                                 {256, 64, true, 0}, {128, 64, true, 1100}};
    const int n = sizeof loads / sizeof *loads;
    const rose_backend_ops *ops;
    rose_model *m = NULL;
    rose_err err = {""};
    const bool dummy = argc > 3 && strcmp(argv[3], "dummy") == 0;
    const int n_args = argc - dummy;
    if (n_args == 5) {
        n_tokens = (uint32_t)strtoul(argv[argc - 2], NULL, 10);
        chance = strtod(argv[argc - 1], NULL);
    }
    if ((n_args != 3 && n_args != 5) ||
        (n_args == 5 && (n_tokens < 1 || n_tokens > ROSE_SPEC_MAX))) {
        fprintf(stderr, "usage: gpu_overlap MODEL DEVICE [dummy] [TOKENS CHANCE]\n");
        return 2;
    }
    if (rose_backend_pick(&ops, argv[2], &err) != ROSE_OK) die("device", &err);
    if (rose_model_open_as(&m, argv[1], dummy ? "dummy" : "auto", &err) != ROSE_OK)
        die("model", &err);
    vocab = m->arch.vocab_size;
    printf("[\n");
    bool ok = true;
    for (int i = 0; i < n && ok; i++)
        ok = measure(ops, m, &loads[i], i == n - 1);
    printf("]\n");
    rose_model_close(m);
    return ok ? 0 : 1;
}
