/* model/smollm3.c - SmolLM3 as transformers' SmolLM3ForCausalLM reads it: Llama in which every
 * fourth layer does not rotate. With use_sliding_window just these layers have a window. */
#include "model/decoder.h"

/* no_rope_layers holds 1 for a layer that rotates and 0 for one that does not. */
static rose_status read_no_rope(const rose_config *c, const rose_arch *a, rose_layer_flags *flags,
                                rose_err *err)
{
    const rose_config_u32 f = {"no_rope_layer_interval", NULL, 1, ROSE_MAX_LAYERS, false, false};
    uint32_t interval = 4;
    rose_json *list = rose_config_get(c, "no_rope_layers", NULL);
    rose_status st = list != NULL ? ROSE_OK : rose_config_read_u32(c, &f, &interval, err);
    if (st != ROSE_OK) return st;
    if (list != NULL && (!rose_json_is_array(list) || rose_json_count(list) != a->n_layers))
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: 'no_rope_layers' is not a list of num_hidden_layers (%u) numbers",
                         c->label, a->n_layers);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        rose_json *v = rose_json_at(list, i);
        bool rotates = (i + 1) % interval != 0;
        if (list != NULL &&
            (!rose_json_is_integer(v) || rose_json_int(v) < 0 || rose_json_int(v) > 1))
            return rose_fail(err, ROSE_E_FORMAT, "%s: no_rope_layers[%u] is not 0 or 1", c->label,
                             i);
        if (list != NULL) rotates = rose_json_int(v) == 1;
        if (!rotates) flags->of[i] |= ROSE_LAYER_NO_ROPE;
    }
    return ROSE_OK;
}

static rose_status read_windows(const rose_family *f, const rose_config *c, const rose_arch *a,
                                rose_layer_flags *flags, rose_err *err)
{
    bool use = false;
    rose_status st = rose_config_read_bool(c, "use_sliding_window", &use, err);
    if (st == ROSE_OK) st = rose_decoder_window(c, &f->defaults, &flags->window, err);
    if (st != ROSE_OK) return st;
    if (!use) flags->window = 0;
    for (uint32_t i = 0; flags->window != 0 && i < a->n_layers; i++)
        if ((flags->of[i] & ROSE_LAYER_NO_ROPE) != 0) flags->of[i] |= ROSE_LAYER_SLIDING;
    return rose_decoder_layer_types(c, a, flags, err);
}

static rose_status parse(const rose_family *f, const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_layer_flags flags = {.window = 0};
    rose_status st = rose_decoder_parse(f, c, a, err);
    flags.rope = a->kinds[0].mixer.rope;
    if (st == ROSE_OK) st = read_no_rope(c, a, &flags, err);
    if (st == ROSE_OK) st = read_windows(f, c, a, &flags, err);
    if (st == ROSE_OK) rose_arch_set_kinds(a, &flags);
    return st;
}

const rose_family rose_family_smollm3 = {
    .model_type = "smollm3",
    .architecture = "SmolLM3ForCausalLM",
    .naming = &rose_naming_llama,
    .defaults = {.norm_eps = 1e-6f,
                 .theta = 2000000.0f,
                 .context = 32768,
                 .tied_head = true,
                 .bos_id = 128000,
                 .eos_id = 128001,
                 .reads_attn_bias = true,
                 .reads_mlp_bias = true},
    .parse = parse,
};
