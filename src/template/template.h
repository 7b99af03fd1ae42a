/* template/template.h - chat templates: the subset of Jinja that they use, as transformers runs it
 * (trim_blocks, lstrip_blocks, loop controls, {% generation %}, an immutable sandbox).
 *
 * A template is compiled once and rendered for each request. Each byte of the rendered text carries
 * a mark: it comes from the template, or from a message. The mark follows a byte through every
 * filter, slice and concatenation. The caller tokenizes the text once, and lets a special token
 * match only where all of its bytes are template bytes. A message can then not contain a control
 * token. Every value in a message gives message bytes, with one exception: a role that OpenAI's API
 * knows (system, developer, user, assistant, tool, function), because some templates make control
 * tokens of roles.
 *
 * Threads: a compiled template is read-only and may be rendered by many threads at once.
 * Memory: a compile and a render each use one arena, which is freed at once. */
#ifndef ROSE_TEMPLATE_TEMPLATE_H
#define ROSE_TEMPLATE_TEMPLATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

typedef struct rose_template rose_template;

/* Bounds of one render. 0 = the default. A breach is ROSE_E_INVAL with a message. */
typedef struct rose_template_limits {
    uint64_t steps;      /* work in steps of about 40 ns, which no clock influences: bytes that are
                          * read, written or visited count as well; 20 million */
    uint32_t cpu_ms;     /* CPU time of this thread, see spent_ns; default: no limit */
    size_t memory_bytes; /* arena; 256 MiB */
    size_t output_bytes; /* rendered text; 32 MiB */
    uint32_t depth;      /* nested expressions, blocks and macro calls; 400 */
    const atomic_bool *stop; /* borrowed; true ends the render with ROSE_E_CLOSED; NULL: never */
    uint64_t *spent_ns;      /* CPU time of earlier renders, to which this one adds its own: cpu_ms
                              * bounds their sum; NULL: cpu_ms bounds this render alone */
    uint64_t *used;          /* gets the steps that were done, also on failure; NULL: not wanted */
} rose_template_limits;

typedef struct rose_template_input {
    const rose_json *messages;  /* borrowed: array of objects, at least one */
    const rose_json *tools;     /* borrowed: array or NULL (the template sees none) */
    const rose_json *documents; /* borrowed: array or NULL (the template sees none) */
    const rose_json *kwargs;    /* borrowed: object of further variables, or NULL; message bytes */
    const rose_json *tokens; /* borrowed: object such as bos_token and eos_token, or NULL; template
                              * bytes. kwargs of the same name take precedence. */
    bool add_generation_prompt;
    bool null_content; /* a `content` that is null stays, for templates that ask for none */
    bool continue_final_message; /* the text ends with the last message's content, so that the model
                                  * continues it; not with add_generation_prompt */
    int64_t now_s;               /* the clock of strftime_now: seconds since 1970 */
    bool utc;                    /* strftime_now in UTC, not in local time (tests) */
    rose_template_limits limits;
} rose_template_input;

/* Consecutive bytes of the same origin. */
typedef struct rose_template_run {
    size_t end;   /* offset after the run's last byte; the next run begins there */
    bool message; /* false: template bytes */
} rose_template_run;

typedef struct rose_template_text {
    char *bytes; /* owned; UTF-8, NUL-terminated */
    size_t len;
    rose_template_run *runs; /* owned; [n_runs], cover all bytes, neighbours differ */
    size_t n_runs;
} rose_template_text;

/* Compile n bytes of UTF-8. Errors: ROSE_E_FORMAT (syntax; the message names the line),
 * ROSE_E_UNSUPPORTED (a tag of Jinja that chat templates do not use), ROSE_E_NOMEM; then *out is
 * NULL. */
rose_status rose_template_compile(rose_template **out, const char *text, size_t n, rose_err *err);

/* Render. Members of a message whose value is null are dropped first, and reasoning_content,
 * thinking and reasoning are aliases, both as in transformers. On success *out is owned by the
 * caller. Errors: ROSE_E_INVAL (the template raised an exception, an expression fails, a limit;
 * the message names the line and the cause), ROSE_E_CLOSED (stopped), ROSE_E_NOMEM; then *out is
 * zero. */
rose_status rose_template_render(rose_template_text *out, const rose_template *t,
                                 const rose_template_input *in, rose_err *err);

void rose_template_text_free(rose_template_text *text); /* accepts {0}; leaves {0} */
void rose_template_free(rose_template *t);              /* accepts NULL */

#endif
