/* grammar/schema_number.c - numbers of a JSON schema. Without bounds any JSON number fits. Bounds
 * and multipleOf are automata over decimal digits that are intersected. Bounds are compared as
 * decimal text, so they are exact at any size. Exponents are written only if no bound but zero is
 * there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

enum { MAX_MODULUS = 20000, MAX_DIGITS = 308 };

/* The digits of an integer or of a plain fraction as they are written; else the shortest text that
 * reads back as the same number. */
static const char *number_text(const rose_json *number, char out[64])
{
    const char *text = rose_json_number_text(number, out);
    const bool plain = strlen(text) <= 40 && strpbrk(text, "eE") == NULL;
    if (plain || rose_json_is_integer(number) || rose_json_is_big(number)) return text;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, 64, "%.*e", digits - 1, rose_json_real_value(number));
        if (strtod(out, NULL) == rose_json_real_value(number)) break; /* both are exact copies */
    }
    return out;
}

void rose_gr_decimal(gr_build *b, const rose_json *number, gr_decimal *out)
{
    char buf[64], digits[MAX_DIGITS + 1];
    size_t n = 0, w = 0, p = 0;
    long point = 0, power = 0;
    bool after = false;
    const char *text = number_text(number, buf);
    if (strlen(text) > MAX_DIGITS)
        rose_gr_fail(b, ROSE_E_INVAL, "the number %.20s... has over %d digits", text, MAX_DIGITS);
    *out = (gr_decimal){.negative = text[0] == '-'};
    for (const char *s = text + out->negative; *s != '\0'; s++) {
        if (*s == 'e') {
            power = strtol(s + 1, NULL, 10);
            break;
        }
        if (*s == '.') {
            after = true;
        } else {
            digits[n++] = *s;
            if (!after) point++;
        }
    }
    point += power;
    if (point > 309 || point < -330) rose_gr_fail(b, ROSE_E_INVAL, "the number %s", text);
    for (long i = point < 0 ? point : 0; i < (long)n || i < point; i++) {
        char c = i >= 0 && i < (long)n ? digits[i] : '0';
        if (i < point) {
            if (w > 0 || c != '0') out->whole[w++] = c;
        } else {
            out->part[p++] = c;
        }
    }
    while (p > 0 && out->part[p - 1] == '0')
        out->part[--p] = '\0';
    if (w == 0) out->whole[0] = '0';
    if (w == 0 && p == 0) out->negative = false;
}

/* ---- comparisons of digits, as nodes ---- */

static gr_node digit(gr_build *b, unsigned lo, unsigned hi)
{
    return lo > hi ? GR_NEVER : rose_gr_range(b, '0' + lo, '0' + hi);
}

static gr_node digits(gr_build *b, uint32_t min, uint32_t max)
{
    return rose_gr_repeat(b, digit(b, 0, 9), min, max);
}

/* Whole numbers of as many digits as s, above or below it; or equal, then `end` follows. */
static gr_node same_length(gr_build *b, const char *s, bool above, gr_node end)
{
    size_t n = strlen(s);
    gr_node rest = end;
    for (size_t i = n; i-- > 0;) {
        unsigned d = (unsigned)(s[i] - '0'), least = i == 0 && n > 1 ? 1 : 0;
        gr_node other = above ? digit(b, d + 1, 9) : d == 0 ? GR_NEVER : digit(b, least, d - 1);
        gr_node fraction = rose_gr_opt(b, GR_SEQ(b, rose_gr_text(b, "."), digits(b, 1, GR_INF)));
        uint32_t left = (uint32_t)(n - 1 - i);
        rest = GR_ALT(b, GR_SEQ(b, digit(b, d, d), rest),
                      GR_SEQ(b, other, digits(b, left, left), fraction));
    }
    return rest;
}

