/* lib/lib.c - the C library of include/roseinfer.h: a thin layer over model, tokenizer and engine.
 *
 * Every request has a wake queue of its own, so that any thread can wait for it. The server has
 * one wake queue per I/O thread and does not use this library. A mutex guards the shared
 * encoder, because tokenising is not on the token path. */
#include "roseinfer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/json.h"
#include "base/log.h"
#include "base/version.h"
#include "chat/chat.h"
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

typedef struct sink_node {
    struct sink_node *next; /* in the free list */
    rose_wakeq *q;
} sink_node;

struct rose_lib {
    rose_tokenizer *tok;
    rose_engine *engine;
    rose_chat *chat; /* NULL: the model has no chat template */
    rose_generation generation;
    pthread_mutex_t mutex; /* guards encoder, free_sinks and requests */
    sink_node *free_sinks;
    rose_encoder *encoder;
    rose_lib_request *requests; /* not yet released, doubly linked */
};

struct rose_lib_request {
    rose_lib *rose;
    rose_lib_request *prev, *next;
    rose_request *req; /* NULL once released to the engine */
    sink_node *sink;
    rose_detok detok;
    uint32_t n_prompt;
    rose_lib_finish finish;
    bool given; /* the queue delivered req, and req was not yet polled empty: only then may it be
                   polled */
    char *text; /* [rose_detok_cap + 12] */
};

static int fail(rose_status st)
{
    switch (st) {
    case ROSE_OK:
        return 0;
    case ROSE_E_INVAL:
        return ROSE_LIB_E_INVAL;
    case ROSE_E_NOMEM:
        return ROSE_LIB_E_NOMEM;
    case ROSE_E_IO:
    case ROSE_E_FORMAT:
    case ROSE_E_UNSUPPORTED:
    case ROSE_E_NOTFOUND:
        return ROSE_LIB_E_MODEL;
    case ROSE_E_FULL:
    case ROSE_E_LATE:
        return ROSE_LIB_E_FULL;
    case ROSE_E_CLOSED:
    case ROSE_E_BACKEND:
        return ROSE_LIB_E_BACKEND;
    case ROSE_E_EMPTY:
    case ROSE_E_INTERNAL:
        break;
    }
    return ROSE_LIB_E_INTERNAL;
}

/* Copies the message (or the name of the status, if there is no message) to the caller's buffer. */
static int fail_with(rose_status st, const rose_err *e, char err[ROSE_LIB_ERR])
{
    if (err != NULL && st != ROSE_OK) {
        const char *msg = e->msg[0] != '\0'   ? e->msg
                          : st == ROSE_E_FULL ? "the waiting queue is full: try again later"
                                              : rose_status_name(st);
        size_t n = strnlen(msg, ROSE_LIB_ERR - 1);
        memcpy(err, msg, n);
        err[n] = '\0';
    }
    return fail(st);
}

static rose_status read_options(const rose_lib_options *in, rose_engine_opts *o, rose_err *err)
{
    rose_engine_opts_default(o);
    if (in == NULL) return ROSE_OK;
    const char *dtype = in->dtype != NULL ? in->dtype : "auto";
    if (strcmp(dtype, "float32") == 0)
        o->backend.dtype = ROSE_COMPUTE_F32;
    else if (strcmp(dtype, "bfloat16") == 0)
        o->backend.dtype = ROSE_COMPUTE_BF16;
    else if (strcmp(dtype, "float16") == 0)
        o->backend.dtype = ROSE_COMPUTE_F16;
    else if (strcmp(dtype, "auto") != 0)
        return rose_fail(err, ROSE_E_INVAL,
                         "dtype '%s': expected auto, float32, bfloat16 or float16", dtype);
    if (in->quantization != NULL) {
        rose_status st = rose_quantization_parse(in->quantization, &o->backend.quantization, err);
        if (st != ROSE_OK) return st;
    }
    o->backend.cpu.isa = in->isa;
    o->backend.cpu.n_threads = in->threads;
    if (in->max_num_seqs != 0) o->backend.max_seqs = in->max_num_seqs;
    if (in->max_batched_tokens != 0) o->backend.max_step_tokens = in->max_batched_tokens;
    o->backend.max_model_len = in->max_model_len;
    o->backend.kv_pages = in->kv_pages;
    if (in->max_queued != 0) o->max_queued = in->max_queued;
    return ROSE_OK;
}

