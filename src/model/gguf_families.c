/* model/gguf_families.c - the tensors of each architecture in GGUF files: names as llama.cpp's
 * converter writes them. Matrices are stored [out][in]. The converter interleaves the rows of q and
 * k in the families that it derives from its LlamaModel: llama and smollm3. */
#include "model/gguf_arch.h"

/* Tables of frequencies, which gguf_arch.c reads, and old copies of them. */
static const char *const ignored[] = {
    "rope_freqs.weight",     "rope_factors_long.weight", "rope_factors_short.weight",
    ".attn_rot_embd.weight", ".attn_rot_embd",           NULL};

static const rose_tensor_spec model_rms[] = {
    ROSE_MODEL_TENSOR("token_embd.weight", tok_embed, VOCAB, MODEL, MATRIX),
    ROSE_MODEL_TENSOR("output_norm.weight", lnf_w, MODEL, NONE, NORM),
    {0},
};

static const rose_tensor_spec model_gpt2[] = {
    ROSE_MODEL_TENSOR("token_embd.weight", tok_embed, VOCAB, MODEL, MATRIX),
    ROSE_MODEL_TENSOR("position_embd.weight", pos_embed, POS, MODEL, MATRIX),
    ROSE_MODEL_TENSOR("output_norm.weight", lnf_w, MODEL, NONE, NORM),
    ROSE_MODEL_TENSOR("output_norm.bias", lnf_b, MODEL, NONE, BIAS),
    {0},
};

#define QKV_PARTS                                                                                  \
    ROSE_LAYER_TENSOR("attn_q.weight", qkv.w[0], Q, MODEL, MATRIX, ALWAYS),                        \
        ROSE_LAYER_TENSOR("attn_k.weight", qkv.w[1], KV, MODEL, MATRIX, ALWAYS),                   \
        ROSE_LAYER_TENSOR("attn_v.weight", qkv.w[2], KV, MODEL, MATRIX, ALWAYS),                   \
        ROSE_LAYER_TENSOR("attn_q.bias", qkv.b[0], Q, NONE, BIAS, QKV_BIAS),                       \
        ROSE_LAYER_TENSOR("attn_k.bias", qkv.b[1], KV, NONE, BIAS, QKV_BIAS),                      \
        ROSE_LAYER_TENSOR("attn_v.bias", qkv.b[2], KV, NONE, BIAS, QKV_BIAS)
#define HEAD_NORMS                                                                                 \
    ROSE_LAYER_TENSOR("attn_q_norm.weight", q_norm, HEAD, NONE, NORM, QK_NORM),                    \
        ROSE_LAYER_TENSOR("attn_k_norm.weight", k_norm, HEAD, NONE, NORM, QK_NORM)
#define PROJ                                                                                       \
    ROSE_LAYER_TENSOR("attn_output.weight", proj.w[0], MODEL, Q, RESIDUAL, ALWAYS),                \
        ROSE_LAYER_TENSOR("attn_output.bias", proj.b[0], MODEL, NONE, BIAS, PROJ_BIAS)
#define GATED_MLP                                                                                  \
    ROSE_LAYER_TENSOR("ffn_gate.weight", fc1.w[0], FF, MODEL, MATRIX, ALWAYS),                     \
        ROSE_LAYER_TENSOR("ffn_up.weight", fc1.w[1], FF, MODEL, MATRIX, ALWAYS),                   \
        ROSE_LAYER_TENSOR("ffn_gate.bias", fc1.b[0], FF, NONE, BIAS, MLP_BIAS),                    \
        ROSE_LAYER_TENSOR("ffn_up.bias", fc1.b[1], FF, NONE, BIAS, MLP_BIAS)
#define DOWN                                                                                       \
    ROSE_LAYER_TENSOR("ffn_down.weight", fc2.w[0], MODEL, FF, RESIDUAL, ALWAYS),                   \
        ROSE_LAYER_TENSOR("ffn_down.bias", fc2.b[0], MODEL, NONE, BIAS, MLP_BIAS)
