/* engine/guide_internal.h - guides of requests (engine.h): the mask of the next id, and the threads
 * that compute masks, because a mask may take milliseconds and the engine thread must not wait.
 *
 * A job lets a guide advance by the id that was sampled and compute the mask of the next one. If
 * the guide knows the mask already, the engine thread takes it and there is no job, because waking
 * a worker takes longer. The
 * submitter starts the first job of a request, so that it runs while the prompt is computed. The
 * engine thread starts the others, when it delivers an id. A request has at most one job at a time.
 * From the start of a job until the engine thread takes it back, the job owns guide and mask, and
 * holds a reference to the request. So a request that ends meanwhile need not wait for the job.
 *
 * Threads: three workers, which the first request with a guide starts. One has the jobs of slow
 * guides, and two have the others. Started jobs wait in two bounded rings; ended ones in a stack,
 * which the engine thread empties. A worker wakes the engine thread.
 */
#ifndef ROSE_ENGINE_GUIDE_INTERNAL_H
#define ROSE_ENGINE_GUIDE_INTERNAL_H

#include <stdatomic.h>

#include "engine/rules_internal.h"

struct rose_port;

/* ---- the guide of a request ---- */

typedef struct rose_guided {
    /* constant */
    rose_guide guide; /* owned */
    uint32_t vocab, n_eos, n_stop, min_tokens;
    bool ignore_eos;
    /* engine thread */
    bool asked;     /* a job is in flight; true at first, as the submitter starts the first job */
    uint64_t round; /* the delivery that started the job, which the next step waits for; 0 = none */
    /* of the job, else of the engine thread */
    uint32_t n_generated, id; /* ids so far, the last of them */
    rose_status st;           /* what the guide said */
    bool slow;                /* likewise, at the end of the job before */
    rose_err err;
    struct rose_request *next; /* in the stack of ended jobs */
    uint32_t *ends;            /* [n_eos + n_stop] within the block: ids that end the text, first
                                  those of the model */
    bool *cleared;             /* [n_eos + n_stop] scratch */
    /* any thread */
    _Atomic bool over; /* the request has ended: its jobs need no result */
    uint32_t mask[];   /* [(vocab + 31) / 32] */
} rose_guided;

/* Takes the guide of o over, unless it returns NULL: out of memory. */
rose_guided *rose_guided_create(const rose_request_opts *o, const rose_rules_ctx *c);
void rose_guided_destroy(rose_guided *g); /* accepts NULL; no job of it runs */

bool rose_guided_allows_any(const rose_guided *g); /* the mask has an id */

/* Does the work of a job if the guide can do it at once, and then returns true. The caller has
 * filled in n_generated and id, as for a job. Engine thread. */
bool rose_guided_try(rose_guided *g);

/* What a job does: calls the guide and forbids the ids that may not end the text yet. */
void rose_guided_work(rose_guided *g);

/* ---- the workers ---- */

typedef struct rose_guides rose_guides;

/* At most max_guides requests at once. The port is borrowed. NULL: out of memory. */
rose_guides *rose_guides_create(uint32_t max_guides, struct rose_port *port);
/* Waits for running jobs, and drops all references to requests. No other thread uses guides or
 * engine. Accepts NULL. */
void rose_guides_destroy(rose_guides *w);

/* Submitter. Takes a place for a request; the first call starts the threads. Errors: FULL (too many
 * requests that have ended still wait for their jobs), IO. */
rose_status rose_guides_enter(rose_guides *w, rose_err *err);
void rose_guides_leave(rose_guides *w); /* gives the place back; any thread */

/* Starts a job. The caller has filled in n_generated and id, and gives one reference to r away. Any
 * thread. Cannot fail: the ring has room for all places. */
void rose_guides_start(rose_guides *w, struct rose_request *r);

/* Engine thread. Returns all jobs that ended since the last call, linked by guided->next, in the
 * order in which they ended. The caller owns one reference to each. */
struct rose_request *rose_guides_take(rose_guides *w);

#endif
