/* http/http_internal.h - declarations that the files of src/http share: the I/O thread, the
 * connection.
 *
 * One connection is one state machine:
 *
 * HEAD --head parsed--> BODY --last byte--> BUSY --reply ended--> HEAD (keep-alive)
 *  \______________________\__refused___________\__ or close_--> CLOSING --sent--> LINGER or gone
 *
 * Only the end of a loop turn (rose_http_io_turn) and stop free a connection. All other code
 * sets `doomed` and marks the connection as dirty. So no callback of the user can free a
 * connection that we still use, and all bytes of a turn leave in one system call. */
#ifndef ROSE_HTTP_HTTP_INTERNAL_H
#define ROSE_HTTP_HTTP_INTERNAL_H

#include <event2/event.h>
#include <event2/event_struct.h>
#include <http_parser.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "base/ring.h"
#include "base/stall.h"
#include "http/http.h"

enum {
    HTTP_LOOKAHEAD = 16 * 1024, /* bytes of later requests kept while one is answered */
    HTTP_OUT_HIGH = 256 * 1024, /* while more than this many bytes are unsent, no further request
                                 * is parsed */
    HTTP_KEEP_BYTES = 4 * 1024, /* an idle connection keeps buffers up to this size */
    HTTP_MAX_HEADERS = 256,
    HTTP_MAX_CHUNK_EXT = 1024,
    HTTP_LINGER_MS = 5000,  /* how long the client may still send after its request was refused */
    HTTP_RESERVE = 64,      /* places.c: size of the reserve, for connections over the limit, of
                             * all threads together */
    HTTP_RESERVE_MS = 2000, /* how long a connection in the reserve may take to send its headers */
    HTTP_SCRATCH = 64 * 1024, /* one read */
    HTTP_MORE_POSTS = 1024    /* beside those of new connections */
};

typedef struct rose_http_io rose_http_io;
typedef struct rose_http_conn rose_http_conn;
typedef struct rose_http_tls rose_http_tls;

typedef enum http_conn_state {
    CONN_HEAD,    /* the connection waits for, or reads, request line and headers */
    CONN_BODY,    /* headers accepted, body incomplete */
    CONN_BUSY,    /* the user has the request; later input waits in `ahead` */
    CONN_CLOSING, /* the last reply is in `out`; input is discarded */
    CONN_LINGER   /* all is sent and shut down; input is discarded until the client closes */
} http_conn_state;

typedef enum http_chunk_state {
    CHUNK_SIZE_FIRST, /* at the first digit of a size */
    CHUNK_SIZE,
    CHUNK_EXT,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER, /* within a trailer line, or at its start */
    CHUNK_TRAILER_LF
} http_chunk_state;

typedef enum http_read_mode {
    HTTP_READ_OFF,
    HTTP_READ_ON,   /* level-triggered */
    HTTP_READ_PROBE /* the lookahead is full, or nothing more comes: edge-triggered, only to learn
                       that the client left */
} http_read_mode;

/* Tells which of its thread's lists a connection is on; see places.c. */
typedef enum http_place {
    HTTP_PLACE_NONE,    /* it has work, or is about to be destroyed */
    HTTP_PLACE_WAITING, /* the connection has no complete request, so it is the first to be
                         * dropped at the limit */
    HTTP_PLACE_RESERVE  /* the connection came over the limit while all others had work */
} http_place;

/* The state of a client that has closed its sending side; see peer.c. */
typedef enum http_peer {
    HTTP_PEER_UNKNOWN, /* not asked yet, or nothing could be asked */
    HTTP_PEER_OPEN,    /* the client is on this machine, and its socket is still open */
    HTTP_PEER_CLOSED,  /* the client is on this machine, and its socket is closed */
    HTTP_PEER_REMOTE   /* the kernel cannot tell */
} http_peer;

typedef struct http_header {
    uint32_t name, name_len, value, value_len; /* offsets into conn->head, NUL-terminated there */
} http_header;

struct rose_http_req {
    rose_http_conn *conn;
    rose_http_info info;
    void *user;
    uint64_t body_bytes, bytes_out, first_ns; /* see rose_http_done */
    int status;
    char note[ROSE_HTTP_NOTE];
    bool streaming; /* stream_begin was called */
    bool chunked;   /* its bytes are framed as chunks */
};

