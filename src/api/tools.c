/* api/tools.c - tools and reasoning of a chat. A request's fields are checked here. The formats in
 * which the model writes calls and reasoning follow from its chat template, or from the options
 * --tool-call-parser and --reasoning-parser. Each choice of a chat then has a parser
 * (chat/calls.h), whose parts become the parts of the choice.
 *
 * A request that demands calls, or has strict functions, gets a grammar: a structural tag, in which
 * each function is a tag with the schema of its parameters. Formats that no tag can describe are
 * then replaced by a list of JSON objects. A grammar also leaves room for reasoning, so a request
 * for structured output gets a tag too if its model may reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/json.h"
#include "base/utf8.h"

/* ---- the fields ---- */

static const rose_json *function_of(const rose_json *tools, size_t i)
{
    return rose_json_get(rose_json_at(tools, i), "function");
}

static const char *name_of(const rose_json *tools, size_t i)
{
    return rose_json_text(rose_json_get(function_of(tools, i), "name"));
}

static bool has_tool(const rose_json *tools, const char *name)
{
    for (size_t i = 0; i < rose_json_count(tools); i++) {
        if (strcmp(name_of(tools, i), name) == 0) return true;
    }
    return false;
}

/* Names are those of OpenAI's API, and '.', '/' and ':', which no format gives a meaning. */
static bool is_name(const rose_json *v)
{
    const char *s = rose_json_text(v);
    return s != NULL && rose_json_text_len(v) == strspn(s, ROSE_ALNUM "_-./:") && s[0] != '\0' &&
           rose_json_text_len(v) <= ROSE_API_MAX_TOOL_NAME;
}

/* i: the place that the tool had in the request. */
static bool check_tool(const rose_json *tool, size_t i, rose_api_error *err)
{
    const rose_json *f = rose_json_get(tool, "function");
    const rose_json *schema = rose_json_get(f, "parameters"), *strict = rose_json_get(f, "strict");
    char param[64];
    snprintf(param, sizeof param, "tools[%zu].function", i);
    if (!rose_json_is_object(f)) return rose_api_fail_wrong(err, param, "an object");
    snprintf(param, sizeof param, "tools[%zu].function.name", i);
    if (!is_name(rose_json_get(f, "name")))
        return rose_api_fail_wrong(err, param, "1 to 128 letters, digits and '_-./:'");
    snprintf(param, sizeof param, "tools[%zu].function.parameters", i);
    if (schema != NULL && !rose_json_is_object(schema) && !rose_json_is_null(schema))
        return rose_api_fail_wrong(err, param, "a JSON schema, which is an object");
    snprintf(param, sizeof param, "tools[%zu].function.strict", i);
    return strict == NULL || rose_json_is_boolean(strict) || rose_json_is_null(strict) ||
           rose_api_fail_wrong(err, param, "true or false");
}

/* {"type": "function", "function": {"name": ...}} */
static bool take_named(rose_api_params *p, rose_api_error *err)
{
    const rose_json *f = rose_json_get(p->tool_choice, "function");
    const rose_json *name = rose_json_get(f, "name");
    if (!rose_api_json_is(rose_json_get(p->tool_choice, "type"), "function") ||
        !rose_json_is_string(name))
        return rose_api_fail_wrong(err, "tool_choice",
                                   "\"none\", \"auto\", \"required\" or {\"type\":\"function\","
                                   "\"function\":{\"name\":...}}");
    if (has_tool(p->tools, rose_json_text(name))) {
        p->tool_name = rose_json_text(name);
        return true;
    }
    return rose_api_fail(err, 400, NULL, "tool_choice",
                         "field 'tool_choice' names the function '%.128s', which is not in 'tools' "
                         "or not served",
                         rose_json_text(name));
}

