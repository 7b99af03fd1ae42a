/* grammar/schema.c - JSON Schema: from a schema to the node of its values. A value must satisfy a
 * list of schemas at once (gr_conj): allOf and $ref add to the list, anyOf and its like multiply
 * it out. When no choice is left, each type of value is built by its own file. Each place that
 * $ref leads to becomes a rule, so recursion costs nothing here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

/* A rule for a list of schemas that a $ref led to. */
typedef struct memo {
    gr_conj conj;
    uint64_t hash;
    gr_node rule;
} memo;

struct gr_schema {
    rose_json *root;
    int draft;
    rose_json *at;   /* the schema that was added last */
    struct choices { /* what choices were multiplied out, by keyword */
        const char *keyword;
        uint64_t n;
    } choices[8];
    rose_json *anchors; /* of the whole schema, by name; NULL until one is needed */
    memo *memos;
    size_t n_memos, cap_memos;
    struct made {
        struct made *next;
        const void *key;
        int kind;
        void *value;
    } * made[512];
};

/* ---- what is remembered ---- */

void **rose_gr_memo(gr_build *b, const void *key, int kind)
{
    uintptr_t h = (uintptr_t)key / 16 * 31 + (unsigned)kind;
    struct made **at = &b->schema->made[(h ^ h >> 9) % 512], *m = *at;
    for (; m != NULL; m = m->next) {
        rose_gr_work(b, 0);
        if (m->key == key && m->kind == kind) return &m->value;
    }
    m = rose_gr_take(b, sizeof *m);
    *m = (struct made){.next = *at, .key = key, .kind = kind};
    *at = m;
    return &m->value;
}

gr_dfa *rose_gr_pattern_dfa(gr_build *b, const char *pattern)
{
    void **known = rose_gr_memo(b, pattern, MEMO_PATTERN);
    if (*known == NULL) *known = rose_gr_dfa_of(b, rose_gr_pattern(b, pattern, strlen(pattern)));
    return *known;
}

gr_dfa *rose_gr_any_chars_dfa(gr_build *b)
{
    if (b->any_chars == NULL) b->any_chars = rose_gr_dfa_of(b, rose_gr_any_text(b));
    return b->any_chars;
}

/* ---- errors ---- */

static bool find_path(const rose_json *in, const rose_json *what, rose_buf *path, unsigned depth)
{
    size_t len = path->len, i;
    const char *key;
    rose_json *x;
    if (in == what) return true;
    if (depth == 0) return false;
    rose_json_each (in, key, x) {
        if (rose_buf_addf(path, "/%s", key) == ROSE_OK && find_path(x, what, path, depth - 1))
            return true;
        path->len = len;
    }
    rose_json_each_item (in, i, x) {
        if (rose_buf_addf(path, "/%zu", i) == ROSE_OK && find_path(x, what, path, depth - 1))
            return true;
        path->len = len;
    }
    return false;
}

void rose_gr_schema_refuse(gr_build *b, rose_json *at, const char *keyword, rose_status st,
                           const char *why)
{
    char where[200];
    rose_buf path = {0};
    const char *text = NULL;
    if (find_path(b->schema->root, at, &path, 200)) text = rose_buf_str(&path);
    snprintf(where, sizeof where, "%s", text != NULL ? text : "(inside of a combination)");
    rose_buf_free(&path);
    rose_gr_fail(b, st, "#%s%s%s: %s", where, keyword[0] != '\0' ? "/" : "", keyword, why);
}

void rose_gr_schema_place(gr_build *b, const char **keyword, char *place, size_t n)
{
    rose_buf path = {0};
    const struct choices *c = b->schema->choices, *most = c;
    for (; c->keyword != NULL; c++)
        if (c->n > most->n) most = c;
    *keyword = most->keyword != NULL ? most->keyword : "";
    for (c = b->schema->choices; c->keyword != NULL; c++) /* a oneOf becomes `not` of the others */
        if (strcmp(*keyword, "not") == 0 && strcmp(c->keyword, "oneOf") == 0) *keyword = "oneOf";
    if (find_path(b->schema->root, b->schema->at, &path, 200))
        snprintf(place, n, ", near #%s", path.len > 0 ? rose_buf_str(&path) : "");
    rose_buf_free(&path);
}

