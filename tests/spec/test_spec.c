/* Guesses against a slow reference of the rules, which looks at all places of all texts; salts, the
 * end of the ring, predictions, chances. Prints what a guess costs. */
#include "failing_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/allocguard.h"
#include "base/clock.h"
#include "spec/spec.h"

static uint64_t seed, state;

static uint32_t rnd(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 16) % below);
}

static const uint64_t no_salt[2] = {0, 0};

static rose_spec *create(const rose_spec_opts *o)
{
    rose_spec *s = NULL;
    rose_err err = {""};
    assert_int_equal(rose_spec_create(&s, o, &err), ROSE_OK);
    return s;
}

static rose_spec_text *begin(const rose_spec *s, const uint32_t *prompt, uint32_t n, uint32_t max)
{
    rose_spec_text *t = rose_spec_text_create(s, prompt, n, max, no_salt, NULL, 0);
    assert_non_null(t);
    return t;
}

static void add(rose_spec *s, rose_spec_text *t, const uint32_t *ids, uint32_t n)
{
    rose_alloc_guard_begin("spec");
    rose_spec_add(s, t, ids, n);
    rose_alloc_guard_end();
}

/* A guess into poisoned memory. */
static rose_spec_guess guess(const rose_spec *s, const rose_spec_text *t, uint32_t cap)
{
    rose_spec_guess g;
    memset(&g, 0xA5, sizeof g);
    rose_alloc_guard_begin("spec");
    rose_spec_guess_next(s, t, cap, &g);
    rose_alloc_guard_end();
    assert_true(g.n <= cap && g.n <= ROSE_SPEC_MAX);
    for (uint32_t i = 0; i < g.n; i++) {
        float before = i == 0 ? 1 : g.chance[i - 1], score = i == 0 ? 1 : g.score[i - 1];
        assert_true(g.chance[i] >= 0 && g.chance[i] <= before);
        assert_true(g.score[i] > 0 && g.score[i] <= score);
    }
    return g;
}

/* Ids of a small alphabet, in part copies of what came before, in part a repeated piece. */
static void make_text(uint32_t *ids, uint32_t n, uint32_t alphabet, uint32_t base)
{
    for (uint32_t i = 0; i < n;) {
        uint32_t m = 1 + rnd(30), from = i == 0 ? 0 : rnd(i), kind = rnd(4);
        for (uint32_t k = 0; k < m && i < n; k++, i++)
            ids[i] = i == 0 || kind == 0 ? base + rnd(alphabet)
                     : kind == 1         ? ids[i - 1 - (i > 4 ? from % 4 : 0)]
                                         : ids[from + k];
    }
}

/* The reference: pieces of text, the oldest first, in which places are searched. */
typedef struct piece {
    const uint32_t *ids;
    uint32_t n, first; /* ids from `first` on are still kept */
    uint64_t salt;
} piece;

typedef struct ref_place {
    const piece *in;
    uint32_t at, same;
} ref_place;

static uint32_t ref_same(const uint32_t *text, uint32_t n, const piece *p, uint32_t at,
                         uint32_t most)
{
    uint32_t k = 0;
    while (k < most && k < n && k + p->first <= at && text[n - 1 - k] == p->ids[at - k])
        k++;
    return k;
}

/* The paper's rule for m ids that are the same, over the newest places (64, or 16 of past outputs)
 * with the same last 3 ids, or for m < 3 with the same last id; 16 that match in full are enough.
 */
static float ref_walk(const rose_spec_opts *o, const uint32_t *text, uint32_t n,
                      const piece *pieces, uint32_t n_pieces, bool own, uint32_t m, uint32_t cap,
                      rose_spec_guess *g)
{
    ref_place c[64];
    uint32_t n_c = 0, key = m < 3 ? 1 : 3, most = m < 3 ? 2 : 64, n_found = 0, n_full = 0;
    float product = 1, sum = 0;

    if (most > o->depth) most = o->depth;
    for (uint32_t q = n_pieces; q-- > 0;)
        for (uint32_t at = pieces[q].n - (own && n > 0 ? 1 : 0);
             at-- > pieces[q].first && n_found < (own ? 64u : 16u) && n_full < 16;) {
            uint32_t same = ref_same(text, n, &pieces[q], at, most);
            if (same < key) continue;
            n_found++;
            n_full += same == most;
            if (same >= m) c[n_c++] = (ref_place){&pieces[q], at, same};
        }
    g->n = 0;
    while (n_c > 0 && g->n < cap && (float)(g->n + 1) <= o->factor * (float)m) {
        uint32_t next[64], best = 64, votes = 0, kept = 0;
        for (uint32_t i = 0; i < n_c; i++) {
            uint32_t at = c[i].at + 1 + g->n;
            next[i] = at < c[i].in->n ? c[i].in->ids[at] : own ? g->ids[at - n] : UINT32_MAX;
        }
        for (uint32_t i = 0; i < n_c; i++) {
            uint32_t v = 0;
            for (uint32_t k = 0; k < n_c; k++)
                v += next[k] == next[i];
            if (next[i] == UINT32_MAX) continue;
            if (v > votes || (v == votes && c[i].same > c[best].same)) {
                votes = v;
                best = i;
            }
        }
        if (best == 64) break;
        product *= (float)votes / (float)n_c;
        if (product < o->min_prob) break;
        g->ids[g->n] = next[best];
        g->score[g->n++] = product;
        sum += product;
        uint32_t id = next[best];
        for (uint32_t i = 0; i < n_c; i++)
            if (next[i] == id) c[kept++] = c[i];
        n_c = kept;
    }
    return sum;
}

