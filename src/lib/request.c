/* lib/request.c - requests: submit, read, cancel, release.
 *
 * A request has a wake queue of its own, so that any thread can wait for it; or, with
 * params.wakeup, it is in the one queue of the engine's caller, whose descriptor rose_lib_wakeup_fd
 * gives. Only a request that its queue delivered is polled, until that finds nothing. So a request
 * belongs to one thread at a time: to the one that rose_lib_ready gave it.
 *
 * A request that is released while it runs ends later. With a queue of its own the release waits.
 * In the shared queue it is marked, and rose_lib_take_ready frees it when its end arrives. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "lib/lib_internal.h"

/* ---- the list of an engine's requests, and queues ---- */

/* With the lock. */
static void unlink_request(rose_lib_request *r)
{
    if (r->prev != NULL)
        r->prev->next = r->next;
    else if (r->rose->requests == r)
        r->rose->requests = r->next;
    if (r->next != NULL) r->next->prev = r->prev;
    r->prev = r->next = NULL;
}

static void link_request(rose_lib_request *r)
{
    r->next = r->rose->requests;
    if (r->next != NULL) r->next->prev = r;
    r->rose->requests = r;
}

static rose_status take_sink(rose_lib *rose, rose_lib_sink **out, rose_err *err)
{
    pthread_mutex_lock(&rose->lock);
    rose_lib_sink *s = rose->free_sinks;
    if (s != NULL) rose->free_sinks = s->next;
    pthread_mutex_unlock(&rose->lock);
    if (s == NULL) {
        if ((s = calloc(1, sizeof *s)) == NULL) return ROSE_E_NOMEM;
        rose_status st = rose_wakeq_create(&s->q, 8, err);
        if (st != ROSE_OK) {
            free(s);
            if (st != ROSE_E_IO) return st;
            return rose_fail(err, ROSE_E_FULL,
                             "no descriptor is left for this request: release others, use "
                             "params.wakeup, or raise ulimit -n");
        }
    }
    *out = s;
    return ROSE_OK;
}

rose_status rose_lib_request_create(rose_lib_request **out, rose_lib *rose, bool wakeup,
                                    rose_err *err)
{
    *out = NULL;
    rose_lib_request *r = calloc(1, sizeof *r);
    if (r == NULL) return ROSE_E_NOMEM;
    r->rose = rose;
    if (!wakeup) {
        rose_status st = take_sink(rose, &r->sink, err);
        if (st != ROSE_OK) {
            free(r);
            return st;
        }
    }
    *out = r;
    return ROSE_OK;
}

/* With the lock. */
static void free_locked(rose_lib_request *r)
{
    unlink_request(r);
    if (r->sink != NULL) { /* a late signal may still come, so the queue is not destroyed */
        r->sink->next = r->rose->free_sinks;
        r->rose->free_sinks = r->sink;
    }
    rose_stops_free(&r->stops);
    rose_buf_free(&r->text);
    free(r->stop.state);
    free(r->piece);
    free(r->embedding);
    free(r);
}

void rose_lib_request_free(rose_lib_request *r)
{
    if (r == NULL) return;
    rose_lib *rose = r->rose;
    pthread_mutex_lock(&rose->lock);
    free_locked(r);
    pthread_mutex_unlock(&rose->lock);
}

/* ---- submission ---- */

/* With the lock: another thread's rose_lib_ready finds the request complete. */
static rose_status start_locked(rose_lib_request *r, const rose_request_opts *o, rose_err *err)
{
    rose_lib *rose = r->rose;
    /* relaxed: a count, which grows only with the lock */
    const uint32_t n = atomic_load_explicit(&rose->n_shared, memory_order_relaxed);
    if (r->sink == NULL && n + 1 >= rose->shared_cap) {
        if (o->guide.ops != NULL) o->guide.ops->destroy(o->guide.state);
        return rose_fail(err, ROSE_E_FULL,
                         "%u requests with params.wakeup run or wait to be read: read their pieces "
                         "to the end",
                         n);
    }
    rose_status st = rose_engine_submit(rose->engine, o, &r->req, err);
    if (st != ROSE_OK) return st;
    if (r->sink == NULL) atomic_fetch_add_explicit(&rose->n_shared, 1, memory_order_relaxed);
    link_request(r);
    return ROSE_OK;
}

rose_status rose_lib_request_start(rose_lib_request *r, rose_request_opts *o, rose_err *err)
{
    rose_lib *rose = r->rose;
    o->sink = r->sink != NULL ? r->sink->q : rose->shared;
    o->user = r;
    pthread_mutex_lock(&rose->lock);
    rose_status st = start_locked(r, o, err);
    if (st != ROSE_OK) free_locked(r);
    pthread_mutex_unlock(&rose->lock);
    return st;
}

