/* hub/cache.c - the files of a model: finds those that are needed and in the cache, and fetches
 * the others. See hub.h.
 *
 * A download is written to blobs/HASH.incomplete, under the lock
 * .locks/models--ORG--NAME/HASH.lock. When the file is complete, it is renamed to blobs/HASH, and
 * the link snapshots/COMMIT/FILE is made. Weights are fetched last, and refs/REVISION is written
 * after them. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/gguf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "hub/hub.h"

enum { MAX_LIST = 16 << 20, MAX_FILES = 20000, PATH_CAP = 4096 };

/* One file of the repository; texts are borrowed from the list. */
typedef struct hub_file {
    const char *name, *hash; /* hash: the name of the blob */
    uint64_t size;
    bool lfs; /* hash is a SHA-256 */
    bool needed;
} hub_file;

bool rose_hub_parse(rose_hub *h, const char *text)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t org = strspn(text, allowed);
    if (org == 0 || text[0] == '.' || text[org] != '/') return false;
    const char *name = text + org + 1, *quant = name + strspn(name, allowed);
    const size_t n = (size_t)(quant - text);
    if (quant == name || name[0] == '.' || n >= sizeof h->name) return false;
    if (strstr(text, "..") != NULL || strstr(text, "--") != NULL) return false;
    if (*quant != '\0' && *quant++ != ':') return false;
    const size_t k = strspn(quant, allowed);
    if (quant[k] != '\0' || k >= sizeof h->quant || (k == 0 && quant[-1] == ':')) return false;
    memcpy(h->name, text, n);
    h->name[n] = '\0';
    memcpy(h->quant, quant, k + 1);
    return true;
}

/* ---- which files ---- */

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcasecmp(s + n - k, end) == 0;
}

static const char *base_of(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash != NULL ? slash + 1 : name;
}

static bool is_gguf(const char *name)
{
    return ends_with(name, ".gguf") && strncmp(base_of(name), "mmproj", 6) != 0;
}

/* The length of a name without ".gguf" or "-00001-of-00002.gguf" at its end. */
static size_t stem(const char *name)
{
    const rose_gguf_split s = rose_gguf_read_split(name);
    return s.count > 0 ? s.prefix : strlen(name) - 5;
}

/* "m-Q4_K_M.gguf", "m.q4_k_m.gguf" and "Q4_K_M.gguf" are of the type Q4_K_M. */
static bool has_quant(const char *name, const char *quant)
{
    const size_t n = stem(name), k = strlen(quant);
    return k == 0 || (n >= k && strncasecmp(name + n - k, quant, k) == 0 &&
                      (n == k || strchr("-._/", name[n - k - 1]) != NULL));
}

