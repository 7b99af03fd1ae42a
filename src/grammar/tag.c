/* grammar/tag.c - structural tags, XGrammar's tree of formats (docs/structural_tag): free text with
 * regions that obey a schema, a grammar or an expression. Free text never holds the triggers that
 * begin a region, nor the end of the tag around it, so what follows is always clear. Also the older
 * form {"structures": [{"begin", "schema", "end"}], "triggers": [...]}. Formats that name tokens
 * and limits in tokens are refused by name. */
#include <string.h>

#include "grammar/grammar_internal.h"

/* Texts that free text must not hold: those of the tags around it. */
typedef struct stops {
    const struct stops *outer;
    const rose_json *texts; /* a string or a list of strings; NULL: none */
} stops;

static gr_node format_node(gr_build *b, rose_json *f, const stops *s);

static const char *type_of(const rose_json *f)
{
    const char *type = rose_json_text(rose_json_get(f, "type"));
    return type != NULL ? type : "(without a type)";
}

static _Noreturn void refuse(gr_build *b, rose_status st, const rose_json *f, const char *why)
{
    rose_gr_fail(b, st, "the format \"%s\": %s", type_of(f), why);
}

static rose_json *member(gr_build *b, rose_json *f, const char *name)
{
    rose_json *x = rose_json_get(f, name);
    if (x == NULL)
        rose_gr_fail(b, ROSE_E_INVAL, "the format \"%s\" lacks \"%s\"", type_of(f), name);
    return x;
}

static gr_node text_node(gr_build *b, const rose_json *f, const rose_json *x)
{
    if (!rose_json_is_string(x)) refuse(b, ROSE_E_UNSUPPORTED, f, "a text must be a string");
    return rose_gr_bytes(b, rose_json_text(x), rose_json_text_len(x));
}

/* A string, or any of a list of strings. */
static gr_node texts_node(gr_build *b, const rose_json *f, const rose_json *x)
{
    gr_list l = {0};
    size_t i;
    rose_json *one;
    if (!rose_json_is_array(x)) return text_node(b, f, x);
    rose_json_each_item (x, i, one)
        rose_gr_push(b, &l, text_node(b, f, one));
    return rose_gr_alt(b, l.v, l.n);
}

/* A flag of a format; NULL and null are false. */
static bool flag(gr_build *b, const rose_json *f, const char *name)
{
    const rose_json *x = rose_json_get(f, name);
    if (x != NULL && !rose_json_is_null(x) && !rose_json_is_boolean(x))
        refuse(b, ROSE_E_INVAL, f,
               "at_least_one, stop_after_first, loop and any_order must be "
               "true or false");
    return rose_json_is_true(x);
}

/* A list of strings, or nothing. */
static const rose_json *texts(gr_build *b, const rose_json *f, const char *name)
{
    const rose_json *x = rose_json_get(f, name);
    if (x == NULL || rose_json_is_null(x)) return NULL;
    for (size_t i = 0; i < rose_json_count(x); i++)
        if (!rose_json_is_string(rose_json_at(x, i))) x = NULL;
    if (!rose_json_is_array(x))
        refuse(b, ROSE_E_INVAL, f, "triggers and excludes must be lists of strings");
    return x;
}

/* ---- free text ---- */

typedef struct word_list {
    gr_word *v;
    size_t n, cap;
} word_list;

static void add_texts(gr_build *b, word_list *l, const rose_json *x)
{
    size_t i;
    rose_json *one;
    if (rose_json_is_string(x) && rose_json_text_len(x) > 0) {
        l->v = rose_gr_grown(b, l->v, l->n, &l->cap, sizeof *l->v);
        l->v[l->n++] = (gr_word){rose_json_text(x), rose_json_text_len(x)};
    }
    rose_json_each_item (x, i, one)
        add_texts(b, l, one);
}