/* Memory for the text of one event: what stop strings hold back, one token, and the end of an
 * incomplete character. */
static rose_status make_text(rose_lib_request *r, const rose_lib_params *p, rose_err *err)
{
    const size_t cap = rose_detok_cap(r->rose->tok) + 12;
    rose_status st = rose_lib_stops(p, &r->stops, err);
    if (st != ROSE_OK) return st;
    r->piece = malloc(cap);
    r->stop.state = calloc(r->stops.n + 1, sizeof *r->stop.state);
    if (r->piece == NULL || r->stop.state == NULL) return ROSE_E_NOMEM;
    return rose_buf_reserve(&r->text, r->stops.max_len + cap + 12);
}

static rose_status prepare(rose_lib_request *r, const uint32_t *ids, size_t n,
                           const rose_lib_params *p, rose_err *err)
{
    rose_status st = make_text(r, p, err);
    if (st != ROSE_OK) return st;
    r->user = p->user;
    r->n_prompt = (uint32_t)n;
    r->min_tokens = p->min_tokens;
    r->include_stop = p->include_stop != 0;
    r->ignore_eos = p->ignore_eos != 0;
    r->n_logprobs = p->logprobs != 0 ? 1 + p->top_logprobs : 0;
    r->decode_flags = p->skip_special != 0 ? ROSE_DECODE_SKIP_SPECIAL : 0;
    if (ids != NULL) rose_detok_begin(&r->detok, r->rose->tok, ids, n, r->decode_flags);
    return ROSE_OK;
}

rose_status rose_lib_submit(rose_lib *rose, const uint32_t *ids, size_t n, const rose_lib_params *p,
                            rose_lib_request **out, rose_err *err)
{
    rose_lib_request *r = NULL;
    rose_request_rules rules;
    rose_guide guide = {0};
    bool any = false;
    *out = NULL;
    if (n > UINT32_MAX)
        return rose_fail(err, ROSE_E_INVAL, "a prompt of %zu tokens is too long", n);
    rose_status st = rose_lib_rules(rose, p, &rules, &any, err);
    if (st == ROSE_OK) st = rose_lib_request_create(&r, rose, p->wakeup != 0, err);
    if (st == ROSE_OK) st = prepare(r, ids, n, p, err);
    if (st == ROSE_OK) st = rose_lib_guide(rose, p, &guide, err);
    if (st != ROSE_OK) {
        rose_lib_request_free(r);
        return st;
    }
    rose_request_opts o = {
        .prompt = ids,
        .n_prompt = (uint32_t)n,
        .max_tokens = p->max_tokens,
        .sampling = {.temperature = p->temperature,
                     .top_p = p->top_p,
                     .min_p = p->min_p,
                     .top_k = p->top_k,
                     .seed = p->seed},
        .rules = any ? &rules : NULL,
        .guide = guide,
        .ignore_eos = p->ignore_eos != 0,
        .priority = p->priority,
        .cache_salt = p->cache_salt,
        .cache_salt_len = p->cache_salt != NULL ? strlen(p->cache_salt) : 0,
    };
    st = rose_lib_request_start(r, &o, err);
    if (st == ROSE_OK) *out = r;
    return st;
}

/* ---- events ---- */

/* All others are failures. LATE does not occur: it needs latency goals, which the library does not
 * set. */
static rose_lib_finish finish_of(rose_finish f)
{
    static const rose_lib_finish of[] = {[ROSE_FINISH_NONE] = ROSE_LIB_RUNNING,
                                         [ROSE_FINISH_STOP] = ROSE_LIB_STOP,
                                         [ROSE_FINISH_LENGTH] = ROSE_LIB_LENGTH,
                                         [ROSE_FINISH_CANCELLED] = ROSE_LIB_CANCELLED};
    return f < sizeof of / sizeof *of ? of[f] : ROSE_LIB_FAILED;
}

static void explain(rose_lib_request *r, rose_finish f)
{
    const char *why = rose_engine_failure(r->rose->engine);
    if (f == ROSE_FINISH_NO_TOKEN)
        rose_fail(&r->error, ROSE_E_INVAL,
                  "after %u tokens the structure, allowed_ids, bad_ids, min_tokens and stop_ids "
                  "together leave no token that could be generated: loosen one of them",
                  r->n_tokens);
    else if (f == ROSE_FINISH_GUIDE)
        rose_fail(&r->error, ROSE_E_INVAL, "structure_text: after %u tokens: %s", r->n_tokens,
                  rose_request_guide_error(r->req));
    else if (why != NULL)
        rose_fail(&r->error, ROSE_E_BACKEND, "the engine failed: %s: close it", why);
    else
        rose_fail(&r->error, ROSE_E_BACKEND,
                  "the model gave no finite %s for this request: its weights or dtype overflow",
                  r->embedding != NULL ? "state" : "logit");
}

