/* backend/cpu/pool.c - compute threads; jobs and barriers, each on one futex word.
 *
 * A thread that waits for a word to change spins for a bounded time. Then it counts itself as a
 * sleeper and sleeps until the word changes. A thread that changes the word stores it first and
 * then looks for sleepers, both sequentially consistent. So either it sees the sleeper, or the
 * sleeper sees the new word; the kernel also compares the word once more before it sleeps. No
 * system call is made while all threads spin. */
#include "backend/cpu/pool.h"

#include <fenv.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpuinfo.h"

/* A word that threads wait on, with the count of sleepers, alone on its cache line. */
typedef struct wait_word {
    _Alignas(64) atomic_uint value;
    atomic_uint n_sleepers;
} wait_word;

struct rose_pool {
    uint32_t n_threads;
    uint64_t spin_ns;
    rose_pool_fn fn; /* the function of the job: written before epoch changes and read after
                      * that; NULL = the thread ends */
    void *arg;
    wait_word epoch; /* counts jobs */
    wait_word phase; /* counts completed barriers */
    _Alignas(64) atomic_uint n_arrived;
    uint32_t n_started; /* threads to join */
    pthread_t *threads; /* owned [n_threads - 1] */
    int *cpus;          /* owned [n_threads], -1 = not pinned */
    bool caller_pinned;
    cpu_set_t caller_cpus; /* the caller's CPUs before create */
};

static void word_wait(wait_word *w, uint32_t old, uint64_t spin_ns)
{
    if (spin_ns > 0) {
        uint64_t end_ns = 0;
        do {
            for (int i = 0; i < 64; i++) {
                /* acquire: pairs with the store in word_set */
                if (atomic_load_explicit(&w->value, memory_order_acquire) != old) return;
                rose_cpu_relax();
            }
            if (end_ns == 0) end_ns = rose_now_ns() + spin_ns;
        } while (rose_now_ns() < end_ns);
    }
    /* seq_cst here and in word_set: see the top of the file. */
    atomic_fetch_add_explicit(&w->n_sleepers, 1, memory_order_seq_cst);
    while (atomic_load_explicit(&w->value, memory_order_seq_cst) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&w->n_sleepers, 1, memory_order_relaxed);
}

static void word_set(wait_word *w, uint32_t value)
{
    atomic_store_explicit(&w->value, value, memory_order_seq_cst);
    if (atomic_load_explicit(&w->n_sleepers, memory_order_seq_cst) > 0)
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void rose_pool_barrier(rose_pool *p)
{
    if (p->n_threads == 1) return;
    /* relaxed: nobody can advance the phase before this thread has arrived */
    uint32_t phase = atomic_load_explicit(&p->phase.value, memory_order_relaxed);
    /* acq_rel: the last to arrive sees what all others wrote, and word_set publishes it */
    uint32_t before = atomic_fetch_add_explicit(&p->n_arrived, 1, memory_order_acq_rel);
    if (before + 1 == p->n_threads) {
        atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
        word_set(&p->phase, phase + 1);
    } else {
        word_wait(&p->phase, phase, p->spin_ns);
    }
}

void rose_pool_run(rose_pool *p, rose_pool_fn fn, void *arg)
{
    fenv_t env;
    fegetenv(&env);
    rose_thread_ftz();
    p->fn = fn;
    p->arg = arg;
    if (p->n_threads > 1) {
        uint32_t epoch = atomic_load_explicit(&p->epoch.value, memory_order_relaxed);
        word_set(&p->epoch, epoch + 1);
    }
    fn(arg, 0, p->n_threads);
    rose_pool_barrier(p);
    fesetenv(&env);
}

typedef struct start_arg {
    rose_pool *pool;
    uint32_t tid;
    atomic_uint *taken;
} start_arg;

static void *worker_main(void *argument)
{
    start_arg start = *(start_arg *)argument;
    rose_pool *p = start.pool;
    char name[16];

    /* release: pairs with the acquire in start_threads; the argument may be reused */
    atomic_store_explicit(start.taken, 1, memory_order_release);
    snprintf(name, sizeof name, "rose-cpu-%u", start.tid % 10000);
    rose_thread_setup(name, p->cpus[start.tid]);
    rose_thread_ftz();
    for (uint32_t epoch = 0;; epoch++) {
        word_wait(&p->epoch, epoch, p->spin_ns);
        if (p->fn == NULL) return NULL;
        p->fn(p->arg, start.tid, p->n_threads);
        rose_pool_barrier(p);
    }
}

static rose_status start_threads(rose_pool *p, rose_err *err)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 1; i < p->n_threads; i++) {
        atomic_uint taken = 0;
        start_arg arg = {.pool = p, .tid = i, .taken = &taken};
        int rc = rose_thread_start(&p->threads[i - 1], worker_main, &arg);
        if (rc != 0) {
            st = rose_fail(err, ROSE_E_IO, "start compute thread %u of %u: %s", i + 1, p->n_threads,
                           strerror(rc));
            break;
        }
        p->n_started++;
        while (atomic_load_explicit(&taken, memory_order_acquire) == 0)
            sched_yield();
    }
    return st;
}

