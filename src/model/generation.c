/* model/generation.c - see generation.h: one table says how each default is spelled in
 * generation_config.json and in GGUF metadata, and what values it may have. The file advises, so a
 * value that we do not have never stops a start: a warning says what counts instead. */
#include "model/generation.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/folder.h"
#include "base/gguf.h"
#include "base/log.h"
#include "model/config.h"

typedef struct row {
    const char *name;
    const char *key; /* in GGUF metadata; NULL = none */
    uint32_t bit;
    bool whole; /* an integer, stored as uint32_t; else a float */
    size_t at;
    double lo, hi;
    bool off_below; /* a number below lo means that there is no default; else it means lo */
    const char *range;
} row;

#define AT(member) offsetof(rose_generation, member)
static const row rows[] = {
    {"temperature", "general.sampling.temp", ROSE_GENERATION_TEMPERATURE, false, AT(temperature), 0,
     100, false, "0 to 100"},
    {"top_p", "general.sampling.top_p", ROSE_GENERATION_TOP_P, false, AT(top_p), 1e-30, 1, false,
     "above 0, at most 1"},
    {"top_k", "general.sampling.top_k", ROSE_GENERATION_TOP_K, true, AT(top_k), -1, INT32_MAX,
     false, "-1 or 0 (off), or 1 to 2147483647"},
    {"min_p", "general.sampling.min_p", ROSE_GENERATION_MIN_P, false, AT(min_p), 0, 1, false,
     "0 to 1"},
    {"repetition_penalty", "general.sampling.penalty_repeat", ROSE_GENERATION_REPETITION, false,
     AT(repetition), 0.01, 100, true, "0.01 to 100"},
    {"max_new_tokens", NULL, ROSE_GENERATION_MAX_TOKENS, true, AT(max_tokens), 1, INT32_MAX, true,
     "1 to 2147483647"},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static void warn_ignored(const char *label, const row *r, const char *found)
{
    rose_log(ROSE_LOG_WARN, "model", "%s: %s is %s, expected %s: it is ignored", label, r->name,
             found, r->range);
}

/* Stores x, or the nearest value that the row may have. text: x as the file has it. */
static void store(rose_generation *g, const row *r, double x, const char *text, const char *label)
{
    char *at = (char *)g + r->at;
    double y = r->whole ? floor(x) : x;
    if (y < r->lo) y = r->lo;
    if (y > r->hi) y = r->hi;
    if (isnan(x) || (x < r->lo && r->off_below)) {
        warn_ignored(label, r, text);
        return;
    }
    if (x != y)
        rose_log(ROSE_LOG_WARN, "model", "%s: %s is %s, expected %s%s: %.15g counts", label,
                 r->name, text, r->whole ? "an integer, " : "", r->range, y);
    const float f = (float)y;
    const uint32_t u = y > 0 ? (uint32_t)y : 0;
    memcpy(at, r->whole ? (const void *)&u : (const void *)&f, 4);
    g->has |= r->bit;
}

/* Fields that do not say how to choose tokens. */
static bool is_silent(const char *key)
{
    static const char *const keys[] = {"bos_token_id",
                                       "eos_token_id",
                                       "pad_token_id",
                                       "do_sample",
                                       "transformers_version",
                                       "_from_model_config",
                                       "return_dict_in_generate",
                                       "cache_implementation"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i], key) == 0) return true;
    for (size_t i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].name, key) == 0) return true;
    return strncmp(key, "output_", 7) == 0;
}

/* The values with which transformers saves a feature that is off. */
static bool is_neutral(const rose_json *v)
{
    if (rose_json_is_number(v))
        return rose_json_number_value(v) == 0 || rose_json_number_value(v) == 1;
    if (rose_json_is_array(v)) return rose_json_count(v) == 0;
    if (rose_json_is_object(v)) return rose_json_size(v) == 0;
    return rose_json_is_null(v) || rose_json_is_false(v);
}

/* Says once which fields of the file change nothing here. */
static void log_unused(const rose_config *c)
{
    char text[256];
    size_t n = 0;
    const char *key;
    rose_json *v;
    rose_json_each (c->root, key, v) {
        if (is_silent(key) || is_neutral(v) || n >= sizeof text) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%.60s", n > 0 ? ", " : "", key);
    }
    if (n > 0) rose_log(ROSE_LOG_INFO, "model", "%s: not applied: %s", c->label, text);
}

/* do_sample false: the model is greedy unless a request says more. */
static void make_greedy(rose_generation *g, const char *label)
{
    const uint32_t shape = ROSE_GENERATION_TOP_P | ROSE_GENERATION_TOP_K | ROSE_GENERATION_MIN_P;
    if ((g->has & (shape | ROSE_GENERATION_TEMPERATURE)) != 0)
        rose_log(ROSE_LOG_INFO, "model",
                 "%s: do_sample is false, so temperature, top_p, top_k and min_p are not applied: "
                 "the default is greedy",
                 label);
    g->has = (g->has & ~shape) | ROSE_GENERATION_TEMPERATURE;
    g->temperature = 0;
}

