/* tokenizer/load_common.c - shared by both kinds of model folder: JSON files, the vocabulary,
 * merges, added tokens. The rules are those of `tokenizers`, with one exception. Where these
 * rules would give a token another id than the file says, or give two tokens one id, we refuse
 * the file. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "tokenizer/tokenizer_internal.h"

enum { MAX_JSON_BYTES = 256 << 20 };

rose_status rose_load_json(json_t **out, const char *path, rose_err *err)
{
    rose_buf text = {0};
    json_error_t jerr;

    *out = NULL;
    rose_status st = rose_file_read(&text, path, MAX_JSON_BYTES, err);
    if (st != ROSE_OK) goto done;
    *out = json_loadb(text.len > 0 ? text.data : "", text.len, JSON_ALLOW_NUL, &jerr);
    if (*out == NULL) {
        st = rose_fail(err, ROSE_E_FORMAT, "%s: line %d: %s", path, jerr.line, jerr.text);
        goto done;
    }
    if (!json_is_object(*out)) {
        st = rose_fail(err, ROSE_E_FORMAT, "%s: not a JSON object", path);
        json_decref(*out);
        *out = NULL;
    }
done:
    rose_buf_free(&text);
    return st;
}

rose_status rose_load_vocab(rose_tokenizer *t, const json_t *vocab, rose_err *err)
{
    rose_buf bytes = {0};
    uint8_t *is_raw = NULL;
    rose_status st = ROSE_OK;
    const char *key;
    json_t *value;
    size_t n_raw = 0;

    if ((is_raw = calloc(ROSE_MAX_ID, 1)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
        goto done;
    }
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value)
    {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= (json_int_t)ROSE_MAX_ID) {
            st = rose_fail(err, ROSE_E_FORMAT,
                           "tokenizer: the id of token \"%.40s\" is not an integer in [0, %u)", key,
                           ROSE_MAX_ID);
            goto done;
        }
        bytes.len = 0;
        bool mapped = rose_alphabet_to_bytes(key, strlen(key), &bytes, &st);
        if (st != ROSE_OK) {
            rose_fail(err, st, "tokenizer: out of memory");
            goto done;
        }
        is_raw[id] = !mapped;
        n_raw += !mapped;
        st = rose_vocab_put(&t->vocab, (uint32_t)id, bytes.data, bytes.len, 0, false, err);
        if (st != ROSE_OK) goto done;
        t->vocab.n_model++;
    }
    if (t->vocab.n_model == n_raw) {
        st = rose_fail(err, ROSE_E_FORMAT,
                       "tokenizer: the vocabulary has no token of the byte-level alphabet");
        goto done;
    }
    st = rose_vocab_index(&t->vocab, is_raw, err);
done:
    free(is_raw);
    rose_buf_free(&bytes);
    return st;
}

/* Finds the id of a text in the vocabulary; false if the vocabulary does not have the text. */
static bool vocab_id(const json_t *vocab, const char *text, size_t len, uint32_t *id)
{
    const json_t *v = json_object_getn(vocab, text, len);
    if (v == NULL) return false;
    *id = (uint32_t)json_integer_value(v);
    return true;
}

rose_status rose_load_merges(rose_tokenizer *t, const json_t *vocab, rose_merge_source *src,
                             rose_err *err)
{
    rose_buf joined = {0};
    const char *a, *b;
    size_t na, nb;
    uint32_t rank = 0;

    rose_status st = rose_vocab_merges_alloc(&t->vocab, src->n, err);
    if (st != ROSE_OK) return st;
    for (; src->next(src, &a, &na, &b, &nb, &st, err); rank++) {
        uint32_t left, right, id;
        joined.len = 0;
        if (rose_buf_add(&joined, a, na) != ROSE_OK || rose_buf_add(&joined, b, nb) != ROSE_OK) {
            st = rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
            break;
        }
        if (!vocab_id(vocab, a, na, &left) || !vocab_id(vocab, b, nb, &right) ||
            !vocab_id(vocab, joined.data != NULL ? joined.data : "", joined.len, &id)) {
            st = rose_fail(err, ROSE_E_FORMAT,
                           "tokenizer: merge %u (\"%.*s\" \"%.*s\") names a token that is not in "
                           "the vocabulary",
                           rank, (int)(na < 40 ? na : 40), a, (int)(nb < 40 ? nb : 40), b);
            break;
        }
        rose_vocab_merge_put(&t->vocab, left, right, rank, id);
    }
    rose_buf_free(&joined);
    return st;
}

