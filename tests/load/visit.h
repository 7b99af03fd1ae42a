/* tests/load/visit.h - clients of every kind, the rude ones too: many connections on one thread and
 * one epoll. A visit sends bytes (all, some, or drop by drop), waits for replies (or does not read
 * them, or reads slowly) and hangs up when it is told to. What it saw is given to a callback; what
 * is right or wrong about it is the caller's to say.
 *
 * Times are rose_now_ns values; arrivals are the kernel's (stamp.h), so a busy client does not make
 * a server look slow. One thread. Memory: a slot for each visit under way, from the start. */
#ifndef ROSE_LOAD_VISIT_H
#define ROSE_LOAD_VISIT_H

#include "base/buf.h"
#include "bench/load.h"

enum { ROSE_VISIT_MAX_REPLIES = 8 };

typedef enum rose_visit_end {
    ROSE_VISIT_REPLIED, /* all the replies came */
    ROSE_VISIT_LEFT,    /* we hung up, as planned */
    ROSE_VISIT_CLOSED,  /* the server hung up before */
    ROSE_VISIT_REFUSED, /* no connection */
    ROSE_VISIT_GARBLED, /* the reply is no HTTP */
    ROSE_VISIT_TIMEOUT  /* nothing of it happened in time */
} rose_visit_end;

/* What a visit does; all zero but `bytes`: send all, wait for one reply. */
typedef struct rose_visit_plan {
    rose_buf bytes;                /* the requests; owned by the visit once it has started */
    size_t n_send;                 /* so many of these bytes are sent; 0 = all */
    uint32_t n_replies;            /* 1 .. ROSE_VISIT_MAX_REPLIES; 0 = 1 */
    uint64_t leave_bytes;          /* hang up after so many bytes of reply; 0 = never */
    uint32_t leave_ms;             /* hang up so long after the start; 0 = never */
    uint32_t drip_bytes, drip_ms;  /* send so many bytes each so often; 0 = at once */
    uint32_t sip_bytes, sip_ms;    /* read so many bytes each so often; 0 = as they come */
    uint32_t receive_buffer_bytes; /* of the socket; 0 = the system's. Implies fresh */
    bool deaf;                     /* never read */
    bool reset;                    /* hang up by RST */
    bool half_close;               /* say the end of sending behind the last byte */
    bool head;                     /* HEAD requests: replies without bodies */
    bool fresh;      /* its own connection, closed at the end; else one that was kept */
    bool keep_body;  /* in rose_visit.body */
    bool watch_gaps; /* call on_gap */
    int kind;        /* the caller's */
} rose_visit_plan;

typedef struct rose_visit {
    rose_visit_plan plan;
    rose_visit_end end;
    int status[ROSE_VISIT_MAX_REPLIES];
    uint32_t n_replies;         /* complete */
    uint32_t n_events;          /* blank lines in the bodies: events of a stream */
    bool retry_after;           /* the last reply has this header */
    bool has_error;             /* an event or body with "error": { */
    uint64_t start_ns;          /* before connect() or, on a kept connection, send() */
    uint64_t first_ns, last_ns; /* first and last piece of a body; 0 = none */
    uint64_t end_ns;
    uint64_t bytes_in;
    rose_buf body; /* owned by the visit */
} rose_visit;

typedef struct rose_visitors rose_visitors;

typedef struct rose_visitors_opts {
    const rose_url *url; /* borrowed for create */
    uint32_t max;        /* visits under way */
    uint32_t timeout_ms; /* of a visit, from its start; its plan's own times should be less */
    void (*done)(void *user, const rose_visit *v); /* may start others */
    /* Two neighbouring pieces of a 200's body, with their times and the bytes of the later one
     * (borrowed); may be NULL. */
    void (*on_gap)(void *user, const rose_visit *v, uint64_t from_ns, uint64_t to_ns,
                   const char *piece, size_t n);
    void *user;
} rose_visitors_opts;

/* Errors: NOTFOUND (no such host), IO, NOMEM. */
rose_status rose_visitors_create(rose_visitors **out, const rose_visitors_opts *o, rose_err *err);
void rose_visitors_destroy(rose_visitors *v); /* accepts NULL; hangs up, calls nobody */

uint32_t rose_visitors_n_active(const rose_visitors *v);

/* Takes plan->bytes over, whatever it returns. FULL: max visits are under way. What goes wrong with
 * the visit itself comes through done, perhaps before this returns. */
rose_status rose_visitors_start(rose_visitors *v, rose_visit_plan *plan);

/* Handles what happens until until_ns, and returns earlier, after some of it has happened. Errors:
 * IO (epoll itself). */
rose_status rose_visitors_turn(rose_visitors *v, uint64_t until_ns);

/* Closes the connections that were kept. */
void rose_visitors_drop_kept(rose_visitors *v);

const char *rose_visit_end_name(rose_visit_end e);

#endif
