/* model/rope_config.c - the fields of rotary positions in config.json. transformers 5 writes them
 * as the object rope_parameters; older files have rope_theta and the object rope_scaling. Where
 * transformers only warns of a value and computes with it, so do we. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/family.h"
#include "model/rope.h"

/* With these no frequency overflows fp32. */
#define MAX_FACTOR 1e9
#define MIN_FACTOR 1e-3

typedef struct reader {
    const rose_config *c;      /* config.json */
    const rose_config *fields; /* the object; its root may be NULL */
    const rose_decoder_defaults *d;
    rose_arch *a;
    rose_err *err;
} reader;

static bool is_known(const char *key)
{
    static const char *const known[] = {
        "rope_type",       "type",
        "rope_theta",      "partial_rotary_factor",
        "factor",          "original_max_position_embeddings",
        "low_freq_factor", "high_freq_factor",
        "beta_fast",       "beta_slow",
        "mscale",          "mscale_all_dim",
        "truncate",        "attention_factor",
        "short_factor",    "long_factor",
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i], key) == 0) return true;
    return false;
}

/* transformers ignores a field that it does not know. Other engines multiply the attention by
 * attn_factor, so its warning says how to get the same here. */
static rose_status check_unknown(const reader *r)
{
    const char *key;
    rose_json *v;
    rose_json_each (r->fields->root, key, v) {
        if (rose_json_is_null(v) || is_known(key)) continue;
        if (rose_json_is_object(v)) /* angles of some layers alone */
            return rose_fail(r->err, ROSE_E_UNSUPPORTED, "%s: '%.60s' is not supported",
                             r->fields->label, key);
        rose_log(ROSE_LOG_WARN, "model", "%s: '%.60s' is ignored, as in transformers%s",
                 r->fields->label, key,
                 strcmp(key, "attn_factor") == 0
                     ? " ('attention_factor' sets the factor of the attention)"
                     : "");
    }
    return ROSE_OK;
}

static rose_status read_kind(const reader *r, rose_rope *rope)
{
    rose_json *v = rose_config_get(r->fields, "rope_type", "type");
    if (v == NULL) return ROSE_OK;
    const char *name = rose_json_text(v);
    if (name == NULL)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: 'rope_type' is not a string",
                         r->fields->label);
    if (r->d->only_longrope && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0))
        name = "longrope";
    for (int k = ROSE_ROPE_DEFAULT; k <= ROSE_ROPE_LONGROPE; k++) {
        if (strcmp(rose_rope_kind_name((rose_rope_kind)k), name) != 0) continue;
        rope->kind = (rose_rope_kind)k;
        if (r->d->only_longrope && k != ROSE_ROPE_DEFAULT && k != ROSE_ROPE_LONGROPE) break;
        return ROSE_OK;
    }
    return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                     "%s: rope_type '%.60s' is not supported by %s (supported: %s)",
                     r->fields->label, name, r->a->model_type,
                     r->d->only_longrope ? "default, longrope"
                                         : "default, linear, dynamic, llama3, yarn, longrope");
}

/* The product is int(head_dim * factor) in fp64, as in Python. */
static rose_status read_dim(const reader *r, rose_rope *rope)
{
    const uint32_t head_dim = r->a->kinds[0].mixer.head_dim;
    static const char name[] = "partial_rotary_factor";
    float checked = 1.0f;
    rose_status st = rose_config_read_positive(r->c, name, 1.0, &checked, r->err);
    if (st == ROSE_OK) st = rose_config_read_positive(r->fields, name, 1.0, &checked, r->err);
    if (st != ROSE_OK) return st;
    const rose_json *v = rose_config_get(r->fields, name, NULL);
    if (v == NULL) v = rose_config_get(r->c, name, NULL);
    double partial = v != NULL ? rose_json_number_value(v) : 1.0;
    if (partial < 1.0 && !r->d->partial_rotary && rope->kind == ROSE_ROPE_DEFAULT) {
        rose_log(ROSE_LOG_WARN, "model", "%s: '%s' is ignored: %s rotates whole heads", r->c->label,
                 name, r->a->model_type);
        partial = 1.0;
    }
    if (partial < 1.0 && !r->d->partial_rotary)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: partial_rotary_factor %g: %s rotates whole heads", r->c->label,
                         partial, r->a->model_type);
    rope->dim = (uint32_t)(head_dim * partial);
    if (rope->dim == 0 || rope->dim % 2 != 0)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: head_dim %u with partial_rotary_factor %g rotates %u values; an even "
                         "number is needed",
                         r->c->label, head_dim, partial, rope->dim);
    return ROSE_OK;
}

