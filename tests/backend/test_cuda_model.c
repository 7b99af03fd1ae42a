/* tests/backend/test_cuda_model.c - the CUDA backend end to end on small random models: close to
 * the CPU's fp32 path in all three types, and bit for bit the same in every way of running a
 * sequence. */
#define FX_MAX_SEQS 256
#define FX_MAX_ROWS 1200
#include "backend/cuda_fixture.h"

static const fx_shape g_shapes[] = {
    {"GPT-2's widths", 2, 768, 12, 3072, 1003, 256, ROSE_ACT_GELU_TANH, ROSE_F32, false, false,
     false, false},
    {"heads of 24", 3, 96, 4, 384, 611, 256, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
     false},
    {"untied, transposed, by layer, f16", 3, 80, 5, 200, 1000, 256, ROSE_ACT_GELU_ERF, ROSE_F16,
     true, true, true, false},
    {"heads of 128", 2, 256, 2, 1024, 300, 256, ROSE_ACT_SILU, ROSE_BF16, true, false, false,
     false},
    {"wide", 1, 1600, 25, 6400, 77, 256, ROSE_ACT_RELU, ROSE_F32, false, false, false, true},
    {"heads of 96", 2, 384, 4, 1536, 505, 256, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
     true},
};
enum { N_SHAPES = sizeof g_shapes / sizeof g_shapes[0], N_PROMPT = 141, N_TOKENS = 165 };
static const rose_compute g_types[] = {ROSE_COMPUTE_F16, ROSE_COMPUTE_BF16, ROSE_COMPUTE_F32};
enum { N_TYPES = 3 };

/* The relative L2 error of all logits. */
static double distance(const rose_model *m, const fx_seq *want, const fx_seq *got)
{
    double diff = 0, size = 0;
    for (size_t i = 0; i < (size_t)want->n_tokens * m->arch.vocab_size; i++) {
        double e = (double)got->logits[i] - (double)want->logits[i];
        diff += e * e;
        size += (double)want->logits[i] * (double)want->logits[i];
    }
    return sqrt(diff / size);
}

static void test_against_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        rose_model *m = fx_model(&g_shapes[i], fx_seed() + (uint64_t)i);
        fx_device = "cpu";
        fx_backend cpu = fx_open(m, ROSE_COMPUTE_F32, "auto", 2, 1);
        fx_seq want = fx_run_alone(m, &cpu, N_PROMPT, N_TOKENS, 50);
        fx_close(&cpu);
        fx_device = "cuda";
        double e[N_TYPES], naive[N_TYPES];
        for (int t = 0; t < N_TYPES; t++) {
            fx_backend f = fx_open(m, g_types[t], NULL, 0, 1);
            fx_seq got = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 50);
            e[t] = distance(m, &want, &got);
            fx_seq_free(&got);
            fx_cuda(&f)->naive = true;
            got = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 50);
            naive[t] = distance(m, &want, &got);
            fx_seq_free(&got);
            fx_close(&f);
        }
        assert_true(naive[0] < 5e-3 && naive[1] < 4e-2);
        assert_true(naive[2] == e[2]); /* in fp32 it is the same kernel */
        print_message("%s: relative error %.1e in fp16, %.1e in bf16, %.1e in fp32\n",
                      g_shapes[i].name, e[0], e[1], e[2]);
        assert_true(e[0] < 5e-3);
        assert_true(e[1] < 4e-2);
        assert_true(e[2] < 1e-5);
        fx_seq_free(&want);
        fx_model_free(m);
    }
}

/* ---- the same bits ---- */

