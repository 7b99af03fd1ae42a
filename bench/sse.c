/* bench/sse.c - see reply.h. */
#include "bench/reply.h"

#include <string.h>

static rose_status add_limited(rose_buf *b, const char *bytes, size_t n)
{
    if (n > ROSE_SSE_MAX_EVENT - b->len) return ROSE_E_FORMAT;
    return rose_buf_add(b, bytes, n);
}

/* Handles one line: a field, a comment, or the empty line that ends an event. */
static rose_status take_line(rose_sse *s, const char *line, size_t n, rose_sse_fn *fn, void *user)
{
    rose_status st = ROSE_OK;
    if (n == 0) {
        if (s->has_data) st = fn(user, s->data.data, s->data.len);
        s->data.len = 0;
        s->has_data = false;
        return st;
    }
    if (n < 4 || memcmp(line, "data", 4) != 0 || (n > 4 && line[4] != ':')) return ROSE_OK;
    size_t skip = n > 4 ? 5 : 4;
    if (skip < n && line[skip] == ' ') skip++;
    if (s->has_data) st = add_limited(&s->data, "\n", 1);
    if (st == ROSE_OK) st = add_limited(&s->data, line + skip, n - skip);
    s->has_data = true;
    return st;
}

rose_status rose_sse_feed(rose_sse *s, const char *bytes, size_t n, rose_sse_fn *fn, void *user)
{
    const char *p = bytes, *end = bytes + n;
    while (p < end) {
        if (s->after_cr) {
            s->after_cr = false;
            if (*p == '\n') {
                p++;
                continue;
            }
        }
        const char *lf = memchr(p, '\n', (size_t)(end - p));
        const char *cr = memchr(p, '\r', (size_t)((lf != NULL ? lf : end) - p));
        const char *eol = cr != NULL ? cr : lf;
        size_t len = (size_t)((eol != NULL ? eol : end) - p);
        rose_status st;
        if (eol != NULL && s->line.len == 0) {
            st = len > ROSE_SSE_MAX_EVENT ? ROSE_E_FORMAT : take_line(s, p, len, fn, user);
        } else {
            st = add_limited(&s->line, p, len);
            if (st == ROSE_OK && eol != NULL) {
                st = take_line(s, s->line.data, s->line.len, fn, user);
                s->line.len = 0;
            }
        }
        if (st != ROSE_OK) return st;
        if (eol == NULL) break;
        s->after_cr = *eol == '\r';
        p = eol + 1;
    }
    return ROSE_OK;
}

void rose_sse_free(rose_sse *s)
{
    rose_buf_free(&s->line);
    rose_buf_free(&s->data);
    *s = (rose_sse){0};
}
