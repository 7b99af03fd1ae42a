/* bench/report_internal.h - declarations that the files of `bench report` share. */
#ifndef ROSE_BENCH_REPORT_INTERNAL_H
#define ROSE_BENCH_REPORT_INTERNAL_H

#include "base/buf.h"
#include "base/json.h"

/* ---- html.c ---- */

/* An HTML page that grows. Text is escaped and files are embedded as data URIs, so the page needs
 * no other file. After the first failure all later calls do nothing. One thread. */
typedef struct rose_html {
    rose_buf out;   /* owned; free with rose_buf_free */
    rose_status st; /* NOMEM after the first allocation that failed */
} rose_html;

/* Adds markup unchanged, as printf; only for literals and numbers. Evaluates h several times. */
#define rose_html_raw(h, ...)                                                                      \
    ((h)->st = (h)->st == ROSE_OK ? rose_buf_addf(&(h)->out, __VA_ARGS__) : (h)->st)

/* Adds text from any source. The characters & < > " ' are escaped. Control characters other than
 * newline and tab, and bytes that are not UTF-8, become U+FFFD. NULL adds nothing. */
void rose_html_text(rose_html *h, const char *text);

/* Adds data:TYPE;base64,... for use inside an attribute. */
void rose_html_data_uri(rose_html *h, const char *type, const char *bytes, size_t n);

/* ---- report_tables.c ---- */

/* Writes where a result comes from: device, versions, commit, time, and every command line
 * in it. */
void rose_report_environment(rose_html *h, const rose_json *root);

/* Write the figures of online_results.json, offline_results.json and ablate_results.json as tables.
 * rose_report_any writes those of any other result: a list of its numbers and a list of its
 * distributions. */
void rose_report_online(rose_html *h, const rose_json *root);
void rose_report_offline(rose_html *h, const rose_json *root);
void rose_report_ablate(rose_html *h, const rose_json *root);
void rose_report_any(rose_html *h, const rose_json *root);

#endif
