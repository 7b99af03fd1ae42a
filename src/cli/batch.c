/* cli/batch.c - `roseinfer batch`: runs the requests of a file. It starts the server of `serve`
 * without a port and is its only client, so a line of the file gets what the same request gets over
 * HTTP. Files are checked and opened before the model is loaded. */
#include "batch/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/cli.h"

enum { BAR_WIDTH = 24, DRAW_MS = 100, LINE_MS = 5000, MAX_ROWS = ROSE_SERVE_OPT_ROWS + 8 };

typedef struct batch {
    rose_batch_input *in;
    rose_batch_output *out;
    const rose_engine *engine;
    const sigset_t *stop;
    rose_batch_order order;
    int signal;    /* the first one that came; 0: none */
    bool progress; /* --progress */
    bool tty, failed;
    uint32_t window, done_before;
    uint64_t began_ns, drawn_ns;
} batch;

/* ---- progress ---- */

static void put_duration(char *out, size_t cap, double s)
{
    const uint64_t n = s < 1e9 ? (uint64_t)s : 0;
    if (n >= 3600)
        snprintf(out, cap, "%" PRIu64 "h%02um", n / 3600, (unsigned)(n / 60 % 60));
    else if (n >= 60)
        snprintf(out, cap, "%um%02us", (unsigned)(n / 60), (unsigned)(n % 60));
    else
        snprintf(out, cap, "%us", (unsigned)n);
}

/* "512 tokens/s": of output, or of the prompts where nothing is generated. */
static void put_rate(char *out, size_t cap, const rose_batch_counts *c, double s)
{
    const bool generated = c->output_tokens > 0 || c->prompt_tokens == 0;
    const uint64_t n = generated ? c->output_tokens : c->prompt_tokens;
    snprintf(out, cap, "%.0f %stokens/s", s > 0 ? (double)n / s : 0, generated ? "" : "prompt ");
}

static void draw_bar(const rose_batch_counts *c)
{
    const int filled = (int)((uint64_t)c->done * BAR_WIDTH / c->total);
    fputs("\r[", stderr);
    for (int i = 0; i < BAR_WIDTH; i++)
        fputc(i < filled ? '#' : '.', stderr);
    fputs("] ", stderr);
}

static void show(batch *b, const rose_batch_counts *c)
{
    const uint64_t now = rose_now_ns();
    const uint64_t every = (uint64_t)(b->tty ? DRAW_MS : LINE_MS) * 1000000u;
    char left[32] = "?", rate[48];
    if (!b->progress || now - b->drawn_ns < every) return;
    b->drawn_ns = now;
    const double s = (double)(now - b->began_ns) * 1e-9;
    const uint32_t did = c->done - b->done_before;
    if (did > 0) put_duration(left, sizeof left, s * (c->total - c->done) / did);
    put_rate(rate, sizeof rate, c, s);
    if (b->tty) draw_bar(c);
    fprintf(stderr, "%s%u of %u lines (%u%%), %u failed, %s, %s left%s",
            b->tty ? "" : "batch: ", c->done, c->total,
            (unsigned)((uint64_t)c->done * 100 / c->total), c->failed, rate, left,
            b->tty ? "\033[K" : "\n");
    fflush(stderr);
}

static void clear_bar(const batch *b)
{
    if (b->progress && b->tty) fputs("\r\033[K", stderr);
}

static void say_end(const batch *b, const rose_batch_counts *c, const char *why)
{
    const double s = (double)(rose_now_ns() - b->began_ns) * 1e-9;
    char rate[48];
    put_rate(rate, sizeof rate, c, s);
    fprintf(stderr,
            "roseinfer batch: %s%u of %u lines are in %s, %u of them failed; %" PRIu64
            " prompt and %" PRIu64 " output tokens in %.1f s, %s\n",
            why, c->done, c->total, b->out->name, c->failed, c->prompt_tokens, c->output_tokens, s,
            rate);
    if (c->why[0] != '\0') fprintf(stderr, "roseinfer batch: the first error: %s\n", c->why);
    if (c->done < c->total && b->out->regular)
        fputs("roseinfer batch: the same command with --resume does the rest\n", stderr);
}

/* ---- the run ---- */

/* The first signal lets requests in flight finish; the second one ends the run. */
static void take_signals(batch *b, const rose_batch_counts *c)
{
    const struct timespec none = {0, 0};
    const int sig = sigtimedwait(b->stop, NULL, &none);
    if (sig < 0) return;
    clear_bar(b);
    if (b->signal == 0) {
        b->signal = sig;
        b->order = ROSE_BATCH_FINISH;
        fprintf(stderr,
                "roseinfer batch: stopping when %u requests in flight are done (a second signal "
                "stops at once)\n",
                c->in_flight);
    } else {
        b->order = ROSE_BATCH_STOP;
    }
}

