/* api/stop.h - stop strings over a stream of text pieces, wherever the pieces' borders fall. */
#ifndef ROSE_API_STOP_H
#define ROSE_API_STOP_H

#include "api/json_out.h"

enum { ROSE_STOP_MAX_BYTES = 4096 }; /* of one stop string */

/* The strings of a request with their KMP tables; immutable, shared by its choices. */
typedef struct rose_stops {
    uint32_t n;
    uint32_t max_len; /* bytes of the longest */
    struct rose_stop {
        char *text;     /* owned, not NUL-terminated */
        uint32_t *fail; /* owned: longest proper border of text[0..i] */
        uint32_t len;   /* bytes, >= 1 */
    } * v;
    bool first[256]; /* bytes that begin a string */
    bool include;    /* the string found belongs to the text */
} rose_stops;

/* A choice's place in the stream: state[i] bytes of string i are matched at the end of the text so
 * far. The longest of them is held back, and is not stored: it is a prefix of that string. */
typedef struct rose_stop_state {
    uint32_t *state; /* [n], borrowed from the choice; NULL if n == 0 */
    uint32_t held;   /* bytes held back */
    uint32_t which;  /* the string whose prefix they are; at the end the one that was found */
} rose_stop_state;

rose_status rose_stops_add(rose_stops *s, const char *text, size_t len); /* len >= 1 */
void rose_stops_free(rose_stops *s);

/* Append to out what piece[0..len) releases. True: a stop string is complete; out then got all text
 * before it (with `include`, it too), and the rest of the piece is dropped. The string that ends
 * first wins; of two that end together, the longer. Cost: O(len x n). */
bool rose_stop_push(const rose_stops *s, rose_stop_state *st, const char *piece, size_t len,
                    rose_api_out *out);
/* The same for text in which no string may end yet (min_tokens): one that begins in it may. */
void rose_stop_pass(const rose_stops *s, rose_stop_state *st, const char *piece, size_t len,
                    rose_api_out *out);
void rose_stop_flush(const rose_stops *s, rose_stop_state *st,
                     rose_api_out *out); /* the held text */

#endif
