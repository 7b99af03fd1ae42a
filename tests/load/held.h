/* tests/load/held.h - why an event of a stream came late: a server sends no half characters, so
 * tokens that end inside one wait for those that complete it (and tokens without text, as the end
 * of a text under ignore_eos, for the next with text). One thread. */
#ifndef ROSE_LOAD_HELD_H
#define ROSE_LOAD_HELD_H

#include "tokenizer/tokenizer.h"

/* bytes[0 .. n): a piece of a stream of events with `token_ids` (return_token_ids). Of the first
 * list of ids in it: how many tokens in front released no text, so that they had to wait for the
 * one behind them. 0: none, or no whole list is there. A list whose ids cannot all be read counts
 * as none, and so does a character that began in an earlier event: too few are
 * counted, never too many. scratch: rose_detok_cap(t) bytes. */
uint32_t rose_held_tokens(const rose_tokenizer *t, const char *bytes, size_t n, char *scratch);

#endif
