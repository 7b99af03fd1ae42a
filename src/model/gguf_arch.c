/* model/gguf_arch.c - see gguf_arch.h. The metadata come from strangers: a value of the wrong type
 * or out of range is an error that names its key. */
#include "model/gguf_arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

enum { KEY_CAP = 128 };

static void full_key(const rose_gguf_reader *r, const char *name, char out[KEY_CAP])
{
    snprintf(out, KEY_CAP, "%s.%s", r->architecture, name);
}

bool rose_gguf_has(const rose_gguf_reader *r, const char *name)
{
    char key[KEY_CAP];
    full_key(r, name, key);
    return rose_gguf_get(r->g, key) != NULL;
}

rose_status rose_gguf_read_u32(const rose_gguf_reader *r, const char *name, uint32_t min,
                               uint32_t max, uint32_t *out)
{
    char key[KEY_CAP];
    full_key(r, name, key);
    if (rose_gguf_get(r->g, key) == NULL) return ROSE_OK;
    const rose_status st = rose_gguf_get_u32(r->g, key, out, r->err);
    if (st != ROSE_OK || (*out >= min && *out <= max)) return st;
    return rose_fail(r->err, ROSE_E_FORMAT, "%s: '%s' is %u; expected an integer from %u to %u",
                     r->g->label, key, *out, min, max);
}

rose_status rose_gguf_read_f32(const rose_gguf_reader *r, const char *name, float max, float *out)
{
    char key[KEY_CAP];
    full_key(r, name, key);
    if (rose_gguf_get(r->g, key) == NULL) return ROSE_OK;
    const rose_status st = rose_gguf_get_f32(r->g, key, out, r->err);
    if (st != ROSE_OK || (*out >= 1e-30f && *out <= max)) return st;
    return rose_fail(r->err, ROSE_E_FORMAT, "%s: '%s' is %g; expected a number > 0 and <= %g",
                     r->g->label, key, (double)*out, (double)max);
}

static rose_status find_family(const rose_family **out, const rose_gguf *g, rose_err *err)
{
    rose_gguf_str name = {NULL, 0};
    char known[128] = "";
    *out = NULL;
    rose_status st = rose_gguf_get_string(g, "general.architecture", &name, err);
    if (st != ROSE_OK) return st;
    if (name.s == NULL)
        return rose_fail(err, ROSE_E_FORMAT, "%s: 'general.architecture' is missing", g->label);
    size_t n = 0;
    const rose_family *const all = rose_families(&n);
    for (const rose_family *f = all; f < all + n; f++) {
        const char *const a = f->gguf.architecture;
        if (a == NULL) continue;
        if (rose_gguf_str_is(name, a)) {
            *out = f;
            return ROSE_OK;
        }
        const size_t len = strlen(known);
        snprintf(known + len, sizeof known - len, "%s%s", len > 0 ? ", " : "", a);
    }
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s: architecture '%.*s' is not supported (supported: %s)", g->label,
                     (int)(name.n < 60 ? name.n : 60), name.s, known);
}

/* Keys of parts that we do not have. A count of 0 turns such a part off. */
static rose_status refuse_unknown_parts(const rose_gguf_reader *r)
{
    static const char *const counts[] = {"expert_count", "attention.q_lora_rank", "ssm.inner_size"};
    static const char *const parts[] = {
        "attention.max_alibi_bias", "attention.clamp_kqv", "logit_scale",     "residual_scale",
        "embedding_scale",          "attention.scale",     "attention.causal"};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint32_t n = 0;
        const rose_status st = rose_gguf_read_u32(r, counts[i], 0, UINT32_MAX, &n);
        if (st != ROSE_OK) return st;
        if (n > 0)
            return rose_fail(r->err, ROSE_E_UNSUPPORTED, "%s: '%s.%s' is %u: not supported",
                             r->g->label, r->architecture, counts[i], n);
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (rose_gguf_has(r, parts[i]))
            return rose_fail(r->err, ROSE_E_UNSUPPORTED, "%s: '%s.%s' is not supported",
                             r->g->label, r->architecture, parts[i]);
    return ROSE_OK;
}

