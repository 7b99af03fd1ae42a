/* tests/base/test_dl.c - loading a library and a table of its functions: libm, which every system
 * has under one name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/dl.h"

static const char *const g_paths[] = {"/nonexistent/libnone.so.1", "libm.so.6"};

static void test_found(void **state)
{
    double (*power)(double, double) = NULL, (*root)(double) = NULL;
    const rose_dl_function functions[] = {{"pow", &power}, {"sqrt", &root}};
    void *library = NULL;
    (void)state;
    assert_int_equal(rose_dl_open(&library, g_paths, 2, functions, 2, NULL), ROSE_OK);
    assert_non_null(library);
    assert_true((int)power(2, 10) == 1024 && (int)root(81) == 9);
    rose_dl_close(library);
    rose_dl_close(NULL);
}

static void test_refused(void **state)
{
    double (*power)(double, double) = NULL;
    const rose_dl_function functions[] = {{"pow", &power}, {"no_such_function", &power}};
    void *library = &power;
    rose_err err = {""};
    (void)state;
    assert_int_equal(rose_dl_open(&library, g_paths, 1, functions, 1, &err), ROSE_E_NOTFOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/libnone.so.1"));
    assert_null(library);
    library = &power;
    assert_int_equal(rose_dl_open(&library, g_paths, 2, functions, 2, &err), ROSE_E_UNSUPPORTED);
    assert_string_equal(err.msg, "libm.so.6 lacks the function no_such_function");
    assert_null(library);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_found),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("dl", tests, NULL, NULL);
}
