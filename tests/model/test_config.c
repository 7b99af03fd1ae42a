/* config.json and generation_config.json: each field's effect, type and range. */
#include "base/json.h"
#include "fixture.h"
#include "log_capture.h"

static int setup(void **state)
{
    setup_scratch(state);
    put_tiny(scratch);
    return 0;
}

/* The tiny config with one field set to the JSON text (NULL: removed). */
static void put_config_with(const char *field, const char *value)
{
    rose_json *root = rose_json_loads(TINY_CONFIG, 0, NULL);
    assert_non_null(root);
    if (value == NULL) {
        assert_int_equal(rose_json_del(root, field), 0);
    } else {
        rose_json *v = rose_json_loads(value, ROSE_JSON_ANY, NULL);
        if (v == NULL) fail_msg("bad value in the test: %s", value);
        assert_int_equal(rose_json_set_new(root, field, v), 0);
    }
    char *text = rose_json_dumps(root, 0);
    put_text(scratch, "config.json", text);
    free(text);
    rose_json_decref(root);
}

static rose_arch arch_with(const char *field, const char *value)
{
    put_config_with(field, value);
    rose_model *m = expect_opens(scratch);
    rose_arch a = m->arch;
    rose_model_close(m);
    return a;
}

static void defaults(void **state)
{
    (void)state;
    put_text(scratch, "config.json", TINY_CONFIG);
    rose_model *m = expect_opens(scratch);
    const rose_arch *a = &m->arch;
    assert_string_equal(a->model_type, "gpt2");
    assert_int_equal(a->n_layers, 2);
    assert_int_equal(a->d_model, 4);
    assert_int_equal(a->kinds[0].mixer.n_heads, 2);
    assert_int_equal(a->kinds[0].mixer.n_kv_heads, 2);
    assert_int_equal(a->kinds[0].mixer.head_dim, 2);
    assert_int_equal(a->kinds[0].mlp.d_ff, 16);
    assert_int_equal(a->vocab_size, 7);
    assert_int_equal(a->max_positions, 3);
    assert_true(a->norm_eps == 1e-5f);
    assert_true(a->kinds[0].mixer.scale == (float)(1.0 / sqrt(2.0)));
    assert_false(a->kinds[0].mixer.scale_by_layer);
    assert_int_equal(a->norm, ROSE_NORM_LAYER);
    assert_int_equal(a->pos, ROSE_POS_LEARNED);
    assert_int_equal(a->kinds[0].mlp.act, ROSE_ACT_GELU_TANH);
    assert_true(a->tied_head);
    assert_int_equal(a->bos_id, -1);
    assert_int_equal(a->n_eos, 1);
    assert_int_equal(a->eos_ids[0], 6);
    rose_model_close(m);
}

static void fields_take_effect(void **state)
{
    (void)state;
    assert_int_equal(arch_with("n_inner", "null").kinds[0].mlp.d_ff, 16);
    assert_int_equal(arch_with("n_inner", "16").kinds[0].mlp.d_ff, 16);
    assert_int_equal(arch_with("activation_function", "\"gelu\"").kinds[0].mlp.act,
                     ROSE_ACT_GELU_ERF);
    assert_int_equal(arch_with("activation_function", "\"relu\"").kinds[0].mlp.act, ROSE_ACT_RELU);
    assert_int_equal(arch_with("activation_function", "\"silu\"").kinds[0].mlp.act, ROSE_ACT_SILU);
    assert_int_equal(arch_with("activation_function", "\"gelu_pytorch_tanh\"").kinds[0].mlp.act,
                     ROSE_ACT_GELU_TANH);
    assert_true(arch_with("layer_norm_epsilon", "1e-12").norm_eps == 1e-12f);
    assert_true(arch_with("layer_norm_epsilon", "1").norm_eps == 1.0f);
    assert_true(arch_with("scale_attn_weights", "false").kinds[0].mixer.scale == 1.0f);
    assert_true(arch_with("scale_attn_by_inverse_layer_idx", "true").kinds[0].mixer.scale_by_layer);
    assert_true(arch_with("reorder_and_upcast_attn", "true").tied_head);
    assert_true(arch_with("add_cross_attention", "false").tied_head);
    assert_true(arch_with("tie_word_embeddings", "null").tied_head);
    assert_int_equal(arch_with("n_head", "4").kinds[0].mixer.head_dim, 1);
    assert_int_equal(arch_with("n_embd", "4.0").d_model, 4);
    assert_int_equal(arch_with("bos_token_id", "0").bos_id, 0);
    assert_int_equal(arch_with("bos_token_id", "7").bos_id, -1); /* outside the vocabulary */
    assert_int_equal(arch_with("unknown_field", "{\"deep\": [1, 2]}").n_layers, 2);
}

