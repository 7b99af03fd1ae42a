/* tests/load/policies.c - `load scheduler` replays the requests of a trace under each scheduling
 * policy, on a simulated clock. */
#include <stdio.h>

#include "backend/backend.h"
#include "base/json.h"
#include "base/log.h"
#include "base/opts.h"
#include "bench/results.h"
#include "load/load.h"
#include "load/replay.h"

typedef struct policies_opts {
    const char *trace;
    uint32_t num_requests; /* 0 = all */
    uint32_t max_num_seqs, max_num_batched_tokens, num_kv_pages, max_queued;
    float scale, step_us, row_us;
    /* 0 = no goal; with a goal, one more policy is run, in which the scheduler steers by it */
    uint32_t ttft_slo_ms, itl_slo_ms;
} policies_opts;

typedef struct policy {
    const char *name;
    void (*change)(rose_sched_opts *o); /* changes the default options; NULL = no change */
} policy;

static void pack(rose_sched_opts *o)
{
    o->admission = ROSE_ADMISSION_PACK;
}

static void prompts_first(rose_sched_opts *o)
{
    o->decode_first = false;
}

static void small_pieces(rose_sched_opts *o)
{
    o->prefill_max_tokens = 256;
}

static void whole_prompts(rose_sched_opts *o)
{
    o->chunked_prefill = false;
}

static void long_steps(rose_sched_opts *o)
{
    if (o->max_step_tokens < 8192) o->max_step_tokens = 8192;
}

static void auto_steps(rose_sched_opts *o)
{
    o->busy_step_tokens = o->max_step_tokens;
    long_steps(o);
}

static void no_prefix_cache(rose_sched_opts *o)
{
    o->prefix_cache = false;
}

static const policy policies[] = {{"default", NULL},
                                  {"--admission pack", pack},
                                  {"--no-decode-first", prompts_first},
                                  {"--prefill-max-tokens 256", small_pieces},
                                  {"--no-chunked-prefill", whole_prompts},
                                  {"--no-prefix-cache", no_prefix_cache},
                                  {"steps of 8192", long_steps},
                                  {"steps of auto", auto_steps}};
/* with goals, one more policy is run, which steers by them */
enum { N_POLICIES = sizeof policies / sizeof policies[0] };

static rose_sched_opts base_opts(const policies_opts *o, const rose_load_trace *t)
{
    rose_sched_opts so = {.max_seqs = o->max_num_seqs,
                          .max_step_tokens = o->max_num_batched_tokens,
                          .max_queued = o->max_queued,
                          .page_tokens = ROSE_KV_PAGE_TOKENS,
                          .max_model_len = 2,
                          .chunked_prefill = true,
                          .decode_first = true,
                          .prefix_cache = true};
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t n = t->rows[i].n_in + t->rows[i].n_out;
        if (n > so.max_model_len) so.max_model_len = n;
    }
    return so;
}

/* Prints how many of all requests met the goals; a refused request has not met them. */
static void print_goals(const rose_replay_result *r, uint32_t n)
{
    fprintf(stderr, "%-25s met %u of %u (%.1f %%): TTFT %u, gaps %u of %u done; %u too late\n", "",
            r->n_met, n, 100.0 * r->n_met / n, r->n_met_ttft, r->n_met_itl, r->n_done, r->n_late);
}

static void print_row(const char *name, const rose_replay_result *r)
{
    fprintf(
        stderr, "%-25s %6u %6u %9.0f  %8.1f %8.1f  %8.2f %8.2f  %8.0f %8.0f  %9llu %9llu %7llu\n",
        name, r->n_done, r->n_refused, r->tokens_per_s, r->ttft.p50, r->ttft.p99, r->itl.p50,
        r->itl.p99, r->e2e.p50, r->e2e.p99, (unsigned long long)r->stats.prefix_hits,
        (unsigned long long)r->stats.recomputed_tokens, (unsigned long long)r->stats.preemptions);
}

static rose_json *spread_json(const rose_replay_spread *s)
{
    return rose_json_pack("{s:f, s:f, s:f, s:f}", "p50", s->p50, "p90", s->p90, "p99", s->p99,
                          "max", s->max);
}

static rose_json *result_json(const char *name, const rose_replay_result *r)
{
    return rose_json_pack(
        "{s:s, s:i, s:i, s:I, s:f, s:f, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, "
        "s:i, s:i, s:i, s:i}",
        "policy", name, "num_success", (int)r->n_done, "num_refused", (int)r->n_refused, "steps",
        (int64_t)r->n_steps, "duration_s", r->duration_s, "tok_per_s", r->tokens_per_s, "ttft_ms",
        spread_json(&r->ttft), "itl_ms", spread_json(&r->itl), "e2e_ms", spread_json(&r->e2e),
        "prefix_queries", (int64_t)r->stats.prefix_queries, "prefix_hits",
        (int64_t)r->stats.prefix_hits, "evictions", (int64_t)r->stats.evictions, "preemptions",
        (int64_t)r->stats.preemptions, "recomputed_tokens", (int64_t)r->stats.recomputed_tokens,
        "num_met", (int)r->n_met, "num_met_ttft", (int)r->n_met_ttft, "num_met_itl",
        (int)r->n_met_itl, "num_late", (int)r->n_late);
}

