/* kv/prefix.c - see prefix.h. There is one node per page of the pool, in arrays indexed by page
 * id, so that nothing is allocated later. Nodes are in hash buckets. Idle nodes are also in a
 * list, in the order in which they became idle. A path is released from its end, so a child
 * comes before its parent in that list, and the first node is always a leaf.
 *
 * Each node stores the epoch in which the watcher was told of it. A new epoch therefore makes all
 * pages unknown to the watcher at once. A cursor then goes round the pages and reports them. */
#include "kv/prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/siphash.h"

#define NONE ROSE_KV_NO_PAGE

enum { LIMIT_PAGE_TOKENS = 1 << 16 };

typedef struct node {
    uint32_t bucket_next; /* chain of the bucket */
    uint32_t parent;
    uint32_t n_children;
    uint32_t idle_prev, idle_next;
    bool cached, idle;
    rose_kv_salt salt;
    uint64_t hash;
    uint64_t key;   /* of the page, for the watcher */
    uint32_t epoch; /* in which the watcher was told of the page; 0 = not yet */
    uint32_t down;  /* the next page of the path that report_path walks */
} node;

struct rose_kv_prefix {
    rose_kv_prefix_opts o;
    rose_kv_pages *pages; /* borrowed */
    uint32_t n_pages, mask;
    uint32_t n_cached, n_idle;
    uint32_t idle_first, idle_last; /* first = least recently used */
    uint64_t n_evicted;
    rose_kv_watch watch; /* arg borrowed; all NULL = none */
    uint32_t epoch, n_reported, cursor;
    bool must_clear; /* a removal was lost, so the watcher must forget all pages first */
    /* owned; NULL when not enabled */
    node *nodes;       /* [n_pages] */
    uint32_t *ids;     /* [n_pages][page_tokens] */
    uint32_t *buckets; /* [mask + 1] */
};

rose_status rose_kv_prefix_create(rose_kv_prefix **out, const rose_kv_prefix_opts *o,
                                  rose_kv_pages *pages, rose_err *err)
{
    *out = NULL;
    if (o->page_tokens == 0 || o->page_tokens > LIMIT_PAGE_TOKENS)
        return rose_fail(err, ROSE_E_INVAL, "page_tokens is %u: 1 to %d are possible",
                         o->page_tokens, LIMIT_PAGE_TOKENS);
    rose_kv_prefix *x = calloc(1, sizeof *x);
    if (x == NULL) return rose_fail(err, ROSE_E_NOMEM, "prefix index: out of memory");
    x->o = *o;
    x->pages = pages;
    x->n_pages = rose_kv_pages_total(pages);
    if (x->o.max_idle == 0) x->o.max_idle = x->n_pages;
    x->idle_first = x->idle_last = NONE;
    x->epoch = 1;
    *out = x;
    if (!o->enabled) return ROSE_OK;

    size_t n_buckets = 1;
    while (n_buckets < x->n_pages) /* < 2^31 */
        n_buckets *= 2;
    x->mask = (uint32_t)(n_buckets - 1);
    x->nodes = calloc(x->n_pages, sizeof *x->nodes);
    /* < 2^31 * 2^16 * 4: no overflow in 64 bits */
    x->ids = malloc((size_t)x->n_pages * o->page_tokens * sizeof *x->ids);
    x->buckets = malloc(n_buckets * sizeof *x->buckets);
    if (x->nodes == NULL || x->ids == NULL || x->buckets == NULL) {
        rose_kv_prefix_destroy(x);
        *out = NULL;
        return rose_fail(err, ROSE_E_NOMEM, "prefix index of %u pages: out of memory", x->n_pages);
    }
    memset(x->buckets, 0xff, n_buckets * sizeof *x->buckets);
    return ROSE_OK;
}

