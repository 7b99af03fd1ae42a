/* base/folder.c - see folder.h. */
#include "base/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

#define GET_GPT2 "hf download openai-community/gpt2 --local-dir gpt2"
#define A_MODEL                                                                                    \
    "a model is a Hugging Face folder with config.json, *.safetensors and tokenizer.json"
#define NO_GGUF "GGUF is not supported; give the model's Hugging Face folder"

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Tells whether a file begins with the four bytes of the GGUF format. */
static bool begins_gguf(const char *path)
{
    char magic[4] = "";
    FILE *f = fopen(path, "rbe");
    if (f == NULL) return false;
    const bool found = fread(magic, 1, sizeof magic, f) == sizeof magic;
    fclose(f);
    return found && memcmp(magic, "GGUF", sizeof magic) == 0;
}

static rose_status refuse_file(const char *path, const struct stat *st, rose_err *err)
{
    if (ends_with(path, ".gguf") || (S_ISREG(st->st_mode) && begins_gguf(path)))
        return rose_fail(err, ROSE_E_UNSUPPORTED, "'%.200s' is a GGUF file: " NO_GGUF, path);
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
    if (stat(path, &st) == 0) return S_ISDIR(st.st_mode) ? ROSE_OK : refuse_file(path, &st, err);
    if (errno != ENOENT && errno != ENOTDIR)
        return rose_fail(err, ROSE_E_IO, "open %.200s: %s", path, strerror(errno));
    const rose_status linked = rose_file_check_link(path, err);
    if (linked != ROSE_OK) return linked;
    if (is_hub_name(path))
        return rose_fail(
            err, ROSE_E_NOTFOUND,
            "'%.100s' is not a folder on this machine, and roseinfer downloads no models; "
            "to get it from the Hugging Face hub: hf download %.100s --local-dir %.100s",
            path, path, strchr(path, '/') + 1);
    return rose_fail(err, ROSE_E_NOTFOUND,
                     "'%.200s': there is no such folder; " A_MODEL " (to get GPT-2: " GET_GPT2 ")",
                     path);
}

/* Looks in a folder for a GGUF file and for the snapshots folder of the Hugging Face cache. */
static void look_into(const char *path, bool *gguf, bool *snapshots)
{
    DIR *d = opendir(path);
    *gguf = *snapshots = false;
    if (d == NULL) return;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        *gguf |= ends_with(e->d_name, ".gguf");
        *snapshots |= strcmp(e->d_name, "snapshots") == 0;
    }
    closedir(d);
}

rose_status rose_folder_no_config(const char *path, rose_err *err)
{
    bool gguf, snapshots;
    look_into(path, &gguf, &snapshots);
    if (gguf)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "'%.200s': no config.json there, but a GGUF file: " NO_GGUF, path);
    if (snapshots)
        return rose_fail(
            err, ROSE_E_NOTFOUND,
            "'%.200s': no config.json there; give one of the folders in its snapshots/", path);
    return rose_fail(err, ROSE_E_NOTFOUND,
                     "'%.200s': no config.json there; " A_MODEL " (to get GPT-2: " GET_GPT2 ")",
                     path);
}
