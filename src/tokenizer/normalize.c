/* tokenizer/normalize.c - prepended and replaced text, and NFC, NFD, NFKC, NFKD over utf8proc's
 * data. We drive it character by character instead of calling utf8proc_map: its reordering of marks
 * is an insertion sort, which a long run of marks makes quadratic; ours is a merge sort. Code
 * points that are too new for the normaliser of `tokenizers` (ROSE_CP_NORM_INERT) are passed by, as
 * it does. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

typedef struct cps {
    utf8proc_int32_t *data; /* owned */
    size_t len, cap;
} cps;

static rose_status cps_reserve(cps *c, size_t more)
{
    if (more <= c->cap - c->len) return ROSE_OK;
    size_t cap = c->cap * 2 + more + 64;
    if (cap > SIZE_MAX / sizeof *c->data) return ROSE_E_NOMEM;
    utf8proc_int32_t *p = realloc(c->data, cap * sizeof *p);
    if (p == NULL) return ROSE_E_NOMEM;
    c->data = p;
    c->cap = cap;
    return ROSE_OK;
}

static bool is_mark(utf8proc_int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class != 0;
}

static unsigned mark_class(utf8proc_int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Stable sort of a run of marks by combining class, bottom up; tmp has room for n. */
static void sort_marks(utf8proc_int32_t *a, size_t n, utf8proc_int32_t *tmp)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n;
            size_t hi = mid + width < n ? mid + width : n;
            size_t i = lo, j = mid;
            for (size_t k = lo; k < hi; k++)
                tmp[k] =
                    j == hi || (i < mid && mark_class(a[i]) <= mark_class(a[j])) ? a[i++] : a[j++];
        }
        memcpy(a, tmp, n * sizeof *a);
    }
}

/* Puts each run of marks of c[from..) in order; c has room for as many again after it, as
 * scratch. */
static void reorder(cps *c, size_t from)
{
    size_t i = from;
    while (i < c->len) {
        if (!is_mark(c->data[i])) {
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < c->len && is_mark(c->data[end]))
            end++;
        if (end - i > 1) sort_marks(c->data + i, end - i, c->data + c->len);
        i = end;
    }
}

/* Reorders and composes c[from..), a stretch between inert characters. */
static rose_status close_stretch(cps *c, size_t from, bool compose)
{
    size_t n = c->len - from;
    if (n == 0) return ROSE_OK;
    if (cps_reserve(c, n) != ROSE_OK) return ROSE_E_NOMEM;
    reorder(c, from);
    if (!compose) return ROSE_OK;
    utf8proc_ssize_t left =
        utf8proc_normalize_utf32(c->data + from, (utf8proc_ssize_t)n,
                                 (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (left < 0) return ROSE_E_INTERNAL;
    c->len = from + (size_t)left;
    return ROSE_OK;
}

static rose_status normalize_cps(const char *text, size_t len, utf8proc_option_t decompose,
                                 bool compose, cps *c)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + len;
    size_t from = 0;
    rose_status st = ROSE_OK;
    while (p < end && st == ROSE_OK) {
        uint32_t cp;
        int boundclass = 0;
        p += rose_utf8_decode_valid(p, &cp);
        bool inert = (rose_cp_class[cp] & ROSE_CP_NORM_INERT) != 0;
        if (inert) st = close_stretch(c, from, compose);
        if (st != ROSE_OK || (st = cps_reserve(c, 32)) != ROSE_OK) break;
        if (inert) {
            c->data[c->len++] = (utf8proc_int32_t)cp;
            from = c->len;
            continue;
        }
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)cp, c->data + c->len, 32,
                                                     decompose, &boundclass);
        if (k < 0 || k > 32) return ROSE_E_INTERNAL; /* the longest decomposition has 18 */
        c->len += (size_t)k;
    }
    return st == ROSE_OK ? close_stretch(c, from, compose) : st;
}

/* Tells whether text has only characters below the first one that the form changes. */
static bool is_plain(int form, const char *text, size_t len)
{
    static const uint32_t limit[] = {0x300, 0xC0, 0xA0, 0xA0};
    const uint8_t *p = (const uint8_t *)text, *end = p + len;
    while (p < end) {
        uint32_t cp;
        p += rose_utf8_decode_valid(p, &cp);
        if (cp >= limit[form]) return false;
    }
    return true;
}

