/* model/decoder.c - the fields of config.json of the families with RMSNorm, RoPE and a gated MLP,
 * as transformers reads them. rope_config.c reads those of the rotary positions. */
#include "model/family.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "model/rope.h"

static rose_status parse_sizes(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                               rose_err *err)
{
    rose_mixer *m = &a->kinds[0].mixer;
    const struct {
        rose_config_u32 field;
        uint32_t *out;
    } sizes[] = {
        {{"hidden_size", NULL, 1, ROSE_MAX_WIDTH, true, false}, &a->d_model},
        {{"num_hidden_layers", NULL, 1, ROSE_MAX_LAYERS, true, false}, &a->n_layers},
        {{"num_attention_heads", NULL, 1, ROSE_MAX_WIDTH, true, false}, &m->n_heads},
        {{"num_key_value_heads", NULL, 1, ROSE_MAX_WIDTH, false, false}, &m->n_kv_heads},
        {{"head_dim", NULL, 2, ROSE_MAX_WIDTH, false, false}, &m->head_dim},
        {{"intermediate_size", NULL, 1, ROSE_MAX_WIDTH * 4, true, false}, &a->kinds[0].mlp.d_ff},
        {{"vocab_size", NULL, 1, ROSE_MAX_VOCAB, true, false}, &a->vocab_size},
        {{"max_position_embeddings", NULL, 1, ROSE_MAX_VOCAB, false, true}, &a->max_positions},
    };
    m->head_dim = d->head_dim;
    a->max_positions = d->context;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        rose_status st = rose_config_read_u32(c, &sizes[i].field, sizes[i].out, err);
        if (st != ROSE_OK) return st;
    }
    if (m->n_kv_heads == 0) m->n_kv_heads = m->n_heads;
    if (m->n_heads % m->n_kv_heads != 0)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: num_attention_heads %u is not a multiple of num_key_value_heads %u",
                         c->label, m->n_heads, m->n_kv_heads);
    if (m->head_dim == 0 && a->d_model % m->n_heads != 0)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: hidden_size %u is not a multiple of num_attention_heads %u, and "
                         "'head_dim' is missing",
                         c->label, a->d_model, m->n_heads);
    if (m->head_dim == 0) m->head_dim = a->d_model / m->n_heads;
    return ROSE_OK;
}

static rose_status parse_biases(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                                rose_err *err)
{
    rose_kind *k = &a->kinds[0];
    rose_status st = ROSE_OK;
    if (d->reads_attn_bias) st = rose_config_read_bool(c, "attention_bias", &k->mixer.o_bias, err);
    if (st == ROSE_OK && d->reads_mlp_bias)
        st = rose_config_read_bool(c, "mlp_bias", &k->mlp.bias, err);
    k->mixer.qkv_bias = d->qkv_bias || k->mixer.o_bias;
    return st;
}

/* Scale of scores and soft caps. */
static rose_status parse_scores(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                                rose_err *err)
{
    rose_mixer *m = &a->kinds[0].mixer;
    float scalar = d->reads_scale ? 256.0f : (float)m->head_dim;
    rose_status st = ROSE_OK;
    if (d->reads_scale) {
        st = rose_config_read_positive(c, "query_pre_attn_scalar", 1e6, &scalar, err);
        if (st == ROSE_OK)
            st = rose_config_read_positive(c, "attn_logit_softcapping", 1e6, &m->softcap, err);
        if (st == ROSE_OK)
            st = rose_config_read_positive(c, "final_logit_softcapping", 1e6, &a->logit_softcap,
                                           err);
    }
    /* sqrt and / are correctly rounded by IEEE 754: the same bits everywhere. */
    m->scale = (float)(1.0 / sqrt((double)scalar));
    return st;
}

static rose_status parse_base(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                              rose_err *err)
{
    const char *act = d->act_field != NULL ? d->act_field : "hidden_act";
    a->norm_eps = d->norm_eps;
    a->tied_head = d->tied_head;
    a->norm_plus_one = d->norm_plus_one;
    rose_status st = parse_sizes(c, d, a, err);
    if (st == ROSE_OK) st = rose_config_read_act(c, act, &a->kinds[0].mlp.act, err);
    if (st == ROSE_OK) st = rose_config_read_positive(c, "rms_norm_eps", 1.0, &a->norm_eps, err);
    if (st == ROSE_OK) st = rose_config_read_bool(c, "tie_word_embeddings", &a->tied_head, err);
    if (st == ROSE_OK) st = parse_biases(c, d, a, err);
    if (st == ROSE_OK) st = rose_config_default_id(c, "bos_token_id", d->bos_id, err);
    if (st == ROSE_OK) st = rose_config_default_id(c, "eos_token_id", d->eos_id, err);
    if (st == ROSE_OK) rose_config_read_bos(c, a);
    if (st == ROSE_OK) rose_config_add_eos(c, a);
    if (d->scaled_embed) a->embed_scale = (float)sqrt((double)a->d_model);
    return st == ROSE_OK ? parse_scores(c, d, a, err) : st;
}

/* ---- layers ---- */

/* The ropes of full and of sliding layers: rope_parameters by layer type, or rope_theta,
 * rope_local_base_freq and rope_scaling, which concerns full layers alone. */
