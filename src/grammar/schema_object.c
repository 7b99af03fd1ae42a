/* grammar/schema_object.c - objects of a JSON schema. By default properties may come in any order,
 * and the stack remembers which were written (NODE_KEYS). With opts.schema_order they stand in the
 * order of the schema, as OpenAI, XGrammar and llguidance have them: first those of `properties`,
 * then further required names, then any others that the schema allows. Then a small graph of rules
 * walks along the names:
 *
 *     first(i)  nothing is written yet, properties from i on may come
 *     next(i)   a comma is written, one of them must come
 *     after(i)  a value is written: a comma and next(i), or the end
 *
 * With minProperties or maxProperties each of these exists once for each count. A rule that calls
 * the next one in its last place jumps, so the graph needs no stack. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

typedef struct slot { /* a property with a place in the order */
    const char *name;
    size_t n;
    gr_word escaped;
    bool required;
    uint32_t *needs; /* bits of the slots that must be there with this one; NULL: none */
    gr_node pair;    /* key, colon and value; GR_NEVER: it may not be there */
} slot;

typedef struct object {
    gr_build *b;
    const gr_conj *c;
    slot *slots;
    size_t n, cap;
    gr_node others; /* key, colon and value of one property without a place */
    uint32_t min, max;
    uint32_t layers; /* counts that are told apart; the last means "this many or more" */
    gr_node *rules;  /* [3][n + 1][layers], GR_NONE until they are needed */
    gr_node space, comma;
    bool linked; /* some slots need others */
} object;
enum { FIRST, NEXT, AFTER };
enum { MAX_LAYERS = 64, MAX_PATTERNS = 5 };

const char *const rose_gr_object_keys[] = {"properties",           "required",
                                           "patternProperties",    "minProperties",
                                           "maxProperties",        "propertyNames",
                                           "additionalProperties", "dependencies",
                                           "dependentRequired",    NULL};

/* ---- which schemas a name must satisfy ---- */

static bool pattern_has(gr_build *b, const char *pattern, const char *name, size_t n)
{
    gr_word w = rose_gr_escaped(b, name, n);
    const gr_dfa *d = rose_gr_pattern_dfa(b, pattern);
    return rose_gr_dfa_match(d, w.bytes, w.n);
}

/* Adds what one schema demands of the value of this name. */
static void add_for_name(gr_build *b, rose_json *schema, const char *name, size_t n, gr_conj *to)
{
    rose_json *own = rose_json_getn(rose_json_get(schema, "properties"), name, n), *x;
    rose_gr_work(b, 8);
    bool found = own != NULL;
    const char *pattern;
    if (own != NULL) rose_gr_conj_add(b, to, own);
    rose_json_each (rose_json_get(schema, "patternProperties"), pattern, x) {
        if (!pattern_has(b, pattern, name, n)) continue;
        rose_gr_conj_add(b, to, x);
        found = true;
    }
    x = rose_json_get(schema, "additionalProperties");
    if (!found && x != NULL) rose_gr_conj_add(b, to, x);
}

static gr_node pair_of(object *o, gr_node key, gr_conj *value)
{
    gr_build *b = o->b;
    gr_node v = rose_gr_conj_node(b, value), quote = rose_gr_text(b, "\"");
    if (v == GR_NEVER) return GR_NEVER;
    return GR_SEQ(b, quote, key, rose_gr_text(b, "\""), o->space, rose_gr_text(b, ":"), o->space,
                  v);
}

/* ---- slots ---- */

static slot *find_slot(object *o, const char *name, size_t n)
{
    rose_gr_work(o->b, o->n / 16);
    for (size_t i = 0; i < o->n; i++)
        if (o->slots[i].n == n && memcmp(o->slots[i].name, name, n) == 0) return &o->slots[i];
    o->slots = rose_gr_grown(o->b, o->slots, o->n, &o->cap, sizeof *o->slots);
    o->slots[o->n] = (slot){.name = name, .n = n, .escaped = rose_gr_escaped(o->b, name, n)};
    return &o->slots[o->n++];
}

