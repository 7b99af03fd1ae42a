/* Out of memory at the Nth allocation, for every N, once and from then on: opening and writing a
 * model fails cleanly or succeeds, leaks nothing and leaves nothing behind. Replaces the process's
 * allocator, so sanitizer builds, which bring their own, skip it. */
#include "failing_alloc.h"
#include "gguf_fixture.h"

#include "model/inspect.h"

#ifdef HAVE_OWN_ALLOCATOR

int main(void)
{
    return failing_alloc_skip();
}

#else

typedef struct outcome {
    rose_status st;
    rose_err err;
    bool injected; /* an allocation was refused */
} outcome;

/* Runs op with the k-th allocation failing; checks for leaks. */
static outcome run(rose_status (*op)(const char *dir, rose_err *err), const char *dir, long k,
                   bool persist)
{
    rose_err err = {{0}};
    long before = atomic_load(&falloc.live);
    falloc_arm(k, persist);
    rose_status st = op(dir, &err);
    bool injected = falloc_disarm();
    long more = atomic_load(&falloc.live) - before;
    if (more != 0) fail_msg("allocation %ld refused: %ld blocks leak", k, more);
    return (outcome){st, err, injected};
}

static rose_status op_open(const char *dir, rose_err *err)
{
    rose_model *m = NULL;
    rose_status st = rose_model_open(&m, dir, err);
    if ((st == ROSE_OK) == (m == NULL)) return ROSE_E_INTERNAL;
    rose_json *j = m == NULL ? NULL : rose_model_json(m, NULL); /* NULL is a fine answer too */
    rose_json_decref(j);
    rose_model_close(m);
    return st;
}

static rose_status op_open_dummy(const char *dir, rose_err *err)
{
    rose_model *m = NULL;
    const rose_status st = rose_model_open_dummy(&m, dir, err);
    if ((st == ROSE_OK) == (m == NULL)) return ROSE_E_INTERNAL;
    rose_model_close(m);
    return st;
}

static rose_random_opts small(void)
{
    rose_random_opts o;
    rose_random_opts_default(&o);
    o.n_layers = 1;
    o.d_model = o.n_heads = 2;
    o.vocab_size = 258;
    o.max_positions = 4;
    return o;
}

static rose_status op_write(const char *dir, rose_err *err)
{
    rose_random_opts o = small();
    o.max_shard_bytes = 2000;
    return rose_random_model_write(&o, dir, err);
}

/* A model whose parser allocates: longrope has lists. */
#define PHI3                                                                                       \
    "{\"model_type\": \"phi3\", \"hidden_size\": 8, \"num_hidden_layers\": 1, "                    \
    "\"num_attention_heads\": 2, \"intermediate_size\": 8, \"vocab_size\": 258, "                  \
    "\"max_position_embeddings\": 16, \"original_max_position_embeddings\": 4, "                   \
    "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2], "                        \
    "\"long_factor\": [3, 4]}}"

static void opening(void **state)
{
    (void)state;
    static const char *const names[] = {"whole", "sharded", "phi3", "dummy"};
    char path[1024], config[1024];
    put_text(scratch, "phi3.json", PHI3);
    join(config, sizeof config, scratch, "phi3.json");
    for (int i = 0; i < 4; i++) {
        rose_random_opts o = small();
        o.max_shard_bytes = i == 1 ? 2000 : 0;
        o.config = i >= 2 ? config : NULL;
        o.no_weights = i == 3;
        join(path, sizeof path, scratch, names[i]);
        assert_int_equal(rose_random_model_write(&o, path, NULL), ROSE_OK);
        for (int persist = 0; persist < 2; persist++) {
            long k = 1, refused = 0;
            for (outcome r = {.injected = true}; r.injected; k++) {
                r = run(i == 3 ? op_open_dummy : op_open, path, k, persist != 0);
                if (r.st != ROSE_OK && r.st != ROSE_E_NOMEM)
                    fail_msg("allocation %ld refused: %s", k, r.err.msg);
                assert_true(r.st == ROSE_OK || r.err.msg[0] != '\0');
                assert_true(r.injected || r.st == ROSE_OK);
                refused += r.st != ROSE_OK;
            }
            assert_true(refused > 50);
        }
    }
}

/* A split GGUF model with factors, opened by its folder. */
static void opening_gguf(void **state)
{
    (void)state;
    char path[1024];
    join(path, sizeof path, scratch, "gguf");
    assert_int_equal(mkdir(path, 0777), 0);
    gw *all = gg_model("gemma3", 8), *parts[2] = {gw_new(), gw_new()};
    gw_add(all, "rope_freqs.weight", 0, GG_HEAD / 2, 0);
    gw_bytes(&parts[0]->pairs, all->pairs.data, all->pairs.len);
    parts[0]->n_pairs = all->n_pairs;
    for (size_t i = 0; i < all->n_tensors; i++)
        parts[i % 2]->tensors[parts[i % 2]->n_tensors++] = all->tensors[i];
    for (uint16_t i = 0; i < 2; i++) {
        gw_u16(parts[i], "split.no", i);
        gw_u16(parts[i], "split.count", 2);
        gw_put(parts[i], path, i == 0 ? "m-00001-of-00002.gguf" : "m-00002-of-00002.gguf");
        gw_free(parts[i]);
    }
    gw_free(all);
    for (int persist = 0; persist < 2; persist++) {
        long k = 1, refused = 0;
        for (outcome r = {.injected = true}; r.injected; k++) {
            r = run(op_open, path, k, persist != 0);
            if (r.st != ROSE_OK && r.st != ROSE_E_NOMEM)
                fail_msg("allocation %ld refused: %s", k, r.err.msg);
            assert_true(r.st == ROSE_OK || r.err.msg[0] != '\0');
            assert_true(r.injected || r.st == ROSE_OK);
            refused += r.st != ROSE_OK;
        }
        assert_true(refused > 10);
    }
}

static void writing(void **state)
{
    (void)state;
    char path[1024];
    struct stat st;
    join(path, sizeof path, scratch, "out");
    for (int persist = 0; persist < 2; persist++) {
        long refused = 0;
        outcome r = {.injected = true};
        for (long k = 1; r.injected; k += k < 600 ? 1 : 37) { /* the vocabulary repeats itself */
            r = run(op_write, path, k, persist != 0);
            assert_true(r.injected || r.st == ROSE_OK);
            if (r.st != ROSE_OK) {
                assert_true(r.err.msg[0] != '\0');
                assert_int_not_equal(stat(path, &st), 0);
                refused++;
            } else {
                rose_model_close(expect_opens(path)); /* what was written is whole */
            }
            empty_folder(path);
            rmdir(path);
        }
        assert_true(refused > 500);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),
        cmocka_unit_test(opening_gguf),
        cmocka_unit_test(writing),
    };
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}

#endif
