/* The prefix index: by hand, under a hash that always collides, and against a model that keeps
 * plain lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/prefix.h"

#define NONE ROSE_KV_NONE

static const rose_kv_salt no_salt = {{0, 0}};

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s >> 8;
}

typedef struct fix {
    rose_kv_pages *pages;
    rose_kv_prefix *x;
} fix;

static fix make(uint32_t n_pages, uint32_t page_tokens, uint32_t max_idle)
{
    fix f = {NULL, NULL};
    assert_int_equal(rose_kv_pages_create(&f.pages, n_pages, NULL), ROSE_OK);
    const rose_kv_prefix_opts o = {.enabled = true,
                                   .page_tokens = page_tokens,
                                   .max_idle = max_idle,
                                   .n_pools = 1,
                                   .pools = {f.pages},
                                   .hash_key = {1, 2}};
    assert_int_equal(rose_kv_prefix_create(&f.x, &o, NULL), ROSE_OK);
    return f;
}

static void drop(fix *f)
{
    rose_kv_prefix_destroy(f->x);
    assert_int_equal(rose_kv_pages_n_free(f->pages), rose_kv_pages_total(f->pages));
    rose_kv_pages_destroy(f->pages);
}

/* A node with a page, as a sequence holds them. */
typedef struct place {
    uint32_t node, page;
} place;

static uint32_t find(const fix *f, uint32_t parent, const uint32_t *ids)
{
    uint64_t h = rose_kv_prefix_hash(f->x, parent, no_salt, ids);
    return rose_kv_prefix_find(f->x, h, parent, no_salt, ids);
}

/* Adds a node with a fresh page; we and the index hold the page, and we hold the node instead of
 * its parent. */
static place add_under(fix *f, uint64_t hash, place parent, rose_kv_salt salt, const uint32_t *ids)
{
    place at = {rose_kv_prefix_insert(f->x, hash, parent.node, salt, ids), NONE};
    assert_int_equal(rose_kv_prefix_take(f->x, 0, &at.page, 1), ROSE_OK);
    rose_kv_prefix_move(f->x, parent.node, at.node);
    assert_int_equal(rose_kv_prefix_page(f->x, at.node, 0), NONE);
    assert_int_equal(rose_kv_prefix_share(f->x, at.node, 0, at.page), at.page);
    return at;
}

static place add(fix *f, place parent, const uint32_t *ids)
{
    return add_under(f, rose_kv_prefix_hash(f->x, parent.node, no_salt, ids), parent, no_salt, ids);
}

/* Gives a path of n places back. */
static void release(fix *f, const place *path, uint32_t n)
{
    for (uint32_t k = n; k-- > 0;)
        rose_kv_prefix_release(f->x, 0, &path[k].page, 1);
    rose_kv_prefix_move(f->x, path[n - 1].node, NONE);
}

static const place root = {NONE, NONE};

static void test_create(void **state)
{
    (void)state;
    rose_kv_pages *pages = NULL;
    rose_kv_prefix *x = (rose_kv_prefix *)(void *)1;
    rose_err err = {{0}};
    assert_int_equal(rose_kv_pages_create(&pages, 3, NULL), ROSE_OK);
    rose_kv_prefix_opts o = {.enabled = true, .page_tokens = 0, .n_pools = 1, .pools = {pages}};
    assert_int_equal(rose_kv_prefix_create(&x, &o, &err), ROSE_E_INVAL);
    assert_null(x);
    assert_true(err.msg[0] != '\0');
    o.page_tokens = 65537;
    assert_int_equal(rose_kv_prefix_create(&x, &o, &err), ROSE_E_INVAL);
    rose_kv_prefix_destroy(NULL);
    o.enabled = false; /* off: the pool and no more */
    o.page_tokens = 2;
    assert_int_equal(rose_kv_prefix_create(&x, &o, NULL), ROSE_OK);
    uint32_t ids[4] = {9, 9, 9, 9}, t[2] = {7, 7};
    assert_int_equal(rose_kv_prefix_take(x, 0, ids, 4), ROSE_E_FULL);
    assert_int_equal(ids[0], 9);
    assert_int_equal(rose_kv_prefix_take(x, 0, ids, 3), ROSE_OK);
    assert_int_equal(rose_kv_prefix_insert(x, 5, NONE, no_salt, t), NONE);
    assert_int_equal(rose_kv_prefix_find(x, 5, NONE, no_salt, t), NONE);
    rose_kv_prefix_release(x, 0, ids, 3);
    assert_int_equal(rose_kv_pages_n_free(pages), 3);
    assert_true(rose_kv_prefix_sound(x));
    rose_kv_prefix_destroy(x);
    rose_kv_pages_destroy(pages);
}

