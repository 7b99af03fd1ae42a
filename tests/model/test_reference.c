/* The description of a model is complete: a forward pass in fp64 that reads nothing else, and is
 * written as plainly as we can, gives transformers' log-probabilities for each family. It shares no
 * code with a backend. The last test holds the CPU backend against it. */
#include "fixture.h"

#include "backend/cpu_fixture.h"
#include "golden.h"
#include "model/convert.h"
#include "model/rope.h"

static double *widen(const rose_tensor *t)
{
    const size_t n = rose_tensor_n(t);
    float *f = golden_alloc(n, sizeof *f);
    double *d = golden_alloc(n, sizeof *d);
    rose_tensor_read_f32(t, 0, n, f);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)f[i];
    free(f);
    return d;
}

/* x[n][k] -> y[n][outputs]; the outputs of the parts stand side by side. */
static double *linear(const rose_linear *l, const double *x, uint32_t n, uint32_t k)
{
    uint64_t outputs = 0, at = 0;
    assert_true(l->transposed);
    for (uint32_t p = 0; p < l->n_parts; p++)
        outputs += l->w[p].shape[0];
    double *y = golden_alloc(n * outputs, sizeof *y);
    for (uint32_t p = 0; p < l->n_parts; at += l->w[p].shape[0], p++) {
        double *w = widen(&l->w[p]);
        double *b = l->b[p].data != NULL ? widen(&l->b[p]) : NULL;
        for (uint32_t r = 0; r < n; r++)
            for (uint64_t j = 0; j < l->w[p].shape[0]; j++) {
                double sum = b != NULL ? b[j] : 0;
                for (uint32_t i = 0; i < k; i++)
                    sum += x[(size_t)r * k + i] * w[j * k + i];
                y[r * outputs + at + j] = sum;
            }
        free(w);
        free(b);
    }
    return y;
}

/* n rows of d values, `stride` apart, in place. */
static void rms_norm(const rose_arch *a, const rose_tensor *weight, double *x, uint32_t n,
                     uint32_t d, size_t stride)
{
    double *w = widen(weight);
    for (uint32_t r = 0; r < n; r++) {
        double sum = 0, *row = x + r * stride;
        for (uint32_t i = 0; i < d; i++)
            sum += row[i] * row[i];
        const double scale = 1 / sqrt(sum / d + (double)a->norm_eps);
        for (uint32_t i = 0; i < d; i++)
            row[i] *= scale * (a->norm_plus_one ? 1 + w[i] : w[i]);
    }
    free(w);
}

/* One head of all rows. */
static void rotate(const rose_rope *r, uint32_t served, double *x, uint32_t n, size_t stride)
{
    const uint32_t half = r->dim / 2;
    float *inv_freq = golden_alloc(half, sizeof *inv_freq), factor;
    rose_rope_table(r, served, inv_freq, &factor);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < half; i++) {
            const float angle = (float)t * inv_freq[i];
            const double c = cos((double)angle) * (double)factor;
            const double s = sin((double)angle) * (double)factor;
            double *a = x + t * stride + i, *b = a + half;
            const double first = *a;
            *a = first * c - *b * s;
            *b = *b * c + first * s;
        }
    free(inv_freq);
}

static double cap(double x, double limit)
{
    return limit > 0 ? limit * tanh(x / limit) : x;
}

/* One query: q, and keys and values of positions first .. last, `stride` apart. */
static void attend(const rose_mixer *m, double scale, const double *q, const double *k,
                   const double *v, uint32_t first, uint32_t last, size_t stride, double *out)
{
    double *p = golden_alloc(last + 1, sizeof *p), max = (double)-INFINITY, sum = 0;
    for (uint32_t j = first; j <= last; j++) {
        for (uint32_t i = 0; i < m->head_dim; i++)
            p[j] += q[i] * k[j * stride + i];
        p[j] = cap(p[j] * scale, (double)m->softcap);
        max = fmax(max, p[j]);
    }
    for (uint32_t j = first; j <= last; j++)
        sum += p[j] = exp(p[j] - max);
    for (uint32_t j = first; j <= last; j++)
        for (uint32_t i = 0; i < m->head_dim; i++)
            out[i] += p[j] / sum * v[j * stride + i];
    free(p);
}

