/* engine/engine.c - see engine.h. The engine thread owns the scheduler, the KV pages, the batch and
 * the backend. Its loop: take what arrived (cancels, submissions), plan, build the batch, enqueue
 * the step, collect the oldest one, deliver its tokens, wake the consumers once. With nothing to do
 * it sleeps on a futex.
 *
 * Running ahead (overlap): where the backend takes a step before the last one is collected, one
 * step stays in flight while the loop goes round, so all of the above happens under its
 * computation. Step N + 1 is planned on what N - 1 found; the ids that N samples are named by
 * reference (ROSE_TOKEN_OUTPUT). Whatever N then turns out to have ended (an end-of-sequence id, a
 * NaN; a cancel likewise) has a row in N + 1 that was for nothing: its sample goes to nobody, and
 * its pages are free at once, because whoever gets them writes in a later step, and steps run in
 * order. What its row wrote enters the prefix index only if the row's id is known. A step with
 * rules (penalties, logprobs, ...) is collected before anything else is done: its rules depend on
 * the ids before it, and it writes into memory of its requests.
 *
 * A request belongs to the engine thread from the push into `inbox` until its finish event is
 * published. After a backend failure the thread lives on only to answer: every request gets ERROR.
 * What it does not do: text, stop strings, retries. */
#include "engine/engine.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/allocguard.h"
#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/log.h"
#include "base/siphash.h"
#include "base/stall.h"
#include "engine/batch_internal.h"
#include "engine/load_internal.h"
#include "engine/request_internal.h"

enum { MAX_TOUCHED = 32, MAX_FLIGHTS = 2 };

/* Written by the engine thread alone, read by anybody: relaxed everywhere, nothing is published
 * through them. */
typedef struct counters {
    _Atomic uint32_t running, preempted, kv_pages_free, kv_pages_cached;
    _Atomic uint64_t steps, prompt_tokens, generated_tokens, finished, cancelled, late;
    _Atomic uint64_t last_step_ns, last_plan_ns, last_batch_ns, last_deliver_ns;
    _Atomic uint64_t prefix_queries, prefix_hits, prefix_evictions, preemptions, recomputed_tokens;
} counters;

struct rose_engine {
    /* constant after open */
    const rose_backend_ops *ops;
    rose_backend_opts backend_opts;
    rose_memory_plan plan;
    rose_arch arch;
    rose_sched_opts sched_opts;
    uint32_t max_queued_tokens;
    bool ahead;               /* a step may stay in flight */
    uint64_t salt_keys[2][2]; /* random */
    int cpu;
    rose_port *port;  /* one reference */
    rose_mpsc *inbox; /* owned: rose_request *, from submitters */
    pthread_t thread;
    bool thread_started;
    /* shared */
    alignas(64) _Atomic uint32_t n_queued; /* in the inbox or waiting; reserved by submit */
    _Atomic uint64_t n_queued_tokens;      /* of their prompts */
    _Atomic bool draining, closing, failed;
    rose_load load;
    counters stats;
    rose_engine_hists hists;
    /* engine thread */
    alignas(64) void *ctx; /* the backend's */
    rose_kv_pages *pages;  /* owned */
    rose_sched *sched;     /* owned */
    rose_batch_builder batch;
    rose_flight flights[MAX_FLIGHTS]; /* the oldest first */
    uint32_t n_flights;
    rose_request **by_seq; /* [n_seqs] by the scheduler's handle; owned array of requests */
    uint32_t n_seqs;
    uint64_t n_taken;                 /* requests */
    rose_wakeq *touched[MAX_TOUCHED]; /* sinks to signal at the end of the step */
    uint32_t n_touched;
    uint64_t collected_ns; /* the results of the last step; 0 after a sleep */
    uint64_t landed_ns;    /* and when they were delivered */
    bool spanned;          /* step_span has begun, and its step was not landed */
    rose_stall_span step_span, compute_span;
};