/* 199 others of 1 .. 100 tokens, with random chunks, beside the sequence. */
static fx_seq run_among(const rose_model *m, fx_backend *f, uint64_t seed)
{
    enum { N_OTHERS = 199 };
    fx_random r = {.seed = seed};
    fx_seq s = fx_seq_make(m, fx_seed() + 99, N_TOKENS);
    fx_seq *others = calloc(N_OTHERS, sizeof *others);
    assert_non_null(others);
    for (uint32_t i = 0; i < N_OTHERS; i++)
        others[i] = fx_seq_make(m, seed + 1000 + i, 1 + fx_below(&r, 100));
    while (s.done < N_TOKENS) {
        static fx_part parts[N_OTHERS + 1];
        uint32_t n = 0, place = fx_below(&r, 150), room = 800;
        for (uint32_t i = 0; i < N_OTHERS; i++) {
            fx_seq *o = &others[i];
            if (i == place) {
                uint32_t rows = s.done < N_PROMPT ? 1 + fx_below(&r, N_PROMPT - s.done) : 1;
                parts[n++] = (fx_part){&s, rows, true};
            }
            if (o->done == o->n_tokens) fx_seq_drop(f, o);
            uint32_t rows = fx_below(&r, 4) == 0 ? 1 + fx_below(&r, o->n_tokens - o->done) : 1;
            if (rows > room) continue;
            room -= rows;
            parts[n++] = (fx_part){o, rows, false};
        }
        fx_step(f, parts, n);
    }
    for (uint32_t i = 0; i < N_OTHERS; i++) {
        fx_seq_drop(f, &others[i]);
        fx_seq_free(&others[i]);
    }
    free(others);
    fx_seq_drop(f, &s);
    return s;
}

static void compare(const rose_model *m, const fx_seq *want, fx_seq got, const char *what)
{
    fx_same(m, want, &got, what);
    fx_seq_free(&got);
}

static void check_ways(const rose_model *m, rose_compute dtype, const char *name)
{
    static const uint32_t chunks[] = {1, 3, 16, 17, 64, 100};
    char what[160];
    fx_backend f = fx_open(m, dtype, NULL, 0, 1);
    fx_seq want = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT);
    for (int i = 0; i < 6; i++) {
        snprintf(what, sizeof what, "%s, %s, chunks of %u", name, rose_compute_name(dtype),
                 chunks[i]);
        compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, chunks[i]), what);
    }
    fx_cuda(&f)->use_graphs = false;
    compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 33), "without graphs");
    for (uint32_t i = 1; i <= rose_gemm_n_kernels; i++) {
        fx_cuda(&f)->forced = fx_kernel(i);
        snprintf(what, sizeof what, "%s, %s, %s for every GEMM, no graphs", name,
                 rose_compute_name(dtype), fx_kernel_name(fx_kernel(i)));
        compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 140), what);
    }
    fx_cuda(&f)->forced = NULL;
    fx_cuda(&f)->use_graphs = true;
    for (uint64_t i = 0; i < 2; i++) {
        snprintf(what, sizeof what, "%s, %s, among 199 others", name, rose_compute_name(dtype));
        compare(m, &want, run_among(m, &f, fx_seed() + i), what);
    }
    fx_seq_free(&want);
    fx_close(&f);
}

static void test_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < N_SHAPES; i++) {
        rose_model *m = fx_model(&g_shapes[i], fx_seed() + (uint64_t)i);
        for (int t = 0; t < N_TYPES; t++)
            check_ways(m, g_types[t], g_shapes[i].name);
        fx_model_free(m);
    }
}

static void test_repeats(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shapes[0], fx_seed());
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
    fx_seq want = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT);
    for (uint64_t i = 0; i < 20; i++) {
        compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT), "20 repeats alone");
        compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 7), "20 repeats in chunks");
        fx_cuda(&f)->use_graphs = false;
        compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT),
                "20 repeats without graphs");
        fx_cuda(&f)->use_graphs = true;
        compare(m, &want, run_among(m, &f, fx_seed() + i), "20 repeats among others");
    }
    fx_seq_free(&want);
    fx_close(&f);
    fx_model_free(m);
}

/* The switches change no bit: graphs captured without dependent launch, and none at all. */
static void test_switches(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shapes[0], fx_seed());
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
    fx_seq want = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT);
    fx_close(&f);
    for (int i = 0; i < 3; i++) {
        fx_pdl = i == 2;
        fx_graphs = i == 0;
        f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
        assert_int_equal(fx_cuda(&f)->use_graphs, fx_graphs);
        compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 33), "pdl and graphs switched");
        compare(m, &want, run_among(m, &f, fx_seed()), "pdl and graphs switched");
        fx_close(&f);
    }
    fx_pdl = fx_graphs = true;
    fx_seq_free(&want);
    fx_model_free(m);
}

