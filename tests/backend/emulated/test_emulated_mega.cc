/* tests/backend/emulated/test_emulated_mega.cc - the megakernel from its source, on machine.h:
 * whole decode steps of small models of every kind, bit for bit what gemm.h, attend.h and
 * device.cuh say, with copies as early and as late as they may be. The only test of the megakernel
 * where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <algorithm>

#include "backend/cuda/attend_rotary.cuh"
#include "backend/cuda/gemm_ends.cuh"
#include "backend/cuda/mega.h"
#include "machine.h"
#include "values.h"

extern "C" {
#include <cmocka.h>
cudaError_t CUDARTAPI cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int)
{
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int,
                                                                    size_t)
{
    *blocks = 1;
    return cudaSuccess;
}
}

static uint32_t up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* Memory as the device aligns it; zeros. */
static std::vector<void *> g_memory;
template <typename P> static P *memory(size_t n)
{
    const size_t bytes = (n * sizeof(P) + 511) / 256 * 256;
    void *p = aligned_alloc(256, bytes);
    assert_non_null(p);
    memset(p, 0, bytes);
    g_memory.push_back(p);
    return static_cast<P *>(p);
}

static float *any_floats(size_t n, float scale, float plus)
{
    float *p = memory<float>(n);
    for (size_t i = 0; i < n; i++)
        p[i] = any_float() * scale + plus;
    return p;
}

/* ---- models ---- */

typedef struct kind {
    const char *name;
    rose_format type;
    uint32_t d, n_q, n_kv, head_dim, d_ff, vocab, n_layers;
    rose_cuda_norm_kind norm;
    bool biases, qk_norm, rope, gated, tied;
    uint32_t act;
    float softcap;
    uint32_t grid, n_tokens; /* of the context before the step */
} kind;

typedef struct layer {
    rose_cuda_matrix m[ROSE_MEGA_HEAD];
    rose_mega_layer l;
} layer;

/* As rose_cuda_matrix_shape says in gemm.h. */
static rose_cuda_matrix shape_of(uint32_t k, uint32_t n, uint32_t n_parts, uint32_t head_dim,
                                 bool gated)
{
    rose_cuda_matrix m = {};
    const uint32_t unit = head_dim != 0 && head_dim % 16 == 0 ? head_dim : k % 128 == 0 ? 128 : 16;
    m.k = k;
    m.k_pad = up(k, ROSE_CUDA_K_PAD);
    m.n = n;
    m.n_pad = up(n, ROSE_CUDA_N_PAD);
    m.n_parts = n_parts;
    m.gated = gated;
    for (uint32_t i = 0; i < n_parts; i++)
        m.cut[i] = unit * (i * (k / unit) / n_parts);
    m.cut[n_parts] = k;
    return m;
}

template <typename T> static void fill_matrix(rose_cuda_matrix *m, bool bias)
{
    T *w = memory<T>((size_t)m->n_pad * m->k_pad);
    const float scale = 1.5f / sqrtf((float)m->k);
    for (uint32_t n = 0; n < m->n; n++)
        for (uint32_t k = 0; k < m->k; k++)
            from_f32(any_float() * scale, w + w_index(n, k, m->k_pad, w));
    m->w = w;
    m->bias = bias ? any_floats(m->n, 0.3f, 0) : NULL;
}

static rose_cuda_norm_by any_norm(const kind &k, uint32_t n)
{
    rose_cuda_norm_by by = {};
    by.kind = k.norm;
    by.w = any_floats(n, 0.4f, 1);
    by.b = k.norm == ROSE_CUDA_NORM_LAYER && k.biases ? any_floats(n, 0.3f, 0) : NULL;
    by.eps = 1e-5f;
    return by;
}

/* ---- the reference: one value after the other ---- */

