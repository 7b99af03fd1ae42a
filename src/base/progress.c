/* base/progress.c - see progress.h. */
#include "base/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"

enum { BAR_WIDTH = 30, REDRAW_NS = 100000000 };

void rose_progress_begin(rose_progress *p, const char *label, uint64_t total)
{
    *p = (rose_progress){.label = label,
                         .total = total > 0 ? total : 1,
                         .start_ns = rose_now_ns(),
                         .tty = isatty(STDERR_FILENO) == 1};
}

void rose_progress_update(rose_progress *p, uint64_t done, const char *unit)
{
    uint64_t now = rose_now_ns();
    if (!p->tty || (done < p->total && now - p->last_ns < REDRAW_NS)) return;
    p->last_ns = now;
    if (done > p->total) done = p->total;
    int filled = (int)(done * BAR_WIDTH / p->total);
    double s = (double)(now - p->start_ns) * 1e-9;
    double rate = s > 0 ? (double)done / s : 0;
    fprintf(stderr, "\r%s [", p->label);
    for (int i = 0; i < BAR_WIDTH; i++)
        fputc(i < filled ? '#' : '.', stderr);
    fprintf(stderr, "] %3d%%  %" PRIu64 "/%" PRIu64 " %s  %.0f %s/s  %.1f s\033[K",
            (int)(done * 100 / p->total), done, p->total, unit, rate, unit, s);
    fflush(stderr);
}

void rose_progress_end(rose_progress *p)
{
    if (p->tty) fputs("\r\033[K", stderr);
}
