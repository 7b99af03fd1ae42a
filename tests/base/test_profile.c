/* The recorder: what is off costs nothing and keeps nothing, threads, overflow, flows, the file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/allocguard.h"
#include "base/clock.h"
#include "base/profile.h"
#include "load_json.h"

static char g_path[64];

static int set_up(void **state)
{
    static int n;
    (void)state;
    snprintf(g_path, sizeof g_path, "/tmp/rose_profile_%d_%d.json", (int)getpid(), n++);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rose_prof_stop(NULL, NULL, NULL);
    unlink(g_path);
    return 0;
}

/* The file, which must be JSON of the format's shape. */
static rose_json *load(void)
{
    rose_json *root = test_load_json(g_path);
    size_t i;
    rose_json *v;
    rose_json_each_item (rose_json_get(root, "traceEvents"), i, v) {
        assert_true(rose_json_is_string(rose_json_get(v, "ph")));
        assert_true(rose_json_is_string(rose_json_get(v, "name")));
        assert_true(rose_json_is_integer(rose_json_get(v, "pid")));
        assert_true(rose_json_is_integer(rose_json_get(v, "tid")));
        if (strcmp(rose_json_text(rose_json_get(v, "ph")), "M") == 0) continue;
        assert_true(rose_json_real_value(rose_json_get(v, "ts")) >= 0);
        const rose_json *dur = rose_json_get(v, "dur");
        assert_true(dur == NULL || rose_json_real_value(dur) >= 0);
    }
    return root;
}

static const char *ph_of(const rose_json *v)
{
    return rose_json_text(rose_json_get(v, "ph"));
}

static size_t count(const rose_json *root, const char *ph, const char *name)
{
    size_t i, n = 0;
    rose_json *v;
    rose_json_each_item (rose_json_get(root, "traceEvents"), i, v) {
        const char *nm = rose_json_text(rose_json_get(v, "name"));
        if (strcmp(ph_of(v), ph) == 0 && (name == NULL || strcmp(nm, name) == 0)) n++;
    }
    return n;
}

static const rose_json *find(const rose_json *root, const char *ph, const char *name)
{
    size_t i;
    rose_json *v;
    rose_json_each_item (rose_json_get(root, "traceEvents"), i, v) {
        const char *nm = rose_json_text(rose_json_get(v, "name"));
        if (strcmp(ph_of(v), ph) == 0 && strcmp(nm, name) == 0) return v;
    }
    fail_msg("no event %s '%s'", ph, name);
    return NULL;
}

static double number(const rose_json *v, const char *key)
{
    return rose_json_number_value(rose_json_get(v, key));
}

static rose_json *stop(rose_prof_result *r)
{
    rose_err err = {{0}};
    if (rose_prof_stop(g_path, r, &err) != ROSE_OK) fail_msg("%s", err.msg);
    return load();
}

static void all_kinds(void)
{
    rose_prof_span s = rose_prof_begin("outer"), t = rose_prof_begin("inner");
    rose_prof_flow(ROSE_PROF_FLOW_BEGIN, 7);
    rose_prof_counter("counter", 2);
    rose_prof_end_with(&t, "rows", 42);
    rose_prof_end(&s);
    const uint64_t now = rose_now_ns();
    rose_prof_async("part", 7, now, now);
}

static void test_off(void **state)
{
    (void)state;
    rose_prof_result r;
    rose_prof_thread("main");
    assert_false(rose_prof_on());
    all_kinds(); /* nothing of it may show up below */
    rose_prof_span early = rose_prof_begin("begun when off");
    assert_int_equal(early.begin_ns, 0); /* no clock was read */
    assert_int_equal(rose_prof_stop(g_path, &r, NULL), ROSE_E_EMPTY);
    assert_int_not_equal(access(g_path, F_OK), 0);
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    rose_prof_end(&early);
    rose_json *root = stop(&r);
    assert_int_equal(r.n_events, 0);
    assert_int_equal(r.n_dropped, 0);
    assert_int_equal(r.n_threads, 0);
    assert_int_equal(count(root, "X", NULL), 0);
    rose_json_decref(root);
}

