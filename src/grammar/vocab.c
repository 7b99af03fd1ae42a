/* grammar/vocab.c - the tokens of a tokenizer as a vocabulary. */
#include <stdlib.h>

#include "grammar/grammar.h"

rose_status rose_vocab_trie_open(rose_vocab_trie **out, const rose_tokenizer *t, uint32_t n_ids,
                                 const uint32_t *eos, size_t n_eos, rose_err *err)
{
    rose_vocab_token *tokens = calloc((size_t)n_ids + 1, sizeof *tokens);
    *out = NULL;
    if (tokens == NULL) return rose_fail(err, ROSE_E_NOMEM, "grammar vocabulary: out of memory");
    for (uint32_t id = 0; id < n_ids; id++) {
        size_t n;
        const char *bytes = rose_tokenizer_token_bytes(t, id, &n);
        if (bytes == NULL || rose_tokenizer_is_special(t, id) || n > ROSE_VOCAB_TOKEN_BYTES)
            continue;
        tokens[id] = (rose_vocab_token){bytes, (uint32_t)n};
    }
    rose_status st = rose_vocab_trie_create(out, tokens, n_ids, eos, n_eos, err);
    free(tokens);
    return st;
}
