/* tests/base/test_ring.c - the queues: bounds, wrap, order under threads, wake-ups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/wakeq.h"

static void test_create_bounds(void **state)
{
    (void)state;
    rose_spsc *s = (rose_spsc *)(uintptr_t)1;
    rose_mpsc *m = (rose_mpsc *)(uintptr_t)1;
    assert_int_equal(rose_spsc_create(&s, 0, 8), ROSE_E_INVAL);
    assert_null(s);
    assert_int_equal(rose_mpsc_create(&m, 0, 8), ROSE_E_INVAL);
    assert_null(m);
    assert_int_equal(rose_spsc_create(&s, (1u << 24) + 1, 1), ROSE_E_INVAL);
    assert_int_equal(rose_mpsc_create(&m, (1u << 24) + 1, 1), ROSE_E_INVAL);
    assert_int_equal(rose_spsc_create(&s, 4, 0), ROSE_E_INVAL);
    assert_int_equal(rose_mpsc_create(&m, 4, 0), ROSE_E_INVAL);
    rose_spsc_destroy(NULL);
    rose_mpsc_destroy(NULL);
    rose_wakeq_destroy(NULL);
}

/* cap rounds up to a power of two, at least 2; then exactly that many fit. */
static void test_full_and_empty(void **state)
{
    static const struct {
        uint32_t asked, got;
    } caps[] = {{1, 2}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {1000, 1024}};
    (void)state;
    for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
        rose_spsc *s;
        rose_mpsc *m;
        uint64_t v = 0;
        assert_int_equal(rose_spsc_create(&s, caps[c].asked, sizeof v), ROSE_OK);
        assert_int_equal(rose_mpsc_create(&m, caps[c].asked, sizeof v), ROSE_OK);
        assert_int_equal(rose_spsc_pop(s, &v), ROSE_E_EMPTY);
        assert_int_equal(rose_mpsc_pop(m, &v), ROSE_E_EMPTY);
        for (uint64_t i = 0; i < caps[c].got; i++) {
            assert_int_equal(rose_spsc_push(s, &i), ROSE_OK);
            assert_int_equal(rose_mpsc_push(m, &i), ROSE_OK);
        }
        v = 99999;
        assert_int_equal(rose_spsc_push(s, &v), ROSE_E_FULL);
        assert_int_equal(rose_mpsc_push(m, &v), ROSE_E_FULL);
        for (uint64_t i = 0; i < caps[c].got; i++) {
            assert_int_equal(rose_spsc_pop(s, &v), ROSE_OK);
            assert_int_equal(v, i);
            assert_int_equal(rose_mpsc_pop(m, &v), ROSE_OK);
            assert_int_equal(v, i);
        }
        assert_int_equal(rose_spsc_pop(s, &v), ROSE_E_EMPTY);
        assert_int_equal(rose_mpsc_pop(m, &v), ROSE_E_EMPTY);
        rose_spsc_destroy(s);
        rose_mpsc_destroy(m);
    }
}

/* Odd element sizes, round and round: every fill level from 0 to full at every index. */
static void test_wrap(void **state)
{
    typedef struct elem {
        unsigned char bytes[13];
    } elem;
    rose_spsc *s;
    rose_mpsc *m;
    unsigned char in = 0, out = 0;
    (void)state;
    assert_int_equal(rose_spsc_create(&s, 4, sizeof(elem)), ROSE_OK);
    assert_int_equal(rose_mpsc_create(&m, 4, sizeof(elem)), ROSE_OK);
    for (int round = 0; round < 1000; round++) {
        int n = round % 5;
        for (int i = 0; i < n; i++, in++) {
            elem e;
            memset(e.bytes, in, sizeof e.bytes);
            assert_int_equal(rose_spsc_push(s, &e), ROSE_OK);
            assert_int_equal(rose_mpsc_push(m, &e), ROSE_OK);
        }
        for (int i = 0; i < n; i++, out++) {
            elem want, a, b;
            memset(want.bytes, out, sizeof want.bytes);
            assert_int_equal(rose_spsc_pop(s, &a), ROSE_OK);
            assert_int_equal(rose_mpsc_pop(m, &b), ROSE_OK);
            assert_memory_equal(&a, &want, sizeof a);
            assert_memory_equal(&b, &want, sizeof b);
        }
    }
    rose_spsc_destroy(s);
    rose_mpsc_destroy(m);
}

/* ---- threads ---- */

enum { N_ITEMS = 300000, PRODUCERS = 4 };

typedef struct item {
    uint32_t producer, seq;
    uint64_t check; /* torn elements do not match */
} item;

static item make_item(uint32_t producer, uint32_t seq)
{
    return (item){producer, seq, ((uint64_t)producer << 32 | seq) * 0x9E3779B97F4A7C15u};
}

static bool item_is_whole(const item *it)
{
    return it->check == make_item(it->producer, it->seq).check;
}

static void *spsc_produce(void *arg)
{
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        item it = make_item(0, i);
        while (rose_spsc_push(arg, &it) != ROSE_OK)
            sched_yield();
    }
    return NULL;
}

static void test_spsc_threads(void **state)
{
    rose_spsc *s;
    pthread_t t;
    (void)state;
    assert_int_equal(rose_spsc_create(&s, 64, sizeof(item)), ROSE_OK);
    assert_int_equal(pthread_create(&t, NULL, spsc_produce, s), 0);
    for (uint32_t i = 0; i < N_ITEMS;) {
        item it;
        if (rose_spsc_pop(s, &it) != ROSE_OK) {
            sched_yield();
            continue;
        }
        assert_int_equal(it.seq, i++);
        assert_true(item_is_whole(&it));
    }
    pthread_join(t, NULL);
    rose_spsc_destroy(s);
}

