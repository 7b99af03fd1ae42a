/* tests/backend/test_quant_model.c - models whose matrices are quantized, of one type and mixed, on
 * the CPU backend: with fp32 activations the bits of the widened model, with int8 activations near
 * them, and the same bits in every way of running a sequence. */
#define N_OTHERS 15
#include "backend/cpu_ways.h"
#include "backend/golden_checks.h"

/* Types of the parts of qkv, of proj, of gate and up, of fc2, of head and embedding. */
typedef struct recipe {
    const char *name, *family;
    rose_format qkv[3], proj, fc1[2], fc2, head, embed;
    bool permuted; /* as GGUF files keep the rows of q and k */
} recipe;

static const recipe g_recipes[] = {
    {"as llama.cpp's Q4_K_M",
     NULL,
     {ROSE_Q4_K, ROSE_Q4_K, ROSE_Q6_K},
     ROSE_Q4_K,
     {ROSE_Q4_K, ROSE_Q4_K},
     ROSE_Q6_K,
     ROSE_Q6_K,
     ROSE_Q4_K,
     true},
    {"tied, as SmolLM2",
     "families/smollm3",
     {ROSE_Q4_1, ROSE_Q4_1, ROSE_Q4_1},
     ROSE_Q4_1,
     {ROSE_Q4_1, ROSE_Q4_1},
     ROSE_Q4_1,
     ROSE_Q8_0,
     ROSE_Q8_0,
     true},
    {"all types beside each other, biases",
     "families/qwen2",
     {ROSE_Q8_0, ROSE_Q4_0, ROSE_Q5_1},
     ROSE_Q5_0,
     {ROSE_Q4_0, ROSE_Q8_0},
     ROSE_Q5_K,
     ROSE_F16,
     ROSE_Q5_0,
     false},
    {"norms after, a scaled embedding",
     "families/gemma3",
     {ROSE_BF16, ROSE_Q4_1, ROSE_Q4_1},
     ROSE_Q4_K,
     {ROSE_Q4_0, ROSE_Q4_0},
     ROSE_Q4_K,
     ROSE_Q5_1,
     ROSE_Q5_1,
     false},
    {"fused parts",
     "families/phi3",
     {ROSE_Q4_0},
     ROSE_Q8_0,
     {ROSE_Q8_0},
     ROSE_Q6_K,
     ROSE_Q4_1,
     ROSE_Q8_0,
     false},
};
enum { N_RECIPES = sizeof g_recipes / sizeof g_recipes[0], MAX_OWNED = 128 };

/* Two models of the same values: blocks, and the fp32 that they stand for. */
typedef struct twins {
    rose_model *blocks, *wide;
    struct rose_weights *files[2]; /* not the model's while the test runs: the backend would drop
                                      the pages of matrices that are ours */
    void *owned[MAX_OWNED];
    size_t n_owned;
} twins;

static void *own(twins *t, size_t bytes)
{
    void *p = malloc(bytes);
    assert_true(p != NULL && t->n_owned < MAX_OWNED);
    t->owned[t->n_owned++] = p;
    return p;
}

static void put_f16(uint8_t *p, float x)
{
    const uint16_t h = rose_f32_to_f16(x);
    memcpy(p, &h, sizeof h);
}

/* Blocks of random integers whose values are about spread in size. */
static void fill_blocks(fx_random *r, uint8_t *out, rose_format t, uint64_t n, float spread)
{
    const uint64_t size = rose_values_bytes(t, rose_formats[t].block),
                   bytes = rose_values_bytes(t, n);
    for (uint64_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)fx_below(r, 256);
    for (uint8_t *b = out; b < out + bytes; b += size) {
        const float x = spread * (0.5f + fx_uniform(r));
        switch ((int)t) {
        case ROSE_Q8_0:
            put_f16(b, x / 128);
            break;
        case ROSE_Q4_0:
            put_f16(b, x / 8);
            break;
        case ROSE_Q5_0:
            put_f16(b, x / 16);
            break;
        case ROSE_Q4_1:
        case ROSE_Q5_1:
            put_f16(b, x / (t == ROSE_Q4_1 ? 8 : 16));
            put_f16(b + 2, -x);
            break;
        case ROSE_Q4_K:
        case ROSE_Q5_K:
            put_f16(b, x / (t == ROSE_Q4_K ? 8 * 32 : 16 * 32));
            put_f16(b + 2, x / 32);
            break;
        default: /* Q6_K */
            put_f16(b + 208, x / (64 * 32));
            break;
        }
    }
}

