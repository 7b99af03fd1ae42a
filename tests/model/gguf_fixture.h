/* GGUF files for tests, written by a small writer of our own: bytes, then whole models. */
#ifndef ROSE_TESTS_MODEL_GGUF_FIXTURE_H
#define ROSE_TESTS_MODEL_GGUF_FIXTURE_H

#include "model/fixture.h"

#include "base/gguf.h"

/* A file under construction. Tensors are collected first, because the directory holds offsets. */
typedef struct gw_tensor {
    char name[ROSE_GGUF_MAX_NAME + 1];
    uint32_t type;
    uint32_t n_dims;
    uint64_t shape[4]; /* outermost first */
} gw_tensor;

typedef struct gw {
    rose_buf pairs, data;
    uint64_t n_pairs;
    gw_tensor tensors[128];
    size_t n_tensors;
    uint32_t version, alignment;
} gw;

static inline void gw_bytes(rose_buf *b, const void *p, size_t n)
{
    assert_int_equal(rose_buf_add(b, p, n), ROSE_OK);
}

static inline void gw_u32_raw(rose_buf *b, uint32_t n)
{
    gw_bytes(b, &n, sizeof n);
}

static inline void gw_u64_raw(rose_buf *b, uint64_t n)
{
    gw_bytes(b, &n, sizeof n);
}

static inline void gw_string_raw(rose_buf *b, const char *s)
{
    gw_u64_raw(b, strlen(s));
    gw_bytes(b, s, strlen(s));
}

static inline void gw_key(gw *w, const char *key, uint32_t type)
{
    gw_string_raw(&w->pairs, key);
    gw_u32_raw(&w->pairs, type);
    w->n_pairs++;
}

static inline void gw_u32(gw *w, const char *key, uint32_t n)
{
    gw_key(w, key, ROSE_GGUF_U32);
    gw_u32_raw(&w->pairs, n);
}

static inline void gw_u16(gw *w, const char *key, uint16_t n)
{
    gw_key(w, key, ROSE_GGUF_U16);
    gw_bytes(&w->pairs, &n, sizeof n);
}

static inline void gw_f32(gw *w, const char *key, float f)
{
    gw_key(w, key, ROSE_GGUF_F32);
    gw_bytes(&w->pairs, &f, sizeof f);
}

static inline void gw_string(gw *w, const char *key, const char *s)
{
    gw_key(w, key, ROSE_GGUF_STRING);
    gw_string_raw(&w->pairs, s);
}

static inline void gw_array(gw *w, const char *key, uint32_t type, uint64_t n)
{
    gw_key(w, key, ROSE_GGUF_ARRAY);
    gw_u32_raw(&w->pairs, type);
    gw_u64_raw(&w->pairs, n);
}

static inline void gw_free(gw *w)
{
    rose_buf_free(&w->pairs);
    rose_buf_free(&w->data);
    free(w);
}

static inline gw *gw_new(void)
{
    gw *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->version = 3;
    w->alignment = 32;
    return w;
}

static inline size_t gw_tensor_bytes(const gw_tensor *t)
{
    const rose_gguf_format *f = rose_gguf_format_find(t->type);
    assert_non_null(f);
    size_t n = t->shape[t->n_dims - 1] / f->block * f->block_bytes;
    for (uint32_t i = 0; i + 1 < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

/* cols 0 = a vector of rows elements. Type 0 = F32. */
static inline void gw_add(gw *w, const char *name, uint32_t type, uint64_t rows, uint64_t cols)
{
    assert_true(w->n_tensors < sizeof w->tensors / sizeof w->tensors[0]);
    gw_tensor *t = &w->tensors[w->n_tensors++];
    *t = (gw_tensor){.type = type, .n_dims = cols > 0 ? 2 : 1, .shape = {rows, cols}};
    snprintf(t->name, sizeof t->name, "%s", name);
}

static inline void gw_pad(rose_buf *b, uint32_t alignment)
{
    while (b->len % alignment != 0)
        gw_bytes(b, "", 1);
}

/* The whole file. Data that the test did not set are 0x3C bytes, finite in every type. */
static inline void gw_build(const gw *w, rose_buf *out)
{
    uint64_t at = 0;
    out->len = 0;
    gw_bytes(out, "GGUF", 4);
    gw_u32_raw(out, w->version);
    gw_u64_raw(out, w->n_tensors);
    gw_u64_raw(out, w->n_pairs);
    if (w->pairs.len > 0) gw_bytes(out, w->pairs.data, w->pairs.len);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const gw_tensor *t = &w->tensors[i];
        gw_string_raw(out, t->name);
        gw_u32_raw(out, t->n_dims);
        for (uint32_t d = t->n_dims; d-- > 0;)
            gw_u64_raw(out, t->shape[d]);
        gw_u32_raw(out, t->type);
        gw_u64_raw(out, at);
        at = (at + gw_tensor_bytes(t) + w->alignment - 1) / w->alignment * w->alignment;
    }
    if (w->n_tensors == 0) return;
    gw_pad(out, w->alignment);
    const size_t head = out->len;
    for (uint64_t i = 0; i < at; i++)
        gw_bytes(out, i < w->data.len ? w->data.data + i : "\x3c", 1);
    assert_int_equal(out->len, head + at);
}

static inline void gw_put(const gw *w, const char *dir, const char *name)
{
    rose_buf b = {0};
    gw_build(w, &b);
    put_file(dir, name, b.data, b.len);
    rose_buf_free(&b);
}

/* ---- tiny models ---- */

enum {
    GG_LAYERS = 4,
    GG_D = 64,
    GG_HEADS = 4,
    GG_KV = 2,
    GG_HEAD = 32, /* free of the width */
    GG_FF = 96,
    GG_VOCAB = 48,
    GG_CONTEXT = 256
};

static inline void gg_u32(gw *w, const char *arch, const char *name, uint32_t n)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gw_u32(w, key, n);
}

