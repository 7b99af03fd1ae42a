/* base/json_internal.h - what json.c, json_read.c and json_write.c share: how values are made of
 * parts that the reader has checked already. */
#ifndef ROSE_BASE_JSON_INTERNAL_H
#define ROSE_BASE_JSON_INTERNAL_H

#include <locale.h>

#include "base/json.h"

/* New values; NULL when out of memory. */
rose_json *rose_json_checked_string(const char *s, size_t len);
/* text: a JSON number; whole: without fraction and exponent. */
rose_json *rose_json_checked_number(const char *text, size_t len, bool whole);

/* Sets a member, by its key as a string value. Takes over both references, also on failure. */
int rose_json_put(rose_json *object, rose_json *key, rose_json *value);

/* The text that a number was read from, or NULL. */
const char *rose_json_own_text(const rose_json *v);

/* A real as JSON text, whatever the locale; precision: significant digits. */
void rose_json_format_real(char out[ROSE_JSON_NUMBER_CAP], double d, int precision);

/* The C locale. It needs no allocation. */
static inline locale_t rose_json_c_locale(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

#endif