/* Checks the functions and takes the tools of other types out of the request's list. */
static bool take_functions(rose_api_params *p, rose_api_ignored *g, rose_api_error *err)
{
    if (p->tools == NULL) return true;
    /* of the request, which this thread owns, so that the list may change */
    rose_json *tools = rose_json_incref(p->tools);
    rose_json *functions = rose_json_array();
    bool ok = functions != NULL || rose_api_fail_nomem(err);
    for (size_t i = 0; ok && i < rose_json_count(tools); i++) {
        rose_json *tool = rose_json_at(tools, i), *type = rose_json_get(tool, "type");
        char param[64];
        snprintf(param, sizeof param, "tools[%zu]", i);
        if (!rose_api_json_is(type, "function"))
            ok = rose_api_leave_out(g, param, type, err);
        else
            ok = check_tool(tool, i, err) &&
                 (rose_json_append(functions, tool) == 0 || rose_api_fail_nomem(err));
    }
    if (ok && rose_json_count(functions) < rose_json_count(tools)) {
        while (rose_json_count(tools) > 0)
            rose_json_remove(tools, rose_json_count(tools) - 1);
        ok = rose_json_extend(tools, functions) == 0 || rose_api_fail_nomem(err);
    }
    if (rose_json_count(functions) == 0) p->tools = NULL;
    rose_json_decref(functions);
    rose_json_decref(tools);
    return ok;
}

/* A choice among no tools has no effect. One that asks for a call is named, or refused by
 * --strict-fields. */
static bool ignore_choice(rose_api_params *p, rose_api_ignored *g, rose_api_error *err)
{
    const bool free =
        rose_api_json_is(p->tool_choice, "none") || rose_api_json_is(p->tool_choice, "auto");
    p->tool_choice = NULL;
    if (g->strict && !free)
        return rose_api_fail(err, 400, "unsupported_field", "tool_choice",
                             "field 'tool_choice' asks for a call, and there are no 'tools'");
    if (!free) rose_api_ignored_add(g, "tool_choice");
    return true;
}

bool rose_api_tools_none_left(rose_api_error *err)
{
    return rose_api_fail(err, 400, NULL, "tool_choice",
                         "field 'tool_choice' asks for a call, and this server serves none of the "
                         "'tools': it has functions alone");
}

bool rose_api_tools_check(rose_api_params *p, rose_api_ignored *g, rose_api_error *err)
{
    const rose_json *choice = p->tool_choice;
    const bool any = p->tools != NULL;
    if (!take_functions(p, g, err)) return false;
    if (choice != NULL && !any) return ignore_choice(p, g, err);
    p->tools_off = rose_api_json_is(choice, "none");
    p->tools_required = rose_api_json_is(choice, "required");
    const bool free = choice == NULL || p->tools_off || rose_api_json_is(choice, "auto");
    if (!free && p->tools == NULL) return rose_api_tools_none_left(err);
    return free || p->tools_required || take_named(p, err);
}

/* ---- the formats ---- */

static bool forced(const rose_api_params *p)
{
    return p->tools_required || p->tool_name != NULL;
}

static void find_formats(rose_api_reading *r, const rose_api_prompt_ctx *c,
                         const rose_api_params *p)
{
    const rose_api_opts *o = &c->api->o;
    bool describe;
    r->calls = rose_chat_calls(c->chat, o->tool_call_parser, &describe);
    if (c->chat == NULL || !p->separate_reasoning) return; /* the plain template has none */
    if (!rose_reasoning_format_find(o->reasoning_parser, &r->reasoning))
        r->reasoning = rose_chat_reasoning(c->chat);
}

static bool is_special(const rose_tokenizer *t, const char *text, uint32_t *id)
{
    return rose_tokenizer_find(t, text, strlen(text), id) && rose_tokenizer_is_special(t, *id);
}

/* Special tokens are left out of the text, but the parser must see those of its format. True:
 * the first of them is special. */
