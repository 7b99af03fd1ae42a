/* kv/pages.h - the allocator of KV pages. It counts who holds each page; the bytes of the pages
 * are in the backend. One page has ROSE_KV_PAGE_TOKENS tokens (backend.h) of K and V for every
 * layer. Pages are reference-counted, so that sequences may share a prompt prefix. The scheduler
 * decides about copy-on-write. Threads: owned by the engine thread, not thread-safe.  Memory:
 * allocates in _create only. */
#ifndef ROSE_KV_PAGES_H
#define ROSE_KV_PAGES_H

#include <stdint.h>

#include "base/status.h"

typedef struct rose_kv_pages rose_kv_pages;

/* Creates a pool of n_pages free pages (1 .. 2^31 - 1), 8 bytes of memory each. Errors:
 * ROSE_E_INVAL (n_pages), ROSE_E_NOMEM; then *out is NULL and err says why. */
rose_status rose_kv_pages_create(rose_kv_pages **out, uint32_t n_pages, rose_err *err);
void rose_kv_pages_destroy(rose_kv_pages *p); /* accepts NULL */

/* Takes n pages, each with one reference, and writes their ids to ids[0..n), which the caller
 * owns. The page that was freed last is taken first, because it is the most likely to be in the
 * caches. All or nothing: ROSE_E_FULL takes none, is normal and sets no message. Token path:
 * O(n), no allocation, no lock. */
rose_status rose_kv_pages_take(rose_kv_pages *p, uint32_t *ids, uint32_t n);

/* Adds one reference to each of ids[0..n), all of them taken pages. */
void rose_kv_pages_retain(rose_kv_pages *p, const uint32_t *ids, uint32_t n);

/* Drops one reference of each of ids[0..n). A page whose count reaches 0 is free at once. */
void rose_kv_pages_drop(rose_kv_pages *p, const uint32_t *ids, uint32_t n);

uint32_t rose_kv_pages_n_free(const rose_kv_pages *p);
uint32_t rose_kv_pages_total(const rose_kv_pages *p);
uint32_t rose_kv_pages_refs(const rose_kv_pages *p, uint32_t id); /* 0 = free */

#endif
