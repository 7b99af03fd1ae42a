/* base/utf8.h - decoding and encoding of UTF-8; letters and digits of ASCII. Well-formed means: no
 * overlong forms, no surrogates, nothing above U+10FFFF. Any thread. */
#ifndef ROSE_BASE_UTF8_H
#define ROSE_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* The letters and digits of ASCII, for strspn and strchr. */
#define ROSE_ALNUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/* The value of a hexadecimal digit, or -1. */
static inline int rose_hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Whether cp is a character: UTF-8 cannot encode other numbers. */
static inline bool rose_utf8_is_char(uint32_t cp)
{
    return cp < 0xD800 || (cp >= 0xE000 && cp <= 0x10FFFF);
}

/* Whether the byte continues a character, so that none begins there. */
static inline bool rose_utf8_is_inner(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* The bytes of a well-formed character, by the first of them. */
static inline unsigned rose_utf8_len(char first)
{
    const unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

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
        if (v < 0x800 || !rose_utf8_is_char(v)) return 0;
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
    while (q > begin && rose_utf8_is_inner((char)*q))
        q--;
    rose_utf8_decode_valid(q, cp);
    return (unsigned)(p - q);
}

/* Returns the length of the longest well-formed prefix of p[0..n). */
size_t rose_utf8_valid_prefix(const char *p, size_t n);

static inline bool rose_utf8_is_valid(const char *p, size_t n)
{
    return rose_utf8_valid_prefix(p, n) == n;
}

/* The number of characters of p[0..n), which is well-formed. */
static inline size_t rose_utf8_count(const char *p, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += !rose_utf8_is_inner(p[i]);
    return count;
}

/* Writes cp to out (room for 4 bytes); returns the length. cp <= 0x10FFFF. */
unsigned rose_utf8_encode(uint32_t cp, char *out);

/* Appends p[0..n) to out as well-formed text: each byte that is not part of a character becomes
 * \xNN. Errors: NOMEM. */
rose_status rose_utf8_escape(rose_buf *out, const char *p, size_t n);

#endif
