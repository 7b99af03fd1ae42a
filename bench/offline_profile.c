/* bench/offline_profile.c - the profile stage of `bench offline`. After all measurements, our
 * engine runs once more with the recorder on, in this process or in a fresh server. No time of this
 * stage enters the results. profile_manifest.json says what came of it. The engine of a script has
 * no recorder that we can start, so its row says that. */
#include <stdio.h>

#include "base/clock.h"
#include "base/profile.h"
#include "bench/offline_internal.h"
#include "bench/profile_call.h"
#include "bench/results.h"

static rose_json *said_json(const rose_prof_result *r, const char *path)
{
    return rose_json_pack("{s:o, s:I, s:I, s:I, s:i, s:f, s:s}", "path", rose_results_string(path),
                          "bytes", (int64_t)r->file_bytes, "events", (int64_t)r->n_events,
                          "dropped", (int64_t)r->n_dropped, "threads", (int)r->n_threads,
                          "duration_s", (double)r->duration_ns * 1e-9, "note", r->note);
}

typedef struct profile {
    const rose_offline *r;
    rose_offline_work work; /* only the first rows of the workload */
    const rose_offline_backend *b;
} profile;

static rose_status in_process(const profile *p, const char *dir, rose_json *row, rose_err *err)
{
    const rose_offline_work *w = &p->work;
    rose_offline_engine e = {0};
    rose_engine_flags flags = p->r->o->server.engine;
    flags.opts.backend.cuda.profiler_kernels = true; /* costs speed; no time here counts */
    rose_offline_run ignored;
    rose_prof_result said;
    char path[4400];
    snprintf(path, sizeof path, "%s/roseinfer.trace.json", dir);
    rose_prof_thread("main");
    rose_status st =
        rose_offline_engine_open(&e, p->r->model_dir, &flags, w->n, rose_offline_longest(w), err);
    if (st == ROSE_OK)
        st =
            rose_offline_engine_run(&e, w, rose_offline_seed(w, true, 0), "warm-up", &ignored, err);
    if (st == ROSE_OK) st = rose_prof_start(ROSE_PROF_DEFAULT_EVENTS, err);
    if (st == ROSE_OK) {
        st = rose_offline_engine_run(&e, w, rose_offline_seed(w, false, 0), "profile", &ignored,
                                     err);
        /* the recording is stopped even after a failure, because it may show the cause */
        const rose_status stopped = rose_prof_stop(path, &said, st == ROSE_OK ? err : NULL);
        if (stopped == ROSE_OK) rose_json_set_new(row, "stop", said_json(&said, path));
        if (st == ROSE_OK) st = stopped;
    }
    rose_offline_engine_close(&e);
    return st;
}

static rose_status attempt(void *ctx, char *dir, rose_json *row, rose_err *err)
{
    const profile *p = ctx;
    rose_status st = rose_results_make_dirs(dir, err);
    rose_json_set_new(row, "num_requests", rose_json_integer(p->work.n));
    if (st == ROSE_OK && p->b->kind == ROSE_OFFLINE_IN_PROCESS)
        st = in_process(p, dir, row, err);
    else if (st == ROSE_OK && p->b->kind == ROSE_OFFLINE_SERVER)
        st = rose_offline_server_profile(p->r, &p->work, &p->b->server, dir, row, err);
    else if (st == ROSE_OK)
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "a script has no recorder; bench online --profile can profile its server");
    rose_json_set_new(row, "num_success", rose_json_integer(st == ROSE_OK ? p->work.n : 0));
    return st;
}

uint32_t rose_offline_profile(const rose_offline *r, int argc, char **argv)
{
    uint32_t n_failed = 0;
    const uint64_t start = rose_now_ns();
    profile p = {.r = r, .work = r->work};
    if (p.work.n > r->o->profile_n) p.work.n = r->o->profile_n;
    rose_json *root = rose_profile_manifest_begin(
        argc, argv, rose_json_pack("{s:s, s:i}", "profile", "trace", "profile_n", (int)p.work.n));
    for (uint32_t i = 0; i < r->n_backends && !*r->o->server.stop; i++) {
        p.b = &r->backends[i];
        n_failed += !rose_profile_try(root, r->dir, "trace", p.b->label, attempt, &p);
    }
    return n_failed + (rose_profile_manifest_end(root, r->dir, start) ? 0 : 1);
}
