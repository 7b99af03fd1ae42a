/* api/routes.c - the table of paths, and the answers that need no worker. I/O threads only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/clock.h"
#include "base/utf8.h"

/* An answer that needs no job, and what it is made of. */
typedef struct answer {
    const rose_api *a;
    rose_engine *e; /* NULL: the model is loading */
    const rose_http_req *r;
    int status;
    const char *type, *headers;
    char allow[64];
    rose_api_out o;
    rose_api_error err; /* status != 0: the answer is this error */
} answer;

typedef struct route {
    const char *path;
    bool post;
    bool vital; /* answered even at the limit --max-connections */
    bool early; /* answered while the model loads */
    /* One of four: a page of its own; an answer; a JSON reply; a job. */
    void (*run)(rose_api_io *io, rose_http_req *r);
    void (*get)(answer *y);
    void (*put)(rose_api_out *o, const rose_api *a, const rose_engine *e);
    rose_api_kind kind;
    const rose_api_dialect *dialect;
    bool render; /* the reply has the ids of the prompt, and nothing is generated */
} route;

static void send_answer(rose_api_io *io, rose_http_req *r, answer *y)
{
    if (y->o.oom) rose_api_fail_nomem(&y->err);
    if (y->err.status != 0)
        rose_api_reply_error(io, r, &y->err);
    else
        rose_api_reply(io, r, y->status, y->type, y->headers, y->o.b.data, y->o.b.len);
    rose_api_out_free(&y->o);
}

static bool fail_loading(rose_api_error *e)
{
    return rose_api_fail(e, 503, "service_unavailable", NULL, "the model is still loading");
}

static bool is_draining(const rose_api *a)
{
    return atomic_load_explicit(&a->draining, memory_order_relaxed); /* a flag by itself */
}

/* People and routers wait for 200 here before they send requests: vLLM does not answer while it
 * loads, and llama-server answers 503. */
static void get_health(answer *y)
{
    rose_engine_stats s = {0};
    if (y->e != NULL) s = rose_engine_get_stats(y->e);
    rose_api_json(&y->o, "{'status':'%s'", y->e == NULL ? "loading" : s.failed ? "failed" : "ok");
    rose_api_json(&y->o, ",'running':%u,'waiting':%u,'kv_pages':%u,'kv_pages_free':%u", s.running,
                  s.waiting, s.kv_pages, s.kv_pages_free);
    rose_api_json(&y->o, ",'finished':%llu,'cancelled':%llu", (unsigned long long)s.finished,
                  (unsigned long long)s.cancelled);
    const char *why = y->e != NULL ? rose_engine_failure(y->e) : NULL;
    if (why != NULL) rose_api_json(&y->o, ",'error':%-s", why);
    rose_api_puts(&y->o, "}");
    if (y->e == NULL || s.failed) y->status = 503;
    if (y->e == NULL) y->headers = "Retry-After: 1\r\n";
}

static void get_ready(answer *y)
{
    const char *state = "ready";
    if (y->e == NULL)
        state = "loading";
    else if (rose_engine_get_stats(y->e).failed)
        state = "failed";
    else if (is_draining(y->a))
        state = "draining";
    rose_api_json(&y->o, "{'status':'%s'}", state);
    if (strcmp(state, "ready") == 0) return;
    y->status = 503;
    y->headers = "Retry-After: 1\r\n";
}

static void put_version(rose_api_out *o, const rose_api *a, const rose_engine *e)
{
    (void)e;
    rose_api_json(o, "{'version':%-s}", a->o.version);
}

static void get_metrics(answer *y)
{
    y->type = "text/plain; version=0.0.4; charset=utf-8";
    rose_api_metrics_page(&y->o, y->a);
}

static void put_model(rose_api_out *o, const rose_api *a, const rose_engine *e, const char *id)
{
    const rose_memory_plan *p = rose_engine_plan(e);
    rose_api_json(o, "{'id':%-s,'object':'model','created':%lld,'owned_by':'roseinfer',", id,
                  (long long)a->created);
    rose_api_json(o, "'parent':null,'max_model_len':%u,'dtype':'%s'}", p->max_model_len,
                  rose_compute_name(p->dtype));
}

