/* Chat templates of models: where they are found, what they make of the forms of messages, and that
 * no message can contain a control token. The templates here have the shapes of the families'. */
#include "tokenizer/tok_fixture.h"

#include "base/json.h"
#include "chat/chat.h"

/* ---- a tokenizer: ids 0 .. 255 are bytes, the control tokens of all families follow ---- */

static const char *const controls[] = {"<|im_start|>",
                                       "<|im_end|>",
                                       "<|eot_id|>",
                                       "<|start_header_id|>",
                                       "<|end_header_id|>",
                                       "<|begin_of_text|>",
                                       "<start_of_turn>",
                                       "<end_of_turn>",
                                       "[INST]",
                                       "[/INST]",
                                       "[TOOL_RESULTS]",
                                       "<s>",
                                       "</s>",
                                       "<|end|>",
                                       "<|user|>",
                                       "<|assistant|>",
                                       "<|system|>",
                                       "<|tool|>",
                                       "<|endoftext|>"};
enum { N_CONTROLS = sizeof controls / sizeof *controls, FIRST = 256 };

/* GPT-2's letter of a byte: itself where it can be seen, else one from U+0100 on. */
static rose_json *letter_of(unsigned byte)
{
    unsigned code = 256;
    char s[3] = {0};
    for (unsigned b = 0; b <= byte; b++) {
        const bool seen = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte && seen) code = b;
        if (b < byte && !seen) code++;
    }
    s[0] = (char)(code < 128 ? code : 0xC0 | code >> 6);
    if (code >= 128) s[1] = (char)(0x80 | (code & 63));
    return rose_json_string(s);
}

/* The tokenizer would put <s> before a text, as that of Llama 2 does. */
static void write_tokenizer(temp_dir *d)
{
    rose_json *added = rose_json_array(), *vocab = rose_json_object();
    for (unsigned b = 0; b < 256; b++) {
        rose_json *letter = letter_of(b);
        rose_json_set_new(vocab, rose_json_text(letter), rose_json_integer((int64_t)b));
        rose_json_decref(letter);
    }
    for (int i = 0; i < N_CONTROLS; i++)
        rose_json_append_new(added, rose_json_pack("{s:i,s:s,s:b,s:b}", "id", FIRST + i, "content",
                                                   controls[i], "special", 1, "normalized", 0));
    rose_json *root = rose_json_pack(
        "{s:o,s:n,s:{s:s,s:b,s:b},s:{s:s},s:{s:s,s:[{s:{s:s,s:i}},{s:{s:s,s:i}}],s:[],"
        "s:{s:{s:s,s:[i],s:[s]}}},s:{s:s,s:o,s:[]}}",
        "added_tokens", added, "normalizer", "pre_tokenizer", "type", "ByteLevel",
        "add_prefix_space", 0, "use_regex", 0, "decoder", "type", "ByteLevel", "post_processor",
        "type", "TemplateProcessing", "single", "SpecialToken", "id", "<s>", "type_id", 0,
        "Sequence", "id", "A", "type_id", 0, "pair", "special_tokens", "<s>", "id", "<s>", "ids",
        FIRST + 11, "tokens", "<s>", "model", "type", "BPE", "vocab", vocab, "merges");
    assert_non_null(root);
    char *text = rose_json_dumps(root, ROSE_JSON_COMPACT);
    temp_write(d, "tokenizer.json", text, strlen(text));
    free(text);
    rose_json_decref(root);
}

/* ---- a model folder and what a test asks of it ---- */

typedef struct model {
    temp_dir dir;
    rose_tokenizer *tok;
    rose_encoder *enc;
    rose_chat *chat;
} model;

