/* spec/find.c - the index of places and the vote of those that end as the text does. */
#include "spec/find_internal.h"

#include <stdlib.h>
#include <string.h>

bool spec_index_create(spec_index *x, uint32_t per, uint32_t n_heads, uint32_t n_places,
                       uint32_t mask)
{
    *x = (spec_index){.per = per, .bits = 6, .mask = mask};
    while (x->bits < 24 && UINT32_C(1) << x->bits < n_heads)
        x->bits++;
    x->heads = calloc((size_t)per << x->bits, sizeof *x->heads);
    x->links = malloc(sizeof *x->links * per * (n_places == 0 ? 1 : (size_t)n_places));
    if (x->heads != NULL && x->links != NULL) return true;
    spec_index_destroy(x);
    return false;
}

void spec_index_destroy(spec_index *x)
{
    free(x->heads);
    free(x->links);
    *x = (spec_index){0};
}

size_t spec_index_bytes(const spec_index *x, uint32_t n_places)
{
    return sizeof *x->heads * x->per * (((size_t)1 << x->bits) + n_places);
}

static uint32_t hash3(uint32_t seed, const uint32_t *last)
{
    return spec_mix(spec_mix(spec_mix(seed, last[0]), *(last - 1)), *(last - 2));
}

static void push(spec_index *x, uint32_t table, uint32_t hash, uint32_t place)
{
    uint32_t *head = spec_head(x, table, hash);
    *spec_link(x, table, place) = *head;
    *head = place + 1;
}

void spec_index_add(spec_index *x, uint32_t seed, const uint32_t *last, uint32_t n, uint32_t place)
{
    push(x, SPEC_LAST1, spec_mix(seed, last[0]), place);
    if (n >= 3) push(x, SPEC_LAST3, hash3(seed, last), place);
}

uint32_t spec_index_newest(const spec_index *x, uint32_t seed, const uint32_t *last, uint32_t table)
{
    return *spec_head(x, table, table == SPEC_LAST3 ? hash3(seed, last) : spec_mix(seed, last[0]));
}

uint32_t spec_index_first(spec_index *x, uint32_t min, const uint32_t *ids, uint32_t place,
                          uint32_t *at)
{
    const uint32_t *last = ids + place;
    uint32_t found = 0, hash = 0;
    bool known = true; /* ids that are new stay new with one more id before them */

    for (uint32_t n = 1; n < min + x->per && n <= place + 1; n++) {
        hash = spec_mix(hash, *(last - (n - 1)));
        if (n < min) continue;
        uint32_t link = known ? *spec_head(x, n - min, hash) : 0, steps = 0;
        while (link != 0 && steps++ < SPEC_STEPS && spec_same(last, ids + link - 1, n) < n)
            link = *spec_link(x, n - min, link - 1);
        known = link != 0 && steps <= SPEC_STEPS;
        if (known) {
            found = n;
            *at = link - 1;
        } else {
            push(x, n - min, hash, place);
        }
    }
    return found;
}

/* The longest first; places with the same length stay in their order, the newest first. */
static void sort_places(spec_places *c, uint32_t most)
{
    spec_place sorted[SPEC_PLACES];
    uint32_t begin[66]; /* by most - same; rose_spec_opts.depth is at most 64 */

    memset(begin, 0, (most + 2) * sizeof *begin);
    for (uint32_t i = 0; i < c->n; i++)
        begin[most + 1 - c->p[i].same]++;
    for (uint32_t k = 1; k <= most; k++)
        begin[k] += begin[k - 1];
    for (uint32_t i = 0; i < c->n; i++)
        sorted[begin[most - c->p[i].same]++] = c->p[i];
    memcpy(c->p, sorted, c->n * sizeof *sorted);
}

static uint32_t next_id(const spec_places *c, const spec_place *p, const uint32_t *guess,
                        uint32_t i)
{
    if (i < p->left) return c->ids[(p->at + i) & c->mask];
    return c->repeats ? guess[i - p->left] : SPEC_NONE;
}

/* The most frequent of next[0..n) and how often it is there. If several are equally frequent, the
 * first wins. */
static uint32_t most_frequent(const uint32_t *next, uint32_t n, uint32_t *id)
{
    enum { SLOTS = 2 * SPEC_PLACES };
    uint8_t count[SLOTS], slot[SPEC_PLACES];
    uint32_t key[SLOTS], same = 1, best = 0;

    *id = next[0];
    while (same < n && next[same] == next[0])
        same++;
    if (same == n) return next[0] == SPEC_NONE ? 0 : n;

    memset(count, 0, sizeof count);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = next[i] * 0x9E3779B1u >> 25;
        while (count[s] > 0 && key[s] != next[i])
            s = (s + 1) % SLOTS;
        key[s] = next[i];
        count[s]++;
        slot[i] = (uint8_t)s;
    }
    for (uint32_t i = 0; i < n; i++)
        if (next[i] != SPEC_NONE && count[slot[i]] > best) {
            best = count[slot[i]];
            *id = next[i];
        }
    return best;
}

/* The guess of the first n places; returns its score, or 0 once it can no longer be above `best`.
 */
static float follow(const spec_places *c, uint32_t n, uint32_t most, float min_prob, float best,
                    rose_spec_guess *g)
{
    const float rounding = 1.00001f; /* more than that of 15 sums */
    uint32_t next[SPEC_PLACES];
    uint8_t live[SPEC_PLACES]; /* places that agree with the guess so far */
    float product = 1, sum = 0;

    for (uint32_t i = 0; i < n; i++)
        live[i] = (uint8_t)i;
    for (g->n = 0; g->n < most; g->n++) {
        uint32_t id, kept = 0;
        for (uint32_t i = 0; i < n; i++)
            next[i] = next_id(c, &c->p[live[i]], g->ids, g->n);
        uint32_t votes = most_frequent(next, n, &id);
        product *= (float)votes / (float)n;
        if (product < min_prob || product <= 0) break;
        if ((sum + product * (float)(most - g->n)) * rounding <= best) return 0;
        g->ids[g->n] = id;
        g->score[g->n] = product;
        sum += product;
        for (uint32_t i = 0; i < n && votes < n; i++)
            if (next[i] == id) live[kept++] = live[i];
        n = votes;
    }
    return sum;
}

void spec_vote(spec_places *c, const rose_spec_opts *o, uint32_t from, uint32_t to, uint32_t cap,
               float *best, rose_spec_guess *g)
{
    rose_spec_guess tried;
    uint32_t n = 0; /* places with at least m ids that are the same */

    sort_places(c, to);
    while (n < c->n) {
        uint32_t m = c->p[n].same < to ? c->p[n].same : to;
        if (m < from) return;
        float most = o->factor * (float)m;
        uint32_t ids = most < (float)cap ? (uint32_t)most : cap;
        if ((float)ids <= *best) return; /* no shorter m can have a higher score */
        while (n < c->n && c->p[n].same >= m)
            n++;
        float score = follow(c, n, ids, o->min_prob, *best, &tried);
        if (score <= *best) continue;
        *best = score;
        g->n = tried.n;
        memcpy(g->ids, tried.ids, tried.n * sizeof *tried.ids);
        memcpy(g->score, tried.score, tried.n * sizeof *tried.score);
    }
}
