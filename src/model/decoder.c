/* model/decoder.c - see decoder.h. */
#include "model/decoder.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

static rose_status parse_sizes(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                               rose_err *err)
{
    const struct {
        rose_config_u32 field;
        uint32_t *out;
    } sizes[] = {
        {{"hidden_size", NULL, 1, ROSE_MAX_WIDTH, true, false}, &a->d_model},
        {{"num_hidden_layers", NULL, 1, ROSE_MAX_LAYERS, true, false}, &a->n_layers},
        {{"num_attention_heads", NULL, 1, ROSE_MAX_WIDTH, true, false}, &a->n_heads},
        {{"num_key_value_heads", NULL, 1, ROSE_MAX_WIDTH, false, false}, &a->n_kv_heads},
        {{"head_dim", NULL, 2, ROSE_MAX_WIDTH, false, false}, &a->head_dim},
        {{"intermediate_size", NULL, 1, ROSE_MAX_WIDTH * 4, true, false}, &a->d_ff},
        {{"vocab_size", NULL, 1, ROSE_MAX_VOCAB, true, false}, &a->vocab_size},
        {{"max_position_embeddings", NULL, 1, ROSE_MAX_VOCAB, false, true}, &a->max_positions},
    };
    a->head_dim = d->head_dim;
    a->max_positions = d->context;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        rose_status st = rose_config_read_u32(c, &sizes[i].field, sizes[i].out, err);
        if (st != ROSE_OK) return st;
    }
    if (a->n_kv_heads == 0) a->n_kv_heads = a->n_heads;
    if (a->n_heads % a->n_kv_heads != 0)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: num_attention_heads %u is not a multiple of num_key_value_heads %u",
                         c->label, a->n_heads, a->n_kv_heads);
    if (a->head_dim == 0 && a->d_model % a->n_heads != 0)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: hidden_size %u is not a multiple of num_attention_heads %u, and "
                         "'head_dim' is missing",
                         c->label, a->d_model, a->n_heads);
    if (a->head_dim == 0) a->head_dim = a->d_model / a->n_heads;
    return ROSE_OK;
}

static rose_status parse_biases(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                                rose_err *err)
{
    rose_status st = ROSE_OK;
    if (d->reads_attn_bias) st = rose_config_read_bool(c, "attention_bias", &a->proj_bias, err);
    if (st == ROSE_OK && d->reads_mlp_bias)
        st = rose_config_read_bool(c, "mlp_bias", &a->mlp_bias, err);
    a->qkv_bias = d->qkv_bias || a->proj_bias;
    return st;
}

rose_status rose_decoder_parse_base(const rose_family *f, const rose_config *c, rose_arch *a,
                                    rose_err *err)
{
    const rose_decoder_defaults *d = &f->defaults;
    *a = (rose_arch){.norm_eps = d->norm_eps,
                     .norm = ROSE_NORM_RMS,
                     .pos = ROSE_POS_ROPE,
                     .act = ROSE_ACT_SILU,
                     .qk_norm = d->qk_norm,
                     .mlp_gated = true,
                     .embed_scale = 1.0f,
                     .tied_head = d->tied_head,
                     .bos_id = -1};
    snprintf(a->model_type, sizeof a->model_type, "%s", f->model_type);
    rose_status st = parse_sizes(c, d, a, err);
    if (st == ROSE_OK)
        st = rose_config_read_act(c, d->act_field != NULL ? d->act_field : "hidden_act", &a->act,
                                  err);
    if (st == ROSE_OK) st = rose_config_read_positive(c, "rms_norm_eps", 1.0, &a->norm_eps, err);
    if (st == ROSE_OK) st = rose_config_read_bool(c, "tie_word_embeddings", &a->tied_head, err);
    if (st == ROSE_OK) st = parse_biases(c, d, a, err);
    if (st == ROSE_OK) st = rose_config_default_id(c, "bos_token_id", d->bos_id, err);
    if (st == ROSE_OK) st = rose_config_default_id(c, "eos_token_id", d->eos_id, err);
    if (st == ROSE_OK) rose_config_read_bos(c, a);
    if (st == ROSE_OK) rose_config_add_eos(c, a);
    /* sqrt and / are correctly rounded by IEEE 754: the same bits everywhere. */
    if (st == ROSE_OK) a->attn_scale = (float)(1.0 / sqrt((double)a->head_dim));
    return st;
}