/* Spinning helps only while every thread has a CPU to itself. */
static bool outnumbers_cpus(uint32_t n_threads, const int *cpus, uint32_t n_cpus)
{
    int allowed[ROSE_POOL_MAX_THREADS];
    uint32_t n_distinct = 0;
    if (n_cpus == 0) return n_threads > rose_cpus_allowed(allowed, ROSE_POOL_MAX_THREADS);
    for (uint32_t i = 0; i < n_cpus && n_distinct < n_threads; i++) {
        uint32_t j = 0;
        while (j < i && cpus[j] != cpus[i])
            j++;
        if (j == i) n_distinct++;
    }
    return n_threads > n_distinct;
}

static void pin_caller(rose_pool *p)
{
    char name[16] = "";
    if (p->cpus[0] < 0) return;
    if (pthread_getaffinity_np(pthread_self(), sizeof p->caller_cpus, &p->caller_cpus) != 0) return;
    if (pthread_getname_np(pthread_self(), name, sizeof name) != 0) return;
    rose_thread_setup(name, p->cpus[0]);
    p->caller_pinned = true;
}

rose_status rose_pool_create(rose_pool **out, uint32_t n_threads, const int *cpus, uint32_t n_cpus,
                             rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_pool *p = NULL;

    *out = NULL;
    if (n_threads == 0 || n_threads > ROSE_POOL_MAX_THREADS)
        return rose_fail(err, ROSE_E_INVAL, "compute threads: %u, not in 1 .. %d", n_threads,
                         ROSE_POOL_MAX_THREADS);
    if ((p = aligned_alloc(64, sizeof *p)) == NULL) goto no_memory;
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->threads = calloc(n_threads, sizeof *p->threads);
    p->cpus = calloc(n_threads, sizeof *p->cpus);
    if (p->threads == NULL || p->cpus == NULL) goto no_memory;
    for (uint32_t i = 0; i < n_threads; i++)
        p->cpus[i] = n_cpus > 0 ? cpus[i % n_cpus] : -1;
    if (!outnumbers_cpus(n_threads, cpus, n_cpus)) p->spin_ns = ROSE_POOL_SPIN_US * 1000u;
    if ((st = start_threads(p, err)) != ROSE_OK) goto done;
    pin_caller(p);
    *out = p;
    goto done;
no_memory:
    st = rose_fail(err, ROSE_E_NOMEM, "compute threads: out of memory");
done:
    if (st != ROSE_OK) rose_pool_destroy(p);
    return st;
}

void rose_pool_destroy(rose_pool *p)
{
    if (p == NULL) return;
    if (p->n_started > 0) {
        p->fn = NULL;
        word_set(&p->epoch, atomic_load_explicit(&p->epoch.value, memory_order_relaxed) + 1);
        for (uint32_t i = 0; i < p->n_started; i++)
            pthread_join(p->threads[i], NULL);
    }
    if (p->caller_pinned)
        pthread_setaffinity_np(pthread_self(), sizeof p->caller_cpus, &p->caller_cpus);
    free(p->threads);
    free(p->cpus);
    free(p);
}
