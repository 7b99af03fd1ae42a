/* sched/sched.c - see sched.h and sched_internal.h: the life of a sequence, its pages, and the
 * plan. It does not know token ids (share.c asks for them), requests or time, and it never reads
 * a page. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "sched/sched_internal.h"

#define NONE ROSE_SCHED_NONE
enum {
    LIMIT_SEQS = 4096,
    LIMIT_QUEUED = 65536,
    LIMIT_LEN = 1 << 28,
    LIMIT_PAGE = 1 << 16,
    LIMIT_ROWS = 1 << 24,
    LIMIT_LOOKAHEAD = 4096,
    LIMIT_PRIORITY = 1000
};

/* ---- create and destroy ---- */

static rose_status check_opts(const rose_sched_opts *o, rose_err *err)
{
    if (o->max_seqs == 0 || o->max_seqs > LIMIT_SEQS)
        return rose_fail(err, ROSE_E_INVAL, "max_seqs is %u: 1 to %d are possible", o->max_seqs,
                         LIMIT_SEQS);
    if (o->max_step_tokens < o->max_seqs || o->max_step_tokens > LIMIT_ROWS)
        return rose_fail(err, ROSE_E_INVAL, "max_step_tokens is %u: %u (max_seqs) to %d possible",
                         o->max_step_tokens, o->max_seqs, LIMIT_ROWS);
    if (o->busy_step_tokens != 0 &&
        (o->busy_step_tokens < o->max_seqs || o->busy_step_tokens > o->max_step_tokens))
        return rose_fail(err, ROSE_E_INVAL,
                         "busy_step_tokens is %u: 0, or %u (max_seqs) to %u (max_step_tokens)",
                         o->busy_step_tokens, o->max_seqs, o->max_step_tokens);
    if (o->max_model_len < 2 || o->max_model_len > LIMIT_LEN)
        return rose_fail(err, ROSE_E_INVAL, "max_model_len is %u: 2 to %d are possible",
                         o->max_model_len, LIMIT_LEN);
    if (o->max_queued == 0 || o->max_queued > LIMIT_QUEUED)
        return rose_fail(err, ROSE_E_INVAL, "max_queued is %u: 1 to %d are possible", o->max_queued,
                         LIMIT_QUEUED);
    if (o->page_tokens == 0 || o->page_tokens > LIMIT_PAGE)
        return rose_fail(err, ROSE_E_INVAL, "page_tokens is %u: 1 to %d are possible",
                         o->page_tokens, LIMIT_PAGE);
    if (o->lookahead > LIMIT_LOOKAHEAD)
        return rose_fail(err, ROSE_E_INVAL, "lookahead is %u: up to %d is possible", o->lookahead,
                         LIMIT_LOOKAHEAD);
    if (o->prefix_cache && o->ids == NULL)
        return rose_fail(err, ROSE_E_INVAL, "a prefix cache needs the ids of the tokens");
    if (o->n_pools == 0 || o->n_pools > ROSE_KV_MAX_POOLS)
        return rose_fail(err, ROSE_E_INVAL, "%u pools: 1 to %d are possible", o->n_pools,
                         ROSE_KV_MAX_POOLS);
    return ROSE_OK;
}

/* Pages for n_tokens tokens. The last token is sampled but never computed, so it needs no slot
 * in a page. */
static uint32_t pages_for(const rose_sched_opts *o, uint32_t n_tokens)
{
    return (n_tokens - 2) / o->page_tokens + 1;
}

static void resolve_opts(rose_sched_opts *o)
{
    if (o->max_active == 0 || o->max_active > o->max_seqs) o->max_active = o->max_seqs;
    if (o->prefill_max_batch == 0) o->prefill_max_batch = UINT32_MAX;
    if (o->prefill_max_tokens == 0) o->prefill_max_tokens = UINT32_MAX;
    if (o->prefill_chunk_size == 0 || !o->chunked_prefill) o->prefill_chunk_size = UINT32_MAX;
    /* without chunking a prompt of max_step_tokens must fit into any step */
    if (o->busy_step_tokens == 0 || !o->chunked_prefill) o->busy_step_tokens = o->max_step_tokens;
    if (o->lookahead == 0) o->lookahead = 64;
    if (o->force_fifo_every == 0) o->force_fifo_every = 8;
}

