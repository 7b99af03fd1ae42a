/* kv/prefix.c - see prefix.h. All nodes are in one array, so that nothing is allocated later. Used
 * nodes are in hash buckets, the others in a chain. For each page of a pool there is a slot: the
 * node that names the page and, while it is idle, its place in the list of idle pages in the order
 * in which they became idle. A path is released from its end, so in a pool without window a child
 * comes before its parent in that list, and the first page is always that of a leaf.
 *
 * Each node stores the epoch in which the watcher was told of it. A new epoch therefore makes all
 * nodes unknown to the watcher at once. A cursor then goes round the nodes and reports them. */
#include "kv/prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/siphash.h"

#define NONE ROSE_KV_NONE

enum { LIMIT_PAGE_TOKENS = 1 << 16 };

typedef struct node {
    uint32_t bucket_next; /* chain of the bucket, or of the nodes that are not used */
    uint32_t parent;
    uint32_t n_children, n_holders;
    uint32_t page[ROSE_KV_MAX_POOLS];
    bool used;
    rose_kv_salt salt;
    uint64_t hash;
    uint64_t key;   /* for the watcher */
    uint32_t epoch; /* in which the watcher was told of the node; 0 = not yet */
    uint32_t down;  /* the next node of the path that report_path walks */
} node;

typedef struct slot {
    uint32_t node; /* that names the page, or NONE */
    uint32_t prev, next;
} slot;

typedef struct pool {
    rose_kv_pages *pages; /* borrowed */
    slot *slots;          /* [pages], owned; NULL when not enabled */
    uint32_t n_idle, max_idle;
    uint32_t first, last; /* idle; first = least recently used */
} pool;

struct rose_kv_prefix {
    rose_kv_prefix_opts o;
    pool pools[ROSE_KV_MAX_POOLS];
    uint32_t n_nodes, n_cached, mask;
    uint32_t free_node, newest; /* chain; the node that was inserted last */
    uint64_t n_evicted, version;
    rose_kv_watch watch; /* arg borrowed; all NULL = none */
    uint32_t epoch, n_reported, cursor;
    bool must_clear; /* a removal was lost, so the watcher must forget all nodes first */
    /* owned; NULL when not enabled */
    node *nodes;       /* [n_nodes] */
    uint32_t *ids;     /* [n_nodes][page_tokens] */
    uint32_t *buckets; /* [mask + 1] */
};

static bool create_pool(pool *p, rose_kv_pages *pages, const rose_kv_prefix_opts *o)
{
    const uint32_t n = rose_kv_pages_total(pages);
    *p = (pool){.pages = pages, .max_idle = o->max_idle, .first = NONE, .last = NONE};
    if (p->max_idle == 0) p->max_idle = n;
    if (!o->enabled) return true;
    p->slots = malloc((size_t)n * sizeof *p->slots);
    if (p->slots != NULL) memset(p->slots, 0xff, (size_t)n * sizeof *p->slots); /* NONE */
    return p->slots != NULL;
}

rose_status rose_kv_prefix_create(rose_kv_prefix **out, const rose_kv_prefix_opts *o, rose_err *err)
{
    *out = NULL;
    if (o->page_tokens == 0 || o->page_tokens > LIMIT_PAGE_TOKENS)
        return rose_fail(err, ROSE_E_INVAL, "page_tokens is %u: 1 to %d are possible",
                         o->page_tokens, LIMIT_PAGE_TOKENS);
    rose_kv_prefix *x = calloc(1, sizeof *x);
    if (x == NULL) return rose_fail(err, ROSE_E_NOMEM, "prefix index: out of memory");
    bool ok = true;
    x->o = *o;
    x->n_nodes = o->n_nodes != 0 ? o->n_nodes : rose_kv_pages_total(o->pools[0]);
    x->epoch = 1;
    x->version = 1;
    x->newest = NONE;
    for (uint32_t p = 0; p < o->n_pools; p++)
        ok = create_pool(&x->pools[p], o->pools[p], o) && ok;
    *out = x;
    if (!o->enabled) return ROSE_OK;

    size_t n_buckets = 1;
    while (n_buckets < x->n_nodes) /* < 2^31 */
        n_buckets *= 2;
    x->mask = (uint32_t)(n_buckets - 1);
    x->nodes = calloc(x->n_nodes, sizeof *x->nodes);
    /* < 2^31 * 2^16 * 4: no overflow in 64 bits */
    x->ids = malloc((size_t)x->n_nodes * o->page_tokens * sizeof *x->ids);
    x->buckets = malloc(n_buckets * sizeof *x->buckets);
    if (!ok || x->nodes == NULL || x->ids == NULL || x->buckets == NULL) {
        rose_kv_prefix_destroy(x);
        *out = NULL;
        return rose_fail(err, ROSE_E_NOMEM, "prefix index of %u nodes: out of memory", x->n_nodes);
    }
    for (uint32_t i = 0; i < x->n_nodes; i++)
        x->nodes[i].bucket_next = i + 1 < x->n_nodes ? i + 1 : NONE;
    memset(x->buckets, 0xff, n_buckets * sizeof *x->buckets);
    return ROSE_OK;
}