/* Every page under one hash: parent, salt and each id still count. */
static void test_collisions(void **state)
{
    (void)state;
    fix f = make(64, 3, 0);
    const rose_kv_salt salts[3] = {{{0, 0}}, {{1, 0}}, {{0, 1}}};
    place top[3][4], child[3][4];
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t ids[3] = {k == 1, k == 2, k == 3}; /* one id apart */
            assert_int_equal(rose_kv_prefix_find(f.x, 42, NONE, salts[s], ids), NONE);
            top[s][k] = add_under(&f, 42, root, salts[s], ids);
            child[s][k] = add_under(&f, 42, top[s][k], salts[s], ids);
        }
    }
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t ids[3] = {k == 1, k == 2, k == 3}, up = top[s][k].node;
            assert_int_equal(rose_kv_prefix_find(f.x, 42, NONE, salts[s], ids), up);
            assert_int_equal(rose_kv_prefix_find(f.x, 42, up, salts[s], ids), child[s][k].node);
            assert_int_equal(rose_kv_prefix_find(f.x, 43, NONE, salts[s], ids), NONE);
            release(&f, (place[2]){top[s][k], child[s][k]}, 2);
        }
    }
    assert_int_equal(rose_kv_prefix_n_idle(f.x, 0), 24);
    uint32_t all[64];
    assert_int_equal(rose_kv_prefix_take(f.x, 0, all, 64), ROSE_OK); /* evicts out of every chain */
    assert_int_equal(rose_kv_prefix_n_cached(f.x), 0);
    rose_kv_prefix_release(f.x, 0, all, 64);
    drop(&f);
}

/* What the hash is made of: the key, the parent, at a root the salt, every id. */
static void test_hash(void **state)
{
    (void)state;
    fix f = make(4, 3, 0);
    const uint32_t ids[3] = {1, 2, 3};
    uint64_t h = rose_kv_prefix_hash(f.x, NONE, no_salt, ids);
    assert_true(h != rose_kv_prefix_hash(f.x, 0, no_salt, ids));
    assert_true(h != rose_kv_prefix_hash(f.x, NONE, (rose_kv_salt){{1, 0}}, ids));
    assert_true(h != rose_kv_prefix_hash(f.x, NONE, (rose_kv_salt){{0, 1}}, ids));
    for (int i = 0; i < 3; i++) {
        uint32_t other[3] = {1, 2, 3};
        other[i] ^= 1u << 31;
        assert_true(h != rose_kv_prefix_hash(f.x, NONE, no_salt, other));
    }
    const rose_kv_prefix_opts o = {
        .enabled = true, .page_tokens = 3, .n_pools = 1, .pools = {f.pages}, .hash_key = {1, 3}};
    rose_kv_prefix *y = NULL;
    assert_int_equal(rose_kv_prefix_create(&y, &o, NULL), ROSE_OK);
    assert_true(h != rose_kv_prefix_hash(y, NONE, no_salt, ids));
    rose_kv_prefix_destroy(y);
    drop(&f);
}

static void test_order_of_eviction(void **state)
{
    (void)state;
    fix f = make(6, 1, 0);
    const uint32_t a = 1, b = 2, c = 3;
    uint32_t n[6], again[2];
    place p[3], q[2];
    p[0] = add(&f, root, &a);
    p[1] = add(&f, p[0], &b);
    p[2] = add(&f, p[1], &c);
    q[0] = add(&f, root, &b);
    q[1] = add(&f, q[0], &b);
    release(&f, p, 3); /* p is older than q */
    release(&f, q, 2);
    assert_int_equal(rose_kv_prefix_n_idle(f.x, 0), 5);
    assert_int_equal(rose_kv_prefix_n_available(f.x, 0), 6);
    const uint64_t version = rose_kv_prefix_version(f.x);
    assert_int_equal(rose_kv_prefix_take(f.x, 0, n, 2), ROSE_OK); /* one free, and the end of p */
    assert_true(rose_kv_prefix_version(f.x) != version);
    assert_int_equal(find(&f, p[1].node, &c), NONE);
    assert_int_equal(find(&f, p[0].node, &b), p[1].node);
    rose_kv_prefix_move(f.x, NONE, p[1].node);
    rose_kv_prefix_acquire(f.x, p[1].node, 2, 0, 0, again); /* p is used again */
    assert_true(again[0] == p[0].page && again[1] == p[1].page);
    assert_int_equal(rose_kv_prefix_take(f.x, 0, n + 2, 3), ROSE_E_FULL);
    assert_int_equal(rose_kv_prefix_take(f.x, 0, n + 2, 2), ROSE_OK); /* so q goes */
    assert_int_equal(find(&f, NONE, &b), NONE);
    assert_int_equal(find(&f, p[0].node, &b), p[1].node);
    assert_int_equal(rose_kv_prefix_n_evicted(f.x), 3);
    release(&f, p, 2);
    assert_int_equal(rose_kv_prefix_n_idle(f.x, 0), 2);
    rose_kv_prefix_release(f.x, 0, n, 4);
    assert_true(rose_kv_prefix_sound(f.x));
    drop(&f);
}

