/* base/opts: every kind of row takes its value, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/opts.h"

static struct {
    rose_opt_list names;
    const char *host;
    bool on;
} g;

/* Parse a command line whose words stand between spaces. */
static int parse(const char *line, const char **args, uint32_t *n_args)
{
    static char text[8192];
    char *argv[80] = {(char *)(uintptr_t) "test"};
    int argc = 1;
    memset(&g, 0, sizeof g);
    snprintf(text, sizeof text, "%s", line);
    for (char *p = strtok(text, " "); p != NULL; p = strtok(NULL, " "))
        argv[argc++] = p;
    const rose_opt rows[] = {ROSE_ROW_LIST("name", &g.names, "NAME", "names"),
                             ROSE_ROW_STRING("host", &g.host, "HOST", "address"),
                             ROSE_ROW_BOOL("on", &g.on, "a switch")};
    const rose_command c = {"test MODEL [options]", "", rows, 3, 1, 1};
    return rose_opts_parse(&c, argc, argv, args, n_args);
}

static void expect_names(const char *line, const char *want)
{
    const char *args[1] = {NULL};
    uint32_t n_args;
    char got[256] = "";
    assert_int_equal(parse(line, args, &n_args), -1);
    assert_string_equal(args[0], "m");
    for (uint32_t i = 0; i < g.names.n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s;",
                 rose_opt_list_get(&g.names, i));
    assert_string_equal(got, want);
}

static void test_list(void **state)
{
    (void)state;
    expect_names("m", "");
    expect_names("m --name a --name=b", "a;b;");
    expect_names("--name a,b m --name c", "a;b;c;");
    expect_names("m --name a b c --on", "a;b;c;");
    expect_names("--name a m", "a;"); /* the argument that is missing comes first */
    const char *args[1];
    uint32_t n_args;
    assert_int_equal(parse("m --name a --on b", args, &n_args), 2);
    assert_int_equal(parse("m --name a,,b", args, &n_args), 2);
    assert_int_equal(parse("m --name a,", args, &n_args), 2);
    assert_int_equal(parse("m --name", args, &n_args), 2);
}

static void test_list_full(void **state)
{
    (void)state;
    rose_opt_list l = {0}, copy;
    char text[ROSE_OPT_LIST_BYTES + 1];
    for (int i = 0; i < ROSE_OPT_LIST_MAX; i++)
        assert_true(rose_opt_list_add(&l, "x"));
    assert_false(rose_opt_list_add(&l, "y"));
    assert_int_equal(l.n, ROSE_OPT_LIST_MAX);
    l = (rose_opt_list){0};
    memset(text, 'a', sizeof text);
    text[ROSE_OPT_LIST_BYTES] = '\0';
    assert_false(rose_opt_list_add(&l, text)); /* its end needs a byte, too */
    assert_true(rose_opt_list_add(&l, text + 1));
    assert_false(rose_opt_list_add(&l, "b"));
    copy = l;
    assert_int_equal(copy.n, 1);
    assert_string_equal(rose_opt_list_get(&copy, 0), text + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list),
                                       cmocka_unit_test(test_list_full)};
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
