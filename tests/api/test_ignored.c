/* Fields that the API ignores: the reply's header names them, the log has each name once, a metric
 * counts them, and --strict-fields refuses them. The names are chosen by clients, who may be
 * hostile. Through the whole room, against fakes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "fakes.h"

#include "api/json_out.h"
#include "base/log.h"
#include "log_capture.h"

#define C   "/v1/completions"
#define H   "/v1/chat/completions"
#define T   "/tokenize"
#define D   "/detokenize"
#define MSG "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define P   "{\"prompt\":\"x\","

typedef struct row {
    const char *path, *body;
    const char *header; /* NULL: there is none */
    const char *strict; /* with --strict-fields: the field that is refused; NULL: none is */
} row;

static const row rows[] = {
    /* nothing is ignored */
    {C, "{\"prompt\":\"x\"}", NULL, NULL},
    {C, P "\"user\":\"u\",\"request_id\":\"r\"}", NULL, NULL},
    {C, P "\"no_stop_trim\":false,\"return_hidden_states\":false,\"best_of\":1}", NULL, NULL},
    {C, P "\"kv_transfer_params\":{},\"stream_interval\":1,\"length_penalty\":1.0}", NULL, NULL},
    {H,
     "{" MSG ",\"separate_reasoning\":true,\"stream_reasoning\":true,\"include_reasoning\":true}",
     NULL, NULL},
    {H, "{" MSG ",\"metadata\":{\"a\":1},\"service_tier\":\"auto\",\"safety_identifier\":\"s\"}",
     NULL, NULL},
    {H, "{" MSG ",\"store\":false,\"reasoning_effort\":\"none\",\"chat_template_kwargs\":{}}", NULL,
     NULL},
    {H, "{" MSG ",\"tools\":[],\"tool_choice\":\"auto\",\"parallel_tool_calls\":false}", NULL,
     NULL},
    /* unknown fields */
    {C, P "\"foo\":1}", "foo", "foo"},
    {C, P "\"foo\":1,\"bar\":{\"a\":[1]}}", "foo, bar", "foo"},
    {C, P "\"foo\":1,\"stream\":true}", "foo", "foo"},
    {C, P "\"foo\":1,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", "foo", "foo"},
    {H, "{" MSG ",\"foo\":1}", "foo", "foo"},
    {H, "{" MSG ",\"foo\":1,\"stream\":true}", "foo", "foo"},
    {T, P "\"foo\":1}", "foo", "foo"},
    {T, "{" MSG ",\"foo\":1}", "foo", "foo"},
    {D, "{\"tokens\":[1],\"foo\":1}", "foo", "foo"},
    {C, P "\"Max_tokens\":1}", "Max_tokens", "Max_tokens"},
    {C, P "\"foo\":null}", NULL, "foo"},
    /* known elsewhere, not here */
    {C, P "\"messages\":[]}", "messages", "messages"},
    {C, P "\"tools\":[{}]}", "tools", "tools"},
    {H, "{" MSG ",\"prompt\":\"x\"}", "prompt", "prompt"},
    {T, P "\"temperature\":1,\"priority\":1}", "temperature, priority", "temperature"},
    /* tools that a server cannot run, and a choice among none */
    {H, "{" MSG ",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"a b\"}]}",
     "tools[0].web_search, tools[1].a%20b", "tools[0]"},
    {H, "{" MSG ",\"tools\":[{\"type\":\"custom\"}],\"tool_choice\":\"auto\"}", "tools[0].custom",
     "tools[0]"},
    {H, "{" MSG ",\"tool_choice\":\"required\"}", "tool_choice", "tool_choice"},
    {H, "{" MSG ",\"tool_choice\":5,\"tools\":[]}", "tool_choice", "tool_choice"},
    /* hints that ask for something */
    {H, "{" MSG ",\"reasoning_effort\":\"high\",\"verbosity\":\"low\",\"store\":true}",
     "reasoning_effort, verbosity, store", "reasoning_effort"},
    {H, "{" MSG ",\"chat_template_kwargs\":{\"a\":1}}", "chat_template_kwargs",
     "chat_template_kwargs"},
    {H, "{" MSG ",\"verbosity\":\"low\",\"mm_processor_kwargs\":{\"a\":1}}",
     "verbosity, mm_processor_kwargs", "verbosity"},
    {C, P "\"kv_transfer_params\":{\"a\":1},\"stream_interval\":4,\"length_penalty\":2}",
     "kv_transfer_params, stream_interval, length_penalty", "kv_transfer_params"},
    {C, P "\"spaces_between_special_tokens\":false}", "spaces_between_special_tokens",
     "spaces_between_special_tokens"},
    /* nested */
    {C, P "\"stream\":true,\"stream_options\":{\"foo\":1,\"bar\":null}}", "stream_options.foo",
     "stream_options.foo"},
    {C, P "\"stream\":true,\"stream_options\":{\"include_obfuscation\":true}}",
     "stream_options.include_obfuscation", "stream_options.include_obfuscation"},
    {C, P "\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}",
     "stream_options.continuous_usage_stats", "stream_options.continuous_usage_stats"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":\"Ann\"}]}",
     "messages[0].name", "messages[0].name"},
    {T, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":\"Ann\"}]}",
     "messages[0].name", "messages[0].name"},
    {H,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
     "null,"
     "\"reasoning_content\":\"hm\",\"tool_calls\":[],\"refusal\":null},"
     "{\"role\":\"user\",\"content\":\"y\",\"foo\":1}]}",
     "messages[1].reasoning_content, messages[2].foo", "messages[1].reasoning_content"},
    {H,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},"
     "{\"type\":\"text\",\"text\":\"y\",\"cache_control\":{\"type\":\"ephemeral\"}}]}]}",
     "messages[0].content[1].cache_control", "messages[0].content[1].cache_control"},
    /* hostile names */
    {C, P "\"a\\r\\nSet-Cookie: x=1\":1}", "a%0D%0ASet-Cookie%3A%20x%3D1", "a\r\nSet-Cookie: x=1"},
    {C, P "\"a, b\":1}", "a%2C%20b", "a, b"},
    {C, P "\"\\\"q\\\"\\\\\":1}", "%22q%22%5C", "\"q\"\\"},
    {C, P "\"100%\":1}", "100%25", "100%"},
    {C, P "\"\\u00e9\\ud83d\\ude00\":1}", "%C3%A9%F0%9F%98%80", "\xC3\xA9\xF0\x9F\x98\x80"},
    {C, P "\"\\u001b[31m\\u007f\":1}", "%1B[31m%7F", "\x1B[31m\x7F"},
    {C, P "\"\":1}", "\"\"", NULL},
    {C, P "\"stream\":true,\"stream_options\":{\"\\n\":1}}", "stream_options.%0A",
     "stream_options.\n"},
    {H, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"\\r\\nX: y\":1}]}",
     "messages[0].%0D%0AX%3A%20y", "messages[0].\r\nX: y"},
};

