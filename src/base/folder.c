/* base/folder.c - see folder.h. */
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/gguf.h"

#define FETCH                                                                                      \
    "roseinfer pull ORG/NAME fetches one from the Hugging Face hub, as openai-community/gpt2"
#define A_MODEL                                                                                    \
    "a model is a Hugging Face folder with config.json, *.safetensors and tokenizer.json, or a "   \
    "GGUF file"

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Tells whether a file begins with the four bytes of the GGUF format. */
static bool begins_gguf(const char *path)
{
    char magic[4] = "";
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    const bool found = read(fd, magic, sizeof magic) == (ssize_t)sizeof magic;
    close(fd);
    return found && memcmp(magic, "GGUF", sizeof magic) == 0;
}

static rose_status refuse_file(const char *path, rose_err *err)
{
    if (ends_with(path, ".safetensors"))
        return rose_fail(err, ROSE_E_FORMAT,
                         "'%.200s' is a weight file: give the folder that holds it together with "
                         "config.json and tokenizer.json",
                         path);
    return rose_fail(err, ROSE_E_FORMAT, "'%.200s' is a file: " A_MODEL, path);
}

/* "owner/name" as the hub spells it: two parts of letters, digits, '-', '_' and '.'. If there is a
 * folder `owner`, a local path was mistyped. */
static bool is_hub_name(const char *s)
{
    char folder[256];
    struct stat st;
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t owner = strspn(s, allowed);
    if (owner == 0 || owner >= sizeof folder || s[0] == '.' || s[owner] != '/') return false;
    memcpy(folder, s, owner);
    folder[owner] = '\0';
    if (stat(folder, &st) == 0) return false;
    const char *name = s + owner + 1;
    return *name != '\0' && strlen(name) == strspn(name, allowed);
}

rose_status rose_folder_check(const char *path, rose_err *err)
{
    struct stat st;
    if (stat(path, &st) == 0) return S_ISDIR(st.st_mode) ? ROSE_OK : refuse_file(path, err);
    if (errno != ENOENT && errno != ENOTDIR)
        return rose_fail(err, ROSE_E_IO, "open %.200s: %s", path, strerror(errno));
    const rose_status linked = rose_file_check_link(path, err);
    if (linked != ROSE_OK) return linked;
    if (is_hub_name(path))
        return rose_fail(
            err, ROSE_E_NOTFOUND,
            "'%.150s' is not a folder on this machine; to get it from the Hugging Face hub: "
            "roseinfer pull %.150s",
            path, path);
    return rose_fail(err, ROSE_E_NOTFOUND, "'%.200s': there is no such %s; " A_MODEL " (" FETCH ")",
                     path, ends_with(path, ".gguf") ? "file" : "folder");
}

static bool holds_snapshots(const char *path)
{
    DIR *d = opendir(path);
    bool found = false;
    if (d == NULL) return false;
    for (const struct dirent *e = readdir(d); e != NULL && !found; e = readdir(d))
        found = strcmp(e->d_name, "snapshots") == 0;
    closedir(d);
    return found;
}

rose_status rose_folder_no_config(const char *path, rose_err *err)
{
    if (holds_snapshots(path))
        return rose_fail(
            err, ROSE_E_NOTFOUND,
            "'%.200s': no config.json there; give one of the folders in its snapshots/", path);
    return rose_fail(err, ROSE_E_NOTFOUND,
                     "'%.200s': no config.json there; " A_MODEL " (" FETCH ")", path);
}

/* A GGUF file that can stand for a model: no part of a split model but its first one. */
static bool is_candidate(const char *name)
{
    const rose_gguf_split s = rose_gguf_read_split(name);
    return ends_with(name, ".gguf") && strncmp(name, "mmproj", 6) != 0 &&
           (s.count == 0 || s.no == 1);
}

/* The first candidate in the folder by name, and the second one; NULL = none. Owned by the caller.
 * With safetensors in the folder there are none. */
static rose_status find_candidates(DIR *d, char *found[2], rose_err *err)
{
    found[0] = found[1] = NULL;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (ends_with(e->d_name, ".safetensors")) {
            free(found[0]);
            free(found[1]);
            found[0] = found[1] = NULL;
            return ROSE_OK;
        }
        if (!is_candidate(e->d_name)) continue;
        char *const name = strdup(e->d_name);
        if (name == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
        const int at = found[0] == NULL || strcmp(name, found[0]) < 0 ? 0 : 1;
        if (at == 0 || found[1] == NULL || strcmp(name, found[1]) < 0) {
            free(found[1]);
            found[1] = at == 0 ? found[0] : name;
            if (at == 0) found[0] = name;
        } else {
            free(name);
        }
    }
    return ROSE_OK;
}

static rose_status find_in_folder(char **out, const char *path, rose_err *err)
{
    char *found[2] = {NULL, NULL};
    DIR *d = opendir(path);
    if (d == NULL && errno == ENOMEM)
        return rose_fail(err, ROSE_E_NOMEM, "%.200s: out of memory", path);
    if (d == NULL) return ROSE_OK; /* whoever opens its files says why */
    rose_status st = find_candidates(d, found, err);
    if (st == ROSE_OK && found[1] != NULL)
        st = rose_fail(err, ROSE_E_INVAL,
                       "'%.150s' holds several GGUF models, such as '%.80s' and '%.80s': give one "
                       "of the files",
                       path, found[0], found[1]);
    if (st == ROSE_OK && found[0] != NULL && asprintf(out, "%s/%s", path, found[0]) < 0) {
        *out = NULL;
        st = rose_fail(err, ROSE_E_NOMEM, "%.200s: out of memory", path);
    }
    free(found[0]);
    free(found[1]);
    closedir(d);
    return st;
}

rose_status rose_folder_find_gguf(char **out, const char *path, rose_err *err)
{
    struct stat st;
    *out = NULL;
    if (stat(path, &st) != 0) return ROSE_OK;
    if (S_ISDIR(st.st_mode)) return find_in_folder(out, path, err);
    if (!S_ISREG(st.st_mode) || (!ends_with(path, ".gguf") && !begins_gguf(path))) return ROSE_OK;
    const rose_gguf_split s = rose_gguf_read_split(path);
    if (s.count == 0)
        *out = strdup(path);
    else if (asprintf(out, "%.*s-00001-of-%05u.gguf", (int)s.prefix, path, s.count) < 0)
        *out = NULL;
    return *out != NULL ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "%.200s: out of memory", path);
}
