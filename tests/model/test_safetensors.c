/* The safetensors reader: valid files, a table of false ones, truncation at every byte, and seeded
 * corruption. */
#include "fixture.h"

#include "model/safetensors.h"

#define A_OK "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B_OK "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}"

/* Parses a heap copy of exactly n bytes, so that ASAN sees a read past the end. */
static rose_status parse(rose_st_file *f, const rose_buf *b, size_t n, uint8_t **copy,
                         rose_err *err)
{
    *copy = malloc(n > 0 ? n : 1);
    assert_non_null(*copy);
    if (n > 0) memcpy(*copy, b->data, n);
    return rose_st_parse(f, *copy, n, "dir/x.safetensors", err);
}

static void expect_bad(const rose_buf *b, size_t n, const char *word)
{
    rose_st_file f;
    rose_err err = {{0}};
    uint8_t *copy = NULL;
    rose_status st = parse(&f, b, n, &copy, &err);
    if (st == ROSE_OK) fail_msg("accepted; expected a message with '%s'", word);
    if (strstr(err.msg, "dir/x.safetensors") == NULL || strstr(err.msg, word) == NULL)
        fail_msg("message: %s\n  expected '%s'", err.msg, word);
    assert_null(f.tensors);
    assert_null(f.header);
    free(copy);
}

static void reads_valid_files(void **state)
{
    (void)state;
    rose_buf b = {0};
    rose_st_file f;
    uint8_t *copy = NULL;
    const char *h = "{\"__metadata__\":{\"format\":\"pt\"}," B_OK "," A_OK ","
                    "\"empty\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[32,32]},"
                    "\"scalar\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[32,40]}}   ";
    st_raw(&b, strlen(h), h, 40);
    assert_int_equal(parse(&f, &b, b.len, &copy, NULL), ROSE_OK);
    assert_int_equal(f.n_tensors, 4);
    assert_string_equal(f.tensors[0].name, "a"); /* in the order of the data */
    assert_true(f.tensors[0].usable && f.tensors[0].dtype == ROSE_F32);
    assert_int_equal(f.tensors[0].n_dims, 2);
    assert_int_equal(f.tensors[0].shape[1], 3);
    assert_ptr_equal(f.tensors[0].data, copy + 8 + strlen(h));
    assert_string_equal(f.tensors[1].dtype_name, "BF16");
    assert_string_equal(f.tensors[2].name, "empty");
    assert_false(f.tensors[2].usable);
    assert_int_equal(f.tensors[3].n_dims, 0);
    assert_int_equal(f.tensors[3].end - f.tensors[3].begin, 8);
    rose_st_close(&f);
    rose_st_close(&f); /* twice is harmless */
    free(copy);

    st_raw(&b, 2, "{}", 0);
    assert_int_equal(parse(&f, &b, b.len, &copy, NULL), ROSE_OK);
    assert_int_equal(f.n_tensors, 0);
    rose_st_close(&f);
    free(copy);
    rose_buf_free(&b);
}

static void lists_every_known_dtype(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned bits;
    } all[] = {{"F32", 32},        {"F16", 16},        {"BF16", 16},   {"BOOL", 8},
               {"U8", 8},          {"I8", 8},          {"I16", 16},    {"U16", 16},
               {"I32", 32},        {"U32", 32},        {"I64", 64},    {"U64", 64},
               {"F64", 64},        {"C64", 64},        {"F8_E4M3", 8}, {"F8_E5M2", 8},
               {"F8_E8M0", 8},     {"F8_E4M3FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
               {"F8_E5M2FNUZ", 8}, {"F4", 4}};
    rose_buf b = {0};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char h[256];
        uint8_t *copy = NULL;
        rose_st_file f;
        snprintf(h, sizeof h, "{\"t\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%u]}}",
                 all[i].name, all[i].bits);
        st_raw(&b, strlen(h), h, all[i].bits);
        assert_int_equal(parse(&f, &b, b.len, &copy, NULL), ROSE_OK);
        assert_string_equal(f.tensors[0].dtype_name, all[i].name);
        assert_int_equal(f.tensors[0].usable, i < 3);
        rose_st_close(&f);
        free(copy);
    }
    rose_buf_free(&b);
}

static void refuses_false_lengths(void **state)
{
    (void)state;
    static const struct {
        uint64_t len;
        const char *word;
    } lies[] = {
        {0, "does not begin with '{'"},
        {1, "does not begin with '{'"},
        {2, "not valid JSON"},
        {7, "not valid JSON"},
        {1000, "but only"},
        {100000000, "but only"},
        {100000001, "over the format's limit"},
        {1ull << 32, "over the format's limit"},
        {1ull << 63, "over the format's limit"},
        {UINT64_MAX, "over the format's limit"},
        {UINT64_MAX - 7, "over the format's limit"},
    };
    rose_buf b = {0};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        st_raw(&b, lies[i].len, "{" A_OK "," B_OK "}", 32);
        expect_bad(&b, b.len, lies[i].word);
    }
    rose_buf_free(&b);
}