typedef struct produce_arg {
    rose_mpsc *ring;
    rose_wakeq *queue; /* if not NULL, instead of ring */
    uint32_t id;
} produce_arg;

static void *mpsc_produce(void *p)
{
    produce_arg *a = p;
    for (uint32_t i = 0; i < N_ITEMS / PRODUCERS; i++) {
        item it = make_item(a->id, i);
        while (rose_mpsc_push(a->ring, &it) != ROSE_OK)
            sched_yield();
    }
    return NULL;
}

static void test_mpsc_threads(void **state)
{
    rose_mpsc *m;
    pthread_t threads[PRODUCERS];
    produce_arg args[PRODUCERS];
    uint32_t next[PRODUCERS] = {0};
    (void)state;
    assert_int_equal(rose_mpsc_create(&m, 64, sizeof(item)), ROSE_OK);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        args[i] = (produce_arg){.ring = m, .id = i};
        assert_int_equal(pthread_create(&threads[i], NULL, mpsc_produce, &args[i]), 0);
    }
    for (uint32_t n = 0; n < N_ITEMS / PRODUCERS * PRODUCERS;) {
        item it;
        if (rose_mpsc_pop(m, &it) != ROSE_OK) {
            sched_yield();
            continue;
        }
        assert_true(item_is_whole(&it));
        assert_true(it.producer < PRODUCERS);
        assert_int_equal(it.seq, next[it.producer]++); /* each producer's order */
        n++;
    }
    item it;
    assert_int_equal(rose_mpsc_pop(m, &it), ROSE_E_EMPTY);
    for (uint32_t i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    rose_mpsc_destroy(m);
}

/* ---- the wake queue ---- */

static bool readable(const rose_wakeq *q)
{
    struct pollfd p = {.fd = rose_wakeq_fd(q), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void test_wakeq(void **state)
{
    rose_wakeq *q = NULL;
    rose_err err = {""};
    int a, b;
    void *p;
    (void)state;
    assert_int_equal(rose_wakeq_create(&q, 0, &err), ROSE_E_INVAL);
    assert_null(q);
    assert_int_equal(rose_wakeq_create(&q, 2, &err), ROSE_OK);
    assert_int_equal(rose_wakeq_push(q, &a), ROSE_OK);
    assert_false(readable(q)); /* a push alone does not wake */
    assert_int_equal(rose_wakeq_push(q, &b), ROSE_OK);
    assert_int_equal(rose_wakeq_push(q, &b), ROSE_E_FULL);
    rose_wakeq_signal(q);
    rose_wakeq_signal(q);
    assert_true(readable(q));
    rose_wakeq_wait(q, 1000000000u); /* returns at once, and does not clear */
    assert_true(readable(q));
    rose_wakeq_clear(q);
    assert_false(readable(q));
    assert_int_equal(rose_wakeq_pop(q, &p), ROSE_OK);
    assert_ptr_equal(p, &a);
    assert_int_equal(rose_wakeq_pop(q, &p), ROSE_OK);
    assert_ptr_equal(p, &b);
    assert_int_equal(rose_wakeq_pop(q, &p), ROSE_E_EMPTY);
    rose_wakeq_clear(q); /* clearing nothing is allowed */
    rose_wakeq_wait(q, 0);
    rose_wakeq_signal(q); /* and a later signal still comes through */
    assert_true(readable(q));
    rose_wakeq_destroy(q);
}

static void *wakeq_produce(void *p)
{
    produce_arg *a = p;
    for (uint32_t i = 0; i < 20000; i++) {
        while (rose_wakeq_push(a->queue, a) != ROSE_OK)
            sched_yield();
        rose_wakeq_signal(a->queue);
    }
    return NULL;
}

/* The consumer sleeps whenever it finds nothing: a lost wake-up would leave it waiting for ever. */
static void test_wakeq_threads(void **state)
{
    rose_wakeq *q;
    rose_err err;
    pthread_t threads[PRODUCERS];
    produce_arg args[PRODUCERS];
    (void)state;
    assert_int_equal(rose_wakeq_create(&q, 16, &err), ROSE_OK);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        args[i] = (produce_arg){.queue = q, .id = i};
        assert_int_equal(pthread_create(&threads[i], NULL, wakeq_produce, &args[i]), 0);
    }
    uint32_t counts[PRODUCERS] = {0};
    for (uint32_t n = 0; n < PRODUCERS * 20000;) {
        struct pollfd pfd = {.fd = rose_wakeq_fd(q), .events = POLLIN};
        void *p;
        if (poll(&pfd, 1, 20000) != 1) fail_msg("a wake-up was lost after %u items", n);
        rose_wakeq_clear(q);
        while (rose_wakeq_pop(q, &p) == ROSE_OK) {
            counts[((produce_arg *)p)->id]++;
            n++;
        }
    }
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(counts[i], 20000);
    }
    rose_wakeq_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_bounds), cmocka_unit_test(test_full_and_empty),
        cmocka_unit_test(test_wrap),          cmocka_unit_test(test_spsc_threads),
        cmocka_unit_test(test_mpsc_threads),  cmocka_unit_test(test_wakeq),
        cmocka_unit_test(test_wakeq_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
