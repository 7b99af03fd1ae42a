/* What a model's author recommends: the sampling defaults of generation_config.json and of GGUF
 * metadata, and how the model pools its states. */
#include "tokenizer/tok_fixture.h"

#include <sys/stat.h>

#include "log_capture.h"
#include "model/generation.h"
#include "model/pooling.h"

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

/* the file, the defaults, a part of what is logged */
static const char *const odd[][3] = {
    {"{\"temperature\": -0.5}", "temperature 0",
     "temperature is -0.5, expected 0 to 100: 0 counts"},
    {"{\"temperature\": 1e30}", "temperature 100", "temperature is 1e30"},
    {"{\"temperature\": \"0.7\"}", "",
     "temperature is the string \"0.7\", expected 0 to 100: it is"},
    {"{\"temperature\": true}", "", "temperature is true"},
    {"{\"top_p\": 0}", "top_p 1e-30", "top_p is 0, expected above 0"},
    {"{\"top_p\": 1.5}", "top_p 1", "top_p is 1.5"},
    {"{\"top_k\": 2.5}", "top_k 2", "top_k is 2.5, expected an integer"},
    {"{\"top_k\": -2}", "top_k 0", "top_k is -2"},
    {"{\"top_k\": 1e12}", "top_k 2147483647", "top_k is 1e12"},
    {"{\"top_k\": 1000000000000000019884624838656}", "top_k 2147483647",
     "top_k is 1000000000000000019884624838656, expected"},
    {"{\"min_p\": \"x\"}", "", "min_p is the string \"x\", expected 0 to 1: it is ignored"},
    {"{\"min_p\": 7, \"top_p\": 0.5}", "top_p 0.5, min_p 1", "min_p is 7"},
    {"{\"repetition_penalty\": 0}", "", "repetition_penalty is 0, expected 0.01 to 100: it is ign"},
    {"{\"repetition_penalty\": 1000}", "repetition_penalty 100", "repetition_penalty is 1000"},
    {"{\"max_new_tokens\": 0}", "", "max_new_tokens is 0"},
    {"{\"max_new_tokens\": 3e9}", "max_new_tokens 2147483647", "max_new_tokens is 3e9"},
    {"{\"do_sample\": false}", "temperature 0", ""},
    {"{\"do_sample\": false, \"temperature\": 0.6, \"top_p\": 0.9, \"top_k\": 5, \"min_p\": 0.1, "
     "\"repetition_penalty\": 1.1}",
     "temperature 0, repetition_penalty 1.1", "do_sample is false, so temperature, top_p"},
    {"{\"max_length\": 4096, \"num_beams\": 1, \"no_repeat_ngram_size\": 3, \"typical_p\": 1.0, "
     "\"use_cache\": false, \"bad_words_ids\": [[3]], \"pad_token_id\": 5}",
     "", "not applied: max_length, no_repeat_ngram_size, bad_words_ids\n"},
    {"[]", "", ""}, /* rose_model_open has the warning */
    {"{\"top_k\": ", "", ""},
};

static void odd_values(void **state)
{
    char text[ROSE_GENERATION_TEXT];
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        rose_generation g = {.has = 1};
        rose_err err = {""};
        log_begin();
        const rose_status st = read_text(odd[i][0], &g, &err);
        char *log = log_end();
        assert_int_equal(st, ROSE_OK);
        assert_string_equal(err.msg, "");
        rose_generation_text(&g, text);
        assert_string_equal(text, odd[i][1]);
        if (odd[i][2][0] == '\0' ? log[0] != '\0' : log_count(log, odd[i][2]) != 1)
            fail_msg("%s: %s", odd[i][0], log);
        if (log[0] != '\0') assert_int_equal(log_count(log, "generation_config.json: "), 1);
        free(log);
    }
}