static void find_slots(object *o)
{
    const char *key;
    size_t len, k;
    rose_json *x;
    for (size_t i = 0; i < o->c->n; i++)
        rose_json_each_n (rose_json_get(o->c->v[i], "properties"), key, len, x)
            find_slot(o, key, len);
    for (size_t i = 0; i < o->c->n; i++)
        rose_json_each_item (rose_json_get(o->c->v[i], "required"), k, x)
            find_slot(o, rose_json_text(x), rose_json_text_len(x))->required = true;
}

/* ---- properties that need others: dependentRequired, and dependencies that are lists ---- */

typedef struct needs { /* slot `from` needs slot `to` */
    struct need {
        uint32_t from, to;
    } * v;
    size_t n, cap;
} needs;

static void find_needs(object *o, rose_json *map, needs *out)
{
    const char *key;
    rose_json *list, *name;
    size_t len, i;
    rose_json_each_n (map, key, len, list)
        rose_json_each_item (list, i, name) {
            const uint32_t from = (uint32_t)(find_slot(o, key, len) - o->slots);
            const slot *to = find_slot(o, rose_json_text(name), rose_json_text_len(name));
            out->v = rose_gr_grown(o->b, out->v, out->n, &out->cap, sizeof *out->v);
            out->v[out->n++] = (struct need){from, (uint32_t)(to - o->slots)};
        }
}

static bool needs_slot(const slot *s, size_t i)
{
    return s->needs != NULL && (s->needs[i / 32] >> (i % 32) & 1);
}

/* What a needed slot needs is needed as well, and what a required one needs is required. */
static void close_needs(object *o, size_t n_words)
{
    for (size_t k = 0; k < o->n; k++) {
        rose_gr_work(o->b, o->n / 4);
        for (size_t i = 0; i < o->n && o->slots[k].needs != NULL; i++) {
            if (i == k || !needs_slot(&o->slots[i], k)) continue;
            for (size_t j = 0; j < n_words; j++)
                o->slots[i].needs[j] |= o->slots[k].needs[j];
            rose_gr_work(o->b, n_words / 4);
        }
    }
    for (size_t k = 0; k < o->n; k++)
        for (size_t i = 0; i < o->n && o->slots[k].required; i++)
            if (needs_slot(&o->slots[k], i)) o->slots[i].required = true;
}

static void link_slots(object *o)
{
    needs all = {0};
    for (size_t i = 0; i < o->c->n; i++) {
        rose_json *s = o->c->v[i];
        find_needs(o, rose_json_get(s, "dependencies"), &all);
        if (rose_gr_schema_draft(o->b) >= 2019)
            find_needs(o, rose_json_get(s, "dependentRequired"), &all);
    }
    if (all.n == 0) return;
    if (o->n > GR_MAX_LINKED)
        rose_gr_schema_refuse(o->b, o->c->v[0], "dependentRequired", ROSE_E_UNSUPPORTED,
                              "not supported in an object of more than 1000 properties");
    const size_t n_words = o->n / 32 + 1;
    o->linked = true;
    for (size_t i = 0; i < all.n; i++) {
        slot *s = &o->slots[all.v[i].from];
        const uint32_t to = all.v[i].to;
        if (s->needs == NULL) s->needs = rose_gr_take(o->b, n_words * sizeof *s->needs);
        s->needs[to / 32] |= UINT32_C(1) << (to % 32);
    }
    close_needs(o, n_words);
}