static rose_status parse_two_ropes(const rose_config *c, const rose_decoder_defaults *d,
                                   rose_arch *a, rose_layer_flags *f, rose_err *err)
{
    float theta[2] = {d->theta, d->local_theta};
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

/* no_rope_layers holds 1 for a layer that rotates and 0 for one that does not. */
static rose_status parse_no_rope(const rose_config *c, const rose_decoder_defaults *d,
                                 const rose_arch *a, rose_layer_flags *flags, rose_err *err)
{
    const rose_config_u32 f = {"no_rope_layer_interval", NULL, 1, ROSE_MAX_LAYERS, false, false};
    uint32_t interval = d->no_rope_every;
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

/* sliding_window: d->window if config.json does not have the field, 0 if it is null. */
static rose_status parse_window(const rose_config *c, const rose_decoder_defaults *d,
                                uint32_t *window, rose_err *err)
{
    const rose_config_u32 f = {"sliding_window", NULL, 1, ROSE_MAX_VOCAB, false, true};
    const rose_json *v = rose_json_get(c->root, f.name);
    *window = v == NULL ? d->window : 0;
    if (rose_json_is_number(v) && rose_json_number_value(v) <= 0) {
        char text[64];
        rose_log(ROSE_LOG_WARN, "model", "%s: %s is %s: the model has no window", c->label, f.name,
                 rose_config_describe(v, text));
        return ROSE_OK;
    }
    return rose_config_read_u32(c, &f, window, err);
}

static void set_sliding(rose_layer_flags *f, uint32_t layer, bool sliding)
{
    f->of[layer] &= (uint8_t)~ROSE_LAYER_SLIDING;
    if (sliding) f->of[layer] |= ROSE_LAYER_SLIDING;
}

static rose_status read_layer_types(const rose_config *c, rose_json *list, uint32_t n_layers,
                                    rose_layer_flags *f, rose_err *err)
{
    if (!rose_json_is_array(list) || rose_json_count(list) != n_layers)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: 'layer_types' is not a list of num_hidden_layers (%u) strings",
                         c->label, n_layers);
    for (uint32_t i = 0; i < n_layers; i++) {
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
        set_sliding(f, i, sliding);
    }
    return ROSE_OK;
}

/* layer_types, if the config has it, overrides the sliding bits of *f. A sliding layer without a
 * window is refused. */
static rose_status parse_layer_types(const rose_config *c, const rose_arch *a, rose_layer_flags *f,
                                     rose_err *err)
{
    rose_json *list = rose_config_get(c, "layer_types", NULL);
    bool any = false;
    rose_status st = list == NULL ? ROSE_OK : read_layer_types(c, list, a->n_layers, f, err);
    if (st != ROSE_OK) return st;
    for (uint32_t i = 0; i < a->n_layers; i++)
        any = any || (f->of[i] & ROSE_LAYER_SLIDING) != 0;
    if (any && f->window == 0)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: 'layer_types' has sliding_attention, but there is no sliding_window",
                         c->label);
    return ROSE_OK;
}

/* Which layers slide, by the fields that the family has. */
static rose_status parse_windows(const rose_config *c, const rose_decoder_defaults *d,
                                 const rose_arch *a, rose_layer_flags *flags, rose_err *err)
{
    const rose_config_u32 first_field = {"max_window_layers", NULL, 0, ROSE_MAX_VOCAB, false, true};
    const rose_config_u32 pattern_field = {
        "sliding_window_pattern", "_sliding_window_pattern", 1, ROSE_MAX_LAYERS, false, false};
    const bool late = d->windows == ROSE_WINDOWS_LATE, still = d->windows == ROSE_WINDOWS_STILL;
    uint32_t first = 28, pattern = 6;
    bool use = !late && !still;
    rose_status st = parse_window(c, d, &flags->window, err);
    if (st == ROSE_OK && !use) st = rose_config_read_bool(c, "use_sliding_window", &use, err);
    if (st == ROSE_OK && late) st = rose_config_read_u32(c, &first_field, &first, err);
    if (st == ROSE_OK && d->windows == ROSE_WINDOWS_PATTERN)
        st = rose_config_read_u32(c, &pattern_field, &pattern, err);
    if (st != ROSE_OK) return st;
    if (!use) flags->window = 0;
    const bool any = flags->window != 0 || d->windows == ROSE_WINDOWS_PATTERN;
    for (uint32_t i = 0; any && i < a->n_layers; i++) {
        const bool slides[] = {
            [ROSE_WINDOWS_ALL] = true,
            [ROSE_WINDOWS_LATE] = i >= first,
            [ROSE_WINDOWS_STILL] = (flags->of[i] & ROSE_LAYER_NO_ROPE) != 0,
            [ROSE_WINDOWS_PATTERN] = (i + 1) % pattern != 0,
        };
        set_sliding(flags, i, slides[d->windows]);
    }
    return d->windows == ROSE_WINDOWS_ALL ? ROSE_OK : parse_layer_types(c, a, flags, err);
}

rose_status rose_decoder_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                               rose_err *err)
{
    const rose_decoder_defaults *d = &f->defaults;
    rose_layer_flags flags = {.window = 0};
    rose_status st = parse_base(c, d, a, err);
    if (st == ROSE_OK)
        st = d->local_theta > 0 ? parse_two_ropes(c, d, a, &flags, err)
                                : rose_decoder_rope(c, d, a, err);
    if (d->local_theta == 0) flags.rope = a->kinds[0].mixer.rope;
    if (st == ROSE_OK && d->no_rope_every > 0) st = parse_no_rope(c, d, a, &flags, err);
    if (st == ROSE_OK && d->windows != ROSE_WINDOWS_NONE) st = parse_windows(c, d, a, &flags, err);
    if (st == ROSE_OK) rose_arch_set_kinds(a, &flags);
    return st;
}
