/* api/events.c - the I/O thread's part of a job: from the engine's events to the client's bytes.
 *
 * A job is watched from the moment the worker hands it back until the engine has finished all its
 * requests, even if the client has left. Then it is answered (if not streamed) and freed, only
 * here. So "the reply has ended" implies "its pages are free". A client that leaves changes only
 * one thing: j->r is NULL and nothing more is written.
 *
 * rose_http_stream_write may call on_gone; that clears j->r and frees nothing. */
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/clock.h"
#include "base/profile.h"
#include "base/stall.h"

/* Responses that repeat a long request can make a stream of tens of megabytes, whose memory is not
 * kept. */
enum { MAX_SCRATCH = 1 << 20 };

/* True if the client still waits for the result, and the result can still come. */
static bool wanted(const rose_api_job *j)
{
    return j->r != NULL && j->err.status == 0;
}

static void cancel_all(rose_api_job *j)
{
    for (uint32_t i = 0; i < j->n_submitted; i++) {
        if (j->choices[i].req != NULL) rose_request_cancel(j->choices[i].req);
    }
}

/* Takes the HTTP request out of the job in order to answer it, and cancels its timer.
 * rose_http_stop frees all remaining timers, so a timer kept after the answer would be cancelled
 * twice. */
static rose_http_req *take_req(rose_api_job *j)
{
    rose_http_req *r = j->r;
    if (j->phase >= ROSE_API_RUNNING)
        rose_api_note_job(j); /* else a worker still writes to the job */
    rose_http_timer_cancel(j->timer);
    j->timer = NULL;
    j->r = NULL;
    rose_http_req_set_user(r, NULL);
    return r;
}

/* Takes a job out of the list of streams that wait for their first token. */
static void end_wait(rose_api_job *j)
{
    if (!j->waits) return;
    j->waits = false;
    LIST_REMOVE(j, wait_link);
    if (!LIST_EMPTY(&j->io->waiting)) return;
    rose_http_timer_cancel(j->io->look);
    j->io->look = NULL;
}

static void lose(rose_api_job *j)
{
    rose_api_fail_nomem(&j->err);
    cancel_all(j);
}

/* Notes that a stop token id ended the choice. As in vLLM, the end of sequence is no stop reason
 * of the request, even if its id is listed. */
static void note_stop_id(rose_api_choice *c, uint32_t id)
{
    const rose_api_job *j = c->job;
    const rose_arch *a = rose_engine_arch(rose_api_engine(j->api));
    if (!j->asked.ignore_eos && rose_arch_is_eos(a, id)) return;
    c->stop_kind = ROSE_API_STOP_ID;
    c->stop_id = id;
}

/* Makes room in io->text for what the stop strings release of n more bytes. */
static bool make_room(rose_api_choice *c, size_t n)
{
    rose_api_out *text = &c->job->io->text;
    if (rose_buf_reserve(&text->b, c->stop.held + n) != ROSE_OK) text->oom = true;
    return !text->oom;
}

/* Takes one token of a choice: detokenises it and puts its text, after the stop strings, into
 * io->text. */
static void take_token(rose_api_choice *c, const rose_event *ev)
{
    rose_api_job *j = c->job;
    rose_api_io *io = j->io;
    rose_api_count_token(c, ev->t_ns);
    c->n_tokens++;
    c->t_last_ns = ev->t_ns;
    if (c->t_first_ns == 0) {
        c->t_first_ns = ev->t_ns;
        rose_http_stay_awake(j->api->http, io->thread, 0);
    }
    if (c->extra != NULL) rose_api_extra_token(c, ev->id);
    if (ev->stop_id) note_stop_id(c, ev->id);
    /* As a stop string, an id that ends the text is not part of it. An end-of-sequence id is often
     * but not always a special token, which has no text. */
    if ((ev->stop_id || ev->finish == ROSE_FINISH_STOP) && !j->stops.include) return;
    const bool mark = rose_api_is_mark(&j->reading, ev->id);
    if (mark) rose_api_extra_own(c, NULL); /* else the text after a call would have it */
    const unsigned skip = mark ? 0 : ROSE_DECODE_SKIP_SPECIAL;
    size_t n = rose_detok_push(&c->detok, j->api->tok, ev->id, skip, io->piece);
    if (!make_room(c, n)) return;
    if (c->n_tokens <=
        j->asked.min_tokens) { /* as in vLLM, a stop string counts if it ends after min_tokens */
        rose_stop_pass(&j->stops, &c->stop, io->piece, n, &io->text.b);
        return;
    }
    if (!rose_stop_push(&j->stops, &c->stop, io->piece, n, &io->text.b)) return;
    c->finish = "stop";
    c->stop_kind = ROSE_API_STOP_STRING;
    if (ev->finish == ROSE_FINISH_NONE) rose_request_cancel(c->req);
}

