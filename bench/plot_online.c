/* bench/plot_online.c - draws latency over load, and distributions. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bench/plot_internal.h"
#include "bench/stats.h"

enum { N_METRICS = 4 };

static const struct metric {
    const char *key, *request_key, *title, *file;
} metrics[N_METRICS] = {
    {"ttft_ms", "ttft_s", "TTFT", "ttft"},
    {"tpot_ms", "tpot_s", "TPOT", "tpot"},
    {"itl_ms", NULL, "ITL", "itl"},
    {"e2e_ms", "e2e_s", "E2E", "e2e"},
};

static bool is_point(const rose_json *row, bool concurrency)
{
    const int64_t c = rose_json_int(rose_json_get(row, "concurrency"));
    if (rose_json_int(rose_json_get(row, "num_success")) < 1) return false;
    if (concurrency) return c > 0;
    return c == 0 && rose_json_is_number(rose_json_get(row, "scale"));
}

static bool is_search(const rose_json *row)
{
    return rose_json_is_true(rose_json_get(row, "goodput_search"));
}

static double load_of(const rose_json *row, bool concurrency)
{
    return rose_json_number_value(rose_json_get(row, concurrency ? "concurrency" : "scale"));
}

/* What stands on the x axis. The load grows to the right. */
typedef enum axis {
    REQUESTS, /* of a closed loop: how many are under way */
    RATE,     /* of an open loop: offered requests a second */
    SCALE     /* of an open loop whose rates are not all known, such as all requests at once */
} axis;

static axis axis_of(const rose_json *online, bool concurrency)
{
    size_t i;
    const rose_json *row;
    rose_json_each_item (rose_json_get(online, "summaries"), i, row) {
        if (is_point(row, false) && !concurrency &&
            !(rose_json_number_value(rose_json_get(row, "offered_rps")) > 0))
            return SCALE;
    }
    return concurrency ? REQUESTS : RATE;
}

static double x_of(const rose_json *row, axis x)
{
    static const char *const keys[] = {"concurrency", "offered_rps", "scale"};
    return rose_json_number_value(rose_json_get(row, keys[x]));
}

static rose_plot_backends collect(const rose_json *online, bool concurrency)
{
    size_t i;
    const rose_json *row;
    rose_plot_backends b = {.n = 0};
    rose_json_each_item (rose_json_get(online, "summaries"), i, row) {
        const rose_json *key = rose_json_get(row, "backend");
        if (is_point(row, concurrency) && rose_json_is_string(key)) rose_plot_add_backend(&b, key);
    }
    return b;
}

static const char *const percentiles[] = {"p50", "p90", "p99"};
enum { N_PERCENTILES = 3 };

typedef struct range {
    bool any;  /* whether a point has a value; replies of one token have no TPOT and no ITL */
    bool wide; /* the values of this metric differ so much that a linear axis would show only the
                * largest */
} range;

/* What the pictures of latency over one kind of load need. */
typedef struct latency {
    const rose_json *online;
    axis x;
    rose_plot_backends b;
    range r[N_METRICS];
    const char *prefix; /* of the names of the gnuplot blocks */
} latency;

typedef struct point {
    double load;
    const rose_json *row;
} point;

static int by_load(const void *a, const void *b)
{
    const point *x = a, *y = b;
    return (x->load > y->load) - (x->load < y->load);
}

/* Writes the gnuplot block of a metric and backend k with rows: load p50 p90 p99, in ascending
 * order of load. */
static void write_points(FILE *gp, const latency *l, int metric, int k)
{
    const rose_json *list = rose_json_get(l->online, "summaries"), *row;
    size_t i, n = 0;
    point *p = calloc(rose_json_count(list) + 1, sizeof *p);
    fprintf(gp, "$%s%s_%d << EOD\n", l->prefix, metrics[metric].file, k);
    rose_json_each_item (list, i, row) {
        if (p != NULL && is_point(row, l->x == REQUESTS) &&
            rose_json_equal(rose_json_get(row, "backend"), l->b.key[k]))
            p[n++] = (point){x_of(row, l->x), row};
    }
    if (p != NULL) qsort(p, n, sizeof *p, by_load);
    for (i = 0; i < n; i++) {
        const rose_json *m = rose_json_get(p[i].row, metrics[metric].key);
        fprintf(gp, "%.9g", p[i].load);
        for (int q = 0; q < N_PERCENTILES; q++) {
            const rose_json *v = rose_json_get(m, percentiles[q]);
            const bool known = rose_json_is_number(v);
            fprintf(gp, " %.9g", known ? rose_json_number_value(v) : (double)NAN);
        }
        fputc('\n', gp);
    }
    fputs("EOD\n", gp);
    free(p);
}

