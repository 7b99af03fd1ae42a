/* base/json.h: what is read and refused, numbers that keep their digits, objects, equality, the
 * writer and the format of rose_json_pack. Against Python's json: tests/base/test_json.py. Failed
 * allocations: test_json_oom.c. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/utf8.h"

static rose_status parse(const char *text, size_t n, unsigned flags)
{
    rose_json_error e;
    rose_json *v = (rose_json *)(uintptr_t)1;
    char *exact = malloc(n > 0 ? n : 1); /* a byte too far is seen by ASAN */
    assert_non_null(exact);
    if (n > 0) memcpy(exact, text, n);
    rose_status st = rose_json_parse(&v, text != NULL ? exact : NULL, n, flags, &e);
    assert_true((st == ROSE_OK) == (v != NULL));
    if (st != ROSE_OK) assert_true(e.text[0] != '\0' && e.line >= 1 && e.column >= 1);
    rose_json_decref(v);
    free(exact);
    return st;
}

static void strict(void **state)
{
    (void)state;
    assert_int_equal(parse("{\"a\": [1, 2.5, null]}", 21, 0), ROSE_OK);
    assert_int_equal(parse("{\"a\": 1}garbage", 8, 0), ROSE_OK); /* n bytes and no more */
    assert_int_equal(parse("{\"a\": 1}garbage", 15, 0), ROSE_E_FORMAT);
    assert_int_equal(parse("{\"a\": 1, \"a\": 1}", 16, 0), ROSE_E_FORMAT);
    assert_int_equal(parse("{\"a\": 1, \"b\": 1}", 16, 0), ROSE_OK);
    assert_int_equal(parse("", 0, 0), ROSE_E_FORMAT);
    assert_int_equal(parse(NULL, 0, 0), ROSE_E_FORMAT);
    assert_int_equal(parse("7", 1, 0), ROSE_E_FORMAT);
    assert_int_equal(parse("7", 1, ROSE_JSON_ANY), ROSE_OK);
    assert_int_equal(parse("\"\xC0\x80\"", 4, ROSE_JSON_ANY), ROSE_E_FORMAT);
}

/* Every prefix of a correct text is refused. */
static void prefixes(void **state)
{
    static const char text[] = "{\"a\\n\\u00e9\\ud83c\\udf39\xC3\xA9\":[1,-2.5e+3,{},[],null,true,"
                               "false,{\"b\":\"\"},123456789012345678901]}";
    (void)state;
    assert_int_equal(parse(text, sizeof text - 1, 0), ROSE_OK);
    for (size_t n = 0; n < sizeof text - 1; n++)
        assert_int_equal(parse(text, n, 0), ROSE_E_FORMAT);
}

