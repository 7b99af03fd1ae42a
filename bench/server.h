/* bench/server.h - a server under test: either started by us, or found at a URL. Main thread. */
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

/* Options that say how servers are started. A driver is a kind of server that we can start. */
typedef struct rose_server_flags {
    const char *command[ROSE_N_DRIVERS]; /* the program with its fixed arguments, for each driver */
    const char *args[ROSE_N_DRIVERS];    /* further arguments for each driver, or NULL */
    const char *llama_model;             /* a GGUF file, for llama.cpp */
    const char *server_cpus;
    /* options of our server's engine; the options that differ from their defaults are passed to
     * the server */
    rose_engine_flags engine;
    uint32_t ready_timeout_s;
    const volatile sig_atomic_t *stop; /* true ends the wait for a server; may be NULL */
} rose_server_flags;

void rose_server_flags_init(rose_server_flags *f);
/* Writes the option rows, at most ROSE_SERVER_ROWS. ours: only those of our own server, for
 * programs that start no other kind of server. */
size_t rose_server_flags_rows(rose_server_flags *f, bool ours, rose_opt *rows);

/* Appends to *out every option of f that differs from its default, so that a program started
 * with this text opens the same engine. *out is a string afterwards. Errors: NOMEM. */
rose_status rose_engine_args(const rose_engine_flags *f, rose_buf *out, rose_err *err);

/* One entry of --backends: "roseinfer", "vllm", "sglang", "trtllm", "llama", "llama-python" or
 * "transformers", or "url=NAME=http://...". "vllm=NAME" gives it another label. */
typedef struct rose_server_spec {
    char label[ROSE_LABEL_BYTES];
    int driver; /* index of the driver, or -1 for a URL */
    rose_url url;
} rose_server_spec;

/* Copies name[0 .. len) as the label of `part`. Errors: INVAL if a file could not have that
 * name. */
rose_status rose_server_label(char out[ROSE_LABEL_BYTES], const char *part, const char *name,
                              size_t len, rose_err *err);

/* Splits "a,b,url=x=http://h:1" into specs[0 .. *n). Errors: INVAL names the part that is wrong, or
 * a label that is there twice. */
rose_status rose_server_list_parse(const char *text, rose_server_spec *specs, uint32_t *n,
                                   rose_err *err);

typedef struct rose_server {
    rose_proc proc;
    rose_url url;
    rose_buf command;  /* the command line as text; "" for a URL */
    char log[4096];    /* path of its log, "" = none */
    bool own_log;      /* the log is a temporary file, removed when the server is stopped */
    char model[256];   /* the id that /v1/models gives */
    char version[128]; /* what /version gives, or "" */
    char dtype[32];    /* the dtype that /v1/models gives (our server does), or "" */
    uint64_t start_ns; /* just before exec */
    double ready_s;    /* seconds from exec until the server first answered with status 200; 0
                        * for a server at a URL */
} rose_server;

/* Starts or finds a server and waits until it is ready. extra (may be NULL) is added after the
 * arguments of f. The server's log is log_dir/LABEL.server.log; log_dir NULL uses a temporary file.
 * On failure nothing runs, and err names the cause with the log's last line. Call rose_server_stop
 * in either case. */
rose_status rose_server_start(rose_server *s, const rose_server_spec *spec,
                              const rose_server_flags *f, const char *model_dir, const char *extra,
                              const char *log_dir, rose_err *err);

/* Returns true if a server that we started has ended, and writes "exit code 1: LAST LINE OF THE
 * LOG". */
bool rose_server_dead(rose_server *s, char *out, size_t cap);

void rose_server_stop(rose_server *s); /* accepts {0}; leaves {0} */

#endif