/* Nor does the kernel of the GEMMs, among others and in graphs. */
static void test_kernels(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shapes[0], fx_seed());
    for (int t = 0; t < 2; t++) {
        fx_backend f = fx_open(m, g_types[t], NULL, 0, 1);
        fx_cuda(&f)->use_graphs = false;
        fx_seq want = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT);
        for (uint32_t i = 0; i <= rose_gemm_n_kernels; i++) {
            const char *name = fx_kernel_name(fx_kernel(i));
            fx_cuda(&f)->forced = fx_kernel(i);
            compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 33), name);
            compare(m, &want, run_among(m, &f, fx_seed()), name);
        }
        fx_close(&f);
        fx_seq_free(&want);
    }
    fx_model_free(m);
}

/* Decode steps of n sequences after prompts of unequal length. */
static void run_crowd(const rose_model *m, fx_seq *s, uint32_t n)
{
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
    fx_part parts[256];
    for (uint32_t j = 0; j < n; j++) {
        s[j] = fx_seq_make(m, fx_seed() + j, 8 + j % 40);
        fx_step(&f, &(fx_part){&s[j], s[j].n_tokens - 4, false}, 1);
        parts[j] = (fx_part){&s[j], 1, true};
    }
    for (int step = 0; step < 4; step++)
        fx_step(&f, parts, n);
    fx_close(&f);
}

/* A way to run with something left out. fetch matters only if a step follows another
 * (test_cuda_ahead.c). */
typedef struct left_out {
    const char *name, *without;
    void (*change)(rose_backend_opts *o);
} left_out;

static void no_ops(rose_backend_opts *o)
{
    o->cuda.fused_ops = false;
}
static void no_mlp(rose_backend_opts *o)
{
    o->cuda.fused_mlp = false;
}
static void no_sampler(rose_backend_opts *o)
{
    o->cuda.fused_sampler = false;
}
static void no_append(rose_backend_opts *o)
{
    o->cuda.fused_kv_append = false;
}
static void no_paged(rose_backend_opts *o)
{
    o->cuda.paged_attn = false;
}
static void no_fusion(rose_backend_opts *o)
{
    no_ops(o);
    no_mlp(o);
    no_sampler(o);
    no_append(o);
}

static const left_out g_ways[] = {{"all left out", FX_WITHOUT_ALL, no_fusion},
                                  {"no fusion", NULL, no_fusion},
                                  {"wide", "wide", NULL},
                                  {"carveout", "carveout", NULL},
                                  {"prompts", "prompts", NULL},
                                  {"fused-ops", NULL, no_ops},
                                  {"fused-mlp", NULL, no_mlp},
                                  {"fused-sampler", NULL, no_sampler},
                                  {"fused-kv-append", NULL, no_append},
                                  {"paged-attn", NULL, no_paged}};
enum { N_WAYS = sizeof g_ways / sizeof *g_ways };

static void take_way(const left_out *w)
{
    fx_without = w != NULL ? w->without : NULL;
    fx_change = w != NULL ? w->change : NULL;
}

static void compare_crowds(const rose_model *m, const left_out *ways, int n_ways)
{
    static const uint32_t sizes[] = {2, 8, 11, 16, 23, 27, 32, 57, 100, 128, 200, 256};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        fx_seq s[2][256];
        take_way(NULL);
        run_crowd(m, s[0], sizes[i]);
        for (int at = 0; at < n_ways; at++) {
            take_way(&ways[at]);
            run_crowd(m, s[1], sizes[i]);
            for (uint32_t j = 0; j < sizes[i]; j++) {
                fx_same(m, &s[0][j], &s[1][j], ways[at].name);
                fx_seq_free(&s[1][j]);
            }
        }
        for (uint32_t j = 0; j < sizes[i]; j++)
            fx_seq_free(&s[0][j]);
    }
    take_way(NULL);
}

/* Ids of a decode step whose logits take several blocks, by a graph and by an eager step that
 * copies all logits. */
