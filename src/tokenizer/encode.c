/* tokenizer/encode.c - text to ids, with or without marks. Order of work, as in `tokenizers`: added
 * tokens that are not normalised are cut out of the raw text; what lies between is normalised;
 * added tokens that are normalised are cut out of that; the rest goes through the pre-tokenizer and
 * the merges.
 *
 * `tokenizers` accepts only UTF-8. Here each maximal run of bytes that belong to no well-formed
 * character is a piece of its own, encoded byte by byte through the byte alphabet. The text on
 * either side is encoded as if it began or ended there. Nothing is lost: the concatenated token
 * bytes are the input, though decoding shows U+FFFD for such bytes. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/encoder_internal.h"
#include "tokenizer/unicode.h"

enum { KEEP_SYMBOLS = 1 << 16, KEEP_BYTES = 1 << 20 };
enum { JIT_STACK_MIN = 32 << 10, JIT_STACK_MAX = 4 << 20, MATCH_LIMIT = 50 << 20 };

void rose_ids_free(rose_ids *ids)
{
    free(ids->data);
    *ids = (rose_ids){0};
}

rose_status rose_ids_reserve(rose_ids *ids, size_t more)
{
    if (more <= ids->cap - ids->len) return ROSE_OK;
    if (more > SIZE_MAX / 16 - ids->len) return ROSE_E_NOMEM;
    size_t cap = ids->cap < 64 ? 64 : ids->cap * 2;
    if (cap < ids->len + more) cap = ids->len + more;
    uint32_t *p = realloc(ids->data, cap * sizeof *p);
    if (p == NULL) return ROSE_E_NOMEM;
    ids->data = p;
    ids->cap = cap;
    return ROSE_OK;
}

static rose_status push_id(rose_encoder *e, uint32_t id)
{
    if (rose_ids_reserve(e->out, 1) != ROSE_OK)
        return rose_fail(e->err, ROSE_E_NOMEM, "tokenizer: out of memory");
    e->out->data[e->out->len++] = id;
    return ROSE_OK;
}

/* Cut the added tokens of set out of text; `rest` gets what lies between. marks: of text. */
static rose_status cut_added(rose_encoder *e, const rose_added_set *set, const char *text, size_t n,
                             const char *marks,
                             rose_status (*rest)(rose_encoder *, const char *, size_t))
{
    rose_added_walk walk = {.set = set,
                            .text = text,
                            .len = n,
                            .marks = marks,
                            .plain_special = (e->flags & ROSE_ENCODE_PLAIN_SPECIAL) != 0};
    rose_added_hit hit;
    size_t done = 0;
    rose_status st = ROSE_OK;
    while (st == ROSE_OK && rose_added_next(&walk, &hit)) {
        if (done < hit.begin) st = rest(e, text + done, hit.begin - done);
        if (st == ROSE_OK) st = push_id(e, hit.token->id);
        done = hit.end;
    }
    if (st == ROSE_OK && done < n) st = rest(e, text + done, n - done);
    return st;
}

static rose_status encode_plain(rose_encoder *e, const char *text, size_t n)
{
    return rose_pretokenize(e, 0, text, n);
}

/* Marks of the call's text from `text` on; NULL: there are none. */
static const char *marks_at(const rose_encoder *e, const char *text)
{
    return e->is_marked ? e->marks.data + (text - e->text) : NULL;
}

/* A stretch of the call's text between added tokens. */
static rose_status encode_gap(rose_encoder *e, const char *text, size_t n)
{
    const rose_tokenizer *t = e->t;
    const bool begins = text == e->text;
    const bool remarks = e->is_marked && t->norm_set.n > 0 && t->n_norms > 0;
    const char *marks = marks_at(e, text);
    rose_status st = ROSE_OK;
    if (remarks) {
        e->norm_marks.len = 0;
        st = rose_buf_add(&e->norm_marks, marks, n);
    }
    for (uint32_t i = 0; i < t->n_norms && st == ROSE_OK; i++)
        if (begins || !t->norms[i].first_only)
            st = rose_normalize(&t->norms[i], text, n, &e->norm[i & 1], &text, &n,
                                remarks ? &e->norm_marks : NULL);
    if (st != ROSE_OK) return rose_fail(e->err, st, "tokenizer: out of memory");
    e->first = begins ? text : NULL;
    return cut_added(e, &t->norm_set, text, n, remarks ? e->norm_marks.data : marks, encode_plain);
}

static size_t invalid_run(const char *text, size_t n)
{
    const uint8_t *p = (const uint8_t *)text, *end = p + n;
    uint32_t cp;
    while (p < end && rose_utf8_decode(p, end, &cp) == 0)
        p++;
    return (size_t)(p - (const uint8_t *)text);
}

static rose_status encode_text(rose_encoder *e, const char *text, size_t n)
{
    rose_status st = ROSE_OK;
    while (n > 0 && st == ROSE_OK) {
        size_t k = rose_utf8_valid_prefix(text, n);
        if (k > 0) {
            st = cut_added(e, &e->t->raw_set, text, k, marks_at(e, text), encode_gap);
        } else {
            k = invalid_run(text, n);
            st = rose_bpe_piece(e, text, k);
        }
        text += k;
        n -= k;
    }
    return st;
}

void rose_encoder_set_stop(rose_encoder *e, const atomic_bool *stop)
{
    e->stop = stop;
}

