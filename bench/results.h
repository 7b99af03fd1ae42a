/* bench/results.h - result folders, result files, and the Markdown files next to them. Main
 * thread. */
#ifndef ROSE_BENCH_RESULTS_H
#define ROSE_BENCH_RESULTS_H

#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "base/json.h"
#include "base/opts.h"

/* Creates a folder and the folders above it. path is changed during the call. Errors: IO. */
rose_status rose_results_make_dirs(char *path, rose_err *err);

/* Creates the folder DIR/PREFIX_YYYYmmdd_HHMMSS (UTC) and writes its path to path. It adds "_2" and
 * so on if the folder exists, and creates DIR if needed. */
rose_status rose_results_dir(const char *dir, const char *prefix, char *path, size_t cap,
                             rose_err *err);

/* Writes JSON to dir/name. It writes another file first and renames that, so neither a reader nor a
 * crash ever sees half a file. */
rose_status rose_results_write(const rose_json *root, const char *dir, const char *name,
                               rose_err *err);

struct tm rose_results_now(void); /* the present time, UTC */
#define ROSE_RESULTS_ISO "%Y-%m-%dT%H:%M:%SZ"

/* Set o[key] to the present time, or to the seconds since start_ns. */
void rose_results_set_time(rose_json *o, const char *key);
void rose_results_set_wall(rose_json *o, const char *key, uint64_t start_ns);

/* Makes the `meta` of a result: version, commit, command line, device, CPUs, instruction set,
 * memory, kernel, time. argv[0] is the benchmark's name. */
rose_json *rose_results_meta(int argc, char **argv);
/* The same with the members of `more`, which is freed. NULL: out of memory, or more is NULL. */
rose_json *rose_results_meta_more(int argc, char **argv, rose_json *more);

/* Reads DIR/name. Errors: FORMAT or NOTFOUND, with the name of the file. */
rose_status rose_results_read(rose_json **out, const char *dir, const char *name, rose_err *err);

/* Replaces bytes that are not UTF-8 by '?', in place, and returns s. The function is for the
 * text of another program that was cut off because our buffer was full. base/json.h accepts only
 * UTF-8, and a bad byte must not lose a result. */
char *rose_results_text(char *s);

/* Makes a JSON string of text that may not be UTF-8: a path, an argument, an error message. Each
 * byte that is part of no character becomes \xNN. text NULL gives null. Returns NULL if out of
 * memory. */
rose_json *rose_results_string(const char *text);
/* text need not end in NUL; n 0 gives "" */
rose_json *rose_results_stringn(const char *text, size_t n);

/* Ends a benchmark: writes root to DIR/PREFIX_TIME/PREFIX_results.json, or to stdout if DIR is
 * NULL. Frees root. Returns the exit code. */
int rose_results_emit(rose_json *root, const char *dir, const char *prefix);

/* A row for the option --output-dir, whose value is the DIR of rose_results_emit. */
#define ROSE_ROW_OUTPUT_DIR(dest, prefix)                                                          \
    ROSE_ROW_STRING("output-dir", dest, "DIR",                                                     \
                    "write " prefix "_TIME/" prefix "_results.json there",                         \
                    .unset = "JSON to standard output")

/* ---- Markdown: a head and a table ---- */

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

/* ---- find result files ---- */

typedef struct rose_names {
    char **v; /* owned */
    size_t n;
} rose_names;

void rose_names_free(rose_names *l); /* leaves {0} */

/* Names of the entries of dir that end in `end`, sorted; "" lists all but dot files. A folder that
 * does not exist has no entries. Errors: NOMEM. */
rose_status rose_folder_list(rose_names *out, const char *dir, const char *end, rose_err *err);

/* Finds the folders of runs that dir stands for. If dir itself holds a *_results.json for which
 * wanted(name) is true, the result is dir. Otherwise the result is those folders inside dir that
 * hold one, sorted by name, so the newest run comes last. Their paths are added to out, which must
 * start as {0}. Errors: NOTFOUND (no such results), INVAL (a path too long), NOMEM. */
rose_status rose_folder_runs(rose_names *out, const char *dir, bool (*wanted)(const char *name),
                             rose_err *err);

#endif
