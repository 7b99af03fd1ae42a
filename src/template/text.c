/* template/text.c - strings with marks: building, slicing, searching. Positions are bytes; Python's
 * positions are characters, which rose_tpl_offset converts.
 *
 * Most texts come whole from one origin, so a text has one mark for all of its bytes until a byte
 * of the other origin is put into it (split_marks). */
#include "template/template_internal.h"

/* ---- building ---- */

static void grow(tpl_buf *b, size_t more)
{
    size_t cap = b->cap < 32 ? 64 : b->cap * 2;
    char *s;
    if (b->n + more <= b->cap) return;
    if (b->n + more > b->t->max_output)
        rose_tpl_fail(b->t, "writes a text of more than %zu KiB", b->t->max_output >> 10);
    if (cap < b->n + more) cap = b->n + more;
    s = rose_tpl_take(b->t, cap);
    if (b->n > 0) memcpy(s, b->s, b->n);
    b->s = s;
    b->cap = cap;
}

/* From now on each byte has its own mark. */
static void split_marks(tpl_buf *b)
{
    uint8_t *marks;
    if (b->marks != NULL && b->marks_cap == b->cap) return;
    marks = rose_tpl_take(b->t, b->cap);
    if (b->marks != NULL)
        memcpy(marks, b->marks, b->n);
    else if (b->n > 0)
        memset(marks, b->mark, b->n);
    b->marks = marks;
    b->marks_cap = b->cap;
}

void rose_tpl_put(tpl_buf *b, const char *s, size_t n, uint8_t mark)
{
    if (n == 0) return;
    rose_tpl_work(b->t, WORK_A_PUT + n);
    grow(b, n);
    if (b->n == 0 && b->marks == NULL) b->mark = mark;
    if (b->marks != NULL || b->mark != mark) {
        split_marks(b);
        memset(b->marks + b->n, mark, n);
    }
    memcpy(b->s + b->n, s, n);
    b->n += n;
}

void rose_tpl_puts(tpl_buf *b, const char *s, uint8_t mark)
{
    rose_tpl_put(b, s, strlen(s), mark);
}

void rose_tpl_put_part(tpl_buf *b, const tpl_text *x, size_t from, size_t to)
{
    if (x->marks == NULL) {
        rose_tpl_put(b, x->s + from, to - from, x->mark);
        return;
    }
    rose_tpl_visit(b->t, to - from);
    while (from < to) {
        size_t end = from;
        while (end < to && x->marks[end] == x->marks[from])
            end++;
        rose_tpl_put(b, x->s + from, end - from, x->marks[from]);
        from = end;
    }
}

void rose_tpl_put_text(tpl_buf *b, const tpl_text *x)
{
    rose_tpl_put_part(b, x, 0, x->n);
}

void rose_tpl_put_char(tpl_buf *b, uint32_t c, uint8_t mark)
{
    char s[4];
    const size_t n = rose_utf8_encode(c, s);
    rose_tpl_put(b, s, n, mark);
}

const tpl_text *rose_tpl_buf_text(tpl_buf *b)
{
    tpl_text *x = rose_tpl_take(b->t, sizeof *x);
    *x = (tpl_text){.s = b->s == NULL ? "" : b->s, .n = b->n, .mark = b->mark};
    x->marks = b->marks;
    return x;
}

/* ---- parts ---- */

const tpl_text *rose_tpl_text(rose_tpl *t, const char *s, size_t n, uint8_t mark)
{
    tpl_text *x = rose_tpl_take(t, sizeof *x);
    *x = (tpl_text){.s = s, .n = n, .mark = mark};
    return x;
}

const tpl_text *rose_tpl_part(rose_tpl *t, const tpl_text *x, size_t from, size_t to)
{
    tpl_text *y;
    if (from == 0 && to == x->n) return x;
    y = rose_tpl_take(t, sizeof *y);
    *y = (tpl_text){.s = x->s + from, .n = to - from, .mark = x->mark};
    if (x->marks != NULL) y->marks = x->marks + from;
    return y;
}

