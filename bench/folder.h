/* bench/folder.h - finds the result files in a folder. Main thread. */
#ifndef ROSE_BENCH_FOLDER_H
#define ROSE_BENCH_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct rose_names {
    char **v; /* owned */
    size_t n;
} rose_names;

void rose_names_free(rose_names *l); /* leaves {0} */

/* Names of the entries of dir that end in `end`, sorted; "" lists all but dot files. A folder that
 * does not exist has no entries. Errors: NOMEM. */
rose_status rose_folder_list(rose_names *out, const char *dir, const char *end, rose_err *err);

/* The folders that a person means by dir. If dir holds a *_results.json for which wanted(name) is
 * true, that is dir itself. Otherwise dir is the parent of runs: its folders that hold one, sorted
 * by name, so the run that started last comes last. Their paths are added to out, which is {0} at
 * first. Errors: NOTFOUND (no such results), INVAL (a path too long), NOMEM. */
rose_status rose_folder_runs(rose_names *out, const char *dir, bool (*wanted)(const char *name),
                             rose_err *err);

#endif
