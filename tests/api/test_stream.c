/* Streams and replies byte by byte against fakes: chunk shapes, roles, stop strings across tokens,
 * usage, errors in mid-stream; and the fast writer against that of base/json.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fakes.h"

#define W(i) (FAKE_WORD0 + (i))

/* Replace what differs from run to run: ids, creation times, and times. */
static char *normalize(const char *s)
{
    char *out = malloc(strlen(s) * 2 + 64);
    size_t n = 0;
    static const struct {
        const char *mark;
        const char *stop;
        const char *put;
    } cuts[] = {
        {"\"id\":\"", "\"", "ID"}, {"\"created\":", ",", "T"}, {"\"timings\":{", "}", "..."}};
    while (*s != '\0') {
        bool cut = false;
        for (size_t i = 0; i < 3 && !cut; i++) {
            size_t len = strlen(cuts[i].mark);
            if (strncmp(s, cuts[i].mark, len) != 0) continue;
            memcpy(out + n, s, len);
            n += len;
            memcpy(out + n, cuts[i].put, strlen(cuts[i].put));
            n += strlen(cuts[i].put);
            s += len;
            s += strcspn(s, cuts[i].stop);
            cut = true;
        }
        if (!cut) out[n++] = *s++;
    }
    out[n] = '\0';
    return out;
}

static rose_api_opts options(bool fast)
{
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.model_id = "m/\"x";
    o.async_admit = false;
    o.fast_sse = fast;
    return o;
}

/* One request against a script of tokens; the normalised reply, to be freed. */
static char *answer(const rose_api_opts *o, const char *path, const char *body,
                    const uint32_t *script, uint32_t n)
{
    fake_reset();
    fake_script = script;
    fake_script_len = n;
    rose_api *a = fake_start(o);
    assert_non_null(a);
    rose_http_req *r = fake_request(path, body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    assert_true(r->ended);
    char *text = normalize(fake_text(r));
    fake_free(r);
    fake_stop(a);
    assert_int_equal(fake.n_live, 0);
    return text;
}

static void expect(const char *path, const char *body, const uint32_t *script, uint32_t n,
                   const char *want)
{
    for (int fast = 0; fast < 2; fast++) {
        rose_api_opts o = options(fast != 0);
        char *got = answer(&o, path, body, script, n);
        assert_string_equal(got, want);
        free(got);
    }
}

#define HEAD                                                                                       \
    "data: "                                                                                       \
    "{\"id\":\"ID\",\"object\":\"text_completion\",\"created\":T,\"model\":\"m/"                   \
    "\\\"x\",\"choices\":["
#define CHEAD                                                                                      \
    "data: "                                                                                       \
    "{\"id\":\"ID\",\"object\":\"chat.completion.chunk\",\"created\":T,\"model\":\"m/\\\"x\","     \
    "\"choices\":["
#define DONE "data: [DONE]\n\n"

static void completion_stream(void **state)
{
    static const uint32_t s[] = {W(0), W(1), W(9), W(10), FAKE_EOS};
    (void)state;
    expect(
        "/v1/completions", "{\"prompt\":\"hi\",\"stream\":true}", s, 5,
        HEAD
        "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" HEAD
        "{\"index\":0,\"text\":\" world\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" HEAD
        "{\"index\":0,\"text\":\"a\\\"b\\\\\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" HEAD
        "{\"index\":0,\"text\":\"\\n\\t\\u0001\x7F\",\"logprobs\":null,"
        "\"finish_reason\":null}]}\n\n" HEAD "{\"index\":0,\"text\":\"\",\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":null}],"
        "\"timings\":{...}}\n\n" DONE);
}

