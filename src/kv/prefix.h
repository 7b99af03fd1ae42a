/* kv/prefix.h - finds the pages that hold given tokens. It is an index over page-aligned prefixes
 * of prompts and of generated text, so that a prefix is computed only once.
 *
 * It is a trie. A node is (parent, the ids of page_tokens tokens). The parent of a root is
 * ROSE_KV_NONE and a salt, which keeps tenants apart. A node is found through a keyed hash and
 * always compared by parent, salt and ids. It names the page of its tokens in each pool, or none:
 * in a pool with a window a node may have lost its page, while other nodes need only its place.
 *
 * The index holds one reference to each of its pages. A page that only the index holds is idle and
 * may be evicted, in each pool the least recently used first. A sequence holds the last node of its
 * path. A node without children, without holder and without page in pool 0 goes, and its other
 * pages are free. In a pool without window whoever holds a node's page also holds those of its
 * ancestors (acquire and share require this), so an ancestor is evicted after its children.
 *
 * Sequences take pages and give them back through this file, because eviction happens here. A
 * page in the index is never written again. Threads: owned by the engine thread. Memory:
 * allocates in _create only: 4 * page_tokens + 88 bytes a node, 12 a page.
 *
 * A watcher can follow which nodes the index holds (rose_kv_watch). It may refuse a report for
 * want of room; then the index makes its reports up later (rose_kv_prefix_catch_up). */
#ifndef ROSE_KV_PREFIX_H
#define ROSE_KV_PREFIX_H

#include <stdbool.h>

#include "kv/pages.h"

#define ROSE_KV_NONE UINT32_MAX /* no node, or no page */

enum { ROSE_KV_MAX_POOLS = 4 };

typedef struct rose_kv_prefix_opts {
    bool enabled;         /* false: nothing is ever inserted into the index; take and release
                           * only use the pool */
    uint32_t page_tokens; /* 1 .. 2^16 */
    uint32_t max_idle;    /* limit of the idle pages that each pool keeps; 0 = no limit */
    uint32_t n_nodes;     /* at most; 0 = as many as the first pool has pages */
    uint32_t n_pools;     /* 1 .. ROSE_KV_MAX_POOLS */
    rose_kv_pages *pools[ROSE_KV_MAX_POOLS]; /* borrowed, outlive the index */
    uint64_t hash_key[2];                    /* random; it changes no result */
} rose_kv_prefix_opts;

typedef struct rose_kv_salt {
    uint64_t word[2]; /* {0, 0} = the common one */
} rose_kv_salt;

typedef struct rose_kv_prefix rose_kv_prefix;

/* A node of the index, as a watcher sees it. key is a chain hash: it depends on the ids of
 * the node, on those of its ancestors and on the salt, and on nothing else. So the same text has
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
 * nodes again. */
typedef struct rose_kv_watch {
    bool (*stored)(void *arg, const rose_kv_stored *page);
    bool (*removed)(void *arg, uint64_t key);
    bool (*cleared)(void *arg); /* forget all pages */
    void *arg;                  /* borrowed */
} rose_kv_watch;

/* Errors: INVAL, NOMEM. */
rose_status rose_kv_prefix_create(rose_kv_prefix **out, const rose_kv_prefix_opts *o,
                                  rose_err *err);
void rose_kv_prefix_destroy(rose_kv_prefix *x); /* accepts NULL; gives its references back */

/* Computes the hash that find and insert take. salt counts for a root only. ids: [page_tokens]. */
uint64_t rose_kv_prefix_hash(const rose_kv_prefix *x, uint32_t parent, rose_kv_salt salt,
                             const uint32_t *ids);

/* Returns the child of parent with exactly these ids, or ROSE_KV_NONE. */
uint32_t rose_kv_prefix_find(const rose_kv_prefix *x, uint64_t hash, uint32_t parent,
                             rose_kv_salt salt, const uint32_t *ids);

/* Inserts a child of parent, which has no pages yet. The caller holds parent, and find() has just
 * said that there is no such node. Returns it, or ROSE_KV_NONE if there is no room. The caller then
 * holds it. */
uint32_t rose_kv_prefix_insert(rose_kv_prefix *x, uint64_t hash, uint32_t parent, rose_kv_salt salt,
                               const uint32_t *ids);

/* The page of a node in a pool, or ROSE_KV_NONE. */
uint32_t rose_kv_prefix_page(const rose_kv_prefix *x, uint32_t node, uint32_t pool);

/* The caller has a page with the tokens of a node that it holds, and nobody writes it any more. If
 * the node has none, it gets this one. Else the caller's reference moves to the node's page, whose
 * bits are the same. Returns the caller's page. */
uint32_t rose_kv_prefix_share(rose_kv_prefix *x, uint32_t node, uint32_t pool, uint32_t page);

/* Moves one hold from a node to another. Either may be ROSE_KV_NONE. */
void rose_kv_prefix_move(rose_kv_prefix *x, uint32_t from, uint32_t to);

/* Takes a reference to the pages at places [from, n) of the path of n nodes that ends with `node`,
 * and writes them to table[from .. n). The caller holds the node; all of these pages are there. */
void rose_kv_prefix_acquire(rose_kv_prefix *x, uint32_t node, uint32_t n, uint32_t pool,
                            uint32_t from, uint32_t *table);

/* Takes n fresh pages for writing and evicts idle ones as needed. All or nothing: FULL. */
rose_status rose_kv_prefix_take(rose_kv_prefix *x, uint32_t pool, uint32_t *ids, uint32_t n);

/* Drops one reference of each of pages[0..n), in order of position. Pages in the index become
 * idle; the others become free. */
void rose_kv_prefix_release(rose_kv_prefix *x, uint32_t pool, const uint32_t *pages, uint32_t n);

/* Sets the watcher, before the first insert. w: copied; NULL = none. */
void rose_kv_prefix_set_watch(rose_kv_prefix *x, const rose_kv_watch *w);

/* True if the watcher does not yet know all nodes. */
bool rose_kv_prefix_is_behind(const rose_kv_prefix *x);

/* Reports nodes that the watcher does not know, at most n of them less those that it passes because
 * they are known. A path is first followed up to its first unknown node, which is not counted. Call
 * it once a step: it costs nothing if the watcher knows all nodes. */
void rose_kv_prefix_catch_up(rose_kv_prefix *x, uint32_t n);

uint32_t rose_kv_prefix_n_idle(const rose_kv_prefix *x, uint32_t pool);
uint32_t rose_kv_prefix_n_cached(const rose_kv_prefix *x);  /* nodes */
uint64_t rose_kv_prefix_n_evicted(const rose_kv_prefix *x); /* pages so far */
/* Changes when a node or a page of an old node comes or goes, except by insert. So a remembered
 * path stays as it was while this number does not change. Never 0. */
uint64_t rose_kv_prefix_version(const rose_kv_prefix *x);
/* What take could give: free + idle. */
uint32_t rose_kv_prefix_n_available(const rose_kv_prefix *x, uint32_t pool);

/* For tests: checks the whole index; false = the index contradicts itself. */
bool rose_kv_prefix_sound(const rose_kv_prefix *x);

#endif
