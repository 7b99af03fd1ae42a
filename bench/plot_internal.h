/* bench/plot_internal.h - declarations that the files of `bench plot` share. Each file writes parts
 * of a gnuplot script. */
#ifndef ROSE_BENCH_PLOT_INTERNAL_H
#define ROSE_BENCH_PLOT_INTERNAL_H

#include <stdbool.h>
#include <stdio.h>

#include "base/json.h"
#include "base/status.h"

enum { ROSE_PLOT_MAX_BACKENDS = 16 };

/* Writes the text of a JSON string with every character replaced that is unsafe in a gnuplot
 * literal or in a file name. */
void rose_plot_label(const rose_json *v, char *out, size_t cap);

/* Writes what was measured and where, as "gpt2, bfloat16, on AMD EPYC", from the meta of a results
 * file. It is the second line of each title, after "\\n" in a literal in double quotes. Empty if
 * the file does not say. */
enum { ROSE_PLOT_PLACE = 200 };
void rose_plot_place(const rose_json *root, char out[ROSE_PLOT_PLACE]);

/* The backends of a picture, in the order in which the results name them. */
typedef struct rose_plot_backends {
    char label[ROSE_PLOT_MAX_BACKENDS][80];
    const rose_json *key[ROSE_PLOT_MAX_BACKENDS]; /* borrowed: the label as the file has it */
    int n;
} rose_plot_backends;
void rose_plot_add_backend(rose_plot_backends *b, const rose_json *key); /* unless it is there */

/* Every figure is drawn twice, as PNG and as SVG: its commands stand between these two calls. It
 * begins with gnuplot's defaults and the settings that all pictures share. */
void rose_plot_begin(FILE *gp, const char *name, int width, int height);
void rose_plot_end(FILE *gp);

/* Draw one file of results. They return false if it holds nothing that can be drawn. */
bool rose_plot_online(FILE *gp, const rose_json *online);
bool rose_plot_offline(FILE *gp, const rose_json *offline);
bool rose_plot_ablate(FILE *gp, const rose_json *ablate);
bool rose_plot_stream(FILE *gp, const rose_json *stream);

/* Whether a results file of this name can be drawn. */
bool rose_plot_draws(const char *file);

/* Draws the results of DIR into DIR/figures. Errors: NOTFOUND (no results there), FORMAT, IO
 * (gnuplot failed or is not installed). */
rose_status rose_plot_folder(const char *dir, rose_err *err);

#endif
