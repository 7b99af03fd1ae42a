/* bench/bench.h - the benchmarks of roseinfer-bench, which `roseinfer bench NAME` runs. Each
 * function is the main of one: argv[0] is its name; the result is the exit code (0, 1 for a failed
 * run, 2 for a usage error). */
#ifndef ROSE_BENCH_BENCH_H
#define ROSE_BENCH_BENCH_H

int rose_bench_offline(int argc, char **argv);
int rose_bench_online(int argc, char **argv);
int rose_bench_latency(int argc, char **argv);
int rose_bench_plot(int argc, char **argv);
int rose_bench_merge(int argc, char **argv);
int rose_bench_report(int argc, char **argv);
int rose_bench_stream(int argc, char **argv);
int rose_bench_start(int argc, char **argv);
int rose_bench_ablate(int argc, char **argv);
int rose_bench_tokenizer(int argc, char **argv);
int rose_bench_kernels(int argc, char **argv);

#endif
