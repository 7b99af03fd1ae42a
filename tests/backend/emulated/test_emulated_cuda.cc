/* tests/backend/emulated/test_emulated_cuda.cc - the matrix kernels of linear_wide.cuh,
 * linear_once.cuh and linear_pingpong.cuh, from their sources, on machine.h: every kernel, every
 * epilogue, bit for bit what docs/NUMERICS.md says, with copies and GEMMs as early and as late as
 * they may be. The only test of these kernels where there is no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <algorithm>

#include "backend/cuda/gemm.h"
#include "backend/cuda/hopper.cuh"
#include "machine.h"

extern "C" {
#include <cmocka.h>
}

/* ---- the CUDA runtime, as far as the launchers ask ---- */

enum { CHUNK_K = ROSE_CUDA_CHUNK_K32 * 32 };
enum { MULTIPROCESSORS = 4 /* so that blocks have several tiles, and pairs as well */ };

static const rose_cuda_device g_device = {.index = 0,
                                          .sms = MULTIPROCESSORS,
                                          .cc = 90,
                                          .code = 90,
                                          .hopper = true,
                                          .shared_max = 227 << 10,
                                          .shared_sm = 228 << 10,
                                          .l2 = 50 << 20,
                                          .encode = reinterpret_cast<void *>(make_map)};

extern "C" {
cudaError_t CUDARTAPI cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value)
{
    return value <= 227 << 10 ? cudaSuccess : cudaErrorInvalidValue;
}
}

/* ---- the contract, output by output; in place of the kernels that are not emulated ---- */

