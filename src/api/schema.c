/* api/schema.c - one table of everything the API takes. It lists every field by name, where it is
 * allowed, and its type and range, or that it is known but not supported.
 *
 * A known field that would change the answer and is not supported is refused. Otherwise the
 * client would not see the difference until its results are wrong. The value that means "off" is
 * accepted. A hint that changes no answer, and a field that is not in the table, is ignored, and
 * the reply says so (ignored.c). */
#include <math.h>
#include <string.h>

#include "api/api_internal.h"

typedef enum field_type {
    T_BOOL,
    T_INT,     /* a JSON integer, or a number without a fraction, in [lo, hi] */
    T_NUM,     /* a JSON number in [lo, hi], finite */
    T_JSON,    /* kept as it is, checked elsewhere */
    T_NEEDED,  /* likewise; the request must have it */
    T_LABEL,   /* a string that the client chooses, such as `user`; it is accepted and not used */
    T_MODEL,   /* must be the served model */
    T_REFUSED, /* not served: only values in `off` pass */
    T_HINT,    /* a hint, which changes no answer of this server: values other than those in
                * `off` are ignored */
    T_ANY      /* a field that is accepted with any value, because it asks for nothing */
} field_type;

/* Values of a refused field or a hint that mean "off"; null always does. */
enum {
    OFF_FALSE = 1,
    OFF_TRUE = 2,
    OFF_ZERO = 4,
    OFF_ONE = 8,
    OFF_EMPTY = 16, /* "", [] or {} */
    OFF_TEXT = 32,  /* {"type": "text"}, ["text"] or "text" */
    OFF_NONE = 64,  /* "none" or "auto" */
    OFF_MINUS_ONE = 128
};

typedef struct field {
    const char *name;
    uint16_t where; /* rose_api_kind bits */
    uint8_t type;
    uint8_t off;   /* T_REFUSED, T_HINT */
    uint16_t at;   /* offset in rose_api_params */
    double lo, hi; /* hi of `n` is max_n */
    const char *range;
} field;

#define AT(member) ((uint16_t)offsetof(rose_api_params, member))
enum {
    CC = ROSE_API_COMPLETION | ROSE_API_CHAT,
    TOP = ROSE_MAX_TOP_LOGPROBS,
    CT = ROSE_API_CHAT | ROSE_API_TOKENIZE,
    TD = ROSE_API_TOKENIZE | ROSE_API_DETOKENIZE,
    ALL = CC | TD,
    POOLED = ROSE_API_POOLED,
    RANKED = ROSE_API_RERANK | ROSE_API_SCORE
};
#define POOLED_AT(member) AT(pooled.member)