static void check_blocks(const rose_model *m)
{
    enum { N = 150 };
    fx_seq s[N];
    fx_part parts[N];
    uint32_t tokens[N], pages[N];
    rose_batch_seq seqs[N];
    rose_batch_out outs[N]; /* greedy */
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 0);
    const rose_batch b = {
        .n_seqs = N, .n_tokens = N, .n_outputs = N, .tokens = tokens, .seqs = seqs, .outs = outs};
    rose_err err = {""};
    rose_step_result result;
    uint64_t ticket;
    assert_true(fx_cuda(&f)->ranks[0].scratch.out_block < N);
    for (uint32_t i = 0; i < N; i++) {
        s[i] = fx_seq_make(m, fx_seed() + i, 1);
        parts[i] = (fx_part){&s[i], 1, FX_ALL};
        tokens[i] = s[i].tokens[0];
        pages[i] = i;
        seqs[i] = (rose_batch_seq){.first = i, .n = 1, .table = {&pages[i]}};
        outs[i] = (rose_batch_out){.row = i, .pos = 1};
    }
    fx_step(&f, parts, N);
    assert_non_null(rose_cuda_graph_for(&fx_cuda(&f)->ranks[0], &b));
    assert_int_equal(f.ops->step(f.cpu, &b, &ticket, &err), ROSE_OK);
    assert_int_equal(f.ops->collect(f.cpu, ticket, &result, &err), ROSE_OK);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(result.ids[i], s[i].next_ids[0]);
        fx_seq_free(&s[i]);
    }
    fx_close(&f);
}

/* What is left out changes no bit: one sequence in every way, and decode steps of many.
 * ROSE_CUDA_WITHOUT=NAMES tries these alone. */
static void test_ways(void **state)
{
    (void)state;
    const char *without = fx_without;
    const left_out only = {"ROSE_CUDA_WITHOUT", without, NULL};
    const left_out *ways = without != NULL ? &only : g_ways;
    const int n = without != NULL ? 1 : N_WAYS;
    char what[300];
    for (int shape = 0; shape < 2; shape++) {
        rose_model *m = fx_model(&g_shapes[shape], fx_seed());
        take_way(NULL);
        fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
        fx_seq want = fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT);
        fx_close(&f);
        for (int i = 0; i < n; i++) {
            take_way(&ways[i]);
            snprintf(what, sizeof what, "%s, way %s", g_shapes[shape].name, ways[i].name);
            f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
            compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, N_PROMPT), what);
            compare(m, &want, fx_run_alone(m, &f, N_PROMPT, N_TOKENS, 33), what);
            compare(m, &want, run_among(m, &f, fx_seed()), what);
            fx_close(&f);
        }
        fx_seq_free(&want);
        compare_crowds(m, ways, n);
        fx_model_free(m);
    }
    fx_without = without;
}

/* The same with a vocabulary of more than 16,384 words, and with one that is so large that the
 * logits of a step need several blocks. */
static void test_many_words(void **state)
{
    (void)state;
    static const fx_shape many[] = {{"many words", 1, 96, 4, 384, 16411, 256, ROSE_ACT_GELU_TANH,
                                     ROSE_F32, false, false, false, false},
                                    {"blocks of logits", 1, 96, 4, 384, 262147, 64,
                                     ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false}};
    const char *without = fx_without;
    rose_model *m = fx_model(&many[0], fx_seed());
    compare_crowds(m, g_ways, 2);
    fx_model_free(m);
    m = fx_model(&many[1], fx_seed());
    check_blocks(m);
    fx_model_free(m);
    fx_without = without;
}

/* Decode steps of 1 .. 256 sequences: graphs of every size and their padding against eager steps.
 */
static void test_every_batch_size(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 7, 8, 9, 16, 17, 33, 63, 64, 65, 100, 129, 200, 256};
    rose_model *m = fx_model(&g_shapes[1], fx_seed());
    for (int i = 0; i < 16; i++) {
        fx_seq s[2][256];
        for (int eager = 0; eager < 2; eager++) {
            fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
            fx_part parts[256];
            fx_cuda(&f)->use_graphs = !eager;
            for (uint32_t j = 0; j < sizes[i]; j++) {
                s[eager][j] = fx_seq_make(m, fx_seed() + j, 6);
                parts[j] = (fx_part){&s[eager][j], 1, true};
            }
            for (int step = 0; step < 6; step++)
                fx_step(&f, parts, sizes[i]);
            fx_close(&f);
        }
        for (uint32_t j = 0; j < sizes[i]; j++) {
            fx_same(m, &s[0][j], &s[1][j], "graph and eager");
            fx_seq_free(&s[0][j]);
            fx_seq_free(&s[1][j]);
        }
    }
    fx_model_free(m);
}

