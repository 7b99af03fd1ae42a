/* batch/store.h - the files and batches of a server (--batch-dir): OpenAI's /v1/files and
 * /v1/batches. Every name on the disk is an id that this module drew at random; no path comes from
 * a client.
 *
 * The directory:
 *   secret             16 random bytes: owners are hashes with it, so no API key is stored
 *   files/ID           content of a file; files/ID.json what is known about it
 *   batches/ID.json    a batch; batches/ID.out, ID.err its results until it ends
 * A file appears under its name by rename(2) after fsync(2), first the content, then the .json;
 * only results are appended in place, and synced every five seconds and at the end of the batch.
 * After a power failure the requests of the last seconds run again.
 *
 * Threads: all functions may be called by any thread after open and before close, except where
 * stated. A thread of the store starts batches and removes what has expired; each of at most
 * ROSE_BATCH_MAX_RUNNING running batches has a thread of its own. */
#ifndef ROSE_BATCH_STORE_H
#define ROSE_BATCH_STORE_H

#include "base/json.h"
#include "batch/batch.h"

typedef struct rose_batch_store rose_batch_store;

enum {
    ROSE_BATCH_MAX_RUNNING = 4,
    ROSE_BATCH_OWNER = 33, /* bytes of an owner, with the NUL */
    ROSE_BATCH_MAX_NAME = 255
};

typedef struct rose_batch_store_opts {
    const char *dir;       /* --batch-dir; created if its parent exists; NULL: no store */
    uint32_t max_lines;    /* requests of a batch (--batch-max-lines) */
    uint32_t max_files;    /* of one key: files, and likewise batches (--batch-max-files) */
    uint64_t max_bytes;    /* of all files together (--batch-max-bytes) */
    uint32_t expire_hours; /* age at which files and ended batches go; 0: never
                            * (--batch-expire-hours) */
    size_t max_line_bytes;
    int64_t (*now)(void *arg); /* seconds since 1970; NULL: the clock */
    void *now_arg;
} rose_batch_store_opts;

void rose_batch_store_opts_default(rose_batch_store_opts *o);

/* Opens and locks the directory and reads what is in it. Errors: IO (also: another server has it),
 * NOMEM. Main thread. */
rose_status rose_batch_store_open(rose_batch_store **out, const rose_batch_store_opts *o,
                                  rose_err *err);

/* What runs the batches. */
typedef struct rose_batch_server {
    rose_http *http;           /* borrowed until stop */
    uint32_t n_threads;        /* its I/O threads */
    uint32_t window;           /* requests in flight of all batches together, at least 1 */
    bool (*failed)(void *arg); /* whether the engine has failed; then batches wait for a restart */
    void *arg;
} rose_batch_server;

/* Starts the threads; batches that a stop or a kill has interrupted go on. Errors: IO. Main thread.
 */
rose_status rose_batch_store_start(rose_batch_store *s, const rose_batch_server *server,
                                   rose_err *err);
/* Ends all runs at once and joins the threads. The batches go on after the next start. Main thread,
 * before rose_http_stop; accepts NULL, and may be called twice. */
void rose_batch_store_stop(rose_batch_store *s);
void rose_batch_store_close(rose_batch_store *s); /* stops it; accepts NULL */

/* Writes the owner that belongs to an API key; "" for NULL. */
void rose_batch_store_owner(const rose_batch_store *s, const char *key, char out[ROSE_BATCH_OWNER]);

/* ---- what clients ask. Each appends JSON to `out`. An owner sees only its own files and batches.
 * Errors of all: NOTFOUND (no such id), INVAL (the request), FULL (a limit; with a message), IO,
 * NOMEM. ---- */

typedef struct rose_batch_page {
    const char *after;   /* an id; NULL: from the beginning */
    const char *purpose; /* files: only these; NULL: all */
    uint32_t limit;      /* at least 1 */
    bool oldest_first;
} rose_batch_page;

/* name: valid UTF-8, cut at ROSE_BATCH_MAX_NAME bytes. expire_s: seconds; 0: the store's. */
rose_status rose_batch_file_create(rose_batch_store *s, const char *owner, const char *name,
                                   const void *bytes, size_t len, uint32_t expire_s, rose_buf *out,
                                   rose_err *err);
rose_status rose_batch_file_get(rose_batch_store *s, const char *owner, const char *id,
                                rose_buf *out, rose_err *err);
rose_status rose_batch_file_list(rose_batch_store *s, const char *owner, const rose_batch_page *p,
                                 rose_buf *out, rose_err *err);
rose_status rose_batch_file_content(rose_batch_store *s, const char *owner, const char *id,
                                    rose_buf *out, rose_err *err);
rose_status rose_batch_file_delete(rose_batch_store *s, const char *owner, const char *id,
                                   rose_buf *out, rose_err *err);

typedef struct rose_batch_order_form {
    const char *input_file_id, *endpoint; /* endpoint: of rose_batch_endpoints */
    const char *window_text;              /* completion_window, as the client sent it */
    uint32_t window_s;
    uint32_t output_expire_s;  /* 0: the store's */
    const rose_json *metadata; /* an object of strings, or NULL */
} rose_batch_order_form;

rose_status rose_batch_submit(rose_batch_store *s, const char *owner,
                              const rose_batch_order_form *f, rose_buf *out, rose_err *err);
rose_status rose_batch_get(rose_batch_store *s, const char *owner, const char *id, rose_buf *out,
                           rose_err *err);
rose_status rose_batch_list(rose_batch_store *s, const char *owner, const rose_batch_page *p,
                            rose_buf *out, rose_err *err);
rose_status rose_batch_cancel(rose_batch_store *s, const char *owner, const char *id, rose_buf *out,
                              rose_err *err);

/* Removes what has expired; the store's thread calls it once a minute. For tests. */
void rose_batch_store_sweep(rose_batch_store *s);

#endif
