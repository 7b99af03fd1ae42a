/* base/json.c - see json.h. */
#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* State of the parse that runs on this thread. The lexer of jansson 2.14 does not look whether its
 * string buffer could grow; it goes on, and then walks off the buffer's end. So growth (the one
 * kind of allocation whose size is a power of two from 32 on; others may share such a size, which
 * does no harm) is served from a reserve when malloc fails: enough for a token as long as the text.
 * The next allocation that fails ends the parse in good order. */
static _Thread_local bool t_failed;
static _Thread_local char *t_reserve; /* NULL outside of a parse */
static _Thread_local size_t t_cap, t_used;

static void *take_reserve(size_t n)
{
    bool growth = n >= 32 && (n & (n - 1)) == 0;
    if (t_reserve == NULL || !growth || n > t_cap - t_used) return NULL;
    void *p = t_reserve + t_used;
    t_used += n;
    return p;
}

static void *noting_malloc(size_t n)
{
    void *p = malloc(n);
    if (p != NULL) return p;
    t_failed = true;
    return take_reserve(n);
}

static void noting_free(void *p)
{
    uintptr_t at = (uintptr_t)p, from = (uintptr_t)t_reserve;
    if (t_reserve != NULL && at >= from && at - from < t_cap) return;
    free(p);
}

/* Before main: no thread can be using jansson yet. */
__attribute__((constructor)) static void install(void)
{
    json_set_alloc_funcs(noting_malloc, noting_free);
}

rose_status rose_json_parse(json_t **out, const char *text, size_t n, size_t flags, json_error_t *e)
{
    *out = NULL;
    if (n > SIZE_MAX / 8) return ROSE_E_NOMEM;
    t_cap = 4 * (n + 16); /* 32 + 64 + ... up to twice the longest token and its terminator */
    if ((t_reserve = malloc(t_cap)) == NULL) return ROSE_E_NOMEM;
    t_used = 0;
    t_failed = false;
    *out = json_loadb(n > 0 ? text : "", n, flags | JSON_REJECT_DUPLICATES, e);
    if (t_failed) {
        json_decref(*out);
        *out = NULL;
    }
    free(t_reserve);
    t_reserve = NULL;
    if (t_failed) return ROSE_E_NOMEM;
    return *out != NULL ? ROSE_OK : ROSE_E_FORMAT;
}
