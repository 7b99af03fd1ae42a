/* api/doors.h - who may use the server, and who did: API keys, access log. */
#ifndef ROSE_API_DOORS_H
#define ROSE_API_DOORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/opts.h"
#include "base/status.h"

/* The keys of a server (--api-key, --api-key-file, ROSEINFER_API_KEY). A key has 1 to
 * ROSE_API_KEY_BYTES visible ASCII characters. No message and no log line has a key in it.
 * Threads: filled by the main thread, then only read, by any thread. */
typedef struct rose_api_keys rose_api_keys;

enum { ROSE_API_KEY_BYTES = 256, ROSE_API_MAX_KEYS = 1024, ROSE_API_MAX_KEY_FILE = 512 << 10 };

/* Reads the keys of all three places; file and env may be NULL. *out is NULL if none of them is
 * given: the server is then open to all. Errors: INVAL (a key is malformed, or there are too many),
 * IO, FORMAT (the file), NOMEM. */
rose_status rose_api_keys_read(rose_api_keys **out, const rose_opt_list *list, const char *file,
                               const char *env, rose_err *err);

/* Reads the variables of vLLM and llama.cpp, for a server that has no keys of its own; both may be
 * NULL, and hold several keys with commas between them. *out is NULL if they hold none. Errors:
 * INVAL, NOMEM. */
rose_status rose_api_keys_read_others(rose_api_keys **out, const char *vllm, const char *llama,
                                      rose_err *err);

/* Tells whether the len bytes at `given` are one of the keys. The time depends on len and on the
 * number of keys, but not on their bytes and lengths, nor on which one fits. */
bool rose_api_keys_hold(const rose_api_keys *k, const char *given, size_t len);

uint32_t rose_api_keys_count(const rose_api_keys *k);
void rose_api_keys_free(rose_api_keys *k); /* wipes the keys; accepts NULL */

/* Returns the token of "Bearer TOKEN", the value of a header Authorization; NULL if the header has
 * another scheme or no token. */
const char *rose_api_bearer(const char *value);

/* The access log: path is a file, which is appended to, or "-" for standard output. Lines are
 * written by a thread of the log. close writes those that wait; accepts NULL. Errors: IO, NOMEM.
 * Main thread; open it when the signals of the program are blocked. */
typedef struct rose_access_log rose_access_log;
rose_status rose_access_log_open(rose_access_log **out, const char *path, rose_err *err);
void rose_access_log_close(rose_access_log *l);

/* The ids of a header traceparent (W3C Trace Context), in lower-case hexadecimal digits. */
typedef struct rose_api_trace {
    char trace_id[33], parent_id[17];
} rose_api_trace;

/* False: the header is malformed, or its ids are zero; out is then empty. */
bool rose_api_trace_read(rose_api_trace *out, const char *value);

#endif
