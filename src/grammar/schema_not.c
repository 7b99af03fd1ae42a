/* grammar/schema_not.c - what `not`, `if` and `oneOf` need: the negation of a schema, and whether
 * two schemas can hold for one value. A negation is a list of schemas of which one must hold: one
 * for each keyword that may fail. Three keywords without a name in JSON Schema carry what cannot be
 * said otherwise: "\1not" (values that are excluded), "\1pattern" (a pattern that must fail) and
 * "\1some" (a schema that at least one item satisfies). */
#include <string.h>

#include "grammar/schema_internal.h"

static void add_made(gr_build *b, json_t *list, json_t *made)
{
    if (made == NULL || json_array_append_new(list, made) != 0)
        rose_gr_fail(b, ROSE_E_NOMEM, "out of memory");
}

static json_t *other_types(gr_build *b, unsigned types)
{
    static const struct {
        const char *name;
        unsigned bits;
    } all[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOL}, {"integer", TYPE_INTEGER},
               {"string", TYPE_STRING}, {"array", TYPE_ARRAY},  {"object", TYPE_OBJECT}};
    json_t *list = rose_gr_keep(b, json_array());
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!(types & all[i].bits)) add_made(b, list, json_string(all[i].name));
    if (!(types & TYPE_FRACTION)) add_made(b, list, json_string("\1fraction"));
    return list;
}

/* The keywords whose failure is another keyword with a changed number. */
static bool negate_number(gr_build *b, json_t *out, const char *key, const json_t *x)
{
    static const struct {
        const char *key, *other, *type;
        int change;
    } table[] = {{"minimum", "exclusiveMaximum", "number", 0},
                 {"maximum", "exclusiveMinimum", "number", 0},
                 {"exclusiveMinimum", "maximum", "number", 0},
                 {"exclusiveMaximum", "minimum", "number", 0},
                 {"minLength", "maxLength", "string", -1},
                 {"maxLength", "minLength", "string", 1},
                 {"minItems", "maxItems", "array", -1},
                 {"maxItems", "minItems", "array", 1},
                 {"minProperties", "maxProperties", "object", -1},
                 {"maxProperties", "minProperties", "object", 1}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(key, table[i].key) != 0 || !json_is_number(x)) continue;
        json_int_t n = (json_int_t)json_number_value(x) + table[i].change;
        if (table[i].change == 0)
            add_made(b, out, json_pack("{s:s, s:O}", "type", table[i].type, table[i].other, x));
        else if (n >= 0)
            add_made(b, out, json_pack("{s:s, s:I}", "type", table[i].type, table[i].other, n));
        return true;
    }
    return false;
}

static bool demands_nothing(const json_t *schema)
{
    return json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0);
}

static void negate_properties(gr_build *b, json_t *out, json_t *x)
{
    const char *key;
    json_t *value;
    json_object_foreach(x, key, value)
    {
        if (demands_nothing(value)) continue;
        add_made(b, out,
                 json_pack("{s:s, s:[s], s:{s:{s:O}}}", "type", "object", "required", key,
                           "properties", key, "not", value));
    }
}

static bool negate_format(gr_build *b, json_t *out, const json_t *x)
{
    bool known = false;
    uint32_t max;
    const char *regex = json_is_string(x) ? rose_gr_format(json_string_value(x),
                                                           rose_gr_schema_draft(b), &known, &max)
                                          : NULL;
    rose_buf text = {0};
    if (regex == NULL) return !known; /* an unknown format demands nothing */
    bool ok = rose_buf_addf(&text, "^(?:%s)$", regex) == ROSE_OK;
    json_t *made =
        ok ? json_pack("{s:s, s:s#}", "type", "string", "\1pattern", text.data, (int)text.len)
           : NULL;
    rose_buf_free(&text);
    add_made(b, out, made);
    return true;
}

