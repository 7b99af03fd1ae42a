/* lib/lib_internal.h - what the files of the C library share. lib.c opens and closes engines,
 * options.c and params.c read the structs of callers, request.c submits and reads, chat.c and
 * embed.c build requests, text.c turns text to ids and back. */
#ifndef ROSE_LIB_LIB_INTERNAL_H
#define ROSE_LIB_LIB_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "chat/chat.h"
#include "engine/flags.h"
#include "grammar/cache.h"
#include "roseinfer.h"
#include "tokenizer/stop.h"
#include "tokenizer/tokenizer.h"

typedef struct rose_lib_sink {
    struct rose_lib_sink *next; /* in the free list */
    rose_wakeq *q;
} rose_lib_sink;

struct rose_lib {
    rose_tokenizer *tok;
    rose_engine *engine;
    rose_chat *chat;   /* NULL: the model has no chat template */
    rose_chat *lender; /* NULL, or it knows the special tokens where there is no chat */
    rose_generation generation;
    rose_pooling_config pooling;
    rose_err no_pooling; /* not "": why the model's files do not say how to pool */
    pthread_mutex_t encoder_lock;
    rose_encoder *encoder;
    pthread_mutex_t grammar_lock; /* held while the cache is made */
    rose_grammar_cache *grammars; /* NULL until a request needs it */
    pthread_mutex_t lock;         /* guards what follows; never held for long */
    rose_lib_sink *free_sinks;
    rose_lib_request *requests; /* not yet freed, doubly linked */
    rose_wakeq *shared;         /* the sink of all requests with params.wakeup */
    uint32_t shared_cap;
    atomic_uint n_shared; /* such requests whose end was not yet polled */
};

struct rose_lib_request {
    rose_lib *rose;
    rose_lib_request *prev, *next;
    rose_request *req;
    rose_lib_sink *sink; /* NULL: the request is in rose->shared */
    void *user;
    rose_detok detok;
    uint32_t n_prompt, n_tokens, min_tokens, n_logprobs;
    unsigned decode_flags;
    bool include_stop, ignore_eos;
    rose_lib_finish finish; /* what the caller was told */
    bool ended;             /* the engine's last event was polled */
    bool abandoned;         /* released while it ran, with params.wakeup; guarded by rose->lock */
    atomic_bool given;      /* a sink delivered req, and req was not yet polled empty: only then may
                             * it be polled */
    rose_stops stops;
    rose_stop_state stop;
    char *piece;                                          /* [rose_detok_cap + 12] */
    rose_lib_logprob logprobs[1 + ROSE_MAX_TOP_LOGPROBS]; /* of the last piece */
    rose_buf text; /* has room for all that one event can release */
    rose_err error;
    float *embedding; /* [n_embedding]; NULL: the request generates */
    uint32_t n_embedding;
    bool normalizes;
};

/* lib.c */

/* Copies the message (or the name of the status, if there is none) to the caller's buffer. */
int rose_lib_fail(rose_status st, const rose_err *e, char err[ROSE_LIB_ERR]);

/* options.c: reads the options of an engine. *o borrows from in and f. Errors: INVAL. */
rose_status rose_lib_read_options(const rose_lib_options *in, rose_engine_flags *f,
                                  rose_engine_opts *o, rose_err *err);

/* params.c: the structs of callers. `to` has the defaults of the members that an older header
 * lacks. Errors: INVAL. */
rose_status rose_lib_read(void *to, size_t known, const void *from, const char *name,
                          const char *begin, rose_err *err);
/* Whether the size that a caller set in its struct is a plausible value. */
bool rose_lib_size_is_sane(size_t size);

/* Checks p and makes the engine's rules of it, which borrow from p. *any: they ask for something.
 */
rose_status rose_lib_rules(const rose_lib *rose, const rose_lib_params *p, rose_request_rules *out,
                           bool *any, rose_err *err);
rose_status rose_lib_stops(const rose_lib_params *p, rose_stops *out, rose_err *err);
/* *out is {0} for a free text. The caller owns it. */
rose_status rose_lib_guide(rose_lib *rose, const rose_lib_params *p, rose_guide *out,
                           rose_err *err);

/* request.c */

/* A request without its engine request, which the caller fills in. */
rose_status rose_lib_request_create(rose_lib_request **out, rose_lib *rose, bool wakeup,
                                    rose_err *err);
void rose_lib_request_free(rose_lib_request *r); /* accepts NULL; not submitted, or ended */
/* Submits r with the sink and user of r; owned by the engine from then on. On failure r is freed.
 */
rose_status rose_lib_request_start(rose_lib_request *r, rose_request_opts *o, rose_err *err);
/* Submits ids with parameters that rose_lib_read_params has read. */
rose_status rose_lib_submit(rose_lib *rose, const uint32_t *ids, size_t n, const rose_lib_params *p,
                            rose_lib_request **out, rose_err *err);
rose_status rose_lib_read_params(rose_lib_params *to, const rose_lib_params *from, rose_err *err);
/* Frees released requests of rose->shared that have ended. cap and out: as rose_lib_ready. out
 * NULL: all requests of rose->shared were released. */
size_t rose_lib_take_ready(rose_lib *rose, rose_lib_request **out, size_t cap);

/* text.c */

/* Appends to ids, as rose_encode, with the shared encoder. */
rose_status rose_lib_encode(rose_lib *rose, const char *text, size_t len, unsigned flags,
                            rose_ids *ids, rose_err *err);
/* Hands a list over to the caller, or after an error frees it. */
int rose_lib_give_ids(rose_status st, rose_ids *list, uint32_t **ids, size_t *n, const rose_err *e,
                      char err[ROSE_LIB_ERR]);

#endif
