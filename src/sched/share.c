/* sched/share.c - the scheduler's use of the prefix index: entering pages, finding a prompt's
 * path, and the set of pages that are being computed. It reads token ids only through the
 * callback of the options, one page at a time. */
#include <stdlib.h>
#include <string.h>

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
    uint32_t pt = s->o.page_tokens;
    if (!s->o.prefix_cache) return;
    for (; q->n_done - q->n_indexed * pt >= pt; q->n_indexed++) {
        uint64_t h = read_page(s, i, q->n_indexed, q->node);
        uint32_t node = rose_kv_prefix_find(s->prefix, h, q->node, q->salt, s->ids);
        if (node == ROSE_KV_NONE)
            node = rose_kv_prefix_insert(s->prefix, h, q->node, q->salt, s->ids);
        if (node == ROSE_KV_NONE) return;
        rose_kv_prefix_move(s->prefix, q->node, node);
        q->node = node;
        /* If another sequence has computed the page too, with the same bits, one page is enough.
         * Holding the index's own pages keeps its order of eviction right. */
        for (uint32_t k = 0; k < s->o.n_pools; k++) {
            uint32_t *page = &rose_sched_table(s, q, k)[q->n_indexed];
            if (q->n_indexed >= q->own[k].from)
                *page = rose_kv_prefix_share(s->prefix, node, k, *page);
        }
    }
}

void rose_sched_match(rose_sched *s, uint32_t i)
{
    rose_seq *q = &s->seqs[i];
    uint64_t version = rose_kv_prefix_version(s->prefix);
    /* the last known token is always computed, because its logits are needed */
    uint32_t limit = q->no_lookup ? 0 : (q->n_known - 1) / s->o.page_tokens;
    if (q->match_version != version) {
        q->match_version = version;
        q->match_n = q->walk_n = 0;
        q->node = q->walk_node = ROSE_KV_NONE;
        memset(q->run, 0, sizeof q->run);
    }
    while (q->walk_n < limit) {
        uint64_t h = read_page(s, i, q->walk_n, q->walk_node);
        uint32_t node = rose_kv_prefix_find(s->prefix, h, q->walk_node, q->salt, s->ids);
        bool whole = true;
        if (q->walk_n == q->match_n) q->next_hash = h;
        if (node == ROSE_KV_NONE) break;
        q->walk_node = node;
        q->walk_n++;
        for (uint32_t k = 0; k < s->o.n_pools; k++) {
            const bool there = rose_kv_prefix_page(s->prefix, node, k) != ROSE_KV_NONE;
            q->run[k] = there ? q->run[k] + 1 : 0;
            if (q->walk_n - q->run[k] > rose_sched_keeps(&s->o, k, q->walk_n * s->o.page_tokens))
                whole = false;
        }
        if (!whole) continue;
        q->match_n = q->walk_n;
        q->node = node;
    }
    q->match_miss = q->match_n < limit;
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
    uint64_t h = read_page(s, i, k, q->node);
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
        if (!rose_sched_must_wait(s, q, q->n_known - q->n_done, s->step_rows))
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
