/* tokenizer/load_json.c - reads tokenizer.json. The vocabulary and the merges, nearly all of a
 * large file, go into our tables as they are read; the rest of the text becomes a tree
 * of JSON values. "truncation" and "padding" are the caller's affair (as with transformers, which
 * sets them for each call) and are passed over. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/file.h"
#include "base/log.h"
#include "tokenizer/tokenizer_internal.h"

enum { MAX_BYTES = 256 << 20, DROP_BYTES = 1 << 20 };

typedef struct reading {
    rose_tokenizer *t; /* borrowed, as all here but `rest` and `scratch` */
    const char *path;
    rose_json_scan scan;
    rose_buf rest;       /* the file with an empty vocabulary and no merges */
    const char *copied;  /* the file before this is in `rest` */
    const char *dropped; /* the pages of the file before this were given back */
    const char *counted; /* the line ends of the value that is cut are counted up to here */
    size_t n_lines;
    const char *merges; /* a list of merges that came before the vocabulary */
    bool has_model, has_vocab, has_merges;
    rose_buf scratch[2];
    rose_err *err;
} reading;

static rose_status nomem(const reading *r)
{
    return rose_fail(r->err, ROSE_E_NOMEM, "%s: out of memory", r->path);
}

static void count_lines(reading *r, const char *end)
{
    const char *p = r->counted;
    while (p < end && (p = memchr(p, '\n', (size_t)(end - p))) != NULL) {
        r->n_lines++;
        p++;
    }
    if (r->counted < end) r->counted = end;
}

/* Give back the pages of the file that were read: they would count as our memory. Lines are counted
 * before, because counting later would read the pages again. */
static void drop_pages(reading *r)
{
    if (r->scan.p - r->dropped < 2 * DROP_BYTES) return;
    count_lines(r, r->dropped + DROP_BYTES);
    madvise((void *)(uintptr_t)r->dropped, DROP_BYTES, MADV_DONTNEED); /* a wish */
    r->dropped += DROP_BYTES;
}

/* The value that the scanner stands at is not copied; `empty` takes its place, with its line ends,
 * so that messages about the rest name the right line. */
static rose_status cut_begin(reading *r)
{
    rose_json_scan_peek(&r->scan);
    if (rose_buf_add(&r->rest, r->copied, (size_t)(r->scan.p - r->copied)) != ROSE_OK)
        return nomem(r);
    r->copied = r->counted = r->scan.p;
    r->n_lines = 0;
    return ROSE_OK;
}

static rose_status cut_end(reading *r, const char *empty)
{
    count_lines(r, r->scan.p);
    rose_status st = rose_buf_add(&r->rest, empty, strlen(empty));
    if (st == ROSE_OK) st = rose_buf_reserve(&r->rest, r->n_lines);
    if (st != ROSE_OK) return nomem(r);
    if (r->n_lines > 0) memset(r->rest.data + r->rest.len, '\n', r->n_lines);
    r->rest.len += r->n_lines;
    r->copied = r->scan.p;
    return ROSE_OK;
}

/* One merge, "a b" or ["a", "b"]; false: it is neither. */
static bool read_merge(reading *r, rose_merges *l, uint32_t rank, rose_status *st)
{
    rose_json_scan *s = &r->scan;
    const char *a, *b;
    size_t na, nb;
    const bool pair = rose_json_scan_take(s, '[');
    if (rose_json_scan_peek(s) != '"') return false;
    if ((*st = rose_json_scan_string(s, &r->scratch[0], &a, &na)) != ROSE_OK) return true;
    if (pair) {
        if (!rose_json_scan_take(s, ',') || rose_json_scan_peek(s) != '"') return false;
        if ((*st = rose_json_scan_string(s, &r->scratch[1], &b, &nb)) != ROSE_OK) return true;
        if (!rose_json_scan_take(s, ']')) return false;
    } else {
        const char *gap = memchr(a, ' ', na);
        if (gap == NULL || memchr(gap + 1, ' ', na - (size_t)(gap + 1 - a)) != NULL) return false;
        b = gap + 1;
        nb = na - (size_t)(b - a);
        na = (size_t)(gap - a);
    }
    *st = rose_merges_add(l, rank, a, na, b, nb);
    return true;
}

static rose_status read_merges(reading *r)
{
    rose_merges l = {.v = &r->t->vocab, .err = r->err};
    uint32_t rank = 0;
    rose_status st = rose_json_scan_open(&r->scan, '[');
    for (bool first = true; rose_json_scan_more(&r->scan, ']', &first, &st); rank++) {
        if (!read_merge(r, &l, rank, &st))
            st = rose_fail(r->err, ROSE_E_FORMAT, "%s: merge %u is not a pair of tokens", r->path,
                           rank);
        drop_pages(r);
    }
    if (st == ROSE_OK) st = rose_merges_flush(&l);
    rose_buf_free(&l.scratch);
    return st;
}