static rose_spec_guess ref_suffix(const rose_spec_opts *o, const uint32_t *text, uint32_t n,
                                  const piece *past, uint32_t n_past, uint32_t cap)
{
    rose_spec_guess best = {.n = 0}, of_past = {.n = 0}, g;
    const piece own = {text, n, 0, 0};
    float score = 0, past_score = 0;

    for (uint32_t m = 1; m <= o->depth; m++) {
        float sum = ref_walk(o, text, n, &own, 1, true, m, cap, &g);
        if (g.n > 0 && sum >= score) {
            score = sum;
            best = g;
            best.source = ROSE_SPEC_FROM_TEXT;
        }
        sum = ref_walk(o, text, n, past, n_past, false, m, cap, &g);
        if (g.n > 0 && sum >= past_score) {
            past_score = sum;
            of_past = g;
            of_past.source = ROSE_SPEC_FROM_PAST;
        }
    }
    return past_score > score ? of_past : best;
}

static void assert_same_guess(const rose_spec_guess *a, const rose_spec_guess *b)
{
    assert_int_equal(a->n, b->n);
    if (a->n == 0) return;
    assert_int_equal(a->source, b->source);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof *a->ids);
    assert_memory_equal(a->score, b->score, a->n * sizeof *a->score);
}

static void random_options(rose_spec_opts *o)
{
    static const float factors[] = {1, 0.4f, 2.5f, 7}, probs[] = {0.1f, 0, 0.34f, 1};
    rose_spec_opts_default(o);
    o->n_tokens = rnd(3) > 0 ? ROSE_SPEC_MAX : 1 + rnd(ROSE_SPEC_MAX);
    o->depth = rnd(2) > 0 ? 24 : 1 + rnd(64);
    o->factor = factors[rnd(4)];
    o->min_prob = probs[rnd(4)];
}

static void the_rule_of_suffix_in_a_text(void **unused)
{
    uint32_t n_guesses = 0, n_ids = 0;
    (void)unused;
    for (uint32_t round = 0; round < 150; round++) {
        uint32_t ids[250], n = 1 + rnd(250), n_prompt = rnd(2) ? rnd(n + 1) : rnd(2);
        rose_spec_opts o;
        random_options(&o);
        make_text(ids, n, 1 + rnd(6), rnd(2) ? 0 : UINT32_MAX - 6);
        rose_spec *s = create(&o);
        rose_spec_text *t = begin(s, ids, n_prompt, n - n_prompt);
        for (uint32_t i = n_prompt;;) {
            uint32_t cap = 1 + rnd(20), most = cap < o.n_tokens ? cap : o.n_tokens;
            rose_spec_guess g = guess(s, t, cap), want = ref_suffix(&o, ids, i, NULL, 0, most);
            assert_same_guess(&g, &want);
            n_guesses += g.n > 0;
            n_ids += g.n;
            if (i == n) break;
            uint32_t k = 1 + rnd(n - i < 60 ? n - i : 60);
            add(s, t, ids + i, k);
            i += k;
        }
        rose_spec_text_destroy(t);
        rose_spec_destroy(s);
    }
    print_message("    %u guesses with %u ids\n", n_guesses, n_ids);
    assert_true(n_guesses > 100);
}

static void the_rule_of_ngram(void **unused)
{
    uint32_t n_guesses = 0;
    (void)unused;
    for (uint32_t round = 0; round < 150; round++) {
        uint32_t ids[400], n = 1 + rnd(400), n_prompt = rnd(n + 1);
        rose_spec_opts o;
        rose_spec_opts_default(&o);
        o.method = ROSE_SPEC_NGRAM;
        o.n_tokens = 1 + rnd(ROSE_SPEC_MAX);
        o.ngram_min = 1 + rnd(6);
        o.ngram_max = o.ngram_min + rnd(rnd(2) ? 4 : 58);
        make_text(ids, n, 1 + rnd(6), 0);
        rose_spec *s = create(&o);
        rose_spec_text *t = begin(s, ids, n_prompt, n - n_prompt);
        for (uint32_t i = n_prompt;; i++) {
            rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
            const piece own = {ids, i, 0, 0};
            uint32_t best = 0, at = 0;
            for (uint32_t q = 0; q + 1 < i; q++) {
                uint32_t same = ref_same(ids, i, &own, q, o.ngram_max);
                if (same >= o.ngram_min && same > best) {
                    best = same;
                    at = q;
                }
            }
            uint32_t want = best == 0 ? 0 : i - 1 - at < o.n_tokens ? i - 1 - at : o.n_tokens;
            assert_int_equal(g.n, want);
            if (want > 0) assert_memory_equal(g.ids, ids + at + 1, want * sizeof *ids);
            n_guesses += want > 0;
            if (i == n) break;
            add(s, t, ids + i, 1);
        }
        rose_spec_text_destroy(t);
        rose_spec_destroy(s);
    }
    assert_true(n_guesses > 1000);
}

