/* bench/reply.h - one HTTP reply as the load generator sees it: bytes and their arrival times in,
 * times and tokens out. No sockets here, so any bytes can be tried in any pieces. One thread. */
#ifndef ROSE_BENCH_REPLY_H
#define ROSE_BENCH_REPLY_H

#include <http_parser.h>
#include <stdbool.h>

#include "bench/sse.h"

/* Arrival of one event that carries text or tokens. */
typedef struct rose_arrival {
    uint64_t t_ns;
    uint32_t n_tokens; /* as the server says in ids or running usage; else 1 */
} rose_arrival;

/* The server's own split of the time, where it gives one (`timings`); ms, negative = absent. */
typedef struct rose_server_times {
    double receive, worker_wait, parse, tokenize, queue_wait, prefill_to_first, ttft, e2e;
} rose_server_times;

/* What became of a request. Times are rose_now_ns values, 0 = it never happened. */
typedef struct rose_reply {
    uint64_t due_ns;   /* when it should have been sent */
    uint64_t start_ns; /* when it was: before connect() or, on an open connection, before write */
    uint64_t first_ns, last_ns; /* first and last event that carried a token */
    uint64_t end_ns;            /* end of the reply */
    rose_arrival *arrivals;     /* owned; n_events of them */
    uint32_t n_events, cap;
    uint32_t n_tokens;                       /* output tokens: see rose_reply_settle */
    uint32_t usage_prompt, usage_completion; /* as the server says; 0 without usage */
    uint32_t ids_seen;                       /* token ids counted in the events */
    uint32_t max_tokens;     /* what the request asked for, set by the caller; 0 = not known */
    bool has_usage, counted; /* counted: arrivals' n_tokens are the server's, not our guess */
    bool finished;           /* a finish_reason or [DONE] was seen */
    bool usage_lies;         /* usage contradicts what arrived */
    bool has_times;
    rose_server_times times;
    int status;      /* HTTP status, 0 = none */
    char finish[16]; /* finish_reason */
    char error[192]; /* "" = success */
} rose_reply;

void rose_reply_free(rose_reply *r); /* frees what it holds; accepts {0}; leaves {0} */

/* Sets error if it is not set yet. */
void rose_reply_fail(rose_reply *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* After the last byte: decides n_tokens (ids if the server sends them, else usage, else events) and
 * whether the reply is a success: 200, a token, an end. Usage under the number of events, or over
 * max_tokens, is a lie and does not count. */
void rose_reply_settle(rose_reply *r);

/* The parser of one reply after another on a connection. */
typedef struct rose_reader {
    http_parser parser;
    rose_sse sse;
    rose_buf body;     /* of a reply that is no event stream; at most ROSE_READER_MAX_BODY */
    rose_reply *reply; /* borrowed */
    uint64_t t_ns;     /* arrival of the bytes in hand */
    char field[32], type[64];
    uint8_t field_len, type_len;
    bool value_seen;
    bool is_sse, complete, keep_alive, started; /* started: a byte of this reply has come */
    rose_status bad;
} rose_reader;

enum { ROSE_READER_MAX_BODY = 1 << 20 };

void rose_reader_init(rose_reader *r); /* once for a connection */
void rose_reader_free(rose_reader *r);
void rose_reader_begin(rose_reader *r, rose_reply *reply); /* before each request */

/* Bytes that arrived at t_ns (earlier than the last ones: at the same time); sets complete at the
 * end of the reply. Not OK: the reply's error says why, and the connection is of no further use. */
rose_status rose_reader_feed(rose_reader *r, const char *bytes, size_t n, uint64_t t_ns);

/* The other side closed: the end of a reply without a length, or an error. */
rose_status rose_reader_eof(rose_reader *r, uint64_t t_ns);

#endif
