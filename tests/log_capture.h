/* What a test's own process logs: standard error goes to a file between begin and end. */
#ifndef TESTS_LOG_CAPTURE_H
#define TESTS_LOG_CAPTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int log_saved_fd = -1;
static FILE *log_file;

static inline void log_begin(void)
{
    log_file = tmpfile();
    fflush(stderr);
    log_saved_fd = dup(STDERR_FILENO);
    if (log_file == NULL || log_saved_fd < 0) abort();
    if (dup2(fileno(log_file), STDERR_FILENO) < 0) abort();
}

/* What was written, as a string; to be freed. */
static inline char *log_end(void)
{
    fflush(stderr);
    dup2(log_saved_fd, STDERR_FILENO);
    close(log_saved_fd);
    long n = fseek(log_file, 0, SEEK_END) == 0 ? ftell(log_file) : -1;
    char *text = n < 0 ? NULL : calloc(1, (size_t)n + 1);
    if (text == NULL) abort();
    rewind(log_file);
    if (fread(text, 1, (size_t)n, log_file) != (size_t)n) abort();
    fclose(log_file);
    return text;
}

static inline int log_count(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p += strlen(what))
        n++;
    return n;
}

#endif
