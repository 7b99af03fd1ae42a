/* bench/reply.c - see reply.h. http_parser splits HTTP, sse.c splits events, base/json.h
 * parses JSON. */
#include "bench/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "bench/results.h"

void rose_reply_free(rose_reply *r)
{
    free(r->arrivals);
    *r = (rose_reply){0};
}

void rose_reply_fail(rose_reply *r, const char *fmt, ...)
{
    va_list ap;
    if (r->error[0] != '\0') return;
    va_start(ap, fmt);
    vsnprintf(r->error, sizeof r->error, fmt, ap);
    va_end(ap);
    for (char *p = r->error; *p != '\0'; p++) { /* error messages quote bytes that may be hostile */
        if ((unsigned char)*p < 32 || *p == 127) *p = '?';
    }
    rose_results_text(r->error);
}

static rose_status add_arrival(rose_reply *r, uint64_t t_ns, uint32_t n_tokens)
{
    if (r->n_events == r->cap) {
        uint32_t cap = r->cap == 0 ? 64 : r->cap * 2;
        rose_arrival *p = realloc(r->arrivals, cap * sizeof *p);
        if (p == NULL) return ROSE_E_NOMEM;
        r->arrivals = p;
        r->cap = cap;
    }
    r->arrivals[r->n_events++] = (rose_arrival){t_ns, n_tokens};
    if (r->first_ns == 0) r->first_ns = t_ns;
    r->last_ns = t_ns;
    return ROSE_OK;
}

/* ---- one event's JSON ---- */

static bool has_text(const rose_json *v)
{
    return rose_json_is_string(v) && rose_json_text_len(v) > 0;
}

static uint32_t count_of(const rose_json *o, const char *key)
{
    int64_t n = rose_json_int(rose_json_get(o, key));
    return n < 0 || n > (1 << 28) ? 0 : (uint32_t)n;
}

static void read_times(rose_reply *r, const rose_json *t)
{
    const struct {
        const char *key;
        double *to;
    } all[] = {
        {"receive_ms", &r->times.receive},
        {"worker_wait_ms", &r->times.worker_wait},
        {"parse_ms", &r->times.parse},
        {"tokenize_ms", &r->times.tokenize},
        {"queue_wait_ms", &r->times.queue_wait},
        {"prefill_to_first_ms", &r->times.prefill_to_first},
        {"ttft_ms", &r->times.ttft},
        {"e2e_ms", &r->times.e2e},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const rose_json *v = rose_json_get(t, all[i].key);
        *all[i].to = rose_json_is_number(v) ? rose_json_number_value(v) : -1;
        /* llama.cpp uses other names in `timings`, so its times are not read */
        r->has_times = r->has_times || rose_json_is_number(v);
    }
}

static void read_error(rose_reply *r, const rose_json *e)
{
    const rose_json *m = rose_json_is_object(e) ? rose_json_get(e, "message") : e;
    rose_reply_fail(r, "the server said: %.120s", rose_json_is_string(m) ? rose_json_text(m) : "?");
}

static rose_event_look look_at(const rose_json *choice)
{
    const rose_json *delta = rose_json_get(choice, "delta");
    return (rose_event_look){.text = has_text(rose_json_get(choice, "text")) ||
                                     has_text(rose_json_get(delta, "content")) ||
                                     has_text(rose_json_get(delta, "reasoning_content")),
                             .n_ids =
                                 (uint32_t)rose_json_count(rose_json_get(choice, "token_ids"))};
}

/* Returns the number of tokens of this event: that of its ids, or the growth of the running usage,
 * or 1 for text. */
static rose_status read_tokens(rose_reader *rd, const rose_event_look *look, const rose_json *usage)
{
    rose_reply *r = rd->reply;
    const bool text = look->text;
    uint32_t n = look->n_ids;
    if (n > 0) {
        r->ids_seen += n;
        r->counted = true;
    } else if (rose_json_is_object(usage)) {
        uint32_t total = count_of(usage, "completion_tokens");
        if (total > r->usage_completion) {
            n = total - r->usage_completion;
            r->counted = true;
        }
    }
    /* a chunk without a token, for example the first chunk, which only gives the role */
    if (n == 0 && !text) return ROSE_OK;
    return add_arrival(r, rd->t_ns, n == 0 ? 1 : n);
}

