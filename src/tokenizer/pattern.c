/* tokenizer/pattern.c - reads an Oniguruma pattern (the syntax of tokenizer.json) and writes the
 * same pattern for PCRE2.
 *
 * There are two reasons not to use the pattern directly. The libraries differ in syntax (the
 * meaning of \h, ++ or ^). They also differ in the meaning and Unicode version of their
 * character classes (PCRE2's \s has U+180E, and its \p{L} is of an older Unicode). So only
 * constructs with the same meaning in both are accepted. \s \d \w and \p{..} become explicit
 * ranges from unicode_ranges.c. Everything else is refused by name. */
#include <string.h>

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

enum { MAX_PATTERN = 16 << 10, MAX_DEPTH = 32 };

typedef struct translation {
    const char *p, *end; /* the rest of the pattern, well-formed UTF-8 */
    rose_buf out;        /* owned */
    rose_err *err;
} translation;

static rose_status refuse(translation *t, const char *what, const char *at)
{
    size_t n = (size_t)(t->end - at);
    return rose_fail(t->err, ROSE_E_UNSUPPORTED,
                     "tokenizer: pattern of Split: %s is not supported: \"%.*s\"", what,
                     (int)(n < 24 ? n : 24), at);
}

static rose_status put(translation *t, const char *text, size_t n)
{
    if (rose_buf_add(&t->out, text, n) == ROSE_OK) return ROSE_OK;
    return rose_fail(t->err, ROSE_E_NOMEM, "tokenizer: out of memory");
}

static rose_status put_cp(translation *t, uint32_t cp)
{
    if (rose_buf_addf(&t->out, "\\x{%x}", cp) == ROSE_OK) return ROSE_OK;
    return rose_fail(t->err, ROSE_E_NOMEM, "tokenizer: out of memory");
}

static rose_status put_range(translation *t, uint32_t lo, uint32_t hi)
{
    if (lo > hi) return ROSE_OK;
    rose_status st = put_cp(t, lo);
    if (st == ROSE_OK && hi > lo) st = put(t, "-", 1);
    return st == ROSE_OK && hi > lo ? put_cp(t, hi) : st;
}

/* Whether the class has the characters of the run; surrogates are no characters. */
static int belongs(const rose_cp_run *r, uint32_t set)
{
    const uint32_t classes = rose_cp_kinds[r->kind];
    return classes == ROSE_CP_SURROGATE ? -1 : (classes & set) != 0;
}

/* Writes the members of set (or all other characters) as items of a bracket class. */
static rose_status put_set(translation *t, uint32_t set, bool negate)
{
    rose_status st = ROSE_OK;
    for (const rose_cp_run *r = rose_cp_runs; r->first < 0x110000 && st == ROSE_OK;) {
        const uint32_t lo = r->first;
        const int is = belongs(r, set);
        while ((++r)->first < 0x110000 && belongs(r, set) == is)
            ;
        if (is == !negate) st = put_range(t, lo, r->first - 1);
    }
    return st;
}

static rose_status class_escape(translation *t, uint32_t set, bool negate, bool in_class)
{
    rose_status st = in_class ? ROSE_OK : put(t, "[", 1);
    if (st == ROSE_OK) st = put_set(t, set, negate);
    return st == ROSE_OK && !in_class ? put(t, "]", 1) : st;
}

/* Translates a class of characters: \p{Name}, \P{Name} or \p{^Name}. p is after the letter. */
static rose_status property(translation *t, bool negate, bool in_class, const char *at)
{
    if (t->p == t->end || *t->p != '{') return refuse(t, "a property without braces", at);
    const char *name = ++t->p;
    if (t->p < t->end && *t->p == '^') {
        negate = !negate;
        name = ++t->p;
    }
    while (t->p < t->end && *t->p != '}')
        t->p++;
    if (t->p == t->end) return refuse(t, "an open property", at);
    const uint32_t set = rose_cp_set_find(name, (size_t)(t->p - name));
    t->p++;
    if (set == 0 || name[0] == '\\' || name[0] == 'r' || name[0] == 'n')
        return refuse(t, "this property", at);
    return class_escape(t, set, negate, in_class);
}