/* Ends a choice that the engine has ended: text held back for stop strings is part of the text
 * after all. */
static void flush_text(rose_api_choice *c, rose_finish finish)
{
    rose_api_job *j = c->job;
    rose_api_io *io = j->io;
    size_t n = rose_detok_finish(&c->detok, io->piece);
    if (!make_room(c, n)) return;
    c->finish = finish == ROSE_FINISH_LENGTH ? "length" : "stop";
    if (rose_stop_push(&j->stops, &c->stop, io->piece, n, &io->text.b)) {
        c->finish = "stop";
        c->stop_kind = ROSE_API_STOP_STRING;
    } else {
        rose_stop_flush(&j->stops, &c->stop, &io->text.b);
    }
}

static void fail_engine(rose_api_job *j)
{
    const char *why = rose_engine_failure(rose_api_engine(j->api));
    if (why != NULL)
        rose_api_fail(&j->err, 500, "engine_error", NULL, "the engine failed: %s", why);
    else
        rose_api_fail(&j->err, 500, "engine_error", NULL,
                      j->pooled != NULL ? "the model gave no finite state for this request"
                                        : "the model gave no finite logit for this request");
}

static void take_failure(rose_api_choice *c, rose_finish finish)
{
    rose_api_job *j = c->job;
    if (finish == ROSE_FINISH_CANCELLED)
        rose_api_fail_status(&j->err, ROSE_E_CLOSED, NULL, NULL);
    else if (finish == ROSE_FINISH_LATE)
        rose_api_fail_status(&j->err, ROSE_E_LATE, NULL, rose_api_engine(j->api));
    else if (finish == ROSE_FINISH_NO_TOKEN)
        rose_api_fail(&j->err, 400, "no_token_left", NULL,
                      "after %u tokens %sallowed_token_ids, bad_words, min_tokens and "
                      "stop_token_ids together leave no token that could be generated",
                      c->n_tokens, j->guided_by[0] != '\0' ? "the grammar, " : "");
    else if (finish == ROSE_FINISH_GUIDE)
        rose_api_fail(&j->err, 400, "structured_output", j->guided_by, "after %u tokens: %s",
                      c->n_tokens, rose_request_guide_error(c->req));
    else
        fail_engine(j);
    cancel_all(j);
}

/* Records in the profile where the time of the request's first choice went. */
static void record_parts(const rose_api_job *j, const rose_request_times *t)
{
    rose_prof_flow(ROSE_PROF_FLOW_STEP, j->prof_id);
    rose_prof_async("wait for a worker", j->prof_id, j->t_complete, j->t_worker);
    rose_prof_async("parse and tokenize", j->prof_id, j->t_worker, t->submitted);
    rose_prof_async("queue", j->prof_id, t->submitted, t->admitted);
    rose_prof_async("prefill", j->prof_id, t->admitted,
                    j->asked.max_tokens == 0 ? t->finished : t->first_token);
    rose_prof_async("decode", j->prof_id, t->first_token, t->finished);
}

static void release(rose_api_choice *c)
{
    rose_api_job *j = c->job;
    const rose_request_times times = rose_request_get_times(c->req);
    c->n_cached = rose_request_cached_tokens(c->req);
    c->guesses = rose_request_get_guesses(c->req);
    rose_api_count_choice(c, &times);
    if (c->index == 0) record_parts(j, &times);
    c->t_admitted_ns = times.admitted;
    rose_request_release(c->req);
    c->req = NULL;
    j->n_released++;
    /* relaxed: only a count; it guards the sink's capacity */
    atomic_fetch_sub_explicit(&j->io->n_live, 1, memory_order_relaxed);
}

