/* grammar/grammar.h - structured output: which token ids may come next, so that the text of a
 * request obeys a JSON schema, a regular expression, a list of choices, a grammar or a structural
 * tag.
 *
 * A vocabulary is built once for each tokenizer. A grammar is compiled for one vocabulary and is
 * shared by all requests with the same text (grammar/cache.h keeps compiled grammars). A matcher
 * belongs to one choice of one request: it follows the accepted ids and gives the mask of the ids
 * that may follow.
 *
 * Every kind becomes one pushdown automaton over bytes (program.c). A matcher holds a set of
 * positions, each with a stack. Sets are interned, and their transitions and masks are kept with
 * the grammar, so that a mask which was needed before costs one copy (state.c, mask.c).
 *
 * Threads: a vocabulary is immutable. A grammar may be used by any number of threads: it locks
 * itself. One matcher is used by one thread at a time. A mask or an accepted token that is new to
 * the grammar takes 2 to 300 us and may allocate, so call both on a worker, not on the engine
 * thread.
 *
 * Results depend only on the text, the options, the vocabulary and the accepted ids, never on time,
 * on other matchers or on what is cached. There are two exceptions. A mask or an accepted id that
 * takes more than 10 million steps fails, and cached states save steps. A call also fails if the
 * states of all living matchers together exceed max_run_bytes. Only grammars that are made to be
 * ambiguous come near.
 *
 * Formats: JSON Schema drafts 4 to 2020-12 (json-schema.org), as jsonschema-rs judges it; regular
 * expressions of ECMA-262 without back-references; EBNF of XGrammar, GBNF of llama.cpp, the common
 * subset of Lark and llguidance; structural tags of XGrammar (structural_tag in its documentation).
 */
#ifndef ROSE_GRAMMAR_GRAMMAR_H
#define ROSE_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

typedef struct rose_vocab_trie rose_vocab_trie;
typedef struct rose_grammar rose_grammar;
typedef struct rose_matcher rose_matcher;

/* One id of a vocabulary. bytes: what the token adds to the text, borrowed for the call; NULL or
 * n_bytes == 0 for an id that adds no text (special and control tokens, ids without a token). */
typedef struct rose_vocab_token {
    const char *bytes;
    uint32_t n_bytes;
} rose_vocab_token;

enum { ROSE_VOCAB_TOKEN_BYTES = 1024 }; /* a longer token is never allowed by a mask */

/* Builds the trie of tokens[0..n_ids). eos[0..n_eos): the ids that end the text; their bytes are
 * ignored. Takes about 60 ms and 6 MiB for 150,000 ids. The new vocabulary has one reference.
 * Errors: ROSE_E_INVAL (an eos id beyond n_ids), ROSE_E_NOMEM. */
rose_status rose_vocab_trie_create(rose_vocab_trie **out, const rose_vocab_token *tokens,
                                   uint32_t n_ids, const uint32_t *eos, size_t n_eos,
                                   rose_err *err);

/* The same from a tokenizer. n_ids: rows of the model's output, which may be more or fewer than the
 * tokenizer has. Special tokens add no text. SentencePiece's U+2581 is a space, and <0xXX> is one
 * byte. A leading space of the first token is a part of the text. */
rose_status rose_vocab_trie_open(rose_vocab_trie **out, const rose_tokenizer *t, uint32_t n_ids,
                                 const uint32_t *eos, size_t n_eos, rose_err *err);
void rose_vocab_trie_ref(rose_vocab_trie *v);
void rose_vocab_trie_unref(rose_vocab_trie *v); /* accepts NULL; the last one frees */

typedef enum rose_grammar_kind {
    ROSE_GRAMMAR_JSON_OBJECT, /* any JSON object; the text is ignored */
    ROSE_GRAMMAR_JSON_SCHEMA, /* text: a JSON schema */
    ROSE_GRAMMAR_REGEX,       /* text: a regular expression; the whole output matches it */
    ROSE_GRAMMAR_CHOICE,      /* text: a JSON list of strings */
    ROSE_GRAMMAR_EBNF, /* text: GBNF or XGrammar's EBNF, the rule `root` is the start; or Lark,
                        * the rule `start` is the start */
    ROSE_GRAMMAR_TAG   /* text: a structural tag of XGrammar, in JSON */
} rose_grammar_kind;

/* Limits and style. Zero in a field means its default. Beyond max_states, max_depth, max_work or
 * max_compile_bytes compiling fails with ROSE_E_UNSUPPORTED, and the message names the limit. All
 * limits count work or bytes, not time. */
