/* bench/engine_args.h - engine options as text for a command line. Main thread. */
#ifndef ROSE_BENCH_ENGINE_ARGS_H
#define ROSE_BENCH_ENGINE_ARGS_H

#include "base/buf.h"
#include "engine/flags.h"

/* Appends to *out every option of f that differs from its default, so that a program started
 * with this text opens the same engine. *out is a string afterwards. Errors: NOMEM. */
rose_status rose_engine_args(const rose_engine_flags *f, rose_buf *out, rose_err *err);

#endif
