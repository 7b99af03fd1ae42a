/* What goes beyond text, against fakes: the bytes of logprobs, echo and ids, whole and streamed;
 * the timer; the client's label. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fakes.h"

#include "api/api_internal.h"
#include "base/clock.h"

static const uint32_t script[] = {65, FAKE_WORD0 + 6, FAKE_WORD0 + 7, 66, FAKE_EOS};

static rose_api *start(void)
{
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.async_admit = false;
    fake_reset();
    fake_timer = NULL;
    fake_script = script;
    fake_script_len = 5;
    for (uint32_t i = 0; i < 64; i++)
        fake_report[i] =
            (rose_logprob){.id = 65 + i % 8, .rank = i + 1, .logprob = 0.0f - 0.5f * (float)i};
    rose_api *a = fake_start(&o);
    assert_non_null(a);
    return a;
}

static rose_http_req *post(const char *path, const char *body)
{
    rose_http_req *r = fake_request(path, body, strlen(body));
    fake_arrive(r);
    return r;
}

static void expect(const char *path, const char *body, const char *part)
{
    rose_http_req *r = post(path, body);
    fake_run(r);
    assert_int_equal(r->status, 200);
    if (strstr(fake_text(r), part) == NULL) fail_msg("%s\nlacks\n%s", fake_text(r), part);
    fake_free(r);
}

/* The token in two halves shows as two U+FFFD; the text has it whole. */
static void bytes(void **state)
{
    (void)state;
    rose_api *a = start();
    expect(
        "/v1/completions", "{\"prompt\":\"xy\",\"logprobs\":1,\"max_tokens\":2}",
        "\"logprobs\":{\"tokens\":[\"A\",\"\xE2\x82\"],\"token_logprobs\":[0,0],\"top_logprobs\":["
        "{\"A\":0,\"B\":-0.5},{\"A\":0,\"B\":-0.5}],\"text_offset\":[0,1]},\"finish_reason\":"
        "\"length\",\"stop_reason\":null}");
    expect(
        "/v1/completions", "{\"prompt\":\"xy\",\"logprobs\":0,\"echo\":true,\"max_tokens\":1}",
        "\"text\":\"xyA\",\"logprobs\":{\"tokens\":[\"x\",\"y\",\"A\"],\"token_logprobs\":[null,0,"
        "0],\"top_logprobs\":[null,{\"A\":0},{\"A\":0}],\"text_offset\":[0,1,2]}");
    expect("/v1/completions", "{\"prompt\":\"xy\",\"echo\":true,\"max_tokens\":0}",
           "\"text\":\"xy\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}],"
           "\"usage\":{"
           "\"prompt_tokens\":2,\"completion_tokens\":0,");
    expect("/v1/completions",
           "{\"prompt\":\"xy\",\"return_token_ids\":true,\"prompt_logprobs\":1,\"max_tokens\":2}",
           "\"prompt_token_ids\":[120,121],\"prompt_logprobs\":[null,{\"65\":"
           "{\"logprob\":0,\"rank\":1,\"decoded_token\":\"A\"},\"66\":{\"logprob\":-0.5,\"rank\":2,"
           "\"decoded_token\":\"B\"}}],\"token_ids\":[65,263]}]");
    expect("/v1/completions",
           "{\"prompt\":\"x\",\"logprobs\":0,\"return_tokens_as_token_ids\":true,\"max_tokens\":1}",
           "\"tokens\":[\"token_id:65\"]");
    expect("/v1/chat/completions",
           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true,"
           "\"top_logprobs\":1,\"max_tokens\":1}",
           "\"logprobs\":{\"content\":[{\"token\":\"A\",\"logprob\":0,\"bytes\":[65],\"top_"
           "logprobs\":["
           "{\"token\":\"B\",\"logprob\":-0.5,\"bytes\":[66]}]}],\"refusal\":null}");
    /* A chat has what belongs to its prompt once, next to its choices, as in vLLM. */
    expect(
        "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"add_generation_prompt\":false,"
        "\"return_token_ids\":true,\"prompt_logprobs\":0,\"max_tokens\":1,\"n\":2}",
        "\"stop_reason\":null,\"token_ids\":[65]}],\"prompt_token_ids\":[85,115,101,114,58,32,10],"
        "\"prompt_logprobs\":[null,{");
    fake_stop(a);
}

