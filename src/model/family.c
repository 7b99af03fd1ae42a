/* model/family.c - the table of families, and what all of them share. */
#include "model/family.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A new family is a row here. What a row does not say is as in Llama. */
static const rose_family families[] = {
    {.model_type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .naming = &rose_naming_gpt2,
     .fused = true,
     .gguf = {.architecture = "gpt2"},
     .parse = rose_gpt2_parse},

    /* Llama 2 and 3, TinyLlama, SmolLM2. GGUF files of Mistral also say "llama". */
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .naming = &rose_naming_llama,
     .gguf = {.architecture = "llama", .permuted = true, .all_sliding = true},
     .defaults = {.norm_eps = 1e-6f,
                  .theta = 10000.0f,
                  .context = 2048,
                  .bos_id = 1,
                  .eos_id = 2,
                  .reads_attn_bias = true,
                  .reads_mlp_bias = true},
     .parse = rose_decoder_parse},

    /* Llama with a window in every layer. */
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .naming = &rose_naming_llama,
     .defaults = {.norm_eps = 1e-6f,
                  .theta = 10000.0f,
                  .context = 131072,
                  .bos_id = 1,
                  .eos_id = 2,
                  .windows = ROSE_WINDOWS_ALL,
                  .window = 4096},
     .parse = rose_decoder_parse},

    /* Llama with biases of q, k and v, and windows in late layers. */
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .naming = &rose_naming_llama,
     .gguf = {.architecture = "qwen2"},
     .defaults = {.norm_eps = 1e-6f,
                  .theta = 10000.0f,
                  .context = 32768,
                  .bos_id = -1,
                  .eos_id = -1,
                  .qkv_bias = true,
                  .windows = ROSE_WINDOWS_LATE,
                  .window = 4096},
     .parse = rose_decoder_parse},

    /* Qwen2 with norms of q and k, and a head_dim free of the width. Qwen3-Embedding and
     * Qwen3-Reranker are the same; the former is stored without the prefix. */
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .naming = &rose_naming_llama,
     .gguf = {.architecture = "qwen3"},
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
     .parse = rose_decoder_parse},

    /* Llama in which every fourth layer does not rotate. With use_sliding_window just these layers
     * have a window. */
    {.model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .naming = &rose_naming_llama,
     .gguf = {.architecture = "smollm3", .permuted = true},
     .defaults = {.norm_eps = 1e-6f,
                  .theta = 2000000.0f,
                  .context = 32768,
                  .tied_head = true,
                  .bos_id = 128000,
                  .eos_id = 128001,
                  .reads_attn_bias = true,
                  .reads_mlp_bias = true,
                  .no_rope_every = 4,
                  .windows = ROSE_WINDOWS_STILL},
     .parse = rose_decoder_parse},

    /* The text models of Gemma 3: norms that multiply by 1 + w around attention and MLP, norms of q
     * and k, windows in five of six layers with a base of their own. */
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .wrapper = "gemma3",
     .naming = &rose_naming_llama,
     .gguf = {.architecture = "gemma3"},
     .defaults = {.norm_eps = 1e-6f,
                  .theta = 1000000.0f,
                  .context = 131072,
                  .head_dim = 256,
                  .tied_head = true,
                  .bos_id = 2,
                  .eos_id = 1,
                  .act_field = "hidden_activation",
                  .reads_attn_bias = true,
                  .qk_norm = true,
                  .norms = {.mixer = ROSE_NORM_AROUND, .mlp = ROSE_NORM_AROUND},
                  .norm_plus_one = true,
                  .gelu = true,
                  .scaled_embed = true,
                  .reads_scale = true,
                  .local_theta = 10000.0f,
                  .windows = ROSE_WINDOWS_PATTERN,
                  .window = 4096,
                  .context_holds_scaling = true},
     .parse = rose_decoder_parse},

    /* Phi-3, Phi-3.5 and Phi-4-mini: Llama with fused matrices, a window in every layer, partial
     * rotation and longrope. */
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .naming = &rose_naming_llama,
     .fused = true,
     .gguf = {.architecture = "phi3", .all_sliding = true},
     .defaults = {.norm_eps = 1e-5f,
                  .theta = 10000.0f,
                  .context = 4096,
                  .bos_id = 1,
                  .eos_id = 32000,
                  .windows = ROSE_WINDOWS_ALL,
                  .partial_rotary = true,
                  .only_longrope = true,
                  .original_context = 4096},
     .parse = rose_decoder_parse},
};

const rose_family *rose_families(size_t *n)
{
    *n = sizeof families / sizeof *families;
    return families;
}

/* Fields of relatives that compute something else. Each is refused unless it is null, false, 0 or
 * empty, which is how configs say that a feature is off. */
static const char *const refused[] = {
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_intermediate_size",
    "num_experts_per_tok",
    "kv_lora_rank",
    "q_lora_rank",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "clip_qkv",
    "attn_output_gate",
    "use_bidirectional_attention",
    "rope_interleaved",
    "is_encoder_decoder",
    "cross_attention_hidden_size",
    "quantization_config", /* the last two: rose_quantized_refuse, whose advice is another file of
                              the same model */
    "quantization",
};

static bool is_off(const rose_json *v)
{
    if (rose_json_is_number(v)) return rose_json_number_value(v) == 0;
    if (rose_json_is_array(v)) return rose_json_count(v) == 0;
    if (rose_json_is_object(v)) return rose_json_size(v) == 0;
    return v == NULL || rose_json_is_null(v) || rose_json_is_false(v);
}