/* The names that propertyNames allows; NULL: all. */
static gr_dfa *allowed_names(object *o)
{
    gr_dfa *all = NULL;
    for (size_t i = 0; i < o->c->n; i++) {
        rose_json *x = rose_json_get(o->c->v[i], "propertyNames");
        gr_conj names = {0};
        if (x == NULL || rose_gr_schema_draft(o->b) < 6) continue;
        rose_gr_conj_add(o->b, &names, x);
        if (names.n_groups > 0)
            rose_gr_schema_refuse(o->b, o->c->v[i], "propertyNames", ROSE_E_UNSUPPORTED,
                                  "choices such as anyOf are not supported here");
        gr_dfa *d = rose_gr_string_dfa(o->b, &names);
        if (d == NULL) continue;
        all = all == NULL ? d : rose_gr_dfa_combine(o->b, all, d, DFA_AND);
    }
    return all;
}

static void fill_slots(object *o, const gr_dfa *names)
{
    for (size_t i = 0; i < o->n; i++) {
        slot *s = &o->slots[i];
        gr_conj value = {0};
        s->pair = GR_NEVER;
        if (names != NULL && !rose_gr_dfa_match(names, s->escaped.bytes, s->escaped.n)) continue;
        for (size_t k = 0; k < o->c->n; k++)
            add_for_name(o->b, o->c->v[k], s->name, s->n, &value);
        s->pair = pair_of(o, rose_gr_bytes(o->b, s->escaped.bytes, s->escaped.n), &value);
    }
}

/* ---- properties without a place ---- */

/* All names, as chars.c writes them, but for those that have a place. */
static gr_dfa *free_names(object *o, const gr_dfa *names)
{
    gr_build *b = o->b;
    gr_word *words = rose_gr_take(b, (o->n + 1) * sizeof *words);
    for (size_t i = 0; i < o->n; i++)
        words[i] = o->slots[i].escaped;
    gr_dfa *d = rose_gr_any_chars_dfa(b);
    if (names != NULL) d = rose_gr_dfa_combine(b, d, names, DFA_AND);
    if (o->n == 0) return d;
    return rose_gr_dfa_combine(b, d, rose_gr_dfa_words(b, words, o->n), DFA_MINUS);
}

typedef struct pattern {
    const char *text;
    gr_dfa *d;
} pattern;

static size_t find_patterns(object *o, pattern *out)
{
    size_t n = 0;
    const char *text;
    rose_json *x;
    for (size_t i = 0; i < o->c->n; i++)
        rose_json_each (rose_json_get(o->c->v[i], "patternProperties"), text, x) {
            size_t k = 0;
            while (k < n && strcmp(out[k].text, text) != 0)
                k++;
            if (k < n) continue;
            if (n == MAX_PATTERNS)
                rose_gr_schema_refuse(o->b, o->c->v[i], "patternProperties", ROSE_E_UNSUPPORTED,
                                      "more than 5 patterns of names are not supported");
            out[n++] = (pattern){text, rose_gr_pattern_dfa(o->b, text)};
        }
    return n;
}

/* What names that match exactly these patterns (a bit each) demand of their values. */
static void add_for_patterns(object *o, const pattern *p, size_t n, unsigned bits, gr_conj *to)
{
    for (size_t i = 0; i < o->c->n; i++) {
        rose_json *own = rose_json_get(o->c->v[i], "patternProperties"), *x;
        bool found = false;
        for (size_t k = 0; k < n; k++) {
            if (!(bits >> k & 1) || (x = rose_json_get(own, p[k].text)) == NULL) continue;
            rose_gr_conj_add(o->b, to, x);
            found = true;
        }
        x = rose_json_get(o->c->v[i], "additionalProperties");
        if (!found && x != NULL) rose_gr_conj_add(o->b, to, x);
    }
}

/* Whether the schemas name properties and do not speak of further ones. */
bool rose_gr_conj_closed(const gr_build *b, const gr_conj *c)
{
    static const char *const further[] = {"additionalProperties", "patternProperties",
                                          "propertyNames", NULL};
    bool named = false;
    for (size_t i = 0; i < c->n && b->opts.closed; i++) {
        named = named || rose_json_size(rose_json_get(c->v[i], "properties")) > 0;
        if (rose_gr_first_key(c->v[i], further) != NULL) return false;
    }
    return named;
}