/* A prompt in steps of one output each, the last row's, then four tokens: its KV is in them. */
static fx_seq run_prompt(const rose_model *m, fx_backend *f, uint32_t n, uint32_t chunk)
{
    fx_seq s = fx_seq_make(m, fx_seed() + n, n + 4);
    while (s.done < n)
        fx_step(f, &(fx_part){&s, n - s.done < chunk ? n - s.done : chunk, FX_LAST}, 1);
    /* what the ends of chunks gave is not compared */
    memset(s.logits, 0, (size_t)(n - 1) * m->arch.vocab_size * sizeof *s.logits);
    memset(s.next_ids, 0, (n - 1) * sizeof *s.next_ids);
    fx_run(f, &s, n + 4, 1);
    fx_seq_drop(f, &s);
    return s;
}

/* Steps of one prompt: graphs of every size and their padding, over rows left by other steps,
 * against eager steps. */
static void test_prompt_graphs(void **state)
{
    (void)state;
    static const fx_shape shapes[] = {
        {"GPT-2's widths", 2, 768, 12, 3072, 1003, 700, ROSE_ACT_GELU_TANH, ROSE_F32, false, false,
         false, false},
        {"heads of 24", 3, 96, 4, 384, 611, 700, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
         false},
    };
    static const uint32_t lengths[] = {2,   3,   15,  16,  17,  32,  33,  64,  65,  100, 128, 141,
                                       192, 200, 255, 256, 257, 320, 383, 448, 500, 512, 513, 600};
    static const uint32_t chunks[] = {700, 256, 100, 33};
    char what[160];
    for (int shape = 0; shape < 2; shape++) {
        rose_model *m = fx_model(&shapes[shape], fx_seed() + (uint64_t)shape);
        for (int t = 0; t < N_TYPES; t++) {
            fx_backend f = fx_open(m, g_types[t], NULL, 0, 1);
            rose_cuda *c = fx_cuda(&f);
            const bool out = (c->without & ROSE_CUDA_WITHOUT_PROMPTS) != 0;
            assert_int_equal(c->ranks[0].n_prompts, out ? 0 : ROSE_CUDA_MAX_PROMPTS);
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                c->use_graphs = false;
                fx_seq want = run_prompt(m, &f, lengths[i], 700);
                c->use_graphs = true;
                for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
                    fx_seq got = run_prompt(m, &f, lengths[i], chunks[k]);
                    snprintf(what, sizeof what, "%s, %s, a prompt of %u in chunks of %u",
                             shapes[shape].name, rose_compute_name(g_types[t]), lengths[i],
                             chunks[k]);
                    fx_same(m, &want, &got, what);
                    fx_seq_free(&got);
                }
                fx_seq_free(&want);
            }
            fx_close(&f);
        }
        fx_model_free(m);
    }
}

/* Several rows of one sequence, in one entry or in some, after contexts on both sides of a split:
 * the same bits as one row a step. Some are items of decode, some are tiles. */
static void test_few_rows(void **state)
{
    (void)state;
    static const fx_shape shapes[] = {
        {"heads of 64", 2, 256, 4, 512, 611, 700, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
         false},
        {"heads of 24", 3, 96, 4, 384, 611, 700, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
         false},
    };
    static const uint32_t starts[] = {480, 512, 560, 640};
    char what[160];
    for (int shape = 0; shape < 2; shape++) {
        rose_model *m = fx_model(&shapes[shape], fx_seed() + (uint64_t)shape);
        for (int t = 0; t < N_TYPES; t++) {
            m->arch.kinds[0].mixer.window = t == shape ? 100 : 0;
            fx_backend f = fx_open(m, g_types[t], NULL, 0, 1);
            fx_seq want = fx_run_alone(m, &f, 470, 700, 100);
            for (uint32_t i = 0; i < 12; i++) {
                fx_seq got = fx_seq_make(m, fx_seed() + 99, 700);
                fx_run_split(m, &f, &got, starts[i % 4], i % 3 == 0 ? 20 : 16, fx_seed() + i);
                snprintf(what, sizeof what, "%s, %s, parts from %u on", shapes[shape].name,
                         rose_compute_name(g_types[t]), starts[i % 4]);
                compare(m, &want, got, what);
            }
            fx_seq_free(&want);
            fx_close(&f);
        }
        fx_model_free(m);
    }
}