uint32_t rose_gr_schema_count(gr_build *b, rose_json *schema, const char *keyword, uint32_t other)
{
    rose_json *x = rose_json_get(schema, keyword);
    if (x == NULL) return other;
    const double v = rose_json_number_value(x);
    if (v <= GR_MAX_COUNT) return (uint32_t)v;
    if (keyword[0] == 'm' && keyword[1] == 'i')
        rose_gr_schema_refuse(b, schema, keyword, ROSE_E_UNSUPPORTED,
                              "a minimum beyond 4294967293 is not supported");
    return GR_INF; /* no text is so long */
}

/* ---- drafts and references ---- */

static int draft_of(const rose_json *root)
{
    const char *s = rose_json_text(rose_json_get(root, "$schema"));
    if (s == NULL) return 2020;
    if (strstr(s, "draft-04") != NULL || strstr(s, "draft-03") != NULL) return 4;
    if (strstr(s, "draft-06") != NULL) return 6;
    if (strstr(s, "draft-07") != NULL) return 7;
    return strstr(s, "2019-09") != NULL ? 2019 : 2020;
}

int rose_gr_schema_draft(const gr_build *b)
{
    return b->schema->draft;
}

/* One part of a JSON pointer in a URI: %xx, ~0 and ~1 are undone, in this order. */
static size_t unescape(const char *from, size_t n, char *to)
{
    size_t k = 0, w = 0;
    for (size_t i = 0; i < n; i++) {
        bool coded = from[i] == '%' && i + 2 < n && rose_hex_digit(from[i + 1]) >= 0 &&
                     rose_hex_digit(from[i + 2]) >= 0;
        int byte = coded ? rose_hex_digit(from[i + 1]) * 16 + rose_hex_digit(from[i + 2]) : from[i];
        to[k++] = (char)byte;
        if (coded) i += 2;
    }
    for (size_t i = 0; i < k; i++) {
        bool tilde = to[i] == '~' && i + 1 < k && (to[i + 1] == '0' || to[i + 1] == '1');
        to[w++] = !tilde ? to[i] : to[i + 1] == '0' ? '~' : '/';
        if (tilde) i++;
    }
    return w;
}

static rose_json *follow_pointer(gr_build *b, rose_json *at, const char *p)
{
    while (at != NULL && *p == '/') {
        size_t n = strcspn(++p, "/");
        char *name = rose_gr_take(b, n + 3);
        size_t len = unescape(p, n, name);
        name[len] = '\0';
        at = rose_json_is_array(at) ? rose_json_at(at, strtoul(name, NULL, 10))
                                    : rose_json_getn(at, name, len);
        p += n;
    }
    return *p == '\0' ? at : NULL;
}

/* Notes the schemas with an $anchor, or an $id "#name" as drafts 4 to 7 write it. The first one of
 * a name counts. */
static void note_anchors(gr_build *b, rose_json *in, unsigned depth)
{
    const char *key;
    size_t i;
    rose_json *x;
    static const char *const keys[] = {"$anchor", "$id", "id"};
    rose_gr_work(b, 8);
    for (size_t k = 0; k < 3; k++) {
        const char *s = rose_json_text(rose_json_get(in, keys[k]));
        if (s == NULL || (k > 0 && s[0] != '#')) continue;
        if (k > 0) s++;
        if (rose_json_get(b->schema->anchors, s) == NULL &&
            rose_json_set(b->schema->anchors, s, in) != 0)
            rose_gr_fail(b, ROSE_E_NOMEM, "out of memory");
    }
    if (depth == 0) return;
    rose_json_each (in, key, x)
        note_anchors(b, x, depth - 1);
    rose_json_each_item (in, i, x)
        note_anchors(b, x, depth - 1);
}

static rose_json *find_anchor(gr_build *b, const char *name)
{
    if (b->schema->anchors == NULL) {
        b->schema->anchors = rose_gr_keep(b, rose_json_object());
        note_anchors(b, b->schema->root, 60);
    }
    return rose_json_get(b->schema->anchors, name);
}

