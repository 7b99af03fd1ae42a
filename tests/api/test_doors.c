/* API keys: how they are read, and how a request's header is compared with them. traceparent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/doors.h"
#include "base/log.h"

static char g_path[] = "/tmp/rose-keys-XXXXXX";

static void write_file(const char *text, size_t len)
{
    FILE *f = fopen(g_path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static rose_api_keys *keys_of(const char *text)
{
    const rose_opt_list none = {0};
    rose_api_keys *k;
    rose_err err = {{0}};
    write_file(text, strlen(text));
    if (rose_api_keys_read(&k, &none, g_path, NULL, &err) != ROSE_OK) fail_msg("%s", err.msg);
    return k;
}

static bool holds(const rose_api_keys *k, const char *s)
{
    return rose_api_keys_hold(k, s, strlen(s));
}

static void test_compare(void **state)
{
    (void)state;
    char longest[ROSE_API_KEY_BYTES + 2];
    memset(longest, 'k', sizeof longest);
    longest[ROSE_API_KEY_BYTES] = '\0';
    char file[2 * sizeof longest];
    snprintf(file, sizeof file, "alpha\n%s\nb\n", longest);
    rose_api_keys *k = keys_of(file);
    assert_int_equal(rose_api_keys_count(k), 3);
    assert_true(holds(k, "alpha"));
    assert_true(holds(k, "b"));
    assert_true(holds(k, longest));
    for (size_t i = 0; i < 5; i++) { /* one bit of each byte changed */
        for (int bit = 0; bit < 8; bit++) {
            char s[] = "alpha";
            s[i] = (char)(s[i] ^ (1 << bit));
            assert_false(rose_api_keys_hold(k, s, 5));
        }
    }
    static const char *const wrong[] = {"",      "a",       "alph", "alphaa",
                                        "ALPHA", "alpha\n", "bb",   "alpha,b"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(holds(k, wrong[i]));
    assert_false(rose_api_keys_hold(k, "alpha\0", 6)); /* zeros also pad the key */
    assert_false(rose_api_keys_hold(k, "b\0\0", 3));
    longest[ROSE_API_KEY_BYTES - 1] = 'x';
    assert_false(holds(k, longest));
    longest[ROSE_API_KEY_BYTES - 1] = longest[ROSE_API_KEY_BYTES] = 'k';
    assert_false(rose_api_keys_hold(k, longest, ROSE_API_KEY_BYTES + 1));
    rose_api_keys_free(k);
}