/* A node that has lost its page gets one again: paths that others remember have changed, also if no
 * node was inserted since. */
static void test_page_again(void **state)
{
    (void)state;
    fix f = make(2, 1, 0);
    const uint32_t a = 1;
    uint32_t n[2];
    const place p = add(&f, root, &a);
    rose_kv_prefix_release(f.x, 0, &p.page, 1);
    assert_int_equal(rose_kv_prefix_take(f.x, 0, n, 2),
                     ROSE_OK); /* we hold the node, so it stays */
    assert_int_equal(rose_kv_prefix_page(f.x, p.node, 0), NONE);
    const uint64_t version = rose_kv_prefix_version(f.x);
    assert_int_equal(rose_kv_prefix_share(f.x, p.node, 0, n[0]), n[0]);
    assert_true(rose_kv_prefix_version(f.x) != version);
    rose_kv_prefix_release(f.x, 0, n, 2);
    rose_kv_prefix_move(f.x, p.node, NONE);
    assert_true(rose_kv_prefix_sound(f.x));
    drop(&f);
}

/* ---- against a model ---- */

/* Paths hold all pages of pool 0, and of pool 1 the last `window` ones; if that is the only pool,
 * only those. The model knows the text of each node instead of links. */
enum { N_PAGES = 40, DEPTH = 5, N_PATHS = 12, N_MODEL = 400 };

typedef struct held {
    uint32_t n, node, from[2], pages[2][DEPTH], ids[DEPTH][2];
    rose_kv_salt salt;
} held;

typedef struct model_node {
    bool used;
    uint32_t parent, ids[2], holders, page[2];
    rose_kv_salt salt;
} model_node;

typedef struct model {
    model_node nodes[N_MODEL]; /* by the index's number */
    uint32_t users[2][N_PAGES];
    uint64_t released[2][N_PAGES], clock, n_lost; /* when a page became idle */
    uint32_t n_pools, window[2], max_idle;
} model;

static uint32_t model_find(const model *m, uint32_t parent, rose_kv_salt salt, const uint32_t *ids)
{
    for (uint32_t i = 0; i < N_MODEL; i++) {
        const model_node *d = &m->nodes[i];
        if (d->used && d->parent == parent && memcmp(d->ids, ids, sizeof d->ids) == 0 &&
            d->salt.word[0] == salt.word[0])
            return i;
    }
    return NONE;
}

static uint32_t model_owner(const model *m, uint32_t p, uint32_t page)
{
    for (uint32_t i = 0; i < N_MODEL; i++)
        if (m->nodes[i].used && m->nodes[i].page[p] == page) return i;
    return NONE;
}

static uint32_t model_idle(const model *m, uint32_t p)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_PAGES; i++)
        n += m->users[p][i] == 0 && model_owner(m, p, i) != NONE;
    return n;
}

/* Removes what nothing needs, until nothing changes. */
static void model_prune(model *m)
{
    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = 0; i < N_MODEL; i++) {
            model_node *d = &m->nodes[i];
            bool needed = !d->used || d->holders > 0 || d->page[0] != NONE;
            for (uint32_t k = 0; k < N_MODEL && !needed; k++)
                needed = m->nodes[k].used && m->nodes[k].parent == i;
            if (needed) continue;
            m->n_lost += m->n_pools == 1;
            d->used = false;
            again = true;
        }
    }
}

/* The idle page that was released first goes. */
static void model_evict(model *m, uint32_t p)
{
    uint32_t v = NONE;
    for (uint32_t i = 0; i < N_PAGES; i++) {
        if (m->users[p][i] > 0 || model_owner(m, p, i) == NONE) continue;
        if (v == NONE || m->released[p][i] < m->released[p][v]) v = i;
    }
    assert_true(v != NONE);
    m->nodes[model_owner(m, p, v)].page[p] = NONE;
    model_prune(m);
}

static uint32_t keeps(const model *m, uint32_t p, uint32_t n)
{
    return m->window[p] != 0 && n > m->window[p] ? n - m->window[p] : 0;
}