/* Times that the caller gives are taken as they are; what began before the recording is cut. */
static void test_given_times(void **state)
{
    (void)state;
    rose_prof_result r;
    rose_prof_thread("main");
    const uint64_t before = rose_now_ns();
    rose_prof_span off = rose_prof_begin_at("off", before);
    assert_int_equal(rose_prof_end_at(&off, before + 1, NULL, 0), 0);
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    const uint64_t t = rose_now_ns();
    rose_prof_span outer = rose_prof_begin_at("outer", t), inner = rose_prof_begin_at("inner", t);
    assert_int_equal(rose_prof_end_at(&inner, t + 1500, "rows", 3), t + 1500);
    rose_prof_span next = rose_prof_begin_at("next", t + 1500);
    assert_int_equal(rose_prof_end_at(&next, t + 4000, NULL, 0), t + 4000);
    rose_prof_span cut = rose_prof_begin_at("cut", before);
    const uint64_t ended = rose_prof_end_at(&cut, 0, NULL, 0); /* 0: the clock is read */
    assert_true(ended > t && ended <= rose_now_ns());
    assert_int_equal(rose_prof_end_at(&outer, 0, NULL, 0) >= ended, 1);
    rose_json *root = stop(&r);
    assert_int_equal(r.n_events, 4);
    const double begin = number(find(root, "X", "outer"), "ts");
    assert_true(fabs(number(find(root, "X", "inner"), "ts") - begin) < 1e-3);
    assert_true(fabs(number(find(root, "X", "inner"), "dur") - 1.5) < 1e-3);
    assert_true(fabs(number(find(root, "X", "next"), "ts") - begin - 1.5) < 2e-3);
    assert_true(fabs(number(find(root, "X", "next"), "dur") - 2.5) < 1e-3);
    assert_true(number(find(root, "X", "cut"), "ts") == 0);
    /* from the start of the recording on, no longer */
    assert_true(number(find(root, "X", "cut"), "dur") <= (double)(ended - before) * 1e-3);
    assert_true(number(find(root, "X", "cut"), "dur") >= (double)(ended - t) * 1e-3);
    rose_json_decref(root);
}

static void test_kinds(void **state)
{
    (void)state;
    rose_prof_result r;
    rose_prof_thread("he said \"\\\n\xc3\xa9");
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    all_kinds();
    rose_prof_flow(ROSE_PROF_FLOW_STEP, 0);        /* no request */
    rose_prof_async("no end", 7, 5, 4);            /* did not happen */
    rose_prof_async("no begin", 7, 0, 4);          /* likewise */
    rose_prof_async("early", 9, 1, rose_now_ns()); /* cut at the recording's beginning */
    rose_json *root = stop(&r);
    assert_int_equal(r.n_events, 6);
    assert_int_equal(r.n_threads, 1);
    assert_true(r.file_bytes > 100);
    const rose_json *outer = find(root, "X", "outer"), *inner = find(root, "X", "inner");
    assert_true(number(outer, "ts") <= number(inner, "ts"));
    /* to the nanosecond: sums of decimals */
    assert_true(number(outer, "ts") + number(outer, "dur") + 1e-6 >=
                number(inner, "ts") + number(inner, "dur"));
    assert_int_equal(number(rose_json_get(inner, "args"), "rows"), 42);
    const rose_json *flow = find(root, "s", "request");
    assert_int_equal(number(flow, "id"), 7);
    assert_true(number(flow, "ts") >= number(inner, "ts"));
    assert_int_equal(number(rose_json_get(find(root, "C", "counter"), "args"), "value"), 2);
    assert_string_equal(rose_json_text(rose_json_get(find(root, "b", "part"), "id")), "7");
    assert_int_equal(count(root, "b", NULL), count(root, "e", NULL));
    assert_true(number(find(root, "b", "early"), "ts") == 0);
    size_t i, named = 0;
    rose_json *v;
    rose_json_each_item (rose_json_get(root, "traceEvents"), i, v) {
        const char *nm = rose_json_text(rose_json_get(rose_json_get(v, "args"), "name"));
        if (nm != NULL && strcmp(nm, "he said \"\\\?\?\?") == 0) named++;
    }
    assert_int_equal(named, 1);
    rose_json_decref(root);
}

static void test_overflow(void **state)
{
    (void)state;
    rose_prof_result r;
    rose_prof_thread("main");
    assert_int_equal(rose_prof_start(ROSE_PROF_MIN_EVENTS, NULL), ROSE_OK);
    for (uint64_t i = 0; i < 1000; i++)
        rose_prof_counter("n", i);
    rose_json *root = stop(&r);
    assert_int_equal(r.n_events, ROSE_PROF_MIN_EVENTS);
    assert_int_equal(r.n_dropped, 1000 - ROSE_PROF_MIN_EVENTS);
    assert_int_equal(count(root, "C", "n"), ROSE_PROF_MIN_EVENTS);
    const rose_json *other = rose_json_get(root, "otherData");
    assert_int_equal(number(other, "dropped"), 1000 - ROSE_PROF_MIN_EVENTS);
    const rose_json *mine = rose_json_at(rose_json_get(other, "dropped_by_thread"), 0);
    assert_string_equal(rose_json_text(rose_json_get(mine, "thread")), "main");
    rose_json_decref(root);
    unlink(g_path);
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK); /* the next one begins empty */
    root = stop(&r);
    assert_int_equal(r.n_events + r.n_dropped, 0);
    rose_json_decref(root);
}

