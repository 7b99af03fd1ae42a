/* Encoding: golden ids made by `tokenizers`, bytes that are not UTF-8, long words, random text. */
#include <pthread.h>

#include "tokenizer/tok_fixture.h"

#include "base/file.h"
#include "tokenizer/encoder_internal.h"
#include "tokenizer/unicode.h"

static void encode_or_fail(rose_encoder *e, const char *text, size_t n, unsigned flags,
                           rose_ids *ids)
{
    rose_err err = {""};
    ids->len = 0;
    if (rose_encode(e, text, n, flags, ids, &err) != ROSE_OK) fail_msg("%s", err.msg);
}

/* One line of golden.txt: hex text ("-" = empty), flags, ids. Returns false at the end. */
static bool golden_line(char **p, rose_buf *text, unsigned *flags, rose_ids *want)
{
    if (**p == '\0') return false;
    text->len = want->len = 0;
    for (; **p != ' '; *p += **p == '-' ? 1 : 2) {
        if (**p == '-') continue;
        char hex[3] = {(*p)[0], (*p)[1], '\0'};
        char byte = (char)strtol(hex, NULL, 16);
        assert_int_equal(rose_buf_add(text, &byte, 1), ROSE_OK);
    }
    *flags = (unsigned)strtoul(*p, p, 10);
    while (**p == ' ') {
        assert_int_equal(rose_ids_reserve(want, 1), ROSE_OK);
        want->data[want->len++] = (uint32_t)strtoul(*p, p, 10);
    }
    assert_int_equal(**p, '\n');
    (*p)++;
    return true;
}