static rose_status refuse_fields(const rose_config *c, rose_err *err)
{
    char text[64];
    const size_t n = sizeof refused / sizeof refused[0];
    for (size_t i = 0; i < n; i++) {
        rose_json *v = rose_json_get(c->root, refused[i]);
        if (is_off(v) || (i == n - 1 && !rose_json_is_object(v))) continue; /* MLX: an object */
        if (i >= n - 2) return rose_quantized_refuse(c, refused[i], v, err);
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: '%s' is %s: this is not supported", c->label,
                         refused[i], rose_config_describe(v, text));
    }
    return ROSE_OK;
}

void rose_family_describe(const rose_family *f, rose_arch *a)
{
    const rose_decoder_defaults *d = &f->defaults;
    const bool gpt2 = f->naming == &rose_naming_gpt2;
    *a = (rose_arch){.embed_scale = 1.0f,
                     .norm = gpt2 ? ROSE_NORM_LAYER : ROSE_NORM_RMS,
                     .pos = gpt2 ? ROSE_POS_LEARNED : ROSE_POS_ROPE,
                     .n_kinds = 1,
                     .bos_id = -1};
    a->kinds[0] = (rose_kind){
        .mixer = {.qk_norm = d->qk_norm},
        .mlp = {.act = gpt2 || d->gelu ? ROSE_ACT_GELU_TANH : ROSE_ACT_SILU, .gated = !gpt2},
        .norms = d->norms};
    snprintf(a->model_type, sizeof a->model_type, "%s", f->model_type);
}

rose_status rose_family_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                              rose_err *err)
{
    rose_family_describe(f, a);
    rose_status st = refuse_fields(c, err);
    if (st == ROSE_OK) st = f->parse(f, c, a, err);
    if (st != ROSE_OK) rose_arch_free(a);
    return st;
}

void rose_arch_set_kinds(rose_arch *a, const rose_layer_flags *f)
{
    const rose_kind base = a->kinds[0];
    int index[] = {-1, -1, -1, -1}; /* of the kind with these flags */
    a->n_kinds = 0;
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const unsigned flags = f->window > 0 ? f->of[i] : f->of[i] & ROSE_LAYER_NO_ROPE;
        if (index[flags] < 0) {
            rose_mixer *m = &a->kinds[a->n_kinds].mixer;
            a->kinds[a->n_kinds] = base;
            if ((flags & ROSE_LAYER_SLIDING) != 0) m->window = f->window, m->rope = f->rope;
            if ((flags & ROSE_LAYER_NO_ROPE) != 0) m->rope = (rose_rope){0};
            index[flags] = (int)a->n_kinds++;
        }
        a->kind_of[i] = (uint8_t)index[flags];
    }
}

static uint32_t pool_with(const rose_pool_spec *pools, uint32_t n, uint32_t window)
{
    uint32_t i = 0;
    while (i < n && pools[i].window != window)
        i++;
    return i;
}

uint32_t rose_arch_pools(const rose_arch *a, rose_pool_spec out[ROSE_MAX_POOLS],
                         uint8_t pool_of_kind[ROSE_MAX_KINDS])
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < 2 * a->n_kinds; i++) { /* first whole contexts, then windows */
        const uint32_t window = a->kinds[i % a->n_kinds].mixer.window;
        if ((window == 0) != (i < a->n_kinds)) continue;
        const uint32_t at = pool_with(out, n, window);
        assert(at < ROSE_MAX_POOLS); /* rose_arch_set_kinds makes one window at most */
        if (at == n) out[n++] = (rose_pool_spec){.window = window};
    }
    for (uint32_t i = 0; i < a->n_layers; i++)
        out[pool_with(out, n, rose_arch_kind(a, i)->mixer.window)].n_layers++;
    for (uint32_t i = 0; i < a->n_kinds && pool_of_kind != NULL; i++)
        pool_of_kind[i] = (uint8_t)pool_with(out, n, a->kinds[i].mixer.window);
    return n;
}

static rose_status refuse_multimodal(const rose_config *c, const char *type, rose_err *err)
{
    bool has_gguf = false;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        const char *wrapper = families[i].wrapper;
        has_gguf = has_gguf || (wrapper != NULL && strcmp(wrapper, type) == 0);
    }
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s: model_type '%.60s' with 'text_config': multimodal models are not "
                     "supported; %s",
                     c->label, type,
                     has_gguf ? "a GGUF file of the model holds its text part alone"
                              : "docs/MODELS.md lists the families that are");
}

rose_status rose_family_find(const rose_family **out, const rose_config *c, rose_err *err)
{
    char text[64];
    rose_json *v = rose_config_get(c, "model_type", NULL);
    *out = NULL;
    if (v == NULL)
        return rose_fail(err, ROSE_E_FORMAT, "%s: 'model_type' is missing: not a model's folder?",
                         c->label);
    if (!rose_json_is_string(v))
        return rose_fail(err, ROSE_E_FORMAT, "%s: 'model_type' is %s; expected a string", c->label,
                         rose_config_describe(v, text));
    char known[192] = "";
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].model_type, rose_json_text(v)) == 0) {
            *out = &families[i];
            return ROSE_OK;
        }
        size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "",
                 families[i].model_type);
    }
    if (rose_json_is_object(rose_json_get(c->root, "text_config")))
        return refuse_multimodal(c, rose_json_text(v), err);
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s: model_type '%.60s' is not supported (supported: %s)", c->label,
                     rose_json_text(v), known);
}
