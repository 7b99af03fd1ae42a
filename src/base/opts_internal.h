/* base/opts_internal.h - declarations shared by the parser (opts.c), the help texts
 * (opts_help.c), the documents (opts_docs.c) and the program (program.c). */
#ifndef ROSE_BASE_OPTS_INTERNAL_H
#define ROSE_BASE_OPTS_INTERNAL_H

#include "base/opts.h"

enum { ROSE_USAGE_ERROR = 2 };

/* As rose_opt_read. Returns -1, or the exit code after a message that begins with `from`: "", or
 * the place of the value and ": ". */
int rose_opt_set(const rose_opt *o, const char *from, const char *v);

/* Finds the row of NAME, or of no-NAME if NAME is a switch; then *no is true. NULL: none. */
const rose_opt *rose_opts_find_no(const rose_command *c, const char *name, size_t len, bool *no);

/* Finds the row of -x; NULL: none. */
const rose_opt *rose_opts_letter(const rose_command *c, char letter);

/* Applies the file and the environment to the rows that are not given (one flag a row), and sets
 * *model if one of them names it. Returns -1, or the exit code after a message. opts_sources.c */
int rose_opts_read_sources(const rose_command *c, rose_opts_sources *s, const bool *given,
                           const char **model);

/* Prints the help text of --help (all = false) or of --help-all. */
void rose_opts_help(const rose_command *c, bool all);

/* Writes the default as text; "" if it has none to show. */
void rose_opt_default_text(const rose_opt *o, char *buf, size_t cap);

/* Finds choice i of a CHOICE or ENUM row: *text is its first byte, and the result is its length. */
int rose_opt_choice(const rose_opt *o, unsigned i, const char **text);

/* Calls fn for each row, group by group, with a heading before the rows of its group. all =
 * false: only for the rows that --help shows. */
void rose_opts_by_group(const rose_command *c, bool all, void (*fn)(const rose_opt *o));

/* A command line whose foreign options are replaced. Initialise with {0}. */
typedef struct rose_foreign_line {
    char **argv;       /* owned; the texts are borrowed */
    const char **from; /* owned; for each argument the foreign option that became it, or NULL */
    int argc;
} rose_foreign_line;

/* Replaces the foreign options of argv; *out borrows from argv and t. Returns -1, or the exit code
 * after a message. opts_foreign.c */
int rose_foreign_read_line(const rose_command *c, rose_foreign_taken *t, rose_foreign_line *out,
                           int argc, char **argv);
void rose_foreign_line_free(rose_foreign_line *l); /* accepts {0} */

/* Takes a key of a file if it is a foreign option: then *took is true. where: the place and ": ".
 * own: an option of ours has this name. v must live as long as t. Returns -1, or the exit code
 * after a message. */
int rose_foreign_take_key(const rose_command *c, rose_foreign_taken *t, const char *where,
                          const char *key, const char *v, bool own, bool *took);

/* Prints the table for --help-foreign, in Markdown. */
void rose_foreign_help(const rose_foreign_set *set);

/* Documents that are generated from the tables of commands. The program asks each command for
 * its part by a hidden first argument. */
typedef struct rose_opts_doc {
    const char *ask; /* the argument */
    void (*print)(const rose_command *c);
} rose_opts_doc;

enum { ROSE_DOC_MAN, ROSE_DOC_BASH, ROSE_DOC_ZSH, ROSE_N_DOCS };
extern const rose_opts_doc rose_opts_docs[ROSE_N_DOCS];

/* Prints text for a man page, with hyphens, backslashes and leading dots escaped. */
void rose_opts_roff(const char *text);

/* State of a search for the name that a person meant to type. */
typedef struct rose_near {
    const char *name; /* NULL: none was close */
    unsigned distance;
} rose_near;

/* Keeps `candidate` if it is close to typed[0..len), and closer than the candidates before. */
void rose_near_try(rose_near *n, const char *typed, size_t len, const char *candidate);

#endif
