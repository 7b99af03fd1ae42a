/* template/letters.c - upper, lower, title and capitalize as Python's str has them: the full
 * mappings of Unicode, which can make three characters of one. Each new byte has the mark of its
 * letter. */
#include "template/template_internal.h"

#include <utf8proc.h>

typedef enum form { UPPER, LOWER, TITLE } form;

/* Letters whose upper or title form is longer than one character (SpecialCasing.txt). */
static const struct special {
    uint16_t from;
    uint16_t upper[3], title[3];
} specials[] = {
    /* clang-format off */
    {0xDF, {0x53, 0x53}, {0x53, 0x73}},
    {0x149, {0x2BC, 0x4E}, {0x2BC, 0x4E}},
    {0x1F0, {0x4A, 0x30C}, {0x4A, 0x30C}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1E96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1E97, {0x54, 0x308}, {0x54, 0x308}},
    {0x1E98, {0x57, 0x30A}, {0x57, 0x30A}},
    {0x1E99, {0x59, 0x30A}, {0x59, 0x30A}},
    {0x1E9A, {0x41, 0x2BE}, {0x41, 0x2BE}},
    {0x1F50, {0x3A5, 0x313}, {0x3A5, 0x313}},
    {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}},
    {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}},
    {0x1F80, {0x1F08, 0x399}, {0x1F88}},
    {0x1F81, {0x1F09, 0x399}, {0x1F89}},
    {0x1F82, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F83, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F84, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F85, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F86, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F87, {0x1F0F, 0x399}, {0x1F8F}},
    {0x1F88, {0x1F08, 0x399}, {0x1F88}},
    {0x1F89, {0x1F09, 0x399}, {0x1F89}},
    {0x1F8A, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F8B, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F8C, {0x1F0C, 0x399}, {0x1F8C}},
    {0x1F8D, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F8E, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F8F, {0x1F0F, 0x399}, {0x1F8F}},
    {0x1F90, {0x1F28, 0x399}, {0x1F98}},
    {0x1F91, {0x1F29, 0x399}, {0x1F99}},
    {0x1F92, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F93, {0x1F2B, 0x399}, {0x1F9B}},
    {0x1F94, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F95, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F96, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F97, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1F98, {0x1F28, 0x399}, {0x1F98}},
    {0x1F99, {0x1F29, 0x399}, {0x1F99}},
    {0x1F9A, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F9B, {0x1F2B, 0x399}, {0x1F9B}},
    {0x1F9C, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F9D, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F9E, {0x1F2E, 0x399}, {0x1F9E}},
    {0x1F9F, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1FA0, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA1, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FA2, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FA3, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FA4, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FA5, {0x1F6D, 0x399}, {0x1FAD}},
    {0x1FA6, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FA7, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FA8, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA9, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FAA, {0x1F6A, 0x399}, {0x1FAA}},
    {0x1FAB, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FAC, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FAD, {0x1F6D, 0x399}, {0x1FAD}},
    {0x1FAE, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FAF, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FB2, {0x1FBA, 0x399}, {0x1FBA, 0x345}},
    {0x1FB3, {0x391, 0x399}, {0x1FBC}},
    {0x1FB4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1FB6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1FBC, {0x391, 0x399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x399}, {0x1FCA, 0x345}},
    {0x1FC3, {0x397, 0x399}, {0x1FCC}},
    {0x1FC4, {0x389, 0x399}, {0x389, 0x345}},
    {0x1FC6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1FCC, {0x397, 0x399}, {0x1FCC}},
    {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1FD6, {0x399, 0x342}, {0x399, 0x342}},
    {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}},
    {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x1FE4, {0x3A1, 0x313}, {0x3A1, 0x313}},
    {0x1FE6, {0x3A5, 0x342}, {0x3A5, 0x342}},
    {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}},
    {0x1FF2, {0x1FFA, 0x399}, {0x1FFA, 0x345}},
    {0x1FF3, {0x3A9, 0x399}, {0x1FFC}},
    {0x1FF4, {0x38F, 0x399}, {0x38F, 0x345}},
    {0x1FF6, {0x3A9, 0x342}, {0x3A9, 0x342}},
    {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}},
    {0x1FFC, {0x3A9, 0x399}, {0x1FFC}},
    {0xFB00, {0x46, 0x46}, {0x46, 0x66}},
    {0xFB01, {0x46, 0x49}, {0x46, 0x69}},
    {0xFB02, {0x46, 0x4C}, {0x46, 0x6C}},
    {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}},
    {0xFB05, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB06, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB13, {0x544, 0x546}, {0x544, 0x576}},
    {0xFB14, {0x544, 0x535}, {0x544, 0x565}},
    {0xFB15, {0x544, 0x53B}, {0x544, 0x56B}},
    {0xFB16, {0x54E, 0x546}, {0x54E, 0x576}},
    {0xFB17, {0x544, 0x53D}, {0x544, 0x56D}},
    /* clang-format on */
};

static const struct special *special_of(uint32_t c)
{
    size_t from = 0, to = sizeof specials / sizeof *specials;
    while (from < to) {
        size_t mid = (from + to) / 2;
        if (specials[mid].from == c) return &specials[mid];
        if (specials[mid].from < c)
            from = mid + 1;
        else
            to = mid;
    }
    return NULL;
}

static bool is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LT || utf8proc_islower((utf8proc_int32_t)c) ||
           utf8proc_isupper((utf8proc_int32_t)c);
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
    const struct special *s = c < 0x80 || to == LOWER ? NULL : special_of(c);
    if (s != NULL) {
        const uint16_t *f = to == UPPER ? s->upper : s->title;
        for (size_t i = 0; i < 3 && f[i] != 0; i++)
            rose_tpl_put_char(b, f[i], mark);
        return;
    }
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
