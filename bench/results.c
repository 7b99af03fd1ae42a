/* bench/results.c - see results.h. */
#include "bench/results.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "base/version.h"
#include "bench/stats.h"

enum { MAX_SUFFIX = 1000, MAX_PATH = 4096, MAX_RESULTS = 1 << 30 };

rose_status rose_results_make_dirs(char *path, rose_err *err)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != '\0') continue;
        const char end = *p;
        *p = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return rose_fail(err, ROSE_E_IO, "cannot create %s: %s", path, strerror(errno));
        *p = end;
        if (end == '\0') return ROSE_OK;
    }
}

rose_status rose_results_dir(const char *dir, const char *prefix, char *path, size_t cap,
                             rose_err *err)
{
    char stamp[32], parent[MAX_PATH];
    const struct tm tm = rose_results_now();
    strftime(stamp, sizeof stamp, "%Y%m%d_%H%M%S", &tm);
    if (snprintf(parent, sizeof parent, "%s/", dir) >= (int)sizeof parent)
        return rose_fail(err, ROSE_E_INVAL, "the path of the output folder is too long");
    const rose_status st = rose_results_make_dirs(parent, err);
    if (st != ROSE_OK) return st;
    for (int i = 1; i < MAX_SUFFIX; i++) {
        char suffix[16] = "";
        if (i > 1) snprintf(suffix, sizeof suffix, "_%d", i);
        if (snprintf(path, cap, "%s/%s_%s%s", dir, prefix, stamp, suffix) >= (int)cap)
            return rose_fail(err, ROSE_E_INVAL, "the path of the output folder is too long");
        if (mkdir(path, 0777) == 0) return ROSE_OK;
        if (errno != EEXIST) break;
    }
    return rose_fail(err, ROSE_E_IO, "cannot create %s: %s", path, strerror(errno));
}

static bool write_file(const rose_json *root, const char *path)
{
    FILE *f = fopen(path, "wb");
    bool ok = f != NULL &&
              rose_json_dumpf(root, f, ROSE_JSON_INDENT(1) | ROSE_JSON_REAL_PRECISION(12)) == 0;
    if (f != NULL && fclose(f) != 0) ok = false;
    return ok;
}

rose_status rose_results_write(const rose_json *root, const char *dir, const char *name,
                               rose_err *err)
{
    char path[MAX_PATH], tmp[MAX_PATH + 8];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return rose_fail(err, ROSE_E_INVAL, "the path of the results is too long");
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (root == NULL || !write_file(root, tmp) || rename(tmp, path) != 0)
        return rose_fail(err, ROSE_E_IO, "cannot write %s: %s", path, strerror(errno));
    return ROSE_OK;
}

rose_status rose_results_read(rose_json **out, const char *dir, const char *name, rose_err *err)
{
    char path[MAX_PATH];
    rose_buf text = {0};
    rose_json_error e;
    *out = NULL;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        return rose_fail(err, ROSE_E_INVAL, "the path %s is too long", dir);
    rose_status st = rose_file_read(&text, path, MAX_RESULTS, err);
    if (st == ROSE_OK) {
        st = rose_json_parse(out, text.data != NULL ? text.data : "", text.len, 0, &e);
        if (st != ROSE_OK) rose_fail(err, st, "%s:%d: %s", path, e.line, e.text);
    }
    rose_buf_free(&text);
    return st;
}

/* Reads "model name : X" from /proc/cpuinfo. Where there is none (ARM), takes the name of the
 * machine. */
static void cpu_name(char *out, size_t cap, const char *machine)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, cap, "%s", machine);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        snprintf(out, cap, "%s", colon + 1 + (colon[1] == ' '));
        out[strcspn(out, "\n")] = '\0';
        break;
    }
    if (f != NULL) fclose(f);
}

struct tm rose_results_now(void)
{
    const time_t now = (time_t)rose_unix_time();
    struct tm tm;
    gmtime_r(&now, &tm);
    return tm;
}

void rose_results_set_time(rose_json *o, const char *key)
{
    char now[32];
    const struct tm tm = rose_results_now();
    strftime(now, sizeof now, ROSE_RESULTS_ISO, &tm);
    rose_json_set_new(o, key, rose_json_string(now));
}

void rose_results_set_wall(rose_json *o, const char *key, uint64_t start_ns)
{
    rose_json_set_new(o, key, rose_json_real((double)(rose_now_ns() - start_ns) * 1e-9));
}

