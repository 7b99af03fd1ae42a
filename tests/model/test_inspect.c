/* The description of a model: complete, parsable, and safe to print. */
#include "fixture.h"

#include "model/inspect.h"
#include "model/weights.h"

static void formats_numbers(void **state)
{
    (void)state;
    char s[32];
    assert_string_equal(rose_format_count(0, s), "0");
    assert_string_equal(rose_format_count(999, s), "999");
    assert_string_equal(rose_format_count(1000, s), "1,000");
    assert_string_equal(rose_format_count(124439808, s), "124,439,808");
    assert_string_equal(rose_format_count(UINT64_MAX, s), "18,446,744,073,709,551,615");
    assert_string_equal(rose_format_bytes(0, s), "0 B");
    assert_string_equal(rose_format_bytes(1023, s), "1023 B");
    assert_string_equal(rose_format_bytes(1024, s), "1.0 KiB");
    assert_string_equal(rose_format_bytes(1048575, s), "1.0 MiB");
    assert_string_equal(rose_format_bytes(497759232, s), "474.7 MiB");
    assert_string_equal(rose_format_bytes(UINT64_MAX, s), "16.0 EiB");
}

/* A tiny model with a buffer, whose name tries to write to the terminal. */
static rose_model *open_odd(void)
{
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false);
    add_item(items, &n, "", "h.0.attn.bias", 3, 3);
    add_item(items, &n, "", "x\\u001b[2J\\u0007\\u009b\\n", 1, 0);
    put_tiny(scratch);
    put_items(scratch, "model.safetensors", items, n);
    return expect_opens(scratch);
}

static void prints_all_and_nothing_odd(void **state)
{
    (void)state;
    char *text = NULL;
    size_t len = 0;
    rose_model *m = open_odd();
    FILE *f = open_memstream(&text, &len);
    assert_int_equal(rose_model_print_arch(m, NULL, f), ROSE_OK);
    assert_int_equal(rose_model_print_tensors(m, NULL, f), ROSE_OK);
    fclose(f);
    for (size_t i = 0; i < len; i++)
        assert_true((text[i] >= 0x20 && text[i] < 0x7F) || text[i] == '\n');
    static const char *const words[] = {"gpt2",
                                        "2 of 2",
                                        "the token embedding",
                                        "LayerNorm, epsilon 1e-05",
                                        "0.707107",
                                        "h.1.mlp.c_fc.weight",
                                        "4 x 16",
                                        "x?[2J???",
                                        "not used",
                                        "model.safetensors\n"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strstr(text, words[i]) == NULL) fail_msg("'%s' is missing in:\n%s", words[i], text);
    free(text);
    rose_model_close(m);
}

static void json_says_the_same(void **state)
{
    (void)state;
    rose_model *m = open_odd();
    rose_json *j = rose_model_json(m, NULL);
    assert_non_null(j);
    rose_json *arch = rose_json_get(j, "architecture"), *tensors = rose_json_get(j, "tensors");
    assert_string_equal(rose_json_text(rose_json_get(j, "model_type")), "gpt2");
    assert_int_equal(rose_json_int(rose_json_get(arch, "d_ff")), 16);
    assert_int_equal(rose_json_int(rose_json_at(rose_json_get(arch, "eos_ids"), 0)), 6);
    assert_true(rose_json_is_null(rose_json_get(arch, "bos_id")));
    assert_int_equal(rose_json_count(tensors), m->weights->files[0].n_tensors);
    size_t unused = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < rose_json_count(tensors); i++) {
        rose_json *t = rose_json_at(tensors, i);
        unused += rose_json_is_false(rose_json_get(t, "used"));
        if (rose_json_is_true(rose_json_get(t, "used")))
            bytes += (uint64_t)rose_json_int(rose_json_get(t, "bytes"));
    }
    assert_int_equal(unused, 2);
    assert_int_equal(bytes, m->n_params * 4);
    rose_json_decref(j);
    rose_model_close(m);
}

static void json_of_a_path_that_is_not_utf8(void **state)
{
    (void)state;
    char path[1024];
    put_tiny(scratch);
    join(path, sizeof path, scratch, "caf\xE9");
    rose_random_opts o;
    rose_random_opts_default(&o);
    o.n_layers = 1;
    o.d_model = o.n_heads = 4;
    o.vocab_size = 300;
    o.max_positions = 8;
    assert_int_equal(rose_random_model_write(&o, path, NULL), ROSE_OK);
    rose_model *m = expect_opens(path);
    rose_json *j = rose_model_json(m, NULL);
    assert_string_equal(rose_json_text(rose_json_get(j, "name")), "caf?");
    rose_json_decref(j);
    rose_model_close(m);
}

static void a_full_disk_is_reported(void **state)
{
    (void)state;
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL) skip();
    setvbuf(full, NULL, _IONBF, 0);
    rose_model *m = open_odd();
    assert_int_equal(rose_model_print_tensors(m, NULL, full), ROSE_E_IO);
    rose_model_close(m);
    fclose(full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_numbers),
        cmocka_unit_test(prints_all_and_nothing_odd),
        cmocka_unit_test(json_says_the_same),
        cmocka_unit_test(json_of_a_path_that_is_not_utf8),
        cmocka_unit_test(a_full_disk_is_reported),
    };
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}