/* Adds the ways in which one keyword fails; false: it has no negation here. */
static bool negate_keyword(gr_build *b, json_t *out, json_t *schema, const char *key, json_t *x)
{
    size_t i;
    json_t *y, *all;
    if (negate_number(b, out, key, x)) return true;
    if (strcmp(key, "required") == 0) {
        json_array_foreach(x, i, y) if (json_is_string(y)) add_made(
            b, out,
            json_pack("{s:s, s:{s:b}}", "type", "object", "properties", json_string_value(y), 0));
    } else if (strcmp(key, "enum") == 0) {
        add_made(b, out, json_pack("{s:O}", "\1not", x));
    } else if (strcmp(key, "const") == 0) {
        add_made(b, out, json_pack("{s:[O]}", "\1not", x));
    } else if (strcmp(key, "pattern") == 0) {
        add_made(b, out, json_pack("{s:s, s:O}", "type", "string", "\1pattern", x));
    } else if (strcmp(key, "format") == 0) {
        return negate_format(b, out, x);
    } else if (strcmp(key, "properties") == 0) {
        negate_properties(b, out, x);
    } else if (strcmp(key, "items") == 0 && !json_is_array(x) &&
               json_object_get(schema, "prefixItems") == NULL) {
        if (!demands_nothing(x))
            add_made(b, out, json_pack("{s:s, s:{s:O}}", "type", "array", "\1some", "not", x));
    } else if (strcmp(key, "not") == 0) {
        add_made(b, out, json_incref(x));
    } else if (strcmp(key, "allOf") == 0) {
        json_array_foreach(x, i, y) add_made(b, out, json_pack("{s:O}", "not", y));
    } else if (strcmp(key, "anyOf") == 0) {
        all = json_array();
        add_made(b, out, json_pack("{s:o}", "allOf", all));
        json_array_foreach(x, i, y) add_made(b, all, json_pack("{s:O}", "not", y));
    } else if (!demands_nothing(x)) {
        static const char *const others[] = {"oneOf",
                                             "items",
                                             "prefixItems",
                                             "contains",
                                             "multipleOf",
                                             "additionalProperties",
                                             "patternProperties",
                                             "dependencies",
                                             "uniqueItems",
                                             "propertyNames",
                                             "if",
                                             "$ref",
                                             "additionalItems",
                                             "dependentRequired",
                                             "dependentSchemas"};
        for (i = 0; i < sizeof others / sizeof others[0]; i++)
            if (strcmp(key, others[i]) == 0) return false;
    }
    return true;
}

json_t *rose_gr_negated(gr_build *b, json_t *schema)
{
    const char *key;
    json_t *x, *s = rose_gr_schema_deref(b, schema), *out;
    void **known = rose_gr_memo(b, s, MEMO_NOT);
    if (*known != NULL) return *known;
    *known = out = rose_gr_keep(b, json_array());
    rose_gr_enter(b);
    if (json_is_false(s)) add_made(b, out, json_true());
    json_object_foreach(s, key, x)
    {
        if (strcmp(key, "type") == 0) {
            json_t *types = other_types(b, rose_gr_schema_types(s));
            add_made(b, out, json_pack("{s:O}", "type", types));
        } else if (!negate_keyword(b, out, s, key, x)) {
            rose_gr_schema_refuse(b, s, key, ROSE_E_UNSUPPORTED,
                                  "not supported inside of `not` or `if`");
        }
    }
    if (json_array_size(out) == 0) add_made(b, out, json_false()); /* not {} */
    rose_gr_leave(b);
    return out;
}

/* ---- disjoint schemas ---- */

/* The values that a schema lists; NULL: it does not. */
static json_t *values_of(gr_build *b, json_t *s)
{
    json_t *one = rose_gr_schema_draft(b) >= 6 ? json_object_get(s, "const") : NULL;
    if (one != NULL) return rose_gr_keep(b, json_pack("[O]", one));
    return json_object_get(s, "enum");
}

static bool lists_apart(gr_build *b, const json_t *x, const json_t *y)
{
    size_t i, k;
    json_t *p, *q;
    json_array_foreach(x, i, p) json_array_foreach(y, k, q)
    {
        rose_gr_work(b, 0);
        if (rose_gr_json_same(p, q)) return false;
    }
    return true;
}

/* One of these required properties is not allowed by x, or its schemas in x and y are disjoint. */
static bool property_apart(gr_build *b, json_t *x, json_t *y, const json_t *required,
                           unsigned depth)
{
    size_t i;
    json_t *name;
    json_array_foreach(required, i, name)
    {
        const char *t = json_string_value(name);
        json_t *p = t == NULL ? NULL : json_object_get(json_object_get(x, "properties"), t);
        json_t *q = t == NULL ? NULL : json_object_get(json_object_get(y, "properties"), t);
        if (t == NULL) continue;
        if (p == NULL && json_is_false(json_object_get(x, "additionalProperties")) &&
            json_object_get(x, "patternProperties") == NULL)
            return true;
        if (p != NULL && json_is_false(p)) return true;
        if (p != NULL && q != NULL && rose_gr_schema_disjoint(b, p, q, TYPE_ALL, NULL, depth))
            return true;
    }
    return false;
}

