/* base/json.c - see json.h. An object of plain members, which nearly every text is, is parsed
 * here. That takes a quarter of the time of jansson, which reads each byte three times. If
 * anything in a text is unusual or wrong, jansson parses the whole text again. So there is one
 * definition of JSON and one set of messages. */
#include "base/json.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* State of the parse that runs on this thread.
 *
 * The lexer of jansson 2.14 does not check whether its string buffer could grow. If the
 * allocation fails, it continues and writes past the end of the buffer. So when malloc fails for
 * such a growth, the memory comes from a reserve. The reserve is large enough for a token as
 * long as the text. Growths are recognised by their size, a power of two from 32 on. Another
 * allocation of this size may also use the reserve, which does no harm. The next allocation that
 * fails ends the parse in an orderly way. */
static _Thread_local bool t_failed;
static _Thread_local char *t_reserve; /* NULL outside of a parse */
static _Thread_local size_t t_cap, t_used;

static void *take_reserve(size_t n)
{
    bool growth = n >= 32 && (n & (n - 1)) == 0;
    if (t_reserve == NULL || !growth || n > t_cap - t_used) return NULL;
    void *p = t_reserve + t_used;
    t_used += n;
    return p;
}

static void *noting_malloc(size_t n)
{
    void *p = malloc(n);
    if (p != NULL) return p;
    t_failed = true;
    return take_reserve(n);
}

static void noting_free(void *p)
{
    uintptr_t at = (uintptr_t)p, from = (uintptr_t)t_reserve;
    if (t_reserve != NULL && at >= from && at - from < t_cap) return;
    free(p);
}

/* Runs before main, when no thread can be using jansson. */
__attribute__((constructor)) static void install(void)
{
    json_set_alloc_funcs(noting_malloc, noting_free);
}

/* ---- plain texts ---- */

enum { PLAIN_DEPTH = 16, PLAIN_NUMBER = 40 };

/* No function below reads at `end` or after it. */
typedef struct plain {
    const char *at, *end;
    char *scratch; /* owned; room for any string of the text */
    uint32_t depth;
} plain;

static json_t *plain_value(plain *p);

static void skip_space(plain *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r'))
        p->at++;
}

/* Skips white space; if c follows, takes it and returns true. */
static bool take(plain *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != c) return false;
    p->at++;
    return true;
}

static int escaped(char c)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *hit = memchr(from, c, sizeof from - 1);
    return hit != NULL ? to[hit - from] : -1;
}

/* Reads a string with its quotes into scratch. *ascii: it has no byte over 0x7F. */
static bool plain_string(plain *p, size_t *len, bool *ascii)
{
    unsigned char any = 0;
    if (!take(p, '"')) return false;
    const char *at = p->at;
    char *out = p->scratch;
    for (; at < p->end && *at != '"'; at++, out++) {
        *out = *at;
        any |= (unsigned char)*at;
        if ((unsigned char)*at < 0x20) return false;
        if (*at != '\\') continue;
        const int c = ++at < p->end ? escaped(*at) : -1;
        if (c < 0) return false;
        *out = (char)c;
    }
    if (at == p->end) return false;
    *len = (size_t)(out - p->scratch);
    *ascii = any < 0x80;
    p->at = at + 1;
    return true;
}

static size_t digits(const plain *p, const char *at)
{
    size_t n = 0;
    while (at + n < p->end && at[n] >= '0' && at[n] <= '9')
        n++;
    return n;
}

/* Reads a number: an integer of up to 18 digits, or another number of few characters. */
static json_t *plain_number(plain *p)
{
    char text[PLAIN_NUMBER];
    const char *at = p->at + (*p->at == '-');
    const size_t n_whole = digits(p, at);
    bool real = false;
    if (n_whole == 0 || n_whole > 18 || (n_whole > 1 && *at == '0')) return NULL;
    at += n_whole;
    if (at < p->end && *at == '.') {
        const size_t n = digits(p, at + 1);
        if (n == 0) return NULL;
        at += 1 + n;
        real = true;
    }
    if (at < p->end && (*at == 'e' || *at == 'E')) {
        const char *power = at + 1;
        if (power < p->end && (*power == '+' || *power == '-')) power++;
        const size_t n = digits(p, power);
        if (n == 0) return NULL;
        at = power + n;
        real = true;
    }
    const size_t len = (size_t)(at - p->at);
    if (len >= sizeof text) return NULL;
    memcpy(text, p->at, len);
    text[len] = '\0';
    p->at = at;
    if (!real) return json_integer(strtoll(text, NULL, 10));
    char *last;
    const double x = strtod(text, &last); /* another locale may end it early */
    return last == text + len && isfinite(x) ? json_real(x) : NULL;
}