static void options(void **state)
{
    static const struct {
        const char *text;
        unsigned flags; /* without any of them the text is refused */
        const char *dump;
    } cases[] = {
        {"{\"a\":1,\"b\":2,\"a\":3}", ROSE_JSON_LAST_WINS, "{\"a\":3,\"b\":2}"},
        {"[NaN,Infinity,-Infinity,1e999]", ROSE_JSON_NONFINITE, "[NaN,Infinity,-Infinity,1e999]"},
        {"[\"a\nb\t\"]", ROSE_JSON_CONTROL, "[\"a\\nb\\t\"]"},
        {"[\"\\u0000\"]", ROSE_JSON_NUL, "[\"\\u0000\"]"},
        {"\"x\"", ROSE_JSON_ANY, "\"x\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = strlen(cases[i].text);
        assert_int_equal(parse(cases[i].text, n, 31 & ~cases[i].flags), ROSE_E_FORMAT);
        rose_json *v = rose_json_loads(cases[i].text, cases[i].flags, NULL);
        char *dump = rose_json_dumps(v, ROSE_JSON_COMPACT);
        assert_string_equal(dump, cases[i].dump);
        free(dump);
        rose_json_decref(v);
    }
    assert_int_equal(parse("{\"\\u0000\":1}", 12, 31), ROSE_E_FORMAT); /* never in a key */
    assert_int_equal(parse("[-NaN]", 6, 31), ROSE_E_FORMAT);
}

/* What models write wrong, and texts that were cut. */
static void repairs(void **state)
{
    static const struct {
        const char *text, *dump; /* NULL: nothing can be read */
    } cases[] = {
        {"{\"a\":98,}", "{\"a\":98}"},
        {"[1,]", "[1]"},
        {"{\"a\":\"line1\nline2\"}", "{\"a\":\"line1\\nline2\"}"},
        {"{\"a\":\"\\d+\\u12\"}", "{\"a\":\"\\\\d+\\\\u12\"}"},
        {"{\"a\":\"\\ud83c x\"}", "{\"a\":\"\xEF\xBF\xBD x\"}"},
        {"{\"b\":1,\"b\":2}", "{\"b\":2}"},
        {"{", "{}"},
        {"{\"a", "{}"},
        {"{\"a\"", "{}"},
        {"{\"a\":", "{}"},
        {"{\"a\": tru", "{}"},
        {"{\"a\": -", "{}"},
        {"{\"a\": 12.", "{}"},
        {"{\"a\": 12", "{\"a\":12}"},
        {"{\"a\": 1,", "{\"a\":1}"},
        {"{\"a\": 1, \"b\": \"rm -", "{\"a\":1,\"b\":\"rm -\"}"},
        {"{\"a\": \"x\\", "{\"a\":\"x\"}"},
        {"{\"a\": \"x\\u00", "{\"a\":\"x\"}"},
        {"{\"a\": [1, {\"b\": [2", "{\"a\":[1,{\"b\":[2]}]}"},
        {"{\"a\": [1, {\"b\": [nul", "{\"a\":[1,{\"b\":[]}]}"},
        {"{\"a\": 12345678901234567890", "{\"a\":12345678901234567890}"},
        {"", NULL},
        {"rm -rf", NULL},
        {"{'a': 1}", NULL},
        {"{\"a\": 1]", NULL},
        {"{\"a\": 1} x", NULL},
        {"{\"a\": what}", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_json *v = rose_json_loads(cases[i].text, ROSE_JSON_REPAIR | ROSE_JSON_PYTHON, NULL);
        char *dump = v != NULL ? rose_json_dumps(v, ROSE_JSON_COMPACT) : NULL;
        if ((dump == NULL) != (cases[i].dump == NULL) ||
            (dump != NULL && strcmp(dump, cases[i].dump) != 0))
            fail_msg("%s: %s", cases[i].text, dump != NULL ? dump : "refused");
        free(dump);
        rose_json_decref(v);
    }
    static const char text[] = "{\"a\\n\\u00e9\\ud83c\\udf39\xC3\xA9\":[1,-2.5e+3,{},[],null,true,"
                               "false,{\"b\":\"\\ud83c\\udf39\"}]}";
    for (size_t n = 1; n < sizeof text; n++) /* cut anywhere outside a character */
        if ((text[n] & 0xC0) != 0x80) assert_int_equal(parse(text, n, ROSE_JSON_REPAIR), ROSE_OK);
}

static void messages(void **state)
{
    static const struct {
        const char *text;
        int line, column, position;
        const char *says;
    } cases[] = {
        {"{", 1, 1, 1, "a string is missing at the end of the text"},
        {"{\"a\":01}", 1, 6, 6, "a number that begins with 0 near '01}'"},
        {"{\"\xC3\xA9\":\n  nul}", 2, 3, 10, "an invalid value near 'nul}'"},
        {"{\"a\":1,\n\"a\":2}", 2, 1, 9, "duplicate object key"},
        {"{\"a\":1e999}", 1, 6, 6, "real number overflow near '1e999}'"},
        {"{\"a\":\"x\ny\"}", 1, 8, 8, "a control character in a string"},
        {"{\"a\":\"\\ud800\"}", 1, 13, 13, "half of a surrogate pair"},
        {"{\"a\":1}x", 1, 8, 8, "text after the value near 'x'"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_json_error e;
        assert_null(rose_json_loads(cases[i].text, 0, &e));
        if (e.line != cases[i].line || e.column != cases[i].column ||
            e.position != cases[i].position || strstr(e.text, cases[i].says) == NULL)
            fail_msg("%s: line %d, column %d, byte %d: %s", cases[i].text, e.line, e.column,
                     e.position, e.text);
    }
}

static void limits(void **state)
{
    const rose_json_limits l = {2, 3, 4};
    static const struct {
        const char *text;
        int limit;
    } cases[] = {{"[[],[]]", ROSE_JSON_NO_LIMIT},      {"[[[]]]", ROSE_JSON_DEPTH},
                 {"[[],[],[]]", ROSE_JSON_CONTAINERS}, {"[1,2,3,4,5]", ROSE_JSON_NO_LIMIT},
                 {"[1,2,3,4,5,6]", ROSE_JSON_VALUES},  {"[[],{},", ROSE_JSON_NO_LIMIT}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_json *v;
        rose_json_error e = {.limit = ROSE_JSON_NO_LIMIT};
        rose_json_parse_limited(&v, cases[i].text, strlen(cases[i].text), 0, &l, &e);
        assert_int_equal(e.limit, cases[i].limit);
        rose_json_decref(v);
    }
    char deep[2 * 2049];
    memset(deep, '[', 2049);
    memset(deep + 2049, ']', 2049);
    assert_int_equal(parse(deep, sizeof deep, 0), ROSE_E_FORMAT);
    assert_int_equal(parse(deep + 1, sizeof deep - 2, 0), ROSE_OK);
}

/* ---- numbers ---- */

static void numbers(void **state)
{
    static const struct {
        const char *text;
        rose_json_kind kind;
        bool big;
        double value;
    } cases[] = {
        {"0", ROSE_JSON_INTEGER, false, 0},
        {"-0", ROSE_JSON_INTEGER, false, 0},
        {"9223372036854775807", ROSE_JSON_INTEGER, false, 0x1p63},
        {"-9223372036854775808", ROSE_JSON_INTEGER, false, -0x1p63},
        {"9223372036854775808", ROSE_JSON_REAL, true, 0x1p63},
        {"-9223372036854775809", ROSE_JSON_REAL, true, -0x1p63},
        {"1000000000000000019884624838656", ROSE_JSON_REAL, true, 1e30},
        {"18446744073709552000", ROSE_JSON_REAL, true, 0x1p64},
        {"1.10", ROSE_JSON_REAL, false, 1.1},
        {"-0.0", ROSE_JSON_REAL, false, 0},
        {"1E400", ROSE_JSON_REAL, false, (double)INFINITY},
        {"1e-400", ROSE_JSON_REAL, false, 0},
        {"100000000000000000000.0", ROSE_JSON_REAL, false, 1e20},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char buf[ROSE_JSON_NUMBER_CAP];
        rose_json *v = rose_json_loads(cases[i].text, ROSE_JSON_ANY | ROSE_JSON_NONFINITE, NULL);
        assert_non_null(v);
        assert_int_equal(rose_json_kind_of(v), cases[i].kind);
        assert_int_equal(rose_json_is_big(v), cases[i].big);
        assert_true(rose_json_number_value(v) >= cases[i].value &&
                    rose_json_number_value(v) <= cases[i].value);
        assert_string_equal(rose_json_number_text(v, buf), cases[i].text);
        char *dump = rose_json_dumps(v, 0);
        assert_string_equal(dump, cases[i].text);
        free(dump);
        rose_json_decref(v);
    }
}

/* Numbers that programs made, and in a locale whose decimal point is a comma (if there is one). */
static void made_numbers(void **state)
{
    (void)state;
    setlocale(LC_ALL, "de_DE.UTF-8");
    rose_json *v = rose_json_pack("[f,f,f,I,i]", 0.1, 1.0, 1e300, INT64_MIN, -7);
    char *dump = rose_json_dumps(v, 0);
    assert_string_equal(dump, "[0.10000000000000001, 1.0, 1.0000000000000001e300, "
                              "-9223372036854775808, -7]");
    free(dump);
    dump = rose_json_dumps(v, ROSE_JSON_REAL_PRECISION(7) | ROSE_JSON_COMPACT);
    assert_string_equal(dump, "[0.1,1.0,1e300,-9223372036854775808,-7]");
    free(dump);
    rose_json_decref(v);
    v = rose_json_loads("0.5", ROSE_JSON_ANY, NULL);
    assert_true(rose_json_real_value(v) > 0.4);
    rose_json_decref(v);
    assert_null(rose_json_real((double)NAN));
    assert_null(rose_json_real((double)INFINITY));
    setlocale(LC_ALL, "C");
}

static void equality(void **state)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"{\"a\":1,\"b\":[true,null]}", "{\"b\":[true,null],\"a\":1}", true},
        {"{\"a\":1}", "{\"a\":1,\"b\":1}", false},
        {"{\"a\":1}", "{\"b\":1}", false},
        {"[1,2]", "[2,1]", false},
        {"[1]", "[1.0]", false},
        {"[1.0]", "[1.00]", true},
        {"[12345678901234567890]", "[12345678901234567890]", true},
        {"[12345678901234567890]", "[12345678901234567891]", false},
        {"[12345678901234567890]", "[12345678901234567890.0]", false},
        {"[\"a\"]", "[\"a\\u0000\"]", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_json *a = rose_json_loads(cases[i].a, ROSE_JSON_NUL, NULL);
        rose_json *b = rose_json_loads(cases[i].b, ROSE_JSON_NUL, NULL);
        rose_json *copy = rose_json_copy(a);
        assert_int_equal(rose_json_equal(a, b), cases[i].same);
        assert_true(rose_json_equal(a, copy));
        rose_json_decref(copy);
        rose_json_decref(a);
        rose_json_decref(b);
    }
    assert_false(rose_json_equal(NULL, NULL));
}

/* ---- objects and arrays ---- */

/* Members in order, found, replaced in place and deleted, in small and in indexed objects. */
static void members(void **state)
{
    (void)state;
    char name[16];
    const int n = 1000;
    rose_json *o = rose_json_object();
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "k%d", i);
        assert_int_equal(rose_json_set_new(o, name, rose_json_integer(i)), 0);
        assert_int_equal(rose_json_size(o), i + 1);
        snprintf(name, sizeof name, "k%d", i / 2);
        assert_int_equal(rose_json_int(rose_json_get(o, name)), i / 2);
        assert_null(rose_json_get(o, "k"));
    }
    for (int i = 0; i < n; i += 3) {
        snprintf(name, sizeof name, "k%d", i);
        assert_int_equal(rose_json_del(o, name), 0);
        assert_int_equal(rose_json_del(o, name), -1);
    }
    assert_int_equal(rose_json_set_new(o, "k1", rose_json_string("new")), 0);
    int at = 0;
    const char *key;
    size_t len;
    rose_json *v;
    rose_json_each_n (o, key, len, v) {
        at += at % 3 == 0;
        snprintf(name, sizeof name, "k%d", at++);
        assert_string_equal(key, name);
        assert_int_equal(len, strlen(name));
    }
    assert_int_equal(at, n - 1);
    assert_string_equal(rose_json_text(rose_json_member_at(o, 0)), "new");
    rose_json_decref(o);
}

