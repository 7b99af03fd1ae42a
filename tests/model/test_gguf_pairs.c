/* One model as safetensors and as GGUF gives a backend the same numbers: the same description, the
 * same frequencies to the bit, and the same weights in the same order. The GGUF file is written
 * from the folder by the rules of llama.cpp's converter. */
#include "model/gguf_fixture.h"

#include "arch_view.h"
#include "model/convert.h"
#include "model/rope.h"

enum { D = 32, HEADS = 4, HEAD = 16, FF = 64, VOCAB = 300, LAYERS = 6, CONTEXT = 512 };

#define COMMON                                                                                     \
    "\"hidden_size\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "                \
    "\"head_dim\": 16, \"intermediate_size\": 64, \"num_hidden_layers\": 6, "                      \
    "\"max_position_embeddings\": 512, \"vocab_size\": 300, \"rms_norm_eps\": 1e-5, "              \
    "\"bos_token_id\": 1, \"eos_token_id\": 2, \"rope_theta\": 500000.0"

typedef struct pair {
    const char *architecture; /* in the GGUF file */
    bool permuted, plus_one;
    const char *config;
} pair;

static const pair pairs[] = {
    {"llama", true, false,
     "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, "
     "\"attention_bias\": true, \"mlp_bias\": true, " COMMON "}"},
    {"llama", true, false,
     "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"tie_word_embeddings\": true, " COMMON
     ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0, \"low_freq_factor\": 1.0, "
     "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}"},
    {"llama", true, false,
     "{\"model_type\": \"mistral\", \"hidden_act\": \"silu\", \"sliding_window\": 100, "
     "\"tie_word_embeddings\": false, " COMMON "}"},
    {"qwen2", false, false,
     "{\"model_type\": \"qwen2\", \"hidden_act\": \"silu\", \"tie_word_embeddings\": true, " COMMON
     ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
     "\"original_max_position_embeddings\": 512}}"},
    {"qwen3", false, false,
     "{\"model_type\": \"qwen3\", \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, " COMMON
     "}"},
    {"smollm3", true, false,
     "{\"model_type\": \"smollm3\", \"hidden_act\": \"silu\", \"tie_word_embeddings\": "
     "true, " COMMON "}"},
    {"gemma3", false, true,
     "{\"model_type\": \"gemma3_text\", \"hidden_activation\": \"gelu_pytorch_tanh\", "
     "\"sliding_window\": 64, \"query_pre_attn_scalar\": 16, \"rope_local_base_freq\": 10000.0, "
     "\"final_logit_softcapping\": 30.0, \"rope_scaling\": {\"rope_type\": \"linear\", "
     "\"factor\": 8.0}, " COMMON "}"},
    {"phi3", false, false,
     "{\"model_type\": \"phi3\", \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, "
     "\"sliding_window\": 200, \"original_max_position_embeddings\": 128, "
     "\"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": \"longrope\", "
     "\"short_factor\": [1.0, 1.1, 1.2, 1.3], \"long_factor\": [1.0, 2.5, 3.0, 7.5]}, " COMMON "}"},
};

/* ---- the folder as a GGUF file ---- */

static void add_data(gw *w, const float *values, size_t n)
{
    gw_bytes(&w->data, values, n * sizeof *values);
    gw_pad(&w->data, w->alignment);
}

/* A vector. plus_one: the converter adds 1 to the norms of Gemma. */
static void add_vector(gw *w, const char *name, const rose_tensor *t, bool plus_one)
{
    const size_t n = (size_t)rose_tensor_n(t);
    if (n == 0) return;
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    rose_tensor_read_f32(t, 0, n, v);
    for (size_t i = 0; plus_one && i < n; i++)
        v[i] += 1.0f;
    gw_add(w, name, 0, n, 0);
    add_data(w, v, n);
    free(v);
}

/* A matrix or a bias (one column). heads: the converter's reshape of q and k to [heads][2][half],
 * then a swap of the last two axes. */
static void add_rows(gw *w, const char *name, const rose_tensor *t, uint32_t heads)
{
    const size_t rows = (size_t)t->shape[0], cols = (size_t)(rose_tensor_n(t) / (rows + !rows));
    if (t->data == NULL) return;
    float *v = malloc(rows * cols * sizeof *v);
    assert_non_null(v);
    size_t at = 0;
    if (heads == 0) rose_tensor_read_f32(t, 0, rows * cols, v);
    for (size_t h = 0, half = heads > 0 ? rows / heads / 2 : 0; h < heads; h++)
        for (size_t i = 0; i < half; i++)
            for (size_t j = 0; j < 2; j++, at += cols)
                rose_tensor_read_f32(t, ((h * 2 + j) * half + i) * cols, cols, v + at);
    gw_add(w, name, 0, rows, t->n_dims > 1 ? cols : 0);
    add_data(w, v, rows * cols);
    free(v);
}