int rose_lib_open(rose_lib **out, const char *model_dir, const rose_lib_options *options,
                  char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_status st;
    rose_model *model = NULL;
    const rose_backend_ops *backend = NULL;
    rose_engine_opts o;
    int cpus[256];

    *out = NULL;
    rose_log_set_level(ROSE_LOG_WARN);
    rose_lib *r = calloc(1, sizeof *r);
    if (r == NULL) return fail_with(ROSE_E_NOMEM, &e, err);
    pthread_mutex_init(&r->mutex, NULL);
    if ((st = read_options(options, &o, &e)) != ROSE_OK) goto done;
    if (options != NULL && options->pin_threads) {
        o.backend.cpu.cpus = cpus;
        o.backend.cpu.n_cpus = rose_cpus_allowed(cpus, 256);
        if (o.backend.cpu.n_cpus > 0) o.engine_cpu = cpus[0];
    }
    st = rose_model_open_as(&model, model_dir, options != NULL ? options->load_format : NULL, &e);
    if (st != ROSE_OK) goto done;
    if ((st = rose_tokenizer_open(&r->tok, model_dir, &e)) != ROSE_OK) goto done;
    rose_tokenizer_warn_beyond(r->tok, model->arch.vocab_size);
    st = rose_chat_open(&r->chat, model_dir, options != NULL ? options->chat_template : NULL, &e);
    if (st != ROSE_OK) goto done;
    rose_chat_add_eos(r->chat, r->tok, &model->arch);
    st = rose_generation_choose(&r->generation, model_dir,
                                options != NULL ? options->generation_config : NULL, &e);
    if (st != ROSE_OK) goto done;
    if ((st = rose_encoder_create(&r->encoder, r->tok, &e)) != ROSE_OK) goto done;
    st = rose_backend_pick_for(&backend, options != NULL ? options->device : NULL, model, &e);
    if (st == ROSE_OK) st = rose_engine_open(&r->engine, backend, model, &o, &e);
done:
    rose_model_close(model);
    if (st != ROSE_OK) {
        rose_lib_close(r);
        return fail_with(st, &e, err);
    }
    *out = r;
    return 0;
}

void rose_lib_close(rose_lib *rose)
{
    if (rose == NULL) return;
    while (rose->requests != NULL)
        rose_lib_release(rose->requests);
    rose_engine_close(rose->engine);
    while (rose->free_sinks != NULL) {
        sink_node *s = rose->free_sinks;
        rose->free_sinks = s->next;
        rose_wakeq_destroy(s->q);
        free(s);
    }
    rose_encoder_destroy(rose->encoder);
    rose_chat_close(rose->chat);
    rose_tokenizer_close(rose->tok);
    pthread_mutex_destroy(&rose->mutex);
    free(rose);
}

uint32_t rose_lib_vocab_size(const rose_lib *rose)
{
    return rose_engine_arch(rose->engine)->vocab_size;
}

uint32_t rose_lib_max_model_len(const rose_lib *rose)
{
    return rose_engine_plan(rose->engine)->max_model_len;
}

const char *rose_lib_version(void)
{
    return rose_version();
}

static void recommend(rose_lib_params *p, const rose_generation *g)
{
    if ((g->has & ROSE_GENERATION_TEMPERATURE) != 0) p->temperature = g->temperature;
    if ((g->has & ROSE_GENERATION_TOP_P) != 0) p->top_p = g->top_p;
    if ((g->has & ROSE_GENERATION_TOP_K) != 0) p->top_k = g->top_k;
    if ((g->has & ROSE_GENERATION_MIN_P) != 0) p->min_p = g->min_p;
    if ((g->has & ROSE_GENERATION_REPETITION) != 0) p->repetition_penalty = g->repetition;
    if ((g->has & ROSE_GENERATION_MAX_TOKENS) != 0) p->max_tokens = g->max_tokens;
}

void rose_lib_params_init(rose_lib_params *p, size_t size, const rose_lib *rose)
{
    rose_lib_params d = {
        .size = size, .max_tokens = 128, .top_p = 1.0f, .repetition_penalty = 1.0f};
    if (rose != NULL) recommend(&d, &rose->generation);
    memcpy(p, &d, size < sizeof d ? size : sizeof d);
}

