/* api/json_out.h - JSON text, appended to a buffer; the first failed allocation sticks, so that a
 * writer checks once, at the end. The owner's thread only. */
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
void rose_api_put_u64(rose_api_out *o, uint64_t v);
/* A JSON string without its quotes, with the bytes that jansson would write: \" \\ \b \f \n \r \t
 * and \u00XX (upper case) for other bytes below 0x20; everything else as it is. s is valid UTF-8.
 */
void rose_api_put_escaped(rose_api_out *o, const char *s, size_t len);
void rose_api_put_string(rose_api_out *o, const char *s, size_t len); /* with quotes */
void rose_api_out_reset(rose_api_out *o);                             /* empty, keeps the memory */
void rose_api_out_free(rose_api_out *o);

#endif
