/* The quick look at an event, compared with the full parser. Whatever it accepts, the parser
 * accepts with the same result. It leaves alone what a client must act on. It accepts the events
 * that streams are made of. */
#include "bench/bench_fixture.h"

#include "base/json.h"
#include "bench/reply.h"
#include "bench/stats.h"

#define HEAD                                                                                       \
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1763700000,\"model\":\"m\","

static const char *const plain[] = {
    HEAD "\"choices\":[{\"index\":0,\"text\":\" the\",\"finish_reason\":null}]}",
    HEAD "\"choices\":[{\"index\":0,\"text\":\"a\\n\\\"b\\\\\",\"token_ids\":[1,22,333],"
         "\"logprobs\":{\"tokens\":[\"x\"],\"token_logprobs\":[-1.25]},\"finish_reason\":null}]}",
    HEAD "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" x\"},\"finish_reason\":null}],"
         "\"usage\":null}",
    (" { \"choices\" : [ { \"delta\" : { \"role\" : \"assistant\" , \"content\" : \"\" } , "
     "\"token_ids\" : null } , 5 ] , \"error\" : null , \"timings\" : null } \r\n"),
    "{\"choices\":[{\"delta\":{\"reasoning_content\":\"y\",\"content\":null},\"token_ids\":[]}]}",
    "{\"choices\":[{}]}",
};

/* Good and bad JSON that the quick look must leave to the parser. */
static const char *const others[] = {
    "",
    "{}",
    "[]",
    "{\"choices\":[]}",
    "{\"choices\":[5]}",
    "{\"choices\":{}}",
    "{\"choices\":[{\"text\":\"a\"}]",
    "{\"choices\":[{\"text\":\"a\"}]}x",
    "{\"choices\":[{\"text\":\"a\",}]}",
    "{\"choices\":[{\"text\":\"a\"},]}",
    "{\"choices\":[{\"text\":\"a\" \"b\":1}]}",
    "{\"choices\":[{\"text\":\"a\n\"}]}",
    "{\"choices\":[{\"text\":\"a\\x\"}]}",
    "{\"choices\":[{\"text\":\"a\\u00e9\"}]}",
    "{\"choices\":[{\"text\":\"\xc3\xa9\"}]}",
    "{\"choices\":[{\"text\":\"a\\",
    "{\"choices\":[{\"text\":5}]}",
    "{\"choices\":[{\"text\":\"a\",\"text\":\"\"}]}",
    "{\"choices\":[{\"te\\u0078t\":\"a\"}]}",
    "{\"choices\":[{\"delta\":null}]}",
    "{\"choices\":[{\"text\":\"a\",\"n\":01}]}",
    "{\"choices\":[{\"text\":\"a\",\"n\":1e9}]}",
    "{\"choices\":[{\"text\":\"a\",\"n\":1.}]}",
    "{\"choices\":[{\"text\":\"a\",\"n\":-}]}",
    "{\"choices\":[{\"text\":\"a\",\"n\":1234567890123456789012345}]}",
    "{\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}",
    "{\"choices\":[{\"text\":\"a\"}],\"usage\":{\"completion_tokens\":1}}",
    "{\"choices\":[{\"text\":\"a\"}],\"error\":{\"message\":\"no\"}}",
    "{\"choices\":[{\"text\":\"a\"}],\"timings\":{\"ttft_ms\":1}}",
    "{\"choices\":[{\"text\":\"a\",\"x\":[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}]}",
};

static bool has_text(const rose_json *v)
{
    return rose_json_text_len(v) > 0;
}

static void same_as_parser(const char *data, size_t len, const rose_event_look *look)
{
    rose_json_error e;
    rose_json *o;
    if (rose_json_parse(&o, data, len, 0, &e) != ROSE_OK) {
        /* the one input that the quick look accepts and the parser does not */
        if (strstr(e.text, "duplicate") != NULL) return;
        fail_msg("%.*s: accepted, but: %s", (int)len, data, e.text);
    }
    const rose_json *c = rose_json_at(rose_json_get(o, "choices"), 0);
    const rose_json *d = rose_json_get(c, "delta");
    const bool text = has_text(rose_json_get(c, "text")) || has_text(rose_json_get(d, "content")) ||
                      has_text(rose_json_get(d, "reasoning_content"));
    const size_t n_ids = rose_json_count(rose_json_get(c, "token_ids"));
    if (!rose_json_is_object(c) || look->text != text || look->n_ids != n_ids ||
        rose_json_is_string(rose_json_get(c, "finish_reason")) ||
        rose_json_is_object(rose_json_get(o, "usage")) ||
        rose_json_is_object(rose_json_get(o, "timings")) ||
        (rose_json_get(o, "error") != NULL && !rose_json_is_null(rose_json_get(o, "error"))))
        fail_msg("%.*s: seen as text %d, %u ids", (int)len, data, look->text, look->n_ids);
    rose_json_decref(o);
}

static void test_plain(void **state)
{
    (void)state;
    static const rose_event_look want[] = {{true, 0},  {true, 3}, {true, 0},
                                           {false, 0}, {true, 0}, {false, 0}};
    rose_event_look look;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        assert_true(rose_event_glance(plain[i], strlen(plain[i]), &look));
        assert_true(look.text == want[i].text && look.n_ids == want[i].n_ids);
        same_as_parser(plain[i], strlen(plain[i]), &look);
    }
}

static void test_others(void **state)
{
    (void)state;
    rose_event_look look;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (rose_event_glance(others[i], strlen(others[i]), &look)) fail_msg("%s", others[i]);
    }
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {   /* no prefix of it is accepted */
        const size_t whole = strlen(plain[i]) - (i == 3 ? 3 : 0); /* only blanks follow */
        for (size_t n = 0; n < whole; n++) {
            /* exactly that size, so that a sanitizer sees a read past the end */
            char *cut = malloc(n + 1);
            memcpy(cut, plain[i], n);
            if (rose_event_glance(cut, n, &look)) fail_msg("%.*s", (int)n, cut);
            free(cut);
        }
    }
}

static size_t below(rose_random *r, size_t n)
{
    return rose_random_u32(r) % n;
}

/* With bytes changed, removed or doubled it never accepts more than the parser, and never sees
 * anything else. */
static void test_mutated(void **state)
{
    (void)state;
    static const char alphabet[] = "{}[]\",:\\ntu0159.-e \n\x01\x7f\xc3\xa9";
    rose_random r = {test_seed(), 3, 0};
    uint32_t accepted = 0;
    for (int round = 0; round < 300000; round++) {
        char text[1024];
        const char *from = plain[below(&r, sizeof plain / sizeof *plain)];
        size_t n = strlen(from);
        memcpy(text, from, n);
        for (uint64_t k = 0, edits = 1 + below(&r, 3); k < edits; k++) {
            const size_t at = below(&r, n), what = below(&r, 3);
            if (what == 0) {
                text[at] = alphabet[below(&r, sizeof alphabet - 1)];
            } else if (what == 1) {
                memmove(text + at, text + at + 1, --n - at);
            } else {
                memmove(text + at + 1, text + at, n++ - at);
            }
        }
        rose_event_look look;
        if (!rose_event_glance(text, n, &look)) continue;
        accepted++;
        same_as_parser(text, n, &look);
    }
    assert_true(accepted > 1000); /* otherwise nothing was tested */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_mutated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
