/* base/sha256.h - SHA-256 (FIPS 180-4) of bytes that arrive in pieces. Any thread, one at a time.
 */
#ifndef ROSE_BASE_SHA256_H
#define ROSE_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct rose_sha256 {
    uint32_t h[8];
    uint64_t n; /* bytes so far */
    uint8_t block[64];
} rose_sha256;

static inline void rose_sha256_init(rose_sha256 *s)
{
    *s = (rose_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c,
                             0x1f83d9ab, 0x5be0cd19}};
}

static inline uint32_t rose_sha256_turn(uint32_t x, unsigned n)
{
    return (x >> n) | (x << (32 - n));
}

static inline void rose_sha256_block(rose_sha256 *s, const uint8_t *p)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] +
               (rose_sha256_turn(a, 7) ^ rose_sha256_turn(a, 18) ^ (a >> 3)) +
               (rose_sha256_turn(b, 17) ^ rose_sha256_turn(b, 19) ^ (b >> 10));
    }
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t e = v[4], a = v[0];
        const uint32_t t1 =
            v[7] + (rose_sha256_turn(e, 6) ^ rose_sha256_turn(e, 11) ^ rose_sha256_turn(e, 25)) +
            ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        const uint32_t t2 =
            (rose_sha256_turn(a, 2) ^ rose_sha256_turn(a, 13) ^ rose_sha256_turn(a, 22)) +
            ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        s->h[i] += v[i];
}

static inline void rose_sha256_add(rose_sha256 *s, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        const size_t at = s->n % 64, room = 64 - at, take = n < room ? n : room;
        if (take == 64) {
            rose_sha256_block(s, p);
        } else {
            memcpy(s->block + at, p, take);
            if (at + take == 64) rose_sha256_block(s, s->block);
        }
        s->n += take;
        p += take;
        n -= take;
    }
}

/* Writes the digest as 64 lower-case hexadecimal digits and a NUL. s is used up. */
static inline void rose_sha256_hex(rose_sha256 *s, char out[65])
{
    static const char digits[] = "0123456789abcdef";
    static const uint8_t pad[64] = {0x80};
    const uint64_t bits = s->n * 8;
    const size_t at = s->n % 64;
    uint8_t length[8];
    rose_sha256_add(s, pad, at < 56 ? 56 - at : 120 - at);
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    rose_sha256_add(s, length, sizeof length);
    for (int i = 0; i < 64; i++)
        out[i] = digits[(s->h[i / 8] >> (28 - 4 * (i % 8))) & 15];
    out[64] = '\0';
}

#endif
