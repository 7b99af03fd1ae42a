/* tests/backend/emulated/test_emulated_load.c - the load of the CUDA backend without a GPU: plan's
 * sizes, load.c and weights.c over a runtime in host memory, and pack.cu on machine.h. The test
 * compares every packed value of a small model of each family with the model's own functions:
 * rose_linear_row, rose_tensor_read_f32, rose_rope_table. */
#include <inttypes.h>
#include <stdlib.h>

#include "backend/cuda/cuda_internal.h"
#include "backend/golden_checks.h"
#include "backend/rotary.h"
#include "model/rope.h"

/* ---- a runtime in host memory ---- */

cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags)
{
    (void)flags;
    *out = aligned_alloc(256, (n + 255) / 256 * 256);
    return *out != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind;
    (void)s;
    memcpy(to, from, n);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)
{
    (void)s;
    memset(p, value, n);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    (void)e;
    (void)s;
    return cudaSuccess;
}

/* What pack.cu asks of the runtime for rose_cuda_device_code, which this test does not call. */
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f)
{
    (void)a;
    (void)f;
    return cudaErrorNotSupported;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)name;
    (void)out;
    (void)version;
    (void)flags;
    (void)found;
    return cudaErrorNotSupported;
}

cudaError_t rose_cuda_wait(rose_cuda *c, cudaEvent_t event)
{
    (void)c;
    (void)event;
    return cudaSuccess;
}

cudaError_t rose_cuda_finish(rose_cuda_rank *rank)
{
    (void)rank;
    return cudaSuccess;
}

/* What plan.c asks of the device and of the files that launch kernels. */
rose_status rose_cuda_device_open(int index, rose_cuda_device *out, rose_err *err)
{
    (void)index;
    (void)err;
    *out = (rose_cuda_device){.sms = 132, .cc = 90, .code = 90, .hopper = true};
    return ROSE_OK;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *available = *total = (size_t)1 << 34;
    return cudaSuccess;
}

uint64_t rose_cuda_graph_nodes(const rose_arch *a, uint32_t without)
{
    (void)without;
    return a->n_layers;
}

uint64_t rose_cuda_rules_bytes(uint32_t vocab)
{
    return 4 * (uint64_t)vocab;
}

/* In place of cuda_backend.c, which backend.c would bring into the program. */
rose_status rose_backend_cuda(const rose_backend_ops **out, uint32_t gpu, rose_err *err)
{
    (void)gpu;
    *out = NULL;
    return rose_fail(err, ROSE_E_UNSUPPORTED, "no GPU");
}

rose_status rose_cuda_status(rose_err *err, cudaError_t e, const char *what)
{
    return e == cudaSuccess ? ROSE_OK
                            : rose_fail(err, ROSE_E_BACKEND, "%s: error %d", what, (int)e);
}

/* In place of gemm_table.c, which needs every GEMM kernel. A load does not read the parts. */
void rose_cuda_matrix_shape(rose_cuda_matrix *m, rose_format format, uint32_t k, uint32_t n,
                            uint32_t n_parts, uint32_t head_dim, bool gated)
{
    (void)head_dim;
    m->format = format;
    m->k = k;
    m->n = n;
    m->k_pad = (k + ROSE_CUDA_K_PAD - 1) / ROSE_CUDA_K_PAD * ROSE_CUDA_K_PAD;
    m->n_pad = (n + ROSE_CUDA_N_PAD - 1) / ROSE_CUDA_N_PAD * ROSE_CUDA_N_PAD;
    m->n_parts = n_parts;
    m->gated = gated;
}

/* ---- a model that is loaded ---- */

static void *device_memory(uint64_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(p);
    memset(p, 0xff, bytes); /* NaN */
    return p;
}

