/* model/llama.c - the Llama family as transformers' LlamaForCausalLM reads it (Llama 2 and 3,
 * TinyLlama, SmolLM2), and the families that differ from Llama by what a row can say. */
#include "model/decoder.h"

const rose_family rose_family_llama = {
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .naming = &rose_naming_llama,
    .defaults = {.norm_eps = 1e-6f,
                 .theta = 10000.0f,
                 .context = 2048,
                 .bos_id = 1,
                 .eos_id = 2,
                 .reads_attn_bias = true,
                 .reads_mlp_bias = true},
    .parse = rose_decoder_parse,
};

/* Llama with a window in every layer. */
const rose_family rose_family_mistral = {
    .model_type = "mistral",
    .architecture = "MistralForCausalLM",
    .naming = &rose_naming_llama,
    .defaults = {.norm_eps = 1e-6f,
                 .theta = 10000.0f,
                 .context = 131072,
                 .bos_id = 1,
                 .eos_id = 2,
                 .windows = ROSE_WINDOWS_ALL,
                 .window = 4096},
    .parse = rose_decoder_parse,
};

/* Llama with biases of q, k and v, and windows in late layers. */
const rose_family rose_family_qwen2 = {
    .model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .naming = &rose_naming_llama,
    .defaults = {.norm_eps = 1e-6f,
                 .theta = 10000.0f,
                 .context = 32768,
                 .bos_id = -1,
                 .eos_id = -1,
                 .qkv_bias = true,
                 .windows = ROSE_WINDOWS_LATE,
                 .window = 4096},
    .parse = rose_decoder_parse,
};

/* Qwen2 with norms of q and k, and a head_dim free of the width. Qwen3-Embedding and Qwen3-Reranker
 * are the same; the former is stored without the prefix. */
const rose_family rose_family_qwen3 = {
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .naming = &rose_naming_llama,
    .defaults = {.norm_eps = 1e-6f,
                 .theta = 10000.0f,
                 .context = 32768,
                 .head_dim = 128,
                 .bos_id = -1,
                 .eos_id = -1,
                 .reads_attn_bias = true,
                 .qk_norm = true,
                 .windows = ROSE_WINDOWS_LATE,
                 .window = 4096},
    .parse = rose_decoder_parse,
};

/* Phi-3, Phi-3.5 and Phi-4-mini: Llama with fused matrices, a window in every layer, partial
 * rotation and longrope. */
const rose_family rose_family_phi3 = {
    .model_type = "phi3",
    .architecture = "Phi3ForCausalLM",
    .naming = &rose_naming_llama,
    .fused = true,
    .defaults = {.norm_eps = 1e-5f,
                 .theta = 10000.0f,
                 .context = 4096,
                 .bos_id = 1,
                 .eos_id = 32000,
                 .windows = ROSE_WINDOWS_ALL,
                 .partial_rotary = true,
                 .only_longrope = true,
                 .original_context = 4096},
    .parse = rose_decoder_parse,
};
