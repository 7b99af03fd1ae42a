/* Vocabularies, matchers and the cache: tokens that hold parts of characters, copies, forced ids,
 * the end of the text, limits, hostile grammars, clean-ups of cached states, threads. */
#include "grammar_text.h"

#include <pthread.h>

#include "grammar/cache.h"
#include "grammar/match_internal.h"
#include "tokenizer/tok_fixture.h"

static rose_vocab_trie *v;

static void accept(rose_matcher *m, uint32_t id)
{
    rose_err err = {""};
    if (rose_matcher_accept(m, id, &err) != ROSE_OK) fail_msg("%s", err.msg);
}

static rose_matcher *start(rose_grammar *g)
{
    rose_matcher *m;
    assert_int_equal(rose_matcher_create(&m, g, NULL), ROSE_OK);
    return m;
}

static uint32_t long_id(const char *text)
{
    for (uint32_t i = 0; i < N_LONG; i++)
        if (strcmp(long_tokens[i], text) == 0) return FIRST_LONG + i;
    fail_msg("no token %s", text);
    return 0;
}

/* ---- vocabularies ---- */

static void bad_vocabularies(void **state)
{
    const rose_vocab_token one = {"a", 1};
    const uint32_t eos = 1;
    rose_vocab_trie *t;
    rose_err err = {""};
    (void)state;
    assert_int_equal(rose_vocab_trie_create(&t, &one, 1, &eos, 1, &err), ROSE_E_INVAL);
    assert_null(t);
    assert_non_null(strstr(err.msg, "eos id 1"));
    assert_int_equal(rose_vocab_trie_create(&t, &one, 1, NULL, 0, &err), ROSE_OK);
    assert_int_equal(t->n_ids, 1);
    rose_vocab_trie_unref(t);
    assert_int_equal(rose_vocab_trie_create(&t, NULL, 0, NULL, 0, &err), ROSE_OK);
    rose_vocab_trie_unref(t);
}

