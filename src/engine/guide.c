/* engine/guide.c - see guide_internal.h. */
#include "engine/guide_internal.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/profile.h"
#include "base/ring.h"
#include "engine/request_internal.h"

enum { N_QUICK = 2, MAX_SLOW = 4, CPUS_A_SLOW = 8, MAX_WORKERS = MAX_SLOW + N_QUICK };

/* ---- the guide of a request ---- */

static uint32_t n_words(uint32_t vocab)
{
    return (vocab + 31) / 32;
}

static bool is_slow(const rose_guide *g)
{
    return g->ops->is_slow != NULL && g->ops->is_slow(g->state);
}

rose_guided *rose_guided_create(const rose_request_opts *o, const rose_rules_ctx *c)
{
    const uint32_t n_stop = o->rules != NULL ? o->rules->n_stop : 0, n_ends = c->n_eos + n_stop;
    const size_t mask = n_words(c->vocab) * sizeof(uint32_t), ends = n_ends * sizeof(uint32_t);
    rose_guided *g = calloc(1, sizeof *g + mask + ends + n_ends * sizeof *g->cleared);
    if (g == NULL) return NULL;
    g->ends = g->mask + n_words(c->vocab);
    g->cleared = (bool *)(g->ends + n_ends);
    memcpy(g->ends, c->eos, c->n_eos * sizeof *g->ends);
    if (n_stop > 0) memcpy(g->ends + c->n_eos, o->rules->stop_ids, n_stop * sizeof *g->ends);
    if (c->n_guess > 0 && o->guide.ops->walk != NULL &&
        (g->deep = calloc(ROSE_SPEC_MAX, mask)) == NULL) {
        free(g);
        return NULL;
    }
    g->guide = o->guide;
    g->vocab = c->vocab;
    g->n_eos = c->n_eos;
    g->n_stop = n_stop;
    g->min_tokens = o->rules != NULL ? o->rules->min_tokens : 0;
    g->ignore_eos = o->ignore_eos;
    g->asked = true;
    g->slow = is_slow(&g->guide);
    return g;
}

void rose_guided_destroy(rose_guided *g)
{
    if (g == NULL) return;
    g->guide.ops->destroy(g->guide.state);
    free(g->deep);
    free(g);
}

bool rose_guided_allows_any(const rose_guided *g, const uint32_t *mask)
{
    uint32_t any = 0;
    for (uint32_t i = 0; i < n_words(g->vocab); i++)
        any |= mask[i];
    return any != 0;
}

/* Forbids the ids that may not end a text of n ids yet. If no other id is allowed, the text cannot
 * go on, and they stay. */
static void forbid_ends(rose_guided *g, uint32_t *mask, uint32_t n)
{
    const bool too_short = n < g->min_tokens;
    const uint32_t n_eos = too_short || g->ignore_eos ? g->n_eos : 0;
    const uint32_t first = n_eos > 0 ? 0 : g->n_eos, end = g->n_eos + (too_short ? g->n_stop : 0);
    bool cleared = false;
    for (uint32_t i = first; i < end; i++) {
        const uint32_t bit = 1u << g->ends[i] % 32;
        g->cleared[i] = (mask[g->ends[i] / 32] & bit) != 0; /* an id may be listed twice */
        cleared = cleared || g->cleared[i];
        mask[g->ends[i] / 32] &= ~bit;
    }
    if (!cleared || rose_guided_allows_any(g, mask)) return;
    for (uint32_t i = first; i < end; i++)
        if (g->cleared[i]) mask[g->ends[i] / 32] |= 1u << g->ends[i] % 32;
}

/* The guide has written the mask after a text of n ids. */
static void finish_mask(rose_guided *g, uint32_t *mask, uint32_t n)
{
    if (g->vocab % 32 != 0) mask[g->vocab / 32] &= (1u << g->vocab % 32) - 1;
    forbid_ends(g, mask, n);
}

/* The mask of the next id is there. compute: the guide may take its time. */
static void finish_next(rose_guided *g, bool compute)
{
    const rose_guide_ops *ops = g->guide.ops;
    finish_mask(g, g->mask, g->n_generated);
    g->n_ids = g->n_taken = 0;
    g->n_forced = 0;
    if (g->deep != NULL && !(compute && g->slow)) /* others wait for the threads of slow guides */
        g->n_forced = ops->propose(g->guide.state, ROSE_SPEC_MAX, g->forced, compute);
}

bool rose_guided_try(rose_guided *g)
{
    const rose_guide_ops *ops = g->guide.ops;
    for (; g->n_taken < g->n_ids; g->n_taken++)
        if (ops->try_next == NULL || !ops->try_next(g->guide.state, g->ids[g->n_taken], g->mask))
            return false;
    finish_next(g, false);
    return true;
}

