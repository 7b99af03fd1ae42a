/* base/dl.h - loads a shared library when it is first needed, and fills a table of its functions
 * by name. The program is built without the library and runs where the library is not installed. */
#ifndef ROSE_BASE_DL_H
#define ROSE_BASE_DL_H

#include <stddef.h>

#include "base/status.h"

typedef struct rose_dl_function {
    const char *name; /* as the library exports it */
    void *to;         /* address of the function pointer to fill */
} rose_dl_function;

/* A library's functions may be a list: X(type, member, "name in the library", parameters) each.
 * From it X = ROSE_DL_MEMBER declares the members of the table. */
#define ROSE_DL_MEMBER(type, member, name, ...) type (*member)(__VA_ARGS__);

/* Loads the first of the n_paths libraries that the system finds, and fills all n_functions
 * pointers. The caller owns *out and calls rose_dl_close. Errors: NOTFOUND (no path loads; the
 * message has the loader's reason for the last one), UNSUPPORTED (the library lacks a function,
 * which the message names). After an error *out is NULL, nothing stays loaded, and no function
 * pointer may be used. */
rose_status rose_dl_open(void **out, const char *const *paths, size_t n_paths,
                         const rose_dl_function *functions, size_t n_functions, rose_err *err);
void rose_dl_close(void *library); /* accepts NULL */

#endif
