/* backend/cuda/wide_store.cuh - the residual of the wide kernels: x = x + (sum + bias) as in
 * wide_epilogue.cuh, but the warps write what is to be added to shared memory, 8 rows x 32 outputs
 * at a time, whole lines of x, and the copy engine adds it to x where x lies. One addition for each
 * value, so the order is that of rule 2 (docs/NUMERICS.md, which says what that rests on).
 *
 * Loaded by the warps, the old values would be waited for, and the new ones be stored, by all
 * multiprocessors at once. */
#ifndef ROSE_BACKEND_CUDA_WIDE_STORE_CUH
#define ROSE_BACKEND_CUDA_WIDE_STORE_CUH

#include "backend/cuda/wide_epilogue.cuh"

enum {
    WIDE_PLACES = 3, /* of a warp: while two are read by the copy engine, one is written */
    PLACE_ROWS = 8,
    PLACE_COLUMNS = 32,
    WIDE_PLACE = PLACE_ROWS * PLACE_COLUMNS * sizeof(float),
    WIDE_OUT = WIDE_PLACES * WIDE_PLACE
};

#if ROSE_HOPPER

/* The part's outputs where some are none: loads and stores. The next place is then not that of the
 * oldest group, so all must have been read. */
template <int N>
ROSE_DEVICE void add_directly(const wide_tile &w, uint32_t first, const float *s,
                              const rose_cuda_linear &l, const rose_cuda_io &io)
{
    if (threadIdx.x % 32 == 0) copies_read<0>();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t n = w.n + first + i * 16;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (!w.live[h] || n >= l.n) continue;
            float4 *x = reinterpret_cast<float4 *>(residual_at(io, w.row[h], n));
            *x = add4(load_now(x), add4(sums_of(s + i * 8, h), bias_of4(w, l, n - w.n0)));
        }
    }
}

/* Each tile begins with the first place: of 128 and 160 outputs, 8 and 10 boxes, there are two. */
template <int TN> static constexpr int PLACES_OF = TN / 16 % WIDE_PLACES == 0 ? WIDE_PLACES : 2;

/* The N from block FIRST on of the tile's blocks of 16 outputs, by twos; out: shared address of the
 * warp's places. A lane has four neighbouring outputs of each 16, of rows g and g + 8. Odd rows
 * write their second four first: so the rows of a pair, which a warp's eight lanes write at once,
 * are in different banks. Rows that are none lie outside the map. */
template <int TN, int FIRST, int N>
ROSE_DEVICE void stage_residual(const wide_tile &w, uint32_t out, const CUtensorMap *x_map,
                                const float (&s)[TN / 2], const rose_cuda_linear &l,
                                const rose_cuda_io &io)
{
    static_assert(TN / 16 % PLACES_OF<TN> == 0 && FIRST % 2 == 0 && N % 2 == 0);
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, odd = g % 2;
    if (w.n0 + (FIRST + N) * 16 > l.n) {
        add_directly<N>(w, FIRST * 16, s + FIRST * 8, l, io);
        return;
    }
#pragma unroll
    for (int i = FIRST; i < FIRST + N; i += 2) {
        const float4 bias[2] = {bias_of4(w, l, i * 16 + lane % 4 * 4),
                                bias_of4(w, l, i * 16 + 16 + lane % 4 * 4)};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t place = out + (i + h) % PLACES_OF<TN> * WIDE_PLACE;
            const uint32_t at = place + (g * PLACE_COLUMNS + lane % 4 * 4) * sizeof(float);
            const float4 lo = add4(sums_of(s + i * 8, h), bias[0]),
                         hi = add4(sums_of(s + i * 8 + 8, h), bias[1]);
            if (lane == 0) copies_read<PLACES_OF<TN> - 1>();
            __syncwarp();
            put_shared(at + odd * 64, odd ? hi : lo);
            put_shared(at + (odd ^ 1) * 64, odd ? lo : hi);
            copies_ready();
            if (lane == 0) {
                add_box(x_map, w.row[h], w.n0 + i * 16, place);
                copies_begun();
            }
        }
    }
}

#endif
#endif