/* What may follow the whole part of the bound. */
static gr_node fraction_above(gr_build *b, const char *s, bool strict)
{
    gr_node any = digits(b, 0, GR_INF), zeros = rose_gr_repeat(b, digit(b, 0, 0), 0, GR_INF);
    gr_node rest = strict ? GR_SEQ(b, zeros, digit(b, 1, 9), any) : any;
    bool whole = s[0] == '\0' && !strict; /* no point is needed */
    for (size_t i = strlen(s); i-- > 0;) {
        unsigned d = (unsigned)(s[i] - '0');
        rest = GR_ALT(b, GR_SEQ(b, digit(b, d, d), rest), GR_SEQ(b, digit(b, d + 1, 9), any));
    }
    if (whole) rest = digits(b, 1, GR_INF);
    rest = GR_SEQ(b, rose_gr_text(b, "."), rest);
    return whole ? rose_gr_opt(b, rest) : rest;
}

static gr_node fraction_below(gr_build *b, const char *s, bool strict)
{
    gr_node any = digits(b, 0, GR_INF), zeros = rose_gr_repeat(b, digit(b, 0, 0), 0, GR_INF);
    gr_node rest = strict ? GR_NEVER : zeros;
    if (s[0] == '\0' && strict) return GR_NEVER;
    if (s[0] == '\0') return rose_gr_opt(b, GR_SEQ(b, rose_gr_text(b, "."), digit(b, 0, 0), zeros));
    for (size_t i = strlen(s); i-- > 0;) {
        unsigned d = (unsigned)(s[i] - '0');
        gr_node less = d == 0 ? GR_NEVER : GR_SEQ(b, digit(b, 0, d - 1), any);
        gr_node same =
            GR_SEQ(b, digit(b, d, d), i + 1 < strlen(s) ? GR_ALT(b, rest, GR_EMPTY) : rest);
        if (i + 1 == strlen(s) && strict) same = GR_SEQ(b, digit(b, d, d), GR_NEVER);
        rest = GR_ALT(b, same, less);
    }
    /* A shorter fraction is below: 0.1 < 0.15. */
    return rose_gr_opt(b, GR_SEQ(b, rose_gr_text(b, "."), rest));
}

/* Numbers without a sign from, or up to, the magnitude of m. */
static gr_node magnitude(gr_build *b, const gr_decimal *m, bool above, bool strict)
{
    uint32_t n = (uint32_t)strlen(m->whole);
    gr_node end = above ? fraction_above(b, m->part, strict) : fraction_below(b, m->part, strict);
    gr_node same = same_length(b, m->whole, above, end), other = GR_NEVER;
    gr_node fraction = rose_gr_opt(b, GR_SEQ(b, rose_gr_text(b, "."), digits(b, 1, GR_INF)));
    if (above)
        other = GR_SEQ(b, digit(b, 1, 9), digits(b, n, GR_INF), fraction);
    else if (n > 1)
        other = GR_SEQ(b, GR_ALT(b, digit(b, 0, 0), GR_SEQ(b, digit(b, 1, 9), digits(b, 0, n - 2))),
                       fraction);
    return GR_ALT(b, same, other);
}

/* An exponent, or none. It does not change the sign, so bounds at zero allow it. */
static gr_node exponent(gr_build *b)
{
    gr_node sign = GR_ALT(b, rose_gr_text(b, "+"), rose_gr_text(b, "-"), GR_EMPTY);
    gr_node e = GR_ALT(b, rose_gr_text(b, "e"), rose_gr_text(b, "E"));
    return rose_gr_opt(b, GR_SEQ(b, e, sign, digits(b, 1, GR_INF)));
}

