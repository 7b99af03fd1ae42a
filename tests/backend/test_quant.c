/* tests/backend/test_quant.c - quantized weights: values against the gguf package, packing against
 * the values, and every vector kernel against the definition, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "backend/cpu/pack.h"
#include "backend/cpu/quant.h"
#include "base/gguf.h"
#include "kernels_data.h"
#include "model/convert.h"

enum { MAX_BLOCK = 210 };

/* ---- random matrices ---- */

enum { N_QUANT = 5 };

static const rose_format g_dtypes[N_QUANT] = {ROSE_Q8_0, ROSE_Q4_0, ROSE_Q4_1, ROSE_Q4_K,
                                              ROSE_Q6_K};

/* A factor of a block: a usual one or, for some kinds, one at the ends of fp16. */
static uint16_t random_factor(data_kind kind)
{
    static const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00};
    const uint32_t n = kind == DATA_SPECIAL ? 8 : 6; /* infinity and NaN in one kind only */
    if (kind != DATA_NORMAL && rng_below(kind == DATA_SPECIAL ? 40 : 8) == 0)
        return odd[rng_below(n)];
    return rose_f32_to_f16(rng_normal() * 0.01f);
}

static void fill_blocks(uint8_t *blocks, rose_format t, uint64_t n_values, data_kind kind)
{
    const uint64_t bytes = rose_values_bytes(t, n_values);
    const size_t size = rose_values_bytes(t, rose_formats[t].block);
    const size_t at = t == ROSE_Q6_K ? 208 : 0;
    const bool has_min = t == ROSE_Q4_1 || t == ROSE_Q4_K || t == ROSE_Q5_1 || t == ROSE_Q5_K;
    const uint8_t same = (uint8_t)(rng_below(2) * 255); /* the extreme integers */
    for (uint64_t i = 0; i < bytes; i++)
        blocks[i] = kind == DATA_LARGE ? same : (uint8_t)rng_next();
    for (uint64_t b = 0; b < bytes; b += size) {
        for (size_t f = 0; f < (has_min ? 2 : 1); f++) {
            const uint16_t h = random_factor(kind);
            memcpy(blocks + b + at + 2 * f, &h, sizeof h);
        }
        if (kind == DATA_TINY && rng_below(3) == 0) memset(blocks + b, 0, size); /* a zero block */
    }
}

static rose_tensor tensor_of(const uint8_t *blocks, rose_format t, uint32_t k, uint32_t n)
{
    return (rose_tensor){.name = "w", .data = blocks, .dtype = t, .n_dims = 2, .shape = {n, k}};
}

/* ---- values ---- */

static FILE *open_golden(void)
{
    char path[4096];
    const char *root = getenv("ROSE_ROOT");
    snprintf(path, sizeof path, "%s/tests/golden/ggml-blocks.bin", root != NULL ? root : ".");
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s is missing", path);
    return f;
}

/* The format with this number in a GGUF file, if there is one. */
static bool format_of(uint32_t number, rose_format *out)
{
    const rose_gguf_format *f = rose_gguf_format_find(number);
    return f != NULL && rose_format_named(f->name, out);
}

static void test_values(void **state)
{
    enum { VALUES = 512 };
    uint32_t head[3], seen = 0;
    FILE *f = open_golden();
    (void)state;
    while (fread(head, sizeof head, 1, f) == 1) {
        uint8_t blocks[VALUES / 32 * 34 + 1];
        float want[VALUES], got[VALUES];
        rose_format t;
        assert_true(format_of(head[0], &t));
        assert_int_equal(head[2], VALUES);
        assert_int_equal(head[1], rose_values_bytes(t, VALUES));
        assert_int_equal(fread(blocks + 1, 1, head[1], f), head[1]); /* any alignment */
        assert_int_equal(fread(want, sizeof *want, VALUES, f), VALUES);
        const rose_tensor w = tensor_of(blocks + 1, t, VALUES, 1);
        rose_tensor_read_f32(&w, 0, VALUES, got);
        if (memcmp(want, got, sizeof want) != 0) fail_msg("%s differs", rose_formats[t].name);
        for (uint32_t i = 0; i < 50; i++) {
            const uint32_t first = rng_below(VALUES), n = rng_below(VALUES - first + 1);
            memset(got, POISON, sizeof got);
            rose_tensor_read_f32(&w, first, n, got);
            assert_memory_equal(got, want + first, n * sizeof *got);
        }
        seen |= 1u << t;
    }
    fclose(f);
    for (int t = ROSE_Q8_0; t <= ROSE_Q6_K; t++)
        assert_true((seen >> t & 1u) != 0);
}

