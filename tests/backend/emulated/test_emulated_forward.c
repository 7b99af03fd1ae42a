/* tests/backend/emulated/test_emulated_forward.c - the whole CUDA backend without a GPU: its host
 * files over runtime.cc, its kernels on machine.h. A small model of each family gives logits close
 * to those of the CPU backend, and the same bits eagerly, in graphs, in mixed steps
 * and without fusions. Under rules, the ids are those of the CPU sampler. */
#define FX_MAX_SEQS 33
#define FX_MAX_ROWS 48
#include "backend/cuda_fixture.h"
#include "backend/golden_checks.h"
#include "backend/rules_reference.h"

#include "backend/cpu/sampler.h"

/* These have all kinds of norms, windows, soft caps and layers without RoPE, and always run. If
 * ROSE_TEST_LONG is set, all run but those that are to the GPU like another one: their RoPE tables
 * differ, which the host makes. If a test is named, all may run. */
static const char *const g_short[] = {"families/gemma3-caps", "families/smollm3"};
static const char *const g_alike[] = {"families/llama", "families/llama-linear", "families/gemma3",
                                      "families/llama-dynamic", "families/phi3-short"};
enum { N_PROMPT = 42, N_TOKENS = 45 };

/* The texts are short, so a window is too: pages before it are dropped and hold NaN. */
static rose_model *family_model(const char *name, golden *g)
{
    golden_open(g, name);
    fx_max_model_len = g->served_context;
    rose_model *m = golden_model(g);
    for (uint32_t i = 0; i < m->arch.n_kinds; i++)
        if (m->arch.kinds[i].mixer.window != 0) m->arch.kinds[i].mixer.window = 13;
    return m;
}

/* A prompt beside decode steps of two others: singles and tiles in the same steps. */
static fx_seq run_mixed(const rose_model *m, fx_backend *f)
{
    fx_seq s = fx_seq_make(m, fx_seed() + 99, N_TOKENS), others[2];
    for (uint32_t i = 0; i < 2; i++) {
        others[i] = fx_seq_make(m, fx_seed() + i, 12 + i);
        fx_step(f, &(fx_part){&others[i], 5 + i, FX_NONE}, 1);
    }
    while (s.done < N_TOKENS) {
        const uint32_t rows = s.done < N_PROMPT ? (N_PROMPT - s.done + 1) / 2 : 1;
        fx_part parts[] = {{&others[0], 1, FX_NONE}, {&s, rows, FX_ALL}, {&others[1], 1, FX_NONE}};
        const bool left = others[0].done < others[0].n_tokens;
        fx_step(f, left ? parts : parts + 1, left ? 3 : 1);
    }
    for (uint32_t i = 0; i < 2; i++) {
        fx_seq_drop(f, &others[i]);
        fx_seq_free(&others[i]);
    }
    fx_seq_drop(f, &s);
    return s;
}

/* Decode steps of 27 sequences, in a graph of 32. */
static fx_seq run_crowd(const rose_model *m, fx_backend *f)
{
    enum { N = 27 };
    fx_seq s[N];
    fx_part parts[N];
    for (uint32_t i = 0; i < N; i++) {
        s[i] = fx_seq_make(m, fx_seed() + (i + 1 < N ? i : 99), i + 1 < N ? 3 : N_TOKENS);
        parts[i] = (fx_part){&s[i], 1, FX_ALL};
    }
    fx_run(f, &s[N - 1], N_PROMPT, 30);
    for (uint32_t i = 0; i < N_TOKENS - N_PROMPT; i++)
        fx_step(f, parts, N);
    for (uint32_t i = 0; i < N; i++)
        fx_seq_drop(f, &s[i]);
    for (uint32_t i = 0; i + 1 < N; i++)
        fx_seq_free(&s[i]);
    return s[N - 1];
}

static void compare(const rose_model *m, const fx_seq *want, fx_seq got, const char *family,
                    const char *way)
{
    char what[100];
    snprintf(what, sizeof what, "%s, %s", family, way);
    fx_same(m, want, &got, what);
    fx_seq_free(&got);
}