/* The attention of a layer: x[n][d_model] -> y[n][d_model]. */
static double *attention(const rose_model *m, uint32_t layer, const double *x, uint32_t n,
                         uint32_t served)
{
    const rose_arch *a = &m->arch;
    const rose_layer *l = &m->layers[layer];
    const rose_mixer *mx = &rose_arch_kind(a, layer)->mixer;
    const double scale = (double)rose_arch_scale(a, layer);
    const uint32_t hd = mx->head_dim, heads = mx->n_heads, kv = mx->n_kv_heads;
    const size_t stride = (size_t)(heads + 2 * kv) * hd;
    double *qkv = linear(&l->m[ROSE_QKV], x, n, a->d_model);
    double *out = golden_alloc((size_t)n * heads * hd, sizeof *out);
    for (uint32_t h = 0; h < heads + kv; h++) { /* queries, then keys */
        double *head = qkv + (size_t)h * hd;
        if (mx->qk_norm) rms_norm(a, h < heads ? &l->q_norm : &l->k_norm, head, n, hd, stride);
        if (mx->rope.dim > 0) rotate(&mx->rope, served, head, n, stride);
    }
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t h = 0; h < heads; h++) {
            const double *k = qkv + (size_t)(heads + h / (heads / kv)) * hd;
            const uint32_t first = mx->window > 0 && t >= mx->window ? t - mx->window + 1 : 0;
            attend(mx, scale, qkv + t * stride + (size_t)h * hd, k, k + (size_t)kv * hd, first, t,
                   stride, out + ((size_t)t * heads + h) * hd);
        }
    double *y = linear(&l->m[ROSE_OUT], out, n, heads * hd);
    free(qkv);
    free(out);
    return y;
}

static double activate(rose_act act, double x)
{
    if (act == ROSE_ACT_SILU) return x / (1 + exp(-x));
    assert_int_equal(act, ROSE_ACT_GELU_TANH);
    return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static double *mlp(const rose_model *m, uint32_t layer, const double *x, uint32_t n)
{
    const rose_layer *l = &m->layers[layer];
    const rose_mlp *p = &rose_arch_kind(&m->arch, layer)->mlp;
    const uint32_t ff = p->d_ff;
    assert_true(p->gated);
    double *wide = linear(&l->m[ROSE_UP], x, n, m->arch.d_model);
    double *h = golden_alloc((size_t)n * ff, sizeof *h);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < ff; i++)
            h[(size_t)t * ff + i] =
                activate(p->act, wide[2 * (size_t)t * ff + i]) * wide[(2 * (size_t)t + 1) * ff + i];
    double *y = linear(&l->m[ROSE_DOWN], h, n, ff);
    free(wide);
    free(h);
    return y;
}

/* x += after(f(before(x))), where f is attention or MLP. */
static void half_layer(const rose_model *m, uint32_t layer, bool is_mlp, double *x, uint32_t n,
                       uint32_t served)
{
    const rose_layer *l = &m->layers[layer];
    const rose_arch *a = &m->arch;
    const rose_norms *const norms = &rose_arch_kind(a, layer)->norms;
    const rose_norm_place place = is_mlp ? norms->mlp : norms->mixer;
    const size_t size = (size_t)n * a->d_model;
    double *h = golden_alloc(size, sizeof *h);
    memcpy(h, x, size * sizeof *h);
    if (place != ROSE_NORM_AFTER)
        rms_norm(a, is_mlp ? &l->ln2_w : &l->ln1_w, h, n, a->d_model, a->d_model);
    double *y = is_mlp ? mlp(m, layer, h, n) : attention(m, layer, h, n, served);
    if (place != ROSE_NORM_BEFORE)
        rms_norm(a, is_mlp ? &l->post2 : &l->post1, y, n, a->d_model, a->d_model);
    for (size_t i = 0; i < size; i++)
        x[i] += y[i];
    free(h);
    free(y);
}

/* logits[n][vocab], to be freed */
static float *forward(const rose_model *m, const uint32_t *ids, uint32_t n, uint32_t served)
{
    const rose_arch *a = &m->arch;
    const uint32_t d = a->d_model;
    double *embed = widen(&m->tok_embed);
    double *x = golden_alloc((size_t)n * d, sizeof *x);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < d; i++)
            x[(size_t)t * d + i] = embed[(size_t)ids[t] * d + i] * (double)a->embed_scale;
    for (uint32_t i = 0; i < a->n_layers; i++) {
        half_layer(m, i, false, x, n, served);
        half_layer(m, i, true, x, n, served);
    }
    rms_norm(a, &m->lnf_w, x, n, d, d);
    const rose_linear head = {.w = {m->head}, .n_parts = 1, .transposed = true};
    double *y = linear(&head, x, n, d);
    float *logits = golden_alloc((size_t)n * a->vocab_size, sizeof *logits);
    for (size_t i = 0; i < (size_t)n * a->vocab_size; i++)
        logits[i] = (float)cap(y[i], (double)a->logit_softcap);
    free(embed);
    free(x);
    free(y);
    return logits;
}

