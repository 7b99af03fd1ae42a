/* base/json_read.c - makes a tree of a JSON text; see json.h. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/json_internal.h"
#include "base/utf8.h"

static const rose_json_limits g_defaults = {2048, SIZE_MAX, SIZE_MAX};

typedef struct reader {
    rose_json_scan s;
    rose_buf scratch;      /* a string with escapes */
    rose_json_limits left; /* how much of each limit is left */
    int limit;             /* the limit that ended the parse */
} reader;

static rose_status read_value(reader *r, rose_json **out);

static rose_status bad(reader *r, const char *what)
{
    return rose_json_scan_bad(&r->s, what);
}

/* Takes one of a limit. */
static rose_status charge(reader *r, size_t *left, int limit)
{
    static const char *const what[] = {[ROSE_JSON_DEPTH] = "the maximum depth is reached",
                                       [ROSE_JSON_CONTAINERS] = "too many lists and objects",
                                       [ROSE_JSON_VALUES] = "too many values"};
    if (*left == 0) {
        r->limit = limit;
        return bad(r, what[limit]);
    }
    --*left;
    return ROSE_OK;
}

/* OK, or NOMEM if there is no value. */
static rose_status made(rose_json **out, rose_json *v)
{
    *out = v;
    return v != NULL ? ROSE_OK : ROSE_E_NOMEM;
}

static rose_status read_string(reader *r, bool key, rose_json **out)
{
    const char *text;
    size_t len;
    const rose_status st = rose_json_scan_string(&r->s, &r->scratch, &text, &len);
    if (st != ROSE_OK) return st;
    /* Only an escape makes a NUL, or a raw one where control characters are allowed. */
    if ((key || !(r->s.flags & ROSE_JSON_NUL)) && len > 0 && memchr(text, '\0', len) != NULL)
        return bad(r, key ? "a NUL (\\u0000) in a key" : "a NUL (\\u0000) in a string");
    return made(out, rose_json_checked_string(text, len));
}

/* NaN, Infinity and -Infinity, as Python writes them. */
static bool take_nonfinite(reader *r, rose_json **out)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(r->s.end - r->s.p) < n || memcmp(r->s.p, words[i], n) != 0) continue;
        *out = rose_json_checked_number(words[i], n, false);
        r->s.p += n;
        return true;
    }
    return false;
}

static rose_status read_number(reader *r, rose_json **out)
{
    bool whole;
    const char *from = r->s.p;
    const rose_status st = rose_json_scan_number(&r->s, &whole);
    if (st != ROSE_OK) return st;
    rose_json *v = rose_json_checked_number(from, (size_t)(r->s.p - from), whole);
    if (!whole && v != NULL && !(r->s.flags & ROSE_JSON_NONFINITE) &&
        isinf(rose_json_real_value(v))) {
        rose_json_decref(v);
        r->s.p = from;
        return bad(r, "real number overflow");
    }
    return made(out, v);
}

/* Whether the value that was being read is left out: the text ends in it, and is repaired. Then the
 * text is read to its end. */
static bool cut(reader *r, rose_status st)
{
    const char *p = r->s.p;
    if (st != ROSE_E_FORMAT || r->limit != ROSE_JSON_NO_LIMIT || !(r->s.flags & ROSE_JSON_REPAIR))
        return false;
    while (p < r->s.end && strchr("0123456789+-.eEtrufalsn", *p) != NULL && *p != '\0')
        p++; /* half a number or word */
    if (p < r->s.end) return false;
    r->s.p = p;
    return true;
}

static rose_status read_array(reader *r, rose_json **out)
{
    rose_json *one, *list = rose_json_array();
    rose_status st = list != NULL ? rose_json_scan_open(&r->s, '[') : ROSE_E_NOMEM;
    for (bool first = true; rose_json_scan_more(&r->s, ']', &first, &st);) {
        if (rose_json_count(list) > 0) st = charge(r, &r->left.values, ROSE_JSON_VALUES);
        if (st == ROSE_OK && cut(r, st = read_value(r, &one))) {
            st = ROSE_OK;
            break;
        }
        if (st == ROSE_OK && rose_json_append_new(list, one) != 0) st = ROSE_E_NOMEM;
    }
    *out = list;
    return st;
}

/* A member's key and its value, into o. */
static rose_status read_member(reader *r, rose_json *o)
{
    rose_json *key = NULL, *value = NULL;
    rose_json_scan_peek(&r->s);
    const char *const from = r->s.p;
    rose_status st = read_string(r, true, &key);
    if (st == ROSE_OK && !(r->s.flags & ROSE_JSON_LAST_WINS) &&
        rose_json_getn(o, rose_json_text(key), rose_json_text_len(key)) != NULL) {
        r->s.p = from;
        st = bad(r, "duplicate object key");
    }
    if (st == ROSE_OK && !rose_json_scan_take(&r->s, ':')) st = bad(r, "a colon is missing");
    if (st == ROSE_OK) st = read_value(r, &value);
    if (st == ROSE_OK) return rose_json_put(o, key, value) == 0 ? ROSE_OK : ROSE_E_NOMEM;
    rose_json_decref(key);
    return st;
}

