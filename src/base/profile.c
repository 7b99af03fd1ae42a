/* base/profile.c - see profile.h. There is one table of threads. While a recording runs, each
 * thread has a buffer.
 *
 * Start, stop, and threads that register or end hold one lock; recording holds none. A late event
 * must not be written into a buffer that is being read or freed. The flag `busy` prevents this. A
 * thread sets it and then reads the state. Stop clears the state and then waits until no thread is
 * busy. Either the thread sees that the recording is over, or stop sees the thread, provided that
 * both write before they read.
 *
 * The thread's barrier for that order, a locked instruction, was most of the cost of an event.
 * So stop pays for both with membarrier(2), which makes every thread of this process pass a
 * barrier. Where the kernel lacks it, threads use their own barrier. */
#include "base/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/profile_internal.h"

enum {
    RECORDING = ROSE_PROF_RECORDING,
    HOOKED = ROSE_PROF_HOOKED,
    NEXT = 4,
    MAX_PATH = 4096,
    TOUCHED_EVENTS = 1 << 16,
    TOUCH_STEP = 64
};

typedef enum slot_use {
    SLOT_FREE,
    SLOT_LIVE,
    SLOT_GONE /* the thread that owned this buffer has ended, but its events are still needed */
} slot_use;

typedef struct slot {
    alignas(64) _Atomic uint32_t busy;
    uint64_t n, cap, n_dropped; /* owned by the thread while it is busy, later by stop */
    rose_prof_event *events;    /* owned [cap]; NULL = no recording */
    char name[32];
    long tid;
    slot_use use; /* under the lock, as all below */
} slot;

_Atomic uint32_t rose_prof_state;

static slot g_slots[ROSE_PROF_MAX_THREADS];
static struct {
    pthread_mutex_t lock;
    uint64_t start_ns, n_events;
    uint32_t generation; /* number of recordings, in steps of NEXT, so that no two recordings
                          * have the same state */
    const rose_prof_source *source; /* borrowed */
    bool source_on;
    char note[160];
} g_prof = {.lock = PTHREAD_MUTEX_INITIALIZER};
static rose_prof_hooks g_hooks;
/* True until the process is registered for the kernel's memory barrier (membarrier); then false
 * for ever. Relaxed: a thread that reads it late passes one barrier too many. */
static _Atomic bool g_own_barrier = true;
static _Atomic uint64_t g_stray;   /* events of threads that have no place in the table */
static _Atomic uint64_t g_last_id; /* relaxed: only unique */
static _Thread_local slot *t_slot; /* ours, or NULL */
static pthread_key_t
    g_key; /* a thread-specific key: its destructor reports that a thread has ended */
static pthread_once_t g_once = PTHREAD_ONCE_INIT;
static bool g_key_sound;

/* ---- threads ---- */

static void leave(void *arg)
{
    slot *s = arg;
    pthread_mutex_lock(&g_prof.lock);
    t_slot = NULL;
    s->use = s->events != NULL ? SLOT_GONE : SLOT_FREE;
    pthread_mutex_unlock(&g_prof.lock);
}

static void make_key(void)
{
    g_key_sound = pthread_key_create(&g_key, leave) == 0;
}

/* Called under the lock. Returns false if out of memory; the thread's events then count as
 * dropped. */
static bool give_buffer(slot *s)
{
    s->n = s->n_dropped = s->cap = 0;
    s->events = calloc(g_prof.n_events, sizeof *s->events);
    if (s->events == NULL) return false;
    s->cap = g_prof.n_events;
    /* touch the buffer's pages here, before the recording: the kernel takes half a millisecond
     * for a huge page, which must not delay the recorded thread */
    for (uint64_t i = 0; i < s->cap && i < TOUCHED_EVENTS; i += TOUCH_STEP)
        *(volatile uint64_t *)&s->events[i].value = 0;
    return true;
}

static slot *take_slot(void)
{
    for (uint32_t i = 0; i < ROSE_PROF_MAX_THREADS; i++) {
        if (g_slots[i].use == SLOT_FREE) return &g_slots[i];
    }
    return NULL;
}