/* The context before the scaling: config.json's field wins, as in transformers. */
static rose_status read_original(const reader *r, rose_rope *rope)
{
    const rose_config_u32 f = {
        "original_max_position_embeddings", NULL, 1, ROSE_MAX_VOCAB, false, true};
    rope->original_max_positions = r->a->max_positions;
    if (rope->kind == ROSE_ROPE_DYNAMIC || rope->kind == ROSE_ROPE_LINEAR) return ROSE_OK;
    rose_status st = rose_config_read_u32(r->fields, &f, &rope->original_max_positions, r->err);
    if (r->d->original_context != 0) rope->original_max_positions = r->d->original_context;
    if (st == ROSE_OK) st = rose_config_read_u32(r->c, &f, &rope->original_max_positions, r->err);
    return st;
}

/* An optional number. As in transformers, 0 stands for a number that the config does not give. */
static rose_status read_number(const reader *r, const char *name, double max, float *out)
{
    const rose_json *v = rose_config_get(r->fields, name, NULL);
    if (rose_json_is_number(v) && rose_json_number_value(v) == 0) return ROSE_OK;
    return rose_config_read_positive(r->fields, name, max, out, r->err);
}

/* A field that the kind cannot do without. */
static rose_status require(const reader *r, const char *name, const rose_rope *rope)
{
    if (rose_config_get(r->fields, name, NULL) != NULL) return ROSE_OK;
    return rose_fail(r->err, ROSE_E_FORMAT, "%s: '%s' is missing; rope_type %s needs it",
                     r->fields->label, name, rose_rope_kind_name(rope->kind));
}

static rose_status read_numbers(const reader *r, rose_rope *rope)
{
    const struct {
        const char *name;
        double max;
        float *out;
    } numbers[] = {
        {"factor", MAX_FACTOR, &rope->factor},
        {"low_freq_factor", 1e6, &rope->low_freq_factor},
        {"high_freq_factor", 1e6, &rope->high_freq_factor},
        {"beta_fast", 1e6, &rope->beta_fast},
        {"beta_slow", 1e6, &rope->beta_slow},
        {"attention_factor", 1e6, &rope->attention_factor},
        {"mscale", 1e6, &rope->mscale},
        {"mscale_all_dim", 1e6, &rope->mscale_all_dim},
    };
    rose_status st = ROSE_OK;
    rope->beta_fast = 32.0f;
    rope->beta_slow = 1.0f;
    rope->truncate = true;
    for (size_t i = 0; st == ROSE_OK && i < sizeof numbers / sizeof numbers[0]; i++)
        st = read_number(r, numbers[i].name, numbers[i].max, numbers[i].out);
    if (st == ROSE_OK) st = rose_config_read_bool(r->fields, "truncate", &rope->truncate, r->err);
    return st;
}

/* One list of divisors, as long as the table. */
static rose_status read_list(const reader *r, const char *name, float *out, uint32_t n)
{
    rose_json *list = rose_config_get(r->fields, name, NULL);
    if (!rose_json_is_array(list) || rose_json_count(list) != n)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: '%s' is not a list of %u numbers",
                         r->fields->label, name, n);
    for (uint32_t i = 0; i < n; i++) {
        rose_json *v = rose_json_at(list, i);
        const double d = rose_json_is_number(v) ? rose_json_number_value(v) : 0;
        if (!(d >= 1e-6 && d <= 1e6))
            return rose_fail(r->err, ROSE_E_FORMAT, "%s: %s[%u] is not a number from 1e-6 to 1e6",
                             r->fields->label, name, i);
        out[i] = (float)d;
    }
    return ROSE_OK;
}

static rose_status read_lists(const reader *r, rose_rope *rope)
{
    const uint32_t n = rope->dim / 2;
    if (r->a->rope_factors != NULL)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: rope_type longrope for two layer types is not supported",
                         r->fields->label);
    float *lists = malloc(2 * (size_t)n * sizeof *lists);
    if (lists == NULL)
        return rose_fail(r->err, ROSE_E_NOMEM, "%s: out of memory", r->fields->label);
    r->a->rope_factors = lists;
    rose_status st = read_list(r, "short_factor", lists, n);
    if (st == ROSE_OK) st = read_list(r, "long_factor", lists + n, n);
    rope->short_factor = lists;
    rope->long_factor = lists + n;
    return st;
}

