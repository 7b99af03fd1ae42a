/* engine/opts.c - the table of the engine's options. A new option is a field of rose_engine_opts
 * and a row here. The backends' options are in backend/opts.c. */
#include <string.h>

#include "engine/flags.h"

/* A table: as long as there are options. */
size_t rose_engine_opts_rows(rose_engine_opts *o, rose_opt *rows)
{
    const rose_opt all[] = {
        ROSE_ROW_BRIEF_HEADING("Scheduling"),
        ROSE_ROW_U32("max-num-queued-reqs", &o->max_queued, "N", 1, 65536,
                     "largest number of requests that wait to be started; one more gets 429",
                     .def = 1024),
        ROSE_ROW_U32("max-num-queued-tokens", &o->max_queued_tokens, "N", 0, UINT32_MAX,
                     "largest number of prompt tokens that wait to be started; a request beyond "
                     "it gets 429, unless nothing else waits",
                     .unset = "no limit"),
        ROSE_ROW_U32("max-active-requests", &o->max_active, "N", 0, 4096,
                     "largest number of requests that have started and not finished, preempted "
                     "ones included",
                     .unset = "--max-num-seqs"),
        ROSE_ROW_ENUM("admission", rose_engine_admission, &o->admission, "fifo|pack",
                      "order in which waiting requests start. fifo: the order of arrival. pack: "
                      "the shortest of the oldest --lookahead requests first"),
        ROSE_ROW_U32("lookahead", &o->lookahead, "N", 1, 4096,
                     "number of the oldest waiting requests that --admission pack chooses from",
                     .def = 64),
        ROSE_ROW_U32("force-fifo-every", &o->force_fifo_every, "N", 1, UINT32_MAX,
                     "--admission pack: after N - 1 rounds in which others started first, the "
                     "oldest waiting request is next",
                     .def = 8),
        ROSE_ROW_U32("priority-age-ms", &o->priority_age_ms, "MS", 0, 3600000,
                     "waiting time that is worth one level of a request's priority; 0 ignores "
                     "priorities",
                     .def = 1000),
        ROSE_ROW_BOOL("decode-first", &o->decode_first,
                      "give running requests their place in a step before prompts", .def = true),
        ROSE_ROW_BOOL("chunked-prefill", &o->chunked_prefill,
                      "spread a long prompt over several steps, so that running requests continue",
                      .def = true),
        ROSE_ROW_U32("prefill-chunk-size", &o->prefill_chunk_size, "N", 0, 0,
                     "largest number of prompt tokens of one request in a step",
                     .unset = "--max-num-batched-tokens"),
        ROSE_ROW_U32("prefill-max-batch-size", &o->prefill_max_seqs, "N", 0, 4096,
                     "largest number of requests that prefill in one step", .unset = "no limit"),
        ROSE_ROW_U32("prefill-max-tokens", &o->prefill_max_tokens, "N", 0, 1u << 20,
                     "largest number of prompt tokens in one step, over all requests",
                     .unset = "--max-num-batched-tokens"),
        ROSE_ROW_U32("ttft-slo-ms", &o->ttft_slo_ms, "MS", 0, 3600000,
                     "goal for the time to the first token: a request that cannot meet it gets 429",
                     .unset = "no goal"),
        ROSE_ROW_U32("itl-slo-ms", &o->itl_slo_ms, "MS", 0, 3600000,
                     "goal for the time between two tokens: a step takes in as many prompt tokens "
                     "as the goal allows",
                     .unset = "no goal"),
        ROSE_ROW_BOOL("overlap-schedule", &o->overlap,
                      "build the next step while the GPU computes one; no effect on cpu",
                      .def = true),

        ROSE_ROW_BRIEF_HEADING("KV and prefix cache"),
        ROSE_ROW_BOOL("prefix-cache", &o->prefix_cache,
                      "keep the KV cache of finished prompts and outputs, and reuse it when "
                      "another prompt begins the same way",
                      .def = true, .first = true),
        ROSE_ROW_U32("prefix-cache-max-pages", &o->prefix_cache_max_pages, "N", 0, INT32_MAX,
                     "largest number of pages to keep that no request uses",
                     .unset = "the whole KV cache"),
    };
    const size_t n = sizeof all / sizeof *all;
    _Static_assert(sizeof all / sizeof *all <= ROSE_ENGINE_OPT_ROWS, "too many rows");
    memcpy(rows, all, sizeof all);
    return n;
}

void rose_engine_opts_default(rose_engine_opts *o)
{
    rose_opt rows[ROSE_ENGINE_OPT_ROWS];
    memset(o, 0, sizeof *o);
    rose_backend_opts_default(&o->backend);
    rose_opts_default(rows, rose_engine_opts_rows(o, rows));
    rose_spec_opts_default(&o->spec);
    o->engine_cpu = -1;
}
