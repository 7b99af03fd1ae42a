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

#define NONE ROSE_KV_NO_PAGE

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
    const rose_kv_prefix_opts o = {
        .enabled = true, .page_tokens = page_tokens, .max_idle = max_idle, .hash_key = {1, 2}};
    assert_int_equal(rose_kv_pages_create(&f.pages, n_pages, NULL), ROSE_OK);
    assert_int_equal(rose_kv_prefix_create(&f.x, &o, f.pages, NULL), ROSE_OK);
    return f;
}

static void drop(fix *f)
{
    rose_kv_prefix_destroy(f->x);
    assert_int_equal(rose_kv_pages_n_free(f->pages), rose_kv_pages_total(f->pages));
    rose_kv_pages_destroy(f->pages);
}

static uint32_t take(fix *f)
{
    uint32_t page = NONE;
    assert_int_equal(rose_kv_prefix_take(f->x, &page, 1), ROSE_OK);
    return page;
}

static uint32_t find(const fix *f, uint32_t parent, const uint32_t *ids)
{
    uint64_t h = rose_kv_prefix_hash(f->x, parent, no_salt, ids);
    return rose_kv_prefix_find(f->x, h, parent, no_salt, ids);
}

/* Adds a fresh page as a child of parent; we and the index hold it. */
static uint32_t add(fix *f, uint32_t parent, const uint32_t *ids)
{
    uint32_t page = take(f);
    rose_kv_prefix_insert(f->x, rose_kv_prefix_hash(f->x, parent, no_salt, ids), parent, no_salt,
                          ids, page);
    return page;
}

static void test_create(void **state)
{
    (void)state;
    rose_kv_pages *pages = NULL;
    rose_kv_prefix *x = (rose_kv_prefix *)(void *)1;
    rose_err err = {{0}};
    assert_int_equal(rose_kv_pages_create(&pages, 3, NULL), ROSE_OK);
    rose_kv_prefix_opts o = {.enabled = true, .page_tokens = 0};
    assert_int_equal(rose_kv_prefix_create(&x, &o, pages, &err), ROSE_E_INVAL);
    assert_null(x);
    assert_true(err.msg[0] != '\0');
    o.page_tokens = 65537;
    assert_int_equal(rose_kv_prefix_create(&x, &o, pages, &err), ROSE_E_INVAL);
    rose_kv_prefix_destroy(NULL);
    o = (rose_kv_prefix_opts){.enabled = false, .page_tokens = 2}; /* off: the pool and no more */
    assert_int_equal(rose_kv_prefix_create(&x, &o, pages, NULL), ROSE_OK);
    uint32_t ids[4] = {9, 9, 9, 9}, t[2] = {7, 7};
    assert_int_equal(rose_kv_prefix_take(x, ids, 4), ROSE_E_FULL);
    assert_int_equal(ids[0], 9);
    assert_int_equal(rose_kv_prefix_take(x, ids, 3), ROSE_OK);
    rose_kv_prefix_insert(x, 5, NONE, no_salt, t, ids[0]);
    assert_int_equal(rose_kv_prefix_find(x, 5, NONE, no_salt, t), NONE);
    rose_kv_prefix_release(x, ids, 3);
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
    uint32_t root[3][4], child[3][4];
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t ids[3] = {k == 1, k == 2, k == 3}; /* one id apart */
            assert_int_equal(rose_kv_prefix_find(f.x, 42, NONE, salts[s], ids), NONE);
            root[s][k] = take(&f);
            rose_kv_prefix_insert(f.x, 42, NONE, salts[s], ids, root[s][k]);
            child[s][k] = take(&f);
            rose_kv_prefix_insert(f.x, 42, root[s][k], salts[s], ids, child[s][k]);
        }
    }
    for (uint32_t s = 0; s < 3; s++) {
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t ids[3] = {k == 1, k == 2, k == 3};
            assert_int_equal(rose_kv_prefix_find(f.x, 42, NONE, salts[s], ids), root[s][k]);
            assert_int_equal(rose_kv_prefix_find(f.x, 42, root[s][k], salts[s], ids), child[s][k]);
            assert_int_equal(rose_kv_prefix_find(f.x, 43, NONE, salts[s], ids), NONE);
            assert_int_equal(rose_kv_prefix_parent(f.x, child[s][k]), root[s][k]);
            const uint32_t path[2] = {root[s][k], child[s][k]};
            rose_kv_prefix_release(f.x, path, 2);
        }
    }
    assert_int_equal(rose_kv_prefix_n_idle(f.x), 24);
    uint32_t all[64];
    assert_int_equal(rose_kv_prefix_take(f.x, all, 64), ROSE_OK); /* evicts out of every chain */
    assert_int_equal(rose_kv_prefix_n_cached(f.x), 0);
    rose_kv_prefix_release(f.x, all, 64);
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
    const rose_kv_prefix_opts o = {.enabled = true, .page_tokens = 3, .hash_key = {1, 3}};
    rose_kv_prefix *y = NULL;
    assert_int_equal(rose_kv_prefix_create(&y, &o, f.pages, NULL), ROSE_OK);
    assert_true(h != rose_kv_prefix_hash(y, NONE, no_salt, ids));
    rose_kv_prefix_destroy(y);
    drop(&f);
}

