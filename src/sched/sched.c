/* sched/sched.c - see sched.h. Sequences sit in one array of nodes; a node is free, waiting,
 * prefilling (both: a doubly linked list in order of arrival, so that a cancel is O(1)) or decoding
 * (a dense array, walked each step; a finish moves the last entry into the hole, so the order of
 * the others, and with it the rows of the batch, stays put).
 * It does not know token ids, requests or time, and it never looks into a page. */
#include "sched/sched.h"

#include <assert.h>
#include <stdlib.h>

#define NONE UINT32_MAX
enum {
    LIMIT_SEQS = 4096,
    LIMIT_QUEUED = 65536,
    LIMIT_LEN = 1 << 28,
    LIMIT_PAGE = 1 << 16,
    LIMIT_ROWS = 1 << 24
};

typedef enum state { FREE, WAITING, PREFILL, DECODE } state;

typedef struct seq {
    state state;
    uint32_t prev, next; /* in the list of its state; next also chains the free nodes */
    uint32_t n_done, n_known, n_max;
    uint32_t lane;  /* PREFILL, DECODE: row of tables */
    uint32_t index; /* DECODE: place in decode[] */
} seq;

typedef struct list {
    uint32_t first, last;
} list;

struct rose_sched {
    rose_sched_opts o;
    rose_kv_pages *pages; /* borrowed */
    uint32_t stride;      /* pages of the longest sequence */
    uint32_t n_waiting, n_running, n_decode, n_free_lanes;
    uint32_t free_seq; /* chain of free nodes */
    list waiting, prefill;
    uint64_t n_tickets;
    /* all owned */
    seq *seqs;              /* [max_seqs + max_queued] */
    uint32_t *decode;       /* [max_seqs] */
    uint32_t *free_lanes;   /* [max_seqs] */
    uint32_t *tables;       /* [max_seqs][stride] page tables, by lane */
    uint32_t *n_pages;      /* [max_seqs] by lane */
    uint64_t *tickets;      /* [max_seqs] by lane */
    rose_sched_item *items; /* [max_seqs] */
    uint32_t *admitted;     /* [max_seqs] */
};

/* ---- lists ---- */

static void list_append(rose_sched *s, list *l, uint32_t i)
{
    s->seqs[i].prev = l->last;
    s->seqs[i].next = NONE;
    if (l->last != NONE)
        s->seqs[l->last].next = i;
    else
        l->first = i;
    l->last = i;
}

static void list_remove(rose_sched *s, list *l, uint32_t i)
{
    const seq *q = &s->seqs[i];
    if (q->prev != NONE)
        s->seqs[q->prev].next = q->next;
    else
        l->first = q->next;
    if (q->next != NONE)
        s->seqs[q->next].prev = q->prev;
    else
        l->last = q->prev;
}

/* ---- life ---- */

static rose_status check_opts(const rose_sched_opts *o, rose_err *err)
{
    if (o->max_seqs == 0 || o->max_seqs > LIMIT_SEQS)
        return rose_fail(err, ROSE_E_INVAL, "max_seqs is %u: 1 to %d are possible", o->max_seqs,
                         LIMIT_SEQS);
    if (o->max_step_tokens < o->max_seqs || o->max_step_tokens > LIMIT_ROWS)
        return rose_fail(err, ROSE_E_INVAL, "max_step_tokens is %u: %u (max_seqs) to %d possible",
                         o->max_step_tokens, o->max_seqs, LIMIT_ROWS);
    if (o->max_model_len < 2 || o->max_model_len > LIMIT_LEN)
        return rose_fail(err, ROSE_E_INVAL, "max_model_len is %u: 2 to %d are possible",
                         o->max_model_len, LIMIT_LEN);
    if (o->max_queued == 0 || o->max_queued > LIMIT_QUEUED)
        return rose_fail(err, ROSE_E_INVAL, "max_queued is %u: 1 to %d are possible", o->max_queued,
                         LIMIT_QUEUED);
    if (o->page_tokens == 0 || o->page_tokens > LIMIT_PAGE)
        return rose_fail(err, ROSE_E_INVAL, "page_tokens is %u: 1 to %d are possible",
                         o->page_tokens, LIMIT_PAGE);
    return ROSE_OK;
}

