/* model/config.c - see config.h. Settings files come from strangers: a field of the wrong type or
 * out of range is refused with a message, never guessed at. A token id is the exception: without it
 * the model computes the same, so a wrong id gives a warning. */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"

#define MAX_CONFIG_BYTES (64u << 20)

/* any: the root may be something else than an object. */
static rose_status parse(rose_config *out, const char *text, size_t n, const char *label, bool any,
                         rose_err *err)
{
    rose_json_error je;
    *out = (rose_config){0};
    rose_path_label(out->label, label);
    rose_status st = rose_json_parse(&out->root, text, n, ROSE_JSON_PYTHON, &je);
    if (st == ROSE_E_NOMEM)
        st = rose_fail(err, st, "%s: out of memory", out->label);
    else if (st != ROSE_OK)
        st = rose_fail(err, st, "%s: not valid JSON: %.120s (line %d, column %d)", out->label,
                       je.text, je.line, je.column);
    else if (!any && !rose_json_is_object(out->root))
        st = rose_fail(err, ROSE_E_FORMAT, "%s: the top level is not an object", out->label);
    if (st != ROSE_OK) rose_config_close(out);
    return st;
}

rose_status rose_config_parse(rose_config *out, const char *text, size_t n, const char *label,
                              rose_err *err)
{
    return parse(out, text, n, label, false, err);
}

static rose_status open_file(rose_config *out, const char *path, bool any, rose_err *err)
{
    rose_buf text = {0};
    *out = (rose_config){0};
    rose_status st = rose_file_read(&text, path, MAX_CONFIG_BYTES, err);
    if (st == ROSE_OK) st = parse(out, text.data, text.len, path, any, err);
    rose_buf_free(&text);
    return st;
}

rose_status rose_config_open(rose_config *out, const char *path, rose_err *err)
{
    return open_file(out, path, false, err);
}

rose_status rose_config_open_in(rose_config *out, const char *folder, const char *name, bool any,
                                rose_err *err)
{
    char *path = NULL;
    *out = (rose_config){0};
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", folder);
    const rose_status st = open_file(out, path, any, err);
    free(path);
    return st;
}

void rose_config_close(rose_config *c)
{
    rose_json_decref(c->root);
    *c = (rose_config){0};
}

rose_json *rose_config_get(const rose_config *c, const char *name, const char *alias)
{
    rose_json *v = rose_json_get(c->root, name);
    if ((v == NULL || rose_json_is_null(v)) && alias != NULL) v = rose_json_get(c->root, alias);
    return rose_json_is_null(v) ? NULL : v;
}

/* The value as short text for a message: "-3", "\"abc\"", "a list". */
const char *rose_config_describe(const rose_json *v, char out[64])
{
    char digits[ROSE_JSON_NUMBER_CAP];
    switch (rose_json_kind_of(v)) {
    case ROSE_JSON_OBJECT:
        return "an object";
    case ROSE_JSON_ARRAY:
        return "a list";
    case ROSE_JSON_STRING:
        snprintf(out, 64, "the string \"%.40s\"", rose_json_text(v));
        return out;
    case ROSE_JSON_INTEGER:
    case ROSE_JSON_REAL:
        snprintf(out, 64, "%.60s", rose_json_number_text(v, digits));
        return out;
    case ROSE_JSON_TRUE:
        return "true";
    case ROSE_JSON_FALSE:
        return "false";
    case ROSE_JSON_NULL:
        return "null";
    }
    return "nothing";
}

rose_status rose_config_read_u32(const rose_config *c, const rose_config_u32 *f, uint32_t *out,
                                 rose_err *err)
{
    char text[64];
    rose_json *v = rose_config_get(c, f->name, f->alias);
    if (v == NULL && !f->required) return ROSE_OK;
    if (v == NULL) return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is missing", c->label, f->name);
    double d = rose_json_is_number(v) ? rose_json_number_value(v)
                                      : -1.0; /* a huge integer is also a number */
    if (f->clamp && d > f->max) d = f->max;
    if (f->clamp && rose_json_is_number(v) && d < f->min) {
        rose_log(ROSE_LOG_WARN, "model", "%s: '%s' is %s: it is ignored", c->label, f->name,
                 rose_config_describe(v, text));
        return ROSE_OK;
    }
    if (!(d >= f->min && d <= f->max && d == floor(d))) /* written so that a NaN fails */
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is %s; expected an integer from %u to %u",
                         c->label, f->name, rose_config_describe(v, text), f->min, f->max);
    *out = (uint32_t)d;
    return ROSE_OK;
}

rose_status rose_config_read_bool(const rose_config *c, const char *name, bool *out, rose_err *err)
{
    char text[64];
    rose_json *v = rose_config_get(c, name, NULL);
    if (v == NULL) return ROSE_OK;
    if (!rose_json_is_boolean(v))
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is %s; expected true or false", c->label,
                         name, rose_config_describe(v, text));
    *out = rose_json_is_true(v);
    return ROSE_OK;
}

