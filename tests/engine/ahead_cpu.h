/* Runs the CPU backend on a thread of its own, so that it takes a step before the last one is
 * collected, as a device does. step() copies the batch and returns. The worker resolves
 * references to the ids of the step before and computes. collect() waits. */
#ifndef TESTS_ENGINE_AHEAD_CPU_H
#define TESTS_ENGINE_AHEAD_CPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/batch_copy.h"

typedef struct ahead_cpu {
    void *cpu;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    uint64_t n_given, n_done, n_collected;
    bool closing;
    rose_status st;
    rose_err err;
    /* by step % 2: the worker's from given to done */
    batch_copy jobs[2];
    uint32_t *ids[2], n_ids[2];
} ahead_cpu;

static _Atomic uint64_t ahead_cpu_steps, ahead_cpu_under; /* given; given while one was computed */

static inline rose_status ahead_cpu_compute(ahead_cpu *a, uint64_t step, rose_err *err)
{
    batch_copy *job = &a->jobs[step % 2];
    rose_step_result r;
    uint64_t ticket;
    for (uint32_t i = 0; i < job->b.n_tokens; i++) {
        if (job->tokens[i] < ROSE_TOKEN_OUTPUT) continue;
        uint32_t id = a->ids[(step - 1) % 2][job->tokens[i] & ~ROSE_TOKEN_OUTPUT];
        job->tokens[i] = id == ROSE_TOKEN_NONE ? 0 : id;
    }
    rose_status st = rose_backend_cpu()->step(a->cpu, &job->b, &ticket, err);
    if (st == ROSE_OK) st = rose_backend_cpu()->collect(a->cpu, ticket, &r, err);
    if (st != ROSE_OK) return st;
    a->n_ids[step % 2] = r.n_outputs;
    memcpy(a->ids[step % 2], r.ids, r.n_outputs * sizeof *r.ids);
    return ROSE_OK;
}

static inline void *ahead_cpu_main(void *arg)
{
    ahead_cpu *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (a->n_done == a->n_given && !a->closing)
            pthread_cond_wait(&a->changed, &a->lock);
        if (a->n_done == a->n_given) break; /* closing, nothing in flight */
        uint64_t step = a->n_done + 1;
        rose_err err = {{0}};
        pthread_mutex_unlock(&a->lock);
        rose_status st = ahead_cpu_compute(a, step, &err);
        pthread_mutex_lock(&a->lock);
        if (st != ROSE_OK) a->st = st, a->err = err;
        a->n_done = step;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static inline rose_status ahead_cpu_open(void **ctx, const rose_model *m,
                                         const rose_backend_opts *o, const rose_memory_plan *p,
                                         rose_err *err)
{
    ahead_cpu *a = calloc(1, sizeof *a);
    *ctx = NULL;
    if (a == NULL) abort();
    rose_status st = rose_backend_cpu()->open(&a->cpu, m, o, p, err);
    if (st != ROSE_OK) {
        free(a);
        return st;
    }
    for (int i = 0; i < 2; i++) {
        batch_copy_create(&a->jobs[i], p);
        a->ids[i] = calloc(p->max_step_tokens, sizeof *a->ids[i]);
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    if (pthread_create(&a->thread, NULL, ahead_cpu_main, a) != 0) abort();
    *ctx = a;
    return ROSE_OK;
}

static inline rose_status ahead_cpu_step(void *ctx, const rose_batch *b, uint64_t *ticket,
                                         rose_err *err)
{
    ahead_cpu *a = ctx;
    pthread_mutex_lock(&a->lock);
    rose_status st = a->st;
    if (st == ROSE_OK && a->n_given - a->n_collected >= 2)
        st = rose_fail(err, ROSE_E_BACKEND, "three steps in flight");
    if (st == ROSE_OK) {
        batch_copy_take(&a->jobs[(a->n_given + 1) % 2], b);
        atomic_fetch_add(&ahead_cpu_steps, 1);
        if (a->n_done < a->n_given) atomic_fetch_add(&ahead_cpu_under, 1);
        *ticket = ++a->n_given;
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}

static inline rose_status ahead_cpu_collect(void *ctx, uint64_t ticket, rose_step_result *out,
                                            rose_err *err)
{
    ahead_cpu *a = ctx;
    pthread_mutex_lock(&a->lock);
    while (a->n_done < ticket)
        pthread_cond_wait(&a->changed, &a->lock);
    rose_status st = a->st;
    if (st != ROSE_OK && err != NULL) *err = a->err;
    if (st == ROSE_OK && ticket != a->n_collected + 1)
        st = rose_fail(err, ROSE_E_BACKEND, "collected out of order");
    a->n_collected = ticket;
    pthread_mutex_unlock(&a->lock);
    *out = (rose_step_result){.n_outputs = a->n_ids[ticket % 2], .ids = a->ids[ticket % 2]};
    return st;
}

static inline void ahead_cpu_close(void *ctx)
{
    ahead_cpu *a = ctx;
    if (a == NULL) return;
    pthread_mutex_lock(&a->lock);
    a->closing = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    rose_backend_cpu()->close(a->cpu);
    for (int i = 0; i < 2; i++) {
        batch_copy_destroy(&a->jobs[i]);
        free(a->ids[i]);
    }
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    free(a);
}

/* It has no more than the CPU backend has, and ROSE_CAP_AHEAD. */
static inline const rose_backend_ops *ahead_cpu_ops(void)
{
    static rose_backend_ops ops;
    ops = *rose_backend_cpu();
    ops.name = "cpu, ahead";
    ops.caps |= ROSE_CAP_AHEAD;
    ops.open = ahead_cpu_open;
    ops.step = ahead_cpu_step;
    ops.collect = ahead_cpu_collect;
    ops.close = ahead_cpu_close;
    return &ops;
}

#endif
