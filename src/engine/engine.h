/* engine/engine.h - the engine: one thread that owns scheduler, KV pages and backend, and turns
 * token ids into token ids. It never sees text.
 *
 * A request is one sequence. It enters through a bounded MPSC ring, and its tokens leave through
 * a ring of its own. A wake queue (the sink) tells the consumer, once per step however many
 * requests advanced. There is no lock and no allocation between submit and token. */
#ifndef ROSE_ENGINE_ENGINE_H
#define ROSE_ENGINE_ENGINE_H

#include "backend/backend.h"
#include "base/hist.h"
#include "base/wakeq.h"
#include "engine/kv_feed.h"
#include "model/pooling.h"
#include "spec/spec.h"

typedef struct rose_engine rose_engine;
typedef struct rose_request rose_request;

typedef enum rose_engine_admission {
    ROSE_ENGINE_FIFO, /* waiting requests begin in order */
    ROSE_ENGINE_PACK  /* among the first few waiting requests, shorter ones begin first, within
                         limits */
} rose_engine_admission;

typedef struct rose_engine_opts {
    rose_backend_opts
        backend;         /* max_seqs = --max-num-seqs, max_step_tokens = --max-num-batched-tokens */
    bool offline;        /* nobody waits for single tokens: steps are always as long as planned,
                            although max_step_tokens is ROSE_STEP_AUTO */
    uint32_t max_queued; /* at most this many requests that wait for admission, 1 .. 65536
                            (--max-num-queued-reqs); see rose_engine_reserve */
    bool chunked_prefill; /* off: a prompt is one piece, so it must fit into max_step_tokens */
    uint32_t prefill_chunk_size; /* at most this many prompt tokens of one sequence in a step; 0 =
                                    the step's budget */
    int engine_cpu; /* CPU of the engine thread (= compute thread 0); -1 = not pinned */
    /* The next fields are those of sched/sched.h; 0 means the default unless the comment says
     * otherwise. */
    bool decode_first;           /* default on: decodes take their rows before prompts */
    uint32_t prefill_max_seqs;   /* at most this many sequences prefill in a step; 0 = any number */
    uint32_t prefill_max_tokens; /* at most this many prompt rows in a step; 0 = all that decodes
                                    leave */
    uint32_t max_active; /* limit for requests begun and not finished; 0 = backend.max_seqs */
    rose_engine_admission admission;
    uint32_t lookahead;         /* PACK; 0 = 64 */
    uint32_t force_fifo_every;  /* PACK; 0 = 8 */
    uint32_t priority_age_ms;   /* what one step of priority is worth in waiting; default 1000 */
    uint32_t max_queued_tokens; /* at most this many prompt tokens that wait for admission; 0 =
                                 * no bound. A request that waits alone may exceed this bound */
    uint32_t ttft_slo_ms; /* goal from submission to first token; a request that cannot meet it is
                             refused; 0 = none */
    uint32_t itl_slo_ms;  /* goal from token to token; limits prompt rows and admission; 0 = none */
    bool overlap; /* default on: with ROSE_CAP_AHEAD the next step is built and enqueued while one
                     runs */
    bool prefix_cache;               /* default on: share page-aligned prefixes */
    uint32_t prefix_cache_max_pages; /* at most this many cached KV pages are kept while no
                                      * sequence uses them; 0 = the whole pool */
    rose_spec_opts spec;   /* speculative decoding; default suffix. Needs ROSE_CAP_REPORTS; off with
                            * a prefill whose bits depend on the number of rows (NAIVE) */
    rose_kv_feed *kv_feed; /* NULL, or gets the changes of the prefix index; borrowed until the
                            * engine is closed; needs prefix_cache */
} rose_engine_opts;

void rose_engine_opts_default(rose_engine_opts *o); /* Sets the defaults: 256 sequences in a step,
                                                     * 1024 queued requests, chunked prefill. */

/* Plans the memory, loads the weights and starts the engine thread. The model may be closed
 * after open returns. Errors: as rose_backend_ops.plan and open, INVAL, FORMAT (a weight is NaN
 * or infinite). */
rose_status rose_engine_open(rose_engine **out, const rose_backend_ops *ops, const rose_model *m,
                             const rose_engine_opts *o, rose_err *err);

/* Refuses new requests (ROSE_E_CLOSED); accepted requests run to their end. Any thread. */
void rose_engine_drain(rose_engine *e);