static void fill_others(object *o, const gr_dfa *names)
{
    gr_build *b = o->b;
    o->others = GR_NEVER;
    if (rose_gr_conj_closed(b, o->c)) return;
    pattern p[MAX_PATTERNS];
    size_t n = find_patterns(o, p);
    gr_list l = {0};
    gr_dfa *all = NULL;
    for (unsigned bits = 0; bits < 1u << n; bits++) {
        gr_conj value = {0};
        add_for_patterns(o, p, n, bits, &value);
        if (value.never) continue;
        if (all == NULL) all = free_names(o, names);
        gr_dfa *d = all;
        for (size_t k = 0; k < n; k++)
            d = rose_gr_dfa_combine(b, d, p[k].d, bits >> k & 1 ? DFA_AND : DFA_MINUS);
        gr_node key = rose_gr_dfa_node(b, d);
        if (key != GR_NEVER) rose_gr_push(b, &l, pair_of(o, key, &value));
    }
    o->others = rose_gr_alt(b, l.v, l.n);
}

/* ---- the graph ---- */

static gr_node state(object *o, int kind, size_t i, uint32_t count);

static uint32_t counted(const object *o, uint32_t count)
{
    return count + 1 < o->layers ? count + 1 : o->layers - 1;
}

static bool may_end(const object *o, size_t i, uint32_t count)
{
    for (; i < o->n; i++)
        if (o->slots[i].required) return false;
    return count >= o->min;
}

/* One property that comes now: slot i, a later one, or one without a place. */
static void add_properties(object *o, gr_list *l, size_t i, uint32_t count, int skip)
{
    gr_build *b = o->b;
    if (count >= o->max) return;
    if (i == o->n) {
        if (o->others != GR_NEVER)
            rose_gr_push(b, l, GR_SEQ(b, o->others, state(o, AFTER, i, counted(o, count))));
        return;
    }
    if (o->slots[i].pair != GR_NEVER)
        rose_gr_push(b, l, GR_SEQ(b, o->slots[i].pair, state(o, AFTER, i + 1, counted(o, count))));
    if (!o->slots[i].required) rose_gr_push(b, l, state(o, skip, i + 1, count));
}

static gr_node state_body(object *o, int kind, size_t i, uint32_t count)
{
    gr_build *b = o->b;
    gr_list l = {0};
    if (kind == AFTER) {
        rose_gr_push(b, &l, GR_SEQ(b, o->comma, state(o, NEXT, i, count)));
        if (may_end(o, i, count)) rose_gr_push(b, &l, GR_SEQ(b, o->space, rose_gr_text(b, "}")));
        return rose_gr_alt(b, l.v, l.n);
    }
    /* FIRST skips to FIRST, which ends with the empty object; NEXT to NEXT. */
    add_properties(o, &l, i, count, kind);
    if (kind == FIRST && i == o->n && may_end(o, i, count))
        rose_gr_push(b, &l, rose_gr_text(b, "}"));
    return rose_gr_alt(b, l.v, l.n);
}

static gr_node state(object *o, int kind, size_t i, uint32_t count)
{
    gr_node *at = &o->rules[((size_t)kind * (o->n + 1) + i) * o->layers + count];
    if (*at == GR_NONE) *at = rose_gr_rule_new(o->b, "of an object");
    return *at;
}

static void count_layers(object *o)
{
    uint32_t required = 0, top = 0;
    for (size_t i = 0; i < o->c->n; i++) {
        uint32_t min = rose_gr_schema_count(o->b, o->c->v[i], "minProperties", 0);
        uint32_t max = rose_gr_schema_count(o->b, o->c->v[i], "maxProperties", GR_INF);
        if (min > o->min) o->min = min;
        if (max < o->max) o->max = max;
    }
    for (size_t i = 0; i < o->n; i++)
        required += o->slots[i].required;
    if (o->max < required) o->min = GR_INF; /* cannot be */
    if (o->min <= required) o->min = 0;
    if (o->others == GR_NEVER && o->max >= o->n) o->max = GR_INF;
    if (o->min != GR_INF && o->min > top) top = o->min;
    if (o->max != GR_INF && o->max > top) top = o->max;
    o->layers = top + 1;
    if (top >= MAX_LAYERS && o->b->opts.schema_order)
        rose_gr_schema_refuse(o->b, o->c->v[0], "maxProperties", ROSE_E_UNSUPPORTED,
                              "minProperties and maxProperties are supported up to 63");
}

