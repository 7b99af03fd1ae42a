/* backend/cpu/sampler.c - see sampler.h. Three ways give the same answer:
 * all    no rank filter: walk over the whole row;
 * few    a small top_k, or a top_p that the best ids already reach: look at these ids only;
 * many   otherwise: quick selection by count or by mass over the row, then a walk over it.
 * The best ids are found through the maxima of blocks. The k-th largest block maximum is a lower
 * bound for the k-th largest logit, so all blocks below it are skipped. */
#include "backend/cpu/sampler.h"

#include <math.h>
#include <string.h>

#include "base/bump.h"
#include "base/philox.h"

enum {
    MAX_BLOCK = 128, /* logits whose maximum is taken together */
    WALK_BLOCK = ROSE_SUM_BLOCK,
    SORT_BELOW = 24, /* with fewer candidates than this, selection sorts them instead of
                      * splitting them */
    FEW = 256        /* candidates tried first for top_p */
};

typedef struct cand {
    uint32_t ord; /* order-preserving image of the logit */
    uint32_t id;
    float w;
} cand;

typedef struct sampler {
    const rose_cpu_kernels *k;
    const float *x;
    uint32_t vocab;
    const rose_sampling *p;
    float max, inv_temp;
    float u;
    cand *cands;   /* [vocab] */
    float *w;      /* [vocab] */
    float *maxima; /* [blocks of MAX_BLOCK] */
    double *sums;  /* [blocks of WALK_BLOCK] */
    float *row;    /* [vocab] logits that rules have changed */
    uint32_t n_maxima;
} sampler;

static size_t blocks(size_t n, size_t unit)
{
    return (n + unit - 1) / unit;
}

/* Returns the bytes. scratch NULL: only them. */
static size_t place(sampler *s, void *scratch)
{
    rose_bump b = {.base = scratch, .align = 64};
    s->n_maxima = (uint32_t)blocks(s->vocab, MAX_BLOCK);
    s->cands = rose_bump_take(&b, s->vocab * sizeof *s->cands);
    s->w = rose_bump_floats(&b, s->vocab);
    s->maxima = rose_bump_floats(&b, s->n_maxima);
    s->row = rose_bump_floats(&b, s->vocab);
    s->sums = rose_bump_take(&b, blocks(s->vocab, WALK_BLOCK) * sizeof *s->sums);
    return b.used;
}

size_t rose_sampler_scratch(uint32_t vocab)
{
    sampler s = {.vocab = vocab};
    return place(&s, NULL);
}

/* A larger float gives a larger number; NaN gives the lowest. Adding +0 makes -0 equal to +0. */
static uint32_t order_of(float x)
{
    uint32_t bits;
    if (x != x) return 0;
    x += 0.0f;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

static bool by_rank(const cand *a, const cand *b)
{
    return a->ord > b->ord || (a->ord == b->ord && a->id < b->id);
}

static bool by_id(const cand *a, const cand *b)
{
    return a->id < b->id;
}

static void swap(cand *a, cand *b)
{
    cand t = *a;
    *a = *b;
    *b = t;
}

/* ---- sorting and selection: in place, without recursion or allocation ---- */

static void sift(cand *c, uint32_t root, uint32_t n, bool (*before)(const cand *, const cand *))
{
    for (;;) {
        uint32_t child = 2 * root + 1;
        if (child >= n) return;
        if (child + 1 < n && before(&c[child], &c[child + 1])) child++;
        if (!before(&c[root], &c[child])) return;
        swap(&c[root], &c[child]);
        root = child;
    }
}

static void heap_sort(cand *c, uint32_t n, bool (*before)(const cand *, const cand *))
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift(c, i, n, before);
    for (uint32_t i = n; i-- > 1;) {
        swap(&c[0], &c[i]);
        sift(c, 0, i, before);
    }
}

/* Hoare's partition around the median of three. None of c[lo..p) ranks after any of c[p..hi),
 * and both parts are non-empty. hi - lo >= 3. */
