/* grammar/ebnf.c - grammars in GBNF (llama.cpp) and in XGrammar's EBNF, which extends it. White
 * space and line ends mean nothing: a rule ends where `name ::=` begins. The text must match the
 * rule `root`. A rule that begins with itself, `a ::= a "x" | "y"`, becomes a repetition. Refused
 * by name: rule options, macros, look-ahead, tokens such as <[7]> or <think>. */
#include <string.h>

#include "grammar/grammar_internal.h"

typedef struct ebnf {
    gr_build *b;
    const char *s;
    size_t n, at;
    struct symbol {
        const char *name;
        size_t n;
        gr_node rule;
    } * symbols;
    size_t n_symbols, cap_symbols;
} ebnf;

static _Noreturn void refuse(const ebnf *e, rose_status st, const char *why)
{
    size_t line = 1, column = 1;
    for (size_t i = 0; i < e->at && i < e->n; i++) {
        column = e->s[i] == '\n' ? 1 : column + 1;
        line += e->s[i] == '\n';
    }
    rose_gr_fail(e->b, st, "line %zu, column %zu: %s", line, column, why);
}

static void skip_space(ebnf *e)
{
    for (; e->at < e->n; e->at++) {
        char c = e->s[e->at];
        if (c == '#')
            while (e->at < e->n && e->s[e->at] != '\n')
                e->at++;
        else if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            break;
    }
    if (e->at > e->n) e->at = e->n;
}

static bool is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && ((c >= '0' && c <= '9') || c == '-' || c == '.'));
}

static bool looking_at(const ebnf *e, const char *text)
{
    size_t n = strlen(text);
    return n <= e->n - e->at && memcmp(e->s + e->at, text, n) == 0;
}

/* The length of the name here; 0: there is none. */
static size_t name_length(const ebnf *e)
{
    size_t n = 0;
    while (e->at + n < e->n && is_name(e->s[e->at + n], n == 0))
        n++;
    return n;
}

/* Does `name ::=` stand here? */
static bool at_definition(const ebnf *e)
{
    ebnf ahead = *e;
    ahead.at += name_length(e);
    if (ahead.at == e->at) return false;
    skip_space(&ahead);
    return looking_at(&ahead, "::=");
}

static struct symbol *symbol_of(ebnf *e, const char *name, size_t n)
{
    rose_gr_work(e->b, e->n_symbols / 8);
    for (size_t i = 0; i < e->n_symbols; i++)
        if (e->symbols[i].n == n && memcmp(e->symbols[i].name, name, n) == 0) return &e->symbols[i];
    char *copy = rose_gr_take(e->b, n + 1);
    memcpy(copy, name, n);
    e->symbols = rose_gr_grown(e->b, e->symbols, e->n_symbols, &e->cap_symbols, sizeof *e->symbols);
    e->symbols[e->n_symbols] = (struct symbol){copy, n, rose_gr_rule_new(e->b, copy)};
    return &e->symbols[e->n_symbols++];
}

/* ---- literals ---- */

static uint32_t hex(ebnf *e, unsigned min, unsigned max)
{
    uint32_t v = 0;
    unsigned n = 0;
    for (; n < max && e->at < e->n; n++, e->at++) {
        char c = e->s[e->at];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) break;
        v = v << 4 | (uint32_t)d;
    }
    if (n < min) refuse(e, ROSE_E_INVAL, "an escape lacks hexadecimal digits");
    if (v > 0x10ffff || (v >= 0xd800 && v <= 0xdfff))
        refuse(e, ROSE_E_INVAL, "an escape is no character");
    return v;
}

/* One character of a literal or class, which ends with `end`. */
static uint32_t literal_char(ebnf *e, char end)
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
    if (c == 'x') return hex(e, 1, 6);
    if (c == 'u') return hex(e, 4, 4);
    if (c == 'U') return hex(e, 8, 8);
    const char *p = c == 0 ? NULL : strchr(from, (int)c);
    if (p != NULL) return (uint8_t)to[p - from];
    if (is_name((char)c, false) && c != '-' && c != '.')
        refuse(e, ROSE_E_INVAL, "this escape is not known");
    return c;
}

static gr_node read_literal(ebnf *e)
{
    gr_list l = {0};
    uint8_t bytes[4];
    while (e->at >= e->n || e->s[e->at] != '"') {
        uint32_t c = literal_char(e, '"');
        rose_gr_push(e->b, &l, rose_gr_bytes(e->b, bytes, rose_gr_utf8(c, bytes)));
    }
    e->at++;
    return rose_gr_seq(e->b, l.v, l.n);
}

