/* base/stall.c - see stall.h. The numbers are Linux's. getrusage(RUSAGE_THREAD) gives those of
 * the thread. RUSAGE_SELF gives the page faults of the whole process, because a compute thread
 * with a page fault delays the engine thread at the next barrier. */
#include "base/stall.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/log.h"

#define LINE_EVERY_NS UINT64_C(1000000000)

uint64_t rose_stall_limit;

/* Counters of stalls, for any thread; relaxed, because they are only counts and a rate limit. */
static struct {
    _Atomic uint64_t count, last_line, left_out;
} g_places[ROSE_N_STALL_PLACES];

void rose_stall_set_limit(uint64_t ns)
{
    rose_stall_limit = ns;
}

const char *rose_stall_place_name(rose_stall_place p)
{
    static const char *const names[ROSE_N_STALL_PLACES] = {"step_host", "step_compute", "io_turn",
                                                           "tokenize", "client_write"};
    return names[p];
}

uint64_t rose_stall_count(rose_stall_place p)
{
    return atomic_load_explicit(&g_places[p].count, memory_order_relaxed);
}

static uint64_t ns_of(struct timeval t)
{
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_usec * 1000u;
}

static rose_stall_usage usage_now(void)
{
    struct rusage thread = {0};
    rose_stall_usage u = {.wall_ns = rose_now_ns()};
    getrusage(RUSAGE_THREAD, &thread);
    u.cpu_ns = ns_of(thread.ru_utime) + ns_of(thread.ru_stime);
    u.minor = (uint64_t)thread.ru_minflt;
    u.major = (uint64_t)thread.ru_majflt;
    u.voluntary = (uint64_t)thread.ru_nvcsw;
    u.involuntary = (uint64_t)thread.ru_nivcsw;
    return u;
}

static void process_faults(const rose_stall_span *s, uint64_t *minor, uint64_t *major)
{
    struct rusage process = {0};
    if (s->others) getrusage(RUSAGE_SELF, &process);
    *minor = (uint64_t)process.ru_minflt;
    *major = (uint64_t)process.ru_majflt;
}

void rose_stall_begin_on(rose_stall_span *s)
{
    s->on = true;
    process_faults(s, &s->others_minor, &s->others_major);
    s->at = usage_now();
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static rose_stall_usage difference(const rose_stall_usage *a, const rose_stall_usage *b)
{
    return (rose_stall_usage){.wall_ns = less(a->wall_ns, b->wall_ns),
                              .cpu_ns = less(a->cpu_ns, b->cpu_ns),
                              .minor = less(a->minor, b->minor),
                              .major = less(a->major, b->major),
                              .voluntary = less(a->voluntary, b->voluntary),
                              .involuntary = less(a->involuntary, b->involuntary)};
}

bool rose_stall_stop_on(rose_stall_span *s)
{
    uint64_t minor, major;
    if (!s->on) return false;
    s->on = false;
    rose_stall_usage now = usage_now();
    process_faults(s, &minor, &major);
    s->took = difference(&now, &s->at);
    s->others_minor = less(less(minor, s->others_minor), s->took.minor);
    s->others_major = less(less(major, s->others_major), s->took.major);
    return s->took.wall_ns > rose_stall_limit;
}

bool rose_stall_without(rose_stall_span *s, const rose_stall_span *part)
{
    s->took = difference(&s->took, &part->took);
    s->others_minor = less(s->others_minor, part->others_minor);
    s->others_major = less(s->others_major, part->others_major);
    return s->took.wall_ns > rose_stall_limit;
}

/* Tells whether page faults explain the time. The first touch of a 4 KiB page costs about 0.25
 * us, of a 2 MiB page 50 us or more. At one fault for every 4 us of the span they are worth
 * naming. */
static bool many_faults(uint64_t minor, uint64_t wall_ns)
{
    return minor >= 64 && minor * 4000 >= wall_ns;
}

const char *rose_stall_cause(const rose_stall_span *s)
{
    const rose_stall_usage *u = &s->took;
    if (u->major > 0) return "it read pages from disk";
    if (s->others_major > 0) return "other threads read pages from disk";
    if (many_faults(u->minor, u->wall_ns)) return "it touched new memory";
    if (u->cpu_ns >= u->wall_ns - u->wall_ns / 4) return "it computed";
    if (many_faults(s->others_minor, u->wall_ns)) return "other threads touched new memory";
    /* A thread that loses its CPU stays runnable, which counts as involuntary; a thread that
     * waits switches voluntarily. */
    if (u->involuntary > u->voluntary) return "it was descheduled: others had its CPU";
    if (u->voluntary > 0) return "it waited";
    return "it did not run and did not switch: its CPU was taken away from below";
}

/* What a log line says besides the figures. */
typedef struct words {
    char what[160]; /* the phase and how much work it had */
    char more[48];  /* how many lines were left out before this one; "" = none */
} words;

/* Counts a stall. True: it is to be logged now, with these words. */
__attribute__((format(printf, 3, 0))) static bool count(rose_stall_place p, words *w,
                                                        const char *fmt, va_list ap)
{
    uint64_t now = rose_now_ns();
    uint64_t last = atomic_load_explicit(&g_places[p].last_line, memory_order_relaxed);
    atomic_fetch_add_explicit(&g_places[p].count, 1, memory_order_relaxed);
    if ((last != 0 && now - last < LINE_EVERY_NS) ||
        !atomic_compare_exchange_strong_explicit(&g_places[p].last_line, &last, now,
                                                 memory_order_relaxed, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&g_places[p].left_out, 1, memory_order_relaxed);
        return false;
    }
    const uint64_t n = atomic_exchange_explicit(&g_places[p].left_out, 0, memory_order_relaxed);
    w->more[0] = '\0';
    if (n > 0)
        snprintf(w->more, sizeof w->more, " (and %llu more before it)", (unsigned long long)n);
    vsnprintf(w->what, sizeof w->what, fmt, ap);
    return true;
}

void rose_stall_report(rose_stall_place p, const rose_stall_span *s, const char *fmt, ...)
{
    const rose_stall_usage *u = &s->took;
    char name[16] = "?", others[64] = "";
    words w;
    va_list ap;
    va_start(ap, fmt);
    const bool logs = count(p, &w, fmt, ap);
    va_end(ap);
    if (!logs) return;
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (s->others)
        snprintf(others, sizeof others, " (other threads: %llu, %llu)",
                 (unsigned long long)s->others_minor, (unsigned long long)s->others_major);
    rose_log(ROSE_LOG_WARN, "stall",
             "%s: %s (%s) took %.1f ms: %s. On CPU %.1f ms; page faults: %llu minor, %llu major%s; "
             "context switches: %llu voluntary, %llu involuntary%s",
             name, rose_stall_place_name(p), w.what, (double)u->wall_ns * 1e-6, rose_stall_cause(s),
             (double)u->cpu_ns * 1e-6, (unsigned long long)u->minor, (unsigned long long)u->major,
             others, (unsigned long long)u->voluntary, (unsigned long long)u->involuntary, w.more);
}

void rose_stall_report_idle(rose_stall_place p, uint64_t ns, const char *fmt, ...)
{
    words w;
    va_list ap;
    va_start(ap, fmt);
    if (count(p, &w, fmt, ap))
        rose_log(ROSE_LOG_WARN, "stall", "%s took %.1f ms: %s%s", rose_stall_place_name(p),
                 (double)ns * 1e-6, w.what, w.more);
    va_end(ap);
}
