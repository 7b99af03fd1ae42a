/* lib/options.c - the options of an engine: the members of rose_lib_options, and those of the table
 * that `roseinfer serve` reads (engine/flags.h). Both set the same struct. */
#include <string.h>

#include "lib/lib_internal.h"

enum { MAX_NAME = 64 };

/* The table of one engine. */
typedef struct table {
    rose_engine_flags *flags;
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS];
    rose_command c;
} table;

static void make_table(table *t, rose_engine_flags *f)
{
    t->flags = f;
    t->c = (rose_command){.opts = t->rows, .n_opts = rose_engine_flags_rows(f, t->rows)};
}

static rose_status unknown_option(const table *t, const char *name, rose_err *err)
{
    bool no;
    const rose_opt *near = rose_opts_near(&t->c, name, strlen(name), &no);
    return rose_fail(err, ROSE_E_INVAL, "an engine has no option '%s'%s%s%s", name,
                     near != NULL ? "; did you mean '" : "", near != NULL ? near->name : "",
                     near != NULL ? "'?" : "");
}

/* given: begins with the name as the caller wrote it, up to "=" or the end. value: borrowed by the
 * flags; NULL = not given. */
static rose_status set(const table *t, const char *name, const char *given, const char *value,
                       rose_err *err)
{
    rose_err why = {{0}};
    const rose_opt *o = rose_opts_find(&t->c, name, strlen(name));
    if (value == NULL) return ROSE_OK;
    if (o == NULL) return unknown_option(t, name, err);
    if (strcmp(name, "device") == 0 &&
        rose_backend_is_gpu(value, &t->flags->opts.backend.cuda.device)) {
        t->flags->device = value;
        return ROSE_OK;
    }
    const rose_status st = rose_opt_read(o, value, &why);
    return st == ROSE_OK ? st
                         : rose_fail(err, st, "%.*s '%.80s': %s", (int)strcspn(given, "="), given,
                                     value, why.msg);
}

/* text: "NAME=VALUE". */
static rose_status set_text(const table *t, const char *text, size_t i, rose_err *err)
{
    char name[MAX_NAME];
    const size_t n = text != NULL ? strcspn(text, "=") : 0;
    if (n == 0 || n >= MAX_NAME || text[n] != '=')
        return rose_fail(err, ROSE_E_INVAL, "more[%zu] '%.80s' is not of the form NAME=VALUE", i,
                         text != NULL ? text : "NULL");
    for (size_t k = 0; k < n; k++)
        name[k] = (char)(text[k] == '_' ? '-' : text[k]);
    name[n] = '\0';
    return set(t, name, text, text + n + 1, err);
}

static rose_status check_pooling(const char *pooling, rose_err *err)
{
    if (pooling == NULL || strcmp(pooling, "auto") == 0 || strcmp(pooling, "last") == 0 ||
        strcmp(pooling, "mean") == 0)
        return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL, "pooling '%.80s': expected auto, last or mean", pooling);
}

static rose_status check_task(const char *task, rose_err *err)
{
    if (task == NULL || strcmp(task, "auto") == 0 || strcmp(task, "embed") == 0 ||
        strcmp(task, "rerank") == 0)
        return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL, "task '%.80s': expected auto, embed or rerank", task);
}

static void set_numbers(rose_engine_flags *f, const rose_lib_options *in)
{
    rose_backend_opts *b = &f->opts.backend;
    b->cpu.n_threads = in->threads;
    if (in->max_num_seqs != 0) b->max_seqs = in->max_num_seqs;
    if (in->max_batched_tokens != 0) b->max_step_tokens = in->max_batched_tokens;
    b->max_model_len = in->max_model_len;
    b->kv_pages = in->kv_pages;
    if (in->max_queued != 0) f->opts.max_queued = in->max_queued;
    f->opts.prefix_cache = in->no_prefix_cache == 0;
    f->cpu_affinity = in->pin_threads != 0;
}

rose_status rose_lib_read_options(const rose_lib_options *in, rose_engine_flags *f,
                                  rose_engine_opts *o, rose_err *err)
{
    table t;
    rose_engine_flags_init(f);
    f->opts.offline = true;
    make_table(&t, f);
    set_numbers(f, in);
    const char *const texts[][2] = {{"dtype", in->dtype},
                                    {"isa", in->isa},
                                    {"device", in->device},
                                    {"quantization", in->quantization},
                                    {"load-format", in->load_format}};
    rose_status st = check_pooling(in->pooling, err);
    if (st == ROSE_OK) st = check_task(in->task, err);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && st == ROSE_OK; i++)
        st = set(&t, texts[i][0], texts[i][0], texts[i][1], err);
    if (st == ROSE_OK && in->n_more > 0 && in->more == NULL)
        st = rose_fail(err, ROSE_E_INVAL, "more is NULL, and its count is %zu", in->n_more);
    for (size_t i = 0; i < in->n_more && st == ROSE_OK; i++)
        st = set_text(&t, in->more[i], i, err);
    return st == ROSE_OK ? rose_engine_flags_read(f, o, err) : st;
}

const char *rose_lib_option_name(size_t i)
{
    rose_engine_flags f;
    table t;
    rose_engine_flags_init(&f);
    make_table(&t, &f);
    for (size_t row = 0; row < t.c.n_opts; row++)
        if (t.rows[row].kind != ROSE_OPT_HEADING && i-- == 0) return t.rows[row].name;
    return NULL;
}
