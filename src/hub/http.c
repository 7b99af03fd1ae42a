/* hub/http.c - GET requests to the hub. libcurl is loaded at the first request, and its headers
 * are not needed to build: the numbers of its ABI, which never change, stand below. This file
 * follows redirects itself, because libcurl before 7.83 sends the token to another port of the same
 * host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/dl.h"
#include "base/version.h"
#include "hub/hub.h"

enum {
    OPT_LOW_SPEED_LIMIT = 19,
    OPT_LOW_SPEED_TIME = 20,
    OPT_CONNECTTIMEOUT = 78,
    OPT_PROTOCOLS = 181,
    OPT_WRITEDATA = 10001,
    OPT_URL = 10002,
    OPT_RANGE = 10007,
    OPT_ERRORBUFFER = 10010,
    OPT_USERAGENT = 10018,
    OPT_HTTPHEADER = 10023,
    OPT_HEADERDATA = 10029,
    OPT_CAINFO = 10065,
    OPT_CAPATH = 10097,
    OPT_WRITEFUNCTION = 20011,
    OPT_HEADERFUNCTION = 20079,
    INFO_RESPONSE_CODE = 0x200002,
    INFO_REDIRECT_URL = 0x10001f,
    PROTOCOL_HTTP_AND_HTTPS = 3,
    CODE_PEER_FAILED_VERIFICATION = 60,
    CODE_CACERT_BADFILE = 77,
    ERROR_TEXT = 256,
    MAX_REDIRECTS = 5,
    MAX_DROPPED = 1 << 20
};

static struct {
    void *library;
    int (*global_init)(long flags);
    void *(*easy_init)(void);
    int (*easy_setopt)(void *curl, int option, ...);
    int (*easy_perform)(void *curl);
    int (*easy_getinfo)(void *curl, int info, ...);
    void (*easy_cleanup)(void *curl);
    const char *(*easy_strerror)(int code);
    void *(*slist_append)(void *list, const char *text);
    void (*slist_free_all)(void *list);
} lib;

static rose_status load(rose_err *err)
{
    static const char *const paths[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    const rose_dl_function f[] = {
        {"curl_global_init", &lib.global_init},      {"curl_easy_init", &lib.easy_init},
        {"curl_easy_setopt", &lib.easy_setopt},      {"curl_easy_perform", &lib.easy_perform},
        {"curl_easy_getinfo", &lib.easy_getinfo},    {"curl_easy_cleanup", &lib.easy_cleanup},
        {"curl_easy_strerror", &lib.easy_strerror},  {"curl_slist_append", &lib.slist_append},
        {"curl_slist_free_all", &lib.slist_free_all}};
    rose_err why = {{0}};
    if (lib.library != NULL) return ROSE_OK;
    if (rose_dl_open(&lib.library, paths, 2, f, sizeof f / sizeof *f, &why) != ROSE_OK)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "models are fetched with libcurl, which does not load (%.200s): install "
                         "it (Debian, Ubuntu: apt install libcurl4)",
                         why.msg);
    const int rc = lib.global_init(3);
    if (rc == 0) return ROSE_OK;
    rose_fail(err, ROSE_E_IO, "libcurl does not start: %s", lib.easy_strerror(rc));
    rose_dl_close(lib.library); /* and with it the text */
    lib.library = NULL;
    return ROSE_E_IO;
}

/* One request. */
typedef struct transfer {
    void *curl;
    bool (*start)(void *ctx, const rose_hub_reply *r);
    rose_hub_take take;
    void *ctx;
    rose_hub_reply *r;
    size_t dropped;        /* bytes */
    bool started, stopped; /* stopped: by start or take */
} transfer;

static bool begin(transfer *t)
{
    if (t->started) return true;
    t->started = true;
    t->stopped = !t->start(t->ctx, t->r);
    return !t->stopped;
}

