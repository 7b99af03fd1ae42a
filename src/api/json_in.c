/* api/json_in.c - parses bodies into JSON objects. The limits of the parser bound what a body may
 * allocate: 32 MiB of "[[],[],..." would otherwise become gigabytes of empty arrays. The parser
 * refuses bytes that are not UTF-8, duplicate keys, reals that do not fit, and NaN. */
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/json.h"

enum { MAX_DEPTH = 64, MAX_CONTAINERS = 65536 };

/* Reads the number that comes next. Returns 0 if it is not a number in (0, ROSE_API_MAX_TIMEOUT],
 * or is not correct; steps over it in any case. */
static double small_number(rose_json_scan *s)
{
    char text[40] = "";
    rose_json_scan_peek(s);
    const char *from = s->p;
    if (rose_json_scan_skip(s) != ROSE_OK || (size_t)(s->p - from) >= sizeof text) return 0;
    memcpy(text, from, (size_t)(s->p - from));
    if (text[0] < '0' || text[0] > '9') return 0;
    const double x = strtod(text, NULL);
    return x > 0 && x <= ROSE_API_MAX_TIMEOUT ? x : 0;
}

double rose_api_json_peek(const char *body, size_t len, const char *key)
{
    rose_json_scan s = {.begin = body, .p = body, .end = body + len};
    rose_buf scratch = {0};
    rose_status st = ROSE_OK;
    double x = 0;
    if (memmem(body, len, key, strlen(key)) == NULL) return 0;
    for (rose_json_member m = {0}; x <= 0 && rose_json_scan_member(&s, &scratch, &m, &st);) {
        if (rose_json_member_is(&m, key))
            x = small_number(&s);
        else
            st = rose_json_scan_skip(&s);
    }
    rose_buf_free(&scratch);
    return x;
}

bool rose_api_json_is_empty(const rose_json *v)
{
    return (rose_json_is_string(v) && rose_json_text_len(v) == 0) ||
           (rose_json_is_array(v) && rose_json_count(v) == 0) ||
           (rose_json_is_object(v) && rose_json_size(v) == 0);
}

bool rose_api_json_is(const rose_json *v, const char *text)
{
    return rose_json_is_string(v) && strcmp(rose_json_text(v), text) == 0;
}

bool rose_api_is_one_of(const char *key, const char *const *names)
{
    while (key != NULL && *names != NULL && strcmp(key, *names) != 0)
        names++;
    return key != NULL && *names != NULL;
}

/* Names the encoding of a body whose first bytes show that it is not UTF-8 text; else NULL. The
 * parser's message would only name a strange character. */
static const char *foreign_encoding(const char *body, size_t len)
{
    const unsigned char *p = (const unsigned char *)body;
    if (len >= 3 && memcmp(p, "\xEF\xBB\xBF", 3) == 0)
        return "begins with a byte order mark (EF BB BF); send UTF-8 without it";
    if (len >= 2 && ((p[0] == 0xFE && p[1] == 0xFF) || (p[0] == 0xFF && p[1] == 0xFE)))
        return "is UTF-16 or UTF-32, by its byte order mark; send UTF-8";
    if (len >= 2 && (p[0] == 0 || (p[1] == 0 && strchr("{[ \t\r\n", p[0]) != NULL)))
        return "looks like UTF-16 or UTF-32; send UTF-8";
    if (len >= 2 && p[0] == 0x1F && p[1] == 0x8B)
        return "is compressed by gzip; send it uncompressed";
    return NULL;
}

static bool over_limit(const rose_json_error *e, const rose_json_limits *limits,
                       rose_api_error *err)
{
    if (e->limit == ROSE_JSON_DEPTH)
        return rose_api_fail(err, 400, NULL, NULL,
                             "the JSON body nests deeper than %zu levels at byte %d", limits->depth,
                             e->position);
    if (e->limit == ROSE_JSON_CONTAINERS)
        return rose_api_fail(err, 400, NULL, NULL, "the JSON body holds over %zu lists and objects",
                             limits->containers);
    return rose_api_fail(err, 400, NULL, NULL, "the JSON body holds over %zu values",
                         limits->values);
}

bool rose_api_json_load(rose_json **root, const char *body, size_t len, size_t max_values,
                        rose_api_error *err)
{
    rose_json_error je;
    *root = NULL;
    if (len == 0)
        return rose_api_fail(err, 400, NULL, NULL, "the body is empty, a JSON object is needed");
    const char *foreign = foreign_encoding(body, len);
    if (foreign != NULL) return rose_api_fail(err, 400, NULL, NULL, "the body %s", foreign);
    const rose_json_limits limits = {MAX_DEPTH, MAX_CONTAINERS, max_values};
    const rose_status st = rose_json_parse_limited(root, body, len, ROSE_JSON_NUL, &limits, &je);
    if (st == ROSE_E_NOMEM) return rose_api_fail_nomem(err);
    if (st != ROSE_OK && je.limit != ROSE_JSON_NO_LIMIT) return over_limit(&je, &limits, err);
    if (st != ROSE_OK)
        return rose_api_fail(err, 400, NULL, NULL,
                             "the body is not valid JSON: line %d, column %d (byte %d): %s",
                             je.line, je.column, je.position, je.text);
    if (!rose_json_is_object(*root)) {
        rose_json_decref(*root);
        *root = NULL;
        return rose_api_fail(err, 400, NULL, NULL, "the body must be a JSON object");
    }
    return true;
}