/* Returns further name i of the model; NULL: there are no more. */
static const char *alias(const rose_api *a, uint32_t i)
{
    return i < a->o.model_aliases.n ? rose_opt_list_get(&a->o.model_aliases, i) : NULL;
}

static void put_models(rose_api_out *o, const rose_api *a, const rose_engine *e)
{
    const char *id = a->o.model_id;
    rose_api_json(o, "{'object':'list','data':[");
    for (uint32_t i = 0; id != NULL; id = alias(a, i++)) {
        if (i > 0) rose_api_puts(o, ",");
        put_model(o, a, e, id);
    }
    rose_api_json(o, "]}");
}

/* Tells whether the percent-encoded text stands for name; a final slash is ignored. */
static bool path_equals(const char *text, const char *name)
{
    for (; *text != '\0'; text++, name++) {
        int c = (unsigned char)*text;
        if (c == '%') {
            int hi = rose_hex_digit(text[1]), lo = hi < 0 ? -1 : rose_hex_digit(text[2]);
            if (lo < 0) return false;
            c = hi * 16 + lo;
            text += 2;
        }
        if (*name == '\0' && c == '/' && text[1] == '\0') return true;
        if (c == 0 || c != (unsigned char)*name) return false;
    }
    return *name == '\0';
}

static void get_model(answer *y)
{
    const char *path = rose_http_req_info(y->r)->path + strlen("/v1/models/");
    const char *id = y->a->o.model_id;
    for (uint32_t i = 0; id != NULL && !path_equals(path, id);)
        id = alias(y->a, i++);
    if (id != NULL)
        put_model(&y->o, y->a, y->e, id);
    else
        rose_api_fail(&y->err, 404, "model_not_found", "model",
                      "the model '%.200s' does not exist; this server serves '%.200s'", path,
                      y->a->o.model_id);
}

/* What /get_model_info and /server_info both tell. */
static void put_names(rose_api_out *o, const rose_api *a)
{
    rose_api_json(o, "'served_model_name':%-s", a->o.model_id);
    if (a->o.model_path != NULL) /* the model's folder has the tokenizer */
        rose_api_json(o, ",'model_path':%-s,'tokenizer_path':%-s", a->o.model_path,
                      a->o.model_path);
}

/* In SGLang's form, without what this server does not have. */
static void put_model_info(rose_api_out *o, const rose_api *a, const rose_engine *e)
{
    const rose_arch *arch = rose_engine_arch(e);
    rose_api_puts(o, "{");
    put_names(o, a);
    rose_api_json(o, ",'model_type':%-s,'is_generation':%s,", arch->model_type,
                  arch->no_text[0] == '\0' ? "true" : "false");
    rose_api_json(o, "'has_image_understanding':false,'has_audio_understanding':false}");
}

/* Names are SGLang's where it has the value, else vLLM's. The sampling fields are those of a
 * request that does not set them. */
static void put_server_info(rose_api_out *o, const rose_api *a, const rose_engine *e)
{
    const rose_memory_plan *plan = rose_engine_plan(e);
    const rose_generation *g = &a->o.generation;
    const rose_api_params p = rose_api_schema_defaults(g);
    rose_api_json(o, "{'version':%-s,", a->o.version);
    put_names(o, a);
    rose_api_json(o, ",'dtype':'%s','context_length':%u,'page_size':%d",
                  rose_compute_name(plan->dtype), plan->max_model_len, ROSE_KV_PAGE_TOKENS);
    rose_api_json(o, ",'max_total_num_tokens':%llu,'max_num_seqs':%u",
                  (unsigned long long)plan->pools[0].n_blocks * ROSE_KV_PAGE_TOKENS,
                  plan->max_seqs);
    rose_api_json(o, ",'max_num_batched_tokens':%u,'tp_size':1,'dp_size':1", plan->max_step_tokens);
    rose_api_json(o, ",'default_sampling_params':{'temperature':%g,'top_p':%g", p.temperature,
                  p.top_p);
    rose_api_json(o, ",'top_k':%lld,'min_p':%g,'repetition_penalty':%g", (long long)p.top_k,
                  p.min_p, p.repetition);
    if ((g->has & ROSE_GENERATION_MAX_TOKENS) != 0)
        rose_api_json(o, ",'max_tokens':%u", g->max_tokens);
    rose_api_puts(o, "}}");
}

