/* sched/cost.h - the cost of a step, learnt from the steps that ran: a + b * decodes + c * prompt
 * rows, in nanoseconds.
 *
 * The estimate is a weighted least-squares fit. Old observations fade: one weighs half after 44
 * more. Each is weighted by 1 / its time; with one unknown that gives the harmonic mean. A step
 * that the machine delayed then moves the estimate by about a hundredth, however long it took. A
 * coefficient about which recent steps say nothing keeps its last value: a day of decodes says
 * nothing about prompts. No coefficient is below 0.
 *
 * The estimate is a function of its observations alone: it uses doubles, but no clock, and the
 * compiler may not contract or reorder operations. The scheduler's plans may depend on it;
 * results never do. Threads: the owner's. */
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

/* The least chance of being right with which one more row, of a guessed id, gives more tokens a
 * second than a step of n_decode decodes without it: (n + p) / (t + row) > n / t. 0 while nothing
 * was observed. */
double rose_sched_cost_least_chance(const rose_sched_cost *c, uint32_t n_decode);

/* The factor by which many steps together took longer than their estimates, 1 .. 16. The
 * estimate describes a step that nothing delays; a queue waits for all steps, delayed ones too. */
double rose_sched_cost_drag(const rose_sched_cost *c);

/* The most prompt rows beside n_decode decodes, or the most decodes beside n_prefill prompt
 * rows, with which a step stays within goal_ns. The estimate allows for twice the usual error.
 * The result is 0 .. `most`; it is `most` while no step was observed. */
uint32_t rose_sched_cost_prefill(const rose_sched_cost *c, uint32_t n_decode, uint64_t goal_ns,
                                 uint32_t most);
uint32_t rose_sched_cost_decodes(const rose_sched_cost *c, uint32_t n_prefill, uint64_t goal_ns,
                                 uint32_t most);

#endif