static void bump(_Atomic uint64_t *c, uint64_t n)
{
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

static void set(_Atomic uint64_t *c, uint64_t n)
{
    atomic_store_explicit(c, n, memory_order_relaxed);
}

/* After whatever changes who runs. */
static void update_gauges(rose_engine *e)
{
    const rose_sched_stats st = rose_sched_get_stats(e->sched);
    const rose_kv_prefix *prefix = rose_sched_prefix(e->sched);
    counters *c = &e->stats;
    atomic_store_explicit(&c->running, rose_sched_n_running(e->sched), memory_order_relaxed);
    atomic_store_explicit(&c->preempted, rose_sched_n_preempted(e->sched), memory_order_relaxed);
    atomic_store_explicit(&c->kv_pages_free, rose_kv_prefix_n_available(prefix),
                          memory_order_relaxed);
    atomic_store_explicit(&c->kv_pages_cached, rose_kv_prefix_n_idle(prefix), memory_order_relaxed);
    set(&c->prefix_queries, st.prefix_queries);
    set(&c->prefix_hits, st.prefix_hits);
    set(&c->prefix_evictions, st.evictions);
    set(&c->preemptions, st.preemptions);
    set(&c->recomputed_tokens, st.recomputed_tokens);
}

/* A request has begun, or ends without. release: pairs with the acquire in join_queue, so that who
 * gets the place finds the inbox's cell free. */
static void leave_queue(rose_engine *e, uint32_t n_prompt, uint32_t n_rows, int32_t priority)
{
    rose_load_count(&e->load, n_rows, priority, -1);
    atomic_fetch_sub_explicit(&e->n_queued_tokens, n_prompt, memory_order_relaxed);
    atomic_fetch_sub_explicit(&e->n_queued, 1, memory_order_release);
}

/* False: full, nothing is taken. */
static bool join_queue(rose_engine *e, uint32_t n_prompt, uint32_t n_rows, int32_t priority)
{
    rose_load_count(&e->load, n_rows, priority, 1);
    /* acquire: pairs with the release in leave_queue */
    uint32_t n = atomic_fetch_add_explicit(&e->n_queued, 1, memory_order_acquire);
    /* relaxed: a bound, nothing is published by it */
    uint64_t tokens =
        atomic_fetch_add_explicit(&e->n_queued_tokens, n_prompt, memory_order_relaxed);
    bool too_long =
        e->max_queued_tokens != 0 && tokens > 0 && tokens + n_prompt > e->max_queued_tokens;
    if (n < e->sched_opts.max_queued && !too_long) return true;
    leave_queue(e, n_prompt, n_rows, priority);
    return false;
}

/* ---- delivery ---- */

static void signal_sinks(rose_engine *e)
{
    for (uint32_t i = 0; i < e->n_touched; i++)
        rose_wakeq_signal(e->touched[i]);
    e->n_touched = 0;
}

static void touch_sink(rose_engine *e, rose_wakeq *sink)
{
    for (uint32_t i = e->n_touched; i-- > 0;) {
        if (e->touched[i] == sink) return;
    }
    if (e->n_touched == MAX_TOUCHED) signal_sinks(e); /* many consumers: some are told twice */
    e->touched[e->n_touched++] = sink;
}

static void publish(rose_engine *e, rose_request *r, const rose_event *ev)
{
    rose_wakeq *sink = r->sink; /* r may be gone once the event is out */
    if (!rose_request_publish(r, ev)) return;
    rose_status st = rose_wakeq_push(sink, r);
    assert(st == ROSE_OK); /* each live request is in it at most once, and it has room for all */
    (void)st;
    touch_sink(e, sink);
}

/* The end of a request: its pages and its place are free before the consumer hears of it. */
static void finish(rose_engine *e, rose_request *r, rose_event ev)
{
    assert(!r->done && ev.finish != ROSE_FINISH_NONE);
    if (r->times.admitted == 0) leave_queue(e, r->n_prompt, r->n_cost, r->priority);
    if (r->seq != UINT32_MAX) {
        /* a step that ran ahead may have computed the token that was to follow */
        rose_sched_truncate(e->sched, r->seq, r->n_prompt + r->n_generated);
        rose_sched_finish(e->sched, r->seq);
        e->by_seq[r->seq] = NULL;
        update_gauges(e);
    }
    bump(&e->stats.finished, 1);
    if (ev.finish == ROSE_FINISH_CANCELLED) bump(&e->stats.cancelled, 1);
    if (ev.finish == ROSE_FINISH_LATE) bump(&e->stats.late, 1);
    r->done = true;
    r->times.finished = ev.t_ns;
    /* relaxed: a cancel from now on is a no-op; one that came before is in the stack and holds its
     * own reference */
    atomic_store_explicit(&r->cancel_state, ROSE_CANCEL_OVER, memory_order_relaxed);
    publish(e, r, &ev);
}

static void finish_bare(rose_engine *e, rose_request *r, rose_finish why)
{
    finish(e, r, (rose_event){.t_ns = rose_now_ns(), .finish = (uint8_t)why});
}

static void finish_all(rose_engine *e, rose_finish why)
{
    for (uint32_t i = 0; i < e->n_seqs; i++) {
        if (e->by_seq[i] != NULL) finish_bare(e, e->by_seq[i], why);
    }
}

static bool is_eos(const rose_arch *a, uint32_t id)
{
    for (uint32_t i = 0; i < a->n_eos; i++) {
        if (a->eos_ids[i] == id) return true;
    }
    return false;
}

static void deliver(rose_engine *e, rose_request *r, uint32_t id, uint64_t t_ns)
{
    rose_event ev = {.t_ns = t_ns, .finish = ROSE_FINISH_NONE};
    if (r->max_tokens == 0) { /* the prompt was scored, nothing is generated */
        ev.finish = ROSE_FINISH_LENGTH;
        finish(e, r, ev);
        return;
    }
    if (id >= e->arch.vocab_size) { /* ROSE_TOKEN_NONE among them */
        ev.finish = ROSE_FINISH_NO_TOKEN;
        if (r->rules != NULL && !rose_rules_leave_one(r->rules, r->events, r->n_generated)) {
            finish(e, r, ev);
            return;
        }
        ev.finish = ROSE_FINISH_ERROR;
        rose_log(ROSE_LOG_WARN, "engine",
                 "a request ends after %u tokens: the model gave no finite logit (are its weights "
                 "sound?)",
                 r->n_generated);
        finish(e, r, ev);
        return;
    }
    ev.id = id;
    ev.has_token = 1;
    r->events[r->n_events].id = id; /* already now: finish asks for the ids of what was computed */
    if (r->n_generated++ == 0) r->times.first_token = t_ns;
    bump(&e->stats.generated_tokens, 1);
    if (r->rules != NULL) {
        rose_rules_note(r->rules, id);
        ev.stop_id = rose_rules_stops(r->rules, id);
    }
    if (ev.stop_id || (!r->ignore_eos && is_eos(&e->arch, id)))
        ev.finish = ROSE_FINISH_STOP;
    else if (r->n_generated == r->max_tokens)
        ev.finish = ROSE_FINISH_LENGTH;
    if (ev.finish != ROSE_FINISH_NONE)
        finish(e, r, ev);
    else
        publish(e, r, &ev);
}

/* ---- events in ---- */

static void take_submission(rose_engine *e, rose_request *r)
{
    /* it was checked in submit, and n_queued bounds what waits */
    bool scores = r->rules != NULL && r->rules->prompt_logprobs; /* every row is to be computed */
    const rose_sched_request q = {.n_prompt = r->n_run,
                                  .max_tokens = r->max_tokens > 0 ? r->max_tokens : 1,
                                  .priority = r->priority,
                                  .arrival = r->times.submitted / 1000000u,
                                  .salt = {{r->salt[0], r->salt[1]}},
                                  .due_ns = r->due_ns,
                                  .same_prompt = r->same_prompt,
                                  .no_lookup = r->skip_prefix_cache || scores};
    rose_status st = rose_sched_submit(e->sched, &q, &r->seq);
    if (st != ROSE_OK) {
        finish_bare(e, r, ROSE_FINISH_ERROR);
        return;
    }
    r->number = ++e->n_taken;
    e->by_seq[r->seq] = r;
}

/* False if nothing had arrived. */
static bool take_events(rose_engine *e)
{
    /* the cancels first: a request in their list was pushed into the inbox before, so after the
     * inbox is empty the scheduler knows it */
    rose_request *cancelled = rose_port_take_cancels(e->port), *r;
    bool any = cancelled != NULL;
    while (rose_mpsc_pop(e->inbox, &r) == ROSE_OK) {
        take_submission(e, r);
        any = true;
    }
    while ((r = cancelled) != NULL) {
        cancelled = r->cancel_next;
        if (!r->done) finish_bare(e, r, ROSE_FINISH_CANCELLED);
        rose_request_unref(r);
    }
    return any;
}

/* Submitters get the outlook. */
static void publish_load(rose_engine *e)
{
    const rose_sched_load now = rose_sched_get_load(e->sched);
    rose_load_publish(&e->load, &now);
}

static void sleep_until_event(rose_engine *e)
{
    publish_load(e);
    signal_sinks(e);
    e->collected_ns = 0;
    rose_port_sleep_prepare(e->port);
    /* acquire: pairs with the release in close */
    if (!take_events(e) && !atomic_load_explicit(&e->closing, memory_order_acquire))
        rose_port_sleep(e->port);
    rose_port_sleep_done(e->port);
}

/* ---- the step ---- */

static void note_admissions(rose_engine *e, const rose_sched_plan *p, uint64_t t_ns)
{
    for (uint32_t i = 0; i < p->n_admitted; i++) {
        rose_request *r = e->by_seq[p->admitted[i]];
        r->times.admitted = t_ns;
        r->n_cached = rose_sched_cached_tokens(e->sched, r->seq);
        bump(&e->stats.prompt_tokens, r->n_prompt);
        leave_queue(e, r->n_prompt, r->n_cost, r->priority);
    }
    /* some prefill: begun, or back from a preemption */
    if (p->n_prefill_seqs > 0 || p->n_preempted > 0) update_gauges(e);
}

/* What the scheduler may know of token ids. */
static void read_ids(void *user, uint32_t seq, uint32_t pos, uint32_t n, uint32_t *out)
{
    const rose_engine *e = user;
    rose_batch_copy_ids(out, e->by_seq[seq], pos, n);
}

/* Build the step and give it to the backend. From here to delivery there is no allocation, which
 * the debug build enforces. */
static rose_status launch(rose_engine *e, const rose_sched_plan *p, uint64_t plan_ns, rose_err *err)
{
    rose_flight *f = &e->flights[e->n_flights];
    f->plan = *p;
    f->plan_ns = plan_ns;
    f->planned_ns = rose_now_ns();
    rose_alloc_guard_begin("engine step");
    rose_batch_reset(&e->batch, f);
    for (uint32_t i = 0; i < p->n_items; i++)
        rose_batch_add(&e->batch, &p->items[i], e->by_seq[p->items[i].seq]);
    f->n_outputs = e->batch.batch.n_outputs;
    rose_stall_begin(&e->compute_span);
    f->step_ns = rose_now_ns();
    uint64_t idle_since = e->collected_ns > 0 ? e->collected_ns : plan_ns;
    uint64_t exposed = e->n_flights > 0 ? 0 : f->step_ns - idle_since;
    rose_status st = e->ops->step(e->ctx, &e->batch.batch, &f->ticket, err);
    rose_alloc_guard_end();
    if (st != ROSE_OK) return st;
    e->n_flights++;
    bump(&e->stats.steps, 1); /* before delivery: who has its token finds it counted */
    rose_hist_add(&e->hists.exposed_ns, &rose_hist_step, exposed);
    return ROSE_OK;
}

/* Two log lines at most: the backend's part of the step, and ours. */
static void watch_step(rose_engine *e, const rose_sched_plan *p)
{
    rose_stall_stop(&e->step_span);
    const rose_stall_span *c = &e->compute_span;
    uint32_t n_decodes = p->n_items - p->n_prefill_seqs;
    if (c->took.wall_ns > rose_stall_limit)
        rose_stall_report(ROSE_STALL_STEP_COMPUTE, c, "%u rows: %u decodes, %u prompts",
                          p->n_tokens, n_decodes, p->n_prefill_seqs);
    if (rose_stall_without(&e->step_span, c))
        rose_stall_report(ROSE_STALL_STEP_HOST, &e->step_span,
                          "%u rows: %u decodes, %u prompts; %u admitted, %u preempted", p->n_tokens,
                          n_decodes, p->n_prefill_seqs, p->n_admitted, p->n_preempted);
}

/* Those that wait and could not have their first token in time any more. */
static void refuse_late(rose_engine *e, uint64_t now_ns)
{
    uint32_t late[64], n;
    while ((n = rose_sched_late(e->sched, now_ns, late, 64)) > 0) {
        for (uint32_t i = 0; i < n; i++)
            finish_bare(e, e->by_seq[late[i]], ROSE_FINISH_LATE);
    }
    signal_sinks(e); /* they need not wait for this step */
}

static void note_step(rose_engine *e, const rose_flight *f, uint64_t before_ns)
{
    const uint64_t now = rose_now_ns();
    const uint64_t compute_from = f->step_ns > before_ns ? f->step_ns : before_ns;
    const uint64_t took = now - (f->plan_ns > e->landed_ns ? f->plan_ns : e->landed_ns);
    const uint64_t host_ns = f->step_ns - f->plan_ns + (now - e->collected_ns);
    const uint32_t n_prefill = f->plan.n_prefill_tokens;
    rose_sched_observe(e->sched, f->plan.n_tokens - n_prefill, n_prefill, took);
    publish_load(e);
    set(&e->stats.last_step_ns, took);
    set(&e->stats.last_plan_ns, f->planned_ns - f->plan_ns);
    set(&e->stats.last_batch_ns, f->step_ns - f->planned_ns);
    set(&e->stats.last_deliver_ns, now - e->collected_ns);
    rose_hist_add(&e->hists.host_ns, &rose_hist_step, host_ns);
    rose_hist_add(&e->hists.compute_ns, &rose_hist_step, e->collected_ns - compute_from);
    rose_hist_add(&e->hists.tokens, &rose_hist_tokens, f->plan.n_tokens);
    e->landed_ns = now;
    if (rose_stall_limit != 0) watch_step(e, &f->plan);
    e->spanned = false;
}

/* Wait for the oldest step in flight and deliver what it gave. */
static rose_status land(rose_engine *e, rose_err *err)
{
    rose_flight f = e->flights[0];
    rose_step_result res = {0};
    uint64_t before_ns = e->collected_ns;
    if (!e->spanned) { /* the second one of this turn */
        rose_stall_begin(&e->step_span);
        rose_stall_begin(&e->compute_span);
    }
    rose_alloc_guard_begin("engine step");
    rose_status st = e->ops->collect(e->ctx, f.ticket, &res, err);
    e->collected_ns = rose_now_ns();
    rose_stall_stop(&e->compute_span);
    if (st == ROSE_OK && res.n_outputs != f.n_outputs)
        st = rose_fail(err, ROSE_E_BACKEND, "%u ids for %u outputs", res.n_outputs, f.n_outputs);
    for (uint32_t i = 0; i < f.n_samples && st == ROSE_OK; i++) {
        const rose_flight_sample *s = &f.samples[i];
        rose_request *r = e->by_seq[s->seq];
        if (r == NULL || r->number != s->number) continue; /* it was over before */
        deliver(e, r, res.ids[s->out], e->collected_ns);
    }
    signal_sinks(e);
    rose_alloc_guard_end();
    if (st != ROSE_OK) return st;
    e->flights[0] = e->flights[1];
    e->flights[1] = f; /* its array */
    e->n_flights--;
    note_step(e, &f, before_ns);
    return ROSE_OK;
}

static void fail(rose_engine *e, const rose_err *err)
{
    e->n_flights = 0; /* their results are nobody's any more */
    /* release: pairs with the acquire in submit; what it refuses was not accepted before */
    atomic_store_explicit(&e->failed, true, memory_order_release);
    rose_log(ROSE_LOG_ERROR, "engine", "the backend %s failed, %u open requests end: %s",
             e->ops->name, rose_sched_n_running(e->sched) + rose_sched_n_waiting(e->sched),
             err->msg);
}

/* The next step into flight, and the oldest out of it; the new one stays there if it may. False:
 * there is nothing to compute and nothing in flight. */
static bool step(rose_engine *e)
{
    rose_sched_plan plan;
    rose_err err = {0};
    rose_status st = ROSE_OK;
    uint32_t stay = 0;
    if (!e->spanned)
        rose_stall_begin(&e->step_span); /* a turn that lands nothing goes on in the next */
    e->spanned = true;
    uint64_t start = rose_now_ns();
    if (e->load.ttft_slo_ns != 0) refuse_late(e, start);
    if (rose_sched_next(e->sched, &plan)) {
        note_admissions(e, &plan, start);
        st = launch(e, &plan, start, &err);
        /* a step with prompts is long: whoever arrives meanwhile shall be in the next one */
        if (e->ahead && e->batch.batch.out_rules == NULL && plan.n_prefill_seqs == 0) stay = 1;
    } else if (e->n_flights == 0) {
        e->spanned = false;
        return false;
    } else {
        rose_stall_begin(&e->compute_span);
    }
    while (st == ROSE_OK && e->n_flights > stay)
        st = land(e, &err);
    if (st != ROSE_OK) fail(e, &err);
    return true;
}

static void run(rose_engine *e)
{
    for (;;) {
        take_events(e);
        if (atomic_load_explicit(&e->closing, memory_order_acquire)) break;
        if (atomic_load_explicit(&e->failed, memory_order_relaxed)) /* our own store */
            finish_all(e, ROSE_FINISH_ERROR);
        else if (step(e))
            continue;
        sleep_until_event(e);
    }
    take_events(e); /* what was submitted before close is in the inbox by now */
    finish_all(e, ROSE_FINISH_CANCELLED);
    signal_sinks(e);
}

/* ---- open and close ---- */

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
    rose_status st = e->ops->open(&e->ctx, a->m, &e->backend_opts, &e->plan, a->err);
    a->st = st;
    sem_post(&a->opened); /* a is gone from here on */
    if (st == ROSE_OK) run(e);
    e->ops->close(e->ctx);
    e->ctx = NULL;
    return NULL;
}