static bool note_marks(rose_api_reading *r, const rose_tokenizer *t)
{
    const char *marks[ROSE_CALLS_MARKS];
    rose_calls_marks(r->calls, r->reasoning, marks);
    bool first = false;
    r->n_marks = 0;
    for (size_t i = 0; marks[i] != NULL; i++) {
        uint32_t id;
        if (!is_special(t, marks[i], &id)) continue;
        if (i == 0) first = true;
        r->marks[r->n_marks++] = id;
    }
    return first;
}

bool rose_api_is_mark(const rose_api_reading *r, uint32_t id)
{
    for (uint32_t i = 0; i < r->n_marks; i++) {
        if (r->marks[i] == id) return true;
    }
    return false;
}

/* ---- the grammar ---- */

static bool is_strict(const rose_json *tools, size_t i)
{
    return rose_json_is_true(rose_json_get(function_of(tools, i), "strict"));
}

enum { MAX_TAG_CHOICES = 1 << 14 }; /* each becomes an object in the tag */

/* The structure becomes a part of a tag, so its JSON must be readable here. */
static bool check_structure(const rose_api_structure *s, rose_api_error *err)
{
    rose_json *v = NULL;
    rose_json_error e = {.text = ""};
    if (!s->any || s->value == NULL) return true;
    if (s->kind == ROSE_GRAMMAR_CHOICE && rose_json_count(s->value) > MAX_TAG_CHOICES)
        return rose_api_fail(err, 400, NULL, s->param,
                             "field '%s' has %zu texts: with reasoning or tools the limit is %d",
                             s->param, rose_json_count(s->value), MAX_TAG_CHOICES);
    const bool json = s->kind == ROSE_GRAMMAR_JSON_SCHEMA || s->kind == ROSE_GRAMMAR_TAG;
    const rose_status st =
        !json || !rose_json_is_string(s->value)
            ? ROSE_OK
            : rose_json_parse(&v, rose_json_text(s->value), rose_json_text_len(s->value), 0, &e);
    const bool old = s->kind == ROSE_GRAMMAR_TAG &&
                     rose_json_get(v != NULL ? v : s->value, "structures") != NULL;
    rose_json_decref(v);
    if (st == ROSE_E_NOMEM) return rose_api_fail_nomem(err);
    if (st != ROSE_OK)
        return rose_api_fail(err, 400, NULL, s->param, "field '%s' is not valid JSON: %.100s",
                             s->param, e.text);
    return !old || rose_api_fail(err, 400, "unsupported_field", s->param,
                                 "field '%s': with reasoning or tools only the form with 'format' "
                                 "is served",
                                 s->param);
}

static bool set_missing(rose_json *object, const char *key, rose_json *v)
{
    if (rose_json_get(object, key) == NULL) return rose_json_set_new(object, key, v) == 0;
    rose_json_decref(v);
    return true;
}

/* A schema for the arguments of a function. They are an object in any case. If the schema does not
 * speak of further properties, there are none: a function would not know them. */
static rose_json *schema_of(const rose_json *tools, size_t i, bool exact)
{
    static const char *const others[] = {"$ref", "allOf", "anyOf", "oneOf", "patternProperties"};
    const rose_json *schema = rose_json_get(function_of(tools, i), "parameters");
    bool closed = true;
    if (!exact) return rose_json_pack("{s:s,s:b}", "type", "object", "additionalProperties", 1);
    for (size_t k = 0; k < sizeof others / sizeof *others; k++)
        closed = closed && rose_json_get(schema, others[k]) == NULL;
    rose_json *copy = rose_json_object();
    bool ok = copy != NULL && (rose_json_size(schema) == 0 || rose_json_update(copy, schema) == 0);
    ok = ok && set_missing(copy, "type", rose_json_string("object"));
    ok = ok && (!closed || set_missing(copy, "additionalProperties", rose_json_false()));
    if (ok) return copy;
    rose_json_decref(copy);
    return NULL;
}

