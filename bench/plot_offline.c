/* bench/plot_offline.c - draws offline throughput as bars: the median of the repeats, with whiskers
 * from the least to the largest. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/plot_internal.h"
#include "bench/stats.h"

static const struct {
    const char *key, *title;
} panels[] = {
    {"request_throughput_rps", "requests/s"},
    {"output_throughput_tps", "output tokens/s"},
    {"total_throughput_tps", "input and output tokens/s"},
};

static const rose_json *backend_of(const rose_json *offline, const rose_json *row)
{
    const rose_json *own = rose_json_get(row, "backend");
    return own != NULL ? own : rose_json_get(rose_json_get(offline, "meta"), "backend");
}

static void add_value(rose_samples *s, const rose_json *o, const char *metric)
{
    const rose_json *v = rose_json_get(o, metric);
    if (rose_json_is_number(v) && rose_json_number_value(v) > 0)
        rose_samples_add(s, rose_json_number_value(v)); /* out of memory: this value is left out */
}

/* Returns the largest value of the bar, or 0 if it has none. */
static double write_bar(FILE *gp, const rose_json *offline, const rose_json *key,
                        const char *metric, int y)
{
    size_t i;
    const rose_json *row;
    rose_samples s = {0};
    rose_json_each_item (rose_json_get(offline, "results"), i, row) {
        if (!rose_json_equal(backend_of(offline, row), key)) continue;
        const rose_json *repeats = rose_json_get(row, "repeats"), *repeat;
        size_t k;
        if (rose_json_count(repeats) == 0) add_value(&s, row, metric);
        rose_json_each_item (repeats, k, repeat)
            add_value(&s, repeat, metric);
    }
    const rose_summary m = rose_summarise(s.v, s.n);
    if (s.n > 0) fprintf(gp, "%d %.9g %.9g %.9g\n", y, m.p50, m.min, m.max);
    rose_samples_free(&s);
    return m.n > 0 ? m.max : 0;
}

/* The smallest number of the form 1, 2 or 5 times a power of ten that is at least x. */
static double nice_step(double x)
{
    const double p = pow(10, floor(log10(x)));
    return x <= p ? p : x <= 2 * p ? 2 * p : x <= 5 * p ? 5 * p : 10 * p;
}

/* Pixels left of the first panel, where the full names of the backends stand. */
static int left_of_panels(const rose_plot_backends *b)
{
    enum { LEAST = 166, CHARACTER = 8, GAP = 28 };
    int px = LEAST;
    for (int k = 0; k < b->n; k++) {
        const int need = (int)strlen(b->label[k]) * CHARACTER + GAP;
        if (need > px) px = need;
    }
    return px;
}

bool rose_plot_offline(FILE *gp, const rose_json *offline)
{
    const rose_json *row;
    rose_plot_backends b = {.n = 0};
    char place[ROSE_PLOT_PLACE];
    size_t i;
    double most[3] = {0};
    rose_json_each_item (rose_json_get(offline, "results"), i, row) {
        const rose_json *key = backend_of(offline, row);
        const rose_json *tps = rose_json_get(row, "output_throughput_tps");
        if (key != NULL && rose_json_is_number(tps) && rose_json_number_value(tps) > 0)
            rose_plot_add_backend(&b, key);
    }
    const int n = b.n;
    if (n == 0) return false;
    for (int p = 0; p < 3; p++) {
        fprintf(gp, "$off%d << EOD\n", p);
        for (int k = 0; k < n; k++)
            most[p] = fmax(most[p], write_bar(gp, offline, b.key[k], panels[p].key, n - 1 - k));
        fputs("EOD\n", gp);
    }
    const int left = left_of_panels(&b), width = 1114 + left, height = 262 + 46 * n;
    rose_plot_begin(gp, "offline_throughput_compare", width, height);
    fputs("set style fill solid 0.85 noborder\nunset key\nunset ylabel\nset grid xtics noytics\n",
          gp);
    rose_plot_place(offline, place);
    fprintf(gp,
            "set multiplot layout 1,3 title \"Offline throughput: median, whiskers to least and "
            "most\\n%s\" ",
            place);
    fprintf(gp, "margins %.4f,%.4f,%.3f,%.3f spacing 0.03,0.1\n", (double)left / width,
            1 - 26.0 / width, 80.0 / height, 1 - 72.0 / height);
    fprintf(gp, "set yrange [-0.6:%g]\nset xrange [0:*]\n", n - 0.4);
    for (int p = 0; p < 3; p++) {
        fputs("set ytics (", gp);
        for (int k = 0; k < n; k++) {
            fprintf(gp, "%s'%s' %d", k > 0 ? ", " : "", p == 0 ? b.label[k] : "", n - 1 - k);
        }
        fprintf(gp,
                ")\nset title ''\nset xlabel '%s'\nset xrange [0:%.9g]\nset xtics %.9g\n"
                "set format x '%s'\n"
                "plot $off%d using ($2/2):1:($2/2):(0.32):(%d-$1) with boxxyerror lc variable, "
                "$off%d using 2:1:3:4 with xerrorbars lc rgb '#333333' lw 1 pt -1, "
                "$off%d using 4:1:(sprintf($2 >= 100 ? '  %%.0f' : '  %%.3g', $2)) with labels "
                "left font ',10'\n",
                panels[p].title, most[p] * 1.3, nice_step(most[p] / 4),
                most[p] >= 1e5 ? "%.0f" : "%g", p, n, p, p);
    }
    fputs("unset multiplot\n", gp);
    rose_plot_end(gp);
    return true;
}