uint8_t rose_tpl_text_mark(rose_tpl *t, const tpl_text *x, size_t from, size_t to)
{
    if (x->marks == NULL) return x->mark;
    rose_tpl_visit(t, to - from);
    for (size_t i = from; i < to; i++) {
        if (x->marks[i] == TPL_MESSAGE) return TPL_MESSAGE;
    }
    return TPL_TEMPLATE;
}

bool rose_tpl_text_eq(rose_tpl *t, const tpl_text *a, const tpl_text *b)
{
    if (a->n != b->n) return false;
    rose_tpl_read(t, a->n);
    return a->n == 0 || memcmp(a->s, b->s, a->n) == 0;
}

bool rose_tpl_text_is(const tpl_text *a, const char *s)
{
    return a->n == strlen(s) && memcmp(a->s, s, a->n) == 0;
}

/* ---- characters: every text is sound UTF-8, so a lead byte tells a character's length ---- */

size_t rose_tpl_char_len(const tpl_text *x, size_t at)
{
    return rose_utf8_len(x->s[at]);
}

uint32_t rose_tpl_char(const tpl_text *x, size_t at)
{
    uint32_t c;
    (void)rose_utf8_decode_valid((const uint8_t *)x->s + at, &c);
    return c;
}

size_t rose_tpl_chars(rose_tpl *t, const tpl_text *x)
{
    rose_tpl_read(t, x->n);
    return rose_utf8_count(x->s, x->n);
}

size_t rose_tpl_offset(rose_tpl *t, const tpl_text *x, size_t chars)
{
    size_t at = 0;
    rose_tpl_visit(t, chars < x->n ? chars : x->n);
    while (chars > 0 && at < x->n) {
        at += rose_tpl_char_len(x, at);
        chars--;
    }
    return at;
}

/* memmem takes up to 4.4 ns for a byte of the text and 9 ns for a byte of `what` (glibc 2.36, Xeon,
 * 2026-11-28); a single byte it finds at the speed of a copy. */
size_t rose_tpl_find(rose_tpl *t, const tpl_text *x, size_t from, const tpl_text *what)
{
    const char *p;
    if (from > x->n) return SIZE_MAX;
    if (what->n == 0) return from;
    p = memmem(x->s + from, x->n - from, what->s, what->n);
    const size_t end = p == NULL ? x->n : (size_t)(p - x->s);
    rose_tpl_work(t, (end - from) * (what->n == 1 ? 1 : 4) + (uint64_t)what->n * 16);
    return p == NULL ? SIZE_MAX : end;
}

bool rose_tpl_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static bool is_stripped(rose_tpl *t, const tpl_text *x, size_t at, const tpl_text *chars)
{
    uint32_t c = rose_tpl_char(x, at);
    rose_tpl_visit(t, 1 + (chars == NULL ? 0 : chars->n));
    if (chars == NULL) return rose_tpl_is_space(c);
    for (size_t i = 0; i < chars->n; i += rose_tpl_char_len(chars, i)) {
        if (rose_tpl_char(chars, i) == c) return true;
    }
    return false;
}

/* chars NULL: white space. */
const tpl_text *rose_tpl_strip(rose_tpl *t, const tpl_text *x, const tpl_text *chars, int sides)
{
    size_t from = 0, to = x->n;
    if (sides & TPL_LEFT) {
        while (from < to && is_stripped(t, x, from, chars))
            from += rose_tpl_char_len(x, from);
    }
    while ((sides & TPL_RIGHT) && to > from) {
        size_t at = to - 1;
        while (rose_utf8_is_inner(x->s[at]))
            at--;
        if (!is_stripped(t, x, at, chars)) break;
        to = at;
    }
    return rose_tpl_part(t, x, from, to);
}
