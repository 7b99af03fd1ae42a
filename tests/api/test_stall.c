/* --stall-warn-ms in the tokenizer workers: a slow job is counted, logged with its size, and seen
 * in /metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/stall.h"
#include "fakes.h"
#include "log_capture.h"

static void test_slow_job(void **state)
{
    static const uint32_t script[] = {FAKE_WORD0, FAKE_EOS};
    static const char body[] = "{\"prompt\":\"hello\"}";
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    o.inline_bytes = 0;
    fake_reset();
    fake_script = script;
    fake_script_len = 2;
    fake_encode_ms = 50;
    rose_stall_set_limit(30000000);
    log_begin();
    rose_api *a = fake_start(&o);
    assert_non_null(a);
    rose_http_req *r = fake_request("/v1/completions", body, strlen(body));
    fake_arrive(r);
    for (int i = 0; i < 1000 && !r->ended; i++) {
        fake_turn(10);
        fake_engine_step();
    }
    assert_int_equal(r->status, 200);
    char *text = log_end();
    assert_int_equal(rose_stall_count(ROSE_STALL_TOKENIZE), 1);
    assert_non_null(strstr(text, "rose-tokenize: tokenize (completion, body of 18 bytes, JSON "));
    assert_non_null(strstr(text, " ms, 5 tokens) took "));
    free(text);
    fake_free(r);

    r = fake_request("/metrics", NULL, 0);
    fake_arrive(r);
    assert_non_null(strstr(fake_text(r), "roseinfer:stalls_total{model_name=\"model\",engine=\"0\","
                                         "where=\"tokenize\"} 1\n"));
    assert_non_null(strstr(fake_text(r), "where=\"step_host\"} 0\n"));
    fake_free(r);
    fake_stop(a);
    rose_stall_set_limit(0);
    fake_encode_ms = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow_job)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
