/* The watch for stalls: what a span measures, which cause it names, what is logged and counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/stall.h"
#include "log_capture.h"

#define MS UINT64_C(1000000)

/* ---- the figures of the system: real ones, or those of the test ---- */

static struct {
    bool on;
    uint64_t now_ns;
    struct rusage thread, process;
} fake;

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (!fake.on) return (int)syscall(SYS_clock_gettime, id, t);
    *t = (struct timespec){(time_t)(fake.now_ns / 1000000000), (long)(fake.now_ns % 1000000000)};
    return 0;
}

int getrusage(__rusage_who_t who, struct rusage *u)
{
    if (!fake.on) return (int)syscall(SYS_getrusage, who, u);
    *u = who == RUSAGE_SELF ? fake.process : fake.thread;
    return 0;
}

static struct rusage usage(long cpu_ms, long minor, long major, long voluntary, long involuntary)
{
    struct rusage u = {0}; /* half of the CPU time is the kernel's */
    u.ru_utime.tv_usec = u.ru_stime.tv_usec = cpu_ms * 500;
    u.ru_minflt = minor;
    u.ru_majflt = major;
    u.ru_nvcsw = voluntary;
    u.ru_nivcsw = involuntary;
    return u;
}

static int reset(void **state)
{
    (void)state;
    rose_stall_set_limit(0);
    fake.on = false;
    return 0;
}

static void test_off(void **state)
{
    (void)state;
    rose_stall_span s = {0};
    rose_stall_begin(&s);
    assert_false(s.on);
    assert_int_equal(s.at.wall_ns, 0); /* nothing was asked of the system */
    usleep(2000);
    assert_false(rose_stall_stop(&s));
    rose_stall_set_limit(1);
    assert_false(rose_stall_stop(&s)); /* on, but it never began */
}

static void test_measures(void **state)
{
    (void)state;
    rose_stall_span s = {0};
    rose_stall_set_limit(20 * MS);
    fake.on = true;
    fake.now_ns = 5000 * MS;
    fake.thread = usage(100, 10, 1, 7, 3);
    rose_stall_begin(&s);
    fake.now_ns += 20 * MS;
    assert_false(rose_stall_stop(&s)); /* as long as the limit, and not longer */
    rose_stall_begin(&s);
    fake.now_ns += 21 * MS;
    fake.thread = usage(112, 4106, 3, 17, 8);
    assert_true(rose_stall_stop(&s));
    assert_false(s.on);
    assert_int_equal(s.took.wall_ns, 21 * MS);
    assert_int_equal(s.took.cpu_ns, 12 * MS);
    assert_int_equal(s.took.minor, 4096);
    assert_int_equal(s.took.major, 2);
    assert_int_equal(s.took.voluntary, 10);
    assert_int_equal(s.took.involuntary, 5);
    assert_int_equal(s.others_minor, 0); /* not asked for */
    assert_false(rose_stall_stop(&s));   /* once */
}

static void test_other_threads(void **state)
{
    (void)state;
    rose_stall_span s = {.others = true};
    rose_stall_set_limit(1);
    fake.on = true;
    fake.thread = usage(0, 10, 1, 0, 0);
    fake.process = usage(0, 1000, 20, 0, 0);
    rose_stall_begin(&s);
    fake.thread = usage(0, 15, 2, 0, 0);
    fake.process = usage(0, 3005, 24, 0, 0);
    rose_stall_stop(&s);
    assert_int_equal(s.took.minor, 5);
    assert_int_equal(s.others_minor, 2000);
    assert_int_equal(s.others_major, 3);
}

static void *touch_pages(void *arg)
{
    enum { PAGES = 64 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)arg;
    char *fresh =
        mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(fresh != MAP_FAILED);
    for (size_t i = 0; i < PAGES; i++)
        fresh[i * page] = 1;
    munmap(fresh, PAGES * page);
    return NULL;
}

/* The system's own figures are those of this thread and of the process. */
static void test_real_figures(void **state)
{
    (void)state;
    rose_stall_span s = {.others = true};
    pthread_t t;
    rose_stall_set_limit(1);
    rose_stall_begin(&s);
    touch_pages(NULL);
    usleep(1000);
    assert_true(rose_stall_stop(&s));
    assert_true(s.took.minor > 0 && s.took.wall_ns >= MS);
    rose_stall_begin(&s);
    assert_int_equal(pthread_create(&t, NULL, touch_pages, NULL), 0);
    pthread_join(t, NULL);
    rose_stall_stop(&s);
    assert_true(s.others_minor > 0);
}