static rose_status read_model_member(reading *r, const rose_json_member *m)
{
    rose_json_scan *s = &r->scan;
    const bool vocab = rose_json_member_is(m, "vocab");
    const bool merges = rose_json_member_is(m, "merges");
    if (!vocab && !merges) return rose_json_scan_skip(s);
    if (vocab ? r->has_vocab : r->has_merges)
        return rose_json_scan_bad(s, vocab ? "a second vocab" : "a second list of merges");
    rose_status st = cut_begin(r);
    if (st != ROSE_OK) return st;
    if (vocab) {
        r->has_vocab = true;
        st = rose_load_vocab_object(r->t, s, r->err);
    } else {
        r->has_merges = true;
        if (!r->has_vocab) r->merges = s->p;
        st = r->has_vocab ? read_merges(r) : rose_json_scan_skip(s);
    }
    return st == ROSE_OK ? cut_end(r, vocab ? "{}" : "[]") : st;
}

/* The members of the root (depth 0) or of the model. */
static rose_status read_members(reading *r, int depth)
{
    rose_json_scan *s = &r->scan;
    rose_status st = ROSE_OK;
    for (rose_json_member m = {0}; rose_json_scan_member(s, &r->scratch[0], &m, &st);
         drop_pages(r)) {
        const bool model = depth == 0 && rose_json_member_is(&m, "model");
        if (model && r->has_model) return rose_json_scan_bad(s, "a second model");
        if (depth == 1) {
            st = read_model_member(r, &m);
        } else if (model && rose_json_scan_peek(s) == '{') {
            r->has_model = true;
            st = read_members(r, 1);
        } else {
            st = rose_json_scan_skip(s);
        }
    }
    return st;
}

/* Read the large parts into the tokenizer; *root: the rest. */
static rose_status read_file(rose_tokenizer *t, const char *path, rose_json **root, rose_err *err)
{
    rose_map map = {0};
    rose_status st = rose_file_map(&map, path, err);
    if (st != ROSE_OK) return st;
    const char *text = map.data != NULL ? (const char *)map.data : "";
    reading r = {
        .t = t,
        .path = path,
        .scan = {.begin = text, .p = text, .end = text + map.size, .path = path, .err = err},
        .copied = text,
        .dropped = text,
        .counted = text,
        .err = err};
    rose_json_error jerr;
    if (map.size > MAX_BYTES) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED, "%s: %zu bytes, over the limit of %d", path,
                       map.size, MAX_BYTES);
        goto done;
    }
    if ((st = read_members(&r, 0)) != ROSE_OK) goto done;
    if (rose_buf_add(&r.rest, r.copied, (size_t)(r.scan.end - r.copied)) != ROSE_OK) {
        st = nomem(&r);
        goto done;
    }
    if (r.merges != NULL && r.has_vocab) {
        r.scan.p = r.merges;
        if ((st = read_merges(&r)) != ROSE_OK) goto done;
    }
    st = rose_json_parse(root, r.rest.data, r.rest.len, ROSE_JSON_PYTHON, &jerr);
    if (st != ROSE_OK)
        rose_fail(err, st, "%s: line %d: %s", path, jerr.line, jerr.text);
    else if (!r.has_model || !r.has_vocab || !r.has_merges)
        st = rose_json_bad(err, path, "model: vocab or merges is missing or of the wrong type");
done:
    for (int i = 0; i < 2; i++)
        rose_buf_free(&r.scratch[i]);
    rose_buf_free(&r.rest);
    rose_file_unmap(&map);
    return st;
}

/* ---- model ---- */

static bool null_or_empty(const rose_json *v)
{
    return v == NULL || rose_json_is_null(v) ||
           (rose_json_is_string(v) && rose_json_text_len(v) == 0);
}

/* Reads the options of the BPE model that change ids. */
static rose_status load_model_options(rose_tokenizer *t, const rose_json *o, const char *path,
                                      rose_err *err)
{
    bool ok = true;
    const rose_json *dropout = rose_json_get(o, "dropout");
    if (dropout != NULL && !rose_json_is_null(dropout) &&
        !(rose_json_is_number(dropout) && rose_json_number_value(dropout) <= 0))
        return rose_json_unsupported(err, path, "model option", "dropout");
    if (!null_or_empty(rose_json_get(o, "continuing_subword_prefix")))
        return rose_json_unsupported(err, path, "model option", "continuing_subword_prefix");
    if (!null_or_empty(rose_json_get(o, "end_of_word_suffix")))
        return rose_json_unsupported(err, path, "model option", "end_of_word_suffix");
    t->byte_fallback = rose_json_bool(o, "byte_fallback", false, &ok);
    if (t->byte_fallback && !t->is_chars)
        return rose_json_unsupported(err, path, "model option byte_fallback with pre_tokenizer",
                                     "ByteLevel");
    t->fuse_unk = rose_json_bool(o, "fuse_unk", false, &ok);
    t->ignore_merges = rose_json_bool(o, "ignore_merges", false, &ok);
    return ok ? ROSE_OK : rose_json_bad(err, path, "model: an option is not a boolean");
}