const uint32_t *rose_guided_mask(const rose_guided *g, uint32_t i)
{
    return i == 0 ? g->mask : g->deep + (size_t)(i - 1) * n_words(g->vocab);
}

uint32_t rose_guided_walk(rose_guided *g, const uint32_t *ids, uint32_t n)
{
    const rose_guide_ops *ops = g->guide.ops;
    const uint32_t known = g->deep == NULL ? 0 : ops->walk(g->guide.state, ids, n, g->deep);
    for (uint32_t i = 0; i < known; i++) {
        const uint32_t *mask = rose_guided_mask(g, i);
        if ((mask[ids[i] / 32] >> ids[i] % 32 & 1) == 0)
            return i; /* min_tokens, or a wrong guide */
        finish_mask(g, g->deep + (size_t)i * n_words(g->vocab), g->n_generated + i + 1);
    }
    return known;
}

void rose_guided_work(rose_guided *g)
{
    const rose_guide_ops *ops = g->guide.ops;
    g->st = ROSE_OK;
    g->err.msg[0] = '\0';
    for (; g->n_taken < g->n_ids && g->st == ROSE_OK; g->n_taken++)
        g->st = ops->advance(g->guide.state, g->ids[g->n_taken], &g->err);
    if (g->st == ROSE_OK) g->st = ops->mask(g->guide.state, g->mask, &g->err);
    g->slow = is_slow(&g->guide);
    if (g->st != ROSE_OK && g->err.msg[0] == '\0')
        rose_fail(&g->err, g->st, "the guide of the request gave no reason");
    if (g->st == ROSE_OK) finish_next(g, true);
}

/* ---- the workers ---- */

/* The jobs of slow guides, or of the others. */
typedef struct lane {
    rose_guides *w;
    rose_mpsc *jobs;      /* owned: rose_request *, started */
    pthread_mutex_t turn; /* of the workers: the ring has one consumer at a time */
    rose_request *first;  /* with turn: jobs that were taken out of the ring, in order of arrival */
    sem_t n_jobs;         /* in the ring, in the list, or on their way into the ring */
} lane;

struct rose_guides {
    rose_port *port;               /* borrowed */
    lane lanes[2];                 /* 0: quick, 1: slow */
    _Atomic(rose_request *) ended; /* stack, linked by guided->next */
    _Atomic uint32_t n_guides;     /* places taken */
    _Atomic bool stop;
    uint32_t max_guides;
    pthread_mutex_t start; /* guards the rest */
    pthread_t threads[MAX_WORKERS];
    uint32_t n_threads, n_slow; /* the first n_slow threads are those of slow guides */
};

static uint32_t slow_workers(void)
{
    int cpus[ROSE_MAX_CPUS];
    const uint32_t allowed = rose_cpus_allowed(cpus, ROSE_MAX_CPUS), quota = rose_cpus_quota();
    const uint32_t n = (quota < allowed ? quota : allowed) / CPUS_A_SLOW;
    return n < 1 ? 1 : n > MAX_SLOW ? MAX_SLOW : n;
}

rose_guides *rose_guides_create(uint32_t max_guides, rose_port *port)
{
    rose_guides *w = calloc(1, sizeof *w);
    if (w == NULL) return NULL;
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        lane *l = &w->lanes[i];
        l->w = w;
        pthread_mutex_init(&l->turn, NULL);
        sem_init(&l->n_jobs, 0, 0); /* cannot fail with these arguments */
        ok = ok && rose_mpsc_create(&l->jobs, max_guides, sizeof(rose_request *)) == ROSE_OK;
    }
    pthread_mutex_init(&w->start, NULL);
    w->port = port;
    w->max_guides = max_guides;
    w->n_slow = slow_workers();
    if (ok) return w;
    rose_guides_destroy(w);
    return NULL;
}

rose_request **rose_guided_least(rose_request **list)
{
    rose_request **least = list;
    for (rose_request **at = list; *at != NULL; at = &(*at)->guided->next)
        if ((*at)->guided->spent_ns < (*least)->guided->spent_ns) least = at;
    return least;
}

/* With the lane's turn: moves all jobs of the ring to the end of the list. */
static void empty_ring(lane *l)
{
    rose_request **end = &l->first, *r;
    while (*end != NULL)
        end = &(*end)->guided->next;
    while (rose_mpsc_pop(l->jobs, &r) == ROSE_OK) {
        r->guided->next = NULL;
        *end = r;
        end = &r->guided->next;
    }
}

/* Waits for a job. False: the workers stop. */
static bool await_job(lane *l, rose_request **r)
{
    bool stop;
    while (sem_wait(&l->n_jobs) != 0) /* EINTR */
        ;
    pthread_mutex_lock(&l->turn);
    /* acquire: pairs with the release in destroy. The ring is empty only while a submitter is
     * within its push. */
    while (!(stop = atomic_load_explicit(&l->w->stop, memory_order_acquire))) {
        empty_ring(l);
        if (l->first != NULL) break;
        sched_yield();
    }
    if (!stop) {
        rose_request **at = rose_guided_least(&l->first);
        *r = *at;
        *at = (*r)->guided->next;
    }
    pthread_mutex_unlock(&l->turn);
    return !stop;
}

