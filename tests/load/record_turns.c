/* tests/load/record_turns.c - see record_turns.h. It has a thread of its own, which sleeps between
 * the turns. It reads the CPU clocks of the other threads: they are exact, while /proc is only as
 * new as the last tick of the kernel. */
#include "load/record_turns.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/profile.h"

/* Room for 300,000 sends per second in turns of 50 ms. More room would only touch more pages. */
enum { MAX_THREADS = 8, N_EVENTS = 1 << 14, POLL_NS = 5000000, SETTLE_MS = 5 };

typedef struct reading {
    uint64_t tokens, cpu_ns[MAX_THREADS];
} reading;

struct rose_record_turns {
    rose_record_opts o;
    clockid_t clocks[MAX_THREADS];
    pthread_t thread;
    atomic_bool over; /* relaxed: it only asks the thread to end */
    uint64_t n_events, n_dropped;
    rose_json *pairs; /* owned */
};

/* The number by which the kernel knows the CPU clock of a thread (CPUCLOCK_PERTHREAD_MASK |
 * CPUCLOCK_SCHED). */
static clockid_t clock_of(long tid)
{
    return (clockid_t)(~(uint32_t)tid << 3 | 6u);
}

static bool find_thread(const char *name, clockid_t *out)
{
    bool found = false;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d != NULL && !found && (e = readdir(d)) != NULL;) {
        char path[320], comm[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (f == NULL) continue;
        if (fgets(comm, sizeof comm, f) == NULL) comm[0] = '\0';
        fclose(f);
        comm[strcspn(comm, "\n")] = '\0';
        found = strcmp(comm, name) == 0;
        if (found) *out = clock_of(strtol(e->d_name, NULL, 10));
    }
    if (d != NULL) closedir(d);
    return found;
}

static void take_reading(const rose_record_turns *t, reading *r)
{
    r->tokens = t->o.tokens(t->o.of);
    for (uint32_t i = 0; i < t->o.n_threads; i++) {
        struct timespec ts = {0};
        clock_gettime(t->clocks[i], &ts);
        r->cpu_ns[i] = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
    }
}

static void wait_ms(const rose_record_turns *t, uint32_t ms)
{
    const struct timespec tick = {0, POLL_NS};
    for (uint32_t i = 0; i < ms * 1000000u / POLL_NS; i++) {
        if (atomic_load_explicit(&t->over, memory_order_relaxed)) return;
        nanosleep(&tick, NULL);
    }
}

/* Measures one turn. Returns NULL if it does not count. */
static rose_json *one_turn(rose_record_turns *t, bool on)
{
    reading a, b;
    rose_prof_result recorded = {0};
    if (on && rose_prof_start(N_EVENTS, NULL) != ROSE_OK) return NULL;
    wait_ms(t, SETTLE_MS); /* threads that waited while memory was allocated or freed catch up */
    take_reading(t, &a);
    wait_ms(t, t->o.turn_ms);
    take_reading(t, &b);
    if (on) rose_prof_stop(NULL, &recorded, NULL);
    t->n_events += recorded.n_events;
    t->n_dropped += recorded.n_dropped;
    if (a.tokens < t->o.from || b.tokens > t->o.until || b.tokens == a.tokens) return NULL;
    const uint64_t n = b.tokens - a.tokens;
    rose_json *v = rose_json_pack("{s:I}", "tokens", (int64_t)n);
    for (uint32_t i = 0; i < t->o.n_threads; i++)
        rose_json_set_new(v, t->o.threads[i],
                          rose_json_real((double)(b.cpu_ns[i] - a.cpu_ns[i]) / (double)n));
    return v;
}

static void *turns_main(void *arg)
{
    rose_record_turns *t = arg;
    const struct timespec tick = {0, POLL_NS};
    while (t->o.tokens(t->o.of) < t->o.from &&
           !atomic_load_explicit(&t->over, memory_order_relaxed))
        nanosleep(&tick, NULL);
    /* The order alternates (off on, on off), so that a slow change of the machine affects both
     * sides equally. */
    for (uint32_t i = 0; !atomic_load_explicit(&t->over, memory_order_relaxed); i++) {
        rose_json *first = one_turn(t, i % 2 == 1), *second = one_turn(t, i % 2 == 0);
        if (first != NULL && second != NULL)
            rose_json_append_new(t->pairs,
                                 rose_json_pack("{s:O, s:O}", i % 2 == 1 ? "on" : "off", first,
                                                i % 2 == 1 ? "off" : "on", second));
        rose_json_decref(first);
        rose_json_decref(second);
    }
    return NULL;
}

rose_status rose_record_turns_start(rose_record_turns **out, const rose_record_opts *o,
                                    rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_record_turns *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t == NULL || (t->pairs = rose_json_array()) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
        goto done;
    }
    t->o = *o;
    for (uint32_t i = 0; i < o->n_threads && st == ROSE_OK; i++) {
        if (!find_thread(o->threads[i], &t->clocks[i]))
            st = rose_fail(err, ROSE_E_NOTFOUND, "no thread is called %s", o->threads[i]);
    }
    if (st == ROSE_OK && pthread_create(&t->thread, NULL, turns_main, t) != 0)
        st = rose_fail(err, ROSE_E_IO, "cannot start the thread that makes the recordings");
    if (st == ROSE_OK) *out = t;
done:
    if (st != ROSE_OK && t != NULL) {
        rose_json_decref(t->pairs);
        free(t);
    }
    return st;
}

rose_json *rose_record_turns_end(rose_record_turns *t)
{
    if (t == NULL) return NULL;
    atomic_store_explicit(&t->over, true, memory_order_relaxed);
    pthread_join(t->thread, NULL);
    rose_json *v = rose_json_pack("{s:I, s:I, s:o}", "events", (int64_t)t->n_events, "dropped",
                                  (int64_t)t->n_dropped, "pairs", t->pairs);
    free(t);
    return v;
}