void rose_kv_prefix_destroy(rose_kv_prefix *x)
{
    if (x == NULL) return;
    for (uint32_t p = 0; p < x->o.n_pools; p++) {
        slot *slots = x->pools[p].slots;
        for (uint32_t i = 0; slots != NULL && i < rose_kv_pages_total(x->pools[p].pages); i++)
            if (slots[i].node != NONE) rose_kv_pages_drop(x->pools[p].pages, &i, 1);
        free(slots);
    }
    free(x->nodes);
    free(x->ids);
    free(x->buckets);
    free(x);
}

/* ---- the watcher ---- */

void rose_kv_prefix_set_watch(rose_kv_prefix *x, const rose_kv_watch *w)
{
    assert(x->n_cached == 0);
    x->watch = w != NULL ? *w : (rose_kv_watch){0};
}

static const uint32_t *ids_of(const rose_kv_prefix *x, uint32_t i)
{
    return x->ids + (size_t)i * x->o.page_tokens;
}

/* The keys must be the same in every process, so this hash has a constant key. */
static uint64_t key_of(const rose_kv_prefix *x, uint32_t parent, rose_kv_salt salt,
                       const uint32_t *ids)
{
    static const uint64_t constant[2] = {UINT64_C(0x726f73656b767061),
                                         UINT64_C(0x6765636861696e31)};
    rose_siphash h = rose_siphash_begin(constant);
    if (parent == NONE) {
        rose_siphash_word(&h, salt.word[0]);
        rose_siphash_word(&h, salt.word[1]);
    } else {
        rose_siphash_word(&h, x->nodes[parent].key);
    }
    for (uint32_t i = 0; i < x->o.page_tokens; i++)
        rose_siphash_word(&h, ids[i]);
    return rose_siphash_end(&h, 0, 0);
}

static bool is_reported(const rose_kv_prefix *x, uint32_t i)
{
    return x->nodes[i].epoch == x->epoch;
}

/* Reports one node, whose parent the watcher knows. */
static bool report(rose_kv_prefix *x, uint32_t i)
{
    node *d = &x->nodes[i];
    const rose_kv_stored stored = {.key = d->key,
                                   .parent_key = d->parent != NONE ? x->nodes[d->parent].key : 0,
                                   .root = d->parent == NONE,
                                   .salt = d->salt,
                                   .ids = ids_of(x, i)};
    if (!x->watch.stored(x->watch.arg, &stored)) return false;
    d->epoch = x->epoch;
    x->n_reported++;
    return true;
}

/* Reports a node and, before it, those of its ancestors that the watcher does not know, but no more
 * than *n nodes, and takes their number off *n. False: the node itself was not reported. */
static bool report_path(rose_kv_prefix *x, uint32_t i, uint32_t *n)
{
    uint32_t up = i;
    x->nodes[i].down = NONE;
    for (uint32_t parent; (parent = x->nodes[up].parent) != NONE && !is_reported(x, parent);) {
        x->nodes[parent].down = up;
        up = parent;
    }
    for (; up != NONE; up = x->nodes[up].down) {
        if (*n == 0 || !report(x, up)) return false;
        --*n;
    }
    return true;
}