static void second_names(void **state)
{
    (void)state;
    put_text(scratch, "config.json",
             "{\"model_type\": \"gpt2\", \"hidden_size\": 4, \"num_attention_heads\": 2, "
             "\"num_hidden_layers\": 2, \"n_ctx\": 3, \"vocab_size\": 7}");
    rose_model *m = expect_opens(scratch);
    assert_int_equal(m->arch.max_positions, 3);
    assert_int_equal(m->arch.n_eos, 0);
    rose_model_close(m);
}

static void end_of_text_ids(void **state)
{
    (void)state;
    rose_arch a = arch_with("eos_token_id", "[5, 6, 5, 99]");
    assert_int_equal(a.n_eos, 2); /* without the double and what cannot occur */
    assert_int_equal(a.eos_ids[0], 5);
    assert_int_equal(a.eos_ids[1], 6);
    assert_int_equal(arch_with("eos_token_id", "null").n_eos, 0);
    assert_int_equal(arch_with("eos_token_id", "[]").n_eos, 0);

    put_text(scratch, "generation_config.json", "{\"eos_token_id\": [6, 2], \"do_sample\": true}");
    a = arch_with("eos_token_id", "6");
    assert_int_equal(a.n_eos, 2);
    assert_int_equal(a.eos_ids[1], 2);
    drop_file(scratch, "generation_config.json");
}

/* What stands where an id is expected is dropped, and one line says so. */
static void wrong_ids_warn(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text, *warning;
        uint32_t n_eos;
    } cases[] = {
        {"generation_config.json", "{\"eos_token_id\": \"6\"}", "eos_token_id is the string \"6\"",
         1},
        {"generation_config.json", "{", "not valid JSON", 1},
        {"generation_config.json", "[]", "not an object", 1},
        {"generation_config.json", "{\"eos_token_id\": [5, -1, null, 7]}",
         "eos_token_id is -1, which is no token id: it never ends a text", 2},
        {"config.json", "-1", "eos_token_id is -1", 0},
        {"config.json", "[1, \"2\"]", "eos_token_id is the string \"2\"", 1},
        {"config.json", "[[1]]", "eos_token_id is a list", 0},
        {"config.json", "4294967296", "eos_token_id 4294967296 is outside the vocabulary of 7", 0},
        {"config.json", "[3, 9, 8, 5]", "eos_token_id 9 is outside the vocabulary", 2},
        {"config.json", "1.5", "eos_token_id is 1.5", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool own = cases[i].file[0] == 'c';
        put_config_with("eos_token_id", own ? cases[i].text : "6");
        put_text(scratch, "generation_config.json", own ? "{}" : cases[i].text);
        rose_log_set_level(ROSE_LOG_WARN);
        log_begin();
        rose_model *m = expect_opens(scratch);
        char *log = log_end();
        rose_log_set_level(ROSE_LOG_OFF);
        if (log_count(log, cases[i].warning) != 1 || log_count(log, "\n") != 1)
            fail_msg("case %zu: %s", i, log);
        assert_int_equal(m->arch.n_eos, cases[i].n_eos);
        rose_model_close(m);
        free(log);
    }
    drop_file(scratch, "generation_config.json");
    assert_int_equal(arch_with("bos_token_id", "-1").bos_id, -1);
    assert_int_equal(arch_with("bos_token_id", "1.5").bos_id, -1);
    assert_int_equal(arch_with("bos_token_id", "[3]").bos_id, 3);
    assert_int_equal(arch_with("bos_token_id", "[3, 4]").bos_id, -1);
    assert_int_equal(arch_with("bos_token_id", "\"<s>\"").bos_id, -1);
}