static void get_loads(answer *y)
{
    (void)rose_api_loads_json(&y->o, y->a, y->e, rose_http_req_info(y->r)->query, &y->err);
}

/* A web page of another site cannot send this type without permission, so a server on localhost is
 * safe from pages in the browser. */
bool rose_api_is_json_type(const char *type, rose_api_error *err)
{
    static const char json[] = "application/json";
    const size_t n = sizeof json - 1;
    return (type != NULL && strncasecmp(type, json, n) == 0 &&
            strchr("; \t", type[n]) != NULL) || /* or the text's end */
           rose_api_fail(err, 415, "unsupported_media_type", NULL,
                         "the request needs the header 'Content-Type: application/json'");
}

/* Names the compression of a body that is sent compressed; else NULL. */
static const char *coding_of(const rose_http_req *r)
{
    const char *coding = rose_http_req_header(r, "Content-Encoding");
    if (coding == NULL || coding[0] == '\0' || strcasecmp(coding, "identity") == 0) return NULL;
    return coding;
}

/* What one job needs of its I/O thread. */
static bool prepare(rose_api_io *io, rose_api_error *err)
{
    rose_api *a = io->api;
    if (io->n_jobs >= ROSE_API_MAX_LIVE) {
        rose_api_fail_status(err, ROSE_E_FULL, NULL, rose_api_engine(a));
        return false;
    }
    if (io->piece == NULL) io->piece = malloc(rose_detok_cap(a->tok) + 16);
    if (io->piece == NULL) return rose_api_fail_nomem(err);
    if ((!a->o.async_admit || a->o.inline_bytes > 0) && io->encoder == NULL) {
        rose_err e = {0};
        if (rose_encoder_create(&io->encoder, a->tok, &e) != ROSE_OK)
            return rose_api_fail_nomem(err);
    }
    return true;
}

static bool may_start(rose_api_io *io, rose_http_req *r, rose_api_kind kind, rose_api_error *err)
{
    rose_api *a = io->api;
    if (rose_api_engine(a) == NULL) return fail_loading(err);
    if (is_draining(a))
        return rose_api_fail(err, 503, "service_unavailable", NULL, "the server is shutting down");
    if (kind == ROSE_API_STORE && !rose_api_store_may(a, r, err)) return false;
    if (kind == ROSE_API_PROFILE_START || kind == ROSE_API_PROFILE_STOP)
        return rose_api_profile_may(a, r, err) && prepare(io, err);
    if (kind != ROSE_API_STORE && /* an upload has no JSON */
        !rose_api_is_json_type(rose_http_req_header(r, "Content-Type"), err))
        return false;
    const char *coding = coding_of(r);
    if (coding != NULL)
        return rose_api_fail(err, 415, "unsupported_media_type", NULL,
                             "Content-Encoding '%.40s' is not supported; send the body "
                             "uncompressed, without that header",
                             coding);
    return prepare(io, err);
}

/* Reads the time-out from the body before a worker has it, so that it also limits the wait for a
 * worker. 0 = the body has no time-out, or the body is so long that a worker must look for it. */
static double peek_timeout(const rose_api_job *j)
{
    if (!rose_api_generates(j) || j->body_len > ROSE_API_MAX_PEEK) return 0;
    return rose_api_json_peek(j->body, j->body_len, "timeout");
}

/* Tells whether a short completion may run on this thread. All other work of the thread waits
 * for it (at worst half a millisecond for 4 KiB). So the jobs get at most a fifth of the time. */
static bool may_run_here(const rose_api_io *io, const rose_api_job *j)
{
    if (!rose_api_generates(j)) return false;
    /* A template is a program: its time does not follow from the size of the body. */
    if (j->kind == ROSE_API_CHAT && (io->api->o.chat != NULL || io->api->o.trusted != NULL))
        return false;
    return j->body_len <= io->api->o.inline_bytes && j->t_complete >= io->inline_from_ns;
}

/* Runs a short job on this I/O thread. False: the job turned out to have many choices, and a
 * worker must run it. */
