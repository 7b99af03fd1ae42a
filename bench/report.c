/* bench/report.c - `roseinfer bench report DIR` writes all results of a folder as one HTML page.
 * Figures and raw JSON are inside the page, so it needs no other file and no network. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/opts.h"
#include "base/version.h"
#include "bench/bench.h"
#include "bench/plot_internal.h"
#include "bench/report_internal.h"
#include "bench/results.h"

enum { MAX_PATH = 4096, MAX_FILE = 1 << 28, MAX_FOLDERS_DEEP = 8 };

/* The page while it is written. */
typedef struct page {
    rose_html h;        /* everything below the table of contents */
    rose_html contents; /* the table of contents: an entry for each file */
    const char *dir;    /* the folder to report on; other paths are relative to it */
    bool plot, cut;     /* cut: true if folders at too great a depth were left out */
    size_t n_files, n_bad;
} page;

static const char style[] =
    "body{font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;color:#222;background:#fff;"
    "max-width:1360px;margin:0 auto;padding:1.5rem}"
    "h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.25rem;margin:2.2rem 0 .6rem;"
    "border-bottom:1px solid #ddd;padding-bottom:.2rem}"
    "p{margin:.5rem 0}.label{color:#666;margin-bottom:0}"
    ".wide{overflow-x:auto;margin:.6rem 0}"
    "table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.22rem .4rem;text-align:right;white-space:nowrap;border-bottom:1px solid #eee}"
    "thead th{background:#f5f6f7;text-align:center;color:#444;white-space:normal}"
    "tbody th{text-align:left;font-weight:600}.pairs td{text-align:left;white-space:normal}"
    ".group{border-left:1px solid #e3e3e3}.bad{color:#b5263a;text-align:left}"
    "pre{background:#f5f6f7;padding:.6rem .8rem;overflow-x:auto;font-size:.82rem;margin:.2rem 0 "
    ".6rem}"
    "figure{margin:1rem 0}figure img{max-width:100%;height:auto;border:1px solid #eee}"
    "figcaption{color:#666;font-size:.86rem}"
    "nav ol{columns:22rem auto;font-size:.9rem;padding-left:1.6rem}nav a{color:#1f6fb4}"
    "details{margin:.8rem 0}summary{cursor:pointer;color:#1f6fb4}";

/* The order of figures: the overview, then each metric, then distributions, then files of unknown
 * names. */
static int figure_rank(const char *name)
{
    static const char *const order[] = {"online_latency_compare",
                                        "online_concurrency_latency",
                                        "offline_",
                                        "online_latency_p90",
                                        "online_latency_p99",
                                        "online_ttft",
                                        "online_tpot",
                                        "online_itl",
                                        "online_e2e"};
    for (int i = 0; i < (int)(sizeof order / sizeof *order); i++) {
        if (strncmp(name, order[i], strlen(order[i])) == 0) return i;
    }
    return 100;
}

static int by_rank(const void *a, const void *b)
{
    const int x = figure_rank(*(char *const *)a), y = figure_rank(*(char *const *)b);
    return x != y ? x - y : strcmp(*(char *const *)a, *(char *const *)b);
}

static void put_figure(rose_html *h, const char *name, const rose_buf *svg)
{
    rose_html_raw(h, "<figure><img alt=\"");
    rose_html_text(h, name);
    rose_html_raw(h, "\" src=\"");
    rose_html_data_uri(h, "image/svg+xml", svg->data, svg->len);
    rose_html_raw(h, "\"><figcaption>");
    rose_html_text(h, name);
    rose_html_raw(h, "</figcaption></figure>\n");
}

/* Writes the figures. The first figure is open on the page; the others are folded. */
static rose_status put_figures(rose_html *h, const char *dir, rose_err *err)
{
    char figures[2 * MAX_PATH], path[3 * MAX_PATH];
    rose_names l;
    rose_status st = ROSE_OK;
    snprintf(figures, sizeof figures, "%s/figures", dir);
    if ((st = rose_folder_list(&l, figures, ".svg", err)) != ROSE_OK) return st;
    if (l.n > 1) qsort(l.v, l.n, sizeof *l.v, by_rank);
    bool folded = false;
    for (size_t i = 0; i < l.n && st == ROSE_OK; i++) {
        rose_buf svg = {0};
        if (i > 0 && !folded && figure_rank(l.v[i]) > 2) {
            rose_html_raw(h, "<details><summary>More figures</summary>\n");
            folded = true;
        }
        snprintf(path, sizeof path, "%s/%s", figures, l.v[i]);
        st = rose_file_read(&svg, path, MAX_FILE, err);
        if (st == ROSE_OK) put_figure(h, l.v[i], &svg);
        rose_buf_free(&svg);
    }
    if (folded) rose_html_raw(h, "</details>\n");
    rose_names_free(&l);
    return st;
}

/* The path of a file, relative to DIR. */
static void put_name(rose_html *h, const char *below, const char *name)
{
    rose_html_text(h, below);
    if (below[0] != '\0') rose_html_raw(h, "/");
    rose_html_text(h, name);
}

