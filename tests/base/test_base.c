/* tests/base/test_base.c - status, buffers, files, log lines, Philox. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/progress.h"
#include "log_capture.h"

static void test_status(void **state)
{
    rose_err err;
    char big[2000];
    (void)state;
    for (int a = ROSE_OK; a <= ROSE_E_INTERNAL; a++) {
        for (int b = ROSE_OK; b < a; b++) /* names are distinct */
            assert_string_not_equal(rose_status_name((rose_status)a),
                                    rose_status_name((rose_status)b));
        assert_string_not_equal(rose_status_name((rose_status)a), "unknown");
    }
    assert_string_equal(rose_status_name(ROSE_E_NOTFOUND), "notfound");
    assert_string_equal(rose_status_name((rose_status)(ROSE_E_INTERNAL + 1)), "unknown");
    assert_int_equal(rose_fail(NULL, ROSE_E_IO, "%d", 1), ROSE_E_IO);
    assert_int_equal(rose_fail(&err, ROSE_E_FORMAT, "a\nb\x1b[0m\x7f %s %d", "t", 7),
                     ROSE_E_FORMAT);
    assert_string_equal(err.msg, "a?b?[0m? t 7");
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    rose_fail(&err, ROSE_E_IO, "%s", big);
    assert_int_equal(strlen(err.msg), ROSE_ERR_CAP - 1);
}

static void test_buf(void **state)
{
    rose_buf b = {0};
    (void)state;
    rose_buf_free(&b);
    assert_int_equal(rose_buf_add(&b, NULL, 0), ROSE_OK);
    assert_null(b.data);
    assert_string_equal(rose_buf_str(&b), ""); /* an empty buffer also has a string */
    assert_int_equal(b.len, 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(rose_buf_addf(&b, "%03d,", i), ROSE_OK);
    assert_int_equal(b.len, 4000);
    assert_int_equal(strlen(rose_buf_str(&b)), 4000);
    assert_memory_equal(b.data, "000,001,", 8);
    assert_memory_equal(b.data + 3996, "999,", 4);

    size_t cap = b.cap; /* an impossible size changes nothing */
    assert_int_equal(rose_buf_reserve(&b, SIZE_MAX), ROSE_E_NOMEM);
    assert_int_equal(rose_buf_reserve(&b, SIZE_MAX / 2), ROSE_E_NOMEM);
    assert_int_equal(rose_buf_reserve(&b, SIZE_MAX - b.len), ROSE_E_NOMEM);
    assert_int_equal(b.cap, cap);
    assert_int_equal(b.len, 4000);
    assert_int_equal(rose_buf_reserve(&b, b.cap - b.len), ROSE_OK); /* room is there */
    assert_int_equal(b.cap, cap);
    rose_buf_free(&b);
    assert_null(b.data);
    assert_int_equal(b.cap, 0);
}

static void write_file(const char *path, const char *text, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), (ssize_t)n);
    close(fd);
}

static void test_file(void **state)
{
    char dir[] = "/tmp/rose-base-XXXXXX";
    char path[64], empty[64], none[64];
    rose_buf b = {0};
    rose_map m;
    rose_err err = {""};
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    snprintf(empty, sizeof empty, "%s/empty", dir);
    snprintf(none, sizeof none, "%s/none", dir);
    write_file(path, "ab\0cd", 5);
    write_file(empty, "", 0);

    assert_int_equal(rose_buf_add(&b, "x", 1), ROSE_OK);
    assert_int_equal(rose_file_read(&b, path, 5, &err), ROSE_OK); /* appends; the limit is exact */
    assert_int_equal(b.len, 6);
    assert_memory_equal(b.data, "xab\0cd", 6);
    assert_int_equal(rose_file_read(&b, path, 4, &err), ROSE_E_FORMAT);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(b.len, 6); /* a failure leaves the content */
    assert_int_equal(rose_file_read(&b, none, 4, &err), ROSE_E_NOTFOUND);
    assert_non_null(strstr(err.msg, none));
    assert_int_equal(rose_file_read(&b, dir, 1 << 20, &err), ROSE_E_IO);
    assert_int_equal(rose_file_read(&b, empty, 0, &err), ROSE_OK);
    assert_int_equal(b.len, 6);
    rose_buf_free(&b);

    assert_int_equal(rose_file_map(&m, path, &err), ROSE_OK);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "ab\0cd", 5);
    rose_file_unmap(&m);
    assert_null(m.data);
    rose_file_unmap(&m); /* twice is once */
    assert_int_equal(rose_file_map(&m, empty, &err), ROSE_OK);
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    rose_file_unmap(&m);
    assert_int_equal(rose_file_map(&m, none, &err), ROSE_E_NOTFOUND);
    assert_int_equal(rose_file_map(&m, dir, &err), ROSE_E_IO);

    assert_true(rose_file_exists(path));
    assert_true(rose_file_exists(empty));
    assert_false(rose_file_exists(none));
    assert_false(rose_file_exists(dir));
    unlink(path);
    unlink(empty);
    rmdir(dir);
}

