/* base/bump.h - hands out consecutive aligned parts of one region of memory. With base NULL it
 * only adds up the sizes, so that a memory plan and the real allocation come from the same code.
 * The caller makes sure that the sizes cannot overflow 64 bits. Not thread-safe. */
#ifndef ROSE_BASE_BUMP_H
#define ROSE_BASE_BUMP_H

#include <stddef.h>
#include <stdint.h>

typedef struct rose_bump {
    uint8_t *base; /* borrowed: the memory region, aligned to `align`; NULL = only add up the
                    * sizes */
    uint64_t used; /* bytes handed out so far */
    uint64_t align;
} rose_bump;

static inline uint64_t rose_align_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Returns the next part, `bytes` long; NULL while base is NULL. */
static inline void *rose_bump_take(rose_bump *b, uint64_t bytes)
{
    void *at = b->base == NULL ? NULL : b->base + b->used;
    b->used += rose_align_up(bytes, b->align);
    return at;
}

static inline float *rose_bump_floats(rose_bump *b, uint64_t n)
{
    return rose_bump_take(b, n * sizeof(float));
}

#endif
