/* kv/prefix.h - finds the pages that hold given tokens. It is an index over page-aligned prefixes
 * of prompts and of generated text, so that a prefix is computed only once.
 *
 * It is a trie whose nodes are pages. A node is (parent page, the ids of its tokens). The parent of
 * a root is ROSE_KV_NO_PAGE and a salt, which keeps tenants apart. A node is found through a keyed
 * hash and always compared by parent, salt and ids.
 *
 * The index holds one reference to each of its pages. A page that only the index holds is idle and
 * may be evicted, the least recently used first. A sequence that holds a page of the index also
 * holds the page's ancestors (acquire and insert require this). So an ancestor is idle at least as
 * long as its children and is evicted after them.
 *
 * Sequences take pages and give them back through this file, because eviction happens here. A
 * page in the index is never written again. Threads: owned by the engine thread. Memory:
 * allocates in _create only, 4 * page_tokens + 72 bytes a page.
 *
 * A watcher can follow which pages the index holds (rose_kv_watch). It may refuse a report for
 * want of room; then the index makes its reports up later (rose_kv_prefix_catch_up). */
#ifndef ROSE_KV_PREFIX_H
#define ROSE_KV_PREFIX_H

#include <stdbool.h>

#include "kv/pages.h"

#define ROSE_KV_NO_PAGE UINT32_MAX

typedef struct rose_kv_prefix_opts {
    bool enabled;         /* false: nothing is ever inserted into the index; take and release
                           * only use the pool */
    uint32_t page_tokens; /* 1 .. 2^16 */
    uint32_t max_idle;    /* at most this many idle pages that are kept; 0 = the whole pool */
    uint64_t hash_key[2]; /* random; it changes no result */
} rose_kv_prefix_opts;

typedef struct rose_kv_salt {
    uint64_t word[2]; /* {0, 0} = the common one */
} rose_kv_salt;

typedef struct rose_kv_prefix rose_kv_prefix;

/* A page that the index holds, as a watcher sees it. key is a chain hash: it depends on the ids of
 * the page, on those of its ancestors and on the salt, and on nothing else. So the same text has
 * the same keys in every process. */
typedef struct rose_kv_stored {
    uint64_t key, parent_key; /* parent_key: 0 for a root */
    bool root;
    rose_kv_salt salt;
    const uint32_t *ids; /* [page_tokens] borrowed during the call */
} rose_kv_stored;

/* Functions that the index calls on the engine thread. They neither block nor allocate. Each
 * returns false if it has no room for the report. A parent is reported before its children, and
 * removed after them. After a lost removal the index calls cleared and then reports all of its
 * pages again. */
typedef struct rose_kv_watch {
    bool (*stored)(void *arg, const rose_kv_stored *page);
    bool (*removed)(void *arg, uint64_t key);
    bool (*cleared)(void *arg); /* forget all pages */
    void *arg;                  /* borrowed */
} rose_kv_watch;

/* pages: borrowed, outlives the index. Errors: INVAL, NOMEM. */
rose_status rose_kv_prefix_create(rose_kv_prefix **out, const rose_kv_prefix_opts *o,
                                  rose_kv_pages *pages, rose_err *err);
void rose_kv_prefix_destroy(rose_kv_prefix *x); /* accepts NULL; gives its references back */

/* Computes the hash that find and insert take. salt counts for a root only. ids: [page_tokens]. */
uint64_t rose_kv_prefix_hash(const rose_kv_prefix *x, uint32_t parent, rose_kv_salt salt,
                             const uint32_t *ids);

/* Returns the child of parent that holds exactly these ids, or ROSE_KV_NO_PAGE. Takes no
 * reference. */
uint32_t rose_kv_prefix_find(const rose_kv_prefix *x, uint64_t hash, uint32_t parent,
                             rose_kv_salt salt, const uint32_t *ids);

/* Inserts page as a child of parent. The caller holds both, parent is in the index, and nobody
 * writes page any more. find() has just said that no such page is there. */
void rose_kv_prefix_insert(rose_kv_prefix *x, uint64_t hash, uint32_t parent, rose_kv_salt salt,
                           const uint32_t *ids, uint32_t page);

/* Returns the parent of page in its path; ROSE_KV_NO_PAGE: page is a root. */
uint32_t rose_kv_prefix_parent(const rose_kv_prefix *x, uint32_t page);

/* Adds one reference to each of pages[0..n). They are a path of the index from the root on, or
 * the continuation of a path that the caller holds. */
void rose_kv_prefix_acquire(rose_kv_prefix *x, const uint32_t *pages, uint32_t n);

/* Takes n fresh pages for writing and evicts idle ones as needed. All or nothing: FULL. */
rose_status rose_kv_prefix_take(rose_kv_prefix *x, uint32_t *ids, uint32_t n);

/* Drops one reference of each of pages[0..n), in order of position. Pages in the index become
 * idle; the others become free. */
void rose_kv_prefix_release(rose_kv_prefix *x, const uint32_t *pages, uint32_t n);

/* Sets the watcher, before the first insert. w: copied; NULL = none. */
void rose_kv_prefix_set_watch(rose_kv_prefix *x, const rose_kv_watch *w);

/* True if the watcher does not yet know all pages. */
bool rose_kv_prefix_is_behind(const rose_kv_prefix *x);

/* Reports pages that the watcher does not know. Looks at no more than n pages, including those
 * that need no report, so that a long path does not delay a step. Call
 * once a step; costs nothing if the watcher knows all pages. */
void rose_kv_prefix_catch_up(rose_kv_prefix *x, uint32_t n);

uint32_t rose_kv_prefix_n_idle(const rose_kv_prefix *x);
uint32_t rose_kv_prefix_n_cached(const rose_kv_prefix *x); /* in the index, idle or not */
uint64_t rose_kv_prefix_n_evicted(
    const rose_kv_prefix *x); /* number of evictions so far; a remembered path stays valid while
                               * this number does not change */
uint32_t
rose_kv_prefix_n_available(const rose_kv_prefix *x); /* what take could give: free + idle */

/* For tests: checks the whole index; false = the index contradicts itself. */
bool rose_kv_prefix_sound(const rose_kv_prefix *x);

#endif
