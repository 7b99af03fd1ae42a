/* api/json_out.c - writes JSON text to the end of a buffer. Replies have a fixed form, so they
 * are written front to back, without a tree. */
#include <stdio.h>
#include <string.h>

#include "api/json_out.h"
#include "base/json.h"

void rose_api_put(rose_api_out *o, const char *bytes, size_t len)
{
    if (o->oom) return;
    if (rose_buf_add(&o->b, bytes, len) != ROSE_OK) o->oom = true;
}

void rose_api_puts(rose_api_out *o, const char *literal)
{
    rose_api_put(o, literal, strlen(literal));
}

void rose_api_putf(rose_api_out *o, const char *fmt, ...)
{
    char line[256]; /* this function is for numbers and short names; longer text goes through
                     * rose_api_put */
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof line)
        o->oom = true;
    else
        rose_api_put(o, line, (size_t)n);
}

/* Writes the argument that p, at a %, describes. Returns where the format goes on. */
static const char *put_argument(rose_api_out *o, const char *p, va_list *args)
{
    const size_t n = strcspn(p, "sdugf") + 1;
    const bool wide = p[1] == 'l' || p[1] == 'z', sized = memchr(p, '*', n) != NULL;
    const int digits = p[1] == '.' && !sized ? p[2] - '0' : 6;
    if (p[n - 1] == 's') {
        const int given = sized ? va_arg(*args, int) : -1;
        const char *s = va_arg(*args, const char *);
        (p[1] == '-' ? rose_api_put_string : rose_api_put)(o, s,
                                                           given < 0 ? strlen(s) : (size_t)given);
    } else if (p[n - 1] == 'u') {
        rose_api_put_u64(o, wide ? va_arg(*args, unsigned long long) : va_arg(*args, unsigned));
    } else if (p[n - 1] == 'd') {
        rose_api_putf(o, "%lld", wide ? va_arg(*args, long long) : (long long)va_arg(*args, int));
    } else if (p[n - 1] == 'g') {
        rose_api_putf(o, "%.*g", digits, va_arg(*args, double));
    } else {
        rose_api_putf(o, "%.*f", digits, va_arg(*args, double));
    }
    return p + n;
}

void rose_api_json(rose_api_out *o, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    for (const char *p = fmt; *p != '\0';) {
        const size_t plain = strcspn(p, "'%");
        rose_api_put(o, p, plain);
        p += plain;
        if (*p == '\'') {
            rose_api_put(o, "\"", 1);
            p++;
        } else if (*p == '%') {
            p = put_argument(o, p, &args);
        }
    }
    va_end(args);
}

void rose_api_put_u64(rose_api_out *o, uint64_t v)
{
    char digits[20];
    size_t i = sizeof digits;
    do {
        digits[--i] = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    rose_api_put(o, digits + i, sizeof digits - i);
}

void rose_api_put_escaped(rose_api_out *o, const char *s, size_t len)
{
    if (!o->oom && rose_json_escape(&o->b, s, len) != ROSE_OK) o->oom = true;
}

void rose_api_put_string(rose_api_out *o, const char *s, size_t len)
{
    rose_api_put(o, "\"", 1);
    rose_api_put_escaped(o, s, len);
    rose_api_put(o, "\"", 1);
}

void rose_api_out_reset(rose_api_out *o)
{
    o->b.len = 0;
    o->oom = false;
}

void rose_api_out_free(rose_api_out *o)
{
    rose_buf_free(&o->b);
    o->oom = false;
}
