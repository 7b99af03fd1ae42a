/* tests/load/held.c - see held.h. The server's own rule is applied to the ids: what its detokeniser
 * releases for each. */
#include "load/held.h"

#include <string.h>

/* "N" or "N,"; the place behind it, or NULL. */
static const char *take_id(const char *p, const char *end, uint32_t *id)
{
    uint64_t v = 0;
    const char *from = p;
    for (; p < end && *p >= '0' && *p <= '9' && v <= UINT32_MAX; p++)
        v = v * 10 + (uint64_t)(*p - '0');
    *id = (uint32_t)v;
    return p > from && p < end && v <= UINT32_MAX ? p : NULL;
}

uint32_t rose_held_tokens(const rose_tokenizer *t, const char *bytes, size_t n, char *scratch)
{
    static const char name[] = "\"token_ids\":["; /* within a string its quotes had backslashes */
    const char *end = bytes + n, *p = memmem(bytes, n, name, sizeof name - 1);
    rose_detok d = {0};
    uint32_t held = 0, n_ids = 0;
    bool silent = true;
    if (p == NULL) return 0;
    p += sizeof name - 1;
    while (p != NULL && p < end && *p != ']') {
        uint32_t id;
        if (n_ids++ > 0 && *p++ != ',') return 0;
        if ((p = take_id(p, end, &id)) == NULL) return 0;
        silent = silent && rose_detok_push(&d, t, id, ROSE_DECODE_SKIP_SPECIAL, scratch) == 0;
        held += silent;
    }
    if (p == NULL || p >= end) return 0;
    return held == n_ids && held > 0 ? held - 1 : held; /* the last of them came with the event */
}
