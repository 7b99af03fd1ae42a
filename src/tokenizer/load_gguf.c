/* tokenizer/load_gguf.c - the tokenizer in the metadata of a GGUF file. Model "llama" is
 * SentencePiece-style BPE by scores, "gpt2" byte-level BPE with merges, whose pattern
 * tokenizer.ggml.pre names. The key does not say whether NFC and ignore_merges apply: we do what
 * the family's tokenizer.json says, so that both files of one model give the same ids. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

typedef struct gguf_tokens {
    rose_tokenizer *t;    /* borrowed */
    const rose_gguf *g;   /* borrowed */
    rose_piece_spec *all; /* owned; [n]; texts borrowed from the file */
    size_t n;
    rose_err *err;
} gguf_tokens;

static rose_status bad(const gguf_tokens *k, rose_status st, const char *what)
{
    return rose_fail(k->err, st, "%s: %s", k->g->label, what);
}

/* Texts, scores and types of all tokens. */
static rose_status read_tokens(gguf_tokens *k)
{
    const rose_gguf_value *texts = NULL, *scores = NULL, *types = NULL;
    rose_status st =
        rose_gguf_get_array(k->g, "tokenizer.ggml.tokens", ROSE_GGUF_STRING, &texts, k->err);
    if (st == ROSE_OK)
        st = rose_gguf_get_array(k->g, "tokenizer.ggml.scores", ROSE_GGUF_F32, &scores, k->err);
    if (st == ROSE_OK)
        st = rose_gguf_get_array(k->g, "tokenizer.ggml.token_type", ROSE_GGUF_I32, &types, k->err);
    if (st != ROSE_OK) return st;
    if (texts == NULL) return bad(k, ROSE_E_FORMAT, "no tokenizer.ggml.tokens");
    if (texts->n > ROSE_MAX_ID) return bad(k, ROSE_E_UNSUPPORTED, "too many tokens");
    if ((scores != NULL && scores->n != texts->n) || (types != NULL && types->n != texts->n))
        return bad(k, ROSE_E_FORMAT, "tokenizer.ggml: tokens, scores and types differ in number");
    k->n = (size_t)texts->n;
    if ((k->all = calloc(k->n + 1, sizeof *k->all)) == NULL)
        return bad(k, ROSE_E_NOMEM, "out of memory");
    size_t at = 0;
    rose_gguf_str text;
    for (size_t i = 0; i < k->n && rose_gguf_next_string(texts, &at, &text); i++) {
        if (!rose_utf8_is_valid(text.s, text.n))
            return rose_fail(k->err, ROSE_E_FORMAT,
                             "%s: tokenizer.ggml.tokens: token %zu is not "
                             "UTF-8",
                             k->g->label, i);
        k->all[i] = (rose_piece_spec){.text = text.s,
                                      .len = text.n,
                                      .score = scores != NULL ? rose_gguf_f32_at(scores, i) : 0,
                                      .type = types != NULL ? (int32_t)rose_gguf_u32_at(types, i)
                                                            : ROSE_PIECE_NORMAL};
    }
    return ROSE_OK;
}

/* Tokens that some converters typed as text, although the model was trained with them as control
 * tokens: they become control tokens. llama.cpp does the same. */
static void mend_types(gguf_tokens *k)
{
    char names[160] = "";
    size_t at = 0, n = 0;
    for (size_t i = 0; i < k->n; i++) {
        rose_piece_spec *p = &k->all[i];
        const rose_gguf_str text = {p->text, p->len};
        if (p->type == ROSE_PIECE_CONTROL ||
            rose_gguf_token_kind_of(text, p->type) == ROSE_GGUF_PLAIN)
            continue;
        p->type = ROSE_PIECE_CONTROL;
        const int m = snprintf(names + at, sizeof names - at, "%s%.*s (%zu)", n > 0 ? ", " : "",
                               (int)p->len, p->text, i);
        if (m > 0 && at + (size_t)m < sizeof names)
            at += (size_t)m;
        else
            names[at] = '\0';
        n++;
    }
    if (n > 0 && rose_gguf_get(k->g, "tokenizer.ggml.token_type") != NULL)
        rose_log(ROSE_LOG_WARN, "tokenizer",
                 "%s: the file types %zu control token%s as text: %s; taken as control tokens",
                 k->g->label, n, n == 1 ? "" : "s", names);
}

/* The id under a key. Without a sound one it is dflt if that token has the type, else ROSE_NO_ID.
 * The model has warned of bos and eos (model/gguf_arch.c). */
