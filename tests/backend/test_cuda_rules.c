/* tests/backend/test_cuda_rules.c - reports and rules on the GPU. First on logits of our own,
 * through the staging area and the kernels: changed rows bit for bit those of rules_reference.h,
 * reports those of the CPU sampler, hostile values among them, also where the staging area holds
 * one output at a time. Then whole steps: many outputs, several of a row, rules beside none, graph
 * and eager. */
#define FX_MAX_SEQS 256
#include "backend/cuda_fixture.h"
#include "backend/rules_reference.h"

#include "backend/cpu/sampler.h"

enum { MAX_OUT = 400 };

static const fx_shape g_shape = {
    "rules",  2,     96,    4,     384,  MAX_VOCAB, 256, ROSE_ACT_GELU_TANH,
    ROSE_F32, false, false, false, false};
static const fx_shape g_tiny = {"a vocabulary of 3", 1,        16,    1,     32,    3,    64,
                                ROSE_ACT_GELU_TANH,  ROSE_F32, false, false, false, false};

static rose_cpu_kernels g_kernels;

/* An output: its rules, and a report of 1 + n_top entries followed by a canary. */
typedef struct wish {
    rule_set set;
    rose_logprob report[ROSE_MAX_TOP_LOGPROBS + 2];
    rose_sampling sampling;
    const rose_output_rules *rules; /* NULL or &set.u */
} wish;

static wish g_wish[MAX_OUT];
static rose_batch_out g_outs[MAX_OUT];

static void random_wish(wish *w, uint32_t vocab)
{
    random_rules(&w->set, vocab);
    memset(w->report, 0xEE, sizeof w->report);
    if (rnd(4) == 0) w->set.u.score_id = rnd(vocab);
    if (rnd(3) != 0) {
        w->set.u.report = w->report;
        w->set.u.n_top = rnd((vocab < 20 ? vocab : 20) + 1);
    }
    w->sampling = (rose_sampling){.temperature = rnd(2) ? rnd_float(0.2f, 2) : 0,
                                  .top_p = rnd(2) ? rnd_float(0.3f, 1) : 1,
                                  .top_k = rnd(2) ? rnd(50) : 0,
                                  .seed = g_state};
    w->rules = rnd(5) == 0 ? NULL : &w->set.u;
}

static void random_wishes(uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++) {
        random_wish(&g_wish[i], vocab);
        g_outs[i].rules = g_wish[i].rules;
        g_outs[i].params = g_wish[i].sampling;
        g_outs[i].pos = rnd(1000);
    }
}

static bool changes(const wish *w)
{
    return w->rules != NULL && rose_cuda_rules_change(w->rules);
}

static void *scratch(uint32_t vocab)
{
    static void *p;
    if (p == NULL) p = aligned_alloc(64, (rose_sampler_scratch(MAX_VOCAB) + 63) / 64 * 64);
    assert_true(p != NULL && vocab <= MAX_VOCAB);
    return p;
}

/* ---- reports against the CPU's ---- */

static void same_entry(const rose_logprob *got, const rose_logprob *want, uint32_t i)
{
    const double g = (double)got->logprob, w = (double)want->logprob;
    bool same =
        (isnan(g) && isnan(w)) || (isinf(w) && g < 0 && w < 0 && isinf(g)) || fabs(g - w) <= 1e-5;
    if (got->id != want->id || got->rank != want->rank || !same)
        fail_msg("entry %u: id %u, rank %u, %.9g; the CPU: id %u, rank %u, %.9g", i, got->id,
                 got->rank, g, want->id, want->rank, w);
}

/* The report about `id`, as the CPU gives it of the same logits. */
static void check_wish_report(const wish *w, const float *x, uint32_t vocab, uint32_t id)
{
    rose_logprob want[ROSE_MAX_TOP_LOGPROBS + 1];
    const uint32_t n_top = w->set.u.n_top;
    const rose_output_rules u = {
        .score_id = id == ROSE_TOKEN_NONE ? 0 : id, .report = want, .n_top = n_top};
    const rose_sampling p = {.top_p = 1};
    rose_sampler_run(&g_kernels, x, vocab, &p, &u, 0, scratch(vocab));
    assert_int_equal(w->report[0].id, id);
    for (uint32_t i = id == ROSE_TOKEN_NONE; i <= n_top; i++)
        same_entry(&w->report[i], &want[i], i);
    assert_int_equal(((const uint8_t *)&w->report[n_top + 1])[0], 0xEE); /* nothing behind */
}

