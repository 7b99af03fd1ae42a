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

enum { MIN_WORDS = 64, MAX_WORD_BYTES = 24, AGAIN_BYTES = 128 };

struct rose_prompts {
    rose_tokenizer *tok;
    rose_encoder *enc;
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
    rose_ids ids = {0};
    const uint32_t vocab = rose_tokenizer_vocab_size(p->tok);
    rose_status st = rose_encoder_create(&p->enc, p->tok, err);
    p->words = calloc(vocab, sizeof *p->words);
    if (st == ROSE_OK && p->words == NULL) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    for (uint32_t id = 0; id < vocab && st == ROSE_OK; id++) {
        size_t n;
        const char *bytes = rose_tokenizer_token_bytes(p->tok, id, &n);
        if (bytes == NULL || rose_tokenizer_is_special(p->tok, id) || !looks_like_word(bytes, n))
            continue;
        ids.len = 0;
        st = rose_encode(p->enc, bytes, n, 0, &ids, err);
        if (st == ROSE_OK && ids.len == 1 && ids.data[0] == id) p->words[p->n_words++] = id;
    }
    if (st == ROSE_OK && p->n_words < MIN_WORDS)
        st =
            rose_fail(err, ROSE_E_UNSUPPORTED,
                      "the vocabulary has %u whole words: too few to build prompts of", p->n_words);
    rose_ids_free(&ids);
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
    rose_encoder_destroy(p->enc);
    rose_tokenizer_close(p->tok);
    free(p->words);
    free(p);
}

uint32_t rose_prompts_context(const rose_prompts *p)
{
    return p->context;
}

static rose_status add_id(rose_buf *out, uint32_t id)
{
    return rose_buf_addf(out, "%s%u", out->data[out->len - 1] == '[' ? "" : ",", id);
}

static rose_status add_words(const rose_prompts *p, bool as_ids, rose_random *r, uint32_t n,
                             rose_buf *out)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++) {
        uint32_t id = p->words[rose_random_u32(r) % p->n_words];
        if (as_ids) {
            st = add_id(out, id);
        } else {
            size_t len;
            const char *bytes = rose_tokenizer_token_bytes(p->tok, id, &len);
            st = rose_buf_add(out, bytes, len);
        }
    }
    return st;
}

/* ---- real text ---- */

/* A prime number of them, so that steps of any length visit each once. No quote, no backslash. */
static const char *const sentences[] = {
    " The harbour master keeps three ledgers and reads the third one only in winter.",
    " Mix flour, water, salt and a little yeast until no dry flour is left in the bowl.",
    " In 1911 the old bridge carried forty carts a day; now it carries four thousand cars.",
    " A river that is straightened runs faster, and so it digs its own bed deeper each year.",
    " The committee met on Tuesday and agreed to paint the doors of the school green.",
    " If the needle does not fall to zero, close the valve again and wait for ten minutes.",
    " My grandmother could tell from the smell of the hay whether it would rain at night.",
    " Light needs eight minutes from the sun to us, and a little over a second from the moon.",
    " The function returns the number of bytes that it wrote, or a negative number on failure.",
    " Nobody had told the new teacher that the bell of the north tower rings a minute late.",
    " Bees see blue and yellow well, but a red flower looks almost black to them.",
    " She put the letter back into its envelope, turned off the lamp and went down the stairs.",
    " To change a tyre, loosen the bolts first and lift the car only then.",
    " The price of copper rose by six percent in March and fell by four percent in April.",
    " Old maps show an island here, with a well and two trees, where there is only water.",
    " A good index makes a book longer by ten pages and shorter by many hours.",
    " The dog waited at the station every evening, although the last train no longer came.",
    " Cut the onions fine, let them turn soft in butter, and add the rice before they brown.",
    " Each table of the database has a key, and no two rows may have the same one.",
    " The miners took a canary with them because it fainted long before they did.",
    " On the second page of the contract it says who pays when the roof leaks.",
    " After the storm the children found glass, rope and a wooden shoe on the beach.",
    " Sound travels faster in water than in air, which is why whales can talk across a sea.",
};

/* Appends the words of text that fit into *left tokens, and subtracts these. After the first word
 * that does not fit *left is 0. */
static rose_status add_text(const rose_prompts *p, bool as_ids, const char *text, uint32_t *left,
                            rose_buf *out)
{
    rose_ids ids = {0};
    rose_status st = ROSE_OK;
    while (*text != '\0' && *left > 0 && st == ROSE_OK) {
        const size_t len = 1 + strcspn(text + 1, " ");
        ids.len = 0;
        st = rose_encode(p->enc, text, len, 0, &ids, NULL);
        if (st == ROSE_OK && ids.len > *left) {
            *left = 0;
            break;
        }
        if (st == ROSE_OK && !as_ids) st = rose_buf_add(out, text, len);
        for (size_t i = 0; i < ids.len && as_ids && st == ROSE_OK; i++)
            st = add_id(out, ids.data[i]);
        *left -= (uint32_t)ids.len;
        text += len;
    }
    rose_ids_free(&ids);
    return st;
}

/* The end of a prompt that asks for its text again. A small model begins the copy only if the first
 * words are there. */
static void write_again(const char *sentence, char out[AGAIN_BYTES])
{
    size_t len = 0;
    for (int k = 0; k < 5; k++)
        len += 1 + strcspn(sentence + len + 1, " ");
    snprintf(out, AGAIN_BYTES, " The same text once more:%.*s", (int)len, sentence);
}

/* A prompt of ROSE_PROMPT_TEXT. If not one word of it fits, the prompt is n random words. */
static rose_status add_sentences(const rose_prompts *p, bool as_ids, rose_random *r, uint32_t n,
                                 bool twice, rose_buf *out)
{
    enum { N = sizeof sentences / sizeof *sentences };
    const uint32_t first = rose_random_u32(r) % N, step = 1 + rose_random_u32(r) % (N - 1);
    const size_t before = out->len;
    char again[AGAIN_BYTES];
    rose_buf unused = {0};
    uint32_t end = UINT32_MAX;
    write_again(sentences[first], again);
    rose_status st = add_text(p, false, again, &end, &unused);
    rose_buf_free(&unused);
    end = UINT32_MAX - end; /* tokens of `again` */
    if (n < 2 * end) twice = false;
    uint32_t left = twice ? n - end : n;
    for (uint32_t k = 0; k < N && left > 0 && st == ROSE_OK; k++)
        st = add_text(p, as_ids, sentences[(first + k * step) % N], &left, out);
    if (twice && st == ROSE_OK) st = add_text(p, as_ids, again, &end, out);
    if (out->len == before && st == ROSE_OK) st = add_words(p, as_ids, r, n, out);
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
    if (st == ROSE_OK && s->mode == ROSE_PROMPT_TEXT)
        st = add_sentences(p, s->as_ids, &r, row->n_in, i % 2 == 0, out);
    else if (st == ROSE_OK)
        st = add_words(p, s->as_ids, &r, row->n_in - done, out);
    if (st == ROSE_OK) st = rose_buf_add(out, s->as_ids ? "]" : "\"", 1);
    return st;
}
