/* cli/main.c - the program: runs the command that was named. Also functions that commands share. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fds.h"
#include "base/program.h"
#include "base/progress.h"
#include "cli/cli.h"

/* Replaces this process by roseinfer-bench, which is installed in the same folder, as git runs
 * its commands. Returns only if that fails. */
static int run_bench(int argc, char **argv)
{
    (void)argc;
    static const char name[] = "roseinfer-bench";
    char path[4096] = "";
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - sizeof name - 1);
    char *slash = n > 0 ? strrchr(path, '/') : NULL;
    if (slash != NULL)
        memcpy(slash + 1, name, sizeof name);
    else
        memcpy(path, name, sizeof name);
    argv[0] = path;
    execv(path, argv);
    if (errno == ENOENT)
        fprintf(stderr,
                "roseinfer: there is no %s, which runs the benchmarks: build it with "
                "`make build/roseinfer-bench`, or `make install` both programs\n",
                path);
    else
        fprintf(stderr, "roseinfer: cannot run %s: %s\n", path, strerror(errno));
    return 1;
}

static const rose_program_command commands[] = {
    {"serve", rose_cmd_serve, "serve a model over an OpenAI-compatible HTTP API"},
    {"batch", rose_cmd_batch, "run the requests of a file, in OpenAI's batch format"},
    {"chat", rose_cmd_chat, "talk with a model in the terminal"},
    {"generate", rose_cmd_generate, "continue a prompt, streaming to standard output"},
    {"tokenize", rose_cmd_tokenize, "text to token ids"},
    {"detokenize", rose_cmd_detokenize, "token ids to text"},
    {"health", rose_cmd_health, "ask a server whether it is well"},
    {"pull", rose_cmd_pull, "fetch a model of the Hugging Face hub to the cache"},
    {"inspect", rose_cmd_inspect, "architecture, tensors and memory plan, without loading"},
    {"tune", rose_cmd_tune, "measure the fastest GEMM kernels for a model on this GPU"},
    {"random-model", rose_cmd_random_model, "write a model with seeded random weights"},
    {"bench", run_bench, "benchmarks, by the program roseinfer-bench; bench --help lists them"},
};

static const char *const elsewhere[][2] = {{"run-batch", "batch"},
                                           {"complete", "generate"},
                                           {"run", "chat"},
                                           {"download", "pull"},
                                           {NULL, NULL}};

static const rose_program program = {
    .elsewhere = elsewhere,
    .name = "roseinfer",
    .about = "an LLM inference engine and server",
    .notes = "`roseinfer -m FILE` and `roseinfer -hf ORG/NAME:QUANT` serve, as llama-server does.\n"
             "MODEL is ORG/NAME or ORG/NAME:QUANT of the Hugging Face hub, a GGUF file, or a\n"
             "Hugging Face folder: config.json, *.safetensors and tokenizer.json (or\n"
             "tokenizer.model, or vocab.json + merges.txt).\n",
    .commands = commands,
    .n_commands = sizeof commands / sizeof *commands,
    .apart = "bench",
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

rose_status rose_cli_text(rose_buf *out, const char *given, rose_err *err)
{
    const bool terminal = given == NULL && isatty(STDIN_FILENO) == 1;
    rose_status st = ROSE_OK;
    if (terminal)
        fputs("roseinfer: reading from the terminal; Ctrl-D on an empty line ends the input\n",
              stderr);
    if (given == NULL && (st = read_all(out, err)) != ROSE_OK) return st;
    if (given != NULL) st = rose_buf_add(out, given, strlen(given));
    if (terminal && out->len > 0 && out->data[out->len - 1] == '\n') out->len--;
    if (st == ROSE_OK && rose_buf_str(out) != NULL) return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "out of memory");
}

/* True for `roseinfer -m FILE ...`: options without a command, one of which names the model. */
static bool is_serve(int argc, char **argv)
{
    static const char *const names[] = {"-m",  "--model", "--model-path",
                                        "-hf", "-hfr",    "--hf-repo"};
    for (int i = 1; argc > 1 && argv[1][0] == '-' && i < argc; i++) {
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            const size_t n = strlen(names[k]);
            if (strncmp(argv[i], names[k], n) == 0 && (argv[i][n] == '\0' || argv[i][n] == '='))
                return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    rose_fds_open_standard();
    rose_progress_allow_waits(true);
    const int rc =
        is_serve(argc, argv) ? rose_cmd_serve(argc, argv) : rose_program_run(&program, argc, argv);
    return rose_fds_flush_stdout(rc);
}
