/* The queue of waiting sequences against a sorted array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sched/waitq.h"

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s >> 8;
}

enum { N = 300 };

typedef struct entry {
    int64_t key;
    uint64_t order;
    uint32_t i;
} entry;

static int by_key(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static void same(const rose_waitq *q, entry *all, uint32_t n)
{
    qsort(all, n, sizeof *all, by_key);
    uint32_t i = rose_waitq_first(q);
    assert_int_equal(q->n_waiting, n);
    for (uint32_t k = 0; k < n; k++, i = rose_waitq_next(q, i))
        assert_int_equal(i, all[k].i);
    assert_true(i == ROSE_WAITQ_END);
}

static void test_random(void **state)
{
    (void)state;
    const char *t = getenv("ROSE_TEST_SEED");
    uint64_t seed = t != NULL ? strtoull(t, NULL, 0) : 20261121, order = 0, s;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (uint32_t keys = 1; keys <= 1000; keys *= 10) { /* 1: first come, first served */
        rose_waitq q;
        entry all[N];
        bool in[N] = {false};
        uint32_t n = 0;
        s = seed * 2 + 1;
        assert_true(rose_waitq_create(&q, N));
        same(&q, all, 0);
        for (int step = 0; step < 20000; step++) {
            uint32_t i = (uint32_t)(rnd(&s) % N);
            if (in[i]) {
                rose_waitq_remove(&q, i);
                uint32_t k = 0;
                while (all[k].i != i)
                    k++;
                all[k] = all[--n];
            } else {
                all[n] = (entry){(int64_t)(rnd(&s) % keys) - 5, ++order, i};
                rose_waitq_insert(&q, i, all[n].key, all[n].order);
                n++;
            }
            in[i] = !in[i];
            if (step % 16 == 0) same(&q, all, n);
        }
        rose_waitq_destroy(&q);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
    return cmocka_run_group_tests_name("waiting queue", tests, NULL, NULL);
}