/* Past outputs as the ring keeps them: whole ids of each, and how many of them are still there. */
typedef struct history {
    piece pieces[400];
    uint32_t n, ring;
    uint32_t most; /* outputs that are kept */
} history;

/* The pieces of one salt that the ring still has, the oldest first. */
static uint32_t kept_pieces(const history *h, uint64_t salt, piece *out)
{
    uint32_t begin = h->n, n_ids = 0, n = 0;

    while (begin > 0 && h->n - begin < h->most && n_ids < h->ring)
        n_ids += h->pieces[--begin].n;
    for (uint32_t i = begin; i < h->n; i++) {
        piece p = h->pieces[i];
        if (i == begin && n_ids > h->ring) p.first = n_ids - h->ring;
        if (p.salt == salt) out[n++] = p;
    }
    return n;
}

static void the_rule_of_suffix_in_past_outputs(void **unused)
{
    uint32_t n_guesses = 0, n_past = 0;
    (void)unused;
    for (uint32_t round = 0; round < 12; round++) {
        history *h = calloc(1, sizeof *h);
        rose_spec_opts o;
        random_options(&o);
        h->ring = 64u << rnd(3);
        o.past_tokens = h->ring - rnd(h->ring / 2 - 1);
        o.past_requests = 1 + rnd(round % 2 == 0 ? 8 : 10000);
        h->most = o.past_requests < h->ring / 8 ? o.past_requests : h->ring / 8;
        rose_spec *s = create(&o);
        const uint64_t bytes = rose_spec_get_stats(s).bytes;
        uint32_t alphabet = 1 + rnd(6), source[600];
        make_text(source, 600, alphabet, 0);
        for (uint32_t k = 0; k < 100; k++) {
            /* pieces of one long text, so that requests have much in common */
            uint32_t n = 1 + rnd(80), n_prompt = rnd(n + 1), i = n_prompt;
            uint32_t *ids = malloc(n * sizeof *ids);
            memcpy(ids, source + rnd(600 - n), n * sizeof *ids);
            const uint64_t salt[2] = {7, rnd(3)};
            rose_spec_text *t =
                rose_spec_text_create(s, ids, n_prompt, n - n_prompt, salt, NULL, 0);
            piece past[400];
            uint32_t n_kept = kept_pieces(h, salt[1], past);
            for (;;) {
                rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
                rose_spec_guess want = ref_suffix(&o, ids, i, past, n_kept, o.n_tokens);
                assert_same_guess(&g, &want);
                n_guesses += g.n > 0;
                n_past += g.n > 0 && g.source == ROSE_SPEC_FROM_PAST;
                if (i == n) break;
                uint32_t m = 1 + rnd(n - i < 20 ? n - i : 20);
                add(s, t, ids + i, m);
                i += m;
            }
            rose_spec_end(s, t);
            rose_spec_text_destroy(t);
            /* The last part of a long output is kept. Nothing follows in an output of one id. */
            uint32_t kept = n - n_prompt < h->ring / 4 ? n - n_prompt : h->ring / 4;
            memmove(ids, ids + n - kept, kept * sizeof *ids);
            if (kept >= 2)
                h->pieces[h->n++] = (piece){ids, kept, 0, salt[1]};
            else
                free(ids);
        }
        assert_int_equal(rose_spec_get_stats(s).bytes, bytes); /* of past outputs, however many */
        for (uint32_t i = 0; i < h->n; i++)
            free((void *)(uintptr_t)h->pieces[i].ids);
        free(h);
        rose_spec_destroy(s);
    }
    print_message("    %u guesses, %u from past outputs\n", n_guesses, n_past);
    assert_true(n_past > 100);
}

/* 1,000 requests whose ids are all different: only the outputs of the last past_requests give
 * guesses, the first in goes first, and memory does not grow. */
static void the_oldest_of_past_requests_go_first(void **unused)
{
    enum { N = 12, REQUESTS = 1000 };
    (void)unused;
    for (uint32_t most = 0; most <= 40; most = most * 2 + 1) {
        uint32_t ids[N];
        rose_spec_opts o;
        rose_spec_opts_default(&o);
        o.past_requests = most;
        o.past_tokens = 4096; /* never the limit here */
        rose_spec *s = create(&o);
        const uint64_t bytes = rose_spec_get_stats(s).bytes;
        assert_int_equal(bytes == 0, most == 0);
        for (uint32_t k = 0; k < REQUESTS; k++) {
            for (uint32_t i = 0; i < N; i++)
                ids[i] = k * N + i;
            rose_spec_text *t = begin(s, ids, 0, N);
            add(s, t, ids, N);
            rose_alloc_guard_begin("spec");
            rose_spec_end(s, t);
            rose_alloc_guard_end();
            rose_spec_text_destroy(t);
            assert_int_equal(rose_spec_get_stats(s).bytes, bytes);
            const uint32_t back = rnd(2 * most + 3); /* requests since the one that is asked for */
            if (back > k) continue;
            for (uint32_t i = 0; i < N; i++)
                ids[i] = (k - back) * N + i;
            t = begin(s, ids, 4, N - 4);
            const rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
            assert_int_equal(g.n > 0, back < most);
            if (g.n > 0) assert_memory_equal(g.ids, ids + 4, g.n * sizeof *ids);
            rose_spec_text_destroy(t); /* does not end: it does not become a past output */
        }
        rose_spec_destroy(s);
    }
}

