/* bench/soak_cmd.c - `roseinfer bench soak`: its options and their defaults. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "bench/soak_internal.h"

/* "30m", "90s", "2h", "45" (seconds); 0 = none of these. */
static double parse_duration(const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || !(v > 0) || v > 1e6) return 0;
    if (strcmp(end, "h") == 0) return v * 3600;
    if (strcmp(end, "m") == 0) return v * 60;
    return *end == '\0' || strcmp(end, "s") == 0 ? v : 0;
}

static size_t soak_rows(rose_soak_opts *o, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Load", .kind = ROSE_OPT_HEADING},
        {.name = "duration",
         .kind = ROSE_OPT_STRING,
         .dest = &o->duration,
         .arg = "TIME",
         .help = "of the open loop: 90s, 30m, 2h"},
        {.name = "load",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->load,
         .arg = "X",
         .fmin = 0.01f,
         .fmax = 100,
         .help = "requests are sent at so many times the capacity"},
        {.name = "capacity",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->capacity,
         .arg = "RPS",
         .fmax = 1e6f,
         .unset = "measured",
         .help = "requests per second that the server completes"},
        {.name = "capacity-s",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->capacity_s,
         .arg = "S",
         .fmin = 0.1f,
         .fmax = 3600,
         .help = "length of its measurement; at least the first third is not counted"},
        {.name = "concurrency",
         .kind = ROSE_OPT_U32,
         .dest = &o->concurrency,
         .arg = "N",
         .min = 1,
         .max = 65536,
         .help = "requests at a time in that measurement"},
        {.name = "input-median",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->in_median,
         .arg = "N",
         .fmin = 1,
         .fmax = 1e6f,
         .help = "prompt tokens; the lengths are log-normal"},
        {.name = "input-sigma",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->in_sigma,
         .arg = "S",
         .fmax = 5,
         .help = "their spread; 0 = all the same"},
        {.name = "output-median",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->out_median,
         .arg = "N",
         .fmin = 1,
         .fmax = 1e6f,
         .help = "output tokens"},
        {.name = "output-sigma",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->out_sigma,
         .arg = "S",
         .fmax = 5,
         .help = "their spread"},
        {.name = "slow-percent",
         .kind = ROSE_OPT_U32,
         .dest = &o->slow_percent,
         .arg = "P",
         .max = 50,
         .help = "clients that read slowly"},
        {.name = "leave-percent",
         .kind = ROSE_OPT_U32,
         .dest = &o->leave_percent,
         .arg = "P",
         .max = 50,
         .help = "clients that hang up before the end"},
        {.name = "connections",
         .kind = ROSE_OPT_U32,
         .dest = &o->connections,
         .arg = "N",
         .min = 1,
         .max = 65536,
         .help = "most requests under way"},
        {.name = "timeout-s",
         .kind = ROSE_OPT_U32,
         .dest = &o->timeout_s,
         .arg = "S",
         .min = 1,
         .max = 86400,
         .help = "longest request; over: it failed"},
        {.name = "seed",
         .kind = ROSE_OPT_U64,
         .dest = &o->seed,
         .arg = "N",
         .max = UINT64_MAX,
         .help = "of arrivals, lengths and prompts"},
        {.name = "nice",
         .kind = ROSE_OPT_U32,
         .dest = &o->nice,
         .arg = "N",
         .max = 19,
         .help = "how far this client gives way to the server"},
        {.name = "Criteria", .kind = ROSE_OPT_HEADING},
        {.name = "health-ms",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->health_ms,
         .arg = "MS",
         .fmin = 0.01f,
         .fmax = 1e6f,
         .help = "longest /health"},
        {.name = "stall-ms",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->stall_ms,
         .arg = "MS",
         .fmin = 0.01f,
         .fmax = 1e6f,
         .help = "a longer silence within a stream is listed, and needs a cause"},
        {.name = "growth-mib",
         .kind = ROSE_OPT_FLOAT,
         .dest = &o->growth_mib,
         .arg = "MIB",
         .fmax = 1e6f,
         .help = "most growth of resident memory over the second half"},
        {.name = "backend",
         .kind = ROSE_OPT_STRING,
         .dest = &o->backend,
         .arg = "NAME",
         .help = "roseinfer, another known one, or url=NAME=http://HOST:PORT"},
        {.name = "output-dir",
         .kind = ROSE_OPT_STRING,
         .dest = &o->output_dir,
         .arg = "DIR",
         .unset = "JSON to standard output",
         .help = "write soak_TIME/soak_results.json there, and the server's log"},
    };
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

int rose_bench_soak(int argc, char **argv)
{
    static rose_soak_opts o;
    o = (rose_soak_opts){.duration = "30m",
                         .load = 1.5f,
                         .capacity_s = 15,
                         .concurrency = 256,
                         .in_median = 96,
                         .in_sigma = 0.8f,
                         .out_median = 48,
                         .out_sigma = 0.6f,
                         .slow_percent = 3,
                         .leave_percent = 7,
                         .stall_ms = 250,
                         .health_ms = 10,
                         .growth_mib = 8,
                         .connections = 8192,
                         .timeout_s = 120,
                         .nice = 5,
                         .backend = "roseinfer",
                         .seed = 1};
    rose_server_flags_init(&o.server);
    rose_opt opts[32 + ROSE_SERVER_ROWS];
    size_t n = soak_rows(&o, opts);
    n += rose_server_flags_rows(&o.server, opts + n);
    const rose_command cmd = {
        .usage = "roseinfer bench soak MODEL [options]",
        .about = "More load than the server can take, for long: are refusals polite, does nothing "
                 "grow, does\n/health answer at once, has every stall a cause?",
        .opts = opts,
        .n_opts = n,
        .min_args = 1,
        .max_args = 1,
    };
    const char *args[1];
    uint32_t n_args;
    int rc = rose_opts_parse(&cmd, argc, argv, args, &n_args);
    if (rc >= 0) return rc;
    if (!((o.duration_s = parse_duration(o.duration)) > 0)) {
        fprintf(stderr, "roseinfer: --duration '%s': expected a time as 90s, 30m or 2h\n",
                o.duration);
        return 2;
    }
    return rose_soak_run(args[0], &o, argc, argv);
}