static uint32_t split(cand *c, uint32_t lo, uint32_t hi)
{
    cand *mid = &c[lo + (hi - lo) / 2], *last = &c[hi - 1], *first = &c[lo];
    if (by_rank(mid, first)) swap(mid, first);
    if (by_rank(last, first)) swap(last, first);
    if (by_rank(last, mid)) swap(last, mid);
    swap(mid, first);
    const cand pivot = *first;
    uint32_t i = lo, j = hi;
    for (;;) {
        while (by_rank(&c[i], &pivot))
            i++;
        do
            j--;
        while (by_rank(&pivot, &c[j]));
        if (i >= j) return j + 1;
        swap(&c[i], &c[j]);
        i++;
    }
}

/* After 64 splits that did not converge, the rest is sorted: no input makes selection quadratic. */
enum { MAX_SPLITS = 64 };

/* Moves the n_best candidates of best rank to c[0..n_best), in any order. */
static void select_count(cand *c, uint32_t n, uint32_t n_best)
{
    uint32_t lo = 0, hi = n;
    for (int i = 0; i < MAX_SPLITS && hi - lo > SORT_BELOW; i++) {
        uint32_t p = split(c, lo, hi);
        if (n_best <= p) hi = p;
        if (n_best >= p) lo = p;
        if (lo >= hi) return;
    }
    heap_sort(c + lo, hi - lo, by_rank);
}

/* Moves the best candidates, until their mass reaches `need`, to the front. Returns how many
 * they are. */
static uint32_t select_mass(cand *c, uint32_t n, double need)
{
    uint32_t lo = 0, hi = n;
    for (int i = 0; i < MAX_SPLITS && hi - lo > SORT_BELOW; i++) {
        uint32_t p = split(c, lo, hi);
        double mass = 0;
        for (uint32_t j = lo; j < p; j++)
            mass += (double)c[j].w;
        if (mass >= need) {
            hi = p;
        } else {
            need -= mass;
            lo = p;
        }
    }
    heap_sort(c + lo, hi - lo, by_rank);
    for (uint32_t j = lo; j < hi; j++) {
        need -= (double)c[j].w;
        if (need <= 0) return j + 1;
    }
    return hi;
}

/* ---- sums and walks ---- */

/* Lane l adds w[l], w[l + 8], ...; then the sums of lanes 4, 2 and 1 apart are added. The lanes
 * are compiler vectors, because the compiler does not vectorise an array of them. */
static double block_sum(const float *w, uint32_t n)
{
    typedef double pair __attribute__((vector_size(16)));
    pair lane[4] = {{0}};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t l = 0; l < 4; l++)
            lane[l] += (pair){(double)w[i + 2 * l], (double)w[i + 2 * l + 1]};
    for (uint32_t l = 0; i + l < n; l++)
        lane[l / 2][l % 2] += (double)w[i + l];
    const pair a = lane[0] + lane[2], b = lane[1] + lane[3], c = a + b;
    return c[0] + c[1];
}

static double sum_blocks(sampler *s, const float *w, uint32_t n)
{
    double total = 0;
    for (uint32_t b = 0, at = 0; at < n; b++, at += WALK_BLOCK) {
        s->sums[b] = block_sum(w + at, n - at < WALK_BLOCK ? n - at : WALK_BLOCK);
        total += s->sums[b];
    }
    return total;
}

/* Returns the first index whose cumulative weight exceeds u * total, never one of weight 0. If
 * the sum of a block and the walk through it round differently, that is the block's last
 * positive weight. The sums of the blocks are in s->sums, and total is their sum. of_row: w
 * holds no weights yet; those of the chosen block are computed into it. */