static void put_event(rose_api_choice *c, bool last)
{
    c->job->dialect->event(&c->job->io->out, c, last);
    c->n_sent = c->n_tokens;
}

/* Tells whether an event is due (--stream-interval). The first text is sent at once; later an
 * event holds that many tokens, and the last event sends the rest. Tokens of one step have events
 * of their own too, so that the bytes of a stream do not depend on speculation. */
static bool is_due(const rose_api_choice *c, bool last)
{
    return last || c->n_sent == 0 || c->n_tokens - c->n_sent >= c->job->api->o.stream_interval;
}

/* Delivers the text that one event released: to the parts of the choice, and from there into the
 * stream. */
static void deliver(rose_api_choice *c, bool last)
{
    rose_api_job *j = c->job;
    const char *text = j->io->text.b.data;
    size_t len = j->io->text.b.len;
    if (c->trim_space && len > 0) {
        c->trim_space = false;
        if (text[0] == ' ') {
            text++;
            len--;
        }
    }
    const bool ok = c->calls != NULL ? rose_api_calls_push(c, text, len)
                                     : rose_api_part_add(c, ROSE_API_PART_TEXT, 0, text, len);
    if (!ok || (last && !rose_api_calls_finish(c))) lose(j);
    rose_api_part *part = c->n_parts > 0 ? &c->parts[c->n_parts - 1] : NULL;
    if (last && part != NULL) /* the token that ends the text has no text of its own */
        rose_api_extra_own(c, part->kind == ROSE_API_PART_TEXT ? part : NULL);
    bool due = j->asked.stream && is_due(c, last);
    if (due && wanted(j) && (c->text.len > c->n_out || last)) put_event(c, last);
}

/* The end of a pooled request, which has no other event. */
static void take_pooled(rose_api_choice *c, const rose_event *ev)
{
    rose_api_job *j = c->job;
    if (wanted(j) && ev->finish != ROSE_FINISH_LENGTH) take_failure(c, (rose_finish)ev->finish);
    if (wanted(j)) {
        c->finish = "length";
        c->t_last_ns = ev->t_ns;
        if (!rose_api_pooled_take(c)) cancel_all(j);
    }
    release(c);
    if (wanted(j) && !rose_api_pooled_submit(j)) cancel_all(j);
}

static void take_event(rose_api_choice *c, const rose_event *ev)
{
    rose_api_job *j = c->job;
    if (j->pooled != NULL) {
        take_pooled(c, ev);
        return;
    }
    rose_finish finish = (rose_finish)ev->finish;
    bool last = finish != ROSE_FINISH_NONE;
    rose_api_out_reset(&j->io->text);
    if (wanted(j) && c->finish == NULL) {
        bool sound = finish == ROSE_FINISH_NONE || finish == ROSE_FINISH_STOP ||
                     finish == ROSE_FINISH_LENGTH;
        if (c->extra != NULL && !c->extra->begun && sound) rose_api_extra_prompt(c, &j->io->text);
        if (ev->has_token) take_token(c, ev);
        if (c->finish == NULL && (finish == ROSE_FINISH_STOP || finish == ROSE_FINISH_LENGTH))
            flush_text(c, finish);
        else if (c->finish == NULL && last)
            take_failure(c, finish);
        if (j->asked.max_tokens == 0 && c->finish != NULL) c->t_last_ns = ev->t_ns;
        if (j->io->text.oom || (c->extra != NULL && rose_api_extra_failed(c))) lose(j);
    }
    if (last) release(c);
    if (wanted(j)) deliver(c, last);
}

/* Writes the headers of a reply, after those in `fixed`, to io->tail. NULL: out of memory. */
static const char *make_headers(const rose_api_job *j, const char *fixed)
{
    rose_api_out *o = &j->io->tail;
    rose_api_out_reset(o);
    rose_api_puts(o, fixed);
    rose_api_server_timing(o, j);
    rose_api_put(o, j->note.b.data, j->note.b.len);
    if (j->begun) rose_api_put_label(o, j->r); /* rose_api_reply_take adds it to other replies */
    const char *headers = rose_buf_str(&o->b);
    return o->oom ? NULL : headers;
}