static void a_text_that_repeats_is_guessed_past_its_end(void **unused)
{
    (void)unused;
    for (uint32_t period = 1; period <= 12; period++) {
        uint32_t ids[200], from = 2 * period + 14 + rnd(100);
        rose_spec_opts o;
        rose_spec_opts_default(&o);
        for (uint32_t i = 0; i < 200; i++)
            ids[i] = i < period ? UINT32_MAX - 1 - i : ids[i - period];
        rose_spec *s = create(&o);
        rose_spec_text *t = begin(s, ids, from, 100);
        rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
        assert_int_equal(g.n, ROSE_SPEC_MAX);
        assert_memory_equal(g.ids, ids + from, sizeof g.ids);
        assert_true(g.score[ROSE_SPEC_MAX - 1] == 1);
        for (uint32_t cap = 0; cap < ROSE_SPEC_MAX; cap++) /* the score says how many come */
            assert_true(guess(s, t, cap).n <= cap);
        rose_spec_text_destroy(t);
        rose_spec_destroy(s);
    }
}

static void texts_of_another_salt_give_nothing(void **unused)
{
    uint32_t secret[40], found = 0;
    rose_spec_opts o;
    (void)unused;
    rose_spec_opts_default(&o);
    o.past_tokens = 4096;
    for (uint32_t i = 0; i < 40; i++)
        secret[i] = rnd(UINT32_MAX);
    rose_spec *s = create(&o);
    for (uint32_t k = 0; k < 64; k++) {
        const uint64_t salt[2] = {k % 8, k / 8}; /* swapped pairs among them */
        rose_spec_text *t = rose_spec_text_create(s, secret, 10, 30, salt, NULL, 0);
        assert_int_equal(guess(s, t, ROSE_SPEC_MAX).n, 0); /* others of 64 salts have the ids */
        add(s, t, secret + 10, 10);
        assert_int_equal(guess(s, t, ROSE_SPEC_MAX).n, 0);
        add(s, t, secret + 20, 20);
        rose_spec_end(s, t);
        rose_spec_text_destroy(t);
    }
    for (uint32_t k = 0; k < 64; k++) {
        const uint64_t salt[2] = {k % 8, k / 8};
        rose_spec_text *t = rose_spec_text_create(s, secret, 20, 20, salt, NULL, 0);
        rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
        found += g.n == 10 && g.source == ROSE_SPEC_FROM_PAST;
        if (g.n > 0) assert_memory_equal(g.ids, secret + 20, g.n * sizeof *g.ids);
        rose_spec_text_destroy(t);
    }
    assert_int_equal(found, 64); /* each salt has its own; 10 output ids are the same */
    rose_spec_destroy(s);
}

/* Decodes `out` with guesses, as an engine does that tries every guessed id. Returns steps. */
static uint32_t decode(rose_spec *s, rose_spec_text *t, const uint32_t *out, uint32_t n,
                       uint32_t *n_predicted)
{
    uint32_t steps = 0;
    for (uint32_t i = 0; i < n; steps++) {
        rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
        uint32_t right = 0;
        while (right < g.n && i + right < n && g.ids[right] == out[i + right])
            right++;
        if (g.n > 0) rose_spec_learn(s, t, &g, g.n, right);
        if (g.n > 0 && g.source == ROSE_SPEC_FROM_PREDICTION) *n_predicted += right;
        uint32_t m = right < n - i ? right + 1 : n - i;
        add(s, t, out + i, m);
        i += m;
    }
    return steps;
}

