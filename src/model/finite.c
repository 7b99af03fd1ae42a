/* model/finite.c - searches the weights for NaN and infinity, in one pass over the bit patterns.
 * A model with such a weight gives no finite logit, so every request would fail. */
#include <inttypes.h>
#include <string.h>

#include "model/model.h"
#include "model/weights.h"

/* Elements that are checked together: a fixed count, so that the compiler vectorises the loop. */
enum { BLOCK = 512 };

/* The bits of an exponent that is all ones, as NaN and infinity have. */
static uint32_t exponent_bits(rose_dtype t)
{
    return t == ROSE_F32 ? 0x7F800000u : t == ROSE_F16 ? 0x7C00u : 0x7F80u;
}

static bool block_is_finite32(const uint8_t *p)
{
    uint32_t v[BLOCK], bad = 0;
    memcpy(v, p, sizeof v);
    for (int i = 0; i < BLOCK; i++)
        bad |= (v[i] & 0x7F800000u) == 0x7F800000u ? UINT32_MAX : 0;
    return bad == 0;
}

static bool block_is_finite16(const uint8_t *p, uint16_t exponent)
{
    uint16_t v[BLOCK], bad = 0;
    memcpy(v, p, sizeof v);
    for (int i = 0; i < BLOCK; i++)
        bad |= (v[i] & exponent) == exponent ? UINT16_MAX : 0;
    return bad == 0;
}

/* Returns the index of the first element in [at, end) that is NaN or infinite; end if there is
 * none. */
static uint64_t find_bad(const rose_st_tensor *t, uint64_t at, uint64_t end)
{
    const size_t size = rose_dtype_size(t->dtype);
    const uint32_t exponent = exponent_bits(t->dtype);
    for (; at < end; at++) {
        uint32_t v = 0;
        memcpy(&v, t->data + at * size, size); /* little-endian, as the file is */
        if ((v & exponent) == exponent) return at;
    }
    return end;
}

static uint64_t first_bad(const rose_st_tensor *t, uint64_t n)
{
    const size_t size = rose_dtype_size(t->dtype);
    uint64_t at = 0;
    for (; at + BLOCK <= n; at += BLOCK) {
        const uint8_t *p = t->data + at * size;
        const bool ok = size == 4 ? block_is_finite32(p)
                                  : block_is_finite16(p, (uint16_t)exponent_bits(t->dtype));
        if (!ok) return find_bad(t, at, at + BLOCK);
    }
    return find_bad(t, at, n);
}

/* Tells NaN from infinity for an element that is not finite: a NaN has bits set below the
 * exponent, and infinity has none. */
static bool is_nan(const rose_st_tensor *t, uint64_t i)
{
    const size_t size = rose_dtype_size(t->dtype);
    const uint32_t sign = size == 4 ? 0x80000000u : 0x8000u;
    uint32_t v = 0;
    memcpy(&v, t->data + i * size, size);
    return (v & ~sign) != exponent_bits(t->dtype);
}

rose_status rose_model_check_finite(const rose_model *m, rose_err *err)
{
    const rose_weights *w = m->weights;
    for (size_t i = 0; w != NULL && i < w->n_tensors; i++) {
        const rose_st_tensor *t = w->by_name[i];
        if (!t->used) continue;
        const uint64_t n = (t->end - t->begin) / rose_dtype_size(t->dtype), bad = first_bad(t, n);
        if (bad == n) continue;
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: tensor '%.100s' is %s at element %" PRIu64
                         ": the weights are damaged, or the training diverged",
                         rose_weights_label(w, t), t->name, is_nan(t, bad) ? "NaN" : "infinite",
                         bad);
    }
    return ROSE_OK;
}
