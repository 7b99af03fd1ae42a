/* Whole folders: every valid layout, and folders whose parts contradict each other. */
#include "fixture.h"

#include "model/convert.h"
#include "model/weights.h"

static bool same_tensor(const rose_tensor *a, const rose_tensor *b)
{
    return a->data == b->data && a->n_dims == b->n_dims && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1];
}

/* Every role is filled with a tensor of its own. */
static void check_roles(const rose_model *m)
{
    const void *seen[MAX_ITEMS];
    size_t n = 0;
    uint64_t params = 0;
    const rose_tensor *all[MAX_ITEMS];
    all[n++] = &m->tok_embed;
    all[n++] = &m->pos_embed;
    all[n++] = &m->lnf_w;
    all[n++] = &m->lnf_b;
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        const rose_layer *l = &m->layers[i];
        const rose_tensor *of_layer[] = {&l->ln1_w,
                                         &l->ln1_b,
                                         &l->ln2_w,
                                         &l->ln2_b,
                                         &l->m[ROSE_QKV].w[0],
                                         &l->m[ROSE_QKV].b[0],
                                         &l->m[ROSE_OUT].w[0],
                                         &l->m[ROSE_OUT].b[0],
                                         &l->m[ROSE_UP].w[0],
                                         &l->m[ROSE_UP].b[0],
                                         &l->m[ROSE_DOWN].w[0],
                                         &l->m[ROSE_DOWN].b[0]};
        assert_false(l->m[ROSE_QKV].transposed || l->m[ROSE_OUT].transposed ||
                     l->m[ROSE_UP].transposed || l->m[ROSE_DOWN].transposed);
        for (size_t k = 0; k < 12; k++)
            all[n++] = of_layer[k];
    }
    if (!m->arch.tied_head) all[n++] = &m->head;
    for (size_t i = 0; i < n; i++) {
        assert_non_null(all[i]->data);
        seen[i] = all[i]->data;
        for (size_t k = 0; k < i; k++)
            assert_ptr_not_equal(seen[k], seen[i]);
        params += rose_tensor_n(all[i]);
        float last = 0;
        rose_tensor_read_f32(all[i], rose_tensor_n(all[i]) - 1, 1, &last);
    }
    assert_int_equal(params, m->n_params);
    if (m->arch.tied_head) assert_true(same_tensor(&m->head, &m->tok_embed));
}

static void opens_with_and_without_prefix(void **state)
{
    (void)state;
    for (int prefix = 0; prefix < 2; prefix++) {
        item items[MAX_ITEMS];
        const char *p = prefix ? "transformer." : "";
        size_t n = tiny_items(items, p, false);
        put_tiny(scratch);
        put_items(scratch, "model.safetensors", items, n);
        rose_model *m = expect_opens(scratch);
        check_roles(m);
        assert_int_equal(m->weights->files[0].n_tensors, n);
        assert_int_equal(m->dtype, ROSE_F32);
        assert_string_equal(m->name, strrchr(scratch, '/') + 1);
        assert_int_equal(m->layers[1].m[ROSE_QKV].w[0].shape[1], 12);
        assert_int_equal(m->lnf_w.shape[1], 1);
        assert_int_equal(m->lnf_w.n_dims, 1);
        rose_model_close(m);
    }
}

/* Makes the head, which is the last tensor of the tiny model's file, equal to the embedding, which
 * is the first one. */
static void equal_head(void)
{
    rose_buf b = {0};
    enum { BYTES = TINY_VOCAB * TINY_D * 4 };
    get_file(&b, scratch, "model.safetensors");
    uint64_t header = 0;
    memcpy(&header, b.data, sizeof header);
    memcpy(b.data + b.len - BYTES, b.data + 8 + header, BYTES);
    put_file(scratch, "model.safetensors", b.data, b.len);
    rose_buf_free(&b);
}

typedef enum in_file { NO_HEAD, OTHER_HEAD, EQUAL_HEAD, HEAD_ALONE } in_file;

static void put_head(const char *tie, const char *class, in_file has)
{
    char config[512];
    item items[MAX_ITEMS];
    put_tiny(scratch);
    snprintf(config, sizeof config,
             "%.*s, \"tie_word_embeddings\": %s, \"architectures\": [\"%s\"]}",
             (int)strlen(TINY_CONFIG) - 1, TINY_CONFIG, tie, class);
    put_text(scratch, "config.json", config);
    const size_t n = tiny_items(items, "transformer.", has != NO_HEAD);
    const size_t skip = has == HEAD_ALONE; /* the embedding comes first */
    put_items(scratch, "model.safetensors", items + skip, n - skip);
    if (has == EQUAL_HEAD) equal_head();
}

