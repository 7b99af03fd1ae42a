/* libFuzzer target: a byte that says the kind, the order of properties and whether objects are
 * closed, a grammar, a NUL byte, and bytes that choose among the allowed tokens. Whatever they
 * hold: a compile ends with a grammar or a message; an allowed token is accepted and one that is
 * not is refused, if it is a byte; a copy allows the same; what a schema allows is JSON. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES = 256, EOS = 256, IDS = 270, WORDS = (IDS + 31) / 32, MAX_TEXT = 2000 };

static const char *const longer[IDS - EOS - 1] = {
    "ab", "\",",      "\":",  "{\"",    "}]", "\\u00",           "  ",
    "12", "\xe2\x82", "true", "\xa9\"", "<a", "aaaaaaaaaaaaaaaa"};

static rose_vocab_trie *vocabulary(void)
{
    static rose_vocab_trie *v;
    static char bytes[BYTES];
    rose_vocab_token tokens[IDS] = {{NULL, 0}};
    const uint32_t eos = EOS;
    if (v != NULL) return v;
    for (int i = 0; i < BYTES; i++) {
        bytes[i] = (char)i;
        tokens[i] = (rose_vocab_token){bytes + i, 1};
    }
    for (int i = 0; i < IDS - EOS - 1; i++)
        tokens[EOS + 1 + i] = (rose_vocab_token){longer[i], (uint32_t)strlen(longer[i])};
    if (rose_vocab_trie_create(&v, tokens, IDS, &eos, 1, NULL) != ROSE_OK) abort();
    return v;
}

static bool has_bit(const uint32_t *mask, uint32_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

/* The n-th allowed id, counted round. */
static uint32_t choose(const uint32_t *mask, unsigned n)
{
    uint32_t allowed[IDS], k = 0;
    for (uint32_t id = 0; id < IDS; id++)
        if (has_bit(mask, id)) allowed[k++] = id;
    if (k == 0) abort(); /* rose_matcher_mask reports this */
    return allowed[n % k];
}

static void check_copy(const rose_matcher *m, const uint32_t *mask, uint8_t byte)
{
    rose_matcher *c;
    uint32_t again[WORDS];
    if (rose_matcher_copy(&c, m, NULL) != ROSE_OK) abort();
    if (rose_matcher_mask(c, again, NULL) != ROSE_OK) abort();
    if (memcmp(mask, again, sizeof again) != 0) abort();
    rose_status st = rose_matcher_accept(c, byte, NULL);
    if (has_bit(mask, byte) != (st == ROSE_OK) && st != ROSE_E_UNSUPPORTED) abort();
    rose_matcher_destroy(c);
}

/* Writes the text that the bytes choose to text; true if it is complete. */
static bool follow(rose_matcher *m, const uint8_t *choices, size_t n, char *text, size_t *len)
{
    uint32_t mask[WORDS];
    rose_err err = {""};
    for (size_t i = 0; i < n && *len + 32 < MAX_TEXT; i++) {
        if (rose_matcher_mask(m, mask, &err) != ROSE_OK) {
            if (err.msg[0] == '\0') abort();
            return false;
        }
        if (i % 8 == 0) check_copy(m, mask, choices[i]);
        uint32_t id = choose(mask, choices[i]);
        if (has_bit(mask, EOS) != rose_matcher_accepting(m)) abort();
        rose_status st = rose_matcher_accept(m, id, &err);
        if (st == ROSE_E_UNSUPPORTED) return false;
        if (st != ROSE_OK) abort();
        if (id == EOS) return true;
        const char *s = id < BYTES ? (const char *)&(uint8_t){(uint8_t)id} : longer[id - EOS - 1];
        size_t k = id < BYTES ? 1 : strlen(s);
        memcpy(text + *len, s, k);
        *len += k;
    }
    return rose_matcher_accepting(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rose_grammar_opts opts = {.max_work = 200000,
                              .max_states = 20000,
                              .max_compile_bytes = (size_t)16 << 20,
                              .max_run_bytes = (size_t)1 << 20,
                              .max_stack = 60};
    rose_grammar *g;
    rose_matcher *m;
    rose_err err = {""};
    char text[MAX_TEXT];
    size_t len = 0;
    if (size == 0) return 0;
    rose_grammar_kind kind = (rose_grammar_kind)(data[0] % 6);
    opts.schema_order = data[0] / 6 % 2 == 1;
    opts.closed = data[0] / 12 % 2 == 1;
    size_t n = strnlen((const char *)data + 1, size - 1);
    if (rose_grammar_compile(&g, kind, (const char *)data + 1, n, vocabulary(), &opts, &err) !=
        ROSE_OK) {
        if (g != NULL || err.msg[0] == '\0') abort();
        return 0;
    }
    if (rose_matcher_create(&m, g, &err) != ROSE_OK) abort();
    size_t used = n + 2 < size ? n + 2 : size;
    bool complete = follow(m, data + used, size - used, text, &len);
    if (complete && (kind == ROSE_GRAMMAR_JSON_OBJECT || kind == ROSE_GRAMMAR_JSON_SCHEMA)) {
        rose_json_error e;
        rose_json *x = rose_json_loadb(text, len, ROSE_JSON_ANY | ROSE_JSON_PYTHON, &e);
        if (x == NULL && strstr(e.text, "in a key") == NULL)
            abort(); /* a key with \u0000 is JSON, but ours cannot have one */
        rose_json_decref(x);
    }
    rose_matcher_destroy(m);
    rose_grammar_unref(g);
    return 0;
}