static rose_status read_sizes(const rose_gguf_reader *r, rose_arch *a)
{
    const struct {
        const char *name;
        uint32_t max;
        uint32_t *out;
    } sizes[] = {
        {"block_count", ROSE_MAX_LAYERS, &a->n_layers},
        {"embedding_length", ROSE_MAX_WIDTH, &a->d_model},
        {"attention.head_count", ROSE_MAX_WIDTH, &a->kinds[0].mixer.n_heads},
        {"feed_forward_length", ROSE_MAX_WIDTH * 4, &a->kinds[0].mlp.d_ff},
        {"context_length", ROSE_MAX_VOCAB, &a->max_positions},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const rose_status st = rose_gguf_read_u32(r, sizes[i].name, 1, sizes[i].max, sizes[i].out);
        if (st != ROSE_OK) return st;
        if (*sizes[i].out == 0)
            return rose_fail(r->err, ROSE_E_FORMAT, "%s: '%s.%s' is missing", r->g->label,
                             r->architecture, sizes[i].name);
    }
    return ROSE_OK;
}

static rose_status read_heads(const rose_gguf_reader *r, rose_arch *a)
{
    rose_mixer *m = &a->kinds[0].mixer;
    uint32_t value_length = 0;
    m->n_kv_heads = m->n_heads;
    m->head_dim = a->d_model % m->n_heads == 0 ? a->d_model / m->n_heads : 0;
    rose_status st =
        rose_gguf_read_u32(r, "attention.head_count_kv", 1, m->n_heads, &m->n_kv_heads);
    if (st == ROSE_OK)
        st = rose_gguf_read_u32(r, "attention.key_length", 1, ROSE_MAX_WIDTH, &m->head_dim);
    if (st == ROSE_OK)
        st = rose_gguf_read_u32(r, "attention.value_length", 1, ROSE_MAX_WIDTH, &value_length);
    if (st != ROSE_OK) return st;
    if (m->head_dim == 0)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: '%s.embedding_length' %u is not a multiple of the %u heads, and "
                         "'%s.attention.key_length' is missing",
                         r->g->label, r->architecture, a->d_model, m->n_heads, r->architecture);
    if (value_length != 0 && value_length != m->head_dim)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: '%s.attention.value_length' is %u, but the keys have %u: not "
                         "supported",
                         r->g->label, r->architecture, value_length, m->head_dim);
    if (m->n_heads % m->n_kv_heads != 0)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: '%s.attention.head_count' %u is not a multiple of "
                         "'%s.attention.head_count_kv' %u",
                         r->g->label, r->architecture, m->n_heads, r->architecture, m->n_kv_heads);
    return ROSE_OK;
}

/* The vocabulary is the token embedding's, because not every file writes vocab_size. */
static rose_status read_vocab(const rose_gguf_reader *r, const rose_weights *w, rose_arch *a)
{
    const rose_st_tensor *t = rose_weights_find(w, "token_embd.weight");
    if (t == NULL || t->n_dims != 2)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: the matrix 'token_embd.weight' is missing%s",
                         r->g->label, w->n_tensors == 0 ? ": the file holds no weights" : "");
    if (t->shape[0] > ROSE_MAX_VOCAB)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: 'token_embd.weight' has %" PRIu64 " rows",
                         r->g->label, t->shape[0]);
    a->vocab_size = (uint32_t)t->shape[0];
    uint32_t n = a->vocab_size;
    const rose_status st = rose_gguf_read_u32(r, "vocab_size", 1, ROSE_MAX_VOCAB, &n);
    if (st == ROSE_OK && n != a->vocab_size)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: '%s.vocab_size' is %u, but 'token_embd.weight' has %u rows",
                         r->g->label, r->architecture, n, a->vocab_size);
    return st;
}

static void find_biases(const rose_weights *w, rose_arch *a)
{
    rose_kind *k = &a->kinds[0];
    k->mixer.qkv_bias = rose_weights_find(w, "blk.0.attn_q.bias") != NULL ||
                        rose_weights_find(w, "blk.0.attn_qkv.bias") != NULL;
    k->mixer.o_bias = rose_weights_find(w, "blk.0.attn_output.bias") != NULL;
    k->mlp.bias = rose_weights_find(w, "blk.0.ffn_up.bias") != NULL;
}

/* Which layers have a window (Gemma). llama.cpp's older converter does not write the pattern, which
 * is then that of every Gemma 3 model: each sixth layer sees everything. */
