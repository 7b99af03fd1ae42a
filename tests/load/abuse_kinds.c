/* tests/load/abuse_kinds.c - see abuse_internal.h. Each kind is a row of the table at the end.
 * Bodies hold token ids, so no tokenizer is needed. Ids and lengths are small enough for every
 * context of 128 tokens or more. */
#include <stdlib.h>
#include <string.h>

#include "load/abuse_internal.h"

typedef const rose_abuse_env env;

static uint32_t below(rose_random *r, uint32_t n)
{
    return rose_random_u32(r) % n;
}

static uint32_t between(rose_random *r, uint32_t lo, uint32_t hi)
{
    return lo + below(r, hi - lo + 1);
}

static const char *pick(rose_random *r, const char *const *of, uint32_t n)
{
    return of[below(r, n)];
}
#define PICK(r, ...)                                                                               \
    pick(r, (const char *const[]){__VA_ARGS__},                                                    \
         sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* ---- bodies ---- */

static rose_status add_prompt(env *e, rose_random *r, uint32_t n, rose_buf *b)
{
    rose_status st = rose_buf_addf(b, "{\"model\":\"%s\",\"prompt\":[", e->model);
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++)
        st = rose_buf_addf(b, "%s%u", i > 0 ? "," : "", below(r, e->vocab));
    return st == ROSE_OK ? rose_buf_add(b, "]", 1) : st;
}

/* Writes a completion request with n_in prompt tokens and n_out output tokens. `more` is added to
 * the body, as ",\"n\":2". */
static rose_status add_completion(env *e, rose_random *r, uint32_t n_in, uint32_t n_out,
                                  const char *more, rose_buf *b)
{
    rose_status st = add_prompt(e, r, n_in, b);
    if (st == ROSE_OK)
        st = rose_buf_addf(b, ",\"max_tokens\":%u,\"temperature\":%.1f,\"seed\":%u%s}", n_out,
                           below(r, 3) * 0.5, below(r, 1000), more);
    return st;
}

static rose_status post(env *e, const char *path, const rose_buf *body, rose_visit_plan *p)
{
    return rose_request_write(&p->bytes, &e->url, path, NULL, body->data, body->len);
}

static rose_status completion(env *e, rose_random *r, uint32_t n_in, uint32_t n_out,
                              const char *more, rose_visit_plan *p)
{
    rose_buf b = {0};
    rose_status st = add_completion(e, r, n_in, n_out, more, &b);
    if (st == ROSE_OK) st = post(e, "/v1/completions", &b, p);
    rose_buf_free(&b);
    p->fresh = below(r, 2) == 0;
    return st;
}

static rose_status text_post(env *e, const char *path, const char *body, rose_visit_plan *p)
{
    return rose_request_write(&p->bytes, &e->url, path, NULL, body, strlen(body));
}

/* ---- good requests ---- */

static rose_status make_plain(env *e, rose_random *r, rose_visit_plan *p)
{
    const char *more = PICK(r, "", ",\"n\":3", ",\"logprobs\":3", ",\"echo\":true,\"logprobs\":1",
                            ",\"stop\":[\"e\",\"\\n\\n\"]", ",\"ignore_eos\":true",
                            ",\"presence_penalty\":1.5,\"logit_bias\":{\"5\":-50}",
                            ",\"bad_words\":[\"the\",\"king\"],\"min_tokens\":1",
                            ",\"stop_token_ids\":[3,4,5,6,7],\"return_token_ids\":true");
    return completion(e, r, between(r, 1, 40), between(r, 1, 24), more, p);
}

