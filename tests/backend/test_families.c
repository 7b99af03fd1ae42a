/* tests/backend/test_families.c - the CPU backend on a small random model of each family (their
 * configs and what transformers computes from them: tests/golden/families): log-probabilities and
 * greedy ids in fp32, and the same bits in every way of running a sequence, in fp32, bf16 and with
 * int8 weights. Contexts pass the windows and the original contexts of the RoPE scaling. */
#define N_OTHERS 15
#include "arch_view.h"
#include "backend/cpu_ways.h"
#include "backend/golden_checks.h"
#include "log_capture.h"

static void test_golden(void **state)
{
    (void)state;
    const golden_list *all = golden_families();
    for (uint32_t i = 0; i < all->n; i++)
        check_golden(all->name[i]);
}

static void each_family(void (*check)(const rose_model *, rose_compute, const fx_seq *,
                                      const char *))
{
    static const rose_compute dtypes[] = {ROSE_COMPUTE_F32, ROSE_COMPUTE_BF16, ROSE_COMPUTE_BF16};
    const golden_list *all = golden_families();
    for (uint32_t i = 0; i < all->n; i++) {
        const char *name = all->name[i];
        const bool few = strstr(name, "qwen2") != NULL || strstr(name, "gemma3-caps") != NULL;
        if (FEW && !few) continue;
        golden g;
        golden_open(&g, name);
        rose_model *m = golden_model(&g);
        for (int j = FEW ? 2 : g_pairs ? 1 : 0; j < 3; j++) {
            fx_quantization = j == 2 ? ROSE_QUANT_INT8 : ROSE_QUANT_NONE;
            fx_seq want = baseline(m, dtypes[j]);
            check(m, dtypes[j], &want, name);
            fx_seq_free(&want);
        }
        fx_quantization = ROSE_QUANT_NONE;
        rose_model_close(m);
        golden_close(&g);
    }
}

static void check_all(const rose_model *m, rose_compute dtype, const fx_seq *want, const char *name)
{
    check_chunks(m, dtype, want, name);
    check_quiet(m, dtype, want, name);
    check_threads(m, dtype, want, name);
    check_isas(m, dtype, want, name);
    check_among(m, dtype, want, name);
}

static void test_same_bits(void **state)
{
    (void)state;
    print_message("levels: scalar .. %s\n", rose_isa_name(rose_isa_probe()));
    each_family(check_all);
}

/* Rule 11: other products, the same promise. */
static void check_pairs(const rose_model *m, rose_compute dtype, const fx_seq *want,
                        const char *name)
{
    check_chunks(m, dtype, want, name);
    check_threads(m, dtype, want, name);
    check_among(m, dtype, want, name);
}

static void test_pairs(void **state)
{
    (void)state;
    fx_skip_without("avx512-bf16");
    g_level = "avx512-bf16";
    g_pairs = true;
    each_family(check_pairs);
}

/* ---- device auto ---- */

/* A GPU's backend that lacks sliding windows. */
static rose_status check_as_gpu(const rose_model *m, rose_err *err)
{
    if (view_window(&m->arch) == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: window %u", m->name, view_window(&m->arch));
}

/* What --device auto takes where there is a GPU, and what the log says about it. */
static void auto_takes(const rose_model *m, const char *device, const char *why)
{
    const rose_backend_ops gpu = {.name = "cuda", .check = check_as_gpu};
    log_begin();
    const char *taken = rose_backend_that_computes(&gpu, m)->name;
    char *text = log_end();
    if (strcmp(taken, device) != 0) fail_msg("%s: %s, not %s", m->name, taken, device);
    assert_int_equal(log_count(text, "the CPU computes this model"), why != NULL ? 1 : 0);
    if (why != NULL && strstr(text, why) == NULL) fail_msg("'%s' is not in: %s", why, text);
    free(text);
}

static void test_device_auto(void **state)
{
    (void)state;
    const golden_list *all = golden_families();
    for (uint32_t i = 0; i < all->n; i++) {
        golden g;
        golden_open(&g, all->name[i]);
        rose_model *m = golden_model(&g);
        const bool fits = view_window(&m->arch) == 0;
        auto_takes(m, fits ? "cuda" : "cpu", fits ? NULL : "window ");
        rose_model_close(m);
        golden_close(&g);
    }
}

int main(void)
{
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_device_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
