/* bench/profile_call.c - see profile_call.h. */
#include "bench/profile_call.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "bench/results.h"

enum { CALL_TIMEOUT_MS = 300000 };

rose_status rose_profile_call(rose_json *row, const rose_url *u, const char *path, const char *name,
                              rose_err *err)
{
    rose_buf body = {0};
    rose_json_error e;
    rose_json *said = NULL;
    int status = 0;
    rose_status st = rose_http_call(u, path, NULL, "{}", CALL_TIMEOUT_MS, &status, &body, err);
    if (st == ROSE_OK && body.len > 0) rose_json_parse(&said, body.data, body.len, 0, &e);
    if (st == ROSE_OK && status != 200) {
        const char *why = rose_json_text(rose_json_get(rose_json_get(said, "error"), "message"));
        st = rose_fail(err, ROSE_E_CLOSED, "%s: status %d%s%s", path, status,
                       why != NULL ? ": " : "", why != NULL ? why : "");
    }
    if (said != NULL) rose_json_set(row, name, said);
    rose_json_decref(said);
    rose_buf_free(&body);
    return st;
}

void rose_profile_note_server(rose_json *row, const rose_server *s)
{
    rose_json_set_new(row, "cmd", rose_results_stringn(s->command.data, s->command.len));
    rose_json_set_new(row, "log_path", rose_results_string(s->log));
    rose_json_set_new(row, "version", rose_json_string(s->version));
}

rose_json *rose_profile_manifest_begin(int argc, char **argv, rose_json *more)
{
    rose_json *meta = rose_results_meta_more(argc, argv, more);
    rose_results_set_time(meta, "profile_start_time");
    return rose_json_pack("{s:o, s:[]}", "meta", meta, "runs");
}

static bool write_manifest(const rose_json *root, const char *results)
{
    rose_err err = {""};
    if (rose_results_write(root, results, "profile_manifest.json", &err) == ROSE_OK) return true;
    fprintf(stderr, "roseinfer: %s\n", err.msg);
    return false;
}

bool rose_profile_try(rose_json *root, const char *results, const char *tool, const char *label,
                      rose_profile_attempt *attempt, void *ctx)
{
    const uint64_t start = rose_now_ns();
    rose_err why = {""};
    char base[PATH_MAX], dir[PATH_MAX];
    if (realpath(results, base) == NULL ||
        snprintf(dir, sizeof dir, "%.3900s/profiles/%s/%s", base, tool, label) >= (int)sizeof dir) {
        fprintf(stderr, "roseinfer: the folder of a profile: %s\n", strerror(errno));
        return false;
    }
    rose_json *row = rose_json_pack("{s:s, s:s, s:o}", "tool", tool, "backend", label, "output_dir",
                                    rose_results_string(dir));
    if (row == NULL) {
        fputs("roseinfer: out of memory\n", stderr);
        return false;
    }
    const rose_status st = attempt(ctx, dir, row, &why);
    rose_results_set_wall(row, "wall_s", start);
    if (st != ROSE_OK) {
        rose_json_set_new(row, "profile_error", rose_results_string(why.msg));
        fprintf(stderr, "roseinfer: profile (%s) of %s: %s\n", tool, label, why.msg);
    }
    rose_json_append_new(rose_json_get(root, "runs"), row);
    return write_manifest(root, results) && st == ROSE_OK;
}

bool rose_profile_manifest_end(rose_json *root, const char *dir, uint64_t start_ns)
{
    rose_json *meta = rose_json_get(root, "meta");
    rose_results_set_time(meta, "profile_end_time");
    rose_results_set_wall(meta, "profile_wall_s", start_ns);
    const bool ok = write_manifest(root, dir);
    printf("%s/profile_manifest.json\n", dir);
    rose_json_decref(root);
    return ok;
}
