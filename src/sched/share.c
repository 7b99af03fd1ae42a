/* sched/share.c - the scheduler's use of the prefix index: entering pages, finding a prompt's
 * path, and the set of pages that are being computed. It reads token ids only through the
 * callback of the options, one page at a time. */
#include <stdlib.h>

#include "sched/sched_internal.h"

/* Reads the ids of page k of sequence i, and returns their hash after parent. */
static uint64_t read_page(rose_sched *s, uint32_t i, uint32_t k, uint32_t parent)
{
    uint32_t pt = s->o.page_tokens;
    s->o.ids(s->o.ids_user, i, k * pt, pt, s->ids);
    return rose_kv_prefix_hash(s->prefix, parent, s->seqs[i].salt, s->ids);
}

void rose_sched_index_pages(rose_sched *s, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    uint32_t *table = rose_sched_table(s, q), pt = s->o.page_tokens;
    if (!s->o.prefix_cache) return;
    for (; q->n_done - q->n_indexed * pt >= pt; q->n_indexed++) {
        uint32_t k = q->n_indexed, parent = k > 0 ? table[k - 1] : ROSE_KV_NO_PAGE;
        uint64_t h = read_page(s, i, k, parent);
        uint32_t same = rose_kv_prefix_find(s->prefix, h, parent, q->salt, s->ids);
        if (same == ROSE_KV_NO_PAGE) {
            rose_kv_prefix_insert(s->prefix, h, parent, q->salt, s->ids, table[k]);
            continue;
        }
        /* Two sequences computed the page at the same time, with the same bits, so one page is
         * enough. Holding the index's own pages keeps its order of eviction right. */
        rose_kv_prefix_acquire(s->prefix, &same, 1);
        rose_kv_prefix_release(s->prefix, &table[k], 1);
        table[k] = same;
        s->tickets[q->lane] = ++s->n_tickets;
    }
}

void rose_sched_match(rose_sched *s, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    uint64_t evicted = rose_kv_prefix_n_evicted(s->prefix);
    /* the last known token is always computed, because its logits are needed */
    uint32_t limit = q->no_lookup ? 0 : (q->n_known - 1) / s->o.page_tokens;
    if (q->match_evicted != evicted) {
        q->match_evicted = evicted;
        q->match_n = 0;
        q->match_page = ROSE_KV_NO_PAGE;
    }
    q->match_miss = false;
    while (q->match_n < limit) {
        q->next_hash = read_page(s, i, q->match_n, q->match_page);
        uint32_t page =
            rose_kv_prefix_find(s->prefix, q->next_hash, q->match_page, q->salt, s->ids);
        if (page == ROSE_KV_NO_PAGE) {
            q->match_miss = true;
            return;
        }
        q->match_page = page;
        q->match_n++;
    }
}

/* ---- pages that are being computed ---- */

bool rose_sched_pending_create(rose_sched_pending *t, uint32_t max_seqs)
{
    size_t n = 4;
    while (n < (size_t)max_seqs * 4)
        n *= 2;
    *t = (rose_sched_pending){.mask = (uint32_t)(n - 1)};
    t->hashes = calloc(n, sizeof *t->hashes);
    t->marks = calloc(n, sizeof *t->marks);
    return t->hashes != NULL && t->marks != NULL;
}

void rose_sched_pending_destroy(rose_sched_pending *t)
{
    free(t->hashes);
    free(t->marks);
}

/* Returns the slot of h, or the free slot where it belongs. At most max_seqs of the slots are in
 * use. */
static uint32_t slot(const rose_sched_pending *t, uint64_t h)
{
    uint32_t i = (uint32_t)h & t->mask;
    while (t->marks[i] == t->mark && t->hashes[i] != h)
        i = (i + 1) & t->mask;
    return i;
}

void rose_sched_pending_add(rose_sched *s, uint32_t i)
{
    const rose_seq *q = &s->seqs[i];
    uint32_t k = q->n_indexed;
    /* the last id of a preempted sequence may not be known yet */
    uint32_t known = q->n_known > q->n_prompt ? q->n_known - 1 : q->n_known;
    if (known - k * s->o.page_tokens < s->o.page_tokens) return; /* no full page to come */
    uint64_t h = read_page(s, i, k, k > 0 ? rose_sched_table(s, q)[k - 1] : ROSE_KV_NO_PAGE);
    uint32_t at = slot(&s->pending, h);
    s->pending.hashes[at] = h;
    s->pending.marks[at] = s->pending.mark;
}

void rose_sched_pending_begin(rose_sched *s)
{
    s->pending.mark++; /* forgets all */
    for (uint32_t i = s->prefill_first; i != ROSE_SCHED_NONE; i = s->seqs[i].next) {
        const rose_seq *q = &s->seqs[i];
        /* nobody waits for the pages of a sequence that waits itself */
        if (!rose_sched_must_wait(s, q, q->n_known - q->n_done, s->o.max_step_tokens))
            rose_sched_pending_add(s, i);
    }
}

bool rose_sched_pending_has(const rose_sched *s, uint32_t i)
{
    const rose_seq *q = &s->seqs[i];
    /* a wrong match of the hash only costs a wait, which ends when the other sequence has its
     * page */
    return q->match_miss && s->pending.marks[slot(&s->pending, q->next_hash)] == s->pending.mark;
}
