/* tokenizer/load_files.c - reads vocab.json + merges.txt and the small files next to them, as the
 * GPT-2 tokenizer of transformers does: ByteLevel without a prefix space, <|endoftext|> special.
 *
 * Added tokens come in this order, each content once:
 * 1. tokenizer_config.json "added_tokens_decoder" (id -> token with flags), by id; or, if that
 *    is missing, added_tokens.json (text -> id), by id;
 * 2. the named special tokens (bos, eos, unk, ...) and lists of further ones, from
 *    tokenizer_config.json, else from special_tokens_map.json; bos, eos and unk default to
 *    <|endoftext|>. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tokenizer/tokenizer_internal.h"

enum { MAX_BYTES = 256 << 20 };

static const char default_special[] = "<|endoftext|>";

typedef struct folder {
    const char *dir;                         /* borrowed */
    rose_json *config, *special_map, *added; /* owned; NULL: no such file */
    rose_added_spec *specs;                  /* owned; texts borrowed from the JSON values */
    size_t n_specs, cap_specs;
    rose_err *err;
} folder;

/* ---- vocab.json, merges.txt ---- */

static rose_status read_named(rose_buf *text, const char *dir, const char *name, rose_err *err)
{
    rose_buf path = {0};
    rose_status st = ROSE_OK;
    if (rose_buf_addf(&path, "%s/%s", dir, name) != ROSE_OK || rose_buf_str(&path) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    else
        st = rose_file_read(text, path.data, MAX_BYTES, err);
    rose_buf_free(&path);
    return st;
}

static rose_status load_vocab_file(rose_tokenizer *t, const char *dir, rose_err *err)
{
    rose_buf text = {0};
    rose_status st = read_named(&text, dir, "vocab.json", err);
    if (st == ROSE_E_NOTFOUND)
        rose_fail(err, st, "%s: no tokenizer.json, tokenizer.model, or vocab.json with merges.txt",
                  dir);
    if (st == ROSE_OK) {
        const char *p = text.data != NULL ? text.data : "";
        rose_json_scan scan = {
            .begin = p, .p = p, .end = p + text.len, .path = "vocab.json", .err = err};
        st = rose_load_vocab_object(t, &scan, err);
        if (st == ROSE_OK && (rose_json_scan_peek(&scan) != '\0' || scan.p != scan.end))
            st = rose_json_scan_bad(&scan, "text after the end");
    }
    rose_buf_free(&text);
    return st;
}

/* One line of merges.txt. */
static rose_status load_merge_line(rose_merges *l, const char *line, size_t n, size_t number,
                                   uint32_t *rank)
{
    static const char version[] = "#version";
    if (n >= sizeof version - 1 && memcmp(line, version, sizeof version - 1) == 0) return ROSE_OK;
    const char *gap = memchr(line, ' ', n);
    if (gap == NULL || memchr(gap + 1, ' ', n - (size_t)(gap + 1 - line)) != NULL)
        return rose_fail(l->err, ROSE_E_FORMAT, "merges.txt: line %zu is not a pair of tokens",
                         number);
    const size_t na = (size_t)(gap - line);
    return rose_merges_add(l, (*rank)++, line, na, gap + 1, n - na - 1);
}

static rose_status load_merges_file(rose_tokenizer *t, const char *dir, rose_err *err)
{
    rose_buf text = {0};
    rose_merges l = {.v = &t->vocab, .err = err};
    uint32_t rank = 0;
    rose_status st = read_named(&text, dir, "merges.txt", err);
    const char *p = text.data, *end = p + text.len;
    for (size_t number = 1; st == ROSE_OK && text.len > 0 && p < end; number++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl != NULL ? nl : end) - p);
        if (n > 0 && nl != NULL && p[n - 1] == '\r') n--;
        st = load_merge_line(&l, p, n, number, &rank);
        p = nl != NULL ? nl + 1 : end;
    }
    if (st == ROSE_OK) st = rose_merges_flush(&l);
    rose_buf_free(&text);
    rose_buf_free(&l.scratch);
    return st;
}

/* ---- added tokens ---- */

