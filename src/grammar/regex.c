/* grammar/regex.c - regular expressions: ECMA-262 syntax, and Rust's meaning where jsonschema-rs
 * has it ('.' is all but a newline; \d and \w are ASCII). A small tree is parsed first, because an
 * anchor decides whether text may stand before or after the match. Refused by name:
 * back-references, word boundaries, assertions about the text before, flags, anchors in the middle,
 * look-ahead in a group that is followed by more. */
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

#include "grammar/grammar_internal.h"

typedef struct rx rx;
struct rx {
    enum { RX_CHARS, RX_SEQ, RX_ALT, RX_REPEAT, RX_START, RX_END, RX_LOOK } kind;
    bool negative, anchored; /* anchored: holds ^, $ or a look-ahead */
    uint32_t min, max;
    gr_chars chars;
    rx **kids;
    size_t n, cap;
};

static _Noreturn void refuse(const gr_source *r, rose_status st, const char *why)
{
    rose_gr_fail(r->b, st, "the expression \"%.*s\": %s (position %zu)",
                 (int)(r->n < 80 ? r->n : 80), r->s, why, r->at);
}

static bool more(const gr_source *r)
{
    return r->at < r->n;
}

static uint32_t next_char(gr_source *r)
{
    size_t len;
    if (!more(r)) refuse(r, ROSE_E_INVAL, "ends too early");
    uint32_t cp = rose_gr_char_at(r->b, r->s + r->at, r->n - r->at, &len);
    r->at += len;
    return cp;
}

static rx *new_rx(const gr_source *r, int kind)
{
    rx *x = rose_gr_take(r->b, sizeof *x);
    x->kind = (unsigned)kind;
    x->anchored = kind == RX_START || kind == RX_END || kind == RX_LOOK;
    return x;
}

static void add_kid(const gr_source *r, rx *x, rx *kid)
{
    x->kids = rose_gr_grown(r->b, x->kids, x->n, &x->cap, sizeof(rx *));
    x->kids[x->n++] = kid;
    x->anchored = x->anchored || kid->anchored;
}

/* ---- characters and classes ---- */

static uint32_t hex(gr_source *r, unsigned n)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < n; i++) {
        int d = more(r) ? rose_hex_digit(r->s[r->at]) : -1;
        if (d < 0) refuse(r, ROSE_E_INVAL, "an escape lacks hexadecimal digits");
        v = v << 4 | (uint32_t)d;
        r->at++;
    }
    return v;
}

static uint32_t unicode_escape(gr_source *r)
{
    uint32_t v = 0;
    if (!gr_take(r, "{")) {
        v = hex(r, 4);
        if (v >= 0xd800 && v < 0xdc00 && gr_take(r, "\\u"))
            v = 0x10000 + ((v - 0xd800) << 10) + (hex(r, 4) - 0xdc00);
    } else {
        while (!gr_take(r, "}"))
            if ((v = v << 4 | hex(r, 1)) > 0x10ffff) break;
    }
    if (v > 0x10ffff) refuse(r, ROSE_E_INVAL, "an escape is beyond U+10FFFF");
    return v;
}