/* What stands in the place of a file that somebody meant to be there. */
static void test_files_that_are_not_there(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    char dir[] = "/tmp/rose_links_XXXXXX", link[64], lfs[64], good[64];
    rose_err err;
    rose_buf b = {0};
    rose_map m;
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(lfs, sizeof lfs, "%s/lfs", dir);
    snprintf(good, sizeof good, "%s/good", dir);
    assert_int_equal(symlink("../blobs/gone", link), 0);
    assert_true(rose_file_exists(link)); /* so that it is opened, and named */
    assert_int_equal(rose_file_check_link(link, &err), ROSE_E_IO);
    assert_int_equal(rose_file_read(&b, link, 100, &err), ROSE_E_IO);
    assert_non_null(strstr(err.msg, link));
    assert_non_null(strstr(err.msg, "'../blobs/gone', which does not exist"));
    assert_int_equal(rose_file_map(&m, link, &err), ROSE_E_IO);
    assert_non_null(strstr(err.msg, "'../blobs/gone', which does not exist"));
    assert_null(m.data);

    write_file(lfs, pointer, sizeof pointer - 1);
    assert_int_equal(rose_buf_add(&b, "x", 1), ROSE_OK);
    assert_int_equal(rose_file_read(&b, lfs, 100, &err), ROSE_E_FORMAT);
    assert_non_null(strstr(err.msg, "run \"git lfs pull\""));
    assert_int_equal(b.len, 1);
    assert_int_equal(rose_file_map(&m, lfs, &err), ROSE_E_FORMAT);
    assert_non_null(strstr(err.msg, "run \"git lfs pull\""));
    assert_null(m.data);
    unlink(lfs);
    write_file(lfs, pointer, 22); /* a byte less than the mark */
    assert_int_equal(rose_file_read(&b, lfs, 100, &err), ROSE_OK);

    unlink(link);
    write_file(good, "ab", 2);
    assert_int_equal(symlink("good", link), 0);
    assert_int_equal(rose_file_check_link(link, &err), ROSE_OK);
    assert_int_equal(rose_file_check_link(good, &err), ROSE_OK);
    assert_int_equal(rose_file_read(&b, link, 100, &err), ROSE_OK);
    rose_buf_free(&b);
    unlink(link);
    unlink(lfs);
    unlink(good);
    rmdir(dir);
}

/* What log lines look like on stderr, read back from a pipe put in its place. */
static size_t logged(char *out, size_t cap, rose_log_level level, const char *text)
{
    int p[2], old = dup(STDERR_FILENO);
    assert_int_equal(pipe(p), 0);
    assert_int_equal(fcntl(p[0], F_SETFL, O_NONBLOCK), 0);
    dup2(p[1], STDERR_FILENO);
    rose_log(level, "room", "%s", text);
    dup2(old, STDERR_FILENO);
    ssize_t n = read(p[0], out, cap - 1);
    close(p[0]);
    close(p[1]);
    close(old);
    if (n < 0) n = 0;
    out[n] = '\0';
    return (size_t)n;
}

