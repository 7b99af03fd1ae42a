/* tests/backend/test_cuda_mega.c - the megakernel on a GPU: decode steps of one sequence give the
 * bits of the many kernels, token by token, for small random models of each kind. */
#define FX_MAX_SEQS 64
#define FX_MAX_ROWS 400
#include "backend/cuda_fixture.h"

typedef struct mega_kind {
    const char *name;
    uint32_t n_layers, d, n_heads, n_kv, head_dim, d_ff, vocab, n_tokens;
    bool llama; /* RMSNorm, RoPE and a gated MLP, without biases; else as GPT-2 */
    bool qk_norm, tied;
} mega_kind;

static const mega_kind g_kinds[] = {
    {"GPT-2", 3, 768, 12, 12, 64, 3072, 1003, 330, false, false, true},
    {"GPT-2, one head", 1, 64, 1, 1, 64, 128, 77, 70, false, false, true},
    {"SmolLM2", 3, 576, 9, 3, 64, 1536, 1000, 300, true, false, true},
    {"Qwen3", 3, 1024, 16, 8, 128, 3072, 900, 600, true, true, true},
    {"Llama-3.2", 2, 2048, 32, 8, 64, 8192, 500, 300, true, false, false},
    {"long", 2, 192, 3, 1, 64, 512, 300, 1400, true, false, true},
};
enum { N_KINDS = sizeof g_kinds / sizeof g_kinds[0] };

static rose_linear linear_of(fx_random *r, uint32_t k, uint32_t n, bool bias)
{
    rose_linear l = {.n_parts = 1, .transposed = true};
    l.w[0] = fx_tensor(r, ROSE_BF16, n, k, 0, 1.5f / sqrtf((float)k));
    if (bias) l.b[0] = fx_tensor(r, ROSE_BF16, n, 1, 0, 0.2f);
    return l;
}

static void describe(rose_arch *a, const mega_kind *k)
{
    *a = (rose_arch){
        .n_layers = k->n_layers,
        .d_model = k->d,
        .n_kinds = 1,
        .kinds = {{.mixer = {.n_heads = k->n_heads,
                             .n_kv_heads = k->n_kv,
                             .head_dim = k->head_dim,
                             .scale = 1.0f / sqrtf((float)k->head_dim),
                             .qk_norm = k->qk_norm,
                             .qkv_bias = !k->llama,
                             .o_bias = !k->llama},
                   .mlp = {.d_ff = k->d_ff,
                           .act = k->llama ? ROSE_ACT_SILU : ROSE_ACT_GELU_TANH,
                           .gated = k->llama,
                           .bias = !k->llama}}},
        .vocab_size = k->vocab,
        .max_positions = k->n_tokens,
        .norm_eps = 1e-5f,
        .embed_scale = 1.0f,
        .norm = k->llama ? ROSE_NORM_RMS : ROSE_NORM_LAYER,
        .pos = k->llama ? ROSE_POS_ROPE : ROSE_POS_LEARNED,
        .tied_head = k->tied,
        .bos_id = -1,
    };
    snprintf(a->model_type, sizeof a->model_type, "%s", k->llama ? "llama" : "gpt2");
    if (k->llama) a->kinds[0].mixer.rope = (rose_rope){.theta = 10000, .dim = k->head_dim};
}

static void fill_layer(rose_layer *l, const mega_kind *k, fx_random *r)
{
    const uint32_t d = k->d, hd = k->head_dim, q = k->n_heads * hd;
    const bool bias = !k->llama;
    l->ln1_w = fx_tensor(r, ROSE_BF16, d, 1, 1, 0.2f);
    l->ln2_w = fx_tensor(r, ROSE_BF16, d, 1, 1, 0.2f);
    if (bias) l->ln1_b = fx_tensor(r, ROSE_BF16, d, 1, 0, 0.2f);
    if (bias) l->ln2_b = fx_tensor(r, ROSE_BF16, d, 1, 0, 0.2f);
    if (k->qk_norm) l->q_norm = fx_tensor(r, ROSE_BF16, hd, 1, 1, 0.2f);
    if (k->qk_norm) l->k_norm = fx_tensor(r, ROSE_BF16, hd, 1, 1, 0.2f);
    l->m[ROSE_QKV] = linear_of(r, d, q + 2 * k->n_kv * hd, bias);
    l->m[ROSE_OUT] = linear_of(r, q, d, bias);
    l->m[ROSE_UP] = linear_of(r, d, k->llama ? 2 * k->d_ff : k->d_ff, bias);
    l->m[ROSE_DOWN] = linear_of(r, k->d_ff, d, bias);
}