/* How a format writes a call: before the name, between name and arguments, after them. */
static const struct tag_form {
    const char *before, *after_name, *end, *separator, *trigger, *style;
} tag_forms[] = {
    [ROSE_CALLS_HERMES] = {"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>",
                           "\n", "<tool_call>", "json"},
    [ROSE_CALLS_LLAMA3] = {"{\"name\": \"", "\", \"parameters\": ", "}", "; ", "{\"name\": \"",
                           "json"},
    [ROSE_CALLS_QWEN3_XML] = {"<tool_call>\n<function=", ">", "</function>\n</tool_call>", "\n",
                              "<tool_call>", "qwen_xml"},
    [ROSE_CALLS_LIST] = {"{\"name\": \"", "\", \"parameters\": ", "}", ", ", "", "json"}};

static rose_json *call_tag(const struct tag_form *t, const rose_json *tools, size_t i, bool exact)
{
    char begin[ROSE_API_MAX_TOOL_NAME + 64];
    snprintf(begin, sizeof begin, "%s%s%s", t->before, name_of(tools, i), t->after_name);
    return rose_json_pack("{s:s,s:s,s:{s:s,s:s,s:o,s:b},s:s}", "type", "tag", "begin", begin,
                          "content", "type", "json_schema", "style", t->style, "json_schema",
                          schema_of(tools, i, exact), "any_order", !exact, "end", t->end);
}

/* The tags of the functions that may be called; NULL: no memory. */
static rose_json *call_tags(const struct tag_form *t, const rose_api_params *p)
{
    rose_json *tags = rose_json_array();
    for (size_t i = 0; tags != NULL && i < rose_json_count(p->tools); i++) {
        if (p->tool_name != NULL && strcmp(p->tool_name, name_of(p->tools, i)) != 0) continue;
        if (rose_json_append_new(
                tags, call_tag(t, p->tools, i, forced(p) || is_strict(p->tools, i))) != 0) {
            rose_json_decref(tags);
            return NULL;
        }
    }
    return tags;
}

/* At least one call, and nothing else. */
static rose_json *only_calls(const rose_api_reading *r, const rose_api_params *p)
{
    const struct tag_form *t = &tag_forms[r->calls];
    const bool once = p->tool_name != NULL || r->one_call;
    rose_json *calls = rose_json_pack("{s:s,s:o,s:s,s:b,s:b}", "type", "tags_with_separator",
                                      "tags", call_tags(t, p), "separator", t->separator,
                                      "at_least_one", 1, "stop_after_first", once);
    if (r->calls != ROSE_CALLS_LIST) return calls;
    return rose_json_pack("{s:s,s:[{s:s,s:s},o,{s:s,s:s}]}", "type", "sequence", "elements", "type",
                          "const_string", "value", "[", calls, "type", "const_string", "value",
                          "]");
}

/* Text in which every call is a sound one. */
static rose_json *text_with_calls(const rose_api_reading *r, const rose_api_params *p)
{
    const struct tag_form *t = &tag_forms[r->calls];
    return rose_json_pack("{s:s,s:[s],s:o}", "type", "triggered_tags", "triggers", t->trigger,
                          "tags", call_tags(t, p));
}

/* The value of a field that may hold JSON as text; NULL: it is no JSON, or no memory. */
static rose_json *value_of(const rose_json *v)
{
    rose_json *out = NULL;
    rose_json_error e; /* check_structure has found it sound */
    if (!rose_json_is_string(v)) return rose_json_incref(v);
    (void)rose_json_parse(&out, rose_json_text(v), rose_json_text_len(v), ROSE_JSON_NUL, &e);
    return out;
}

static rose_json *any_of_texts(const rose_json *list)
{
    rose_json *out = rose_json_array();
    for (size_t i = 0; out != NULL && i < rose_json_count(list); i++) {
        rose_json *one =
            rose_json_pack("{s:s,s:O}", "type", "const_string", "value", rose_json_at(list, i));
        if (rose_json_append_new(out, one) != 0) {
            rose_json_decref(out);
            return NULL;
        }
    }
    return rose_json_pack("{s:s,s:o}", "type", "or", "elements", out);
}

