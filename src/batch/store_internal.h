/* batch/store_internal.h - what the files of the store share. `lock` guards all records; functions
 * below are called with it held, except where stated. */
#ifndef ROSE_BATCH_STORE_INTERNAL_H
#define ROSE_BATCH_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "batch/store.h"

enum { STORE_ID = 40, STORE_META_BYTES = 1 << 20 };

/* What a file and a batch have in common; the first member of both. */
typedef struct store_record {
    char id[STORE_ID], owner[ROSE_BATCH_OWNER];
    uint64_t seq;
    TAILQ_ENTRY(store_record) link;
} store_record;

/* A folder of the store, with ID.json of each of its records. */
typedef struct store_folder {
    const char *name, *prefix, *what; /* "files", of ids: "file-", for messages: "File" */
    bool has_content;                 /* beside ID.json is a file ID */
    /* A record of ID.json, which has the name `name`; NULL: it is none of ours. */
    store_record *(*read)(rose_batch_store *s, const rose_json *v, const char *name);
    rose_json *(*show)(const store_record *r); /* what the client sees; a new reference */
    int fd;
    TAILQ_HEAD(store_records, store_record) records; /* in the order of seq */
} store_folder;

typedef struct store_file {
    store_record r;
    char *name; /* owned; what the client calls it */
    bool output;
    uint64_t bytes;
    int64_t created, expires; /* expires: 0 = never */
} store_file;

typedef struct store_batch {
    store_record r;
    char input[STORE_ID];
    char out_id[STORE_ID], err_id[STORE_ID]; /* of its files, once it has ended */
    rose_json *shown;     /* owned: what the client sees, but for request_counts */
    const char *endpoint; /* a constant */
    const char *end;      /* a constant: how it ends (completed, failed, ...); NULL: it does not
                           * yet */
    bool ended;           /* nothing is left to do */
    bool cancel, running; /* running: a thread has it */
    uint64_t live;        /* bytes of its results so far */
    int64_t expires;      /* the end of the completion window */
    int64_t again_at;     /* not before: the last try to end it failed */
    int64_t ended_at;
    uint32_t output_expire_s;
    rose_batch_counts counts;
} store_batch;

struct rose_batch_store {
    rose_batch_store_opts o;
    char *dir; /* owned */
    int dir_fd;
    unsigned char secret[16];
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a batch was made or has ended, or the store stops */
    store_folder files, batches;
    uint64_t next_seq, bytes; /* bytes: of all files, results so far and uploads under way */
    rose_batch_server server;
    pthread_t keeper;
    bool started;
    atomic_bool stopping;
    atomic_uint n_running;
};

int64_t rose_store_now(const rose_batch_store *s);              /* any thread, without the lock */
void rose_store_new_id(char out[STORE_ID], const char *prefix); /* likewise */

/* Copies a string and its NUL; false: v is none, or it does not fit. */
bool rose_store_take_text(char *out, size_t cap, const rose_json *v);

/* ---- records ---- */

/* Reads what all records have. False: v, the file `name`, is none of ours. */
bool rose_store_read_head(store_record *r, const rose_json *v, const rose_json *id,
                          const char *name);
/* The owner's record with this id; NULL: there is none, and err says so. */
void *rose_store_find(store_folder *f, const char *owner, const char *id, rose_err *err);
void rose_store_insert(rose_batch_store *s, store_folder *f, store_record *r);
/* Writes v as ID.json, and releases it; NULL: no memory. */
rose_status rose_store_save(const store_folder *f, const char *id, rose_json *v, rose_err *err);
/* Appends v as text, and releases it; NULL: no memory. */
rose_status rose_store_put(rose_buf *out, rose_json *v, rose_err *err);
/* What a client asks: one record; a page of those that are wanted (NULL: all). They take the lock
 * themselves. */
rose_status rose_store_get(rose_batch_store *s, store_folder *f, const char *owner, const char *id,
                           rose_buf *out, rose_err *err);
rose_status rose_store_list(rose_batch_store *s, store_folder *f, const char *owner,
                            const rose_batch_page *p,
                            bool (*wanted)(const store_record *, const rose_batch_page *),
                            rose_buf *out, rose_err *err);

/* store.c */
/* Writes what is known about a file, and adds it. Its content has its place, or gets it next. Takes
 * f in any case. */
rose_status rose_store_file_add(rose_batch_store *s, store_file *f, rose_err *err);
int64_t rose_store_expiry(const rose_batch_store *s, uint32_t expire_s); /* from now; 0 = never */
void rose_store_file_forget(rose_batch_store *s, store_file *f); /* and its bytes on the disk */
void rose_store_file_free(store_file *f);

/* store_batches.c */
store_record *rose_store_batch_read(rose_batch_store *s, const rose_json *v, const char *name);
rose_json *rose_store_batch_show(const store_record *r);
void rose_store_batch_free(store_batch *b);
void rose_store_batch_forget(rose_batch_store *s, store_batch *b);
/* Whether an unfinished batch reads this file. */
bool rose_store_in_use(const rose_batch_store *s, const char *file_id);

/* store_batches.c, without the lock: the thread of one batch */
void rose_store_run(rose_batch_store *s, store_batch *b);

#endif
