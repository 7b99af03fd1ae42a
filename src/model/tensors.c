/* model/tensors.c - the tensors of all families: one table of roles and shapes, with a column of
 * names for each naming scheme. The architecture decides which tensors a model has. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "model/family.h"

/* Names of buffers with causal masks, which older GPT-2 weight files contain. */
static const char *const ignored_gpt2[] = {".attn.bias", ".attn.masked_bias", NULL};
/* Older files carry the table that rope.c computes. */
static const char *const ignored_llama[] = {".rotary_emb.inv_freq", NULL};
/* Frequencies of RoPE, which gguf_rope.c reads by itself, and old copies of them. */
static const char *const ignored_gguf[] = {
    "rope_freqs.weight",     "rope_factors_long.weight", "rope_factors_short.weight",
    ".attn_rot_embd.weight", ".attn_rot_embd",           NULL};

enum { GPT2, LLAMA, GGUF, N_NAMINGS };

const rose_naming rose_naming_gpt2 = {.column = GPT2,
                                      .prefix = "transformer.",
                                      .layer_prefix = "h.",
                                      .head_name = "lm_head.weight",
                                      .ignored = ignored_gpt2};
const rose_naming rose_naming_llama = {.column = LLAMA,
                                       .prefix = "model.",
                                       .layer_prefix = "layers.",
                                       .head_name = "lm_head.weight",
                                       .transposed = true,
                                       .ignored = ignored_llama};
const rose_naming rose_naming_gguf = {.column = GGUF,
                                      .prefix = "",
                                      .layer_prefix = "blk.",
                                      .head_name = "output.weight",
                                      .transposed = true,
                                      .ignored = ignored_gguf};

/* The dimensions that appear in shapes; dim_size gives their values. */
typedef enum dim {
    NONE, /* no second dimension: the tensor is a vector */
    VOCAB,
    POS,
    MODEL,
    HEAD, /* head_dim */
    Q,    /* n_heads head_dim */
    KV,   /* n_kv_heads head_dim */
    QKV,  /* (n_heads + 2 n_kv_heads) head_dim */
    FF,
    FC1 /* d_ff, or 2 d_ff: gate and up in one matrix */
} dim;

/* What a model must have for a row of the table to apply; 0 = always. */
enum {
    LAYER_NORM = 1,
    LEARNED_POS = 2,
    POST1 = 4, /* the mixer's output is normed */
    NO_POST1 = 8,
    QK_NORM = 16,
    FUSED = 32,
    PARTS = 64,
    QKV_BIAS = 128,
    O_BIAS = 256,
    MLP_BIAS = 512,
    PRE1 = 1024, /* the mixer's input is normed */
    PRE2 = 2048, /* the MLP's */
    POST2 = 4096
};

typedef struct spec {
    const char *names[N_NAMINGS]; /* without ".weight" or ".bias"; NULL = no family has it */
    size_t offset;
    dim dims[2]; /* of a matrix: outputs, inputs */
    rose_tensor_kind kind;
    unsigned when; /* all these bits */
} spec;

#define ROW(type, gpt2, llama, gguf, role, rows, cols, kind, when)                                 \
    {                                                                                              \
        {gpt2, llama, gguf}, offsetof(type, role), {rows, cols}, ROSE_KIND_##kind, when            \
    }
#define MODEL_ROW(...) ROW(rose_model, __VA_ARGS__)
#define LAYER_ROW(...) ROW(rose_layer, __VA_ARGS__)

static const spec model_specs[] = {
    MODEL_ROW("wte", "embed_tokens", "token_embd", tok_embed, VOCAB, MODEL, MATRIX, 0),
    MODEL_ROW("wpe", NULL, "position_embd", pos_embed, POS, MODEL, MATRIX, LEARNED_POS),
    MODEL_ROW("ln_f", "norm", "output_norm", lnf_w, MODEL, NONE, NORM, 0),
    MODEL_ROW("ln_f", NULL, "output_norm", lnf_b, MODEL, NONE, BIAS, LAYER_NORM),
};

/* Llama's norm before the MLP is called post_attention_layernorm. With a norm after the attention,
 * as in Gemma, that norm has this name. */
#define LN2_LLAMA "post_attention_layernorm"