/* Drops the body of an error or a redirect. The transfer is stopped if that body is too long. */
static size_t on_body(char *bytes, size_t size, size_t n, void *ctx)
{
    transfer *t = ctx;
    if (lib.easy_getinfo(t->curl, INFO_RESPONSE_CODE, &t->r->code) != 0) return 0;
    if (t->r->code != 200 && t->r->code != 206) {
        t->dropped += size * n;
        return t->dropped <= MAX_DROPPED ? size * n : 0;
    }
    if (!begin(t)) return 0;
    t->stopped = !t->take(t->ctx, bytes, size * n);
    return t->stopped ? 0 : size * n;
}

static const char *value_of(const char *line, const char *name)
{
    const size_t n = strlen(name);
    return strncasecmp(line, name, n) == 0 ? line + n + strspn(line + n, " ") : NULL;
}

static size_t on_header(char *bytes, size_t size, size_t n, void *ctx)
{
    transfer *t = ctx;
    char line[160];
    const char *v;
    snprintf(line, sizeof line, "%.*s", (int)(size * n < sizeof line ? size * n : sizeof line - 1),
             bytes);
    line[strcspn(line, "\r\n")] = '\0';
    if ((v = value_of(line, "content-range: bytes ")) != NULL) {
        char *end;
        t->r->first = strtoull(v, &end, 10);
        if ((end = strchr(end, '/')) != NULL) t->r->total = strtoull(end + 1, NULL, 10);
    } else if ((v = value_of(line, "retry-after:")) != NULL) {
        const unsigned long s = strtoul(v, NULL, 10);
        t->r->retry_after = s < 60 ? (uint32_t)s : 60;
    } else if ((v = value_of(line, "x-error-code:")) != NULL) {
        snprintf(t->r->error_code, sizeof t->r->error_code, "%.39s", v);
    }
    return size * n;
}

/* The length of "https://host:port" of a URL. */
static size_t origin(const char *url)
{
    const char *host = strstr(url, "://");
    return host == NULL ? 0 : (size_t)(host - url) + 3 + strcspn(host + 3, "/?#");
}

/* Tells whether a URL has the endpoint's scheme, host and port. A URL with "user@" never has. */
static bool is_endpoint(const rose_hub *h, const char *url)
{
    const size_t n = origin(h->endpoint);
    return n > 0 && origin(url) == n && strncasecmp(url, h->endpoint, n) == 0;
}

static int perform(const rose_hub *h, transfer *t, const char *url, uint64_t from, void *headers,
                   char *text)
{
    char range[32], agent[80];
    void *c = t->curl;
    snprintf(range, sizeof range, "%llu-", (unsigned long long)from);
    snprintf(agent, sizeof agent, "roseinfer/%.60s", rose_version());
    int rc = lib.easy_setopt(c, OPT_URL, url);
    rc |= lib.easy_setopt(c, OPT_PROTOCOLS, (long)PROTOCOL_HTTP_AND_HTTPS);
    rc |= lib.easy_setopt(c, OPT_USERAGENT, agent);
    rc |= lib.easy_setopt(c, OPT_HTTPHEADER, headers);
    rc |= lib.easy_setopt(c, OPT_ERRORBUFFER, text);
    rc |= lib.easy_setopt(c, OPT_CONNECTTIMEOUT, (long)h->stall_s);
    rc |= lib.easy_setopt(c, OPT_LOW_SPEED_LIMIT, 1L);
    rc |= lib.easy_setopt(c, OPT_LOW_SPEED_TIME, (long)h->stall_s);
    rc |= lib.easy_setopt(c, OPT_RANGE, from > 0 ? range : NULL);
    rc |= lib.easy_setopt(c, OPT_WRITEFUNCTION, on_body);
    rc |= lib.easy_setopt(c, OPT_WRITEDATA, t);
    rc |= lib.easy_setopt(c, OPT_HEADERFUNCTION, on_header);
    rc |= lib.easy_setopt(c, OPT_HEADERDATA, t);
    if (h->ca_file != NULL) rc |= lib.easy_setopt(c, OPT_CAINFO, h->ca_file);
    if (h->ca_dir != NULL) rc |= lib.easy_setopt(c, OPT_CAPATH, h->ca_dir);
    return rc != 0 ? rc : lib.easy_perform(c);
}