/* Equal tokens are all allowed; a token without text, or of an eos id, never is as text. */
static void odd_tokens(void **state)
{
    const rose_vocab_token tokens[] = {{"a", 1}, {"a", 1}, {"", 0}, {NULL, 0}, {"a", 1}, {"b", 1}};
    const uint32_t eos[] = {4, 3};
    rose_vocab_trie *t;
    uint32_t mask;
    (void)state;
    assert_int_equal(rose_vocab_trie_create(&t, tokens, 6, eos, 2, NULL), ROSE_OK);
    rose_grammar *g = compiled(t, ROSE_GRAMMAR_REGEX, "a");
    rose_matcher *m = start(g);
    assert_int_equal(rose_matcher_mask(m, &mask, NULL), ROSE_OK);
    assert_int_equal(mask, 1u << 0 | 1u << 1);
    assert_int_equal(rose_matcher_accept(m, 2, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_matcher_accept(m, 77, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_matcher_accept(m, 4, NULL), ROSE_E_INVAL);
    accept(m, 1);
    assert_int_equal(rose_matcher_mask(m, &mask, NULL), ROSE_OK);
    assert_int_equal(mask, 1u << 3 | 1u << 4);
    accept(m, 4);
    assert_true(rose_matcher_accepting(m));
    assert_int_equal(rose_matcher_accept(m, 0, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_matcher_mask(m, &mask, NULL), ROSE_OK);
    assert_int_equal(mask, 1u << 3 | 1u << 4);
    rose_matcher_destroy(m);
    rose_grammar_unref(g);
    rose_vocab_trie_unref(t);
}

static const char spaced[] =
    "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"unk_token\": \"<unk>\", \"vocab\": "
    "{\"<unk>\": 0, \"</s>\": 1, \"<0xE2>\": 2, \"<0x82>\": 3, \"<0xAC>\": 4, "
    "\"\\u2581\": 5, \"a\": 6, \"\\u2581a\": 7}, \"merges\": [\"\\u2581 a\"]}, "
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "
    "\"prepend\": \"\\u2581\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
    "\"content\": \"\\u2581\"}]}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
    "\"Replace\", \"pattern\": {\"String\": \"\\u2581\"}, \"content\": \" \"}, {\"type\": "
    "\"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", "
    "\"start\": 1, \"stop\": 0}]}, \"added_tokens\": [{\"id\": 0, \"content\": \"<unk>\", "
    "\"special\": true}, {\"id\": 1, \"content\": \"</s>\", \"special\": true}]}";

/* U+2581 is a space, <0xXX> one byte, a special token no text. */
static void sentencepiece(void **state)
{
    temp_dir d;
    rose_tokenizer *t;
    rose_vocab_trie *s;
    const uint32_t eos = 1;
    uint32_t mask = 0;
    rose_err err = {""};
    (void)state;
    temp_make(&d);
    temp_write(&d, "tokenizer.json", spaced, sizeof spaced - 1);
    if (rose_tokenizer_open(&t, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    temp_remove(&d);
    assert_int_equal(rose_vocab_trie_open(&s, t, 12, &eos, 1, &err), ROSE_OK);
    rose_grammar *g = compiled(s, ROSE_GRAMMAR_REGEX, "( a|<unk>|</s>)?\\u20ac?");
    rose_matcher *m = start(g);
    assert_int_equal(rose_matcher_mask(m, &mask, &err), ROSE_OK);
    assert_int_equal(mask, 1u << 1 | 1u << 2 | 1u << 5 | 1u << 7);
    accept(m, 5);
    accept(m, 6);
    accept(m, 2);
    assert_int_equal(rose_matcher_mask(m, &mask, &err), ROSE_OK);
    assert_int_equal(mask, 1u << 3);
    accept(m, 3);
    accept(m, 4);
    assert_true(rose_matcher_accepting(m));
    rose_matcher_destroy(m);
    rose_grammar_unref(g);
    rose_vocab_trie_unref(s);
    rose_tokenizer_close(t);
}

/* ---- matchers ---- */

static void halves_of_characters(void **state)
{
    rose_grammar *g = compiled(v, ROSE_GRAMMAR_JSON_SCHEMA, "{\"type\": \"string\"}");
    rose_matcher *m = start(g);
    (void)state;
    accept(m, '"');
    accept(m, long_id("a\xc3"));
    check_mask(m);
    assert_int_equal(rose_matcher_accept(m, '"', NULL), ROSE_E_INVAL);
    accept(m, long_id("\xa9\""));
    assert_true(rose_matcher_accepting(m));
    rose_matcher_destroy(m);
    m = start(g);
    assert_false(rose_matcher_accepting(m));
    accept(m, '"');
    accept(m, long_id("\xe2\x82"));
    check_mask(m);
    accept(m, 0xac);
    accept(m, long_id("\\\"x"));
    accept(m, long_id("\\u00"));
    check_mask(m);
    rose_matcher_destroy(m);
    rose_grammar_unref(g);
}

static void copies(void **state)
{
    rose_grammar *g = compiled(v, ROSE_GRAMMAR_REGEX, "ab*c");
    rose_matcher *m = start(g), *c;
    (void)state;
    accept(m, 'a');
    assert_int_equal(rose_matcher_copy(&c, m, NULL), ROSE_OK);
    accept(m, 'c');
    accept(c, 'b');
    assert_true(rose_matcher_accepting(m));
    assert_false(rose_matcher_accepting(c));
    check_mask(m);
    rose_matcher_destroy(m);
    check_mask(c);
    rose_matcher_destroy(c);
    rose_matcher_destroy(NULL);
    rose_grammar_unref(g);
}

/* What is known at once is what accept and mask give. A second text gets all masks of the first. */
static void known_masks(void **state)
{
    static const char text[] = "{\"ab\": [12, true, \"aaaa\"]}";
    rose_grammar *g;
    uint32_t want[sizeof text][TEXT_WORDS], got[TEXT_WORDS];
    (void)state;
    assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, "{}", 2, v, NULL, NULL),
                     ROSE_OK);
    rose_matcher *m = start(g);
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        const uint32_t id = (uint8_t)text[i];
        memset(got, 0xEE, sizeof got);
        assert_false(rose_matcher_try_next(m, EOS, got));
        assert_false(rose_matcher_try_next(m, N_IDS, got));
        if (i == 0) assert_false(rose_matcher_try_next(m, 'x', got)); /* not allowed */
        for (int k = 0; k < TEXT_WORDS; k++)
            assert_int_equal(got[k], 0xEEEEEEEE); /* unchanged */
        accept(m, id);
        assert_int_equal(rose_matcher_mask(m, want[i], NULL), ROSE_OK);
    }
    assert_true(rose_matcher_accepting(m));
    assert_int_equal(rose_matcher_accept(m, EOS, NULL), ROSE_OK);
    assert_false(rose_matcher_try_next(m, EOS, got));
    rose_matcher_destroy(m);
    m = start(g);
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        assert_true(rose_matcher_try_next(m, (uint8_t)text[i], got));
        for (uint32_t id = 0; id < N_IDS; id++)
            assert_int_equal(has_bit(got, id), has_bit(want[i], id));
    }
    check_mask(m);
    rose_matcher_destroy(m);
    rose_grammar_unref(g);
}

enum { N_WORDS = (N_IDS + 31) / 32, MAX_WALK = 15 };

static uint32_t below(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return (uint32_t)(*s >> 20);
}

/* Up to n ids, mostly such as the masks of a copy allow. */
static uint32_t random_guess(const rose_matcher *m, uint64_t *s, uint32_t n, uint32_t *ids)
{
    rose_matcher *c;
    uint32_t k = 0, mask[TEXT_WORDS];
    assert_int_equal(rose_matcher_copy(&c, m, NULL), ROSE_OK);
    for (; k < n; k++) {
        ids[k] = below(s) % (N_IDS + 2);
        assert_int_equal(rose_matcher_mask(c, mask, NULL), ROSE_OK);
        for (uint32_t i = 0;
             i < N_IDS && below(s) % 40 != 0 && (ids[k] >= N_IDS || !has_bit(mask, ids[k]));)
            ids[k] = (below(s) + i++) % N_IDS;
        if (rose_matcher_accept(c, ids[k], NULL) != ROSE_OK) break;
    }
    rose_matcher_destroy(c);
    return k < n ? k + 1 : n;
}

/* The masks along ids are those of a matcher that accepts them, and the matcher stays. Returns how
 * far the walk went. */
static uint32_t check_walk(rose_matcher *m, const uint32_t *ids, uint32_t n)
{
    uint32_t words[MAX_WALK * N_WORDS], want[TEXT_WORDS], before[TEXT_WORDS], k;
    rose_matcher *c;
    assert_int_equal(rose_matcher_mask(m, before, NULL), ROSE_OK);
    memset(words, 0xEE, sizeof words);
    k = rose_matcher_walk(m, ids, n, words);
    assert_true(k <= n);
    assert_int_equal(rose_matcher_copy(&c, m, NULL), ROSE_OK);
    for (uint32_t i = 0; i < k; i++) {
        assert_true(ids[i] != EOS);
        accept(c, ids[i]);
        assert_int_equal(rose_matcher_mask(c, want, NULL), ROSE_OK);
        assert_memory_equal(words + i * N_WORDS, want, N_WORDS * sizeof *want);
    }
    if (k < n) assert_int_equal(words[k * N_WORDS], 0xEEEEEEEE);
    rose_matcher_destroy(c);
    assert_int_equal(rose_matcher_mask(m, want, NULL), ROSE_OK);
    assert_memory_equal(before, want, N_WORDS * sizeof *want);
    return k;
}

static const char *const walked[] = {
    "{}",
    "{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"string\",\"maxLength\":9},"
    "\"abc\":{\"enum\":[\"aaaa\",12,true]}},\"required\":[\"ab\",\"abc\"],"
    "\"additionalProperties\":false}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":20}"};

/* Guesses of all kinds along random texts, also while states are dropped. */
static void walks(void **state)
{
    uint64_t s = 20261129;
    (void)state;
    for (int round = 0; round < 60; round++) {
        const char *schema = walked[round % 3];
        rose_grammar_opts opts = {.max_run_bytes = round < 30 ? 0 : 60000};
        rose_grammar *g;
        uint32_t n_walked = 0, ids[MAX_WALK], mask[TEXT_WORDS];
        assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, schema, strlen(schema),
                                              v, &opts, NULL),
                         ROSE_OK);
        for (int text = 0; text < 6; text++) {
            rose_matcher *m = start(g);
            for (int at = 0; at < 40; at++) {
                const uint32_t n = random_guess(m, &s, below(&s) % (MAX_WALK + 1), ids);
                n_walked += check_walk(m, ids, n);
                uint32_t id = below(&s) % N_IDS;
                assert_int_equal(rose_matcher_mask(m, mask, NULL), ROSE_OK);
                while (!has_bit(mask, id))
                    id = (id + 1) % N_IDS;
                accept(m, id);
                if (id == EOS) break;
            }
            rose_matcher_destroy(m);
        }
        assert_true(n_walked > 50);
        rose_grammar_unref(g);
    }
}

