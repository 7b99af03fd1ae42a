/* JSON in and out: the escaper against the writer of values on random strings, numbers, error texts
 * that quote hostile bytes, and the guard that bounds what a body may cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"

static uint64_t rng;

static uint32_t below(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

static size_t put_utf8(char *s, uint32_t c)
{
    if (c < 0x80) {
        s[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        s[i] = (char)(0x80 | (c & 0x3F));
    s[0] = (char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

static uint32_t random_char(void)
{
    static const uint32_t edges[] = {0,      0x1F,   0x20,   0x22,    0x2F,    0x5C,
                                     0x7F,   0x80,   0x7FF,  0x800,   0xD7FF,  0xE000,
                                     0xFFFD, 0xFFFF, 0x2028, 0x10000, 0x10FFFF};
    uint32_t kind = below(4), c;
    if (kind == 0) return below(0x80);
    if (kind == 1) return edges[below(sizeof edges / sizeof *edges)];
    do {
        c = kind == 2 ? below(0x3000) : below(0x110000);
    } while (c >= 0xD800 && c < 0xE000);
    return c;
}

static void check_escape(const char *s, size_t len)
{
    rose_api_out o = {0};
    rose_json *v = rose_json_stringn(s, len);
    assert_non_null(v);
    char *want = rose_json_dumps(v, ROSE_JSON_COMPACT);
    rose_api_put_string(&o, s, len);
    assert_int_equal(o.b.len, strlen(want));
    assert_memory_equal(o.b.data, want, o.b.len);
    free(want);
    rose_json_decref(v);
    rose_api_out_free(&o);
}

static void escaper_equals_the_writer(void **state)
{
    char s[256];
    (void)state;
    check_escape("", 0);
    for (uint32_t c = 0; c < 0x3000; c++)
        check_escape(s, put_utf8(s, c));
    for (int i = 0; i < 100000; i++) {
        size_t len = 0;
        for (uint32_t n = below(60); n > 0; n--)
            len += put_utf8(s + len, random_char());
        check_escape(s, len);
    }
}

static void numbers(void **state)
{
    static const uint64_t v[] = {0, 1, 9, 10, 4294967295u, UINT64_MAX};
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        char want[24];
        rose_api_out o = {0};
        rose_api_put_u64(&o, v[i]);
        int n = snprintf(want, sizeof want, "%llu", (unsigned long long)v[i]);
        assert_int_equal(o.b.len, n);
        assert_memory_equal(o.b.data, want, (size_t)n);
        rose_api_out_free(&o);
    }
}

/* A reply by a pattern has the bytes of the single writes. */
static void patterns(void **state)
{
    (void)state;
    for (int i = 0; i < 20000; i++) {
        char a[256] = "", b[64] = "x%s'\"\\";
        size_t len = 0;
        for (uint32_t n = below(40); n > 0; n--) {
            uint32_t c = random_char();
            len += put_utf8(a + len, c != 0 ? c : 1);
        }
        a[len] = '\0';
        const int part = (int)below((uint32_t)strlen(b) + 1);
        const unsigned long long wide = (unsigned long long)below(1u << 31) * below(1u << 31) * 5;
        const unsigned u = below(UINT32_MAX);
        const int d = (int)below(1000) - 500;
        const double x = (double)d * 1.2345678912345 / (1 + below(99));
        rose_api_out o = {0}, want = {0};
        rose_api_json(&o, "{'a':%-s,'b':'%s',%-.*s:[%u,%d,%llu,%lld,%zu,%lu", a, b, part, b, u, d,
                      wide, -(long long)(wide / 2), (size_t)wide, (unsigned long)wide);
        rose_api_json(&o, ",%g,%.9g,%f,%.3f,''%.*s]}", x, x, x, x, part, b);
        rose_api_puts(&want, "{\"a\":");
        rose_api_put_string(&want, a, len);
        rose_api_putf(&want, ",\"b\":\"%s\",", b);
        rose_api_put_string(&want, b, (size_t)part);
        rose_api_putf(&want, ":[%u,%d,%llu,%lld,%zu,%lu", u, d, wide, -(long long)(wide / 2),
                      (size_t)wide, (unsigned long)wide);
        rose_api_putf(&want, ",%g,%.9g,%f,%.3f,\"\"%.*s]}", x, x, x, x, part, b);
        assert_false(o.oom || want.oom);
        assert_int_equal(o.b.len, want.b.len);
        assert_memory_equal(o.b.data, want.b.data, o.b.len);
        rose_api_out_free(&o);
        rose_api_out_free(&want);
    }
}