/* A file that a person names is not just advice: it must be one. */
static void broken_file_by_name(void **state)
{
    (void)state;
    temp_dir d;
    rose_generation g;
    rose_err err = {""};
    char path[600];
    temp_make(&d);
    temp_write(&d, "mine.json", "{", 1);
    snprintf(path, sizeof path, "%s/mine.json", d.path);
    assert_int_equal(rose_generation_choose(&g, d.path, path, NULL, &err), ROSE_E_FORMAT);
    assert_non_null(strstr(err.msg, "mine.json"));
    temp_remove(&d);
}

/* --generation-config, --override-generation-config, the defaults; then, if it is refused, why. */
static const char *const overrides[][4] = {
    {"auto", "{\"temperature\": 0.2, \"top_p\": 0.9}", "temperature 0.2, top_p 0.9, top_k 20",
     NULL},
    {"none", "{\"temperature\": 0.2, \"max_new_tokens\": 512}",
     "temperature 0.2, max_new_tokens 512", NULL},
    {"vllm", "{\"top_k\": -1}", "top_k 0", NULL},
    {"auto", "{}", "temperature 0.6, top_k 20", NULL},
    {"auto", NULL, "temperature 0.6, top_k 20", NULL},
    {"auto", "{\"temprature\": 1}", "",
     "there is no 'temprature'; the names are temperature, top_p"},
    {"auto", "{\"temperature\": 101}", "", "temperature is 101, expected 0 to 100"},
    {"auto", "{\"temperature\": null}", "", "temperature is null, expected 0 to 100"},
    {"auto", "{\"top_k\": 1.5}", "", "top_k is 1.5, expected an integer, -1 or 0 (off)"},
    {"auto", "[]", "", "--override-generation-config: expected a JSON object"},
    {"auto", "{\"top_k\"", "", "expected a JSON object, as {\"temperature\": 0.6}: "},
};

static void override(void **state)
{
    temp_dir d;
    static const char own[] = "{\"temperature\": 0.6, \"top_k\": 20}";
    (void)state;
    temp_make(&d);
    temp_write(&d, "generation_config.json", own, strlen(own));
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides; i++) {
        const char *const *c = overrides[i];
        rose_generation g = {.has = 1};
        rose_err err = {""};
        char text[ROSE_GENERATION_TEXT];
        const rose_status st = rose_generation_choose(&g, d.path, c[0], c[1], &err);
        if (st != (c[3] == NULL ? ROSE_OK : ROSE_E_INVAL) ||
            (c[3] != NULL && strstr(err.msg, c[3]) == NULL))
            fail_msg("%s: %s", c[1], err.msg);
        rose_generation_text(&g, text);
        assert_string_equal(text, c[2]);
    }
    temp_remove(&d);
}

static void put_number(rose_buf *b, const char *key, uint32_t type, const void *value)
{
    const uint64_t n = strlen(key);
    assert_int_equal(rose_buf_add(b, &n, sizeof n), ROSE_OK);
    assert_int_equal(rose_buf_add(b, key, n), ROSE_OK);
    assert_int_equal(rose_buf_add(b, &type, sizeof type), ROSE_OK);
    assert_int_equal(rose_buf_add(b, value, 4), ROSE_OK);
}

