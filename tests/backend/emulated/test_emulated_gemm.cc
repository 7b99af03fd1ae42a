/* tests/backend/emulated/test_emulated_gemm.cc - every GEMM kernel of the table and those of fp32,
 * from their sources, on machine.h: tiles and fp32 in every way against sums in double precision
 * and part by part, and all others against tiles, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmath>

#include "backend/cuda/hopper.cuh"
#include "machine.h"
#include "values.h"

extern "C" {
#include <cmocka.h>
cudaError_t CUDARTAPI cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
    return value <= 227 << 10 ? cudaSuccess : cudaErrorInvalidValue;
}
}

#include "../gemm_cases.h"

static void *gc_device(const void *from, size_t bytes)
{
    void *p = aligned_alloc(1024, (bytes + 1023) / 1024 * 1024);
    assert_non_null(p);
    memcpy(p, from, bytes);
    return p;
}
static void gc_fetch(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
static void gc_free(void *device)
{
    free(device);
}
static float gc_value(rose_format t, const void *from, size_t i)
{
    return value_of(t, from, i);
}
static void gc_put(rose_format t, void *to, size_t i, float x)
{
    put_value(t, to, i, x);
}
static const rose_cuda_device *gc_gpu(void)
{
    static rose_cuda_device device = {.sms = 12,
                                      .cc = 90,
                                      .code = 90,
                                      .hopper = true,
                                      .shared_max = 227 << 10,
                                      .shared_sm = 228 << 10,
                                      .bytes_us = 2e6,
                                      .mhz = 1500};
    device.encode = reinterpret_cast<void *>(make_map);
    return &device;
}

/* Every way of a problem with both tiles (fp32: with its only kernel), and the parts. */
static void check_problem(rose_format t, uint32_t rows, uint32_t k, uint32_t n, uint32_t head)
{
    static const char *const names[] = {"tiles-64x64", "tiles-128x128"};
    gc_problem p = gc_make(t, rows, k, n, head);
    for (uint32_t way = 0; way < GC_WAYS; way++) {
        const gc_way *w = &gc_ways[way];
        uint8_t *want = NULL;
        for (int i = 0; i < (t == ROSE_F32 ? 1 : 2); i++) {
            const rose_gemm_kernel *g = t == ROSE_F32 ? NULL : rose_gemm_named(names[i]);
            if (!gc_takes(&p, w, g)) continue;
            machine::g_manner = {(way + (uint32_t)i) % 2 != 0, false};
            uint8_t *y = gc_run(&p, w, g);
            assert_false(machine::g_hung);
            if (i == 0) gc_check(&p, w, names[i], y);
            if (i == 1) assert_false(gc_differ(&p, w, names[i], y, want));
            free(want);
            want = y;
        }
        free(want);
    }
    gc_check_parts(&p, t == ROSE_F32 ? NULL : rose_gemm_named("tiles-128x128"));
    gc_drop(&p);
}

static void test_ends(void **state)
{
    (void)state;
    check_problem(ROSE_BF16, 70, 208, 208, 0);
    check_problem(ROSE_F16, 1, 16, 16, 0);
    check_problem(ROSE_F16, 9, 72, 136, 0);
    check_problem(ROSE_BF16, 3, 384, 48, 64);
}

/* Every kernel of the table that takes the shape, against tiles-64x64. */
static int compare_table(rose_format t, uint32_t rows, uint32_t k, uint32_t n, uint32_t head)
{
    int n_bad = 0;
    gc_problem p = gc_make(t, rows, k, n, head);
    for (uint32_t way = 0; way < GC_WAYS; way++) {
        const gc_way *w = &gc_ways[way];
        if (!gc_has(&p, w)) continue;
        uint8_t *want = gc_run(&p, w, rose_gemm_named("tiles-64x64"));
        for (uint32_t i = 0; i < rose_gemm_n_kernels; i++) {
            const rose_gemm_kernel *g = &rose_gemm_kernels[i];
            if (g->family == ROSE_GEMM_TILES || !gc_takes(&p, w, g)) continue;
            machine::g_manner = {(way + i) % 2 != 0, (way + i) % 3 == 0};
            uint8_t *y = gc_run(&p, w, g);
            assert_false(machine::g_hung);
            n_bad += gc_differ(&p, w, g->name, y, want);
            free(y);
        }
        free(want);
    }
    gc_drop(&p);
    return n_bad;
}

static void test_table(void **state)
{
    int n_bad = 0;
    (void)state;
    n_bad += compare_table(ROSE_BF16, 5, 192, 144, 0);
    n_bad += compare_table(ROSE_F16, 20, 80, 272, 0);
    n_bad += compare_table(ROSE_BF16, 140, 160, 208, 80);
    assert_int_equal(n_bad, 0);
}

static void test_f32(void **state)
{
    (void)state;
    check_problem(ROSE_F32, 33, 200, 48, 0);
    check_problem(ROSE_F32, 2, 384, 32, 96);
}

/* Parts: the rule of gemm.h, at sizes that it names one by one. */
static void test_cuts(void **state)
{
    static const struct {
        uint32_t k, head, cut[5];
    } cases[] = {{768, 0, {0, 128, 384, 512, 768}}, {576, 64, {0, 128, 256, 384, 576}},
                 {576, 0, {0, 144, 288, 432, 576}}, {960, 80, {0, 240, 480, 720, 960}},
                 {16, 0, {0, 0, 0, 0, 16}},         {100, 20, {0, 16, 48, 64, 100}}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_cuda_matrix m = {};
        rose_cuda_matrix_shape(&m, ROSE_F16, cases[i].k, 8, ROSE_GEMM_PARTS, cases[i].head, false);
        assert_memory_equal(m.cut, cases[i].cut, sizeof m.cut);
        rose_cuda_matrix_shape(&m, ROSE_F16, cases[i].k, 8, 1, cases[i].head, false);
        assert_int_equal(m.cut[0], 0);
        assert_int_equal(m.cut[1], cases[i].k);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts), cmocka_unit_test(test_f32),
                                       cmocka_unit_test(test_ends), cmocka_unit_test(test_table)};
    const char *seed = getenv("ROSE_TEST_SEED");
    gc_state = seed != NULL ? strtoull(seed, NULL, 0) : 20261125;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)gc_state);
    gc_state = gc_state * 2 + 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
