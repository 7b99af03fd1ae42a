/* tests/tools/gpu_overlap.c - what the overlap schedule is worth: two engines on one device in one
 * process, with and without it, take the same requests in turn (on, off, on, off, ...), and must
 * give the same ids. Prints a table to stderr and JSON to stdout; exit code 1 where ids differ.
 *
 *     gpu_overlap MODEL DEVICE */
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

static void die(const char *what, const rose_err *err)
{
    fprintf(stderr, "%s: %s\n", what, err->msg);
    exit(1);
}

static void open_side(side *s, const rose_backend_ops *ops, const rose_model *m, const load *l,
                      bool overlap)
{
    rose_err err = {""};
    rose_engine_opts o;
    rose_engine_opts_default(&o);
    o.backend.max_step_tokens = 8192;
    o.backend.kv_pages = l->kv_pages > 0 ? l->kv_pages : MAX_REQS * (PROMPT + MAX_OUT) / 16;
    o.overlap = overlap;
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

static void submit(side *s, const load *l, uint32_t i, uint32_t vocab)
{
    static uint32_t prompt[PROMPT];
    rose_err err = {""};
    rose_request *r;
    for (uint32_t k = 0; k < PROMPT; k++)
        prompt[k] = (uint32_t)(rose_philox_uniform(11, i * PROMPT + k, 0) * (float)vocab) % vocab;
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
static void run(side *s, const load *l, uint32_t vocab, int round)
{
    static double ttft[MAX_REQS], tpot[MAX_REQS];
    uint64_t hash = 0, start = rose_now_ns();
    uint32_t live = l->n, n = 0;
    for (uint32_t i = 0; i < l->n; i++)
        submit(s, l, i, vocab);
    while (live > 0) {
        void *p;
        rose_event ev;
        rose_wakeq_clear(s->sink);
        while (rose_wakeq_pop(s->sink, &p) == ROSE_OK) {
            uint64_t i = (uintptr_t)rose_request_user(p), at = 0;
            while (rose_request_poll(p, &ev) == ROSE_OK) {
                /* a sum: the order of arrival does not matter */
                at++;
                hash += (ev.id + 1) * (i * 1000003 + 1) * UINT64_C(0x9E3779B97F4A7C15);
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

static void report(const side *s, const load *l, bool overlap, bool last)
{
    rose_engine_stats st = rose_engine_get_stats(s->e);
    const rose_engine_hists *h = rose_engine_get_hists(s->e);
    double rate = (double)l->n * l->n_out / median(s->ns) * 1e9;
    double host = mean(&h->host_ns, st.steps), compute = mean(&h->compute_ns, st.steps);
    double exposed = mean(&h->exposed_ns, st.steps);
    printf(
        "  {\"requests\": %u, \"output\": %u, \"sampled\": %s, \"kv_pages\": %u, \"overlap\": %s, "
        "\"tok_per_s\": %.1f, \"tpot_us\": %.2f, \"ttft_us\": %.1f, \"host_us\": %.2f, "
        "\"compute_us\": %.2f, \"exposed_us\": %.2f, \"steps\": %llu, \"preemptions\": %llu}%s\n",
        l->n, l->n_out, l->sampled ? "true" : "false", l->kv_pages, overlap ? "true" : "false",
        rate, median(s->tpot) * 1e-3, median(s->ttft) * 1e-3, host, compute, exposed,
        (unsigned long long)st.steps, (unsigned long long)st.preemptions, last ? "" : ",");
    fprintf(stderr,
            "%3u x %3u %s%s overlap %s: %8.0f tok/s, TPOT %7.1f us, TTFT %8.1f us; a step: host "
            "%5.1f, compute %7.1f, exposed %5.1f us\n",
            l->n, l->n_out, l->sampled ? "sampled" : "greedy ",
            l->kv_pages > 0 ? ", few pages" : "", overlap ? "on " : "off", rate,
            median(s->tpot) * 1e-3, median(s->ttft) * 1e-3, host, compute, exposed);
}

static bool measure(const rose_backend_ops *ops, const rose_model *m, const load *l, bool last)
{
    side on = {0}, off = {0};
    open_side(&on, ops, m, l, true);
    open_side(&off, ops, m, l, false);
    for (int round = -2; round < ROUNDS; round++) {
        run(&on, l, m->arch.vocab_size, round);
        run(&off, l, m->arch.vocab_size, round);
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
    if (argc != 3) {
        fprintf(stderr, "usage: gpu_overlap MODEL DEVICE\n");
        return 2;
    }
    if (rose_backend_pick(&ops, argv[2], &err) != ROSE_OK) die("device", &err);
    if (rose_model_open(&m, argv[1], &err) != ROSE_OK) die("model", &err);
    printf("[\n");
    bool ok = true;
    for (int i = 0; i < n && ok; i++)
        ok = measure(ops, m, &loads[i], i == n - 1);
    printf("]\n");
    rose_model_close(m);
    return ok ? 0 : 1;
}
