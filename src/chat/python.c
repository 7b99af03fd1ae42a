/* chat/python.c - Python's literals as JSON, as ast.literal_eval reads them: numbers of any size
 * and base, strings in all their forms, lists, tuples, sets and dicts. A tuple and a set become a
 * list, and a key that is no string becomes the string that json.dumps makes of it. What JSON
 * cannot hold (complex numbers, keys that are lists) is no literal here. JSON's own words are taken
 * too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "chat/chat_internal.h"

/* ---- text ---- */

void rose_python_escape(rose_buf *out, const char *bytes, size_t n, bool *oom)
{
    if (rose_json_escape_lower(out, bytes, n) != ROSE_OK) *oom = true;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* The value of a digit up to base 16; a huge one for every other byte. */
static uint32_t digit_value(char c)
{
    return (uint32_t)rose_hex_digit(c);
}

/* ---- strings ---- */

bool rose_python_prefix(const char *s, size_t n, bool *raw)
{
    static const char *const prefixes[] = {"", "r", "u", "b", "br", "rb"};
    *raw = false;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const char *p = prefixes[i];
        size_t k = 0;
        while (k < n && p[k] != '\0' && (s[k] | 32) == p[k])
            k++;
        if (k != n || p[k] != '\0') continue;
        *raw = strchr(p, 'r') != NULL;
        return true;
    }
    return false;
}

void rose_python_string_begin(rose_python_string *s, char quote, bool raw)
{
    *s = (rose_python_string){.quote = quote, .raw = raw, .state = PYTHON_OPEN, .n_quotes = 1};
}

static void put(rose_python_string *s, rose_buf *out, const char *bytes, size_t n)
{
    if (s->high != 0 && out != NULL && rose_buf_add(out, "\\ufffd", 6) != ROSE_OK) s->oom = true;
    s->high = 0;
    if (out != NULL) rose_python_escape(out, bytes, n, &s->oom);
}

/* A surrogate without its other half becomes U+FFFD. */
static void put_code(rose_python_string *s, rose_buf *out)
{
    char text[ROSE_JSON_CODE_CAP];
    uint32_t c = s->code;
    if (s->high != 0 && c >= 0xdc00 && c < 0xe000) {
        c = 0x10000 + ((s->high - 0xd800) << 10) + (c - 0xdc00);
        s->high = 0;
    }
    put(s, out, "", 0); /* a first half that waits */
    if (c >= 0xd800 && c < 0xdc00) {
        s->high = c;
        return;
    }
    const unsigned n = rose_json_escape_code(text, rose_utf8_is_char(c) ? c : 0xfffd);
    if (out != NULL && rose_buf_add(out, text, n) != ROSE_OK) s->oom = true;
}

static rose_python_took end_string(rose_python_string *s, rose_buf *out, rose_python_took took)
{
    put(s, out, "", 0); /* a surrogate that waits */
    return took;
}

/* The quotes at the beginning: one, three, or two, which are an empty string. */
static rose_python_took open_step(rose_python_string *s, rose_buf *out, char c)
{
    if (c == s->quote && ++s->n_quotes < 3) return PYTHON_MORE;
    s->state = PYTHON_TEXT;
    s->triple = s->n_quotes == 3;
    const bool empty = s->n_quotes == 2;
    s->n_quotes = 0;
    if (s->triple) return PYTHON_MORE;
    return empty ? PYTHON_BEFORE : rose_python_string_step(s, out, c);
}

static rose_python_took text_step(rose_python_string *s, rose_buf *out, char c)
{
    if (c == s->quote && (!s->triple || ++s->n_quotes == 3))
        return end_string(s, out, PYTHON_ENDED);
    if (c == s->quote) return PYTHON_MORE;
    for (; s->n_quotes > 0; s->n_quotes--)
        put(s, out, &s->quote, 1);
    if (c == '\\')
        s->state = PYTHON_ESCAPE;
    else
        put(s, out, &c, 1);
    return PYTHON_MORE;
}