/* Puts ticks only at the measured loads. Two loads whose labels would overlap share the label of
 * the first; a goodput search often measures two loads close together. */
static void write_xtics(FILE *gp, const rose_json *online, axis x)
{
    rose_samples s = {0};
    size_t i;
    const rose_json *row;
    rose_json_each_item (rose_json_get(online, "summaries"), i, row) {
        if (is_point(row, x == REQUESTS) && rose_samples_add(&s, x_of(row, x)) != ROSE_OK) break;
    }
    rose_sort_f64(s.v, s.n);
    const bool spread = s.n > 0 && s.v[0] > 0 && s.v[s.n - 1] > s.v[0];
    fprintf(gp, "%s\nset xtics (", spread ? "set logscale x" : "unset logscale x");
    const double least = 0.09; /* least distance of two labels, as a share of the axis */
    double named = 0;
    for (i = 0; i < s.n; i++) {
        if (i > 0 && s.v[i] <= s.v[i - 1]) continue;
        const double part = spread ? log(s.v[i] / named) / log(s.v[s.n - 1] / s.v[0])
                                   : (s.v[i] - named) / (s.v[s.n - 1] - s.v[0]);
        const bool name = i == 0 || part >= least;
        if (name) named = s.v[i];
        fprintf(gp, i > 0 ? ", '" : "'");
        if (name) fprintf(gp, x == RATE ? "%.3g" : "%.4g", s.v[i]);
        fprintf(gp, "' %.9g", s.v[i]);
    }
    fputs(")\n", gp);
    if (s.n > 0) {
        const double low = spread ? s.v[0] / 1.15 : s.v[0] - 0.5;
        const double high = spread ? s.v[s.n - 1] * 1.15 : s.v[s.n - 1] + 0.5;
        fprintf(gp, "set xrange [%.9g:%.9g]\n", x == SCALE ? high : low, x == SCALE ? low : high);
    }
    rose_samples_free(&s);
}

static range range_of(const rose_json *online, bool concurrency, const struct metric *m)
{
    enum { WIDE = 50 };
    double least = HUGE_VAL, most = 0;
    range r = {0};
    size_t i;
    const rose_json *row;
    rose_json_each_item (rose_json_get(online, "summaries"), i, row) {
        if (!is_point(row, concurrency)) continue;
        for (int k = 0; k < N_PERCENTILES; k++) {
            const rose_json *v = rose_json_get(rose_json_get(row, m->key), percentiles[k]);
            if (!rose_json_is_number(v)) continue;
            r.any |= k == 1;
            least = fmin(least, rose_json_number_value(v));
            most = fmax(most, rose_json_number_value(v));
        }
    }
    r.wide = least > 0 && most > WIDE * least;
    return r;
}

/* Writes an empty panel with a note. gnuplot stops the whole script at a plot without points. */
static void write_nothing(FILE *gp, const char *title)
{
    fprintf(
        gp,
        "set ylabel ''\nset title '%s'\nset yrange [0:1]\nset label 1 'no values: needs replies "
        "of two tokens or more' at graph 0.5,0.5 center\nplot NaN notitle\nunset label 1\n",
        title);
}

/* Draws the curves of all backends for one metric. which: 0 draws the band, the line and the
 * hollow points; 90 or 99 draws only that percentile. */