/* Sets the spans. A sequence that runs alone must find room in the pools with windows; for the
 * others rose_sched_check refuses what is too long. */
static rose_status plan_pools(rose_sched *s, rose_err *err)
{
    const rose_sched_opts *o = &s->o;
    const uint32_t len = o->max_model_len - 1, pt = o->page_tokens; /* the last is not computed */
    for (uint32_t p = 0; p < o->n_pools; p++) {
        const uint32_t total = rose_kv_pages_total(o->pools[p]);
        for (uint32_t pos = 0; pos < len; pos += pt) {
            uint32_t n = o->chunked_prefill ? pt : o->max_step_tokens;
            if (n > len - pos) n = len - pos;
            n = (pos + n - 1) / pt + 1 - rose_sched_keeps(o, p, pos);
            if (s->span[p] < n) s->span[p] = n;
        }
        if (rose_sched_keeps(o, p, len) > 0 && s->span[p] > total)
            return rose_fail(err, ROSE_E_INVAL,
                             "a window of %u tokens takes %u KV pages: the pool has %u",
                             o->windows[p], s->span[p], total);
    }
    return ROSE_OK;
}

static bool allocate(rose_sched *s)
{
    size_t n = s->o.max_seqs, n_seqs = n + s->o.max_queued;
    s->seqs = calloc(n_seqs, sizeof *s->seqs);
    s->decode = calloc(n, sizeof *s->decode);
    s->needs = calloc(n, sizeof *s->needs);
    s->free_lanes = calloc(n, sizeof *s->free_lanes);
    /* < 2^12 * 2^2 * 2^28: no overflow */
    s->tables = calloc(n * s->o.n_pools * s->stride, sizeof *s->tables);
    s->window = calloc(s->o.lookahead, sizeof *s->window);
    s->ids = calloc(s->o.page_tokens, sizeof *s->ids);
    s->items = calloc(n, sizeof *s->items);
    s->admitted = calloc(n, sizeof *s->admitted);
    bool ok = rose_waitq_create(&s->waiting, (uint32_t)n_seqs);
    ok = rose_sched_pending_create(&s->pending, s->o.max_seqs) && ok;
    return ok && s->seqs != NULL && s->decode != NULL && s->needs != NULL &&
           s->free_lanes != NULL && s->tables != NULL && s->window != NULL && s->ids != NULL &&
           s->items != NULL && s->admitted != NULL;
}

rose_status rose_sched_create(rose_sched **out, const rose_sched_opts *o, rose_err *err)
{
    *out = NULL;
    rose_status st = check_opts(o, err);
    if (st != ROSE_OK) return st;

    rose_sched *s = calloc(1, sizeof *s);
    if (s == NULL) return rose_fail(err, ROSE_E_NOMEM, "scheduler: out of memory");
    s->o = *o;
    resolve_opts(&s->o);
    s->stride = pages_for(o, o->max_model_len);
    st = plan_pools(s, err);
    /* nodes for all pages of the first pool, if they are of sequences of full length */
    const uint32_t total = rose_kv_pages_total(o->pools[0]);
    const uint64_t n_nodes = st == ROSE_OK ? (uint64_t)total * s->stride / s->span[0] : 0;
    rose_kv_prefix_opts po = {.enabled = o->prefix_cache,
                              .page_tokens = o->page_tokens,
                              .max_idle = o->prefix_max_pages,
                              .n_nodes = n_nodes < INT32_MAX ? (uint32_t)n_nodes : INT32_MAX,
                              .n_pools = o->n_pools,
                              .hash_key = {o->hash_key[0], o->hash_key[1]}};
    memcpy(po.pools, o->pools, sizeof po.pools);
    if (st == ROSE_OK) st = rose_kv_prefix_create(&s->prefix, &po, err);
    if (st == ROSE_OK) rose_kv_prefix_set_watch(s->prefix, o->watch);
    s->o.watch = NULL; /* copied */
    if (st == ROSE_OK && !allocate(s))
        st = rose_fail(err, ROSE_E_NOMEM, "scheduler of %u sequences: out of memory", o->max_seqs);
    if (st != ROSE_OK) {
        rose_sched_destroy(s);
        return st;
    }
    uint32_t n_seqs = o->max_seqs + o->max_queued;
    s->prefill_first = s->prefill_last = NONE;
    rose_sched_steer(s);
    for (uint32_t i = 0; i < n_seqs; i++)
        s->seqs[i].next = i + 1 < n_seqs ? i + 1 : NONE;
    s->n_free_lanes = o->max_seqs;
    for (uint32_t i = 0; i < o->max_seqs; i++)
        s->free_lanes[i] = o->max_seqs - 1 - i;
    *out = s;
    return ROSE_OK;
}

