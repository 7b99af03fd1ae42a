/* bench/online_opts.c - the options of `bench online`, as tables, and the limits of a goodput
 * search: the highest rate of requests that keeps them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/online_internal.h"

static void opts_init(rose_online_opts *o)
{
    *o = (rose_online_opts){.backends = "roseinfer",
                            .scales = "0.4,0.8,1.6",
                            .output_dir = "outputs",
                            .n = 200,
                            .max_output_len = 128,
                            .prompt_overhead = 16,
                            .goodput_steps = 8,
                            .warmup_requests = 5,
                            .warmup_input_len = 128,
                            .warmup_output_len = 32,
                            .rate = 5,
                            .burstiness = 1,
                            .in_median = 256,
                            .in_sigma = 0.8f,
                            .out_median = 96,
                            .out_sigma = 0.6f,
                            .ramp = "none",
                            .profile = "none",
                            .profile_n = 32,
                            .profile_scale = 0.4f,
                            .ramp_start = 1,
                            .ramp_end = 10,
                            .trace_prefixes = true,
                            .cold_prefix = true};
    rose_request_flags_init(&o->req);
    rose_server_flags_init(&o->server);
}

/* Writes the rows of the benchmark itself and returns how many they are. */
static size_t own_rows(rose_online_opts *o, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Workload", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_STRING("backends", &o->backends, "LIST",
                        "servers to measure in turn: roseinfer, vllm, sglang, trtllm, llama, "
                        "llama-python, transformers (started here; vllm=NAME shows vllm as NAME), "
                        "or url=NAME=http://HOST:PORT"),
        ROSE_ROW_STRING("trace", &o->trace, "FILE",
                        "Azure or BurstGPT CSV, Mooncake or Qwen-Bailian JSONL",
                        .unset = "generated"),
        ROSE_ROW_U32("n", &o->n, "N", 1, 10000000, "use only the first N requests of the trace",
                     .letter = 'n'),
        ROSE_ROW_STRING("scales", &o->scales, "LIST",
                        "open loop: one run for each number, which multiplies the times of the "
                        "trace; smaller is heavier, 0 sends all at once, none means no open loop"),
        ROSE_ROW_STRING("concurrency", &o->concurrency, "LIST",
                        "closed loop: one run for each number of requests at a time",
                        .unset = "none"),
        ROSE_ROW_STRING(
            "goodput", &o->goodput, "LIMITS",
            "search the highest rate that keeps these p99 limits in ms, as ttft:200,tpot:20",
            .unset = "none"),
        ROSE_ROW_U32("goodput-steps", &o->goodput_steps, "N", 1, 64, "runs of that search"),
        ROSE_ROW_U32("max-output-len", &o->max_output_len, "N", 0, 1u << 20,
                     "longest output; 0 is no limit other than the context"),
        ROSE_ROW_U32("max-input-len", &o->max_input_len, "N", 0, 1u << 20, "longest prompt",
                     .unset = "the context"),
        ROSE_ROW_U32("prompt-overhead-tokens", &o->prompt_overhead, "N", 0, 65536,
                     "tokens of the context that are left free for what the server adds to a "
                     "prompt, such as BOS and a chat template"),
        ROSE_ROW_BOOL("shared-prefix", &o->shared_prefix,
                      "every prompt is a prefix of one text; otherwise all are unique"),
        ROSE_ROW_BOOL("trace-prefixes", &o->trace_prefixes,
                      "give prompts the same prefixes as in a trace that has hash ids"),
        ROSE_ROW_BOOL("cold-prefix", &o->cold_prefix,
                      "use other text in each run, so that no run finds a warm prefix cache"),
        ROSE_ROW_U32("warmup-requests", &o->warmup_requests, "N", 0, 10000,
                     "sent one by one before the runs"),
        ROSE_ROW_U32("warmup-input-len", &o->warmup_input_len, "N", 1, 1u << 20,
                     "their prompt tokens"),
        ROSE_ROW_U32("warmup-output-len", &o->warmup_output_len, "N", 1, 1u << 20,
                     "their output tokens"),
        ROSE_ROW_STRING(
            "output-dir", &o->output_dir, "DIR",
            "write online_TIME/online_results.json, online_summary.md and the servers' logs there"),
        ROSE_ROW_BOOL("vllm-results", &o->vllm_results,
                      "also write vllm/BACKEND-LOAD.json for each run, with the keys of vllm bench "
                      "serve --save-detailed"),
        ROSE_ROW_STRING("client-cpus", &o->client_cpus, "LIST",
                        "CPUs of this client, which is one thread", .unset = "not pinned"),
        {.name = "Generated trace", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_FLOAT("rate", &o->rate, "R", 1e-3f, 1e6f, "requests per second at scale 1"),
        ROSE_ROW_FLOAT(
            "burstiness", &o->burstiness, "K", 0.01f, 1e4f,
            "shape of the gamma-distributed gaps between arrivals; 1 is Poisson, less is burstier"),
        ROSE_ROW_CHOICE("ramp-up-strategy", &o->ramp, "none|linear|exponential",
                        "let the rate grow during the run, from request to request; a trace file "
                        "then gives only the lengths"),
        ROSE_ROW_FLOAT("ramp-up-start-rps", &o->ramp_start, "R", 1e-3f, 1e6f, "rate at its start"),
        ROSE_ROW_FLOAT("ramp-up-end-rps", &o->ramp_end, "R", 1e-3f, 1e6f, "rate at its end"),
        ROSE_ROW_FLOAT("input-median", &o->in_median, "N", 1, 1e6f, "log-normal prompt lengths"),
        ROSE_ROW_FLOAT("input-sigma", &o->in_sigma, "S", 0, 5,
                       "sigma of these lengths; 0 makes all equal"),
        ROSE_ROW_FLOAT("output-median", &o->out_median, "N", 1, 1e6f, "log-normal output lengths"),
        ROSE_ROW_FLOAT("output-sigma", &o->out_sigma, "S", 0, 5,
                       "sigma of these lengths; 0 makes all equal"),
        {.name = "Profiles", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_CHOICE("profile", &o->profile, "none|trace|nsys|both",
                        "after the measurements, run each server once more with a profiler: its "
                        "own recorder, nsys, or both; writes profile_manifest.json"),
        ROSE_ROW_FLAG("profile-only", &o->profile_only, "measure nothing, only make the profiles"),
        ROSE_ROW_U32("profile-n", &o->profile_n, "N", 1, 1000000,
                     "use the first N requests of the trace for a profile"),
        ROSE_ROW_FLOAT("profile-scale", &o->profile_scale, "S", 0, 1e6f,
                       "factor on the times of these requests, as in --scales"),
    };
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

int rose_online_opts_parse(rose_online_opts *o, int argc, char **argv, const char **model_dir)
{
    rose_opt opts[48 + ROSE_REQUEST_ROWS + ROSE_SERVER_ROWS];
    opts_init(o);
    size_t n = own_rows(o, opts);
    n += rose_request_flags_rows(&o->req, opts + n);
    n += rose_server_flags_rows(&o->server, false, opts + n);
    const rose_command cmd = {
        .usage = "roseinfer bench online MODEL [options]",
        .about = "Latency under load: replays a trace against one server, or several in turn, and "
                 "records TTFT,\nTPOT, ITL and E2E of every request. The tokenizer of the folder "
                 "MODEL makes the prompts.",
        .opts = opts,
        .n_opts = n,
        .min_args = 1,
        .max_args = 1,
    };
    uint32_t n_args;
    *model_dir = NULL;
    int rc = rose_opts_parse(&cmd, argc, argv, model_dir, &n_args);
    if (rc >= 0) return rc;
    if (o->profile_only && strcmp(o->profile, "none") == 0) {
        fprintf(stderr, "roseinfer: --profile-only needs --profile\n");
        return 2;
    }
    return -1;
}

/* ---- goodput ---- */

rose_status rose_goodput_parse(const char *text, rose_goodput_limits *out, rose_err *err)
{
    *out = (rose_goodput_limits){0};
    for (const char *p = text;;) {
        const char *colon = strchr(p, ':');
        size_t n = colon != NULL ? (size_t)(colon - p) : 0;
        char *end = NULL;
        double *to = n == 4 && strncmp(p, "ttft", 4) == 0   ? &out->ttft
                     : n == 4 && strncmp(p, "tpot", 4) == 0 ? &out->tpot
                     : n == 3 && strncmp(p, "itl", 3) == 0  ? &out->itl
                     : n == 3 && strncmp(p, "e2e", 3) == 0  ? &out->e2e
                                                            : NULL;
        double ms = to != NULL ? strtod(colon + 1, &end) : 0;
        if (to == NULL || !(ms > 0 && ms < 1e9) || (*end != ',' && *end != '\0'))
            return rose_fail(err, ROSE_E_INVAL,
                             "--goodput '%s': expected ttft:MS,tpot:MS,itl:MS,e2e:MS", text);
        *to = ms * 1e-3;
        if (*end == '\0') return ROSE_OK;
        p = end + 1;
    }
}

static bool within(double limit, const rose_summary *s)
{
    return limit <= 0 || s->n == 0 || s->p99 <= limit;
}

bool rose_goodput_met(const rose_goodput_limits *l, const rose_run_stats *s)
{
    return s->n_error == 0 && s->n_success > 0 && within(l->ttft, &s->ttft) &&
           within(l->tpot, &s->tpot) && within(l->itl, &s->itl) && within(l->e2e, &s->e2e);
}