/* Closes the engine: cancels all running requests, delivers their finish events, joins the
 * engine thread and frees the memory. Requests that are not yet released stay valid for poll and
 * release. Accepts NULL and a half-opened engine. */
void rose_engine_close(rose_engine *e);

const rose_memory_plan *rose_engine_plan(const rose_engine *e); /* constant, any thread */
const rose_arch *rose_engine_arch(const rose_engine *e);        /* constant, any thread */
bool rose_engine_has_prefix_cache(const rose_engine *e);        /* constant, any thread */

typedef enum rose_finish {
    ROSE_FINISH_NONE = 0,
    ROSE_FINISH_STOP,   /* an end-of-sequence id was sampled; it is delivered as the last token */
    ROSE_FINISH_LENGTH, /* max_tokens, or the context is full */
    ROSE_FINISH_CANCELLED,
    ROSE_FINISH_ERROR,    /* the backend failed, or no finite logit or state */
    ROSE_FINISH_LATE,     /* the request waited until it could no longer begin in time
                           * (ttft_slo_ms) */
    ROSE_FINISH_NO_TOKEN, /* the request's rules or its guide allow no next id */
    ROSE_FINISH_GUIDE     /* the guide failed; see rose_request_guide_error */
} rose_finish;

/* One event of a request: a token, the finish, or both at once. */
typedef struct rose_event {
    uint64_t t_ns; /* when the step that gave it was collected */
    uint32_t id;   /* valid if has_token */
    uint8_t has_token;
    uint8_t finish;  /* a rose_finish; if it is not NONE, this is the last event of the request */
    uint8_t stop_id; /* the request finished because id is one of stop_ids */
} rose_event;

enum { ROSE_MAX_BIAS = 1024, ROSE_MAX_STOP_IDS = 128, ROSE_MAX_BAD_IDS = 4096 };
#define ROSE_MAX_REPORT_BYTES (256 << 20) /* of one request */

/* The sampling rules of a request, beyond plain sampling: penalties, biases, bans and reports.
 * backend.h (rose_output_rules) states the order in which they act. All arrays are copied; ids <
 * vocab_size. */
typedef struct rose_request_rules {
    bool logprobs;            /* keep a report of every generated token */
    uint32_t n_top;           /* number of alternatives to report, at most ROSE_MAX_TOP_LOGPROBS */
    bool prompt_logprobs;     /* also report the log-probability of every prompt token but the
                               * first */
    uint32_t prompt_n_top;    /* likewise */
    uint32_t prompt_from;     /* with prompt_logprobs: no report of tokens at positions before this
                               * one. A cached prefix of the other tokens is then not computed */
    float repetition;         /* 1 = off; above 0 */
    float presence;           /* 0 = off */
    float frequency;          /* 0 = off */
    const uint32_t *bias_ids; /* [n_bias] distinct, at most ROSE_MAX_BIAS */
    const float *bias;        /* [n_bias] finite */
    uint32_t n_bias;
    uint32_t n_allowed; /* 0 = all */
    const uint32_t *allowed;
    const uint32_t *bad_ids; /* banned sequences of ids, which must not be generated, stored one
                              * after the other; at most ROSE_MAX_BAD_IDS ids */
    const uint32_t *bad_len; /* [n_bad] ids of each word */
    uint32_t n_bad;
    const uint32_t *stop_ids; /* [n_stop] ids that end the request, also with ignore_eos */
    uint32_t n_stop;          /* at most ROSE_MAX_STOP_IDS */
    uint32_t min_tokens;      /* the first min_tokens tokens are neither EOS nor stop_ids */
} rose_request_rules;

/* A guide of a request: which ids may come next. The engine knows no grammar. Only one thread
 * calls a guide at a time, but not always the same one: a thread of the engine that computes
 * nothing else, or for try_next, walk and propose the engine thread. The calls are mask, then
 * advance by one id or more, then mask again, and so on. A slow guide delays only its own request,
 * and those of other slow guides. An error of advance or mask ends this one request
 * (ROSE_FINISH_GUIDE).
 *
 * A mask acts before biases and penalties, so a bias never allows an id that the mask forbids.
 * With min_tokens or ignore_eos, the engine also forbids the ids that would end the text, unless
 * the mask then allows nothing. The request ends with the end-of-sequence id, also with ignore_eos,
 * because a guide allows nothing after it. That id is not given to advance. */
