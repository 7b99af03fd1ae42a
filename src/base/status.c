/* base/status.c - formatting of error messages. Any thread; owns nothing. */
#include "base/status.h"

#include <stdio.h>

rose_status rose_fail(rose_err *err, rose_status st, const char *fmt, ...)
{
    if (err == NULL) return st;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    if (n < 0) err->msg[0] = '\0';
    for (char *p = err->msg; *p != '\0'; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < 0x20 || c == 0x7f) *p = '?';
    }
    return st;
}

const char *rose_status_name(rose_status st)
{
    switch (st) {
    case ROSE_OK:
        return "ok";
    case ROSE_E_INVAL:
        return "inval";
    case ROSE_E_NOMEM:
        return "nomem";
    case ROSE_E_IO:
        return "io";
    case ROSE_E_FORMAT:
        return "format";
    case ROSE_E_UNSUPPORTED:
        return "unsupported";
    case ROSE_E_NOTFOUND:
        return "notfound";
    case ROSE_E_FULL:
        return "full";
    case ROSE_E_LATE:
        return "late";
    case ROSE_E_EMPTY:
        return "empty";
    case ROSE_E_CLOSED:
        return "closed";
    case ROSE_E_BACKEND:
        return "backend";
    case ROSE_E_INTERNAL:
        return "internal";
    }
    return "unknown";
}
