/* api/keys.c - API keys: reads them, compares them, and refuses requests that bring none. A request
 * is refused when its headers are complete, before its body is read. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "api/doors.h"
#include "base/log.h"
#include "base/siphash.h"

typedef struct key {
    uint32_t len;
    unsigned char bytes[ROSE_API_KEY_BYTES]; /* zeros after len */
} key;

struct rose_api_keys {
    uint32_t n;
    key v[ROSE_API_MAX_KEYS];
};

/* ---- reading ---- */

/* where: names the place of the key for messages, because they must not quote the key. */
static rose_status add_key(rose_api_keys *k, const char *text, size_t len, const char *where,
                           rose_err *err)
{
    if (len == 0) return rose_fail(err, ROSE_E_INVAL, "%s: the key is empty", where);
    if (len > ROSE_API_KEY_BYTES)
        return rose_fail(err, ROSE_E_INVAL, "%s: the key has %zu bytes; at most %d are possible",
                         where, len, ROSE_API_KEY_BYTES);
    for (size_t i = 0; i < len; i++) {
        if (text[i] <= 0x20 || text[i] >= 0x7f)
            return rose_fail(err, ROSE_E_INVAL,
                             "%s: byte %zu of the key is not a visible ASCII character", where,
                             i + 1);
    }
    if (k->n == ROSE_API_MAX_KEYS)
        return rose_fail(err, ROSE_E_INVAL, "%s: more than %d API keys", where, ROSE_API_MAX_KEYS);
    key *to = &k->v[k->n++];
    to->len = (uint32_t)len;
    memcpy(to->bytes, text, len);
    return ROSE_OK;
}

static rose_status add_lines(rose_api_keys *k, const char *path, const char *text, size_t len,
                             rose_err *err)
{
    rose_status st = ROSE_OK;
    uint32_t line = 1;
    if (len == 0)
        return rose_fail(err, ROSE_E_FORMAT, "--api-key-file %s: the file is empty", path);
    for (size_t at = 0; at < len && st == ROSE_OK; line++) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end == NULL ? len - at : (size_t)(end - text) - at;
        rose_err where = {{0}};
        rose_fail(&where, ROSE_OK, "--api-key-file %.300s, line %u", path, line);
        if (n == 0)
            st = rose_fail(err, ROSE_E_FORMAT, "%s: the line is empty; remove it", where.msg);
        else if (text[at + n - 1] == '\r')
            st = rose_fail(err, ROSE_E_FORMAT,
                           "%s: the line ends in CRLF; end the lines of the file with LF alone",
                           where.msg);
        else
            st = add_key(k, text + at, n, where.msg, err);
        at += n + 1;
    }
    return st;
}

static void warn_if_others_read(int fd, const char *path)
{
    struct stat s;
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && (s.st_mode & (S_IRGRP | S_IROTH)) != 0)
        rose_log(ROSE_LOG_WARN, "serve",
                 "--api-key-file %s: other users may read the file; chmod 600 prevents it", path);
}

static rose_status add_file(rose_api_keys *k, const char *path, rose_err *err)
{
    rose_status st = ROSE_OK;
    const size_t cap = ROSE_API_MAX_KEY_FILE + 1;
    size_t len = 0;
    char *text = malloc(cap);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        st = rose_fail(err, ROSE_E_IO, "--api-key-file %s: %s", path, strerror(errno));
        goto done;
    }
    if (text == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "--api-key-file %s: out of memory", path);
        goto done;
    }
    warn_if_others_read(fd, path);
    for (ssize_t n = 1; n != 0 && len < cap;) {
        n = read(fd, text + len, cap - len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            st = rose_fail(err, ROSE_E_IO, "--api-key-file %s: %s", path, strerror(errno));
            goto done;
        }
        len += (size_t)n;
    }
    if (len == cap)
        st = rose_fail(err, ROSE_E_FORMAT, "--api-key-file %s: the file has more than %d bytes",
                       path, ROSE_API_MAX_KEY_FILE);
    else
        st = add_lines(k, path, text, len, err);
done:
    if (fd >= 0) close(fd);
    if (text != NULL) explicit_bzero(text, cap);
    free(text);
    return st;
}

