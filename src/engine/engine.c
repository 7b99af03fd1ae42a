/* engine/engine.c - see engine.h. The engine thread owns the scheduler, the KV pages, the batch and
 * the backend. Its loop: take arrivals (cancels, submissions), plan, build the batch, enqueue the
 * step, collect the oldest one, deliver its tokens, wake the consumers once. With nothing to do it
 * sleeps on a futex. Waking a consumer is a system call and the most expensive part of a small
 * step. If step() only enqueues and no other step is in flight, waking therefore waits until the
 * device has its next step.
 *
 * Running ahead (overlap): if the backend takes a step before the last one is collected, one step
 * stays in flight while the loop runs. The host's work then happens during the step's computation.
 * Step N + 1 is planned on the results of N - 1; it refers to the ids that N samples by
 * ROSE_TOKEN_OUTPUT. Step N may turn out to end a sequence (an end-of-sequence id, a NaN), and a
 * cancel may too. The row of that sequence in N + 1 is then wasted: its sample is dropped. Its
 * pages are free at once, because steps run in order and a new owner writes them in a later step.
 * The K and V of the row enter the prefix index only if the row's id is known. A step with rules
 * (penalties, logprobs, ...) is collected before anything else is done. Its rules depend on the ids
 * before it, and it writes into memory of its requests. So does a step with pooled requests.
 *
 * A request with a guide has a row in a step that samples only after the mask of the sample is
 * there (guide_internal.h). It never has rows in two steps in flight.
 *
 * Speculation (spec/spec.h): when all ids of a request are known, its next ids are guessed, as many
 * as are worth their rows. The step samples after each of them too. The ids up to and with the
 * first that differs from the guess are those that steps of one token would give, because rows,
 * random numbers and rules of a position do not depend on the step. A request with a guess in
 * flight is in no second step. A request that runs ahead gets no guess, because its last id is not
 * known. If a guess would have been worth it, the next step is collected before the plan.
 *
 * A request belongs to the engine thread from the push into `inbox` until its finish event is
 * published. After a backend failure the thread lives on only to answer: every request gets
 * ERROR. The engine does not handle text, stop strings or retries. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/allocguard.h"
#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/log.h"
#include "base/profile.h"
#include "engine/engine_internal.h"

enum {
    FEW_WAITING = 16,     /* the requests that wait for a step are few if at most 1 of 16 does */
    MASK_WAIT_SHARE = 16, /* a step waits for masks for at most this part of the last step */
    MASK_WAIT_NS = 2 * 1000000, /* and for at most this time */
    FEED_PAGES = 256,           /* pages that one step looks at when the feed has lost changes */
    FEED_RETRY_NS = 1000000,    /* an idle engine tries again after this time */
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

/* A recorded span has read the clock at its end; the next span uses that time as its start. */
static uint64_t or_now(uint64_t t_ns)
{
    return t_ns != 0 ? t_ns : rose_now_ns();
}

/* After each step, because requests take pages as they grow, and after whatever changes who runs.
 * The pages are those of the fullest pool, in pages of the first. */