#define NORMS_BEFORE                                                                               \
    ROSE_LAYER_TENSOR("attn_norm.weight", ln1_w, MODEL, NONE, NORM, ALWAYS),                       \
        ROSE_LAYER_TENSOR("ffn_norm.weight", ln2_w, MODEL, NONE, NORM, ALWAYS)

static const rose_tensor_spec layer_llama[] = {
    NORMS_BEFORE, QKV_PARTS, HEAD_NORMS, PROJ, GATED_MLP, DOWN, {0},
};

static const rose_tensor_spec layer_gemma3[] = {
    NORMS_BEFORE,
    ROSE_LAYER_TENSOR("post_attention_norm.weight", post1, MODEL, NONE, NORM, ALWAYS),
    ROSE_LAYER_TENSOR("post_ffw_norm.weight", post2, MODEL, NONE, NORM, ALWAYS),
    QKV_PARTS,
    HEAD_NORMS,
    PROJ,
    GATED_MLP,
    DOWN,
    {0},
};

/* Gate and up in one matrix, the gate first. */
static const rose_tensor_spec layer_phi3[] = {
    NORMS_BEFORE,
    ROSE_LAYER_TENSOR("attn_qkv.weight", qkv.w[0], QKV, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("attn_qkv.bias", qkv.b[0], QKV, NONE, BIAS, QKV_BIAS),
    PROJ,
    ROSE_LAYER_TENSOR("ffn_up.weight", fc1.w[0], FF2, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("ffn_up.bias", fc1.b[0], FF2, NONE, BIAS, MLP_BIAS),
    DOWN,
    {0},
};

static const rose_tensor_spec layer_gpt2[] = {
    NORMS_BEFORE,
    ROSE_LAYER_TENSOR("attn_norm.bias", ln1_b, MODEL, NONE, BIAS, ALWAYS),
    ROSE_LAYER_TENSOR("ffn_norm.bias", ln2_b, MODEL, NONE, BIAS, ALWAYS),
    ROSE_LAYER_TENSOR("attn_qkv.weight", qkv.w[0], QKV, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("attn_qkv.bias", qkv.b[0], QKV, NONE, BIAS, QKV_BIAS),
    PROJ,
    ROSE_LAYER_TENSOR("ffn_up.weight", fc1.w[0], FF, MODEL, MATRIX, ALWAYS),
    ROSE_LAYER_TENSOR("ffn_up.bias", fc1.b[0], FF, NONE, BIAS, MLP_BIAS),
    DOWN,
    {0},
};

#define ROW(arch, model_table, layer_table, qkv, fc1, interleaved)                                 \
    {                                                                                              \
        .model_type = (arch), .prefix = "", .layer_prefix = "blk.", .head_name = "output.weight",  \
        .transposed = true, .qkv_parts = (qkv), .fc1_parts = (fc1), .permuted = (interleaved),     \
        .ignored = ignored, .model_tensors = (model_table), .layer_tensors = (layer_table)         \
    }

static const rose_gguf_family families[] = {
    {.architecture = "llama",
     .tables = ROW("llama", model_rms, layer_llama, 3, 2, true),
     .all_sliding = true},
    {.architecture = "qwen2", .tables = ROW("qwen2", model_rms, layer_llama, 3, 2, false)},
    {.architecture = "qwen3",
     .tables = ROW("qwen3", model_rms, layer_llama, 3, 2, false),
     .qk_norm = true},
    {.architecture = "smollm3",
     .tables = ROW("smollm3", model_rms, layer_llama, 3, 2, true),
     .no_rope_step = 4},
    {.architecture = "gemma3",
     .tables = ROW("gemma3_text", model_rms, layer_gemma3, 3, 2, false),
     .gemma = true,
     .qk_norm = true},
    {.architecture = "phi3",
     .tables = ROW("phi3", model_rms, layer_phi3, 1, 1, false),
     .all_sliding = true},
    {.architecture = "gpt2",
     .tables = ROW("gpt2", model_gpt2, layer_gpt2, 1, 1, false),
     .layer_norm = true},
};

const rose_gguf_family *rose_gguf_family_at(size_t i)
{
    return i < sizeof families / sizeof families[0] ? &families[i] : NULL;
}
