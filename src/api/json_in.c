/* api/json_in.c - parses bodies into JSON objects. jansson does the parsing. Before it runs, one
 * scan of the bytes limits what it may allocate: a body of 32 MiB "[[],[],..." would otherwise
 * become gigabytes of empty arrays. The parser itself refuses bytes that are not UTF-8,
 * duplicate keys, numbers that do not fit, and NaN. */
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/json.h"

enum { MAX_DEPTH = 64, MAX_CONTAINERS = 65536 };

/* Returns the index of the byte that ends the string whose opening quote is at i, or len. */
static size_t skip_string(const char *body, size_t i, size_t len)
{
    for (i++; i < len && body[i] != '"'; i++) {
        if (body[i] == '\\') i++;
    }
    return i;
}

/* Counts brackets and commas outside strings; the parser reports malformed text. */
static bool bounded(const char *body, size_t len, size_t max_values, rose_api_error *err)
{
    size_t depth = 0, containers = 0, values = 0;
    for (size_t i = 0; i < len; i++) {
        char c = body[i];
        if (c == '"') {
            i = skip_string(body, i, len);
        } else if (c == '[' || c == '{') {
            if (++depth > MAX_DEPTH)
                return rose_api_fail(err, 400, NULL, NULL,
                                     "the JSON body nests deeper than %d levels at byte %zu",
                                     MAX_DEPTH, i);
            containers++;
        } else if (c == ']' || c == '}') {
            if (depth > 0) depth--;
        } else if (c == ',') {
            values++;
        }
    }
    if (containers > MAX_CONTAINERS)
        return rose_api_fail(err, 400, NULL, NULL,
                             "the JSON body holds %zu lists and objects, the limit "
                             "is %d",
                             containers, MAX_CONTAINERS);
    if (values > max_values)
        return rose_api_fail(err, 400, NULL, NULL, "the JSON body holds over %zu values",
                             max_values);
    return true;
}

/* Returns the index of the first byte from i on that is not white space. */
static size_t skip_space(const char *body, size_t i, size_t len)
{
    while (i < len && strchr(" \t\r\n", body[i]) != NULL && body[i] != '\0')
        i++;
    return i;
}

/* Returns the numeric value of the member whose key ends before i; 0 if it is not a number. */
static double member_number(const char *body, size_t i, size_t len)
{
    char text[40];
    i = skip_space(body, i, len);
    if (i == len || body[i] != ':') return 0;
    i = skip_space(body, i + 1, len);
    size_t n = 0;
    while (i + n < len && n < sizeof text - 1 && strchr("0123456789+-.eE", body[i + n]) != NULL &&
           body[i + n] != '\0')
        n++;
    memcpy(text, body + i, n);
    text[n] = '\0';
    double x = strtod(text, NULL);
    return x > 0 && x <= ROSE_API_MAX_TIMEOUT ? x : 0;
}

double rose_api_json_peek(const char *body, size_t len, const char *key)
{
    const size_t n = strlen(key);
    size_t depth = 0;
    if (memmem(body, len, key, n) == NULL) return 0;
    for (size_t i = 0; i < len; i++) {
        char c = body[i];
        if (c == '"') {
            size_t begin = i + 1;
            i = skip_string(body, i, len);
            bool it = depth == 1 && i < len && i - begin == n && memcmp(body + begin, key, n) == 0;
            double x = it ? member_number(body, i + 1, len) : 0;
            if (x > 0) return x;
        } else if (c == '[' || c == '{') {
            depth++;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return 0;
}

bool rose_api_json_is(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
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

bool rose_api_json_load(json_t **root, const char *body, size_t len, size_t max_values,
                        rose_api_error *err)
{
    json_error_t je;
    *root = NULL;
    if (len == 0)
        return rose_api_fail(err, 400, NULL, NULL, "the body is empty, a JSON object is needed");
    const char *foreign = foreign_encoding(body, len);
    if (foreign != NULL) return rose_api_fail(err, 400, NULL, NULL, "the body %s", foreign);
    if (!bounded(body, len, max_values, err)) return false;
    rose_status st = rose_json_parse(root, body, len, JSON_ALLOW_NUL, &je);
    if (st == ROSE_E_NOMEM) return rose_api_fail_nomem(err);
    if (st != ROSE_OK)
        return rose_api_fail(err, 400, NULL, NULL,
                             "the body is not valid JSON: line %d, column %d (byte %d): %s",
                             je.line, je.column, je.position, je.text);
    if (!json_is_object(*root)) {
        json_decref(*root);
        *root = NULL;
        return rose_api_fail(err, 400, NULL, NULL, "the body must be a JSON object");
    }
    return true;
}
