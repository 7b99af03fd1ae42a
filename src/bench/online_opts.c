/* bench/online_opts.c - the options of `bench online`: one table. */
#include <stdio.h>
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
                            .self_test_rate = 20000,
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

static size_t workload_rows(rose_online_opts *o, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Workload", .kind = ROSE_OPT_HEADING},
        {.name = "backends",
         .kind = ROSE_OPT_STRING,
         .dest = &o->backends,
         .arg = "LIST",
         .help = "servers, in turn: roseinfer, vllm, sglang, trtllm, llama, llama-python, "
                 "transformers (started here; each =NAME to be called so), "
                 "url=NAME=http://HOST:PORT"},
        {.name = "trace",
         .kind = ROSE_OPT_STRING,
         .dest = &o->trace,
         .arg = "FILE",
         .unset = "generated",
         .help = "Azure or BurstGPT CSV, Mooncake or Qwen-Bailian JSONL"},
        {.name = "n",
         .letter = 'n',
         .kind = ROSE_OPT_U32,
         .dest = &o->n,
         .arg = "N",
         .min = 1,
         .max = 10000000,
         .help = "requests of a run: the first of the trace"},
        {.name = "scales",
         .kind = ROSE_OPT_STRING,
         .dest = &o->scales,
         .arg = "LIST",
         .help = "open loop: a run for each, with the trace's times multiplied by it; smaller is "
                 "heavier, 0 sends all at once, none leaves it out"},
        {.name = "concurrency",
         .kind = ROSE_OPT_STRING,
         .dest = &o->concurrency,
         .arg = "LIST",
         .unset = "none",
         .help = "closed loop: a run for each number of requests under way"},
        {.name = "goodput",
         .kind = ROSE_OPT_STRING,
         .dest = &o->goodput,
         .arg = "LIMITS",
         .unset = "none",
         .help = "search the highest rate within p99 limits in ms, as ttft:200,tpot:20"},
        {.name = "goodput-steps",
         .kind = ROSE_OPT_U32,
         .dest = &o->goodput_steps,
         .arg = "N",
         .min = 1,
         .max = 64,
         .help = "runs of that search"},
        {.name = "max-output-len",
         .kind = ROSE_OPT_U32,
         .dest = &o->max_output_len,
         .arg = "N",
         .max = 1u << 20,
         .help = "longest output; 0 is no limit but the context"},
        {.name = "max-input-len",
         .kind = ROSE_OPT_U32,
         .dest = &o->max_input_len,
         .arg = "N",
         .max = 1u << 20,
         .unset = "the context",
         .help = "longest prompt"},
        {.name = "max-model-len",
         .kind = ROSE_OPT_U32,
         .dest = &o->max_model_len,
         .arg = "N",
         .max = 1u << 24,
         .unset = "of config.json",
         .help = "context that lengths are cut to"},
        {.name = "prompt-overhead-tokens",
         .kind = ROSE_OPT_U32,
         .dest = &o->prompt_overhead,
         .arg = "N",
         .max = 65536,
         .help =
             "room left in the context for what the server adds to a prompt: BOS, chat template"},
        {.name = "shared-prefix",
         .kind = ROSE_OPT_BOOL,
         .dest = &o->shared_prefix,
         .help = "every prompt is a prefix of one text; otherwise all are unique"},
        {.name = "trace-prefixes",
         .kind = ROSE_OPT_BOOL,
         .dest = &o->trace_prefixes,
         .help = "follow the prefix structure of a trace that has hash ids"},
        {.name = "cold-prefix",
         .kind = ROSE_OPT_BOOL,
         .dest = &o->cold_prefix,
         .help = "other text in each run, so that no run meets a warm prefix cache"},
        {.name = "warmup-requests",
         .kind = ROSE_OPT_U32,
         .dest = &o->warmup_requests,
         .arg = "N",
         .max = 10000,
         .help = "sent one by one before the runs"},
        {.name = "warmup-input-len",
         .kind = ROSE_OPT_U32,
         .dest = &o->warmup_input_len,
         .arg = "N",
         .min = 1,
         .max = 1u << 20,
         .help = "their prompt tokens"},
        {.name = "warmup-output-len",
         .kind = ROSE_OPT_U32,
         .dest = &o->warmup_output_len,
         .arg = "N",
         .min = 1,
         .max = 1u << 20,
         .help = "their output tokens"},
        {.name = "output-dir",
         .kind = ROSE_OPT_STRING,
         .dest = &o->output_dir,
         .arg = "DIR",
         .help = "write online_TIME/online_results.json, online_summary.md and the servers' logs "
                 "there"},
        {.name = "vllm-results",
         .kind = ROSE_OPT_BOOL,
         .dest = &o->vllm_results,
         .help = "write also vllm/BACKEND-LOAD.json for each run, with the keys of vllm bench "
                 "serve --save-detailed"},
        {.name = "client-cpus",
         .kind = ROSE_OPT_STRING,
         .dest = &o->client_cpus,
         .arg = "LIST",
         .unset = "not pinned",
         .help = "CPU of this client; of a list the first"},
        {.name = "self-test",
         .kind = ROSE_OPT_FLAG,
         .dest = &o->self_test,
         .help = "measure this client's own timing error against an instant server in this "
                 "process; needs no MODEL"},
        {.name = "self-test-rate",
         .kind = ROSE_OPT_U32,
         .dest = &o->self_test_rate,
         .arg = "N",
         .min = 100,
         .max = 1000000,
         .help = "events per second of the self-test"},
    };
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