static rose_json *tag_format(rose_json *tag)
{
    rose_json *format = rose_json_get(tag, "format");
    rose_json *out = rose_json_incref(format != NULL ? format : tag);
    rose_json_decref(tag);
    return out;
}

/* What a field for structured output asks for, as a format within a tag. */
static rose_json *structure_format(const rose_api_structure *s)
{
    switch (s->kind) {
    case ROSE_GRAMMAR_JSON_OBJECT:
        break;
    case ROSE_GRAMMAR_JSON_SCHEMA:
        return rose_json_pack("{s:s,s:o,s:b}", "type", "json_schema", "json_schema",
                              value_of(s->value), "any_order", !s->schema_order);
    case ROSE_GRAMMAR_REGEX:
        return rose_json_pack("{s:s,s:O}", "type", "regex", "pattern", s->value);
    case ROSE_GRAMMAR_EBNF:
        return rose_json_pack("{s:s,s:O}", "type", "grammar", "grammar", s->value);
    case ROSE_GRAMMAR_CHOICE:
        return any_of_texts(s->value);
    case ROSE_GRAMMAR_TAG:
        return tag_format(value_of(s->value));
    }
    return rose_json_pack("{s:s,s:{s:s},s:b}", "type", "json_schema", "json_schema", "type",
                          "object", "any_order", 1);
}

/* Reasoning, and after it what `body` allows. Takes body. */
static rose_json *after_reasoning(const rose_api_reading *r, rose_reasoning_place place,
                                  rose_json *body)
{
    if (place == ROSE_REASONING_AFTER || body == NULL) return body;
    const bool in = place == ROSE_REASONING_IN;
    rose_json *block = rose_json_pack(
        "{s:s,s:[{s:s,s:s,s:{s:s},s:s},{s:s,s:s}]}", "type", "sequence", "elements", "type", "tag",
        "begin", in ? "" : rose_reasoning_open(r->reasoning), "content", "type", "any_text", "end",
        rose_reasoning_close(r->reasoning), "type", "regex", "pattern", "[ \\t\\r\\n]{0,4}");
    if (!in) block = rose_json_pack("{s:s,s:o}", "type", "optional", "content", block);
    return rose_json_pack("{s:s,s:[o,o]}", "type", "sequence", "elements", block, body);
}

/* The text that the request demands, as one tag; NULL: no memory. */
static rose_json *make_format(const rose_api_reading *r, const rose_api_params *p,
                              rose_reasoning_place place)
{
    rose_json *out;
    if (forced(p))
        out = only_calls(r, p);
    else if (!p->structure.any)
        out = text_with_calls(r, p);
    else if (r->calls == ROSE_CALLS_NONE)
        out = structure_format(&p->structure);
    else
        out = rose_json_pack("{s:s,s:[o,o]}", "type", "or", "elements", only_calls(r, p),
                             structure_format(&p->structure));
    return after_reasoning(r, place, out);
}

/* ---- a request ---- */

/* Strict functions are kept to their schema only where a tag describes the format of calls. */
static bool enforce_strict(const rose_api_reading *r, const rose_api_params *p, bool special,
                           rose_api_ignored *g, bool *strict, rose_api_error *err)
{
    const bool tagged = r->calls == ROSE_CALLS_HERMES || r->calls == ROSE_CALLS_LLAMA3 ||
                        r->calls == ROSE_CALLS_QWEN3_XML;
    const bool can = r->calls == ROSE_CALLS_LIST || (tagged && !special);
    *strict = false;
    for (size_t i = 0; !forced(p) && r->calls != ROSE_CALLS_NONE && i < rose_json_count(p->tools);
         i++) {
        char name[64];
        if (!is_strict(p->tools, i)) continue;
        *strict = can;
        if (can) return true;
        snprintf(name, sizeof name, "tools[%zu].function.strict", i);
        if (!rose_api_unknown_field(g, name, err)) return false;
    }
    return true;
}

