/* sched/slo.c - latency goals. They decide how many rows of a step may go to prompts, how many
 * sequences may run, and which can no longer be in time. All of it follows from the cost model
 * (cost.h) and three means over ended sequences. These are the length of the output, the number
 * of pages, and the uncached part of the prompt. These are estimates, not promises. */
#include "sched/sched_internal.h"

enum {
    MIN_ROWS = 4, /* the least prompt rows of any step, so that prompts advance whatever the
                   * latency goal */
    /* The goal of a step without decodes beyond busy_step_tokens. Whoever arrives meanwhile waits
     * for its end. */
    IDLE_GOAL_NS = 60000000
};
static const double MEAN_GAIN = 1.0 / 32;

static void mean_add(double *mean, uint64_t *n, double x)
{
    *mean += (x - *mean) * (*n == 0 ? 1 : MEAN_GAIN);
    (*n)++;
}

/* ---- events ---- */

void rose_sched_observe(rose_sched *s, uint32_t n_decode, uint32_t n_prefill, uint64_t ns)
{
    rose_sched_cost_observe(&s->cost, n_decode, n_prefill, ns);
    if (s->most_rows < n_decode + n_prefill) s->most_rows = n_decode + n_prefill;
}

void rose_sched_note_begin(rose_sched *s, const rose_seq *q)
{
    if (!q->same_prompt)
        mean_add(&s->mean_miss, &s->n_misses, 1 - (double)q->n_cached / q->n_prompt);
}

void rose_sched_note_end(rose_sched *s, const rose_seq *q)
{
    uint64_t n = s->n_ends;
    mean_add(&s->mean_output, &s->n_ends, q->n_known - q->n_prompt);
    mean_add(&s->mean_pages, &n, 1 + (double)q->n_known / s->o.page_tokens);
}

/* ---- goals between tokens ---- */

/* Returns how many rows the next step may have. It has at most twice as many as any step before:
 * short prompts say little about the cost of long ones. */
static uint32_t rows_of_next(const rose_sched *s)
{
    const uint32_t least = s->o.busy_step_tokens, most = s->o.max_step_tokens;
    const uint64_t goal = s->n_decode > 0 ? s->o.itl_goal_ns : IDLE_GOAL_NS;
    if (least == most || goal == 0) return least;
    uint32_t rows = s->n_decode + rose_sched_cost_prefill(&s->cost, s->n_decode, goal, most);
    if (rows / 2 > s->most_rows) rows = 2 * s->most_rows;
    if (rows < least) return least;
    return rows < most ? rows : most;
}

void rose_sched_steer(rose_sched *s)
{
    uint64_t goal = s->o.itl_goal_ns;
    s->step_rows = rows_of_next(s);
    uint32_t n = s->n_decode < s->step_rows ? s->n_decode : s->step_rows;
    s->goal_rows = UINT32_MAX;
    s->goal_active = s->o.max_active;
    if (goal == 0) return;
    /* a step without decodes delays no running request */
    if (n > 0) s->goal_rows = rose_sched_cost_prefill(&s->cost, n, goal, UINT32_MAX);
    if (s->goal_rows < MIN_ROWS) s->goal_rows = MIN_ROWS;
    s->goal_active = rose_sched_cost_decodes(&s->cost, MIN_ROWS, goal, s->o.max_active);
    if (s->goal_active == 0) s->goal_active = 1;
}

double rose_sched_least_chance(const rose_sched *s)
{
    return rose_sched_cost_least_chance(&s->cost, s->n_decode);
}

/* ---- the first token ---- */

/* Rows that the prompt of q will take. */
static double rows_of(const rose_sched *s, const rose_seq *q, double miss)
{
    if (q->begun) return q->n_known; /* preempted */
    if (q->same_prompt && s->o.prefix_cache) return (q->n_prompt - 1) % s->o.page_tokens + 1;
    double rows = q->n_known - (double)q->match_n * s->o.page_tokens;
    return q->match_n > 0 ? rows : rows * miss;
}

/* Returns how many prompt rows a step can have beside the current decodes. */
static uint32_t rows_of_step(const rose_sched *s)
{
    uint32_t n = s->n_decode < s->step_rows ? s->n_decode : s->step_rows;
    uint32_t rows = s->step_rows - n;
    if (rows > s->o.prefill_max_tokens) rows = s->o.prefill_max_tokens;
    if (n > 0 && rows > s->goal_rows) rows = s->goal_rows;
    return rows > 0 ? rows : 1;
}

