/* tests/backend/cuda_bits.h - matrix products of every kernel, every epilogue: the same bits as
 * those of `tiles`. On random bits of weights and rows, which need no reference, so that large
 * shapes are quick. */
#ifndef ROSE_TESTS_BACKEND_CUDA_BITS_H
#define ROSE_TESTS_BACKEND_CUDA_BITS_H

#include "backend/cuda_fixture.h"
#include "backend/cuda_values.h"

/* ROSE_CUDA_KERNEL=NAME leaves the other kernels out. */
static inline bool left_out(const rose_cuda_gemm *kernel)
{
    const char *only = getenv("ROSE_CUDA_KERNEL");
    return only != NULL && strcmp(only, fx_kernel_name(kernel)) != 0;
}

typedef struct bits {
    rose_cuda_type type;
    uint32_t m, k, n, n_pages, head_dim;
    void *w, *cores[2], *h; /* cores: [1] as of q, K and V */
    float *bias;
    uint32_t *slot;
    float *x, *norm; /* [16][k], [2][k]: h becomes LayerNorm(x); or NULL */
    uint32_t without;
    bool to_rows; /* K and V, for attention to put into their pages */
} bits;

/* Values of about unit size, the same for the same seed. */
static inline void *random_values(fx_random *r, rose_cuda_type t, size_t n, float scale)
{
    enum { PATTERN = 65521 };
    uint16_t *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n && i < PATTERN; i++)
        v[i] = fx_16(t, (2 * fx_uniform(r) - 1) * scale);
    for (size_t i = PATTERN; i < n; i++) /* no two tiles alike: the period is prime */
        v[i] = v[i - PATTERN];
    void *d = fx_to_device(v, n * sizeof *v);
    free(v);
    return d;
}

/* Rows of sequences that begin anywhere in a page, and some that write nowhere; of each 16 rows the
 * half are a whole page. */
static inline uint32_t *random_slots(fx_random *r, uint32_t m, uint32_t *n_pages)
{
    uint32_t *slot = malloc(m * sizeof *slot), page = 0, token = 0;
    bool whole = false;
    assert_non_null(slot);
    for (uint32_t i = 0; i < m; i++) {
        if (i % 16 == 0) whole = fx_below(r, 2) == 0;
        if (whole ? i % 16 == 0 : fx_below(r, 13) == 0) {
            page++;
            token = whole ? 0 : fx_below(r, 16);
        }
        slot[i] = !whole && fx_below(r, 29) == 0 ? ROSE_CUDA_NO_SLOT : page * 16 + token;
        if (++token == 16) {
            token = 0;
            page++;
        }
    }
    uint32_t *d = fx_to_device(slot, m * sizeof *slot);
    free(slot);
    *n_pages = page + 1;
    return d;
}

/* Among them what a 16-bit type cannot hold: K and V saturate. */
static inline float *random_bias(fx_random *r, uint32_t n)
{
    static const float extreme[] = {65504,   65519,    -65520, 70000,    -70000,
                                    3.4e38f, -3.4e38f, NAN,    INFINITY, -INFINITY};
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t e = fx_below(r, 100);
        v[i] = e < 10 ? extreme[e] : 2 * fx_uniform(r) - 1;
    }
    float *d = fx_to_device(v, n * sizeof *v);
    free(v);
    return d;
}

