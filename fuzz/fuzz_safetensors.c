/* libFuzzer target: the safetensors reader on arbitrary bytes. What it accepts must lie within the
 * input; the sanitizer watches the reads. */
#include <stdlib.h>

#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rose_st_file f;
    rose_err err;
    if (rose_st_parse(&f, data, size, "fuzz", &err) != ROSE_OK) return 0;
    volatile unsigned sum = 0;
    uint64_t at = 0;
    for (size_t i = 0; i < f.n_tensors; i++) {
        const rose_st_tensor *t = &f.tensors[i];
        uint64_t n = t->end - t->begin;
        if (t->begin != at || t->n_dims > ROSE_ST_MAX_DIMS) abort();
        if (t->data < data || n > (uint64_t)(data + size - t->data)) abort();
        if (n > 0) sum += t->data[0] + t->data[n - 1];
        at = t->end;
    }
    (void)sum; /* the reads themselves are the test: a bad pointer faults */
    rose_st_close(&f);
    return 0;
}