static rose_status make_stream(env *e, rose_random *r, rose_visit_plan *p)
{
    const char *more =
        PICK(r, ",\"stream\":true", ",\"stream\":true,\"n\":2", ",\"stream\":true,\"logprobs\":2",
             ",\"stream\":true,\"stop\":\"a\",\"n\":4",
             ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    return completion(e, r, between(r, 1, 40), between(r, 1, 32), more, p);
}

static rose_status make_chat(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_buf b = {0};
    rose_status st = rose_buf_addf(
        &b,
        "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":%u,"
        "\"stream\":%s}",
        e->model, PICK(r, "Who is the king?", "One day", "\\ud83c\\udf39 \\u00e9", ""),
        between(r, 1, 20), PICK(r, "true", "false"));
    if (st == ROSE_OK) st = post(e, "/v1/chat/completions", &b, p);
    rose_buf_free(&b);
    return st;
}

static rose_status make_score(env *e, rose_random *r, rose_visit_plan *p)
{
    return completion(e, r, between(r, 1, 100), 0,
                      PICK(r, ",\"echo\":true,\"logprobs\":1", ",\"prompt_logprobs\":2"), p);
}

static rose_status make_get(env *e, rose_random *r, rose_visit_plan *p)
{
    static const char *const paths[] = {"/health", "/ready", "/metrics", "/version", "/v1/models"};
    return rose_request_write(&p->bytes, &e->url, pick(r, paths, 5), NULL, NULL, 0);
}

static rose_status make_tokenize(env *e, rose_random *r, rose_visit_plan *p)
{
    if (below(r, 2) == 0)
        return text_post(e, "/tokenize", "{\"prompt\":\"Once upon a time \\u4e16\"}", p);
    return text_post(e, "/detokenize", "{\"tokens\":[1,2,3,500]}", p);
}

/* ---- clients that leave ---- */

static rose_status make_leave_stream(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = completion(e, r, between(r, 1, 60), between(r, 20, 60),
                                PICK(r, ",\"stream\":true,\"ignore_eos\":true",
                                     ",\"stream\":true,\"ignore_eos\":true,\"n\":5"),
                                p);
    p->fresh = true;
    p->leave_bytes = between(r, 1, 6000);
    p->reset = below(r, 2) == 0;
    return st;
}

static rose_status make_leave_early(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = completion(e, r, between(r, 1, 60), between(r, 1, 60),
                                PICK(r, "", ",\"stream\":true", ",\"n\":4"), p);
    p->fresh = true;
    p->leave_ms = between(r, 1, 25);
    p->reset = below(r, 2) == 0;
    return st;
}

/* Asks for many choices of long texts, so that most of them still wait when the client leaves. */
static rose_status make_leave_queue(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = completion(
        e, r, between(r, 30, 64), 60,
        PICK(r, ",\"ignore_eos\":true,\"n\":16", ",\"ignore_eos\":true,\"n\":40,\"stream\":true"),
        p);
    p->fresh = true;
    p->leave_ms = between(r, 1, 60);
    return st;
}

static rose_status make_half_body(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = make_plain(e, r, p);
    p->fresh = true;
    p->n_send = 1 + below(r, (uint32_t)p->bytes.len - 1);
    p->leave_ms = between(r, 1, 20);
    p->reset = below(r, 2) == 0;
    return st;
}

static rose_status make_half_close(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = make_plain(e, r, p);
    p->fresh = p->half_close = true;
    return st;
}

static rose_status make_connect_only(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = rose_buf_addf(&p->bytes, "%s", PICK(r, "P", "GET /", "\r\n"));
    (void)e;
    p->fresh = true;
    p->leave_ms = between(r, 1, 30);
    p->reset = below(r, 2) == 0;
    return st;
}

/* ---- slow clients ---- */

static rose_status make_stall(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = make_plain(e, r, p);
    p->fresh = true;
    p->n_send = below(r, 2) == 0 ? between(r, 1, 40) : p->bytes.len - between(r, 1, 10);
    return st;
}

static rose_status make_drip(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = make_plain(e, r, p);
    p->fresh = true;
    p->drip_bytes = between(r, 60, 200);
    p->drip_ms = 4;
    return st;
}

/* The reply is larger than all buffers between server and client, so the server must drop some of
 * these clients itself. */
static rose_status make_deaf(env *e, rose_random *r, rose_visit_plan *p)
{
    const char *more =
        e->light
            ? ",\"stream\":true,\"ignore_eos\":true,\"n\":4,\"logprobs\":20"
            : ",\"stream\":true,\"ignore_eos\":true,\"n\":32,\"logprobs\":20,\"temperature\":1";
    rose_status st = completion(e, r, between(r, 1, 10), e->light ? 40 : 110, more, p);
    p->receive_buffer_bytes = 2048;
    p->deaf = true;
    p->leave_ms = e->timeout_ms + between(r, 0, 4 * e->timeout_ms);
    p->reset = below(r, 2) == 0;
    return st;
}

static rose_status make_sip(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = completion(e, r, between(r, 1, 20), 60,
                                ",\"stream\":true,\"ignore_eos\":true,\"n\":2,\"logprobs\":5", p);
    p->receive_buffer_bytes = 4096;
    p->sip_bytes = between(r, 500, 3000);
    p->sip_ms = 8;
    p->leave_ms = 3000;
    return st;
}

/* ---- wrong requests ---- */

static rose_status make_malformed(env *e, rose_random *r, rose_visit_plan *p)
{
    const char *body =
        PICK(r, "{", "", "[]", "nonsense", "{\"prompt\":\"x\"", "{\"prompt\":\"x\",}",
             "{\"prompt\":\"\\ud800\"}", "{\"prompt\":\"\xff\xfe\"}", "{\"prompt\":\"a\"}{}",
             "{\"prompt\":1e999}", "{\"prompt\":\"x\",\"prompt\":\"y\"}", "\"prompt\"", "null",
             "{\"prompt\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]");
    return text_post(e, PICK(r, "/v1/completions", "/v1/chat/completions", "/tokenize"), body, p);
}

static rose_status make_wrong_field(env *e, rose_random *r, rose_visit_plan *p)
{
    const char *more =
        PICK(r, ",\"temperature\":-1", ",\"top_p\":0", ",\"n\":0", ",\"n\":1000000",
             ",\"regex\":\"(\"", ",\"best_of\":5", ",\"max_tokens\":-4", ",\"stop\":[1]",
             ",\"stop\":\"\"", ",\"logit_bias\":{\"x\":1}", ",\"logprobs\":21",
             ",\"stream_options\":{\"x\":1}", ",\"seed\":1.5", ",\"logprobs\":1e18",
             ",\"bad_words\":[\"\"]", ",\"stop_token_ids\":[99999999]",
             ",\"prompt_logprobs\":1,\"stream\":true", ",\"max_completion_tokens\":2147483647");
    rose_buf b = {0};
    rose_status st = add_prompt(e, r, between(r, 1, 10), &b);
    if (st == ROSE_OK) st = rose_buf_addf(&b, "%s}", more);
    if (st == ROSE_OK) st = post(e, "/v1/completions", &b, p);
    rose_buf_free(&b);
    return st;
}

static rose_status make_wrong_route(env *e, rose_random *r, rose_visit_plan *p)
{
    const char *line = PICK(r, "GET /nope", "PUT /v1/completions", "POST /health", "POST /",
                            "DELETE /v1/models", "GET /v1/models/other", "GET /v1/completions",
                            "GET /%2e%2e/%2e%2e/etc/passwd", "OPTIONS /v1/completions");
    return rose_buf_addf(&p->bytes, "%s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n\r\n", line,
                         e->url.host);
}

static rose_status make_wrong_type(env *e, rose_random *r, rose_visit_plan *p)
{
    return rose_buf_addf(
        &p->bytes, "POST /v1/completions HTTP/1.1\r\nHost: %s\r\n%sContent-Length: 2\r\n\r\n{}",
        e->url.host, PICK(r, "", "Content-Type: text/plain\r\n", "Content-Type: x\r\n"));
}

static rose_status make_oversize(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = rose_buf_addf(&p->bytes,
                                   "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: "
                                   "application/json\r\nContent-Length: %u\r\n\r\n{\"prompt\":\"",
                                   e->url.host, e->max_body + 1 + below(r, 1u << 30));
    p->fresh = true;
    return st;
}

static rose_status make_big_header(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = rose_buf_addf(&p->bytes, "GET /health HTTP/1.1\r\nHost: %s\r\n", e->url.host);
    for (uint32_t i = between(r, 700, 1200); i > 0 && st == ROSE_OK; i--)
        st = rose_buf_addf(&p->bytes, "X-Header-%u: %0100u\r\n", i, i);
    p->fresh = true;
    return st == ROSE_OK ? rose_buf_add(&p->bytes, "\r\n", 2) : st;
}

static rose_status make_hostile(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = ROSE_OK;
    uint32_t n = between(r, 1, 3000);
    if (below(r, 2) == 0) { /* a good request with some bytes changed */
        st = make_plain(e, r, p);
        for (uint32_t k = between(r, 1, 8); k > 0 && st == ROSE_OK; k--)
            p->bytes.data[below(r, (uint32_t)p->bytes.len)] = (char)below(r, 256);
    } else {
        for (uint32_t i = 0; i < n && st == ROSE_OK; i++) {
            char c = (char)below(r, 256);
            st = rose_buf_add(&p->bytes, &c, 1);
        }
    }
    p->fresh = true;
    /* the Content-Length became larger, so the server waits for more bytes */
    p->leave_ms = 2 * e->timeout_ms;
    return st;
}

static rose_status make_smuggle(env *e, rose_random *r, rose_visit_plan *p)
{
    const char *heads =
        PICK(r, "Content-Length: 2\r\nContent-Length: 3\r\n",
             "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "Content-Length: -1\r\n",
             "Content-Length: 99999999999999999999\r\n", "Content-Length: 0x10\r\n",
             "Transfer-Encoding: gzip\r\n", "Transfer-Encoding: chunked\r\nContent-Type: x\r\n");
    p->fresh = true;
    p->leave_ms = 2 * e->timeout_ms;
    return rose_buf_addf(&p->bytes, "POST /v1/completions HTTP/1.1\r\nHost: %s\r\n%s\r\n%s",
                         e->url.host, heads, PICK(r, "{}", "zz\r\n{}\r\n", "2\r\n{}\r\nq\r\n"));
}

/* ---- impatient clients ---- */

static rose_status make_pipeline(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = ROSE_OK;
    p->n_replies = between(r, 2, 6);
    for (uint32_t i = 0; i < p->n_replies && st == ROSE_OK; i++) {
        switch (below(r, 4)) {
        case 0:
            st = make_get(e, r, p);
            break;
        case 1:
            st = make_wrong_field(e, r, p);
            break;
        default:
            st = make_plain(e, r, p);
            break;
        }
    }
    p->fresh = below(r, 2) == 0;
    return st;
}

static rose_status make_pipeline_leave(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_status st = make_pipeline(e, r, p);
    p->fresh = true;
    p->leave_bytes = between(r, 1, 2000);
    p->n_send = p->bytes.len - below(r, 100);
    p->leave_ms = 500;
    return st;
}

static rose_status make_timeout(env *e, rose_random *r, rose_visit_plan *p)
{
    return completion(e, r, between(r, 30, 60), 60,
                      PICK(r, ",\"ignore_eos\":true,\"n\":8,\"timeout\":0.002",
                           ",\"ignore_eos\":true,\"n\":8,\"timeout\":0.02,\"stream\":true",
                           ",\"ignore_eos\":true,\"n\":3,\"timeout\":0.01"),
                      p);
}

static rose_status make_chunked(env *e, rose_random *r, rose_visit_plan *p)
{
    rose_buf b = {0};
    rose_status st = add_completion(e, r, between(r, 1, 20), between(r, 1, 10), "", &b);
    if (st == ROSE_OK)
        st = rose_buf_addf(&p->bytes,
                           "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: "
                           "application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
                           e->url.host);
    for (size_t at = 0; at < b.len && st == ROSE_OK;) {
        size_t n = between(r, 1, 40);
        if (n > b.len - at) n = b.len - at;
        st = rose_buf_addf(&p->bytes, "%zx\r\n%.*s\r\n", n, (int)n, b.data + at);
        at += n;
    }
    if (st == ROSE_OK) st = rose_buf_addf(&p->bytes, "0\r\n\r\n");
    rose_buf_free(&b);
    return st;
}

#define REPLIED (1u << ROSE_VISIT_REPLIED)
#define LEFT    (1u << ROSE_VISIT_LEFT)
#define CLOSED  (1u << ROSE_VISIT_CLOSED)

const rose_abuse_kind rose_abuse_kinds[] = {
    {"plain", 16, make_plain, REPLIED, {200}},
    {"stream", 12, make_stream, REPLIED, {200}},
    {"chat", 4, make_chat, REPLIED, {200}},
    {"score", 3, make_score, REPLIED, {200}},
    {"GET", 4, make_get, REPLIED, {200}},
    {"tokenize", 3, make_tokenize, REPLIED, {200}},
    {"leaves within the stream", 14, make_leave_stream, REPLIED | LEFT, {200}},
    {"leaves before the reply", 12, make_leave_early, REPLIED | LEFT, {200}},
    {"leaves the queue", 5, make_leave_queue, REPLIED | LEFT, {200}},
    {"leaves within its request", 6, make_half_body, LEFT | REPLIED, {400, 408}},
    {"shuts its sending side", 3, make_half_close, REPLIED | CLOSED, {200}},
    {"sends next to nothing", 3, make_connect_only, LEFT, {408}},
    {"stops sending", 2, make_stall, REPLIED | CLOSED, {400, 408}},
    {"sends drop by drop", 2, make_drip, REPLIED, {200}},
    {"never reads", 1, make_deaf, LEFT | CLOSED, {200}},
    {"reads slowly", 1, make_sip, REPLIED | LEFT | CLOSED, {200}},
    {"malformed JSON", 8, make_malformed, REPLIED, {400}},
    {"wrong field", 10, make_wrong_field, REPLIED, {400}},
    {"wrong route", 4, make_wrong_route, REPLIED, {404, 405}},
    {"wrong content type", 3, make_wrong_type, REPLIED, {415}},
    {"oversize", 3, make_oversize, REPLIED, {413}},
    {"headers too long", 1, make_big_header, REPLIED | CLOSED, {431}},
    {"hostile bytes",
     6,
     make_hostile,
     REPLIED | LEFT | CLOSED,
     {200, 400, 403, 404, 405, 408, 413, 415, 431, 501, 505}},
    {"two lengths", 3, make_smuggle, REPLIED | LEFT | CLOSED, {400, 408, 411, 413, 415, 501}},
    {"pipelined", 5, make_pipeline, REPLIED, {200, 400}},
    {"leaves the pipeline", 4, make_pipeline_leave, REPLIED | LEFT | CLOSED, {200, 400, 408}},
    {"own time-out", 3, make_timeout, REPLIED, {200, 504}},
    {"chunked body", 3, make_chunked, REPLIED, {200}},
};
const uint32_t rose_abuse_n_kinds = sizeof rose_abuse_kinds / sizeof *rose_abuse_kinds;

rose_status rose_abuse_make(const rose_abuse_env *e, uint64_t seed, uint32_t i, rose_visit_plan *p)
{
    rose_random r = {.seed = seed, .stream = i};
    uint32_t total = 0, k = 0;
    for (uint32_t j = 0; j < rose_abuse_n_kinds; j++)
        total += rose_abuse_kinds[j].weight;
    uint32_t at = below(&r, total);
    while (at >= rose_abuse_kinds[k].weight)
        at -= rose_abuse_kinds[k++].weight;
    *p = (rose_visit_plan){.kind = (int)k};
    rose_status st = rose_abuse_kinds[k].make(e, &r, p);
    p->kind = (int)k;
    if (st != ROSE_OK) rose_buf_free(&p->bytes);
    return st;
}

static bool right_status(const rose_abuse_kind *k, int status)
{
    if (status == 429 || status == 503) return true;
    for (int i = 0; i < ROSE_ABUSE_MAX_STATUSES && k->statuses[i] != 0; i++) {
        if (k->statuses[i] == status) return true;
    }
    return false;
}

bool rose_abuse_right(const rose_visit *v)
{
    const rose_abuse_kind *k = &rose_abuse_kinds[v->plan.kind];
    if ((k->ends & 1u << v->end) == 0) return false;
    /* an error event in a stream that began well */
    if (v->has_error && v->status[0] == 200 && k->statuses[0] == 200 && k->statuses[1] == 0)
        return false;
    for (uint32_t i = 0; i < v->n_replies; i++) {
        if (!right_status(k, v->status[i])) return false;
    }
    return true;
}