/* The next event, if the queue has delivered the request. A poll that finds nothing lets the engine
 * put the request into its queue again, and another thread may take it from there. So `given` is
 * cleared before. */
static bool poll_event(rose_lib_request *r, rose_event *ev)
{
    /* acq_rel: pairs with the release in take_ready, after which this thread owns the request */
    if (r->ended || !atomic_exchange_explicit(&r->given, false, memory_order_acq_rel)) return false;
    if (rose_request_poll(r->req, ev) != ROSE_OK) return false;
    atomic_store_explicit(&r->given, true, memory_order_release); /* its owner polls once more */
    if (ev->finish == ROSE_FINISH_NONE) return true;
    r->ended = true;
    if (r->sink == NULL) atomic_fetch_sub_explicit(&r->rose->n_shared, 1, memory_order_relaxed);
    return true;
}

static bool is_eos(const rose_lib_request *r, uint32_t id)
{
    const rose_arch *a = rose_engine_arch(r->rose->engine);
    for (uint32_t i = 0; i < a->n_eos; i++)
        if (a->eos_ids[i] == id) return true;
    return false;
}

static void stop_at_string(rose_lib_request *r, rose_lib_piece *piece)
{
    r->finish = ROSE_LIB_STOP;
    piece->stop = ROSE_LIB_STOP_STRING;
    piece->stop_index = r->stop.which;
    if (!r->ended) rose_request_cancel(r->req);
}

static void take_token(rose_lib_request *r, const rose_event *ev, rose_lib_piece *piece)
{
    const bool last = ev->stop_id || ev->finish == ROSE_FINISH_STOP;
    if (r->n_logprobs > 0) {
        const rose_logprob *from = rose_request_logprobs(r->req, r->n_tokens);
        for (uint32_t i = 0; i < r->n_logprobs; i++)
            r->logprobs[i] = (rose_lib_logprob){from[i].id, from[i].rank, from[i].logprob};
        piece->logprobs = r->logprobs;
        piece->n_logprobs = r->n_logprobs;
    }
    r->n_tokens++;
    piece->has_token = 1;
    piece->id = ev->id;
    if (last) {
        /* as for the server: the end of sequence is no stop of the request, even if it is listed */
        const bool eos = is_eos(r, ev->id) && !(r->ignore_eos && ev->stop_id);
        piece->stop = eos ? ROSE_LIB_STOP_EOS : ROSE_LIB_STOP_ID;
        if (!r->include_stop) return;
    }
    const size_t n = rose_detok_push(&r->detok, r->rose->tok, ev->id, r->decode_flags, r->piece);
    if (r->n_tokens <= r->min_tokens)
        rose_stop_pass(&r->stops, &r->stop, r->piece, n, &r->text);
    else if (rose_stop_push(&r->stops, &r->stop, r->piece, n, &r->text))
        stop_at_string(r, piece);
}

/* The engine has ended the request: what was held back is text after all. */
static void flush(rose_lib_request *r, rose_lib_piece *piece)
{
    const size_t n = rose_detok_finish(&r->detok, r->piece);
    if (rose_stop_push(&r->stops, &r->stop, r->piece, n, &r->text) &&
        (r->finish == ROSE_LIB_STOP || r->finish == ROSE_LIB_LENGTH))
        stop_at_string(r, piece);
    else
        rose_stop_flush(&r->stops, &r->stop, &r->text);
}

static void take_embedding(rose_lib_request *r)
{
    const float *state = rose_request_state(r->req);
    const double divisor = rose_pooling_divisor(state, r->n_embedding, r->normalizes);
    for (uint32_t i = 0; i < r->n_embedding; i++)
        r->embedding[i] = (float)((double)state[i] / divisor);
}

static void take_event(rose_lib_request *r, const rose_event *ev, rose_lib_piece *piece)
{
    const rose_finish finish = (rose_finish)ev->finish;
    r->text.len = 0;
    if (ev->has_token) take_token(r, ev, piece);
    if (r->finish == ROSE_LIB_RUNNING && finish != ROSE_FINISH_NONE) {
        r->finish = finish_of(finish);
        if (r->finish == ROSE_LIB_FAILED) explain(r, finish);
        if (r->embedding == NULL)
            flush(r, piece);
        else if (r->finish == ROSE_LIB_LENGTH)
            take_embedding(r);
    }
    piece->text = r->text.data != NULL ? r->text.data : "";
    piece->text_len = r->text.len;
    piece->finish = r->finish;
    piece->t_ns = ev->t_ns;
}

static void give(const rose_lib_piece *full, rose_lib_piece *piece)
{
    const size_t size = piece->size < sizeof *full ? piece->size : sizeof *full;
    memcpy((char *)piece + sizeof piece->size, (const char *)full + sizeof full->size,
           size - sizeof full->size);
}