static rose_status normalize_form(int form, const char *text, size_t len, rose_buf *scratch)
{
    cps c = {0};
    bool compose = form == ROSE_NORM_NFC || form == ROSE_NORM_NFKC;
    bool compat = form == ROSE_NORM_NFKC || form == ROSE_NORM_NFKD;
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);

    rose_status st = normalize_cps(text, len, (utf8proc_option_t)options, compose, &c);
    if (st == ROSE_OK) st = rose_buf_reserve(scratch, 4 * c.len + 1);
    for (size_t i = 0; i < c.len && st == ROSE_OK; i++)
        scratch->len += rose_utf8_encode((uint32_t)c.data[i], scratch->data + scratch->len);
    free(c.data);
    return st;
}

/* All bytes of the new text are marked, or none is: a character may come from many. */
static rose_status remark_all(rose_buf *marks, size_t len)
{
    const bool all = memchr(marks->data, 0, marks->len) == NULL;
    marks->len = 0;
    rose_status st = rose_buf_reserve(marks, len + 1);
    if (st != ROSE_OK) return st;
    memset(marks->data, all, len);
    marks->len = len;
    return ROSE_OK;
}

static rose_status prepend(const rose_norm *norm, const char *text, size_t len, rose_buf *scratch,
                           rose_buf *marks)
{
    rose_status st = rose_buf_add(scratch, norm->to, norm->n_to);
    if (st == ROSE_OK) st = rose_buf_add(scratch, text, len);
    if (st != ROSE_OK || marks == NULL) return st;
    if ((st = rose_buf_reserve(marks, norm->n_to)) != ROSE_OK) return st;
    memmove(marks->data + norm->n_to, marks->data, marks->len);
    memset(marks->data, 1, norm->n_to);
    marks->len += norm->n_to;
    return ROSE_OK;
}

/* Copies of text with `from` replaced; of marks, where there are some, into a buffer of the same
 * growth. */
static rose_status replace(const rose_norm *norm, const char *text, size_t len, rose_buf *scratch,
                           rose_buf *marks)
{
    rose_buf next = {0};
    rose_status st = ROSE_OK;
    for (size_t at = 0; at < len && st == ROSE_OK;) {
        const char *hit = memmem(text + at, len - at, norm->from, norm->n_from);
        const size_t end = hit != NULL ? (size_t)(hit - text) : len;
        st = rose_buf_add(scratch, text + at, end - at);
        if (st == ROSE_OK && hit != NULL) st = rose_buf_add(scratch, norm->to, norm->n_to);
        if (st == ROSE_OK && marks != NULL) {
            char made[ROSE_NORM_TEXT] = {0};
            st = rose_buf_add(&next, marks->data + at, end - at);
            if (hit != NULL) {
                memset(made, memchr(marks->data + end, 0, norm->n_from) == NULL, norm->n_to);
                if (st == ROSE_OK) st = rose_buf_add(&next, made, norm->n_to);
            }
        }
        at = hit != NULL ? end + norm->n_from : len;
    }
    if (st == ROSE_OK && marks != NULL) {
        rose_buf_free(marks);
        *marks = next;
        return ROSE_OK;
    }
    rose_buf_free(&next);
    return st;
}

rose_status rose_normalize(const rose_norm *norm, const char *text, size_t len, rose_buf *scratch,
                           const char **out, size_t *out_len, rose_buf *marks)
{
    rose_status st;
    *out = text;
    *out_len = len;
    if (len == 0) return ROSE_OK;
    scratch->len = 0;
    if (norm->kind == ROSE_NORM_PREPEND) {
        st = prepend(norm, text, len, scratch, marks);
    } else if (norm->kind == ROSE_NORM_REPLACE) {
        if (memmem(text, len, norm->from, norm->n_from) == NULL) return ROSE_OK;
        st = replace(norm, text, len, scratch, marks);
    } else {
        if (is_plain((int)norm->kind, text, len)) return ROSE_OK;
        st = normalize_form((int)norm->kind, text, len, scratch);
        const bool changed =
            st == ROSE_OK && (scratch->len != len || memcmp(scratch->data, text, len) != 0);
        if (changed && marks != NULL) st = remark_all(marks, scratch->len);
    }
    if (st != ROSE_OK) return st;
    *out = scratch->data != NULL ? scratch->data : "";
    *out_len = scratch->len;
    return ROSE_OK;
}