static uint32_t read_id(const gguf_tokens *k, const char *key, uint32_t dflt, int32_t type)
{
    uint32_t id = dflt < k->n && k->all[dflt].type == type ? dflt : ROSE_NO_ID;
    if (!rose_gguf_get_id(k->g, key, k->n, &id))
        rose_log(type == ROSE_PIECE_UNKNOWN ? ROSE_LOG_WARN : ROSE_LOG_DEBUG, "tokenizer",
                 "%s: %s is an id that no token has: ignored", k->g->label, key);
    return id;
}

/* BOS and EOS around a text, as the file asks for. SentencePiece's own ids are the defaults of
 * model "llama", as in llama.cpp. */
static rose_status read_template(const gguf_tokens *k, bool bos_by_default, bool is_spm)
{
    rose_tokenizer *t = k->t;
    bool add_bos = bos_by_default, add_eos = false;
    rose_status st = rose_gguf_get_bool(k->g, "tokenizer.ggml.add_bos_token", &add_bos, k->err);
    if (st == ROSE_OK)
        st = rose_gguf_get_bool(k->g, "tokenizer.ggml.add_eos_token", &add_eos, k->err);
    if (st != ROSE_OK) return st;
    const uint32_t bos =
        read_id(k, "tokenizer.ggml.bos_token_id", is_spm ? 1 : ROSE_NO_ID, ROSE_PIECE_CONTROL);
    const uint32_t eos =
        read_id(k, "tokenizer.ggml.eos_token_id", is_spm ? 2 : ROSE_NO_ID, ROSE_PIECE_CONTROL);
    if (add_bos && bos != ROSE_NO_ID) t->prefix[t->n_prefix++] = bos;
    if (add_eos && eos != ROSE_NO_ID) t->suffix[t->n_suffix++] = eos;
    return ROSE_OK;
}

/* Phi-3's tokenizer.json says that most added tokens take the white space after them with them.
 * GGUF has no key for that; llama.cpp also knows it by the family. */
static rose_status strip_after(gguf_tokens *k)
{
    static const char *const without[] = {"<unk>", "<s>", "<|endoftext|>"};
    rose_gguf_str arch = {0};
    rose_status st = rose_gguf_get_string(k->g, "general.architecture", &arch, k->err);
    if (st != ROSE_OK || !rose_gguf_str_is(arch, "phi3")) return st;
    for (size_t i = 0; i < k->n; i++) {
        rose_piece_spec *p = &k->all[i];
        p->rstrip = true;
        for (size_t w = 0; w < sizeof without / sizeof *without; w++)
            p->rstrip =
                p->rstrip && !rose_gguf_str_is((rose_gguf_str){p->text, p->len}, without[w]);
    }
    return ROSE_OK;
}

/* tokenizer.json and llama.cpp look for added tokens in the text as it came. Only one that has the
 * mark of a space must be looked for in the normalised text. */
static void match_raw(gguf_tokens *k)
{
    for (size_t i = 0; i < k->n; i++) {
        rose_piece_spec *p = &k->all[i];
        p->raw = memmem(p->text, p->len, ROSE_SPACE_MARK, ROSE_SPACE_MARK_LEN) == NULL;
    }
}

static rose_status load_llama(gguf_tokens *k)
{
    bool prefix = true;
    rose_status st = rose_gguf_get_bool(k->g, "tokenizer.ggml.add_space_prefix", &prefix, k->err);
    if (st == ROSE_OK) st = read_template(k, true, true);
    k->t->unk_id = read_id(k, "tokenizer.ggml.unknown_token_id", 0, ROSE_PIECE_UNKNOWN);
    if (st == ROSE_OK) st = strip_after(k);
    match_raw(k);
    if (st != ROSE_OK) return st;
    if (rose_gguf_get(k->g, "tokenizer.ggml.scores") == NULL)
        return bad(k, ROSE_E_FORMAT, "no tokenizer.ggml.scores");
    return rose_load_pieces(k->t, k->all, k->n, prefix ? ROSE_PREPEND_ALWAYS : ROSE_PREPEND_NEVER,
                            NULL, 0, k->g->label, k->err);
}

