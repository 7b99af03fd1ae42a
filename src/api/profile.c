/* api/profile.c - /start_profile and /stop_profile: they begin and end a recording
 * (base/profile.h). Only a server with --profiler-dir has them; clients choose neither the folder
 * nor the name.
 *
 * The work runs on a tokenizer worker, because writing the file takes time. With async_admit off
 * it delays the I/O thread. A recording that still runs when the server stops is written then. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "base/log.h"
#include "base/profile.h"

bool rose_api_profile_may(const rose_api *a, const rose_http_req *r, rose_api_error *err)
{
    if (a->o.profiler_dir == NULL)
        return rose_api_fail(err, 403, "profiler_disabled", NULL,
                             "this server was started without --profiler-dir");
    /* A browser sends Origin if a page of another site asks; curl and benchmarks do not. */
    if (rose_http_req_header(r, "Origin") != NULL)
        return rose_api_fail(err, 403, "profiler_from_page", "Origin",
                             "a web page may not start or stop a profile");
    return true;
}

/* A profile has no options. SGLang's clients ask for a folder or a number of steps. The request
 * is refused, because they would not get these. vLLM's benchmark sends the body of a completion,
 * whose fields mean nothing here. */
static bool check_field(rose_api_ignored *g, const char *key, rose_api_error *err)
{
    if (strcmp(key, "output_dir") != 0 && strcmp(key, "num_steps") != 0)
        return rose_api_unknown_field(g, key, err);
    return rose_api_fail(err, 400, "unsupported_field", key,
                         "field '%s' is not supported: a profile goes to --profiler-dir and runs "
                         "until /stop_profile",
                         key);
}

static bool check_body(rose_api_job *j, rose_api_ignored *g)
{
    const char *key;
    rose_json *root = NULL, *v;
    bool ok = true;
    if (j->body_len == 0) return true;
    if (!rose_api_json_load(&root, j->body, j->body_len, 1024, &j->err)) return false;
    rose_json_each (root, key, v) {
        if (rose_json_is_null(v) && !g->strict) continue;
        ok = check_field(g, key, &j->err);
        if (!ok) break;
    }
    rose_json_decref(root);
    return ok;
}

static char *new_path(rose_api *a)
{
    rose_buf path = {0};
    char when[32];
    struct tm tm;
    time_t now = time(NULL);
    gmtime_r(&now, &tm);
    strftime(when, sizeof when, "%Y%m%dT%H%M%SZ", &tm);
    if (rose_buf_addf(&path, "%s/roseinfer-%s-%ld-%u.trace.json", a->o.profiler_dir, when,
                      (long)getpid(), ++a->n_profiles) != ROSE_OK)
        rose_buf_free(&path);
    return path.data; /* NUL-terminated by addf, or NULL */
}

static void start(rose_api_job *j)
{
    rose_api *a = j->api;
    rose_err err = {{0}};
    char *path = new_path(a);
    if (path == NULL) {
        rose_api_fail_nomem(&j->err);
        return;
    }
    rose_status st = rose_prof_start(a->o.profiler_events, &err);
    if (st != ROSE_OK) {
        free(path);
        if (st == ROSE_E_FULL)
            rose_api_fail(&j->err, 409, "profile_running", NULL, "a profile is being recorded");
        else
            rose_api_fail(&j->err, 500, "profile_failed", NULL, "%s", err.msg);
        return;
    }
    a->profile_path = path;
    rose_api_json(&j->reply, "{'status':'recording','path':%-s,'max_events_per_thread':%u}", path,
                  a->o.profiler_events);
}

static rose_status stop_recording(rose_api *a, rose_prof_result *r, rose_err *err)
{
    rose_status st = rose_prof_stop(a->profile_path, r, err);
    if (st == ROSE_OK)
        rose_log(ROSE_LOG_INFO, "profile", "%s: %" PRIu64 " events, %" PRIu64 " dropped",
                 a->profile_path, r->n_events, r->n_dropped);
    return st;
}

static void stop(rose_api_job *j)
{
    rose_api *a = j->api;
    rose_prof_result r;
    rose_err err = {{0}};
    rose_api_out *o = &j->reply;
    if (a->profile_path == NULL) {
        rose_api_fail(&j->err, 409, "profile_not_running", NULL, "no profile is being recorded");
        return;
    }
    if (stop_recording(a, &r, &err) != ROSE_OK) {
        rose_api_fail(&j->err, 500, "profile_failed", NULL, "%s", err.msg);
    } else {
        rose_api_json(o, "{'status':'ok','path':%-s,", a->profile_path);
        rose_api_json(o, "'bytes':%" PRIu64 ",'events':%" PRIu64 ",'dropped':%" PRIu64,
                      r.file_bytes, r.n_events, r.n_dropped);
        rose_api_json(o, ",'device_events':%" PRIu64 ",'threads':%u,'duration_s':%.6f,'note':%-s}",
                      r.n_device, r.n_threads, (double)r.duration_ns * 1e-9, r.note);
    }
    free(a->profile_path);
    a->profile_path = NULL;
}

void rose_api_profile_run(rose_api_job *j, rose_api_ignored *g)
{
    if (!check_body(j, g)) return;
    pthread_mutex_lock(&j->api->profile_lock);
    if (j->kind == ROSE_API_PROFILE_START)
        start(j);
    else
        stop(j);
    pthread_mutex_unlock(&j->api->profile_lock);
    if (j->reply.oom) rose_api_fail_nomem(&j->err);
}

void rose_api_profile_close(rose_api *a)
{
    rose_prof_result r;
    rose_err err = {{0}};
    if (a->profile_path == NULL) return;
    if (stop_recording(a, &r, &err) != ROSE_OK) rose_log(ROSE_LOG_ERROR, "profile", "%s", err.msg);
    free(a->profile_path);
    a->profile_path = NULL;
}
