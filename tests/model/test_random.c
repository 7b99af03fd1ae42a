/* The random-model writer: same bytes for the same options, the distribution that it promises, all
 * layouts readable by our reader, nothing left behind on failure. */
#include "fixture.h"

#include <signal.h>
#include <sys/resource.h>

#include "base/json.h"

#include "model/convert.h"

static rose_random_opts small_opts(void)
{
    rose_random_opts o;
    rose_random_opts_default(&o);
    o.n_layers = 2;
    o.d_model = 12;
    o.n_heads = 3;
    o.vocab_size = 300;
    o.max_positions = 10;
    return o;
}

static void write_to(char path[1024], const rose_random_opts *o, const char *name)
{
    rose_err err = {{0}};
    join(path, 1024, scratch, name);
    empty_folder(path);
    if (rose_random_model_write(o, path, &err) != ROSE_OK) fail_msg("%s", err.msg);
}

static uint64_t fnv1a(const void *data, size_t n, uint64_t h)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001B3ull;
    return h;
}

static uint64_t hash_file(const char *dir, const char *name)
{
    rose_buf b = {0};
    get_file(&b, dir, name);
    uint64_t h = fnv1a(b.data, b.len, 0xCBF29CE484222325ull);
    rose_buf_free(&b);
    return h;
}

/* The bytes are part of the contract: other tests keep golden vectors of such models. Should a hash
 * change on purpose, those change too. */
static void bytes_are_fixed(void **state)
{
    (void)state;
    static const uint64_t want[3] = {0x0a7bc48a536c899e, 0x35bd5ef9aeeb4db4, 0xbc863f8e97da3949};
    char path[1024];
    for (int d = 0; d < 3; d++) {
        rose_random_opts o = small_opts();
        o.dtype = (rose_format)d;
        o.seed = 7;
        write_to(path, &o, "fixed");
        uint64_t h = hash_file(path, "model.safetensors");
        if (h != want[d])
            fail_msg("%s: 0x%016llx", rose_formats[o.dtype].name, (unsigned long long)h);
    }
}

static void options_and_seed_decide(void **state)
{
    (void)state;
    char a[1024], b[1024];
    rose_random_opts o = small_opts();
    write_to(a, &o, "a");
    write_to(b, &o, "b");
    static const char *const files[] = {"model.safetensors", "config.json", "vocab.json",
                                        "generation_config.json", "tokenizer.json"};
    for (size_t i = 0; i < 5; i++)
        assert_true(hash_file(a, files[i]) == hash_file(b, files[i]));
    o.seed = 1ull << 32; /* the high half counts too */
    write_to(b, &o, "b");
    assert_true(hash_file(a, "model.safetensors") != hash_file(b, "model.safetensors"));
}

/* All values of all roles in a fixed order. */
static float *values(const rose_model *m, size_t *n)
{
    size_t at = 0;
    float *v = malloc(m->n_params * sizeof *v);
    assert_non_null(v);
    const rose_tensor *head = m->arch.tied_head ? NULL : &m->head;
    const rose_tensor *of_model[] = {&m->tok_embed, &m->pos_embed, &m->lnf_w, &m->lnf_b, head};
    for (size_t i = 0; i < 5 && of_model[i] != NULL; i++) {
        rose_tensor_read_f32(of_model[i], 0, rose_tensor_n(of_model[i]), v + at);
        at += rose_tensor_n(of_model[i]);
    }
    for (uint32_t l = 0; l < m->arch.n_layers; l++) {
        const rose_layer *y = &m->layers[l];
        const rose_tensor *of_layer[] = {&y->ln1_w,
                                         &y->ln1_b,
                                         &y->ln2_w,
                                         &y->ln2_b,
                                         &y->m[ROSE_QKV].w[0],
                                         &y->m[ROSE_QKV].b[0],
                                         &y->m[ROSE_OUT].w[0],
                                         &y->m[ROSE_OUT].b[0],
                                         &y->m[ROSE_UP].w[0],
                                         &y->m[ROSE_UP].b[0],
                                         &y->m[ROSE_DOWN].w[0],
                                         &y->m[ROSE_DOWN].b[0]};
        for (size_t i = 0; i < 12; i++) {
            rose_tensor_read_f32(of_layer[i], 0, rose_tensor_n(of_layer[i]), v + at);
            at += rose_tensor_n(of_layer[i]);
        }
    }
    assert_int_equal(at, m->n_params);
    *n = at;
    return v;
}

