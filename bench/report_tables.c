/* bench/report_tables.c - writes results as HTML tables. A value that a file lacks is an empty
 * cell, so results of other versions and of other programs with these keys are shown as far as
 * possible. */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "bench/report_internal.h"
#include "bench/stats.h"

enum { MAX_DEPTH = 6 };

static const char *text_of(const rose_json *o, const char *key)
{
    const char *s = rose_json_text(rose_json_get(o, key));
    return s != NULL ? s : "";
}

/* A number with about four significant digits. */
static void put_number(rose_html *h, double x)
{
    const double a = fabs(x);
    const int places = a >= 1000 || x == floor(x) ? 0 : a >= 100 ? 1 : a >= 10 ? 2 : 3;
    if (!isfinite(x))
        rose_html_raw(h, "-");
    else
        rose_html_raw(h, "%.*f", places, x);
}

static void put_scalar(rose_html *h, const rose_json *v)
{
    if (rose_json_is_string(v))
        rose_html_text(h, rose_json_text(v));
    else if (rose_json_is_integer(v))
        rose_html_raw(h, "%" PRId64, rose_json_int(v));
    else if (rose_json_is_real(v))
        put_number(h, rose_json_real_value(v));
    else if (rose_json_is_boolean(v))
        rose_html_raw(h, rose_json_is_true(v) ? "yes" : "no");
}

static void cell(rose_html *h, const rose_json *v)
{
    rose_html_raw(h, "<td>");
    put_scalar(h, v);
    rose_html_raw(h, "</td>");
}

/* Ends a row with the values of these keys. */
static void key_cells(rose_html *h, const rose_json *o, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        cell(h, rose_json_get(o, keys[i]));
    rose_html_raw(h, "</tr>\n");
}

static void head(rose_html *h, const char *const *columns, size_t n)
{
    rose_html_raw(h, "<div class=\"wide\"><table>\n<thead><tr>");
    for (size_t i = 0; i < n; i++)
        rose_html_raw(h, "<th scope=\"col\">%s</th>", columns[i]);
    rose_html_raw(h, "</tr></thead>\n<tbody>\n");
}

static void foot(rose_html *h)
{
    rose_html_raw(h, "</tbody></table></div>\n");
}

static void name_cell(rose_html *h, const char *text)
{
    rose_html_raw(h, "<tr><th scope=\"row\">");
    rose_html_text(h, text);
    rose_html_raw(h, "</th>");
}

/* The rest of a row that has only an error; it spans the columns after the name. */
static void failed_cell(rose_html *h, int columns, const char *error)
{
    rose_html_raw(h, "<td colspan=\"%d\" class=\"bad\">failed: ", columns);
    rose_html_text(h, error);
    rose_html_raw(h, "</td></tr>\n");
}

/* ---- where it comes from ---- */

static void pair(rose_html *h, const char *key, const rose_json *v)
{
    if (v == NULL || rose_json_is_object(v) || rose_json_is_array(v) || rose_json_is_null(v))
        return;
    name_cell(h, key);
    cell(h, v);
    rose_html_raw(h, "</tr>\n");
}

static void command_line(rose_html *h, const char *what, const char *command)
{
    if (command[0] == '\0') return;
    rose_html_raw(h, "<p class=\"label\">");
    rose_html_text(h, what);
    rose_html_raw(h, "</p>\n<pre>");
    rose_html_text(h, command);
    rose_html_raw(h, "</pre>\n");
}