static rose_status on_event(void *user, const char *data, size_t len)
{
    rose_reader *rd = user;
    rose_reply *r = rd->reply;
    rose_json_error e;
    rose_json *o;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        r->finished = true;
        return ROSE_OK;
    }
    rose_event_look look;
    if (rose_event_glance(data, len, &look)) return read_tokens(rd, &look, NULL);
    /* a token may be the byte 0 */
    rose_status st = rose_json_parse(&o, data, len, ROSE_JSON_NUL, &e);
    if (st != ROSE_OK) {
        rose_reply_fail(r, "event %" PRIu32 " is no JSON: %.80s", r->n_events, e.text);
        return st;
    }
    const rose_json *choice = rose_json_at(rose_json_get(o, "choices"), 0);
    const rose_json *usage = rose_json_get(o, "usage");
    const rose_json *reason = rose_json_get(choice, "finish_reason");
    const rose_json *error = rose_json_get(o, "error");
    const rose_json *times = rose_json_get(o, "timings");
    if (error != NULL && !rose_json_is_null(error)) read_error(r, error);
    look = look_at(choice);
    if (choice != NULL) st = read_tokens(rd, &look, usage);
    if (rose_json_is_object(usage)) {
        r->has_usage = true;
        r->usage_completion = count_of(usage, "completion_tokens");
        r->usage_prompt = count_of(usage, "prompt_tokens");
    }
    if (rose_json_is_string(reason)) {
        r->finished = true;
        snprintf(r->finish, sizeof r->finish, "%s", rose_json_text(reason));
        rose_results_text(r->finish);
    }
    if (rose_json_is_object(times)) read_times(r, times);
    rose_json_decref(o);
    return st;
}

/* The server's usage figures are impossible, and there are no token ids to check them against. Each
 * event counts as one token again. */
static void forget_usage(rose_reply *r)
{
    for (uint32_t i = 0; i < r->n_events; i++)
        r->arrivals[i].n_tokens = 1;
    r->counted = false;
}

void rose_reply_settle(rose_reply *r)
{
    const bool ids = r->ids_seen > 0;
    const bool over = r->max_tokens > 0 && r->usage_completion > r->max_tokens;
    if (r->has_usage)
        r->usage_lies =
            ids ? r->usage_completion != r->ids_seen : over || r->usage_completion < r->n_events;
    if (r->usage_lies && !ids) forget_usage(r);
    r->n_tokens = ids                              ? r->ids_seen
                  : r->has_usage && !r->usage_lies ? r->usage_completion
                                                   : r->n_events;
    if (r->status != 0 && r->status != 200) rose_reply_fail(r, "HTTP status %d", r->status);
    if (r->n_events == 0) rose_reply_fail(r, "no token arrived");
    if (!r->finished) rose_reply_fail(r, "the stream ended after %" PRIu32 " events", r->n_events);
}

/* ---- HTTP ---- */

static int on_field(http_parser *p, const char *at, size_t n)
{
    rose_reader *r = p->data;
    if (r->value_seen) r->field_len = 0;
    r->value_seen = false;
    for (size_t i = 0; i < n && r->field_len < sizeof r->field; i++)
        r->field[r->field_len++] = at[i];
    return 0;
}

static int on_value(http_parser *p, const char *at, size_t n)
{
    rose_reader *r = p->data;
    r->value_seen = true;
    if (r->field_len != 12 || strncasecmp(r->field, "content-type", 12) != 0) return 0;
    for (size_t i = 0; i < n && r->type_len + 1u < sizeof r->type; i++)
        r->type[r->type_len++] = at[i];
    return 0;
}

static int on_headers(http_parser *p)
{
    rose_reader *r = p->data;
    /* after "100 Continue" the real reply is still to come */
    if (p->status_code / 100 == 1) return 0;
    r->reply->status = (int)p->status_code;
    r->is_sse = p->status_code == 200 && r->type_len >= 17 &&
                strncasecmp(r->type, "text/event-stream", 17) == 0;
    return 0;
}

static int on_body(http_parser *p, const char *at, size_t n)
{
    rose_reader *r = p->data;
    if (r->is_sse) {
        r->bad = rose_sse_feed(&r->sse, at, n, on_event, r);
        return r->bad == ROSE_OK ? 0 : -1;
    }
    if (n > ROSE_READER_MAX_BODY - r->body.len) {
        r->bad = ROSE_E_FORMAT;
        rose_reply_fail(r->reply, "a reply of more than 1 MiB");
        return -1;
    }
    r->bad = rose_buf_add(&r->body, at, n);
    return r->bad == ROSE_OK ? 0 : -1;
}

