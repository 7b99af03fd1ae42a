/* Loading: hostile tokenizer.json files, what is refused by name, vocab.json + merges.txt. */
#include "tokenizer/tok_fixture.h"

#include "base/file.h"

/* The parts of a small tokenizer.json; NULL = as in `plain`. */
typedef struct parts {
    const char *model, *vocab, *merges, *added, *normalizer, *pre, *decoder, *post;
} parts;

static const parts plain = {
    "\"type\":\"BPE\"",
    "{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"\\u0120ab\":4,\"c\":5}",
    "[\"a b\",[\"\\u0120\",\"ab\"]]",
    "[]",
    "null",
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}",
    "{\"type\":\"ByteLevel\"}",
    "null"};

static const char *either(const char *text, const char *fallback)
{
    return text != NULL ? text : fallback;
}

static void write_parts(temp_dir *d, const parts *p)
{
    rose_buf text = {0};
    assert_int_equal(
        rose_buf_addf(
            &text,
            "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":%s,"
            "\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,"
            "\"model\":{%s,\"vocab\":%s,\"merges\":%s}}",
            either(p->added, plain.added), either(p->normalizer, plain.normalizer),
            either(p->pre, plain.pre), either(p->post, plain.post),
            either(p->decoder, plain.decoder), either(p->model, plain.model),
            either(p->vocab, plain.vocab), either(p->merges, plain.merges)),
        ROSE_OK);
    temp_write(d, "tokenizer.json", text.data, text.len);
    rose_buf_free(&text);
}

static rose_status open_status(const temp_dir *d, rose_err *err)
{
    rose_tokenizer *t = NULL;
    err->msg[0] = '\0';
    rose_status st = rose_tokenizer_open(&t, d->path, err);
    if (st == ROSE_OK)
        assert_non_null(t);
    else {
        assert_null(t);
        assert_true(err->msg[0] != '\0');
    }
    rose_tokenizer_close(t);
    return st;
}

static void assert_opens(const parts *p)
{
    temp_dir d;
    rose_err err;
    temp_make(&d);
    write_parts(&d, p);
    if (open_status(&d, &err) != ROSE_OK) fail_msg("%s", err.msg);
    temp_remove(&d);
}

static void assert_refused(const parts *p, rose_status want, const char *name)
{
    temp_dir d;
    rose_err err;
    temp_make(&d);
    write_parts(&d, p);
    rose_status st = open_status(&d, &err);
    if (st != want || strstr(err.msg, name) == NULL)
        fail_msg("want %s naming %s, got %s: %s", rose_status_name(want), name,
                 rose_status_name(st), err.msg);
    temp_remove(&d);
}

/* The plain file with one part replaced. */
#define WITH(field, value) (&(parts){.field = (value)})