/* As in transformers: a head that differs from the embedding is the head, whatever config.json
 * says, and a tied matrix may be stored under either name. Without a head that config.json asks for
 * there is no text. */
static void head_tied_or_not(void **state)
{
    (void)state;
    static const struct {
        const char *tie, *class; /* in config.json */
        in_file has;
        bool tied;           /* expected */
        const char *no_text; /* a part of it, or NULL */
    } cases[] = {
        {"true", "GPT2LMHeadModel", NO_HEAD, true, NULL},
        {"true", "GPT2LMHeadModel", OTHER_HEAD, false, NULL},
        {"true", "GPT2LMHeadModel", EQUAL_HEAD, true, NULL},
        {"true", "GPT2LMHeadModel", HEAD_ALONE, true, NULL},
        {"false", "GPT2LMHeadModel", OTHER_HEAD, false, NULL},
        {"false", "GPT2LMHeadModel", EQUAL_HEAD, false, NULL},
        {"false", "GPT2LMHeadModel", NO_HEAD, true, "a model without its head (GPT2LMHeadModel)"},
        {"false", "GPT2Model", NO_HEAD, true, "an embedding model (GPT2Model)"},
        {"false", "Bad \\u0001 Name", NO_HEAD, true, "an embedding model"},
        {"false", "GPT2ForSequenceClassification", NO_HEAD, true, "a reward model or classifier"},
        {"true", "GPT2ForSequenceClassification", NO_HEAD, true, "a reward model or classifier"},
        {"true", "GPT2Model", NO_HEAD, true, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_head(cases[i].tie, cases[i].class, cases[i].has);
        rose_model *m = expect_opens(scratch);
        const char *const no_text = m->arch.no_text;
        assert_int_equal(m->arch.tied_head, cases[i].tied);
        assert_string_equal(m->head.name, cases[i].tied && cases[i].has != HEAD_ALONE
                                              ? "transformer.wte.weight"
                                              : "lm_head.weight");
        if (cases[i].no_text == NULL ? no_text[0] != '\0'
                                     : strstr(no_text, cases[i].no_text) == NULL)
            fail_msg("case %zu: %s", i, no_text);
        assert_int_equal(m->arch.headless,
                         cases[i].has == NO_HEAD && strcmp(cases[i].tie, "false") == 0);
        check_roles(m);
        rose_model_close(m);
    }
    put_head("false", "GPT2LMHeadModel", HEAD_ALONE);
    expect_refused(scratch, ROSE_E_FORMAT, "model.safetensors",
                   "'transformer.wte.weight' (or 'wte.we");
}

static void ignores_buffers_and_lists_them(void **state)
{
    (void)state;
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false), listed = 0;
    add_item(items, &n, "", "h.0.attn.bias", 3, 3);
    add_item(items, &n, "", "h.0.attn.masked_bias", 1, 0);
    add_item(items, &n, "", "something.else", 2, 2);
    items[n - 1].dtype = "I16"; /* unusable, and not used */
    put_tiny(scratch);
    put_items(scratch, "model.safetensors", items, n);
    rose_model *m = expect_opens(scratch);
    assert_int_equal(m->weights->files[0].n_tensors, n);
    for (size_t i = 0; i < n; i++) {
        const rose_st_tensor *t = &m->weights->files[0].tensors[i];
        assert_string_equal(t->name, items[i].name);
        assert_int_equal(t->n_dims, items[i].n_dims);
        assert_int_equal(t->end - t->begin, item_bytes(&items[i]));
        listed += strcmp(t->dtype_name, "I16") == 0;
    }
    assert_int_equal(listed, 1);
    rose_model_close(m);
}

static void dtype_is_that_of_most_bytes(void **state)
{
    (void)state;
    static const char *const names[] = {"F32", "F16", "BF16"};
    for (int d = 0; d < 3; d++) {
        item items[MAX_ITEMS];
        size_t n = tiny_items(items, "", false);
        for (size_t i = 0; i < n; i++) /* vectors in F32, matrices in the dtype */
            items[i].dtype = items[i].n_dims == 2 ? names[d] : "F32";
        put_tiny(scratch);
        put_items(scratch, "model.safetensors", items, n);
        rose_model *m = expect_opens(scratch);
        assert_int_equal(m->dtype, d);
        assert_int_equal(m->lnf_w.dtype, ROSE_F32);
        assert_int_equal(m->layers[1].m[ROSE_DOWN].w[0].dtype, d);
        rose_model_close(m);
    }
}

