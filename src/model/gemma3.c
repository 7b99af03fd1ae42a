/* model/gemma3.c - the text models of Gemma 3 as transformers' Gemma3ForCausalLM reads them: norms
 * that multiply by 1 + w before and after attention and MLP, norms of q and k, windows in five of
 * six layers with a base of their own, a scaled embedding, GELU gates. */
#include <math.h>

#include "model/decoder.h"

static const rose_tensor_spec layer_tensors[] = {
    ROSE_LAYER_TENSOR("input_layernorm.weight", ln1_w, MODEL, NONE, NORM, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.q_proj.weight", qkv.w[0], Q, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.k_proj.weight", qkv.w[1], KV, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.v_proj.weight", qkv.w[2], KV, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.q_proj.bias", qkv.b[0], Q, NONE, BIAS, QKV_BIAS),
    ROSE_LAYER_TENSOR("self_attn.k_proj.bias", qkv.b[1], KV, NONE, BIAS, QKV_BIAS),
    ROSE_LAYER_TENSOR("self_attn.v_proj.bias", qkv.b[2], KV, NONE, BIAS, QKV_BIAS),
    ROSE_LAYER_TENSOR("self_attn.q_norm.weight", q_norm, HEAD, NONE, NORM, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.k_norm.weight", k_norm, HEAD, NONE, NORM, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.o_proj.weight", proj.w[0], MODEL, Q, RESIDUAL, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.o_proj.bias", proj.b[0], MODEL, NONE, BIAS, PROJ_BIAS),
    ROSE_LAYER_TENSOR("post_attention_layernorm.weight", post1, MODEL, NONE, NORM, ALWAYS),
    ROSE_LAYER_TENSOR("pre_feedforward_layernorm.weight", ln2_w, MODEL, NONE, NORM, ALWAYS),
    ROSE_LAYER_TENSOR("mlp.gate_proj.weight", fc1.w[0], FF, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("mlp.up_proj.weight", fc1.w[1], FF, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("mlp.down_proj.weight", fc2.w[0], MODEL, FF, RESIDUAL, ALWAYS),
    ROSE_LAYER_TENSOR("post_feedforward_layernorm.weight", post2, MODEL, NONE, NORM, ALWAYS),
    {0},
};

static const rose_decoder_defaults defaults = {
    .model_type = "gemma3_text",
    .norm_eps = 1e-6f,
    .theta = 1000000.0f,
    .head_dim = 256,
    .tied_head = true,
    .bos_id = 2,
    .eos_id = 1,
    .act_field = "hidden_activation",
    .context_holds_scaling = true,
};

/* Full layers in rope[0], sliding ones in rope[1]: rope_parameters by layer type, or rope_theta,
 * rope_local_base_freq and rope_scaling, which concerns full layers alone. */
static rose_status read_rope(const rose_config *c, rose_arch *a, rose_err *err)
{
    float theta[2] = {defaults.theta, 10000.0f};
    rose_config all, fields[2], old;
    rose_status st = rose_config_read_positive(c, "rope_theta", 1e10, &theta[0], err);
    if (st == ROSE_OK)
        st = rose_config_read_positive(c, "rope_local_base_freq", 1e10, &theta[1], err);
    if (st == ROSE_OK) st = rose_config_sub(&old, c, "rope_scaling", err);
    if (st == ROSE_OK) st = rose_config_sub(&all, c, "rope_parameters", err);
    if (st == ROSE_OK) st = rose_config_sub(&fields[0], &all, "full_attention", err);
    if (st == ROSE_OK) st = rose_config_sub(&fields[1], &all, "sliding_attention", err);
    if (st != ROSE_OK) return st;
    if (json_object_size(all.root) != 0 && fields[0].root == NULL && fields[1].root == NULL)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: 'full_attention' and 'sliding_attention' are missing", all.label);
    if (fields[0].root == NULL) fields[0] = old;
    for (int i = 0; st == ROSE_OK && i < 2; i++)
        st = rose_decoder_rope_fields(c, &fields[i], &defaults, theta[i], i, a, err);
    return st;
}

static rose_status read_windows(const rose_config *c, rose_arch *a, rose_err *err)
{
    const rose_config_u32 f = {"sliding_window_pattern", "_sliding_window_pattern", 1,
                               ROSE_MAX_LAYERS, false};
    uint32_t pattern = 6;
    if (json_object_get(c->root, "sliding_window") == NULL) a->window = 4096;
    rose_status st = rose_config_read_u32(c, &f, &pattern, err);
    if (st == ROSE_OK) st = rose_decoder_window(c, a, err);
    if (st != ROSE_OK) return st;
    for (uint32_t i = 0; i < a->n_layers; i++)
        if ((i + 1) % pattern != 0) a->layer_flags[i] |= ROSE_LAYER_SLIDING;
    return rose_decoder_layer_types(c, a, err);
}

static rose_status parse(const rose_config *c, rose_arch *a, rose_err *err)
{
    bool attention_bias = false;
    float scalar = 256.0f;
    rose_status st = rose_decoder_parse(c, &defaults, a, err);
    if (st != ROSE_OK) return st;
    if (rose_config_get(c, "hidden_activation", NULL) == NULL) a->act = ROSE_ACT_GELU_TANH;
    st = rose_config_read_bool(c, "attention_bias", &attention_bias, err);
    if (st == ROSE_OK)
        st = rose_config_read_positive(c, "query_pre_attn_scalar", 1e6, &scalar, err);
    if (st == ROSE_OK)
        st = rose_config_read_positive(c, "attn_logit_softcapping", 1e6, &a->attn_softcap, err);
    if (st == ROSE_OK)
        st = rose_config_read_positive(c, "final_logit_softcapping", 1e6, &a->logit_softcap, err);
    if (st == ROSE_OK) st = read_rope(c, a, err);
    if (st == ROSE_OK) st = read_windows(c, a, err);
    a->qkv_bias = a->proj_bias = attention_bias;
    a->qk_norm = a->norm_plus_one = true;
    a->norm_place = ROSE_NORM_BOTH;
    a->attn_scale = (float)(1.0 / sqrt((double)scalar));
    a->embed_scale = (float)sqrt((double)a->d_model);
    return st;
}

const rose_family rose_family_gemma3 = {
    .model_type = "gemma3_text",
    .architecture = "Gemma3ForCausalLM",
    .prefix = "model.",
    .layer_prefix = "layers.",
    .head_name = "lm_head.weight",
    .transposed = true,
    .qkv_parts = 3,
    .fc1_parts = 2,
    .ignored = rose_decoder_ignored,
    .model_tensors = rose_decoder_model_tensors,
    .layer_tensors = layer_tensors,
    .parse = parse,
};
