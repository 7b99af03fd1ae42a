/* engine/submit.c - what other threads call: submit, and views of the engine's state. The queue is
 * bounded by a reservation before the push, which the engine thread gives back when the request
 * begins. */
#include <math.h>

#include "base/clock.h"
#include "base/siphash.h"
#include "engine/engine_internal.h"

/* A request has begun, or ends without. release: pairs with the acquire in join_queue, so that who
 * gets the place finds the inbox's cell free. */
void rose_engine_leave_queue(rose_engine *e, uint32_t n_prompt, uint32_t n_rows, int32_t priority)
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
    rose_engine_leave_queue(e, n_prompt, n_rows, priority);
    return false;
}

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
        rose_engine_leave_queue(e, o->n_prompt, n_rows, o->priority);
        return rose_fail(err, ROSE_E_NOMEM, "request of %u tokens: out of memory", o->n_prompt);
    }
    if (r->rules != NULL && max_tokens > 0 && !rose_rules_leave_one(r->rules, NULL, 0)) {
        rose_engine_leave_queue(e, o->n_prompt, n_rows, o->priority);
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
        rose_engine_leave_queue(e, o->n_prompt, n_rows, o->priority);
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
    const rose_counters *c = &e->stats;
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