/* The same without an order, or with slots that need others. */
static gr_node unordered(object *o)
{
    gr_build *b = o->b;
    gr_members m = {.n = (uint32_t)o->n, .other = o->others, .min = o->min, .max = o->max};
    gr_node *kids = rose_gr_take(b, o->n * sizeof *kids);
    bool *required = rose_gr_take(b, o->n);
    uint32_t **needed = rose_gr_take(b, o->n * sizeof *needed);
    for (size_t i = 0; i < o->n; i++) {
        kids[i] = o->slots[i].pair;
        required[i] = o->slots[i].required;
        needed[i] = o->slots[i].needs;
    }
    m.kids = kids;
    m.needs = o->linked ? needed : NULL;
    m.ordered = o->linked && b->opts.schema_order;
    m.required = required;
    m.comma = o->comma;
    m.close = GR_SEQ(b, o->space, rose_gr_text(b, "}"));
    return GR_SEQ(b, rose_gr_text(b, "{"), o->space, rose_gr_keys_node(b, &m));
}

/* Objects without places are a list of members. */
static gr_node members(object *o)
{
    return rose_gr_members(o->b, "{", o->others, "}", o->min, o->others == GR_NEVER ? 0 : o->max);
}

gr_node rose_gr_object_node(gr_build *b, const gr_conj *c)
{
    object o = {.b = b, .c = c, .max = GR_INF, .space = rose_gr_space(b)};
    bool free_object = true;
    for (size_t i = 0; i < c->n; i++)
        free_object = free_object && rose_gr_first_key(c->v[i], rose_gr_object_keys) == NULL;
    if (free_object) return rose_gr_any_object(b);
    o.comma = GR_SEQ(b, o.space, rose_gr_text(b, ","), o.space);
    find_slots(&o);
    link_slots(&o);
    const gr_dfa *names = allowed_names(&o);
    fill_slots(&o, names);
    for (size_t i = 0; i < o.n; i++)
        if (o.slots[i].required && o.slots[i].pair == GR_NEVER) return GR_NEVER;
    fill_others(&o, names);
    count_layers(&o);
    if (o.min > o.max || o.min == GR_INF) return GR_NEVER;
    if (o.n == 0) return members(&o);
    if (o.linked && o.min > 0 && (o.max != GR_INF || b->opts.schema_order))
        rose_gr_schema_refuse(b, c->v[0], "minProperties", ROSE_E_UNSUPPORTED,
                              "not supported together with properties that depend on others");
    if (!b->opts.schema_order || o.linked) return unordered(&o);
    size_t n_rules = 3 * (o.n + 1) * o.layers;
    rose_gr_work(b, n_rules);
    o.rules = rose_gr_take(b, n_rules * sizeof *o.rules);
    memset(o.rules, 0xff, n_rules * sizeof *o.rules);
    gr_node start = state(&o, FIRST, 0, 0);
    for (bool more = true; more;) { /* bodies may need rules that stand before them */
        more = false;
        for (size_t r = 0; r < n_rules; r++) {
            if (o.rules[r] == GR_NONE || b->rules[b->nodes[o.rules[r]].a].body != GR_NONE) continue;
            gr_node body = state_body(&o, (int)(r / o.layers / (o.n + 1)), r / o.layers % (o.n + 1),
                                      (uint32_t)(r % o.layers));
            rose_gr_rule_define(b, o.rules[r], body);
            more = true;
        }
    }
    return GR_SEQ(b, rose_gr_text(b, "{"), o.space, start);
}
