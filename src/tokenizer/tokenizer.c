/* tokenizer/tokenizer.c - opens and closes a tokenizer: picks the files and checks the result.
 *
 * The files of this room: load_json.c and load_parts.c (tokenizer.json),
 * load_files.c (vocab.json + merges.txt), load_config.c (tokens of the small files beside them),
 * sentencepiece.c (tokenizer.model), load_gguf.c, pieces.c (both of these), load_common.c (all);
 * vocab.c (token store), added.c (added tokens in text), normalize.c, pretok.c, scan.c and
 * pattern.c (pieces), bpe.c (merges, word cache), whole.c (words of one token), encode.c, decode.c;
 * unicode*.c (character classes). Bytes that are not UTF-8: see encode.c and decode.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

/* Leaves out what a post-processor adds without a token: no model could read such an id. */
static void drop_strangers(const rose_tokenizer *t, uint32_t *ids, uint32_t *n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++) {
        size_t len;
        if (rose_tokenizer_token_bytes(t, ids[i], &len) != NULL)
            ids[kept++] = ids[i];
        else
            rose_log(ROSE_LOG_WARN, "tokenizer",
                     "the post_processor adds id %u, which no token has: it is left out", ids[i]);
    }
    *n = kept;
}

static rose_status create(rose_tokenizer **out, rose_err *err)
{
    rose_unicode_init();
    if ((*out = calloc(1, sizeof **out)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "tokenizer: out of memory");
    (*out)->unk_id = ROSE_NO_ID;
    return ROSE_OK;
}

/* The last step after loading, which ended with st; *t goes to the caller or is closed. */
static rose_status deliver(rose_tokenizer **t, rose_status st)
{
    if (st == ROSE_OK) {
        drop_strangers(*t, (*t)->prefix, &(*t)->n_prefix);
        drop_strangers(*t, (*t)->suffix, &(*t)->n_suffix);
        return ROSE_OK;
    }
    rose_tokenizer_close(*t);
    *t = NULL;
    return st;
}

static bool has_file(const char *dir, const char *name, rose_buf *path)
{
    path->len = 0;
    return rose_buf_addf(path, "%s/%s", dir, name) == ROSE_OK && rose_buf_str(path) != NULL &&
           rose_file_exists(path->data);
}

static rose_status load_gguf_file(rose_tokenizer *t, const char *path, rose_err *err)
{
    rose_gguf g;
    rose_status st = rose_gguf_open(&g, path, err);
    if (st != ROSE_OK) return st;
    st = rose_load_gguf(t, &g, err);
    rose_gguf_close(&g);
    return st;
}

rose_status rose_tokenizer_open(rose_tokenizer **out, const char *model_dir, rose_err *err)
{
    rose_buf path = {0};
    char *gguf = NULL;
    rose_status st = create(out, err);
    if (st != ROSE_OK) return st;
    if ((st = rose_folder_find_gguf(&gguf, model_dir, err)) != ROSE_OK)
        ;
    else if (gguf != NULL)
        st = load_gguf_file(*out, gguf, err);
    else if ((st = rose_folder_check(model_dir, err)) != ROSE_OK)
        ;
    else if (has_file(model_dir, "tokenizer.json", &path))
        st = rose_load_tokenizer_json(*out, model_dir, path.data, err);
    else if (has_file(model_dir, "tokenizer.model", &path))
        st = rose_load_sentencepiece(*out, model_dir, err);
    else
        st = rose_load_vocab_merges(*out, model_dir, err);
    rose_buf_free(&path);
    free(gguf);
    return deliver(out, st);
}

rose_status rose_tokenizer_open_gguf(rose_tokenizer **out, const rose_gguf *file, rose_err *err)
{
    rose_status st = create(out, err);
    if (st == ROSE_OK) st = deliver(out, rose_load_gguf(*out, file, err));
    return st;
}

void rose_tokenizer_warn_beyond(const rose_tokenizer *t, uint32_t n_model_ids)
{
    uint32_t n = 0, first = 0;
    size_t len = 0;
    for (uint32_t id = t->vocab.n_ids; id > n_model_ids; id--) {
        if (rose_tokenizer_token_bytes(t, id - 1, &len) == NULL) continue;
        first = id - 1;
        n++;
    }
    if (n == 0) return;
    const char *text = rose_tokenizer_token_bytes(t, first, &len);
    rose_log(
        ROSE_LOG_WARN, "tokenizer",
        "%u token%s beyond the model's vocabulary of %u, such as \"%.*s\" (id %u): a prompt that "
        "contains one is refused",
        n, n == 1 ? " is" : "s are", n_model_ids, (int)(len < 40 ? len : 40), text, first);
}

void rose_tokenizer_close(rose_tokenizer *t)
{
    if (t == NULL) return;
    for (size_t i = 0; i < t->n_added; i++) {
        free(t->added[i].content);
        free(t->added[i].text);
    }
    free(t->added);
    rose_added_set_free(&t->raw_set);
    rose_added_set_free(&t->norm_set);
    for (uint32_t i = 0; i < t->n_stages; i++)
        pcre2_code_free(t->stages[i].code);
    rose_vocab_free(&t->vocab);
    free(t);
}
