/* base/log.c - see log.h. */
#include "base/log.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The log level is atomic only because any thread reads it. Relaxed is enough, because the level
 * is set before threads start. */
static _Atomic int g_level = ROSE_LOG_INFO;
static atomic_bool g_over_bar;

void rose_log_set_level(rose_log_level level)
{
    atomic_store_explicit(&g_level, (int)level, memory_order_relaxed);
}

void rose_log_over_bar(bool on)
{
    atomic_store_explicit(&g_over_bar, on, memory_order_relaxed); /* it guards no data */
}

bool rose_log_shows(rose_log_level level)
{
    return (int)level >= atomic_load_explicit(&g_level, memory_order_relaxed);
}

rose_status rose_log_parse_level(const char *name, rose_log_level *out)
{
    static const char *const names[] = {"debug", "info", "warn", "error", "off"};
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (rose_log_level)i;
        return ROSE_OK;
    }
    return ROSE_E_INVAL;
}

void rose_log(rose_log_level level, const char *room, const char *fmt, ...)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARN", "ERROR"};
    if (!rose_log_shows(level) || level >= ROSE_LOG_OFF) return;

    char line[1024];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = 0;
    if (atomic_load_explicit(&g_over_bar, memory_order_relaxed))
        n = (size_t)snprintf(line, sizeof line, "\r\033[K");
    n += strftime(line + n, sizeof line - n, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %s %s: ", ts.tv_nsec / 1000000,
                          names[level], room);
    size_t text = n;
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    if (m > 0) n += (size_t)m < sizeof line - n - 1 ? (size_t)m : sizeof line - n - 2;
    for (size_t i = text; i < n; i++) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = '?';
    }
    line[n++] = '\n';
    /* A full or closed stderr must not stop the server, so the result is ignored on purpose. */
    if (write(STDERR_FILENO, line, n) < 0) return;
}