/* Any text without the texts of two lists and of s. */
static gr_node free_text(gr_build *b, const rose_json *x, const rose_json *y, const stops *s)
{
    word_list l = {0};
    bool plain = b->plain_class;
    b->plain_class = true;
    gr_node any = rose_gr_any_text(b);
    b->plain_class = plain;
    add_texts(b, &l, x);
    add_texts(b, &l, y);
    for (; s != NULL; s = s->outer)
        add_texts(b, &l, s->texts);
    if (l.n == 0) return any;
    return rose_gr_dfa_node(b, rose_gr_dfa_combine(b, rose_gr_dfa_of(b, any),
                                                   rose_gr_dfa_without(b, l.v, l.n), DFA_AND));
}

gr_node rose_gr_text_without(gr_build *b, const char *end)
{
    return free_text(b, rose_gr_keep(b, rose_json_string(end)), NULL, NULL);
}

static gr_node any_text(gr_build *b, rose_json *f, const stops *s)
{
    static const char *const limits[] = {"max_tokens", "max_chars"};
    for (size_t i = 0; i < 2; i++) {
        const rose_json *x = rose_json_get(f, limits[i]);
        if (x != NULL && !rose_json_is_null(x))
            refuse(b, ROSE_E_UNSUPPORTED, f, "max_tokens and max_chars are not supported");
    }
    return free_text(b, texts(b, f, "excludes"), NULL, s);
}

/* ---- regions ---- */

gr_node rose_gr_schema_within(gr_build *b, rose_json *schema, const char *style)
{
    struct gr_schema *outer = b->schema;
    const bool plain = b->plain_class;
    b->plain_class = false;
    const gr_node x = style == NULL || strcmp(style, "json") == 0 ? rose_gr_schema(b, schema)
                                                                  : rose_gr_xml(b, schema, style);
    b->schema = outer;
    b->plain_class = plain;
    return x;
}

static gr_node schema_node(gr_build *b, rose_json *f)
{
    const rose_json *given = rose_json_get(f, "style");
    const char *style = rose_json_text(given);
    if (style == NULL && given != NULL && !rose_json_is_null(given))
        refuse(b, ROSE_E_INVAL, f, "style must be a string");
    const bool order = b->opts.schema_order;
    if (flag(b, f, "any_order")) b->opts.schema_order = false;
    const gr_node x = rose_gr_schema_within(b, member(b, f, "json_schema"), style);
    b->opts.schema_order = order;
    return x;
}

static gr_node expression_node(gr_build *b, rose_json *f, const char *name, bool regex)
{
    const rose_json *x = member(b, f, name);
    bool plain = b->plain_class;
    if (!rose_json_is_string(x)) refuse(b, ROSE_E_INVAL, f, "the expression must be a string");
    b->plain_class = true;
    gr_node node = regex ? rose_gr_regex(b, rose_json_text(x), rose_json_text_len(x))
                         : rose_gr_ebnf(b, rose_json_text(x), rose_json_text_len(x));
    b->plain_class = plain;
    return node;
}

static gr_node tag_node(gr_build *b, rose_json *f, const stops *s)
{
    const rose_json *end = member(b, f, "end");
    stops inner = {s, end};
    gr_node content = format_node(b, member(b, f, "content"), &inner);
    return GR_SEQ(b, text_node(b, f, member(b, f, "begin")), content, texts_node(b, f, end));
}

static gr_node tags_node(gr_build *b, rose_json *f)
{
    gr_list l = {0};
    size_t i;
    rose_json *x, *list = member(b, f, "tags");
    rose_json_each_item (list, i, x)
        rose_gr_push(b, &l, tag_node(b, x, NULL));
    if (l.n == 0) refuse(b, ROSE_E_INVAL, f, "\"tags\" must be a list of at least one tag");
    return rose_gr_alt(b, l.v, l.n);
}

