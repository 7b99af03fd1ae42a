/* template/lexer.c - text to tokens, by the rules of jinja2's lexer: the order in which it tries
 * its patterns decides what a text means, so the functions below keep that order. trim_blocks drops
 * the newline after a tag; lstrip_blocks drops blanks between the start of a line and a tag. */
#include <errno.h>
#include <stdlib.h>

#include "template/template_internal.h"

enum { MAX_BRACKETS = 200 };

typedef struct lexer {
    rose_tpl *t;
    const char *s; /* newlines are "\n", without the last one of the text */
    size_t n, at;
    tpl_token *tokens;
    size_t n_tokens, cap;
    char brackets[MAX_BRACKETS]; /* closing brackets that are still to come */
    size_t n_brackets;
    bool line_start; /* the last match ended with a newline, or the text begins here */
} lexer;

static tpl_token *add(lexer *l, tpl_token_type type)
{
    tpl_token *k;
    if (l->n_tokens == l->cap)
        l->tokens = rose_tpl_grown(l->t, l->tokens, l->n_tokens, &l->cap, sizeof *l->tokens);
    k = &l->tokens[l->n_tokens++];
    *k = (tpl_token){.type = (uint8_t)type, .line = l->t->line};
    return k;
}

/* Moves on, and counts the lines. */
static void go(lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->t->line += l->s[l->at] == '\n';
}

static bool see(const lexer *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return n <= l->n - at && memcmp(l->s + at, what, n) == 0;
}

static size_t skip_space(const lexer *l, size_t at)
{
    tpl_text x = {.s = l->s, .n = l->n};
    while (at < l->n && rose_tpl_is_space(rose_tpl_char(&x, at)))
        at += rose_tpl_char_len(&x, at);
    return at;
}

/* ---- text between tags ---- */

/* The end of the text before a tag whose sign ('-', '+' or another character) is given. */
static size_t text_end(const lexer *l, size_t from, size_t to, char sign, bool lstrip)
{
    tpl_text x = {.s = l->s + from, .n = to - from};
    size_t line = x.n;
    if (sign == '-') return from + rose_tpl_strip(l->t, &x, NULL, TPL_RIGHT)->n;
    if (sign == '+' || !lstrip) return to;
    while (line > 0 && x.s[line - 1] != '\n')
        line--;
    if (line == 0 && !l->line_start) return to;
    return skip_space(l, from + line) >= to ? from + line : to;
}

static void add_data(lexer *l, size_t from, size_t to)
{
    if (from == to) return;
    add(l, T_DATA)->text = rose_tpl_text(l->t, l->s + from, to - from, TPL_TEMPLATE);
}

/* The end of "%}", "-%}" with the white space after it, or "+%}" at `at`; 0: none is there. */
static size_t tag_end(const lexer *l, size_t at, const char *close, bool trim)
{
    if (trim && at < l->n && l->s[at] == '+' && see(l, at + 1, close)) return at + 3;
    if (at < l->n && l->s[at] == '-' && see(l, at + 1, close)) return skip_space(l, at + 3);
    if (!see(l, at, close)) return 0;
    return trim && at + 2 < l->n && l->s[at + 2] == '\n' ? at + 3 : at + 2;
}

static void end_match(lexer *l, size_t to)
{
    go(l, to);
    l->line_start = to > 0 && l->s[to - 1] == '\n';
}

static void lex_comment(lexer *l, size_t at)
{
    size_t end = 0, p = at;
    while (p < l->n && (end = tag_end(l, p, "#}", true)) == 0)
        p++;
    if (end == 0) rose_tpl_fail_with(l->t, ROSE_E_FORMAT, "Missing end of comment tag");
    end_match(l, end);
}

/* The position after `word` and the white space on both of its sides; 0: not there. */
static size_t skip_word(const lexer *l, size_t at, const char *word)
{
    at = skip_space(l, at);
    return see(l, at, word) ? skip_space(l, at + strlen(word)) : 0;
}

static size_t sign_len(const lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+');
}

/* {% raw %} at `at`: the position after it; 0: this is another tag. */
static size_t raw_begin(const lexer *l, size_t at)
{
    size_t p = skip_word(l, at + 2 + sign_len(l, at + 2), "raw");
    if (p == 0) return 0;
    if (see(l, p, "-%}")) return skip_space(l, p + 3);
    return see(l, p, "%}") ? p + 2 : 0;
}

static void lex_raw(lexer *l, size_t from)
{
    end_match(l, from);
    for (size_t p = from; p < l->n; p++) {
        size_t end, word;
        if (!see(l, p, "{%")) continue;
        word = skip_word(l, p + 2 + sign_len(l, p + 2), "endraw");
        if (word == 0 || (end = tag_end(l, word, "%}", true)) == 0) continue;
        add_data(l, from, text_end(l, from, p, l->s[p + 2], true));
        end_match(l, end);
        return;
    }
    rose_tpl_fail_with(l->t, ROSE_E_FORMAT, "Missing end of raw directive");
}

