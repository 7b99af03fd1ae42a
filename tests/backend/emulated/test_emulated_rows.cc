/* tests/backend/emulated/test_emulated_rows.cc - the GEMMs of few rows (gemm_rows.cuh) and the
 * norms (norm.cu) from their sources, on machine.h, with copies as early and as late as they may
 * be. Every result is compared with plain loops that add in the order of gemm.h and norm.cuh, bit
 * by bit, and with sums in double. The only test of these kernels where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmath>

#include "backend/backend.h"
#include "backend/cuda/attend_ops.cuh"
#include "backend/cuda/gemm_ends.cuh"
#include "machine.h"
#include "values.h"

extern "C" {
#include <cmocka.h>
cudaError_t CUDARTAPI cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
    return value <= 227 << 10 ? cudaSuccess : cudaErrorInvalidValue;
}
ROSE_GEMM_FN(rows);
}

/* Aligned memory, all bytes 0x7a or zero, and a canary after it. */
template <typename T> struct buffer {
    enum : size_t { CANARY = 256 };
    size_t n, bytes;
    T *p;
    buffer(size_t count, int fill) : n(count), bytes((count * sizeof(T) + 255) / 256 * 256)
    {
        p = static_cast<T *>(aligned_alloc(256, bytes + CANARY));
        memset(static_cast<void *>(p), fill, n * sizeof(T));
        memset(reinterpret_cast<uint8_t *>(p + n), 0x5c, bytes + CANARY - n * sizeof(T));
    }
    ~buffer()
    {
        for (size_t i = n * sizeof(T); i < bytes + CANARY; i++)
            assert_int_equal(reinterpret_cast<uint8_t *>(p)[i], 0x5c);
        free(static_cast<void *>(p));
    }
    buffer(const buffer &) = delete;
    void operator=(const buffer &) = delete;
};

enum { POISON = 0x7a };

struct shape {
    rose_gemm_end end;
    uint32_t rows, k, n, head_dim;
    bool bias;
    uint32_t act;
    uint32_t sms, shared_max;
    rose_cuda_norm_kind norm; /* not NONE: the kernel norms the rows */
};

static uint32_t pad_to(uint32_t x, uint32_t to)
{
    return (x + to - 1) / to * to;
}

/* The rule of gemm.h. */
static void set_cuts(rose_cuda_matrix *m, uint32_t head_dim)
{
    const uint32_t u = head_dim != 0 && head_dim % 16 == 0 ? head_dim : m->k % 128 == 0 ? 128 : 16;
    for (uint32_t i = 0; i < m->n_parts; i++)
        m->cut[i] = u * (i * (m->k / u) / m->n_parts);
    m->cut[m->n_parts] = m->k;
}

/* ---- plain loops ---- */

template <typename T> static float rounded(float x)
{
    T t;
    from_f32(x, &t);
    return to_f32(t);
}

