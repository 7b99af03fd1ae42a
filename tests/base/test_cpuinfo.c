/* tests/base/test_cpuinfo.c - instruction-set levels, thread setup and memory figures. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cpuinfo.h"
#include "base/procstat.h"

static void quotas(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t want;
    } cases[] = {{"max 100000\n", UINT32_MAX},
                 {"200000 100000\n", 2},
                 {"200001 100000\n", 3},
                 {"50000 100000", 1},
                 {"0 100000\n", 1},
                 {"1 0\n", UINT32_MAX},
                 {"", UINT32_MAX},
                 {"x", UINT32_MAX},
                 {"100000", UINT32_MAX},
                 {"18446744073709551615 1\n", UINT32_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(rose_cpus_quota_parse(cases[i].text), cases[i].want);
    assert_true(rose_cpus_quota() >= 1);
}

static void names_round_trip(void **state)
{
    (void)state;
    rose_isa best = rose_isa_probe();
    assert_int_equal(best, rose_isa_probe());
    for (int i = ROSE_ISA_SCALAR; i <= ROSE_ISA_NEON; i++) {
        rose_isa out = ROSE_ISA_AMX;
        rose_err err = {""};
        rose_status st = rose_isa_parse(rose_isa_name((rose_isa)i), &out, &err);
        if (best == ROSE_ISA_NEON ? i == ROSE_ISA_SCALAR || i == ROSE_ISA_NEON : i <= (int)best) {
            assert_int_equal(st, ROSE_OK);
            assert_int_equal(out, i);
            assert_string_equal(err.msg, "");
        } else {
            assert_int_equal(st, ROSE_E_UNSUPPORTED);
            assert_int_equal(out, ROSE_ISA_SCALAR);
            assert_non_null(strstr(err.msg, "lacks "));
            assert_non_null(strstr(err.msg, rose_isa_name(best)));
        }
    }
    rose_isa out = ROSE_ISA_SCALAR;
    assert_int_equal(rose_isa_parse("auto", &out, NULL), ROSE_OK);
    assert_int_equal(out, best);
    assert_string_equal(rose_isa_name((rose_isa)99), "unknown");
}

/* Beside the ladder: by its name alone, where the kernel lists its instruction. */
static void bf16_products_by_name(void **state)
{
    (void)state;
    rose_isa out = ROSE_ISA_AMX;
    rose_err err = {""};
    rose_status st = rose_isa_parse("avx512-bf16", &out, &err);
    assert_string_equal(rose_isa_name(ROSE_ISA_AVX512_BF16), "avx512-bf16");
    assert_int_not_equal(rose_isa_probe(), ROSE_ISA_AVX512_BF16);
    if (st == ROSE_OK) {
        assert_int_equal(out, ROSE_ISA_AVX512_BF16);
        assert_int_equal(rose_isa_parse("avx512", &out, NULL), ROSE_OK);
    } else {
        assert_int_equal(st, ROSE_E_UNSUPPORTED);
        assert_int_equal(out, ROSE_ISA_SCALAR);
        assert_non_null(strstr(err.msg, "isa avx512-bf16: this machine lacks "));
    }
}

static void unknown_names_fail(void **state)
{
    (void)state;
    static const char *const names[] = {"", "AVX2", "avx", "avx5122", "sse", " scalar", "auto "};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rose_isa out = ROSE_ISA_AMX;
        rose_err err = {""};
        assert_int_equal(rose_isa_parse(names[i], &out, &err), ROSE_E_INVAL);
        assert_int_equal(out, ROSE_ISA_SCALAR);
        assert_non_null(strstr(err.msg, "expected auto"));
    }
}

/* The probe agrees with what the kernel lists, flag by flag. */
static void probe_agrees_with_proc(void **state)
{
    (void)state;
    static char text[1 << 16];
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (f == NULL) skip();
    char *flags = NULL;
    while (flags == NULL && fgets(text, sizeof text, f) != NULL) {
        if (strncmp(text, "flags", 5) == 0) flags = text;
    }
    fclose(f);
    if (flags == NULL) skip();
    rose_isa best = rose_isa_probe();
    if (best >= ROSE_ISA_AVX2) assert_non_null(strstr(flags, " avx2 "));
    if (best >= ROSE_ISA_AVX512) assert_non_null(strstr(flags, " avx512vl "));
    if (best >= ROSE_ISA_AMX) assert_non_null(strstr(flags, " amx_bf16 "));
    rose_isa pairs;
    const bool has = rose_isa_parse("avx512-bf16", &pairs, NULL) == ROSE_OK;
    assert_int_equal(has, best >= ROSE_ISA_AVX512 && strstr(flags, " avx512_bf16 ") != NULL);
    if (best == ROSE_ISA_SCALAR) assert_null(strstr(flags, " avx2 "));
    if (best <= ROSE_ISA_AVX2)
        assert_true(strstr(flags, " avx512f ") == NULL || strstr(flags, " avx512vl ") == NULL);
}