/* The output is the prediction with edits: fresh ids in place of up to `gone` ids. */
static void a_prediction_is_found_again_after_edits(void **unused)
{
    (void)unused;
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t ids[1000], out[1200], n = 0, edits = 0, fresh = 0, n_right = 0;
        uint32_t most_gone = round % 3 == 0 ? 100 : 14; /* within the window, or far beyond it */
        for (uint32_t i = 0; i < 1000; i++)
            ids[i] = i * 2654435761u; /* all different */
        for (uint32_t i = 0; i < 1000;) {
            uint32_t m = 40 + rnd(120);
            while (m-- > 0 && i < 1000)
                out[n++] = ids[i++];
            if (i >= 1000) break;
            uint32_t gone = rnd(most_gone + 1), put = rnd(8);
            for (uint32_t k = 0; k < put; k++)
                out[n++] = (1000 + fresh++) * 2654435761u;
            i += gone;
            edits++;
        }
        rose_spec_opts o;
        rose_spec_opts_default(&o);
        o.method = (rose_spec_method)(round % 3);
        rose_spec *s = create(&o);
        uint32_t prompt = UINT32_MAX - 1;
        rose_spec_text *t = rose_spec_text_create(s, &prompt, rnd(2), n, no_salt, ids, 1000);
        rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
        assert_int_equal(g.n, ROSE_SPEC_MAX);
        assert_int_equal(g.source, ROSE_SPEC_FROM_PREDICTION);
        assert_memory_equal(g.ids, ids, sizeof g.ids);
        uint32_t steps = decode(s, t, out, n, &n_right);
        /* An edit costs its fresh ids, a wrong guess, 3 ids that find the place, a short guess. */
        assert_true(steps <= n / (ROSE_SPEC_MAX + 1) + 1 + fresh + 6 * edits);
        assert_true(n_right > n / 2);
        rose_spec_text_destroy(t);
        rose_spec_destroy(s);
    }
}

/* Trains with guesses whose ids are right with probability `a` each, and returns the mean of the
 * chances of the last 500. */
static void planted(rose_spec *s, rose_spec_text *t, rose_spec_source source, uint32_t percent,
                    double chance[ROSE_SPEC_MAX])
{
    for (uint32_t i = 0; i < ROSE_SPEC_MAX; i++)
        chance[i] = 0;
    for (uint32_t k = 0; k < 3000; k++) {
        rose_spec_guess g = {.n = ROSE_SPEC_MAX};
        uint32_t right = 0;
        if (source == ROSE_SPEC_FROM_TEXT)
            g = guess(s, t, ROSE_SPEC_MAX);
        else
            rose_spec_rate(s, t, source, &g);
        assert_int_equal(g.source, source);
        assert_int_equal(g.n, ROSE_SPEC_MAX);
        while (right < g.n && rnd(100) < percent)
            right++;
        rose_spec_learn(s, t, &g, g.n, right);
        for (uint32_t i = 0; k >= 2500 && i < g.n; i++)
            chance[i] += (double)g.chance[i] / 500;
    }
}

static void chances_become_what_was_seen(void **unused)
{
    uint32_t ids[64] = {0};
    rose_spec_opts o;
    (void)unused;
    rose_spec_opts_default(&o);
    for (uint32_t source = 0; source < ROSE_SPEC_SOURCES; source++) {
        uint32_t percent[] = {90, 40, 70};
        if (source == ROSE_SPEC_FROM_PAST) continue; /* one score a text; TEXT is the same code */
        rose_spec *s = create(&o);
        rose_spec_text *t = begin(s, ids, 64, 10);
        for (uint32_t k = 0; k < 3; k++) {
            double chance[ROSE_SPEC_MAX], want = 1;
            planted(s, t, (rose_spec_source)source, percent[k], chance);
            for (uint32_t i = 0; i < 8; i++) {
                want *= percent[k] / 100.0;
                assert_true(chance[i] > want - 0.12 && chance[i] < want + 0.12);
            }
        }
        /* Other sources have learnt nothing. */
        rose_spec_guess g = {.n = 1};
        rose_spec_text *fresh = begin(s, ids, 1, 1);
        rose_spec_rate(s, fresh, (rose_spec_source)((source + 2) % ROSE_SPEC_SOURCES), &g);
        assert_true(g.chance[0] == 1);
        rose_spec_text_destroy(fresh);
        rose_spec_text_destroy(t);
        rose_spec_destroy(s);
    }
}

static void what_is_not_tried_is_forgotten(void **unused)
{
    uint32_t ids[64] = {0};
    rose_spec_opts o;
    (void)unused;
    rose_spec_opts_default(&o);
    rose_spec *s = create(&o);
    rose_spec_text *t = begin(s, ids, 64, 10);
    rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
    assert_true(g.chance[ROSE_SPEC_MAX - 1] == 1); /* what the source says */
    for (uint32_t k = 0; k < 500; k++) {
        rose_spec_learn(s, t, &g, g.n, 0);
        g = guess(s, t, ROSE_SPEC_MAX);
    }
    float least = g.chance[0];
    assert_true(least < 0.1f);
    for (uint32_t k = 0; k < 10000; k++) {
        rose_spec_learn(s, t, &g, 0, 0);
        g = guess(s, t, ROSE_SPEC_MAX);
        assert_true(g.chance[0] >= least);
        least = g.chance[0];
    }
    assert_true(least > 0.95f);
    assert_int_equal(rose_spec_get_stats(s).n_guesses, 500);
    rose_spec_text_destroy(t);
    rose_spec_destroy(s);
}

