/* tests/backend/kv_places.h - where a 16-bit value of a KV page lies, as layout.cuh has it: said
 * once more for tests, so that they see a change there. */
#ifndef TESTS_BACKEND_KV_PLACES_H
#define TESTS_BACKEND_KV_PLACES_H

#include <stdint.h>

/* Within a head's K of a page; token 0 .. 15. */
static inline uint32_t kv_k_place(uint32_t token, uint32_t dim)
{
    const uint32_t lane = token % 8 * 4 + dim % 8 / 2;
    return dim / 16 * 256 + lane * 8 + (token / 8 * 2 + dim % 16 / 8) * 2 + dim % 2;
}

/* Within its V. */
static inline uint32_t kv_v_place(uint32_t token, uint32_t dim)
{
    const uint32_t lane = dim % 8 * 4 + token % 8 / 2;
    return dim / 16 * 256 + lane * 8 + (dim % 16 / 8 * 2 + token / 8) * 2 + token % 2;
}

#endif
