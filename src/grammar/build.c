/* grammar/build.c - memory, limits and errors of one compile. Chunks are freed together; single
 * objects are not. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"

enum { CHUNK_BYTES = 32768, ALIGN = 16, BYTES_A_STEP = 64 };

struct gr_chunk {
    struct gr_chunk *next;
    size_t used, cap;
    _Alignas(ALIGN) uint8_t data[];
};

void rose_gr_fail(gr_build *b, rose_status st, const char *fmt, ...)
{
    char text[ROSE_ERR_CAP];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    b->st = rose_fail(b->err, st, "%s: %s", b->what, text);
    longjmp(b->trap, 1);
}

static void add_chunk(gr_build *b, size_t n)
{
    size_t cap = n > CHUNK_BYTES ? n : CHUNK_BYTES;
    struct gr_chunk *c;
    if (cap > b->opts.max_compile_bytes - b->memory)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "compiling needs more than %zu MiB of memory",
                     b->opts.max_compile_bytes >> 20);
    if ((c = malloc(sizeof *c + cap)) == NULL) rose_gr_fail(b, ROSE_E_NOMEM, "out of memory");
    *c = (struct gr_chunk){.next = b->chunks[b->arena], .cap = cap};
    b->chunks[b->arena] = c;
    b->memory += cap;
}

void *rose_gr_take(gr_build *b, size_t n)
{
    void *p;
    rose_gr_work(b, n / BYTES_A_STEP);
    if (n > b->opts.max_compile_bytes) n = b->opts.max_compile_bytes; /* add_chunk refuses it */
    n = (n + ALIGN - 1) / ALIGN * ALIGN;
    struct gr_chunk *c = b->chunks[b->arena];
    if (c == NULL || n > c->cap - c->used) add_chunk(b, n);
    c = b->chunks[b->arena];
    p = c->data + c->used;
    c->used += n;
    return memset(p, 0, n);
}

void *rose_gr_grown(gr_build *b, void *old, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return old;
    size_t more = *cap < 16 ? 16 : *cap * 2;
    if (more > b->opts.max_compile_bytes / size)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "compiling needs more than %zu MiB of memory",
                     b->opts.max_compile_bytes >> 20);
    void *p = rose_gr_take(b, more * size);
    if (n > 0) memcpy(p, old, n * size);
    *cap = more;
    return p;
}

void rose_gr_chunks_free(struct gr_chunk *c)
{
    while (c != NULL) {
        struct gr_chunk *next = c->next;
        free(c);
        c = next;
    }
}

void rose_gr_scratch_begin(gr_build *b)
{
    b->arena = 1;
}

void rose_gr_scratch_pause(gr_build *b)
{
    b->arena = 0;
}

void rose_gr_scratch_end(gr_build *b)
{
    b->arena = 0;
    for (const struct gr_chunk *c = b->chunks[1]; c != NULL; c = c->next)
        b->memory -= c->cap;
    rose_gr_chunks_free(b->chunks[1]);
    b->chunks[1] = NULL;
}

void rose_gr_work(gr_build *b, uint64_t n)
{
    b->work += n + 1;
    if (b->work > b->opts.max_work)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "compiling takes more than %llu steps",
                     (unsigned long long)b->opts.max_work);
}

rose_json *rose_gr_keep(gr_build *b, rose_json *made)
{
    if (b->made == NULL) b->made = rose_json_array();
    if (made == NULL || rose_json_append_new(b->made, made) != 0)
        rose_gr_fail(b, ROSE_E_NOMEM, "out of memory");
    rose_gr_work(b, 10);
    return made;
}

void rose_gr_enter(gr_build *b)
{
    if (++b->depth > b->opts.max_depth)
        rose_gr_fail(b, ROSE_E_UNSUPPORTED, "nested more than %u deep", b->opts.max_depth);
}

void rose_gr_leave(gr_build *b)
{
    b->depth--;
}
