/* bench/profile_call.c - see profile_call.h. */
#include "bench/profile_call.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "bench/results.h"

enum { CALL_TIMEOUT_MS = 300000 };

rose_status rose_profile_dirs(char *path, rose_err *err)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != '\0') continue;
        const char end = *p;
        *p = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return rose_fail(err, ROSE_E_IO, "cannot create %s: %s", path, strerror(errno));
        *p = end;
        if (end == '\0') return ROSE_OK;
    }
}

rose_status rose_profile_call(rose_json *row, const rose_url *u, const char *path, const char *name,
                              rose_err *err)
{
    rose_buf body = {0};
    rose_json_error e;
    rose_json *said = NULL;
    int status = 0;
    rose_status st = rose_http_call(u, path, "{}", CALL_TIMEOUT_MS, &status, &body, err);
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

bool rose_profile_manifest_end(rose_json *root, const char *dir, uint64_t start_ns)
{
    rose_err err = {""};
    char ended[32];
    rose_json *meta = rose_json_get(root, "meta");
    rose_results_time(ended);
    rose_json_set_new(meta, "profile_end_time", rose_json_string(ended));
    rose_json_set_new(meta, "profile_wall_s",
                      rose_json_real((double)(rose_now_ns() - start_ns) * 1e-9));
    bool ok = rose_results_write(root, dir, "profile_manifest.json", &err) == ROSE_OK;
    if (!ok) fprintf(stderr, "roseinfer: %s\n", err.msg);
    printf("%s/profile_manifest.json\n", dir);
    rose_json_decref(root);
    return ok;
}