static float plain_sum(const float *lane /* [32][8] */)
{
    float v[32];
    for (int l = 0; l < 32; l++) {
        const float *s = lane + l * 8;
        v[l] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
    for (int o = 16; o > 0; o /= 2) {
        float w[32];
        for (int l = 0; l < 32; l++)
            w[l] = v[l] + v[l ^ o];
        memcpy(v, w, sizeof v);
    }
    return v[0];
}

/* The order of norm.cuh; not rounded to T. */
static void plain_norm(float *y, const float *x, const rose_cuda_norm_by &by, uint32_t d)
{
    float s[256] = {0}, q[256] = {0}, mean = 0;
    for (uint32_t k = 0; k < d; k++)
        s[k % 256] += x[k];
    if (by.kind == ROSE_CUDA_NORM_LAYER) mean = plain_sum(s) / (float)d;
    for (uint32_t k = 0; k < d; k++)
        q[k % 256] = fmaf(x[k] - mean, x[k] - mean, q[k % 256]);
    const float inv = 1 / sqrtf(plain_sum(q) / (float)d + by.eps);
    for (uint32_t k = 0; k < d; k++) {
        if (by.kind == ROSE_CUDA_NORM_NONE)
            y[k] = x[k];
        else if (by.b != NULL)
            y[k] = fmaf((x[k] - mean) * inv, by.w[k], by.b[k]);
        else
            y[k] = (x[k] - mean) * inv * by.w[k];
    }
}

/* The matrix [n][k] and the rows [rows][k] in plain order. */
template <typename T> struct problem {
    shape s;
    rose_cuda_matrix m;
    std::vector<double> w, h;
    std::vector<float> x, bias, norm_w, norm_b;
    buffer<T> packed, blocked;

    problem(const shape &of)
        : s(of), w((size_t)of.n * of.k), h((size_t)of.rows * of.k), x((size_t)of.rows * of.k),
          bias(of.n), norm_w(of.k), norm_b(of.k),
          packed((size_t)pad_to(of.n, ROSE_CUDA_N_PAD) * pad_to(of.k, ROSE_CUDA_K_PAD), 0),
          blocked((size_t)pad_to(of.rows, 8) * pad_to(of.k, ROSE_CUDA_K_PAD), 0xff)
    {
        m = {};
        m.k = s.k;
        m.k_pad = pad_to(s.k, ROSE_CUDA_K_PAD);
        m.n = s.n;
        m.n_pad = pad_to(s.n, ROSE_CUDA_N_PAD);
        m.n_parts = s.end == ROSE_END_RESIDUAL ? ROSE_GEMM_PARTS : 1;
        m.gated = s.end == ROSE_END_GATED;
        set_cuts(&m, s.head_dim);
        for (uint32_t n = 0; n < s.n; n++)
            for (uint32_t k = 0; k < s.k; k++) {
                const float v = rounded<T>(any_float() / sqrtf((float)s.k) * 2);
                w[(size_t)n * s.k + k] = (double)v;
                from_f32(v, packed.p + h_index(n, k, m.k_pad));
            }
        for (float &v : bias)
            v = any_float();
        for (uint32_t k = 0; k < s.k; k++) {
            norm_w[k] = 1 + any_float() / 2;
            norm_b[k] = any_float() / 4;
        }
        m.w = packed.p;
        m.bias = s.bias ? bias.data() : NULL;
        fill_rows();
    }

    rose_cuda_norm_by by() const
    {
        const bool has_b = s.norm == ROSE_CUDA_NORM_LAYER;
        return {s.norm, norm_w.data(), has_b ? norm_b.data() : NULL, 1e-5f};
    }

    /* x, what it is normed to, and the padding of a row, which is zero. */
    void fill_rows()
    {
        std::vector<float> y(s.k);
        for (float &v : x)
            v = any_float();
        for (uint32_t r = 0; r < s.rows; r++) {
            plain_norm(y.data(), x.data() + (size_t)r * s.k, by(), s.k);
            for (uint32_t k = 0; k < m.k_pad; k++) {
                const float v = k < s.k ? rounded<T>(y[k]) : 0;
                from_f32(v, blocked.p + h_index(r, k, m.k_pad));
                if (k < s.k) h[(size_t)r * s.k + k] = (double)v;
            }
        }
    }

    /* A part of one output: groups of 16 in turn. */
    float chain(uint32_t row, uint32_t n, uint32_t part) const
    {
        float sum = 0;
        for (uint32_t k = m.cut[part]; k < m.cut[part + 1]; k += 16) {
            sixteen a = {}, b = {};
            for (uint32_t i = 0; i < 16 && k + i < s.k; i++) {
                a.of[i] = w[(size_t)n * s.k + k + i];
                b.of[i] = h[(size_t)row * s.k + k + i];
            }
            sum = add_products(sum, a, b);
        }
        return sum;
    }

    /* Part 0 with the bias; compared with double. */
    float biased(uint32_t row, uint32_t n) const
    {
        const float y = s.bias ? chain(row, n, 0) + bias[n] : chain(row, n, 0);
        double exact = s.bias ? (double)bias[n] : 0, size = fabs(exact);
        for (uint32_t k = m.cut[0]; k < m.cut[1]; k++) {
            const double p = w[(size_t)n * s.k + k] * h[(size_t)row * s.k + k];
            exact += p;
            size += fabs(p);
        }
        assert_true(fabs((double)y - exact) <= 1e-6 * size);
        return y;
    }
};

static void same_float(float got, float want, const shape &s, uint32_t row, uint32_t n)
{
    if (memcmp(&got, &want, 4) != 0)
        fail_msg("end %d rows %u k %u n %u: row %u output %u is %.9g, not %.9g", (int)s.end, s.rows,
                 s.k, s.n, row, n, (double)got, (double)want);
}

/* ---- one GEMM ---- */

template <typename T> struct outcome {
    uint32_t pitch;
    buffer<float> x, logits, wide;
    buffer<T> out;
    std::vector<unsigned long long> key;
    rose_gemm_io io;

    outcome(const problem<T> &p, bool f32)
        : pitch(p.s.end == ROSE_END_ROWS ? p.s.n + 8
                                         : pad_to(p.m.gated ? p.s.n / 2 : p.s.n, ROSE_CUDA_K_PAD)),
          x((size_t)p.s.rows * (p.s.n + 4), POISON), logits((size_t)p.s.rows * (p.s.n + 5), POISON),
          wide((size_t)p.s.rows * pitch, POISON), out((size_t)pad_to(p.s.rows, 8) * pitch, POISON),
          key(p.s.rows, 0), io{}
    {
        io.end = p.s.end;
        io.rows = p.s.rows;
        io.h = p.blocked.p;
        io.x = x.p;
        io.ld_x = p.s.n + 4;
        io.out = f32 ? static_cast<void *>(wide.p) : static_cast<void *>(out.p);
        io.out_f32 = f32;
        io.out_pitch = pitch;
        io.act = p.s.act;
        io.logits = logits.p;
        io.ld_logits = p.s.n + 5;
        io.softcap = p.s.act == ROSE_ACT_SILU ? 30.0f : 0;
        io.key = key.data();
        if (p.s.end == ROSE_END_RESIDUAL)
            for (uint32_t r = 0; r < p.s.rows; r++)
                for (uint32_t n = 0; n < p.s.n; n++)
                    x.p[(size_t)r * io.ld_x + n] = (float)((r * 7 + n * 13) % 64) / 16 - 2;
        if (p.s.norm == ROSE_CUDA_NORM_NONE) return;
        io.h = NULL;
        io.norm = p.by();
        io.x = const_cast<float *>(p.x.data());
        io.ld_x = p.s.k;
    }
};

template <typename T>
static float want_value(const problem<T> &p, const rose_gemm_io &io, uint32_t row, uint32_t n)
{
    if (p.s.end == ROSE_END_GATED) {
        const uint32_t gate = n / 8 * 16 + n % 8;
        const float g = p.biased(row, gate), u = p.biased(row, gate + 8);
        return end_gated_values(io, make_float2(g, 0), make_float2(u, 0)).x;
    }
    const float y = p.biased(row, n);
    if (p.s.end == ROSE_END_ACT) return end_act_values(io, make_float2(y, 0)).x;
    if (p.s.end == ROSE_END_LOGITS) return end_logit(io, y);
    if (p.s.end == ROSE_END_ROWS) return y;
    float x = (float)((row * 7 + n * 13) % 64) / 16 - 2 + y;
    for (uint32_t i = 1; i < ROSE_GEMM_PARTS; i++)
        x += p.chain(row, n, i);
    return x;
}

template <typename T>
static float got_value(const problem<T> &p, const outcome<T> &o, uint32_t row, uint32_t n)
{
    if (p.s.end == ROSE_END_RESIDUAL) return o.x.p[(size_t)row * o.io.ld_x + n];
    if (p.s.end == ROSE_END_LOGITS) return o.logits.p[(size_t)row * o.io.ld_logits + n];
    if (p.s.end != ROSE_END_ROWS) return to_f32(o.out.p[h_index(row, n, o.pitch)]);
    if (o.io.out_f32) return o.wide.p[(size_t)row * o.pitch + n];
    return to_f32(o.out.p[(size_t)row * o.pitch + n]);
}

template <typename T> static void check(const problem<T> &p, const outcome<T> &o)
{
    const shape &s = p.s;
    const uint32_t width = s.end == ROSE_END_GATED ? s.n / 2 : s.n;
    const bool rounds = s.end == ROSE_END_ACT || s.end == ROSE_END_GATED ||
                        (s.end == ROSE_END_ROWS && !o.io.out_f32);
    size_t written = 0;
    for (uint32_t r = 0; r < s.rows; r++) {
        unsigned long long key = 0;
        for (uint32_t n = 0; n < width; n++) {
            const float want = want_value(p, o.io, r, n);
            same_float(got_value(p, o, r, n), rounds ? rounded<T>(want) : want, s, r, n);
            if (rank_key(want, n) > key) key = rank_key(want, n);
        }
        if (s.end == ROSE_END_LOGITS) assert_true(o.key[r] == key);
    }
    /* Nothing else was written. */
    for (size_t i = 0; i < o.out.n * sizeof(T); i++)
        written += reinterpret_cast<const uint8_t *>(o.out.p)[i] != POISON;
    assert_true(written <= (rounds ? (size_t)s.rows * width * sizeof(T) : 0));
    written = 0;
    for (size_t i = 0; i < o.logits.n; i++)
        written += memcmp(o.logits.p + i, "\x7a\x7a\x7a\x7a", 4) != 0;
    assert_true(written <= (s.end == ROSE_END_LOGITS ? (size_t)s.rows * width : 0));
}

template <typename T> static void run_case(const shape &s, bool late)
{
    const problem<T> p(s);
    outcome<T> o(p, s.end == ROSE_END_ROWS && s.act == ROSE_ACT_RELU);
    rose_cuda_device d = {};
    d.sms = s.sms;
    d.shared_max = s.shared_max;
    d.cc = 90;
    rose_cuda_launch at = {};
    at.device = &d;
    at.type = sizeof(T) == 2 && std::is_same<T, __half>::value ? ROSE_F16 : ROSE_BF16;
    machine::g_manner = {late, late};
    const cudaError_t e = at.type == ROSE_F16 ? rose_gemm_rows_f16(&at, &p.m, &o.io, NULL)
                                              : rose_gemm_rows_bf16(&at, &p.m, &o.io, NULL);
    assert_int_equal(e, cudaSuccess);
    assert_false(machine::g_hung);
    check(p, o);
}

static const uint32_t FULL = 227 << 10;

static void test_ends(void **)
{
    static const shape cases[] = {
        {ROSE_END_ROWS, 1, 768, 104, 0, true, ROSE_ACT_RELU, 3, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_ROWS, 3, 576, 72, 0, false, ROSE_ACT_SILU, 132, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_ROWS, 32, 64, 8, 0, true, ROSE_ACT_RELU, 132, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_ROWS, 8, 72, 40, 0, true, ROSE_ACT_RELU, 2, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_RESIDUAL, 1, 576, 64, 64, false, 0, 132, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_RESIDUAL, 9, 960, 72, 64, true, 0, 2, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_RESIDUAL, 31, 768, 40, 0, true, 0, 1, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_RESIDUAL, 8, 64, 24, 64, true, 0, 3, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_RESIDUAL, 3, 1536, 24, 0, false, 0, 3, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_ACT, 16, 768, 136, 0, true, ROSE_ACT_GELU_TANH, 2, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_ACT, 32, 128, 64, 0, false, ROSE_ACT_RELU, 132, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_GATED, 1, 960, 64, 0, false, ROSE_ACT_SILU, 132, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_GATED, 9, 576, 144, 0, true, ROSE_ACT_GELU_ERF, 1, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_LOGITS, 1, 768, 199, 0, false, 0, 2, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_LOGITS, 8, 64, 333, 0, true, ROSE_ACT_SILU, 1, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_LOGITS, 16, 576, 50, 0, false, 0, 1, FULL, ROSE_CUDA_NORM_NONE},
        {ROSE_END_LOGITS, 32, 128, 97, 0, false, ROSE_ACT_SILU, 3, FULL, ROSE_CUDA_NORM_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (i % 2 == 0) run_case<__half>(cases[i], i % 4 == 0);
        if (i % 2 == 1) run_case<__nv_bfloat16>(cases[i], i % 4 == 1);
    }
}

/* Little shared memory: rows come through the rings, slots are small, blocks take several turns. */
static void test_small_memory(void **)
{
    static const shape cases[] = {
        {ROSE_END_ROWS, 2, 2048, 48, 0, true, ROSE_ACT_RELU, 2, 64 << 10, ROSE_CUDA_NORM_NONE},
        {ROSE_END_RESIDUAL, 3, 2048, 40, 0, true, 0, 2, 64 << 10, ROSE_CUDA_NORM_NONE},
        {ROSE_END_RESIDUAL, 20, 1536, 40, 0, true, 0, 1, 99 << 10, ROSE_CUDA_NORM_NONE},
        {ROSE_END_ACT, 12, 1040, 56, 0, true, ROSE_ACT_RELU, 1, 64 << 10, ROSE_CUDA_NORM_NONE},
        {ROSE_END_LOGITS, 5, 3072, 65, 0, false, 0, 1, 99 << 10, ROSE_CUDA_NORM_NONE},
        {ROSE_END_LOGITS, 32, 1024, 31, 0, false, 0, 1, 99 << 10, ROSE_CUDA_NORM_NONE},
        {ROSE_END_LOGITS, 11, 1024, 70, 0, false, 0, 2, 64 << 10, ROSE_CUDA_NORM_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (i % 2 == 0) run_case<__nv_bfloat16>(cases[i], i % 4 == 0);
        if (i % 2 == 1) run_case<__half>(cases[i], i % 4 == 1);
    }
}

static void test_normed(void **)
{
    static const shape cases[] = {
        {ROSE_END_ROWS, 1, 768, 72, 0, true, ROSE_ACT_RELU, 3, FULL, ROSE_CUDA_NORM_LAYER},
        {ROSE_END_ROWS, 1, 584, 40, 0, true, ROSE_ACT_RELU, 1, FULL, ROSE_CUDA_NORM_LAYER},
        {ROSE_END_GATED, 1, 960, 48, 0, false, ROSE_ACT_SILU, 132, FULL, ROSE_CUDA_NORM_RMS},
        {ROSE_END_ACT, 1, 4096, 24, 0, true, ROSE_ACT_GELU_TANH, 2, FULL, ROSE_CUDA_NORM_LAYER},
        {ROSE_END_ROWS, 1, 2040, 16, 0, false, ROSE_ACT_SILU, 2, FULL, ROSE_CUDA_NORM_RMS},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (i % 2 == 0) run_case<__half>(cases[i], i % 4 == 0);
        if (i % 2 == 1) run_case<__nv_bfloat16>(cases[i], i % 4 == 1);
    }
}

/* Any shapes, on small and large GPUs. */
static void test_any(void **)
{
    static const uint32_t sms[] = {1, 2, 5, 132}, memory[] = {99 << 10, 163 << 10, FULL, FULL};
    static const uint32_t heads[] = {0, 64, 80, 128}, kinds = ROSE_N_ENDS;
    for (uint32_t i = 0; i < 30; i++) {
        shape s = {};
        s.end = (rose_gemm_end)any(kinds);
        s.rows = 1 + any(i % 3 == 0 ? 8 : 32);
        s.k = 8 * (1 + any(i % 5 == 0 ? 300 : 100));
        s.n = s.end == ROSE_END_GATED ? 16 * (1 + any(5)) : 8 * (1 + any(12));
        if (s.end == ROSE_END_LOGITS) s.n -= any(8);
        s.head_dim = heads[any(4)];
        if (s.end == ROSE_END_RESIDUAL && s.head_dim != 0)
            s.k = s.head_dim * (1 + any(2000 / s.head_dim));
        s.bias = any(2) != 0;
        s.act = any(2) != 0 ? ROSE_ACT_RELU : ROSE_ACT_SILU;
        s.sms = sms[any(4)];
        s.shared_max = memory[any(4)];
        if (s.end != ROSE_END_RESIDUAL && s.end != ROSE_END_LOGITS && any(3) == 0) {
            s.norm = any(2) != 0 ? ROSE_CUDA_NORM_LAYER : ROSE_CUDA_NORM_RMS;
            s.rows = 1;
        }
        if (any(2) != 0)
            run_case<__half>(s, any(2) != 0);
        else
            run_case<__nv_bfloat16>(s, any(2) != 0);
    }
}

/* ---- norm.cu ---- */

template <typename T>
static void norm_case(rose_format type, rose_cuda_norm_kind kind, uint32_t d, uint32_t rows,
                      uint32_t sms, bool gathers)
{
    const uint32_t pitch = pad_to(d, ROSE_CUDA_K_PAD), n_x = rows + 3;
    buffer<float> x((size_t)n_x * d, 0), w(d, 0), b(d, 0);
    buffer<T> out((size_t)pad_to(rows, 8) * pitch, POISON);
    std::vector<uint32_t> gather(rows);
    std::vector<unsigned long long> key(rows, 9);
    std::vector<float> y(d);
    for (size_t i = 0; i < x.n; i++)
        x.p[i] = any_float() + 0.25f;
    for (uint32_t k = 0; k < d; k++) {
        w.p[k] = any_float();
        b.p[k] = any_float();
    }
    for (uint32_t &g : gather)
        g = any(n_x);
    const rose_cuda_norm_by by = {kind, w.p, kind == ROSE_CUDA_NORM_LAYER ? b.p : NULL, 1e-5f};
    rose_cuda_device device = {};
    device.sms = sms;
    rose_cuda_launch at = {};
    at.device = &device;
    at.type = type;
    const rose_cuda_norm a = {x.p, by,  gathers ? gather.data() : NULL, key.data(), out.p, pitch,
                              d,   rows};
    assert_int_equal(rose_cuda_norm_run(&at, &a), cudaSuccess);
    for (uint32_t r = 0; r < pad_to(rows, 8); r++) {
        if (r < rows) plain_norm(y.data(), x.p + (size_t)(gathers ? gather[r] : r) * d, by, d);
        if (r < rows) assert_true(key[r] == 0);
        for (uint32_t k = 0; k < pitch; k++) {
            T want, *got = out.p + h_index(r, k, pitch);
            from_f32(k < d ? y[k] : 0, &want);
            if (r >= rows) memset(static_cast<void *>(&want), POISON, sizeof want);
            if (memcmp(got, &want, sizeof want) != 0)
                fail_msg("kind %d d %u rows %u: row %u value %u is %.9g, not %.9g", (int)kind, d,
                         rows, r, k, (double)to_f32(*got), (double)to_f32(want));
        }
    }
}

static void test_norm(void **)
{
    norm_case<__half>(ROSE_F16, ROSE_CUDA_NORM_LAYER, 768, 5, 132, true);
    norm_case<__nv_bfloat16>(ROSE_BF16, ROSE_CUDA_NORM_RMS, 576, 3, 132, false);
    norm_case<float>(ROSE_F32, ROSE_CUDA_NORM_LAYER, 2056, 2, 132, false);
    norm_case<__half>(ROSE_F16, ROSE_CUDA_NORM_RMS, 16384, 2, 132, false);
    norm_case<__nv_bfloat16>(ROSE_BF16, ROSE_CUDA_NORM_LAYER, 5000, 1, 132, true);
    norm_case<float>(ROSE_F32, ROSE_CUDA_NORM_NONE, 40, 9, 132, true);
    /* the kernels of many rows */
    norm_case<__half>(ROSE_F16, ROSE_CUDA_NORM_LAYER, 768, 19, 2, true);
    norm_case<__half>(ROSE_F16, ROSE_CUDA_NORM_RMS, 584, 23, 1, false);
    norm_case<__nv_bfloat16>(ROSE_BF16, ROSE_CUDA_NORM_RMS, 1024, 11, 1, false);
    norm_case<__nv_bfloat16>(ROSE_BF16, ROSE_CUDA_NORM_NONE, 72, 11, 1, true);
    norm_case<__half>(ROSE_F16, ROSE_CUDA_NORM_LAYER, 1096, 19, 2, false);
    norm_case<__nv_bfloat16>(ROSE_BF16, ROSE_CUDA_NORM_RMS, 2560, 10, 1, true);
}

static void norm_add_case(uint32_t d, rose_cuda_norm_kind kind)
{
    enum { ROWS = 5 };
    buffer<float> x((size_t)ROWS * d, 0), y((size_t)ROWS * d, 0), w(d, 0);
    std::vector<float> old_x(x.n), old_y(x.n), normed(d);
    for (size_t i = 0; i < x.n; i++) {
        old_x[i] = x.p[i] = any_float();
        old_y[i] = y.p[i] = any_float();
    }
    for (uint32_t k = 0; k < d; k++)
        w.p[k] = any_float();
    rose_cuda_device device = {};
    device.sms = 132;
    rose_cuda_launch at = {};
    at.device = &device;
    const rose_cuda_norm_add a = {x.p, y.p, {kind, w.p, NULL, 1e-6f}, d, ROWS};
    assert_int_equal(rose_cuda_norm_add_run(&at, &a), cudaSuccess);
    for (uint32_t r = 0; r < ROWS; r++) {
        plain_norm(normed.data(), old_y.data() + (size_t)r * d, a.by, d);
        for (uint32_t k = 0; k < d; k++) {
            const size_t i = (size_t)r * d + k;
            const float want = old_x[i] + normed[k];
            assert_memory_equal(&x.p[i], &want, 4);
            assert_true(y.p[i] == 0);
        }
    }
}

static void test_norm_add(void **)
{
    norm_add_case(640, ROSE_CUDA_NORM_RMS);
    norm_add_case(1152, ROSE_CUDA_NORM_RMS);
    norm_add_case(4608, ROSE_CUDA_NORM_LAYER);
}

template <typename T> static void embed_case(rose_format type, bool has_pos, float scale)
{
    enum { D = 72, VOCAB = 20, ROWS = 4 };
    const uint32_t k_pad = pad_to(D, ROSE_CUDA_K_PAD);
    buffer<T> tok((size_t)ROSE_CUDA_N_PAD * k_pad, 0);
    buffer<float> pos(9 * D, 0), x(ROWS * D, POISON);
    const uint32_t ids[ROWS] = {3, ROSE_TOKEN_OUTPUT | 1, 19, 500}, sampled[2] = {7, 11};
    const uint32_t where[ROWS] = {0, 8, 2, 5}, real[ROWS] = {3, 11, 19, 0};
    for (uint32_t n = 0; n < VOCAB; n++)
        for (uint32_t k = 0; k < D; k++)
            from_f32(any_float(), tok.p + w_index(n, k, k_pad, tok.p));
    for (size_t i = 0; i < pos.n; i++)
        pos.p[i] = any_float();
    rose_cuda_launch at = {};
    at.type = type;
    const rose_cuda_embed a = {
        tok.p, has_pos ? pos.p : NULL, scale, ids, sampled, where, x.p, D, k_pad, ROWS, VOCAB};
    assert_int_equal(rose_cuda_embed_run(&at, &a), cudaSuccess);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t k = 0; k < D; k++) {
            float want = to_f32(tok.p[w_index(real[r], k, k_pad, tok.p)]) * scale;
            if (has_pos) want += pos.p[where[r] * D + k];
            assert_memory_equal(&x.p[r * D + k], &want, 4);
        }
}

static void test_embed(void **)
{
    embed_case<__half>(ROSE_F16, true, 1.0f);
    embed_case<__nv_bfloat16>(ROSE_BF16, false, 8.5f);
    embed_case<float>(ROSE_F32, true, 3.0f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),   cmocka_unit_test(test_norm_add),
        cmocka_unit_test(test_embed),  cmocka_unit_test(test_ends),
        cmocka_unit_test(test_normed), cmocka_unit_test(test_small_memory),
        cmocka_unit_test(test_any)};
    const char *seed = getenv("ROSE_TEST_SEED");
    g_state = seed != NULL ? strtoull(seed, NULL, 0) : 20261125;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)g_state);
    g_state = g_state * 2 + 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