/* Another try does not change a certificate that the trusted ones do not vouch for. */
static bool is_certificate(int rc)
{
    return rc == CODE_PEER_FAILED_VERIFICATION || rc == CODE_CACERT_BADFILE;
}

/* Says what the network, or the check of the certificate, did not allow. why: libcurl's words. */
static rose_status transfer_error(const rose_hub *h, int rc, const char *url, const char *why,
                                  rose_err *err)
{
    const int n = (int)origin(url);
    if (!is_certificate(rc)) return rose_fail(err, ROSE_E_IO, "%.*s: %.200s", n, url, why);
    if (h->ca_from != NULL)
        return rose_fail(err, ROSE_E_IO,
                         "%.*s: %.200s; the trusted certificates come from %s: does it name those "
                         "of this server?",
                         n, url, why, h->ca_from);
    return rose_fail(err, ROSE_E_IO,
                     "%.*s: %.200s; if a proxy or a hub of your own signs its certificate, "
                     "set SSL_CERT_FILE to the file of its CA",
                     n, url, why);
}

/* *next: where the reply redirects to, owned by the caller; NULL = nowhere. */
static rose_status get_once(const rose_hub *h, const char *url, uint64_t from, transfer *t,
                            char **next, rose_err *err)
{
    char text[ERROR_TEXT] = "", auth[600];
    void *headers = NULL;
    const char *to = NULL;
    rose_status st = ROSE_OK;

    *next = NULL;
    *t->r = (rose_hub_reply){0};
    if ((t->curl = lib.easy_init()) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "libcurl: out of memory");
    if (h->token != NULL && is_endpoint(h, url)) {
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", h->token);
        if ((headers = lib.slist_append(NULL, auth)) == NULL) {
            st = rose_fail(err, ROSE_E_NOMEM, "libcurl: out of memory");
            goto done;
        }
    }
    const int rc = perform(h, t, url, from, headers, text);
    lib.easy_getinfo(t->curl, INFO_RESPONSE_CODE, &t->r->code);
    if (rc == 0) lib.easy_getinfo(t->curl, INFO_REDIRECT_URL, &to);
    t->r->again =
        (rc != 0 && !t->stopped && !is_certificate(rc)) || t->r->code == 429 || t->r->code >= 500;
    if (rc != 0)
        st = transfer_error(h, rc, url, text[0] != '\0' ? text : lib.easy_strerror(rc), err);
    else if ((t->r->code == 200 || t->r->code == 206) && !begin(t)) /* an empty body */
        st = rose_fail(err, ROSE_E_IO, "%.*s: stopped", (int)origin(url), url);
    else if (to != NULL && (*next = strdup(to)) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
done:
    lib.slist_free_all(headers);
    lib.easy_cleanup(t->curl);
    return st;
}

rose_status rose_hub_get(const rose_hub *h, const char *url, uint64_t from,
                         bool (*start)(void *ctx, const rose_hub_reply *r), rose_hub_take take,
                         void *ctx, rose_hub_reply *r, rose_err *err)
{
    char *at = NULL, *next;
    *r = (rose_hub_reply){0};
    rose_status st = load(err);
    if (st == ROSE_OK && (at = strdup(url)) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    for (int i = 0; st == ROSE_OK; i++) {
        transfer t = {.start = start, .take = take, .ctx = ctx, .r = r};
        st = get_once(h, at, from, &t, &next, err);
        if (next == NULL) break;
        if (i == MAX_REDIRECTS)
            st = rose_fail(err, ROSE_E_FORMAT, "%.*s: over %d redirects", (int)origin(url), url,
                           MAX_REDIRECTS);
        else if (strncasecmp(at, "https:", 6) == 0 && strncasecmp(next, "https:", 6) != 0)
            st = rose_fail(err, ROSE_E_FORMAT, "%.*s redirects from https to %.*s: refused",
                           (int)origin(at), at, (int)origin(next), next);
        free(at);
        at = next;
    }
    free(at);
    return st;
}