static rose_status read_object(reader *r, rose_json **out)
{
    rose_json *o = rose_json_object();
    rose_status st = o != NULL ? rose_json_scan_open(&r->s, '{') : ROSE_E_NOMEM;
    for (bool first = true; rose_json_scan_more(&r->s, '}', &first, &st);) {
        if (rose_json_size(o) > 0) st = charge(r, &r->left.values, ROSE_JSON_VALUES);
        if (st == ROSE_OK && cut(r, st = read_member(r, o))) {
            st = ROSE_OK;
            break;
        }
    }
    *out = o;
    return st;
}

static rose_status read_container(reader *r, char c, rose_json **out)
{
    rose_status st = charge(r, &r->left.depth, ROSE_JSON_DEPTH);
    if (st == ROSE_OK) st = charge(r, &r->left.containers, ROSE_JSON_CONTAINERS);
    if (st == ROSE_OK) st = c == '{' ? read_object(r, out) : read_array(r, out);
    r->left.depth++;
    return st;
}

static rose_status read_word(reader *r, rose_json **out)
{
    rose_json *const values[] = {rose_json_true(), rose_json_false(), rose_json_null()};
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(r->s.end - r->s.p) < n || memcmp(r->s.p, words[i], n) != 0) continue;
        r->s.p += n;
        return made(out, values[i]);
    }
    return bad(r, r->s.p == r->s.end ? "a value is missing" : "an invalid value");
}

/* On failure *out is NULL. */
static rose_status read_value(reader *r, rose_json **out)
{
    const char c = rose_json_scan_peek(&r->s);
    rose_status st;
    *out = NULL;
    if ((r->s.flags & ROSE_JSON_NONFINITE) && take_nonfinite(r, out))
        return *out != NULL ? ROSE_OK : ROSE_E_NOMEM;
    if (c == '"')
        st = read_string(r, false, out);
    else if (c == '{' || c == '[')
        st = read_container(r, c, out);
    else
        st = c == '-' || (c >= '0' && c <= '9') ? read_number(r, out) : read_word(r, out);
    if (st == ROSE_OK) return st;
    rose_json_decref(*out);
    *out = NULL;
    return st;
}

/* Says where the scan ended, with up to 20 plain characters that follow. */
static void fill_error(const reader *r, rose_json_error *e)
{
    const rose_json_scan *s = &r->s;
    const char *const at = s->p < s->end || s->end == s->begin ? s->p : s->end - 1;
    int n = 0;
    while (n < 20 && s->end - s->p > n && s->p[n] > ' ' && s->p[n] < 0x7F && s->p[n] != '\'')
        n++;
    *e = (rose_json_error){.line = 1, .column = 1, .limit = r->limit};
    e->position = at - s->begin < INT_MAX ? (int)(at - s->begin) + 1 : INT_MAX;
    for (const char *p = s->begin; p < at; p++) {
        e->line += *p == '\n';
        e->column = *p == '\n' ? 1 : e->column + !rose_utf8_is_inner(*p);
    }
    if (s->what == NULL)
        strcpy(e->text, "out of memory");
    else if (s->p == s->end)
        snprintf(e->text, sizeof e->text, "%s at the end of the text", s->what);
    else if (n > 0)
        snprintf(e->text, sizeof e->text, "%s near '%.*s'", s->what, n, s->p);
    else
        snprintf(e->text, sizeof e->text, "%s", s->what);
}

static rose_status read_text(reader *r, rose_json **out)
{
    const char c = rose_json_scan_peek(&r->s);
    if (!(r->s.flags & ROSE_JSON_ANY) && c != '{' && c != '[')
        return bad(r, "an object or a list is missing");
    const rose_status st = read_value(r, out);
    if (st != ROSE_OK) return st;
    rose_json_scan_peek(&r->s);
    return r->s.p == r->s.end ? ROSE_OK : bad(r, "text after the value");
}

static size_t or_default(size_t limit, size_t otherwise)
{
    return limit > 0 ? limit : otherwise;
}

rose_status rose_json_parse_limited(rose_json **out, const char *text, size_t n, unsigned flags,
                                    const rose_json_limits *l, rose_json_error *e)
{
    *out = NULL;
    if (n > SIZE_MAX / 8) return ROSE_E_NOMEM;
    if (n == 0) text = "";
    if (l == NULL) l = &g_defaults;
    reader r = {.s = {.begin = text, .p = text, .end = text + n, .flags = flags},
                .left = {or_default(l->depth, g_defaults.depth),
                         or_default(l->containers, SIZE_MAX), or_default(l->values, SIZE_MAX)}};
    const rose_status st = read_text(&r, out);
    if (st != ROSE_OK) {
        rose_json_decref(*out);
        *out = NULL;
    }
    if (e != NULL && st != ROSE_OK) fill_error(&r, e);
    rose_buf_free(&r.scratch);
    return st;
}

rose_status rose_json_parse(rose_json **out, const char *text, size_t n, unsigned flags,
                            rose_json_error *e)
{
    return rose_json_parse_limited(out, text, n, flags, NULL, e);
}

rose_json *rose_json_loadb(const char *text, size_t n, unsigned flags, rose_json_error *e)
{
    rose_json *v;
    (void)rose_json_parse(&v, text, n, flags, e);
    return v;
}

rose_json *rose_json_loads(const char *text, unsigned flags, rose_json_error *e)
{
    return rose_json_loadb(text, strlen(text), flags, e);
}