static void completion_stream_usage_length(void **state)
{
    static const uint32_t s[] = {W(0), W(1), W(0)};
    (void)state;
    expect("/v1/completions",
           "{\"prompt\":[1,2,3],\"stream\":true,\"max_tokens\":2,\"stream_options\":"
           "{\"include_usage\":true}}",
           s, 3,
           HEAD "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null}],"
                "\"usage\":null}\n\n" HEAD "{\"index\":0,\"text\":\" "
                "world\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}],"
                "\"usage\":null}\n\n" HEAD
                "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
                "\"prompt_tokens_details\":{\"cached_tokens\":0}},"
                "\"timings\":{...}}\n\n" DONE);
}

/* continuous_usage_stats: what each choice has cost so far, and at the end what all have. */
static void continuous_usage(void **state)
{
    static const uint32_t s[] = {W(0), W(1), FAKE_EOS};
    (void)state;
    expect("/v1/completions",
           "{\"prompt\":[[1,2,3],[4]],\"stream\":true,\"stream_options\":{\"include_usage\":true,"
           "\"continuous_usage_stats\":true}}",
           s, 3,
           HEAD
           "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":"
           "{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}\n\n" HEAD
           "{\"index\":1,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":"
           "{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}\n\n" HEAD
           "{\"index\":0,\"text\":\" world\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":"
           "{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n" HEAD
           "{\"index\":1,\"text\":\" world\",\"logprobs\":null,\"finish_reason\":null}],\"usage\":"
           "{\"prompt_tokens\":1,\"completion_tokens\":2,\"total_tokens\":3}}\n\n" HEAD
           "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
           "\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":3,"
           "\"total_tokens\":6}}\n\n" HEAD
           "{\"index\":1,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
           "\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3,"
           "\"total_tokens\":4}}\n\n" HEAD
           "],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":6,\"total_tokens\":10,"
           "\"prompt_tokens_details\":{\"cached_tokens\":0}},\"timings\":{...}}\n\n" DONE);
}

/* As in vLLM, the option has no effect without include_usage. */
static void continuous_usage_alone(void **state)
{
    static const uint32_t s[] = {W(0), FAKE_EOS};
    (void)state;
    expect("/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,"
           "\"stream_options\":{\"continuous_usage_stats\":true}}",
           s, 2,
           CHEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hello\"},"
                 "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHEAD
                 "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_"
                 "reason\":null}],\"timings\":{...}}\n\n" DONE);
}

static void chat_stream(void **state)
{
    static const uint32_t s[] = {W(1), W(0), FAKE_EOS};
    (void)state;
    expect("/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}", s, 3,
           CHEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"world\"},"
                 "\"logprobs\":null,\"finish_reason\":null}]}\n\n" CHEAD
                 "{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"logprobs\":null,"
                 "\"finish_reason\":null}]}\n\n" CHEAD
                 "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_"
                 "reason\":null}],"
                 "\"timings\":{...}}\n\n" DONE);
}

/* --stream-interval 3: the first at once, then three tokens an event, at the end what is left; an
 * end of its own has no text. */
static void interval(void **state)
{
    static const uint32_t s[] = {W(0), W(1), 'a', 'b', 'c', 'd', 'e', 'f', FAKE_EOS};
    static const char body[] = "{\"prompt\":\"p\",\"stream\":true,\"return_token_ids\":true}";
    (void)state;
    for (int fast = 0; fast < 2; fast++) {
        rose_api_opts o = options(fast != 0);
        o.stream_interval = 3;
        char *got = answer(&o, "/v1/completions", body, s, 9);
        assert_string_equal(
            got, HEAD "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null,"
                      "\"prompt_token_ids\":[112],\"token_ids\":[257]}]}\n\n" HEAD
                      "{\"index\":0,\"text\":\" worldab\",\"logprobs\":null,\"finish_reason\":null,"
                      "\"token_ids\":[258,97,98]}]}\n\n" HEAD
                      "{\"index\":0,\"text\":\"cde\",\"logprobs\":null,\"finish_reason\":null,"
                      "\"token_ids\":[99,100,101]}]}\n\n" HEAD
                      "{\"index\":0,\"text\":\"f\",\"logprobs\":null,\"finish_reason\":\"stop\","
                      "\"stop_reason\":null,\"token_ids\":[102,256]}],\"timings\":{...}}\n\n" DONE);
        free(got);
    }
}