/* Adds one results file: heading, tables, where it comes from, and the file itself. Adds nothing if
 * the file cannot be read. */
static rose_status put_result(page *p, const char *dir, const char *below, const char *name,
                              rose_err *err)
{
    rose_html *h = &p->h;
    char path[2 * MAX_PATH];
    rose_buf text = {0};
    rose_json *root = NULL;
    rose_status st = rose_results_read(&root, dir, name, err);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (st == ROSE_OK) st = rose_file_read(&text, path, MAX_FILE, err);
    if (st == ROSE_OK) {
        const rose_json *meta = rose_json_get(root, "meta");
        const char *device = rose_json_text(rose_json_get(meta, "device"));
        const char *model = rose_json_text(rose_json_get(meta, "model"));
        rose_html_raw(&p->contents, "<li><a href=\"#file-%zu\">", p->n_files);
        put_name(&p->contents, below, name);
        rose_html_raw(&p->contents, "</a></li>\n");
        rose_html_raw(h, "<h2 id=\"file-%zu\">", p->n_files);
        put_name(h, below, name);
        rose_html_raw(h, "</h2>\n<p>");
        if (model != NULL) rose_html_text(h, model);
        if (device != NULL) rose_html_raw(h, "%son ", model != NULL ? " " : "");
        rose_html_text(h, device);
        rose_html_raw(h, "</p>\n");
        if (strcmp(name, "online_results.json") == 0)
            rose_report_online(h, root);
        else if (strcmp(name, "offline_results.json") == 0)
            rose_report_offline(h, root);
        else if (rose_json_is_object(rose_json_get(root, "switches")))
            rose_report_ablate(h, root);
        else
            rose_report_any(h, root);
        rose_report_environment(h, root);
        rose_html_raw(h, "<p><a download=\"");
        rose_html_text(h, name);
        rose_html_raw(h, "\" href=\"");
        rose_html_data_uri(h, "application/json", text.data, text.len);
        rose_html_raw(h, "\">raw JSON</a> (%zu bytes, inside this page)</p>\n", text.len);
    }
    rose_json_decref(root);
    rose_buf_free(&text);
    return st;
}

/* A file that cannot be read is noted on the page; the other files are still shown. */
static rose_status put_or_note(page *p, const char *dir, const char *below, const char *name,
                               rose_err *err)
{
    const rose_status st = put_result(p, dir, below, name, err);
    p->n_files++;
    if (st == ROSE_OK || st == ROSE_E_NOMEM) return st;
    p->n_bad++;
    fprintf(stderr, "roseinfer: left out: %s\n", err->msg);
    rose_html_raw(&p->h, "<p class=\"bad\">Left out: ");
    rose_html_text(&p->h, err->msg);
    rose_html_raw(&p->h, "</p>\n");
    return ROSE_OK;
}

/* Adds a folder with results: its files, then its figures. below is its path from DIR, "" for DIR
 * itself. */
static rose_status put_folder(page *p, const char *dir, const char *below, rose_err *err)
{
    rose_names l;
    rose_html *h = &p->h;
    rose_err plot_err = {{0}};
    rose_status st = rose_folder_list(&l, dir, "_results.json", err);
    for (size_t i = 0; i < l.n && st == ROSE_OK; i++)
        st = put_or_note(p, dir, below, l.v[i], err);
    bool drawable = false;
    for (size_t i = 0; i < l.n; i++)
        drawable |= rose_plot_draws(l.v[i]);
    if (st == ROSE_OK && drawable && p->plot && rose_plot_folder(dir, &plot_err) != ROSE_OK) {
        fprintf(stderr, "roseinfer: no new figures: %s\n", plot_err.msg);
        rose_html_raw(h, "<p class=\"bad\">No new figures: ");
        rose_html_text(h, plot_err.msg);
        rose_html_raw(h, "</p>\n");
    }
    if (st == ROSE_OK && l.n > 0) st = put_figures(h, dir, err);
    rose_names_free(&l);
    return st;
}

/* Adds a folder, then its subfolders in order of name. Links to folders are left out, because they
 * could form a loop. */
static rose_status put_tree(page *p, const char *below, int depth, rose_err *err)
{
    char dir[MAX_PATH], sub[2 * MAX_PATH], path[2 * MAX_PATH];
    rose_names l = {0};
    struct stat s;
    rose_status st = ROSE_OK;
    const char *slash = below[0] != '\0' ? "/" : "";
    if (snprintf(dir, sizeof dir, "%s%s%s", p->dir, slash, below) > MAX_PATH - 300)
        st = rose_fail(err, ROSE_E_INVAL, "%.200s...: the path of a folder is too long", p->dir);
    if (st == ROSE_OK) st = put_folder(p, dir, below, err);
    if (st == ROSE_OK) st = rose_folder_list(&l, dir, "", err);
    for (size_t i = 0; i < l.n && st == ROSE_OK; i++) {
        snprintf(sub, sizeof sub, "%s%s%s", below, slash, l.v[i]);
        snprintf(path, sizeof path, "%s/%s", dir, l.v[i]);
        if (lstat(path, &s) != 0 || !S_ISDIR(s.st_mode)) continue;
        if (depth < MAX_FOLDERS_DEEP)
            st = put_tree(p, sub, depth + 1, err);
        else
            p->cut = true;
    }
    rose_names_free(&l);
    return st;
}