static void no_fusion(rose_backend_opts *o)
{
    o->cuda.fused_ops = o->cuda.fused_mlp = o->cuda.fused_sampler = false;
    o->cuda.fused_kv_append = o->cuda.paged_attn = false;
}

static void check_ways(const rose_model *m, const fx_seq *want, const char *family)
{
    for (int fused = 1; fused >= 0; fused--) {
        fx_change = fused ? NULL : no_fusion;
        fx_backend f = fx_open(m, ROSE_COMPUTE_BF16, NULL, 0, 1);
        fx_change = NULL;
        if (fused) compare(m, want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 7), family, "graphs");
        compare(m, want, run_mixed(m, &f), family, fused ? "mixed" : "mixed, no fusion");
        compare(m, want, run_crowd(m, &f), family, fused ? "crowd" : "crowd, no fusion");
        fx_close(&f);
    }
}

static void test_family(void **state)
{
    const char *name = *state;
    golden g;
    rose_model *m = family_model(name, &g);
    static const rose_compute types[] = {ROSE_COMPUTE_F32, ROSE_COMPUTE_BF16};
    double e[2];
    fx_seq want[2];
    fx_device = "cpu";
    fx_backend f = fx_open(m, ROSE_COMPUTE_F32, "auto", 2, 1);
    fx_seq cpu = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 30);
    fx_close(&f);
    fx_device = "cuda";
    for (int t = 0; t < 2; t++) {
        fx_graphs = false;
        f = fx_open(m, types[t], NULL, 0, 1);
        fx_graphs = true;
        want[t] = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 30);
        e[t] = fx_distance(m, &cpu, &want[t]);
        fx_close(&f);
    }
    print_message("%s: relative error %.1e in fp32, %.1e in bf16\n", name, e[0], e[1]);
    if (!(e[0] < 1e-4 && e[1] < 8e-2)) fail_msg("%s: the logits are not those of the CPU", name);
    check_ways(m, &want[1], name);
    fx_seq_free(&cpu);
    for (int t = 0; t < 2; t++)
        fx_seq_free(&want[t]);
    fx_max_model_len = 0;
    rose_model_close(m);
    golden_close(&g);
}

/* A few rows of one sequence, in some entries, after a context of more than one split. This GPU
 * has four SMs, so that up to four rows are single items. */
static void test_few_rows(void **state)
{
    (void)state;
    static const fx_shape shape = {"few rows",         2,        32,    1,     32,    40,   560,
                                   ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false};
    rose_model *m = fx_model(&shape, fx_seed());
    fx_device = "cuda";
    for (uint32_t i = 0; i < 2; i++) {
        m->arch.kinds[0].mixer.window = i * 100;
        fx_backend f = fx_open(m, ROSE_COMPUTE_BF16, NULL, 0, 1);
        fx_seq want = fx_run_alone(m, &f, 500, 560, 48), got = fx_seq_make(m, fx_seed() + 99, 560);
        fx_run_split(m, &f, &got, 500, i == 0 ? 4 : 16, fx_seed() + i);
        compare(m, &want, got, shape.name, "parts");
        fx_seq_free(&want);
        fx_close(&f);
    }
    fx_model_free(m);
}

/* A step whose sequences have guesses has the smallest graph for its rows, if each row is an
 * output. */
