/* base/allocguard.c - see allocguard.h. */
#include "base/allocguard.h"

typedef int rose_allocguard_not_empty; /* ISO C wants a declaration in every unit */

#ifdef ROSE_ALLOC_GUARD

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local unsigned t_depth;
static _Thread_local const char *t_what;

void rose_alloc_guard_begin(const char *what)
{
    t_depth++;
    t_what = what;
}

void rose_alloc_guard_end(void)
{
    t_depth--;
}

void rose_alloc_guard_check(const char *fn)
{
    if (t_depth == 0) return;
    const char *parts[] = {"fatal: ", fn, " called within guarded region: ", t_what, "\n"};
    for (int i = 0; i < 5; i++) {
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0) break;
    }
    abort();
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t s);
void *__real_realloc(void *p, size_t n);
void __real_free(void *p);
void *__real_aligned_alloc(size_t a, size_t n);
int __real_posix_memalign(void **p, size_t a, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t s);
void *__wrap_realloc(void *p, size_t n);
void __wrap_free(void *p);
void *__wrap_aligned_alloc(size_t a, size_t n);
int __wrap_posix_memalign(void **p, size_t a, size_t n);

void *__wrap_malloc(size_t n)
{
    rose_alloc_guard_check("malloc");
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t s)
{
    rose_alloc_guard_check("calloc");
    return __real_calloc(n, s);
}

void *__wrap_realloc(void *p, size_t n)
{
    rose_alloc_guard_check("realloc");
    return __real_realloc(p, n);
}

void __wrap_free(void *p)
{
    if (p != NULL) rose_alloc_guard_check("free");
    __real_free(p);
}

void *__wrap_aligned_alloc(size_t a, size_t n)
{
    rose_alloc_guard_check("aligned_alloc");
    return __real_aligned_alloc(a, n);
}

int __wrap_posix_memalign(void **p, size_t a, size_t n)
{
    rose_alloc_guard_check("posix_memalign");
    return __real_posix_memalign(p, a, n);
}

#endif