/* The stages that tokenizer.ggml.pre stands for. */
static rose_status load_pre(gguf_tokens *k, const rose_pre **pre)
{
    rose_tokenizer *t = k->t;
    rose_gguf_str text = {"default", 7};
    char name[64];
    rose_status st = rose_gguf_get_string(k->g, "tokenizer.ggml.pre", &text, k->err);
    if (st != ROSE_OK) return st;
    snprintf(name, sizeof name, "%.*s", (int)(text.n < 63 ? text.n : 63), text.s);
    if ((*pre = rose_pre_find(name)) == NULL)
        return rose_fail(k->err, ROSE_E_UNSUPPORTED,
                         "%s: tokenizer.ggml.pre \"%s\" is not supported: the way this tokenizer "
                         "splits text is not known; a Hugging Face folder of the model has it in "
                         "tokenizer.json",
                         k->g->label, name);
    t->ignore_merges = (*pre)->ignore_merges;
    if ((*pre)->is_nfc) t->norms[t->n_norms++] = (rose_norm){.kind = ROSE_NORM_NFC};
    for (int i = 0; i < ROSE_PRE_PATTERNS && (*pre)->patterns[i] != NULL && st == ROSE_OK; i++) {
        rose_stage *s = &t->stages[t->n_stages++];
        s->kind = ROSE_STAGE_SPLIT;
        st = rose_pattern_compile(&s->code, (*pre)->patterns[i], strlen((*pre)->patterns[i]), false,
                                  k->err);
    }
    t->stages[t->n_stages++] = (rose_stage){.kind = ROSE_STAGE_BYTE_LEVEL, .scan = (*pre)->scan};
    return st;
}

static rose_status read_merges(gguf_tokens *k)
{
    const rose_gguf_value *list = NULL;
    rose_gguf_str text;
    rose_merges l = {.v = &k->t->vocab, .err = k->err};
    size_t at = 0;
    rose_status st =
        rose_gguf_get_array(k->g, "tokenizer.ggml.merges", ROSE_GGUF_STRING, &list, k->err);
    if (st == ROSE_OK && list == NULL) return bad(k, ROSE_E_FORMAT, "no tokenizer.ggml.merges");
    for (uint32_t rank = 0; st == ROSE_OK && rose_gguf_next_string(list, &at, &text); rank++) {
        /* A space is no character of the byte alphabet, but may begin a text that is not in it. */
        const char *gap = text.n > 1 ? memchr(text.s + 1, ' ', text.n - 1) : NULL;
        const size_t na = gap != NULL ? (size_t)(gap - text.s) : 0;
        if (gap == NULL)
            st = rose_fail(k->err, ROSE_E_FORMAT, "%s: merge %u is not a pair of tokens",
                           k->g->label, rank);
        else
            st = rose_merges_add(&l, rank, text.s, na, gap + 1, text.n - na - 1);
    }
    if (st == ROSE_OK) st = rose_merges_flush(&l);
    rose_buf_free(&l.scratch);
    return st;
}

static rose_status load_gpt2(gguf_tokens *k)
{
    const rose_pre *pre = NULL;
    size_t n_specs = 0;
    rose_status st = load_pre(k, &pre);
    for (size_t i = 0; i < k->n && st == ROSE_OK; i++)
        st = rose_vocab_add_text(&k->t->vocab, (uint32_t)i, k->all[i].text, k->all[i].len, k->err);
    if (st == ROSE_OK) st = read_merges(k);
    /* Older files of Llama 3 and Mistral lack add_bos_token. */
    if (st == ROSE_OK) st = read_template(k, pre->add_bos, false);
    if (st != ROSE_OK) return st;
    rose_added_spec *specs = calloc(k->n + 1, sizeof *specs);
    if (specs == NULL) return bad(k, ROSE_E_NOMEM, "out of memory");
    for (size_t i = 0; i < k->n; i++) {
        const int32_t type = k->all[i].type;
        if (type != ROSE_PIECE_CONTROL && type != ROSE_PIECE_USER_DEFINED) continue;
        specs[n_specs++] = (rose_added_spec){
            .text = k->all[i].text, .len = k->all[i].len, .special = type == ROSE_PIECE_CONTROL};
    }
    st = rose_load_added(k->t, specs, n_specs, k->err);
    free(specs);
    return st == ROSE_OK ? rose_load_finish(k->t, k->err) : st;
}

rose_status rose_load_gguf(rose_tokenizer *t, const rose_gguf *file, rose_err *err)
{
    gguf_tokens k = {.t = t, .g = file, .err = err};
    rose_gguf_str model = {0};
    rose_status st = rose_gguf_get_string(file, "tokenizer.ggml.model", &model, err);
    if (st == ROSE_OK && model.s == NULL)
        st = bad(&k, ROSE_E_FORMAT, "no tokenizer.ggml.model: the file has no tokenizer");
    if (st == ROSE_OK) st = read_tokens(&k);
    if (st == ROSE_OK) {
        mend_types(&k);
        if (rose_gguf_str_is(model, "llama"))
            st = load_llama(&k);
        else if (rose_gguf_str_is(model, "gpt2"))
            st = load_gpt2(&k);
        else
            st = rose_fail(err, ROSE_E_UNSUPPORTED,
                           "%s: tokenizer.ggml.model \"%.*s\" is not supported", file->label,
                           (int)(model.n < 40 ? model.n : 40), model.s);
    }
    free(k.all);
    return st;
}
