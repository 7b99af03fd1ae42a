/* cli/tune.c - `roseinfer tune`: opens a model on the GPU with --tune and closes it. The backend
 * measures its GEMM kernels and keeps the fastest in a file, which `roseinfer serve` reads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"

void rose_cli_tune_dir(rose_backend_opts *o)
{
    static char dir[2048];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (o->cuda.tune_dir != NULL) return;
    if (cache != NULL && cache[0] == '/')
        n = snprintf(dir, sizeof dir, "%s/roseinfer", cache);
    else if (home != NULL && home[0] == '/')
        n = snprintf(dir, sizeof dir, "%s/.cache/roseinfer", home);
    if (n > 0 && (size_t)n < sizeof dir) o->cuda.tune_dir = dir;
}

static rose_status tune(const rose_model *m, const rose_engine_flags *f, rose_engine_opts *o,
                        rose_err *err)
{
    const rose_backend_ops *ops = NULL;
    rose_memory_plan plan;
    void *backend = NULL;
    rose_cli_tune_dir(&o->backend);
    o->backend.cuda.tune = true;
    rose_status st = rose_backend_pick_for(&ops, f->device, m, err);
    if (st == ROSE_OK && strcmp(ops->name, "cuda") != 0)
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "tune measures GPU kernels, but the model would run on %s", ops->name);
    if (st == ROSE_OK) st = ops->plan(m, &o->backend, &plan, err);
    if (st == ROSE_OK) st = ops->open(&backend, m, &o->backend, &plan, err);
    if (ops != NULL) ops->close(backend);
    return st;
}

int rose_cmd_tune(int argc, char **argv)
{
    static rose_engine_flags flags;
    rose_opt opts[ROSE_ENGINE_FLAG_ROWS];
    const char *model;
    rose_engine_flags_init(&flags);
    const int rc = rose_opts_parse_one(
        "roseinfer tune MODEL [options]",
        "Measures which GEMM kernels are fastest for a model on this GPU, for at most 30 seconds, "
        "and\nkeeps them in a file that serve reads. Results are the same bits with and without "
        "it.\nThe engine options are those that serve gets.",
        opts, rose_engine_flags_rows(&flags, opts), argc, argv, &model);
    if (rc >= 0) return rc;

    rose_err err = {{0}};
    rose_model *m = NULL;
    rose_engine_opts o;
    rose_status st = rose_engine_flags_read(&flags, &o, &err);
    rose_buf path = {0};
    if (st == ROSE_OK && !rose_cli_find_model(&model, &path, false, false, &err))
        st = ROSE_E_NOTFOUND;
    if (st == ROSE_OK) st = rose_model_open_as(&m, model, flags.load_format, &err);
    if (st == ROSE_OK) st = tune(m, &flags, &o, &err);
    rose_model_close(m);
    rose_buf_free(&path);
    return st == ROSE_OK ? 0 : rose_die(&err);
}