/* A backslash before another letter is itself, as in Python. In a raw string it always is. */
static void escape_step(rose_python_string *s, rose_buf *out, char c)
{
    static const char letters[] = "abfnrtv\n\\'\"", values[] = "\a\b\f\n\r\t\v\n\\'\"";
    const char *at = c != '\0' && !s->raw ? strchr(letters, c) : NULL;
    s->state = PYTHON_TEXT;
    s->code = 0;
    if (!s->raw && (c == 'x' || c == 'u' || c == 'U')) {
        s->digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        s->base = 16;
        s->state = PYTHON_CODE;
    } else if (!s->raw && c >= '0' && c <= '7') {
        s->code = digit_value(c);
        s->digits = 2;
        s->base = 8;
        s->state = PYTHON_CODE;
    } else if (at == NULL) {
        put(s, out, "\\", 1);
        put(s, out, &c, 1);
    } else if (c != '\n') { /* a backslash joins two lines */
        put(s, out, &values[at - letters], 1);
    }
}

rose_python_took rose_python_string_step(rose_python_string *s, rose_buf *out, char c)
{
    switch (s->state) {
    case PYTHON_OPEN:
        return open_step(s, out, c);
    case PYTHON_TEXT:
        return text_step(s, out, c);
    case PYTHON_ESCAPE:
        escape_step(s, out, c);
        return PYTHON_MORE;
    case PYTHON_CODE:
        break;
    }
    const bool digit = digit_value(c) < s->base;
    if (digit) s->code = s->code * s->base + digit_value(c);
    if (digit && --s->digits > 0) return PYTHON_MORE;
    put_code(s, out);
    s->state = PYTHON_TEXT;
    return digit ? PYTHON_MORE : text_step(s, out, c); /* too few digits: what is there counts */
}

/* ---- numbers ---- */

/* Most digits of a number in hexadecimal, octal or binary, whose conversion costs their square. */
enum { MAX_DIGITS = 1024, LIMB = 1000000000 };

/* Reads digits of a base, with single underscores between them. Their number; 0: malformed. */
static size_t read_digits(const char *s, size_t n, uint32_t base, char *digits, size_t cap)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_' && i > 0 && s[i - 1] != '_' && i + 1 < n) continue;
        if (digit_value(s[i]) >= base || k == cap) return 0;
        digits[k++] = s[i];
    }
    return k;
}

/* Appends the decimal form of digits in a base. False: no memory. */
static bool put_decimal(rose_buf *out, const char *digits, size_t n, uint32_t base)
{
    uint32_t limbs[MAX_DIGITS * 4 / 29 + 2] = {0};
    size_t used = 1;
    for (size_t i = 0; i < n; i++) {
        uint64_t carry = digit_value(digits[i]);
        for (size_t k = 0; k < used; k++) {
            carry += (uint64_t)limbs[k] * base;
            limbs[k] = (uint32_t)(carry % LIMB);
            carry /= LIMB;
        }
        if (carry > 0) limbs[used++] = (uint32_t)carry;
    }
    bool ok = rose_buf_addf(out, "%u", limbs[used - 1]) == ROSE_OK;
    while (ok && --used > 0)
        ok = rose_buf_addf(out, "%09u", limbs[used - 1]) == ROSE_OK;
    return ok;
}

/* An integer in another base, without its sign: 0x1F. */
static bool put_based(rose_buf *out, const char *s, size_t n, bool *oom)
{
    char digits[MAX_DIGITS];
    const uint32_t base = (s[1] | 32) == 'x' ? 16 : (s[1] | 32) == 'o' ? 8 : 2;
    const size_t skip = n > 3 && s[2] == '_' ? 3 : 2;
    const size_t k = read_digits(s + skip, n - skip, base, digits, sizeof digits);
    if (k > 0 && !put_decimal(out, digits, k, base)) *oom = true;
    return k > 0;
}

/* Copies decimal digits without underscores and without zeros at the start; "0" where nothing is
 * left. False: an underscore stands where none may. */
static bool put_digits(rose_buf *out, const char *s, size_t n, bool zeros, bool *oom)
{
    const size_t before = out->len;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_' && (i == 0 || i + 1 == n || s[i - 1] == '_')) return false;
        if (s[i] == '_' || (!zeros && s[i] == '0' && out->len == before)) continue;
        if (rose_buf_add(out, &s[i], 1) != ROSE_OK) *oom = true;
    }
    if (out->len == before && rose_buf_add(out, "0", 1) != ROSE_OK) *oom = true;
    return true;
}

static size_t span_digits(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (is_digit(s[i]) || s[i] == '_'))
        i++;
    return i;
}

