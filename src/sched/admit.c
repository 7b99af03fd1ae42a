/* sched/admit.c - who of the waiting begins in this step. Each round goes through the queue in
 * order (fifo) or through its first few by length (pack) and stops when places, rows or pages are
 * out. */
#include "sched/sched_internal.h"

typedef enum verdict {
    BEGUN,
    HELD,    /* not it, but whoever comes next may pass without harm: another computes its next
                page, or only those that were preempted have a place */
    NO_ROOM, /* a shorter one might fit */
    CLOSED   /* no place or no rows for anybody */
} verdict;

static uint32_t pages_of(const rose_sched *s, uint32_t n_tokens)
{
    return (n_tokens - 1) / s->o.page_tokens + 1;
}

/* Are there n pages, and a few more to grow into while others run? */
static bool has_room(const rose_sched *s, uint32_t n)
{
    uint32_t spare = s->n_free_lanes < s->o.max_seqs ? rose_kv_pages_total(s->pages) / 100 : 0;
    uint32_t available = rose_kv_prefix_n_available(s->prefix);
    return available >= n && available - n >= spare;
}

/* Its cached pages and fresh ones for all it knows, into the table of the topmost free lane. */
static bool take_pages(rose_sched *s, const rose_seq *q, uint32_t need)
{
    uint32_t lane = s->free_lanes[s->n_free_lanes - 1], n = q->match_n;
    uint32_t *table = s->tables + (size_t)lane * s->stride;
    for (uint32_t k = n, page = q->match_page; k-- > 0;) {
        table[k] = page;
        page = rose_kv_prefix_parent(s->prefix, page);
    }
    /* held first: what it is about to use must not be evicted for it */
    if (n > 0) rose_kv_prefix_acquire(s->prefix, table, n);
    if (has_room(s, need - n) && rose_kv_prefix_take(s->prefix, table + n, need - n) == ROSE_OK) {
        s->n_pages[lane] = need;
        return true;
    }
    if (n > 0) rose_kv_prefix_release(s->prefix, table, n);
    return false;
}

static verdict try_begin(rose_sched *s, rose_sched_plan *p, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    uint32_t left = rose_sched_prefill_left(s, p), need = pages_of(s, q->n_known);
    if (s->n_free_lanes == 0 || left == 0) return CLOSED;
    /* the places are begun sequences', one that was preempted still has its own */
    if (!q->begun && s->n_begun >= s->goal_active) return HELD;
    uint32_t most = s->o.prefix_cache ? need - 1 : 0; /* cached at the very best */
    if (!has_room(s, need - most)) return NO_ROOM;
    if (s->o.prefix_cache) {
        rose_sched_match(s, i);
        if (rose_sched_pending_has(s, i)) return HELD;
    }
    uint32_t rest = q->n_known - q->match_n * s->o.page_tokens;
    /* whole prompts; one that is recomputed may have outgrown the step, it comes in pieces */
    if (!s->o.chunked_prefill && rest > left && rest <= s->o.max_step_tokens) return NO_ROOM;
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

/* Shorter first, ties in order of the queue: Shell's sort of (tokens, place), no allocation. */
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
