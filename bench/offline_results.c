/* bench/offline_results.c - writes offline_results.json, with the keys of an earlier benchmark
 * suite in Python plus repeats and spread, and offline_summary.md. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/offline_internal.h"
#include "bench/results.h"
#include "bench/stats.h"

static rose_json *run_json(const rose_offline_run *r, uint32_t n)
{
    return rose_json_pack(
        "{s:f, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "total_s", r->total_s,
        "total_input_tokens", (int64_t)r->input_tokens, "total_output_tokens",
        (int64_t)r->output_tokens, "request_throughput_rps", n / r->total_s,
        "output_throughput_tps", (double)r->output_tokens / r->total_s, "total_throughput_tps",
        (double)(r->input_tokens + r->output_tokens) / r->total_s, "ttft_p50_ms",
        rose_number_json(r->ttft_p50 * 1e3), "ttft_p99_ms", rose_number_json(r->ttft_p99 * 1e3),
        "tpot_p50_ms", rose_number_json(r->tpot_p50 * 1e3), "tpot_p99_ms",
        rose_number_json(r->tpot_p99 * 1e3));
}

static int by_time(const void *a, const void *b)
{
    const rose_offline_run *x = a, *y = b;
    return (x->total_s > y->total_s) - (x->total_s < y->total_s);
}

/* A backend that failed gets a row of zeros, as that suite writes it. prefill_s and decode_s are
 * null, because chunked prefill overlaps with decode. */
static void add_zeros(rose_json *row)
{
    static const char *const zeros[] = {
        "total_input_tokens",     "total_output_tokens",   "total_s",
        "request_throughput_rps", "output_throughput_tps", "total_throughput_tps"};
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        rose_json_set_new(row, zeros[i], rose_json_integer(0));
}

static void add_runs(rose_json *row, const rose_offline_result *r, const rose_offline_work *w)
{
    rose_json *repeats = rose_json_array();
    double tps[2] = {(double)INFINITY, 0};
    for (uint32_t i = 0; i < r->n_runs; i++) {
        const double x = (double)r->runs[i].output_tokens / r->runs[i].total_s;
        tps[0] = fmin(tps[0], x);
        tps[1] = fmax(tps[1], x);
        rose_json_append_new(repeats, run_json(&r->runs[i], w->n));
    }
    qsort(r->runs, r->n_runs, sizeof *r->runs, by_time);
    rose_json *median = run_json(&r->runs[(r->n_runs - 1) / 2], w->n);
    rose_json_update(row, median);
    rose_json_decref(median);
    rose_json_set_new(row, "output_throughput_tps_min", rose_json_real(tps[0]));
    rose_json_set_new(row, "output_throughput_tps_max", rose_json_real(tps[1]));
    rose_json_set_new(row, "repeats", repeats);
}

rose_json *rose_offline_row(const rose_offline_result *r, const rose_offline_work *w,
                            const char *model)
{
    uint64_t in = 0, out = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        in += w->rows[i].n_in;
        out += w->rows[i].n_out;
    }
    rose_json *extra = r->extra != NULL ? rose_json_incref(r->extra) : rose_json_object();
    const char *device = rose_json_text(rose_json_get(extra, "device"));
    rose_json *row = rose_json_pack("{s:s, s:o, s:s?, s:i, s:f, s:f, s:n, s:n}", "backend",
                                    r->label, "model", rose_results_string(model), "device", device,
                                    "num_prompts", (int)w->n, "input_len", (double)in / w->n,
                                    "output_len", (double)out / w->n, "prefill_s", "decode_s");
    if (r->n_runs > 0)
        add_runs(row, r, w); /* the row includes the repeats that were measured before the
                              * backend failed */
    else
        add_zeros(row);
    rose_json_set_new(row, "ready_s",
                      r->ready_s > 0 ? rose_json_real(r->ready_s) : rose_json_null());
    rose_json_set_new(row, "resident_peak_bytes",
                      r->resident_peak_bytes > 0
                          ? rose_json_integer((int64_t)r->resident_peak_bytes)
                          : rose_json_null());
    if (r->error[0] != '\0') rose_json_set_new(extra, "error", rose_results_string(r->error));
    rose_json_set_new(row, "extra", extra);
    return row;
}

static double number(const rose_json *row, const char *key)
{
    return rose_json_number_value(rose_json_get(row, key));
}

/* Prints " a/b |" for two keys, or a dash if one is not known. */
static void print_pair(FILE *f, const rose_json *row, const char *p50, const char *p99)
{
    if (rose_json_is_number(rose_json_get(row, p50)) &&
        rose_json_is_number(rose_json_get(row, p99)))
        fprintf(f, " %.1f/%.1f |", number(row, p50), number(row, p99));
    else
        fputs(" - |", f);
}

static void print_row(FILE *f, const rose_json *row, const rose_json *meta)
{
    const char *label = rose_json_text(rose_json_get(row, "backend"));
    const char *error = rose_json_text(rose_json_get(rose_json_get(row, "extra"), "error"));
    if (label == NULL) label = rose_json_text(rose_json_get(meta, "backend"));
    fprintf(f, "| %s |", label != NULL ? label : "?");
    if (error != NULL) {
        fprintf(f, " failed: %s | | | | | | | | |\n", error);
        return;
    }
    fprintf(f, " %.0f | %.2f | %.1f", number(row, "num_prompts"),
            number(row, "request_throughput_rps"), number(row, "output_throughput_tps"));
    if (rose_json_count(rose_json_get(row, "repeats")) > 1)
        fprintf(f, " (%.1f to %.1f)", number(row, "output_throughput_tps_min"),
                number(row, "output_throughput_tps_max"));
    fprintf(f, " | %.1f | %.3f |", number(row, "total_throughput_tps"), number(row, "total_s"));
    print_pair(f, row, "ttft_p50_ms", "ttft_p99_ms");
    print_pair(f, row, "tpot_p50_ms", "tpot_p99_ms");
    rose_summary_cell(f, rose_json_get(row, "ready_s"), 1, 3);
    rose_summary_cell(f, rose_json_get(row, "resident_peak_bytes"), 1.0 / 1048576, 0);
    fputc('\n', f);
}

rose_status rose_offline_summary(const rose_json *root, const char *dir, rose_err *err)
{
    rose_summary_file s;
    size_t i;
    const rose_json *row;
    rose_status st = rose_summary_open(
        &s, root, dir, "offline_summary.md", "Offline throughput",
        "Each row is the repeat with the median time; in brackets the least and the most of all "
        "repeats. TTFT and TPOT in ms as p50/p99.",
        "backend | prompts | req/s | output tok/s | total tok/s | total latency (s) | TTFT | TPOT "
        "| ready (s) | peak MiB",
        err);
    if (st != ROSE_OK) return st;
    rose_json_each_item (rose_json_get(root, "results"), i, row)
        print_row(s.f, row, rose_json_get(root, "meta"));
    return rose_summary_close(&s, err);
}

void rose_offline_times(rose_offline_run *out, rose_samples *ttft, rose_samples *tpot)
{
    const rose_summary first = rose_summarise(ttft->v, ttft->n);
    const rose_summary token = rose_summarise(tpot->v, tpot->n);
    out->ttft_p50 = first.p50;
    out->ttft_p99 = first.p99;
    out->tpot_p50 = token.p50;
    out->tpot_p99 = token.p99;
    rose_samples_free(ttft);
    rose_samples_free(tpot);
}
