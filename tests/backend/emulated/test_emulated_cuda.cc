/* tests/backend/emulated/test_emulated_cuda.cc - the matrix kernels of linear_wide.cuh and
 * linear_once.cuh, from their sources, on machine.h: every kernel, every epilogue, bit for bit what
 * docs/NUMERICS.md says, with copies and products as early and as late as they may be. The only
 * test of these kernels where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "backend/cuda/linear_types.h"
#include "backend/cuda/linear_wide.cuh"
#include "machine.h"

extern "C" {
#include <cmocka.h>
}

/* ---- the CUDA runtime, as far as the launchers ask ---- */

enum { MULTIPROCESSORS = 3 /* so that blocks have several tiles */ };

extern "C" {
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int)
{
    *value = attr == cudaDevAttrComputeCapabilityMajor ? 9 : MULTIPROCESSORS;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *)
{
    *a = {};
    a->sharedSizeBytes = 1;
    return cudaSuccess;
}
cudaError_t CUDARTAPI cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
    return value <= 227 << 10 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char *, void **f, unsigned,
                                                       unsigned long long,
                                                       cudaDriverEntryPointQueryResult *found)
{
    *f = reinterpret_cast<void *>(make_map);
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
}

/* ---- the contract, output by output; in place of the kernels that are not emulated ---- */

template <typename T>
static float sum_of(const rose_cuda_linear *l, const rose_cuda_io *io, uint32_t row, uint32_t n)
{
    const T *w = static_cast<const T *>(l->w), *h = static_cast<const T *>(io->h);
    float sum = 0;
    if (n >= l->n) return 0;
    for (uint32_t first = 0; first < l->k_pad; first += CHUNK_K) {
        float acc = 0;
        for (uint32_t k = first; k < first + CHUNK_K && k < l->k_pad; k += 16) {
            float x[16], y[16];
            for (uint32_t i = 0; i < 16; i++) {
                x[i] = to_f32(h[h_index(row, k + i, l->k_pad)]);
                y[i] = to_f32(w[w_index(n, k + i, l->k_pad, w)]);
            }
            acc = add_products(acc, x, y);
        }
        sum = sum + acc;
    }
    return sum;
}

template <typename T>
static cudaError_t run_reference(const rose_cuda_linear *l, const rose_cuda_io *io)
{
    for (uint32_t row = 0; row < io->rows; row++)
        for (uint32_t n = 0; n < l->n; n += 2) {
            pair_inputs in;
            in.bias = load_bias(*l, n);
            load_pair_inputs(&in, *l, *io, row, n);
            const unsigned long long key = finish_pair<T>(*l, *io, row, n, sum_of<T>(l, io, row, n),
                                                          sum_of<T>(l, io, row, n + 1), in);
            if (io->key != NULL && io->epilogue == ROSE_CUDA_EPI_LOGITS)
                atomicMax(io->key + row, key);
        }
    return cudaSuccess;
}

extern "C" {
cudaError_t rose_cuda_linear_f16(const rose_cuda_launch *, const rose_cuda_linear *l,
                                 const rose_cuda_io *io, bool)
{
    return run_reference<__half>(l, io);
}
cudaError_t rose_cuda_linear_bf16(const rose_cuda_launch *, const rose_cuda_linear *l,
                                  const rose_cuda_io *io, bool)
{
    return run_reference<__nv_bfloat16>(l, io);
}
cudaError_t rose_cuda_head_f16(const rose_cuda_launch *, const rose_cuda_linear *l,
                               const rose_cuda_io *io)
{
    return run_reference<__half>(l, io);
}
cudaError_t rose_cuda_head_bf16(const rose_cuda_launch *, const rose_cuda_linear *l,
                                const rose_cuda_io *io)
{
    return run_reference<__nv_bfloat16>(l, io);
}
cudaError_t rose_cuda_linear_init_f16(void)
{
    return cudaSuccess;
}
cudaError_t rose_cuda_linear_init_bf16(void)
{
    return cudaSuccess;
}
cudaError_t rose_cuda_team_init_f16(bool *there)
{
    *there = false;
    return cudaSuccess;
}
cudaError_t rose_cuda_team_init_bf16(bool *there)
{
    *there = false;
    return cudaSuccess;
}
#define NEVER(name, ...)                                                                           \
    cudaError_t name(const rose_cuda_launch *, const rose_cuda_linear *,                           \
                     const rose_cuda_io *__VA_OPT__(, ) __VA_ARGS__)                               \
    {                                                                                              \
        return cudaErrorNotSupported;                                                              \
    }
NEVER(rose_cuda_team_f16, rose_cuda_team)
NEVER(rose_cuda_team_bf16, rose_cuda_team)
NEVER(rose_cuda_normed_f16)
NEVER(rose_cuda_normed_bf16)
NEVER(rose_cuda_linear_f32)
}

