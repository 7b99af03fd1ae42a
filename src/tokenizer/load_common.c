/* tokenizer/load_common.c - what all sources share: small JSON files, merges, added tokens, the
 * last step. Rules as in `tokenizers`, except where it would give a token another id than the file
 * says, or let two tokens share one: there we refuse. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "tokenizer/tokenizer_internal.h"

enum { MAX_JSON_BYTES = 256 << 20 };

rose_status rose_load_json(rose_json **out, const char *path, rose_err *err)
{
    rose_buf text = {0};
    rose_json_error jerr;

    *out = NULL;
    rose_status st = rose_file_read(&text, path, MAX_JSON_BYTES, err);
    if (st != ROSE_OK) goto done;
    st = rose_json_parse(out, text.data, text.len, ROSE_JSON_PYTHON, &jerr);
    if (st != ROSE_OK) {
        rose_fail(err, st, "%s: line %d: %s", path, jerr.line, jerr.text);
        goto done;
    }
    if (!rose_json_is_object(*out)) {
        st = rose_fail(err, ROSE_E_FORMAT, "%s: not a JSON object", path);
        rose_json_decref(*out);
        *out = NULL;
    }
done:
    rose_buf_free(&text);
    return st;
}

rose_status rose_load_optional_json(rose_json **out, const char *dir, const char *name,
                                    rose_err *err)
{
    rose_buf path = {0};
    rose_status st = ROSE_OK;
    *out = NULL;
    if (rose_buf_addf(&path, "%s/%s", dir, name) != ROSE_OK || rose_buf_str(&path) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    else if (rose_file_exists(path.data))
        st = rose_load_json(out, path.data, err);
    rose_buf_free(&path);
    return st;
}

rose_status rose_load_vocab_object(rose_tokenizer *t, rose_json_scan *s, rose_err *err)
{
    rose_buf scratch = {0};
    rose_status st = ROSE_OK;
    for (rose_json_member m = {0}; rose_json_scan_member(s, &scratch, &m, &st);) {
        int64_t id;
        if ((st = rose_json_scan_id(s, ROSE_MAX_ID, &id)) != ROSE_OK) break;
        if (id < 0) {
            st = rose_fail(err, ROSE_E_FORMAT,
                           "tokenizer: the id of token \"%.*s\" is not an integer in [0, %u)",
                           (int)(m.len < 40 ? m.len : 40), m.name, ROSE_MAX_ID);
            break;
        }
        st = rose_vocab_add_text(&t->vocab, (uint32_t)id, m.name, m.len, err);
    }
    rose_buf_free(&scratch);
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
        if (!t->norms[i].spares_added)
            st = rose_normalize(&t->norms[i], text, len, &scratch[i & 1], &text, &len, NULL);
    if (st == ROSE_OK)
        st = text_copy(&a->text, text, len, err);
    else
        rose_fail(err, st, "tokenizer: out of memory");
    a->len = len;
    rose_buf_free(&scratch[0]);
    rose_buf_free(&scratch[1]);
    return st;
}

/* By text, then by place: both point into one list. */
static int by_text(const void *x, const void *y)
{
    const rose_added_spec *a = *(const rose_added_spec *const *)x;
    const rose_added_spec *b = *(const rose_added_spec *const *)y;
    const int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    if (c != 0) return c;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* use[i]: the token to add at place i; NULL = none. A text that is there twice is one token: its
 * first place gives the id and its last one the flags, as in `tokenizers`. */
static rose_status join_doubles(const rose_added_spec **use, const rose_added_spec *specs, size_t n,
                                rose_err *err)
{
    const rose_added_spec **sorted = malloc((n + 1) * sizeof *sorted);
    size_t first = 0;
    if (sorted == NULL) return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    for (size_t i = 0; i < n; i++)
        use[i] = sorted[i] = &specs[i];
    qsort(sorted, n, sizeof *sorted, by_text);
    for (size_t i = 1; i < n; i++) {
        const rose_added_spec *const a = sorted[first], *const b = sorted[i];
        if (a->len != b->len || memcmp(a->text, b->text, a->len) != 0) {
            first = i;
            continue;
        }
        use[b - specs] = NULL;
        use[a - specs] = b;
    }
    free(sorted);
    return ROSE_OK;
}

/* The bytes of an added token that is not of the model. A normalised token is known by its
 * normalised text, also when decoded. */
static rose_status put_bytes(rose_tokenizer *t, const rose_added *a, unsigned flags, rose_err *err)
{
    rose_buf bytes = {0};
    rose_status st = rose_vocab_text_bytes(a->text, a->len, t->is_chars && t->space_mark,
                                           t->is_chars && t->byte_tokens, &bytes);
    if (st == ROSE_OK)
        st = rose_vocab_put(&t->vocab, a->id, bytes.data, bytes.len, flags, false, err);
    else
        rose_fail(err, st, "tokenizer: out of memory");
    rose_buf_free(&bytes);
    return st;
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

static rose_status add_one(rose_tokenizer *t, const rose_added_spec *s, uint32_t *next_id,
                           rose_err *err)
{
    const int shown = (int)(s->len < 40 ? s->len : 40);
    if (s->len == 0) return ROSE_OK; /* see warn_empty */
    if (s->len > ROSE_MAX_ADDED_LEN)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "tokenizer: added token \"%.*s...\" is longer than %u bytes", shown,
                         s->text, ROSE_MAX_ADDED_LEN);
    uint32_t id = rose_vocab_find(&t->vocab, s->text, s->len);
    const bool in_model = id != ROSE_NO_ID;
    if (!in_model) id = *next_id;
    if (s->has_id && s->id != id && !s->by_place)
        return rose_fail(err, ROSE_E_FORMAT,
                         "tokenizer: added token \"%.*s\" has id %u in the file, but its place "
                         "gives it %u",
                         shown, s->text, s->id, id);
    if (s->has_id && s->id != id)
        rose_log(ROSE_LOG_WARN, "tokenizer",
                 "added token \"%.*s\" has id %u in the file, but its place gives it %u, which "
                 "counts, as in `tokenizers`",
                 shown, s->text, s->id, id);
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
    return put_bytes(t, a, flags, err);
}

rose_status rose_load_added(rose_tokenizer *t, const rose_added_spec *specs, size_t n,
                            rose_err *err)
{
    uint32_t next_id = t->vocab.n_model;
    const rose_added_spec **use = NULL;

    if (n > ROSE_MAX_ADDED)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "tokenizer: %zu added tokens, over the limit %u",
                         n, ROSE_MAX_ADDED);
    warn_empty(specs, n);
    if (n > 0) {
        t->added = calloc(n, sizeof *t->added);
        use = calloc(n, sizeof *use);
        if (t->added == NULL || use == NULL) {
            free(use);
            return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
        }
    }
    rose_status st = join_doubles(use, specs, n, err);
    for (size_t i = 0; i < n && st == ROSE_OK; i++)
        if (use[i] != NULL) st = add_one(t, use[i], &next_id, err);
    free(use);
    if (st == ROSE_OK) st = rose_added_set_build(&t->raw_set, t->added, t->n_added, false, err);
    if (st == ROSE_OK) st = rose_added_set_build(&t->norm_set, t->added, t->n_added, true, err);
    return st;
}

