/* tests/grammar/grammar_text.h - a small vocabulary and texts against a grammar, for the tests of
 * this room. Ids 0 to 255 are the bytes; id 256 is the end; tokens of several bytes follow. */
#ifndef ROSE_TESTS_GRAMMAR_TEXT_H
#define ROSE_TESTS_GRAMMAR_TEXT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/grammar.h"

enum { EOS = 256, FIRST_LONG = 258, TEXT_WORDS = 16 };

/* "\xc3" and "\xa9" are the halves of e with an acute accent. */
static const char *const long_tokens[] = {"ab",
                                          "abc",
                                          "\"a",
                                          "\",\"",
                                          "\": \"",
                                          "{\"",
                                          "}",
                                          " b",
                                          "12",
                                          "true",
                                          "\\n",
                                          "\\\"x",
                                          "\\u00",
                                          "\xc3",
                                          "a\xc3",
                                          "\xa9",
                                          "\xa9\"",
                                          "\xe2\x82",
                                          "aaaa",
                                          "  ",
                                          "\n\n",
                                          "]}",
                                          "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
enum { N_LONG = sizeof long_tokens / sizeof long_tokens[0], N_IDS = FIRST_LONG + N_LONG };

static rose_vocab_trie *small_vocab(void)
{
    static char bytes[256];
    static rose_vocab_token tokens[N_IDS];
    const uint32_t eos = EOS;
    rose_vocab_trie *v;
    rose_err err = {""};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (rose_vocab_token){bytes + i, 1};
    }
    for (int i = 0; i < N_LONG; i++)
        tokens[FIRST_LONG + i] =
            (rose_vocab_token){long_tokens[i], (uint32_t)strlen(long_tokens[i])};
    assert_int_equal(rose_vocab_trie_create(&v, tokens, N_IDS, &eos, 1, &err), ROSE_OK);
    return v;
}

static bool has_bit(const uint32_t *mask, uint32_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

/* The mask of m must be what accepting each token on a copy says. */
__attribute__((unused)) static void check_mask(rose_matcher *m)
{
    uint32_t mask[TEXT_WORDS] = {0}, id;
    rose_err err = {""};
    rose_status st = rose_matcher_mask(m, mask, &err);
    if (st != ROSE_OK) fail_msg("mask: %s", err.msg);
    for (id = 0; id < N_IDS; id++) {
        rose_matcher *c;
        assert_int_equal(rose_matcher_copy(&c, m, &err), ROSE_OK);
        bool ok = rose_matcher_accept(c, id, NULL) == ROSE_OK;
        if (ok != has_bit(mask, id)) fail_msg("id %u: mask %d, accept %d", id, !ok, ok);
        rose_matcher_destroy(c);
    }
}

/* True if the grammar allows exactly this text, byte by byte; masks: check each on the way. */
static bool allows_bytes(rose_grammar *g, const char *text, size_t n, bool masks)
{
    rose_matcher *m;
    rose_err err = {""};
    bool ok = true;
    assert_int_equal(rose_matcher_create(&m, g, &err), ROSE_OK);
    for (size_t i = 0; i < n && ok; i++) {
        if (masks) check_mask(m);
        ok = rose_matcher_accept(m, (uint8_t)text[i], &err) == ROSE_OK;
    }
    if (ok && masks) check_mask(m);
    ok = ok && rose_matcher_accepting(m);
    if (ok) assert_int_equal(rose_matcher_accept(m, EOS, &err), ROSE_OK);
    rose_matcher_destroy(m);
    return ok;
}

__attribute__((unused)) static bool allows(rose_grammar *g, const char *text)
{
    return allows_bytes(g, text, strlen(text), false);
}

__attribute__((unused)) static rose_grammar *compiled(rose_vocab_trie *v, rose_grammar_kind kind,
                                                      const char *text)
{
    rose_grammar *g;
    rose_err err = {""};
    if (rose_grammar_compile(&g, kind, text, strlen(text), v, NULL, &err) != ROSE_OK)
        fail_msg("%s: %s", text, err.msg);
    return g;
}

/* Texts that the grammar allows, and texts that it does not. */
typedef struct text_case {
    const char *grammar;
    const char *good[10], *bad[10]; /* NULL after the last */
} text_case;

__attribute__((unused)) static void check_cases(rose_vocab_trie *v, rose_grammar_kind kind,
                                                const text_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        rose_grammar *g = compiled(v, kind, cases[i].grammar);
        for (const char *const *t = cases[i].good; *t != NULL; t++)
            if (!allows_bytes(g, *t, strlen(*t), true))
                fail_msg("%s should allow %s", cases[i].grammar, *t);
        for (const char *const *t = cases[i].bad; *t != NULL; t++)
            if (allows(g, *t)) fail_msg("%s should not allow %s", cases[i].grammar, *t);
        rose_grammar_unref(g);
    }
}

/* The grammar is refused with this status, and the message has this part. */
__attribute__((unused)) static void check_refused(rose_vocab_trie *v, rose_grammar_kind kind,
                                                  const char *text, rose_status want,
                                                  const char *part)
{
    rose_grammar *g;
    rose_err err = {""};
    rose_status st = rose_grammar_compile(&g, kind, text, strlen(text), v, NULL, &err);
    assert_null(g);
    if (st != want || strstr(err.msg, part) == NULL)
        fail_msg("%.60s: status %s, message: %s", text, rose_status_name(st), err.msg);
}

#endif
