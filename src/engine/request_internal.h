/* engine/request_internal.h - one request: the state that its submitter, the engine and its
 * consumer share.
 *
 * Events are an append-only array with room for all events that a request can have (max_tokens
 * tokens and one finish). So the engine never waits and no event is dropped. `word` publishes
 * them. Bit 0 says that the consumer was told: the request is in its sink, or the consumer is
 * polling it. The other bits are the number of events. The consumer clears bit 0 only while the
 * number is unchanged, so a request is in its sink at most once. After the finish event only the
 * consumer uses the request. (The engine pushes it into the sink only if the bit was clear; then
 * the consumer cannot have seen the event.) */
#ifndef ROSE_ENGINE_REQUEST_INTERNAL_H
#define ROSE_ENGINE_REQUEST_INTERNAL_H

#include <stdalign.h>
#include <stdatomic.h>

#include "engine/guide_internal.h"

/* The part of the engine that a request may still use after the engine is gone: a cancel wakes
 * the engine thread and may race with rose_engine_close. The engine holds one reference, and
 * each unreleased request holds one. */
typedef struct rose_port {
    _Atomic uint32_t refs;
    alignas(64) _Atomic uint32_t asleep;               /* futex: 1 = the engine thread sleeps */
    alignas(64) _Atomic(struct rose_request *) cancel; /* stack of requests to cancel */
} rose_port;

rose_port *rose_port_create(void); /* one reference; NULL = out of memory */
void rose_port_unref(rose_port *p);
void rose_port_wake(rose_port *p); /* wakes the engine thread; any thread, after publishing the
                                    * data that the engine is to see */

/* Engine thread, in this order: prepare, look for events once more, then sleep or not, then
 * done. rose_port_sleep returns at once if a wake came after prepare. It sleeps for at most
 * timeout_ns (below 1 s); 0 = for ever. */
void rose_port_sleep_prepare(rose_port *p);
void rose_port_sleep(rose_port *p, uint64_t timeout_ns);
void rose_port_sleep_done(rose_port *p);

enum { ROSE_CANCEL_NO, ROSE_CANCEL_ASKED, ROSE_CANCEL_OVER };

struct rose_request {
    /* constant after submit */
    rose_port *port;  /* one reference */
    rose_wakeq *sink; /* borrowed */
    void *user;
    rose_sampling sampling;
    const uint32_t *prompt; /* [n_prompt], stored after events */
    uint32_t n_prompt, max_tokens;
    uint32_t n_run; /* tokens that are computed before the first output: n_prompt; if the prompt is
                       only scored, all but the last (at least 1) */
    rose_rules *rules;   /* owned; NULL = none */
    rose_guided *guided; /* owned; NULL = none */
    rose_pooling pool;
    uint32_t width; /* of state */
    bool ignore_eos, skip_prefix_cache;
    uint64_t prof_id;
    int32_t priority;
    uint32_t n_cost; /* rows that the queue counts for it */
    bool same_prompt;
    uint64_t due_ns;  /* 0 = no time */
    uint64_t salt[2]; /* keyed digest of cache_salt; {0, 0} = none */
    /* engine thread only; times belongs to the consumer once it has the finish event */
    bool done;
    bool guide_failed;    /* published with the finish event */
    uint32_t seq;         /* the scheduler's handle */
    uint64_t number;      /* 1, 2, ...: its own for ever */
    uint64_t out_step;    /* number of the step that last sampled for this request, as the batch
                           * builder counts steps */
    uint32_t out;         /* index of this request's last sample among the outputs of its step */
    uint32_t n_cached;    /* prompt tokens found in the prefix cache; published with any event */
    uint32_t n_generated; /* events[0..n_generated) carry tokens */
    uint32_t n_events;
    /* Speculation. A guess stands in events[n_generated ..] too, where rules read it. */
    rose_spec_text *text;  /* owned; NULL = no guesses */
    rose_spec_guess guess; /* the last one; a step checks its first ids */
    bool eager;            /* a guess is worth rows, so the next plan waits for the ids before it */
    rose_request_guesses guesses; /* published with the finish event */
    uint32_t n_pooled;            /* prompt tokens below this one are in `state` */
    float *state; /* owned, [width]: the sum, at the end the result; NULL without `pool` */
    rose_request_times times;
    /* any thread */
    /* number of references: one of the consumer, and one each of the cancel stack, a job of the
     * guide and a step in flight while they hold the request */
    alignas(64) _Atomic uint32_t refs;
    _Atomic uint32_t cancel_state;
    atomic_bool begun;                /* a step has computed for it, or will do so next */
    struct rose_request *cancel_next; /* in the stack */
    /* engine -> consumer */
    alignas(64) _Atomic uint64_t word;
    uint32_t n_polled; /* consumer */
    rose_event events[];
};

/* The caller has checked the request: max_model_len bounds its sizes. c: needed for o->rules and
 * o->guide and o->pool, if the request has them. Takes the guide over, unless it returns NULL: out
 * of memory. */
rose_request *rose_request_create(const rose_request_opts *o, uint32_t max_tokens, rose_port *port,
                                  const rose_rules_ctx *c);
/* Gives the request a text for guesses, once its salt is set. False: out of memory. */
bool rose_request_add_text(rose_request *r, const rose_spec *s, const rose_request_opts *o);
static inline uint32_t rose_request_n_run(uint32_t n_prompt, uint32_t max_tokens, rose_pooling pool)
{
    return max_tokens > 0 || pool != ROSE_POOL_NONE || n_prompt == 1 ? n_prompt : n_prompt - 1;
}
void rose_request_unref(rose_request *r); /* any thread */

/* Engine thread. Appends an event, which the next publish shows. */
void rose_request_append(rose_request *r, const rose_event *ev);
/* Engine thread. Shows all events; true: the caller must push r into its sink now. If false and the
 * last event was the finish, r may already be freed. */
bool rose_request_publish(rose_request *r);

/* Engine thread, when all of the prompt is in r->state: divides a mean. False if a value is not
 * finite. */
bool rose_request_finish_state(rose_request *r);

/* Engine thread. Returns all requests that were asked to be cancelled since the last call,
 * linked by cancel_next. The caller owns one reference to each. */
rose_request *rose_port_take_cancels(rose_port *p);

#endif
