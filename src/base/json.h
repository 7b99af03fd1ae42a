/* base/json.h - parses JSON with jansson, made safe against a failed allocation. jansson 2.14
 * ignores some of its own failed allocations. Then a string lacks a byte ("wte" reads as "wt"),
 * a correct text is called a syntax error, or the lexer writes past its buffer. We route its
 * allocations through functions that note a failure per thread and keep a reserve for that
 * buffer. A parse during which an allocation failed returns nothing. Any thread. */
#ifndef ROSE_BASE_JSON_H
#define ROSE_BASE_JSON_H

#include <jansson.h>

#include "base/status.h"

/* Parses n bytes (no NUL needed at the end) into *out, a new reference. Duplicate keys and text
 * after the value are refused. flags: further JSON_* load flags, such as JSON_DECODE_ANY. On
 * failure *out is NULL, e says where and why, and the status is ROSE_E_FORMAT or ROSE_E_NOMEM. */
rose_status rose_json_parse(json_t **out, const char *text, size_t n, size_t flags,
                            json_error_t *e);

#endif
