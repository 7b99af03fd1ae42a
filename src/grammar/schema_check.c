/* grammar/schema_check.c - the form of every keyword that this room reads, before anything is
 * built: a keyword that is malformed would otherwise demand nothing, or be noticed only where it is
 * used. The check walks over all schemas, those in `$defs` included. Keywords that a draft does
 * not know, and annotations such as `title`, may have any value. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "grammar/schema_internal.h"

#define A_SCHEMA "a schema must be an object or boolean"

typedef enum form {
    FORM_BOOLEAN,
    FORM_COUNT,
    FORM_NUMBER,
    FORM_LIMIT, /* a number; in draft 4 a boolean */
    FORM_STEP,  /* a number above 0 */
    FORM_STRING,
    FORM_STRINGS,
    FORM_LIST,
    FORM_TYPE,
    FORM_SCHEMA,
    FORM_SCHEMAS,
    FORM_ITEMS, /* a schema; before 2020-12 also a list of schemas */
    FORM_SCHEMA_MAP,
    FORM_STRINGS_MAP,
    FORM_DEPENDENCIES /* of each name: a list of strings, or a schema */
} form;

static const struct {
    const char *name;
    form form;
    int since, until; /* drafts */
} keywords[] = {
    {"$schema", FORM_STRING, 0, 9999},
    {"$ref", FORM_STRING, 0, 9999},
    {"id", FORM_STRING, 0, 4},
    {"$id", FORM_STRING, 6, 9999},
    {"$anchor", FORM_STRING, 2019, 9999},
    {"$dynamicRef", FORM_STRING, 2020, 9999},
    {"$dynamicAnchor", FORM_STRING, 2020, 9999},
    {"definitions", FORM_SCHEMA_MAP, 0, 9999},
    {"$defs", FORM_SCHEMA_MAP, 0, 9999},
    {"type", FORM_TYPE, 0, 9999},
    {"nullable", FORM_BOOLEAN, 0, 9999},
    {"enum", FORM_LIST, 0, 9999},
    {"allOf", FORM_SCHEMAS, 0, 9999},
    {"anyOf", FORM_SCHEMAS, 0, 9999},
    {"oneOf", FORM_SCHEMAS, 0, 9999},
    {"not", FORM_SCHEMA, 0, 9999},
    {"if", FORM_SCHEMA, 7, 9999},
    {"then", FORM_SCHEMA, 7, 9999},
    {"else", FORM_SCHEMA, 7, 9999},
    {"properties", FORM_SCHEMA_MAP, 0, 9999},
    {"patternProperties", FORM_SCHEMA_MAP, 0, 9999},
    {"additionalProperties", FORM_SCHEMA, 0, 9999},
    {"propertyNames", FORM_SCHEMA, 6, 9999},
    {"unevaluatedProperties", FORM_SCHEMA, 2019, 9999},
    {"required", FORM_STRINGS, 0, 9999},
    {"dependencies", FORM_DEPENDENCIES, 0, 9999},
    {"dependentRequired", FORM_STRINGS_MAP, 2019, 9999},
    {"dependentSchemas", FORM_SCHEMA_MAP, 2019, 9999},
    {"minProperties", FORM_COUNT, 0, 9999},
    {"maxProperties", FORM_COUNT, 0, 9999},
    {"items", FORM_ITEMS, 0, 9999},
    {"additionalItems", FORM_SCHEMA, 0, 2019},
    {"prefixItems", FORM_SCHEMAS, 2020, 9999},
    {"contains", FORM_SCHEMA, 6, 9999},
    {"minContains", FORM_COUNT, 2019, 9999},
    {"maxContains", FORM_COUNT, 2019, 9999},
    {"unevaluatedItems", FORM_SCHEMA, 2019, 9999},
    {"uniqueItems", FORM_BOOLEAN, 0, 9999},
    {"minItems", FORM_COUNT, 0, 9999},
    {"maxItems", FORM_COUNT, 0, 9999},
    {"minLength", FORM_COUNT, 0, 9999},
    {"maxLength", FORM_COUNT, 0, 9999},
    {"pattern", FORM_STRING, 0, 9999},
    {"format", FORM_STRING, 0, 9999},
    {"minimum", FORM_NUMBER, 0, 9999},
    {"maximum", FORM_NUMBER, 0, 9999},
    {"exclusiveMinimum", FORM_LIMIT, 0, 9999},
    {"exclusiveMaximum", FORM_LIMIT, 0, 9999},
    {"multipleOf", FORM_STEP, 0, 9999},
};

static bool is_schema(const rose_json *x)
{
    return rose_json_is_object(x) || rose_json_is_boolean(x);
}

static bool all_of(const rose_json *list, bool (*fits)(const rose_json *))
{
    for (size_t i = 0; i < rose_json_count(list); i++)
        if (!fits(rose_json_at(list, i))) return false;
    return rose_json_is_array(list);
}

static bool is_strings(const rose_json *x)
{
    return all_of(x, rose_json_is_string);
}

static bool is_schemas(const rose_json *x)
{
    return rose_json_count(x) > 0 && all_of(x, is_schema);
}

