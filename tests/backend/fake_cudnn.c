/* tests/backend/fake_cudnn.c - a libcudnn.so.9 that computes nothing, for the host side of
 * attention by cuDNN where there is no GPU: it holds what a descriptor must have been through
 * before it is used, and fails as ROSE_FAKE_CUDNN says: "old" (version 9.1), "none" (no engine),
 * "plan" (a plan cannot be made), "run" (it does not run), "step" (not behind the four
 * trials: in the warm-up), "silent" (makes the file of ROSE_FAULT_WHEN, from when the fake device
 * answers no more). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BAD = 2000, NOT_SUPPORTED = 3001, INTERNAL = 4000, FAILED = 5000 };
enum { PLAN = 5, PACK = 16, RESULTS = 202, ENGINE = 300, WORKSPACE = 402, INDEX = 1301 };

typedef struct descriptor {
    int kind, n_attributes, done;
} descriptor;

static const char *g_text = "";

static int wants(const char *failure)
{
    const char *is = getenv("ROSE_FAKE_CUDNN");
    return is != NULL && strcmp(is, failure) == 0;
}

static int say(int status, const char *text)
{
    g_text = text;
    return status;
}

#define API __attribute__((visibility("default")))
API size_t cudnnGetVersion(void)
{
    return wants("old") ? 90100 : 91900;
}

API const char *cudnnGetErrorString(int status)
{
    return status == OK ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_FAKE";
}

API void cudnnGetLastErrorString(char *to, size_t cap)
{
    snprintf(to, cap, "%s\nsecond line", g_text);
}

API int cudnnCreate(void **handle)
{
    *handle = malloc(1);
    return OK;
}

API int cudnnDestroy(void *handle)
{
    free(handle);
    return OK;
}

API int cudnnSetStream(void *handle, void *stream)
{
    const char *when = getenv("ROSE_FAULT_WHEN");
    FILE *f = wants("silent") && when != NULL ? fopen(when, "w") : NULL;
    if (f != NULL) fclose(f);
    return handle != NULL && stream != NULL ? OK : say(BAD, "no stream");
}

API int cudnnBackendCreateDescriptor(int kind, void **out)
{
    descriptor *d = calloc(1, sizeof *d);
    d->kind = kind;
    *out = d;
    return OK;
}

API int cudnnBackendDestroyDescriptor(void *d)
{
    free(d);
    return OK;
}

API int cudnnBackendSetAttribute(void *of, int name, int type, int64_t n, const void *values)
{
    descriptor *d = of;
    (void)name;
    (void)type;
    if (d->done || n < 1 || values == NULL) return say(BAD, "set after finalize, or nothing");
    d->n_attributes++;
    return OK;
}

API int cudnnBackendFinalize(void *of)
{
    descriptor *d = of;
    if (d->done || d->n_attributes == 0) return say(BAD, "finalized twice, or empty");
    if (d->kind == PLAN && wants("plan")) return say(INTERNAL, "this plan cannot be made");
    d->done = 1;
    return OK;
}

API int cudnnBackendGetAttribute(void *of, int name, int type, int64_t cap, int64_t *n, void *to)
{
    const int64_t workspace = 4096, index = 7;
    descriptor *d = of;
    (void)type;
    *n = 1;
    if (name == RESULTS) {
        if (!d->done) return say(BAD, "heuristics not finalized");
        const int64_t given = wants("none") ? 0 : cap;
        *n = given > 0 ? given + 2 : 0; /* how many there are, not how many are given */
        for (int64_t i = 0; i < given; i++)
            (*(descriptor **)((void **)to + i))->done = 1;
    }
    if (name == WORKSPACE) memcpy(to, &workspace, sizeof workspace);
    if (name == INDEX) memcpy(to, &index, sizeof index);
    return name == RESULTS || name == WORKSPACE || name == INDEX || name == ENGINE
               ? OK
               : say(NOT_SUPPORTED, "no such attribute");
}

API int cudnnBackendExecute(void *handle, void *plan, void *pack)
{
    enum { PLANS = 4 }; /* each runs once at the start */
    static int n_runs;
    const descriptor *p = plan, *v = pack;
    if (wants("step") && ++n_runs > PLANS) return say(FAILED, "this plan runs no more");
    if (handle == NULL || p->kind != PLAN || !p->done || v->kind != PACK || !v->done)
        return say(BAD, "not a plan, or not what it works on");
    return wants("run") ? say(FAILED, "this plan does not run") : OK;
}