static rose_status add_spec(folder *f, const rose_added_spec *s)
{
    for (size_t i = 0; i < f->n_specs; i++) {
        rose_added_spec *old = &f->specs[i];
        if (old->len != s->len || memcmp(old->text, s->text, s->len) != 0) continue;
        old->special |= s->special;
        return ROSE_OK;
    }
    if (f->n_specs == ROSE_MAX_ADDED)
        return rose_fail(f->err, ROSE_E_UNSUPPORTED, "%s: over %u added tokens", f->dir,
                         ROSE_MAX_ADDED);
    if (f->n_specs == f->cap_specs) {
        size_t cap = f->cap_specs < 16 ? 16 : f->cap_specs * 2;
        rose_added_spec *p = realloc(f->specs, cap * sizeof *p);
        if (p == NULL) return rose_fail(f->err, ROSE_E_NOMEM, "%s: out of memory", f->dir);
        f->specs = p;
        f->cap_specs = cap;
    }
    f->specs[f->n_specs++] = *s;
    return ROSE_OK;
}

/* Adds a token, given as text or as an object with content and flags, as a special token. */
static rose_status add_special(folder *f, const rose_json *v)
{
    const rose_json *text = rose_json_is_object(v) ? rose_json_get(v, "content") : v;
    if (v == NULL || rose_json_is_null(v)) return ROSE_OK;
    if (!rose_json_is_string(text))
        return rose_fail(f->err, ROSE_E_FORMAT, "%s: a special token is not a string", f->dir);
    rose_added_spec s = {.text = rose_json_text(text),
                         .len = rose_json_text_len(text),
                         .special = true,
                         .lstrip = rose_json_is_true(rose_json_get(v, "lstrip")),
                         .rstrip = rose_json_is_true(rose_json_get(v, "rstrip")),
                         .single_word = rose_json_is_true(rose_json_get(v, "single_word")),
                         .normalized = rose_json_is_true(rose_json_get(v, "normalized"))};
    return add_spec(f, &s);
}

static int by_id(const void *x, const void *y)
{
    const rose_added_spec *a = x, *b = y;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Parses a decimal id; false if it is not a number or out of range. */
static bool parse_id(const char *text, uint32_t *id)
{
    uint32_t v = 0;
    if (*text == '\0') return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || v >= ROSE_MAX_ID) return false;
        v = v * 10 + (uint32_t)(*text - '0');
    }
    *id = v;
    return v < ROSE_MAX_ID;
}

static rose_status add_decoder_entries(folder *f, const rose_json *table)
{
    const char *key;
    rose_json *v;
    rose_status st = ROSE_OK;
    rose_json_each (table, key, v) {
        const rose_json *text = rose_json_get(v, "content");
        const rose_json *norm = rose_json_get(v, "normalized");
        rose_added_spec s = {.text = rose_json_text(text),
                             .len = rose_json_text_len(text),
                             .special = rose_json_is_true(rose_json_get(v, "special")),
                             .lstrip = rose_json_is_true(rose_json_get(v, "lstrip")),
                             .rstrip = rose_json_is_true(rose_json_get(v, "rstrip")),
                             .single_word = rose_json_is_true(rose_json_get(v, "single_word")),
                             .has_id = true};
        s.normalized = norm != NULL ? rose_json_is_true(norm) : !s.special;
        if (s.text == NULL || !parse_id(key, &s.id))
            return rose_fail(f->err, ROSE_E_FORMAT,
                             "%s: tokenizer_config.json: added_tokens_decoder is malformed",
                             f->dir);
        if ((st = add_spec(f, &s)) != ROSE_OK) return st;
    }
    return st;
}

static rose_status add_added_json(folder *f)
{
    const char *key;
    rose_json *v;
    rose_status st = ROSE_OK;
    rose_json_each (f->added, key, v) {
        int64_t id = rose_json_is_integer(v) ? rose_json_int(v) : -1;
        if (id < 0 || id >= (int64_t)ROSE_MAX_ID)
            return rose_fail(f->err, ROSE_E_FORMAT, "%s: added_tokens.json: an id is out of range",
                             f->dir);
        rose_added_spec s = {.text = key,
                             .len = strlen(key),
                             .normalized = true,
                             .has_id = true,
                             .id = (uint32_t)id};
        if ((st = add_spec(f, &s)) != ROSE_OK) return st;
    }
    return st;
}

static rose_status add_special_list(folder *f, const rose_json *list)
{
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < rose_json_count(list) && st == ROSE_OK; i++)
        st = add_special(f, rose_json_at(list, i));
    return st;
}