static uint32_t spell(const uint32_t *ids, uint32_t n, char *text)
{
    uint32_t len = 0;
    for (uint32_t i = 0; i < n; i++) {
        const char byte[2] = {(char)ids[i], 0},
                   *t = ids[i] < 256 ? byte : long_tokens[ids[i] - FIRST_LONG];
        len += (uint32_t)sprintf(text + len, "%s", t);
    }
    return len;
}

/* What a text brings when it stands after `prefix`: nothing is known before, all is known after. */
static void proposals(void **state)
{
    static const struct {
        rose_grammar_kind kind;
        const char *grammar, *prefix, *want;
    } cases[] = {
        {ROSE_GRAMMAR_REGEX, "\\{\"abc\": \"[a-z]+\"\\}", "", "{\"abc\": \""},
        {ROSE_GRAMMAR_REGEX, "x(abcab|y)", "x", ""},
        {ROSE_GRAMMAR_REGEX, "x(abcab|y)", "xa", "bcab"},
        {ROSE_GRAMMAR_REGEX, "x(abcab)?", "x", ""}, /* the text may end here */
        {ROSE_GRAMMAR_REGEX, "\\n\\n\\n *a", "", "\n\n\na"},
        {ROSE_GRAMMAR_JSON_SCHEMA, "SCHEMA", "", "{\"ab"},
        {ROSE_GRAMMAR_JSON_SCHEMA, "SCHEMA", "{\"ab\"", ": \""},
        {ROSE_GRAMMAR_JSON_SCHEMA, "SCHEMA", "{\"ab\": \"x\"", ", \"abc\": "},
        {ROSE_GRAMMAR_JSON_SCHEMA, "SCHEMA", "{\"ab\": \"x\",", " \"abc\": "},
        {ROSE_GRAMMAR_JSON_SCHEMA, "SCHEMA", "{\"ab\": \"x\", \"abc\": 1", "2"},
        {ROSE_GRAMMAR_JSON_SCHEMA, "SCHEMA", "{\"ab\": \"x\", \"abc\": \"a", "aaa\"}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = strcmp(cases[i].grammar, "SCHEMA") == 0 ? walked[1] : cases[i].grammar;
        rose_grammar *g = compiled(v, cases[i].kind, text);
        rose_matcher *m = start(g);
        uint32_t ids[MAX_WALK], again[MAX_WALK], mask[TEXT_WORDS];
        char got[200] = "";
        for (const char *p = cases[i].prefix; *p != '\0'; p++)
            accept(m, (uint8_t)*p);
        assert_int_equal(rose_matcher_mask(m, mask, NULL), ROSE_OK);
        const uint32_t n = rose_matcher_propose(m, MAX_WALK, ids, true);
        spell(ids, n, got);
        assert_string_equal(got, cases[i].want);
        assert_int_equal(check_walk(m, ids, n), n);
        assert_int_equal(rose_matcher_propose(m, MAX_WALK, again, false), n);
        assert_memory_equal(ids, again, n * sizeof *ids);
        assert_int_equal(rose_matcher_propose(m, 1, again, true), n > 0);
        rose_matcher_destroy(m);
        rose_grammar_unref(g);
    }
}

/* Where the stack has max_stack frames, only what closes is allowed. */
static void deep_output(void **state)
{
    rose_grammar_opts opts = {.max_stack = 64};
    rose_grammar *g;
    uint32_t mask[TEXT_WORDS];
    int n = 0;
    (void)state;
    assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, "{}", 2, v, &opts, NULL),
                     ROSE_OK);
    rose_matcher *m = start(g);
    while (rose_matcher_accept(m, '[', NULL) == ROSE_OK)
        n++;
    assert_in_range(n, 10, 65);
    assert_int_equal(rose_matcher_mask(m, mask, NULL), ROSE_OK);
    assert_true(has_bit(mask, ']') && !has_bit(mask, '['));
    for (int i = 0; i < n; i++)
        accept(m, ']');
    assert_true(rose_matcher_accepting(m));
    rose_matcher_destroy(m);
    rose_grammar_unref(g);
}