static uint32_t walk(sampler *s, float *w, uint32_t n, double total, bool of_row)
{
    const double target = (double)s->u * total;
    double before = 0;
    uint32_t at = 0, b = 0, chosen = 0;

    while (before + s->sums[b] <= target && at + WALK_BLOCK < n) {
        before += s->sums[b++];
        at += WALK_BLOCK;
    }
    const uint32_t end = n - at < WALK_BLOCK ? n : at + WALK_BLOCK;
    if (of_row)
        s->k->exp_sums(s->x + at, end - at, s->max, s->inv_temp, s->p->min_p, w + at, &s->sums[b]);
    for (uint32_t i = at; i < end; i++) {
        if (w[i] <= 0) continue;
        chosen = i;
        before += (double)w[i];
        if (before > target) break;
    }
    return chosen;
}

/* ---- the three ways ---- */

static double add_sums(const sampler *s)
{
    double total = 0;
    for (uint32_t b = 0; b < blocks(s->vocab, WALK_BLOCK); b++)
        total += s->sums[b];
    return total;
}

/* Returns the sum of the weights of the whole row; weights below min_p become zero, as the
 * largest weight is exp(0) = 1. w receives the weights, or is NULL. */
static double weigh_row(sampler *s, float *w)
{
    s->k->exp_sums(s->x, s->vocab, s->max, s->inv_temp, s->p->min_p, w, s->sums);
    return add_sums(s);
}

/* Puts the n_best ids by rank into cands[0..n_best), without weights. 1 <= n_best <= n_maxima. */
static void gather_best(sampler *s, uint32_t n_best)
{
    for (uint32_t b = 0; b < s->n_maxima; b++) {
        uint32_t at = b * MAX_BLOCK, unused;
        uint32_t n = s->vocab - at < MAX_BLOCK ? s->vocab - at : MAX_BLOCK;
        s->maxima[b] = s->k->max_index(s->x + at, n, &unused);
        s->cands[b] = (cand){.ord = order_of(s->maxima[b]), .id = b};
    }
    select_count(s->cands, s->n_maxima, n_best);
    uint32_t bound = UINT32_MAX;
    for (uint32_t i = 0; i < n_best; i++)
        if (s->cands[i].ord < bound) bound = s->cands[i].ord;

    uint32_t n = 0;
    for (uint32_t b = 0; b < s->n_maxima; b++) {
        if (order_of(s->maxima[b]) < bound) continue;
        uint32_t end = s->vocab - b * MAX_BLOCK < MAX_BLOCK ? s->vocab : (b + 1) * MAX_BLOCK;
        for (uint32_t i = b * MAX_BLOCK; i < end; i++) {
            uint32_t ord = order_of(s->x[i]);
            if (ord >= bound) s->cands[n++] = (cand){.ord = ord, .id = i};
        }
    }
    select_count(s->cands, n, n_best);
}

/* Walks over cands[0..n), which carry their weights, in ascending order of id. */
static uint32_t walk_cands(sampler *s, uint32_t n)
{
    heap_sort(s->cands, n, by_id);
    for (uint32_t i = 0; i < n; i++)
        s->w[i] = s->cands[i].w;
    return s->cands[walk(s, s->w, n, sum_blocks(s, s->w, n), false)].id;
}

static uint32_t pick_top_k(sampler *s, uint32_t n)
{
    gather_best(s, n);
    heap_sort(s->cands, n, by_rank);
    double total = 0;
    for (uint32_t i = 0; i < n; i++) {
        cand *c = &s->cands[i];
        s->k->exp_weights(s->x + c->id, 1, s->max, s->inv_temp, &c->w);
        if (c->w < s->p->min_p) c->w = 0;
        total += (double)c->w;
    }
    if (s->p->top_p < 1) n = select_mass(s->cands, n, (double)s->p->top_p * total);
    return walk_cands(s, n);
}

/* Returns whether the n best ids hold the share top_p of the total. If so, *id is chosen among
 * them. */
static bool pick_top_p(sampler *s, uint32_t n, double total, uint32_t *id)
{
    double mass = 0;
    gather_best(s, n);
    for (uint32_t i = 0; i < n; i++) {
        s->cands[i].w = s->w[s->cands[i].id];
        mass += (double)s->cands[i].w;
    }
    if (mass < (double)s->p->top_p * total) return false;
    n = select_mass(s->cands, n, (double)s->p->top_p * total);
    *id = walk_cands(s, n);
    return true;
}