static rose_model *model_of(const mega_kind *k, uint64_t seed)
{
    fx_random r = {.seed = seed};
    rose_model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    describe(&m->arch, k);
    m->dtype = ROSE_BF16;
    m->tok_embed = fx_tensor(&r, ROSE_BF16, k->vocab, k->d, 0, 0.5f);
    if (!k->llama) m->pos_embed = fx_tensor(&r, ROSE_BF16, k->n_tokens, k->d, 0, 0.3f);
    m->lnf_w = fx_tensor(&r, ROSE_BF16, k->d, 1, 1, 0.2f);
    if (!k->llama) m->lnf_b = fx_tensor(&r, ROSE_BF16, k->d, 1, 0, 0.2f);
    m->head = k->tied ? m->tok_embed : fx_tensor(&r, ROSE_BF16, k->vocab, k->d, 0, 0.5f);
    m->layers = calloc(k->n_layers, sizeof *m->layers);
    assert_non_null(m->layers);
    for (uint32_t i = 0; i < k->n_layers; i++)
        fill_layer(&m->layers[i], k, &r);
    return m;
}

static void free_tensor(const rose_tensor *t)
{
    free((void *)(uintptr_t)t->data);
}

static void model_free(rose_model *m)
{
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        rose_layer *l = &m->layers[i];
        free_tensor(&l->q_norm);
        free_tensor(&l->k_norm);
    }
    fx_model_free(m); /* the rest, as GPT-2 has it */
}

/* A sequence token by token, every step in a graph or (eager) kernel by kernel. */
static fx_seq run_single(const rose_model *m, rose_compute dtype, bool eager, uint32_t n)
{
    fx_backend f = fx_open(m, dtype, NULL, 0, 1);
    fx_seq s = fx_seq_make(m, fx_seed() + 7, n);
    assert_non_null(fx_cuda(&f)->ranks[0].fast);
    fx_cuda(&f)->use_graphs = !eager;
    fx_run(&f, &s, n, 1);
    fx_close(&f);
    return s;
}

static void same_bits(const mega_kind *k, rose_compute dtype, uint32_t n)
{
    rose_model *m = model_of(k, fx_seed() + (uint64_t)(k - g_kinds));
    fx_seq want = run_single(m, dtype, true, n);
    fx_seq got = run_single(m, dtype, false, n);
    print_message("%s, %s\n", k->name, rose_compute_name(dtype));
    fx_same(m, &want, &got, k->name);
    fx_seq_free(&want);
    fx_seq_free(&got);
    model_free(m);
}

static void test_same_bits(void **state)
{
    static const rose_compute types[] = {ROSE_COMPUTE_F16, ROSE_COMPUTE_BF16};
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        for (int t = 0; t < 2; t++)
            same_bits(&g_kinds[i], types[t], g_kinds[i].n_tokens);
}

/* Few steps of the two smallest kinds, for the sanitizers: with all six, racecheck needs over 120
 * GB of memory. These two have heads of 64; families/qwen3 of test_cuda_families has heads of 128.
 */
static void test_little(void **state)
{
    (void)state;
    same_bits(&g_kinds[1], ROSE_COMPUTE_F16, 70);
    same_bits(&g_kinds[5], ROSE_COMPUTE_BF16, 34);
}

/* Steps of the megakernel between steps of the other kernels, on the same pages. */
static void test_mixed(void **state)
{
    (void)state;
    const mega_kind *k = &g_kinds[3];
    rose_model *m = model_of(k, fx_seed());
    fx_backend f = fx_open(m, ROSE_COMPUTE_BF16, NULL, 0, 1);
    fx_seq want = fx_seq_make(m, fx_seed() + 7, k->n_tokens);
    fx_seq got = fx_seq_make(m, fx_seed() + 7, k->n_tokens);
    fx_cuda(&f)->use_graphs = false;
    fx_run(&f, &want, k->n_tokens, 1);
    fx_cuda(&f)->use_graphs = true;
    for (uint32_t n = 40, chunk = 1; n <= k->n_tokens; n += 40, chunk = chunk == 1 ? 33 : 1)
        fx_run(&f, &got, n, chunk);
    fx_run(&f, &got, k->n_tokens, 1);
    fx_same(m, &want, &got, "megakernel and prompts in turn");
    fx_seq_free(&want);
    fx_seq_free(&got);
    fx_close(&f);
    model_free(m);
}

int main(int argc, char **argv)
{
    if (!fx_use_gpu()) return 77;
    fx_without = NULL; /* some switches leave out the megakernel */
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_gpu()->hopper) {
        print_message("NOT RUN: the megakernel needs sm_90a\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_little), cmocka_unit_test(test_mixed)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
