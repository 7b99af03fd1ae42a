/* tokenizer/sentencepiece.c - reads tokenizer.model, sentencepiece's ModelProto, with a small
 * protobuf reader of ours. Fields that change an id are read or refused by name: the model type
 * must be BPE, the normaliser the identity.
 *
 * tokenizer_config.json beside the file may say add_bos_token, add_eos_token, legacy (a space is
 * also added after each control token) and added_tokens_decoder (tokens that are no pieces). */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tokenizer/tokenizer_internal.h"

enum { MAX_BYTES = 64 << 20, MODEL_BPE = 2 };

/* A field of a message: the number that a varint or fixed32 holds, or the bytes. */
typedef struct field {
    uint32_t number;
    uint64_t value;
    const uint8_t *bytes; /* NULL: the field is a number */
    size_t len;
} field;

typedef struct message {
    const uint8_t *p, *end;
    bool is_bad; /* reading stopped at a malformed field */
} message;

static bool read_varint(message *m, uint64_t *v)
{
    *v = 0;
    for (unsigned shift = 0; shift < 64 && m->p < m->end; shift += 7) {
        const uint8_t b = *m->p++;
        *v |= (uint64_t)(b & 0x7F) << shift;
        if (b < 0x80) return true;
    }
    return false;
}

static bool read_fixed(message *m, unsigned n, uint64_t *v)
{
    if ((size_t)(m->end - m->p) < n) return false;
    *v = 0;
    for (unsigned i = 0; i < n; i++)
        *v |= (uint64_t)m->p[i] << 8 * i;
    m->p += n;
    return true;
}

static bool read_bytes(message *m, field *f)
{
    uint64_t len;
    if (!read_varint(m, &len) || len > (size_t)(m->end - m->p)) return false;
    f->bytes = m->p;
    f->len = (size_t)len;
    m->p += len;
    return true;
}

/* The next field; false at the end and at a malformed field. */
static bool next_field(message *m, field *f)
{
    uint64_t tag;
    *f = (field){0};
    if (m->is_bad || m->p == m->end) return false;
    bool ok = read_varint(m, &tag) && tag >> 3 > 0 && tag >> 3 <= UINT32_MAX;
    if (ok) {
        f->number = (uint32_t)(tag >> 3);
        switch (tag & 7) {
        case 0:
            ok = read_varint(m, &f->value);
            break;
        case 1:
            ok = read_fixed(m, 8, &f->value);
            break;
        case 2:
            ok = read_bytes(m, f);
            break;
        case 5:
            ok = read_fixed(m, 4, &f->value);
            break;
        default: /* groups, which nobody writes any more */
            ok = false;
        }
    }
    m->is_bad = !ok;
    return ok;
}

typedef struct model_file {
    const char *path;        /* borrowed */
    rose_piece_spec *pieces; /* owned; texts borrowed from the file */
    size_t n_pieces, cap;
    int64_t model_type, bos, eos;
    bool dummy_prefix, removes_spaces, escapes_spaces, space_is_suffix;
    size_t n_charsmap; /* bytes */
    rose_err *err;     /* borrowed */
} model_file;

static rose_status bad(const model_file *f, const char *what)
{
    return rose_fail(f->err, ROSE_E_FORMAT, "%s: %s", f->path, what);
}

static rose_status read_piece(model_file *f, const field *whole)
{
    message m = {whole->bytes, whole->bytes + whole->len, false};
    rose_piece_spec p = {.text = "", .type = ROSE_PIECE_NORMAL};
    field x;
    while (next_field(&m, &x)) {
        const uint32_t bits = (uint32_t)x.value;
        if (x.number == 1 && x.bytes != NULL) {
            p.text = (const char *)x.bytes;
            p.len = x.len;
        } else if (x.number == 2 && x.bytes == NULL) {
            memcpy(&p.score, &bits, sizeof p.score);
        } else if (x.number == 3 && x.bytes == NULL) {
            p.type = x.value <= ROSE_PIECE_BYTE ? (int32_t)x.value : 0;
        }
    }
    if (m.is_bad || p.len == 0) return bad(f, "a piece is malformed or empty");
    if (p.type == ROSE_PIECE_UNUSED)
        return rose_fail(f->err, ROSE_E_UNSUPPORTED, "%s: pieces of type UNUSED are not supported",
                         f->path);
    if (f->n_pieces == ROSE_MAX_ID) return bad(f, "too many pieces");
    if (f->n_pieces == f->cap) {
        const size_t cap = f->cap < 1024 ? 1024 : 2 * f->cap;
        rose_piece_spec *q = realloc(f->pieces, cap * sizeof *q);
        if (q == NULL) return rose_fail(f->err, ROSE_E_NOMEM, "%s: out of memory", f->path);
        f->pieces = q;
        f->cap = cap;
    }
    f->pieces[f->n_pieces++] = p;
    return ROSE_OK;
}

static rose_status read_trainer(model_file *f, const field *whole)
{
    message m = {whole->bytes, whole->bytes + whole->len, false};
    field x;
    while (next_field(&m, &x)) {
        if (x.bytes != NULL) continue;
        if (x.number == 3) f->model_type = (int64_t)x.value;
        if (x.number == 24) f->space_is_suffix = x.value != 0;
        if (x.number == 41) f->bos = (int32_t)x.value;
        if (x.number == 42) f->eos = (int32_t)x.value;
    }
    return m.is_bad ? bad(f, "trainer_spec is malformed") : ROSE_OK;
}