/* Start the thread and wait until the backend is open (it belongs to that thread). */
static rose_status start_thread(rose_engine *e, const rose_model *m, rose_err *err)
{
    start_args a = {.e = e, .m = m, .err = err};
    sigset_t all, old;
    if (sem_init(&a.opened, 0, 0) != 0)
        return rose_fail(err, ROSE_E_IO, "engine: cannot create a semaphore");
    /* signals are for the main thread; the backend's threads inherit the mask */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&e->thread, NULL, engine_main, &a);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        a.st = rose_fail(err, ROSE_E_IO, "engine thread: %s", strerror(rc));
    } else {
        e->thread_started = true;
        while (sem_wait(&a.opened) != 0) /* EINTR */
            ;
    }
    sem_destroy(&a.opened);
    return a.st;
}

/* Keys of hashes: unknown to clients, and without effect on any result. */
static void random_words(uint64_t *out, size_t n)
{
    if (getrandom(out, n * sizeof *out, 0) == (ssize_t)(n * sizeof *out)) return;
    for (size_t i = 0; i < n; i++) /* an old kernel: better than constants */
        out[i] = rose_now_ns() * UINT64_C(0x9E3779B97F4A7C15) ^ (uintptr_t)out;
}

static rose_status build(rose_engine *e, const rose_engine_opts *o, rose_err *err)
{
    e->sched_opts = (rose_sched_opts){
        .max_seqs = e->plan.max_seqs,
        .max_step_tokens = e->plan.max_step_tokens,
        .max_model_len = e->plan.max_model_len,
        .max_queued = o->max_queued,
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
        .ids = read_ids,
        .ids_user = e};
    e->max_queued_tokens = o->max_queued_tokens;
    e->load.ttft_slo_ns = (uint64_t)o->ttft_slo_ms * 1000000u;
    random_words(e->sched_opts.hash_key, 2);
    random_words(e->salt_keys[0], 2);
    random_words(e->salt_keys[1], 2);
    rose_status st = rose_kv_pages_create(&e->pages, e->plan.kv_pages, err);
    if (st == ROSE_OK) st = rose_sched_create(&e->sched, &e->sched_opts, e->pages, err);
    if (st != ROSE_OK) return st;

    uint32_t stride = (e->plan.max_model_len - 1) / ROSE_KV_PAGE_TOKENS + 1;
    if (stride > e->plan.kv_pages) stride = e->plan.kv_pages; /* no sequence takes more */
    e->n_seqs = e->plan.max_seqs + o->max_queued;
    e->by_seq = calloc(e->n_seqs, sizeof(rose_request *));
    e->port = rose_port_create();
    bool ok = rose_batch_create(&e->batch, e->plan.max_seqs, e->plan.max_step_tokens, stride);
    for (int i = 0; i < MAX_FLIGHTS; i++)
        ok = rose_flight_create(&e->flights[i], e->plan.max_seqs) && ok;
    if (ok) ok = rose_mpsc_create(&e->inbox, o->max_queued, sizeof(rose_request *)) == ROSE_OK;
    if (!ok || e->by_seq == NULL || e->port == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "engine: out of memory");
    update_gauges(e);
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
    e->compute_span.others = true; /* a compute thread that faults holds up the step */
    e->ahead = o->overlap && (ops->caps & ROSE_CAP_AHEAD) != 0;
    rose_status st = ops->plan(m, &o->backend, &e->plan, err);
    if (st == ROSE_OK) st = build(e, o, err);
    if (st == ROSE_OK) st = start_thread(e, m, err);
    if (st != ROSE_OK) {
        rose_engine_close(e);
        return st;
    }
    rose_log(ROSE_LOG_DEBUG, "engine",
             "ready: backend %s, %u sequences, %u tokens a step, context %u, %u KV pages",
             ops->name, e->plan.max_seqs, e->plan.max_step_tokens, e->plan.max_model_len,
             e->plan.kv_pages);
    *out = e;
    return ROSE_OK;
}