/* With a small limit, states are dropped again and again; matchers go on. */
static void clean_ups(void **state)
{
    rose_grammar_opts opts = {.max_run_bytes = 24000};
    rose_grammar *g;
    rose_matcher *m[3];
    rose_err err = {""};
    static const char text[] =
        "{\"k\":[1,{\"a\":\"x\"},[[true]]],\"long\":\"aaaaaaaaaaaaaaaaaaaa\"}";
    uint32_t mask[TEXT_WORDS];
    (void)state;
    assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_OBJECT, "", 0, v, &opts, NULL),
                     ROSE_OK);
    for (int i = 0; i < 3; i++)
        m[i] = start(g);
    for (size_t at = 0; at + 1 < sizeof text; at++)
        for (int i = 0; i < 3; i++) {
            if (rose_matcher_mask(m[i], mask, &err) != ROSE_OK) fail_msg("%s", err.msg);
            assert_true(has_bit(mask, (uint8_t)text[at]));
            accept(m[i], (uint8_t)text[at]);
        }
    for (int i = 0; i < 3; i++) {
        assert_true(rose_matcher_accepting(m[i]));
        rose_matcher_destroy(m[i]);
    }
    assert_true(rose_grammar_bytes(g) < 4 * opts.max_run_bytes + 20000);
    rose_grammar_unref(g);
}

/* Grammars that live are bounded together: first they cache less, then no further one is compiled.
 */
static void live_bytes(void **state)
{
    rose_grammar_opts opts = {.max_run_bytes = 64 * 8000, .max_live_bytes = 1};
    rose_grammar *g, *other;
    uint32_t mask[TEXT_WORDS];
    rose_err err = {""};
    (void)state;
    assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_REGEX, "a{400}", 6, v, &opts, NULL),
                     ROSE_OK);
    assert_int_equal(rose_grammar_compile(&other, ROSE_GRAMMAR_REGEX, "b", 1, v, &opts, &err),
                     ROSE_E_FULL);
    assert_null(other);
    assert_non_null(strstr(err.msg, "try again"));
    const size_t begun = rose_grammar_bytes(g);
    rose_matcher *m = start(g);
    for (int i = 0; i < 400; i++) {
        assert_int_equal(rose_matcher_mask(m, mask, NULL), ROSE_OK);
        assert_true(has_bit(mask, 'a'));
        accept(m, 'a');
    }
    assert_true(rose_matcher_accepting(m));
    assert_true(rose_grammar_bytes(g) < begun + 16000);
    rose_matcher_destroy(m);
    rose_grammar_unref(g);
    assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_REGEX, "b", 1, v, &opts, &err), ROSE_OK);
    rose_grammar_unref(g);
}

static gr_node compile_other(gr_build *b, void *other)
{
    assert_int_equal(rose_grammar_compile(other, ROSE_GRAMMAR_REGEX, "b", 1, v, &b->opts, NULL),
                     ROSE_OK);
    return rose_gr_text(b, "a");
}

/* The bound also holds when another grammar was compiled after the first check. */
static void live_bytes_at_once(void **state)
{
    const rose_grammar_opts opts = {.max_live_bytes = 1};
    rose_grammar *g, *other;
    rose_err err = {""};
    (void)state;
    assert_int_equal(rose_gr_compile(&g, v, &opts, "a", compile_other, &other, &err), ROSE_E_FULL);
    assert_null(g);
    assert_non_null(strstr(err.msg, "try again"));
    rose_grammar_unref(other);
    assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_REGEX, "b", 1, v, &opts, &err), ROSE_OK);
    rose_grammar_unref(g);
}

/* A grammar whose calls take many steps says so, and others do not. */
static void slow_grammars(void **state)
{
    static const char *const texts[] = {"a+", "([ab]?[ac]?){1500}"};
    uint32_t mask[TEXT_WORDS];
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        rose_grammar *g;
        rose_err err = {""};
        if (rose_grammar_compile(&g, ROSE_GRAMMAR_REGEX, texts[i], strlen(texts[i]), v, NULL,
                                 &err) != ROSE_OK)
            fail_msg("%s", err.msg);
        rose_matcher *m = start(g);
        bool slow = rose_matcher_is_slow(m);
        assert_false(slow);
        for (int n = 0; n < 400 && rose_matcher_mask(m, mask, &err) == ROSE_OK; n++) {
            slow = slow || rose_matcher_is_slow(m);
            if (rose_matcher_accept(m, 'a', &err) != ROSE_OK) break;
        }
        assert_int_equal(slow, i == 1);

        rose_matcher_destroy(m);
        m = start(g); /* quick calls */
        for (int n = 0; n < 100; n++)
            assert_int_equal(rose_matcher_mask(m, mask, &err), ROSE_OK);
        assert_false(rose_matcher_is_slow(m));
        rose_matcher_destroy(m);
        rose_grammar_unref(g);
    }
}

/* A vocabulary that lacks a letter cannot continue. */
static void no_way_on(void **state)
{
    const rose_vocab_token tokens[] = {{"a", 1}, {"c", 1}};
    rose_vocab_trie *t;
    uint32_t mask;
    rose_err err = {""};
    (void)state;
    assert_int_equal(rose_vocab_trie_create(&t, tokens, 2, NULL, 0, NULL), ROSE_OK);
    rose_grammar *g = compiled(t, ROSE_GRAMMAR_REGEX, "ab");
    rose_matcher *m = start(g);
    accept(m, 0);
    assert_int_equal(rose_matcher_mask(m, &mask, &err), ROSE_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "no token"));
    rose_matcher_destroy(m);
    rose_grammar_unref(g);
    rose_vocab_trie_unref(t);
}

/* ---- hostile grammars: an error by name or a result, never a crash ---- */

static char *repeated(const char *text, size_t n, const char *tail)
{
    size_t len = strlen(text);
    char *s = malloc(n * len + strlen(tail) + 1);
    assert_non_null(s);
    for (size_t i = 0; i < n; i++)
        memcpy(s + i * len, text, len);
    strcpy(s + n * len, tail);
    return s;
}

/* Both strings, which are freed. */
static char *join(char *a, char *b)
{
    char *s = malloc(strlen(a) + strlen(b) + 1);
    assert_non_null(s);
    strcat(strcpy(s, a), b);
    free(a);
    free(b);
    return s;
}

