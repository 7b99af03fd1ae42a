/* backend/opts.h - the options of a backend as rows of a command's table, each with its default.
 * A new option is a field of rose_backend_opts and a row in opts.c. */
#ifndef ROSE_BACKEND_OPTS_H
#define ROSE_BACKEND_OPTS_H

#include "backend/backend.h"
#include "base/opts.h"

enum { ROSE_BACKEND_OPT_ROWS = 40 };

/* Writes one row of the table of options for each backend option. The rows point into o and go to
 * rows[0 .. ROSE_BACKEND_OPT_ROWS); returns how many. */
size_t rose_backend_opts_rows(rose_backend_opts *o, rose_opt *rows);

#endif