/* The schema whose $id is this URI, or ends with it. */
static rose_json *find_id(gr_build *b, rose_json *in, const char *uri, size_t n, unsigned depth)
{
    const char *key;
    rose_json *x, *found = NULL;
    rose_gr_work(b, 8);
    for (int k = 0; k < 2; k++) {
        const char *s = rose_json_text(rose_json_get(in, k == 0 ? "$id" : "id"));
        size_t len = s == NULL ? 0 : strcspn(s, "#");
        if (len >= n && n > 0 && memcmp(s + len - n, uri, n) == 0 &&
            (len == n || s[len - n - 1] == '/'))
            return in;
    }
    if (depth == 0) return NULL;
    rose_json_each (in, key, x) {
        if (found == NULL && rose_json_is_object(x)) found = find_id(b, x, uri, n, depth - 1);
    }
    return found;
}

static rose_json *resolve(gr_build *b, rose_json *schema, const char *ref)
{
    size_t n = strcspn(ref, "#");
    rose_json *at = b->schema->root;
    if (n > 0 && (at = find_id(b, at, ref, n, 60)) == NULL)
        rose_gr_schema_refuse(b, schema, "$ref", ROSE_E_UNSUPPORTED,
                              "leads to another document; only references inside of the schema "
                              "are followed");
    const char *p = ref[n] == '#' ? ref + n + 1 : "";
    rose_gr_work(b, 100);
    if (*p != '\0') at = *p == '/' ? follow_pointer(b, at, p) : find_anchor(b, p);
    if (!rose_json_is_object(at) && !rose_json_is_boolean(at))
        rose_gr_schema_refuse(b, schema, "$ref", ROSE_E_INVAL, "leads to no schema");
    return at;
}

rose_json *rose_gr_schema_deref(gr_build *b, rose_json *schema)
{
    const char *ref;
    for (int i = 0; (ref = rose_json_text(rose_json_get(schema, "$ref"))) != NULL; i++) {
        /* Before 2019-09 nothing beside a $ref counts. */
        if (b->schema->draft >= 2019 && rose_json_size(schema) > 1) return schema;
        if (i == 64) rose_gr_schema_refuse(b, schema, "$ref", ROSE_E_INVAL, "leads back to itself");
        schema = resolve(b, schema, ref);
    }
    return schema;
}

/* ---- the list of schemas ---- */

static void add_group(gr_build *b, gr_conj *c, struct gr_group g)
{
    rose_json *list = g.list;
    if (rose_json_count(list) == 1) {
        rose_gr_conj_add(b, c, rose_json_at(list, 0));
        return;
    }
    for (size_t i = 0; i < c->n_groups; i++)
        if (c->groups[i].list == list) return;
    c->groups = rose_gr_grown(b, c->groups, c->n_groups, &c->cap_groups, sizeof *c->groups);
    c->groups[c->n_groups++] = g;
}

/* oneOf is anyOf where no value can satisfy two of the schemas. Where two are not known to be
 * disjoint, each excludes the other. */
static void add_one_of(gr_build *b, gr_conj *c, rose_json *schema)
{
    rose_json *list = rose_json_get(schema, "oneOf"), *x, *y, *made;
    const rose_json *required = rose_json_get(schema, "required");
    size_t i, k;
    if (list == NULL) return;
    void **known = rose_gr_memo(b, schema, MEMO_ONE_OF);
    if (*known != NULL) {
        add_group(b, c, (struct gr_group){.list = *known, .keyword = "oneOf"});
        return;
    }
    *known = made = rose_gr_keep(b, rose_json_array());
    unsigned types = rose_gr_schema_types(schema);
    rose_json_each_item (list, i, x) {
        rose_json *all = rose_json_pack("[O]", x);
        rose_gr_json_add(b, made, rose_json_pack("{s:o}", "allOf", all));
        rose_json_each_item (list, k, y) {
            rose_gr_work(b, 4);
            if (k == i || rose_gr_schema_disjoint(b, x, y, types, required, 8)) continue;
            rose_gr_json_add(b, all, rose_json_pack("{s:O}", "not", y));
        }
    }
    add_group(b, c, (struct gr_group){.list = made, .keyword = "oneOf"});
}

/* {"a": schema}: either no property a, or the schema holds as well. Lists of names are kept for
 * schema_object.c. */
