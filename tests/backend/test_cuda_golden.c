/* tests/backend/test_cuda_golden.c - the CUDA backend against transformers: logits and 200 greedy
 * tokens in fp32, and the held-out loss of the demo model in all three types. */
#define FX_MAX_SEQS 256
#include "backend/cuda_fixture.h"
#include "backend/golden_checks.h"

/* Perplexity within 0.1 % is 1e-3 nats. */
static void test_held_out_loss(void **state)
{
    (void)state;
    golden g;
    golden_open(&g, "rose-tiny");
    rose_model *m = golden_model(&g);
    double f32 = held_out_loss(&g, m, ROSE_COMPUTE_F32);
    double f16 = held_out_loss(&g, m, ROSE_COMPUTE_F16);
    double bf16 = held_out_loss(&g, m, ROSE_COMPUTE_BF16);
    print_message(
        "held-out loss: transformers %.6f, fp32 %.6f, fp16 %.6f, bf16 %.6f nats a token\n",
        g.nll_mean, f32, f16, bf16);
    assert_true(fabs(f32 - g.nll_mean) < 1e-4);
    assert_true(fabs(f16 - f32) < 1e-3);
    assert_true(fabs(bf16 - f32) < 1e-3);
    rose_model_close(m);
    golden_close(&g);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rose_tiny),
        cmocka_unit_test(test_random_models),
        cmocka_unit_test(test_golden_states),
        cmocka_unit_test(test_held_out_loss),
    };
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