static void test_type_numbers(void **state)
{
    rose_format t;
    (void)state;
    for (uint32_t q2_k = 10, iq = 16, none = 99, i = 0; i < 3; i++)
        assert_false(format_of(i == 0 ? q2_k : i == 1 ? iq : none, &t));
    assert_true(format_of(30, &t) && t == ROSE_BF16);
    assert_true(format_of(1, &t) && t == ROSE_F16);
    assert_true(format_of(0, &t) && t == ROSE_F32);
}

/* Panels give back the value of every weight, in parts packed one after the other. */
static void test_packing(void **state)
{
    (void)state;
    for (int i = 0; i < N_QUANT; i++) {
        const uint32_t k = 768, n = 50, n_panels = 4;
        const rose_format type = g_dtypes[i];
        assert_true(rose_quant_has(type));
        assert_int_equal(rose_quant_layout_of(type).bias, rose_formats[type].zero);
        assert_int_equal(rose_quant_layout_of(type).has_min, rose_formats[type].min);
        guarded mem;
        uint8_t *blocks = malloc(rose_values_bytes(g_dtypes[i], (uint64_t)k * n));
        uint8_t *panels = guarded_alloc(&mem, rose_panels_bytes(type, k, n));
        assert_non_null(blocks);
        fill_blocks(blocks, g_dtypes[i], (uint64_t)k * n, DATA_WIDE);
        const rose_tensor w = tensor_of(blocks, g_dtypes[i], k, n);
        assert_true(rose_pack_panels(panels, NULL, type, &w, k, n, true, 0, 1));
        assert_true(rose_pack_panels(panels, NULL, type, &w, k, n, true, 1, n_panels));
        for (uint32_t j = 0; j < n; j++) {
            float want[768], got[768];
            rose_tensor_read_f32(&w, (uint64_t)j * k, k, want);
            rose_panel_row(got, panels, NULL, type, k, j);
            assert_memory_equal(got, want, sizeof want);
        }
        free(blocks);
        assert_true(guarded_free(&mem));
    }
}

static void test_other_types_are_widened(void **state)
{
    static const rose_format others[] = {ROSE_F32,  ROSE_F16,  ROSE_BF16,
                                         ROSE_Q5_0, ROSE_Q5_1, ROSE_Q5_K};
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(rose_quant_has(others[i]));
    const uint32_t k = 512, n = 19;
    uint8_t *blocks = malloc(rose_values_bytes(ROSE_Q5_K, (uint64_t)k * n));
    guarded mem;
    void *panels = guarded_alloc(&mem, rose_panels_bytes(ROSE_BF16, k, n));
    assert_non_null(blocks);
    fill_blocks(blocks, ROSE_Q5_K, (uint64_t)k * n, DATA_NORMAL);
    const rose_tensor w = tensor_of(blocks, ROSE_Q5_K, k, n);
    assert_true(rose_pack_panels(panels, NULL, ROSE_BF16, &w, k, n, true, 0, 2));
    for (uint32_t j = 0; j < n; j++) {
        float want[512], got[512];
        rose_tensor_read_f32(&w, (uint64_t)j * k, k, want);
        rose_panel_row(got, panels, NULL, ROSE_BF16, k, j);
        for (uint32_t i = 0; i < k; i++)
            assert_true(got[i] == rose_round_bf16(want[i]));
    }
    free(blocks);
    assert_true(guarded_free(&mem));
}

/* ---- products ---- */

typedef struct level {
    const char *name;
    const rose_quant_kernels *table; /* NULL: this CPU lacks the instructions */
} level;

