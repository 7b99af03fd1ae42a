/* bench/offline_engine.c - runs the offline workload on the engine in this process. All prompts are
 * submitted at once, as a batch job would. One queue tells this thread which requests have new
 * tokens. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/procstat.h"
#include "base/progress.h"
#include "bench/offline_internal.h"
#include "bench/stats.h"

typedef struct prompt_state {
    rose_request *req;
    uint64_t first_ns, last_ns;
    uint32_t n_out;
    bool done;
} prompt_state;

rose_status rose_offline_engine_open(rose_offline_engine *e, const char *model_dir,
                                     rose_engine_flags *f, uint32_t n, uint32_t max_in,
                                     rose_err *err)
{
    rose_model *m = NULL;
    rose_engine_opts eo;
    const rose_backend_ops *ops = NULL;
    const uint64_t start = rose_now_ns();
    const char *isa = f->opts.backend.cpu.isa;
    *e = (rose_offline_engine){.isa = strcmp(isa, "auto") == 0 ? rose_isa_name(rose_isa_probe())
                                                               : isa};
    if (f->opts.max_queued < n) f->opts.max_queued = n;
    f->opts.offline = true;
    rose_status st = rose_engine_flags_read(f, &eo, err);
    e->ids = malloc((size_t)max_in * sizeof *e->ids);
    if (st == ROSE_OK && e->ids == NULL) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK) st = rose_wakeq_create(&e->sink, n + 1, err);
    if (st == ROSE_OK) st = rose_model_open_as(&m, model_dir, f->load_format, err);
    if (st == ROSE_OK) st = rose_backend_pick_for(&ops, f->device, m, err);
    if (st == ROSE_OK) st = rose_engine_open(&e->engine, ops, m, &eo, err);
    rose_model_close(m);
    e->load_s = (double)(rose_now_ns() - start) * 1e-9;
    return st;
}

void rose_offline_engine_close(rose_offline_engine *e)
{
    rose_engine_close(e->engine);
    rose_wakeq_destroy(e->sink);
    free(e->ids);
    *e = (rose_offline_engine){0};
}

static rose_status submit_all(rose_offline_engine *e, const rose_offline_work *w, uint64_t seed,
                              prompt_state *ps, rose_err *err)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < w->n && st == ROSE_OK; i++) {
        rose_offline_prompt(w, seed, i, e->ids);
        const rose_request_opts ro = {
            .prompt = e->ids,
            .n_prompt = w->rows[i].n_in,
            .max_tokens = w->rows[i].n_out,
            .sampling = {.temperature = w->temperature,
                         .top_p = w->top_p,
                         .top_k = w->top_k,
                         .seed = seed + i},
            .ignore_eos = true,
            .sink = e->sink,
            .user = &ps[i],
        };
        st = rose_engine_submit(e->engine, &ro, &ps[i].req, err);
        if (st == ROSE_E_FULL)
            rose_fail(err, st,
                      "the waiting queue is full: raise --max-num-queued-reqs to --num-prompts");
        if (st == ROSE_E_LATE)
            rose_fail(err, st, "prompts that come all at once cannot meet --ttft-slo-ms");
    }
    return st;
}

/* Takes all events of one request. Returns the number of new tokens, or -1 if the request
 * failed. */
static int64_t take_events(prompt_state *p)
{
    rose_event ev;
    int64_t n = 0;
    while (!p->done && rose_request_poll(p->req, &ev) == ROSE_OK) {
        if (ev.has_token) {
            if (p->n_out++ == 0) p->first_ns = ev.t_ns;
            p->last_ns = ev.t_ns;
            n++;
        }
        p->done = ev.finish != ROSE_FINISH_NONE;
        if (ev.finish == ROSE_FINISH_ERROR || ev.finish == ROSE_FINISH_NO_TOKEN ||
            ev.finish == ROSE_FINISH_LATE)
            return -1;
    }
    return n;
}

static rose_status summarise(const prompt_state *ps, const rose_offline_work *w, uint64_t start,
                             rose_offline_run *out)
{
    uint64_t end = start;
    rose_samples ttft = {0}, tpot = {0};
    rose_status st = ROSE_OK;
    *out = (rose_offline_run){0};
    for (uint32_t i = 0; i < w->n && st == ROSE_OK; i++) {
        out->input_tokens += w->rows[i].n_in;
        out->output_tokens += ps[i].n_out;
        if (ps[i].last_ns > end) end = ps[i].last_ns;
        st = rose_samples_add(&ttft, (double)(ps[i].first_ns - start) * 1e-9);
        if (st == ROSE_OK && ps[i].n_out > 1)
            st = rose_samples_add(&tpot, (double)(ps[i].last_ns - ps[i].first_ns) * 1e-9 /
                                             (ps[i].n_out - 1));
    }
    out->total_s = (double)(end - start) * 1e-9;
    rose_offline_times(out, &ttft, &tpot);
    return st;
}

rose_status rose_offline_engine_run(rose_offline_engine *e, const rose_offline_work *w,
                                    uint64_t seed, const char *label, rose_offline_run *out,
                                    rose_err *err)
{
    rose_progress bar;
    uint64_t want = 0, got = 0;
    uint32_t open = 0;
    prompt_state *ps = calloc(w->n, sizeof *ps);
    if (ps == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < w->n; i++)
        want += w->rows[i].n_out;
    rose_progress_begin(&bar, label, want);
    const uint64_t start = rose_now_ns();
    rose_status st = submit_all(e, w, seed, ps, err);
    for (uint32_t i = 0; i < w->n; i++)
        open += ps[i].req != NULL;
    for (uint32_t i = 0; i < w->n && st != ROSE_OK; i++) {
        if (ps[i].req != NULL) rose_request_cancel(ps[i].req);
    }
    while (open > 0) {
        void *p;
        rose_wakeq_wait(e->sink, 100000000);
        rose_wakeq_clear(e->sink);
        while (rose_wakeq_pop(e->sink, &p) == ROSE_OK) {
            prompt_state *s = rose_request_user(p);
            if (s->done) continue;
            int64_t n = take_events(s);
            if (n < 0) st = rose_fail(err, ROSE_E_BACKEND, "the engine failed during the run");
            got += n > 0 ? (uint64_t)n : 0;
            open -= s->done;
        }
        rose_progress_update(&bar, got, "tok");
        if (st != ROSE_OK || w->stop == NULL || !*w->stop) continue;
        st = rose_fail(err, ROSE_E_CLOSED, "interrupted");
        for (uint32_t i = 0; i < w->n; i++) {
            if (!ps[i].done) rose_request_cancel(ps[i].req);
        }
    }
    rose_progress_end(&bar);
    if (st == ROSE_OK && (st = summarise(ps, w, start, out)) != ROSE_OK)
        rose_fail(err, st, "out of memory");
    for (uint32_t i = 0; i < w->n; i++) {
        if (ps[i].req != NULL) rose_request_release(ps[i].req);
    }
    free(ps);
    return st;
}

rose_json *rose_offline_engine_json(const rose_offline_engine *e)
{
    const rose_memory_plan *p = rose_engine_plan(e->engine);
    return rose_json_pack(
        "{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:f, s:I}", "dtype", rose_compute_name(p->dtype),
        "quantization", rose_quantization_name(p->quantization), "isa", e->isa, "threads",
        (int)p->n_threads, "max_batch_size", (int)p->max_seqs, "max_num_batched_tokens",
        (int)p->max_step_tokens, "max_model_len", (int)p->max_model_len, "load_s", e->load_s,
        "resident_bytes", (int64_t)rose_procstat_read().resident_bytes);
}
