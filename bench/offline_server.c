/* bench/offline_server.c - runs the offline workload through a server: the same token ids over
 * HTTP, all sent at once, each on a connection of its own. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fds.h"
#include "bench/offline_internal.h"
#include "bench/profile_call.h"
#include "bench/results.h"
#include "bench/stats.h"
#include "bench/watch.h"
#include "bench/workload.h"

static rose_status summarise(const rose_offline_work *w, const rose_run *run, rose_offline_run *out,
                             rose_err *err)
{
    uint64_t end = 0;
    rose_samples ttft = {0}, tpot = {0};
    rose_status st = ROSE_OK;
    *out = (rose_offline_run){0};
    for (uint32_t i = 0; i < w->n && st == ROSE_OK; i++) {
        const rose_reply *r = &run->replies[i];
        if (r->error[0] != '\0')
            st = rose_fail(err, ROSE_E_CLOSED, "request %" PRIu32 ": %s", i, r->error);
        else if (r->n_tokens != w->rows[i].n_out)
            st =
                rose_fail(err, ROSE_E_FORMAT, "request %" PRIu32 ": %" PRIu32 " tokens of %" PRIu32,
                          i, r->n_tokens, w->rows[i].n_out);
        if (st != ROSE_OK) break;
        out->input_tokens += w->rows[i].n_in;
        out->output_tokens += r->n_tokens;
        if (r->end_ns > end) end = r->end_ns;
        st = rose_samples_add(&ttft, (double)(r->first_ns - r->start_ns) * 1e-9);
        if (st == ROSE_OK && r->n_tokens > 1) st = rose_samples_add(&tpot, rose_reply_tpot(r));
        if (st != ROSE_OK) rose_fail(err, st, "out of memory");
    }
    out->total_s = (double)(end - run->start_ns) * 1e-9;
    rose_offline_times(out, &ttft, &tpot);
    return st;
}

static rose_status run_once(const rose_offline_work *w, const rose_server *server, uint64_t seed,
                            const char *label, rose_offline_run *out, rose_err *err)
{
    const rose_request_flags f = {.temperature = w->temperature,
                                  .top_p = w->top_p,
                                  .top_k = w->top_k,
                                  .stall_s = 600,
                                  .ignore_eos = true,
                                  .send_seed = w->send_seed,
                                  .endpoint = "completions",
                                  .prompt_form = "ids",
                                  .seed = seed};
    const rose_load_trace trace = {.rows = w->rows, .n = w->n};
    const rose_workload all = {
        .vocab = w->vocab, .trace = &trace, .flags = &f, .label = label, .stop = w->stop};
    const rose_run_spec spec = {0}; /* all requests at once */
    rose_run run = {0};
    rose_status st = rose_workload_run(&all, &server->url, server->model, &spec, &run, err);
    if (st == ROSE_OK && w->stop != NULL && *w->stop)
        st = rose_fail(err, ROSE_E_CLOSED, "interrupted");
    if (st == ROSE_OK) st = summarise(w, &run, out, err);
    rose_run_free(&run);
    return st;
}

rose_status rose_offline_server(const rose_offline *r, const rose_offline_backend *b,
                                rose_offline_result *out, rose_err *err)
{
    const rose_offline_work *w = &r->work;
    const uint32_t repeats = r->o->repeats;
    rose_server server = {0};
    rose_offline_run ignored;
    rose_fds_raise(UINT32_MAX); /* each prompt needs a connection of its own */
    rose_status st =
        rose_server_start(&server, &b->server, &r->o->server, r->model_dir, NULL, NULL, err);
    if (st == ROSE_OK && (out->runs = calloc(repeats, sizeof *out->runs)) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK)
        out->extra = rose_json_pack("{s:o, s:s, s:f}", "cmd",
                                    rose_results_stringn(server.command.data, server.command.len),
                                    "version", server.version, "server_ready_s", server.ready_s);
    for (uint32_t i = 0; i < r->o->warmup && st == ROSE_OK; i++)
        st = run_once(w, &server, rose_offline_seed(w, true, i), "warm-up", &ignored, err);
    for (uint32_t i = 0; i < repeats && st == ROSE_OK; i++) {
        st = run_once(w, &server, rose_offline_seed(w, false, i), "measure", &out->runs[i], err);
        if (st == ROSE_OK) out->n_runs++;
    }
    out->ready_s = server.ready_s;
    if (server.proc.pid != 0) out->resident_peak_bytes = rose_watch_peak_bytes(server.proc.pid);
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
    if (st == ROSE_OK)
        st = run_once(w, &server, rose_offline_seed(w, true, 0), "warm-up", &ignored, err);
    if (st == ROSE_OK) st = rose_profile_call(row, &server.url, "/start_profile", "start", err);
    if (st == ROSE_OK) {
        st = run_once(w, &server, rose_offline_seed(w, false, 0), "profile", &ignored, err);
        const rose_status stopped = rose_profile_call(row, &server.url, "/stop_profile", "stop",
                                                      st == ROSE_OK ? err : NULL);
        if (st == ROSE_OK) st = stopped;
    }
    rose_server_stop(&server);
    rose_buf_free(&flags);
    return st;
}
