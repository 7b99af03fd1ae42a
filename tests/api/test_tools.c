/* Tools and reasoning of chats against fakes: what the model writes is a script, and the reply has
 * its calls and its reasoning, the same with and without a stream. With a grammar the fake takes
 * the first id that it allows, so that a demanded call is made of nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "fakes.h"

#define CHAT   "/v1/chat/completions"
#define HERMES "{# <tool_call> #}{{ tools }}{{ messages[-1].content }}"
#define THINKS "{# <tool_call> <think> #}{{ tools }}{{ messages[-1].content }}"
#define OPENED "{# <tool_call> #}{{ tools }}{{ messages[-1].content }}<think>\n"
#define CLOSED "{# <tool_call> #}{{ tools }}{{ messages[-1].content }}<think>\n\n</think>\n\n"
#define LLAMA  "{# <|python_tag|> #}{{ tools }}{{ messages[-1].content }}"
#define XML    "{# <tool_call><function= #}{{ tools }}{{ messages[-1].content }}"
#define PYTHON "{# [func_name1( #}{{ tools }}{{ messages[-1].content }}"
#define TEKKEN "{# [TOOL_CALLS] #}{{ tools }}{{ messages[-1].content }}"
#define PLAIN  "{{ messages[-1].content }}"
#define ALL    "{% for m in messages %}{{ m.content }}{% endfor %}"

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":"   \
    "\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"s\":{\"type\":\"string\"}},"        \
    "\"required\":[\"a\"],\"additionalProperties\":false}}},"                                      \
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]"
#define STRICT                                                                                     \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"strict\":true,"            \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"const\":7}},\"required\":"       \
    "[\"a\"],\"additionalProperties\":false}}}]"

static uint32_t script[4096];

static void set_script(const char *text)
{
    const size_t n = strlen(text);
    assert_true(n < sizeof script / sizeof *script);
    for (size_t i = 0; i < n; i++)
        script[i] = (unsigned char)text[i];
    fake_script = script;
    fake_script_len = (uint32_t)n;
}

typedef struct server {
    rose_chat *chat;
    rose_api *api;
} server;

static server start(const char *template, const char *calls, const char *reasoning)
{
    server s = {0};
    rose_api_opts o;
    rose_err err = {0};
    if (rose_chat_open(&s.chat, "nowhere", template != NULL ? template : "plain", &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.async_admit = false;
    o.chat = s.chat;
    if (calls != NULL) o.tool_call_parser = calls;
    if (reasoning != NULL) o.reasoning_parser = reasoning;
    fake_reset();
    fake.max_model_len = fake_plan.max_model_len = 4096;
    fake_arch.n_eos = 1;
    fake_arch.eos_ids[0] = FAKE_EOS;
    s.api = fake_start(&o);
    assert_non_null(s.api);
    return s;
}

static void stop(server *s)
{
    fake_stop(s->api);
    assert_int_equal(fake.n_live, 0);
    rose_chat_close(s->chat);
}

static rose_http_req *ask(const char *body)
{
    rose_http_req *r = fake_request(CHAT, body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    assert_true(r->ended);
    return r;
}

static rose_json *parse(const char *text, size_t n)
{
    rose_json_error e;
    rose_json *v = NULL;
    if (rose_json_parse(&v, text, n, 0, &e) != ROSE_OK) fail_msg("%s: %.*s", e.text, (int)n, text);
    return v;
}

/* ---- a reply as text: content, reasoning, calls, finish ---- */

static void describe(char *out, size_t cap, const rose_json *message, const char *finish)
{
    const rose_json *content = rose_json_get(message, "content"), *c;
    const char *thought = rose_json_text(rose_json_get(message, "reasoning_content"));
    const char *again = rose_json_text(rose_json_get(message, "reasoning"));
    size_t i, n = (size_t)snprintf(out, cap, "content=%s;",
                                   rose_json_is_null(content) ? "null" : rose_json_text(content));
    assert_true((thought == NULL) == (again == NULL));
    if (thought != NULL) {
        assert_string_equal(thought, again);
        n += (size_t)snprintf(out + n, cap - n, "reasoning=%s;", thought);
    }
    rose_json_each_item (rose_json_get(message, "tool_calls"), i, c) {
        const rose_json *f = rose_json_get(c, "function");
        const char *id = rose_json_text(rose_json_get(c, "id"));
        assert_true(id != NULL && strncmp(id, "call_", 5) == 0 && strlen(id) == 21);
        assert_string_equal(rose_json_text(rose_json_get(c, "type")), "function");
        n += (size_t)snprintf(out + n, cap - n, "%s(%s);", rose_json_text(rose_json_get(f, "name")),
                              rose_json_text(rose_json_get(f, "arguments")));
    }
    snprintf(out + n, cap - n, "%s", finish);
}

