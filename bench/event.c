/* bench/event.c - see reply.h. It takes one pass and no memory. It may refuse good JSON, but it
 * never accepts bad JSON: whatever it does not know goes to the full parser. */
#include "bench/reply.h"

#include <string.h>

#include "base/json.h"

enum { MAX_DEPTH = 16, MAX_NUMBER = 15 };

typedef struct scan {
    rose_json_scan j;
    rose_event_look *out;
    uint32_t seen; /* one bit for each member that may come only once */
} scan;

enum { CHOICES = 1, USAGE = 2, TIMINGS = 4, ERROR = 8, TEXT = 16, DELTA = 32, IDS = 64 };
enum { FINISH = 128, CONTENT = 256, REASONING = 512 };

static char peek(scan *s)
{
    return rose_json_scan_peek(&s->j);
}

static bool take(scan *s, char c)
{
    return rose_json_scan_take(&s->j, c);
}

/* Finds the bytes between the quotes and leaves escapes as they are. */
static bool take_string(scan *s, const char **at, size_t *n)
{
    if (!take(s, '"')) return false;
    *at = s->j.p;
    for (; s->j.p < s->j.end; s->j.p++) {
        const unsigned char c = (unsigned char)*s->j.p;
        if (c == '"') {
            *n = (size_t)(s->j.p++ - *at);
            return true;
        }
        if (c < 0x20 || c > 0x7e) return false;
        if (c == '\\' && (++s->j.p == s->j.end || memchr("\"\\/bfnrt", *s->j.p, 8) == NULL))
            return false;
    }
    return false;
}

/* A number without exponent, so short that it cannot overflow. */
static bool take_number(scan *s)
{
    const char *at = s->j.p;
    bool whole;
    if (rose_json_scan_number(&s->j, &whole) != ROSE_OK) return false;
    const size_t n = (size_t)(s->j.p - at);
    return n <= MAX_NUMBER && memchr(at, 'e', n) == NULL && memchr(at, 'E', n) == NULL;
}

static bool take_word(scan *s, const char *word)
{
    const size_t n = strlen(word);
    peek(s);
    if ((size_t)(s->j.end - s->j.p) < n || memcmp(s->j.p, word, n) != 0) return false;
    s->j.p += n;
    return true;
}

static bool skip_value(scan *s, int depth);

/* Reads the value of one member. depth is the nesting depth of that member. */
typedef bool member_fn(scan *s, const char *key, size_t n, int depth);

static bool skip_member(scan *s, const char *key, size_t n, int depth)
{
    (void)key, (void)n;
    return skip_value(s, depth);
}

static bool take_object(scan *s, member_fn *fn, int depth)
{
    if (depth > MAX_DEPTH || !take(s, '{')) return false;
    if (take(s, '}')) return true;
    do {
        const char *key;
        size_t n;
        if (!take_string(s, &key, &n) || memchr(key, '\\', n) != NULL || !take(s, ':') ||
            !fn(s, key, n, depth + 1))
            return false;
    } while (take(s, ','));
    return take(s, '}');
}

static bool take_array(scan *s, uint32_t *n, int depth)
{
    *n = 0;
    if (depth > MAX_DEPTH || !take(s, '[')) return false;
    if (take(s, ']')) return true;
    do {
        if (!skip_value(s, depth + 1)) return false;
        ++*n;
    } while (take(s, ','));
    return take(s, ']');
}

static bool skip_value(scan *s, int depth)
{
    const char *at;
    size_t len;
    uint32_t n;
    switch (peek(s)) {
    case '{':
        return take_object(s, skip_member, depth);
    case '[':
        return take_array(s, &n, depth);
    case '"':
        return take_string(s, &at, &len);
    case 't':
        return take_word(s, "true");
    case 'f':
        return take_word(s, "false");
    case 'n':
        return take_word(s, "null");
    default:
        return take_number(s);
    }
}

static bool once(scan *s, uint32_t bit)
{
    const bool first = (s->seen & bit) == 0;
    s->seen |= bit;
    return first;
}

static bool is(const char *key, size_t n, const char *name)
{
    return n == strlen(name) && memcmp(key, name, n) == 0;
}

static bool take_text(scan *s, uint32_t bit)
{
    const char *at;
    size_t n;
    if (!once(s, bit)) return false;
    if (peek(s) != '"') return take_word(s, "null");
    if (!take_string(s, &at, &n)) return false;
    s->out->text |= n > 0;
    return true;
}

static bool on_delta(scan *s, const char *key, size_t n, int depth)
{
    if (is(key, n, "content")) return take_text(s, CONTENT);
    if (is(key, n, "reasoning_content")) return take_text(s, REASONING);
    return skip_value(s, depth);
}

static bool on_choice(scan *s, const char *key, size_t n, int depth)
{
    if (is(key, n, "text")) return take_text(s, TEXT);
    if (is(key, n, "delta")) return once(s, DELTA) && take_object(s, on_delta, depth);
    if (is(key, n, "finish_reason")) return once(s, FINISH) && take_word(s, "null");
    if (!is(key, n, "token_ids")) return skip_value(s, depth);
    if (!once(s, IDS)) return false;
    return peek(s) == 'n' ? take_word(s, "null") : take_array(s, &s->out->n_ids, depth);
}

static bool take_choices(scan *s, int depth)
{
    if (!once(s, CHOICES) || !take(s, '[') || !take_object(s, on_choice, depth + 1)) return false;
    while (take(s, ',')) {
        if (!skip_value(s, depth + 1)) return false;
    }
    return take(s, ']');
}

static bool on_member(scan *s, const char *key, size_t n, int depth)
{
    if (is(key, n, "choices")) return take_choices(s, depth);
    if (is(key, n, "usage")) return once(s, USAGE) && take_word(s, "null");
    if (is(key, n, "timings")) return once(s, TIMINGS) && take_word(s, "null");
    if (is(key, n, "error")) return once(s, ERROR) && take_word(s, "null");
    return skip_value(s, depth);
}

bool rose_event_glance(const char *data, size_t len, rose_event_look *out)
{
    scan s = {.j = {.begin = data, .p = data, .end = data + len}, .out = out};
    *out = (rose_event_look){0};
    if (!take_object(&s, on_member, 0)) return false;
    peek(&s);
    return s.j.p == s.j.end && (s.seen & CHOICES) != 0;
}
