/* grammar/schema_xml.c - the arguments of a tool call in Qwen's XML form, "style": "qwen_xml" of
 * XGrammar's json_schema format. An object's properties are elements; a string is written as it is,
 * without quotes, and holds no end tag; any other value is JSON:
 *
 *     <parameter=city>Paris</parameter><parameter=days>3</parameter>
 *
 * One white space may stand at each border. Properties that the schema does not name are allowed
 * only if additionalProperties is given. Strings may have enum or const; pattern, format and
 * lengths are refused by name, because they speak of the string without the white space around it.
 */
#include <string.h>

#include "grammar/schema_internal.h"

typedef struct xml {
    gr_build *b;
    gr_node space, raw; /* raw: any text without the end tag */
    gr_members m;
    gr_list pairs;
} xml;

static gr_node value_node(xml *x, gr_conj *c);

static void refuse_demands(xml *x, const gr_conj *c)
{
    static const char *const keys[] = {"pattern", "format", "minLength", "maxLength", NULL};
    for (size_t i = 0; i < c->n; i++)
        if (rose_gr_first_key(c->v[i], keys) != NULL)
            rose_gr_schema_refuse(x->b, c->v[i], rose_gr_first_key(c->v[i], keys),
                                  ROSE_E_UNSUPPORTED, "not supported for a string in an XML style");
}

/* The strings of enum and const as raw text; NEVER: none. *listed: one of both is there. */
static gr_node words_node(xml *x, const gr_conj *c, bool *listed)
{
    gr_list l = {0};
    rose_json *list = NULL, *v;
    size_t i;
    for (size_t k = 0; k < c->n && list == NULL; k++) {
        list = rose_json_get(c->v[k], "enum");
        v = rose_json_get(c->v[k], "const");
        if (list == NULL && v != NULL) list = rose_gr_keep(x->b, rose_json_pack("[O]", v));
    }
    *listed = list != NULL;
    rose_json_each_item (list, i, v) {
        if (rose_json_is_string(v) && rose_gr_value_fits(x->b, c, v, list))
            rose_gr_push(x->b, &l, rose_gr_bytes(x->b, rose_json_text(v), rose_json_text_len(v)));
    }
    return rose_gr_alt(x->b, l.v, l.n);
}

/* A value without choices: its strings raw, everything else as JSON. */
static gr_node plain_value(xml *x, gr_conj *c)
{
    gr_build *b = x->b;
    unsigned types = TYPE_ALL;
    bool listed;
    for (size_t i = 0; i < c->n; i++)
        types &= rose_gr_schema_types(c->v[i]);
    gr_node text = GR_NEVER;
    if (types & TYPE_STRING) {
        text = words_node(x, c, &listed);
        refuse_demands(x, c);
        if (!listed) text = x->raw;
    }
    rose_json *rest =
        rose_json_pack("{s:[s,s,s,s,s]}", "type", "null", "boolean", "number", "array", "object");
    rose_gr_conj_add(b, c, rose_gr_keep(b, rest));
    gr_node other = types == TYPE_STRING ? GR_NEVER : rose_gr_conj_node(b, c);
    return GR_SEQ(b, x->space, GR_ALT(b, text, other), x->space);
}

static gr_node value_node(xml *x, gr_conj *c)
{
    gr_list l = {0};
    size_t i;
    rose_json *s;
    c->by_ref = false; /* strings are raw here only, so the rules of $ref do not fit */
    if (c->never) return GR_NEVER;
    if (c->n_groups == 0) return plain_value(x, c);
    rose_gr_enter(x->b);
    rose_json *list = c->groups[--c->n_groups].list;
    rose_json_each_item (list, i, s) {
        gr_conj one = rose_gr_conj_copy(x->b, c);
        rose_gr_conj_add(x->b, &one, s);
        rose_gr_push(x->b, &l, value_node(x, &one));
    }
    rose_gr_leave(x->b);
    return rose_gr_alt(x->b, l.v, l.n);
}

static gr_node pair_node(xml *x, gr_node name, gr_node value)
{
    gr_build *b = x->b;
    return GR_SEQ(b, rose_gr_text(b, "<parameter="), name, rose_gr_text(b, ">"), value,
                  rose_gr_text(b, "</parameter>"), x->space);
}

static bool is_required(const gr_conj *c, const char *name)
{
    size_t i;
    rose_json *x;
    for (size_t k = 0; k < c->n; k++)
        rose_json_each_item (rose_json_get(c->v[k], "required"), i, x) {
            if (rose_json_is_string(x) && strcmp(rose_json_text(x), name) == 0) return true;
        }
    return false;
}

