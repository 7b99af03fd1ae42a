/* tests/backend/test_cpu_model.c - the CPU backend end to end on small random models: against an
 * independent forward pass in double precision, and bit for bit against itself in every other way
 * of running the same sequence. */
#include "backend/cpu_ways.h"

static const fx_shape g_shapes[] = {
    {"odd widths, tied", 2, 48, 3, 100, 77, 128, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
     false},
    {"untied, transposed, by layer, f16", 3, 40, 5, 160, 200, 100, ROSE_ACT_GELU_ERF, ROSE_F16,
     true, true, true, false},
    {"head size 1", 1, 33, 33, 5, 17, 128, ROSE_ACT_RELU, ROSE_F32, false, false, false, true},
    {"head size 256", 1, 256, 1, 64, 33, 128, ROSE_ACT_SILU, ROSE_BF16, true, false, false, false},
    {"head size 80", 2, 160, 2, 96, 1, 128, ROSE_ACT_GELU_TANH, ROSE_F32, false, true, false, true},
    {"regular", 2, 128, 2, 512, 300, 128, ROSE_ACT_GELU_TANH, ROSE_BF16, false, false, false,
     false},
};
enum { N_SHAPES = sizeof g_shapes / sizeof g_shapes[0] };

/* ---- the reference: double precision, one position after the other, plain loops ---- */

static double *read_all(const rose_tensor *t)
{
    size_t n = (size_t)rose_tensor_n(t);
    float *f = calloc(n + 1, sizeof *f);
    double *d = calloc(n + 1, sizeof *d);
    assert_true(f != NULL && d != NULL);
    rose_tensor_read_f32(t, 0, n, f);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)f[i];
    free(f);
    return d;
}

static void naive_linear(const rose_linear *l, const double *x, uint32_t k, uint32_t n, double *y)
{
    double *w = read_all(&l->w[0]), *b = l->b[0].data != NULL ? read_all(&l->b[0]) : NULL;
    for (uint32_t j = 0; j < n; j++) {
        y[j] = b != NULL ? b[j] : 0;
        for (uint32_t i = 0; i < k; i++)
            y[j] += x[i] * (l->transposed ? w[(size_t)j * k + i] : w[(size_t)i * n + j]);
    }
    free(w);
    free(b);
}

static void naive_norm(const rose_tensor *wt, const rose_tensor *bt, double eps, const double *x,
                       uint32_t d, double *y)
{
    double *w = read_all(wt), *b = read_all(bt), mean = 0, var = 0;
    for (uint32_t i = 0; i < d; i++)
        mean += x[i] / d;
    for (uint32_t i = 0; i < d; i++)
        var += (x[i] - mean) * (x[i] - mean) / d;
    for (uint32_t i = 0; i < d; i++)
        y[i] = (x[i] - mean) / sqrt(var + eps) * w[i] + b[i];
    free(w);
    free(b);
}

static double naive_act(rose_act act, double x)
{
    const double c = sqrt(2 / acos(-1.0));
    switch (act) {
    case ROSE_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(c * (x + 0.044715 * x * x * x)));
    case ROSE_ACT_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2.0)));
    case ROSE_ACT_RELU:
        return x > 0 ? x : 0;
    case ROSE_ACT_SILU:
        return x / (1 + exp(-x));
    }
    return 0;
}

/* k and v: [layer][position][d]. Adds the position's own, then attends to all so far. */
static void naive_attention(const rose_arch *a, const double *qkv, double *k, double *v,
                            uint32_t pos, uint32_t layer, double *out)
{
    const uint32_t d = a->d_model, hd = a->kinds[0].mixer.head_dim;
    double scale =
        (double)a->kinds[0].mixer.scale / (a->kinds[0].mixer.scale_by_layer ? layer + 1 : 1);
    double p[256];
    memcpy(k + (size_t)pos * d, qkv + d, d * sizeof *k);
    memcpy(v + (size_t)pos * d, qkv + 2 * d, d * sizeof *v);
    for (uint32_t h = 0; h < a->kinds[0].mixer.n_heads; h++) {
        double max = (double)-INFINITY, sum = 0;
        for (uint32_t j = 0; j <= pos; j++) {
            p[j] = 0;
            for (uint32_t i = h * hd; i < (h + 1) * hd; i++)
                p[j] += qkv[i] * k[(size_t)j * d + i];
            p[j] *= scale;
            if (p[j] > max) max = p[j];
        }
        for (uint32_t j = 0; j <= pos; j++)
            sum += p[j] = exp(p[j] - max);
        for (uint32_t i = h * hd; i < (h + 1) * hd; i++) {
            out[i] = 0;
            for (uint32_t j = 0; j <= pos; j++)
                out[i] += p[j] / sum * v[(size_t)j * d + i];
        }
    }
}

