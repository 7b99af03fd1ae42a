/* model/config.c - see config.h. Settings files come from strangers: a field of the
 * wrong type or out of range is refused with a message, never guessed at. */
#include "model/config.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"

#define MAX_CONFIG_BYTES (16u << 20)

rose_status rose_config_parse(rose_config *out, const char *text, size_t n, const char *label,
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
    else if (!rose_json_is_object(out->root))
        st = rose_fail(err, ROSE_E_FORMAT, "%s: the top level is not an object", out->label);
    if (st != ROSE_OK) rose_config_close(out);
    return st;
}

rose_status rose_config_open(rose_config *out, const char *path, rose_err *err)
{
    rose_buf text = {0};
    *out = (rose_config){0};
    rose_status st = rose_file_read(&text, path, MAX_CONFIG_BYTES, err);
    if (st == ROSE_OK) st = rose_config_parse(out, text.data, text.len, path, err);
    rose_buf_free(&text);
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
    if (!rose_json_is_integer(v) || rose_json_int(v) < (int64_t)f->min ||
        rose_json_int(v) > (int64_t)f->max)
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is %s; expected an integer from %u to %u",
                         c->label, f->name, rose_config_describe(v, text), f->min, f->max);
    *out = (uint32_t)rose_json_int(v);
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

/* Reads one token id: any number up to 2^31-1, even outside the vocabulary. */
static rose_status read_id(const rose_config *c, const char *name, const rose_json *v,
                           uint32_t *out, rose_err *err)
{
    char text[64];
    if (!rose_json_is_integer(v) || rose_json_int(v) < 0 || rose_json_int(v) > INT32_MAX)
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is %s; expected a token id", c->label, name,
                         rose_config_describe(v, text));
    *out = (uint32_t)rose_json_int(v);
    return ROSE_OK;
}

static void warn_outside(const rose_config *c, const char *name, uint32_t id, const rose_arch *a,
                         const char *effect)
{
    rose_log(ROSE_LOG_WARN, "model", "%s: %s %u is outside the vocabulary of %u tokens: %s",
             c->label, name, id, a->vocab_size, effect);
}

rose_status rose_config_read_bos(const rose_config *c, rose_arch *a, rose_err *err)
{
    uint32_t id = 0;
    rose_json *v = rose_config_get(c, "bos_token_id", NULL);
    a->bos_id = -1;
    if (v == NULL) return ROSE_OK;
    rose_status st = read_id(c, "bos_token_id", v, &id, err);
    if (st != ROSE_OK) return st;
    if (id < a->vocab_size)
        a->bos_id = id;
    else
        warn_outside(c, "bos_token_id", id, a, "it is ignored");
    return ROSE_OK;
}

/* *outside becomes the first id that is outside the vocabulary; otherwise it keeps its value. */
static rose_status add_eos_id(const rose_config *c, const rose_json *v, rose_arch *a,
                              int64_t *outside, rose_err *err)
{
    uint32_t id = 0;
    rose_status st = read_id(c, "eos_token_id", v, &id, err);
    if (st != ROSE_OK) return st;
    if (id >= a->vocab_size) {
        if (*outside < 0) *outside = id;
        return ROSE_OK;
    }
    if (a->n_eos == ROSE_MAX_EOS && !rose_arch_is_eos(a, id))
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: more than %d end-of-text ids (with config.json)", c->label,
                         ROSE_MAX_EOS);
    rose_arch_add_eos(a, id);
    return ROSE_OK;
}

rose_status rose_config_add_eos(const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_json *v = rose_config_get(c, "eos_token_id", NULL);
    int64_t outside = -1;
    if (v == NULL) return ROSE_OK;
    rose_status st = ROSE_OK;
    if (!rose_json_is_array(v)) st = add_eos_id(c, v, a, &outside, err);
    for (size_t i = 0; st == ROSE_OK && i < rose_json_count(v); i++)
        st = add_eos_id(c, rose_json_at(v, i), a, &outside, err);
    if (outside >= 0) warn_outside(c, "eos_token_id", (uint32_t)outside, a, "it never ends a text");
    return st;
}