static void model_make(model *m)
{
    rose_err err = {""};
    *m = (model){0};
    temp_make(&m->dir);
    write_tokenizer(&m->dir);
    if (rose_tokenizer_open(&m->tok, m->dir.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_int_equal(rose_encoder_create(&m->enc, m->tok, &err), ROSE_OK);
}

static void put_file(model *m, const char *name, const char *text)
{
    temp_write(&m->dir, name, text, strlen(text));
}

static void open_chat(model *m, const char *given)
{
    rose_err err = {""};
    rose_chat_close(m->chat);
    if (rose_chat_open(&m->chat, m->dir.path, given, &err) != ROSE_OK) fail_msg("%s", err.msg);
}

static void model_free(model *m)
{
    rose_chat_close(m->chat);
    rose_encoder_destroy(m->enc);
    rose_tokenizer_close(m->tok);
    temp_remove(&m->dir);
}

static rose_json *parse(const char *text)
{
    rose_json_error e;
    rose_json *v = NULL;
    if (rose_json_parse(&v, text, strlen(text), ROSE_JSON_NUL, &e) != ROSE_OK)
        fail_msg("%s: %s", e.text, text);
    return v;
}

/* A request: {"messages", "tools", "documents", "kwargs", "more", "continue"}. */
static rose_status ask(const model *m, const rose_json *q, rose_template_text *text, rose_ids *ids,
                       rose_err *err)
{
    const rose_template_input in = {
        .messages = rose_json_get(q, "messages"),
        .tools = rose_json_get(q, "tools"),
        .documents = rose_json_get(q, "documents"),
        .kwargs = rose_json_get(q, "kwargs"),
        .add_generation_prompt = rose_json_is_true(rose_json_get(q, "more")),
        .continue_final_message = rose_json_is_true(rose_json_get(q, "continue")),
        .now_s = 1790000000,
        .utc = true};
    rose_template_text own;
    rose_status st = rose_chat_render(m->chat, &in, &own, err);
    if (st == ROSE_OK) st = rose_chat_encode(m->enc, &own, ids, err);
    if (text != NULL)
        *text = own;
    else
        rose_template_text_free(&own);
    return st;
}

static void expect_text(const model *m, const char *request, const char *want)
{
    rose_json *q = parse(request);
    rose_template_text text = {0};
    rose_ids ids = {0}, plain = {0};
    rose_err err = {""};
    if (ask(m, q, &text, &ids, &err) != ROSE_OK) fail_msg("%s: %s", request, err.msg);
    assert_string_equal(text.bytes, want);
    /* No message here spells a control token, so the ids are those of the text. */
    assert_int_equal(rose_encode(m->enc, text.bytes, text.len, 0, &plain, &err), ROSE_OK);
    assert_int_equal(ids.len, plain.len);
    assert_memory_equal(ids.data, plain.data, 4 * ids.len);
    rose_ids_free(&ids);
    rose_ids_free(&plain);
    rose_template_text_free(&text);
    rose_json_decref(q);
}

static void expect_error(const model *m, const char *request, rose_status st, const char *says)
{
    rose_json *q = parse(request);
    rose_template_text text;
    rose_ids ids = {0};
    rose_err err = {""};
    assert_int_equal(ask(m, q, &text, &ids, &err), st);
    if (strstr(err.msg, says) == NULL) fail_msg("%s: %s", request, err.msg);
    assert_null(text.bytes);
    assert_int_equal(ids.len, 0);
    rose_json_decref(q);
}

/* ---- control tokens ---- */

#define CALLS                                                                                      \
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}"             \
    "{{ c.function|tojson }}{% endfor %}{% endif %}"
#define VARIABLES                                                                                  \
    "{{ date_string or '' }}{% for t in tools or [] %}{{ t|tojson(indent=2) }}{{ "                 \
    "t.function.name }}{% endfor %}{% for d in documents or [] %}{{ d.text }}{% endfor %}"

/* name, template, the control tokens that it writes for a system and a user message and the start
 * of a reply. */
static const char *const families[][3] = {
    {"ChatML: Qwen, SmolLM",
     VARIABLES "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}" CALLS
               "{{ m.name }}<|im_end|>\n{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
     "<|im_start|><|im_end|><|im_start|><|im_end|><|im_start|>"},
    {"Llama 3",
     "{{ bos_token }}" VARIABLES
     "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'+ "
     "m['content'] | trim + '<|eot_id|>' }}" CALLS "{{ m.name }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
     "{% endif %}",
     "<s><|start_header_id|><|end_header_id|><|eot_id|><|start_header_id|><|end_header_id|>"
     "<|eot_id|><|start_header_id|><|end_header_id|>"},
    {"Mistral",
     "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content ~ "
     "eos_token }}" CALLS "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}{{ m.name }}"
     "{% else %}[INST]" VARIABLES "{{ m.content }}{{ m.name }}[/INST]{% endif %}{% endfor %}",
     "<s>[INST][/INST][INST][/INST]"},
    {"Gemma",
     "{{ bos_token }}" VARIABLES
     "{% for m in messages %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
     "{{ '<start_of_turn>' + role + '\n' + (m.content | trim) }}" CALLS
     "{{ m.name }}{{ '<end_of_turn>\n' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
     "<s><start_of_turn><end_of_turn><start_of_turn><end_of_turn><start_of_turn>"},
    {"Phi",
     VARIABLES "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}" CALLS
               "{{ m.name }}{{ '<|end|>' }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}"
               "{% endif %}",
     "<|system|><|end|><|user|><|end|><|assistant|>"},
    {"SmolLM3, Llama 2",
     "{% for m in messages %}{{ bos_token + '[INST] ' if m.role == 'user' else '' }}"
     "{{ m.content.split('</think>')[-1].strip() | replace('\n', '<|') }}" CALLS VARIABLES
     "{{ m.name | upper | lower }}{{ ' [/INST]' if m.role == 'user' }}{% endfor %}",
     "<s>[INST][/INST]"},
};

static const char settings[] = "{\"bos_token\": {\"content\": \"<s>\", \"lstrip\": false}, "
                               "\"eos_token\": \"</s>\", \"pad_token\": null}";

/* A request in which x stands at every place that a client can fill. */
static rose_json *hostile(const char *x, bool in_role)
{
    rose_json *q = parse("{\"more\": true}");
    const char *role = in_role ? x : "user";
    rose_json_set_new(q, "messages",
                      rose_json_pack("[{s:s,s:s},{s:s,s:s,s:s}]", "role", "system", "content", x,
                                     "role", role, "content", x, "name", x));
    if (in_role) return q;
    rose_json *args = rose_json_pack("{s:s,s:s}", "a", x, x, "b");
    char *text = rose_json_dumps(args, 0);
    rose_json_append_new(rose_json_get(q, "messages"),
                         rose_json_pack("{s:s,s:s,s:[{s:s,s:s,s:{s:s,s:s}}]}", "role", "assistant",
                                        "content", x, "tool_calls", "id", x, "type", "function",
                                        "function", "name", x, "arguments", text));
    rose_json_append_new(rose_json_get(q, "messages"),
                         rose_json_pack("{s:s,s:s,s:s,s:s}", "role", "tool", "content", x, "name",
                                        x, "tool_call_id", x));
    rose_json_set_new(q, "tools",
                      rose_json_pack("[{s:s,s:{s:s,s:s,s:O}}]", "type", "function", "function",
                                     "name", x, "description", x, "parameters", args));
    rose_json_set_new(q, "documents", rose_json_pack("[{s:s}]", "text", x));
    rose_json_set_new(
        q, "kwargs", rose_json_pack("{s:s,s:s,s:s}", "date_string", x, "bos_token", x, "other", x));
    free(text);
    rose_json_decref(args);
    return q;
}

/* The texts of the control tokens among the ids of a request; owned. */
static char *written(const model *m, const rose_json *q)
{
    rose_buf out = {0};
    rose_ids ids = {0};
    rose_err err = {""};
    if (ask(m, q, NULL, &ids, &err) != ROSE_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < ids.len; i++) {
        if (ids.data[i] < FIRST) continue;
        const char *text = controls[ids.data[i] - FIRST];
        assert_int_equal(rose_buf_add(&out, text, strlen(text)), ROSE_OK);
    }
    rose_ids_free(&ids);
    assert_non_null(rose_buf_str(&out));
    return out.data;
}

static void compare(const model *m, const char *family, const char *x, bool in_role,
                    const char *want)
{
    rose_json *q = hostile(x, in_role);
    char *got = written(m, q);
    if (strcmp(got, want) != 0) fail_msg("%s: %s: %s, not %s", family, x, got, want);
    free(got);
    rose_json_decref(q);
}

static void check_family(model *m, const char *const family[3])
{
    char both[128];
    put_file(m, "chat_template.jinja", family[1]);
    open_chat(m, NULL);
    rose_json *q = parse("{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": "
                         "\"user\", \"content\": \"u\"}], \"more\": true}");
    char *got = written(m, q);
    assert_string_equal(got, family[2]);
    free(got);
    rose_json_decref(q);
    for (int in_role = 0; in_role < 2; in_role++) {
        q = hostile("Q", in_role != 0);
        char *want = written(m, q);
        for (int i = 0; i < N_CONTROLS; i++) {
            compare(m, family[0], controls[i], in_role != 0, want);
            /* halves, which the template's own text could complete */
            snprintf(both, sizeof both, "%s|> %s <|", controls[i] + 2, controls[i]);
            compare(m, family[0], both, in_role != 0, want);
            snprintf(both, sizeof both, "|>%s\n%s<|end", controls[i], controls[i]);
            compare(m, family[0], both, in_role != 0, want);
        }
        compare(m, family[0], "end", in_role != 0, want);
        compare(m, family[0], "endoftext", in_role != 0, want);
        free(want);
        rose_json_decref(q);
    }
}

static void no_message_smuggles(void **state)
{
    model m;
    (void)state;
    model_make(&m);
    put_file(&m, "tokenizer_config.json", settings);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        check_family(&m, families[i]);
    model_free(&m);
}

/* ---- the forms of messages ---- */

#define TWO_PARTS                                                                                  \
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "   \
    "{\"type\": \"text\", \"text\": \"b\"}]}]}"
#define ONE_TEXT "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}"

static void content_takes_the_template_s_form(void **state)
{
    model m;
    (void)state;
    model_make(&m);
    open_chat(&m, "{% for m in messages %}{{ m.role + m.content }}{% endfor %}");
    expect_text(&m, TWO_PARTS, "usera\nb");
    expect_text(&m, ONE_TEXT, "usera");
    open_chat(&m, "{% for m in messages %}{{ m.content }}{% endfor %}"); /* would print a list */
    expect_text(&m, TWO_PARTS, "a\nb");
    open_chat(&m, "{% for m in messages %}{% if m.content is string %}={{ m.content }}{% else %}"
                  "{% for p in m.content %}+{{ p.text }}{% endfor %}{% endif %}{% endfor %}");
    expect_text(&m, TWO_PARTS, "+a+b");
    expect_text(&m, ONE_TEXT, "=a");
    open_chat(&m, "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}+"
                  "{{ p.text }}{% endif %}{% endfor %}{% endfor %}");
    expect_text(&m, TWO_PARTS, "+a+b");
    expect_text(&m, ONE_TEXT, "+a");
    model_free(&m);
}

/* A reply has its reasoning under two names; whichever comes back, the template sees it. */
static void reasoning_has_two_names(void **state)
{
    model m;
    (void)state;
    model_make(&m);
    open_chat(&m, "{% for m in messages %}{{ m.reasoning_content }},{% endfor %}");
    expect_text(
        &m,
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"reasoning\": \"a\"}, "
        "{\"role\": \"assistant\", \"content\": \"x\", \"reasoning\": \"a\", "
        "\"reasoning_content\": \"b\"}, {\"role\": \"assistant\", \"content\": \"x\", "
        "\"reasoning\": null}]}",
        "a,b,,");
    model_free(&m);
}

static void tool_calls_become_objects(void **state)
{
    model m;
    (void)state;
    model_make(&m);
    open_chat(&m, "{% for m in messages %}{% if m.tool_calls is defined %}{% for c in m.tool_calls "
                  "%}{{ c.function.name }} {{ c.function.arguments.city }}{{ "
                  "c.function.arguments|tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
                  "{% endfor %}");
    expect_text(&m,
                "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
                "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                "\"{\\\"city\\\": \\\"Ulm\\\"}\"}}, {\"function\": {\"name\": \"g\", "
                "\"arguments\": \"\"}}, {\"function\": {\"name\": \"h\", \"arguments\": "
                "{\"city\": 1}}}, {\"function\": {\"name\": \"i\"}}, {\"function\": {\"name\": "
                "\"j\", \"arguments\": null}}]}]}",
                "f Ulm{\"city\": \"Ulm\"}g {}h 1{\"city\": 1}i {}j {}");
    expect_text(&m,
                "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": "
                "[]}]}",
                "x");
    model_free(&m);
}

/* ---- what the server sent comes back ---- */

#define FOR_EACH(inside)  "{% for m in messages %}" inside "{% endfor %}"
#define EACH_CALL(inside) "{% for c in m.tool_calls or [] %}" inside "{% endfor %}"

/* Templates by what they take. */
#define TOJSON                                                                                     \
    FOR_EACH("[{{ m.role }}]{{ m.content }}" EACH_CALL("<{{ c.function.arguments|tojson }}>"))
#define ADDS                                                                                       \
    FOR_EACH("{{ '[' + m.role + ']' + m.content }}" EACH_CALL("<{{ c.function.arguments }}>"))
#define ITEMS                                                                                      \
    FOR_EACH("[{{ m.role }}]{{ m.content or '' }}" EACH_CALL(                                      \
        "{% for k, v in c.function.arguments|items %}{{ k }}={{ v }};{% endfor %}"))
#define DEEPSEEK                                                                                   \
    FOR_EACH("[{{ m.role }}]{% if m.content is none %}" EACH_CALL(                                 \
        "<{{ c.function.name + ' ' + c.function.arguments }}>") "{% else %}{{ m.content }}{% "     \
                                                                "endif %}")
#define PARTS FOR_EACH("[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}")

static const struct {
    const char *template;
    const char *arguments; /* of the assistant's call; NULL: it has none */
    const char *want;      /* after [user]x */
} replies[] = {
    {TOJSON, NULL, "[assistant]"},
    {ADDS, NULL, "[assistant]"},
    {ITEMS, NULL, "[assistant]"},
    {DEEPSEEK, NULL, "[assistant]"},
    {PARTS, NULL, "[assistant]"},
    {TOJSON, "", "[assistant]<{}>"},
    {TOJSON, "{\"a\": 1}", "[assistant]<{\"a\": 1}>"},
    {ITEMS, "{\"a\": 1}", "[assistant]a=1;"},
    {DEEPSEEK, "{\"a\": 1}", "[assistant]<f {\"a\": 1}>"},
    {DEEPSEEK, "{\"a\": 1,", "[assistant]<f {\"a\": 1,>"}, /* it takes text alone */
    {TOJSON, "{\"a\": 12345678901234567890}", "[assistant]<{\"a\": 12345678901234567890}>"},
    {ITEMS, "{\"a\": 12345678901234567890}", "[assistant]a=12345678901234567890;"},
    {TOJSON, "{\"b\": 1, \"b\": 2}", "[assistant]<{\"b\": 2}>"},
    {TOJSON, "{\"a\": \"line1\nline2\"}", "[assistant]<{\"a\": \"line1\\nline2\"}>"},
    {TOJSON, "{\"a\": 98,}", "[assistant]<{\"a\": 98}>"},
    {TOJSON, "{\"a\": \"cut by", "[assistant]<{\"a\": \"cut by\"}>"},
    {TOJSON, "{\"a\": NaN}", "[assistant]<{\"a\": NaN}>"},
    {ITEMS, "{\"a\": 1, \"b\": [2, tr", "[assistant]a=1;b=[2];"},
    {TOJSON, "{'a': 1}", "[assistant]<\"{'a': 1}\">"}, /* no JSON: it stays text, ... */
    {ADDS, "{'a': 1}", "[assistant]<{'a': 1}>"},
    {ITEMS, "{'a': 1}", "[assistant]arguments={'a': 1};"}, /* which some templates cannot take */
};

/* content: null if `null`, else there is none. */
static void expect_reply(const model *m, const char *arguments, bool null, const char *want)
{
    rose_json *reply = rose_json_pack("{s:s}", "role", "assistant");
    char text[256];
    if (null) rose_json_set_new(reply, "content", rose_json_null());
    if (arguments != NULL)
        rose_json_set_new(reply, "tool_calls",
                          rose_json_pack("[{s:s,s:{s:s,s:s}}]", "id", "abcdefghi", "function",
                                         "name", "f", "arguments", arguments));
    rose_json *q =
        rose_json_pack("{s:[{s:s,s:s},o]}", "messages", "role", "user", "content", "x", reply);
    char *request = rose_json_dumps(q, 0);
    assert_non_null(request);
    snprintf(text, sizeof text, "[user]x%s", want);
    expect_text(m, request, text);
    free(request);
    rose_json_decref(q);
}

static void replies_come_back(void **state)
{
    model m;
    (void)state;
    model_make(&m);
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        open_chat(&m, replies[i].template);
        expect_reply(&m, replies[i].arguments, true, replies[i].want);
        expect_reply(&m, replies[i].arguments, false, replies[i].want);
    }
    model_free(&m);
}

/* request, status, a part of the message */
static const struct {
    const char *request;
    rose_status st;
    const char *says;
} wrong[] = {
    {"{\"messages\": []}", ROSE_E_INVAL, "at least one message"},
    {"{\"messages\": {}}", ROSE_E_INVAL, "at least one message"},
    {"{\"messages\": [{\"role\": \"user\"}, 1]}", ROSE_E_INVAL, "messages[1] must be an object"},
    {"{\"messages\": [{\"content\": \"x\"}]}", ROSE_E_INVAL, "messages[0].role must be a string"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", ROSE_E_INVAL,
     "messages[0].content must be a string or a list"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [\"x\"]}]}", ROSE_E_INVAL,
     "an object with a 'type'"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}", ROSE_E_INVAL,
     "needs a string 'text'"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
     ROSE_E_UNSUPPORTED, "'image_url'"},
    {"{\"messages\": [{\"role\": \"assistant\", \"refusal\": \"no\"}]}", ROSE_E_UNSUPPORTED,
     "messages[0].refusal"},
    {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": {}}]}", ROSE_E_INVAL,
     "tool_calls must be a list"},
    {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"x\"}]}]}", ROSE_E_INVAL,
     "tool_calls[0] needs a 'function'"},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"more\": true, \"continue\": "
     "true}",
     ROSE_E_INVAL, "exclude each other"},
    {"{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}", ROSE_E_INVAL,
     "line 1: roles must alternate"},
};

