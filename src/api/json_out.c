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
