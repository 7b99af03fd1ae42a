/* bench/plot_internal.h - between the parts of `bench plot`: each writes gnuplot text. */
#ifndef ROSE_BENCH_PLOT_INTERNAL_H
#define ROSE_BENCH_PLOT_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"

enum { ROSE_PLOT_MAX_BACKENDS = 16, ROSE_PLOT_N_METRICS = 4 };

typedef struct rose_plot_metric {
    const char *key, *request_key, *title, *file; /* "ttft_ms", "ttft_s", "TTFT", "ttft" */
} rose_plot_metric;
extern const rose_plot_metric rose_plot_metrics[ROSE_PLOT_N_METRICS];

/* The text of a JSON string that is safe in a gnuplot literal and as part of a file name. */
void rose_plot_label(const json_t *v, char *out, size_t cap);

/* Common settings, and a function `start(NAME, W, H)` for a new picture in the current format. */
void rose_plot_head(FILE *gp);

/* Every figure is drawn twice: between these two lines. */
void rose_plot_each_format(FILE *gp);
void rose_plot_end_format(FILE *gp);
void rose_plot_start(FILE *gp, const char *name, int width, int height);

/* Latency over scale (concurrency false) or over concurrency; false if there is no such run. */
bool rose_plot_latency(FILE *gp, const json_t *online, bool concurrency);

void rose_plot_cdfs(FILE *gp, const json_t *online);
bool rose_plot_offline(FILE *gp, const json_t *offline);
bool rose_plot_ablate(FILE *gp, const json_t *ablate);
bool rose_plot_stream(FILE *gp, const json_t *stream);

/* Whether a results file of this name holds something that is drawn. */
bool rose_plot_draws(const char *file);

/* All of `bench plot`: the pictures of DIR into DIR/figures. Errors: NOTFOUND (no results there),
 * FORMAT, IO (gnuplot failed or is not there). */
rose_status rose_plot_folder(const char *dir, rose_err *err);

#endif
