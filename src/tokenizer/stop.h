/* tokenizer/stop.h - finds stop strings in a stream of text pieces, wherever the pieces begin and
 * end. */
#ifndef ROSE_TOKENIZER_STOP_H
#define ROSE_TOKENIZER_STOP_H

#include <stdbool.h>

#include "base/buf.h"

enum { ROSE_STOP_MAX_BYTES = 4096 }; /* of one stop string */

/* The strings of a request with their KMP tables; immutable, shared by its choices. */
typedef struct rose_stops {
    uint32_t n;
    uint32_t max_len; /* bytes of the longest */
    struct rose_stop {
        char *text;     /* owned, not NUL-terminated */
        uint32_t *fail; /* owned: length of the longest proper border of text[0..i] */
        uint32_t len;   /* bytes, >= 1 */
    } * v;
    bool first[256]; /* bytes that begin a string */
    bool include;    /* the string found belongs to the text */
} rose_stops;

/* The state of one choice: the last state[i] bytes of the text so far match the beginning of
 * string i. The longest such match is held back. It needs no copy, because it is a prefix of
 * that string. */
typedef struct rose_stop_state {
    uint32_t *state; /* [n], borrowed from the choice; NULL if n == 0 */
    uint32_t held;   /* bytes held back */
    uint32_t which;  /* index of the stop string whose prefix is held back; at the end, of the
                      * stop string that was found */
} rose_stop_state;

rose_status rose_stops_add(rose_stops *s, const char *text, size_t len); /* len >= 1 */
void rose_stops_free(rose_stops *s);

/* Appends to out the part of piece[0..len) that can be released. True: a stop string is
 * complete. Then out gets all text before it (with `include` also the string), and the rest of
 * the piece is dropped. The string that ends first wins; of two that end together, the longer.
 * out has room for st->held + len more bytes (rose_buf_reserve). Cost: O(len x n). */
bool rose_stop_push(const rose_stops *s, rose_stop_state *st, const char *piece, size_t len,
                    rose_buf *out);
/* As rose_stop_push, for text in which no string may end yet (min_tokens); a string may begin in
 * it. */
void rose_stop_pass(const rose_stops *s, rose_stop_state *st, const char *piece, size_t len,
                    rose_buf *out);
/* Appends the held text. out has room for st->held bytes. */
void rose_stop_flush(const rose_stops *s, rose_stop_state *st, rose_buf *out);

#endif