static void write_plot(FILE *gp, const latency *l, int i, int which, const char *legend)
{
    const struct metric *m = &metrics[i];
    const rose_plot_backends *b = &l->b;
    const char *prefix = l->prefix;
    const bool wide = l->r[i].wide;
    fprintf(gp, "set ylabel '%s%s (ms%s)'\nset title \"%s%s\"\n%s\nplot ", m->title,
            which == 0    ? ""
            : which == 90 ? " p90"
                          : " p99",
            wide ? ", logarithmic" : "", m->title, legend,
            wide ? "set logscale y\nset yrange [*:*]" : "set yrange [0:*]");
    for (int k = 0; k < b->n; k++) {
        const char *block = m->file;
        if (k > 0) fputs(", \\\n  ", gp);
        if (which == 0)
            fprintf(gp,
                    "$%s%s_%d using 1:2:3 with filledcurves lt %d notitle, \\\n"
                    "  $%s%s_%d using 1:3 with linespoints lt %d ps 0.9 title '%s', \\\n"
                    "  $%s%s_%d using 1:4 with points lt %d lw 1.5 pt 6 ps 1.3 notitle",
                    prefix, block, k, k + 1, prefix, block, k, k + 1, b->label[k], prefix, block, k,
                    k + 1);
        else
            fprintf(gp, "$%s%s_%d using 1:%d with linespoints lt %d ps 0.9 title '%s'", prefix,
                    block, k, which == 90 ? 3 : 4, k + 1, b->label[k]);
    }
    fputs(wide ? "\nunset logscale y\n" : "\n", gp);
}

static void write_axis(FILE *gp, const latency *l)
{
    static const char *const axes[] = {"requests under way", "offered load (requests/s)",
                                       "scale of the trace times (load grows to the right)"};
    write_xtics(gp, l->online, l->x);
    fprintf(gp, "set xlabel '%s'\n", axes[l->x]);
}

/* ---- four panels ---- */

enum {
    PANELS_PX = 1280,
    PANELS_HEIGHT_PX = 944,
    KEY_ROW_PX = 24,
    KEY_TOP_PX = 70,
    KEY_GAP_PX = 46
};

static int key_px(const rose_plot_backends *b, int k)
{
    return (int)strlen(b->label[k]) * 8 + KEY_GAP_PX;
}

/* Returns how many backends, beginning with `from`, fit into one row of the key. *px is the width
 * of that row. */
static int key_row(const rose_plot_backends *b, int from, int *px)
{
    int n = 0;
    for (*px = 0; from + n < b->n; n++) {
        const int more = key_px(b, from + n);
        if (n > 0 && *px + more > PANELS_PX - 40) break;
        *px += more;
    }
    return n;
}

/* Writes one key for all four panels, between title and panels, in as many rows as the names need;
 * the picture grows with it. gnuplot's own key would take its width from the first panel and
 * overlap the title. The key is made of labels 101 and up, which write_key_end removes. */
static void write_panels_start(FILE *gp, const rose_plot_backends *b, const char *name,
                               const char *title)
{
    int rows = 0, px;
    for (int k = 0; k < b->n; k += key_row(b, k, &px))
        rows++;
    const int height = PANELS_HEIGHT_PX + KEY_ROW_PX * (rows - 1);
    rose_plot_begin(gp, name, PANELS_PX, height);
    fprintf(gp,
            "set multiplot layout 2,2 title \"%s\" margins 0.07,0.98,%.4f,%.4f spacing 0.08,%.4f\n"
            "unset key\n",
            title, 64.0 / height, 1 - (119.0 + KEY_ROW_PX * rows) / height, 129.0 / height);
    int y = KEY_TOP_PX;
    for (int k = 0, n; k < b->n; k += n, y += KEY_ROW_PX) {
        n = key_row(b, k, &px);
        int x = (PANELS_PX - px) / 2 + 20;
        for (int i = k; i < k + n; i++) {
            fprintf(gp,
                    "set label %d '%s' at screen %.4f,%.4f left point lt %d ps 1.4 offset 1,0\n",
                    101 + i, b->label[i], (double)x / PANELS_PX, 1 - (double)y / height, i + 1);
            x += key_px(b, i);
        }
    }
}

/* Removes the key after the first panel; otherwise every panel would draw it again. */
static void write_key_end(FILE *gp, const rose_plot_backends *b)
{
    for (int k = 0; k < b->n; k++)
        fprintf(gp, "unset label %d\n", 101 + k);
}

static void write_overview(FILE *gp, const latency *l, const char *name, int which,
                           const char *title)
{
    write_panels_start(gp, &l->b, name, title);
    write_axis(gp, l);
    for (int i = 0; i < N_METRICS; i++) {
        if (l->r[i].any)
            write_plot(gp, l, i, which, "");
        else
            write_nothing(gp, metrics[i].title);
        if (i == 0) write_key_end(gp, &l->b);
    }
    fputs("unset multiplot\n", gp);
    rose_plot_end(gp);
}