void rose_report_environment(rose_html *h, const rose_json *root)
{
    rose_json *meta = rose_json_get(root, "meta"), *v;
    const rose_json *by = rose_json_get(root, "by_backend");
    const char *key;
    size_t i;
    rose_html_raw(h, "<details><summary>Environment and command lines</summary>\n"
                     "<div class=\"wide\"><table class=\"pairs\"><tbody>\n");
    rose_json_each (meta, key, v) {
        if (strcmp(key, "command") != 0) pair(h, key, v);
    }
    rose_json_each (rose_json_get(meta, "versions"), key, v)
        pair(h, key, v);
    rose_json_each (rose_json_get(meta, "server_versions"), key, v)
        pair(h, key, v);
    rose_html_raw(h, "</tbody></table></div>\n");
    command_line(h, "this benchmark", text_of(meta, "command"));
    rose_json_each_item (rose_json_get(meta, "merged_from"), i, v)
        command_line(h, "merged from", text_of(v, "command"));
    rose_json_each (by, key, v)
        command_line(h, key, text_of(v, "cmd"));
    rose_json_each_item (rose_json_get(root, "results"), i, v)
        command_line(h, text_of(v, "backend"), text_of(rose_json_get(v, "extra"), "cmd"));
    rose_html_raw(h, "</details>\n");
}

/* ---- online ---- */

static void triple(rose_html *h, const rose_json *row, const char *metric)
{
    static const char *const p[] = {"p50", "p90", "p99"};
    const rose_json *m = rose_json_get(row, metric);
    for (int i = 0; i < 3; i++) {
        const rose_json *v = rose_json_get(m, p[i]);
        rose_html_raw(h, "<td%s>", i == 0 ? " class=\"group\"" : "");
        const double ms = rose_json_number_value(v);
        if (rose_json_is_number(v)) rose_html_raw(h, "%.*f", rose_summary_digits(ms), ms);
        rose_html_raw(h, "</td>");
    }
}

static void load_cell(rose_html *h, const rose_json *row)
{
    const int64_t conc = rose_json_int(rose_json_get(row, "concurrency"));
    if (conc > 0)
        rose_html_raw(h, "<td>%d at once</td>", (int)conc);
    else
        rose_html_raw(h, "<td>scale %g</td>", rose_json_number_value(rose_json_get(row, "scale")));
}

/* A table of the runs whose server reported its guesses, if there are any. */
static void online_guesses(rose_html *h, const rose_json *rows)
{
    static const char *const columns[] = {"backend",
                                          "load",
                                          "guesses",
                                          "guessed tokens",
                                          "accepted",
                                          "acceptance rate",
                                          "tokens a step with a guess"};
    static const char *const keys[] = {"num_drafts", "draft_tokens", "accepted_tokens",
                                       "acceptance_rate", "acceptance_length"};
    size_t i;
    rose_json *row;
    bool began = false;
    rose_json_each_item (rows, i, row) {
        const rose_json *g = rose_json_get(row, "speculation");
        if (!rose_json_is_object(g)) continue;
        if (!began) {
            rose_html_raw(h, "<p>Speculation, by the server's own count.</p>\n");
            head(h, columns, sizeof columns / sizeof *columns);
        }
        began = true;
        name_cell(h, text_of(row, "backend"));
        load_cell(h, row);
        key_cells(h, g, keys, sizeof keys / sizeof *keys);
    }
    if (began) foot(h);
}

static void online_row(rose_html *h, const rose_json *row)
{
    const char *error = text_of(row, "error");
    name_cell(h, text_of(row, "backend"));
    if (error[0] != '\0') {
        failed_cell(h, 18, error);
        return;
    }
    load_cell(h, row);
    cell(h, rose_json_get(row, "offered_rps"));
    rose_html_raw(h, "<td%s>%d/%d</td>",
                  rose_json_int(rose_json_get(row, "num_error")) > 0 ? " class=\"bad\"" : "",
                  (int)rose_json_int(rose_json_get(row, "num_success")),
                  (int)rose_json_int(rose_json_get(row, "num_requests")));
    triple(h, row, "ttft_ms");
    triple(h, row, "tpot_ms");
    triple(h, row, "itl_ms");
    triple(h, row, "e2e_ms");
    cell(h, rose_json_get(row, "req_per_s"));
    cell(h, rose_json_get(row, "tok_per_s"));
    cell(h, rose_json_get(rose_json_get(row, "lateness_ms"), "p99"));
    rose_html_raw(h, "</tr>\n");
}