/* Each tag begins with a trigger: else free text could swallow its begin. */
static void check_triggers(gr_build *b, rose_json *f, const rose_json *triggers)
{
    size_t i, k;
    rose_json *tag, *t;
    rose_json_each_item (member(b, f, "tags"), i, tag) {
        const char *begin = rose_json_text(rose_json_get(tag, "begin"));
        bool found = false;
        rose_json_each_item (triggers, k, t) {
            const char *s = rose_json_text(t);
            rose_gr_work(b, 0);
            found = found || (begin != NULL && s != NULL && s[0] != '\0' &&
                              strncmp(begin, s, strlen(s)) == 0);
        }
        if (!found) refuse(b, ROSE_E_INVAL, f, "each tag must begin with one of the triggers");
    }
}

/* Free text and regions. */
static gr_node dispatched(gr_build *b, rose_json *f, gr_node regions, gr_node text)
{
    bool some = flag(b, f, "at_least_one");
    bool once = flag(b, f, "stop_after_first");
    if (!flag(b, f, "loop") && rose_json_is_false(rose_json_get(f, "loop"))) once = true;
    if (some && once) return regions;
    if (once) return GR_SEQ(b, text, rose_gr_opt(b, regions));
    gr_node more = rose_gr_repeat(b, GR_SEQ(b, regions, text), some ? 1 : 0, GR_INF);
    return some ? more : GR_SEQ(b, text, more);
}

static gr_node triggered_node(gr_build *b, rose_json *f, const stops *s)
{
    (void)member(b, f, "triggers");
    const rose_json *triggers = texts(b, f, "triggers");
    check_triggers(b, f, triggers);
    gr_node text = free_text(b, triggers, texts(b, f, "excludes"), s);
    return dispatched(b, f, tags_node(b, f), text);
}

static gr_node dispatch_node(gr_build *b, rose_json *f, const stops *s)
{
    rose_json *rules = member(b, f, "rules"), *x;
    rose_json *triggers = rose_gr_keep(b, rose_json_array());
    gr_list l = {0};
    size_t i;
    rose_json_each_item (rules, i, x) {
        rose_json *begin = rose_json_at(x, 0), *content = rose_json_at(x, 1);
        if (!rose_json_is_string(begin) || content == NULL)
            refuse(b, ROSE_E_INVAL, f, "a rule must be [text, format]");
        rose_gr_json_add(b, triggers, rose_json_incref(begin));
        rose_gr_push(b, &l, GR_SEQ(b, text_node(b, f, begin), format_node(b, content, s)));
    }
    if (l.n == 0) refuse(b, ROSE_E_INVAL, f, "\"rules\" must be a list of at least one rule");
    gr_node text = free_text(b, triggers, texts(b, f, "excludes"), s);
    return dispatched(b, f, rose_gr_alt(b, l.v, l.n), text);
}

static gr_node separated_node(gr_build *b, rose_json *f)
{
    gr_node tag = tags_node(b, f), separator = text_node(b, f, member(b, f, "separator"));
    bool once = flag(b, f, "stop_after_first");
    gr_node more = rose_gr_repeat(b, GR_SEQ(b, separator, tag), 0, once ? 0 : GR_INF);
    gr_node all = GR_SEQ(b, tag, more);
    return flag(b, f, "at_least_one") ? all : rose_gr_opt(b, all);
}

/* ---- combinations ---- */

static gr_node elements_node(gr_build *b, rose_json *f, const stops *s, bool in_order)
{
    rose_json *list = member(b, f, "elements"), *x;
    size_t i, n = rose_json_count(list);
    gr_list l = {0};
    if (n == 0) refuse(b, ROSE_E_INVAL, f, "\"elements\" must be a list of at least one format");
    rose_json_each_item (list, i, x)
        rose_gr_push(b, &l, format_node(b, x, !in_order || i + 1 == n ? s : NULL));
    return in_order ? rose_gr_seq(b, l.v, l.n) : rose_gr_alt(b, l.v, l.n);
}

