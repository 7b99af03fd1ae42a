/* grammar/schema_string.c - strings of a JSON schema: pattern, format, lengths. A string that has
 * only lengths may use every escape of JSON. With a pattern or format, characters are written as
 * chars.c says, and several demands are intersected as automata. */
#include <string.h>

#include "grammar/schema_internal.h"

/* What a list of schemas demands of a string. */
typedef struct demands {
    gr_list texts;       /* nodes of the inside of the string; all must hold */
    const char *format;  /* the expression of texts.v[0]; NULL: it is no format's */
    gr_list forbids;     /* none may hold */
    uint32_t min, max;   /* characters */
    uint32_t format_max; /* of the formats; left out where the automaton would be large */
} demands;

static gr_node words_of(gr_build *b, const rose_json *list)
{
    size_t n = 0, i;
    rose_json *x;
    gr_word *words = rose_gr_take(b, (rose_json_count(list) + 1) * sizeof *words);
    rose_json_each_item (list, i, x) {
        if (rose_json_is_string(x))
            words[n++] = rose_gr_escaped(b, rose_json_text(x), rose_json_text_len(x));
    }
    return rose_gr_words(b, words, n);
}

static gr_node pattern_at(gr_build *b, rose_json *schema, const char *keyword)
{
    const rose_json *p = rose_json_get(schema, keyword);
    if (p == NULL) return GR_NEVER;
    return rose_gr_pattern(b, rose_json_text(p), rose_json_text_len(p));
}

/* The node of the expression of a format, made once. */
static gr_node format_node(gr_build *b, const char *regex)
{
    void **known = rose_gr_memo(b, regex, MEMO_FORMAT_NODE);
    if (*known == NULL)
        *known = (void *)(uintptr_t)rose_gr_regex(b, regex, strlen(regex)); /* never GR_NEVER */
    return (gr_node)(uintptr_t)*known;
}

static void add_format(gr_build *b, rose_json *schema, demands *d)
{
    const char *name = rose_json_text(rose_json_get(schema, "format"));
    bool known;
    uint32_t max;
    if (name == NULL) return;
    const char *regex = rose_gr_format(name, rose_gr_schema_draft(b), &known, &max);
    if (regex != NULL && max < d->format_max) d->format_max = max;
    if (regex != NULL && d->texts.n == 0) d->format = regex;
    if (regex != NULL)
        rose_gr_push(b, &d->texts, format_node(b, regex));
    else if (known)
        rose_gr_schema_refuse(b, schema, "format", ROSE_E_UNSUPPORTED,
                              "this format is not supported");
}

static void add_demands(gr_build *b, rose_json *schema, demands *d)
{
    uint32_t min = rose_gr_schema_count(b, schema, "minLength", 0);
    uint32_t max = rose_gr_schema_count(b, schema, "maxLength", GR_INF);
    gr_node x;
    if (min > d->min) d->min = min;
    if (max < d->max) d->max = max;
    if (rose_json_get(schema, "pattern") != NULL)
        rose_gr_push(b, &d->texts, pattern_at(b, schema, "pattern"));
    add_format(b, schema, d);
    if ((x = pattern_at(b, schema, "\1pattern")) != GR_NEVER) rose_gr_push(b, &d->forbids, x);
    if ((x = words_of(b, rose_json_get(schema, "\1not"))) != GR_NEVER)
        rose_gr_push(b, &d->forbids, x);
}

/* The bytes of the longest text of d; GR_INF if there is none, because d has a circle. States are
 * taken once all edges into them were followed. */
static uint32_t longest(gr_build *b, const gr_dfa *d)
{
    uint32_t *into = rose_gr_take(b, d->n * sizeof *into), *best, *ready, n = 1, most = 0;
    best = rose_gr_take(b, d->n * sizeof *best);
    ready = rose_gr_take(b, d->n * sizeof *ready);
    rose_gr_work(b, d->n * UINT64_C(48));
    for (uint32_t s = 1; s < d->n; s++)
        for (unsigned c = 0; c < 256; c++)
            into[d->next[s][c]]++;
    if (into[1] > 0) return GR_INF;
    ready[0] = 1;
    for (uint32_t i = 0; i < n; i++) {
        for (unsigned c = 0; c < 256; c++) {
            uint32_t to = d->next[ready[i]][c];
            if (to == 0) continue;
            if (best[to] < best[ready[i]] + 1) best[to] = best[ready[i]] + 1;
            if (--into[to] == 0) ready[n++] = to;
        }
        if (best[ready[i]] > most) most = best[ready[i]];
    }
    return n == d->n - 1 ? most : GR_INF;
}

