/* api/api.h - the OpenAI-compatible API: JSON <-> request, text <-> ids, stop strings, SSE.
 *
 * Life of a request here. The I/O thread has a complete HTTP request and makes it a job for the
 * tokenizer workers (a bounded queue; full = 429). A worker parses the JSON, checks it, tokenises,
 * and submits to the engine. Events come back through one wake queue per I/O thread. The I/O thread
 * detokenises, looks for stop strings, and writes SSE or collects the reply.
 *
 * With async_admit off, jobs run on the I/O thread itself. So does a short job that comes alone
 * (inline_bytes), because a worker would have to be woken first. The engine thread is told when
 * a job begins. If the device computes without the host's CPU (a GPU), the I/O thread polls
 * instead of sleeping until the first token has come.
 *
 * Threads: create, callbacks, attach, set_engine, drain, stop, destroy from the main thread in
 * that order; close the engine between stop and destroy. */
#ifndef ROSE_API_API_H
#define ROSE_API_API_H

#include "base/opts.h"
#include "chat/chat.h"
#include "engine/engine.h"
#include "http/http.h"
#include "tokenizer/tokenizer.h"

typedef struct rose_api rose_api;

/* Strings are borrowed until rose_api_destroy. */
typedef struct rose_api_opts {
    const char *model_id;         /* the name in the API and in replies (--served-model-name) */
    rose_opt_list model_aliases;  /* further names that requests may use */
    const char *model_path;       /* what was opened, UTF-8; NULL: replies do not name it */
    const char *version;          /* of /version */
    const rose_chat *chat;        /* the chat template, borrowed; NULL: the plain one of chat.c */
    const char *chat_kwargs;      /* NULL, or JSON: an object of variables for the template, which a
                                   * request's chat_template_kwargs may overrule
                                   * (--chat-template-kwargs) */
    const char *tool_call_parser; /* format of tool calls, a name of chat/calls.h; auto: the one
                                   * that the chat template shows, else hermes
                                   * (--tool-call-parser) */
    const char *reasoning_parser; /* likewise of reasoning (--reasoning-parser) */
    const rose_chat *trusted; /* NULL: a request must not bring a template. Else it may, and this
                               * borrowed one lends the template its bos_token and the like
                               * (--trust-request-chat-template) */
    const rose_chat *texts; /* the model's special tokens for /tokenizer_info, borrowed; NULL: they
                             * are not known */
    rose_generation generation;       /* defaults of fields that a request does not set */
    rose_pooling_config pooling;      /* how states become embeddings (--pooling-type, --task) */
    const struct rose_api_keys *keys; /* api/doors.h; borrowed; NULL: requests need no key */
    struct rose_access_log *access;   /* api/doors.h; borrowed; NULL: requests are not logged */
    struct rose_batch_store *batches; /* batch/store.h; borrowed; NULL: the server has no files and
                                       * batches (--batch-dir) */
    uint32_t n_io_threads;            /* == rose_http_opts.n_threads */
    uint32_t n_workers;               /* tokenizer workers, 1 .. 64 (--tokenize-workers) */
    uint32_t max_queued_jobs;         /* bodies waiting for a worker; over: 429 */
    bool async_admit;                 /* --async-admit */
    uint32_t inline_bytes; /* completions with bodies up to this size run on the I/O thread, if such
                              jobs take at most a fifth of its time; 0 = none, <=
                              ROSE_API_MAX_INLINE (--inline-admit-bytes) */
    bool early_wake;       /* tell the engine when a job begins (--early-wake) */
    uint32_t poll_us;      /* how long an I/O thread stays awake for a first token from a device
                              (--io-poll-us) */
    bool fast_sse;         /* write stream chunks from prebuilt bytes; off = generic JSON writer */
    uint32_t stream_interval; /* tokens of each stream chunk after the first, 1 .. 65536; the last
                                 chunk is never delayed (--stream-interval) */
    float sse_ping_s;   /* seconds between two signs of life in a stream that waits for its first
                         * token, 0 .. 86400; 0 = the head comes with the first token
                         * (--sse-ping-s) */
    bool web;           /* serve the page at / (--web) */
    bool strict_fields; /* refuse request fields that are otherwise ignored
                         * (--strict-fields) */
    uint64_t grammar_cache_bytes; /* most bytes of compiled grammars that are kept for further
                                   * requests (--grammar-cache-bytes) */
    uint32_t template_ms; /* most CPU time of a request's chat template (--template-timeout-ms) */
    uint64_t seed;  /* if has_seed: what the seeds of requests without one follow from (--seed) */
    bool has_seed;  /* else such a seed is random */
    uint32_t max_n; /* at most this many choices of a request: prompts x n (default 128) */
    uint32_t max_stop;        /* at most this many stop strings of a request (default 64) */
    const char *profiler_dir; /* folder for the files of /start_profile (--profiler-dir); NULL:
                                 refuse such requests */
    uint32_t profiler_events; /* events that a recording holds for each thread (see
                               * rose_prof_start) */
} rose_api_opts;

enum { ROSE_API_MAX_INLINE = 64 << 10 };

void rose_api_opts_default(rose_api_opts *o);

rose_status rose_api_create(rose_api **out, const rose_api_opts *o, rose_err *err);

/* The callbacks for rose_http_start. Until set_engine, / and /health answer 200, and what needs
 * the model 503. */
rose_http_callbacks rose_api_callbacks(rose_api *a);
rose_status rose_api_attach(rose_api *a, rose_http *h, rose_err *err);

/* Call when the model is loaded: serves it. Both borrowed until destroy. */
void rose_api_set_engine(rose_api *a, rose_engine *e, const rose_tokenizer *t);

/* From now on /ready answers 503, and new work is refused with 503; running requests continue.
 * Any thread. */
void rose_api_drain(rose_api *a);

/* Call after rose_http_stop: stops the workers and cancels all requests that are still in the
 * engine, which must be open. Accepts NULL. */
void rose_api_stop(rose_api *a);

/* Call after rose_engine_close, which has delivered the last events and signals no wake queue
 * any more. Takes those events and frees everything. Calls rose_api_stop if that was not done.
 * Accepts NULL and objects that never had an engine. */
void rose_api_destroy(rose_api *a);

#endif