static void changes(void **state)
{
    (void)state;
    size_t i;
    rose_json *v, *a = rose_json_pack("[i,i,i]", 1, 2, 3), *o = rose_json_pack("{s:i}", "a", 1);
    assert_int_equal(rose_json_insert_new(a, 0, rose_json_integer(0)), 0);
    assert_int_equal(rose_json_insert_new(a, 9, rose_json_integer(0)), -1);
    rose_json_each_item (a, i, v)
        assert_int_equal(rose_json_int(v), i);
    assert_int_equal(i, 4);
    assert_int_equal(rose_json_replace_new(a, 0, rose_json_integer(7)), 0);
    assert_int_equal(rose_json_int(rose_json_at(a, 0)), 7);
    assert_int_equal(rose_json_replace_new(a, 4, rose_json_integer(7)), -1);
    assert_int_equal(rose_json_remove(a, 4), -1);
    assert_int_equal(rose_json_remove(a, 1), 0);
    assert_int_equal(rose_json_int(rose_json_at(a, 1)), 2);
    assert_int_equal(rose_json_extend(a, a), 0);
    assert_int_equal(rose_json_count(a), 6);
    assert_int_equal(rose_json_append_new(o, rose_json_null()), -1);
    assert_int_equal(rose_json_set(a, "a", o), -1);
    assert_int_equal(rose_json_set(o, "o", o), -1);
    assert_int_equal(rose_json_set_new(o, "b", NULL), -1);
    assert_int_equal(rose_json_set_new(o, "\xFF", rose_json_null()), -1);
    rose_json *more = rose_json_pack("{s:i,s:i}", "a", 5, "c", 6);
    assert_int_equal(rose_json_update_missing(o, more), 0);
    assert_int_equal(rose_json_int(rose_json_get(o, "a")), 1);
    assert_int_equal(rose_json_update(o, more), 0);
    assert_int_equal(rose_json_int(rose_json_get(o, "a")), 5);
    assert_int_equal(rose_json_size(o), 2);
    rose_json_decref(more);
    rose_json_decref(a);
    rose_json_decref(o);
}

