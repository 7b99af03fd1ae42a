/* base/siphash.h - SipHash-1-3 (Aumasson and Bernstein; one round a word, three at the end). It
 * is a keyed hash for tables whose keys come from the network: without the key nobody can aim at
 * one bucket. It reads words in the machine's byte order, so do not store its values in files.
 * About 2 ns a word. Any thread. */
#ifndef ROSE_BASE_SIPHASH_H
#define ROSE_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct rose_siphash {
    uint64_t v0, v1, v2, v3;
    uint64_t n_words;
} rose_siphash;

static inline uint64_t rose_siphash_rotl(uint64_t x, unsigned b)
{
    return x << b | x >> (64 - b);
}

static inline void rose_siphash_round(rose_siphash *h)
{
    h->v0 += h->v1;
    h->v1 = rose_siphash_rotl(h->v1, 13) ^ h->v0;
    h->v0 = rose_siphash_rotl(h->v0, 32);
    h->v2 += h->v3;
    h->v3 = rose_siphash_rotl(h->v3, 16) ^ h->v2;
    h->v0 += h->v3;
    h->v3 = rose_siphash_rotl(h->v3, 21) ^ h->v0;
    h->v2 += h->v1;
    h->v1 = rose_siphash_rotl(h->v1, 17) ^ h->v2;
    h->v2 = rose_siphash_rotl(h->v2, 32);
}

static inline rose_siphash rose_siphash_begin(const uint64_t key[2])
{
    return (rose_siphash){
        key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
        key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573), 0};
}

static inline void rose_siphash_word(rose_siphash *h, uint64_t m)
{
    h->v3 ^= m;
    rose_siphash_round(h);
    h->v0 ^= m;
    h->n_words++;
}

/* tail: the last bytes of the input, fewer than 8, in the low end of the word. */
static inline uint64_t rose_siphash_end(rose_siphash *h, uint64_t tail, size_t n_tail_bytes)
{
    rose_siphash_word(h, tail | (h->n_words * 8 + n_tail_bytes) << 56);
    h->v2 ^= 0xff;
    rose_siphash_round(h);
    rose_siphash_round(h);
    rose_siphash_round(h);
    return h->v0 ^ h->v1 ^ h->v2 ^ h->v3;
}

static inline uint64_t rose_siphash_bytes(const uint64_t key[2], const void *data, size_t n)
{
    rose_siphash h = rose_siphash_begin(key);
    const unsigned char *p = data;
    uint64_t w;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        rose_siphash_word(&h, w);
    }
    w = 0;
    if (n > 0) memcpy(&w, p, n);
    return rose_siphash_end(&h, w, n);
}

/* SplitMix64's output function (Steele, Lea, Flood 2014): a bijection that mixes all bits. */
static inline uint64_t rose_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

#endif
