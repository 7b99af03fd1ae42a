/* base/allocguard.h - proves that the token path does not allocate. Between begin and end, any
 * malloc, calloc, realloc, free or aligned_alloc of the calling thread aborts with a message. So
 * does a call that allocates or frees on the GPU (backend/cuda/guard.c).
 *
 * It works in the checked build, where the linker routes these calls through this file (--wrap).
 * In other builds it is empty. */
#ifndef ROSE_BASE_ALLOCGUARD_H
#define ROSE_BASE_ALLOCGUARD_H

#ifdef ROSE_ALLOC_GUARD
void rose_alloc_guard_begin(
    const char *what); /* what: a literal, named in the message. Calls may be nested. */
void rose_alloc_guard_end(void);
/* Aborts if the calling thread is in a guarded region. */
void rose_alloc_guard_check(const char *function);
#else
static inline void rose_alloc_guard_begin(const char *what)
{
    (void)what;
}
static inline void rose_alloc_guard_end(void)
{
}
#endif

#endif