/* Returns a copy of the results without the runs of a goodput search, which measure one scale a
 * second time. It keeps them for a backend that has no other run in an open loop. NULL: out of
 * memory. */
static rose_json *without_search(const rose_json *online)
{
    const rose_json *all = rose_json_get(online, "summaries");
    rose_json *drawn = rose_json_copy(online), *rows = rose_json_array(), *row;
    size_t i, j;
    rose_json_each_item (all, i, row) {
        bool drop = false;
        for (j = 0; is_search(row) && j < rose_json_count(all) && !drop; j++) {
            const rose_json *other = rose_json_at(all, j);
            drop = is_point(other, false) && !is_search(other) &&
                   rose_json_equal(rose_json_get(other, "backend"), rose_json_get(row, "backend"));
        }
        if (!drop) rose_json_append(rows, row);
    }
    if (rose_json_set_new(drawn, "summaries", rows) == 0) return drawn;
    rose_json_decref(drawn);
    return NULL;
}

static bool draw_latency(FILE *gp, const rose_json *online, bool concurrency)
{
    static const struct {
        const char *file, *title;
        int which;
    } overviews[] = {
        {"latency_compare", "Latency: p90 line, p50 to p90 band, hollow p99", 0},
        {"latency_p90_only", "Latency, p90", 90},
        {"latency_p99_only", "Latency, p99", 99},
    };
    latency l = {.online = online,
                 .x = axis_of(online, concurrency),
                 .b = collect(online, concurrency),
                 .prefix = concurrency ? "c" : "s"};
    char place[ROSE_PLOT_PLACE], title[ROSE_PLOT_PLACE + 80], file[80];
    const char *name = concurrency ? "online_concurrency" : "online";
    if (l.b.n == 0) return false;
    rose_plot_place(online, place);
    for (int i = 0; i < N_METRICS; i++) {
        l.r[i] = range_of(online, concurrency, &metrics[i]);
        for (int k = 0; k < l.b.n; k++)
            write_points(gp, &l, i, k);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(file, sizeof file, "%s_%s", name, overviews[i].file);
        snprintf(title, sizeof title, "%s\\n%s", overviews[i].title, place);
        write_overview(gp, &l, file, overviews[i].which, title);
    }
    snprintf(title, sizeof title, ": p90 line, p50 to p90 band, hollow p99\\n%s", place);
    for (int i = 0; i < N_METRICS; i++) {
        if (!l.r[i].any) continue;
        snprintf(file, sizeof file, "%s_%s_ms", name, metrics[i].file);
        rose_plot_begin(gp, file, 760, 520);
        write_axis(gp, &l);
        fputs("set key outside top center horizontal Left reverse maxrows 3\n", gp);
        write_plot(gp, &l, i, 0, title);
        rose_plot_end(gp);
    }
    return true;
}

/* ---- distributions ---- */

/* Collects the values of one metric over the requests of a run, in ms, sorted. */
static void collect_values(const rose_json *run, const struct metric *m, rose_samples *s)
{
    size_t i;
    const rose_json *r;
    if (m->request_key == NULL) {
        rose_json_each_item (rose_json_get(rose_json_get(run, "summary"), "itl_cdf_ms"), i, r) {
            if (rose_json_is_number(r) && rose_samples_add(s, rose_json_number_value(r)) != ROSE_OK)
                return;
        }
        return;
    }
    rose_json_each_item (rose_json_get(run, "request_metrics"), i, r) {
        const rose_json *v = rose_json_get(r, m->request_key);
        if (!rose_json_is_number(v) || rose_json_is_string(rose_json_get(r, "error"))) continue;
        if (rose_samples_add(s, rose_json_number_value(v) * 1e3) != ROSE_OK) return;
    }
    rose_sort_f64(s->v, s->n);
}

/* Finds the run of a backend at a load, or NULL. It takes a run of a goodput search only if
 * there is no other run. */
