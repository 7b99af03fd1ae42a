/* bench/load_trace_gen.c - generates the built-in workload, and cuts lengths to a context. */
#include <math.h>
#include <stdlib.h>

#include "bench/load_trace.h"
#include "bench/stats.h"

enum { MAX_LENGTH = 1 << 20 };

static uint32_t length(rose_random *r, double median, double sigma)
{
    double v = median * exp(sigma * rose_random_normal(r));
    if (!(v >= 1)) return 1;
    return v > MAX_LENGTH ? MAX_LENGTH : (uint32_t)(v + 0.5);
}

/* Requests per second just before request i + 1 of n, ramped as vllm bench serve does it. */
static double rate_at(const rose_load_trace_gen *g, uint32_t i, uint32_t n)
{
    if (!(g->end_rate > 0)) return g->rate;
    const double progress = n > 1 ? (double)i / (n - 1) : 0;
    return g->exponential ? g->rate * pow(g->end_rate / g->rate, progress)
                          : g->rate + (g->end_rate - g->rate) * progress;
}

void rose_load_trace_retime(rose_load_trace *t, const rose_load_trace_gen *g)
{
    rose_random arrivals = {g->seed, 1, 0};
    double at = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        t->rows[i].at_s = at;
        double gap = g->burstiness == 1.0
                         ? rose_random_exp(&arrivals)
                         : rose_random_gamma(&arrivals, g->burstiness) / g->burstiness;
        at += gap / rate_at(g, i, t->n);
    }
}

rose_status rose_load_trace_generate(rose_load_trace *out, const rose_load_trace_gen *g,
                                     rose_err *err)
{
    rose_random in = {g->seed, 2, 0}, n_out = {g->seed, 3, 0};

    *out = (rose_load_trace){.format = "generated"};
    if (g->n == 0 || !(g->rate > 0) || !(g->burstiness > 0))
        return rose_fail(err, ROSE_E_INVAL, "a generated trace needs requests, a rate and a shape");
    out->rows = calloc(g->n, sizeof *out->rows);
    if (out->rows == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    out->n = g->n;
    for (uint32_t i = 0; i < g->n; i++) {
        out->rows[i].n_in = length(&in, g->in_median, g->in_sigma);
        out->rows[i].n_out = length(&n_out, g->out_median, g->out_sigma);
    }
    rose_load_trace_retime(out, g);
    return ROSE_OK;
}

uint32_t rose_load_trace_clamp(rose_load_trace *t, uint32_t context, uint32_t max_in,
                               uint32_t max_out)
{
    uint32_t changed = 0, room = context - 1;
    for (uint32_t i = 0; i < t->n; i++) {
        rose_load_trace_row *r = &t->rows[i];
        const uint32_t in = r->n_in, out = r->n_out;
        if (max_out != 0 && r->n_out > max_out) r->n_out = max_out;
        if (r->n_out > room - 1) r->n_out = room - 1;
        if (max_in != 0 && r->n_in > max_in) r->n_in = max_in;
        if (r->n_in > room - r->n_out) r->n_in = room - r->n_out;
        changed += r->n_in != in || r->n_out != out;
    }
    return changed;
}
