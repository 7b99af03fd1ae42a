/* cli/main.c - the program: finds the command, and what the commands share. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/fds.h"
#include "base/version.h"
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
    {"bench", NULL, "benchmarks, by the program roseinfer-bench; `bench --help` lists them"},
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

static void usage(FILE *out)
{
    fprintf(out, "roseinfer %s - an LLM inference engine and server\n\n", rose_version());
    fputs("Usage: roseinfer COMMAND [arguments]   (COMMAND --help lists its options)\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-18s %s\n", commands[i].name, commands[i].about);
    fputs("\nMODEL is a Hugging Face folder: config.json, *.safetensors, tokenizer.json or\n"
          "vocab.json + merges.txt. `roseinfer --version` prints the version.\n",
          out);
}

/* Becomes roseinfer-bench, which is installed in the folder of this program, as git runs its
 * commands. Returns only if that fails. */
static int run_bench(char **argv)
{
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
    if (argc >= 2 && strcmp(argv[1], "bench") == 0) return run_bench(argv + 1);
    for (size_t i = 0; argc >= 2 && i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].run(argc - 1, argv + 1);
    }
    if (argc >= 2) fprintf(stderr, "roseinfer: unknown command '%s'\n", argv[1]);
    usage(stderr);
    return USAGE_ERROR;
}

int main(int argc, char **argv)
{
    rose_fds_open_standard();
    return rose_fds_flush_stdout(run(argc, argv));
}