void rose_sched_destroy(rose_sched *s)
{
    if (s == NULL) return;
    if (s->seqs != NULL && s->n_begun > 0) {
        s->o.prefix_cache = false; /* nobody is asked for ids any more */
        size_t n_seqs = (size_t)s->o.max_seqs + s->o.max_queued;
        for (uint32_t i = 0; i < n_seqs; i++) {
            if (s->seqs[i].state != ROSE_SEQ_FREE) rose_sched_finish(s, i);
        }
    }
    rose_kv_prefix_destroy(s->prefix);
    rose_waitq_destroy(&s->waiting);
    rose_sched_pending_destroy(&s->pending);
    free(s->seqs);
    free(s->decode);
    free(s->needs);
    free(s->free_lanes);
    free(s->tables);
    free(s->window);
    free(s->ids);
    free(s->items);
    free(s->admitted);
    free(s);
}

/* ---- the list of sequences that prefill, in order of the scheduling key ---- */

static void prefill_insert(rose_sched *s, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    uint32_t at = s->prefill_last; /* mostly it comes last */
    while (at != NONE && rose_seq_before(q, &s->seqs[at]))
        at = s->seqs[at].prev;
    q->prev = at;
    q->next = at != NONE ? s->seqs[at].next : s->prefill_first;
    if (q->prev != NONE)
        s->seqs[q->prev].next = i;
    else
        s->prefill_first = i;
    if (q->next != NONE)
        s->seqs[q->next].prev = i;
    else
        s->prefill_last = i;
}

static void prefill_remove(rose_sched *s, uint32_t i)
{
    const rose_seq *q = &s->seqs[i];
    if (q->prev != NONE)
        s->seqs[q->prev].next = q->next;
    else
        s->prefill_first = q->next;
    if (q->next != NONE)
        s->seqs[q->next].prev = q->prev;
    else
        s->prefill_last = q->prev;
}

/* ---- events ---- */

rose_status rose_sched_check(const rose_sched_opts *o, uint32_t n_prompt, uint32_t max_tokens,
                             rose_err *err)
{
    if (n_prompt == 0) return rose_fail(err, ROSE_E_INVAL, "the prompt is empty");
    if (max_tokens == 0) return rose_fail(err, ROSE_E_INVAL, "max_tokens is 0");
    if (n_prompt > o->max_model_len || max_tokens > o->max_model_len - n_prompt)
        return rose_fail(err, ROSE_E_INVAL,
                         "the prompt has %u tokens and up to %u are asked for: the context holds "
                         "%u",
                         n_prompt, max_tokens, o->max_model_len);
    if (!o->chunked_prefill && n_prompt > o->max_step_tokens)
        return rose_fail(err, ROSE_E_INVAL,
                         "the prompt has %u tokens: without chunked prefill a step takes %u",
                         n_prompt, o->max_step_tokens);
    for (uint32_t p = 0; p < o->n_pools; p++) {
        const uint32_t n = n_prompt + max_tokens, total = rose_kv_pages_total(o->pools[p]);
        const uint32_t need = pages_for(o, n) - rose_sched_keeps(o, p, n - 2);
        if (need > total)
            return rose_fail(err, ROSE_E_INVAL,
                             "%u prompt and %u output tokens need %u KV pages: the pool has %u",
                             n_prompt, max_tokens, need, total);
    }
    return ROSE_OK;
}

