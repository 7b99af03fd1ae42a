/* model/weights_gguf.c - GGUF files as weights: one file, or the files of a split model, whose
 * names end in "-00001-of-00003.gguf". See weights.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights.h"

static rose_status list_tensors(rose_weight_file *f, rose_err *err)
{
    const rose_gguf *g = &f->gguf;
    f->tensors = calloc(g->n_tensors + 1, sizeof *f->tensors);
    if (f->tensors == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", f->label);
    for (; f->n_tensors < g->n_tensors; f->n_tensors++) {
        const rose_gguf_tensor *from = &g->tensors[f->n_tensors];
        rose_st_tensor *t = &f->tensors[f->n_tensors];
        *t = (rose_st_tensor){.name = from->name,
                              .dtype_name = from->format->name,
                              .n_dims = from->n_dims,
                              .begin = from->begin,
                              .end = from->end,
                              .data = from->data};
        memcpy(t->shape, from->shape, sizeof from->shape);
        t->usable = rose_format_named(from->format->name, &t->dtype);
    }
    return ROSE_OK;
}

/* Takes over the next file of w, which was just opened. */
static rose_status take_file(rose_weights *w, rose_err *err)
{
    rose_weight_file *f = &w->files[w->n_files++]; /* from here on rose_weights_close frees it */
    f->label = f->gguf.label;
    f->size = f->gguf.size;
    w->file_bytes += f->size;
    return list_tensors(f, err);
}

static rose_status open_file(rose_weights *w, const char *path, rose_err *err)
{
    const rose_status st = rose_gguf_open(&w->files[w->n_files].gguf, path, err);
    return st == ROSE_OK ? take_file(w, err) : st;
}

/* File i of n says so itself. */
static rose_status check_split(const rose_gguf *g, uint32_t i, uint32_t n, rose_err *err)
{
    uint32_t no = 0, count = 1;
    rose_status st = rose_gguf_get_u32(g, "split.no", &no, err);
    if (st == ROSE_OK) st = rose_gguf_get_u32(g, "split.count", &count, err);
    if (st != ROSE_OK || (no == i && count == n)) return st;
    return rose_fail(err, ROSE_E_FORMAT,
                     "%s: by its name the file is part %u of %u, but its metadata say part %u of "
                     "%u: was it renamed?",
                     g->label, i + 1, n, no + 1, count);
}

static rose_status check_total(const rose_weights *w, rose_err *err)
{
    const rose_gguf *g = &w->files[0].gguf;
    size_t found = 0;
    for (size_t i = 0; i < w->n_files; i++)
        found += w->files[i].n_tensors;
    uint32_t expected = (uint32_t)found;
    const rose_status st = rose_gguf_get_u32(g, "split.tensors.count", &expected, err);
    if (st != ROSE_OK || found == expected) return st;
    return rose_fail(err, ROSE_E_FORMAT, "%s: the %zu files hold %zu tensors; expected %u",
                     g->label, w->n_files, found, expected);
}

static rose_status open_split(rose_weights *w, const char *path, const rose_gguf_split *s,
                              rose_err *err)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; st == ROSE_OK && i < s->count; i++) {
        char *part = NULL;
        if (asprintf(&part, "%.*s-%05u-of-%05u.gguf", (int)s->prefix, path, i + 1, s->count) < 0)
            return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", path);
        st = open_file(w, part, err);
        if (st == ROSE_E_NOTFOUND)
            st = rose_fail(err, st, "%.300s: part %u of %u of the split model is missing", part,
                           i + 1, s->count);
        if (st == ROSE_OK) st = check_split(&w->files[i].gguf, i, s->count, err);
        free(part);
    }
    return st == ROSE_OK ? check_total(w, err) : st;
}

/* A file whose name is not that of a part must hold the whole model. */
static rose_status open_whole(rose_weights *w, const char *path, rose_err *err)
{
    uint32_t count = 1;
    rose_status st = open_file(w, path, err);
    if (st == ROSE_OK) st = rose_gguf_get_u32(&w->files[0].gguf, "split.count", &count, err);
    if (st == ROSE_OK && count > 1)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: part of a model in %u files; give the parts their names back, which "
                         "end in -00001-of-%05u.gguf",
                         w->files[0].label, count, count);
    return st;
}

/* Makes w with room for n files. source: for messages. */
static rose_status begin(rose_weights **w, uint32_t n, const char *source, rose_err *err)
{
    *w = calloc(1, sizeof **w);
    if (*w != NULL && ((*w)->files = calloc(n, sizeof *(*w)->files)) != NULL) return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "%.300s: out of memory", source);
}

/* Ends what begin began. st: of the steps between; w goes to the caller or is closed. */
static rose_status end(rose_weights **w, rose_status st, const char *source, rose_err *err)
{
    if (st == ROSE_OK) st = rose_weights_index(*w, source, err);
    if (st == ROSE_OK) return st;
    rose_weights_close(*w);
    *w = NULL;
    return st;
}

rose_status rose_weights_open_gguf(rose_weights **out, const char *path, rose_err *err)
{
    const rose_gguf_split s = rose_gguf_read_split(path);
    *out = NULL;
    if (s.count > ROSE_GGUF_MAX_SPLITS)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%.300s: %u files; at most %d are supported",
                         path, s.count, ROSE_GGUF_MAX_SPLITS);
    rose_status st = begin(out, s.count > 1 ? s.count : 1, path, err);
    if (st == ROSE_OK)
        st = s.count > 1 ? open_split(*out, path, &s, err) : open_whole(*out, path, err);
    return end(out, st, path, err);
}

rose_status rose_weights_parse_gguf(rose_weights **out, const uint8_t *bytes, size_t n,
                                    const char *label, rose_err *err)
{
    rose_status st = begin(out, 1, label, err);
    if (st == ROSE_OK) st = rose_gguf_parse(&(*out)->files[0].gguf, bytes, n, label, err);
    if (st == ROSE_OK) st = take_file(*out, err);
    return end(out, st, label, err);
}
