/* SipHash-1-3 against published values (the reference key 00 01 .. 0f, input 00 01 .. n-1) and
 * against its definition on words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/siphash.h"

static const uint64_t key[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};

static void test_vectors(void **state)
{
    (void)state;
    unsigned char in[64];
    for (unsigned i = 0; i < sizeof in; i++)
        in[i] = (unsigned char)i;
    assert_true(rose_siphash_bytes(key, in, 0) == UINT64_C(0xabac0158050fc4dc));
    /* all lengths differ, as do all keys */
    for (size_t n = 1; n < sizeof in; n++) {
        const uint64_t other[2] = {key[0] ^ 1, key[1]};
        assert_true(rose_siphash_bytes(key, in, n) != rose_siphash_bytes(key, in, n - 1));
        assert_true(rose_siphash_bytes(key, in, n) != rose_siphash_bytes(other, in, n));
    }
}

static void test_words(void **state)
{
    (void)state;
    const uint32_t in[5] = {1, 2, 3, 4, 5};
    rose_siphash h = rose_siphash_begin(key);
    rose_siphash_word(&h, UINT64_C(2) << 32 | 1);
    rose_siphash_word(&h, UINT64_C(4) << 32 | 3);
    assert_true(rose_siphash_end(&h, 5, 4) == rose_siphash_bytes(key, in, sizeof in));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors),
                                       cmocka_unit_test(test_words)};
    return cmocka_run_group_tests_name("siphash", tests, NULL, NULL);
}
