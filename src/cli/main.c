/* cli/main.c - the program: finds the command, and what the commands share. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/program.h"
#include "bench/bench.h"
#include "cli/cli.h"

static const rose_program_command benches[] = {
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

static int run_bench(int argc, char **argv)
{
    static const rose_program bench = {
        .name = "roseinfer bench",
        .about = "benchmarks of the engine and the server",
        .notes = "",
        .commands = benches,
        .n_commands = sizeof benches / sizeof *benches,
    };
    return rose_program_run(&bench, argc, argv);
}

static const rose_program_command commands[] = {
    {"serve", rose_cmd_serve, "serve a model over an OpenAI-compatible HTTP API"},
    {"generate", rose_cmd_generate, "continue a prompt, streaming to standard output"},
    {"tokenize", rose_cmd_tokenize, "text to token ids"},
    {"detokenize", rose_cmd_detokenize, "token ids to text"},
    {"inspect", rose_cmd_inspect, "architecture, tensors and memory plan, without loading"},
    {"random-model", rose_cmd_random_model, "write a model with seeded random weights"},
    {"bench", run_bench, "benchmarks; bench --help lists them"},
};

static const rose_program program = {
    .name = "roseinfer",
    .about = "an LLM inference engine and server",
    .notes = "MODEL is a Hugging Face folder: config.json, *.safetensors, tokenizer.json or\n"
             "vocab.json + merges.txt.\n",
    .commands = commands,
    .n_commands = sizeof commands / sizeof *commands,
    .apart = "bench",
};

rose_status rose_read_stdin(rose_buf *out, rose_err *err)
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

/* With a standard descriptor closed, the next file or socket would take its number, and what is
 * meant for people would go into it. */
static void open_standard_fds(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
    }
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv)
{
    open_standard_fds();
    int rc = rose_program_run(&program, argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return rc;
    fputs("roseinfer: cannot write all of standard output\n", stderr);
    return rc == 0 ? 1 : rc;
}
