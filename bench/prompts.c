/* bench/prompts.c - see prompts.h. */
#include "bench/prompts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/siphash.h"
#include "bench/stats.h"
#include "tokenizer/tokenizer.h"

enum { MIN_WORDS = 64, MAX_WORD_BYTES = 24 };

struct rose_prompts {
    rose_tokenizer *tok;
    uint32_t *words; /* the ids of the words; owned */
    uint32_t n_words, context;
};

static bool looks_like_word(const char *s, size_t n)
{
    if (n < 2 || n > MAX_WORD_BYTES || s[0] != ' ') return false;
    for (size_t i = 1; i < n; i++) {
        if ((unsigned char)s[i] > 127 || !isalpha((unsigned char)s[i])) return false;
    }
    return true;
}

static rose_status find_words(rose_prompts *p, rose_err *err)
{
    rose_encoder *enc = NULL;
    rose_ids ids = {0};
    const uint32_t vocab = rose_tokenizer_vocab_size(p->tok);
    rose_status st = rose_encoder_create(&enc, p->tok, err);
    p->words = calloc(vocab, sizeof *p->words);
    if (st == ROSE_OK && p->words == NULL) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    for (uint32_t id = 0; id < vocab && st == ROSE_OK; id++) {
        size_t n;
        const char *bytes = rose_tokenizer_token_bytes(p->tok, id, &n);
        if (bytes == NULL || rose_tokenizer_is_special(p->tok, id) || !looks_like_word(bytes, n))
            continue;
        ids.len = 0;
        st = rose_encode(enc, bytes, n, 0, &ids, err);
        if (st == ROSE_OK && ids.len == 1 && ids.data[0] == id) p->words[p->n_words++] = id;
    }
    if (st == ROSE_OK && p->n_words < MIN_WORDS)
        st =
            rose_fail(err, ROSE_E_UNSUPPORTED,
                      "the vocabulary has %u whole words: too few to build prompts of", p->n_words);
    rose_ids_free(&ids);
    rose_encoder_destroy(enc);
    return st;
}

/* config.json may be of any model family, since rivals serve families that we do not. */
static uint32_t read_context(const char *dir)
{
    static const char *const keys[] = {"n_positions", "max_position_embeddings", "n_ctx"};
    char path[4096];
    rose_buf text = {0};
    rose_json *o = NULL;
    rose_json_error e;
    uint32_t context = 0;
    if (snprintf(path, sizeof path, "%s/config.json", dir) < (int)sizeof path &&
        rose_file_read(&text, path, 16u << 20, NULL) == ROSE_OK &&
        rose_json_parse(&o, text.data, text.len, 0, &e) == ROSE_OK) {
        for (size_t i = 0; i < sizeof keys / sizeof *keys && context == 0; i++) {
            int64_t n = rose_json_int(rose_json_get(o, keys[i]));
            if (n > 0 && n < (1 << 28)) context = (uint32_t)n;
        }
    }
    rose_json_decref(o);
    rose_buf_free(&text);
    return context;
}

rose_status rose_prompts_open(rose_prompts **out, const char *model_dir, rose_err *err)
{
    *out = NULL;
    rose_prompts *p = calloc(1, sizeof *p);
    if (p == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    rose_status st = rose_tokenizer_open(&p->tok, model_dir, err);
    if (st == ROSE_OK) st = find_words(p, err);
    p->context = read_context(model_dir);
    if (st != ROSE_OK) {
        rose_prompts_close(p);
        return st;
    }
    *out = p;
    return ROSE_OK;
}

void rose_prompts_close(rose_prompts *p)
{
    if (p == NULL) return;
    rose_tokenizer_close(p->tok);
    free(p->words);
    free(p);
}

uint32_t rose_prompts_context(const rose_prompts *p)
{
    return p->context;
}

static rose_status add_words(const rose_prompts *p, bool as_ids, rose_random *r, uint32_t n,
                             rose_buf *out)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++) {
        uint32_t id = p->words[rose_random_u32(r) % p->n_words];
        if (as_ids) {
            const char *comma = out->data[out->len - 1] == '[' ? "" : ",";
            st = rose_buf_addf(out, "%s%u", comma, id);
        } else {
            size_t len;
            const char *bytes = rose_tokenizer_token_bytes(p->tok, id, &len);
            st = rose_buf_add(out, bytes, len);
        }
    }
    return st;
}

rose_status rose_prompt_write(const rose_prompts *p, const rose_prompt_spec *s,
                              const rose_load_trace *t, uint32_t i, rose_buf *out)
{
    const rose_load_trace_row *row = &t->rows[i];
    const uint64_t seed = rose_mix64(s->seed + 0x9E3779B97F4A7C15u * (s->variant + 1));
    uint32_t done = 0;
    rose_status st = rose_buf_add(out, s->as_ids ? "[" : "\"", 1);
    if (s->mode == ROSE_PROMPT_TRACE && t->block_tokens > 0) {
        for (uint32_t b = 0; b < row->n_hash && done < row->n_in && st == ROSE_OK; b++) {
            uint32_t n = row->n_in - done < t->block_tokens ? row->n_in - done : t->block_tokens;
            rose_random r = {seed ^ rose_mix64(t->hashes[row->hash0 + b]), 5, 0};
            st = add_words(p, s->as_ids, &r, n, out);
            done += n;
        }
    }
    rose_random r = {seed, s->mode == ROSE_PROMPT_SHARED ? 6 : 16 + i, 0};
    if (st == ROSE_OK) st = add_words(p, s->as_ids, &r, row->n_in - done, out);
    if (st == ROSE_OK) st = rose_buf_add(out, s->as_ids ? "]" : "\"", 1);
    return st;
}
