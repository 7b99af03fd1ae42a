/* tests/backend/test_golden.c - the CPU backend against transformers (tests/golden): logits and
 * greedy continuations in fp32 for the demo model and three random ones, and the held-out loss of
 * the demo model in fp32 and bf16. */
#include "backend/golden_checks.h"

static void test_held_out_loss(void **state)
{
    (void)state;
    golden g;
    golden_open(&g, "rose-tiny");
    rose_model *m = golden_model(&g);
    double f32 = held_out_loss(&g, m, ROSE_COMPUTE_F32);
    double bf16 = held_out_loss(&g, m, ROSE_COMPUTE_BF16);
    fx_quantization = ROSE_QUANT_INT8;
    double i8 = held_out_loss(&g, m, ROSE_COMPUTE_BF16);
    fx_quantization = ROSE_QUANT_NONE;
    print_message("held-out loss: transformers %.6f, fp32 %.6f, bf16 %.6f, int8 weights %.6f nats "
                  "a token: perplexity of int8 over bf16 %.5f\n",
                  g.nll_mean, f32, bf16, i8, exp(i8 - bf16));
    assert_true(fabs(f32 - g.nll_mean) < 1e-4);
    assert_true(fabs(bf16 - g.nll_mean) < 0.02); /* rounding of weights and activations */
    assert_true(fabs(exp(i8 - bf16) - 1) < 0.005);
    rose_model_close(m);
    golden_close(&g);
}

/* Sums in another order than the default level's cost nothing in quality. */
static void test_held_out_loss_pairs(void **state)
{
    (void)state;
    fx_skip_without("avx512-bf16");
    golden g;
    golden_open(&g, "rose-tiny");
    rose_model *m = golden_model(&g);
    double bf16 = held_out_loss(&g, m, ROSE_COMPUTE_BF16);
    golden_isa = "avx512-bf16";
    double pairs = held_out_loss(&g, m, ROSE_COMPUTE_BF16);
    golden_isa = "auto";
    print_message("held-out loss: bf16 %.6f, at level avx512-bf16 %.6f nats a token: perplexity "
                  "%.6f of the default level's\n",
                  bf16, pairs, exp(pairs - bf16));
    assert_true(fabs(exp(pairs - bf16) - 1) < 0.001);
    rose_model_close(m);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rose_tiny),           cmocka_unit_test(test_random_models),
        cmocka_unit_test(test_golden_states),       cmocka_unit_test(test_held_out_loss),
        cmocka_unit_test(test_held_out_loss_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