/* Python refuses 007, an octal number of its second version, but not 000. */
static bool is_octal_of_old(const char *s, size_t n)
{
    size_t zeros = 0;
    while (zeros < n && (s[zeros] == '0' || s[zeros] == '_'))
        zeros++;
    return zeros > 0 && zeros < n;
}

/* A decimal integer or a real, without its sign. */
static bool put_plain(rose_buf *out, const char *s, size_t n, bool *oom)
{
    const size_t whole = span_digits(s, n);
    const bool point = whole < n && s[whole] == '.';
    const size_t part_at = whole + point;
    const size_t part = point ? span_digits(s + part_at, n - part_at) : 0;
    const size_t exp_at = part_at + part;
    if (whole + part == 0) return false;
    if (whole == n && is_octal_of_old(s, n)) return false;
    if (!put_digits(out, s, whole, false, oom)) return false;
    if (point && (rose_buf_add(out, ".", 1) != ROSE_OK)) *oom = true;
    if (point && !put_digits(out, s + part_at, part, true, oom)) return false;
    if (exp_at == n) return true;
    size_t at = exp_at + 1;
    if ((s[exp_at] | 32) != 'e') return false;
    if (at < n && (s[at] == '+' || s[at] == '-')) at++;
    if (at == n || span_digits(s + at, n - at) != n - at) return false;
    if (rose_buf_add(out, s + exp_at, at - exp_at) != ROSE_OK) *oom = true;
    return put_digits(out, s + at, n - at, true, oom);
}

/* ---- values ---- */

typedef struct reader {
    const char *at, *end;
    rose_buf *out;
    uint32_t depth;
    bool oom;
} reader;

static bool read_value(reader *r, unsigned *type);

static void skip_space(reader *r)
{
    while (r->at < r->end && (rose_calls_space(*r->at) || *r->at == '\f'))
        r->at++;
}

static char peek(reader *r)
{
    skip_space(r);
    return r->at < r->end ? *r->at : '\0';
}

static void add(reader *r, const char *text)
{
    if (rose_buf_add(r->out, text, strlen(text)) != ROSE_OK) r->oom = true;
}

/* The letters before a quote, if the quote is there: the length of what begins a string. */
static bool at_string(reader *r, size_t *prefix, bool *raw)
{
    *prefix = 0;
    skip_space(r);
    while (r->at + *prefix < r->end && is_letter(r->at[*prefix]) && *prefix < 3)
        ++*prefix;
    const char *quote = r->at + *prefix;
    return quote < r->end && (*quote == '"' || *quote == '\'') &&
           rose_python_prefix(r->at, *prefix, raw);
}

/* One string, or several that follow each other and are one. */
static bool read_strings(reader *r)
{
    size_t prefix;
    bool raw;
    add(r, "\"");
    while (at_string(r, &prefix, &raw)) {
        rose_python_string s;
        rose_python_took took = PYTHON_MORE;
        r->at += prefix;
        rose_python_string_begin(&s, *r->at++, raw);
        while (took == PYTHON_MORE && r->at < r->end)
            took = rose_python_string_step(&s, r->out, *r->at++);
        if (took == PYTHON_BEFORE) r->at--;
        if (s.oom) r->oom = true;
        if (took == PYTHON_MORE && !(s.state == PYTHON_OPEN && s.n_quotes == 2)) return false;
    }
    add(r, "\"");
    return true;
}

static bool read_number(reader *r)
{
    if (*r->at == '+' || *r->at == '-') {
        if (*r->at++ == '-') add(r, "-");
        skip_space(r);
    }
    const char *s = r->at;
    for (; r->at < r->end; r->at++) {
        const char c = *r->at;
        const bool sign = (c == '+' || c == '-') && r->at > s && (r->at[-1] | 32) == 'e';
        if (!is_digit(c) && !is_letter(c) && c != '.' && !sign) break;
    }
    const size_t n = (size_t)(r->at - s);
    if (n > 2 && s[0] == '0' && strchr("xXoObB", s[1]) != NULL)
        return put_based(r->out, s, n, &r->oom);
    return n > 0 && put_plain(r->out, s, n, &r->oom);
}