static rose_cuda load(const rose_model *m, rose_compute dtype, uint64_t kv_bytes)
{
    static rose_cuda_device device = {.sms = 1};
    rose_bump sizes = {.align = ROSE_CUDA_ALIGN}, places = sizes;
    rose_cuda_weights nowhere = {0};
    rose_err err = {""};
    rose_cuda c = {
        .arch = m->arch, .type = rose_compute_format(dtype), .ranks = {{.device = device}}};
    c.plan = (rose_memory_plan){.dtype = dtype, .max_model_len = 70, .kv = kv_bytes, .scratch = 64};
    rose_cuda_layout_weights(&nowhere, &sizes, m, &c.plan);
    c.plan.weights = sizes.used;
    c.ranks[0].weights_base = places.base = device_memory(sizes.used);
    c.ranks[0].kv_base = device_memory(kv_bytes);
    c.ranks[0].scratch_base = device_memory(c.plan.scratch);
    c.ranks[0].weights.layers = calloc(m->arch.n_layers, sizeof *c.ranks[0].weights.layers);
    assert_non_null(c.ranks[0].weights.layers);
    rose_cuda_layout_weights(&c.ranks[0].weights, &places, m, &c.plan);
    assert_int_equal(places.used, sizes.used);
    c.ranks[0].c = &c; /* for this call: the caller gets a copy */
    if (rose_cuda_load(&c.ranks[0], m, &err) != ROSE_OK) fail_msg("%s: %s", m->name, err.msg);
    for (uint64_t i = 0; i < kv_bytes; i++)
        assert_int_equal(((uint8_t *)c.ranks[0].kv_base)[i], 0);
    return c;
}

static void drop(rose_cuda *c)
{
    free(c->ranks[0].weights_base);
    free(c->ranks[0].kv_base);
    free(c->ranks[0].scratch_base);
    free(c->ranks[0].weights.layers);
}

/* ---- what must be there ---- */

static float rounded(rose_format t, float x)
{
    if (t == ROSE_F32) return x;
    return t == ROSE_F16 ? rose_f16_to_f32(rose_f32_to_f16(x))
                         : rose_bf16_to_f32(rose_f32_to_bf16(x));
}

/* Value (n, k) of a packed matrix: blocks of 8 x 8, or rows of fp32. */
static float packed(const rose_cuda_matrix *m, const void *w, rose_format t, uint32_t n, uint32_t k)
{
    const size_t block = ((size_t)(n / 8) * (m->k_pad / 8) + k / 8) * 64 + n % 8 * 8 + k % 8;
    if (t == ROSE_F32) return ((const float *)w)[(size_t)n * m->k_pad + k];
    const uint16_t x = ((const uint16_t *)w)[block];
    return t == ROSE_F16 ? rose_f16_to_f32(x) : rose_bf16_to_f32(x);
}

static float element(const rose_tensor *t, uint64_t i)
{
    float x;
    rose_tensor_read_f32(t, i, 1, &x);
    return x;
}

/* The part of output n of the packed matrix, and the output's number in the part. Gate and up may
 * be one tensor. */
static uint32_t part_of(const rose_linear *l, const rose_cuda_matrix *m, uint32_t n, uint64_t *i)
{
    uint32_t part = 0;
    *i = n;
    if (m->gated) *i = n / 16 * 8 + n % 8 + (n % 16 >= 8 ? m->n / 2 : 0);
    const int dim = l->transposed ? 0 : 1;
    for (; *i >= l->w[part].shape[dim]; part++)
        *i -= l->w[part].shape[dim];
    return part;
}

/* Part `part` of the matrix in the order of its outputs, as rose_linear_row defines it. */
static float wanted(const rose_linear *l, uint32_t part, uint64_t out, uint64_t k)
{
    const rose_tensor *w = &l->w[part];
    const uint64_t row = rose_linear_row(l, part, out);
    return element(w, l->transposed ? row * w->shape[1] + k : k * w->shape[1] + out);
}

static void check_matrix(const char *name, const rose_linear *l, const rose_cuda_matrix *m,
                         const void *packed_at, rose_format t)
{
    for (uint32_t n = 0; n < m->n_pad; n++) {
        uint64_t out = 0;
        const uint32_t part = n < m->n ? part_of(l, m, n, &out) : 0;
        for (uint32_t k = 0; k < m->k_pad; k++) {
            const bool padding = n >= m->n || k >= m->k;
            const float want = padding ? 0.0f : rounded(t, wanted(l, part, out, k));
            const float got = packed(m, packed_at, t, n, k);
            if (memcmp(&got, &want, sizeof got) != 0)
                fail_msg("%s: output %u, k %u: %g, not %g", name, n, k, (double)got, (double)want);
        }
        if (n >= m->n) continue;
        assert_int_equal(m->bias != NULL, l->b[part].data != NULL);
        if (m->bias == NULL) continue;
        const float want = element(&l->b[part], rose_linear_row(l, part, out));
        if (m->bias[n] != want)
            fail_msg("%s: bias %u: %g, not %g", name, n, (double)m->bias[n], (double)want);
    }
}

