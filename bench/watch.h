/* bench/watch.h - reads what a server reports of itself, and what the system reports of its
 * process. Load tests check that these figures return to their first values. Main thread. */
#ifndef ROSE_BENCH_WATCH_H
#define ROSE_BENCH_WATCH_H

#include "bench/server.h"

/* Figures of /metrics, each the sum over all engines. A figure that the server does not report is
 * 0. */
typedef struct rose_watch {
    double running, waiting, kv_pages, kv_pages_free;
    double preemptions, engine_steps;
    double resident_bytes, open_fds;
} rose_watch;

/* The value of a metric in a Prometheus text, summed over its labels; 0 if the text does not
 * hold the metric. */
double rose_watch_metric(const char *text, size_t len, const char *name);

void rose_watch_parse(rose_watch *out, const char *text, size_t len);

/* Reads resident memory and open descriptors of pid from /proc, which no fault of the server can
 * falsify. Leaves *out unchanged if there is no such process. */
void rose_watch_process(rose_watch *out, pid_t pid);

/* The most memory that pid has had resident since its exec, in bytes (VmHWM of /proc); 0 if the
 * system does not report it. */
uint64_t rose_watch_peak_bytes(pid_t pid);

enum { ROSE_WATCH_MAX_THREADS = 24 };

/* How long each thread of pid waited for a CPU while it was ready to run, in ns since its start;
 * the oldest thread comes first. Returns the number of threads (at most ROSE_WATCH_MAX_THREADS), or
 * 0 if the system does not report this. */
uint32_t rose_watch_cpu_wait(pid_t pid, uint64_t wait_ns[ROSE_WATCH_MAX_THREADS]);

/* Reads all figures of the server's load by one blocking GET /metrics. Also reads the figures of
 * /proc if the server is our child. */
rose_status rose_watch_read(rose_watch *out, const rose_server *s, rose_err *err);

enum { ROSE_WATCH_PLACES = 32 };

/* What a server has counted of its speculative decoding, by vLLM's names. */
typedef struct rose_watch_guesses {
    bool known;                            /* false: the server does not report these figures */
    double drafts, draft_tokens, accepted; /* guesses that steps checked; tokens */
    uint32_t n_places;                     /* places in a guess that the server reports */
    double accepted_at[ROSE_WATCH_PLACES]; /* accepted tokens, by place in the guess */
} rose_watch_guesses;

void rose_watch_parse_guesses(rose_watch_guesses *out, const char *text, size_t len);

/* Reads them by one blocking GET /metrics with the bearer token key (may be NULL). A server without
 * /metrics is one that does not report them. */
rose_watch_guesses rose_watch_read_guesses(const rose_url *u, const char *key);

/* What was counted between two readings. Not known if either is not, or if a counter fell, because
 * another server answers at this URL now. */
rose_watch_guesses rose_watch_guesses_since(const rose_watch_guesses *before,
                                            const rose_watch_guesses *after);

/* Waits until nothing runs or waits, all pages are free, and at most max_fds descriptors are open
 * (0 = any number). *out holds the last figures. Returns false if that does not happen within
 * timeout_s. */
bool rose_watch_settle(rose_watch *out, const rose_server *s, double max_fds, uint32_t timeout_s,
                       rose_err *err);

#endif