/* Writes the head of the page, which stands above the files. */
static void put_head(const page *p, rose_html *h)
{
    char when[32];
    const struct tm tm = rose_results_now();
    strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &tm);
    rose_html_raw(h,
                  "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta "
                  "name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                  "<title>Benchmark results</title>\n<style>%s</style>\n</head>\n<body>\n"
                  "<h1>Benchmark results</h1>\n<p class=\"label\">",
                  style);
    rose_html_text(h, p->dir);
    rose_html_raw(h, "; roseinfer %s (%s), page written %s</p>\n", rose_version(), rose_commit(),
                  when);
    if (p->n_files - p->n_bad < 2) return;
    rose_html_raw(h, "<nav><ol>\n");
    if (h->st == ROSE_OK) h->st = rose_buf_add(&h->out, p->contents.out.data, p->contents.out.len);
    rose_html_raw(h, "</ol></nav>\n");
}

/* Writes the whole page to *out. */
static rose_status put_page(page *p, rose_html *out, rose_err *err)
{
    rose_html *h = &p->h;
    rose_status st = put_tree(p, "", 0, err);
    if (st != ROSE_OK) return st;
    if (p->cut) {
        fprintf(stderr, "roseinfer: folders more than %d deep were left out\n", MAX_FOLDERS_DEEP);
        rose_html_raw(h, "<p class=\"bad\">Folders more than %d deep were left out.</p>\n",
                      MAX_FOLDERS_DEEP);
    }
    if (p->n_files == 0)
        return rose_fail(err, ROSE_E_NOTFOUND, "%s holds no *_results.json, nor do its folders",
                         p->dir);
    rose_html_raw(h, "</body>\n</html>\n");
    put_head(p, out);
    st = rose_buf_add(&out->out, h->out.data, h->out.len);
    if (st == ROSE_OK) st = h->st != ROSE_OK ? h->st : p->contents.st;
    if (st == ROSE_OK) st = out->st;
    return st == ROSE_OK ? ROSE_OK : rose_fail(err, st, "out of memory");
}

static rose_status report(const char *dir, const char *out, bool plot, rose_err *err)
{
    char path[MAX_PATH], tmp[MAX_PATH + 8];
    page p = {.dir = dir, .plot = plot};
    rose_html whole = {0};
    const int len = out != NULL ? snprintf(path, sizeof path, "%s", out)
                                : snprintf(path, sizeof path, "%s/report.html", dir);
    if (len >= (int)sizeof path || strlen(dir) > MAX_PATH - 300)
        return rose_fail(err, ROSE_E_INVAL, "the path of the folder is too long");
    rose_status st = put_page(&p, &whole, err);
    if (st == ROSE_OK) {
        snprintf(tmp, sizeof tmp, "%s.tmp", path);
        FILE *f = fopen(tmp, "wb");
        bool ok = f != NULL && fwrite(whole.out.data, 1, whole.out.len, f) == whole.out.len;
        if (f != NULL && fclose(f) != 0) ok = false;
        if (!ok || rename(tmp, path) != 0)
            st = rose_fail(err, ROSE_E_IO, "cannot write %s: %s", path, strerror(errno));
    }
    if (st == ROSE_OK) printf("%s\n", path);
    if (st == ROSE_OK && p.n_bad > 0)
        st = rose_fail(err, ROSE_E_FORMAT, "%zu of %zu results files could not be read", p.n_bad,
                       p.n_files);
    rose_buf_free(&p.h.out);
    rose_buf_free(&p.contents.out);
    rose_buf_free(&whole.out);
    return st;
}

int rose_bench_report(int argc, char **argv)
{
    const char *out = NULL;
    bool plot = true;
    const rose_opt opts[] = {
        ROSE_ROW_STRING("out", &out, "FILE", "the page", .unset = "DIR/report.html"),
        ROSE_ROW_BOOL("plot", &plot,
                      "draw the figures first, as bench plot does; otherwise those of DIR/figures"),
    };
    const char *dir;
    rose_err err = {{0}};
    const int rc = rose_opts_parse_one(
        "roseinfer bench report DIR [options]",
        "One HTML page of all *_results.json in DIR and the folders below it: tables, figures, "
        "environment,\ncommand lines and the raw JSON, all inside the page.",
        opts, sizeof opts / sizeof *opts, argc, argv, &dir);
    if (rc >= 0) return rc;
    return report(dir, out, plot, &err) == ROSE_OK ? 0 : rose_die(&err);
}