static void add_dependencies(gr_build *b, gr_conj *c, rose_json *schema, const char *keyword)
{
    const char *key;
    rose_json *x, *list;
    rose_json_each (rose_json_get(schema, keyword), key, x) {
        if (rose_json_is_array(x)) continue;
        void **known = rose_gr_memo(b, x, MEMO_DEPENDENCIES);
        if (*known != NULL) {
            add_group(b, c, (struct gr_group){.list = *known, .keyword = keyword});
            continue;
        }
        rose_json *then =
            rose_json_pack("{s:s, s:[s], s:[O]}", "type", "object", "required", key, "allOf", x);
        list = rose_json_pack("[{s:{s:b}}, o]", "properties", key, 0, then);
        *known = rose_gr_keep(b, list);
        add_group(b, c, (struct gr_group){.list = *known, .keyword = keyword});
    }
}

static void add_if(gr_build *b, gr_conj *c, rose_json *schema)
{
    rose_json *cond = rose_json_get(schema, "if"), *yes = rose_json_get(schema, "then"),
              *no = rose_json_get(schema, "else"), *list, *x;
    size_t i;
    if (cond == NULL || (yes == NULL && no == NULL)) return;
    void **known = rose_gr_memo(b, schema, MEMO_IF);
    if (*known != NULL) {
        add_group(b, c, (struct gr_group){.list = *known, .keyword = "if"});
        return;
    }
    *known = list = rose_gr_keep(b, rose_json_array());
    x = yes != NULL ? rose_json_pack("{s:[O,O]}", "allOf", cond, yes) : rose_json_incref(cond);
    rose_gr_json_add(b, list, x);
    rose_json *negated = rose_gr_negated(b, cond), *one;
    rose_json_each_item (negated, i, one) {
        x = no != NULL ? rose_json_pack("{s:[O,O]}", "allOf", one, no) : rose_json_incref(one);
        rose_gr_json_add(b, list, x);
    }
    add_group(b, c, (struct gr_group){.list = list, .keyword = "if"});
}

static void add_object(gr_build *b, gr_conj *c, rose_json *schema)
{
    rose_json *list, *x;
    size_t i;
    c->v = rose_gr_grown(b, c->v, c->n, &c->cap, sizeof(rose_json *));
    c->v[c->n++] = schema;
    list = rose_json_get(schema, "allOf");
    rose_json_each_item (list, i, x)
        rose_gr_conj_add(b, c, x);
    if ((list = rose_json_get(schema, "anyOf")) != NULL)
        add_group(b, c, (struct gr_group){.list = list, .keyword = "anyOf"});
    add_one_of(b, c, schema);
    if ((x = rose_json_get(schema, "not")) != NULL)
        add_group(b, c, (struct gr_group){rose_gr_negated(b, x), "not", x});
    if (b->schema->draft >= 7) add_if(b, c, schema);
    add_dependencies(b, c, schema, "dependencies");
    if (b->schema->draft >= 2019) {
        add_dependencies(b, c, schema, "dependentSchemas");
    }
}

void rose_gr_conj_add(gr_build *b, gr_conj *c, rose_json *schema)
{
    rose_gr_work(b, 20 + c->n / 4); /* about twenty look-ups */
    rose_gr_enter(b);
    c->by_ref = c->by_ref || rose_json_get(schema, "$ref") != NULL;
    schema = rose_gr_schema_deref(b, schema);
    b->schema->at = schema;
    bool there = rose_json_is_true(schema);
    for (size_t i = 0; i < c->n; i++)
        there = there || c->v[i] == schema;
    if (!there && rose_json_is_object(schema)) {
        const char *ref = rose_json_text(rose_json_get(schema, "$ref"));
        if (ref != NULL) rose_gr_conj_add(b, c, resolve(b, schema, ref));
        add_object(b, c, schema);
    } else if (rose_json_is_false(schema)) {
        c->never = true;
    } else if (!there) {
        rose_gr_schema_refuse(b, schema, "", ROSE_E_INVAL, "a schema must be an object or boolean");
    }
    rose_gr_leave(b);
}

/* ---- keywords ---- */

