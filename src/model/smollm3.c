/* model/smollm3.c - SmolLM3 as transformers' SmolLM3ForCausalLM reads it: Llama in which every
 * fourth layer does not rotate. With use_sliding_window just these layers have a window. */
#include "model/decoder.h"

static const rose_decoder_defaults defaults = {
    .model_type = "smollm3",
    .norm_eps = 1e-6f,
    .theta = 2000000.0f,
    .tied_head = true,
    .bos_id = 128000,
    .eos_id = 128001,
    .act_field = "hidden_act",
};

/* no_rope_layers holds 1 for a layer that rotates and 0 for one that does not. */
static rose_status read_no_rope(const rose_config *c, rose_arch *a, rose_err *err)
{
    const rose_config_u32 f = {"no_rope_layer_interval", NULL, 1, ROSE_MAX_LAYERS, false};
    uint32_t interval = 4;
    json_t *list = rose_config_get(c, "no_rope_layers", NULL);
    rose_status st = rose_config_read_u32(c, &f, &interval, err);
    if (st != ROSE_OK) return st;
    if (list != NULL && (!json_is_array(list) || json_array_size(list) != a->n_layers))
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: 'no_rope_layers' is not a list of num_hidden_layers (%u) numbers",
                         c->label, a->n_layers);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        json_t *v = json_array_get(list, i);
        bool rotates = (i + 1) % interval != 0;
        if (list != NULL &&
            (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1))
            return rose_fail(err, ROSE_E_FORMAT, "%s: no_rope_layers[%u] is not 0 or 1", c->label,
                             i);
        if (list != NULL) rotates = json_integer_value(v) == 1;
        if (!rotates) a->layer_flags[i] |= ROSE_LAYER_NO_ROPE;
    }
    return ROSE_OK;
}

static rose_status read_windows(const rose_config *c, rose_arch *a, rose_err *err)
{
    bool use = false;
    rose_status st = rose_config_read_bool(c, "use_sliding_window", &use, err);
    if (st == ROSE_OK) st = rose_decoder_window(c, a, err);
    if (st != ROSE_OK) return st;
    if (!use) a->window = 0;
    for (uint32_t i = 0; a->window != 0 && i < a->n_layers; i++)
        if ((a->layer_flags[i] & ROSE_LAYER_NO_ROPE) != 0) a->layer_flags[i] |= ROSE_LAYER_SLIDING;
    return rose_decoder_layer_types(c, a, err);
}

static rose_status parse(const rose_config *c, rose_arch *a, rose_err *err)
{
    bool attention_bias = false;
    rose_status st = rose_decoder_parse(c, &defaults, a, err);
    if (st == ROSE_OK) st = rose_config_read_bool(c, "attention_bias", &attention_bias, err);
    if (st == ROSE_OK) st = rose_config_read_bool(c, "mlp_bias", &a->mlp_bias, err);
    if (st == ROSE_OK) st = rose_decoder_rope(c, &defaults, a, err);
    if (st == ROSE_OK) st = read_no_rope(c, a, err);
    if (st == ROSE_OK) st = read_windows(c, a, err);
    a->qkv_bias = a->proj_bias = attention_bias;
    return st;
}

const rose_family rose_family_smollm3 = {
    .model_type = "smollm3",
    .architecture = "SmolLM3ForCausalLM",
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