/* dtype, prefix and sharding change the files, never the weights (but for rounding). */
static void layouts_hold_the_same_weights(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        float *ref = NULL;
        size_t n_ref = 0;
        for (int c = 0; c < 3 * 2 * 3; c++) {
            char path[1024];
            size_t n = 0;
            rose_random_opts o = small_opts();
            o.tied_head = tied != 0;
            o.dtype = (rose_format)(c % 3);
            o.prefix = c / 3 % 2 != 0;
            o.max_shard_bytes = (uint64_t[]){0, 5000, 1}[c / 6];
            o.d_ff = 20;
            write_to(path, &o, "layout");
            rose_model *m = expect_opens(path);
            assert_int_equal(m->arch.tied_head, tied);
            assert_int_equal(m->arch.kinds[0].mlp.d_ff, 20);
            assert_int_equal(m->arch.eos_ids[0], 299);
            assert_int_equal(m->dtype, o.dtype);
            assert_int_equal(strncmp(m->tok_embed.name, "transformer.", 12) == 0, o.prefix);
            float *v = values(m, &n);
            if (ref == NULL) {
                ref = v;
                n_ref = n;
            }
            assert_int_equal(n, n_ref);
            for (size_t i = 0; i < n; i++) {
                float want = ref[i];
                if (o.dtype == ROSE_F16) want = rose_f16_to_f32(rose_f32_to_f16(want));
                if (o.dtype == ROSE_BF16) want = rose_bf16_to_f32(rose_f32_to_bf16(want));
                assert_true(v[i] == want);
            }
            if (v != ref) free(v);
            rose_model_close(m);
        }
        free(ref);
    }
}

static void shards_keep_their_limit(void **state)
{
    (void)state;
    char path[1024];
    rose_random_opts o = small_opts();
    o.max_shard_bytes = 3000;
    write_to(path, &o, "shards");
    rose_buf b = {0};
    get_file(&b, path, "model.safetensors.index.json");
    rose_json *index = rose_json_loadb(b.data, b.len, 0, NULL);
    assert_non_null(index);
    assert_int_equal(rose_json_size(rose_json_get(index, "weight_map")), 4 + 2 * 12);
    rose_model *m = expect_opens(path);
    rose_json *total = rose_json_get(rose_json_get(index, "metadata"), "total_size");
    assert_int_equal(rose_json_int(total), m->n_params * 4);
    rose_model_close(m);
    rose_json_decref(index);
    get_file(&b, path, "model-00001-of-00008.safetensors"); /* wte alone is over the limit */
    assert_true(b.len > 300 * 12 * 4);
    get_file(&b, path, "model-00002-of-00008.safetensors");
    assert_true(b.len < 3000 + 1500); /* and its header */
    rose_buf_free(&b);
}

/* Mean, variance and kurtosis of one tensor of n values; n so large that 6 standard errors are a
 * tight bound. */
static void check_moments(const rose_tensor *t, double mean, double std)
{
    size_t n = (size_t)rose_tensor_n(t);
    float *v = malloc(n * sizeof *v);
    double m1 = 0, m2 = 0, m4 = 0;
    assert_non_null(v);
    rose_tensor_read_f32(t, 0, n, v);
    for (size_t i = 0; i < n; i++)
        m1 += ((double)v[i] - mean) / std;
    m1 /= (double)n;
    for (size_t i = 0; i < n; i++) {
        double z = ((double)v[i] - mean) / std - m1;
        m2 += z * z;
        m4 += z * z * z * z;
        assert_true(fabs(z) < 3.6);
    }
    m2 /= (double)n;
    m4 /= (double)n;
    double se = 1.0 / sqrt((double)n);
    assert_true(fabs(m1) < 6 * se);
    assert_true(fabs(m2 - 1) < 6 * 1.4 * se);
    assert_true(fabs(m4 / (m2 * m2) - 2.7) < 6 * 5 * se); /* Irwin-Hall of 4: 3 - 0.3 */
    free(v);
}

static void weights_have_the_promised_spread(void **state)
{
    (void)state;
    char path[1024];
    rose_random_opts o = small_opts();
    o.n_layers = 8;
    o.d_model = 192;
    o.max_positions = 1000;
    write_to(path, &o, "spread");
    rose_model *m = expect_opens(path);
    check_moments(&m->tok_embed, 0, 0.02);
    check_moments(&m->pos_embed, 0, 0.02);
    check_moments(&m->lnf_w, 1, 0.02);
    check_moments(&m->lnf_b, 0, 0.02);
    for (int l = 0; l < 8; l++) {
        check_moments(&m->layers[l].ln1_w, 1, 0.02);
        check_moments(&m->layers[l].m[ROSE_QKV].w[0], 0, 0.02);
        check_moments(&m->layers[l].m[ROSE_QKV].b[0], 0, 0.02);
        check_moments(&m->layers[l].m[ROSE_OUT].w[0], 0, 0.02 / 4);
        check_moments(&m->layers[l].m[ROSE_UP].w[0], 0, 0.02);
        check_moments(&m->layers[l].m[ROSE_DOWN].w[0], 0, 0.02 / 4);
    }
    /* Streams of different tensors are different. */
    assert_memory_not_equal(m->layers[0].m[ROSE_QKV].w[0].data, m->layers[1].m[ROSE_QKV].w[0].data,
                            4096);
    assert_memory_not_equal(m->tok_embed.data, m->pos_embed.data, 4096);
    rose_model_close(m);
}

