/* tests/backend/test_cuda_trial.c - the names of kernels on trial. Needs no GPU. */
#include "backend/cuda_fixture.h"

static void reads(const char *names, uint32_t want)
{
    rose_err err = {""};
    uint32_t trial = 1u << 31;
    assert_int_equal(rose_cuda_trial_read(names, &trial, &err), ROSE_OK);
    assert_int_equal(trial, want);
}

static void refuses(const char *names, const char *which)
{
    rose_err err = {""};
    uint32_t trial = 1u << 31;
    assert_int_equal(rose_cuda_trial_read(names, &trial, &err), ROSE_E_UNSUPPORTED);
    assert_int_equal(trial, 0);
    assert_non_null(strstr(err.msg, which));
}

static void test_names(void **state)
{
    (void)state;
    reads(NULL, 0);
    reads("", 0);
    reads("sampler", ROSE_CUDA_TRY_SAMPLER);
    reads("norm,rules", ROSE_CUDA_TRY_NORM | ROSE_CUDA_TRY_RULES);
    reads("norm,norm", ROSE_CUDA_TRY_NORM);
    reads("wide-64-48", ROSE_CUDA_TRY_WIDE_64_48);
    reads("ahead,split-8", ROSE_CUDA_TRY_AHEAD | ROSE_CUDA_TRY_SPLIT_8);
    reads("head", ROSE_CUDA_TRY_HEAD);
    reads("halves,fused", ROSE_CUDA_TRY_HALVES | ROSE_CUDA_TRY_FUSED);
    reads("ahead-4,head-64,team",
          ROSE_CUDA_TRY_AHEAD_4 | ROSE_CUDA_TRY_HEAD_64 | ROSE_CUDA_TRY_TEAM);
    reads("wide,prompts4,prompts8,halves,quarters,ordered",
          ROSE_CUDA_TRY_WIDE | ROSE_CUDA_TRY_PROMPT | ROSE_CUDA_TRY_PROMPT_8 |
              ROSE_CUDA_TRY_HALVES | ROSE_CUDA_TRY_QUARTERS | ROSE_CUDA_TRY_ORDERED);
}

/* Every kernel of linear_wide.cuh can be asked for by the name that `bench kernels` gives it. */
static void test_wide_names(void **state)
{
    (void)state;
    uint32_t all = 0;
    for (int kernel = ROSE_CUDA_WIDE; kernel < ROSE_CUDA_N_KERNELS; kernel++) {
        uint32_t trial;
        assert_int_equal(rose_cuda_trial_read(rose_cuda_linear_name(kernel), &trial, NULL),
                         ROSE_OK);
        assert_int_equal(trial & all, 0);
        all |= trial;
    }
    assert_int_equal(all, ROSE_CUDA_TRY_CORES);
}

static void test_refused(void **state)
{
    (void)state;
    char name[400];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    refuses("sample", "sample");
    refuses("sampler2", "sampler2");
    refuses(",", "cuda-trial");
    refuses("norm,", "cuda-trial");
    refuses("norm,,rules", "cuda-trial");
    refuses("norm rules", "norm rules");
    refuses("NORM", "NORM");
    refuses(name, "xxx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_wide_names),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
