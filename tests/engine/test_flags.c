/* The engine's command-line options. A walk over the table: each row's default is the one of
 * rose_engine_opts_default, and each option sets its own field and no other. Then the options by
 * name: each sets the field that it should. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpuinfo.h"
#include "engine/flags.h"
#include "opts_walk.h"

static rose_engine_flags g_flags;

/* Parse the switches as a program does. Returns the parser's verdict (-1 = go on). */
static int parse(const char *const *argv, int argc, rose_engine_opts *o)
{
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS];
    char *args[8] = {(char *)(uintptr_t) "test"};
    uint32_t n_args;
    for (int i = 0; i < argc; i++)
        args[i + 1] = (char *)(uintptr_t)argv[i];
    rose_engine_flags_init(&g_flags);
    const rose_command cmd = {.usage = "test",
                              .about = "",
                              .opts = rows,
                              .n_opts = rose_engine_flags_rows(&g_flags, rows)};
    assert_true(cmd.n_opts <= ROSE_ENGINE_FLAG_ROWS);
    int rc = rose_opts_parse(&cmd, argc + 1, args, NULL, &n_args);
    if (rc >= 0) return rc;
    rose_err err = {{0}};
    if (rose_engine_flags_read(&g_flags, o, &err) != ROSE_OK) fail_msg("%s", err.msg);
    return rc;
}

static rose_engine_opts with(const char *a, const char *b)
{
    rose_engine_opts o;
    const char *argv[2] = {a, b};
    assert_int_equal(parse(argv, b != NULL ? 2 : 1, &o), -1);
    return o;
}

static void test_defaults(void **state)
{
    (void)state;
    rose_engine_opts o, want;
    assert_int_equal(parse(NULL, 0, &o), -1);
    rose_engine_opts_default(&want);
    assert_true(want.decode_first && want.prefix_cache && want.chunked_prefill);
    want.backend.cpu.n_threads = o.backend.cpu.n_threads; /* the machine's */
    assert_null(o.backend.cpu.cpus); /* not pinned: two servers would share the first CPUs */
    assert_int_equal(o.backend.cpu.n_cpus, 0);
    want.backend.cpu.isa = o.backend.cpu.isa;
    assert_int_equal(o.engine_cpu, want.engine_cpu);
    assert_int_equal(o.decode_first, want.decode_first);
    assert_int_equal(o.prefix_cache, want.prefix_cache);
    assert_int_equal(o.prefix_cache_max_pages, want.prefix_cache_max_pages);
    assert_int_equal(o.admission, want.admission);
    assert_int_equal(o.lookahead, want.lookahead);
    assert_int_equal(o.force_fifo_every, want.force_fifo_every);
    assert_int_equal(o.priority_age_ms, want.priority_age_ms);
    assert_int_equal(o.prefill_max_seqs, want.prefill_max_seqs);
    assert_int_equal(o.prefill_max_tokens, want.prefill_max_tokens);
    assert_int_equal(o.max_active, want.max_active);
    assert_int_equal(o.max_queued_tokens, want.max_queued_tokens);
    assert_int_equal(o.max_queued, want.max_queued);
    assert_int_equal(o.ttft_slo_ms + o.itl_slo_ms, 0);
    assert_true(want.backend.cuda.graph && want.backend.cuda.pdl);
    assert_int_equal(o.backend.cuda.graph, want.backend.cuda.graph);
    assert_int_equal(o.backend.cuda.pdl, want.backend.cuda.pdl);
    assert_false(want.backend.cuda.profiler_kernels || o.backend.cuda.profiler_kernels);
    assert_true(o.backend.cuda.guesses);
    assert_int_equal(o.backend.cuda.prefill, ROSE_PREFILL_AUTO);
    assert_int_equal(o.backend.cuda.timeout_ms, want.backend.cuda.timeout_ms);
    assert_true(!(o.backend.cuda.memory_utilization > 0));
}