/* Appends the string `key` of a delta to that of the message. */
static void join(rose_json *message, const rose_json *delta, const char *key)
{
    const char *old = rose_json_text(rose_json_get(message, key));
    const rose_json *v = rose_json_get(delta, key);
    rose_buf b = {0};
    if (!rose_json_is_string(v)) return;
    if (old != NULL) rose_buf_add(&b, old, strlen(old));
    rose_buf_add(&b, rose_json_text(v), rose_json_text_len(v));
    rose_json_set_new(message, key, rose_json_stringn(b.data, b.len));
    rose_buf_free(&b);
}

static void join_calls(rose_json *message, const rose_json *delta)
{
    rose_json *calls = rose_json_get(message, "tool_calls"), *d;
    size_t i;
    rose_json_each_item (rose_json_get(delta, "tool_calls"), i, d) {
        const size_t k = (size_t)rose_json_int(rose_json_get(d, "index"));
        assert_true(k <= rose_json_count(calls));
        if (k == rose_json_count(calls)) { /* the first has id, type and name */
            assert_string_equal(
                rose_json_text(rose_json_get(rose_json_get(d, "function"), "arguments")), "");
            rose_json_append(calls, d);
            continue;
        }
        assert_null(rose_json_get(d, "id"));
        join(rose_json_get(rose_json_at(calls, k), "function"), rose_json_get(d, "function"),
             "arguments");
    }
}

/* The message that the chunks of a stream make; *finish is from the last one. */
static rose_json *join_stream(const char *text, char finish[32])
{
    rose_json *message = rose_json_pack("{s:n,s:[]}", "content", "tool_calls");
    bool first = true;
    for (const char *at = text; (at = strstr(at, "data: ")) != NULL;) {
        const char *end = strstr(at += 6, "\n\n");
        if (strncmp(at, "[DONE]", 6) == 0) break;
        rose_json *chunk = parse(at, (size_t)(end - at));
        const rose_json *c = rose_json_at(rose_json_get(chunk, "choices"), 0);
        const rose_json *delta = rose_json_get(c, "delta");
        const char *f = rose_json_text(rose_json_get(c, "finish_reason"));
        assert_int_equal(rose_json_get(delta, "role") != NULL, first);
        first = false;
        join(message, delta, "content");
        join(message, delta, "reasoning_content");
        join(message, delta, "reasoning");
        join_calls(message, delta);
        if (f != NULL) snprintf(finish, 32, "%s", f);
        rose_json_decref(chunk);
    }
    return message;
}

/* The description of one reply to a request whose members are `fields`. */
static void describe_reply(char *out, size_t cap, const char *fields, bool stream)
{
    char body[2048], finish[32] = "";
    snprintf(body, sizeof body, "{" MESSAGES ",%s%s}", fields, stream ? ",\"stream\":true" : "");
    rose_http_req *r = ask(body);
    if (r->status != 200) fail_msg("%d: %s", r->status, fake_text(r));
    if (stream) {
        rose_json *message = join_stream(fake_text(r), finish);
        describe(out, cap, message, finish);
        rose_json_decref(message);
    } else {
        rose_json *reply = parse(fake_text(r), strlen(fake_text(r)));
        const rose_json *c = rose_json_at(rose_json_get(reply, "choices"), 0);
        describe(out, cap, rose_json_get(c, "message"),
                 rose_json_text(rose_json_get(c, "finish_reason")));
        rose_json_decref(reply);
    }
    fake_free(r);
}

typedef struct row {
    const char *template, *fields, *text, *want;
    const char *calls, *reasoning; /* options; NULL: auto */
} row;

static void check(const row *w)
{
    char got[4096];
    for (int stream = 0; stream < 2; stream++) {
        server s = start(w->template, w->calls, w->reasoning);
        set_script(w->text);
        describe_reply(got, sizeof got, w->fields, stream != 0);
        const bool empty = strcmp(w->want, "content=;stop") == 0 && stream != 0;
        if (strcmp(got, w->want) != 0 && !(empty && strcmp(got, "content=null;stop") == 0))
            fail_msg("%s, stream %d: the reply to %s is\n%s\nnot\n%s", w->template, stream, w->text,
                     got, w->want);
        stop(&s);
    }
}

