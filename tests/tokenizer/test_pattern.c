/* Patterns of Split: what is translated matches as Oniguruma would; the rest is refused by name. */
#include "tokenizer/tok_fixture.h"

#include "tokenizer/tokenizer_internal.h"

/* "begin-end" of the first match of pattern in text, "none", or the status that refused it. */
static const char *first_match(const char *pattern, bool literal, const char *text)
{
    static char result[64];
    pcre2_code *code = NULL;
    rose_err err = {""};
    rose_status st = rose_pattern_compile(&code, pattern, strlen(pattern), literal, &err);
    if (st != ROSE_OK) {
        assert_null(code);
        assert_true(err.msg[0] != '\0');
        return rose_status_name(st);
    }
    pcre2_match_data *md = pcre2_match_data_create_from_pattern(code, NULL);
    assert_non_null(md);
    int rc = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, md, NULL);
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
    if (rc < 0)
        strcpy(result, rc == PCRE2_ERROR_NOMATCH ? "none" : "error");
    else
        snprintf(result, sizeof result, "%zu-%zu", ov[0], ov[1]);
    pcre2_match_data_free(md);
    pcre2_code_free(code);
    return result;
}

static void translated(void **state)
{
    static const struct {
        const char *pattern, *text, *want;
    } cases[] = {
        {"a+", "baab", "1-3"},
        {"\\s+", "x\xc2\x85\xc2\xa0y", "1-5"},
        {"\\s", "x\xe1\xa0\x8ey", "none"}, /* U+180E: white space to PCRE2 only */
        {"\\S+", " ab ", "1-3"},
        {"\\p{L}+", "1\xc3\xa9x", "1-4"},
        {"\\P{L}+", "a12b", "1-3"},
        {"\\p{^L}+", "a12b", "1-3"},
        {"[^\\s\\p{L}\\p{N}]+", "a!?b", "1-3"},
        {"[^\\S]", "a b", "1-2"},
        {"\\p{N}{1,3}", "12345", "0-3"},
        {"(?i:'s|'t)", "x'S", "1-3"},
        {"\\s+(?!\\S)", "a   b", "1-3"},
        {"[a-c-]+", "xa-cx", "1-4"},
        {"[-a]+", "x-ax", "1-3"},
        {"[\\]\\[]+", "x[]x", "1-3"},
        {"\\x41\\u0042\\x{43}", "ABC", "0-3"},
        {".", "\nx", "1-2"},
        {"(a|b)c", "xbc", "1-3"},
        {"a++b|\\*", "aab", "0-3"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(first_match(cases[i].pattern, false, cases[i].text), cases[i].want);
    assert_string_equal(first_match("a+.", true, "aa+.x"), "1-4");
}

static void refused(void **state)
{
    static const char *const unsupported[] = {"^a",
                                              "a$",
                                              "\\h",
                                              "\\bx",
                                              "\\R",
                                              "\\X",
                                              "\\K",
                                              "\\G",
                                              "\\A",
                                              "[[a]b]",
                                              "[a&&b]",
                                              "[[:alpha:]]",
                                              "\\p{Thai}",
                                              "\\pL",
                                              "(?m:a)",
                                              "(?x)a",
                                              "(?<n>a)",
                                              "a{2}+",
                                              "a**",
                                              "\\1",
                                              "\\x{D800}",
                                              "\\x{110000}",
                                              "\\xff",
                                              "a{,3}",
                                              "\\p{\\s}",
                                              "\\p{rust_word}",
                                              "\\p{norm_inert}",
                                              "\\"};
    static const char *const malformed[] = {"(a", "a)", "[b-a]", "+"};
    (void)state;
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        if (strcmp(first_match(unsupported[i], false, "a"), "unsupported") != 0)
            fail_msg("not refused: %s", unsupported[i]);
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++)
        if (strcmp(first_match(malformed[i], false, "a"), "format") != 0)
            fail_msg("not refused: %s", malformed[i]);
    assert_string_equal(first_match("", false, "a"), "unsupported");
}

/* An open class or escape at the very end must not read past it. */
static void cut_off(void **state)
{
    static const char whole[] = "(?i:'s)|[^\\s\\p{L}\\x41-\\u0042]?\\p{L}+a{1,2}(?!\\S)";
    rose_err err;
    (void)state;
    for (size_t n = 0; n < sizeof whole; n++) {
        char *copy = malloc(n + 1); /* exact, so that a sanitizer sees an overrun */
        pcre2_code *code = NULL;
        assert_non_null(copy);
        memcpy(copy, whole, n);
        rose_status st = rose_pattern_compile(&code, copy, n, false, &err);
        assert_true((st == ROSE_OK) == (code != NULL));
        pcre2_code_free(code);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(translated),
        cmocka_unit_test(refused),
        cmocka_unit_test(cut_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
