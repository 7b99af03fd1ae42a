/* sched/cost.c - see cost.h. */
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

/* Solves m w = v by elimination; m is positive definite, so no pivot is needed. Coefficients
 * named in `off` become 0. */
static void solve(double m[N][N], double *v, const int *off, double *w)
{
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++)
            if (off[i] || off[j]) m[i][j] = i == j;
        if (off[i]) v[i] = 0;
    }
    for (int k = 0; k < N; k++) {
        for (int i = k + 1; i < N; i++) {
            double f = m[i][k] / m[k][k];
            for (int j = k; j < N; j++)
                m[i][j] -= f * m[k][j];
            v[i] -= f * v[k];
        }
    }
    for (int k = N - 1; k >= 0; k--) {
        w[k] = v[k];
        for (int j = k + 1; j < N; j++)
            w[k] -= m[k][j] * w[j];
        w[k] /= m[k][k];
    }
}

static void estimate(rose_sched_cost *c)
{
    int off[N] = {0};
    double w[N];
    for (int round = 0; round < N; round++) {
        double m[N][N], v[N];
        int worst = -1;
        memcpy(m, c->xx, sizeof m);
        for (int i = 0; i < N; i++) {
            m[i][i] += HOLD * c->peak[i];
            v[i] = c->xy[i] + HOLD * c->peak[i] * c->w[i];
        }
        solve(m, v, off, w);
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