/* ---- problems ---- */

static uint64_t g_state; /* ROSE_TEST_SEED */

static uint32_t any(uint32_t below)
{
    g_state ^= g_state << 13;
    g_state ^= g_state >> 7;
    g_state ^= g_state << 17;
    return (uint32_t)(g_state >> 33) % below;
}

static float any_float(void)
{
    return (float)any(1 << 20) / (1 << 19) - 1;
}

static uint32_t up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

template <typename T> struct bytes { /* aligned as device memory is */
    std::vector<T> all;
    size_t skip;
    explicit bytes(size_t n) : all(n + 256 / sizeof(T))
    {
        skip = (256 - reinterpret_cast<uintptr_t>(all.data()) % 256) % 256 / sizeof(T);
    }
    T *at()
    {
        return all.data() + skip;
    }
};

static const uint32_t HEAD_DIM = 16;

/* One product by `kernel`: all bytes that it may have written. */
template <typename T>
static std::vector<uint8_t> outputs_of(const rose_cuda_launch &at, const rose_cuda_linear &l,
                                       rose_cuda_io io, int kernel, uint32_t n_pages)
{
    const bool qkv = io.epilogue == ROSE_CUDA_EPI_QKV, head = io.epilogue == ROSE_CUDA_EPI_LOGITS;
    const size_t q = (size_t)io.rows * l.k * 2, page = (size_t)2 * ROSE_PAGE * l.k * 2,
                 size = qkv ? q + n_pages * page : (size_t)up(io.rows + 1, 8) * up(l.n + 4, 32) * 4;
    bytes<uint8_t> to(up((uint32_t)size, 16));
    bytes<unsigned long long> key(io.rows);
    memset(to.at(), 0x3c, size);
    io.x = reinterpret_cast<float *>(to.at());
    io.ld_x = l.n;
    io.out = to.at();
    io.out_k_pad = up(l.n, 32);
    io.act = ROSE_ACT_GELU_TANH;
    io.logits = io.x;
    io.ld_logits = l.n + (io.rows % 2 != 0 ? 3 : 0);
    io.key = head ? key.at() : NULL;
    io.q = to.at();
    io.kv = {};
    io.kv.base = to.at() + up((uint32_t)q, 16);
    io.kv.page_elems = (uint64_t)2 * ROSE_PAGE * l.k;
    io.kv.head_dim = io.kv.hd_pad = HEAD_DIM;
    io.kv.n_heads = l.k / HEAD_DIM;
    rose_cuda_linear_force(kernel);
    const cudaError_t e = rose_cuda_linear_run(&at, &l, &io);
    rose_cuda_linear_force(0);
    assert_int_equal(e, cudaSuccess);
    std::vector<uint8_t> y(to.at(), to.at() + size);
    const uint8_t *keys = reinterpret_cast<const uint8_t *>(key.at());
    y.insert(y.end(), keys, keys + io.rows * sizeof(unsigned long long));
    return y;
}