static void read_json(rose_generation *g, const rose_config *c)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        char text[64];
        const rose_json *v = rose_config_get(c, rows[i].name, NULL);
        if (rose_json_is_number(v))
            store(g, &rows[i], rose_json_number_value(v), rose_config_describe(v, text), c->label);
        else if (v != NULL)
            warn_ignored(c->label, &rows[i], rose_config_describe(v, text));
    }
    if (rose_json_is_false(rose_json_get(c->root, "do_sample"))) make_greedy(g, c->label);
    log_unused(c);
}

/* name: the file in the folder that path then is; NULL: path is the file. A model without defaults
 * is one whose folder has no such file, or one that is no JSON; when the model was opened, a
 * warning said the latter. */
static rose_status read_file(rose_generation *g, const char *path, const char *name, rose_err *err)
{
    rose_config c = {0};
    rose_status st = name != NULL ? rose_config_open_in(&c, path, name, false, err)
                                  : rose_config_open(&c, path, err);
    if (st == ROSE_OK) read_json(g, &c);
    rose_config_close(&c);
    if (name == NULL || (st != ROSE_E_NOTFOUND && st != ROSE_E_FORMAT)) return st;
    if (err != NULL) err->msg[0] = '\0';
    return ROSE_OK;
}

static rose_status read_gguf(rose_generation *g, const char *path, rose_err *err)
{
    rose_gguf file;
    rose_status st = rose_gguf_open(&file, path, err);
    if (st != ROSE_OK) return st;
    g->has = ROSE_GENERATION_TEMPERATURE | ROSE_GENERATION_TOP_P | ROSE_GENERATION_TOP_K;
    g->temperature = ROSE_GENERATION_GGUF_TEMPERATURE;
    g->top_p = ROSE_GENERATION_GGUF_TOP_P;
    g->top_k = ROSE_GENERATION_GGUF_TOP_K;
    for (size_t i = 0; i < N_ROWS; i++) {
        float f = 0;
        uint32_t u = 0;
        rose_err why = {{0}};
        if (rows[i].key == NULL || rose_gguf_get(&file, rows[i].key) == NULL) continue;
        st = rows[i].whole ? rose_gguf_get_u32(&file, rows[i].key, &u, &why)
                           : rose_gguf_get_f32(&file, rows[i].key, &f, &why);
        char text[32];
        snprintf(text, sizeof text, "%g", rows[i].whole ? (double)u : (double)f);
        if (st == ROSE_OK)
            store(g, &rows[i], rows[i].whole ? (double)u : (double)f, text, file.label);
        else
            rose_log(ROSE_LOG_WARN, "model", "%s: it is ignored", why.msg);
    }
    rose_gguf_close(&file);
    return ROSE_OK;
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
        st = read_file(out, path, "generation_config.json", err);
    else if (st == ROSE_OK)
        st = read_file(out, path, NULL, err);
    free(file);
    if (st != ROSE_OK) *out = (rose_generation){0};
    return st;
}

#define OVERRIDE "--override-generation-config: "

static const row *find_row(const char *name)
{
    for (size_t i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

static rose_status override_value(rose_generation *g, const char *name, const rose_json *v,
                                  rose_err *err)
{
    char text[64];
    const row *r = find_row(name);
    if (r == NULL)
        return rose_fail(err, ROSE_E_INVAL,
                         OVERRIDE "there is no '%.60s'; the names are temperature, top_p, top_k, "
                                  "min_p, repetition_penalty and max_new_tokens",
                         name);
    const double x = rose_json_is_number(v) ? rose_json_number_value(v) : (double)NAN;
    if (!(x >= r->lo && x <= r->hi) || (r->whole && x != floor(x)))
        return rose_fail(err, ROSE_E_INVAL, OVERRIDE "%s is %s, expected %s%s", name,
                         rose_config_describe(v, text), r->whole ? "an integer, " : "", r->range);
    store(g, r, x, rose_config_describe(v, text), OVERRIDE);
    return ROSE_OK;
}

static rose_status read_override(rose_generation *g, const char *text, rose_err *err)
{
    rose_json_error e;
    rose_json *root = NULL, *v;
    const char *key;
    rose_status st = rose_json_parse(&root, text, strlen(text), 0, &e);
    if (st == ROSE_OK && rose_json_is_object(root)) {
        rose_json_each (root, key, v)
            if (st == ROSE_OK) st = override_value(g, key, v, err);
    } else {
        st = rose_fail(err, st == ROSE_E_NOMEM ? st : ROSE_E_INVAL,
                       OVERRIDE "expected a JSON object, as {\"temperature\": 0.6}%s%s",
                       st == ROSE_OK ? "" : ": ", st == ROSE_OK ? "" : e.text);
    }
    rose_json_decref(root);
    return st;
}

rose_status rose_generation_choose(rose_generation *out, const char *model, const char *from,
                                   const char *override, rose_err *err)
{
    const bool none = from != NULL && (strcmp(from, "none") == 0 || strcmp(from, "vllm") == 0);
    const bool own = from == NULL || strcmp(from, "auto") == 0;
    *out = (rose_generation){0};
    rose_status st = none ? ROSE_OK : rose_generation_read(out, own ? model : from, err);
    if (st == ROSE_OK && override != NULL) st = read_override(out, override, err);
    if (st != ROSE_OK) *out = (rose_generation){0};
    return st;
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
