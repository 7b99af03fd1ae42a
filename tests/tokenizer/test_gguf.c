/* Tokenizers in the metadata of GGUF files: both models, what is missing or contradicts itself. */
#include "tokenizer/tok_fixture.h"

#include "base/file.h"

enum { T_U32 = 4, T_I32 = 5, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9 };

typedef struct writer {
    rose_buf pairs;
    uint64_t n;
} writer;

static void put(rose_buf *b, const void *bytes, size_t n)
{
    assert_int_equal(rose_buf_add(b, bytes, n), ROSE_OK);
}

static void put_u32(rose_buf *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static void put_text(rose_buf *b, const char *text)
{
    const uint64_t n = strlen(text);
    put(b, &n, sizeof n);
    put(b, text, n);
}

static void key(writer *w, const char *name, uint32_t type)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", strchr(name, '.') != NULL ? "" : "tokenizer.ggml.", name);
    put_text(&w->pairs, full);
    put_u32(&w->pairs, type);
    w->n++;
}

static void text(writer *w, const char *name, const char *value)
{
    key(w, name, T_STRING);
    put_text(&w->pairs, value);
}

static void number(writer *w, const char *name, uint32_t v)
{
    key(w, name, T_U32);
    put_u32(&w->pairs, v);
}

static void flag(writer *w, const char *name, bool v)
{
    key(w, name, T_BOOL);
    put(&w->pairs, &(uint8_t){v}, 1);
}

static void list(writer *w, const char *name, uint32_t type, uint64_t n)
{
    key(w, name, T_ARRAY);
    put_u32(&w->pairs, type);
    put(&w->pairs, &n, sizeof n);
}

static void texts(writer *w, const char *name, const char *const *words, size_t n)
{
    list(w, name, T_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_text(&w->pairs, words[i]);
}

/* Opens what was written and empties the writer. */
static rose_status open_written(writer *w, rose_tokenizer **t, rose_err *err)
{
    rose_buf file = {0};
    rose_gguf g;
    const uint64_t no_tensors = 0;
    put(&file, "GGUF", 4);
    put_u32(&file, 3);
    put(&file, &no_tensors, 8);
    put(&file, &w->n, 8);
    put(&file, w->pairs.data != NULL ? w->pairs.data : "", w->pairs.len);
    err->msg[0] = '\0';
    if (rose_gguf_parse(&g, (const uint8_t *)file.data, file.len, "test.gguf", err) != ROSE_OK)
        fail_msg("%s", err->msg);
    rose_status st = rose_tokenizer_open_gguf(t, &g, err);
    rose_gguf_close(&g); /* the tokenizer keeps nothing of the file */
    rose_buf_free(&file);
    rose_buf_free(&w->pairs);
    *w = (writer){0};
    return st;
}

static const char *const spm_words[] = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "\xe2\x96\x81",
                                        "a",
                                        ("\xe2\x96\x81"
                                         "a"),
                                        "<0x62>",
                                        "aa",
                                        "[X]"};
static const float spm_scores[] = {0, 0, 0, -1, -2, -3, 0, -4, 0};
static const int32_t spm_types[] = {2, 3, 3, 1, 1, 1, 6, 1, 4};
enum { N_SPM = 9 };

static void write_spm_tokens(writer *w)
{
    text(w, "model", "llama");
    texts(w, "tokens", spm_words, N_SPM);
    list(w, "scores", T_F32, N_SPM);
    put(&w->pairs, spm_scores, sizeof spm_scores);
    list(w, "token_type", T_I32, N_SPM);
    put(&w->pairs, spm_types, sizeof spm_types);
}

static void write_spm(writer *w)
{
    write_spm_tokens(w);
    number(w, "bos_token_id", 1);
    number(w, "eos_token_id", 2);
    number(w, "unknown_token_id", 0);
}

static const char *const bpe_words[] = {"<|end|>", "a", "b", "1", "ab", "\xc4\xa0", "11", "<t>"};
static const int32_t bpe_types[] = {3, 1, 1, 1, 1, 1, 1, 4};
static const char *const bpe_merges[] = {"a b", "1 1"};
enum { N_BPE = 8 };

