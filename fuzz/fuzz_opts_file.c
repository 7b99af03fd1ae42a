/* libFuzzer target: a file of options, as YAML and as JSON. */
#include <stdlib.h>
#include <string.h>

#include "base/opts_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What the readers of items rely on: all texts lie within the buffer and end in it. */
static void check_items(const rose_opts_file *f)
{
    uint32_t line = 0;
    for (size_t i = 0; i < f->n; i++) {
        const rose_opts_file_item *item = &f->items[i];
        size_t at = item->value;
        if (item->line < line || item->key >= item->value || (!item->list && item->n != 1)) abort();
        line = item->line;
        for (uint32_t k = 0; k < item->n; k++)
            at += strlen(f->text.data + at) + 1;
        if (at > f->text.len) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const paths[] = {"fuzz.yaml", "fuzz.json"};
    for (int i = 0; i < 2; i++) {
        rose_opts_file f = {0};
        rose_err err = {{0}};
        const rose_status st = rose_opts_file_parse(&f, paths[i], (const char *)data, size, &err);
        if (st == ROSE_OK) check_items(&f);
        if (st != ROSE_OK && (err.msg[0] == '\0' || f.items != NULL)) abort();
        rose_opts_file_free(&f);
    }
    return 0;
}