typedef struct rose_guide_ops {
    rose_status (*advance)(void *g, uint32_t id, rose_err *err); /* the id was sampled */
    /* Writes words [(vocab_size + 31) / 32]: bit id % 32 of word id / 32 = id may come next. The
     * bits after vocab_size mean nothing. */
    rose_status (*mask)(void *g, uint32_t *words, rose_err *err);
    /* Called once, while no other call runs: when submit fails; else when the consumer has released
     * the request and no call runs any more. Any thread. */
    void (*destroy)(void *g);
    /* NULL, or tells that calls may take long. The calls of all such guides share one thread, or a
     * few where there are many CPUs, so that other guides do not wait for them. */
    bool (*is_slow)(void *g);
    /* May be NULL. Does advance and then mask, but only if both are quick (microseconds) and do
     * not fail. Otherwise returns false and changes nothing. The engine thread calls it. */
    bool (*try_next)(void *g, uint32_t id, uint32_t *words);
    /* Both or none may be NULL; then nothing is guessed for the request.
     * walk: tries the ids in order, and stops at the first for which try_next would return false.
     * The state of the guide does not change. Writes the mask after each id, each of
     * (vocab_size + 31) / 32 words, and returns how many masks. The engine thread calls it.
     * propose: writes at most cap ids that are likely to come next, and returns how many. compute:
     * it may take long, and does the work that walk needs for these ids. Without compute it returns
     * only ids that it finds quickly. */
    uint32_t (*walk)(void *g, const uint32_t *ids, uint32_t n, uint32_t *words);
    uint32_t (*propose)(void *g, uint32_t cap, uint32_t *ids, bool compute);
} rose_guide_ops;

typedef struct rose_guide {
    const rose_guide_ops *ops; /* NULL = none; borrowed until destroy was called */
    void *state;
} rose_guide;

typedef struct rose_request_opts {
    const uint32_t *prompt; /* [n_prompt] ids < vocab_size, copied */
    uint32_t n_prompt;      /* 1 .. max_model_len - 1 */
    uint32_t max_tokens;    /* most tokens to generate, at least 1; clamped to max_model_len -
                             * n_prompt */
    bool score_only;   /* max_tokens is ignored and nothing is generated: one event without a token
                          (LENGTH) ends it. The prompt may then fill the context */
    rose_pooling pool; /* not NONE: nothing is generated, and max_tokens and sampling are ignored.
                        * As with score_only, one event ends the request; then rose_request_state is
                        * valid. MEAN sums in fp32, in order of position, and does not read the
                        * prefix cache. Needs rules NULL and a backend with ROSE_CAP_STATES */
    rose_sampling sampling;
    const rose_request_rules *rules; /* sampling rules; NULL = none, which costs nothing;
                                      * borrowed during submit */
    rose_guide guide; /* owned by the engine once submit was called, whether it succeeds or fails;
                       * not used with score_only */
    bool ignore_eos;
    rose_wakeq *sink; /* the consumer's sink: borrowed until the engine is closed, because it may
                       * be signalled after the last event; capacity >= the consumer's live
                       * requests + 1 */
    void *user;       /* the consumer's; see rose_request_user */
    int32_t priority; /* priority: a lower value runs sooner, 0 = normal; each step of priority
                       * is worth priority_age_ms of waiting; clamped to -1000 .. 1000 */
    const void *cache_salt; /* requests share cached prefixes only with requests of the same salt */
    size_t cache_salt_len;  /* bytes; 0 = the common one */
    uint32_t n_reserved;    /* places that this thread reserved (rose_engine_reserve) and has not
                             * used, including the one for this request; 0 = none: submit takes a
                             * place itself */
    bool same_prompt; /* true: the prompt is the same as in this thread's last submission; only
                       * estimates of load use this */
    uint64_t t_ns;    /* time when the request's wait began, for ttft_slo_ms; 0 = now */
    bool skip_prefix_cache; /* true: compute the whole prompt even if it is cached (other
                             * requests may still use its pages) */
    bool no_speculation;    /* true: one token a step, and no guesses for others from its output */
    const uint32_t *prediction; /* NULL, or ids that the output may repeat in parts, copied: a
                                 * source of guesses */
    uint32_t n_prediction;
    uint64_t prof_id; /* id that joins this request's spans in a profile (base/profile.h);
                       * 0 = not traced */
} rose_request_opts;

/* Submits a request; any thread, also several at once. On success *out has one owner, the consumer,
 * who polls until the finish event and then releases it.
 *
 * Errors: INVAL with a message (the prompt is empty or too long, an id or a sampling value is out
 * of range, the rules leave no first token, or the page pool is too small for the request).
 * UNSUPPORTED: the backend does not have the rules. FULL: too many requests or tokens wait. LATE:
 * the first token cannot come within ttft_slo_ms. CLOSED, NOMEM. BACKEND: the engine has failed.
 * The first request with a guide starts the threads that call guides; IO: that failed. */
