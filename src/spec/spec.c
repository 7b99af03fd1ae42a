/* spec/spec.c - the texts, the past outputs, the prediction of a client, and the chance of a guess.
 * find.c finds places and lets them vote. */
#include "spec/spec.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "spec/find_internal.h"

enum {
    MAX_DEPTH = 64,
    MAX_PAST = 1 << 30,
    MOST_KEPT = 16384,   /* ids of one output: a copy of more would hold the engine up for a ms */
    FIRST_TOKENS = 4096, /* the index of a text has slots for its prompt and this much output */
    SCORES = 8,
    PLACES = 5,
    PREDICTION_WINDOW = 16, /* ids that an edit of a prediction may leave out, if one id finds it */
    PREDICTION_SURE = 3     /* ids that must be the same before a guess has full length */
};

/* Written by the engine thread, but for bytes; read by any. All relaxed: they order nothing. */
typedef struct counters {
    _Atomic uint64_t n_guesses, n_tried, n_right, bytes;
    _Atomic uint64_t right_at[ROSE_SPEC_MAX];
    _Atomic uint64_t tried_of[ROSE_SPEC_SOURCES], right_of[ROSE_SPEC_SOURCES];
} counters;

/* Guesses seen: older ones count less and less, so both are fractions. */
typedef struct seen {
    float tried, right;
} seen;

/* Places are numbered from the first output on, modulo 2^32 in the index. */
typedef struct segment {
    uint64_t begin, end; /* places */
    uint64_t salt[2];
} segment;

/* Past outputs: a ring of ids, and a ring of segments, one for each output. */
typedef struct past {
    uint32_t n;            /* ids of the ring, a power of two; 0 = no ring */
    uint64_t end;          /* places so far; the ring has the last n of them */
    uint32_t *ids;         /* owned: [n] */
    uint32_t *segment_of;  /* owned: [n], number of the segment modulo 2^32 */
    segment *segments;     /* owned: [n / 8] */
    uint32_t n_segments;   /* so far, modulo 2^32 */
    uint32_t max_segments; /* the last ones count */
    spec_index index;
} past;

struct rose_spec {
    rose_spec_opts o;
    past past;
    seen seen[ROSE_SPEC_SOURCES][SCORES * PLACES];
    counters *counters; /* owned */
};

/* The text that the client expects, and where the output is in it. */
typedef struct predicted {
    uint32_t *ids; /* owned: [n] */
    uint32_t n;
    uint32_t next; /* the id that is expected next; n = none */
    uint32_t same; /* output ids that were the same before it; 0 = the place is lost */
    spec_index index;
} predicted;

struct rose_spec_text {
    uint32_t *ids; /* owned: [cap] */
    uint32_t n, n_prompt, cap;
    uint64_t salt[2];
    uint32_t ngram, ngram_at; /* NGRAM: ids that stood before, and the first place */
    spec_index index;         /* none with ROSE_SPEC_NONE */
    predicted prediction;
    /* By place. tried: right ids that the shares of all texts promised; right: right ids here. */
    seen expected[PLACES];
    uint64_t bytes;
    counters *counters; /* borrowed: rose_spec */
};