static const field fields[] = {
    /* served */
    {"model", ALL | POOLED, T_MODEL, 0, 0, 0, 0, NULL},
    {"input", ROSE_API_EMBED, T_NEEDED, 0, POOLED_AT(input), 0, 0, NULL},
    {"encoding_format", ROSE_API_EMBED, T_JSON, 0, POOLED_AT(encoding_format), 0, 0, NULL},
    {"dimensions", ROSE_API_EMBED, T_INT, 0, POOLED_AT(dimensions), 1, INT32_MAX,
     "1 to 2147483647"},
    {"normalize", ROSE_API_EMBED, T_JSON, 0, POOLED_AT(normalize), 0, 0, NULL},
    {"query", ROSE_API_RERANK, T_NEEDED, 0, POOLED_AT(query), 0, 0, NULL},
    {"documents", ROSE_API_RERANK, T_NEEDED, 0, POOLED_AT(documents), 0, 0, NULL},
    {"top_n", ROSE_API_RERANK, T_INT, 0, POOLED_AT(top_n), 0, INT32_MAX,
     "0 (all), or 1 to 2147483647"},
    {"return_documents", ROSE_API_RERANK, T_BOOL, 0, POOLED_AT(return_documents), 0, 0, NULL},
    {"text_1", ROSE_API_SCORE, T_NEEDED, 0, POOLED_AT(text_1), 0, 0, NULL},
    {"text_2", ROSE_API_SCORE, T_NEEDED, 0, POOLED_AT(text_2), 0, 0, NULL},
    {"instruction", RANKED, T_JSON, 0, POOLED_AT(instruction), 0, 0, NULL},
    {"truncate_prompt_tokens", POOLED, T_INT, 0, POOLED_AT(truncate), -1, INT32_MAX,
     "-1 (the context), or 1 to 2147483647"},
    {"messages", ROSE_API_EMBED, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
    {"max_tokens_per_doc", ROSE_API_RERANK, T_REFUSED, OFF_ZERO, 0, 0, 0, NULL},
    {"max_chunks_per_doc", ROSE_API_RERANK, T_REFUSED, OFF_ONE, 0, 0, 0, NULL},
    {"prompt", ROSE_API_COMPLETION, T_NEEDED, 0, AT(prompt), 0, 0, NULL},
    {"prompt", ROSE_API_TOKENIZE, T_JSON, 0, AT(prompt), 0, 0, NULL},
    {"messages", ROSE_API_CHAT, T_NEEDED, 0, AT(messages), 0, 0, NULL},
    {"messages", ROSE_API_TOKENIZE, T_JSON, 0, AT(messages), 0, 0, NULL},
    {"add_generation_prompt", CT, T_BOOL, 0, AT(add_generation_prompt), 0, 0, NULL},
    {"continue_final_message", CT, T_BOOL, 0, AT(continue_final), 0, 0, NULL},
    {"chat_template", CT, T_JSON, 0, AT(chat_template), 0, 0, NULL},
    {"chat_template_kwargs", CT, T_JSON, 0, AT(chat_kwargs), 0, 0, NULL},
    {"tools", CT, T_JSON, 0, AT(tools), 0, 0, NULL},
    {"tool_choice", ROSE_API_CHAT, T_JSON, 0, AT(tool_choice), 0, 0, NULL},
    {"parallel_tool_calls", ROSE_API_CHAT, T_BOOL, 0, AT(parallel_calls), 0, 0, NULL},
    {"documents", ROSE_API_CHAT, T_JSON, 0, AT(documents), 0, 0, NULL},
    {"tokens", ROSE_API_DETOKENIZE, T_NEEDED, 0, AT(tokens), 0, 0, NULL},
    {"max_tokens", ROSE_API_COMPLETION, T_INT, 0, AT(max_tokens), 0, INT32_MAX, "0 to 2147483647"},
    {"max_tokens", ROSE_API_CHAT, T_INT, 0, AT(max_tokens), 1, INT32_MAX, "1 to 2147483647"},
    {"max_completion_tokens", CC, T_INT, 0, AT(max_completion_tokens), 1, INT32_MAX,
     "1 to 2147483647"},
    {"temperature", CC, T_NUM, 0, AT(temperature), 0, 100, "0 to 100"},
    {"top_p", CC, T_NUM, 0, AT(top_p), 1e-30, 1, "above 0, at most 1"},
    {"top_k", CC, T_INT, 0, AT(top_k), -1, INT32_MAX, "-1 or 0 (off), or 1 to 2147483647"},
    {"min_p", CC, T_NUM, 0, AT(min_p), 0, 1, "0 to 1"},
    {"seed", CC, T_INT, 0, AT(seed), -0x1p63, 0x1p63, "a 64-bit integer"},
    {"n", CC, T_INT, 0, AT(n), 1, 0, NULL},
    {"best_of", ROSE_API_COMPLETION, T_INT, 0, AT(best_of), 1, INT32_MAX, "equal to 'n'"},
    {"stop", CC, T_JSON, 0, AT(stop), 0, 0, NULL},
    {"ignore_eos", CC, T_BOOL, 0, AT(ignore_eos), 0, 0, NULL},
    {"speculation", CC, T_BOOL, 0, AT(speculation), 0, 0, NULL},
    {"stream", CC, T_BOOL, 0, AT(stream), 0, 0, NULL},
    {"stream_options", CC, T_JSON, 0, AT(stream_options), 0, 0, NULL},
    {"add_special_tokens", ROSE_API_COMPLETION | ROSE_API_TOKENIZE | POOLED, T_BOOL, 0,
     AT(add_special_tokens), 0, 0, NULL},
    {"logprobs", ROSE_API_COMPLETION, T_JSON, 0, AT(logprobs), 0, 0, NULL},
    {"logprobs", ROSE_API_CHAT, T_BOOL, 0, AT(chat_logprobs), 0, 0, NULL},
    {"top_logprobs", ROSE_API_CHAT, T_INT, 0, AT(top_logprobs), 0, TOP, "0 to 20"},
    {"prompt_logprobs", CC, T_INT, 0, AT(prompt_logprobs), 0, TOP, "0 to 20"},
    {"echo", ROSE_API_COMPLETION, T_BOOL, 0, AT(echo), 0, 0, NULL},
    {"echo", ROSE_API_CHAT, T_REFUSED, OFF_FALSE, 0, 0, 0, NULL},
    {"logit_bias", CC, T_JSON, 0, AT(logit_bias), 0, 0, NULL},
    {"presence_penalty", CC, T_NUM, 0, AT(presence), -2, 2, "-2 to 2"},
    {"frequency_penalty", CC, T_NUM, 0, AT(frequency), -2, 2, "-2 to 2"},
    {"repetition_penalty", CC, T_NUM, 0, AT(repetition), 0.01, 100, "0.01 to 100"},
    {"min_tokens", CC, T_INT, 0, AT(min_tokens), 0, INT32_MAX, "0 to 2147483647"},
    {"stop_token_ids", CC, T_JSON, 0, AT(stop_token_ids), 0, 0, NULL},
    {"include_stop_str_in_output", CC, T_BOOL, 0, AT(include_stop), 0, 0, NULL},
    {"allowed_token_ids", CC, T_JSON, 0, AT(allowed_token_ids), 0, 0, NULL},
    {"bad_words", CC, T_JSON, 0, AT(bad_words), 0, 0, NULL},
    {"return_token_ids", CC, T_BOOL, 0, AT(token_ids), 0, 0, NULL},
    {"return_tokens_as_token_ids", CC, T_BOOL, 0, AT(as_ids), 0, 0, NULL},
    {"timeout", CC | POOLED, T_NUM, 0, AT(timeout), 0, ROSE_API_MAX_TIMEOUT,
     "0 (none) to 86400 seconds"},
    {"priority", CC | POOLED, T_INT, 0, AT(priority), INT32_MIN, INT32_MAX,
     "-2147483648 to 2147483647"},
    {"cache_salt", CC | POOLED, T_JSON, 0, AT(cache_salt), 0, 0, NULL},
    /* structured output (structured.c) */
    {"response_format", CC, T_JSON, 0, AT(structured[ROSE_API_RESPONSE_FORMAT]), 0, 0, NULL},
    {"structured_outputs", CC, T_JSON, 0, AT(structured[ROSE_API_STRUCTURED_OUTPUTS]), 0, 0, NULL},
    {"guided_json", CC, T_JSON, 0, AT(structured[ROSE_API_GUIDED_JSON]), 0, 0, NULL},
    {"guided_regex", CC, T_JSON, 0, AT(structured[ROSE_API_GUIDED_REGEX]), 0, 0, NULL},
    {"guided_choice", CC, T_JSON, 0, AT(structured[ROSE_API_GUIDED_CHOICE]), 0, 0, NULL},
    {"guided_grammar", CC, T_JSON, 0, AT(structured[ROSE_API_GUIDED_GRAMMAR]), 0, 0, NULL},
    {"regex", CC, T_JSON, 0, AT(structured[ROSE_API_REGEX]), 0, 0, NULL},
    {"ebnf", CC, T_JSON, 0, AT(structured[ROSE_API_EBNF]), 0, 0, NULL},
    {"json_schema", CC, T_JSON, 0, AT(structured[ROSE_API_JSON_SCHEMA]), 0, 0, NULL},
    {"grammar", CC, T_JSON, 0, AT(structured[ROSE_API_GRAMMAR]), 0, 0, NULL},
    /* labels: they ask for nothing */
    {"user", CC | POOLED, T_LABEL, 0, 0, 0, 0, NULL},
    {"request_id", CC | POOLED, T_LABEL, 0, 0, 0, 0, NULL},
    {"safety_identifier", ROSE_API_CHAT, T_LABEL, 0, 0, 0, 0, NULL},
    {"prompt_cache_key", ROSE_API_CHAT, T_LABEL, 0, 0, 0, 0, NULL},
    {"service_tier", ROSE_API_CHAT, T_LABEL, 0, 0, 0, 0, NULL},
    {"metadata", ROSE_API_CHAT, T_ANY, 0, 0, 0, 0, NULL},
    /* fields of reasoning models. Completions have no reasoning to separate or hide, and a stream
     * always has it as it comes. */
    {"separate_reasoning", ROSE_API_CHAT, T_BOOL, 0, AT(separate_reasoning), 0, 0, NULL},
    {"include_reasoning", ROSE_API_CHAT, T_BOOL, 0, AT(include_reasoning), 0, 0, NULL},
    {"separate_reasoning", ROSE_API_COMPLETION, T_ANY, 0, 0, 0, 0, NULL},
    {"include_reasoning", ROSE_API_COMPLETION, T_ANY, 0, 0, 0, 0, NULL},
    {"stream_reasoning", CC, T_ANY, 0, 0, 0, 0, NULL},
    /* of OpenAI's schema, not served */
    {"suffix", ROSE_API_COMPLETION, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
    {"functions", ROSE_API_CHAT, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
    {"function_call", ROSE_API_CHAT, T_REFUSED, OFF_NONE, 0, 0, 0, NULL},
    {"modalities", ROSE_API_CHAT, T_REFUSED, OFF_TEXT, 0, 0, 0, NULL},
    {"audio", ROSE_API_CHAT, T_REFUSED, 0, 0, 0, 0, NULL},
    {"prediction", ROSE_API_CHAT, T_JSON, 0, AT(prediction), 0, 0, NULL},
    {"reasoning_effort", ROSE_API_CHAT, T_HINT, OFF_NONE, 0, 0, 0, NULL},
    {"verbosity", ROSE_API_CHAT, T_HINT, 0, 0, 0, 0, NULL},
    {"store", ROSE_API_CHAT, T_HINT, OFF_FALSE, 0, 0, 0, NULL},
    {"web_search_options", ROSE_API_CHAT, T_REFUSED, 0, 0, 0, 0, NULL},
    /* of vLLM's schema, not served */
    {"use_beam_search", CC, T_REFUSED, OFF_FALSE, 0, 0, 0, NULL},
    {"length_penalty", CC, T_HINT, OFF_ONE, 0, 0, 0, NULL},
    {"skip_special_tokens", CC | ROSE_API_DETOKENIZE, T_REFUSED, OFF_TRUE, 0, 0, 0, NULL},
    {"spaces_between_special_tokens", CC, T_HINT, OFF_TRUE, 0, 0, 0, NULL},
    {"truncate_prompt_tokens", CC, T_REFUSED, OFF_MINUS_ONE, 0, 0, 0, NULL},
    {"logits_processors", CC, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
    {"guided_whitespace_pattern", CC, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
    {"guided_decoding_backend", CC, T_HINT, OFF_NONE, 0, 0, 0, NULL},
    {"return_token_strs", ROSE_API_TOKENIZE, T_REFUSED, OFF_FALSE, 0, 0, 0, NULL},
    {"kv_transfer_params", CC, T_HINT, OFF_EMPTY, 0, 0, 0, NULL},
    {"stream_interval", CC, T_HINT, OFF_ONE, 0, 0, 0, NULL},
    {"add_special_tokens", ROSE_API_CHAT, T_REFUSED, OFF_FALSE, 0, 0, 0, NULL},
    {"mm_processor_kwargs", ROSE_API_CHAT, T_HINT, OFF_EMPTY, 0, 0, 0, NULL},
    {"prompt_embeds", ROSE_API_COMPLETION, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
    /* fields of SGLang's and llama.cpp's schemas that are not supported */
    {"no_stop_trim", CC, T_REFUSED, OFF_FALSE, 0, 0, 0, NULL},
    {"return_hidden_states", CC, T_REFUSED, OFF_FALSE, 0, 0, 0, NULL},
    {"grammar_lazy", CC, T_REFUSED, OFF_FALSE, 0, 0, 0, NULL},
    {"grammar_triggers", CC, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
    {"custom_logit_processor", CC, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
    {"lora_path", CC, T_REFUSED, OFF_EMPTY, 0, 0, 0, NULL},
};

static const field *find_field(const char *name, rose_api_kind kind)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if ((fields[i].where & kind) != 0 && strcmp(fields[i].name, name) == 0) return &fields[i];
    }
    return NULL;
}

static bool is_text(const rose_json *v)
{
    return rose_api_json_is(v, "text") ||
           (rose_json_is_array(v) && rose_json_count(v) == 1 &&
            rose_api_json_is(rose_json_at(v, 0), "text")) ||
           rose_api_json_is(rose_json_get(v, "type"), "text");
}

static bool is_number(const rose_json *v, int value)
{
    return (rose_json_is_integer(v) && rose_json_int(v) == value) ||
           (rose_json_is_real(v) && !(rose_json_real_value(v) < value) &&
            !(rose_json_real_value(v) > value));
}

static bool is_off(const rose_json *v, uint8_t off)
{
    return ((off & OFF_FALSE) && rose_json_is_false(v)) ||
           ((off & OFF_TRUE) && rose_json_is_true(v)) || ((off & OFF_ZERO) && is_number(v, 0)) ||
           ((off & OFF_ONE) && is_number(v, 1)) || ((off & OFF_MINUS_ONE) && is_number(v, -1)) ||
           ((off & OFF_EMPTY) && rose_api_json_is_empty(v)) || ((off & OFF_TEXT) && is_text(v)) ||
           ((off & OFF_NONE) && (rose_api_json_is(v, "none") || rose_api_json_is(v, "auto")));
}

/* Reads an integer. Many clients have only floats, so 40.0 is also an integer. */
static bool read_int(const rose_json *v, int64_t *i)
{
    const double d = rose_json_real_value(v); /* 0 if v is no real */
    *i = rose_json_is_integer(v) ? rose_json_int(v) : 0;
    if (!rose_json_is_real(v)) return rose_json_is_integer(v);
    if (!(d >= -0x1p63 && d < 0x1p63) || d < floor(d) || d > floor(d)) return false;
    *i = (int64_t)d;
    return true;
}

static bool take_int(char *at, const field *f, const rose_json *v, const rose_api_schema_opts *o,
                     rose_api_error *err)
{
    int64_t i;
    if (rose_json_is_big(v))
        return rose_api_fail(err, 400, NULL, f->name,
                             "field '%s' is an integer that does not fit 64 bits: %.40s", f->name,
                             rose_json_number_text(v, NULL));
    if (!read_int(v, &i)) return rose_api_fail_wrong(err, f->name, "an integer");
    if (f->at == AT(n) && (i < 1 || i > (int64_t)o->max_n))
        return rose_api_fail(err, 400, NULL, f->name, "field 'n' must be 1 to %u, got %lld",
                             o->max_n, (long long)i);
    if (f->at != AT(n) && ((double)i < f->lo || (double)i > f->hi))
        return rose_api_fail(err, 400, NULL, f->name, "field '%s' must be %s, got %lld", f->name,
                             f->range, (long long)i);
    memcpy(at, &i, sizeof i);
    return true;
}

static bool take_num(char *at, const field *f, const rose_json *v, rose_api_error *err)
{
    if (!rose_json_is_number(v)) return rose_api_fail_wrong(err, f->name, "a number");
    double d = rose_json_number_value(v);
    if (!isfinite(d) || d < f->lo || d > f->hi)
        return rose_api_fail(err, 400, NULL, f->name, "field '%s' must be %s, got %g", f->name,
                             f->range, d);
    memcpy(at, &d, sizeof d);
    return true;
}

static bool is_served(const rose_json *name, const rose_api_schema_opts *o)
{
    const char *s = rose_json_text(name);
    if (rose_json_text_len(name) != strlen(s)) return false; /* it holds a NUL */
    if (strcmp(s, o->model_id) == 0) return true;
    for (uint32_t i = 0; i < o->model_aliases->n; i++) {
        if (strcmp(s, rose_opt_list_get(o->model_aliases, i)) == 0) return true;
    }
    return false;
}

static bool take_model(const rose_json *v, const rose_api_schema_opts *o, rose_api_error *err)
{
    if (!rose_json_is_string(v)) return rose_api_fail_wrong(err, "model", "a string");
    if (is_served(v, o)) return true;
    return rose_api_fail(err, 404, "model_not_found", "model",
                         "the model '%.200s' does not exist; this server serves '%.200s'",
                         rose_json_text(v), o->model_id);
}

static bool take_field(rose_api_params *p, const field *f, const rose_json *v,
                       const rose_api_schema_opts *o, rose_api_ignored *g, rose_api_error *err)
{
    char *at = (char *)p + f->at;
    bool b = rose_json_is_true(v);
    switch ((field_type)f->type) {
    case T_BOOL:
        if (!rose_json_is_boolean(v)) return rose_api_fail_wrong(err, f->name, "true or false");
        memcpy(at, &b, sizeof b);
        return true;
    case T_INT:
        if (f->at == AT(seed)) p->has_seed = true;
        return take_int(at, f, v, o, err);
    case T_NUM:
        return take_num(at, f, v, err);
    case T_JSON:
    case T_NEEDED:
        memcpy(at, &v, sizeof v);
        return true;
    case T_LABEL:
        return rose_json_is_string(v) || rose_api_fail_wrong(err, f->name, "a string");
    case T_MODEL:
        return take_model(v, o, err);
    case T_REFUSED:
        return is_off(v, f->off) || rose_api_fail_unsupported(err, f->name, NULL);
    case T_HINT:
        return is_off(v, f->off) || rose_api_hint(g, f->name, err);
    case T_ANY:
        return true;
    }
    return true;
}

static bool check_stop(const rose_json *stop, const rose_api_schema_opts *o, rose_api_error *err)
{
    if (stop == NULL) return true;
    if (!rose_json_is_string(stop) && !rose_json_is_array(stop))
        return rose_api_fail_wrong(err, "stop", "a string or a list of strings");
    size_t n = rose_json_is_array(stop) ? rose_json_count(stop) : 1;
    if (n > o->max_stop)
        return rose_api_fail(err, 400, NULL, "stop",
                             "field 'stop' holds %zu strings, the limit is %u", n, o->max_stop);
    for (size_t i = 0; i < n; i++) {
        const rose_json *s = rose_json_is_array(stop) ? rose_json_at(stop, i) : stop;
        if (!rose_json_is_string(s))
            return rose_api_fail_wrong(err, "stop", "a string or a list of strings");
        if (rose_json_text_len(s) == 0)
            return rose_api_fail(err, 400, NULL, "stop", "a stop string must not be empty");
        if (rose_json_text_len(s) > ROSE_STOP_MAX_BYTES)
            return rose_api_fail(err, 400, NULL, "stop",
                                 "a stop string has %zu bytes, the limit is %d",
                                 rose_json_text_len(s), ROSE_STOP_MAX_BYTES);
    }
    return true;
}

/* vLLM's rule: an empty salt is refused, because all clients without a salt would share it. */
static bool check_salt(const rose_json *salt, rose_api_error *err)
{
    return salt == NULL || (rose_json_is_string(salt) && rose_json_text_len(salt) > 0) ||
           rose_api_fail_wrong(err, "cache_salt", "a string that is not empty");
}

static bool take_flag(bool *out, const char *name, const rose_json *v, rose_api_error *err)
{
    if (!rose_json_is_boolean(v) && !rose_json_is_null(v))
        return rose_api_fail_wrong(err, name, "true or false");
    *out = rose_json_is_true(v);
    return true;
}

static bool take_stream_option(rose_api_params *p, const char *key, const rose_json *v,
                               rose_api_ignored *g, rose_api_error *err)
{
    char name[128];
    bool padded = false;
    snprintf(name, sizeof name, "stream_options.%s", key);
    if (strcmp(key, "include_usage") == 0) return take_flag(&p->include_usage, name, v, err);
    if (strcmp(key, "continuous_usage_stats") == 0)
        return take_flag(&p->continuous_usage, name, v, err);
    if (strcmp(key, "include_obfuscation") == 0)
        return take_flag(&padded, name, v, err) && (!padded || rose_api_hint(g, name, err));
    return (rose_json_is_null(v) && !g->strict) || rose_api_unknown_field(g, name, err);
}

static bool check_stream_options(rose_api_params *p, rose_api_ignored *g, rose_api_error *err)
{
    const char *key;
    rose_json *v;
    if (p->stream_options == NULL) return true;
    if (!rose_json_is_object(p->stream_options))
        return rose_api_fail_wrong(err, "stream_options", "an object");
    if (!p->stream && rose_json_size(p->stream_options) > 0) /* as in vLLM */
        return rose_api_fail(err, 400, NULL, "stream_options",
                             "field 'stream_options' is only allowed when 'stream' is true");
    rose_json_each (p->stream_options, key, v) {
        if (!take_stream_option(p, key, v, g, err)) return false;
    }
    if (!p->continuous_usage || p->include_usage) return true;
    p->continuous_usage = false; /* as in vLLM: alone it has no effect */
    return rose_api_hint(g, "stream_options.continuous_usage_stats", err);
}

/* Refuses more candidates than replies, because they would have to be generated and ranked. */
static bool check_best_of(const rose_api_params *p, rose_api_error *err)
{
    return p->best_of < 0 || p->best_of == p->n ||
           rose_api_fail(err, 400, "unsupported_field", "best_of",
                         "field 'best_of' is %lld and 'n' is %lld: another number than 'n' is not "
                         "supported by this server",
                         (long long)p->best_of, (long long)p->n);
}

static bool check_required(const rose_api_params *p, rose_api_kind kind, rose_api_error *err)
{
    for (const field *f = fields; f < fields + sizeof fields / sizeof *fields; f++) {
        const rose_json *v = NULL;
        if (f->type != T_NEEDED || (f->where & kind) == 0) continue;
        memcpy(&v, (const char *)p + f->at, sizeof v);
        if (v == NULL)
            return rose_api_fail(err, 400, "missing_required_parameter", f->name,
                                 "field '%s' is required", f->name);
    }
    return kind != ROSE_API_TOKENIZE || (p->prompt == NULL) != (p->messages == NULL) ||
           rose_api_fail(err, 400, NULL, "prompt", "one of 'prompt' and 'messages' is required");
}

/* Checks logprobs. For completions, logprobs is the number of alternatives. For chat, logprobs
 * is a flag, and top_logprobs is the number. */
static bool check_logprobs(rose_api_params *p, rose_api_kind kind, rose_api_error *err)
{
    const rose_json *v = p->logprobs;
    p->n_logprobs = -1;
    if (kind == ROSE_API_CHAT) {
        if (p->chat_logprobs) p->n_logprobs = p->top_logprobs > 0 ? p->top_logprobs : 0;
        if (!p->chat_logprobs && p->top_logprobs > 0)
            return rose_api_fail(err, 400, NULL, "top_logprobs",
                                 "field 'top_logprobs' needs 'logprobs' to be true");
    } else if (v != NULL && !rose_json_is_false(v)) {
        if (!read_int(v, &p->n_logprobs)) return rose_api_fail_wrong(err, "logprobs", "an integer");
        if (p->n_logprobs < 0 || p->n_logprobs > TOP)
            return rose_api_fail(err, 400, NULL, "logprobs",
                                 "field 'logprobs' must be 0 to %d, got %lld", TOP,
                                 (long long)p->n_logprobs);
    }
    if (p->prompt_logprobs >= 0 && p->stream)
        return rose_api_fail(err, 400, NULL, "prompt_logprobs",
                             "field 'prompt_logprobs' is not served with 'stream'");
    return true;
}

/* An empty list or object counts as absent. */
static bool take_list(const rose_json **v, const char *name, rose_api_error *err)
{
    if (*v == NULL) return true;
    for (size_t i = 0; i < rose_json_count(*v); i++) {
        if (!rose_json_is_object(rose_json_at(*v, i)))
            return rose_api_fail_wrong(err, name, "a list of objects");
    }
    if (!rose_json_is_array(*v)) return rose_api_fail_wrong(err, name, "a list of objects");
    if (rose_json_count(*v) == 0) *v = NULL;
    return true;
}

static bool check_template(rose_api_params *p, const rose_api_schema_opts *o, rose_api_error *err)
{
    if (p->chat_template != NULL && rose_api_json_is_empty(p->chat_template))
        p->chat_template = NULL;
    if (p->chat_template == NULL) return true;
    if (!rose_json_is_string(p->chat_template))
        return rose_api_fail_wrong(err, "chat_template", "a string");
    return o->trust_template ||
           rose_api_fail(err, 400, "unsupported_field", "chat_template",
                         "field 'chat_template' is not supported by this server: it was started "
                         "without --trust-request-chat-template");
}

/* The fields that shape the prompt of a chat. */
static bool check_chat(rose_api_params *p, rose_api_kind kind, const rose_api_schema_opts *o,
                       rose_api_ignored *g, rose_api_error *err)
{
    if (!take_list(&p->tools, "tools", err) || !take_list(&p->documents, "documents", err) ||
        !check_template(p, o, err))
        return false;
    const bool templated = o->has_template || p->chat_template != NULL;
    if (p->chat_kwargs != NULL && !rose_json_is_object(p->chat_kwargs))
        return rose_api_fail_wrong(err, "chat_template_kwargs", "an object");
    if (p->chat_kwargs != NULL && !templated && !rose_api_json_is_empty(p->chat_kwargs) &&
        !rose_api_hint(g, "chat_template_kwargs", err))
        return false;
    if (p->documents != NULL && !templated)
        return rose_api_fail_unsupported(err, "documents", NULL);
    return kind != ROSE_API_CHAT || rose_api_tools_check(p, g, err);
}

rose_api_params rose_api_schema_defaults(const rose_generation *g)
{
    rose_api_params p = {.temperature = 1.0,
                         .top_p = 1.0,
                         .repetition = 1.0,
                         .n = 1,
                         .best_of = -1,
                         .max_tokens = -1,
                         .max_completion_tokens = -1,
                         .top_logprobs = -1,
                         .prompt_logprobs = -1,
                         .add_special_tokens = true,
                         .add_generation_prompt = true,
                         .parallel_calls = true,
                         .speculation = true,
                         .include_reasoning = true,
                         .separate_reasoning = true,
                         .pooled = {.return_documents = true}};
    if ((g->has & ROSE_GENERATION_TEMPERATURE) != 0) p.temperature = (double)g->temperature;
    if ((g->has & ROSE_GENERATION_TOP_P) != 0) p.top_p = (double)g->top_p;
    if ((g->has & ROSE_GENERATION_TOP_K) != 0) p.top_k = g->top_k;
    if ((g->has & ROSE_GENERATION_MIN_P) != 0) p.min_p = (double)g->min_p;
    if ((g->has & ROSE_GENERATION_REPETITION) != 0) p.repetition = (double)g->repetition;
    return p;
}

bool rose_api_schema_check(rose_api_params *p, const rose_json *root, rose_api_kind kind,
                           const rose_api_schema_opts *o, rose_api_ignored *g, rose_api_error *err)
{
    const rose_api_kind fields_of = kind == ROSE_API_APPLY ? ROSE_API_CHAT : kind;
    const char *key;
    rose_json *v;
    *p = rose_api_schema_defaults(&o->generation);
    rose_json_each (root, key, v) {
        const field *f = find_field(key, fields_of);
        if (rose_json_is_null(v) && (f != NULL || !g->strict)) continue; /* absent, as for OpenAI */
        if (f == NULL ? !rose_api_unknown_field(g, key, err) : !take_field(p, f, v, o, g, err))
            return false;
    }
    return check_required(p, fields_of, err) && check_stop(p->stop, o, err) &&
           check_salt(p->cache_salt, err) && check_stream_options(p, g, err) &&
           check_best_of(p, err) && check_logprobs(p, fields_of, err) &&
           check_chat(p, kind, o, g, err) && rose_api_structure_read(p, g, err);
}