static void replies(void **state)
{
    static const row rows[] = {
        {HERMES, TOOLS, "Hi.", "content=Hi.;stop", NULL, NULL},
        {HERMES, TOOLS,
         "Well:\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"s\": "
         "\"\xc3\xa9\\n\"}}\n"
         "</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
         "content=Well:\n;add({\"a\": 1, \"s\": \"\xc3\xa9\\n\"});now({});tool_calls", NULL, NULL},
        {HERMES, TOOLS ",\"parallel_tool_calls\":false",
         "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"add\"}</tool_call>",
         "content=null;now({});tool_calls", NULL, NULL},
        {HERMES, TOOLS ",\"max_tokens\":47",
         "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1, \"s\": \"",
         "content=null;add({\"a\": 1);length", NULL, NULL},
        {HERMES, TOOLS, "<tool_call>no</tool_call>", "content=<tool_call>no</tool_call>;stop", NULL,
         NULL},
        {HERMES, TOOLS ",\"stop\":[\"</tool\"]",
         "<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>",
         "content=null;now({});tool_calls", NULL, NULL},
        /* no tools, or none wanted: text */
        {HERMES, TOOLS ",\"tool_choice\":\"none\"", "<tool_call>{\"name\": \"now\"}</tool_call>",
         "content=<tool_call>{\"name\": \"now\"}</tool_call>;stop", NULL, NULL},
        {HERMES, "\"n\":1", "<tool_call>{\"name\": \"now\"}</tool_call>",
         "content=<tool_call>{\"name\": \"now\"}</tool_call>;stop", NULL, NULL},
        {LLAMA, TOOLS, "{\"name\": \"add\", \"parameters\": {\"a\": 2}}",
         "content=null;add({\"a\": 2});tool_calls", NULL, NULL},
        {XML, TOOLS,
         "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
         "content=null;add({\"a\": 2});tool_calls", NULL, NULL},
        {PYTHON, TOOLS, "[add(a=2, s='x'), now()]",
         "content=null;add({\"a\": 2, \"s\": \"x\"});now({});tool_calls", NULL, NULL},
        /* several calls in one tag, and calls of a model that does not end its reasoning */
        {HERMES, TOOLS, "<tool_call>[{\"name\": \"now\"}, {\"name\": \"now\"}] {\"name\": \"now\"}",
         "content=null;now({});now({});now({});tool_calls", NULL, NULL},
        {THINKS, TOOLS, "<think>Hm. <tool_call>\n{\"name\": \"now\"}\n</tool_call>\n",
         "content=null;reasoning=Hm.;now({});tool_calls", NULL, NULL},
        {THINKS, TOOLS, "<think>Hm. <tool_call>{\"name\": \"now\"}</tool_call></think>No.",
         "content=No.;reasoning=Hm. <tool_call>{\"name\": \"now\"}</tool_call>;stop", NULL, NULL},
        {THINKS, "\"n\":1", "<think>Hm. <tool_call>{\"name\": \"now\"}</tool_call>",
         "content=null;reasoning=Hm. <tool_call>{\"name\": \"now\"}</tool_call>;stop", NULL, NULL},
        {PYTHON, TOOLS, "[add(a=0x1F, s='a' \"b\"), add(s=r'\\d', a=12345678901234567890)]",
         "content=null;add({\"a\": 31, \"s\": \"ab\"});add({\"s\": \"\\\\d\", \"a\": "
         "12345678901234567890});tool_calls",
         NULL, NULL},
        /* a template without tools */
        {ALL, TOOLS, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
         "content=null;now({});tool_calls", NULL, NULL},
        {NULL, TOOLS, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
         "content=null;now({});tool_calls", NULL, NULL},
        {"{# <|python_tag|> #}{{ xml_tools }}" ALL, TOOLS, "<tool_call>{\"name\": \"now\"}",
         "content=null;now({});tool_calls", NULL, NULL},
        {PLAIN, TOOLS ",\"tool_choice\":\"none\"", "<tool_call>{\"name\": \"now\"}",
         "content=<tool_call>{\"name\": \"now\"};stop", "none", NULL},
        /* options beat the template */
        {PLAIN, TOOLS, "[now()]", "content=null;now({});tool_calls", "pythonic", NULL},
        {HERMES, TOOLS, "[now()]", "content=null;now({});tool_calls", "pythonic", NULL},
        {PLAIN, "\"n\":1", "why</think>x", "content=x;reasoning=why;stop", NULL, "deepseek_r1"},
        {THINKS, "\"n\":1", "<think>a</think>b", "content=<think>a</think>b;stop", NULL, "none"},
        /* reasoning */
        {THINKS, "\"n\":1", "<think>\nHm. \n</think>\n\nYes.", "content=Yes.;reasoning=Hm.;stop",
         NULL, NULL},
        {THINKS, "\"n\":1", "Yes.", "content=Yes.;stop", NULL, NULL},
        {OPENED, "\"n\":1", "Hm.</think>Yes.", "content=Yes.;reasoning=Hm.;stop", NULL, NULL},
        {OPENED, "\"n\":1", "Hm.", "content=null;reasoning=Hm.;stop", NULL, NULL},
        {CLOSED, "\"n\":1", "Yes.", "content=Yes.;stop", NULL, NULL},
        {THINKS, "\"include_reasoning\":false", "<think>Hm.</think>Yes.", "content=Yes.;stop", NULL,
         NULL},
        {THINKS, "\"include_reasoning\":false", "<think>Hm.", "content=;stop", NULL, NULL},
        {THINKS, "\"separate_reasoning\":false", "<think>Hm.</think>Yes.",
         "content=<think>Hm.</think>Yes.;stop", NULL, NULL},
        {THINKS, TOOLS, "<think>Hm.</think>\n\n<tool_call>{\"name\": \"now\"}</tool_call>",
         "content=null;reasoning=Hm.;now({});tool_calls", NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check(&rows[i]);
}

/* A choice becomes an object of the tag, so their number has a limit there. */
static void many_choices(void **state)
{
    enum { N = 20000 };
    char *body = malloc(4 * N + 200);
    (void)state;
    assert_non_null(body);
    for (int i = 0; i < 2; i++) {
        server s = start(i == 0 ? THINKS : PLAIN, NULL, NULL);
        size_t at = (size_t)sprintf(body, "{" MESSAGES ",\"max_tokens\":1,\"guided_choice\":[");
        for (int k = 0; k < N; k++, at += 4)
            memcpy(body + at, "\"a\",", 4);
        sprintf(body + at, "\"b\"]}");
        set_script("a");
        rose_http_req *r = ask(body);
        assert_int_equal(r->status, i == 0 ? 400 : 200);
        if (i == 0) assert_non_null(strstr(fake_text(r), "with reasoning or tools the limit is"));
        fake_free(r);
        stop(&s);
    }
    free(body);
}

/* Mistral's templates take ids of nine letters and digits. */
static void short_ids(void **state)
{
    (void)state;
    server s = start(TEKKEN, NULL, NULL);
    set_script("[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[ARGS]{}");
    rose_http_req *r = ask("{" MESSAGES "," TOOLS ",\"max_tokens\":99}");
    rose_json *reply = parse(fake_text(r), strlen(fake_text(r)));
    rose_json *calls = rose_json_get(
        rose_json_get(rose_json_at(rose_json_get(reply, "choices"), 0), "message"), "tool_calls");
    const char *a = rose_json_text(rose_json_get(rose_json_at(calls, 0), "id"));
    const char *b = rose_json_text(rose_json_get(rose_json_at(calls, 1), "id"));
    assert_int_equal(strlen(a), 9);
    assert_int_equal(strlen(b), 9);
    assert_string_not_equal(a, b);
    rose_json_decref(reply);
    fake_free(r);
    stop(&s);
}

/* The usage counts the tokens of the reasoning with its marks, also of one that is not shown. */
static void reasoning_tokens(void **state)
{
    static const struct {
        const char *fields, *text;
        unsigned want;
    } rows[] = {{"\"n\":1", "<think>Hm.</think>Yes.", 18},
                {"\"include_reasoning\":false", "<think>Hm.</think>Yes.", 18},
                {"\"separate_reasoning\":false", "<think>Hm.</think>Yes.", 0},
                {"\"n\":1", "Yes.", 0},
                {"\"max_tokens\":9", "<think>Hm.</think>Yes.", 9},
                {"\"n\":2", "<think>Hm.</think>Yes.", 36},
                {TOOLS, "<think>Hm <tool_call>{\"name\":\"now\"}</tool_call>", 21},
                {TOOLS, "<think>Hm <tool_call>{\"a</think>Yes.", 32}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int stream = 0; stream < 2; stream++) {
            char body[2048], want[64];
            server s = start(THINKS, NULL, NULL);
            set_script(rows[i].text);
            snprintf(body, sizeof body, "{" MESSAGES ",%s%s}", rows[i].fields,
                     stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
            snprintf(want, sizeof want, "_details\":{\"reasoning_tokens\":%u}}", rows[i].want);
            rose_http_req *r = ask(body);
            if (strstr(fake_text(r), want) == NULL)
                fail_msg("%s: %s lacks %s", rows[i].fields, fake_text(r), want);
            fake_free(r);
            stop(&s);
        }
    }
}

/* ---- demanded calls ---- */

static void demands(void **state)
{
    static const row rows[] = {
        {HERMES, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", "Hi.", "add",
         NULL, NULL},
        {LLAMA, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", "Hi.", "add",
         NULL, NULL},
        {XML, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", "Hi.", "add",
         NULL, NULL},
        {PYTHON, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", "Hi.", "add",
         NULL, NULL},
        {TEKKEN, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", "Hi.", "add",
         NULL, NULL},
        {HERMES, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}",
         "Hi.", "now", NULL, NULL},
        {PYTHON, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}",
         "Hi.", "now", NULL, NULL},
        {XML, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}",
         "Hi.", "now", NULL, NULL},
        {CLOSED, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}",
         "Hi.", "now", NULL, NULL},
        {HERMES, TOOLS ",\"tool_choice\":{\"type\":\"required\"},\"parallel_tool_calls\":false",
         "Hi.", "add", NULL, NULL},
        {HERMES, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"name\":\"now\"}", "Hi.", "now",
         NULL, NULL},
        {HERMES,
         TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":"
               "\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]}},"
               "\"parallel_tool_calls\":false",
         "Hi.", "now", NULL, NULL},
        {HERMES,
         TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[{"
               "\"type\":\"function\",\"name\":\"now\"}]},\"parallel_tool_calls\":false",
         "Hi.", "now", NULL, NULL},
        {HERMES,
         "\"tools\":[{\"type\":\"function\",\"name\":\"now\",\"parameters\":{\"type\":\"object\","
         "\"properties\":null,\"required\":null}}],\"tool_choice\":\"required\",\"parallel_tool_"
         "calls\":false",
         "Hi.", "now", NULL, NULL},
        {HERMES,
         "\"tools\":[{\"type\":\"function\",\"name\":\"now\",\"strict\":true,\"parameters\":{"
         "\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"object\",\"properties\":null,"
         "\"required\":null}},\"required\":[\"b\"],\"additionalProperties\":false}}],\"tool_"
         "choice\":\"required\",\"parallel_tool_calls\":false",
         "Hi.", "now", NULL, NULL},
        {ALL, TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false", "Hi.", "add",
         NULL, NULL},
        {NULL, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}",
         "Hi.", "now", NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        server s = start(rows[i].template, NULL, NULL);
        set_script(rows[i].text);
        rose_http_req *r;
        char body[2048];
        snprintf(body, sizeof body, "{" MESSAGES ",\"max_tokens\":200,%s}", rows[i].fields);
        r = ask(body);
        if (r->status != 200) fail_msg("%s", fake_text(r));
        rose_json *reply = parse(fake_text(r), strlen(fake_text(r)));
        rose_json *m = rose_json_get(rose_json_at(rose_json_get(reply, "choices"), 0), "message");
        rose_json *calls = rose_json_get(m, "tool_calls");
        const rose_json *f = rose_json_get(rose_json_at(calls, 0), "function");
        const char *args = rose_json_text(rose_json_get(f, "arguments"));
        const char *name = rose_json_text(rose_json_get(f, "name"));
        if (rose_json_count(calls) != 1 || strcmp(name, rows[i].want) != 0)
            fail_msg("%s: %s", rows[i].fields, fake_text(r));
        rose_json *v = parse(args, strlen(args));
        assert_int_equal(rose_json_is_integer(rose_json_get(v, "a")), strcmp(name, "add") == 0);
        rose_json_decref(v);
        rose_json_decref(reply);
        fake_free(r);
        stop(&s);
    }
}