static gr_node repeat_node(gr_build *b, rose_json *f, const stops *s)
{
    const rose_json *least = member(b, f, "min"), *most = member(b, f, "max");
    int64_t min = rose_json_int(least), max = rose_json_int(most);
    if (!rose_json_is_integer(least) || !rose_json_is_integer(most) || min < 0 || max < -1)
        refuse(b, ROSE_E_INVAL, f,
               "min and max must be counts up to 4294967293, max -1 for any number");
    if (max == -1) max = GR_INF;
    if (min > GR_MAX_COUNT || (max > GR_MAX_COUNT && max != GR_INF))
        refuse(b, ROSE_E_UNSUPPORTED, f, GR_COUNT_TOO_LARGE);
    if (max < min) refuse(b, ROSE_E_INVAL, f, "min is above max");
    return rose_gr_repeat(b, format_node(b, member(b, f, "content"), s), (uint32_t)min,
                          (uint32_t)max);
}

static gr_node format_by_type(gr_build *b, rose_json *f, const char *type, const stops *s)
{
    if (strcmp(type, "const_string") == 0) return text_node(b, f, member(b, f, "value"));
    if (strcmp(type, "json_schema") == 0) return schema_node(b, f);
    if (strcmp(type, "grammar") == 0) return expression_node(b, f, "grammar", false);
    if (strcmp(type, "regex") == 0) return expression_node(b, f, "pattern", true);
    if (strcmp(type, "any_text") == 0) return any_text(b, f, s);
    if (strcmp(type, "sequence") == 0) return elements_node(b, f, s, true);
    if (strcmp(type, "or") == 0) return elements_node(b, f, s, false);
    if (strcmp(type, "tag") == 0) return tag_node(b, f, s);
    if (strcmp(type, "triggered_tags") == 0) return triggered_node(b, f, s);
    if (strcmp(type, "dispatch") == 0) return dispatch_node(b, f, s);
    if (strcmp(type, "tags_with_separator") == 0) return separated_node(b, f);
    if (strcmp(type, "repeat") == 0) return repeat_node(b, f, s);
    bool optional = strcmp(type, "optional") == 0, plus = strcmp(type, "plus") == 0;
    if (!optional && !plus && strcmp(type, "star") != 0)
        refuse(b, ROSE_E_UNSUPPORTED, f, "this format is not supported");
    return rose_gr_repeat(b, format_node(b, member(b, f, "content"), s), plus ? 1 : 0,
                          optional ? 1 : GR_INF);
}

static gr_node format_node(gr_build *b, rose_json *f, const stops *s)
{
    const char *type = rose_json_text(rose_json_get(f, "type"));
    if (type == NULL) refuse(b, ROSE_E_INVAL, f, "a format must be an object with a \"type\"");
    rose_gr_enter(b);
    gr_node x = format_by_type(b, f, type, s);
    rose_gr_leave(b);
    return x;
}

/* {"structures": [{"begin", "schema", "end"}], "triggers"} as triggered_tags. */
static rose_json *from_old_form(gr_build *b, rose_json *tag)
{
    rose_json *triggers = member(b, tag, "triggers"), *tags = rose_gr_keep(b, rose_json_array()),
              *x;
    rose_json *f = rose_gr_keep(b, rose_json_pack("{s:s, s:O, s:O}", "type", "triggered_tags",
                                                  "triggers", triggers, "tags", tags));
    size_t i;
    rose_json_each_item (rose_json_get(tag, "structures"), i, x) {
        rose_gr_json_add(b, tags,
                         rose_json_pack("{s:s, s:O, s:{s:s, s:O}, s:O}", "type", "tag", "begin",
                                        member(b, x, "begin"), "content", "type", "json_schema",
                                        "json_schema", member(b, x, "schema"), "end",
                                        member(b, x, "end")));
    }
    return f;
}

gr_node rose_gr_tag(gr_build *b, rose_json *tag)
{
    rose_json *f = rose_json_get(tag, "format");
    b->plain_class = true;
    if (rose_json_get(tag, "structures") != NULL) f = from_old_form(b, tag);
    if (f == NULL) f = tag; /* a format without the request around it */
    return format_node(b, f, NULL);
}
