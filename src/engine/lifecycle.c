/* engine/lifecycle.c - opens and closes an engine: the plan, memory, and the engine thread,
 * which opens and owns the backend. */
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/log.h"
#include "base/profile.h"
#include "engine/engine_internal.h"
#include "model/rope.h"

#define LARGE_FILE_BYTES (UINT64_C(512) << 20)

typedef struct start_args {
    rose_engine *e;
    const rose_model *m;
    rose_err *err;
    rose_status st;
    sem_t opened;
} start_args;

static void *engine_main(void *arg)
{
    start_args *a = arg;
    rose_engine *e = a->e;
    rose_thread_setup("rose-engine", e->cpu);
    rose_prof_thread("engine");
    rose_status st = e->ops->open(&e->ctx, a->m, &e->backend_opts, &e->plan, a->err);
    a->st = st;
    sem_post(&a->opened); /* a is gone from here on */
    if (st == ROSE_OK) rose_engine_run(e);
    e->ops->close(e->ctx);
    e->ctx = NULL;
    return NULL;
}

/* The load of a large file to a GPU may take less time than one thread needs for the check. */
static uint32_t check_threads(const rose_model *m)
{
    int cpus[16];
    const uint32_t n = rose_cpus_allowed(cpus, 16) / 4;
    return m->file_bytes < LARGE_FILE_BYTES || n == 0 ? 1 : n;
}

/* Starts the thread and waits until that thread has opened the backend. The weights are checked
 * meanwhile, which costs little if a CPU is free. */
static rose_status start_thread(rose_engine *e, const rose_model *m, rose_err *err)
{
    start_args a = {.e = e, .m = m, .err = err};
    rose_err damaged = {{0}};
    if (sem_init(&a.opened, 0, 0) != 0)
        return rose_fail(err, ROSE_E_IO, "engine: cannot create a semaphore");
    int rc = rose_thread_start(&e->thread, engine_main, &a);
    if (rc != 0) {
        a.st = rose_fail(err, ROSE_E_IO, "engine thread: %s", strerror(rc));
    } else {
        e->thread_started = true;
        const rose_status finite = rose_model_check_finite(m, check_threads(m), &damaged);
        while (sem_wait(&a.opened) != 0) /* EINTR */
            ;
        /* if the backend failed because a weight is NaN or infinite, the tensor's name says more */
        if (finite != ROSE_OK) a.st = rose_fail(err, finite, "%s", damaged.msg);
    }
    sem_destroy(&a.opened);
    return a.st;
}

/* Fills the random keys of hash functions. Clients cannot know the keys, and no result depends
 * on them. */
static void random_words(uint64_t *out, size_t n)
{
    if (getrandom(out, n * sizeof *out, 0) == (ssize_t)(n * sizeof *out)) return;
    for (size_t i = 0; i < n; i++) /* an old kernel: better than constants */
        out[i] = rose_now_ns() * UINT64_C(0x9E3779B97F4A7C15) ^ (uintptr_t)out;
}

/* Guesses need several outputs of a sequence in a step, with the bits of single ones. */
const char *rose_engine_why_no_spec(const rose_backend_ops *ops, const rose_memory_plan *p)
{
    if (p->prefill == ROSE_PREFILL_NAIVE)
        return "with --prefill-backend naive the bits of a row depend on the rows beside it";
    if ((ops->caps & ROSE_CAP_REPORTS) == 0)
        return "this device gives one token a sequence and step";
    return NULL;
}

void rose_engine_spec_text(const rose_backend_ops *ops, const rose_memory_plan *p,
                           const rose_spec_opts *o, char out[ROSE_ENGINE_SPEC_TEXT])
{
    const char *why = rose_engine_why_no_spec(ops, p);
    if (o->method == ROSE_SPEC_NONE)
        snprintf(out, ROSE_ENGINE_SPEC_TEXT, "off (--no-speculation)");
    else if (why != NULL)
        snprintf(out, ROSE_ENGINE_SPEC_TEXT, "off: %s", why);
    else
        snprintf(out, ROSE_ENGINE_SPEC_TEXT,
                 "%s, up to %u tokens a guess (--no-speculation turns it off)",
                 rose_spec_method_name(o->method), o->n_tokens);
}