static const char *layer_name(int layer, const char *name)
{
    static char full[128];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    return full;
}

static void add_linear(gw *w, int layer, const rose_linear *l, const char *const names[3],
                       const uint32_t heads[3])
{
    for (uint32_t p = 0; p < l->n_parts; p++) {
        char name[64];
        const uint32_t h = heads != NULL ? heads[p] : 0;
        snprintf(name, sizeof name, "%s.weight", names[p]);
        add_rows(w, layer_name(layer, name), &l->w[p], h);
        snprintf(name, sizeof name, "%s.bias", names[p]);
        add_rows(w, layer_name(layer, name), &l->b[p], h);
    }
}

static void add_layer(gw *w, const pair *p, const rose_model *m, int i)
{
    static const char *const parts[3] = {"attn_q", "attn_k", "attn_v"}, *const qkv[3] = {
                                                                            "attn_qkv"};
    static const char *const proj[3] = {"attn_output"}, *const down[3] = {"ffn_down"};
    static const char *const gated[3] = {"ffn_gate", "ffn_up"}, *const up[3] = {"ffn_up"};
    const rose_layer *l = &m->layers[i];
    const uint32_t heads[3] = {p->permuted ? m->arch.kinds[0].mixer.n_heads : 0,
                               p->permuted ? m->arch.kinds[0].mixer.n_kv_heads : 0, 0};
    const bool one = p->plus_one;
    add_vector(w, layer_name(i, "attn_norm.weight"), &l->ln1_w, one);
    add_vector(w, layer_name(i, "ffn_norm.weight"), &l->ln2_w, one);
    add_vector(w, layer_name(i, "attn_q_norm.weight"), &l->q_norm, one);
    add_vector(w, layer_name(i, "attn_k_norm.weight"), &l->k_norm, one);
    add_vector(w, layer_name(i, "post_attention_norm.weight"), &l->post1, one);
    add_vector(w, layer_name(i, "post_ffw_norm.weight"), &l->post2, one);
    add_linear(w, i, &l->m[ROSE_QKV], l->m[ROSE_QKV].n_parts == 3 ? parts : qkv, heads);
    add_linear(w, i, &l->m[ROSE_OUT], proj, NULL);
    add_linear(w, i, &l->m[ROSE_UP], l->m[ROSE_UP].n_parts == 2 ? gated : up, NULL);
    add_linear(w, i, &l->m[ROSE_DOWN], down, NULL);
}

/* The converter's divisors of Llama 3. */
static void add_llama3(gw *w, const rose_rope *r)
{
    float divisors[HEAD / 2];
    for (int i = 0; i < HEAD / 2; i++) {
        const double freq = 1 / pow((double)r->theta, 2.0 * i / HEAD);
        const double length = 2 * 3.14159265358979323846 / freq, old = r->original_max_positions;
        const double low = (double)r->low_freq_factor, high = (double)r->high_freq_factor;
        const double smooth = (old / length - low) / (high - low), factor = (double)r->factor;
        divisors[i] = (float)(length < old / high  ? 1
                              : length > old / low ? factor
                                                   : 1 / ((1 - smooth) / factor + smooth));
    }
    gw_add(w, "rope_freqs.weight", 0, HEAD / 2, 0);
    add_data(w, divisors, HEAD / 2);
}

static void add_rope(gw *w, const char *arch, const rose_arch *a)
{
    const rose_rope *r = view_full(a);
    char key[128];
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    gg_f32(w, arch, "rope.freq_base", r->theta);
    gg_u32(w, arch, "rope.dimension_count", r->dim);
    if (view_window(a) != 0) gg_u32(w, arch, "attention.sliding_window", view_window(a));
    if (r->kind == ROSE_ROPE_LLAMA3) add_llama3(w, r);
    if (r->kind == ROSE_ROPE_LINEAR || r->kind == ROSE_ROPE_YARN) {
        gw_string(w, key, r->kind == ROSE_ROPE_YARN ? "yarn" : "linear");
        gg_f32(w, arch, "rope.scaling.factor", r->factor);
    }
    if (r->kind == ROSE_ROPE_YARN || r->kind == ROSE_ROPE_LONGROPE)
        gg_u32(w, arch, "rope.scaling.original_context_length", r->original_max_positions);
    if (r->kind != ROSE_ROPE_LONGROPE) return;
    const double scale = (double)a->max_positions / r->original_max_positions;
    gg_f32(w, arch, "rope.scaling.attn_factor",
           (float)sqrt(1 + log(scale) / log((double)r->original_max_positions)));
    gw_add(w, "rope_factors_long.weight", 0, r->dim / 2, 0);
    add_data(w, r->long_factor, r->dim / 2);
    gw_add(w, "rope_factors_short.weight", 0, r->dim / 2, 0);
    add_data(w, r->short_factor, r->dim / 2);
}

