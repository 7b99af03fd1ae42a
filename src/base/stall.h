/* base/stall.h - says why a thread was late (--stall-warn-ms). A span is a piece of a thread's
 * work that should be short: an engine step, an iteration of an I/O thread's event loop, a
 * tokenizer job. A span that takes longer than the limit is counted, and a log line names the
 * cause. The thread computed, took page faults, was descheduled, or waited. The cause follows
 * from the system's figures for the thread (getrusage), which are read at the start and the end
 * of the span.
 *
 * The limit is set once at start, before threads, like the log level. When off (the default), a
 * span costs one load and a branch. When on, it costs two system calls, together 3 us on a slow
 * virtual machine. Nothing allocates. Any thread; a span belongs to one thread. */
#ifndef ROSE_BASE_STALL_H
#define ROSE_BASE_STALL_H

#include <stdbool.h>
#include <stdint.h>

typedef enum rose_stall_place {
    ROSE_STALL_STEP_HOST,    /* engine: planning, batch, delivery */
    ROSE_STALL_STEP_COMPUTE, /* engine: within the backend */
    ROSE_STALL_IO_TURN,      /* an I/O thread: one turn of its loop */
    ROSE_STALL_TOKENIZE,     /* a tokenizer worker: one job */
    ROSE_STALL_WRITE,        /* a connection: the client took no byte; no thread waited */
    ROSE_N_STALL_PLACES
} rose_stall_place;

/* "step_host", ...: the label of the counters. */
const char *rose_stall_place_name(rose_stall_place p);

/* Usage of a thread since it started. */
typedef struct rose_stall_usage {
    uint64_t wall_ns, cpu_ns;
    uint64_t minor, major;           /* page faults: without and with a read from disk */
    uint64_t voluntary, involuntary; /* context switches because the thread waited, or because
                                        another one was to run */
} rose_stall_usage;

typedef struct rose_stall_span {
    rose_stall_usage at;   /* when it began */
    rose_stall_usage took; /* once stopped */
    uint64_t others_minor,
        others_major; /* page faults of the process's other threads in the span */
    bool others; /* set by the owner before the span begins: also read others_*, at one more system
                    call */
    bool on;     /* it has begun and the watch is on */
} rose_stall_span;

extern uint64_t rose_stall_limit; /* ns, 0 = off; constant once threads run */
void rose_stall_set_limit(uint64_t ns);

/* The slow halves of what follows. */
void rose_stall_begin_on(rose_stall_span *s);
bool rose_stall_stop_on(rose_stall_span *s);

static inline void rose_stall_begin(rose_stall_span *s)
{
    if (rose_stall_limit != 0) rose_stall_begin_on(s);
}

/* True: the span took longer than the limit; report it with rose_stall_report. False if it never
 * began. */
static inline bool rose_stall_stop(rose_stall_span *s)
{
    return rose_stall_limit != 0 && rose_stall_stop_on(s);
}

/* Subtracts from s what `part`, a span within it, took; both have stopped. True: s is still over
 * the limit. */
bool rose_stall_without(rose_stall_span *s, const rose_stall_span *part);

/* Names the cause in a few words, from the usage alone. Pure. */
const char *rose_stall_cause(const rose_stall_span *s);

/* Counts a stall of the calling thread and logs it, at most one line a second for each place.
 * The next line says how many were left out. fmt: the phase and how much work it had, "chunk of
 * 512 rows". */
void rose_stall_report(rose_stall_place p, const rose_stall_span *s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As rose_stall_report, for something that took ns while no thread worked on it. */
void rose_stall_report_idle(rose_stall_place p, uint64_t ns, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

uint64_t rose_stall_count(rose_stall_place p); /* since the start */

#endif
