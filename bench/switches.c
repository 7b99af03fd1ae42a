/* bench/switches.c - see switches.h. Some switches act only under pressure. `both` creates it for
 * both sides: few sequences, or a small budget of tokens in a step. */
#include "bench/switches.h"

#include <string.h>

#define BOOL(name) name, "--" name, "--no-" name

/* clang-format off */
static const rose_switch switches[] = {
    /* scheduler */
    {BOOL("chunked-prefill"), "--prefill-chunk-size 64", true, ROSE_LOAD_LONG},
    {"prefill-chunk-size", "--prefill-chunk-size 64", "--prefill-chunk-size 0", "", true, ROSE_LOAD_LONG},
    {BOOL("decode-first"), "--max-num-seqs 32 --max-num-batched-tokens 64", true, ROSE_LOAD_LONG},
    /* `bench offline` has only prompts of random ids, which say nothing of guesses */
    {BOOL("speculation"), "--max-num-seqs 1", false, ROSE_LOAD_TEXT},
    {BOOL("overlap-schedule"), "", true, ROSE_LOAD_PLAIN},
    {BOOL("megakernel"), "--max-num-seqs 1", true, ROSE_LOAD_PLAIN},
    {BOOL("cuda-graph"), "", true, ROSE_LOAD_PLAIN},
    {BOOL("pdl"), "", true, ROSE_LOAD_PLAIN},
    {BOOL("fused-ops"), "", true, ROSE_LOAD_PLAIN},
    {BOOL("fused-mlp"), "", true, ROSE_LOAD_PLAIN},
    {BOOL("fused-sampler"), "", true, ROSE_LOAD_PLAIN},
    {BOOL("fused-kv-append"), "", true, ROSE_LOAD_PLAIN},
    {BOOL("paged-attn"), "--max-model-len 1024", true, ROSE_LOAD_PLAIN},
    {BOOL("prefix-cache"), "", true, ROSE_LOAD_SHARED},
    {"admission", "--admission pack", "--admission fifo", "--max-num-seqs 8 --max-num-batched-tokens 256", true, ROSE_LOAD_BURST},
    {"prefill-max-batch-size", "--prefill-max-batch-size 2", "--prefill-max-batch-size 0", "", true, ROSE_LOAD_BURST},
    {"prefill-max-tokens", "--prefill-max-tokens 128", "--prefill-max-tokens 0", "", true, ROSE_LOAD_BURST},
    {"max-active-requests", "--max-active-requests 8", "--max-active-requests 0", "", true, ROSE_LOAD_BURST},
    {"force-fifo-every", "--force-fifo-every 8", "--force-fifo-every 1000000", "--admission pack --max-num-seqs 8 --max-num-batched-tokens 256", true, ROSE_LOAD_BURST},
    {"max-num-seqs", "--max-num-seqs 32", "--max-num-seqs 8", "", true, ROSE_LOAD_PLAIN},
    /* kernels */
    {"prefill-backend", "--prefill-backend flash", "--prefill-backend naive", "", true, ROSE_LOAD_PLAIN},
    {"cuda-without", "--cuda-without none", "--cuda-without all", "", true, ROSE_LOAD_PLAIN},
    {"isa", "--isa auto", "--isa avx2", "", true, ROSE_LOAD_PLAIN},
    /* host side */
    {BOOL("async-admit"), "", false, ROSE_LOAD_FULL},
    {"tokenize-workers", "--tokenize-workers 4", "--tokenize-workers 1", "", false, ROSE_LOAD_FULL},
    {"inline-admit-bytes", "--inline-admit-bytes 4096", "--inline-admit-bytes 0", "", false, ROSE_LOAD_PLAIN},
    {"io-poll-us", "--io-poll-us 2000", "--io-poll-us 0", "--early-wake", false, ROSE_LOAD_PLAIN},
    {BOOL("early-wake"), "", false, ROSE_LOAD_PLAIN},
    {BOOL("fast-sse"), "", false, ROSE_LOAD_PLAIN},
    {"stream-interval", "--stream-interval 8", "--stream-interval 1", "", false, ROSE_LOAD_PLAIN},
    {"io-threads", "--io-threads 2", "--io-threads 1", "", false, ROSE_LOAD_PLAIN},
    {"io-slice-us", "--io-slice-us 100", "--io-slice-us 0", "", false, ROSE_LOAD_PLAIN},
    {BOOL("cpu-affinity"), "", true, ROSE_LOAD_PLAIN},
    {BOOL("mlock"), "--kv-cache-memory 256M", true, ROSE_LOAD_PLAIN},
    {BOOL("prefault"), "--kv-cache-memory 256M", true, ROSE_LOAD_COLD},
    {"stall-warn-ms", "--stall-warn-ms 1000", "--stall-warn-ms 0", "", false, ROSE_LOAD_PLAIN},
};
/* clang-format on */

enum { N_SWITCHES = sizeof switches / sizeof *switches, LONG_EVERY = 8 };

const rose_switch *rose_switch_at(uint32_t i)
{
    return i < N_SWITCHES ? &switches[i] : NULL;
}

const rose_switch *rose_switch_find(const char *name, size_t len)
{
    for (uint32_t i = 0; i < N_SWITCHES; i++) {
        if (strlen(switches[i].name) == len && memcmp(switches[i].name, name, len) == 0)
            return &switches[i];
    }
    return NULL;
}

const char *rose_switch_load_name(rose_switch_load load)
{
    static const char *const names[ROSE_N_LOADS] = {"plain",
                                                    "cold",
                                                    "shared prefixes",
                                                    "long prompts amid short",
                                                    "long prompts",
                                                    "burst",
                                                    "real text, half of it to copy"};
    return names[load];
}

rose_status rose_switch_trace(rose_switch_load load, const rose_load_trace_gen *base,
                              uint32_t context, rose_load_trace *out, rose_prompt_mode *mode,
                              bool *at_once, rose_err *err)
{
    rose_load_trace_gen g = *base;
    *mode = load == ROSE_LOAD_SHARED ? ROSE_PROMPT_SHARED
            : load == ROSE_LOAD_TEXT ? ROSE_PROMPT_TEXT
                                     : ROSE_PROMPT_UNIQUE;
    *at_once = load == ROSE_LOAD_BURST;
    if (load == ROSE_LOAD_BURST) g.in_sigma = g.out_sigma = 1;
    rose_status st = rose_load_trace_generate(out, &g, err);
    for (uint32_t i = 0; st == ROSE_OK && i < out->n; i++) {
        uint32_t *n_in = &out->rows[i].n_in;
        if (load == ROSE_LOAD_SHARED)
            *n_in = context > 0 ? context / 2 : *n_in * 4;
        else if (load == ROSE_LOAD_FULL || (load == ROSE_LOAD_LONG && i % LONG_EVERY == 1))
            /* rose_load_trace_clamp leaves space for the output tokens */
            *n_in = context > 0 ? context : *n_in * 8;
    }
    if (st == ROSE_OK && context >= 3) rose_load_trace_clamp(out, context, 0, 0);
    return st;
}