static void check_golden(const char *name)
{
    char path[512], file[64];
    rose_buf golden = {0}, text = {0};
    rose_ids want = {0}, got = {0};
    rose_encoder *e = NULL;
    rose_err err = {""};
    unsigned flags, n = 0;
    rose_tokenizer *t = open_data(name);

    snprintf(file, sizeof file, "%s/golden.txt", name);
    data_path(path, file);
    assert_int_equal(rose_file_read(&golden, path, 1 << 20, &err), ROSE_OK);
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    char *p = (char *)(uintptr_t)rose_buf_str(&golden);
    for (; golden_line(&p, &text, &flags, &want); n++) {
        for (int again = 0; again < 2; again++) { /* the second time from the word cache */
            encode_or_fail(e, text.data, text.len, flags, &got);
            if (got.len != want.len ||
                (got.len > 0 && memcmp(got.data, want.data, 4 * got.len) != 0))
                fail_msg("%s line %u: ids differ", name, n + 1);
        }
    }
    assert_true(n >= 60);
    rose_ids_free(&want);
    rose_ids_free(&got);
    rose_buf_free(&golden);
    rose_buf_free(&text);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

static void golden_ids(void **state)
{
    (void)state;
    check_golden("tiny");
    check_golden("rich");
}

/* Ids of text, and the bytes those ids stand for. */
static void encode_bytes(const rose_tokenizer *t, rose_encoder *e, const char *text, size_t n,
                         rose_ids *ids, rose_buf *bytes)
{
    encode_or_fail(e, text, n, 0, ids);
    bytes->len = 0;
    for (size_t i = 0; i < ids->len; i++) {
        size_t len;
        const char *token = rose_tokenizer_token_bytes(t, ids->data[i], &len);
        assert_non_null(token);
        assert_int_equal(rose_buf_add(bytes, token, len), ROSE_OK);
    }
}

static void assert_lossless(const rose_tokenizer *t, rose_encoder *e, const char *text, size_t n)
{
    rose_ids ids = {0};
    rose_buf bytes = {0};
    encode_bytes(t, e, text, n, &ids, &bytes);
    assert_int_equal(bytes.len, n);
    if (n > 0) assert_memory_equal(bytes.data, text, n);
    rose_ids_free(&ids);
    rose_buf_free(&bytes);
}

static void random_text_round_trip(void **state)
{
    rose_tokenizer *t = open_data("tiny");
    rose_encoder *e = NULL;
    uint64_t seed = test_seed();
    (void)state;
    assert_int_equal(rose_encoder_create(&e, t, NULL), ROSE_OK);
    for (int i = 0; i < 3000; i++) {
        char valid[4 * 64], raw[64];
        size_t n = 0, k = (size_t)(rnd(&seed) % 64);
        for (size_t j = 0; j < k; j++) {
            uint32_t cp = (uint32_t)(rnd(&seed) % (rnd(&seed) % 2 == 0 ? 0x80 : 0x110000));
            if (cp >= 0xD800 && cp < 0xE000) cp = ' ';
            n += rose_utf8_encode(cp, valid + n);
            raw[j] = (char)rnd(&seed);
        }
        assert_lossless(t, e, valid, n);
        assert_lossless(t, e, raw, k);
        rose_ids ids = {0};
        rose_buf back = {0};
        encode_or_fail(e, valid, n, 0, &ids);
        assert_int_equal(rose_decode(t, ids.data, ids.len, 0, &back, NULL), ROSE_OK);
        assert_int_equal(back.len, n);
        if (n > 0) assert_memory_equal(back.data, valid, n);
        rose_ids_free(&ids);
        rose_buf_free(&back);
    }
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

/* A run of bytes that are no characters is encoded as if it stood alone, and so is what is round
 * it. */
static void invalid_bytes_stand_alone(void **state)
{
    static const char *const parts[] = {"it's  ",      "\xff\xe2\x82",     " x",
                                        "\xc0\x80",    "<|end|>",          "\xed\xa0\x80",
                                        "caf\xc3\xa9", "\xf4\x90\x80\x80", "\xc3"};
    rose_tokenizer *t = open_data("tiny");
    rose_encoder *e = NULL;
    rose_ids ids = {0}, one = {0}, all = {0};
    rose_buf text = {0};
    (void)state;
    assert_int_equal(rose_encoder_create(&e, t, NULL), ROSE_OK);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        assert_int_equal(rose_buf_add(&text, parts[i], strlen(parts[i])), ROSE_OK);
        encode_or_fail(e, parts[i], strlen(parts[i]), 0, &one);
        assert_int_equal(rose_ids_reserve(&all, one.len), ROSE_OK);
        memcpy(all.data + all.len, one.data, 4 * one.len);
        all.len += one.len;
    }
    encode_or_fail(e, text.data, text.len, 0, &ids);
    assert_int_equal(ids.len, all.len);
    assert_memory_equal(ids.data, all.data, 4 * ids.len);
    assert_lossless(t, e, text.data, text.len);
    rose_ids_free(&ids);
    rose_ids_free(&one);
    rose_ids_free(&all);
    rose_buf_free(&text);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

/* Lines of 1 MB without a break: quadratic work would take minutes. */
static void long_lines(void **state)
{
    static const char *const units[] = {"a",         " ",    "the", "\xe6\x97\xa5",
                                        "e\xcc\x81", "\xff", "'",   "<",
                                        "<|end|>",   "7",    "\n",  "\xcc\xa3\xcc\x81"};
    enum { N = 1 << 20 };
    char *text = malloc(N);
    (void)state;
    assert_non_null(text);
    for (int rich = 0; rich < 2; rich++) {
        rose_tokenizer *t = open_data(rich ? "rich" : "tiny");
        rose_encoder *e = NULL;
        rose_ids ids = {0};
        assert_int_equal(rose_encoder_create(&e, t, NULL), ROSE_OK);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
            size_t len = strlen(units[u]), n = N / len * len;
            for (size_t i = 0; i < n; i += len)
                memcpy(text + i, units[u], len);
            if (rich)
                encode_or_fail(e, text, n, 0, &ids); /* NFC changes the bytes */
            else
                assert_lossless(t, e, text, n);
        }
        uint64_t seed = test_seed();
        for (size_t i = 0; i < N; i++)
            text[i] = (char)('a' + rnd(&seed) % 8);
        assert_lossless(t, e, text, N);
        rose_ids_free(&ids);
        rose_encoder_destroy(e);
        rose_tokenizer_close(t);
    }
    free(text);
}

/* A plain reading of GPT-2's pattern, alternative by alternative, as the expression is written. */
static size_t class_run(const uint8_t *p, size_t n, unsigned want, size_t *last)
{
    size_t at = 0;
    *last = 0;
    while (at < n) {
        uint32_t cp;
        unsigned k = rose_utf8_decode_valid(p + at, &cp);
        if ((rose_cp_class[cp] & ROSE_CP_LNS) != want) break;
        *last = at;
        at += k;
    }
    return at;
}

static size_t plain_piece(const uint8_t *p, size_t n)
{
    static const char *const tails[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    static const unsigned classes[] = {ROSE_CP_L, ROSE_CP_N, 0};
    size_t last;
    for (size_t i = 0; i < 7; i++)
        if (n >= strlen(tails[i]) && memcmp(p, tails[i], strlen(tails[i])) == 0)
            return strlen(tails[i]);
    for (size_t i = 0; i < 3; i++) {
        size_t space = p[0] == ' ';
        size_t k = class_run(p + space, n - space, classes[i], &last);
        if (k > 0) return k + space;
    }
    size_t k = class_run(p, n, ROSE_CP_SPACE, &last);
    return k == n || last == 0 ? k : last;
}

static void scanner_equals_plain_reading(void **state)
{
    static const char *const atoms[] = {
        "a",  "\xc3\xa9", "1", "\xc2\xb2", " ",  "  ", "\n", "\xe3\x80\x80",
        "'s", "'re",      "'", "!",        "\t", "l",  "d",  "\xf0\x9f\x98\x80"};
    uint64_t seed = test_seed();
    (void)state;
    rose_unicode_init();
    for (int i = 0; i < 200000; i++) {
        char text[128];
        size_t n = 0;
        for (size_t k = 1 + rnd(&seed) % 12; k > 0; k--) {
            const char *atom = atoms[rnd(&seed) % (sizeof atoms / sizeof atoms[0])];
            memcpy(text + n, atom, strlen(atom));
            n += strlen(atom);
        }
        for (size_t at = 0; at < n;) {
            size_t k = rose_scan_gpt2((const uint8_t *)text + at, n - at);
            assert_int_equal(k, plain_piece((const uint8_t *)text + at, n - at));
            at += k;
        }
    }
}

static void appends_and_keeps_what_was_there(void **state)
{
    rose_tokenizer *t = open_data("tiny");
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_err err = {""};
    (void)state;
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    assert_int_equal(rose_encode(e, "a", 1, 0, &ids, &err), ROSE_OK);
    uint32_t first = ids.data[0];
    assert_int_equal(rose_encode(e, " ", 1, 0, &ids, &err), ROSE_OK);
    assert_int_equal(ids.len, 2);
    assert_int_equal(ids.data[0], first);
    assert_int_equal(rose_encode(e, "a", (size_t)UINT32_MAX, 0, &ids, &err), ROSE_E_INVAL);
    assert_int_equal(ids.len, 2);
    rose_ids_free(&ids);
    rose_encoder_destroy(e);
    rose_encoder_destroy(NULL);
    rose_tokenizer_close(t);
    rose_tokenizer_close(NULL);
}

enum { LONG_WORD = 16 << 20 };

static void *raise_later(void *arg)
{
    usleep(100000); /* by then it merges */
    atomic_store((atomic_bool *)arg, true);
    return NULL;
}

/* Asked to stop before it begins, and within a word of many megabytes; then it works as ever. */
static void stops_when_told(void **state)
{
    static const char text[] = "Once upon a time there was a";
    rose_tokenizer *t = open_data("tiny");
    rose_encoder *e = NULL;
    rose_ids want = {0}, ids = {0};
    atomic_bool stop = true;
    rose_err err = {""};
    char *word = malloc(LONG_WORD);
    (void)state;
    assert_non_null(word);
    memset(word, 'a', LONG_WORD);
    assert_int_equal(rose_encoder_create(&e, t, NULL), ROSE_OK);
    encode_or_fail(e, text, sizeof text - 1, 0, &want);
    rose_encoder_set_stop(e, &stop);
    encode_or_fail(e, "", 0, 0, &ids); /* nothing to do, nothing to stop */
    assert_int_equal(rose_encode(e, text, sizeof text - 1, 0, &ids, &err), ROSE_E_CLOSED);
    assert_int_equal(ids.len, 0);
    rose_status st = ROSE_OK;
    for (int i = 0; i < 20 && st == ROSE_OK; i++) { /* a machine may be slow to start a thread */
        pthread_t thread;
        ids.len = 0;
        stop = false;
        assert_int_equal(pthread_create(&thread, NULL, raise_later, &stop), 0);
        st = rose_encode(e, word, LONG_WORD, 0, &ids, &err);
        pthread_join(thread, NULL);
    }
    assert_int_equal(st, ROSE_E_CLOSED);
    assert_int_equal(ids.len, 0);
    assert_true(e->cap_symbols < LONG_WORD); /* its scratch is given back */
    stop = false;
    encode_or_fail(e, text, sizeof text - 1, 0, &ids);
    assert_int_equal(ids.len, want.len);
    assert_memory_equal(ids.data, want.data, 4 * want.len);
    free(word);
    rose_ids_free(&want);
    rose_ids_free(&ids);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_ids),
        cmocka_unit_test(random_text_round_trip),
        cmocka_unit_test(invalid_bytes_stand_alone),
        cmocka_unit_test(long_lines),
        cmocka_unit_test(scanner_equals_plain_reading),
        cmocka_unit_test(appends_and_keeps_what_was_there),
        cmocka_unit_test(stops_when_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
