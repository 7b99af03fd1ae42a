/* base/opts: lists and enums take their values, and errors say in one line what was meant. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/opts.h"
#include "base/opts_internal.h"

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
    const rose_command c = {"test MODEL [options]", "", rows, 3, 1, 1, NULL};
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
    assert_false(rose_opt_list_add(&l, text)); /* its end also needs a byte */
    assert_true(rose_opt_list_add(&l, text + 1));
    assert_false(rose_opt_list_add(&l, "b"));
    copy = l;
    assert_int_equal(copy.n, 1);
    assert_string_equal(rose_opt_list_get(&copy, 0), text + 1);
}

/* ---- messages ---- */

/* What the parser says on standard error about the words of `line`. */
static void said(const rose_command *c, const char *line, char *out, size_t cap)
{
    char text[256], *argv[16] = {(char *)(uintptr_t) "test"};
    const char *args[2];
    int argc = 1, pipe_fds[2];
    uint32_t n_args;
    snprintf(text, sizeof text, "%s", line);
    for (char *p = strtok(text, " "); p != NULL; p = strtok(NULL, " "))
        argv[argc++] = p;
    assert_int_equal(pipe(pipe_fds), 0);
    const int saved = dup(STDERR_FILENO);
    dup2(pipe_fds[1], STDERR_FILENO);
    const int rc = rose_opts_parse(c, argc, argv, args, &n_args);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_fds[1]);
    const ssize_t n = read(pipe_fds[0], out, cap - 1);
    close(pipe_fds[0]);
    assert_int_equal(rc, 2);
    assert_true(n > 0);
    out[n] = '\0';
    assert_ptr_equal(strchr(out, '\n'), out + n - 1); /* one line */
}

static void test_messages(void **state)
{
    (void)state;
    bool on = false;
    const char *text = NULL;
    uint32_t n = 0;
    const rose_opt rows[] = {
        ROSE_ROW_STRING("isa", &text, "NAME", "a name"),
        ROSE_ROW_U32("port", &n, "N", 0, 0, "a port"),
        ROSE_ROW_BOOL("prefix-cache", &on, "a switch"),
        ROSE_ROW_U32("max-num-seqs", &n, "N", 0, 0, "a number"),
        ROSE_ROW_U32("max-model-len", &n, "N", 0, 0, "a number"),
        ROSE_ROW_CHOICE("kind", &text, "a|b", "a choice", .removed = "c",
                        .removed_why = "removed: b is faster"),
    };
    const rose_command c = {
        "test merge OUT DIR... [options]", "", rows, sizeof rows / sizeof *rows, 2, 2, NULL};
    static const char *const want[][2] = {
        {"--foo", "unknown option --foo (see --help)"}, /* not --isa */
        {"--model x", "unknown option --model (see --help)"},
        {"--prot=80", "--prot; did you mean --port?"}, /* two letters swapped, the value left out */
        {"--prefix-cach", "did you mean --prefix-cache?"},
        {"--no-prefix-cach", "did you mean --no-prefix-cache?"},
        {"--max-seqs 3", "did you mean --max-num-seqs?"}, /* its words, not its letters */
        {"--max-model-length 3", "did you mean --max-model-len?"},
        {"--kind c", "--kind c: removed: b is faster"},
        {"--kind d", "expected one of a|b"},
        {"--on=1", "unknown option --on (see --help)"},
        {"", "OUT is missing (usage: test merge OUT DIR... [options]"},
        {"x", "DIR... is missing"},
        {"x y z", "unexpected argument 'z'"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char got[512];
        said(&c, want[i][0], got, sizeof got);
        if (strstr(got, want[i][1]) == NULL)
            fail_msg("'%s' says '%s' and not '%s'", want[i][0], got, want[i][1]);
    }
}

static void test_numbers(void **state)
{
    static const struct {
        const char *text;
        uint64_t number, bytes; /* as a number of things, and of bytes; NO: refused */
    } want[] = {
#define NO UINT64_MAX
        {"0", 0, 0},
        {"1k", 1000, 1024},
        {"1K", 1024, 1024},
        {"25.6k", 25600, 26214},
        {"2m", 2000000, 2097152},
        {"2M", 2097152, 2097152},
        {"1g", 1000000000, 1073741824},
        {"8GiB", NO, 8589934592},
        {"8gib", NO, 8589934592},
        {"8GB", NO, 8000000000},
        {"8Gi", NO, 8589934592},
        {"1T", 1099511627776, 1099511627776},
        {"1.5", NO, NO},
        {"1.k", NO, NO},
        {"k", NO, NO},
        {"-1", NO, NO},
        {" 1", NO, NO},
        {"1kk", NO, NO},
        {"8GiBs", NO, NO},
        {"8iB", NO, NO},
        {"18446744073709551616", NO, NO},
        {"18014398509481984K", NO, NO},
        {"", NO, NO},
    };
    uint64_t most = 0;
    (void)state;
    assert_true(rose_opt_number("18446744073709551615", false, &most) && most == UINT64_MAX);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        uint64_t number = NO, bytes = NO;
        if (!rose_opt_number(want[i].text, false, &number)) number = NO;
        if (!rose_opt_number(want[i].text, true, &bytes)) bytes = NO;
        if (number != want[i].number || bytes != want[i].bytes)
            fail_msg("%s: %llu, %llu", want[i].text, (unsigned long long)number,
                     (unsigned long long)bytes);
    }
}

static void test_enum(void **state)
{
    (void)state;
    enum fruit { APPLE, PEAR, PLUM } fruit = PLUM;
    const rose_opt rows[] = {
        ROSE_ROW_ENUM("fruit", enum fruit, &fruit, "apple|pear|plum", "a fruit", .def = PEAR)};
    const rose_command c = {"test", "", rows, 1, 0, 0, NULL};
    char *argv[] = {(char *)(uintptr_t) "test", (char *)(uintptr_t) "--fruit=plum"};
    uint32_t n_args;
    rose_opts_default(rows, 1);
    assert_int_equal(fruit, PEAR);
    assert_int_equal(rose_opts_parse(&c, 2, argv, NULL, &n_args), -1);
    assert_int_equal(fruit, PLUM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages), cmocka_unit_test(test_enum),
                                       cmocka_unit_test(test_numbers), cmocka_unit_test(test_list),
                                       cmocka_unit_test(test_list_full)};
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
