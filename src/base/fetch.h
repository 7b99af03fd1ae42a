/* base/fetch.h - URLs of servers, and one blocking exchange with a server over TCP or a Unix
 * socket. The caller writes the request and reads the reply. Any thread. */
#ifndef ROSE_BASE_FETCH_H
#define ROSE_BASE_FETCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rose_url {
    char host[256]; /* without brackets, also for an IPv6 address */
    char port[8];
    char path[256]; /* without a slash at the end: "" or "/base" */
} rose_url;

/* Parses http://HOST[:PORT][/PATH]. Errors: INVAL names what is wrong. */
rose_status rose_url_parse(rose_url *out, const char *text, rose_err *err);

/* Takes n bytes of the reply, or n = 0 at the end of the connection. *done ends the exchange; so
 * does an error, which is the caller's. */
typedef rose_status rose_fetch_take(void *ctx, const char *bytes, size_t n, bool *done);

/* Connects to u, or to the Unix socket uds if that is not NULL; sends request[0..len) and passes on
 * what comes until `take` is done. All of this takes at most timeout_ms (but for the name server).
 * Errors: NOTFOUND (no such host), INVAL (uds is too long), IO, or what `take` returned. */
rose_status rose_fetch(const rose_url *u, const char *uds, const char *request, size_t len,
                       uint32_t timeout_ms, rose_fetch_take *take, void *ctx, rose_err *err);

#endif