/* ---- on logits of our own ---- */

static uint32_t order_of(float x)
{
    uint32_t u;
    if (isnan(x)) return 0;
    x += 0.0f;
    memcpy(&u, &x, 4);
    return u >> 31 ? ~u : u | 0x80000000u;
}

static void hostile_row(float *x, uint32_t n)
{
    const uint32_t kind = rnd(6);
    random_row(x, n);
    for (uint32_t i = 0; i < n; i++) {
        if (kind == 0 && rnd(3) == 0) x[i] = NAN;
        if (kind == 1) x[i] = -INFINITY;
        if (kind == 2) x[i] = NAN;
        if (kind == 3 && rnd(1000) == 0) x[i] = INFINITY;
        if (kind == 4) x[i] = rnd(2) ? 3e38f : -3e38f;
    }
}

/* Rows of logits to the device as the head would have left them. */
static void set_logits(rose_cuda *c, const float *x, uint32_t rows)
{
    const uint32_t vocab = c->arch.vocab_size;
    unsigned long long key[FX_MAX_SEQS];
    for (uint32_t r = 0; r < rows; r++) {
        key[r] = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            const unsigned long long k =
                (unsigned long long)order_of(x[(size_t)r * vocab + i]) << 32 | (uint32_t)~i;
            if (k > key[r]) key[r] = k;
        }
    }
    assert_int_equal(cudaMemcpy2D(c->ranks[0].scratch.logits,
                                  c->ranks[0].scratch.ld_logits * sizeof *x, x, vocab * sizeof *x,
                                  vocab * sizeof *x, rows, cudaMemcpyHostToDevice),
                     cudaSuccess);
    assert_int_equal(
        cudaMemcpy(c->ranks[0].scratch.key, key, rows * sizeof *key, cudaMemcpyHostToDevice),
        cudaSuccess);
}

static void run_rules(rose_cuda *c, uint32_t rows)
{
    rose_cuda_slot *slot = &c->slots[0];
    const rose_batch b = {.n_outputs = rows, .outs = g_outs};
    const rose_cuda_step step = {.batch = &b, .slot = slot}; /* at.ids is 0 */
    for (uint32_t i = 0; i < rows; i++)
        slot->ids[i] = i % c->arch.vocab_size; /* what the first pass has chosen */
    slot->n_entries = slot->n_deliveries = 0;
    slot->rules_used = 0;
    assert_int_equal(
        cudaMemcpy(c->ranks[0].header, &slot->ids, sizeof slot->ids, cudaMemcpyHostToDevice),
        cudaSuccess);
    /* A copy from pageable memory returns when that may change, not when the device has it, and
     * the stream does not wait for it. */
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(rose_cuda_rules_run(&c->ranks[0], &step, 0, rows), cudaSuccess);
    assert_int_equal(rose_cuda_finish(&c->ranks[0]), cudaSuccess);
    rose_cuda_rules_deliver(slot);
}

static void check_changed(rose_cuda *c, const float *x, uint32_t rows)
{
    static float want[MAX_VOCAB], got[MAX_VOCAB];
    const uint32_t vocab = c->arch.vocab_size;
    uint32_t n = 0;
    for (uint32_t i = 0; i < rows; i++)
        n += changes(&g_wish[i]);
    if (n > c->ranks[0].scratch.n_changed) return; /* only the last part is there */
    for (uint32_t i = 0, at = 0; i < rows; i++) {
        if (!changes(&g_wish[i])) continue;
        apply_naively(&g_wish[i].set, x + (size_t)i * vocab, vocab, want);
        assert_int_equal(
            cudaMemcpy(got,
                       c->ranks[0].scratch.changed + (size_t)at++ * c->ranks[0].scratch.ld_logits,
                       vocab * sizeof *got, cudaMemcpyDeviceToHost),
            cudaSuccess);
        for (uint32_t j = 0; j < vocab; j++)
            if (memcmp(&want[j], &got[j], sizeof *got) != 0 && !(isnan(want[j]) && isnan(got[j])))
                fail_msg("output %u, logit %u: %.9g, not %.9g", i, j, (double)got[j],
                         (double)want[j]);
    }
}