static rose_status read_pattern(const rose_gguf_reader *r, const rose_arch *a,
                                rose_layer_flags *flags)
{
    static const char name[] = "attention.sliding_window_pattern";
    char key[KEY_CAP];
    uint32_t every = 6;
    full_key(r, name, key);
    const rose_gguf_value *v = rose_gguf_get(r->g, key);
    if (v != NULL && v->is_array) {
        const rose_status st = rose_gguf_get_array(r->g, key, ROSE_GGUF_BOOL, &v, r->err);
        if (st != ROSE_OK) return st;
        if (v->n != a->n_layers)
            return rose_fail(r->err, ROSE_E_FORMAT,
                             "%s: '%s' has %" PRIu64 " elements; expected %u, one for each layer",
                             r->g->label, key, v->n, a->n_layers);
    } else {
        const rose_status st = rose_gguf_read_u32(r, name, 1, ROSE_MAX_LAYERS, &every);
        if (st != ROSE_OK) return st;
        v = NULL;
    }
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (v != NULL ? rose_gguf_bool_at(v, i) : (i + 1) % every != 0)
            flags->of[i] |= ROSE_LAYER_SLIDING;
    return ROSE_OK;
}

/* A window of 0 says that there is none, as the converter writes for some models. Where no
 * key says which layers have the window, only one as long as the context is harmless. */
static rose_status read_layers(const rose_gguf_reader *r, const rose_family *f, const rose_arch *a,
                               rose_layer_flags *flags)
{
    uint32_t *window = &flags->window;
    const uint32_t still = f->defaults.no_rope_every;
    const bool pattern = f->defaults.windows == ROSE_WINDOWS_PATTERN, all = f->gguf.all_sliding;
    for (uint32_t i = 0; still > 0 && i < a->n_layers; i++)
        if ((i + 1) % still == 0) flags->of[i] |= ROSE_LAYER_NO_ROPE;
    const rose_status st = rose_gguf_read_u32(r, "attention.sliding_window", 0, UINT32_MAX, window);
    if (st != ROSE_OK || *window == 0) return st;
    if (!pattern && !all && *window < a->max_positions)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: '%s.attention.sliding_window' is %u: no key says which layers of "
                         "this architecture have the window",
                         r->g->label, r->architecture, *window);
    if (pattern) return read_pattern(r, a, flags);
    if (!all) *window = 0;
    for (uint32_t i = 0; i < a->n_layers; i++)
        flags->of[i] |= ROSE_LAYER_SLIDING;
    return ROSE_OK;
}

static rose_status read_numbers(const rose_gguf_reader *r, const rose_family *f, rose_arch *a)
{
    rose_mixer *m = &a->kinds[0].mixer;
    const char *const eps = a->norm == ROSE_NORM_LAYER ? "attention.layer_norm_epsilon"
                                                       : "attention.layer_norm_rms_epsilon";
    rose_status st = rose_gguf_read_f32(r, eps, 1.0f, &a->norm_eps);
    if (st == ROSE_OK && a->norm_eps == 0.0f)
        st = rose_fail(r->err, ROSE_E_FORMAT, "%s: '%s.%s' is missing", r->g->label,
                       r->architecture, eps);
    if (st == ROSE_OK) st = rose_gguf_read_f32(r, "attn_logit_softcapping", 1e6f, &m->softcap);
    if (st == ROSE_OK)
        st = rose_gguf_read_f32(r, "final_logit_softcapping", 1e6f, &a->logit_softcap);
    m->scale = (float)(1.0 / sqrt((double)m->head_dim));
    if (f->defaults.scaled_embed) a->embed_scale = (float)sqrt((double)a->d_model);
    /* The one Gemma 3 model whose scale is not that of head_dim; no key says so. */
    if (f->defaults.reads_scale && a->n_layers == 62)
        m->scale = (float)(1.0 / sqrt((double)a->d_model / m->n_heads));
    return st;
}

/* Calls that change what other texts mean in the lists of llama.cpp. */
typedef struct turn_ends {
    bool has_return, has_call, has_flush, has_plain_s;
    uint64_t end, s; /* ids of <|end|> and </s>; UINT64_MAX: none */
} turn_ends;

