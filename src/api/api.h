/* api/api.h - the OpenAI-compatible API: JSON <-> request, text <-> ids, stop strings, SSE.
 *
 * Life of a request here: the I/O thread has a complete HTTP request -> a job for the tokenizer
 * workers (bounded; full = 429), who parse the JSON, check it, tokenise and submit to the engine ->
 * events come back through one wake queue per I/O thread -> the I/O thread detokenises, looks for
 * stop strings, writes SSE or collects the reply. With async_admit off the job runs on the I/O
 * thread itself, as does a short one that comes alone (inline_bytes): a worker would have to be
 * woken first. Likewise the engine thread is told when a job begins, and where the engine's device
 * works by itself the I/O thread stays awake for a first token.
 *
 * Threads: create, callbacks, attach, set_engine, drain, stop, destroy from the main thread in that
 * order; between stop and destroy the engine is closed. */
#ifndef ROSE_API_API_H
#define ROSE_API_API_H

#include "base/opts.h"
#include "engine/engine.h"
#include "http/http.h"
#include "tokenizer/tokenizer.h"

typedef struct rose_api rose_api;

typedef struct rose_api_opts {
    const char *model_id;        /* the name in the API and in replies (--served-model-name) */
    rose_opt_list model_aliases; /* further names that requests may use */
    const char *version;         /* of /version */
    const char
        *chat_template; /* "plain", or NULL: plain if the model has none; a model with a template
                           of its own is then refused by name at /v1/chat/completions */
    bool model_has_template;     /* tokenizer_config.json or chat_template.jinja carries one */
    uint32_t n_io_threads;       /* == rose_http_opts.n_threads */
    uint32_t n_workers;          /* tokenizer workers, 1 .. 64 (--tokenize-workers) */
    uint32_t max_queued_jobs;    /* bodies waiting for a worker; over: 429 */
    bool async_admit;            /* --async-admit */
    uint32_t inline_bytes;       /* bodies of completions up to so long run on the I/O thread, as
                                    long as these take a fifth of its time at most; 0 = none, <=
                                    ROSE_API_MAX_INLINE (--inline-admit-bytes) */
    bool early_wake;             /* tell the engine of a job that begins (--early-wake) */
    uint32_t poll_us;            /* how long an I/O thread stays awake for a first token of a device
                                    (--io-poll-us) */
    bool fast_sse;               /* stream chunks from prebuilt bytes; off = generic JSON writer */
    uint32_t stream_interval;    /* tokens of a stream's chunk behind its first, 1 .. 65536; the
                                    end is never held back (--stream-interval) */
    bool strict_fields;          /* refuse fields that would be ignored (--strict-fields) */
    uint32_t max_n;              /* most choices of a request: prompts x n (default 128) */
    uint32_t max_stop;           /* most stop strings of a request (default 64) */
    const char *profiler_dir;    /* where /start_profile and /stop_profile write (--profiler-dir);
                                    NULL: they are refused */
    uint32_t profiler_events;    /* of each thread, as rose_prof_start */
    uint32_t default_max_tokens; /* 0 = what the context leaves (vLLM's chat rule); completions: 16
                                    as OpenAI */
} rose_api_opts;

enum { ROSE_API_MAX_INLINE = 64 << 10 };

void rose_api_opts_default(rose_api_opts *o);

rose_status rose_api_create(rose_api **out, const rose_api_opts *o, rose_err *err);

/* What rose_http_start wants. Until set_engine, /health answers 200, /ready 503 and the rest 503.
 */
rose_http_callbacks rose_api_callbacks(rose_api *a);
rose_status rose_api_attach(rose_api *a, rose_http *h, rose_err *err);

/* The model is loaded: serve it. Both borrowed until destroy. */
void rose_api_set_engine(rose_api *a, rose_engine *e, const rose_tokenizer *t);

/* /ready turns 503, new work is refused with 503; what runs goes on. Any thread. */
void rose_api_drain(rose_api *a);

/* After rose_http_stop: stops the workers and cancels what is left in the engine, which must still
 * be open. Accepts NULL. */
void rose_api_stop(rose_api *a);

/* After rose_engine_close, which has delivered the last events and signals no wake queue any more:
 * takes those events, frees everything. Calls rose_api_stop if that was not done. Accepts NULL and
 * objects that never saw an engine. */
void rose_api_destroy(rose_api *a);

#endif