static void names_from_odd_paths(void **state)
{
    (void)state;
    char path[1024], cwd[1024];
    put_tiny(scratch);
    join(path, sizeof path, scratch, "//");
    rose_model *m = expect_opens(path);
    assert_string_equal(m->name, strrchr(scratch, '/') + 1);
    assert_string_equal(m->path, scratch);
    rose_model_close(m);
    assert_non_null(getcwd(cwd, sizeof cwd));
    assert_int_equal(chdir(scratch), 0);
    m = expect_opens(".");
    assert_string_equal(m->name, strrchr(scratch, '/') + 1);
    rose_model_close(m);
    assert_int_equal(chdir(cwd), 0);
    expect_refused("", ROSE_E_NOTFOUND, "no such folder", "roseinfer pull ORG/NAME");
    expect_refused("none.gguf", ROSE_E_NOTFOUND, "no such file", "roseinfer pull ORG/NAME");
    join(path, sizeof path, scratch, "config.json");
    expect_refused(path, ROSE_E_FORMAT, "config.json", "is a file");
    rose_model_close(NULL);
}

/* ---- false folders ---- */

static void refuses_each_missing_tensor(void **state)
{
    (void)state;
    item items[MAX_ITEMS], rest[MAX_ITEMS];
    size_t n = tiny_items(items, "transformer.", false);
    put_tiny(scratch);
    for (size_t gone = 0; gone < n; gone++) {
        char word[200];
        size_t k = 0;
        for (size_t i = 0; i < n; i++)
            if (i != gone) rest[k++] = items[i];
        put_items(scratch, "model.safetensors", rest, k);
        snprintf(word, sizeof word, "'%.150s'", items[gone].name);
        expect_refused(scratch, ROSE_E_FORMAT, "model.safetensors: tensor", word);
        expect_refused(scratch, ROSE_E_FORMAT, word, "is missing");
    }
}

static void refuses_each_wrong_shape(void **state)
{
    (void)state;
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false);
    put_tiny(scratch);
    for (size_t k = 0; k < n; k++) {
        item good = items[k];
        for (int way = 0; way < 4; way++) {
            char word[200];
            item *it = &items[k];
            if (way == 0) it->shape[0]++;
            if (way == 1) it->shape[it->n_dims - 1]--;
            if (way == 2) it->shape[it->n_dims++] = 1;
            if (way == 3 && it->n_dims == 2) {
                it->n_dims = 1;
                it->shape[0] *= it->shape[1];
            } else if (way == 3) {
                it->n_dims = 0;
            }
            put_items(scratch, "model.safetensors", items, n);
            snprintf(word, sizeof word, "'%.150s' has shape [", it->name);
            expect_refused(scratch, ROSE_E_FORMAT, word, "; config.json asks for [");
            items[k] = good;
        }
    }
    find_item(items, n, "h.1.mlp.c_fc.weight")->shape[1] = 15;
    put_items(scratch, "model.safetensors", items, n);
    expect_refused(scratch, ROSE_E_FORMAT,
                   "'h.1.mlp.c_fc.weight' has shape [4, 15]; config.json asks for [4, 16]",
                   "model.safetensors");
}

static void refuses_other_contradictions(void **state)
{
    (void)state;
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false);
    find_item(items, n, "h.0.ln_1.bias")->dtype = "I16";
    put_tiny(scratch);
    put_items(scratch, "model.safetensors", items, n);
    expect_refused(scratch, ROSE_E_UNSUPPORTED, "'h.0.ln_1.bias' has dtype I16",
                   "F32, F16 and BF16");

    n = tiny_items(items, "", false);
    add_item(items, &n, "transformer.", "wte.weight", TINY_VOCAB, TINY_D);
    put_items(scratch, "model.safetensors", items, n);
    expect_refused(scratch, ROSE_E_FORMAT, "both 'transformer.wte.weight' and 'wte.weight'",
                   "model.safetensors");

    put_items(scratch, "model.safetensors", items, 0);
    expect_refused(scratch, ROSE_E_FORMAT, "model.safetensors", "no tensors");
    put_text(scratch, "model.safetensors", "");
    expect_refused(scratch, ROSE_E_FORMAT, "model.safetensors", "0 bytes");
    drop_file(scratch, "model.safetensors");
    expect_refused(scratch, ROSE_E_NOTFOUND, scratch, "neither model.safetensors nor");
    put_text(scratch, "pytorch_model.bin", "x");
    expect_refused(scratch, ROSE_E_NOTFOUND, "neither model.safetensors",
                   "converted to safetensors");
    char path[1024];
    join(path, sizeof path, scratch, "model.safetensors");
    assert_int_equal(mkdir(path, 0777), 0);
    expect_refused(scratch, ROSE_E_IO, "model.safetensors", "not a regular file");
    assert_int_equal(rmdir(path), 0);
}