static rose_status create_spec(rose_engine *e, const rose_spec_opts *o, rose_err *err)
{
    const char *why = rose_engine_why_no_spec(e->ops, &e->plan);
    if (!rose_spec_wanted(o)) return ROSE_OK;
    if (why == NULL) return rose_spec_create(&e->spec, o, err);
    rose_log(ROSE_LOG_INFO, "engine", "speculation is off: %s", why);
    return ROSE_OK;
}

static rose_status build(rose_engine *e, const rose_engine_opts *o, rose_err *err)
{
    if (o->max_queued == 0 || o->max_queued > MAX_QUEUED)
        return rose_fail(err, ROSE_E_INVAL, "max_queued is %u: 1 to %d are possible", o->max_queued,
                         MAX_QUEUED);
    e->max_queued = o->max_queued;
    e->max_active = e->plan.max_seqs;
    if (o->max_active != 0 && o->max_active < e->max_active) e->max_active = o->max_active;
    /* a group of requests that finds no other request waiting may have this many
     * (rose_engine_reserve) */
    uint32_t max_waiting = e->max_queued + e->max_active;
    if (max_waiting > MAX_QUEUED) max_waiting = MAX_QUEUED;
    rose_kv_watch watch = {0};
    if (o->kv_feed != NULL) watch = rose_kv_feed_watch(o->kv_feed);
    e->feed = o->kv_feed;
    e->sched_opts = (rose_sched_opts){
        .n_pools = e->plan.n_pools,
        .keeps_from = rose_pool_keeps_from,
        .max_seqs = e->plan.max_seqs,
        .max_step_tokens = e->plan.max_step_tokens,
        .busy_step_tokens = o->offline ? 0 : e->plan.busy_step_tokens,
        .max_model_len = e->plan.max_model_len,
        .max_queued = max_waiting,
        .page_tokens = ROSE_KV_PAGE_TOKENS,
        .chunked_prefill = o->chunked_prefill,
        .prefill_chunk_size = o->prefill_chunk_size,
        .decode_first = o->decode_first,
        .prefill_max_batch = o->prefill_max_seqs,
        .prefill_max_tokens = o->prefill_max_tokens,
        .max_active = o->max_active,
        .admission = o->admission == ROSE_ENGINE_PACK ? ROSE_ADMISSION_PACK : ROSE_ADMISSION_FIFO,
        .lookahead = o->lookahead,
        .force_fifo_every = o->force_fifo_every,
        .priority_age = o->priority_age_ms,
        .itl_goal_ns = (uint64_t)o->itl_slo_ms * 1000000u,
        .prefix_cache = o->prefix_cache,
        .prefix_max_pages = o->prefix_cache_max_pages,
        .ids = rose_engine_read_ids,
        .ids_user = e,
        .watch = o->kv_feed != NULL ? &watch : NULL};
    e->max_queued_tokens = o->max_queued_tokens;
    e->load.ttft_slo_ns = (uint64_t)o->ttft_slo_ms * 1000000u;
    random_words(e->sched_opts.hash_key, 2);
    random_words(e->salt_keys[0], 2);
    random_words(e->salt_keys[1], 2);
    _Static_assert((int)ROSE_KV_MAX_POOLS == (int)ROSE_MAX_POOLS, "a table for each pool");
    rose_status st = ROSE_OK;
    for (uint32_t k = 0; k < e->plan.n_pools && st == ROSE_OK; k++) {
        e->sched_opts.windows[k] = e->plan.pools[k].window;
        st = rose_kv_pages_create(&e->sched_opts.pools[k], e->plan.pools[k].n_blocks, err);
    }
    if (st == ROSE_OK) st = rose_sched_create(&e->sched, &e->sched_opts, err);
    if (st == ROSE_OK) st = create_spec(e, &o->spec, err);
    e->sched_opts.watch = NULL; /* copied */
    if (st != ROSE_OK) return st;

    e->n_seqs = e->plan.max_seqs + max_waiting;
    e->by_seq = calloc(e->n_seqs, sizeof(rose_request *));
    e->port = rose_port_create();
    bool ok = rose_batch_create(&e->batch, e->plan.max_seqs, e->plan.max_step_tokens);
    for (int i = 0; i < MAX_FLIGHTS; i++)
        ok = rose_flight_create(&e->flights[i], e->plan.max_seqs) && ok;
    if (ok) ok = rose_mpsc_create(&e->inbox, max_waiting, sizeof(rose_request *)) == ROSE_OK;
    /* besides the open requests, some that ended while a slow guide worked for them */
    if (e->port != NULL) e->guides = rose_guides_create(2 * e->n_seqs, e->port);
    if (!ok || e->by_seq == NULL || e->port == NULL || e->guides == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "engine: out of memory");
    rose_engine_update_gauges(e);
    return ROSE_OK;
}