/* What the kind needs, and the longest context that the scaling gives. */
static rose_status finish(const reader *r, rose_rope *rope)
{
    rose_status st = ROSE_OK;
    double longest = r->a->max_positions;
    switch (rope->kind) {
    case ROSE_ROPE_DEFAULT:
        return ROSE_OK;
    case ROSE_ROPE_LINEAR:
    case ROSE_ROPE_DYNAMIC:
        st = require(r, "factor", rope);
        longest *= (double)rope->factor;
        break;
    case ROSE_ROPE_LLAMA3:
        st = require(r, "factor", rope);
        if (st == ROSE_OK) st = require(r, "low_freq_factor", rope);
        if (st == ROSE_OK) st = require(r, "high_freq_factor", rope);
        if (st == ROSE_OK && rope->high_freq_factor <= rope->low_freq_factor)
            rose_log(ROSE_LOG_WARN, "model",
                     "%s: high_freq_factor %g is not above low_freq_factor %g: no frequency is "
                     "between them",
                     r->fields->label, (double)rope->high_freq_factor,
                     (double)rope->low_freq_factor);
        break;
    case ROSE_ROPE_YARN:
        /* A factor of null is the ratio of the contexts; without the field the file is wrong. */
        if (rose_json_get(r->fields->root, "factor") == NULL)
            st = require(r, "factor", rope);
        else if (rope->factor <= 0)
            rope->factor = (float)r->a->max_positions / (float)rope->original_max_positions;
        if (rope->theta <= 1.0f)
            return rose_fail(r->err, ROSE_E_FORMAT, "%s: rope_theta %g is not above 1",
                             r->fields->label, (double)rope->theta);
        if (longest < (double)rope->factor * rope->original_max_positions)
            longest = (double)rope->factor * rope->original_max_positions;
        break;
    case ROSE_ROPE_LONGROPE:
        if (rope->factor <= 0)
            rope->factor = (float)r->a->max_positions / (float)rope->original_max_positions;
        return read_lists(r, rope);
    }
    if (st != ROSE_OK) return st;
    if (rope->factor < (float)MIN_FACTOR)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: 'factor' is %g; expected at least 1",
                         r->fields->label, (double)rope->factor);
    if (rope->factor < 1.0f)
        rose_log(ROSE_LOG_WARN, "model", "%s: 'factor' is %g; expected at least 1",
                 r->fields->label, (double)rope->factor);
    if (!r->d->context_holds_scaling && longest > r->a->max_positions)
        r->a->max_positions = longest < ROSE_MAX_VOCAB ? (uint32_t)longest : ROSE_MAX_VOCAB;
    return ROSE_OK;
}

rose_status rose_decoder_rope_fields(const rose_config *c, const rose_config *fields,
                                     const rose_decoder_defaults *d, float theta, rose_rope *rope,
                                     rose_arch *a, rose_err *err)
{
    const reader r = {.c = c, .fields = fields, .d = d, .a = a, .err = err};
    *rope = (rose_rope){.theta = theta};
    rose_status st = check_unknown(&r);
    if (st == ROSE_OK) st = read_kind(&r, rope);
    if (st == ROSE_OK)
        st = rose_config_read_positive(fields, "rope_theta", ROSE_MAX_THETA, &rope->theta, err);
    if (st == ROSE_OK) st = read_dim(&r, rope);
    if (st == ROSE_OK) st = read_numbers(&r, rope);
    if (st == ROSE_OK) st = read_original(&r, rope);
    if (st == ROSE_OK) st = finish(&r, rope);
    return st;
}

rose_status rose_decoder_rope(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                              rose_err *err)
{
    float theta = d->theta;
    rose_config fields;
    rose_status st = rose_config_read_positive(c, "rope_theta", ROSE_MAX_THETA, &theta, err);
    if (st == ROSE_OK) st = rose_config_sub(&fields, c, "rope_scaling", err);
    if (st == ROSE_OK && rose_json_size(fields.root) == 0)
        st = rose_config_sub(&fields, c, "rope_parameters", err);
    if (st != ROSE_OK) return st;
    return rose_decoder_rope_fields(c, &fields, d, theta, &a->kinds[0].mixer.rope, a, err);
}