/* Two texts run at the same time: the one that does not copy stops, the other goes on. */
static void each_text_has_its_own_factor(void **unused)
{
    uint32_t ids[64] = {0};
    rose_spec_opts o;
    (void)unused;
    rose_spec_opts_default(&o);
    rose_spec *s = create(&o);
    rose_spec_text *copies = begin(s, ids, 64, 10), *chats = begin(s, ids, 64, 10);
    rose_spec_guess c = guess(s, copies, 4), d;
    for (uint32_t k = 0; k < 200; k++) {
        c = guess(s, copies, 4);
        rose_spec_learn(s, copies, &c, c.n, c.n);
        d = guess(s, chats, 4);
        rose_spec_learn(s, chats, &d, d.n, 0);
    }
    c = guess(s, copies, 4);
    d = guess(s, chats, 4);
    assert_true(c.chance[0] > 0.75f && d.chance[0] < 0.25f);
    rose_spec_text_destroy(copies);
    rose_spec_text_destroy(chats);
    rose_spec_destroy(s);
}

static uint32_t hostile(void *user, const uint32_t *text, uint32_t n, uint32_t n_prompt,
                        uint32_t cap, uint32_t *ids)
{
    uint32_t *calls = user;
    assert_true(n >= n_prompt && (n == 0 || text[n - 1] != UINT32_MAX));
    (*calls)++;
    for (uint32_t i = 0; i < cap; i++)
        ids[i] = UINT32_MAX - i;
    return *calls % 3 == 0 ? UINT32_MAX : *calls % 3 == 1 ? 1 : 0;
}

static void edges_and_statistics(void **unused)
{
    uint32_t ids[100] = {0}, calls = 0, most = UINT32_MAX - 1;
    rose_spec_opts o;
    (void)unused;
    rose_spec_opts_default(&o);
    rose_spec *s = create(&o);
    uint64_t bytes = rose_spec_get_stats(s).bytes;
    assert_true(bytes > (uint64_t)o.past_tokens * sizeof *ids);

    rose_spec_text *t = begin(s, NULL, 0, 0); /* no id at all */
    assert_true(rose_spec_get_stats(s).bytes > bytes);
    assert_int_equal(guess(s, t, ROSE_SPEC_MAX).n, 0);
    rose_spec_end(s, t);
    rose_spec_text_destroy(t);
    t = begin(s, &most, 1, 2); /* one id, then to the last one that fits */
    assert_int_equal(guess(s, t, ROSE_SPEC_MAX).n, 0);
    add(s, t, &most, 1);
    rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
    assert_int_equal(g.n, 1);
    assert_int_equal(g.ids[0], most);
    add(s, t, &most, 1);
    assert_int_equal(guess(s, t, ROSE_SPEC_MAX).n, 2);
    assert_int_equal(guess(s, t, 0).n, 0);
    rose_spec_end(s, t);
    rose_spec_text_destroy(t);
    rose_spec_text_destroy(NULL);
    assert_int_equal(rose_spec_get_stats(s).bytes, bytes);

    t = begin(s, ids, 100, 0);
    g = guess(s, t, 6);
    assert_int_equal(g.n, 6);
    rose_spec_learn(s, t, &g, 5, 2);
    rose_spec_learn(s, t, &g, 6, 6);
    rose_spec_learn(s, t, &g, 0, 0);
    rose_spec_stats v = rose_spec_get_stats(s);
    assert_int_equal(v.n_guesses, 2);
    assert_int_equal(v.n_tried, 11);
    assert_int_equal(v.n_right, 8);
    assert_int_equal(v.right_at[1], 2);
    assert_int_equal(v.right_at[2], 1);
    assert_int_equal(v.tried_of[ROSE_SPEC_FROM_TEXT], 11);
    assert_int_equal(v.right_of[ROSE_SPEC_FROM_TEXT], 8);
    rose_spec_text_destroy(t);
    rose_spec_destroy(s);
    rose_spec_destroy(NULL);

    o.other = hostile;
    o.user = &calls;
    o.n_tokens = 7;
    s = create(&o);
    t = begin(s, ids, 100, 0);
    const rose_spec_source from[] = {ROSE_SPEC_FROM_OTHER, ROSE_SPEC_FROM_TEXT,
                                     ROSE_SPEC_FROM_OTHER};
    const uint32_t n[] = {1, 7, 7};
    for (uint32_t i = 0; i < 3; i++) {
        g = guess(s, t, ROSE_SPEC_MAX);
        assert_int_equal(g.source, from[i]);
        assert_int_equal(g.n, n[i]);
    }
    rose_spec_text_destroy(t);
    rose_spec_destroy(s);
}