int rose_lib_has_chat_template(const rose_lib *rose)
{
    return rose->chat != NULL;
}

static void link_request(rose_lib *rose, rose_lib_request *r)
{
    pthread_mutex_lock(&rose->mutex);
    r->next = rose->requests;
    if (r->next != NULL) r->next->prev = r;
    rose->requests = r;
    pthread_mutex_unlock(&rose->mutex);
}

static void unlink_request(rose_lib *rose, rose_lib_request *r)
{
    pthread_mutex_lock(&rose->mutex);
    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        rose->requests = r->next;
    if (r->next != NULL) r->next->prev = r->prev;
    pthread_mutex_unlock(&rose->mutex);
}

static rose_status take_sink(rose_lib *rose, sink_node **out, rose_err *err)
{
    pthread_mutex_lock(&rose->mutex);
    sink_node *s = rose->free_sinks;
    if (s != NULL) rose->free_sinks = s->next;
    pthread_mutex_unlock(&rose->mutex);
    if (s == NULL) {
        if ((s = calloc(1, sizeof *s)) == NULL) return ROSE_E_NOMEM;
        rose_status st = rose_wakeq_create(&s->q, 8, err);
        if (st != ROSE_OK) {
            free(s);
            return st;
        }
    }
    *out = s;
    return ROSE_OK;
}

static void free_request(rose_lib_request *r)
{
    if (r == NULL) return;
    if (r->sink != NULL) {
        pthread_mutex_lock(&r->rose->mutex);
        r->sink->next = r->rose->free_sinks;
        r->rose->free_sinks = r->sink;
        pthread_mutex_unlock(&r->rose->mutex);
    }
    free(r->text);
    free(r);
}

static rose_status submit(rose_lib *rose, const uint32_t *ids, size_t n, const rose_lib_params *p,
                          rose_lib_request **out, rose_err *err)
{
    *out = NULL;
    if (n > UINT32_MAX) return rose_fail(err, ROSE_E_INVAL, "prompt of %zu tokens is too long", n);
    rose_status st = ROSE_E_NOMEM;
    rose_lib_request *r = calloc(1, sizeof *r);
    if (r == NULL) goto done;
    r->rose = rose;
    r->n_prompt = (uint32_t)n;
    /* one piece may hold a token's text and the end of an incomplete character */
    r->text = malloc(rose_detok_cap(rose->tok) + 12);
    if (r->text == NULL) goto done;
    if ((st = take_sink(rose, &r->sink, err)) != ROSE_OK) goto done;
    const rose_request_rules rules = {.repetition = p->repetition_penalty};
    const bool plain = p->repetition_penalty == 0.0f || p->repetition_penalty == 1.0f;
    const rose_request_opts ro = {
        .prompt = ids,
        .n_prompt = (uint32_t)n,
        .max_tokens = p->max_tokens,
        .sampling = {.temperature = p->temperature,
                     .top_p = p->top_p,
                     .min_p = p->min_p,
                     .top_k = p->top_k,
                     .seed = p->seed},
        .rules = plain ? NULL : &rules,
        .ignore_eos = p->ignore_eos != 0,
        .sink = r->sink->q,
        .user = r,
    };
    rose_detok_begin(&r->detok, rose->tok, ids, n, 0);
    st = rose_engine_submit(rose->engine, &ro, &r->req, err);
done:
    if (st != ROSE_OK) {
        free_request(r);
        return st;
    }
    link_request(rose, r);
    *out = r;
    return ROSE_OK;
}

int rose_lib_submit_ids(rose_lib *rose, const uint32_t *ids, size_t n, const rose_lib_params *p,
                        rose_lib_request **out, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    return fail_with(submit(rose, ids, n, p, out, &e), &e, err);
}

static rose_status encode(rose_lib *rose, const char *text, size_t len, rose_ids *ids,
                          rose_err *err)
{
    pthread_mutex_lock(&rose->mutex);
    rose_status st = rose_encode(rose->encoder, text, len, 0, ids, err);
    pthread_mutex_unlock(&rose->mutex);
    return st;
}