static void test_bounds(void **state)
{
    (void)state;
    rose_err err = {{0}};
    rose_prof_result r;
    assert_int_equal(rose_prof_start(ROSE_PROF_MIN_EVENTS - 1, &err), ROSE_E_INVAL);
    assert_int_equal(rose_prof_start(ROSE_PROF_MAX_EVENTS + 1, &err), ROSE_E_INVAL);
    assert_false(rose_prof_recording());
    assert_int_equal(rose_prof_start(64, &err), ROSE_OK);
    assert_int_equal(rose_prof_start(64, &err), ROSE_E_FULL);
    assert_true(rose_prof_recording());
    assert_int_equal(rose_prof_stop("/nonexistent-dir/x.json", &r, &err), ROSE_E_IO);
    assert_non_null(strstr(err.msg, "/nonexistent-dir/x.json"));
    assert_int_equal(r.file_bytes, 0);
    assert_false(rose_prof_recording()); /* it has ended all the same */
    /* a file that is there stays as it is */
    FILE *f = fopen(g_path, "w");
    assert_non_null(f);
    fputs("mine", f);
    fclose(f);
    assert_int_equal(rose_prof_start(64, &err), ROSE_OK);
    assert_int_equal(rose_prof_stop(g_path, &r, &err), ROSE_E_IO);
    f = fopen(g_path, "r");
    char text[8] = "";
    assert_int_equal(fread(text, 1, sizeof text - 1, f), 4);
    fclose(f);
    assert_string_equal(text, "mine");
}

/* A span that straddles two recordings belongs to neither. */
static void test_straddle(void **state)
{
    (void)state;
    rose_prof_result r;
    rose_prof_thread("main");
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    rose_prof_span s = rose_prof_begin("straddles");
    assert_int_equal(rose_prof_stop(NULL, &r, NULL), ROSE_OK);
    assert_int_equal(r.file_bytes, 0);
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    rose_prof_end(&s);
    rose_json *root = stop(&r);
    assert_int_equal(r.n_events, 0);
    rose_json_decref(root);
}

/* ---- threads ---- */

enum { N_THREADS = 6 };
static _Atomic bool g_end;

static void *scribble(void *arg)
{
    char name[32];
    uint64_t id = (uint64_t)(uintptr_t)arg + 1, n = 0;
    snprintf(name, sizeof name, "thread %u", (unsigned)id);
    rose_prof_thread(name);
    while (!atomic_load_explicit(&g_end, memory_order_relaxed)) {
        rose_prof_span s = rose_prof_begin("work");
        rose_alloc_guard_begin("recording"); /* in the checked build: no allocation */
        rose_prof_flow(ROSE_PROF_FLOW_STEP, id);
        rose_prof_counter("n", n++);
        rose_alloc_guard_end();
        rose_prof_end(&s);
    }
    return NULL;
}

static void check_monotonic(const rose_json *root)
{
    size_t i;
    rose_json *v;
    double last[64] = {0};
    long tids[64];
    size_t n = 0;
    rose_json_each_item (rose_json_get(root, "traceEvents"), i, v) {
        if (strcmp(ph_of(v), "M") == 0) continue;
        long tid = (long)number(v, "tid");
        size_t k = 0;
        while (k < n && tids[k] != tid)
            k++;
        if (k == n) tids[n++] = tid;
        assert_true(n < 64);
        assert_true(number(v, "ts") >= last[k]);
        last[k] = number(v, "ts");
    }
}

/* Recordings start and stop while threads write, come and go. */
static void test_threads(void **state)
{
    (void)state;
    pthread_t t[N_THREADS];
    rose_prof_result r;
    uint64_t n_all = 0;
    atomic_store(&g_end, false);
    for (uintptr_t i = 0; i < N_THREADS - 1; i++)
        assert_int_equal(pthread_create(&t[i], NULL, scribble, (void *)i), 0);
    for (int round = 0; round < 20; round++) {
        assert_int_equal(rose_prof_start(round % 2 == 0 ? 2000 : 50, NULL), ROSE_OK);
        if (round == 10) /* joins one that runs */
            assert_int_equal(
                pthread_create(&t[N_THREADS - 1], NULL, scribble, (void *)(N_THREADS - 1)), 0);
        if (round == 19) { /* all leave before it ends */
            atomic_store(&g_end, true);
            for (int i = 0; i < N_THREADS; i++)
                pthread_join(t[i], NULL);
        }
        const struct timespec ms = {0, 2000000};
        nanosleep(&ms, NULL);
        rose_json *root = stop(&r);
        check_monotonic(root);
        assert_int_equal(count(root, "X", NULL) + count(root, "C", NULL) + count(root, "t", NULL),
                         r.n_events);
        assert_int_equal(number(rose_json_get(root, "otherData"), "events"), r.n_events);
        n_all += r.n_events;
        rose_json_decref(root);
        unlink(g_path);
    }
    assert_true(n_all > 0);
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK); /* those who left are forgotten */
    rose_json *root = stop(&r);
    assert_true(count(root, "M", "thread_name") <= 1);
    rose_json_decref(root);
}

