/* base/json.c - see json.h. */
#include "base/json.h"

#include <stdbool.h>
#include <stdlib.h>

static _Thread_local bool t_failed; /* an allocation of jansson's failed on this thread */

static void *noting_malloc(size_t n)
{
    void *p = malloc(n);
    if (p == NULL) t_failed = true;
    return p;
}

/* Before main: no thread can be using jansson yet. */
__attribute__((constructor)) static void install(void)
{
    json_set_alloc_funcs(noting_malloc, free);
}

rose_status rose_json_parse(json_t **out, const char *text, size_t n, size_t flags, json_error_t *e)
{
    t_failed = false;
    *out = json_loadb(n > 0 ? text : "", n, flags | JSON_REJECT_DUPLICATES, e);
    if (!t_failed) return *out != NULL ? ROSE_OK : ROSE_E_FORMAT;
    json_decref(*out);
    *out = NULL;
    return ROSE_E_NOMEM;
}