static void wrong_messages(void **state)
{
    model m;
    (void)state;
    model_make(&m);
    open_chat(&m, "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('roles must "
                  "alternate') }}{% endif %}{{ m.content }}{% endfor %}");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_error(&m, wrong[i].request, wrong[i].st, wrong[i].says);
    model_free(&m);
}

static void long_arguments_are_refused(void **state)
{
    model m;
    rose_ids ids = {0};
    rose_err err = {""};
    const size_t n = (1 << 20) + 1;
    char *text = malloc(n + 1);
    (void)state;
    model_make(&m);
    open_chat(&m, "{{ messages[0].content }}");
    memset(text, ' ', n);
    text[n] = '\0';
    rose_json *q = rose_json_pack("{s:[{s:s,s:[{s:{s:s,s:s}}]}]}", "messages", "role", "assistant",
                                  "tool_calls", "function", "name", "f", "arguments", text);
    assert_int_equal(ask(&m, q, NULL, &ids, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "over 1048576 bytes"));
    rose_json_decref(q);
    free(text);
    model_free(&m);
}

/* ---- tools that the template does not show ---- */

#define TOOLS_BEGIN                                                                                \
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "     \
    "provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
#define TOOLS_END                                                                                  \
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments " \
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "          \
    "\"arguments\": <args-json-object>}\n</tool_call>"
