/* libFuzzer target: the GGUF reader on arbitrary bytes, and the architecture and the tokenizer that
 * the metadata describe. What the reader accepts must lie within the input; the sanitizer watches
 * the reads. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "model/gguf_arch.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_inside(const uint8_t *data, size_t size, const void *p, size_t n)
{
    const uint8_t *at = p;
    if (at < data || at > data + size || n > (size_t)(data + size - at)) abort();
}

/* Every accessor on every pair, also on the wrong types. Sums what was read, so that the reads
 * happen. */
static unsigned read_pair(const rose_gguf *g, const rose_gguf_pair *p)
{
    const rose_gguf_value *v = &p->value, *array;
    char key[64];
    unsigned sum = v->n_bytes > 0 ? v->data[0] + v->data[v->n_bytes - 1] : 0u;
    uint32_t n = 0;
    float f = 0;
    bool b = false;
    rose_gguf_str s = {"", 0};
    if (p->key.n >= sizeof key) return sum;
    snprintf(key, sizeof key, "%.*s", (int)p->key.n, p->key.s);
    if (rose_gguf_get(g, key) != v) abort();
    (void)rose_gguf_get_u32(g, key, &n, NULL);
    (void)rose_gguf_get_f32(g, key, &f, NULL);
    (void)rose_gguf_get_bool(g, key, &b, NULL);
    (void)rose_gguf_get_string(g, key, &s, NULL);
    sum += n + (f > 0) + b + (s.n > 0 ? (unsigned char)s.s[s.n - 1] : 0u);
    if (rose_gguf_get_array(g, key, ROSE_GGUF_STRING, &array, NULL) == ROSE_OK)
        for (size_t at = 0; rose_gguf_next_string(array, &at, &s);)
            sum += s.n > 0 ? (unsigned char)s.s[s.n - 1] : 0u;
    if (rose_gguf_get_array(g, key, ROSE_GGUF_I32, &array, NULL) == ROSE_OK && array->n > 0)
        sum += rose_gguf_u32_at(array, array->n - 1);
    return sum;
}

static void read_container(const uint8_t *data, size_t size, const rose_gguf *g)
{
    volatile unsigned sum = 0;
    for (size_t i = 0; i < g->n_pairs; i++) {
        check_inside(data, size, g->pairs[i].key.s, g->pairs[i].key.n);
        check_inside(data, size, g->pairs[i].value.data, g->pairs[i].value.n_bytes);
        sum += read_pair(g, &g->pairs[i]);
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        const rose_gguf_tensor *t = &g->tensors[i];
        const uint64_t n = t->end - t->begin;
        if (n == 0 || t->begin % g->alignment != 0) abort();
        check_inside(data, size, t->data, n);
        if (i > 0 && t->begin < g->tensors[i - 1].end) abort();
        sum += t->data[0] + t->data[n - 1];
    }
    (void)sum; /* the reads themselves are the test: a bad pointer faults */
}

static void read_arch(rose_weights *w)
{
    const rose_family *family = NULL;
    rose_arch a = {0};
    rose_err err;
    if (rose_gguf_read_arch(&family, w, &a, &err) == ROSE_OK) {
        if (a.n_layers == 0 || a.n_kinds == 0 || a.n_kinds > ROSE_MAX_KINDS ||
            a.n_eos > ROSE_MAX_EOS)
            abort();
        for (uint32_t i = 0; i < a.n_layers; i++) {
            const rose_mixer *m = &rose_arch_kind(&a, i)->mixer;
            if (a.kind_of[i] >= a.n_kinds || m->head_dim == 0 || m->n_heads % m->n_kv_heads != 0 ||
                m->rope.dim > m->head_dim)
                abort();
        }
    }
    rose_arch_free(&a);
}

/* A tokenizer that loads must encode any text and decode what it gave. */
static void read_tokenizer(const rose_gguf *g)
{
    static const char text[] = "<s>Ab 12\n  \xc3\xa9\xe2\x96\x81\xff<|im_end|> it's";
    rose_tokenizer *t = NULL;
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_err err;
    if (rose_tokenizer_open_gguf(&t, g, &err) != ROSE_OK) return;
    if (rose_encoder_create(&e, t, &err) != ROSE_OK ||
        rose_encode(e, text, sizeof text - 1, ROSE_ENCODE_ADD_SPECIAL, &ids, &err) != ROSE_OK)
        abort();
    for (size_t i = 0; i < ids.len; i++) {
        size_t n;
        if (rose_tokenizer_token_bytes(t, ids.data[i], &n) == NULL) abort();
    }
    rose_ids_free(&ids);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rose_gguf g;
    rose_weights *w = NULL;
    rose_err err;
    if (rose_gguf_parse(&g, data, size, "fuzz", &err) != ROSE_OK) return 0;
    read_container(data, size, &g);
    rose_log_set_level(ROSE_LOG_OFF);
    read_tokenizer(&g);
    rose_gguf_close(&g);
    if (rose_weights_parse_gguf(&w, data, size, "fuzz", &err) == ROSE_OK) read_arch(w);
    rose_weights_close(w);
    return 0;
}
