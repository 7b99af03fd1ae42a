/* cli/main.c - the program: finds the command, and what the commands share. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/version.h"
#include "bench/bench.h"
#include "cli/cli.h"

enum { USAGE_ERROR = 2 };

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} command;

static const command commands[] = {
    {"serve", rose_cmd_serve, "serve a model over an OpenAI-compatible HTTP API"},
    {"generate", rose_cmd_generate, "continue a prompt, streaming to standard output"},
    {"tokenize", rose_cmd_tokenize, "text to token ids"},
    {"detokenize", rose_cmd_detokenize, "token ids to text"},
    {"inspect", rose_cmd_inspect, "architecture, tensors and memory plan, without loading"},
    {"random-model", rose_cmd_random_model, "write a model with seeded random weights"},
};

static const command benches[] = {
    {"offline", rose_bench_offline, "token throughput of the engine, the server, and rivals"},
    {"latency", rose_bench_latency, "time of one batch of fixed lengths in the engine"},
    {"online", rose_bench_online, "latency under load: a trace against one server or several"},
    {"stream", rose_bench_stream, "where the time to the first token goes, by the server's clock"},
    {"ablate", rose_bench_ablate, "what each switch is worth: pairs of runs, on and off"},
    {"start", rose_bench_start, "from exec to ready to the first token"},
    {"http", rose_cmd_bench_http, "streams of a whole server on an instant fake backend"},
    {"plot", rose_bench_plot, "pictures of results, by gnuplot"},
    {"merge", rose_bench_merge, "results of several runs as one"},
    {"report", rose_bench_report, "one HTML page of a folder of results"},
    {"tokenizer", rose_bench_tokenizer, "bytes per second of the tokenizer"},
    {"engine", rose_bench_scheduler, "host time of a step on an instant fake backend"},
    {"scheduler", rose_bench_scheduler, "the same; with --trace, waiting times under each policy"},
    {"abuse", rose_bench_abuse, "thousands of rude clients: does the server stay what it was?"},
    {"soak", rose_bench_soak, "overload for long: refusals, growth, /health, stalls"},
    {"kernels", rose_bench_kernels, "matrix products beside the vendor's library"},
};

static rose_status read_all(rose_buf *out, rose_err *err)
{
    const size_t limit = (size_t)1 << 30;
    for (;;) {
        if (rose_buf_reserve(out, 65536) != ROSE_OK)
            return rose_fail(err, ROSE_E_NOMEM, "standard input: out of memory");
        ssize_t n = read(STDIN_FILENO, out->data + out->len, 65536);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return rose_fail(err, ROSE_E_IO, "standard input: %s", strerror(errno));
        if (n == 0) return ROSE_OK;
        out->len += (size_t)n;
        if (out->len > limit) return rose_fail(err, ROSE_E_INVAL, "standard input: over 1 GiB");
    }
}

rose_status rose_read_stdin(rose_buf *out, rose_err *err)
{
    if (isatty(STDIN_FILENO) != 1) return read_all(out, err);
    fputs("roseinfer: reading from the terminal; Ctrl-D on an empty line ends the input\n", stderr);
    rose_status st = read_all(out, err);
    if (st == ROSE_OK && out->len > 0 && out->data[out->len - 1] == '\n') out->len--;
    return st;
}

static void list(FILE *out, const char *prefix, const command *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fprintf(out, "  %s%-*s %s\n", prefix, (int)(18 - strlen(prefix)), c[i].name, c[i].about);
}

static void usage(FILE *out)
{
    fprintf(out, "roseinfer %s - an LLM inference engine and server\n\n", rose_version());
    fputs("Usage: roseinfer COMMAND [arguments]   (COMMAND --help lists its options)\n\n", out);
    list(out, "", commands, sizeof commands / sizeof *commands);
    list(out, "bench ", benches, sizeof benches / sizeof *benches);
    fputs("\nMODEL is a Hugging Face folder: config.json, *.safetensors, tokenizer.json or\n"
          "vocab.json + merges.txt. `roseinfer --version` prints the version.\n",
          out);
}

static int dispatch(const command *c, size_t n, const char *what, int argc, char **argv)
{
    for (size_t i = 0; argc > 0 && i < n; i++) {
        if (strcmp(argv[0], c[i].name) == 0) return c[i].run(argc, argv);
    }
    if (argc > 0)
        fprintf(stderr, "roseinfer: unknown %s '%s' (roseinfer --help lists them all)\n", what,
                argv[0]);
    else
        usage(stderr);
    return USAGE_ERROR;
}

/* With a standard descriptor closed, the next file or socket would take its number, and what is
 * meant for people would go into it. */
static void open_standard_fds(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
    }
    if (fd >= 0) close(fd);
}

static int run(int argc, char **argv)
{
    if (argc >= 2 && (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "version") == 0)) {
        printf("roseinfer %s (%s)\n", rose_version(), rose_commit());
        return 0;
    }
    if (argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
                      strcmp(argv[1], "help") == 0)) {
        usage(stdout);
        return 0;
    }
    if (argc >= 2 && strcmp(argv[1], "bench") == 0) {
        if (argc >= 3 && strcmp(argv[2], "--help") == 0) {
            usage(stdout);
            return 0;
        }
        return dispatch(benches, sizeof benches / sizeof *benches, "benchmark", argc - 2, argv + 2);
    }
    return dispatch(commands, sizeof commands / sizeof *commands, "command", argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    open_standard_fds();
    int rc = run(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return rc;
    fputs("roseinfer: cannot write all of standard output\n", stderr);
    return rc == 0 ? 1 : rc;
}
