/* cli/generate.c - `roseinfer generate`: one prompt through the C library, streamed to stdout. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/opts.h"
#include "cli/cli.h"
#include "roseinfer.h"

typedef struct generate_opts {
    const char *prompt;
    bool ignore_eos, stats;
    rose_lib_params p;
    rose_lib_options lib;
    bool pin;
    const char *device, *dtype, *isa;
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

/* Streams the request to stdout. A closed stdout (a pipe to head) ends the run without complaint.
 */
static int stream(rose_lib_request *r, uint64_t start, bool stats)
{
    rose_lib_piece piece;
    uint32_t n = 0;
    uint64_t first = 0, last = 0;
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

    if (g->prompt != NULL) {
        if (rose_buf_add(&text, g->prompt, strlen(g->prompt)) != ROSE_OK)
            return die("out of memory");
    } else if (rose_read_stdin(&text, &e) != ROSE_OK) {
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
    rc = stream(r, start, g->stats);
done:
    rose_lib_release(r);
    rose_lib_close(rose);
    rose_buf_free(&text);
    return rc;
}

/* Mostly the table of options. */
int rose_cmd_generate(int argc, char **argv)
{
    generate_opts g = {.stats = isatty(STDERR_FILENO) == 1,
                       .pin = true,
                       .device = "auto",
                       .dtype = "auto",
                       .isa = "auto"};
    rose_lib_params_default(&g.p);
    g.lib.max_num_seqs = 1; /* one sequence: no memory for more */
    const rose_opt opts[] = {
        {.name = "prompt",
         .letter = 'p',
         .kind = ROSE_OPT_STRING,
         .dest = &g.prompt,
         .arg = "TEXT",
         .unset = "standard input",
         .help = "the text to continue"},
        {.name = "max-tokens",
         .letter = 'n',
         .kind = ROSE_OPT_U32,
         .dest = &g.p.max_tokens,
         .arg = "N",
         .min = 1,
         .help = "most new tokens"},
        {.name = "temperature",
         .kind = ROSE_OPT_FLOAT,
         .dest = &g.p.temperature,
         .arg = "T",
         .fmin = 0,
         .fmax = 100,
         .help = "0 takes the most probable token each time"},
        {.name = "top-k",
         .kind = ROSE_OPT_U32,
         .dest = &g.p.top_k,
         .arg = "K",
         .help = "sample among the K most probable; 0 is off"},
        {.name = "top-p",
         .kind = ROSE_OPT_FLOAT,
         .dest = &g.p.top_p,
         .arg = "P",
         .fmin = 1e-6f,
         .fmax = 1,
         .help = "sample among the fewest tokens of total probability P"},
        {.name = "min-p",
         .kind = ROSE_OPT_FLOAT,
         .dest = &g.p.min_p,
         .arg = "P",
         .fmin = 0,
         .fmax = 1,
         .help = "drop tokens below P times the highest probability"},
        {.name = "seed",
         .kind = ROSE_OPT_U64,
         .dest = &g.p.seed,
         .arg = "N",
         .help = "same seed, same text"},
        {.name = "ignore-eos",
         .kind = ROSE_OPT_FLAG,
         .dest = &g.ignore_eos,
         .help = "go on past the end-of-sequence token"},
        {.name = "device",
         .kind = ROSE_OPT_CHOICE,
         .dest = &g.device,
         .choices = "auto|cpu|cuda",
         .help = "where the model runs; auto is cuda where there is a usable GPU, else cpu"},
        {.name = "dtype",
         .kind = ROSE_OPT_CHOICE,
         .dest = &g.dtype,
         .choices = "auto|float32|bfloat16|float16",
         .help = "arithmetic; auto is float16 on cuda; on cpu bfloat16 for BF16 files, else "
                 "float32"},
        {.name = "quantization",
         .kind = ROSE_OPT_CHOICE,
         .dest = &g.lib.quantization,
         .choices = "none|int8",
         .help = "int8: weights as integers with a scale for each output (cpu)"},
        {.name = "isa",
         .kind = ROSE_OPT_CHOICE,
         .dest = &g.isa,
         .choices = "auto|scalar|avx2|avx512|avx512-bf16|amx|neon",
         .help = "highest instruction-set level of the CPU kernels; auto leaves out avx512-bf16, "
                 "whose sums have other bits"},
        {.name = "threads",
         .kind = ROSE_OPT_U32,
         .dest = &g.lib.threads,
         .arg = "N",
         .unset = "one per CPU",
         .help = "compute threads"},
        {.name = "cpu-affinity",
         .kind = ROSE_OPT_BOOL,
         .dest = &g.pin,
         .help = "pin each compute thread to a CPU"},
        {.name = "stats",
         .kind = ROSE_OPT_BOOL,
         .dest = &g.stats,
         .help = "print times to stderr at the end"},
    };
    const rose_command cmd = {
        .usage = "roseinfer generate MODEL [-p TEXT] [options]",
        .about = "Continues a prompt and streams the text to standard output.",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
        .min_args = 1,
        .max_args = 1,
    };
    const char *args[1];
    uint32_t n_args;
    int rc = rose_opts_parse(&cmd, argc, argv, args, &n_args);
    if (rc >= 0) return rc;
    g.p.ignore_eos = g.ignore_eos;
    g.lib.no_pinning = !g.pin;
    g.lib.device = g.device;
    g.lib.dtype = g.dtype;
    g.lib.isa = g.isa;
    return run(args[0], &g);
}
