/* api/json_out.h - writes JSON text to the end of a buffer. A failed allocation is remembered,
 * so that a writer checks only once, at the end. The owner's thread only. */
#ifndef ROSE_API_JSON_OUT_H
#define ROSE_API_JSON_OUT_H

#include <stdbool.h>

#include "base/buf.h"

typedef struct rose_api_out {
    rose_buf b;
    bool oom;
} rose_api_out;

void rose_api_put(rose_api_out *o, const char *bytes, size_t len);
void rose_api_puts(rose_api_out *o, const char *literal);
void rose_api_putf(rose_api_out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Writes JSON: a ' of the format becomes a quote, %s is a text as it is, %-s and %-.*s are texts as
 * JSON strings. Numbers: %d %u %lld %llu %lu %zu, and %g and %f, which may have a precision. */
void rose_api_json(rose_api_out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void rose_api_put_u64(rose_api_out *o, uint64_t v);
/* Writes a JSON string without its quotes, as rose_json_escape; s is valid UTF-8. */
void rose_api_put_escaped(rose_api_out *o, const char *s, size_t len);
void rose_api_put_string(rose_api_out *o, const char *s, size_t len); /* with quotes */
void rose_api_out_reset(rose_api_out *o);                             /* empty, keeps the memory */
void rose_api_out_free(rose_api_out *o);

#endif
