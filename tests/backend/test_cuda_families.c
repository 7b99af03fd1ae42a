/* tests/backend/test_cuda_families.c - the CUDA backend on a small random model of each family
 * (tests/golden/families): log-probabilities and greedy ids of transformers in fp32, all logits
 * close to those of the CPU backend in all three types, and the same bits in every way of running a
 * sequence. Contexts pass the windows and the original contexts of the RoPE scaling. Each family is
 * a test of its own, so that the list of failures names the families. */
#define FX_MAX_SEQS 200
#include "backend/cuda_fixture.h"
#include "backend/golden_checks.h"

/* A model, and how many tokens the tests run. */
typedef struct family {
    const char *name;
    golden g;
    rose_model *m;
    uint32_t n_prompt, n_tokens;
} family;

static family open_family(const char *name)
{
    family f = {.name = name};
    golden_open(&f.g, name);
    f.m = golden_model(&f.g);
    fx_max_model_len = f.g.served_context;
    f.n_tokens = 165;
    if (f.n_tokens > f.m->arch.max_positions) f.n_tokens = f.m->arch.max_positions;
    if (fx_max_model_len != 0 && f.n_tokens > fx_max_model_len) f.n_tokens = fx_max_model_len;
    f.n_prompt = f.n_tokens * 4 / 5;
    return f;
}

static void close_family(family *f)
{
    fx_max_model_len = 0;
    rose_model_close(f->m);
    golden_close(&f->g);
}

static void test_golden(void **state)
{
    check_golden(*state);
}

/* ---- close to the CPU ---- */

static void test_close(void **state)
{
    static const rose_compute types[] = {ROSE_COMPUTE_F32, ROSE_COMPUTE_F16, ROSE_COMPUTE_BF16};
    static const double most[] = {1e-4, 1e-2, 8e-2};
    family f = open_family(*state);
    double e[3];
    fx_device = "cpu";
    fx_backend b = fx_open(f.m, ROSE_COMPUTE_F32, "auto", 2, 1);
    fx_seq want = fx_run_alone(f.m, &b, f.n_prompt, f.n_tokens, 50);
    fx_close(&b);
    fx_device = "cuda";
    for (int t = 0; t < 3; t++) {
        b = fx_open(f.m, types[t], NULL, 0, 1);
        fx_seq got = fx_run_alone(f.m, &b, f.n_prompt, f.n_tokens, 50);
        e[t] = fx_distance(f.m, &want, &got);
        fx_seq_free(&got);
        fx_close(&b);
    }
    print_message("%s: relative error %.1e in fp32, %.1e in fp16, %.1e in bf16\n", f.name, e[0],
                  e[1], e[2]);
    for (int t = 0; t < 3; t++)
        if (!(e[t] < most[t]))
            fail_msg("%s, %s: the logits are off by %g, more than %g", f.name,
                     rose_compute_name(types[t]), e[t], most[t]);
    fx_seq_free(&want);
    close_family(&f);
}

/* ---- the same bits ---- */

static void compare(const family *f, rose_compute type, const fx_seq *want, fx_seq got,
                    const char *way)
{
    char what[200];
    snprintf(what, sizeof what, "%s, %s, %s", f->name, rose_compute_name(type), way);
    fx_same(f->m, want, &got, what);
    fx_seq_free(&got);
}