static const spec layer_specs[] = {
    LAYER_ROW("ln_1", "input_layernorm", "attn_norm", ln1_w, MODEL, NONE, NORM, PRE1),
    LAYER_ROW("ln_1", NULL, "attn_norm", ln1_b, MODEL, NONE, BIAS, PRE1 | LAYER_NORM),
    LAYER_ROW("attn.c_attn", "self_attn.qkv_proj", "attn_qkv", m[ROSE_QKV].w[0], QKV, MODEL, MATRIX,
              FUSED),
    LAYER_ROW(NULL, "self_attn.q_proj", "attn_q", m[ROSE_QKV].w[0], Q, MODEL, MATRIX, PARTS),
    LAYER_ROW(NULL, "self_attn.k_proj", "attn_k", m[ROSE_QKV].w[1], KV, MODEL, MATRIX, PARTS),
    LAYER_ROW(NULL, "self_attn.v_proj", "attn_v", m[ROSE_QKV].w[2], KV, MODEL, MATRIX, PARTS),
    LAYER_ROW("attn.c_attn", "self_attn.qkv_proj", "attn_qkv", m[ROSE_QKV].b[0], QKV, NONE, BIAS,
              FUSED | QKV_BIAS),
    LAYER_ROW(NULL, "self_attn.q_proj", "attn_q", m[ROSE_QKV].b[0], Q, NONE, BIAS,
              PARTS | QKV_BIAS),
    LAYER_ROW(NULL, "self_attn.k_proj", "attn_k", m[ROSE_QKV].b[1], KV, NONE, BIAS,
              PARTS | QKV_BIAS),
    LAYER_ROW(NULL, "self_attn.v_proj", "attn_v", m[ROSE_QKV].b[2], KV, NONE, BIAS,
              PARTS | QKV_BIAS),
    LAYER_ROW(NULL, "self_attn.q_norm", "attn_q_norm", q_norm, HEAD, NONE, NORM, QK_NORM),
    LAYER_ROW(NULL, "self_attn.k_norm", "attn_k_norm", k_norm, HEAD, NONE, NORM, QK_NORM),
    LAYER_ROW("attn.c_proj", "self_attn.o_proj", "attn_output", m[ROSE_OUT].w[0], MODEL, Q,
              RESIDUAL, 0),
    LAYER_ROW("attn.c_proj", "self_attn.o_proj", "attn_output", m[ROSE_OUT].b[0], MODEL, NONE, BIAS,
              O_BIAS),
    LAYER_ROW(NULL, LN2_LLAMA, "post_attention_norm", post1, MODEL, NONE, NORM, POST1),
    LAYER_ROW(NULL, "pre_feedforward_layernorm", "ffn_norm", ln2_w, MODEL, NONE, NORM,
              PRE2 | POST1),
    LAYER_ROW("ln_2", LN2_LLAMA, "ffn_norm", ln2_w, MODEL, NONE, NORM, PRE2 | NO_POST1),
    LAYER_ROW("ln_2", NULL, "ffn_norm", ln2_b, MODEL, NONE, BIAS, PRE2 | LAYER_NORM),
    LAYER_ROW("mlp.c_fc", "mlp.gate_up_proj", "ffn_up", m[ROSE_UP].w[0], FC1, MODEL, MATRIX, FUSED),
    LAYER_ROW("mlp.c_fc", "mlp.gate_up_proj", "ffn_up", m[ROSE_UP].b[0], FC1, NONE, BIAS,
              FUSED | MLP_BIAS),
    LAYER_ROW(NULL, "mlp.gate_proj", "ffn_gate", m[ROSE_UP].w[0], FF, MODEL, MATRIX, PARTS),
    LAYER_ROW(NULL, "mlp.up_proj", "ffn_up", m[ROSE_UP].w[1], FF, MODEL, MATRIX, PARTS),
    LAYER_ROW(NULL, "mlp.gate_proj", "ffn_gate", m[ROSE_UP].b[0], FF, NONE, BIAS, PARTS | MLP_BIAS),
    LAYER_ROW(NULL, "mlp.up_proj", "ffn_up", m[ROSE_UP].b[1], FF, NONE, BIAS, PARTS | MLP_BIAS),
    LAYER_ROW("mlp.c_proj", "mlp.down_proj", "ffn_down", m[ROSE_DOWN].w[0], MODEL, FF, RESIDUAL, 0),
    LAYER_ROW("mlp.c_proj", "mlp.down_proj", "ffn_down", m[ROSE_DOWN].b[0], MODEL, NONE, BIAS,
              MLP_BIAS),
    LAYER_ROW(NULL, "post_feedforward_layernorm", "post_ffw_norm", post2, MODEL, NONE, NORM, POST2),
};

static unsigned features(const rose_family *f, const rose_arch *a, const rose_kind *k)
{
    const rose_norms *const n = &k->norms;
    const unsigned has[] = {
        a->norm == ROSE_NORM_LAYER ? LAYER_NORM : 0,
        a->pos == ROSE_POS_LEARNED ? LEARNED_POS : 0,
        n->mixer != ROSE_NORM_AFTER ? PRE1 : 0,
        n->mixer != ROSE_NORM_BEFORE ? POST1 : NO_POST1,
        n->mlp != ROSE_NORM_AFTER ? PRE2 : 0,
        n->mlp != ROSE_NORM_BEFORE ? POST2 : 0,
        k->mixer.qk_norm ? QK_NORM : 0,
        f->fused ? FUSED : PARTS,
        k->mixer.qkv_bias ? QKV_BIAS : 0,
        k->mixer.o_bias ? O_BIAS : 0,
        k->mlp.bias ? MLP_BIAS : 0,
    };
    unsigned all = 0;
    for (size_t i = 0; i < sizeof has / sizeof *has; i++)
        all |= has[i];
    return all;
}