/* A chat with an interval beyond its length: two events, usage counts tokens, the space that the
 * template puts before a reply is gone. */
static void interval_beyond_the_end(void **state)
{
    static const uint32_t s[] = {W(1), W(0), W(1), W(0), FAKE_EOS};
    rose_api_opts o = options(true);
    (void)state;
    o.stream_interval = 65536;
    char *got = answer(&o, "/v1/chat/completions",
                       "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,"
                       "\"max_tokens\":4,\"stream_options\":{\"include_usage\":true}}",
                       s, 5);
    assert_non_null(strstr(got, "{\"role\":\"assistant\",\"content\":\"world\"}"));
    assert_non_null(strstr(got, "{\"content\":\"Hello worldHello\"},\"logprobs\":null,"
                                "\"finish_reason\":\"length\""));
    assert_non_null(strstr(got, "\"completion_tokens\":4"));
    free(got);
}

/* The engine fails while text is held back: it arrives, then the error. */
static void interval_and_failure(void **state)
{
    static const uint32_t s[] = {W(0), W(1), 'a', 'b'};
    rose_api_opts o = options(true);
    (void)state;
    o.stream_interval = 100;
    fake_reset();
    fake_script = s;
    fake_script_len = 4;
    fake.fail_at = 4;
    rose_api *a = fake_start(&o);
    static const char body[] = "{\"prompt\":\"p\",\"stream\":true}";
    rose_http_req *r = fake_request("/v1/completions", body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    assert_true(r->ended);
    const char *held = strstr(fake_text(r), "\"text\":\" worlda\"");
    assert_non_null(held);
    assert_non_null(strstr(held, "\"engine_error\""));
    fake_free(r);
    fake_stop(a);
}

static void interval_is_checked(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        rose_api_opts o = options(true);
        rose_api *a;
        o.stream_interval = i == 0 ? 0 : 65537;
        assert_int_equal(rose_api_create(&a, &o, NULL), ROSE_E_INVAL);
        assert_null(a);
    }
}

static void chat_empty(void **state)
{
    static const uint32_t s[] = {FAKE_EOS};
    (void)state;
    expect("/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}", s, 1,
           CHEAD "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                 "\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],\"timings\":{"
                 "...}}\n\n" DONE);
}

/* The stop string spans two tokens; it is not emitted, what follows is dropped, usage counts up to
 * the token that completed it. A half match ("ST" without "OP") is text after all. */
static void stop_string(void **state)
{
    static const uint32_t s[] = {W(2), W(0), W(2), W(3), W(0), W(0)};
    (void)state;
    expect("/v1/completions",
           "{\"prompt\":\"p\",\"stream\":true,\"stop\":[\"zz\",\"STOP\"],\"stream_options\":"
           "{\"include_usage\":true}}",
           s, 6,
           HEAD "{\"index\":0,\"text\":\"STHello\",\"logprobs\":null,\"finish_reason\":null}],"
                "\"usage\":null}\n\n" HEAD "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_"
                "reason\":\"stop\",\"stop_reason\":\"STOP\"}],"
                "\"usage\":null}\n\n" HEAD
                "],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":4,\"total_tokens\":5,"
                "\"prompt_tokens_details\":{\"cached_tokens\":0}},"
                "\"timings\":{...}}\n\n" DONE);
}

static void held_text_is_flushed(void **state)
{
    static const uint32_t s[] = {W(0), W(2)};
    (void)state;
    expect("/v1/completions",
           "{\"prompt\":\"p\",\"stream\":true,\"stop\":\"STOP\",\"max_tokens\":2}", s, 2,
           HEAD
           "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" HEAD
           "{\"index\":0,\"text\":\"ST\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_"
           "reason\":null}],"
           "\"timings\":{...}}\n\n" DONE);
}

