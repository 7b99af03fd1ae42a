/* tests/load/abuse_internal.h - the kinds of visits of `load abuse`: what each does and which ends
 * are right for it. */
#ifndef ROSE_LOAD_ABUSE_INTERNAL_H
#define ROSE_LOAD_ABUSE_INTERNAL_H

#include "bench/stats.h"
#include "load/visit.h"

enum { ROSE_ABUSE_MAX_STATUSES = 12 };

typedef struct rose_abuse_env {
    rose_url url;
    const char *model;
    uint32_t context;    /* tokens */
    uint32_t vocab;      /* ids below it may be sent */
    uint32_t max_body;   /* bytes; one more is refused with 413 */
    uint32_t timeout_ms; /* of the server's headers, bodies and writes */
    bool light;          /* no request of thousands of tokens */
} rose_abuse_env;

typedef struct rose_abuse_kind {
    const char *name;
    uint32_t weight;
    /* Fills *p (zeroed) from the random numbers of r. Errors: NOMEM. */
    rose_status (*make)(const rose_abuse_env *e, rose_random *r, rose_visit_plan *p);
    unsigned ends;                         /* bits of rose_visit_end that are right */
    int statuses[ROSE_ABUSE_MAX_STATUSES]; /* and statuses, of every reply that came */
} rose_abuse_kind;

extern const rose_abuse_kind rose_abuse_kinds[];
extern const uint32_t rose_abuse_n_kinds;

/* Event i of the run with this seed: its kind in p->kind. */
rose_status rose_abuse_make(const rose_abuse_env *e, uint64_t seed, uint32_t i, rose_visit_plan *p);

/* Whether v ended as its kind may end. 429 and 503 are right for every kind that asks for work. */
bool rose_abuse_right(const rose_visit *v);

#endif