/* What a tag makes of a request, as /render shows it. */
static void render(char *out, size_t cap, const char *template, const char *fields)
{
    char body[2048];
    server s = start(template, NULL, NULL);
    snprintf(body, sizeof body, "{" MESSAGES ",%s}", fields);
    rose_http_req *r = fake_request(CHAT "/render", body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    if (r->status != 200) fail_msg("%s: %s", fields, fake_text(r));
    const char *at = strstr(fake_text(r), "\"structured_outputs\":");
    snprintf(out, cap, "%s", at != NULL ? at : "");
    fake_free(r);
    stop(&s);
}

static void tags(void **state)
{
    static const struct {
        const char *template, *fields, *holds, *lacks;
    } rows[] = {
        {HERMES, TOOLS, "", "structural_tag"},
        {HERMES, STRICT, "\"triggers\":[\"<tool_call>\"]", "optional"},
        {THINKS, STRICT, "\"optional\"", "nothing"},
        {OPENED, STRICT, "\"begin\":\"\",\"content\":{\"type\":\"any_text\"},\"end\":\"</think>\"",
         "\"optional\""},
        {CLOSED, STRICT, "triggered_tags", "any_text"},
        {TEKKEN, STRICT, "", "structural_tag"},
        {HERMES,
         TOOLS ",\"tool_choice\":\"required\",\"response_format\":{\"type\":\"json_object\"}",
         "tags_with_separator", "\"or\""},
        {HERMES, TOOLS ",\"response_format\":{\"type\":\"json_object\"}", "\"or\"",
         "triggered_tags"},
        {TEKKEN, TOOLS ",\"response_format\":{\"type\":\"json_object\"}", "\"value\":\"[\"",
         "TOOL_CALLS"},
        {OPENED, "\"regex\":\"ab\"", "\"pattern\":\"ab\"", "tags_with_separator"},
        {OPENED, "\"regex\":\"[1]\"", "\"pattern\":\"[1]\"", "tags_with_separator"},
        {OPENED, "\"grammar\":\"root ::= \\\"ab\\\"\"", "\"grammar\":\"root",
         "tags_with_separator"},
        {OPENED, "\"structured_outputs\":{\"choice\":[\"a\",\"b\"]}",
         "\"const_string\",\"value\":\"b\"", "tags_with"},
        {OPENED, "\"structured_outputs\":{\"json\":\"{\\\"const\\\":1}\"}",
         "\"json_schema\":{\"const\":1}", "tags_with"},
        {OPENED,
         "\"structured_outputs\":{\"structural_tag\":{\"type\":\"structural_tag\",\"format\":{"
         "\"type\":\"const_string\",\"value\":\"q\"}}}",
         "\"value\":\"q\"", "tags_with"},
        {PLAIN, "\"regex\":\"ab\"", "\"regex\":\"ab\"", "structural_tag"},
    };
    char got[8192];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        render(got, sizeof got, rows[i].template, rows[i].fields);
        if (strstr(got, rows[i].holds) == NULL || strstr(got, rows[i].lacks) != NULL)
            fail_msg("%s with %s: %s", rows[i].template, rows[i].fields, got);
    }
}

