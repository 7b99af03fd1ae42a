/* tests/load/instant.h - a backend that computes nothing. It returns made-up ids at a chosen rate,
 * or as fast as the engine asks, and so shows what everything else costs. There can be one at a
 * time. */
#ifndef ROSE_LOAD_INSTANT_H
#define ROSE_LOAD_INSTANT_H

#include "backend/backend.h"

extern const rose_backend_ops rose_instant_ops;

/* Sets how many ids per second it returns, over all sequences; 0 = as many as the engine takes.
 * Call it before a run, while no engine works. */
void rose_instant_set_rate(double ids_per_s);

/* While a step has fewer than n sequences, it takes 10 ms. So all n streams are open before the
 * first one ends. 0 = no wait. It must be called before a run. */
void rose_instant_hold_until(uint32_t n);

#endif
