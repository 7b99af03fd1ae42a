/* tests/backend/test_cuda_attend.c - the attention kernels of attend.h on a GPU: the cases of
 * attend_cases.h with every size of heads, groups of 1 to 16, windows, soft caps and lengths at the
 * edges of pages, inner blocks and splits; and how decode divides contexts over thread blocks. With
 * the argument `bench` it prints microseconds instead (attend_bench.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/attend_rotary_cases.h"
#include "model/convert.h"

static void *at_device(const void *from, size_t bytes)
{
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    if (from != NULL)
        assert_int_equal(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    else
        assert_int_equal(cudaMemset(p, 0, bytes), cudaSuccess);
    return p;
}

static void at_fetch(void *to, const void *from, size_t bytes)
{
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}

static void at_free(void *device)
{
    assert_int_equal(cudaFree(device), cudaSuccess);
}

static float at_value(rose_format t, const void *from, size_t i)
{
    if (t == ROSE_F32) return ((const float *)from)[i];
    const uint16_t v = ((const uint16_t *)from)[i];
    return t == ROSE_F16 ? rose_f16_to_f32(v) : rose_bf16_to_f32(v);
}

static void at_put(rose_format t, void *to, size_t i, float x)
{
    if (t == ROSE_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = t == ROSE_F16 ? rose_f32_to_f16(x) : rose_f32_to_bf16(x);
}

static rose_cuda_device g_gpu;

static const rose_cuda_device *at_gpu(void)
{
    return &g_gpu;
}

static uint32_t gpu_has(enum cudaDeviceAttr what)
{
    int v = 0;
    assert_int_equal(cudaDeviceGetAttribute(&v, what, 0), cudaSuccess);
    return (uint32_t)v;
}

static bool open_gpu(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) return false;
    g_gpu.cc = 10 * gpu_has(cudaDevAttrComputeCapabilityMajor) +
               gpu_has(cudaDevAttrComputeCapabilityMinor);
    g_gpu.sms = gpu_has(cudaDevAttrMultiProcessorCount);
    g_gpu.shared_max = gpu_has(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    g_gpu.shared_sm = gpu_has(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    return rose_cuda_device_code(&g_gpu) == cudaSuccess &&
           rose_cuda_attend_prepare() == cudaSuccess;
}

static const uint32_t g_dims[] = {128, 64, 48, 80, 96, 256, 36};
static const uint32_t g_groups[] = {1, 2, 3, 4, 6, 7, 8, 12, 16};
enum { N_DIMS = sizeof g_dims / sizeof *g_dims, N_GROUPS = sizeof g_groups / sizeof *g_groups };

static at_shape any_shape(rose_format type, uint32_t head_dim)
{
    const at_shape s = {type,
                        head_dim,
                        1 + at_any(3),
                        g_groups[at_any(N_GROUPS)],
                        at_any(3) == 0 ? 1 + at_any(700) : 0,
                        at_any(3) == 0 ? 5 + 45 * at_float() * at_float() : 0};
    return s;
}

static void test_edges(void **state)
{
    static const uint32_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 4000};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (uint32_t j = 0; j < N_DIMS * 2; j++) {
            const at_shape s = any_shape(j % 2 != 0 ? ROSE_F16 : ROSE_BF16, g_dims[j / 2]);
            const uint32_t rows = 1 + at_any(40);
            at_case(&s, 1, &lengths[i], &rows, 1 + at_any(64), 4);
        }
}

static void test_groups(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_GROUPS; i++)
        for (uint32_t j = 0; j < N_DIMS; j++) {
            const at_shape s = {i % 2 != 0 ? ROSE_F16 : ROSE_BF16, g_dims[j], 2, g_groups[i], 0, 0};
            const uint32_t contexts[] = {600 + at_any(200), 1 + at_any(600)}, rows[] = {20, 3};
            at_case(&s, 2, contexts, rows, 16, 4);
        }
}

/* Windows that begin and end at, before and after the edges of pages, blocks and splits. */
static void test_windows(void **state)
{
    static const uint32_t windows[] = {1, 2, 16, 64, 65, 500, 512, 513, 1024};
    (void)state;
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        for (uint32_t j = 0; j < 6; j++) {
            const at_shape s = {j % 2 != 0 ? ROSE_F16 : ROSE_BF16,
                                g_dims[j % N_DIMS],
                                1,
                                g_groups[at_any(7)],
                                windows[i],
                                j == 3 ? 20.0f : 0};
            const uint32_t contexts[] = {j < 3 ? 512 * (1 + at_any(4)) + at_any(3)
                                               : 1 + at_any(3000),
                                         windows[i], windows[i] + 1 + at_any(70)};
            const uint32_t rows[] = {1 + at_any(100), 1 + at_any(10), 5};
            at_case(&s, 3, contexts, rows, 1 + at_any(40), 6);
        }
}

