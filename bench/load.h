/* bench/load.h - sends requests at their times and records the replies. One thread, one epoll and
 * non-blocking sockets; a timerfd wakes the thread for the next request that is due.
 *
 * In an open loop a request is sent at its due time, however many are running. start_ns - due_ns is
 * how late this client was. In a closed loop (concurrency > 0) the next request is sent when one
 * ends.
 *
 * The arrival time of bytes is the kernel's (SO_TIMESTAMPNS), so it does not depend on when this
 * thread runs. If the kernel gives none, it is the time just after recv(). All sockets that are
 * ready are read before anything is parsed. */
#ifndef ROSE_BENCH_LOAD_H
#define ROSE_BENCH_LOAD_H

#include <signal.h>

#include "base/fetch.h"
#include "bench/reply.h"

/* Appends one request, head and body, to out. body NULL makes it a GET. */
rose_status rose_request_write(rose_buf *out, const rose_url *u, const char *path, const char *key,
                               const char *body, size_t len);

typedef struct rose_load_item {
    const char *bytes; /* head and body of the request; borrowed */
    size_t len;
    /* time after the start of the run at which the request is due; a closed loop ignores this
     * time */
    uint64_t due_ns;
} rose_load_item;

typedef struct rose_load_opts {
    const rose_url *url;
    uint32_t concurrency; /* 0 = open loop */
    /* longest time from sending a request to the end of its reply; 0 = no limit */
    uint64_t timeout_ns;
    uint64_t stall_ns;                 /* longest silence within a reply; 0 = no limit */
    const volatile sig_atomic_t *stop; /* true ends the run; read between events; may be NULL */
    /* Called as requests end, for a progress bar; may be NULL. */
    void (*progress)(void *user, uint32_t done, uint32_t n);
    void *user;
} rose_load_opts;

/* Sends items[0..n), which are in ascending order of due_ns. replies[i] says what became of item i.
 * The caller zeroes the replies, may set max_tokens in them, and frees each with rose_reply_free. A
 * request that fails is noted in its reply. The status is an error only if the whole run cannot go
 * on: no sockets, no such host, out of memory. */
rose_status rose_load_run(const rose_load_opts *o, const rose_load_item *items, uint32_t n,
                          rose_reply *replies, rose_err *err);

/* Sends one blocking request that takes at most timeout_ms: a POST of a JSON body, or a GET if post
 * is NULL. key (may be NULL) is sent as a bearer token. *status is the HTTP status, or 0 if no
 * reply came. body (may be NULL) gets the body of the reply. */
rose_status rose_http_call(const rose_url *u, const char *path, const char *key, const char *post,
                           uint32_t timeout_ms, int *status, rose_buf *body, rose_err *err);

/* Asks the kernel for time stamps on this socket. If it has none, rose_recv_stamped returns the
 * present time. */
void rose_stamp_enable(int fd);

/* As recv(fd, buf, n, 0), repeated after EINTR. *t_ns is a rose_now_ns value: when the kernel
 * received the last of these bytes. It is the present time after an end, an error, or without a
 * stamp. */
ssize_t rose_recv_stamped(int fd, void *buf, size_t n, uint64_t *t_ns);

#endif