/* Reads up to max hex digits at p as a character's number; false if there is no digit or the
 * value is not a character. */
static bool hex(translation *t, unsigned max, uint32_t *cp)
{
    unsigned n = 0;
    for (*cp = 0; n < max && t->p < t->end; n++, t->p++) {
        const int d = rose_hex_digit(*t->p);
        if (d < 0) break;
        *cp = *cp << 4 | (uint32_t)d;
    }
    return n > 0 && rose_utf8_is_char(*cp);
}

/* Translates an escape for one character: \xHH (only below 0x80, because Oniguruma takes higher
 * ones as raw bytes), \x{H..} or \uHHHH. */
static rose_status code_point(translation *t, char letter, const char *at)
{
    uint32_t cp;
    if (letter == 'x' && t->p < t->end && *t->p == '{') {
        t->p++;
        if (!hex(t, 6, &cp) || t->p == t->end || *t->p++ != '}')
            return refuse(t, "this code point", at);
        return put_cp(t, cp);
    }
    const char *digits = t->p;
    unsigned want = letter == 'x' ? 2 : 4;
    if (!hex(t, want, &cp) || t->p - digits != want || (letter == 'x' && cp >= 0x80))
        return refuse(t, "this code point", at);
    return put_cp(t, cp);
}

/* An escape; p is at the backslash. */
static rose_status escape(translation *t, bool in_class)
{
    static const char controls[] = "nrtfva", values[] = "\n\r\t\f\v\a";
    const char *at = t->p++;
    if (t->p == t->end) return refuse(t, "a backslash at the end", at);
    char c = *t->p++;
    const char *control = memchr(controls, c, sizeof controls - 1);
    if (control != NULL) return put_cp(t, (uint8_t)values[control - controls]);
    if (c == 'p' || c == 'P') return property(t, c == 'P', in_class, at);
    if (c == 'x' || c == 'u') return code_point(t, c, at);
    if (strchr("sdwSDW", c) != NULL && c != '\0') {
        const char name[2] = {'\\', (char)(c | 0x20)};
        return class_escape(t, rose_cp_set_find(name, 2), c < 'a', in_class);
    }
    if (c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
        !(c >= 'a' && c <= 'z'))
        return put_cp(t, (uint8_t)c); /* escaped punctuation is itself */
    if (c == ' ') return put_cp(t, ' ');
    return refuse(t, "this escape", at);
}

static rose_status literal_char(translation *t)
{
    uint32_t cp;
    t->p += rose_utf8_decode_valid((const uint8_t *)t->p, &cp);
    return put_cp(t, cp);
}

/* Translates a bracket class [...]; p is at the bracket. No nested classes, no &&, no [:names:]. */
static rose_status bracket(translation *t)
{
    const char *at = t->p++;
    rose_status st = put(t, "[", 1);
    if (t->p < t->end && *t->p == '^' && st == ROSE_OK) {
        t->p++;
        st = put(t, "^", 1);
    }
    if (t->p < t->end && *t->p == ']') return refuse(t, "a class that starts with ]", at);
    while (st == ROSE_OK) {
        if (t->p == t->end) return refuse(t, "an open class", at);
        char c = *t->p;
        if (c == ']') break;
        if (c == '[') return refuse(t, "a class within a class", at);
        if (c == '&' && t->end - t->p > 1 && t->p[1] == '&')
            return refuse(t, "an intersection of classes", at);
        if (c == '\\') {
            st = escape(t, true);
        } else if (c == '-') {
            /* A '-' with items on both sides is a range, otherwise it is itself: the same in
             * both syntaxes. */
            t->p++;
            bool edge = t->p - 1 == at + 1 || (t->p < t->end && *t->p == ']');
            st = edge ? put_cp(t, '-') : put(t, "-", 1);
        } else {
            st = literal_char(t);
        }
    }
    if (st != ROSE_OK) return st;
    t->p++;
    return put(t, "]", 1);
}

