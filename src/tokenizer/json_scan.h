/* tokenizer/json_scan.h - a reader that walks over JSON text without building a tree: vocabularies
 * and merges are most of a file of 9 to 33 MB. One thread; the text outlives the reader. */
#ifndef ROSE_TOKENIZER_JSON_SCAN_H
#define ROSE_TOKENIZER_JSON_SCAN_H

#include <stdbool.h>

#include "base/buf.h"

typedef struct rose_json_scan {
    const char *begin, *p, *end; /* the text, and where the reader is; borrowed */
    const char *path;            /* for messages; borrowed */
    rose_err *err;               /* borrowed */
} rose_json_scan;

/* ROSE_E_FORMAT with path and line. */
rose_status rose_scan_bad(const rose_json_scan *s, const char *what);

/* The next byte after white space, or 0 at the end of the text. */
char rose_scan_peek(rose_json_scan *s);
/* Step over the byte c if it is next. */
bool rose_scan_take(rose_json_scan *s, char c);

/* A string: *text points into the text or, if the string has escapes, to scratch. Well-formed UTF-8
 * without control characters, else ROSE_E_FORMAT. */
rose_status rose_scan_string(rose_json_scan *s, rose_buf *scratch, const char **text, size_t *len);

/* A number that is an integer in [0, limit); -1 if the value is anything else. Steps over it. */
rose_status rose_scan_id(rose_json_scan *s, uint32_t limit, int64_t *id);

/* Step over any value. Brackets and quotes are checked, the rest is not. */
rose_status rose_scan_skip(rose_json_scan *s);

/* The members of an object and the elements of a list:
 *     rose_status st = rose_scan_open(s, '{');
 *     for (bool first = true; rose_scan_more(s, '}', &first, &st);) ...
 * A member's name and colon are the caller's to read (rose_scan_key). */
rose_status rose_scan_open(rose_json_scan *s, char bracket);
bool rose_scan_more(rose_json_scan *s, char bracket, bool *first, rose_status *st);
rose_status rose_scan_key(rose_json_scan *s, rose_buf *scratch, const char **text, size_t *len);

#endif
