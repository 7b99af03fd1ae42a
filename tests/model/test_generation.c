/* The sampling defaults of generation_config.json and of GGUF metadata. */
#include "tokenizer/tok_fixture.h"

#include "model/generation.h"

static rose_status read_text(const char *text, rose_generation *g, rose_err *err)
{
    temp_dir d;
    temp_make(&d);
    if (text != NULL) temp_write(&d, "generation_config.json", text, strlen(text));
    const rose_status st = rose_generation_read(g, d.path, err);
    temp_remove(&d);
    return st;
}

/* the file, the defaults in one line */
static const char *const good[][2] = {
    {"{}", ""},
    {"{\"do_sample\": true, \"eos_token_id\": [1, 2], \"top_p\": null}", ""},
    {"{\"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"min_p\": 0, "
     "\"repetition_penalty\": 1.05, \"max_new_tokens\": 256}",
     "temperature 0.6, top_p 0.95, top_k 20, min_p 0, repetition_penalty 1.05, "
     "max_new_tokens 256"},
    {"{\"temperature\": 1, \"top_k\": -1}", "temperature 1, top_k 0"},
};

static void values(void **state)
{
    char text[ROSE_GENERATION_TEXT];
    rose_generation g;
    rose_err err = {""};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (read_text(good[i][0], &g, &err) != ROSE_OK) fail_msg("%s", err.msg);
        rose_generation_text(&g, text);
        assert_string_equal(text, good[i][1]);
    }
    assert_int_equal(read_text(NULL, &g, &err), ROSE_OK); /* there is no such file */
    assert_int_equal(g.has, 0);
    assert_string_equal(err.msg, "");
    assert_int_equal(rose_generation_read(&g, "/nowhere/at/all.json", &err), ROSE_E_NOTFOUND);
}

/* the file, a part of the message */
static const char *const bad[][2] = {
    {"{\"temperature\": -0.5}", "temperature is -0.5, expected 0 to 100"},
    {"{\"top_p\": 0}", "top_p is 0, expected above 0"},
    {"{\"top_p\": 1.5}", "top_p is 1.5"},
    {"{\"top_k\": 2.5}", "top_k is 2.5, expected an integer"},
    {"{\"top_k\": -2}", "top_k is -2"},
    {"{\"min_p\": \"x\"}", "min_p is the string \"x\", expected a number"},
    {"{\"repetition_penalty\": 0}", "repetition_penalty is 0, expected"},
    {"{\"max_new_tokens\": 0}", "max_new_tokens is 0"},
    {"[]", "not an object"},
};

static void bad_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rose_generation g = {.has = 1};
        rose_err err = {""};
        assert_int_equal(read_text(bad[i][0], &g, &err), ROSE_E_FORMAT);
        if (strstr(err.msg, bad[i][1]) == NULL) fail_msg("%s", err.msg);
        assert_non_null(strstr(err.msg, "generation_config.json"));
        assert_int_equal(g.has, 0);
    }
}

static void put_number(rose_buf *b, const char *key, uint32_t type, const void *value)
{
    const uint64_t n = strlen(key);
    assert_int_equal(rose_buf_add(b, &n, sizeof n), ROSE_OK);
    assert_int_equal(rose_buf_add(b, key, n), ROSE_OK);
    assert_int_equal(rose_buf_add(b, &type, sizeof type), ROSE_OK);
    assert_int_equal(rose_buf_add(b, value, 4), ROSE_OK);
}

static void gguf_keys(void **state)
{
    enum { I32 = 5, F32 = 6 };
    temp_dir d;
    rose_buf b = {0};
    rose_generation g;
    rose_err err = {""};
    char text[ROSE_GENERATION_TEXT];
    (void)state;
    assert_int_equal(rose_buf_add(&b, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 24), ROSE_OK);
    put_number(&b, "general.sampling.temp", F32, &(float){0.25f});
    put_number(&b, "general.sampling.top_k", I32, &(int32_t){40});
    put_number(&b, "general.sampling.penalty_repeat", F32, &(float){1.5f});
    temp_make(&d);
    temp_write(&d, "m.gguf", b.data, b.len);
    if (rose_generation_read(&g, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    rose_generation_text(&g, text);
    assert_string_equal(text, "temperature 0.25, top_k 40, repetition_penalty 1.5");
    temp_remove(&d);
    rose_buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(bad_values),
                                       cmocka_unit_test(gguf_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
