/* bench/load_trace.h - traces, which say what is sent when: read from files, or generated. Main
 * thread.
 *
 * The format is found by the content of a file, never by its name:
 *   azure    CSV "TIMESTAMP,ContextTokens,GeneratedTokens"; 2023-11-16 18:15:46.6805900
 *   burstgpt CSV "Timestamp,...,Request tokens,Response tokens,..."; seconds
 *   mooncake JSONL {timestamp (ms), input_length, output_length, hash_ids: blocks of 512 tokens}
 *   qwen     JSONL {chat_id, timestamp (s), input_length, output_length, hash_ids: blocks of 16} */
#ifndef ROSE_BENCH_LOAD_TRACE_H
#define ROSE_BENCH_LOAD_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

typedef struct rose_load_trace_row {
    double at_s;            /* time since the first request of the trace */
    uint32_t n_in, n_out;   /* in tokens; both at least 1 */
    uint32_t hash0, n_hash; /* hashes[hash0 .. hash0 + n_hash) identify the blocks of the prompt;
                               equal hashes mean equal text */
} rose_load_trace_row;

typedef struct rose_load_trace {
    const char *format; /* "azure", "burstgpt", "mooncake", "qwen" or "generated"; a literal */
    rose_load_trace_row *rows; /* owned; in ascending order of at_s */
    uint32_t n;
    uint64_t *hashes; /* owned */
    size_t n_hashes;
    uint32_t block_tokens; /* tokens of one hashed block; 0 = the trace has no hashes */
    uint32_t n_bad;        /* number of lines that were left out */
    uint32_t first_bad;    /* line number of the first of them */
} rose_load_trace;

/* Reads the first `limit` good rows of a file. A bad line is left out, and the first 20 of them are
 * printed with their numbers on `report` (may be NULL). Rows of failed requests (no output tokens)
 * count as bad. Errors: NOTFOUND, IO, FORMAT (unknown format, or no good row), NOMEM. */
rose_status rose_load_trace_read(rose_load_trace *out, const char *path, uint32_t limit,
                                 FILE *report, rose_err *err);

/* Reads a trace from text in memory, which need not end in NUL. `name` is used in messages. */
rose_status rose_load_trace_parse(rose_load_trace *out, const char *name, const char *text,
                                  size_t len, uint32_t limit, FILE *report, rose_err *err);

typedef struct rose_load_trace_gen {
    uint64_t seed;
    uint32_t n;
    double rate;       /* requests per second, > 0 */
    double burstiness; /* shape of the gamma-distributed gaps, > 0; 1 = Poisson arrivals, less =
                          more bursty */
    double end_rate;   /* 0: the rate is constant; else it changes from rate to end_rate over the
                          requests */
    bool exponential;  /* true: the rate changes by equal factors; false: by equal steps */
    /* median and sigma of log-normal lengths; sigma 0 = all the same */
    double in_median, in_sigma, out_median, out_sigma;
} rose_load_trace_gen;

rose_status rose_load_trace_generate(rose_load_trace *out, const rose_load_trace_gen *g,
                                     rose_err *err);

/* Replaces only the arrival times of t, as rate, end_rate, burstiness and seed of g say. */
void rose_load_trace_retime(rose_load_trace *t, const rose_load_trace_gen *g);

/* Cuts lengths so that they fit into a context (at least 3 tokens). With room = context - 1: out =
 * min(out, max_out, room - 1), then in = min(in, max_in, room - out). max_in or max_out 0 means no
 * further limit. Returns how many rows changed. */
uint32_t rose_load_trace_clamp(rose_load_trace *t, uint32_t context, uint32_t max_in,
                               uint32_t max_out);

void rose_load_trace_free(rose_load_trace *t); /* accepts {0}; leaves {0} */

#endif