int rose_lib_submit_text(rose_lib *rose, const char *text, size_t len, const rose_lib_params *p,
                         rose_lib_request **out, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_ids ids = {0};
    *out = NULL;
    rose_status st = encode(rose, text, len, &ids, &e);
    if (st == ROSE_OK) st = submit(rose, ids.data, ids.len, p, out, &e);
    rose_ids_free(&ids);
    return fail_with(st, &e, err);
}

/* ---- chats ---- */

static rose_status parse(json_t **out, const char *text, size_t len, const char *name,
                         rose_err *err)
{
    json_error_t e;
    const rose_status st = rose_json_parse(out, text, len, JSON_ALLOW_NUL, &e);
    if (st != ROSE_E_FORMAT) return st;
    return rose_fail(err, ROSE_E_INVAL, "%s is not valid JSON: %.120s (line %d)", name, e.text,
                     e.line);
}

static rose_status wrong_option(const char *key, const char *wanted, rose_err *err)
{
    return rose_fail(err, ROSE_E_INVAL, "options_json: %s must be %s", key, wanted);
}

/* Fills in; it borrows from options. */
static rose_status read_chat_options(rose_template_input *in, const json_t *options, rose_err *err)
{
    const char *key;
    json_t *v;
    if (!json_is_object(options))
        return rose_fail(err, ROSE_E_INVAL, "options_json must be an object");
    json_object_foreach((json_t *)(uintptr_t)options, key, v)
    {
        const bool list = strcmp(key, "tools") == 0 || strcmp(key, "documents") == 0;
        const bool more = strcmp(key, "add_generation_prompt") == 0;
        if (list && !json_is_array(v)) return wrong_option(key, "a list", err);
        if (list && key[0] == 't') {
            in->tools = v;
        } else if (list) {
            in->documents = v;
        } else if (strcmp(key, "chat_template_kwargs") == 0) {
            if (!json_is_object(v)) return wrong_option(key, "an object", err);
            in->kwargs = v;
        } else if (more || strcmp(key, "continue_final_message") == 0) {
            if (!json_is_boolean(v)) return wrong_option(key, "true or false", err);
            *(more ? &in->add_generation_prompt : &in->continue_final_message) = json_is_true(v);
        } else {
            return rose_fail(err, ROSE_E_INVAL, "options_json: '%.80s' is unknown", key);
        }
    }
    return ROSE_OK;
}

static rose_status chat_ids(rose_lib *rose, const json_t *messages, const json_t *options,
                            rose_ids *ids, rose_err *err)
{
    rose_template_text text;
    rose_template_input in = {
        .messages = messages, .add_generation_prompt = true, .now_s = rose_unix_time()};
    rose_status st = ROSE_OK;
    if (rose->chat == NULL)
        return rose_fail(
            err, ROSE_E_INVAL,
            "the model has no chat template; rose_lib_options.chat_template takes one");
    if (options != NULL) st = read_chat_options(&in, options, err);
    if (st == ROSE_OK) st = rose_chat_render(rose->chat, &in, &text, err);
    if (st == ROSE_E_UNSUPPORTED) st = ROSE_E_INVAL; /* of the messages, not of the model */
    if (st != ROSE_OK) return st;
    pthread_mutex_lock(&rose->mutex);
    st = rose_chat_encode(rose->encoder, &text, ids, err);
    pthread_mutex_unlock(&rose->mutex);
    rose_template_text_free(&text);
    return st;
}

int rose_lib_submit_chat(rose_lib *rose, const char *messages_json, size_t len,
                         const char *options_json, const rose_lib_params *p, rose_lib_request **out,
                         char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_ids ids = {0};
    json_t *messages = NULL, *options = NULL;
    *out = NULL;
    rose_status st = parse(&messages, messages_json, len, "messages_json", &e);
    if (st == ROSE_OK && options_json != NULL)
        st = parse(&options, options_json, strlen(options_json), "options_json", &e);
    if (st == ROSE_OK) st = chat_ids(rose, messages, options, &ids, &e);
    if (st == ROSE_OK) st = submit(rose, ids.data, ids.len, p, out, &e);
    rose_ids_free(&ids);
    json_decref(messages);
    json_decref(options);
    return fail_with(st, &e, err);
}

/* ---- pieces ---- */

