/* batch/batch.h - offline batches: their files, and the run. The files are in OpenAI's format: JSON
 * Lines. Each line of the input is a request with a custom_id; each line of the output is the
 * result of one of them.
 *
 * Input: {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
 * Output: {"id": "batch_req_..", "custom_id": "a", "response": {"status_code": 200,
 *          "request_id": "..", "body": {...}}, "error": null}
 *
 * Threads: each object belongs to one thread at a time. */
#ifndef ROSE_BATCH_BATCH_H
#define ROSE_BATCH_BATCH_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "http/http.h"

enum {
    ROSE_BATCH_ID_BYTES = 512,    /* longest custom_id */
    ROSE_BATCH_MAX_LINE = 1 << 30 /* bytes; no option allows more */
};

/* ---- lines of a file ---- */

/* Begin with {.fd, .name, .max_bytes}; end with rose_batch_reader_free. */
typedef struct rose_batch_reader {
    int fd;           /* borrowed; a regular file */
    const char *name; /* borrowed; for messages */
    size_t max_bytes; /* longest line */
    uint64_t at;      /* offset of the line that next() returned last */
    uint32_t line;    /* its number, from 1 */
    uint64_t read_at; /* offset of the next byte to read */
    size_t begin;     /* of the next line, in buf */
    bool end;
    rose_buf buf; /* owned */
} rose_batch_reader;

/* *text, without its line end, is valid until the next call. *whole: a newline ends the line.
 * Errors: EMPTY (there is no further line), FORMAT (a line over max_bytes), IO, NOMEM. */
rose_status rose_batch_reader_next(rose_batch_reader *r, const char **text, size_t *len,
                                   bool *whole, rose_err *err);
void rose_batch_reader_free(rose_batch_reader *r); /* keeps fd open */

/* ---- one request ---- */

/* Begin with {0}; read() may be called again and again; end with rose_batch_request_free. */
typedef struct rose_batch_request {
    rose_buf id;      /* owned: the custom_id; empty: the line has none */
    const char *path; /* a constant: where the request goes; NULL if code is not */
    const char *body; /* borrowed from the text: the JSON of the body, as it was written */
    size_t body_len;
    bool named;        /* the line is an object with a custom_id, so a result can name it */
    const char *code;  /* a constant: what is wrong with the line; NULL: nothing */
    const char *param; /* the member that is wrong, or NULL */
    char why[256];
} rose_batch_request;

/* Reads a line of the input. The body is not checked, except that it asks for no stream: the API
 * checks it when the request is made. endpoint: the only url that is allowed; NULL: any of
 * rose_batch_endpoints. Errors: NOMEM. */
rose_status rose_batch_request_read(rose_batch_request *q, const char *text, size_t len,
                                    const char *endpoint);
void rose_batch_request_free(rose_batch_request *q);

extern const char *const rose_batch_endpoints[]; /* ends with NULL */
/* The constant of rose_batch_endpoints that equals the text; NULL: there is none. */
const char *rose_batch_endpoint(const char *text, size_t len);

/* ---- the input ---- */

/* Why a batch does not begin: lines whose results could not be named. */
enum { ROSE_BATCH_MAX_PROBLEMS = 20 };
typedef struct rose_batch_problem {
    uint32_t line;
    const char *code, *param; /* constants; param may be NULL */
    char msg[256];
} rose_batch_problem;
typedef struct rose_batch_problems {
    uint32_t n; /* all of them; v holds the first ones */
    rose_batch_problem v[ROSE_BATCH_MAX_PROBLEMS];
} rose_batch_problems;

typedef struct rose_batch_entry {
    uint64_t at, hash; /* offset of the line; hash of its custom_id */
    uint32_t len, line;
    bool done; /* the output has its result */
} rose_batch_entry;

typedef struct rose_batch_input {
    int fd;               /* owned */
    char *name;           /* owned; for messages */
    const char *endpoint; /* a constant, or NULL */
    rose_batch_entry *v;  /* owned [n], in the order of the file */
    uint32_t n, cap;
    uint32_t n_done, n_failed; /* results in the output, and those of them that are errors */
    uint32_t *table;           /* owned: places in v + 1 by hash; 0 = free */
    uint64_t n_table;          /* a power of two */
    uint64_t key[2];           /* of the hash */
    rose_buf text;             /* owned: the line that read() has read */
} rose_batch_input;

