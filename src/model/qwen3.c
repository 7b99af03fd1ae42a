/* model/qwen3.c - Qwen3 as transformers' Qwen3ForCausalLM reads it: Llama with norms of q and k, a
 * head_dim free of the width, and Qwen2's windows. Qwen3-Embedding and Qwen3-Reranker are the same,
 * the former stored without the prefix. */
#include "model/decoder.h"

static const rose_decoder_defaults defaults = {
    .model_type = "qwen3",
    .norm_eps = 1e-6f,
    .theta = 10000.0f,
    .head_dim = 128,
    .bos_id = -1,
    .eos_id = -1,
    .act_field = "hidden_act",
};

static rose_status parse(const rose_config *c, rose_arch *a, rose_err *err)
{
    bool attention_bias = false;
    rose_status st = rose_decoder_parse(c, &defaults, a, err);
    if (st == ROSE_OK) st = rose_config_read_bool(c, "attention_bias", &attention_bias, err);
    if (st == ROSE_OK) st = rose_decoder_rope(c, &defaults, a, err);
    if (st == ROSE_OK) st = rose_decoder_late_windows(c, a, err);
    a->qkv_bias = a->proj_bias = attention_bias;
    a->qk_norm = true;
    return st;
}

const rose_family rose_family_qwen3 = {
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .prefix = "model.",
    .layer_prefix = "layers.",
    .head_name = "lm_head.weight",
    .transposed = true,
    .qkv_parts = 3,
    .fc1_parts = 2,
    .ignored = rose_decoder_ignored,
    .model_tensors = rose_decoder_model_tensors,
    .layer_tensors = rose_decoder_layer_tensors,
    .parse = parse,
};
