/* tests/backend/emulated/test_emulated_wide.cc - the kernels of gemm_wide.cuh, from their sources,
 * on machine.h: every kernel with every end that it takes, bit for bit what the rule in gemm.h
 * says. Copies and products happen as early and as late as they may. The only test of these kernels
 * where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <algorithm>

#include "backend/cuda/gemm_ends.cuh"
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

/* Few SMs, so that blocks have several tiles. */
static const rose_cuda_device g_device = {.index = 0,
                                          .sms = 4,
                                          .cc = 90,
                                          .code = 90,
                                          .hopper = true,
                                          .shared_max = 227 << 10,
                                          .shared_sm = 228 << 10,
                                          .l2 = 50 << 20,
                                          .encode = reinterpret_cast<void *>(make_map)};

/* ---- the kernels ---- */

enum {
    ONE_PART = 1 << ROSE_END_ROWS | 1 << ROSE_END_ACT | 1 << ROSE_END_GATED | 1 << ROSE_END_LOGITS,
    RESIDUAL = 1 << ROSE_END_RESIDUAL
};

#define KERNELS(M)                                                                                 \
    M(wide_128x192_x2, ONE_PART)                                                                   \
    M(wide_128x192_rows, ONE_PART)                                                                 \
    M(wide_128x128, ONE_PART)                                                                      \
    M(wide_64x192, ONE_PART)                                                                       \
    M(wide_64x96, ONE_PART)                                                                        \
    M(wide_64x32, ONE_PART)                                                                        \
    M(wide_sum_192_x2, RESIDUAL)                                                                   \
    M(wide_sum_128, RESIDUAL)                                                                      \
    M(wide_sum_96, RESIDUAL)                                                                       \
    M(wide_split_128x144, RESIDUAL)                                                                \
    M(wide_split_64x144, RESIDUAL)                                                                 \
    M(wide_split_64x96, RESIDUAL)                                                                  \
    M(wide_split_128x96, RESIDUAL)                                                                 \
    M(wide_split_128, RESIDUAL)                                                                    \
    M(wide_split_32, RESIDUAL)

extern "C" {
#define DECLARE(id, ends) ROSE_GEMM_FN(id);
KERNELS(DECLARE)
#undef DECLARE
}