/* Reads the start of a group, such as "(?:"; p is at the parenthesis. */
static rose_status group(translation *t)
{
    static const char *const heads[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    size_t left = (size_t)(t->end - t->p);
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        size_t n = strlen(heads[i]);
        if (left < n || memcmp(t->p, heads[i], n) != 0) continue;
        t->p += n;
        return put(t, heads[i], n);
    }
    if (left > 1 && t->p[1] == '?') return refuse(t, "this group", t->p);
    t->p++;
    return put(t, "(?:", 3); /* captures serve nothing here */
}

/* Translates a repeat: * + ? or {m,n}, with an optional ? or + after it. Oniguruma's {m,n}+
 * repeats a repeat, so it is refused. */
static rose_status quantifier(translation *t)
{
    const char *at = t->p;
    bool braces = *t->p == '{';
    if (braces) {
        const char *close = memchr(t->p, '}', (size_t)(t->end - t->p));
        if (close == NULL || t->p[1] < '0' || t->p[1] > '9') return refuse(t, "this repeat", at);
        for (const char *q = t->p + 1; q < close; q++)
            if ((*q < '0' || *q > '9') && *q != ',') return refuse(t, "this repeat", at);
        t->p = close + 1;
    } else {
        t->p++;
    }
    if (t->p < t->end && (*t->p == '?' || *t->p == '+')) {
        if (braces) return refuse(t, "this repeat", at);
        t->p++;
    }
    if (t->p < t->end && strchr("*+?{", *t->p) != NULL && *t->p != '\0')
        return refuse(t, "a repeat of a repeat", at);
    return put(t, at, (size_t)(t->p - at));
}

static rose_status translate(translation *t)
{
    rose_status st = ROSE_OK;
    int depth = 0;
    while (t->p < t->end && st == ROSE_OK) {
        switch (*t->p) {
        case '\\':
            st = escape(t, false);
            break;
        case '[':
            st = bracket(t);
            break;
        case '(':
            if (++depth > MAX_DEPTH) return refuse(t, "a group this deep", t->p);
            st = group(t);
            break;
        case ')':
            depth--;
            t->p++;
            st = put(t, ")", 1);
            break;
        case '|':
            t->p++;
            st = put(t, "|", 1);
            break;
        case '*':
        case '+':
        case '?':
        case '{':
            st = quantifier(t);
            break;
        case '.':
            t->p++;
            st = put(t, "[^\\n]", 5);
            break;
        case '^':
        case '$':
            return refuse(t, "an anchor", t->p);
        default:
            st = literal_char(t);
        }
    }
    return st;
}

rose_status rose_pattern_compile(pcre2_code **out, const char *pattern, size_t len, bool literal,
                                 rose_err *err)
{
    translation t = {pattern, pattern + len, {0}, err};
    rose_status st = ROSE_OK;
    int code;
    PCRE2_SIZE offset;
    char text[128];

    *out = NULL;
    if (len == 0 || len > MAX_PATTERN) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "tokenizer: pattern of Split: %zu bytes, not 1 to %d", len, MAX_PATTERN);
        goto done;
    }
    if (literal)
        while (t.p < t.end && st == ROSE_OK)
            st = literal_char(&t);
    else
        st = translate(&t);
    if (st != ROSE_OK) goto done;
    *out = pcre2_compile((PCRE2_SPTR)t.out.data, t.out.len, PCRE2_UTF, &code, &offset, NULL);
    if (*out == NULL) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        st = rose_fail(err, ROSE_E_FORMAT, "tokenizer: pattern of Split: %s: \"%.*s\"", text,
                       (int)(len < 100 ? len : 100), pattern);
        goto done;
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without it the interpreter serves */
done:
    rose_buf_free(&t.out);
    return st;
}
