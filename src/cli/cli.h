/* cli/cli.h - the commands of the program, one main function each. argv[0] is the command's
 * name. The result is the exit code: 0, 1 for a failure (one line on stderr), 2 for a usage
 * error. */
#ifndef ROSE_CLI_CLI_H
#define ROSE_CLI_CLI_H

#include <signal.h>

#include "api/serve_opts.h"
#include "base/buf.h"
#include "engine/flags.h"
#include "roseinfer.h"

int rose_cmd_serve(int argc, char **argv);
int rose_cmd_batch(int argc, char **argv);
int rose_cmd_chat(int argc, char **argv);
int rose_cmd_generate(int argc, char **argv);
int rose_cmd_tokenize(int argc, char **argv);
int rose_cmd_detokenize(int argc, char **argv);
int rose_cmd_inspect(int argc, char **argv);
int rose_cmd_random_model(int argc, char **argv);
int rose_cmd_tune(int argc, char **argv);
int rose_cmd_pull(int argc, char **argv);
int rose_cmd_health(int argc, char **argv);

/* What a server does instead of serving until a signal comes. run is called on the main thread when
 * the model is loaded; the signals of `stop` are blocked. It returns the exit code. */
typedef struct rose_cli_work {
    int (*run)(void *arg, rose_http *http, const rose_engine *e, const sigset_t *stop);
    void *arg;
} rose_cli_work;

/* serve.c: finds the model, loads it and serves it until a signal comes, or does the work. work may
 * be NULL; with work, progress goes to standard error instead of the log. Returns the exit code. */
int rose_cli_serve(const char *model, rose_serve_flags *f, const rose_cli_work *work);

/* If *model is no path on this machine but a name of the hub (ORG/NAME or ORG/NAME:QUANT), *model
 * becomes the path in the hub's cache, which path holds. pull: fetch what is not there, unless
 * HF_HUB_OFFLINE is set. log: progress goes to the log. False: err says why. Main thread, before
 * other threads start. */
bool rose_cli_find_model(const char **model, rose_buf *path, bool pull, bool log, rose_err *err);

/* The row of --no-pull. pull: a bool *. */
#define ROSE_CLI_PULL_ROW(pull)                                                                    \
    ROSE_ROW_BOOL("pull", pull, "fetch a model of the hub, ORG/NAME, that is not in the cache")

/* Unless --tune-dir set it: the directory of the tuned GEMM kernels becomes
 * $XDG_CACHE_HOME/roseinfer or ~/.cache/roseinfer. Main thread. */
void rose_cli_tune_dir(rose_backend_opts *o);

/* Appends the text `given` and a NUL, which does not count. given NULL: all of standard input, up
 * to 1 GiB. If that is a terminal, a line on stderr says how to end the input, and the last newline
 * is left out. */
rose_status rose_cli_text(rose_buf *out, const char *given, rose_err *err);

/* ---- the options that `generate` and `chat` share ---- */

/* One sequence: no memory for more. */
#define ROSE_CLI_LIB_OPTIONS                                                                       \
    .size = sizeof(rose_lib_options), .max_num_seqs = 1, .device = "auto", .load_format = "auto",  \
    .dtype = "auto", .isa = "auto"

/* p: a rose_lib_params *. seed_: what --help prints as default of the seed; NULL: its value. */
#define ROSE_CLI_SAMPLING_ROWS(p, seed_)                                                           \
    ROSE_ROW_FLOAT("temperature", &(p)->temperature, "T", 0, 100,                                  \
                   "how freely to sample; 0 takes the most probable token each time"),             \
        ROSE_ROW_U32("top-k", &(p)->top_k, "K", 0, 0,                                              \
                     "sample among the K most probable; 0 is off"),                                \
        ROSE_ROW_FLOAT("top-p", &(p)->top_p, "P", 1e-6f, 1,                                        \
                       "sample among the fewest tokens of total probability P"),                   \
        ROSE_ROW_FLOAT("min-p", &(p)->min_p, "P", 0, 1,                                            \
                       "drop tokens below P times the highest probability"),                       \
        ROSE_ROW_FLOAT("repetition-penalty", &(p)->repetition_penalty, "R", 0.01f, 100,            \
                       "divide the scores of tokens that occurred by R; 1 is off"),                \
        ROSE_ROW_U64("seed", &(p)->seed, "N", 0, 0,                                                \
                     "seed of the sampling; the same seed and options give the same text",         \
                     .says = (seed_))

