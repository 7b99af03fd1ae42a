/* The C library: a chat gives the text of the same prompt, what is refused, and the defaults of the
 * model. */
#include "lib/lib_fixture.h"

static const char template[] =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ start }}{% if tools %}"
    "{{ tools[0].name }}{% endif %}{% if add_generation_prompt %}assistant:{% endif %}";

/* messages, options, the prompt */
static const char *const chats[][3] = {
    {"[{\"role\": \"user\", \"content\": \"Once upon a time\"}]", NULL,
     "user: Once upon a time\nassistant:"},
    {"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]",
     "{\"add_generation_prompt\": false, \"chat_template_kwargs\": {\"start\": \"The king\"}}",
     "user: a\nassistant: b\nThe king"},
    {"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
     "\"There\"}]",
     "{\"add_generation_prompt\": false, \"continue_final_message\": true}",
     "user: a\nassistant: There"},
    {"[{\"role\": \"user\", \"content\": \"a\"}]", "{\"tools\": [{\"name\": \"f\"}]}",
     "user: a\nfassistant:"},
};

static void chat_is_its_prompt(void **state)
{
    rose_lib *rose = open_lib(template);
    rose_lib_params p;
    char err[ROSE_LIB_ERR];
    (void)state;
    assert_int_equal(rose_lib_has_chat_template(rose), 1);
    rose_lib_params_model(rose, &p);
    assert_true(p.temperature <= 0.0f && p.max_tokens == 128); /* the model recommends nothing */
    p.top_k = 7;
    assert_int_equal(rose_lib_params_recommend(rose, &p, err), 0);
    assert_int_equal(p.top_k, 7);
    uint32_t eos = 1;
    assert_string_equal(rose_lib_special_token(rose, "eos_token", &eos), "<|endoftext|>");
    assert_int_equal(eos, 0);
    assert_null(rose_lib_special_token(rose, "pad_token", &eos));
    p.max_tokens = 12;
    for (size_t i = 0; i < sizeof chats / sizeof *chats; i++) {
        rose_lib_request *r;
        if (rose_lib_submit_chat(rose, chats[i][0], strlen(chats[i][0]), chats[i][1], &p, &r,
                                 err) != 0)
            fail_msg("%s", err);
        char *got = read_all(r), *text;
        size_t n;
        assert_int_equal(
            rose_lib_chat_text(rose, chats[i][0], strlen(chats[i][0]), chats[i][1], &text, &n, err),
            0);
        assert_int_equal(n, strlen(chats[i][2]));
        assert_memory_equal(text, chats[i][2], n);
        rose_lib_free(text);
        assert_int_equal(rose_lib_submit_text(rose, chats[i][2], strlen(chats[i][2]), &p, &r, err),
                         0);
        char *want = read_all(r);
        assert_string_equal(got, want);
        assert_true(want[0] != '\0');
        free(got);
        free(want);
    }
    rose_lib_close(rose);
}

static void pairs_are_json(void **state)
{
    static const rose_lib_message pairs[] = {{"user", "a \"quoted\"\n\xC3\xA9"},
                                             {"assistant", "b"}};
    static const char json[] =
        "[{\"role\": \"user\", \"content\": \"a \\\"quoted\\\"\\n\xC3\xA9\"},"
        "{\"role\": \"assistant\", \"content\": \"b\"}]";
    static const char options[] = "{\"add_generation_prompt\": false}";
    rose_lib *rose = open_lib(template);
    rose_lib_request *r;
    uint32_t *ids;
    size_t n, len;
    char err[ROSE_LIB_ERR], *text;
    (void)state;
    assert_int_equal(rose_lib_submit_messages(rose, pairs, 2, options, NULL, &r, err), 0);
    assert_int_equal(rose_lib_tokenize_chat(rose, json, sizeof json - 1, options, &ids, &n, err),
                     0);
    assert_int_equal(rose_lib_prompt_tokens(r), n);
    rose_lib_params p;
    rose_lib_request *same;
    rose_lib_params_default(&p);
    assert_int_equal(rose_lib_submit_ids(rose, ids, n, &p, &same, err), 0);
    char *got = read_all(r), *want = read_all(same);
    assert_string_equal(got, want);
    assert_int_equal(rose_lib_detokenize(rose, ids, n, &text, &len, err), 0);
    assert_memory_equal(text, "user: a \"quoted\"\n\xC3\xA9\nassistant: b\n", len);
    rose_lib_free(text);
    rose_lib_free(ids);
    free(got);
    free(want);
    const rose_lib_message bad_pairs[][1] = {
        {{NULL, "x"}}, {{"user", NULL}}, {{"user", "\xFF"}}, {{"\xC3", "x"}}};
    static const char *const why[] = {"messages[0].role is NULL", "messages[0].content is NULL",
                                      "messages[0].content is not valid UTF-8",
                                      "messages[0].role is not valid UTF-8"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(rose_lib_submit_messages(rose, bad_pairs[i], 1, NULL, NULL, &r, err),
                         ROSE_LIB_E_INVAL);
        assert_null(r);
        assert_string_equal(err, why[i]);
    }
    assert_int_equal(rose_lib_submit_messages(rose, NULL, 0, NULL, NULL, &r, err),
                     ROSE_LIB_E_INVAL);
    assert_int_equal(rose_lib_tokenize_chat(rose, "{", 1, NULL, &ids, &n, err), ROSE_LIB_E_INVAL);
    assert_null(ids);
    rose_lib_close(rose);
}

