/* spec/config.c - the options of speculation as JSON, with vLLM's names. */
#include <string.h>

#include "base/json.h"
#include "spec/spec.h"

/* A member that is a number. Its place in the options is a uint32_t, or a float if `real`. */
typedef struct number {
    const char *name;
    size_t at;
    bool real;
    double min, max;
} number;

#define AT(field) offsetof(rose_spec_opts, field)
static const number numbers[] = {
    {"num_speculative_tokens", AT(n_tokens), false, 1, ROSE_SPEC_MAX},
    {"prompt_lookup_min", AT(ngram_min), false, 1, ROSE_SPEC_MAX_DEPTH},
    {"prompt_lookup_max", AT(ngram_max), false, 1, ROSE_SPEC_MAX_DEPTH},
    {"suffix_decoding_max_tree_depth", AT(depth), false, 1, ROSE_SPEC_MAX_DEPTH},
    {"suffix_decoding_max_cached_requests", AT(past_requests), false, 0, UINT32_MAX},
    {"suffix_decoding_max_spec_factor", AT(factor), true, 0.01, ROSE_SPEC_MAX_DEPTH},
    {"suffix_decoding_min_token_prob", AT(min_prob), true, 0, 1},
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

const char *rose_spec_method_name(rose_spec_method m)
{
    static const char *const names[] = {
        [ROSE_SPEC_NONE] = "none", [ROSE_SPEC_SUFFIX] = "suffix", [ROSE_SPEC_NGRAM] = "ngram"};
    return names[m];
}

static rose_status read_method(rose_spec_opts *o, const rose_json *v, rose_err *err)
{
    const char *text = rose_json_is_string(v) ? rose_json_text(v) : "";
    if (strcmp(text, "suffix") == 0)
        o->method = ROSE_SPEC_SUFFIX;
    else if (strcmp(text, "ngram") == 0)
        o->method = ROSE_SPEC_NGRAM;
    else
        return rose_fail(
            err, ROSE_E_INVAL, "--speculative-config: 'method' must be \"suffix\" or \"ngram\"%s",
            text[0] != '\0' ? "; draft models and other methods are not there yet" : "");
    return ROSE_OK;
}

static rose_status read_member(rose_spec_opts *o, const char *name, const rose_json *v,
                               rose_err *err)
{
    if (strcmp(name, "method") == 0) return read_method(o, v, err);
    if (strcmp(name, "adaptive") == 0) {
        if (!rose_json_is_boolean(v))
            return rose_fail(err, ROSE_E_INVAL,
                             "--speculative-config: 'adaptive' must be true or false");
        o->always = !rose_json_is_true(v);
        return ROSE_OK;
    }
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const number *n = &numbers[i];
        char *at = (char *)o + n->at;
        if (strcmp(name, n->name) != 0) continue;
        const double x = rose_json_is_number(v) ? rose_json_number_value(v) : -1;
        if ((!n->real && !rose_json_is_integer(v)) || !(x >= n->min && x <= n->max))
            return rose_fail(err, ROSE_E_INVAL,
                             "--speculative-config: '%s' must be a %s from %g to %.0f", name,
                             n->real ? "number" : "whole number", n->min, n->max);
        if (n->real)
            *(float *)(void *)at = (float)x;
        else
            *(uint32_t *)(void *)at = (uint32_t)x;
        return ROSE_OK;
    }
    return rose_fail(err, ROSE_E_INVAL,
                     "--speculative-config: there is no '%.60s'; the members are method, "
                     "num_speculative_tokens, prompt_lookup_min, prompt_lookup_max, "
                     "suffix_decoding_max_tree_depth, suffix_decoding_max_cached_requests, "
                     "suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob and adaptive",
                     name);
}

rose_status rose_spec_opts_parse(rose_spec_opts *o, const char *text, rose_err *err)
{
    rose_json_error e;
    rose_json *json = NULL, *v;
    const char *name;
    rose_spec_opts out = *o;
    rose_status st = rose_json_parse(&json, text, strlen(text), 0, &e);
    if (st != ROSE_OK)
        return rose_fail(err, st, "--speculative-config: column %d: %s", e.column, e.text);
    if (!rose_json_is_object(json))
        st = rose_fail(err, ROSE_E_INVAL,
                       "--speculative-config must be an object, as {\"method\": \"suffix\", "
                       "\"num_speculative_tokens\": 8}");
    out.ngram_min = out.ngram_max = 0;
    if (st == ROSE_OK) {
        rose_json_each (json, name, v) {
            if ((st = read_member(&out, name, v, err)) != ROSE_OK) break;
        }
    }
    rose_json_decref(json);
    /* as in vLLM: one of the two stands for both */
    if (out.ngram_max == 0) out.ngram_max = out.ngram_min != 0 ? out.ngram_min : o->ngram_max;
    if (out.ngram_min == 0) out.ngram_min = out.ngram_max;
    if (st == ROSE_OK && out.ngram_min > out.ngram_max)
        st = rose_fail(err, ROSE_E_INVAL,
                       "--speculative-config: prompt_lookup_min is %u, above prompt_lookup_max %u",
                       out.ngram_min, out.ngram_max);
    if (st == ROSE_OK) *o = out;
    return st;
}
