/* bench/html.h - a growing HTML page: text escaped, files embedded as data URIs, so that the page
 * needs nothing beside it. The first failure sticks and later calls do nothing. One thread. */
#ifndef ROSE_BENCH_HTML_H
#define ROSE_BENCH_HTML_H

#include "base/buf.h"

typedef struct rose_html {
    rose_buf out;   /* owned; free with rose_buf_free */
    rose_status st; /* NOMEM once there was no room */
} rose_html;

/* Markup as it stands; only for literals and numbers. */
void rose_html_raw(rose_html *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Text from anywhere: & < > " ' are escaped, control characters but newline and tab, and bytes
 * that are no UTF-8, become U+FFFD.
 * NULL is "". */
void rose_html_text(rose_html *h, const char *text);

/* data:TYPE;base64,... for use inside an attribute. */
void rose_html_data_uri(rose_html *h, const char *type, const char *bytes, size_t n);

#endif
