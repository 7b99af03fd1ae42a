/* The golden vectors themselves: they agree with each other, and the models that they were made
 * from are the ones that this checkout holds or generates. So that a failure of the engine against
 * them is a failure of the engine. */
#include "fixture.h"

#include "golden.h"
#include "model/family.h"

enum { N_OTHERS = 4 };

/* The shipped model, then random ones; NULL after the last one. */
static const char *name_of(uint32_t i)
{
    static const char *const others[N_OTHERS] = {"rose-tiny", "random-f32", "random-f16",
                                                 "random-bf16"};
    if (i < N_OTHERS) return others[i];
    return i - N_OTHERS < golden_families()->n ? golden_families()->name[i - N_OTHERS] : NULL;
}

static const golden_logits *logits_at(const golden_prompt *p, uint32_t position)
{
    for (uint32_t i = 0; i < p->n_logits; i++)
        if (p->logits[i].position == position) return &p->logits[i];
    return NULL;
}

/* The first greedy token and its margin follow from the logits of the prompt's last position. */
static void check_prompt(const golden *g, const golden_prompt *p)
{
    const golden_logits *l = logits_at(p, p->n_ids - 1);
    assert_non_null(l);
    assert_int_equal(l->stride, 1);
    uint32_t best = 0;
    for (uint32_t i = 1; i < l->n; i++)
        if (l->values[i] > l->values[best]) best = i;
    float second = -INFINITY, max_abs = 0.0f;
    for (uint32_t i = 0; i < l->n; i++) {
        assert_true(isfinite(l->values[i]));
        if (i != best) second = fmaxf(second, l->values[i]);
        max_abs = fmaxf(max_abs, fabsf(l->values[i]));
    }
    assert_true(p->n_greedy > 0);
    assert_int_equal(p->greedy[0], best);
    assert_true(fabsf(l->values[best] - second - p->margin[0]) < 1e-3f * max_abs);
    assert_true(max_abs == l->max_abs);
    for (uint32_t i = 0; i < p->n_greedy; i++) {
        assert_true(p->greedy[i] < l->n);
        assert_true(p->margin[i] > 0.0f);
    }
    for (uint32_t i = 0; i < p->n_ids; i++)
        assert_true(p->ids[i] < l->n);
    if (g->logprobs)
        assert_true(golden_logprob_error(l, l->values, l->n) <= 1e-6);
    else
        assert_true(golden_logits_error(l, l->values) <= g->tolerance);
}

static void vectors_agree_with_each_other(void **state)
{
    (void)state;
    for (uint32_t i = 0; name_of(i) != NULL; i++) {
        golden g;
        golden_open(&g, name_of(i));
        assert_true(g.n_prompts >= (g.logprobs ? 2 : 4));
        for (uint32_t j = 0; j < g.n_prompts; j++)
            check_prompt(&g, &g.prompts[j]);
        golden_close(&g);
    }
}

/* GPT-2 has models of its own. */
static void each_family_has_a_model(void **state)
{
    (void)state;
    size_t n = 0, found = 0;
    const rose_family *const all = rose_families(&n);
    for (size_t i = 1; i < n; i++, found = 0) {
        for (uint32_t j = 0; j < golden_families()->n; j++) {
            char file[128], path[1024];
            snprintf(file, sizeof file, "tests/golden/%s.config.json", golden_families()->name[j]);
            golden_path(path, sizeof path, file);
            rose_json *config = test_load_json(path);
            found +=
                strcmp(rose_json_text(golden_get(config, "model_type")), all[i].model_type) == 0;
            rose_json_decref(config);
        }
        if (found == 0) fail_msg("%s has no golden model", all[i].model_type);
    }
}

static void held_out_sums_to_its_mean(void **state)
{
    (void)state;
    golden g;
    double sum = 0.0;
    uint32_t n = 0;
    golden_open(&g, "rose-tiny");
    assert_true(g.n_windows > 1);
    for (uint32_t i = 0; i < g.n_windows; i++) {
        assert_int_equal(g.windows[i].first, n);
        n += g.windows[i].n;
        sum += g.windows[i].nll_sum;
    }
    assert_int_equal(n, g.n_held_ids - 1);
    assert_true(fabs(sum / n - g.nll_mean) < 1e-9);
    golden_close(&g);
}

/* The comparison that other tests rely on notices one wrong value, a NaN and a wrong token. */
static void comparison_notices_faults(void **state)
{
    (void)state;
    golden g;
    golden_open(&g, "random-f32");
    const golden_prompt *p = &g.prompts[0];
    const golden_logits *l = logits_at(p, p->n_ids - 1);
    assert_non_null(l);
    float *copy = golden_alloc(l->n, sizeof *copy);
    memcpy(copy, l->values, l->n * sizeof *copy);
    copy[l->n - 1] += 2e-4f * l->max_abs;
    assert_true(golden_logits_error(l, copy) > g.tolerance);
    copy[l->n - 1] = NAN;
    copy[0] += 1.0f;
    assert_true(isinf(golden_logits_error(l, copy)));
    free(copy);

    assert_int_equal(golden_greedy_agreed(p, p->greedy, p->n_greedy), p->n_greedy);
    uint32_t got[2] = {p->greedy[0], p->greedy[1] + 1};
    assert_int_equal(golden_greedy_agreed(p, got, 2), 1);
    golden_close(&g);
}

static void shipped_model_is_the_one(void **state)
{
    (void)state;
    golden g;
    char folder[1024];
    golden_open(&g, "rose-tiny");
    assert_non_null(g.folder);
    golden_path(folder, sizeof folder, g.folder);
    golden_check_model(&g, folder);
    rose_model *m = expect_opens(folder);
    assert_int_equal(m->arch.kinds[0].mixer.head_dim, 64);
    assert_true(m->arch.tied_head);
    rose_model_close(m);
    golden_close(&g);
}

static void random_models_are_made_again(void **state)
{
    (void)state;
    char *folders = make_scratch();
    for (uint32_t i = 1; name_of(i) != NULL; i++) {
        golden g;
        rose_random_opts o;
        char folder[1024], path[1024];
        golden_open(&g, name_of(i));
        assert_null(g.folder);
        snprintf(folder, sizeof folder, "%s/%u", folders, i);
        golden_random_opts(&g.random, &o, path);
        rose_err err = {{0}};
        if (rose_random_model_write(&o, folder, &err) != ROSE_OK) fail_msg("%s", err.msg);
        golden_check_model(&g, folder);
        golden_close(&g);
    }
    drop_scratch(folders);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_agree_with_each_other),
        cmocka_unit_test(each_family_has_a_model),
        cmocka_unit_test(held_out_sums_to_its_mean),
        cmocka_unit_test(comparison_notices_faults),
        cmocka_unit_test(shipped_model_is_the_one),
        cmocka_unit_test(random_models_are_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
