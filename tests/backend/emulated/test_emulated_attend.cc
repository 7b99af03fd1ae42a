/* tests/backend/emulated/test_emulated_attend.cc - the attention kernels of attend.h, from their
 * sources, on machine.h: few and small cases of attend_cases.h, with copies as early and as late as
 * they may be. The only test of these kernels where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmath>
#include <vector>

#include "backend/cuda/attend.cuh"
#include "machine.h"
#include "values.h"

extern "C" {
#include <cmocka.h>
cudaError_t CUDARTAPI cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
    return value <= 227 << 10 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t CUDARTAPI cudaGetLastError(void)
{
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr, int)
{
    *value = 227 << 10;
    return cudaSuccess;
}
}

#include "../attend_rotary_cases.h"

static void *at_device(const void *from, size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 511) / 256 * 256);
    assert_non_null(p);
    if (from != NULL)
        memcpy(p, from, bytes);
    else
        memset(p, 0, bytes);
    return p;
}
static void at_fetch(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
static void at_free(void *device)
{
    free(device);
}
static float at_value(rose_format t, const void *from, size_t i)
{
    return value_of(t, from, i);
}
static void at_put(rose_format t, void *to, size_t i, float x)
{
    put_value(t, to, i, x);
}

/* Few SMs, so that a block takes several units; as much shared memory as sm_90, or as sm_86. */
static const rose_cuda_device *at_gpu(void)
{
    static rose_cuda_device d;
    const bool large = at_any(2) == 0;
    d.sms = 1 + at_any(12);
    d.hopper = true;
    d.shared_max = large ? 227 << 10 : 99 << 10;
    d.shared_sm = large ? 228 << 10 : 100 << 10;
    return &d;
}

static void test_attend(void **state)
{
    static const struct {
        at_shape shape;
        uint32_t context, rows, tile;
    } cases[] = {
        {{ROSE_BF16, 64, 2, 3, 0, 0}, 150, 20, 16}, {{ROSE_F16, 128, 1, 2, 200, 0}, 600, 3, 2},
        {{ROSE_BF16, 48, 1, 12, 0, 30}, 65, 9, 7},  {{ROSE_F16, 80, 1, 1, 0, 0}, 16, 2, 2},
        {{ROSE_BF16, 256, 1, 4, 0, 50}, 80, 2, 2},  {{ROSE_F32, 20, 2, 2, 33, 0}, 90, 3, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t contexts[] = {cases[i].context, 1 + at_any(70)};
        const uint32_t rows[] = {cases[i].rows, 1 + at_any(3)};
        machine::g_manner = {i % 2 != 0, false};
        at_case(&cases[i].shape, 2, contexts, rows, cases[i].tile, 4);
        assert_false(machine::g_hung);
    }
}

static void test_alone(void **state)
{
    static const at_shape shape = {ROSE_F16, 64, 2, 8, 100, 0};
    static const uint32_t contexts[] = {1, 64, 65, 130};
    (void)state;
    machine::g_manner = {true, false};
    at_alone(&shape, 4, contexts);
    assert_false(machine::g_hung);
}

static void test_wide(void **state)
{
    static const at_shape shapes[] = {
        {ROSE_BF16, 64, 1, 4, 0, 0}, {ROSE_F16, 128, 1, 1, 75, 20}, {ROSE_BF16, 128, 2, 2, 0, 0}};
    (void)state;
    for (uint32_t i = 0; i < 6; i++) { /* prompts whole, or in items of 64 pairs */
        const at_shape *s = &shapes[i % 3];
        const uint32_t contexts[] = {560 + at_any(60), 1 + at_any(200)};
        const uint32_t rows[] = {64 + at_any(80), 1 + at_any(60)};
        machine::g_manner = {at_any(2) != 0, at_any(2) != 0};
        at_case_wide(s, 2, contexts, rows, i < 3 ? UINT32_MAX : 64 / s->group, 3);
        assert_false(machine::g_hung);
    }
}

static void test_fused(void **state)
{
    static const struct {
        at_rotary r;
        uint32_t window;
    } cases[] = {
        {{ROSE_BF16, 64, 2, 4, 64, 0, true, true}, 0},
        {{ROSE_F16, 80, 1, 2, 20, 0, false, false}, 100},
        {{ROSE_BF16, 128, 1, 9, 128, 0, true, true}, 0},
        {{ROSE_F16, 64, 2, 1, 0, 0, false, false}, 0},
        {{ROSE_BF16, 250, 1, 3, 250, 0, true, true}, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* 2,600 positions: more inner blocks than a stage of the fold has. */
        const uint32_t contexts[] = {1 + at_any(700), i % 2 != 0 ? 513u : 16u,
                                     i == 3 ? 2600u : 600u, 1 + at_any(70)};
        machine::g_manner = {i % 2 == 0, false};
        at_case_fused(&cases[i].r, cases[i].window, 4, contexts);
        assert_false(machine::g_hung);
    }
}

static void test_rotary(void **state)
{
    static const at_rotary cases[] = {
        {ROSE_BF16, 64, 1, 2, 64, 3, true, true},    {ROSE_F16, 80, 2, 1, 20, 6, false, true},
        {ROSE_BF16, 36, 1, 1, 0, 2, false, false},   {ROSE_F32, 130, 1, 1, 130, 2, true, true},
        {ROSE_BF16, 128, 1, 2, 128, 11, true, true}, {ROSE_F16, 96, 2, 1, 96, 9, true, false},
        {ROSE_BF16, 64, 1, 1, 0, 17, false, false},  {ROSE_F16, 256, 1, 1, 256, 3, true, true},
    };
    (void)state;
    machine::g_manner = {};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        at_case_rotary(&cases[i]);
}

/* The longest unit of 128 sequences, each of `context` positions but the last one. */
static uint32_t longest_unit(uint32_t context, uint32_t last)
{
    enum { SEQS = 128 };
    const rose_attend_limits l = rose_attend_limits_of(132, 16, 8, 128, SEQS, 8192, SEQS * 512);
    std::vector<rose_attend_unit> units(l.max_units);
    rose_cuda_item items[SEQS];
    rose_attend_fold folds[SEQS];
    uint32_t longest = 0;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SEQS; i++)
        items[i] = {i, 1, (i + 1 < SEQS ? context : last) - 1, 0};
    const rose_attend_cutting c = rose_attend_cut(&l, items, SEQS, 0, 0, units.data(), folds);
    for (uint32_t i = 0; i < c.n_units; i++) {
        const uint32_t n = units[i].end - units[i].begin;
        longest = n > longest ? n : longest;
        sum += n;
    }
    assert_int_equal(sum, (uint64_t)context * (SEQS - 1) + last);
    return longest;
}

/* A warp may have a unit alone, so a long context among short ones must be many units. */
static void test_cut(void **)
{
    assert_int_equal(longest_unit(300, 300), 300);
    assert_int_equal(longest_unit(300, 8000), 512);
    assert_int_equal(longest_unit(1000, 8000), 1024);
    assert_int_equal(longest_unit(8000, 8000), 8000);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rotary), cmocka_unit_test(test_attend),
                                       cmocka_unit_test(test_alone),  cmocka_unit_test(test_fused),
                                       cmocka_unit_test(test_wide),   cmocka_unit_test(test_cut)};
    const char *seed = getenv("ROSE_TEST_SEED");
    at_state = seed != NULL ? strtoull(seed, NULL, 0) : 20261124;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)at_state);
    at_state = at_state * 2 + 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
