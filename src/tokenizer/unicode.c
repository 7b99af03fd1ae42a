/* tokenizer/unicode.c - the class table, filled once from the generated ranges, and UTF-8
 * checks. The table is flat (one byte for each code point, in .bss), so a lookup is one load.
 * Memory pages without members stay untouched, so it costs about 300 KiB of memory, not 1.1 MiB. */
#include "tokenizer/unicode.h"

#include <pthread.h>
#include <string.h>

uint8_t rose_cp_class[0x110000];

const rose_cp_set *rose_cp_set_find(const char *name, size_t len)
{
    for (const rose_cp_set *s = rose_cp_sets; s->name != NULL; s++)
        if (strlen(s->name) == len && memcmp(s->name, name, len) == 0) return s;
    return NULL;
}

static void mark(const char *name, unsigned bit)
{
    const rose_cp_set *s = rose_cp_set_find(name, strlen(name));
    for (size_t i = 0; s != NULL && i < s->n_ranges; i++)
        for (uint32_t c = s->ranges[i].lo; c <= s->ranges[i].hi; c++)
            rose_cp_class[c] = (uint8_t)(rose_cp_class[c] | bit);
}

static void fill(void)
{
    mark("L", ROSE_CP_L);
    mark("N", ROSE_CP_N);
    mark("\\s", ROSE_CP_SPACE);
    mark("rust_word", ROSE_CP_WORD);
    mark("rust_numeric", ROSE_CP_DIGIT);
    mark("norm_inert", ROSE_CP_NORM_INERT);
}

void rose_unicode_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
}
