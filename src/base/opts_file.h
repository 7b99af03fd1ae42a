/* base/opts_file.h - reads a file of options (--config): JSON, or YAML as vLLM's files use it.
 * The result is a flat list of keys with their values as text; what a key means is not known here.
 *
 * JSON is one object. These forms of YAML are understood, and everything else is an error:
 *     key: value          text in 'single' or "double" quotes, or without
 *     key: [a, b]         a list on one line
 *     key:                a list, one "- value" a line
 *     key: {"a": 1}       an object, which must be JSON on one line, at most 64 levels deep; its
 *                         value is this text
 *     # comment           also after a value, with a space before it
 * Within the braces a half of a character (\ud83c) is an error too: YAML has no such escape. An
 * error names the file and the line. Nothing prints. */
#ifndef ROSE_BASE_OPTS_FILE_H
#define ROSE_BASE_OPTS_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

typedef struct rose_opts_file_item {
    uint32_t line; /* of the key, from 1 */
    uint32_t n;    /* number of values; other than 1 only for a list */
    bool list;
    size_t key, value; /* where the key and the first value begin in text */
} rose_opts_file_item;

/* Initialise with {0}. */
typedef struct rose_opts_file {
    rose_buf text;              /* keys and values, each ended by a NUL */
    rose_opts_file_item *items; /* owned */
    size_t n, cap;
} rose_opts_file;

/* Reads the file at path, of at most 1 MiB. Errors: as rose_file_read, and FORMAT, NOMEM. */
rose_status rose_opts_file_read(rose_opts_file *out, const char *path, rose_err *err);

/* The same for text[0..n). path is for messages; a name in .json makes the text JSON, and so does
 * '{' as first character. */
rose_status rose_opts_file_parse(rose_opts_file *out, const char *path, const char *text, size_t n,
                                 rose_err *err);

void rose_opts_file_free(rose_opts_file *c); /* accepts {0}; leaves {0} */

/* The text of a key, or of the first value of its item. Value i + 1 follows the NUL of value i. The
 * pointer is valid until the config is freed. */
static inline const char *rose_opts_file_text(const rose_opts_file *c, size_t at)
{
    return c->text.data + at;
}

/* For the readers of both formats: begins an item, or adds a value to the last one. */
rose_status rose_opts_file_key(rose_opts_file *c, const char *key, size_t n, uint32_t line);
rose_status rose_opts_file_value(rose_opts_file *c, const char *text, size_t n);

/* base/opts_yaml.c */
rose_status rose_opts_file_yaml(rose_opts_file *out, const char *path, const char *text, size_t n,
                                rose_err *err);

#endif