static void check_floats(const char *name, const rose_tensor *t, const float *at, uint64_t n,
                         float add)
{
    assert_int_equal(t->data != NULL, at != NULL);
    for (uint64_t i = 0; t->data != NULL && i < n; i++)
        if (at[i] != element(t, i) + add)
            fail_msg("%s: value %" PRIu64 ": %g, not %g", name, i, (double)at[i],
                     (double)(element(t, i) + add));
}

static void check_norm(const char *name, const rose_model *m, const rose_cuda_norm_by *by,
                       const rose_tensor *w, const rose_tensor *b)
{
    const rose_cuda_norm_kind kind = w->data == NULL                   ? ROSE_CUDA_NORM_NONE
                                     : m->arch.norm == ROSE_NORM_LAYER ? ROSE_CUDA_NORM_LAYER
                                                                       : ROSE_CUDA_NORM_RMS;
    assert_int_equal(by->kind, kind);
    check_floats(name, w, by->w, m->arch.d_model, m->arch.norm_plus_one ? 1 : 0);
    if (b != NULL) check_floats(name, b, by->b, m->arch.d_model, 0);
}

static void check_layer(const rose_model *m, const rose_cuda *c, uint32_t i)
{
    const rose_layer *from = &m->layers[i];
    const rose_cuda_layer *to = &c->ranks[0].weights.layers[i];
    const float add = m->arch.norm_plus_one ? 1 : 0;
    check_matrix("qkv", &from->m[ROSE_QKV], &to->m[ROSE_QKV], to->m[ROSE_QKV].w, c->type);
    check_matrix("out", &from->m[ROSE_OUT], &to->m[ROSE_OUT], to->m[ROSE_OUT].w, c->type);
    check_matrix("up", &from->m[ROSE_UP], &to->m[ROSE_UP], to->m[ROSE_UP].w, c->type);
    check_matrix("down", &from->m[ROSE_DOWN], &to->m[ROSE_DOWN], to->m[ROSE_DOWN].w, c->type);
    check_norm("ln1", m, &to->ln1, &from->ln1_w, &from->ln1_b);
    check_norm("ln2", m, &to->ln2, &from->ln2_w, &from->ln2_b);
    check_norm("post1", m, &to->post1, &from->post1, NULL);
    check_norm("post2", m, &to->post2, &from->post2, NULL);
    check_floats("q_norm", &from->q_norm, to->q_norm, m->arch.kinds[0].mixer.head_dim, add);
    check_floats("k_norm", &from->k_norm, to->k_norm, m->arch.kinds[0].mixer.head_dim, add);
    rose_pool_spec pools[ROSE_MAX_POOLS];
    assert_true(to->pool < rose_arch_pools(&m->arch, pools, NULL));
    assert_int_equal(pools[to->pool].window, rose_arch_kind(&m->arch, i)->mixer.window);
    assert_int_equal(to->rope, rose_rope_of_kind(&m->arch, m->arch.kind_of[i]));
    assert_true(to->scale == rose_arch_scale(&m->arch, i));
}

static void check_rope(const rose_model *m, const rose_cuda *c, uint32_t i)
{
    const uint32_t half = c->ranks[0].weights.rot_dim[i] / 2;
    float inv_freq[ROSE_ATTEND_MAX_HEAD_DIM / 2], factor;
    if (half == 0) return;
    assert_int_equal(2 * half, m->arch.kinds[i].mixer.rope.dim);
    rose_rope_table(&m->arch.kinds[i].mixer.rope, c->plan.max_model_len, inv_freq, &factor);
    for (uint32_t p = 0; p < c->plan.max_model_len; p++)
        for (uint32_t j = 0; j < half; j++) {
            float sine, cosine;
            rose_sincos((float)p * inv_freq[j], &sine, &cosine);
            assert_true(c->ranks[0].weights.sin[i][p * half + j] == sine * factor);
            assert_true(c->ranks[0].weights.cos[i][p * half + j] == cosine * factor);
        }
}

