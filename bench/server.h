/* bench/server.h - a server under test: started by us by a driver's name, or found at a URL. Main
 * thread. */
#ifndef ROSE_BENCH_SERVER_H
#define ROSE_BENCH_SERVER_H

#include "base/opts.h"
#include "bench/load.h"
#include "bench/proc.h"
#include "engine/flags.h"

enum {
    ROSE_N_DRIVERS = 7,
    ROSE_SERVER_ROWS = 2 * ROSE_N_DRIVERS + 6 + ROSE_ENGINE_FLAG_ROWS,
    ROSE_MAX_BACKENDS = 16,
    ROSE_LABEL_BYTES = 64
};

/* Options that say how servers are started. */
typedef struct rose_server_flags {
    const char *command[ROSE_N_DRIVERS]; /* the program with its fixed arguments */
    const char *args[ROSE_N_DRIVERS];    /* further arguments, or NULL */
    const char *llama_model;             /* a GGUF file */
    const char *server_cpus;
    rose_engine_flags engine; /* of our server; what differs from the default goes to its command */
    uint32_t ready_timeout_s;
    const volatile sig_atomic_t *stop; /* true ends the wait for a server; may be NULL */
} rose_server_flags;

void rose_server_flags_init(rose_server_flags *f);
size_t rose_server_flags_rows(rose_server_flags *f, rose_opt *rows); /* <= ROSE_SERVER_ROWS */
/* Of our server alone, for what measures no other: command, arguments, CPUs, time to start, engine.
 */
size_t rose_server_flags_own_rows(rose_server_flags *f, rose_opt *rows); /* <= ROSE_SERVER_ROWS */

/* One of --backends: "roseinfer", "vllm", "sglang", "trtllm", "llama", "llama-python",
 * "transformers", each with "=NAME" for another label than its own, or "url=NAME=http://...". */
typedef struct rose_server_spec {
    char label[ROSE_LABEL_BYTES];
    int driver; /* index, or -1 for a URL */
    rose_url url;
} rose_server_spec;

/* name[0 .. len) as the label of `part`; INVAL if it is none (labels become file names). */
rose_status rose_server_label(char out[ROSE_LABEL_BYTES], const char *part, const char *name,
                              size_t len, rose_err *err);

/* Splits "a,b,url=x=http://h:1" into specs[0 .. *n). INVAL names the part; a label that is
 * there twice is INVAL too. */
rose_status rose_server_list_parse(const char *text, rose_server_spec *specs, uint32_t *n,
                                   rose_err *err);

typedef struct rose_server {
    rose_proc proc;
    rose_url url;
    rose_buf command;  /* the command line as text; "" for a URL */
    char log[4096];    /* path, "" = none */
    bool own_log;      /* a temporary file: goes when it is stopped */
    char model[256];   /* the id that /v1/models gives */
    char version[128]; /* what /version gives, or "" */
    char dtype[32];    /* what /v1/models says of it (ours does), or "" */
    uint64_t start_ns; /* just before exec */
    double ready_s;    /* from exec to the first 200; 0 for a URL that was there */
} rose_server;

/* Starts (or finds) a server and waits until it is ready. extra: further arguments for this start
 * (may be NULL), after those of the flags. log_dir: where LABEL.server.log is written; NULL: a
 * temporary file, for the cause of a failure. On failure nothing runs; err names the cause, with
 * the log's last line. Release with rose_server_stop in either case. */
rose_status rose_server_start(rose_server *s, const rose_server_spec *spec,
                              const rose_server_flags *f, const char *model_dir, const char *extra,
                              const char *log_dir, rose_err *err);

/* "exit code 1: LAST LINE OF THE LOG" of a started server that has ended; false while it runs. */
bool rose_server_dead(rose_server *s, char *out, size_t cap);

void rose_server_stop(rose_server *s); /* accepts {0}; leaves {0} */

#endif