static bool is_small_file(const char *name)
{
    static const char *const names[] = {
        "config.json",
        "generation_config.json",
        "hf_quant_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "modules.json",
        "1_Pooling/config.json",
        "config_sentence_transformers.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* Some repositories hold the weights twice, the second time as consolidated*.safetensors. */
static bool is_weights(const char *name)
{
    return ends_with(name, ".safetensors") && strchr(name, '/') == NULL &&
           strncmp(name, "consolidated", 12) != 0;
}

/* Marks the GGUF files of one model and gives its first part, or its index n if there is none. */
static rose_status choose_gguf(const rose_hub *h, hub_file *f, size_t n, size_t *first,
                               rose_err *err)
{
    *first = n;
    for (size_t i = 0; i < n; i++) {
        if (!is_gguf(f[i].name) || !has_quant(f[i].name, h->quant)) continue;
        if (*first == n) *first = i;
        const char *a = f[*first].name, *b = f[i].name;
        if (stem(a) != stem(b) || strncmp(a, b, stem(a)) != 0)
            return rose_fail(err, ROSE_E_INVAL,
                             "%.120s holds several GGUF files, such as '%.80s' and '%.80s': name "
                             "the type of one, as in %.120s:Q4_K_M",
                             h->name, a, b, h->name);
        if (strcmp(b, a) < 0) *first = i;
        f[i].needed = true;
    }
    return ROSE_OK;
}

/* *first: the GGUF file to open, or n for a folder. */
static rose_status choose(const rose_hub *h, hub_file *f, size_t n, size_t *first, rose_err *err)
{
    bool weights = false, config = false;
    *first = n;
    for (size_t i = 0; i < n; i++) {
        weights |= is_weights(f[i].name);
        config |= strcmp(f[i].name, "config.json") == 0;
    }
    if (h->quant[0] == '\0' && weights && config) {
        for (size_t i = 0; i < n; i++)
            f[i].needed = is_small_file(f[i].name) || is_weights(f[i].name);
        return ROSE_OK;
    }
    const rose_status st = choose_gguf(h, f, n, first, err);
    if (st != ROSE_OK || *first < n) return st;
    if (h->quant[0] != '\0')
        return rose_fail(err, ROSE_E_NOTFOUND, "%.120s has no GGUF file of the type %s", h->name,
                         h->quant);
    return rose_fail(err, ROSE_E_NOTFOUND,
                     "%.120s has no config.json with *.safetensors and no GGUF file: roseinfer "
                     "loads no other files (*.bin, *.pt)",
                     h->name);
}

/* ---- the cache ---- */

static rose_status too_long(rose_err *err)
{
    return rose_fail(err, ROSE_E_INVAL, "the path of the cache is too long");
}

/* Writes the path of something in the model's folder. sub: "" or ".locks/". fmt: what follows. */
__attribute__((format(printf, 5, 6))) static rose_status
place(const rose_hub *h, char out[PATH_CAP], rose_err *err, const char *sub, const char *fmt, ...)
{
    const char *slash = strchr(h->name, '/');
    va_list ap;
    int n = snprintf(out, PATH_CAP, "%s/%smodels--%.*s--%s/", h->cache, sub, (int)(slash - h->name),
                     h->name, slash + 1);
    if (n < 0 || n >= PATH_CAP) return too_long(err);
    va_start(ap, fmt);
    const int k = vsnprintf(out + n, (size_t)(PATH_CAP - n), fmt, ap);
    va_end(ap);
    return k >= 0 && k < PATH_CAP - n ? ROSE_OK : too_long(err);
}

static rose_status system_error(rose_err *err, const char *what, const char *path)
{
    const int why = errno;
    const bool other = why == EACCES || why == EROFS || why == ENOLCK || why == ENOSYS;
    return rose_fail(err, ROSE_E_IO, "%s %.300s: %s%s", what, path, strerror(why),
                     why == ENOSPC || why == EDQUOT ? ": make room, or name another folder in "
                                                      "HF_HUB_CACHE"
                     : other                        ? ": name another folder in HF_HUB_CACHE"
                                                    : "");
}

/* Makes all folders above the last part of path. */
static rose_status make_folders(char *path, rose_err *err)
{
    for (char *p = strchr(path + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        *p = '\0';
        const int rc = mkdir(path, 0777);
        const rose_status st =
            rc == 0 || errno == EEXIST ? ROSE_OK : system_error(err, "cannot make", path);
        *p = '/';
        if (st != ROSE_OK) return st;
    }
    return ROSE_OK;
}

static bool is_hex(const char *s, size_t n)
{
    return strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

/* The commit that refs/REVISION names; a commit names itself. NOTFOUND without one. */
static rose_status read_ref(const rose_hub *h, char commit[41], rose_err *err)
{
    char path[PATH_CAP];
    rose_buf b = {0};
    rose_err ignored;
    if (is_hex(h->revision, 40)) {
        memcpy(commit, h->revision, 41);
        return ROSE_OK;
    }
    rose_status st = place(h, path, err, "", "refs/%.200s", h->revision);
    if (st == ROSE_OK) {
        st = ROSE_E_NOTFOUND;
        if (rose_file_read(&b, path, 64, &ignored) == ROSE_OK && rose_buf_str(&b) != NULL) {
            b.data[strcspn(b.data, "\r\n")] = '\0';
            if (is_hex(b.data, 40)) {
                memcpy(commit, b.data, 41);
                st = ROSE_OK;
            }
        }
    }
    rose_buf_free(&b);
    return st;
}

/* Tells whether the snapshot has every file that the index of the weights names. Without an index
 * there is one weight file, model.safetensors. */
static bool has_all_weights(const char *snapshot)
{
    char path[PATH_CAP + 1024];
    rose_buf b = {0};
    rose_err ignored;
    rose_json_error e;
    rose_json *root = NULL, *v;
    const char *key;
    bool all = true;

    snprintf(path, sizeof path, "%s/model.safetensors.index.json", snapshot);
    if (access(path, F_OK) != 0) {
        snprintf(path, sizeof path, "%s/model.safetensors", snapshot);
        return access(path, R_OK) == 0;
    }
    if (rose_file_read(&b, path, MAX_LIST, &ignored) == ROSE_OK)
        rose_json_parse(&root, b.data, b.len, ROSE_JSON_PYTHON, &e);
    rose_json *map = rose_json_get(root, "weight_map");
    if (map == NULL) all = false;
    rose_json_each (map, key, v) {
        const char *name = rose_json_text(v);
        snprintf(path, sizeof path, "%s/%.900s", snapshot, name != NULL ? name : "");
        if (access(path, R_OK) != 0) all = false;
    }
    rose_json_decref(root);
    rose_buf_free(&b);
    return all;
}

/* The name of a link to the GGUF file to open, made when all its parts are there. It is needed
 * because refs/ says nothing about the type of the files. */
static void gguf_mark(const rose_hub *h, char out[128])
{
    snprintf(out, 128, ".roseinfer-%s", h->quant[0] != '\0' ? h->quant : "gguf");
    for (char *p = out; *p != '\0'; p++)
        *p = (char)tolower((unsigned char)*p);
}

static rose_status add_path(rose_buf *path, const char *snapshot, const char *file, rose_err *err)
{
    if (rose_buf_addf(path, "%s%s%s", snapshot, file[0] != '\0' ? "/" : "", file) == ROSE_OK)
        return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "out of memory");
}

rose_status rose_hub_find(const rose_hub *h, rose_buf *path, rose_err *err)
{
    char commit[41], snapshot[PATH_CAP], file[PATH_CAP + 160], mark[128], target[1024];
    rose_status st = read_ref(h, commit, err);
    if (st != ROSE_OK) return st;
    if ((st = place(h, snapshot, err, "", "snapshots/%s", commit)) != ROSE_OK) return st;
    gguf_mark(h, mark);
    snprintf(file, sizeof file, "%s/%s", snapshot, mark);
    const ssize_t n = readlink(file, target, sizeof target - 1);
    if (n > 0) {
        target[n] = '\0';
        if (access(file, R_OK) != 0) return ROSE_E_NOTFOUND;
        return add_path(path, snapshot, target, err);
    }
    if (h->quant[0] != '\0') return ROSE_E_NOTFOUND;
    snprintf(file, sizeof file, "%s/config.json", snapshot);
    if (access(file, R_OK) != 0 || !has_all_weights(snapshot)) return ROSE_E_NOTFOUND;
    return add_path(path, snapshot, "", err);
}

/* A name next to path that no other process has. Containers that share a cache can have equal
 * process ids, so it is random. */
static void name_temporary(char out[PATH_CAP + 32], const char *path)
{
    uint64_t x;
    if (getrandom(&x, sizeof x, 0) < 0) x = rose_now_ns();
    snprintf(out, PATH_CAP + 32, "%s.%016" PRIx64, path, x);
}

/* Makes the link `path` to `to`, in place of what was there. */
static rose_status make_link(char *path, const char *to, rose_err *err)
{
    char temporary[PATH_CAP + 32];
    rose_status st = make_folders(path, err);
    if (st != ROSE_OK) return st;
    name_temporary(temporary, path);
    if (symlink(to, temporary) != 0 || rename(temporary, path) != 0) {
        st = system_error(err, "cannot link", path);
        unlink(temporary);
    }
    return st;
}

static rose_status link_file(const rose_hub *h, const char *commit, const hub_file *f,
                             rose_err *err)
{
    char path[PATH_CAP];
    rose_buf to = {0};
    rose_status st = place(h, path, err, "", "snapshots/%s/%.900s", commit, f->name);
    for (const char *p = f->name; st == ROSE_OK && p != NULL; p = strchr(p + 1, '/'))
        st = rose_buf_addf(&to, "../");
    if (st == ROSE_OK) st = rose_buf_addf(&to, "../blobs/%s", f->hash);
    if (st == ROSE_OK && rose_buf_str(&to) != NULL) st = make_link(path, to.data, err);
    rose_buf_free(&to);
    return st;
}

static rose_status write_ref(const rose_hub *h, const char *commit, rose_err *err)
{
    char path[PATH_CAP], temporary[PATH_CAP + 32];
    if (is_hex(h->revision, 40)) return ROSE_OK;
    rose_status st = place(h, path, err, "", "refs/%.200s", h->revision);
    if (st == ROSE_OK) st = make_folders(path, err);
    if (st != ROSE_OK) return st;
    name_temporary(temporary, path);
    FILE *f = fopen(temporary, "wxe");
    bool ok = f != NULL && fputs(commit, f) >= 0;
    if (f != NULL && fclose(f) != 0) ok = false;
    if (!ok || rename(temporary, path) != 0) {
        st = system_error(err, "cannot write", path);
        unlink(temporary);
    }
    return st;
}

/* ---- one file ---- */

typedef struct download {
    const rose_hub *h;
    const hub_file *f;
    int fd;
    uint64_t at;   /* bytes in the file, all of them in sha */
    uint64_t best; /* the largest `at` so far: a try that exceeds it has made progress */
    bool resumed;  /* the first bytes come from an earlier process */
    rose_sha256 sha;
    rose_progress bar;
    rose_status st; /* why the receiver stopped */
    rose_err *err;
    char path[PATH_CAP];
} download;

/* Writes a line of progress to the log or to standard error. */
static void say(const rose_hub *h, const char *text)
{
    if (h->log)
        rose_log(ROSE_LOG_INFO, "pull", "%s", text);
    else
        fprintf(stderr, "roseinfer: %s\n", text);
}

/* Begins the file anew. */
static bool restart(download *d)
{
    d->at = 0;
    rose_sha256_init(&d->sha);
    if (ftruncate(d->fd, 0) == 0 && lseek(d->fd, 0, SEEK_SET) == 0) return true;
    d->st = system_error(d->err, "cannot write", d->path);
    return false;
}

static bool on_start(void *ctx, const rose_hub_reply *r)
{
    download *d = ctx;
    if (r->code == 200) return restart(d); /* a server without ranges, or nothing to resume */
    if (r->first == d->at && (r->total == 0 || r->total == d->f->size)) return true;
    d->st = rose_fail(d->err, ROSE_E_FORMAT,
                      "%.120s: the hub gives bytes from %" PRIu64 " of %" PRIu64
                      " instead of %" PRIu64 " of %" PRIu64 ": did the file change?",
                      d->f->name, r->first, r->total, d->at, d->f->size);
    return false;
}

static bool on_bytes(void *ctx, const void *bytes, size_t n)
{
    download *d = ctx;
    if (n > d->f->size - d->at) {
        d->st = rose_fail(d->err, ROSE_E_FORMAT,
                          "%.120s: the hub sends more than the %" PRIu64 " bytes that it promised",
                          d->f->name, d->f->size);
        return false;
    }
    rose_sha256_add(&d->sha, bytes, n);
    d->at += n;
    if (!rose_file_write(d->fd, bytes, n)) {
        d->st = system_error(d->err, "cannot write", d->path);
        return false;
    }
    rose_progress_update(&d->bar, d->at / 1000000, "MB");
    return true;
}

/* Reads the bytes that an earlier try left. Only a file with a SHA-256 is continued: without it
 * nothing would show that the two halves belong to different files. */
static rose_status take_up(download *d)
{
    char block[65536];
    ssize_t n;
    struct stat st;
    rose_sha256_init(&d->sha);
    d->at = 0;
    if (fstat(d->fd, &st) != 0) return system_error(d->err, "cannot read", d->path);
    if (!d->f->lfs || (uint64_t)st.st_size > d->f->size) return restart(d) ? ROSE_OK : d->st;
    while ((n = read(d->fd, block, sizeof block)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return system_error(d->err, "cannot read", d->path);
        rose_sha256_add(&d->sha, block, (size_t)n);
        d->at += (uint64_t)n;
    }
    d->resumed = d->at > 0;
    return ROSE_OK;
}

/* Adds text to a URL; bytes that mean something in a URL are written as %XX. */
static rose_status add_escaped(rose_buf *url, const char *text, bool slash)
{
    rose_status st = ROSE_OK;
    for (; *text != '\0' && st == ROSE_OK; text++) {
        const unsigned char c = (unsigned char)*text;
        const bool plain =
            c < 128 && (isalnum(c) || strchr("-._~", c) != NULL || (slash && c == '/'));
        st = rose_buf_addf(url, plain ? "%c" : "%%%02X", c);
    }
    return st;
}

/* Explains a reply that does not have the file. */
static rose_status refusal(const rose_hub *h, const char *what, const rose_hub_reply *r,
                           rose_err *err)
{
    const char *token = h->token != NULL ? "the token was refused, or"
                                         : "give a token (HF_TOKEN, --token-file), or";
    if (r->code == 403 || strcmp(r->error_code, "GatedRepo") == 0)
        return rose_fail(err, ROSE_E_IO,
                         "%.120s: the hub refuses %.100s (%ld): the model is gated; accept its "
                         "terms at %.120s/%.120s and give a token (HF_TOKEN, --token-file)",
                         h->name, what, r->code, h->endpoint, h->name);
    if (r->code == 401)
        return rose_fail(err, ROSE_E_IO,
                         "%.120s: the hub refuses %.100s (401): %s there is no such model", h->name,
                         what, token);
    if (r->code == 404)
        return rose_fail(err, ROSE_E_NOTFOUND,
                         "%.120s: %.120s has no %.100s (404): is the name right, and the revision "
                         "%.60s?",
                         h->name, h->endpoint, what, h->revision);
    return rose_fail(err, ROSE_E_IO, "%.120s: the hub answers %ld for %.100s", h->name, r->code,
                     what);
}

/* Waits before try number `tries`: half a second, doubled each time, or what the server asks. */
static void back_off(const rose_hub *h, uint32_t tries, const rose_hub_reply *r,
                     const rose_err *err)
{
    char line[ROSE_ERR_CAP + 64];
    const uint64_t ms =
        r->retry_after > 0 ? r->retry_after * 1000ull : 250ull << (tries < 7 ? tries : 7);
    const struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    snprintf(line, sizeof line, "%.500s; next try in %.1f s", err->msg, (double)ms * 1e-3);
    say(h, line);
    nanosleep(&t, NULL);
}

/* Gets the rest of the file. */
static rose_status fetch_rest(download *d, const char *url)
{
    rose_hub_reply r;
    uint32_t tries = 0;
    while (d->at < d->f->size || d->f->size == 0) {
        d->st = ROSE_OK;
        if (!d->f->lfs && !restart(d)) return d->st;
        rose_err why = {{0}}; /* so that what the receiver says stays */
        rose_status st = rose_hub_get(d->h, url, d->at, on_start, on_bytes, d, &r, &why);
        if (d->st != ROSE_OK) return d->st;
        *d->err = why;
        if (st != ROSE_OK && !r.again) return st;
        if (st == ROSE_OK && r.code == 416 && d->at > 0) {
            if (!restart(d)) return d->st;
            continue;
        }
        if (st == ROSE_OK && r.code != 200 && r.code != 206)
            st = refusal(d->h, d->f->name, &r, d->err);
        else if (st == ROSE_OK && d->at == d->f->size)
            return ROSE_OK;
        else if (st == ROSE_OK)
            st = rose_fail(d->err, ROSE_E_FORMAT,
                           "%.120s: the hub sent %" PRIu64 " of the %" PRIu64
                           " bytes that it promised",
                           d->f->name, d->at, d->f->size);
        if (d->at > d->best) {
            d->best = d->at;
            tries = 0;
        }
        if ((!r.again && r.code != 200 && r.code != 206) || tries++ >= d->h->retries) return st;
        if (r.code == 200 && st == ROSE_E_FORMAT && tries > 1) return st;
        back_off(d->h, tries, &r, d->err);
    }
    return ROSE_OK;
}

/* Checks the hash and gives the file its final name. EMPTY: the bytes of an earlier process were
 * wrong, so the download must start again from the first byte. */
static rose_status finish(download *d, const char *blob)
{
    char hex[65];
    rose_sha256_hex(&d->sha, hex);
    if (d->f->lfs && strcmp(hex, d->f->hash) != 0) {
        if (d->resumed) return ROSE_E_EMPTY;
        unlink(d->path);
        return rose_fail(
            d->err, ROSE_E_FORMAT,
            "%.120s: the SHA-256 is %s instead of %s; what came was deleted, try again", d->f->name,
            hex, d->f->hash);
    }
    if (fsync(d->fd) != 0 || rename(d->path, blob) != 0)
        return system_error(d->err, "cannot write", blob);
    return ROSE_OK;
}

static bool is_whole(const char *path, const hub_file *f)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->size;
}

static rose_status fetch_locked(const rose_hub *h, const char *url, const hub_file *f,
                                const char *blob, rose_err *err)
{
    char line[320];
    download *d = calloc(1, sizeof *d);
    if (d == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    *d = (download){.h = h, .f = f, .fd = -1, .err = err};
    const int n = snprintf(d->path, sizeof d->path, "%s.incomplete", blob);
    rose_status st = n < PATH_CAP ? ROSE_OK : too_long(err);
    if (st == ROSE_OK &&
        (d->fd = open(d->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666)) < 0)
        st = system_error(err, "cannot write", d->path);
    if (st == ROSE_OK) st = take_up(d);
    if (st == ROSE_OK) {
        snprintf(line, sizeof line, "%.200s, %.1f MB%s", f->name, (double)f->size * 1e-6,
                 d->at > 0 ? ", continued" : "");
        say(h, line);
        rose_progress_wait(&d->bar, h->log ? "pull" : NULL, base_of(f->name), f->size / 1000000);
        st = fetch_rest(d, url);
        rose_progress_end(&d->bar);
    }
    if (st == ROSE_OK) st = finish(d, blob);
    if (st == ROSE_E_EMPTY) {
        say(h, "what an earlier process had fetched is wrong: the file begins anew");
        d->resumed = false;
        d->best = 0;
        st = restart(d) ? fetch_rest(d, url) : d->st;
        if (st == ROSE_OK) st = finish(d, blob);
    }
    if (d->fd >= 0) close(d->fd);
    free(d);
    return st;
}

static rose_status take_lock(const rose_hub *h, int fd, const char *path, rose_err *err)
{
    int rc = flock(fd, LOCK_EX | LOCK_NB);
    if (rc != 0 && errno == EWOULDBLOCK) {
        say(h, "another process fetches the same file: waiting for it");
        while ((rc = flock(fd, LOCK_EX)) != 0 && errno == EINTR) {
        }
    }
    return rc == 0 ? ROSE_OK : system_error(err, "cannot lock", path);
}

static rose_status fetch_file(const rose_hub *h, const char *commit, const hub_file *f,
                              rose_err *err)
{
    char blob[PATH_CAP], lock[PATH_CAP];
    rose_buf url = {0};
    rose_status st = place(h, blob, err, "", "blobs/%s", f->hash);
    if (st == ROSE_OK) st = place(h, lock, err, ".locks/", "%s.lock", f->hash);
    if (st == ROSE_OK && is_whole(blob, f)) return link_file(h, commit, f, err);
    if (st == ROSE_OK) st = make_folders(blob, err);
    if (st == ROSE_OK) st = make_folders(lock, err);
    if (st != ROSE_OK) return st;
    const int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return system_error(err, "cannot write", lock);
    if ((st = take_lock(h, fd, lock, err)) != ROSE_OK) {
        close(fd);
        return st;
    }
    st = rose_buf_addf(&url, "%s/%s/resolve/%s/", h->endpoint, h->name, commit);
    if (st == ROSE_OK) st = add_escaped(&url, f->name, true);
    if (st != ROSE_OK || rose_buf_str(&url) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    else if (!is_whole(blob, f))
        st = fetch_locked(h, url.data, f, blob, err);
    close(fd); /* and with it the lock */
    rose_buf_free(&url);
    return st == ROSE_OK ? link_file(h, commit, f, err) : st;
}

/* ---- the repository ---- */

static bool list_start(void *ctx, const rose_hub_reply *r)
{
    (void)r;
    ((rose_buf *)ctx)->len = 0;
    return true;
}

static bool list_take(void *ctx, const void *bytes, size_t n)
{
    rose_buf *b = ctx;
    return n <= MAX_LIST - b->len && rose_buf_add(b, bytes, n) == ROSE_OK;
}

static rose_status fetch_list(const rose_hub *h, rose_buf *out, rose_err *err)
{
    rose_buf url = {0};
    rose_hub_reply r;
    rose_status st = rose_buf_addf(&url, "%s/api/models/%s/revision/", h->endpoint, h->name);
    if (st == ROSE_OK) st = add_escaped(&url, h->revision, false);
    if (st == ROSE_OK) st = rose_buf_addf(&url, "?blobs=true");
    if (st != ROSE_OK || rose_buf_str(&url) == NULL) {
        rose_buf_free(&url);
        return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    }
    for (uint32_t tries = 1;; tries++) {
        st = rose_hub_get(h, url.data, 0, list_start, list_take, out, &r, err);
        if (st == ROSE_OK && r.code != 200) st = refusal(h, "list of files", &r, err);
        if (st == ROSE_OK || !r.again || tries > h->retries) break;
        back_off(h, tries, &r, err);
    }
    rose_buf_free(&url);
    return st;
}

/* No part may be empty, "." or "..", so a name cannot lead out of the snapshot. */
static bool is_safe_name(const char *s)
{
    if (strlen(s) > 800) return false;
    for (const char *p = s;; p++) {
        const size_t n = strcspn(p, "/");
        if (n == 0 || n > 255 || (n == 1 && *p == '.') || (n == 2 && memcmp(p, "..", 2) == 0))
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < 32 || p[i] == '\\' || p[i] == 127) return false;
        if (p[n] == '\0') return true;
        p += n;
    }
}

static rose_status read_file(hub_file *f, rose_json *j, rose_err *err)
{
    rose_json *lfs = rose_json_get(j, "lfs");
    const rose_json *size = rose_json_get(rose_json_is_object(lfs) ? lfs : j, "size");
    f->name = rose_json_text(rose_json_get(j, "rfilename"));
    f->lfs = rose_json_is_object(lfs);
    f->hash = f->lfs ? rose_json_text(rose_json_get(lfs, "sha256"))
                     : rose_json_text(rose_json_get(j, "blobId"));
    f->size = (uint64_t)rose_json_int(size);
    if (f->name == NULL || !is_safe_name(f->name))
        return rose_fail(err, ROSE_E_FORMAT, "the hub lists a file with the unsafe name '%.200s'",
                         f->name != NULL ? f->name : "");
    if (!rose_json_is_integer(size) || rose_json_int(size) < 0 || f->hash == NULL ||
        !is_hex(f->hash, f->lfs ? 64 : 40))
        return rose_fail(err, ROSE_E_FORMAT, "the hub lists %.200s without its size and hash",
                         f->name);
    return ROSE_OK;
}

static rose_status fetch_needed(const rose_hub *h, const char *commit, const hub_file *f, size_t n,
                                rose_err *err)
{
    rose_status st = ROSE_OK;
    for (int last = 0; last < 2; last++) /* weights come last */
        for (size_t i = 0; i < n && st == ROSE_OK; i++)
            if (f[i].needed && (is_weights(f[i].name) || is_gguf(f[i].name)) == (last == 1))
                st = fetch_file(h, commit, &f[i], err);
    return st;
}

static rose_status mark_gguf(const rose_hub *h, const char *commit, const char *name, rose_err *err)
{
    char path[PATH_CAP], mark[128];
    gguf_mark(h, mark);
    const rose_status st = place(h, path, err, "", "snapshots/%s/%s", commit, mark);
    return st == ROSE_OK ? make_link(path, name, err) : st;
}

static rose_status pull_list(const rose_hub *h, rose_json *root, char commit[41], rose_err *err)
{
    rose_json *list = rose_json_get(root, "siblings");
    const char *sha = rose_json_text(rose_json_get(root, "sha"));
    const size_t n = rose_json_count(list);
    size_t first = n;
    if (sha == NULL || !is_hex(sha, 40) || n > MAX_FILES)
        return rose_fail(err, ROSE_E_FORMAT, "%.120s: the hub gives no list of files with a commit",
                         h->name);
    if (is_hex(h->revision, 40) && strcmp(sha, h->revision) != 0)
        return rose_fail(err, ROSE_E_FORMAT, "%.120s: the hub gives the commit %s instead of %s",
                         h->name, sha, h->revision);
    memcpy(commit, sha, 41);
    hub_file *f = calloc(n + 1, sizeof *f);
    rose_status st = f != NULL ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n && st == ROSE_OK; i++)
        st = read_file(&f[i], rose_json_at(list, i), err);
    if (st == ROSE_OK) st = choose(h, f, n, &first, err);
    if (st == ROSE_OK) st = fetch_needed(h, commit, f, n, err);
    if (st == ROSE_OK && first < n) st = mark_gguf(h, commit, f[first].name, err);
    if (st == ROSE_OK) st = write_ref(h, commit, err);
    free(f);
    return st;
}

rose_status rose_hub_pull(const rose_hub *h, rose_buf *path, rose_err *err)
{
    char commit[41];
    rose_buf text = {0};
    rose_json *root = NULL;
    rose_json_error e;
    rose_status st = fetch_list(h, &text, err);
    if (st == ROSE_OK && rose_json_parse(&root, text.data, text.len, 0, &e) != ROSE_OK)
        st = rose_fail(err, ROSE_E_FORMAT, "%.120s: the hub's list of files is not JSON: %.100s",
                       h->name, e.text);
    if (st == ROSE_OK) st = pull_list(h, root, commit, err);
    if (st == ROSE_OK) {
        rose_hub at = *h;
        at.revision = commit;
        st = rose_hub_find(&at, path, err);
        if (st == ROSE_E_NOTFOUND)
            st = rose_fail(err, st, "%.120s: the hub lacks files that its index of weights names",
                           h->name);
    }
    rose_json_decref(root);
    rose_buf_free(&text);
    return st;
}
