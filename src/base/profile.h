/* base/profile.h - records what each thread did and when, for `POST /start_profile`: spans,
 * counters, and arrows that follow each request from thread to thread. The file is in
 * Chrome's trace format, which ui.perfetto.dev and chrome://tracing show.
 *
 * When off (the default), a span or a counter costs one relaxed load and a predicted branch. A
 * build with ROSE_NO_RECORDER does not have even that, for comparison. When on, a span costs two
 * readings of the clock, fewer where the caller has read it anyway, and 48 bytes. Each thread
 * writes into its own buffer of a fixed number of events. Events that come after it is full are
 * dropped and counted, so the file holds the start of a recording and says what is missing. Buffers
 * are allocated when a recording starts, and when a thread joins a running one. Recording allocates
 * nothing and takes no lock.
 *
 * Names are literals, because only their pointers are kept. Any thread may call any function; a
 * thread is recorded from rose_prof_thread until it ends. */
#ifndef ROSE_BASE_PROFILE_H
#define ROSE_BASE_PROFILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

/* Bit 0: a recording runs. Bit 1: ranges go to the hooks. Other bits: the number of the
 * recording. Written under the recorder's lock. */
extern _Atomic uint32_t rose_prof_state;
enum { ROSE_PROF_RECORDING = 1, ROSE_PROF_HOOKED = 2 };

/* Registers the calling thread under this name (copied, 31 bytes) until it ends. A second call
 * renames it. Threads beyond ROSE_PROF_MAX_THREADS are not recorded, and their events count as
 * dropped. Call once per thread, not on the token path. */
enum { ROSE_PROF_MAX_THREADS = 256 };
void rose_prof_thread(const char *name);

/* ---- spans ---- */

typedef struct rose_prof_span {
    const char *name;
    uint64_t begin_ns;
    uint32_t state; /* 0 = not recorded */
} rose_prof_span;

/* The slow parts of the inline functions below. They take the members of a span one by one, so
 * that a span stays in registers. t_ns 0: read the clock. Both return the time used;
 * rose_prof_end_on returns 0 if nothing is recorded. */
uint64_t rose_prof_begin_on(const char *name, uint32_t state, uint64_t t_ns);
uint64_t rose_prof_end_on(const char *name, uint64_t begin_ns, uint32_t state, uint64_t t_ns,
                          const char *arg, uint64_t value);

static inline uint32_t rose_prof_state_now(void)
{
#ifdef ROSE_NO_RECORDER
    return 0;
#else
    /* relaxed: the slow parts read it again, with the order they need */
    return atomic_load_explicit(&rose_prof_state, memory_order_relaxed);
#endif
}

static inline bool rose_prof_on(void)
{
    return __builtin_expect(rose_prof_state_now() != 0, 0);
}

/* Begins a span at t_ns, a rose_now_ns value that the caller already has, so that the clock is
 * not read. 0: read it. A span that began before the recording is cut at its start. */
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

/* Ends a span, on the thread that began it; spans end in the reverse order of their starts. arg:
 * NULL, or a literal that names a figure, such as "rows". Returns the end time, at which the
 * next span may begin; 0 if nothing is recorded. */
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
    ROSE_PROF_COUNTER,
    ROSE_PROF_FLOW_BEGIN, /* starts, in the enclosing span, the arrows that join the spans of
                           * request `id` */
    ROSE_PROF_FLOW_STEP,  /* the arrows of request `id` go through the enclosing span */
    ROSE_PROF_FLOW_END,   /* the arrows of request `id` end in the enclosing span */
    ROSE_PROF_ASYNC       /* a part of request `id`, on a line of its own in the trace */
} rose_prof_kind;

/* value: of a counter its figure, of a flow the id of the request. */
void rose_prof_put(rose_prof_kind kind, const char *name, uint64_t value);
/* Records a part of request id after it has ended. Does nothing if a time is 0, because that
 * part did not happen. A part that began before the recording is cut at its start. */
