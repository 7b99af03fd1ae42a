/* bench/bench.h - the benchmarks that `roseinfer bench NAME` runs. Each takes the arguments behind
 * its name (argv[0] = the name) and returns the exit status: 0, 1 failed, 2 usage. Results go to
 * stdout, messages to stderr. */
#ifndef ROSE_BENCH_BENCH_H
#define ROSE_BENCH_BENCH_H

/* bench tokenizer MODEL --file FILE [--repeats N] [--chunk-bytes N] [--json]: encoding and decoding
 * speed of one thread. */
int rose_bench_tokenizer(int argc, char **argv);

#endif
