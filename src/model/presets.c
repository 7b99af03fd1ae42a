/* model/presets.c - shapes of public models for `random-model --preset`: what their config.json
 * files say, without the ids of special tokens, which depend on the tokenizer. */
#include <stdio.h>
#include <string.h>

#include "model/random_internal.h"

typedef struct preset {
    const char *name, *model_type;
    uint32_t width, layers, heads, kv_heads, head_dim, ff, vocab, context;
    double eps, theta;
    bool tied;
    const char *more; /* further fields, as JSON */
} preset;

#define LLAMA3                                                                                     \
    "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0, \"low_freq_factor\": 1.0, "  \
    "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}"
#define GEMMA3                                                                                     \
    "{\"hidden_activation\": \"gelu_pytorch_tanh\", \"sliding_window\": 512, "                     \
    "\"sliding_window_pattern\": 6, \"query_pre_attn_scalar\": 256, "                              \
    "\"rope_local_base_freq\": 10000.0}"

static const preset g_presets[] = {
    {"smollm2-135m", "llama", 576, 30, 9, 3, 64, 1536, 49152, 8192, 1e-5, 1e5, true, "{}"},
    {"qwen3-0.6b", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e-6, 1e6, true, "{}"},
    {"llama-3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 1e-5, 5e5, true, LLAMA3},
    {"qwen3-4b", "qwen3", 2560, 36, 32, 8, 128, 9728, 151936, 40960, 1e-6, 1e6, true, "{}"},
    {"qwen3-8b", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, 40960, 1e-6, 1e6, false, "{}"},
    {"gemma3-270m", "gemma3_text", 640, 18, 4, 1, 256, 2048, 262144, 32768, 1e-6, 1e6, true,
     GEMMA3},
};

static rose_json *make_config(const preset *p)
{
    const int64_t eos = (int64_t)p->vocab - 1;
    rose_json *more = rose_json_loads(p->more, 0, NULL);
    rose_json *root = rose_json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:b,s:I,s:I,s:I}", "model_type",
        p->model_type, "hidden_size", (int64_t)p->width, "num_hidden_layers", (int64_t)p->layers,
        "num_attention_heads", (int64_t)p->heads, "num_key_value_heads", (int64_t)p->kv_heads,
        "head_dim", (int64_t)p->head_dim, "intermediate_size", (int64_t)p->ff, "vocab_size",
        (int64_t)p->vocab, "max_position_embeddings", (int64_t)p->context, "rms_norm_eps", p->eps,
        "rope_theta", p->theta, "tie_word_embeddings", p->tied ? 1 : 0, "bos_token_id", eos,
        "eos_token_id", eos, "pad_token_id", eos);
    if (more == NULL || root == NULL || rose_json_update(root, more) != 0) {
        rose_json_decref(root);
        root = NULL;
    }
    rose_json_decref(more);
    return root;
}

rose_status rose_random_preset(rose_json **out, const char *name, rose_err *err)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof g_presets / sizeof *g_presets; i++) {
        if (strcmp(g_presets[i].name, name) != 0) continue;
        *out = make_config(&g_presets[i]);
        return *out != NULL ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "random model: out of memory");
    }
    return rose_fail(err, ROSE_E_INVAL, "preset '%s': expected one of %s", name,
                     ROSE_RANDOM_PRESETS);
}
