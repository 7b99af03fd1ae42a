/* base/stall.h - says why a thread was late (--stall-warn-ms). A span is a piece of a thread's work
 * that should be short: an engine step, a turn of an I/O loop, a tokenizer job. One that takes
 * longer than the limit is counted, and a log line tells the cause apart: it computed, it took page
 * faults, it was descheduled, it waited. What the system knows of a thread (getrusage) is read at
 * the span's ends.
 *
 * The limit is set once at start, before threads, as the log level is. Off (the default) a span
 * costs one load and a branch; on, a system call at each end, 3 us together on a slow virtual
 * machine. Nothing allocates. Any thread; a span belongs to one. */
#ifndef ROSE_BASE_STALL_H
#define ROSE_BASE_STALL_H

#include <stdbool.h>
#include <stdint.h>

typedef enum rose_stall_place {
    ROSE_STALL_STEP_HOST,    /* engine: planning, batch, delivery */
    ROSE_STALL_STEP_COMPUTE, /* engine: within the backend */
    ROSE_STALL_IO_TURN,      /* an I/O thread: one turn of its loop */
    ROSE_STALL_TOKENIZE,     /* a tokenizer worker: one job */
    ROSE_STALL_WRITE,        /* a connection: the client took no byte; nobody waited */
    ROSE_N_STALL_PLACES
} rose_stall_place;

/* "step_host", ...: the label of the counters. */
const char *rose_stall_place_name(rose_stall_place p);

/* Of a thread, ever growing. */
typedef struct rose_stall_usage {
    uint64_t wall_ns, cpu_ns;
    uint64_t minor, major;           /* page faults: without and with a read from disk */
    uint64_t voluntary, involuntary; /* context switches: it waited; another was to run */
} rose_stall_usage;

typedef struct rose_stall_span {
    rose_stall_usage at;                 /* when it began */
    rose_stall_usage took;               /* once stopped */
    uint64_t others_minor, others_major; /* faults of the process's other threads meanwhile */
    bool others; /* set by the owner before it begins: read these too, one more system call */
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

/* True: it took longer than the limit; say so with rose_stall_report. False also if it never began.
 */
static inline bool rose_stall_stop(rose_stall_span *s)
{
    return rose_stall_limit != 0 && rose_stall_stop_on(s);
}

/* Leave out of s what part took, which lay within it; both stopped. True: still over the limit. */
bool rose_stall_without(rose_stall_span *s, const rose_stall_span *part);

/* The cause in a few words, by usage alone. Pure. */
const char *rose_stall_cause(const rose_stall_span *s);

/* Count a stall of the calling thread and log it, at most one line a second and place (the next one
 * says how many were left out). fmt: the phase and how much work it had, "chunk of 512 rows". */
void rose_stall_report(rose_stall_place p, const rose_stall_span *s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for something that took ns while no thread worked on it. */
void rose_stall_report_idle(rose_stall_place p, uint64_t ns, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

uint64_t rose_stall_count(rose_stall_place p); /* since the start */

#endif