static rose_status read_normalizer(model_file *f, const field *whole)
{
    message m = {whole->bytes, whole->bytes + whole->len, false};
    field x;
    while (next_field(&m, &x)) {
        if (x.number == 2) f->n_charsmap = x.len;
        if (x.bytes != NULL) continue;
        if (x.number == 3) f->dummy_prefix = x.value != 0;
        if (x.number == 4) f->removes_spaces = x.value != 0;
        if (x.number == 5) f->escapes_spaces = x.value != 0;
    }
    return m.is_bad ? bad(f, "normalizer_spec is malformed") : ROSE_OK;
}

static rose_status read_model(model_file *f, const rose_buf *text)
{
    const uint8_t *p = (const uint8_t *)(text->data != NULL ? text->data : "");
    message m = {p, p + text->len, false};
    field x;
    rose_status st = ROSE_OK;
    while (st == ROSE_OK && next_field(&m, &x)) {
        if (x.bytes == NULL) continue;
        if (x.number == 1) st = read_piece(f, &x);
        if (x.number == 2) st = read_trainer(f, &x);
        if (x.number == 3) st = read_normalizer(f, &x);
    }
    if (st != ROSE_OK) return st;
    if (m.is_bad || f->n_pieces == 0)
        return bad(f,
                   "not a model of sentencepiece (tiktoken's files, which have the same name, are "
                   "not supported: give tokenizer.json)");
    return ROSE_OK;
}

/* Refuse by name what would change ids and is not implemented. */
static rose_status check_model(const model_file *f)
{
    static const char *const types[] = {"?", "UNIGRAM", "BPE", "WORD", "CHAR"};
    const char *what = NULL;
    if (f->model_type != MODEL_BPE)
        return rose_fail(f->err, ROSE_E_UNSUPPORTED,
                         "%s: model type %s is not supported, only BPE is", f->path,
                         types[f->model_type >= 1 && f->model_type <= 4 ? f->model_type : 0]);
    if (f->n_charsmap > 0) what = "precompiled_charsmap";
    if (f->removes_spaces) what = "remove_extra_whitespaces";
    if (!f->escapes_spaces) what = "escape_whitespaces = false";
    if (f->space_is_suffix) what = "treat_whitespace_as_suffix";
    if (what == NULL) return ROSE_OK;
    return rose_fail(f->err, ROSE_E_UNSUPPORTED, "%s: %s is not supported", f->path, what);
}

/* ---- tokenizer_config.json ---- */

/* The tokenizer of a file that was read. */
static rose_status build(rose_tokenizer *t, model_file *f, rose_token_files *files)
{
    const rose_json *add_bos = rose_json_get(files->config, "add_bos_token");
    const rose_json *add_eos = rose_json_get(files->config, "add_eos_token");
    const bool legacy = rose_json_is_true(rose_json_get(files->config, "legacy"));
    rose_prepend prefix = ROSE_PREPEND_NEVER;
    if (f->dummy_prefix) prefix = legacy ? ROSE_PREPEND_ALWAYS : ROSE_PREPEND_FIRST;
    rose_status st = rose_token_files_begin(files, 0);
    if (st == ROSE_OK) st = rose_token_files_read(files, NULL);
    if (st == ROSE_OK)
        st = rose_load_pieces(t, f->pieces, f->n_pieces, prefix, files->specs, files->n_specs,
                              f->path, f->err);
    if (st == ROSE_OK && t->unk_id == ROSE_NO_ID) st = bad(f, "no piece has type UNKNOWN");
    if (st == ROSE_OK && f->bos >= 0 && !rose_json_is_false(add_bos))
        t->prefix[t->n_prefix++] = (uint32_t)f->bos;
    if (st == ROSE_OK && f->eos >= 0 && rose_json_is_true(add_eos))
        t->suffix[t->n_suffix++] = (uint32_t)f->eos;
    return st;
}

rose_status rose_load_sentencepiece(rose_tokenizer *t, const char *dir, rose_err *err)
{
    rose_buf path = {0}, text = {0};
    rose_token_files files = {.dir = dir};
    model_file f = {.model_type = 1, /* the defaults of sentencepiece_model.proto */
                    .bos = 1,
                    .eos = 2,
                    .dummy_prefix = true,
                    .removes_spaces = true,
                    .escapes_spaces = true,
                    .err = err};
    rose_status st = ROSE_OK;
    if (rose_buf_addf(&path, "%s/tokenizer.model", dir) != ROSE_OK || rose_buf_str(&path) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    f.path = path.data;
    if (st == ROSE_OK) st = rose_token_files_open(&files, dir, true, err);
    if (st == ROSE_OK) st = rose_file_read(&text, path.data, MAX_BYTES, err);
    if (st == ROSE_OK) st = read_model(&f, &text);
    if (st == ROSE_OK) st = check_model(&f);
    if (st == ROSE_OK) st = build(t, &f, &files);
    free(f.pieces);
    rose_token_files_close(&files);
    rose_buf_free(&text);
    rose_buf_free(&path);
    return st;
}