static const rose_json *find_run(const rose_json *online, const rose_json *key,
                                 const rose_json *like)
{
    size_t i;
    const rose_json *run, *of_search = NULL;
    const rose_json *b = rose_json_get(rose_json_get(online, "by_backend"), rose_json_text(key));
    rose_json_each_item (rose_json_get(b, "runs"), i, run) {
        const rose_json *s = rose_json_get(run, "summary");
        if (!rose_json_equal(rose_json_get(s, "scale"), rose_json_get(like, "scale")) ||
            !rose_json_equal(rose_json_get(s, "concurrency"), rose_json_get(like, "concurrency")))
            continue;
        if (!is_search(s)) return run;
        of_search = run;
    }
    return of_search;
}

static void write_cdf_page(FILE *gp, const rose_json *online, const rose_json *like,
                           bool concurrency, const rose_plot_backends *b)
{
    char name[80], at[64], place[ROSE_PLOT_PLACE], title[ROSE_PLOT_PLACE + 100];
    bool any[N_METRICS] = {false};
    const double load = load_of(like, concurrency);
    const double rate = rose_json_number_value(rose_json_get(like, "offered_rps"));
    for (int i = 0; i < N_METRICS; i++) {
        for (int k = 0; k < b->n; k++) {
            rose_samples s = {0};
            const rose_json *run = find_run(online, b->key[k], like);
            if (run != NULL) collect_values(run, &metrics[i], &s);
            fprintf(gp, "$cdf%d_%d << EOD\n", i, k);
            any[i] |= s.n > 0;
            if (s.n == 0) fputs("nan nan\n", gp);
            for (size_t j = 0; j < s.n; j++)
                fprintf(gp, "%.9g %.6f\n", s.v[j], s.n > 1 ? (double)j / (double)(s.n - 1) : 1.0);
            fputs("EOD\n", gp);
            rose_samples_free(&s);
        }
    }
    snprintf(name, sizeof name, "online_cdf_%s_%g", concurrency ? "concurrency" : "scale", load);
    if (concurrency)
        snprintf(at, sizeof at, "%g requests under way", load);
    else if (rate > 0)
        snprintf(at, sizeof at, "%.3g requests/s (scale %g)", rate, load);
    else
        snprintf(at, sizeof at, "scale %g", load);
    rose_plot_place(online, place);
    snprintf(title, sizeof title, "Distribution at %s\\n%s", at, place);
    write_panels_start(gp, b, name, title);
    fputs("set yrange [0:1]\n", gp);
    for (int i = 0; i < N_METRICS; i++) {
        const char *heading = metrics[i].title;
        fprintf(gp, "set xlabel '%s (ms)'\nset xrange [0:%s]\n", heading, any[i] ? "*" : "1");
        if (!any[i]) {
            write_nothing(gp, heading);
            continue;
        }
        fprintf(gp, "set ylabel 'share of all'\nset title '%s'\nplot ", heading);
        for (int k = 0; k < b->n; k++)
            fprintf(gp, "%s$cdf%d_%d using 1:2 with lines lt %d", k > 0 ? ", " : "", i, k, k + 1);
        fputc('\n', gp);
        if (i == 0) write_key_end(gp, b);
    }
    fputs("unset multiplot\n", gp);
    rose_plot_end(gp);
}

static void write_cdfs(FILE *gp, const rose_json *online, bool concurrency)
{
    size_t i, j;
    const rose_json *row, *other;
    const rose_plot_backends b = collect(online, concurrency);
    rose_json_each_item (rose_json_get(online, "summaries"), i, row) {
        bool seen = false;
        if (!is_point(row, concurrency)) continue;
        rose_json_each_item (rose_json_get(online, "summaries"), j, other) {
            if (j >= i) break;
            seen |= is_point(other, concurrency) &&
                    load_of(other, concurrency) == load_of(row, concurrency);
        }
        if (!seen) write_cdf_page(gp, online, row, concurrency, &b);
    }
}

bool rose_plot_online(FILE *gp, const rose_json *online)
{
    rose_json *drawn = without_search(online);
    bool any = drawn != NULL && draw_latency(gp, drawn, false);
    any |= drawn != NULL && draw_latency(gp, drawn, true);
    if (any) {
        write_cdfs(gp, drawn, false);
        write_cdfs(gp, drawn, true);
    }
    rose_json_decref(drawn);
    return any;
}