static bool run_short(rose_api_io *io, rose_api_job *j)
{
    const uint64_t begin = rose_now_ns();
    j->phase = ROSE_API_READING_HERE;
    rose_api_job_process(j, io->encoder);
    const bool done = !j->declined;
    if (done)
        rose_api_job_back(j); /* j may be gone */
    else
        j->phase = ROSE_API_READING;
    const uint64_t end = rose_now_ns();
    io->inline_from_ns = end + 4 * (end - begin);
    return done;
}

/* False: err is the answer. */
static bool start(rose_api_io *io, rose_http_req *r, const route *rt, rose_api_error *err)
{
    rose_api *a = io->api;
    rose_api_job *j;
    if (!may_start(io, r, rt->kind, err)) return false;
    if ((j = rose_api_job_create(io, r, rt->kind, rt->dialect)) == NULL)
        return rose_api_fail_nomem(err);
    j->render = rt->render;
    rose_http_req_set_user(r, j);
    const double timeout_s = a->o.async_admit ? peek_timeout(j) : 0; /* then it may wait */
    if (!a->o.async_admit) {
        rose_api_job_process(j, io->encoder);
        rose_api_job_back(j);
    } else if (may_run_here(io, j) && run_short(io, j)) {
        return true;
    } else if (!rose_api_workers_push(a->workers, j)) {
        rose_api_job_free(j);
        rose_http_req_set_user(r, NULL);
        rose_api_fail_status(err, ROSE_E_FULL, NULL, rose_api_engine(a));
        return false;
    } else {
        rose_api_job_watch(j, timeout_s);
    }
    return true;
}

#define JOB(kind_, dialect_)                                                                       \
    .post = true, .kind = ROSE_API_##kind_, .dialect = &rose_api_dialect_##dialect_
/* These paths also take GET. */
#define STORE .kind = ROSE_API_STORE, .dialect = &rose_api_dialect_completion

/* A path that ends in a slash is a prefix. */
static const route routes[] = {
    {"/", .run = rose_api_get_page},
    {"/v1/completions", JOB(COMPLETION, completion)},
    {"/v1/chat/completions", JOB(CHAT, chat)},
    {"/v1/responses", JOB(CHAT, responses)},
    {"/v1/responses/input_tokens", JOB(APPLY, responses)},
    {"/v1/messages", JOB(CHAT, messages)},
    {"/v1/messages/count_tokens", JOB(APPLY, messages)},
    {"/v1/completions/render", JOB(COMPLETION, completion), .render = true},
    {"/v1/chat/completions/render", JOB(CHAT, chat), .render = true},
    {"/v1/embeddings", JOB(EMBED, embed)},
    {"/v1/rerank", JOB(RERANK, rerank)},
    {"/v2/rerank", JOB(RERANK, rerank)},
    {"/rerank", JOB(RERANK, rerank)},
    {"/v1/score", JOB(SCORE, score)},
    {"/score", JOB(SCORE, score)},
    {"/v1/models", .put = put_models},
    {"/v1/models/", .get = get_model},
    {"/v1/files", STORE},
    {"/v1/files/", STORE},
    {"/v1/batches", STORE},
    {"/v1/batches/", STORE},
    {"/tokenize", JOB(TOKENIZE, completion)},
    {"/detokenize", JOB(DETOKENIZE, completion)},
    {"/apply-template", JOB(APPLY, completion)},
    {"/tokenizer_info", .put = rose_api_tokenizer_json},
    {"/get_model_info", .put = put_model_info},
    {"/server_info", .put = put_server_info},
    {"/v1/loads", .get = get_loads},
    {"/health", .vital = true, .early = true, .get = get_health},
    {"/ready", .vital = true, .early = true, .get = get_ready},
    {"/version", .early = true, .put = put_version},
    {"/metrics", .vital = true, .early = true, .get = get_metrics},
    {"/start_profile", JOB(PROFILE_START, completion)},
    {"/stop_profile", JOB(PROFILE_STOP, completion)},
};

/* Finds the route of a path. A final slash is ignored, because a base URL may have one. */
static const route *find_route(const char *path)
{
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        size_t n = strlen(routes[i].path);
        bool prefix = n > 1 && routes[i].path[n - 1] == '/';
        if (len < n || strncmp(path, routes[i].path, n) != 0) continue;
        if (prefix ? len > n : len == n) return &routes[i];
    }
    return NULL;
}