void rose_engine_update_gauges(rose_engine *e)
{
    const rose_sched_stats st = rose_sched_get_stats(e->sched);
    const rose_kv_prefix *prefix = rose_sched_prefix(e->sched);
    rose_counters *c = &e->stats;
    uint32_t n_free = UINT32_MAX, n_idle = 0;
    for (uint32_t k = 0; k < e->plan.n_pools; k++) {
        const uint64_t first = e->plan.pools[0].n_blocks, total = e->plan.pools[k].n_blocks;
        const uint64_t n = rose_kv_prefix_n_available(prefix, k) * first / total;
        if (n >= n_free) continue;
        n_free = (uint32_t)n;
        n_idle = (uint32_t)(rose_kv_prefix_n_idle(prefix, k) * first / total);
    }
    atomic_store_explicit(&c->running, rose_sched_n_running(e->sched), memory_order_relaxed);
    atomic_store_explicit(&c->preempted, rose_sched_n_preempted(e->sched), memory_order_relaxed);
    atomic_store_explicit(&c->kv_pages_free, n_free, memory_order_relaxed);
    atomic_store_explicit(&c->kv_pages_cached, n_idle, memory_order_relaxed);
    set(&c->prefix_queries, st.prefix_queries);
    set(&c->prefix_hits, st.prefix_hits);
    set(&c->prefix_evictions, st.evictions);
    set(&c->preemptions, st.preemptions);
    set(&c->recomputed_tokens, st.recomputed_tokens);
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

/* Shows the consumer of r its new events. */
static void publish(rose_engine *e, rose_request *r)
{
    rose_wakeq *sink = r->sink; /* r may be gone once the events are out */
    if (!rose_request_publish(r)) return;
    rose_status st = rose_wakeq_push(sink, r);
    assert(st == ROSE_OK); /* cannot fail: each live request is in its sink at most once, and the
                              sink has room for all */
    (void)st;
    touch_sink(e, sink);
}

/* Ends a request. Its pages and its place are free before the consumer learns of it. */
static void finish(rose_engine *e, rose_request *r, rose_event ev)
{
    assert(!r->done && ev.finish != ROSE_FINISH_NONE);
    if (r->times.admitted == 0) rose_engine_leave_queue(e, r->n_prompt, r->n_cost, r->priority);
    if (r->seq != UINT32_MAX) {
        /* the following step, which was enqueued early, may already have computed the next token */
        rose_sched_truncate(e->sched, r->seq, r->n_prompt + r->n_generated);
        rose_sched_finish(e->sched, r->seq);
        e->by_seq[r->seq] = NULL;
        rose_engine_update_gauges(e);
    }
    if (r->guided != NULL) {
        /* relaxed: if a job misses it, only its work is unused */
        atomic_store_explicit(&r->guided->over, true, memory_order_relaxed);
        if (!r->guided->asked) rose_guides_leave(e->guides); /* else when its job ends */
    }
    if (r->text != NULL) rose_spec_end(e->spec, r->text);
    bump(&e->stats.finished, 1);
    if (ev.finish == ROSE_FINISH_CANCELLED) bump(&e->stats.cancelled, 1);
    if (ev.finish == ROSE_FINISH_LATE) bump(&e->stats.late, 1);
    r->done = true;
    r->times.finished = ev.t_ns;
    /* relaxed: a cancel from now on does nothing; an earlier one is in the stack and holds its
     * own reference */
    atomic_store_explicit(&r->cancel_state, ROSE_CANCEL_OVER, memory_order_relaxed);
    rose_request_append(r, &ev);
    publish(e, r);
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

/* Tells whether the rules and the guide of r leave an id that could come next. */
static bool leaves_one(const rose_request *r)
{
    const rose_guided *g = r->guided; /* n_ids: of this step, which its guide does not have yet */
    const uint32_t *mask = g != NULL ? rose_guided_mask(g, g->n_ids) : NULL;
    if (r->rules != NULL) return rose_rules_leave_one(r->rules, mask, r->events, r->n_generated);
    return g == NULL || rose_guided_allows_any(g, mask);
}

/* ---- guesses ---- */

/* How many tokens a guess is likely to save. */
static float worth(const rose_spec_guess *g)
{
    float sum = 0;
    for (uint32_t i = 0; i < g->n; i++)
        sum += g->chance[i];
    return sum;
}

/* The best guess of at most cap ids for a request with a text. */
static void find_guess(const rose_engine *e, rose_request *r, uint32_t cap)
{
    rose_spec_guess *g = &r->guess, forced = {.n = 0};
    rose_spec_guess_next(e->spec, r->text, cap, g);
    if (r->guided == NULL || r->guided->n_forced == 0) return;
    forced.n = r->guided->n_forced < cap ? r->guided->n_forced : cap;
    memcpy(forced.ids, r->guided->forced, forced.n * sizeof *forced.ids);
    rose_spec_rate(e->spec, r->text, ROSE_SPEC_FROM_GRAMMAR, &forced);
    if (worth(&forced) > worth(g)) *g = forced;
}

/* Guesses what follows the known ids of r. The ids that are worth a row are in the next plan, if no
 * id of r is in flight. Else they only tell whether the next plan should wait. */
static void guess(rose_engine *e, rose_request *r, bool in_flight)
{
    rose_spec_guess *g = &r->guess;
    uint32_t n = 0;
    if (r->text == NULL) return;
    find_guess(e, r, r->max_tokens - r->n_generated - 1);
    while (n < g->n && g->ids[n] < e->arch.vocab_size && (double)g->chance[n] >= e->least_chance)
        n++;
    if (r->guided != NULL) n = rose_guided_walk(r->guided, g->ids, n);
    r->eager = n > (in_flight ? 1 : 0);
    if (in_flight) return;
    for (uint32_t i = 0; i < n; i++)
        r->events[r->n_generated + i].id = g->ids[i];
    rose_sched_guess(e->sched, r->seq, n);
    if (n == 0 && g->n > 0) rose_spec_learn(e->spec, r->text, g, 0, 0);
}

/* Lets the guide of r advance by the ids of a step and compute the next mask. */
static void ask_guide(rose_engine *e, rose_request *r)
{
    rose_guided *g = r->guided;
    g->n_generated = r->n_generated;
    if (rose_guided_try(g)) {
        rose_sched_allow(e->sched, r->seq);
        guess(e, r, false);
        return;
    }
    g->asked = true;
    g->round = g->slow ? 0 : e->round; /* no step waits for a slow guide */
    e->n_due += g->round != 0;
    /* relaxed: the push of the job publishes */
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    rose_guides_start(e->guides, r);
}

/* The mask of r's next id is there, or the guide failed. */
static void take_mask(rose_engine *e, rose_request *r)
{
    if (r->guided->st == ROSE_OK) {
        rose_sched_allow(e->sched, r->seq);
        if (r->n_generated > 0) guess(e, r, false);
        return;
    }
    r->guide_failed = true;
    finish_bare(e, r, ROSE_FINISH_GUIDE);
}

/* Appends the next id of r, or ends r with it. Returns whether r goes on. */
static bool deliver(rose_engine *e, rose_request *r, uint32_t id, uint64_t t_ns)
{
    rose_event ev = {.t_ns = t_ns, .finish = ROSE_FINISH_NONE};
    if (r->max_tokens == 0) { /* the prompt was only scored or pooled; nothing is generated */
        ev.finish = ROSE_FINISH_LENGTH;
        if (r->pool != ROSE_POOL_NONE && !rose_request_finish_state(r)) {
            ev.finish = ROSE_FINISH_ERROR;
            rose_log(ROSE_LOG_WARN, "engine",
                     "an embedding of %u tokens is not finite (are the model's weights sound?)",
                     r->n_prompt);
        }
        finish(e, r, ev);
        return false;
    }
    if (id >= e->arch.vocab_size) { /* ROSE_TOKEN_NONE among them */
        ev.finish = ROSE_FINISH_NO_TOKEN;
        if (!leaves_one(r)) {
            finish(e, r, ev);
            return false;
        }
        ev.finish = ROSE_FINISH_ERROR;
        rose_log(ROSE_LOG_WARN, "engine",
                 "a request ends after %u tokens: the model gave no finite logit (are its weights "
                 "sound?)",
                 r->n_generated);
        finish(e, r, ev);
        return false;
    }
    ev.id = id;
    ev.has_token = 1;
    r->events[r->n_events].id =
        id; /* store the id now, because finish asks for the ids of computed tokens */
    if (r->n_generated++ == 0) {
        r->times.first_token = t_ns;
        rose_prof_flow(ROSE_PROF_FLOW_STEP, r->prof_id);
    }
    bump(&e->stats.generated_tokens, 1);
    if (r->text != NULL) rose_spec_add(e->spec, r->text, &id, 1);
    if (r->rules != NULL) {
        rose_rules_note(r->rules, id);
        ev.stop_id = rose_rules_stops(r->rules, id);
    }
    /* a guide allows nothing after the end of the text */
    if (ev.stop_id || ((!r->ignore_eos || r->guided != NULL) && rose_arch_is_eos(&e->arch, id)))
        ev.finish = ROSE_FINISH_STOP;
    else if (r->n_generated == r->max_tokens)
        ev.finish = ROSE_FINISH_LENGTH;
    if (ev.finish != ROSE_FINISH_NONE) {
        finish(e, r, ev);
        return false;
    }
    if (r->guided != NULL) r->guided->ids[r->guided->n_ids++] = id;
    rose_request_append(r, &ev);
    return true;
}

/* The results of a guess of n_tried ids are there. Returns how many ids were right. */
static uint32_t check_guess(rose_engine *e, rose_request *r, const uint32_t *ids, uint32_t n_tried)
{
    uint32_t n = 0;
    if (n_tried == 0) return 0;
    while (n < n_tried && ids[n] == r->guess.ids[n])
        n++;
    rose_sched_accept(e->sched, r->seq, n);
    rose_spec_learn(e->spec, r->text, &r->guess, n_tried, n);
    return n;
}

/* Delivers the outputs of r in a step, of which the first n - 1 may be as guessed. */
static void deliver_all(rose_engine *e, const rose_flight *f, rose_request *r, const uint32_t *ids,
                        uint32_t n)
{
    const uint32_t n_right = check_guess(e, r, ids, n - 1);
    const bool predicted = n > 1 && r->guess.source == ROSE_SPEC_FROM_PREDICTION;
    r->guesses.n_tried += n - 1;
    r->guesses.n_predicted += predicted ? n - 1 : 0;
    for (uint32_t i = 0; i <= n_right; i++) {
        r->guesses.n_right += i < n_right; /* right ids after the end of the text do not count */
        r->guesses.n_predicted_right += predicted && i < n_right;
        if (!deliver(e, r, ids[i], f->at.collected)) return;
    }
    if (r->guided != NULL)
        ask_guide(e, r);
    else
        guess(e, r, r->out_step > f->number);
    publish(e, r);
}

/* ---- events in ---- */

static void take_submission(rose_engine *e, rose_request *r)
{
    /* cannot fail: submit checked the request, and n_queued bounds the queue */
    /* every row is to be computed, unless only the last one gives a score */
    bool all = r->pool == ROSE_POOL_MEAN ||
               (r->rules != NULL && r->rules->prompt_logprobs && r->rules->n_scored < r->n_run);
    const rose_sched_request q = {.n_prompt = r->n_run,
                                  .max_tokens = r->max_tokens > 0 ? r->max_tokens : 1,
                                  .priority = r->priority,
                                  .arrival = r->times.submitted / 1000000u,
                                  .salt = {{r->salt[0], r->salt[1]}},
                                  .due_ns = r->due_ns,
                                  .same_prompt = r->same_prompt,
                                  .guided = r->guided != NULL,
                                  .no_lookup = r->skip_prefix_cache || all};
    rose_prof_flow(ROSE_PROF_FLOW_STEP, r->prof_id);
    rose_status st = rose_sched_submit(e->sched, &q, &r->seq);
    if (st != ROSE_OK) {
        finish_bare(e, r, ROSE_FINISH_ERROR);
        return;
    }
    r->number = ++e->n_taken;
    e->by_seq[r->seq] = r;
    if (r->guided != NULL && !r->guided->asked) take_mask(e, r);      /* the job was faster */
    atomic_store_explicit(&e->expected, false, memory_order_relaxed); /* likely this one */
}

/* Cancels requests. If a request is still in the inbox, because an earlier push is incomplete,
 * its cancel waits for the next iteration of the engine's loop. The submitter of that push wakes
 * us when it is done. */
static void take_cancels(rose_engine *e, rose_request *list)
{
    for (rose_request *r; (r = list) != NULL;) {
        list = r->cancel_next;
        if (!r->done && r->seq == UINT32_MAX) {
            r->cancel_next = e->early;
            e->early = r;
            continue;
        }
        if (!r->done) finish_bare(e, r, ROSE_FINISH_CANCELLED);
        rose_request_unref(r);
    }
}

/* Takes jobs back that have ended. */
static bool take_guided(rose_engine *e)
{
    rose_request *r = rose_guides_take(e->guides), *next;
    const bool any = r != NULL;
    for (; r != NULL; r = next) {
        next = r->guided->next;
        r->guided->asked = false;
        if (r->guided->round != 0 && r->guided->round == e->round) e->n_due--;
        if (r->done)
            rose_guides_leave(e->guides);
        else if (r->seq != UINT32_MAX) /* else it is still in the inbox */
            take_mask(e, r);
        rose_request_unref(r);
    }
    return any;
}

/* False if nothing had arrived. */
static bool take_events(rose_engine *e)
{
    const rose_prof_span span = rose_prof_begin_at("engine.drain", e->marked_ns);
    /* take cancels first: their requests were pushed into the inbox before */
    rose_request *cancelled = rose_port_take_cancels(e->port), *early = e->early, *r;
    bool any = cancelled != NULL;
    while (rose_mpsc_pop(e->inbox, &r) == ROSE_OK) {
        take_submission(e, r);
        any = true;
    }
    e->early = NULL;
    take_cancels(e, early);
    take_cancels(e, cancelled);
    any = take_guided(e) || any;
    e->marked_ns = rose_prof_end_at(&span, 0, NULL, 0);
    return any;
}

/* Submitters get the outlook. */
static void publish_load(rose_engine *e)
{
    const rose_sched_load now = rose_sched_get_load(e->sched);
    rose_load_publish(&e->load, &now);
}

/* Polls for a request that was announced, because the request arrives sooner than a sleep and a
 * wake-up would take. False: no request was announced. */
static bool await_expected(rose_engine *e)
{
    if (!atomic_load_explicit(&e->expected, memory_order_relaxed)) return false;
    /* relaxed: losing an announcement that comes at the same time costs only a wake-up */
    atomic_store_explicit(&e->expected, false, memory_order_relaxed);
    const uint64_t until = rose_now_ns() + ROSE_EXPECT_US * UINT64_C(1000);
    while (rose_mpsc_is_empty(e->inbox) && rose_now_ns() < until &&
           !atomic_load_explicit(&e->closing, memory_order_relaxed))
        rose_cpu_relax();
    e->marked_ns = 0;
    return true;
}

/* Passes what the prefix index has done to the feed's reader. Returns whether the reader still
 * lacks pages. */
static bool feed_kv(rose_engine *e)
{
    if (e->feed == NULL) return false;
    rose_sched_catch_up(e->sched, FEED_PAGES);
    rose_kv_feed_flush(e->feed);
    return rose_kv_prefix_is_behind(rose_sched_prefix(e->sched));
}

static void sleep_until_event(rose_engine *e)
{
    const bool behind = feed_kv(e);
    publish_load(e);
    signal_sinks(e);
    e->collected_ns = 0;
    if (await_expected(e)) return;
    const rose_prof_span span = rose_prof_begin_at("engine.sleep", e->marked_ns);
    e->marked_ns = 0; /* the drain within it begins later */
    rose_port_sleep_prepare(e->port);
    /* acquire: pairs with the release in close */
    if (!take_events(e) && !atomic_load_explicit(&e->closing, memory_order_acquire) &&
        !atomic_load_explicit(&e->expected, memory_order_relaxed))
        rose_port_sleep(e->port, behind ? FEED_RETRY_NS : 0);
    rose_port_sleep_done(e->port);
    e->marked_ns = rose_prof_end_at(&span, 0, NULL, 0);
}

/* ---- the step ---- */

static void note_admissions(rose_engine *e, const rose_sched_plan *p, uint64_t t_ns)
{
    for (uint32_t i = 0; i < p->n_admitted; i++) {
        rose_request *r = e->by_seq[p->admitted[i]];
        r->times.admitted = t_ns;
        atomic_store_explicit(&r->begun, true, memory_order_relaxed); /* a flag by itself */
        rose_prof_flow(ROSE_PROF_FLOW_STEP, r->prof_id);
        r->n_cached = rose_sched_cached_tokens(e->sched, r->seq);
        bump(&e->stats.prompt_tokens, r->n_prompt);
        rose_engine_leave_queue(e, r->n_prompt, r->n_cost, r->priority);
    }
    /* some sequences of this step prefill: new sequences, or sequences that were preempted */
    if (p->n_prefill_seqs > 0 || p->n_preempted > 0) rose_engine_update_gauges(e);
}

/* The scheduler's callback for token ids. */
void rose_engine_read_ids(void *user, uint32_t seq, uint32_t pos, uint32_t n, uint32_t *out)
{
    const rose_engine *e = user;
    rose_batch_copy_ids(out, e->by_seq[seq], pos, n);
}

/* Waits a little for the masks of rows that were in the last step. Otherwise a few of them would
 * be in the next step and the rest in the one after it, and each step costs almost the same,
 * however few rows it has. Slower guides keep nobody waiting. */
static void await_masks(rose_engine *e)
{
    uint64_t now;
    if (e->n_due == 0) return;
    const rose_prof_span span = rose_prof_begin_at("engine.guides", e->marked_ns);
    while (e->n_due > 0 && (now = rose_now_ns()) < e->due_until_ns) {
        if (e->enqueues) { /* no thread computes, so polling takes no CPU from the guides */
            rose_cpu_relax();
            take_guided(e);
            continue;
        }
        rose_port_sleep_prepare(e->port);
        if (!take_guided(e)) rose_port_sleep(e->port, e->due_until_ns - now);
        rose_port_sleep_done(e->port);
    }
    e->n_due = 0; /* once */
    e->round++;   /* and those that end later do not count */
    e->marked_ns = rose_prof_end_at(&span, 0, NULL, 0);
}

/* Builds the step and gives it to the backend. From here to delivery nothing allocates, which
 * the checked build enforces. */
static rose_status launch(rose_engine *e, const rose_sched_plan *p, uint64_t plan_ns, rose_err *err)
{
    rose_flight *f = &e->flights[e->n_flights];
    f->plan = *p;
    f->at = (rose_step_times){.plan = plan_ns, .batch = or_now(e->marked_ns)};
    rose_alloc_guard_begin("engine step");
    const rose_prof_span batch_span = rose_prof_begin_at("engine.batch", f->at.batch);
    rose_batch_reset(&e->batch, f);
    for (uint32_t i = 0; i < p->n_items; i++)
        rose_batch_add(&e->batch, &p->items[i], e->by_seq[p->items[i].seq]);
    f->n_outputs = e->batch.batch.n_outputs;
    rose_stall_begin(&e->compute_span);
    f->at.step = or_now(rose_prof_end_at(&batch_span, 0, NULL, 0));
    f->at.idle = e->n_flights > 0 ? f->at.step : e->collected_ns > 0 ? e->collected_ns : plan_ns;
    const rose_prof_span step_span = rose_prof_begin_at("backend.step", f->at.step);
    rose_status st = e->ops->step(e->ctx, &e->batch.batch, &f->ticket, err);
    e->marked_ns = rose_prof_end_at(&step_span, 0, "rows", p->n_tokens);
    rose_alloc_guard_end();
    if (st != ROSE_OK) return st;
    if (e->n_touched > 0) {
        signal_sinks(e); /* waking a thread takes longer than anything else here, so do it while the
                            device works */
        e->marked_ns = 0;
    }
    e->n_flights++;
    bump(&e->stats.steps, 1); /* counted before delivery, so that a consumer that has its token
                               * finds the step counted */
    return ROSE_OK;
}

/* Logs at most two lines: the backend's part of the step, and the engine's own part. */
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

/* Ends waiting requests that can no longer have their first token in time. */
static void refuse_late(rose_engine *e, uint64_t now_ns)
{
    uint32_t late[64], n;
    while ((n = rose_sched_late(e->sched, now_ns, late, 64)) > 0) {
        for (uint32_t i = 0; i < n; i++)
            finish_bare(e, e->by_seq[late[i]], ROSE_FINISH_LATE);
    }
    signal_sinks(e); /* they need not wait for this step */
}

/* Counters are recorded where they change. */
static void record_counters(rose_engine *e)
{
    const uint32_t recording = rose_prof_state_now(), running = rose_sched_n_running(e->sched);
    const uint32_t waiting = atomic_load_explicit(&e->n_queued, memory_order_relaxed);
    const bool first = recording != e->recorded.recording;
    if (first || running != e->recorded.running) rose_prof_counter("requests running", running);
    if (first || waiting != e->recorded.waiting) rose_prof_counter("requests waiting", waiting);
    e->recorded.recording = recording;
    e->recorded.running = running;
    e->recorded.waiting = waiting;
}

/* All figures of a step. */
static void note_step(rose_engine *e, const rose_flight *f)
{
    const rose_step_times *at = &f->at;
    const uint64_t now = at->delivered, began = at->step > at->before ? at->step : at->before;
    const uint64_t took = now - (at->plan > e->landed_ns ? at->plan : e->landed_ns);
    const uint32_t n_prefill = f->plan.n_prefill_tokens;
    rose_sched_observe(e->sched, f->plan.n_tokens - n_prefill, n_prefill, took);
    publish_load(e);
    e->due_until_ns =
        now + (took < MASK_WAIT_NS * MASK_WAIT_SHARE ? took / MASK_WAIT_SHARE : MASK_WAIT_NS);
    (void)feed_kv(e);
    rose_engine_update_gauges(e);
    set(&e->stats.last_step_ns, took);
    set(&e->stats.last_plan_ns, at->batch - at->plan);
    set(&e->stats.last_batch_ns, at->step - at->batch);
    set(&e->stats.last_deliver_ns, now - at->collected);
    rose_hist_add(&e->hists.exposed_ns, &rose_hist_step, at->step - at->idle);
    rose_hist_add(&e->hists.host_ns, &rose_hist_step, at->step - at->plan + now - at->collected);
    rose_hist_add(&e->hists.compute_ns, &rose_hist_step, at->collected - began);
    rose_hist_add(&e->hists.tokens, &rose_hist_tokens, f->plan.n_tokens);
    if (rose_prof_on()) record_counters(e);
    e->landed_ns = now;
    if (rose_stall_limit != 0) watch_step(e, &f->plan);
    e->spanned = false;
}

/* Waits for the oldest step in flight and delivers its results. */
static rose_status land(rose_engine *e, rose_err *err)
{
    rose_flight f = e->flights[0];
    rose_step_result res = {0};
    f.at.before = e->collected_ns;
    e->round++;
    e->n_due = 0;
    if (!e->spanned) { /* a second step is collected in this iteration of the loop */
        rose_stall_begin(&e->step_span);
        rose_stall_begin(&e->compute_span);
    }
    rose_alloc_guard_begin("engine step");
    const rose_prof_span collect_span = rose_prof_begin_at("backend.collect", e->marked_ns);
    rose_status st = e->ops->collect(e->ctx, f.ticket, &res, err);
    f.at.collected = e->collected_ns = or_now(rose_prof_end_at(&collect_span, 0, NULL, 0));
    rose_stall_stop(&e->compute_span);
    if (st == ROSE_OK && res.n_outputs != f.n_outputs)
        st = rose_fail(err, ROSE_E_BACKEND, "%u ids for %u outputs", res.n_outputs, f.n_outputs);
    const rose_prof_span deliver_span = rose_prof_begin_at("engine.deliver", e->collected_ns);
    e->least_chance = rose_sched_least_chance(e->sched);
    for (uint32_t i = 0; i < f.n_samples && st == ROSE_OK; i++) {
        const rose_flight_sample *s = &f.samples[i];
        rose_request *r = e->by_seq[s->seq];
        if (r == NULL || r->number != s->number) continue; /* it was over before */
        deliver_all(e, &f, r, res.ids + s->out, s->n);
    }
    if (e->n_flights > 1 || !e->enqueues)
        signal_sinks(e); /* else after the next step is enqueued */
    e->marked_ns = rose_prof_end_at(&deliver_span, 0, "tokens", f.n_samples);
    rose_alloc_guard_end();
    if (st != ROSE_OK) return st;
    rose_flight_drop(&f);
    e->flights[0] = e->flights[1];
    e->flights[1] = f; /* its array */
    e->n_flights--;
    f.at.delivered = or_now(e->marked_ns);
    note_step(e, &f);
    return ROSE_OK;
}

static void fail(rose_engine *e, const rose_err *err)
{
    e->n_flights = 0; /* their results are nobody's any more */
    for (int i = 0; i < MAX_FLIGHTS; i++)
        rose_flight_drop(&e->flights[i]);
    e->failure = *err;
    /* release: pairs with the acquire in rose_engine_failure; requests that submit refuses were
     * not accepted before */
    atomic_store_explicit(&e->failed, true, memory_order_release);
    /* relaxed: the number of queued requests is only shown to people; it includes requests that
     * are still in the inbox */
    const uint32_t n_queued = atomic_load_explicit(&e->n_queued, memory_order_relaxed);
    rose_log(
        ROSE_LOG_ERROR, "engine", "the backend %s failed, %u open requests end: %s", e->ops->name,
        rose_sched_n_running(e->sched) + rose_sched_n_preempted(e->sched) + n_queued, err->msg);
}

/* Tells whether the step that was just built may stay in flight while the next one is planned. A
 * step with prompts is long, so collect it before the next plan: new arrivals are then in the next
 * step. Requests that wait for its results miss every second step if steps run ahead, so they must
 * be few. */
static bool may_stay(const rose_engine *e, const rose_sched_plan *p)
{
    return e->ahead && !e->batch.bound && p->n_prefill_seqs == 0 &&
           e->batch.n_waiting * FEW_WAITING <= e->batch.batch.n_seqs;
}

/* Enqueues the next step and collects the oldest step. The new step stays in flight if the
 * backend allows that. False: there is nothing to compute and no step is in flight. */
static bool step(rose_engine *e)
{
    rose_sched_plan plan;
    rose_err err = {0};
    rose_status st = ROSE_OK;
    uint32_t stay = 0;
    if (!e->spanned)
        rose_stall_begin(&e->step_span); /* an iteration that collects no step keeps its span open
                                          * into the next iteration of the loop */
    e->spanned = true;
    await_masks(e);
    uint64_t start = or_now(e->marked_ns);
    if (e->load.ttft_slo_ns != 0) refuse_late(e, start);
    const rose_prof_span span = rose_prof_begin_at("engine.plan", start);
    const bool any = rose_sched_next(e->sched, &plan);
    if (any) note_admissions(e, &plan, start);
    e->marked_ns = rose_prof_end_at(&span, 0, NULL, 0);
    if (any) {
        st = launch(e, &plan, start, &err);
        if (may_stay(e, &plan)) stay = 1;
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

static bool step_recorded(rose_engine *e)
{
    const rose_prof_span span = rose_prof_begin_at("engine.step", e->marked_ns);
    const bool any = step(e);
    e->marked_ns = rose_prof_end_at(&span, e->marked_ns, NULL, 0);
    return any;
}

void rose_engine_run(rose_engine *e)
{
    for (;;) {
        take_events(e);
        if (atomic_load_explicit(&e->closing, memory_order_acquire)) break;
        if (atomic_load_explicit(&e->failed, memory_order_relaxed)) /* our own store */
            finish_all(e, ROSE_FINISH_ERROR);
        else if (step_recorded(e))
            continue;
        sleep_until_event(e);
    }
    take_events(e); /* requests that were submitted before close() are in the inbox by now */
    finish_all(e, ROSE_FINISH_CANCELLED);
    signal_sinks(e);
}