/* Beside others of 1 to 60 tokens with random chunks: steps of single rows and tiles together. */
static fx_seq run_among(const family *f, fx_backend *b, uint64_t seed)
{
    enum { N_OTHERS = 63 };
    fx_random r = {.seed = seed};
    fx_seq s = fx_seq_make(f->m, fx_seed() + 99, f->n_tokens), others[N_OTHERS];
    for (uint32_t i = 0; i < N_OTHERS; i++)
        others[i] = fx_seq_make(f->m, seed + 1000 + i, 1 + fx_below(&r, 60));
    while (s.done < f->n_tokens) {
        fx_part parts[N_OTHERS + 1];
        uint32_t n = 0, place = fx_below(&r, N_OTHERS), room = FX_MAX_ROWS - f->n_prompt;
        for (uint32_t i = 0; i < N_OTHERS; i++) {
            fx_seq *o = &others[i];
            if (i == place) {
                uint32_t rows = s.done < f->n_prompt ? 1 + fx_below(&r, f->n_prompt - s.done) : 1;
                parts[n++] = (fx_part){&s, rows, FX_ALL};
            }
            if (o->done == o->n_tokens) fx_seq_drop(b, o);
            uint32_t rows = fx_below(&r, 4) == 0 ? 1 + fx_below(&r, o->n_tokens - o->done) : 1;
            if (rows > room) continue;
            room -= rows;
            parts[n++] = (fx_part){o, rows, FX_NONE};
        }
        fx_step(b, parts, n);
    }
    for (uint32_t i = 0; i < N_OTHERS; i++) {
        fx_seq_drop(b, &others[i]);
        fx_seq_free(&others[i]);
    }
    fx_seq_drop(b, &s);
    return s;
}

/* Decode steps of n sequences, the last of which is the one that is compared. */
static fx_seq run_crowd(const family *f, fx_backend *b, uint32_t n)
{
    const uint32_t steps = f->n_tokens - f->n_prompt;
    fx_seq s[FX_MAX_SEQS];
    fx_part parts[FX_MAX_SEQS];
    for (uint32_t i = 0; i + 1 < n; i++) {
        const uint32_t prompt = 1 + i * 7 % 30;
        s[i] = fx_seq_make(f->m, fx_seed() + i, prompt + steps);
        fx_step(b, &(fx_part){&s[i], prompt, FX_NONE}, 1);
    }
    s[n - 1] = fx_seq_make(f->m, fx_seed() + 99, f->n_tokens);
    fx_run(b, &s[n - 1], f->n_prompt, f->n_prompt);
    for (uint32_t i = 0; i < n; i++)
        parts[i] = (fx_part){&s[i], 1, FX_ALL};
    for (uint32_t i = 0; i < steps; i++)
        fx_step(b, parts, n);
    for (uint32_t i = 0; i < n; i++)
        fx_seq_drop(b, &s[i]);
    for (uint32_t i = 0; i + 1 < n; i++)
        fx_seq_free(&s[i]);
    return s[n - 1];
}

/* The first pages of the sequence are those of another, as after a hit in the prefix cache. */
static fx_seq run_shared(const family *f, fx_backend *b)
{
    const uint32_t n_pages = 2, n = n_pages * ROSE_KV_PAGE_TOKENS;
    const size_t vocab = f->m->arch.vocab_size;
    fx_seq from = fx_seq_make(f->m, fx_seed() + 99, f->n_tokens);
    fx_seq s = fx_seq_make(f->m, fx_seed() + 99, f->n_tokens);
    fx_run(b, &from, n, n);
    memcpy(s.pages, from.pages, sizeof s.pages);
    s.n_pages = n_pages;
    from.n_pages = 0; /* they are the sequence's now */
    memcpy(s.logits, from.logits, n * vocab * sizeof *s.logits);
    memcpy(s.next_ids, from.next_ids, n * sizeof *s.next_ids);
    s.done = n;
    fx_run(b, &s, f->n_prompt, f->n_prompt);
    fx_run(b, &s, f->n_tokens, 1);
    fx_seq_drop(b, &from);
    fx_seq_drop(b, &s);
    fx_seq_free(&from);
    return s;
}

static void no_fusion(rose_backend_opts *o)
{
    o->cuda.fused_ops = o->cuda.fused_mlp = o->cuda.fused_sampler = false;
    o->cuda.fused_kv_append = o->cuda.paged_attn = false;
}