static void test_switches(void **state)
{
    (void)state;
    assert_false(with("--no-decode-first", NULL).decode_first);
    assert_true(with("--decode-first", NULL).decode_first);
    assert_false(with("--no-prefix-cache", NULL).prefix_cache);
    assert_true(with("--prefix-cache", NULL).prefix_cache);
    assert_int_equal(with("--prefix-cache-max-pages", "12").prefix_cache_max_pages, 12);
    assert_int_equal(with("--admission", "pack").admission, ROSE_ENGINE_PACK);
    assert_int_equal(with("--admission", "fifo").admission, ROSE_ENGINE_FIFO);
    assert_int_equal(with("--lookahead", "7").lookahead, 7);
    assert_int_equal(with("--force-fifo-every", "5").force_fifo_every, 5);
    assert_int_equal(with("--priority-age-ms", "20").priority_age_ms, 20);
    assert_int_equal(with("--prefill-max-batch-size", "3").prefill_max_seqs, 3);
    assert_int_equal(with("--prefill-max-tokens", "100").prefill_max_tokens, 100);
    assert_int_equal(with("--max-active-requests", "9").max_active, 9);
    assert_int_equal(with("--max-num-queued-tokens", "5000").max_queued_tokens, 5000);
    assert_int_equal(with("--max-num-queued-reqs", "17").max_queued, 17);
    assert_int_equal(with("--prefill-chunk-size", "64").prefill_chunk_size, 64);
    assert_false(with("--no-chunked-prefill", NULL).chunked_prefill);
    assert_int_equal(with("--ttft-slo-ms", "500").ttft_slo_ms, 500);
    assert_int_equal(with("--itl-slo-ms", "30").itl_slo_ms, 30);
    assert_int_equal(with("--max-num-batched-tokens", "auto").backend.max_step_tokens,
                     ROSE_STEP_AUTO);
    assert_int_equal(with("--max-num-batched-tokens", "512").backend.max_step_tokens, 512);
    assert_false(with("--no-cuda-graph", NULL).backend.cuda.graph);
    assert_false(with("--no-pdl", NULL).backend.cuda.pdl);
    assert_false(with("--no-speculation", NULL).backend.cuda.guesses);
    assert_true(with("--speculative-config", "{\"method\": \"ngram\"}").backend.cuda.guesses);
    assert_true(with("--profiler-kernels", NULL).backend.cuda.profiler_kernels);
    assert_null(with("--pdl", NULL).backend.cuda.without);
    assert_string_equal(with("--cuda-without", "wide,carveout").backend.cuda.without,
                        "wide,carveout");
    assert_int_equal(with("--prefill-backend", "flash").backend.cuda.prefill, ROSE_PREFILL_FLASH);
    assert_int_equal(with("--prefill-backend", "naive").backend.cuda.prefill, ROSE_PREFILL_NAIVE);
    assert_int_equal(with("--prefill-backend", "auto2").backend.cuda.prefill, ROSE_PREFILL_AUTO2);
    assert_true(with("--tune", NULL).backend.cuda.tune);
    assert_string_equal(with("--tune-dir", "/x").backend.cuda.tune_dir, "/x");
    assert_int_equal(with("--device-timeout-ms", "0").backend.cuda.timeout_ms, 0);
    assert_true(with("--gpu-memory-utilization", "0.5").backend.cuda.memory_utilization == 0.5f);
}

static void test_pinning(void **state)
{
    (void)state;
    int allowed[ROSE_MAX_CPUS];
    char list[16];
    const uint32_t n = rose_cpus_allowed(allowed, ROSE_MAX_CPUS);
    rose_engine_opts o = with("--cpu-affinity", NULL);
    assert_int_equal(o.backend.cpu.n_cpus, n);
    assert_int_equal(o.engine_cpu, allowed[0]);
    assert_int_equal(with("--no-cpu-affinity", NULL).backend.cpu.n_cpus, 0);
    /* who names CPUs wants them */
    snprintf(list, sizeof list, "%d", allowed[n - 1]);
    o = with("--engine-cpus", list);
    assert_int_equal(o.backend.cpu.n_cpus, 1);
    assert_int_equal(o.backend.cpu.n_threads, 1);
    assert_int_equal(o.engine_cpu, allowed[n - 1]);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"--lookahead", "0"},
                                         {"--ttft-slo-ms", "-1"},
                                         {"--itl-slo-ms", "3600001"},
                                         {"--lookahead", "4097"},
                                         {"--force-fifo-every", "0"},
                                         {"--admission", "lifo"},
                                         {"--max-num-batched-tokens", "automatic"},
                                         {"--max-num-batched-tokens", "4294967295"},
                                         {"--max-num-queued-reqs", "auto"},
                                         {"--priority-age-ms", "-1"},
                                         {"--max-active-requests", "4097"},
                                         {"--gpu-memory-utilization", "0"},
                                         {"--gpu-memory-utilization", "1.1"},
                                         {"--prefill-backend", "cudnn"},
                                         {"--prefill-backend", "xformers"}};
    rose_engine_opts o;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(parse(bad[i], 2, &o), 2);
}