void rose_report_online(rose_html *h, const rose_json *root)
{
    size_t i;
    const char *key;
    rose_json *row;
    rose_html_raw(h,
                  "<p>Milliseconds over successful requests; scale multiplies the trace's times, "
                  "smaller is heavier. Late: how late this client sent its requests, "
                  "p99.</p>\n<div class=\"wide\"><table>\n<thead><tr><th rowspan=\"2\">backend</th>"
                  "<th rowspan=\"2\">load</th><th rowspan=\"2\">offered req/s</th><th "
                  "rowspan=\"2\">ok</th><th colspan=\"3\">TTFT</th>"
                  "<th colspan=\"3\">TPOT</th><th colspan=\"3\">ITL</th><th colspan=\"3\">E2E</th>"
                  "<th rowspan=\"2\">done req/s</th><th rowspan=\"2\">output tok/s</th>"
                  "<th rowspan=\"2\">late</th></tr>\n<tr>");
    for (int k = 0; k < 4; k++)
        rose_html_raw(h, "<th class=\"group\">p50</th><th>p90</th><th>p99</th>");
    rose_html_raw(h, "</tr></thead>\n<tbody>\n");
    rose_json_each_item (rose_json_get(root, "summaries"), i, row)
        online_row(h, row);
    foot(h);
    online_guesses(h, rose_json_get(root, "summaries"));
    rose_json_each (rose_json_get(root, "by_backend"), key, row) {
        const rose_json *rps = rose_json_get(row, "goodput_rps");
        if (!rose_json_is_number(rps)) continue;
        rose_html_raw(h, "<p>Goodput of ");
        rose_html_text(h, key);
        rose_html_raw(h, ": %.3f req/s within ", rose_json_number_value(rps));
        rose_html_text(h, text_of(row, "goodput_limits"));
        rose_html_raw(h, " ms (p99)");
        const rose_json *done = rose_json_get(row, "goodput_done_rps");
        if (rose_json_is_number(done))
            rose_html_raw(h, ", %.3f done", rose_json_number_value(done));
        rose_html_raw(h, "%s.</p>\n",
                      rose_json_is_null(rose_json_get(row, "goodput_broken_rps"))
                          ? "; no run broke the limits"
                          : "");
    }
}

/* ---- offline ---- */

void rose_report_offline(rose_html *h, const rose_json *root)
{
    static const char *const columns[] = {
        "backend",      "prompts", "input tokens", "output tokens", "req/s",
        "output tok/s", "least",   "most",         "total tok/s",   "total latency (s)"};
    static const char *const keys[] = {"num_prompts",
                                       "total_input_tokens",
                                       "total_output_tokens",
                                       "request_throughput_rps",
                                       "output_throughput_tps",
                                       "output_throughput_tps_min",
                                       "output_throughput_tps_max",
                                       "total_throughput_tps",
                                       "total_s"};
    size_t i;
    rose_json *row;
    rose_html_raw(h, "<p>Each row is the repeat with the median time; next to it are the least and "
                     "the most output tokens per second of all repeats.</p>\n");
    head(h, columns, sizeof columns / sizeof *columns);
    rose_json_each_item (rose_json_get(root, "results"), i, row) {
        const char *error = text_of(rose_json_get(row, "extra"), "error");
        name_cell(h, text_of(row, "backend"));
        if (error[0] != '\0')
            failed_cell(h, 9, error);
        else
            key_cells(h, row, keys, sizeof keys / sizeof *keys);
    }
    foot(h);
}

/* ---- ablate ---- */

static void ablate_row(rose_html *h, const char *name, const rose_json *setting, const char *metric,
                       const rose_json *m)
{
    static const char *const keys[] = {"off_over_on", "min", "max", "noise", "verdict"};
    name_cell(h, name);
    cell(h, rose_json_get(setting, "on"));
    cell(h, rose_json_get(setting, "off"));
    cell(h, rose_json_get(setting, "workload"));
    rose_html_raw(h, "<td>");
    rose_html_text(h, metric);
    rose_html_raw(h, "</td>");
    key_cells(h, m, keys, sizeof keys / sizeof *keys);
}

