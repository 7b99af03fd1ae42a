/* bench/load.h - sends requests at their times and records what comes back. One thread, one epoll,
 * non-blocking sockets; a timerfd carries the next due time, so nothing spins.
 *
 * Open loop: a request goes out at its due time however many are under way; what the client itself
 * is late is start_ns - due_ns. Closed loop (concurrency > 0): the next goes out when one ends.
 * Arrival is when the kernel took the bytes in (SO_TIMESTAMPNS), so it does not depend on when this
 * thread gets to run; where the kernel gives no stamp, it is the time right behind recv(), and all
 * sockets that are ready together are read before the first byte is parsed. */
#ifndef ROSE_BENCH_LOAD_H
#define ROSE_BENCH_LOAD_H

#include <signal.h>

#include "bench/reply.h"

typedef struct rose_url {
    char host[256]; /* without brackets */
    char port[8];
    char path[256]; /* without the last slash: "" or "/base" */
} rose_url;

/* http://HOST[:PORT][/PATH]; INVAL names what is wrong. */
rose_status rose_url_parse(rose_url *out, const char *text, rose_err *err);

/* One request's bytes, head and body, into out (appended). body NULL: GET. */
rose_status rose_request_write(rose_buf *out, const rose_url *u, const char *path, const char *key,
                               const char *body, size_t len);

typedef struct rose_load_item {
    const char *bytes; /* the whole request; borrowed */
    size_t len;
    uint64_t due_ns; /* after the start of the run; unused in a closed loop */
} rose_load_item;

typedef struct rose_load_opts {
    const rose_url *url;
    uint32_t concurrency;              /* 0 = open loop */
    uint64_t timeout_ns;               /* of one request, from its sending; 0 = none */
    uint64_t stall_ns;                 /* longest silence within a request; 0 = none */
    const volatile sig_atomic_t *stop; /* polled between events: true ends the run; may be NULL */
    void (*progress)(void *user, uint32_t done, uint32_t n); /* may be NULL */
    void *user;
} rose_load_opts;

/* Runs items[0..n), ascending in due_ns; replies[i] (zeroed by the caller, freed by the caller with
 * rose_reply_free; max_tokens may be set) tells what became of item i. A request's failure is in
 * its reply; the status is not OK only if the run itself cannot go on (no sockets, no such host,
 * out of memory). */
rose_status rose_load_run(const rose_load_opts *o, const rose_load_item *items, uint32_t n,
                          rose_reply *replies, rose_err *err);

/* One plain request, blocking, at most timeout_ms: for /ready and the like. *status: HTTP status, 0
 * without a reply; body (may be NULL) gets the reply's body. */
rose_status rose_http_get(const rose_url *u, const char *path, uint32_t timeout_ms, int *status,
                          rose_buf *body, rose_err *err);
/* The same, and with a body (JSON) a POST; NULL = GET. */
rose_status rose_http_call(const rose_url *u, const char *path, const char *post,
                           uint32_t timeout_ms, int *status, rose_buf *body, rose_err *err);

#endif
