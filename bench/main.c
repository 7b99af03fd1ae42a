/* bench/main.c - the program roseinfer-bench. Its first argument names a benchmark; `roseinfer
 * bench NAME` runs this program. */
#include <stdio.h>
#include <string.h>

#include "base/fds.h"
#include "base/version.h"
#include "bench/bench.h"

enum { USAGE_ERROR = 2 };

typedef struct benchmark {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} benchmark;

static const benchmark benchmarks[] = {
    {"offline", rose_bench_offline, "token throughput of the engine, the server, and rivals"},
    {"latency", rose_bench_latency, "time of one batch of fixed lengths in the engine"},
    {"online", rose_bench_online, "latency under load: a trace against one server or several"},
    {"stream", rose_bench_stream, "where the time to the first token goes, by the server's clock"},
    {"ablate", rose_bench_ablate, "what each switch is worth: pairs of runs, on and off"},
    {"start", rose_bench_start, "time from exec to ready to the first token"},
    {"tokenizer", rose_bench_tokenizer, "bytes per second of the tokenizer"},
    {"kernels", rose_bench_kernels, "GEMMs compared with the vendor's library"},
    {"plot", rose_bench_plot, "pictures of results, drawn by gnuplot"},
    {"merge", rose_bench_merge, "results of several runs as one"},
    {"report", rose_bench_report, "one HTML page of a folder of results"},
};

/* These are load tests, which people may look for here. */
static const char *const moved[] = {"abuse", "soak", "http", "engine", "scheduler"};

static void usage(FILE *out)
{
    fprintf(out, "roseinfer-bench %s - benchmarks of roseinfer and of other servers\n\n",
            rose_version());
    fputs("Usage: roseinfer bench NAME [arguments]   (NAME --help lists its options)\n\n", out);
    for (size_t i = 0; i < sizeof benchmarks / sizeof *benchmarks; i++)
        fprintf(out, "  %-18s %s\n", benchmarks[i].name, benchmarks[i].about);
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return USAGE_ERROR;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) {
        printf("roseinfer-bench %s (%s)\n", rose_version(), rose_commit());
        return 0;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        usage(stdout);
        return 0;
    }
    for (size_t i = 0; i < sizeof benchmarks / sizeof *benchmarks; i++) {
        if (strcmp(name, benchmarks[i].name) == 0) return benchmarks[i].run(argc - 1, argv + 1);
    }
    for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) {
        if (strcmp(name, moved[i]) != 0) continue;
        fprintf(stderr,
                "roseinfer: '%s' is a load test of its own now: in the source tree run "
                "`make build/tests/load/load`, then `build/tests/load/load %s --help`\n",
                name, name);
        return USAGE_ERROR;
    }
    fprintf(stderr, "roseinfer: unknown benchmark '%s'\n", name);
    usage(stderr);
    return USAGE_ERROR;
}

int main(int argc, char **argv)
{
    rose_fds_open_standard();
    return rose_fds_flush_stdout(run(argc, argv));
}