/* Tokens whose text is held back come with the chunk that has their text. */
static void streamed(void **state)
{
    (void)state;
    rose_api *a = start();
    rose_http_req *r = post("/v1/completions", "{\"prompt\":\"x\",\"logprobs\":0,\"stream\":true,"
                                               "\"return_token_ids\":true,\"echo\":true}");
    fake_run(r);
    const char *s = fake_text(r);
    assert_non_null(strstr(s, "\"text\":\"xA\",\"logprobs\":{\"tokens\":[\"x\",\"A\"]"));
    assert_non_null(strstr(s, "\"prompt_token_ids\":[120],\"token_ids\":[65]"));
    assert_non_null(
        strstr(s, "\"text\":\"\xE2\x82\xAC\",\"logprobs\":{\"tokens\":[\"\xE2\x82\",\""));
    assert_non_null(strstr(s, "\"token_ids\":[263,264]"));
    assert_null(strstr(strstr(s, "prompt_token_ids") + 1, "prompt_token_ids")); /* once */
    fake_free(r);
    r = post("/v1/chat/completions",
             "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"stream\":true,"
             "\"add_generation_prompt\":false,\"return_token_ids\":true}");
    fake_run(r);
    s = fake_text(r);
    assert_non_null(
        strstr(s, "\"token_ids\":[65]}],\"prompt_token_ids\":[85,115,101,114,58,32,10]}\n"));
    assert_null(strstr(strstr(s, "prompt_token_ids") + 1, "prompt_token_ids")); /* once */
    fake_free(r);
    fake_stop(a);
}

static void timers(void **state)
{
    static const char *const bodies[] = {
        "{\"prompt\":\"x\",\"timeout\":500,\"max_tokens\":20,\"ignore_eos\":true}",
        "{\"prompt\":\"x\",\"timeout\":500,\"max_tokens\":20,\"ignore_eos\":true,\"stream\":true}"};
    (void)state;
    rose_api *a = start();
    for (int i = 0; i < 6; i++) {
        fake_n_timers = 0;
        fake_timer = NULL;
        /* in time, or over at once */
        fake_arrival_ns = rose_now_ns() - (i < 4 ? 0 : UINT64_C(1000000000000));
        rose_http_req *r = post("/v1/completions", bodies[i % 2]);
        assert_int_equal(fake_timer != NULL, i < 4);
        if (i < 2) fake_fire();
        if (i == 2 || i == 3) {
            fake_leave(r); /* the client goes first: no timer is left */
            assert_int_equal(fake_n_timers, 0);
        }
        for (int k = 0; k < 3; k++) {
            fake_engine_step();
            fake_turn(0);
        }
        assert_int_equal(fake.n_live, 0);
        if (!r->gone) {
            assert_int_equal(r->status, 504);
            assert_non_null(strstr(fake_text(r), "\"code\":\"timeout\""));
        }
        assert_int_equal(fake_n_timers, 0);
        fake_free(r);
    }
    fake_timer = NULL;
    fake_arrival_ns = rose_now_ns();
    rose_http_req *r = post("/v1/completions", "{\"prompt\":\"x\",\"timeout\":86400}");
    assert_int_equal(fake_n_timers, 1);
    fake_run(r); /* answered in time: the timer is gone */
    assert_int_equal(fake_n_timers, 0);
    fake_free(r);
    fake_stop(a);
    fake_arrival_ns = 1;
}

static void wait_for_encodes(unsigned n)
{
    while (atomic_load(&fake_n_encodes) < n)
        usleep(200);
}

/* A time-out is kept while the only worker has another body, and while it has this one. */
static void timers_before_the_worker_is_done(void **state)
{
    static const char *const bodies[] = {"{\"prompt\":\"x\",\"timeout\" : 5e1,\"max_tokens\":3}",
                                         "{\"timeout\":50,\"prompt\":\"x\",\"stream\":true}"};
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    o.n_workers = 1;
    o.inline_bytes = 0;
    fake_reset();
    fake_timer = NULL;
    fake_arrival_ns = rose_now_ns();
    rose_api *a = fake_start(&o);
    for (int i = 0; i < 4; i++) {
        const bool large = i >= 2; /* the worker gives notice of it */
        fake_n_timers = 0;
        atomic_store(&fake_n_encodes, 0);
        atomic_store(&fake_encode_held, true);
        rose_http_req *first = NULL;
        if (!large) {
            first = post("/v1/completions", "{\"prompt\":\"x\"}");
            wait_for_encodes(1);
        }
        rose_buf b = {0};
        rose_buf_addf(&b, "%s%*s", bodies[i % 2], large ? ROSE_API_MAX_PEEK : 0, "");
        rose_http_req *r = post("/v1/completions", rose_buf_str(&b));
        rose_buf_free(&b);
        for (int k = 0; k < 20000 && fake_timer == NULL; k++)
            fake_turn(large ? 1 : 0);
        assert_non_null(fake_timer);
        if (large) wait_for_encodes(1);
        fake_fire();
        assert_int_equal(r->status, 504);
        assert_non_null(strstr(fake_text(r), "\"code\":\"timeout\""));
        const uint32_t n_submitted = fake.n_submitted; /* while nobody submits */
        atomic_store(&fake_encode_held, false);
        rose_http_req *last =
            post("/v1/completions", "{\"prompt\":\"x\"}"); /* must come after it */
        fake_run(last);
        assert_int_equal(last->status, 200);
        assert_int_equal(fake.n_submitted, n_submitted + (large ? 1 : 2));
        assert_int_equal(atomic_load(&fake_n_encodes), 2); /* the waiting body was skipped */
        fake_free(last);
        if (first != NULL) fake_run(first);
        if (first != NULL) fake_free(first);
        fake_free(r);
        assert_int_equal(fake_n_timers, 0);
    }
    fake_stop(a);
    fake_arrival_ns = 1;
}