static void options_out_of_range_are_named(void **unused)
{
    const struct {
        size_t at;
        union {
            uint32_t u;
            float f;
        } bad;
        const char *name;
    } rows[] = {
        {offsetof(rose_spec_opts, method), {.u = 9}, "method"},
        {offsetof(rose_spec_opts, n_tokens), {.u = 0}, "n_tokens"},
        {offsetof(rose_spec_opts, n_tokens), {.u = ROSE_SPEC_MAX + 1}, "n_tokens"},
        {offsetof(rose_spec_opts, ngram_min), {.u = 0}, "ngram_min"},
        {offsetof(rose_spec_opts, ngram_min), {.u = 6}, "ngram_min"},
        {offsetof(rose_spec_opts, ngram_max), {.u = 65}, "ngram_max"},
        {offsetof(rose_spec_opts, depth), {.u = 0}, "depth"},
        {offsetof(rose_spec_opts, depth), {.u = 65}, "depth"},
        {offsetof(rose_spec_opts, factor), {.f = 0}, "factor"},
        {offsetof(rose_spec_opts, factor), {.u = 0x7fc00000}, "factor"}, /* NaN */
        {offsetof(rose_spec_opts, min_prob), {.f = -0.1f}, "min_prob"},
        {offsetof(rose_spec_opts, min_prob), {.f = 1.1f}, "min_prob"},
        {offsetof(rose_spec_opts, past_tokens), {.u = UINT32_MAX}, "past_tokens"},
    };
    (void)unused;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rose_spec_opts o;
        rose_spec *s = (rose_spec *)&o;
        rose_err err = {""};
        rose_spec_opts_default(&o);
        memcpy((char *)&o + rows[i].at, &rows[i].bad, 4);
        assert_int_equal(rose_spec_create(&s, &o, &err), ROSE_E_INVAL);
        assert_null(s);
        assert_non_null(strstr(err.msg, rows[i].name));
    }
}

static void nothing_is_allocated_after_create_and_memory_may_end(void **unused)
{
    (void)unused;
#ifdef HAVE_OWN_ALLOCATOR
    skip(); /* the checked build has its own guard around add() and guess() */
#else
    enum { N = 3000 };
    static uint32_t ids[N];
    rose_spec_opts o;
    rose_spec *s = NULL;
    make_text(ids, N, 50, 0);
    rose_spec_opts_default(&o);
    long live = atomic_load(&falloc.live);
    for (long nth = 1;; nth++) {
        falloc_arm(nth, false);
        rose_status st = rose_spec_create(&s, &o, NULL);
        if (!falloc_disarm()) break;
        assert_int_equal(st, ROSE_E_NOMEM);
        assert_null(s);
        assert_int_equal(atomic_load(&falloc.live), live);
    }
    assert_non_null(s);
    uint64_t bytes = rose_spec_get_stats(s).bytes;
    live = atomic_load(&falloc.live);
    for (long nth = 1;; nth++) {
        falloc_arm(nth, false);
        rose_spec_text *t = rose_spec_text_create(s, ids, 100, N - 100, no_salt, ids + 50, 500);
        bool refused = falloc_disarm();
        assert_int_equal(t == NULL, refused);
        if (!refused) {
            assert_true(nth > 5);
            falloc_arm(0, false);
            for (uint32_t i = 100; i < N; i += 10) {
                rose_spec_guess g = guess(s, t, ROSE_SPEC_MAX);
                rose_spec_learn(s, t, &g, g.n / 2, g.n / 3);
                add(s, t, ids + i, 10);
            }
            rose_spec_end(s, t);
            falloc_disarm();
            assert_int_equal(atomic_load(&falloc.count), 0);
            rose_spec_text_destroy(t);
        }
        assert_int_equal(atomic_load(&falloc.live), live);
        assert_int_equal(rose_spec_get_stats(s).bytes, bytes);
        if (!refused) break;
    }
    rose_spec_destroy(s);
#endif
}

/* Other threads create and destroy texts and read the statistics. */
static void *another_thread(void *arg)
{
    const rose_spec *s = arg;
    const uint32_t ids[50] = {1, 2, 3, 1, 2, 3};
    for (uint32_t k = 0; k < 300; k++) {
        rose_spec_text *t = rose_spec_text_create(s, ids, 50, 50, no_salt, ids, k % 2 ? 50 : 0);
        rose_spec_stats v = rose_spec_get_stats(s);
        if (t == NULL || v.n_right > v.n_tried + ROSE_SPEC_MAX) abort();
        rose_spec_text_destroy(t);
    }
    return NULL;
}

static void texts_are_created_by_any_thread(void **unused)
{
    enum { N = 2000 };
    static uint32_t ids[N];
    pthread_t other[2];
    uint32_t predicted = 0;
    rose_spec_opts o;
    (void)unused;
    make_text(ids, N, 20, 0);
    rose_spec_opts_default(&o);
    o.past_tokens = 1024;
    rose_spec *s = create(&o);
    uint64_t bytes = rose_spec_get_stats(s).bytes;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&other[i], NULL, another_thread, s), 0);
    for (uint32_t k = 0; k < 4; k++) {
        rose_spec_text *t = begin(s, ids, 10, N - 10);
        decode(s, t, ids + 10, N - 10, &predicted);
        rose_spec_end(s, t);
        rose_spec_text_destroy(t);
    }
    for (uint32_t i = 0; i < 2; i++)
        pthread_join(other[i], NULL);
    assert_int_equal(rose_spec_get_stats(s).bytes, bytes);
    rose_spec_destroy(s);
}

