/* kv/pages.h - paged KV allocator: who owns which page. Page bytes live in the backend, not here.
 * One page = ROSE_KV_PAGE_TOKENS tokens (backend.h) of K and V for every layer. Pages are
 * reference-counted so that sequences may share a prompt prefix; copy-on-write is the scheduler's
 * decision, not ours.
 * Threads: owned by the engine thread, not thread-safe.  Memory: allocates in _create only. */
#ifndef ROSE_KV_PAGES_H
#define ROSE_KV_PAGES_H

#include <stdint.h>

#include "base/status.h"

typedef struct rose_kv_pages rose_kv_pages;

/* Create a pool of n_pages free pages (1 .. 2^31 - 1), 8 bytes of memory each.
 * Errors: ROSE_E_INVAL (n_pages), ROSE_E_NOMEM; then *out is NULL and err says why. */
rose_status rose_kv_pages_create(rose_kv_pages **out, uint32_t n_pages, rose_err *err);
void rose_kv_pages_destroy(rose_kv_pages *p); /* accepts NULL */

/* Take n pages, each with one reference; writes their ids to ids[0..n), caller-owned. The page that
 * was freed last is taken first: it is the one most likely in the caches.
 * All or nothing: ROSE_E_FULL takes none, is normal and sets no message.
 * Token path: O(n), no allocation, no lock. */
rose_status rose_kv_pages_take(rose_kv_pages *p, uint32_t *ids, uint32_t n);

/* One more reference to each of ids[0..n), all of them taken pages. */
void rose_kv_pages_retain(rose_kv_pages *p, const uint32_t *ids, uint32_t n);

/* Drop one reference from each of ids[0..n); a page whose count reaches 0 is free at once. */
void rose_kv_pages_drop(rose_kv_pages *p, const uint32_t *ids, uint32_t n);

uint32_t rose_kv_pages_n_free(const rose_kv_pages *p);
uint32_t rose_kv_pages_total(const rose_kv_pages *p);
uint32_t rose_kv_pages_refs(const rose_kv_pages *p, uint32_t id); /* 0 = free */

#endif
