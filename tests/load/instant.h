/* tests/load/instant.h - a backend that computes nothing: ids out of thin air, at a rate of choice
 * or as fast as they are asked for. It shows what all the rest costs. One at a time. */
#ifndef ROSE_LOAD_INSTANT_H
#define ROSE_LOAD_INSTANT_H

#include "backend/backend.h"

extern const rose_backend_ops rose_instant_ops;

/* Sampled ids a second, over all sequences; 0 = as many as the engine takes. Before the run it is
 * for: not while an engine is working. */
void rose_instant_set_rate(double ids_per_s);

/* Until a step has n sequences, every step takes 10 ms: so all n streams are open before the first
 * ends. 0 = at once. As set_rate, before the run. */
void rose_instant_hold_until(uint32_t n);

#endif