/* ---- NaN and infinity ---- */

enum { WIDE_VOCAB = 300, WIDE_N = WIDE_VOCAB * TINY_D }; /* two whole blocks of 512, and a tail */

/* A model whose wte.weight has WIDE_N elements of one type, all weights zero but element `at`. */
static void put_wide(const char *dtype, size_t size, size_t at, uint32_t value)
{
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false);
    rose_buf b = {0};
    uint64_t header = 0;
    find_item(items, n, "wte.weight")->shape[0] = WIDE_VOCAB;
    for (size_t i = 0; i < n; i++)
        items[i].dtype = dtype;
    st_build(&b, items, n);
    memcpy(&header, b.data, sizeof header);
    memset(b.data + 8 + header, 0, b.len - 8 - header);
    memcpy(b.data + 8 + header + at * size, &value, size); /* wte.weight is first */
    put_file(scratch, "model.safetensors", b.data, b.len);
    rose_buf_free(&b);
}

static void expect_finite(const char *word, size_t at)
{
    char element[32];
    rose_err err = {{0}};
    rose_model *m = expect_opens(scratch);
    rose_status st = rose_model_check_finite(m, 1 + (uint32_t)(at % 4), &err);
    snprintf(element, sizeof element, " at element %zu:", at);
    if (word == NULL) {
        assert_int_equal(st, ROSE_OK);
    } else if (st != ROSE_E_FORMAT || strstr(err.msg, "tensor 'wte.weight' is ") == NULL ||
               strstr(err.msg, word) == NULL || strstr(err.msg, element) == NULL) {
        fail_msg("%s: %s\n  expected %s%s", rose_status_name(st), err.msg, word, element);
    }
    rose_model_close(m);
}

static void finds_weights_that_are_no_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *dtype;
        size_t size;
        uint32_t nan[2], inf[2], finite[2];
    } types[] = {
        {"F32", 4, {0x7F800001, 0xFFC00000}, {0x7F800000, 0xFF800000}, {0x7F7FFFFF, 0xFF7FFFFF}},
        {"F16", 2, {0x7C01, 0xFE00}, {0x7C00, 0xFC00}, {0x7BFF, 0xFBFF}},
        {"BF16", 2, {0x7F81, 0xFFC0}, {0x7F80, 0xFF80}, {0x7F7F, 0xFF7F}},
    };
    static const size_t places[] = {0, 1, 511, 512, 1023, 1024, WIDE_N - 1};
    empty_folder(scratch);
    put_text(scratch, "config.json",
             "{\"model_type\": \"gpt2\", \"n_embd\": 4, \"n_head\": 2, \"n_layer\": 2, "
             "\"n_positions\": 3, \"vocab_size\": 300}");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t p = 0; p < sizeof places / sizeof *places; p++)
            for (int sign = 0; sign < 2; sign++) {
                put_wide(types[t].dtype, types[t].size, places[p], types[t].nan[sign]);
                expect_finite("NaN", places[p]);
                put_wide(types[t].dtype, types[t].size, places[p], types[t].inf[sign]);
                expect_finite("infinite", places[p]);
                put_wide(types[t].dtype, types[t].size, places[p], types[t].finite[sign]);
                expect_finite(NULL, 0);
            }
}

/* A tensor that no role asks for may hold anything. */
static void unused_tensors_need_not_be_numbers(void **state)
{
    (void)state;
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false);
    rose_buf b = {0};
    uint64_t header = 0;
    put_tiny(scratch);
    add_item(items, &n, "", "extra.weight", 2, 2);
    st_build(&b, items, n);
    memcpy(&header, b.data, sizeof header);
    memset(b.data + 8 + header, 0, b.len - 8 - header);
    memset(b.data + b.len - 16, 0xFF, 16);
    put_file(scratch, "model.safetensors", b.data, b.len);
    rose_buf_free(&b);
    expect_finite(NULL, 0);
}

/* ---- shards ---- */