static void test_bearer(void **state)
{
    (void)state;
    assert_string_equal(rose_api_bearer("Bearer x"), "x");
    assert_string_equal(rose_api_bearer("bEARER  x"), "x");
    assert_string_equal(rose_api_bearer("Bearer x y"), "x y"); /* no key has a space */
    static const char *const none[] = {"",        "Bearer", "Bearer ",   "Bearer   ", "Bearerx",
                                       "Basic x", "Bear x", "Bearer\tx", "x",         " Bearer x"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(rose_api_bearer(none[i]));
}

static void expect_bad_file(const char *text, size_t len, const char *why)
{
    const rose_opt_list none = {0};
    rose_api_keys *k = (rose_api_keys *)(uintptr_t)1;
    rose_err err = {{0}};
    write_file(text, len);
    assert_int_not_equal(rose_api_keys_read(&k, &none, g_path, NULL, &err), ROSE_OK);
    assert_null(k);
    if (strstr(err.msg, why) == NULL || strstr(err.msg, g_path) == NULL) fail_msg("%s", err.msg);
    if (strstr(err.msg, "SECRET") != NULL) fail_msg("the message shows a key: %s", err.msg);
}

static void test_files(void **state)
{
    (void)state;
    rose_api_keys *k = keys_of("one\ntwo"); /* the last line may lack its end */
    assert_true(holds(k, "one") && holds(k, "two"));
    rose_api_keys_free(k);
    expect_bad_file("", 0, "the file is empty");
    expect_bad_file("\n", 1, "line 1: the line is empty");
    expect_bad_file("SECRET\n\nb\n", 10, "line 2: the line is empty");
    expect_bad_file("a\nSECRET\r\n", 10, "line 2: the line ends in CRLF");
    expect_bad_file("SECRET KEY\n", 11, "line 1: byte 7 of the key is not a visible ASCII");
    expect_bad_file("SECRET\0\n", 8, "byte 7 of the key is not a visible ASCII");
    expect_bad_file("\xef\xbb\xbfSECRET\n", 10, "byte 1 of the key is not a visible ASCII");
    char *big = malloc(ROSE_API_MAX_KEY_FILE + 1);
    assert_non_null(big);
    memset(big, 'S', ROSE_API_MAX_KEY_FILE + 1);
    expect_bad_file(big, ROSE_API_KEY_BYTES + 1, "the key has 257 bytes; at most 256");
    expect_bad_file(big, ROSE_API_MAX_KEY_FILE + 1, "the file has more than 524288 bytes");
    for (size_t i = 0; i <= ROSE_API_MAX_KEYS; i++)
        memcpy(big + 2 * i, "k\n", 2);
    expect_bad_file(big, 2 * ROSE_API_MAX_KEYS + 2, "line 1025: more than 1024 API keys");
    free(big);
}

/* Variables of other servers. */
static void test_other_places(void **state)
{
    (void)state;
    rose_api_keys *k;
    rose_err err = {{0}};
    assert_int_equal(rose_api_keys_read_others(&k, NULL, NULL, &err), ROSE_OK);
    assert_null(k); /* open */
    assert_int_equal(rose_api_keys_read_others(&k, "", ",", &err), ROSE_OK);
    assert_null(k);
    assert_int_equal(rose_api_keys_read_others(&k, "v", "a,,b", &err), ROSE_OK);
    assert_int_equal(rose_api_keys_count(k), 3);
    assert_true(holds(k, "v") && holds(k, "a") && holds(k, "b") && !holds(k, "a,,b"));
    rose_api_keys_free(k);
    assert_int_equal(rose_api_keys_read_others(&k, NULL, "a b", &err), ROSE_E_INVAL);
    assert_null(k);
    assert_non_null(strstr(err.msg, "variable LLAMA_API_KEY: byte 2 of the key"));
}

static void test_places(void **state)
{
    (void)state;
    rose_opt_list list = {0};
    rose_api_keys *k;
    rose_err err = {{0}};
    assert_int_equal(rose_api_keys_read(&k, &list, NULL, NULL, &err), ROSE_OK);
    assert_null(k); /* open */
    write_file("f\n", 2);
    assert_true(rose_opt_list_add(&list, "l,m"));
    assert_int_equal(rose_api_keys_read(&k, &list, g_path, "e,e", &err), ROSE_OK);
    assert_int_equal(rose_api_keys_count(k), 4);
    assert_true(holds(k, "l") && holds(k, "m") && holds(k, "f") && holds(k, "e,e"));
    rose_api_keys_free(k);
    assert_int_equal(rose_api_keys_read(&k, &list, NULL, "", &err), ROSE_E_INVAL);
    assert_string_equal(err.msg, "the environment variable ROSEINFER_API_KEY: the key is empty");
    assert_int_equal(rose_api_keys_read(&k, &list, "/nonexistent/keys", NULL, &err), ROSE_E_IO);
    assert_non_null(strstr(err.msg, "--api-key-file /nonexistent/keys: No such file"));
    assert_int_equal(rose_api_keys_read(&k, &list, "/tmp", NULL, &err), ROSE_E_IO);
    assert_non_null(strstr(err.msg, "Is a directory"));
    assert_true(rose_opt_list_add(&list, "SECRET KEY"));
    assert_int_equal(rose_api_keys_read(&k, &list, NULL, NULL, &err), ROSE_E_INVAL);
    assert_null(k);
    assert_null(strstr(err.msg, "SECRET"));
}

static void test_trace(void **state)
{
    (void)state;
    static const char good[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    rose_api_trace t;
    char s[80];
    assert_true(rose_api_trace_read(&t, good));
    assert_string_equal(t.trace_id, "0af7651916cd43dd8448eb211c80319c");
    assert_string_equal(t.parent_id, "b7ad6b7169203331");
    snprintf(s, sizeof s, "cc%s-later", good + 2);
    assert_true(rose_api_trace_read(&t, s));
    assert_string_equal(t.trace_id, "0af7651916cd43dd8448eb211c80319c");
    for (size_t i = 0; i < sizeof good - 1; i++) { /* each byte wrong, and each length too short */
        static const char wrong[] = {'g', 'A', '"', '\n', ' ', '\xff'};
        for (size_t k = 0; k < sizeof wrong; k++) {
            memcpy(s, good, sizeof good);
            s[i] = wrong[k];
            assert_false(rose_api_trace_read(&t, s));
            assert_string_equal(t.trace_id, "");
            assert_string_equal(t.parent_id, "");
        }
        memcpy(s, good, sizeof good);
        s[i] = '\0';
        assert_false(rose_api_trace_read(&t, s));
    }
    static const char *const bad[] = {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-",
                                      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
                                      "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
                                      "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                      "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                                      "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(rose_api_trace_read(&t, bad[i]));
}

static int open_file(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    const int fd = mkstemp(g_path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(g_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compare), cmocka_unit_test(test_bearer),
        cmocka_unit_test(test_files),   cmocka_unit_test(test_other_places),
        cmocka_unit_test(test_places),  cmocka_unit_test(test_trace)};
    return cmocka_run_group_tests_name("doors", tests, open_file, remove_file);
}
