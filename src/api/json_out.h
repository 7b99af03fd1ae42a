/* api/json_out.h - JSON text, appended to a buffer; the first failed allocation sticks, so that a
 * writer checks once, at the end. The owner's thread only. */
#ifndef ROSE_API_JSON_OUT_H
#define ROSE_API_JSON_OUT_H

#include <stdbool.h>

#include "base/buf.h"

typedef struct api_out {
    rose_buf b;
    bool oom;
} api_out;

void api_put(api_out *o, const char *bytes, size_t len);
void api_puts(api_out *o, const char *literal);
void api_putf(api_out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void api_put_u64(api_out *o, uint64_t v);
/* A JSON string without its quotes, with the bytes that jansson would write: \" \\ \b \f \n \r \t
 * and \u00XX (upper case) for other bytes below 0x20; everything else as it is. s is valid UTF-8.
 */
void api_put_escaped(api_out *o, const char *s, size_t len);
void api_put_string(api_out *o, const char *s, size_t len); /* with quotes */
void api_out_reset(api_out *o);                             /* empty, keeps the memory */
void api_out_free(api_out *o);

#endif