static void end_job(rose_guides *w, rose_request *r)
{
    /* relaxed: the exchange below publishes */
    rose_request *top = atomic_load_explicit(&w->ended, memory_order_relaxed);
    do {
        r->guided->next = top;
        /* release: pairs with the acquire in take; the mask is complete */
    } while (!atomic_compare_exchange_weak_explicit(&w->ended, &top, r, memory_order_release,
                                                    memory_order_relaxed));
    rose_port_wake(w->port);
}

static void *worker_main(void *arg)
{
    lane *l = arg;
    rose_request *r;
    rose_thread_setup("rose-guide", -1);
    rose_prof_thread("guide worker");
    while (await_job(l, &r)) {
        /* relaxed: an unused mask does no harm */
        if (!atomic_load_explicit(&r->guided->over, memory_order_relaxed)) {
            const rose_prof_span span = rose_prof_begin("guide.mask");
            const uint64_t begin = rose_now_ns();
            rose_guided_work(r->guided);
            r->guided->spent_ns += rose_now_ns() - begin;
            rose_prof_end(&span);
        }
        end_job(l->w, r);
    }
    return NULL;
}

/* Called under the lock `start`. */
static rose_status start_threads(rose_guides *w, rose_err *err)
{
    int rc = 0;
    while (w->n_threads < w->n_slow + N_QUICK && rc == 0) {
        lane *l = &w->lanes[w->n_threads < w->n_slow ? 1 : 0];
        rc = rose_thread_start(&w->threads[w->n_threads], worker_main, l);
        w->n_threads += rc == 0;
    }
    /* one thread of each lane is enough to go on */
    return w->n_threads > w->n_slow ? ROSE_OK
                                    : rose_fail(err, ROSE_E_IO, "guide thread: %s", strerror(rc));
}

rose_status rose_guides_enter(rose_guides *w, rose_err *err)
{
    /* relaxed: n_guides is only a bound; no other data depends on it */
    const uint32_t before = atomic_fetch_add_explicit(&w->n_guides, 1, memory_order_relaxed);
    rose_status st = before < w->max_guides ? ROSE_OK : ROSE_E_FULL;
    if (st == ROSE_OK) {
        pthread_mutex_lock(&w->start);
        if (w->n_threads <= w->n_slow) st = start_threads(w, err);
        pthread_mutex_unlock(&w->start);
    }
    if (st != ROSE_OK) rose_guides_leave(w);
    return st;
}

void rose_guides_leave(rose_guides *w)
{
    atomic_fetch_sub_explicit(&w->n_guides, 1, memory_order_relaxed);
}

void rose_guides_start(rose_guides *w, rose_request *r)
{
    lane *l = &w->lanes[r->guided->slow ? 1 : 0];
    const rose_status st = rose_mpsc_push(l->jobs, &r);
    assert(st == ROSE_OK);
    (void)st;
    sem_post(&l->n_jobs);
}

rose_request *rose_guides_take(rose_guides *w)
{
    rose_request *first = NULL, *next;
    if (atomic_load_explicit(&w->ended, memory_order_relaxed) == NULL) return NULL;
    /* acquire: pairs with the release in end_job */
    for (rose_request *r = atomic_exchange_explicit(&w->ended, NULL, memory_order_acquire);
         r != NULL; r = next) {
        next = r->guided->next;
        r->guided->next = first;
        first = r;
    }
    return first;
}

void rose_guides_destroy(rose_guides *w)
{
    rose_request *r;
    if (w == NULL) return;
    atomic_store_explicit(&w->stop, true, memory_order_release);
    for (uint32_t i = 0; i < w->n_threads; i++)
        for (int k = 0; k < 2; k++)
            sem_post(&w->lanes[k].n_jobs);
    for (uint32_t i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    for (int k = 0; k < 2; k++) {
        if (w->lanes[k].jobs != NULL) empty_ring(&w->lanes[k]);
        while ((r = w->lanes[k].first) != NULL) {
            w->lanes[k].first = r->guided->next;
            rose_request_unref(r);
        }
    }
    for (rose_request *next, *q = rose_guides_take(w); q != NULL; q = next) {
        next = q->guided->next;
        rose_request_unref(q);
    }
    for (int k = 0; k < 2; k++) {
        rose_mpsc_destroy(w->lanes[k].jobs);
        sem_destroy(&w->lanes[k].n_jobs);
        pthread_mutex_destroy(&w->lanes[k].turn);
    }
    pthread_mutex_destroy(&w->start);
    free(w);
}