/* Takes the error message from a reply that is no stream, or notes that the stream is missing. */
static void read_plain(rose_reader *r)
{
    rose_json_error e;
    rose_json *o = NULL;
    if (r->reply->status == 200) {
        rose_reply_fail(r->reply, "no event stream, but content type '%.*s'", (int)r->type_len,
                        r->type);
        return;
    }
    if (rose_json_parse(&o, r->body.data != NULL ? r->body.data : "", r->body.len, 0, &e) ==
        ROSE_OK) {
        const rose_json *error = rose_json_get(o, "error");
        const rose_json *m = rose_json_get(rose_json_is_object(error) ? error : o, "message");
        if (!rose_json_is_string(m))
            m = rose_json_is_string(error) ? error : rose_json_get(o, "detail");
        if (rose_json_is_string(m))
            rose_reply_fail(r->reply, "HTTP status %d: %.140s", r->reply->status,
                            rose_json_text(m));
    }
    rose_json_decref(o);
}

static int on_complete(http_parser *p)
{
    rose_reader *r = p->data;
    if (p->status_code / 100 == 1) {
        r->type_len = r->field_len = 0;
        return 0;
    }
    if (!r->is_sse) read_plain(r);
    r->reply->end_ns = r->t_ns;
    r->complete = true;
    r->keep_alive = http_should_keep_alive(p) != 0;
    http_parser_pause(p, 1); /* bytes after the reply would belong to no request of ours */
    return 0;
}

static const http_parser_settings settings = {
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers,
    .on_body = on_body,
    .on_message_complete = on_complete,
};

void rose_reader_init(rose_reader *r)
{
    *r = (rose_reader){0};
}

void rose_reader_free(rose_reader *r)
{
    rose_sse_free(&r->sse);
    rose_buf_free(&r->body);
    *r = (rose_reader){0};
}

void rose_reader_begin(rose_reader *r, rose_reply *reply)
{
    http_parser_init(&r->parser, HTTP_RESPONSE);
    r->parser.data = r;
    r->sse.line.len = r->sse.data.len = 0;
    r->sse.has_data = r->sse.after_cr = false;
    r->body.len = 0;
    r->reply = reply;
    r->field_len = r->type_len = 0;
    r->value_seen = r->is_sse = r->complete = r->keep_alive = r->started = false;
    r->bad = ROSE_OK;
}

static rose_status fail_parse(rose_reader *r)
{
    if (r->bad == ROSE_E_NOMEM)
        rose_reply_fail(r->reply, "out of memory");
    else if (r->bad != ROSE_OK)
        rose_reply_fail(r->reply, "an event of more than 1 MiB");
    else
        rose_reply_fail(r->reply, "not HTTP: %s",
                        http_errno_description(HTTP_PARSER_ERRNO(&r->parser)));
    return r->bad != ROSE_OK ? r->bad : ROSE_E_FORMAT;
}

rose_status rose_reader_feed(rose_reader *r, const char *bytes, size_t n, uint64_t t_ns)
{
    /* the kernel's clock and ours differ, so a stamp may be 1 us too early */
    r->t_ns = t_ns > r->t_ns ? t_ns : r->t_ns;
    r->started = true;
    size_t used = http_parser_execute(&r->parser, &settings, bytes, n);
    if (r->complete) {
        /* The parser pauses at the last byte of the reply, or one byte later. The client did not
         * ask for any bytes after the reply. */
        if (used + 1 < n) r->keep_alive = false;
        return ROSE_OK;
    }
    if (used == n && HTTP_PARSER_ERRNO(&r->parser) == HPE_OK && !r->parser.upgrade) return ROSE_OK;
    return fail_parse(r);
}

rose_status rose_reader_eof(rose_reader *r, uint64_t t_ns)
{
    r->t_ns = t_ns > r->t_ns ? t_ns : r->t_ns;
    if (r->complete) return ROSE_OK;
    if (r->started) http_parser_execute(&r->parser, &settings, NULL, 0);
    r->keep_alive = false;
    if (r->complete) return ROSE_OK;
    if (!r->started)
        rose_reply_fail(r->reply, "the server closed the connection without a reply");
    else
        rose_reply_fail(r->reply, "the server closed the connection after %" PRIu32 " events",
                        r->reply->n_events);
    return ROSE_E_CLOSED;
}
