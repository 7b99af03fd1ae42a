/* api/serve_opts.h - the options of `roseinfer serve`: those of the HTTP server, of the API and
 * of the engine, and the program's own. Main thread. */
#ifndef ROSE_API_SERVE_OPTS_H
#define ROSE_API_SERVE_OPTS_H

#include "api/api.h"
#include "base/cpuinfo.h"
#include "base/opts.h"
#include "batch/store.h"
#include "engine/flags.h"
#include "http/http.h"

/* The values of the options. The option rows of serve_opts.c point into http, api and
 * engine.opts for the options of these modules. The other members belong to the server itself. */
typedef struct rose_serve_flags {
    rose_http_opts http;
    rose_api_opts api;
    rose_engine_flags engine;
    rose_opt_list served_names; /* none: the folder's name */
    rose_opt_list api_keys;     /* see api/doors.h */
    const char *api_key_file, *access_log;
    rose_batch_store_opts batch;
    const char *kv_events; /* JSON, see api/kv_events.h */
    const char *uds_mode;  /* octal */
    const char *log_level, *io_cpus;
    const char *chat_template; /* see rose_chat_open */
    bool trust_request_template;
    const char *generation_config;   /* auto, none, vllm or a path */
    const char *generation_override; /* JSON, see rose_generation_choose */
    const char *pooling_type, *task; /* see rose_pooling_read */
    const char *seed;                /* a number; NULL: none */
    uint32_t shutdown_timeout, stall_warn_ms, io_slice_us;
    bool nvtx, pull;
    const char *config;             /* --config */
    rose_opts_sources sources;      /* owned: what the texts of options are borrowed from */
    int io_cpu_list[ROSE_MAX_CPUS]; /* filled by rose_serve_opts_read */
} rose_serve_flags;

enum { ROSE_SERVE_OPT_ROWS = 99 + ROSE_ENGINE_FLAG_ROWS };

/* Set every option to its default. */
void rose_serve_opts_default(rose_serve_flags *f);

/* Writes the option rows, which point into f, to rows[0 .. ROSE_SERVE_OPT_ROWS); returns how
 * many. */
size_t rose_serve_opts_rows(rose_serve_flags *f, rose_opt *rows);

/* Sets the defaults and reads the options from the command line, from env (NAME=VALUE each, ended
 * by NULL; NULL: none) and from the file of --config. *model is borrowed from argv, env or f.
 * Returns -1 to continue, else the exit code. */
int rose_serve_opts_parse(rose_serve_flags *f, int argc, char **argv, char *const *env,
                          const char **model);

/* Call after parsing: sets the options of http and api that follow from others. Errors: INVAL (a
 * CPU list). */
rose_status rose_serve_opts_read(rose_serve_flags *f, rose_err *err);

/* serve_foreign.c: what the options of vLLM, llama-server and SGLang mean here. docs/FLAGS.md has
 * the same table, which --help-foreign prints. */
extern const rose_foreign_set rose_serve_foreign;

/* Checks those that depend on the model. Returns -1, or the exit code after a message. */
int rose_serve_foreign_check(const rose_foreign_taken *t, const char *model);

#endif
