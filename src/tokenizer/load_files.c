/* tokenizer/load_files.c - reads vocab.json + merges.txt and the small files next to them, as the
 * GPT-2 tokenizer of transformers does: ByteLevel without a prefix space, <|endoftext|> special.
 * load_config.c has the order of added tokens; bos, eos and unk default to <|endoftext|>. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tokenizer/tokenizer_internal.h"

enum { MAX_BYTES = 256 << 20 };

static const char default_special[] = "<|endoftext|>";

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

static rose_status check_class(const rose_token_files *f)
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

static rose_status load_added_files(rose_tokenizer *t, rose_token_files *f)
{
    rose_json *fallback = rose_json_string(default_special);
    if (fallback == NULL) return rose_fail(f->err, ROSE_E_NOMEM, "%s: out of memory", f->dir);
    rose_status st = rose_token_files_begin(f, 0);
    if (st == ROSE_OK) st = rose_token_files_read(f, fallback);
    if (st == ROSE_OK) st = rose_load_added(t, f->specs, f->n_specs, f->err);
    rose_json_decref(fallback); /* the specs that point to it are used up */
    return st;
}

/* Reads add_bos_token of tokenizer_config.json: with it, ROSE_ENCODE_ADD_SPECIAL puts bos first. */
static rose_status add_bos(rose_tokenizer *t, const rose_token_files *f)
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
    rose_token_files f = {.dir = dir};
    rose_status st = load_vocab_file(t, dir, err);
    if (st != ROSE_OK) goto done;
    if ((st = rose_token_files_open(&f, dir, false, err)) != ROSE_OK) goto done;
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
    rose_token_files_close(&f);
    return st;
}
