/* kv/pages.c - see pages.h. A stack of free ids, and a reference count per page. Owned by the
 * engine thread. It knows nothing about tokens, sequences or prefixes. */
#include "kv/pages.h"

#include <assert.h>
#include <stdlib.h>

struct rose_kv_pages {
    uint32_t n_pages;
    uint32_t n_free;
    uint32_t *free_ids; /* [n_pages], owned; free_ids[0..n_free) are free; the last is taken next */
    uint32_t *refs;     /* [n_pages], owned */
};

rose_status rose_kv_pages_create(rose_kv_pages **out, uint32_t n_pages, rose_err *err)
{
    *out = NULL;
    if (n_pages == 0 || n_pages > INT32_MAX)
        return rose_fail(err, ROSE_E_INVAL, "KV pool of %u pages: 1 to %d are possible", n_pages,
                         INT32_MAX);
    rose_kv_pages *p = calloc(1, sizeof *p);
    if (p != NULL) {
        p->free_ids = malloc((size_t)n_pages * sizeof *p->free_ids);
        p->refs = calloc(n_pages, sizeof *p->refs);
    }
    if (p == NULL || p->free_ids == NULL || p->refs == NULL) {
        rose_kv_pages_destroy(p);
        return rose_fail(err, ROSE_E_NOMEM, "KV pool of %u pages: out of memory", n_pages);
    }
    p->n_pages = p->n_free = n_pages;
    for (uint32_t i = 0; i < n_pages; i++)
        p->free_ids[i] = n_pages - 1 - i; /* a fresh pool gives 0, 1, 2, ... */
    *out = p;
    return ROSE_OK;
}

void rose_kv_pages_destroy(rose_kv_pages *p)
{
    if (p == NULL) return;
    free(p->free_ids);
    free(p->refs);
    free(p);
}

rose_status rose_kv_pages_take(rose_kv_pages *p, uint32_t *ids, uint32_t n)
{
    if (n > p->n_free) return ROSE_E_FULL;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = p->free_ids[--p->n_free];
        assert(p->refs[id] == 0);
        p->refs[id] = 1;
        ids[i] = id;
    }
    return ROSE_OK;
}

void rose_kv_pages_retain(rose_kv_pages *p, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert(ids[i] < p->n_pages && p->refs[ids[i]] > 0 && p->refs[ids[i]] < UINT32_MAX);
        p->refs[ids[i]]++;
    }
}

void rose_kv_pages_drop(rose_kv_pages *p, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert(ids[i] < p->n_pages && p->refs[ids[i]] > 0);
        if (--p->refs[ids[i]] == 0) p->free_ids[p->n_free++] = ids[i];
    }
}

uint32_t rose_kv_pages_n_free(const rose_kv_pages *p)
{
    return p->n_free;
}

uint32_t rose_kv_pages_total(const rose_kv_pages *p)
{
    return p->n_pages;
}

uint32_t rose_kv_pages_refs(const rose_kv_pages *p, uint32_t id)
{
    assert(id < p->n_pages);
    return p->refs[id];
}
