/* Tokenizers in the metadata of GGUF files: both models, what is missing or contradicts itself. */
#include "tokenizer/tok_fixture.h"

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

static void write_spm(writer *w)
{
    text(w, "model", "llama");
    texts(w, "tokens", spm_words, N_SPM);
    list(w, "scores", T_F32, N_SPM);
    put(&w->pairs, spm_scores, sizeof spm_scores);
    list(w, "token_type", T_I32, N_SPM);
    put(&w->pairs, spm_types, sizeof spm_types);
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
    write_bpe(&w, "jais-2");
    assert_refused(&w, ROSE_E_UNSUPPORTED, "jais-2");
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
    write_bpe(&w, "gpt-2");
    number(&w, "eos_token_id", 8);
    assert_refused(&w, ROSE_E_FORMAT, "eos_token_id is 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spm),
        cmocka_unit_test(byte_level),
        cmocka_unit_test(not_utf8),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
