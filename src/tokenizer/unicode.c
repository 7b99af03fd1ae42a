/* tokenizer/unicode.c - the class table, filled once from the generated runs. The table is flat
 * (one byte for each code point, in .bss), so a lookup is one load. Memory pages without members
 * stay untouched, so it costs about 300 KiB of memory, not 1.1 MiB. */
#include "tokenizer/unicode.h"

#include <pthread.h>
#include <string.h>

uint8_t rose_cp_class[0x110000];

uint32_t rose_cp_set_find(const char *name, size_t len)
{
    for (uint32_t i = 0; rose_cp_names[i] != NULL; i++)
        if (strlen(rose_cp_names[i]) == len && memcmp(rose_cp_names[i], name, len) == 0)
            return UINT32_C(1) << i;
    return 0;
}

static void fill(void)
{
    static const struct {
        const char *name;
        uint8_t bit;
    } of[] = {{"L", ROSE_CP_L},
              {"N", ROSE_CP_N},
              {"\\s", ROSE_CP_SPACE},
              {"rust_word", ROSE_CP_WORD},
              {"rust_numeric", ROSE_CP_DIGIT},
              {"norm_inert", ROSE_CP_NORM_INERT}};
    uint32_t set[sizeof of / sizeof *of];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        set[i] = rose_cp_set_find(of[i].name, strlen(of[i].name));
    for (const rose_cp_run *r = rose_cp_runs; r->first < 0x110000; r++) {
        uint8_t bits = 0;
        for (size_t i = 0; i < sizeof of / sizeof *of; i++)
            if ((rose_cp_kinds[r->kind] & set[i]) != 0) bits |= of[i].bit;
        if (bits != 0) memset(rose_cp_class + r->first, bits, r[1].first - r->first);
    }
}

void rose_unicode_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
}
