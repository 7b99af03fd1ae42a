/* bench/online_profile.c - the profile stage of `bench online`. After all measurements, each server
 * is started once more with a profiler on. `trace` starts the recorder of the server itself
 * (/start_profile and /stop_profile; vLLM and SGLang also have them, if their arguments allow it).
 * `nsys` runs the server's command under Nsight Systems. No time of this stage enters the results.
 * profile_manifest.json says what came of it. A missing tool and a server that fails are rows with
 * their errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "bench/online_internal.h"
#include "bench/profile_call.h"

enum { PROFILE_VARIANT = 1 << 22, WARM_VARIANT = 1 << 23, NSYS_GRACE_MS = 300000 };

/* The arguments of nsys. CPU sampling is off, because only the NVTX ranges and the kernels are
 * wanted. */
#define NSYS_ARGS                                                                                  \
    "profile --trace=cuda,nvtx,osrt --sample=none --cuda-graph-trace=node "                        \
    "--trace-fork-before-exec=true --force-overwrite=true"

typedef struct attempt {
    const rose_online *r;
    const rose_server_spec *spec;
    bool nsys;
    char *dir; /* folder of the files of this profile */
    rose_json *row;
} attempt;

static rose_status replay(attempt *a, const rose_server *server, const rose_load_trace *trace,
                          const rose_run_spec *spec, const char *count_as, rose_err *err)
{
    const rose_online *r = a->r;
    const rose_workload w = {.prompts = r->prompts,
                             .trace = trace,
                             .flags = &r->o->req,
                             .mode = ROSE_PROMPT_UNIQUE,
                             .label = a->nsys ? "profile (nsys)" : "profile (trace)",
                             .stop = r->o->server.stop};
    rose_run run = {0};
    uint32_t n_ok = 0;
    const char *model = r->o->req.model_name != NULL ? r->o->req.model_name : server->model;
    rose_status st = rose_workload_run(&w, &server->url, model, spec, &run, err);
    for (uint32_t i = 0; st == ROSE_OK && i < run.n; i++)
        n_ok += run.replies[i].error[0] == '\0';
    if (st == ROSE_OK && count_as != NULL) {
        rose_json_set_new(a->row, "num_requests", rose_json_integer(run.n));
        rose_json_set_new(a->row, count_as, rose_json_integer(n_ok));
        if (n_ok == 0) st = rose_fail(err, ROSE_E_CLOSED, "no request succeeded");
    }
    rose_run_free(&run);
    if (st == ROSE_OK && *r->o->server.stop) st = rose_fail(err, ROSE_E_CLOSED, "interrupted");
    return st;
}

static rose_status drive(attempt *a, rose_server *server, rose_err *err)
{
    const rose_online_opts *o = a->r->o;
    const rose_run_spec warm = {.concurrency = 1, .variant = WARM_VARIANT};
    const rose_run_spec spec = {
        .scale = (double)o->profile_scale, .n = o->profile_n, .variant = PROFILE_VARIANT};
    rose_status st = ROSE_OK, stopped = ROSE_OK;
    if (o->warmup_requests > 0) st = replay(a, server, &a->r->warm_trace, &warm, NULL, err);
    if (st == ROSE_OK && !a->nsys)
        st = rose_profile_call(a->row, &server->url, "/start_profile", "start", err);
    if (st != ROSE_OK) return st;
    st = replay(a, server, &a->r->trace, &spec, "num_success", err);
    /* the recording is stopped even after a failure, because it may show the cause */
    if (!a->nsys)
        stopped = rose_profile_call(a->row, &server->url, "/stop_profile", "stop",
                                    st == ROSE_OK ? err : NULL);
    return st != ROSE_OK ? st : stopped;
}

/* Puts the command of nsys before the driver's command. */
static rose_status wrap(const attempt *a, rose_server_flags *f, rose_buf *command, rose_err *err)
{
    const int d = a->spec->driver;
    if (d < 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "nsys needs a server that is started here");
    rose_status st =
        rose_buf_addf(command, "nsys %s --output='%s/%s' ", NSYS_ARGS, a->dir, a->spec->label);
    if (st == ROSE_OK)
        st = f->command[d] != NULL ? rose_buf_addf(command, "%s", f->command[d])
                                   : rose_buf_addf(command, "'%s' serve", rose_server_path());
    if (st != ROSE_OK) return rose_fail(err, st, "out of memory");
    f->command[d] = command->data;
    return ROSE_OK;
}

/* Adds the arguments that our own server needs for a profile. */
static rose_status extra_args(const attempt *a, rose_buf *extra, rose_err *err)
{
    rose_status st = ROSE_OK;
    if (a->spec->driver != 0) return ROSE_OK; /* a rival, or a server at a URL */
    if (strchr(a->dir, '\'') != NULL)
        return rose_fail(err, ROSE_E_INVAL, "%s: a quote in the path of a profile", a->dir);
    st = a->nsys ? rose_buf_addf(extra, "--nvtx")
                 : rose_buf_addf(extra, "--profiler-dir '%s' --profiler-kernels", a->dir);
    return st == ROSE_OK ? st : rose_fail(err, st, "out of memory");
}