/* What the file does not say is as in llama.cpp: here top_p. */
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
    put_number(&b, "general.sampling.top_k", I32, &(int32_t){30});
    put_number(&b, "general.sampling.penalty_repeat", F32, &(float){1.5f});
    temp_make(&d);
    temp_write(&d, "m.gguf", b.data, b.len);
    if (rose_generation_read(&g, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    rose_generation_text(&g, text);
    assert_string_equal(text, "temperature 0.25, top_p 0.95, top_k 30, repetition_penalty 1.5");
    temp_remove(&d);
    rose_buf_free(&b);
}

/* ---- pooling ---- */

#define MODULES(more)                                                                              \
    "[{\"idx\":0,\"path\":\"\",\"type\":\"sentence_transformers.models.Transformer\"}," more "]"
#define POOLING   "{\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"}"
#define NORMALIZE "{\"path\":\"2_Normalize\",\"type\":\"sentence_transformers.models.Normalize\"}"

typedef struct pooled {
    const char *config, *modules, *pooling; /* the texts of the files; NULL: there is none */
    const char *type, *task;                /* the options */
    rose_pooling_config want;
    const char *wrong; /* a part of the message; NULL: no error */
} pooled;

static const pooled poolings[] = {
    {.want = {.pool = ROSE_POOL_LAST, .normalizes = true}},
    {.config = "{\"architectures\":[\"Qwen3ForCausalLM\"]}",
     .want = {.pool = ROSE_POOL_LAST, .normalizes = true}},
    {.modules = MODULES(POOLING "," NORMALIZE),
     .pooling = "{\"pooling_mode_cls_token\":false,\"pooling_mode_lasttoken\":true}",
     .want = {.pool = ROSE_POOL_LAST, .embeds = true, .normalizes = true, .cuts = true}},
    {.modules = MODULES(POOLING),
     .pooling = "{\"pooling_mode_mean_tokens\":true}",
     .want = {.pool = ROSE_POOL_MEAN, .embeds = true, .cuts = true}},
    {.modules = MODULES(POOLING),
     .pooling = "{\"pooling_mode\":\"mean\"}",
     .want = {.pool = ROSE_POOL_MEAN, .embeds = true, .cuts = true}},
    {.modules = MODULES(POOLING),
     .pooling = "{\"pooling_mode_max_tokens\":true}",
     .type = "mean",
     .want = {.pool = ROSE_POOL_MEAN, .normalizes = true}},
    {.config = "{\"is_matryoshka\":true,\"matryoshka_dimensions\":[64,32]}",
     .want = {.pool = ROSE_POOL_LAST,
              .normalizes = true,
              .cuts = true,
              .n_dimensions = 2,
              .dimensions = {64, 32}}},
    {.config = "{\"architectures\":[\"Qwen3ForSequenceClassification\"]}",
     .want = {.pool = ROSE_POOL_LAST, .normalizes = true, .ranks = true}},
    {.config = "{\"architectures\":[\"Qwen3ForSequenceClassification\"]}",
     .task = "embed",
     .want = {.pool = ROSE_POOL_LAST, .normalizes = true}},
    {.task = "rerank", .want = {.pool = ROSE_POOL_LAST, .normalizes = true, .ranks = true}},
    {.config = "{\"architectures\":[\"Qwen3ForSequenceClassification\"],"
               "\"tie_word_embeddings\":false}",
     .want = {.pool = ROSE_POOL_LAST, .normalizes = true, .own_head = true}},
    {.config = "{\"architectures\":[\"LlamaForSequenceClassification\"]}",
     .want = {.pool = ROSE_POOL_LAST, .normalizes = true, .own_head = true}},
    {.config = "{\"architectures\":[\"LlamaForSequenceClassification\"]}",
     .task = "embed",
     .want = {.pool = ROSE_POOL_LAST, .normalizes = true}},
    {.config = "{\"matryoshka_dimensions\":[0]}", .wrong = "matryoshka_dimensions[0]"},
    {.config = "{\"matryoshka_dimensions\":7}", .wrong = "not a list"},
    {.modules = "{}", .wrong = "not a list of modules"},
    {.modules = "[{\"type\":\"x.Pooling\"}]", .wrong = "a type and a path"},
    {.modules = "[{\"type\":\"x.Pooling\",\"path\":\"../x\"}]", .wrong = "in the folder"},
    {.modules = MODULES(POOLING), .wrong = "has no 1_Pooling/config.json"},
    {.modules = MODULES(POOLING), .pooling = "{}", .wrong = "no field says how"},
    {.modules = MODULES(POOLING),
     .pooling = "{\"pooling_mode_cls_token\":true}",
     .wrong = "pooling by 'cls_token' is not supported"},
    {.modules = MODULES(POOLING),
     .pooling = "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":true}",
     .wrong = "more than one way"},
    {.modules = MODULES("{\"path\":\"2_Dense\",\"type\":\"x.Dense\"}"), .wrong = "module Dense"},
};

