/* cli/generate.c - `roseinfer generate`: one prompt through the C library, streamed to stdout. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/opts.h"
#include "cli/cli.h"
#include "model/generation.h"
#include "roseinfer.h"

typedef struct generate_opts {
    const char *prompt;
    bool ignore_eos, stats, echo;
    rose_lib_params p;
    rose_lib_options lib;
    bool pin, pull;
} generate_opts;

static int die(const char *msg)
{
    fprintf(stderr, "roseinfer: %s\n", msg);
    return 1;
}

static void print_stats(uint32_t n, uint64_t start, uint64_t first, uint64_t last)
{
    double ttft = (double)(first - start) * 1e-6;
    double tpot = n > 1 ? (double)(last - first) * 1e-6 / (n - 1) : 0;
    fprintf(stderr, "[%u tokens, TTFT %.2f ms, TPOT %.3f ms, %.1f tok/s]\n", n, ttft, tpot,
            tpot > 0 ? 1000.0 / tpot : 0);
}

/* Streams the request to stdout. If stdout is closed (as by `head`), the run ends without an
 * error. prompt: printed before the text; may be empty. */
static int stream(rose_lib_request *r, uint64_t start, const rose_buf *prompt, bool stats)
{
    rose_lib_piece piece;
    uint32_t n = 0;
    uint64_t first = 0, last = 0;
    rose_lib_piece_init(&piece);
    if (prompt->len > 0) fwrite(prompt->data, 1, prompt->len, stdout);
    if (fflush(stdout) != 0) return 1;
    while (rose_lib_next(r, &piece, -1) == 1) {
        if (piece.has_token) {
            if (n++ == 0) first = piece.t_ns;
            last = piece.t_ns;
        }
        if (piece.text_len == 0) continue;
        fwrite(piece.text, 1, piece.text_len, stdout);
        if (fflush(stdout) != 0) return 1;
    }
    if (isatty(STDOUT_FILENO) == 1) putchar('\n');
    if (stats) print_stats(n, start, first, last);
    return piece.finish == ROSE_LIB_FAILED
               ? die("the request failed: the model gives no finite logits, or the "
                     "engine failed (then its log line says why)")
               : 0;
}

static int run(const char *model, const generate_opts *g)
{
    char err[ROSE_LIB_ERR] = "";
    rose_buf text = {0};
    rose_err e = {{0}};
    rose_lib *rose = NULL;
    rose_lib_request *r = NULL;
    int rc = 1;

    if (rose_cli_text(&text, g->prompt, &e) != ROSE_OK) {
        rc = rose_die(&e);
        goto done;
    }
    if (rose_lib_open(&rose, model, &g->lib, err) != 0) {
        rc = die(err);
        goto done;
    }
    uint64_t start = rose_now_ns();
    if (rose_lib_submit_text(rose, text.data, text.len, &g->p, &r, err) != 0) {
        rc = die(err);
        goto done;
    }
    if (!g->echo) text.len = 0;
    rc = stream(r, start, &text, g->stats);
done:
    rose_lib_release(r);
    rose_lib_close(rose);
    rose_buf_free(&text);
    return rc;
}

int rose_cmd_generate(int argc, char **argv)
{
    /* A text goes through no chat template and takes no sampling defaults, so a fault in the
     * model's own must not stop it. An empty template still reads the model's eos_token. */
    generate_opts g = {
        .stats = isatty(STDERR_FILENO) == 1,
        .echo = true,
        .pull = true,
        .lib = {ROSE_CLI_LIB_OPTIONS, .chat_template = "{{ '' }}", .generation_config = "none"}};
    rose_lib_params_default(&g.p);
    g.p.temperature = ROSE_GENERATION_GGUF_TEMPERATURE;
    g.p.top_p = ROSE_GENERATION_GGUF_TOP_P;
    g.p.top_k = ROSE_GENERATION_GGUF_TOP_K;
    const rose_opt opts[] = {
        ROSE_ROW_STRING("prompt", &g.prompt, "TEXT", "the text to continue", .letter = 'p',
                        .unset = "standard input"),
        ROSE_ROW_U32("max-tokens", &g.p.max_tokens, "N", 1, 0, "most new tokens", .letter = 'n'),
        ROSE_CLI_SAMPLING_ROWS(&g.p, NULL),
        ROSE_ROW_BOOL("echo", &g.echo, "print the prompt before the text"),
        ROSE_ROW_FLAG("ignore-eos", &g.ignore_eos, "continue after the end-of-sequence token"),
        ROSE_CLI_PULL_ROW(&g.pull),
        ROSE_CLI_ENGINE_ROWS(&g.lib, &g.pin),
        ROSE_ROW_BOOL("stats", &g.stats, "print times to stderr at the end",
                      .says = "on if standard error is a terminal"),
    };
    const char *model;
    const int rc = rose_opts_parse_one(
        "roseinfer generate MODEL [-p TEXT] [options]",
        "Prints a prompt and streams its continuation to standard output. Without -p the prompt\n"
        "is standard input; on a terminal Ctrl-D ends it.",
        opts, sizeof opts / sizeof *opts, argc, argv, &model);
    if (rc >= 0) return rc;
    g.p.ignore_eos = g.ignore_eos;
    g.lib.pin_threads = g.pin;
    rose_buf path = {0};
    rose_err err = {{0}};
    const int failed =
        rose_cli_find_model(&model, &path, g.pull, false, &err) ? run(model, &g) : rose_die(&err);
    rose_buf_free(&path);
    return failed;
}