/* Moves what the queue of one request holds to r->given. */
static void take_given(rose_lib_request *r)
{
    void *p;
    rose_wakeq_clear(r->sink->q);
    while (rose_wakeq_pop(r->sink->q, &p) == ROSE_OK)
        atomic_store_explicit(&r->given, true, memory_order_relaxed); /* this thread's */
}

static bool wait_event(rose_lib_request *r, rose_event *ev, int timeout_ms)
{
    const uint64_t limit = (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000u;
    const uint64_t deadline = rose_now_ns() + limit;
    for (;;) {
        take_given(r);
        if (poll_event(r, ev)) return true;
        const uint64_t now = rose_now_ns();
        if (timeout_ms >= 0 && now >= deadline) return false;
        rose_wakeq_wait(r->sink->q, timeout_ms < 0 ? 1000000000u : deadline - now);
    }
}

int rose_lib_next(rose_lib_request *r, rose_lib_piece *piece, int timeout_ms)
{
    rose_lib_piece full = {.text = "", .finish = r->finish};
    rose_event ev;
    if (!rose_lib_size_is_sane(piece->size)) return ROSE_LIB_E_INVAL;
    if (r->sink == NULL && timeout_ms != 0) return ROSE_LIB_E_INVAL;
    int given = 0;
    if (r->finish == ROSE_LIB_RUNNING)
        given = r->sink == NULL ? poll_event(r, &ev) : wait_event(r, &ev, timeout_ms);
    if (given) take_event(r, &ev, &full);
    give(&full, piece);
    return given;
}

/* ---- the shared queue ---- */

/* Polls without a reader until nothing is there or the request has ended. */
static void discard(rose_lib_request *r)
{
    rose_event ev;
    while (poll_event(r, &ev))
        continue;
}

/* The request has ended, and nobody holds it any more. With the lock. */
static void end_locked(rose_lib_request *r)
{
    rose_request_release(r->req);
    free_locked(r);
}

size_t rose_lib_take_ready(rose_lib *rose, rose_lib_request **out, size_t cap)
{
    size_t n = 0;
    void *p;
    pthread_mutex_lock(&rose->lock);
    rose_wakeq_clear(rose->shared);
    while ((out == NULL || n < cap) && rose_wakeq_pop(rose->shared, &p) == ROSE_OK) {
        rose_lib_request *r = rose_request_user(p);
        /* release: pairs with the exchange in poll_event */
        atomic_store_explicit(&r->given, true, memory_order_release);
        if (r->abandoned) {
            discard(r);
            if (r->ended) end_locked(r);
        } else if (out != NULL) {
            out[n++] = r;
        }
    }
    if (!rose_wakeq_is_empty(rose->shared)) rose_wakeq_signal(rose->shared);
    pthread_mutex_unlock(&rose->lock);
    return n;
}

size_t rose_lib_ready(rose_lib *rose, rose_lib_request **out, size_t cap)
{
    return cap == 0 ? 0 : rose_lib_take_ready(rose, out, cap);
}

int rose_lib_wakeup_fd(const rose_lib *rose)
{
    return rose_wakeq_fd(rose->shared);
}

/* ---- the end ---- */

void rose_lib_cancel(rose_lib_request *r)
{
    rose_request_cancel(r->req);
}

void rose_lib_release(rose_lib_request *r)
{
    rose_event ev;
    if (r == NULL) return;
    if (!r->ended) rose_request_cancel(r->req);
    while (r->sink != NULL && !r->ended)
        wait_event(r, &ev, -1);
    rose_lib *rose = r->rose;
    pthread_mutex_lock(&rose->lock);
    /* marked before the poll that lets the engine deliver the request once more */
    r->abandoned = true;
    discard(r);
    if (r->ended) end_locked(r);
    pthread_mutex_unlock(&rose->lock);
}

uint32_t rose_lib_prompt_tokens(const rose_lib_request *r)
{
    return r->n_prompt;
}

uint32_t rose_lib_cached_tokens(const rose_lib_request *r)
{
    return rose_request_cached_tokens(r->req);
}

uint64_t rose_lib_admitted_ns(const rose_lib_request *r)
{
    return rose_request_admitted_ns(r->req);
}

const uint32_t *rose_lib_prompt_ids(const rose_lib_request *r)
{
    return rose_request_prompt(r->req);
}

const char *rose_lib_request_error(const rose_lib_request *r)
{
    return r->error.msg;
}

void *rose_lib_user(const rose_lib_request *r)
{
    return r->user;
}

const float *rose_lib_embedding(const rose_lib_request *r, size_t *n)
{
    const bool there = r->embedding != NULL && r->finish == ROSE_LIB_LENGTH;
    *n = there ? r->n_embedding : 0;
    return there ? r->embedding : NULL;
}