static void refuses_false_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *word;
    } lies[] = {
        {"[" A_OK "]", 32, "does not begin with '{'"},
        {" {" A_OK "," B_OK "}", 32, "does not begin with '{'"},
        {"{" A_OK "," B_OK, 32, "not valid JSON"},
        {"{" A_OK "," B_OK "}x", 32, "not valid JSON"},
        {"{" A_OK "," A_OK "}", 24, "duplicate"},
        {"{\"a\xFF\":1}", 0, "not valid JSON"},
        {"{\"a\\u0000b\":1}", 0, "not valid JSON"},
        {"{\"a\":1}", 0, "'a' is not an object"},
        {"{\"a\":null}", 0, "'a' is not an object"},
        {"{\"a\":{}}", 0, "'dtype' is not a string"},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "'dtype' is not a string"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "unknown dtype 'F33'"},
        {"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "unknown dtype 'f32'"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'shape' is not a list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4,
         "'shape' is not a list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
         "dimension 0 of 'shape'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1.5],\"data_offsets\":[0,4]}}", 4,
         "dimension 1 of 'shape'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4,
         "dimension 0 of 'shape'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
         "9 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1099511627776,1099511627776],"
         "\"data_offsets\":[0,0]}}",
         0, "overflows 64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
         "overflows 64 bits"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807,2],\"data_offsets\":[0,0]}}", 0,
         "overflows 64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}", 0,
         "dimension 0 of 'shape'"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "within a byte"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'data_offsets' is not a list of two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
         "'data_offsets' is not a list of two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4,
         "'data_offsets' is not a list of two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4,
         "'data_offsets' is not a list of two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "reversed"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 4,
         "holds only 4: truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":"
         "[9223372036854775803,9223372036854775807]}}",
         4, "holds only 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "span 4 bytes, but dtype F32 and shape need 8"},
        {"{" A_OK ",\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[20,28]}}", 28,
         "'a' and 'b' overlap"},
        {"{" A_OK ",\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24,
         "'a' and 'b' overlap"},
        /* 'b' was moved over 'c': its old place is a gap, but the overlap is the cause */
        {"{" A_OK ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[32,40]},"
         "\"c\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[32,40]}}",
         40, "'b' and 'c' overlap"},
        {"{" A_OK ",\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[26,34]}}", 34,
         "is a tensor missing from the header"},
        {"{" A_OK "}", 25, "is a tensor missing from the header"},
        {"{" A_OK ",\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[26,34]}}", 34,
         "gap of 2 bytes before tensor 'b'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12,
         "gap of 8 bytes before tensor 'a'"},
        {"{" A_OK "}", 25, "oversized: 1 bytes after the last tensor"},
        {"{}", 1, "oversized: 1 bytes after the last tensor"},
        {"{\"__metadata__\":[]," A_OK "}", 24, "'__metadata__' is not an object"},
        {"{\"__metadata__\":{\"n\":1}," A_OK "}", 24, "'n' is not a string"},
    };
    rose_buf b = {0};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        st_raw(&b, strlen(lies[i].header), lies[i].header, lies[i].data);
        expect_bad(&b, b.len, lies[i].word);
    }
    rose_buf_free(&b);
}

static void refuses_nesting_bombs(void **state)
{
    (void)state;
    enum { DEPTH = 1000000 };
    rose_buf b = {0};
    char *bomb = malloc(DEPTH + 16);
    assert_non_null(bomb);
    for (int kind = 0; kind < 2; kind++) {
        int at = snprintf(bomb, 16, "{\"a\":");
        if (kind == 0) {
            memset(bomb + at, '[', DEPTH);
        } else {
            for (int i = 0; i + 5 <= DEPTH; i += 5)
                memcpy(bomb + at + i, "{\"a\":", 5);
        }
        bomb[at + DEPTH] = '\0';
        st_raw(&b, strlen(bomb), bomb, 0);
        expect_bad(&b, b.len, "depth");
    }
    free(bomb);
    rose_buf_free(&b);
}

/* A hostile name is shortened and cleaned in the message, and the fault still shows. */
static void messages_survive_hostile_names(void **state)
{
    (void)state;
    rose_buf b = {0}, h = {0};
    rose_buf_addf(&h, "{\"");
    for (int i = 0; i < 5000; i++)
        rose_buf_addf(&h, "%s", i % 2 == 0 ? "\\u001b" : "%n");
    rose_buf_addf(&h, "\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,0]}}");
    st_raw(&b, h.len, rose_buf_str(&h), 0);
    expect_bad(&b, b.len, "unknown dtype 'F33'");

    char path[1000];
    rose_st_file f;
    rose_err err = {{0}};
    memset(path, 'p', sizeof path);
    memcpy(path + sizeof path - 13, "/last/file.st", 13);
    path[sizeof path - 1] = '\0';
    assert_int_equal(rose_st_parse(&f, (const uint8_t *)b.data, b.len, path, &err), ROSE_E_FORMAT);
    assert_non_null(strstr(err.msg, "unknown dtype 'F33'"));
    assert_non_null(strstr(err.msg, "/last/file.s:"));
    rose_buf_free(&b);
    rose_buf_free(&h);
}