/* ---- a template that shows no tools ---- */

/* The prompt of a chat, as /apply-template shows it. */
static void prompt_of(char *out, size_t cap, const char *template, const char *body)
{
    server s = start(template, NULL, NULL);
    rose_http_req *r = fake_request("/apply-template", body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    if (r->status != 200) fail_msg("%s", fake_text(r));
    rose_json *reply = parse(fake_text(r), strlen(fake_text(r)));
    snprintf(out, cap, "%s", rose_json_text(rose_json_get(reply, "prompt")));
    rose_json_decref(reply);
    fake_free(r);
    stop(&s);
}

/* Whether the text holds these strings, each once and in this order. */
static bool holds_once(const char *text, const char *const *what)
{
    for (; *what != NULL; what++) {
        const char *at = strstr(text, *what);
        if (at == NULL || strstr(at + 1, *what) != NULL) return false;
        text = at;
    }
    return true;
}

static void described(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
        "kind.\"},{\"role\":\"user\",\"content\":"
        "\"Q1\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":"
        "\"function\",\"function\":{\"name\":\"old_call\",\"arguments\":\"{\\\"a\\\":7}\"}}]},{"
        "\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"R1\"},{\"role\":\"user\","
        "\"content\":"
        "\"Q2\"}]," TOOLS "}";
    static const char *const want[] = {"Be kind.",
                                       "# Tools",
                                       "\"name\": \"add\"",
                                       "\"name\": \"now\"",
                                       "</tools>",
                                       "Q1",
                                       "{\"name\": \"old_call\", \"arguments\": "
                                       "{\"a\": 7}}",
                                       "<tool_response>\nR1\n</tool_response>",
                                       "Q2",
                                       NULL};
    static const char *const templates[] = {
        NULL, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
        "{{ xml_tools }}{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] "
        "%}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"};
    char got[8192];
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        prompt_of(got, sizeof got, templates[i], body);
        if (!holds_once(got, want)) fail_msg("%s: %s", templates[i], got);
    }
}