static gw *convert(const pair *p, const rose_model *m)
{
    gw *w = gw_new();
    const char *arch = p->architecture;
    gw_string(w, "general.architecture", arch);
    gg_u32(w, arch, "block_count", m->arch.n_layers);
    gg_u32(w, arch, "embedding_length", m->arch.d_model);
    gg_u32(w, arch, "attention.head_count", m->arch.kinds[0].mixer.n_heads);
    gg_u32(w, arch, "attention.head_count_kv", m->arch.kinds[0].mixer.n_kv_heads);
    gg_u32(w, arch, "attention.key_length", m->arch.kinds[0].mixer.head_dim);
    gg_u32(w, arch, "feed_forward_length", m->arch.kinds[0].mlp.d_ff);
    gg_u32(w, arch, "context_length", CONTEXT); /* config.json's, before a scaling */
    gg_f32(w, arch, "attention.layer_norm_rms_epsilon", m->arch.norm_eps);
    if (m->arch.logit_softcap > 0)
        gg_f32(w, arch, "final_logit_softcapping", m->arch.logit_softcap);
    gw_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)m->arch.bos_id);
    gw_u32(w, "tokenizer.ggml.eos_token_id", m->arch.eos_ids[0]);
    add_rows(w, "token_embd.weight", &m->tok_embed, 0);
    add_vector(w, "output_norm.weight", &m->lnf_w, p->plus_one);
    if (!m->arch.tied_head) add_rows(w, "output.weight", &m->head, 0);
    add_rope(w, arch, &m->arch);
    for (int i = 0; i < LAYERS; i++)
        add_layer(w, p, m, i);
    return w;
}

/* ---- the comparison ---- */

static void same_vector(const rose_tensor *a, const rose_tensor *b, bool plus_one)
{
    const uint64_t n = rose_tensor_n(a);
    assert_int_equal(rose_tensor_n(b), n);
    for (uint64_t i = 0; i < n; i++) {
        float x, y;
        rose_tensor_read_f32(a, i, 1, &x);
        rose_tensor_read_f32(b, i, 1, &y);
        if (plus_one) x += 1.0f; /* as the kernel of such a norm computes it */
        assert_true(x == y);
    }
}

static void same_linear(const rose_linear *a, const rose_linear *b)
{
    assert_int_equal(a->n_parts, b->n_parts);
    assert_true(a->transposed && b->transposed);
    for (uint32_t p = 0; p < a->n_parts; p++) {
        const uint64_t rows = a->w[p].shape[0], cols = a->w[p].shape[1], n = rows * cols;
        assert_int_equal(b->w[p].shape[0], rows);
        assert_int_equal(b->w[p].shape[1], cols);
        assert_true((a->b[p].data == NULL) == (b->b[p].data == NULL));
        float *x = malloc(2 * n * sizeof *x), *y = x + n;
        assert_non_null(x);
        rose_linear_copy_rows(a, p, 0, rows, x);
        rose_linear_copy_rows(b, p, 0, rows, y);
        assert_memory_equal(x, y, n * sizeof *x);
        rose_linear_copy_bias(a, p, 0, rows, x);
        rose_linear_copy_bias(b, p, 0, rows, y);
        assert_memory_equal(x, y, rows * sizeof *x);
        free(x);
    }
}

static void same_rope(const rose_rope *a, const rose_rope *b, uint32_t longest)
{
    const uint32_t contexts[] = {64, CONTEXT, longest};
    assert_int_equal(a->dim, b->dim);
    for (int c = 0; c < 3; c++) {
        float x[HEAD / 2] = {0}, y[HEAD / 2] = {0}, xs = 0, ys = 1;
        rose_rope_table(a, contexts[c], x, &xs);
        rose_rope_table(b, contexts[c], y, &ys);
        assert_memory_equal(x, y, sizeof x);
        assert_true(xs == ys);
    }
}