static rose_lib_finish finish_of(uint8_t f)
{
    switch ((rose_finish)f) {
    case ROSE_FINISH_NONE:
        return ROSE_LIB_RUNNING;
    case ROSE_FINISH_STOP:
        return ROSE_LIB_STOP;
    case ROSE_FINISH_LENGTH:
        return ROSE_LIB_LENGTH;
    case ROSE_FINISH_CANCELLED:
        return ROSE_LIB_CANCELLED;
    case ROSE_FINISH_ERROR:
    case ROSE_FINISH_NO_TOKEN: /* these three finish reasons do not occur, because the library uses
                                * neither sampling rules nor guides nor latency goals */
    case ROSE_FINISH_GUIDE:
    case ROSE_FINISH_LATE:
        break;
    }
    return ROSE_LIB_FAILED;
}

static void fill_piece(rose_lib_request *r, const rose_event *ev, rose_lib_piece *piece)
{
    const rose_tokenizer *tok = r->rose->tok;
    r->finish = finish_of(ev->finish);
    size_t n = 0;
    bool silent = r->finish == ROSE_LIB_STOP; /* the end-of-sequence token is not text */
    if (ev->has_token && !silent) n = rose_detok_push(&r->detok, tok, ev->id, 0, r->text);
    if (r->finish != ROSE_LIB_RUNNING) n += rose_detok_finish(&r->detok, r->text + n);
    *piece = (rose_lib_piece){.has_token = ev->has_token,
                              .id = ev->id,
                              .text = r->text,
                              .text_len = n,
                              .finish = r->finish,
                              .t_ns = ev->t_ns};
}

int rose_lib_next(rose_lib_request *r, rose_lib_piece *piece, int timeout_ms)
{
    uint64_t deadline = rose_now_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000u;
    rose_event ev;
    *piece = (rose_lib_piece){.text = r->text, .finish = r->finish};
    if (r->finish != ROSE_LIB_RUNNING) return 0;
    for (;;) {
        void *p;
        rose_wakeq_clear(r->sink->q);
        while (rose_wakeq_pop(r->sink->q, &p) == ROSE_OK)
            r->given |=
                p ==
                r->req; /* any other pointer is a late signal for the previous user of the queue */
        if (r->given && rose_request_poll(r->req, &ev) == ROSE_OK) {
            fill_piece(r, &ev, piece);
            return 1;
        }
        r->given = false;
        uint64_t now = rose_now_ns();
        if (timeout_ms >= 0 && now >= deadline) return 0;
        rose_wakeq_wait(r->sink->q, timeout_ms < 0 ? 1000000000u : deadline - now);
    }
}

uint32_t rose_lib_prompt_tokens(const rose_lib_request *r)
{
    return r->n_prompt;
}

uint32_t rose_lib_cached_tokens(const rose_lib_request *r)
{
    return rose_request_cached_tokens(r->req);
}

void rose_lib_cancel(rose_lib_request *r)
{
    rose_request_cancel(r->req);
}

void rose_lib_release(rose_lib_request *r)
{
    if (r == NULL) return;
    rose_lib_piece piece;
    if (r->finish == ROSE_LIB_RUNNING) rose_request_cancel(r->req);
    while (r->finish == ROSE_LIB_RUNNING)
        rose_lib_next(r, &piece, -1);
    rose_request_release(r->req);
    unlink_request(r->rose, r);
    free_request(r);
}

int rose_lib_tokenize(rose_lib *rose, const char *text, size_t len, uint32_t **ids, size_t *n,
                      char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_ids list = {0};
    *ids = NULL;
    *n = 0;
    rose_status st = encode(rose, text, len, &list, &e);
    if (st == ROSE_OK) {
        *ids = list.data;
        *n = list.len;
    } else {
        rose_ids_free(&list);
    }
    return fail_with(st, &e, err);
}

int rose_lib_detokenize(rose_lib *rose, const uint32_t *ids, size_t n, char **text, size_t *len,
                        char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_buf buf = {0};
    *text = NULL;
    *len = 0;
    rose_status st = rose_decode(rose->tok, ids, n, 0, &buf, &e);
    if (st == ROSE_OK && rose_buf_str(&buf) == NULL) st = ROSE_E_NOMEM;
    if (st == ROSE_OK) {
        *text = buf.data;
        *len = buf.len;
    } else {
        rose_buf_free(&buf);
    }
    return fail_with(st, &e, err);
}

void rose_lib_free(void *p)
{
    free(p);
}
