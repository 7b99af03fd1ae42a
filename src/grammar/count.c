/* grammar/count.c - automata over the inside of a JSON string with bounds on its characters. Two
 * forms: as one automaton, whose states know the count (small bounds, or where it is combined
 * further), or as an automaton whose characters are counted on the stack while matching. The
 * second needs to know, for each state, with which counts the end can still be reached. */
#include <string.h>

#include "grammar/grammar_internal.h"

/* Where a byte leads inside of one character of a JSON string (chars.c): 0 is between characters.
 * UTF-8 is valid here, so a count of bytes that follow is enough. */
enum { CHAR_ESCAPE = 4, CHAR_HEX = 5 };

static unsigned char_step(unsigned at, unsigned c)
{
    if (at == CHAR_ESCAPE) return c == 'u' ? CHAR_HEX : 0;
    if (at >= CHAR_HEX) return at == CHAR_HEX + 3 ? 0 : at + 1;
    if (at > 0) return at - 1;
    if (c == '\\') return CHAR_ESCAPE;
    return c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
}

/* States of the result are triples (state of d, place in a character, characters so far). */
gr_dfa *rose_gr_dfa_length(gr_build *b, const gr_dfa *d, uint32_t min, uint32_t max)
{
    enum { PLACES = CHAR_HEX + 4 };
    uint32_t most = max == GR_INF ? min : max, n = 2;
    uint64_t size = (uint64_t)d->n * PLACES * ((uint64_t)most + 1);
    size_t cap = 0, cap_keys = 0;
    if (size > 1u << 26)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "a pattern with so large a length is too large");
    rose_gr_scratch_begin(b, COST_LENGTHS);
    uint16_t *id = rose_gr_take(b, size * sizeof *id);
    uint32_t *keys = rose_gr_grown(b, NULL, 0, &cap_keys, sizeof *keys);
    gr_dfa out = {.next = NULL};
    keys[1] = PLACES * (most + 1); /* (1, 0, 0) */
    id[keys[1]] = 1;
    for (uint32_t s = 1; s < n; s++) {
        uint32_t count = keys[s] % (most + 1), place = keys[s] / (most + 1) % PLACES;
        uint32_t from = keys[s] / (most + 1) / PLACES;
        rose_gr_work(b, 64);
        out.next = rose_gr_grown(b, out.next, cap == 0 ? 0 : s, &cap, sizeof *out.next);
        for (unsigned c = 0; c < 256; c++) {
            uint32_t to = d->next[from][c], at = char_step(place, c), k = count + (at == 0);
            if (to == 0 || (k > most && max != GR_INF)) continue;
            uint32_t key = (to * PLACES + at) * (most + 1) + (k > most ? most : k);
            if (id[key] == 0) {
                if (n >= GR_DFA_STATES)
                    rose_gr_fail(b, ROSE_E_UNSUPPORTED,
                                 "a pattern with a length needs more than %d states",
                                 GR_DFA_STATES);
                keys = rose_gr_grown(b, keys, n, &cap_keys, sizeof *keys);
                keys[n] = key;
                id[key] = (uint16_t)n++;
            }
            out.next[s][c] = id[key];
        }
    }
    out.n = n;
    out.accept = rose_gr_take(b, n);
    for (uint32_t s = 1; s < n; s++)
        out.accept[s] = d->accept[keys[s] / (most + 1) / PLACES] && keys[s] % (most + 1) >= min;
    return rose_gr_dfa_finish(b, &out);
}

/* The different states that follow s, as a list that ends with 0. */
static uint16_t *successors(gr_build *b, const gr_dfa *d, uint32_t s)
{
    uint16_t list[257];
    size_t n = 0;
    for (unsigned c = 0; c < 256; c++) {
        uint16_t to = d->next[s][c];
        bool there = to == 0;
        for (size_t i = 0; i < n && !there; i++)
            there = list[i] == to;
        if (!there) list[n++] = to;
    }
    list[n++] = 0;
    uint16_t *out = rose_gr_take(b, n * sizeof *out);
    memcpy(out, list, n * sizeof *out);
    return out;
}

/* Notes that state s is alive with this count. The counts must come from above without a gap. */
static bool note_alive(gr_counted *k, uint32_t s, uint32_t count)
{
    if (k->hi[s] == GR_NONE) k->hi[s] = k->lo[s] = count;
    if (k->lo[s] == count) return true;
    if (k->lo[s] != count + 1) return false;
    k->lo[s] = count;
    return true;
}

/* Which states are alive with this count, given those with one character more. */
static bool alive_with(gr_build *b, gr_counted *k, uint16_t *const *next, uint32_t count,
                       const uint8_t *after, uint8_t *now)
{
    const gr_dfa *d = k->d;
    memset(now, 0, d->n);
    for (bool changed = true; changed;) { /* a character has at most 12 bytes */
        changed = false;
        rose_gr_work(b, d->n / 4);
        for (uint32_t s = d->n; s-- > 1;) {
            bool alive = now[s] || (d->accept[s] && count >= k->min);
            for (const uint16_t *t = next[s]; *t != 0 && !alive; t++)
                alive = k->place[*t] == 0 ? after[*t] : now[*t];
            if (alive == now[s]) continue;
            now[s] = alive;
            changed = true;
            if (!note_alive(k, s, count)) return false;
        }
    }
    return true;
}

static void find_places(gr_counted *k)
{
    for (uint32_t s = 1; s < k->d->n; s++) /* a state stands after the first that leads to it */
        for (unsigned c = 0; c < 256; c++)
            if (k->d->next[s][c] > s)
                k->place[k->d->next[s][c]] = (uint8_t)char_step(k->place[s], c);
}

/* Finds lo and hi of each state by going backwards from the largest count: a state is alive with a
 * count if it accepts and the count is at least min, or if a byte leads to a state that is alive;
 * a byte that ends a character leads to the next count. One row of bits a count suffices. */
gr_counted *rose_gr_counted(gr_build *b, const gr_dfa *d, uint32_t min, uint32_t max)
{
    gr_counted *k = rose_gr_take(b, sizeof *k);
    uint32_t most = max == GR_INF ? min : max;
    bool ok = true;
    const gr_cost outer = b->cost;
    b->cost = COST_LENGTHS;
    *k = (gr_counted){.d = rose_gr_dfa_length(b, d, 0, GR_INF), .min = min, .max = max};
    uint32_t n = k->d->n;
    k->place = rose_gr_take(b, n);
    k->lo = rose_gr_take(b, n * sizeof *k->lo);
    k->hi = rose_gr_take(b, n * sizeof *k->hi);
    uint16_t **next = rose_gr_take(b, n * sizeof *next);
    uint8_t *now = rose_gr_take(b, n), *after = rose_gr_take(b, n);
    memset(k->lo, 0xff, n * sizeof *k->lo);
    memset(k->hi, 0xff, n * sizeof *k->hi);
    rose_gr_work(b, n * UINT64_C(64)); /* both walk over all transitions */
    find_places(k);
    for (uint32_t s = 1; s < n; s++)
        next[s] = successors(b, k->d, s);
    if (max == GR_INF) memset(after + 1, 1, n - 1); /* d is trimmed: with min, all are alive */
    for (uint32_t count = most + 1; count-- > 0 && ok;) {
        uint8_t *t = now;
        ok = alive_with(b, k, next, count, after, now);
        now = after;
        after = t;
    }
    for (uint32_t s = 1; s < n && max == GR_INF; s++)
        if (k->hi[s] == most) k->hi[s] = GR_INF;
    b->cost = outer;
    return ok ? k : NULL;
}