/* Draws at a cut may differ within rounding: returns 1 for one that does. */
static uint32_t check_result(rose_cuda *c, const float *x, uint32_t i)
{
    static float y[MAX_VOCAB];
    const wish *w = &g_wish[i];
    const uint32_t vocab = c->arch.vocab_size, id = c->slots[0].ids[i];
    uint32_t want = i % vocab, other = 0;
    if (w->rules == NULL) {
        assert_int_equal(id, want);
        return 0;
    }
    if (w->set.u.score_id != ROSE_TOKEN_NONE) {
        assert_int_equal(id, w->set.u.score_id);
    } else if (changes(w)) {
        apply_naively(&w->set, x + (size_t)i * vocab, vocab, y);
        want = rose_sampler_pick(&g_kernels, y, vocab, &w->sampling, g_outs[i].pos, scratch(vocab));
        other = id != want;
        if (w->sampling.temperature <= 0) assert_int_equal(id, want);
        if (other) assert_true(id < vocab && y[id] > -INFINITY);
    }
    if (w->set.u.report != NULL) check_wish_report(w, x + (size_t)i * vocab, vocab, id);
    return other;
}

/* Most guided requests: every row has a mask and nothing else. */
static void only_masks(uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++) {
        wish *w = &g_wish[i];
        const uint32_t one_in = 1 + rnd(2 * vocab);
        memset(&w->set, 0, sizeof w->set);
        w->set.u =
            (rose_output_rules){.score_id = ROSE_TOKEN_NONE, .repetition = 1, .mask = w->set.mask};
        for (uint32_t id = 0; id < vocab; id++)
            if (rnd(one_in) == 0) w->set.mask[id / 32] |= 1u << id % 32;
        g_outs[i].rules = w->rules = &w->set.u;
    }
}

static void on_own_logits(const fx_shape *shape, int rounds, uint64_t staging)
{
    static const uint32_t crowds[] = {1, 17, 64, 128, 256};
    rose_model *m = fx_model(shape, 7);
    fx_backend f = fx_open(m, ROSE_COMPUTE_F32, NULL, 0, 1);
    rose_cuda *c = fx_cuda(&f);
    const uint32_t vocab = shape->vocab;
    float *x = calloc((size_t)FX_MAX_SEQS * vocab, sizeof *x);
    uint32_t n = 0, n_other = 0;
    assert_non_null(x);
    if (staging > 0) c->ranks[0].scratch.rules_bytes = staging;
    for (int round = 0; round < rounds; round++) {
        const bool masks = round % 4 == 3;
        const uint32_t rows = masks ? crowds[round / 4 % 5] : 1 + rnd(80);
        for (uint32_t r = 0; r < rows; r++)
            if (round % 2)
                hostile_row(x + (size_t)r * vocab, vocab);
            else
                random_row(x + (size_t)r * vocab, vocab);
        random_wishes(rows, vocab);
        if (masks) only_masks(rows, vocab);
        set_logits(c, x, rows);
        run_rules(c, rows);
        if (staging == 0) check_changed(c, x, rows); /* else only the last part is there */
        for (uint32_t i = 0; i < rows; i++, n++)
            n_other += check_result(c, x, i);
    }
    print_message("%s: %u outputs, %u draws differ from the CPU's at a cut\n", shape->name, n,
                  n_other);
    assert_true(n_other <= 2 + n / 100);
    free(x);
    fx_close(&f);
    fx_model_free(m);
}

static void test_own_logits(void **state)
{
    (void)state;
    on_own_logits(&g_shape, 40, 0);
    on_own_logits(&g_tiny, 40, 0);
}

static void test_small_staging(void **state)
{
    (void)state;
    on_own_logits(&g_shape, 10, 1 << 12); /* a few outputs at a time */
}