static void write_bpe(writer *w, const char *pre)
{
    text(w, "model", "gpt2");
    if (pre != NULL) text(w, "pre", pre);
    texts(w, "tokens", bpe_words, N_BPE);
    list(w, "token_type", T_I32, N_BPE);
    put(&w->pairs, bpe_types, sizeof bpe_types);
    texts(w, "merges", bpe_merges, 2);
    number(w, "bos_token_id", 0);
}

static void assert_ids(writer *w, const char *input, const uint32_t *want, size_t n)
{
    rose_tokenizer *t = NULL;
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_err err = {""};
    if (open_written(w, &t, &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    assert_int_equal(rose_encode(e, input, strlen(input), ROSE_ENCODE_ADD_SPECIAL, &ids, &err),
                     ROSE_OK);
    assert_int_equal(ids.len, n);
    assert_memory_equal(ids.data, want, 4 * n);
    rose_ids_free(&ids);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

#define IDS(...)                                                                                   \
    (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)

static void spm(void **state)
{
    writer w = {0};
    (void)state;
    write_spm(&w); /* BOS and the space are the default */
    assert_ids(&w, "a</s>a[X]b", IDS(1, 5, 2, 5, 8, 3, 6));
    write_spm(&w);
    assert_ids(&w, "[X]b</s>  b", IDS(1, 8, 3, 6, 2, 3, 3, 3, 6));
    write_spm(&w);
    text(&w, "general.architecture", "phi3"); /* tokens that take the space after them with them */
    assert_ids(&w, "<s> b</s>  b[X] b", IDS(1, 1, 3, 3, 6, 2, 3, 6, 8, 3, 6));
    write_spm(&w);
    flag(&w, "add_bos_token", false);
    flag(&w, "add_eos_token", true);
    flag(&w, "add_space_prefix", false);
    assert_ids(&w, "a", IDS(4, 2));
}

static void byte_level(void **state)
{
    writer w = {0};
    (void)state;
    write_bpe(&w, "gpt-2");
    assert_ids(&w, "ab 11<t>a<|end|>", IDS(4, 5, 6, 7, 1, 0));
    write_bpe(&w, "smollm");
    assert_ids(&w, "ab11", IDS(4, 3, 3));
    write_bpe(&w, "qwen2");
    assert_ids(&w, "11", IDS(3, 3));
    write_bpe(&w, "llama-bpe"); /* BOS is the default here */
    assert_ids(&w, "11", IDS(0, 6));
    write_bpe(&w, "llama-bpe");
    flag(&w, "add_bos_token", false);
    assert_ids(&w, "11", IDS(6));
    write_bpe(&w, "smollm");
    flag(&w, "add_bos_token", true);
    assert_ids(&w, "1", IDS(0, 3));
    write_bpe(&w, NULL); /* "default" */
    assert_ids(&w, "ab11", IDS(4, 6));
}

/* Tokens that the file types as text, and ids that no token has. */
static void mended(void **state)
{
    static const char *const words[] = {"a",           "<|im_end|>", "<EOT>", "<fim_prefix>",
                                        "<|im_end|>x", "</s>",       "<s>"};
    static const int32_t types[] = {1, 1, 4, 1, 1, 4, 1};
    writer w = {0};
    (void)state;
    for (int i = 0; i < 2; i++) {
        text(&w, "model", "gpt2");
        text(&w, "pre", "gpt-2");
        texts(&w, "tokens", words, 7);
        texts(&w, "merges", bpe_merges, 0);
        if (i == 0) {
            list(&w, "token_type", T_I32, 7);
            put(&w.pairs, types, sizeof types);
        }
        number(&w, "bos_token_id", 99999);
        key(&w, "eos_token_id", T_I32);
        put_u32(&w.pairs, UINT32_MAX); /* -1 */
        flag(&w, "add_bos_token", true);
        flag(&w, "add_eos_token", true);
        assert_ids(&w, "<|im_end|>a<EOT><fim_prefix></s>a", IDS(1, 0, 2, 3, 5, 0));
    }
    write_spm_tokens(&w);
    number(&w, "bos_token_id", 9); /* SentencePiece's own ids are the defaults */
    number(&w, "unknown_token_id", 77);
    flag(&w, "add_eos_token", true);
    assert_ids(&w, "a", IDS(1, 5, 2));
}

static void assert_refused(writer *w, rose_status want, const char *name)
{
    rose_tokenizer *t = NULL;
    rose_err err;
    rose_status st = open_written(w, &t, &err);
    if (st != want || t != NULL || strstr(err.msg, name) == NULL)
        fail_msg("want %s naming %s, got %s: %s", rose_status_name(want), name,
                 rose_status_name(st), err.msg);
}

/* The last token ends within a character: reading it must not go past the texts. */
static void not_utf8(void **state)
{
    static const char *const ends[] = {"\xf0", "a\xe2\x96", "\xff", "\xc0\x80"};
    writer w = {0};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof ends / sizeof *ends; i++) {
        const char *const words[] = {"a", "b", "ab", ends[i / 2]};
        const float scores[4] = {0};
        text(&w, "model", i % 2 == 0 ? "gpt2" : "llama");
        texts(&w, "tokens", words, 4);
        texts(&w, "merges", bpe_merges, 1);
        list(&w, "scores", T_F32, 4);
        put(&w.pairs, scores, sizeof scores);
        assert_refused(&w, ROSE_E_FORMAT, "token 3 is not UTF-8");
    }
}

static void refused(void **state)
{
    static const char *const bad_merge[] = {"ab"}, *const unknown_merge[] = {"a c"};
    writer w = {0};
    (void)state;
    assert_refused(&w, ROSE_E_FORMAT, "no tokenizer.ggml.model");
    text(&w, "model", "bert");
    texts(&w, "tokens", bpe_words, N_BPE);
    assert_refused(&w, ROSE_E_UNSUPPORTED, "bert");
    text(&w, "model", "gpt2");
    assert_refused(&w, ROSE_E_FORMAT, "no tokenizer.ggml.tokens");
    write_bpe(&w, "kimi-k2");
    assert_refused(&w, ROSE_E_UNSUPPORTED, "kimi-k2");
    write_bpe(&w, "phi-2 olmo");
    assert_refused(&w, ROSE_E_UNSUPPORTED, "phi-2 olmo");
    text(&w, "model", "gpt2");
    texts(&w, "tokens", bpe_words, N_BPE);
    assert_refused(&w, ROSE_E_FORMAT, "no tokenizer.ggml.merges");
    for (int i = 0; i < 2; i++) {
        text(&w, "model", "gpt2");
        texts(&w, "tokens", bpe_words, N_BPE);
        texts(&w, "merges", i == 0 ? bad_merge : unknown_merge, 1);
        assert_refused(&w, ROSE_E_FORMAT, "merge 0");
    }
    text(&w, "model", "llama");
    texts(&w, "tokens", spm_words, N_SPM);
    assert_refused(&w, ROSE_E_FORMAT, "no tokenizer.ggml.scores");
    text(&w, "model", "llama");
    texts(&w, "tokens", spm_words, N_SPM);
    list(&w, "scores", T_F32, 2);
    put(&w.pairs, spm_scores, 8);
    assert_refused(&w, ROSE_E_FORMAT, "differ in number");
}

/* ---- tokenizer.ggml.pre against llama.cpp: tests/golden/pres.txt ---- */

enum { MAX_WORDS = 1024, MAX_TEXT = 512 };

typedef struct golden {
    rose_buf file; /* owned; each line ends with a NUL */
    const char *tokens[MAX_WORDS], *merges[MAX_WORDS];
    size_t n_tokens, n_merges, n_texts;
    const char *first; /* the first text's line */
} golden;

static const char *next_line(const golden *g, const char *line)
{
    line += strlen(line) + 1;
    return line < g->file.data + g->file.len ? line : NULL;
}

static void read_golden(golden *g)
{
    char path[512];
    rose_err err;
    const char *root = getenv("ROSE_ROOT");
    snprintf(path, sizeof path, "%s/tests/golden/pres.txt", root != NULL ? root : ".");
    if (rose_file_read(&g->file, path, 1 << 20, &err) != ROSE_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < g->file.len; i++)
        if (g->file.data[i] == '\n') g->file.data[i] = '\0';
    for (const char *l = g->file.data; l != NULL; l = next_line(g, l)) {
        assert_true(g->n_tokens < MAX_WORDS && g->n_merges < MAX_WORDS);
        if (strncmp(l, "t ", 2) == 0) g->tokens[g->n_tokens++] = l + 2;
        if (strncmp(l, "m ", 2) == 0) g->merges[g->n_merges++] = l + 2;
        if (strncmp(l, "x ", 2) == 0 && g->n_texts++ == 0) g->first = l;
    }
    assert_true(g->n_tokens > 256 && g->n_texts > 30);
}

/* The ids of a line "name name: id id" if one of its names is this one, else NULL. */
static const char *ids_of(const char *line, const char *name)
{
    const char *colon = strstr(line, ": ");
    const size_t n = strlen(name);
    for (const char *p = line; p != NULL && p < colon; p = strchr(p, ' ')) {
        p += *p == ' ';
        if (strncmp(p, name, n) == 0 && (p[n] == ' ' || p[n] == ':')) return colon + 2;
    }
    return NULL;
}

static size_t from_hex(char *out, const char *hex)
{
    size_t n = 0;
    for (; hex[0] != '\0' && n < MAX_TEXT; hex += 2) {
        const char pair[3] = {hex[0], hex[1], '\0'};
        out[n++] = (char)strtoul(pair, NULL, 16);
    }
    return n;
}

static void assert_line(rose_encoder *e, const char *name, const char *hex, const char *want)
{
    char bytes[MAX_TEXT];
    const size_t n = from_hex(bytes, hex);
    rose_ids ids = {0};
    rose_err err;
    rose_buf got = {0};
    assert_int_equal(rose_encode(e, bytes, n, 0, &ids, &err), ROSE_OK);
    for (size_t i = 0; i < ids.len; i++)
        assert_int_equal(rose_buf_addf(&got, i > 0 ? " %u" : "%u", ids.data[i]), ROSE_OK);
    if (strcmp(rose_buf_str(&got), want) != 0)
        fail_msg("%s: \"%.*s\": %s, llama.cpp: %s", name, (int)n, bytes, got.data, want);
    rose_buf_free(&got);
    rose_ids_free(&ids);
}

static void assert_pre(const golden *g, const char *name)
{
    writer w = {0};
    rose_tokenizer *t = NULL;
    rose_encoder *e = NULL;
    rose_err err;
    const char *hex = NULL, *ids;
    size_t n_texts = 0;
    text(&w, "model", "gpt2");
    text(&w, "pre", name);
    texts(&w, "tokens", g->tokens, g->n_tokens);
    texts(&w, "merges", g->merges, g->n_merges);
    if (open_written(&w, &t, &err) != ROSE_OK) fail_msg("%s: %s", name, err.msg);
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    for (const char *l = g->first; l != NULL; l = next_line(g, l)) {
        if (strncmp(l, "x ", 2) == 0) {
            hex = l + 2;
        } else if ((ids = ids_of(l, name)) != NULL) {
            assert_line(e, name, hex, ids);
            n_texts++;
        }
    }
    assert_int_equal(n_texts, g->n_texts);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

static void like_llama_cpp(void **state)
{
    golden g = {.n_texts = 0};
    size_t n_names = 0;
    (void)state;
    read_golden(&g);
    for (const char *l = next_line(&g, g.first); strncmp(l, "x ", 2) != 0; l = next_line(&g, l)) {
        const char *colon = strstr(l, ": ");
        for (const char *p = l; p < colon; n_names++) {
            char name[64];
            const size_t n = strcspn(p, " :");
            snprintf(name, sizeof name, "%.*s", (int)n, p);
            assert_pre(&g, name);
            p += n + 1;
        }
    }
    assert_true(n_names > 50);
    rose_buf_free(&g.file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spm),      cmocka_unit_test(byte_level), cmocka_unit_test(mended),
        cmocka_unit_test(not_utf8), cmocka_unit_test(refused),    cmocka_unit_test(like_llama_cpp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
