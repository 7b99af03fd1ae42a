/* grammar/ebnf.c - grammars in GBNF (llama.cpp) and in XGrammar's EBNF, which extends it. White
 * space and line ends mean nothing: a rule ends where `name ::=` begins. The text must match the
 * rule `root`. A rule that begins with itself, `a ::= a "x" | "y"`, becomes a repetition. Refused
 * by name: rule options, macros, look-ahead, tokens such as <[7]> or <think>. Grammars of Lark are
 * recognised here and read by lark.c. */
#include <string.h>

#include "grammar/grammar_internal.h"

#define refuse rose_gr_source_refuse

_Noreturn void rose_gr_source_refuse(const gr_source *e, rose_status st, const char *why)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < e->at && i < e->n; i++) {
        column = e->s[i] == '\n' ? 1 : column + 1;
        line += e->s[i] == '\n';
    }
    rose_gr_fail(e->b, st, "line %zu, column %zu: %s", line, column, why);
}

void rose_gr_source_skip(gr_source *e)
{
    for (; e->at < e->n; e->at++) {
        if (gr_at_char(e, '#') || (e->lark && gr_looking_at(e, "//")))
            while (e->at < e->n && e->s[e->at] != '\n')
                e->at++;
        else if (e->s[e->at] == '\0' || strchr(" \t\r\n", e->s[e->at]) == NULL)
            return;
    }
    e->at = e->n;
}

static bool is_name_char(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && c >= '0' && c <= '9');
}

size_t rose_gr_source_name(const gr_source *e)
{
    size_t n = 0;
    for (; e->at + n < e->n; n++) {
        const char c = e->s[e->at + n];
        const bool inner = !e->lark && n > 0 && (c == '-' || c == '.');
        if (!inner && !is_name_char(c, n == 0)) break;
    }
    return n;
}

/* Does `name ::=` stand here? */
static bool at_definition(const gr_source *e)
{
    gr_source ahead = *e;
    ahead.at += rose_gr_source_name(e);
    if (ahead.at == e->at) return false;
    rose_gr_source_skip(&ahead);
    return gr_looking_at(&ahead, "::=");
}

/* ---- rules ---- */

static bool begins_with(const gr_build *b, gr_node x, gr_node rule)
{
    gr_node_data d = b->nodes[x];
    return x == rule || (d.kind == NODE_SEQ && b->kids[d.a] == rule);
}

/* a ::= a x | y  becomes  a ::= y x*. */
static gr_node without_left_recursion(gr_build *b, gr_node rule, gr_node body)
{
    gr_node_data d = b->nodes[body];
    gr_list first = {0}, more = {0};
    if (d.kind != NODE_ALT && !begins_with(b, body, rule)) return body;
    for (uint32_t i = 0; i < (d.kind == NODE_ALT ? d.n : 1); i++) {
        gr_node x = d.kind == NODE_ALT ? b->kids[d.a + i] : body;
        gr_node_data k = b->nodes[x];
        if (!begins_with(b, x, rule)) {
            rose_gr_push(b, &first, x);
        } else if (x != rule) {
            gr_list rest = {0};
            for (uint32_t j = 1; j < k.n; j++)
                rose_gr_push(b, &rest, b->kids[k.a + j]);
            rose_gr_push(b, &more, rose_gr_seq(b, rest.v, rest.n));
        }
    }
    gr_node tail = rose_gr_repeat(b, rose_gr_alt(b, more.v, more.n), 0, GR_INF);
    return GR_SEQ(b, rose_gr_alt(b, first.v, first.n), tail);
}

gr_node rose_gr_source_rule(gr_source *e, const char *name, size_t n)
{
    uint32_t h = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (uint8_t)name[i]) * UINT32_C(16777619);
    if (e->buckets == NULL) e->buckets = rose_gr_take(e->b, GR_SYMBOL_BUCKETS * sizeof *e->buckets);
    uint32_t *bucket = &e->buckets[(h ^ h >> 15) % GR_SYMBOL_BUCKETS];
    rose_gr_work(e->b, n / 4);
    for (uint32_t i = *bucket; i != 0; i = e->symbols[i - 1].chain) {
        const gr_symbol *y = &e->symbols[i - 1];
        rose_gr_work(e->b, 0);
        if (y->n == n && memcmp(y->name, name, n) == 0) return y->rule;
    }
    char *copy = rose_gr_take(e->b, n + 1);
    memcpy(copy, name, n);
    e->symbols = rose_gr_grown(e->b, e->symbols, e->n_symbols, &e->cap_symbols, sizeof *e->symbols);
    e->symbols[e->n_symbols++] = (gr_symbol){copy, n, rose_gr_rule_new(e->b, copy), *bucket};
    *bucket = (uint32_t)e->n_symbols;
    return e->symbols[e->n_symbols - 1].rule;
}

void rose_gr_source_define(gr_source *e, gr_node rule, gr_node body)
{
    rose_gr_rule_define(e->b, rule, without_left_recursion(e->b, rule, body));
}