/* The ways that need a backend with other options. */
static void check_opened(const family *f, rose_compute type, const fx_seq *want)
{
    const char *without = fx_without;
    for (int way = 0; way < 2; way++) {
        fx_change = way == 0 ? no_fusion : NULL;
        fx_without = way == 0 ? without : FX_WITHOUT_ALL;
        fx_backend b = fx_open(f->m, type, NULL, 0, 1);
        fx_change = NULL;
        fx_without = without;
        compare(f, type, want, fx_run_alone(f->m, &b, f->n_prompt, f->n_tokens, f->n_prompt),
                way == 0 ? "without fusions" : "without " FX_WITHOUT_ALL);
        compare(f, type, want, run_among(f, &b, fx_seed()), "left out, among 63 others");
        compare(f, type, want, run_crowd(f, &b, 30), "left out, in a crowd of 30");
        fx_close(&b);
    }
}

static void check_bits(const family *f, rose_compute type)
{
    static const uint32_t chunks[] = {1, 3, 16, 17, 64}, crowds[] = {2, 5, 9, 30, 100};
    char way[100];
    fx_backend b = fx_open(f->m, type, NULL, 0, 1);
    rose_cuda *c = fx_cuda(&b);
    c->use_graphs = false;
    fx_seq want = fx_run_alone(f->m, &b, f->n_prompt, f->n_tokens, f->n_prompt);
    for (int eager = 0; eager < 2; eager++) {
        c->use_graphs = eager == 0;
        for (int i = 0; i < 5; i++) {
            snprintf(way, sizeof way, "%s, chunks of %u", eager ? "eager" : "graphs", chunks[i]);
            compare(f, type, &want, fx_run_alone(f->m, &b, f->n_prompt, f->n_tokens, chunks[i]),
                    way);
            snprintf(way, sizeof way, "%s, in a crowd of %u", eager ? "eager" : "graphs",
                     crowds[i]);
            compare(f, type, &want, run_crowd(f, &b, crowds[i]), way);
        }
        compare(f, type, &want, run_among(f, &b, fx_seed()), "among 63 others");
        compare(f, type, &want, run_shared(f, &b), "with shared pages");
    }
    for (uint32_t i = 1; type != ROSE_COMPUTE_F32 && i <= rose_gemm_n_kernels; i++) {
        c->forced = fx_kernel(i);
        compare(f, type, &want, fx_run_alone(f->m, &b, f->n_prompt, f->n_tokens, 70),
                fx_kernel_name(c->forced));
    }
    fx_close(&b);
    check_opened(f, type, &want);
    fx_seq_free(&want);
}

static void test_same_bits(void **state)
{
    family f = open_family(*state);
    check_bits(&f, ROSE_COMPUTE_BF16);
    check_bits(&f, ROSE_COMPUTE_F16);
    check_bits(&f, ROSE_COMPUTE_F32);
    close_family(&f);
}

/* An argument runs the tests whose names match it: "*qwen3*". */
int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } kinds[] = {{"golden", test_golden}, {"close", test_close}, {"same bits", test_same_bits}};
    enum { N_KINDS = sizeof kinds / sizeof kinds[0] };
    const golden_list *all = golden_families();
    const size_t n = N_KINDS * all->n;
    char(*const names)[64] = golden_alloc(n, sizeof *names);
    struct CMUnitTest *const tests = golden_alloc(n, sizeof *tests);
    for (size_t i = 0; i < n; i++) {
        const char *of = all->name[i % all->n];
        snprintf(names[i], sizeof names[i], "%s: %s", of, kinds[i / all->n].name);
        tests[i] = (struct CMUnitTest){.name = names[i],
                                       .test_func = kinds[i / all->n].test,
                                       .initial_state = (void *)(uintptr_t)of};
    }
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const int failed = _cmocka_run_group_tests("families", tests, n, NULL, NULL);
    free(tests);
    free(names);
    return failed;
}