template <typename T>
static float sum_of(const rose_cuda_linear *l, const rose_cuda_io *io, uint32_t row, uint32_t n)
{
    const T *w = static_cast<const T *>(l->w), *h = static_cast<const T *>(io->h);
    float sum = 0;
    if (n >= l->n) return 0;
    const uint32_t chunk = io->epilogue == ROSE_CUDA_EPI_LOGITS ? l->k_pad : (uint32_t)CHUNK_K;
    for (uint32_t first = 0; first < l->k_pad; first += chunk) {
        float acc = 0;
        for (uint32_t k = first; k < first + chunk && k < l->k_pad; k += 16) {
            double x[16], y[16];
            for (uint32_t i = 0; i < 16; i++) {
                x[i] = (double)to_f32(h[h_index(row, k + i, l->k_pad)]);
                y[i] = (double)to_f32(w[w_index(n, k + i, l->k_pad, w)]);
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

/* `rows`, `tiles` and `head` are the contract here; `team` is never chosen. */
#define CONTRACT(name)                                                                             \
    cudaError_t name##_f16(const rose_cuda_launch *, const rose_cuda_linear *l,                    \
                           const rose_cuda_io *io)                                                 \
    {                                                                                              \
        return run_reference<__half>(l, io);                                                       \
    }                                                                                              \
    cudaError_t name##_bf16(const rose_cuda_launch *, const rose_cuda_linear *l,                   \
                            const rose_cuda_io *io)                                                \
    {                                                                                              \
        return run_reference<__nv_bfloat16>(l, io);                                                \
    }
#define NEVER(name)                                                                                \
    cudaError_t name(const rose_cuda_launch *, const rose_cuda_linear *, const rose_cuda_io *)     \
    {                                                                                              \
        return cudaErrorNotSupported;                                                              \
    }
#define PREPARED(name)                                                                             \
    cudaError_t name##_f16(const rose_cuda_device *)                                               \
    {                                                                                              \
        return cudaSuccess;                                                                        \
    }                                                                                              \
    cudaError_t name##_bf16(const rose_cuda_device *)                                              \
    {                                                                                              \
        return cudaSuccess;                                                                        \
    }
extern "C" {
CONTRACT(rose_gemm_rows)
CONTRACT(rose_gemm_tiles)
CONTRACT(rose_gemm_head)
PREPARED(rose_prepare_mma)
PREPARED(rose_prepare_head)
PREPARED(rose_prepare_team)
NEVER(rose_gemm_team_64_f16)
NEVER(rose_gemm_team_64_bf16)
NEVER(rose_gemm_team_32_f16)
NEVER(rose_gemm_team_32_bf16)
NEVER(rose_cuda_normed_f16)
NEVER(rose_cuda_normed_bf16)
NEVER(rose_cuda_linear_f32)
}

static const rose_cuda_gemm *named(const char *name)
{
    const rose_cuda_gemm *g = rose_cuda_gemm_named(name);
    if (g == NULL) machine::die("no kernel %s", name);
    return g;
}

static const char *name_of(const rose_cuda_gemm *g)
{
    return g == NULL ? "auto" : g->name;
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

/* One product: what the kernels are given. */
template <typename T> struct problem {
    rose_cuda_launch at = {};
    rose_cuda_linear l = {};
    rose_cuda_io io = {};
    uint32_t head_dim, n_pages;
    bool to_rows; /* K and V, for attention to put into their pages */
    bytes<T> w, cores, h;
    bytes<float> bias;
    bytes<uint32_t> slot;
    std::vector<unsigned long long> keys; /* of the head, before; none: it is not asked for them */
    std::vector<uint8_t> before;          /* of what is written */

    problem(rose_cuda_type type, uint32_t rows, uint32_t k, uint32_t n, rose_cuda_epilogue e,
            uint32_t of_head)
        : head_dim(of_head), to_rows(any(2) == 0), w((size_t)up(k, 32) * up(n, 128)),
          cores((size_t)up(k, 32) * up(n, 128)), h((size_t)up(rows, 8) * up(k, 32)), bias(n),
          slot(rows)
    {
        const bool head = e == ROSE_CUDA_EPI_LOGITS, qkv = e == ROSE_CUDA_EPI_QKV;
        at.device = &g_device;
        at.type = type;
        at.without = ROSE_CUDA_WITHOUT_TEAM; /* which is not emulated */
        l.k = k;
        l.k_pad = up(k, 32);
        l.n = n - (head ? 1 : 0);
        l.n_pad = up(n, 128);
        l.kv = qkv;
        io.rows = rows;
        for (uint32_t i = 0; i < l.n_pad; i++)
            for (uint32_t j = 0; j < l.k_pad; j++) {
                T *v = w.at() + w_index(i, j, l.k_pad, w.at());
                from_f32(i < l.n && j < k ? any_float() * 0.1f : 0, v);
                cores.at()[core_index(l, i, j)] = *v;
            }
        for (uint32_t i = 0; i < up(rows, 8); i++)
            for (uint32_t j = 0; j < l.k_pad; j++)
                from_f32(i < rows && j < k ? any_float() : 0, h.at() + h_index(i, j, l.k_pad));
        if (head) make_special(k);
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
        io.epilogue = e;
        io.slot = slot.at();
        io.ld_x = l.n + any(2) * 8;
        io.ld_logits = l.n + any(2) * 3;
        io.out_k_pad = up(l.n, 32);
        io.act = ROSE_ACT_GELU_TANH;
        n_pages = place / ROSE_PAGE + 1;
        if (qkv) {
            io.kv.head_dim = head_dim;
            io.kv.hd_pad = up(head_dim, 64);
            io.kv.n_heads = k / head_dim;
            io.kv.page_elems = (uint64_t)2 * ROSE_PAGE * io.kv.hd_pad * io.kv.n_heads;
        }
        const size_t kv = std::max((size_t)rows * 2 * k * 2, n_pages * io.kv.page_elems * 2);
        before.resize(qkv ? up(rows * k * 2, 256) + kv
                          : (size_t)up(rows + 1, 8) * up(n + 8, 32) * 4);
        for (size_t i = 0; i + 4 <= before.size(); i += 4) {
            const float v = any_float();
            memcpy(&before[i], &v, 4);
        }
    }

    /* For the head's largest: every second time few values, so that many logits are equal, +0 and
     * -0 among them; rows of numbers too large for sums, of infinities and of NaN; keys of before.
     */
    void make_special(uint32_t k)
    {
        const bool few = any(2) == 0;
        for (uint32_t i = 0; few && i < l.n; i++)
            for (uint32_t j = 0; j < k; j++) {
                T *v = w.at() + w_index(i, j, l.k_pad, w.at());
                from_f32(((float)any(3) - 1) * 0.125f, v);
                cores.at()[core_index(l, i, j)] = *v;
            }
        for (uint32_t i = 0; i < io.rows; i++) {
            const uint32_t kind = any(8);
            for (uint32_t j = 0; j < k; j++) {
                T *v = h.at() + h_index(i, j, l.k_pad);
                if (few) from_f32(j < 3 ? (float)any(3) - 1 : 0, v);
                if (kind == 0) from_f32(any_float() * 60000, v);
                if (kind == 1 && j == 0) from_f32(any(2) == 0 ? INFINITY : -INFINITY, v);
                if (kind == 2 && j == 0) from_f32(NAN, v);
            }
        }
        if (any(4) == 0) return;
        const bool high = any(2) == 0; /* all as large as the few can be, so that places decide */
        for (uint32_t i = 0; i < io.rows; i++)
            keys.push_back(high          ? rank_key(few ? 0.375f : 2, any(l.n))
                           : any(2) == 0 ? 0
                                         : rank_key(any_float() * 2, any(l.n)));
    }

    /* By `kernel` (NULL: the engine's choice): all that it may have written. */
    std::vector<uint8_t> run(const rose_cuda_gemm *kernel)
    {
        bytes<uint8_t> to(before.size());
        bytes<unsigned long long> key(io.rows);
        memcpy(to.at(), before.data(), before.size());
        io.x = reinterpret_cast<float *>(to.at());
        io.out = io.q = to.at();
        io.logits = io.x;
        io.key = keys.empty() ? NULL : key.at();
        std::copy(keys.begin(), keys.end(), key.at());
        io.kv.base = to.at() + up(io.rows * l.k * 2, 256);
        io.kv_rows = l.kv && to_rows ? io.kv.base : NULL;
        machine::g_kernel = NULL;
        at.forced = kernel;
        const cudaError_t e = rose_cuda_linear_run(&at, &l, &io);
        if (e != cudaSuccess) machine::die("%s: %d", name_of(kernel), (int)e);
        for (size_t i = 0; io.epilogue == ROSE_CUDA_EPI_LOGITS && i < before.size() / 4; i++)
            if (io.logits[i] != io.logits[i]) io.logits[i] = NAN; /* which one is nobody's word */
        std::vector<uint8_t> y(to.at(), to.at() + before.size());
        const uint8_t *keys = reinterpret_cast<const uint8_t *>(key.at());
        y.insert(y.end(), keys, keys + io.rows * sizeof(unsigned long long));
        return y;
    }
};

/* QKV by the contract: values of K and V that differ as rows and in their pages. */
template <typename T> static size_t rows_beside_pages(problem<T> &p)
{
    const size_t first = up(p.io.rows * p.l.k * 2, 256);
    const bool to_rows = p.to_rows;
    size_t differ = 0;
    p.to_rows = true;
    const std::vector<uint8_t> rows = p.run(named("tiles"));
    p.to_rows = false;
    std::vector<uint8_t> pages = p.run(named("tiles"));
    p.to_rows = to_rows;
    const T *row = reinterpret_cast<const T *>(rows.data() + first);
    rose_cuda_kv kv = p.io.kv;
    kv.base = pages.data() + first;
    for (uint32_t r = 0; r < p.io.rows; r++)
        for (uint32_t c = 0; c < 2 * p.l.k; c++) {
            const uint32_t slot = p.slot.at()[r], d = p.l.k, n = c % d;
            if (slot == ROSE_CUDA_NO_SLOT) continue;
            const uint32_t token = slot % ROSE_PAGE, dim = n % p.head_dim;
            const T *k = kv_block<T>(kv, slot / ROSE_PAGE, n / p.head_dim);
            const T *at =
                c < d ? k + k_index(token, dim) : k + ROSE_PAGE * kv.hd_pad + v_index(token, dim);
            differ += memcmp(at, row + (size_t)r * 2 * d + c, sizeof *at) != 0;
        }
    return differ;
}

static uint32_t g_runs;

/* How many kernels differ from the contract, or are not there. In four runs each has had each
 * manner. */
template <typename T>
static int compare(rose_cuda_type type, uint32_t rows, uint32_t k, uint32_t n, rose_cuda_epilogue e,
                   uint32_t head_dim)
{
    problem<T> p(type, rows, k, n, e, head_dim);
    const std::vector<uint8_t> want = p.run(named("tiles"));
    std::map<const void *, const char *> kernels;
    int n_bad = e == ROSE_CUDA_EPI_QKV && rows_beside_pages(p) > 0;
    if (n_bad > 0) print_message("%u x %u x %u: K and V as rows are others\n", rows, k, n);
    const uint32_t turn = g_runs++;
    for (uint32_t i = 0; i <= rose_cuda_n_gemms; i++) {
        const rose_cuda_gemm *kernel = i < rose_cuda_n_gemms ? &rose_cuda_gemms[i] : NULL;
        const uint32_t manner = (turn + i) % 4;
        const char *name = name_of(kernel);
        /* Else `tiles` runs, which is the contract here. */
        const bool expected =
            kernel == NULL ? rows > ROSE_CUDA_HEAD_ROWS && e != ROSE_CUDA_EPI_LOGITS
                           : kernel->cores && rose_cuda_gemm_takes(kernel, &p.at, &p.l, &p.io);
        if (!expected) continue;
        machine::g_manner = {manner % 2 != 0, manner / 2 != 0};
        p.at.beside = any(2) == 0;
        const std::vector<uint8_t> y = p.run(kernel);
        const void *ran = machine::g_kernel;
        /* Of up to 64 rows more tiles than this chip takes at once go to `rows`, the contract. */
        if (ran == NULL && (kernel != NULL || rows > 64)) {
            print_message("%s has not run %u x %u x %u, epilogue %d\n", name, rows, k, n, (int)e);
            n_bad++;
        }
        if (kernel != NULL && ran != NULL && !kernels.insert({ran, name}).second) {
            print_message("%s runs %s\n", name, kernels[ran]);
            n_bad++;
        }
        size_t differ = 0;
        for (size_t j = 0; j < want.size(); j++)
            differ += want[j] != y[j];
        if (differ == 0) continue;
        print_message("type %d, %u x %u x %u, epilogue %d, %s, copies %s, products %s: %zu of %zu "
                      "bytes differ\n",
                      (int)type, rows, k, n, (int)e, name, manner % 2 != 0 ? "late" : "early",
                      manner / 2 != 0 ? "late" : "early", differ, want.size());
        n_bad++;
    }
    return n_bad;
}

static int compare(int type, uint32_t rows, uint32_t k, uint32_t n, rose_cuda_epilogue e,
                   uint32_t head_dim)
{
    return type == 0 ? compare<__half>(ROSE_CUDA_F16, rows, k, n, e, head_dim)
                     : compare<__nv_bfloat16>(ROSE_CUDA_BF16, rows, k, n, e, head_dim);
}

/* Edges of rows, outputs and k. */
static void test_edges(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 65, 63, 130, 64, 200};
    static const struct {
        uint32_t k, n, head_dim;
    } shapes[] = {{64, 192, 16}, {192, 576, 48}, {200, 136, 0},
                  {1600, 56, 0}, {6144, 8, 0},   {6176, 8, 0}};
    int n_bad = 0;
    for (const auto &s : shapes)
        for (int e = 0; e < 4; e++) {
            if (e == ROSE_CUDA_EPI_QKV && s.n != 3 * s.k) continue;
            if (s.k > 1000 && e != ROSE_CUDA_EPI_RESIDUAL) continue;
            for (size_t i = any(2); i < sizeof rows / sizeof *rows; i += 2)
                n_bad += compare((int)any(2), rows[i], s.k, s.n, (rose_cuda_epilogue)e, s.head_dim);
        }
    assert_int_equal(n_bad, 0);
    assert_false(machine::g_hung);
}

/* Every kernel in every manner where its ring is used again and a block has several tiles
 * or a chain several blocks. */
static void test_rings(void **state)
{
    (void)state;
    int n_bad = 0;
    for (int i = 0; i < 4; i++) {
        n_bad += compare(i % 2, 65, 832, 100, ROSE_CUDA_EPI_RESIDUAL, 0);
        n_bad += compare(i % 2, 130, 832, 100, ROSE_CUDA_EPI_ACT, 0);
        n_bad += compare(i % 2, 65, 832, 100, ROSE_CUDA_EPI_LOGITS, 0);
        n_bad += compare(i % 2, 129 + any(64), 200, 1000, ROSE_CUDA_EPI_LOGITS, 0);
    }
    for (int type = 0; type < 2; type++)
        n_bad += compare(type, 65, 448, 1344, ROSE_CUDA_EPI_QKV, 64);
    /* Of four chunks, rows for several tiles and columns for several blocks. */
    static const uint32_t columns[] = {96, 288 /* the fourth block has their last rows */, 400};
    for (int i = 0; i < 6; i++)
        for (int e = 0; e < 4; e++)
            if (e != ROSE_CUDA_EPI_QKV)
                n_bad += compare((int)any(2), 130 + any(220), 577 + any(192), columns[any(3)],
                                 (rose_cuda_epilogue)e, 0);
    for (int type = 0; type < 2; type++)
        n_bad += compare(type, 1 + any(200), 640, 1920, ROSE_CUDA_EPI_QKV, 64);
    n_bad += compare((int)any(2), 65, 6144, 8, ROSE_CUDA_EPI_RESIDUAL, 0);
    assert_int_equal(n_bad, 0);
    assert_false(machine::g_hung);
}

/* Which kernel the engine chooses, of those that give the same bits: the residual of more than 512
 * rows goes to the tiles that take the least time; the head to
 * linear_pingpong.cuh where that has no more waves, by pairs that share weights or, of an odd
 * number of tiles of rows, rows, or to tiles of 64 rows where few rows do not go to the head's own
 * kernel. */
static void test_choice(void **state)
{
    (void)state;
    static const struct {
        rose_cuda_epilogue e;
        uint32_t rows, k, n, without;
        const char *name;
        bool chosen;
    } cases[] = {{ROSE_CUDA_EPI_RESIDUAL, 513, 640, 384, 0, "wide-192-pair", true},
                 {ROSE_CUDA_EPI_RESIDUAL, 705, 1600, 192, 0, "wide-96", true},
                 {ROSE_CUDA_EPI_LOGITS, 193, 64, 768, 0, "pingpong", true},
                 {ROSE_CUDA_EPI_LOGITS, 256, 64, 768, 0, "pingpong", true},
                 {ROSE_CUDA_EPI_LOGITS, 257, 64, 768, 0, "pingpong", false},
                 {ROSE_CUDA_EPI_LOGITS, 257, 64, 768, 0, "wide-192", true},
                 {ROSE_CUDA_EPI_LOGITS, 768, 64, 768, 0, "pingpong", true},
                 {ROSE_CUDA_EPI_LOGITS, 768, 64, 768, ROSE_CUDA_WITHOUT_PINGPONG, "wide-192", true},
                 {ROSE_CUDA_EPI_LOGITS, 128, 64, 704, 0, "pingpong-rows", true},
                 {ROSE_CUDA_EPI_LOGITS, 100, 64, 1408, 0, "pingpong-rows", true},
                 {ROSE_CUDA_EPI_LOGITS, 300, 64, 832, 0, "pingpong-rows", true},
                 {ROSE_CUDA_EPI_LOGITS, 330, 64, 832, 0, "pingpong-rows", false},
                 {ROSE_CUDA_EPI_LOGITS, 550, 64, 1120, 0, "pingpong-rows", true},
                 {ROSE_CUDA_EPI_LOGITS, 20, 64, 17000, ROSE_CUDA_WITHOUT_HEAD, "wide-64-48", true},
                 {ROSE_CUDA_EPI_LOGITS, 20, 64, 384, ROSE_CUDA_WITHOUT_HEAD, "wide-64-96", true},
                 {ROSE_CUDA_EPI_LOGITS, 17, 1568, 16400, 0, "wide-64-96", true}};
    for (const auto &c : cases) {
        machine::g_manner = {};
        problem<__half> forced(ROSE_CUDA_F16, 65, 640, 96, c.e, 0);
        forced.run(named(c.name));
        const void *named = machine::g_kernel;
        assert_non_null(named);
        problem<__half> p(ROSE_CUDA_F16, c.rows, c.k, c.n, c.e, 0);
        p.at.without |= c.without;
        p.run(NULL);
        assert_non_null(machine::g_kernel);
        assert_int_equal(machine::g_kernel == named, c.chosen);
    }
    assert_false(machine::g_hung);
}

static int begin(void **state)
{
    (void)state;
    return rose_cuda_linear_prepare(&g_device) == cudaSuccess ? 0 : -1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_edges), cmocka_unit_test(test_rings),
                                       cmocka_unit_test(test_choice)};
    const char *seed = getenv("ROSE_TEST_SEED");
    g_state = seed != NULL ? strtoull(seed, NULL, 0) : 20261122;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)g_state);
    g_state = g_state * 2 + 1;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, begin, NULL);
}