void rose_gr_source_check_new(gr_source *e, gr_node rule)
{
    if (e->b->rules[e->b->nodes[rule].a].body != GR_NONE)
        refuse(e, ROSE_E_INVAL, "this rule is defined twice");
}

gr_node rose_gr_source_start(gr_source *e, const char *name)
{
    const gr_node rule = rose_gr_source_rule(e, name, strlen(name));
    if (e->b->rules[e->b->nodes[rule].a].body == GR_NONE)
        rose_gr_fail(e->b, ROSE_E_INVAL, "the rule %s is not defined", name);
    return rule;
}

/* ---- literals ---- */

static uint32_t hex(gr_source *e, unsigned min, unsigned max)
{
    uint32_t v = 0;
    unsigned n = 0;
    for (; n < max && e->at < e->n && rose_hex_digit(e->s[e->at]) >= 0; n++, e->at++)
        v = v << 4 | (uint32_t)rose_hex_digit(e->s[e->at]);
    if (n < min) refuse(e, ROSE_E_INVAL, "an escape lacks hexadecimal digits");
    if (!rose_utf8_is_char(v)) refuse(e, ROSE_E_INVAL, "an escape is no character");
    return v;
}

/* One character of a literal or class, which ends with `end`. */
uint32_t rose_gr_source_char(gr_source *e, char end)
{
    static const char from[] = "nrtbfav0e", to[] = "\n\r\t\b\f\a\v\0\x1b";
    size_t len;
    if (e->at >= e->n || e->s[e->at] == '\n') {
        refuse(e, ROSE_E_INVAL, end == '"' ? "a '\"' is missing" : "a ']' is missing");
    }
    uint32_t c = rose_gr_char_at(e->b, e->s + e->at, e->n - e->at, &len);
    e->at += len;
    if (c != '\\') return c;
    if (e->at >= e->n) refuse(e, ROSE_E_INVAL, "ends with a backslash");
    c = (uint8_t)e->s[e->at++];
    if (c == 'x') return e->lark ? hex(e, 2, 2) : hex(e, 1, 6);
    if (c == 'u') return hex(e, 4, 4);
    if (c == 'U') return hex(e, 8, 8);
    const char *p = c == 0 ? NULL : strchr(from, (int)c);
    if (p != NULL) return (uint8_t)to[p - from];
    if (is_name_char((char)c, false)) refuse(e, ROSE_E_INVAL, "this escape is not known");
    return c;
}

static gr_node read_literal(gr_source *e)
{
    gr_list l = {0};
    char bytes[4];
    while (!gr_at_char(e, '"')) {
        uint32_t c = rose_gr_source_char(e, '"');
        rose_gr_push(e->b, &l, rose_gr_bytes(e->b, bytes, rose_utf8_encode(c, bytes)));
    }
    e->at++;
    return rose_gr_seq(e->b, l.v, l.n);
}

static gr_node read_class(gr_source *e)
{
    gr_chars c = {0};
    bool negative = gr_at_char(e, '^');
    e->at += negative;
    while (!gr_at_char(e, ']')) {
        uint32_t lo = rose_gr_source_char(e, ']'), hi = lo;
        if (e->at + 1 < e->n && e->s[e->at] == '-' && e->s[e->at + 1] != ']') {
            e->at++;
            hi = rose_gr_source_char(e, ']');
        }
        if (hi < lo) refuse(e, ROSE_E_INVAL, "a range of characters is upside down");
        rose_gr_chars_add(e->b, &c, lo, hi);
    }
    e->at++;
    rose_gr_chars_normal(&c);
    if (negative) rose_gr_chars_invert(e->b, &c);
    return rose_gr_chars_node(e->b, &c);
}

/* ---- structure ---- */

static gr_node read_alt(gr_source *e);

void rose_gr_source_skip_blanks(gr_source *e)
{
    if (!e->lark) rose_gr_source_skip(e);
    while (gr_at_char(e, ' ') || gr_at_char(e, '\t'))
        e->at++;
}

uint32_t rose_gr_source_number(gr_source *e)
{
    uint32_t v;
    bool fits;
    rose_gr_source_skip_blanks(e);
    const size_t n = rose_gr_number(e->s + e->at, e->n - e->at, &v, &fits);
    if (n == 0) refuse(e, ROSE_E_INVAL, "a number is missing");
    if (!fits) refuse(e, ROSE_E_UNSUPPORTED, GR_COUNT_TOO_LARGE);
    e->at += n;
    rose_gr_source_skip_blanks(e);
    return v;
}

gr_node rose_gr_source_bounded(gr_source *e, gr_node x, uint32_t min, uint32_t max)
{
    if (min > max) refuse(e, ROSE_E_INVAL, "the bounds of a repetition are upside down");
    return rose_gr_repeat(e->b, x, min, max);
}