static rose_batch_order ask(void *arg, const rose_batch_counts *c)
{
    batch *b = arg;
    take_signals(b, c);
    if (rose_engine_get_stats(b->engine).failed) {
        b->failed = true;
        b->order = ROSE_BATCH_STOP;
    }
    show(b, c);
    return b->order;
}

/* The engine's places twice: a queue that is never empty, and prompts that are tokenised. */
static uint32_t window_of(const rose_engine *e)
{
    const uint64_t n = 2 * (uint64_t)rose_engine_plan(e)->max_seqs + 8;
    return n < ROSE_BATCH_MAX_WINDOW ? (uint32_t)n : ROSE_BATCH_MAX_WINDOW;
}

static uint32_t window(void *arg)
{
    return ((const batch *)arg)->window;
}

static int run(void *arg, rose_http *http, const rose_engine *e, const sigset_t *stop)
{
    batch *b = arg;
    rose_batch_counts c;
    rose_err err = {{0}};
    const rose_batch_run_opts o = {.http = http,
                                   .n_threads = 1,
                                   .in = b->in,
                                   .out = b->out,
                                   .errors = b->out,
                                   .window = window,
                                   .ask = ask,
                                   .arg = b};
    b->engine = e;
    b->stop = stop;
    b->window = window_of(e);
    b->done_before = b->in->n_done;
    b->tty = isatty(STDERR_FILENO) == 1;
    b->began_ns = b->drawn_ns = rose_now_ns();
    const rose_status st = rose_batch_run(&o, &c, &err);
    clear_bar(b);
    if (st != ROSE_OK) rose_die(&err);
    if (st != ROSE_OK || b->failed || c.done < c.total)
        say_end(b, &c, b->failed ? "the engine failed: " : "stopped: ");
    else
        say_end(b, &c, "");
    if (b->signal != 0 && st == ROSE_OK && c.done < c.total) return 128 + b->signal;
    return st == ROSE_OK && !b->failed ? 0 : 1;
}

/* ---- files ---- */

