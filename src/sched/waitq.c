/* sched/waitq.c - see waitq.h. The height of a node is a function of its order number, so the
 * same events build the same list. */
#include "sched/waitq.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define END ROSE_WAITQ_END

bool rose_waitq_create(rose_waitq *q, uint32_t n)
{
    *q = (rose_waitq){.n = n};
    q->nodes = calloc((size_t)n + 1, sizeof *q->nodes);
    if (q->nodes == NULL) return false;
    memset(q->nodes[n].next, 0xff, sizeof q->nodes[n].next);
    return true;
}

void rose_waitq_destroy(rose_waitq *q)
{
    free(q->nodes);
    q->nodes = NULL;
}

static bool before(const rose_waitq_node *a, int64_t key, uint64_t order)
{
    return a->key != key ? a->key < key : a->order < order;
}

/* Finds the last node before (key, order) on each level. */
static void find(const rose_waitq *q, int64_t key, uint64_t order, uint32_t *prev)
{
    uint32_t at = q->n;
    for (uint32_t l = ROSE_WAITQ_LEVELS; l-- > 0;) {
        uint32_t next = q->nodes[at].next[l];
        while (next != END && before(&q->nodes[next], key, order)) {
            at = next;
            next = q->nodes[at].next[l];
        }
        prev[l] = at;
    }
}

/* Returns a node's height; a quarter of the nodes reaches each next level. */
static uint32_t height(uint64_t order)
{
    uint64_t h = order * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t n = 1;
    for (h ^= h >> 32; n < ROSE_WAITQ_LEVELS && (h & 3) == 0; h >>= 2)
        n++;
    return n;
}

void rose_waitq_insert(rose_waitq *q, uint32_t i, int64_t key, uint64_t order)
{
    uint32_t prev[ROSE_WAITQ_LEVELS], n = height(order);
    rose_waitq_node *d = &q->nodes[i];
    find(q, key, order, prev);
    d->key = key;
    d->order = order;
    for (uint32_t l = 0; l < n; l++) {
        d->next[l] = q->nodes[prev[l]].next[l];
        q->nodes[prev[l]].next[l] = i;
    }
    q->n_waiting++;
}

void rose_waitq_remove(rose_waitq *q, uint32_t i)
{
    uint32_t prev[ROSE_WAITQ_LEVELS];
    const rose_waitq_node *d = &q->nodes[i];
    uint32_t n = height(d->order);
    find(q, d->key, d->order, prev);
    for (uint32_t l = 0; l < n; l++) {
        assert(q->nodes[prev[l]].next[l] == i);
        q->nodes[prev[l]].next[l] = d->next[l];
    }
    q->n_waiting--;
}

uint32_t rose_waitq_first(const rose_waitq *q)
{
    return q->nodes[q->n].next[0];
}

uint32_t rose_waitq_next(const rose_waitq *q, uint32_t i)
{
    return q->nodes[i].next[0];
}