static void watch_insert(rose_kv_prefix *x, uint32_t i)
{
    node *d = &x->nodes[i];
    if (x->watch.stored == NULL) return;
    d->key = key_of(x, d->parent, d->salt, ids_of(x, i));
    if (!x->must_clear && (d->parent == NONE || is_reported(x, d->parent))) (void)report(x, i);
}

static void watch_remove(rose_kv_prefix *x, uint32_t i)
{
    if (x->watch.stored == NULL || !is_reported(x, i)) return;
    x->nodes[i].epoch = 0;
    x->n_reported--;
    if (x->watch.removed(x->watch.arg, x->nodes[i].key)) return;
    x->epoch++; /* 2^32 losses do not happen */
    x->n_reported = 0;
    x->must_clear = true;
}

bool rose_kv_prefix_is_behind(const rose_kv_prefix *x)
{
    return x->watch.stored != NULL && (x->must_clear || x->n_reported < x->n_cached);
}

void rose_kv_prefix_catch_up(rose_kv_prefix *x, uint32_t n)
{
    if (!rose_kv_prefix_is_behind(x)) return;
    if (x->must_clear) {
        if (!x->watch.cleared(x->watch.arg)) return;
        x->must_clear = false;
    }
    while (n > 0 && x->n_reported < x->n_cached) {
        if (!x->nodes[x->cursor].used || is_reported(x, x->cursor))
            n--;
        else if (!report_path(x, x->cursor, &n))
            return;
        x->cursor = x->cursor + 1 < x->n_nodes ? x->cursor + 1 : 0;
    }
}

/* ---- find and insert ---- */

uint64_t rose_kv_prefix_hash(const rose_kv_prefix *x, uint32_t parent, rose_kv_salt salt,
                             const uint32_t *ids)
{
    rose_siphash h = rose_siphash_begin(x->o.hash_key);
    uint32_t i = 0, n = x->o.page_tokens;
    rose_siphash_word(&h, parent);
    if (parent == NONE) {
        rose_siphash_word(&h, salt.word[0]);
        rose_siphash_word(&h, salt.word[1]);
    }
    for (; i + 2 <= n; i += 2)
        rose_siphash_word(&h, (uint64_t)ids[i + 1] << 32 | ids[i]);
    return rose_siphash_end(&h, i < n ? ids[i] : 0, i < n ? 4 : 0);
}

static bool same_salt(rose_kv_salt a, rose_kv_salt b)
{
    return a.word[0] == b.word[0] && a.word[1] == b.word[1];
}

uint32_t rose_kv_prefix_find(const rose_kv_prefix *x, uint64_t hash, uint32_t parent,
                             rose_kv_salt salt, const uint32_t *ids)
{
    if (x->nodes == NULL) return NONE;
    for (uint32_t i = x->buckets[hash & x->mask]; i != NONE; i = x->nodes[i].bucket_next) {
        const node *d = &x->nodes[i];
        if (d->hash != hash || d->parent != parent) continue;
        if (parent == NONE && !same_salt(d->salt, salt)) continue;
        if (memcmp(ids_of(x, i), ids, x->o.page_tokens * sizeof *ids) == 0) return i;
    }
    return NONE;
}

uint32_t rose_kv_prefix_insert(rose_kv_prefix *x, uint64_t hash, uint32_t parent, rose_kv_salt salt,
                               const uint32_t *ids)
{
    if (x->n_cached == x->n_nodes || x->nodes == NULL) return NONE;
    const uint32_t i = x->free_node;
    node *d = &x->nodes[i];
    assert(parent == NONE || (x->nodes[parent].used && x->nodes[parent].n_holders > 0));
    x->free_node = d->bucket_next;
    memcpy(x->ids + (size_t)i * x->o.page_tokens, ids, x->o.page_tokens * sizeof *ids);
    *d = (node){.bucket_next = x->buckets[hash & x->mask],
                .parent = parent,
                .used = true,
                .salt = salt,
                .hash = hash};
    memset(d->page, 0xff, sizeof d->page); /* NONE */
    x->buckets[hash & x->mask] = i;
    if (parent != NONE) x->nodes[parent].n_children++;
    x->n_cached++;
    x->newest = i;
    watch_insert(x, i);
    return i;
}

