/* Inverse frequencies and attention factors against transformers' (tests/golden/families/rope.json,
 * made by tools/golden/make_families.py), and the lengths that dynamic and longrope depend on. */
#include "fixture.h"

#include "arch_view.h"
#include "golden.h"
#include "model/family.h"
#include "model/rope.h"

enum { MAX_PAIRS = 128 };

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static const rose_decoder_defaults defaults = {.theta = 10000.0f, .partial_rotary = true};

/* The table of the fields in `entry`, read as a config's. */
static uint32_t our_table(rose_json *entry, float inv_freq[MAX_PAIRS], float *factor)
{
    const rose_config c = {.root = entry, .label = "rope.json"};
    rose_err err = {{0}};
    rose_arch a = {.pos = ROSE_POS_ROPE,
                   .n_kinds = 1,
                   .kinds = {{.mixer = {.head_dim = golden_u32(entry, "head_dim")}}},
                   .max_positions = golden_u32(entry, "max_position_embeddings")};
    if (rose_decoder_rope(&c, &defaults, &a, &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_true(view_full(&a)->dim / 2 <= MAX_PAIRS);
    rose_rope_table(view_full(&a), golden_u32(entry, "served_context"), inv_freq, factor);
    rose_arch_free(&a);
    return view_full(&a)->dim / 2;
}

static void tables_equal_transformers(void **state)
{
    (void)state;
    char path[1024];
    uint32_t n_all = 0, n_off = 0;
    golden_path(path, sizeof path, "tests/golden/families/rope.json");
    rose_json *root = test_load_json(path);
    rose_json *tables = golden_get(root, "tables");
    assert_true(rose_json_count(tables) >= 15);
    for (size_t t = 0; t < rose_json_count(tables); t++) {
        rose_json *entry = rose_json_at(tables, t), *want = golden_get(entry, "inv_freq_bits");
        const char *name = rose_json_text(golden_get(entry, "name"));
        float inv_freq[MAX_PAIRS], factor = 0;
        const uint32_t n = our_table(entry, inv_freq, &factor);
        assert_int_equal(n, rose_json_count(want));
        for (uint32_t i = 0; i < n; i++) {
            const int64_t theirs = rose_json_int(rose_json_at(want, i));
            const int64_t diff = (int64_t)bits(inv_freq[i]) - theirs;
            if (diff < -1 || diff > 1)
                fail_msg("%s: frequency %u is off by %lld ulp", name, i, (long long)diff);
            if (diff != 0) print_message("%s: frequency %u: %+d ulp\n", name, i, (int)diff);
            n_off += diff != 0;
        }
        n_all += n;
        const float theirs = (float)golden_real(entry, "attention_factor");
        if (bits(factor) != bits(theirs))
            fail_msg("%s: attention factor %.9g, not %.9g", name, (double)factor, (double)theirs);
    }
    print_message("%u of %u frequencies are off by 1 ulp, all others equal\n", n_off, n_all);
    rose_json_decref(root);
}

static void served_context_fixes_the_table(void **state)
{
    (void)state;
    static const float shorter[2] = {1, 2}, longer[2] = {3, 4};
    const rose_rope dynamic = {.theta = 10000,
                               .dim = 4,
                               .kind = ROSE_ROPE_DYNAMIC,
                               .factor = 2,
                               .original_max_positions = 64};
    const rose_rope longrope = {.theta = 10000,
                                .dim = 4,
                                .kind = ROSE_ROPE_LONGROPE,
                                .factor = 4,
                                .original_max_positions = 64,
                                .short_factor = shorter,
                                .long_factor = longer};
    float at_64[2], at_65[2], at_128[2], factor;
    rose_rope_table(&dynamic, 64, at_64, &factor);
    rose_rope_table(&dynamic, 65, at_65, &factor);
    rose_rope_table(&dynamic, 128, at_128, &factor);
    assert_true(at_64[0] == 1.0f && at_65[0] == 1.0f && at_128[0] == 1.0f);
    assert_true(at_64[1] == 0.01f); /* sqrt(1 / 10000) */
    assert_true(at_65[1] < at_64[1] && at_128[1] < at_65[1]);
    rose_rope_table(&longrope, 64, at_64, &factor);
    rose_rope_table(&longrope, 65, at_65, &factor);
    assert_true(at_64[0] == 1.0f && at_64[1] == 1.0f / 200.0f);
    assert_true(at_65[0] == 1.0f / 3.0f && at_65[1] == 1.0f / 400.0f);
    assert_true(factor == 1.15470054f); /* sqrt(1 + ln 4 / ln 64) = sqrt(4 / 3) */
}

/* A file's own divisors apply to every kind (GGUF's rope_freqs). */
static void divisors_of_a_file(void **state)
{
    (void)state;
    static const float divisors[2] = {1, 8};
    const rose_rope r = {.theta = 10000, .dim = 4, .short_factor = divisors};
    float f[2], factor;
    rose_rope_table(&r, 100, f, &factor);
    assert_true(f[0] == 1.0f && f[1] == 0.01f / 8 && factor == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_equal_transformers),
        cmocka_unit_test(served_context_fixes_the_table),
        cmocka_unit_test(divisors_of_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
