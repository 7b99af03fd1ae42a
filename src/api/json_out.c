/* api/json_out.c - writes JSON text to the end of a buffer. Replies have a fixed form, so they
 * are written front to back, without a tree. The escaper copies runs of plain bytes and looks at
 * each byte once. */
#include <stdio.h>
#include <string.h>

#include "api/json_out.h"

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

/* The character after the backslash; 'u' = \u00XX; 0 = the byte stands for itself. */
static const char escape_of[256] = {
    ['\b'] = 'b',  ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't', ['"'] = '"',
    ['\\'] = '\\', [0x00] = 'u', [0x01] = 'u', [0x02] = 'u', [0x03] = 'u', [0x04] = 'u',
    [0x05] = 'u',  [0x06] = 'u', [0x07] = 'u', [0x0B] = 'u', [0x0E] = 'u', [0x0F] = 'u',
    [0x10] = 'u',  [0x11] = 'u', [0x12] = 'u', [0x13] = 'u', [0x14] = 'u', [0x15] = 'u',
    [0x16] = 'u',  [0x17] = 'u', [0x18] = 'u', [0x19] = 'u', [0x1A] = 'u', [0x1B] = 'u',
    [0x1C] = 'u',  [0x1D] = 'u', [0x1E] = 'u', [0x1F] = 'u'};

static void put_escape(rose_api_out *o, unsigned char byte)
{
    static const char hex[] = "0123456789ABCDEF";
    char seq[6] = {'\\', escape_of[byte], '0', '0', hex[byte >> 4], hex[byte & 15]};
    rose_api_put(o, seq, seq[1] == 'u' ? 6 : 2);
}

void rose_api_put_escaped(rose_api_out *o, const char *s, size_t len)
{
    size_t begin = 0;
    if (len == 0) return; /* s may be NULL then */
    for (size_t i = 0; i < len; i++) {
        if (escape_of[(unsigned char)s[i]] == 0) continue;
        rose_api_put(o, s + begin, i - begin);
        put_escape(o, (unsigned char)s[i]);
        begin = i + 1;
    }
    rose_api_put(o, s + begin, len - begin);
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
