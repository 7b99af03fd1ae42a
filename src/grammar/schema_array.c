/* grammar/schema_array.c - arrays of a JSON schema, and values written out: enum, const. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

/* The item schemas of one schema: a list for the first places, and one for all others. */
static void items_of(const gr_build *b, rose_json *schema, rose_json **first, rose_json **rest)
{
    rose_json *items = rose_json_get(schema, "items");
    bool new_names = rose_gr_schema_draft(b) >= 2020;
    *first = new_names ? rose_json_get(schema, "prefixItems") : NULL;
    *rest = items;
    if (rose_json_is_array(items)) { /* drafts 4 to 2019 */
        *first = items;
        *rest = rose_json_get(schema, "additionalItems");
    }
}

static gr_node item_node(gr_build *b, const gr_conj *c, size_t i, bool is_rest)
{
    gr_conj item = {0};
    for (size_t k = 0; k < c->n; k++) {
        rose_json *first, *rest, *x;
        items_of(b, c->v[k], &first, &rest);
        x = !is_rest && i < rose_json_count(first) ? rose_json_at(first, i) : rest;
        if (x != NULL) rose_gr_conj_add(b, &item, x);
    }
    return rose_gr_conj_node(b, &item);
}

/* Arrays of which one item satisfies what "\1some" says; all satisfy the rest. */
static gr_node some_node(gr_build *b, const gr_conj *c, uint32_t min, uint32_t max)
{
    gr_node ws = rose_gr_space(b), comma = GR_SEQ(b, ws, rose_gr_text(b, ","), ws), found;
    gr_conj one = {0};
    size_t n = 0;
    for (size_t k = 0; k < c->n; k++) {
        rose_json *first, *rest, *some = rose_json_get(c->v[k], "\1some");
        items_of(b, c->v[k], &first, &rest);
        if (first != NULL || (some != NULL && ++n > 1) || min > 1 || max != GR_INF)
            rose_gr_schema_refuse(b, c->v[k], "items", ROSE_E_UNSUPPORTED,
                                  "not supported inside of `not` or `if` with this array");
        if (rest != NULL) rose_gr_conj_add(b, &one, rest);
        if (some != NULL) rose_gr_conj_add(b, &one, some);
    }
    if ((found = rose_gr_conj_node(b, &one)) == GR_NEVER) return GR_NEVER;
    gr_node item = item_node(b, c, 0, true);
    return GR_SEQ(b, rose_gr_text(b, "["), ws, rose_gr_repeat(b, GR_SEQ(b, item, comma), 0, GR_INF),
                  found, rose_gr_repeat(b, GR_SEQ(b, comma, item), 0, GR_INF), ws,
                  rose_gr_text(b, "]"));
}

gr_node rose_gr_array_node(gr_build *b, const gr_conj *c)
{
    uint32_t min = 0, max = GR_INF, places = 0;
    gr_node ws = rose_gr_space(b), comma = GR_SEQ(b, ws, rose_gr_text(b, ","), ws), tail;
    for (size_t k = 0; k < c->n; k++) {
        rose_json *first, *rest;
        uint32_t lo = rose_gr_schema_count(b, c->v[k], "minItems", 0);
        uint32_t hi = rose_gr_schema_count(b, c->v[k], "maxItems", GR_INF);
        items_of(b, c->v[k], &first, &rest);
        if (lo > min) min = lo;
        if (hi < max) max = hi;
        if (rose_json_count(first) > places) places = (uint32_t)rose_json_count(first);
    }
    for (size_t k = 0; k < c->n; k++)
        if (rose_json_get(c->v[k], "\1some") != NULL) return some_node(b, c, min, max);
    if (max < places) places = max;
    gr_node other = max > places ? item_node(b, c, places, true) : GR_NEVER;
    if (other == GR_NEVER && max > places) max = places;
    if (min > max) return GR_NEVER;
    if (places == 0) return rose_gr_members(b, "[", other, "]", min, max);
    tail = rose_gr_repeat(b, GR_SEQ(b, comma, other), min > places ? min - places : 0,
                          max == GR_INF ? GR_INF : max - places);
    for (uint32_t i = places; i-- > 0;) {
        gr_node item = item_node(b, c, i, false);
        tail = GR_SEQ(b, i > 0 ? comma : GR_EMPTY, item, tail, i == 0 ? ws : GR_EMPTY);
        if (i >= min) tail = rose_gr_opt(b, tail);
    }
    return GR_SEQ(b, rose_gr_text(b, "["), ws, tail, rose_gr_text(b, "]"));
}

