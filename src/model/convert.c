/* model/convert.c - exact conversion of element types. Everything works on bit
 * patterns. A float is moved by memcpy only and never used in arithmetic. */
#include "model/convert.h"

#include <assert.h>
#include <string.h>

uint64_t rose_linear_row(const rose_linear *l, uint32_t part, uint64_t i)
{
    const uint32_t heads = l->permuted_heads[part];
    if (heads == 0) return i;
    const uint64_t dim = l->w[part].shape[0] / heads, half = dim / 2, at = i % dim;
    return i - at + (at < half ? 2 * at : 2 * (at - half) + 1);
}

static float bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* fp16 is 1.5.10 with bias 15, fp32 is 1.8.23 with bias 127: the exponent moves by 112. */
static uint32_t widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exp = (h >> 10) & 0x1Fu;
    uint32_t man = h & 0x3FFu;

    if (exp == 0x1F) {
        uint32_t quiet = man != 0 ? 0x400000u : 0;
        return sign | 0x7F800000u | quiet | man << 13;
    }
    if (exp != 0) return sign | (exp + 112) << 23 | man << 13;
    if (man == 0) return sign;
    /* Subnormal: man * 2^-24, normal in fp32. Shift the leading one up to bit 10. */
    uint32_t shift = (uint32_t)__builtin_clz(man) - 21;
    return sign | (113 - shift) << 23 | ((man << shift) & 0x3FFu) << 13;
}

static uint32_t widen_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) u |= 0x400000u;
    return u;
}

float rose_f16_to_f32(uint16_t h)
{
    return bits_f32(widen_f16(h));
}

float rose_bf16_to_f32(uint16_t h)
{
    return bits_f32(widen_bf16(h));
}

uint16_t rose_f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40u);
    /* Adds half of the dropped range, minus one unless the kept part is odd: ties go to even. A
     * carry goes into the exponent and, at the top, correctly gives infinity. */
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16);
}

uint16_t rose_f32_to_f16(float f)
{
    uint32_t u = f32_bits(f);
    uint32_t sign = u >> 16 & 0x8000u;
    uint32_t mag = u & 0x7FFFFFFFu;

    if (mag > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (mag >> 13 & 0x3FFu));
    if (mag >= 0x47800000u) return (uint16_t)(sign | 0x7C00u); /* 2^16 and above */
    if (mag >= 0x38800000u)                                    /* normal in fp16: >= 2^-14 */
        return (uint16_t)(sign | (mag - (112u << 23) + 0xFFFu + (mag >> 13 & 1u)) >> 13);
    if (mag < 0x33000000u) return (uint16_t)sign; /* below 2^-25: rounds to zero */
    /* Subnormal: the value in units of 2^-24, rounded. exp is 102 .. 112, so the shift is 14 ..
     * 24. */
    uint32_t shift = 126 - (mag >> 23);
    uint32_t man = (mag & 0x7FFFFFu) | 0x800000u;
    uint32_t kept = man >> shift;
    uint32_t rest = man & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);
    if (rest > half || (rest == half && (kept & 1u) != 0)) kept++;
    return (uint16_t)(sign | kept);
}

uint64_t rose_tensor_n(const rose_tensor *t)
{
    if (t->data == NULL) return 0;
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        n *= t->shape[i]; /* cannot overflow: the reader checked the shape against the file size */
    return n;
}

/* Works in blocks of a fixed length, which compilers vectorise. It takes a third of the time of
 * a plain loop. */
static void read_bf16(const uint8_t *src, uint64_t n, float *out)
{
    enum { BLOCK = 16 };
    for (uint64_t at = 0; at < n; at += BLOCK) {
        const size_t count = n - at < BLOCK ? (size_t)(n - at) : BLOCK;
        uint16_t h[BLOCK] = {0};
        uint32_t u[BLOCK];
        memcpy(h, src + at * 2, count == BLOCK ? sizeof h : count * sizeof *h);
        for (int i = 0; i < BLOCK; i++)
            u[i] = widen_bf16(h[i]);
        memcpy(out + at, u, count == BLOCK ? sizeof u : count * sizeof *u);
    }
}

/* Group by group; the first and the last may be needed in part. */
static void read_blocks(const rose_tensor *t, uint64_t first, uint64_t n, float *out)
{
    for (uint64_t at = first; at < first + n;) {
        float group[ROSE_GGML_GROUP];
        const uint64_t skip = at % ROSE_GGML_GROUP, left = first + n - at;
        const uint64_t count = left < ROSE_GGML_GROUP - skip ? left : ROSE_GGML_GROUP - skip;
        rose_ggml_group_f32(group, t->dtype, t->data, at / ROSE_GGML_GROUP);
        memcpy(out + (at - first), group + skip, count * sizeof *out);
        at += count;
    }
}

void rose_tensor_read_f32(const rose_tensor *t, uint64_t first, uint64_t n, float *out)
{
    assert(first <= rose_tensor_n(t) && n <= rose_tensor_n(t) - first);
    if (n == 0) return;
    if (rose_format_is_quant(t->dtype)) {
        read_blocks(t, first, n, out);
        return;
    }
    size_t size = rose_format_size(t->dtype);
    const uint8_t *src = (const uint8_t *)t->data + first * size;
    if (t->dtype == ROSE_F32) {
        memcpy(out, src, n * sizeof *out);
        return;
    }
    if (t->dtype == ROSE_F16) {
        for (uint64_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, src + i * 2, sizeof h);
            out[i] = rose_f16_to_f32(h);
        }
        return;
    }
    read_bf16(src, n, out);
}

void rose_linear_copy_rows(const rose_linear *l, uint32_t part, uint64_t first, uint64_t n,
                           void *out)
{
    const rose_tensor *w = &l->w[part];
    const uint64_t row_bytes = rose_values_bytes(w->dtype, w->shape[1]);
    assert(l->transposed && first <= w->shape[0] && n <= w->shape[0] - first);
    for (uint64_t i = 0; i < n; i++)
        memcpy((uint8_t *)out + i * row_bytes,
               (const uint8_t *)w->data + rose_linear_row(l, part, first + i) * row_bytes,
               row_bytes);
}

void rose_linear_copy_bias(const rose_linear *l, uint32_t part, uint64_t first, uint64_t n,
                           float *out)
{
    const rose_tensor *b = &l->b[part];
    for (uint64_t i = 0; i < n; i++) {
        out[i] = 0.0f;
        if (b->data != NULL)
            rose_tensor_read_f32(b, rose_linear_row(l, part, first + i), 1, out + i);
    }
}