static rose_status add_named_special(folder *f, const rose_json *fallback)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && st == ROSE_OK; i++) {
        const rose_json *v = rose_json_get(f->config, names[i]);
        if (v == NULL) v = rose_json_get(f->special_map, names[i]);
        if (v == NULL && i < 3) v = fallback;
        st = add_special(f, v);
    }
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    for (size_t i = 0; i < 2 && st == ROSE_OK; i++) {
        const rose_json *v = rose_json_get(f->config, lists[i]);
        if (v == NULL) v = rose_json_get(f->special_map, lists[i]);
        st = add_special_list(f, v);
    }
    return st;
}

static rose_status check_class(const folder *f)
{
    static const char *const known[] = {"GPT2Tokenizer", "GPT2TokenizerFast", "TokenizersBackend",
                                        "PreTrainedTokenizerFast"};
    const rose_json *v = rose_json_get(f->config, "tokenizer_class");
    const char *name = rose_json_text(v);
    for (size_t i = 0; name != NULL && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i]) == 0) return ROSE_OK;
    if (v == NULL || rose_json_is_null(v)) return ROSE_OK;
    return rose_fail(f->err, ROSE_E_UNSUPPORTED,
                     "%s: tokenizer_class \"%.60s\" without a tokenizer.json is not supported",
                     f->dir, name != NULL ? name : "?");
}

static rose_status load_added_files(rose_tokenizer *t, folder *f)
{
    rose_json *fallback = rose_json_string(default_special);
    rose_status st = ROSE_OK;
    if (fallback == NULL) return rose_fail(f->err, ROSE_E_NOMEM, "%s: out of memory", f->dir);
    const rose_json *table = rose_json_get(f->config, "added_tokens_decoder");
    if (rose_json_size(table) > 0)
        st = add_decoder_entries(f, table);
    else
        st = add_added_json(f);
    if (st == ROSE_OK && f->n_specs > 0) qsort(f->specs, f->n_specs, sizeof *f->specs, by_id);
    if (st == ROSE_OK) st = add_named_special(f, fallback);
    if (st == ROSE_OK) st = rose_load_added(t, f->specs, f->n_specs, f->err);
    rose_json_decref(fallback); /* the specs that point to it are used up */
    return st;
}

/* Reads add_bos_token of tokenizer_config.json: with it, ROSE_ENCODE_ADD_SPECIAL puts bos first. */
static rose_status add_bos(rose_tokenizer *t, const folder *f)
{
    const rose_json *v = rose_json_get(f->config, "bos_token");
    if (!rose_json_is_true(rose_json_get(f->config, "add_bos_token"))) return ROSE_OK;
    if (v == NULL) v = rose_json_get(f->special_map, "bos_token");
    if (rose_json_is_object(v)) v = rose_json_get(v, "content");
    const char *text = v != NULL ? rose_json_text(v) : default_special;
    if (text == NULL || !rose_tokenizer_find(t, text, strlen(text), &t->prefix[0]))
        return rose_fail(f->err, ROSE_E_FORMAT, "%s: add_bos_token without a bos_token", f->dir);
    t->n_prefix = 1;
    return ROSE_OK;
}

rose_status rose_load_vocab_merges(rose_tokenizer *t, const char *dir, rose_err *err)
{
    folder f = {.dir = dir, .err = err};
    rose_status st = load_vocab_file(t, dir, err);
    if (st != ROSE_OK) goto done;
    if ((st = rose_load_optional_json(&f.config, dir, "tokenizer_config.json", err)) != ROSE_OK)
        goto done;
    if ((st = rose_load_optional_json(&f.special_map, dir, "special_tokens_map.json", err)) !=
        ROSE_OK)
        goto done;
    if ((st = rose_load_optional_json(&f.added, dir, "added_tokens.json", err)) != ROSE_OK)
        goto done;
    if ((st = check_class(&f)) != ROSE_OK) goto done;
    t->stages[t->n_stages++] = (rose_stage){
        .kind = ROSE_STAGE_BYTE_LEVEL,
        .scan = rose_scan_gpt2,
        .add_prefix_space = rose_json_is_true(rose_json_get(f.config, "add_prefix_space"))};
    if ((st = load_merges_file(t, dir, err)) != ROSE_OK) goto done;
    if ((st = load_added_files(t, &f)) != ROSE_OK) goto done;
    if ((st = rose_load_finish(t, err)) != ROSE_OK) goto done;
    st = add_bos(t, &f);
done:
    rose_json_decref(f.config);
    rose_json_decref(f.special_map);
    rose_json_decref(f.added);
    free(f.specs);
    return st;
}