static void count(_Atomic uint64_t *c, uint64_t n)
{
    atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

static uint64_t value(const _Atomic uint64_t *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void rose_spec_opts_default(rose_spec_opts *o)
{
    *o = (rose_spec_opts){.method = ROSE_SPEC_SUFFIX,
                          .n_tokens = ROSE_SPEC_MAX,
                          .ngram_min = 5,
                          .ngram_max = 5,
                          .depth = 24,
                          .factor = 1,
                          .min_prob = 0.1f,
                          .past_tokens = 1 << 20,
                          .past_requests = 10000};
}

static rose_status check(const rose_spec_opts *o, rose_err *err)
{
    if ((unsigned)o->method > ROSE_SPEC_NGRAM)
        return rose_fail(err, ROSE_E_INVAL, "speculation: unknown method %d", (int)o->method);
    if (o->n_tokens < 1 || o->n_tokens > ROSE_SPEC_MAX)
        return rose_fail(err, ROSE_E_INVAL, "speculation: n_tokens is %u, must be 1 to %d",
                         o->n_tokens, ROSE_SPEC_MAX);
    if (o->ngram_min < 1 || o->ngram_max < o->ngram_min || o->ngram_max > MAX_DEPTH)
        return rose_fail(err, ROSE_E_INVAL,
                         "speculation: ngram_min is %u and ngram_max %u, must be 1 <= min <= max "
                         "<= %d",
                         o->ngram_min, o->ngram_max, MAX_DEPTH);
    if (o->depth < 1 || o->depth > MAX_DEPTH)
        return rose_fail(err, ROSE_E_INVAL, "speculation: depth is %u, must be 1 to %d", o->depth,
                         MAX_DEPTH);
    if (!(o->factor > 0 && o->factor <= MAX_DEPTH))
        return rose_fail(err, ROSE_E_INVAL, "speculation: factor is %g, must be above 0, up to %d",
                         (double)o->factor, MAX_DEPTH);
    if (!(o->min_prob >= 0 && o->min_prob <= 1))
        return rose_fail(err, ROSE_E_INVAL, "speculation: min_prob is %g, must be 0 to 1",
                         (double)o->min_prob);
    if (o->past_tokens > MAX_PAST)
        return rose_fail(err, ROSE_E_INVAL, "speculation: past_tokens is %u, must be 0 to %d",
                         o->past_tokens, MAX_PAST);
    return ROSE_OK;
}

static bool past_create(past *p, uint32_t n_tokens)
{
    p->n = 64;
    while (p->n < n_tokens)
        p->n *= 2;
    p->ids = malloc(sizeof *p->ids * p->n);
    p->segment_of = malloc(sizeof *p->segment_of * p->n);
    p->segments = calloc(p->n / 8, sizeof *p->segments);
    return spec_index_create(&p->index, SPEC_TABLES, p->n, p->n, p->n - 1) && p->ids != NULL &&
           p->segment_of != NULL && p->segments != NULL;
}

static uint64_t past_bytes(const past *p)
{
    return (sizeof *p->ids + sizeof *p->segment_of) * p->n + sizeof *p->segments * (p->n / 8) +
           spec_index_bytes(&p->index, p->n);
}

rose_status rose_spec_create(rose_spec **out, const rose_spec_opts *o, rose_err *err)
{
    rose_status st = ROSE_OK;

    *out = NULL;
    if ((st = check(o, err)) != ROSE_OK) return st;
    rose_spec *s = calloc(1, sizeof *s);
    bool kept = o->method == ROSE_SPEC_SUFFIX && o->past_tokens > 0 && o->past_requests > 0;
    if (s != NULL) {
        s->o = *o;
        s->counters = calloc(1, sizeof *s->counters);
    }
    if (s == NULL || s->counters == NULL || (kept && !past_create(&s->past, o->past_tokens))) {
        rose_spec_destroy(s);
        return rose_fail(err, ROSE_E_NOMEM, "speculation: out of memory (%u past tokens)",
                         o->past_tokens);
    }
    s->past.max_segments = o->past_requests;
    if (kept) count(&s->counters->bytes, past_bytes(&s->past));
    *out = s;
    return ROSE_OK;
}

void rose_spec_destroy(rose_spec *s)
{
    if (s == NULL) return;
    free(s->past.ids);
    free(s->past.segment_of);
    free(s->past.segments);
    spec_index_destroy(&s->past.index);
    free(s->counters);
    free(s);
}

/* Texts of another salt seldom share a chain of the past. They are told apart by the salt itself.
 */
static uint32_t seed_of(const uint64_t salt[2])
{
    uint64_t h = (salt[0] ^ salt[1] * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93);
    return (uint32_t)(h >> 32);
}

/* Places where the text's last ids stood before: at least `from` of them, compared up to `most`. */
static void places_of_text(const rose_spec_text *t, uint32_t table, uint32_t from, uint32_t most,
                           spec_places *c)
{
    uint32_t last = t->n - 1, full = 0;

    *c = (spec_places){.ids = t->ids, .mask = UINT32_MAX, .repeats = true};
    uint32_t link = *spec_link(&t->index, table, last);
    for (uint32_t steps = 0; link != 0 && c->n < SPEC_PLACES && steps < SPEC_STEPS; steps++) {
        uint32_t place = link - 1;
        link = *spec_link(&t->index, table, place);
        uint32_t same = spec_same(t->ids + last, t->ids + place, least(most, place + 1));
        if (same >= from) c->p[c->n++] = (spec_place){place + 1, last - place, same};
        if (same == most && ++full == SPEC_ENOUGH) return;
    }
}

/* The same in past outputs. A place is valid while the ring and its segment are not overwritten. */
static void places_of_past(const past *p, const rose_spec_text *t, uint32_t table, uint32_t from,
                           uint32_t most, spec_places *c)
{
    const uint32_t *last = t->ids + t->n - 1;
    uint32_t age = 0; /* of a place: 1 = the newest; rises along a chain */

    *c = (spec_places){.ids = p->ids, .mask = p->n - 1};
    uint32_t link = spec_index_newest(&p->index, seed_of(t->salt), last, table);
    for (uint32_t steps = 0; link != 0 && c->n < SPEC_PAST_PLACES && steps < SPEC_STEPS; steps++) {
        uint32_t low = link - 1, older = (uint32_t)p->end - low;
        if (older <= age || older > p->n || older > p->end) return;
        age = older;
        link = *spec_link(&p->index, table, low);

        uint64_t place = p->end - age, oldest = p->end > p->n ? p->end - p->n : 0;
        const segment *g = &p->segments[p->segment_of[low & c->mask] % (p->n / 8)];
        const uint32_t n_later = p->n_segments - 1 - p->segment_of[low & c->mask];
        if (place < g->begin || place >= g->end || n_later >= p->max_segments ||
            memcmp(g->salt, t->salt, sizeof g->salt) != 0)
            continue;
        uint64_t back = place + 1 - (g->begin > oldest ? g->begin : oldest);
        uint32_t limit = back < most ? (uint32_t)back : most, same = 0;
        while (same < limit && *(last - same) == p->ids[(low - same) & c->mask])
            same++;
        if (same >= from)
            c->p[c->n++] = (spec_place){low + 1, (uint32_t)(g->end - place - 1), same};
    }
}

static void guess_by_suffix(const rose_spec *s, const rose_spec_text *t, uint32_t cap,
                            rose_spec_guess *g)
{
    const struct {
        uint32_t table, from, most;
    } of[] = {{SPEC_LAST3, 3, least(s->o.depth, t->n)}, {SPEC_LAST1, 1, least(s->o.depth, 2)}};
    float best = 0;
    spec_places c;

    for (uint32_t in_past = 0; in_past <= (s->past.n > 0); in_past++)
        for (uint32_t i = 0; i < 2; i++) {
            float before = best, most = s->o.factor * (float)of[i].most;
            if (of[i].most < of[i].from || t->n < of[i].from) continue;
            if (best >= (float)cap || best >= most) continue; /* no score can be above it */
            if (in_past)
                places_of_past(&s->past, t, of[i].table, of[i].from, least(of[i].most, t->n), &c);
            else
                places_of_text(t, of[i].table, of[i].from, of[i].most, &c);
            spec_vote(&c, &s->o, of[i].from, of[i].most, cap, &best, g);
            if (best > before) g->source = in_past ? ROSE_SPEC_FROM_PAST : ROSE_SPEC_FROM_TEXT;
        }
}

static bool predicted_create(predicted *p, const uint32_t *ids, uint32_t n)
{
    if ((p->ids = malloc(sizeof *ids * n)) == NULL ||
        !spec_index_create(&p->index, SPEC_TABLES, n, n, UINT32_MAX))
        return false;
    memcpy(p->ids, ids, sizeof *ids * n);
    p->n = n;
    p->same = PREDICTION_SURE; /* the output is expected to begin as the prediction does */
    for (uint32_t i = 0; i < n; i++)
        spec_index_add(&p->index, 0, ids + i, i + 1, i);
    return true;
}

/* Finds the place after an edit: the longest match among the next ids and among the newest places
 * with the same last 3 ids. If two are equal, the first after the lost place wins. */
static void predicted_find(predicted *p, const uint32_t *last, uint32_t n_output, uint32_t depth)
{
    uint32_t best = 0, at = 0, link = 0;

    for (uint32_t i = p->next; i < p->n && i - p->next < PREDICTION_WINDOW; i++) {
        uint32_t same = spec_same(last, p->ids + i, least(least(depth, n_output), i + 1));
        if (same > best) {
            best = same;
            at = i;
        }
    }
    if (n_output >= PREDICTION_SURE) link = spec_index_newest(&p->index, 0, last, SPEC_LAST3);
    for (uint32_t steps = 0; link != 0 && steps < SPEC_STEPS; steps++) {
        uint32_t same = spec_same(last, p->ids + link - 1, least(least(depth, n_output), link));
        if (same > best && same >= PREDICTION_SURE) {
            best = same;
            at = link - 1;
        }
        link = *spec_link(&p->index, SPEC_LAST3, link - 1);
    }
    p->same = best;
    if (best > 0) p->next = at + 1;
}

static void predicted_add(predicted *p, const uint32_t *last, uint32_t n_output, uint32_t depth)
{
    if (p->same > 0 && p->next < p->n && p->ids[p->next] == *last) {
        p->next++;
        p->same++;
    } else {
        predicted_find(p, last, n_output, depth);
    }
}

/* The ids of a place that few ids found are few. */
static void guess_by_prediction(const predicted *p, uint32_t cap, rose_spec_guess *g)
{
    if (p->same == 0) return;
    g->n = least(least(cap, p->n - p->next), p->same < PREDICTION_SURE ? 4 : ROSE_SPEC_MAX);
    g->source = ROSE_SPEC_FROM_PREDICTION;
    memcpy(g->ids, p->ids + p->next, g->n * sizeof *g->ids);
}

static void text_push(const rose_spec_opts *o, rose_spec_text *t, uint32_t id)
{
    uint32_t place = t->n++;

    t->ids[place] = id;
    if (o->method == ROSE_SPEC_SUFFIX)
        spec_index_add(&t->index, 0, t->ids + place, place + 1, place);
    else if (o->method == ROSE_SPEC_NGRAM)
        t->ngram = spec_index_first(&t->index, o->ngram_min, t->ids, place, &t->ngram_at);
}

rose_spec_text *rose_spec_text_create(const rose_spec *s, const uint32_t *prompt, uint32_t n_prompt,
                                      uint32_t max_tokens, const uint64_t salt[2],
                                      const uint32_t *prediction, uint32_t n_prediction)
{
    const rose_spec_opts *o = &s->o;
    uint32_t per = o->method == ROSE_SPEC_SUFFIX ? SPEC_TABLES : o->ngram_max - o->ngram_min + 1;
    rose_spec_text *t = calloc(1, sizeof *t);

    if (t == NULL) return NULL;
    assert(max_tokens <= UINT32_MAX - 1 - n_prompt);
    t->cap = n_prompt + max_tokens;
    t->n_prompt = n_prompt;
    t->salt[0] = salt[0];
    t->salt[1] = salt[1];
    t->counters = s->counters;
    t->bytes = sizeof *t + sizeof *t->ids * t->cap;
    if ((t->ids = malloc(sizeof *t->ids * ((size_t)t->cap + 1))) == NULL) goto failed;
    if (o->method != ROSE_SPEC_NONE) {
        if (!spec_index_create(&t->index, per, n_prompt + least(max_tokens, FIRST_TOKENS), t->cap,
                               UINT32_MAX))
            goto failed;
        t->bytes += spec_index_bytes(&t->index, t->cap);
    }
    if (n_prediction > 0) {
        if (!predicted_create(&t->prediction, prediction, n_prediction)) goto failed;
        t->bytes += sizeof *prediction * n_prediction +
                    spec_index_bytes(&t->prediction.index, n_prediction);
    }
    for (uint32_t i = 0; i < n_prompt; i++)
        text_push(o, t, prompt[i]);
    count(&t->counters->bytes, t->bytes);
    return t;
failed:
    t->counters = NULL; /* its bytes do not count yet */
    rose_spec_text_destroy(t);
    return NULL;
}

void rose_spec_text_destroy(rose_spec_text *t)
{
    if (t == NULL) return;
    if (t->counters != NULL)
        atomic_fetch_sub_explicit(&t->counters->bytes, t->bytes, memory_order_relaxed);
    free(t->ids);
    spec_index_destroy(&t->index);
    free(t->prediction.ids);
    spec_index_destroy(&t->prediction.index);
    free(t);
}

void rose_spec_add(rose_spec *s, rose_spec_text *t, const uint32_t *ids, uint32_t n)
{
    assert(n <= t->cap - t->n);
    for (uint32_t i = 0; i < n; i++) {
        text_push(&s->o, t, ids[i]);
        if (t->prediction.n > 0)
            predicted_add(&t->prediction, t->ids + t->n - 1, t->n - t->n_prompt, s->o.depth);
    }
}

void rose_spec_end(rose_spec *s, rose_spec_text *t)
{
    past *p = &s->past;
    uint32_t n = least(least(t->n - t->n_prompt, p->n / 4), MOST_KEPT), seed = seed_of(t->salt);
    const uint32_t *ids = t->ids + t->n - n;

    atomic_fetch_sub_explicit(&t->counters->bytes, t->bytes, memory_order_relaxed);
    t->counters = NULL; /* a text may live longer than s */
    if (n < 2) return;  /* nothing follows a lone id */
    uint32_t number = p->n_segments++;
    p->segments[number % (p->n / 8)] = (segment){p->end, p->end + n, {t->salt[0], t->salt[1]}};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t place = (uint32_t)p->end++, at = place & (p->n - 1);
        p->ids[at] = ids[i];
        p->segment_of[at] = number;
        spec_index_add(&p->index, seed, ids + i, i + 1, place);
    }
}

static uint32_t place_of(uint32_t i)
{
    static const uint8_t places[ROSE_SPEC_MAX] = {0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4};
    return places[i];
}

/* Shares of right ids are learnt apart for scores and places with much the same share. */
static uint32_t cell_of(float score, uint32_t i)
{
    static const float below[SCORES - 1] = {0.95f, 0.85f, 0.7f, 0.5f, 0.35f, 0.2f, 0.1f};
    uint32_t k = 0;

    while (k < SCORES - 1 && score < below[k])
        k++;
    return k * PLACES + place_of(i);
}

/* The share of right ids, where the ids before were right. What the source says counts as the first
 * FIRST ids that were seen. */
static float share_of(const seen *e, float said)
{
    const float first = 6;
    return (e->right + first * said) / (e->tried + first);
}

/* What the source says of id i, if the ids before it are right. */
static float said_of(const rose_spec_guess *g, uint32_t i)
{
    float before = i == 0 ? 1 : g->score[i - 1];
    return before > 0 ? g->score[i] / before : 0;
}

/* How much better or worse the ids of a place are in this text than in others. */
static float factor_of(const rose_spec_text *t, uint32_t i)
{
    const seen *e = &t->expected[place_of(i)];
    const float first = 4;
    float f = (e->right + first) / (e->tried + first);
    return f < 0.1f ? 0.1f : f > 4 ? 4 : f;
}

static void set_chances(const rose_spec *s, const rose_spec_text *t, rose_spec_guess *g)
{
    float product = 1;

    for (uint32_t i = 0; i < g->n; i++) {
        const seen *e = &s->seen[g->source][cell_of(g->score[i], i)];
        float share = factor_of(t, i) * share_of(e, said_of(g, i));
        product *= share < 1 ? share : 1;
        g->chance[i] = s->o.always ? 1 : product;
    }
}

void rose_spec_rate(const rose_spec *s, const rose_spec_text *t, rose_spec_source source,
                    rose_spec_guess *g)
{
    assert(g->n <= ROSE_SPEC_MAX);
    g->source = source;
    for (uint32_t i = 0; i < g->n; i++)
        g->score[i] = 1;
    set_chances(s, t, g);
}

void rose_spec_guess_next(const rose_spec *s, const rose_spec_text *t, uint32_t cap,
                          rose_spec_guess *g)
{
    const rose_spec_opts *o = &s->o;

    cap = least(cap, o->n_tokens);
    g->n = 0;
    g->source = ROSE_SPEC_FROM_TEXT;
    if (cap == 0) return;
    if (o->other != NULL) {
        g->n = least(o->other(o->user, t->ids, t->n, t->n_prompt, cap, g->ids), cap);
        g->source = ROSE_SPEC_FROM_OTHER;
    }
    if (g->n == 0) guess_by_prediction(&t->prediction, cap, g);
    if (g->n == 0 && o->method == ROSE_SPEC_SUFFIX && t->n > 0) {
        guess_by_suffix(s, t, cap, g);
        set_chances(s, t, g);
        return;
    }
    if (g->n == 0 && o->method == ROSE_SPEC_NGRAM && t->ngram > 0) {
        g->n = least(cap, t->n - 1 - t->ngram_at);
        g->source = ROSE_SPEC_FROM_TEXT;
        memcpy(g->ids, t->ids + t->ngram_at + 1, g->n * sizeof *g->ids);
    }
    rose_spec_rate(s, t, g->source, g);
}

/* keep: what older observations count from now on. */
static void observe(seen *e, float keep, float tried, float right)
{
    e->tried = e->tried * keep + tried;
    e->right = e->right * keep + right;
}

void rose_spec_learn(rose_spec *s, rose_spec_text *t, const rose_spec_guess *g, uint32_t n_tried,
                     uint32_t n_right)
{
    counters *c = s->counters;

    assert(g->n <= ROSE_SPEC_MAX && n_tried <= g->n && n_right <= n_tried);
    for (uint32_t i = 0; i < g->n; i++) {
        seen *e = &s->seen[g->source][cell_of(g->score[i], i)], *here = &t->expected[place_of(i)];
        if (i < n_tried && i <= n_right) {
            bool right = i < n_right;
            observe(here, 0.97f, share_of(e, said_of(g, i)), right ? 1 : 0);
            observe(e, 0.995f, 1, right ? 1 : 0);
        } else if (i >= n_tried) {
            observe(here, 0.98f, 0, 0);
            observe(e, 0.998f, 0, 0); /* forget slowly, so that it is tried again one day */
        }
    }
    if (n_tried == 0) return;
    count(&c->n_guesses, 1);
    count(&c->n_tried, n_tried);
    count(&c->n_right, n_right);
    count(&c->tried_of[g->source], n_tried);
    count(&c->right_of[g->source], n_right);
    for (uint32_t i = 0; i < n_right; i++)
        count(&c->right_at[i], 1);
}

rose_spec_stats rose_spec_get_stats(const rose_spec *s)
{
    const counters *c = s->counters;
    rose_spec_stats v = {.n_guesses = value(&c->n_guesses),
                         .n_tried = value(&c->n_tried),
                         .n_right = value(&c->n_right),
                         .bytes = value(&c->bytes)};
    for (uint32_t i = 0; i < ROSE_SPEC_MAX; i++)
        v.right_at[i] = value(&c->right_at[i]);
    for (uint32_t i = 0; i < ROSE_SPEC_SOURCES; i++) {
        v.tried_of[i] = value(&c->tried_of[i]);
        v.right_of[i] = value(&c->right_of[i]);
    }
    return v;
}
