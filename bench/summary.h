/* bench/summary.h - writes the Markdown files next to results: a head and a table. Main thread. */
#ifndef ROSE_BENCH_SUMMARY_H
#define ROSE_BENCH_SUMMARY_H

#include <stdio.h>

#include "base/json.h"
#include "base/status.h"

typedef struct rose_summary_file {
    FILE *f;
    char path[4200];
} rose_summary_file;

/* Opens DIR/name and writes its head: the title, the device and the command line of root's meta,
 * about (a sentence or two), and the head of the table. columns are given as "a | b | c". On an
 * error s->f is NULL. */
rose_status rose_summary_open(rose_summary_file *s, const rose_json *root, const char *dir,
                              const char *name, const char *title, const char *about,
                              const char *columns, rose_err *err);

/* Writes one cell " 1.23 |" with a number times factor, or " - |" if v is no number. digits:
 * decimal places; -1 for three significant digits. */
void rose_summary_cell(FILE *f, const rose_json *v, double factor, int digits);

rose_status rose_summary_close(rose_summary_file *s, rose_err *err);

#endif