rose_json *rose_results_meta(int argc, char **argv)
{
    struct utsname u = {.machine = "unknown"};
    char cpu[256], when[32], kernel[160];
    rose_buf cmd = {0};
    uname(&u);
    snprintf(kernel, sizeof kernel, "%.64s %.64s", u.sysname, u.release);
    cpu_name(cpu, sizeof cpu, u.machine);
    const struct tm tm = rose_results_now();
    strftime(when, sizeof when, ROSE_RESULTS_ISO, &tm);
    const char *tool =
        strcmp(program_invocation_short_name, "load") == 0 ? "load" : "roseinfer bench";
    rose_status st = rose_buf_addf(&cmd, "%s", tool);
    for (int i = 0; i < argc && st == ROSE_OK; i++)
        st = rose_buf_addf(&cmd, " %s", argv[i]);
    rose_json *meta =
        st != ROSE_OK || rose_buf_str(&cmd) == NULL
            ? NULL
            : rose_json_pack("{s:s, s:o, s:s, s:s, s:i, s:s, s:I, s:s, s:s, s:{s:s, s:s}}", "tool",
                             tool, "command", rose_results_string(cmd.data), "run_start_time", when,
                             "device", cpu, "cpus", (int)sysconf(_SC_NPROCESSORS_ONLN), "isa",
                             rose_isa_name(rose_isa_probe()), "memory_available_bytes",
                             (int64_t)rose_memory_available(), "kernel", kernel, "machine",
                             u.machine, "versions", "roseinfer", rose_version(), "commit",
                             rose_commit());
    rose_buf_free(&cmd);
    return meta;
}

rose_json *rose_results_meta_more(int argc, char **argv, rose_json *more)
{
    rose_json *meta = rose_results_meta(argc, argv);
    if (more == NULL || rose_json_update(meta, more) != 0) {
        rose_json_decref(meta);
        meta = NULL;
    }
    rose_json_decref(more);
    return meta;
}

char *rose_results_text(char *s)
{
    for (char *p = s;; p++) {
        p += rose_utf8_valid_prefix(p, strlen(p));
        if (*p == '\0') return s;
        *p = '?';
    }
}

rose_json *rose_results_stringn(const char *text, size_t n)
{
    rose_buf out = {0};
    rose_json *s = NULL;
    if (rose_utf8_escape(&out, text, n) == ROSE_OK)
        s = rose_json_stringn(out.len > 0 ? out.data : "", out.len);
    rose_buf_free(&out);
    return s;
}

rose_json *rose_results_string(const char *text)
{
    return text != NULL ? rose_results_stringn(text, strlen(text)) : rose_json_null();
}

int rose_results_emit(rose_json *root, const char *dir, const char *prefix)
{
    char path[MAX_PATH], name[64];
    rose_err err = {{0}};
    rose_status st = ROSE_OK;
    if (root == NULL) st = rose_fail(&err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK && dir == NULL) {
        if (rose_json_dumpf(root, stdout, ROSE_JSON_INDENT(2) | ROSE_JSON_REAL_PRECISION(12)) !=
                0 ||
            putchar('\n') == EOF)
            st = rose_fail(&err, ROSE_E_IO, "cannot write to standard output");
    } else if (st == ROSE_OK) {
        snprintf(name, sizeof name, "%s_results.json", prefix);
        st = rose_results_dir(dir, prefix, path, sizeof path, &err);
        if (st == ROSE_OK) st = rose_results_write(root, path, name, &err);
        if (st == ROSE_OK) fprintf(stderr, "wrote %s/%s\n", path, name);
    }
    rose_json_decref(root);
    return st == ROSE_OK ? 0 : rose_die(&err);
}

/* ---- Markdown ---- */

static void print_columns(FILE *f, const char *columns)
{
    fprintf(f, "| %s |\n|", columns);
    for (const char *p = columns; p != NULL; p = strchr(p + 1, '|'))
        fputs("---|", f);
    fputc('\n', f);
}