void rose_prof_thread(const char *name)
{
    pthread_once(&g_once, make_key);
    if (g_hooks.thread != NULL) g_hooks.thread(name);
    pthread_mutex_lock(&g_prof.lock);
    slot *s = t_slot != NULL ? t_slot : g_key_sound ? take_slot() : NULL;
    if (s != NULL) {
        snprintf(s->name, sizeof s->name, "%s", name);
        if (s->use == SLOT_FREE) {
            s->tid = (long)gettid();
            /* relaxed: the lock orders this read of the state, and only holders of the lock
             * write the state */
            if (atomic_load_explicit(&rose_prof_state, memory_order_relaxed) & RECORDING)
                give_buffer(s);
            s->use = SLOT_LIVE;
            t_slot = s;
            pthread_setspecific(g_key, s);
        }
    }
    pthread_mutex_unlock(&g_prof.lock);
}

/* ---- recording ---- */

/* Returns this thread's buffer, with room for one event; it stays valid until commit. Returns
 * NULL if there is none; the event then counts as dropped if a recording runs. state 0: any
 * recording. */
static inline slot *reserve(uint32_t state)
{
    slot *s = t_slot;
    if (__builtin_expect(s == NULL, 0)) {
        atomic_fetch_add_explicit(&g_stray, 1, memory_order_relaxed); /* a count */
        return NULL;
    }
    /* busy is set before the state is read, see the top of this file. relaxed: once
     * g_own_barrier is false, stop runs the barrier for both */
    if (__builtin_expect(atomic_load_explicit(&g_own_barrier, memory_order_relaxed), 0)) {
        atomic_exchange_explicit(&s->busy, 1, memory_order_seq_cst);
    } else {
        atomic_store_explicit(&s->busy, 1, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst); /* also keep the compiler from reordering */
    }
    const uint32_t now = atomic_load_explicit(&rose_prof_state, memory_order_seq_cst);
    const bool ours = state != 0 ? now == state : (now & RECORDING) != 0;
    if (__builtin_expect(ours && s->n < s->cap, 1)) return s;
    if (ours) s->n_dropped++;
    /* release: as in commit */
    atomic_store_explicit(&s->busy, 0, memory_order_release);
    return NULL;
}

static inline void commit(slot *s)
{
    s->n++;
    /* release: pairs with the load in wait_for_writers */
    atomic_store_explicit(&s->busy, 0, memory_order_release);
}

uint64_t rose_prof_begin_on(const char *name, uint32_t state, uint64_t t_ns)
{
    if (__builtin_expect(state & HOOKED, 0)) g_hooks.push(name);
    return t_ns != 0 ? t_ns : rose_now_ns();
}

uint64_t rose_prof_end_on(const char *name, uint64_t begin_ns, uint32_t state, uint64_t t_ns,
                          const char *arg, uint64_t value)
{
    if (__builtin_expect(state & HOOKED, 0)) g_hooks.pop();
    if (!(state & RECORDING)) return 0;
    const uint64_t end_ns = t_ns != 0 ? t_ns : rose_now_ns();
    slot *s = reserve(state);
    if (s == NULL) return end_ns;
    s->events[s->n] = (rose_prof_event){.name = name,
                                        .arg = arg,
                                        .begin_ns = begin_ns,
                                        .end_ns = end_ns,
                                        .value = value,
                                        .kind = ROSE_PROF_SPAN};
    commit(s);
    return end_ns;
}

bool rose_prof_recording(void)
{
    return (atomic_load_explicit(&rose_prof_state, memory_order_relaxed) & RECORDING) != 0;
}

static void put(const rose_prof_event *e)
{
    slot *s = reserve(0);
    if (s == NULL) return;
    s->events[s->n] = *e;
    commit(s);
}

void rose_prof_put(rose_prof_kind kind, const char *name, uint64_t value)
{
    if (!rose_prof_recording()) return; /* only the hooks are on */
    put(&(rose_prof_event){.name = name, .begin_ns = rose_now_ns(), .value = value, .kind = kind});
}

void rose_prof_put_async(const char *name, uint64_t id, uint64_t begin_ns, uint64_t end_ns)
{
    if (!rose_prof_recording() || id == 0 || begin_ns == 0 || end_ns < begin_ns) return;
    put(&(rose_prof_event){.name = name,
                           .begin_ns = begin_ns,
                           .end_ns = end_ns,
                           .value = id,
                           .kind = ROSE_PROF_ASYNC});
}