/* The tiny model in two shards; index: all names to their files, but for one edit. */
static void put_sharded(const char *edit_name, const char *edit_file)
{
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false), half = n / 2;
    rose_buf b = {0};
    put_tiny(scratch);
    drop_file(scratch, "model.safetensors");
    put_items(scratch, "s1.safetensors", items, half);
    put_items(scratch, "s2.safetensors", items + half, n - half);
    rose_buf_addf(&b, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {\"%s\": \"%s\"",
                  edit_name != NULL ? edit_name : items[0].name,
                  edit_file != NULL ? edit_file : "s1.safetensors");
    for (size_t i = 0; i < n; i++)
        if (strcmp(items[i].name, edit_name != NULL ? edit_name : items[0].name) != 0)
            rose_buf_addf(&b, ", \"%s\": \"%s\"", items[i].name,
                          i < half ? "s1.safetensors" : "s2.safetensors");
    rose_buf_addf(&b, "}}");
    put_file(scratch, "model.safetensors.index.json", b.data, b.len);
    rose_buf_free(&b);
}

static void opens_shards(void **state)
{
    (void)state;
    put_sharded(NULL, NULL);
    rose_model *m = expect_opens(scratch);
    check_roles(m);
    struct stat s1, s2;
    char path[1024];
    join(path, sizeof path, scratch, "s1.safetensors");
    assert_int_equal(stat(path, &s1), 0);
    join(path, sizeof path, scratch, "s2.safetensors");
    assert_int_equal(stat(path, &s2), 0);
    assert_int_equal(m->file_bytes, s1.st_size + s2.st_size);
    rose_model_close(m);
}

static void refuses_false_indexes(void **state)
{
    (void)state;
    static const char index[] = "model.safetensors.index.json";
    static const char *const escapes[] = {"../s1.safetensors",
                                          "/etc/passwd",
                                          "..",
                                          ".",
                                          "sub/s1.safetensors",
                                          "",
                                          "a\\\\b",
                                          ".hidden"};
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        put_sharded("wte.weight", escapes[i]);
        expect_refused(scratch, ROSE_E_FORMAT, index, "not a plain file name");
    }
    put_sharded("wte.weight", "s3.safetensors");
    expect_refused(scratch, ROSE_E_NOTFOUND, index, "'s3.safetensors' is missing");
    char path[1024];
    join(path, sizeof path, scratch, "s3.safetensors");
    assert_int_equal(symlink("../../blobs/gone", path), 0);
    put_text(scratch, "model.safetensors.index.json",
             "{\"weight_map\": {\"wte.weight\": \"s3.safetensors\"}}");
    expect_refused(scratch, ROSE_E_IO, "/s3.safetensors",
                   "'../../blobs/gone', which does not exist");
    put_sharded("wte.weight", "s2.safetensors"); /* where a tensor is, the files say */
    rose_model_close(expect_opens(scratch));
    put_sharded("no.such.tensor", "s2.safetensors");
    rose_model_close(expect_opens(scratch));

    static const struct {
        const char *text, *word;
    } lies[] = {
        {"", "not valid JSON"},
        {"[]", "not an object"},
        {"{}", "'weight_map' is missing"},
        {"{\"weight_map\": []}", "'weight_map' is missing or not an object"},
        {"{\"weight_map\": {}}", "weight_map is empty"},
        {"{\"weight_map\": {\"wte.weight\": 1}}", "the file of tensor 'wte.weight'"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        put_text(scratch, index, lies[i].text);
        expect_refused(scratch, ROSE_E_FORMAT, index, lies[i].word);
    }
}

static void takes_the_last_of_two(void **state)
{
    (void)state;
    item items[MAX_ITEMS];
    const size_t n = tiny_items(items, "", false);
    put_sharded(NULL, NULL);
    put_items(scratch, "s2.safetensors", items, n); /* also those of s1 */
    rose_model *m = expect_opens(scratch);
    const rose_weight_file *last = &m->weights->files[1];
    assert_int_equal(m->weights->n_tensors, n);
    assert_int_equal(m->weights->files[0].n_tensors + last->n_tensors, n + n / 2);
    for (size_t i = 0; i < n; i++)
        assert_true(m->weights->by_name[i] >= last->tensors &&
                    m->weights->by_name[i] < last->tensors + last->n_tensors);
    check_roles(m);
    rose_model_close(m);
}

