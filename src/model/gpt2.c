/* model/gpt2.c - the GPT-2 family: the fields of config.json as transformers'
 * GPT2LMHeadModel reads them. */
#include <math.h>

#include "model/family.h"

static rose_status parse_sizes(const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_mixer *m = &a->kinds[0].mixer;
    uint32_t *d_ff = &a->kinds[0].mlp.d_ff;
    const struct {
        rose_config_u32 field;
        uint32_t *out;
    } sizes[] = {
        {{"n_embd", "hidden_size", 1, ROSE_MAX_WIDTH, true, false}, &a->d_model},
        {{"n_layer", "num_hidden_layers", 1, ROSE_MAX_LAYERS, true, false}, &a->n_layers},
        {{"n_head", "num_attention_heads", 1, ROSE_MAX_WIDTH, true, false}, &m->n_heads},
        {{"n_positions", "n_ctx", 1, ROSE_MAX_VOCAB, false, false}, &a->max_positions},
        {{"vocab_size", NULL, 1, ROSE_MAX_VOCAB, true, false}, &a->vocab_size},
        {{"n_inner", NULL, 1, ROSE_MAX_WIDTH * 4, false, false}, d_ff},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        rose_status st = rose_config_read_u32(c, &sizes[i].field, sizes[i].out, err);
        if (st != ROSE_OK) return st;
    }
    if (a->d_model % m->n_heads != 0)
        return rose_fail(err, ROSE_E_FORMAT, "%s: n_embd %u is not a multiple of n_head %u",
                         c->label, a->d_model, m->n_heads);
    m->head_dim = a->d_model / m->n_heads;
    m->n_kv_heads = m->n_heads;
    if (*d_ff == 0) *d_ff = 4 * a->d_model;
    return ROSE_OK;
}

static rose_status parse_options(const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_kind *k = &a->kinds[0];
    bool scale = true, upcast = false, cross = false;
    const struct {
        const char *name;
        bool *out;
    } flags[] = {
        {"scale_attn_weights", &scale},
        {"scale_attn_by_inverse_layer_idx", &k->mixer.scale_by_layer},
        {"reorder_and_upcast_attn", &upcast}, /* it only affects precision in training */
        {"add_cross_attention", &cross},
        {"tie_word_embeddings", &a->tied_head},
    };
    rose_status st = ROSE_OK;
    for (size_t i = 0; st == ROSE_OK && i < sizeof flags / sizeof flags[0]; i++)
        st = rose_config_read_bool(c, flags[i].name, flags[i].out, err);
    if (st == ROSE_OK) st = rose_config_read_act(c, "activation_function", &k->mlp.act, err);
    if (st == ROSE_OK)
        st = rose_config_read_positive(c, "layer_norm_epsilon", 1.0, &a->norm_eps, err);
    if (st != ROSE_OK) return st;
    if (cross)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: add_cross_attention is true: cross attention is not supported",
                         c->label);
    /* IEEE 754 rounds the square root and the division correctly, so the bits are the same
     * everywhere. */
    k->mixer.scale = scale ? (float)(1.0 / sqrt((double)k->mixer.head_dim)) : 1.0f;
    return ROSE_OK;
}

rose_status rose_gpt2_parse(const rose_family *f, const rose_config *c, rose_arch *a, rose_err *err)
{
    rose_kind *k = &a->kinds[0];
    (void)f;
    a->norm_eps = 1e-5f;
    a->max_positions = 1024;
    a->tied_head = k->mixer.qkv_bias = k->mixer.o_bias = k->mlp.bias = true;
    rose_status st = parse_sizes(c, a, err);
    if (st == ROSE_OK) st = parse_options(c, a, err);
    if (st == ROSE_OK) rose_config_read_bos(c, a);
    if (st == ROSE_OK) rose_config_add_eos(c, a);
    return st;
}