static void test_order_of_eviction(void **state)
{
    (void)state;
    fix f = make(6, 1, 0);
    const uint32_t a = 1, b = 2, c = 3;
    uint32_t p[3], q[2], n[6];
    p[0] = add(&f, NONE, &a);
    p[1] = add(&f, p[0], &b);
    p[2] = add(&f, p[1], &c);
    q[0] = add(&f, NONE, &b);
    q[1] = add(&f, q[0], &b);
    rose_kv_prefix_release(f.x, p, 3); /* p is older than q */
    rose_kv_prefix_release(f.x, q, 2);
    assert_int_equal(rose_kv_prefix_n_idle(f.x), 5);
    assert_int_equal(rose_kv_prefix_n_available(f.x), 6);
    assert_int_equal(rose_kv_prefix_take(f.x, n, 2), ROSE_OK); /* the free one and the end of p */
    assert_int_equal(find(&f, p[1], &c), NONE);
    assert_int_equal(find(&f, p[0], &b), p[1]);
    rose_kv_prefix_acquire(f.x, p, 2); /* p is used again */
    assert_int_equal(rose_kv_prefix_take(f.x, n + 2, 3), ROSE_E_FULL);
    assert_int_equal(rose_kv_prefix_take(f.x, n + 2, 2), ROSE_OK); /* so q goes */
    assert_int_equal(find(&f, NONE, &b), NONE);
    assert_int_equal(find(&f, p[0], &b), p[1]);
    assert_int_equal(rose_kv_prefix_n_evicted(f.x), 3);
    rose_kv_prefix_release(f.x, p, 2);
    assert_int_equal(rose_kv_prefix_n_idle(f.x), 2);
    rose_kv_prefix_release(f.x, n, 4);
    assert_true(rose_kv_prefix_sound(f.x));
    drop(&f);
}

/* ---- against a model ---- */

enum { N_PAGES = 40, DEPTH = 5, N_PATHS = 12 };

typedef struct held {
    uint32_t n, pages[DEPTH], ids[DEPTH][2];
    rose_kv_salt salt;
} held;

typedef struct model_node {
    bool cached;
    uint32_t parent, ids[2], users;
    rose_kv_salt salt;
    uint64_t released; /* when it became idle */
} model_node;

typedef struct model {
    model_node nodes[N_PAGES];
    uint64_t clock;
    uint32_t max_idle;
} model;

static uint32_t model_find(const model *m, uint32_t parent, rose_kv_salt salt, const uint32_t *ids)
{
    for (uint32_t i = 0; i < N_PAGES; i++) {
        const model_node *d = &m->nodes[i];
        if (d->cached && d->parent == parent && memcmp(d->ids, ids, sizeof d->ids) == 0 &&
            d->salt.word[0] == salt.word[0])
            return i;
    }
    return NONE;
}

/* The idle page that was released first goes. */
static void model_evict(model *m)
{
    uint32_t v = NONE;
    for (uint32_t i = 0; i < N_PAGES; i++) {
        const model_node *d = &m->nodes[i];
        if (!d->cached || d->users > 0) continue;
        if (v == NONE || d->released < m->nodes[v].released) v = i;
    }
    assert_true(v != NONE);
    m->nodes[v].cached = false;
}

static uint32_t model_idle(const model *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_PAGES; i++)
        n += m->nodes[i].cached && m->nodes[i].users == 0;
    return n;
}