static rose_status load_model(rose_tokenizer *t, const rose_json *o, const char *path,
                              rose_err *err)
{
    const rose_json *type = rose_json_get(o, "type"), *unk = rose_json_get(o, "unk_token");
    if (type != NULL && strcmp(rose_json_type(o), "BPE") != 0)
        return rose_json_unsupported(err, path, "model type", rose_json_type(o));
    rose_status st = load_model_options(t, o, path, err);
    if (st != ROSE_OK || unk == NULL || rose_json_is_null(unk)) return st;
    if (!rose_json_is_string(unk))
        return rose_json_bad(err, path, "model: unk_token is not a string");
    t->unk_id = rose_vocab_find(&t->vocab, rose_json_text(unk), rose_json_text_len(unk));
    if (t->unk_id == ROSE_NO_ID)
        rose_log(
            ROSE_LOG_WARN, "tokenizer",
            "%s: unk_token \"%.60s\" is not in the vocabulary: characters that have no token are "
            "left out",
            path, rose_json_text(unk));
    return ROSE_OK;
}

/* ---- added tokens ---- */

static rose_status read_added(rose_added_spec *s, const rose_json *o, const char *path,
                              rose_err *err)
{
    const rose_json *text = rose_json_get(o, "content"), *id = rose_json_get(o, "id");
    bool ok = rose_json_is_string(text) && rose_json_is_integer(id) && rose_json_int(id) >= 0 &&
              rose_json_int(id) < (int64_t)ROSE_MAX_ID;
    if (!ok)
        return rose_json_bad(err, path,
                             "added_tokens: an entry without a content and an id in range");
    *s = (rose_added_spec){.text = rose_json_text(text),
                           .len = rose_json_text_len(text),
                           .special = rose_json_bool(o, "special", false, &ok),
                           .lstrip = rose_json_bool(o, "lstrip", false, &ok),
                           .rstrip = rose_json_bool(o, "rstrip", false, &ok),
                           .single_word = rose_json_bool(o, "single_word", false, &ok),
                           .normalized = rose_json_bool(o, "normalized", true, &ok),
                           .has_id = true,
                           .by_place = true,
                           .id = (uint32_t)rose_json_int(id)};
    return ok ? ROSE_OK : rose_json_bad(err, path, "added_tokens: a flag is not a boolean");
}

/* The tokens of tokenizer.json, then those that only the files beside it name. */
static rose_status load_added_list(rose_tokenizer *t, const rose_json *list, const char *path,
                                   rose_token_files *f)
{
    const size_t n = rose_json_count(list);
    if (list != NULL && !rose_json_is_null(list) && !rose_json_is_array(list))
        return rose_json_bad(f->err, path, "added_tokens is not a list");
    rose_status st = rose_token_files_begin(f, n);
    for (size_t i = 0; i < n && st == ROSE_OK; i++)
        st = read_added(&f->specs[i], rose_json_at(list, i), path, f->err);
    if (st == ROSE_OK) st = rose_token_files_read(f, NULL);
    return st == ROSE_OK ? rose_load_added(t, f->specs, f->n_specs, f->err) : st;
}

rose_status rose_load_tokenizer_json(rose_tokenizer *t, const char *dir, const char *path,
                                     rose_err *err)
{
    rose_json *root = NULL;
    rose_token_files f = {.dir = dir};
    rose_status st = read_file(t, path, &root, err);
    if (st == ROSE_OK) st = rose_load_parts(t, root, path, err);
    if (st == ROSE_OK) st = load_model(t, rose_json_get(root, "model"), path, err);
    if (st == ROSE_OK) st = rose_token_files_open(&f, dir, true, err);
    if (st == ROSE_OK) st = load_added_list(t, rose_json_get(root, "added_tokens"), path, &f);
    if (st == ROSE_OK) st = rose_load_finish(t, err);
    if (st == ROSE_OK) rose_token_files_log(&f, t, "tokenizer.json");
    rose_token_files_close(&f);
    rose_json_decref(root);
    return st;
}
