/* base/utf8.c - see utf8.h. */
#include "base/utf8.h"

#include <string.h>

size_t rose_utf8_valid_prefix(const char *p, size_t n)
{
    const uint8_t *const from = (const uint8_t *)p, *const end = from + n, *q = from;
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
    return (size_t)(q - from);
}

unsigned rose_utf8_encode(uint32_t cp, char *out)
{
    static const uint8_t first[] = {0, 0, 0xC0, 0xE0, 0xF0};
    const unsigned n = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (unsigned i = n - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(first[n] | cp);
    return n;
}

rose_status rose_utf8_escape(rose_buf *out, const char *p, size_t n)
{
    rose_status st = ROSE_OK;
    for (size_t at = 0; at < n && st == ROSE_OK; at++) {
        const size_t k = rose_utf8_valid_prefix(p + at, n - at);
        st = rose_buf_add(out, p + at, k);
        at += k;
        if (st == ROSE_OK && at < n) st = rose_buf_addf(out, "\\x%02x", (unsigned char)p[at]);
    }
    return st;
}
