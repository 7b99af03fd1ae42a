/* api/worker.c - tokenizer workers: a bounded queue of jobs and the threads that take them. A
 * mutex is fast enough, because this runs once per request, not per token. Jobs are limited in
 * number and in bytes, because each holds a copy of its body. */
#include <stddef.h>
#include <stdlib.h>

#include "api/api_internal.h"
#include "base/cpuinfo.h"
#include "base/log.h"
#include "base/profile.h"

/* Most bytes of all queued long bodies together; the number of jobs limits the others. */
#define MAX_LONG_BYTES ((size_t)256 << 20)

/* Bodies from this length on are long (27 MB take a second or more). Long bodies never occupy
 * all workers. Otherwise a few of them would delay the first tokens of all other requests. */
enum { LONG_BODY = 256 << 10 };

struct rose_api_workers {
    rose_api *api;
    pthread_mutex_t lock; /* guards all below up to threads */
    pthread_cond_t more;
    TAILQ_HEAD(, rose_api_job) jobs; /* those that wait, in order of arrival */
    uint32_t n_jobs, max_jobs;
    uint32_t n_long, max_long; /* long bodies that workers have */
    rose_api_turns turns;      /* jobs that wait until they may compile a grammar */
    size_t long_bytes;         /* of those in the queue */
    bool stop;
    pthread_t *threads; /* owned */
    uint32_t n_threads; /* started */
};

/* A reply that a worker writes can take as long as a long body. */
static bool is_long(const rose_api_job *j)
{
    return j->body_len >= LONG_BODY || j->phase == ROSE_API_WRITING;
}

static rose_api_job *job_of(rose_api_turn *x)
{
    return (rose_api_job *)(void *)((char *)x - offsetof(rose_api_job, turn));
}

/* Takes the first job that may begin out of the queue; NULL: there is none. */
static rose_api_job *pick_other(rose_api_workers *w)
{
    rose_api_job *j = TAILQ_FIRST(&w->jobs);
    while (j != NULL && is_long(j) && w->n_long == w->max_long)
        j = TAILQ_NEXT(j, queue_link);
    if (j != NULL) TAILQ_REMOVE(&w->jobs, j, queue_link);
    return j;
}

/* Takes a job that may begin; NULL: there is none. One that may compile now comes first. Called
 * under the lock. */
static rose_api_job *pick(rose_api_workers *w)
{
    rose_api_turn *turn = rose_api_turns_next(&w->turns, w->n_long == w->max_long);
    rose_api_job *j = turn != NULL ? job_of(turn) : pick_other(w);
    if (j == NULL) return NULL;
    j->right = turn != NULL ? ROSE_API_TURN_RUNS : ROSE_API_NO_TURN;
    w->n_jobs--;
    if (is_long(j)) {
        w->long_bytes -= j->body_len;
        w->n_long++;
    }
    return j;
}

/* Returns the next job, in order of arrival; NULL: stop. was_long: the worker's previous job was
 * long. */
static rose_api_job *take(rose_api_workers *w, bool was_long)
{
    rose_api_job *j = NULL;
    pthread_mutex_lock(&w->lock);
    w->n_long -= was_long;
    while (!w->stop && (j = pick(w)) == NULL)
        pthread_cond_wait(&w->more, &w->lock);
    pthread_mutex_unlock(&w->lock);
    return j;
}

rose_status rose_api_workers_may_compile(rose_api_workers *w, rose_api_job *j)
{
    if (w == NULL || j->right == ROSE_API_TURN_RUNS) return ROSE_OK;
    j->turn.is_long = is_long(j);
    j->turn.gone = &j->gone;
    pthread_mutex_lock(&w->lock);
    const rose_status st = rose_api_turns_ask(&w->turns, &j->turn);
    pthread_mutex_unlock(&w->lock);
    j->right = st == ROSE_OK        ? ROSE_API_TURN_RUNS
               : st == ROSE_E_EMPTY ? ROSE_API_TURN_WAITS
                                    : ROSE_API_NO_TURN;
    return st;
}

