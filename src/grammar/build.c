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

/* Fails because a limit is reached, and says what most steps were spent for. */
static _Noreturn void fail_costly(gr_build *b, const char *limit)
{
    static const char *const names[N_COSTS] = {
        [COST_TEXT] = "reading its text",
        [COST_CHOICES] = "combinations of the choices that",
        [COST_SUBSETS] = "turning its patterns into automata",
        [COST_PRODUCTS] = "combining its patterns, names and bounds",
        [COST_LENGTHS] = "counting the characters of its patterns",
        [COST_RULES] = "checking its rules",
        [COST_PROGRAM] = "writing its states",
    };
    const char *keyword = "";
    char place[160] = "";
    gr_cost most = COST_TEXT;
    for (int i = 0; i < N_COSTS; i++)
        if (b->spent[i] > b->spent[most]) most = (gr_cost)i;
    if (b->schema != NULL) rose_gr_schema_place(b, &keyword, place, sizeof place);
    rose_gr_fail(
        b, ROSE_E_UNSUPPORTED,
        "too costly to compile: it needs more than %s, %u%% of the steps so far for %s%s%s%s%s",
        limit, (unsigned)(b->spent[most] * 100 / (b->work + 1)), names[most],
        most == COST_CHOICES ? " `" : "", most == COST_CHOICES ? keyword : "",
        most == COST_CHOICES ? "` gives" : "", place);
}

static _Noreturn void fail_memory(gr_build *b)
{
    char limit[48];
    snprintf(limit, sizeof limit, "%zu MiB of memory", b->opts.max_compile_bytes >> 20);
    fail_costly(b, limit);
}

static void add_chunk(gr_build *b, size_t n)
{
    size_t cap = n > CHUNK_BYTES ? n : CHUNK_BYTES;
    struct gr_chunk *c;
    if (cap > b->opts.max_compile_bytes - b->memory) fail_memory(b);
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
    if (more > b->opts.max_compile_bytes / size) fail_memory(b);
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

void rose_gr_scratch_begin(gr_build *b, gr_cost cost)
{
    b->arena = 1;
    b->outer_cost = b->cost;
    b->cost = cost;
}

void rose_gr_scratch_pause(gr_build *b)
{
    b->arena = 0;
}

void rose_gr_scratch_end(gr_build *b)
{
    b->arena = 0;
    b->cost = b->outer_cost;
    for (const struct gr_chunk *c = b->chunks[1]; c != NULL; c = c->next)
        b->memory -= c->cap;
    rose_gr_chunks_free(b->chunks[1]);
    b->chunks[1] = NULL;
}

void rose_gr_work(gr_build *b, uint64_t n)
{
    enum { CHECK_STEPS = 100000 }; /* about 1 ms */
    b->work += n + 1;
    b->spent[b->cost] += n + 1;
    if (b->work > b->opts.max_work) {
        char limit[48];
        const unsigned long long most = b->opts.max_work, million = 1000000;
        snprintf(limit, sizeof limit, most % million == 0 ? "%llu million steps" : "%llu steps",
                 most % million == 0 ? most / million : most);
        fail_costly(b, limit);
    }
    if (b->opts.stop == NULL || b->work < b->next_check) return;
    b->next_check = b->work + CHECK_STEPS;
    if (b->opts.stop(b->opts.stop_arg))
        rose_gr_fail(b, ROSE_E_CLOSED, "nobody waits for this grammar any more");
}

void rose_gr_json_add(gr_build *b, rose_json *list, rose_json *made)
{
    if (made == NULL || rose_json_append_new(list, made) != 0)
        rose_gr_fail(b, ROSE_E_NOMEM, "out of memory");
}

rose_json *rose_gr_keep(gr_build *b, rose_json *made)
{
    if (b->made == NULL) b->made = rose_json_array();
    rose_gr_json_add(b, b->made, made);
    rose_gr_work(b, 10);
    return made;
}

size_t rose_gr_number(const char *s, size_t n, uint32_t *v, bool *fits)
{
    uint64_t value = 0;
    size_t k = 0;
    for (; k < n && s[k] >= '0' && s[k] <= '9'; k++)
        if (value <= GR_MAX_COUNT) value = value * 10 + (uint64_t)(s[k] - '0');
    *fits = value <= GR_MAX_COUNT;
    *v = *fits ? (uint32_t)value : GR_MAX_COUNT;
    return k;
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