static void truncation_at_every_byte(void **state)
{
    (void)state;
    rose_buf b = {0};
    const char *h = "{" A_OK "," B_OK "}";
    st_raw(&b, strlen(h), h, 32);
    for (size_t n = 0; n < b.len; n++)
        expect_bad(&b, n, n < 8 ? "too short" : n < 8 + strlen(h) ? "but only" : "truncated");
    rose_buf_free(&b);
}

/* What must hold of any file that opens: every tensor lies within the data and agrees with its
 * shape. Touches each byte, so that ASAN would see a tensor that reaches outside. */
static void check_accepted(const rose_st_file *f, const uint8_t *bytes, size_t n)
{
    unsigned sum = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const rose_st_tensor *t = &f->tensors[i];
        assert_true(t->data >= bytes && t->data <= bytes + n);
        assert_true(t->end - t->begin <= (uint64_t)(bytes + n - t->data));
        for (uint64_t k = 0; k < t->end - t->begin; k++)
            sum += t->data[k];
    }
    (void)sum;
}

static void mutate(rose_buf *b, uint64_t seed, uint32_t *ctr)
{
    static const char interesting[] = "0123456789-+.eE{}[]\",: \\\x00\x01\x7F\x80\xFF";
    for (uint32_t k = 1 + draw(seed, ctr, 4); k > 0 && b->len > 0; k--) {
        uint32_t limit = (uint32_t)b->len, at = draw(seed, ctr, limit);
        switch (draw(seed, ctr, 4)) {
        case 0:
            b->data[at] = (char)draw(seed, ctr, 256);
            break;
        case 1:
            b->data[at] = interesting[draw(seed, ctr, sizeof interesting - 1)];
            break;
        case 2: /* a piece moves over another */
            memmove(b->data + at, b->data + draw(seed, ctr, at + 1),
                    1 + draw(seed, ctr, limit - at));
            break;
        default:
            if (draw(seed, ctr, 4) == 0) b->len = at;
        }
    }
}

static void random_corruption_never_crashes(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    uint32_t ctr = 0, accepted = 0;
    rose_buf whole = {0}, b = {0};
    item items[MAX_ITEMS];
    st_build(&whole, items, tiny_items(items, "", true));
    for (int round = 0; round < 20000; round++) {
        rose_st_file f;
        rose_err err = {{0}};
        uint8_t *copy = NULL;
        b.len = 0;
        assert_int_equal(rose_buf_add(&b, whole.data, whole.len), ROSE_OK);
        mutate(&b, seed, &ctr);
        if (parse(&f, &b, b.len, &copy, &err) == ROSE_OK) {
            check_accepted(&f, copy, b.len);
            accepted++;
            rose_st_close(&f);
        } else {
            assert_non_null(strstr(err.msg, "x.safetensors"));
        }
        free(copy);
    }
    assert_in_range(accepted, 1, 19999); /* neither everything nor nothing */
    rose_buf_free(&whole);
    rose_buf_free(&b);
}

static void files_that_cannot_be_mapped(void **state)
{
    (void)state;
    char *dir = make_scratch(), path[1024];
    rose_st_file f;
    rose_err err = {{0}};
    join(path, sizeof path, dir, "none.safetensors");
    assert_int_equal(rose_st_open(&f, path, &err), ROSE_E_NOTFOUND);
    assert_non_null(strstr(err.msg, "none.safetensors"));
    assert_int_equal(rose_st_open(&f, dir, &err), ROSE_E_IO);
    put_text(dir, "empty.safetensors", "");
    join(path, sizeof path, dir, "empty.safetensors");
    assert_int_equal(rose_st_open(&f, path, &err), ROSE_E_FORMAT);
    assert_non_null(strstr(err.msg, "empty.safetensors: 0 bytes"));
    drop_scratch(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_valid_files),
        cmocka_unit_test(lists_every_known_dtype),
        cmocka_unit_test(refuses_false_lengths),
        cmocka_unit_test(refuses_false_headers),
        cmocka_unit_test(refuses_nesting_bombs),
        cmocka_unit_test(messages_survive_hostile_names),
        cmocka_unit_test(truncation_at_every_byte),
        cmocka_unit_test(random_corruption_never_crashes),
        cmocka_unit_test(files_that_cannot_be_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