/* After SIGTERM nsys ends the server and then writes its report, which can take longer than
 * stopping a server. */
static rose_status check_nsys_file(attempt *a, rose_err *err)
{
    char path[4300];
    snprintf(path, sizeof path, "%s/%s.nsys-rep", a->dir, a->spec->label);
    if (!rose_file_exists(path))
        return rose_fail(err, ROSE_E_NOTFOUND, "nsys wrote no %s; its messages are in %s", path,
                         rose_json_text(rose_json_get(a->row, "log_path")));
    rose_json_set_new(a->row, "path", rose_results_string(path));
    return ROSE_OK;
}

static rose_status run_attempt(void *ctx, char *dir, rose_json *row, rose_err *err)
{
    attempt *a = ctx;
    rose_server server = {0};
    rose_server_flags f = a->r->o->server;
    rose_buf command = {0}, extra = {0};
    bool started = false;
    a->dir = dir;
    a->row = row;
    rose_status st = rose_results_make_dirs(dir, err);
    if (st == ROSE_OK) st = extra_args(a, &extra, err);
    if (st == ROSE_OK && a->nsys) st = wrap(a, &f, &command, err);
    if (st == ROSE_OK) {
        st = rose_server_start(&server, a->spec, &f, a->r->model_dir, extra.data, a->dir, err);
        started = true;
        rose_profile_note_server(a->row, &server);
    }
    if (st == ROSE_OK) st = drive(a, &server, err);
    if (started && a->nsys) rose_proc_stop(&server.proc, NSYS_GRACE_MS);
    if (started) rose_server_stop(&server);
    if (st == ROSE_OK && a->nsys) st = check_nsys_file(a, err);
    rose_buf_free(&command);
    rose_buf_free(&extra);
    return st;
}

/* The first line that `nsys --version` prints; null if nsys is not there. */
static rose_json *nsys_version(const char *dir)
{
    char *const argv[] = {(char *)(uintptr_t) "nsys", (char *)(uintptr_t) "--version", NULL};
    char path[4200];
    rose_proc p;
    rose_buf text = {0};
    rose_json *v = NULL;
    snprintf(path, sizeof path, "%s/nsys_version.txt", dir);
    if (rose_proc_start(&p, argv, path, path, NULL, 0, NULL) == ROSE_OK && rose_proc_wait(&p) &&
        rose_file_read(&text, path, 1 << 16, NULL) == ROSE_OK && rose_buf_str(&text) != NULL) {
        text.data[strcspn(text.data, "\r\n")] = '\0';
        v = rose_results_string(text.data);
    }
    unlink(path);
    rose_buf_free(&text);
    return v != NULL ? v : rose_json_null();
}

static rose_json *manifest_of(const rose_online *r, int argc, char **argv)
{
    const rose_online_opts *o = r->o;
    return rose_profile_manifest_begin(
        argc, argv,
        rose_json_pack("{s:s, s:b, s:i, s:f, s:i, s:o, s:s, s:{}}", "profile", o->profile,
                       "profile_only", o->profile_only, "profile_n", (int)o->profile_n,
                       "profile_scale", (double)o->profile_scale, "warmup_requests",
                       (int)o->warmup_requests, "backends", rose_results_string(o->backends),
                       "profile_nsys_args", NSYS_ARGS, "tool_versions"));
}

static bool wanted(const rose_online *r, bool nsys)
{
    return strcmp(r->o->profile, "both") == 0 ||
           strcmp(r->o->profile, nsys ? "nsys" : "trace") == 0;
}

uint32_t rose_online_profile(const rose_online *r, int argc, char **argv)
{
    uint32_t n_failed = 0;
    const uint64_t start = rose_now_ns();
    rose_json *root = manifest_of(r, argc, argv), *meta = rose_json_get(root, "meta");
    if (wanted(r, true))
        rose_json_set_new(rose_json_get(meta, "tool_versions"), "nsys",
                          nsys_version(r->results.dir));
    for (int nsys = 0; nsys < 2; nsys++) {
        for (uint32_t i = 0; wanted(r, nsys) && i < r->n_specs && !*r->o->server.stop; i++) {
            attempt a = {.r = r, .spec = &r->specs[i], .nsys = nsys};
            n_failed += !rose_profile_try(root, r->results.dir, nsys ? "nsys" : "trace",
                                          a.spec->label, run_attempt, &a);
        }
    }
    return n_failed + (rose_profile_manifest_end(root, r->results.dir, start) ? 0 : 1);
}
