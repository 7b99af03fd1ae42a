/* Each allocation of a vocabulary, a compile of each kind and a text fails once, and from then on:
 * the status is ROSE_E_NOMEM, nothing leaks, and the matcher can go on after the failure. */
#include "failing_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/cache.h"

#ifdef HAVE_OWN_ALLOCATOR

int main(void)
{
    return failing_alloc_skip();
}

#else

static const struct {
    rose_grammar_kind kind;
    const char *text, *output;
} cases[] = {
    {ROSE_GRAMMAR_JSON_SCHEMA,
     "{\"properties\": {\"a\": {\"pattern\": \"^a\", \"maxLength\": 3, \"minLength\": 1}, \"b\": "
     "{\"type\": \"number\", \"minimum\": 3}}, \"oneOf\": [{\"required\": [\"a\"]}, {\"required\": "
     "[\"b\"]}], \"dependencies\": {\"a\": [\"c\"]}, \"if\": {\"required\": [\"d\"]}, \"then\": "
     "false, \"type\": \"object\", \"patternProperties\": {\"x\": {\"$ref\": \"#/$defs/n\"}}, "
     "\"$defs\": {\"n\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/n\"}}}}",
     "{\"b\":3.5,\"x\":[[],[[]]]}"},
    {ROSE_GRAMMAR_JSON_SCHEMA,
     "{\"not\": {\"anyOf\": [{\"type\": [\"string\", \"object\"]}, {\"const\": 1}, {\"not\": "
     "{\"maximum\": 9}}]}}",
     "[7]"},
    {ROSE_GRAMMAR_JSON_SCHEMA, "{\"type\": \"string\", \"not\": {\"format\": \"date\"}}", "\"a\""},
    {ROSE_GRAMMAR_JSON_OBJECT, "", "{\"a\":[1,{\"b\":\"c\\n\"}]}"},
    {ROSE_GRAMMAR_REGEX, "(?!ab)[a-c]{2,9}\\d?", "acb1"},
    {ROSE_GRAMMAR_CHOICE, "[\"ab\", \"ac\"]", "ac"},
    {ROSE_GRAMMAR_EBNF, "root ::= root \"a\" | b{2,3}\nb ::= [^x]", "bca"},
    {ROSE_GRAMMAR_TAG,
     "{\"type\": \"json_schema\", \"style\": \"qwen_xml\", \"json_schema\": {\"type\": \"object\", "
     "\"properties\": {\"a\": {\"const\": \"x\"}, \"b\": {\"anyOf\": [{\"$ref\": \"#/$defs/n\"}, "
     "{}]}}, \"additionalProperties\": true, \"$defs\": {\"n\": {\"type\": \"null\"}}}}",
     "<parameter=a>x</parameter>"},
    {ROSE_GRAMMAR_TAG,
     "{\"structures\": [{\"begin\": \"<a>\", \"schema\": {\"type\": \"null\"}, \"end\": \"!\"}], "
     "\"triggers\": [\"<a\"]}",
     "hi <a>null!"},
};

static rose_status write_out(rose_grammar *g, const char *text, rose_err *err)
{
    uint32_t mask[8];
    rose_matcher *m;
    rose_status st = rose_matcher_create(&m, g, err);
    for (; st == ROSE_OK && *text != '\0'; text++) {
        st = rose_matcher_mask(m, mask, err);
        if (st == ROSE_OK) st = rose_matcher_accept(m, (uint8_t)*text, err);
    }
    if (st == ROSE_OK) assert_true(rose_matcher_accepting(m));
    if (st == ROSE_E_NOMEM && m != NULL) { /* once more, with memory */
        falloc_exempt = true;
        assert_int_equal(rose_matcher_mask(m, mask, NULL), ROSE_OK);
        falloc_exempt = false;
    }
    rose_matcher_destroy(m);
    return st;
}

static rose_status run(size_t i, rose_err *err)
{
    rose_vocab_token tokens[256];
    static char bytes[256];
    rose_vocab_trie *v = NULL;
    rose_grammar_cache *c = NULL;
    rose_grammar *g = NULL;
    for (int k = 0; k < 256; k++) {
        bytes[k] = (char)k;
        tokens[k] = (rose_vocab_token){bytes + k, 1};
    }
    rose_status st = rose_vocab_trie_create(&v, tokens, 256, NULL, 0, err);
    if (st == ROSE_OK) st = rose_grammar_cache_create(&c, v, NULL, 1 << 20, err);
    if (st == ROSE_OK)
        st = rose_grammar_cache_get(&g, c, cases[i].kind, false, cases[i].text,
                                    strlen(cases[i].text), NULL, err);
    if (st == ROSE_OK) st = write_out(g, cases[i].output, err);
    rose_grammar_unref(g);
    rose_grammar_cache_destroy(c);
    rose_vocab_trie_unref(v);
    return st;
}

static void every_allocation(void **state)
{
    rose_err none = {""};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (run(i, &none) != ROSE_OK) fail_msg("%s", none.msg);
        for (int persist = 0; persist < 2; persist++) {
            long refused = 0;
            for (bool injected = true; injected;) {
                rose_err err = {""};
                long live = atomic_load(&falloc.live);
                falloc_arm(refused + 1, persist != 0);
                rose_status st = run(i, &err);
                injected = falloc_disarm();
                if (st != (injected ? ROSE_E_NOMEM : ROSE_OK))
                    fail_msg("case %zu, allocation %ld: %s", i, refused, err.msg);
                assert_int_equal(atomic_load(&falloc.live), live);
                assert_true((err.msg[0] != '\0') == injected);
                refused += injected;
            }
            assert_true(refused >= 10);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}

#endif