uint32_t rose_kv_prefix_page(const rose_kv_prefix *x, uint32_t i, uint32_t p)
{
    return x->nodes[i].page[p];
}

/* ---- idle pages ---- */

static void idle_append(pool *l, uint32_t page)
{
    slot *d = &l->slots[page];
    d->prev = l->last;
    d->next = NONE;
    if (l->last != NONE)
        l->slots[l->last].next = page;
    else
        l->first = page;
    l->last = page;
    l->n_idle++;
}

static void idle_remove(pool *l, uint32_t page)
{
    const slot *d = &l->slots[page];
    if (d->prev != NONE)
        l->slots[d->prev].next = d->next;
    else
        l->first = d->next;
    if (d->next != NONE)
        l->slots[d->next].prev = d->prev;
    else
        l->last = d->prev;
    l->n_idle--;
}

/* Takes an idle page out of the index. */
static void lose_page(pool *l, uint32_t page)
{
    assert(rose_kv_pages_refs(l->pages, page) == 1);
    idle_remove(l, page);
    l->slots[page].node = NONE;
    rose_kv_pages_drop(l->pages, &page, 1);
}

/* Removes node i, and then its ancestors, as long as nothing needs them. */
static void prune(rose_kv_prefix *x, uint32_t i)
{
    for (uint32_t parent; i != NONE; i = parent) {
        node *d = &x->nodes[i];
        uint32_t *link = &x->buckets[d->hash & x->mask];
        if (d->n_children > 0 || d->n_holders > 0 || d->page[0] != NONE) return;
        for (uint32_t p = 1; p < x->o.n_pools; p++)
            if (d->page[p] != NONE) lose_page(&x->pools[p], d->page[p]);
        while (*link != i)
            link = &x->nodes[*link].bucket_next;
        *link = d->bucket_next;
        parent = d->parent;
        if (parent != NONE) x->nodes[parent].n_children--;
        watch_remove(x, i);
        d->used = false;
        d->bucket_next = x->free_node;
        x->free_node = i;
        x->n_cached--;
        x->version++;
    }
}

static void evict_first(rose_kv_prefix *x, uint32_t p)
{
    pool *l = &x->pools[p];
    const uint32_t page = l->first, i = l->slots[page].node;
    lose_page(l, page);
    x->nodes[i].page[p] = NONE;
    if (x->newest == i) x->newest = NONE;
    x->n_evicted++;
    x->version++;
    prune(x, i);
}

/* ---- references ---- */

static void retain(pool *l, uint32_t page)
{
    if (rose_kv_pages_refs(l->pages, page) == 1 && l->slots[page].node != NONE)
        idle_remove(l, page);
    rose_kv_pages_retain(l->pages, &page, 1);
}

uint32_t rose_kv_prefix_share(rose_kv_prefix *x, uint32_t i, uint32_t p, uint32_t page)
{
    pool *l = &x->pools[p];
    const uint32_t own = x->nodes[i].page[p];
    if (own != NONE) {
        retain(l, own);
        rose_kv_prefix_release(x, p, &page, 1);
        return own;
    }
    rose_kv_pages_retain(l->pages, &page, 1);
    l->slots[page].node = i;
    x->nodes[i].page[p] = page;
    x->version += i != x->newest; /* nobody remembers the newest yet */
    return page;
}

void rose_kv_prefix_move(rose_kv_prefix *x, uint32_t from, uint32_t to)
{
    if (to != NONE) x->nodes[to].n_holders++;
    if (from == NONE) return;
    x->nodes[from].n_holders--;
    prune(x, from);
}

void rose_kv_prefix_acquire(rose_kv_prefix *x, uint32_t i, uint32_t n, uint32_t p, uint32_t from,
                            uint32_t *table)
{
    for (uint32_t k = n; k-- > from; i = x->nodes[i].parent) {
        table[k] = x->nodes[i].page[p];
        retain(&x->pools[p], table[k]);
    }
}

rose_status rose_kv_prefix_take(rose_kv_prefix *x, uint32_t p, uint32_t *ids, uint32_t n)
{
    rose_kv_pages *pages = x->pools[p].pages;
    if (n > rose_kv_prefix_n_available(x, p)) return ROSE_E_FULL;
    while (rose_kv_pages_n_free(pages) < n)
        evict_first(x, p);
    return rose_kv_pages_take(pages, ids, n);
}

