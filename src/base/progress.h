/* base/progress.h - a progress bar on stderr if that is a terminal; in a pipe or file it prints
 * nothing. */
#ifndef ROSE_BASE_PROGRESS_H
#define ROSE_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rose_progress {
    const char *label; /* borrowed */
    uint64_t total;    /* in units; > 0 */
    uint64_t start_ns, last_ns;
    bool tty;
} rose_progress;

void rose_progress_begin(rose_progress *p, const char *label, uint64_t total);

/* Shows `done` of the total units; redraws at most ten times a second. unit: what is counted,
 * "tok". */
void rose_progress_update(rose_progress *p, uint64_t done, const char *unit);

void rose_progress_end(rose_progress *p); /* clears the line */

#endif
