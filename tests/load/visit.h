/* tests/load/visit.h - HTTP clients of every kind, including rude ones: many connections on one
 * thread and one epoll. A visit sends bytes (all, some, or a few at a time), waits for replies (or
 * reads slowly, or not at all) and hangs up when its plan says so. A callback gets what the visit
 * saw; the caller decides what is right.
 *
 * Times are rose_now_ns values. Arrival times are the kernel's (stamp.h), so a busy client does not
 * make a server look slow. One thread. All slots for visits are allocated at the start. */
#ifndef ROSE_LOAD_VISIT_H
#define ROSE_LOAD_VISIT_H

#include "base/buf.h"
#include "bench/load.h"

enum { ROSE_VISIT_MAX_REPLIES = 8 };

typedef enum rose_visit_end {
    ROSE_VISIT_REPLIED, /* all replies came */
    ROSE_VISIT_LEFT,    /* we hung up, as planned */
    ROSE_VISIT_CLOSED,  /* the server hung up before that */
    ROSE_VISIT_REFUSED, /* no connection was made */
    ROSE_VISIT_GARBLED, /* the reply is not HTTP */
    ROSE_VISIT_TIMEOUT  /* nothing of the above happened in time */
} rose_visit_end;

/* What a visit does. With only `bytes` set, it sends all of them and waits for one reply. */
typedef struct rose_visit_plan {
    rose_buf bytes;                /* the requests; the visit owns them once it has started */
    size_t n_send;                 /* how many of these bytes are sent; 0 = all */
    uint32_t n_replies;            /* expected replies, 1 .. ROSE_VISIT_MAX_REPLIES; 0 = 1 */
    uint64_t leave_bytes;          /* hang up after this many bytes of reply; 0 = never */
    uint32_t leave_ms;             /* hang up this long after the start; 0 = never */
    uint32_t drip_bytes, drip_ms;  /* send drip_bytes every drip_ms; 0 = all at once */
    uint32_t sip_bytes, sip_ms;    /* read sip_bytes every sip_ms; 0 = as they come */
    uint32_t receive_buffer_bytes; /* of the socket; 0 = the system's default. Implies fresh */
    bool deaf;                     /* never read */
    bool reset;                    /* hang up by a TCP reset */
    bool half_close;               /* shut down the sending side after the last byte */
    bool head;                     /* the requests are HEAD: replies have no bodies */
    bool fresh;      /* use a new connection and close it at the end; else use a kept one */
    bool keep_body;  /* keep the body in rose_visit.body */
    bool watch_gaps; /* call on_gap */
    int kind;        /* for the caller */
} rose_visit_plan;

typedef struct rose_visit {
    rose_visit_plan plan;
    rose_visit_end end;
    int status[ROSE_VISIT_MAX_REPLIES];
    uint32_t n_replies;         /* number of complete replies */
    uint32_t n_events;          /* blank lines in the bodies, which are the events of a stream */
    bool retry_after;           /* the last reply has this header */
    bool has_error;             /* an event or body holds "error": { */
    uint64_t start_ns;          /* before connect(), or on a kept connection before send() */
    uint64_t first_ns, last_ns; /* first and last piece of a body; 0 = none */
    uint64_t end_ns;
    uint64_t bytes_in;
    rose_buf body; /* owned by the visit */
} rose_visit;

typedef struct rose_visitors rose_visitors;

typedef struct rose_visitors_opts {
    const rose_url *url; /* borrowed during create */
    uint32_t max;        /* most visits under way */
    uint32_t timeout_ms; /* longest time of a visit; the times in its plan should be shorter */
    /* called at the end of each visit; may start others */
    void (*done)(void *user, const rose_visit *v);
    /* Called between two neighbouring pieces of the body of a 200, with their times and the bytes
     * of the later one (borrowed). May be NULL. */
    void (*on_gap)(void *user, const rose_visit *v, uint64_t from_ns, uint64_t to_ns,
                   const char *piece, size_t n);
    void *user;
} rose_visitors_opts;

/* Errors: NOTFOUND (no such host), IO, NOMEM. */
rose_status rose_visitors_create(rose_visitors **out, const rose_visitors_opts *o, rose_err *err);
void rose_visitors_destroy(rose_visitors *v); /* Hangs up without calling back. Accepts NULL. */

uint32_t rose_visitors_n_active(const rose_visitors *v);

/* Starts a visit. Takes over plan->bytes in every case. Errors: FULL (max visits are under way).
 * Errors of the visit itself go to `done`, perhaps before this returns. */
rose_status rose_visitors_start(rose_visitors *v, rose_visit_plan *plan);

/* Handles events until until_ns, or returns earlier after some of them. Errors: IO (epoll
 * itself). */
rose_status rose_visitors_turn(rose_visitors *v, uint64_t until_ns);

/* Closes the connections that are kept. */
void rose_visitors_drop_kept(rose_visitors *v);

const char *rose_visit_end_name(rose_visit_end e);

#endif