rose_status rose_sched_submit(rose_sched *s, const rose_sched_request *r, uint32_t *seq)
{
    *seq = NONE;
    rose_status st = rose_sched_check(&s->o, r->n_prompt, r->max_tokens, NULL);
    if (st != ROSE_OK) return st;
    if (s->waiting.n_waiting - s->n_preempted == s->o.max_queued) return ROSE_E_FULL;
    uint32_t i = s->free_seq; /* a free node exists: at most max_seqs sequences have begun */
    rose_seq *q = &s->seqs[i];
    s->free_seq = q->next;
    int64_t priority = r->priority;
    if (priority > LIMIT_PRIORITY) priority = LIMIT_PRIORITY;
    if (priority < -LIMIT_PRIORITY) priority = -LIMIT_PRIORITY;
    *q = (rose_seq){.state = ROSE_SEQ_WAITING,
                    .no_lookup = r->no_lookup,
                    .same_prompt = r->same_prompt,
                    .held = r->guided,
                    .guided = r->guided,
                    .due_ns = r->due_ns,
                    .n_known = r->n_prompt,
                    .n_max = r->n_prompt + r->max_tokens,
                    .n_prompt = r->n_prompt,
                    .key = (int64_t)r->arrival + priority * (int64_t)s->o.priority_age,
                    .order = ++s->n_arrivals,
                    .salt = r->salt,
                    .node = ROSE_KV_NONE};
    rose_waitq_insert(&s->waiting, i, q->key, q->order);
    *seq = i;
    return ROSE_OK;
}

void rose_sched_guess(rose_sched *s, uint32_t i, uint32_t n)
{
    rose_seq *q = &s->seqs[i];
    assert(!q->held && !q->checked && n < q->n_max - q->n_known);
    q->n_guess = n;
}

void rose_sched_accept(rose_sched *s, uint32_t i, uint32_t n)
{
    rose_seq *q = &s->seqs[i];
    assert(q->checked && n <= q->n_max - q->n_known);
    q->checked = false;
    q->n_known += n;
    if (q->state != ROSE_SEQ_DECODE) { /* preempted meanwhile: it computes these ids again too */
        q->n_peak += n;
        if (q->n_known < q->n_max) return;
        rose_waitq_remove(&s->waiting, i);
        s->n_preempted--;
        q->state = ROSE_SEQ_DONE;
        return;
    }
    q->n_done += n;
    s->needs[s->n_needs++] = i;
}

void rose_sched_allow(rose_sched *s, uint32_t seq)
{
    assert(s->seqs[seq].guided);
    s->seqs[seq].held = false;
}

void rose_sched_give_back(rose_sched *s, const rose_seq *q)
{
    for (uint32_t k = 0; k < s->o.n_pools; k++)
        rose_kv_prefix_release(s->prefix, k, rose_sched_table(s, q, k) + q->own[k].from,
                               q->own[k].end - q->own[k].from);
    rose_kv_prefix_move(s->prefix, q->node, ROSE_KV_NONE);
}

/* For a PREFILL or DECODE sequence: frees its lane and pages. Full pages stay in the prefix
 * index. */
static void leave_lane(rose_sched *s, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    if (q->state == ROSE_SEQ_PREFILL) {
        prefill_remove(s, i);
    } else {
        uint32_t moved = s->decode[--s->n_decode];
        s->decode[q->index] = moved;
        s->seqs[moved].index = q->index;
    }
    rose_sched_index_pages(s, i);
    rose_sched_give_back(s, q);
    q->node = ROSE_KV_NONE;
    s->free_lanes[s->n_free_lanes++] = q->lane;
}

void rose_sched_finish(rose_sched *s, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    switch ((rose_seq_state)q->state) {
    case ROSE_SEQ_FREE:
        assert(false && "finish of a free handle");
        return;
    case ROSE_SEQ_WAITING:
        rose_waitq_remove(&s->waiting, i);
        s->n_preempted -= q->begun;
        break;
    case ROSE_SEQ_PREFILL:
    case ROSE_SEQ_DECODE:
        leave_lane(s, i);
        break;
    case ROSE_SEQ_DONE:
        break;
    }
    if (q->begun) rose_sched_note_end(s, q);
    s->n_begun -= q->begun;
    q->state = ROSE_SEQ_FREE;
    q->next = s->free_seq;
    s->free_seq = i;
}

void rose_sched_truncate(rose_sched *s, uint32_t i, uint32_t n_ids)
{
    rose_seq *q = &s->seqs[i];
    if (q->n_done > n_ids) q->n_done = n_ids;
    assert((uint64_t)q->n_indexed * s->o.page_tokens <= q->n_done || q->state == ROSE_SEQ_DONE ||
           q->state == ROSE_SEQ_WAITING);
}

/* ---- pages for those that decode ---- */

