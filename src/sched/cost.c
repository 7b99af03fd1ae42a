/* sched/cost.c - see cost.h. The method is recursive least squares with forgetting: sums of x x'
 * and x y in which every observation fades by KEEP (textbooks: exponentially weighted RLS). Solving
 * the normal equations with HOLD times the last estimate added is ridge regression towards it, and
 * leaving out the most negative coefficient until none is negative is an active set method for
 * non-negative least squares (Lawson and Hanson, 1974, for three terms). */
#include "sched/cost.h"

#include <string.h>

#define N ROSE_COST_TERMS

static const double KEEP = 1.0 - 1.0 / 64; /* of what was there, at each observation */
static const double HOLD = 1e-3;           /* pull towards the last estimate */
static const double PEAK_KEEP = 1.0 - 1.0 / 4096;
static const double PEAK_LEAST = 1e-9; /* of the first term's */
static const double SPREAD_GAIN = 1.0 / 32;
static const double DRAG_KEEP = 1.0 - 1.0 / 256;
static const double DRAG_MAX = 16;

/* The three terms of the cost model, scaled so that they are of similar size for typical steps. */
static void terms(double *x, uint32_t n_decode, uint32_t n_prefill)
{
    x[0] = 1;
    x[1] = n_decode / 32.0;
    x[2] = n_prefill / 256.0;
}

/* Solves left w = right by elimination; left is positive definite, so no pivot is needed.
 * Coefficients named in `off` become 0. */
static void solve(double left[N][N], double *right, const int *off, double *w)
{
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++)
            if (off[i] || off[j]) left[i][j] = i == j;
        if (off[i]) right[i] = 0;
    }
    for (int k = 0; k < N; k++) {
        for (int i = k + 1; i < N; i++) {
            double f = left[i][k] / left[k][k];
            for (int j = k; j < N; j++)
                left[i][j] -= f * left[k][j];
            right[i] -= f * right[k];
        }
    }
    for (int k = N - 1; k >= 0; k--) {
        w[k] = right[k];
        for (int j = k + 1; j < N; j++)
            w[k] -= left[k][j] * w[j];
        w[k] /= left[k][k];
    }
}

static void estimate(rose_sched_cost *c)
{
    int off[N] = {0};
    double w[N];
    for (int round = 0; round < N; round++) {
        double left[N][N], right[N];
        int worst = -1;
        memcpy(left, c->xx, sizeof left);
        for (int i = 0; i < N; i++) {
            left[i][i] += HOLD * c->peak[i];
            right[i] = c->xy[i] + HOLD * c->peak[i] * c->w[i];
        }
        solve(left, right, off, w);
        for (int i = 0; i < N; i++)
            if (w[i] < 0 && (worst < 0 || w[i] < w[worst])) worst = i;
        if (worst < 0) break;
        off[worst] = 1;
        w[worst] = 0;
    }
    for (int i = 0; i < N; i++)
        c->w[i] = w[i] > 0 ? w[i] : 0;
}

void rose_sched_cost_observe(rose_sched_cost *c, uint32_t n_decode, uint32_t n_prefill, uint64_t ns)
{
    double x[N], y = ns > 0 ? (double)ns : 1, expected = rose_sched_cost_ns(c, n_decode, n_prefill);
    terms(x, n_decode, n_prefill);
    if (c->n > 0 && expected > 0) {
        double error = y > expected ? y / expected - 1 : 1 - y / expected;
        c->spread += ((error < 1 ? error : 1) - c->spread) * SPREAD_GAIN;
    }
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++)
            c->xx[i][j] = KEEP * c->xx[i][j] + x[i] * x[j] / y;
        c->xy[i] = KEEP * c->xy[i] + x[i];
        c->peak[i] *= PEAK_KEEP;
        if (c->peak[i] < c->xx[i][i]) c->peak[i] = c->xx[i][i];
        if (c->peak[i] < PEAK_LEAST * c->peak[0]) c->peak[i] = PEAK_LEAST * c->peak[0];
    }
    c->n++;
    estimate(c);
    c->took_ns = DRAG_KEEP * c->took_ns + y;
    c->expected_ns = DRAG_KEEP * c->expected_ns + rose_sched_cost_ns(c, n_decode, n_prefill);
}

double rose_sched_cost_drag(const rose_sched_cost *c)
{
    if (!(c->took_ns > c->expected_ns)) return 1;
    return c->took_ns < DRAG_MAX * c->expected_ns ? c->took_ns / c->expected_ns : DRAG_MAX;
}

double rose_sched_cost_ns(const rose_sched_cost *c, uint32_t n_decode, uint32_t n_prefill)
{
    double x[N], ns = 0;
    terms(x, n_decode, n_prefill);
    for (int i = 0; i < N; i++)
        ns += x[i] * c->w[i];
    return ns;
}

double rose_sched_cost_least_chance(const rose_sched_cost *c, uint32_t n_decode)
{
    const double ns = rose_sched_cost_ns(c, n_decode, 0), row = c->w[1] / 32;
    return ns > 0 ? row * n_decode / ns : 0;
}

/* Returns how many rows, each costing `each` ns, fit between ns and the goal. */
static uint32_t fit(const rose_sched_cost *c, double ns, double each, uint64_t goal_ns,
                    uint32_t most)
{
    double left = (double)goal_ns / (1 + 2 * c->spread) - ns;
    if (c->n == 0) return most;
    if (left < 0) return 0;
    if (!(each > 0) || left / each >= most) return most;
    return (uint32_t)(left / each);
}

uint32_t rose_sched_cost_prefill(const rose_sched_cost *c, uint32_t n_decode, uint64_t goal_ns,
                                 uint32_t most)
{
    return fit(c, rose_sched_cost_ns(c, n_decode, 0), c->w[2] / 256, goal_ns, most);
}

uint32_t rose_sched_cost_decodes(const rose_sched_cost *c, uint32_t n_prefill, uint64_t goal_ns,
                                 uint32_t most)
{
    return fit(c, rose_sched_cost_ns(c, 0, n_prefill), c->w[1] / 32, goal_ns, most);
}
