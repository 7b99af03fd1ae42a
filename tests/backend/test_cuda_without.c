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
    reads("guesses", ROSE_CUDA_WITHOUT_GUESSES);
    reads("fetch,prompts", ROSE_CUDA_WITHOUT_PROMPTS | ROSE_CUDA_WITHOUT_FETCH);
    reads("carveout,carveout", ROSE_CUDA_WITHOUT_CARVEOUT);
    reads(FX_WITHOUT_ALL, ROSE_CUDA_WITHOUT_WIDE | ROSE_CUDA_WITHOUT_CARVEOUT |
                              ROSE_CUDA_WITHOUT_PROMPTS | ROSE_CUDA_WITHOUT_FETCH |
                              ROSE_CUDA_WITHOUT_GUESSES);
}

static void test_refused(void **state)
{
    (void)state;
    char name[400];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    refuses("wid", "cuda-without 'wid': expected none, all, or some of wide, carveout, prompts, "
                   "fetch, guesses");
    refuses("wide-192", "wide-192");
    refuses("fetch2", "fetch2");
    refuses(",", "cuda-without '': expected");
    refuses("wide,", "cuda-without '': expected");
    refuses("wide,,fetch", "cuda-without '': expected");
    refuses("wide fetch", "wide fetch");
    refuses("WIDE", "WIDE");
    refuses("norm", "norm");
    refuses(name, "xxx': expected none, all, or some of wide");
}

/* Each option of a fusion sets its bit. */
static void test_fusions(void **state)
{
    (void)state;
    const struct {
        size_t at;
        uint32_t bit;
    } all[] = {{offsetof(rose_cuda_opts, fused_ops), ROSE_CUDA_WITHOUT_OPS},
               {offsetof(rose_cuda_opts, fused_mlp), ROSE_CUDA_WITHOUT_MLP},
               {offsetof(rose_cuda_opts, fused_sampler), ROSE_CUDA_WITHOUT_SAMPLER},
               {offsetof(rose_cuda_opts, fused_kv_append), ROSE_CUDA_WITHOUT_KV_APPEND},
               {offsetof(rose_cuda_opts, paged_attn), ROSE_CUDA_WITHOUT_PAGED}};
    rose_backend_opts o;
    rose_err err = {""};
    uint32_t bits = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        rose_backend_opts_default(&o);
        o.cuda.without = "wide";
        ((bool *)&o.cuda)[all[i].at] = false;
        assert_int_equal(rose_cuda_switches_read(&o.cuda, &bits, &err), ROSE_OK);
        assert_int_equal(bits, all[i].bit | ROSE_CUDA_WITHOUT_WIDE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without),
        cmocka_unit_test(test_fusions),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
