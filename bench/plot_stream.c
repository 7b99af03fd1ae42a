/* bench/plot_stream.c - draws the parts of the time to the first token: p50, p95 and p99 of each
 * part. */
#include <math.h>

#include "bench/plot_internal.h"

static const struct {
    const char *key, *title;
} parts[] = {
    {"receive_ms", "receive"},
    {"worker_wait_ms", "wait for a tokenizer worker"},
    {"parse_ms", "parse"},
    {"tokenize_ms", "tokenize"},
    {"queue_wait_ms", "queue wait"},
    {"prefill_to_first_ms", "prefill to first token"},
    {"ttft_outside_server_ms", "outside the server"},
    {"ttft_ms", "TTFT (client)"},
};
static const char *const shares[] = {"p50", "p95", "p99"};
static const char *const shades[] = {"#1f6fb4", "#6ba5d6", "#b9d5ec"};
enum { N_PARTS = sizeof parts / sizeof *parts, N_SHARES = 3, ROW_PX = 66, HEAD_PX = 172 };

/* Writes the gnuplot block $stream_K with rows: row value, one for each part. Returns the largest
 * value, or 0 if there is none. */
static double write_values(FILE *gp, const rose_json *times)
{
    double most = 0;
    for (int k = 0; k < N_SHARES; k++) {
        fprintf(gp, "$stream_%d << EOD\n", k);
        for (int i = 0; i < N_PARTS; i++) {
            const rose_json *v = rose_json_get(rose_json_get(times, parts[i].key), shares[k]);
            fprintf(gp, "%d %.9g\n", -i, rose_json_is_number(v) ? rose_json_number_value(v) : 0);
            most = fmax(most, rose_json_number_value(v));
        }
        fputs("EOD\n", gp);
    }
    return most;
}

bool rose_plot_stream(FILE *gp, const rose_json *stream)
{
    const rose_json *times = rose_json_get(stream, "times");
    const double most = write_values(gp, times), height = HEAD_PX + ROW_PX * N_PARTS;
    char place[ROSE_PLOT_PLACE];
    if (!(most > 0)) return false;
    rose_plot_place(stream, place);
    rose_plot_begin(gp, "stream_ttft_parts", 900, (int)height);
    fprintf(
        gp,
        "set lmargin at screen 0.24\nset rmargin at screen 0.97\nset tmargin at screen %.4f\n"
        "set bmargin at screen %.4f\n"
        "set style fill solid 0.95 noborder\nset key at screen 0.97,%.4f right center "
        "horizontal\nset grid xtics noytics\nunset ylabel\nset title \"Time to the first token: "
        "each part by itself (percentiles do not add up)\\n%s\" offset 0,1.2\nset xlabel 'ms'\nset "
        "xrange [0:%.9g]\nset yrange [%d.5:0.5]\nset ytics scale 0 (",
        1 - 102 / height, 60 / height, 1 - 84 / height, place, most * 1.14, 1 - N_PARTS);
    for (int i = 0; i < N_PARTS; i++)
        fprintf(gp, "%s'%s' %d", i > 0 ? ", " : "", parts[i].title, -i);
    fputs(")\nplot ", gp);
    for (int k = 0; k < N_SHARES; k++)
        fprintf(gp,
                "%s$stream_%d using ($2/2):($1+%g):($2/2):(0.12) with boxxyerror lc rgb '%s' "
                "title '%s', $stream_%d using 2:($1+%g):(sprintf($2 >= 100 ? ' %%.0f' : ' %%.3g', "
                "$2)) with labels left "
                "font ',9' notitle",
                k > 0 ? ", " : "", k, 0.26 - 0.26 * k, shades[k], shares[k], k, 0.26 - 0.26 * k);
    fputc('\n', gp);
    rose_plot_end(gp);
    return true;
}
