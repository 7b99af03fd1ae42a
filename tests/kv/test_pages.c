/* The page allocator against a model that keeps a plain count per page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/pages.h"

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s >> 8;
}

static void test_create(void **state)
{
    (void)state;
    rose_kv_pages *p = (rose_kv_pages *)(void *)1;
    rose_err err = {0};
    assert_int_equal(rose_kv_pages_create(&p, 0, &err), ROSE_E_INVAL);
    assert_null(p);
    assert_non_null(strstr(err.msg, "0 pages"));
    assert_int_equal(rose_kv_pages_create(&p, 0x80000000u, NULL), ROSE_E_INVAL);
    rose_kv_pages_destroy(NULL);
    assert_int_equal(rose_kv_pages_create(&p, 1, NULL), ROSE_OK);
    assert_int_equal(rose_kv_pages_total(p), 1);
    assert_int_equal(rose_kv_pages_n_free(p), 1);
    uint32_t id = 77;
    assert_int_equal(rose_kv_pages_take(p, &id, 1), ROSE_OK);
    assert_int_equal(id, 0);
    assert_int_equal(rose_kv_pages_take(p, &id, 1), ROSE_E_FULL);
    assert_int_equal(rose_kv_pages_take(p, NULL, 0), ROSE_OK);
    rose_kv_pages_drop(p, &id, 1);
    assert_int_equal(rose_kv_pages_n_free(p), 1);
    rose_kv_pages_destroy(p);
}

static void test_order(void **state)
{
    (void)state;
    rose_kv_pages *p = NULL;
    uint32_t a[4], b[4];
    assert_int_equal(rose_kv_pages_create(&p, 8, NULL), ROSE_OK);
    assert_int_equal(rose_kv_pages_take(p, a, 4), ROSE_OK);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(a[i], i);
    uint32_t before[5] = {9, 9, 9, 9, 9};
    assert_int_equal(rose_kv_pages_take(p, before, 5), ROSE_E_FULL); /* all or nothing */
    assert_int_equal(before[0], 9);
    assert_int_equal(rose_kv_pages_n_free(p), 4);
    rose_kv_pages_drop(p, &a[1], 1);
    assert_int_equal(rose_kv_pages_take(p, b, 1), ROSE_OK);
    assert_int_equal(b[0], 1); /* freed last, taken first */
    rose_kv_pages_destroy(p);
}

static void test_shared(void **state)
{
    (void)state;
    rose_kv_pages *p = NULL;
    uint32_t a[3];
    assert_int_equal(rose_kv_pages_create(&p, 3, NULL), ROSE_OK);
    assert_int_equal(rose_kv_pages_take(p, a, 3), ROSE_OK);
    rose_kv_pages_retain(p, a, 2);
    rose_kv_pages_drop(p, a, 3);
    assert_int_equal(rose_kv_pages_n_free(p), 1);
    assert_int_equal(rose_kv_pages_refs(p, a[0]), 1);
    assert_int_equal(rose_kv_pages_refs(p, a[2]), 0);
    const uint32_t twice[2] = {a[1], a[1]}; /* a page may stand in the list twice */
    rose_kv_pages_retain(p, &a[1], 1);
    rose_kv_pages_drop(p, twice, 2);
    assert_int_equal(rose_kv_pages_n_free(p), 2);
    rose_kv_pages_drop(p, a, 1);
    assert_int_equal(rose_kv_pages_n_free(p), 3);
    rose_kv_pages_destroy(p);
}

enum { N_PAGES = 200, MOST = 20 };

static void check_model(const rose_kv_pages *p, const uint32_t *refs)
{
    uint32_t n_free = 0;
    for (uint32_t i = 0; i < N_PAGES; i++) {
        assert_int_equal(rose_kv_pages_refs(p, i), refs[i]);
        n_free += refs[i] == 0;
    }
    assert_int_equal(rose_kv_pages_n_free(p), n_free);
}

static void test_random(void **state)
{
    (void)state;
    const char *t = getenv("ROSE_TEST_SEED");
    uint64_t s = t != NULL ? strtoull(t, NULL, 0) : 20261121;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)s);
    s = s * 2 + 1;
    rose_kv_pages *p = NULL;
    uint32_t refs[N_PAGES] = {0};
    assert_int_equal(rose_kv_pages_create(&p, N_PAGES, NULL), ROSE_OK);
    uint32_t n_full = 0;
    for (int step = 0; step < 100000; step++) {
        uint32_t ids[MOST], n = (uint32_t)(rnd(&s) % (MOST + 1)), op = (uint32_t)(rnd(&s) % 5);
        if (op < 2) {
            uint32_t n_free = rose_kv_pages_n_free(p);
            rose_status st = rose_kv_pages_take(p, ids, n);
            assert_int_equal(st, n <= n_free ? ROSE_OK : ROSE_E_FULL);
            n_full += st == ROSE_E_FULL;
            for (uint32_t i = 0; st == ROSE_OK && i < n; i++) {
                assert_true(ids[i] < N_PAGES && refs[ids[i]] == 0);
                refs[ids[i]] = 1;
            }
        } else {
            uint32_t k = 0;
            for (uint32_t i = 0; i < n; i++) {
                uint32_t id = (uint32_t)(rnd(&s) % N_PAGES);
                if (refs[id] == 0) continue;
                refs[id] += op == 2 ? 1 : UINT32_MAX; /* up, or down by one */
                ids[k++] = id;
            }
            if (op == 2)
                rose_kv_pages_retain(p, ids, k);
            else
                rose_kv_pages_drop(p, ids, k);
        }
        if (step % 16 == 0) check_model(p, refs);
    }
    check_model(p, refs);
    assert_true(n_full > 100); /* the pool was often tight */
    for (uint32_t i = 0; i < N_PAGES; i++) {
        for (; refs[i] > 0; refs[i]--)
            rose_kv_pages_drop(p, &i, 1);
    }
    assert_int_equal(rose_kv_pages_n_free(p), N_PAGES);
    rose_kv_pages_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests_name("kv pages", tests, NULL, NULL);
}