rose_sched_load rose_sched_get_load(const rose_sched *s)
{
    rose_sched_load l = {.known = s->cost.n > 0, .n_running = rose_sched_n_running(s), .miss = 1};
    uint32_t places = s->goal_active > s->n_begun ? s->goal_active - s->n_begun : 0;
    double busy = 0, drag = rose_sched_cost_drag(&s->cost);
    if (!l.known) return l;
    if (s->n_misses > 0) l.miss = s->mean_miss;
    l.base_ns = drag * rose_sched_cost_ns(&s->cost, s->n_decode, 0);
    l.prompt_ns = drag * (rose_sched_cost_ns(&s->cost, 0, 1) - rose_sched_cost_ns(&s->cost, 0, 0));
    l.row_ns = l.prompt_ns + l.base_ns / rows_of_step(s);
    for (uint32_t i = s->prefill_first; i != ROSE_SCHED_NONE; i = s->seqs[i].next)
        busy += s->seqs[i].n_known - s->seqs[i].n_done;
    l.busy_ns = busy * l.row_ns;
    l.n_free = places;
    if (s->n_ends == 0) return l;
    for (uint32_t k = 0; k < s->o.n_pools; k++) {
        double need = s->mean_pages < s->span[k] ? s->mean_pages : s->span[k];
        double fit = rose_kv_prefix_n_available(s->prefix, k) / need;
        if (fit < l.n_free) l.n_free = (uint32_t)fit;
    }
    /* with all places taken, one sequence ends every mean_output / full steps */
    uint32_t full = l.n_running + l.n_free > 0 ? l.n_running + l.n_free : 1;
    l.place_ns = s->mean_output / full * drag * rose_sched_cost_ns(&s->cost, full, 0);
    return l;
}

double rose_sched_wait_ns(const rose_sched_load *l, uint32_t n_ahead, double rows_ahead, double own)
{
    double queue = l->busy_ns + rows_ahead * l->row_ns;
    if (!l->known) return 0;
    if (n_ahead >= l->n_free) {
        double places = ((double)n_ahead - l->n_free + 1) * l->place_ns + rows_ahead * l->prompt_ns;
        if (places > queue) queue = places;
    }
    if (!(own > 0)) return queue;
    double one = l->base_ns + own * l->prompt_ns, many = own * l->row_ns;
    return queue + (one > many ? one : many);
}

/* Tells whether sequence i cannot have its first token in time. */
static bool is_late(const rose_sched *s, const rose_sched_load *l, uint32_t i, uint64_t now_ns,
                    uint32_t n_ahead, double rows_ahead)
{
    const rose_seq *q = &s->seqs[i];
    if (q->begun || q->due_ns == 0) return false;
    if (now_ns >= q->due_ns) return true;
    double wait = rose_sched_wait_ns(l, n_ahead, rows_ahead, rows_of(s, q, l->miss));
    return wait > (double)(q->due_ns - now_ns);
}

/* Checks whether the first few waiting sequences can be in time. Each waits for those before it
 * that stay in the queue. */
static uint32_t late_in_queue(const rose_sched *s, const rose_sched_load *l, uint64_t now_ns,
                              uint32_t *out, uint32_t cap)
{
    uint32_t n = 0, n_ahead = 0, n_seen = 0;
    double rows = 0;
    for (uint32_t i = rose_waitq_first(&s->waiting); i != ROSE_WAITQ_END && n < cap;
         i = rose_waitq_next(&s->waiting, i)) {
        bool alone = n_ahead == 0 && l->n_running == 0; /* it begins now: what would waiting help */
        if (!alone && is_late(s, l, i, now_ns, n_ahead, rows)) {
            out[n++] = i;
            continue;
        }
        n_ahead += !s->seqs[i].begun;
        rows += rows_of(s, &s->seqs[i], l->miss);
        if (++n_seen == s->o.lookahead) break;
    }
    return n;
}

/* Checks a few of all waiting sequences in each step, in turn, as if each were alone in the
 * queue. This finds late sequences far back in the queue. */
static uint32_t late_anywhere(rose_sched *s, const rose_sched_load *l, uint64_t now_ns,
                              uint32_t *out, uint32_t cap)
{
    rose_sched_load alone = *l;
    uint32_t n = 0, n_seqs = s->o.max_seqs + s->o.max_queued;
    alone.busy_ns = alone.place_ns = 0;
    if (l->n_running == 0 || s->waiting.n_waiting <= s->o.lookahead) return 0;
    for (uint32_t k = 0; k < s->o.lookahead && n < cap; k++) {
        if (++s->late_at >= n_seqs) s->late_at = 0;
        if (s->seqs[s->late_at].state == ROSE_SEQ_WAITING &&
            is_late(s, &alone, s->late_at, now_ns, 0, 0))
            out[n++] = s->late_at;
    }
    return n;
}

uint32_t rose_sched_late(rose_sched *s, uint64_t now_ns, uint32_t *out, uint32_t cap)
{
    if (s->waiting.n_waiting == s->n_preempted) return 0;
    rose_sched_load l = rose_sched_get_load(s);
    uint32_t n = late_in_queue(s, &l, now_ns, out, cap);
    return n > 0 ? n : late_anywhere(s, &l, now_ns, out, cap);
}