static void test_batches(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        const at_shape s = any_shape(i % 2 != 0 ? ROSE_F16 : ROSE_BF16, g_dims[i % N_DIMS]);
        uint32_t contexts[AT_MAX_SEQS], rows[AT_MAX_SEQS];
        for (uint32_t j = 0; j < AT_MAX_SEQS; j++) {
            contexts[j] = 1 + at_any(j % 4 == 0 ? 3000 : 300);
            rows[j] = 1 + at_any(j % 3 == 0 ? 70 : 2);
        }
        at_case(&s, AT_MAX_SEQS, contexts, rows, 16, 6);
        at_alone(&s, AT_MAX_SEQS, contexts);
    }
}

/* More partial results than a stage of the fold has, of inner blocks and of splits. */
static void test_long(void **state)
{
    const at_shape s = {ROSE_BF16, 48, 1, 3, 0, 0};
    const at_rotary r = {ROSE_BF16, 128, 2, 4, 128, 0, true, true};
    const uint32_t contexts[] = {9000, 131072}, rows = 2;
    (void)state;
    at_case(&s, 1, &contexts[0], &rows, 2, 2);
    at_case(&s, 1, &contexts[1], &rows, 2, 1);
    at_case_fused(&r, 0, 2, contexts);
}

/* Prompts by wgmma, where the GPU has it, have the bits of prompts by mma.sync. */
static void test_wide(void **state)
{
    static const uint32_t windows[] = {0, 0, 1, 64, 500, 513};
    (void)state;
    for (uint32_t i = 0; i < 36; i++) {
        const at_shape s = {i % 2 != 0 ? ROSE_F16 : ROSE_BF16,
                            i / 2 % 2 != 0 ? 64 : 128,
                            1 + at_any(3),
                            g_groups[i % N_GROUPS],
                            windows[i % 6],
                            i % 4 == 3 ? 30.0f : 0};
        const uint32_t contexts[] = {64 + at_any(1900), 1 + at_any(600), 513},
                       rows[] = {1 + at_any(1500), 64 + at_any(500), 513};
        at_case_wide(&s, 3, contexts, rows, i % 2 == 0 ? UINT32_MAX : 64 / s.group, 4);
    }
}

/* The append in the decode kernel: lengths at the edges of pages, inner blocks and splits. */
static void test_fused(void **state)
{
    static const uint32_t lengths[] = {1, 16, 17, 64, 65, 512, 513, 1025};
    (void)state;
    for (uint32_t i = 0; i < 50; i++) {
        const uint32_t hd = g_dims[i % N_DIMS];
        const at_rotary r = {i % 2 != 0 ? ROSE_F16 : ROSE_BF16,
                             hd,
                             1 + at_any(3),
                             g_groups[at_any(N_GROUPS)],
                             i % 4 == 0   ? 0
                             : i % 4 == 1 ? hd / 4 * 2
                                          : hd,
                             0,
                             at_any(2) == 0,
                             i % 3 != 0};
        uint32_t contexts[AT_MAX_SEQS];
        for (uint32_t j = 0; j < AT_MAX_SEQS; j++)
            contexts[j] = j < 8 ? lengths[j] : 1 + at_any(3000);
        at_case_fused(&r, i % 5 == 4 ? 1 + at_any(700) : 0, AT_MAX_SEQS, contexts);
    }
}