/* lib: a rose_lib_options *; pin: a bool *. */
#define ROSE_CLI_ENGINE_ROWS(lib, pin)                                                             \
    rose_engine_flags_row("device", ROSE_OPT_CHOICE, &(lib)->device),                              \
        rose_engine_flags_row("load-format", ROSE_OPT_CHOICE, &(lib)->load_format),                \
        rose_engine_flags_row("dtype", ROSE_OPT_CHOICE, &(lib)->dtype),                            \
        rose_engine_flags_row("quantization", ROSE_OPT_CHOICE, &(lib)->quantization),              \
        rose_engine_flags_row("isa", ROSE_OPT_CHOICE, &(lib)->isa),                                \
        rose_engine_flags_row("threads", ROSE_OPT_U32, &(lib)->threads),                           \
        rose_engine_flags_row("max-model-len", ROSE_OPT_U32, &(lib)->max_model_len),               \
        rose_engine_flags_row("cpu-affinity", ROSE_OPT_BOOL, pin)

/* ---- lines.c: messages that a person types or a pipe brings; main thread ---- */

typedef struct rose_lines rose_lines;

typedef enum rose_line {
    ROSE_LINE_TEXT,
    ROSE_LINE_BLOCK,   /* a text between two """: never a command */
    ROSE_LINE_CLEARED, /* Ctrl-C: the person gave the line up */
    ROSE_LINE_END      /* Ctrl-D, or the end of the pipe */
} rose_line;

/* terminal: standard input and output are terminals. Errors: NOMEM, IO. */
rose_status rose_lines_open(rose_lines **out, bool terminal, rose_err *err);
void rose_lines_close(rose_lines *l); /* accepts NULL */

/* Reads one message into out, which is emptied first: a line, without its newline, or all that
 * stands between a line that begins with """ and a line that ends with """. Errors: NOMEM, IO,
 * FORMAT (the closing """ is missing). */
rose_status rose_lines_next(rose_lines *l, rose_line *kind, rose_buf *out, rose_err *err);

/* ---- screen.c: text of the model on the terminal that is standard output. Control characters
 * would be commands to it: '?' is printed for each. Lines are broken between words. One thread. */

typedef struct rose_screen {
    uint32_t width;          /* columns that are used; 0 = unknown, so the terminal breaks lines */
    uint32_t col, word_cols; /* columns printed of the line, and of its last word */
    rose_buf word;           /* owned: the bytes of this word */
} rose_screen;

/* Text begins at the left edge. Asks the terminal for its width. s: zero before the first call. */
void rose_screen_begin(rose_screen *s);
void rose_screen_put(rose_screen *s, const char *text, size_t n);
void rose_screen_free(rose_screen *s); /* accepts {0} */

/* ---- systemd.c: what a service manager passes in the environment. Main thread ---- */

/* Sets *out to the listening socket that LISTEN_FDS passes, or to 0 without one, and unsets the
 * variables. Errors: INVAL, UNSUPPORTED (several sockets). */
rose_status rose_systemd_socket(int *out, rose_err *err);

typedef struct rose_notify rose_notify;

/* Opens the socket that NOTIFY_SOCKET names; *out is NULL without one. The functions below accept
 * NULL. Errors: UNSUPPORTED (an address of another kind), INVAL, IO, NOMEM. */
rose_status rose_notify_open(rose_notify **out, rose_err *err);
void rose_notify_close(rose_notify *n);

/* Reports `state` ("READY=1", or "") and a status line for people. A report that cannot be sent is
 * lost; the log says so once. */
void rose_notify_send(rose_notify *n, const char *state, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* With WATCHDOG_USEC: starts a thread that calls alive(arg) four times in this time and sends a
 * sign of life if that is true. Errors: IO. */
rose_status rose_notify_watch(rose_notify *n, bool (*alive)(void *arg), void *arg, rose_err *err);
void rose_notify_unwatch(rose_notify *n);

#endif
