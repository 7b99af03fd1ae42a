/* tests/load/held.h - explains why an event of a stream came late. A server does not send parts of
 * a character. So a token that ends inside a character waits until later tokens complete it. A
 * token without text waits for the next one with text. One thread. */
#ifndef ROSE_LOAD_HELD_H
#define ROSE_LOAD_HELD_H

#include "tokenizer/tokenizer.h"

/* Looks at bytes[0 .. n), a piece of a stream of events that have `token_ids` (return_token_ids).
 * Returns how many tokens of the first list of ids released no text and so waited for the token
 * after them. Returns 0 if there are none, or no complete list. A list with ids that cannot be read
 * counts as 0, and so does a character that began in an earlier event: the result may be too small
 * but is never too large. scratch: rose_detok_cap(t) bytes. */
uint32_t rose_held_tokens(const rose_tokenizer *t, const char *bytes, size_t n, char *scratch);

#endif
