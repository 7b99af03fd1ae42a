/* bench/folder.c - see folder.h. */
#include "bench/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_PATH = 4096 };

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
    rose_status st = ROSE_OK;
    struct dirent **all = NULL;
    const int n = scandir(dir, &all, NULL, alphasort);
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
