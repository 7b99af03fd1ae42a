/* The GGUF container: what a good file holds, and every way in which a hostile one is refused. */
#include "model/gguf_fixture.h"

static void expect_bad(const rose_buf *b, rose_status want, const char *word)
{
    rose_gguf g;
    rose_err err = {{0}};
    const rose_status st = rose_gguf_parse(&g, (const uint8_t *)b->data, b->len, "file", &err);
    if (st != want || strstr(err.msg, word) == NULL)
        fail_msg("status %s, message: %s\n  expected %s with '%s'", rose_status_name(st), err.msg,
                 rose_status_name(want), word);
    assert_null(g.pairs);
    assert_null(g.tensors);
}

/* Builds w, expects a refusal, frees w. */
static void expect_bad_file(gw *w, rose_status want, const char *word)
{
    rose_buf b = {0};
    gw_build(w, &b);
    expect_bad(&b, want, word);
    rose_buf_free(&b);
    gw_free(w);
}

static rose_gguf parse(const rose_buf *b)
{
    rose_gguf g;
    rose_err err = {{0}};
    if (rose_gguf_parse(&g, (const uint8_t *)b->data, b->len, "file", &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    return g;
}

/* A file that the gguf package of Python wrote. */
static void package_file(void **state)
{
    (void)state;
    rose_gguf g;
    rose_err err = {{0}};
    uint32_t n = 0;
    float f = 0;
    bool flag = false;
    rose_gguf_str s = {0};
    const rose_gguf_value *v;
    if (rose_gguf_open(&g, "tests/golden/values.gguf", &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_int_equal(g.version, 3);
    assert_int_equal(g.alignment, 32);
    assert_int_equal(rose_gguf_get_u32(&g, "a.u8", &n, &err), ROSE_OK);
    assert_int_equal(n, 200);
    assert_int_equal(rose_gguf_get_u32(&g, "a.u16", &n, &err), ROSE_OK);
    assert_int_equal(n, 50000);
    assert_int_equal(rose_gguf_get_u32(&g, "a.u32", &n, &err), ROSE_OK);
    assert_int_equal(n, 7);
    assert_int_equal(rose_gguf_get_f32(&g, "a.f32", &f, &err), ROSE_OK);
    assert_true(f == 1.5f);
    assert_int_equal(rose_gguf_get_f32(&g, "a.f64", &f, &err), ROSE_OK);
    assert_true(f == 2.5f);
    assert_int_equal(rose_gguf_get_bool(&g, "a.bool", &flag, &err), ROSE_OK);
    assert_true(flag);
    assert_int_equal(rose_gguf_get_string(&g, "a.string", &s, &err), ROSE_OK);
    assert_int_equal(s.n, 5);
    assert_memory_equal(s.s, "hello", 5);
    assert_int_equal(rose_gguf_get_array(&g, "a.strings", ROSE_GGUF_STRING, &v, &err), ROSE_OK);
    static const char *const strings[] = {"x", "", "yz"};
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        assert_true(rose_gguf_next_string(v, &at, &s));
        assert_int_equal(s.n, strlen(strings[i]));
        assert_memory_equal(s.s, strings[i], s.n);
    }
    assert_false(rose_gguf_next_string(v, &at, &s));
    assert_int_equal(rose_gguf_get_array(&g, "a.ints", ROSE_GGUF_U32, &v, &err), ROSE_OK);
    assert_int_equal(rose_gguf_u32_at(v, 2), 3);
    assert_int_equal(rose_gguf_get_array(&g, "a.bools", ROSE_GGUF_BOOL, &v, &err), ROSE_OK);
    assert_true(rose_gguf_bool_at(v, 0) && !rose_gguf_bool_at(v, 1));
    assert_int_equal(rose_gguf_get_array(&g, "a.floats", ROSE_GGUF_F32, &v, &err), ROSE_OK);
    assert_true(rose_gguf_f32_at(v, 1) == 2.0f);
    assert_string_equal(err.msg, "");

    /* Wrong types, values that do not fit, absent keys. */
    static const char *const not_u32[] = {"a.i8",  "a.i16",  "a.i32",    "a.i64", "a.u64",
                                          "a.f32", "a.bool", "a.string", "a.ints"};
    for (size_t i = 0; i < sizeof not_u32 / sizeof not_u32[0]; i++) {
        n = 77;
        assert_int_equal(rose_gguf_get_u32(&g, not_u32[i], &n, &err), ROSE_E_FORMAT);
        assert_non_null(strstr(err.msg, not_u32[i]));
        assert_int_equal(n, 77);
    }
    assert_int_equal(rose_gguf_get_f32(&g, "a.u32", &f, &err), ROSE_E_FORMAT);
    assert_int_equal(rose_gguf_get_bool(&g, "a.u8", &flag, &err), ROSE_E_FORMAT);
    assert_int_equal(rose_gguf_get_string(&g, "a.strings", &s, &err), ROSE_E_FORMAT);
    assert_int_equal(rose_gguf_get_array(&g, "a.ints", ROSE_GGUF_STRING, &v, &err), ROSE_E_FORMAT);
    assert_null(v);
    n = 5;
    assert_int_equal(rose_gguf_get_u32(&g, "absent", &n, &err), ROSE_OK);
    assert_int_equal(n, 5);

    assert_int_equal(g.n_tensors, 5);
    assert_string_equal(g.tensors[0].name, "v");
    assert_string_equal(g.tensors[1].name, "m");
    assert_int_equal(g.tensors[1].n_dims, 2);
    assert_int_equal(g.tensors[1].shape[0], 3); /* numpy's order: rows first */
    assert_int_equal(g.tensors[1].shape[1], 4);
    assert_string_equal(g.tensors[1].format->name, "F16");
    assert_string_equal(g.tensors[3].name, "q.Q4_1");
    assert_int_equal(g.tensors[3].end - g.tensors[3].begin, 2 * 2 * 20);
    rose_gguf_close(&g);
}

static gw *small_file(void)
{
    gw *w = gw_new();
    gw_string(w, "general.architecture", "llama");
    gw_array(w, "words", ROSE_GGUF_STRING, 2);
    gw_string_raw(&w->pairs, "one");
    gw_string_raw(&w->pairs, "");
    gw_array(w, "numbers", ROSE_GGUF_I32, 1);
    gw_u32_raw(&w->pairs, 9);
    gw_add(w, "a", 0, 3, 5);
    gw_add(w, "b", 8, 2, 64); /* Q8_0 */
    return w;
}

/* Every beginning of a good file is refused, and none reads past its end: each is parsed in memory
 * of exactly its size. */
static void truncated(void **state)
{
    (void)state;
    gw *w = small_file();
    rose_buf b = {0};
    gw_build(w, &b);
    rose_gguf g = parse(&b);
    const size_t end = (size_t)(g.tensors[1].data - (const uint8_t *)b.data) +
                       (size_t)(g.tensors[1].end - g.tensors[1].begin);
    rose_gguf_close(&g);
    for (size_t n = 0; n < end; n++) {
        uint8_t *copy = malloc(n > 0 ? n : 1);
        rose_err err = {{0}};
        memcpy(copy, b.data, n);
        assert_int_equal(rose_gguf_parse(&g, copy, n, "file", &err), ROSE_E_FORMAT);
        assert_true(err.msg[0] != '\0');
        free(copy);
    }
    b.len = end; /* the padding after the last tensor may be missing */
    g = parse(&b);
    rose_gguf_close(&g);
    rose_buf_free(&b);
    gw_free(w);
}

static void versions(void **state)
{
    (void)state;
    gw *w = small_file();
    rose_buf b = {0};
    w->version = 2;
    gw_build(w, &b);
    rose_gguf g = parse(&b);
    assert_int_equal(g.version, 2);
    rose_gguf_close(&g);
    const struct {
        uint32_t version;
        const char *word;
    } bad[] = {{0, "version 0"}, {1, "version 1"}, {4, "version 4"}, {0x03000000u, "big-endian"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        w->version = bad[i].version;
        gw_build(w, &b);
        expect_bad(&b, ROSE_E_UNSUPPORTED, bad[i].word);
    }
    rose_buf_free(&b);
    gw_free(w);
}

/* Counts and lengths that no file can hold. */
static void huge_counts(void **state)
{
    (void)state;
    static const uint64_t counts[] = {UINT64_MAX, 1ull << 63, 1ull << 32, 1000};
    gw *w = small_file();
    rose_buf b = {0};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (size_t at = 8; at <= 16; at += 8) {
            gw_build(w, &b);
            memcpy(b.data + at, &counts[i], sizeof counts[i]);
            expect_bad(&b, ROSE_E_FORMAT, "claims");
        }
    gw_free(w);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        w = gw_new();
        gw_array(w, "k", ROSE_GGUF_F64, counts[i]);
        expect_bad_file(w, ROSE_E_FORMAT, "elements of an array");
        w = gw_new();
        gw_array(w, "k", ROSE_GGUF_STRING, counts[i]);
        expect_bad_file(w, ROSE_E_FORMAT, "strings of an array");
        w = gw_new();
        gw_key(w, "k", ROSE_GGUF_STRING);
        gw_u64_raw(&w->pairs, counts[i]);
        expect_bad_file(w, ROSE_E_FORMAT, "a string");
        w = gw_new();
        gw_u64_raw(&w->pairs, counts[i]);
        gw_bytes(&w->pairs, "12345678", 8);
        w->n_pairs++;
        expect_bad_file(w, ROSE_E_FORMAT, "a key");
    }
    rose_buf_free(&b);
}

static void bad_pairs(void **state)
{
    (void)state;
    gw *w = gw_new();
    gw_u32(w, "twice", 1);
    gw_u32(w, "other", 1);
    gw_string(w, "twice", "x");
    expect_bad_file(w, ROSE_E_FORMAT, "'twice' is there twice");
    w = gw_new();
    gw_array(w, "nested", ROSE_GGUF_ARRAY, 1);
    gw_u32_raw(&w->pairs, ROSE_GGUF_U8);
    gw_u64_raw(&w->pairs, 0);
    expect_bad_file(w, ROSE_E_UNSUPPORTED, "'nested' is an array of arrays");
    w = gw_new();
    gw_key(w, "odd", 13);
    gw_u64_raw(&w->pairs, 0);
    expect_bad_file(w, ROSE_E_FORMAT, "'odd' has the unknown type 13");
    w = gw_new();
    gw_array(w, "odd", 99, 0);
    expect_bad_file(w, ROSE_E_FORMAT, "'odd' has the unknown type 99");
    w = gw_new();
    gw_key(w, "flag", ROSE_GGUF_BOOL);
    gw_bytes(&w->pairs, "\2", 1);
    expect_bad_file(w, ROSE_E_FORMAT, "boolean");
    w = gw_new();
    gw_u32(w, "two\nlines", 1);
    expect_bad_file(w, ROSE_E_FORMAT, "not printable");
    w = gw_new();
    gw_u32(w, "", 1);
    gw_u32(w, "k", 1);
    expect_bad_file(w, ROSE_E_FORMAT, "not printable");
    w = gw_new();
    gw_f32(w, "general.alignment", 32.0f);
    expect_bad_file(w, ROSE_E_FORMAT, "'general.alignment' has type f32");
    static const uint32_t alignments[] = {0, 1, 4, 24, 33, 1u << 31};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        w = gw_new();
        gw_u32(w, "general.alignment", alignments[i]);
        expect_bad_file(w, ROSE_E_FORMAT, "power of two");
    }
}

/* Where the directory entry of tensor i of small_file begins. */
static size_t entry_at(const rose_buf *b, const char *name)
{
    for (size_t at = 24; at + 9 < b->len; at++) {
        uint64_t n;
        memcpy(&n, b->data + at, sizeof n);
        if (n == 1 && b->data[at + 8] == name[0]) return at;
    }
    fail_msg("no tensor %s", name);
    return 0;
}

/* Overwrites n bytes of small_file at `offset` within the entry of a tensor. */
static void expect_bad_entry(const char *name, size_t offset, const void *bytes, size_t n,
                             rose_status want, const char *word)
{
    gw *w = small_file();
    rose_buf b = {0};
    gw_build(w, &b);
    memcpy(b.data + entry_at(&b, name) + offset, bytes, n);
    expect_bad(&b, want, word);
    rose_buf_free(&b);
    gw_free(w);
}

/* An entry: u64 1, name, u32 dims, u64 x 2, u32 type, u64 offset. */
enum { AT_NAME = 8, AT_DIMS = 9, AT_SHAPE = 13, AT_TYPE = 29, AT_OFFSET = 33 };

static void bad_tensors(void **state)
{
    (void)state;
    const uint32_t no_dims = 0, five = 5, max = UINT32_MAX, q2 = 10, gone = 4;
    const uint64_t zero = 0, one = 1, huge = 1ull << 62, odd = 33, far = 1ull << 40;
    const uint64_t thirtytwo = 32, next = 96, top = UINT64_MAX - 31;
    expect_bad_entry("b", AT_NAME, "a", 1, ROSE_E_FORMAT, "'a' is there twice");
    expect_bad_entry("b", AT_NAME, "\x7f", 1, ROSE_E_FORMAT, "not printable");
    expect_bad_entry("a", AT_DIMS, &no_dims, 4, ROSE_E_FORMAT, "0 dimensions");
    expect_bad_entry("a", AT_DIMS, &five, 4, ROSE_E_FORMAT, "5 dimensions");
    expect_bad_entry("a", AT_DIMS, &max, 4, ROSE_E_FORMAT, "4294967295 dimensions");
    expect_bad_entry("a", AT_SHAPE, &zero, 8, ROSE_E_FORMAT, "is 0");
    expect_bad_entry("a", AT_SHAPE + 8, &zero, 8, ROSE_E_FORMAT, "is 0");
    expect_bad_entry("a", AT_SHAPE, &huge, 8, ROSE_E_FORMAT, "overflow");
    expect_bad_entry("a", AT_SHAPE + 8, &huge, 8, ROSE_E_FORMAT, "overflow");
    expect_bad_entry("b", AT_SHAPE, &odd, 8, ROSE_E_FORMAT, "whole number of blocks of 32");
    expect_bad_entry("a", AT_SHAPE + 8, &far, 8, ROSE_E_FORMAT, "truncated");
    expect_bad_entry("a", AT_TYPE, &max, 4, ROSE_E_UNSUPPORTED, "unknown type 4294967295");
    expect_bad_entry("a", AT_TYPE, &gone, 4, ROSE_E_UNSUPPORTED, "unknown type 4");
    expect_bad_entry("b", AT_TYPE, &q2, 4, ROSE_E_FORMAT, "blocks of 256, as Q2_K has");
    expect_bad_entry("b", AT_OFFSET, &one, 8, ROSE_E_FORMAT, "alignment");
    expect_bad_entry("b", AT_OFFSET, &zero, 8, ROSE_E_FORMAT, "overlap");
    expect_bad_entry("b", AT_OFFSET, &thirtytwo, 8, ROSE_E_FORMAT, "overlap");
    expect_bad_entry("b", AT_OFFSET, &next, 8, ROSE_E_FORMAT, "truncated");
    expect_bad_entry("a", AT_OFFSET, &far, 8, ROSE_E_FORMAT, "expected 0");
    expect_bad_entry("b", AT_OFFSET, &top, 8, ROSE_E_FORMAT, "overflow");

    gw *w = small_file();
    rose_buf b = {0};
    gw_build(w, &b);
    for (int i = 0; i < 32; i++)
        gw_bytes(&b, "", 1);
    expect_bad(&b, ROSE_E_FORMAT, "belong to no tensor");
    rose_buf_free(&b);
    gw_free(w);
}

/* Damage of one byte anywhere: an error or a file whose tensors lie inside. Never a crash. */
static void flipped(void **state)
{
    (void)state;
    gw *w = small_file();
    rose_buf b = {0};
    gw_build(w, &b);
    for (size_t at = 0; at < b.len; at++)
        for (int bit = 0; bit < 8; bit++) {
            rose_gguf g;
            b.data[at] = (char)(b.data[at] ^ (1 << bit));
            if (rose_gguf_parse(&g, (const uint8_t *)b.data, b.len, "file", NULL) == ROSE_OK) {
                for (size_t i = 0; i < g.n_tensors; i++) {
                    const uint64_t n = g.tensors[i].end - g.tensors[i].begin;
                    assert_true(g.tensors[i].data >= (const uint8_t *)b.data);
                    assert_true(g.tensors[i].data + n <= (const uint8_t *)b.data + b.len);
                }
                rose_gguf_close(&g);
            }
            b.data[at] = (char)(b.data[at] ^ (1 << bit));
        }
    rose_buf_free(&b);
    gw_free(w);
}

static void split_names(void **state)
{
    (void)state;
    const rose_gguf_split s = rose_gguf_read_split("dir/m-00002-of-00003.gguf");
    assert_int_equal(s.no, 2);
    assert_int_equal(s.count, 3);
    assert_int_equal(s.prefix, 5);
    static const char *const others[] = {"m.gguf",
                                         "m-00004-of-00003.gguf",
                                         "m-00000-of-00003.gguf",
                                         "-00001-of-00003.gguf",
                                         "m-0001-of-00003.gguf",
                                         "m-00001-of-00003.bin",
                                         ""};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_equal(rose_gguf_read_split(others[i]).count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(package_file), cmocka_unit_test(truncated),
        cmocka_unit_test(versions),     cmocka_unit_test(huge_counts),
        cmocka_unit_test(bad_pairs),    cmocka_unit_test(bad_tensors),
        cmocka_unit_test(flipped),      cmocka_unit_test(split_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
