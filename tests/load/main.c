/* tests/load/main.c - the program build/tests/load/load. Its first argument names a load test. It
 * links the rooms of the server (api, http), which roseinfer-bench must not. */
#include <stdio.h>
#include <string.h>

#include "base/fds.h"
#include "load/load.h"

enum { USAGE_ERROR = 2 };

typedef struct load_test {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} load_test;

static const load_test tests[] = {
    {"abuse", rose_load_abuse, "thousands of rude clients: does the server stay what it was?"},
    {"soak", rose_load_soak, "overload for long: refusals, growth, /health, stalls"},
    {"http", rose_load_http, "streams of a whole server on an instant fake backend"},
    {"engine", rose_load_engine, "host time of an engine step on an instant fake backend"},
    {"scheduler", rose_load_scheduler,
     "a trace under each scheduling policy, on a simulated clock"},
    {"client", rose_load_client, "timing error of the benchmarks' own HTTP client"},
};

static void usage(FILE *out)
{
    fputs("Usage: load NAME [arguments]   (NAME --help lists its options)\n\n", out);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        fprintf(out, "  %-10s %s\n", tests[i].name, tests[i].about);
}

static int run(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "--help") == 0) {
        usage(stdout);
        return 0;
    }
    for (size_t i = 0; argc >= 2 && i < sizeof tests / sizeof *tests; i++) {
        if (strcmp(argv[1], tests[i].name) == 0) return tests[i].run(argc - 1, argv + 1);
    }
    if (argc >= 2) fprintf(stderr, "load: unknown load test '%s'\n", argv[1]);
    usage(stderr);
    return USAGE_ERROR;
}

int main(int argc, char **argv)
{
    rose_fds_open_standard();
    return rose_fds_flush_stdout(run(argc, argv));
}
