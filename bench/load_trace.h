/* bench/load_trace.h - what is sent when: traces read from files, or generated. Main thread.
 *
 * Formats, told apart by content, never by name:
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
    double at_s;            /* since the first request of the trace */
    uint32_t n_in, n_out;   /* tokens; n_in >= 1, n_out >= 1 */
    uint32_t hash0, n_hash; /* hashes[hash0 .. hash0 + n_hash): prefix structure, a block each */
} rose_load_trace_row;

typedef struct rose_load_trace {
    const char *format;        /* "azure", "burstgpt", "mooncake", "qwen", "generated"; a literal */
    rose_load_trace_row *rows; /* owned; ascending in at_s */
    uint32_t n;
    uint64_t *hashes; /* owned */
    size_t n_hashes;
    uint32_t block_tokens; /* tokens of a hash's block; 0 = the trace has none */
    uint32_t n_bad;        /* lines left out */
    uint32_t first_bad;    /* number of the first of them */
} rose_load_trace;

/* The first `limit` good rows of a file. A bad line is reported on `report` (may be NULL; the first
 * 20 of them) with its number and left out; rows of a failed request (no output) count as bad.
 * Errors: NOTFOUND, IO, FORMAT (unknown format, or no good row), NOMEM. */
rose_status rose_load_trace_read(rose_load_trace *out, const char *path, uint32_t limit,
                                 FILE *report, rose_err *err);

/* The same from memory; `name` is for messages. text need not end in NUL. */
rose_status rose_load_trace_parse(rose_load_trace *out, const char *name, const char *text,
                                  size_t len, uint32_t limit, FILE *report, rose_err *err);

typedef struct rose_load_trace_gen {
    uint64_t seed;
    uint32_t n;
    double rate;       /* requests per second, > 0 */
    double burstiness; /* shape of the gamma arrivals; 1 = Poisson, less = burstier, > 0 */
    double end_rate;   /* 0: the rate stays; else it goes from rate to this, request by request */
    bool exponential;  /* that way: by equal factors instead of equal steps */
    double in_median, in_sigma, out_median, out_sigma; /* log-normal lengths; sigma 0 = fixed */
} rose_load_trace_gen;

rose_status rose_load_trace_generate(rose_load_trace *out, const rose_load_trace_gen *g,
                                     rose_err *err);

/* Arrival times alone: rate, end_rate, burstiness and seed of g onto the rows that are there. */
void rose_load_trace_retime(rose_load_trace *t, const rose_load_trace_gen *g);

/* Lengths into a context: out = min(out, max_out, room - 1), in = min(in, max_in, room - out) with
 * room = context - 1. max_in, max_out: 0 = no cap. context >= 3. Returns how many rows changed. */
uint32_t rose_load_trace_clamp(rose_load_trace *t, uint32_t context, uint32_t max_in,
                               uint32_t max_out);

void rose_load_trace_free(rose_load_trace *t); /* accepts {0}; leaves {0} */

#endif