/* Preempts a sequence: it gives its pages back, waits under its old key, and later computes its
 * known tokens again. */
static void preempt(rose_sched *s, rose_sched_plan *p, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    leave_lane(s, i);
    if (q->n_peak < q->n_done) q->n_peak = q->n_done;
    q->n_done = q->match_n = 0;
    q->match_version = 0; /* of nothing */
    q->n_guess = 0;
    q->state = ROSE_SEQ_WAITING;
    rose_waitq_insert(&s->waiting, i, q->key, q->order);
    s->n_preempted++;
    s->stats.preemptions++;
    p->n_preempted++;
}

/* Returns the running sequence with the highest key. */
static uint32_t victim(const rose_sched *s)
{
    uint32_t v = s->prefill_last;
    for (uint32_t k = 0; k < s->n_decode; k++) {
        uint32_t i = s->decode[k];
        if (v == NONE || rose_seq_before(&s->seqs[v], &s->seqs[i])) v = i;
    }
    return v;
}

/* Drops the pages that the next row of q does not read. The index may keep them. */
static void drop_behind(rose_sched *s, rose_seq *q)
{
    for (uint32_t k = 0; k < s->o.n_pools; k++) {
        rose_kv_span *h = &q->own[k];
        const uint32_t from = rose_sched_keeps(&s->o, k, q->n_done);
        if (from <= h->from) continue;
        rose_kv_prefix_release(s->prefix, k, rose_sched_table(s, q, k) + h->from, from - h->from);
        h->from = from;
    }
}

/* Sets the position whose pages q lacks in one of the pools. */
static void set_check(const rose_sched *s, rose_seq *q)
{
    uint32_t end = q->own[0].end;
    for (uint32_t k = 1; k < s->o.n_pools; k++)
        if (q->own[k].end < end) end = q->own[k].end;
    q->check_at = end * s->o.page_tokens;
}

/* Takes the pages for the next row of sequence i (PREFILL, DECODE). If there is none, running
 * sequences are preempted from the highest key down, perhaps i itself. A sequence that runs alone
 * is never preempted here, because one that could never fit was refused. */
static void grow(rose_sched *s, rose_sched_plan *p, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    drop_behind(s, q);
    for (uint32_t k = 0; k < s->o.n_pools; k++) {
        rose_kv_span *h = &q->own[k];
        if (h->end * s->o.page_tokens > q->n_done) continue;
        while (rose_kv_prefix_take(s->prefix, k, &rose_sched_table(s, q, k)[h->end], 1) !=
               ROSE_OK) {
            uint32_t v = victim(s);
            preempt(s, p, v);
            if (v == i) return;
        }
        h->end++;
    }
    set_check(s, q);
}

/* Takes pages for the next n rows of q as far as there are some besides one for each decode.
 * Returns for how many rows there are pages; 0 only if a prompt before it takes the next ones. */
static uint32_t grow_piece(rose_sched *s, rose_seq *q, uint32_t n)
{
    const uint32_t pt = s->o.page_tokens;
    drop_behind(s, q);
    for (uint32_t k = 0; k < s->o.n_pools; k++) {
        rose_kv_span *h = &q->own[k];
        const uint32_t end = (q->n_done + n - 1) / pt + 1;
        uint32_t spare = rose_kv_prefix_n_available(s->prefix, k);
        if (end <= h->end) continue;
        spare -= spare < s->n_decode ? spare : s->n_decode;
        if (spare > end - h->end) spare = end - h->end;
        (void)rose_kv_prefix_take(s->prefix, k, rose_sched_table(s, q, k) + h->end, spare);
        h->end += spare;
        if (n > h->end * pt - q->n_done) n = h->end * pt - q->n_done;
    }
    return n;
}

/* Finishes the last step. Full pages of prompts enter the index. Sequences that are complete
 * leave their lanes. The others that decode get the page that they write next, and so does the
 * first that prefills. This happens before planning, so that no preempted sequence is in the plan.
 */
