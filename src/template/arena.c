/* template/arena.c - memory, limits and errors of one compile or render. Chunks are freed together;
 * single objects are not: a render is short, so nothing in it needs to die earlier, and an error
 * may jump out of any depth without a leak.
 *
 * A template is a program of a stranger, so all that it can use up has a limit: memory, the length
 * of its output, the depth of calls, CPU time, and work. Work counts steps of the interpreter and
 * bytes that it touches. It is exact, so whether a template is refused does not depend on the
 * machine; CPU time is asked for only each CHECK_EVERY of work, because the clock is slow. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "template/template_internal.h"

enum {
    CHUNK_BYTES = 16384,
    ALIGN = 16,
    CHECK_EVERY = 1 << 20 /* work, less than a millisecond */
};

struct tpl_chunk {
    struct tpl_chunk *next;
    size_t used, cap;
    _Alignas(ALIGN) uint8_t data[];
};

__attribute__((format(printf, 3, 0))) static _Noreturn void fail_list(rose_tpl *t, rose_status st,
                                                                      const char *fmt, va_list args)
{
    char what[ROSE_ERR_CAP];
    vsnprintf(what, sizeof what, fmt, args);
    t->st = rose_fail(t->err, st, "chat template, line %u: %s", t->line, what);
    longjmp(t->trap, 1);
}

void rose_tpl_fail(rose_tpl *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail_list(t, ROSE_E_INVAL, fmt, args);
}

void rose_tpl_fail_with(rose_tpl *t, rose_status st, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fail_list(t, st, fmt, args);
}

static void add_chunk(rose_tpl *t, size_t n)
{
    size_t cap = n > CHUNK_BYTES ? n : CHUNK_BYTES;
    struct tpl_chunk *c;
    if (cap > t->max_memory - t->memory)
        rose_tpl_fail(t, "needs more than %zu MiB of memory", t->max_memory >> 20);
    if ((c = malloc(sizeof *c + cap)) == NULL) rose_tpl_fail_with(t, ROSE_E_NOMEM, "out of memory");
    *c = (struct tpl_chunk){.next = t->chunks, .cap = cap};
    t->chunks = c;
    t->memory += cap;
}

void *rose_tpl_take(rose_tpl *t, size_t n)
{
    void *p;
    rose_tpl_work(t, WORK_A_STEP + (uint64_t)n);
    if (n > t->max_memory)
        rose_tpl_fail(t, "needs more than %zu MiB of memory", t->max_memory >> 20);
    n = (n + ALIGN - 1) / ALIGN * ALIGN;
    if (t->chunks == NULL || n > t->chunks->cap - t->chunks->used) add_chunk(t, n);
    p = t->chunks->data + t->chunks->used;
    t->chunks->used += n;
    return memset(p, 0, n);
}

void *rose_tpl_array(rose_tpl *t, size_t n, size_t size)
{
    if (n > t->max_memory / size)
        rose_tpl_fail(t, "needs more than %zu MiB of memory", t->max_memory >> 20);
    return rose_tpl_take(t, n * size);
}

void *rose_tpl_grown(rose_tpl *t, const void *old, size_t n, size_t *cap, size_t size)
{
    size_t more = *cap < 8 ? 8 : *cap * 2;
    void *p = rose_tpl_array(t, more, size);
    if (n > 0) memcpy(p, old, n * size);
    *cap = more;
    return p;
}

void rose_tpl_chunks_free(struct tpl_chunk *c)
{
    while (c != NULL) {
        struct tpl_chunk *next = c->next;
        free(c);
        c = next;
    }
}

/* CPU time, because a busy machine must not fail a render that does little. */
void rose_tpl_limit_cpu(rose_tpl *t, uint32_t ms, uint64_t spent_ns)
{
    const uint64_t all = (uint64_t)ms * 1000000u;
    t->max_cpu_ms = ms;
    t->cpu_end_ns = rose_thread_cpu_ns() + (spent_ns < all ? all - spent_ns : 0);
}

void rose_tpl_check(rose_tpl *t)
{
    if (t->work > t->max_work)
        rose_tpl_fail(t, "takes more than %llu steps",
                      (unsigned long long)(t->max_work / WORK_A_STEP));
    /* relaxed: it only ends work that nobody waits for */
    if (t->stop != NULL && atomic_load_explicit(t->stop, memory_order_relaxed))
        rose_tpl_fail_with(t, ROSE_E_CLOSED, "stopped, because the client has left");
    if (t->max_cpu_ms > 0 && rose_thread_cpu_ns() > t->cpu_end_ns)
        rose_tpl_fail(t, "takes more than %u ms of CPU time", t->max_cpu_ms);
    t->check_at = t->max_work - t->work < CHECK_EVERY ? t->max_work + 1 : t->work + CHECK_EVERY;
}

void rose_tpl_enter(rose_tpl *t)
{
    if (++t->depth > t->max_depth) rose_tpl_fail(t, "is nested more than %u deep", t->max_depth);
}