/* Frees text. It compiles, or fails with a message that has this part. */
static void try_hostile(rose_grammar_kind kind, char *text, const char *part)
{
    rose_grammar *g;
    rose_err err = {""};
    rose_status st = rose_grammar_compile(&g, kind, text, strlen(text), v, NULL, &err);
    if (part == NULL) {
        if (st != ROSE_OK) fail_msg("%.50s...: %s", text, err.msg);
    } else if (st == ROSE_OK || strstr(err.msg, part) == NULL) {
        fail_msg("%.50s...: %s, %s", text, rose_status_name(st), err.msg);
    }
    if (st == ROSE_OK) {
        uint32_t mask[TEXT_WORDS];
        rose_matcher *m = start(g);
        rose_matcher_mask(m, mask, &err);
        rose_matcher_destroy(m);
    }
    rose_grammar_unref(g);
    free(text);
}

static void hostile(void **state)
{
    (void)state;
    const rose_grammar_kind regex = ROSE_GRAMMAR_REGEX, ebnf = ROSE_GRAMMAR_EBNF,
                            schema = ROSE_GRAMMAR_JSON_SCHEMA;
    try_hostile(regex, repeated("(", 100000, ""), "nested more than");
    try_hostile(regex, join(repeated("(a*", 150, ""), repeated(")*", 150, "")), NULL);
    try_hostile(regex, repeated("a{1000}", 1000, ""), NULL);
    try_hostile(regex, repeated("((((((a{99}){99}){99}){99}){99}){99})", 1, ""), NULL);
    try_hostile(regex, repeated("(a?){30000}", 1, ""), NULL);
    try_hostile(regex, repeated("(a?b?){30000}", 1, ""), "readings");
    try_hostile(regex, repeated("(?=a{9999})(?=b{9999})", 9, ""), "no text");
    try_hostile(regex, repeated("[^a]*", 3000, "b"), "readings");
    try_hostile(regex, repeated("\\p{L}", 300, ""), NULL);
    try_hostile(regex, repeated("a|", 200000, "b"), "readings");
    try_hostile(ebnf, repeated("(", 100000, ""), "name of a rule");
    try_hostile(ebnf, join(repeated("root ::= ", 1, ""), repeated("(", 5000, "")),
                "nested more than");
    try_hostile(ebnf,
                repeated("root ::= a a a a\na ::= b b b b\nb ::= c c c c\nc ::= d d d d\n"
                         "d ::= \"x\"? \"y\"?",
                         1, ""),
                NULL);
    try_hostile(schema, repeated("{\"not\":", 5000, "{}"), "not JSON");
    try_hostile(schema, join(repeated("{\"items\":", 1000, "{}"), repeated("}", 1000, "")),
                "nested more than");
    try_hostile(schema, join(repeated("{\"anyOf\":[{},", 300, "{}"), repeated("]}", 300, "")),
                "nested more than");
    try_hostile(schema,
                repeated("{\"type\":\"array\",\"maxItems\":4000000000,\"items\":{\"type\":"
                         "\"array\",\"minItems\":4000000000}}",
                         1, ""),
                NULL);
    try_hostile(schema, repeated("{\"type\":\"string\",\"minLength\":4000000000}", 1, ""), NULL);
    try_hostile(schema,
                repeated("{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){20}$\","
                         "\"maxLength\":90000}",
                         1, ""),
                "states");
    try_hostile(schema,
                repeated("{\"type\":\"integer\",\"multipleOf\":999983,\"minimum\":-1e300}", 1, ""),
                "multipleOf");
    char *enums =
        repeated("\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",", 20000, "\"b\"]}");
    try_hostile(schema, join(repeated("{\"enum\":[", 1, ""), enums), NULL); /* 1 MB */
    char *keys = malloc(1 << 20), *at = keys + sprintf(keys, "{\"properties\":{\"k\":{}");
    for (int i = 0; i < 20000; i++)
        at += sprintf(at, ",\"key number %d\":{\"type\":\"null\"}", i);
    strcpy(at, "}}");
    try_hostile(schema, keys, "");
    /* each item but the first lies in the one before it, however they are written */
    try_hostile(schema,
                join(repeated("{\"type\":\"array\",\"prefixItems\":[", 1, ""),
                     repeated("{},", 50000, "{}]}")),
                "nested more than");
}

/* A list of n different words. */
static char *words(const char *head, int n, const char *tail)
{
    char *text = malloc((size_t)n * 16 + 200);
    assert_non_null(text);
    char *at = text + sprintf(text, "%s", head);
    for (int i = 0; i < n; i++)
        at += sprintf(at, "%s\"word%d\"", i > 0 ? "," : "", i);
    strcpy(at, tail);
    return text;
}

/* Every word of an enum is looked up in the others of the schema, but not in its own: twenty
 * thousand words would take 200 million comparisons. */
static void long_enums(void **state)
{
    (void)state;
    char *text = words("{\"enum\":[", 20000, "]}");
    rose_grammar *g = compiled(v, ROSE_GRAMMAR_JSON_SCHEMA, text);
    assert_true(allows(g, "\"word19999\""));
    assert_false(allows(g, "\"word20000\""));
    rose_grammar_unref(g);
    free(text);
    text = words("{\"allOf\":[{\"enum\":[\"word5\"]},{\"enum\":[", 20000, "]}]}");
    g = compiled(v, ROSE_GRAMMAR_JSON_SCHEMA, text);
    assert_true(allows(g, "\"word5\""));
    assert_false(allows(g, "\"word6\""));
    rose_grammar_unref(g);
    free(text);
    try_hostile(ROSE_GRAMMAR_JSON_SCHEMA,
                join(words("{\"allOf\":[{\"enum\":[", 50000, "]},"),
                     words("{\"enum\":[\"x\",", 50000, "]}]}")),
                NULL);
}

