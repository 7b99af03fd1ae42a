/* bench/proc.h - child processes: servers under test, gnuplot, other benchmarks. Main thread. A
 * child gets SIGTERM if this program dies, so no server outlives its benchmark. */
#ifndef ROSE_BENCH_PROC_H
#define ROSE_BENCH_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

enum { ROSE_PROC_MAX_ARGS = 128 };

typedef struct rose_proc {
    pid_t pid; /* 0 = none */
    bool ended;
    int status; /* of waitpid, once ended */
} rose_proc;

/* argv[0] is found in PATH. out_path gets stdout, err_path stderr (both appended; the same path:
 * both; NULL: ours). cpus: affinity of the child, n_cpus 0 = as ours. Errors: IO, also when the
 * program does not exist. */
rose_status rose_proc_start(rose_proc *p, char *const *argv, const char *out_path,
                            const char *err_path, const int *cpus, uint32_t n_cpus, rose_err *err);

bool rose_proc_running(rose_proc *p); /* reaps */

/* SIGTERM, after grace_ms SIGKILL; waits. Accepts {0}. */
void rose_proc_stop(rose_proc *p, uint32_t grace_ms);

/* Waits for the end; true for exit code 0. */
bool rose_proc_wait(rose_proc *p);

/* "exit code 1", "signal 9". */
void rose_proc_describe(const rose_proc *p, char *out, size_t cap);

/* Why a program that wrote this log ended, in one line: the last line that says something, and
 * before it the first that names an error ("ValueError: ...") if that is another; interpreters
 * often end with "see above". "" for a log that cannot be read or is empty. */
void rose_proc_log_why(const char *log, char *out, size_t cap);

/* Splits text at spaces ('..' and ".." keep them) into args[*n ..), which point into copy. INVAL:
 * an open quote, too many. */
rose_status rose_args_split(const char *text, rose_buf *copy, char **args, uint32_t *n,
                            rose_err *err);

/* A port that was free a moment ago on 127.0.0.1; 0 on failure. */
uint16_t rose_free_port(void);

const char *rose_self_path(void); /* this program's file */

/* The program roseinfer, which servers are started with: it is in the folder of this program, or
 * two folders up (build/tests/load and build). "roseinfer", to be found in PATH, if there is none.
 */
const char *rose_server_path(void);

#endif
