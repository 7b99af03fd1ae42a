/* --stall-warn-ms in the engine: a slow backend is named as such, with the step's rows; off,
 * nothing is said. */
#include "engine/engine_client.h"

#include "base/stall.h"
#include "log_capture.h"

static char *generate(unsigned delay_us, uint64_t limit_ns)
{
    uint64_t s = test_seed();
    rose_engine_opts o = small_opts();
    rec *x = malloc(sizeof *x);
    fake_reset();
    fake.delay_us = delay_us;
    rose_stall_set_limit(limit_ns);
    log_begin();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(4);
    rec_random(x, &s, 20, 1);
    while (x->n_prompt < 20)
        x->prompt[x->n_prompt++] = 9;
    x->max_tokens = 3;
    x->ignore_eos = true;
    rec_expect(x);
    assert_int_equal(rec_submit(x, e, sink, NULL), ROSE_OK);
    consume(sink, 1);
    rose_engine_close(e);
    char *text = log_end();
    rec_verify(x);
    rose_wakeq_destroy(sink);
    rose_stall_set_limit(0);
    free(x);
    return text;
}

static void test_slow_backend(void **state)
{
    (void)state;
    uint64_t before = rose_stall_count(ROSE_STALL_STEP_COMPUTE);
    char *text = generate(30000, 20000000);
    assert_int_equal(rose_stall_count(ROSE_STALL_STEP_COMPUTE), before + 3); /* each step */
    assert_int_equal(log_count(text, "step_compute"), 1);                    /* one line a second */
    assert_non_null(
        strstr(text, "rose-engine: step_compute (20 rows: 0 decodes, 1 prompts) took "));
    free(text);
}

/* Also where steps run ahead; a second log line would have to wait for its second. */
static void test_slow_ahead(void **state)
{
    (void)state;
    uint64_t before = rose_stall_count(ROSE_STALL_STEP_COMPUTE);
    test_mode = MODE_OVERLAP;
    free(generate(30000, 20000000));
    test_mode = MODE_SYNC;
    assert_true(atomic_load(&fake.n_ahead) > 0);
    assert_int_equal(rose_stall_count(ROSE_STALL_STEP_COMPUTE), before + 3);
}

static void test_off(void **state)
{
    (void)state;
    uint64_t before = rose_stall_count(ROSE_STALL_STEP_COMPUTE);
    char *text = generate(5000, 0);
    assert_int_equal(rose_stall_count(ROSE_STALL_STEP_COMPUTE), before);
    assert_null(strstr(text, "stall"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_slow_backend),
        cmocka_unit_test(test_slow_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