/* The same values from config.json alone, drawn in shares. */
static void dummy_holds_the_same_weights(void **state)
{
    static const rose_format types[] = {ROSE_F32, ROSE_F16, ROSE_BF16};
    (void)state;
    for (int i = 0; i < 3; i++) {
        char path[1024], bare[1024];
        rose_model *m = NULL;
        rose_err err = {{0}};
        rose_random_opts o = small_opts();
        o.vocab_size = 5001; /* an odd number of values, in several blocks */
        o.d_model = 9;
        o.dtype = types[i];
        write_to(path, &o, "written");
        o.no_weights = true;
        write_to(bare, &o, "bare");
        assert_int_equal(rose_model_open_as(&m, bare, "auto", &err), ROSE_E_NOTFOUND);
        assert_int_equal(rose_model_open_as(&m, bare, "empty", &err), ROSE_E_INVAL);
        if (rose_model_open_as(&m, bare, "dummy", &err) != ROSE_OK) fail_msg("%s", err.msg);
        rose_model *want = expect_opens(path);
        assert_int_equal(m->dtype, types[i]);
        assert_int_equal(m->n_params, want->n_params);
        for (uint32_t part = 3; part-- > 0;)
            rose_dummy_fill(m, part, 3);
        const size_t size = rose_format_size(types[i]);
        assert_memory_equal(m->tok_embed.data, want->tok_embed.data, 5001 * 9 * size);
        for (int l = 0; l < 2; l++) {
            assert_memory_equal(m->layers[l].ln1_w.data, want->layers[l].ln1_w.data, 9 * size);
            assert_memory_equal(m->layers[l].m[ROSE_DOWN].w[0].data,
                                want->layers[l].m[ROSE_DOWN].w[0].data, 9 * 36 * size);
        }
        rose_tensor part = m->layers[1].m[ROSE_DOWN].w[0];
        part.data = (const uint8_t *)part.data + 7 * 9 * size; /* from row 7 on */
        const rose_random_values v = rose_dummy_values(m, &part);
        float drawn[9], read[9];
        rose_random_draw(drawn, &v, 9);
        rose_tensor_read_f32(&want->layers[1].m[ROSE_DOWN].w[0], 7 * 9, 9, read);
        for (int k = 0; k < 9; k++) {
            const float x = types[i] == ROSE_F16    ? rose_f16_to_f32(rose_f32_to_f16(drawn[k]))
                            : types[i] == ROSE_BF16 ? rose_bf16_to_f32(rose_f32_to_bf16(drawn[k]))
                                                    : drawn[k];
            assert_true(x == read[k]);
        }
        rose_model_close(m);
        rose_model_close(want);
    }
}

/* The shapes of public models, by their number of parameters. */
static void presets_are_the_public_shapes(void **state)
{
    static const struct {
        const char *name;
        uint64_t n_params;
    } presets[] = {
        {"smollm2-135m", 134515008}, {"qwen3-0.6b", 596049920}, {"llama-3.2-1b", 1235814400},
        {"qwen3-4b", 4022468096},    {"qwen3-8b", 8190735360},  {"gemma3-270m", 268098176},
    };
    (void)state;
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        char path[1024];
        rose_model *m = NULL;
        rose_err err = {{0}};
        rose_random_opts o;
        rose_random_opts_default(&o);
        o.preset = presets[i].name;
        o.dtype = ROSE_BF16;
        o.no_weights = true;
        write_to(path, &o, "preset");
        if (rose_model_open_dummy(&m, path, &err) != ROSE_OK) fail_msg("%s", err.msg);
        assert_int_equal(m->n_params, presets[i].n_params);
        assert_int_equal(m->dtype, ROSE_BF16);
        rose_model_close(m);
    }
}

static void vocabulary_is_whole(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {257, 258, 5000};
    for (int i = 0; i < 3; i++) {
        char path[1024];
        bool seen[5000] = {false};
        const char *token;
        rose_json *id;
        rose_buf b = {0};
        rose_random_opts o = small_opts();
        o.vocab_size = sizes[i];
        write_to(path, &o, "vocab");
        get_file(&b, path, "tokenizer.json");
        rose_json *root = rose_json_loadb(b.data, b.len, 0, NULL);
        rose_json *vocab = rose_json_get(rose_json_get(root, "model"), "vocab");
        assert_int_equal(rose_json_size(vocab), sizes[i]);
        rose_json_each (vocab, token, id) {
            assert_in_range(rose_json_int(id), 0, sizes[i] - 1);
            assert_false(seen[rose_json_int(id)]);
            seen[rose_json_int(id)] = true;
        }
        assert_int_equal(rose_json_int(rose_json_get(vocab, "!")), 0);
        assert_int_equal(rose_json_int(rose_json_get(vocab, "A")), 32);
        assert_int_equal(rose_json_int(rose_json_get(vocab, "\xC4\xA0")), 220); /* space */
        assert_int_equal(rose_json_int(rose_json_get(vocab, "<|endoftext|>")), sizes[i] - 1);
        rose_json_decref(root);
        rose_buf_free(&b);
    }
}

