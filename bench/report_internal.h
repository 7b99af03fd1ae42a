/* bench/report_internal.h - declarations that the files of `bench report` share. */
#ifndef ROSE_BENCH_REPORT_INTERNAL_H
#define ROSE_BENCH_REPORT_INTERNAL_H

#include "base/json.h"

#include "bench/html.h"

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