bool rose_api_is_vital(void *arg, const char *path)
{
    const route *rt = find_route(path);
    (void)arg;
    return rt != NULL && rt->vital;
}

bool rose_api_route_is_probe(const char *path)
{
    const route *rt = find_route(path);
    return rt != NULL && (rt->get == get_health || rt->get == get_ready);
}

_Static_assert(sizeof routes / sizeof *routes < ROSE_METRIC_ROUTES, "metrics.h: too few rows");

uint32_t rose_api_route_index(const char *path)
{
    const route *rt = find_route(path);
    return rt == NULL ? ROSE_METRIC_ROUTES - 1 : (uint32_t)(rt - routes);
}

const char *rose_api_route_name(uint32_t index)
{
    return index < sizeof routes / sizeof *routes ? routes[index].path : "none";
}

enum { MAX_GUESS = 256 };

/* Writes the path with a single /v1 in front and without double slashes, which undoes what a
 * wrong base URL does to a path. */
static void guess_path(char out[MAX_GUESS], const char *path)
{
    size_t n = 3;
    memcpy(out, "/v1", 3);
    while (*path != '\0' && n < MAX_GUESS - 1) {
        if (path[0] == '/' && path[1] == '/')
            path++;
        else if (strncmp(path, "/v1/", 4) == 0 && n == 3)
            path += 3;
        else
            out[n++] = *path++;
    }
    out[n] = '\0';
}