static rose_status text_copy(char **out, const char *text, size_t len, rose_err *err)
{
    if ((*out = malloc(len + 1)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    memcpy(*out, text, len);
    (*out)[len] = '\0';
    return ROSE_OK;
}

/* For a `normalized` token, text is searched for the normalizer's result of its content. */
static rose_status match_text(const rose_tokenizer *t, rose_added *a, rose_err *err)
{
    rose_buf scratch[2] = {{0}, {0}};
    const char *text = a->content;
    size_t len = a->content_len;
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; a->normalized && i < t->n_norms && st == ROSE_OK; i++)
        st = rose_normalize(t->norms[i], text, len, &scratch[i & 1], &text, &len);
    if (st == ROSE_OK)
        st = text_copy(&a->text, text, len, err);
    else
        rose_fail(err, st, "tokenizer: out of memory");
    a->len = len;
    rose_buf_free(&scratch[0]);
    rose_buf_free(&scratch[1]);
    return st;
}

static rose_added *find_added(rose_tokenizer *t, const char *text, size_t len)
{
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].content_len == len && memcmp(t->added[i].content, text, len) == 0)
            return &t->added[i];
    return NULL;
}

/* `tokenizers` also ignores an added token with an empty text. */
static void warn_empty(const rose_added_spec *specs, size_t n)
{
    size_t n_empty = 0;
    for (size_t i = 0; i < n; i++)
        n_empty += specs[i].len == 0;
    if (n_empty > 0)
        rose_log(ROSE_LOG_WARN, "tokenizer", "%zu added token%s an empty text: ignored", n_empty,
                 n_empty == 1 ? " has" : "s have");
}

static rose_status add_one(rose_tokenizer *t, const json_t *vocab, const rose_added_spec *s,
                           uint32_t *next_id, rose_err *err)
{
    uint32_t id;
    if (s->len == 0) return ROSE_OK; /* see warn_empty */
    if (s->len > ROSE_MAX_ADDED_LEN)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "tokenizer: added token \"%.40s...\" is longer than %u bytes", s->text,
                         ROSE_MAX_ADDED_LEN);
    if (find_added(t, s->text, s->len) != NULL)
        return rose_fail(err, ROSE_E_FORMAT, "tokenizer: token \"%.40s\" is added twice", s->text);
    bool in_model = vocab_id(vocab, s->text, s->len, &id);
    if (!in_model) id = *next_id;
    if (s->has_id && s->id != id)
        return rose_fail(err, ROSE_E_FORMAT,
                         "tokenizer: added token \"%.40s\" has id %u in the file, but its place "
                         "gives it %u",
                         s->text, s->id, id);
    rose_added *a = &t->added[t->n_added++];
    *a = (rose_added){.id = id,
                      .special = s->special,
                      .lstrip = s->lstrip,
                      .rstrip = s->rstrip,
                      .single_word = s->single_word,
                      .normalized = s->normalized};
    rose_status st = text_copy(&a->content, s->text, s->len, err);
    if (st != ROSE_OK) return st;
    a->content_len = s->len;
    if ((st = match_text(t, a, err)) != ROSE_OK) return st;
    unsigned flags = ROSE_TOK_ADDED | (s->special ? (unsigned)ROSE_TOK_SPECIAL : 0u);
    if (in_model) {
        t->vocab.tokens[id].flags |= flags; /* its bytes stay what the vocabulary says */
        return ROSE_OK;
    }
    *next_id = id + 1;
    /* A normalised token has its normalised text, also when decoded. */
    return rose_vocab_put(&t->vocab, id, a->text, a->len, flags, false, err);
}

rose_status rose_load_added(rose_tokenizer *t, const json_t *vocab, const rose_added_spec *specs,
                            size_t n, rose_err *err)
{
    uint32_t next_id = t->vocab.n_model;
    rose_status st = ROSE_OK;

    if (n > ROSE_MAX_ADDED)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "tokenizer: %zu added tokens, over the limit %u",
                         n, ROSE_MAX_ADDED);
    warn_empty(specs, n);
    if (n > 0 && (t->added = calloc(n, sizeof *t->added)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    for (size_t i = 0; i < n && st == ROSE_OK; i++)
        st = add_one(t, vocab, &specs[i], &next_id, err);
    if (st == ROSE_OK) st = rose_added_set_build(&t->raw_set, t->added, t->n_added, false, err);
    if (st == ROSE_OK) st = rose_added_set_build(&t->norm_set, t->added, t->n_added, true, err);
    return st;
}