/* Takes a page in each pool for place k, and drops those before the windows. */
static bool grow(fix *f, model *m, held *h, uint32_t k)
{
    for (uint32_t p = 0; p < m->n_pools; p++) {
        const uint32_t n_free = N_PAGES - model_idle(m, p);
        uint32_t n_used = 0;
        for (uint32_t i = 0; i < N_PAGES; i++)
            n_used += m->users[p][i] > 0;
        const rose_status st = rose_kv_prefix_take(f->x, p, &h->pages[p][k], 1);
        assert_int_equal(st, n_used < N_PAGES ? ROSE_OK : ROSE_E_FULL);
        if (st != ROSE_OK && p == 1) rose_kv_prefix_release(f->x, 0, &h->pages[0][k], 1);
        if (st != ROSE_OK && p == 1) m->users[0][h->pages[0][k]] = 0;
        if (st != ROSE_OK) return false;
        if (n_used == n_free) model_evict(m, p);
        assert_int_equal(model_owner(m, p, h->pages[p][k]), NONE); /* a fresh page */
        m->users[p][h->pages[p][k]] = 1;
    }
    return true;
}

static void let_go(fix *f, model *m, held *h, uint32_t p, uint32_t from, uint32_t to)
{
    rose_kv_prefix_release(f->x, p, h->pages[p] + from, to - from);
    for (uint32_t k = to; k-- > from;)
        if (--m->users[p][h->pages[p][k]] == 0) m->released[p][h->pages[p][k]] = ++m->clock;
    while (model_idle(m, p) > m->max_idle)
        model_evict(m, p);
}

/* The index's node for the ids at place k of h, whose pages are h's own. */
static bool enter(fix *f, model *m, held *h, uint32_t k)
{
    const uint64_t hash = rose_kv_prefix_hash(f->x, h->node, h->salt, h->ids[k]);
    uint32_t node = rose_kv_prefix_find(f->x, hash, h->node, h->salt, h->ids[k]);
    assert_int_equal(node, model_find(m, h->node, h->salt, h->ids[k]));
    if (node == NONE) {
        node = rose_kv_prefix_insert(f->x, hash, h->node, h->salt, h->ids[k]);
        if (node == NONE) return false;
        assert_false(m->nodes[node].used);
        m->nodes[node] = (model_node){.used = true,
                                      .parent = h->node,
                                      .ids = {h->ids[k][0], h->ids[k][1]},
                                      .page = {NONE, NONE},
                                      .salt = h->salt};
    }
    rose_kv_prefix_move(f->x, h->node, node);
    if (h->node != NONE) m->nodes[h->node].holders--;
    m->nodes[node].holders++;
    h->node = node;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        uint32_t *there = &m->nodes[node].page[p], own = h->pages[p][k];
        h->pages[p][k] = rose_kv_prefix_share(f->x, node, p, own);
        if (*there == NONE) *there = own;
        assert_int_equal(h->pages[p][k], *there);
        if (*there != own) m->users[p][own]--;
        if (*there != own) m->users[p][*there]++;
    }
    return true;
}

static void begin(fix *f, model *m, held *h, uint64_t *s)
{
    uint32_t n = 1 + (uint32_t)(rnd(s) % DEPTH), k = 0, node = NONE, walk = NONE, run[2] = {0};
    *h = (held){.node = NONE};
    h->salt.word[0] = rnd(s) % 4 == 0;
    for (uint32_t i = 0; i < n; i++) {
        h->ids[i][0] = rnd(s) % 8 == 0;
        h->ids[i][1] = rnd(s) % 4 == 0;
    }
    for (uint32_t i = 1; i <= n; i++) { /* the longest path that has its windows */
        uint64_t hash = rose_kv_prefix_hash(f->x, walk, h->salt, h->ids[i - 1]);
        bool whole = true;
        walk = rose_kv_prefix_find(f->x, hash, walk, h->salt, h->ids[i - 1]);
        if (walk == NONE) break;
        for (uint32_t p = 0; p < m->n_pools; p++) {
            run[p] = m->nodes[walk].page[p] != NONE ? run[p] + 1 : 0;
            assert_int_equal(rose_kv_prefix_page(f->x, walk, p), m->nodes[walk].page[p]);
            whole = whole && i - run[p] <= keeps(m, p, i);
        }
        if (!whole) continue;
        k = i;
        node = walk;
    }
    if (node != NONE) m->nodes[node].holders++;
    rose_kv_prefix_move(f->x, NONE, node);
    h->n = k;
    h->node = node;
    for (uint32_t p = 0; p < m->n_pools; p++) {
        h->from[p] = keeps(m, p, k);
        rose_kv_prefix_acquire(f->x, node, k, p, h->from[p], h->pages[p]);
        for (uint32_t i = k, at = node; i-- > h->from[p]; at = m->nodes[at].parent) {
            assert_int_equal(h->pages[p][i], m->nodes[at].page[p]);
            m->users[p][h->pages[p][i]]++;
        }
    }
    for (; k < n && grow(f, m, h, k); k++) {
        h->n = k + 1;
        if (!enter(f, m, h, k)) return;
        for (uint32_t p = 0; p < m->n_pools; p++) {
            const uint32_t from = keeps(m, p, k + 1);
            let_go(f, m, h, p, h->from[p], from);
            h->from[p] = from;
        }
    }
}