static void check_model(const rose_model *m, rose_compute dtype, uint64_t kv_bytes)
{
    rose_cuda c = load(m, dtype, kv_bytes);
    const rose_linear head = {.w = {m->head}, .n_parts = 1, .transposed = true};
    const rose_linear tok = {.w = {m->tok_embed}, .n_parts = 1, .transposed = true};
    for (uint32_t i = 0; i < m->arch.n_layers; i++)
        check_layer(m, &c, i);
    check_matrix("head", &head, &c.ranks[0].weights.head, c.ranks[0].weights.head.w, c.type);
    check_matrix("embedding", &tok, &c.ranks[0].weights.head, c.ranks[0].weights.tok, c.type);
    assert_int_equal(c.ranks[0].weights.tok == c.ranks[0].weights.head.w, m->arch.tied_head);
    check_norm("last norm", m, &c.ranks[0].weights.lnf, &m->lnf_w, &m->lnf_b);
    check_floats("positions", &m->pos_embed, c.ranks[0].weights.pos,
                 (uint64_t)c.plan.max_model_len * m->arch.d_model, 0);
    for (uint32_t i = 0; i < m->arch.n_kinds; i++)
        check_rope(m, &c, i);
    assert_int_equal(m->arch.pos == ROSE_POS_ROPE, c.ranks[0].weights.cos[0] != NULL);
    drop(&c);
}

/* ---- models ---- */

/* The random model of a golden config. */
static rose_model *open_config_as(const char *name, rose_format dtype, const char *format)
{
    char file[128], config[1024], dir[] = "/tmp/rose-load-XXXXXX", command[64];
    rose_random_opts o;
    rose_model *m = NULL;
    rose_err err = {""};
    rose_random_opts_default(&o);
    o.no_weights = strcmp(format, "dummy") == 0;
    snprintf(file, sizeof file, "tests/golden/%s.config.json", name);
    golden_path(config, sizeof config, file);
    o.config = config;
    o.dtype = dtype;
    assert_non_null(mkdtemp(dir));
    if (rose_random_model_write(&o, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
    if (rose_model_open_as(&m, dir, format, &err) != ROSE_OK) fail_msg("%s", err.msg);
    snprintf(command, sizeof command, "rm -rf %s", dir); /* the mappings stay */
    assert_int_equal(system(command), 0);
    return m;
}

static rose_model *open_config(const char *name, rose_format dtype)
{
    return open_config_as(name, dtype, "auto");
}

static void test_families(void **state)
{
    (void)state;
    const golden_list *all = golden_families();
    for (uint32_t i = 0; i < all->n; i++) {
        rose_model *m = open_config(all->name[i], i % 2 == 0 ? ROSE_BF16 : ROSE_F16);
        check_model(m, i % 2 == 0 ? ROSE_COMPUTE_BF16 : ROSE_COMPUTE_F16, 1 << 20);
        rose_model_close(m);
    }
}

/* GPT-2: matrices stored [in][out]; fp32 sources. The small staging area takes few rows at a time;
 * several threads fill the large one. */
static void test_gpt2(void **state)
{
    static const rose_compute dtypes[] = {ROSE_COMPUTE_F16, ROSE_COMPUTE_BF16, ROSE_COMPUTE_F32};
    (void)state;
    char path[1024];
    rose_model *m = NULL;
    rose_err err = {""};
    golden_path(path, sizeof path, "models/rose-tiny");
    if (rose_model_open(&m, path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < 3; i++)
        check_model(m, dtypes[i], i == 0 ? 8 << 20 : 128 << 10);
    rose_model_close(m);
}

/* Rows that a GGUF file keeps interleaved, and fp32 sources. */
static void test_permuted(void **state)
{
    (void)state;
    rose_model *m = open_config("families/qwen2", ROSE_F32);
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        m->layers[i].m[ROSE_QKV].permuted_heads[0] = m->arch.kinds[0].mixer.n_heads;
        m->layers[i].m[ROSE_QKV].permuted_heads[1] = m->arch.kinds[0].mixer.n_kv_heads;
    }
    check_model(m, ROSE_COMPUTE_BF16, 64 << 10);
    check_model(m, ROSE_COMPUTE_F32, 1 << 20);
    rose_model_close(m);
}

/* A copy of t whose values are random blocks of this type. The caller frees its data. */
static void to_blocks(rose_tensor *t, rose_format dtype, fx_random *r)
{
    t->dtype = dtype;
    const uint64_t bytes = rose_values_bytes(dtype, t->shape[0] * t->shape[1]);
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    for (uint64_t i = 0; i < bytes; i++) /* 0x2c: every fp16 scale is small and finite */
        data[i] = (uint8_t)(fx_below(r, 128) & 0x2c);
    t->data = data;
}

/* Block types are widened on the host, by several threads where a slice is large. */
static void test_blocks(void **state)
{
    static const rose_format types[] = {ROSE_Q8_0, ROSE_Q4_0, ROSE_Q6_K, ROSE_Q4_K};
    (void)state;
    fx_random r = {fx_seed(), 0};
    rose_model *m = open_config("families/gemma3", ROSE_BF16);
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        rose_layer *l = &m->layers[i];
        to_blocks(&l->m[ROSE_DOWN].w[0], types[i % 4], &r); /* k is 256 */
        to_blocks(&l->m[ROSE_OUT].w[0], types[i % 4], &r);  /* k is 512 */
        to_blocks(&l->m[ROSE_UP].w[1], ROSE_Q8_0, &r);
    }
    check_model(m, ROSE_COMPUTE_BF16, 4 << 20);
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        rose_layer *l = &m->layers[i];
        free((void *)(uintptr_t)l->m[ROSE_DOWN].w[0].data);
        free((void *)(uintptr_t)l->m[ROSE_OUT].w[0].data);
        free((void *)(uintptr_t)l->m[ROSE_UP].w[1].data);
    }
    rose_model_close(m);
}