enum { MAX_LEVELS = 5 };

static uint32_t list_levels(level *out)
{
    uint32_t n = 0;
#if defined(__x86_64__)
    const rose_isa isa = rose_isa_probe();
    const bool avx2 = isa >= ROSE_ISA_AVX2, avx512 = isa >= ROSE_ISA_AVX512;
    if (avx2) out[n++] = (level){"avx2", &rose_quant_avx2};
    if (avx2 && rose_cpu_has_avxvnni()) out[n++] = (level){"avxvnni", &rose_quant_avxvnni};
    if (avx512) out[n++] = (level){"avx512", &rose_quant_avx512};
    if (avx512 && rose_cpu_has_avx512vnni())
        out[n++] = (level){"avx512vnni", &rose_quant_avx512vnni};
#elif defined(__aarch64__)
    out[n++] = (level){"neon", &rose_quant_neon};
#endif
    return n;
}

typedef struct quant_case {
    rose_matmul a;
    rose_format type;
    data_kind kind;
    bool i8;
    guarded w, x, bias, scratch;
    uint8_t *blocks;
    float *y0;
    size_t y_floats;
} quant_case;

static void case_init(quant_case *c, int type, uint32_t k, uint32_t n, uint32_t m, data_kind kind)
{
    const rose_format t = g_dtypes[type];
    *c = (quant_case){.type = t, .kind = kind};
    c->a = (rose_matmul){.k_pad = k, .n = n, .m_rows = m};
    c->a.ldx = k + 16 * rng_below(2);
    c->a.ldy = rose_round_up(n, 16) + 16 * rng_below(2);
    c->a.epilogue = (rose_epilogue)rng_below(6);
    c->a.round_bf16 = c->a.epilogue != ROSE_EPI_RESIDUAL && rng_below(2) == 0;

    c->blocks = malloc(rose_values_bytes(t, (uint64_t)k * n));
    assert_non_null(c->blocks);
    fill_blocks(c->blocks, t, (uint64_t)k * n, kind);
    const rose_tensor w = tensor_of(c->blocks, t, k, n);
    void *panels = guarded_alloc(&c->w, rose_panels_bytes(c->type, k, n));
    rose_pack_panels(panels, NULL, c->type, &w, k, n, true, 0, rose_round_up(n, 16) / 16);
    c->a.w = panels;

    float *x = guarded_alloc(&c->x, m * c->a.ldx * sizeof(float)); /* past k: poison */
    for (uint32_t r = 0; r < m; r++) {
        fill(x + r * c->a.ldx, k, kind, false);
        const float same = rng_below(2) == 0 ? 3.0f : -3.0f; /* all integers are 127 or -127 */
        for (uint32_t i = 0; kind == DATA_LARGE && r % 2 == 0 && i < k; i++)
            x[r * c->a.ldx + i] = same;
        if (rng_below(3) == 0) memset(x + r * c->a.ldx, 0, 32 * sizeof(float)); /* a zero block */
    }
    c->a.x = x;
    float *bias = guarded_alloc(&c->bias, n * sizeof(float));
    fill(bias, n, DATA_NORMAL, false);
    c->a.bias = rng_below(2) == 0 ? NULL : bias;
    c->a.scratch = guarded_alloc(&c->scratch, rose_matmul_scratch(k));
    c->y_floats = m * c->a.ldy;
    c->y0 = malloc(c->y_floats * sizeof *c->y0);
    assert_non_null(c->y0);
    memset(c->y0, POISON, c->y_floats * sizeof *c->y0);
    for (uint32_t r = 0; r < m; r++)
        fill(c->y0 + r * c->a.ldy, n, DATA_NORMAL, false);
}

static void case_free(quant_case *c)
{
    assert_true(guarded_free(&c->scratch));
    assert_true(guarded_free(&c->w));
    assert_true(guarded_free(&c->x));
    guarded_free(&c->bias);
    free(c->blocks);
    free(c->y0);
}

