/* bench/merge.c - `roseinfer bench merge OUT DIR...` combines the results of several folders, so
 * that one picture can show them. If two folders hold the same backend at the same load, the later
 * folder wins. */
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/opts.h"
#include "bench/bench.h"
#include "bench/offline_internal.h"
#include "bench/online_internal.h"

enum { MAX_DIRS = 64 };

static bool same_point(const rose_json *a, const rose_json *b)
{
    static const char *const keys[] = {"backend", "scale", "concurrency", "goodput_search"};
    for (int i = 0; i < 4; i++) {
        const rose_json *x = rose_json_get(a, keys[i]), *y = rose_json_get(b, keys[i]);
        if (x != y && (x == NULL || y == NULL || !rose_json_equal(x, y))) return false;
    }
    return true;
}

/* What tells of which backend and load a row is: the row itself, or its member `key`. */
static const rose_json *point_of(const rose_json *row, const char *key)
{
    return key != NULL ? rose_json_get(row, key) : row;
}

/* Appends the rows of `from` to `to`, and removes older rows of the same backend and load. */
static void merge_rows(rose_json *to, const rose_json *from, const char *key)
{
    size_t i;
    rose_json *row;
    rose_json_each_item (from, i, row) {
        for (size_t k = rose_json_count(to); k-- > 0;) {
            if (same_point(point_of(rose_json_at(to, k), key), point_of(row, key)))
                rose_json_remove(to, k);
        }
        rose_json_append(to, row);
    }
}

/* The runs of a backend hold no `backend` key, so runs are compared by their summaries. */
static void merge_backend(rose_json *to, rose_json *from)
{
    rose_json *runs = rose_json_get(to, "runs");
    merge_rows(runs, rose_json_get(from, "runs"), "summary");
    rose_json_set(from, "runs", runs);
    const rose_json *walls = rose_json_get(rose_json_get(to, "timing"), "scale_wall_s");
    rose_json *newer = rose_json_get(rose_json_get(from, "timing"), "scale_wall_s");
    if (rose_json_is_object(walls) && rose_json_is_object(newer))
        rose_json_update_missing(newer, walls);
    rose_json_update(to, from);
}

static void merge_online(rose_json *to, const rose_json *from)
{
    const char *label;
    rose_json *b, *all = rose_json_get(to, "by_backend");
    merge_rows(rose_json_get(to, "summaries"), rose_json_get(from, "summaries"), NULL);
    rose_json_each (rose_json_get(from, "by_backend"), label, b) {
        rose_json *old = rose_json_get(all, label);
        if (rose_json_is_object(old) && rose_json_is_object(b))
            merge_backend(old, b);
        else
            rose_json_set(all, label, b);
    }
}

/* An offline row without a backend gets the backend of its file. The rows of one backend are
 * repeats of each other, so they are all replaced together. */
static void merge_offline(rose_json *to, const rose_json *from)
{
    size_t i;
    rose_json *row, *rows = rose_json_get(to, "results");
    rose_json *own = rose_json_get(rose_json_get(from, "meta"), "backend");
    rose_json_each_item (rose_json_get(from, "results"), i, row) {
        if (rose_json_get(row, "backend") == NULL && own != NULL)
            rose_json_set(row, "backend", own);
    }
    for (size_t k = rose_json_count(rows); k-- > 0;) {
        const rose_json *old = rose_json_get(rose_json_at(rows, k), "backend");
        bool again = false;
        rose_json_each_item (rose_json_get(from, "results"), i, row)
            again |= old != NULL && rose_json_equal(old, rose_json_get(row, "backend"));
        if (again) rose_json_remove(rows, k);
    }
    rose_json_extend(rows, rose_json_get(from, "results"));
}

typedef struct kind {
    const char *file, *rows;
    void (*merge)(rose_json *to, const rose_json *from);
} kind;
static const kind kinds[] = {{"online_results.json", "summaries", merge_online},
                             {"offline_results.json", "results", merge_offline}};

/* Adds the file of one folder to root, and its meta to sources. A folder without that file adds
 * nothing. */
static rose_status merge_file(const kind *k, rose_json *root, rose_json *sources, const char *dir,
                              uint32_t *n_read, rose_err *err)
{
    rose_json *from;
    rose_status st = rose_results_read(&from, dir, k->file, err);
    if (st == ROSE_E_NOTFOUND) return ROSE_OK;
    if (st == ROSE_OK && !rose_json_is_array(rose_json_get(from, k->rows)))
        st = rose_fail(err, ROSE_E_FORMAT, "%s/%s: no list '%s'", dir, k->file, k->rows);
    if (st == ROSE_OK) {
        k->merge(root, from);
        if (rose_json_is_object(rose_json_get(from, "meta")))
            rose_json_append(sources, rose_json_get(from, "meta"));
        ++*n_read;
    }
    rose_json_decref(from);
    return st;
}

static rose_status merge_kind(const kind *k, const char *out, const rose_names *runs, rose_err *err)
{
    uint32_t n_read = 0;
    rose_status st = ROSE_OK;
    rose_json *sources = rose_json_array();
    rose_json *root = rose_json_pack("{s:{}, s:[], s:{}}", "meta", k->rows, "by_backend");
    rose_json *meta = rose_json_get(root, "meta");
    for (size_t i = 0; i < runs->n && st == ROSE_OK; i++)
        st = merge_file(k, root, sources, runs->v[i], &n_read, err);
    if (rose_json_count(sources) > 0)
        rose_json_update(meta, rose_json_at(sources, rose_json_count(sources) - 1));
    rose_json_set_new(meta, "merged_from", sources);
    if (k->merge == merge_online) rose_online_set_dtype(root);
    if (st == ROSE_OK && n_read > 0) {
        mkdir(out, 0777); /* an existing folder is fine; any other failure shows when the file is
                             written */
        st = rose_results_write(root, out, k->file, err);
        if (st == ROSE_OK)
            st = k->merge == merge_online ? rose_online_summary(root, out, err)
                                          : rose_offline_summary(root, out, err);
    }
    rose_json_decref(root);
    return st;
}

static bool mergeable(const char *name)
{
    return strcmp(name, kinds[0].file) == 0 || strcmp(name, kinds[1].file) == 0;
}

int rose_bench_merge(int argc, char **argv)
{
    const rose_command cmd = {
        .usage = "roseinfer bench merge OUT DIR...",
        .about = "Merges online_results.json and offline_results.json of the folders DIR into OUT. "
                 "DIR is the\nfolder of a run, or the --output-dir that holds several. If two "
                 "folders hold the same backend at\nthe same load, the later folder wins.",
        .min_args = 2,
        .max_args = MAX_DIRS,
    };
    const char *args[MAX_DIRS];
    rose_names runs = {0};
    uint32_t n;
    rose_err err = {{0}};
    int rc = rose_opts_parse(&cmd, argc, argv, args, &n);
    if (rc >= 0) return rc;
    rose_status st = ROSE_OK;
    for (uint32_t i = 1; i < n && st == ROSE_OK; i++)
        st = rose_folder_runs(&runs, args[i], mergeable, &err);
    for (int i = 0; i < 2 && st == ROSE_OK; i++)
        st = merge_kind(&kinds[i], args[0], &runs, &err);
    rose_names_free(&runs);
    return st == ROSE_OK ? 0 : rose_die(&err);
}
