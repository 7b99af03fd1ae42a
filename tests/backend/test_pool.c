/* tests/backend/test_pool.c - the compute threads: every thread runs every job, barriers order
 * plain memory, more threads than CPUs, floating-point mode, pinning, idleness. Run it under TSAN
 * too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/pool.h"
#include "base/cpuinfo.h"

enum { MAX_THREADS = 16, N_JOBS = 300, N_ROUNDS = 20 };

typedef struct shared {
    rose_pool *pool;
    uint32_t seen[MAX_THREADS];  /* calls by thread index */
    uint32_t round[MAX_THREADS]; /* plain memory, ordered by the barriers only */
    uint32_t n_wrong;            /* written by thread 0 */
    uint32_t wrong[MAX_THREADS];
} shared;

static rose_pool *make_pool(uint32_t n, const int *cpus, uint32_t n_cpus)
{
    rose_pool *p = NULL;
    rose_err err = {""};
    if (rose_pool_create(&p, n, cpus, n_cpus, &err) != ROSE_OK) fail_msg("%s", err.msg);
    return p;
}

static void count(void *arg, uint32_t tid, uint32_t n)
{
    shared *s = arg;
    (void)n;
    s->seen[tid]++;
}

/* Each thread writes its own cell and, after the barrier, reads all the others'. */
static void rounds(void *arg, uint32_t tid, uint32_t n)
{
    shared *s = arg;
    for (uint32_t r = 1; r <= N_ROUNDS; r++) {
        s->round[tid] = s->seen[tid] * 1000 + r;
        rose_pool_barrier(s->pool);
        for (uint32_t i = 0; i < n; i++)
            if (s->round[i] != s->seen[i] * 1000 + r) s->wrong[tid]++;
        rose_pool_barrier(s->pool);
    }
}

static void test_jobs_and_barriers(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 7, MAX_THREADS};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        shared s = {.pool = make_pool(sizes[i], NULL, 0)};
        for (uint32_t job = 1; job <= N_JOBS; job++) {
            rose_pool_run(s.pool, count, &s);
            for (uint32_t t = 0; t < MAX_THREADS; t++)
                assert_int_equal(s.seen[t], t < sizes[i] ? job : 0);
            if (job % 10 == 0) rose_pool_run(s.pool, rounds, &s);
        }
        for (uint32_t t = 0; t < MAX_THREADS; t++)
            assert_int_equal(s.wrong[t], 0);
        rose_pool_destroy(s.pool);
    }
}

/* The threads have gone to sleep between two jobs, or not yet: either way the next one reaches
 * them.
 */
static void test_pauses(void **state)
{
    (void)state;
    shared s = {.pool = make_pool(2, NULL, 0)};
    for (uint32_t job = 1; job <= 60; job++) {
        struct timespec pause = {0, (long)(job % 12) * 10000}; /* 0 .. 110 us */
        nanosleep(&pause, NULL);
        rose_pool_run(s.pool, rounds, &s);
        rose_pool_run(s.pool, count, &s);
    }
    assert_int_equal(s.seen[0], 60);
    assert_int_equal(s.seen[1], 60);
    assert_int_equal(s.wrong[0] + s.wrong[1], 0);
    rose_pool_destroy(s.pool);
}

/* The state of the compute thread 1 ('S': it sleeps) and how often it has given its CPU away. */
static char worker_state(uint64_t *switches)
{
    char path[64], line[128], state = 0;
    struct dirent *e;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    *switches = 0;
    while ((e = readdir(d)) != NULL && state == 0) {
        bool found = false;
        unsigned long long n;
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/status", e->d_name);
        FILE *f = fopen(path, "r");
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            found |= strcmp(line, "Name:\trose-cpu-1\n") == 0;
            if (found && strncmp(line, "State:\t", 7) == 0) state = line[7];
            if (found && (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1 ||
                          sscanf(line, "nonvoluntary_ctxt_switches: %llu", &n) == 1))
                *switches += n;
        }
        if (f != NULL) fclose(f);
    }
    closedir(d);
    return state;
}

/* Without work a thread falls asleep, and it does not wake again: a thread that spins is always
 * runnable, and a thread that wakes is switched to. */
static void test_idle_uses_no_cpu(void **state)
{
    (void)state;
    shared s = {.pool = make_pool(2, NULL, 0)};
    struct timespec pause = {0, 20000000};
    uint64_t asleep = 0, later = 0;
    rose_pool_run(s.pool, count, &s);
    for (int tries = 0; tries < 3000 && worker_state(&asleep) != 'S'; tries++)
        nanosleep(&pause, NULL);
    for (int i = 0; i < 5; i++) {
        nanosleep(&pause, NULL);
        assert_int_equal(worker_state(&later), 'S');
        assert_int_equal(later, asleep);
    }
    rose_pool_destroy(s.pool);
}

static volatile float g_tiny = 1e-20f;

static void check_ftz(void *arg, uint32_t tid, uint32_t n)
{
    shared *s = arg;
    (void)n;
    if (g_tiny * g_tiny != 0) s->wrong[tid]++;
}

static void test_floating_point_mode(void **state)
{
    (void)state;
    shared s = {.pool = make_pool(3, NULL, 0)};
    assert_true(g_tiny * g_tiny != 0);
    rose_pool_run(s.pool, check_ftz, &s);
    assert_true(g_tiny * g_tiny != 0); /* the caller's mode is its own again */
#if defined(__x86_64__)
    for (int t = 0; t < 3; t++)
        assert_int_equal(s.wrong[t], 0);
#endif
    rose_pool_destroy(s.pool);
}

typedef struct pins {
    int want[3];
    int wrong[3];
} pins;

static void check_pins(void *arg, uint32_t tid, uint32_t n)
{
    pins *p = arg;
    cpu_set_t set;
    (void)n;
    pthread_getaffinity_np(pthread_self(), sizeof set, &set);
    p->wrong[tid] = CPU_COUNT(&set) != 1 || !CPU_ISSET((size_t)p->want[tid], &set);
}

static void test_pinning(void **state)
{
    (void)state;
    int cpus[64];
    uint32_t n = rose_cpus_allowed(cpus, 2);
    cpu_set_t before, after;
    assert_true(n > 0);
    pthread_getaffinity_np(pthread_self(), sizeof before, &before);
    pins p;
    for (uint32_t i = 0; i < 3; i++)
        p.want[i] = cpus[i % n];
    rose_pool *pool = make_pool(3, cpus, n);
    rose_pool_run(pool, check_pins, &p);
    for (int i = 0; i < 3; i++)
        assert_int_equal(p.wrong[i], 0);
    rose_pool_destroy(pool);
    pthread_getaffinity_np(pthread_self(), sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
}

static void test_bad_sizes(void **state)
{
    (void)state;
    rose_pool *p = (rose_pool *)&p;
    rose_err err = {""};
    assert_int_equal(rose_pool_create(&p, 0, NULL, 0, &err), ROSE_E_INVAL);
    assert_null(p);
    assert_true(err.msg[0] != '\0');
    assert_int_equal(rose_pool_create(&p, ROSE_POOL_MAX_THREADS + 1, NULL, 0, &err), ROSE_E_INVAL);
    assert_null(p);
    rose_pool_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs_and_barriers), cmocka_unit_test(test_pauses),
        cmocka_unit_test(test_idle_uses_no_cpu),  cmocka_unit_test(test_floating_point_mode),
        cmocka_unit_test(test_pinning),           cmocka_unit_test(test_bad_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