/* Sends the head of the response. False: the client has left. */
static bool begin_stream(rose_api_job *j)
{
    static const char fixed[] = "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    if (j->begun) return j->r != NULL;
    j->begun = true;
    rose_api_count_http(j->io, j->r, 200);
    const char *headers = make_headers(j, fixed);
    return rose_http_stream_begin(j->r, 200, "text/event-stream; charset=utf-8",
                                  headers == NULL ? fixed : headers) &&
           j->r != NULL;
}

static void write_stream(rose_api_job *j)
{
    const rose_api_out *out = &j->io->out;
    end_wait(j);
    if (begin_stream(j) && out->b.len > 0) rose_http_stream_write(j->r, out->b.data, out->b.len);
}

/* ---- streams that wait for their first token ----
 *
 * Proxies and clients give up on a response that stays silent. So the head of a stream is sent when
 * the engine begins with its prompt, and signs of life follow until the first token. Before that,
 * an error is a response with its own status. One timer of the thread looks at all of its waiting
 * streams, often only while one of them has no head. It does nothing to a stream whose first token
 * comes within the time of a look. */

enum { LOOK_MS = 100 };

static uint64_t ping_ns(const rose_api *a)
{
    return (uint64_t)((double)a->o.sse_ping_s * 1e9);
}

/* Whether the engine computes the prompt, or will do so after the step that it is busy with. */
static bool has_begun(const rose_api_job *j)
{
    if (rose_engine_has_room(rose_api_engine(j->api))) return true;
    for (uint32_t i = 0; i < j->n_submitted; i++) {
        const rose_request *req = j->choices[i].req;
        if (req != NULL && rose_request_has_begun(req)) return true;
    }
    return false;
}

/* Sends what is due: the head, a sign of life. */
static void look_at(rose_api_job *j, uint64_t now)
{
    const bool due = now >= j->ping_ns, old = now >= j->t_complete + LOOK_MS * UINT64_C(1000000);
    if (!due && (j->begun || !old || !has_begun(j))) return;
    j->ping_ns = now + ping_ns(j->api);
    if (begin_stream(j) && due)
        rose_http_stream_write(j->r, j->dialect->ping, strlen(j->dialect->ping));
}

/* When a waiting stream needs the next look. */
static uint64_t next_look(const rose_api_job *j, uint64_t now)
{
    const uint64_t soon = now + LOOK_MS * UINT64_C(1000000);
    return j->begun || j->ping_ns < soon ? j->ping_ns : soon;
}

static void on_look(void *arg);

/* Without memory for the timer the streams stay silent until another one waits. */
static void look_at_ns(rose_api_io *io, uint64_t at, uint64_t now)
{
    if (io->look != NULL && io->look_ns <= at) return;
    rose_http_timer_cancel(io->look);
    io->look_ns = at;
    io->look = rose_http_timer_start(io->api->http, io->thread,
                                     at > now ? (uint32_t)((at - now + 999999) / 1000000) : 1,
                                     on_look, io);
}

static void on_look(void *arg)
{
    rose_api_io *io = arg;
    rose_api_job *j = LIST_FIRST(&io->waiting), *next;
    const uint64_t now = rose_now_ns();
    uint64_t at = UINT64_MAX;
    io->look = NULL;
    for (; j != NULL; j = next) { /* a write may end other waits, but it frees no job */
        next = LIST_NEXT(j, wait_link);
        if (j->waits && wanted(j)) look_at(j, now);
        if (j->waits && wanted(j) && next_look(j, now) < at) at = next_look(j, now);
    }
    if (at != UINT64_MAX) look_at_ns(io, at, now);
}

static void begin_wait(rose_api_job *j)
{
    const uint64_t ping = ping_ns(j->api), now = rose_now_ns();
    if (!j->asked.stream || j->begun || ping == 0 || !wanted(j)) return;
    j->waits = true;
    j->ping_ns = now + ping;
    LIST_INSERT_HEAD(&j->io->waiting, j, wait_link);
    look_at_ns(j->io, next_look(j, now), now);
}

