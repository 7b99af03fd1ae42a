/* base/json_scan.c - walks over JSON text; see json.h. */
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

enum { MAX_DEPTH = 512 };

rose_status rose_json_scan_bad(rose_json_scan *s, const char *what)
{
    size_t line = 1;
    s->what = what;
    if (s->err == NULL) return ROSE_E_FORMAT;
    for (const char *p = s->begin; p < s->p; p++)
        line += *p == '\n';
    return rose_fail(s->err, ROSE_E_FORMAT, "%s: line %zu: %s", s->path, line, what);
}

char rose_json_scan_peek(rose_json_scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\n' || *s->p == '\t' || *s->p == '\r'))
        s->p++;
    return s->p < s->end ? *s->p : '\0';
}

bool rose_json_scan_take(rose_json_scan *s, char c)
{
    if (rose_json_scan_peek(s) != c || s->p == s->end) return false;
    s->p++;
    return true;
}

/* Four hexadecimal digits at p, or -1. */
static int32_t hex4(const char *p, const char *end)
{
    int32_t v = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const int digit = rose_hex_digit(p[i]);
        if (digit < 0) return -1;
        v = v << 4 | digit;
    }
    return v;
}

static bool repairs(const rose_json_scan *s)
{
    return (s->flags & ROSE_JSON_REPAIR) != 0;
}

/* An escape that does not exist. A repair keeps its backslash, as in "\d", or drops an escape that
 * the end of the text has cut; p is after the backslash. */
static rose_status bad_escape(rose_json_scan *s, rose_buf *out, bool cut)
{
    if (!repairs(s)) return rose_json_scan_bad(s, "invalid escape");
    if (!cut) return rose_buf_add(out, "\\", 1);
    s->p = s->end;
    return ROSE_OK;
}

/* \uXXXX, or two of them for a character beyond the first plane; p is before the u. */
static rose_status unicode_escape(rose_json_scan *s, rose_buf *out)
{
    char utf8[4];
    int32_t cp = hex4(s->p + 1, s->end);
    if (cp < 0) return bad_escape(s, out, s->end - s->p < 5);
    s->p += 5;
    if (cp >= 0xD800 && cp < 0xE000) {
        const bool pair = cp < 0xDC00 && s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u';
        const int32_t low = pair ? hex4(s->p + 2, s->end) : -1;
        const bool whole = low >= 0xDC00 && low < 0xE000;
        if (!whole && !repairs(s)) return rose_json_scan_bad(s, "half of a surrogate pair");
        cp = whole ? 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00) : 0xFFFD;
        s->p += whole ? 6 : 0;
    }
    const unsigned n = rose_utf8_encode((uint32_t)cp, utf8);
    return rose_buf_add(out, utf8, n);
}

/* p is after the backslash. */
static rose_status escape(rose_json_scan *s, rose_buf *out)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (s->p == s->end) return bad_escape(s, out, true);
    if (*s->p == 'u') return unicode_escape(s, out);
    const char *at = memchr(letters, *s->p, sizeof letters - 1);
    if (at == NULL) return bad_escape(s, out, false);
    s->p++;
    if (out->len == out->cap) return rose_buf_add(out, &values[at - letters], 1);
    out->data[out->len++] = values[at - letters];
    return ROSE_OK;
}

/* Sets the high bit of each byte that is zero in w. Only bytes above the first one may be wrong. */
static uint64_t zero_bytes(uint64_t w)
{
    return (w - 0x0101010101010101u) & ~w & 0x8080808080808080u;
}

/* Steps to the next quote, backslash or control character, eight bytes at a time. The machine is
 * little-endian: the first byte is the lowest of a word. */
