/* sched/admit.c - decides which waiting sequences begin in this step. Each round visits the
 * queue in order (fifo), or its first few by length (pack). It stops when there are no lanes,
 * rows or pages left. */
#include "sched/sched_internal.h"

typedef enum verdict {
    BEGUN,
    HELD,    /* the sequence cannot begin, but the next one may pass it without harm: another
              * sequence computes its next page, only preempted sequences may begin, or it may not
              * sample yet */
    NO_ROOM, /* a shorter one might fit */
    CLOSED   /* no place or no rows for anybody */
} verdict;

static uint32_t pages_of(const rose_sched *s, uint32_t n_tokens)
{
    return (n_tokens - 1) / s->o.page_tokens + 1;
}

/* Tells whether a pool has n pages and, while other sequences run, a few more to grow into. */
static bool has_room(const rose_sched *s, uint32_t pool, uint32_t n)
{
    uint32_t total = rose_kv_pages_total(s->o.pools[pool]);
    uint32_t spare = s->n_free_lanes < s->o.max_seqs ? total / 100 : 0;
    uint32_t available = rose_kv_prefix_n_available(s->prefix, pool);
    return available >= n && available - n >= spare;
}

/* Returns up to which place of a pool's table a prompt of `need` pages takes pages when it begins
 * with the page at place `from`. */
static uint32_t end_of(const rose_sched *s, uint32_t pool, uint32_t from, uint32_t need)
{
    return need - from < s->span[pool] ? need : from + s->span[pool];
}

/* Fills the page tables of the topmost free lane for sequence q: its cached pages, then fresh
 * ones. */
static bool take_pages(rose_sched *s, rose_seq *q, uint32_t need)
{
    bool ok = true;
    q->lane = s->free_lanes[s->n_free_lanes - 1];
    rose_kv_prefix_move(s->prefix, ROSE_KV_NONE, q->node);
    /* acquire the cached pages first, so that taking fresh pages does not evict them */
    for (uint32_t k = 0; k < s->o.n_pools; k++) {
        const uint32_t from = rose_sched_keeps(&s->o, k, q->match_n * s->o.page_tokens);
        q->own[k] = (rose_kv_span){from, q->match_n};
        rose_kv_prefix_acquire(s->prefix, q->node, q->match_n, k, from, rose_sched_table(s, q, k));
    }
    for (uint32_t k = 0; k < s->o.n_pools && ok; k++) {
        rose_kv_span *h = &q->own[k];
        const uint32_t end = end_of(s, k, h->from, need), n = end - h->end;
        ok = has_room(s, k, n) &&
             rose_kv_prefix_take(s->prefix, k, rose_sched_table(s, q, k) + h->end, n) == ROSE_OK;
        if (ok) h->end = end;
    }
    if (!ok) rose_sched_give_back(s, q);
    return ok;
}

static verdict try_begin(rose_sched *s, rose_sched_plan *p, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    uint32_t left = rose_sched_prefill_left(s, p), need = pages_of(s, q->n_known);
    if (s->n_free_lanes == 0 || left == 0) return CLOSED;
    /* goal_active limits the sequences that have begun; a preempted one already counts as one of
     * them */
    if (!q->begun && s->n_begun >= s->goal_active) return HELD;
    for (uint32_t k = 0; k < s->o.n_pools; k++) /* at the very best, all but one is cached */
        if (!has_room(s, k, s->o.prefix_cache ? 1 : end_of(s, k, 0, need))) return NO_ROOM;
    if (s->o.prefix_cache) {
        rose_sched_match(s, i);
        if (rose_sched_pending_has(s, i)) return HELD;
    }
    uint32_t rest = q->n_known - q->match_n * s->o.page_tokens;
    /* without chunking a prompt is one piece, except a recomputed one that is longer than a
     * whole step */
    if (!s->o.chunked_prefill && rest > left && rest <= s->o.max_step_tokens) return NO_ROOM;
    if (rose_sched_must_wait(s, q, rest, left)) return HELD;
    if (!take_pages(s, q, need)) return NO_ROOM;
    rose_sched_begin(s, p, i);
    if (s->o.prefix_cache) rose_sched_pending_add(s, i);
    rose_sched_plan_prefill(s, p, i);
    return BEGUN;
}

static void admit_fifo(rose_sched *s, rose_sched_plan *p)
{
    uint32_t n_held = 0;
    for (uint32_t i = rose_waitq_first(&s->waiting), next; i != ROSE_WAITQ_END; i = next) {
        next = rose_waitq_next(&s->waiting, i);
        verdict v = try_begin(s, p, i);
        if (v == HELD ? ++n_held == s->o.lookahead : v != BEGUN) return;
    }
}

/* Sorts by length, shorter first, ties in order of the queue: Shell's sort of (tokens, place),
 * without allocation. */
static void sort_by_length(const rose_sched *s, uint32_t *w, uint32_t n)
{
    for (uint32_t gap = n / 2; gap > 0; gap /= 2) {
        for (uint32_t a = gap; a < n; a++) {
            uint32_t i = w[a], b = a;
            const rose_seq *q = &s->seqs[i];
            for (; b >= gap; b -= gap) {
                const rose_seq *r = &s->seqs[w[b - gap]];
                if (r->n_known < q->n_known) break;
                if (r->n_known == q->n_known && rose_seq_before(r, q)) break;
                w[b] = w[b - gap];
            }
            w[b] = i;
        }
    }
}

static void admit_pack(rose_sched *s, rose_sched_plan *p)
{
    uint32_t n = 0, n_begun = 0, head = rose_waitq_first(&s->waiting);
    verdict head_is = NO_ROOM;
    for (uint32_t i = head; i != ROSE_WAITQ_END && n < s->o.lookahead;
         i = rose_waitq_next(&s->waiting, i))
        s->window[n++] = i;
    sort_by_length(s, s->window, n);
    for (uint32_t k = 0; k < n; k++) {
        verdict v = try_begin(s, p, s->window[k]);
        if (s->window[k] == head) head_is = v;
        if (v == BEGUN) n_begun++;
        if (v == CLOSED) break;
    }
    if (n_begun > 0 && head_is != BEGUN && head_is != HELD) s->n_passed++;
}

void rose_sched_admit(rose_sched *s, rose_sched_plan *p)
{
    uint32_t head = rose_waitq_first(&s->waiting);
    if (head == ROSE_WAITQ_END || s->n_free_lanes == 0) return;
    if (s->passed_head != s->seqs[head].order) {
        s->passed_head = s->seqs[head].order;
        s->n_passed = 0;
    }
    if (s->o.admission == ROSE_ADMISSION_PACK && s->n_passed + 1 < s->o.force_fifo_every)
        admit_pack(s, p);
    else
        admit_fifo(s, p);
}