static void settle(rose_sched *s, rose_sched_plan *p)
{
    for (uint32_t k = 0; k < s->n_needs; k++) {
        rose_seq *q = &s->seqs[s->needs[k]];
        if (q->state != ROSE_SEQ_PREFILL && q->state != ROSE_SEQ_DECODE) continue;
        if (q->n_known == q->n_max) {
            leave_lane(s, s->needs[k]);
            q->state = ROSE_SEQ_DONE;
        } else if (q->fresh) {
            q->fresh = false;
            rose_sched_index_pages(s, s->needs[k]);
        }
    }
    for (uint32_t k = 0; k < s->n_needs; k++) {
        const rose_seq *q = &s->seqs[s->needs[k]];
        if (q->state == ROSE_SEQ_DECODE && q->n_done == q->check_at) grow(s, p, s->needs[k]);
    }
    if (s->prefill_first != NONE) grow(s, p, s->prefill_first);
    s->n_needs = 0;
}

/* Enters the pages of generated text into the index, for a few sequences in each step, in turn.
 * Otherwise sequences that began together would make every page_tokens-th step a long one. Pages
 * that are still missing enter when the sequence ends. */
static void index_generated(rose_sched *s)
{
    if (!s->o.prefix_cache || s->n_decode == 0) return;
    for (uint32_t n = (s->n_decode - 1) / s->o.page_tokens + 1; n > 0; n--) {
        if (s->index_at >= s->n_decode) s->index_at = 0;
        rose_sched_index_pages(s, s->decode[s->index_at++]);
    }
}

/* ---- the plan ---- */

/* Plans n rows of sequence i, which count as done, and then n_guess rows of its guess. */
static void plan_rows(rose_sched *s, rose_sched_plan *p, uint32_t i, uint32_t n, uint32_t n_guess)
{
    rose_seq *q = &s->seqs[i];
    rose_sched_item *it = &s->items[p->n_items++];
    it->seq = i;
    it->pos = q->n_done;
    it->n = n + n_guess;
    it->own = q->own;
    for (uint32_t k = 0; k < s->o.n_pools; k++)
        it->table[k] = rose_sched_table(s, q, k);
    q->n_done += n;
    it->n_outs = q->n_done == q->n_known ? 1 + n_guess : 0;
    if (it->n_outs > 0) {
        q->n_known++;
        q->held = q->guided;
    }
    q->checked = n_guess > 0;
    q->n_guess = 0;
    p->n_outputs += it->n_outs;
    p->n_tokens += it->n;
}

uint32_t rose_sched_prefill_left(const rose_sched *s, const rose_sched_plan *p)
{
    uint32_t left = s->step_rows - p->n_tokens;
    if (p->n_prefill_seqs >= s->o.prefill_max_batch) return 0;
    if (!s->o.chunked_prefill && p->n_prefill_seqs == 0) return left; /* however long it is */
    uint32_t most = s->o.prefill_max_tokens;
    if (most > s->goal_rows) most = s->goal_rows;
    if (p->n_prefill_tokens >= most) return 0;
    most -= p->n_prefill_tokens;
    return left < most ? left : most;
}

bool rose_sched_must_wait(const rose_sched *s, const rose_seq *q, uint32_t rest, uint32_t left)
{
    return q->held && rest <= left && rest <= s->o.prefill_chunk_size;
}

void rose_sched_begin(rose_sched *s, rose_sched_plan *p, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    rose_waitq_remove(&s->waiting, i);
    q->lane = s->free_lanes[--s->n_free_lanes];
    q->n_indexed = q->match_n;
    q->n_done = q->match_n * s->o.page_tokens;
    q->state = ROSE_SEQ_PREFILL;
    prefill_insert(s, i);
    if (q->begun) {
        s->n_preempted--;
        return;
    }
    q->begun = true;
    q->n_cached = q->n_done;
    s->n_begun++;
    rose_sched_note_begin(s, q);
    s->admitted[p->n_admitted++] = i;
    if (!s->o.prefix_cache) return;
    s->stats.prefix_queries += q->n_prompt;
    s->stats.prefix_hits += q->n_cached;
}

