/* http/http.h - an HTTP/1.1 server on libevent's event loop and http_parser: connections, limits,
 * time-outs, replies, streams. It knows nothing about tokens or JSON.
 *
 * Why not evhttp: its own errors (413, 431, 408) cannot have our body, it does not notice a client
 * that leaves while we compute, and it costs two epoll_ctl for each streamed event.
 *
 * Threads: n_threads I/O threads, each with its own event loop. A connection, and every
 * rose_http_req on it, belongs to one of them. Functions on a request are called on its thread,
 * except where stated. */
#ifndef ROSE_HTTP_HTTP_H
#define ROSE_HTTP_HTTP_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/opts.h"

typedef struct rose_http rose_http;
typedef struct rose_http_req rose_http_req;

/* How a request ended. */
typedef struct rose_http_done {
    bool readable;                /* method, path and headers could be read */
    bool gone;                    /* the connection ended before the reply */
    int status;                   /* 0: no reply was begun */
    uint64_t bytes_in, bytes_out; /* with heads; a body without the framing of its chunks */
    uint64_t first_ns, end_ns;    /* the reply's head, 0 = none; now */
} rose_http_done;

typedef struct rose_http_callbacks {
    /* A complete request has arrived. The callback must reply exactly once, now or later (reply,
     * or stream_begin .. stream_end). */
    void (*on_request)(void *arg, rose_http_req *r);
    /* The client has left (or stalled past the limit) before the end of the reply; r is no
     * longer usable when this returns. Not called after the reply ended. A client that has only
     * closed its sending side has not left: see conn.c. */
    void (*on_gone)(void *arg, rose_http_req *r);
    /* The headers of a request are complete, and its body is not read yet. Returns 0 if the request
     * may go on, else the status with which it is refused. *why is then the message, *headers
     * further lines of the reply or NULL; both are constant. Any I/O thread. NULL = all may. */
    int (*on_head)(void *arg, const rose_http_req *r, const char **why, const char **headers);
    /* The reply is complete in the connection's buffer, or the connection ends before that. Called
     * once for each request of which a byte has come, after on_gone. Any I/O thread. NULL = nothing
     * is called. */
    void (*on_done)(void *arg, rose_http_req *r, const rose_http_done *d);
    /* Tells whether a GET or HEAD of this path is answered even at the connection limit: health
     * checks and metrics. Any I/O thread. NULL = no path is. */
    bool (*is_vital)(void *arg, const char *path);
    /* Appends to `out` the body of an error response that the HTTP server itself creates. path:
     * that of the request, "" if it could not be read. NULL = plain text. */
    void (*error_body)(void *arg, const char *path, int status, const char *message, rose_buf *out);
    /* Called on an I/O thread that stays awake, between iterations of its event loop. NULL =
     * nothing is called. */
    void (*poll)(void *arg, uint32_t thread);
    void *arg;
} rose_http_callbacks;