static void test_without(void **state)
{
    (void)state;
    rose_stall_span whole = {.took = {100 * MS, 90 * MS, 10, 1, 5, 6}, .others_minor = 50};
    rose_stall_span part = {.took = {95 * MS, 95 * MS, 10, 0, 5, 2}, .others_minor = 60};
    rose_stall_set_limit(6 * MS);
    assert_false(rose_stall_without(&whole, &part));
    assert_int_equal(whole.took.wall_ns, 5 * MS);
    assert_int_equal(whole.took.cpu_ns, 0); /* never below nothing */
    assert_int_equal(whole.took.major, 1);
    assert_int_equal(whole.took.involuntary, 4);
    assert_int_equal(whole.others_minor, 0);
}

static void test_causes(void **state)
{
    (void)state;
    static const struct {
        rose_stall_span s;
        const char *word;
    } t[] = {
        {{.took = {10 * MS, 10 * MS, 0, 0, 0, 3}}, "computed"},
        {{.took = {10 * MS, 8 * MS, 0, 0, 2, 0}}, "computed"},
        {{.took = {10 * MS, 10 * MS, 5000, 0, 0, 0}}, "touched new memory"},
        {{.took = {10 * MS, 10 * MS, 20, 0, 0, 0}}, "computed"},
        {{.took = {10 * MS, 1 * MS, 0, 1, 1, 0}}, "it read pages from disk"},
        {{.took = {10 * MS, 1 * MS, 0, 0, 1, 0}, .others_major = 2}, "other threads read pages"},
        {{.took = {10 * MS, 1 * MS, 0, 0, 1, 0}, .others_minor = 9000}, "other threads touched"},
        {{.took = {10 * MS, 10 * MS, 0, 0, 0, 0}, .others_minor = 9000}, "computed"},
        {{.took = {10 * MS, 1 * MS, 0, 0, 0, 1}}, "descheduled"},
        {{.took = {10 * MS, 1 * MS, 0, 0, 3, 1}}, "waited"},
        {{.took = {10 * MS, 1 * MS, 0, 0, 0, 0}}, "from below"},
        {{.took = {0, 0, 0, 0, 0, 0}}, "computed"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const char *cause = rose_stall_cause(&t[i].s);
        if (strstr(cause, t[i].word) == NULL) fail_msg("%zu: %s, not %s", i, cause, t[i].word);
    }
}

/* Every stall is counted, one a second is logged; what is left out is said in the next line. */
static void test_report(void **state)
{
    (void)state;
    rose_stall_span s = {.took = {12 * MS, 3 * MS, 7, 0, 1, 2}};
    uint64_t before = 0;
    rose_stall_set_limit(MS);
    pthread_setname_np(pthread_self(), "my-thread");
    fake.on = true;
    fake.now_ns = 1000000 * MS;
    before = rose_stall_count(ROSE_STALL_STEP_HOST);
    log_begin();
    for (int i = 0; i < 5; i++)
        rose_stall_report(ROSE_STALL_STEP_HOST, &s, "%d rows", 9);
    rose_stall_report_idle(ROSE_STALL_WRITE, 50 * MS, "%d bytes", 77); /* a place of its own */
    fake.now_ns += 1001 * MS;
    s.others = true;
    s.others_minor = 8;
    s.others_major = 9;
    rose_stall_report(ROSE_STALL_STEP_HOST, &s, "%d rows\nforged", 10);
    char *text = log_end();
    assert_int_equal(rose_stall_count(ROSE_STALL_STEP_HOST), before + 6);
    assert_int_equal(log_count(text, "WARN stall: "), 3);
    assert_non_null(strstr(text, "my-thread: step_host (9 rows) took 12.0 ms: it was descheduled"));
    assert_non_null(strstr(text, "On CPU 3.0 ms; page faults: 7 minor, 0 major; context switches: "
                                 "1 voluntary, 2 involuntary\n"));
    assert_non_null(strstr(text, "7 minor, 0 major (other threads: 8, 9); context"));
    assert_non_null(strstr(text, "client_write took 50.0 ms: 77 bytes\n"));
    assert_non_null(strstr(text, "(10 rows?forged)"));
    assert_non_null(strstr(text, "involuntary (and 4 more before it)\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_off, reset),
        cmocka_unit_test_teardown(test_measures, reset),
        cmocka_unit_test_teardown(test_other_threads, reset),
        cmocka_unit_test_teardown(test_real_figures, reset),
        cmocka_unit_test_teardown(test_without, reset),
        cmocka_unit_test_teardown(test_causes, reset),
        cmocka_unit_test_teardown(test_report, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
