/* base/opts_foreign.h - options that people bring from other servers. A table of rows, one for each
 * name and set of values, says what such an option means here: other options, nothing because it is
 * already so, or an error with words that help. The parser replaces them before it reads the
 * command line, and in the file of --config. --help-foreign prints the table. Main thread. */
#ifndef ROSE_BASE_OPTS_FOREIGN_H
#define ROSE_BASE_OPTS_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/status.h"

typedef enum rose_foreign_act {
    ROSE_FOREIGN_ALIAS,  /* becomes the options in `to` */
    ROSE_FOREIGN_SAME,   /* accepted: it is so anyway; `why` says how */
    ROSE_FOREIGN_IDLE,   /* accepted with a warning: it changes no answer here; `why` says so */
    ROSE_FOREIGN_REFUSED /* a usage error; `why` says what to do instead */
} rose_foreign_act;

typedef enum rose_foreign_takes {
    ROSE_FOREIGN_SWITCH,
    ROSE_FOREIGN_VALUE,
    ROSE_FOREIGN_MAYBE /* a value may follow: it does if a row has it. None counts as "true" */
} rose_foreign_takes;

typedef struct rose_foreign {
    const char *names; /* as people type them, a space between: "-tp --tp-size". A name may end in
                          '*'. NULL: those of the row before, and its `whose` and `takes` */
    const char *whose; /* a letter for each program that has it: v vLLM, l llama-server, s SGLang */
    rose_foreign_takes takes;
    rose_foreign_act act;
    const char
        *values;     /* for which the row holds, '|' between: equal as texts without regard to
                        case, or as numbers; "fp8*" is a prefix, "99.." a smallest number, "*"
                        anything. The first row that fits counts. If none does, an option of
                        ours with this name gets the value, else it is an error. NULL: a switch */
    const char *to;  /* ALIAS: our options with a space between, each "NAME" or "no-NAME" of a
                        switch, "NAME=TEXT", or "NAME=$" with the value. $k writes 1k and 1K as
                        vLLM means them, $s turns seconds to ms, $l a JSON list to commas, $p
                        tokens to pages of 16. The name MODEL is the positional argument. One that
                           begins with '@' is no option: rose_foreign_set.finish reads it */
    const char *why; /* a sentence without its final stop; NULL: none */
} rose_foreign;

/* One of our options, as a foreign one gave it. All texts are borrowed from the rose_foreign_taken.
 */
typedef struct rose_foreign_pair {
    const char *from;  /* "-np 4" */
    const char *name;  /* "max-num-seqs", "no-web", "MODEL" */
    const char *value; /* NULL: a switch */
} rose_foreign_pair;

/* Initialise with {0}. */
typedef struct rose_foreign_taken {
    rose_foreign_pair *pairs; /* owned */
    size_t n, cap;
    char **texts; /* owned, and each of them */
    size_t n_texts, cap_texts;
} rose_foreign_taken;

typedef struct rose_foreign_set {
    const rose_foreign *rows;
    size_t n;
    /* Adds the options that follow from pairs whose names begin with '@'. Returns -1, or the exit
     * code after a message. */
    int (*finish)(rose_foreign_taken *t);
} rose_foreign_set;

/* Keeps a formatted text as long as t. NULL: out of memory. */
const char *rose_foreign_keep(rose_foreign_taken *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds a pair; the texts must live as long as t. False: out of memory. */
bool rose_foreign_add(rose_foreign_taken *t, const char *from, const char *name, const char *value);

int rose_foreign_no_memory(void);              /* says so; 1 */
void rose_foreign_free(rose_foreign_taken *t); /* accepts {0}; leaves {0} */

/* Appends what the options became, for a log line: "-np 4 is --max-num-seqs 4, ...". Errors: NOMEM.
 */
rose_status rose_foreign_text(const rose_foreign_taken *t, rose_buf *out);

#endif
