/* SentencePiece-style BPE from tokenizer.model and GGUF: ids worked out by hand, byte fallback in
 * the incremental detokeniser, the leading space, what is refused, damaged files. */
#include "tokenizer/tok_fixture.h"

#include <math.h>

#include "base/log.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE };
#define M "\xe2\x96\x81"

typedef struct piece {
    const char *text;
    float score;
    int type;
} piece;

/* ids:                0                   1                  2 */
#define HEAD                                                                                       \
    {"<unk>", 0, UNKNOWN}, {"<s>", 0, CONTROL},                                                    \
    {                                                                                              \
        "</s>", 0, CONTROL                                                                         \
    }

static void put_varint(rose_buf *b, uint64_t v)
{
    for (; v > 127; v >>= 7)
        rose_buf_add(b, &(uint8_t){(uint8_t)(v | 128)}, 1);
    rose_buf_add(b, &(uint8_t){(uint8_t)v}, 1);
}

static void put_bytes(rose_buf *b, unsigned field, const void *bytes, size_t n)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    rose_buf_add(b, bytes, n);
}

static void put_number(rose_buf *b, unsigned field, uint64_t v)
{
    put_varint(b, field << 3);
    put_varint(b, v);
}

static void put_piece(rose_buf *b, const piece *p)
{
    rose_buf one = {0};
    put_bytes(&one, 1, p->text, strlen(p->text));
    put_varint(&one, 2 << 3 | 5);
    rose_buf_add(&one, &p->score, 4);
    put_number(&one, 3, (uint64_t)p->type);
    put_bytes(b, 1, one.data, one.len);
    rose_buf_free(&one);
}

/* The settings that the tests change. */
typedef struct settings {
    int model_type, suffix, no_prefix, removes, no_escape;
    const char *charsmap;
} settings;

static void put_settings(rose_buf *b, const settings *s)
{
    rose_buf part = {0};
    put_number(&part, 3, (uint64_t)(s->model_type != 0 ? s->model_type : 2));
    put_number(&part, 24, (uint64_t)s->suffix);
    put_bytes(b, 2, part.data, part.len);
    part.len = 0;
    if (s->charsmap != NULL) put_bytes(&part, 2, s->charsmap, strlen(s->charsmap));
    put_number(&part, 3, !s->no_prefix);
    put_number(&part, 4, (uint64_t)s->removes);
    put_number(&part, 5, !s->no_escape);
    put_bytes(b, 3, part.data, part.len);
    rose_buf_free(&part);
}

static const piece small[] = {HEAD,
                              {"<0xE2>", 0, BYTE},   /* 3 */
                              {"<0x82>", 0, BYTE},   /* 4 */
                              {"<0xAC>", 0, BYTE},   /* 5 */
                              {"<0xFF>", 0, BYTE},   /* 6 */
                              {"<x>", 0, USER},      /* 7 */
                              {M, -9, NORMAL},       /* 8 */
                              {"a", -9, NORMAL},     /* 9 */
                              {"b", -9, NORMAL},     /* 10 */
                              {"c", -9, NORMAL},     /* 11 */
                              {"bc", -1, NORMAL},    /* 12 */
                              {"ab", -2, NORMAL},    /* 13 */
                              {M "a", -3, NORMAL},   /* 14 */
                              {M "abc", -4, NORMAL}, /* 15 */
                              {M M, -5, NORMAL},     /* 16 */
                              {"aa", -6, NORMAL}};   /* 17 */

static void write_model(temp_dir *d, const piece *pieces, size_t n, const settings *s)
{
    rose_buf b = {0};
    for (size_t i = 0; i < n; i++)
        put_piece(&b, &pieces[i]);
    put_settings(&b, s);
    temp_write(d, "tokenizer.model", b.data, b.len);
    rose_buf_free(&b);
}

