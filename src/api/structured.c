/* api/structured.c - the fields that ask for structured output: OpenAI's response_format, vLLM's
 * structured_outputs and its older guided_* fields, and those of SGLang and llama.cpp. At most one
 * of them may ask. This file checks their form; the grammar's compiler checks what they say.
 *
 * response_format follows OpenAI: the properties of a schema come in the order of the schema. The
 * other fields allow any order, as JSON Schema does. */
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"

/* Which values a field takes. */
typedef enum form {
    FORM_SCHEMA, /* an object, or a string that holds JSON */
    FORM_TEXT,   /* a string */
    FORM_LIST    /* a list of strings */
} form;

/* The fields and members that hold nothing but the structure. */
typedef struct source {
    const char *name;
    rose_grammar_kind kind;
    form form;
    bool empty_is_off; /* "" asks for nothing, as for the server that the field is from */
} source;

static const source sources[ROSE_API_N_STRUCTURED] = {
    [ROSE_API_GUIDED_JSON] = {"guided_json", ROSE_GRAMMAR_JSON_SCHEMA, FORM_SCHEMA, false},
    [ROSE_API_GUIDED_REGEX] = {"guided_regex", ROSE_GRAMMAR_REGEX, FORM_TEXT, false},
    [ROSE_API_GUIDED_CHOICE] = {"guided_choice", ROSE_GRAMMAR_CHOICE, FORM_LIST, false},
    [ROSE_API_GUIDED_GRAMMAR] = {"guided_grammar", ROSE_GRAMMAR_EBNF, FORM_TEXT, false},
    [ROSE_API_REGEX] = {"regex", ROSE_GRAMMAR_REGEX, FORM_TEXT, true},
    [ROSE_API_EBNF] = {"ebnf", ROSE_GRAMMAR_EBNF, FORM_TEXT, true},
    [ROSE_API_JSON_SCHEMA] = {"json_schema", ROSE_GRAMMAR_JSON_SCHEMA, FORM_SCHEMA, true},
    [ROSE_API_GRAMMAR] = {"grammar", ROSE_GRAMMAR_EBNF, FORM_TEXT, true},
};

static const source members[] = {
    {"json", ROSE_GRAMMAR_JSON_SCHEMA, FORM_SCHEMA, false},
    {"regex", ROSE_GRAMMAR_REGEX, FORM_TEXT, false},
    {"choice", ROSE_GRAMMAR_CHOICE, FORM_LIST, false},
    {"grammar", ROSE_GRAMMAR_EBNF, FORM_TEXT, false},
    {"structural_tag", ROSE_GRAMMAR_TAG, FORM_SCHEMA, false},
};

/* Most bytes of JSON within a string. The limits of a body (json_in.c) do not reach into it, and a
 * byte can need 50 bytes of memory. */
enum { MAX_JSON_TEXT = 1 << 20 };

/* Most texts of a list. Each needs about a kilobyte of memory while the grammar is compiled. */
enum { MAX_CHOICES = 1 << 17 };

/* Notes what a field asks for; a second one is refused. */
static bool ask(rose_api_structure *s, const char *name, rose_grammar_kind kind, bool order,
                const rose_json *value, rose_api_error *err)
{
    if (s->any)
        return rose_api_fail(err, 400, NULL, name,
                             "fields '%s' and '%s' exclude each other: a text can obey only one",
                             s->param, name);
    *s = (rose_api_structure){.any = true, .kind = kind, .schema_order = order, .value = value};
    snprintf(s->param, sizeof s->param, "%s", name);
    return true;
}

static bool is_text_list(const rose_json *v)
{
    for (size_t i = 0; i < rose_json_count(v); i++) {
        if (!rose_json_is_string(rose_json_at(v, i))) return false;
    }
    return rose_json_count(v) > 0;
}