static size_t profile_rows(rose_online_opts *o, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Profiles", .kind = ROSE_OPT_HEADING},
        {.name = "profile",
         .kind = ROSE_OPT_CHOICE,
         .dest = &o->profile,
         .choices = "none|trace|nsys|both",
         .help = "behind what is measured, each server once more with a profiler on: its own "
                 "recorder, nsys, or both; profile_manifest.json"},
        {.name = "profile-only",
         .kind = ROSE_OPT_FLAG,
         .dest = &o->profile_only,
         .help = "measure nothing, only that"},
        {.name = "profile-n",
         .kind = ROSE_OPT_U32,
         .dest = &o->profile_n,
         .arg = "N",
         .min = 1,
         .max = 1000000,
         .help = "requests of a profile: the first of the trace"},
        {.name = "profile-scale",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->profile_scale,
         .arg = "S",
         .fmax = 1e6f,
         .help = "multiplies their times, as --scales"},
    };
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

static size_t generator_rows(rose_online_opts *o, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Generated trace", .kind = ROSE_OPT_HEADING},
        {.name = "rate",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->rate,
         .arg = "R",
         .fmin = 1e-3f,
         .fmax = 1e6f,
         .help = "requests per second at scale 1"},
        {.name = "burstiness",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->burstiness,
         .arg = "K",
         .fmin = 0.01f,
         .fmax = 1e4f,
         .help = "shape of the gamma arrivals; 1 is Poisson, less is burstier"},
        {.name = "ramp-up-strategy",
         .kind = ROSE_OPT_CHOICE,
         .dest = &o->ramp,
         .choices = "none|linear|exponential",
         .help = "let the rate grow over the run, from request to request; of a trace file only "
                 "the lengths are kept"},
        {.name = "ramp-up-start-rps",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->ramp_start,
         .arg = "R",
         .fmin = 1e-3f,
         .fmax = 1e6f,
         .help = "rate at its start"},
        {.name = "ramp-up-end-rps",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->ramp_end,
         .arg = "R",
         .fmin = 1e-3f,
         .fmax = 1e6f,
         .help = "rate at its end"},
        {.name = "input-median",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->in_median,
         .arg = "N",
         .fmin = 1,
         .fmax = 1e6f,
         .help = "log-normal prompt lengths"},
        {.name = "input-sigma",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->in_sigma,
         .arg = "S",
         .fmax = 5,
         .help = "their spread; 0 makes all equal"},
        {.name = "output-median",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->out_median,
         .arg = "N",
         .fmin = 1,
         .fmax = 1e6f,
         .help = "log-normal output lengths"},
        {.name = "output-sigma",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->out_sigma,
         .arg = "S",
         .fmax = 5,
         .help = "their spread; 0 makes all equal"},
    };
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

int rose_online_opts_parse(rose_online_opts *o, int argc, char **argv, const char **model_dir)
{
    rose_opt opts[48 + ROSE_REQUEST_ROWS + ROSE_SERVER_ROWS];
    opts_init(o);
    size_t n = workload_rows(o, opts);
    n += generator_rows(o, opts + n);
    n += profile_rows(o, opts + n);
    n += rose_request_flags_rows(&o->req, opts + n);
    n += rose_server_flags_rows(&o->server, opts + n);
    const rose_command cmd = {
        .usage = "roseinfer bench online MODEL [options]",
        .about = "Latency under load: replays a trace against one server or several in turn, and "
                 "records TTFT,\nTPOT, ITL and E2E of every request. MODEL is the folder whose "
                 "tokenizer makes the prompts.",
        .opts = opts,
        .n_opts = n,
        .min_args = 0,
        .max_args = 1,
    };
    uint32_t n_args;
    *model_dir = NULL;
    int rc = rose_opts_parse(&cmd, argc, argv, model_dir, &n_args);
    if (rc >= 0) return rc;
    if (n_args == 0 && !o->self_test) {
        fprintf(stderr, "roseinfer: bench online needs a MODEL\n");
        return 2;
    }
    if (o->profile_only && strcmp(o->profile, "none") == 0) {
        fprintf(stderr, "roseinfer: --profile-only needs --profile\n");
        return 2;
    }
    return -1;
}
