/* bench/plot.c - `roseinfer bench plot DIR` draws the results of a folder with gnuplot. The gnuplot
 * script stays next to the pictures, so a picture can be changed without measuring again. */
#include "bench/plot_internal.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/opts.h"
#include "bench/bench.h"
#include "bench/proc.h"
#include "bench/results.h"
#include "bench/stats.h"

enum { MAX_PATH = 4096 };

void rose_plot_label(const rose_json *v, char *out, size_t cap)
{
    const char *s = rose_json_is_string(v) ? rose_json_text(v) : "unknown";
    size_t n = 0;
    for (; *s != '\0' && n + 1 < cap; s++)
        out[n++] = (isalnum((unsigned char)*s) || strchr(" ._+-", *s) != NULL) ? *s : '_';
    out[n] = '\0';
}

void rose_plot_place(const rose_json *root, char out[ROSE_PLOT_PLACE])
{
    const rose_json *meta = rose_json_get(root, "meta"), *gpu = rose_json_get(meta, "gpu");
    const rose_json *model = rose_json_get(meta, "model"), *dtype = rose_json_get(meta, "dtype");
    const rose_json *device = rose_json_is_string(gpu) ? gpu : rose_json_get(meta, "device");
    char name[64], type[24], machine[80], cpus[24] = "";
    const char *slash;
    out[0] = '\0';
    if (!rose_json_is_string(model)) model = rose_json_get(root, "model");
    if (!rose_json_is_string(model) && !rose_json_is_string(device)) return;
    slash = rose_json_is_string(model) ? strrchr(rose_json_text(model), '/') : NULL;
    rose_json *base = slash != NULL ? rose_json_string(slash + 1) : NULL;
    rose_plot_label(base != NULL ? base : model, name, sizeof name);
    rose_json_decref(base);
    rose_plot_label(dtype, type, sizeof type);
    rose_plot_label(device, machine, sizeof machine);
    const int64_t n = rose_json_int(rose_json_get(meta, "cpus"));
    if (n > 0 && device != gpu) snprintf(cpus, sizeof cpus, ", %d CPUs", (int)n);
    snprintf(out, ROSE_PLOT_PLACE, "%s%s%s on %s%s", name, rose_json_is_string(dtype) ? ", " : "",
             rose_json_is_string(dtype) ? type : "", machine, cpus);
}

void rose_plot_add_backend(rose_plot_backends *b, const rose_json *key)
{
    bool known = b->n == ROSE_PLOT_MAX_BACKENDS;
    for (int k = 0; k < b->n && !known; k++)
        known = rose_json_equal(b->key[k], key);
    if (known) return;
    b->key[b->n] = key;
    rose_plot_label(key, b->label[b->n], sizeof b->label[b->n]);
    b->n++;
}

static void write_head(FILE *gp)
{
    static const char *const colours[] = {"#1f6fb4", "#e0701a", "#2b9348", "#b5263a",
                                          "#7b4fa3", "#7a5544", "#d052a2", "#5f6b73"};
    fputs("set encoding utf8\n", gp);
    for (int i = 0; i < ROSE_PLOT_MAX_BACKENDS; i++)
        fprintf(gp, "set linetype %d lc rgb '%s' lw 2 dt %d pt %d\n", i + 1, colours[i % 8],
                i < 8 ? 1 : 2, (const int[]){7, 5, 9, 11}[(i + i / 8) % 4]);
}

void rose_plot_begin(FILE *gp, const char *name, int width, int height)
{
    fprintf(gp,
            "do for [fmt in 'png svg'] {\n"
            "reset\n"
            "set datafile missing 'nan'\n"
            "set grid ytics lc rgb '#e4e4e4' lw 1\n"
            "set border 3 lc rgb '#555555'\n"
            "set tics nomirror textcolor rgb '#333333'\n"
            "set style fill transparent solid 0.16 noborder\n"
            "if (fmt eq 'png') { set terminal pngcairo noenhanced size %d,%d font 'sans,11' "
            "background '#ffffff' } else { set terminal svg noenhanced size %d,%d font "
            "'sans,13' background '#ffffff' }\n"
            "set output '%s.'.fmt\n",
            width, height, width, height, name);
}

void rose_plot_end(FILE *gp)
{
    fputs("unset output\n}\n", gp);
}

