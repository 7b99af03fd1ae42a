/* tests/backend/emulated/backend/cuda/hopper.cuh - in place of the one of src: the same on
 * machine.h. */
#ifndef ROSE_BACKEND_CUDA_HOPPER_CUH
#define ROSE_BACKEND_CUDA_HOPPER_CUH

#include <cuda.h>

#include "backend/cuda/device.cuh"

#define ROSE_HOPPER             1
#define ROSE_BLOCK_MEMORY(name) uint8_t *const name = machine::g_block->arena

template <int N> ROSE_DEVICE void fewer_registers(void)
{
}
template <int N> ROSE_DEVICE void more_registers(void)
{
}

ROSE_DEVICE uint32_t warpgroup(void)
{
    return threadIdx.x / 128;
}

/* ---- barriers ---- */

ROSE_DEVICE void barrier_init(uint32_t at, uint32_t arrivals)
{
    machine::barrier_at(at) = {.count = arrivals, .pending = arrivals};
}
ROSE_DEVICE void barrier_init_done(void)
{
}
ROSE_DEVICE void barrier_expect(uint32_t at, uint32_t bytes)
{
    machine::arrive(machine::barrier_at(at), bytes);
}
ROSE_DEVICE void barrier_arrive(uint32_t at)
{
    machine::arrive(machine::barrier_at(at), 0);
}
ROSE_CALL void barrier_wait(uint32_t at, uint32_t parity)
{
    machine::barrier *b = &machine::barrier_at(at);
    machine::wait_until([=] { return b->phase != parity; });
}
ROSE_DEVICE void barrier_wait_cluster(uint32_t at, uint32_t parity)
{
    barrier_wait(at, parity);
}
ROSE_DEVICE void peer_arrive(uint32_t at)
{
    barrier_arrive(at);
}

/* ---- clusters ---- */

ROSE_DEVICE uint32_t cluster_rank(void)
{
    return machine::g_block->rank;
}
ROSE_DEVICE void send4(uint32_t to, float4 v, uint32_t barrier)
{
    void *at = machine::pointer_at(to);
    machine::barrier *b = &machine::barrier_at(barrier);
    if (to >> 24 != barrier >> 24 || to % 16 != 0) machine::die("16 bytes to place %u", to);
    machine::start_copy([=] {
        memcpy(at, &v, sizeof v);
        machine::complete(*b, sizeof v);
    });
}

/* ---- tensor copies: maps as make_map below has made them ---- */

struct emulated_map {
    uint8_t *base;
    uint64_t size[3], pitch[3]; /* bytes from one to the next */
    uint32_t box[3], bytes /* of an element */;
};
static_assert(sizeof(emulated_map) <= sizeof(CUtensorMap), "a map is kept in one");