static bool take_source(rose_api_structure *s, const source *f, const char *name,
                        const rose_json *v, rose_api_error *err)
{
    const bool empty = rose_json_is_string(v) && rose_json_text_len(v) == 0;
    if (v == NULL || rose_json_is_null(v) || (empty && f->empty_is_off)) return true;
    if (f->form == FORM_TEXT && (!rose_json_is_string(v) || empty))
        return rose_api_fail_wrong(err, name, "a string that is not empty");
    if (f->form == FORM_LIST && !is_text_list(v))
        return rose_api_fail_wrong(err, name, "a list of at least one string");
    if (rose_json_count(v) > MAX_CHOICES)
        return rose_api_fail(err, 400, NULL, name,
                             "field '%s' has %zu texts, and the limit is %d: describe them with a "
                             "regular expression",
                             name, rose_json_count(v), MAX_CHOICES);
    if (f->form == FORM_SCHEMA && !rose_json_is_object(v) && (!rose_json_is_string(v) || empty))
        return rose_api_fail_wrong(err, name, "an object, or a string that holds JSON");
    if (f->form == FORM_SCHEMA && rose_json_text_len(v) > MAX_JSON_TEXT)
        return rose_api_fail(err, 400, NULL, name,
                             "field '%s' is a string of %zu bytes, and the limit is %d: send the "
                             "object itself instead of its text",
                             name, rose_json_text_len(v), MAX_JSON_TEXT);
    return ask(s, name, f->kind, false, v, err);
}

/* ---- response_format ---- */

static const rose_json *present(const rose_json *object, const char *key)
{
    const rose_json *v = rose_json_get(object, key);
    return rose_json_is_null(v) ? NULL : v;
}

/* Notes members that are not in `known`, a list of names with spaces around them. */
static bool check_members(const rose_json *object, const char *name, const char *known,
                          rose_api_ignored *g, rose_api_error *err)
{
    const char *key;
    rose_json *v;
    rose_json_each (object, key, v) {
        char full[128], word[72];
        const int n = snprintf(word, sizeof word, " %s ", key);
        if (n < (int)sizeof word && strchr(key, ' ') == NULL && strstr(known, word) != NULL)
            continue;
        if (rose_json_is_null(v) && !g->strict) continue;
        snprintf(full, sizeof full, "%s.%s", name, key);
        if (!rose_api_unknown_field(g, full, err)) return false;
    }
    return true;
}

/* {"type": "json_schema", "json_schema": {"name", "description", "schema", "strict"}}. The schema
 * is always enforced, so `strict` changes nothing. */
static bool take_json_schema(rose_api_structure *s, const rose_json *v, rose_api_ignored *g,
                             rose_api_error *err)
{
    const rose_json *body = present(v, "json_schema"), *schema = present(body, "schema");
    const rose_json *name = present(body, "name"), *text = present(body, "description");
    const rose_json *strict = present(body, "strict");
    if (!rose_json_is_object(body))
        return rose_api_fail_wrong(err, "response_format.json_schema",
                                   "an object with 'name' and 'schema'");
    if (!rose_json_is_object(schema))
        return rose_api_fail_wrong(err, "response_format.json_schema.schema",
                                   "an object: a JSON schema");
    if (name != NULL && !rose_json_is_string(name))
        return rose_api_fail_wrong(err, "response_format.json_schema.name", "a string");
    if (text != NULL && !rose_json_is_string(text))
        return rose_api_fail_wrong(err, "response_format.json_schema.description", "a string");
    if (strict != NULL && !rose_json_is_boolean(strict))
        return rose_api_fail_wrong(err, "response_format.json_schema.strict", "true or false");
    return check_members(v, "response_format", " type json_schema ", g, err) &&
           check_members(body, "response_format.json_schema", " name description schema strict ", g,
                         err) &&
           ask(s, "response_format", ROSE_GRAMMAR_JSON_SCHEMA, true, schema, err);
}

/* {"type": "json_object"}, in llama.cpp with a `schema`. */
static bool take_json_object(rose_api_structure *s, const rose_json *v, rose_api_ignored *g,
                             rose_api_error *err)
{
    const rose_json *schema = present(v, "schema");
    if (schema != NULL && !rose_json_is_object(schema))
        return rose_api_fail_wrong(err, "response_format.schema", "an object: a JSON schema");
    return check_members(v, "response_format", " type schema ", g, err) &&
           ask(s, "response_format",
               schema != NULL ? ROSE_GRAMMAR_JSON_SCHEMA : ROSE_GRAMMAR_JSON_OBJECT, true, schema,
               err);
}

