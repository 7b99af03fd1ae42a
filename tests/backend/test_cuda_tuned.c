/* tests/backend/test_cuda_tuned.c - the file of measured GEMM kernels, and the choice that follows
 * it. Needs no GPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/cuda/gemm.h"

static char g_path[64];

static int setup(void **state)
{
    (void)state;
    snprintf(g_path, sizeof g_path, "/tmp/rose-tuned-%ld.txt", (long)getpid());
    remove(g_path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return remove(g_path) == 0 ? 0 : -1;
}

static void write_file(const char *text)
{
    FILE *f = fopen(g_path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static rose_gemm_tuning line_of(uint32_t n, uint32_t bucket, const char *kernel)
{
    return (rose_gemm_tuning){.n = n,
                              .k = 1024,
                              .bucket = bucket,
                              .format = ROSE_BF16,
                              .end = ROSE_END_ROWS,
                              .n_parts = 1,
                              .kernel = rose_gemm_named(kernel)};
}

static void test_buckets(void **state)
{
    static const uint32_t rows[][2] = {{1, 1},       {2, 2},       {3, 4},        {5, 8},
                                       {32, 32},     {33, 64},     {512, 512},    {513, 2048},
                                       {2048, 2048}, {2049, 8192}, {100000, 8192}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(rose_gemm_bucket(rows[i][0]), rows[i][1]);
}

/* Lines go in in any order, replace each other, and come back from the file. */
static void test_file(void **state)
{
    rose_gemm_tuned t = {0}, back = {0};
    rose_err err = {""};
    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        const rose_gemm_tuning l = line_of(8 * (1 + i * 37 % 60), 1u << i % 10, "tiles-64x64");
        assert_int_equal(rose_gemm_tuned_set(&t, &l), ROSE_OK);
    }
    const rose_gemm_tuning other = line_of(80, t.lines[9].bucket, "tiles-128x128");
    assert_int_equal(rose_gemm_tuned_set(&t, &other), ROSE_OK);
    assert_int_equal(t.n_lines, 60);
    for (uint32_t i = 1; i < t.n_lines; i++)
        assert_true(rose_gemm_tuning_order(&t.lines[i - 1], &t.lines[i]) < 0);
    assert_int_equal(rose_gemm_tuned_write(&t, g_path, "Some GPU", &err), ROSE_OK);
    rose_gemm_tuned_read(&back, g_path, "Some GPU");
    assert_int_equal(back.n_lines, t.n_lines);
    for (uint32_t i = 0; i < t.n_lines; i++) {
        assert_int_equal(rose_gemm_tuning_order(&back.lines[i], &t.lines[i]), 0);
        assert_ptr_equal(back.lines[i].kernel, t.lines[i].kernel);
    }
    assert_string_equal(rose_gemm_tuned_find(&back, &other)->kernel->name, "tiles-128x128");
    rose_gemm_tuned_free(&back);
    rose_gemm_tuned_read(&back, g_path, "Another GPU");
    assert_int_equal(back.n_lines, 0);
    assert_int_equal(rose_gemm_tuned_write(&t, "/nowhere/at/all.txt", "Some GPU", &err), ROSE_E_IO);
    assert_non_null(strstr(err.msg, "/nowhere/at/all.txt"));
    rose_gemm_tuned_free(&t);
}

/* The good lines of a file count, and its wrong lines do not. */
static void test_wrong_lines(void **state)
{
    rose_gemm_tuned t = {0};
    (void)state;
    write_file("roseinfer tune 3: Some GPU\n"
               "bf16 1024 512 1 0 8 tiles-64x64 1.5 2\n"
               "bf16 1024 512 1 0 16 a-kernel-that-is-gone 1 1\n"
               "f32 1024 512 1 0 32 tiles-64x64 1 1\n"
               "bf16 1024 512 1 9 32 tiles-64x64 1 1\n"
               "bf16 1024 512 1 0 33 tiles-64x64 1 1\n"
               "bf16 1024 512 1 0 0 tiles-64x64 1 1\n"
               "bf16 1024 512 1 0 32 tiles-64x64\n"
               "bf16 1024 512 1 0 32 tiles-64x64 1 1 more\n"
               "\n"
               "nonsense\n"
               "f16 64 512 4 1 2048 tiles-128x128 3.25 4\n");
    rose_gemm_tuned_read(&t, g_path, "Some GPU");
    assert_int_equal(t.n_lines, 2);
    assert_int_equal(t.lines[0].format, ROSE_F16);
    assert_int_equal(t.lines[1].bucket, 8);
    assert_true(t.lines[0].us == 3.25f && t.lines[0].guess_us == 4);
    rose_gemm_tuned_free(&t);
    write_file("");
    rose_gemm_tuned_read(&t, g_path, "Some GPU");
    write_file("roseinfer tune 2: Some GPU\nbf16 1024 512 1 0 8 tiles-64x64 1 1\n");
    rose_gemm_tuned_read(&t, g_path, "Some GPU");
    assert_int_equal(t.n_lines, 0);
}

