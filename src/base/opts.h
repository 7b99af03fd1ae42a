/* base/opts.h - one table-driven option parser for every command. A row of the table names an
 * option and the variable that holds its value. The parser, --help, the man page and shell
 * completion read the same rows, so they cannot disagree.
 *
 * Forms: --name value, --name=value, -x value; booleans: --name, --no-name. "--" ends the
 * options. --help shows all rows, except that in a group whose heading is `brief` it shows only
 * the rows marked `first`. --help-all shows all rows, --help-foreign the table of foreign options.
 */
#ifndef ROSE_BASE_OPTS_H
#define ROSE_BASE_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/opts_file.h"
#include "base/opts_foreign.h"
#include "base/status.h"

typedef enum rose_opt_kind {
    ROSE_OPT_BOOL,   /* bool *; --name / --no-name */
    ROSE_OPT_FLAG,   /* bool *; --name only */
    ROSE_OPT_U32,    /* uint32_t *; min .. max */
    ROSE_OPT_U64,    /* uint64_t *; min .. max */
    ROSE_OPT_BYTES,  /* dest is a uint64_t *; suffixes K, M, G are powers of 1024 */
    ROSE_OPT_FLOAT,  /* float *; fmin .. fmax */
    ROSE_OPT_STRING, /* const char ** */
    ROSE_OPT_CHOICE, /* const char **; one of choices "a|b|c" */
    ROSE_OPT_ENUM,   /* dest is an enum *; choice i of choices "a|b|c" is the value i */
    ROSE_OPT_LIST,   /* rose_opt_list *; see there */
    ROSE_OPT_HEADING /* begins a group; name is its title. Headings with the same title are one
                        group */
} rose_opt_kind;

/* The values of an option that may be given several times: --name a --name b, or --name a,b. The
 * form --name a b works once all positional arguments are there. The list holds copies of the
 * texts, so that a copy of the struct is complete. */
enum { ROSE_OPT_LIST_MAX = 64, ROSE_OPT_LIST_BYTES = 4096 };
typedef struct rose_opt_list {
    uint32_t n, used;               /* values; bytes of text that they occupy */
    uint16_t at[ROSE_OPT_LIST_MAX]; /* where value i begins in text */
    char text[ROSE_OPT_LIST_BYTES];
} rose_opt_list;

/* Value i of the list, 0 <= i < n. */
const char *rose_opt_list_get(const rose_opt_list *l, uint32_t i);

/* Adds the values of `text`, which commas separate. Returns false and leaves the list unchanged
 * if a value is empty or the list is full. */
bool rose_opt_list_add(rose_opt_list *l, const char *text);

typedef struct rose_opt {
    const char *name; /* "max-num-seqs" */
    char letter;      /* 'p' or 0 */
    bool first;       /* --help shows this row although its group is brief, which hides most rows */
    bool brief;       /* of a HEADING: only --help-all shows most rows of the group */
    bool secret;      /* messages do not quote its value */
    bool config;      /* STRING: the row of --config, which rose_opts_parse_from reads */
    bool env_apart;   /* rose_opts_parse_from leaves its ROSEINFER_ variable to others */
    rose_opt_kind kind;
    void *dest; /* holds the default before parsing; --help prints it from here */
    uint64_t min, max;
    float fmin, fmax;
    const char *choices;               /* CHOICE, ENUM */
    const char *removed, *removed_why; /* a choice of earlier versions, and the reason why it is
                                          refused now; or NULL */
    const char *arg;                   /* placeholder in --help, "N", "FILE" */
    const char *help;                  /* one sentence, no final stop */
    uint64_t def; /* the default that rose_opts_default writes to dest: a number, a bool, an enum */
    const char *sdef;  /* the same for STRING and CHOICE */
    const char *unset; /* what --help prints as default in place of a 0 or NULL, e.g. "auto" */
    const char *word;  /* U32: NULL, or a word that stands for UINT32_MAX, e.g. "auto" */
    const char *says;  /* if not NULL, what --help always prints as default: for a default that
                          depends on the machine */
} rose_opt;

/* These write a row of a table in one or two lines. dest must have the type of the kind, or the
 * row does not compile. Bounds of 0, 0 mean none. Further fields may follow the help text: .def
 * = 64, .unset = "none", .letter. */
#define ROSE_ROW(name_, kind_, type, dest_, ...)                                                   \
    {                                                                                              \
        .name = (name_), .kind = (kind_), .dest = 1 ? (dest_) : (type *)0, __VA_ARGS__             \
    }
#define ROSE_ROW_HEADING(title_)                                                                   \
    {                                                                                              \
        .name = (title_), .kind = ROSE_OPT_HEADING                                                 \
    }
#define ROSE_ROW_BRIEF_HEADING(title_)                                                             \
    {                                                                                              \
        .name = (title_), .kind = ROSE_OPT_HEADING, .brief = true                                  \
    }
#define ROSE_ROW_BOOL(name_, dest_, ...)                                                           \
    ROSE_ROW(name_, ROSE_OPT_BOOL, bool, dest_, .help = __VA_ARGS__)
#define ROSE_ROW_FLAG(name_, dest_, ...)                                                           \
    ROSE_ROW(name_, ROSE_OPT_FLAG, bool, dest_, .help = __VA_ARGS__)
#define ROSE_ROW_U32(name_, dest_, arg_, min_, max_, ...)                                          \
    ROSE_ROW(name_, ROSE_OPT_U32, uint32_t, dest_, .arg = (arg_), .min = (min_), .max = (max_),    \
             .help = __VA_ARGS__)