/* A sequence whose prompt is complete decodes from now on. */
void rose_sched_plan_prefill(rose_sched *s, rose_sched_plan *p, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    uint32_t n = q->n_known - q->n_done, left = rose_sched_prefill_left(s, p), pos = q->n_done;
    if (n > s->o.prefill_chunk_size) n = s->o.prefill_chunk_size;
    if (n > left) n = left;
    n = grow_piece(s, q, n);
    if (n == 0) return;
    bool complete = n == q->n_known - q->n_done;
    plan_rows(s, p, i, n, 0);
    p->n_prefill_seqs++;
    p->n_prefill_tokens += n;
    if (pos < q->n_peak)
        s->stats.recomputed_tokens += (q->n_done < q->n_peak ? q->n_done : q->n_peak) - pos;
    q->fresh = true;
    s->needs[s->n_needs++] = i;
    if (!complete) return;
    prefill_remove(s, i);
    q->state = ROSE_SEQ_DECODE;
    set_check(s, q);
    q->index = s->n_decode;
    s->decode[s->n_decode++] = i;
}

/* How many of the guessed ids of q get a row, if there are `spare` rows. */
static uint32_t n_checked(rose_sched *s, rose_seq *q, uint32_t spare)
{
    const uint32_t n = q->n_guess < spare ? q->n_guess : spare;
    if (n == 0) return 0;
    const uint32_t n_rows = grow_piece(s, q, 1 + n); /* there is a page for the first */
    set_check(s, q);
    return n_rows - 1;
}

/* Plans one row for each of the first n sequences of decode[] that may sample, and more for those
 * with a guess, out of half of the rows that are left. If there are not enough rows, it continues
 * where the last step stopped. */
static void plan_decodes(rose_sched *s, rose_sched_plan *p, uint32_t n)
{
    uint32_t left = s->step_rows - p->n_tokens, spare = left > n ? (left - n) / 2 : 0;
    uint32_t k = left < n ? s->decode_start % n : 0;
    for (uint32_t n_seen = 0; n_seen < n && left > 0; n_seen++) {
        uint32_t i = s->decode[k];
        rose_seq *q = &s->seqs[i];
        if (++k == n) k = 0;
        if (q->held || q->checked) continue;
        const uint32_t n_guess = n_checked(s, q, spare);
        spare -= n_guess;
        plan_rows(s, p, i, 1, n_guess);
        /* rose_sched_accept looks at a sequence with a guess */
        if (n_guess == 0 && (q->n_done == q->check_at || q->n_known == q->n_max))
            s->needs[s->n_needs++] = i;
        left -= 1 + n_guess;
    }
    s->decode_start = k;
}

bool rose_sched_next(rose_sched *s, rose_sched_plan *out)
{
    rose_sched_plan p = {.items = s->items, .admitted = s->admitted};
    settle(s, &p);
    index_generated(s);
    rose_sched_steer(s);
    uint32_t n_decode =
        s->n_decode; /* sequences whose prompt ends in this step decode from the next step on */
    bool admit = s->waiting.n_waiting > 0 && p.n_preempted == 0;
    if (admit && s->o.prefix_cache) rose_sched_pending_begin(s);
    if (s->o.decode_first) plan_decodes(s, &p, n_decode);
    for (uint32_t i = s->prefill_first, next; i != NONE; i = next) {
        const rose_seq *q = &s->seqs[i];
        uint32_t left = rose_sched_prefill_left(s, &p);
        if (left == 0) break;
        next = q->next;
        if (!rose_sched_must_wait(s, q, q->n_known - q->n_done, left))
            rose_sched_plan_prefill(s, &p, i);
    }
    if (admit) rose_sched_admit(s, &p);
    if (!s->o.decode_first) plan_decodes(s, &p, n_decode);
    *out = p;
    return p.n_items > 0;
}

/* ---- views ---- */

uint32_t rose_sched_cached_tokens(const rose_sched *s, uint32_t seq)
{
    return s->seqs[seq].n_cached;
}

uint32_t rose_sched_n_running(const rose_sched *s)
{
    return s->n_begun - s->n_preempted;
}

uint32_t rose_sched_n_waiting(const rose_sched *s)
{
    return s->waiting.n_waiting;
}

uint32_t rose_sched_n_preempted(const rose_sched *s)
{
    return s->n_preempted;
}

const rose_kv_prefix *rose_sched_prefix(const rose_sched *s)
{
    return s->prefix;
}

void rose_sched_catch_up(rose_sched *s, uint32_t n)
{
    rose_kv_prefix_catch_up(s->prefix, n);
}

rose_sched_stats rose_sched_get_stats(const rose_sched *s)
{
    rose_sched_stats st = s->stats;
    st.evictions = rose_kv_prefix_n_evicted(s->prefix);
    return st;
}
