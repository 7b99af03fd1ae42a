/* grammar/schema_not.c - what `not`, `if` and `oneOf` need: the negation of a schema, and whether
 * two schemas can hold for one value. A negation is a list of schemas of which one must hold: one
 * for each keyword that may fail. Three keywords without a name in JSON Schema carry what cannot be
 * said otherwise: "\1not" (values that are excluded), "\1pattern" (a pattern that must fail) and
 * "\1some" (a schema that at least one item satisfies). */
#include <math.h>
#include <string.h>

#include "grammar/schema_internal.h"

static rose_json *other_types(gr_build *b, unsigned types)
{
    static const struct {
        const char *name;
        unsigned bits;
    } all[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOL}, {"integer", TYPE_INTEGER},
               {"string", TYPE_STRING}, {"array", TYPE_ARRAY},  {"object", TYPE_OBJECT}};
    rose_json *list = rose_gr_keep(b, rose_json_array());
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!(types & all[i].bits)) rose_gr_json_add(b, list, rose_json_string(all[i].name));
    if (!(types & TYPE_FRACTION)) rose_gr_json_add(b, list, rose_json_string("\1fraction"));
    return list;
}

/* The keywords whose failure is another keyword with a changed number. */
static bool negate_number(gr_build *b, rose_json *out, const char *key, const rose_json *x)
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
        if (strcmp(key, table[i].key) != 0 || !rose_json_is_number(x)) continue;
        double n = rose_json_number_value(x) + table[i].change;
        if (n > 9e15) n = 9e15; /* as good as any number beyond GR_MAX_COUNT */
        if (table[i].change == 0)
            rose_gr_json_add(
                b, out, rose_json_pack("{s:s, s:O}", "type", table[i].type, table[i].other, x));
        else if (n >= 0)
            rose_gr_json_add(
                b, out,
                rose_json_pack("{s:s, s:I}", "type", table[i].type, table[i].other, (int64_t)n));
        return true;
    }
    return false;
}

static bool demands_nothing(const rose_json *schema)
{
    return rose_json_is_true(schema) ||
           (rose_json_is_object(schema) && rose_json_size(schema) == 0);
}

static void negate_properties(gr_build *b, rose_json *out, rose_json *x)
{
    const char *key;
    rose_json *value;
    rose_json_each (x, key, value) {
        if (demands_nothing(value)) continue;
        rose_gr_work(b, 32);
        rose_gr_json_add(b, out,
                         rose_json_pack("{s:s, s:[s], s:{s:{s:O}}}", "type", "object", "required",
                                        key, "properties", key, "not", value));
    }
}

static bool negate_format(gr_build *b, rose_json *out, const rose_json *x)
{
    bool known = false;
    uint32_t max;
    const char *regex =
        rose_json_is_string(x)
            ? rose_gr_format(rose_json_text(x), rose_gr_schema_draft(b), &known, &max)
            : NULL;
    rose_buf text = {0};
    if (regex == NULL) return !known; /* an unknown format demands nothing */
    bool ok = rose_buf_addf(&text, "^(?:%s)$", regex) == ROSE_OK;
    rose_json *made =
        ok ? rose_json_pack("{s:s, s:s#}", "type", "string", "\1pattern", text.data, (int)text.len)
           : NULL;
    rose_buf_free(&text);
    rose_gr_json_add(b, out, made);
    return true;
}