typedef struct rose_grammar_opts {
    uint32_t max_space;       /* white space at each place where JSON allows it, in characters
                               * (default 1); UINT32_MAX: none, not even after ',' and ':' */
    bool schema_order;        /* properties only in the order of the schema, as OpenAI's strict
                               * schemas have them; false: in any order, as JSON Schema says */
    bool closed;              /* an object whose schema names properties has no other ones, unless
                               * the schema speaks of them (additionalProperties, patternProperties,
                               * propertyNames); false: it may have any, as JSON Schema says */
    uint32_t max_states;      /* states of the automaton (default 1,000,000) */
    uint32_t max_depth;       /* nesting of a schema or expression, in levels (default 200) */
    uint32_t max_stack;       /* nesting of the output, in frames (default 1,000): at the limit the
                               * mask forbids tokens that nest deeper */
    uint64_t max_work;        /* steps of compiling, of 5 to 20 ns each (default 30,000,000) */
    size_t max_compile_bytes; /* memory while compiling (default 256 MiB) */
    size_t max_run_bytes;     /* cached states and masks of one grammar (default 32 MiB) */
    size_t max_live_bytes;    /* all grammars of the vocabulary that live (default 2 GiB): beyond
                               * this, compiling fails with ROSE_E_FULL. Beyond half of it, a grammar
                               * caches 1/64 of max_run_bytes */
    uint64_t *work;           /* NULL, or where the steps of compiling are written, also after an
                               * error */
    bool (*stop)(void *);     /* NULL, or asked about every millisecond while compiling: true ends
                               * it with ROSE_E_CLOSED */
    void *stop_arg;
} rose_grammar_opts;

/* Compiles text[0..len) (no NUL needed) for a vocabulary, of which the grammar takes a reference.
 * opts may be NULL. The new grammar has one reference. Errors: ROSE_E_INVAL (the text is
 * malformed or allows no output), ROSE_E_UNSUPPORTED (a feature we do not honour, named with its
 * JSON pointer or position; or a limit), ROSE_E_NOMEM. Then *out is NULL. Any thread. */
rose_status rose_grammar_compile(rose_grammar **out, rose_grammar_kind kind, const char *text,
                                 size_t len, rose_vocab_trie *v, const rose_grammar_opts *opts,
                                 rose_err *err);
void rose_grammar_ref(rose_grammar *g);
void rose_grammar_unref(rose_grammar *g); /* accepts NULL; the last one frees */

/* Memory of the grammar now, its cached states and masks included, in bytes. */
size_t rose_grammar_bytes(rose_grammar *g);

/* Makes a matcher at the start of the text. It takes a reference of g. */
rose_status rose_matcher_create(rose_matcher **out, rose_grammar *g, rose_err *err);

/* Makes a matcher that stands where m stands (a further choice of the same request). */
rose_status rose_matcher_copy(rose_matcher **out, const rose_matcher *m, rose_err *err);
void rose_matcher_destroy(void *matcher); /* accepts NULL; waits for no other thread */
/* True after a call for this grammar that took more than about 3 ms, and until some calls were
 * quick again. */
bool rose_matcher_is_slow(void *matcher);

/* Advances by one sampled id. ROSE_E_INVAL: the grammar does not allow this id here. Otherwise as
 * rose_matcher_mask. After an error the matcher is unchanged. An eos id ends the text: after it
 * only eos ids are allowed. */
rose_status rose_matcher_accept(void *matcher, uint32_t id, rose_err *err);

/* Writes the mask to words[0..(n_ids + 31) / 32): bit id % 32 of word id / 32 is 1
 * if the id may come next. eos ids are allowed where the text may end. Errors, which concern only
 * this request: ROSE_E_UNSUPPORTED (the grammar is so ambiguous that a limit is reached, or no
 * token of the vocabulary can continue the text), ROSE_E_NOMEM. */
rose_status rose_matcher_mask(void *matcher, uint32_t *words, rose_err *err);

/* Accepts id and writes the mask after it, if both are known from texts before and no other thread
 * uses the grammar. Otherwise false, and the matcher is unchanged. It takes 1 to 2 us. */
bool rose_matcher_try_next(void *matcher, uint32_t id, uint32_t *words);

/* Goes along ids as try_next would, but the matcher stays where it is. words[i]: the mask after
 * ids[0..i], (n_ids + 31) / 32 words each. Returns how many ids it went along: as far as all is
 * known from texts before, 0 while another thread uses the grammar. An eos id ends the walk. */
uint32_t rose_matcher_walk(void *matcher, const uint32_t *ids, uint32_t n, uint32_t *words);

/* Writes at most cap ids that probably come next: those of the bytes that the grammar forces, and
 * where it leaves the choice of white space, as models mostly write it: a space after ',' and ':'
 * and none elsewhere. The ids are the longest tokens at each place, which need not be those of the
 * tokenizer. Returns how many. compute: computes what a walk along them needs (some 10 us an id,
 * for a thread that may wait); else as far as it is known already, and without a wait. */
uint32_t rose_matcher_propose(void *matcher, uint32_t cap, uint32_t *ids, bool compute);

/* True if the text may end here. */
bool rose_matcher_accepting(const rose_matcher *m);

/* A matcher as a guide, so that engine and grammar do not include each other; because of it these
 * functions take a void *. ROSE_MATCHER_GUIDE initialises a rose_guide_ops (engine/engine.h). */
#define ROSE_MATCHER_GUIDE                                                                         \
    {                                                                                              \
        .advance = rose_matcher_accept, .mask = rose_matcher_mask,                                 \
        .destroy = rose_matcher_destroy, .is_slow = rose_matcher_is_slow,                          \
        .try_next = rose_matcher_try_next, .walk = rose_matcher_walk,                              \
        .propose = rose_matcher_propose                                                            \
    }
#endif
