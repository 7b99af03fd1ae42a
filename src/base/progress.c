/* base/progress.c - see progress.h. */
#include "base/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { BAR_WIDTH = 30, REDRAW_NS = 100000000, SHORT_NS = 1000000000 };
#define LINE_NS UINT64_C(5000000000)

static bool g_bars_of_waits;

void rose_progress_allow_waits(bool bars)
{
    g_bars_of_waits = bars;
}

void rose_progress_begin(rose_progress *p, const char *label, uint64_t total)
{
    *p = (rose_progress){.label = label,
                         .total = total > 0 ? total : 1,
                         .start_ns = rose_now_ns(),
                         .tty = isatty(STDERR_FILENO) == 1};
}

void rose_progress_wait(rose_progress *p, const char *room, const char *label, uint64_t total)
{
    rose_progress_begin(p, label, total);
    p->wait = true;
    p->room = room;
}

static void draw_bar(rose_progress *p, uint64_t now, uint64_t done, const char *unit)
{
    const int filled = (int)(done * BAR_WIDTH / p->total);
    const double s = (double)(now - p->start_ns) * 1e-9;
    const double rate = s > 0 ? (double)done / s : 0;
    if (p->wait && !p->drawn) rose_log_over_bar(true);
    p->drawn = true;
    fprintf(stderr, "\r%s [", p->label);
    for (int i = 0; i < BAR_WIDTH; i++)
        fputc(i < filled ? '#' : '.', stderr);
    fprintf(stderr, "] %3d%%  %" PRIu64 "/%" PRIu64 " %s  %.0f %s/s  %.1f s\033[K",
            (int)(done * 100 / p->total), done, p->total, unit, rate, unit, s);
    fflush(stderr);
}

static void write_line(const rose_progress *p, uint64_t now, uint64_t done, const char *unit)
{
    const double s = (double)(now - p->start_ns) * 1e-9;
    if (p->room != NULL)
        rose_log(ROSE_LOG_INFO, p->room, "%s: %" PRIu64 " of %" PRIu64 " %s, %.1f s", p->label,
                 done, p->total, unit, s);
    else
        fprintf(stderr, "roseinfer: %s: %" PRIu64 " of %" PRIu64 " %s, %.1f s\n", p->label, done,
                p->total, unit, s);
}

void rose_progress_update(rose_progress *p, uint64_t done, const char *unit)
{
    const uint64_t now = rose_now_ns();
    const bool bar = p->tty && (!p->wait || g_bars_of_waits);
    if (done > p->total) done = p->total;
    if (!bar && !p->wait) return;
    if (p->wait && now - p->start_ns < SHORT_NS) return;
    if (p->last_ns > 0 && now - p->last_ns < (bar ? REDRAW_NS : LINE_NS) &&
        !(bar && done == p->total))
        return;
    p->last_ns = now;
    if (bar)
        draw_bar(p, now, done, unit);
    else
        write_line(p, now, done, unit);
}

void rose_progress_end(rose_progress *p)
{
    if (p->drawn) fputs("\r\033[K", stderr);
    if (p->drawn && p->wait) rose_log_over_bar(false);
    p->drawn = false;
}