void rose_report_ablate(rose_html *h, const rose_json *root)
{
    static const char *const columns[] = {"switch", "on",    "off",  "workload", "metric",
                                          "off/on", "least", "most", "noise",    "verdict"};
    const char *name, *metric;
    rose_json *all, *m;
    rose_html_raw(h, "<p>Ratios of times, off over on: above 1 the switch helps.</p>\n");
    head(h, columns, sizeof columns / sizeof *columns);
    rose_json_each (rose_json_get(root, "switches"), name, all) {
        const char *error = text_of(all, "error");
        if (error[0] != '\0') {
            name_cell(h, name);
            failed_cell(h, 9, error);
            continue;
        }
        rose_json_each (all, metric, m) {
            if (rose_json_get(m, "off_over_on") != NULL)
                ablate_row(h, name, rose_json_get(all, "setting"), metric, m);
        }
    }
    foot(h);
}

/* ---- anything ---- */

/* Writes the numbers (want_spread false) or the distributions (true) that are below o, with their
 * paths. */
static void walk(rose_html *h, const rose_json *o, const char *path, bool want_spread, int depth)
{
    static const char *const keys[] = {"n", "mean", "p50", "p90", "p95", "p99", "max"};
    const char *key;
    rose_json *v;
    if (depth > MAX_DEPTH) return;
    rose_json_each (o, key, v) {
        char name[256];
        if (depth == 0 && strcmp(key, "meta") == 0) continue;
        snprintf(name, sizeof name, "%s%s%s", path, path[0] != '\0' ? "." : "", key);
        if (rose_json_is_object(v) && rose_json_get(v, "p50") != NULL) {
            if (!want_spread) continue;
            name_cell(h, name);
            key_cells(h, v, keys, sizeof keys / sizeof *keys);
        } else if (rose_json_is_object(v)) {
            walk(h, v, name, want_spread, depth + 1);
        } else if (!want_spread) {
            pair(h, name, v);
        }
    }
}

static void rows_of_objects(rose_html *h, const rose_json *list)
{
    size_t i;
    const char *key;
    rose_json *row, *v;
    rose_json *first = rose_json_at(list, 0);
    rose_html_raw(h, "<div class=\"wide\"><table>\n<thead><tr>");
    rose_json_each (first, key, v) {
        if (rose_json_is_object(v) || rose_json_is_array(v)) continue;
        rose_html_raw(h, "<th scope=\"col\">");
        rose_html_text(h, key);
        rose_html_raw(h, "</th>");
    }
    rose_html_raw(h, "</tr></thead>\n<tbody>\n");
    rose_json_each_item (list, i, row) {
        rose_html_raw(h, "<tr>");
        rose_json_each (first, key, v) {
            if (!rose_json_is_object(v) && !rose_json_is_array(v)) cell(h, rose_json_get(row, key));
        }
        rose_html_raw(h, "</tr>\n");
    }
    foot(h);
}

void rose_report_any(rose_html *h, const rose_json *root)
{
    static const char *const columns[] = {"", "n", "mean", "p50", "p90", "p95", "p99", "max"};
    rose_html_raw(h, "<div class=\"wide\"><table class=\"pairs\"><tbody>\n");
    walk(h, root, "", false, 0);
    rose_html_raw(h, "</tbody></table></div>\n");
    const size_t before = h->out.len;
    head(h, columns, sizeof columns / sizeof *columns);
    const size_t empty = h->out.len;
    walk(h, root, "", true, 0);
    if (h->st == ROSE_OK && h->out.len == empty)
        h->out.len = before; /* the result has no distribution, so no table is written */
    else
        foot(h);
    const rose_json *rows = rose_json_get(root, "results");
    if (rose_json_is_object(rose_json_at(rows, 0))) rows_of_objects(h, rows);
}
