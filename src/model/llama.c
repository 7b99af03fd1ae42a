/* model/llama.c - the Llama family as transformers' LlamaForCausalLM reads it (Llama 2 and 3,
 * TinyLlama, SmolLM2), and Mistral, which is Llama with a window in every layer. */
#include "model/decoder.h"

static const rose_decoder_defaults llama = {
    .model_type = "llama",
    .norm_eps = 1e-6f,
    .theta = 10000.0f,
    .bos_id = 1,
    .eos_id = 2,
    .act_field = "hidden_act",
};

static rose_status parse_llama(const rose_config *c, rose_arch *a, rose_err *err)
{
    bool attention_bias = false;
    rose_status st = rose_decoder_parse(c, &llama, a, err);
    if (st == ROSE_OK) st = rose_config_read_bool(c, "attention_bias", &attention_bias, err);
    if (st == ROSE_OK) st = rose_config_read_bool(c, "mlp_bias", &a->mlp_bias, err);
    if (st == ROSE_OK) st = rose_decoder_rope(c, &llama, a, err);
    a->qkv_bias = a->proj_bias = attention_bias;
    return st;
}

static const rose_decoder_defaults mistral = {
    .model_type = "mistral",
    .norm_eps = 1e-6f,
    .theta = 10000.0f,
    .bos_id = 1,
    .eos_id = 2,
    .act_field = "hidden_act",
};

/* An explicit null means no window; a config without the field has transformers' 4096. */
static rose_status parse_mistral(const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_status st = rose_decoder_parse(c, &mistral, a, err);
    if (st == ROSE_OK) st = rose_decoder_rope(c, &mistral, a, err);
    if (st != ROSE_OK) return st;
    if (json_object_get(c->root, "sliding_window") == NULL) a->window = 4096;
    if ((st = rose_decoder_window(c, a, err)) != ROSE_OK) return st;
    for (uint32_t i = 0; a->window != 0 && i < a->n_layers; i++)
        a->layer_flags[i] = ROSE_LAYER_SLIDING;
    return ROSE_OK;
}

const rose_family rose_family_llama = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .prefix = "model.",
    .layer_prefix = "layers.",
    .head_name = "lm_head.weight",
    .transposed = true,
    .qkv_parts = 3,
    .fc1_parts = 2,
    .ignored = rose_decoder_ignored,
    .model_tensors = rose_decoder_model_tensors,
    .layer_tensors = rose_decoder_layer_tensors,
    .parse = parse_llama,
};

const rose_family rose_family_mistral = {
    .model_type = "mistral",
    .architecture = "MistralForCausalLM",
    .prefix = "model.",
    .layer_prefix = "layers.",
    .head_name = "lm_head.weight",
    .transposed = true,
    .qkv_parts = 3,
    .fc1_parts = 2,
    .ignored = rose_decoder_ignored,
    .model_tensors = rose_decoder_model_tensors,
    .layer_tensors = rose_decoder_layer_tensors,
    .parse = parse_mistral,
};