gr_node rose_gr_source_operator(gr_source *e, gr_node x)
{
    uint32_t min = 0, max = GR_INF;
    rose_gr_source_skip_blanks(e);
    if (gr_take(e, "*")) return rose_gr_repeat(e->b, x, 0, GR_INF);
    if (gr_take(e, "+")) return rose_gr_repeat(e->b, x, 1, GR_INF);
    if (gr_take(e, "?")) return rose_gr_repeat(e->b, x, 0, 1);
    if (!gr_take(e, "{")) return x;
    rose_gr_source_skip_blanks(e);
    if (!e->lark || !gr_at_char(e, ',')) min = max = rose_gr_source_number(e);
    if (gr_take(e, ",")) {
        rose_gr_source_skip_blanks(e);
        max = gr_at_char(e, '}') ? GR_INF : rose_gr_source_number(e);
    }
    if (!gr_take(e, "}")) refuse(e, ROSE_E_INVAL, "a '}' is missing");
    return rose_gr_source_bounded(e, x, min, max);
}

static gr_node read_item(gr_source *e)
{
    size_t n = rose_gr_source_name(e);
    gr_chars all = {0};
    char c = e->s[e->at];
    if (n > 0) {
        const gr_node rule = rose_gr_source_rule(e, e->s + e->at, n);
        e->at += n;
        if (gr_at_char(e, '(')) refuse(e, ROSE_E_UNSUPPORTED, "macros are not supported");
        return rule;
    }
    if (gr_looking_at(e, "(=")) refuse(e, ROSE_E_UNSUPPORTED, "look-ahead is not supported");
    if (c == '<' || c == '!')
        refuse(e, ROSE_E_UNSUPPORTED, "tokens in a grammar are not supported");
    e->at++;
    if (c == '"') return read_literal(e);
    if (c == '[') return read_class(e);
    if (c == '.') {
        rose_gr_chars_add(e->b, &all, 0, 0x10ffff);
        return rose_gr_chars_node(e->b, &all);
    }
    if (c == '(') {
        gr_node x = read_alt(e);
        if (!gr_at_char(e, ')')) refuse(e, ROSE_E_INVAL, "a ')' is missing");
        e->at++;
        return x;
    }
    e->at--;
    refuse(e, ROSE_E_INVAL, "a literal, class, rule or '(' was expected");
}

static gr_node read_seq(gr_source *e)
{
    gr_list l = {0};
    for (;;) {
        rose_gr_source_skip(e);
        if (e->at >= e->n || e->s[e->at] == '|' || e->s[e->at] == ')' || at_definition(e)) break;
        rose_gr_push(e->b, &l, rose_gr_source_operator(e, read_item(e)));
    }
    return rose_gr_seq(e->b, l.v, l.n);
}

static gr_node read_alt(gr_source *e)
{
    gr_list l = {0};
    rose_gr_enter(e->b);
    do {
        rose_gr_push(e->b, &l, read_seq(e));
    } while (gr_take(e, "|"));
    rose_gr_leave(e->b);
    return rose_gr_alt(e->b, l.v, l.n);
}

/* Is the text a grammar of Lark? Its first definition is `name:`, or it has a directive before. */
static bool is_lark(const gr_source *e)
{
    gr_source at = {.s = e->s, .n = e->n};
    for (rose_gr_source_skip(&at); gr_looking_at(&at, "//"); rose_gr_source_skip(&at))
        while (at.at < at.n && at.s[at.at] != '\n')
            at.at++;
    if (at.at < at.n && at.s[at.at] == '%') return true;
    if (at.at < at.n && (at.s[at.at] == '?' || at.s[at.at] == '!')) at.at++;
    at.at += rose_gr_source_name(&at);
    const char close = at.at >= at.n        ? '\0'
                       : at.s[at.at] == '{' ? '}'
                       : at.s[at.at] == '[' ? ']'
                                            : '\0';
    while (close != '\0' && at.at < at.n && at.s[at.at++] != close)
        ; /* parameters or attributes, which are refused later */
    rose_gr_source_skip(&at);
    return at.at < at.n && at.s[at.at] == ':' && !gr_looking_at(&at, "::=");
}

gr_node rose_gr_ebnf(gr_build *b, const char *text, size_t n)
{
    gr_source e = {.b = b, .s = text, .n = n};
    if (is_lark(&e)) return rose_gr_lark(b, text, n);
    rose_gr_source_skip(&e);
    while (e.at < e.n) {
        size_t len = rose_gr_source_name(&e);
        if (len == 0) refuse(&e, ROSE_E_INVAL, "the name of a rule was expected");
        size_t at = e.at;
        e.at += len;
        rose_gr_source_skip(&e);
        if (gr_at_char(&e, '['))
            refuse(&e, ROSE_E_UNSUPPORTED, "options of rules are not supported");
        if (!gr_looking_at(&e, "::="))
            refuse(&e, ROSE_E_INVAL,
                   "'::=' was expected: a grammar is EBNF or GBNF with rules "
                   "`name ::= ...`, or Lark with rules `name: ...`");
        e.at += 3;
        gr_node rule = rose_gr_source_rule(&e, text + at, len);
        rose_gr_source_check_new(&e, rule);
        gr_node body = read_alt(&e);
        if (gr_at_char(&e, ')')) refuse(&e, ROSE_E_INVAL, "a ')' has no '('");
        rose_gr_source_define(&e, rule, body);
    }
    return rose_gr_source_start(&e, "root");
}