static rose_api_opts options(bool strict)
{
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.model_id = "mm";
    o.async_admit = false;
    o.strict_fields = strict;
    return o;
}

static rose_api *start(const rose_api_opts *o)
{
    static const uint32_t script[] = {FAKE_WORD0, FAKE_EOS};
    fake_reset();
    fake_script = script;
    fake_script_len = 2;
    rose_api *a = fake_start(o);
    assert_non_null(a);
    return a;
}

static rose_http_req *ask(const char *path, const char *body)
{
    rose_http_req *r = fake_request(path, body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    assert_true(r->ended);
    return r;
}

/* The value of X-Ignored-Fields, NULL if there is no such header. The header is a whole line, there
 * once, and of printable ASCII. */
static const char *ignored(const rose_http_req *r)
{
    static char value[2048];
    static const char name[] = "X-Ignored-Fields: ";
    const char *at = strstr(r->headers, name);
    if (at == NULL) return NULL;
    assert_true(at == r->headers || at[-1] == '\n');
    assert_null(strstr(at + 1, name));
    const size_t n = strcspn(at += sizeof name - 1, "\r\n");
    assert_int_equal(strncmp(at + n, "\r\n", 2), 0);
    for (size_t i = 0; i < n; i++)
        assert_true(at[i] >= ' ' && at[i] <= '~');
    snprintf(value, sizeof value, "%.*s", (int)n, at);
    return value;
}

static void check_lines(const rose_http_req *r)
{
    for (const char *s = r->headers; *s != '\0'; s = strstr(s, "\r\n") + 2) {
        assert_non_null(strstr(s, "\r\n"));
        if (strncmp(s, "X-Ignored-Fields: ", 18) != 0 && strncmp(s, "Server-Timing: ", 15) != 0 &&
            strncmp(s, "Cache-Control: ", 15) != 0 && strncmp(s, "X-Accel-Buffering: ", 19) != 0)
            fail_msg("a header that nobody asked for: %s", s);
    }
}

static void names_what_it_ignores(void **state)
{
    const rose_api_opts o = options(false);
    (void)state;
    rose_api *a = start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rose_http_req *r = ask(rows[i].path, rows[i].body);
        const char *got = ignored(r);
        if (r->status != 200) fail_msg("%s: %d %s", rows[i].body, r->status, fake_text(r));
        if ((got == NULL) != (rows[i].header == NULL) ||
            (got != NULL && strcmp(got, rows[i].header) != 0))
            fail_msg("%s: %s", rows[i].body, r->headers);
        check_lines(r);
        fake_free(r);
    }
    fake_stop(a);
}

