/* bench/floor.h - how fast one row could be: the weights that a step reads, at the speed at which
 * this machine reads memory (backend/machine.h). For `bench latency` and `bench kernels`. */
#ifndef ROSE_BENCH_FLOOR_H
#define ROSE_BENCH_FLOOR_H

#include <stdio.h>

#include <jansson.h>

#include "backend/machine.h"

/* The same threads measured again, at another moment of the run: the better of both. */
void rose_machine_better(rose_machine *m, const rose_machine *again);

double rose_floor_ms(const rose_machine *m, uint64_t bytes);

void rose_machine_print(FILE *f, const rose_machine *m); /* a line */
json_t *rose_machine_json(const rose_machine *m);        /* NULL: no memory */

#endif
