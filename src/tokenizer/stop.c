/* tokenizer/stop.c - finds stop strings with one KMP automaton each, fed byte by byte. Nothing is
 * scanned twice, wherever pieces of text begin and end. The state of automaton i is the length
 * of the longest suffix of the text that is a prefix of string i. So the largest state is
 * exactly the number of bytes to hold back, and the held text needs no memory of its own. Pieces
 * and strings are valid UTF-8, so cuts fall between characters. */
#include "tokenizer/stop.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void build_fail(struct rose_stop *p)
{
    uint32_t k = 0;
    p->fail[0] = 0;
    for (uint32_t i = 1; i < p->len; i++) {
        while (k > 0 && p->text[i] != p->text[k])
            k = p->fail[k - 1];
        if (p->text[i] == p->text[k]) k++;
        p->fail[i] = k;
    }
}

rose_status rose_stops_add(rose_stops *s, const char *text, size_t len)
{
    if (len == 0 || len > ROSE_STOP_MAX_BYTES) return ROSE_E_INVAL;
    struct rose_stop *v = realloc(s->v, (s->n + (size_t)1) * sizeof *v);
    if (v == NULL) return ROSE_E_NOMEM;
    s->v = v;
    struct rose_stop *p = &v[s->n];
    p->len = (uint32_t)len;
    p->text = malloc(len);
    p->fail = malloc(len * sizeof *p->fail);
    if (p->text == NULL || p->fail == NULL) {
        free(p->text);
        free(p->fail);
        return ROSE_E_NOMEM;
    }
    memcpy(p->text, text, len);
    build_fail(p);
    s->n++;
    s->first[(unsigned char)text[0]] = true;
    if (p->len > s->max_len) s->max_len = p->len;
    return ROSE_OK;
}

void rose_stops_free(rose_stops *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        free(s->v[i].text);
        free(s->v[i].fail);
    }
    free(s->v);
    *s = (rose_stops){0};
}

static uint32_t advance(const struct rose_stop *p, uint32_t k, char c)
{
    while (k > 0 && p->text[k] != c)
        k = p->fail[k - 1];
    return p->text[k] == c ? k + 1 : 0;
}

/* The caller of push and flush has made room. */
static void put(rose_buf *out, const char *bytes, size_t n)
{
    assert(n <= out->cap - out->len);
    if (n > 0) memcpy(out->data + out->len, bytes, n);
    out->len += n;
}

/* The text is held[0..held) followed by piece[0..len): appends its first n bytes. */
static void put_text(const rose_stops *s, const rose_stop_state *st, const char *piece, size_t n,
                     rose_buf *out)
{
    size_t from_held = n < st->held ? n : st->held;
    if (from_held > 0) put(out, s->v[st->which].text, from_held);
    put(out, piece, n - from_held);
}

/* Feeds one byte to all automata. Returns the length of the longest string that it completes,
 * and *which names that string. Returns 0 if it completes none, or if none may end here. Then
 * *held and *which describe the longest partial match. */
static uint32_t feed(const rose_stops *s, uint32_t *state, char c, bool may_end, uint32_t *held,
                     uint32_t *which)
{
    uint32_t match = 0, found = 0;
    *held = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t k = advance(&s->v[i], state[i], c);
        if (k == s->v[i].len && may_end) {
            if (k > match) {
                match = k;
                found = i;
            }
            k = 0; /* the stream ends here; the state is not used again */
        } else if (k == s->v[i].len) {
            k = s->v[i].fail[k - 1];
        }
        state[i] = k;
        if (k > *held) {
            *held = k;
            *which = i;
        }
    }
    if (match > 0) *which = found;
    return match;
}

static bool no_start(const rose_stops *s, const char *piece, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (s->first[(unsigned char)piece[i]]) return false;
    }
    return true;
}

static bool push(const rose_stops *s, rose_stop_state *st, const char *piece, size_t len,
                 bool may_end, rose_buf *out)
{
    if (len == 0) return false;
    if (st->held == 0 && no_start(s, piece, len)) { /* the common case; all states are 0 */
        put(out, piece, len);
        return false;
    }
    uint32_t held = st->held, which = st->which;
    for (size_t i = 0; i < len; i++) {
        uint32_t match = feed(s, st->state, piece[i], may_end, &held, &which);
        if (match > 0) {
            put_text(s, st, piece, st->held + i + 1 - (s->include ? 0 : match), out);
            st->held = 0;
            st->which = which;
            return true;
        }
    }
    put_text(s, st, piece, st->held + len - held, out);
    st->held = held;
    st->which = which;
    return false;
}

bool rose_stop_push(const rose_stops *s, rose_stop_state *st, const char *piece, size_t len,
                    rose_buf *out)
{
    return push(s, st, piece, len, true, out);
}

void rose_stop_pass(const rose_stops *s, rose_stop_state *st, const char *piece, size_t len,
                    rose_buf *out)
{
    (void)push(s, st, piece, len, false, out);
}

void rose_stop_flush(const rose_stops *s, rose_stop_state *st, rose_buf *out)
{
    if (st->held > 0) put(out, s->v[st->which].text, st->held);
    st->held = 0;
}
