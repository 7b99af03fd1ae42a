/* lib/lib.c - the C library of include/roseinfer.h: a thin layer over model, tokenizer, chat,
 * grammar and engine. This file opens and closes engines. The server does not use this library:
 * it has a queue for each of its I/O threads. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/version.h"
#include "lib/lib_internal.h"

/* 0: a status that the library should not meet. */
static const int codes[] = {
    [ROSE_E_INVAL] = ROSE_LIB_E_INVAL,       [ROSE_E_NOMEM] = ROSE_LIB_E_NOMEM,
    [ROSE_E_IO] = ROSE_LIB_E_MODEL,          [ROSE_E_FORMAT] = ROSE_LIB_E_MODEL,
    [ROSE_E_UNSUPPORTED] = ROSE_LIB_E_MODEL, [ROSE_E_NOTFOUND] = ROSE_LIB_E_MODEL,
    [ROSE_E_FULL] = ROSE_LIB_E_FULL,         [ROSE_E_LATE] = ROSE_LIB_E_FULL,
    [ROSE_E_CLOSED] = ROSE_LIB_E_BACKEND,    [ROSE_E_BACKEND] = ROSE_LIB_E_BACKEND,
    [ROSE_E_INTERNAL] = ROSE_LIB_E_INTERNAL,
};

int rose_lib_fail(rose_status st, const rose_err *e, char err[ROSE_LIB_ERR])
{
    if (err != NULL && st != ROSE_OK) {
        const char *msg = e->msg[0] != '\0'   ? e->msg
                          : st == ROSE_E_FULL ? "the waiting queue is full: try again later"
                                              : rose_status_name(st);
        size_t n = strnlen(msg, ROSE_LIB_ERR - 1);
        memcpy(err, msg, n);
        err[n] = '\0';
    }
    return st == ROSE_OK || codes[st] != 0 ? codes[st] : ROSE_LIB_E_INTERNAL;
}

/* A model without a chat template still has special tokens. It also works without their names. */
static rose_status open_lender(rose_lib *r, const char *dir)
{
    rose_err ignored;
    const rose_status st = rose_chat_open(&r->lender, dir, "{{ '' }}", &ignored); /* any will do */
    return st == ROSE_E_NOMEM ? st : ROSE_OK;
}

/* What the model's files say, but for the weights. */
static rose_status open_texts(rose_lib *r, rose_model *model, const char *dir,
                              const rose_lib_options *in, rose_err *err)
{
    rose_status st = rose_tokenizer_open(&r->tok, dir, err);
    if (st != ROSE_OK) return st;
    rose_tokenizer_warn_beyond(r->tok, model->arch.vocab_size);
    if ((st = rose_chat_open(&r->chat, dir, in->chat_template, err)) != ROSE_OK) return st;
    rose_chat_add_eos(r->chat, r->tok, &model->arch);
    if (r->chat == NULL && (st = open_lender(r, dir)) != ROSE_OK) return st;
    st = rose_generation_choose(&r->generation, dir, in->generation_config, NULL, err);
    if (st != ROSE_OK) return st;
    /* no error for generation: keep the message until the first embedding request */
    if (rose_pooling_read(&r->pooling, dir, in->pooling, in->task, &r->no_pooling) == ROSE_E_NOMEM)
        return ROSE_E_NOMEM;
    return rose_encoder_create(&r->encoder, r->tok, err);
}

/* The queue has room for twice the requests that the engine takes, since a caller may read late. */
static rose_status open_shared(rose_lib *r, const rose_engine_opts *o, rose_err *err)
{
    r->shared_cap = 2 * (o->max_queued + o->backend.max_seqs) + 2;
    return rose_wakeq_create(&r->shared, r->shared_cap, err);
}