/* gnuplot runs inside the folder, so the script holds no path that would have to be quoted. */
static rose_status run_gnuplot(const char *figures, rose_err *err)
{
    char script[] = "cd \"$0\" && exec gnuplot plots.gp", how[32];
    char *argv[] = {(char[]){"/bin/sh"}, (char[]){"-c"}, script, (char *)(uintptr_t)figures, NULL};
    rose_proc p;
    rose_status st = rose_proc_start(&p, argv, NULL, NULL, NULL, 0, err);
    if (st != ROSE_OK) return st;
    if (rose_proc_wait(&p)) return ROSE_OK;
    rose_proc_describe(&p, how, sizeof how);
    return rose_fail(err, ROSE_E_IO,
                     "gnuplot: %s (Debian package gnuplot-nox; script: %s/plots.gp)", how, figures);
}

/* A missing file is no error; a file that cannot be read is one. */
static rose_status read_optional(rose_json **out, const char *dir, const char *name, rose_err *err)
{
    rose_status st = rose_results_read(out, dir, name, err);
    return st == ROSE_E_NOTFOUND ? ROSE_OK : st;
}

/* The files that can be drawn, each with its function. */
static const struct {
    const char *file;
    /* function that draws one result file; returns false if the file holds nothing to draw */
    bool (*draw)(FILE *gp, const rose_json *root);
} kinds[] = {{"online_results.json", rose_plot_online},
             {"offline_results.json", rose_plot_offline},
             {"ablate_results.json", rose_plot_ablate},
             {"stream_results.json", rose_plot_stream}};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

bool rose_plot_draws(const char *file)
{
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(file, kinds[i].file) == 0) return true;
    }
    return false;
}

static rose_status write_script(const char *figures, rose_json *const roots[N_KINDS], rose_err *err)
{
    char path[MAX_PATH + 16];
    bool any = false;
    snprintf(path, sizeof path, "%s/plots.gp", figures);
    FILE *gp = fopen(path, "w");
    if (gp == NULL) return rose_fail(err, ROSE_E_IO, "cannot write %s: %s", path, strerror(errno));
    write_head(gp);
    for (int i = 0; i < N_KINDS; i++)
        any |= roots[i] != NULL && kinds[i].draw(gp, roots[i]);
    if (fclose(gp) != 0) return rose_fail(err, ROSE_E_IO, "cannot write %s", path);
    return any ? ROSE_OK : rose_fail(err, ROSE_E_FORMAT, "no run in these results succeeded");
}

rose_status rose_plot_folder(const char *dir, rose_err *err)
{
    char figures[MAX_PATH];
    rose_json *roots[N_KINDS] = {NULL};
    rose_status st = ROSE_OK;
    bool any = false;
    for (int i = 0; i < N_KINDS && st == ROSE_OK; i++) {
        st = read_optional(&roots[i], dir, kinds[i].file, err);
        any |= roots[i] != NULL;
    }
    if (st == ROSE_OK && !any)
        st = rose_fail(err, ROSE_E_NOTFOUND,
                       "%s holds no online_results.json, nor that of offline, ablate or stream",
                       dir);
    if (st == ROSE_OK && snprintf(figures, sizeof figures, "%s/figures", dir) >= MAX_PATH)
        st = rose_fail(err, ROSE_E_INVAL, "the path of the folder is too long");
    if (st == ROSE_OK) {
        /* a folder that exists already is fine; any other failure shows when the file is written */
        mkdir(figures, 0777);
        st = write_script(figures, roots, err);
    }
    if (st == ROSE_OK) st = run_gnuplot(figures, err);
    for (int i = 0; i < N_KINDS; i++)
        rose_json_decref(roots[i]);
    return st;
}

int rose_bench_plot(int argc, char **argv)
{
    const char *dir;
    rose_names runs = {0};
    rose_err err = {{0}};
    const int rc = rose_opts_parse_one(
        "roseinfer bench plot DIR",
        "Draws the *_results.json of online, offline, ablate and stream in DIR as PNG and SVG "
        "into\nDIR/figures: latency over load (p90 line, p50-p90 band, hollow p99), one figure for "
        "each metric,\np90 and p99 alone, distributions, offline throughput, ratios of switches, "
        "parts of the time to the\nfirst token. DIR is the folder of a run, the path that online "
        "prints, or the "
        "--output-dir that\nholds several runs: each is drawn. Needs gnuplot.",
        NULL, 0, argc, argv, &dir);
    if (rc >= 0) return rc;
    rose_status st = rose_folder_runs(&runs, dir, rose_plot_draws, &err);
    for (size_t i = 0; i < runs.n && st == ROSE_OK; i++) {
        st = rose_plot_folder(runs.v[i], &err);
        if (st == ROSE_OK) printf("%s/figures\n", runs.v[i]);
    }
    rose_names_free(&runs);
    return st == ROSE_OK ? 0 : rose_die(&err);
}