static void check_keywords(gr_build *b, rose_json *schema, unsigned types)
{
    static const struct {
        const char *name;
        unsigned types;
        int since, until;
    } refused[] = {
        {"contains", TYPE_ARRAY, 6, 9999},
        {"unevaluatedItems", TYPE_ARRAY, 2019, 9999},
        {"unevaluatedProperties", TYPE_OBJECT, 2019, 9999},
        {"$dynamicRef", TYPE_ALL, 2020, 9999},
        {"$recursiveRef", TYPE_ALL, 2019, 2019},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if ((types & refused[i].types) && b->schema->draft >= refused[i].since &&
            b->schema->draft <= refused[i].until && rose_json_get(schema, refused[i].name))
            rose_gr_schema_refuse(b, schema, refused[i].name, ROSE_E_UNSUPPORTED,
                                  "this keyword is not supported");
    rose_json *unique = rose_json_get(schema, "uniqueItems");
    if ((types & TYPE_ARRAY) && rose_json_is_true(unique) &&
        rose_gr_schema_count(b, schema, "maxItems", GR_INF) > 1)
        rose_gr_schema_refuse(b, schema, "uniqueItems", ROSE_E_UNSUPPORTED,
                              "this keyword is not supported");
}

unsigned rose_gr_type_bits(const char *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"null", TYPE_NULL},           {"boolean", TYPE_BOOL},
                 {"integer", TYPE_INTEGER},     {"number", TYPE_INTEGER | TYPE_FRACTION},
                 {"\1fraction", TYPE_FRACTION}, /* schema_not.c */
                 {"string", TYPE_STRING},       {"array", TYPE_ARRAY},
                 {"object", TYPE_OBJECT}};
    for (size_t i = 0; name != NULL && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0) return types[i].bits;
    return 0;
}

/* 0: no value has one, as in what is made of "not": {"type": [all types]}. */
unsigned rose_gr_schema_types(const rose_json *schema)
{
    rose_json *type = rose_json_get(schema, "type"), *x;
    unsigned bits = 0;
    size_t i;
    if (type == NULL) return TYPE_ALL;
    if (rose_json_is_string(type)) bits = rose_gr_type_bits(rose_json_text(type));
    rose_json_each_item (type, i, x)
        bits |= rose_gr_type_bits(rose_json_text(x));
    if (bits != 0 && rose_json_is_true(rose_json_get(schema, "nullable"))) bits |= TYPE_NULL;
    return bits;
}

/* ---- a list without choices ---- */

/* The values of enum and const that satisfy the whole list; NULL: neither keyword is there. */
static gr_node enum_node(gr_build *b, const gr_conj *c, bool *found)
{
    rose_json *values = NULL, *x;
    gr_list l = {0};
    size_t n_words = 0, i;
    *found = false;
    for (size_t k = 0; k < c->n && values == NULL; k++)
        values = rose_gr_listed(b, c->v[k]);
    if (values == NULL) return GR_NEVER;
    *found = true;
    gr_word *words = rose_gr_take(b, rose_json_count(values) * sizeof *words);
    const gr_dfa *d = rose_gr_demands_dfa(b, c);
    rose_json_each_item (values, i, x) {
        if (!rose_gr_value_fits(b, c, x, values)) continue;
        if (!rose_json_is_string(x)) {
            rose_gr_push(b, &l, rose_gr_json_literal(b, x));
            continue;
        }
        gr_word w = rose_gr_escaped(b, rose_json_text(x), rose_json_text_len(x));
        if (d == NULL || rose_gr_dfa_match(d, w.bytes, w.n)) words[n_words++] = w;
    }
    if (n_words > 0) {
        gr_node q = rose_gr_text(b, "\"");
        rose_gr_push(b, &l, GR_SEQ(b, q, rose_gr_words(b, words, n_words), q));
    }
    return rose_gr_alt(b, l.v, l.n);
}