static rose_status open_lib(rose_lib *r, const char *dir, const rose_lib_options *in, rose_err *err)
{
    rose_model *model = NULL;
    const rose_backend_ops *backend = NULL;
    rose_engine_flags flags;
    rose_engine_opts o;
    rose_status st = rose_lib_read_options(in, &flags, &o, err);
    if (st == ROSE_OK) st = rose_model_open_as(&model, dir, flags.load_format, err);
    if (st == ROSE_OK) st = open_texts(r, model, dir, in, err);
    if (st == ROSE_OK) st = rose_backend_pick_for(&backend, flags.device, model, err);
    if (st == ROSE_OK) st = rose_engine_open(&r->engine, backend, model, &o, err);
    if (st == ROSE_OK) st = open_shared(r, &o, err);
    rose_model_close(model);
    return st;
}

int rose_lib_open(rose_lib **out, const char *model_dir, const rose_lib_options *options,
                  char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_lib_options o;
    rose_status st = ROSE_OK;

    *out = NULL;
    rose_log_set_level(ROSE_LOG_WARN);
    rose_lib_options_default(&o);
    if (options != NULL)
        st = rose_lib_read(&o, sizeof o, options, "rose_lib_options", "rose_lib_options_default",
                           &e);
    rose_lib *r = st == ROSE_OK ? calloc(1, sizeof *r) : NULL;
    if (st == ROSE_OK && r == NULL) st = ROSE_E_NOMEM;
    if (st != ROSE_OK) return rose_lib_fail(st, &e, err);
    pthread_mutex_init(&r->encoder_lock, NULL);
    pthread_mutex_init(&r->grammar_lock, NULL);
    pthread_mutex_init(&r->lock, NULL);
    if ((st = open_lib(r, model_dir, &o, &e)) != ROSE_OK) {
        rose_lib_close(r);
        return rose_lib_fail(st, &e, err);
    }
    *out = r;
    return 0;
}

/* Frees all requests. A running one of the shared queue ends later. */
static void close_requests(rose_lib *rose)
{
    for (rose_lib_request *r = rose->requests; r != NULL; r = r->next)
        rose_lib_cancel(r);
    for (rose_lib_request *r = rose->requests, *next; r != NULL; r = next) {
        next = r->next;
        if (!r->abandoned) rose_lib_release(r);
    }
    while (rose->requests != NULL) {
        rose_wakeq_wait(rose->shared, 1000000000u);
        rose_lib_take_ready(rose, NULL, 0);
    }
}

void rose_lib_close(rose_lib *rose)
{
    if (rose == NULL) return;
    close_requests(rose);
    rose_engine_close(rose->engine);
    while (rose->free_sinks != NULL) {
        rose_lib_sink *s = rose->free_sinks;
        rose->free_sinks = s->next;
        rose_wakeq_destroy(s->q);
        free(s);
    }
    rose_wakeq_destroy(rose->shared);
    rose_grammar_cache_destroy(rose->grammars);
    rose_encoder_destroy(rose->encoder);
    rose_chat_close(rose->chat);
    rose_chat_close(rose->lender);
    rose_tokenizer_close(rose->tok);
    pthread_mutex_destroy(&rose->lock);
    pthread_mutex_destroy(&rose->grammar_lock);
    pthread_mutex_destroy(&rose->encoder_lock);
    free(rose);
}

/* ---- facts ---- */

uint32_t rose_lib_api_version(void)
{
    return ROSE_LIB_VERSION_MAJOR * 1000 + ROSE_LIB_VERSION_MINOR;
}

const char *rose_lib_version(void)
{
    return rose_version();
}

uint32_t rose_lib_vocab_size(const rose_lib *rose)
{
    return rose_engine_arch(rose->engine)->vocab_size;
}

uint32_t rose_lib_max_model_len(const rose_lib *rose)
{
    return rose_engine_plan(rose->engine)->max_model_len;
}

int rose_lib_has_chat_template(const rose_lib *rose)
{
    return rose->chat != NULL;
}

size_t rose_lib_eos_ids(const rose_lib *rose, const uint32_t **ids)
{
    const rose_arch *a = rose_engine_arch(rose->engine);
    *ids = a->eos_ids;
    return a->n_eos;
}