/* A little of everything: what the sanitizers run, under which a launch takes milliseconds. */
static void test_little(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shapes[1], fx_seed());
    for (int t = 0; t < N_TYPES; t++) {
        fx_backend f = fx_open(m, g_types[t], NULL, 0, 1);
        fx_seq s[3];
        for (int way = 0; way < 3; way++) {
            fx_part parts[3];
            fx_cuda(&f)->forced = fx_kernel(way == 0 ? 0 : way == 1 ? rose_gemm_n_kernels : 1);
            fx_cuda(&f)->use_graphs = way == 0;
            fx_cuda(&f)->naive = way == 1;
            for (uint32_t i = 0; i < 3; i++) {
                s[i] = fx_seq_make(m, fx_seed() + i, 150);
                parts[i] = (fx_part){&s[i], 1, true};
            }
            fx_run(&f, &s[0], 130, 100);
            fx_run(&f, &s[1], 33, 17);
            for (int step = 0; step < 3; step++)
                fx_step(&f, parts, 3);
            for (uint32_t i = 0; i < 3; i++) {
                fx_seq_drop(&f, &s[i]);
                fx_seq_free(&s[i]);
            }
        }
        fx_close(&f);
    }
    fx_model_free(m);
}

/* Compares steps of several sizes, after the prompts of their sequences, with the same steps
 * without graphs. The model is small, so that only capturing matters. */
static void compare_graphs(uint32_t ff, const uint32_t *sizes, int n_sizes)
{
    const fx_shape shape = {"little",           2,        192,   3,     ff,    300,  64,
                            ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false, false};
    rose_model *m = fx_model(&shape, fx_seed());
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
    for (int i = 0; i < n_sizes; i++) {
        fx_seq s[2][96];
        for (int way = 0; way < 2; way++) {
            fx_part parts[96];
            fx_cuda(&f)->use_graphs = way == 0;
            for (uint32_t j = 0; j < sizes[i]; j++) {
                s[way][j] = fx_seq_make(m, fx_seed() + j, 4 + j % 8);
                parts[j] = (fx_part){&s[way][j], s[way][j].n_tokens - 2, false};
            }
            fx_step(&f, parts, sizes[i]);
            for (uint32_t j = 0; j < sizes[i]; j++)
                parts[j] = (fx_part){&s[way][j], 1, true};
            fx_step(&f, parts, sizes[i]);
            fx_step(&f, parts, sizes[i]);
            for (uint32_t j = 0; j < sizes[i]; j++)
                fx_seq_drop(&f, &s[way][j]);
        }
        for (uint32_t j = 0; j < sizes[i]; j++) {
            fx_same(m, &s[1][j], &s[0][j], "little graphs");
            fx_seq_free(&s[0][j]);
            fx_seq_free(&s[1][j]);
        }
    }
    fx_close(&f);
    fx_model_free(m);
}

/* The kernel of one sequence, graphs of one prompt. */
static void test_little_single(void **state)
{
    (void)state;
    compare_graphs(768, (const uint32_t[]){1}, 1);
}

/* Steps of few and of many sequences; of an MLP that is no multiple of 192. */
static void test_little_crowds(void **state)
{
    (void)state;
    compare_graphs(960, (const uint32_t[]){5, 27, 96}, 3);
}

/* A sequence token by token to the end of the context, every step in a graph or (eager)
 * without one. */
static fx_seq run_single(const rose_model *m, rose_compute dtype, bool eager, uint32_t n)
{
    fx_backend f = fx_open(m, dtype, NULL, 0, 1);
    fx_seq s = fx_seq_make(m, fx_seed() + 7, n);
    fx_cuda(&f)->use_graphs = !eager;
    fx_run(&f, &s, n, 1);
    fx_close(&f);
    return s;
}