/* ---- functions, the former tools ---- */

#define FUNCTIONS                                                                                  \
    "\"functions\":[{\"name\":\"add\",\"parameters\":{\"type\":\"object\"}},{\"name\":\"now\"}]"

/* A request with functions gets its call in their form, and not more than one. */
static void functions(void **state)
{
    static const char two[] = "<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>"
                              "<tool_call>{\"name\":\"now\"}</tool_call>";
    static const struct {
        const char *fields, *text, *want;
    } rows[] = {
        {FUNCTIONS, two,
         "\"content\":null,\"function_call\":{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"},"},
        {FUNCTIONS, two, "\"finish_reason\":\"function_call\""},
        {FUNCTIONS ",\"stream\":true", two,
         "\"content\":null,\"function_call\":{\"name\":\"add\",\"arguments\":\"\"}}"},
        {FUNCTIONS ",\"stream\":true", two, "\"delta\":{\"function_call\":{\"arguments\":\""},
        {FUNCTIONS ",\"stream\":true", two, "\"finish_reason\":\"function_call\""},
        {FUNCTIONS ",\"function_call\":{\"name\":\"now\"}", "Hi.",
         "\"function_call\":{\"name\":\"now\""},
        {FUNCTIONS ",\"function_call\":\"none\"", "Hi.", "\"content\":\"Hi.\""},
        {FUNCTIONS ",\"function_call\":\"auto\"", "Hi.", "\"finish_reason\":\"stop\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[2048];
        server s = start(HERMES, NULL, NULL);
        set_script(rows[i].text);
        snprintf(body, sizeof body, "{" MESSAGES ",\"max_tokens\":200,%s}", rows[i].fields);
        rose_http_req *r = ask(body);
        if (r->status != 200 || strstr(fake_text(r), rows[i].want) == NULL ||
            strstr(fake_text(r), "tool_calls") != NULL)
            fail_msg("%s: %d %s lacks %s", rows[i].fields, r->status, fake_text(r), rows[i].want);
        fake_free(r);
        stop(&s);
    }
}

/* Messages of the former API, and refusals, as a template sees them. */
static void former_messages(void **state)
{
    static const char template[] =
        "{# <tool_call> #}{% for m in messages %}[{{ m.role }}|{{ m.content }}|"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
        "{{ c.id == messages[2].tool_call_id }}{% endfor %}]{% endfor %}{{ tools }}";
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},"
        "{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"add\","
        "\"arguments\":\"{\\\"a\\\": 1}\"}},{\"role\":\"function\",\"name\":\"add\",\"content\":"
        "\"2\"},{\"role\":\"assistant\",\"content\":null,\"refusal\":\"No.\"},"
        "{\"role\":\"assistant\",\"content\":\"Yes.\",\"refusal\":\"\"},"
        "{\"role\":\"user\",\"content\":\"y\"}]}";
    char got[4096];
    (void)state;
    prompt_of(got, sizeof got, template, body);
    if (strstr(got, "[user|x|][assistant|") == NULL || strstr(got, "add{\"a\": 1}True]") == NULL ||
        strstr(got, "[tool|2|][assistant|No.|][assistant|Yes.|][user|y|]") == NULL)
        fail_msg("%s", got);
}

