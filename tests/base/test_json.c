/* rose_json_parse: strict. Failed allocations: tests/model/test_oom.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"

static rose_status parse(const char *text, size_t n, size_t flags)
{
    json_error_t e;
    json_t *v = (json_t *)(uintptr_t)1;
    rose_status st = rose_json_parse(&v, text, n, flags, &e);
    assert_true((st == ROSE_OK) == (v != NULL));
    json_decref(v);
    return st;
}

static void strict(void **state)
{
    (void)state;
    assert_int_equal(parse("{\"a\": [1, 2.5, null]}", 21, 0), ROSE_OK);
    assert_int_equal(parse("{\"a\": 1}garbage", 8, 0), ROSE_OK); /* n bytes and no more */
    assert_int_equal(parse("{\"a\": 1}garbage", 15, 0), ROSE_E_FORMAT);
    assert_int_equal(parse("{\"a\": 1, \"a\": 1}", 16, 0), ROSE_E_FORMAT);
    assert_int_equal(parse("{\"a\": 1, \"b\": 1}", 16, 0), ROSE_OK);
    assert_int_equal(parse("", 0, 0), ROSE_E_FORMAT);
    assert_int_equal(parse(NULL, 0, 0), ROSE_E_FORMAT);
    assert_int_equal(parse("7", 1, 0), ROSE_E_FORMAT);
    assert_int_equal(parse("7", 1, JSON_DECODE_ANY), ROSE_OK);
    assert_int_equal(parse("\"\xC0\x80\"", 4, JSON_DECODE_ANY), ROSE_E_FORMAT);
}

/* ---- as jansson reads it ---- */

static uint64_t g_random;

static uint32_t below(uint32_t n)
{
    g_random = g_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((g_random >> 33) % n);
}

/* Same verdict, same value (json_equal tells 1 from 1.0). */
static void check_text(const char *text, size_t n)
{
    json_error_t e;
    json_t *got;
    char *exact = malloc(n > 0 ? n : 1); /* a byte too far is seen by ASAN */
    assert_non_null(exact);
    memcpy(exact, text, n);
    json_t *want = json_loadb(exact, n, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &e);
    const rose_status st = rose_json_parse(&got, exact, n, JSON_ALLOW_NUL, &e);
    if ((st == ROSE_OK) != (want != NULL) || (want != NULL && !json_equal(want, got)))
        fail_msg("%.*s", (int)n, text);
    if (want == NULL) assert_true(e.text[0] != '\0');
    json_decref(want);
    json_decref(got);
    free(exact);
}

static const char *const g_texts[] = {
    "{\"prompt\":\"Once upon a time\",\"max_tokens\":16,\"temperature\":0.7,\"stream\":true}",
    " { \"a\" : [ 1 , -2.5e+3 , null , {\"b\":{}} ] , \"c\" : [ ] , \"d\" : false } \r\n\t",
    ("{\"messages\":[{\"role\":\"user\",\"content\":\"a\\n\\\"b\\\"\\\\ \\/ \\u00e9 "
     "\\t\"}],\"n\":1}"),
    "{\"e\":\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\xB9\",\"\xC3\xA9\":0,\"\":123456789012345678}",
    "{\"x\":1234567890123456789,\"y\":12345678901234567890,\"z\":0.1e-400,\"w\":1e308,\"v\":-0}",
    "{\"k\":01,\"l\":1.,\"m\":.5,\"n\":1e,\"o\":--1,\"p\":+1,\"q\":1e999}",
    "{\"a\":{\"b\":{\"c\":{\"d\":[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}}}",
    "{\"a\":1,\"a\":2}",
    "[1,2,3]",
    "{\"a\":truefalse,\"b\":nul,\"c\":\"\x7F\\u0000\"}",
    "{\"a key of more than sixty-four bytes, which no field of ours comes near to\":[]}"};
enum { N_TEXTS = sizeof g_texts / sizeof *g_texts };

/* One to four bytes put in, taken out or changed. */
static size_t spoil(char *text, size_t n)
{
    static const char bytes[] = "{}[]\",:\\ \n\tutrfn0123456789+-.eE\x00\x1F\x7F\x80\xC3\xFF";
    for (uint32_t k = 1 + below(4); k > 0; k--) {
        const size_t at = below((uint32_t)n + 1);
        const char c = bytes[below(sizeof bytes - 1)];
        const uint32_t how = below(4);
        if (how == 0) {
            memmove(text + at + 1, text + at, n - at);
            text[at] = c;
            n++;
        } else if (at < n && how == 1) {
            memmove(text + at, text + at + 1, n - at - 1);
            n--;
        } else if (at < n && how == 2) {
            text[at] = c;
        } else if (how == 3 && below(4) == 0) {
            n = at;
        }
    }
    return n;
}

static void as_jansson(void **state)
{
    (void)state;
    const char *seed = getenv("ROSE_TEST_SEED");
    char text[300];
    g_random = seed != NULL ? strtoull(seed, NULL, 0) : 20261121;
    print_message("seed %llu\n", (unsigned long long)g_random);
    for (int i = 0; i < N_TEXTS; i++)
        check_text(g_texts[i], strlen(g_texts[i]));
    for (int i = 0; i < 200000; i++) {
        const char *from = g_texts[below(N_TEXTS)];
        const size_t n = strlen(from);
        memcpy(text, from, n);
        check_text(text, spoil(text, n));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strict),
        cmocka_unit_test(as_jansson),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