static void too_many_end_of_text_ids(void **state)
{
    (void)state;
    item items[MAX_ITEMS];
    char text[2048], list[1024] = "0";
    size_t n = tiny_items(items, "", false);
    find_item(items, n, "wte.weight")->shape[0] = 100;
    put_items(scratch, "model.safetensors", items, n);
    for (int i = 1, at = 1; i < ROSE_MAX_EOS; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, ",%d", i);
    snprintf(text, sizeof text,
             "{\"model_type\": \"gpt2\", \"n_embd\": 4, \"n_head\": 2, \"n_layer\": 2, "
             "\"n_positions\": 3, \"vocab_size\": 100, \"eos_token_id\": [%s]}",
             list);
    put_text(scratch, "config.json", text);
    put_text(scratch, "generation_config.json", "{\"eos_token_id\": [3, 80, 81]}");
    rose_log_set_level(ROSE_LOG_WARN);
    log_begin();
    rose_model *m = expect_opens(scratch);
    char *log = log_end();
    rose_log_set_level(ROSE_LOG_OFF);
    assert_int_equal(m->arch.n_eos, ROSE_MAX_EOS);
    assert_int_equal(log_count(log, "2 ids of eos_token_id do not end a text"), 1);
    free(log);
    rose_model_close(m);
    drop_file(scratch, "generation_config.json");
    put_tiny(scratch);
}

