/* model/pooling.c - see pooling.h: the files of sentence-transformers, config.json, and GGUF's
 * metadata. A way to pool that the engine does not have is refused by name. */
#include "model/pooling.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/folder.h"
#include "base/gguf.h"
#include "model/config.h"

#define ADVICE "; --pooling-type last or mean serves the model without these files"

/* Opens a file of the folder. A file that does not exist gives a config without root. */
static rose_status open_file(rose_config *c, const char *folder, const char *name, bool any,
                             rose_err *err)
{
    const rose_status st = rose_config_open_in(c, folder, name, any, err);
    if (st != ROSE_E_NOTFOUND) return st;
    if (err != NULL) err->msg[0] = '\0';
    return ROSE_OK;
}

/* ---- modules.json and its Pooling ---- */

/* The fields pooling_mode_X that older files set, each with X, and newer files name in
 * pooling_mode. */
static rose_status read_modes(rose_pooling_config *p, const rose_config *c, rose_err *err)
{
    static const char prefix[] = "pooling_mode_";
    const rose_json *newer = rose_config_get(c, "pooling_mode", NULL);
    const char *key, *mode = rose_json_text(newer);
    rose_json *v;
    bool several = newer != NULL && mode == NULL;
    rose_json_each (c->root, key, v) {
        if (strncmp(key, prefix, sizeof prefix - 1) != 0 || !rose_json_is_true(v)) continue;
        several = several || mode != NULL;
        mode = key + sizeof prefix - 1;
    }
    if (several)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: more than one way of pooling" ADVICE,
                         c->label);
    if (mode == NULL)
        return rose_fail(err, ROSE_E_FORMAT, "%s: no field says how to pool" ADVICE, c->label);
    const bool mean = strcmp(mode, "mean_tokens") == 0 || strcmp(mode, "mean") == 0;
    p->pool = mean ? ROSE_POOL_MEAN : ROSE_POOL_LAST;
    if (mean || strcmp(mode, "lasttoken") == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s: pooling by '%.60s' is not supported (supported: lasttoken, "
                     "mean_tokens)" ADVICE,
                     c->label, mode);
}

static rose_status read_module(rose_pooling_config *p, const char *folder, const rose_config *list,
                               const rose_json *module, rose_err *err)
{
    const char *type = rose_json_text(rose_json_get(module, "type"));
    const char *path = rose_json_text(rose_json_get(module, "path"));
    const char *name = type != NULL ? strrchr(type, '.') : NULL;
    rose_config c = {0};
    char file[512];
    if (type == NULL || path == NULL || strlen(path) > 256 || path[0] == '/' ||
        strstr(path, "..") != NULL)
        return rose_fail(
            err, ROSE_E_FORMAT,
            "%s: a module is not an object with a type and a path in the folder" ADVICE,
            list->label);
    name = name != NULL ? name + 1 : type;
    if (strcmp(name, "Transformer") == 0) return ROSE_OK;
    if (strcmp(name, "Normalize") == 0) {
        p->normalizes = true;
        return ROSE_OK;
    }
    if (strcmp(name, "Pooling") != 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: the module %.60s is not supported (supported: Transformer, Pooling, "
                         "Normalize)" ADVICE,
                         list->label, name);
    snprintf(file, sizeof file, "%s/config.json", path);
    rose_status st = open_file(&c, folder, file, false, err);
    if (st == ROSE_OK && c.root == NULL)
        st = rose_fail(err, ROSE_E_FORMAT, "%s: the folder has no %s" ADVICE, list->label, file);
    if (st == ROSE_OK) st = read_modes(p, &c, err);
    rose_config_close(&c);
    return st;
}

static rose_status read_modules(rose_pooling_config *p, const char *folder, rose_err *err)
{
    rose_config c = {0};
    const rose_json *module;
    size_t i;
    rose_status st = open_file(&c, folder, "modules.json", true, err);
    if (st != ROSE_OK || c.root == NULL) return st;
    if (!rose_json_is_array(c.root))
        st = rose_fail(err, ROSE_E_FORMAT, "%s: not a list of modules" ADVICE, c.label);
    p->embeds = true;
    p->normalizes = false;
    rose_json_each_item (c.root, i, module) {
        if (st == ROSE_OK) st = read_module(p, folder, &c, module, err);
    }
    rose_config_close(&c);
    return st;
}

/* ---- config.json ---- */

static rose_status read_dimensions(rose_pooling_config *p, const rose_config *c, rose_err *err)
{
    const rose_json *list = rose_config_get(c, "matryoshka_dimensions", NULL), *v;
    size_t i;
    rose_status st = rose_config_read_bool(c, "is_matryoshka", &p->cuts, err);
    if (st != ROSE_OK || list == NULL) return st;
    p->cuts = true;
    if (!rose_json_is_array(list) || rose_json_count(list) > ROSE_MAX_DIMENSIONS)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: 'matryoshka_dimensions' is not a list of at most %d numbers",
                         c->label, ROSE_MAX_DIMENSIONS);
    rose_json_each_item (list, i, v) {
        const int64_t n = rose_json_int(v); /* 0 if v is no integer */
        if (n < 1 || n > INT32_MAX)
            return rose_fail(err, ROSE_E_FORMAT,
                             "%s: matryoshka_dimensions[%zu] is not a number above 0", c->label, i);
        p->dimensions[p->n_dimensions++] = (uint32_t)n;
    }
    return ROSE_OK;
}