/* Lines of another GPU are passed over, and those that are there already stay. */
static void test_add(void **state)
{
    static const char text[] = "roseinfer tune 3: A\n"
                               "bf16 8 1024 1 0 1 tiles-128x128 1 1\n"
                               "bf16 16 1024 1 0 1 tiles-128x128 1 1\n"
                               "roseinfer tune 3: B\n"
                               "bf16 24 1024 1 0 1 tiles-128x128 1 1\n"
                               "nonsense\n"
                               "roseinfer tune 3: A\n"
                               "bf16 32 1024 1 0 1 tiles-128x128 1 1";
    rose_gemm_tuned t = {0};
    const rose_gemm_tuning own = line_of(16, 1, "tiles-64x64");
    (void)state;
    assert_int_equal(rose_gemm_tuned_set(&t, &own), ROSE_OK);
    assert_int_equal(rose_gemm_tuned_add(&t, text, "A"), 0);
    assert_int_equal(t.n_lines, 3);
    assert_string_equal(rose_gemm_tuned_find(&t, &own)->kernel->name, "tiles-64x64");
    assert_int_equal(rose_gemm_tuned_add(&t, text, "B"), 1);
    assert_int_equal(t.n_lines, 4);
    assert_int_equal(rose_gemm_tuned_add(&t, text, "C"), 0);
    assert_int_equal(t.n_lines, 4);
    rose_gemm_tuned_free(&t);
}

/* Every line that ships is one of this version, and each shape of a GPU is there once. */
static void test_shipped(void **state)
{
    (void)state;
    uint32_t n_gpus = 0;
    for (const char *at = rose_gemm_shipped; (at = strstr(at, "roseinfer tune 3: ")) != NULL;
         n_gpus++) {
        char gpu[100];
        rose_gemm_tuned t = {0};
        at += strlen("roseinfer tune 3: ");
        snprintf(gpu, sizeof gpu, "%.*s", (int)strcspn(at, "\n"), at);
        const char *end = strstr(at, "roseinfer tune ");
        uint32_t n = 0;
        for (const char *p = at; *p != '\0' && p != end; p++)
            n += *p == '\n';
        assert_int_equal(rose_gemm_tuned_add(&t, rose_gemm_shipped, gpu), 0);
        assert_int_equal(t.n_lines + 1, n);
        for (uint32_t i = 0; i < t.n_lines; i++)
            assert_true(t.lines[i].us <= 0.97f * t.lines[i].guess_us + 0.01f);
        rose_gemm_tuned_free(&t);
    }
    assert_true(n_gpus > 0);
}

/* A model of steps: each of the first four choices adds its time to a step of 1,000 us, and
 * choices 0 and 1 together add one more time. The time limit is over after `limit` calls; 0: never;
 * -1: before the first one. */
typedef struct model {
    double us[4], together;
    int calls, limit;
    bool fails;
} model;

static rose_status time_of(void *by, uint32_t choices, double *us, rose_err *err)
{
    model *m = by;
    m->calls++;
    if (m->fails && m->calls == 2) return rose_fail(err, ROSE_E_BACKEND, "lost");
    *us = m->limit != 0 && m->calls > m->limit ? INFINITY : 1000;
    for (uint32_t i = 0; i < 4; i++)
        if ((choices >> i & 1) != 0) *us += m->us[i];
    if ((choices & 3) == 3) *us += m->together;
    return ROSE_OK;
}

static uint32_t kept(model m, uint32_t n)
{
    uint32_t keep = 99;
    rose_err err = {""};
    assert_int_equal(rose_gemm_keep(n, time_of, &m, &keep, &err), ROSE_OK);
    return keep;
}