/* ---- windows ---- */

rose_status rose_decoder_window(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                                rose_err *err)
{
    const rose_config_u32 f = {"sliding_window", NULL, 1, ROSE_MAX_VOCAB, false, true};
    const rose_json *v = rose_json_get(c->root, f.name);
    a->window = v == NULL ? d->window : 0;
    if (rose_json_is_number(v) && rose_json_number_value(v) <= 0) {
        char text[64];
        rose_log(ROSE_LOG_WARN, "model", "%s: %s is %s: the model has no window", c->label, f.name,
                 rose_config_describe(v, text));
        return ROSE_OK;
    }
    return rose_config_read_u32(c, &f, &a->window, err);
}

static void set_sliding(rose_arch *a, uint32_t layer, bool sliding)
{
    a->layer_flags[layer] &= (uint8_t)~ROSE_LAYER_SLIDING;
    if (sliding) a->layer_flags[layer] |= ROSE_LAYER_SLIDING;
}

static rose_status read_layer_types(const rose_config *c, rose_json *list, rose_arch *a,
                                    rose_err *err)
{
    if (!rose_json_is_array(list) || rose_json_count(list) != a->n_layers)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: 'layer_types' is not a list of num_hidden_layers (%u) strings",
                         c->label, a->n_layers);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const char *type = rose_json_text(rose_json_at(list, i));
        if (type == NULL)
            return rose_fail(err, ROSE_E_FORMAT, "%s: layer_types[%u] is not a string", c->label,
                             i);
        const bool sliding = strcmp(type, "sliding_attention") == 0;
        if (!sliding && strcmp(type, "full_attention") != 0)
            return rose_fail(err, ROSE_E_UNSUPPORTED,
                             "%s: layer_types[%u] '%.60s' is not supported (supported: "
                             "full_attention, sliding_attention)",
                             c->label, i, type);
        set_sliding(a, i, sliding);
    }
    return ROSE_OK;
}

rose_status rose_decoder_layer_types(const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_json *list = rose_config_get(c, "layer_types", NULL);
    bool any = false;
    rose_status st = list == NULL ? ROSE_OK : read_layer_types(c, list, a, err);
    if (st != ROSE_OK) return st;
    for (uint32_t i = 0; i < a->n_layers; i++)
        any = any || (a->layer_flags[i] & ROSE_LAYER_SLIDING) != 0;
    if (any && a->window == 0)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: 'layer_types' has sliding_attention, but there is no sliding_window",
                         c->label);
    if (!any) a->window = 0;
    return ROSE_OK;
}

/* The sliding bits as Qwen's fields say. */
static rose_status read_late_windows(const rose_config *c, rose_arch *a, rose_err *err)
{
    bool use = false;
    uint32_t first = 28;
    const rose_config_u32 f = {"max_window_layers", NULL, 0, ROSE_MAX_VOCAB, false, true};
    rose_status st = rose_config_read_bool(c, "use_sliding_window", &use, err);
    if (st == ROSE_OK) st = rose_config_read_u32(c, &f, &first, err);
    if (st != ROSE_OK) return st;
    if (!use) a->window = 0;
    for (uint32_t i = first; a->window != 0 && i < a->n_layers; i++)
        set_sliding(a, i, true);
    return rose_decoder_layer_types(c, a, err);
}

rose_status rose_decoder_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                               rose_err *err)
{
    const rose_decoder_defaults *d = &f->defaults;
    rose_status st = rose_decoder_parse_base(f, c, a, err);
    if (st == ROSE_OK) st = rose_decoder_rope(c, d, a, err);
    if (st != ROSE_OK || d->windows == ROSE_WINDOWS_NONE) return st;
    if ((st = rose_decoder_window(c, d, a, err)) != ROSE_OK) return st;
    if (d->windows == ROSE_WINDOWS_LATE) return read_late_windows(c, a, err);
    for (uint32_t i = 0; a->window != 0 && i < a->n_layers; i++)
        set_sliding(a, i, true);
    return ROSE_OK;
}