static rose_memory_plan plan_of(const rose_model *m, rose_compute dtype)
{
    rose_backend_opts o;
    rose_memory_plan p;
    rose_err err = {""};
    rose_backend_opts_default(&o);
    o.dtype = dtype;
    if (rose_cuda_plan(m, &o, &p, &err) != ROSE_OK) fail_msg("%s: %s", m->name, err.msg);
    return p;
}

/* Values of a packed matrix. */
static uint64_t padded(uint64_t n, uint64_t k)
{
    return (n + ROSE_CUDA_N_PAD - 1) / ROSE_CUDA_N_PAD * ROSE_CUDA_N_PAD *
           ((k + ROSE_CUDA_K_PAD - 1) / ROSE_CUDA_K_PAD * ROSE_CUDA_K_PAD);
}

/* One copy of the weights: the plan counts each matrix once, and the head once if it is tied. */
static void check_sizes(rose_model *m)
{
    rose_arch *const a = &m->arch;
    const uint64_t d = a->d_model,
                   o = (uint64_t)a->kinds[0].mixer.n_heads * a->kinds[0].mixer.head_dim,
                   ff = a->kinds[0].mlp.d_ff;
    const uint64_t qkv =
        o + 2 * (uint64_t)a->kinds[0].mixer.n_kv_heads * a->kinds[0].mixer.head_dim;
    const uint64_t head = padded(a->vocab_size, d);
    const uint64_t layer = padded(qkv, d) + padded(d, o) + padded(2 * ff, d) + padded(d, ff);
    const uint64_t small =
        (uint64_t)a->max_positions * a->kinds[0].mixer.head_dim * 2 * sizeof(float) +
        a->n_layers * (qkv + 8 * d + 2048) * sizeof(float);
    for (int tied = 0; tied < 2; tied++) {
        const uint64_t values = a->n_layers * layer + (tied ? 1 : 2) * head;
        a->tied_head = tied;
        const rose_memory_plan p = plan_of(m, ROSE_COMPUTE_BF16);
        assert_in_range(p.weights, 2 * values, 2 * values + small);
        assert_in_range(plan_of(m, ROSE_COMPUTE_F32).weights, 4 * values, 4 * values + small);
        assert_int_equal(p.total, p.weights + p.kv + p.scratch + p.graphs);
        uint64_t kv = 0, block = 0;
        for (uint32_t i = 0; i < p.n_pools; i++) {
            kv += p.pools[i].n_blocks * p.pools[i].block_bytes;
            block += p.pools[i].block_bytes;
        }
        assert_int_equal(p.kv, kv);
        assert_int_equal(block, a->n_layers * (uint64_t)a->kinds[0].mixer.n_kv_heads * 2 * 16 *
                                    rose_cuda_attend_pad(a->kinds[0].mixer.head_dim) * 2);
    }
}

