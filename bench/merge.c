/* bench/merge.c - `roseinfer bench merge OUT DIR...` combines the results of several folders, so
 * that one picture can show them. If two folders hold the same backend at the same load, the later
 * folder wins. */
#include <jansson.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "base/opts.h"
#include "bench/bench.h"
#include "bench/folder.h"
#include "bench/offline_internal.h"
#include "bench/online_internal.h"

enum { MAX_DIRS = 64 };

static bool same_point(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"backend", "scale", "concurrency", "goodput_search"};
    for (int i = 0; i < 4; i++) {
        const json_t *x = json_object_get(a, keys[i]), *y = json_object_get(b, keys[i]);
        if (x != y && (x == NULL || y == NULL || !json_equal(x, y))) return false;
    }
    return true;
}

/* Appends the rows of `from` to `to`, and removes older rows of the same backend and load. */
static void merge_rows(json_t *to, const json_t *from)
{
    size_t i;
    json_t *row;
    json_array_foreach(from, i, row)
    {
        for (size_t k = json_array_size(to); k-- > 0;) {
            if (same_point(json_array_get(to, k), row)) json_array_remove(to, k);
        }
        json_array_append(to, row);
    }
}

/* The runs of a backend hold no `backend` key, so runs are compared by their summaries. */
static void merge_backend(json_t *to, json_t *from)
{
    size_t i;
    json_t *run, *runs = json_object_get(to, "runs");
    json_array_foreach(json_object_get(from, "runs"), i, run)
    {
        for (size_t k = json_array_size(runs); k-- > 0;) {
            if (same_point(json_object_get(json_array_get(runs, k), "summary"),
                           json_object_get(run, "summary")))
                json_array_remove(runs, k);
        }
        json_array_append(runs, run);
    }
    json_object_set(from, "runs", runs);
    const json_t *walls = json_object_get(json_object_get(to, "timing"), "scale_wall_s");
    json_t *newer = json_object_get(json_object_get(from, "timing"), "scale_wall_s");
    if (json_is_object(walls) && json_is_object(newer))
        json_object_update_missing(newer, (json_t *)(uintptr_t)walls);
    json_object_update(to, from);
}

static void merge_online(json_t *to, const json_t *from)
{
    const char *label;
    json_t *b, *all = json_object_get(to, "by_backend");
    merge_rows(json_object_get(to, "summaries"), json_object_get(from, "summaries"));
    json_object_foreach(json_object_get(from, "by_backend"), label, b)
    {
        json_t *old = json_object_get(all, label);
        if (json_is_object(old) && json_is_object(b))
            merge_backend(old, b);
        else
            json_object_set(all, label, b);
    }
}

/* An offline row without a backend gets the backend of its file. The rows of one backend are
 * repeats of each other, so they are all replaced together. */
static void merge_offline(json_t *to, const json_t *from)
{
    size_t i;
    json_t *row, *rows = json_object_get(to, "results");
    json_t *own = json_object_get(json_object_get(from, "meta"), "backend");
    json_array_foreach(json_object_get(from, "results"), i, row)
    {
        if (json_object_get(row, "backend") == NULL && own != NULL)
            json_object_set(row, "backend", own);
    }
    for (size_t k = json_array_size(rows); k-- > 0;) {
        const json_t *old = json_object_get(json_array_get(rows, k), "backend");
        bool again = false;
        json_array_foreach(json_object_get(from, "results"), i, row) again |=
            old != NULL && json_equal(old, json_object_get(row, "backend"));
        if (again) json_array_remove(rows, k);
    }
    json_array_extend(rows, json_object_get(from, "results"));
}

typedef struct kind {
    const char *file, *rows;
    void (*merge)(json_t *to, const json_t *from);
} kind;
static const kind kinds[] = {{"online_results.json", "summaries", merge_online},
                             {"offline_results.json", "results", merge_offline}};

/* Adds the file of one folder to root, and its meta to sources. A folder without that file adds
 * nothing. */
static rose_status merge_file(const kind *k, json_t *root, json_t *sources, const char *dir,
                              uint32_t *n_read, rose_err *err)
{
    json_t *from;
    rose_status st = rose_results_read(&from, dir, k->file, err);
    if (st == ROSE_E_NOTFOUND) return ROSE_OK;
    if (st == ROSE_OK && !json_is_array(json_object_get(from, k->rows)))
        st = rose_fail(err, ROSE_E_FORMAT, "%s/%s: no list '%s'", dir, k->file, k->rows);
    if (st == ROSE_OK) {
        k->merge(root, from);
        if (json_is_object(json_object_get(from, "meta")))
            json_array_append(sources, json_object_get(from, "meta"));
        ++*n_read;
    }
    json_decref(from);
    return st;
}

static rose_status merge_kind(const kind *k, const char *out, const rose_names *runs, rose_err *err)
{
    uint32_t n_read = 0;
    rose_status st = ROSE_OK;
    json_t *sources = json_array();
    json_t *root = json_pack("{s:{}, s:[], s:{}}", "meta", k->rows, "by_backend");
    json_t *meta = json_object_get(root, "meta");
    for (size_t i = 0; i < runs->n && st == ROSE_OK; i++)
        st = merge_file(k, root, sources, runs->v[i], &n_read, err);
    if (json_array_size(sources) > 0)
        json_object_update(meta, json_array_get(sources, json_array_size(sources) - 1));
    json_object_set_new(meta, "merged_from", sources);
    if (k->merge == merge_online) rose_online_set_dtype(root);
    if (st == ROSE_OK && n_read > 0) {
        mkdir(out, 0777); /* an existing folder is fine; any other failure shows when the file is
                             written */
        st = rose_results_write(root, out, k->file, err);
        if (st == ROSE_OK)
            st = k->merge == merge_online ? rose_online_summary(root, out, err)
                                          : rose_offline_summary(root, out, err);
    }
    json_decref(root);
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