/* ---- values that are written out ---- */

static gr_node number_literal(gr_build *b, const rose_json *value)
{
    gr_decimal d;
    gr_list l = {0};
    rose_gr_decimal(b, value, &d);
    gr_node sign = d.negative ? rose_gr_text(b, "-") : GR_EMPTY;
    gr_node zeros = rose_gr_repeat(b, rose_gr_text(b, "0"), 0, 1);
    if (d.part[0] == '\0') zeros = rose_gr_opt(b, rose_gr_text(b, ".0"));
    rose_gr_push(b, &l, sign);
    rose_gr_push(b, &l, rose_gr_text(b, d.whole));
    if (d.part[0] != '\0') {
        rose_gr_push(b, &l, rose_gr_text(b, "."));
        rose_gr_push(b, &l, rose_gr_text(b, d.part));
        zeros = GR_EMPTY;
    }
    rose_gr_push(b, &l, zeros);
    return rose_gr_seq(b, l.v, l.n);
}

static gr_node string_literal(gr_build *b, const char *s, size_t n)
{
    gr_word w = rose_gr_escaped(b, s, n);
    gr_node quote = rose_gr_text(b, "\"");
    return GR_SEQ(b, quote, rose_gr_bytes(b, w.bytes, w.n), quote);
}

static gr_node array_literal(gr_build *b, const rose_json *value)
{
    gr_node ws = rose_gr_space(b), comma = GR_SEQ(b, ws, rose_gr_text(b, ","), ws);
    gr_list l = {0};
    size_t i;
    rose_json *x;
    rose_json_each_item (value, i, x) {
        if (i > 0) rose_gr_push(b, &l, comma);
        rose_gr_push(b, &l, rose_gr_json_literal(b, x));
    }
    return GR_SEQ(b, rose_gr_text(b, "["), ws, rose_gr_seq(b, l.v, l.n), l.n > 0 ? ws : GR_EMPTY,
                  rose_gr_text(b, "]"));
}

/* All members are required; they come in any order, unless the order of the schema counts. */
static gr_node object_literal(gr_build *b, const rose_json *value)
{
    gr_node ws = rose_gr_space(b), colon = GR_SEQ(b, ws, rose_gr_text(b, ":"), ws);
    gr_members m = {.comma = GR_SEQ(b, ws, rose_gr_text(b, ","), ws), .max = GR_INF};
    bool *required = rose_gr_take(b, rose_json_size(value));
    gr_list l = {0}, ordered = {0};
    const char *key;
    size_t n;
    rose_json *x;
    rose_json_each_n (value, key, n, x) {
        gr_node pair = GR_SEQ(b, string_literal(b, key, n), colon, rose_gr_json_literal(b, x));
        if (l.n > 0) rose_gr_push(b, &ordered, m.comma);
        rose_gr_push(b, &ordered, pair);
        required[l.n] = true;
        rose_gr_push(b, &l, pair);
    }
    m.kids = l.v;
    m.required = required;
    m.n = (uint32_t)l.n;
    m.other = GR_NEVER;
    m.close = GR_SEQ(b, ws, rose_gr_text(b, "}"));
    gr_node all = b->opts.schema_order || l.n < 2 ? GR_SEQ(b, rose_gr_seq(b, ordered.v, ordered.n),
                                                           l.n > 0 ? m.close : rose_gr_text(b, "}"))
                                                  : rose_gr_keys_node(b, &m);
    return GR_SEQ(b, rose_gr_text(b, "{"), ws, all);
}

gr_node rose_gr_json_literal(gr_build *b, const rose_json *value)
{
    rose_gr_enter(b);
    const gr_node x = rose_json_is_string(value)
                          ? string_literal(b, rose_json_text(value), rose_json_text_len(value))
                      : rose_json_is_number(value) ? number_literal(b, value)
                      : rose_json_is_array(value)  ? array_literal(b, value)
                      : rose_json_is_object(value) ? object_literal(b, value)
                      : rose_json_is_true(value)   ? rose_gr_text(b, "true")
                      : rose_json_is_false(value)  ? rose_gr_text(b, "false")
                                                   : rose_gr_text(b, "null");
    rose_gr_leave(b);
    return x;
}