/* Chooses among the ids whose weight could belong to the mass of top_p. Without top_k, ids that
 * weigh less than (1 - top_p) / vocab of the total are skipped. All of them together are too
 * light to matter. */
static uint32_t pick_many(sampler *s, uint32_t n_best, double total)
{
    const bool all = n_best >= s->vocab;
    const double share = 0.999 * (1 - (double)s->p->top_p) / s->vocab;
    const float floor = all && share > 0 ? (float)(share * total) : 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->vocab; i++) { /* no branch: nobody could predict it */
        s->cands[n] = (cand){order_of(s->x[i]), i, s->w[i]};
        n += s->w[i] > floor;
    }
    if (n_best < n) {
        select_count(s->cands, n, n_best);
        n = n_best;
    }
    if (s->p->top_p < 1) {
        if (!all) total = 0;
        for (uint32_t i = 0; i < n && !all; i++)
            total += (double)s->cands[i].w;
        n = select_mass(s->cands, n, (double)s->p->top_p * total);
    }
    memset(s->w, 0, s->vocab * sizeof *s->w);
    for (uint32_t i = 0; i < n; i++)
        s->w[s->cands[i].id] = s->cands[i].w;
    return walk(s, s->w, s->vocab, sum_blocks(s, s->w, s->vocab), false);
}

uint32_t rose_sampler_pick(const rose_cpu_kernels *k, const float *logits, uint32_t vocab,
                           const rose_sampling *p, uint32_t position, void *scratch)
{
    sampler s = {.k = k, .x = logits, .vocab = vocab, .p = p};
    uint32_t best;

    s.max = k->max_index(logits, vocab, &best);
    if (s.max == -INFINITY) return ROSE_TOKEN_NONE;
    s.inv_temp =
        1.0f / p->temperature; /* infinite for 0, and for a T so small that FTZ makes it 0 */
    if (!isfinite(s.inv_temp) || !isfinite(s.max)) return best;
    s.u = rose_philox_uniform(p->seed, position, 0);
    place(&s, scratch);

    const bool by_count = p->top_k > 0 && p->top_k < vocab;
    const uint32_t few = s.n_maxima / 2; /* with a larger top_k, most blocks would be searched
                                          * anyway */
    if (by_count && p->top_k <= few) return pick_top_k(&s, p->top_k);
    if (!by_count && p->top_p >= 1) return walk(&s, s.w, vocab, weigh_row(&s, NULL), true);
    const double total = weigh_row(&s, s.w);
    if (!by_count && few > 0) {
        uint32_t id;
        if (pick_top_p(&s, few < FEW ? few : FEW, total, &id)) return id;
    }
    return pick_many(&s, by_count ? p->top_k : vocab, total);
}

/* ---- reports ---- */

/* Natural logarithm of x >= 1, within 2 ulp of double. It follows the definition in
 * docs/NUMERICS.md instead of libm, whose last bits differ between machines. */
static double log_of(double x)
{
    int e;
    double m = frexp(x, &e), sum = 0;
    if (m < 0.70710678118654752440) {
        m *= 2;
        e--;
    }
    const double t = (m - 1) / (m + 1), t2 = t * t;
    for (int k = 21; k >= 3; k -= 2)
        sum = (sum + 1.0 / k) * t2;
    return (double)e * 0.69314718055994530942 + 2 * (t + t * sum);
}

/* 1 + the number of logits above x. */
static uint32_t rank_of(const sampler *s, float x)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < s->vocab; i++)
        n += s->x[i] > x;
    return n;
}

/* Puts the n best ids by rank into cands[0..n), in order; n <= vocab. */
static void best_in_order(sampler *s, uint32_t n)
{
    if (n <= s->n_maxima / 2) {
        gather_best(s, n);
    } else { /* a small vocabulary */
        for (uint32_t i = 0; i < s->vocab; i++)
            s->cands[i] = (cand){.ord = order_of(s->x[i]), .id = i};
        select_count(s->cands, s->vocab, n);
    }
    heap_sort(s->cands, n, by_rank);
}