static inline void gg_f32(gw *w, const char *arch, const char *name, float f)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    gw_f32(w, key, f);
}

static inline void gg_layer_tensor(gw *w, int layer, const char *name, uint32_t type, uint64_t rows,
                                   uint64_t cols)
{
    char full[128];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    gw_add(w, full, type, rows, cols);
}

static inline void gg_keys(gw *w, const char *arch)
{
    const bool gpt2 = strcmp(arch, "gpt2") == 0;
    gw_string(w, "general.architecture", arch);
    gg_u32(w, arch, "block_count", GG_LAYERS);
    gg_u32(w, arch, "embedding_length", GG_D);
    gg_u32(w, arch, "attention.head_count", GG_HEADS);
    gg_u32(w, arch, "feed_forward_length", GG_FF);
    gg_u32(w, arch, "context_length", GG_CONTEXT);
    gg_f32(w, arch, gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
           1e-5f);
    if (gpt2) return;
    gg_u32(w, arch, "attention.head_count_kv", GG_KV);
    gg_u32(w, arch, "attention.key_length", GG_HEAD);
    gg_u32(w, arch, "attention.value_length", GG_HEAD);
}

/* The tensors of one layer; type: of the matrices. */
static inline void gg_layer(gw *w, const char *arch, int i, uint32_t type)
{
    const bool gpt2 = strcmp(arch, "gpt2") == 0, phi3 = strcmp(arch, "phi3") == 0;
    const bool gemma = strcmp(arch, "gemma3") == 0, qwen3 = strcmp(arch, "qwen3") == 0;
    const uint64_t q = gpt2 ? GG_D : GG_HEADS * GG_HEAD, kv = gpt2 ? GG_D : GG_KV * GG_HEAD;
    gg_layer_tensor(w, i, "attn_norm.weight", 0, GG_D, 0);
    gg_layer_tensor(w, i, "ffn_norm.weight", 0, GG_D, 0);
    gg_layer_tensor(w, i, "attn_output.weight", type, GG_D, q);
    gg_layer_tensor(w, i, "ffn_down.weight", type, GG_D, GG_FF);
    gg_layer_tensor(w, i, "ffn_up.weight", type, phi3 ? 2 * GG_FF : GG_FF, GG_D);
    if (gpt2 || phi3) {
        gg_layer_tensor(w, i, "attn_qkv.weight", type, q + 2 * kv, GG_D);
    } else {
        gg_layer_tensor(w, i, "attn_q.weight", type, q, GG_D);
        gg_layer_tensor(w, i, "attn_k.weight", type, kv, GG_D);
        gg_layer_tensor(w, i, "attn_v.weight", type, kv, GG_D);
        gg_layer_tensor(w, i, "ffn_gate.weight", type, GG_FF, GG_D);
    }
    if (strcmp(arch, "qwen2") == 0) {
        gg_layer_tensor(w, i, "attn_q.bias", 0, q, 0);
        gg_layer_tensor(w, i, "attn_k.bias", 0, kv, 0);
        gg_layer_tensor(w, i, "attn_v.bias", 0, kv, 0);
    }
    if (gemma || qwen3) {
        gg_layer_tensor(w, i, "attn_q_norm.weight", 0, GG_HEAD, 0);
        gg_layer_tensor(w, i, "attn_k_norm.weight", 0, GG_HEAD, 0);
    }
    if (gemma) {
        gg_layer_tensor(w, i, "post_attention_norm.weight", 0, GG_D, 0);
        gg_layer_tensor(w, i, "post_ffw_norm.weight", 0, GG_D, 0);
    }
    if (!gpt2) return;
    gg_layer_tensor(w, i, "attn_norm.bias", 0, GG_D, 0);
    gg_layer_tensor(w, i, "ffn_norm.bias", 0, GG_D, 0);
    gg_layer_tensor(w, i, "attn_qkv.bias", 0, q + 2 * kv, 0);
    gg_layer_tensor(w, i, "attn_output.bias", 0, GG_D, 0);
    gg_layer_tensor(w, i, "ffn_up.bias", 0, GG_FF, 0);
    gg_layer_tensor(w, i, "ffn_down.bias", 0, GG_D, 0);
}

/* A whole model without an output matrix; the caller may add keys and tensors. */
static inline gw *gg_model(const char *arch, uint32_t type)
{
    gw *w = gw_new();
    gg_keys(w, arch);
    gw_add(w, "token_embd.weight", type, GG_VOCAB, GG_D);
    gw_add(w, "output_norm.weight", 0, GG_D, 0);
    if (strcmp(arch, "gpt2") == 0) {
        gw_add(w, "position_embd.weight", 0, GG_CONTEXT, GG_D);
        gw_add(w, "output_norm.bias", 0, GG_D, 0);
    }
    for (int i = 0; i < GG_LAYERS; i++)
        gg_layer(w, arch, i, type);
    return w;
}

#endif