/* Each definition refers to the next one twice: 2^60 paths, 60 rules. */
static void doubling(void **state)
{
    char *text = malloc(20000), *at = text + sprintf(text, "{\"$ref\":\"#/$defs/d0\",\"$defs\":{");
    (void)state;
    for (int i = 0; i < 60; i++)
        at += sprintf(at,
                      "\"d%d\":{\"type\":\"array\",\"prefixItems\":[{\"$ref\":\"#/$defs/d%d\"},"
                      "{\"$ref\":\"#/$defs/d%d\"}]},",
                      i, i + 1, i + 1);
    strcpy(at, "\"d60\":{\"type\":\"null\"}}}");
    rose_grammar *g = compiled(v, ROSE_GRAMMAR_JSON_SCHEMA, text);
    assert_true(allows(g, "[[[],[]],[[[]]]]"));
    assert_false(allows(g, "[1]"));
    rose_grammar_unref(g);
    free(text);
}

static void limits(void **state)
{
    static const struct {
        rose_grammar_opts opts;
        const char *part;
    } cases[] = {
        {{.max_states = 50}, "more than 50 states"},
        {{.max_depth = 2}, "nested more than 2 deep"},
        {{.max_work = 100}, "more than 100 steps"},
        {{.max_compile_bytes = 20000}, "of memory"},
    };
    static const char text[] =
        "(((a|b)c{2}|d)e)+f|[0-9]{3}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rose_grammar *g;
        rose_err err = {""};
        rose_status st = rose_grammar_compile(&g, ROSE_GRAMMAR_REGEX, text, sizeof text - 1, v,
                                              &cases[i].opts, &err);
        if (st != ROSE_E_UNSUPPORTED || strstr(err.msg, cases[i].part) == NULL)
            fail_msg("%s: %s, %s", cases[i].part, rose_status_name(st), err.msg);
    }
}

/* ---- what compiling costs ---- */

/* A text of n parts: head, then for each i the part with i in place of each %d, then tail. */
static char *numbered(const char *head, const char *part, int n, const char *tail)
{
    char *text = malloc((strlen(part) + 60) * (size_t)n + strlen(head) + strlen(tail) + 1);
    assert_non_null(text);
    char *at = text + sprintf(text, "%s", head);
    for (int i = 0; i < n; i++) {
        if (i > 0) *at++ = ',';
        for (const char *c = part; *c != '\0'; c++)
            if (c[0] == '%' && c[1] == 'd')
                at += sprintf(at, "%d", i), c++;
            else
                *at++ = *c;
    }
    strcpy(at, tail);
    return text;
}

static rose_status cost(rose_grammar_kind kind, const char *text, uint64_t *work, rose_err *err)
{
    rose_grammar *g;
    const rose_grammar_opts opts = {.work = work, .closed = true};
    const rose_status st = rose_grammar_compile(&g, kind, text, strlen(text), v, &opts, err);
    rose_grammar_unref(g);
    return st;
}

/* Grammars that took seconds are cheap, and what stays costly is refused with its cause. Steps are
 * counted, not time. */
static void costs(void **state)
{
    static const struct {
        rose_grammar_kind kind;
        const char *head, *part, *tail;
        int n;
        uint64_t most;     /* steps; 0: beyond the limit */
        const char *cause; /* of the message */
    } cases[] = {
        {ROSE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"dependentRequired\":{",
         "\"p%d\":[\"q%d\",\"p0\"]", "}}", 100, 500000, NULL},
        {ROSE_GRAMMAR_JSON_SCHEMA, "{\"oneOf\":[",
         "{\"type\":\"object\",\"properties\":{\"a%d\":{\"type\":\"string\"},\"b%d\":{\"type\":"
         "\"integer\"}},\"required\":[\"a%d\"]}",
         "]}", 50, 5000000, NULL},
        {ROSE_GRAMMAR_TAG, "{\"format\":{\"type\":\"any_text\",\"excludes\":[", "\"<word %d>\"",
         "]}}", 2000, 2000000, NULL},
        {ROSE_GRAMMAR_JSON_SCHEMA, "{\"minimum\":7,\"multipleOf\":7,\"enum\":[", "%d", "]}", 5000,
         1000000, NULL},
        {ROSE_GRAMMAR_REGEX, "", "\\p{L}\\p{Nd}%d", "", 100, 5000000, NULL},
        {ROSE_GRAMMAR_JSON_SCHEMA, "{\"allOf\":[",
         "{\"anyOf\":[{\"required\":[\"p%d\"]},{\"required\":[\"q%d\"]}]}", "]}", 30, 0,
         "combinations of the choices that `anyOf` gives"},
        {ROSE_GRAMMAR_JSON_SCHEMA, "{\"dependentSchemas\":{",
         "\"p%d\":{\"properties\":{\"p0\":{\"type\":\"null\"},\"q%d\":{\"minLength\":1}}}", "}}",
         60, 0, "combinations of the choices that `dependentSchemas` gives"},
        {ROSE_GRAMMAR_JSON_SCHEMA,
         "{\"properties\":{\"x\":{\"pattern\":\"a.{16}b\",\"maxLength\":99}", "", "}}", 0, 0,
         "turning its patterns into automata, near #/properties/x"},
        {ROSE_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"not\":{\"enum\":[", "%d", "]}}", 2000,
         0, "combining its patterns"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t work = 0;
        rose_err err = {""};
        char *text = numbered(cases[i].head, cases[i].part, cases[i].n, cases[i].tail);
        const rose_status st = cost(cases[i].kind, text, &work, &err);
        if (cases[i].most > 0 && (st != ROSE_OK || work > cases[i].most))
            fail_msg("%.60s: %llu steps, %s", text, (unsigned long long)work, err.msg);
        if (cases[i].most == 0 &&
            (st != ROSE_E_UNSUPPORTED || strstr(err.msg, "too costly") == NULL ||
             strstr(err.msg, cases[i].cause) == NULL))
            fail_msg("%.60s: %llu steps, %s", text, (unsigned long long)work, err.msg);
        free(text);
    }
}

static bool stop_at_third(void *arg)
{
    return ++*(int *)arg >= 3;
}

/* A compile ends as soon as it is asked to. */
static void stopped(void **state)
{
    char *text = numbered("{\"allOf\":[", "{\"anyOf\":[{\"required\":[\"p%d\"]},{}]}", 30, "]}");
    int asked = 0;
    uint64_t work = 0;
    rose_err err = {""};
    rose_grammar *g;
    const rose_grammar_opts opts = {.work = &work, .stop = stop_at_third, .stop_arg = &asked};
    (void)state;
    assert_int_equal(
        rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, text, strlen(text), v, &opts, &err),
        ROSE_E_CLOSED);
    assert_null(g);
    assert_int_equal(asked, 3);
    assert_true(work < 1000000);
    free(text);
}

