/* template/letters.c - upper, lower, title and capitalize as Python's str has them: the full
 * mappings of Unicode, which can make three characters of one. Each new byte has the mark of its
 * letter. */
#include "template/template_internal.h"

#include <utf8proc.h>

typedef enum form { UPPER, LOWER, TITLE } form;
enum { LONG_FORM = 4 }; /* characters of a letter with three marks */

static bool is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LT || utf8proc_islower((utf8proc_int32_t)c) ||
           utf8proc_isupper((utf8proc_int32_t)c);
}

static bool is_small_or_title(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

/* The upper or title form of a letter where it is longer than one character; returns its length, 0
 * for other letters. SpecialCasing.txt lists these forms, but they follow from the parts of the
 * letter: a ligature or a letter with marks that has no capital becomes the capitals of its parts.
 * A small iota below a Greek letter follows it as a capital iota in the upper form and stays below
 * it in the title form; other marks join the capital where there is such a letter. Only the sharp s
 * has no parts. */
static size_t long_form(uint32_t c, form to, utf8proc_int32_t out[LONG_FORM])
{
    enum { SHARP_S = 0xDF, IOTA_BELOW = 0x345 };
    const utf8proc_option_t compose = (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    int class = 0;
    if (!is_small_or_title(c)) return 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, out, LONG_FORM,
                                (utf8proc_option_t)(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT), &class);
    if (c == SHARP_S) {
        out[0] = out[1] = 's';
        n = 2;
    } else if (n < 2 || n > LONG_FORM ||
               (out[n - 1] != IOTA_BELOW &&
                utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c)) {
        return 0;
    }
    const bool iota = out[n - 1] == IOTA_BELOW;
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        out[i] = utf8proc_toupper(out[i]);
        if (to == TITLE && is_cased((uint32_t)out[i])) break; /* one capital */
    }
    if (!iota) return (size_t)n;
    const utf8proc_int32_t below = out[n - 1];
    n = utf8proc_normalize_utf32(out, n - 1, compose);
    out[n++] = below;
    if (to == TITLE && n == 2) n = utf8proc_normalize_utf32(out, n, compose);
    return (size_t)n;
}