static void same_arch(const rose_arch *a, const rose_arch *b, bool plus_one)
{
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->max_positions, b->max_positions);
    assert_int_equal(a->vocab_size, b->vocab_size);
    assert_true(a->norm_eps == b->norm_eps && a->embed_scale == b->embed_scale);
    assert_true(a->kinds[0].mixer.softcap == b->kinds[0].mixer.softcap &&
                a->logit_softcap == b->logit_softcap);
    assert_true(a->norm == b->norm &&
                !memcmp(&a->kinds[0].norms, &b->kinds[0].norms, sizeof a->kinds[0].norms) &&
                a->kinds[0].mlp.act == b->kinds[0].mlp.act);
    assert_true(a->norm_plus_one == plus_one && !b->norm_plus_one);
    assert_true(a->kinds[0].mixer.qk_norm == b->kinds[0].mixer.qk_norm &&
                a->kinds[0].mlp.gated == b->kinds[0].mlp.gated && a->pos == b->pos);
    assert_true(a->kinds[0].mixer.qkv_bias == b->kinds[0].mixer.qkv_bias &&
                a->kinds[0].mixer.o_bias == b->kinds[0].mixer.o_bias);
    assert_true(a->kinds[0].mlp.bias == b->kinds[0].mlp.bias && a->tied_head == b->tied_head);
    assert_true(view_window(a) == view_window(b) && a->bos_id == b->bos_id);
    assert_int_equal(b->n_eos, 1);
    assert_int_equal(a->eos_ids[0], b->eos_ids[0]);
    assert_memory_equal(a->kind_of, b->kind_of, sizeof a->kind_of);
    assert_int_equal(a->n_kinds, b->n_kinds);
    for (uint32_t i = 0; i < a->n_kinds; i++) {
        const rose_mixer *x = &a->kinds[i].mixer, *y = &b->kinds[i].mixer;
        assert_true(x->window == y->window && x->scale == y->scale);
        same_rope(&x->rope, &y->rope, a->max_positions);
    }
}

static void same_layer(const rose_layer *a, const rose_layer *b, bool plus_one)
{
    same_vector(&a->ln1_w, &b->ln1_w, plus_one);
    same_vector(&a->ln2_w, &b->ln2_w, plus_one);
    same_vector(&a->post1, &b->post1, plus_one);
    same_vector(&a->post2, &b->post2, plus_one);
    same_vector(&a->q_norm, &b->q_norm, plus_one);
    same_vector(&a->k_norm, &b->k_norm, plus_one);
    same_linear(&a->m[ROSE_QKV], &b->m[ROSE_QKV]);
    same_linear(&a->m[ROSE_OUT], &b->m[ROSE_OUT]);
    same_linear(&a->m[ROSE_UP], &b->m[ROSE_UP]);
    same_linear(&a->m[ROSE_DOWN], &b->m[ROSE_DOWN]);
}

static void same(void **state)
{
    char dir[512];
    (void)state;
    join(dir, sizeof dir, scratch, "folder");
    for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
        const pair *p = &pairs[k];
        char config[600];
        rose_random_opts o;
        rose_err err = {{0}};
        put_text(scratch, "config.json", p->config);
        join(config, sizeof config, scratch, "config.json");
        rose_random_opts_default(&o);
        o.config = config;
        o.seed = k;
        if (rose_random_model_write(&o, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
        rose_model *a = expect_opens(dir);
        gw *w = convert(p, a);
        gw_put(w, scratch, "m.gguf");
        gw_free(w);
        join(config, sizeof config, scratch, "m.gguf");
        rose_model *b = expect_opens(config);
        print_message("%s as %s\n", a->arch.model_type, p->architecture);
        same_arch(&a->arch, &b->arch, p->plus_one);
        same_linear(&(rose_linear){.w = {a->tok_embed}, .n_parts = 1, .transposed = true},
                    &(rose_linear){.w = {b->tok_embed}, .n_parts = 1, .transposed = true});
        same_linear(&(rose_linear){.w = {a->head}, .n_parts = 1, .transposed = true},
                    &(rose_linear){.w = {b->head}, .n_parts = 1, .transposed = true});
        same_vector(&a->lnf_w, &b->lnf_w, p->plus_one);
        for (int i = 0; i < LAYERS; i++)
            same_layer(&a->layers[i], &b->layers[i], p->plus_one);
        rose_model_close(a);
        rose_model_close(b);
        empty_folder(dir);
        rmdir(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same)};
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}
