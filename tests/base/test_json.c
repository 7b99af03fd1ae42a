/* rose_json_parse: strict. Failed allocations: tests/model/test_oom.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"

static rose_status parse(const char *text, size_t n, size_t flags)
{
    json_error_t e;
    json_t *v = (json_t *)(uintptr_t)1;
    rose_status st = rose_json_parse(&v, text, n, flags, &e);
    assert_true((st == ROSE_OK) == (v != NULL));
    json_decref(v);
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
    assert_int_equal(parse("7", 1, JSON_DECODE_ANY), ROSE_OK);
    assert_int_equal(parse("\"\xC0\x80\"", 4, JSON_DECODE_ANY), ROSE_E_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
