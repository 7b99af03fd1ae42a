/* base/profile.h - a recorder of what each thread did when, for `POST /start_profile`: spans,
 * instants, counters, and the way of each request from thread to thread. The file it writes is
 * Chrome's trace format, which ui.perfetto.dev and chrome://tracing show.
 *
 * Off (the default) a span costs one relaxed load and a branch that is predicted, an instant the
 * same; a build with ROSE_NO_RECORDER has not even that, to measure against. On, two readings of
 * the clock, less where the caller has read it anyway, and 48 bytes. Each thread writes into its
 * own buffer, which holds a fixed number of events: what comes when it is full is dropped and
 * counted, so the file tells of the beginning of a recording and says what it lacks. Buffers are
 * allocated when a recording starts (and when a thread joins one that runs); recording allocates
 * nothing and takes no lock.
 *
 * Names are literals: they are kept as pointers. Any thread may call anything; a thread is recorded
 * from rose_prof_thread to its end. */
#ifndef ROSE_BASE_PROFILE_H
#define ROSE_BASE_PROFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

/* Bit 0: a recording runs; bit 1: ranges go to the hooks; the rest: which recording. Written under
 * the recorder's lock. */
extern _Atomic uint32_t rose_prof_state;
enum { ROSE_PROF_RECORDING = 1, ROSE_PROF_HOOKED = 2 };

/* The calling thread is recorded under this name (copied, 31 bytes), from here to its end. A second
 * call renames it. Threads beyond ROSE_PROF_MAX_THREADS are not recorded; their events count as
 * dropped. Once per thread, not on the token path. */
enum { ROSE_PROF_MAX_THREADS = 256 };
void rose_prof_thread(const char *name);

/* ---- spans ---- */

typedef struct rose_prof_span {
    const char *name;
    uint64_t begin_ns;
    uint32_t state; /* 0 = not recorded */
} rose_prof_span;

/* The slow halves of what follows; a span's members one by one, so that it lives in registers. t_ns
 * 0: the clock is read. Both return when it was, end 0 where nothing is recorded. */
uint64_t rose_prof_begin_on(const char *name, uint32_t state, uint64_t t_ns);
uint64_t rose_prof_end_on(const char *name, uint64_t begin_ns, uint32_t state, uint64_t t_ns,
                          const char *arg, uint64_t value);

static inline uint32_t rose_prof_state_now(void)
{
#ifdef ROSE_NO_RECORDER
    return 0;
#else
    /* relaxed: the slow halves look again, in order */
    return atomic_load_explicit(&rose_prof_state, memory_order_relaxed);
#endif
}

static inline bool rose_prof_on(void)
{
    return __builtin_expect(rose_prof_state_now() != 0, 0);
}

/* At t_ns, a rose_now_ns value that is at hand: such a span does not read the clock. 0: it does.
 * One that began before the recording is cut. */
static inline rose_prof_span rose_prof_begin_at(const char *name, uint64_t t_ns)
{
    rose_prof_span s = {.name = name, .state = 0};
    uint32_t state = rose_prof_state_now();
    if (__builtin_expect(state != 0, 0)) {
        const bool at_hand = t_ns != 0 && !(state & ROSE_PROF_HOOKED);
        s.begin_ns = at_hand ? t_ns : rose_prof_begin_on(name, state, t_ns);
        s.state = state;
    }
    return s;
}

static inline rose_prof_span rose_prof_begin(const char *name)
{
    return rose_prof_begin_at(name, 0);
}

/* On the thread that began it, in reverse order of the beginnings. With a figure: arg is a literal,
 * "rows", or NULL. Returns the time of the end, for what begins there; 0 where nothing is recorded.
 */
static inline uint64_t rose_prof_end_at(const rose_prof_span *s, uint64_t t_ns, const char *arg,
                                        uint64_t value)
{
    if (__builtin_expect(s->state == 0, 1)) return 0;
    return rose_prof_end_on(s->name, s->begin_ns, s->state, t_ns, arg, value);
}

static inline void rose_prof_end(const rose_prof_span *s)
{
    rose_prof_end_at(s, 0, NULL, 0);
}

static inline void rose_prof_end_with(const rose_prof_span *s, const char *arg, uint64_t value)
{
    rose_prof_end_at(s, 0, arg, value);
}

/* ---- all else; nothing when off ---- */

