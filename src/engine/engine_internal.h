/* engine/engine_internal.h - declarations that the files of the engine share: engine.c (the
 * thread's loop), lifecycle.c (open, close), submit.c (what other threads call). */
#ifndef ROSE_ENGINE_ENGINE_INTERNAL_H
#define ROSE_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdalign.h>

#include "base/stall.h"
#include "engine/batch_internal.h"
#include "engine/engine.h"
#include "engine/load_internal.h"
#include "engine/request_internal.h"

enum { MAX_TOUCHED = 32, MAX_FLIGHTS = 2, MAX_QUEUED = 65536 };

/* Counters that the engine thread alone writes and any thread reads. All accesses are relaxed,
 * because no other data depends on the counters. */
typedef struct rose_counters {
    _Atomic uint32_t running, preempted, kv_pages_free, kv_pages_cached;
    _Atomic uint64_t steps, prompt_tokens, generated_tokens, finished, cancelled, late;
    _Atomic uint64_t last_step_ns, last_plan_ns, last_batch_ns, last_deliver_ns;
    _Atomic uint64_t prefix_queries, prefix_hits, prefix_evictions, preemptions, recomputed_tokens;
} rose_counters;

struct rose_engine {
    /* constant after open */
    const rose_backend_ops *ops;
    rose_backend_opts backend_opts;
    rose_memory_plan plan;
    rose_arch arch;
    rose_sched_opts sched_opts;      /* with the pools, owned by the engine thread */
    uint32_t max_queued, max_active; /* that wait; that have begun */
    uint32_t max_queued_tokens;
    bool ahead;               /* a step may stay in flight */
    bool enqueues;            /* step() returns while the device works */
    uint64_t salt_keys[2][2]; /* random */
    int cpu;
    rose_port *port;     /* one reference */
    rose_mpsc *inbox;    /* owned: rose_request *, from submitters */
    rose_guides *guides; /* owned */
    rose_kv_feed *feed;  /* borrowed, or NULL */
    pthread_t thread;
    bool thread_started;
    /* shared */
    alignas(64) _Atomic uint32_t
        n_queued; /* requests in the inbox or waiting; submit reserves a place here first */
    _Atomic uint64_t n_queued_tokens; /* of their prompts */
    _Atomic bool draining, closing, failed;
    _Atomic bool expected; /* a submission is near */
    rose_err failure;      /* constant once failed is set */
    rose_load load;
    rose_counters stats;
    rose_engine_hists hists;
    /* engine thread */
    alignas(64) void *ctx; /* the backend's */
    rose_sched *sched;     /* owned */
    rose_spec *spec;       /* owned; NULL = no speculation */
    double least_chance;   /* that a guessed id must have to get a row in the next step */
    rose_batch_builder batch;
    rose_flight flights[MAX_FLIGHTS]; /* the oldest first */
    uint32_t n_flights;
    rose_request **by_seq; /* [n_seqs] requests by the scheduler's handle; the array is owned */
    uint32_t n_seqs;
    uint64_t n_taken;    /* requests */
    rose_request *early; /* requests cancelled while still in the inbox; linked by cancel_next */
    rose_wakeq *touched[MAX_TOUCHED]; /* sinks to signal at the end of the step */
    uint32_t n_touched;
    uint64_t collected_ns; /* when the results of the last step came; 0 after a sleep */
    uint64_t landed_ns;    /* and when they were delivered */
    uint64_t marked_ns;    /* end of the last recorded span, if the next span begins at that
                            * time; else 0 */
    struct {
        uint32_t recording, running, waiting; /* of the counters that were recorded last */
    } recorded;
    uint64_t round;        /* deliveries so far */
    uint32_t n_due;        /* jobs of guides that the last delivery started, not taken back yet */
    uint64_t due_until_ns; /* the next plan waits for them until then */
    bool spanned; /* step_span has begun, and the step that it measures is not collected yet */
    rose_stall_span step_span, compute_span;
};

/* The engine thread's loop (engine.c), from the time when the backend is open until close. */
void rose_engine_run(rose_engine *e);
void rose_engine_update_gauges(rose_engine *e); /* also before there is a thread */
rose_sched_ids_fn rose_engine_read_ids;         /* user: the engine */

/* submit.c: gives a place in the queue back. Call when a request begins, or ends without having
 * begun; any thread. */
void rose_engine_leave_queue(rose_engine *e, uint32_t n_prompt, uint32_t n_rows, int32_t priority);

#endif