/* Whether the path is `at`, or begins with it and a slash. */
static bool is_under(const char *path, const char *at)
{
    const size_t n = strlen(at);
    return strncmp(path, at, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

const rose_api_dialect *rose_api_route_dialect(const char *path)
{
    char guess[MAX_GUESS];
    guess_path(guess, path);
    return is_under(guess, "/v1/messages") ? &rose_api_dialect_messages : &rose_api_dialect_chat;
}

/* A method that a path takes besides GET or POST; NULL: none. */
static const char *further_method(const route *rt)
{
    if (rt->kind != ROSE_API_STORE) return NULL;
    return strcmp(rt->path, "/v1/files/") == 0 ? "DELETE" : "POST";
}

static bool method_fits(const route *rt, const char *method)
{
    const char *further = further_method(rt);
    if (further != NULL && strcmp(method, further) == 0) return true;
    if (rt->post) return strcmp(method, "POST") == 0;
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

/* Paths of the OpenAI API and related servers that this server does not have, except for those of
 * routes. */
static const char *const absent[] = {
    "/v1/moderations", "/v1/images",        "/v1/audio",     "/v1/fine_tuning",   "/v1/assistants",
    "/v1/threads",     "/v1/uploads",       "/v1/edits",     "/v1/vector_stores", "/v1/realtime",
    "/v1/videos",      "/v1/conversations", "/v1/responses", "/v1/messages",
};

static bool is_absent(const char *path)
{
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        if (is_under(path, absent[i])) return true;
    }
    return false;
}

/* Paths of llama-server and vLLM after /v1, and the paths that are here in their place. */
static const char *const elsewhere[][2] = {
    {"/v1/completion", "/v1/completions"},
    {"/v1/embedding", "/v1/embeddings"},
    {"/v1/reranking", "/v1/rerank"},
    {"/v1/props", "/v1/models"},
    {"/v1/slots", "/v1/loads"},
    {"/v1/load", "/v1/loads"},
    {"/v1/ping", "/v1/health"},
    {"/v1/healthz", "/v1/health"},
    {"/v1/livez", "/v1/health"},
    {"/v1/readyz", "/v1/ready"},
};

static void nothing_there(rose_api_error *e, const char *path)
{
    char guess[MAX_GUESS];
    guess_path(guess, path);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        if (strcmp(guess, elsewhere[i][0]) == 0) snprintf(guess, MAX_GUESS, "%s", elsewhere[i][1]);
    }
    const bool in_v1 = find_route(guess) != NULL;
    if (is_absent(guess))
        rose_api_fail(
            e, 404, "not_found", NULL,
            "'%.200s' is not implemented by this server; it has /v1/completions, "
            "/v1/chat/completions, /v1/responses, /v1/messages, /v1/embeddings and /v1/models",
            path);
    else if (in_v1 || (guess[4] != '\0' && find_route(guess + 3) != NULL)) /* not / itself */
        rose_api_fail(e, 404, "not_found", NULL,
                      "there is nothing at '%.200s'; did you mean '%s'?%s", path,
                      in_v1 ? guess : guess + 3,
                      in_v1 ? " The base URL of an OpenAI client ends in /v1" : "");
    else
        rose_api_fail(e, 404, "not_found", NULL,
                      "there is nothing at '%.200s'; the OpenAI API is at /v1, health checks are "
                      "at /health",
                      path);
}

static void wrong_method(answer *y, const route *rt)
{
    rose_api_error e;
    const char *further = further_method(rt), *more = further != NULL ? further : "";
    rose_api_fail(&e, 405, "method_not_allowed", NULL, "'%.200s' takes %s%s%s, not %.20s",
                  rose_http_req_info(y->r)->path, rt->post ? "POST" : "GET",
                  more[0] != '\0' ? " and " : "", more, rose_http_req_info(y->r)->method);
    rose_api_route_dialect(rt->path)->error(&y->o, &e);
    snprintf(y->allow, sizeof y->allow, "Allow: %s%s%s\r\n", rt->post ? "POST" : "GET, HEAD",
             more[0] != '\0' ? ", " : "", more);
    y->status = 405;
    y->headers = y->allow;
}

/* Tells whether it is OPTIONS *, which asks about the server as a whole. */
static bool asks_about_server(const char *method, const char *path)
{
    return strcmp(path, "*") == 0 && strcmp(method, "OPTIONS") == 0;
}

/* False: somebody else answers the request. */
static bool make_answer(answer *y, rose_api_io *io, rose_http_req *r)
{
    const char *path = rose_http_req_info(r)->path, *method = rose_http_req_info(r)->method;
    const char *label = rose_http_req_header(r, "X-Request-Id");
    const route *rt = find_route(path);
    if (rt != NULL && rt->run == rose_api_get_page && !y->a->o.web) rt = NULL;
    if (asks_about_server(method, path)) {
        y->type = NULL;
        y->headers = "Allow: GET, HEAD, POST, OPTIONS\r\n";
    } else if (rt == NULL) {
        nothing_there(&y->err, path);
    } else if (!method_fits(rt, method)) {
        wrong_method(y, rt);
    } else if (label != NULL && !rose_api_label_is_sound(label)) {
        rose_api_fail(&y->err, 400, NULL, "X-Request-Id",
                      "the header X-Request-Id must be 1 to %d of letters, digits and ._:/+=@-",
                      ROSE_API_MAX_LABEL);
    } else if (rt->run != NULL) {
        rt->run(io, r);
        return false;
    } else if (rt->dialect != NULL) {
        return !start(io, r, rt, &y->err);
    } else if (y->e == NULL && !rt->early) {
        fail_loading(&y->err);
    } else if (rt->get != NULL) {
        rt->get(y);
    } else {
        rt->put(&y->o, y->a, y->e);
    }
    return true;
}

void rose_api_on_request(void *arg, rose_http_req *r)
{
    rose_api *a = arg;
    rose_api_io *io = &a->io[rose_http_req_info(r)->thread];
    answer y = {.a = a, .e = rose_api_engine(a), .r = r, .status = 200, .type = "application/json"};
    if (make_answer(&y, io, r)) send_answer(io, r, &y);
}

void rose_api_on_gone(void *arg, rose_http_req *r)
{
    (void)arg;
    rose_api_job *j = rose_http_req_user(r);
    if (j != NULL) rose_api_job_gone(j);
}

void rose_api_on_error_body(void *arg, const char *path, int status, const char *message,
                            rose_buf *out)
{
    rose_api_error e;
    rose_api_out o = {.b = *out};
    rose_api_count_early(arg, status);
    rose_api_fail(&e, status, status == 401 ? "invalid_api_key" : NULL, NULL, "%s", message);
    rose_api_route_dialect(path)->error(&o, &e);
    *out = o.b;
}
