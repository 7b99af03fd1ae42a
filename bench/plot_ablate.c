/* bench/plot_ablate.c - draws what each switch is worth: the ratio off / on of every metric, with
 * the least and the largest ratio of its pairs. */
#include <math.h>

#include "bench/plot_internal.h"

static const struct {
    const char *key, *title;
} metrics[] = {
    {"online_ttft_p50_s", "TTFT p50"},        {"online_ttft_p99_s", "TTFT p99"},
    {"online_tpot_p50_s", "TPOT p50"},        {"online_itl_p99_s", "ITL p99"},
    {"online_e2e_p50_s", "E2E p50"},          {"online_e2e_p99_s", "E2E p99"},
    {"online_s_per_token", "time per token"}, {"offline_s_per_token", "offline time per token"},
};
enum { N_METRICS = sizeof metrics / sizeof *metrics, ROW_PX = 24, HEAD_PX = 152 };

static double number(const rose_json *o, const char *key)
{
    return rose_json_number_value(rose_json_get(o, key));
}

/* The entry of a metric, or NULL if it was not measured. */
static const rose_json *metric_of(const rose_json *sw, int m)
{
    const rose_json *o = rose_json_get(sw, metrics[m].key);
    return number(o, "min") > 0 && number(o, "off_over_on") > 0 && number(o, "max") > 0 ? o : NULL;
}

/* Writes the gnuplot block $ablate with rows: row ratio min max changed "metric" "heading". Each
 * switch begins with a row that holds only its heading. Returns the number of rows, and widens lo
 * and hi to include all values. */
static int write_rows(FILE *gp, rose_json *switches, double *lo, double *hi)
{
    const char *name;
    rose_json *sw;
    int y = 0;
    fputs("$ablate << EOD\n", gp);
    rose_json_each (switches, name, sw) {
        const rose_json *setting = rose_json_get(sw, "setting");
        char on[80], off[80], load[80];
        if (setting == NULL) continue; /* this switch could not be measured */
        rose_plot_label(rose_json_get(setting, "on"), on, sizeof on);
        rose_plot_label(rose_json_get(setting, "off"), off, sizeof off);
        rose_plot_label(rose_json_get(setting, "workload"), load, sizeof load);
        fprintf(gp, "%d nan nan nan 0 \"\" \"on: %s    off: %s    (%s)\"\n", -y++, on, off, load);
        for (int m = 0; m < N_METRICS; m++) {
            const rose_json *o = metric_of(sw, m);
            if (o == NULL) continue;
            const double min = number(o, "min"), max = number(o, "max");
            fprintf(gp, "%d %.9g %.9g %.9g %d \"%s\" \"\"\n", -y++, number(o, "off_over_on"), min,
                    max, rose_json_is_true(rose_json_get(o, "changed")), metrics[m].title);
            *lo = fmin(*lo, min);
            *hi = fmax(*hi, max);
        }
    }
    fputs("EOD\n", gp);
    return y;
}

/* Ticks at round ratios; a narrow axis gets finer ones as well. */
static void write_ratios(FILE *gp, double lo, double hi)
{
    static const double coarse[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100};
    static const double fine[] = {0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5, 1.75, 2.5, 3, 4};
    enum { N = sizeof coarse / sizeof *coarse, N_FINE = sizeof fine / sizeof *fine };
    fputs("set logscale x\nset xtics (", gp);
    for (int i = 0; i < N; i++)
        fprintf(gp, "%s'%g' %g", i > 0 ? ", " : "", coarse[i], coarse[i]);
    for (int i = 0; i < N_FINE; i++) {
        if (hi / lo < 8 || (hi / lo < 20 && (fine[i] == 0.7 || fine[i] == 1.5 || fine[i] == 3)))
            fprintf(gp, ", '%g' %g", fine[i], fine[i]);
    }
    fprintf(gp, ")\nset xrange [%.9g:%.9g]\n", lo, hi);
}

static const char drawing[] =
    "paint(r, c) = c == 0 ? 0x777777 : r > 1 ? 0x2b9348 : 0xb5263a\n"
    "plot $ablate using 2:1:3:4:(paint($2, $5)):yticlabels(6) with xerrorbars lc rgb variable lw "
    "1.5 pt -1, \\\n"
    "  $ablate using 2:($5 == 1 ? $1 : NaN):(paint($2, $5)) with points lc rgb variable pt 7 ps "
    "1.1, \\\n"
    "  $ablate using 2:($5 == 1 ? NaN : $1) with points lc rgb '#777777' pt 6 ps 1.1, \\\n"
    "  $ablate using 4:1:(sprintf('  %.2f', $2)) with labels left font ',9', \\\n"
    "  $ablate using (strlen(strcol(7)) > 0 ? lo : NaN):1:7 with labels left boxed offset 1,0 "
    "textcolor rgb '#111111'\n";

bool rose_plot_ablate(FILE *gp, const rose_json *ablate)
{
    char place[ROSE_PLOT_PLACE];
    double lo = 0.9, hi = 1.1;
    const int rows = write_rows(gp, rose_json_get(ablate, "switches"), &lo, &hi);
    if (rows == 0) return false;
    lo /= 1.05;
    hi *= 1.15; /* leaves room for the printed numbers */
    const double height = HEAD_PX + ROW_PX * rows;
    rose_plot_place(ablate, place);
    rose_plot_begin(gp, "ablate", 900, (int)height);
    fprintf(gp,
            "unset key\nunset ylabel\nset grid xtics noytics\nset ytics scale 0 ('' 1)\nset style "
            "textbox opaque noborder\n"
            "set lmargin at screen 0.2\nset rmargin at screen 0.97\n"
            "set tmargin at screen %.4f\nset bmargin at screen %.4f\n",
            1 - 67 / height, 70 / height);
    fprintf(gp,
            "lo = %.9g\nset yrange [%d.5:0.7]\n"
            "set title \"Time without / time with, the least and the most of %d pairs\\n%s\"\n"
            "set xlabel 'right of 1 it is faster with the switch on; hollow: inside the noise'\n"
            "set arrow 1 from 1, graph 0 to 1, graph 1 nohead lc rgb '#888888' lw 1.5 back\n",
            lo, -rows, (int)rose_json_int(rose_json_get(ablate, "pairs")), place);
    write_ratios(gp, lo, hi);
    fputs(drawing, gp);
    rose_plot_end(gp);
    return true;
}