static float *case_run(const quant_case *c, const rose_quant_kernels *t, guarded *y, uint32_t m0,
                       uint32_t m, uint32_t p0, uint32_t p1)
{
    rose_matmul a = c->a;
    a.m_rows = m;
    a.x += m0 * a.ldx;
    a.y = guarded_alloc(y, m * a.ldy * sizeof(float));
    memcpy(a.y, c->y0 + m0 * a.ldy, m * a.ldy * sizeof(float));
    memset(a.scratch, 0xff, c->scratch.bytes); /* NaN left by whoever used it before */
    (c->i8 ? t->i8 : t->f32)[c->type](&a, p0, p1);
    return a.y;
}

static void expect_same(const quant_case *c, const char *name, const float *want, const float *got,
                        size_t n, const char *what)
{
    const size_t i = first_difference(want, got, n);
    if (i < n)
        fail_msg("%s %s type %d k %u n %u m %u %s: %s: [%zu] want %.9g got %.9g", name,
                 c->i8 ? "i8" : "f32", (int)c->type, c->a.k_pad, c->a.n, c->a.m_rows,
                 g_kind_names[c->kind], what, i, (double)want[i], (double)got[i]);
}

static void against_ref(const quant_case *c, const level *v)
{
    const uint32_t m = c->a.m_rows, n_panels = rose_round_up(c->a.n, 16) / 16;
    const uint32_t row = rng_below(m), p0 = rng_below(n_panels);
    const uint32_t p1 = p0 + rng_below(n_panels - p0 + 1);
    guarded want_mem, got_mem;
    float *want = case_run(c, &rose_quant_ref, &want_mem, 0, m, 0, n_panels);
    float *got = case_run(c, v->table, &got_mem, 0, m, 0, n_panels);
    expect_same(c, v->name, want, got, c->y_floats, "all rows and panels");
    assert_true(guarded_free(&got_mem));
    got = case_run(c, v->table, &got_mem, row, 1, 0, n_panels);
    expect_same(c, v->name, want + row * c->a.ldy, got, c->a.ldy, "one row alone");
    assert_true(guarded_free(&got_mem));
    assert_true(guarded_free(&want_mem));
    want = case_run(c, &rose_quant_ref, &want_mem, 0, m, p0, p1);
    got = case_run(c, v->table, &got_mem, 0, m, p0, p1);
    expect_same(c, v->name, want, got, c->y_floats, "a range of panels");
    assert_true(guarded_free(&got_mem));
    assert_true(guarded_free(&want_mem));
}

static void test_levels(void **state)
{
    static const uint32_t ms[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 31, 64, 65, 131};
    static const uint32_t ns[] = {1, 15, 16, 17, 40};
    static const uint32_t ks[] = {32, 96, 256, 576, 1536};
    level levels[MAX_LEVELS];
    const uint32_t n_levels = list_levels(levels);
    uint32_t count = 0;
    (void)state;
    for (int type = 0; type < N_QUANT; type++)
        for (uint32_t im = 0; im < 14; im++)
            for (uint32_t kind = 0; kind < N_DATA_KINDS; kind++, count++) {
                const uint32_t block = rose_formats[g_dtypes[type]].block;
                uint32_t k = ks[count % 5], n = ns[count / 5 % 5];
                if (ms[im] > 31 && k > 256) k = 256; /* time */
                k = rose_round_up(k, block);
                quant_case c;
                case_init(&c, type, k, n, ms[im], (data_kind)kind);
                for (uint32_t l = 0; l < n_levels; l++)
                    for (int i8 = 0; i8 < 2; i8++) {
                        c.i8 = i8 != 0;
                        against_ref(&c, &levels[l]);
                    }
                case_free(&c);
            }
}