static void *stray(void *arg)
{
    (void)arg;
    for (int i = 0; i < 5; i++)
        rose_prof_counter("stray", 1);
    return NULL;
}

/* A thread that nobody named is not recorded, and the file says so. */
static void test_stray(void **state)
{
    (void)state;
    pthread_t t;
    rose_prof_result r;
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    assert_int_equal(pthread_create(&t, NULL, stray, NULL), 0);
    pthread_join(t, NULL);
    rose_json *root = stop(&r);
    assert_int_equal(r.n_dropped, 5);
    assert_int_equal(r.n_events, 0);
    rose_json_decref(root);
}

/* ---- hooks and source ---- */

static int g_depth, g_pushes, g_stops, g_drops;
static uint64_t g_within_ns; /* a time within the recording */

static rose_status source_start(void *arg, rose_err *err)
{
    return arg == NULL ? ROSE_OK : rose_fail(err, ROSE_E_UNSUPPORTED, "no \"library\"");
}
static void source_stop(void *arg)
{
    (void)arg;
    g_stops++;
}
static void source_drop(void *arg)
{
    (void)arg;
    g_drops++;
}
static uint64_t source_write(void *arg, rose_prof_writer *w, rose_err *err)
{
    uint64_t now = g_within_ns;
    (void)arg;
    (void)err;
    rose_prof_write_span(w, 0, "stream 0", "kernel<\"x\">", now - 10, now - 5, "bytes", 3);
    rose_prof_write_span(w, 0, "stream 0", "before", 1, 2, NULL, 0); /* of no recording */
    rose_prof_write_span(w, 900, "stream 900", "far", now - 10, now - 10, NULL, 0);
    return 4;
}

static void test_source(void **state)
{
    (void)state;
    rose_prof_result r;
    rose_prof_source s = {.name = "device",
                          .start = source_start,
                          .stop = source_stop,
                          .write = source_write,
                          .drop = source_drop};
    rose_prof_set_source(&s);
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    const struct timespec ms = {0, 1000000};
    nanosleep(&ms, NULL);
    g_within_ns = rose_now_ns();
    rose_json *root = stop(&r);
    assert_int_equal(g_stops, 1);
    assert_int_equal(g_drops, 1);
    assert_int_equal(r.n_dropped, 4);
    assert_int_equal(count(root, "X", "before"), 0);
    rose_json_decref(root);
    unlink(g_path);

    s.arg = &s; /* cannot start: the recording goes on, and says so */
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    root = stop(&r);
    assert_int_equal(g_stops, 1);
    assert_string_equal(r.note, "device: no \"library\"");
    assert_string_equal(rose_json_text(rose_json_get(rose_json_get(root, "otherData"), "note")),
                        r.note);
    rose_json_decref(root);
    unlink(g_path);

    s.arg = NULL; /* it goes while a recording runs */
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    rose_prof_set_source(NULL);
    assert_int_equal(g_stops, 2);
    assert_int_equal(g_drops, 2);
    root = stop(&r);
    assert_non_null(strstr(r.note, "ended"));
    rose_json_decref(root);
}

static void push(const char *name)
{
    assert_non_null(name);
    g_depth++;
    g_pushes++;
}
static void pop(void)
{
    g_depth--;
}

/* Last: hooks stay. */
static void test_hooks(void **state)
{
    (void)state;
    rose_prof_result r;
    const rose_prof_hooks h = {.push = push, .pop = pop};
    rose_prof_set_hooks(&h);
    assert_true(rose_prof_on());
    assert_false(rose_prof_recording());
    all_kinds();
    assert_int_equal(g_pushes, 2);
    assert_int_equal(g_depth, 0);
    rose_prof_thread("main");
    assert_int_equal(rose_prof_start(64, NULL), ROSE_OK);
    rose_prof_span s = rose_prof_begin("half");
    all_kinds();
    rose_json *root = stop(&r);
    assert_int_equal(r.n_events, 5);
    rose_prof_end(&s); /* popped, though the recording is over */
    assert_int_equal(g_depth, 0);
    rose_json_decref(root);
    assert_int_equal(rose_prof_stop(NULL, NULL, NULL), ROSE_E_EMPTY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_off, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_given_times, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_kinds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_overflow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bounds, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_straddle, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_stray, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_threads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_source, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_hooks, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