static void note_turn_end(turn_ends *e, rose_gguf_str s, uint64_t id)
{
    e->has_return |= rose_gguf_str_is(s, "<|return|>");
    e->has_call |= rose_gguf_str_is(s, "<|call|>") || rose_gguf_str_is(s, "<|calls|>");
    e->has_flush |= rose_gguf_str_is(s, "<|flush|>");
    e->has_plain_s |= rose_gguf_str_is(s, "<|tool_response>");
    if (rose_gguf_str_is(s, "<|end|>")) e->end = id;
    if (rose_gguf_str_is(s, "</s>")) e->s = id;
}

/* A file names one end-of-text id, but a chat model may end its turn with another token, which only
 * its text tells. llama.cpp looks for the same texts. In gpt-oss and Solar <|end|> ends only a
 * channel, and in Gemma 4 </s> is text. */
static rose_status find_turn_ends(const rose_gguf *g, rose_arch *a, rose_err *err)
{
    const rose_gguf_value *v = NULL, *types = NULL;
    turn_ends e = {.end = UINT64_MAX, .s = UINT64_MAX};
    rose_gguf_str s;
    rose_status st = rose_gguf_get_array(g, "tokenizer.ggml.tokens", ROSE_GGUF_STRING, &v, err);
    if (st == ROSE_OK)
        st = rose_gguf_get_array(g, "tokenizer.ggml.token_type", ROSE_GGUF_I32, &types, err);
    if (st != ROSE_OK || v == NULL) return st;
    size_t at = 0;
    for (uint64_t id = 0; rose_gguf_next_string(v, &at, &s); id++) {
        const bool typed = types != NULL && id < types->n;
        const int32_t type = typed ? (int32_t)rose_gguf_u32_at(types, id) : 0;
        if (rose_gguf_token_kind_of(s, type) != ROSE_GGUF_ENDS_TEXT) continue;
        note_turn_end(&e, s, id);
        if (id != e.end && id != e.s) rose_arch_add_eos(a, id);
    }
    if (!(e.has_call && (e.has_return || e.has_flush))) rose_arch_add_eos(a, e.end);
    if (!e.has_plain_s) rose_arch_add_eos(a, e.s);
    return ROSE_OK;
}

static rose_status read_ids(const rose_gguf *g, rose_arch *a, rose_err *err)
{
    static const char *const keys[] = {
        "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"};
    uint32_t bos = UINT32_MAX;
    if (!rose_gguf_get_id(g, "tokenizer.ggml.bos_token_id", a->vocab_size, &bos))
        rose_log(ROSE_LOG_WARN, "model",
                 "%s: tokenizer.ggml.bos_token_id is outside the vocabulary of %u tokens: ignored",
                 g->label, a->vocab_size);
    a->bos_id = bos < a->vocab_size ? (int64_t)bos : -1;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t id = UINT32_MAX;
        if (!rose_gguf_get_id(g, keys[i], a->vocab_size, &id))
            rose_log(ROSE_LOG_WARN, "model",
                     "%s: %s is outside the vocabulary of %u tokens: it never ends a text",
                     g->label, keys[i], a->vocab_size);
        rose_arch_add_eos(a, id);
    }
    return find_turn_ends(g, a, err);
}

rose_status rose_gguf_read_arch(const rose_family **out, rose_weights *w, rose_arch *a,
                                rose_err *err)
{
    const rose_gguf *g = rose_weights_gguf(w);
    rose_status st = find_family(out, g, err);
    if (st != ROSE_OK) return st;
    const rose_family *f = *out;
    rose_layer_flags flags = {.window = 0};
    const rose_gguf_reader r = {g, f->gguf.architecture, err};
    rose_family_describe(f, a);
    st = refuse_unknown_parts(&r);
    if (st == ROSE_OK) st = read_sizes(&r, a);
    if (st == ROSE_OK) st = read_heads(&r, a);
    if (st == ROSE_OK) st = read_vocab(&r, w, a);
    if (st == ROSE_OK) st = read_numbers(&r, f, a);
    if (st == ROSE_OK) st = read_layers(&r, f, a, &flags);
    if (st == ROSE_OK && a->pos == ROSE_POS_ROPE)
        st = rose_gguf_read_rope(f, w, a, &flags.rope, err);
    if (st == ROSE_OK) st = read_ids(g, a, err);
    if (st != ROSE_OK) return st;
    find_biases(w, a);
    rose_arch_set_kinds(a, &flags);
    return ROSE_OK;
}
