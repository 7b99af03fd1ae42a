/* tests/load/soak_report.c - the report of a soak: a verdict for each criterion, with the figures
 * that it is based on. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/results.h"
#include "load/soak_internal.h"

enum {
    MAX_ROWS = 600,
    MAX_LISTED = 200,
    GPU_LEAST_MIB = 64, /* a CUDA context alone takes more than this */
    GPU_GROWTH_MIB = 2  /* the driver takes memory in pieces of this size */
};
static const double mib = 1048576.0;

double rose_fit_slope(const double *x, const double *y, size_t n)
{
    double mx = 0, my = 0, sxx = 0, sxy = 0;
    for (size_t i = 0; i < n; i++) {
        mx += x[i] / (double)n;
        my += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        sxx += (x[i] - mx) * (x[i] - mx);
        sxy += (x[i] - mx) * (y[i] - my);
    }
    return sxx > 0 ? sxy / sxx : 0;
}

/* ---- causes ---- */

static uint32_t tick_before(const rose_soak *s, uint64_t t_ns)
{
    uint32_t lo = 0, hi = s->n_ticks;
    while (lo + 1 < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (s->ticks[mid].t_ns <= t_ns)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* The longest time that one thread of the server waited for a CPU between the ticks around [from,
 * to]. */
static uint64_t cpu_wait(const rose_soak *s, uint64_t from_ns, uint64_t to_ns)
{
    uint64_t most = 0;
    if (s->n_ticks < 2) return 0;
    uint32_t a = tick_before(s, from_ns), b = tick_before(s, to_ns);
    if (b + 1 < s->n_ticks) b++;
    const rose_soak_tick *x = &s->ticks[a], *y = &s->ticks[b];
    for (uint32_t i = 0; i < x->n_threads && i < y->n_threads; i++) {
        uint64_t d = y->wait_ns[i] > x->wait_ns[i] ? y->wait_ns[i] - x->wait_ns[i] : 0;
        if (d > most) most = d;
    }
    return most;
}

/* The preemptions counted between the samples around [from, to]. */
static double preemptions(const rose_soak *s, uint64_t from_ns, uint64_t to_ns)
{
    double before = 0, after = 0;
    for (uint32_t i = 0; i < s->n_samples; i++) {
        if (s->samples[i].t_ns <= from_ns) before = s->samples[i].w.preemptions;
        after = s->samples[i].w.preemptions;
        if (s->samples[i].t_ns >= to_ns) break;
    }
    return after - before;
}

/* Names the cause of a stall, or returns NULL if nothing explains it. */
static const char *cause(const rose_soak *s, uint64_t from_ns, uint64_t to_ns)
{
    if (cpu_wait(s, from_ns, to_ns) >= (to_ns - from_ns) / 2)
        return "a thread of the server waited for a CPU";
    if (preemptions(s, from_ns, to_ns) > 0) return "preemption: the pages ran out";
    return NULL;
}

static const char *stall_cause(const rose_soak *s, const rose_stall *p)
{
    if (p->n_held > 0)
        return "a character made of several tokens: the first ones wait for the last one";
    return cause(s, p->from_ns, p->to_ns);
}

static rose_json *interval_json(const rose_soak *s, uint64_t from_ns, uint64_t to_ns,
                                const char *why)
{
    return rose_json_pack("{s:f, s:f, s:f, s:s?}", "at_s", (double)(from_ns - s->start_ns) * 1e-9,
                          "ms", (double)(to_ns - from_ns) * 1e-6, "cpu_wait_ms",
                          (double)cpu_wait(s, from_ns, to_ns) * 1e-6, "cause", why);
}

/* ---- growth ---- */

typedef struct growth {
    double rss_mib, fds; /* growth over the second half of the run, by the fitted line */
} growth;

static growth fit(const rose_soak *s)
{
    const uint32_t first = s->n_samples / 2, n = s->n_samples - first;
    double *x = calloc(n + 1, sizeof *x), *rss = calloc(n + 1, sizeof *rss),
           *fds = calloc(n + 1, sizeof *fds);
    growth g = {(double)NAN, (double)NAN};
    if (x != NULL && rss != NULL && fds != NULL && n >= 2) {
        for (uint32_t i = 0; i < n; i++) {
            const rose_soak_sample *p = &s->samples[first + i];
            x[i] = (double)(p->t_ns - s->start_ns) * 1e-9;
            rss[i] = p->w.resident_bytes / mib;
            fds[i] = p->w.open_fds;
        }
        const double span = x[n - 1] - x[0];
        g = (growth){rose_fit_slope(x, rss, n) * span, rose_fit_slope(x, fds, n) * span};
    }
    free(x);
    free(rss);
    free(fds);
    return g;
}

/* The GPU memory of the server at each sample. If the driver does not report it by process, this is
 * the use by all processes minus the use before the server started. */
typedef struct gpu_memory {
    bool any; /* there is a GPU, and the server uses some of its memory */
    bool process;
    double first, last, max; /* MiB */
} gpu_memory;

static double gpu_mib(const rose_soak *s, const rose_soak_sample *p, bool process)
{
    const uint64_t before = s->gpu_before_bytes, now = p->gpu.device_bytes;
    if (process) return (double)p->gpu.process_bytes / mib;
    return now > before ? (double)(now - before) / mib : 0;
}

static gpu_memory gpu_of(const rose_soak *s)
{
    gpu_memory g = {0};
    if (s->n_samples == 0 || !s->samples[0].gpu.known) return g;
    g.process = s->samples[0].gpu.process_bytes > 0;
    g.first = g.last = g.max = gpu_mib(s, &s->samples[0], g.process);
    g.any = g.first >= GPU_LEAST_MIB;
    for (uint32_t i = 1; i < s->n_samples; i++) {
        if (!s->samples[i].gpu.known) continue;
        g.last = gpu_mib(s, &s->samples[i], g.process);
        if (g.last > g.max) g.max = g.last;
    }
    return g;
}

/* ---- verdicts ---- */

static bool verdict(rose_json *list, const char *name, bool pass, const char *detail)
{
    fprintf(stderr, "%s  %s: %s\n", pass ? "pass" : "FAIL", name, detail);
    rose_json_append_new(list, rose_json_pack("{s:s, s:b, s:s}", "criterion", name, "pass",
                                              (int)pass, "detail", detail));
    return pass;
}

static bool judge_replies(const rose_soak *s, rose_json *list)
{
    char d[480];
    bool ok = true;
    snprintf(d, sizeof d, "%s",
             s->died[0] != '\0' ? s->died
             : s->hung          ? "the server no longer answers"
                                : "to the end");
    ok &= verdict(list, "the server lives", s->died[0] == '\0' && !s->hung, d);
    snprintf(d, sizeof d,
             "%" PRIu64 " with 429, %" PRIu64 " of them without Retry-After; %" PRIu64
             " with another status%s",
             s->n_refused, s->n_refused_bare, s->n_other_status, s->n_other_status > 0 ? ":" : "");
    if (s->n_other_status > 0)
        snprintf(d + strlen(d), sizeof d - strlen(d), " %d", s->other_status);
    ok &= verdict(list, "refusals are 429 with Retry-After",
                  s->n_refused_bare == 0 && s->n_other_status == 0, d);
    snprintf(d, sizeof d,
             "%" PRIu64 " replies whole, %" PRIu64 " clients left, %" PRIu64
             " slow readers dropped; %" PRIu64 " failed%s%s",
             s->n_ok, s->n_left, s->n_slow_dropped, s->n_failed, s->n_failed > 0 ? ": " : "",
             s->first_error);
    ok &= verdict(list, "every accepted request got its whole reply",
                  s->n_failed == 0 && s->n_ok > 0, d);
    return ok;
}

static bool judge_growth(const rose_soak *s, const growth *g, rose_json *list)
{
    char d[240];
    bool ok = true;
    snprintf(d, sizeof d,
             "memory %+.2f MiB and descriptors %+.1f over the second half by a fitted line",
             g->rss_mib, g->fds);
    ok &= verdict(list, "nothing grows", g->rss_mib <= (double)s->o->growth_mib, d);
    snprintf(d, sizeof d,
             "%.0f running, %.0f waiting, %.0f of %.0f pages free, %.0f descriptors (%.0f before)",
             s->end.running, s->end.waiting, s->end.kv_pages_free, s->end.kv_pages, s->end.open_fds,
             s->fresh.open_fds);
    ok &= verdict(list, "afterwards all is free", s->settled, d);
    return ok;
}

static const char *gpu_of_whom(const gpu_memory *g)
{
    return g->process ? "process" : "device";
}

static bool judge_gpu(const gpu_memory *g, rose_json *list)
{
    char d[160];
    if (!g->any) return true;
    snprintf(d, sizeof d, "%.1f MiB of the %s at first, %.1f at last, %.1f at most", g->first,
             gpu_of_whom(g), g->last, g->max);
    return verdict(list, "GPU memory does not grow", g->max < g->first + GPU_GROWTH_MIB, d);
}

static rose_json *gpu_json(const gpu_memory *g)
{
    if (!g->any) return rose_json_null();
    return rose_json_pack("{s:s, s:f, s:f, s:f}", "of", gpu_of_whom(g), "first", g->first, "last",
                          g->last, "max", g->max);
}

static bool judge_latency(const rose_soak *s, rose_json *list)
{
    char d[240];
    bool ok = true;
    uint32_t listed =
        s->n_slow_health < ROSE_SOAK_MAX_STALLS ? s->n_slow_health : ROSE_SOAK_MAX_STALLS;
    uint32_t explained = 0, unexplained = 0;
    for (uint32_t i = 0; i < listed; i++)
        explained += cause(s, s->slow_health[i].from_ns, s->slow_health[i].to_ns) != NULL;
    snprintf(d, sizeof d,
             "p50 %.2f, p99 %.2f, max %.2f ms of %" PRIu64 "; %" PRIu32 " over, %" PRIu32
             " of them while a thread of the server waited for a CPU; %" PRIu32 " failed",
             (double)rose_spread_percentile(&s->health, 50) * 1e-6,
             (double)rose_spread_percentile(&s->health, 99) * 1e-6, (double)s->health.max * 1e-6,
             s->health.n, s->n_slow_health, explained, s->n_health_failed);
    char name[64];
    snprintf(name, sizeof name, "/health under %g ms throughout", (double)s->o->health_ms);
    ok &=
        verdict(list, name, s->n_slow_health == 0 && s->n_health_failed == 0 && s->health.n > 0, d);
    listed = s->n_stalls < ROSE_SOAK_MAX_STALLS ? s->n_stalls : ROSE_SOAK_MAX_STALLS;
    for (uint32_t i = 0; i < listed; i++)
        unexplained += stall_cause(s, &s->stalls[i]) == NULL;
    unexplained += s->n_stalls - listed;
    snprintf(d, sizeof d,
             "%" PRIu32 " silences over %g ms, %" PRIu32
             " of unknown cause; ITL p50 %.2f, p99 %.2f, "
             "worst %.1f ms",
             s->n_stalls, (double)s->o->stall_ms, unexplained,
             (double)rose_spread_percentile(&s->itl, 50) * 1e-6,
             (double)rose_spread_percentile(&s->itl, 99) * 1e-6, (double)s->itl.max * 1e-6);
    ok &= verdict(list, "no stall unexplained", unexplained == 0, d);
    return ok;
}

static bool judge_client(const rose_soak *s, rose_json *list)
{
    char d[240];
    const double span = (double)(s->end_ns - s->start_ns) * 1e-9;
    snprintf(d, sizeof d,
             "%.1f requests/s sent of %.1f asked for (capacity %.1f), late p99 %.2f, max %.1f ms, "
             "%" PRIu64 " not sent for lack of connections, %.1f %% of a CPU",
             span > 0 ? (double)s->n_sent / span : 0, s->rate_rps, s->capacity_rps,
             (double)rose_spread_percentile(&s->late, 99) * 1e-6, (double)s->late.max * 1e-6,
             s->n_unsent, span > 0 ? s->client_cpu_s / span * 100 : 0);
    return verdict(list, "the client kept up",
                   s->n_unsent == 0 && rose_spread_percentile(&s->late, 99) < 100000000, d);
}

/* ---- JSON ---- */

static rose_json *sample_json(const rose_soak *s, const rose_soak_sample *p, const gpu_memory *g)
{
    if (!g->any || !p->gpu.known) return rose_json_null();
    return rose_json_real(gpu_mib(s, p, g->process));
}

static rose_json *series_json(const rose_soak *s, const gpu_memory *g)
{
    rose_json *rows = rose_json_array();
    const uint32_t every = s->n_samples / MAX_ROWS + 1;
    for (uint32_t i = 0; i < s->n_samples; i += every) {
        const rose_soak_sample *p = &s->samples[i];
        rose_json_append_new(rows, rose_json_pack("{s:f, s:f, s:o, s:f, s:f, s:f, s:f, s:f}", "t_s",
                                                  (double)(p->t_ns - s->start_ns) * 1e-9, "rss_mib",
                                                  p->w.resident_bytes / mib, "gpu_mib",
                                                  sample_json(s, p, g), "fds", p->w.open_fds,
                                                  "pages_free", p->w.kv_pages_free, "running",
                                                  p->w.running, "waiting", p->w.waiting,
                                                  "preemptions", p->w.preemptions));
    }
    return rows;
}

static rose_json *stalls_json(const rose_soak *s)
{
    rose_json *list = rose_json_array();
    for (uint32_t i = 0; i < s->n_stalls && i < MAX_LISTED; i++) {
        const rose_stall *p = &s->stalls[i];
        rose_json *o = interval_json(s, p->from_ns, p->to_ns, stall_cause(s, p));
        rose_json_set_new(o, "streams", rose_json_integer(p->n_streams));
        rose_json_set_new(o, "tokens_held", rose_json_integer(p->n_held));
        rose_json_append_new(list, o);
    }
    return list;
}

static rose_json *slow_health_json(const rose_soak *s)
{
    rose_json *list = rose_json_array();
    for (uint32_t i = 0; i < s->n_slow_health && i < MAX_LISTED; i++) {
        const rose_slow_health *p = &s->slow_health[i];
        rose_json_append_new(
            list, interval_json(s, p->from_ns, p->to_ns, cause(s, p->from_ns, p->to_ns)));
    }
    return list;
}

/* null if there were too few samples for a line */
static rose_json *number_json(double x)
{
    return isnan(x) ? rose_json_null() : rose_json_real(x);
}

static rose_json *counts_json(const rose_soak *s)
{
    return rose_json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "sent", (int64_t)s->n_sent, "whole",
        (int64_t)s->n_ok, "refused_429", (int64_t)s->n_refused, "refused_without_retry_after",
        (int64_t)s->n_refused_bare, "other_status", (int64_t)s->n_other_status, "left",
        (int64_t)s->n_left, "slow_whole", (int64_t)s->n_slow_ok, "slow_dropped",
        (int64_t)s->n_slow_dropped, "failed", (int64_t)s->n_failed, "unsent", (int64_t)s->n_unsent);
}

int rose_soak_report(const rose_soak *s, int argc, char **argv)
{
    rose_json *list = rose_json_array();
    const growth g = fit(s);
    const gpu_memory gpu = gpu_of(s);
    bool ok = judge_replies(s, list);
    ok &= judge_growth(s, &g, list);
    ok &= judge_gpu(&gpu, list);
    ok &= judge_latency(s, list);
    ok &= judge_client(s, list);
    if (s->server.command.len > 0)
        ok &= verdict(list, "the server ends with exit code 0", s->clean_exit, "after SIGTERM");
    if (s->stopped) fprintf(stderr, "the run was stopped early\n");
    rose_json *root = rose_json_pack(
        "{s:o, s:o, s:f, s:f, s:f, s:f, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o, s:b}",
        "meta", rose_results_meta(argc, argv), "server",
        rose_results_stringn(s->server.command.data, s->server.command.len), "duration_s",
        (double)(s->end_ns - s->start_ns) * 1e-9, "load", (double)s->o->load, "capacity_rps",
        s->capacity_rps, "rate_rps", s->rate_rps, "stopped_early", (int)s->stopped, "counts",
        counts_json(s), "ttft_ms", rose_spread_json(&s->ttft, 1e-6), "itl_ms",
        rose_spread_json(&s->itl, 1e-6), "e2e_ms", rose_spread_json(&s->e2e, 1e-6), "health_ms",
        rose_spread_json(&s->health, 1e-6), "client_lateness_ms", rose_spread_json(&s->late, 1e-6),
        "rss_growth_second_half_mib", number_json(g.rss_mib), "fds_growth_second_half",
        number_json(g.fds), "gpu_memory_mib", gpu_json(&gpu), "criteria", list, "stalls",
        stalls_json(s), "slow_health", slow_health_json(s), "series", series_json(s, &gpu), "pass",
        (int)ok);
    int rc = rose_results_emit(root, s->o->output_dir, "soak");
    return ok ? rc : 1;
}