template <typename T> struct reference {
    const kind &k;
    const rose_mega &a;
    const std::vector<layer> &layers;
    const rose_cuda_matrix &head;
    std::vector<float> x;
    std::vector<T> row;

    /* Part `part` of output n of w times the row. */
    float sum_of(const rose_cuda_matrix &m, uint32_t part, uint32_t n) const
    {
        const T *w = static_cast<const T *>(m.w);
        float sum = 0;
        for (uint32_t g = m.cut[part]; g < m.cut[part + 1]; g += 16) {
            sixteen p, q;
            for (uint32_t i = 0; i < 16; i++) {
                p.of[i] = (double)to_f32(row[g + i]);
                q.of[i] = (double)to_f32(w[w_index(n, g + i, m.k_pad, w)]);
            }
            sum = add_products(sum, p, q);
        }
        return sum;
    }

    float y_of(const rose_cuda_matrix &m, uint32_t n) const
    {
        const float y = sum_of(m, 0, n);
        return m.bias == NULL ? y : y + m.bias[n];
    }

    void add(const rose_cuda_matrix &m)
    {
        for (uint32_t n = 0; n < m.n; n++) {
            float v = x[n] + y_of(m, n);
            for (uint32_t part = 1; part < 4; part++)
                v = v + sum_of(m, part, n);
            x[n] = v;
        }
    }

    /* The order of the sums of norm.cuh. */
    float sum_row(float mean, bool squares) const
    {
        float lanes[32], next[32];
        for (uint32_t lane = 0; lane < 32; lane++) {
            float s[8] = {};
            for (uint32_t i = lane * 8; i < k.d; i += 256)
                for (uint32_t e = 0; e < 8; e++) {
                    const float v = x[i + e] - mean;
                    s[e] = squares ? fmaf(v, v, s[e]) : s[e] + x[i + e];
                }
            lanes[lane] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        }
        for (uint32_t o = 16; o > 0; o /= 2) {
            for (uint32_t i = 0; i < 32; i++)
                next[i] = lanes[i] + lanes[i ^ o];
            memcpy(lanes, next, sizeof lanes);
        }
        return lanes[0];
    }

    void norm(const rose_cuda_norm_by &by)
    {
        const float mean = by.kind == ROSE_CUDA_NORM_LAYER ? sum_row(0, false) / (float)k.d : 0.0f;
        const float inv = 1 / sqrtf(sum_row(mean, true) / (float)k.d + by.eps);
        row.resize(k.d);
        for (uint32_t i = 0; i < k.d; i++) {
            const float v = (x[i] - mean) * inv;
            from_f32(by.b != NULL ? fmaf(v, by.w[i], by.b[i]) : v * by.w[i], &row[i]);
        }
    }

    /* QK-norm and RoPE of a head, as attend_rotary.cuh says. */
    void rotate(float *v, const float *w, bool rope) const
    {
        const uint32_t hd = k.head_dim, half = a.rot_dim / 2, at = *a.where;
        if (w != NULL) {
            float lanes[32], next[32];
            for (uint32_t lane = 0; lane < 32; lane++) {
                lanes[lane] = 0;
                for (uint32_t d = lane * 2; d < hd; d += 64) {
                    lanes[lane] = fmaf(v[d], v[d], lanes[lane]);
                    lanes[lane] = fmaf(v[d + 1], v[d + 1], lanes[lane]);
                }
            }
            for (uint32_t o = 16; o > 0; o /= 2) {
                for (uint32_t i = 0; i < 32; i++)
                    next[i] = lanes[i] + lanes[i ^ o];
                memcpy(lanes, next, sizeof lanes);
            }
            const float inv = 1 / sqrtf(lanes[0] / (float)hd + a.eps);
            for (uint32_t d = 0; d < hd; d++)
                v[d] = v[d] * inv * w[d];
        }
        for (uint32_t i = 0; rope && i < half; i++) {
            const float c = a.cos[at * half + i], s = a.sin[at * half + i];
            const float lo = v[i], hi = v[i + half];
            const float p = lo * c, q = hi * s, r = hi * c, t = lo * s;
            v[i] = p - q;
            v[i + half] = r + t;
        }
    }

    T *page_at(const rose_mega_layer &l, uint32_t pos, uint32_t head, uint32_t v, uint32_t d) const
    {
        const uint32_t page = a.table[pos / 16];
        return static_cast<T *>(l.kv) + page * a.page_elems +
               (size_t)(head * 2 + v) * 16 * k.head_dim + page_index(pos % 16, d, k.head_dim);
    }

    /* An inner block of a query head. */
    void attend_block(const rose_mega_layer &l, const T *q, uint32_t head, uint32_t inner, float *o,
                      float *max, float *sum) const
    {
        const uint32_t n = std::min(64u, *a.where + 1 - inner * 64);
        float s[64], lane[4] = {};
        T p[64];
        *max = -INFINITY;
        for (uint32_t i = 0; i < n; i++) {
            s[i] = 0;
            for (uint32_t c = 0; c < k.head_dim; c += 16) {
                sixteen u, w;
                for (uint32_t e = 0; e < 16; e++) {
                    u.of[e] = (double)to_f32(q[c + e]);
                    w.of[e] = (double)to_f32(*page_at(l, inner * 64 + i, head, 0, c + e));
                }
                s[i] = add_products(s[i], u, w);
            }
            s[i] = s[i] * (l.scale * ROSE_LOG2E);
            *max = fmaxf(*max, s[i]);
        }
        for (uint32_t i = 0; i < 64; i++)
            from_f32(i < n ? exp2f(s[i] - *max) : 0, &p[i]);
        for (uint32_t i = 0; i < 64; i++)
            lane[i % 8 / 2] += to_f32(p[i]);
        *sum = (lane[0] + lane[1]) + (lane[2] + lane[3]);
        for (uint32_t d = 0; d < k.head_dim; d++) {
            o[d] = 0;
            for (uint32_t c = 0; c < up(n, 16); c += 16) {
                sixteen u, w;
                for (uint32_t e = 0; e < 16; e++) {
                    u.of[e] = (double)to_f32(p[c + e]);
                    w.of[e] = (double)to_f32(*page_at(l, inner * 64 + c + e, head, 1, d));
                }
                o[d] = add_products(o[d], u, w);
            }
        }
    }

    /* (M, L, O) takes (m, l, o) in. */
    static void merge(float *M, float *L, float *O, float m, float l, const float *o, uint32_t hd)
    {
        const float top = fmaxf(*M, m), fa = exp2f(*M - top), fb = exp2f(m - top);
        for (uint32_t d = 0; d < hd; d++)
            O[d] = fmaf(o[d], fb, O[d] * fa);
        *L = fmaf(l, fb, *L * fa);
        *M = top;
    }

    void attend(const rose_mega_layer &l, const std::vector<float> &qkv)
    {
        const uint32_t hd = k.head_dim, group = k.n_q / k.n_kv;
        std::vector<float> v = qkv;
        row.resize(k.n_q * hd);
        for (uint32_t h = 0; h < k.n_q + 2 * k.n_kv; h++) {
            const float *w = h < k.n_q ? l.q_norm : l.k_norm;
            float *at = &v[h * hd];
            if (h < k.n_q + k.n_kv) rotate(at, w, l.rope != 0);
            for (uint32_t d = 0; h >= k.n_q && d < hd; d++)
                from_f32(at[d], page_at(l, *a.where, (h - k.n_q) % k.n_kv, h >= k.n_q + k.n_kv, d));
        }
        for (uint32_t h = 0; h < k.n_q; h++) {
            std::vector<T> q(hd);
            std::vector<float> O(hd), o(hd), b(hd);
            float M = -INFINITY, L = 0, m = -INFINITY, sum = 0, bm, bl;
            for (uint32_t d = 0; d < hd; d++)
                from_f32(v[h * hd + d], &q[d]);
            for (uint32_t i = 0; i <= *a.where / 64; i++) {
                if (i % 8 == 0) {
                    m = -INFINITY;
                    sum = 0;
                    std::fill(o.begin(), o.end(), 0.0f);
                }
                attend_block(l, q.data(), h / group, i, b.data(), &bm, &bl);
                merge(&m, &sum, o.data(), bm, bl, b.data(), hd);
                if (i % 8 == 7 || i == *a.where / 64) merge(&M, &L, O.data(), m, sum, o.data(), hd);
            }
            for (uint32_t d = 0; d < hd; d++)
                from_f32(O[d] * (1 / L), &row[h * hd + d]);
        }
    }

    void mlp(const rose_cuda_matrix &m)
    {
        std::vector<T> hidden(k.d_ff);
        for (uint32_t i = 0; i < k.d_ff; i++) {
            const uint32_t n = m.gated ? i / 8 * 16 + i % 8 : i;
            float y = activate(y_of(m, n), k.act);
            if (m.gated) y = y * y_of(m, n + 8);
            from_f32(y, &hidden[i]);
        }
        row = hidden;
    }

    /* The logits of the step; K and V go to the pages. */
    std::vector<float> step(uint32_t id)
    {
        const T *tok = static_cast<const T *>(a.tok);
        std::vector<float> logits(k.vocab);
        x.resize(k.d);
        for (uint32_t i = 0; i < k.d; i++) {
            x[i] = to_f32(tok[w_index(id, i, a.tok_k_pad, tok)]) * a.embed_scale;
            if (a.pos != NULL) x[i] = x[i] + a.pos[(size_t)*a.where * k.d + i];
        }
        for (const layer &l : layers) {
            std::vector<float> qkv(l.m[ROSE_MEGA_QKV].n);
            norm(l.l.norm[0]);
            for (uint32_t n = 0; n < qkv.size(); n++)
                qkv[n] = y_of(l.m[ROSE_MEGA_QKV], n);
            attend(l.l, qkv);
            add(l.m[ROSE_MEGA_OUT]);
            norm(l.l.norm[1]);
            mlp(l.m[ROSE_MEGA_UP]);
            add(l.m[ROSE_MEGA_DOWN]);
        }
        norm(a.last);
        rose_gemm_io io = {};
        io.softcap = a.softcap;
        for (uint32_t n = 0; n < k.vocab; n++)
            logits[n] = end_logit(io, y_of(head, n));
        return logits;
    }
};

