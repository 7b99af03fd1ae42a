/* base/utf8.c - see utf8.h. */
#include "base/utf8.h"

#include <string.h>

size_t rose_utf8_valid_prefix(const uint8_t *p, size_t n)
{
    const uint8_t *q = p, *end = p + n;
    while (q < end) {
        uint64_t word;
        while (end - q >= 8 && (memcpy(&word, q, 8), (word & 0x8080808080808080u) == 0))
            q += 8;
        if (q == end) break;
        uint32_t cp;
        unsigned k = rose_utf8_decode(q, end, &cp);
        if (k == 0) break;
        q += k;
    }
    return (size_t)(q - p);
}

unsigned rose_utf8_encode(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}