/* The shares of all threads, by the table that the engine has, add up to the whole product. */
static void test_share(void **state)
{
    static const uint32_t threads[] = {1, 2, 3, 7, 16};
    rose_cpu_kernels k;
    rose_cpu_kernels_init(&k, rose_isa_probe());
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        quant_case c;
        guarded want_mem, got_mem;
        case_init(&c, (int)(i % 5), 256, 1 + rng_below(100), 1 + rng_below(200), DATA_NORMAL);
        c.i8 = rng_below(2) == 0;
        float *want = case_run(&c, &rose_quant_ref, &want_mem, 0, c.a.m_rows, 0,
                               rose_round_up(c.a.n, 16) / 16);
        rose_matmul a = c.a;
        a.y = guarded_alloc(&got_mem, c.y_floats * sizeof(float));
        memcpy(a.y, c.y0, c.y_floats * sizeof(float));
        const uint32_t n_threads = threads[rng_below(5)];
        for (uint32_t tid = 0; tid < n_threads; tid++) {
            memset(a.scratch, 0xff, c.scratch.bytes);
            rose_cpu_matmul_share(rose_cpu_matmul_fn(&k, c.type, c.i8), &a, tid, n_threads);
        }
        expect_same(&c, "share", want, a.y, c.y_floats, "all threads");
        assert_true(guarded_free(&got_mem));
        assert_true(guarded_free(&want_mem));
        case_free(&c);
    }
}

/* The definitions against double precision. fp32: rounding of the sum alone. int8: each activation
 * is off by half a step of its block at most. */
static void test_accuracy(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * N_QUANT; i++) {
        const uint32_t k = 768, n = 20, m = 3;
        quant_case c;
        guarded mem;
        case_init(&c, i / 2, k, n, m, DATA_NORMAL);
        c.i8 = i % 2 == 1;
        c.a.epilogue = ROSE_EPI_NONE;
        c.a.round_bf16 = false;
        c.a.bias = NULL;
        const float *y = case_run(&c, &rose_quant_ref, &mem, 0, m, 0, 2);
        for (uint32_t j = 0; j < n * m; j++) {
            const float *x = c.a.x + j / n * c.a.ldx;
            float w[768];
            double sum = 0.0, bound = 0.0;
            rose_panel_row(w, c.a.w, NULL, c.type, k, j % n);
            for (uint32_t b = 0; b < k; b += 32) {
                double most = 0.0;
                for (uint32_t l = b; l < b + 32; l++)
                    most = fabs((double)x[l]) > most ? fabs((double)x[l]) : most;
                for (uint32_t l = b; l < b + 32; l++) {
                    sum += (double)x[l] * (double)w[l];
                    bound += fabs((double)w[l]) * (most * 1e-5 + (c.i8 ? most / 127 * 0.5001 : 0));
                }
            }
            const double error = fabs((double)y[j / n * c.a.ldy + j % n] - sum);
            if (!(error <= bound))
                fail_msg("type %d i8 %d: error %g, bound %g", (int)c.type, (int)c.i8, error, bound);
        }
        assert_true(guarded_free(&mem));
        case_free(&c);
    }
}

/* An activation that is not finite makes its row NaN and no other. */
static void test_not_finite(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    (void)state;
    for (uint32_t i = 0; i < 3 * N_QUANT; i++) {
        quant_case c;
        guarded mem;
        case_init(&c, (int)(i / 3), 256, 16, 2, DATA_NORMAL);
        c.i8 = true;
        c.a.epilogue = ROSE_EPI_NONE;
        ((float *)(uintptr_t)c.a.x)[100] = bad[i % 3];
        const float *y = case_run(&c, &rose_quant_ref, &mem, 0, 2, 0, 1);
        for (uint32_t j = 0; j < 16; j++)
            assert_true(isnan(y[j]) && isfinite(y[c.a.ldy + j]));
        assert_true(guarded_free(&mem));
        case_free(&c);
    }
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),   cmocka_unit_test(test_type_numbers),
        cmocka_unit_test(test_packing),  cmocka_unit_test(test_other_types_are_widened),
        cmocka_unit_test(test_levels),   cmocka_unit_test(test_share),
        cmocka_unit_test(test_accuracy), cmocka_unit_test(test_not_finite),
    };
    level levels[MAX_LEVELS];
    const uint32_t n = list_levels(levels);
    g_rng = seed != NULL ? strtoull(seed, NULL, 0) : 20261124;
    printf("seed %llu, levels: ref", (unsigned long long)g_rng);
    for (uint32_t i = 0; i < n; i++)
        printf(" %s", levels[i].name);
    printf("\n");
    rose_thread_ftz();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