struct rose_http_conn {
    rose_http_io *io;
    int fd;
    http_conn_state state;
    http_read_mode read_mode;
    bool dirty;    /* the connection is on io->dirty: it has work at the end of this event-loop
                    * iteration */
    bool doomed;   /* destroyed at the end of this turn */
    bool wblocked; /* the socket's buffer is full: ev_write is armed */
    bool eof;      /* the client has ended its side */
    bool linger;   /* in the state CLOSING: the client may still be sending, so it gets time to
                    * read our answer */
    bool extra; /* the connection is in the reserve, which rose_http.connections does not count */
    bool own;   /* the client is this process: rose_http_connect */
    bool over;  /* the connection came when max_connections was reached; decided when the
                 * connection starts */
    void *ssl;  /* the TLS session; owned; NULL: plain */
    bool tls_failed;     /* the session is broken; nothing more may be asked of it */
    bool tls_ended;      /* we have said its end */
    bool tls_read_again; /* a read waits until the socket takes bytes */
    bool half_closed;    /* the client's end was seen while a reply was due: the peer is watched */
    http_place place;
    http_peer peer;
    uint32_t peer_wait_ms; /* until the peer is looked at again */
    bool keep_alive;       /* whether the request allows keep-alive; final once a reply's head is
                            * written */
    bool head_done;        /* the parser has seen the end of the headers */
    bool head_sliced;      /* the fields of the head are NUL-terminated and may be read */
    bool complete;         /* the whole request is here */
    bool chunked;          /* the request's body is */
    int refuse_status;     /* set by a parser callback that failed */
    const char *refuse_why;
    struct event ev_read, ev_write, ev_timer;
    uint64_t read_deadline, write_deadline; /* ns, 0 = none */
    uint64_t timer_at;                      /* when ev_timer fires, 0 = not armed */
    uint64_t sent_id, sent_arrival_ns; /* id and arrival of the request whose reply ended last, for
                                          a profile; 0 = none */
    uint64_t blocked_ns; /* time since which the client has taken no byte; 0 = the client reads;
                          * set only while the write time-out is watched */

    rose_buf out; /* unsent bytes: [out_off, out.len) */
    size_t out_off;
    rose_buf
        next; /* a large body to send after `out`; nothing is appended until it has become `out` */
    size_t held; /* bytes of output capacity kept while the client does not read; part of io->held;
                    0 = nothing pending */
    bool out_whole;    /* `out` was taken as a whole body: too large to move until most is sent */
    uint32_t n_unsent; /* replies that are complete in `out` and still count as in flight */
    rose_buf ahead;    /* input not yet parsed: [ahead_off, ahead.len) */
    size_t ahead_off;
    rose_buf head;    /* request line and headers of the current request */
    size_t head_scan; /* searched for line ends up to here */
    size_t line_start;
    rose_buf body;
    size_t body_counted;    /* of it, in rose_http.body_bytes */
    uint64_t body_began_ns; /* when the headers were complete */
    http_chunk_state chunk;
    uint64_t chunk_left;
    size_t line_bytes, trailer_bytes;
    http_header *headers;
    uint32_t n_headers, cap_headers;
    uint32_t url, url_len;             /* in head */
    uint32_t authority, authority_len; /* place in `head` of the authority (host and port) of an
                                        * absolute URI; length 0 = the URI has none */
    uint64_t content_length;           /* still to come, once in CONN_BODY */
    http_parser parser;
    rose_http_req req;
    TAILQ_ENTRY(rose_http_conn) all_link, dirty_link, place_link;
};

TAILQ_HEAD(http_conn_list, rose_http_conn);

struct rose_http_timer {
    struct event ev;
    rose_http_io *io;
    void (*fn)(void *arg);
    void *arg;
    LIST_ENTRY(rose_http_timer) link;
};

typedef struct http_watch {
    struct event ev;
    rose_http_io *io;
    void (*fn)(void *arg);
    void *arg;
    LIST_ENTRY(http_watch) link;
} http_watch;