static void end(fix *f, model *m, held *h)
{
    for (uint32_t p = 0; p < m->n_pools; p++)
        let_go(f, m, h, p, h->from[p], h->n);
    rose_kv_prefix_move(f->x, h->node, NONE);
    if (h->node != NONE) m->nodes[h->node].holders--;
    model_prune(m);
    h->n = 0;
}

/* windows: of one or two pools, in pages. */
static void run_model(uint32_t n_pools, const uint32_t *windows, uint32_t max_idle,
                      uint32_t n_nodes, uint64_t seed)
{
    static model m;
    rose_kv_pages *pages[2] = {NULL, NULL};
    fix f = {NULL, NULL};
    rose_kv_prefix_opts o = {.enabled = true,
                             .page_tokens = 2,
                             .max_idle = max_idle,
                             .n_nodes = n_nodes,
                             .n_pools = n_pools};
    held paths[N_PATHS] = {{0}};
    uint64_t s = seed;
    memset(&m, 0, sizeof m);
    m.n_pools = n_pools;
    m.max_idle = max_idle ? max_idle : N_PAGES;
    for (uint32_t p = 0; p < n_pools; p++) {
        m.window[p] = windows[p];
        assert_int_equal(rose_kv_pages_create(&pages[p], N_PAGES, NULL), ROSE_OK);
        o.pools[p] = pages[p];
    }
    assert_int_equal(rose_kv_prefix_create(&f.x, &o, NULL), ROSE_OK);
    for (int step = 0; step < 6000; step++) {
        held *h = &paths[rnd(&s) % N_PATHS];
        if (h->n > 0)
            end(&f, &m, h);
        else
            begin(&f, &m, h, &s);
        for (uint32_t p = 0; p < n_pools; p++) {
            assert_int_equal(rose_kv_prefix_n_idle(f.x, p), model_idle(&m, p));
            for (uint32_t i = 0; i < N_PAGES; i++)
                assert_int_equal(rose_kv_pages_refs(pages[p], i),
                                 m.users[p][i] + (model_owner(&m, p, i) != NONE));
        }
        if (step % 64 == 0) assert_true(rose_kv_prefix_sound(f.x));
    }
    for (uint32_t k = 0; k < N_PATHS; k++)
        if (paths[k].n > 0) end(&f, &m, &paths[k]);
    assert_true(n_nodes < N_PAGES || rose_kv_prefix_n_evicted(f.x) > 500);
    rose_kv_prefix_destroy(f.x);
    for (uint32_t p = 0; p < n_pools; p++) {
        assert_int_equal(rose_kv_pages_n_free(pages[p]), N_PAGES);
        rose_kv_pages_destroy(pages[p]);
    }
}

static void test_model(void **state)
{
    (void)state;
    const char *t = getenv("ROSE_TEST_SEED");
    uint64_t seed = t != NULL ? strtoull(t, NULL, 0) : 20261121;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (uint32_t max_idle = 0; max_idle < 8; max_idle += max_idle == 0 ? 1 : 6) {
        run_model(1, (uint32_t[]){0}, max_idle, N_PAGES, seed * 2 + 1);
        run_model(2, (uint32_t[]){0, 2}, max_idle, N_PAGES, seed * 2 + 3);
        run_model(1, (uint32_t[]){2}, max_idle, N_MODEL, seed * 2 + 5); /* nodes outlive pages */
        run_model(2, (uint32_t[]){3, 1}, max_idle, N_MODEL, seed * 2 + 7);
    }
    run_model(1, (uint32_t[]){2}, 0, 12, seed * 2 + 9); /* too few nodes */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),     cmocka_unit_test(test_hash),
        cmocka_unit_test(test_collisions), cmocka_unit_test(test_order_of_eviction),
        cmocka_unit_test(test_page_again), cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests_name("prefix index", tests, NULL, NULL);
}