static inline void *make_cores(const bits *b, bool kv)
{
    const rose_cuda_launch at = {.device = fx_gpu(), .type = b->type};
    rose_cuda_linear l = {.w = b->w, .k = b->k, .n = b->n, .k_pad = up(b->k, 32), .kv = kv};
    l.n_pad = up(b->n, 128);
    l.cores = fx_to_device(NULL, (size_t)l.k_pad * l.n_pad * 2);
    assert_int_equal(rose_cuda_cores_run(&at, &l), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    return l.cores;
}

enum { EPILOGUES = 4 };

/* Logits of a row in what run_bits gives: apart by more than there are, or not. */
static inline uint32_t bits_ld_logits(const bits *b)
{
    const uint32_t ld = b->n + (b->m % 2 != 0 ? 3 : 0);
    return ld < up(b->n, 32) ? ld : up(b->n, 32);
}

/* Head sizes for k values: some fill their place in a page, and some do not. */
static inline uint32_t some_head_dim(uint32_t k, uint32_t which)
{
    static const uint32_t dims[] = {64, 24, 48, 96, 128, 16, 32, 80};
    const uint32_t dim = dims[which % 8];
    return k % dim == 0 ? dim : 64;
}

/* The rows of a product are LayerNorm(b->x): by a kernel of its own where b->without says so.
 */
static inline void norm_rows(const bits *b, const rose_cuda_launch *at, const rose_cuda_linear *w,
                             rose_cuda_io *io)
{
    const rose_cuda_norm a = {.x = b->x,
                              .w = b->norm,
                              .b = b->norm + b->k,
                              .eps = 1e-5f,
                              .out = b->h,
                              .out_k_pad = w->k_pad,
                              .d = b->k,
                              .rows = b->m};
    io->x = b->x;
    io->ld_x = b->k;
    assert_int_equal(rose_cuda_linear_norms(at, w, io), b->without == 0);
    if (b->without != 0) {
        assert_int_equal(rose_cuda_norm_run(at, &a), cudaSuccess);
        return;
    }
    io->h = NULL;
    io->norm_w = a.w;
    io->norm_b = a.b;
    io->norm_eps = a.eps;
}

/* Runs one epilogue with one kernel on poisoned output. Returns the output in host memory,
 * followed by a key for each row. NULL: this shape does not have the epilogue. */
static inline uint8_t *run_bits(const bits *b, rose_cuda_epilogue epilogue,
                                const rose_cuda_gemm *kernel, size_t *bytes)
{
    const rose_cuda_launch at = {
        .device = fx_gpu(), .type = b->type, .without = b->without, .forced = kernel};
    const bool qkv = epilogue == ROSE_CUDA_EPI_QKV, head = epilogue == ROSE_CUDA_EPI_LOGITS;
    if (qkv && (b->n != 3 * b->k || b->k % b->head_dim != 0)) return NULL;
    const uint32_t heads = b->k / b->head_dim, hd_pad = rose_cuda_hd_pad(b->head_dim);
    const size_t q_bytes = (size_t)b->m * b->k * 2,
                 page_bytes =
                     b->to_rows ? 2 * q_bytes : (size_t)b->n_pages * 2 * 16 * heads * hd_pad * 2,
                 keys = head ? b->m * sizeof(unsigned long long) : 0;
    const rose_cuda_linear w = {.w = b->w,
                                .cores = b->cores[qkv],
                                .kv = qkv,
                                .bias = head ? NULL : b->bias,
                                .k = b->k,
                                .k_pad = up(b->k, 32),
                                .n = b->n - (head ? 1 : 0),
                                .n_pad = up(b->n, 128)};
    *bytes = qkv ? q_bytes + page_bytes : (size_t)up(b->m + 1, 8) * up(b->n, 32) * 4;
    uint8_t *d = fx_to_device(NULL, *bytes + keys), *y = malloc(*bytes + keys);
    assert_non_null(y);
    assert_int_equal(cudaMemset(d, 0x3c, *bytes), cudaSuccess);
    rose_cuda_io io = {.h = b->h,
                       .rows = b->m,
                       .epilogue = epilogue,
                       .x = (float *)(void *)d,
                       .ld_x = b->n,
                       .out = d,
                       .out_k_pad = up(b->n, 32),
                       .act = ROSE_ACT_GELU_TANH,
                       .logits = (float *)(void *)d,
                       .ld_logits = bits_ld_logits(b),
                       .q = d,
                       .slot = b->to_rows ? NULL : b->slot,
                       .kv_rows = b->to_rows ? d + q_bytes : NULL};
    if (head) io.key = (unsigned long long *)(void *)(d + *bytes);
    if (qkv)
        io.kv = (rose_cuda_kv){.base = d + q_bytes,
                               .page_elems = (uint64_t)2 * 16 * heads * hd_pad,
                               .head_dim = b->head_dim,
                               .hd_pad = hd_pad,
                               .n_heads = heads};
    if (b->x != NULL) norm_rows(b, &at, &w, &io);
    assert_int_equal(rose_cuda_linear_run(&at, &w, &io), cudaSuccess);
    fetch(y, d, *bytes + keys);
    cudaFree(d);
    *bytes += keys;
    return y;
}

/* Whether `kernel` differs from `want`, of `tiles`; the line of it says where. */
static inline int compare_kernel(const bits *b, rose_cuda_epilogue e, const rose_cuda_gemm *kernel,
                                 const uint8_t *want)
{
    size_t bytes, first = 0, n = 0;
    uint8_t *y = run_bits(b, e, kernel, &bytes);
    for (size_t i = memcmp(y, want, bytes) != 0 ? bytes : 0; i-- > 0;)
        if (y[i] != want[i]) n++, first = i;
    if (n > 0)
        print_message("type %d, %u x %u x %u, epilogue %d: kernel %s differs in %zu of "
                      "%zu bytes, the first is %zu\n",
                      (int)b->type, b->m, b->k, b->n, (int)e, fx_kernel_name(kernel), n, bytes,
                      first);
    free(y);
    return n > 0;
}

/* How many kernels differ from `tiles`. */
static inline int compare_epilogue(const bits *b, rose_cuda_epilogue e)
{
    size_t bytes;
    int n_bad = 0;
    uint8_t *want = run_bits(b, e, fx_named("tiles"), &bytes);
    for (uint32_t i = 0; want != NULL && i <= rose_cuda_n_gemms; i++) {
        const rose_cuda_gemm *g = fx_kernel(i);
        /* With many rows `rows` takes too long. */
        if (!left_out(g) && (b->m <= 512 || strcmp(fx_kernel_name(g), "rows") != 0))
            n_bad += compare_kernel(b, e, g, want);
    }
    free(want);
    return n_bad;
}

static inline int compare_bits(const bits *b)
{
    int n_bad = 0;
    bits rows = *b;
    rows.to_rows = true;
    for (int e = 0; e < EPILOGUES; e++)
        n_bad += compare_epilogue(b, (rose_cuda_epilogue)e);
    return n_bad + compare_epilogue(&rows, ROSE_CUDA_EPI_QKV);
}

static inline bits make_bits(fx_random *r, rose_cuda_type type, uint32_t m, uint32_t k, uint32_t n)
{
    bits b = {.type = type, .m = m, .k = k, .n = n, .head_dim = 64};
    b.w = random_values(r, type, (size_t)up(k, 32) * up(n, 128), 0.1f);
    for (int kv = 0; kv < 2; kv++)
        b.cores[kv] = make_cores(&b, kv != 0);
    b.h = random_values(r, type, (size_t)up(m, 128) * up(k, 32), 1);
    b.bias = random_bias(r, n);
    b.slot = random_slots(r, m, &b.n_pages);
    return b;
}

static inline void free_bits(bits *b)
{
    cudaFree(b->w);
    cudaFree(b->cores[0]);
    cudaFree(b->cores[1]);
    cudaFree(b->h);
    cudaFree(b->bias);
    cudaFree(b->slot);
}

#endif
