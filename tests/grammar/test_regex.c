/* Regular expressions: what they allow, what is refused, masks against single tokens, and random
 * expressions against a matcher that backtracks. */
#include "grammar_text.h"

static rose_vocab_trie *v;

static void texts(void **state)
{
    static const text_case cases[] = {
        {"abc", {"abc"}, {"", "ab", "abcd", "abd"}},
        {"a*b+c?", {"b", "aab", "aabbc", "bbbbc"}, {"", "a", "ac", "abcc"}},
        {"(ab|cd){2,3}", {"abab", "cdabcd"}, {"ab", "abababab", "abc"}},
        {"[a-c]{3}", {"abc", "ccc"}, {"ab", "abcd", "abd"}},
        {"a{0,100}b", {"b", "aaaaaaaaaaaaaaaaaaaaaab"}, {"a"}},
        {"a{60,}",
         {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
         {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}},
        {"^\\d{3}-\\w+$", {"123-a_Z9"}, {"12-a", "123-", "123-\xc3\xa9"}},
        {"[^\\d\\s]+", {"a\xc3\xa9\xe2\x82\xac"}, {"a1", " ", "\xc3", "a\xe2\x82"}},
        {".", {"x", "\xf0\x9f\x98\x80", "\""}, {"\n", "xx", "\xf0\x9f\x98"}},
        {".*", {"", "say \"hi\" \\ \xe2\x82\xac"}, {"\n", "\xed\xa0\x80"}},
        {"[\\u00e9-\\u{1F600}]",
         {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"},
         {"e", "\xf0\x9f\x98\x81", "\xed\xa0\x80"}},
        {"\\p{Lu}\\P{L}", {"A1", "\xc3\x89."}, {"a1", "AB"}},
        {"(?:a|b)*?c", {"abc", "c"}, {"ab"}},
        {"(?!ab)[a-c]{2}", {"aa", "ba", "ac"}, {"ab", "a"}},
        {"(?=.*[0-9])[a-z0-9]{2,4}", {"a1", "1a", "abc1"}, {"ab", "abcd", "1"}},
        {"a(?!b).", {"ac", "aa"}, {"ab", "a"}},
        {"x{2}|{y}|z{", {"xx", "{y}", "z{"}, {"x", "y"}},
        {"(a?){2,5}b", {"b", "aaaaab", "aab"}, {"aaaaaab"}},
        {"((a*)*)*", {"", "aaa"}, {"b"}},
        {"\\x41\\t\\/[\\]\\-]", {"A\t/]", "A\t/-"}, {"A\t/a"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_REGEX, cases, sizeof cases / sizeof cases[0]);
}

static void refusals(void **state)
{
    (void)state;
    check_refused(v, ROSE_GRAMMAR_REGEX, "(ab", ROSE_E_INVAL, "')' is missing");
    check_refused(v, ROSE_GRAMMAR_REGEX, "ab)", ROSE_E_INVAL, "no '('");
    check_refused(v, ROSE_GRAMMAR_REGEX, "[ab", ROSE_E_INVAL, "ends too early");
    check_refused(v, ROSE_GRAMMAR_REGEX, "*a", ROSE_E_INVAL, "nothing to repeat");
    check_refused(v, ROSE_GRAMMAR_REGEX, "a{3,2}", ROSE_E_INVAL, "upside down");
    check_refused(v, ROSE_GRAMMAR_REGEX, "[z-a]", ROSE_E_INVAL, "upside down");
    check_refused(v, ROSE_GRAMMAR_REGEX, "(a)\\1", ROSE_E_UNSUPPORTED, "back-references");
    check_refused(v, ROSE_GRAMMAR_REGEX, "\\ba", ROSE_E_UNSUPPORTED, "word boundaries");
    check_refused(v, ROSE_GRAMMAR_REGEX, "(?<=a)b", ROSE_E_UNSUPPORTED, "look-behind");
    check_refused(v, ROSE_GRAMMAR_REGEX, "(?i)a", ROSE_E_UNSUPPORTED, "flags");
    check_refused(v, ROSE_GRAMMAR_REGEX, "a^b", ROSE_E_UNSUPPORTED, "'^'");
    check_refused(v, ROSE_GRAMMAR_REGEX, "a[]", ROSE_E_INVAL, "allows no text");
    check_refused(v, ROSE_GRAMMAR_REGEX, "\xc3(", ROSE_E_INVAL, "UTF-8");
    check_refused(v, ROSE_GRAMMAR_REGEX, "\\p{Greek}", ROSE_E_UNSUPPORTED, "\\p");
}

/* Quantifiers that follow a quantifier, counts that do not fit, and escapes that ECMA-262 lacks. */
static void quantifiers(void **state)
{
    static const char *const doubled[] = {"a**",
                                          "a+*",
                                          "a?*",
                                          "a*?*",
                                          "a{2}*",
                                          "a{2}{3}",
                                          "a*{2}",
                                          "a???",
                                          "a+?{2,}",
                                          ("(a)*?"
                                           "?")};
    static const char *const possessive[] = {"a++", "a*+", "a?+", "a{2}+", "(?:ab)+?+"};
    static const char *const counts[] = {
        "[0-9]{4294967296}",       "a{4294967294}",
        "a{4294967295}",           "a{4294967300,}",
        "a{1,4294967296}",         "a{18446744073709551616}",
        "a{18446744073709551617}", "a{0,99999999999999999999999999}"};
    static const char letters[] = "AZzGKQERXhHNeiIjlLmMoOqTUVyYgCFaJ";
    char text[8], part[32];
    (void)state;
    for (size_t i = 0; i < sizeof doubled / sizeof doubled[0]; i++)
        check_refused(v, ROSE_GRAMMAR_REGEX, doubled[i], ROSE_E_INVAL,
                      "a quantifier follows a quantifier");
    for (size_t i = 0; i < sizeof possessive / sizeof possessive[0]; i++)
        check_refused(v, ROSE_GRAMMAR_REGEX, possessive[i], ROSE_E_UNSUPPORTED, "possessive");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        check_refused(v, ROSE_GRAMMAR_REGEX, counts[i], ROSE_E_UNSUPPORTED, "a count beyond");
    for (const char *c = letters; *c != '\0'; c++) {
        if (*c == 'a') continue;
        snprintf(text, sizeof text, "\\%c", *c);
        snprintf(part, sizeof part, "the escape \\%c is not supported", *c);
        check_refused(v, ROSE_GRAMMAR_REGEX, text, ROSE_E_UNSUPPORTED, part);
    }
    check_refused(v, ROSE_GRAMMAR_REGEX, "\\Aab\\Z", ROSE_E_UNSUPPORTED, "write ^ or $");
    check_refused(v, ROSE_GRAMMAR_REGEX, "[\\A]", ROSE_E_UNSUPPORTED, "\\A");
    check_refused(v, ROSE_GRAMMAR_REGEX, "\\012", ROSE_E_UNSUPPORTED, "octal");
    check_refused(v, ROSE_GRAMMAR_REGEX, "\\c1", ROSE_E_INVAL, "\\c needs a letter");
    rose_grammar *g = compiled(v, ROSE_GRAMMAR_REGEX, "a{4294967293}");
    assert_false(allows(g, ""));
    assert_false(allows(g, "aaaa"));
    rose_grammar_unref(g);
}

/* ---- random expressions over a, b, c ---- */

typedef struct gen {
    uint64_t seed;
    char text[512];
    size_t n;
} gen;

static unsigned rnd(gen *g, unsigned n)
{
    g->seed = g->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(g->seed >> 33) % n;
}

static void put(gen *g, const char *s)
{
    size_t n = strlen(s);
    if (g->n + n >= sizeof g->text) return;
    memcpy(g->text + g->n, s, n + 1);
    g->n += n;
}

static void random_regex(gen *g, int depth)
{
    static const char *const atoms[] = {"a", "b", "c", "[ab]", "[^a]", "."};
    static const char *const times[] = {"*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"};
    unsigned n = 1 + rnd(g, 3);
    for (unsigned i = 0; i < n; i++) {
        if (depth > 0 && rnd(g, 3) == 0) {
            put(g, "(");
            random_regex(g, depth - 1);
            if (rnd(g, 2) == 0) {
                put(g, "|");
                random_regex(g, depth - 1);
            }
            put(g, ")");
        } else {
            put(g, atoms[rnd(g, 6)]);
        }
        if (rnd(g, 3) == 0) put(g, times[rnd(g, 7)]);
    }
}

/* The reference: the set of positions (a bit each) that e[0..n) reaches from the position `at`. */
static const char *ref_atom(const char *e, const char *text, unsigned len, uint64_t from,
                            uint64_t *to);

static uint64_t ref_alt(const char **e, const char *text, unsigned len, uint64_t from)
{
    uint64_t all = 0, now = from;
    while (**e != '\0' && **e != ')') {
        if (**e == '|') {
            all |= now;
            now = from;
            (*e)++;
            continue;
        }
        const char *atom = *e;
        uint64_t once = 0;
        unsigned min = 1, max = 1;
        *e = ref_atom(atom, text, len, now, &once);
        if (**e == '*' || **e == '+' || **e == '?') {
            min = **e == '+';
            max = **e == '?' ? 1 : 64;
            (*e)++;
        } else if (**e == '{') {
            min = max = (unsigned)((*e)[1] - '0');
            if ((*e)[2] == ',') max = (*e)[3] == '}' ? 64 : (unsigned)((*e)[3] - '0');
            *e = strchr(*e, '}') + 1;
        }
        uint64_t reached = min == 0 ? now : 0, step = now;
        for (unsigned i = 1; i <= max && step != 0; i++) {
            ref_atom(atom, text, len, step, &step);
            if (i >= min) reached |= step;
        }
        now = reached;
    }
    return all | now;
}

static const char *ref_atom(const char *e, const char *text, unsigned len, uint64_t from,
                            uint64_t *to)
{
    if (*e == '(') {
        const char *in = e + 1;
        *to = ref_alt(&in, text, len, from);
        return in + 1;
    }
    bool negative = e[0] == '[' && e[1] == '^';
    const char *set = *e == '[' ? e + 1 + negative : e, *end = *e == '[' ? strchr(e, ']') : e + 1;
    *to = 0;
    for (unsigned i = 0; i < len; i++) {
        bool in = *e == '.' || (memchr(set, text[i], (size_t)(end - set)) != NULL) != negative;
        if (from >> i & 1 && in) *to |= UINT64_C(2) << i;
    }
    return *e == '[' ? end + 1 : end;
}

static void random_texts(void **state)
{
    const char *given = getenv("ROSE_TEST_SEED");
    gen g = {.seed = given != NULL ? strtoull(given, NULL, 0) : 20261126};
    (void)state;
    printf("seed %llu\n", (unsigned long long)g.seed);
    for (int round = 0; round < 400; round++) {
        g.n = 0;
        g.text[0] = '\0';
        random_regex(&g, 3);
        rose_grammar *x = compiled(v, ROSE_GRAMMAR_REGEX, g.text);
        for (int i = 0; i < 60; i++) {
            char text[12];
            unsigned len = rnd(&g, 9);
            for (unsigned k = 0; k < len; k++)
                text[k] = (char)('a' + rnd(&g, 3));
            text[len] = '\0';
            const char *e = g.text;
            bool want = ref_alt(&e, text, len, 1) >> len & 1;
            if (allows_bytes(x, text, len, i < 2) != want)
                fail_msg("expression %s, text \"%s\": should be %d", g.text, text, want);
        }
        rose_grammar_unref(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(refusals),
        cmocka_unit_test(quantifiers),
        cmocka_unit_test(random_texts),
    };
    v = small_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rose_vocab_trie_unref(v);
    return failed != 0;
}
