/* engine/request_internal.h - one request: what its submitter, the engine and its consumer share.
 *
 * Events are an append-only array with room for all a request can ever give (max_tokens tokens and
 * one finish), so the engine never waits and nothing is dropped. `word` publishes them: bit 0 says
 * that the consumer was told (the request is in its sink, or the consumer is polling it), the rest
 * is the number of events. The consumer clears the bit only while the number is unchanged, so a
 * request is in its sink at most once, and after the finish event nobody but the consumer touches
 * it (the engine pushes it into the sink only if the bit was clear, when the consumer cannot have
 * seen the event). */
#ifndef ROSE_ENGINE_REQUEST_INTERNAL_H
#define ROSE_ENGINE_REQUEST_INTERNAL_H

#include <stdalign.h>
#include <stdatomic.h>

#include "engine/rules_internal.h"

/* What a request may still touch when the engine is gone: a cancel wakes the engine thread and may
 * race with rose_engine_close. One reference for the engine and one for each unreleased request. */
typedef struct rose_port {
    _Atomic uint32_t refs;
    alignas(64) _Atomic uint32_t asleep;               /* futex: 1 = the engine thread sleeps */
    alignas(64) _Atomic(struct rose_request *) cancel; /* stack of requests to cancel */
} rose_port;

rose_port *rose_port_create(void); /* one reference; NULL = out of memory */
void rose_port_unref(rose_port *p);
void rose_port_wake(rose_port *p); /* any thread, after publishing what the engine shall see */

/* Engine thread, in this order: prepare, look for events once more, then sleep or not, then done.
 * rose_port_sleep returns at once if a wake came after prepare. */
void rose_port_sleep_prepare(rose_port *p);
void rose_port_sleep(rose_port *p);
void rose_port_sleep_done(rose_port *p);

enum { ROSE_CANCEL_NO, ROSE_CANCEL_ASKED, ROSE_CANCEL_OVER };

struct rose_request {
    /* constant after submit */
    rose_port *port;  /* one reference */
    rose_wakeq *sink; /* borrowed */
    void *user;
    rose_sampling sampling;
    const uint32_t *prompt; /* [n_prompt], behind events */
    uint32_t n_prompt, max_tokens;
    uint32_t n_run;    /* tokens that are computed before the first output: n_prompt, or, when the
                          prompt is only scored, all but the last (at least 1) */
    rose_rules *rules; /* owned; NULL = none */
    bool ignore_eos, skip_prefix_cache;
    uint64_t prof_id;
    int32_t priority;
    uint32_t n_cost; /* rows that the queue counts for it */
    bool same_prompt;
    uint64_t due_ns;  /* 0 = no time */
    uint64_t salt[2]; /* keyed digest of cache_salt; {0, 0} = none */
    /* engine thread; times is the consumer's once it has the finish event */
    bool done;
    uint32_t seq;         /* the scheduler's handle */
    uint64_t number;      /* 1, 2, ...: its own for ever */
    uint64_t out_step;    /* the builder's count of the step that last sampled for it */
    uint32_t out;         /* place of that sample among the step's outputs */
    uint32_t n_cached;    /* prompt tokens found in the prefix cache; published with any event */
    uint32_t n_generated; /* events[0..n_generated) carry tokens */
    uint32_t n_events;
    rose_request_times times;
    /* any thread */
    alignas(64) _Atomic uint32_t refs; /* the consumer, and the cancel stack while it holds it */
    _Atomic uint32_t cancel_state;
    struct rose_request *cancel_next; /* in the stack */
    /* engine -> consumer */
    alignas(64) _Atomic uint64_t word;
    uint32_t n_polled; /* consumer */
    rose_event events[];
};

/* Checked by the caller: sizes bounded by max_model_len. c: of o->rules, if there are any. NULL =
 * out of memory. */
rose_request *rose_request_create(const rose_request_opts *o, uint32_t max_tokens, rose_port *port,
                                  const rose_rules_ctx *c);
static inline uint32_t rose_request_n_run(uint32_t n_prompt, uint32_t max_tokens)
{
    return max_tokens > 0 || n_prompt == 1 ? n_prompt : n_prompt - 1;
}
void rose_request_unref(rose_request *r); /* any thread */

/* Engine thread. Appends the event; true: the caller must push r into its sink now. If false and
 * the event was the finish, r may be gone already. */
bool rose_request_publish(rose_request *r, const rose_event *ev);

/* Engine thread. All requests whose cancel was asked since the last call, linked by cancel_next;
 * the caller owns one reference of each. */
rose_request *rose_port_take_cancels(rose_port *p);

#endif