static gr_node plain_node(gr_build *b, const gr_conj *c)
{
    unsigned types = TYPE_ALL;
    bool found;
    gr_list l = {0};
    rose_gr_work(b, c->n * 40); /* about forty look-ups */
    for (size_t i = 0; i < c->n; i++) {
        types &= rose_gr_schema_types(c->v[i]);
    }
    for (size_t i = 0; i < c->n; i++)
        check_keywords(b, c->v[i], types);
    gr_node values = enum_node(b, c, &found);
    if (found) return values;
    if (types & TYPE_OBJECT) rose_gr_push(b, &l, rose_gr_object_node(b, c));
    if (types & TYPE_ARRAY) rose_gr_push(b, &l, rose_gr_array_node(b, c));
    if (types & TYPE_STRING) rose_gr_push(b, &l, rose_gr_string_node(b, c));
    if (types & (TYPE_INTEGER | TYPE_FRACTION))
        rose_gr_push(b, &l, rose_gr_number_node(b, c, types));
    static const struct {
        unsigned type;
        const char *text;
    } words[] = {{TYPE_BOOL, "true"}, {TYPE_BOOL, "false"}, {TYPE_NULL, "null"}};
    for (size_t i = 0; i < 3; i++) {
        rose_json *v = words[i].type == TYPE_NULL ? rose_json_null() : rose_json_boolean(i == 0);
        if ((types & words[i].type) && rose_gr_value_fits(b, c, v, NULL))
            rose_gr_push(b, &l, rose_gr_text(b, words[i].text));
    }
    return rose_gr_alt(b, l.v, l.n);
}

static void *copied(gr_build *b, const void *from, size_t n, size_t size)
{
    void *to = rose_gr_take(b, (n + 1) * size);
    if (n > 0) memcpy(to, from, n * size);
    return to;
}

gr_conj rose_gr_conj_copy(gr_build *b, const gr_conj *c)
{
    gr_conj to = *c;
    to.v = copied(b, c->v, c->n, sizeof(rose_json *));
    to.groups = copied(b, c->groups, c->n_groups, sizeof *c->groups);
    to.cap = c->n + 1;
    to.cap_groups = c->n_groups + 1;
    to.by_ref = false;
    return to;
}

static void count_choices(gr_build *b, const struct gr_group *g)
{
    struct choices *c = b->schema->choices;
    while (c->keyword != NULL && c->keyword != g->keyword)
        c++; /* seven keywords give choices */
    c->keyword = g->keyword;
    c->n += rose_json_count(g->list);
}

/* Does `required`, or a map of dependencies, hold this name? */
static bool names(gr_build *b, rose_json *schema, const char *keyword, const char *name)
{
    rose_json *x = rose_json_get(schema, keyword), *list;
    const char *key;
    size_t i;
    rose_gr_work(b, rose_json_count(x) / 2);
    for (i = 0; i < rose_json_count(x); i++)
        if (strcmp(rose_json_text(rose_json_at(x, i)), name) == 0) return true;
    rose_json_each (x, key, list) {
        if (strcmp(key, name) == 0) return true;
        rose_gr_work(b, rose_json_count(list) / 2);
        for (i = 0; i < rose_json_count(list); i++)
            if (strcmp(rose_json_text(rose_json_at(list, i)), name) == 0) return true;
    }
    return false;
}

static bool speaks_of(gr_build *b, const gr_conj *c, const char *name)
{
    static const char *const lists[] = {"required", "dependencies", "dependentRequired"};
    for (size_t i = 0; i < c->n; i++) {
        if (rose_json_get(rose_json_get(c->v[i], "properties"), name) != NULL) return true;
        for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
            if (names(b, c->v[i], lists[k], name)) return true;
    }
    return false;
}

/* No value that c allows satisfies y: c has objects without a name that y requires. This makes a
 * oneOf of many objects cheap, each of which requires a name of its own. */
static bool lacks_required(gr_build *b, const gr_conj *c, rose_json *y)
{
    const rose_json *required = rose_json_get(y = rose_gr_schema_deref(b, y), "required");
    unsigned types = rose_gr_schema_types(y);
    for (size_t i = 0; i < c->n; i++)
        types &= rose_gr_schema_types(c->v[i]);
    rose_gr_work(b, c->n * 16);
    if ((types & ~(unsigned)TYPE_OBJECT) != 0 || !rose_gr_conj_closed(b, c)) return false;
    for (size_t i = 0; i < rose_json_count(required); i++) {
        rose_gr_work(b, c->n * 8);
        if (!speaks_of(b, c, rose_json_text(rose_json_at(required, i)))) return true;
    }
    return false;
}

