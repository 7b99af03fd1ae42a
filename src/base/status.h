/* base/status.h - the error convention that every module uses. A function that can fail returns
 * rose_status. If a person will read the cause, it also takes a rose_err. The function that
 * knows the cause fills it (what was wrong, where, what to do), and callers pass it up
 * unchanged. Threads: plain values, no shared state. */
#ifndef ROSE_BASE_STATUS_H
#define ROSE_BASE_STATUS_H

#include <stdarg.h>

typedef enum rose_status {
    ROSE_OK = 0,
    ROSE_E_INVAL,       /* an argument or field is out of its documented range */
    ROSE_E_NOMEM,       /* allocation failed; nothing was changed */
    ROSE_E_IO,          /* a system call failed; the message carries strerror */
    ROSE_E_FORMAT,      /* a file or message is malformed or contradicts itself */
    ROSE_E_UNSUPPORTED, /* the input is well-formed, but names something that we do not implement */
    ROSE_E_NOTFOUND,    /* no such file, tensor, model, request */
    ROSE_E_FULL,        /* a bounded queue or pool is full: normal, retry later, sets no message */
    ROSE_E_LATE,        /* the result would come too late: normal under load, sets no message */
    ROSE_E_EMPTY,       /* nothing to take: normal, sets no message */
    ROSE_E_CLOSED,      /* the engine or connection is draining or gone */
    ROSE_E_BACKEND,     /* the device or compute backend failed; open requests are answered */
    ROSE_E_INTERNAL     /* a bug of ours */
} rose_status;

enum { ROSE_ERR_CAP = 512 };

/* One line of text, without a newline, always NUL-terminated; "" = no message. */
typedef struct rose_err {
    char msg[ROSE_ERR_CAP];
} rose_err;

/* Writes the formatted message into err (NULL: nowhere) and returns st, so that a caller can
 * write `return rose_fail(err, ROSE_E_IO, "open %s: %s", ...)`. Longer text is cut, and control
 * characters become '?', because messages quote hostile input. */
rose_status rose_fail(rose_err *err, rose_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Stable lower-case name: "ok", "inval", ...; "unknown" for a value outside the enum. */
const char *rose_status_name(rose_status st);

#endif
