/* cli/pull.c - `roseinfer pull`, and what the other commands make of a name of the Hugging Face
 * hub. The variables of the environment are those of huggingface_hub. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/opts.h"
#include "cli/cli.h"
#include "hub/hub.h"

/* The texts that a rose_hub borrows. */
typedef struct places {
    rose_buf cache, token, endpoint;
} places;

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v != NULL && v[0] != '\0' ? v : NULL;
}

static bool is_offline(void)
{
    const char *v = env("HF_HUB_OFFLINE");
    return v != NULL && (strcmp(v, "1") == 0 || strcasecmp(v, "true") == 0 ||
                         strcasecmp(v, "yes") == 0 || strcasecmp(v, "on") == 0);
}

static void free_places(places *p)
{
    rose_buf_free(&p->cache);
    rose_buf_free(&p->token);
    rose_buf_free(&p->endpoint);
}

/* Appends the folder $HF_HOME or its default, and tail. */
static rose_status add_home(rose_buf *out, const char *tail, rose_err *err)
{
    const char *hf = env("HF_HOME"), *xdg = env("XDG_CACHE_HOME"), *home = env("HOME");
    if (hf == NULL && xdg == NULL && home == NULL)
        return rose_fail(err, ROSE_E_NOTFOUND,
                         "no folder for models: set HF_HUB_CACHE, HF_HOME or HOME");
    const rose_status st = hf != NULL ? rose_buf_addf(out, "%s%s", hf, tail)
                           : xdg != NULL
                               ? rose_buf_addf(out, "%s/huggingface%s", xdg, tail)
                               : rose_buf_addf(out, "%s/.cache/huggingface%s", home, tail);
    if (st == ROSE_OK && rose_buf_str(out) != NULL) return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "out of memory");
}