/* Whatever bytes an error quotes, its JSON can be read. */
static void errors_are_valid_json(void **state)
{
    (void)state;
    for (int i = 0; i < 50000; i++) {
        char text[700];
        size_t len = below(sizeof text);
        for (size_t k = 0; k < len; k++)
            text[k] = (char)(1 + below(255));
        text[len == sizeof text ? len - 1 : len] = '\0';
        rose_api_error e;
        rose_api_fail(&e, 400, "c", text, "x %s", text);
        rose_api_out o = {0};
        rose_api_error_json(&o, &e);
        rose_json *v = rose_json_loadb(o.b.data, o.b.len, 0, NULL);
        assert_non_null(v);
        rose_json_decref(v);
        rose_api_out_free(&o);
    }
}

static int load_status(const char *body, size_t len, size_t max_values)
{
    rose_api_error e = {0};
    rose_json *v;
    bool ok = rose_api_json_load(&v, body, len, max_values, &e);
    assert_int_equal(ok, v != NULL);
    rose_json_decref(v);
    return ok ? 200 : e.status;
}

static char *repeat(const char *open, const char *unit, size_t n, const char *close)
{
    size_t u = strlen(unit);
    char *s = malloc(strlen(open) + u * n + strlen(close) + 1), *p = s;
    p = stpcpy(p, open);
    for (size_t i = 0; i < n; i++)
        p = stpcpy(p, unit);
    strcpy(p, close);
    return s;
}

static void bombs(void **state)
{
    (void)state;
    char *s = repeat("{\"a\":", "[", 1000000, "");
    assert_int_equal(load_status(s, strlen(s), 1000), 400);
    free(s);
    s = repeat("{\"a\":", "{\"a\":", 70, "");
    assert_int_equal(load_status(s, strlen(s), 1000), 400);
    free(s);
    s = repeat("{\"a\":[1", ",[]", 65535, "]}"); /* 65537 containers */
    assert_int_equal(load_status(s, strlen(s), 1000000), 400);
    free(s);
    s = repeat("{\"a\":[1", ",[]", 65534, "]}");
    assert_int_equal(load_status(s, strlen(s), 1000000), 200);
    free(s);
    s = repeat("{\"a\":[1", ",1", 1001, "]}");
    assert_int_equal(load_status(s, strlen(s), 1000), 400);
    assert_int_equal(load_status(s, strlen(s), 1001), 200);
    free(s);
    s = repeat("{\"a\":\"", "[{,\\\"", 100000, "\"}"); /* within a string nothing counts */
    assert_int_equal(load_status(s, strlen(s), 10), 200);
    free(s);
}

static void bodies(void **state)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "1",
                                      "null",
                                      "{",
                                      "{\"a\"",
                                      "{]}",
                                      "{\"a\":1}x",
                                      "{\"a\":NaN}",
                                      "{\"a\":1e999}",
                                      "{\"a\":1,\"a\":2}",
                                      "{\"a\":\"\xFF\"}",
                                      "{\"a\":\"\\ud800\"}",
                                      "{\"a\":\"\n\"}",
                                      "{\"a\":01}",
                                      "{'a':1}",
                                      "{\"a\":\"\\",
                                      "]]]]{}"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(load_status(bad[i], strlen(bad[i]), 100), 400);
    assert_int_equal(load_status("{}", 2, 100), 200);
    assert_int_equal(load_status("{\"a\":\"\\u0000\"}", 14, 100), 200);
    assert_int_equal(load_status("{\"a\0\":1}", 8, 100), 400);
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    rng = seed != NULL ? strtoull(seed, NULL, 0) : 20261121;
    printf("seed %llu\n", (unsigned long long)rng);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(escaper_equals_the_writer),
        cmocka_unit_test(numbers),
        cmocka_unit_test(patterns),
        cmocka_unit_test(errors_are_valid_json),
        cmocka_unit_test(bombs),
        cmocka_unit_test(bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