/* Answered while the engine still has a part of it: no timer outlives the answer, as the server
 * may. */
static void no_timer_behind_an_answer(void **state)
{
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    fake_reset();
    fake.capacity = 1;
    fake_n_timers = 0;
    fake_arrival_ns = rose_now_ns();
    rose_api *a = fake_start(&o);
    rose_http_req *r = post("/v1/completions", "{\"prompt\":\"x\",\"timeout\":50,\"n\":2}");
    for (int k = 0; k < 20000 && r->status == 0; k++)
        fake_turn(1);
    assert_int_equal(r->status, 429);
    assert_int_equal(fake.n_live, 1);
    assert_int_equal(fake_n_timers, 0);
    while (fake.n_live > 0) {
        fake_engine_step();
        fake_turn(0);
    }
    fake_free(r);
    fake_stop(a);
    fake_arrival_ns = 1;
}

static void peeked(void **state)
{
    static const struct {
        const char *body;
        double s;
    } cases[] = {
        {"{\"timeout\":5}", 5},
        {" {\n\"a\": [{\"timeout\":7}], \"timeout\"\t: 1.5e-1 }", 0.15},
        {"{\"a\":\"\\\"timeout\\\":3\",\"timeout\":2}", 2}, /* within a text */
        {"{\"a\":{\"timeout\":7}}", 0},
        {"[\"timeout\",5]", 0},
        {"{\"a\":\"timeout\",\"b\":5}", 0},
        {"{\"timeout\":\"5\"}", 0},
        {"{\"timeout\":null}", 0},
        {"{\"timeout\":-1}", 0},
        {"{\"timeout\":1e300}", 0},
        {"{\"timeout\":86400}", 86400},
        {"{\"timeout\":86401}", 0},
        {"{\"timeouts\":5}", 0},
        {"{\"timeout\"", 0},
        {"{\"timeout\":", 0},
        {"{\"timeout", 0},
        {"", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t len = strlen(cases[i].body);
        char *exact = malloc(len + (len == 0)); /* a byte too far is found by ASAN */
        memcpy(exact, cases[i].body, len);
        double s = rose_api_json_peek(exact, len, "timeout");
        free(exact);
        if (s < cases[i].s || s > cases[i].s) fail_msg("%g for %s", s, cases[i].body);
    }
}

static void labels(void **state)
{
    static const char *const good[] = {"a", "0-9.A_z:/+=@"};
    static const char *const bad[] = {" ", "a b", "a\"b", "caf\xC3\xA9", "a\tb", "x;y"};
    (void)state;
    rose_api *a = start();
    for (int i = 0; i < 8; i++) {
        const char *label = i < 2 ? good[i] : bad[i - 2];
        rose_http_req *r = fake_request("/v1/completions", "{\"prompt\":\"x\"}", 14);
        snprintf(r->label, sizeof r->label, "%s", label);
        fake_arrive(r);
        fake_run(r);
        assert_int_equal(r->status, i < 2 ? 200 : 400);
        char line[160];
        snprintf(line, sizeof line, "X-Request-Id: %s\r\n", label);
        assert_int_equal(strstr(r->headers, line) != NULL, i < 2);
        assert_int_equal(strstr(r->headers, "X-Request-Id") != NULL, i < 2);
        fake_free(r);
    }
    rose_http_req *r = fake_request("/v1/models", NULL, 0);
    memset(r->label, 'x', 129);
    fake_arrive(r);
    assert_int_equal(r->status, 400);
    fake_free(r);
    fake_stop(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes),  cmocka_unit_test(streamed),
        cmocka_unit_test(timers), cmocka_unit_test(timers_before_the_worker_is_done),
        cmocka_unit_test(peeked), cmocka_unit_test(no_timer_behind_an_answer),
        cmocka_unit_test(labels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