/* ---- cases ---- */

template <typename T> static void fill_layer(const kind &k, layer *l, void *kv)
{
    const uint32_t hd = k.head_dim;
    l->m[ROSE_MEGA_QKV] = shape_of(k.d, (k.n_q + 2 * k.n_kv) * hd, 1, 0, false);
    l->m[ROSE_MEGA_OUT] = shape_of(k.n_q * hd, k.d, 4, hd, false);
    l->m[ROSE_MEGA_UP] = shape_of(k.d, k.gated ? 2 * k.d_ff : k.d_ff, 1, 0, k.gated);
    l->m[ROSE_MEGA_DOWN] = shape_of(k.d_ff, k.d, 4, 0, false);
    l->l = {};
    for (uint32_t op = 0; op < ROSE_MEGA_HEAD; op++) {
        if (op == ROSE_MEGA_ATTEND) continue;
        fill_matrix<T>(&l->m[op], k.biases);
        l->l.w[op] = l->m[op].w;
        l->l.bias[op] = l->m[op].bias;
    }
    l->l.norm[0] = any_norm(k, k.d);
    l->l.norm[1] = any_norm(k, k.d);
    l->l.q_norm = k.qk_norm ? any_floats(hd, 0.4f, 1) : NULL;
    l->l.k_norm = k.qk_norm ? any_floats(hd, 0.4f, 1) : NULL;
    l->l.scale = 1 / sqrtf((float)hd);
    l->l.rope = k.rope;
    l->l.kv = kv;
}