/* The prompt and its continuation in one pass: errors, and the argmax of every step. */
static double check_prompt(const golden *g, const rose_model *m, const golden_prompt *p)
{
    const uint32_t vocab = m->arch.vocab_size, n = p->n_ids + p->n_greedy;
    const uint32_t served = g->served_context != 0 ? g->served_context : m->arch.max_positions;
    uint32_t *ids = golden_alloc(n, sizeof *ids);
    double worst = 0;
    memcpy(ids, p->ids, p->n_ids * sizeof *ids);
    memcpy(ids + p->n_ids, p->greedy, p->n_greedy * sizeof *ids);
    float *logits = forward(m, ids, n, served);
    for (uint32_t i = 0; i < p->n_logits; i++) {
        const float *row = logits + (size_t)p->logits[i].position * vocab;
        worst = fmax(worst, golden_logprob_error(&p->logits[i], row, vocab));
    }
    for (uint32_t i = 0; i < p->n_greedy; i++) {
        const float *row = logits + (size_t)(p->n_ids - 1 + i) * vocab;
        uint32_t best = 0;
        for (uint32_t v = 1; v < vocab; v++)
            if (row[v] > row[best]) best = v;
        if (best != p->greedy[i])
            fail_msg("%s: greedy token %u is %u, not %u", p->name, i, best, p->greedy[i]);
    }
    free(ids);
    free(logits);
    return worst;
}

static void check_family(const char *name)
{
    golden g;
    rose_random_opts o;
    rose_err err = {{0}};
    char path[1024];
    double worst = 0;
    golden_open(&g, name);
    golden_random_opts(&g.random, &o, path);
    empty_folder(scratch);
    if (rose_random_model_write(&o, scratch, &err) != ROSE_OK) fail_msg("%s", err.msg);
    rose_model *m = expect_opens(scratch);
    for (uint32_t i = 0; i < g.n_prompts; i++)
        worst = fmax(worst, check_prompt(&g, m, &g.prompts[i]));
    print_message("%s: largest error of a log-probability %.1e\n", name, worst);
    assert_true(worst <= g.tolerance);
    rose_model_close(m);
    golden_close(&g);
}

static void each_family(void **state)
{
    (void)state;
    const golden_list *all = golden_families();
    for (uint32_t i = 0; i < all->n; i++)
        check_family(all->name[i]);
}

/* Leaves of Gemma's norms those that the places say. */
static void place_norms(rose_model *m, const rose_model *whole, rose_norms n)
{
    for (uint32_t k = 0; k < m->arch.n_kinds; k++)
        m->arch.kinds[k].norms = n;
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        const rose_layer *from = &whole->layers[i];
        rose_layer *l = &m->layers[i];
        const rose_tensor none = {0};
        l->ln1_w = n.mixer != ROSE_NORM_AFTER ? from->ln1_w : none;
        l->post1 = n.mixer != ROSE_NORM_BEFORE ? from->post1 : none;
        l->ln2_w = n.mlp != ROSE_NORM_AFTER ? from->ln2_w : none;
        l->post2 = n.mlp != ROSE_NORM_BEFORE ? from->post2 : none;
    }
}

/* The CPU backend with norms at places that no family has, in prompt and decode steps. */
static void norm_places(void **state)
{
    (void)state;
    enum { N_PROMPT = 40, N_TOKENS = 48 };
    rose_random_opts o;
    rose_err err = {{0}};
    char config[1024];
    rose_random_opts_default(&o);
    golden_path(config, sizeof config, "tests/golden/families/gemma3.config.json");
    o.config = config;
    o.init_std = 0.1f;
    o.seed = fx_seed();
    empty_folder(scratch);
    if (rose_random_model_write(&o, scratch, &err) != ROSE_OK) fail_msg("%s", err.msg);
    rose_model *m = expect_opens(scratch), *whole = expect_opens(scratch);
    const size_t n_values = (size_t)N_TOKENS * m->arch.vocab_size;
    for (int places = 0; places < 9; places++) {
        double worst = 0, size = 0;
        place_norms(m, whole,
                    (rose_norms){(rose_norm_place)(places / 3), (rose_norm_place)(places % 3)});
        fx_backend b = fx_open(m, ROSE_COMPUTE_F32, "auto", 2, 1);
        fx_seq s = fx_seq_make(m, fx_seed(), N_TOKENS);
        fx_run(&b, &s, N_PROMPT, 16);
        fx_run(&b, &s, N_TOKENS, 1);
        float *want = forward(m, s.tokens, N_TOKENS, m->arch.max_positions);
        for (size_t i = 0; i < n_values; i++) {
            const double e = fabs((double)want[i] - (double)s.logits[i]);
            assert_true(isfinite(e));
            worst = fmax(worst, e);
            size = fmax(size, fabs((double)want[i]));
        }
        if (!(worst <= 1e-4 * size)) fail_msg("places %d: off by %g of %g", places, worst, size);
        free(want);
        fx_seq_drop(&b, &s);
        fx_seq_free(&s);
        fx_close(&b);
    }
    rose_model_close(whole);
    rose_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_family),
                                       cmocka_unit_test(norm_places)};
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}