/* The values of t as another type (random ones, for blocks) into a, and as fp32 into b. */
static void make_twins(twins *all, fx_random *r, rose_tensor *a, rose_tensor *b, rose_format t)
{
    const uint64_t n = rose_tensor_n(a);
    const float spread = 1.5f / sqrtf((float)a->shape[1]);
    uint8_t *data = own(all, rose_values_bytes(t, n));
    float *wide = own(all, n * sizeof *wide);

    if (rose_format_is_quant(t)) fill_blocks(r, data, t, n, spread);
    for (uint64_t i = 0; i < n && !rose_format_is_quant(t); i++) {
        const float x = spread * (2 * fx_uniform(r) - 1);
        const uint16_t h = t == ROSE_F16 ? rose_f32_to_f16(x) : rose_f32_to_bf16(x);
        memcpy(data + i * sizeof h, &h, sizeof h);
    }
    a->data = data;
    a->dtype = t;
    rose_tensor_read_f32(a, 0, n, wide);
    b->data = wide;
    b->dtype = ROSE_F32;
}

static void linear_twins(twins *all, fx_random *r, rose_linear *a, rose_linear *b,
                         const rose_format *types)
{
    for (uint32_t i = 0; i < a->n_parts; i++)
        make_twins(all, r, &a->w[i], &b->w[i], types[i]);
}