typedef struct rose_http_opts {
    const char *host;      /* address: "127.0.0.1", "::1", "0.0.0.0", a name; or "unix:PATH" */
    const char *uds;       /* path of a Unix socket to listen on instead; NULL = host and port */
    uint32_t unix_mode;    /* file mode of a Unix socket */
    int listen_fd;         /* a listening socket to take over instead of all these; 0 = none */
    const char *root_path; /* taken off the front of paths that begin with it, where a slash or the
                            * path's end follows; final slashes do not count. NULL = nothing */
    bool no_port;          /* listen nowhere: only rose_http_connect brings connections */
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS; tls_key NULL: in tls_cert */
    uint32_t port;                  /* 0 = any free port, see rose_http_port; at most 65535 */
    uint32_t n_threads;             /* I/O threads, 1 .. 64 */
    const int *cpus;                /* thread i is pinned to cpus[i % n_cpus] */
    uint32_t n_cpus;                /* 0 = not pinned */
    size_t max_header_bytes;        /* request line + headers; over: 431 */
    size_t max_body_bytes;          /* a larger body gets 413, before it is read */
    size_t max_total_body_bytes;    /* limit for the bytes of all request bodies that are being
                                     * received; over the limit: 503. 0 = 32 times max_body_bytes;
                                     * never less than max_body_bytes */
    uint32_t max_connections;   /* at the limit, a new connection replaces the one that has waited
                                   longest for a complete request. If all have work, the new
                                   one gets 503, or its answer if the request is_vital */
    uint32_t header_timeout_ms; /* from the first byte to the last header; longer: 408 */
    uint32_t body_timeout_ms;   /* longest pause within a body; over: 408 */
    uint32_t body_min_rate;     /* bytes a second that a body must bring on average, after its first
                                   body_timeout_ms; fewer: 408. 0 = no such limit */
    uint32_t body_total_ms;     /* longest time for a whole body; over: 408 */
    uint32_t idle_timeout_ms;  /* a keep-alive connection without a request is closed silently after
                                  this time */
    uint32_t write_timeout_ms; /* longest time in which a client takes none of the reply's pending
                                  bytes; longer: on_gone, closed */
    rose_opt_list allowed_hosts; /* names that the Host header may hold in addition to those of the
                                    listening address; "*" = any. Empty: no check, unless that
                                    address is a loopback one */
    rose_opt_list allowed_origins;  /* of web pages that may read replies: "*" = any, else as
                                     * browsers  send them. Empty: replies have no CORS headers */
    size_t max_pending_bytes;       /* unsent bytes of one streaming reply; more: on_gone, closed */
    size_t max_total_pending_bytes; /* limit for the memory of all replies, whole and streaming,
                                       that clients do not take. Over it, the reply that was not
                                       read for longest is closed, unless it is the only one. Each
                                       thread has its share. 0 = 256 times max_pending_bytes; never
                                       less than max_pending_bytes */
} rose_http_opts;

/* Sets 127.0.0.1:8888, mode 0600 of Unix sockets, 1 thread; header 64 KiB, body 32 MiB, 4096
 * connections; header 10 s, body 30 s, 1024 bytes a second and 1 hour, idle 75 s, write 30 s; 4 MiB
 * pending. */
void rose_http_opts_default(rose_http_opts *o);

/* Binds and listens (a port in use fails here, with a message), and starts the threads. On success
 * opts->listen_fd is the server's. */
rose_status rose_http_start(rose_http **out, const rose_http_opts *o, const rose_http_callbacks *cb,
                            rose_err *err);
uint16_t rose_http_port(const rose_http *h);

/* On an I/O thread: until until_ns (monotonic clock; 0: stop now) its loop polls for events and
 * calls `poll` instead of sleeping. For work that is about to come, because a wake-up takes 30
 * to 60 us. */
void rose_http_stay_awake(rose_http *h, uint32_t thread, uint64_t until_ns);

/* Closes the listening socket and idle connections. Replies that have begun continue, and then
 * their connections close ("Connection: close"). Any thread. */
void rose_http_drain(rose_http *h);

/* Reads the files of tls_cert and tls_key again. New connections get the new certificate; open ones
 * keep theirs. Main thread; only with tls_cert. Errors: FORMAT (a file, or the key does not fit),
 * NOMEM; then nothing changes. */
rose_status rose_http_reload_tls(rose_http *h, rose_err *err);

/* Any thread: the number of requests whose reply is not yet sent to its last byte, and of open
 * connections. */
uint32_t rose_http_inflight(const rose_http *h);
uint32_t rose_http_connections(const rose_http *h);

/* Any thread: counts of connections that ended because clients did not read, or because of the
 * connection limit. The latter were dropped for new ones, or were new and got 503. */
typedef enum rose_http_slow {
    ROSE_HTTP_SLOW_STALLED, /* write_timeout_ms */
    ROSE_HTTP_SLOW_STREAM,  /* max_pending_bytes */
    ROSE_HTTP_SLOW_TOTAL,   /* max_total_pending_bytes */
    ROSE_HTTP_N_SLOW
} rose_http_slow;
uint64_t rose_http_n_slow(const rose_http *h, rose_http_slow why);
uint64_t rose_http_n_dropped(const rose_http *h);
uint64_t rose_http_n_refused(const rose_http *h);

/* Opens a connection from this process to the server, on I/O thread `thread`. *fd is the client's
 * end, non-blocking and owned by the caller; when the caller closes it, the client has left. The
 * connection needs neither TLS nor an API key. Any thread, before rose_http_stop. Errors: IO (no
 * descriptor), NOMEM, FULL and CLOSED as rose_http_post; then *fd is -1. */
rose_status rose_http_connect(rose_http *h, uint32_t thread, int *fd, rose_err *err);