typedef enum rose_prof_kind {
    ROSE_PROF_SPAN,
    ROSE_PROF_INSTANT,
    ROSE_PROF_COUNTER,
    ROSE_PROF_FLOW_BEGIN, /* the way of request `id`: it begins within the span around it, */
    ROSE_PROF_FLOW_STEP,  /* goes through this one, */
    ROSE_PROF_FLOW_END,   /* and ends in this */
    ROSE_PROF_ASYNC       /* a part of request `id`, on a line of its own */
} rose_prof_kind;

void rose_prof_put(rose_prof_kind kind, const char *name, uint64_t id, uint64_t value);
/* A part of request id, known afterwards; nothing where it did not happen (a time is 0). What began
 * before the recording is cut. */
void rose_prof_put_async(const char *name, uint64_t id, uint64_t begin_ns, uint64_t end_ns);

static inline void rose_prof_instant(const char *name, uint64_t value)
{
    if (rose_prof_on()) rose_prof_put(ROSE_PROF_INSTANT, name, 0, value);
}
static inline void rose_prof_counter(const char *name, uint64_t value)
{
    if (rose_prof_on()) rose_prof_put(ROSE_PROF_COUNTER, name, 0, value);
}
/* id 0: no request, nothing is recorded. */
static inline void rose_prof_flow(rose_prof_kind kind, uint64_t id)
{
    if (rose_prof_on() && id != 0) rose_prof_put(kind, "request", id, 0);
}
static inline void rose_prof_async(const char *name, uint64_t id, uint64_t begin_ns,
                                   uint64_t end_ns)
{
    if (rose_prof_on()) rose_prof_put_async(name, id, begin_ns, end_ns);
}
/* An id for a request's way: never 0, never given twice. */
uint64_t rose_prof_new_id(void);

/* ---- recordings ---- */

typedef struct rose_prof_result {
    uint64_t n_events, n_dropped; /* recorded, a source's with them if there is a file; lost */
    uint64_t duration_ns;
    uint32_t n_threads;  /* with events */
    uint64_t file_bytes; /* 0: the file was not written */
    uint64_t n_device;   /* of n_events: a source's */
    char note[160];      /* of the source: why it gave nothing, "" = it did or there is none */
} rose_prof_result;

enum {
    ROSE_PROF_MIN_EVENTS = 16,
    ROSE_PROF_MAX_EVENTS = 1 << 22,
    ROSE_PROF_DEFAULT_EVENTS = 1 << 18
};

/* Begin: n_events for each thread, MIN .. MAX, 48 bytes each; the first 65,536 are touched here,
 * the rest as they are used. Errors:
 * FULL when a recording runs (no message), INVAL, NOMEM. */
rose_status rose_prof_start(uint32_t n_events, rose_err *err);

/* End, and write the file: to path.part, which is renamed when it is whole. A path that exists is
 * refused. path NULL: the events are thrown away. Errors: EMPTY when none runs (no message), IO
 * (the recording has ended all the same). out may be NULL. Takes as long as writing does: not on
 * the token path. */
rose_status rose_prof_stop(const char *path, rose_prof_result *out, rose_err *err);

bool rose_prof_recording(void);

/* ---- what joins in ---- */

/* Where a source's events go, while the file is written. */
typedef struct rose_prof_writer rose_prof_writer;
/* A span on a line of its own (track: small numbers), its name escaped here. arg NULL: no figure.
 */
void rose_prof_write_span(rose_prof_writer *w, uint32_t track, const char *track_name,
                          const char *name, uint64_t begin_ns, uint64_t end_ns, const char *arg,
                          uint64_t value);

/* A recorder of its own, such as the GPU's. Called with the recorder's lock held, by whoever starts
 * and stops. */
typedef struct rose_prof_source {
    const char *name;                               /* "cuda" */
    rose_status (*start)(void *arg, rose_err *err); /* fails: the recording goes on without */
    void (*stop)(void *arg);                        /* after a start that did not fail */
    uint64_t (*write)(void *arg, rose_prof_writer *w, rose_err *err); /* returns what it lost */
    void (*drop)(void *arg);                                          /* forget what was recorded */
    void *arg;
} rose_prof_source;

/* One at a time; NULL takes it away (a recording under way goes on without). Borrowed. */
void rose_prof_set_source(const rose_prof_source *s);

/* The same ranges for a profiler outside (NVTX): push and pop are called at the ends of every span,
 * recording or not. Set once at start, before threads. */
typedef struct rose_prof_hooks {
    void (*push)(const char *name);
    void (*pop)(void);
    void (*thread)(const char *name);
} rose_prof_hooks;
void rose_prof_set_hooks(const rose_prof_hooks *h);

#endif
