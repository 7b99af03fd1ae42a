/* grammar/json.c - JSON without a schema: strings, numbers, any value. RFC 8259, with bounded white
 * space. The rules are shared, so that a schema with a thousand strings has one automaton of a
 * string. A lone surrogate escape is no character and is not allowed. */
#include <string.h>

#include "grammar/grammar_internal.h"

enum { RULE_STRING, RULE_NUMBER, RULE_VALUE, RULE_OBJECT, RULE_ARRAY };

static gr_node chars(gr_build *b, const char *members)
{
    gr_set s = {{0}};
    for (; *members != '\0'; members++)
        gr_set_add(&s, (uint8_t)*members, (uint8_t)*members);
    return rose_gr_set(b, &s);
}

static gr_node hex_digits(gr_build *b, uint32_t n)
{
    return rose_gr_repeat(b, chars(b, "0123456789abcdefABCDEF"), n, n);
}

/* After "\u": four hexadecimal digits, for a pair of surrogates twice. */
static gr_node unicode_escape(gr_build *b)
{
    gr_node d = chars(b, "dD"), x2 = GR_SEQ(b, hex_digits(b, 1), hex_digits(b, 1));
    gr_node x3 = GR_SEQ(b, x2, hex_digits(b, 1));
    gr_node plain = GR_SEQ(b, chars(b, "0123456789abcefABCEF"), x3);
    gr_node below = GR_SEQ(b, d, chars(b, "01234567"), x2);
    gr_node pair =
        GR_SEQ(b, d, chars(b, "89abAB"), x2, rose_gr_text(b, "\\u"), d, chars(b, "cdefCDEF"), x2);
    return GR_ALT(b, plain, below, pair);
}

/* One character, in any of its spellings. */
gr_node rose_gr_string_char(gr_build *b)
{
    gr_chars c = {0};
    rose_gr_chars_add(b, &c, 0x20, 0x21);
    rose_gr_chars_add(b, &c, 0x23, 0x5b);
    rose_gr_chars_add(b, &c, 0x5d, 0x10ffff);
    gr_node escape = GR_SEQ(
        b, rose_gr_text(b, "\\"),
        GR_ALT(b, chars(b, "\"\\/bfnrt"), GR_SEQ(b, rose_gr_text(b, "u"), unicode_escape(b))));
    gr_node x = GR_ALT(b, rose_gr_chars_node(b, &c), escape);
    b->nodes[x].flags |= GR_SAFE_CHAR | GR_STRING_CHAR;
    return x;
}

/* Free strings only, so this must not depend on how patterns are written. */
gr_node rose_gr_string_rest(gr_build *b)
{
    bool plain = b->plain_class;
    b->plain_class = false;
    gr_node x =
        GR_SEQ(b, rose_gr_repeat(b, rose_gr_string_char(b), 0, GR_INF), rose_gr_text(b, "\""));
    b->plain_class = plain;
    return x;
}

/* The shared rule of this number; *is_new: define it. */
static gr_node shared(gr_build *b, int rule, const char *name, bool *is_new)
{
    *is_new = b->json_rules[rule] == GR_NONE;
    if (*is_new) b->json_rules[rule] = rose_gr_rule_new(b, name);
    return b->json_rules[rule];
}

gr_node rose_gr_any_string(gr_build *b)
{
    bool is_new;
    gr_node r = shared(b, RULE_STRING, "string", &is_new);
    if (is_new) rose_gr_rule_define(b, r, GR_SEQ(b, rose_gr_text(b, "\""), rose_gr_string_rest(b)));
    return r;
}

gr_node rose_gr_integer(gr_build *b)
{
    gr_node digits = rose_gr_repeat(b, rose_gr_range(b, '0', '9'), 0, GR_INF);
    gr_node whole = GR_ALT(b, rose_gr_text(b, "0"), GR_SEQ(b, rose_gr_range(b, '1', '9'), digits));
    return GR_SEQ(b, rose_gr_opt(b, rose_gr_text(b, "-")), whole);
}

gr_node rose_gr_any_number(gr_build *b)
{
    bool is_new;
    gr_node r = shared(b, RULE_NUMBER, "number", &is_new);
    if (!is_new) return r;
    gr_node digits = rose_gr_repeat(b, rose_gr_range(b, '0', '9'), 1, GR_INF);
    gr_node fraction = GR_SEQ(b, rose_gr_text(b, "."), digits);
    gr_node power = GR_SEQ(b, chars(b, "eE"), rose_gr_opt(b, chars(b, "+-")), digits);
    rose_gr_rule_define(
        b, r, GR_SEQ(b, rose_gr_integer(b), rose_gr_opt(b, fraction), rose_gr_opt(b, power)));
    return r;
}

gr_node rose_gr_space(gr_build *b)
{
    if (b->opts.max_space == UINT32_MAX) return GR_EMPTY;
    return rose_gr_repeat(b, chars(b, " \n\t\r"), 0, b->opts.max_space);
}

/* open ws close, or open ws first (ws , ws more)* ws close with min to max members. */
gr_node rose_gr_members(gr_build *b, const char *open, gr_node member, const char *close,
                        uint32_t min, uint32_t max)
{
    gr_node ws = rose_gr_space(b), comma = GR_SEQ(b, ws, rose_gr_text(b, ","), ws);
    gr_node more = GR_EMPTY, some = GR_NEVER;
    if (max > 0) {
        more = rose_gr_repeat(b, GR_SEQ(b, comma, member), min > 0 ? min - 1 : 0,
                              max == GR_INF ? GR_INF : max - 1);
        some = GR_SEQ(b, member, more, ws);
    }
    if (min == 0) some = GR_ALT(b, some, GR_EMPTY);
    return GR_SEQ(b, rose_gr_text(b, open), ws, some, rose_gr_text(b, close));
}

gr_node rose_gr_any_object(gr_build *b)
{
    bool is_new;
    gr_node r = shared(b, RULE_OBJECT, "object", &is_new), ws = rose_gr_space(b);
    if (!is_new) return r;
    gr_node member =
        GR_SEQ(b, rose_gr_any_string(b), ws, rose_gr_text(b, ":"), ws, rose_gr_any_value(b));
    rose_gr_rule_define(b, r, rose_gr_members(b, "{", member, "}", 0, GR_INF));
    return r;
}

static gr_node any_array(gr_build *b)
{
    bool is_new;
    gr_node r = shared(b, RULE_ARRAY, "array", &is_new);
    if (is_new)
        rose_gr_rule_define(b, r, rose_gr_members(b, "[", rose_gr_any_value(b), "]", 0, GR_INF));
    return r;
}

gr_node rose_gr_any_value(gr_build *b)
{
    bool is_new;
    gr_node r = shared(b, RULE_VALUE, "value", &is_new);
    if (is_new)
        rose_gr_rule_define(b, r,
                            GR_ALT(b, rose_gr_any_string(b), rose_gr_any_number(b),
                                   rose_gr_any_object(b), any_array(b), rose_gr_text(b, "true"),
                                   rose_gr_text(b, "false"), rose_gr_text(b, "null")));
    return r;
}

/* s[0..n), UTF-8, as the inside of a JSON string; without quotes. */
gr_word rose_gr_escaped(gr_build *b, const char *s, size_t n)
{
    char *out = rose_gr_take(b, ROSE_JSON_BYTE_CAP * n + 1);
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += rose_json_escape_byte(out + k, s[i]);
    return (gr_word){out, k};
}