/* Names like those of variables, but for those of the properties. */
static gr_node other_pair(xml *x, const gr_conj *c, gr_word *words, size_t n)
{
    static const char name[] = "[A-Za-z_][A-Za-z0-9_]*";
    gr_build *b = x->b;
    gr_conj value = {0};
    bool given = false;
    for (size_t i = 0; i < c->n; i++) {
        rose_json *s = rose_json_get(c->v[i], "additionalProperties");
        if (s == NULL) continue;
        rose_gr_conj_add(b, &value, s);
        given = true;
    }
    if (!given || value.never) return GR_NEVER;
    gr_dfa *d = rose_gr_dfa_of(b, rose_gr_regex(b, name, sizeof name - 1));
    if (n > 0) d = rose_gr_dfa_combine(b, d, rose_gr_dfa_words(b, words, n), DFA_MINUS);
    return pair_node(x, rose_gr_dfa_node(b, d), value_node(x, &value));
}

/* Adds the pairs of the properties in the order of the schemas. */
static void add_pairs(xml *x, const gr_conj *c)
{
    gr_build *b = x->b;
    const char *name;
    rose_json *s, *own;
    size_t total = 0;
    for (size_t k = 0; k < c->n; k++)
        total += rose_json_size(rose_json_get(c->v[k], "properties"));
    bool *required = rose_gr_take(b, total);
    gr_word *words = rose_gr_take(b, total * sizeof *words + 1);
    for (size_t k = 0; k < c->n; k++)
        rose_json_each (rose_json_get(c->v[k], "properties"), name, s) {
            gr_conj value = {0};
            size_t n = x->pairs.n, i = 0;
            rose_gr_work(b, n / 4);
            while (i < n && strcmp(words[i].bytes, name) != 0)
                i++;
            if (i < n) continue; /* of an earlier schema, with this one's demands */
            for (size_t j = k; j < c->n; j++)
                if ((own = rose_json_get(rose_json_get(c->v[j], "properties"), name)) != NULL)
                    rose_gr_conj_add(b, &value, own);
            words[n] = (gr_word){name, strlen(name)};
            required[n] = is_required(c, name);
            rose_gr_push(b, &x->pairs, pair_node(x, rose_gr_text(b, name), value_node(x, &value)));
        }
    x->m.required = required;
    x->m.other = other_pair(x, c, words, x->pairs.n);
}

static gr_node members_node(xml *x)
{
    gr_build *b = x->b;
    gr_list l = {0};
    x->m.kids = x->pairs.v;
    x->m.n = (uint32_t)x->pairs.n;
    x->m.max = GR_INF;
    x->m.comma = x->m.close = GR_EMPTY;
    if (!b->opts.schema_order && x->m.n > 0) return rose_gr_keys_node(b, &x->m);
    for (uint32_t i = 0; i < x->m.n; i++)
        rose_gr_push(b, &l, rose_gr_repeat(b, x->m.kids[i], x->m.required[i], 1));
    rose_gr_push(b, &l, rose_gr_repeat(b, x->m.other, 0, GR_INF));
    return rose_gr_seq(b, l.v, l.n);
}

gr_node rose_gr_xml(gr_build *b, rose_json *schema, const char *name)
{
    xml x = {.b = b};
    gr_conj c = {0};
    if (strcmp(name, "qwen_xml") != 0)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED,
                     "the style \"%s\" is not supported (json, qwen_xml are)", name);
    x.space = rose_gr_space(b);
    x.raw = rose_gr_text_without(b, "</parameter>");
    rose_gr_schema_begin(b, schema);
    rose_gr_conj_add(b, &c, schema);
    if (c.n_groups > 0)
        rose_gr_schema_refuse(b, schema, "", ROSE_E_UNSUPPORTED,
                              "choices such as anyOf are not supported at the top of an XML style");
    static const char *const needs[] = {"dependencies", "dependentRequired"};
    for (size_t i = 0; i < 2 * c.n; i++)
        if (rose_json_get(c.v[i / 2], needs[i % 2]) != NULL)
            rose_gr_schema_refuse(b, c.v[i / 2], needs[i % 2], ROSE_E_UNSUPPORTED,
                                  "not supported at the top of an XML style");
    for (size_t i = 0; i < c.n; i++)
        if (!(rose_gr_schema_types(c.v[i]) & TYPE_OBJECT))
            rose_gr_schema_refuse(b, c.v[i], "type", ROSE_E_INVAL, "an XML style needs an object");
    add_pairs(&x, &c);
    gr_node all = GR_SEQ(b, x.space, members_node(&x));
    rose_gr_schema_finish(b);
    return all;
}