/* How many kernels differ. */
template <typename T>
static int compare(rose_cuda_type type, uint32_t rows, uint32_t k, uint32_t n, rose_cuda_epilogue e)
{
    const bool head = e == ROSE_CUDA_EPI_LOGITS;
    rose_cuda_launch at = {};
    rose_cuda_linear l = {};
    rose_cuda_io io = {};
    at.type = type;
    l.k = k;
    l.k_pad = up(k, 32);
    l.n = n - (head ? 1 : 0);
    l.n_pad = up(n, 128);
    l.kv = e == ROSE_CUDA_EPI_QKV;
    bytes<T> w((size_t)l.k_pad * l.n_pad), cores((size_t)l.k_pad * l.n_pad),
        h((size_t)up(rows, 8) * l.k_pad);
    bytes<float> bias(n);
    bytes<uint32_t> slot(rows);
    for (uint32_t i = 0; i < l.n_pad; i++)
        for (uint32_t j = 0; j < l.k_pad; j++) {
            T *v = w.at() + w_index(i, j, l.k_pad, w.at());
            from_f32(i < l.n && j < k ? any_float() * 0.1f : 0, v);
            cores.at()[core_index(l, i, j)] = *v;
        }
    for (uint32_t i = 0; i < up(rows, 8); i++)
        for (uint32_t j = 0; j < l.k_pad; j++)
            from_f32(i < rows && j < k ? any_float() : 0, h.at() + h_index(i, j, l.k_pad));
    for (uint32_t i = 0; i < n; i++)
        bias.at()[i] = any_float();
    uint32_t place = 0; /* whole pages, parts of them, rows that write nowhere */
    for (uint32_t i = 0; i < rows; i++) {
        if (i % 16 == 0 && any(2) == 0) place = up(place, ROSE_PAGE);
        if (any(40) == 0) place++;
        slot.at()[i] = any(30) == 0 ? ROSE_CUDA_NO_SLOT : place++;
    }
    l.w = w.at();
    l.cores = cores.at();
    l.bias = head || any(4) == 0 ? NULL : bias.at();
    io.h = h.at();
    io.rows = rows;
    io.epilogue = e;
    io.slot = slot.at();
    const uint32_t n_pages = place / ROSE_PAGE + 1;
    const std::vector<uint8_t> want = outputs_of<T>(at, l, io, 2, n_pages);
    std::map<const void *, int> kernels;
    int n_bad = 0;
    for (int kernel = ROSE_CUDA_WIDE; kernel <= ROSE_CUDA_N_KERNELS; kernel++) {
        const bool chosen = kernel == ROSE_CUDA_N_KERNELS; /* by the engine */
        machine::g_manner = {any(2) == 0, any(2) == 0};
        machine::g_kernel = NULL;
        at.beside = any(2) == 0;
        const std::vector<uint8_t> y = outputs_of<T>(at, l, io, chosen ? 0 : kernel, n_pages);
        if (!chosen && machine::g_kernel != NULL &&
            !kernels.insert({machine::g_kernel, kernel}).second) {
            print_message("%s runs %s\n", rose_cuda_linear_name(kernel),
                          rose_cuda_linear_name(kernels[machine::g_kernel]));
            n_bad++;
        }
        size_t differ = 0;
        for (size_t i = 0; i < want.size(); i++)
            differ += want[i] != y[i];
        if (differ > 0)
            print_message(
                "type %d, %u x %u x %u, epilogue %d, %s, copies %s, products %s: %zu of %zu "
                "bytes differ\n",
                (int)type, rows, k, n, (int)e, rose_cuda_linear_name(kernel),
                machine::g_manner.late_copies ? "late" : "early",
                machine::g_manner.late_products ? "late" : "early", differ, want.size());
        n_bad += differ > 0;
    }
    return n_bad;
}

static void test_kernels(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 65, 63, 130, 64, 200};
    static const struct {
        uint32_t k, n;
    } shapes[] = {{64, 192},  {128, 384}, {200, 136}, {832, 100},
                  {1600, 56}, {3072, 48}, {6144, 8},  {6176, 8}};
    bool wide;
    int n_bad = 0;
    assert_int_equal(rose_cuda_linear_init(&wide), cudaSuccess);
    assert_true(wide);
    for (const auto &s : shapes)
        for (int e = 0; e < 4; e++) {
            if (e == ROSE_CUDA_EPI_QKV && s.n != 3 * s.k) continue;
            if (s.k > 1000 && e != ROSE_CUDA_EPI_RESIDUAL) continue;
            for (size_t i = any(2); i < sizeof rows / sizeof *rows; i += 2) {
                const rose_cuda_epilogue end = (rose_cuda_epilogue)e;
                n_bad += any(2) == 0
                             ? compare<__half>(ROSE_CUDA_F16, rows[i], s.k, s.n, end)
                             : compare<__nv_bfloat16>(ROSE_CUDA_BF16, rows[i], s.k, s.n, end);
            }
        }
    assert_int_equal(n_bad, 0);
    assert_false(machine::g_hung);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels)};
    const char *seed = getenv("ROSE_TEST_SEED");
    g_state = (seed != NULL ? strtoull(seed, NULL, 0) : 20261122) * 2 + 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
