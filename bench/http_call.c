/* bench/http_call.c - writes request heads and makes one blocking call; see load.h. */
#include <string.h>

#include "base/clock.h"
#include "bench/load.h"

rose_status rose_request_write(rose_buf *out, const rose_url *u, const char *path, const char *key,
                               const char *body, size_t len)
{
    const bool v6 = strchr(u->host, ':') != NULL;
    rose_status st = rose_buf_addf(out, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nAccept: */*\r\n",
                                   body != NULL ? "POST" : "GET", u->path, path, v6 ? "[" : "",
                                   u->host, v6 ? "]" : "", u->port);
    if (st == ROSE_OK && key != NULL) st = rose_buf_addf(out, "Authorization: Bearer %s\r\n", key);
    if (st == ROSE_OK && body != NULL)
        st = rose_buf_addf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", len);
    if (st == ROSE_OK) st = rose_buf_add(out, "\r\n", 2);
    if (st == ROSE_OK && body != NULL) st = rose_buf_add(out, body, len);
    return st;
}

static rose_status take_reply(void *ctx, const char *bytes, size_t n, bool *done)
{
    rose_reader *rd = ctx;
    const rose_status st =
        n > 0 ? rose_reader_feed(rd, bytes, n, rose_now_ns()) : rose_reader_eof(rd, rose_now_ns());
    *done = rd->complete;
    return st;
}

rose_status rose_http_call(const rose_url *u, const char *path, const char *post,
                           uint32_t timeout_ms, int *status, rose_buf *body, rose_err *err)
{
    rose_reader rd;
    rose_reply reply = {0};
    rose_buf head = {0};

    rose_reader_init(&rd);
    rose_reader_begin(&rd, &reply);
    rose_status st =
        rose_request_write(&head, u, path, NULL, post, post != NULL ? strlen(post) : 0);
    if (st == ROSE_OK)
        st = rose_fetch(u, NULL, head.data, head.len, timeout_ms, take_reply, &rd, err);
    else
        rose_fail(err, st, "out of memory");
    if (st != ROSE_OK && reply.error[0] != '\0') rose_fail(err, st, "%s", reply.error);
    *status = reply.status;
    if (st == ROSE_OK && body != NULL && rose_buf_add(body, rd.body.data, rd.body.len) != ROSE_OK)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    rose_buf_free(&head);
    rose_reader_free(&rd);
    rose_reply_free(&reply);
    return st;
}
