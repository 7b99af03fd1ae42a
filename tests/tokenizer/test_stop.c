/* Stop strings: the automata against a naive search, on random texts cut at random, with small
 * alphabets so that partial matches abound; and the promise that nothing is held back that could
 * not become a stop string. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tokenizer/stop.h"

static uint64_t rng;

static uint32_t below(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

enum { MAX_TEXT = 200, MAX_STOPS = 6, MAX_STOP = 9 };

typedef struct sample {
    char text[MAX_TEXT];
    size_t len;
    char stop[MAX_STOPS][MAX_STOP];
    size_t stop_len[MAX_STOPS];
    uint32_t n;
} sample;

static void make_sample(sample *s)
{
    uint32_t letters = 1 + below(4);
    s->len = below(MAX_TEXT);
    s->n = below(MAX_STOPS + 1);
    for (size_t i = 0; i < s->len; i++)
        s->text[i] = (char)('a' + below(letters));
    for (uint32_t k = 0; k < s->n; k++) {
        s->stop_len[k] = 1 + below(MAX_STOP);
        for (size_t i = 0; i < s->stop_len[k]; i++)
            s->stop[k][i] = (char)('a' + below(letters));
    }
}

static bool ends_with(const sample *s, size_t end, uint32_t k)
{
    return end >= s->stop_len[k] &&
           memcmp(s->text + end - s->stop_len[k], s->stop[k], s->stop_len[k]) == 0;
}

/* Finds where the text is cut: at the string that ends first after `from`, the longest of those;
 * s->len if there is none. */
static bool naive_cut(const sample *s, size_t from, size_t *cut, size_t *end)
{
    for (*end = from + 1; *end <= s->len; (*end)++) {
        size_t longest = 0;
        for (uint32_t k = 0; k < s->n; k++) {
            if (ends_with(s, *end, k) && s->stop_len[k] > longest) longest = s->stop_len[k];
        }
        *cut = *end - longest;
        if (longest > 0) return true;
    }
    *cut = s->len;
    return false;
}

/* The longest end of text[0..end) that is a proper beginning of a stop string. */
static size_t naive_held(const sample *s, size_t end)
{
    size_t held = 0;
    for (uint32_t k = 0; k < s->n; k++) {
        for (size_t n = s->stop_len[k] - 1; n > held; n--) {
            if (n <= end && memcmp(s->text + end - n, s->stop[k], n) == 0) held = n;
        }
    }
    return held;
}

/* No string may end in text[0..from). */
static void check_sample(const sample *s, size_t from)
{
    rose_stops stops = {0};
    uint32_t states[MAX_STOPS] = {0};
    rose_stop_state st = {.state = states};
    rose_buf out = {0};
    size_t cut, end, at = 0;
    assert_int_equal(rose_buf_reserve(&out, MAX_TEXT + MAX_STOP), ROSE_OK);
    bool want = naive_cut(s, from, &cut, &end), got = false;
    for (uint32_t k = 0; k < s->n; k++)
        assert_int_equal(rose_stops_add(&stops, s->stop[k], s->stop_len[k]), ROSE_OK);
    while (at < s->len && !got) {
        size_t n = below(5);
        if (n > s->len - at) n = s->len - at;
        if (at < from && n > from - at) n = from - at;
        if (at < from)
            rose_stop_pass(&stops, &st, s->text + at, n, &out);
        else
            got = rose_stop_push(&stops, &st, s->text + at, n, &out);
        at += n;
        if (!got) assert_int_equal(out.len, at - naive_held(s, at));
    }
    assert_int_equal(got, want);
    if (!got) rose_stop_flush(&stops, &st, &out);
    if (got) {
        const struct rose_stop *found = &stops.v[st.which];
        assert_true(end <= at); /* found in the piece that completed it */
        assert_int_equal(cut + found->len, end);
        assert_memory_equal(found->text, s->text + cut, found->len);
    }
    assert_int_equal(out.len, cut);
    if (cut > 0) assert_memory_equal(out.data, s->text, cut);
    rose_buf_free(&out);
    rose_stops_free(&stops);
}

static void random_texts(void **state)
{
    (void)state;
    for (int i = 0; i < 200000; i++) {
        sample s;
        make_sample(&s);
        check_sample(&s, i % 2 == 0 ? 0 : below((uint32_t)s.len + 1));
    }
}

static void edges(void **state)
{
    (void)state;
    rose_stops s = {0};
    char big[ROSE_STOP_MAX_BYTES + 1];
    memset(big, 'x', sizeof big);
    assert_int_equal(rose_stops_add(&s, "", 0), ROSE_E_INVAL);
    assert_int_equal(rose_stops_add(&s, big, sizeof big), ROSE_E_INVAL);
    assert_int_equal(rose_stops_add(&s, big, sizeof big - 1), ROSE_OK);
    assert_int_equal(rose_stops_add(&s, "a\0b", 3), ROSE_OK);
    uint32_t states[2] = {0};
    rose_stop_state st = {.state = states};
    rose_buf out = {0};
    assert_int_equal(rose_buf_reserve(&out, 4), ROSE_OK);
    assert_false(rose_stop_push(&s, &st, "1a", 2, &out));
    assert_int_equal(out.len, 1);
    assert_false(rose_stop_push(&s, &st, "\0", 1, &out));
    assert_true(rose_stop_push(&s, &st, "bc", 2, &out));
    assert_int_equal(out.len, 1);
    rose_buf_free(&out);
    rose_stops_free(&s);
    rose_stops_free(&s);
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    rng = seed != NULL ? strtoull(seed, NULL, 0) : 20261121;
    printf("seed %llu\n", (unsigned long long)rng);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_texts),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