/* A captured launch serves every division of every context that fits its tables. */
static void test_graph(void **state)
{
    static const uint32_t contexts[] = {300, 4000, 1, 520, 70, 1500}, units[] = {64, 512, 1024, 0};
    enum { N = 6 };
    const at_shape s = {ROSE_BF16, 128, 2, 4, 0, 0};
    const uint32_t ones[N] = {1, 1, 1, 1, 1, 1};
    (void)state;
    at_problem p = at_make(&s, N, contexts, ones, 1);
    rose_cuda_attend a = p.a, b = p.a;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    at_step step = at_divide(&p, &a, p.singles, N, 64, 0); /* the most units */
    uint8_t *got = malloc(p.out_bytes);
    void *items = at_device(p.singles, N * sizeof *p.singles);
    assert_non_null(got);
    a.out = at_device(NULL, p.out_bytes);
    a.items = items;
    a.n_items = N;
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    const rose_cuda_launch at = {
        .device = &g_gpu, .stream = stream, .type = s.type, .dependent = true};
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < 3; i++) /* with the same counters and scratch memory */
        assert_int_equal(rose_cuda_decode_run(&at, &a), cudaSuccess);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (uint32_t i = 0; i < 8; i++) {
        rose_cuda_item *now = p.singles;
        for (uint32_t j = 0; i >= 4 && j < N; j++) /* other contexts, one of them padding */
            now[j].pos = at_any(contexts[j]), now[j].n_rows = j != 2;
        uint8_t *want = at_run(&p, AT_DECODE, now, N, 1, 512, 0);
        at_step other = at_divide(&p, &b, now, N, units[i % 4], 0);
        rose_attend_cutting c;
        at_fetch(&c, b.cutting, sizeof c);
        assert_int_equal(cudaMemset(a.out, 0x7a, p.out_bytes), cudaSuccess);
        const size_t sizes[] = {sizeof c, c.n_units * sizeof *a.units, N * sizeof *a.folds};
        for (int k = 0; k < 3; k++)
            assert_int_equal(
                cudaMemcpy(step.dev[k], other.dev[k], sizes[k], cudaMemcpyDeviceToDevice),
                cudaSuccess);
        assert_int_equal(cudaMemcpy(items, now, N * sizeof *now, cudaMemcpyHostToDevice),
                         cudaSuccess);
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
        at_fetch(got, a.out, p.out_bytes);
        assert_memory_equal(got, want, p.out_bytes);
        at_undivide(&other);
        free(want);
    }
    at_undivide(&step);
    at_free(a.out), at_free(items), free(got);
    cudaGraphExecDestroy(exec), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    at_drop(&p);
}

static void test_plain(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        const at_shape s = any_shape(ROSE_F32, g_dims[i % N_DIMS]);
        const uint32_t contexts[] = {1 + at_any(1500), 1 + at_any(70)}, rows[] = {9, 70};
        at_case(&s, 2, contexts, rows, 16, 6);
    }
}

static void test_rotary(void **state)
{
    static const uint32_t dims[] = {64, 128, 48, 80, 96, 256, 36, 16, 100};
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        const uint32_t hd = dims[i % 9];
        const at_rotary r = {(rose_format)(i % 3),
                             hd,
                             1 + at_any(3),
                             g_groups[at_any(N_GROUPS)],
                             i % 4 == 0   ? 0
                             : i % 4 == 1 ? hd / 4 * 2
                                          : hd,
                             1 + at_any(60),
                             at_any(2) == 0,
                             i % 5 != 0};
        at_case_rotary(&r);
    }
}

