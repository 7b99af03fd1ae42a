/* model/phi3.c - Phi-3, Phi-3.5 and Phi-4-mini as transformers' Phi3ForCausalLM reads them: Llama
 * with fused matrices, a window in every layer, partial rotation and longrope. */
#include "model/decoder.h"

static const rose_tensor_spec layer_tensors[] = {
    ROSE_LAYER_TENSOR("input_layernorm.weight", ln1_w, MODEL, NONE, NORM, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.qkv_proj.weight", qkv.w[0], QKV, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("self_attn.o_proj.weight", proj.w[0], MODEL, Q, RESIDUAL, ALWAYS),
    ROSE_LAYER_TENSOR("post_attention_layernorm.weight", ln2_w, MODEL, NONE, NORM, ALWAYS),
    ROSE_LAYER_TENSOR("mlp.gate_up_proj.weight", fc1.w[0], FF2, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("mlp.down_proj.weight", fc2.w[0], MODEL, FF, RESIDUAL, ALWAYS),
    {0},
};

static const rose_decoder_defaults defaults = {
    .model_type = "phi3",
    .norm_eps = 1e-5f,
    .theta = 10000.0f,
    .bos_id = 1,
    .eos_id = 32000,
    .act_field = "hidden_act",
    .partial_rotary = true,
    .su_is_longrope = true,
    .original_context = 4096,
};

static rose_status parse(const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_status st = rose_decoder_parse(c, &defaults, a, err);
    if (st == ROSE_OK) st = rose_decoder_rope(c, &defaults, a, err);
    if (st == ROSE_OK) st = rose_decoder_window(c, a, err);
    if (st != ROSE_OK) return st;
    if (a->rope[0].kind != ROSE_ROPE_DEFAULT && a->rope[0].kind != ROSE_ROPE_LONGROPE)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: 'rope_type' of phi3 is neither default nor longrope", c->label);
    for (uint32_t i = 0; a->window != 0 && i < a->n_layers; i++)
        a->layer_flags[i] = ROSE_LAYER_SLIDING;
    return ROSE_OK;
}

const rose_family rose_family_phi3 = {
    .model_type = "phi3",
    .architecture = "Phi3ForCausalLM",
    .prefix = "model.",
    .layer_prefix = "layers.",
    .head_name = "lm_head.weight",
    .transposed = true,
    .ignored = rose_decoder_ignored,
    .model_tensors = rose_decoder_model_tensors,
    .layer_tensors = layer_tensors,
    .parse = parse,
};
