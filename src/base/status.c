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
    static const char *const names[] = {[ROSE_OK] = "ok",
                                        [ROSE_E_INVAL] = "inval",
                                        [ROSE_E_NOMEM] = "nomem",
                                        [ROSE_E_IO] = "io",
                                        [ROSE_E_FORMAT] = "format",
                                        [ROSE_E_UNSUPPORTED] = "unsupported",
                                        [ROSE_E_NOTFOUND] = "notfound",
                                        [ROSE_E_FULL] = "full",
                                        [ROSE_E_LATE] = "late",
                                        [ROSE_E_EMPTY] = "empty",
                                        [ROSE_E_CLOSED] = "closed",
                                        [ROSE_E_BACKEND] = "backend",
                                        [ROSE_E_INTERNAL] = "internal"};
    return (unsigned)st < sizeof names / sizeof *names ? names[st] : "unknown";
}