/* Whether a piece of text may be exactly this. A piece that a scanner cuts out of a text is also
 * the first piece of itself, if it holds no white space. */
static bool may_be_piece(const rose_tokenizer *t, const char *text, size_t len)
{
    const rose_stage *s = &t->stages[0];
    if (t->n_stages != 1 || s->scan == NULL) return true;
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~') return true;
    return len > 0 && s->scan((const uint8_t *)text, len) == len;
}

/* Whether merges, a single symbol or a piece taken whole may give a special token. */
static bool special_reachable(const rose_tokenizer *t)
{
    const rose_vocab *v = &t->vocab;
    for (uint32_t i = 0; i <= v->merge_mask; i++)
        if (v->merges[i].pair != UINT64_MAX &&
            (v->tokens[v->merges[i].id].flags & ROSE_TOK_SPECIAL) != 0)
            return true;
    for (size_t i = 0; i < t->n_added; i++) {
        const uint32_t id = t->added[i].id;
        size_t len;
        if (!t->added[i].special || (v->tokens[id].flags & ROSE_TOK_MODEL) == 0) continue;
        const char *text = rose_vocab_text(v, id, &len);
        if (len <= 4) return true; /* a character has at most 4 bytes */
        if (t->ignore_merges && may_be_piece(t, text, len)) return true;
        if (t->byte_fallback && len == 6 && memcmp(text, "<0x", 3) == 0) return true;
    }
    return false;
}

/* No merge makes a token in which U+2581 follows another character: words are independent. */
static bool words_are_apart(const rose_tokenizer *t)
{
    const rose_vocab *v = &t->vocab;
    if (t->ignore_merges || rose_vocab_find(v, ROSE_SPACE_MARK, ROSE_SPACE_MARK_LEN) == ROSE_NO_ID)
        return false;
    for (uint32_t i = 0; i <= v->merge_mask; i++) {
        size_t nl, nr;
        if (v->merges[i].pair == UINT64_MAX) continue;
        const char *l = rose_vocab_text(v, (uint32_t)(v->merges[i].pair >> 32), &nl);
        const char *r = rose_vocab_text(v, (uint32_t)v->merges[i].pair, &nr);
        const size_t m = ROSE_SPACE_MARK_LEN;
        if (nr < m || memcmp(r, ROSE_SPACE_MARK, m) != 0) continue;
        if (nl < m || memcmp(l + nl - m, ROSE_SPACE_MARK, m) != 0) return false;
    }
    return true;
}

rose_status rose_load_finish(rose_tokenizer *t, rose_err *err)
{
    rose_stage *last = &t->stages[t->n_stages - 1];
    if (t->vocab.merges == NULL && rose_vocab_merges_alloc(&t->vocab, 0, err) != ROSE_OK)
        return ROSE_E_NOMEM;
    if (t->is_chars && last->scan == NULL && words_are_apart(t)) last->scan = rose_scan_marks;
    t->special_reachable = special_reachable(t);
    rose_status st = t->is_chars
                         ? rose_vocab_finish_chars(&t->vocab, t->space_mark, t->byte_tokens, err)
                         : rose_vocab_finish_bytes(&t->vocab, err);
    return st == ROSE_OK ? rose_whole_build(t, err) : st;
}