/* ---- the cache ---- */

static rose_grammar *get(rose_grammar_cache *c, const char *regex)
{
    rose_grammar *g;
    rose_err err = {""};
    if (rose_grammar_cache_get(&g, c, ROSE_GRAMMAR_REGEX, false, regex, strlen(regex), NULL,
                               &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    return g;
}

static void cache(void **state)
{
    rose_grammar_cache *c;
    rose_grammar_cache_stats s;
    rose_grammar *a, *b, *g;
    rose_err err = {""};
    (void)state;
    assert_int_equal(rose_grammar_cache_create(&c, v, NULL, 60000, &err), ROSE_OK);
    a = get(c, "a+");
    b = get(c, "a+");
    assert_ptr_equal(a, b);
    assert_int_equal(
        rose_grammar_cache_get(&g, c, ROSE_GRAMMAR_JSON_OBJECT, true, "x", 1, NULL, &err), ROSE_OK);
    rose_grammar_unref(g);
    assert_int_equal(rose_grammar_cache_get(&g, c, ROSE_GRAMMAR_REGEX, false, "(", 1, NULL, &err),
                     ROSE_E_INVAL);
    assert_null(g);
    assert_int_equal(rose_grammar_cache_find(&g, c, ROSE_GRAMMAR_REGEX, false, "a*", 2, &err),
                     ROSE_E_EMPTY);
    assert_null(g);
    assert_int_equal(rose_grammar_cache_find(&g, c, ROSE_GRAMMAR_REGEX, true, "a+", 2, &err),
                     ROSE_E_EMPTY);
    rose_grammar_cache_read(c, &s);
    assert_int_equal(s.hits, 1);
    assert_int_equal(s.misses, 3);
    assert_int_equal(rose_grammar_cache_find(&g, c, ROSE_GRAMMAR_REGEX, false, "a+", 2, &err),
                     ROSE_OK);
    assert_ptr_equal(g, a);
    rose_grammar_unref(g);
    rose_grammar_cache_read(c, &s);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.grammars, 2);
    for (int i = 0; i < 50; i++) {
        char text[32];
        snprintf(text, sizeof text, "b{%d}", i + 2);
        rose_grammar_unref(get(c, text));
    }
    rose_grammar_cache_read(c, &s);
    assert_true(s.bytes <= 60000 && s.evicted > 10 && s.grammars < 40);
    assert_true(allows(a, "aaa")); /* it left the cache, not its user */
    rose_grammar_unref(a);
    rose_grammar_unref(b);
    rose_grammar_cache_destroy(c);
    rose_grammar_cache_destroy(NULL);
}

/* Errors of a text are kept, those of one thread's bounds are not. */
static void cache_errors(void **state)
{
    rose_grammar_cache *c;
    rose_grammar_cache_stats s;
    rose_grammar *g;
    rose_err err = {""}, again = {""};
    uint64_t work = 0;
    int asked = 2;
    char text[64];
    const rose_grammar_kind regex = ROSE_GRAMMAR_REGEX;
    const rose_grammar_opts little = {.max_work = 100, .work = &work};
    const rose_grammar_opts stopping = {.work = &work, .stop = stop_at_third, .stop_arg = &asked};
    static const char large[] = "(?=.*[a-f]{3}x)[0-9a-z]{30}(abc|abd|x[0-9])+";
    (void)state;
    assert_int_equal(rose_grammar_cache_create(&c, v, NULL, 10 << 20, &err), ROSE_OK);
    assert_int_equal(rose_grammar_cache_get(&g, c, regex, false, "a**", 3, NULL, &err),
                     ROSE_E_INVAL);
    assert_int_equal(rose_grammar_cache_find(&g, c, regex, false, "a**", 3, &again), ROSE_E_INVAL);
    assert_string_equal(err.msg, again.msg);
    assert_int_equal(rose_grammar_cache_get(&g, c, regex, false, "a**", 3, NULL, &again),
                     ROSE_E_INVAL);
    assert_null(g);
    rose_grammar_cache_read(c, &s);
    assert_int_equal(s.misses, 1);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.grammars, 0);
    const size_t n = sizeof large - 1;
    assert_int_equal(rose_grammar_cache_get(&g, c, regex, false, large, n, &little, &err),
                     ROSE_E_UNSUPPORTED);
    assert_true(work > 100);
    assert_int_equal(rose_grammar_cache_find(&g, c, regex, false, large, n, &err), ROSE_E_EMPTY);
    assert_int_equal(rose_grammar_cache_get(&g, c, regex, false, large, n, &stopping, &err),
                     ROSE_E_CLOSED);
    assert_int_equal(rose_grammar_cache_find(&g, c, regex, false, large, n, &err), ROSE_E_EMPTY);
    assert_int_equal(rose_grammar_cache_get(&g, c, regex, false, large, n, NULL, &err), ROSE_OK);
    rose_grammar_unref(g);
    for (int i = 0; i < 300; i++) { /* a flood of errors leaves the grammar there */
        snprintf(text, sizeof text, "(%d", i);
        assert_int_equal(
            rose_grammar_cache_get(&g, c, regex, false, text, strlen(text), NULL, &err),
            ROSE_E_INVAL);
    }
    assert_int_equal(rose_grammar_cache_find(&g, c, regex, false, "(299", 4, &err), ROSE_E_INVAL);
    assert_int_equal(rose_grammar_cache_find(&g, c, regex, false, "(1", 2, &err), ROSE_E_EMPTY);
    assert_int_equal(rose_grammar_cache_find(&g, c, regex, false, large, n, &err), ROSE_OK);
    rose_grammar_unref(g);
    assert_true(rose_grammar_cache_key(regex, false, "a", 1) !=
                rose_grammar_cache_key(regex, true, "a", 1));
    rose_grammar_cache_destroy(c);
}

