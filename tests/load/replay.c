/* tests/load/replay.c - see replay.h. Token ids are made up. Blocks with equal hashes in the trace
 * get equal ids; all other ids belong to one request alone. */
#include "load/replay.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"

typedef struct live {
    uint32_t request; /* index of the request in the trace */
    uint32_t n_out;
    double first_s, last_s, worst_s; /* worst_s: the longest gap between two tokens */
} live;

typedef struct replay {
    const rose_load_trace *t;
    rose_kv_pages *pages;
    rose_sched *s;
    live *live; /* [handles of the scheduler] */
    double now;
    uint64_t n_out;
    double *ttft, *e2e; /* [n]; times of the requests that are done */
    double *itl;        /* [n_itl] */
    size_t n_itl, cap_itl;
} replay;

static uint32_t mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a * UINT64_C(0x9E3779B97F4A7C15)) ^ (b + UINT64_C(0x632BE59BD9B4E019));
    h *= UINT64_C(0xBF58476D1CE4E5B9);
    return (uint32_t)(h >> 32);
}

static void made_up_ids(void *user, uint32_t seq, uint32_t pos, uint32_t n, uint32_t *out)
{
    const replay *r = user;
    uint32_t request = r->live[seq].request;
    const rose_load_trace_row *q = &r->t->rows[request];
    const uint32_t block = r->t->block_tokens;
    for (uint32_t p = pos; p < pos + n; p++) {
        uint32_t k = block > 0 ? p / block : 0;
        bool known = p < q->n_in && k < q->n_hash;
        *out++ = known ? mix(r->t->hashes[q->hash0 + k], p % block) : mix(~(uint64_t)request, p);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The percentile in milliseconds, by linear interpolation as in numpy. */
static double percentile(const double *v, size_t n, double p)
{
    double at = p / 100 * (double)(n - 1);
    size_t i = (size_t)at;
    double x = i + 1 < n ? v[i] + (at - (double)i) * (v[i + 1] - v[i]) : v[n - 1];
    return x * 1e3;
}

static rose_replay_spread spread(double *v, size_t n)
{
    if (n == 0) return (rose_replay_spread){0};
    qsort(v, n, sizeof *v, by_value);
    return (rose_replay_spread){percentile(v, n, 50), percentile(v, n, 90), percentile(v, n, 99),
                                v[n - 1] * 1e3};
}

static bool create(replay *r, const rose_replay_opts *o, const rose_sched_opts *so, rose_status *st,
                   rose_err *err)
{
    rose_sched_opts with_ids = *so;
    if (o->steer) with_ids.itl_goal_ns = (uint64_t)(o->itl_ms * 1e6);
    with_ids.ids = made_up_ids;
    with_ids.ids_user = r;
    for (uint32_t i = 0; i < r->t->n; i++)
        r->cap_itl += r->t->rows[i].n_out;
    r->live = calloc((size_t)so->max_seqs + so->max_queued, sizeof *r->live);
    r->ttft = calloc(r->t->n, sizeof *r->ttft);
    r->e2e = calloc(r->t->n, sizeof *r->e2e);
    r->itl = calloc(r->cap_itl, sizeof *r->itl);
    if (r->live == NULL || r->ttft == NULL || r->e2e == NULL || r->itl == NULL) {
        *st = rose_fail(err, ROSE_E_NOMEM, "replay of %u requests: out of memory", r->t->n);
        return false;
    }
    *st = rose_kv_pages_create(&r->pages, o->kv_pages, err);
    with_ids.n_pools = 1;
    with_ids.pools[0] = r->pages;
    with_ids.keeps_from = rose_pool_keeps_from;
    if (*st == ROSE_OK) *st = rose_sched_create(&r->s, &with_ids, err);
    return *st == ROSE_OK;
}

static void submit(replay *r, uint32_t i, const rose_replay_opts *o, rose_replay_result *out)
{
    const rose_load_trace_row *q = &r->t->rows[i];
    double at_s = q->at_s * o->scale;
    rose_sched_request sr = {
        .n_prompt = q->n_in, .max_tokens = q->n_out, .arrival = (uint64_t)(at_s * 1e3)};
    uint32_t seq;
    if (o->steer && o->ttft_ms > 0) sr.due_ns = (uint64_t)(at_s * 1e9 + o->ttft_ms * 1e6);
    if (rose_sched_submit(r->s, &sr, &seq) != ROSE_OK) {
        out->n_refused++;
        return;
    }
    r->live[seq] = (live){.request = i, .last_s = at_s};
}

/* Counts whether a request met the goals. A tiny excess is the clock's rounding. */
static void judge(const live *l, double at_s, const rose_replay_opts *o, rose_replay_result *out)
{
    const double rounding_s = 1e-9;
    bool ttft = o->ttft_ms <= 0 || l->first_s - at_s <= o->ttft_ms * 1e-3 + rounding_s;
    bool itl = o->itl_ms <= 0 || l->worst_s <= o->itl_ms * 1e-3 + rounding_s;
    out->n_met_ttft += ttft;
    out->n_met_itl += itl;
    out->n_met += ttft && itl;
}

/* Handles one sampled token. The last token ends the request. */
static void token(replay *r, uint32_t seq, const rose_replay_opts *o, rose_replay_result *out)
{
    live *l = &r->live[seq];
    const rose_load_trace_row *q = &r->t->rows[l->request];
    if (l->n_out++ == 0) {
        l->first_s = r->now;
    } else {
        double gap_s = r->now - l->last_s;
        if (gap_s > l->worst_s) l->worst_s = gap_s;
        r->itl[r->n_itl++] = gap_s;
    }
    l->last_s = r->now;
    r->n_out++;
    if (l->n_out < q->n_out) return;
    judge(l, q->at_s * o->scale, o, out);
    r->ttft[out->n_done] = l->first_s - q->at_s * o->scale;
    r->e2e[out->n_done++] = r->now - q->at_s * o->scale;
    rose_sched_finish(r->s, seq);
}

static void refuse_late(replay *r, rose_replay_result *out)
{
    uint32_t late[64], n;
    while ((n = rose_sched_late(r->s, (uint64_t)(r->now * 1e9), late, 64)) > 0) {
        for (uint32_t i = 0; i < n; i++)
            rose_sched_finish(r->s, late[i]);
        out->n_late += n;
    }
}

static void play(replay *r, const rose_replay_opts *o, rose_replay_result *out)
{
    uint32_t next = 0;
    for (;;) {
        rose_sched_plan p;
        for (; next < r->t->n && r->t->rows[next].at_s * o->scale <= r->now; next++)
            submit(r, next, o, out);
        if (o->steer && o->ttft_ms > 0) refuse_late(r, out);
        if (!rose_sched_next(r->s, &p)) {
            if (next == r->t->n) return;
            /* nothing runs until the next request arrives */
            r->now = r->t->rows[next].at_s * o->scale;
            continue;
        }
        double us = o->step_us + o->row_us * p.n_tokens;
        r->now += us * 1e-6;
        rose_sched_observe(r->s, p.n_tokens - p.n_prefill_tokens, p.n_prefill_tokens,
                           (uint64_t)(us * 1e3));
        out->n_steps++;
        out->duration_s = r->now;
        for (uint32_t i = 0; i < p.n_items; i++) {
            if (p.items[i].n_outs > 0) token(r, p.items[i].seq, o, out);
        }
    }
}

rose_status rose_replay_run(const rose_load_trace *t, const rose_replay_opts *o,
                            const rose_sched_opts *so, rose_replay_result *out, rose_err *err)
{
    replay r = {.t = t};
    rose_status st = ROSE_OK;
    *out = (rose_replay_result){0};
    if (create(&r, o, so, &st, err)) {
        play(&r, o, out);
        if (out->duration_s > 0) out->tokens_per_s = (double)r.n_out / out->duration_s;
        out->ttft = spread(r.ttft, out->n_done);
        out->e2e = spread(r.e2e, out->n_done);
        out->itl = spread(r.itl, r.n_itl);
        out->stats = rose_sched_get_stats(r.s);
    }
    rose_sched_destroy(r.s);
    rose_kv_pages_destroy(r.pages);
    free(r.live);
    free(r.ttft);
    free(r.e2e);
    free(r.itl);
    return st;
}
