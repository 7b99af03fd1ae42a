/* Locking and touching memory: what the kernel then says of it, and the refusal that names the
 * limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memlock.h"

enum { BYTES = 4 << 20 };

static void *map(void)
{
    void *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    madvise(p, BYTES, MADV_NOHUGEPAGE);
    return p;
}

static size_t pages_there(void *p)
{
    static unsigned char in[BYTES / 4096];
    size_t n = 0;
    assert_int_equal(mincore(p, BYTES, in), 0);
    for (size_t i = 0; i < sizeof in; i++)
        n += in[i] & 1;
    return n;
}

static void test_lock(void **state)
{
    (void)state;
    rose_err err = {""};
    uint64_t before = rose_memory_locked();
    if (rose_memory_lock_probe(BYTES, "test", &err) != ROSE_OK) {
        print_message("skipped: %s\n", err.msg);
        skip();
    }
    assert_int_equal(rose_memory_locked(), before); /* a probe leaves nothing */
    uint8_t *p = map();
    assert_int_equal(rose_memory_lock(p, BYTES, "test", &err), ROSE_OK);
    assert_int_equal(rose_memory_locked(), before + BYTES);
    munmap(p, BYTES);
    assert_int_equal(rose_memory_locked(), before);
    assert_int_equal(rose_memory_lock(NULL, 0, "test", &err), ROSE_OK);
    assert_int_equal(rose_memory_lock_probe(0, "test", &err), ROSE_OK);
}

/* In a child of its own: a small limit, and no privilege to pass it. */
static int refused_in_child(void)
{
    struct rlimit limit = {64 << 10, 64 << 10};
    rose_err err = {""};
    uint8_t *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return 10;
    if (geteuid() == 0 && setuid(65534) != 0) return 11;
    if (rose_memory_lock_probe(BYTES, "probed", &err) != ROSE_E_NOMEM) return 1;
    if (strncmp(err.msg, "probed: cannot lock 4.0 MiB", 27) != 0) return 2;
    if (strstr(err.msg, "RLIMIT_MEMLOCK is a limit of 0.1 MiB") == NULL) return 3;
    if (strstr(err.msg, "ulimit -l unlimited") == NULL) return 4;
    if (rose_memory_lock(p, BYTES, "locked", &err) != ROSE_E_NOMEM) return 5;
    if (rose_memory_locked() != 0) return 6;
    if (rose_memory_lock_probe(4096, "little", &err) != ROSE_OK) return 7; /* within the limit */
    return 0;
}

static void test_refused(void **state)
{
    (void)state;
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(refused_in_child());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 11) skip(); /* root that may not become anybody else */
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_touch(void **state)
{
    (void)state;
    uint8_t *p = map();
    for (size_t i = 0; i < 100; i++) /* what is there stays */
        p[i] = (uint8_t)i;
    assert_true(pages_there(p) < BYTES / 4096);
    rose_memory_touch(p + 100, 0);
    rose_memory_touch(p, 1);
    assert_true(pages_there(p) < BYTES / 4096);
    rose_memory_touch(p + 5, BYTES - 5); /* from the middle of a page to the last byte */
    assert_int_equal(pages_there(p), BYTES / 4096);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(p[i], i < 100 ? i : 0);
    munmap(p, BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_touch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