/* The last token is sampled but never computed, so it needs no place. */
static uint32_t pages_for(const rose_sched_opts *o, uint32_t n_tokens)
{
    return (n_tokens - 2) / o->page_tokens + 1;
}

rose_status rose_sched_create(rose_sched **out, const rose_sched_opts *o, rose_kv_pages *pages,
                              rose_err *err)
{
    *out = NULL;
    rose_status st = check_opts(o, err);
    if (st != ROSE_OK) return st;

    rose_sched *s = calloc(1, sizeof *s);
    if (s == NULL) return rose_fail(err, ROSE_E_NOMEM, "scheduler: out of memory");
    s->o = *o;
    s->pages = pages;
    s->stride = pages_for(o, o->max_model_len);
    /* nothing longer than the pool is ever admitted */
    if (s->stride > rose_kv_pages_total(pages)) s->stride = rose_kv_pages_total(pages);
    size_t n_seqs = (size_t)o->max_seqs + o->max_queued, n = o->max_seqs;
    s->seqs = calloc(n_seqs, sizeof *s->seqs);
    s->decode = calloc(n, sizeof *s->decode);
    s->free_lanes = calloc(n, sizeof *s->free_lanes);
    s->tables = calloc(n * s->stride, sizeof *s->tables); /* < 2^12 * 2^28: no overflow */
    s->n_pages = calloc(n, sizeof *s->n_pages);
    s->tickets = calloc(n, sizeof *s->tickets);
    s->items = calloc(n, sizeof *s->items);
    s->admitted = calloc(n, sizeof *s->admitted);
    if (s->seqs == NULL || s->decode == NULL || s->free_lanes == NULL || s->tables == NULL ||
        s->n_pages == NULL || s->tickets == NULL || s->items == NULL || s->admitted == NULL) {
        rose_sched_destroy(s);
        return rose_fail(err, ROSE_E_NOMEM, "scheduler of %u sequences: out of memory",
                         o->max_seqs);
    }
    s->waiting = s->prefill = (list){NONE, NONE};
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
    if (s->seqs != NULL && s->n_running > 0) {
        size_t n_seqs = (size_t)s->o.max_seqs + s->o.max_queued;
        for (uint32_t i = 0; i < n_seqs; i++) {
            if (s->seqs[i].state != FREE) rose_sched_finish(s, i);
        }
    }
    free(s->seqs);
    free(s->decode);
    free(s->free_lanes);
    free(s->tables);
    free(s->n_pages);
    free(s->tickets);
    free(s->items);
    free(s->admitted);
    free(s);
}

/* ---- events ---- */

rose_status rose_sched_check(const rose_sched_opts *o, uint32_t total_pages, uint32_t n_prompt,
                             uint32_t max_tokens, rose_err *err)
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
    uint32_t need = pages_for(o, n_prompt + max_tokens);
    if (need > total_pages)
        return rose_fail(err, ROSE_E_INVAL,
                         "%u prompt and %u output tokens need %u KV pages: the pool has %u",
                         n_prompt, max_tokens, need, total_pages);
    return ROSE_OK;
}

rose_status rose_sched_submit(rose_sched *s, uint32_t n_prompt, uint32_t max_tokens, uint32_t *seq_)
{
    *seq_ = NONE;
    rose_status st =
        rose_sched_check(&s->o, rose_kv_pages_total(s->pages), n_prompt, max_tokens, NULL);
    if (st != ROSE_OK) return st;
    if (s->n_waiting == s->o.max_queued) return ROSE_E_FULL;
    uint32_t i = s->free_seq; /* there is one: at most max_seqs run */
    seq *q = &s->seqs[i];
    s->free_seq = q->next;
    q->state = WAITING;
    q->n_done = 0;
    q->n_known = n_prompt;
    q->n_max = n_prompt + max_tokens;
    list_append(s, &s->waiting, i);
    s->n_waiting++;
    *seq_ = i;
    return ROSE_OK;
}

static void leave_lane(rose_sched *s, const seq *q)
{
    rose_kv_pages_drop(s->pages, s->tables + (size_t)q->lane * s->stride, s->n_pages[q->lane]);
    s->free_lanes[s->n_free_lanes++] = q->lane;
    s->n_running--;
}