rose_status rose_config_read_positive(const rose_config *c, const char *name, double max,
                                      float *out, rose_err *err)
{
    char text[64];
    rose_json *v = rose_config_get(c, name, NULL);
    if (v == NULL) return ROSE_OK;
    double d = rose_json_is_number(v) ? rose_json_number_value(v) : 0.0;
    if (!(d >= 1e-30 && d <= max)) /* below, fp32 nears its subnormals */
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is %s; expected a number > 0 and <= %g",
                         c->label, name, rose_config_describe(v, text), max);
    *out = (float)d;
    return ROSE_OK;
}

rose_status rose_config_sub(rose_config *out, const rose_config *c, const char *name, rose_err *err)
{
    char text[64];
    rose_json *v = rose_config_get(c, name, NULL);
    *out = (rose_config){0};
    snprintf(out->label, sizeof out->label, "%.210s: %.40s", c->label, name);
    if (rose_json_is_false(v) || (rose_json_is_array(v) && rose_json_count(v) == 0)) return ROSE_OK;
    if (v != NULL && !rose_json_is_object(v))
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is %s; expected an object", c->label, name,
                         rose_config_describe(v, text));
    out->root = v;
    return ROSE_OK;
}

rose_status rose_config_default_id(const rose_config *c, const char *name, int64_t id,
                                   rose_err *err)
{
    if (id < 0 || rose_json_get(c->root, name) != NULL) return ROSE_OK;
    if (rose_json_set_new(c->root, name, rose_json_integer(id)) == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", c->label);
}

rose_status rose_config_read_act(const rose_config *c, const char *name, rose_act *out,
                                 rose_err *err)
{
    static const struct {
        const char *name;
        rose_act act;
    } acts[] = {
        {"gelu_new", ROSE_ACT_GELU_TANH},
        {"gelu_pytorch_tanh", ROSE_ACT_GELU_TANH},
        {"gelu_python_tanh", ROSE_ACT_GELU_TANH},
        {"gelu_fast", ROSE_ACT_GELU_TANH},
        {"gelu", ROSE_ACT_GELU_ERF},
        {"gelu_python", ROSE_ACT_GELU_ERF},
        {"relu", ROSE_ACT_RELU},
        {"silu", ROSE_ACT_SILU},
        {"swish", ROSE_ACT_SILU},
    };
    char text[64];
    rose_json *v = rose_config_get(c, name, NULL);
    if (v == NULL) return ROSE_OK;
    if (!rose_json_is_string(v))
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is %s; expected a string", c->label, name,
                         rose_config_describe(v, text));
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
        if (strcmp(acts[i].name, rose_json_text(v)) != 0) continue;
        *out = acts[i].act;
        return ROSE_OK;
    }
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s: activation '%.60s' is not supported (supported: gelu_new, "
                     "gelu_pytorch_tanh, gelu_fast, gelu, relu, silu)",
                     c->label, rose_json_text(v));
}

/* ---- ids of tokens ---- */

/* The id that v is, or -1 if it is no id of the vocabulary. */
static int64_t as_id(const rose_json *v, const rose_arch *a)
{
    const double d = rose_json_is_number(v) ? rose_json_number_value(v) : -1.0;
    return d >= 0 && d < a->vocab_size && d == floor(d) ? (int64_t)d : -1;
}

static void warn_no_id(const rose_config *c, const char *name, const rose_json *v,
                       const rose_arch *a, const char *effect)
{
    char text[64];
    const double d = rose_json_is_number(v) ? rose_json_number_value(v) : -1.0;
    if (d >= a->vocab_size)
        rose_log(ROSE_LOG_WARN, "model", "%s: %s %.0f is outside the vocabulary of %u tokens: %s",
                 c->label, name, d, a->vocab_size, effect);
    else
        rose_log(ROSE_LOG_WARN, "model", "%s: %s is %s, which is no token id: %s", c->label, name,
                 rose_config_describe(v, text), effect);
}

void rose_config_read_bos(const rose_config *c, rose_arch *a)
{
    static const char name[] = "bos_token_id";
    const rose_json *v = rose_config_get(c, name, NULL);
    if (rose_json_count(v) == 1) v = rose_json_at(v, 0);
    a->bos_id = as_id(v, a);
    if (v != NULL && a->bos_id < 0) warn_no_id(c, name, v, a, "it is ignored");
}

void rose_config_add_eos(const rose_config *c, rose_arch *a)
{
    static const char name[] = "eos_token_id";
    const rose_json *v = rose_config_get(c, name, NULL), *wrong = NULL;
    const bool list = rose_json_is_array(v);
    const size_t n = list ? rose_json_count(v) : v != NULL;
    size_t dropped = 0;
    for (size_t i = 0; i < n; i++) {
        const rose_json *one = list ? rose_json_at(v, i) : v;
        const int64_t id = as_id(one, a);
        if (id < 0 && wrong == NULL) wrong = one;
        if (id >= 0 && !rose_arch_add_eos(a, (uint64_t)id)) dropped++;
    }
    if (wrong != NULL) warn_no_id(c, name, wrong, a, "it never ends a text");
    if (dropped > 0)
        rose_log(ROSE_LOG_WARN, "model",
                 "%s: %zu ids of %s do not end a text: a model has at most %d end-of-text ids",
                 c->label, dropped, name, ROSE_MAX_EOS);
}