void rose_prof_put_async(const char *name, uint64_t id, uint64_t begin_ns, uint64_t end_ns);

static inline void rose_prof_counter(const char *name, uint64_t value)
{
    if (rose_prof_on()) rose_prof_put(ROSE_PROF_COUNTER, name, value);
}
/* id 0: no request, nothing is recorded. */
static inline void rose_prof_flow(rose_prof_kind kind, uint64_t id)
{
    if (rose_prof_on() && id != 0) rose_prof_put(kind, "request", id);
}
static inline void rose_prof_async(const char *name, uint64_t id, uint64_t begin_ns,
                                   uint64_t end_ns)
{
    if (rose_prof_on()) rose_prof_put_async(name, id, begin_ns, end_ns);
}
/* Returns a new id that joins the spans of one request in a profile: never 0, never the same
 * twice. */
uint64_t rose_prof_new_id(void);

/* ---- recordings ---- */

typedef struct rose_prof_result {
    uint64_t n_events, n_dropped; /* events recorded (a source's included, if a file was written),
                                     and events lost */
    uint64_t duration_ns;
    uint32_t n_threads;  /* with events */
    uint64_t file_bytes; /* 0: the file was not written */
    uint64_t n_device;   /* of n_events: a source's */
    char note[160];      /* the reason why the source (for example the GPU's recorder) gave no
                          * events; "" = it gave events, or there is no source */
} rose_prof_result;

enum {
    ROSE_PROF_MIN_EVENTS = 16,
    ROSE_PROF_MAX_EVENTS = 1 << 22,
    ROSE_PROF_DEFAULT_EVENTS = 1 << 18
};

/* Starts a recording with n_events (MIN .. MAX) of 48 bytes for each thread. The first 65,536
 * are touched here, the others as they are used. Errors: FULL when a recording runs (no
 * message), INVAL, NOMEM. */
rose_status rose_prof_start(uint32_t n_events, rose_err *err);

/* Ends the recording and writes the file, to path.part, which is renamed when it is complete. A
 * path that exists is refused. path NULL: the events are thrown away. Errors: EMPTY when no
 * recording runs (no message), IO (the recording has still ended). out may be NULL. It takes as
 * long as writing does, so do not call it on the token path. */
rose_status rose_prof_stop(const char *path, rose_prof_result *out, rose_err *err);

bool rose_prof_recording(void);

/* ---- what joins in ---- */

/* Receives a source's events while the file is written. */
typedef struct rose_prof_writer rose_prof_writer;
/* Writes a span on its own line of the trace (track: a small number) and escapes its name. arg
 * NULL: no figure. */
void rose_prof_write_span(rose_prof_writer *w, uint32_t track, const char *track_name,
                          const char *name, uint64_t begin_ns, uint64_t end_ns, const char *arg,
                          uint64_t value);

/* A source: a recorder of its own, such as the GPU's. The thread that starts or stops a
 * recording calls these, with the recorder's lock held. */
typedef struct rose_prof_source {
    const char *name;                               /* "cuda" */
    rose_status (*start)(void *arg, rose_err *err); /* fails: the recording goes on without */
    void (*stop)(void *arg);                        /* after a start that did not fail */
    uint64_t (*write)(void *arg, rose_prof_writer *w, rose_err *err); /* returns what it lost */
    void (*drop)(void *arg);                                          /* forget what was recorded */
    void *arg;
} rose_prof_source;

/* There is one source at a time; NULL removes it (a running recording continues without it).
 * Borrowed. */
void rose_prof_set_source(const rose_prof_source *s);

/* Hooks give the same ranges to an external profiler (NVTX). push is called at the start of
 * every span and pop at its end, whether a recording runs or not. Set once at start, before
 * threads. */
typedef struct rose_prof_hooks {
    void (*push)(const char *name);
    void (*pop)(void);
    void (*thread)(const char *name);
} rose_prof_hooks;
void rose_prof_set_hooks(const rose_prof_hooks *h);

#endif
