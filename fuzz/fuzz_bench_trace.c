/* libFuzzer target: arbitrary bytes as a trace file. Checked: what is taken keeps the promises of
 * the header, before and after lengths are cut into a context; limits hold; bad lines are counted.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/load_trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const rose_load_trace *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const rose_load_trace_row *r = &t->rows[i];
        if (r->n_in < 1 || r->n_out < 1 || !isfinite(r->at_s) || r->at_s < 0) abort();
        if (i > 0 && r->at_s < t->rows[i - 1].at_s) abort();
        if (r->n_hash > 0 && (size_t)r->hash0 + r->n_hash > t->n_hashes) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rose_load_trace t;
    rose_err err = {{0}};
    const uint32_t limit = size > 0 && data[0] % 2 == 0 ? 3 : 100000;
    rose_status st = rose_load_trace_parse(&t, "fuzz", (const char *)data, size, limit, NULL, &err);
    if (st != ROSE_OK) {
        if (err.msg[0] == '\0' || t.rows != NULL || t.n != 0) abort();
        return 0;
    }
    if (t.n == 0 || t.n > limit || (t.n_bad > 0) != (t.first_bad > 0)) abort();
    check(&t);
    rose_load_trace_clamp(&t, 64, 40, 20);
    check(&t);
    for (uint32_t i = 0; i < t.n; i++) {
        if (t.rows[i].n_in > 40 || t.rows[i].n_out > 20 || t.rows[i].n_in + t.rows[i].n_out > 63)
            abort();
    }
    rose_load_trace_free(&t);
    return 0;
}