static_assert(ROSE_F16 == 1 && ROSE_BF16 == 2, "places in run[]");
static const rose_gemm_kernel g_kernels[] = {
#define LINE(id, e)                                                                                \
    {.name = #id, .ends = e, .run = {nullptr, rose_gemm_##id##_f16, rose_gemm_##id##_bf16}},
    KERNELS(LINE)
#undef LINE
};

/* ---- problems ---- */

static uint32_t up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

template <typename T> struct bytes { /* aligned as device memory is */
    std::vector<T> all;
    size_t skip;
    explicit bytes(size_t n) : all(n + 256 / sizeof(T))
    {
        skip = (256 - reinterpret_cast<uintptr_t>(all.data()) % 256) % 256 / sizeof(T);
    }
    T *at()
    {
        return all.data() + skip;
    }
};

/* The parts of k, by the rule in gemm.h. */
static void cut(rose_cuda_matrix *m, uint32_t head_dim)
{
    const uint32_t unit = head_dim > 0 && head_dim % 16 == 0 ? head_dim
                          : m->k % 128 == 0                  ? 128
                                                             : 16;
    for (uint32_t i = 0; i < m->n_parts; i++)
        m->cut[i] = unit * (i * (m->k / unit) / m->n_parts);
    m->cut[m->n_parts] = m->k;
}

typedef struct shape {
    uint32_t k, n, head_dim;
} shape;

/* One product: what the kernels are given. */
template <typename T> struct problem {
    rose_cuda_launch at = {};
    rose_cuda_matrix m = {};
    rose_gemm_io io = {};
    bytes<T> w, h;
    bytes<float> bias;
    std::vector<unsigned long long> keys; /* of the head, before; none: it is not asked for them */
    std::vector<uint8_t> before;          /* of what is written */

    problem(rose_format type, uint32_t rows, const shape &s, rose_gemm_end end)
        : w((size_t)up(s.k, 64) * up(s.n, 128)), h((size_t)up(rows, 8) * up(s.k, 64)), bias(s.n)
    {
        const bool head = end == ROSE_END_LOGITS;
        at.device = &g_device;
        at.type = m.format = type;
        m.k = s.k;
        m.k_pad = up(s.k, 64);
        m.n = head ? s.n - any(2) : s.n;
        m.n_pad = up(s.n, 128);
        m.n_parts = end == ROSE_END_RESIDUAL ? ROSE_GEMM_PARTS : 1;
        m.gated = end == ROSE_END_GATED;
        cut(&m, s.head_dim);
        for (uint32_t i = 0; i < m.n_pad; i++)
            for (uint32_t j = 0; j < m.k_pad; j++)
                from_f32(i < m.n && j < s.k ? any_float() * 0.1f : 0,
                         w.at() + w_index(i, j, m.k_pad, w.at()));
        for (uint32_t i = 0; i < up(rows, 8); i++) /* rows that do not exist have any values */
            for (uint32_t j = 0; j < m.k_pad; j++)
                from_f32(j < s.k ? (i < rows ? any_float() : NAN) : 0,
                         h.at() + h_index(i, j, m.k_pad));
        if (head) make_special(rows);
        for (uint32_t i = 0; i < s.n; i++)
            bias.at()[i] = any_float();
        m.w = w.at();
        m.bias = any(3) == 0 ? NULL : bias.at();
        io.h = h.at();
        io.end = end;
        io.rows = rows;
        io.ld_x = m.n + any(4) * 2; /* every second time 16 bytes are aligned */
        io.ld_logits = m.n + any(4);
        io.out_f32 = any(2) == 0;
        const uint32_t width = end == ROSE_END_GATED ? m.n / 2 : m.n;
        io.out_pitch = end == ROSE_END_ROWS ? m.n + any(3) * 4 : up(width, 64);
        io.act = any(4);
        io.softcap = any(2) == 0 ? 0 : 2.5f;
        before.resize((size_t)up(rows + 1, 8) * up(s.n + 8, 64) * 4);
        for (size_t i = 0; i + 4 <= before.size(); i += 4) {
            const float v = any_float();
            memcpy(&before[i], &v, 4);
        }
    }

    /* For the largest logit: every second time few values, so that many logits are equal, +0 and -0
     * among them. Some rows have numbers too large for sums, infinities or NaN. Earlier tiles have
     * left keys. */
    void make_special(uint32_t rows)
    {
        const bool few = any(2) == 0;
        for (uint32_t i = 0; few && i < m.n; i++)
            for (uint32_t j = 0; j < m.k; j++)
                from_f32(((float)any(3) - 1) * 0.125f, w.at() + w_index(i, j, m.k_pad, w.at()));
        for (uint32_t i = 0; i < rows; i++) {
            const uint32_t kind = any(8);
            for (uint32_t j = 0; j < m.k; j++) {
                T *v = h.at() + h_index(i, j, m.k_pad);
                if (few) from_f32(j < 3 ? (float)any(3) - 1 : 0, v);
                if (kind == 0) from_f32(any_float() * 60000, v);
                if (kind == 1 && j == 0) from_f32(any(2) == 0 ? INFINITY : -INFINITY, v);
                if (kind == 2 && j == 0) from_f32(NAN, v);
            }
        }
        if (any(4) == 0) return;
        const bool high = any(2) == 0; /* about as large as the few can be: ids decide */
        for (uint32_t i = 0; i < rows; i++)
            keys.push_back(high          ? rank_key(few ? 0.375f : 2, any(m.n))
                           : any(2) == 0 ? 0
                                         : rank_key(any_float() * 2, any(m.n)));
    }

    /* All that `run` may have written. */
    template <typename F> std::vector<uint8_t> written(F run)
    {
        bytes<uint8_t> to(before.size());
        bytes<unsigned long long> key(io.rows);
        memcpy(to.at(), before.data(), before.size());
        io.x = io.logits = reinterpret_cast<float *>(to.at());
        io.out = to.at();
        io.key = keys.empty() ? NULL : key.at();
        std::copy(keys.begin(), keys.end(), key.at());
        run();
        for (size_t i = 0; io.end == ROSE_END_LOGITS && i < before.size() / 4; i++)
            if (io.logits[i] != io.logits[i]) io.logits[i] = NAN; /* any NaN is as good */
        std::vector<uint8_t> y(to.at(), to.at() + before.size());
        const uint8_t *all = reinterpret_cast<const uint8_t *>(key.at());
        y.insert(y.end(), all, all + io.rows * sizeof *key.at());
        return y;
    }
};

/* ---- the rule, output by output ---- */

template <typename T>
static float part_of(const problem<T> &p, uint32_t part, uint32_t row, uint32_t n)
{
    const T *w = static_cast<const T *>(p.m.w), *h = static_cast<const T *>(p.io.h);
    float acc = 0;
    for (uint32_t k = p.m.cut[part]; n < p.m.n && k < p.m.cut[part + 1]; k += 16) {
        sixteen x, y;
        for (uint32_t i = 0; i < 16; i++) {
            x.of[i] = (double)to_f32(h[h_index(row, k + i, p.m.k_pad)]);
            y.of[i] = (double)to_f32(w[w_index(n, k + i, p.m.k_pad, w)]);
        }
        acc = add_products(acc, x, y);
    }
    return acc;
}

template <typename T>
static float2 pair_of(const problem<T> &p, uint32_t part, uint32_t row, uint32_t n)
{
    return make_float2(part_of(p, part, row, n), part_of(p, part, row, n + 1));
}

template <typename T> static void reference_pair(const problem<T> &p, uint32_t row, uint32_t n)
{
    const float2 y = end_biased(p.m, pair_of(p, 0, row, n), end_bias(p.m, n));
    unsigned long long key = 0;
    if (p.io.end == ROSE_END_RESIDUAL) {
        float2 *x = end_residual_at(p.io, row, n);
        *x = end_added(*x, y);
        for (uint32_t part = 1; part < ROSE_GEMM_PARTS; part++)
            *x = end_added(*x, pair_of(p, part, row, n));
    } else if (p.io.end == ROSE_END_GATED) {
        if (n % 16 >= 8) return;
        const float2 up = end_biased(p.m, pair_of(p, 0, row, n + 8), end_bias(p.m, n + 8));
        end_gated<T>(p.m, p.io, row, n / 16 * 8 + n % 8, y, up);
    } else if (p.io.end == ROSE_END_ROWS) {
        end_pair<T, ROSE_END_ROWS>(p.m, p.io, row, n, y);
    } else if (p.io.end == ROSE_END_ACT) {
        end_pair<T, ROSE_END_ACT>(p.m, p.io, row, n, y);
    } else {
        key = end_pair<T, ROSE_END_LOGITS>(p.m, p.io, row, n, y);
        if (p.io.key != NULL) atomicMax(p.io.key + row, key);
    }
}

template <typename T> static std::vector<uint8_t> reference(problem<T> &p)
{
    return p.written([&] {
        for (uint32_t row = 0; row < p.io.rows; row++)
            for (uint32_t n = 0; n < p.m.n; n += 2)
                reference_pair(p, row, n);
    });
}

/* ---- tests ---- */

static uint32_t g_runs;
static bool g_long; /* all cases; else about a quarter of them */

/* How many kernels differ from the rule. In four runs each has had each manner. */
template <typename T>
static int compare(rose_format type, uint32_t rows, const shape &s, rose_gemm_end end)
{
    problem<T> p(type, rows, s, end);
    const std::vector<uint8_t> want = reference(p);
    const uint32_t turn = g_runs++;
    int n_bad = 0;
    for (size_t i = 0; i < sizeof g_kernels / sizeof *g_kernels; i++) {
        const rose_gemm_kernel *g = &g_kernels[i];
        const uint32_t manner = (turn + i) % 4;
        size_t differ = 0;
        if ((g->ends >> end & 1) == 0) continue;
        machine::g_manner = {manner % 2 != 0, manner / 2 != 0};
        const std::vector<uint8_t> y = p.written([&] {
            const cudaError_t e = g->run[type](&p.at, &p.m, &p.io, g);
            if (e != cudaSuccess) machine::die("%s: %d", g->name, (int)e);
        });
        for (size_t j = 0; j < want.size(); j++)
            differ += want[j] != y[j];
        if (differ == 0) continue;
        print_message(
            "type %d, %u rows, k %u, n %u, end %d, %s, copies %s, products %s: %zu of %zu "
            "bytes differ\n",
            (int)type, rows, s.k, s.n, (int)end, g->name, manner % 2 != 0 ? "late" : "early",
            manner / 2 != 0 ? "late" : "early", differ, want.size());
        n_bad++;
    }
    return n_bad;
}

static int compare(uint32_t rows, const shape &s, rose_gemm_end end)
{
    return any(2) == 0 ? compare<__half>(ROSE_F16, rows, s, end)
                       : compare<__nv_bfloat16>(ROSE_BF16, rows, s, end);
}

/* Edges of rows, outputs and k; empty and partial parts. 576: parts of 128, 128, 128 and 192, or of
 * 2, 2, 2 and 3 heads. 960: parts of 3 heads of 80. 40: two empty parts. */
static void test_edges(void **state)
{
    static const uint32_t rows[] = {1, 33, 64, 65, 127, 128, 129, 200, 300};
    static const shape shapes[] = {{576, 208, 64}, {960, 144, 80}, {40, 16, 0},
                                   {64, 400, 0},   {200, 112, 0},  {576, 80, 0}};
    static const rose_gemm_end ends[] = {ROSE_END_ROWS, ROSE_END_ACT, ROSE_END_GATED,
                                         ROSE_END_LOGITS};
    int n_bad = 0;
    (void)state;
    uint32_t turn = any(6);
    for (uint32_t r : rows) {
        if (!g_long && r != 1 && r != 129 && r != 200) continue;
        n_bad += compare(r, shapes[turn++ % 6], ROSE_END_RESIDUAL);
        n_bad += compare(r, shapes[any(6)], ends[any(4)]);
    }
    assert_int_equal(n_bad, 0);
    assert_false(machine::g_hung);
}

/* Every kernel in every manner with every end, where its ring is used again and a block has several
 * tiles. */
static void test_rings(void **state)
{
    static const shape s = {704, 208, 64}, many = {128, 592, 0};
    static const shape deep = {2304, 40, 0}; /* a part is longer than a ring */
    int n_bad = 0;
    (void)state;
    for (int i = 0; i < (g_long ? 4 : 1); i++)
        for (int end = 0; end < ROSE_N_ENDS; end++)
            n_bad += compare(129 + any(64), i % 2 == 0 ? s : many, (rose_gemm_end)end);
    for (int i = 0; i < (g_long ? 2 : 1); i++) /* copies early, then late, for each kernel */
        n_bad += compare(33 + any(64), deep, ROSE_END_RESIDUAL);
    assert_int_equal(n_bad, 0);
    assert_false(machine::g_hung);
}

static int begin(void **state)
{
    (void)state;
    return rose_gemm_prepare_wide(&g_device) == cudaSuccess ? 0 : -1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_edges), cmocka_unit_test(test_rings)};
    const char *seed = getenv("ROSE_TEST_SEED");
    g_long = getenv("ROSE_TEST_LONG") != NULL;
    g_state = seed != NULL ? strtoull(seed, NULL, 0) : 20261125;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)g_state);
    g_state = g_state * 2 + 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, begin, NULL);
}