static void packing(void **state)
{
    (void)state;
    rose_json *x = rose_json_pack("[s]", "x");
    rose_json *v =
        rose_json_pack("{s:s, s:s#, s:s?, s:b, s:n, s:[i,[],{}], s:O, s:o}", "a", "b", "c", "def",
                       2, "g", (const char *)NULL, "h", 1, "i", "j", 3, "k", x, "l", x);
    char *dump = rose_json_dumps(v, ROSE_JSON_COMPACT);
    assert_string_equal(dump, "{\"a\":\"b\",\"c\":\"de\",\"g\":null,\"h\":true,\"i\":null,"
                              "\"j\":[3,[],{}],\"k\":[\"x\"],\"l\":[\"x\"]}");
    free(dump);
    rose_json_decref(v);
    /* What `o` gave is released, before and after the argument that is no value. */
    assert_null(rose_json_pack("{s:o, s:s, s:o}", "a", rose_json_array(), "b", (const char *)NULL,
                               "c", rose_json_array()));
    assert_null(rose_json_pack("[o]", (rose_json *)NULL));
}

static void writing(void **state)
{
    (void)state;
    rose_json *v = rose_json_loads("{\"a\":[1,{}],\"b\":{\"c\":[]}}", 0, NULL);
    char *dump = rose_json_dumps(v, 0);
    assert_string_equal(dump, "{\"a\": [1, {}], \"b\": {\"c\": []}}");
    free(dump);
    dump = rose_json_dumps(v, ROSE_JSON_INDENT(2));
    assert_string_equal(dump, "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": {\n    \"c\": []\n  "
                              "}\n}");
    free(dump);
    rose_json_decref(v);
    assert_null(rose_json_dumps(NULL, 0));
}

/* Every character survives UTF-8 and both escapes; every byte becomes itself or an escape. */
static void characters(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x110000; cp++) {
        char utf8[4], text[ROSE_JSON_CODE_CAP + 4] = "[\"";
        uint32_t back = 0;
        if (!rose_utf8_is_char(cp)) {
            assert_true(cp == 0x110000 || (cp >= 0xD800 && cp < 0xE000));
            continue;
        }
        const unsigned n = rose_utf8_encode(cp, utf8);
        assert_int_equal(n, cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4);
        assert_int_equal(rose_utf8_len(utf8[0]), n);
        assert_int_equal(rose_utf8_count(utf8, n), 1);
        assert_int_equal(rose_utf8_decode((uint8_t *)utf8, (uint8_t *)utf8 + n, &back), n);
        assert_int_equal(back, cp);
        for (unsigned cut = 1; cut < n; cut++)
            assert_false(rose_utf8_is_valid(utf8, cut) || !rose_utf8_is_inner(utf8[cut]));
        const unsigned k = cp < 0x80 && cp % 2 == 0 ? rose_json_escape_byte(text + 2, (char)cp)
                                                    : rose_json_escape_code(text + 2, cp);
        assert_int_equal(k, text[2] != '\\' ? 1 : text[3] != 'u' ? 2 : cp < 0x10000 ? 6 : 12);
        memcpy(text + 2 + k, "\"]", 2);
        rose_json *v = rose_json_loadb(text, k + 4, ROSE_JSON_NUL, NULL);
        assert_int_equal(rose_json_text_len(rose_json_at(v, 0)), n);
        assert_memory_equal(rose_json_text(rose_json_at(v, 0)), utf8, n);
        rose_json_decref(v);
    }
    rose_buf b = {0};
    assert_int_equal(rose_json_escape_lower(&b, "\x1f\n\"\xff", 4), ROSE_OK);
    assert_int_equal(rose_json_escape(&b, "\x1f\n\"\xff", 4), ROSE_OK);
    assert_string_equal(rose_buf_str(&b), "\\u001f\\n\\\"\xff\\u001F\\n\\\"\xff");
    rose_buf_free(&b);
    for (int c = -128; c < 128; c++) {
        const char high = (char)(c & 15), low = (char)(c >> 4 & 15);
        const char text[] = {"0123456789abcdef"[(int)high], "0123456789ABCDEF"[(int)low], '\0'};
        assert_int_equal(rose_hex_digit(text[0]), high);
        assert_int_equal(rose_hex_digit(text[1]), low);
        assert_true((rose_hex_digit((char)c) >= 0) ==
                    (c != 0 && strchr("0123456789abcdefABCDEF", c) != NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strict),   cmocka_unit_test(prefixes),     cmocka_unit_test(options),
        cmocka_unit_test(messages), cmocka_unit_test(limits),       cmocka_unit_test(numbers),
        cmocka_unit_test(equality), cmocka_unit_test(made_numbers), cmocka_unit_test(members),
        cmocka_unit_test(changes),  cmocka_unit_test(packing),      cmocka_unit_test(writing),
        cmocka_unit_test(repairs),  cmocka_unit_test(characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