/* Long lists: everything allowed, banned, biased and seen at once; many banned become a bitmap. */
static void test_long_lists(void **state)
{
    static float x[MAX_VOCAB], y[MAX_VOCAB], want[MAX_VOCAB], values[MAX_VOCAB];
    static uint32_t ids[MAX_VOCAB], counts[MAX_VOCAB];
    rose_model *m = fx_model(&g_shape, 7);
    fx_backend f = fx_open(m, ROSE_COMPUTE_F32, NULL, 0, 1);
    rose_cuda *c = fx_cuda(&f);
    (void)state;
    random_row(x, MAX_VOCAB);
    for (uint32_t i = 0; i < MAX_VOCAB; i++) {
        ids[i] = (i * 1000 + 1) % MAX_VOCAB; /* 4099 is a prime: all of them */
        values[i] = rnd_float(-9, 9);
        counts[i] = rnd(5);
    }
    for (uint32_t i = 0; i < MAX_VOCAB; i++) {
        volatile float v = x[ids[i]] + values[i];
        v = v > 0 ? v / 1.3f : v * 1.3f;
        volatile float by = 0.7f * (float)counts[i];
        if (counts[i] > 0) v = v - by;
        if (counts[i] > 0) v = v - 0.3f;
        want[ids[i]] = i < 2000 ? -INFINITY : v;
    }
    rose_output_rules u = {.score_id = ROSE_TOKEN_NONE,
                           .allowed = ids,
                           .n_allowed = MAX_VOCAB,
                           .banned = ids,
                           .n_banned = 2000,
                           .bias_ids = ids,
                           .bias = values,
                           .n_bias = MAX_VOCAB,
                           .seen_ids = ids,
                           .seen_counts = counts,
                           .n_seen = MAX_VOCAB,
                           .repetition = 1.3f,
                           .frequency = 0.7f,
                           .presence = 0.3f};
    for (int round = 0; round < 3; round++) {
        if (round == 1) u.n_allowed = 0; /* the bitmap is of the banned alone */
        if (round == 2) {                /* the largest staging that was planned is enough */
            u.n_banned = 129;
            for (uint32_t i = 129; i < 2000; i++) {
                volatile float v = x[ids[i]] + values[i];
                v = v > 0 ? v / 1.3f : v * 1.3f;
                volatile float by = 0.7f * (float)counts[i];
                if (counts[i] > 0) v = v - by;
                if (counts[i] > 0) v = v - 0.3f;
                want[ids[i]] = v;
            }
        }
        g_outs[0].rules = &u;
        g_outs[0].params = (rose_sampling){.top_p = 1};
        set_logits(c, x, 1);
        run_rules(c, 1);
        assert_int_equal(
            cudaMemcpy(y, c->ranks[0].scratch.changed, sizeof y, cudaMemcpyDeviceToHost),
            cudaSuccess);
        assert_memory_equal(y, want, sizeof y);
    }
    fx_close(&f);
    fx_model_free(m);
}

/* ---- whole steps ---- */

typedef struct whole {
    uint32_t tokens[FX_MAX_ROWS], pages[FX_MAX_SEQS * FX_STRIDE], ids[MAX_OUT];
    rose_batch_seq seqs[FX_MAX_SEQS];
    float *logits;
    rose_batch b;
} whole;

/* n_seqs sequences of n_rows rows each, at positions 0 and up, in pages of their own. */
static whole *make_whole(uint32_t n_seqs, uint32_t n_rows, uint32_t n_outputs)
{
    whole *w = calloc(1, sizeof *w);
    const uint32_t each = (n_rows - 1) / ROSE_KV_PAGE_TOKENS + 1;
    assert_non_null(w);
    w->logits = calloc((size_t)MAX_OUT * MAX_VOCAB, sizeof *w->logits);
    assert_non_null(w->logits);
    for (uint32_t s = 0; s < n_seqs; s++) {
        w->seqs[s] =
            (rose_batch_seq){.first = s * n_rows, .n = n_rows, .table = {w->pages + s * FX_STRIDE}};
        for (uint32_t j = 0; j < each; j++)
            w->pages[s * FX_STRIDE + j] = s * each + j;
    }
    for (uint32_t i = 0; i < n_seqs * n_rows; i++)
        w->tokens[i] = rnd(MAX_VOCAB);
    for (uint32_t i = 0; i < n_outputs; i++)
        g_outs[i].row = n_outputs == n_seqs * n_rows ? i : rnd(n_seqs * n_rows);
    w->b = (rose_batch){.n_seqs = n_seqs,
                        .n_tokens = n_seqs * n_rows,
                        .tokens = w->tokens,
                        .seqs = w->seqs,
                        .n_outputs = n_outputs,
                        .outs = g_outs,
                        .logits = w->logits};
    return w;
}

static void run_whole(fx_backend *f, whole *w)
{
    rose_err err = {""};
    rose_step_result r;
    uint64_t ticket;
    for (uint32_t i = 0; i < w->b.n_outputs; i++)
        memset(g_wish[i].report, 0xEE, sizeof g_wish[i].report);
    if (f->ops->step(f->cpu, &w->b, &ticket, &err) != ROSE_OK) fail_msg("step: %s", err.msg);
    if (f->ops->collect(f->cpu, ticket, &r, &err) != ROSE_OK) fail_msg("collect: %s", err.msg);
    assert_int_equal(r.n_outputs, w->b.n_outputs);
    memcpy(w->ids, r.ids, r.n_outputs * sizeof *w->ids);
}