void rose_api_workers_compiled(rose_api_workers *w, rose_api_job *j)
{
    if (w == NULL || j->right != ROSE_API_TURN_RUNS) return;
    j->right = ROSE_API_NO_TURN;
    pthread_mutex_lock(&w->lock);
    rose_api_turns_end(&w->turns, &j->turn);
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

bool rose_api_workers_idle(void *job)
{
    rose_api_job *j = job;
    rose_api_workers *w = j->api->workers;
    /* relaxed: only saves work */
    if (w == NULL || !rose_api_is_gone(j)) return false;
    pthread_mutex_lock(&w->lock);
    const bool wanted = rose_api_turns_wanted(&w->turns, &j->turn);
    pthread_mutex_unlock(&w->lock);
    return !wanted;
}

/* Puts a job back into the queue that may not compile now. */
static void put_back(rose_api_workers *w, rose_api_job *j)
{
    j->declined = false;
    pthread_mutex_lock(&w->lock);
    w->n_long -= is_long(j);
    if (is_long(j)) w->long_bytes += j->body_len;
    w->n_jobs++;
    if (j->right == ROSE_API_TURN_WAITS)
        rose_api_turns_wait(&w->turns, &j->turn);
    else
        TAILQ_INSERT_HEAD(&w->jobs, j, queue_link);
    pthread_mutex_unlock(&w->lock);
}

void rose_api_workers_write(rose_api_workers *w, rose_api_job *j)
{
    j->body_len = 0; /* the body is freed, and takes no room in the queue */
    pthread_mutex_lock(&w->lock);
    TAILQ_INSERT_HEAD(&w->jobs, j, queue_link);
    w->n_jobs++;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

static void *worker_main(void *arg)
{
    rose_api_workers *w = arg;
    rose_encoder *enc = NULL;
    rose_api_job *j;
    bool was_long = false;
    rose_prof_thread("tokenizer worker");
    while ((j = take(w, was_long)) != NULL) {
        rose_err err = {0};
        was_long = is_long(j);
        rose_api_io *io = j->io;
        /* Jobs exist only after set_engine, so the tokenizer is there. */
        if (j->phase == ROSE_API_WRITING)
            j->dialect->whole(&j->reply, j);
        else if (enc == NULL && rose_encoder_create(&enc, w->api->tok, &err) != ROSE_OK)
            rose_api_fail_nomem(&j->err);
        else
            rose_api_job_process(j, enc);
        if (j->declined) {
            was_long = false;
            put_back(w, j);
            continue;
        }
        rose_api_workers_compiled(w, j); /* if it has the right and did not use it */
        /* The done queue is never full: it has room for twice the jobs that the I/O thread
         * admits. */
        rose_wakeq_push(io->done, j);
        rose_wakeq_signal(io->done);
    }
    rose_encoder_destroy(enc);
    return NULL;
}

/* Compiling keeps a CPU busy for up to half a second, and on the CPU backend the steps of all
 * requests wait for the slowest CPU. So it gets one CPU of four, and at most half of n workers; but
 * two workers if it can, because one place is kept for grammars that take milliseconds. */
static uint32_t most_compiling(uint32_t n)
{
    int cpus[ROSE_MAX_CPUS];
    const uint32_t allowed = rose_cpus_allowed(cpus, ROSE_MAX_CPUS), quota = rose_cpus_quota();
    const uint32_t quarter = (quota < allowed ? quota : allowed) / 4;
    const uint32_t most = quarter > 2 ? quarter : 2, half = n / 2 < most ? n / 2 : most;
    return half > 1 ? half : 1;
}

rose_status rose_api_workers_create(rose_api_workers **out, rose_api *a, uint32_t n,
                                    uint32_t max_jobs, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_api_workers *w = calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) return rose_fail(err, ROSE_E_NOMEM, "api: out of memory");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    TAILQ_INIT(&w->jobs);
    w->api = a;
    w->max_jobs = max_jobs;
    w->max_long = n > 1 ? n - 1 : 1;
    rose_api_turns_init(&w->turns, most_compiling(n), max_jobs > 1 ? max_jobs / 2 : 1);
    if ((w->threads = calloc(n, sizeof *w->threads)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "api: out of memory");
        goto done;
    }
    for (; w->n_threads < n; w->n_threads++) {
        if (pthread_create(&w->threads[w->n_threads], NULL, worker_main, w) != 0) {
            st =
                rose_fail(err, ROSE_E_NOMEM, "api: cannot start tokenizer worker %u", w->n_threads);
            goto done;
        }
        pthread_setname_np(w->threads[w->n_threads], "rose-tokenize");
    }
    *out = w;
done:
    if (st != ROSE_OK) rose_api_workers_destroy(w);
    return st;
}

bool rose_api_workers_push(rose_api_workers *w, rose_api_job *j)
{
    pthread_mutex_lock(&w->lock);
    const size_t more = is_long(j) ? j->body_len : 0;
    bool room = w->n_jobs < w->max_jobs && (more == 0 || w->long_bytes + more <= MAX_LONG_BYTES);
    /* One body of any size may enter an empty queue. */
    if (room || w->n_jobs == 0) {
        room = true;
        j->declined = false;
        TAILQ_INSERT_TAIL(&w->jobs, j, queue_link);
        w->n_jobs++;
        w->long_bytes += more;
        pthread_cond_signal(&w->more);
    }
    pthread_mutex_unlock(&w->lock);
    return room;
}

void rose_api_workers_destroy(rose_api_workers *w)
{
    rose_api_job *j;
    if (w == NULL) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    while ((j = TAILQ_FIRST(&w->jobs)) != NULL) {
        TAILQ_REMOVE(&w->jobs, j, queue_link);
        rose_api_job_free(j);
    }
    while (w->turns.first != NULL) {
        j = job_of(w->turns.first);
        w->turns.first = j->turn.next;
        rose_api_job_free(j);
    }
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w->threads);
    free(w);
}