#define TOOL "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}"

/* Each message as [role]content. */
static void describe_as(const char *messages, const char *tools, const char *want)
{
    rose_json_error e;
    rose_json *in = NULL, *list = NULL, *out = NULL;
    rose_buf text = {0};
    rose_err err = {""};
    assert_int_equal(rose_json_parse(&in, messages, strlen(messages), 0, &e), ROSE_OK);
    if (tools != NULL) rose_json_parse(&list, tools, strlen(tools), 0, &e);
    if (rose_chat_describe(&out, in, list, &err) != ROSE_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < rose_json_count(out); i++) {
        const rose_json *m = rose_json_at(out, i);
        const char *content = rose_json_text(rose_json_get(m, "content"));
        assert_null(rose_json_get(m, "tool_calls"));
        rose_buf_addf(&text, "[%s]%s", rose_json_text(rose_json_get(m, "role")),
                      content != NULL ? content : "null");
    }
    assert_string_equal(rose_buf_str(&text), want);
    rose_buf_free(&text);
    rose_json_decref(in);
    rose_json_decref(list);
    rose_json_decref(out);
}

static void tools_are_described(void **state)
{
    (void)state;
    describe_as("[{\"role\": \"user\", \"content\": \"x\"}]", NULL, "[user]x");
    describe_as("[{\"role\": \"user\", \"content\": \"x\"}]",
                "[" TOOL ", {\"function\": \"\xc3\xa9\"}]",
                "[system]" TOOLS_BEGIN TOOL "\n{\"function\": \"\xc3\xa9\"}" TOOLS_END "[user]x");
    describe_as("[{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"Be\"}, "
                "{\"type\": \"text\", \"text\": \"kind.\"}]}, {\"role\": \"user\", \"content\": "
                "\"x\"}, {\"role\": \"system\", \"content\": \"y\"}]",
                "[" TOOL "]",
                "[system]Be\nkind.\n\n" TOOLS_BEGIN TOOL TOOLS_END "[user]x[system]y");
    describe_as("[{\"role\": \"developer\", \"content\": \"\"}, {\"role\": \"user\", \"content\": "
                "\"x\"}]",
                "[" TOOL "]", "[developer]" TOOLS_BEGIN TOOL TOOLS_END "[user]x");
    /* calls and results, also without tools in this request */
    describe_as(
        "[{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": null, "
        "\"tool_calls\": [{\"function\": {\"name\": \"f\\\"\", \"arguments\": \"{\\\"a\\\": "
        "[1]}\"}}, "
        "{\"function\": {\"name\": \"g\", \"arguments\": \"\"}}]}, {\"role\": \"tool\", "
        "\"content\": "
        "\"1\"}, {\"role\": \"tool\", \"content\": [{\"type\": \"text\", \"text\": \"2\"}]}, "
        "{\"role\": "
        "\"assistant\", \"content\": \"Hm\", \"tool_calls\": [{\"function\": {\"name\": \"h\"}}]}, "
        "{\"role\": \"function\", \"content\": null}, {\"role\": \"user\", \"content\": \"y\"}]",
        NULL,
        "[user]x[assistant]<tool_call>\n{\"name\": \"f\\\"\", \"arguments\": {\"a\": "
        "[1]}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": "
        "{}}\n</tool_call>[user]<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</"
        "tool_response>[assistant]Hm\n<tool_call>\n{\"name\": \"h\", \"arguments\": "
        "{}}\n</tool_call>[user]<tool_response>\n\n</tool_response>\ny");
}