static bool folder_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static void refuses_false_options(void **state)
{
    (void)state;
    char path[1024];
    join(path, sizeof path, scratch, "refused");
    for (int i = 0; i < 10; i++) {
        rose_random_opts o = small_opts();
        const char *word = "";
        rose_status want = ROSE_E_INVAL;
        switch (i) {
        case 0:
            o.n_layers = 0;
            word = "'n_layer' is 0";
            break;
        case 1:
            o.d_model = 13;
            word = "n_embd 13 is not a multiple of n_head 3";
            break;
        case 2:
            o.n_heads = 0;
            word = "'n_head' is 0";
            break;
        case 3:
            o.vocab_size = 256;
            word = "vocab_size is 256; at least 257";
            break;
        case 4:
            o.vocab_size = UINT32_MAX;
            word = "'vocab_size' is 4294967295";
            break;
        case 5:
            o.max_positions = 0;
            word = "'n_positions' is 0";
            break;
        case 6:
            o.d_ff = UINT32_MAX;
            word = "'n_inner' is 4294967295";
            break;
        case 7:
            o.arch = "mamba";
            want = ROSE_E_UNSUPPORTED;
            word = "model_type 'mamba' is not supported";
            break;
        case 8:
            o.vocab_size = 0;
            word = "'vocab_size' is 0";
            break;
        default:
            o.d_model = UINT32_MAX;
            word = "'n_embd' is 4294967295";
        }
        rose_err err = {{0}};
        assert_int_equal(rose_random_model_write(&o, path, &err), want);
        if (strstr(err.msg, word) == NULL) fail_msg("%s\n  expected '%s'", err.msg, word);
        assert_false(folder_exists(path));
    }
}

static void refuses_folders_in_use(void **state)
{
    (void)state;
    char path[1024], file[1024];
    rose_err err = {{0}};
    rose_random_opts o = small_opts();
    write_to(path, &o, "in-use");
    uint64_t before = hash_file(path, "model.safetensors");
    o.seed = 99;
    assert_int_equal(rose_random_model_write(&o, path, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "not an empty folder"));
    assert_true(hash_file(path, "model.safetensors") == before);
    join(file, sizeof file, path, "config.json");
    assert_int_equal(rose_random_model_write(&o, file, &err), ROSE_E_INVAL);
    join(file, sizeof file, scratch, "no/such/parent");
    assert_int_equal(rose_random_model_write(&o, file, &err), ROSE_E_IO);
    assert_non_null(strstr(err.msg, "no/such/parent"));
}

/* The disk fills at some byte: whatever the point, one message, and no trace. A file size limit
 * stands in for the disk. */
static void removes_a_half_written_folder(void **state)
{
    (void)state;
    struct rlimit old, limit;
    char path[1024];
    rose_random_opts o = small_opts();
    o.max_shard_bytes = 20000;
    join(path, sizeof path, scratch, "half");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t bytes = 0; bytes < 14400; bytes += bytes < 400 ? 10 : 700) {
        rose_err err = {{0}};
        limit = (struct rlimit){bytes, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        rose_status st = rose_random_model_write(&o, path, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(st, ROSE_E_IO);
        assert_non_null(strstr(err.msg, path));
        assert_non_null(strstr(err.msg, "File too large"));
        assert_false(folder_exists(path));
    }
    /* A folder that was there before stays, empty. */
    assert_int_equal(mkdir(path, 0777), 0);
    limit = (struct rlimit){1000, old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    rose_status st = rose_random_model_write(&o, path, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st, ROSE_E_IO);
    assert_int_equal(rmdir(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_fixed),
        cmocka_unit_test(options_and_seed_decide),
        cmocka_unit_test(layouts_hold_the_same_weights),
        cmocka_unit_test(shards_keep_their_limit),
        cmocka_unit_test(weights_have_the_promised_spread),
        cmocka_unit_test(dummy_holds_the_same_weights),
        cmocka_unit_test(presets_are_the_public_shapes),
        cmocka_unit_test(vocabulary_is_whole),
        cmocka_unit_test(refuses_false_options),
        cmocka_unit_test(refuses_folders_in_use),
        cmocka_unit_test(removes_a_half_written_folder),
    };
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}
