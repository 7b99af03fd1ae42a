/* grammar/chars.c - sets of characters as nodes over bytes. A character is written as UTF-8 or, in
 * a JSON string, as json.dumps(ensure_ascii=False) writes it: quote, backslash and control
 * characters are escaped, everything else is UTF-8. Both ways each character has few spellings, so
 * sets of strings can be intersected and subtracted as bytes (dfa.c). */
#include <stdlib.h>

#include <utf8proc.h>

#include "grammar/grammar_internal.h"

void rose_gr_chars_add(gr_build *b, gr_chars *c, uint32_t lo, uint32_t hi)
{
    c->v = rose_gr_grown(b, c->v, c->n, &c->cap, sizeof *c->v);
    c->v[c->n++] = (struct gr_span){lo, hi};
}

static int by_lo(const void *x, const void *y)
{
    const struct gr_span *a = x, *c = y;
    return (a->lo > c->lo) - (a->lo < c->lo);
}

void rose_gr_chars_normal(gr_chars *c)
{
    size_t k = 0;
    if (c->n == 0) return;
    qsort(c->v, c->n, sizeof *c->v, by_lo);
    for (size_t i = 1; i < c->n; i++) {
        if (c->v[i].lo <= c->v[k].hi + 1) {
            if (c->v[i].hi > c->v[k].hi) c->v[k].hi = c->v[i].hi;
        } else {
            c->v[++k] = c->v[i];
        }
    }
    c->n = k + 1;
}

void rose_gr_chars_invert(gr_build *b, gr_chars *c)
{
    gr_chars out = {0};
    uint32_t at = 0;
    rose_gr_chars_normal(c);
    for (size_t i = 0; i < c->n; i++) {
        if (c->v[i].lo > at) rose_gr_chars_add(b, &out, at, c->v[i].lo - 1);
        at = c->v[i].hi + 1;
    }
    if (at <= 0x10ffff) rose_gr_chars_add(b, &out, at, 0x10ffff);
    *c = out;
}

void rose_gr_chars_fold(gr_build *b, gr_chars *c)
{
    enum { LAST_CASED = 0x1ffff }; /* no letter with two cases lies beyond */
    const size_t n = c->n;
    for (size_t i = 0; i < n; i++) {
        const struct gr_span v = c->v[i];
        const uint32_t end = v.hi < LAST_CASED ? v.hi : LAST_CASED;
        if (v.lo <= end) rose_gr_work(b, (uint64_t)(end - v.lo + 1) * 2);
        for (uint32_t cp = v.lo; cp <= end; cp++) {
            const uint32_t lower = (uint32_t)utf8proc_tolower((int32_t)cp);
            const uint32_t upper = (uint32_t)utf8proc_toupper((int32_t)cp);
            if (lower != cp) rose_gr_chars_add(b, c, lower, lower);
            if (upper != cp) rose_gr_chars_add(b, c, upper, upper);
        }
    }
    rose_gr_chars_normal(c);
}

static bool has(const gr_chars *c, uint32_t cp)
{
    for (size_t i = 0; i < c->n; i++)
        if (cp >= c->v[i].lo && cp <= c->v[i].hi) return true;
    return false;
}

uint32_t rose_gr_char_at(gr_build *b, const char *s, size_t n, size_t *len)
{
    const uint8_t *p = (const uint8_t *)s;
    uint32_t cp;
    *len = rose_utf8_decode(p, p + n, &cp);
    if (*len == 0) rose_gr_fail(b, ROSE_E_INVAL, "the text is not valid UTF-8");
    return cp;
}

/* The bytes of a span of characters that have equally many: one range of bytes for each place. */
typedef struct byte_span {
    uint8_t lo[4], hi[4];
    size_t n;
} byte_span;

typedef struct spans {
    byte_span *v;
    size_t n, cap;
} spans;

static void add_span(gr_build *b, spans *out, uint32_t lo, uint32_t hi)
{
    byte_span s;
    s.n = rose_utf8_encode(lo, (char *)s.lo);
    rose_utf8_encode(hi, (char *)s.hi);
    out->v = rose_gr_grown(b, out->v, out->n, &out->cap, sizeof *out->v);
    out->v[out->n++] = s;
}

/* Splits [lo, hi], at each place where a following byte does not take its whole range 80..BF. */
static void split(gr_build *b, spans *out, uint32_t lo, uint32_t hi)
{
    static const uint32_t last[3] = {0x7f, 0x7ff, 0xffff};
    for (int i = 0; i < 3; i++) {
        if (lo <= last[i] && hi > last[i]) {
            split(b, out, lo, last[i]);
            split(b, out, last[i] + 1, hi);
            return;
        }
    }
    for (unsigned i = 1; hi >= 0x80 && i < 4; i++) {
        uint32_t low = (UINT32_C(1) << (6 * i)) - 1;
        if ((lo & ~low) == (hi & ~low)) continue;
        if ((lo & low) != 0) {
            split(b, out, lo, lo | low);
            split(b, out, (lo | low) + 1, hi);
            return;
        }
        if ((hi & low) != low) {
            split(b, out, lo, (hi & ~low) - 1);
            split(b, out, hi & ~low, hi);
            return;
        }
    }
    add_span(b, out, lo, hi);
}