rose_status rose_summary_open(rose_summary_file *s, const rose_json *root, const char *dir,
                              const char *name, const char *title, const char *about,
                              const char *columns, rose_err *err)
{
    const rose_json *meta = rose_json_get(root, "meta");
    const char *device = rose_json_text(rose_json_get(meta, "device"));
    const char *command = rose_json_text(rose_json_get(meta, "command"));
    s->f = NULL;
    if (snprintf(s->path, sizeof s->path, "%s/%s", dir, name) >= (int)sizeof s->path)
        return rose_fail(err, ROSE_E_INVAL, "the path of the summary is too long");
    s->f = fopen(s->path, "w");
    if (s->f == NULL)
        return rose_fail(err, ROSE_E_IO, "cannot write %s: %s", s->path, strerror(errno));
    fprintf(s->f, "# %s\n\nDevice: %s. %s\n\n", title, device != NULL ? device : "?", about);
    if (command != NULL) fprintf(s->f, "```\n%s\n```\n\n", command);
    print_columns(s->f, columns);
    return ROSE_OK;
}

void rose_summary_cell(FILE *f, const rose_json *v, double factor, int digits)
{
    const double x = rose_json_number_value(v) * factor;
    if (rose_json_is_number(v))
        fprintf(f, " %.*f |", digits < 0 ? rose_summary_digits(x) : digits, x);
    else
        fputs(" - |", f);
}

rose_status rose_summary_close(rose_summary_file *s, rose_err *err)
{
    return fclose(s->f) == 0 ? ROSE_OK : rose_fail(err, ROSE_E_IO, "cannot write %s", s->path);
}

/* ---- find result files ---- */

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

void rose_names_free(rose_names *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
    *l = (rose_names){0};
}

static rose_status add(rose_names *l, const char *name, rose_err *err)
{
    char **v = realloc(l->v, (l->n + 1) * sizeof(char *));
    if (v != NULL) l->v = v;
    char *copy = v != NULL ? strdup(name) : NULL;
    if (copy == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    l->v[l->n++] = copy;
    return ROSE_OK;
}

rose_status rose_folder_list(rose_names *out, const char *dir, const char *end, rose_err *err)
{
    struct dirent **all = NULL;
    const int n = scandir(dir, &all, NULL, alphasort);
    rose_status st = ROSE_OK;
    if (n < 0 && errno == ENOMEM) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    *out = (rose_names){0};
    for (int i = 0; i < n; i++) {
        const char *name = all[i]->d_name;
        if (st == ROSE_OK && name[0] != '.' && (end[0] == '\0' || ends_with(name, end)))
            st = add(out, name, err);
        free(all[i]);
    }
    free(all);
    if (st != ROSE_OK) rose_names_free(out);
    return st;
}

/* Adds dir to out if dir holds result files that are wanted. */
static rose_status add_run(rose_names *out, const char *dir, bool (*wanted)(const char *name),
                           rose_err *err)
{
    rose_names files;
    bool any = false;
    rose_status st = rose_folder_list(&files, dir, "_results.json", err);
    for (size_t i = 0; i < files.n; i++)
        any |= wanted(files.v[i]);
    rose_names_free(&files);
    return st == ROSE_OK && any ? add(out, dir, err) : st;
}

/* A results file, as `bench online` prints its path, stands for the folder that holds it. */
static const char *folder_of(const char *path, char folder[MAX_PATH])
{
    struct stat st;
    const char *slash = strrchr(path, '/');
    if (!ends_with(path, "_results.json") || stat(path, &st) != 0 || !S_ISREG(st.st_mode) ||
        strlen(path) >= MAX_PATH)
        return path;
    if (slash == NULL) return ".";
    snprintf(folder, MAX_PATH, "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return folder;
}

rose_status rose_folder_runs(rose_names *out, const char *dir, bool (*wanted)(const char *name),
                             rose_err *err)
{
    rose_names below = {0};
    char path[MAX_PATH], folder[MAX_PATH];
    const size_t before = out->n;
    dir = folder_of(dir, folder);
    rose_status st = add_run(out, dir, wanted, err);
    if (st == ROSE_OK && out->n == before) st = rose_folder_list(&below, dir, "", err);
    for (size_t i = 0; i < below.n && st == ROSE_OK; i++) {
        if (snprintf(path, sizeof path, "%s/%s", dir, below.v[i]) >= MAX_PATH)
            st = rose_fail(err, ROSE_E_INVAL, "%.200s...: the path of a folder is too long", dir);
        else
            st = add_run(out, path, wanted, err);
    }
    rose_names_free(&below);
    if (st == ROSE_OK && out->n == before)
        st = rose_fail(err, ROSE_E_NOTFOUND,
                       "%s: there are no results in this folder or in the folders in it, such as "
                       "an online_results.json",
                       dir);
    return st;
}
