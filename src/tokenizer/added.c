/* tokenizer/added.c - finds added tokens in text: the leftmost, and of those the longest, as
 * `tokenizers` does with its automaton. We keep the tokens sorted and narrow the range of
 * candidates byte by byte. The longest added token (ROSE_MAX_ADDED_LEN) bounds the work per text
 * byte. Text without the first byte of any token is skipped at the speed of memchr. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

static int by_text(const void *x, const void *y)
{
    const rose_added *a = *(rose_added *const *)x, *b = *(rose_added *const *)y;
    int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    if (c != 0) return c;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return a < b ? -1 : a > b; /* two added tokens have equal text after normalisation: the first
                                * one counts */
}

rose_status rose_added_set_build(rose_added_set *s, rose_added *all, size_t n, bool normalized,
                                 rose_err *err)
{
    s->only_first = -1;
    if (n == 0) return ROSE_OK;
    if ((s->items = malloc(n * sizeof *s->items)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    for (size_t i = 0; i < n; i++)
        if (all[i].normalized == normalized && all[i].len > 0) s->items[s->n++] = &all[i];
    qsort(s->items, s->n, sizeof *s->items, by_text);
    unsigned n_first = 0;
    for (size_t i = 0; i < s->n; i++) {
        uint8_t b = (uint8_t)s->items[i]->text[0];
        n_first += !s->first[b];
        s->first[b] = true;
        s->only_first = n_first == 1 ? b : -1;
    }
    return ROSE_OK;
}

void rose_added_set_free(rose_added_set *s)
{
    free(s->items);
    *s = (rose_added_set){0};
}

/* Returns the first index in [lo, hi) whose byte at depth is >= b. All of [lo, hi) have the same
 * bytes before depth. */
static size_t lower_bound(const rose_added_set *s, size_t lo, size_t hi, size_t depth, unsigned b)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const rose_added *a = s->items[mid];
        if (depth < a->len && (uint8_t)a->text[depth] >= b)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* The text may be this token: it is not special, or all its bytes are marked. */
static bool may_be(const rose_added_walk *w, const rose_added *a)
{
    return w->marks == NULL || !a->special || memchr(w->marks + w->pos, 0, a->len) == NULL;
}

/* The longest token that may be at the walk's place, or NULL. */
static const rose_added *longest_at(const rose_added_walk *w)
{
    const rose_added_set *s = w->set;
    const char *p = w->text + w->pos;
    const size_t n = w->len - w->pos;
    const rose_added *best = NULL;
    size_t lo = 0, hi = s->n;
    for (size_t depth = 0; depth < n; depth++) {
        unsigned b = (uint8_t)p[depth];
        lo = lower_bound(s, lo, hi, depth, b);
        hi = lower_bound(s, lo, hi, depth, b + 1);
        if (lo == hi) break;
        if (s->items[lo]->len == depth + 1 && may_be(w, s->items[lo]))
            best = s->items[lo]; /* shortest sorts first */
    }
    return best;
}

static size_t next_candidate(const rose_added_set *s, const char *text, size_t pos, size_t len)
{
    if (s->only_first >= 0) {
        const char *hit = memchr(text + pos, s->only_first, len - pos);
        return hit != NULL ? (size_t)(hit - text) : len;
    }
    while (pos < len && !s->first[(uint8_t)text[pos]])
        pos++;
    return pos;
}

static bool is_single_word(const rose_added_walk *w, size_t begin, size_t end)
{
    const uint8_t *p = (const uint8_t *)w->text;
    uint32_t cp;
    if (begin > 0) {
        rose_utf8_decode_back(p, p + begin, &cp);
        if ((rose_cp_class[cp] & ROSE_CP_WORD) != 0) return false;
    }
    if (end < w->len) {
        rose_utf8_decode_valid(p + end, &cp);
        if ((rose_cp_class[cp] & ROSE_CP_WORD) != 0) return false;
    }
    return true;
}

/* Returns the start of the white space that ends at `begin`, without text that earlier hits have
 * taken. */
static size_t strip_left(const rose_added_walk *w, size_t begin)
{
    const uint8_t *p = (const uint8_t *)w->text;
    while (begin > w->taken) {
        uint32_t cp;
        unsigned k = rose_utf8_decode_back(p, p + begin, &cp);
        if ((rose_cp_class[cp] & ROSE_CP_SPACE) == 0) break;
        begin -= k;
    }
    return begin > w->taken ? begin : w->taken;
}

static size_t strip_right(rose_added_walk *w, size_t end)
{
    const uint8_t *p = (const uint8_t *)w->text;
    size_t at = end;
    if (end >= w->ws_begin && end < w->ws_end) return w->ws_end;
    while (at < w->len) {
        uint32_t cp;
        unsigned k = rose_utf8_decode_valid(p + at, &cp);
        if ((rose_cp_class[cp] & ROSE_CP_SPACE) == 0) break;
        at += k;
    }
    w->ws_begin = end;
    w->ws_end = at;
    return at;
}

bool rose_added_next(rose_added_walk *w, rose_added_hit *hit)
{
    if (w->set->n == 0) return false;
    while ((w->pos = next_candidate(w->set, w->text, w->pos, w->len)) < w->len) {
        const rose_added *a = longest_at(w);
        if (a == NULL) {
            w->pos++;
            continue;
        }
        size_t begin = w->pos, end = begin + a->len;
        w->pos = end; /* a discarded match uses up its text too */
        if (w->plain_special && a->special) continue;
        if (a->single_word && !is_single_word(w, begin, end)) continue;
        if (a->lstrip) begin = strip_left(w, begin);
        if (a->rstrip) end = strip_right(w, end);
        w->taken = end;
        *hit = (rose_added_hit){begin, end, a};
        return true;
    }
    return false;
}