/* Fills in the n_top best alternatives of the report, from report[1] on; the chosen id goes to
 * report[0] later. Returns the maximum plus the log of the sum of exponentials. */
static double report_best(sampler *s, const rose_output_rules *rules)
{
    const uint32_t n = rules->n_top;
    s->k->exp_sums(s->x, s->vocab, s->max, 1.0f, 0, NULL, s->sums);
    const double norm = isfinite(s->max) ? (double)s->max + log_of(add_sums(s)) : (double)NAN;
    if (n > 0) best_in_order(s, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = s->cands[i].id;
        rules->report[1 + i] =
            (rose_logprob){.id = id, .rank = i + 1, .logprob = (float)((double)s->x[id] - norm)};
    }
    return norm;
}

/* ---- rules ---- */

static void penalise(const rose_output_rules *r, float *y)
{
    for (uint32_t i = 0; i < r->n_seen; i++) {
        float x = y[r->seen_ids[i]];
        x = x > 0 ? x / r->repetition : x * r->repetition;
        if (r->seen_counts[i] > 0) {
            float by = r->frequency * (float)r->seen_counts[i];
            x = x - by;
            x = x - r->presence;
        }
        y[r->seen_ids[i]] = x;
    }
}

/* -inf for each id whose bit is 0. Most words of a mask are all ones or all zeros. */
static void forbid(const uint32_t *mask, uint32_t vocab, float *y)
{
    for (uint32_t first = 0; first < vocab; first += 32) {
        const uint32_t bits = mask[first / 32], n = vocab - first < 32 ? vocab - first : 32;
        if (bits == UINT32_MAX) continue;
        for (uint32_t i = 0; i < n; i++)
            y[first + i] = (bits >> i & 1) != 0 ? y[first + i] : -INFINITY;
    }
}

/* y = x under the rules. */
static void change_logits(const float *x, uint32_t vocab, const rose_output_rules *r, float *y)
{
    if (r->n_allowed > 0) {
        for (uint32_t i = 0; i < vocab; i++)
            y[i] = -INFINITY;
        for (uint32_t i = 0; i < r->n_allowed; i++)
            y[r->allowed[i]] = x[r->allowed[i]];
    } else {
        memcpy(y, x, vocab * sizeof *y);
    }
    if (r->mask != NULL) forbid(r->mask, vocab, y);
    for (uint32_t i = 0; i < r->n_banned; i++)
        y[r->banned[i]] = -INFINITY;
    for (uint32_t i = 0; i < r->n_bias; i++)
        y[r->bias_ids[i]] += r->bias[i];
    penalise(r, y);
}

uint32_t rose_sampler_run(const rose_cpu_kernels *k, const float *logits, uint32_t vocab,
                          const rose_sampling *p, const rose_output_rules *rules, uint32_t position,
                          void *scratch)
{
    sampler s = {.k = k, .x = logits, .vocab = vocab, .p = p};
    uint32_t id = rules->score_id, unused;
    double norm = 0;

    place(&s, scratch);
    if (rules->report != NULL) {
        s.max = k->max_index(logits, vocab, &unused);
        norm = report_best(&s, rules);
    }
    if (id == ROSE_TOKEN_NONE) {
        /* pick leaves s.row alone */
        if (rose_rules_change(rules)) change_logits(logits, vocab, rules, s.row);
        id = rose_sampler_pick(k, rose_rules_change(rules) ? s.row : logits, vocab, p, position,
                               scratch);
    }
    if (rules->report != NULL) {
        float x = id < vocab ? logits[id] : -INFINITY;
        rules->report[0] =
            (rose_logprob){.id = id, .rank = rank_of(&s, x), .logprob = (float)((double)x - norm)};
    }
    return id;
}