static void test_guess_graphs(void **state)
{
    static const fx_shape shape = {"guesses",          2,        32,    1,     32,    40,   560,
                                   ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false};
    static const uint32_t tokens[5], tables[2][1] = {{1}, {2}};
    rose_model *m = fx_model(&shape, fx_seed());
    (void)state;
    for (int without = 0; without < 2; without++) {
        fx_without = without ? "guesses" : NULL;
        fx_backend f = fx_open(m, ROSE_COMPUTE_BF16, NULL, 0, 1);
        const rose_cuda_rank *rank = &fx_cuda(&f)->ranks[0];
        rose_batch_seq seqs[2] = {{.first = 0, .n = 3}, {.first = 3, .n = 2}};
        rose_batch_out outs[5] = {{.row = 0}, {.row = 1}, {.row = 2}, {.row = 3}, {.row = 4}};
        for (uint32_t k = 0; k < ROSE_MAX_POOLS; k++)
            seqs[0].table[k] = tables[0], seqs[1].table[k] = tables[1];
        rose_batch b = {.tokens = tokens, .n_tokens = 5, .seqs = seqs, .n_seqs = 2};
        b.outs = outs;
        b.n_outputs = 5;
        const rose_cuda_graph *g = rose_cuda_graph_for(rank, &b);
        assert_int_equal(g != NULL, !without);
        assert_int_equal(rank->n_guesses > 0, !without);
        if (g != NULL) {
            assert_true(g->shape.shared && g->n >= 5);
            assert_true(g == rank->guesses || g[-1].n < 5);
        }
        outs[4].row = 3; /* a row twice, and one without an output */
        assert_null(rose_cuda_graph_for(rank, &b));
        b.n_outputs = 4;
        assert_null(rose_cuda_graph_for(rank, &b));
        seqs[0].n = seqs[1].n = seqs[1].first = 1;
        b.n_tokens = b.n_outputs = 2;
        g = rose_cuda_graph_for(rank, &b); /* no guesses */
        assert_true(g != NULL && !g->shape.shared);
        fx_close(&f);
    }
    fx_without = NULL;
    fx_model_free(m);
}

/* ---- states ---- */

/* Adds the states of a prompt of N_PROMPT tokens in chunks, beside decode steps of another sequence
 * and beside a second sum. */
static void run_states(const rose_model *m, fx_backend *f, uint32_t chunk, float *sum, float *last)
{
    fx_seq s = fx_seq_make(m, fx_seed() + 99, N_PROMPT), other = fx_seq_make(m, fx_seed(), 12);
    float *beside = calloc(m->arch.d_model, sizeof *beside);
    assert_non_null(beside);
    memset(sum, 0, m->arch.d_model * sizeof *sum);
    memset(last, 0, m->arch.d_model * sizeof *last);
    s.sum = sum;
    while (s.done < N_PROMPT) {
        const uint32_t left = N_PROMPT - s.done, rows = left < chunk ? left : chunk;
        fx_part parts[] = {{&other, 1, FX_ALL}, {&s, rows, FX_ALL}};
        const bool both = other.done < other.n_tokens && chunk < left;
        other.sum = other.done % 2 == 1 ? beside : NULL;
        fx_step(f, both ? parts : parts + 1, both ? 2 : 1);
    }
    fx_seq_drop(f, &s);
    s.sum = NULL;
    fx_run(f, &s, N_PROMPT - 1, chunk);
    s.sum = last;
    fx_step(f, &(fx_part){&s, 1, FX_LAST}, 1);
    fx_seq_drop(f, &s);
    fx_seq_drop(f, &other);
    fx_seq_free(&s);
    fx_seq_free(&other);
    free(beside);
}

