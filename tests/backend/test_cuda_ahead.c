/* tests/backend/test_cuda_ahead.c - steps of the CUDA backend that are enqueued before the one
 * before is collected and name its ids by reference: the same ids as with every id known, in
 * graphs, launch by launch, and beside prompts. */
#define FX_MAX_SEQS 128
#define FX_MAX_ROWS 2048
#include "backend/cuda_fixture.h"

static const fx_shape g_shape = {"heads of 24",      2,        96,    4,     384,   611,  256,
                                 ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false};

enum { MAX_IDS = 3008, MAX_PAGES = MAX_IDS / ROSE_KV_PAGE_TOKENS };

/* How many sequences there are, the lengths of their prompts, and how many tokens of one
 * sequence a step computes. The first `shared` tokens of all are in the same pages. The first
 * sequence computes them, and the others begin after them (`latest` 0; `shared` a multiple of
 * `chunk` and of a page). */
typedef struct game {
    const fx_shape *shape;
    uint32_t n_seqs, n_out, least_prompt, most_prompt, chunk, max_steps, shared;
} game;

static const game g_mixed = {&g_shape, 40, 24, 1, 30, 7, 60, 0};

typedef struct seq {
    uint32_t ids[MAX_IDS], n_prompt, n_known, done, start;
    uint32_t out;      /* of the last step that sampled for it */
    uint32_t sampling; /* steps in flight that do */
    uint32_t pages[MAX_PAGES];
} seq;

typedef struct flight {
    uint64_t ticket;
    uint32_t n, seqs[FX_MAX_SEQS];
} flight;

typedef struct batch {
    rose_batch b;
    uint32_t tokens[FX_MAX_ROWS], pages[FX_MAX_SEQS * MAX_PAGES];
    rose_batch_seq seqs[FX_MAX_SEQS];
    rose_batch_out outs[FX_MAX_SEQS];
} batch;

static void begin(batch *x)
{
    x->b = (rose_batch){.tokens = x->tokens, .seqs = x->seqs, .outs = x->outs};
}

static void add(const game *g, batch *x, seq *q, uint32_t i, flight *f)
{
    rose_batch *b = &x->b;
    uint32_t s = b->n_seqs++, end = q->n_prompt;
    if (end > q->done + g->chunk) end = q->done + g->chunk;
    if (q->done >= q->n_prompt) end = q->done + 1;
    x->seqs[s] = (rose_batch_seq){.first = b->n_tokens,
                                  .n = end - q->done,
                                  .pos = q->done,
                                  .table = {x->pages + s * MAX_PAGES}};
    memcpy(x->pages + s * MAX_PAGES, q->pages, sizeof q->pages);
    for (; q->done < end; q->done++)
        x->tokens[b->n_tokens++] =
            q->done < q->n_known ? q->ids[q->done] : ROSE_TOKEN_OUTPUT | q->out;
    if (end < q->n_prompt) return;
    uint32_t k = b->n_outputs++;
    x->outs[k] = (rose_batch_out){.row = b->n_tokens - 1,
                                  .pos = end,
                                  .params = {.temperature = (float)(i % 3) * 0.5f,
                                             .top_p = 0.95f,
                                             .top_k = i % 2 ? 0 : 50,
                                             .seed = i}};
    q->out = k;
    q->sampling++;
    f->seqs[f->n++] = i;
}

static void land(const game *g, fx_backend *f, seq *seqs, const flight *l)
{
    rose_err err = {""};
    rose_step_result r;
    if (f->ops->collect(f->cpu, l->ticket, &r, &err) != ROSE_OK) fail_msg("collect: %s", err.msg);
    assert_int_equal(r.n_outputs, l->n);
    for (uint32_t k = 0; k < l->n; k++) {
        seq *q = &seqs[l->seqs[k]];
        assert_true(r.ids[k] < g->shape->vocab);
        q->ids[q->n_known++] = r.ids[k];
        q->sampling--;
    }
}

/* Some begin later, so that prompts and decodes meet; at the end all decode. Returns in how many
 * steps all of them did. */