/* Adds the ways in which one keyword fails; false: it has no negation here. */
static bool negate_keyword(gr_build *b, rose_json *out, rose_json *schema, const char *key,
                           rose_json *x)
{
    size_t i;
    rose_json *y, *all;
    if (negate_number(b, out, key, x)) return true;
    if (strcmp(key, "required") == 0) {
        rose_json_each_item (x, i, y)
            rose_gr_json_add(b, out,
                             rose_json_pack("{s:s, s:{s:b}}", "type", "object", "properties",
                                            rose_json_text(y), 0));
    } else if (strcmp(key, "enum") == 0) {
        rose_gr_json_add(b, out, rose_json_pack("{s:O}", "\1not", x));
    } else if (strcmp(key, "const") == 0) {
        rose_gr_json_add(b, out, rose_json_pack("{s:[O]}", "\1not", x));
    } else if (strcmp(key, "pattern") == 0) {
        rose_gr_json_add(b, out, rose_json_pack("{s:s, s:O}", "type", "string", "\1pattern", x));
    } else if (strcmp(key, "format") == 0) {
        return negate_format(b, out, x);
    } else if (strcmp(key, "properties") == 0) {
        negate_properties(b, out, x);
    } else if (strcmp(key, "items") == 0 && !rose_json_is_array(x) &&
               rose_json_get(schema, "prefixItems") == NULL) {
        if (!demands_nothing(x))
            rose_gr_json_add(b, out,
                             rose_json_pack("{s:s, s:{s:O}}", "type", "array", "\1some", "not", x));
    } else if (strcmp(key, "not") == 0) {
        rose_gr_json_add(b, out, rose_json_incref(x));
    } else if (strcmp(key, "allOf") == 0) {
        rose_json_each_item (x, i, y)
            rose_gr_json_add(b, out, rose_json_pack("{s:O}", "not", y));
    } else if (strcmp(key, "anyOf") == 0) {
        all = rose_json_array();
        rose_gr_json_add(b, out, rose_json_pack("{s:o}", "allOf", all));
        rose_json_each_item (x, i, y)
            rose_gr_json_add(b, all, rose_json_pack("{s:O}", "not", y));
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

rose_json *rose_gr_negated(gr_build *b, rose_json *schema)
{
    const char *key;
    rose_json *x, *s = rose_gr_schema_deref(b, schema), *out;
    void **known = rose_gr_memo(b, s, MEMO_NOT);
    if (*known != NULL) return *known;
    *known = out = rose_gr_keep(b, rose_json_array());
    rose_gr_enter(b);
    if (rose_json_is_false(s)) rose_gr_json_add(b, out, rose_json_true());
    rose_json_each (s, key, x) {
        rose_gr_work(b, 32);
        if (strcmp(key, "type") == 0) {
            rose_json *types = other_types(b, rose_gr_schema_types(s));
            rose_gr_json_add(b, out, rose_json_pack("{s:O}", "type", types));
        } else if (!negate_keyword(b, out, s, key, x)) {
            rose_gr_schema_refuse(b, s, key, ROSE_E_UNSUPPORTED,
                                  "not supported inside of `not` or `if`");
        }
    }
    if (rose_json_count(out) == 0) rose_gr_json_add(b, out, rose_json_false()); /* not {} */
    rose_gr_leave(b);
    return out;
}

/* ---- disjoint schemas ---- */

rose_json *rose_gr_listed(gr_build *b, rose_json *s)
{
    rose_json *one = rose_gr_schema_draft(b) >= 6 ? rose_json_get(s, "const") : NULL;
    if (one != NULL) return rose_gr_keep(b, rose_json_pack("[O]", one));
    return rose_json_get(s, "enum");
}

static bool lists_apart(gr_build *b, const rose_json *x, const rose_json *y)
{
    size_t i, k;
    rose_json *p, *q;
    rose_json_each_item (x, i, p)
        rose_json_each_item (y, k, q) {
            rose_gr_work(b, 0);
            if (rose_gr_json_same(p, q)) return false;
        }
    return true;
}

/* One of these required properties is not allowed by x, or its schemas in x and y are disjoint. */
static bool property_apart(gr_build *b, rose_json *x, rose_json *y, const rose_json *required,
                           unsigned depth)
{
    size_t i;
    rose_json *name;
    rose_json_each_item (required, i, name) {
        const char *t = rose_json_text(name);
        rose_json *p = t == NULL ? NULL : rose_json_get(rose_json_get(x, "properties"), t);
        rose_json *q = t == NULL ? NULL : rose_json_get(rose_json_get(y, "properties"), t);
        rose_gr_work(b, 8); /* about four look-ups */
        if (t == NULL) continue;
        if (p == NULL && rose_json_is_false(rose_json_get(x, "additionalProperties")) &&
            rose_json_get(x, "patternProperties") == NULL)
            return true;
        if (p != NULL && rose_json_is_false(p)) return true;
        if (p != NULL && q != NULL && rose_gr_schema_disjoint(b, p, q, TYPE_ALL, NULL, depth))
            return true;
    }
    return false;
}

/* The bound of the numbers of s, the least or the largest; *strict: it is not one of them. */
static double bound(const rose_json *s, bool least, bool *strict)
{
    const rose_json *x = rose_json_get(s, least ? "exclusiveMinimum" : "exclusiveMaximum");
    const rose_json *m = rose_json_get(s, least ? "minimum" : "maximum");
    *strict = rose_json_is_true(x) || rose_json_is_number(x);
    return rose_json_is_number(x)   ? rose_json_number_value(x)
           : rose_json_is_number(m) ? rose_json_number_value(m)
           : least                  ? -1e308
                                    : 1e308;
}

static bool numbers_apart(const rose_json *x, const rose_json *y)
{
    bool lo, hi;
    double low = bound(y, true, &lo), high = bound(x, false, &hi);
    return high < low || ((lo || hi) && !(high > low));
}

static bool strings_apart(gr_build *b, rose_json *x, rose_json *y)
{
    gr_conj p = {.v = &x, .n = 1}, q = {.v = &y, .n = 1};
    gr_dfa *d = rose_gr_string_dfa(b, &p), *e = rose_gr_string_dfa(b, &q);
    return d != NULL && e != NULL && rose_gr_dfa_empty(rose_gr_dfa_combine(b, d, e, DFA_AND));
}

static bool arrays_apart(gr_build *b, rose_json *x, rose_json *y, unsigned depth)
{
    rose_json *p = rose_json_get(x, "items"), *q = rose_json_get(y, "items");
    if (rose_gr_schema_count(b, x, "maxItems", GR_INF) < rose_gr_schema_count(b, y, "minItems", 0))
        return true;
    if (!rose_json_is_object(p) || !rose_json_is_object(q)) return false;
    if (rose_gr_schema_count(b, x, "minItems", 0) == 0 &&
        rose_gr_schema_count(b, y, "minItems", 0) == 0)
        return false; /* the empty array */
    return rose_gr_schema_disjoint(b, p, q, TYPE_ALL, NULL, depth);
}

/* A choice is disjoint from y if each of its schemas is; allOf if one of them is. */
static bool parts_apart(gr_build *b, rose_json *x, rose_json *y, unsigned types,
                        const rose_json *required, unsigned depth)
{
    static const char *const keys[] = {"anyOf", "oneOf"};
    size_t i;
    rose_json *s;
    for (size_t k = 0; k < 2; k++) {
        rose_json *list = rose_json_get(x, keys[k]);
        bool all = rose_json_count(list) > 0;
        rose_json_each_item (list, i, s)
            all = all && rose_gr_schema_disjoint(b, s, y, types, required, depth);
        if (all) return true;
    }
    rose_json_each_item (rose_json_get(x, "allOf"), i, s) {
        if (rose_gr_schema_disjoint(b, s, y, types, required, depth)) return true;
    }
    return false;
}

/* Both have a type, and all values of these types that both allow are told apart. */
bool rose_gr_schema_disjoint(gr_build *b, rose_json *x, rose_json *y, unsigned types,
                             const rose_json *required, unsigned depth)
{
    if (depth-- == 0) return false;
    x = rose_gr_schema_deref(b, x);
    y = rose_gr_schema_deref(b, y);
    if (rose_json_is_false(x) || rose_json_is_false(y)) return true;
    if (!rose_json_is_object(x) || !rose_json_is_object(y)) return false;
    rose_gr_work(b, 24); /* about thirty look-ups */
    types &= rose_gr_schema_types(x) & rose_gr_schema_types(y);
    const rose_json *p = rose_gr_listed(b, x), *q = rose_gr_listed(b, y);
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
    return !(types & TYPE_OBJECT) || property_apart(b, x, y, rose_json_get(y, "required"), depth) ||
           property_apart(b, y, x, rose_json_get(x, "required"), depth) ||
           property_apart(b, x, y, required, depth) || property_apart(b, y, x, required, depth);
}