struct rose_http_io {
    rose_http *h;
    uint32_t index;
    int cpu; /* -1 = not pinned */
    pthread_t thread;
    bool started;
    bool drained;            /* has acted on h->draining */
    uint64_t awake_until_ns; /* 0: it sleeps when nothing is there */
    struct event_base *base;
    struct event ev_wake, ev_turn;
    bool wake_added, turn_pending;
    uint64_t marked_ns; /* end of the last recorded send in this event-loop iteration; 0: the
                         * next send reads the clock */
    rose_mpsc *posts;   /* of http_post */
    int wake_fd;
    _Atomic int wake_pending; /* 1 from a wake until the thread reads it */
    struct http_conn_list conns, dirty;
    struct http_conn_list waiting, reserve; /* both oldest first */
    uint32_t n_reserve;
    _Atomic uint32_t
        n_waiting; /* length of `waiting`: written by this thread, read by the one that accepts */
    LIST_HEAD(, rose_http_timer) timers;
    LIST_HEAD(, http_watch) watches;
    char *scratch;         /* [HTTP_SCRATCH] */
    size_t held, max_held; /* output memory held by all connections; this thread's share of
                              max_total_pending_bytes */
    /* --stall-warn-ms: time of this event-loop iteration since its first callback, and the kind
     * of callback that took longest */
    rose_stall_span turn;
    const char *phase, *longest;
    uint64_t phase_began_ns, longest_ns;
    uint32_t n_callbacks;
    int64_t date_s;
    char date[32]; /* "Sat, 21 Nov 2026 01:00:00 GMT" of second date_s */
};

/* Limits a log line that hostile clients could otherwise cause a thousand times a second. */
typedef struct http_seldom {
    _Atomic uint64_t next_ns; /* not before then */
} http_seldom;

struct rose_http {
    rose_http_opts opts;
    rose_http_callbacks cb;
    rose_http_io *ios; /* [opts.n_threads] */
    int listen_fd;     /* thread 0's after start; -1 once closed */
    char *unix_path;   /* owned, to remove the file; only the first I/O thread reads it */
    dev_t unix_dev;    /* the file that we made there */
    ino_t unix_ino;
    bool on_unix;       /* a UNIX socket, not TCP; constant while threads run */
    rose_http_tls *tls; /* owned; NULL: plain */
    uint16_t port;
    bool check_host; /* the Host header must hold one of our names */
    struct event ev_accept, ev_accept_again;
    bool accept_added;
    int spare_fd;     /* thread 0 only: closed to accept a client when no descriptor is left */
    uint64_t n_no_fd; /* thread 0 only: clients turned away because no descriptor was left */
    uint32_t next_io; /* thread 0's */
    http_seldom no_fd, full; /* their log lines */
    _Atomic uint32_t connections, inflight;
    _Atomic uint64_t n_dropped, n_refused; /* by the connection limit */
    _Atomic uint64_t body_bytes; /* bytes of bodies received that the user has not taken and that
                                    were not dropped */
    _Atomic uint64_t n_slow[ROSE_HTTP_N_SLOW];
    _Atomic bool draining, stopping;
};

/* server.c: marks the start of a callback of io's loop. */
void rose_http_phase_on(rose_http_io *io, const char *name);
static inline void rose_http_phase(rose_http_io *io, const char *name)
{
    if (rose_stall_limit != 0) rose_http_phase_on(io, name);
}

/* accept.c: on thread 0 */
rose_status rose_http_accept_start(rose_http *h, rose_err *err);
void rose_http_accept_stop(rose_http *h);

/* listen.c */
rose_status rose_http_listen(rose_http *h, rose_err *err);
void rose_http_unlisten(rose_http *h);

/* conn.c: all on the connection's thread */
rose_http_conn *rose_http_conn_new(rose_http_io *io, int fd, bool over); /* any thread */
void rose_http_conn_start(rose_http_conn *c);
void rose_http_conn_turn_away(rose_http_io *io, int fd, const char *why); /* 503, and the end */
void rose_http_conn_destroy(rose_http_conn *c);  /* on_gone if BUSY; turn and stop only */
void rose_http_conn_read_now(rose_http_conn *c); /* reads the bytes that have arrived, without
                                                  * waiting for the read event */