/* A width that K types divide. */
static rose_model *wide_model(void)
{
    char dir[] = "/tmp/rose-quant-XXXXXX", command[64];
    rose_random_opts o;
    rose_err err = {""};
    rose_model *m = NULL;
    rose_random_opts_default(&o);
    o.arch = "llama";
    o.n_layers = 2;
    o.d_model = 256;
    o.n_heads = 8;
    o.n_kv_heads = 2;
    o.d_ff = 512;
    o.vocab_size = 330;
    o.max_positions = 256;
    o.tied_head = false;
    assert_non_null(mkdtemp(dir));
    if (rose_random_model_write(&o, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
    if (rose_model_open(&m, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
    snprintf(command, sizeof command, "rm -rf %s", dir); /* the mappings stay */
    assert_int_equal(system(command), 0);
    return m;
}

static rose_model *model_of(const recipe *c)
{
    golden g;
    if (c->family == NULL) return wide_model();
    golden_open(&g, c->family);
    rose_model *m = golden_model(&g);
    golden_close(&g);
    return m;
}

static twins twins_open(const recipe *c)
{
    twins t = {.blocks = model_of(c), .wide = model_of(c)};
    rose_model *a = t.blocks, *b = t.wide;
    fx_random r = {.seed = fx_seed() + 3};
    for (uint32_t i = 0; i < a->arch.n_layers; i++) {
        rose_layer *x = &a->layers[i], *y = &b->layers[i];
        linear_twins(&t, &r, &x->m[ROSE_QKV], &y->m[ROSE_QKV], c->qkv);
        linear_twins(&t, &r, &x->m[ROSE_OUT], &y->m[ROSE_OUT], &c->proj);
        linear_twins(&t, &r, &x->m[ROSE_UP], &y->m[ROSE_UP], c->fc1);
        linear_twins(&t, &r, &x->m[ROSE_DOWN], &y->m[ROSE_DOWN], &c->fc2);
        for (uint32_t p = 0; c->permuted && p < 2; p++)
            x->m[ROSE_QKV].permuted_heads[p] = y->m[ROSE_QKV].permuted_heads[p] =
                p == 0 ? a->arch.kinds[0].mixer.n_heads : a->arch.kinds[0].mixer.n_kv_heads;
    }
    make_twins(&t, &r, &a->tok_embed, &b->tok_embed, c->embed);
    if (!a->arch.tied_head) make_twins(&t, &r, &a->head, &b->head, c->head);
    if (a->arch.tied_head) {
        a->head = a->tok_embed;
        b->head = b->tok_embed;
    }
    a->has_blocks = true;
    t.files[0] = a->weights;
    t.files[1] = b->weights;
    a->weights = b->weights = NULL;
    return t;
}

static void twins_close(twins *t)
{
    t->blocks->weights = t->files[0];
    t->wide->weights = t->files[1];
    rose_model_close(t->blocks);
    rose_model_close(t->wide);
    for (size_t i = 0; i < t->n_owned; i++)
        free(t->owned[i]);
}

/* fp32: the sums of rule 1 over the widened values. bf16: the widened values, rounded. Both whether
 * the matrices are blocks in memory or not. */
static void test_widened(void **state)
{
    static const rose_compute dtypes[] = {ROSE_COMPUTE_F32, ROSE_COMPUTE_BF16};
    (void)state;
    for (int i = 0; i < N_RECIPES; i++) {
        twins t = twins_open(&g_recipes[i]);
        for (int j = 0; j < 2; j++) {
            fx_seq a = baseline(t.blocks, dtypes[j]), b = baseline(t.wide, dtypes[j]);
            fx_same(t.wide, &b, &a, g_recipes[i].name);
            fx_seq_free(&a);
            fx_seq_free(&b);
        }
        twins_close(&t);
    }
}

/* int8 activations are near fp32's and are not fp32's. */
static void test_near(void **state)
{
    (void)state;
    for (int i = 0; i < N_RECIPES; i++) {
        twins t = twins_open(&g_recipes[i]);
        fx_seq a = baseline(t.blocks, ROSE_COMPUTE_AUTO), b = baseline(t.wide, ROSE_COMPUTE_F32);
        const size_t n = (size_t)N_TOKENS * t.wide->arch.vocab_size;
        double diff = 0, size = 0;
        for (size_t k = 0; k < n; k++) {
            const double e = (double)a.logits[k] - (double)b.logits[k], x = (double)b.logits[k];
            diff += e * e;
            size += x * x;
        }
        print_message("%s: relative error %.4f\n", g_recipes[i].name, sqrt(diff / size));
        assert_true(diff > 0 && sqrt(diff / size) < 0.05);
        fx_seq_free(&a);
        fx_seq_free(&b);
        twins_close(&t);
    }
}

static void test_same_bits(void **state)
{
    static const rose_compute dtypes[] = {ROSE_COMPUTE_AUTO, ROSE_COMPUTE_F32};
    (void)state;
    print_message("levels: scalar .. %s\n", rose_isa_name(rose_isa_probe()));
    for (int i = 0; i < (FEW ? 2 : N_RECIPES); i++) {
        twins t = twins_open(&g_recipes[i]);
        for (int j = 0; j < (FEW ? 1 : 2); j++) {
            fx_seq want = baseline(t.blocks, dtypes[j]);
            check_chunks(t.blocks, dtypes[j], &want, g_recipes[i].name);
            check_quiet(t.blocks, dtypes[j], &want, g_recipes[i].name);
            check_threads(t.blocks, dtypes[j], &want, g_recipes[i].name);
            check_isas(t.blocks, dtypes[j], &want, g_recipes[i].name);
            check_among(t.blocks, dtypes[j], &want, g_recipes[i].name);
            fx_seq_free(&want);
        }
        twins_close(&t);
    }
}

/* What each matrix becomes, and that no plan counts fp32 copies. */
static void expect_kept(const twins *t, rose_compute dtype, const rose_tensor *w, const char *type,
                        bool widened)
{
    rose_backend_opts o;
    rose_memory_plan p;
    rose_err err = {""};
    rose_backend_opts_default(&o);
    o.dtype = dtype;
    if (rose_backend_cpu()->plan(t->blocks, &o, &p, &err) != ROSE_OK) fail_msg("%s", err.msg);
    const rose_kept kept = rose_backend_cpu()->kept(t->blocks, &p, w->data);
    if (type == NULL) {
        assert_null(kept.type);
        return;
    }
    assert_non_null(kept.type);
    assert_string_equal(kept.type, type);
    assert_int_equal(kept.widened, widened);
}

static void test_kept(void **state)
{
    (void)state;
    twins t = twins_open(&g_recipes[0]);
    const rose_layer *l = &t.blocks->layers[1];
    expect_kept(&t, ROSE_COMPUTE_AUTO, &l->m[ROSE_QKV].w[1], "Q4_K", false);
    expect_kept(&t, ROSE_COMPUTE_AUTO, &l->m[ROSE_QKV].w[2], "Q6_K", false);
    expect_kept(&t, ROSE_COMPUTE_AUTO, &t.blocks->tok_embed, "Q4_K", false);
    expect_kept(&t, ROSE_COMPUTE_AUTO, &t.blocks->head, "Q6_K", false);
    expect_kept(&t, ROSE_COMPUTE_F32, &l->m[ROSE_DOWN].w[0], "Q6_K", false);
    expect_kept(&t, ROSE_COMPUTE_BF16, &l->m[ROSE_DOWN].w[0], "BF16", true);
    expect_kept(&t, ROSE_COMPUTE_AUTO, &l->ln1_w, NULL, false);
    twins_close(&t);

    t = twins_open(&g_recipes[2]);
    l = &t.blocks->layers[0];
    expect_kept(&t, ROSE_COMPUTE_AUTO, &l->m[ROSE_QKV].w[1], "Q4_0", false);
    expect_kept(&t, ROSE_COMPUTE_AUTO, &l->m[ROSE_QKV].w[2], "BF16", true);
    expect_kept(&t, ROSE_COMPUTE_F32, &l->m[ROSE_QKV].w[2], "F32", true);
    expect_kept(&t, ROSE_COMPUTE_AUTO, &l->m[ROSE_UP].w[0], "BF16", true); /* gate and up differ */
    expect_kept(&t, ROSE_COMPUTE_AUTO, &l->m[ROSE_UP].w[1], "BF16", true);
    expect_kept(&t, ROSE_COMPUTE_AUTO, &t.blocks->head, "BF16", false); /* F16 */
    expect_kept(&t, ROSE_COMPUTE_F32, &t.blocks->head, "F32", true);
    expect_kept(&t, ROSE_COMPUTE_AUTO, &t.blocks->tok_embed, "Q5_0", false);
    twins_close(&t);
}

static void test_plan(void **state)
{
    rose_backend_opts o;
    rose_memory_plan p;
    rose_err err = {""};
    (void)state;
    twins t = twins_open(&g_recipes[0]);
    const rose_arch *a = &t.blocks->arch;
    rose_backend_opts_default(&o);
    assert_int_equal(rose_backend_cpu()->plan(t.blocks, &o, &p, &err), ROSE_OK);
    assert_true(p.int8_activations && p.dtype == ROSE_COMPUTE_F32);
    /* blocks of all matrices, with Q4_K's factors as bytes; the rest is norms and rotary tables */
    uint64_t least = rose_values_bytes(ROSE_Q4_K, rose_tensor_n(&t.blocks->tok_embed));
    least += rose_panels_bytes(ROSE_Q6_K, a->d_model, a->vocab_size);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const uint32_t o_width = a->kinds[0].mixer.n_heads * a->kinds[0].mixer.head_dim,
                       kv = a->kinds[0].mixer.n_kv_heads * a->kinds[0].mixer.head_dim;
        least += rose_panels_bytes(ROSE_Q4_K, a->d_model, o_width + kv);
        least += rose_panels_bytes(ROSE_Q6_K, a->d_model, kv);
        least += rose_panels_bytes(ROSE_Q4_K, o_width, a->d_model);
        least += rose_panels_bytes(ROSE_Q4_K, a->d_model, 2 * a->kinds[0].mlp.d_ff);
        least += rose_panels_bytes(ROSE_Q6_K, a->kinds[0].mlp.d_ff, a->d_model);
    }
    const uint64_t tables = (uint64_t)a->max_positions * a->kinds[0].mixer.head_dim * sizeof(float);
    assert_in_range(p.weights, least + tables, least + tables + 16384);
    assert_in_range(p.pools[0].block_bytes, 1,
                    rose_cpu_kv_page_bytes(a, a->n_layers, true)); /* KV in bf16 */

    o.quantization = ROSE_QUANT_INT8;
    assert_int_equal(rose_backend_cpu()->plan(t.blocks, &o, &p, &err), ROSE_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "quantized already"));
    twins_close(&t);
}

int main(void)
{
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widened),   cmocka_unit_test(test_near),
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_kept),
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
