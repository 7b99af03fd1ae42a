/* Chat templates that take long: they run on as many workers as grammars may, other requests pass
 * them, they end when their client has left, and the reply of one that ends is as of any other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "api/api_internal.h"
#include "fakes.h"

/* A content of "slow" takes a million steps, far more than a render may on any worker. */
static const char template[] = "{% if messages[0].content == 'slow' %}"
                               "{% for i in range(90000) %}{{ '' if i == 0 }}{% endfor %}"
                               "{% endif %}{{ messages[0].content }}";

#define CHAT(content, more)                                                                        \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"" content "\"}],\"max_tokens\":1" more "}"

typedef struct room {
    rose_chat *chat;
    rose_api *api;
} room;

static void begin(room *m, uint32_t n_workers, bool async)
{
    static const uint32_t script[] = {FAKE_WORD0, FAKE_EOS};
    rose_api_opts o;
    rose_err err = {0};
    if (rose_chat_open(&m->chat, "nowhere", template, &err) != ROSE_OK) fail_msg("%s", err.msg);
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.n_workers = n_workers;
    o.async_admit = async;
    o.chat = o.trusted = m->chat;
    o.max_queued_jobs = 8;
    fake_reset();
    fake.next = fake_next_script;
    fake_script = script;
    fake_script_len = 2;
    fake_arch.eos_ids[0] = FAKE_EOS;
    fake_arch.n_eos = 1;
    m->api = fake_start(&o);
}

static void end(room *m)
{
    fake_stop(m->api);
    rose_chat_close(m->chat);
    fake_arch.n_eos = 0;
}

static rose_http_req *ask(const char *path, const char *body)
{
    rose_http_req *r = fake_request(path, body, strlen(body));
    fake_arrive(r);
    return r;
}

static void expect(rose_http_req *r, int status)
{
    fake_run(r);
    assert_int_equal(r->status, status);
    fake_free(r);
}

/* A job that compiles a grammar (here it reads the vocabulary) has the only right to be slow. Slow
 * templates wait for it, wherever they come from, and a quick one passes them. */
static void others_pass(void **state)
{
    static const char *const paths[] = {"/v1/chat/completions", "/v1/chat/completions", "/tokenize",
                                        "/apply-template"};
    static const char *const bodies[] = {
        CHAT("slow", ""),
        CHAT("x",
             ",\"chat_template\":\"{% for i in range(90000) %}{{ '' if i == 0 }}{% endfor %}x\""),
        CHAT("slow", ",\"timeout\":600"), CHAT("slow", "")};
    enum { N = sizeof bodies / sizeof *bodies };
    for (uint32_t n_workers = 2; n_workers < 4; n_workers++) {
        for (int i = 0; i < N; i++) {
            room m;
            (void)state;
            begin(&m, n_workers, true);
            atomic_store(&fake_vocab_held, true);
            rose_http_req *guided = ask("/v1/completions", "{\"prompt\":[1],\"regex\":\"a\"}");
            rose_http_req *slow = ask(paths[i], bodies[i]);
            expect(ask("/v1/chat/completions", CHAT("quick", "")), 200);
            expect(ask("/v1/chat/completions", CHAT("quick", "")), 200);
            assert_false(slow->ended);
            atomic_store(&fake_vocab_held, false);
            expect(guided, 200);
            expect(slow, 200);
            end(&m);
        }
    }
}

/* A request's long template waits before it is parsed. */
static void long_templates_wait(void **state)
{
    room m;
    char body[80000];
    (void)state;
    snprintf(body, sizeof body, CHAT("x", ",\"chat_template\":\"%*s{{\""), 70000, "");
    begin(&m, 2, true);
    atomic_store(&fake_vocab_held, true);
    rose_http_req *guided = ask("/v1/completions", "{\"prompt\":[1],\"regex\":\"a\"}");
    rose_http_req *slow = ask("/v1/chat/completions", body);
    expect(ask("/v1/chat/completions", CHAT("quick", "")), 200);
    assert_false(slow->ended);
    atomic_store(&fake_vocab_held, false);
    expect(guided, 200);
    expect(slow, 400);
    end(&m);
}

/* With 8 places in the queue four jobs may wait for the right, and two of one client. */
static void too_many(void **state)
{
    room m;
    rose_http_req *r[4];
    (void)state;
    begin(&m, 2, true);
    atomic_store(&fake_vocab_held, true);
    r[0] = ask("/v1/completions", "{\"prompt\":[1],\"regex\":\"a\"}");
    for (int i = 1; i < 4; i++)
        r[i] = ask("/v1/chat/completions", CHAT("slow", ""));
    fake_run(r[3]);
    assert_int_equal(r[3]->status, 429);
    expect(ask("/v1/chat/completions", CHAT("quick", "")), 200);
    atomic_store(&fake_vocab_held, false);
    for (int i = 0; i < 3; i++)
        expect(r[i], 200);
    fake_free(r[3]);
    end(&m);
}

/* A grammar as well: one right is enough, and the reply obeys. Without workers nothing waits. */
static void one_right_for_both(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        room m;
        begin(&m, 2, async != 0);
        rose_http_req *r = ask("/v1/chat/completions", CHAT("slow", ",\"regex\":\"Hello\""));
        fake_run(r);
        assert_int_equal(r->status, 200);
        assert_non_null(strstr(fake_text(r), "\"content\":\"H\""));
        fake_free(r);
        expect(ask("/v1/chat/completions", CHAT("slow", "")), 200);
        end(&m);
    }
}

/* The worker's flag of a client that has left reaches the renderer, also in the trials of a
 * request's own template. */
static void ends_with_its_client(void **state)
{
    room m;
    rose_api_error err = {0};
    rose_template_text text;
    rose_chat *chat;
    const atomic_bool gone = true;
    (void)state;
    begin(&m, 2, false);
    rose_api_job j = {.api = m.api};
    const rose_api_prompt_ctx c = {.gone = &gone, .job = &j, .api = m.api, .chat = m.chat};
    rose_json *messages = rose_json_pack("[{s:s,s:s}]", "role", "user", "content", "slow");
    rose_json *own = rose_json_string("{{ messages[0].content }}");
    rose_api_params p = {.messages = messages};
    assert_false(rose_api_messages_render(&text, &p, &c, &err));
    assert_int_equal(err.status, 499);
    p.chat_template = own;
    err = (rose_api_error){0};
    assert_false(rose_api_own_template(&chat, &p, &c, &err));
    assert_int_equal(err.status, 499);
    rose_json_decref(messages);
    rose_json_decref(own);
    end(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_pass), cmocka_unit_test(long_templates_wait),
        cmocka_unit_test(too_many), cmocka_unit_test(one_right_for_both),
        cmocka_unit_test(ends_with_its_client)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
