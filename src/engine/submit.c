/* engine/submit.c - the functions that other threads call: submit, and views of the engine's
 * state. The queue is bounded: a submitter takes a place before the push, and the engine thread
 * gives the place back when the request begins. */
#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "base/siphash.h"
#include "engine/engine_internal.h"

/* release: pairs with the acquire in take_places, so that the thread that gets the place finds a
 * free cell in the inbox. */
void rose_engine_unreserve(rose_engine *e, uint32_t n, uint64_t n_tokens)
{
    atomic_fetch_sub_explicit(&e->n_queued_tokens, n_tokens, memory_order_relaxed);
    atomic_fetch_sub_explicit(&e->n_queued, n, memory_order_release);
}

/* A request has begun, or ends without. */
void rose_engine_leave_queue(rose_engine *e, uint32_t n_prompt, uint32_t n_rows, int32_t priority)
{
    rose_load_count(&e->load, n_rows, priority, -1);
    rose_engine_unreserve(e, 1, n_prompt);
}

/* Returns how many requests may be queued, for a caller that found n_queued there. If nothing
 * waits, that includes as many as can begin at once. */
static uint32_t queue_limit(const rose_engine *e, uint32_t n_queued)
{
    if (n_queued > 0) return e->max_queued;
    uint32_t running = atomic_load_explicit(&e->stats.running, memory_order_relaxed);
    uint32_t limit = e->max_queued + (running < e->max_active ? e->max_active - running : 0);
    return limit < e->sched_opts.max_queued ? limit : e->sched_opts.max_queued;
}

/* Takes n places together, or none. A refused request was never counted in n_queued, so it
 * causes no other refusal. */
static bool take_places(rose_engine *e, uint32_t n, uint64_t n_tokens)
{
    uint32_t before = atomic_load_explicit(&e->n_queued, memory_order_relaxed), limit;
    do {
        limit = queue_limit(e, before);
        if (before >= limit || n > limit - before) return false;
        /* acquire: pairs with the release in unreserve */
    } while (!atomic_compare_exchange_weak_explicit(&e->n_queued, &before, before + n,
                                                    memory_order_acquire, memory_order_relaxed));
    /* relaxed: n_tokens is only a bound; no other data depends on it */
    uint64_t tokens =
        atomic_fetch_add_explicit(&e->n_queued_tokens, n_tokens, memory_order_relaxed);
    bool too_long =
        e->max_queued_tokens != 0 && tokens > 0 && tokens + n_tokens > e->max_queued_tokens;
    if (too_long) rose_engine_unreserve(e, n, n_tokens);
    return !too_long;
}

rose_status rose_engine_reserve(rose_engine *e, uint32_t n, uint64_t n_tokens, rose_err *err)
{
    if (n > e->sched_opts.max_queued)
        return rose_fail(err, ROSE_E_INVAL,
                         "%u requests at once: this server holds %u, of which %u run "
                         "(--max-num-seqs, --max-active-requests) and %u wait "
                         "(--max-num-queued-reqs)",
                         n, e->sched_opts.max_queued, e->max_active, e->max_queued);
    return take_places(e, n, n_tokens) ? ROSE_OK : ROSE_E_FULL;
}