/* Decides how calls are read. */
static bool take_tools(rose_api_job *j, const rose_api_params *p, rose_api_ignored *g, bool *strict)
{
    rose_api_reading *r = &j->reading;
    if (p->tools == NULL || p->tools_off) r->calls = ROSE_CALLS_NONE;
    if (p->tools != NULL && !p->tools_off && r->calls == ROSE_CALLS_NONE)
        return rose_api_fail(&j->err, 400, "unsupported_field", "tools",
                             "field 'tools' is served with the 'tool_choice' \"none\" alone: the "
                             "server was started with --tool-call-parser %s, with which this chat "
                             "template has no calls; \"auto\" finds a format for every template",
                             j->api->o.tool_call_parser);
    r->short_ids = r->calls == ROSE_CALLS_MISTRAL;
    if ((forced(p) || p->structure.any) &&
        (r->calls == ROSE_CALLS_PYTHONIC || r->calls == ROSE_CALLS_MISTRAL))
        r->calls = ROSE_CALLS_LIST;
    const bool special = note_marks(r, j->api->tok);
    if (r->calls != ROSE_CALLS_NONE) r->tools = rose_json_incref(p->tools);
    return enforce_strict(r, p, special, g, strict, &j->err);
}

/* Whether the request demands something of the text that reasoning or calls are a part of. */
static bool needs_tag(const rose_api_reading *r, const rose_api_params *p, bool strict)
{
    return forced(p) || strict ||
           (p->structure.any &&
            (r->calls != ROSE_CALLS_NONE || r->reasoning != ROSE_REASONING_NONE));
}

/* A format that binds the answer and not the calls. */
static bool is_answer_format(const rose_api_structure *s)
{
    return s->any && s->kind != ROSE_GRAMMAR_TAG && strcmp(s->param, "response_format") == 0;
}

bool rose_api_tools_load(rose_api_job *j, rose_api_params *p, const rose_api_prompt_ctx *c,
                         rose_template_text *text, rose_json **tag)
{
    rose_api_reading *r = &j->reading;
    rose_reasoning_place place = ROSE_REASONING_AFTER;
    bool strict = false;
    uint32_t id;
    rose_json_decref(r->tools); /* of a run that was declined */
    rose_json_decref(r->tool_names);
    *r = (rose_api_reading){.hide_reasoning = !p->include_reasoning,
                            .one_call = !p->parallel_calls || p->tool_name != NULL || p->functions,
                            .functions = p->functions,
                            .tool_names = rose_json_incref(p->tool_names)};
    if (j->kind != ROSE_API_CHAT) return true;
    if (forced(p) && is_answer_format(&p->structure))
        p->structure = (rose_api_structure){0}; /* a reply of calls has no answer */
    if (forced(p) && p->structure.any)
        return rose_api_fail(&j->err, 400, NULL, "tool_choice",
                             "fields 'tool_choice' and '%s' exclude each other: a text can obey "
                             "only one",
                             p->structure.param);
    find_formats(r, c, p);
    if (!take_tools(j, p, c->ignored, &strict)) return false;
    if (!needs_tag(r, p, strict)) return true;
    if (!check_structure(&p->structure, &j->err)) return false;
    /* A grammar allows no special token, so it cannot let the model end such reasoning. */
    if (is_special(j->api->tok, rose_reasoning_close(r->reasoning), &id))
        r->reasoning = ROSE_REASONING_NONE;
    if (r->reasoning != ROSE_REASONING_NONE) {
        if (!rose_api_messages_render(text, p, c, &j->err)) return false;
        place = rose_reasoning_find(r->reasoning, text->bytes, text->len);
    }
    if ((*tag = make_format(r, p, place)) == NULL) return rose_api_fail_nomem(&j->err);
    if (!p->structure.any) snprintf(p->structure.param, sizeof p->structure.param, "tools");
    p->structure.any = p->structure.schema_order = true;
    p->structure.kind = ROSE_GRAMMAR_TAG;
    p->structure.value = *tag;
    return true;
}