static bool read_word(reader *r, unsigned *type)
{
    static const struct {
        const char *word, *json;
        unsigned type;
    } words[] = {{"True", "true", CALLS_BOOL},   {"true", "true", CALLS_BOOL},
                 {"False", "false", CALLS_BOOL}, {"false", "false", CALLS_BOOL},
                 {"None", "null", CALLS_NULL},   {"null", "null", CALLS_NULL},
                 {"set()", "[]", CALLS_ARRAY}};
    const size_t left = (size_t)(r->end - r->at);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t n = strlen(words[i].word);
        if (n > left || memcmp(r->at, words[i].word, n) != 0) continue;
        if (n < left && (is_letter(r->at[n]) || is_digit(r->at[n]))) continue;
        r->at += n;
        add(r, words[i].json);
        *type = words[i].type;
        return true;
    }
    return false;
}

/* A key of a dict: what is no string is put into quotes. */
static bool quote_key(reader *r, size_t begin, unsigned type)
{
    if (type == CALLS_STRING) return true;
    if (type == CALLS_ARRAY || type == CALLS_OBJECT_TYPE) return false;
    add(r, "\"\"");
    if (r->oom) return true;
    memmove(r->out->data + begin + 1, r->out->data + begin, r->out->len - begin - 2);
    r->out->data[begin] = '"';
    return true;
}

/* Drops the bracket at `begin` and leaves the one value after it. */
static void drop_bracket(reader *r, size_t begin)
{
    if (r->oom) return;
    r->out->len--;
    memmove(r->out->data + begin, r->out->data + begin + 1, r->out->len - begin);
}

/* A pair of a dict goes on after its key, which begins at `key`. */
static bool read_pair(reader *r, size_t key, unsigned type)
{
    if (!quote_key(r, key, type) || peek(r) != ':') return false;
    r->at++;
    add(r, ": ");
    return read_value(r, &type);
}

/* The bracket is open. Values up to close, with commas between them and maybe after them. In braces
 * the first one decides whether this is a dict or a set. */
static bool read_items(reader *r, char close, unsigned *type)
{
    const size_t begin = r->out->len;
    bool dict = close == '}', comma = true;
    unsigned one = 0;
    size_t n = 0;
    add(r, dict ? "{" : "[");
    for (; peek(r) != close; n++) {
        if (!comma) return false;
        if (n > 0) add(r, ", ");
        const size_t key = r->out->len;
        if (!read_value(r, &one)) return false;
        if (n == 0 && dict && peek(r) != ':') {
            dict = false;
            if (!r->oom) r->out->data[begin] = '[';
        }
        if (dict && !read_pair(r, key, one)) return false;
        comma = peek(r) == ',';
        if (comma) r->at++;
    }
    r->at++;
    *type = dict ? CALLS_OBJECT_TYPE : CALLS_ARRAY;
    if (close == ')' && n == 1 && !comma) { /* a value in parentheses is no tuple */
        *type = one;
        drop_bracket(r, begin);
    } else {
        add(r, dict ? "}" : "]");
    }
    return true;
}

static bool read_container(reader *r, unsigned *type)
{
    const char open = *r->at++;
    if (r->depth == CALLS_PY_DEPTH) return false;
    r->depth++;
    const bool ok = read_items(r, open == '[' ? ']' : open == '(' ? ')' : '}', type);
    r->depth--;
    return ok;
}

static bool read_value(reader *r, unsigned *type)
{
    size_t prefix;
    bool raw;
    const char c = peek(r);
    if (r->oom) return false;
    if (c == '[' || c == '(' || c == '{') return read_container(r, type);
    if (at_string(r, &prefix, &raw)) {
        *type = CALLS_STRING;
        return read_strings(r);
    }
    if (is_letter(c)) return read_word(r, type);
    *type = CALLS_NUMBER;
    return c != '\0' && strchr("+-.0123456789", c) != NULL && read_number(r);
}

bool rose_python_value(rose_buf *out, const char *text, size_t n, unsigned *type, bool *oom)
{
    if (n == 0) return false; /* the text may be NULL */
    reader r = {.at = text, .end = text + n, .out = out};
    const size_t before = out->len;
    const bool ok = read_value(&r, type) && peek(&r) == '\0' && r.at == r.end && !r.oom;
    if (r.oom) *oom = true;
    if (!ok) out->len = before;
    return ok;
}
