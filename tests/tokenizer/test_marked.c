/* Marked text: special tokens come from template bytes alone; plain text never becomes one, even
 * where merges would make it. */
#include "tokenizer/tok_fixture.h"

#include "tokenizer/encoder_internal.h"

typedef struct run {
    const char *text;
    bool is_template;
} run;

enum { MAX_RUNS = 4 };

/* ids: 0 <, 1 s, 2 >, 3 <s, 4 <s> special, 5 a, 6 !, special, 7 pair, 8 space */
static const char json[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
    "{\"id\":6,\"content\":\"!\",\"special\":true,\"normalized\":false},"
    "{\"id\":9,\"content\":\"<s>!\",\"special\":true,\"normalized\":false},"
    "{\"id\":10,\"content\":\"aa\",\"special\":false,\"normalized\":false},"
    "{\"id\":11,\"content\":\"Es\",\"special\":true,\"normalized\":true}],"
    "\"normalizer\":%s,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
    "\"use_regex\":false},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
    "\"ignore_merges\":%s,\"vocab\":{\"<\":0,\"s\":1,\">\":2,\"<s\":3,\"<s>\":4,\"a\":5,\"!\":6,"
    "\"<s>a\":7,\"\\u0120\":8},\"merges\":[\"< s\",\"<s >\",\"<s> a\"]}}";

static rose_tokenizer *open_json(const char *normalizer, const char *ignore_merges)
{
    temp_dir d;
    rose_tokenizer *t = NULL;
    rose_err err = {""};
    char text[2048];
    const int n = snprintf(text, sizeof text, json, normalizer, ignore_merges);
    temp_make(&d);
    temp_write(&d, "tokenizer.json", text, (size_t)n);
    if (rose_tokenizer_open(&t, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    temp_remove(&d);
    return t;
}

static void assert_marked(const rose_tokenizer *t, const run runs[MAX_RUNS], const uint32_t *want,
                          size_t n)
{
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_buf text = {0};
    rose_mark_run marks[MAX_RUNS];
    rose_err err = {""};
    size_t n_runs = 0;
    for (; n_runs < MAX_RUNS && runs[n_runs].text != NULL; n_runs++) {
        marks[n_runs] = (rose_mark_run){strlen(runs[n_runs].text), runs[n_runs].is_template};
        rose_buf_add(&text, runs[n_runs].text, marks[n_runs].len);
    }
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    for (int again = 0; again < 2; again++) {
        /* plain encoding fills the cache with what marked text must not become */
        ids.len = 0;
        assert_int_equal(rose_encode(e, text.data, text.len, ROSE_ENCODE_PLAIN_SPECIAL, &ids, &err),
                         ROSE_OK);
        ids.len = 0;
        if (rose_encode_marked(e, text.data, text.len, marks, n_runs, 0, &ids, &err) != ROSE_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(ids.len, n);
        if (n > 0) assert_memory_equal(ids.data, want, 4 * n);
    }
    rose_ids_free(&ids);
    rose_buf_free(&text);
    rose_encoder_destroy(e);
}

#define IDS(...)                                                                                   \
    (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)
#define RUNS(...)                                                                                  \
    (const run[MAX_RUNS])                                                                          \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void only_template_bytes(void **state)
{
    (void)state;
    rose_tokenizer *t = open_json("null", "false");
    assert_marked(t, RUNS({"<s>", true}), IDS(4));
    assert_marked(t, RUNS({"<s>", false}), IDS(3, 2));
    assert_marked(t, RUNS({"<s", true}, {">", false}), IDS(3, 2));
    assert_marked(t, RUNS({"<", false}, {"s>", true}), IDS(3, 2));
    assert_marked(t, RUNS({"<s", true}, {">", true}), IDS(4)); /* one stretch in two runs */
    /* the longest token is not all template, a shorter one is */
    assert_marked(t, RUNS({"<s>", true}, {"!", false}), IDS(4));
    assert_marked(t, RUNS({"<s>!", true}), IDS(9));
    /* a special token as a step of a merge is none in the end */
    assert_marked(t, RUNS({"<s>a", false}), IDS(7));
    /* tokens that are not special match anywhere */
    assert_marked(t, RUNS({"a", true}, {"a", false}), IDS(10));
    /* a template's token after bytes that begin one */
    assert_marked(t, RUNS({"<s", false}, {"<s>", true}, {"s", false}), IDS(3, 4, 1));
    rose_tokenizer_close(t);
}

static void whole_pieces(void **state)
{
    (void)state;
    rose_tokenizer *t = open_json("null", "true");
    assert_marked(t, RUNS({"<s>", false}), IDS(3, 2));
    assert_marked(t, RUNS({"<s>a", false}), IDS(7));
    rose_tokenizer_close(t);
}

/* Only a tokenizer that needs it pays for the guard: control tokens of the usual form, in the
 * vocabulary, are out of the merges' reach. */
static void guard_is_rare(void **state)
{
    static const char pre[] =
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}";
    static const struct {
        const char *special;
        bool ignore_merges, reachable;
    } cases[] = {{"<|im_end|>", false, false}, {"<|im_end|>", true, false},
                 {"<||>", false, true},        {"[[[[[]]]]]", true, true},
                 {"[[[[[]]]]]", false, false}, {"control", true, true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        temp_dir d;
        rose_tokenizer *t = NULL;
        rose_err err = {""};
        char text[1024];
        const int n = snprintf(text, sizeof text,
                               "{\"added_tokens\":[{\"id\":1,\"content\":\"%s\",\"special\":true,"
                               "\"normalized\":false}],\"pre_tokenizer\":%s,\"decoder\":{\"type\":"
                               "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":%s,"
                               "\"vocab\":{\"a\":0,\"%s\":1},\"merges\":[]}}",
                               cases[i].special, pre, cases[i].ignore_merges ? "true" : "false",
                               cases[i].special);
        temp_make(&d);
        temp_write(&d, "tokenizer.json", text, (size_t)n);
        if (rose_tokenizer_open(&t, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
        if (t->special_reachable != cases[i].reachable) fail_msg("case %zu", i);
        rose_tokenizer_close(t);
        temp_remove(&d);
    }
}

/* "Es" is looked for in normalised text: E comes of e by Replace. */
static void normalised(void **state)
{
    static const char replace[] = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Replace\","
                                  "\"pattern\":{\"String\":\"a\"},\"content\":\"E\"}]}";
    (void)state;
    rose_tokenizer *t = open_json(replace, "false");
    assert_marked(t, RUNS({"as", true}), IDS(11));
    assert_marked(t, RUNS({"as", false}), IDS(1)); /* E has no token and is dropped */
    assert_marked(t, RUNS({"a", false}, {"s", true}), IDS(1));
    assert_marked(t, RUNS({"s", false}, {"as", true}, {"s", false}), IDS(1, 11, 1));
    rose_tokenizer_close(t);
    /* NFC changes the text: its parts cannot be told apart any more */
    t = open_json("{\"type\":\"NFC\"}", "false");
    assert_marked(t, RUNS({"Es", true}, {"s", false}), IDS(11, 1));
    assert_marked(t, RUNS({"Es", true}, {"e\xcc\x81s", false}), IDS(1, 1));
    rose_tokenizer_close(t);
}

static void wrong_runs(void **state)
{
    (void)state;
    rose_tokenizer *t = open_json("null", "false");
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_err err = {""};
    const rose_mark_run runs[] = {{2, true}, {SIZE_MAX, false}};
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    assert_int_equal(rose_encode_marked(e, "ssss", 4, runs, 1, 0, &ids, &err), ROSE_E_INVAL);
    assert_int_equal(rose_encode_marked(e, "ssss", 4, runs, 2, 0, &ids, &err), ROSE_E_INVAL);
    assert_int_equal(rose_encode_marked(e, "ssss", 4, NULL, 0, 0, &ids, &err), ROSE_E_INVAL);
    assert_int_equal(ids.len, 0);
    assert_int_equal(rose_encode_marked(e, "", 0, NULL, 0, 0, &ids, &err), ROSE_OK);
    assert_int_equal(rose_encode_marked(e, "ss", 2, runs, 1, 0, &ids, &err), ROSE_OK);
    assert_int_equal(ids.len, 2);
    /* the marks of one call do not stay for the next */
    ids.len = 0;
    assert_int_equal(rose_encode(e, "<s>", 3, 0, &ids, &err), ROSE_OK);
    assert_int_equal(ids.len, 1);
    rose_ids_free(&ids);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_template_bytes), cmocka_unit_test(whole_pieces),
        cmocka_unit_test(guard_is_rare),       cmocka_unit_test(normalised),
        cmocka_unit_test(wrong_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