void rose_api_tools_prompt(rose_api_job *j, const rose_template_text *text)
{
    rose_api_reading *r = &j->reading;
    r->in_reasoning =
        rose_reasoning_find(r->reasoning, text->bytes, text->len) == ROSE_REASONING_IN;
}

/* ---- a choice ---- */

/* The id of a call follows from that of the reply. */
static void make_id(char id[ROSE_API_CALL_ID], const rose_api_choice *c, uint32_t call)
{
    const uint64_t reply = strtoull(c->job->id + strlen(c->job->dialect->id), NULL, 16);
    const uint64_t x =
        rose_mix64(reply + 0x9E3779B97F4A7C15u * (((uint64_t)c->index << 32 | call) + 1));
    if (c->job->reading.short_ids)
        rose_chat_short_id(id, x);
    else
        snprintf(id, ROSE_API_CALL_ID, "call_%016llx", (unsigned long long)x);
}

static void take_part(void *arg, const rose_part *part)
{
    rose_api_choice *c = arg;
    char id[ROSE_API_CALL_ID];
    bool ok = true;
    switch (part->kind) {
    case ROSE_PART_TEXT:
        ok = rose_api_part_add(c, ROSE_API_PART_TEXT, 0, part->bytes, part->len);
        break;
    case ROSE_PART_REASONING:
        c->n_reasoning = c->n_tokens;
        if (c->job->reading.hide_reasoning)
            rose_api_extra_own(c, NULL);
        else
            ok = rose_api_part_add(c, ROSE_API_PART_REASONING, 0, part->bytes, part->len);
        break;
    case ROSE_PART_CALL:
        make_id(id, c, part->call);
        ok = rose_api_part_call(c, part->call, id, part->bytes, part->len);
        break;
    case ROSE_PART_ARGS:
        ok = rose_api_part_add(c, ROSE_API_PART_ARGS, part->call, part->bytes, part->len);
    }
    if (!ok) c->part_lost = true;
}

bool rose_api_calls_create(rose_api_choice *c)
{
    const rose_api_reading *r = &c->job->reading;
    const rose_calls_opts o = {.format = r->calls,
                               .reasoning = r->reasoning,
                               .in_reasoning = r->in_reasoning,
                               .one_call = r->one_call,
                               .tools = r->tools,
                               .sink = take_part,
                               .arg = c};
    if (r->calls == ROSE_CALLS_NONE && r->reasoning == ROSE_REASONING_NONE) return true;
    return rose_calls_create(&c->calls, &o, NULL) == ROSE_OK;
}

bool rose_api_calls_push(rose_api_choice *c, const char *text, size_t len)
{
    const bool before = rose_calls_reasons(c->calls);
    const bool ok = rose_calls_push(c->calls, text, len) == ROSE_OK && !c->part_lost;
    if (before || rose_calls_reasons(c->calls)) c->n_reasoning = c->n_tokens;
    return ok;
}

bool rose_api_calls_finish(rose_api_choice *c)
{
    const rose_api_reading *r = &c->job->reading;
    if (c->calls == NULL) return true;
    const bool cut = c->finish == NULL || strcmp(c->finish, "stop") != 0;
    const bool ok = rose_calls_finish(c->calls, cut) == ROSE_OK && !c->part_lost;
    if (rose_calls_count(c->calls) > 0 && c->finish != NULL && strcmp(c->finish, "stop") == 0)
        c->finish = r->functions ? "function_call" : "tool_calls";
    rose_calls_destroy(c->calls);
    c->calls = NULL;
    return ok;
}