static bool take_format(rose_api_structure *s, const rose_json *v, rose_api_ignored *g,
                        rose_api_error *err)
{
    const rose_json *type = rose_json_get(v, "type");
    const bool text = rose_api_json_is(v, "text") || rose_api_json_is(type, "text");
    if (v == NULL || text) return true;
    if (!rose_json_is_object(v))
        return rose_api_fail_wrong(err, "response_format", "an object with a 'type'");
    if (rose_api_json_is(type, "json_schema")) return take_json_schema(s, v, g, err);
    if (rose_api_json_is(type, "json_object")) return take_json_object(s, v, g, err);
    if (rose_api_json_is(type, "structural_tag"))
        return ask(s, "response_format", ROSE_GRAMMAR_TAG, true, v, err);
    return rose_api_fail_wrong(err, "response_format.type",
                               "\"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
}

/* ---- structured_outputs ---- */

/* Options of vLLM's compilers. White space is bounded in another way here, objects are closed in
 * any case (docs/API.md), and there is no other compiler to fall back to. */
static bool check_option(const char *key, const char *name, const rose_json *v, bool *known,
                         rose_api_error *err)
{
    const bool pattern = strcmp(key, "whitespace_pattern") == 0;
    const bool label =
        strcmp(key, "disable_fallback") == 0 || strcmp(key, "disable_additional_properties") == 0;
    *known = pattern || label || strcmp(key, "disable_any_whitespace") == 0;
    if (!*known || (pattern && rose_json_text_len(v) == 0 && rose_json_is_string(v))) return true;
    if (!pattern && !rose_json_is_boolean(v))
        return rose_api_fail_wrong(err, name, "true or false");
    return label || rose_json_is_false(v) || rose_api_fail_unsupported(err, name, NULL);
}

static bool take_member(rose_api_structure *s, const char *key, const rose_json *v,
                        rose_api_ignored *g, rose_api_error *err)
{
    char name[128];
    bool known;
    snprintf(name, sizeof name, "structured_outputs.%s", key);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strcmp(key, members[i].name) == 0) return take_source(s, &members[i], name, v, err);
    }
    if (strcmp(key, "json_object") == 0) {
        if (!rose_json_is_boolean(v)) return rose_api_fail_wrong(err, name, "true or false");
        return rose_json_is_false(v) || ask(s, name, ROSE_GRAMMAR_JSON_OBJECT, false, NULL, err);
    }
    if (!check_option(key, name, v, &known, err)) return false;
    return known || rose_api_unknown_field(g, name, err);
}

static bool take_outputs(rose_api_structure *s, const rose_json *v, rose_api_ignored *g,
                         rose_api_error *err)
{
    const char *key;
    rose_json *x;
    size_t n = 0;
    if (v == NULL || rose_api_json_is_empty(v)) return true;
    if (!rose_json_is_object(v)) return rose_api_fail_wrong(err, "structured_outputs", "an object");
    rose_json_each (v, key, x) {
        if (rose_json_is_null(x)) continue;
        n++;
        if (!take_member(s, key, x, g, err)) return false;
    }
    return s->any || n == 0 ||
           rose_api_fail_wrong(
               err, "structured_outputs",
               "an object with one of 'json', 'json_object', 'regex', 'choice', 'grammar' and "
               "'structural_tag'");
}

bool rose_api_structure_read(rose_api_params *p, rose_api_ignored *g, rose_api_error *err)
{
    rose_api_structure *s = &p->structure;
    if (!take_format(s, p->structured[ROSE_API_RESPONSE_FORMAT], g, err) ||
        !take_outputs(s, p->structured[ROSE_API_STRUCTURED_OUTPUTS], g, err))
        return false;
    for (size_t i = 0; i < ROSE_API_N_STRUCTURED; i++) {
        const source *f = &sources[i];
        if (f->name != NULL && !take_source(s, f, f->name, p->structured[i], err)) return false;
    }
    return true;
}
