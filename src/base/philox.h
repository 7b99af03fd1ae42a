/* base/philox.h - counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011; constants as published and as in Random123). A number
 * is a pure function of (seed, position, stream), without state between calls. So a request
 * gives the same result whatever other requests run at the same time. Any thread. */
#ifndef ROSE_BASE_PHILOX_H
#define ROSE_BASE_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__ /* kernels draw the same numbers */
#define ROSE_PHILOX static inline __host__ __device__
#else
#define ROSE_PHILOX static inline
#endif

/* ctr and key in, 4 x 32 random bits out. */
ROSE_PHILOX void rose_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int r = 0; r < 10; r++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Returns a uniform number in [0, 1) with 24 random bits, exact in fp32. key = seed, counter =
 * (position, stream, 0, 0). The sampler uses stream 0 and the absolute position of the sampled
 * token. */
static inline float rose_philox_uniform(uint64_t seed, uint32_t position, uint32_t stream)
{
    const uint32_t ctr[4] = {position, stream, 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    rose_philox4x32(ctr, key, out);
    return (float)(out[0] >> 8) * 0x1p-24f;
}

#endif
