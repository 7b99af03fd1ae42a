/* grammar/cache.h - compiled grammars by their text, so that requests with the same schema share
 * one grammar with its masks.
 *
 * A cache belongs to one vocabulary. Its size is bounded in bytes: when it is full, the grammars
 * that were used longest ago leave it, and they end when their last matcher does. A grammar that
 * is larger than the whole bound is compiled for its request and not kept. What is wrong with a
 * text is kept for the last 64 texts that were refused, so that refusing one again costs nothing.
 *
 * Threads: any. A lock is held for a look-up, not while compiling. When several threads ask for a
 * text that is not there, one compiles it and the others wait for its result, so a burst of equal
 * requests costs one compile. */
#ifndef ROSE_GRAMMAR_CACHE_H
#define ROSE_GRAMMAR_CACHE_H

#include "grammar/grammar.h"

typedef struct rose_grammar_cache rose_grammar_cache;

/* opts: for all compiles, copied; NULL: the defaults. max_bytes: of texts, programs, states and
 * masks together. Takes a reference of v. Errors: ROSE_E_NOMEM. */
rose_status rose_grammar_cache_create(rose_grammar_cache **out, rose_vocab_trie *v,
                                      const rose_grammar_opts *opts, size_t max_bytes,
                                      rose_err *err);

/* The cache of a model, with a vocabulary of its own, which takes 15 to 100 ms to make. A schema
 * that names properties allows no others (rose_grammar_opts.closed), as in vLLM and OpenAI's API:
 * a small model that may add properties finds no end. n_ids, eos: as for rose_vocab_trie_open.
 * The grammars of running and waiting requests may take 2 GiB beside max_bytes; the next one to
 * compile then gets ROSE_E_FULL. Errors: UNSUPPORTED (n_eos is 0), NOMEM. */
rose_status rose_grammar_cache_open(rose_grammar_cache **out, const rose_tokenizer *t,
                                    uint32_t n_ids, const uint32_t *eos, size_t n_eos,
                                    size_t max_bytes, rose_err *err);
void rose_grammar_cache_destroy(rose_grammar_cache *c); /* accepts NULL; no thread is in a get */

/* The grammar of this text, compiled if need be; the caller owns one reference. schema_order: as in
 * rose_grammar_opts; it is a part of the key. own: NULL, or bounds for this compile: its max_work,
 * work, stop and stop_arg; an error that they cause is not kept. Errors: as rose_grammar_compile.
 */
rose_status rose_grammar_cache_get(rose_grammar **out, rose_grammar_cache *c,
                                   rose_grammar_kind kind, bool schema_order, const char *text,
                                   size_t len, const rose_grammar_opts *own, rose_err *err);

/* The same if the grammar, or an error, is there. ROSE_E_EMPTY: it is not, or it is being compiled;
 * then *out is NULL, nothing is counted, and a get may take long. */
rose_status rose_grammar_cache_find(rose_grammar **out, rose_grammar_cache *c,
                                    rose_grammar_kind kind, bool schema_order, const char *text,
                                    size_t len, rose_err *err);

/* A hash of what a look-up compares. */
uint64_t rose_grammar_cache_key(rose_grammar_kind kind, bool schema_order, const char *text,
                                size_t len);

typedef struct rose_grammar_cache_stats {
    uint64_t hits, misses, evicted; /* a wait for another thread's compile is a hit */
    size_t grammars, bytes;
} rose_grammar_cache_stats;
void rose_grammar_cache_read(rose_grammar_cache *c, rose_grammar_cache_stats *out);

#endif