static json_t *plain_array(plain *p)
{
    json_t *list = json_array();
    if (list == NULL || take(p, ']')) return list;
    do {
        json_t *v = plain_value(p);
        if (v == NULL || json_array_append_new(list, v) != 0) goto fail;
    } while (take(p, ','));
    if (take(p, ']')) return list;
fail:
    json_decref(list);
    return NULL;
}

static json_t *plain_object(plain *p)
{
    char key[64];
    json_t *o = json_object();
    if (o == NULL || take(p, '}')) return o;
    do {
        size_t len;
        bool ascii;
        if (!plain_string(p, &len, &ascii) || !ascii || len >= sizeof key || !take(p, ':'))
            goto fail;
        memcpy(key, p->scratch, len);
        key[len] = '\0';
        if (json_object_get(o, key) != NULL) goto fail;
        json_t *v = plain_value(p);
        if (v == NULL || json_object_set_new_nocheck(o, key, v) != 0) goto fail;
    } while (take(p, ','));
    if (take(p, '}')) return o;
fail:
    json_decref(o);
    return NULL;
}

static json_t *plain_word(plain *p)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(p->end - p->at) < n || memcmp(p->at, words[i], n) != 0) continue;
        p->at += n;
        return i == 0 ? json_true() : i == 1 ? json_false() : json_null();
    }
    return NULL;
}

static json_t *plain_value(plain *p)
{
    json_t *v = NULL;
    size_t len;
    bool ascii;
    skip_space(p);
    if (p->at == p->end || p->depth == PLAIN_DEPTH) return NULL;
    p->depth++;
    switch (*p->at) {
    case '"':
        if (plain_string(p, &len, &ascii)) /* jansson says what is UTF-8 */
            v = ascii ? json_stringn_nocheck(p->scratch, len) : json_stringn(p->scratch, len);
        break;
    case '{':
        p->at++;
        v = plain_object(p);
        break;
    case '[':
        p->at++;
        v = plain_array(p);
        break;
    case 't':
    case 'f':
    case 'n':
        v = plain_word(p);
        break;
    default:
        if (*p->at == '-' || (*p->at >= '0' && *p->at <= '9')) v = plain_number(p);
    }
    p->depth--;
    return v;
}

/* Returns NULL if jansson must parse the text, or if memory ran out (t_failed). */
static json_t *parse_plain(const char *text, size_t n)
{
    plain p = {.at = text, .end = text + n, .scratch = noting_malloc(n + 1)};
    json_t *v = NULL;
    skip_space(&p);
    if (p.scratch != NULL && p.at < p.end && *p.at == '{') v = plain_value(&p);
    skip_space(&p);
    if (v != NULL && p.at != p.end) {
        json_decref(v);
        v = NULL;
    }
    free(p.scratch);
    return v;
}

rose_status rose_json_parse(json_t **out, const char *text, size_t n, size_t flags, json_error_t *e)
{
    *out = NULL;
    if (n > SIZE_MAX / 8) return ROSE_E_NOMEM;
    t_failed = false;
    if ((flags & ~(size_t)(JSON_ALLOW_NUL | JSON_DECODE_ANY)) == 0) {
        *out = parse_plain(text, n);
        if (t_failed) {
            json_decref(*out);
            *out = NULL;
            return ROSE_E_NOMEM;
        }
        if (*out != NULL) return ROSE_OK;
    }
    t_cap = 4 * (n + 16); /* the lexer's buffer grows to 32, 64, ... up to twice the longest
                           * token; t_cap is at least the sum of these sizes */
    if ((t_reserve = malloc(t_cap)) == NULL) return ROSE_E_NOMEM;
    t_used = 0;
    *out = json_loadb(n > 0 ? text : "", n, flags | JSON_REJECT_DUPLICATES, e);
    if (t_failed) {
        json_decref(*out);
        *out = NULL;
    }
    free(t_reserve);
    t_reserve = NULL;
    if (t_failed) return ROSE_E_NOMEM;
    return *out != NULL ? ROSE_OK : ROSE_E_FORMAT;
}