/* Takes the token of a file: its first line. */
static rose_status read_token(rose_buf *out, const char *path, rose_err *err)
{
    rose_status st = rose_file_read(out, path, 4096, err);
    if (st != ROSE_OK) return st;
    if (rose_buf_str(out) == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    out->data[strcspn(out->data, " \t\r\n")] = '\0';
    return ROSE_OK;
}

/* The token comes from file, HF_TOKEN, HF_TOKEN_PATH or the file that `hf auth login` writes. */
static rose_status find_token(places *p, const char **token, const char *file, rose_err *err)
{
    rose_buf path = {0};
    rose_err ignored = {{0}};
    rose_status st = ROSE_OK;
    if (file != NULL) {
        st = read_token(&p->token, file, err);
        if (st == ROSE_OK && p->token.data[0] == '\0')
            st = rose_fail(err, ROSE_E_FORMAT, "--token-file %.200s holds no token", file);
    } else if (env("HF_TOKEN") != NULL) {
        st = rose_buf_addf(&p->token, "%s", env("HF_TOKEN"));
        if (st == ROSE_OK && rose_buf_str(&p->token) == NULL) st = ROSE_E_NOMEM;
    } else if (env("HF_TOKEN_PATH") != NULL) {
        st = read_token(&p->token, env("HF_TOKEN_PATH"), err);
    } else if (add_home(&path, "/token", &ignored) == ROSE_OK) {
        st = read_token(&p->token, path.data, err);
        if (st == ROSE_E_NOTFOUND) st = ROSE_OK;
    }
    rose_buf_free(&path);
    *token = st == ROSE_OK && p->token.len > 0 && p->token.data[0] != '\0' ? p->token.data : NULL;
    if (*token != NULL && (strlen(*token) > 500 || strpbrk(*token, "\r\n") != NULL))
        return rose_fail(err, ROSE_E_FORMAT, "the token of the hub is not one line of 500 bytes");
    return st;
}

/* The variables that requests and curl read, in their order. The first of these variables that is
 * set counts, but SSL_CERT_FILE and SSL_CERT_DIR count together, as they do for curl. */
static rose_status find_certificates(rose_hub *h, rose_err *err)
{
    struct stat st;
    h->ca_from = env("REQUESTS_CA_BUNDLE") != NULL ? "REQUESTS_CA_BUNDLE" : "CURL_CA_BUNDLE";
    h->ca_file = env(h->ca_from);
    if (h->ca_file != NULL) {
        if (stat(h->ca_file, &st) == 0 && S_ISDIR(st.st_mode)) {
            h->ca_dir = h->ca_file;
            h->ca_file = NULL;
        }
    } else {
        h->ca_file = env("SSL_CERT_FILE");
        h->ca_dir = env("SSL_CERT_DIR");
        h->ca_from = h->ca_file == NULL  ? (h->ca_dir != NULL ? "SSL_CERT_DIR" : NULL)
                     : h->ca_dir == NULL ? "SSL_CERT_FILE"
                                         : "SSL_CERT_FILE and SSL_CERT_DIR";
    }
    if (h->ca_file == NULL || access(h->ca_file, R_OK) == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL, "%s names '%.300s', which cannot be read: %s", h->ca_from,
                     h->ca_file, strerror(errno));
}

/* url, token_file: of the options; NULL = the environment's. */
static rose_status find_places(places *p, rose_hub *h, const char *url, const char *token_file,
                               rose_err *err)
{
    const char *own =
        env("HF_HUB_CACHE") != NULL ? env("HF_HUB_CACHE") : env("HUGGINGFACE_HUB_CACHE");
    if (url == NULL)
        url = env("HF_ENDPOINT") != NULL ? env("HF_ENDPOINT") : "https://huggingface.co";
    size_t n = strlen(url);
    while (n > 0 && url[n - 1] == '/')
        n--;
    if (strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0)
        return rose_fail(err, ROSE_E_INVAL, "the hub's address '%.200s' is not an http(s) URL",
                         url);
    rose_status st = rose_buf_add(&p->endpoint, url, n);
    if (st != ROSE_OK || rose_buf_str(&p->endpoint) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    st = own != NULL ? rose_buf_addf(&p->cache, "%s", own) : add_home(&p->cache, "/hub", err);
    if (st == ROSE_OK && rose_buf_str(&p->cache) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    h->cache = p->cache.data;
    h->endpoint = p->endpoint.data;
    if (st == ROSE_OK) st = find_certificates(h, err);
    return st == ROSE_OK ? find_token(p, &h->token, token_file, err) : st;
}

/* A path on this machine comes first. So does a mistyped path: its first folder is there. */
static bool is_local(const char *model)
{
    char folder[256];
    struct stat st;
    if (lstat(model, &st) == 0) return true;
    snprintf(folder, sizeof folder, "%.*s", (int)strcspn(model, "/"), model);
    return stat(folder, &st) == 0;
}

/* NULL, or why nothing is fetched. */
static const char *offline(void)
{
    return is_offline() ? "HF_HUB_OFFLINE is set" : NULL;
}

/* refusal: why nothing is fetched, or NULL. */
static rose_status find_or_pull(const rose_hub *h, rose_buf *path, const char *refusal,
                                rose_err *err)
{
    const rose_status st = rose_hub_find(h, path, err);
    const char *colon = h->quant[0] != '\0' ? ":" : "";
    if (st != ROSE_E_NOTFOUND) return st;
    if (refusal == NULL) return rose_hub_pull(h, path, err);
    return rose_fail(err, st,
                     "'%s%s%s' is not in the cache %.150s, and %s: `roseinfer pull %s%s%s` gets it",
                     h->name, colon, h->quant, h->cache, refusal, h->name, colon, h->quant);
}

bool rose_cli_find_model(const char **model, rose_buf *path, bool pull, bool log, rose_err *err)
{
    rose_hub h = {.revision = "main", .stall_s = 30, .retries = 5, .log = log};
    places p = {0};
    rose_err e = {{0}};
    if (is_local(*model) || !rose_hub_parse(&h, *model)) return true;
    rose_status st = find_places(&p, &h, NULL, NULL, &e);
    if (st == ROSE_OK)
        st = find_or_pull(&h, path, !pull ? "this command fetches nothing" : offline(), &e);
    if (st == ROSE_OK && rose_buf_str(path) == NULL)
        st = rose_fail(&e, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK) *model = path->data;
    if (st != ROSE_OK) *err = e;
    free_places(&p);
    return st == ROSE_OK;
}

int rose_cmd_pull(int argc, char **argv)
{
    rose_hub h = {.revision = "main", .stall_s = 30, .retries = 5};
    const char *token_file = NULL, *url = NULL, *name;
    bool refresh = true;
    const rose_opt opts[] = {
        ROSE_ROW_STRING("revision", &h.revision, "REV", "a branch, a tag or a commit"),
        ROSE_ROW_STRING("token-file", &token_file, "FILE", "a file with the token of the hub",
                        .unset = "HF_TOKEN, or the file of `hf auth login`"),
        ROSE_ROW_STRING("hub-url", &url, "URL", "address of the hub",
                        .unset = "HF_ENDPOINT, or https://huggingface.co"),
        ROSE_ROW_U32("stall-timeout", &h.stall_s, "SECONDS", 1, 3600,
                     "give a connection up that brought nothing for so long"),
        ROSE_ROW_BOOL("refresh", &refresh,
                      "ask the hub for a newer version of a model that is in the cache"),
        ROSE_ROW_U32("retries", &h.retries, "N", 0, 100, "failed tries in a row before an error"),
    };
    const int rc = rose_opts_parse_one(
        "roseinfer pull ORG/NAME[:QUANT] [options]",
        "Fetches a model of the Hugging Face hub to the cache and prints its path. Only the files\n"
        "that roseinfer reads are fetched. :QUANT names a GGUF file by its type, as in :Q4_K_M.\n"
        "HF_HOME or HF_HUB_CACHE names the cache. REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, "
        "SSL_CERT_FILE\n"
        "and SSL_CERT_DIR name certificates to trust.",
        opts, sizeof opts / sizeof *opts, argc, argv, &name);
    if (rc >= 0) return rc;

    places p = {0};
    rose_buf path = {0};
    rose_err err = {{0}};
    rose_status st = ROSE_OK;
    if (!rose_hub_parse(&h, name))
        st = rose_fail(&err, ROSE_E_INVAL,
                       "'%.200s' is not a name of the hub: ORG/NAME or ORG/NAME:QUANT", name);
    else if (h.revision[0] == '\0' || h.revision[0] == '/' || strstr(h.revision, "..") != NULL ||
             strlen(h.revision) > 200)
        st = rose_fail(&err, ROSE_E_INVAL, "--revision '%.200s' is no name of a revision",
                       h.revision);
    else if (refresh && offline() != NULL)
        st = rose_fail(&err, ROSE_E_INVAL, "%s: nothing is fetched", offline());
    if (st == ROSE_OK) st = find_places(&p, &h, url, token_file, &err);
    if (st == ROSE_OK)
        st = refresh ? rose_hub_pull(&h, &path, &err) : find_or_pull(&h, &path, offline(), &err);
    if (st == ROSE_OK) printf("%.*s\n", (int)path.len, path.data);
    rose_buf_free(&path);
    free_places(&p);
    return st == ROSE_OK ? 0 : rose_die(&err);
}