rose_status rose_api_keys_read(rose_api_keys **out, const rose_opt_list *list, const char *file,
                               const char *env, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_api_keys *k = NULL;
    *out = NULL;
    if (list->n == 0 && file == NULL && env == NULL) return ROSE_OK;
    if ((k = calloc(1, sizeof *k)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "API keys: out of memory");
    for (uint32_t i = 0; i < list->n && st == ROSE_OK; i++) {
        const char *text = rose_opt_list_get(list, i);
        st = add_key(k, text, strlen(text), "--api-key", err);
    }
    if (st == ROSE_OK && file != NULL) st = add_file(k, file, err);
    if (st == ROSE_OK && env != NULL)
        st = add_key(k, env, strlen(env), "the environment variable ROSEINFER_API_KEY", err);
    if (st == ROSE_OK)
        *out = k;
    else
        rose_api_keys_free(k);
    return st;
}

/* Keys of a variable; commas separate them. An empty one counts as not set, as for its server. */
static rose_status add_variable(rose_api_keys *k, const char *name, const char *text, rose_err *err)
{
    char where[64];
    rose_status st = ROSE_OK;
    snprintf(where, sizeof where, "the environment variable %s", name);
    for (const char *p = text; p != NULL && st == ROSE_OK; p = strchr(p, ',')) {
        p += *p == ',';
        const size_t n = strcspn(p, ",");
        if (n > 0) st = add_key(k, p, n, where, err);
    }
    return st;
}

rose_status rose_api_keys_read_others(rose_api_keys **out, const char *vllm, const char *llama,
                                      rose_err *err)
{
    rose_api_keys *k = calloc(1, sizeof *k);
    *out = NULL;
    if (k == NULL) return rose_fail(err, ROSE_E_NOMEM, "API keys: out of memory");
    rose_status st = add_variable(k, "VLLM_API_KEY", vllm, err);
    if (st == ROSE_OK) st = add_variable(k, "LLAMA_API_KEY", llama, err);
    if (st == ROSE_OK && k->n > 0)
        *out = k;
    else
        rose_api_keys_free(k);
    return st;
}

uint32_t rose_api_keys_count(const rose_api_keys *k)
{
    return k->n;
}

void rose_api_keys_free(rose_api_keys *k)
{
    if (k == NULL) return;
    explicit_bzero(k, sizeof *k);
    free(k);
}

/* ---- comparing ---- */

bool rose_api_keys_hold(const rose_api_keys *k, const char *given, size_t len)
{
    unsigned char pad[ROSE_API_KEY_BYTES] = {0};
    uint32_t found = 0;
    memcpy(pad, given, len < sizeof pad ? len : sizeof pad);
    const uint32_t n = len > sizeof pad ? (uint32_t)sizeof pad + 1 : (uint32_t)len;
    for (uint32_t i = 0; i < k->n; i++) {
        uint32_t diff = k->v[i].len ^ n;
        for (size_t b = 0; b < sizeof pad; b++)
            diff |= (uint32_t)(k->v[i].bytes[b] ^ pad[b]);
        found |= ~(diff | (0u - diff)) >> 31; /* 1 if diff is 0, without a branch */
    }
    explicit_bzero(pad, sizeof pad);
    return found != 0;
}

const char *rose_api_bearer(const char *value)
{
    static const char scheme[] = "Bearer ";
    if (strncasecmp(value, scheme, sizeof scheme - 1) != 0) return NULL;
    value += sizeof scheme - 1;
    while (*value == ' ')
        value++;
    return *value == '\0' ? NULL : value;
}

/* ---- requests ---- */

/* Paths that a page, a probe or a router asks for without a key. */
static bool is_open(const rose_http_req *r)
{
    const char *method = rose_http_req_info(r)->method, *path = rose_http_req_info(r)->path;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) return false;
    if (rose_http_req_info(r)->has_body) return false;
    return strcmp(path, "/") == 0 || rose_api_route_is_probe(path);
}

/* Tells whether header `name` has one of the keys. *given: the header has something to check. */
static bool header_holds(const rose_api_keys *k, const rose_http_req *r, const char *name,
                         bool bearer, bool *given)
{
    const char *value = rose_http_req_header(r, name);
    if (value == NULL) return false;
    *given = true;
    if (rose_http_req_header_count(r, name) != 1) return false;
    if (bearer) value = rose_api_bearer(value);
    return value != NULL && rose_api_keys_hold(k, value, strlen(value));
}

uint64_t rose_api_client_of(const rose_api *a, const rose_http_req *r)
{
    static const uint64_t seed[2] = {0x726f7365636c6965, 0x6e74206f66206120};
    char address[ROSE_HTTP_CLIENT];
    const char *auth = rose_http_req_header(r, "Authorization"), *text = NULL;
    if (a->o.keys != NULL) {
        if (auth != NULL) text = rose_api_bearer(auth);
        if (text == NULL) text = rose_http_req_header(r, "x-api-key");
    }
    if (text == NULL) {
        rose_http_req_client(r, address);
        text = address;
    }
    return rose_siphash_bytes(seed, text, strlen(text));
}

int rose_api_on_head(void *arg, const rose_http_req *r, const char **why, const char **headers)
{
    const rose_api *a = arg;
    const rose_api_keys *k = a->o.keys;
    if (k == NULL || is_open(r) || rose_http_req_is_preflight(r)) return 0;
    if (rose_http_req_info(r)->own)
        return 0; /* the key of the batch was checked when it was made */
    const bool anthropic =
        rose_api_route_dialect(rose_http_req_info(r)->path) == &rose_api_dialect_messages;
    bool given = false;
    if (header_holds(k, r, "Authorization", true, &given)) return 0;
    if (anthropic && header_holds(k, r, "x-api-key", false, &given)) return 0;
    *headers = "WWW-Authenticate: Bearer\r\n";
    if (given)
        *why = "the request has no valid API key: send exactly one header 'Authorization: Bearer "
               "KEY' with a key of this server";
    else if (anthropic)
        *why = "the server needs an API key: send the header 'x-api-key: KEY' or 'Authorization: "
               "Bearer KEY'";
    else
        *why = "the server needs an API key: send the header 'Authorization: Bearer KEY'";
    return 401;
}
