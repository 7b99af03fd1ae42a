/* api/metrics.h - the counts of GET /metrics. There is one rose_api_metrics per I/O thread,
 * written by that thread alone, because every answer and every token passes through one. The
 * thread that answers /metrics adds them up. There is no lock, no allocation and no shared cache
 * line on the token path. Answers of the HTTP server itself (413, 431, 408, bad syntax) have a
 * table of their own, because its callback does not name the thread. */
#ifndef ROSE_API_METRICS_H
#define ROSE_API_METRICS_H

#include "base/hist.h"

/* values of the label finished_reason of vllm:request_success_total */
typedef enum rose_api_outcome {
    ROSE_OUTCOME_STOP,
    ROSE_OUTCOME_LENGTH,
    ROSE_OUTCOME_ABORT, /* the client left, or the server stopped */
    ROSE_OUTCOME_ERROR, /* the engine failed, out of memory, or a time-out */
    ROSE_N_OUTCOMES
} rose_api_outcome;

/* values of the label reason of vllm:admission_rejections_total */
typedef enum rose_api_rejection {
    ROSE_REJECT_QUEUE_FULL,  /* 429: the queue of the engine or of the tokenizer workers is full */
    ROSE_REJECT_LATE,        /* 429: --ttft-slo-ms could not be met */
    ROSE_REJECT_NOT_READY,   /* 503: loading, draining, engine closed */
    ROSE_REJECT_MEMORY,      /* 503: out of memory */
    ROSE_REJECT_CONNECTIONS, /* 503: too many connections */
    ROSE_N_REJECTIONS
} rose_api_rejection;

enum {
    ROSE_METRIC_ROUTES = 40,  /* number of counters: one for each row of the route table, and one
                               * for unknown paths */
    ROSE_METRIC_METHODS = 4,  /* GET HEAD POST other */
    ROSE_METRIC_STATUSES = 22 /* number of counters: one for each HTTP status that this server
                               * answers with, and one for all others */
};

typedef _Atomic uint64_t rose_http_counts[ROSE_METRIC_METHODS][ROSE_METRIC_STATUSES];

/* Every member is made of counts alone, because metrics.c adds the tables up as arrays. */
typedef struct rose_api_metrics {
    _Atomic uint64_t prompt_tokens, cached_tokens, generation_tokens;
    _Atomic uint64_t ignored_fields;
    _Atomic uint64_t outcomes[ROSE_N_OUTCOMES];
    _Atomic uint64_t rejections[ROSE_N_REJECTIONS];
    rose_hist ttft, itl;                    /* ns */
    rose_hist tpot, e2e, queue, prefill;    /* ns */
    rose_hist decode, inference, http_time; /* ns */
    rose_hist prompt_len,
        computed_len; /* prompt tokens of a choice; uncached prompt tokens of a choice */
    rose_hist generation_len, longest_len; /* generated tokens of a choice; generated tokens of a
                                            * request's longest choice */
    rose_hist max_tokens, n;               /* as asked */
    rose_http_counts http[ROSE_METRIC_ROUTES];
} rose_api_metrics;

#endif