/* Steps of one sequence at several positions; how many values differ. */
template <typename T> static size_t run_kind(const kind &k)
{
    static const uint32_t steps = 3;
    const uint32_t hd = k.head_dim, positions = k.n_tokens + steps;
    const uint32_t n_pages = positions / 16 + 1, layer_elems = k.n_kv * 2 * 16 * hd;
    std::vector<layer> layers(k.n_layers);
    rose_cuda_matrix head = shape_of(k.d, k.vocab, 1, 0, false);
    const size_t n_values = (size_t)n_pages * k.n_layers * layer_elems;
    T *pages = memory<T>(n_values);
    uint32_t *table = memory<uint32_t>(n_pages), *word = memory<uint32_t>(8);
    rose_mega a = {};
    rose_mega_layer *on_device = memory<rose_mega_layer>(k.n_layers);
    size_t differ = 0;

    for (size_t i = 0; i < n_values; i++)
        from_f32(any_float(), pages + i);
    for (uint32_t i = 0; i < n_pages; i++) {
        table[i] = i;
        std::swap(table[i], table[any(i + 1)]);
    }
    for (uint32_t i = 0; i < k.n_layers; i++) {
        fill_layer<T>(k, &layers[i], pages + (size_t)i * layer_elems);
        on_device[i] = layers[i].l;
    }
    fill_matrix<T>(&head, false);
    rose_cuda_matrix tok = head;
    if (!k.tied) fill_matrix<T>(&tok, false);
    a.layers = on_device;
    a.last = any_norm(k, k.d);
    a.head = head.w;
    a.tok = tok.w;
    a.tok_k_pad = tok.k_pad;
    a.pos = k.rope ? NULL : any_floats((size_t)positions * k.d, 0.5f, 0);
    a.rot_dim = k.rope ? hd : 0;
    a.cos = k.rope ? any_floats((size_t)positions * hd / 2, 1, 0) : NULL;
    a.sin = k.rope ? any_floats((size_t)positions * hd / 2, 1, 0) : NULL;
    a.tokens = word;
    a.where = word + 1;
    a.slot = word + 2;
    a.turn = word + 3;
    a.sampled = word + 4;
    a.table = table;
    a.logits = memory<float>(k.vocab);
    a.key = memory<unsigned long long>(1);
    for (uint32_t op = 0; op < ROSE_MEGA_HEAD; op++)
        if (op != ROSE_MEGA_ATTEND) rose_mega_matrix_of(&a.matrix[op], &layers[0].m[op]);
    rose_mega_matrix_of(&a.matrix[ROSE_MEGA_HEAD], &head);
    a.page_elems = (uint64_t)k.n_layers * layer_elems;
    a.embed_scale = k.tied ? 1.0f : 1.7f;
    a.eps = 1e-6f;
    a.softcap = k.softcap;
    a.d = k.d;
    a.n_layers = k.n_layers;
    a.n_q = k.n_q;
    a.n_kv = k.n_kv;
    a.head_dim = hd;
    a.vocab = k.vocab;
    a.act = k.act;
    a.gated = k.gated;
    rose_mega_layout(&a, memory<uint64_t>(rose_mega_layout(&a, NULL, positions)), positions);
    /* Little shared memory, so that rings are short and are used again and again. With the least,
     * they have two pieces. */
    const size_t shared[] = {227 << 10, 120 << 10, 96 << 10};
    assert_true(rose_mega_measure(&a, k.grid, shared[any(3)]));

    rose_cuda_launch at = {};
    at.type = k.type;
    for (uint32_t i = 0; i < steps; i++) {
        word[1] = k.n_tokens + i;
        word[2] = table[word[1] / 16] * 16 + word[1] % 16;
        word[3] = i + 1;
        word[4] = any(k.vocab);
        word[0] = i % 2 == 0 ? any(k.vocab) : 1u << 31; /* a token, or the one that was sampled */
        const uint32_t id = i % 2 == 0 ? word[0] : word[4];
        std::vector<T> before(pages, pages + n_values);
        reference<T> r = {k, a, layers, head, {}, {}};
        const std::vector<float> want = r.step(id);
        const std::vector<T> want_pages(pages, pages + n_values);
        std::copy(before.begin(), before.end(), pages);
        /* The row's own slot is read from the kernel's own K and V, not from memory. */
        for (uint32_t l = 0; l < k.n_layers; l++)
            for (uint32_t h = 0; h < k.n_kv * 2; h++)
                for (uint32_t d = 0; d < hd; d++)
                    from_f32(NAN, r.page_at(layers[l].l, word[1], h / 2, h % 2, d));
        machine::g_manner = {i % 2 == 0, false};
        assert_int_equal(rose_mega_run(&at, &a), cudaSuccess);
        assert_false(machine::g_hung);
        unsigned long long key = 0;
        for (uint32_t v = 0; v < k.vocab; v++) {
            differ += memcmp(&want[v], &a.logits[v], 4) != 0;
            key = std::max(key, rank_key(want[v], v));
        }
        differ += key != *a.key;
        differ += memcmp(want_pages.data(), pages, n_values * sizeof(T)) != 0;
        if (differ > 0) print_message("step %u: %zu differ\n", i, differ);
    }
    for (void *p : g_memory)
        free(p);
    g_memory.clear();
    return differ;
}