/* Every output against the CPU sampler on the logits that the step gave with it. */
static void check_whole(const whole *w)
{
    static float y[MAX_VOCAB];
    uint32_t n_other = 0;
    for (uint32_t i = 0; i < w->b.n_outputs; i++) {
        const wish *x = &g_wish[i];
        const float *logits = w->logits + (size_t)i * MAX_VOCAB;
        uint32_t want;
        if (x->rules != NULL && x->set.u.score_id != ROSE_TOKEN_NONE) {
            want = x->set.u.score_id;
        } else {
            memcpy(y, logits, sizeof y);
            if (changes(x)) apply_naively(&x->set, logits, MAX_VOCAB, y);
            want = rose_sampler_pick(&g_kernels, y, MAX_VOCAB, &x->sampling, g_outs[i].pos,
                                     scratch(MAX_VOCAB));
        }
        if (w->ids[i] != want && (want == ROSE_TOKEN_NONE || x->sampling.temperature <= 0))
            fail_msg("output %u: id %u, not %u", i, w->ids[i], want);
        n_other += w->ids[i] != want;
        if (x->rules != NULL && x->set.u.report != NULL)
            check_wish_report(x, logits, MAX_VOCAB, w->ids[i]);
    }
    assert_true(n_other <= 2 + w->b.n_outputs / 50);
}

static void test_steps(void **state)
{
    static const uint32_t shapes[][3] = {{1, 200, 200}, {1, 150, 400}, {5, 60, 300}, {80, 1, 80},
                                         {3, 1, 3},     {80, 5, 0},    {2, 40, 1}};
    rose_model *m = fx_model(&g_shape, 11);
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 0);
    rose_cuda *c = fx_cuda(&f);
    (void)state;
    for (int i = 0; i < 7; i++)
        for (int round = 0; round < 3; round++) {
            static uint32_t ids[MAX_OUT];
            static wish before[MAX_OUT];
            whole *w = make_whole(shapes[i][0], shapes[i][1], shapes[i][2]);
            random_wishes(w->b.n_outputs, MAX_VOCAB);
            run_whole(&f, w);
            check_whole(w);
            memcpy(ids, w->ids, sizeof ids);
            memcpy(before, g_wish, sizeof before);
            for (int way = 0; way < 3; way++) { /* again, eager, eager in small parts */
                c->use_graphs = way == 0;
                c->ranks[0].scratch.rules_bytes =
                    way == 2 ? 1 << 12 : rose_cuda_rules_bytes(MAX_VOCAB);
                run_whole(&f, w);
                assert_memory_equal(ids, w->ids, sizeof ids);
                assert_memory_equal(before, g_wish, sizeof before);
            }
            c->use_graphs = true;
            c->ranks[0].scratch.rules_bytes = rose_cuda_rules_bytes(MAX_VOCAB);
            free(w->logits);
            free(w);
        }
    fx_close(&f);
    fx_model_free(m);
}

static void test_refused_steps(void **state)
{
    rose_model *m = fx_model(&g_shape, 11);
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 0);
    const uint32_t bad[] = {MAX_VOCAB};
    rose_output_rules u[6];
    rose_err err = {""};
    uint64_t ticket;
    whole *w = make_whole(1, 1, 1);
    (void)state;
    for (int i = 0; i < 6; i++)
        u[i] = (rose_output_rules){.score_id = ROSE_TOKEN_NONE, .repetition = 1};
    u[0].score_id = MAX_VOCAB;
    u[1].n_top = ROSE_MAX_TOP_LOGPROBS + 1;
    u[2].allowed = u[3].banned = u[4].bias_ids = u[5].seen_ids = bad;
    u[2].n_allowed = u[3].n_banned = u[4].n_bias = u[5].n_seen = 1;
    for (int i = 0; i < 6; i++) {
        g_outs[0].rules = &u[i];
        assert_int_equal(f.ops->step(f.cpu, &w->b, &ticket, &err), ROSE_E_INVAL);
        assert_non_null(strstr(err.msg, "rules"));
    }
    w->b.n_outputs = FX_MAX_ROWS + 1;
    assert_int_equal(f.ops->step(f.cpu, &w->b, &ticket, &err), ROSE_E_INVAL);
    free(w->logits);
    free(w);
    fx_close(&f);
    fx_model_free(m);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_logits),    cmocka_unit_test(test_small_staging),
        cmocka_unit_test(test_long_lists),    cmocka_unit_test(test_steps),
        cmocka_unit_test(test_refused_steps),
    };
    g_state = fx_seed();
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    rose_cpu_kernels_init(&g_kernels, rose_isa_probe());
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
