/* bench/proc.h - starts and ends child processes: servers under test, gnuplot, other benchmarks.
 * Main thread. A child gets SIGTERM if this program dies, so no server outlives its benchmark. */
#ifndef ROSE_BENCH_PROC_H
#define ROSE_BENCH_PROC_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

enum { ROSE_PROC_MAX_ARGS = 128 };

typedef struct rose_proc {
    pid_t pid; /* 0 = there is no process */
    bool ended;
    int status; /* exit status as waitpid gives it, once the process has ended */
} rose_proc;

/* Starts a program; argv[0] is looked up in PATH. stdout is appended to out_path and stderr to
 * err_path; the two may be the same file, and NULL means ours. The child may use only
 * cpus[0..n_cpus); n_cpus 0 means the CPUs that we may use. Errors: IO, also if the program does
 * not exist. */
rose_status rose_proc_start(rose_proc *p, char *const *argv, const char *out_path,
                            const char *err_path, const int *cpus, uint32_t n_cpus, rose_err *err);

bool rose_proc_running(rose_proc *p); /* collects the exit status of a process that has ended */

/* Sends SIGTERM to the process, and SIGKILL if it still lives after grace_ms; waits until it
 * ends. Accepts {0}. */
void rose_proc_stop(rose_proc *p, uint32_t grace_ms);

/* Waits until the process ends. Returns true for exit code 0. */
bool rose_proc_wait(rose_proc *p);

/* Writes "exit code 1" or "signal 9". */
void rose_proc_describe(const rose_proc *p, char *out, size_t cap);

/* Writes in one line why a program that wrote this log ended: the last line of the log that is not
 * empty, and before it the first line that names an error ("ValueError: ...") if that is another
 * one. (The last line of a Python program is often just "see above".) Writes "" for a log that is
 * empty or cannot be read. */
void rose_proc_log_why(const char *log, char *out, size_t cap);

/* Splits text at spaces outside '..' and ".." and appends the words to args[*n ..); they point into
 * copy. Errors: INVAL (a quote that is not closed, or too many words). */
rose_status rose_args_split(const char *text, rose_buf *copy, char **args, uint32_t *n,
                            rose_err *err);

/* Returns a port on 127.0.0.1 that was free a moment ago; 0 on failure. */
uint16_t rose_free_port(void);

const char *rose_self_path(void); /* the path of this program */

/* The program roseinfer, which servers are started with. It is looked for in the folder of this
 * program and two folders up (build/tests/load and build). If it is in neither, the result is
 * "roseinfer", which is then looked up in PATH. */
const char *rose_server_path(void);

/* Installs the handlers of SIGINT (Ctrl-C) and SIGTERM. The value that the result points to becomes
 * true with the first signal, which ends the current run and keeps what was measured. The second
 * signal ends this program at once. */
const volatile sig_atomic_t *rose_stop_on_signals(void);

#endif