/* A character of three bytes in two tokens is one chunk. */
static void split_character(void **state)
{
    static const uint32_t s[] = {W(6), W(7), FAKE_EOS};
    (void)state;
    expect("/v1/completions", "{\"prompt\":\"p\",\"stream\":true}", s, 3,
           HEAD "{\"index\":0,\"text\":\"\xE2\x82\xAC\",\"logprobs\":null,\"finish_reason\":null}]}"
                "\n\n" HEAD "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":"
                "\"stop\",\"stop_reason\":null}],"
                "\"timings\":{...}}\n\n" DONE);
}

static void completion_whole(void **state)
{
    static const uint32_t s[] = {W(0), W(1), FAKE_EOS};
    (void)state;
    expect(
        "/v1/completions", "{\"prompt\":[\"a\",\"bc\"],\"n\":1}", s, 3,
        "{\"id\":\"ID\",\"object\":\"text_completion\",\"created\":T,\"model\":\"m/\\\"x\","
        "\"choices\":[{\"index\":0,\"text\":\"Hello world\",\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":null},{\"index\":1,\"text\":\"Hello "
        "world\",\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":3,"
        "\"completion_tokens\":6,"
        "\"total_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":0}},\"timings\":{...}}");
}

static void chat_whole_implied_stop(void **state)
{
    static const uint32_t s[] = {W(1), W(4), W(5), W(0)};
    (void)state;
    expect("/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]}",
           s, 4,
           "{\"id\":\"ID\",\"object\":\"chat.completion\",\"created\":T,\"model\":\"m/\\\"x\","
           "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"world\","
           "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
           "\"\\nUser:\"}],\"usage\":"
           "{\"prompt_tokens\":18,\"completion_tokens\":3,\"total_tokens\":21,\"prompt_tokens_"
           "details\":{\"cached_tokens\":0}},"
           "\"timings\":{...}}");
}

/* stop_token_ids: the id; end of sequence: null, even where its id is listed. */
static void stop_ids(void **state)
{
    static const uint32_t s[] = {W(0), W(1), FAKE_EOS}, eos[] = {FAKE_EOS};
    (void)state;
    fake_arch.eos_ids[0] = FAKE_EOS;
    fake_arch.n_eos = 1;
    fake_stop_id = W(1);
    expect("/v1/completions", "{\"prompt\":\"p\",\"stream\":true}", s, 3,
           HEAD
           "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" HEAD
           "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
           "\"stop_reason\":258}],\"timings\":{...}}\n\n" DONE);
    fake_stop_id = FAKE_EOS;
    expect("/v1/completions", "{\"prompt\":\"p\",\"stream\":true}", eos, 1,
           HEAD "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
                "\"stop_reason\":null}],\"timings\":{...}}\n\n" DONE);
    expect("/v1/completions", "{\"prompt\":\"p\",\"stream\":true,\"ignore_eos\":true}", eos, 1,
           HEAD "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
                "\"stop_reason\":256}],\"timings\":{...}}\n\n" DONE);
    fake_stop_id = 0;
    fake_eos = W(1); /* an end-of-sequence id that is no special token: its text is not shown */
    expect("/v1/completions", "{\"prompt\":\"p\",\"stream\":true}", s, 3,
           HEAD
           "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null}]}\n\n" HEAD
           "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\","
           "\"stop_reason\":null}],\"timings\":{...}}\n\n" DONE);
    fake_eos = FAKE_EOS;
    fake_arch.n_eos = 0;
}