static double relative_error(const float *want, const float *got, uint32_t n)
{
    double diff = 0, size = 0;
    for (uint32_t i = 0; i < n; i++) {
        diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    return sqrt(diff / size);
}

/* The sums are close to those of the CPU, and have the same bits in chunks and beside others. */
static void test_states(void **state)
{
    static const rose_compute types[] = {ROSE_COMPUTE_F32, ROSE_COMPUTE_BF16, ROSE_COMPUTE_F16};
    static const double limits[] = {1e-4, 8e-2, 2e-2};
    golden g;
    rose_model *m = family_model("families/qwen3", &g);
    const uint32_t d = m->arch.d_model;
    float *v = calloc((size_t)d * 6, sizeof *v);
    (void)state;
    assert_non_null(v);
    fx_device = "cpu";
    fx_backend f = fx_open(m, ROSE_COMPUTE_F32, "auto", 2, 1);
    run_states(m, &f, N_PROMPT, v, v + d);
    fx_close(&f);
    fx_device = "cuda";
    for (int t = 0; t < 3; t++) {
        f = fx_open(m, types[t], NULL, 0, 1);
        run_states(m, &f, N_PROMPT, v + 2 * d, v + 3 * d);
        const double e = relative_error(v, v + 2 * d, d),
                     e_last = relative_error(v + d, v + 3 * d, d);
        print_message("states, type %d: relative error %.1e of a sum, %.1e of one\n", t, e, e_last);
        assert_true(e < limits[t] && e_last < limits[t]);
        for (uint32_t chunk = 5; chunk < 30; chunk += 8) {
            run_states(m, &f, chunk, v + 4 * d, v + 5 * d);
            assert_memory_equal(v + 2 * d, v + 4 * d, 2 * d * sizeof *v);
        }
        fx_close(&f);
    }
    free(v);
    rose_model_close(m);
    golden_close(&g);
}

/* ---- rules ---- */

enum { N_RULED = 9 };

typedef struct ruled {
    rule_set sets[N_RULED];
    rose_logprob reports[N_RULED][6];
    const rose_output_rules *rules[N_RULED];
    uint32_t ids[N_RULED];
} ruled;

static void random_ruled(ruled *r, uint32_t vocab)
{
    for (uint32_t i = 0; i < N_RULED; i++) {
        random_rules(&r->sets[i], vocab);
        if (rnd(2) == 0) {
            r->sets[i].u.report = r->reports[i];
            r->sets[i].u.n_top = 5;
        }
        r->rules[i] = i % 4 == 3 ? NULL : &r->sets[i].u;
    }
}

/* A decode step of first tokens. */
static void run_ruled(fx_backend *f, ruled *r, float *logits)
{
    uint32_t tokens[N_RULED], pages[N_RULED];
    rose_batch_seq seqs[N_RULED];
    rose_batch_out outs[N_RULED]; /* greedy */
    rose_err err = {""};
    rose_step_result result;
    uint64_t ticket;
    for (uint32_t i = 0; i < N_RULED; i++) {
        tokens[i] = 5 * i;
        pages[i] = i;
        seqs[i] = (rose_batch_seq){.first = i, .n = 1, .table = {&pages[i]}};
        outs[i] = (rose_batch_out){.row = i, .pos = 1, .rules = r->rules[i]};
    }
    const rose_batch b = {.n_seqs = N_RULED,
                          .n_tokens = N_RULED,
                          .tokens = tokens,
                          .n_outputs = N_RULED,
                          .seqs = seqs,
                          .outs = outs,
                          .logits = logits};
    if (f->ops->step(f->cpu, &b, &ticket, &err) != ROSE_OK) fail_msg("step: %s", err.msg);
    if (f->ops->collect(f->cpu, ticket, &result, &err) != ROSE_OK) fail_msg("collect: %s", err.msg);
    memcpy(r->ids, result.ids, sizeof r->ids);
}

static void check_ruled(const ruled *r, const float *logits, uint32_t vocab)
{
    static float y[MAX_VOCAB];
    rose_cpu_kernels k;
    void *scratch = aligned_alloc(64, (rose_sampler_scratch(MAX_VOCAB) + 63) / 64 * 64);
    const rose_sampling greedy = {.temperature = 0};
    rose_cpu_kernels_init(&k, ROSE_ISA_SCALAR);
    for (uint32_t i = 0; i < N_RULED; i++) {
        const float *x = logits + (size_t)i * vocab;
        memcpy(y, x, vocab * sizeof *y);
        if (r->rules[i] != NULL) apply_naively(&r->sets[i], x, vocab, y);
        assert_int_equal(r->ids[i], rose_sampler_pick(&k, y, vocab, &greedy, 1, scratch));
        if (r->rules[i] != NULL && r->rules[i]->report != NULL && r->ids[i] < vocab)
            check_report(x, vocab, r->reports[i], 5);
    }
    free(scratch);
}

/* Masks and all other rules: in a graph, eagerly, and with room for one output at a time. */
static void test_rules(void **state)
{
    static const uint32_t vocabs[] = {96, 1027};
    static ruled r;
    float *logits = calloc((size_t)N_RULED * MAX_VOCAB, sizeof *logits);
    (void)state;
    assert_non_null(logits);
    for (int v = 0; v < 2; v++) {
        const fx_shape shape = {
            "rules",  1,     64,    2,     96,   vocabs[v], 64, ROSE_ACT_GELU_TANH,
            ROSE_F32, false, false, false, false};
        rose_model *m = fx_model(&shape, fx_seed());
        fx_backend f = fx_open(m, ROSE_COMPUTE_F32, NULL, 0, 0);
        rose_cuda *c = fx_cuda(&f);
        for (int round = 0; round < 8; round++) {
            random_ruled(&r, vocabs[v]);
            for (int way = 0; way < 3; way++) {
                c->use_graphs = way == 0;
                c->ranks[0].scratch.rules_bytes =
                    rose_cuda_rules_bytes(vocabs[v]) >> (way == 2 ? 10 : 0);
                run_ruled(&f, &r, logits);
                check_ruled(&r, logits, vocabs[v]);
            }
        }
        fx_close(&f);
        fx_model_free(m);
    }
    free(logits);
}

/* ---- the tuner ---- */

static char g_tune_dir[] = "/tmp/rose-emulated-XXXXXX";

static void tune(rose_backend_opts *o)
{
    o->cuda.tune = true;
    o->cuda.tune_dir = g_tune_dir;
}

static void read_tuned(rose_backend_opts *o)
{
    o->cuda.tune_dir = g_tune_dir;
}

static uint32_t n_tuned(const fx_backend *f)
{
    return ((const rose_cuda *)(const void *)f->cpu)->tuned.n_lines;
}

/* Whatever the tuner chooses, the bits are the same; the next start reads the choice. */
static void test_tuned(void **state)
{
    golden g;
    char path[128];
    (void)state;
    rose_model *m = family_model("families/qwen3", &g);
    assert_non_null(mkdtemp(g_tune_dir));
    snprintf(path, sizeof path, "%s/tune-emulated.txt", g_tune_dir);
    fx_backend f = fx_open(m, ROSE_COMPUTE_BF16, NULL, 0, 1);
    fx_seq want = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 30);
    assert_int_equal(n_tuned(&f), 0);
    fx_close(&f);
    fx_change = tune;
    f = fx_open(m, ROSE_COMPUTE_BF16, NULL, 0, 1);
    const uint32_t n = n_tuned(&f);
    assert_true(n >= 5); /* at least a bucket of each matrix */
    compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 30), "qwen3", "tuned");
    fx_close(&f);
    fx_change = read_tuned;
    f = fx_open(m, ROSE_COMPUTE_BF16, NULL, 0, 1);
    fx_change = NULL;
    assert_int_equal(n_tuned(&f), n);
    compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 30), "qwen3", "tuned before");
    fx_close(&f);
    fx_seq_free(&want);
    rose_model_close(m);
    golden_close(&g);
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(g_tune_dir), 0);
}

static bool is_in(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0) return true;
    return false;
}

/* An argument runs the tests whose names match it, of all families: "*qwen3". */
int main(int argc, char **argv)
{
    struct CMUnitTest tests[GOLDEN_FAMILIES + 5];
    const golden_list *all = golden_families();
    size_t n = 0;
    memset(tests, 0, sizeof tests);
    for (uint32_t i = 0; i < all->n; i++) {
        const char *const name = all->name[i];
        const bool runs =
            argc > 1 || (getenv("ROSE_TEST_LONG") != NULL
                             ? !is_in(name, g_alike, sizeof g_alike / sizeof *g_alike)
                             : is_in(name, g_short, sizeof g_short / sizeof *g_short));
        if (runs)
            tests[n++] = (struct CMUnitTest){
                .name = name, .test_func = test_family, .initial_state = (void *)(uintptr_t)name};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_tuned);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_rules);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_states);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_few_rows);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_guess_graphs);
    g_state = fx_seed();
    if (!fx_use_gpu()) return 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return _cmocka_run_group_tests("forward", tests, n, NULL, NULL);
}
