/* The table of whole words says what the merges say: for every token of the checked-in tokenizers
 * and of random ones, whose merges are of few letters, many ranks and no sense. */
#include "tokenizer/tok_fixture.h"

#include "tokenizer/encoder_internal.h"

static uint64_t g_random;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(rnd(&g_random) % n);
}

static bool in_table(const rose_vocab *v, const char *bytes, size_t n, uint32_t *id)
{
    const rose_whole_key k = rose_whole_key_of(bytes, n);
    for (uint32_t at = rose_whole_line_of(v, k, n);; at = (at + 1) & v->whole_mask)
        for (int i = 0; i < ROSE_WHOLE_SLOTS; i++) {
            const rose_whole *w = &v->whole[at].slot[i];
            *id = w->id_len >> 4;
            if (w->id_len == 0) return false;
            if (w->lo == k.lo && w->hi == k.hi && (w->id_len & 15) == n) return true;
        }
}

/* What the table says, what the encoder says, and the merges alone. all: the table lacks no token.
 */
static void check_piece(const rose_tokenizer *t, rose_encoder *e, const char *bytes, size_t n,
                        bool all)
{
    rose_err err = {""};
    rose_ids want = {0}, got = {0};
    uint32_t id;
    e->err = &err;
    e->out = &want;
    assert_int_equal(rose_bpe_merge(e, bytes, n), ROSE_OK);
    e->out = &got;
    assert_int_equal(rose_bpe_piece(e, bytes, n), ROSE_OK);
    assert_int_equal(got.len, want.len);
    if (got.len > 0) assert_memory_equal(got.data, want.data, 4 * got.len);
    if (n <= ROSE_WHOLE_MAX && in_table(&t->vocab, bytes, n, &id)) {
        assert_int_equal(want.len, 1);
        assert_int_equal(want.data[0], id);
    } else if (all && n <= ROSE_WHOLE_MAX && want.len == 1) {
        /* a single token of other bytes: some of the piece have no token */
        size_t len;
        rose_tokenizer_token_bytes(t, want.data[0], &len);
        assert_int_not_equal(len, n);
    }
    rose_ids_free(&want);
    rose_ids_free(&got);
}

static uint32_t check_all(const rose_tokenizer *t, bool all)
{
    rose_err err = {""};
    rose_encoder *e = NULL;
    uint32_t n_whole = 0, id;
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    for (uint32_t i = 0; i < t->vocab.n_ids; i++) {
        const rose_token *tok = &t->vocab.tokens[i];
        const char *bytes = t->vocab.blob.data + tok->off;
        if ((tok->flags & ROSE_TOK_EXISTS) == 0 || tok->len == 0) continue;
        if ((tok->flags & ROSE_TOK_ADDED) == 0) check_piece(t, e, bytes, tok->len, all);
        n_whole += tok->len <= ROSE_WHOLE_MAX && in_table(&t->vocab, bytes, tok->len, &id);
    }
    rose_encoder_destroy(e);
    return n_whole;
}

static void checked_in(void **state)
{
    (void)state;
    char path[512];
    rose_err err = {""};
    static const char *const names[] = {"tiny", "rich"};
    for (int i = 0; i < 2; i++) {
        rose_tokenizer *t = open_data(names[i]);
        assert_true(check_all(t, true) > 200);
        rose_tokenizer_close(t);
    }
    rose_tokenizer *t = NULL;
    snprintf(path, sizeof path, "%s/models/rose-tiny", repo_root());
    assert_int_equal(rose_tokenizer_open(&t, path, &err), ROSE_OK);
    assert_true(check_all(t, true) > 1000);
    rose_tokenizer_close(t);
}

typedef struct word {
    char text[64];
} word;

/* Letters a, b (and c), then tokens joined of two earlier ones, in an order of merges that is
 * that of their making; twice: some merges make a token that is there; mixed: some merges change
 * places. */