static void *thread_main(void *arg)
{
    char *name = arg;
    int cpu;
    assert_int_equal(rose_cpus_allowed(&cpu, 1), 1);
    rose_thread_setup("a name that is too long", cpu);
    pthread_getname_np(pthread_self(), name, 16);
    int now[4];
    assert_int_equal(rose_cpus_allowed(now, 4), 1);
    assert_int_equal(now[0], cpu);
    rose_thread_setup("other", 1 << 20); /* no such CPU: logged, ignored */
    assert_int_equal(rose_cpus_allowed(now, 4), 1);

    rose_thread_ftz();
#if defined(__x86_64__)
    volatile float tiny = 0x1p-100f, zero = tiny * 0x1p-40f, denormal = 0x1p-140f;
    assert_true(zero == 0.0f);               /* FTZ */
    assert_true(denormal * 0x1p60f == 0.0f); /* DAZ */
#endif
    return NULL;
}

static void thread_is_named_pinned_and_flushes(void **state)
{
    (void)state;
    pthread_t id;
    char name[16] = "";
    assert_int_equal(pthread_create(&id, NULL, thread_main, name), 0);
    pthread_join(id, NULL);
    assert_string_equal(name, "a name that is ");
    volatile float tiny = 0x1p-100f;
    assert_true(tiny * 0x1p-40f != 0.0f); /* this thread is as before */
}

/* As the kernel tells it; 0 where it tells no slices, and for threads without one. */
static uint64_t slice_us(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } a = {0};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0), 0);
    return a.policy == SCHED_OTHER ? a.runtime_ns / 1000 : 0;
}

static void *slice_main(void *arg)
{
    *(uint64_t *)arg = slice_us();
    return NULL;
}

static void slice_is_set_inherited_and_reset(void **state)
{
    (void)state;
    pthread_t id;
    uint64_t inherited = 0;
    const uint64_t before = slice_us();
    const int nice_before = getpriority(PRIO_PROCESS, 0);
    if (before == 0) skip(); /* before Linux 6.12, or not a normal thread */
    rose_thread_slice(200);
    assert_int_equal(slice_us(), 200);
    assert_int_equal(pthread_create(&id, NULL, slice_main, &inherited), 0);
    pthread_join(id, NULL);
    assert_int_equal(inherited, 200);
    rose_thread_slice(0);
    assert_int_equal(slice_us(), before);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice_before);
}

static void cpus_are_ascending(void **state)
{
    (void)state;
    int cpus[4096];
    uint32_t n = rose_cpus_allowed(cpus, 4096);
    assert_true(n >= 1);
    for (uint32_t i = 1; i < n; i++)
        assert_true(cpus[i] > cpus[i - 1]);
    assert_int_equal(rose_cpus_allowed(cpus, 0), 0);
}

static void memory_figures_move(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    uint64_t before = rose_procstat_read().resident_bytes, available = rose_memory_available();
    assert_true(before > 0);
    assert_true(available > MIB);
    size_t size = 64 * (size_t)MIB;
    volatile char *p = malloc(size);
    assert_non_null(p);
    for (size_t i = 0; i < size; i += 512)
        p[i] = 1;
    assert_true(rose_procstat_read().resident_bytes >= before + 60 * (uint64_t)MIB);
    free((void *)(uintptr_t)p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotas),
        cmocka_unit_test(names_round_trip),
        cmocka_unit_test(bf16_products_by_name),
        cmocka_unit_test(unknown_names_fail),
        cmocka_unit_test(probe_agrees_with_proc),
        cmocka_unit_test(thread_is_named_pinned_and_flushes),
        cmocka_unit_test(slice_is_set_inherited_and_reset),
        cmocka_unit_test(cpus_are_ascending),
        cmocka_unit_test(memory_figures_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