void rose_engine_drain(rose_engine *e)
{
    /* relaxed: a submit that runs beside us may be on either side */
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
    rose_sched_destroy(e->sched);
    rose_kv_pages_destroy(e->pages);
    rose_batch_destroy(&e->batch);
    for (int i = 0; i < MAX_FLIGHTS; i++)
        rose_flight_destroy(&e->flights[i]);
    rose_mpsc_destroy(e->inbox);
    rose_port_unref(e->port);
    free(e->by_seq);
    free(e);
}

/* ---- submit ---- */

static rose_status check_sampling(const rose_sampling *s, rose_err *err)
{
    if (!isfinite(s->temperature) || s->temperature < 0)
        return rose_fail(err, ROSE_E_INVAL, "temperature is %g: 0 or more is possible",
                         (double)s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1)) /* written so that a NaN fails */
        return rose_fail(err, ROSE_E_INVAL, "top_p is %g: above 0, at most 1 is possible",
                         (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return rose_fail(err, ROSE_E_INVAL, "min_p is %g: 0 to 1 is possible", (double)s->min_p);
    return ROSE_OK;
}

static rose_rules_ctx rules_ctx(const rose_engine *e, const rose_request_opts *o,
                                uint32_t max_tokens)
{
    return (rose_rules_ctx){.prompt = o->prompt,
                            .n_prompt = o->n_prompt,
                            .max_tokens = max_tokens,
                            .vocab = e->arch.vocab_size,
                            .eos = e->arch.eos_ids,
                            .n_eos = o->ignore_eos ? 0 : e->arch.n_eos,
                            .caps = e->ops->caps};
}

/* Everything a submitter can do wrong; *max_tokens is what the context leaves of it. */
static rose_status check_request(const rose_engine *e, const rose_request_opts *o,
                                 uint32_t *max_tokens, rose_err *err)
{
    uint32_t len = e->plan.max_model_len;
    if (o->sink == NULL) return rose_fail(err, ROSE_E_INVAL, "the request has no sink");
    if (o->n_prompt == 0 || o->prompt == NULL)
        return rose_fail(err, ROSE_E_INVAL, "the prompt is empty");
    if (o->n_prompt >= len + (o->score_only ? 1 : 0))
        return rose_fail(err, ROSE_E_INVAL, "the prompt has %u tokens: the context holds %u",
                         o->n_prompt, len);
    for (uint32_t i = 0; i < o->n_prompt; i++) {
        if (o->prompt[i] >= e->arch.vocab_size)
            return rose_fail(err, ROSE_E_INVAL, "token %u of the prompt is %u: ids end at %u", i,
                             o->prompt[i], e->arch.vocab_size - 1);
    }
    rose_status st = check_sampling(&o->sampling, err);
    if (st != ROSE_OK) return st;
    *max_tokens = o->max_tokens < len - o->n_prompt ? o->max_tokens : len - o->n_prompt;
    if (o->score_only) *max_tokens = 0;
    if (o->rules != NULL) {
        const rose_rules_ctx c = rules_ctx(e, o, *max_tokens);
        if ((st = rose_rules_check(o->rules, &c, err)) != ROSE_OK) return st;
    }
    return rose_sched_check(&e->sched_opts, e->plan.kv_pages,
                            o->score_only ? rose_request_n_run(o->n_prompt, 0) : o->n_prompt,
                            o->score_only ? 1 : *max_tokens, err);
}

rose_status rose_engine_submit(rose_engine *e, const rose_request_opts *o, rose_request **out,
                               rose_err *err)
{
    uint32_t max_tokens = 0;
    *out = NULL;
    rose_status st = check_request(e, o, &max_tokens, err);
    if (st != ROSE_OK) return st;
    if (atomic_load_explicit(&e->failed, memory_order_acquire))
        return rose_fail(err, ROSE_E_BACKEND, "the engine has failed");
    if (atomic_load_explicit(&e->draining, memory_order_relaxed))
        return rose_fail(err, ROSE_E_CLOSED, "the engine is draining");
    uint64_t now = rose_now_ns(), slo = e->load.ttft_slo_ns;
    uint64_t due = slo != 0 ? (o->t_ns != 0 ? o->t_ns : now) + slo : 0;
    uint32_t n_rows = rose_load_rows(o, e->sched_opts.prefix_cache);
    uint32_t n_waiting = atomic_load_explicit(&e->n_queued, memory_order_relaxed);
    /* exact, unlike the load: who has an event finds its request no longer running */
    bool idle =
        n_waiting == 0 && atomic_load_explicit(&e->stats.running, memory_order_relaxed) == 0;
    if (slo != 0 && !idle && rose_load_is_late(&e->load, n_waiting, n_rows, o->priority, now, due))
        return ROSE_E_LATE;
    if (!join_queue(e, o->n_prompt, n_rows, o->priority)) return ROSE_E_FULL;
    const rose_rules_ctx c = rules_ctx(e, o, max_tokens);
    rose_request *r = rose_request_create(o, max_tokens, e->port, &c);
    if (r == NULL) {
        leave_queue(e, o->n_prompt, n_rows, o->priority);
        return rose_fail(err, ROSE_E_NOMEM, "request of %u tokens: out of memory", o->n_prompt);
    }
    if (r->rules != NULL && max_tokens > 0 && !rose_rules_leave_one(r->rules, NULL, 0)) {
        leave_queue(e, o->n_prompt, n_rows, o->priority);
        rose_request_release(r);
        return rose_fail(err, ROSE_E_INVAL,
                         "allowed_token_ids, bad_words, min_tokens and stop_token_ids together "
                         "leave no token that could be generated");
    }
    for (int k = 0; k < 2 && o->cache_salt_len > 0; k++) /* |1: never the common salt */
        r->salt[k] = rose_siphash_bytes(e->salt_keys[k], o->cache_salt, o->cache_salt_len) | 1;
    r->times.submitted = now;
    r->due_ns = due;
    r->n_cost = n_rows;
    *out = r;
    /* there is room: the inbox holds max_queued, and n_queued falls after the pop only */
    st = rose_mpsc_push(e->inbox, &r);
    if (st != ROSE_OK) {
        *out = NULL;
        leave_queue(e, o->n_prompt, n_rows, o->priority);
        rose_request_release(r);
        return st;
    }
    rose_port_wake(e->port);
    return ROSE_OK;
}

/* ---- views ---- */

uint32_t rose_engine_retry_after_s(const rose_engine *e)
{
    return rose_load_drain_s(&e->load, atomic_load_explicit(&e->n_queued, memory_order_relaxed));
}

const rose_memory_plan *rose_engine_plan(const rose_engine *e)
{
    return &e->plan;
}

const rose_arch *rose_engine_arch(const rose_engine *e)
{
    return &e->arch;
}

const rose_engine_hists *rose_engine_get_hists(const rose_engine *e)
{
    return &e->hists;
}

rose_engine_stats rose_engine_get_stats(const rose_engine *e)
{
    const counters *c = &e->stats;
    return (rose_engine_stats){
        .running = atomic_load_explicit(&c->running, memory_order_relaxed),
        .waiting = atomic_load_explicit(&e->n_queued, memory_order_relaxed) +
                   atomic_load_explicit(&c->preempted, memory_order_relaxed),
        .waiting_tokens = (uint32_t)atomic_load_explicit(&e->n_queued_tokens, memory_order_relaxed),
        .kv_pages = e->plan.kv_pages,
        .kv_pages_free = atomic_load_explicit(&c->kv_pages_free, memory_order_relaxed),
        .kv_pages_cached = atomic_load_explicit(&c->kv_pages_cached, memory_order_relaxed),
        .steps = atomic_load_explicit(&c->steps, memory_order_relaxed),
        .prompt_tokens = atomic_load_explicit(&c->prompt_tokens, memory_order_relaxed),
        .generated_tokens = atomic_load_explicit(&c->generated_tokens, memory_order_relaxed),
        .finished = atomic_load_explicit(&c->finished, memory_order_relaxed),
        .cancelled = atomic_load_explicit(&c->cancelled, memory_order_relaxed),
        .late = atomic_load_explicit(&c->late, memory_order_relaxed),
        .last_step_ns = atomic_load_explicit(&c->last_step_ns, memory_order_relaxed),
        .last_plan_ns = atomic_load_explicit(&c->last_plan_ns, memory_order_relaxed),
        .last_batch_ns = atomic_load_explicit(&c->last_batch_ns, memory_order_relaxed),
        .last_deliver_ns = atomic_load_explicit(&c->last_deliver_ns, memory_order_relaxed),
        .prefix_queries = atomic_load_explicit(&c->prefix_queries, memory_order_relaxed),
        .prefix_hits = atomic_load_explicit(&c->prefix_hits, memory_order_relaxed),
        .prefix_evictions = atomic_load_explicit(&c->prefix_evictions, memory_order_relaxed),
        .preemptions = atomic_load_explicit(&c->preemptions, memory_order_relaxed),
        .recomputed_tokens = atomic_load_explicit(&c->recomputed_tokens, memory_order_relaxed),
        .failed = atomic_load_explicit(&e->failed, memory_order_relaxed)};
}
