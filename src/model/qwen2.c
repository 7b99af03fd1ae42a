/* model/qwen2.c - Qwen2 and Qwen2.5 as transformers' Qwen2ForCausalLM reads them: Llama with biases
 * of q, k and v, and windows in the layers from max_window_layers on. */
#include "model/decoder.h"

static const rose_decoder_defaults defaults = {
    .model_type = "qwen2",
    .norm_eps = 1e-6f,
    .theta = 10000.0f,
    .bos_id = -1,
    .eos_id = -1,
    .act_field = "hidden_act",
};

static rose_status parse(const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_status st = rose_decoder_parse(c, &defaults, a, err);
    if (st == ROSE_OK) st = rose_decoder_rope(c, &defaults, a, err);
    if (st == ROSE_OK) st = rose_decoder_late_windows(c, a, err);
    a->qkv_bias = true;
    return st;
}

const rose_family rose_family_qwen2 = {
    .model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
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
