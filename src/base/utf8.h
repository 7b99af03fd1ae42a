/* base/utf8.h - decoding and encoding of UTF-8. Well-formed means: no overlong forms, no
 * surrogates, nothing above U+10FFFF. Any thread. */
#ifndef ROSE_BASE_UTF8_H
#define ROSE_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Decodes one character of p[0..end), p < end. Returns its length in bytes (1 to 4) and *cp; 0
 * if no well-formed character starts at p. */
static inline unsigned rose_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *cp)
{
    uint32_t c = p[0];
    size_t left = (size_t)(end - p);
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xC2 || left < 2 || (p[1] & 0xC0) != 0x80) return 0;
    if (c < 0xE0) {
        *cp = (c & 0x1F) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (left < 3 || (p[2] & 0xC0) != 0x80) return 0;
    if (c < 0xF0) {
        uint32_t v = (c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        if (v < 0x800 || (v >= 0xD800 && v < 0xE000)) return 0;
        *cp = v;
        return 3;
    }
    if (c > 0xF4 || left < 4 || (p[3] & 0xC0) != 0x80) return 0;
    uint32_t v = (c & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    if (v < 0x10000 || v > 0x10FFFF) return 0;
    *cp = v;
    return 4;
}

/* As rose_utf8_decode, for bytes known to be well-formed. */
static inline unsigned rose_utf8_decode_valid(const uint8_t *p, uint32_t *cp)
{
    uint32_t c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    if (c < 0xE0) {
        *cp = (c & 0x1F) << 6 | (p[1] & 0x3Fu);
        return 2;
    }
    if (c < 0xF0) {
        *cp = (c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    *cp = (c & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

/* Decodes the well-formed character that ends at p (begin < p). Returns its length. */
static inline unsigned rose_utf8_decode_back(const uint8_t *begin, const uint8_t *p, uint32_t *cp)
{
    const uint8_t *q = p - 1;
    while (q > begin && (*q & 0xC0) == 0x80)
        q--;
    rose_utf8_decode_valid(q, cp);
    return (unsigned)(p - q);
}

/* Returns the length of the longest well-formed prefix of p[0..n). */
size_t rose_utf8_valid_prefix(const uint8_t *p, size_t n);

/* Writes cp to out (room for 4 bytes); returns the length. cp <= 0x10FFFF. */
unsigned rose_utf8_encode(uint32_t cp, char *out);

#endif
