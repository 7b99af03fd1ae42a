/* cli/lines.h - messages that a person types or a pipe brings. On a terminal libedit edits the line
 * and keeps a history. In a pipe nothing is printed. Main thread. */
#ifndef ROSE_CLI_LINES_H
#define ROSE_CLI_LINES_H

#include <stdbool.h>

#include "base/buf.h"

typedef struct rose_lines rose_lines;

typedef enum rose_line {
    ROSE_LINE_TEXT,
    ROSE_LINE_BLOCK,   /* a text between two """: never a command */
    ROSE_LINE_CLEARED, /* Ctrl-C: the person gave the line up */
    ROSE_LINE_END      /* Ctrl-D, or the end of the pipe */
} rose_line;

/* terminal: standard input and output are terminals. Errors: NOMEM, IO. */
rose_status rose_lines_open(rose_lines **out, bool terminal, rose_err *err);
void rose_lines_close(rose_lines *l); /* accepts NULL */

/* Reads one message into out, which is emptied first: a line, without its newline, or all that
 * stands between a line that begins with """ and a line that ends with """. Errors: NOMEM, IO,
 * FORMAT (the closing """ is missing). */
rose_status rose_lines_next(rose_lines *l, rose_line *kind, rose_buf *out, rose_err *err);

#endif
