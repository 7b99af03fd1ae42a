/* Decoding: invalid bytes as U+FFFD, the incremental detokeniser against the whole decode. */
#include "tokenizer/tok_fixture.h"

#include "tokenizer/unicode.h"

static uint32_t byte_id(const rose_tokenizer *t, unsigned char b)
{
    uint32_t id;
    assert_true(rose_tokenizer_find(t, (const char *)&b, 1, &id));
    return id;
}

/* Bytes, and what Rust's from_utf8_lossy makes of them ("#" stands for U+FFFD). */
static const struct {
    const char *bytes, *want;
} lossy[] = {
    {"ab", "ab"},
    {"\xc3\xa9", "\xc3\xa9"},
    {"\xff", "#"},
    {"\xc3", "#"},
    {"\xc3x", "#x"},
    {"\x80\x80", "##"},
    {"\xe2\x82", "#"},
    {"\xe2\x82x", "#x"},
    {"\xe2\x82\xe2\x82\xac", "#\xe2\x82\xac"},
    {"\xe0\x80\x80", "###"},
    {"\xed\xa0\x80", "###"},
    {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
    {"\xf0\x9f\x98", "#"},
    {"\xf0\x9f\x98\xf0\x9f\x98\x80", "#\xf0\x9f\x98\x80"},
    {"\xf0\x80\x80\x80", "####"},
    {"\xf4\x90\x80\x80", "####"},
    {"\xf5\x80", "##"},
    {"\xc0\xaf", "##"},
    {"\xf1\x80\xc3\xa9", "#\xc3\xa9"},
};

static void expand(rose_buf *out, const char *want)
{
    out->len = 0;
    for (; *want != '\0'; want++)
        assert_int_equal(*want == '#' ? rose_buf_add(out, "\xEF\xBF\xBD", 3)
                                      : rose_buf_add(out, want, 1),
                         ROSE_OK);
}

static void invalid_parts_become_replacements(void **state)
{
    rose_tokenizer *t = open_data("tiny");
    rose_buf want = {0}, got = {0};
    (void)state;
    for (size_t i = 0; i < sizeof lossy / sizeof lossy[0]; i++) {
        uint32_t ids[8];
        size_t n = strlen(lossy[i].bytes);
        for (size_t j = 0; j < n; j++)
            ids[j] = byte_id(t, (unsigned char)lossy[i].bytes[j]);
        expand(&want, lossy[i].want);
        got.len = 0;
        assert_int_equal(rose_decode(t, ids, n, 0, &got, NULL), ROSE_OK);
        assert_int_equal(got.len, want.len);
        assert_memory_equal(got.data, want.data, want.len);
    }
    rose_buf_free(&want);
    rose_buf_free(&got);
    rose_tokenizer_close(t);
}

/* Random ids: the pieces are valid UTF-8 each, within the promised size, and concatenate to the
 * whole decode. */
static void pieces_equal_whole(void **state)
{
    rose_tokenizer *t = open_data("rich");
    uint64_t seed = test_seed();
    size_t cap = rose_detok_cap(t);
    char *piece = malloc(cap);
    (void)state;
    assert_non_null(piece);
    for (int round = 0; round < 3000; round++) {
        uint32_t ids[40];
        size_t n = rnd(&seed) % 40;
        unsigned flags = rnd(&seed) % 2 == 0 ? 0 : ROSE_DECODE_SKIP_SPECIAL;
        rose_buf whole = {0}, pieces = {0};
        rose_detok d = {0};
        for (size_t i = 0; i < n; i++) /* mostly single bytes, so that characters fall apart */
            ids[i] = rnd(&seed) % 4 == 0 ? (uint32_t)(rnd(&seed) % rose_tokenizer_vocab_size(t))
                                         : byte_id(t, (unsigned char)(0x80 + rnd(&seed) % 0x80));
        assert_int_equal(rose_decode(t, ids, n, flags, &whole, NULL), ROSE_OK);
        for (size_t i = 0; i <= n; i++) {
            size_t k =
                i < n ? rose_detok_push(&d, t, ids[i], flags, piece) : rose_detok_finish(&d, piece);
            assert_true(k <= cap && (i < n || k <= 12));
            assert_int_equal(rose_utf8_valid_prefix(piece, k), k);
            assert_int_equal(rose_buf_add(&pieces, piece, k), ROSE_OK);
        }
        assert_int_equal(pieces.len, whole.len);
        if (whole.len > 0) assert_memory_equal(pieces.data, whole.data, whole.len);
        rose_buf_free(&whole);
        rose_buf_free(&pieces);
    }
    free(piece);
    rose_tokenizer_close(t);
}

static void unknown_ids(void **state)
{
    rose_tokenizer *t = open_data("tiny");
    rose_buf out = {0};
    rose_err err = {""};
    rose_detok d = {0};
    char piece[4096], number[16];
    size_t len;
    uint32_t ids[2] = {byte_id(t, 'a'), rose_tokenizer_vocab_size(t)};
    (void)state;
    assert_true(rose_detok_cap(t) <= sizeof piece);
    assert_int_equal(rose_buf_add(&out, "keep", 4), ROSE_OK);
    assert_int_equal(rose_decode(t, ids, 2, 0, &out, &err), ROSE_E_INVAL);
    snprintf(number, sizeof number, "%u", ids[1]);
    assert_non_null(strstr(err.msg, number));
    assert_int_equal(out.len, 4);
    assert_int_equal(rose_detok_push(&d, t, UINT32_MAX, 0, piece), 0);
    assert_null(rose_tokenizer_token_bytes(t, UINT32_MAX, &len));
    assert_int_equal(len, 0);
    assert_false(rose_tokenizer_is_special(t, UINT32_MAX));
    rose_buf_free(&out);
    rose_tokenizer_close(t);
}

static void special_tokens(void **state)
{
    rose_tokenizer *t = open_data("tiny");
    rose_buf out = {0};
    uint32_t id, a = byte_id(t, 'a');
    (void)state;
    assert_true(rose_tokenizer_find(t, "<|end|>", 7, &id));
    assert_true(rose_tokenizer_is_special(t, id));
    assert_false(rose_tokenizer_is_special(t, a));
    assert_false(rose_tokenizer_find(t, "no such token", 13, &a));
    a = byte_id(t, 'a');
    const uint32_t ids[] = {a, id, a};
    assert_int_equal(rose_decode(t, ids, 3, 0, &out, NULL), ROSE_OK);
    assert_int_equal(rose_decode(t, ids, 3, ROSE_DECODE_SKIP_SPECIAL, &out, NULL), ROSE_OK);
    assert_int_equal(out.len, 11);
    assert_memory_equal(out.data, "a<|end|>aaa", 11);
    rose_buf_free(&out);
    rose_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_parts_become_replacements),
        cmocka_unit_test(pieces_equal_whole),
        cmocka_unit_test(unknown_ids),
        cmocka_unit_test(special_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
