/* tests/backend/test_cuda_trial.c - the names of kernels on trial and of what can be left out.
 * Needs no GPU. */
#include "backend/cuda_fixture.h"

typedef rose_status (*reader)(const char *names, uint32_t *bits, rose_err *err);

static void reads(reader read, const char *names, uint32_t want)
{
    rose_err err = {""};
    uint32_t bits = 1u << 31;
    assert_int_equal(read(names, &bits, &err), ROSE_OK);
    assert_int_equal(bits, want);
}

static void refuses(reader read, const char *names, const char *which)
{
    rose_err err = {""};
    uint32_t bits = 1u << 31;
    assert_int_equal(read(names, &bits, &err), ROSE_E_UNSUPPORTED);
    assert_int_equal(bits, 0);
    assert_non_null(strstr(err.msg, which));
}

static void test_trials(void **state)
{
    (void)state;
    const reader read = rose_cuda_trial_read;
    reads(read, NULL, 0);
    reads(read, "", 0);
    reads(read, "fused", ROSE_CUDA_TRY_FUSED);
    reads(read, "fused,fused", ROSE_CUDA_TRY_FUSED);
    refuses(read, "wide", "cuda-trial: no wide; there are fused"); /* of the other kind */
    refuses(read, "fused,", "cuda-trial: no ;");
}

static void test_without(void **state)
{
    (void)state;
    const reader read = rose_cuda_without_read;
    reads(read, NULL, 0);
    reads(read, "", 0);
    reads(read, "wide", ROSE_CUDA_WITHOUT_WIDE);
    reads(read, "ahead,team", ROSE_CUDA_WITHOUT_TEAM | ROSE_CUDA_WITHOUT_AHEAD);
    reads(read, "halves,halves", ROSE_CUDA_WITHOUT_HALVES);
    reads(read, FX_WITHOUT_ALL,
          ROSE_CUDA_WITHOUT_WIDE | ROSE_CUDA_WITHOUT_TEAM | ROSE_CUDA_WITHOUT_AHEAD |
              ROSE_CUDA_WITHOUT_HALVES);
}

static void test_refused(void **state)
{
    (void)state;
    const reader read = rose_cuda_without_read;
    char name[400];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    refuses(read, "wid", "cuda-without: no wid; there are wide, team, ahead, halves");
    refuses(read, "wide-192", "wide-192");
    refuses(read, "team2", "team2");
    refuses(read, ",", "cuda-without: no ;");
    refuses(read, "wide,", "cuda-without: no ;");
    refuses(read, "wide,,team", "cuda-without: no ;");
    refuses(read, "wide team", "wide team");
    refuses(read, "WIDE", "WIDE");
    refuses(read, "norm", "norm");
    refuses(read, name, "xxx; there are wide");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trials),
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