rose_status rose_engine_submit(rose_engine *e, const rose_request_opts *o, rose_request **out,
                               rose_err *err);

/* Reserves places in the queue for n requests that belong together, with n_tokens prompt tokens:
 * all or none. A submission with n_reserved uses up one, whether it succeeds or fails; the
 * caller gives unused ones back. If nothing waits, n may exceed max_queued by the number that
 * can begin at once, and n_tokens its bound. Any thread. FULL: not now. INVAL, with a message: n
 * would never fit. */
rose_status rose_engine_reserve(rose_engine *e, uint32_t n, uint64_t n_tokens, rose_err *err);
void rose_engine_unreserve(rose_engine *e, uint32_t n, uint64_t n_tokens);

/* Announces that a request will be submitted within tens of microseconds. If the backend works
 * by itself (ROSE_CAP_AHEAD) and the engine thread sleeps, the thread is woken now. It looks for
 * the request for up to ROSE_EXPECT_US, so that its wake-up overlaps with tokenising. Returns
 * whether the backend works by itself; waiting threads then take no CPU from computation. A
 * hint; any thread. */
enum { ROSE_EXPECT_US = 500 };
bool rose_engine_expect(rose_engine *e);

/* For a retry after FULL, LATE or the finish LATE: an estimate, in whole seconds (1 ..
 * ROSE_MAX_RETRY_S), of the time until all requests that wait now have begun. Any thread. */
enum { ROSE_MAX_RETRY_S = 600 };
uint32_t rose_engine_retry_after_s(const rose_engine *e);

/* Tells whether a request that waits now is sure to begin: there are places for all that wait, and
 * none can be refused as LATE. The engine may still be busy with a step. Any thread. */
bool rose_engine_has_room(const rose_engine *e);

/* Cancels a request; any thread, any time before release. It takes effect at the next step
 * boundary. Then the request's pages are free and its finish event arrives: CANCELLED, or an end
 * that came first. A sample from a step in flight is not delivered. */
void rose_request_cancel(rose_request *r);

/* Consumer thread. Returns the next event, or ROSE_E_EMPTY. Call it only after the sink gave r,
 * and then until EMPTY or the finish event. A request is in its sink at most once; it is put
 * there again only after its consumer has seen EMPTY. */
rose_status rose_request_poll(rose_request *r, rose_event *out);

void *rose_request_user(const rose_request *r);

/* Time stamps of a request, in ns on the monotonic clock; 0 = the event did not happen. Consumer
 * thread; complete once the finish event was polled. */
typedef struct rose_request_times {
    uint64_t submitted, admitted, first_token, finished;
} rose_request_times;
rose_request_times rose_request_get_times(const rose_request *r);

/* Whether the request has left the queue: it was admitted, and its prompt is being computed or is
 * done. It stays true after a preemption. Consumer thread, any time before release. */
bool rose_request_has_begun(const rose_request *r);

/* Prompt tokens that were not computed because their prefix was cached. Consumer thread, valid
 * once an event was polled. */
uint32_t rose_request_cached_tokens(const rose_request *r);

/* Guessed ids of the request that steps have computed, those of them that were right, and those of
 * `prediction`. Consumer thread, after the finish event was polled. */
typedef struct rose_request_guesses {
    uint32_t n_tried, n_right, n_predicted, n_predicted_right;
} rose_request_guesses;
rose_request_guesses rose_request_get_guesses(const rose_request *r);

/* times.admitted, valid once an event was polled; 0 = it was never admitted. Consumer thread. */
uint64_t rose_request_admitted_ns(const rose_request *r);

/* The prompt, [n_prompt], valid until release. */
const uint32_t *rose_request_prompt(const rose_request *r);

/* Consumer thread. The log-probability report of generated token i, whose event was polled: 1 +
 * n_top entries, the token itself first. Valid until release. Only for requests with
 * rules.logprobs. */
const rose_logprob *rose_request_logprobs(const rose_request *r, uint32_t i);
/* The log-probability report of the prompt's token at position pos, 1 .. n_prompt - 1. Valid
 * once any event was polled, unless that was CANCELLED or ERROR. Only for requests with
 * rules.prompt_logprobs. */
