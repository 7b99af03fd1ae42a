/* tests/backend/test_cuda_ahead.c - steps of the CUDA backend that are enqueued before the one
 * before is collected and name its ids by reference: the same ids as with every id known, in
 * graphs, launch by launch, and beside prompts. */
#include "backend/cuda_fixture.h"

static const fx_shape g_shape = {"heads of 24",      2,        96,    4,     384,   611,  256,
                                 ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false};

enum { N_SEQS = 40, N_OUT = 24, MAX_PROMPT = 30, CHUNK = 7, PAGES = 4, MAX_STEPS = 60 };

typedef struct seq {
    uint32_t ids[MAX_PROMPT + N_OUT], n_prompt, n_known, done, start;
    uint32_t out;      /* of the last step that sampled for it */
    uint32_t sampling; /* steps in flight that do */
    uint32_t pages[PAGES];
} seq;

typedef struct flight {
    uint64_t ticket;
    uint32_t n, seqs[N_SEQS];
} flight;

typedef struct batch {
    rose_batch b;
    uint32_t tokens[N_SEQS * CHUNK], first[N_SEQS + 1], pos[N_SEQS], pages[N_SEQS * PAGES];
    uint32_t out_row[N_SEQS], out_pos[N_SEQS];
    rose_sampling params[N_SEQS];
} batch;

static void add(batch *x, seq *q, uint32_t i, flight *f)
{
    rose_batch *b = &x->b;
    uint32_t s = b->n_seqs++, end = q->n_prompt > q->done + CHUNK ? q->done + CHUNK : q->n_prompt;
    if (q->done >= q->n_prompt) end = q->done + 1;
    x->pos[s] = q->done;
    memcpy(x->pages + s * PAGES, q->pages, sizeof q->pages);
    for (; q->done < end; q->done++)
        x->tokens[b->n_tokens++] =
            q->done < q->n_known ? q->ids[q->done] : ROSE_TOKEN_OUTPUT | q->out;
    x->first[s + 1] = b->n_tokens;
    if (end < q->n_prompt) return;
    uint32_t k = b->n_outputs++;
    x->out_row[k] = b->n_tokens - 1;
    x->out_pos[k] = end;
    x->params[k] = (rose_sampling){
        .temperature = (float)(i % 3) * 0.5f, .top_p = 0.95f, .top_k = i % 2 ? 0 : 50, .seed = i};
    q->out = k;
    q->sampling++;
    f->seqs[f->n++] = i;
}

static void land(fx_backend *f, seq *seqs, const flight *l)
{
    rose_err err = {""};
    rose_step_result r;
    if (f->ops->collect(f->cpu, l->ticket, &r, &err) != ROSE_OK) fail_msg("collect: %s", err.msg);
    assert_int_equal(r.n_outputs, l->n);
    for (uint32_t k = 0; k < l->n; k++) {
        seq *q = &seqs[l->seqs[k]];
        assert_true(r.ids[k] < g_shape.vocab);
        q->ids[q->n_known++] = r.ids[k];
        q->sampling--;
    }
}

/* Some begin later, so that prompts and decodes meet; at the end all decode. */
static void run(fx_backend *f, seq *seqs, bool ahead)
{
    static batch x;
    flight flights[2];
    uint64_t n_refs = 0;
    bool in_flight = false;
    for (uint32_t step = 0; step < MAX_STEPS; step++) {
        flight *now = &flights[step % 2], *before = &flights[(step + 1) % 2];
        rose_err err = {""};
        x.b = (rose_batch){.tokens = x.tokens,
                           .seq_first = x.first,
                           .seq_pos = x.pos,
                           .pages = x.pages,
                           .page_stride = PAGES,
                           .out_row = x.out_row,
                           .out_pos = x.out_pos,
                           .out_params = x.params};
        now->n = 0;
        for (uint32_t i = 0; i < N_SEQS; i++) {
            seq *q = &seqs[i];
            if (step < q->start || q->n_known + q->sampling == q->n_prompt + N_OUT) continue;
            n_refs += q->sampling;
            add(&x, q, i, now);
        }
        bool any = x.b.n_seqs > 0;
        if (any && f->ops->step(f->cpu, &x.b, &now->ticket, &err) != ROSE_OK)
            fail_msg("step: %s", err.msg);
        memset(x.tokens, 0xff, sizeof x.tokens); /* borrowed until step() returned */
        memset(x.pages, 0xff, sizeof x.pages);
        if (in_flight) land(f, seqs, before);
        in_flight = ahead && any;
        if (any && !ahead) land(f, seqs, now);
    }
    assert_int_equal(n_refs > 0, ahead);
    for (uint32_t i = 0; i < N_SEQS; i++)
        assert_int_equal(seqs[i].n_known, seqs[i].n_prompt + N_OUT);
}

