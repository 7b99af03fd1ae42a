/* Out of memory at the Nth allocation, for every N, once and from then on: each request gets
 * exactly one end, either the right reply or an error that says so, and nothing leaks. Replaces the
 * process's allocator, so sanitizer builds, which bring their own, skip it. */
#include "failing_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#ifdef HAVE_OWN_ALLOCATOR

int main(void)
{
    return failing_alloc_skip();
}

#else

/* What the fakes allocate is theirs: one thread, and they do not nest. */
static long fakes_before;
#define FAKE_ALLOC_BEGIN() (fakes_before = atomic_load(&falloc.live), falloc_exempt = true)
#define FAKE_ALLOC_END()   (falloc_exempt = false, atomic_store(&falloc.live, fakes_before))
#include "fakes.h"

#include "base/log.h"

static const uint32_t script[] = {FAKE_WORD0, FAKE_WORD0 + 1, FAKE_WORD0 + 2, FAKE_WORD0 + 3};

typedef struct sample {
    const char *path, *body;
    bool fast, templated, ranks;
    char want[8192]; /* the reply without failures, times and ids blanked */
} sample;

static sample samples[] = {
    {.path = "/v1/completions",
     .body = "{\"prompt\":[\"ab\",\"cd\"],\"n\":2,\"stop\":[\"STOP\",\"x\"]}"},
    {.path = "/v1/completions", .body = "{\"prompt\":[1,2],\"max_tokens\":3}"},
    {.path = "/v1/completions",
     .body = "{\"prompt\":\"ab\",\"stream\":true,\"stop\":\"STOP\"}",
     .fast = true},
    {.path = "/v1/completions",
     .body = "{\"prompt\":\"ab\",\"stream\":true,\"n\":2,\"stream_options\":"
             "{\"include_usage\":true}}"},
    {.path = "/v1/chat/completions",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}",
     .fast = true},
    {.path = "/v1/chat/completions",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
    {.path = "/v1/completions",
     .body = "{\"prompt\":\"ab\",\"logprobs\":2,\"echo\":true,\"max_tokens\":3,"
             "\"return_token_ids\":true,\"bad_words\":[\"q\"],\"logit_bias\":{\"1\":2},"
             "\"stop_token_ids\":[1],\"allowed_token_ids\":[2]}"},
    {.path = "/v1/completions",
     .body = "{\"prompt\":\"ab\",\"logprobs\":1,\"stream\":true,\"max_tokens\":3}",
     .fast = true},
    {.path = "/v1/chat/completions",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
             "\"chat_template_kwargs\":{\"b\":2}}",
     .templated = true},
    {.path = "/apply-template",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
             "\"chat_template\":\"{{ messages[0].content }}\"}",
     .templated = true},
    {.path = "/apply-template", .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
    {.path = "/v1/responses",
     .body = "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"reasoning\"}],"
             "\"instructions\":\"y\",\"foo\":1}"},
    {.path = "/v1/responses", .body = "{\"input\":\"x\",\"stream\":true}"},
    {.path = "/v1/responses",
     .body = "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"custom_tool_call\","
             "\"call_id\":\"c\",\"name\":\"p\",\"input\":\"q\"},{\"type\":\"shell_call_output\","
             "\"call_id\":\"c\",\"output\":[1]}],\"tools\":[{\"type\":\"web_search\"},{\"type\":"
             "\"custom\",\"name\":\"p\",\"format\":{\"definition\":\"d\"}},{\"type\":\"namespace\","
             "\"name\":\"n\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}]}"},
    {.path = "/v1/messages",
     .body =
         "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c\","
         "\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
         "\"tool_use_id\":\"c\",\"content\":[{\"type\":\"tool_reference\",\"tool_name\":\"g\"}]}]}]"
         ",\"max_tokens\":3,\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]}",
     .templated = true},
    {.path = "/v1/chat/completions",
     .body =
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\","
         "\"tool_calls\":[{\"id\":\"c\",\"type\":\"custom\",\"custom\":{\"name\":\"p\",\"input\":"
         "\"q\"}}]}],\"tools\":[{\"type\":\"x\"},{\"type\":\"function\",\"function\":{\"name\":"
         "\"f\"}}]}"},
    {.path = "/v1/messages",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}"
             "]}],\"system\":\"y\",\"max_tokens\":3,\"thinking\":{\"type\":\"enabled\"}}",
     .templated = true},
    {.path = "/v1/messages",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":3,"
             "\"stream\":true}"},
    {.path = "/v1/messages/count_tokens",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
             "\"tool_use_id\":\"c\",\"content\":\"1\"}]},{\"role\":\"assistant\",\"content\":[{"
             "\"type\":\"tool_use\",\"id\":\"c\",\"name\":\"f\",\"input\":{}}]}]}",
     .templated = true},
    {.path = "/tokenize", .body = "{\"prompt\":\"abc\",\"foo\":1}"},
    {.path = "/detokenize", .body = "{\"tokens\":[65,257]}"},
    {.path = "/v1/completions", .body = "{\"prompt\":\"x\",\"foo\":1}"},
    {.path = "/v1/completions/render",
     .body = "{\"prompt\":[\"ab\",\"cd\"],\"stop\":\"x\",\"logit_bias\":{\"1\":2},\"foo\":1}"},
    {.path = "/v1/chat/completions/render",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"},
    {.path = "/v1/completions", .body = "{\"prompt\":[\"ab\",\"cd\"],\"n\":2,\"regex\":\"ab\"}"},
    {.path = "/v1/chat/completions",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,"
             "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":"
             "{\"const\":\"a\"}}}}",
     .fast = true},
    {.path = "/v1/chat/completions",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,"
             "\"chat_template\":\"{# <tool_call> #}x<think>\","
             "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
     .templated = true,
     .fast = true},
    {.path = "/v1/chat/completions",
     .body = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"required\","
             "\"parallel_tool_calls\":false,\"chat_template\":\"{# <function= #}x<think></think>\","
             "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
     .templated = true},
    {.path = "/v1/completions/render",
     .body = "{\"prompt\":\"ab\",\"structured_outputs\":{\"choice\":[\"a\",\"b\"]}}"},
    {.path = "/tokenizer_info", .body = NULL, .templated = true},
    {.path = "/get_model_info", .body = NULL},
    {.path = "/server_info", .body = NULL},
    {.path = "/v1/loads", .body = NULL},
    {.path = "/v1/models", .body = NULL},
    {.path = "/v1/embeddings", .body = "{\"input\":[\"ab\",\"cd\"],\"foo\":1}"},
    {.path = "/v1/embeddings",
     .body = "{\"input\":[[1,2],[3]],\"encoding_format\":\"base64\",\"normalize\":false}"},
    {.path = "/rerank", .body = "{\"query\":\"ab\",\"documents\":[\"cd\",{\"text\":\"e\"}]}"},
    {.path = "/score", .body = "{\"text_1\":\"ab\",\"text_2\":\"cd\"}", .ranks = true},
    {.path = "/nope", .body = "{}"},
};

/* Returns the end of an id that a reply begins with here; NULL: there is none. */
static const char *end_of_id(const char *s)
{
    static const char *const begins[] = {"id\":\"c",     "id\":\"resp_",   "id\":\"msg_",
                                         "id\":\"embd-", "id\":\"rerank-", "id\":\"score-"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        if (strncmp(s, begins[i], strlen(begins[i])) == 0) return strchr(s + 5, '"');
    }
    return NULL;
}

/* Digits and ids differ from run to run. */
static void blank(char *out, const char *s)
{
    size_t n = 0;
    while (*s != '\0' && n < sizeof samples->want - 96) {
        const char *id = end_of_id(s);
        if (id != NULL) {
            s = id;
        } else if (*s >= '0' && *s <= '9') {
            s++;
        } else {
            out[n++] = *s++;
        }
    }
    out[n] = '\0';
}

static rose_chat *chat;

/* One life of the room with one request; false: it could not even start. */
static bool live_once(const sample *s, rose_http_req *r)
{
    rose_api_opts o;
    rose_api *a = NULL;
    rose_err err = {0};
    rose_api_opts_default(&o);
    o.async_admit = false;
    o.fast_sse = s->fast;
    o.pooling.ranks = s->ranks;
    if (s->templated) {
        o.chat = chat;
        o.trusted = chat;
        o.texts = chat;
        o.chat_kwargs = "{\"a\":1}";
    }
    if (rose_api_create(&a, &o, &err) != ROSE_OK) {
        if (a != NULL || err.msg[0] == '\0') abort();
        return false;
    }
    fake_http.cb = rose_api_callbacks(a);
    if (rose_api_attach(a, &fake_http, &err) != ROSE_OK) abort();
    rose_api_set_engine(a, FAKE_ENGINE, &fake_tokenizer);
    fake_arrive(r);
    fake_run(r);
    fake_stop(a);
    return true;
}

static void check(const sample *s, rose_http_req *r, long k)
{
    static char got[sizeof s->want];
    const char *text = fake_text(r);
    bool stream_error = r->begun && strstr(text, "data: {\"error\":") != NULL;
    bool whole = !r->begun || strstr(text, "data: [DONE]\n\n") != NULL ||
                 strstr(text, "\"message_stop\"}\n\n") != NULL ||
                 strstr(text, "\"response.completed\"") != NULL;
    if (!r->ended) fail_msg("%s: allocation %ld refused: no end", s->body, k);
    if (fake.n_live != 0) fail_msg("%s: allocation %ld refused: request kept", s->body, k);
    if (strstr(text, "out of memory") != NULL || stream_error || !whole) return;
    blank(got, text);
    size_t same = 0;
    while (got[same] != '\0' && got[same] == s->want[same])
        same++;
    if (got[same] != s->want[same])
        fail_msg("%s: allocation %ld refused: %.200s instead of %.200s", s->body, k, got + same,
                 s->want + same);
}

/* False once no allocation was refused any more. */
static bool run(const sample *s, long k, bool persist)
{
    fake_reset();
    fake_script = script;
    fake_script_len = 4;
    rose_http_req *r = fake_request(s->path, s->body, s->body == NULL ? 0 : strlen(s->body));
    long before = atomic_load(&falloc.live);
    falloc_arm(k, persist);
    bool lived = live_once(s, r);
    bool refused = falloc_disarm();
    long more = atomic_load(&falloc.live) - before;
    if (more != 0) fail_msg("%s: allocation %ld refused: %ld blocks leak", s->body, k, more);
    if (lived) check(s, r, k);
    fake_free(r);
    return refused;
}

static void every_allocation(void **state)
{
    rose_err err = {0};
    (void)state;
    if (rose_chat_open(&chat, "nowhere", "{{ messages[0].content ~ a ~ b }}", &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        sample *s = &samples[i];
        fake_reset();
        fake_script = script;
        fake_script_len = 4;
        rose_http_req *r = fake_request(s->path, s->body, s->body == NULL ? 0 : strlen(s->body));
        assert_true(live_once(s, r));
        blank(s->want, fake_text(r));
        fake_free(r);
        for (int persist = 0; persist < 2; persist++) {
            long k = 1;
            while (run(s, k, persist != 0))
                k++;
            assert_true(k > 5);
        }
    }
    rose_chat_close(chat);
}

static uint32_t next_letter(const rose_request *r, uint32_t i)
{
    (void)r;
    return 'a' + i % 26;
}

/* In a steady stream the I/O thread allocates nothing. */
static void no_allocation_per_token(void **state)
{
    static const char body[] = "{\"prompt\":\"x\",\"stream\":true,\"stop\":[\"xyza!\",\"q\\n\"],"
                               "\"n\":4,\"max_tokens\":60,\"ignore_eos\":true}";
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    o.async_admit = false;
    fake_reset();
    fake.next = next_letter;
    rose_api *a = fake_start(&o);
    rose_http_req *r = fake_request("/v1/completions", body, strlen(body));
    fake_arrive(r);
    for (int i = 0; i < 50; i++) {
        fake_engine_step();
        falloc_arm(0, false);
        fake_turn(0);
        falloc_disarm();
        if (i >= 10) assert_int_equal(atomic_load(&falloc.count), 0);
    }
    assert_false(r->ended);
    fake_run(r);
    fake_free(r);
    fake_stop(a);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_OFF);
    fake_arch.eos_ids[0] = FAKE_EOS;
    fake_arch.n_eos = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation),
        cmocka_unit_test(no_allocation_per_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