static void refuses_false_shards(void **state)
{
    (void)state;
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false);
    put_sharded(NULL, NULL);
    put_text(scratch, "s2.safetensors", "short");
    expect_refused(scratch, ROSE_E_FORMAT, "s2.safetensors", "too short");
    put_sharded(NULL, NULL);
    put_items(scratch, "s2.safetensors", items + n / 2, n - n / 2 - 1);
    expect_refused(scratch, ROSE_E_FORMAT, "tensor", "'ln_f.bias' is missing");
}

/* ---- corruption ---- */

static void random_corruption_never_crashes(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json", "s1.safetensors", "s2.safetensors",
                                        "model.safetensors.index.json"};
    uint64_t seed = test_seed();
    uint32_t ctr = 0, opened = 0;
    rose_buf good[4] = {{0}, {0}, {0}, {0}};
    put_sharded(NULL, NULL);
    for (int i = 0; i < 4; i++)
        get_file(&good[i], scratch, files[i]);
    for (int round = 0; round < 4000; round++) {
        uint32_t k = draw(seed, &ctr, 4);
        rose_buf b = {0};
        rose_model *m = NULL;
        rose_err err = {{0}};
        assert_int_equal(rose_buf_add(&b, good[k].data, good[k].len), ROSE_OK);
        for (uint32_t edits = 1 + draw(seed, &ctr, 2); edits > 0; edits--)
            b.data[draw(seed, &ctr, (uint32_t)b.len)] =
                (char)(draw(seed, &ctr, 2) ? '0' + draw(seed, &ctr, 10) : draw(seed, &ctr, 256));
        if (draw(seed, &ctr, 8) == 0) b.len = draw(seed, &ctr, (uint32_t)b.len);
        put_file(scratch, files[k], b.data, b.len);
        rose_buf_free(&b);
        if (rose_model_open(&m, scratch, &err) == ROSE_OK) {
            check_roles(m);
            opened++;
        } else {
            assert_null(m);
            assert_string_not_equal(err.msg, "");
        }
        rose_model_close(m);
        put_file(scratch, files[k], good[k].data, good[k].len);
    }
    assert_in_range(opened, 1, 3999);
    for (int i = 0; i < 4; i++)
        rose_buf_free(&good[i]);
}

/* Folders of quantized weights whose config.json does not say so: the format by name. */
static void names_quantized_weights(void **state)
{
    static const char *const cases[][2] = {
        {"h.0.attn.c_attn.scales", "MLX"},
        {"h.0.attn.c_attn.qzeros", "GPTQ or AWQ"},
        {"h.0.attn.c_attn.g_idx", "(GPTQ)"},
        {"h.0.attn.c_attn.weight_scale_2", "modelopt"},
        {"h.0.mlp.c_fc.SCB", "bitsandbytes"},
        {"h.0.mlp.c_fc.weight_packed", "compressed-tensors"},
        {"h.0.mlp.c_fc.weight_scale_inv", "FP8"},
    };
    static const char *const files[][2] = {{"quantize_config.json", "GPTQ"},
                                           {"quant_config.json", "AWQ"},
                                           {"hf_quant_config.json", "modelopt"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        item items[MAX_ITEMS];
        size_t n = tiny_items(items, "", false);
        add_item(items, &n, "", cases[i][0], 2, 2);
        put_tiny(scratch);
        put_items(scratch, "model.safetensors", items, n);
        expect_refused(scratch, ROSE_E_UNSUPPORTED, cases[i][0], cases[i][1]);
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        put_tiny(scratch);
        drop_file(scratch, "model.safetensors");
        put_text(scratch, files[i][0], "{}");
        expect_refused(scratch, ROSE_E_UNSUPPORTED, files[i][0], files[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_with_and_without_prefix),
        cmocka_unit_test(head_tied_or_not),
        cmocka_unit_test(ignores_buffers_and_lists_them),
        cmocka_unit_test(dtype_is_that_of_most_bytes),
        cmocka_unit_test(names_from_odd_paths),
        cmocka_unit_test(refuses_each_missing_tensor),
        cmocka_unit_test(refuses_each_wrong_shape),
        cmocka_unit_test(refuses_other_contradictions),
        cmocka_unit_test(finds_weights_that_are_no_numbers),
        cmocka_unit_test(unused_tensors_need_not_be_numbers),
        cmocka_unit_test(opens_shards),
        cmocka_unit_test(refuses_false_indexes),
        cmocka_unit_test(takes_the_last_of_two),
        cmocka_unit_test(refuses_false_shards),
        cmocka_unit_test(names_quantized_weights),
        cmocka_unit_test(random_corruption_never_crashes),
    };
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}
