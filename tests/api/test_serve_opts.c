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

/* The options that an alias names are rows of the table, and switches exactly where it gives no
 * value. */
static void expect_options(const rose_foreign *r, const rose_opt *rows, size_t n)
{
    char text[256];
    char *rest = NULL;
    snprintf(text, sizeof text, "%s", r->to);
    for (char *p = strtok_r(text, " ", &rest); p != NULL; p = strtok_r(NULL, " ", &rest)) {
        const size_t len = strcspn(p, "=");
        const bool value = p[len] == '=';
        const rose_opt *o = NULL;
        if (*p == '@' || strncmp(p, "MODEL", len) == 0) continue;
        for (size_t i = 0; i < n; i++) {
            const char *name = !value && strncmp(p, "no-", 3) == 0 ? p + 3 : p;
            const size_t l = len - (size_t)(name - p);
            if (rows[i].kind != ROSE_OPT_HEADING && strlen(rows[i].name) == l &&
                memcmp(rows[i].name, name, l) == 0)
                o = &rows[i];
        }
        if (o == NULL) fail_msg("%s: there is no option %s", r->to, p);
        if (value == (o->kind == ROSE_OPT_BOOL || o->kind == ROSE_OPT_FLAG))
            fail_msg("%s: %s", r->to, value ? "a switch has a value" : "the value is missing");
    }
}

/* No earlier row has one of the names. */
static void expect_new_names(size_t row)
{
    const rose_foreign *rows = rose_serve_foreign.rows;
    char text[1024], other[1024];
    char *rest = NULL, *rest2 = NULL;
    snprintf(text, sizeof text, "%s", rows[row].names);
    for (char *p = strtok_r(text, " ", &rest); p != NULL; p = strtok_r(NULL, " ", &rest)) {
        assert_true(p[0] == '-' && strlen(text) < sizeof text - 1);
        for (size_t i = 0; i < row; i++) {
            if (rows[i].names == NULL) continue;
            snprintf(other, sizeof other, "%s", rows[i].names);
            for (char *q = strtok_r(other, " ", &rest2); q != NULL;
                 q = strtok_r(NULL, " ", &rest2)) {
                if (strcmp(p, q) == 0) fail_msg("%s has two groups of rows", p);
            }
        }
    }
}

static void test_foreign_rows(void **state)
{
    rose_opt rows[ROSE_SERVE_OPT_ROWS];
    (void)state;
    rose_serve_opts_default(&g_flags);
    const size_t n = rose_serve_opts_rows(&g_flags, rows);
    assert_non_null(rose_serve_foreign.rows[0].names);
    for (size_t i = 0; i < rose_serve_foreign.n; i++) {
        const rose_foreign *r = &rose_serve_foreign.rows[i];
        if (r->names != NULL) {
            expect_new_names(i);
            assert_true(strspn(r->whose, "vls") == strlen(r->whose));
        } else {
            assert_non_null(r[-1].values); /* else this row is never reached */
            assert_non_null(r->values);
            if (strcmp(r[-1].values, "*") == 0) fail_msg("row after %s: all values", r[-1].why);
        }
        assert_true((r->act == ROSE_FOREIGN_ALIAS) == (r->to != NULL));
        assert_true(r->to != NULL || r->why != NULL);
        if (r->to != NULL) expect_options(r, rows, n);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets), cmocka_unit_test(test_foreign_rows),
        cmocka_unit_test(test_defaults), cmocka_unit_test(test_io_threads)};
    return cmocka_run_group_tests_name("serve options", tests, NULL, NULL);
}