static rose_status check_sampling(const rose_sampling *s, rose_err *err)
{
    if (!isfinite(s->temperature) || s->temperature < 0)
        return rose_fail(err, ROSE_E_INVAL, "temperature is %g: it must be 0 or more",
                         (double)s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1)) /* written so that a NaN fails */
        return rose_fail(err, ROSE_E_INVAL, "top_p is %g: it must be above 0 and at most 1",
                         (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return rose_fail(err, ROSE_E_INVAL, "min_p is %g: it must be 0 to 1", (double)s->min_p);
    return ROSE_OK;
}

/* Nothing is generated: the prompt is only scored or pooled. */
static bool generates_nothing(const rose_request_opts *o)
{
    return o->score_only || o->pool != ROSE_POOL_NONE;
}

static bool may_guess(const rose_engine *e, const rose_request_opts *o)
{
    return e->spec != NULL && !o->no_speculation && !generates_nothing(o);
}

static rose_rules_ctx rules_ctx(const rose_engine *e, const rose_request_opts *o,
                                uint32_t max_tokens)
{
    return (rose_rules_ctx){.prompt = o->prompt,
                            .n_prompt = o->n_prompt,
                            .max_tokens = max_tokens,
                            .vocab = e->arch.vocab_size,
                            .eos = e->arch.eos_ids,
                            .n_eos = e->arch.n_eos,
                            .ignore_eos = o->ignore_eos,
                            .guided = o->guide.ops != NULL,
                            .n_guess = may_guess(e, o) && max_tokens > 1 ? ROSE_SPEC_MAX : 0,
                            .caps = e->ops->caps,
                            .width = e->arch.d_model};
}

static rose_status check_pool(const rose_engine *e, const rose_request_opts *o, rose_err *err)
{
    if (o->pool == ROSE_POOL_NONE) return ROSE_OK;
    if ((e->ops->caps & ROSE_CAP_STATES) == 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "this device gives no embeddings");
    if (o->rules != NULL)
        return rose_fail(err, ROSE_E_INVAL, "a pooled request takes no sampling rules");
    return ROSE_OK;
}

/* Checks a submission for every mistake that a submitter can make. *max_tokens is lowered to
 * what fits into the context. */
static rose_status check_request(const rose_engine *e, const rose_request_opts *o,
                                 uint32_t *max_tokens, rose_err *err)
{
    uint32_t len = e->plan.max_model_len;
    if (o->sink == NULL) return rose_fail(err, ROSE_E_INVAL, "the request has no sink");
    if (o->n_prompt == 0 || o->prompt == NULL)
        return rose_fail(err, ROSE_E_INVAL, "the prompt is empty");
    if (o->n_prompt >= len + (o->score_only && o->pool == ROSE_POOL_NONE ? 1 : 0))
        return rose_fail(err, ROSE_E_INVAL, "the prompt has %u tokens: the context holds %u",
                         o->n_prompt, len);
    for (uint32_t i = 0; i < o->n_prompt; i++) {
        if (o->prompt[i] >= e->arch.vocab_size)
            return rose_fail(err, ROSE_E_INVAL, "token %u of the prompt is %u: ids end at %u", i,
                             o->prompt[i], e->arch.vocab_size - 1);
    }
    if (e->arch.no_text[0] != '\0' && o->pool == ROSE_POOL_NONE &&
        (e->arch.headless || !o->score_only))
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "this model generates no text: it is %s; it can be asked for embeddings",
                         e->arch.no_text);
    rose_status st = check_pool(e, o, err);
    if (st == ROSE_OK && o->pool == ROSE_POOL_NONE) st = check_sampling(&o->sampling, err);
    if (st != ROSE_OK) return st;
    *max_tokens = o->max_tokens < len - o->n_prompt ? o->max_tokens : len - o->n_prompt;
    if (generates_nothing(o)) *max_tokens = 0;
    if (o->rules != NULL) {
        const rose_rules_ctx c = rules_ctx(e, o, *max_tokens);
        if ((st = rose_rules_check(o->rules, &c, err)) != ROSE_OK) return st;
    }
    if (o->guide.ops != NULL && (e->ops->caps & ROSE_CAP_LOGIT_RULES) == 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "this device does not support structured output");
    return rose_sched_check(&e->sched_opts, rose_request_n_run(o->n_prompt, *max_tokens, o->pool),
                            generates_nothing(o) ? 1 : *max_tokens, err);
}

/* Checks whether the engine's current state refuses the request. due_ns: when its first token is
 * due; 0 = never. */
static rose_status check_state(const rose_engine *e, const rose_request_opts *o, uint32_t n_rows,
                               uint64_t now_ns, uint64_t due_ns, rose_err *err)
{
    const char *failure = rose_engine_failure(e);
    if (failure != NULL) return rose_fail(err, ROSE_E_BACKEND, "%s", failure);
    if (atomic_load_explicit(&e->draining, memory_order_relaxed))
        return rose_fail(err, ROSE_E_CLOSED, "the engine is draining");
    if (due_ns == 0) return ROSE_OK;
    uint32_t n_waiting =
        atomic_load_explicit(&e->n_queued, memory_order_relaxed) - o->n_reserved; /* the others */
    /* the count of running requests is exact, unlike the load figures: once a consumer has the
     * finish event, its request no longer counts as running */
    bool idle =
        n_waiting == 0 && atomic_load_explicit(&e->stats.running, memory_order_relaxed) == 0;
    if (!idle && rose_load_is_late(&e->load, n_waiting, n_rows, o->priority, now_ns, due_ns))
        return ROSE_E_LATE;
    return ROSE_OK;
}

static void set_salt(const rose_engine *e, rose_request *r, const rose_request_opts *o)
{
    for (int k = 0; k < 2 && o->cache_salt_len > 0; k++) /* |1: never the common salt */
        r->salt[k] = rose_siphash_bytes(e->salt_keys[k], o->cache_salt, o->cache_salt_len) | 1;
}

/* Hands a checked request, which has a place in the queue, to the engine thread. */
static rose_status hand_over(rose_engine *e, const rose_request_opts *o, uint32_t max_tokens,
                             rose_request *r, rose_err *err)
{
    if (r->rules != NULL && max_tokens > 0 && !rose_rules_leave_one(r->rules, NULL, NULL, 0))
        return rose_fail(err, ROSE_E_INVAL,
                         "allowed_token_ids, bad_words, min_tokens and stop_token_ids together "
                         "leave no token that could be generated");
    rose_load_count(&e->load, r->n_cost, o->priority, 1);
    /* the consumer may release r before the job starts; relaxed: the caller's reference keeps r
     * alive meanwhile */
    const bool guided = r->guided != NULL;
    if (guided) atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    /* cannot fail: the inbox has room for all places, and n_queued falls only after the pop */
    rose_status st = rose_mpsc_push(e->inbox, &r);
    assert(st == ROSE_OK);
    if (guided) rose_guides_start(e->guides, r);
    return st;
}