/* logits[n][vocab] */
static void naive_forward(const rose_model *m, const uint32_t *tokens, uint32_t n, double *logits)
{
    const rose_arch *a = &m->arch;
    const uint32_t d = a->d_model;
    size_t layer_kv = (size_t)n * d;
    double *k = calloc(a->n_layers * layer_kv, sizeof *k);
    double *v = calloc(a->n_layers * layer_kv, sizeof *v);
    double *x = calloc(d, sizeof *x), *h = calloc(d, sizeof *h), *o = calloc(d, sizeof *o);
    double *wide = calloc((size_t)3 * d + a->kinds[0].mlp.d_ff, sizeof *wide);
    double *tok = read_all(&m->tok_embed), *position = read_all(&m->pos_embed);
    rose_linear head = {.w = {m->head}, .n_parts = 1, .transposed = true};

    assert_true(k && v && x && h && o && wide);
    for (uint32_t p = 0; p < n; p++) {
        for (uint32_t i = 0; i < d; i++)
            x[i] = tok[(size_t)tokens[p] * d + i] + position[(size_t)p * d + i];
        for (uint32_t l = 0; l < a->n_layers; l++) {
            const rose_layer *w = &m->layers[l];
            naive_norm(&w->ln1_w, &w->ln1_b, (double)a->norm_eps, x, d, h);
            naive_linear(&w->m[ROSE_QKV], h, d, 3 * d, wide);
            naive_attention(a, wide, k + l * layer_kv, v + l * layer_kv, p, l, o);
            naive_linear(&w->m[ROSE_OUT], o, d, d, h);
            for (uint32_t i = 0; i < d; i++)
                x[i] += h[i];
            naive_norm(&w->ln2_w, &w->ln2_b, (double)a->norm_eps, x, d, h);
            naive_linear(&w->m[ROSE_UP], h, d, a->kinds[0].mlp.d_ff, wide);
            for (uint32_t i = 0; i < a->kinds[0].mlp.d_ff; i++)
                wide[i] = naive_act(a->kinds[0].mlp.act, wide[i]);
            naive_linear(&w->m[ROSE_DOWN], wide, a->kinds[0].mlp.d_ff, d, h);
            for (uint32_t i = 0; i < d; i++)
                x[i] += h[i];
        }
        naive_norm(&m->lnf_w, &m->lnf_b, (double)a->norm_eps, x, d, h);
        naive_linear(&head, h, d, a->vocab_size, logits + (size_t)p * a->vocab_size);
    }
    free(k);
    free(v);
    free(x);
    free(h);
    free(o);
    free(wide);
    free(tok);
    free(position);
}

/* Largest difference over all logits, relative to the largest logit. */
static double distance(const rose_model *m, const fx_seq *s, uint32_t n)
{
    size_t count = (size_t)n * m->arch.vocab_size;
    double *want = calloc(count, sizeof *want), diff = 0, size = 0;
    assert_non_null(want);
    naive_forward(m, s->tokens, n, want);
    for (size_t i = 0; i < count; i++) {
        double e = fabs((double)s->logits[i] - want[i]);
        if (!(e <= diff)) diff = e; /* a NaN stays */
        if (fabs(want[i]) > size) size = fabs(want[i]);
    }
    free(want);
    return diff / size;
}