/* ---- the table ---- */

/* The field of `o` that a row with this pointer into g_flags.opts sets; NULL if it is no part of
 * the options, as --device. */
static const void *field_of(const rose_engine_opts *o, const void *dest)
{
    const size_t at = (size_t)((const char *)dest - (const char *)&g_flags.opts);
    return at < sizeof *o ? (const char *)o + at : NULL;
}

static void test_table_defaults(void **state)
{
    (void)state;
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS];
    rose_engine_opts want, got;
    rose_engine_opts_default(&want);
    assert_int_equal(parse(NULL, 0, &got), -1);
    const size_t n = rose_engine_flags_rows(&g_flags, rows);
    rose_opts_default(rows, n);
    for (size_t i = 0; i < n; i++) {
        const void *field = field_of(&want, rows[i].dest);
        if (rows[i].kind == ROSE_OPT_HEADING || field == NULL) continue;
        if (memcmp(field, rows[i].dest, opt_value_size(&rows[i])) != 0)
            fail_msg("--%s: the row has another default than rose_engine_opts_default",
                     rows[i].name);
    }
    assert_int_equal(want.engine_cpu, -1);
    assert_int_equal(want.backend.max_seqs, 256);
    assert_int_equal(want.backend.max_step_tokens, 0); /* the device's */
    assert_int_equal(want.backend.cuda.timeout_ms, 60000);
    assert_int_equal(want.max_queued, 1024);
    assert_int_equal(want.lookahead, 64);
    assert_int_equal(want.force_fifo_every, 8);
    assert_int_equal(want.priority_age_ms, 1000);
    assert_true(want.overlap && want.backend.cuda.megakernel);
}

static void test_table_sets(void **state)
{
    (void)state;
    static rose_engine_flags before;
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS], was[ROSE_ENGINE_FLAG_ROWS];
    const size_t n = rose_engine_flags_rows(&g_flags, rows);
    rose_engine_flags_init(&before);
    rose_engine_flags_rows(&before, was);
    for (size_t i = 0; i < n; i++) {
        rose_engine_flags_init(&g_flags);
        expect_sets_itself(rows, was, n, i);
    }
}

/* What rose_opts_changed writes gives the same options again. */
static void test_table_changed(void **state)
{
    (void)state;
    static rose_engine_flags f;
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS];
    rose_buf text = {0};
    const size_t n = rose_engine_flags_rows(&f, rows);
    rose_engine_flags_init(&f);
    assert_int_equal(rose_opts_changed(rows, n, &text), ROSE_OK);
    assert_int_equal(text.len, 0);
    f.opts.backend.dtype = ROSE_COMPUTE_BF16;
    f.opts.backend.max_seqs = 7;
    f.opts.backend.max_step_tokens = ROSE_STEP_AUTO;
    f.opts.backend.cuda.memory_utilization = 0.5f;
    f.opts.backend.kv_bytes = (uint64_t)5 << 30;
    f.opts.backend.cuda.without = "it's";
    f.opts.prefix_cache = false;
    f.opts.backend.cpu.prefault = true;
    assert_int_equal(rose_opts_changed(rows, n, &text), ROSE_OK);
    assert_string_equal(rose_buf_str(&text),
                        " --dtype bfloat16 --max-num-seqs 7"
                        " --max-num-batched-tokens 'auto' --kv-cache-memory 5368709120"
                        " --gpu-memory-utilization 0.5 --prefault --cuda-without 'it'\\''s'"
                        " --no-prefix-cache");
    rose_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_defaults), cmocka_unit_test(test_table_sets),
        cmocka_unit_test(test_table_changed),  cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_switches),       cmocka_unit_test(test_pinning),
        cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("engine switches", tests, NULL, NULL);
}
