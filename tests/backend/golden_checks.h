/* tests/backend/golden_checks.h - a backend against transformers (tests/golden): logits and greedy
 * continuations, and the held-out loss of the demo model. Header-only: each test is one program. */
#ifndef TESTS_BACKEND_GOLDEN_CHECKS_H
#define TESTS_BACKEND_GOLDEN_CHECKS_H

#include "backend/cpu_fixture.h"
#include "golden.h"
#include "model/random.h"

enum { CHUNK = 64 };

static inline rose_model *random_model(const golden_random *r, const char *dir)
{
    rose_random_opts o;
    char path[1024];
    rose_model *m = NULL;
    rose_err err = {""};
    golden_random_opts(r, &o, path);
    if (rose_random_model_write(&o, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
    if (rose_model_open(&m, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
    return m;
}

static inline rose_model *golden_model(const golden *g)
{
    rose_model *m = NULL;
    rose_err err = {""};
    char dir[1024] = "/tmp/rose-golden-XXXXXX", command[1100];

    if (g->folder != NULL) {
        golden_path(dir, sizeof dir, g->folder);
        golden_check_model(g, dir);
        if (rose_model_open(&m, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
        return m;
    }
    assert_non_null(mkdtemp(dir));
    m = random_model(&g->random, dir);
    golden_check_model(g, dir);
    snprintf(command, sizeof command, "rm -rf %s", dir); /* the mappings stay */
    assert_int_equal(system(command), 0);
    return m;
}

/* The prompt, then every token that we choose ourselves. */
static inline void check_prompt(const golden *g, const rose_model *m, fx_backend *f,
                                const golden_prompt *p, double *worst)
{
    fx_seq s = fx_seq_make(m, 0, p->n_ids + p->n_greedy);
    uint32_t *got = calloc(p->n_greedy + 1, sizeof *got), last = p->n_ids - 1;
    assert_non_null(got);
    memcpy(s.tokens, p->ids, p->n_ids * sizeof *s.tokens);
    fx_run(f, &s, p->n_ids, CHUNK);
    for (uint32_t i = 0; i < p->n_greedy; i++) {
        got[i] = s.next_ids[last + i];
        assert_true(got[i] < m->arch.vocab_size);
        s.tokens[p->n_ids + i] = got[i];
        fx_run(f, &s, p->n_ids + i + 1, 1);
    }
    uint32_t agreed = golden_greedy_agreed(p, got, p->n_greedy);
    if (agreed < p->n_greedy)
        fail_msg("prompt %s: greedy token %u is %u, not %u (margin %g)", p->name, agreed,
                 got[agreed], p->greedy[agreed], (double)p->margin[agreed]);
    for (uint32_t i = 0; i < p->n_logits; i++) {
        const golden_logits *l = &p->logits[i];
        const float *logits = s.logits + (size_t)l->position * m->arch.vocab_size;
        const double e = g->logprobs ? golden_logprob_error(l, logits, m->arch.vocab_size)
                                     : golden_logits_error(l, logits);
        if (e > *worst) *worst = e;
        if (!(e <= g->tolerance))
            fail_msg("prompt %s, position %u: logits are off by %g", p->name, l->position, e);
    }
    fx_seq_drop(f, &s);
    fx_seq_free(&s);
    free(got);
}

static inline void check_golden(const char *name)
{
    golden g;
    double worst = 0;
    golden_open(&g, name);
    rose_model *m = golden_model(&g);
    fx_max_model_len = g.served_context;
    fx_backend f = fx_open(m, ROSE_COMPUTE_F32, "auto", 2, 9);
    fx_max_model_len = 0;
    for (uint32_t i = 0; i < g.n_prompts; i++)
        check_prompt(&g, m, &f, &g.prompts[i], &worst);
    print_message("%s: largest error of a %s %.1e, all greedy tokens equal\n", name,
                  g.logprobs ? "log-probability" : "logit", worst);
    fx_close(&f);
    rose_model_close(m);
    golden_close(&g);
}

static inline void test_rose_tiny(void **state)
{
    (void)state;
    check_golden("rose-tiny");
}

static inline void test_random_models(void **state)
{
    (void)state;
    check_golden("random-f32");
    check_golden("random-f16");
    check_golden("random-bf16");
}

/* ---- pooled states (tests/golden/states.json) ---- */

static inline double state_error(rose_json *want, const float *got, uint32_t n)
{
    double worst = 0;
    assert_int_equal(rose_json_count(want), n);
    for (uint32_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(rose_json_number_value(rose_json_at(want, i)) - (double)got[i]));
    return worst;
}

/* The state of the last token and the mean over the prompt, in chunks. */
static inline double check_states_of(const golden_prompt *p, rose_json *want, fx_backend *f)
{
    const rose_model *m = f->model;
    const uint32_t d = m->arch.d_model;
    fx_seq s = fx_seq_make(m, 0, p->n_ids);
    float *sum = calloc(2 * d, sizeof *sum);
    assert_non_null(sum);
    memcpy(s.tokens, p->ids, p->n_ids * sizeof *s.tokens);
    s.sum = sum;
    fx_run(f, &s, p->n_ids, CHUNK);
    fx_seq_drop(f, &s);
    for (uint32_t i = 0; i < d; i++)
        sum[i] /= (float)p->n_ids;
    s.sum = NULL;
    fx_run(f, &s, p->n_ids - 1, CHUNK);
    s.sum = sum + d;
    fx_run(f, &s, p->n_ids, CHUNK);
    const double mean = state_error(golden_get(want, "mean"), sum, d);
    const double last = state_error(golden_get(want, "last"), sum + d, d);
    fx_seq_drop(f, &s);
    fx_seq_free(&s);
    free(sum);
    return fmax(mean, last);
}

static inline const golden_prompt *prompt_named(const golden *g, const char *name)
{
    for (uint32_t i = 0; i < g->n_prompts; i++)
        if (strcmp(g->prompts[i].name, name) == 0) return &g->prompts[i];
    fail_msg("%s: no prompt", name);
    return NULL;
}

static inline void test_golden_states(void **state)
{
    char path[1024];
    size_t i, j;
    rose_json *one, *p;
    (void)state;
    golden_path(path, sizeof path, "tests/golden/states.json");
    rose_json *all = test_load_json(path);
    rose_json_each_item (golden_get(all, "models"), i, one) {
        golden g;
        const char *name = rose_json_text(golden_get(one, "name"));
        golden_open(&g, name);
        rose_model *m = golden_model(&g);
        fx_backend f = fx_open(m, ROSE_COMPUTE_F32, "auto", 2, 9);
        rose_json_each_item (golden_get(one, "prompts"), j, p) {
            const char *which = rose_json_text(golden_get(p, "name"));
            const double e = check_states_of(prompt_named(&g, which), p, &f);
            print_message("%s, prompt %s: largest error of a state %.1e\n", name, which, e);
            assert_true(e <= golden_real(one, "tolerance"));
        }
        fx_close(&f);
        rose_model_close(m);
        golden_close(&g);
    }
    rose_json_decref(all);
}

/* Nats a token, in double from our logits. */
static const char *golden_isa = "auto"; /* of held_out_loss */

static inline double held_out_loss(const golden *g, const rose_model *m, rose_compute dtype)
{
    const uint32_t vocab = m->arch.vocab_size;
    fx_backend f = fx_open(m, dtype, golden_isa, 2, 9);
    double sum = 0;
    for (uint32_t i = 0; i < g->n_windows; i++) {
        const golden_window *w = &g->windows[i];
        fx_seq s = fx_seq_make(m, 0, w->n);
        memcpy(s.tokens, g->held_ids + w->first, w->n * sizeof *s.tokens);
        fx_run(&f, &s, w->n, CHUNK);
        for (uint32_t j = 0; j < w->n; j++) {
            const float *x = s.logits + (size_t)j * vocab;
            double total = 0;
            for (uint32_t t = 0; t < vocab; t++)
                total += exp((double)x[t]);
            sum += log(total) - (double)x[g->held_ids[w->first + j + 1]];
        }
        fx_seq_drop(&f, &s);
        fx_seq_free(&s);
    }
    fx_close(&f);
    return sum / (g->n_held_ids - 1);
}

#endif