/* The same list with the workers, who build the header on another thread. */
static void with_workers(void **state)
{
    rose_api_opts o = options(false);
    (void)state;
    o.async_admit = true;
    o.n_workers = 1;
    for (uint32_t inline_bytes = 0; inline_bytes <= 4096; inline_bytes += 4096) {
        o.inline_bytes = inline_bytes;
        rose_api *a = start(&o);
        rose_http_req *r = ask(C, P "\"foo\":1,\"n\":5}"); /* too many for the I/O thread */
        assert_string_equal(ignored(r), "foo");
        fake_free(r);
        fake_stop(a);
    }
}

static void strict_refuses(void **state)
{
    const rose_api_opts o = options(true);
    (void)state;
    rose_api *a = start(&o);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool empty = rows[i].header != NULL && strcmp(rows[i].header, "\"\"") == 0;
        const int want = rows[i].strict != NULL || empty ? 400 : 200;
        rose_http_req *r = ask(rows[i].path, rows[i].body);
        if (r->status != want) fail_msg("%s: %d %s", rows[i].body, r->status, fake_text(r));
        assert_null(ignored(r));
        rose_json *v = rose_json_loads(fake_text(r), 0, NULL);
        const rose_json *e = rose_json_get(v, "error");
        const char *param = rose_json_text(rose_json_get(e, "param"));
        const char *code = rose_json_text(rose_json_get(e, "code"));
        if (want == 400 &&
            (rows[i].strict == NULL ? param != NULL : strcmp(param, rows[i].strict) != 0))
            fail_msg("%s: %s", rows[i].body, fake_text(r));
        if (want == 400)
            assert_true(strcmp(code, "unknown_field") == 0 ||
                        strcmp(code, "unsupported_field") == 0);
        rose_json_decref(v);
        fake_free(r);
    }
    fake_stop(a);
}

/* P, then n fields whose names are a number and `tail`; to be freed. */
static char *many_fields(uint32_t n, const char *tail)
{
    rose_api_out o = {0};
    rose_api_puts(&o, "{\"prompt\":\"x\"");
    for (uint32_t i = 0; i < n; i++) {
        rose_api_putf(&o, ",\"f%u", i);
        rose_api_puts(&o, tail);
        rose_api_puts(&o, "\":1");
    }
    rose_api_puts(&o, "}");
    rose_buf_str(&o.b);
    assert_false(o.oom);
    return o.b.data;
}

static void bounds(void **state)
{
    static char z[300], want[80];
    const rose_api_opts o = options(false);
    (void)state;
    rose_api *a = start(&o);
    memset(z, 'z', sizeof z - 1);
    char *body = many_fields(1, z);
    rose_http_req *r = ask(C, body); /* a long name is cut */
    memset(want, 'z', 64);
    memcpy(want, "f0", 2);
    assert_string_equal(ignored(r), want);
    fake_free(r);
    free(body);

    for (size_t i = 0; i + 1 < sizeof z; i += 2)
        memcpy(z + i, "\xC3\xA9", 2);
    z[280] = '\0';
    body = many_fields(1, z);
    r = ask(C, body); /* an escape is not cut in two: 2 + 20 x 3 bytes, and no 65th */
    assert_int_equal(strlen(ignored(r)), 62);
    assert_string_equal(ignored(r) + 56, "%C3%A9");
    fake_free(r);
    free(body);

    body = many_fields(5000, z); /* the first 16 of many */
    r = ask(C, body);
    assert_int_equal(log_count(ignored(r), ", "), 15);
    assert_int_equal(strncmp(ignored(r), "f0%C3", 5), 0);
    assert_non_null(strstr(ignored(r), ", f15%C3"));
    assert_null(strstr(ignored(r), "f16"));
    fake_free(r);
    free(body);
    fake_stop(a);
}

static double metric(void)
{
    static const char name[] = "\nroseinfer:ignored_fields_total{model_name=\"mm\",engine=\"0\"} ";
    rose_http_req *r = fake_request("/metrics", NULL, 0);
    fake_arrive(r);
    const char *at = strstr(fake_text(r), name);
    assert_non_null(at);
    const double n = strtod(at + sizeof name - 1, NULL);
    fake_free(r);
    return n;
}

