/* bench/results.h - result folders and files. Main thread. */
#ifndef ROSE_BENCH_RESULTS_H
#define ROSE_BENCH_RESULTS_H

#include <jansson.h>

#include "base/opts.h"

/* Creates DIR/PREFIX_YYYYmmdd_HHMMSS (UTC; DIR too; "_2" and so on if it exists) into path. */
rose_status rose_results_dir(const char *dir, const char *prefix, char *path, size_t cap,
                             rose_err *err);

/* Writes JSON to dir/name: first to a file beside it, then renamed, so that a reader or a crash
 * never sees half of it. */
rose_status rose_results_write(const json_t *root, const char *dir, const char *name,
                               rose_err *err);

/* Now, as "2026-11-21T05:00:00Z". */
void rose_results_time(char out[32]);

/* What every result says about where it comes from: version, commit, command line, device, CPUs,
 * instruction set, memory, kernel, time. argv[0] is the benchmark's name. */
json_t *rose_results_meta(int argc, char **argv);

/* Reads DIR/name; FORMAT and NOTFOUND name the file. */
rose_status rose_results_read(json_t **out, const char *dir, const char *name, rose_err *err);

/* Bytes that are no UTF-8 become '?' in place, for what another program said and a buffer of ours
 * cut: jansson takes nothing else, and a result must not be lost for a name in it. Returns s. */
char *rose_results_text(char *s);

/* A JSON string of text that may not be UTF-8 (a path, an argument, an error that names one): each
 * byte that is part of no character stands as \xNN. text NULL: null. Returns NULL when out of
 * memory. */
json_t *rose_results_string(const char *text);
json_t *rose_results_stringn(const char *text, size_t n); /* need not end in NUL; n 0: "" */

/* The end of a benchmark: root (taken over) goes to DIR/PREFIX_TIME/PREFIX_results.json, or to
 * stdout without a DIR. Returns the exit code. */
int rose_results_emit(json_t *root, const char *dir, const char *prefix);

/* The option that gives this DIR. */
#define ROSE_ROW_OUTPUT_DIR(dest, prefix)                                                          \
    ROSE_ROW_STRING("output-dir", dest, "DIR",                                                     \
                    "write " prefix "_TIME/" prefix "_results.json there",                         \
                    .unset = "JSON to standard output")

#endif
