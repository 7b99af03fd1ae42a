/* batch/run.h - runs the requests of a batch through a server of this process. Each line becomes an
 * HTTP request on a connection of its own (rose_http_connect), so limits, checks, errors and
 * replies are those of the server.
 *
 * Threads: a run belongs to the thread that calls rose_batch_run. */
#ifndef ROSE_BATCH_RUN_H
#define ROSE_BATCH_RUN_H

#include "batch/lines.h"
#include "http/http.h"

typedef struct rose_batch_counts {
    uint32_t total, done, failed; /* requests; failed ones also count as done */
    uint32_t in_flight;
    uint64_t prompt_tokens, output_tokens; /* usage of the replies of this run */
} rose_batch_counts;

typedef enum rose_batch_order {
    ROSE_BATCH_GO,
    ROSE_BATCH_FINISH, /* send nothing more, but wait for replies that are due */
    ROSE_BATCH_STOP    /* end at once: requests in flight are cancelled and stay undone */
} rose_batch_order;

typedef struct rose_batch_run_opts {
    rose_http *http;      /* borrowed */
    uint32_t n_threads;   /* its I/O threads */
    rose_batch_input *in; /* borrowed; entries that are done are passed over */
    rose_batch_output *out,
        *errors; /* borrowed; errors: for results that are not 200; may be out */
    /* How many requests may be in flight now, 1 .. ROSE_BATCH_MAX_WINDOW. */
    uint32_t (*window)(void *arg);
    /* Called at least five times a second, and before a reply with a status of 500 or more is
     * written. */
    rose_batch_order (*ask)(void *arg, const rose_batch_counts *c);
    void *arg;
} rose_batch_run_opts;

enum { ROSE_BATCH_MAX_WINDOW = 1024 };

/* Sends requests in the order of the input and writes each result as it comes, until all are done
 * or `ask` ends the run. A request that the server could not take (429, 503) is sent again. *c is
 * filled in any case. Errors: IO (a file; the output can be resumed), NOMEM. */
rose_status rose_batch_run(const rose_batch_run_opts *o, rose_batch_counts *c, rose_err *err);

/* Writes an error for each request that is not done. */
rose_status rose_batch_fail_rest(rose_batch_input *in, rose_batch_output *errors, const char *code,
                                 const char *message, rose_err *err);

#endif