static void add_named(gr_source *r, gr_chars *out, char name)
{
    gr_build *b = r->b;
    gr_chars c = {0};
    static const uint32_t spaces[][2] = {
        {9, 13},          {32, 32},         {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    char lower = (char)(name | 0x20);
    if (lower == 's') {
        for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
            rose_gr_chars_add(b, &c, spaces[i][0], spaces[i][1]);
    } else {
        rose_gr_chars_add(b, &c, '0', '9');
    }
    if (lower == 'w') {
        rose_gr_chars_add(b, &c, 'A', 'Z');
        rose_gr_chars_add(b, &c, '_', '_');
        rose_gr_chars_add(b, &c, 'a', 'z');
    }
    if (name != lower) rose_gr_chars_invert(b, &c);
    for (size_t i = 0; i < c.n; i++)
        rose_gr_chars_add(b, out, c.v[i].lo, c.v[i].hi);
}

/* The general categories: run i is [first[i], first[i + 1]). */
struct gr_categories {
    uint32_t *first;
    uint8_t *category;
    size_t n, cap_first, cap_category;
};

static const struct gr_categories *categories(gr_build *b)
{
    struct gr_categories *t = b->categories;
    if (t != NULL) return t;
    b->categories = t = rose_gr_take(b, sizeof *t);
    rose_gr_work(b, 500000); /* about 10 ms */
    for (uint32_t cp = 0; cp <= 0x110000; cp++) {
        const uint8_t category =
            cp > 0x10ffff ? UINT8_MAX : (uint8_t)utf8proc_category((int32_t)cp);
        if (t->n > 0 && t->category[t->n - 1] == category) continue;
        t->first = rose_gr_grown(b, t->first, t->n, &t->cap_first, sizeof *t->first);
        t->category = rose_gr_grown(b, t->category, t->n, &t->cap_category, 1);
        t->first[t->n] = cp;
        t->category[t->n++] = category;
    }
    t->n--; /* the last begins beyond U+10FFFF */
    return t;
}

/* \p{Lu}: a general category, or its first letter alone. */
static void add_category(gr_source *r, gr_chars *out, bool negative)
{
    char name[3] = {0};
    size_t n = 0;
    gr_chars c = {0};
    if (!gr_take(r, "{")) refuse(r, ROSE_E_INVAL, "\\p needs a name in braces");
    while (!gr_take(r, "}")) {
        if (n == 2 || !more(r))
            refuse(r, ROSE_E_UNSUPPORTED, "of \\p only general categories such as Lu are known");
        name[n++] = r->s[r->at++];
    }
    const struct gr_categories *t = categories(r->b);
    rose_gr_work(r->b, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const char *cat = utf8proc_category_string((int32_t)t->first[i]);
        if (cat[0] == name[0] && (n == 1 || cat[1] == name[1]))
            rose_gr_chars_add(r->b, &c, t->first[i], t->first[i + 1] - 1);
    }
    rose_gr_chars_normal(&c); /* joins neighbours: \p{L} is five categories */
    if (c.n == 0) refuse(r, ROSE_E_UNSUPPORTED, "this general category is not known");
    if (negative) rose_gr_chars_invert(r->b, &c);
    for (size_t i = 0; i < c.n; i++)
        rose_gr_chars_add(r->b, out, c.v[i].lo, c.v[i].hi);
}

static bool is_digit(uint32_t c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(uint32_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* ECMA-262 has no escape of this letter or digit. */
static _Noreturn void refuse_escape(const gr_source *r, uint32_t c)
{
    char why[96];
    const bool edge = c == 'A' || c == 'Z' || c == 'z';
    snprintf(why, sizeof why, "the escape \\%c is not supported%s", (int)c,
             edge ? "; write ^ or $ for the ends of the text" : "");
    refuse(r, ROSE_E_UNSUPPORTED, why);
}

/* After a backslash: adds a class to out and returns GR_NONE, or returns one character. */
static uint32_t escape(gr_source *r, gr_chars *out)
{
    static const char letters[] = "tnrfva", values[] = "\t\n\r\f\v\a";
    uint32_t c = next_char(r);
    const char *at = c > 0 && c < 0x80 ? strchr(letters, (int)c) : NULL;
    if (at != NULL) return (uint8_t)values[at - letters];
    if (c > 0 && c < 0x80 && strchr("dDwWsS", (int)c) != NULL) {
        add_named(r, out, (char)c);
        return GR_NONE;
    }
    switch (c) {
    case 'p':
    case 'P':
        add_category(r, out, c == 'P');
        return GR_NONE;
    case 'x':
        return gr_take(r, "{") ? (r->at--, unicode_escape(r)) : hex(r, 2);
    case 'u':
        return unicode_escape(r);
    case 'c':
        c = next_char(r);
        if (!is_letter(c)) refuse(r, ROSE_E_INVAL, "\\c needs a letter");
        return c & 0x1f;
    case '0':
        if (!more(r) || !is_digit((uint8_t)r->s[r->at])) return 0;
        refuse(r, ROSE_E_UNSUPPORTED, "octal escapes are not supported");
    default:
        if (!is_letter(c) && !is_digit(c)) return c;
        refuse_escape(r, c);
    }
}

/* One end of a range in a class; GR_NONE: it was a class such as \d. */
static uint32_t class_part(gr_source *r, gr_chars *out)
{
    if (!gr_take(r, "\\")) return next_char(r);
    if (gr_take(r, "b")) return '\b';
    return escape(r, out);
}

static void fold(const gr_source *r, gr_chars *c)
{
    if (r->fold) rose_gr_chars_fold(r->b, c);
    rose_gr_chars_normal(c);
}

static rx *read_class(gr_source *r)
{
    rx *x = new_rx(r, RX_CHARS);
    bool negative = gr_take(r, "^");
    while (!gr_take(r, "]")) {
        uint32_t lo = class_part(r, &x->chars), hi = lo;
        if (lo == GR_NONE) continue;
        if (r->at + 1 < r->n && r->s[r->at] == '-' && r->s[r->at + 1] != ']') {
            r->at++;
            if ((hi = class_part(r, &x->chars)) == GR_NONE) { /* [a-\d] is three things */
                rose_gr_chars_add(r->b, &x->chars, '-', '-');
                hi = lo;
            }
        }
        if (hi < lo) refuse(r, ROSE_E_INVAL, "a range of characters is upside down");
        rose_gr_chars_add(r->b, &x->chars, lo, hi);
    }
    fold(r, &x->chars);
    if (negative) rose_gr_chars_invert(r->b, &x->chars);
    return x;
}

static rx *one_char(gr_source *r, uint32_t cp)
{
    rx *x = new_rx(r, RX_CHARS);
    rose_gr_chars_add(r->b, &x->chars, cp, cp);
    fold(r, &x->chars);
    return x;
}

static rx *read_escape(gr_source *r)
{
    rx *x = new_rx(r, RX_CHARS);
    char c = more(r) ? r->s[r->at] : '\0';
    if (c == 'b' || c == 'B') refuse(r, ROSE_E_UNSUPPORTED, "word boundaries are not supported");
    if ((c >= '1' && c <= '9') || c == 'k')
        refuse(r, ROSE_E_UNSUPPORTED, "back-references are not supported");
    uint32_t cp = escape(r, &x->chars);
    if (cp != GR_NONE) rose_gr_chars_add(r->b, &x->chars, cp, cp);
    fold(r, &x->chars);
    return x;
}

/* ---- structure ---- */

static rx *read_alt(gr_source *r);

static rx *read_group(gr_source *r)
{
    rx *look = NULL;
    if (gr_take(r, "?<=") || gr_take(r, "?<!"))
        refuse(r, ROSE_E_UNSUPPORTED, "look-behind is not supported");
    if (gr_take(r, "?=") || gr_take(r, "?!")) {
        look = new_rx(r, RX_LOOK);
        look->negative = r->s[r->at - 1] == '!';
    } else if (gr_take(r, "?<") || gr_take(r, "?P<")) {
        while (!gr_take(r, ">"))
            next_char(r);
    } else if (!gr_take(r, "?:") && gr_take(r, "?")) {
        refuse(r, ROSE_E_UNSUPPORTED, "flags such as (?i) are not supported");
    }
    rx *x = read_alt(r);
    if (!gr_take(r, ")")) refuse(r, ROSE_E_INVAL, "a ')' is missing");
    if (look == NULL) return x;
    add_kid(r, look, x);
    return look;
}

static bool read_number(gr_source *r, uint32_t *v)
{
    size_t from = r->at;
    bool fits;
    r->at += rose_gr_number(r->s + from, r->n - from, v, &fits);
    if (!fits) refuse(r, ROSE_E_UNSUPPORTED, GR_COUNT_TOO_LARGE);
    return r->at > from;
}

/* {2} {2,} {2,5}; false leaves the text as it is: then '{' is a character. */
static bool read_bounds(gr_source *r, uint32_t *min, uint32_t *max)
{
    size_t from = r->at;
    if (gr_take(r, "{") && read_number(r, min)) {
        *max = *min;
        if (gr_take(r, ",") && !read_number(r, max)) *max = GR_INF;
        if (gr_take(r, "}")) return true;
    }
    r->at = from;
    return false;
}

static bool read_quantifier(gr_source *r, uint32_t *min, uint32_t *max)
{
    *min = 0;
    *max = GR_INF;
    if (gr_take(r, "*")) return true;
    if (gr_take(r, "+")) return *min = 1, true;
    if (gr_take(r, "?")) return *max = 1, true;
    return read_bounds(r, min, max);
}

static rx *read_quantified(gr_source *r, rx *x)
{
    uint32_t min, max, unused;
    if (!read_quantifier(r, &min, &max)) return x;
    rx *q = new_rx(r, RX_REPEAT);
    gr_take(r, "?"); /* lazy: the same texts */
    if (min > max) refuse(r, ROSE_E_INVAL, "the bounds of a repetition are upside down");
    if (more(r) && r->s[r->at] == '+')
        refuse(r, ROSE_E_UNSUPPORTED, "possessive quantifiers such as a++ are not supported");
    if (read_quantifier(r, &unused, &unused))
        refuse(r, ROSE_E_INVAL, "a quantifier follows a quantifier; write a group, as in (?:a*)*");
    q->min = min;
    q->max = max;
    add_kid(r, q, x);
    return q;
}

static rx *read_atom(gr_source *r)
{
    if (gr_take(r, "(")) return read_group(r);
    if (gr_take(r, "[")) return read_class(r);
    if (gr_take(r, "\\")) return read_escape(r);
    if (gr_take(r, "^")) return new_rx(r, RX_START);
    if (gr_take(r, "$")) return new_rx(r, RX_END);
    if (gr_take(r, ".")) {
        rx *x = new_rx(r, RX_CHARS);
        if (!r->dot_all) rose_gr_chars_add(r->b, &x->chars, '\n', '\n');
        rose_gr_chars_invert(r->b, &x->chars);
        return x;
    }
    uint32_t min, max;
    if (r->s[r->at] == '*' || r->s[r->at] == '+' || r->s[r->at] == '?' ||
        read_bounds(r, &min, &max))
        refuse(r, ROSE_E_INVAL, "nothing to repeat");
    return one_char(r, next_char(r));
}

static rx *read_alt(gr_source *r)
{
    rx *alt = new_rx(r, RX_ALT);
    rose_gr_enter(r->b);
    do {
        rx *seq = new_rx(r, RX_SEQ);
        while (more(r) && r->s[r->at] != '|' && r->s[r->at] != ')')
            add_kid(r, seq, read_quantified(r, read_atom(r)));
        add_kid(r, alt, seq);
    } while (gr_take(r, "|"));
    rose_gr_leave(r->b);
    return alt->n == 1 ? alt->kids[0] : alt;
}

/* ---- to nodes ---- */

/* What is next to a part: more of the expression, the edge of the text, or any text. */
typedef enum side { INNER, EDGE, ANY } side;

static gr_node convert(gr_source *r, const rx *x, side left, side right);

/* A look-ahead says what all the text after it must begin with, or must not. */
static gr_node with_look(gr_source *r, const rx *look, side left, gr_node rest)
{
    gr_build *b = r->b;
    gr_node said = convert(r, look->kids[0], left, ANY);
    gr_dfa *d = rose_gr_dfa_combine(b, rose_gr_dfa_of(b, rest), rose_gr_dfa_of(b, said),
                                    look->negative ? DFA_MINUS : DFA_AND);
    return rose_gr_dfa_node(b, d);
}

/* kids[i .. n) of a sequence. */
static gr_node convert_seq(gr_source *r, const rx *x, size_t i, side left, side right)
{
    gr_build *b = r->b;
    gr_list l = {0};
    size_t n = x->n;
    for (; i < n && x->kids[i]->kind == RX_START && left != INNER; i++)
        left = EDGE;
    for (; n > i && x->kids[n - 1]->kind == RX_END && right != INNER; n--)
        right = EDGE;
    if (i == n) return left == ANY || right == ANY ? rose_gr_any_text(b) : GR_EMPTY;
    for (; i < n && x->kids[i]->kind != RX_LOOK; i++, left = INNER)
        rose_gr_push(b, &l, convert(r, x->kids[i], left, i + 1 == n ? right : INNER));
    if (i < n) {
        if (right == INNER)
            refuse(r, ROSE_E_UNSUPPORTED, "look-ahead inside of a group is not supported");
        if (left == ANY) rose_gr_push(b, &l, rose_gr_any_text(b));
        left = left == EDGE ? EDGE : INNER;
        gr_node rest = convert_seq(r, x, i + 1, left, right);
        rose_gr_push(b, &l, with_look(r, x->kids[i], left, rest));
    }
    return rose_gr_seq(b, l.v, l.n);
}

static gr_node convert(gr_source *r, const rx *x, side left, side right)
{
    gr_build *b = r->b;
    gr_list l = {0};
    gr_node node;
    rose_gr_work(b, 0);
    switch (x->kind) {
    case RX_ALT:
        for (size_t i = 0; i < x->n; i++)
            rose_gr_push(b, &l, convert(r, x->kids[i], left, right));
        return rose_gr_alt(b, l.v, l.n);
    case RX_SEQ:
        return convert_seq(r, x, 0, left, right);
    case RX_REPEAT:
        if (x->anchored) refuse(r, ROSE_E_UNSUPPORTED, "anchors and look-ahead cannot be repeated");
        node = rose_gr_repeat(b, convert(r, x->kids[0], INNER, INNER), x->min, x->max);
        break;
    case RX_CHARS:
        node = rose_gr_chars_node(b, &x->chars);
        break;
    case RX_START:
    case RX_END:
    case RX_LOOK:
    default:
        refuse(r, ROSE_E_UNSUPPORTED, "'^' and '$' are supported only at the ends");
    }
    if (left == ANY) node = GR_SEQ(b, rose_gr_any_text(b), node);
    return right == ANY ? GR_SEQ(b, node, rose_gr_any_text(b)) : node;
}

static gr_node compile(gr_source r, bool search)
{
    const rx *x = read_alt(&r);
    if (more(&r)) refuse(&r, ROSE_E_INVAL, "a ')' has no '('");
    return convert(&r, x, search ? ANY : EDGE, search ? ANY : EDGE);
}

gr_node rose_gr_regex(gr_build *b, const char *text, size_t n)
{
    return compile((gr_source){.b = b, .s = text, .n = n}, false);
}

gr_node rose_gr_regex_with(gr_build *b, const char *text, size_t n, bool fold_case, bool dot_all)
{
    return compile((gr_source){.b = b, .s = text, .n = n, .fold = fold_case, .dot_all = dot_all},
                   false);
}

gr_node rose_gr_pattern(gr_build *b, const char *text, size_t n)
{
    return compile((gr_source){.b = b, .s = text, .n = n}, true);
}