bool rose_gr_json_same(const rose_json *x, const rose_json *y)
{
    if (rose_json_is_number(x) && rose_json_is_number(y)) {
        if (rose_json_is_integer(x) && rose_json_is_integer(y))
            return rose_json_int(x) == rose_json_int(y);
        if (rose_json_is_big(x) && rose_json_is_big(y)) return rose_json_equal(x, y);
        double d = rose_json_number_value(x) - rose_json_number_value(y);
        return !(d < 0) && !(d > 0);
    }
    return rose_json_equal(x, y);
}

static unsigned type_of(const rose_json *x)
{
    static const unsigned types[] = {
        [ROSE_JSON_OBJECT] = TYPE_OBJECT, [ROSE_JSON_ARRAY] = TYPE_ARRAY,
        [ROSE_JSON_STRING] = TYPE_STRING, [ROSE_JSON_INTEGER] = TYPE_INTEGER,
        [ROSE_JSON_REAL] = TYPE_FRACTION, [ROSE_JSON_TRUE] = TYPE_BOOL,
        [ROSE_JSON_FALSE] = TYPE_BOOL,    [ROSE_JSON_NULL] = TYPE_NULL};
    const double v = rose_json_real_value(x);
    const bool whole = rose_json_is_real(x) && v >= -9e15 && v <= 9e15 &&
                       !(v - (double)(int64_t)v < 0) && !(v - (double)(int64_t)v > 0);
    return whole || rose_json_is_big(x) ? TYPE_INTEGER : types[rose_json_kind_of(x)];
}

/* The strings of a list, sorted. */
typedef struct strings {
    gr_word *v;
    size_t n;
} strings;

static const strings *strings_of(gr_build *b, const rose_json *list)
{
    void **known = rose_gr_memo(b, list, MEMO_STRINGS);
    if (*known != NULL) return *known;
    strings *s = *known = rose_gr_take(b, sizeof *s);
    s->v = rose_gr_take(b, rose_json_count(list) * sizeof *s->v);
    for (size_t i = 0; i < rose_json_count(list); i++) {
        const rose_json *x = rose_json_at(list, i);
        if (rose_json_is_string(x))
            s->v[s->n++] = (gr_word){rose_json_text(x), rose_json_text_len(x)};
    }
    rose_gr_sort_words(b, s->v, s->n);
    return s;
}

static bool in_list(gr_build *b, const rose_json *list, const rose_json *value)
{
    size_t i;
    rose_json *x;
    if (rose_json_is_string(value) && rose_json_count(list) > 8) {
        const gr_word w = {rose_json_text(value), rose_json_text_len(value)};
        const strings *s = strings_of(b, list);
        rose_gr_work(b, 16);
        return bsearch(&w, s->v, s->n, sizeof w, rose_gr_by_bytes) != NULL;
    }
    rose_gr_work(b, rose_json_count(list) * 2);
    rose_json_each_item (list, i, x) {
        if (rose_gr_json_same(x, value)) return true;
    }
    return false;
}

/* Does this container of an enum satisfy one schema? Decided only where nothing is demanded. */
static void demand_nothing(gr_build *b, rose_json *schema, unsigned type)
{
    static const char *const of_arrays[] = {"items",    "prefixItems", "minItems",
                                            "maxItems", "\1some",      NULL};
    const char *key =
        rose_gr_first_key(schema, type == TYPE_OBJECT ? rose_gr_object_keys : of_arrays);
    if (key != NULL)
        rose_gr_schema_refuse(b, schema, key, ROSE_E_UNSUPPORTED,
                              "not supported together with objects or arrays in enum or const");
}

static bool fits_one(gr_build *b, rose_json *schema, const rose_json *value, const rose_json *from)
{
    unsigned type = type_of(value);
    rose_gr_work(b, 12);
    const rose_json *list = rose_json_get(schema, "enum"), *one = rose_json_get(schema, "const");
    if (!(rose_gr_schema_types(schema) & type)) return false;
    if (list != NULL && list != from && !in_list(b, list, value)) return false;
    if (one != NULL && rose_gr_schema_draft(b) >= 6 && !rose_gr_json_same(one, value)) return false;
    if (in_list(b, rose_json_get(schema, "\1not"), value)) return false;
    if (type & (TYPE_INTEGER | TYPE_FRACTION)) return rose_gr_number_fits(b, schema, value);
    if (type & (TYPE_ARRAY | TYPE_OBJECT)) demand_nothing(b, schema, type);
    return true;
}

bool rose_gr_value_fits(gr_build *b, const gr_conj *c, const rose_json *value,
                        const rose_json *from)
{
    for (size_t i = 0; i < c->n; i++)
        if (!fits_one(b, c->v[i], value, from)) return false;
    return true;
}
