/* tests/backend/test_cuda_without.c - the names of what can be left out. Needs no GPU. */
#include "backend/cuda_fixture.h"

static void reads(const char *names, uint32_t want)
{
    rose_err err = {""};
    uint32_t bits = 1u << 31;
    assert_int_equal(rose_cuda_without_read(names, &bits, &err), ROSE_OK);
    assert_int_equal(bits, want);
}

static void refuses(const char *names, const char *which)
{
    rose_err err = {""};
    uint32_t bits = 1u << 31;
    assert_int_equal(rose_cuda_without_read(names, &bits, &err), ROSE_E_UNSUPPORTED);
    assert_int_equal(bits, 0);
    assert_non_null(strstr(err.msg, which));
}

static void test_without(void **state)
{
    (void)state;
    reads(NULL, 0);
    reads("", 0);
    reads("none", 0);
    refuses("none,wide", "'none': expected");
    refuses("all,wide", "'all': expected");
    uint32_t all = 0;
    rose_err err = {""};
    assert_int_equal(rose_cuda_without_read(FX_WITHOUT_ALL, &all, &err), ROSE_OK);
    reads("all", all);
    reads("wide", ROSE_CUDA_WITHOUT_WIDE);
    reads("ahead,team", ROSE_CUDA_WITHOUT_TEAM | ROSE_CUDA_WITHOUT_AHEAD);
    reads("halves,halves", ROSE_CUDA_WITHOUT_HALVES);
    reads(FX_WITHOUT_ALL,
          ROSE_CUDA_WITHOUT_WIDE | ROSE_CUDA_WITHOUT_TEAM | ROSE_CUDA_WITHOUT_AHEAD |
              ROSE_CUDA_WITHOUT_HALVES | ROSE_CUDA_WITHOUT_NORMED | ROSE_CUDA_WITHOUT_CARVEOUT |
              ROSE_CUDA_WITHOUT_PROMPTS | ROSE_CUDA_WITHOUT_SPREAD | ROSE_CUDA_WITHOUT_JOINED |
              ROSE_CUDA_WITHOUT_HEAD | ROSE_CUDA_WITHOUT_ONCE | ROSE_CUDA_WITHOUT_CHAIN |
              ROSE_CUDA_WITHOUT_APPEND | ROSE_CUDA_WITHOUT_FETCH | ROSE_CUDA_WITHOUT_PINGPONG);
}

static void test_refused(void **state)
{
    (void)state;
    char name[400];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    refuses("wid", "cuda-without 'wid': expected none, all, or some of wide, team, ahead, halves, "
                   "normed, carveout, "
                   "prompts, spread, joined, head, once, chain, append, fetch, "
                   "pingpong");
    refuses("wide-192", "wide-192");
    refuses("team2", "team2");
    refuses(",", "cuda-without '': expected");
    refuses("wide,", "cuda-without '': expected");
    refuses("wide,,team", "cuda-without '': expected");
    refuses("wide team", "wide team");
    refuses("WIDE", "WIDE");
    refuses("norm", "norm");
    refuses(name, "xxx': expected none, all, or some of wide");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
