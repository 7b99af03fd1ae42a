/* cli/lines.c - messages that a person types or a pipe brings. On a terminal libedit edits the line
 * and keeps a history; in a pipe nothing is printed. libedit puts the terminal into its own mode
 * while it reads a line, and only then: at the prompt Ctrl-C is a key, during a reply a signal. */
#include "cli/cli.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK "\"\"\""

struct rose_lines {
    EditLine *edit;   /* owned; NULL in a pipe */
    History *history; /* owned */
    const char *prompt;
    bool cleared;
    char *line; /* owned, of getline */
    size_t cap;
};

static char *prompt_of(EditLine *edit)
{
    static char text[8];
    rose_lines *l = NULL;
    el_get(edit, EL_CLIENTDATA, (void *)&l);
    snprintf(text, sizeof text, "%s", l->prompt);
    return text;
}

/* The key Ctrl-C. */
static unsigned char clear_line(EditLine *edit, int key)
{
    rose_lines *l = NULL;
    (void)key;
    el_get(edit, EL_CLIENTDATA, (void *)&l);
    l->cleared = true;
    fputs("^C\n", stdout);
    return CC_NEWLINE;
}

/* The key Ctrl-Z. libedit's handler of the signal restores the terminal. */
static unsigned char suspend(EditLine *edit, int key)
{
    (void)edit;
    (void)key;
    kill(0, SIGTSTP);
    return CC_REFRESH;
}

static rose_status open_terminal(rose_lines *l, rose_err *err)
{
    HistEvent ev;
    setlocale(LC_CTYPE, "");
    /* Without a locale libedit would refuse every letter that is not ASCII. */
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("roseinfer", stdin, stdout, stderr);
    l->history = history_init();
    if (l->edit == NULL || l->history == NULL)
        return rose_fail(err, ROSE_E_IO, "the terminal cannot be read line by line");
    history(l->history, &ev, H_SETSIZE, 1000);
    history(l->history, &ev, H_SETUNIQUE, 1);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, prompt_of);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_SIGNAL, 1);
    el_source(l->edit, NULL); /* the user's .editrc, if there is one */
    el_set(l->edit, EL_ADDFN, "rose-clear", "give the line up", clear_line);
    el_set(l->edit, EL_BIND, "^C", "rose-clear", NULL);
    el_set(l->edit, EL_ADDFN, "rose-suspend", "suspend the program", suspend);
    el_set(l->edit, EL_BIND, "^Z", "rose-suspend", NULL);
    el_set(l->edit, EL_SETTY, "-d", "-isig", NULL); /* these two keys are no signals */
    return ROSE_OK;
}

rose_status rose_lines_open(rose_lines **out, bool terminal, rose_err *err)
{
    rose_lines *l = calloc(1, sizeof *l);
    *out = NULL;
    if (l == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    rose_status st = terminal ? open_terminal(l, err) : ROSE_OK;
    if (st != ROSE_OK)
        rose_lines_close(l);
    else
        *out = l;
    return st;
}

void rose_lines_close(rose_lines *l)
{
    if (l == NULL) return;
    if (l->edit != NULL) el_end(l->edit);
    if (l->history != NULL) history_end(l->history);
    free(l->line);
    free(l);
}

/* Reads one line without its newline; borrowed until the next call. NULL: no more, or an error. */
static const char *read_line(rose_lines *l, const char *prompt, size_t *len)
{
    int count = 0;
    const char *line;
    l->prompt = prompt;
    l->cleared = false;
    errno = 0;
    if (l->edit != NULL) {
        /* Before the prompt appears: whoever sees it may type Ctrl-C. */
        el_set(l->edit, EL_PREP_TERM, 1);
        line = el_gets(l->edit, &count);
        if (l->cleared) line = "";
        *len = line == NULL || l->cleared ? 0 : (size_t)count;
    } else {
        const ssize_t n = getline(&l->line, &l->cap, stdin);
        line = n < 0 ? NULL : l->line;
        *len = n < 0 ? 0 : (size_t)n;
    }
    if (*len > 0 && line[*len - 1] == '\n') --*len;
    return line;
}

static void remember(rose_lines *l, const char *line, size_t len)
{
    HistEvent ev;
    char *copy = l->edit != NULL && len > 0 ? strndup(line, len) : NULL;
    if (copy != NULL) history(l->history, &ev, H_ENTER, copy);
    free(copy);
}

/* No line came. */
static rose_status at_end(rose_lines *l, rose_err *err)
{
    if (l->edit == NULL && ferror(stdin) == 0 && errno == ENOMEM)
        return rose_fail(err, ROSE_E_NOMEM, "standard input: out of memory");
    if (l->edit == NULL && ferror(stdin) != 0)
        return rose_fail(err, ROSE_E_IO, "standard input: %s", strerror(errno));
    return ROSE_OK;
}

/* line[0..len): the rest of the line that opened the block. A mark that is alone on its line leaves
 * no newline in the text. */
static rose_status read_block(rose_lines *l, const char *line, size_t len, rose_line *kind,
                              rose_buf *out, rose_err *err)
{
    for (bool first = true;; first = false) {
        const bool closed = len >= 3 && memcmp(line + len - 3, MARK, 3) == 0;
        if (closed && len == 3 && out->len > 0) out->len--;
        if (rose_buf_add(out, line, closed ? len - 3 : len) != ROSE_OK ||
            (!closed && (!first || len > 0) && rose_buf_add(out, "\n", 1) != ROSE_OK))
            return rose_fail(err, ROSE_E_NOMEM, "standard input: out of memory");
        if (closed) return ROSE_OK;
        line = read_line(l, "... ", &len);
        if (line == NULL) {
            const rose_status st = at_end(l, err);
            return st != ROSE_OK ? st
                                 : rose_fail(err, ROSE_E_FORMAT,
                                             "the text after " MARK " does not end with " MARK);
        }
        if (l->cleared) {
            *kind = ROSE_LINE_CLEARED;
            return ROSE_OK;
        }
        remember(l, line, len);
    }
}

rose_status rose_lines_next(rose_lines *l, rose_line *kind, rose_buf *out, rose_err *err)
{
    size_t len;
    out->len = 0;
    *kind = ROSE_LINE_END;
    const char *line = read_line(l, "> ", &len);
    if (line == NULL) return at_end(l, err);
    *kind = l->cleared ? ROSE_LINE_CLEARED : ROSE_LINE_TEXT;
    if (l->cleared) return ROSE_OK;
    remember(l, line, len);
    if (len >= 3 && memcmp(line, MARK, 3) == 0) {
        *kind = ROSE_LINE_BLOCK;
        return read_block(l, line + 3, len - 3, kind, out, err);
    }
    if (rose_buf_add(out, line, len) != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "standard input: out of memory");
    return ROSE_OK;
}