/* ---- inside a tag ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (uint8_t)c >= 0x80;
}

/* Digits of a base, with single underscores between them; the end, or `at` if there is none. */
static size_t digits(const lexer *l, size_t at, const char *set)
{
    size_t p = at;
    while (p < l->n) {
        size_t d = l->s[p] == '_' && p > at ? p + 1 : p;
        if (d >= l->n || l->s[d] == '\0' || strchr(set, l->s[d]) == NULL) break;
        p = d + 1;
    }
    return p;
}

static size_t float_end(const lexer *l, size_t at)
{
    size_t p = digits(l, at, "0123456789"), q, e;
    bool point = false;
    if (at > 0 && l->s[at - 1] == '.') return 0;
    if (p < l->n && l->s[p] == '.' && (q = digits(l, p + 1, "0123456789")) > p + 1) {
        p = q;
        point = true;
    }
    if (p < l->n && (l->s[p] | 32) == 'e') {
        e = p + 1 + sign_len(l, p + 1);
        q = digits(l, e, "0123456789");
        if (q > e) return q;
    }
    return point ? p : 0;
}

/* Without the underscores. */
static void copy_number(char *out, size_t cap, const lexer *l, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++) {
        if (l->s[i] == '_') continue;
        if (n + 1 >= cap) rose_tpl_fail_with(l->t, ROSE_E_FORMAT, "a number is too long");
        out[n++] = l->s[i];
    }
    out[n] = '\0';
}

static void lex_int(lexer *l)
{
    static const struct {
        char letter;
        int base;
        const char *set;
    } bases[] = {{'b', 2, "01"}, {'o', 8, "01234567"}, {'x', 16, "0123456789abcdefABCDEF"}};
    char text[80];
    size_t from = l->at, to = 0;
    int base = 10;
    for (size_t i = 0; i < 3 && l->s[from] == '0' && from + 1 < l->n; i++) {
        size_t first = from + 2 + (from + 2 < l->n && l->s[from + 2] == '_');
        if ((l->s[from + 1] | 32) != bases[i].letter) continue;
        to = digits(l, first, bases[i].set);
        if (to == first) to = 0;
        if (to > 0) base = bases[i].base, from = first;
    }
    if (to == 0) to = digits(l, from, l->s[from] == '0' ? "0" : "0123456789");
    copy_number(text, sizeof text, l, from, to);
    errno = 0;
    long long v = strtoll(text, NULL, base);
    if (errno != 0)
        rose_tpl_fail_with(l->t, ROSE_E_UNSUPPORTED, "the number %s is too large", text);
    add(l, T_INT)->value = rose_tpl_int(v, TPL_TEMPLATE);
    go(l, to);
}

static bool lex_number(lexer *l)
{
    char text[80];
    size_t end;
    if (!is_digit(l->s[l->at])) return false;
    if ((end = float_end(l, l->at)) == 0) {
        lex_int(l);
        return true;
    }
    copy_number(text, sizeof text, l, l->at, end);
    add(l, T_FLOAT)->value = rose_tpl_float(strtod(text, NULL), TPL_TEMPLATE);
    go(l, end);
    return true;
}

/* ---- string literals ---- */

/* n hexadecimal digits (or up to 3 octal ones) at *at. */
static uint32_t read_code(lexer *l, size_t *at, size_t end, size_t n, uint32_t base)
{
    uint32_t code = 0;
    size_t i = 0;
    for (; i < n && *at < end; i++, (*at)++) {
        const uint32_t d = (uint32_t)rose_hex_digit(l->s[*at]); /* huge, if it is no digit */
        if (d >= base) break;
        code = code * base + d;
    }
    if ((base == 16 && i < n) || !rose_utf8_is_char(code))
        rose_tpl_fail_with(l->t, ROSE_E_FORMAT, "a string has a bad escape sequence");
    return code;
}

/* The escape sequence whose character after the backslash is at `at`; returns its end. */
static size_t put_escape(lexer *l, tpl_buf *b, size_t at, size_t end)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->s[at];
    const char *p = c == '\0' ? NULL : strchr(from, c);
    tpl_text x = {.s = l->s, .n = l->n};
    if (c == '\n') return at + 1;
    if (p != NULL) {
        rose_tpl_put(b, &to[p - from], 1, TPL_TEMPLATE);
        return at + 1;
    }
    if (c == 'N') rose_tpl_fail_with(l->t, ROSE_E_UNSUPPORTED, "\\N{...} in a string");
    if (c == 'x' || c == 'u' || c == 'U') {
        at++;
        rose_tpl_put_char(b,
                          read_code(l, &at, end,
                                    c == 'x'   ? 2
                                    : c == 'u' ? 4
                                               : 8,
                                    16),
                          TPL_TEMPLATE);
        return at;
    }
    if (c >= '0' && c <= '7') {
        rose_tpl_put_char(b, read_code(l, &at, end, 3, 8), TPL_TEMPLATE);
        return at;
    }
    if ((uint8_t)c >= 0x80) {
        /* Python has escaped such a character before. */
        rose_tpl_put_escaped(b, rose_tpl_char(&x, at), TPL_TEMPLATE);
        return at + rose_tpl_char_len(&x, at);
    }
    rose_tpl_put(b, "\\", 1, TPL_TEMPLATE);
    return at;
}

