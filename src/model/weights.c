/* model/weights.c - see weights.h. */
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/config.h"

#define ONE_FILE   "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

/* Returns dir/name in new memory; NULL when out of memory. */
static char *join(const char *dir, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

static rose_status open_file(rose_weights *w, const char *dir, const char *name, rose_err *err)
{
    char *path = join(dir, name);
    if (path == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", name);
    rose_weight_file *f = &w->files[w->n_files];
    rose_status st = rose_st_open(&f->st, path, err);
    if (st == ROSE_OK) {
        f->label = f->st.label;
        f->tensors = f->st.tensors;
        f->n_tensors = f->st.n_tensors;
        f->size = f->st.size;
        w->file_bytes += f->size;
        w->n_files++;
    }
    free(path);
    return st;
}

/* A shard must be a plain file name without folders, so that an index cannot lead out of its
 * folder. */
static bool is_plain_name(const char *s)
{
    size_t n = strlen(s);
    return n > 0 && n < 256 && s[0] != '.' && strchr(s, '/') == NULL && strchr(s, '\\') == NULL;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Lists the distinct shard names of the map, sorted, in names[0..*n); names has room for all
 * entries. */
static rose_status list_shards(rose_json *map, const char *label, const char **names, size_t *n,
                               rose_err *err)
{
    const char *tensor;
    rose_json *v;
    size_t all = 0;
    rose_json_each (map, tensor, v) {
        const char *s = rose_json_text(v);
        if (s == NULL)
            return rose_fail(err, ROSE_E_FORMAT,
                             "%s: weight_map: the file of tensor '%.100s' is not a string", label,
                             tensor);
        if (!is_plain_name(s))
            return rose_fail(err, ROSE_E_FORMAT,
                             "%s: weight_map: the file '%.100s' of tensor '%.60s' is not a plain "
                             "file name within the folder",
                             label, s, tensor);
        names[all++] = s;
    }
    qsort(names, all, sizeof *names, compare_strings);
    *n = 0;
    for (size_t i = 0; i < all; i++)
        if (i == 0 || strcmp(names[i], names[*n - 1]) != 0) names[(*n)++] = names[i];
    if (*n == 0) return rose_fail(err, ROSE_E_FORMAT, "%s: weight_map is empty", label);
    if (*n > ROSE_MAX_SHARDS)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: %zu weight files; at most %d are supported",
                         label, *n, ROSE_MAX_SHARDS);
    return ROSE_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    const rose_st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static const rose_weight_file *file_of(const rose_weights *w, const rose_st_tensor *t)
{
    for (size_t i = 0; i < w->n_files; i++) {
        const rose_weight_file *f = &w->files[i];
        if (t >= f->tensors && t < f->tensors + f->n_tensors) return f;
    }
    return NULL;
}

/* Keeps one tensor of each name in the sorted list: that of the last file, as in transformers. A
 * GGUF file with a tensor of another part is wrong, as in llama.cpp. */
static rose_status drop_doubles(rose_weights *w, rose_err *err)
{
    const rose_st_tensor *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        rose_st_tensor *const t = w->by_name[i];
        if (n == 0 || strcmp(w->by_name[n - 1]->name, t->name) != 0) {
            w->by_name[n++] = t;
            continue;
        }
        if (rose_weights_gguf(w) != NULL)
            return rose_fail(err, ROSE_E_FORMAT, "%s: tensor '%.100s' is also in another file",
                             rose_weights_label(w, t), t->name);
        if (first == NULL) first = t;
        if (file_of(w, t) > file_of(w, w->by_name[n - 1])) w->by_name[n - 1] = t;
    }
    if (first != NULL)
        rose_log(
            ROSE_LOG_WARN, "model",
            "%s: %zu tensors are in more than one file, such as '%.100s': the last file counts",
            rose_weights_label(w, first), w->n_tensors - n, first->name);
    w->n_tensors = n;
    return ROSE_OK;
}

rose_status rose_weights_index(rose_weights *w, const char *source, rose_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_files; i++)
        n += w->files[i].n_tensors;
    if (n == 0)
        return rose_fail(err, ROSE_E_FORMAT, "%s: holds no tensors",
                         w->n_files > 0 ? w->files[0].label : source);
    w->by_name = malloc(n * sizeof *w->by_name);
    if (w->by_name == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", source);
    for (size_t i = 0; i < w->n_files; i++)
        for (size_t j = 0; j < w->files[i].n_tensors; j++)
            w->by_name[w->n_tensors++] = &w->files[i].tensors[j];
    qsort(w->by_name, n, sizeof *w->by_name, compare_tensors);
    return drop_doubles(w, err);
}

static rose_status open_sharded(rose_weights *w, const char *dir, rose_config *index, rose_err *err)
{
    rose_status st = ROSE_OK;
    size_t n = 0;
    const char **names = NULL;
    rose_json *map = rose_json_get(index->root, "weight_map");
    if (!rose_json_is_object(map)) {
        st = rose_fail(err, ROSE_E_FORMAT, "%s: 'weight_map' is missing or not an object",
                       index->label);
        goto done;
    }
    names = malloc((rose_json_size(map) + 1) * sizeof *names);
    if (names == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", index->label);
        goto done;
    }
    if ((st = list_shards(map, index->label, names, &n, err)) != ROSE_OK) goto done;
    w->files = calloc(n, sizeof *w->files);
    if (w->files == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", index->label);
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        st = open_file(w, dir, names[i], err);
        if (st == ROSE_E_NOTFOUND)
            st = rose_fail(err, st, "%s: weight file '%.100s' is missing from the folder",
                           index->label, names[i]);
        if (st != ROSE_OK) goto done;
    }
    st = rose_weights_index(w, dir, err);
done:
    free(names);
    return st;
}

static rose_status open_single(rose_weights *w, const char *dir, rose_err *err)
{
    w->files = calloc(1, sizeof *w->files);
    if (w->files == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", dir);
    rose_status st = open_file(w, dir, ONE_FILE, err);
    return st == ROSE_OK ? rose_weights_index(w, dir, err) : st;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = join(dir, name);
    const bool has = path != NULL && rose_file_exists(path);
    free(path);
    return has;
}

/* No weight file was found: say which file would have been opened, and what to do about another
 * format. */
static rose_status nothing_found(const char *dir, rose_err *err)
{
    static const char *const quantized[] = {"quantize_config.json", "quant_config.json",
                                            "hf_quant_config.json"};
    char label[256];
    rose_path_label(label, dir);
    for (size_t i = 0; i < sizeof quantized / sizeof quantized[0]; i++)
        if (has_file(dir, quantized[i]))
            return rose_fail(
                err, ROSE_E_UNSUPPORTED,
                "%s: neither " ONE_FILE " nor " INDEX_FILE "; %s shows that the weights "
                "are quantized (%s), which is not supported; use the model's folder in "
                "BF16 or F16, or a GGUF file of it",
                label, quantized[i],
                i == 0   ? "GPTQ"
                : i == 1 ? "AWQ"
                         : "modelopt");
    return rose_fail(err, ROSE_E_NOTFOUND, "%s: neither " ONE_FILE " nor " INDEX_FILE "%s", label,
                     has_file(dir, "pytorch_model.bin")
                         ? "; pytorch_model.bin must first be converted to safetensors"
                     : has_file(dir, "weights.npz")
                         ? "; weights.npz is a format of MLX: use the model's folder in safetensors"
                         : "");
}

rose_status rose_weights_open(rose_weights **out, const char *dir, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_config index = {0};
    rose_weights *w = calloc(1, sizeof *w);

    *out = NULL;
    if (w == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "weights: out of memory");
        goto done;
    }
    /* A whole file takes precedence over an index, as in transformers. */
    st = open_single(w, dir, err);
    if (st == ROSE_E_NOTFOUND) {
        free(w->files);
        w->files = NULL;
        st = rose_config_open_in(&index, dir, INDEX_FILE, false, err);
        if (st == ROSE_E_NOTFOUND)
            st = nothing_found(dir, err);
        else if (st == ROSE_OK && err != NULL)
            err->msg[0] = '\0'; /* of the attempt above */
        if (st == ROSE_OK) st = open_sharded(w, dir, &index, err);
    }
    if (st == ROSE_OK) st = rose_weights_check_packed(w, err);
    if (st != ROSE_OK) goto done;
    *out = w;
    w = NULL;
done:
    rose_config_close(&index);
    rose_weights_close(w);
    return st;
}

void rose_weights_close(rose_weights *w)
{
    if (w == NULL) return;
    for (size_t i = 0; i < w->n_files; i++) {
        if (w->files[i].tensors != w->files[i].st.tensors) free(w->files[i].tensors);
        rose_st_close(&w->files[i].st);
        rose_gguf_close(&w->files[i].gguf);
    }
    free(w->files);
    free(w->by_name);
    free(w->random);
    free(w);
}

rose_st_tensor *rose_weights_find(const rose_weights *w, const char *name)
{
    size_t lo = 0, hi = w->n_tensors;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(w->by_name[mid]->name, name);
        if (c == 0) return w->by_name[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

const rose_gguf *rose_weights_gguf(const rose_weights *w)
{
    return w->n_files > 0 && w->files[0].gguf.version != 0 ? &w->files[0].gguf : NULL;
}

const char *rose_weights_label(const rose_weights *w, const rose_st_tensor *t)
{
    const rose_weight_file *f = file_of(w, t);
    return f != NULL ? f->label : "?";
}