[[maybe_unused]] static CUresult CUDAAPI make_map(CUtensorMap *map, CUtensorMapDataType type,
                                                  cuuint32_t rank, void *base,
                                                  const cuuint64_t *size, const cuuint64_t *pitch,
                                                  const cuuint32_t *box, const cuuint32_t *,
                                                  CUtensorMapInterleave, CUtensorMapSwizzle,
                                                  CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    emulated_map m = {};
    m.base = static_cast<uint8_t *>(base);
    m.bytes = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
    m.size[2] = m.box[2] = 1; /* where there are two dimensions */
    for (cuuint32_t i = 0; i < rank && i < 3; i++) {
        m.size[i] = size[i];
        m.pitch[i] = i == 0 ? m.bytes : pitch[i - 1];
        m.box[i] = box[i];
        if (i > 0 && m.pitch[i] % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
        if (box[i] == 0 || box[i] > 256 || size[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    }
    if (rank < 2 || rank > 3 || reinterpret_cast<uintptr_t>(base) % 16 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(static_cast<void *>(map), &m, sizeof m);
    return CUDA_SUCCESS;
}

/* Each element of the box that starts there: where it is (NULL: outside), where in the box. */
template <typename F>
static inline void each_of_box(const CUtensorMap *map, uint32_t x, uint32_t y, uint32_t z, F each)
{
    emulated_map m;
    memcpy(&m, map, sizeof m);
    size_t i = 0;
    for (uint32_t c = 0; c < m.box[2]; c++)
        for (uint32_t b = 0; b < m.box[1]; b++)
            for (uint32_t a = 0; a < m.box[0]; a++, i++) {
                const bool there = x + a < m.size[0] && y + b < m.size[1] && z + c < m.size[2];
                each(there ? m.base + (x + a) * m.pitch[0] + (y + b) * m.pitch[1] +
                                 (z + c) * m.pitch[2]
                           : NULL,
                     i, m.bytes);
            }
}

ROSE_DEVICE void copy_box(uint32_t to, const CUtensorMap *map, uint32_t core, uint32_t block,
                          uint32_t barrier)
{
    uint8_t *at = static_cast<uint8_t *>(machine::pointer_at(to));
    machine::barrier *b = &machine::barrier_at(barrier);
    if (to % 128 != 0) machine::die("a copy to place %u", to);
    machine::start_copy([=] {
        size_t bytes = 0;
        each_of_box(map, 0, core, block, [&](const uint8_t *from, size_t i, uint32_t size) {
            if (from != NULL)
                memcpy(at + i * size, from, size);
            else
                memset(at + i * size, 0, size);
            bytes += size;
        });
        machine::complete(*b, (int64_t)bytes);
    });
}
ROSE_DEVICE void copy_box_to(uint32_t to, const CUtensorMap *map, uint32_t core, uint32_t block,
                             uint32_t barrier, uint32_t ranks)
{
    for (uint32_t rank = 0; ranks >> rank != 0; rank++)
        if ((ranks >> rank & 1) != 0)
            copy_box(peer_address(to, rank), map, core, block, peer_address(barrier, rank));
}

ROSE_DEVICE void copies_ready(void)
{
    __syncwarp();
}
/* ---- shared memory, threads ---- */

template <typename T> void put_shared(uint32_t at, const T &v)
{
    if (at % sizeof v != 0) machine::die("%zu bytes at place %u", sizeof v, at);
    memcpy(machine::pointer_at(at), &v, sizeof v);
}
template <typename T> void get_shared(T *v, uint32_t at)
{
    if (at % sizeof *v != 0) machine::die("%zu bytes at place %u", sizeof *v, at);
    memcpy(v, machine::pointer_at(at), sizeof *v);
}
ROSE_DEVICE void pair_wait(uint32_t barrier, uint32_t there)
{
    if (there != 0) machine::meet(machine::g_block->barriers[barrier], 256, true);
}
ROSE_DEVICE void pair_arrive(uint32_t barrier, uint32_t away)
{
    if (away == 0) machine::meet(machine::g_block->barriers[barrier], 256, false);
}

/* ---- wgmma: each lane its own of 64 x N ---- */

ROSE_DEVICE uint64_t core_matrices(uint32_t at, uint32_t stride)
{
    return (uint64_t)(at << 14 >> 18) | (uint64_t)(128 >> 4) << 16 | (uint64_t)(stride >> 4) << 32;
}
ROSE_DEVICE void wgmma_fence(void)
{
}
ROSE_DEVICE void wgmma_commit(void)
{
    machine::commit();
}
template <int N> ROSE_DEVICE void wgmma_wait(void)
{
    machine::wait_groups(N);
}
template <int N> ROSE_DEVICE void keep_here(float (&d)[N])
{
    asm volatile("" ::"r"(&d[0]) : "memory");
}

template <typename T> static inline const double *values(void)
{
    static const std::vector<double> all = [] {
        std::vector<double> v(1 << 16);
        for (uint32_t i = 0; i < v.size(); i++) {
            const uint16_t bits = (uint16_t)i;
            T x;
            memcpy(static_cast<void *>(&x), &bits, 2);
            v[i] = (double)to_f32(x);
        }
        return v;
    }();
    return all.data();
}

/* Values of k, in vectors. */
typedef double four __attribute__((vector_size(32)));
union sixteen {
    double of[16];
    four fours[4];
};

/* Row (or column) r of 16 values of k. */
template <typename T>
static inline void core_row(sixteen *v, const uint8_t *arena, uint64_t m, int r)
{
    const uint32_t at = (uint32_t)(m & 0x3fff) << 4, next = (uint32_t)(m >> 16 & 0x3fff) << 4,
                   stride = (uint32_t)(m >> 32 & 0x3fff) << 4;
    const double *value = values<T>();
    uint16_t bits[16];
    memcpy(bits, arena + at + r / 8 * stride + r % 8 * 16, 16);
    memcpy(bits + 8, arena + at + next + r / 8 * stride + r % 8 * 16, 16);
    for (int k = 0; k < 16; k++)
        v->of[k] = value[bits[k]];
}

/* c + the products of 16 pairs, rounded to fp32 once: what the tests' reference does as well. */
static inline float add_products(float c, const sixteen &a, const sixteen &b)
{
    four s = {(double)c, 0, 0, 0};
    for (int k = 0; k < 4; k++)
        s += a.fours[k] * b.fours[k];
    return (float)((s[0] + s[1]) + (s[2] + s[3]));
}

template <typename T>
ROSE_CALL void lane_products(float *to, int n, int t, uint64_t a, uint64_t b, bool keep)
{
    const uint8_t *arena = machine::g_block->arena;
    const int lane = t % 32, row = t / 32 * 16 + lane / 4;
    sixteen x[2], w;
    core_row<T>(&x[0], arena, a, row);
    core_row<T>(&x[1], arena, a, row + 8);
    for (int i = 0; i < n / 4; i++)
        for (int c = 0; c < 2; c++) {
            core_row<T>(&w, arena, b, i * 8 + lane % 4 * 2 + c);
            for (int h = 0; h < 2; h++) {
                float *y = &to[i * 4 + h * 2 + c];
                *y = add_products(keep ? *y : 0.0f, x[h], w);
            }
        }
}

template <int N, typename T>
ROSE_CALL void wgmma(float (&d)[N], uint64_t a, uint64_t b, int keep, const T *)
{
    float *to = d;
    const int t = (int)threadIdx.x % 128;
    machine::issue([=] { lane_products<T>(to, N, t, a, b, keep != 0); });
}

#endif