static void test_kinds(void **state)
{
    /* SmolLM2's rows end with a part of a piece after one or two whole ones, as in the real model.
     */
    static const kind kinds[] = {
        {"GPT-2", ROSE_F16, 192, 3, 3, 64, 768, 331, 2, ROSE_CUDA_NORM_LAYER, true, false, false,
         false, true, ROSE_ACT_GELU_TANH, 0, 6, 130},
        {"SmolLM2", ROSE_BF16, 592, 3, 1, 64, 1104, 250, 2, ROSE_CUDA_NORM_RMS, false, false, true,
         true, true, ROSE_ACT_SILU, 0, 5, 15},
        {"Qwen3", ROSE_BF16, 256, 4, 2, 128, 384, 300, 2, ROSE_CUDA_NORM_RMS, false, true, true,
         true, false, ROSE_ACT_SILU, 0, 8, 62},
        {"Llama-3.2", ROSE_F16, 512, 8, 2, 64, 1024, 301, 1, ROSE_CUDA_NORM_RMS, false, false, true,
         true, true, ROSE_ACT_SILU, 0, 4, 600},
        {"soft cap, biases", ROSE_BF16, 64, 2, 2, 64, 128, 64, 3, ROSE_CUDA_NORM_RMS, true, false,
         true, true, false, ROSE_ACT_GELU_ERF, 30, 7, 0},
        {"one block", ROSE_F16, 64, 4, 2, 64, 64, 40, 2, ROSE_CUDA_NORM_LAYER, false, false, false,
         false, true, ROSE_ACT_RELU, 0, 1, 700},
        {"ten splits", ROSE_BF16, 64, 2, 2, 64, 64, 20, 1, ROSE_CUDA_NORM_RMS, false, false, true,
         false, true, ROSE_ACT_RELU, 0, 3, 4700},
    };
    (void)state;
    for (const kind &k : kinds) {
        const size_t differ = k.type == ROSE_F16 ? run_kind<__half>(k) : run_kind<__nv_bfloat16>(k);
        print_message("%s: %zu values differ\n", k.name, differ);
        assert_int_equal(differ, 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds)};
    const char *seed = getenv("ROSE_TEST_SEED");
    g_state = seed != NULL ? strtoull(seed, NULL, 0) : 20261125;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)g_state);
    g_state = g_state * 2 + 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
