/* model/generation.c - see generation.h: one table says how each default is spelled in
 * generation_config.json and in GGUF metadata, and what values it may have. */
#include "model/generation.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/folder.h"
#include "base/gguf.h"
#include "model/config.h"

typedef struct row {
    const char *name;
    const char *key; /* in GGUF metadata; NULL = none */
    uint32_t bit;
    bool whole; /* an integer, stored as uint32_t; else a float */
    size_t at;
    double lo, hi;
    const char *range;
} row;

#define AT(member) offsetof(rose_generation, member)
static const row rows[] = {
    {"temperature", "general.sampling.temp", ROSE_GENERATION_TEMPERATURE, false, AT(temperature), 0,
     100, "0 to 100"},
    {"top_p", "general.sampling.top_p", ROSE_GENERATION_TOP_P, false, AT(top_p), 1e-30, 1,
     "above 0, at most 1"},
    {"top_k", "general.sampling.top_k", ROSE_GENERATION_TOP_K, true, AT(top_k), -1, INT32_MAX,
     "-1 or 0 (off), or 1 to 2147483647"},
    {"min_p", "general.sampling.min_p", ROSE_GENERATION_MIN_P, false, AT(min_p), 0, 1, "0 to 1"},
    {"repetition_penalty", "general.sampling.penalty_repeat", ROSE_GENERATION_REPETITION, false,
     AT(repetition), 0.01, 100, "0.01 to 100"},
    {"max_new_tokens", NULL, ROSE_GENERATION_MAX_TOKENS, true, AT(max_tokens), 1, INT32_MAX,
     "1 to 2147483647"},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static rose_status store(rose_generation *g, const row *r, double x, const char *label,
                         rose_err *err)
{
    char *at = (char *)g + r->at;
    if (!(x >= r->lo && x <= r->hi))
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: %s is %g, expected %s; --generation-config none ignores it", label,
                         r->name, x, r->range);
    const float f = (float)x;
    const uint32_t u = x > 0 ? (uint32_t)x : 0;
    memcpy(at, r->whole ? (const void *)&u : (const void *)&f, 4);
    g->has |= r->bit;
    return ROSE_OK;
}

static rose_status read_json(rose_generation *g, const rose_config *c, rose_err *err)
{
    rose_status st = ROSE_OK;
    for (size_t i = 0; st == ROSE_OK && i < N_ROWS; i++) {
        char text[64];
        const rose_json *v = rose_config_get(c, rows[i].name, NULL);
        if (v == NULL) continue;
        if (rows[i].whole ? !rose_json_is_integer(v) : !rose_json_is_number(v))
            return rose_fail(err, ROSE_E_FORMAT,
                             "%s: %s is %s, expected %s; --generation-config none ignores it",
                             c->label, rows[i].name, rose_config_describe(v, text),
                             rows[i].whole ? "an integer" : "a number");
        st = store(g, &rows[i], rose_json_number_value(v), c->label, err);
    }
    return st;
}

static rose_status read_file(rose_generation *g, const char *path, rose_err *err)
{
    rose_config c = {0};
    rose_status st = rose_config_open(&c, path, err);
    if (st == ROSE_OK) st = read_json(g, &c, err);
    rose_config_close(&c);
    return st;
}

static rose_status read_folder(rose_generation *g, const char *folder, rose_err *err)
{
    char *path = NULL;
    if (asprintf(&path, "%s/generation_config.json", folder) < 0)
        return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", folder);
    rose_status st = read_file(g, path, err);
    if (st == ROSE_E_NOTFOUND) { /* a model without defaults */
        st = ROSE_OK;
        if (err != NULL) err->msg[0] = '\0';
    }
    free(path);
    return st;
}

static rose_status read_gguf(rose_generation *g, const char *path, rose_err *err)
{
    rose_gguf file;
    rose_status st = rose_gguf_open(&file, path, err);
    if (st != ROSE_OK) return st;
    for (size_t i = 0; st == ROSE_OK && i < N_ROWS; i++) {
        float f = 0;
        uint32_t u = 0;
        if (rows[i].key == NULL || rose_gguf_get(&file, rows[i].key) == NULL) continue;
        st = rows[i].whole ? rose_gguf_get_u32(&file, rows[i].key, &u, err)
                           : rose_gguf_get_f32(&file, rows[i].key, &f, err);
        if (st == ROSE_OK)
            st = store(g, &rows[i], rows[i].whole ? (double)u : (double)f, file.label, err);
    }
    rose_gguf_close(&file);
    return st;
}

rose_status rose_generation_read(rose_generation *out, const char *path, rose_err *err)
{
    struct stat s;
    char *file = NULL;
    *out = (rose_generation){0};
    rose_status st = rose_folder_find_gguf(&file, path, err);
    if (st == ROSE_OK && file != NULL)
        st = read_gguf(out, file, err);
    else if (st == ROSE_OK && stat(path, &s) == 0 && S_ISDIR(s.st_mode))
        st = read_folder(out, path, err);
    else if (st == ROSE_OK)
        st = read_file(out, path, err);
    free(file);
    if (st != ROSE_OK) *out = (rose_generation){0};
    return st;
}

rose_status rose_generation_choose(rose_generation *out, const char *model, const char *from,
                                   rose_err *err)
{
    *out = (rose_generation){0};
    if (from != NULL && (strcmp(from, "none") == 0 || strcmp(from, "vllm") == 0)) return ROSE_OK;
    return rose_generation_read(out, from == NULL || strcmp(from, "auto") == 0 ? model : from, err);
}

void rose_generation_text(const rose_generation *g, char out[ROSE_GENERATION_TEXT])
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < N_ROWS && n < ROSE_GENERATION_TEXT; i++) {
        const char *at = (const char *)g + rows[i].at, *comma = n > 0 ? ", " : "";
        float f;
        uint32_t u;
        if ((g->has & rows[i].bit) == 0) continue;
        memcpy(&f, at, sizeof f);
        memcpy(&u, at, sizeof u);
        n += (size_t)(rows[i].whole ? snprintf(out + n, ROSE_GENERATION_TEXT - n, "%s%s %u", comma,
                                               rows[i].name, u)
                                    : snprintf(out + n, ROSE_GENERATION_TEXT - n, "%s%s %g", comma,
                                               rows[i].name, (double)f));
    }
}