#define SAME(a, b) assert_true(!((a) < (b)) && !((a) > (b)))

static void counts(void **state)
{
    const rose_api_opts o = options(false);
    (void)state;
    rose_api *a = start(&o);
    SAME(metric(), 0);
    fake_free(ask(C, P "\"foo\":1,\"bar\":1}"));
    SAME(metric(), 2);
    fake_free(ask(C, P "\"foo\":1,\"stream\":true}"));
    fake_free(ask(H, "{" MSG ",\"store\":true}"));
    fake_free(ask(D, "{\"tokens\":[1],\"foo\":1}"));
    SAME(metric(), 5);
    fake_free(ask(C, "{\"prompt\":\"x\"}"));
    fake_free(ask(C, P "\"foo\":1,\"tools\":1,\"suffix\":\"y\"}")); /* refused */
    SAME(metric(), 5);
    char *body = many_fields(40, "");
    fake_free(ask(C, body)); /* also those that the header has no room for */
    SAME(metric(), 45);
    free(body);
    fake_stop(a);
}

static void logs_each_name_once(void **state)
{
    const rose_api_opts o = options(false);
    (void)state;
    rose_api *a = start(&o);
    rose_log_set_level(ROSE_LOG_INFO);
    log_begin();
    for (int i = 0; i < 3; i++) {
        fake_free(ask(C, P "\"foo\":1,\"x\\ny\":1}"));
        fake_free(ask(H, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\","
                         "\"content\":\"x\",\"name\":\"a\"},{\"role\":\"user\",\"content\":\"x\","
                         "\"name\":\"b\"}]}"));
    }
    char *text = log_end();
    assert_int_equal(log_count(text, "the request field "), 3);
    assert_int_equal(log_count(text, "field foo was ignored"), 1);
    assert_int_equal(log_count(text, "field x%0Ay was ignored"), 1);
    assert_int_equal(log_count(text, "field messages[].name was ignored"), 1);
    free(text);

    log_begin(); /* 3 names so far: 253 of these are logged, then it is said that no more will be */
    for (uint32_t i = 0; i < 300; i++) {
        char body[64];
        snprintf(body, sizeof body, P "\"n%u\":1}", i);
        rose_http_req *r = ask(C, body);
        assert_non_null(ignored(r)); /* the client is told all the same */
        fake_free(r);
    }
    text = log_end();
    assert_int_equal(log_count(text, "the request field "), 253);
    assert_int_equal(log_count(text, "no further name will be"), 1);
    free(text);
    fake_stop(a);
}

/* Each of the model's names is taken and listed; replies have the first. */
static void several_names(void **state)
{
    static const char *const sound[] = {"mm", "gpt-4o", "org/x"};
    rose_api_opts o = options(false);
    (void)state;
    assert_true(rose_opt_list_add(&o.model_aliases, "gpt-4o,org/x"));
    rose_api *a = start(&o);
    for (size_t i = 0; i < 3; i++) {
        char body[80], path[80];
        snprintf(body, sizeof body, P "\"model\":\"%s\"}", sound[i]);
        rose_http_req *r = ask(C, body);
        assert_int_equal(r->status, 200);
        assert_non_null(strstr(fake_text(r), "\"model\":\"mm\""));
        fake_free(r);
        snprintf(path, sizeof path, "/v1/models/%s", sound[i]);
        r = fake_request(path, NULL, 0);
        fake_arrive(r);
        assert_int_equal(r->status, 200);
        snprintf(body, sizeof body, "{\"id\":\"%s\"", sound[i]);
        assert_non_null(strstr(fake_text(r), body));
        fake_free(r);
    }
    rose_http_req *r = ask(C, P "\"model\":\"gpt-4o\\u0000\"}");
    assert_int_equal(r->status, 404);
    fake_free(r);
    r = fake_request("/v1/models", NULL, 0);
    fake_arrive(r);
    rose_json *v = rose_json_loads(fake_text(r), 0, NULL);
    const rose_json *data = rose_json_get(v, "data");
    assert_int_equal(rose_json_count(data), 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(rose_json_text(rose_json_get(rose_json_at(data, i), "id")), sound[i]);
    rose_json_decref(v);
    fake_free(r);
    fake_stop(a);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_what_it_ignores),
        cmocka_unit_test(with_workers),
        cmocka_unit_test(strict_refuses),
        cmocka_unit_test(bounds),
        cmocka_unit_test(counts),
        cmocka_unit_test(logs_each_name_once),
        cmocka_unit_test(several_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
