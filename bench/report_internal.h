/* bench/report_internal.h - between the parts of `bench report`. */
#ifndef ROSE_BENCH_REPORT_INTERNAL_H
#define ROSE_BENCH_REPORT_INTERNAL_H

#include <jansson.h>

#include "bench/html.h"

/* Where a result comes from: device, versions, commit, time, and every command line in it. */
void rose_report_environment(rose_html *h, const json_t *root);

/* The figures of online_results.json, offline_results.json, ablate_results.json; any other result
 * as lists of its numbers and of its distributions. */
void rose_report_online(rose_html *h, const json_t *root);
void rose_report_offline(rose_html *h, const json_t *root);
void rose_report_ablate(rose_html *h, const json_t *root);
void rose_report_any(rose_html *h, const json_t *root);

#endif
