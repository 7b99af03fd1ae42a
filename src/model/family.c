/* model/family.c - the table of families, and what all of them share. */
#include "model/family.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A new family is a row here and a rose_family, as in llama.c. */
static const rose_family *const families[] = {
    &rose_family_gpt2,  &rose_family_llama,   &rose_family_mistral, &rose_family_qwen2,
    &rose_family_qwen3, &rose_family_smollm3, &rose_family_gemma3,  &rose_family_phi3,
};

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

rose_status rose_family_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                              rose_err *err)
{
    *a = (rose_arch){0};
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
        const char *wrapper = families[i]->wrapper;
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
        if (strcmp(families[i]->model_type, rose_json_text(v)) == 0) {
            *out = families[i];
            return ROSE_OK;
        }
        size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", i > 0 ? ", " : "",
                 families[i]->model_type);
    }
    if (rose_json_is_object(rose_json_get(c->root, "text_config")))
        return refuse_multimodal(c, rose_json_text(v), err);
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s: model_type '%.60s' is not supported (supported: %s)", c->label,
                     rose_json_text(v), known);
}
