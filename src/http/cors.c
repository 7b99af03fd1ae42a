/* http/cors.c - cross-origin requests: which web pages may read our replies (--allowed-origins).
 *
 * A browser sends the page's origin with each request to another origin. It shows the page a reply
 * only if the reply names that origin or "*". Before a request that a plain form could not send,
 * it asks with OPTIONS (a preflight). Without origins in the options this file does nothing.
 *
 * Access-Control-Allow-Credentials is never sent: our keys come in a header, which needs no such
 * permission, and we have no cookies. */
#include <string.h>

#include "base/utf8.h"
#include "http/http_internal.h"

enum { MAX_ASKED = 1024 }; /* bytes of Access-Control-Request-Headers */

static const rose_opt_list *origins_of(const rose_http_conn *c)
{
    return &c->io->h->opts.allowed_origins;
}

static bool allows_all(const rose_opt_list *l)
{
    return l->n > 0 && strcmp(rose_opt_list_get(l, 0), "*") == 0;
}

/* Returns the text for Access-Control-Allow-Origin; NULL: the page may not read the reply. */
static const char *allowed_origin(const rose_http_conn *c)
{
    const rose_opt_list *l = origins_of(c);
    const char *origin = rose_http_req_header(&c->req, "Origin");
    if (origin == NULL || rose_http_req_header_count(&c->req, "Origin") != 1) return NULL;
    if (allows_all(l)) return "*";
    for (uint32_t i = 0; i < l->n; i++) {
        if (strcmp(rose_opt_list_get(l, i), origin) == 0) return rose_opt_list_get(l, i);
    }
    return NULL;
}

bool rose_http_cors_headers(const rose_http_conn *c, rose_buf *out)
{
    static const char expose[] = "Access-Control-Expose-Headers: Retry-After, Server-Timing, "
                                 "WWW-Authenticate, X-Ignored-Fields, X-Request-Id\r\n";
    const rose_opt_list *l = origins_of(c);
    if (l->n == 0) return true;
    const char *origin = c->head_sliced ? allowed_origin(c) : NULL;
    rose_status st = ROSE_OK;
    if (!allows_all(l)) st = rose_buf_add(out, "Vary: Origin\r\n", 14);
    if (st == ROSE_OK && origin != NULL)
        st = rose_buf_addf(out, "Access-Control-Allow-Origin: %s\r\n%s", origin, expose);
    return st == ROSE_OK;
}

bool rose_http_req_is_preflight(const rose_http_req *r)
{
    const rose_http_conn *c = r->conn;
    return origins_of(c)->n > 0 && c->parser.method == HTTP_OPTIONS && c->complete &&
           rose_http_req_header(r, "Origin") != NULL &&
           rose_http_req_header(r, "Access-Control-Request-Method") != NULL;
}

/* Tells whether the header has only names of headers, so that it can be sent back. */
static bool is_name_list(const char *s)
{
    const size_t n = strspn(s, ROSE_ALNUM "-_., ");
    return s[n] == '\0' && n <= MAX_ASKED;
}

bool rose_http_cors_may_ask(rose_http_conn *c)
{
    if (!rose_http_req_is_preflight(&c->req)) return true;
    const char *names = rose_http_req_header(&c->req, "Access-Control-Request-Headers");
    if (allowed_origin(c) == NULL)
        rose_http_refuse(c, 403,
                         "the page's origin may not use this server; --allowed-origins allows "
                         "origins");
    else if (names != NULL &&
             (rose_http_req_header_count(&c->req, "Access-Control-Request-Headers") != 1 ||
              !is_name_list(names)))
        rose_http_refuse(c, 400, "malformed Access-Control-Request-Headers");
    else
        return true;
    return false;
}

void rose_http_cors_answer(rose_http_req *r)
{
    const char *names = rose_http_req_header(r, "Access-Control-Request-Headers");
    rose_buf b = {0};
    rose_status st = rose_buf_addf(&b, "Access-Control-Allow-Methods: GET, HEAD, POST, OPTIONS\r\n"
                                       "Access-Control-Max-Age: 600\r\n");
    if (st == ROSE_OK && names != NULL && names[0] != '\0')
        st = rose_buf_addf(&b, "Access-Control-Allow-Headers: %s\r\n", names);
    if (st == ROSE_OK && rose_buf_str(&b) != NULL)
        rose_http_reply(r, 204, NULL, b.data, NULL, 0);
    else
        rose_http_conn_doom(r->conn);
    rose_buf_free(&b);
}

/* ---- the option ---- */

/* Says why a text cannot be an origin as browsers send it; NULL: it can. */
static const char *origin_fault(const char *s)
{
    const char *host = strstr(s, "://");
    if (strcmp(s, "null") == 0) return NULL; /* what pages from files and sandboxes send */
    if (strcmp(s, "*") == 0) return "* allows every origin and stands alone";
    if (host == NULL || host == s || host[3] == '\0')
        return "an origin is SCHEME://HOST or SCHEME://HOST:PORT";
    for (const char *p = s; *p != '\0'; p++) {
        if (*p == '*') return "an origin has no wildcards; name each origin, or give * alone";
        if (*p >= 'A' && *p <= 'Z') return "browsers send origins in lower case";
        if (*p <= 0x20 || *p >= 0x7f) return "an origin has only visible ASCII characters";
        if (p >= host + 3 && strchr("/?#@\\", *p) != NULL)
            return "an origin has no path, not even a slash at its end";
    }
    const char *port = strrchr(host + 3, ':');
    if (port != NULL && ((strcmp(port, ":80") == 0 && strncmp(s, "http:", 5) == 0) ||
                         (strcmp(port, ":443") == 0 && strncmp(s, "https:", 6) == 0)))
        return "browsers leave out the usual port of the scheme";
    return NULL;
}

rose_status rose_http_cors_check(const rose_opt_list *l, rose_err *err)
{
    if (l->n == 1 && allows_all(l)) return ROSE_OK;
    for (uint32_t i = 0; i < l->n; i++) {
        const char *why = origin_fault(rose_opt_list_get(l, i));
        if (why != NULL)
            return rose_fail(err, ROSE_E_INVAL, "--allowed-origins %.200s: %s",
                             rose_opt_list_get(l, i), why);
    }
    return ROSE_OK;
}
