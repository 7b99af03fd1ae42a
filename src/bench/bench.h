/* bench/bench.h - the programs behind `roseinfer bench NAME`: each a main of its own. argv[0] is
 * the name; the result is the exit code (0, 1 for a failed run, 2 for a usage error). */
#ifndef ROSE_BENCH_BENCH_H
#define ROSE_BENCH_BENCH_H

int rose_bench_offline(int argc, char **argv);
int rose_bench_online(int argc, char **argv);
int rose_bench_plot(int argc, char **argv);
int rose_bench_merge(int argc, char **argv);
int rose_bench_stream(int argc, char **argv);
int rose_bench_start(int argc, char **argv);
int rose_bench_ablate(int argc, char **argv);
int rose_bench_tokenizer(int argc, char **argv);
int rose_bench_scheduler(int argc, char **argv);
int rose_bench_kernels(int argc, char **argv);

#endif
