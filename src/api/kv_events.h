/* api/kv_events.h - publishes which pages the prefix cache holds, as vLLM's servers do: over a
 * ZeroMQ PUB socket, and old messages again over a ROUTER socket. Cache-aware routers subscribe.
 * libzmq is loaded only if --kv-events-config asks for it.
 *
 * A message has the frames topic, sequence number (8 bytes, big-endian) and payload
 * (kv_payload.h). The numbers begin at 0 with a payload that clears all. A number is left out
 * where changes were lost; the message after it clears all, and the pages follow again.
 *
 * A request to the ROUTER socket has the frames empty and first number (8 bytes, big-endian). The
 * answers have the frames empty, number and payload; the last one has the number -1 and an empty
 * payload. Other requests are ignored.
 *
 * With the encoding "map", as with newer versions of vLLM, events are maps, and the answers have
 * the topic after the empty frame. The topic of the last one is empty. */
#ifndef ROSE_API_KV_EVENTS_H
#define ROSE_API_KV_EVENTS_H

#include "engine/kv_feed.h"

typedef struct rose_kv_events rose_kv_events;

/* Parses the JSON of --kv-events-config, loads libzmq, opens the sockets and starts the thread
 * that publishes. *out is NULL if json is NULL or does not turn events on. Main thread. Errors:
 * INVAL, FORMAT (the JSON), NOTFOUND, UNSUPPORTED (libzmq), IO (a socket), NOMEM; err says what to
 * do. */
rose_status rose_kv_events_open(rose_kv_events **out, const char *json, rose_err *err);

/* What rose_engine_opts.kv_feed wants; borrowed; NULL if x is NULL. */
rose_kv_feed *rose_kv_events_feed(rose_kv_events *x);

void rose_kv_events_close(rose_kv_events *x); /* after the engine is closed; accepts NULL */

#endif