/* Moves to the end a choice that c does not make needless; false: there is none. */
static bool find_choice(gr_build *b, gr_conj *c)
{
    size_t i = c->n_groups;
    while (i > 0 && c->groups[i - 1].negates != NULL &&
           lacks_required(b, c, c->groups[i - 1].negates))
        i--;
    if (i == 0) return false;
    const struct gr_group g = c->groups[i - 1];
    c->groups[i - 1] = c->groups[c->n_groups - 1];
    c->groups[c->n_groups - 1] = g;
    return true;
}

/* Multiplies the choices out. */
static gr_node choose(gr_build *b, gr_conj *c)
{
    gr_list l = {0};
    rose_json *x;
    size_t i;
    if (c->never) return GR_NEVER;
    if (!find_choice(b, c)) return c->n == 0 ? rose_gr_any_value(b) : plain_node(b, c);
    const struct gr_group group = c->groups[--c->n_groups];
    rose_json *list = group.list;
    const gr_cost outer = b->cost;
    b->cost = COST_CHOICES;
    count_choices(b, &group);
    rose_json_each_item (list, i, x) {
        gr_conj one = rose_gr_conj_copy(b, c);
        rose_gr_conj_add(b, &one, x);
        rose_gr_push(b, &l, rose_gr_conj_node(b, &one));
    }
    b->cost = outer;
    return rose_gr_alt(b, l.v, l.n);
}

static uint64_t hash_conj(const gr_conj *c)
{
    uint64_t h = c->n;
    for (size_t i = 0; i < c->n + c->n_groups; i++) {
        const void *p = i < c->n ? (const void *)c->v[i] : c->groups[i - c->n].list;
        h = (h ^ (uintptr_t)p) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return h;
}

static bool same_conj(const gr_conj *x, const gr_conj *y)
{
    return x->n == y->n && x->n_groups == y->n_groups &&
           (x->n == 0 || memcmp(x->v, y->v, x->n * sizeof(rose_json *)) == 0) &&
           (x->n_groups == 0 || memcmp(x->groups, y->groups, x->n_groups * sizeof *x->groups) == 0);
}

/* The rule of a list that a $ref led to. Its body is built later, by the loop of rose_gr_schema. */
static gr_node rule_of(gr_build *b, const gr_conj *c)
{
    struct gr_schema *s = b->schema;
    const uint64_t hash = hash_conj(c);
    rose_gr_work(b, (s->n_memos + c->n + c->n_groups) / 4);
    for (size_t i = 0; i < s->n_memos; i++)
        if (s->memos[i].hash == hash && same_conj(&s->memos[i].conj, c)) return s->memos[i].rule;
    s->memos = rose_gr_grown(b, s->memos, s->n_memos, &s->cap_memos, sizeof *s->memos);
    s->memos[s->n_memos] = (memo){rose_gr_conj_copy(b, c), hash, rose_gr_rule_new(b, "of a $ref")};
    return s->memos[s->n_memos++].rule;
}

gr_node rose_gr_conj_node(gr_build *b, gr_conj *c)
{
    if (c->never) return GR_NEVER;
    if (c->by_ref) return rule_of(b, c);
    rose_gr_enter(b);
    gr_node x = choose(b, c);
    rose_gr_leave(b);
    return x;
}

void rose_gr_schema_begin(gr_build *b, rose_json *schema)
{
    struct gr_schema *s = rose_gr_take(b, sizeof *s);
    *s = (struct gr_schema){.root = schema, .draft = draft_of(schema)};
    b->schema = s;
    rose_gr_schema_check(b, schema);
}

void rose_gr_schema_finish(gr_build *b)
{
    struct gr_schema *s = b->schema;
    for (size_t i = 0; i < s->n_memos; i++) {
        gr_conj c = rose_gr_conj_copy(b, &s->memos[i].conj); /* the list of memos may move */
        gr_node body = rose_gr_conj_node(b, &c);
        rose_gr_rule_define(b, s->memos[i].rule, body);
    }
}

gr_node rose_gr_schema(gr_build *b, rose_json *schema)
{
    gr_conj c = {0};
    rose_gr_schema_begin(b, schema);
    rose_gr_conj_add(b, &c, schema);
    gr_node root = rose_gr_conj_node(b, &c);
    rose_gr_schema_finish(b);
    return root;
}