/* Which templates need that, by the option that names a format. */
static void templates_without_tools(void **state)
{
    enum { HERMES = ROSE_CALLS_HERMES, NONE = ROSE_CALLS_NONE };
    static const struct {
        const char *template, *parser;
        int format;
        bool describe;
    } rows[] = {
        {NULL, "auto", HERMES, true},
        {NULL, "hermes", HERMES, true},
        {NULL, "pythonic", NONE, false},
        {NULL, "none", NONE, false},
        {"{{ messages[0].content }}", "auto", HERMES, true},
        {"{{ messages[0].content }}", "hermes", HERMES, true},
        {"{{ messages[0].content }}", "pythonic", ROSE_CALLS_PYTHONIC, false},
        {"{{ messages[0].content }}", "none", NONE, false},
        {"{# <tool_call> #}{{ tools }}", "auto", HERMES, false},
        {"{# <tool_call> #}{{ xml_tools }}", "auto", HERMES, true}, /* in another variable */
        {"{# <|python_tag|> #}{{ xml_tools }}", "auto", HERMES, true},
        {"{{ tools }} as <|call|>", "auto", HERMES, true}, /* in another format */
        {"{{ tools }} as <|call|>", "hermes", HERMES, false},
        {"{# [TOOL_CALLS] #}{{ tools }}", "auto", ROSE_CALLS_MISTRAL, false},
        {"{# [TOOL_CALLS] #}{{ raise_exception('no') }}", "auto", ROSE_CALLS_MISTRAL, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rose_chat *c = NULL;
        rose_err err = {""};
        bool describe;
        if (rows[i].template != NULL)
            assert_int_equal(rose_chat_open(&c, "nowhere", rows[i].template, &err), ROSE_OK);
        const rose_calls_format f = rose_chat_calls(c, rows[i].parser, &describe);
        if ((int)f != rows[i].format || describe != rows[i].describe)
            fail_msg("%s with %s: format %d, describe %d", rows[i].template, rows[i].parser, f,
                     describe);
        rose_chat_close(c);
    }
}

/* ---- where templates are found ---- */

static void expect_source(model *m, const char *given, const char *text, const char *source)
{
    open_chat(m, given);
    if (text == NULL) {
        assert_null(m->chat);
        return;
    }
    expect_text(m, ONE_TEXT, text);
    if (strstr(rose_chat_source(m->chat), source) == NULL)
        fail_msg("%s", rose_chat_source(m->chat));
}

static void expect_texts(const model *m, const char *text, const char *eos, const char *class)
{
    size_t len;
    const char *got = rose_chat_text(m->chat, &len);
    assert_int_equal(len, strlen(text));
    assert_memory_equal(got, text, len);
    assert_string_equal(rose_json_text(rose_json_get(rose_chat_tokens(m->chat), "eos_token")), eos);
    assert_string_equal(rose_chat_class(m->chat), class);
}

static void sources_in_order(void **state)
{
    model m;
    char path[128];
    (void)state;
    model_make(&m);
    expect_source(&m, NULL, NULL, NULL);
    expect_source(&m, "plain", NULL, NULL);
    expect_source(&m, "chatml", "<|im_start|>user\na<|im_end|>\n", "--chat-template");
    expect_source(&m, "given{{ bos_token }}", "given", "--chat-template");
    put_file(&m, "special_tokens_map.json", "{\"bos_token\": \"map\", \"eos_token\": \"end\"}");
    put_file(&m, "tokenizer_config.json",
             "{\"tokenizer_class\": \"T\", \"bos_token\": \"<s>\", \"chat_template\": [{"
             "\"name\": \"default\", \"template\": "
             "\"first\"}, {\"name\": \"tool_use\", \"template\": \"tools\"}, {\"name\": "
             "\"default\", \"template\": \"{{ bos_token }} config "
             "{{ eos_token }}\"}, {\"name\": \"rag\", \"template\": \"{%\"}]}");
    expect_source(&m, NULL, "<s> config end", "tokenizer_config.json");
    expect_texts(&m, "{{ bos_token }} config {{ eos_token }}", "end", "T");
    expect_text(&m,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"a\": "
                "1}]}",
                "tools");
    expect_text(&m, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": []}",
                "<s> config end");
    put_file(&m, "chat_template.json", "{\"chat_template\": \"json {{ eos_token }}\"}");
    expect_source(&m, NULL, "json end", "chat_template.json");
    put_file(&m, "chat_template.jinja", "jinja {{ bos_token }}\n");
    expect_source(&m, NULL, "jinja <s>", "chat_template.jinja");
    expect_source(&m, "given{{ bos_token }}", "given<s>", "--chat-template");
    put_file(&m, "other.txt", "file {{ messages[0].content }}");
    snprintf(path, sizeof path, "%s/other.txt", m.dir.path);
    expect_source(&m, path, "file a", "other.txt");
    expect_source(&m, "plain", NULL, NULL);
    model_free(&m);
}

static void expect_no_chat(const model *m, const char *given, rose_status st, const char *says)
{
    rose_err err = {""};
    rose_chat *c = (rose_chat *)&err;
    assert_int_equal(rose_chat_open(&c, m->dir.path, given, &err), st);
    assert_null(c);
    if (strstr(err.msg, says) == NULL) fail_msg("%s", err.msg);
}

/* The model's own template cannot be run: the model opens, and a chat gets the reason. */
static void expect_refusal(const model *m, const char *says)
{
    rose_err err = {""};
    rose_chat *c;
    rose_template_text text;
    assert_int_equal(rose_chat_open(&c, m->dir.path, NULL, &err), ROSE_OK);
    rose_json *messages = rose_json_pack("[{s:s,s:s}]", "role", "user", "content", "x");
    const rose_template_input in = {.messages = messages};
    assert_int_equal(rose_chat_render(c, &in, &text, &err), ROSE_E_INVAL);
    if (strstr(err.msg, "the model's template does not work here") == NULL ||
        strstr(err.msg, says) == NULL)
        fail_msg("%s", err.msg);
    rose_json_decref(messages);
    rose_chat_close(c);
}

static void bad_sources(void **state)
{
    model m;
    (void)state;
    model_make(&m);
    expect_no_chat(&m, "llama3", ROSE_E_NOTFOUND, "'llama3': there is no such file");
    expect_no_chat(&m, "a\n{% if %}", ROSE_E_FORMAT, "--chat-template: chat template, line 2");
    put_file(&m, "tokenizer_config.json", "{\"chat_template\": 5}");
    expect_no_chat(&m, NULL, ROSE_E_FORMAT, "must be a string or a list");
    put_file(&m, "tokenizer_config.json",
             "{\"chat_template\": [{\"name\": \"rag\", \"template\": "
             "\"x\"}]}");
    expect_no_chat(&m, NULL, ROSE_E_FORMAT, "'default'");
    put_file(&m, "tokenizer_config.json", "{\"chat_template\": [5]}");
    expect_no_chat(&m, NULL, ROSE_E_FORMAT, "chat_template[0]");
    put_file(&m, "tokenizer_config.json", "[]");
    expect_no_chat(&m, NULL, ROSE_E_FORMAT,
                   "tokenizer_config.json: the top level is not an object");
    put_file(&m, "tokenizer_config.json", "{");
    expect_no_chat(&m, NULL, ROSE_E_FORMAT, "tokenizer_config.json: not valid JSON");
    put_file(&m, "tokenizer_config.json", "{}");
    put_file(&m, "chat_template.jinja", "{% include 'x' %}");
    expect_refusal(&m, "chat_template.jinja: chat template, line 1");
    put_file(&m, "chat_template.jinja", "{% for \"\\");
    expect_refusal(&m, "line 1");
    model_free(&m);
}

/* ---- GGUF metadata ---- */

static void put(rose_buf *b, const void *bytes, size_t n)
{
    assert_int_equal(rose_buf_add(b, bytes, n), ROSE_OK);
}

static void put_text(rose_buf *b, const char *text)
{
    const uint64_t n = strlen(text);
    put(b, &n, sizeof n);
    put(b, text, n);
}

static void put_string(rose_buf *b, const char *key, const char *value)
{
    put_text(b, key);
    put(b, &(uint32_t){8}, 4);
    put_text(b, value);
}

static void gguf_metadata(void **state)
{
    static const char *const tokens[] = {"a", "</s>", "<s>"};
    model m;
    rose_buf b = {0};
    char path[128];
    rose_err err = {""};
    (void)state;
    model_make(&m);
    put(&b, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0", 24);
    put_string(&b, "tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
    put_string(&b, "tokenizer.chat_template.tool_use", "tools{{ eos_token }}");
    put_text(&b, "tokenizer.ggml.bos_token_id");
    put(&b, (const uint32_t[]){4, 2}, 8);
    put_text(&b, "tokenizer.ggml.eos_token_id");
    put(&b, (const uint32_t[]){4, 1}, 8);
    put_text(&b, "tokenizer.ggml.tokens");
    put(&b, (const uint32_t[]){9, 8, 3, 0}, 16);
    for (int i = 0; i < 3; i++)
        put_text(&b, tokens[i]);
    temp_write(&m.dir, "model.gguf", b.data, b.len);
    rose_buf_free(&b);
    snprintf(path, sizeof path, "%s/model.gguf", m.dir.path);
    if (rose_chat_open(&m.chat, path, NULL, &err) != ROSE_OK) fail_msg("%s", err.msg);
    expect_text(&m, ONE_TEXT, "<s>a");
    expect_text(&m,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"a\": "
                "1}]}",
                "tools</s>");
    rose_chat_close(m.chat);
    if (rose_chat_open(&m.chat, path, "own {{ eos_token }}", &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    expect_text(&m, ONE_TEXT, "own </s>");
    model_free(&m);
}

/* ---- the rest of the interface ---- */

static void turn_end(void **state)
{
    model m;
    rose_arch a = {.vocab_size = FIRST + N_CONTROLS, .n_eos = 1, .eos_ids = {7}};
    (void)state;
    model_make(&m);
    rose_chat_add_eos(NULL, m.tok, &a);
    assert_int_equal(a.n_eos, 1);
    put_file(&m, "tokenizer_config.json",
             "{\"eos_token\": \"<|im_end|>\", \"chat_template\": \"x\"}");
    open_chat(&m, NULL);
    for (int twice = 0; twice < 2; twice++)
        rose_chat_add_eos(m.chat, m.tok, &a);
    assert_int_equal(a.n_eos, 2);
    assert_int_equal(a.eos_ids[1], FIRST + 1);
    a = (rose_arch){.vocab_size = FIRST}; /* the model has no such id */
    rose_chat_add_eos(m.chat, m.tok, &a);
    assert_int_equal(a.n_eos, 0);
    put_file(&m, "tokenizer_config.json", "{\"eos_token\": \"none\", \"chat_template\": \"x\"}");
    open_chat(&m, NULL);
    rose_chat_add_eos(m.chat, m.tok, &a);
    assert_int_equal(a.n_eos, 0);
    model_free(&m);
}

static void template_of_a_request(void **state)
{
    static const char text[] = "{{ bos_token }}{{ messages[0].content }}!";
    model m;
    rose_err err = {""};
    rose_chat *own = NULL;
    (void)state;
    model_make(&m);
    put_file(&m, "tokenizer_config.json", settings);
    open_chat(&m, "{{ 1 }}");
    assert_int_equal(
        rose_chat_derive(&own, m.chat, text, sizeof text - 1, &(rose_template_limits){0}, &err),
        ROSE_OK);
    rose_chat_close(m.chat);
    m.chat = own;
    expect_text(&m, ONE_TEXT, "<s>a!");
    assert_int_equal(
        rose_chat_derive(&own, NULL, text, sizeof text - 1, &(rose_template_limits){0}, &err),
        ROSE_OK);
    rose_chat_close(m.chat);
    m.chat = own;
    expect_text(&m, ONE_TEXT, "a!");
    assert_int_equal(rose_chat_derive(&own, m.chat, "{{", 2, &(rose_template_limits){0}, &err),
                     ROSE_E_FORMAT);
    assert_null(own);
    assert_non_null(strstr(err.msg, "field 'chat_template': chat template, line 1"));
    model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_message_smuggles),
        cmocka_unit_test(content_takes_the_template_s_form),
        cmocka_unit_test(reasoning_has_two_names),
        cmocka_unit_test(tool_calls_become_objects),
        cmocka_unit_test(replies_come_back),
        cmocka_unit_test(wrong_messages),
        cmocka_unit_test(long_arguments_are_refused),
        cmocka_unit_test(tools_are_described),
        cmocka_unit_test(templates_without_tools),
        cmocka_unit_test(sources_in_order),
        cmocka_unit_test(bad_sources),
        cmocka_unit_test(gguf_metadata),
        cmocka_unit_test(turn_end),
        cmocka_unit_test(template_of_a_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