void rose_kv_prefix_release(rose_kv_prefix *x, uint32_t p, const uint32_t *ids, uint32_t n)
{
    pool *l = &x->pools[p];
    for (uint32_t k = n; k-- > 0;) {
        rose_kv_pages_drop(l->pages, &ids[k], 1);
        if (l->slots != NULL && l->slots[ids[k]].node != NONE &&
            rose_kv_pages_refs(l->pages, ids[k]) == 1)
            idle_append(l, ids[k]);
    }
    while (l->n_idle > l->max_idle)
        evict_first(x, p);
}

/* ---- views ---- */

uint32_t rose_kv_prefix_n_idle(const rose_kv_prefix *x, uint32_t p)
{
    return x->pools[p].n_idle;
}

uint32_t rose_kv_prefix_n_cached(const rose_kv_prefix *x)
{
    return x->n_cached;
}

uint64_t rose_kv_prefix_n_evicted(const rose_kv_prefix *x)
{
    return x->n_evicted;
}

uint64_t rose_kv_prefix_version(const rose_kv_prefix *x)
{
    return x->version;
}

uint32_t rose_kv_prefix_n_available(const rose_kv_prefix *x, uint32_t p)
{
    return rose_kv_pages_n_free(x->pools[p].pages) + x->pools[p].n_idle;
}

/* Checks that a node agrees with its pages, its parent and its own hash, that it is needed, and
 * that find() finds it. */
static bool sound_node(const rose_kv_prefix *x, uint32_t i)
{
    const node *d = &x->nodes[i];
    const uint32_t *ids = ids_of(x, i);
    for (uint32_t p = 0; p < x->o.n_pools; p++)
        if (d->page[p] != NONE && x->pools[p].slots[d->page[p]].node != i) return false;
    if (d->n_children == 0 && d->n_holders == 0 && d->page[0] == NONE) return false;
    if (d->parent != NONE &&
        (!x->nodes[d->parent].used || !same_salt(x->nodes[d->parent].salt, d->salt)))
        return false;
    return d->hash == rose_kv_prefix_hash(x, d->parent, d->salt, ids) &&
           rose_kv_prefix_find(x, d->hash, d->parent, d->salt, ids) == i;
}

/* Checks that the slots of pool p agree with the nodes and with the list of idle pages. */
static bool sound_pool(const rose_kv_prefix *x, uint32_t p)
{
    const pool *l = &x->pools[p];
    uint32_t n_idle = 0, n_listed = 0;
    for (uint32_t page = 0; page < rose_kv_pages_total(l->pages); page++) {
        const uint32_t i = l->slots[page].node, refs = rose_kv_pages_refs(l->pages, page);
        if (i == NONE) continue;
        if (refs == 0 || !x->nodes[i].used || x->nodes[i].page[p] != page) return false;
        n_idle += refs == 1;
    }
    for (uint32_t page = l->first; page != NONE; page = l->slots[page].next) {
        if (l->slots[page].node == NONE || rose_kv_pages_refs(l->pages, page) != 1 ||
            ++n_listed > n_idle)
            return false;
    }
    return n_idle == l->n_idle && n_listed == n_idle && n_idle <= l->max_idle;
}

bool rose_kv_prefix_sound(const rose_kv_prefix *x)
{
    uint32_t n_cached = 0, n_children = 0, n_roots = 0, n_reported = 0;
    if (x->nodes == NULL) return x->n_cached == 0;
    for (uint32_t p = 0; p < x->o.n_pools; p++)
        if (!sound_pool(x, p)) return false;
    for (uint32_t i = 0; i < x->n_nodes; i++) {
        const node *d = &x->nodes[i];
        if (!d->used) continue;
        if (!sound_node(x, i)) return false;
        n_cached++;
        n_children += d->n_children;
        n_roots += d->parent == NONE;
        if (!is_reported(x, i)) continue;
        if (x->must_clear || (d->parent != NONE && !is_reported(x, d->parent))) return false;
        n_reported++;
    }
    return n_cached == x->n_cached && n_children == n_cached - n_roots &&
           n_reported == x->n_reported;
}