static gr_node read_class(ebnf *e)
{
    gr_chars c = {0};
    bool negative = e->at < e->n && e->s[e->at] == '^';
    e->at += negative;
    while (e->at >= e->n || e->s[e->at] != ']') {
        uint32_t lo = literal_char(e, ']'), hi = lo;
        if (e->at + 1 < e->n && e->s[e->at] == '-' && e->s[e->at + 1] != ']') {
            e->at++;
            hi = literal_char(e, ']');
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

static gr_node read_alt(ebnf *e);

static uint32_t read_number(ebnf *e)
{
    uint32_t v;
    bool fits;
    const size_t n = rose_gr_number(e->s + e->at, e->n - e->at, &v, &fits);
    if (n == 0) refuse(e, ROSE_E_INVAL, "a number is missing");
    if (!fits) refuse(e, ROSE_E_UNSUPPORTED, GR_COUNT_TOO_LARGE);
    e->at += n;
    skip_space(e);
    return v;
}

static bool take(ebnf *e, char c)
{
    if (e->at >= e->n || e->s[e->at] != c) return false;
    e->at++;
    skip_space(e);
    return true;
}

static gr_node read_repeat(ebnf *e, gr_node x)
{
    uint32_t min = 0, max = GR_INF;
    skip_space(e);
    if (take(e, '*')) return rose_gr_repeat(e->b, x, 0, GR_INF);
    if (take(e, '+')) return rose_gr_repeat(e->b, x, 1, GR_INF);
    if (take(e, '?')) return rose_gr_repeat(e->b, x, 0, 1);
    if (!take(e, '{')) return x;
    min = max = read_number(e);
    if (take(e, ',')) max = e->at < e->n && e->s[e->at] == '}' ? GR_INF : read_number(e);
    if (!take(e, '}')) refuse(e, ROSE_E_INVAL, "a '}' is missing");
    if (min > max) refuse(e, ROSE_E_INVAL, "the bounds of a repetition are upside down");
    return rose_gr_repeat(e->b, x, min, max);
}

static gr_node read_item(ebnf *e)
{
    size_t n = name_length(e);
    gr_chars all = {0};
    char c = e->s[e->at];
    if (n > 0) {
        struct symbol *s = symbol_of(e, e->s + e->at, n);
        e->at += n;
        if (e->at < e->n && e->s[e->at] == '(')
            refuse(e, ROSE_E_UNSUPPORTED, "macros are not supported");
        return s->rule;
    }
    if (looking_at(e, "(=")) refuse(e, ROSE_E_UNSUPPORTED, "look-ahead is not supported");
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
        if (e->at >= e->n || e->s[e->at] != ')') refuse(e, ROSE_E_INVAL, "a ')' is missing");
        e->at++;
        return x;
    }
    e->at--;
    refuse(e, ROSE_E_INVAL, "a literal, class, rule or '(' was expected");
}

static gr_node read_seq(ebnf *e)
{
    gr_list l = {0};
    for (;;) {
        skip_space(e);
        if (e->at >= e->n || e->s[e->at] == '|' || e->s[e->at] == ')' || at_definition(e)) break;
        rose_gr_push(e->b, &l, read_repeat(e, read_item(e)));
    }
    return rose_gr_seq(e->b, l.v, l.n);
}

static gr_node read_alt(ebnf *e)
{
    gr_list l = {0};
    rose_gr_enter(e->b);
    do {
        rose_gr_push(e->b, &l, read_seq(e));
    } while (take(e, '|'));
    rose_gr_leave(e->b);
    return rose_gr_alt(e->b, l.v, l.n);
}

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

gr_node rose_gr_ebnf(gr_build *b, const char *text, size_t n)
{
    ebnf e = {.b = b, .s = text, .n = n};
    skip_space(&e);
    while (e.at < e.n) {
        size_t len = name_length(&e);
        if (len == 0) refuse(&e, ROSE_E_INVAL, "the name of a rule was expected");
        size_t at = e.at;
        e.at += len;
        skip_space(&e);
        if (e.at < e.n && e.s[e.at] == '[')
            refuse(&e, ROSE_E_UNSUPPORTED, "options of rules are not supported");
        if (!looking_at(&e, "::=")) refuse(&e, ROSE_E_INVAL, "'::=' was expected");
        e.at += 3;
        gr_node rule = symbol_of(&e, text + at, len)->rule;
        if (b->rules[b->nodes[rule].a].body != GR_NONE)
            refuse(&e, ROSE_E_INVAL, "this rule is defined twice");
        gr_node body = read_alt(&e);
        if (e.at < e.n && e.s[e.at] == ')') refuse(&e, ROSE_E_INVAL, "a ')' has no '('");
        rose_gr_rule_define(b, rule, without_left_recursion(b, rule, body));
    }
    for (size_t i = 0; i < e.n_symbols; i++)
        if (e.symbols[i].n == 4 && memcmp(e.symbols[i].name, "root", 4) == 0)
            return e.symbols[i].rule;
    rose_gr_fail(b, ROSE_E_INVAL, "the rule root is not defined");
}