static rose_tokenizer *open_small(const settings *s, const char *config)
{
    temp_dir d;
    rose_tokenizer *t = NULL;
    rose_err err = {""};
    temp_make(&d);
    write_model(&d, small, sizeof small / sizeof small[0], s);
    if (config != NULL) temp_write(&d, "tokenizer_config.json", config, strlen(config));
    if (rose_tokenizer_open(&t, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    temp_remove(&d);
    return t;
}

static void assert_ids(const rose_tokenizer *t, const char *text, unsigned flags,
                       const uint32_t *want, size_t n)
{
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_err err = {""};
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    for (int again = 0; again < 2; again++) { /* the second time from the cache */
        ids.len = 0;
        assert_int_equal(rose_encode(e, text, strlen(text), flags, &ids, &err), ROSE_OK);
        if (ids.len != n || memcmp(ids.data, want, 4 * n) != 0) {
            for (size_t i = 0; i < ids.len; i++)
                print_message("%u ", ids.data[i]);
            fail_msg("ids of \"%s\"", text);
        }
    }
    rose_ids_free(&ids);
    rose_encoder_destroy(e);
}

#define IDS(...)                                                                                   \
    (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)

static void ids_by_hand(void **state)
{
    (void)state;
    rose_tokenizer *t = open_small(&(settings){0}, NULL);
    assert_ids(t, "a", 0, IDS(14));
    /* "bc" has a higher score than "ab" */
    assert_ids(t, "abc", 0, IDS(15));
    assert_ids(t, "xbc", ROSE_ENCODE_PLAIN_SPECIAL, IDS(8, 0, 12));
    assert_ids(t, "ab a", 0, IDS(8, 13, 14));
    assert_ids(t, " a", 0, IDS(8, 14));   /* the added space, then its own */
    assert_ids(t, "aaa", 0, IDS(14, 17)); /* the space takes the first a before aa is due */
    assert_ids(t, "\xe2\x82\xac", 0, IDS(8, 3, 4, 5));
    assert_ids(t, "\xe2\x82", 0, IDS(3, 4));    /* no UTF-8: bytes */
    assert_ids(t, "zz", 0, IDS(8, 0));          /* unknown characters join */
    assert_ids(t, "a\xc3\xa9z", 0, IDS(14, 0)); /* bytes of e acute have no tokens */
    assert_ids(t, "<x>a", 0, IDS(8, 7, 9));     /* user-defined: within the normalised text */
    assert_ids(t, "<s>a", 0, IDS(1, 9));        /* control: before it; no space after */
    assert_ids(t, "a", ROSE_ENCODE_ADD_SPECIAL, IDS(1, 14));
    rose_tokenizer_close(t);
    t = open_small(&(settings){0},
                   "{\"legacy\":false,\"add_bos_token\":false,\"add_eos_token\":true}");
    assert_ids(t, "a<s>a", ROSE_ENCODE_ADD_SPECIAL, IDS(14, 1, 9, 2));
    rose_tokenizer_close(t);
    t = open_small(&(settings){0}, "{\"legacy\":true}");
    assert_ids(t, "a<s>a", ROSE_ENCODE_ADD_SPECIAL, IDS(1, 14, 1, 14));
    rose_tokenizer_close(t);
    t = open_small(&(settings){.no_prefix = 1}, NULL);
    assert_ids(t, "abc a", 0, IDS(9, 12, 14));
    rose_tokenizer_close(t);
}

static void assert_pieces(const rose_tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                          const char *const *want)
{
    rose_detok d = {0};
    rose_buf whole = {0}, pieces = {0};
    char out[256];
    assert_true(rose_detok_cap(t) <= sizeof out);
    for (size_t i = 0; i < n; i++) {
        const size_t k = rose_detok_push(&d, t, ids[i], flags, out);
        assert_int_equal(k, strlen(want[i]));
        assert_memory_equal(out, want[i], k);
        rose_buf_add(&pieces, out, k);
    }
    rose_buf_add(&pieces, out, rose_detok_finish(&d, out));
    assert_int_equal(rose_decode(t, ids, n, flags, &whole, NULL), ROSE_OK);
    assert_int_equal(whole.len, pieces.len);
    if (whole.len > 0) assert_memory_equal(whole.data, pieces.data, whole.len);
    rose_buf_free(&whole);
    rose_buf_free(&pieces);
}

/* The text of a stream that continues a prompt, with a '|' at its end. */
static const char *continued(const rose_tokenizer *t, const uint32_t *prompt, size_t n,
                             unsigned flags)
{
    static char out[64];
    rose_detok d;
    rose_detok_begin(&d, t, prompt, n, flags);
    size_t len = rose_detok_push(&d, t, 14, flags, out);
    len += rose_detok_push(&d, t, 14, flags, out + len);
    memcpy(out + len, "|", 2);
    return out;
}

/* A stream's text is what the prompt's text lacks of the text of all ids. */
static void continuing(void **state)
{
    (void)state;
    rose_tokenizer *t = open_small(&(settings){0}, NULL);
    const unsigned skip = ROSE_DECODE_SKIP_SPECIAL;
    assert_string_equal(continued(t, NULL, 0, skip), "a a|");
    assert_string_equal(continued(t, (uint32_t[]){9}, 1, skip), " a a|");
    assert_string_equal(continued(t, (uint32_t[]){1, 9}, 2, skip), " a a|");
    assert_string_equal(continued(t, (uint32_t[]){1}, 1, skip), "a a|");
    assert_string_equal(continued(t, (uint32_t[]){1}, 1, 0), " a a|");
    rose_tokenizer_close(t);
}

static void decoding(void **state)
{
    (void)state;
    rose_tokenizer *t = open_small(&(settings){0}, NULL);
    assert_pieces(t, IDS(14, 14), 0, (const char *[]){"a", " a"});
    assert_pieces(t, IDS(14, 14), ROSE_DECODE_CONTINUES, (const char *[]){" a", " a"});
    assert_pieces(t, IDS(16, 14), 0, (const char *[]){" ", " a"});
    assert_pieces(t, IDS(1, 14), 0, (const char *[]){"<s>", " a"});
    assert_pieces(t, IDS(1, 14), ROSE_DECODE_SKIP_SPECIAL, (const char *[]){"", "a"});
    assert_pieces(t, IDS(3, 4, 5, 9), 0, (const char *[]){"", "", "\xe2\x82\xac", "a"});
    assert_pieces(t, IDS(3, 9), 0,
                  (const char *[]){"", "\xef\xbf\xbd"
                                       "a"});
    assert_pieces(t, IDS(3, 4), 0, (const char *[]){"", ""});
    assert_pieces(t, IDS(6, 9), 0, (const char *[]){"\xef\xbf\xbd", "a"});
    rose_tokenizer_close(t);
    t = open_small(&(settings){.no_prefix = 1}, NULL);
    assert_pieces(t, IDS(14, 14), 0, (const char *[]){" a", " a"});
    size_t n;
    const char *bytes = rose_tokenizer_token_bytes(t, 3, &n);
    assert_int_equal(n, 1);
    assert_int_equal((unsigned char)bytes[0], 0xE2);
    uint32_t id;
    assert_true(rose_tokenizer_find(t, " abc", 4, &id) && id == 15);
    assert_true(rose_tokenizer_find(t, "<s>", 3, &id) && id == 1);
    rose_tokenizer_close(t);
}

static void assert_refused(const piece *pieces, size_t n, const settings *s, rose_status want,
                           const char *name)
{
    temp_dir d;
    rose_tokenizer *t = NULL;
    rose_err err = {""};
    temp_make(&d);
    write_model(&d, pieces, n, s);
    rose_status st = rose_tokenizer_open(&t, d.path, &err);
    if (st != want || t != NULL || strstr(err.msg, name) == NULL)
        fail_msg("want %s naming %s, got %s: %s", rose_status_name(want), name,
                 rose_status_name(st), err.msg);
    temp_remove(&d);
}

#define PIECES(...)                                                                                \
    (const piece[]){__VA_ARGS__}, sizeof((const piece[]){__VA_ARGS__}) / sizeof(piece)

static void refused_by_name(void **state)
{
    static char longest[600];
    const settings bpe = {0};
    (void)state;
    memset(longest, 'a', sizeof longest - 1);
    assert_refused(PIECES(HEAD), &(settings){.model_type = 1}, ROSE_E_UNSUPPORTED, "UNIGRAM");
    assert_refused(PIECES(HEAD), &(settings){.model_type = 4}, ROSE_E_UNSUPPORTED, "CHAR");
    assert_refused(PIECES(HEAD), &(settings){.charsmap = "x"}, ROSE_E_UNSUPPORTED,
                   "precompiled_charsmap");
    assert_refused(PIECES(HEAD), &(settings){.removes = 1}, ROSE_E_UNSUPPORTED,
                   "remove_extra_whitespaces");
    assert_refused(PIECES(HEAD), &(settings){.no_escape = 1}, ROSE_E_UNSUPPORTED,
                   "escape_whitespaces");
    assert_refused(PIECES(HEAD), &(settings){.suffix = 1}, ROSE_E_UNSUPPORTED,
                   "treat_whitespace_as_suffix");
    assert_refused(PIECES(HEAD, {"a", 0, UNUSED}), &bpe, ROSE_E_UNSUPPORTED, "UNUSED");
    assert_refused(PIECES(HEAD, {longest, 0, NORMAL}), &bpe, ROSE_E_UNSUPPORTED, "over 512");
    assert_refused(PIECES(HEAD, {"a", 0, NORMAL}, {"a", 0, NORMAL}), &bpe, ROSE_E_FORMAT,
                   "two ids");
    assert_refused(PIECES(HEAD, {"\xff", 0, NORMAL}), &bpe, ROSE_E_FORMAT, "not UTF-8");
    assert_refused(PIECES(HEAD, {"a", 0, 9}), &bpe, ROSE_E_FORMAT, "type");
    assert_refused(PIECES(HEAD, {"a", NAN, NORMAL}), &bpe, ROSE_E_FORMAT, "finite");
    assert_refused(PIECES(HEAD, {"", 0, NORMAL}), &bpe, ROSE_E_FORMAT, "empty");
    assert_refused(PIECES({"a", 0, NORMAL}, {"b", 0, NORMAL}, {"c", 0, NORMAL}), &bpe,
                   ROSE_E_FORMAT, "UNKNOWN");
    assert_refused(NULL, 0, &bpe, ROSE_E_FORMAT, "tiktoken");
}

/* Every truncation and many changed bytes: an answer, never a crash. */
static void damaged(void **state)
{
    rose_buf b = {0};
    temp_dir d;
    uint64_t seed = test_seed();
    size_t refused = 0;
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    temp_make(&d);
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        put_piece(&b, &small[i]);
    put_settings(&b, &(settings){0});
    for (size_t i = 0; i < b.len + 600; i++) {
        rose_tokenizer *t = NULL;
        rose_err err = {""};
        const size_t at = rnd(&seed) % b.len;
        const char was = b.data[at];
        if (i >= b.len) b.data[at] = (char)rnd(&seed);
        temp_write(&d, "tokenizer.model", b.data, i < b.len ? i : b.len);
        rose_status st = rose_tokenizer_open(&t, d.path, &err);
        assert_true((st == ROSE_OK) == (t != NULL) && (st == ROSE_OK || err.msg[0] != '\0'));
        if (i < b.len) assert_int_not_equal(st, ROSE_OK); /* the settings come last */
        refused += st != ROSE_OK;
        b.data[at] = was;
        rose_tokenizer_close(t);
    }
    assert_true(refused > b.len);
    temp_remove(&d);
    rose_buf_free(&b);
}

/* Tokens that tokenizer_config.json names: after the last piece, in the order of transformers. A
 * piece that is also named keeps its id. */
static void named_tokens(void **state)
{
    static const char config[] =
        "{\"added_tokens_decoder\":{\"1\":{\"content\":\"<s>\",\"special\":true},\"99\":{"
        "\"content\":"
        "\"<im>\",\"special\":true}},\"pad_token\":\"</s>\",\"additional_special_tokens\":[\"<y>\","
        "\"aa\"]}";
    uint32_t id;
    (void)state;
    rose_tokenizer *t = open_small(&(settings){0}, config);
    const uint32_t n = sizeof small / sizeof small[0];
    assert_true(rose_tokenizer_find(t, "<im>", 4, &id) && id == n);
    assert_true(rose_tokenizer_find(t, "<y>", 3, &id) && id == n + 1);
    assert_int_equal(rose_tokenizer_vocab_size(t), n + 2);
    assert_true(rose_tokenizer_is_special(t, n) && rose_tokenizer_is_special(t, 17));
    assert_ids(t, "<im><y><s></s>", 0, IDS(n, n + 1, 1, 2));
    rose_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_by_hand), cmocka_unit_test(decoding),
        cmocka_unit_test(continuing),  cmocka_unit_test(refused_by_name),
        cmocka_unit_test(damaged),     cmocka_unit_test(named_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
