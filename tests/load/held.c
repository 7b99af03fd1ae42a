/* tests/load/held.c - see held.h. It feeds the ids to the same detokeniser that the server uses,
 * and looks which of them release text. */
#include "load/held.h"

#include <string.h>

/* Parses "N" or "N,". Returns the byte after it, or NULL. */
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
    /* quotes inside a JSON string would have backslashes, so this is the real member */
    static const char name[] = "\"token_ids\":[";
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
    /* the last id released the text that the event carries */
    return held == n_ids && held > 0 ? held - 1 : held;
}
