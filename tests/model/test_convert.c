/* Element conversion: every fp16 and bf16 pattern, and rounding at every border. The expected
 * values come from double arithmetic, which holds all of these numbers exactly. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "model/convert.h"

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The value of a small float format as a double, straight from the definition. */
static double value_of(uint32_t h, int exp_bits, int man_bits)
{
    int bias = (1 << (exp_bits - 1)) - 1;
    int exp = (int)(h >> man_bits) & ((1 << exp_bits) - 1);
    uint32_t man = h & ((1u << man_bits) - 1);
    double sign = (h >> (exp_bits + man_bits)) & 1 ? -1.0 : 1.0;
    if (exp == 0) return sign * ldexp((double)man, 1 - bias - man_bits);
    return sign * ldexp((double)(man | 1u << man_bits), exp - bias - man_bits);
}

static void widen_every_pattern(void **state)
{
    (void)state;
    for (uint32_t h = 0; h <= 0xFFFF; h++) {
        float f = rose_f16_to_f32((uint16_t)h);
        float b = rose_bf16_to_f32((uint16_t)h);
        if ((h & 0x7C00) != 0x7C00) {
            assert_true((double)f == value_of(h, 5, 10));
            assert_int_equal(bits(f) >> 31, h >> 15);
        } else if ((h & 0x3FF) == 0) {
            assert_true(isinf(f));
            assert_int_equal(bits(f) >> 31, h >> 15);
        } else {
            assert_true(isnan(f));
            assert_true((bits(f) & 0x400000) != 0);
            assert_int_equal(bits(f) & 0x3FE000, (h & 0x1FF) << 13);
        }
        if ((h & 0x7F80) != 0x7F80)
            assert_true((double)b == value_of(h, 8, 7) && bits(b) >> 31 == h >> 15);
        else if ((h & 0x7F) == 0)
            assert_int_equal(bits(b), h << 16);
        else
            assert_int_equal(bits(b), h << 16 | 0x400000);
    }
}

static void narrow_inverts_widen(void **state)
{
    (void)state;
    for (uint32_t h = 0; h <= 0xFFFF; h++) {
        uint32_t h16 = (h & 0x7C00) == 0x7C00 && (h & 0x3FF) != 0 ? h | 0x200 : h;
        uint32_t hb = (h & 0x7F80) == 0x7F80 && (h & 0x7F) != 0 ? h | 0x40 : h;
        assert_int_equal(rose_f32_to_f16(rose_f16_to_f32((uint16_t)h)), h16);
        assert_int_equal(rose_f32_to_bf16(rose_bf16_to_f32((uint16_t)h)), hb);
    }
}

/* Between two neighbours lo < hi of a format: below the midpoint gives lo, above hi, on it the even
 * one. All neighbours, both formats; positive and negative. */
static void check_midpoint(uint32_t lo, int exp_bits, int man_bits, uint16_t (*narrow)(float))
{
    double mid = (value_of(lo, exp_bits, man_bits) + value_of(lo + 1, exp_bits, man_bits)) / 2;
    float m = (float)mid;
    assert_true((double)m == mid);
    uint32_t even = (lo & 1) != 0 ? lo + 1 : lo;
    assert_int_equal(narrow(m), even);
    assert_int_equal(narrow(from_bits(bits(m) - 1)), lo);
    assert_int_equal(narrow(from_bits(bits(m) + 1)), lo + 1);
    assert_int_equal(narrow(-m), even | 0x8000);
}

static void narrow_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7C00; h++) /* the last midpoint, 65520, goes to infinity */
        check_midpoint(h, 5, 10, rose_f32_to_f16);
    for (uint32_t h = 0; h < 0x7F7F; h++)
        check_midpoint(h, 8, 7, rose_f32_to_bf16);
    assert_int_equal(rose_f32_to_bf16(from_bits(0x7F7FFFFF)), 0x7F80);
    assert_int_equal(rose_f32_to_bf16(from_bits(0x7F7F7FFF)), 0x7F7F);
    assert_int_equal(rose_f32_to_f16(1e30f), 0x7C00);
    assert_int_equal(rose_f32_to_f16(-INFINITY), 0xFC00);
    assert_int_equal(rose_f32_to_bf16(from_bits(0xFF800001)), 0xFFC0);
    assert_int_equal(rose_f32_to_f16(from_bits(1)), 0);
}

static void read_any_alignment_and_range(void **state)
{
    (void)state;
    enum { N = 67 };
    uint8_t raw[N * 4 + 4];
    for (size_t i = 0; i < sizeof raw; i++)
        raw[i] = (uint8_t)(rose_philox_uniform(7, (uint32_t)i, 0) * 256.0f);
    for (int d = 0; d < 3; d++) {
        rose_format t = (rose_format[]){ROSE_F32, ROSE_F16, ROSE_BF16}[d];
        for (size_t off = 0; off < 4; off++) {
            rose_tensor ten = {"t", raw + off, t, 1, {N, 1}};
            float out[N + 1];
            out[N] = 42.0f;
            rose_tensor_read_f32(&ten, 5, N - 5, out + 5);
            assert_true(bits(out[N]) == bits(42.0f));
            for (size_t i = 5; i < N; i++) {
                uint32_t u = 0;
                memcpy(&u, raw + off + i * rose_format_size(t), rose_format_size(t));
                float want = t == ROSE_F32   ? from_bits(u)
                             : t == ROSE_F16 ? rose_f16_to_f32((uint16_t)u)
                                             : rose_bf16_to_f32((uint16_t)u);
                assert_int_equal(bits(out[i]), bits(want));
            }
            rose_tensor_read_f32(&ten, N, 0, out);
        }
    }
    rose_tensor none = {0};
    assert_int_equal(rose_tensor_n(&none), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widen_every_pattern),
        cmocka_unit_test(narrow_inverts_widen),
        cmocka_unit_test(narrow_rounds_to_nearest_even),
        cmocka_unit_test(read_any_alignment_and_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
