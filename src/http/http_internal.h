/* http/http_internal.h - what the files of this room share: the I/O thread, the connection.
 *
 * One connection, one state machine:
 *
 *   HEAD --head parsed--> BODY --last byte--> BUSY --reply ended--> HEAD (keep-alive)
 *     \______________________\__refused___________\__ or close_--> CLOSING --sent--> LINGER or gone
 *
 * Nothing frees a connection but the end of the loop turn (rose_http_io_turn) and stop: every other
 * place sets `doomed` and touches it. So no callback of the user's can pull a connection from under
 * us, and all bytes of a turn leave in one system call. */
#ifndef ROSE_HTTP_HTTP_INTERNAL_H
#define ROSE_HTTP_HTTP_INTERNAL_H

#include <event2/event.h>
#include <event2/event_struct.h>
#include <http_parser.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "base/ring.h"
#include "base/stall.h"
#include "http/http.h"

enum {
    HTTP_LOOKAHEAD = 16 * 1024, /* bytes of later requests kept while one is answered */
    HTTP_OUT_HIGH = 256 * 1024, /* unsent bytes above which no further request is parsed */
    HTTP_KEEP_BYTES = 4 * 1024, /* buffers up to this size stay with an idle connection */
    HTTP_MAX_HEADERS = 256,
    HTTP_MAX_CHUNK_EXT = 1024,
    HTTP_LINGER_MS = 5000,    /* after a refusal: how long the client may go on sending */
    HTTP_MAX_REFUSED = 64,    /* connections over the limit that may read their 503 in peace */
    HTTP_SCRATCH = 64 * 1024, /* one read */
    HTTP_MORE_POSTS = 1024    /* beside those of new connections */
};

typedef struct rose_http_io rose_http_io;
typedef struct rose_http_conn rose_http_conn;

typedef enum http_conn_state {
    CONN_HEAD,    /* waiting for, or within, request line and headers */
    CONN_BODY,    /* headers accepted, body incomplete */
    CONN_BUSY,    /* the user has the request; later input waits in `ahead` */
    CONN_CLOSING, /* the last reply is in `out`; input is discarded */
    CONN_LINGER   /* all sent and shut down; input is discarded until the client closes */
} http_conn_state;

typedef enum http_chunk_state {
    CHUNK_SIZE_FIRST, /* at the first digit of a size */
    CHUNK_SIZE,
    CHUNK_EXT,
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER, /* within, or at the start of, a trailer line */
    CHUNK_TRAILER_LF
} http_chunk_state;

typedef enum http_read_mode {
    HTTP_READ_OFF,
    HTTP_READ_ON,   /* level-triggered */
    HTTP_READ_PROBE /* lookahead is full: edge-triggered, only to learn that the client left */
} http_read_mode;

typedef struct http_header {
    uint32_t name, name_len, value, value_len; /* offsets into conn->head, NUL-terminated there */
} http_header;

struct rose_http_req {
    rose_http_conn *conn;
    const char *path, *query;
    uint64_t arrival_ns, complete_ns;
    uint64_t prof_id;
    void *user;
    bool streaming; /* stream_begin was called */
    bool chunked;   /* its bytes are framed as chunks */
};

struct rose_http_conn {
    rose_http_io *io;
    int fd;
    http_conn_state state;
    http_read_mode read_mode;
    bool dirty;        /* on io->dirty: has work at the end of this turn */
    bool doomed;       /* will be destroyed at the end of this turn */
    bool wblocked;     /* the socket's buffer is full: ev_write is armed */
    bool eof;          /* the client has ended its side */
    bool linger;       /* when CLOSING: the client may still be sending, let it read our answer */
    bool refused;      /* over max_connections: not counted */
    bool keep_alive;   /* what the request allows; final once a reply's head is written */
    bool head_done;    /* the parser has seen the end of the headers */
    bool complete;     /* the whole request is here */
    bool chunked;      /* the request's body is */
    int refuse_status; /* set by a parser callback that failed */
    const char *refuse_why;
    struct event ev_read, ev_write, ev_timer;
    uint64_t read_deadline, write_deadline; /* ns, 0 = none */
    uint64_t timer_at;                      /* when ev_timer fires, 0 = not armed */
    uint64_t sent_id, sent_arrival_ns; /* of the reply that ended last, for a profile; 0 = none */
    uint64_t blocked_ns; /* since when the client takes nothing, 0 = it does; kept if watched */

