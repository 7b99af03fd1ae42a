/* tests/failing_alloc.h - the process's allocator, which can be told to refuse the Nth allocation,
 * once or from then on, and counts the blocks that live. Include first, in one file of a program:
 * it defines malloc and its kin. HAVE_OWN_ALLOCATOR is defined where the build brings an allocator
 * of its own (sanitizers, the allocation guard): then nothing is replaced, and the program is to
 * end through failing_alloc_skip(). Any thread may allocate; one arms. */
#ifndef ROSE_TESTS_FAILING_ALLOC_H
#define ROSE_TESTS_FAILING_ALLOC_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_OWN_ALLOCATOR 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAVE_OWN_ALLOCATOR 1
#endif
#endif
#ifdef ROSE_ALLOC_GUARD /* the checked build routes these names elsewhere */
#define HAVE_OWN_ALLOCATOR 1
#endif

#ifdef HAVE_OWN_ALLOCATOR

static inline int failing_alloc_skip(void)
{
    puts("skipped: this build owns malloc, which the test would replace");
    return 77; /* tools/run_tests: a skip */
}

#else

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t s);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t a, size_t n);
void __libc_free(void *p);

static struct failing_alloc {
    _Atomic bool armed, from_then_on;
    _Atomic long count;   /* allocations since it was armed */
    _Atomic long fail_at; /* the number of the one to refuse; 0 = none */
    _Atomic long live;    /* blocks, at all times */
} falloc;

/* This thread's allocations are neither refused nor numbered: the test's own side. volatile: the
 * compiler knows malloc, and that it reads no variable of ours. */
static _Thread_local volatile bool falloc_exempt;

static bool falloc_refuse(void)
{
    if (!atomic_load(&falloc.armed) || falloc_exempt) return false;
    long n = atomic_fetch_add(&falloc.count, 1) + 1, at = atomic_load(&falloc.fail_at);
    if (n != at && !(atomic_load(&falloc.from_then_on) && n > at)) return false;
    errno = ENOMEM;
    return true;
}

static void *falloc_counted(void *p)
{
    if (p != NULL) atomic_fetch_add(&falloc.live, 1);
    return p;
}

#define EXPORTED __attribute__((visibility("default"))) /* so that libc uses them as well */

EXPORTED void *malloc(size_t n)
{
    return falloc_refuse() ? NULL : falloc_counted(__libc_malloc(n));
}

EXPORTED void *calloc(size_t n, size_t s)
{
    return falloc_refuse() ? NULL : falloc_counted(__libc_calloc(n, s));
}

EXPORTED void *aligned_alloc(size_t a, size_t n)
{
    return falloc_refuse() ? NULL : falloc_counted(__libc_memalign(a, n));
}

EXPORTED void *realloc(void *p, size_t n)
{
    if (falloc_refuse()) return NULL;
    return p == NULL ? falloc_counted(__libc_realloc(p, n)) : __libc_realloc(p, n);
}

EXPORTED void free(void *p)
{
    if (p != NULL) atomic_fetch_sub(&falloc.live, 1);
    __libc_free(p);
}

/* From here the nth allocation is refused (0: none, they are only numbered). */
static void falloc_arm(long nth, bool from_then_on)
{
    atomic_store(&falloc.count, 0);
    atomic_store(&falloc.fail_at, nth);
    atomic_store(&falloc.from_then_on, from_then_on);
    atomic_store(&falloc.armed, true);
}

/* True if the refusal came to pass. */
static bool falloc_disarm(void)
{
    atomic_store(&falloc.armed, false);
    return atomic_load(&falloc.count) >= atomic_load(&falloc.fail_at);
}

#endif
#endif
