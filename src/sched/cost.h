/* sched/cost.h - what a step costs, learnt from the steps that ran: a + b * decodes + c * rows of
 * prompts, in nanoseconds. Weighted least squares that forget (an observation weighs half after 44
 * more), each observation weighted by 1 / its time: with one unknown that is the harmonic mean, so
 * a step that the machine held up moves the estimate by a hundredth and not by its length.
 * A direction that nothing has shown lately (a day of decodes says nothing of prompts) keeps its
 * last value. No coefficient is below 0.
 *
 * It is a function of its observations alone: doubles, but no clock, and no contraction or
 * reordering by the compiler. The scheduler's plans may depend on it, results never do.
 * Threads: the owner's. */
#ifndef ROSE_SCHED_COST_H
#define ROSE_SCHED_COST_H

#include <stdint.h>

enum { ROSE_COST_TERMS = 3 };

typedef struct rose_sched_cost {
    double xx[ROSE_COST_TERMS][ROSE_COST_TERMS]; /* sum of x x' / ns */
    double xy[ROSE_COST_TERMS];                  /* sum of x */
    double peak[ROSE_COST_TERMS];                /* of the diagonal of xx, sinking slowly */
    double w[ROSE_COST_TERMS];                   /* the estimate, ns per unit of x */
    double spread;                               /* mean of |error| / prediction, 0 .. 1 */
    double took_ns, expected_ns;                 /* sums over the last few hundred */
    uint64_t n;                                  /* observations */
} rose_sched_cost;

/* A step of these rows took ns. O(1). */
void rose_sched_cost_observe(rose_sched_cost *c, uint32_t n_decode, uint32_t n_prefill,
                             uint64_t ns);

/* Expected; 0 while nothing was observed. */
double rose_sched_cost_ns(const rose_sched_cost *c, uint32_t n_decode, uint32_t n_prefill);

/* What many steps take over what the estimate of each adds up to, 1 .. 16: the estimate is of a
 * step that nothing holds up, a queue waits for all of them. */
double rose_sched_cost_drag(const rose_sched_cost *c);

/* The most rows of prompts beside n_decode decodes, or the most decodes beside n_prefill rows, with
 * which a step stays within goal_ns, twice the usual error allowed for; at most `most`, perhaps 0.
 * All of `most` while nothing was observed. */
uint32_t rose_sched_cost_prefill(const rose_sched_cost *c, uint32_t n_decode, uint64_t goal_ns,
                                 uint32_t most);
uint32_t rose_sched_cost_decodes(const rose_sched_cost *c, uint32_t n_prefill, uint64_t goal_ns,
                                 uint32_t most);

#endif