static void begin(fix *f, model *m, held *h, uint64_t *s)
{
    uint32_t n = 1 + (uint32_t)(rnd(s) % DEPTH), k = 0, parent = NONE;
    h->salt.word[0] = rnd(s) % 4 == 0;
    for (uint32_t i = 0; i < n; i++) {
        h->ids[i][0] = rnd(s) % 8 == 0;
        h->ids[i][1] = rnd(s) % 4 == 0;
    }
    for (; k < n; k++) { /* the longest path that is there */
        uint64_t hash = rose_kv_prefix_hash(f->x, parent, h->salt, h->ids[k]);
        uint32_t page = rose_kv_prefix_find(f->x, hash, parent, h->salt, h->ids[k]);
        assert_int_equal(page, model_find(m, parent, h->salt, h->ids[k]));
        if (page == NONE) break;
        h->pages[k] = parent = page;
    }
    for (uint32_t i = 0; i < k; i++)
        m->nodes[h->pages[i]].users++;
    rose_kv_prefix_acquire(f->x, h->pages, k);
    uint32_t n_free = rose_kv_pages_n_free(f->pages), available = n_free + model_idle(m);
    rose_status st = rose_kv_prefix_take(f->x, h->pages + k, n - k);
    assert_int_equal(st, n - k <= available ? ROSE_OK : ROSE_E_FULL);
    h->n = st == ROSE_OK ? n : k;
    for (uint32_t i = n_free; st == ROSE_OK && i < n - k; i++)
        model_evict(m);
    for (; k < h->n; k++) {
        uint64_t hash = rose_kv_prefix_hash(f->x, parent, h->salt, h->ids[k]);
        assert_false(m->nodes[h->pages[k]].cached); /* a fresh page */
        rose_kv_prefix_insert(f->x, hash, parent, h->salt, h->ids[k], h->pages[k]);
        m->nodes[h->pages[k]] = (model_node){.cached = true,
                                             .parent = parent,
                                             .ids = {h->ids[k][0], h->ids[k][1]},
                                             .users = 1,
                                             .salt = h->salt};
        parent = h->pages[k];
    }
}

static void end(fix *f, model *m, held *h)
{
    rose_kv_prefix_release(f->x, h->pages, h->n);
    for (uint32_t k = h->n; k-- > 0;) {
        model_node *d = &m->nodes[h->pages[k]];
        if (--d->users == 0) d->released = ++m->clock;
    }
    while (model_idle(m) > m->max_idle)
        model_evict(m);
    h->n = 0;
}

static void run_model(uint32_t max_idle, uint64_t seed)
{
    fix f = make(N_PAGES, 2, max_idle);
    model m = {.max_idle = max_idle ? max_idle : N_PAGES};
    held paths[N_PATHS] = {{0}};
    uint64_t s = seed;
    for (int step = 0; step < 30000; step++) {
        held *h = &paths[rnd(&s) % N_PATHS];
        if (h->n > 0)
            end(&f, &m, h);
        else
            begin(&f, &m, h, &s);
        assert_int_equal(rose_kv_prefix_n_idle(f.x), model_idle(&m));
        for (uint32_t i = 0; i < N_PAGES; i++)
            assert_int_equal(rose_kv_pages_refs(f.pages, i),
                             m.nodes[i].cached ? m.nodes[i].users + 1 : 0);
        if (step % 64 == 0) assert_true(rose_kv_prefix_sound(f.x));
    }
    for (uint32_t k = 0; k < N_PATHS; k++)
        end(&f, &m, &paths[k]);
    assert_true(rose_kv_prefix_n_evicted(f.x) > 1000);
    assert_int_equal(rose_kv_prefix_n_available(f.x), N_PAGES);
    drop(&f);
}

static void test_model(void **state)
{
    (void)state;
    const char *t = getenv("ROSE_TEST_SEED");
    uint64_t seed = t != NULL ? strtoull(t, NULL, 0) : 20261121;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)seed);
    run_model(0, seed * 2 + 1);
    run_model(7, seed * 2 + 1);
    run_model(1, seed * 2 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),     cmocka_unit_test(test_hash),
        cmocka_unit_test(test_collisions), cmocka_unit_test(test_order_of_eviction),
        cmocka_unit_test(test_model),
    };
    return cmocka_run_group_tests_name("prefix index", tests, NULL, NULL);
}