void rose_sched_finish(rose_sched *s, uint32_t i)
{
    seq *q = &s->seqs[i];
    switch (q->state) {
    case FREE:
        assert(!"finish of a free handle");
        return;
    case WAITING:
        list_remove(s, &s->waiting, i);
        s->n_waiting--;
        break;
    case PREFILL:
        list_remove(s, &s->prefill, i);
        leave_lane(s, q);
        break;
    case DECODE: {
        uint32_t moved = s->decode[--s->n_decode];
        s->decode[q->index] = moved;
        s->seqs[moved].index = q->index;
        leave_lane(s, q);
        break;
    }
    }
    q->state = FREE;
    q->next = s->free_seq;
    s->free_seq = i;
}

/* ---- the plan ---- */

/* Plan n rows of sequence i and count them as done. */
static void plan_rows(rose_sched *s, rose_sched_plan *p, uint32_t i, uint32_t n)
{
    seq *q = &s->seqs[i];
    rose_sched_item *it = &s->items[p->n_items++];
    it->seq = i;
    it->pos = q->n_done;
    it->n = n;
    it->ticket = s->tickets[q->lane];
    it->pages = s->tables + (size_t)q->lane * s->stride;
    it->n_pages = s->n_pages[q->lane];
    q->n_done += n;
    it->sample = q->n_done == q->n_known;
    if (it->sample) {
        q->n_known++;
        p->n_outputs++;
    }
    p->n_tokens += n;
}

/* A piece of the prompt of sequence i (PREFILL); a prompt that is complete decodes from now on. */
static void plan_prefill(rose_sched *s, rose_sched_plan *p, uint32_t i)
{
    seq *q = &s->seqs[i];
    uint32_t n = q->n_known - q->n_done, left = s->o.max_step_tokens - p->n_tokens;
    if (s->o.chunked_prefill && s->o.prefill_chunk_size != 0 && n > s->o.prefill_chunk_size)
        n = s->o.prefill_chunk_size;
    if (n > left) n = left;
    bool complete = n == q->n_known - q->n_done;
    plan_rows(s, p, i, n);
    if (!complete) return;
    list_remove(s, &s->prefill, i);
    q->state = DECODE;
    q->index = s->n_decode;
    s->decode[s->n_decode++] = i;
}

/* The longest-waiting sequence starts, if it can. */
static bool admit(rose_sched *s, rose_sched_plan *p)
{
    uint32_t i = s->waiting.first;
    if (i == NONE || s->n_free_lanes == 0 || p->n_tokens == s->o.max_step_tokens) return false;
    seq *q = &s->seqs[i];
    if (!s->o.chunked_prefill && q->n_known > s->o.max_step_tokens - p->n_tokens) return false;
    uint32_t lane = s->free_lanes[s->n_free_lanes - 1], n = pages_for(&s->o, q->n_max);
    if (rose_kv_pages_take(s->pages, s->tables + (size_t)lane * s->stride, n) != ROSE_OK)
        return false;
    s->n_free_lanes--;
    s->n_pages[lane] = n;
    s->tickets[lane] = ++s->n_tickets;
    list_remove(s, &s->waiting, i);
    s->n_waiting--;
    s->n_running++;
    q->state = PREFILL;
    q->lane = lane;
    list_append(s, &s->prefill, i);
    s->admitted[p->n_admitted++] = i;
    return true;
}

bool rose_sched_next(rose_sched *s, rose_sched_plan *out)
{
    rose_sched_plan p = {.items = s->items, .admitted = s->admitted};
    for (uint32_t k = 0; k < s->n_decode; k++) {
        const seq *q = &s->seqs[s->decode[k]];
        if (q->n_known < q->n_max) plan_rows(s, &p, s->decode[k], 1);
    }
    for (uint32_t i = s->prefill.first, next; i != NONE; i = next) {
        if (p.n_tokens == s->o.max_step_tokens) break;
        next = s->seqs[i].next;
        plan_prefill(s, &p, i);
    }
    while (admit(s, &p))
        plan_prefill(s, &p, s->admitted[p.n_admitted - 1]);
    *out = p;
    return p.n_items > 0;
}

uint32_t rose_sched_n_running(const rose_sched *s)
{
    return s->n_running;
}

uint32_t rose_sched_n_waiting(const rose_sched *s)
{
    return s->n_waiting;
}