uint64_t rose_prof_new_id(void)
{
    return atomic_fetch_add_explicit(&g_last_id, 1, memory_order_relaxed) + 1;
}

/* ---- start and stop ---- */

static void free_buffers(void)
{
    for (uint32_t i = 0; i < ROSE_PROF_MAX_THREADS; i++) {
        slot *s = &g_slots[i];
        free(s->events);
        s->events = NULL;
        s->n = s->cap = s->n_dropped = 0;
        if (s->use == SLOT_GONE) s->use = SLOT_FREE;
    }
}

/* A second time it costs nothing. */
static void ask_for_barrier(void)
{
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0)
        atomic_store_explicit(&g_own_barrier, false, memory_order_relaxed);
}

static void start_source(void)
{
    rose_err err = {{0}};
    g_prof.note[0] = '\0';
    g_prof.source_on = false;
    if (g_prof.source == NULL) return;
    g_prof.source_on = g_prof.source->start(g_prof.source->arg, &err) == ROSE_OK;
    if (!g_prof.source_on)
        snprintf(g_prof.note, sizeof g_prof.note, "%s: %.120s", g_prof.source->name, err.msg);
}

rose_status rose_prof_start(uint32_t n_events, rose_err *err)
{
    rose_status st = ROSE_OK;
    if (n_events < ROSE_PROF_MIN_EVENTS || n_events > ROSE_PROF_MAX_EVENTS)
        return rose_fail(err, ROSE_E_INVAL,
                         "a recording of %u events a thread: %d to %d are "
                         "possible",
                         n_events, ROSE_PROF_MIN_EVENTS, ROSE_PROF_MAX_EVENTS);
    pthread_mutex_lock(&g_prof.lock);
    uint32_t state = atomic_load_explicit(&rose_prof_state, memory_order_relaxed);
    if (state & RECORDING) {
        st = ROSE_E_FULL;
        goto done;
    }
    g_prof.n_events = n_events;
    for (uint32_t i = 0; i < ROSE_PROF_MAX_THREADS && st == ROSE_OK; i++) {
        if (g_slots[i].use == SLOT_LIVE && !give_buffer(&g_slots[i])) st = ROSE_E_NOMEM;
    }
    if (st != ROSE_OK) {
        free_buffers();
        rose_fail(err, st, "no memory for a recording of %u events a thread", n_events);
        goto done;
    }
    ask_for_barrier();
    start_source();
    atomic_store_explicit(&g_stray, 0, memory_order_relaxed);
    g_prof.start_ns = rose_now_ns();
    /* seq_cst: pairs with the load in reserve; a thread that sees the new state also sees its
     * buffer */
    g_prof.generation += NEXT;
    atomic_store_explicit(&rose_prof_state, g_prof.generation | (state & HOOKED) | RECORDING,
                          memory_order_seq_cst);
done:
    pthread_mutex_unlock(&g_prof.lock);
    return st;
}

/* Called after the state was cleared: waits until threads that are writing an event have
 * finished it. */
static void wait_for_writers(void)
{
    /* cannot fail where it was promised */
    if (!atomic_load_explicit(&g_own_barrier, memory_order_relaxed))
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    for (uint32_t i = 0; i < ROSE_PROF_MAX_THREADS; i++) {
        while (atomic_load_explicit(&g_slots[i].busy, memory_order_seq_cst) != 0)
            sched_yield();
    }
}

static uint32_t list_tracks(rose_prof_track *tracks, rose_prof_result *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < ROSE_PROF_MAX_THREADS; i++) {
        const slot *s = &g_slots[i];
        if (s->use == SLOT_FREE) continue;
        tracks[n++] = (rose_prof_track){s->name, s->tid, s->events, s->n, s->n_dropped};
        r->n_events += s->n;
        r->n_dropped += s->n_dropped;
        if (s->n > 0) r->n_threads++;
    }
    r->n_dropped += atomic_load_explicit(&g_stray, memory_order_relaxed);
    return n;
}