static bool is_items(const rose_json *x)
{
    return is_schema(x) || all_of(x, is_schema);
}

static bool is_dependency(const rose_json *x)
{
    return is_schema(x) || is_strings(x);
}

static bool is_type_name(const rose_json *x)
{
    return rose_json_is_string(x) && rose_gr_type_bits(rose_json_text(x)) != 0 &&
           rose_json_text(x)[0] != '\1';
}

static bool is_type(const rose_json *x)
{
    return is_type_name(x) || (rose_json_count(x) > 0 && all_of(x, is_type_name));
}

static bool is_count(const rose_json *x)
{
    const double v = rose_json_number_value(x);
    return rose_json_is_number(x) && v >= 0 && !(floor(v) < v);
}

/* In draft 4 a boolean, and in any draft: many schemas do not say theirs. */
static bool is_limit(const rose_json *x)
{
    return rose_json_is_number(x) || rose_json_is_boolean(x);
}

static bool is_step(const rose_json *x)
{
    return rose_json_number_value(x) > 0;
}

/* What a value must be; of a map also what each value in it must be. */
static const struct {
    bool (*fits)(const rose_json *);
    const char *wanted;
    bool (*fits_within)(const rose_json *); /* NULL: no map */
    const char *wanted_within;
} forms[] = {
    [FORM_BOOLEAN] = {rose_json_is_boolean, "must be true or false", NULL, NULL},
    [FORM_COUNT] = {is_count, "must be a whole number from 0", NULL, NULL},
    [FORM_NUMBER] = {rose_json_is_number, "must be a number", NULL, NULL},
    [FORM_LIMIT] = {is_limit, "must be a number", NULL, NULL},
    [FORM_STEP] = {is_step, "must be a number above 0", NULL, NULL},
    [FORM_STRING] = {rose_json_is_string, "must be a string", NULL, NULL},
    [FORM_STRINGS] = {is_strings, "must be a list of strings", NULL, NULL},
    [FORM_LIST] = {rose_json_is_array, "must be a list", NULL, NULL},
    [FORM_TYPE] = {is_type,
                   "no known type: it must be one of null, boolean, integer, number, string, "
                   "array and object, or a list of them",
                   NULL, NULL},
    [FORM_SCHEMA] = {is_schema, A_SCHEMA, NULL, NULL},
    [FORM_SCHEMAS] = {is_schemas, "must be a list of at least one schema", NULL, NULL},
    [FORM_ITEMS] = {is_items, "must be a schema or a list of schemas", NULL, NULL},
    [FORM_SCHEMA_MAP] = {rose_json_is_object, "must be an object whose values are schemas",
                         is_schema, A_SCHEMA},
    [FORM_STRINGS_MAP] = {rose_json_is_object,
                          "must be an object whose values are lists of strings", is_strings,
                          "must be a list of strings"},
    [FORM_DEPENDENCIES] = {rose_json_is_object,
                           "must be an object whose values are schemas or lists of strings",
                           is_dependency, "must be a list of strings or a schema"},
};

/* Refuses the keyword `name`, or the value in it that has not its form. */
static void check_form(gr_build *b, rose_json *schema, const char *name, const rose_json *x, form f)
{
    char where[128];
    const char *key;
    rose_json *v;
    if (!forms[f].fits(x)) rose_gr_schema_refuse(b, schema, name, ROSE_E_INVAL, forms[f].wanted);
    if (forms[f].fits_within == NULL) return;
    rose_json_each (x, key, v) {
        if (forms[f].fits_within(v)) continue;
        snprintf(where, sizeof where, "%s/%s", name, key);
        rose_gr_schema_refuse(b, schema, where, ROSE_E_INVAL, forms[f].wanted_within);
    }
}

/* The values of an object or a list that are schemas. */
static void check_values(gr_build *b, rose_json *in)
{
    const char *key;
    size_t i;
    rose_json *x;
    rose_json_each (in, key, x) {
        if (rose_json_is_object(x)) rose_gr_schema_check(b, x);
    }
    rose_json_each_item (in, i, x) {
        if (rose_json_is_object(x)) rose_gr_schema_check(b, x);
    }
}

void rose_gr_schema_check(gr_build *b, rose_json *schema)
{
    const int draft = rose_gr_schema_draft(b);
    if (!is_schema(schema)) rose_gr_schema_refuse(b, schema, "", ROSE_E_INVAL, A_SCHEMA);
    rose_gr_enter(b);
    rose_gr_work(b, 60); /* about fifty look-ups */
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
        const form f = keywords[i].form;
        rose_json *x = rose_json_get(schema, keywords[i].name);
        if (x == NULL || draft < keywords[i].since || draft > keywords[i].until) continue;
        check_form(b, schema, keywords[i].name, x, f);
        if (f == FORM_SCHEMA || (f == FORM_ITEMS && rose_json_is_object(x))) {
            if (rose_json_is_object(x)) rose_gr_schema_check(b, x);
        } else if (f == FORM_SCHEMAS || f == FORM_ITEMS || f == FORM_SCHEMA_MAP ||
                   f == FORM_DEPENDENCIES) {
            check_values(b, x);
        }
    }
    rose_gr_leave(b);
}