static void refuses_by_field(void **state)
{
    (void)state;
    static const struct {
        const char *field, *value;
        rose_status status;
        const char *word;
    } lies[] = {
        {"model_type", NULL, ROSE_E_FORMAT, "'model_type' is missing"},
        {"model_type", "7", ROSE_E_FORMAT, "'model_type' is 7"},
        {"model_type", "\"mamba\"", ROSE_E_UNSUPPORTED, "model_type 'mamba' is not supported"},
        {"model_type", "\"\"", ROSE_E_UNSUPPORTED, "model_type ''"},
        {"n_embd", NULL, ROSE_E_FORMAT, "'n_embd' is missing"},
        {"n_embd", "null", ROSE_E_FORMAT, "'n_embd' is missing"},
        {"n_embd", "0", ROSE_E_FORMAT, "'n_embd' is 0; expected an integer from 1"},
        {"n_embd", "-4", ROSE_E_FORMAT, "'n_embd' is -4"},
        {"n_embd", "4.5", ROSE_E_FORMAT, "'n_embd' is 4.5"},
        {"n_embd", "1e300", ROSE_E_FORMAT, "'n_embd' is 1e300"},
        {"n_embd", "\"4\"", ROSE_E_FORMAT, "'n_embd' is the string \"4\""},
        {"n_embd", "[4]", ROSE_E_FORMAT, "'n_embd' is a list"},
        {"n_embd", "{}", ROSE_E_FORMAT, "'n_embd' is an object"},
        {"n_embd", "true", ROSE_E_FORMAT, "'n_embd' is true"},
        {"n_embd", "1048577", ROSE_E_FORMAT, "'n_embd' is 1048577"},
        {"n_embd", "4294967300", ROSE_E_FORMAT, "'n_embd' is 4294967300"}, /* 2^32 + 4 */
        {"n_embd", "9223372036854775807", ROSE_E_FORMAT, "'n_embd' is 9223372036854775807"},
        {"n_embd", "99999999999999999999", ROSE_E_FORMAT, "'n_embd' is 99999999999999999999"},
        {"n_embd", "5", ROSE_E_FORMAT, "n_embd 5 is not a multiple of n_head 2"},
        {"n_head", "0", ROSE_E_FORMAT, "'n_head' is 0"},
        {"n_head", "3", ROSE_E_FORMAT, "n_embd 4 is not a multiple of n_head 3"},
        {"n_head", "8", ROSE_E_FORMAT, "n_embd 4 is not a multiple of n_head 8"},
        {"n_layer", "0", ROSE_E_FORMAT, "'n_layer' is 0"},
        {"n_layer", "1025", ROSE_E_FORMAT, "'n_layer' is 1025"},
        {"n_layer", NULL, ROSE_E_FORMAT, "'n_layer' is missing"},
        {"n_positions", "-1", ROSE_E_FORMAT, "'n_positions' is -1"},
        {"n_embd", "[]", ROSE_E_FORMAT, "'n_embd' is a list"},
        {"vocab_size", "0", ROSE_E_FORMAT, "'vocab_size' is 0"},
        {"vocab_size", "16777217", ROSE_E_FORMAT, "'vocab_size' is 16777217"},
        {"vocab_size", NULL, ROSE_E_FORMAT, "'vocab_size' is missing"},
        {"n_inner", "0", ROSE_E_FORMAT, "'n_inner' is 0"},
        {"n_inner", "-1", ROSE_E_FORMAT, "'n_inner' is -1"},
        {"activation_function", "3", ROSE_E_FORMAT, "'activation_function' is 3"},
        {"activation_function", "\"quick_gelu\"", ROSE_E_UNSUPPORTED, "'quick_gelu'"},
        {"layer_norm_epsilon", "0", ROSE_E_FORMAT, "'layer_norm_epsilon' is 0"},
        {"layer_norm_epsilon", "-1e-5", ROSE_E_FORMAT, "'layer_norm_epsilon' is -1e-5"},
        {"layer_norm_epsilon", "1e-300", ROSE_E_FORMAT, "'layer_norm_epsilon' is 1e-300"},
        {"layer_norm_epsilon", "2", ROSE_E_FORMAT, "'layer_norm_epsilon' is 2"},
        {"layer_norm_epsilon", "\"1e-5\"", ROSE_E_FORMAT, "'layer_norm_epsilon' is the string"},
        {"scale_attn_weights", "1", ROSE_E_FORMAT, "'scale_attn_weights' is 1"},
        {"tie_word_embeddings", "\"yes\"", ROSE_E_FORMAT, "'tie_word_embeddings' is the string"},
        {"add_cross_attention", "true", ROSE_E_UNSUPPORTED, "cross attention"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        put_config_with(lies[i].field, lies[i].value);
        expect_refused(scratch, lies[i].status, "/config.json: ", lies[i].word);
    }
}

#define HUGE "1000000000000000019884624838656" /* model_max_length, as transformers writes it */

/* JSON as Python writes and reads it. A number that does not fit counts only where it is used. */
static void python_json(void **state)
{
    (void)state;
    static const char *const fine[] = {"\"x\": NaN",
                                       "\"x\": [Infinity, -Infinity]",
                                       "\"x\": 1e999",
                                       "\"x\": " HUGE,
                                       "\"x\": -" HUGE,
                                       "\"x\": {\"y\": 18446744073709551616}",
                                       "\"x\": \"a\\u0000b\"",
                                       "\"bos_token_id\": " HUGE,
                                       "\"bos_token_id\": NaN",
                                       "\"eos_token_id\": [" HUGE ", 6, NaN]",
                                       "\"n_head\": 3, \"n_head\": 2"}; /* the last one counts */
    static const char *const lies[][2] = {
        {"\"n_positions\": " HUGE, "'n_positions' is " HUGE},
        {"\"n_positions\": NaN", "'n_positions' is NaN"},
        {"\"n_embd\": Infinity", "'n_embd' is Infinity"},
        {"\"layer_norm_epsilon\": NaN", "'layer_norm_epsilon' is NaN"},
        {"\"layer_norm_epsilon\": 1e999", "'layer_norm_epsilon' is 1e999"},
    };
    char text[512];
    const int n = (int)strlen(TINY_CONFIG) - 1;
    put_tiny(scratch);
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        snprintf(text, sizeof text, "%.*s, %s}", n, TINY_CONFIG, fine[i]);
        put_text(scratch, "config.json", text);
        put_text(scratch, "generation_config.json", text);
        rose_model *m = expect_opens(scratch);
        assert_int_equal(m->arch.kinds[0].mixer.n_heads, 2);
        assert_int_equal(m->arch.n_eos, 1);
        assert_int_equal(m->arch.bos_id, -1);
        rose_model_close(m);
    }
    drop_file(scratch, "generation_config.json");
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        snprintf(text, sizeof text, "%.*s, %s}", n, TINY_CONFIG, lies[i][0]);
        put_text(scratch, "config.json", text);
        expect_refused(scratch, ROSE_E_FORMAT, "/config.json: ", lies[i][1]);
    }
    put_tiny(scratch);
}