/* Stops all threads, drops all connections (on_gone for open requests), frees. Not from an I/O
 * thread. */
void rose_http_stop(rose_http *h);

/* Runs fn(arg) on I/O thread i, in the next iteration of its event loop. Any thread.
 * ROSE_E_FULL: the queue (max_connections and 1024 more) is full, and fn will not run.
 * ROSE_E_CLOSED: the server is stopping, and fn will not run. An accepted call runs exactly
 * once; calls that are still queued at stop run on the thread that calls stop. */
rose_status rose_http_post(rose_http *h, uint32_t thread, void (*fn)(void *arg), void *arg);

/* Calls fn(arg) on I/O thread i whenever fd is readable (level-triggered), until the server
 * stops. Call it right after start, before traffic. */
rose_status rose_http_watch(rose_http *h, uint32_t thread, int fd, void (*fn)(void *arg), void *arg,
                            rose_err *err);

/* Calls fn(arg) on I/O thread i after ms milliseconds, once. The handle cancels it before it has
 * fired. */
typedef struct rose_http_timer rose_http_timer;
rose_http_timer *rose_http_timer_start(rose_http *h, uint32_t thread, uint32_t ms,
                                       void (*fn)(void *arg),
                                       void *arg); /* on that thread; NULL = no memory */
void rose_http_timer_cancel(rose_http_timer *t);   /* on that thread; accepts NULL */

/* ---- the request: borrowed until the reply ends or on_gone ---- */
typedef struct rose_http_info {
    const char *method;               /* "POST" */
    const char *path;                 /* without the query, not percent-decoded */
    const char *query;                /* "" if none */
    uint64_t arrival_ns, complete_ns; /* first byte of the request; last byte of the body */
    uint64_t prof_id;                 /* base/profile.h; 0 = not recorded */
    uint32_t thread;
    bool own;      /* rose_http_connect has opened the connection of the request */
    bool has_body; /* on_head: a body is announced */
} rose_http_info;
const rose_http_info *rose_http_req_info(const rose_http_req *r);
const char *rose_http_req_header(const rose_http_req *r,
                                 const char *name); /* case-insensitive; NULL */
uint32_t rose_http_req_header_count(const rose_http_req *r, const char *name);
/* A browser's question (OPTIONS, no body) before a page's request to another origin. It is answered
 * here and never comes to on_request. False without allowed_origins. */
bool rose_http_req_is_preflight(const rose_http_req *r);
const char *rose_http_req_body(const rose_http_req *r, size_t *len);
/* Takes the body away from the request, which then has none. The caller frees the len bytes (and
 * at least one more, a NUL) with free(), in any thread. So a large body need not be copied. NULL
 * if there is no memory for the NUL; the request then keeps its body. */
char *rose_http_req_take_body(rose_http_req *r, size_t *len);
/* Text that the user of this HTTP server may write for on_done; "" at first. */
enum { ROSE_HTTP_NOTE = 160 };
char *rose_http_req_note(rose_http_req *r);
/* Writes the client's address, "unix", "batch" for a connection of this process, or "unknown". */
enum { ROSE_HTTP_CLIENT = 46 };
void rose_http_req_client(const rose_http_req *r, char out[ROSE_HTTP_CLIENT]);
void rose_http_req_set_user(rose_http_req *r, void *user);
void *rose_http_req_user(const rose_http_req *r);

/* ---- the reply. headers: "Name: value\r\n" lines or NULL. Content-Length, Date and Connection
 * are added here ---- */
void rose_http_reply(rose_http_req *r, int status, const char *content_type, const char *headers,
                     const void *body, size_t len);

/* As rose_http_reply, but takes the memory of *body, which is left empty, also on failure. It is
 * for bodies of megabytes, which the thread should not copy. */
void rose_http_reply_take(rose_http_req *r, int status, const char *content_type,
                          const char *headers, rose_buf *body);

/* A chunked reply. All writes of one event-loop iteration leave in one system call. False: the
 * client has gone or has more than max_pending_bytes unread; on_gone has been or will be called. */
bool rose_http_stream_begin(rose_http_req *r, int status, const char *content_type,
                            const char *headers);
bool rose_http_stream_write(rose_http_req *r, const void *bytes, size_t len);
void rose_http_stream_end(rose_http_req *r);

#endif