static void test_log(void **state)
{
    char line[4096], big[3000];
    rose_log_level level;
    (void)state;
    assert_int_equal(rose_log_parse_level("warn", &level), ROSE_OK);
    assert_int_equal(level, ROSE_LOG_WARN);
    assert_int_equal(rose_log_parse_level("off", &level), ROSE_OK);
    assert_int_equal(level, ROSE_LOG_OFF);
    assert_int_equal(rose_log_parse_level("WARN", &level), ROSE_E_INVAL);
    assert_int_equal(rose_log_parse_level("", &level), ROSE_E_INVAL);

    rose_log_set_level(ROSE_LOG_INFO);
    assert_int_equal(logged(line, sizeof line, ROSE_LOG_DEBUG, "no"), 0);
    assert_true(logged(line, sizeof line, ROSE_LOG_WARN, "a\nb\x1b[2J\x7f") > 0);
    assert_true(strlen(line) > 25 && line[10] == 'T' && line[23] == 'Z');
    assert_string_equal(line + 24, " WARN room: a?b?[2J?\n");
    memset(big, 'y', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    size_t n = logged(line, sizeof line, ROSE_LOG_ERROR, big); /* cut, but a line */
    assert_true(n > 900 && n <= 1024);
    assert_int_equal(line[n - 1], '\n');
    rose_log_set_level(ROSE_LOG_OFF);
    assert_int_equal(logged(line, sizeof line, ROSE_LOG_ERROR, "no"), 0);
    rose_log_set_level(ROSE_LOG_INFO);
}

/* Known answers of Random123's kat_vectors for philox4x32-10. */
/* A wait is silent in its first second; without a terminal it then writes lines. */
static void test_waits(void **state)
{
    (void)state;
    rose_progress p;
    log_begin();
    rose_progress_wait(&p, "cpu", "loading weights", 30);
    p.tty = false;
    rose_progress_update(&p, 3, "layers");
    const bool in_time = rose_now_ns() - p.start_ns < UINT64_C(1000000000);
    p.start_ns -= UINT64_C(2000000000); /* two seconds ago */
    rose_progress_update(&p, 12, "layers");
    p.last_ns = rose_now_ns();
    rose_progress_update(&p, 13, "layers"); /* no second line at once */
    p.last_ns -= UINT64_C(5000000000);
    rose_progress_update(&p, 25, "layers");
    rose_progress_end(&p);
    rose_progress_wait(&p, NULL, "model.safetensors", 100);
    p.tty = false;
    p.start_ns -= UINT64_C(2000000000);
    rose_progress_update(&p, 40, "MB");
    rose_progress_wait(&p, "cpu", "loading weights", 30);
    p.tty = true;
    p.start_ns -= UINT64_C(2000000000);
    rose_progress_allow_waits(true);
    rose_progress_update(&p, 15, "layers");
    rose_log(ROSE_LOG_INFO, "test", "over the bar");
    rose_progress_end(&p);
    rose_log(ROSE_LOG_INFO, "test", "no bar");
    rose_progress_allow_waits(false);
    char *text = log_end();
    assert_true(!in_time || strstr(text, " 3 of 30") == NULL);
    assert_non_null(strstr(text, "INFO cpu: loading weights: 12 of 30 layers, "));
    assert_null(strstr(text, "13 of 30"));
    assert_non_null(strstr(text, "INFO cpu: loading weights: 25 of 30 layers, "));
    assert_non_null(strstr(text, "roseinfer: model.safetensors: 40 of 100 MB, "));
    assert_non_null(strstr(text, "loading weights [###############...............]  50%  15/30"));
    assert_int_equal(log_count(text, "\r\033[K"), 2); /* before a line of the log, and at the end */
    free(text);
}

static void test_philox(void **state)
{
    static const struct {
        uint32_t ctr[4], key[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        uint32_t out[4];
        rose_philox4x32(kat[i].ctr, kat[i].key, out);
        assert_memory_equal(out, kat[i].want, sizeof out);
    }
    /* the uniform: the top 24 bits of the first word, of the counter and key as documented */
    assert_true(rose_philox_uniform(0, 0, 0) == (float)(0x6627e8d5 >> 8) / 16777216.0f);
    const uint32_t ctr[4] = {7, 3, 0, 0}, key[2] = {0x89abcdef, 0x01234567};
    uint32_t out[4];
    rose_philox4x32(ctr, key, out);
    assert_true(rose_philox_uniform(0x0123456789abcdefu, 7, 3) == (float)(out[0] >> 8) * 0x1p-24f);
    double sum = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        float u = rose_philox_uniform(42, i, 0);
        assert_true(u >= 0 && u < 1);
        sum += (double)u;
    }
    assert_true(sum > 49500 && sum < 50500); /* 5 standard deviations are 456 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status), cmocka_unit_test(test_buf),
        cmocka_unit_test(test_file),   cmocka_unit_test(test_files_that_are_not_there),
        cmocka_unit_test(test_log),    cmocka_unit_test(test_waits),
        cmocka_unit_test(test_philox),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
