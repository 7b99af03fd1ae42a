/* bench/floor.h - how fast a decode step of one sequence could be at best: the bytes of the weights
 * divided by the speed at which this machine reads memory (backend/machine.h). Used by `bench
 * latency` and `bench kernels`. */
#ifndef ROSE_BENCH_FLOOR_H
#define ROSE_BENCH_FLOOR_H

#include <stdio.h>

#include "base/json.h"

#include "backend/machine.h"

/* Measures the same threads again at another moment of the run and keeps the better figures. */
void rose_machine_better(rose_machine *m, const rose_machine *again);

double rose_floor_ms(const rose_machine *m, uint64_t bytes);

void rose_machine_print(FILE *f, const rose_machine *m); /* prints one line */
rose_json *rose_machine_json(const rose_machine *m);     /* NULL: out of memory */

#endif