static uint32_t run(const game *g, fx_backend *f, seq *seqs, bool ahead)
{
    static batch x;
    flight flights[2];
    uint64_t n_refs = 0;
    uint32_t n_whole = 0;
    bool in_flight = false;
    for (uint32_t step = 0; step < g->max_steps; step++) {
        flight *now = &flights[step % 2], *before = &flights[(step + 1) % 2];
        rose_err err = {""};
        begin(&x);
        now->n = 0;
        for (uint32_t i = 0; i < g->n_seqs; i++) {
            seq *q = &seqs[i];
            if (step < q->start || q->n_known + q->sampling == q->n_prompt + g->n_out) continue;
            n_refs += q->sampling;
            add(g, &x, q, i, now);
        }
        bool any = x.b.n_seqs > 0;
        n_whole += x.b.n_outputs == g->n_seqs && x.b.n_tokens == g->n_seqs;
        if (any && f->ops->step(f->cpu, &x.b, &now->ticket, &err) != ROSE_OK)
            fail_msg("step: %s", err.msg);
        memset(x.tokens, 0xff, sizeof x.tokens); /* borrowed until step() returned */
        memset(x.pages, 0xff, sizeof x.pages);
        if (in_flight) land(g, f, seqs, before);
        in_flight = ahead && any;
        if (any && !ahead) land(g, f, seqs, now);
    }
    assert_int_equal(n_refs > 0, ahead);
    for (uint32_t i = 0; i < g->n_seqs; i++)
        assert_int_equal(seqs[i].n_known, seqs[i].n_prompt + g->n_out);
    return n_whole;
}

static seq *make(const game *g, const fx_backend *f, uint32_t latest)
{
    fx_random r = {.seed = fx_seed()};
    seq *seqs = calloc(g->n_seqs, sizeof *seqs);
    uint32_t n_pages = 0;
    assert_non_null(seqs);
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        seq *q = &seqs[i];
        q->n_prompt = q->n_known =
            g->least_prompt + fx_below(&r, g->most_prompt - g->least_prompt + 1);
        q->start = fx_below(&r, latest + 1) + (i > 0 ? g->shared / g->chunk : 0);
        q->done = i > 0 ? g->shared : 0;
        memset(q->pages, 0xff, sizeof q->pages);
        for (uint32_t j = 0; j < q->n_prompt; j++)
            q->ids[j] = fx_below(&r, g->shape->vocab);
        for (uint32_t j = 0; j * ROSE_KV_PAGE_TOKENS < q->n_prompt + g->n_out; j++) {
            const bool own = i == 0 || j >= g->shared / ROSE_KV_PAGE_TOKENS;
            assert_true(n_pages < f->n_free[0]);
            q->pages[j] = own ? f->free_pages[0][n_pages++] : seqs[0].pages[j];
        }
    }
    return seqs;
}

static void check_same(const game *g, const seq *want, const seq *got)
{
    for (uint32_t k = 0; k < g->n_seqs; k++)
        assert_memory_equal(want[k].ids, got[k].ids, sizeof got[k].ids);
}

static void test_same_ids(void **state)
{
    static const rose_compute types[] = {ROSE_COMPUTE_F16, ROSE_COMPUTE_BF16, ROSE_COMPUTE_F32};
    (void)state;
    rose_model *m = fx_model(&g_shape, fx_seed());
    for (int t = 0; t < 3; t++) {
        fx_backend f = fx_open(m, types[t], NULL, 0, 1);
        assert_true((f.ops->caps & ROSE_CAP_AHEAD) != 0);
        seq *want = make(&g_mixed, &f, 20);
        run(&g_mixed, &f, want, false);
        for (int i = 0; i < 4; i++) {
            fx_cuda(&f)->use_graphs = i % 2 == 0;
            seq *got = make(&g_mixed, &f, i < 2 ? 20 : 0);
            run(&g_mixed, &f, got, true);
            check_same(&g_mixed, want, got);
            free(got);
        }
        free(want);
        fx_close(&f);
    }
    fx_model_free(m);
}

/* One more step of all, which reads every page: its logits, [n_seqs][vocab], the caller's to free.
 * A token's K or V that is missing changes few ids and every logit. */
static float *last_logits(const game *g, fx_backend *f, seq *seqs)
{
    static batch x;
    float *logits = calloc((size_t)g->n_seqs * g->shape->vocab, sizeof *logits);
    flight now = {0};
    rose_err err = {""};
    assert_non_null(logits);
    begin(&x);
    x.b.logits = logits;
    for (uint32_t i = 0; i < g->n_seqs; i++)
        add(g, &x, &seqs[i], i, &now);
    if (f->ops->step(f->cpu, &x.b, &now.ticket, &err) != ROSE_OK) fail_msg("step: %s", err.msg);
    land(g, f, seqs, &now);
    return logits;
}

/* 128 and 100 sequences of 12 heads. First there are more (row, head) pairs than warps attend to at
 * once, then fewer (run_ahead). With 2,560 tokens more before each sequence, in pages that all
 * read, the tables of a step of 100 are over 64 KiB. Compared with the simplest way, one step at a
 * time. */