static void test_sizes(void **state)
{
    (void)state;
    const golden_list *all = golden_families();
    for (uint32_t i = 0; i < all->n; i++) {
        rose_model *m = open_config(all->name[i], ROSE_BF16);
        check_sizes(m);
        rose_model_close(m);
    }
}

static void refused(rose_model *m, const char *why)
{
    rose_err err = {""};
    assert_int_equal(rose_cuda_check(m, &err), ROSE_E_UNSUPPORTED);
    if (strstr(err.msg, why) == NULL) fail_msg("'%s' is not in: %s", why, err.msg);
}

/* Every family is taken; a shape that no kernel computes is refused by name. */
static void test_check(void **state)
{
    static const rose_format files[] = {ROSE_F32, ROSE_F16, ROSE_BF16, ROSE_Q4_K};
    static const rose_compute taken[] = {ROSE_COMPUTE_BF16, ROSE_COMPUTE_F16, ROSE_COMPUTE_BF16,
                                         ROSE_COMPUTE_BF16};
    (void)state;
    rose_err err = {""};
    const golden_list *all = golden_families();
    for (uint32_t i = 0; i < all->n; i++) {
        rose_model *m = open_config(all->name[i], ROSE_BF16);
        if (rose_cuda_check(m, &err) != ROSE_OK) fail_msg("%s: %s", m->name, err.msg);
        rose_model_close(m);
    }
    rose_model *m = open_config("families/llama", ROSE_BF16);
    for (int i = 0; i < 4; i++) {
        m->dtype = files[i];
        assert_int_equal(plan_of(m, ROSE_COMPUTE_AUTO).dtype, taken[i]);
    }
    const rose_arch a = m->arch;
    m->arch.kinds[0].mixer.head_dim = 512;
    refused(m, "head size 512");
    m->arch = a;
    m->arch.kinds[0].mixer.n_kv_heads = 3;
    refused(m, "8 query heads and 3 KV heads");
    m->arch = a;
    m->arch.kinds[0].mlp.d_ff = 100;
    refused(m, "MLP width 100");
    m->arch = a;
    m->arch.kinds[0].mixer.rope.dim = 66;
    refused(m, "RoPE turns 66 values of a head of 64");
    m->arch = a;
    rose_model_close(m);
}

/* Load format "dummy": the weights that the GPU draws are those of the written model. */
static void test_dummy(void **state)
{
    static const rose_format files[] = {ROSE_BF16, ROSE_F32, ROSE_F16};
    static const char *const names[] = {"families/gemma3", "families/llama-dynamic",
                                        "families/phi3"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        rose_model *written = open_config(names[i], files[i]);
        rose_model *dummy = open_config_as(names[i], files[i], "dummy");
        rose_cuda want = load(written, ROSE_COMPUTE_BF16, 40 << 10);
        rose_cuda got = load(dummy, ROSE_COMPUTE_BF16, 64 << 10);
        assert_int_equal(got.plan.weights, want.plan.weights);
        assert_memory_equal(got.ranks[0].weights_base, want.ranks[0].weights_base,
                            want.plan.weights);
        drop(&want);
        drop(&got);
        rose_model_close(written);
        rose_model_close(dummy);
    }
}

/* A pool of KV pages that is smaller than eight rows is refused in words. */
static void test_small_pool(void **state)
{
    (void)state;
    rose_model *m = open_config("families/qwen3", ROSE_BF16);
    rose_cuda c = load(m, ROSE_COMPUTE_BF16, 1 << 20);
    rose_err err = {""};
    c.plan.kv = 256;
    c.ranks[0].c = &c;
    assert_int_equal(rose_cuda_load(&c.ranks[0], m, &err), ROSE_E_NOMEM);
    assert_non_null(strstr(err.msg, "exceed the KV pool"));
    drop(&c);
    rose_model_close(m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),   cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_permuted),   cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_sizes),      cmocka_unit_test(test_check),
        cmocka_unit_test(test_small_pool), cmocka_unit_test(test_dummy),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
