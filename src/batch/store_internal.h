/* batch/store_internal.h - what the files of the store share. `lock` guards all records; functions
 * below are called with it held, except where stated. */
#ifndef ROSE_BATCH_STORE_INTERNAL_H
#define ROSE_BATCH_STORE_INTERNAL_H

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "batch/store.h"

enum { STORE_ID = 40, STORE_META_BYTES = 1 << 20 };

typedef struct store_file {
    char id[STORE_ID], owner[ROSE_BATCH_OWNER];
    char *name; /* owned; what the client calls it */
    bool output;
    uint64_t bytes, seq;
    int64_t created, expires; /* expires: 0 = never */
    TAILQ_ENTRY(store_file) link;
} store_file;

typedef struct store_batch {
    char id[STORE_ID], owner[ROSE_BATCH_OWNER], input[STORE_ID];
    char out_id[STORE_ID], err_id[STORE_ID]; /* of its files, once it has ended */
    rose_json *shown;     /* owned: what the client sees, but for request_counts */
    const char *endpoint; /* a constant */
    const char *end;      /* a constant: how it ends (completed, failed, ...); NULL: it does not
                           * yet */
    bool ended;           /* nothing is left to do */
    bool cancel, running; /* running: a thread has it */
    uint64_t seq, live;   /* live: bytes of its results so far */
    int64_t expires;      /* the end of the completion window */
    int64_t again_at;     /* not before: the last try to end it failed */
    int64_t ended_at;
    uint32_t output_expire_s;
    rose_batch_counts counts;
    TAILQ_ENTRY(store_batch) link;
} store_batch;

TAILQ_HEAD(store_files, store_file);
TAILQ_HEAD(store_batches, store_batch);

struct rose_batch_store {
    rose_batch_store_opts o;
    char *dir; /* owned */
    int dir_fd, files_fd, batches_fd;
    unsigned char secret[16];
    pthread_mutex_t lock;
    pthread_cond_t changed;       /* a batch was made or has ended, or the store stops */
    struct store_files files;     /* in the order of seq */
    struct store_batches batches; /* likewise */
    uint64_t next_seq, bytes;     /* bytes: of all files, results so far and uploads under way */
    rose_batch_server server;
    pthread_t keeper;
    bool started;
    atomic_bool stopping;
    atomic_uint n_running;
};

int64_t rose_store_now(const rose_batch_store *s);              /* any thread, without the lock */
void rose_store_new_id(char out[STORE_ID], const char *prefix); /* likewise */

/* Writes a whole file in folder `dir` and syncs it: all of it, or nothing. Needs no lock. */
rose_status rose_store_write(int dir, const char *name, const void *bytes, size_t len,
                             rose_err *err);
/* Opens a folder of the store to read its names; close it with closedir. NULL: err says why (IO).
 */
DIR *rose_store_walk(const rose_batch_store *s, int folder, rose_err *err);
/* Reads dir/name.json into *out. */
rose_status rose_store_read_json(int dir, const char *name, rose_json **out, rose_err *err);

/* Copies a string and its NUL; false: v is none, or it does not fit. */
bool rose_store_take_text(char *out, size_t cap, const rose_json *v);

/* store.c */
store_file *rose_store_file(rose_batch_store *s, const char *owner, const char *id);
/* Writes what is known about a file, and adds it. Its content has its place, or gets it next. Takes
 * f in any case. */
rose_status rose_store_file_add(rose_batch_store *s, store_file *f, rose_err *err);
int64_t rose_store_expiry(const rose_batch_store *s, uint32_t expire_s); /* from now; 0 = never */
void rose_store_file_forget(rose_batch_store *s, store_file *f); /* and its bytes on the disk */
void rose_store_file_free(store_file *f);
rose_status rose_store_files_load(rose_batch_store *s, rose_err *err);

/* store_batches.c */
rose_status rose_store_batches_load(rose_batch_store *s, rose_err *err);
rose_status rose_store_batch_save(rose_batch_store *s, store_batch *b, rose_err *err);
void rose_store_batch_free(store_batch *b);
void rose_store_batch_forget(rose_batch_store *s, store_batch *b);
/* Sets the status and the time stamp "STATUS_at"; false: no memory. */
bool rose_store_batch_status(rose_batch_store *s, store_batch *b, const char *status);
/* Whether an unfinished batch reads this file. */
bool rose_store_in_use(const rose_batch_store *s, const char *file_id);

/* store_batches.c, without the lock: the thread of one batch */
void rose_store_run(rose_batch_store *s, store_batch *b);

/* Lists: the ids and objects of one page. */
typedef struct store_list {
    rose_json *data; /* owned */
    bool more;
} store_list;
rose_status rose_store_list_end(store_list *l, rose_buf *out, rose_err *err);

#endif