/* A converted reranker has the difference of two rows of the head instead of the head. With a tied
 * head the rows are those of the token embedding. Any other head of a classifier is not computed.
 */
static rose_status read_architecture(rose_pooling_config *p, const rose_config *c, rose_err *err)
{
    bool tied = true;
    const rose_json *first = rose_json_at(rose_config_get(c, "architectures", NULL), 0);
    const char *name = rose_json_text(first);
    if (name == NULL || strstr(name, "ForSequenceClassification") == NULL) return ROSE_OK;
    const rose_status st = rose_config_read_bool(c, "tie_word_embeddings", &tied, err);
    p->ranks = tied && strcmp(name, "Qwen3ForSequenceClassification") == 0;
    p->own_head = !p->ranks;
    return st;
}

static rose_status read_folder(rose_pooling_config *p, const char *folder, bool modules,
                               rose_err *err)
{
    rose_config c = {0};
    rose_status st = open_file(&c, folder, "config.json", false, err);
    if (st == ROSE_OK && c.root != NULL) st = read_dimensions(p, &c, err);
    if (st == ROSE_OK && c.root != NULL) st = read_architecture(p, &c, err);
    rose_config_close(&c);
    if (st == ROSE_OK && modules) st = read_modules(p, folder, err);
    if (p->embeds) p->cuts = true;
    return st;
}

/* ---- GGUF ---- */

static rose_status read_gguf(rose_pooling_config *p, const char *path, bool pooling, rose_err *err)
{
    enum { UNSAID = 0, MEAN = 1, LAST = 3, RANK = 4 }; /* llama.cpp's enum; 0 is none */
    rose_gguf file;
    rose_gguf_str arch = {0};
    char key[128];
    uint32_t type = UNSAID;
    rose_status st = rose_gguf_open(&file, path, err);
    if (st != ROSE_OK) return st;
    st = rose_gguf_get_string(&file, "general.architecture", &arch, err);
    snprintf(key, sizeof key, "%.*s.pooling_type", (int)(arch.n < 64 ? arch.n : 64),
             arch.n > 0 ? arch.s : "");
    if (st == ROSE_OK) st = rose_gguf_get_u32(&file, key, &type, err);
    p->ranks = type == RANK;
    if (st == ROSE_OK && pooling) {
        p->embeds = type != UNSAID && !p->ranks;
        p->cuts = p->embeds;
        if (type == MEAN) p->pool = ROSE_POOL_MEAN;
        if (type != UNSAID && type != MEAN && type != LAST && type != RANK)
            st = rose_fail(err, ROSE_E_UNSUPPORTED,
                           "%s: %s is %u, supported are %d (mean), %d (last) and %d (rank)" ADVICE,
                           file.label, key, type, MEAN, LAST, RANK);
    }
    rose_gguf_close(&file);
    return st;
}

/* ---- both ---- */

static bool is_auto(const char *option)
{
    return option == NULL || strcmp(option, "auto") == 0;
}

rose_status rose_pooling_read(rose_pooling_config *out, const char *path, const char *type,
                              const char *task, rose_err *err)
{
    struct stat s;
    char *file = NULL;
    rose_pooling_config p = {.pool = ROSE_POOL_LAST, .normalizes = true};
    *out = (rose_pooling_config){0};
    rose_status st = rose_folder_find_gguf(&file, path, err);
    if (st == ROSE_OK && file != NULL)
        st = read_gguf(&p, file, is_auto(type), err);
    else if (st == ROSE_OK && stat(path, &s) == 0 && S_ISDIR(s.st_mode))
        st = read_folder(&p, path, is_auto(type), err);
    free(file);
    if (st != ROSE_OK) return st;
    if (!is_auto(type)) p.pool = strcmp(type, "mean") == 0 ? ROSE_POOL_MEAN : ROSE_POOL_LAST;
    if (!is_auto(task)) {
        p.ranks = strcmp(task, "rerank") == 0;
        p.own_head = false;
    }
    *out = p;
    return ROSE_OK;
}

bool rose_pooling_allows(const rose_pooling_config *c, uint32_t width, uint32_t n)
{
    if (n == width) return true;
    if (!c->cuts || n == 0 || n > width) return false;
    for (uint32_t i = 0; i < c->n_dimensions; i++)
        if (c->dimensions[i] == n) return true;
    return c->n_dimensions == 0;
}

double rose_pooling_length(const float *v, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

double rose_pooling_divisor(const float *v, uint32_t n, bool normalizes)
{
    const double length = normalizes ? rose_pooling_length(v, n) : 1;
    return length > 1e-12 ? length : 1e-12;
}