/* NVIDIA ModelOpt's own file: config.json need not say that the weights are quantized. */
static void hf_quant_config(void **state)
{
    (void)state;
    static const char name[] = "hf_quant_config.json";
    put_tiny(scratch);
    put_text(
        scratch, name,
        "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": \"NVFP4\"}}");
    expect_refused(scratch, ROSE_E_UNSUPPORTED, name,
                   "quantized by NVIDIA ModelOpt (modelopt, NVFP4)");
    put_text(scratch, name,
             "{\"quantization\": {\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\"}}");
    rose_model_close(expect_opens(scratch));
    put_text(scratch, name, "{");
    rose_model_close(expect_opens(scratch));
    drop_file(scratch, name);
}

static void refuses_broken_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } lies[] = {
        {"", "not valid JSON"},
        {"{", "not valid JSON"},
        {"[]", "not an object"},
        {"null", "not valid JSON"},
        {"{\"model_type\": \"gpt2\",}", "not valid JSON"},
        {"{\"model_type\": \"gpt2\"} trailing", "not valid JSON"},
        {"\xFF\xFE{", "not valid JSON"},
        {"{\"n_embd\": nan}", "not valid JSON"},
        {"{}", "'model_type' is missing"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        put_text(scratch, "config.json", lies[i].text);
        expect_refused(scratch, ROSE_E_FORMAT, "/config.json: ", lies[i].word);
    }
    for (size_t n = 0; n < strlen(TINY_CONFIG); n++) {
        put_file(scratch, "config.json", TINY_CONFIG, n);
        expect_refused(scratch, ROSE_E_FORMAT, "/config.json: ", "not valid JSON");
    }
    size_t big = (64u << 20) + 1;
    char *spaces = malloc(big);
    assert_non_null(spaces);
    memset(spaces, ' ', big);
    put_file(scratch, "config.json", spaces, big);
    free(spaces);
    expect_refused(scratch, ROSE_E_FORMAT, "/config.json: ", "over the limit");
    drop_file(scratch, "config.json");
    expect_refused(scratch, ROSE_E_NOTFOUND, "config.json", "no config.json there");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),         cmocka_unit_test(fields_take_effect),
        cmocka_unit_test(second_names),     cmocka_unit_test(end_of_text_ids),
        cmocka_unit_test(wrong_ids_warn),   cmocka_unit_test(too_many_end_of_text_ids),
        cmocka_unit_test(refuses_by_field), cmocka_unit_test(python_json),
        cmocka_unit_test(hf_quant_config),  cmocka_unit_test(refuses_broken_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown_scratch);
}
