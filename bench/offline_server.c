/* bench/offline_server.c - runs the offline workload through a server: the same token ids over
 * HTTP, all sent at once, each on a connection of its own. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fds.h"
#include "bench/offline_internal.h"
#include "bench/profile_call.h"
#include "bench/results.h"
#include "bench/stats.h"
#include "bench/watch.h"

static rose_status write_body(const rose_offline_work *w, uint64_t seed, uint32_t i,
                              const char *model, uint32_t *ids, rose_buf *b)
{
    rose_json *name = rose_json_string(model);
    char *quoted = name != NULL ? rose_json_dumps(name, 0) : NULL;
    rose_status st = quoted == NULL ? ROSE_E_NOMEM : ROSE_OK;
    rose_offline_prompt(w, seed, i, ids);
    if (st == ROSE_OK) st = rose_buf_addf(b, "{\"model\":%s,\"prompt\":[", quoted);
    for (uint32_t j = 0; j < w->rows[i].n_in && st == ROSE_OK; j++)
        st = rose_buf_addf(b, "%s%" PRIu32, j > 0 ? "," : "", ids[j]);
    if (st == ROSE_OK)
        st = rose_buf_addf(b,
                           "],\"max_tokens\":%" PRIu32
                           ",\"temperature\":%g,\"top_p\":%g,\"top_k\":%" PRIu32
                           ",\"ignore_eos\":true,\"stream\":true,"
                           "\"stream_options\":{\"include_usage\":true}",
                           w->rows[i].n_out, (double)w->temperature, (double)w->top_p, w->top_k);
    if (st == ROSE_OK && w->send_seed)
        st = rose_buf_addf(b, ",\"seed\":%" PRIu64, (seed + i) & INT64_MAX);
    if (st == ROSE_OK) st = rose_buf_add(b, "}", 1);
    free(quoted);
    rose_json_decref(name);
    return st;
}

static rose_status summarise(const rose_offline_work *w, const rose_reply *replies,
                             rose_offline_run *out, rose_err *err)
{
    uint64_t start = UINT64_MAX, end = 0;
    rose_samples ttft = {0}, tpot = {0};
    rose_status st = ROSE_OK;
    *out = (rose_offline_run){0};
    for (uint32_t i = 0; i < w->n && st == ROSE_OK; i++) {
        const rose_reply *r = &replies[i];
        if (r->error[0] != '\0')
            st = rose_fail(err, ROSE_E_CLOSED, "request %" PRIu32 ": %s", i, r->error);
        else if (r->n_tokens != w->rows[i].n_out)
            st =
                rose_fail(err, ROSE_E_FORMAT, "request %" PRIu32 ": %" PRIu32 " tokens of %" PRIu32,
                          i, r->n_tokens, w->rows[i].n_out);
        if (st != ROSE_OK) break;
        out->input_tokens += w->rows[i].n_in;
        out->output_tokens += r->n_tokens;
        if (r->start_ns < start) start = r->start_ns;
        if (r->end_ns > end) end = r->end_ns;
        st = rose_samples_add(&ttft, (double)(r->first_ns - r->start_ns) * 1e-9);
        if (st == ROSE_OK && r->n_tokens > 1)
            st = rose_samples_add(&tpot,
                                  (double)(r->last_ns - r->first_ns) * 1e-9 / (r->n_tokens - 1));
        if (st != ROSE_OK) rose_fail(err, st, "out of memory");
    }
    out->total_s = (double)(end - start) * 1e-9;
    rose_offline_times(out, &ttft, &tpot);
    return st;
}

static rose_status run_once(const rose_offline_work *w, const rose_server *server, uint64_t seed,
                            rose_offline_run *out, rose_err *err)
{
    rose_buf all = {0}, body = {0};
    uint32_t *ids = malloc(rose_offline_longest(w) * sizeof *ids);
    rose_load_item *items = calloc(w->n, sizeof *items);
    rose_reply *replies = calloc(w->n, sizeof *replies);
    rose_status st = ids == NULL || items == NULL || replies == NULL ? ROSE_E_NOMEM : ROSE_OK;
    for (uint32_t i = 0; i < w->n && st == ROSE_OK; i++) {
        const size_t before = all.len;
        body.len = 0;
        st = write_body(w, seed, i, server->model, ids, &body);
        if (st == ROSE_OK)
            st = rose_request_write(&all, &server->url, "/v1/completions", NULL, body.data,
                                    body.len);
        items[i].len = all.len - before;
    }
    const char *p = all.data;
    for (uint32_t i = 0; i < w->n && st == ROSE_OK; p += items[i++].len)
        items[i].bytes = p;
    if (st != ROSE_OK) rose_fail(err, st, "out of memory");
    const rose_load_opts o = {.url = &server->url, .stall_ns = 600000000000u, .stop = w->stop};
    if (st == ROSE_OK) st = rose_load_run(&o, items, w->n, replies, err);
    if (st == ROSE_OK && w->stop != NULL && *w->stop)
        st = rose_fail(err, ROSE_E_CLOSED, "interrupted");
    if (st == ROSE_OK) st = summarise(w, replies, out, err);
    for (uint32_t i = 0; replies != NULL && i < w->n; i++)
        rose_reply_free(&replies[i]);
    free(replies);
    free(items);
    free(ids);
    rose_buf_free(&body);
    rose_buf_free(&all);
    return st;
}

rose_status rose_offline_server(const rose_offline_work *w, const rose_server_spec *spec,
                                const rose_server_flags *sf, const char *model_dir, uint32_t warmup,
                                uint32_t repeats, rose_offline_result *r, rose_err *err)
{
    rose_server server = {0};
    rose_offline_run ignored;
    rose_fds_raise(UINT32_MAX); /* each prompt needs a connection of its own */
    rose_status st = rose_server_start(&server, spec, sf, model_dir, NULL, NULL, err);
    if (st == ROSE_OK && (r->runs = calloc(repeats, sizeof *r->runs)) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK)
        r->extra = rose_json_pack("{s:o, s:s, s:f}", "cmd",
                                  rose_results_stringn(server.command.data, server.command.len),
                                  "version", server.version, "server_ready_s", server.ready_s);
    for (uint32_t i = 0; i < warmup && st == ROSE_OK; i++)
        st = run_once(w, &server, rose_offline_seed(w, true, i), &ignored, err);
    for (uint32_t i = 0; i < repeats && st == ROSE_OK; i++) {
        st = run_once(w, &server, rose_offline_seed(w, false, i), &r->runs[i], err);
        if (st == ROSE_OK) r->n_runs++;
    }
    r->ready_s = server.ready_s;
    if (server.proc.pid != 0) r->resident_peak_bytes = rose_watch_peak_bytes(server.proc.pid);
    rose_server_stop(&server);
    return st;
}

