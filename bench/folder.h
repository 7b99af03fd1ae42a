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

/* Finds the folders of runs that dir stands for. If dir itself holds a *_results.json for which
 * wanted(name) is true, the result is dir. Otherwise the result is those folders inside dir that
 * hold one, sorted by name, so the newest run comes last. Their paths are added to out, which must
 * start as {0}. Errors: NOTFOUND (no such results), INVAL (a path too long), NOMEM. */
rose_status rose_folder_runs(rose_names *out, const char *dir, bool (*wanted)(const char *name),
                             rose_err *err);

#endif