/* ---- refusals ---- */

static void refusals(void **state)
{
    static const struct {
        const char *template, *fields, *param, *says;
    } rows[] = {
        {PLAIN, TOOLS, "tools", "--tool-call-parser none"},
        {PLAIN, TOOLS ",\"tool_choice\":\"required\"", "tools", "--tool-call-parser none"},
        {HERMES, "\"tools\":[{\"type\":\"web_search\"}],\"tool_choice\":\"required\"",
         "tool_choice", "none of the 'tools'"},
        {HERMES, TOOLS ",\"tool_choice\":{\"type\":\"web_search\"}", "tool_choice", "\\\"required"},
        {HERMES, TOOLS ",\"tool_choice\":\"some\"", "tool_choice", "\\\"required\\\""},
        {HERMES, TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}",
         "tool_choice", "'sub'"},
        {HERMES, TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice",
         "\\\"required\\\""},
        {HERMES, TOOLS ",\"parallel_tool_calls\":1", "parallel_tool_calls", "true or false"},
        {HERMES, "\"tools\":[{\"type\":\"function\"}]", "tools[0].function", "an object"},
        {HERMES, "\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name",
         "letters"},
        {HERMES, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]",
         "tools[0].function.name", "letters"},
        {HERMES,
         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]",
         "tools[0].function.parameters", "an object"},
        {HERMES, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":1}}]",
         "tools[0].function.strict", "true or"},
        {HERMES,
         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{\"type\":"
         "\"nothing\"}}}],"
         "\"tool_choice\":\"required\"",
         "tools", "#/type"},
        {HERMES, TOOLS ",\"tool_choice\":\"required\",\"regex\":\"a\"", "tool_choice",
         "exclude each other"},
        {HERMES,
         TOOLS ",\"tool_choice\":\"required\",\"response_format\":{\"type\":"
               "\"structural_tag\",\"format\":{\"type\":\"any_text\"}}",
         "tool_choice", "exclude each other"},
        {OPENED, "\"structured_outputs\":{\"json\":\"{\"}", "structured_outputs.json",
         "not valid JSON"},
        {OPENED, "\"structured_outputs\":{\"structural_tag\":{\"structures\":[],\"triggers\":[]}}",
         "structured_outputs.structural_tag", "'format'"},
        {THINKS, "\"include_reasoning\":1", "include_reasoning", "true or false"},
        {HERMES, "\"functions\":5", "functions", "a list of objects"},
        {HERMES, "\"functions\":[{}]", "tools[0].function.name", "letters"},
        {HERMES, FUNCTIONS "," TOOLS, "functions", "exclude each other"},
        {HERMES, FUNCTIONS ",\"function_call\":7", "function_call", "\\\"auto\\\""},
        {HERMES, FUNCTIONS ",\"function_call\":{\"name\":\"sub\"}", "tool_choice", "'sub'"},
        {HERMES,
         TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\","
               "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}]}}",
         "tool_choice", "allows the function 'sub'"},
        {HERMES, TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"all\"}",
         "tool_choice", "allowed_tools"},
        {HERMES,
         TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"required\",\"tools\":[]}",
         "tool_choice", "none of the 'tools'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char body[2048], param[128];
        const bool none = strcmp(rows[i].template, PLAIN) == 0;
        server s = start(rows[i].template, none ? "none" : NULL, NULL);
        snprintf(body, sizeof body, "{" MESSAGES ",%s}", rows[i].fields);
        snprintf(param, sizeof param, "\"param\":\"%s\"", rows[i].param);
        rose_http_req *r = ask(body);
        if (r->status != 400 || strstr(fake_text(r), param) == NULL ||
            strstr(fake_text(r), rows[i].says) == NULL)
            fail_msg("%s: %d %s", rows[i].fields, r->status, fake_text(r));
        fake_free(r);
        stop(&s);
    }
}

/* A strict function that no grammar can enforce is told to the client. */
static void strict_without_grammar(void **state)
{
    (void)state;
    server s = start(TEKKEN, NULL, NULL);
    set_script("Hi");
    rose_http_req *r = ask("{" MESSAGES "," STRICT "}");
    assert_int_equal(r->status, 200);
    assert_non_null(strstr(r->headers, "X-Ignored-Fields: tools[0].function.strict"));
    fake_free(r);
    stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(replies),
                                       cmocka_unit_test(short_ids),
                                       cmocka_unit_test(many_choices),
                                       cmocka_unit_test(reasoning_tokens),
                                       cmocka_unit_test(demands),
                                       cmocka_unit_test(tags),
                                       cmocka_unit_test(described),
                                       cmocka_unit_test(functions),
                                       cmocka_unit_test(former_messages),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(strict_without_grammar)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