static void end_stream(rose_api_job *j)
{
    rose_api_io *io = j->io;
    rose_api_out_reset(&io->out);
    for (uint32_t i = 0; i < j->n_choices; i++) { /* held back when the job failed */
        rose_api_choice *c = &j->choices[i];
        if (!rose_api_calls_finish(c)) io->out.oom = true;
        if (c->text.len > c->n_out) put_event(c, false);
    }
    j->dialect->end(&io->out, j);
    /* If memory runs out here, the stream lacks its end, which clients understand as incomplete. */
    if (!io->out.oom) rose_http_stream_write(j->r, io->out.b.data, io->out.b.len);
    if (j->r == NULL) return;
    rose_api_count_http_time(io, j->r);
    rose_http_stream_end(take_req(j));
}

static void reply_whole(rose_api_job *j)
{
    if (j->phase != ROSE_API_WRITING) j->dialect->whole(&j->reply, j);
    const char *headers = make_headers(j, "");
    if (j->reply.oom || headers == NULL) {
        rose_api_fail_nomem(&j->err);
        rose_api_reply_error(j->io, take_req(j), &j->err);
    } else {
        rose_api_reply_take(j->io, take_req(j), j->reply_type, headers, &j->reply.b);
    }
}

static void answer(rose_api_job *j)
{
    end_wait(j);
    if (j->r != NULL) {
        if (j->begun)
            end_stream(j);
        else if (j->err.status != 0)
            rose_api_reply_error(j->io, take_req(j), &j->err);
        else
            reply_whole(j);
    }
    if (j->io->out.b.cap > MAX_SCRATCH) rose_api_out_free(&j->io->out);
    rose_api_job_free(j);
}

/* After the engine is done with all of a job: answers and frees it, or lets a worker write a reply
 * that would keep the I/O thread from its streams. */
static void finish_job(rose_api_job *j)
{
    rose_api_workers *w = j->api->workers;
    rose_api_count_end(j);
    if (w == NULL || !wanted(j) || !rose_api_pooled_is_long(j)) {
        answer(j);
        return;
    }
    j->phase = ROSE_API_WRITING;
    rose_api_workers_write(w, j);
}

static void take_events(rose_api_choice *c)
{
    rose_event ev;
    c->pending = false;
    while (c->req != NULL && rose_request_poll(c->req, &ev) == ROSE_OK)
        take_event(c, &ev);
}

/* Takes the events of a choice that its sink named. True: it was the last of the job, which is
 * freed or with a worker. */
static bool pump(rose_api_choice *c)
{
    rose_api_job *j = c->job;
    rose_api_io *io = j->io;
    rose_api_out_reset(&io->out);
    take_events(c);
    if (io->out.oom) lose(j);
    /* in a stream that has begun, the text is sent before the error that came with it */
    else if (j->asked.stream && io->out.b.len > 0 && (wanted(j) || (j->begun && j->r != NULL)))
        write_stream(j);
    if (j->n_released < j->n_submitted) return false;
    finish_job(j);
    return true;
}

/* Answers a time-out while the worker still has the job, and tells the worker to stop. The job
 * is freed when the worker has handed it back. */
static void time_out_early(rose_api_job *j)
{
    rose_api_error e;
    rose_api_fail_timeout(&e, j->watched_s);
    j->timed_out = true;
    atomic_store_explicit(&j->gone, true, memory_order_relaxed); /* as in rose_api_job_gone */
    rose_api_reply_error(j->io, take_req(j), &e);
}

/* The time-out has passed: text that was already sent stays, and an error ends the reply. */
static void on_timeout(void *arg)
{
    rose_api_job *j = arg;
    j->timer = NULL;
    if (j->r != NULL && j->phase < ROSE_API_RUNNING) {
        time_out_early(j);
    } else if (wanted(j)) {
        rose_api_fail_timeout(&j->err, j->watched_s);
        cancel_all(j);
    }
}

void rose_api_job_watch(rose_api_job *j, double timeout_s)
{
    if (!(timeout_s > 0) || j->r == NULL || j->timer != NULL) return;
    double left = timeout_s - (double)(rose_now_ns() - j->t_arrival) * 1e-9;
    j->watched_s = timeout_s;
    if (left <= 0)
        on_timeout(j);
    else if ((j->timer = rose_http_timer_start(j->api->http, j->io->thread,
                                               (uint32_t)(left * 1e3) + 1, on_timeout, j)) == NULL)
        if (j->phase >= ROSE_API_RUNNING) lose(j); /* else there is another try when it is */
}