#define ROSE_ROW_U64(name_, dest_, arg_, min_, max_, ...)                                          \
    ROSE_ROW(name_, ROSE_OPT_U64, uint64_t, dest_, .arg = (arg_), .min = (min_), .max = (max_),    \
             .help = __VA_ARGS__)
#define ROSE_ROW_BYTES(name_, dest_, min_, max_, ...)                                              \
    ROSE_ROW(name_, ROSE_OPT_BYTES, uint64_t, dest_, .arg = "BYTES", .min = (min_), .max = (max_), \
             .help = __VA_ARGS__)
#define ROSE_ROW_FLOAT(name_, dest_, arg_, min_, max_, ...)                                        \
    ROSE_ROW(name_, ROSE_OPT_FLOAT, float, dest_, .arg = (arg_), .fmin = (min_), .fmax = (max_),   \
             .help = __VA_ARGS__)
#define ROSE_ROW_STRING(name_, dest_, arg_, ...)                                                   \
    ROSE_ROW(name_, ROSE_OPT_STRING, const char *, dest_, .arg = (arg_), .help = __VA_ARGS__)
#define ROSE_ROW_LIST(name_, dest_, arg_, ...)                                                     \
    ROSE_ROW(name_, ROSE_OPT_LIST, rose_opt_list, dest_, .arg = (arg_), .help = __VA_ARGS__)
#define ROSE_ROW_CHOICE(name_, dest_, choices_, ...)                                               \
    ROSE_ROW(name_, ROSE_OPT_CHOICE, const char *, dest_, .choices = (choices_),                   \
             .help = __VA_ARGS__)
/* The parser writes the value as an unsigned int; an enum of another size does not compile. */
#define ROSE_ROW_ENUM(name_, type, dest_, choices_, ...)                                           \
    ROSE_ROW(name_, ROSE_OPT_ENUM, type, dest_, .choices = (choices_),                             \
             .max = sizeof(char[sizeof(type) == sizeof(unsigned) ? 1 : -1]), .help = __VA_ARGS__)

typedef struct rose_command {
    const char *usage; /* "roseinfer serve MODEL [options]" */
    const char *about; /* a short paragraph */
    const rose_opt *opts;
    size_t n_opts;
    uint32_t min_args, max_args;     /* positional arguments */
    const rose_foreign_set *foreign; /* options of other servers, which rose_opts_parse_from takes;
                                        or NULL */
} rose_command;

/* Parses argv[1..argc). Positional arguments are moved to args[0 .. *n_args), borrowed from
 * argv. Returns -1 to continue, else the exit code. That is 0 after --help (printed on stdout)
 * and 2 after a usage error. A usage error prints one line on stderr, which suggests an option
 * with a similar spelling. */
int rose_opts_parse(const rose_command *c, int argc, char **argv, const char **args,
                    uint32_t *n_args);

/* As rose_opts_parse, for a command with exactly one positional argument, which goes to *arg. */
int rose_opts_parse_one(const char *usage, const char *about, const rose_opt *opts, size_t n_opts,
                        int argc, char **argv, const char **arg);

/* Where options come from besides the command line: variables of the environment, and the file that
 * the row marked `config` names. Options borrow texts from all members. */
typedef struct rose_opts_sources {
    char *const *env;                /* NAME=VALUE each, ended by NULL; NULL: no variables */
    rose_opts_file file;             /* owned */
    rose_foreign_taken foreign;      /* owned: what foreign options of the command line became */
    rose_foreign_taken foreign_file; /* owned: the same for the file */
} rose_opts_sources;

void rose_opts_sources_free(rose_opts_sources *s); /* accepts {0}; leaves env */

/* As rose_opts_parse, with more sources. For each option the first of these that gives it counts:
 * the command line, the variable ROSEINFER_NAME, the file, the default. NAME is the option's name
 * in capitals, with '_' for '-'. In the file '_' and '-' are the same. The values of a list come
 * from one source. A switch is true or false. The key `model` and ROSEINFER_MODEL are the first
 * positional argument if the command line has none. An empty variable counts as not set. A key of
 * the file that is no option is an error; such a variable gives a warning. */
int rose_opts_parse_from(const rose_command *c, rose_opts_sources *s, int argc, char **argv,
                         const char **args, uint32_t *n_args);

/* Sets the option to a value in the form of a file: a switch is true or false. INVAL: a message
 * that names neither the option nor the value. */
rose_status rose_opt_read(const rose_opt *o, const char *v, rose_err *err);

/* Finds the row of an option; NULL = there is none. */
const rose_opt *rose_opts_find(const rose_command *c, const char *name, size_t len);

/* Finds the row that a person probably meant, or NULL. *no: they meant --no-NAME. */
const rose_opt *rose_opts_near(const rose_command *c, const char *name, size_t len, bool *no);

/* Writes the default of each row (.def, .sdef) to the row's dest. */
void rose_opts_default(const rose_opt *opts, size_t n_opts);

/* Appends " --name 'value'" for each row whose value is not the row's default. Another program
 * started with this text then has the same options. For tables whose rows carry their defaults.
 * Errors: NOMEM. */
rose_status rose_opts_changed(const rose_opt *opts, size_t n_opts, rose_buf *out);

/* Prints "roseinfer: MESSAGE" on stderr and returns 1, the exit code of a failure. */
int rose_die(const rose_err *err);

/* Reads a whole number. 1k is 1000 and 1K is 1024, and so on with m, g and t, as in vLLM; 1.5k is
 * 1500. bytes: both are 1024, as are 8Ki, 8KiB and the like, and only 8KB is 8000. */
bool rose_opt_number(const char *text, bool bytes, uint64_t *out);

#endif