static double at_least(const json_t *s, bool *strict)
{
    const json_t *x = json_object_get(s, "exclusiveMinimum"), *m = json_object_get(s, "minimum");
    *strict = json_is_true(x) || json_is_number(x);
    return json_is_number(x)   ? json_number_value(x)
           : json_is_number(m) ? json_number_value(m)
                               : -1e308;
}

static double at_most(const json_t *s, bool *strict)
{
    const json_t *x = json_object_get(s, "exclusiveMaximum"), *m = json_object_get(s, "maximum");
    *strict = json_is_true(x) || json_is_number(x);
    return json_is_number(x)   ? json_number_value(x)
           : json_is_number(m) ? json_number_value(m)
                               : 1e308;
}

static bool numbers_apart(const json_t *x, const json_t *y)
{
    bool lo, hi;
    double low = at_least(y, &lo), high = at_most(x, &hi);
    return high < low || ((lo || hi) && !(high > low));
}

static bool strings_apart(gr_build *b, json_t *x, json_t *y)
{
    gr_conj p = {.v = &x, .n = 1}, q = {.v = &y, .n = 1};
    gr_dfa *d = rose_gr_string_dfa(b, &p), *e = rose_gr_string_dfa(b, &q);
    return d != NULL && e != NULL && rose_gr_dfa_empty(rose_gr_dfa_combine(b, d, e, DFA_AND));
}

static bool arrays_apart(gr_build *b, json_t *x, json_t *y, unsigned depth)
{
    json_t *p = json_object_get(x, "items"), *q = json_object_get(y, "items");
    if (rose_gr_schema_count(b, x, "maxItems", GR_INF) < rose_gr_schema_count(b, y, "minItems", 0))
        return true;
    if (!json_is_object(p) || !json_is_object(q)) return false;
    if (rose_gr_schema_count(b, x, "minItems", 0) == 0 &&
        rose_gr_schema_count(b, y, "minItems", 0) == 0)
        return false; /* the empty array */
    return rose_gr_schema_disjoint(b, p, q, TYPE_ALL, NULL, depth);
}

/* A choice is disjoint from y if each of its schemas is; allOf if one of them is. */
static bool parts_apart(gr_build *b, json_t *x, json_t *y, unsigned types, const json_t *required,
                        unsigned depth)
{
    static const char *const keys[] = {"anyOf", "oneOf"};
    size_t i;
    json_t *s;
    for (size_t k = 0; k < 2; k++) {
        json_t *list = json_object_get(x, keys[k]);
        bool all = json_array_size(list) > 0;
        json_array_foreach(list, i, s) all =
            all && rose_gr_schema_disjoint(b, s, y, types, required, depth);
        if (all) return true;
    }
    json_array_foreach(json_object_get(x, "allOf"), i, s)
    {
        if (rose_gr_schema_disjoint(b, s, y, types, required, depth)) return true;
    }
    return false;
}

/* Both have a type, and all values of these types that both allow are told apart. */
bool rose_gr_schema_disjoint(gr_build *b, json_t *x, json_t *y, unsigned types,
                             const json_t *required, unsigned depth)
{
    if (depth-- == 0) return false;
    x = rose_gr_schema_deref(b, x);
    y = rose_gr_schema_deref(b, y);
    rose_gr_work(b, 8);
    if (json_is_false(x) || json_is_false(y)) return true;
    if (!json_is_object(x) || !json_is_object(y)) return false;
    types &= rose_gr_schema_types(x) & rose_gr_schema_types(y);
    const json_t *p = values_of(b, x), *q = values_of(b, y);
    if (p != NULL && q != NULL && lists_apart(b, p, q)) return true;
    if (parts_apart(b, x, y, types, required, depth) ||
        parts_apart(b, y, x, types, required, depth))
        return true;
    if (types & (TYPE_NULL | TYPE_BOOL)) return false;
    if ((types & (TYPE_INTEGER | TYPE_FRACTION)) && !numbers_apart(x, y) && !numbers_apart(y, x))
        return false;
    if ((types & TYPE_STRING) && !strings_apart(b, x, y)) return false;
    if ((types & TYPE_ARRAY) && !arrays_apart(b, x, y, depth) && !arrays_apart(b, y, x, depth))
        return false;
    return !(types & TYPE_OBJECT) ||
           property_apart(b, x, y, json_object_get(y, "required"), depth) ||
           property_apart(b, y, x, json_object_get(x, "required"), depth) ||
           property_apart(b, x, y, required, depth) || property_apart(b, y, x, required, depth);
}
