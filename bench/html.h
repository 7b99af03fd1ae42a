/* bench/html.h - an HTML page that grows. Text is escaped and files are embedded as data URIs, so
 * the page needs no other file. After the first failure all later calls do nothing. One thread. */
#ifndef ROSE_BENCH_HTML_H
#define ROSE_BENCH_HTML_H

#include "base/buf.h"

typedef struct rose_html {
    rose_buf out;   /* owned; free with rose_buf_free */
    rose_status st; /* NOMEM after the first allocation that failed */
} rose_html;

/* Adds markup unchanged; only for literals and numbers. */
void rose_html_raw(rose_html *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Adds text from any source. The characters & < > " ' are escaped. Control characters other than
 * newline and tab, and bytes that are not UTF-8, become U+FFFD. NULL adds nothing. */
void rose_html_text(rose_html *h, const char *text);

/* Adds data:TYPE;base64,... for use inside an attribute. */
void rose_html_data_uri(rose_html *h, const char *type, const char *bytes, size_t n);

#endif
