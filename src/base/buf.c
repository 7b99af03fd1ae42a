/* base/buf.c - see buf.h. */
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rose_status rose_buf_reserve(rose_buf *b, size_t more)
{
    if (more <= b->cap - b->len) return ROSE_OK;
    if (more > SIZE_MAX / 2 - b->len) return ROSE_E_NOMEM;
    size_t need = b->len + more;
    size_t cap = b->cap < 64 ? 64 : b->cap * 2;
    if (cap < need) cap = need;
    char *p = realloc(b->data, cap);
    if (p == NULL) return ROSE_E_NOMEM;
    b->data = p;
    b->cap = cap;
    return ROSE_OK;
}

rose_status rose_buf_add(rose_buf *b, const void *bytes, size_t n)
{
    if (n == 0) return ROSE_OK;
    if (rose_buf_reserve(b, n) != ROSE_OK) return ROSE_E_NOMEM;
    memcpy(b->data + b->len, bytes, n);
    b->len += n;
    return ROSE_OK;
}

rose_status rose_buf_addf(rose_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) return ROSE_E_INTERNAL;
    if (rose_buf_reserve(b, (size_t)n + 1) != ROSE_OK) return ROSE_E_NOMEM;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return ROSE_OK;
}

const char *rose_buf_str(rose_buf *b)
{
    if (rose_buf_reserve(b, 1) != ROSE_OK) return NULL;
    b->data[b->len] = '\0';
    return b->data;
}

void rose_buf_free(rose_buf *b)
{
    free(b->data);
    *b = (rose_buf){0};
}