/* Marks and the like, which the rule of the final sigma looks through. */
static bool is_ignorable(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019 ||
           k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

/* A capital sigma at `at` ends a word: a cased letter before it, none after it. */
static bool final_sigma(const tpl_text *x, size_t at)
{
    size_t i = at;
    bool before = false;
    while (i > 0) {
        do
            i--;
        while (rose_utf8_is_inner(x->s[i]));
        if (is_ignorable(rose_tpl_char(x, i))) continue;
        before = is_cased(rose_tpl_char(x, i));
        break;
    }
    if (!before) return false;
    for (i = at + 2; i < x->n; i += rose_tpl_char_len(x, i)) {
        if (!is_ignorable(rose_tpl_char(x, i))) return !is_cased(rose_tpl_char(x, i));
    }
    return true;
}

static void put_form(tpl_buf *b, const tpl_text *x, size_t at, form to)
{
    uint32_t c = rose_tpl_char(x, at);
    uint8_t mark = rose_tpl_text_mark(b->t, x, at, at + 1);
    utf8proc_int32_t parts[LONG_FORM];
    const size_t n = c < 0x80 || to == LOWER ? 0 : long_form(c, to, parts);
    for (size_t i = 0; i < n; i++)
        rose_tpl_put_char(b, (uint32_t)parts[i], mark);
    if (n > 0) return;
    if (to == LOWER && c == 0x130) { /* I with a dot: i and a dot above */
        rose_tpl_put_char(b, 'i', mark);
        rose_tpl_put_char(b, 0x307, mark);
        return;
    }
    if (to == LOWER && c == 0x3A3 && final_sigma(x, at)) {
        rose_tpl_put_char(b, 0x3C2, mark);
        return;
    }
    utf8proc_int32_t k = (utf8proc_int32_t)c;
    k = to == UPPER ? utf8proc_toupper(k) : to == LOWER ? utf8proc_tolower(k) : utf8proc_totitle(k);
    rose_tpl_put_char(b, (uint32_t)k, mark);
}

static const tpl_text *mapped(rose_tpl *t, const tpl_text *x, form first, form rest)
{
    tpl_buf b = {.t = t};
    rose_tpl_visit(t, x->n);
    for (size_t i = 0; i < x->n; i += rose_tpl_char_len(x, i))
        put_form(&b, x, i, i == 0 ? first : rest);
    return x->n == 0 ? x : rose_tpl_buf_text(&b);
}

static const tpl_text *title(rose_tpl *t, const tpl_text *x)
{
    tpl_buf b = {.t = t};
    bool inside = false;
    rose_tpl_visit(t, x->n);
    for (size_t i = 0; i < x->n; i += rose_tpl_char_len(x, i)) {
        put_form(&b, x, i, inside ? LOWER : TITLE);
        inside = is_cased(rose_tpl_char(x, i));
    }
    return x->n == 0 ? x : rose_tpl_buf_text(&b);
}

static bool begins_word(uint32_t c)
{
    return rose_tpl_is_space(c) || (c < 0x80 && c != 0 && strchr("-({[<", (int)c) != NULL);
}

/* jinja2's filter begins a word after white space and after - ( { [ <. */
static const tpl_text *title_words(rose_tpl *t, const tpl_text *x)
{
    tpl_buf b = {.t = t};
    size_t i = 0;
    rose_tpl_visit(t, x->n);
    while (i < x->n) {
        size_t start = i;
        tpl_text word;
        bool gap = begins_word(rose_tpl_char(x, i));
        while (i < x->n && begins_word(rose_tpl_char(x, i)) == gap)
            i += rose_tpl_char_len(x, i);
        word = *rose_tpl_part(t, x, start, i);
        for (size_t k = 0; k < word.n; k += rose_tpl_char_len(&word, k))
            put_form(&b, &word, k, k == 0 ? UPPER : LOWER);
    }
    return x->n == 0 ? x : rose_tpl_buf_text(&b);
}

const tpl_text *rose_tpl_to_case(rose_tpl *t, const tpl_text *x, tpl_case to)
{
    switch (to) {
    case TPL_UPPER:
        return mapped(t, x, UPPER, UPPER);
    case TPL_LOWER:
        return mapped(t, x, LOWER, LOWER);
    case TPL_CAPITALIZE:
        return mapped(t, x, TITLE, LOWER);
    case TPL_TITLE:
        return title(t, x);
    case TPL_TITLE_WORDS:
        break;
    }
    return title_words(t, x);
}

tpl_value rose_tpl_filter_case(const tpl_in *in)
{
    const tpl_text *x = rose_tpl_to_text(in->t, in->v);
    return rose_tpl_str(rose_tpl_to_case(in->t, x, (tpl_case)in->variant));
}

static bool all_case(rose_tpl *t, const tpl_text *x, bool upper)
{
    bool any = false;
    rose_tpl_visit(t, x->n);
    for (size_t i = 0; i < x->n; i += rose_tpl_char_len(x, i)) {
        utf8proc_int32_t c = (utf8proc_int32_t)rose_tpl_char(x, i);
        bool other = upper ? utf8proc_islower(c) : utf8proc_isupper(c);
        if (other || utf8proc_category(c) == UTF8PROC_CATEGORY_LT) return false;
        any = any || (upper ? utf8proc_isupper(c) : utf8proc_islower(c));
    }
    return any;
}

tpl_value rose_tpl_test_case(const tpl_in *in)
{
    const tpl_text *x = rose_tpl_to_text(in->t, in->v);
    return rose_tpl_bool(all_case(in->t, x, in->variant == TPL_UPPER));
}
