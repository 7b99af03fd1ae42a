/* The options of `roseinfer serve`: each sets its own variable and no other, and without any the
 * defaults are those of the rooms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/serve_opts.h"
#include "opts_walk.h"

static rose_serve_flags g_flags, g_before;

static void test_sets(void **state)
{
    (void)state;
    rose_opt rows[ROSE_SERVE_OPT_ROWS], was[ROSE_SERVE_OPT_ROWS];
    const size_t n = rose_serve_opts_rows(&g_flags, rows);
    rose_serve_opts_default(&g_before);
    assert_int_equal(rose_serve_opts_rows(&g_before, was), n);
    for (size_t i = 0; i < n; i++) {
        rose_serve_opts_default(&g_flags);
        expect_sets_itself(rows, was, n, i);
    }
}

static void test_defaults(void **state)
{
    (void)state;
    rose_http_opts http;
    rose_engine_opts engine;
    rose_http_opts_default(&http);
    rose_engine_opts_default(&engine);
    rose_serve_opts_default(&g_flags);
    assert_memory_equal(&g_flags.http, &http, sizeof http);
    assert_memory_equal(&g_flags.engine.opts, &engine, sizeof engine);
    assert_null(g_flags.api.model_id);
    assert_int_equal(g_flags.shutdown_timeout, 60);
    assert_string_equal(g_flags.log_level, "info");
}

static void test_io_threads(void **state)
{
    (void)state;
    char *argv[] = {(char *)(uintptr_t) "serve", (char *)(uintptr_t) "m",
                    (char *)(uintptr_t) "--io-threads=3"};
    const char *model = NULL;
    rose_err err = {{0}};
    assert_int_equal(rose_serve_opts_parse(&g_flags, 3, argv, NULL, &model), -1);
    assert_string_equal(model, "m");
    assert_int_equal(rose_serve_opts_read(&g_flags, &err), ROSE_OK);
    assert_int_equal(g_flags.http.n_threads, 3);
    assert_int_equal(g_flags.api.n_io_threads, 3);
    g_flags.io_cpus = "x";
    assert_int_equal(rose_serve_opts_read(&g_flags, &err), ROSE_E_INVAL);
}

static void test_root_path(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        rose_status want;
    } cases[] = {{NULL, ROSE_OK},        {"", ROSE_OK},
                 {"/", ROSE_OK},         {"/llm/", ROSE_OK},
                 {"/a/b%20c", ROSE_OK},  {"llm", ROSE_E_INVAL},
                 {"/a b", ROSE_E_INVAL}, {"/a?b", ROSE_E_INVAL},
                 {"/a#b", ROSE_E_INVAL}, {"/\xc3\xa9", ROSE_E_INVAL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_err err = {{0}};
        rose_serve_opts_default(&g_flags);
        g_flags.http.root_path = cases[i].path;
        assert_int_equal(rose_serve_opts_read(&g_flags, &err), cases[i].want);
        if (cases[i].want != ROSE_OK)
            assert_non_null(strstr(err.msg, "expected a path such as /llm"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets), cmocka_unit_test(test_defaults),
                                       cmocka_unit_test(test_io_threads),
                                       cmocka_unit_test(test_root_path)};
    return cmocka_run_group_tests_name("serve options", tests, NULL, NULL);
}
