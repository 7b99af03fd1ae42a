/* engine/guide_internal.h - guides of requests (engine.h), and the threads that call them. A guide
 * gives a mask of the ids that may come next. A mask may take milliseconds, and the engine thread
 * must not wait for it.
 *
 * A job advances a guide by the sampled ids and computes the mask for the next id. If the guide
 * knows that mask already, the engine thread takes it without a job, because to wake a worker takes
 * longer. The thread that submits a request starts its first job, which then runs while the prompt
 * is computed. The engine thread starts the other jobs, each when it delivers an id. A request has
 * at most one job at a time. While a job runs, it owns the guide and the mask, and holds a
 * reference to the request. So a request can end without waiting for its job.
 *
 * Threads: three workers or more, which the first request with a guide starts. Two run the jobs of
 * quick guides. One for eight CPUs, at least one and at most four, run those of slow guides. Jobs
 * wait in two bounded rings, one for each kind. A worker takes the waiting job whose
 * request has had the least time on workers, so that a guide with costly masks does not delay the
 * others again and again. A worker puts a finished job on a stack, which the engine thread empties,
 * and wakes the engine thread.
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
    uint32_t n_generated;            /* ids so far */
    uint32_t ids[ROSE_SPEC_MAX + 1]; /* the newest n_ids of these */
    uint32_t n_ids, n_taken;         /* the guide has taken the first n_taken of ids */
    uint32_t forced[ROSE_SPEC_MAX];  /* n_forced ids that are likely to come next */
    uint32_t n_forced;
    rose_status st;    /* what the guide said */
    bool slow;         /* likewise, at the end of the job before */
    uint64_t spent_ns; /* on workers, by all jobs so far */
    rose_err err;
    struct rose_request *next; /* among the jobs that wait, or in the stack of ended jobs */
    uint32_t *deep;            /* owned: [ROSE_SPEC_MAX] masks along a guess; NULL = no guesses */
    uint32_t *ends;            /* [n_eos + n_stop] within the block: ids that end the text, first
                                  those of the model */
    bool *cleared;             /* [n_eos + n_stop] scratch */
    /* any thread */
    _Atomic bool over; /* the request has ended: its jobs need no result */
    uint32_t mask[];   /* [(vocab + 31) / 32] */
} rose_guided;

/* Takes ownership of the guide of o. NULL: out of memory, and the caller keeps the guide. */
rose_guided *rose_guided_create(const rose_request_opts *o, const rose_rules_ctx *c);
void rose_guided_destroy(rose_guided *g); /* accepts NULL; no job of g may be running */

bool rose_guided_allows_any(const rose_guided *g, const uint32_t *mask); /* the mask has an id */

/* Does the work of a job if the guide can do it at once, and then returns true. The caller has
 * filled in n_generated and ids, as for a job. Engine thread. */
bool rose_guided_try(rose_guided *g);

/* Engine thread, with the mask of the next id. Returns how many of ids[0..n) may follow one after
 * the other; the masks after them are then there. The guide stays where it is. */
uint32_t rose_guided_walk(rose_guided *g, const uint32_t *ids, uint32_t n);
/* The mask after the first i ids of the last walk; 0: the mask of the next id. */
const uint32_t *rose_guided_mask(const rose_guided *g, uint32_t i);

/* What a job does: calls the guide and forbids the ids that may not end the text yet. */
void rose_guided_work(rose_guided *g);

/* The link to the request of a list whose jobs have taken the least time; of equal ones the first.
 * The list, linked by guided->next, is not empty. */
struct rose_request **rose_guided_least(struct rose_request **list);

/* ---- the workers ---- */

typedef struct rose_guides rose_guides;

/* Up to max_guides requests with guides can live at the same time. The port is borrowed. NULL: out
 * of memory. */
rose_guides *rose_guides_create(uint32_t max_guides, struct rose_port *port);
/* Waits for running jobs, and drops all references to requests. No other thread uses guides or
 * engine. Accepts NULL. */
void rose_guides_destroy(rose_guides *w);

/* Called by the thread that submits. Takes a place for a request; the first call starts the
 * workers. Errors: FULL (too many ended requests still have a running job), IO. */
rose_status rose_guides_enter(rose_guides *w, rose_err *err);
void rose_guides_leave(rose_guides *w); /* gives the place back; any thread */

/* Starts a job, which takes over one of the caller's references to r. Set n_generated and ids
 * before. Any thread. Cannot fail, because the rings have room for all places. */
void rose_guides_start(rose_guides *w, struct rose_request *r);

/* Engine thread. Returns all jobs that ended since the last call, linked by guided->next, in the
 * order in which they ended. The caller owns one reference to each. */
struct rose_request *rose_guides_take(rose_guides *w);

#endif
