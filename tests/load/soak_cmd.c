/* tests/load/soak_cmd.c - `load soak`: its options and their defaults. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load/load.h"
#include "load/soak_internal.h"

/* Parses "30m", "90s", "2h" or "45" (seconds). Returns 0 for anything else. */
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
        ROSE_ROW_STRING("duration", &o->duration, "TIME", "length of the open loop: 90s, 30m, 2h"),
        ROSE_ROW_FLOAT("load", &o->load, "X", 0.01f, 100,
                       "rate of the requests, as a multiple of the capacity"),
        ROSE_ROW_FLOAT("capacity", &o->capacity, "RPS", 0, 1e6f,
                       "requests per second that the server completes", .unset = "measured"),
        ROSE_ROW_FLOAT(
            "capacity-s", &o->capacity_s, "S", 0.1f, 3600,
            "how long the capacity is measured; at least the first third does not count"),
        ROSE_ROW_U32("concurrency", &o->concurrency, "N", 1, 65536,
                     "requests at a time while the capacity is measured"),
        ROSE_ROW_FLOAT("input-median", &o->in_median, "N", 1, 1e6f,
                       "prompt tokens; the lengths are log-normal"),
        ROSE_ROW_FLOAT("input-sigma", &o->in_sigma, "S", 0, 5,
                       "sigma of these lengths; 0 = all the same"),
        ROSE_ROW_FLOAT("output-median", &o->out_median, "N", 1, 1e6f, "output tokens"),
        ROSE_ROW_FLOAT("output-sigma", &o->out_sigma, "S", 0, 5, "their spread"),
        ROSE_ROW_U32("slow-percent", &o->slow_percent, "P", 0, 50, "clients that read slowly"),
        ROSE_ROW_U32("leave-percent", &o->leave_percent, "P", 0, 50,
                     "clients that hang up before the end"),
        ROSE_ROW_U32("connections", &o->connections, "N", 1, 65536, "most requests under way"),
        ROSE_ROW_U32("timeout-s", &o->timeout_s, "S", 1, 86400,
                     "longest time of a request; a longer one has failed"),
        ROSE_ROW_U64("seed", &o->seed, "N", 0, 0, "seed of arrivals, lengths and prompts"),
        ROSE_ROW_U32("nice", &o->nice, "N", 0, 19,
                     "nice value of this client, so that it gives way to the server"),
        {.name = "Criteria", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_FLOAT("health-ms", &o->health_ms, "MS", 0.01f, 1e6f, "longest /health"),
        ROSE_ROW_FLOAT("stall-ms", &o->stall_ms, "MS", 0.01f, 1e6f,
                       "a silence within a stream that is longer than this is listed, and must "
                       "have a known cause"),
        ROSE_ROW_FLOAT("growth-mib", &o->growth_mib, "MIB", 0, 1e6f,
                       "most growth of resident memory over the second half"),
        ROSE_ROW_STRING(
            "backend", &o->backend, "NAME",
            "roseinfer, another server as in bench online, or url=NAME=http://HOST:PORT"),
        ROSE_ROW_STRING("output-dir", &o->output_dir, "DIR",
                        "write soak_TIME/soak_results.json there, and the server's log",
                        .unset = "JSON to standard output"),
    };
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

int rose_load_soak(int argc, char **argv)
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
    n += rose_server_flags_rows(&o.server, false, opts + n);
    const char *model;
    const int rc = rose_opts_parse_one(
        "load soak MODEL [options]",
        "Sends more load than the server can take, for long, and checks that refusals are polite, "
        "that\nnothing grows, that /health answers at once, and that every stall has a known "
        "cause.",
        opts, n, argc, argv, &model);
    if (rc >= 0) return rc;
    if (!((o.duration_s = parse_duration(o.duration)) > 0)) {
        fprintf(stderr, "roseinfer: --duration '%s': expected a time as 90s, 30m or 2h\n",
                o.duration);
        return 2;
    }
    return rose_soak_run(model, &o, argc, argv);
}