/* messages, options, a part of the message */
static const char *const bad[][3] = {
    {"{", NULL, "messages_json is not valid JSON"},
    {"[]", NULL, "at least one message"},
    {"[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", NULL, "'image_url'"},
    {"[{\"role\": \"user\"}]", "[]", "options_json must be an object"},
    {"[{\"role\": \"user\"}]", "{\"tool\": []}", "'tool' is unknown"},
    {"[{\"role\": \"user\"}]", "{\"tools\": 1}", "tools must be a list"},
    {"[{\"role\": \"user\"}]", "{\"chat_template_kwargs\": []}", "must be an object"},
    {"[{\"role\": \"user\"}]", "{\"continue_final_message\": 1}", "must be true or false"},
    {"[{\"role\": \"user\", \"content\": \"x\"}]", "{\"continue_final_message\": true}",
     "exclude each other"},
};

static void bad_chats(void **state)
{
    rose_lib *rose = open_lib(template);
    rose_lib_params p;
    rose_lib_request *r;
    char err[ROSE_LIB_ERR];
    (void)state;
    rose_lib_params_default(&p);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(
            rose_lib_submit_chat(rose, bad[i][0], strlen(bad[i][0]), bad[i][1], &p, &r, err),
            ROSE_LIB_E_INVAL);
        assert_null(r);
        if (strstr(err, bad[i][2]) == NULL) fail_msg("%s", err);
    }
    rose_lib_close(rose);
    rose = open_lib(NULL);
    assert_int_equal(rose_lib_has_chat_template(rose), 0);
    assert_int_equal(rose_lib_submit_chat(rose, "[]", 2, NULL, &p, &r, err), ROSE_LIB_E_INVAL);
    assert_non_null(strstr(err, "no chat template"));
    rose_lib_close(rose);
}

static void repetition_penalty(void **state)
{
    static const char prompt[] = "the the the the";
    rose_lib *rose = open_lib(NULL);
    rose_lib_params p;
    rose_lib_request *r;
    char err[ROSE_LIB_ERR], *texts[3];
    const float values[] = {1.0f, 0.0f, 50.0f};
    (void)state;
    rose_lib_params_default(&p);
    p.max_tokens = 24;
    for (int i = 0; i < 3; i++) {
        p.repetition_penalty = values[i];
        if (rose_lib_submit_text(rose, prompt, sizeof prompt - 1, &p, &r, err) != 0)
            fail_msg("%s", err);
        texts[i] = read_all(r);
    }
    assert_string_equal(texts[0], texts[1]);
    assert_string_not_equal(texts[0], texts[2]);
    for (int i = 0; i < 3; i++)
        free(texts[i]);
    p.repetition_penalty = -1.0f;
    assert_int_equal(rose_lib_submit_text(rose, prompt, 3, &p, &r, err), ROSE_LIB_E_INVAL);
    rose_lib_close(rose);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_is_its_prompt), cmocka_unit_test(pairs_are_json),
        cmocka_unit_test(bad_chats), cmocka_unit_test(repetition_penalty)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