typedef struct rose_batch_limits {
    uint32_t max_lines;
    size_t max_line_bytes;
    const char *endpoint; /* as of rose_batch_request_read */
} rose_batch_limits;

/* Reads the whole file once and notes where each request is. Takes fd, also on failure. Empty lines
 * are passed over. Errors: IO, NOMEM, FORMAT. With FORMAT, problems names the lines: one is no
 * object or has no custom_id, or two have the same; or it says that the file is empty or has too
 * many lines. */
rose_status rose_batch_input_open(rose_batch_input **out, int fd, const char *name,
                                  const rose_batch_limits *limits, rose_batch_problems *problems,
                                  rose_err *err);
void rose_batch_input_close(rose_batch_input *in); /* accepts NULL */

/* *found: the entry with this custom_id; UINT32_MAX: there is none. Errors: IO, NOMEM. */
rose_status rose_batch_input_find(rose_batch_input *in, const rose_buf *id, uint32_t *found,
                                  rose_err *err);

/* Reads the request of entry i again. q->body is valid until the next call. Errors: IO (also
 * if the file has changed), NOMEM. */
rose_status rose_batch_input_read(rose_batch_input *in, uint32_t i, rose_batch_request *q,
                                  rose_err *err);

/* ---- the output ---- */

typedef enum rose_batch_how {
    ROSE_BATCH_NEW, /* refuses a file that has content */
    ROSE_BATCH_OVERWRITE,
    ROSE_BATCH_RESUME /* keeps the results that are there; a line that a kill has torn is cut off */
} rose_batch_how;

typedef struct rose_batch_output {
    int fd;            /* owned */
    char *name;        /* owned */
    bool regular;      /* a file, not a pipe or terminal */
    uint64_t len, cut; /* bytes of whole lines; bytes of a torn line that were cut off */
    uint64_t synced_ns;
    bool dirty;
} rose_batch_output;

/* Opens and locks the output. "-" is standard output. With RESUME, entries of `in` that have a
 * result become done. Errors: INVAL (the file exists, or is the input), FORMAT (a line that is no
 * result, or of another input), IO (also: another process writes the file), NOMEM. */
rose_status rose_batch_output_open(rose_batch_output **out, const char *path, rose_batch_how how,
                                   mode_t mode, rose_batch_input *in, rose_err *err);
/* Appends a whole line and its newline by write(2); what a failed write has left is cut off.
 * Errors: IO. */
rose_status rose_batch_output_write(rose_batch_output *o, const rose_buf *line, rose_err *err);
/* Makes the results survive a power failure: at once, or if five seconds have passed. Errors: IO.
 */
rose_status rose_batch_output_sync(rose_batch_output *o, bool at_once, rose_err *err);
void rose_batch_output_close(rose_batch_output *o); /* accepts NULL */

/* Writes a result into `line`, which is emptied first. body: one JSON object of body_len bytes,
 * whose line ends become spaces. Errors: NOMEM. */
rose_status rose_batch_put_response(rose_buf *line, const char *id, const rose_buf *custom_id,
                                    int status, const char *body, size_t body_len);
/* A result of a request that was not made, or has no reply. */
rose_status rose_batch_put_error(rose_buf *line, const char *id, const rose_buf *custom_id,
                                 const char *code, const char *message);

/* ---- the run ----
 * Requests go through a server of this process. Each line becomes an HTTP request on a connection
 * of its own (rose_http_connect), so limits, checks, errors and replies are those of the server. A
 * run belongs to the thread that calls rose_batch_run. */

typedef struct rose_batch_counts {
    uint32_t total, done, failed; /* requests; failed ones also count as done */
    uint32_t in_flight;
    uint64_t prompt_tokens, output_tokens; /* usage of the replies of this run */
    char why[256]; /* the error of the run's first request that failed, and its custom_id; "": none
                    */
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