/* All demands but the length. */
static gr_dfa *combined(gr_build *b, const demands *d)
{
    gr_dfa *x = NULL;
    for (size_t i = 0; i < d->texts.n; i++) {
        void *own = NULL,
             **known = i == 0 && d->format != NULL ? rose_gr_memo(b, d->format, MEMO_FORMAT) : &own;
        if (*known == NULL) *known = rose_gr_dfa_of(b, d->texts.v[i]);
        gr_dfa *y = *known;
        x = x == NULL ? y : rose_gr_dfa_combine(b, x, y, DFA_AND);
    }
    if (x == NULL) x = rose_gr_any_chars_dfa(b);
    for (size_t i = 0; i < d->forbids.n; i++)
        x = rose_gr_dfa_combine(b, x, rose_gr_dfa_of(b, d->forbids.v[i]), DFA_MINUS);
    return x;
}

gr_node rose_gr_string_node(gr_build *b, const gr_conj *c)
{
    demands d = {.max = GR_INF, .format_max = GR_INF};
    gr_node quote = rose_gr_text(b, "\"");
    for (size_t i = 0; i < c->n; i++)
        add_demands(b, c->v[i], &d);
    if (d.format_max < d.max) d.max = d.format_max;
    if (d.min > d.max) return GR_NEVER;
    bool lengths = d.min > 0 || d.max != GR_INF;
    if (d.forbids.n == 0 && d.texts.n == 0) {
        if (!lengths) return rose_gr_any_string(b);
        return GR_SEQ(b, quote, rose_gr_repeat(b, rose_gr_string_char(b), d.min, d.max), quote);
    }
    if (d.forbids.n == 0 && d.texts.n == 1 && !lengths)
        return GR_SEQ(b, quote, d.texts.v[0], quote);
    gr_dfa *x = combined(b, &d);
    if (d.max != GR_INF && longest(b, x) <= d.max) d.max = GR_INF;
    if (d.min == 0 && d.max == GR_INF) return GR_SEQ(b, quote, rose_gr_dfa_node(b, x), quote);
    gr_counted *k = rose_gr_counted(b, x, d.min, d.max);
    gr_node text = k == NULL      ? rose_gr_dfa_node(b, rose_gr_dfa_length(b, x, d.min, d.max))
                   : k->lo[1] > 0 ? GR_NEVER /* no text has such a length */
                                  : rose_gr_counted_node(b, k);
    return GR_SEQ(b, quote, text, quote);
}

/* The words of enum and const; NULL: the schema has neither. */
static gr_dfa *named(gr_build *b, rose_json *schema)
{
    const rose_json *list = rose_gr_listed(b, schema);
    return list == NULL ? NULL : rose_gr_dfa_of(b, words_of(b, list));
}

gr_dfa *rose_gr_demands_dfa(gr_build *b, const gr_conj *c)
{
    demands d = {.max = GR_INF, .format_max = GR_INF};
    for (size_t i = 0; i < c->n; i++)
        add_demands(b, c->v[i], &d);
    if (d.min > d.max) return rose_gr_dfa_of(b, GR_NEVER);
    if (d.texts.n + d.forbids.n == 0 && d.min == 0 && d.max == GR_INF) return NULL;
    gr_dfa *x = combined(b, &d);
    return d.min == 0 && d.max == GR_INF ? x : rose_gr_dfa_length(b, x, d.min, d.max);
}

gr_dfa *rose_gr_string_dfa(gr_build *b, const gr_conj *c)
{
    gr_dfa *all = NULL;
    bool is_string = !c->never;
    for (size_t i = 0; i < c->n; i++) {
        gr_dfa *x = named(b, c->v[i]);
        if (!(rose_gr_schema_types(c->v[i]) & TYPE_STRING)) is_string = false;
        if (x != NULL) all = all == NULL ? x : rose_gr_dfa_combine(b, all, x, DFA_AND);
    }
    if (!is_string) return rose_gr_dfa_of(b, GR_NEVER);
    gr_dfa *x = rose_gr_demands_dfa(b, c);
    return x == NULL ? all : all == NULL ? x : rose_gr_dfa_combine(b, all, x, DFA_AND);
}
