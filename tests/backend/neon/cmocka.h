/* tests/backend/neon/cmocka.h - the part of cmocka that test_quant.c uses, for `make test-neon`:
 * Debian has no cmocka for a cross compiler. The first failure ends the program. */
#ifndef TESTS_BACKEND_NEON_CMOCKA_H
#define TESTS_BACKEND_NEON_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(f)                                                                        \
    {                                                                                              \
#f, f                                                                                      \
    }

#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf("%s:%d: ", __FILE__, __LINE__);                                                     \
        printf(__VA_ARGS__);                                                                       \
        printf("\n");                                                                              \
        exit(1);                                                                                   \
    } while (0)

#define assert_true(c)                                                                             \
    do {                                                                                           \
        if (!(c)) fail_msg("%s", #c);                                                              \
    } while (0)

#define assert_false(c)              assert_true(!(c))
#define assert_non_null(p)           assert_true((p) != NULL)
#define assert_int_equal(a, b)       assert_true((a) == (b))
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    run_group(tests, sizeof(tests) / sizeof((tests)[0]))

static inline int run_group(const struct CMUnitTest *tests, size_t n)
{
    void *state = NULL;
    for (size_t i = 0; i < n; i++) {
        tests[i].run(&state);
        printf("[       OK ] %s\n", tests[i].name);
    }
    printf("[  PASSED  ] %zu test(s).\n", n);
    return 0;
}

#endif