static void test_crowd(void **state)
{
    static const struct {
        uint32_t n_seqs, shared;
        rose_compute type;
    } cases[] = {{128, 0, ROSE_COMPUTE_F16}, {100, 2560, ROSE_COMPUTE_BF16}};
    const char *const without = fx_without;
    (void)state;
    for (int i = 0; i < 2; i++) {
        const fx_shape shape = {"12 heads",         2,        768,   12,    384,   611,  4096,
                                ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false};
        const uint32_t shared = cases[i].shared;
        const game g = {&shape, cases[i].n_seqs, 10, shared + 400, shared + 430, 16, 208, shared};
        rose_model *m = fx_model(&shape, fx_seed() + 1);
        fx_without = FX_WITHOUT_ALL;
        fx_backend plain = fx_open(m, cases[i].type, NULL, 0, 1);
        fx_without = without;
        seq *want = make(&g, &plain, 0);
        run(&g, &plain, want, false);
        float *want_logits = last_logits(&g, &plain, want);
        fx_close(&plain);
        fx_backend f = fx_open(m, cases[i].type, NULL, 0, 1);
        seq *got = make(&g, &f, 0);
        assert_true(run(&g, &f, got, true) > 4);
        float *logits = last_logits(&g, &f, got);
        check_same(&g, want, got);
        assert_memory_equal(want_logits, logits, (size_t)g.n_seqs * shape.vocab * sizeof *logits);
        free(want_logits);
        free(logits);
        free(got);
        free(want);
        fx_close(&f);
        fx_model_free(m);
    }
}

/* ---- one sequence, by hand ---- */

static rose_status one(fx_backend *f, uint32_t token, uint32_t pos, const uint32_t *page,
                       uint64_t *ticket)
{
    const rose_batch_seq alone = {.n = 1, .pos = pos, .table = {page}};
    const rose_batch_out out = {.pos = pos + 1, .params = {.top_p = 1}}; /* greedy */
    const rose_batch b = {
        .n_seqs = 1, .n_tokens = 1, .n_outputs = 1, .tokens = &token, .seqs = &alone, .outs = &out};
    rose_err err = {""};
    return f->ops->step(f->cpu, &b, ticket, &err);
}

static uint32_t result(fx_backend *f, uint64_t ticket)
{
    rose_err err = {""};
    rose_step_result r;
    if (f->ops->collect(f->cpu, ticket, &r, &err) != ROSE_OK) fail_msg("collect: %s", err.msg);
    assert_int_equal(r.n_outputs, 1);
    return r.ids[0];
}

static void test_refused(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, fx_seed());
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
    uint64_t t;
    const uint32_t page = 3;
    assert_int_equal(one(&f, ROSE_TOKEN_OUTPUT, 0, &page, &t), ROSE_E_INVAL); /* no step before */
    assert_int_equal(one(&f, 5, 0, &page, &t), ROSE_OK);
    uint32_t id = result(&f, t);
    assert_int_equal(one(&f, ROSE_TOKEN_OUTPUT | 1, 1, &page, &t), ROSE_E_INVAL);
    assert_int_equal(one(&f, ROSE_TOKEN_NONE, 1, &page, &t), ROSE_E_INVAL);
    assert_int_equal(one(&f, ROSE_TOKEN_OUTPUT, 1, &page, &t), ROSE_OK); /* also when collected */
    uint32_t next = result(&f, t);
    assert_int_equal(one(&f, id, 1, &page, &t), ROSE_OK);
    assert_int_equal(result(&f, t), next);
    fx_close(&f);
    fx_model_free(m);
}

/* The step before gave no id: the row is computed from some id, and all else goes on. */
static void test_no_id(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, fx_seed());
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
    uint64_t t;
    const uint32_t page = 3;
    assert_int_equal(one(&f, 5, 0, &page, &t), ROSE_OK);
    result(&f, t);
    uint32_t *sampled = fx_cuda(&f)->ranks[0].scratch.sampled;
    assert_int_equal(cudaMemset(sampled, 0xff, sizeof *sampled), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(one(&f, ROSE_TOKEN_OUTPUT, 1, &page, &t), ROSE_OK);
    assert_true(result(&f, t) < g_shape.vocab);
    assert_int_equal(one(&f, 9, 0, &page, &t), ROSE_OK);
    assert_true(result(&f, t) < g_shape.vocab);
    fx_close(&f);
    fx_model_free(m);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_ids),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_id),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (fx_without != NULL) return failed;
    fx_without = FX_WITHOUT_ALL;
    return failed + cmocka_run_group_tests_name("without " FX_WITHOUT_ALL, tests, NULL, NULL);
}