static void write_random(temp_dir *d, bool twice, bool mixed)
{
    static word words[400];
    const uint32_t n_letters = 2 + below(2), n_most = 40 + below(300);
    rose_buf vocab = {0}, merges = {0};
    uint32_t n = n_letters, order[400][2], n_merges = 0;
    for (uint32_t i = 0; i < n_letters; i++)
        snprintf(words[i].text, sizeof words[i].text, "%c", (char)('a' + i));
    for (uint32_t tries = 0; n < n_most && n_merges < 390 && tries < 4000; tries++) {
        const uint32_t a = below(n), b = below(n);
        char joined[128];
        snprintf(joined, sizeof joined, "%s%s", words[a].text, words[b].text);
        if (strlen(joined) > 14) continue;
        bool there = false;
        for (uint32_t i = 0; i < n && !there; i++)
            there = strcmp(words[i].text, joined) == 0;
        if (there && !(twice && below(4) == 0)) continue;
        if (!there) memcpy(words[n++].text, joined, strlen(joined) + 1);
        order[n_merges][0] = a;
        order[n_merges++][1] = b;
    }
    for (uint32_t k = mixed ? below(20) : 0; k > 0; k--) {
        const uint32_t i = below(n_merges), j = below(n_merges), x = order[i][0], y = order[i][1];
        memcpy(order[i], order[j], sizeof order[i]);
        order[j][0] = x;
        order[j][1] = y;
    }
    rose_buf_addf(&vocab, "{");
    for (uint32_t i = 0; i < n; i++)
        rose_buf_addf(&vocab, "%s\"%s\":%u", i > 0 ? "," : "", words[i].text, i);
    rose_buf_addf(&vocab, "}");
    rose_buf_addf(&merges, "#version: 0.2\n");
    for (uint32_t i = 0; i < n_merges; i++)
        rose_buf_addf(&merges, "%s %s\n", words[order[i][0]].text, words[order[i][1]].text);
    temp_write(d, "vocab.json", vocab.data, vocab.len);
    temp_write(d, "merges.txt", merges.data, merges.len);
    rose_buf_free(&vocab);
    rose_buf_free(&merges);
}

static void random_merges(void **state)
{
    (void)state;
    g_random = test_seed();
    uint32_t n_whole = 0;
    for (int round = 0; round < 300; round++) {
        temp_dir d;
        rose_tokenizer *t = NULL;
        rose_encoder *e = NULL;
        rose_err err = {""};
        temp_make(&d);
        const bool twice = round % 3 == 0, mixed = round % 5 == 1, all = !twice && !mixed;
        write_random(&d, twice, mixed);
        if (rose_tokenizer_open(&t, d.path, &err) != ROSE_OK) fail_msg("%s", err.msg);
        n_whole += check_all(t, all);
        assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
        for (int i = 0; i < 300; i++) {
            char piece[30];
            const size_t n = 1 + below(sizeof piece - 1);
            for (size_t j = 0; j < n; j++)
                piece[j] = (char)('a' + below(i % 8 == 0 ? 4 : 2)); /* d has no token */
            check_piece(t, e, piece, n, all);
        }
        rose_encoder_destroy(e);
        rose_tokenizer_close(t);
        temp_remove(&d);
    }
    assert_true(n_whole > 3000);
}

/* Bytes of zero are bytes: keys end by their length. */
static void zeros(void **state)
{
    (void)state;
    rose_tokenizer *t = open_data("tiny");
    rose_encoder *e = NULL;
    rose_err err = {""};
    static const char text[16] = {'a'};
    assert_int_equal(rose_encoder_create(&e, t, &err), ROSE_OK);
    for (size_t n = 1; n <= sizeof text; n++) {
        check_piece(t, e, text, n, true);
        check_piece(t, e, text + 1, n < 15 ? n : 15, true);
    }
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checked_in),
        cmocka_unit_test(random_merges),
        cmocka_unit_test(zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