static bool lex_string(lexer *l)
{
    char quote = l->s[l->at];
    size_t end = l->at + 1;
    tpl_buf b = {.t = l->t};
    if (quote != '\'' && quote != '"') return false;
    while (end < l->n && l->s[end] != quote)
        end += l->s[end] == '\\' ? 2 : 1;
    if (end >= l->n) return false;
    for (size_t i = l->at + 1; i < end;) {
        size_t plain = i;
        while (plain < end && l->s[plain] != '\\')
            plain++;
        rose_tpl_put(&b, l->s + i, plain - i, TPL_TEMPLATE);
        i = plain < end ? put_escape(l, &b, plain + 1, end) : end;
    }
    add(l, T_STRING)->text = rose_tpl_buf_text(&b);
    go(l, end + 1);
    return true;
}

/* ---- operators ---- */

static void balance(lexer *l, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    const char *p = strchr(open, c);
    if (p != NULL) {
        if (l->n_brackets == MAX_BRACKETS)
            rose_tpl_fail_with(l->t, ROSE_E_FORMAT, "more than %d nested brackets", MAX_BRACKETS);
        l->brackets[l->n_brackets++] = close[p - open];
    } else if (strchr(close, c) != NULL) {
        if (l->n_brackets == 0 || l->brackets[--l->n_brackets] != c)
            rose_tpl_fail_with(l->t, ROSE_E_FORMAT, "unexpected '%c'", c);
    }
}

static bool lex_op(lexer *l)
{
    static const char *const ops[] = {"//", "**", "==", "!=", ">=", "<="};
    static const char single[] = "+-/*%~[](){}><=.:|,;";
    char c = l->s[l->at];
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!see(l, l->at, ops[i])) continue;
        memcpy(add(l, T_OP)->op, ops[i], 3);
        go(l, l->at + 2);
        return true;
    }
    if (c == '\0' || strchr(single, c) == NULL) return false;
    balance(l, c);
    add(l, T_OP)->op[0] = c;
    go(l, l->at + 1);
    return true;
}

static bool lex_name(lexer *l)
{
    size_t end = l->at;
    while (end < l->n && is_word(l->s[end]))
        end++;
    if (end == l->at) return false;
    add(l, T_NAME)->text = rose_tpl_text(l->t, l->s + l->at, end - l->at, TPL_TEMPLATE);
    go(l, end);
    return true;
}

/* The tokens of a tag or an expression, up to its end. */
static void lex_tag(lexer *l, bool block)
{
    const char *close = block ? "%}" : "}}";
    add(l, block ? T_BLOCK_BEGIN : T_VAR_BEGIN);
    while (l->at < l->n) {
        size_t end = l->n_brackets > 0 ? 0 : tag_end(l, l->at, close, block);
        if (end > 0) {
            add(l, block ? T_BLOCK_END : T_VAR_END);
            end_match(l, end);
            return;
        }
        if ((end = skip_space(l, l->at)) > l->at) {
            go(l, end);
            continue;
        }
        if (!lex_number(l) && !lex_name(l) && !lex_string(l) && !lex_op(l))
            rose_tpl_fail_with(l->t, ROSE_E_FORMAT, "unexpected character '%c'", l->s[l->at]);
    }
}

/* ---- the whole text ---- */

static void lex_root(lexer *l)
{
    while (l->at < l->n) {
        size_t p = l->at, raw = 0;
        char c = 0;
        while (p < l->n) {
            c = l->s[p] == '{' && p + 1 < l->n ? l->s[p + 1] : '\0';
            if (c == '%' || c == '{' || c == '#') break;
            p++;
        }
        if (p == l->n) {
            add_data(l, l->at, l->n);
            go(l, l->n);
            return;
        }
        add_data(l, l->at, text_end(l, l->at, p, p + 2 < l->n ? l->s[p + 2] : ' ', c != '{'));
        go(l, p);
        if (c == '%' && (raw = raw_begin(l, p)) > 0) {
            lex_raw(l, raw);
            continue;
        }
        go(l, p + 2 + sign_len(l, p + 2));
        if (c == '#')
            lex_comment(l, l->at);
        else
            lex_tag(l, c == '%');
    }
}

/* "\r\n" and "\r" become "\n"; the last newline goes. */
static void normalize(lexer *l, const char *text, size_t n)
{
    char *s = rose_tpl_take(l->t, n + 1);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r') {
            s[l->n++] = '\n';
            i += i + 1 < n && text[i + 1] == '\n';
        } else {
            s[l->n++] = text[i];
        }
    }
    if (l->n > 0 && s[l->n - 1] == '\n') l->n--;
    l->s = s;
}

tpl_token *rose_tpl_lex(rose_tpl *t, const char *text, size_t n)
{
    lexer l = {.t = t, .line_start = true};
    t->line = 1;
    if (!rose_utf8_is_valid(text, n)) rose_tpl_fail_with(t, ROSE_E_FORMAT, "is not UTF-8");
    normalize(&l, text, n);
    lex_root(&l);
    add(&l, T_EOF);
    return l.tokens;
}