/* A note, not a proof: what a guess and an id cost in a text of 8192 ids. */
static void the_time_of_a_guess(void **unused)
{
    enum { N = 8192, HALF = N / 2 };
    static uint32_t ids[N];
    rose_spec_opts o;
    (void)unused;
    rose_spec_opts_default(&o);
    for (uint32_t kind = 0; kind < 3; kind++) {
        uint64_t in_guess = 0, in_add = 0;
        make_text(ids, N, kind == 0 ? 2000 : 4, 0);
        if (kind == 2)
            for (uint32_t i = 0; i < N; i++)
                ids[i] = 5;
        rose_spec *s = create(&o);
        rose_spec_text *t = begin(s, ids, HALF, HALF);
        for (uint32_t i = HALF; i < N; i++) {
            uint64_t a = rose_now_ns();
            guess(s, t, ROSE_SPEC_MAX);
            uint64_t b = rose_now_ns();
            add(s, t, ids + i, 1);
            in_guess += b - a;
            in_add += rose_now_ns() - b;
        }
        print_message("    %-12s %5llu ns a guess, %3llu ns an id\n",
                      kind == 0   ? "large"
                      : kind == 1 ? "small"
                                  : "one id",
                      (unsigned long long)(in_guess / HALF), (unsigned long long)(in_add / HALF));
        rose_spec_text_destroy(t);
        rose_spec_destroy(s);
    }
}

/* ---- options ---- */

static void options(void **unused)
{
    static const char *const wrong[][2] = {
        {"{\"model\": \"x\"}", "'model'"},
        {"{\"method\": \"draft_model\"}", "'method'"},
        {"{\"method\": 3}", "'method'"},
        {"3", "column 1"},
        {"[]", "object"},
        {"{\"num_speculative_tokens\": 16}", "from 1 to 15"},
        {"{\"num_speculative_tokens\": 2.5}", "whole number"},
        {"{\"num_speculative_tokens\": \"4\"}", "whole number"},
        {"{\"prompt_lookup_min\": 0}", "from 1 to 64"},
        {"{\"prompt_lookup_min\": 5, \"prompt_lookup_max\": 2}", "above prompt_lookup_max"},
        {"{\"suffix_decoding_min_token_prob\": 2}", "from 0 to 1"},
        {"{\"adaptive\": 1}", "true or false"},
        {"{\"method\": \"ngram\"", "column"}};
    rose_spec_opts o, was;
    (void)unused;
    rose_spec_opts_default(&o);
    was = o;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rose_err err = {""};
        assert_int_not_equal(rose_spec_opts_parse(&o, wrong[i][0], &err), ROSE_OK);
        if (strstr(err.msg, wrong[i][1]) == NULL) fail_msg("%s: %s", wrong[i][0], err.msg);
        assert_memory_equal(&o, &was, sizeof o);
    }
    assert_int_equal(rose_spec_opts_parse(&o,
                                          "{\"method\": \"ngram\", \"num_speculative_tokens\": 4, "
                                          "\"prompt_lookup_max\": 3, \"adaptive\": false}",
                                          NULL),
                     ROSE_OK);
    assert_true(o.method == ROSE_SPEC_NGRAM && o.n_tokens == 4 && o.always);
    assert_true(o.ngram_min == 3 && o.ngram_max == 3);
    assert_int_equal(rose_spec_opts_parse(
                         &o,
                         "{\"method\": \"suffix\", \"suffix_decoding_max_tree_depth\": 7, "
                         "\"suffix_decoding_max_cached_requests\": 0, \"prompt_lookup_min\": 2, "
                         "\"prompt_lookup_max\": 4, \"suffix_decoding_max_spec_factor\": 2.5, "
                         "\"suffix_decoding_min_token_prob\": 0.5}",
                         NULL),
                     ROSE_OK);
    assert_true(o.method == ROSE_SPEC_SUFFIX && o.depth == 7 && o.past_requests == 0);
    assert_true(o.ngram_min == 2 && o.ngram_max == 4 && o.factor > 2.4f && o.min_prob > 0.4f);
    rose_spec *s = create(&o);
    assert_int_equal(rose_spec_get_stats(s).bytes, 0); /* no past outputs */
    rose_spec_destroy(s);
}

int main(void)
{
    const char *given = getenv("ROSE_TEST_SEED");
    seed = given != NULL ? strtoull(given, NULL, 10) : 20261129;
    state = seed | 1;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rule_of_suffix_in_a_text),
        cmocka_unit_test(the_rule_of_ngram),
        cmocka_unit_test(the_rule_of_suffix_in_past_outputs),
        cmocka_unit_test(the_oldest_of_past_requests_go_first),
        cmocka_unit_test(a_text_that_repeats_is_guessed_past_its_end),
        cmocka_unit_test(texts_of_another_salt_give_nothing),
        cmocka_unit_test(a_prediction_is_found_again_after_edits),
        cmocka_unit_test(chances_become_what_was_seen),
        cmocka_unit_test(what_is_not_tried_is_forgotten),
        cmocka_unit_test(each_text_has_its_own_factor),
        cmocka_unit_test(edges_and_statistics),
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(nothing_is_allocated_after_create_and_memory_may_end),
        cmocka_unit_test(texts_are_created_by_any_thread),
        cmocka_unit_test(the_time_of_a_guess),
        cmocka_unit_test(options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