/* The kernel of one sequence gives the bits of the many kernels, where there is one. */
static void test_megakernel(void **state)
{
    (void)state;
    static const fx_shape shapes[] = {
        {"GPT-2's widths", 2, 768, 12, 3072, 1003, 330, ROSE_ACT_GELU_TANH, ROSE_F32, false, false,
         false, false},
        {"long", 2, 192, 3, 768, 300, 1300, ROSE_ACT_GELU_TANH, ROSE_F32, false, false, false,
         false},
        {"untied, by layer", 3, 128, 2, 384, 1000, 200, ROSE_ACT_GELU_ERF, ROSE_F16, true, true,
         true, false},
        {"no bias", 5, 320, 5, 640, 77, 70, ROSE_ACT_SILU, ROSE_BF16, true, false, false, true},
        {"one head", 1, 64, 1, 64, 9, 40, ROSE_ACT_RELU, ROSE_F32, false, false, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int t = 0; t < 2; t++) {
            rose_model *m = fx_model(&shapes[i], fx_seed() + i);
            fx_seq want = run_single(m, g_types[t], true, shapes[i].max_positions);
            fx_seq got = run_single(m, g_types[t], false, shapes[i].max_positions);
            print_message("%s, %s\n", shapes[i].name, rose_compute_name(g_types[t]));
            fx_same(m, &want, &got, shapes[i].name);
            fx_seq_free(&want);
            fx_seq_free(&got);
            fx_model_free(m);
        }
}

/* Logits that are sums of nothing but -0: +0, in one kernel and in many. */
static void test_zero_logits(void **state)
{
    (void)state;
    static const fx_shape shapes[] = {{"one chunk", 1, 192, 3, 768, 300, 20, ROSE_ACT_GELU_TANH,
                                       ROSE_F32, false, false, false, false},
                                      {"four", 1, 768, 12, 3072, 1003, 20, ROSE_ACT_GELU_TANH,
                                       ROSE_F32, false, false, false, false}};
    for (int i = 0; i < 4; i++) {
        rose_model *m = fx_model(&shapes[i / 2], fx_seed() + (uint64_t)i);
        const uint32_t d = m->arch.d_model;
        float *token = (float *)(uintptr_t)m->tok_embed.data,
              *w = (float *)(uintptr_t)m->lnf_w.data, *b = (float *)(uintptr_t)m->lnf_b.data;
        for (size_t j = 0; j < (size_t)m->arch.vocab_size * d; j++)
            token[j] = fabsf(token[j]);
        for (uint32_t j = 0; j < d; j++) {
            w[j] = 0;
            b[j] = -1e-45f; /* -0 in either type, where a bias of -0 would make +0 of +0 */
        }
        for (int eager = 0; eager < 2; eager++) {
            fx_seq s = run_single(m, g_types[i % 2], eager != 0, 20);
            for (size_t j = 0; j < (size_t)20 * m->arch.vocab_size; j++) {
                uint32_t bits;
                memcpy(&bits, &s.logits[j], sizeof bits);
                assert_int_equal(bits, 0);
            }
            fx_seq_free(&s);
        }
        fx_model_free(m);
    }
}

static void test_refused(void **state)
{
    (void)state;
    const rose_backend_ops *ops;
    rose_err err = {""};
    rose_memory_plan p;
    rose_backend_opts o;
    fx_shape s = g_shapes[1];
    s.d_model = 100; /* not a multiple of 8 */
    s.n_heads = 50;
    rose_model *m = fx_model(&s, 1);
    rose_backend_opts_default(&o);
    assert_int_equal(rose_backend_cuda(&ops, 0, &err), ROSE_OK);
    assert_int_equal(ops->plan(m, &o, &p, &err), ROSE_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "width 100"));
    fx_model_free(m);
    m = fx_model(&g_shapes[1], 1);
    o.kv_pages = INT32_MAX;
    assert_int_equal(ops->plan(m, &o, &p, &err), ROSE_E_NOMEM);
    assert_non_null(strstr(err.msg, "lower num-kv-pages"));
    o.kv_pages = 3;
    assert_int_equal(ops->plan(m, &o, &p, &err), ROSE_E_INVAL);
    fx_model_free(m);
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_cpu),   cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_repeats),       cmocka_unit_test(test_every_batch_size),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_switches),      cmocka_unit_test(test_little),
        cmocka_unit_test(test_megakernel),    cmocka_unit_test(test_ways),
        cmocka_unit_test(test_many_words),    cmocka_unit_test(test_prompt_graphs),
        cmocka_unit_test(test_few_rows),      cmocka_unit_test(test_little_single),
        cmocka_unit_test(test_little_crowds), cmocka_unit_test(test_zero_logits),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