static uint64_t dim_size(const rose_arch *a, const rose_kind *k, dim d)
{
    const rose_mixer *m = &k->mixer;
    switch (d) {
    case NONE:
        return 1;
    case VOCAB:
        return a->vocab_size;
    case POS:
        return a->max_positions;
    case MODEL:
        return a->d_model;
    case HEAD:
        return m->head_dim;
    case Q:
        return (uint64_t)m->n_heads * m->head_dim;
    case KV:
        return (uint64_t)m->n_kv_heads * m->head_dim;
    case QKV:
        return ((uint64_t)m->n_heads + 2 * (uint64_t)m->n_kv_heads) * m->head_dim;
    case FF:
        return k->mlp.d_ff;
    case FC1:
        return (k->mlp.gated ? 2 : 1) * (uint64_t)k->mlp.d_ff;
    }
    return 0;
}

/* The family's name for what is called `name` elsewhere. */
static const char *renamed(const rose_family *f, const rose_naming *naming, const char *name)
{
    const rose_renamed *r = naming != &rose_naming_gguf ? f->renamed : NULL;
    for (; r != NULL && r->from != NULL; r++)
        if (strcmp(r->from, name) == 0) return r->to;
    return name;
}

/* swapped: matrices are stored [in][out]. */
static size_t make_rows(const rose_family *f, const rose_naming *naming, const rose_arch *a,
                        const rose_kind *k, const spec *specs, size_t n_specs, bool swapped,
                        rose_tensor_row out[ROSE_MAX_ROWS])
{
    const unsigned has = features(f, a, k);
    size_t n = 0;
    for (const spec *s = specs; s < specs + n_specs; s++) {
        if ((s->when & has) != s->when) continue;
        const char *const name = s->names[naming->column];
        assert(name != NULL && n < ROSE_MAX_ROWS);
        const uint64_t rows = dim_size(a, k, s->dims[0]), cols = dim_size(a, k, s->dims[1]);
        const bool swap = swapped && s->dims[1] != NONE;
        rose_tensor_row *row = &out[n++];
        *row = (rose_tensor_row){.offset = s->offset,
                                 .n_dims = s->dims[1] == NONE ? 1 : 2,
                                 .shape = {swap ? cols : rows, swap ? rows : cols, 1},
                                 .kind = s->kind};
        snprintf(row->name, sizeof row->name, "%s.%s", renamed(f, naming, name),
                 s->kind == ROSE_KIND_BIAS ? "bias" : "weight");
    }
    return n;
}

size_t rose_family_model_rows(const rose_family *f, const rose_naming *n, const rose_arch *a,
                              rose_tensor_row out[ROSE_MAX_ROWS])
{
    return make_rows(f, n, a, rose_arch_any(a), model_specs,
                     sizeof model_specs / sizeof model_specs[0], false, out);
}

size_t rose_family_layer_rows(const rose_family *f, const rose_naming *n, const rose_arch *a,
                              uint32_t layer, rose_tensor_row out[ROSE_MAX_ROWS])
{
    return make_rows(f, n, a, rose_arch_kind(a, layer), layer_specs,
                     sizeof layer_specs / sizeof layer_specs[0], !n->transposed, out);
}

const char *rose_role_name(rose_role r)
{
    static const char *const names[ROSE_N_ROLES] = {"qkv", "out", "up", "down"};
    return names[r];
}

size_t rose_kind_matrices(const rose_arch *a, const rose_kind *k,
                          rose_matrix_spec out[ROSE_N_ROLES])
{
    const rose_mixer *m = &k->mixer;
    const uint32_t d = a->d_model, q = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const uint32_t ff = k->mlp.d_ff;
    const bool gated = k->mlp.gated;
    const rose_matrix_spec all[] = {
        {ROSE_QKV, d, q + 2 * kv, 1, m->head_dim, false, ROSE_SPLIT_OUTPUTS},
        {ROSE_OUT, q, d, 1, m->head_dim, false, ROSE_SPLIT_INPUTS},
        {ROSE_UP, d, gated ? 2 * ff : ff, 1, 1, gated, ROSE_SPLIT_OUTPUTS},
        {ROSE_DOWN, ff, d, 1, 1, false, ROSE_SPLIT_INPUTS},
    };
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}