/* A grammar that is larger than the bound leaves the cache alone. The text of json_object may be
 * NULL. */
static void large_grammar(void **state)
{
    enum { WORDS = 3000, BOUND = 60000 };
    rose_grammar_cache *c;
    rose_grammar_cache_stats s;
    rose_grammar *g;
    rose_err err = {""};
    char *text = malloc(WORDS * 16);
    size_t len = 0;
    (void)state;
    assert_int_equal(rose_grammar_cache_create(&c, v, NULL, BOUND, &err), ROSE_OK);
    rose_grammar_unref(get(c, "a+"));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            rose_grammar_cache_get(&g, c, ROSE_GRAMMAR_JSON_OBJECT, false, NULL, 0, NULL, &err),
            ROSE_OK);
        rose_grammar_unref(g);
    }
    for (int i = 0; i < WORDS; i++)
        len += (size_t)sprintf(text + len, "%c\"%dw%d\"", i == 0 ? '[' : ',', i, i * 7919);
    text[len++] = ']';
    assert_int_equal(
        rose_grammar_cache_get(&g, c, ROSE_GRAMMAR_CHOICE, false, text, len, NULL, &err), ROSE_OK);
    assert_true(rose_grammar_bytes(g) > BOUND);
    rose_grammar_unref(g);
    rose_grammar_unref(get(c, "a+"));
    rose_grammar_cache_read(c, &s);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.evicted, 1);
    assert_int_equal(s.grammars, 2);
    free(text);
    rose_grammar_cache_destroy(c);
}

typedef struct worker {
    rose_grammar_cache *c;
    unsigned number, allowed;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    for (unsigned i = 0; i < 200; i++) {
        char regex[32];
        rose_grammar *g;
        rose_matcher *m;
        uint32_t mask[TEXT_WORDS], id = 'a';
        snprintf(regex, sizeof regex, "a{%u}", (i + w->number) % 7 + 1);
        if (rose_grammar_cache_get(&g, w->c, ROSE_GRAMMAR_REGEX, false, regex, strlen(regex), NULL,
                                   NULL) != ROSE_OK)
            break;
        if (rose_matcher_create(&m, g, NULL) == ROSE_OK) {
            while (rose_matcher_mask(m, mask, NULL) == ROSE_OK && has_bit(mask, id))
                w->allowed += rose_matcher_accept(m, id, NULL) == ROSE_OK;
            rose_matcher_destroy(m);
        }
        rose_grammar_unref(g);
    }
    return NULL;
}

static void threads(void **state)
{
    enum { N = 4 };
    pthread_t t[N];
    worker w[N];
    rose_grammar_cache *c;
    (void)state;
    assert_int_equal(rose_grammar_cache_create(&c, v, NULL, 30000, NULL), ROSE_OK);
    for (unsigned i = 0; i < N; i++) {
        w[i] = (worker){c, i, 0};
        assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
    }
    for (unsigned i = 0; i < N; i++) {
        unsigned want = 0;
        pthread_join(t[i], NULL);
        for (unsigned k = 0; k < 200; k++)
            want += (k + i) % 7 + 1;
        assert_int_equal(w[i].allowed, want);
    }
    rose_grammar_cache_destroy(c);
}

static void *destroy(void *m)
{
    rose_matcher_destroy(m);
    return NULL;
}

/* A matcher may be destroyed while another thread computes a mask of its grammar. */
static void destroyed_meanwhile(void **state)
{
    rose_grammar *g;
    pthread_t t;
    uint32_t words[64];
    (void)state;
    assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_REGEX, "a+", 2, v, NULL, NULL), ROSE_OK);
    rose_matcher *a = start(g), *b = start(g), *c = start(g);
    pthread_mutex_lock(&g->lock);
    assert_int_equal(pthread_create(&t, NULL, destroy, b), 0);
    pthread_join(t, NULL);
    rose_matcher_destroy(c);
    assert_ptr_equal(atomic_load(&g->gone), c);
    pthread_mutex_unlock(&g->lock);
    assert_true(v->n_ids <= 32 * 64);
    assert_int_equal(rose_matcher_mask(a, words, NULL), ROSE_OK);
    assert_null(atomic_load(&g->gone));
    assert_ptr_equal(LIST_FIRST(&g->matchers), a);
    b = start(g);
    pthread_mutex_lock(&g->lock);
    rose_matcher_destroy(b); /* the grammar frees it */
    pthread_mutex_unlock(&g->lock);
    rose_grammar_unref(g);
    rose_matcher_destroy(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_vocabularies),
        cmocka_unit_test(odd_tokens),
        cmocka_unit_test(sentencepiece),
        cmocka_unit_test(halves_of_characters),
        cmocka_unit_test(copies),
        cmocka_unit_test(known_masks),
        cmocka_unit_test(walks),
        cmocka_unit_test(proposals),
        cmocka_unit_test(deep_output),
        cmocka_unit_test(clean_ups),
        cmocka_unit_test(live_bytes),
        cmocka_unit_test(live_bytes_at_once),
        cmocka_unit_test(slow_grammars),
        cmocka_unit_test(no_way_on),
        cmocka_unit_test(hostile),
        cmocka_unit_test(long_enums),
        cmocka_unit_test(doubling),
        cmocka_unit_test(limits),
        cmocka_unit_test(costs),
        cmocka_unit_test(stopped),
        cmocka_unit_test(cache_errors),
        cmocka_unit_test(cache),
        cmocka_unit_test(large_grammar),
        cmocka_unit_test(threads),
        cmocka_unit_test(destroyed_meanwhile),
    };
    v = small_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rose_vocab_trie_unref(v);
    return failed != 0;
}