static void drop_large(rose_buf *b)
{
    if (b->cap > KEEP_BYTES) rose_buf_free(b);
}

/* Frees large scratch: a word of 27 MB takes 1.3 GB, which the worker must not keep. */
static void trim_scratch(rose_encoder *e)
{
    drop_large(&e->norm[0]);
    drop_large(&e->norm[1]);
    drop_large(&e->prefixed);
    drop_large(&e->spaced);
    drop_large(&e->marks);
    drop_large(&e->norm_marks);
    if (e->cap_symbols <= KEEP_SYMBOLS) return;
    free(e->symbols);
    free(e->heap);
    e->symbols = NULL;
    e->heap = NULL;
    e->cap_symbols = e->cap_heap = 0;
}

rose_status rose_encode(rose_encoder *e, const char *text, size_t len, unsigned flags,
                        rose_ids *out, rose_err *err)
{
    const rose_tokenizer *t = e->t;
    size_t start = out->len;
    bool special = (flags & ROSE_ENCODE_ADD_SPECIAL) != 0;
    rose_status st = ROSE_OK;

    if (len > ROSE_MAX_TEXT)
        return rose_fail(err, ROSE_E_INVAL,
                         "tokenizer: a text of %zu bytes is over the limit of %u", len,
                         ROSE_MAX_TEXT);
    e->out = out;
    e->text = text;
    e->flags = flags;
    e->err = err;
    for (uint32_t i = 0; special && i < t->n_prefix && st == ROSE_OK; i++)
        st = push_id(e, t->prefix[i]);
    if (st == ROSE_OK) st = encode_text(e, text, len);
    for (uint32_t i = 0; special && i < t->n_suffix && st == ROSE_OK; i++)
        st = push_id(e, t->suffix[i]);
    if (st != ROSE_OK) out->len = start;
    trim_scratch(e);
    return st;
}

/* One byte for each byte of text: 1 = the template wrote it. */
static rose_status write_marks(rose_encoder *e, size_t len, const rose_mark_run *runs,
                               size_t n_runs, rose_err *err)
{
    e->marks.len = 0;
    if (rose_buf_reserve(&e->marks, len + 1) != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    for (size_t i = 0; i < n_runs; i++) {
        if (runs[i].len > len - e->marks.len) break;
        memset(e->marks.data + e->marks.len, runs[i].is_template, runs[i].len);
        e->marks.len += runs[i].len;
        if (i + 1 == n_runs && e->marks.len == len) return ROSE_OK;
    }
    if (n_runs == 0 && len == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL, "tokenizer: the marks do not cover the text of %zu bytes",
                     len);
}

rose_status rose_encode_marked(rose_encoder *e, const char *text, size_t len,
                               const rose_mark_run *runs, size_t n_runs, unsigned flags,
                               rose_ids *out, rose_err *err)
{
    if (len <= ROSE_MAX_TEXT) {
        rose_status st = write_marks(e, len, runs, n_runs, err);
        if (st != ROSE_OK) return st;
    }
    e->is_marked = true;
    rose_status st = rose_encode(e, text, len, flags, out, err);
    e->is_marked = false;
    return st;
}

static rose_status create_matchers(rose_encoder *e)
{
    const rose_tokenizer *t = e->t;
    for (uint32_t i = 0; i < t->n_stages; i++) {
        if (t->stages[i].code == NULL) continue;
        e->match[i] = pcre2_match_data_create_from_pattern(t->stages[i].code, NULL);
        if (e->match[i] == NULL) return ROSE_E_NOMEM;
        if (e->match_context != NULL) continue;
        if ((e->match_context = pcre2_match_context_create(NULL)) == NULL) return ROSE_E_NOMEM;
        pcre2_set_match_limit(e->match_context, MATCH_LIMIT);
        e->jit_stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
        if (e->jit_stack != NULL) pcre2_jit_stack_assign(e->match_context, NULL, e->jit_stack);
    }
    return ROSE_OK;
}

rose_status rose_encoder_create(rose_encoder **out, const rose_tokenizer *t, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_encoder *e = calloc(1, sizeof *e);

    *out = NULL;
    if (e == NULL) goto nomem;
    e->t = t;
    if ((e->words = aligned_alloc(64, sizeof(rose_word) * ROSE_WORD_SLOTS)) == NULL) goto nomem;
    memset(e->words, 0, sizeof(rose_word) * ROSE_WORD_SLOTS);
    if (create_matchers(e) != ROSE_OK) goto nomem;
    *out = e;
    return ROSE_OK;
nomem:
    st = rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory for an encoder");
    rose_encoder_destroy(e);
    return st;
}

void rose_encoder_destroy(rose_encoder *e)
{
    if (e == NULL) return;
    for (uint32_t i = 0; i < ROSE_MAX_STAGES; i++)
        pcre2_match_data_free(e->match[i]);
    pcre2_match_context_free(e->match_context);
    pcre2_jit_stack_free(e->jit_stack);
    rose_buf_free(&e->norm[0]);
    rose_buf_free(&e->norm[1]);
    rose_buf_free(&e->prefixed);
    rose_buf_free(&e->spaced);
    rose_buf_free(&e->marks);
    rose_buf_free(&e->norm_marks);
    free(e->words);
    free(e->symbols);
    free(e->heap);
    free(e);
}
