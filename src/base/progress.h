/* base/progress.h - a progress bar on stderr if that is a terminal. In a pipe or file it prints
 * nothing, or, for a wait, lines. */
#ifndef ROSE_BASE_PROGRESS_H
#define ROSE_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rose_progress {
    const char *label; /* borrowed */
    uint64_t total;    /* in units; > 0 */
    uint64_t start_ns, last_ns;
    bool tty;
    bool wait;        /* begun by rose_progress_wait */
    bool drawn;       /* the bar is on the terminal */
    const char *room; /* of a wait: its lines go to the log, under this name; NULL = to stderr */
} rose_progress;

void rose_progress_begin(rose_progress *p, const char *label, uint64_t total);

/* Programs whose standard error belongs to their user allow the bars of waits. A library must not
 * draw on the terminal of its caller, so the default is false. Before threads start. */
void rose_progress_allow_waits(bool bars);

/* As rose_progress_begin, for a wait that may be short: shows nothing in the first second. Without
 * a terminal it then writes a line, and another one every few seconds. room: see above. */
void rose_progress_wait(rose_progress *p, const char *room, const char *label, uint64_t total);

/* Shows `done` of the total units; redraws at most ten times a second. unit: what is counted,
 * "tok". */
void rose_progress_update(rose_progress *p, uint64_t done, const char *unit);

void rose_progress_end(rose_progress *p); /* clears the line */

#endif
