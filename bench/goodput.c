/* bench/goodput.c - reads and checks the limits of a goodput search: the highest rate of requests
 * that keeps them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/online_internal.h"

rose_status rose_goodput_parse(const char *text, rose_goodput_limits *out, rose_err *err)
{
    *out = (rose_goodput_limits){0};
    for (const char *p = text;;) {
        const char *colon = strchr(p, ':');
        size_t n = colon != NULL ? (size_t)(colon - p) : 0;
        char *end = NULL;
        double *to = n == 4 && strncmp(p, "ttft", 4) == 0   ? &out->ttft
                     : n == 4 && strncmp(p, "tpot", 4) == 0 ? &out->tpot
                     : n == 3 && strncmp(p, "itl", 3) == 0  ? &out->itl
                     : n == 3 && strncmp(p, "e2e", 3) == 0  ? &out->e2e
                                                            : NULL;
        double ms = to != NULL ? strtod(colon + 1, &end) : 0;
        if (to == NULL || !(ms > 0 && ms < 1e9) || (*end != ',' && *end != '\0'))
            return rose_fail(err, ROSE_E_INVAL,
                             "--goodput '%s': expected ttft:MS,tpot:MS,itl:MS,e2e:MS", text);
        *to = ms * 1e-3;
        if (*end == '\0') return ROSE_OK;
        p = end + 1;
    }
}

static bool within(double limit, const rose_summary *s)
{
    return limit <= 0 || s->n == 0 || s->p99 <= limit;
}

bool rose_goodput_met(const rose_goodput_limits *l, const rose_run_stats *s)
{
    return s->n_error == 0 && s->n_success > 0 && within(l->ttft, &s->ttft) &&
           within(l->tpot, &s->tpot) && within(l->itl, &s->itl) && within(l->e2e, &s->e2e);
}