/* Copies a pipe to a file without a name, because the input is read twice. */
static rose_status spool(int *fd, const char *name, rose_err *err)
{
    const char *dir = getenv("TMPDIR");
    rose_buf path = {0};
    rose_status st = ROSE_OK;
    char bytes[65536];
    ssize_t n = 1;
    if (rose_buf_addf(&path, "%s/roseinfer-batch-XXXXXX",
                      dir != NULL && dir[0] == '/' ? dir : "/tmp") != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", name);
    const int to = mkostemp(path.data, O_CLOEXEC);
    if (to < 0)
        st = rose_fail(err, ROSE_E_IO, "%s: %s (TMPDIR)", path.data, strerror(errno));
    else
        unlink(path.data);
    while (st == ROSE_OK && n != 0) {
        n = read(*fd, bytes, sizeof bytes);
        if (n < 0 && errno != EINTR)
            st = rose_fail(err, ROSE_E_IO, "read %s: %s", name, strerror(errno));
        if (n > 0 && !rose_file_write(to, bytes, (size_t)n))
            st = rose_fail(err, ROSE_E_IO, "the copy of %s in %s: %s (TMPDIR names another folder)",
                           name, path.data, strerror(errno));
    }
    close(*fd);
    *fd = to;
    rose_buf_free(&path);
    return st;
}

static rose_status open_input(batch *b, const char *path, size_t max_line, rose_err *err)
{
    const bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    const rose_batch_limits limits = {.max_lines = UINT32_MAX - 1, .max_line_bytes = max_line};
    rose_batch_problems *problems = calloc(1, sizeof *problems);
    struct stat s;
    rose_status st = ROSE_OK;
    if (problems == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", name);
    int fd = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        st = rose_fail(err, ROSE_E_IO, "open %s: %s", name, strerror(errno));
    else if (fstat(fd, &s) < 0 || !S_ISREG(s.st_mode))
        st = spool(&fd, name, err);
    if (st == ROSE_OK)
        st = rose_batch_input_open(&b->in, fd, name, &limits, problems, err);
    else if (fd >= 0)
        close(fd);
    for (uint32_t i = 1; i < problems->n && i < ROSE_BATCH_MAX_PROBLEMS; i++)
        fprintf(stderr, "%s line %u: %s\n", name, problems->v[i].line, problems->v[i].msg);
    free(problems);
    return st;
}

static void say_resumed(const batch *b)
{
    if (b->out->cut > 0)
        fprintf(stderr,
                "roseinfer batch: cut a torn line of %" PRIu64 " bytes from the end of %s\n",
                b->out->cut, b->out->name);
    if (b->in->n_done > 0)
        fprintf(stderr, "roseinfer batch: %u of %u lines are done\n", b->in->n_done, b->in->n);
}

/* ---- options ---- */

/* The options of `serve` that change what a request gets, or how fast. */
static const char *const of_serve[] = {"served-model-name",
                                       "chat-template",
                                       "chat-template-kwargs",
                                       "trust-request-chat-template",
                                       "tool-call-parser",
                                       "reasoning-parser",
                                       "generation-config",
                                       "override-generation-config",
                                       "pooling-type",
                                       "task",
                                       "log-level",
                                       "pull",
                                       "strict-fields",
                                       "max-n",
                                       "max-body-size",
                                       "template-timeout-ms",
                                       "grammar-cache-bytes",
                                       "tokenize-workers"};

static size_t pick_rows(rose_serve_flags *f, rose_opt *rows)
{
    static rose_opt all[ROSE_SERVE_OPT_ROWS];
    const rose_command serve = {.opts = all, .n_opts = rose_serve_opts_rows(f, all)};
    size_t n = 0;
    rows[n++] = (rose_opt)ROSE_ROW_BRIEF_HEADING("Requests");
    for (size_t k = 0; k < sizeof of_serve / sizeof *of_serve; k++) {
        const rose_opt *o = rose_opts_find(&serve, of_serve[k], strlen(of_serve[k]));
        if (o != NULL) rows[n++] = *o;
    }
    return n + rose_engine_flags_rows(&f->engine, rows + n);
}

static int parse(rose_serve_flags *f, batch *b, rose_batch_how *how, int argc, char **argv,
                 const char *args[3])
{
    static rose_opt rows[MAX_ROWS];
    bool resume = false, overwrite = false;
    uint32_t n_args;
    rose_serve_opts_default(f);
    f->log_level = "warn";
    f->http.no_port = true;
    f->http.max_connections = 2 * ROSE_BATCH_MAX_WINDOW; /* each of ours has two descriptors */
    b->progress = true;
    const rose_opt own[] = {
        ROSE_ROW_HEADING("Batch"),
        ROSE_ROW_FLAG("resume", &resume,
                      "keep the results that OUT has, and run only the other requests"),
        ROSE_ROW_FLAG("overwrite", &overwrite, "replace OUT, if it exists"),
        ROSE_ROW_BOOL("progress", &b->progress,
                      "show lines done, tokens a second and the time that is left"),
    };
    memcpy(rows, own, sizeof own);
    size_t n = sizeof own / sizeof *own;
    n += pick_rows(f, rows + n);
    const rose_command c = {
        .usage = "roseinfer batch MODEL IN.jsonl OUT.jsonl [options]",
        .about =
            "Runs the requests of a file and appends each result to another, in OpenAI's batch\n"
            "format. A line of IN is {\"custom_id\": \"a\", \"method\": \"POST\",\n"
            "\"url\": \"/v1/chat/completions\", \"body\": {...}}. Other urls are /v1/completions,\n"
            "/v1/responses, /v1/embeddings, /v1/messages, /v1/rerank and /v1/score. - stands for\n"
            "standard input and output. Results come in any order; custom_id names them.\n"
            "A request that fails has its error in OUT. Lines without a custom_id, or with one\n"
            "that another line has, are refused before anything runs.\n"
            "Ctrl-C lets requests in flight finish; a second one ends at once. --resume does the\n"
            "rest, also after a kill. The exit code is 0 if every line has its result.",
        .opts = rows,
        .n_opts = n,
        .min_args = 3,
        .max_args = 3,
    };
    const int rc = rose_opts_parse(&c, argc, argv, args, &n_args);
    if (rc >= 0) return rc;
    *how = resume ? ROSE_BATCH_RESUME : overwrite ? ROSE_BATCH_OVERWRITE : ROSE_BATCH_NEW;
    if (!resume || !overwrite) return -1;
    fputs("roseinfer batch: --resume keeps results and --overwrite drops them; give one of them\n",
          stderr);
    return 2;
}

int rose_cmd_batch(int argc, char **argv)
{
    static rose_serve_flags f;
    batch b = {0};
    const rose_cli_work work = {run, &b};
    rose_batch_how how = ROSE_BATCH_NEW;
    rose_err err = {{0}};
    const char *args[3] = {0};
    int rc = parse(&f, &b, &how, argc, argv, args);
    if (rc >= 0) return rc;
    /* A line has at most the longest body and what stands around it. */
    rose_status st = open_input(&b, args[1], f.http.max_body_bytes + (1u << 20), &err);
    if (st == ROSE_OK) st = rose_batch_output_open(&b.out, args[2], how, 0666, b.in, &err);
    if (st == ROSE_OK) {
        say_resumed(&b);
        rose_progress_allow_waits(b.progress);
        rc = b.in->n_done < b.in->n ? rose_cli_serve(args[0], &f, &work) : 0;
    } else {
        rc = rose_die(&err);
    }
    rose_batch_output_close(b.out);
    rose_batch_input_close(b.in);
    return rc;
}