/* For each prompt the least that its choices found counts; the sum is of 32, 16 and 0. */
static void cached_tokens(void **state)
{
    static const uint32_t s[] = {FAKE_EOS};
    (void)state;
    rose_api_opts o = options(true);
    fake_reset();
    fake_script = s;
    fake_script_len = 1;
    rose_api *a = fake_start(&o);
    const char *body = "{\"prompt\":[\"a\",\"b\",\"c\"],\"n\":2}";
    static const uint32_t cached[] = {48, 32, 16, 16, 0, 32};
    rose_http_req *r = fake_request("/v1/completions", body, strlen(body));
    fake_arrive(r);
    assert_int_equal(fake.n_live, 6);
    for (uint32_t i = 0; i < 6; i++)
        fake.live[i]->n_cached = cached[i];
    fake_run(r);
    assert_non_null(strstr(fake_text(r), "\"prompt_tokens_details\":{\"cached_tokens\":48}}"));
    fake_free(r);
    fake_stop(a);
}

static void failure_mid_stream(void **state)
{
    static const uint32_t s[] = {W(0), W(1)};
    (void)state;
    rose_api_opts o = options(true);
    fake_reset();
    fake_script = s;
    fake_script_len = 2;
    fake.fail_at = 2;
    rose_api *a = fake_start(&o);
    const char *body = "{\"prompt\":\"p\",\"stream\":true}";
    rose_http_req *r = fake_request("/v1/completions", body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    char *got = normalize(fake_text(r));
    assert_string_equal(
        got, HEAD "{\"index\":0,\"text\":\"Hello\",\"logprobs\":null,\"finish_reason\":null}]}\n\n"
                  "data: {\"error\":{\"message\":\"the model gave no finite logit for this "
                  "request\",\"type\":"
                  "\"server_error\",\"param\":null,\"code\":\"engine_error\"}}\n\n" DONE);
    free(got);
    fake_free(r);
    fake.fail_at = 1; /* before the first byte: a plain 500, here with the backend's reason */
    fake.failed = true;
    r = fake_request("/v1/completions", body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    assert_int_equal(r->status, 500);
    assert_non_null(strstr(fake_text(r), "the engine failed: fake device on fire"));
    fake_free(r);
    r = fake_request("/health", NULL, 0);
    fake_arrive(r);
    assert_int_equal(r->status, 503);
    assert_non_null(strstr(fake_text(r), "\"error\":\"fake device on fire\""));
    fake_free(r);
    fake_stop(a);
}

static void tokenize_routes(void **state)
{
    (void)state;
    expect("/tokenize", "{\"prompt\":\"AB\"}", NULL, 0,
           "{\"count\":2,\"max_model_len\":64,\"tokens\":[65,66],\"token_strs\":null}");
    expect("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}", NULL, 0,
           "{\"count\":17,\"max_model_len\":64,\"tokens\":[85,115,101,114,58,32,10,65,115,115,105,"
           "115,116,97,110,116,58],\"token_strs\":null}");
    expect("/detokenize", "{\"tokens\":[65,66,256]}", NULL, 0, "{\"prompt\":\"AB<eos>\"}");
    expect("/detokenize", "{\"tokens\":[]}", NULL, 0, "{\"prompt\":\"\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_stream),
        cmocka_unit_test(completion_stream_usage_length),
        cmocka_unit_test(continuous_usage),
        cmocka_unit_test(continuous_usage_alone),
        cmocka_unit_test(chat_stream),
        cmocka_unit_test(interval),
        cmocka_unit_test(interval_beyond_the_end),
        cmocka_unit_test(interval_and_failure),
        cmocka_unit_test(interval_is_checked),
        cmocka_unit_test(chat_empty),
        cmocka_unit_test(stop_string),
        cmocka_unit_test(held_text_is_flushed),
        cmocka_unit_test(split_character),
        cmocka_unit_test(completion_whole),
        cmocka_unit_test(chat_whole_implied_stop),
        cmocka_unit_test(stop_ids),
        cmocka_unit_test(cached_tokens),
        cmocka_unit_test(failure_mid_stream),
        cmocka_unit_test(tokenize_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