rose_status rose_engine_open(rose_engine **out, const rose_backend_ops *ops, const rose_model *m,
                             const rose_engine_opts *o, rose_err *err)
{
    *out = NULL;
    rose_engine *e = aligned_alloc(64, sizeof *e);
    if (e == NULL) return rose_fail(err, ROSE_E_NOMEM, "engine: out of memory");
    memset(e, 0, sizeof *e); /* all zero is the initial value of the atomics on our platforms */
    e->ops = ops;
    e->backend_opts = o->backend;
    e->arch = m->arch;
    e->cpu = o->engine_cpu;
    e->compute_span.others =
        true; /* also count page faults of compute threads, which delay the step */
    e->enqueues = (ops->caps & ROSE_CAP_AHEAD) != 0;
    e->ahead = o->overlap && e->enqueues;
    e->backend_opts.cuda.guesses = rose_spec_wanted(&o->spec);
    rose_status st = ops->plan(m, &e->backend_opts, &e->plan, err);
    if (st == ROSE_OK) rose_rope_log_context(&e->arch, e->plan.max_model_len);
    if (st == ROSE_OK) st = build(e, o, err);
    if (st == ROSE_OK) st = start_thread(e, m, err);
    if (st != ROSE_OK) {
        rose_engine_close(e);
        return st;
    }
    rose_log(ROSE_LOG_DEBUG, "engine",
             "ready: backend %s, %u sequences, %u tokens a step, context %u, %u KV pages",
             ops->name, e->plan.max_seqs, e->plan.max_step_tokens, e->plan.max_model_len,
             e->plan.pools[0].n_blocks);
    *out = e;
    return ROSE_OK;
}

void rose_engine_drain(rose_engine *e)
{
    /* relaxed: a submit at the same time may or may not see that the engine refuses requests */
    atomic_store_explicit(&e->draining, true, memory_order_relaxed);
}

void rose_engine_close(rose_engine *e)
{
    if (e == NULL) return;
    if (e->thread_started) {
        atomic_store_explicit(&e->draining, true, memory_order_relaxed);
        /* release: pairs with the acquire in the engine thread; all submissions are in the inbox */
        atomic_store_explicit(&e->closing, true, memory_order_release);
        rose_port_wake(e->port);
        pthread_join(e->thread, NULL);
        rose_engine_stats s = rose_engine_get_stats(e);
        rose_log(ROSE_LOG_DEBUG, "engine", "closed after %llu steps, %llu requests",
                 (unsigned long long)s.steps, (unsigned long long)s.finished);
    }
    rose_guides_destroy(e->guides);
    rose_sched_destroy(e->sched);
    rose_spec_destroy(e->spec);
    for (uint32_t k = 0; k < e->plan.n_pools; k++)
        rose_kv_pages_destroy(e->sched_opts.pools[k]);
    rose_batch_destroy(&e->batch);
    for (int i = 0; i < MAX_FLIGHTS; i++)
        rose_flight_destroy(&e->flights[i]);
    rose_mpsc_destroy(e->inbox);
    rose_port_unref(e->port);
    free(e->by_seq);
    free(e);
}