static void pooling(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i++) {
        const pooled *p = &poolings[i];
        rose_pooling_config got;
        rose_err err = {""};
        temp_dir d;
        temp_make(&d);
        if (p->config != NULL) temp_write(&d, "config.json", p->config, strlen(p->config));
        if (p->modules != NULL) temp_write(&d, "modules.json", p->modules, strlen(p->modules));
        if (p->pooling != NULL) {
            char sub[600];
            snprintf(sub, sizeof sub, "%s/1_Pooling", d.path);
            assert_int_equal(mkdir(sub, 0700), 0);
            temp_write(&d, "1_Pooling/config.json", p->pooling, strlen(p->pooling));
        }
        const rose_status st = rose_pooling_read(&got, d.path, p->type, p->task, &err);
        if ((st == ROSE_OK) != (p->wrong == NULL)) fail_msg("case %zu: %s", i, err.msg);
        if (p->wrong != NULL && strstr(err.msg, p->wrong) == NULL)
            fail_msg("case %zu: %s", i, err.msg);
        assert_memory_equal(&got, &p->want, sizeof got);
        char command[700];
        snprintf(command, sizeof command, "rm -rf %s", d.path);
        assert_int_equal(system(command), 0);
    }
}

static void dimensions(void **state)
{
    const rose_pooling_config any = {.cuts = true}, none = {0},
                              two = {.cuts = true, .n_dimensions = 2, .dimensions = {64, 32}};
    (void)state;
    assert_true(rose_pooling_allows(&none, 128, 128));
    assert_false(rose_pooling_allows(&none, 128, 64));
    assert_true(rose_pooling_allows(&any, 128, 1) && rose_pooling_allows(&any, 128, 128));
    assert_false(rose_pooling_allows(&any, 128, 0) || rose_pooling_allows(&any, 128, 129));
    assert_true(rose_pooling_allows(&two, 128, 32) && rose_pooling_allows(&two, 128, 128));
    assert_false(rose_pooling_allows(&two, 128, 63));
}

/* ARCH.pooling_type of a GGUF file: 1 mean, 3 last, 4 rank. */
static void gguf_pooling(void **state)
{
    enum { U32 = 4 };
    (void)state;
    for (uint32_t type = 0; type < 6; type++) {
        const uint64_t n_key = strlen("general.architecture"), n_text = 5;
        const uint32_t is_text = 8;
        temp_dir d;
        rose_buf b = {0};
        rose_pooling_config got;
        rose_err err = {""};
        assert_int_equal(rose_buf_add(&b, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 24),
                         ROSE_OK);
        assert_int_equal(rose_buf_add(&b, &n_key, 8), ROSE_OK);
        assert_int_equal(rose_buf_add(&b, "general.architecture", n_key), ROSE_OK);
        assert_int_equal(rose_buf_add(&b, &is_text, 4), ROSE_OK);
        assert_int_equal(rose_buf_add(&b, &n_text, 8), ROSE_OK);
        assert_int_equal(rose_buf_add(&b, "qwen3", 5), ROSE_OK);
        put_number(&b, "qwen3.pooling_type", U32, &type);
        temp_make(&d);
        temp_write(&d, "m.gguf", b.data, b.len);
        const rose_status st = rose_pooling_read(&got, d.path, NULL, NULL, &err);
        assert_int_equal(st, type == 2 || type == 5 ? ROSE_E_UNSUPPORTED : ROSE_OK);
        if (st == ROSE_OK) {
            assert_int_equal(got.pool, type == 1 ? ROSE_POOL_MEAN : ROSE_POOL_LAST);
            assert_int_equal(got.embeds, type == 1 || type == 3);
            assert_int_equal(got.ranks, type == 4);
        }
        temp_remove(&d);
        rose_buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values),
                                       cmocka_unit_test(odd_values),
                                       cmocka_unit_test(broken_file_by_name),
                                       cmocka_unit_test(override),
                                       cmocka_unit_test(gguf_keys),
                                       cmocka_unit_test(pooling),
                                       cmocka_unit_test(dimensions),
                                       cmocka_unit_test(gguf_pooling)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
