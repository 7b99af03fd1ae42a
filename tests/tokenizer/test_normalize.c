/* Normal forms: known cases, order of marks against a plain sort, long runs of marks. */
#include "tokenizer/tok_fixture.h"

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

static void assert_form(int form, const char *text, const char *want)
{
    rose_buf scratch = {0};
    const char *out;
    size_t n;
    assert_int_equal(rose_normalize(&(rose_norm){.kind = (rose_norm_kind)form}, text, strlen(text),
                                    &scratch, &out, &n, NULL),
                     ROSE_OK);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(out, want, n);
    rose_buf_free(&scratch);
}

static void known_cases(void **state)
{
    (void)state;
    rose_unicode_init();
    assert_form(ROSE_NORM_NFC, "plain", "plain");
    assert_form(ROSE_NORM_NFC, "e\xcc\x81", "\xc3\xa9");
    assert_form(ROSE_NORM_NFD, "\xc3\xa9", "e\xcc\x81");
    assert_form(ROSE_NORM_NFD, "a\xcc\x81\xcc\xa3", "a\xcc\xa3\xcc\x81"); /* below sorts first */
    assert_form(ROSE_NORM_NFC, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"); /* Hangul */
    assert_form(ROSE_NORM_NFKC, "\xef\xac\x81", "fi");
    assert_form(ROSE_NORM_NFC, "\xef\xac\x81", "\xef\xac\x81");
    assert_form(ROSE_NORM_NFKD, "\xc2\xb2", "2");
    assert_form(ROSE_NORM_NFC, "\xe2\x84\xab", "\xc3\x85"); /* Angstrom sign */
    assert_form(ROSE_NORM_NFC, "", "");
}

/* Marks of four classes in random order: NFD sorts them by class, equal classes keep their order.
 */
static void order_of_marks(void **state)
{
    static const struct {
        const char *utf8;
        int class;
    } marks[] = {{"\xcc\xb4", 1},
                 {"\xcc\xa3", 220},
                 {"\xcc\x81", 230},
                 {"\xcc\x88", 230},
                 {"\xcd\x85", 240}};
    uint64_t seed = test_seed();
    (void)state;
    rose_unicode_init();
    for (int round = 0; round < 2000; round++) {
        char text[256] = "a", want[256] = "a";
        size_t pick[64], n = 1 + rnd(&seed) % 40;
        for (size_t i = 0; i < n; i++) {
            pick[i] = rnd(&seed) % 5;
            strcat(text, marks[pick[i]].utf8);
        }
        for (int class = 1; class <= 240; class ++)
            for (size_t i = 0; i < n; i++)
                if (marks[pick[i]].class == class) strcat(want, marks[pick[i]].utf8);
        assert_form(ROSE_NORM_NFD, text, want);
    }
}

/* A megabyte of marks in the worst order: an insertion sort would take hours. */
static void long_run_of_marks(void **state)
{
    enum { N = 500000 };
    char *text = malloc(2 * N + 1);
    rose_buf scratch = {0};
    const char *out;
    size_t n;
    (void)state;
    rose_unicode_init();
    assert_non_null(text);
    for (size_t i = 0; i < N; i++)
        memcpy(text + 2 * i, i < N / 2 ? "\xcc\x81" : "\xcc\xa3", 2);
    assert_int_equal(
        rose_normalize(&(rose_norm){.kind = ROSE_NORM_NFD}, text, 2 * N, &scratch, &out, &n, NULL),
        ROSE_OK);
    assert_int_equal(n, 2 * N);
    assert_memory_equal(out, "\xcc\xa3", 2);
    assert_memory_equal(out + N - 2, "\xcc\xa3\xcc\x81", 4);
    rose_buf_free(&scratch);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_cases),
        cmocka_unit_test(order_of_marks),
        cmocka_unit_test(long_run_of_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
