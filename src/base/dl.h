/* base/dl.h - a shared library that is loaded when it is first wanted, and a table of its functions
 * by name. The program is built without the library and runs where the library is not installed. */
#ifndef ROSE_BASE_DL_H
#define ROSE_BASE_DL_H

#include <stddef.h>

#include "base/status.h"

typedef struct rose_dl_function {
    const char *name; /* as the library exports it */
    void *to;         /* address of the function pointer that gets it */
} rose_dl_function;

/* Load the first of the n_paths libraries that the system finds, and fill all n_functions pointers.
 * The caller owns *out: rose_dl_close. Errors: NOTFOUND (none of the paths loads; the message has
 * the loader's reason for the last one), UNSUPPORTED (the library lacks a function, which the
 * message names). Then *out is NULL, nothing stays loaded, and no function pointer may be used. */
rose_status rose_dl_open(void **out, const char *const *paths, size_t n_paths,
                         const rose_dl_function *functions, size_t n_functions, rose_err *err);
void rose_dl_close(void *library); /* accepts NULL */

#endif