rose_status rose_engine_submit(rose_engine *e, const rose_request_opts *o, rose_request **out,
                               rose_err *err)
{
    const uint64_t now = rose_now_ns(), slo = e->load.ttft_slo_ns;
    const uint64_t due = slo != 0 ? (o->t_ns != 0 ? o->t_ns : now) + slo : 0;
    const uint32_t n_rows = rose_load_rows(o, e->sched_opts.prefix_cache);
    bool placed = o->n_reserved > 0, entered = false;
    uint32_t max_tokens = 0;
    rose_request *r = NULL;

    *out = NULL;
    rose_status st = check_request(e, o, &max_tokens, err);
    if (st == ROSE_OK) st = check_state(e, o, n_rows, now, due, err);
    if (st == ROSE_OK && !placed) {
        placed = take_places(e, 1, o->n_prompt);
        st = placed ? ROSE_OK : ROSE_E_FULL;
    }
    if (st != ROSE_OK) goto done;
    if (o->guide.ops != NULL && max_tokens > 0) {
        if ((st = rose_guides_enter(e->guides, err)) != ROSE_OK) goto done;
        entered = true;
    }
    const rose_rules_ctx c = rules_ctx(e, o, max_tokens);
    if ((r = rose_request_create(o, max_tokens, e->port, &c)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "request of %u tokens: out of memory", o->n_prompt);
        goto done;
    }
    set_salt(e, r, o);
    if (may_guess(e, o) && max_tokens > 1 && !rose_request_add_text(r, e->spec, o)) {
        st = rose_fail(err, ROSE_E_NOMEM, "request of %u tokens: out of memory", o->n_prompt);
        goto done;
    }
    r->times.submitted = now;
    r->due_ns = due;
    r->n_cost = n_rows;
    *out = r; /* it may be over before we return */
    st = hand_over(e, o, max_tokens, r, err);
done:
    if (st == ROSE_OK) {
        rose_port_wake(e->port);
        return ROSE_OK;
    }
    *out = NULL;
    if (r == NULL && o->guide.ops != NULL) o->guide.ops->destroy(o->guide.state);
    rose_request_release(r); /* accepts NULL */
    if (placed) rose_engine_unreserve(e, 1, o->n_prompt);
    if (entered) rose_guides_leave(e->guides);
    return st;
}

bool rose_engine_expect(rose_engine *e)
{
    if (!e->enqueues) return false;
    /* relaxed: the wake publishes the announcement to a thread that is about to sleep */
    atomic_store_explicit(&e->expected, true, memory_order_relaxed);
    rose_port_wake(e->port);
    return true;
}

/* ---- views ---- */

const char *rose_engine_failure(const rose_engine *e)
{
    /* acquire: pairs with the release store in fail(), which the engine thread calls */
    if (!atomic_load_explicit(&e->failed, memory_order_acquire)) return NULL;
    return e->failure.msg[0] != '\0' ? e->failure.msg : "the backend gave no reason";
}

uint32_t rose_engine_retry_after_s(const rose_engine *e)
{
    return rose_load_drain_s(&e->load, atomic_load_explicit(&e->n_queued, memory_order_relaxed));
}

bool rose_engine_has_room(const rose_engine *e)
{
    const uint32_t running = atomic_load_explicit(&e->stats.running, memory_order_relaxed);
    const uint32_t waiting = atomic_load_explicit(&e->n_queued, memory_order_relaxed);
    return e->load.ttft_slo_ns == 0 && running + waiting <= e->max_active;
}

const rose_memory_plan *rose_engine_plan(const rose_engine *e)
{
    return &e->plan;
}

bool rose_engine_has_prefix_cache(const rose_engine *e)
{
    return e->sched_opts.prefix_cache;
}

const rose_arch *rose_engine_arch(const rose_engine *e)
{
    return &e->arch;
}

rose_spec_stats rose_engine_get_spec(const rose_engine *e)
{
    return e->spec != NULL ? rose_spec_get_stats(e->spec) : (rose_spec_stats){0};
}

bool rose_engine_speculates(const rose_engine *e)
{
    return e->spec != NULL;
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
        .kv_pages = e->plan.pools[0].n_blocks,
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
        .kv_changes = e->feed != NULL ? rose_kv_feed_n_changes(e->feed) : 0,
        .kv_changes_dropped = e->feed != NULL ? rose_kv_feed_n_dropped(e->feed) : 0,
        .failed = atomic_load_explicit(&e->failed, memory_order_relaxed)};
}