static int run(const policies_opts *o, int argc, char **argv)
{
    rose_err err = {{0}};
    rose_load_trace t;
    const uint32_t limit = o->num_requests != 0 ? o->num_requests : UINT32_MAX;
    rose_status st = rose_load_trace_read(&t, o->trace, limit, stderr, &err);
    rose_json *list = rose_json_array();
    if (st == ROSE_OK) {
        bool goals = o->ttft_slo_ms > 0 || o->itl_slo_ms > 0;
        rose_replay_opts ro = {.step_us = (double)o->step_us,
                               .row_us = (double)o->row_us,
                               .scale = (double)o->scale,
                               .kv_pages = o->num_kv_pages,
                               .ttft_ms = o->ttft_slo_ms,
                               .itl_ms = o->itl_slo_ms};
        fprintf(stderr, "%-25s %6s %6s %9s  %17s  %17s  %17s  %9s %9s %7s\n", "policy", "done",
                "refuse", "tok/s", "TTFT ms p50, p99", "ITL ms p50, p99", "E2E ms p50, p99",
                "cached", "again", "preempt");
        for (int i = 0; i < N_POLICIES + goals && st == ROSE_OK; i++) {
            const policy steered = {"--ttft-slo, --itl-slo", NULL};
            const policy *p = i < N_POLICIES ? &policies[i] : &steered;
            rose_replay_result r;
            rose_sched_opts so = base_opts(o, &t);
            ro.steer = i == N_POLICIES;
            if (p->change != NULL) p->change(&so);
            if ((st = rose_replay_run(&t, &ro, &so, &r, &err)) != ROSE_OK) break;
            print_row(p->name, &r);
            if (goals) print_goals(&r, t.n);
            rose_json_append_new(list, result_json(p->name, &r));
        }
        rose_load_trace_free(&t);
    }
    if (st != ROSE_OK) {
        rose_json_decref(list);
        return rose_die(&err);
    }
    rose_json *root = rose_json_pack(
        "{s:o, s:s, s:o, s:f, s:f, s:f, s:i, s:i, s:o}", "meta", rose_results_meta(argc, argv),
        "bench", "scheduler", "trace", rose_results_string(o->trace), "scale", (double)o->scale,
        "step_us", (double)o->step_us, "row_us", (double)o->row_us, "ttft_slo_ms",
        (int)o->ttft_slo_ms, "itl_slo_ms", (int)o->itl_slo_ms, "results", list);
    return rose_results_emit(root, NULL, "scheduler");
}

int rose_load_scheduler(int argc, char **argv)
{
    policies_opts o = {.max_num_seqs = 256,
                       .max_num_batched_tokens = 2048,
                       .num_kv_pages = 32768,
                       .max_queued = 65536,
                       .scale = 1,
                       .step_us = 1000,
                       .row_us = 50};
    const rose_opt opts[] = {
        ROSE_ROW_U32("num-requests", &o.num_requests, "N", 0, 1u << 24, "the first N of the trace",
                     .unset = "all"),
        ROSE_ROW_FLOAT("scale", &o.scale, "X", 1e-6f, 1e6f,
                       "factor on the times of the trace; smaller is heavier"),
        ROSE_ROW_FLOAT("step-us", &o.step_us, "US", 0.001f, 1e9f, "what a step costs"),
        ROSE_ROW_FLOAT("row-us", &o.row_us, "US", 0, 1e9f, "and each row of it"),
        ROSE_ROW_U32("max-num-seqs", &o.max_num_seqs, "N", 1, 4096, "most sequences in one step"),
        ROSE_ROW_U32("max-num-batched-tokens", &o.max_num_batched_tokens, "N", 1, 1u << 20,
                     "most tokens in one step"),
        ROSE_ROW_U32("num-kv-pages", &o.num_kv_pages, "N", 1, 1u << 26,
                     "size of the KV pool in pages of 16 tokens"),
        ROSE_ROW_U32("max-num-queued-reqs", &o.max_queued, "N", 1, 65536,
                     "most requests that wait; one more is refused"),
        ROSE_ROW_U32("ttft-slo-ms", &o.ttft_slo_ms, "MS", 0, 3600000,
                     "count the requests whose first token comes within MS, and add a policy that "
                     "steers by this goal",
                     .unset = "no goal"),
        ROSE_ROW_U32(
            "itl-slo-ms", &o.itl_slo_ms, "MS", 0, 3600000,
            "the same for the time between tokens; every gap of a request must be within MS",
            .unset = "no goal"),
    };
    rose_log_set_level(ROSE_LOG_WARN);
    const int rc = rose_opts_parse_one(
        "load scheduler TRACE [options]",
        "The requests of a trace (JSON lines or CSV) under each scheduling policy, on a simulated "
        "clock.\nA table on standard error, JSON on standard output.",
        opts, sizeof opts / sizeof *opts, argc, argv, &o.trace);
    return rc >= 0 ? rc : run(&o, argc, argv);
}
