/* base/log.h - log lines on stderr: "2026-11-21T10:00:00.123Z INFO engine: text". The token path
 * logs only a stall or a failure. Any thread; one write(2) per line, so lines do not mix. */
#ifndef ROSE_BASE_LOG_H
#define ROSE_BASE_LOG_H

#include <stdbool.h>

#include "base/status.h"

typedef enum rose_log_level {
    ROSE_LOG_DEBUG,
    ROSE_LOG_INFO,
    ROSE_LOG_WARN,
    ROSE_LOG_ERROR,
    ROSE_LOG_OFF
} rose_log_level;

/* Lines below `level` are dropped (default INFO). Set once at start, before threads. */
void rose_log_set_level(rose_log_level level);

/* Tells whether lines of this level are written. Any thread. */
bool rose_log_shows(rose_log_level level);

/* Parses the name of a log level: "debug", "info", "warn", "error" or "off". Any other name
 * gives ROSE_E_INVAL. */
rose_status rose_log_parse_level(const char *name, rose_log_level *out);

/* While a progress bar is on the terminal, a line of the log first clears it. */
void rose_log_over_bar(bool on);

/* room: the short name of the module that logs, at the start of the line ("engine", "http").
 * Control characters in the text become '?', because log lines quote hostile input. */
void rose_log(rose_log_level level, const char *room, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