/* Choices stay if together they make a step faster, without those that make it slower. */
static void test_keep(void **state)
{
    model lost = {.us = {-50}, .fails = true};
    uint32_t keep = 99;
    rose_err err = {""};
    (void)state;
    assert_int_equal(kept((model){.us = {-50}}, 0), 0);
    assert_int_equal(kept((model){.us = {-50}}, 1), 1);
    assert_int_equal(kept((model){.us = {-5}}, 1), 0); /* too little */
    assert_int_equal(kept((model){.us = {60}}, 1), 0);
    assert_int_equal(kept((model){.us = {60, 80, 20, 40}}, 4), 0);
    assert_int_equal(kept((model){.us = {60, -80, 20, -40}}, 4), 2 + 8);
    assert_int_equal(kept((model){.us = {30, 30, 20, -10}, .together = -120}, 4), 1 + 2 + 8);
    assert_int_equal(kept((model){.us = {60, -80}}, 2), 2);
    assert_int_equal(kept((model){.us = {-60, 80, -20, 40}}, 32), UINT32_MAX - 2 - 8);
    /* The time limit is over before all steps, after those without choices, after those with all of
     * them, and after those without the first one. */
    assert_int_equal(kept((model){.us = {-50}, .limit = -1}, 1), 0);
    assert_int_equal(kept((model){.us = {-50}, .limit = 1}, 4), 0);
    assert_int_equal(kept((model){.us = {20, 10, -80}, .limit = 2}, 4), 15);
    assert_int_equal(kept((model){.us = {20, 10, -80}, .limit = 3}, 4), 15 - 1);
    assert_int_equal(kept((model){.us = {20, 10, 80}, .limit = 2}, 4), 0);
    assert_int_equal(rose_gemm_keep(1, time_of, &lost, &keep, &err), ROSE_E_BACKEND);
    assert_int_equal(keep, 0);
}

/* The tuned kernel comes before the cheapest, the forced one before it; one that does not take the
 * shape is passed over. */
static void test_choice(void **state)
{
    static const rose_cuda_device device = {.sms = 132, .cc = 90, .bytes_us = 3e6, .mhz = 1700};
    static const float one = 1;
    rose_gemm_tuned t = {0};
    rose_cuda_launch at = {.device = &device, .type = ROSE_BF16};
    rose_cuda_matrix m = {.w = NULL};
    rose_gemm_io io = {.end = ROSE_END_ROWS, .rows = 2000, .h = &one};
    (void)state;
    rose_cuda_matrix_shape(&m, ROSE_BF16, 1024, 4096, 1, 0, false);
    const rose_gemm_kernel *cheapest = rose_gemm_choose(&at, &m, &io);
    const bool small = strcmp(cheapest->name, "tiles-64x64") == 0;
    const char *name = small ? "tiles-128x128" : "tiles-64x64";
    rose_gemm_tuning l = line_of(4096, 2048, name);
    assert_int_equal(rose_gemm_tuned_set(&t, &l), ROSE_OK);
    at.tuned = &t;
    assert_string_equal(rose_gemm_choose(&at, &m, &io)->name, name);
    io.rows = 3000; /* another bucket */
    assert_string_not_equal(rose_gemm_choose(&at, &m, &io)->name, name);
    io.rows = 2000;
    at.forced = cheapest;
    assert_ptr_equal(rose_gemm_choose(&at, &m, &io), cheapest);
    at.forced = NULL;
    l.kernel = rose_gemm_named("wide-128x128"); /* not on this GPU */
    assert_int_equal(rose_gemm_tuned_set(&t, &l), ROSE_OK);
    assert_ptr_equal(rose_gemm_choose(&at, &m, &io), cheapest);
    rose_gemm_tuned_free(&t);
}

/* A line of one type serves the other one, unless that has its own. */
static void test_other_type(void **state)
{
    static const rose_cuda_device device = {.sms = 132, .cc = 90, .bytes_us = 3e6, .mhz = 1700};
    static const float one = 1;
    rose_gemm_tuned t = {0};
    rose_cuda_launch at = {.device = &device, .type = ROSE_F16, .tuned = &t};
    rose_cuda_matrix m = {.w = NULL};
    const rose_gemm_io io = {.end = ROSE_END_ROWS, .rows = 2000, .h = &one};
    (void)state;
    rose_cuda_matrix_shape(&m, ROSE_F16, 1024, 4096, 1, 0, false);
    for (int i = 0; i < 2; i++) {
        const rose_gemm_tuning l = line_of(4096, 2048, i == 0 ? "tiles-64x64" : "tiles-128x128");
        assert_int_equal(rose_gemm_tuned_set(&t, &l), ROSE_OK);
        assert_ptr_equal(rose_gemm_choose(&at, &m, &io), l.kernel);
    }
    rose_gemm_tuning own = line_of(4096, 2048, "tiles-64x64");
    own.format = ROSE_F16;
    assert_int_equal(rose_gemm_tuned_set(&t, &own), ROSE_OK);
    assert_ptr_equal(rose_gemm_choose(&at, &m, &io), own.kernel);
    rose_gemm_tuned_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets),
        cmocka_unit_test_setup_teardown(test_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_lines, setup, teardown),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_other_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