static seq *make(fx_backend *f, uint32_t latest)
{
    fx_random r = {.seed = fx_seed()};
    seq *seqs = calloc(N_SEQS, sizeof *seqs);
    assert_non_null(seqs);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        seq *q = &seqs[i];
        q->n_prompt = q->n_known = 1 + fx_below(&r, MAX_PROMPT);
        q->start = fx_below(&r, latest + 1);
        for (uint32_t j = 0; j < q->n_prompt; j++)
            q->ids[j] = fx_below(&r, g_shape.vocab);
        for (uint32_t j = 0; j < PAGES; j++)
            q->pages[j] = f->free_pages[i * PAGES + j];
    }
    return seqs;
}

static void test_same_ids(void **state)
{
    static const rose_compute types[] = {ROSE_COMPUTE_F16, ROSE_COMPUTE_BF16, ROSE_COMPUTE_F32};
    (void)state;
    rose_model *m = fx_model(&g_shape, fx_seed());
    for (int t = 0; t < 3; t++) {
        fx_backend f = fx_open(m, types[t], NULL, 0, 1);
        assert_true((f.ops->caps & ROSE_CAP_AHEAD) != 0);
        seq *want = make(&f, 20);
        run(&f, want, false);
        for (int i = 0; i < 4; i++) {
            fx_cuda(&f)->use_graphs = i % 2 == 0;
            seq *got = make(&f, i < 2 ? 20 : 0);
            run(&f, got, true);
            for (uint32_t k = 0; k < N_SEQS; k++)
                assert_memory_equal(want[k].ids, got[k].ids, sizeof got[k].ids);
            free(got);
        }
        free(want);
        fx_close(&f);
    }
    fx_model_free(m);
}

/* ---- one sequence, by hand ---- */

static rose_status one(fx_backend *f, uint32_t token, uint32_t pos, const uint32_t *page,
                       uint64_t *ticket)
{
    static const uint32_t first[] = {0, 1}, row[] = {0};
    static const rose_sampling greedy[] = {{.top_p = 1}};
    const uint32_t out_pos[] = {pos + 1};
    const rose_batch b = {.n_seqs = 1,
                          .n_tokens = 1,
                          .tokens = &token,
                          .seq_first = first,
                          .seq_pos = &pos,
                          .pages = page,
                          .page_stride = 1,
                          .n_outputs = 1,
                          .out_row = row,
                          .out_pos = out_pos,
                          .out_params = greedy};
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
    uint32_t *sampled = fx_cuda(&f)->scratch.sampled;
    assert_int_equal(cudaMemset(sampled, 0xff, sizeof *sampled), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(one(&f, ROSE_TOKEN_OUTPUT, 1, &page, &t), ROSE_OK);
    assert_true(result(&f, t) < g_shape.vocab);
    assert_int_equal(one(&f, 9, 0, &page, &t), ROSE_OK);
    assert_true(result(&f, t) < g_shape.vocab);
    fx_close(&f);
    fx_model_free(m);
}

/* A copy between two steps in flight has what the first wrote, and not what the second writes. */
static void test_copy_between(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, fx_seed());
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
    rose_err err = {""};
    uint32_t ids[2][3];
    const uint32_t a = 3, b = 7;
    uint64_t t[2];
    for (int copied = 0; copied < 2; copied++) {
        assert_int_equal(one(&f, 5, 0, &a, &t[0]), ROSE_OK);
        if (copied) assert_int_equal(f.ops->copy_pages(f.cpu, &a, &b, 1, &err), ROSE_OK);
        assert_int_equal(one(&f, ROSE_TOKEN_OUTPUT, 1, copied ? &b : &a, &t[1]), ROSE_OK);
        ids[copied][0] = result(&f, t[0]);
        ids[copied][1] = result(&f, t[1]);
        if (copied) { /* the old page is as it was: it can go on alone, and gets the same */
            assert_int_equal(one(&f, ids[1][0], 1, &a, &t[0]), ROSE_OK);
            assert_int_equal(result(&f, t[0]), ids[1][1]);
        }
        assert_int_equal(one(&f, 11, 2, copied ? &b : &a, &t[0]), ROSE_OK);
        ids[copied][2] = result(&f, t[0]);
    }
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    fx_close(&f);
    fx_model_free(m);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_ids),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_id),
        cmocka_unit_test(test_copy_between),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (fx_without != NULL) return failed;
    fx_without = FX_WITHOUT_ALL;
    return failed + cmocka_run_group_tests_name("without " FX_WITHOUT_ALL, tests, NULL, NULL);
}
