/* Which tokens of an event waited for a later token. */
#include "bench/bench_fixture.h"

#include "load/held.h"

static rose_tokenizer *tok;
static char *scratch;

static int open_tok(void **state)
{
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s/tests/tokenizer/data/tiny", repo_root());
    if (rose_tokenizer_open(&tok, path, NULL) != ROSE_OK) return 1;
    return (scratch = malloc(rose_detok_cap(tok))) == NULL;
}

static int close_tok(void **state)
{
    (void)state;
    free(scratch);
    rose_tokenizer_close(tok);
    return 0;
}

/* Counts the held tokens of an event whose ids are the single bytes of text. `tail` is the JSON
 * after the list. */
static uint32_t held(const char *text, const char *tail)
{
    char piece[600];
    int n = snprintf(piece, sizeof piece,
                     "data: {\"choices\":[{\"text\":\"\\\"token_ids\\\":[1,2]\",\"index\":0,"
                     "\"prompt_token_ids\":[7,8],\"token_ids\":[");
    for (const char *p = text; *p != '\0'; p++) {
        uint32_t id;
        assert_true(rose_tokenizer_find(tok, p, 1, &id));
        n += snprintf(piece + n, sizeof piece - (size_t)n, p > text ? ",%u" : "%u", id);
    }
    n += snprintf(piece + n, sizeof piece - (size_t)n, "%s", tail);
    /* an exact copy, so that a sanitizer sees a read past the end */
    char *exact = malloc((size_t)n);
    assert_non_null(exact);
    memcpy(exact, piece, (size_t)n);
    const uint32_t h = rose_held_tokens(tok, exact, (size_t)n, scratch);
    free(exact);
    return h;
}

static const char end[] = "]}]}\n\n";

static void test_held(void **state)
{
    (void)state;
    assert_int_equal(held("", end), 0);
    assert_int_equal(held("a", end), 0);
    assert_int_equal(held("abc", end), 0); /* each token had text of its own, so none waited */
    assert_int_equal(held("\xc3\xa9", end), 1);
    assert_int_equal(held("\xe2\x82\xac", end), 2);
    assert_int_equal(held("\xf0\x9f\x98\x80", end), 3);
    /* only tokens before the last one count */
    assert_int_equal(held("\xf0\x9f\x98\x80\xc3\xa9", end), 3);
    assert_int_equal(held("a\xc3\xa9", end), 0);
    assert_int_equal(held("\xe2\x82", end), 1); /* nothing follows in the reply */
    assert_int_equal(held("\x80\xc3\xa9", end), 0);
    assert_int_equal(held("\xc3\xa9", "]}]}\n\ndata: {\"choices\":[{\"token_ids\":[1,2,3]}]}\n\n"),
                     1);
}

static void test_broken(void **state)
{
    static const char *const pieces[] = {"",
                                         "data: {}\n\n",
                                         "\"token_ids\":[",
                                         "\"token_ids\":[]",
                                         "\"token_ids\":[,]",
                                         "\"token_ids\":[1",
                                         "\"token_ids\":[1,",
                                         "\"token_ids\":[1 2]",
                                         "\"token_ids\":[x]",
                                         "\"token_ids\":[-1]",
                                         "\"token_ids\":[4294967295]",
                                         "\"token_ids\":[4294967296,1]",
                                         "\"token_ids\":[99999999999999999999999999999,1]",
                                         "\"token_ids\":null"};
    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        char *exact = malloc(strlen(pieces[i]) + 1);
        assert_non_null(exact);
        memcpy(exact, pieces[i], strlen(pieces[i]));
        assert_int_equal(rose_held_tokens(tok, exact, strlen(pieces[i]), scratch), 0);
        free(exact);
    }
    assert_int_equal(held("\xe2\x82\xac", ""), 0); /* the list is cut off, so nothing is known */
    assert_int_equal(held("\xe2\x82\xac", ",4294967296]"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_broken),
    };
    return cmocka_run_group_tests(tests, open_tok, close_tok);
}