/* All numbers at least (above) or at most m; strict: but not m itself. */
static gr_node bound(gr_build *b, const gr_decimal *m, bool above, bool strict)
{
    gr_decimal zero = {.whole = "0"};
    gr_node minus = rose_gr_text(b, "-"), all = magnitude(b, &zero, true, false);
    bool is_zero = strcmp(m->whole, "0") == 0 && m->part[0] == '\0';
    if (is_zero) {
        gr_node nought =
            GR_SEQ(b, rose_gr_opt(b, minus), magnitude(b, &zero, false, false), exponent(b));
        gr_node beyond = GR_SEQ(b, magnitude(b, &zero, true, true), exponent(b));
        if (!above) beyond = GR_SEQ(b, minus, beyond);
        return strict ? beyond : GR_ALT(b, beyond, nought);
    }
    if (m->negative != above) { /* away from zero: 5 <= x, or x <= -5 */
        gr_node x = magnitude(b, m, true, strict);
        return m->negative ? GR_SEQ(b, minus, x) : x;
    }
    /* Towards zero and past it: -5 <= x, or x <= 5. */
    gr_node near = magnitude(b, m, false, strict);
    return above ? GR_ALT(b, all, GR_SEQ(b, minus, near)) : GR_ALT(b, GR_SEQ(b, minus, all), near);
}

/* ---- multipleOf ---- */

/* Texts whose value is a multiple of step * 10^-places: digits, a point, at most `places` digits
 * that count, then zeros. State 1 + (remainder, digits after the point + 1, or 0 before it). */
static gr_dfa *multiples(gr_build *b, uint32_t step, uint32_t places)
{
    uint32_t width = places + 2, n = 3 + step * width;
    gr_dfa *d = rose_gr_take(b, sizeof *d);
    if ((uint64_t)step * width > MAX_MODULUS)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "multipleOf: this number has too many remainders");
    d->n = n;
    d->next = rose_gr_take(b, n * sizeof *d->next);
    d->accept = rose_gr_take(b, n);
    for (uint32_t r = 0; r < step; r++)
        for (uint32_t p = 0; p < width; p++) {
            uint32_t s = 3 + r * width + p;
            for (uint32_t c = 0; c < 10; c++) {
                uint32_t to = (r * 10 + c) % step;
                if (p == 0)
                    d->next[s]['0' + c] = (uint16_t)(3 + to * width);
                else if (p - 1 < places)
                    d->next[s]['0' + c] = (uint16_t)(3 + to * width + p + 1);
                else if (c == 0)
                    d->next[s]['0'] = (uint16_t)s;
            }
            if (p == 0) d->next[s]['.'] = (uint16_t)(s + 1);
            uint32_t value = r;
            for (uint32_t i = p == 0 ? 0 : p - 1; i < places; i++)
                value = value * 10 % step;
            d->accept[s] = value == 0;
        }
    for (uint32_t s = 1; s <= 2; s++) /* 1: the start; 2: after a sign */
        memcpy(d->next[s], d->next[3], sizeof d->next[s]);
    d->next[1]['-'] = 2;
    for (uint32_t s = 1; s <= 2; s++)
        d->next[s]['.'] = 0;
    return d;
}

static gr_dfa *multiple_of(gr_build *b, rose_json *schema, const rose_json *m)
{
    gr_decimal d;
    char all[700];
    rose_gr_decimal(b, m, &d);
    snprintf(all, sizeof all, "%s%s", strcmp(d.whole, "0") == 0 ? "" : d.whole, d.part);
    unsigned long long step = strtoull(all, NULL, 10);
    if (step > MAX_MODULUS || strlen(all) > 12)
        rose_gr_schema_refuse(b, schema, "multipleOf", ROSE_E_UNSUPPORTED,
                              "this number has too many digits");
    return multiples(b, (uint32_t)step, (uint32_t)strlen(d.part));
}

/* ---- all together ---- */

static void narrow(gr_build *b, gr_dfa **d, gr_dfa *with)
{
    *d = *d == NULL ? with : rose_gr_dfa_combine(b, *d, with, DFA_AND);
}

