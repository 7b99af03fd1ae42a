/* engine/guide.c - see guide_internal.h. */
#include "engine/guide_internal.h"

#include <stdlib.h>

rose_guided *rose_guided_create(const rose_request_opts *o, const rose_rules_ctx *c)
{
    const size_t n_words = ((size_t)c->vocab + 31) / 32;
    rose_guided *g = calloc(1, sizeof *g + n_words * sizeof *g->words);
    if (g != NULL) g->guide = o->guide;
    return g;
}

void rose_guided_destroy(rose_guided *g)
{
    if (g == NULL) return;
    g->guide.ops->destroy(g->guide.state);
    free(g);
}