const rose_logprob *rose_request_prompt_logprobs(const rose_request *r, uint32_t pos);

/* Consumer thread. The pooled state, [d_model], of a request with `pool` that finished with LENGTH;
 * every value is finite. Valid until release. */
const float *rose_request_state(const rose_request *r);

/* Consumer thread, after the finish event was polled. Says why the guide failed
 * (ROSE_FINISH_GUIDE); NULL after every other finish. Valid until release. */
const char *rose_request_guide_error(const rose_request *r);

/* Consumer thread, after the finish event was polled. The engine holds a reference of its own
 * while it still uses r. */
void rose_request_release(rose_request *r);

/* Says why the engine has failed, while the engine is open; NULL if it has not failed. Any
 * thread. If a request ended with ERROR while the result here is NULL, the request had no finite
 * logit or state. */
const char *rose_engine_failure(const rose_engine *e);

/* A copy of the engine's counters; any thread. The counters may be of slightly different
 * moments. */
typedef struct rose_engine_stats {
    uint32_t running, waiting; /* requests; preempted ones wait */
    uint32_t waiting_tokens;   /* prompt tokens of requests that have not begun */
    /* Pages of the first pool, and how much of the fullest pool is free, in such pages.
     * kv_pages_free includes cached pages that no sequence uses. */
    uint32_t kv_pages, kv_pages_free;
    uint32_t kv_pages_cached; /* these */
    uint64_t steps; /* steps that the backend took; counted before their tokens are delivered */
    uint64_t prompt_tokens, generated_tokens; /* tokens so far; the tokens of a prompt count when
                                               * the prompt is admitted */
    uint64_t finished;                        /* requests that ended, in whatever way */
    uint64_t cancelled, late;                 /* finished requests whose finish was CANCELLED;
                                               * finished requests whose finish was LATE */
    uint64_t last_step_ns; /* duration of the last step; if the previous step ended after this
                            * one began, the time since that end */
    /* host time of a step: to plan, to build the batch and, after the backend, to deliver tokens
     * and wake consumers */
    uint64_t last_plan_ns, last_batch_ns, last_deliver_ns;
    uint64_t prefix_queries,
        prefix_hits; /* prompt tokens of admitted requests; prompt tokens of admitted requests
                      * that were found in the prefix cache */
    uint64_t prefix_evictions;               /* pages */
    uint64_t preemptions;                    /* requests that gave their pages back */
    uint64_t recomputed_tokens;              /* computed once more because of that */
    uint64_t kv_changes, kv_changes_dropped; /* of kv_feed; 0 without it */
    bool failed;                             /* the backend is broken; /health turns */
} rose_engine_stats;
rose_engine_stats rose_engine_get_stats(const rose_engine *e);

/* Speculative decoding since the start; all 0 without it. Any thread. */
rose_spec_stats rose_engine_get_spec(const rose_engine *e);
bool rose_engine_speculates(const rose_engine *e); /* constant, any thread */

/* Says why an engine with this plan could not speculate; NULL: it can. Any thread. */
const char *rose_engine_why_no_spec(const rose_backend_ops *ops, const rose_memory_plan *p);

/* What speculation does with these options, for a log or a person: "suffix, up to 15 tokens a guess
 * (--no-speculation turns it off)", or "off" and why. Any thread. */
enum { ROSE_ENGINE_SPEC_TEXT = 128 };
void rose_engine_spec_text(const rose_backend_ops *ops, const rose_memory_plan *p,
                           const rose_spec_opts *o, char out[ROSE_ENGINE_SPEC_TEXT]);

/* Histograms of every step since the start, written by the engine thread. Any thread may read
 * them until close. Without overlap a step lasts host_ns + compute_ns. With overlap, host_ns
 * runs during the compute_ns of the previous step, and a step lasts exposed_ns + compute_ns. */
typedef struct rose_engine_hists {
    rose_hist host_ns;    /* host time of a step: planning, building the batch, delivery
                           * (rose_hist_step) */
    rose_hist compute_ns; /* duration of a step (rose_hist_step). It ends at the step's results.
                           * It begins at step(), or at the results of the previous step if those
                           * came later */
    rose_hist exposed_ns; /* host work while no step was in flight: from the results of the previous
                             step (after a sleep: from planning) to step(). 0 if the step was
                             enqueued before those results (rose_hist_step) */
    rose_hist tokens;     /* rows of the step (rose_hist_tokens) */
} rose_engine_hists;
const rose_engine_hists *rose_engine_get_hists(const rose_engine *e);

#endif