void rose_kv_prefix_destroy(rose_kv_prefix *x)
{
    if (x == NULL) return;
    if (x->nodes != NULL) {
        for (uint32_t i = 0; i < x->n_pages; i++) {
            if (x->nodes[i].cached) rose_kv_pages_drop(x->pages, &i, 1);
        }
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

static const uint32_t *ids_of(const rose_kv_prefix *x, uint32_t page)
{
    return x->ids + (size_t)page * x->o.page_tokens;
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

static bool is_reported(const rose_kv_prefix *x, uint32_t page)
{
    return x->nodes[page].epoch == x->epoch;
}

/* Reports one page, whose parent the watcher knows. */
static bool report(rose_kv_prefix *x, uint32_t page)
{
    node *d = &x->nodes[page];
    const rose_kv_stored stored = {.key = d->key,
                                   .parent_key = d->parent != NONE ? x->nodes[d->parent].key : 0,
                                   .root = d->parent == NONE,
                                   .salt = d->salt,
                                   .ids = ids_of(x, page)};
    if (!x->watch.stored(x->watch.arg, &stored)) return false;
    d->epoch = x->epoch;
    x->n_reported++;
    return true;
}

/* Reports a page and, before it, those of its ancestors that the watcher does not know, but no more
 * than *n pages, and takes their number off *n. False: the page itself was not reported. */
static bool report_path(rose_kv_prefix *x, uint32_t page, uint32_t *n)
{
    uint32_t up = page;
    x->nodes[page].down = NONE;
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

static void watch_insert(rose_kv_prefix *x, uint32_t page)
{
    node *d = &x->nodes[page];
    if (x->watch.stored == NULL) return;
    d->key = key_of(x, d->parent, d->salt, ids_of(x, page));
    if (!x->must_clear && (d->parent == NONE || is_reported(x, d->parent))) (void)report(x, page);
}

static void watch_evict(rose_kv_prefix *x, uint32_t page)
{
    if (x->watch.stored == NULL || !is_reported(x, page)) return;
    x->nodes[page].epoch = 0;
    x->n_reported--;
    if (x->watch.removed(x->watch.arg, x->nodes[page].key)) return;
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
        if (!x->nodes[x->cursor].cached || is_reported(x, x->cursor))
            n--;
        else if (!report_path(x, x->cursor, &n))
            return;
        x->cursor = x->cursor + 1 < x->n_pages ? x->cursor + 1 : 0;
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

uint32_t rose_kv_prefix_parent(const rose_kv_prefix *x, uint32_t page)
{
    assert(x->nodes[page].cached);
    return x->nodes[page].parent;
}

void rose_kv_prefix_insert(rose_kv_prefix *x, uint64_t hash, uint32_t parent, rose_kv_salt salt,
                           const uint32_t *ids, uint32_t page)
{
    if (x->nodes == NULL) return;
    node *d = &x->nodes[page];
    assert(!d->cached && rose_kv_pages_refs(x->pages, page) > 0);
    assert(parent == NONE || (x->nodes[parent].cached && !x->nodes[parent].idle));
    rose_kv_pages_retain(x->pages, &page, 1);
    memcpy(x->ids + (size_t)page * x->o.page_tokens, ids, x->o.page_tokens * sizeof *ids);
    *d = (node){.bucket_next = x->buckets[hash & x->mask],
                .parent = parent,
                .cached = true,
                .salt = salt,
                .hash = hash};
    x->buckets[hash & x->mask] = page;
    if (parent != NONE) x->nodes[parent].n_children++;
    x->n_cached++;
    watch_insert(x, page);
}

/* ---- idle pages ---- */

static void idle_append(rose_kv_prefix *x, uint32_t i)
{
    node *d = &x->nodes[i];
    d->idle = true;
    d->idle_prev = x->idle_last;
    d->idle_next = NONE;
    if (x->idle_last != NONE)
        x->nodes[x->idle_last].idle_next = i;
    else
        x->idle_first = i;
    x->idle_last = i;
    x->n_idle++;
}

static void idle_remove(rose_kv_prefix *x, uint32_t i)
{
    node *d = &x->nodes[i];
    if (d->idle_prev != NONE)
        x->nodes[d->idle_prev].idle_next = d->idle_next;
    else
        x->idle_first = d->idle_next;
    if (d->idle_next != NONE)
        x->nodes[d->idle_next].idle_prev = d->idle_prev;
    else
        x->idle_last = d->idle_prev;
    d->idle = false;
    x->n_idle--;
}

static void evict_first(rose_kv_prefix *x)
{
    uint32_t i = x->idle_first;
    node *d = &x->nodes[i];
    assert(d->n_children == 0 && rose_kv_pages_refs(x->pages, i) == 1);
    uint32_t *link = &x->buckets[d->hash & x->mask];
    while (*link != i)
        link = &x->nodes[*link].bucket_next;
    *link = d->bucket_next;
    if (d->parent != NONE) x->nodes[d->parent].n_children--;
    idle_remove(x, i);
    watch_evict(x, i);
    d->cached = false;
    x->n_cached--;
    x->n_evicted++;
    rose_kv_pages_drop(x->pages, &i, 1);
}

/* ---- references ---- */

void rose_kv_prefix_acquire(rose_kv_prefix *x, const uint32_t *pages, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) {
        node *d = &x->nodes[pages[k]];
        assert(d->cached && (k == 0 || d->parent == pages[k - 1]));
        if (d->idle) idle_remove(x, pages[k]);
    }
    rose_kv_pages_retain(x->pages, pages, n);
}

rose_status rose_kv_prefix_take(rose_kv_prefix *x, uint32_t *ids, uint32_t n)
{
    if (n > rose_kv_prefix_n_available(x)) return ROSE_E_FULL;
    while (rose_kv_pages_n_free(x->pages) < n)
        evict_first(x);
    return rose_kv_pages_take(x->pages, ids, n);
}

void rose_kv_prefix_release(rose_kv_prefix *x, const uint32_t *pages, uint32_t n)
{
    if (x->nodes == NULL) {
        rose_kv_pages_drop(x->pages, pages, n);
        return;
    }
    for (uint32_t k = n; k-- > 0;) {
        uint32_t i = pages[k];
        rose_kv_pages_drop(x->pages, &i, 1);
        if (x->nodes[i].cached && rose_kv_pages_refs(x->pages, i) == 1) idle_append(x, i);
    }
    while (x->n_idle > x->o.max_idle)
        evict_first(x);
}

/* ---- views ---- */

uint32_t rose_kv_prefix_n_idle(const rose_kv_prefix *x)
{
    return x->n_idle;
}

uint32_t rose_kv_prefix_n_cached(const rose_kv_prefix *x)
{
    return x->n_cached;
}

uint64_t rose_kv_prefix_n_evicted(const rose_kv_prefix *x)
{
    return x->n_evicted;
}

uint32_t rose_kv_prefix_n_available(const rose_kv_prefix *x)
{
    return rose_kv_pages_n_free(x->pages) + x->n_idle;
}

/* Checks that a node agrees with the pool, its parent and its own hash, and that find() finds
 * it. */
static bool sound_node(const rose_kv_prefix *x, uint32_t i)
{
    const node *d = &x->nodes[i];
    uint32_t refs = rose_kv_pages_refs(x->pages, i);
    if (!d->cached) return !d->idle;
    if (refs == 0 || d->idle != (refs == 1)) return false;
    if (d->parent != NONE) {
        const node *up = &x->nodes[d->parent];
        if (!up->cached || (up->idle && !d->idle)) return false;
        if (!same_salt(up->salt, d->salt)) return false;
    }
    return d->hash == rose_kv_prefix_hash(x, d->parent, d->salt, ids_of(x, i)) &&
           rose_kv_prefix_find(x, d->hash, d->parent, d->salt, ids_of(x, i)) == i;
}

bool rose_kv_prefix_sound(const rose_kv_prefix *x)
{
    uint32_t n_cached = 0, n_idle = 0, n_listed = 0, n_children = 0, n_roots = 0, n_reported = 0;
    if (x->nodes == NULL) return x->n_cached == 0 && x->n_idle == 0;
    for (uint32_t i = 0; i < x->n_pages; i++) {
        const node *d = &x->nodes[i];
        if (!sound_node(x, i)) return false;
        if (!d->cached) continue;
        n_cached++;
        n_idle += d->idle;
        n_children += d->n_children;
        n_roots += d->parent == NONE;
        if (!is_reported(x, i)) continue;
        if (x->must_clear || (d->parent != NONE && !is_reported(x, d->parent))) return false;
        n_reported++;
    }
    for (uint32_t i = x->idle_first; i != NONE; i = x->nodes[i].idle_next) {
        if (!x->nodes[i].idle || ++n_listed > n_idle) return false;
    }
    return n_cached == x->n_cached && n_idle == x->n_idle && n_listed == n_idle &&
           n_children == n_cached - n_roots && n_idle <= x->o.max_idle &&
           n_reported == x->n_reported;
}