static void plain_text(rose_json_scan *s)
{
    const char *p = s->p;
    for (uint64_t w, found; s->end - p >= 8; p += 8) {
        memcpy(&w, p, 8);
        found = zero_bytes(w ^ 0x2222222222222222u) | zero_bytes(w ^ 0x5C5C5C5C5C5C5C5Cu) |
                zero_bytes(w & 0xE0E0E0E0E0E0E0E0u);
        if (found == 0) continue;
        s->p = p + (__builtin_ctzll(found) >> 3);
        return;
    }
    while (p < s->end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        p++;
    s->p = p;
}

/* As plain_text; steps over control characters where they are allowed. */
static void string_text(rose_json_scan *s)
{
    plain_text(s);
    while ((s->flags & (ROSE_JSON_CONTROL | ROSE_JSON_REPAIR)) && s->p < s->end &&
           (unsigned char)*s->p < 0x20) {
        s->p++;
        plain_text(s);
    }
}

/* The rest of a string that has escapes, from its first one, into scratch. */
static rose_status escaped_text(rose_json_scan *s, rose_buf *scratch, const char *from)
{
    rose_status st = rose_buf_add(scratch, from, (size_t)(s->p - from));
    while (st == ROSE_OK && s->p < s->end && *s->p == '\\') {
        s->p++;
        if ((st = escape(s, scratch)) != ROSE_OK) break;
        from = s->p;
        string_text(s);
        st = rose_buf_add(scratch, from, (size_t)(s->p - from));
    }
    if (st == ROSE_E_NOMEM && s->err != NULL)
        return rose_fail(s->err, st, "%s: out of memory", s->path);
    return st;
}

rose_status rose_json_scan_string(rose_json_scan *s, rose_buf *scratch, const char **text,
                                  size_t *len)
{
    if (!rose_json_scan_take(s, '"')) return rose_json_scan_bad(s, "a string is missing");
    const char *from = s->p;
    string_text(s);
    *text = from;
    *len = (size_t)(s->p - from);
    if (s->p < s->end && *s->p == '\\') {
        scratch->len = 0;
        const rose_status st = escaped_text(s, scratch, from);
        if (st != ROSE_OK) return st;
        *text = scratch->data;
        *len = scratch->len;
    }
    const bool ends = s->p < s->end;
    if (!ends && !repairs(s)) return rose_json_scan_bad(s, "a string without an end");
    if (ends && *s->p != '"') return rose_json_scan_bad(s, "a control character in a string");
    if (*len > 0 && !rose_utf8_is_valid(*text, *len))
        return rose_json_scan_bad(s, "a string that is not UTF-8");
    s->p += ends;
    return ROSE_OK;
}

static const char *digits(const char *p, const char *end)
{
    while (p < end && *p >= '0' && *p <= '9')
        p++;
    return p;
}

rose_status rose_json_scan_number(rose_json_scan *s, bool *whole)
{
    const char *const from = s->p + (s->p < s->end && *s->p == '-'), *end = s->end;
    const char *p = digits(from, end), *part;
    bool ok = p > from;
    *whole = true;
    if (p - from > 1 && *from == '0') return rose_json_scan_bad(s, "a number that begins with 0");
    if (ok && p < end && *p == '.') {
        part = p + 1;
        p = digits(part, end);
        ok = p > part;
        *whole = false;
    }
    if (ok && p < end && (*p == 'e' || *p == 'E')) {
        part = p + 1;
        if (part < end && (*part == '+' || *part == '-')) part++;
        p = digits(part, end);
        ok = p > part;
        *whole = false;
    }
    s->p = ok ? p : s->p;
    return ok ? ROSE_OK : rose_json_scan_bad(s, "an invalid number");
}

rose_status rose_json_scan_id(rose_json_scan *s, uint32_t limit, int64_t *id)
{
    const char c = rose_json_scan_peek(s);
    const char *from = s->p;
    int64_t v = 0;
    *id = -1;
    if (c < '0' || c > '9') return rose_json_scan_skip(s);
    for (; s->p < s->end && *s->p >= '0' && *s->p <= '9'; s->p++)
        if (v < (int64_t)limit) v = v * 10 + (*s->p - '0');
    if (s->p - from > 1 && *from == '0')
        return rose_json_scan_bad(s, "a number that begins with 0");
    if (s->p < s->end && strchr(".eE", *s->p) != NULL && *s->p != '\0')
        return rose_json_scan_skip(s);
    *id = v < (int64_t)limit ? v : -1;
    return ROSE_OK;
}

static rose_status skip_string(rose_json_scan *s)
{
    for (s->p++, plain_text(s); s->p < s->end && *s->p == '\\'; plain_text(s))
        s->p += s->end - s->p > 1 ? 2 : 1;
    if (s->p == s->end || *s->p != '"') return rose_json_scan_bad(s, "a string without an end");
    s->p++;
    return ROSE_OK;
}

/* A number, true, false or null, or what takes its place. */
static rose_status skip_word(rose_json_scan *s)
{
    const char *from = s->p;
    while (s->p < s->end && strchr(",]} \n\t\r\":[{", *s->p) == NULL)
        s->p++;
    return s->p > from ? ROSE_OK : rose_json_scan_bad(s, "a value is missing");
}

rose_status rose_json_scan_skip(rose_json_scan *s)
{
    char open[MAX_DEPTH]; /* the brackets that will close what is open */
    int depth = 0;
    do {
        const char c = rose_json_scan_peek(s);
        rose_status st = ROSE_OK;
        if (c == '{' || c == '[') {
            if (depth == MAX_DEPTH) return rose_json_scan_bad(s, "brackets too deep");
            open[depth++] = c == '{' ? '}' : ']';
            s->p++;
        } else if (depth > 0 && (c == ',' || c == ':')) {
            s->p++;
        } else if (depth > 0 && c == open[depth - 1] && s->p < s->end) {
            depth--;
            s->p++;
        } else {
            st = c == '"' ? skip_string(s) : skip_word(s);
        }
        if (st != ROSE_OK) return st;
    } while (depth > 0);
    return ROSE_OK;
}

rose_status rose_json_scan_open(rose_json_scan *s, char bracket)
{
    if (rose_json_scan_take(s, bracket)) return ROSE_OK;
    return rose_json_scan_bad(s, bracket == '{' ? "an object is missing" : "a list is missing");
}

bool rose_json_scan_more(rose_json_scan *s, char bracket, bool *first, rose_status *st)
{
    if (*st != ROSE_OK) return false;
    const bool was_first = *first;
    *first = false;
    if (was_first && rose_json_scan_take(s, bracket)) return false;
    if (!was_first && !rose_json_scan_take(s, ',')) {
        if (!rose_json_scan_take(s, bracket) && !(repairs(s) && s->p == s->end))
            *st = rose_json_scan_bad(s, "a comma or a closing bracket is missing");
        return false;
    }
    /* A repair passes over a comma before the bracket, and ends at the end of the text. */
    return !repairs(s) || !(rose_json_scan_take(s, bracket) || s->p == s->end);
}

rose_status rose_json_scan_key(rose_json_scan *s, rose_buf *scratch, const char **text, size_t *len)
{
    rose_status st = rose_json_scan_string(s, scratch, text, len);
    if (st != ROSE_OK) return st;
    return rose_json_scan_take(s, ':') ? ROSE_OK : rose_json_scan_bad(s, "a colon is missing");
}

bool rose_json_scan_member(rose_json_scan *s, rose_buf *scratch, rose_json_member *m,
                           rose_status *st)
{
    bool first = !m->begun;
    if (first && *st == ROSE_OK) *st = rose_json_scan_open(s, '{');
    m->begun = true;
    if (!rose_json_scan_more(s, '}', &first, st)) return false;
    *st = rose_json_scan_key(s, scratch, &m->name, &m->len);
    return *st == ROSE_OK;
}

bool rose_json_member_is(const rose_json_member *m, const char *name)
{
    return m->len == strlen(name) && memcmp(m->name, name, m->len) == 0;
}