/* Spans v[0..n) are sorted and equal in the places before `at`: so at each place two of them have
 * the same range of bytes or disjoint ones. */
static gr_node span_tree(gr_build *b, const byte_span *v, size_t n, size_t at)
{
    gr_list alts = {0};
    for (size_t i = 0, k; i < n; i += k) {
        k = 1;
        while (i + k < n && v[i + k].lo[at] == v[i].lo[at] && v[i + k].hi[at] == v[i].hi[at])
            k++;
        gr_node first = rose_gr_range(b, v[i].lo[at], v[i].hi[at]);
        gr_node rest = at + 1 == v[i].n ? GR_EMPTY : span_tree(b, v + i, k, at + 1);
        rose_gr_push(b, &alts, GR_SEQ(b, first, rest));
    }
    return rose_gr_alt(b, alts.v, alts.n);
}

/* UTF-8 of [lo, hi] of c, ASCII as one set. */
static gr_node utf8_node(gr_build *b, const gr_chars *c, bool in_json)
{
    gr_set ascii = {{0}};
    spans out = {0};
    for (size_t i = 0; i < c->n; i++) {
        uint32_t lo = c->v[i].lo, hi = c->v[i].hi;
        for (uint32_t cp = lo; cp <= hi && cp < 0x80; cp++)
            if (!in_json || (cp >= 0x20 && cp != '"' && cp != '\\')) gr_set_add(&ascii, cp, cp);
        if (lo < 0x80) lo = 0x80;
        if (lo <= hi && lo < 0xd800) split(b, &out, lo, hi < 0xd800 ? hi : 0xd7ff);
        if (hi > 0xdfff) split(b, &out, lo > 0xe000 ? lo : 0xe000, hi);
    }
    return GR_ALT(b, rose_gr_set(b, &ascii), span_tree(b, out.v, out.n, 0));
}

static gr_node hex_byte(gr_build *b, unsigned value)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    gr_set hi = {{0}}, lo = {{0}};
    for (unsigned upper = 0; upper <= 16; upper += 16) {
        gr_set_add(&hi, (uint8_t)digits[upper + (value >> 4)], (uint8_t)digits[upper + value / 16]);
        gr_set_add(&lo, (uint8_t)digits[upper + value % 16], (uint8_t)digits[upper + value % 16]);
    }
    return GR_SEQ(b, rose_gr_set(b, &hi), rose_gr_set(b, &lo));
}

/* What a backslash begins: short escapes, and \u00xx for the other control characters. */
static gr_node escapes(gr_build *b, const gr_chars *c)
{
    static const char named[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    gr_set one = {{0}};
    gr_list hex = {0};
    for (unsigned i = 0; named[i] != '\0'; i++)
        if (has(c, (uint8_t)named[i])) gr_set_add(&one, (uint8_t)letter[i], (uint8_t)letter[i]);
    for (unsigned cp = 0; cp < 0x20; cp++)
        if (has(c, cp) && cp != '\b' && cp != '\f' && cp != '\n' && cp != '\r' && cp != '\t')
            rose_gr_push(b, &hex, hex_byte(b, cp));
    gr_node u = GR_SEQ(b, rose_gr_text(b, "u00"), rose_gr_alt(b, hex.v, hex.n));
    return GR_SEQ(b, rose_gr_text(b, "\\"), GR_ALT(b, rose_gr_set(b, &one), u));
}

static bool has_all_safe(const gr_chars *c)
{
    static const struct gr_span v[4] = {
        {0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xd7ff}, {0xe000, 0x10ffff}};
    for (size_t i = 0, k = 0; i < 4; i++) { /* every safe span lies in one span of c */
        while (k < c->n && c->v[k].hi < v[i].lo)
            k++;
        if (k == c->n || c->v[k].lo > v[i].lo || c->v[k].hi < v[i].hi) return false;
    }
    return true;
}

gr_node rose_gr_chars_node(gr_build *b, const gr_chars *c)
{
    gr_node x = utf8_node(b, c, !b->plain_class);
    if (!b->plain_class && c->n > 0 && (c->v[0].lo < 0x20 || has(c, '"') || has(c, '\\')))
        x = GR_ALT(b, x, escapes(b, c));
    if (has_all_safe(c)) b->nodes[x].flags |= GR_SAFE_CHAR;
    return x;
}

gr_node rose_gr_any_text(gr_build *b)
{
    gr_chars all = {0};
    rose_gr_chars_add(b, &all, 0, 0x10ffff);
    return rose_gr_repeat(b, rose_gr_chars_node(b, &all), 0, GR_INF);
}