static void accepts_the_forms(void **state)
{
    (void)state;
    assert_opens(&plain);
    assert_opens(WITH(model,
                      "\"dropout\":null,\"unk_token\":\"c\",\"continuing_subword_prefix\":\"\","
                      "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false"));
    assert_opens(WITH(normalizer, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}"));
    assert_opens(
        WITH(post, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":false}"));
    assert_opens(WITH(vocab, "{\"a\":0,\"b\":7,\"ab\":2,\"\\u0120\":30,\"\\u0120ab\":4,\"\":9}"));
    assert_opens(WITH(merges, "[]"));
    assert_opens(WITH(model, "\"unk_token\":\"<none>\""));
    assert_opens(
        WITH(post, "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}"
                   ",{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"x\":{\"ids\":[77]}}}"));
    assert_opens(WITH(added, "[{\"id\":6,\"content\":\"<x>\",\"special\":true},"
                             "{\"id\":0,\"content\":\"a\",\"special\":false}]"));
}

/* As `tokenizers` 0.23.3 reads them: a text that is there twice is one token, with the id of its
 * first place and the flags of its last one. A place, not the file, gives the id. */
static void added_twice_or_elsewhere(void **state)
{
    (void)state;
    static const struct {
        const char *added, *text;
        uint32_t id;
        bool special;
        size_t n_ids;
    } cases[] = {
        {"[{\"id\":6,\"content\":\"<x>\",\"special\":true},"
         "{\"id\":6,\"content\":\"<x>\",\"special\":true}]",
         "<x>", 6, true, 7},
        {"[{\"id\":6,\"content\":\"<x>\",\"special\":true},{\"id\":7,\"content\":\"<x>\"},"
         "{\"id\":8,\"content\":\"<y>\"}]",
         "<y>", 7, false, 8},
        {"[{\"id\":6,\"content\":\"<x>\",\"special\":true},{\"id\":7,\"content\":\"<x>\"}]", "<x>",
         6, false, 7},
        {"[{\"id\":2,\"content\":\"b\",\"special\":true}]", "b", 1, true, 6},
        {"[{\"id\":8,\"content\":\"<x>\"}]", "<x>", 6, false, 7},
        {"[{\"id\":6,\"content\":\"<x>\"},{\"id\":6,\"content\":\"<y>\"}]", "<y>", 7, false, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        temp_dir d;
        rose_err err = {{0}};
        rose_tokenizer *t = NULL;
        uint32_t id = 99;
        temp_make(&d);
        write_parts(&d, WITH(added, cases[i].added));
        if (rose_tokenizer_open(&t, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
        assert_true(rose_tokenizer_find(t, cases[i].text, strlen(cases[i].text), &id));
        assert_int_equal(id, cases[i].id);
        assert_int_equal(rose_tokenizer_is_special(t, id), cases[i].special);
        assert_int_equal(rose_tokenizer_vocab_size(t), cases[i].n_ids);
        rose_tokenizer_close(t);
        temp_remove(&d);
    }
}

static void refuses_by_name(void **state)
{
    (void)state;
    assert_refused(WITH(model, "\"type\":\"Unigram\""), ROSE_E_UNSUPPORTED, "Unigram");
    assert_refused(WITH(model, "\"type\":\"BPE\",\"dropout\":0.1"), ROSE_E_UNSUPPORTED, "dropout");
    assert_refused(WITH(model, "\"continuing_subword_prefix\":\"##\""), ROSE_E_UNSUPPORTED,
                   "continuing_subword_prefix");
    assert_refused(WITH(model, "\"end_of_word_suffix\":\"</w>\""), ROSE_E_UNSUPPORTED,
                   "end_of_word_suffix");
    assert_refused(WITH(model, "\"byte_fallback\":true"), ROSE_E_UNSUPPORTED, "byte_fallback");
    assert_refused(WITH(normalizer, "{\"type\":\"Lowercase\"}"), ROSE_E_UNSUPPORTED, "Lowercase");
    assert_refused(WITH(pre, "{\"type\":\"Metaspace\"}"), ROSE_E_UNSUPPORTED, "Metaspace");
    assert_refused(WITH(pre, "null"), ROSE_E_UNSUPPORTED, "decoder \"ByteLevel\"");
    assert_refused(WITH(pre, "{\"type\":\"Digits\"}"), ROSE_E_UNSUPPORTED, "ByteLevel");
    assert_refused(WITH(pre, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":"
                             "\"Contiguous\",\"invert\":false}"),
                   ROSE_E_UNSUPPORTED, "Contiguous");
    assert_refused(WITH(decoder, "null"), ROSE_E_UNSUPPORTED, "null");
    assert_refused(WITH(decoder, "{\"type\":\"WordPiece\"}"), ROSE_E_UNSUPPORTED, "WordPiece");
    assert_refused(WITH(post, "{\"type\":\"BertProcessing\"}"), ROSE_E_UNSUPPORTED,
                   "BertProcessing");
    assert_refused(WITH(vocab, "{\"a\":99999999}"), ROSE_E_FORMAT, "not an integer in");
}

static const char metaspace[] = "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
                                "\"prepend_scheme\":\"first\",\"split\":false}";
static const char decoders[] =
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
    "\"\\u2581\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
    "\"content\":\" \",\"start\":1,\"stop\":0}]}";

/* The forms that transformers writes for SentencePiece's models, and what is near to them. */
static void characters(void **state)
{
    static const char replace[] = "{\"type\":\"Replace\",\"pattern\":{\"%s\":\" \"},"
                                  "\"content\":\"\\u2581\"}";
    char text[256];
    (void)state;
    parts p = {.model = "\"byte_fallback\":true",
               .vocab = "{\"a\":0,\"b\":1,\"ab\":2,\"\\u2581\":3,\"<0x0A>\":4}",
               .merges = "[[\"a\",\"b\"]]",
               .pre = metaspace,
               .decoder = decoders};
    assert_opens(&p);
    p.pre = "null";
    snprintf(text, sizeof text, replace, "String");
    p.normalizer = text;
    assert_opens(&p);
    p.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"}";
    assert_opens(&p);
    p.normalizer = "{\"type\":\"Prepend\"}";
    assert_refused(&p, ROSE_E_FORMAT, "Prepend");
    snprintf(text, sizeof text, replace, "Regex");
    p.normalizer = text;
    assert_refused(&p, ROSE_E_UNSUPPORTED, "Regex");
    p.normalizer = NULL;
    p.pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\"}";
    assert_refused(&p, ROSE_E_UNSUPPORTED, "Metaspace");
    p.pre = "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"last\"}";
    assert_refused(&p, ROSE_E_UNSUPPORTED, "last");
    p.pre = metaspace;
    p.decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\",\"content\":\" \","
                "\"start\":1,\"stop\":0}]}";
    assert_refused(&p, ROSE_E_UNSUPPORTED, "Strip"); /* without Fuse it strips each token */
    p.decoder = "null";
    assert_refused(&p, ROSE_E_UNSUPPORTED, "null");
}

/* The reader of the large parts: any order of keys, escapes in tokens, keys given twice. */
static void order_and_escapes(void **state)
{
    static const char tail[] = ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false,"
                               "\"add_prefix_space\":false},\"decoder\":{\"type\":\"ByteLevel\"}}";
    static const struct {
        const char *model;
        rose_status want;
        const char *name;
    } cases[] = {
        {"{\"merges\":[\"\\u0061 b\"],\"vocab\":{\"a\":0,\"\\u0062\":1,\"a\\u0062\":2}}", ROSE_OK,
         ""},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"vocab\":{}}", ROSE_E_FORMAT, "second vocab"},
        {"{\"vocab\":{\"a\":0},\"merges\":[],\"merges\":[]}", ROSE_E_FORMAT, "second list"},
        {"{\"vocab\":{\"a\":0},\"merges\":[]},\"model\":{}", ROSE_E_FORMAT, "second model"},
        {"{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}", ROSE_E_FORMAT, "two ids"},
        {"{\"vocab\":{\"a\":0,},\"merges\":[]}", ROSE_E_FORMAT, "line 1"},
        {"{\"vocab\":{\"a\":01},\"merges\":[]}", ROSE_E_FORMAT, "begins with 0"},
        {"{\"vocab\":{\"a\\ud800\":0},\"merges\":[]}", ROSE_E_FORMAT, "surrogate"},
        {"{\"vocab\":{\"a\\q\":0},\"merges\":[]}", ROSE_E_FORMAT, "escape"},
        {"{\"vocab\":{\"a\n\":0},\"merges\":[]}", ROSE_E_FORMAT, "control character"},
        {"{\"vocab\":{\"a\xff\":0},\"merges\":[]}", ROSE_E_FORMAT, "not UTF-8"},
        {"{\n\n\"vocab\":{\"a\":0},\n\"merges\":[\n],\n\"x\":nul}", ROSE_E_FORMAT, "line 6"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        temp_dir d;
        rose_buf text = {0};
        rose_err err;
        temp_make(&d);
        assert_int_equal(rose_buf_addf(&text, "{\"model\":%s%s", cases[i].model, tail), ROSE_OK);
        temp_write(&d, "tokenizer.json", text.data, text.len);
        rose_status st = open_status(&d, &err);
        if (st != cases[i].want || strstr(err.msg, cases[i].name) == NULL)
            fail_msg("case %zu: %s: %s", i, rose_status_name(st), err.msg);
        rose_buf_free(&text);
        temp_remove(&d);
    }
}

static void refuses_contradictions(void **state)
{
    static const char *const vocabs[] = {"{\"a\":0,\"b\":0,\"ab\":2}",
                                         "{\"a\":-1}",
                                         "{\"a\":1.5}",
                                         "{\"a\":\"1\"}",
                                         "{\"a\":null}",
                                         "{\"a\":99999999999999999999999}",
                                         "{\"a\":1e400}",
                                         "{}",
                                         "[]",
                                         "null",
                                         "{\"\\u2581\":0}"};
    static const char *const merges[] = {
        "[\"a\"]", "[\"a b c\"]", "[[\"a\"]]", "[[\"a\",1]]", "[[\"a\",\"b\",\"c\"]]",
        "[1]",     "{}",          "null",      "[\"a zz\"]",  "[\"b a\"]",
        "[\"\"]",  "[null]"};
    static const char *const added[] = {"{}",
                                        "[1]",
                                        "[{}]",
                                        "[{\"id\":1}]",
                                        "[{\"content\":\"x\"}]",
                                        "[{\"id\":-1,\"content\":\"x\"}]",
                                        "[{\"id\":6.5,\"content\":\"x\"}]",
                                        "[{\"id\":6,\"content\":7}]",
                                        "[{\"id\":6,\"content\":\"x\",\"special\":1}]",
                                        "[{\"id\":18446744073709551616,\"content\":\"x\"}]"};
    static const char *const posts[] = {
        "{\"type\":\"TemplateProcessing\"}", "{\"type\":\"TemplateProcessing\",\"single\":[]}",
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}",
        "{\"type\":\"Sequence\",\"processors\":3}"};
    (void)state;
    for (size_t i = 0; i < sizeof vocabs / sizeof vocabs[0]; i++)
        assert_refused(WITH(vocab, vocabs[i]), ROSE_E_FORMAT, "");
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++)
        assert_refused(WITH(merges, merges[i]), ROSE_E_FORMAT, "");
    for (size_t i = 0; i < sizeof added / sizeof added[0]; i++)
        assert_refused(WITH(added, added[i]), ROSE_E_FORMAT, "");
    for (size_t i = 0; i < sizeof posts / sizeof posts[0]; i++)
        assert_refused(WITH(post, posts[i]), ROSE_E_FORMAT, "");
}

/* Merges with the empty token, that make a token of itself, and doubles: encoding ends, and nothing
 * is lost. */
static void merges_in_a_circle(void **state)
{
    temp_dir d;
    rose_tokenizer *t = NULL;
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_buf back = {0};
    char text[1000];
    (void)state;
    temp_make(&d);
    write_parts(
        &d, &(parts){.vocab = "{\"a\":0,\"aa\":1,\"aaa\":2,\"\":3}",
                     .merges = "[\" a\",\"a \",\" \",\"aa a\",\"a aa\",\"a a\",\"a a\",\" aaa\"]"});
    assert_int_equal(rose_tokenizer_open(&t, d.path, NULL), ROSE_OK);
    assert_int_equal(rose_encoder_create(&e, t, NULL), ROSE_OK);
    memset(text, 'a', sizeof text);
    assert_int_equal(rose_encode(e, text, sizeof text, 0, &ids, NULL), ROSE_OK);
    assert_int_equal(rose_decode(t, ids.data, ids.len, 0, &back, NULL), ROSE_OK);
    assert_int_equal(back.len, sizeof text);
    assert_memory_equal(back.data, text, sizeof text);
    rose_ids_free(&ids);
    rose_buf_free(&back);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
    temp_remove(&d);
}

/* Every truncation and many single-byte changes of a real file: an answer, never a crash. */
static void damaged_files(void **state)
{
    char path[512];
    temp_dir d;
    rose_buf good = {0};
    rose_err err;
    uint64_t seed = test_seed();
    size_t opened = 0;
    (void)state;
    data_path(path, "rich/tokenizer.json");
    assert_int_equal(rose_file_read(&good, path, 1 << 20, &err), ROSE_OK);
    temp_make(&d);
    for (size_t n = 0; n + 2 < good.len; n += 1 + good.len / 400) {
        temp_write(&d, "tokenizer.json", good.data, n);
        assert_int_equal(open_status(&d, &err), ROSE_E_FORMAT);
    }
    for (int i = 0; i < 600; i++) {
        size_t at = rnd(&seed) % good.len;
        char was = good.data[at];
        good.data[at] = (char)rnd(&seed);
        temp_write(&d, "tokenizer.json", good.data, good.len);
        opened += open_status(&d, &err) == ROSE_OK;
        good.data[at] = was;
    }
    assert_true(opened < 600);
    temp_remove(&d);
    rose_buf_free(&good);
}

static void no_such_folder(void **state)
{
    temp_dir d;
    rose_err err;
    (void)state;
    temp_make(&d);
    assert_int_equal(open_status(&d, &err), ROSE_E_NOTFOUND);
    temp_remove(&d);
    assert_int_equal(open_status(&d, &err), ROSE_E_NOTFOUND);
}

/* ---- vocab.json + merges.txt ---- */

static const char small_vocab[] = "{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"\\u0120ab\":4}";

static void write_pair(temp_dir *d, const char *vocab, const char *merges)
{
    temp_write(d, "vocab.json", vocab, strlen(vocab));
    if (merges != NULL) temp_write(d, "merges.txt", merges, strlen(merges));
}

static void vocab_and_merges(void **state)
{
    static const char config[] =
        "{\"add_bos_token\":true,\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
        "\"added_tokens_decoder\":{\"6\":{\"content\":\"two words\"},\"5\":{\"content\":\"<s>\","
        "\"special\":true}}}";
    temp_dir d;
    rose_tokenizer *t = NULL;
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_err err = {""};
    (void)state;
    temp_make(&d);
    write_pair(&d, small_vocab, "#version: 0.2\r\na b\r\n\xc4\xa0 ab\n");
    temp_write(&d, "tokenizer_config.json", config, sizeof config - 1);
    if (rose_tokenizer_open(&t, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    const char text[] = "ab ab two words</s>";
    assert_int_equal(rose_encode(e, text, sizeof text - 1, ROSE_ENCODE_ADD_SPECIAL, &ids, &err),
                     ROSE_OK);
    /* unk_token defaults to <|endoftext|>, which comes after eos */
    const uint32_t want[] = {5, 2, 4, 3, 6, 7};
    assert_int_equal(ids.len, 6);
    assert_memory_equal(ids.data, want, sizeof want);
    assert_true(rose_tokenizer_is_special(t, 7));
    assert_false(rose_tokenizer_is_special(t, 6));
    assert_int_equal(rose_tokenizer_vocab_size(t), 9);
    rose_ids_free(&ids);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
    temp_remove(&d);
}

static void bad_vocab_and_merges(void **state)
{
    static const struct {
        const char *vocab, *merges, *file, *content;
        rose_status want;
    } cases[] = {
        {small_vocab, NULL, NULL, NULL, ROSE_E_NOTFOUND},
        {small_vocab, "a b\n\n", NULL, NULL, ROSE_E_FORMAT},
        {small_vocab, "a b c\n", NULL, NULL, ROSE_E_FORMAT},
        {small_vocab, "a z\n", NULL, NULL, ROSE_E_FORMAT},
        {"[1]", "a b\n", NULL, NULL, ROSE_E_FORMAT},
        {"", "a b\n", NULL, NULL, ROSE_E_FORMAT},
        {small_vocab, "a b\n", "tokenizer_config.json", "{", ROSE_E_FORMAT},
        {small_vocab, "a b\n", "tokenizer_config.json", "{\"tokenizer_class\":\"Qwen2Tokenizer\"}",
         ROSE_E_UNSUPPORTED},
        /* warnings, as where there is a tokenizer.json */
        {small_vocab, "a b\n", "tokenizer_config.json", "{\"bos_token\":3}", ROSE_OK},
        {small_vocab, "a b\n", "tokenizer_config.json",
         "{\"added_tokens_decoder\":{\"x\":{\"content\":\"y\"}}}", ROSE_OK},
        {small_vocab, "a b\n", "tokenizer_config.json",
         "{\"added_tokens_decoder\":{\"99999999999\":{\"content\":\"y\"}}}", ROSE_OK},
        {small_vocab, "a b\n", "added_tokens.json", "{\"x\":-4}", ROSE_OK},
        {small_vocab, "a b\n", "added_tokens.json", "{\"x\":44}", ROSE_OK},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        temp_dir d;
        rose_err err;
        temp_make(&d);
        write_pair(&d, cases[i].vocab, cases[i].merges);
        if (cases[i].file != NULL)
            temp_write(&d, cases[i].file, cases[i].content, strlen(cases[i].content));
        rose_status st = open_status(&d, &err);
        if (st != cases[i].want) fail_msg("case %zu: %s: %s", i, rose_status_name(st), err.msg);
        temp_remove(&d);
    }
}

/* ---- the small files beside tokenizer.json ---- */

/* The files, a text, its ids as transformers 5.24 gives them. The vocabulary has ids 0 to 2. */
static const struct {
    const char *added, *config, *special_map, *added_json, *text;
    uint32_t want[8];
    size_t n;
} named_cases[] = {
    {"[]",
     "{\"added_tokens_decoder\":{\"4\":{\"content\":\"<e>\",\"special\":true},\"3\":{\"content\":"
     "\"<s>\",\"special\":true}},\"eos_token\":\"<e>\"}",
     NULL,
     NULL,
     "<s>a<e>",
     {3, 0, 4},
     3},
    {"[]",
     "{\"additional_special_tokens\":[\"<s>\",{\"content\":\"<e>\"}]}",
     NULL,
     NULL,
     "<e>a<s>",
     {4, 0, 3},
     3},
    {"[]",
     "{\"extra_special_tokens\":[\"<s>\"],\"image_token\":\"<i>\",\"pad_token\":\"<p>\"}",
     NULL,
     NULL,
     "<s><i><p>",
     {5, 4, 3},
     3},
    {"[]", "{\"extra_special_tokens\":{\"image_token\":\"<i>\"}}", NULL, NULL, "<i>", {3}, 1},
    {"[{\"id\":3,\"content\":\"<s>\",\"special\":true,\"normalized\":false}]",
     "{\"eos_token\":\"<e>\",\"pad_token\":\"<s>\"}",
     NULL,
     NULL,
     "<s><e>",
     {3, 4},
     2},
    /* flags of the decoder replace those of tokenizer.json; a token of the vocabulary keeps its id
     */
    {"[{\"id\":3,\"content\":\"<s>\",\"special\":true,\"normalized\":false}]",
     "{\"added_tokens_decoder\":{\"3\":{\"content\":\"<s>\",\"special\":true,\"lstrip\":true},"
     "\"1\":"
     "{\"content\":\"b\"}}}",
     NULL,
     NULL,
     "a  <s>ba",
     {0, 3, 1, 0},
     4},
    {"[]",
     "{\"eos_token\":\"<x>\"}",
     "{\"eos_token\":{\"content\":\"<e>\"}}",
     "{\"<s>\":3}",
     "<s><e>",
     {3, 4},
     2},
    /* what is malformed beside a tokenizer.json is only a warning, and so is another id */
    {"[]",
     "{\"bos_token\":3,\"added_tokens_decoder\":{\"x\":{},\"9\":{\"content\":\"<s>\"}}}",
     NULL,
     NULL,
     "a<s>",
     {0, 3},
     2},
};

static void named_beside(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof named_cases / sizeof named_cases[0]; i++) {
        temp_dir d;
        rose_tokenizer *t = NULL;
        rose_encoder *e = NULL;
        rose_ids ids = {0};
        rose_err err = {""};
        const char *const texts[] = {named_cases[i].config, named_cases[i].special_map,
                                     named_cases[i].added_json};
        static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json",
                                            "added_tokens.json"};
        temp_make(&d);
        write_parts(&d, &(parts){.added = named_cases[i].added,
                                 .vocab = "{\"a\":0,\"b\":1,\"ab\":2}",
                                 .merges = "[\"a b\"]"});
        for (int k = 0; k < 3; k++)
            if (texts[k] != NULL) temp_write(&d, files[k], texts[k], strlen(texts[k]));
        if (rose_tokenizer_open(&t, d.path, &err) != ROSE_OK) fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
        const char *text = named_cases[i].text;
        assert_int_equal(rose_encode(e, text, strlen(text), 0, &ids, &err), ROSE_OK);
        if (ids.len != named_cases[i].n || memcmp(ids.data, named_cases[i].want, 4 * ids.len) != 0)
            fail_msg("case %zu: %zu ids, first %u", i, ids.len, ids.data[0]);
        rose_ids_free(&ids);
        rose_encoder_destroy(e);
        rose_tokenizer_close(t);
        temp_remove(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_the_forms),    cmocka_unit_test(added_twice_or_elsewhere),
        cmocka_unit_test(refuses_by_name),      cmocka_unit_test(characters),
        cmocka_unit_test(order_and_escapes),    cmocka_unit_test(refuses_contradictions),
        cmocka_unit_test(merges_in_a_circle),   cmocka_unit_test(damaged_files),
        cmocka_unit_test(no_such_folder),       cmocka_unit_test(vocab_and_merges),
        cmocka_unit_test(bad_vocab_and_merges), cmocka_unit_test(named_beside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