/* One schema's bound; in draft 4 exclusiveMinimum is a flag of minimum. */
static void add_bound(gr_build *b, rose_json *schema, bool above, gr_dfa **d)
{
    const char *names[2] = {above ? "minimum" : "maximum",
                            above ? "exclusiveMinimum" : "exclusiveMaximum"};
    bool flag = rose_json_is_true(rose_json_get(schema, names[1]));
    for (int i = 0; i < 2; i++) {
        const rose_json *x = rose_json_get(schema, names[i]);
        gr_decimal m;
        if (x == NULL || (i == 1 && rose_json_is_boolean(x))) continue;
        rose_gr_decimal(b, x, &m);
        narrow(b, d, rose_gr_dfa_of(b, bound(b, &m, above, flag || i == 1)));
    }
}

/* Values of "not": {"enum": ...}, which rose_gr_negated writes as \1not. */
static void exclude(gr_build *b, rose_json *schema, gr_dfa **d)
{
    rose_json *list = rose_json_get(schema, "\1not"), *x;
    size_t i;
    rose_json_each_item (list, i, x) {
        gr_decimal m;
        if (!rose_json_is_number(x)) continue;
        rose_gr_decimal(b, x, &m);
        gr_node above = bound(b, &m, true, true), below = bound(b, &m, false, true);
        narrow(b, d, rose_gr_dfa_of(b, GR_ALT(b, above, below)));
    }
}

/* What one schema demands of a number beyond its type; NULL: nothing. */
static void constrain(gr_build *b, rose_json *schema, gr_dfa **d)
{
    const rose_json *m = rose_json_get(schema, "multipleOf");
    add_bound(b, schema, true, d);
    add_bound(b, schema, false, d);
    exclude(b, schema, d);
    if (m != NULL) narrow(b, d, multiple_of(b, schema, m));
}

gr_node rose_gr_number_node(gr_build *b, const gr_conj *c, unsigned types)
{
    gr_dfa *d = NULL;
    gr_decimal zero = {.whole = "0"};
    for (size_t i = 0; i < c->n; i++)
        constrain(b, c->v[i], &d);
    gr_node integer = rose_gr_integer(b), shape = integer;
    if (types & TYPE_FRACTION)
        shape = GR_SEQ(b, rose_gr_opt(b, rose_gr_text(b, "-")), magnitude(b, &zero, true, false),
                       exponent(b));
    if (!(types & TYPE_INTEGER)) { /* "not": {"type": "integer"} */
        gr_node zeros = rose_gr_repeat(b, digit(b, 0, 0), 1, GR_INF);
        gr_node whole = GR_SEQ(b, integer, rose_gr_opt(b, GR_SEQ(b, rose_gr_text(b, "."), zeros)));
        shape = GR_SEQ(b, rose_gr_opt(b, rose_gr_text(b, "-")), magnitude(b, &zero, true, false));
        d = rose_gr_dfa_combine(b, d != NULL ? d : rose_gr_dfa_of(b, shape),
                                rose_gr_dfa_of(b, whole), DFA_MINUS);
    }
    if (d == NULL) return types & TYPE_FRACTION ? rose_gr_any_number(b) : integer;
    narrow(b, &d, rose_gr_dfa_of(b, shape));
    return rose_gr_dfa_node(b, d);
}

bool rose_gr_number_fits(gr_build *b, rose_json *schema, const rose_json *value)
{
    static const char *const keys[] = {
        "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "\1not", NULL};
    gr_decimal m;
    char text[sizeof m.whole + sizeof m.part + 3];
    if (rose_gr_first_key(schema, keys) == NULL) return true;
    void **known = rose_gr_memo(b, schema, MEMO_NUMBER);
    gr_dfa *d = *known;
    if (d == NULL) constrain(b, schema, &d);
    if (d == NULL) return true;
    *known = d;
    rose_gr_work(b, 64);
    rose_gr_decimal(b, value, &m);
    int n = snprintf(text, sizeof text, "%s%s%s%s", m.negative ? "-" : "", m.whole,
                     m.part[0] != '\0' ? "." : "", m.part);
    return rose_gr_dfa_match(d, text, (size_t)n);
}
