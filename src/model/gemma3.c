/* model/gemma3.c - the text models of Gemma 3 as transformers' Gemma3ForCausalLM reads them: norms
 * that multiply by 1 + w before and after attention and MLP, norms of q and k, windows in five of
 * six layers with a base of their own, a scaled embedding, GELU gates. */
#include <math.h>

#include "model/decoder.h"
#include "model/rope.h"

/* The ropes of full and of sliding layers: rope_parameters by layer type, or rope_theta,
 * rope_local_base_freq and rope_scaling, which concerns full layers alone. */
static rose_status read_rope(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                             rose_layer_flags *f, rose_err *err)
{
    float theta[2] = {d->theta, 10000.0f};
    rose_rope *const out[2] = {&a->kinds[0].mixer.rope, &f->rope};
    rose_config all, fields[2], old;
    rose_status st = rose_config_read_positive(c, "rope_theta", ROSE_MAX_THETA, &theta[0], err);
    if (st == ROSE_OK)
        st = rose_config_read_positive(c, "rope_local_base_freq", ROSE_MAX_THETA, &theta[1], err);
    if (st == ROSE_OK) st = rose_config_sub(&old, c, "rope_scaling", err);
    if (st == ROSE_OK) st = rose_config_sub(&all, c, "rope_parameters", err);
    if (st == ROSE_OK) st = rose_config_sub(&fields[0], &all, "full_attention", err);
    if (st == ROSE_OK) st = rose_config_sub(&fields[1], &all, "sliding_attention", err);
    if (st != ROSE_OK) return st;
    if (rose_json_size(all.root) != 0 && fields[0].root == NULL && fields[1].root == NULL)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: 'full_attention' and 'sliding_attention' are missing", all.label);
    if (fields[0].root == NULL) fields[0] = old;
    for (int i = 0; st == ROSE_OK && i < 2; i++)
        st = rose_decoder_rope_fields(c, &fields[i], d, theta[i], out[i], a, err);
    return st;
}

static rose_status read_windows(const rose_config *c, const rose_decoder_defaults *d,
                                const rose_arch *a, rose_layer_flags *flags, rose_err *err)
{
    const rose_config_u32 f = {
        "sliding_window_pattern", "_sliding_window_pattern", 1, ROSE_MAX_LAYERS, false, false};
    uint32_t pattern = 6;
    rose_status st = rose_config_read_u32(c, &f, &pattern, err);
    if (st == ROSE_OK) st = rose_decoder_window(c, d, &flags->window, err);
    if (st != ROSE_OK) return st;
    for (uint32_t i = 0; i < a->n_layers; i++)
        if ((i + 1) % pattern != 0) flags->of[i] |= ROSE_LAYER_SLIDING;
    return rose_decoder_layer_types(c, a, flags, err);
}

static rose_status parse(const rose_family *f, const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_kind *k = &a->kinds[0];
    rose_layer_flags flags = {.window = 0};
    float scalar = 256.0f;
    rose_status st = rose_decoder_parse_base(f, c, a, err);
    if (st != ROSE_OK) return st;
    if (rose_config_get(c, f->defaults.act_field, NULL) == NULL) k->mlp.act = ROSE_ACT_GELU_TANH;
    st = rose_config_read_positive(c, "query_pre_attn_scalar", 1e6, &scalar, err);
    if (st == ROSE_OK)
        st = rose_config_read_positive(c, "attn_logit_softcapping", 1e6, &k->mixer.softcap, err);
    if (st == ROSE_OK)
        st = rose_config_read_positive(c, "final_logit_softcapping", 1e6, &a->logit_softcap, err);
    if (st == ROSE_OK) st = read_rope(c, &f->defaults, a, &flags, err);
    if (st == ROSE_OK) st = read_windows(c, &f->defaults, a, &flags, err);
    a->norm_plus_one = true;
    a->embed_scale = (float)sqrt((double)a->d_model);
    k->norms.after = true;
    k->mixer.scale = (float)(1.0 / sqrt((double)scalar));
    if (st == ROSE_OK) rose_arch_set_kinds(a, &flags);
    return st;
}

const rose_family rose_family_gemma3 = {
    .model_type = "gemma3_text",
    .architecture = "Gemma3ForCausalLM",
    .wrapper = "gemma3",
    .naming = &rose_naming_llama,
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
                 .window = 4096,
                 .context_holds_scaling = true},
    .parse = parse,
};