static void write_all(FILE *f, rose_prof_track *tracks, uint32_t n_tracks, uint64_t end_ns,
                      rose_prof_result *r)
{
    rose_prof_writer w = {.file = f, .start_ns = g_prof.start_ns, .end_ns = end_ns, .first = true};
    rose_prof_json_begin(&w);
    for (uint32_t i = 0; i < n_tracks; i++)
        rose_prof_json_track(&w, &tracks[i]);
    if (g_prof.source_on) {
        rose_err why = {{0}};
        r->n_dropped += g_prof.source->write(g_prof.source->arg, &w, &why);
        if (why.msg[0] != '\0')
            snprintf(g_prof.note, sizeof g_prof.note, "%s: %.120s", g_prof.source->name, why.msg);
    }
    rose_prof_json_end(&w, tracks, n_tracks, r->n_dropped, g_prof.note);
    r->n_events = w.n_events;
    r->n_device = w.n_device;
}

static rose_status write_file(const char *path, rose_prof_track *tracks, uint32_t n_tracks,
                              uint64_t end_ns, rose_prof_result *r, rose_err *err)
{
    char part[MAX_PATH];
    struct stat stat_of;
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return rose_fail(err, ROSE_E_INVAL, "the path of the profile is too long");
    if (access(path, F_OK) == 0)
        return rose_fail(err, ROSE_E_IO, "%s: the file is there already", path);
    int fd = open(part, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f == NULL) {
        rose_fail(err, ROSE_E_IO, "create %s: %s", part, strerror(errno));
        if (fd >= 0) close(fd);
        return ROSE_E_IO;
    }
    write_all(f, tracks, n_tracks, end_ns, r);
    bool bad = fflush(f) != 0 || ferror(f) != 0;
    if (!bad && fstat(fd, &stat_of) == 0) r->file_bytes = (uint64_t)stat_of.st_size;
    bad = (fclose(f) != 0) || bad;
    if (!bad && rename(part, path) == 0) return ROSE_OK;
    rose_fail(err, ROSE_E_IO, "write %s: %s", path, strerror(errno));
    r->file_bytes = 0;
    unlink(part);
    return ROSE_E_IO;
}

rose_status rose_prof_stop(const char *path, rose_prof_result *out, rose_err *err)
{
    static rose_prof_track tracks[ROSE_PROF_MAX_THREADS]; /* under the lock */
    rose_status st = ROSE_OK;
    rose_prof_result r = {0};
    if (out != NULL) *out = r;
    pthread_mutex_lock(&g_prof.lock);
    uint32_t state = atomic_load_explicit(&rose_prof_state, memory_order_relaxed);
    if (!(state & RECORDING)) {
        st = ROSE_E_EMPTY;
        goto done;
    }
    /* seq_cst: see the head of this file */
    atomic_store_explicit(&rose_prof_state, state & HOOKED, memory_order_seq_cst);
    const uint64_t end_ns = rose_now_ns();
    wait_for_writers();
    if (g_prof.source_on) g_prof.source->stop(g_prof.source->arg);
    r.duration_ns = end_ns - g_prof.start_ns;
    const uint32_t n_tracks = list_tracks(tracks, &r);
    if (path != NULL) st = write_file(path, tracks, n_tracks, end_ns, &r, err);
    if (g_prof.source_on) g_prof.source->drop(g_prof.source->arg);
    g_prof.source_on = false;
    memcpy(r.note, g_prof.note, sizeof r.note);
    free_buffers();
    if (out != NULL) *out = r;
done:
    pthread_mutex_unlock(&g_prof.lock);
    return st;
}

void rose_prof_set_source(const rose_prof_source *s)
{
    pthread_mutex_lock(&g_prof.lock);
    if (g_prof.source_on) {
        g_prof.source->stop(g_prof.source->arg);
        g_prof.source->drop(g_prof.source->arg);
        g_prof.source_on = false;
        snprintf(g_prof.note, sizeof g_prof.note, "%s: it ended before the recording",
                 g_prof.source->name);
    }
    g_prof.source = s;
    pthread_mutex_unlock(&g_prof.lock);
}

void rose_prof_set_hooks(const rose_prof_hooks *h)
{
    g_hooks = *h;
    atomic_fetch_or_explicit(&rose_prof_state, HOOKED, memory_order_seq_cst);
}