    rose_buf out; /* unsent bytes: [out_off, out.len) */
    size_t out_off;
    rose_buf
        next; /* a large body that follows `out`; until it has taken its place nothing else does */
    size_t held;       /* memory of both that counts in io->held: the client does not take it */
    bool out_whole;    /* `out` was such a body: too much to move before little of it is left */
    uint32_t n_unsent; /* replies that are complete in `out` and still count as in flight */
    rose_buf ahead;    /* input not yet parsed: [ahead_off, ahead.len) */
    size_t ahead_off;
    rose_buf head;    /* request line and headers of the current request */
    size_t head_scan; /* searched for line ends up to here */
    size_t line_start;
    rose_buf body;
    size_t body_counted; /* of it, in rose_http.body_bytes */
    http_chunk_state chunk;
    uint64_t chunk_left;
    size_t line_bytes, trailer_bytes;
    http_header *headers;
    uint32_t n_headers, cap_headers;
    uint32_t url, url_len;   /* in head */
    uint64_t content_length; /* still to come, once in CONN_BODY */
    http_parser parser;
    rose_http_req req;
    TAILQ_ENTRY(rose_http_conn) all_link, dirty_link;
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
    uint64_t marked_ns; /* where the last recorded send of this turn ended; 0: the next has a
                           beginning of its own */
    rose_mpsc *posts;   /* of http_post */
    int wake_fd;
    _Atomic int wake_pending; /* 1 between a wake and the thread's reading of it */
    struct http_conn_list conns, dirty;
    LIST_HEAD(, rose_http_timer) timers;
    LIST_HEAD(, http_watch) watches;
    char *scratch;         /* [HTTP_SCRATCH] */
    size_t held, max_held; /* of all connections; this thread's share of max_total_pending_bytes */
    /* --stall-warn-ms: this turn, from its first callback on; which kind of callback took longest
     */
    rose_stall_span turn;
    const char *phase, *longest;
    uint64_t phase_began_ns, longest_ns;
    uint32_t n_callbacks;
    int64_t date_s;
    char date[32]; /* "Sat, 21 Nov 2026 01:00:00 GMT" of second date_s */
};

struct rose_http {
    rose_http_opts opts;
    rose_http_callbacks cb;
    rose_http_io *ios; /* [opts.n_threads] */
    int listen_fd;     /* thread 0's after start; -1 once closed */
    char *unix_path;   /* owned; NULL for TCP */
    uint16_t port;
    struct event ev_accept, ev_accept_again;
    bool accept_added;
    uint32_t next_io; /* thread 0's */
    _Atomic uint32_t connections, refused, inflight;
    _Atomic uint64_t body_bytes; /* received, and neither taken by the user nor dropped */
    _Atomic uint64_t n_slow[ROSE_HTTP_N_SLOW];
    _Atomic bool draining, stopping;
};

/* server.c: a callback of io's loop begins. */
void rose_http_phase_on(rose_http_io *io, const char *name);
static inline void rose_http_phase(rose_http_io *io, const char *name)
{
    if (rose_stall_limit != 0) rose_http_phase_on(io, name);
}

/* listen.c */
rose_status rose_http_listen(rose_http *h, rose_err *err);
void rose_http_unlisten(rose_http *h);

/* conn.c: all on the connection's thread */
rose_http_conn *rose_http_conn_new(rose_http_io *io, int fd, bool refused); /* any thread */
void rose_http_conn_start(rose_http_conn *c);
void rose_http_conn_destroy(rose_http_conn *c); /* on_gone if BUSY; turn and stop only */
void rose_http_conn_touch(rose_http_conn *c);   /* has work at the end of this turn */
void rose_http_conn_doom(rose_http_conn *c);    /* destroy at the end of this turn */
void rose_http_conn_slow(rose_http_conn *c, rose_http_slow why); /* doom, counted */
void rose_http_conn_flush(rose_http_conn *c); /* send what the socket takes now */
void rose_http_conn_turn(rose_http_conn *c);  /* end of the turn; may destroy c */
void rose_http_conn_drain(rose_http_conn *c); /* close if idle */
void rose_http_conn_sent(rose_http_conn *c);  /* a profile's: the last reply's last byte is out */

/* parse.c: takes input while the state is HEAD or BODY; returns how many bytes it used */
size_t rose_http_parse(rose_http_conn *c, const char *data, size_t len);
void rose_http_parse_reset(rose_http_conn *c);
void rose_http_body_uncount(rose_http_conn *c); /* its body is no longer ours */

/* reply.c */
void rose_http_refuse(rose_http_conn *c, int status, const char *why);
static inline size_t http_pending(const rose_http_conn *c)
{
    return c->out.len - c->out_off + c->next.len;
}

#endif
