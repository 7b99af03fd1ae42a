/* bench/reply.h - one HTTP reply as the load generator sees it: bytes and their arrival times go
 * in, times and tokens come out. It does not touch sockets, so tests can feed any bytes in pieces
 * of any size. One thread. */
#ifndef ROSE_BENCH_REPLY_H
#define ROSE_BENCH_REPLY_H

#include <http_parser.h>
#include <stdbool.h>

#include "base/buf.h"

/* ---- sse.c ---- */

/* Finds server-sent events in bytes that come in pieces of any size. As text/event-stream demands,
 * lines end in LF, CR or CRLF, and the `data` fields of one event are joined by LF. Comments and
 * other fields are skipped. A parser is a plain value: zero-initialise it, free it with
 * rose_sse_free. */
enum { ROSE_SSE_MAX_EVENT = 1 << 20 }; /* most bytes of a line, and of an event */

typedef struct rose_sse {
    rose_buf line, data; /* owned */
    bool has_data;       /* the event has a data field, which may be empty */
    bool after_cr;       /* an LF that comes next belongs to the CR before it */
} rose_sse;

/* Called for each event with its data (borrowed, not NUL-terminated). A status other than OK stops
 * the parsing. */
typedef rose_status rose_sse_fn(void *user, const char *data, size_t len);

/* Errors: FORMAT (a line or event over the limit), NOMEM, or the status that fn returned. */
rose_status rose_sse_feed(rose_sse *s, const char *bytes, size_t n, rose_sse_fn *fn, void *user);

void rose_sse_free(rose_sse *s); /* accepts {0}; leaves {0} */

/* ---- event.c ---- */

/* A quick look at one event. Most events hold only text or token ids. A JSON tree for each of them
 * would make the client slower than the server. No state; any thread. */

/* What the first choice of the event holds. */
typedef struct rose_event_look {
    bool text; /* text, delta.content or delta.reasoning_content is a string that is not empty */
    uint32_t n_ids; /* number of elements of token_ids */
} rose_event_look;

/* Returns true if data[0 .. len) is valid JSON with a first choice, and *out tells all that a
 * client needs from it. That means no usage, timings, error or finish_reason other than null.
 * Returns false if a full parser must decide, and then *out means nothing. It also returns false
 * for text beyond ASCII, \u escapes, long numbers and members that are given twice. Only members
 * that it does not know may be given twice. */
bool rose_event_glance(const char *data, size_t len, rose_event_look *out);

/* ---- reply.c ---- */

/* An event of the stream that carried text or tokens, and the time at which the event arrived. */
typedef struct rose_arrival {
    uint64_t t_ns;
    uint32_t n_tokens; /* number of tokens in this event, as the server's ids or running usage
                        * say; else 1 */
} rose_arrival;

/* How long the request spent in each phase on the server, if the server says so (`timings`):
 * milliseconds, negative = not given. */
typedef struct rose_server_times {
    double receive, worker_wait, parse, tokenize, queue_wait, prefill_to_first, ttft, e2e;
} rose_server_times;

/* The outcome of a request. Times are rose_now_ns values; 0 = the event did not happen. */
typedef struct rose_reply {
    uint64_t due_ns; /* when it should have been sent */
    /* when the request was sent: before connect() or, on an open connection, before write() */
    uint64_t start_ns;
    uint64_t first_ns, last_ns; /* first and last event that carried a token */
    uint64_t end_ns;            /* end of the reply */
    rose_arrival *arrivals;     /* owned; n_events elements */
    uint32_t n_events, cap;
    uint32_t n_tokens; /* output tokens; rose_reply_settle says how they are counted */
    uint32_t usage_prompt, usage_completion; /* numbers of prompt tokens and of output tokens, as
                                              * the server's usage says; 0 without usage */
    uint32_t ids_seen;                       /* token ids counted over all events */
    uint32_t max_tokens; /* tokens that the request asked for; set by the caller; 0 = unknown */
    /* the n_tokens of arrivals come from the server and are not our guess */
    bool has_usage, counted;
    bool finished;   /* a finish_reason or [DONE] was seen */
    bool usage_lies; /* the usage contradicts what arrived */
    bool has_times;
    rose_server_times times;
    int status;      /* HTTP status, 0 = none */
    char finish[16]; /* finish_reason */
    char error[192]; /* "" = the request succeeded */
} rose_reply;

void rose_reply_free(rose_reply *r); /* Frees what the reply holds. Accepts {0}; leaves {0}. */

/* Sets error, unless it is set already. */
void rose_reply_fail(rose_reply *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Called after the last byte. Decides n_tokens (from ids if the server sent them, else from usage,
 * else from the number of events) and whether the reply is a success: status 200, a token, and an
 * end. Usage below the number of events, or above max_tokens, is impossible and is ignored. */
void rose_reply_settle(rose_reply *r);

/* Parses the replies on a connection, one after another. */
typedef struct rose_reader {
    http_parser parser;
    rose_sse sse;
    rose_buf body;     /* body of a reply that is no event stream; at most ROSE_READER_MAX_BODY */
    rose_reply *reply; /* borrowed */
    uint64_t t_ns;     /* arrival time of the bytes that are being parsed */
    char field[32], type[64];
    uint8_t field_len, type_len;
    bool value_seen;
    bool is_sse, complete, keep_alive, started; /* started: a byte of this reply has come */
    rose_status bad;
} rose_reader;

enum { ROSE_READER_MAX_BODY = 1 << 20 };

void rose_reader_init(rose_reader *r); /* once for each connection */
void rose_reader_free(rose_reader *r);
void rose_reader_begin(rose_reader *r, rose_reply *reply); /* before each request */

/* Parses bytes that arrived at t_ns. If t_ns is before the last call's, the last call's time
 * counts. Sets complete at the end of the reply. On an error the reply says why, and the connection
 * is of no further use. */
rose_status rose_reader_feed(rose_reader *r, const char *bytes, size_t n, uint64_t t_ns);

/* The server closed the connection: the close ends a reply without a length, and is an error
 * otherwise. */
rose_status rose_reader_eof(rose_reader *r, uint64_t t_ns);

#endif
