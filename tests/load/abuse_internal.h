/* tests/load/abuse_internal.h - the kinds of events of `load abuse`: what a client of each kind
 * does, and how its visit may end. */
#ifndef ROSE_LOAD_ABUSE_INTERNAL_H
#define ROSE_LOAD_ABUSE_INTERNAL_H

#include "bench/stats.h"
#include "load/visit.h"

enum { ROSE_ABUSE_MAX_STATUSES = 12 };

typedef struct rose_abuse_env {
    rose_url url;
    const char *model;
    uint32_t context;    /* the model's context, in tokens */
    uint32_t vocab;      /* token ids below this may be sent */
    uint32_t max_body;   /* most bytes of a body; a larger one is refused with 413 */
    uint32_t timeout_ms; /* the server's time-outs for headers, bodies and writes */
    bool light;          /* no requests of thousands of tokens */
} rose_abuse_env;

typedef struct rose_abuse_kind {
    const char *name;
    uint32_t weight;
    /* Fills *p, which is zero, from the random numbers of r. Errors: NOMEM. */
    rose_status (*make)(const rose_abuse_env *e, rose_random *r, rose_visit_plan *p);
    unsigned ends; /* one bit for each rose_visit_end that is right */
    /* the statuses that are right, for every reply that came */
    int statuses[ROSE_ABUSE_MAX_STATUSES];
} rose_abuse_kind;

extern const rose_abuse_kind rose_abuse_kinds[];
extern const uint32_t rose_abuse_n_kinds;

/* Makes event i of the run with this seed; p->kind is its kind. */
rose_status rose_abuse_make(const rose_abuse_env *e, uint64_t seed, uint32_t i, rose_visit_plan *p);

/* Whether v ended as its kind may end. The statuses 429 and 503 are right for every kind that asks
 * for work. */
bool rose_abuse_right(const rose_visit *v);

#endif
