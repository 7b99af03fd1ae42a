/* bench/main.c - the program roseinfer-bench. Its first argument names a benchmark; `roseinfer
 * bench NAME` runs this program. */
#include <stdio.h>
#include <string.h>

#include "base/fds.h"
#include "base/program.h"
#include "bench/bench.h"

static const rose_program_command benchmarks[] = {
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

static const char *const elsewhere[][2] = {
    {"serve", "online"}, {"throughput", "offline"}, {"startup", "start"}, {NULL, NULL}};

/* These are load tests, which people may look for here. */
static const char *const moved[] = {"abuse", "soak", "http", "engine", "scheduler"};

static const rose_program program = {
    .name = "roseinfer-bench",
    .about = "benchmarks of roseinfer and of other servers",
    .notes = "`roseinfer bench NAME` runs this program.\n",
    .commands = benchmarks,
    .elsewhere = elsewhere,
    .n_commands = sizeof benchmarks / sizeof *benchmarks,
};

static int run(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof moved / sizeof *moved; i++) {
        if (strcmp(argv[1], moved[i]) != 0) continue;
        fprintf(stderr,
                "roseinfer: '%s' is a load test of its own now: in the source tree run "
                "`make build/tests/load/load`, then `build/tests/load/load %s --help`\n",
                argv[1], argv[1]);
        return 2;
    }
    return rose_program_run(&program, argc, argv);
}

int main(int argc, char **argv)
{
    rose_fds_open_standard();
    return rose_fds_flush_stdout(run(argc, argv));
}