void rose_http_conn_touch(rose_http_conn *c);    /* has work at the end of this turn */
void rose_http_conn_doom(rose_http_conn *c);     /* destroy at the end of this turn */
void rose_http_conn_slow(rose_http_conn *c, rose_http_slow why); /* doom, counted */
void rose_http_conn_flush(rose_http_conn *c); /* send what the socket takes now */
void rose_http_conn_turn(rose_http_conn *c);  /* end of the turn; may destroy c */
void rose_http_conn_drain(rose_http_conn *c); /* close if idle */
void rose_http_conn_sent(
    rose_http_conn *c); /* notes, for a profile, that the last byte of the last reply is sent */

/* places.c: functions for the connection limit; they run on the connection's thread, except
 * where stated */
bool rose_http_place_seldom(http_seldom *s); /* at most once a minute; any thread */
rose_http_io *
rose_http_place_pick(rose_http *h); /* thread 0: picks a thread for a connection over the limit */
                                    /* finds one to replace; NULL = nowhere */
void rose_http_place_enter(rose_http_conn *c);  /* it starts */
void rose_http_place_update(rose_http_conn *c); /* end of its turn */
void rose_http_place_work(rose_http_conn *c);   /* its request is complete */
void rose_http_place_leave(rose_http_conn *c);  /* it ends */

/* host.c */
bool rose_http_host_allowed(const rose_http_conn *c, const char *host, size_t len);
bool rose_http_host_is_loopback(const char *host, size_t len);
bool rose_http_host_listed(const rose_opt_list *list, const char *host, size_t len);

/* cors.c */
rose_status rose_http_cors_check(const rose_opt_list *origins, rose_err *err);
bool rose_http_cors_headers(const rose_http_conn *c, rose_buf *out); /* of a reply; false: NOMEM */
bool rose_http_cors_may_ask(rose_http_conn *c); /* false: a preflight that was refused */
void rose_http_cors_answer(rose_http_req *r);   /* r is a preflight */

/* tls.c: read and write are recv and send over TLS; a write that waits for the client gives EAGAIN
 * without wblocked. */
rose_status rose_http_tls_open(rose_http_tls **out, const char *cert, const char *key,
                               rose_err *err);
rose_status rose_http_tls_reload(rose_http_tls *t, const char *cert, const char *key,
                                 rose_err *err);
void rose_http_tls_close(rose_http_tls *t);  /* after all connections; accepts NULL */
bool rose_http_tls_begin(rose_http_conn *c); /* false: out of memory */
ssize_t rose_http_tls_read(rose_http_conn *c, void *out, size_t cap);
ssize_t rose_http_tls_write(rose_http_conn *c, const void *bytes, size_t n);
bool rose_http_tls_pending(const rose_http_conn *c); /* decrypted bytes wait */
void rose_http_tls_say_end(rose_http_conn *c);
void rose_http_tls_free(rose_http_conn *c);

/* peer.c */
http_peer rose_http_peer_ask(int fd);

/* parse.c: takes input while the state is HEAD or BODY; returns how many bytes it used */
size_t rose_http_parse(rose_http_conn *c, const char *data, size_t len);
void rose_http_parse_reset(rose_http_conn *c);

/* body.c */
size_t rose_http_body_parse(rose_http_conn *c, const char *data, size_t len); /* in CONN_BODY */
uint64_t rose_http_body_deadline(const rose_http_conn *c); /* if nothing more comes */
void rose_http_body_late(rose_http_conn *c);               /* 408, and which limit it was */
void rose_http_body_uncount(rose_http_conn *c);            /* its body is no longer ours */

/* reply.c */
void rose_http_refuse(rose_http_conn *c, int status, const char *why);
void rose_http_refuse_with(rose_http_conn *c, int status, const char *why, const char *headers);
void rose_http_done_with(rose_http_conn *c, bool gone); /* on_done */
void rose_http_refuse_extra(rose_http_conn *c);         /* it came over the connection limit */
static inline size_t http_pending(const rose_http_conn *c)
{
    return c->out.len - c->out_off + c->next.len;
}

#endif