rose_status rose_offline_server_profile(const rose_offline *r, const rose_offline_work *w,
                                        const rose_server_spec *spec, const char *dir,
                                        rose_json *row, rose_err *err)
{
    const bool ours = spec->driver >= 0;
    rose_server server = {0};
    rose_buf flags = {0};
    rose_offline_run ignored;
    rose_status st = ROSE_OK;
    rose_fds_raise(UINT32_MAX);
    if (strchr(dir, '\'') != NULL)
        return rose_fail(err, ROSE_E_INVAL, "%s: a quote in the path of a profile", dir);
    if (ours && rose_buf_addf(&flags, "--profiler-kernels --profiler-dir '%s'", dir) != ROSE_OK)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK)
        st = rose_server_start(&server, spec, &r->o->server, r->model_dir, flags.data, dir, err);
    rose_profile_note_server(row, &server);
    if (st == ROSE_OK) st = run_once(w, &server, rose_offline_seed(w, true, 0), &ignored, err);
    if (st == ROSE_OK) st = rose_profile_call(row, &server.url, "/start_profile", "start", err);
    if (st == ROSE_OK) {
        st = run_once(w, &server, rose_offline_seed(w, false, 0), &ignored, err);
        const rose_status stopped = rose_profile_call(row, &server.url, "/stop_profile", "stop",
                                                      st == ROSE_OK ? err : NULL);
        if (st == ROSE_OK) st = stopped;
    }
    rose_server_stop(&server);
    rose_buf_free(&flags);
    return st;
}