static void test_against_double(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        rose_model *m = fx_model(&g_shapes[i], fx_seed() + (uint64_t)i);
        fx_seq s = fx_seq_make(m, fx_seed(), N_TOKENS);
        fx_backend f = fx_open(m, ROSE_COMPUTE_F32, "auto", 2, 1);
        fx_run(&f, &s, N_TOKENS, 20);
        double e32 = distance(m, &s, N_TOKENS);
        fx_close(&f);

        fx_seq t = fx_seq_make(m, fx_seed(), N_TOKENS);
        f = fx_open(m, ROSE_COMPUTE_BF16, "auto", 2, 1);
        fx_run(&f, &t, N_TOKENS, 20);
        double e16 = distance(m, &t, N_TOKENS);
        fx_close(&f);
        print_message("%s: relative error %.1e in fp32, %.1e in bf16\n", g_shapes[i].name, e32,
                      e16);
        assert_true(e32 < 1e-5);
        assert_true(e16 < 0.1);
        fx_seq_free(&s);
        fx_seq_free(&t);
        fx_model_free(m);
    }
}

/* ---- the same bits in every way of running ---- */

static void each_shape(void (*check)(const rose_model *, rose_compute, const fx_seq *,
                                     const char *))
{
    static const rose_compute dtypes[] = {ROSE_COMPUTE_F32, ROSE_COMPUTE_BF16, ROSE_COMPUTE_BF16};
    for (int i = 0; i < (FEW ? 2 : N_SHAPES); i++) {
        rose_model *m = fx_model(&g_shapes[i], fx_seed() + (uint64_t)i);
        for (int j = FEW ? 2 : g_pairs ? 1 : 0; j < 3; j++) {
            fx_quantization = j == 2 ? ROSE_QUANT_INT8 : ROSE_QUANT_NONE;
            fx_seq want = baseline(m, dtypes[j]);
            check(m, dtypes[j], &want, g_shapes[i].name);
            fx_seq_free(&want);
        }
        fx_quantization = ROSE_QUANT_NONE;
        fx_model_free(m);
    }
}

static void test_chunks(void **state)
{
    (void)state;
    each_shape(check_chunks);
}

static void test_quiet_chunks(void **state)
{
    (void)state;
    each_shape(check_quiet);
}

static void test_threads(void **state)
{
    (void)state;
    each_shape(check_threads);
}

static void test_isas(void **state)
{
    (void)state;
    print_message("levels: scalar .. %s\n", rose_isa_name(rose_isa_probe()));
    each_shape(check_isas);
}

static void test_among_others(void **state)
{
    (void)state;
    each_shape(check_among);
}

/* The level whose products follow rule 11, in all these ways, against the definitions of that rule;
 * and it is another rule, as near to the truth as the first. */
static void test_pairs(void **state)
{
    (void)state;
    fx_skip_without("avx512-bf16");
    g_level = "avx512-bf16";
    g_pairs = true;
    each_shape(check_chunks);
    each_shape(check_quiet);
    each_shape(check_threads);
    each_shape(check_among);

    rose_model *m = fx_model(&g_shapes[N_SHAPES - 1], fx_seed() + N_SHAPES - 1);
    fx_seq pairs = baseline(m, ROSE_COMPUTE_BF16);
    g_pairs = false;
    fx_seq groups = baseline(m, ROSE_COMPUTE_BF16);
    size_t bytes = (size_t)N_TOKENS * m->arch.vocab_size * sizeof *pairs.logits;
    assert_true(memcmp(pairs.logits, groups.logits, bytes) != 0);
    double e11 = distance(m, &pairs, N_TOKENS), e1 = distance(m, &groups, N_TOKENS);
    print_message("relative error %.2e by rule 11, %.2e by rule 1\n", e11, e1);
    assert_true(e11 < 1.5 * e1);
    fx_seq_free(&pairs);
    fx_seq_free(&groups);
    fx_model_free(m);
    g_level = "auto";
}

int main(void)
{
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_quiet_chunks),   cmocka_unit_test(test_threads),
        cmocka_unit_test(test_isas),           cmocka_unit_test(test_among_others),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