/* Every visible position is in one unit, partial results follow each other, and there is room. */
static void check_cut(const rose_attend_limits *l, const rose_cuda_item *items, uint32_t n,
                      uint32_t window, uint32_t unit)
{
    rose_attend_unit *units = calloc(l->max_units + 1, sizeof *units);
    rose_attend_fold *folds = calloc(n, sizeof *folds);
    assert_true(units != NULL && folds != NULL);
    const rose_attend_cutting c = rose_attend_cut(l, items, n, window, unit, units, folds);
    const uint32_t size = c.inner ? ROSE_ATTEND_INNER : ROSE_ATTEND_SPLIT;
    uint32_t at = 0, part = 0;
    assert_true(c.n_units <= l->max_units);
    assert_int_equal(c.n_folds, n);
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].n_rows == 0) {
            assert_int_equal(folds[i].item, ROSE_ATTEND_NONE);
            continue;
        }
        const uint32_t end = items[i].pos + 1;
        uint32_t from = window != 0 && end > window ? end - window : 0;
        const bool whole = units[at].part == ROSE_ATTEND_NONE;
        assert_int_equal(folds[i].item, whole ? ROSE_ATTEND_NONE : i);
        if (!whole) {
            assert_int_equal(folds[i].part, part);
            assert_int_equal(folds[i].n_parts, (end - 1) / size - from / size + 1);
            assert_int_equal(folds[i].inner, c.inner ? from / 64 % 8 : ROSE_ATTEND_NONE);
        }
        for (; from < end; at++) {
            assert_int_equal(units[at].item, i);
            assert_int_equal(units[at].begin, from);
            assert_true(units[at].end > from && units[at].end <= end);
            if (!whole) {
                assert_int_equal(units[at].part, part);
                part += (units[at].end - 1) / size - from / size + 1;
            }
            from = units[at].end;
            assert_true(!whole || from == end);
        }
    }
    assert_true(part <= l->max_parts);
    assert_int_equal(at, c.n_units);
    free(units);
    free(folds);
}

static void test_cut(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        const uint32_t n = 1 + at_any(i % 3 == 0 ? 3 : 256),
                       longest = 1 + at_any(1u << (8 + i % 10));
        const uint32_t n_kv = 1 + at_any(8), window = at_any(3) == 0 ? 1 + at_any(2000) : 0;
        rose_cuda_item items[256];
        uint32_t pages = 0;
        for (uint32_t j = 0; j < n; j++) {
            items[j] = (rose_cuda_item){j, at_any(9) != 0, at_any(longest), 0};
            pages += items[j].pos / 16 + 1;
        }
        if (i % 4 == 0) pages = longest / 16 + 1; /* shared pages: the scratch is short */
        const rose_attend_limits l =
            rose_attend_limits_of(AT_SMS, n_kv * 4, n_kv, 128, n, longest, pages);
        check_cut(&l, items, n, window, 0);
    }
}

static void test_refuses(void **state)
{
    (void)state;
    assert_null(rose_cuda_attend_refuses(ROSE_BF16, 32, 2, 128));
    assert_non_null(rose_cuda_attend_refuses(ROSE_F32, 32, 2, 128));
    assert_non_null(rose_cuda_attend_refuses(ROSE_BF16, 34, 2, 128));
    assert_non_null(rose_cuda_attend_refuses(ROSE_BF16, 33, 2, 128));
    assert_non_null(rose_cuda_attend_refuses(ROSE_F16, 8, 2, 257));
    assert_non_null(rose_cuda_attend_refuses(ROSE_F16, 8, 2, 258));
}

/* What the sanitizers run. */
static void test_little(void **state)
{
    const at_shape s[] = {{ROSE_BF16, 64, 2, 3, 0, 0}, {ROSE_F16, 128, 1, 2, 70, 30}};
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t contexts[] = {600, 70}, rows[] = {20, 3};
        at_case(&s[i], 2, contexts, rows, 16, 2);
    }
    const at_rotary r = {ROSE_BF16, 80, 2, 2, 40, 9, true, true};
    const uint32_t contexts[] = {600, 70};
    at_case_rotary(&r);
    at_case_fused(&r, 0, 2, contexts);
}

#include "backend/attend_bench.h"

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut),     cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_rotary),  cmocka_unit_test(test_little),
        cmocka_unit_test(test_groups),  cmocka_unit_test(test_windows),
        cmocka_unit_test(test_batches), cmocka_unit_test(test_plain),
        cmocka_unit_test(test_edges),   cmocka_unit_test(test_long),
        cmocka_unit_test(test_fused),   cmocka_unit_test(test_graph),
        cmocka_unit_test(test_wide),
    };
    const char *seed = getenv("ROSE_TEST_SEED");
    at_state = seed != NULL ? strtoull(seed, NULL, 0) : 20261124;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)at_state);
    at_state = at_state * 2 + 1;
    if (!open_gpu()) {
        printf("no GPU\n");
        return 77;
    }
    if (argc > 1 && strcmp(argv[1], "bench") == 0) return bench_attend(argc - 2, argv + 2);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