void rose_api_job_back(rose_api_job *j)
{
    if (j->notice && !j->noticed) { /* the first of two times */
        j->noticed = true;
        rose_api_job_watch(j, j->timeout_s);
        return;
    }
    if (j->phase == ROSE_API_WRITING) {
        answer(j);
        return;
    }
    j->phase = ROSE_API_RUNNING;
    rose_api_count_ignored(j);
    if (j->r == NULL) {
        if (j->timed_out) rose_api_fail_timeout(&j->err, j->watched_s);
        cancel_all(j);
    } else if (j->err.status != 0) {
        rose_api_reply_error(j->io, take_req(j), &j->err);
    } else if (j->n_submitted == 0 && j->reply.b.len > 0) { /* the worker has made it */
        const char *headers = j->note.b.len > 0 ? j->note.b.data : NULL; /* ends with a NUL */
        rose_api_reply_take(j->io, take_req(j), j->reply_type, headers, &j->reply.b);
    }
    if (j->n_submitted == 0) {
        rose_api_job_free(j);
        return;
    }
    if (wanted(j)) rose_api_job_watch(j, j->timeout_s);
    rose_api_count_job(j);
    if (wanted(j) && j->device && j->api->o.poll_us > 0) /* else there may be no thread left */
        rose_http_stay_awake(j->api->http, j->io->thread,
                             rose_now_ns() + j->api->o.poll_us * UINT64_C(1000));
    uint32_t n = j->n_submitted;
    for (uint32_t i = 0; i < n; i++) { /* events that came before the job did */
        if (j->choices[i].pending && pump(&j->choices[i])) return;
    }
    begin_wait(j);
}

void rose_api_job_gone(rose_api_job *j)
{
    end_wait(j);
    rose_http_timer_cancel(j->timer);
    j->timer = NULL;
    if (j->phase >= ROSE_API_RUNNING) rose_api_note_job(j);
    if (!j->begun) rose_api_count_http(j->io, j->r, 499);
    j->r = NULL;
    /* relaxed: the flag only saves work; the worker's hand-over orders everything else */
    atomic_store_explicit(&j->gone, true, memory_order_relaxed);
    if (j->phase >= ROSE_API_RUNNING) cancel_all(j);
}

void rose_api_io_on_done(void *arg)
{
    rose_api_io *io = arg;
    void *p;
    const rose_prof_span span = rose_prof_begin("api.answer");
    rose_wakeq_clear(io->done);
    while (rose_wakeq_pop(io->done, &p) == ROSE_OK)
        rose_api_job_back(p);
    rose_prof_end(&span);
}

static uint64_t take_sink(rose_api_io *io)
{
    void *p;
    uint64_t n = 0;
    while (rose_wakeq_pop(io->sink, &p) == ROSE_OK) {
        rose_api_choice *c = rose_request_user(p);
        n++;
        if (c->job->phase >= ROSE_API_RUNNING)
            pump(c);
        else
            c->pending = true;
    }
    return n;
}

void rose_api_io_on_sink(void *arg)
{
    rose_api_io *io = arg;
    const rose_prof_span span = rose_prof_begin("api.stream");
    rose_wakeq_clear(io->sink);
    rose_prof_end_with(&span, "choices", take_sink(io));
}

/* Called while this thread stays awake: takes tokens at once. The signal for them comes only
 * after the device's next step. */
void rose_api_io_poll(void *api, uint32_t thread)
{
    rose_api *a = api;
    rose_api_io *io = &a->io[thread];
    if (rose_wakeq_is_empty(io->sink)) return;
    rose_stall_span stall = {0}; /* the span of the event loop's own iteration begins after the
                                  * loop's sleep */
    rose_stall_begin(&stall);
    const rose_prof_span span = rose_prof_begin("api.stream");
    const uint64_t n = take_sink(io);
    rose_prof_end_with(&span, "choices", n);
    if (rose_stall_stop(&stall))
        rose_stall_report(ROSE_STALL_IO_TURN, &stall, "tokens of %u choices, before its turn",
                          (unsigned)n);
}
