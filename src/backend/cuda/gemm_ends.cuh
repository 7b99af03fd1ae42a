/* backend/cuda/gemm_ends.cuh - what happens to the sums of a GEMM (rose_gemm_end), for two
 * neighbouring outputs of a row at a time. Every kernel uses these functions, so that all give the
 * same bits; a kernel may store in its own way what the *_values functions return. Device code
 * only.
 */
#ifndef ROSE_BACKEND_CUDA_GEMM_ENDS_CUH
#define ROSE_BACKEND_CUDA_GEMM_ENDS_CUH

#include "backend/cuda/device.cuh"
#include "backend/cuda/gemm.h"

/* Bias of outputs n (even) and n + 1; a kernel may load it before pdl_wait. */
ROSE_DEVICE float2 end_bias(const rose_cuda_matrix &m, uint32_t n)
{
    if (m.bias == NULL || n >= m.n) return make_float2(0, 0);
    return make_float2(__ldcg(m.bias + n), n + 1 < m.n ? __ldcg(m.bias + n + 1) : 0);
}

/* Part 0 with the bias. A matrix without a bias adds nothing. */
ROSE_DEVICE float2 end_biased(const rose_cuda_matrix &m, float2 y, float2 bias)
{
    return m.bias == NULL ? y : make_float2(y.x + bias.x, y.y + bias.y);
}

/* One more part. The first one is end_biased. */
ROSE_DEVICE float2 end_added(float2 x, float2 part)
{
    return make_float2(x.x + part.x, x.y + part.y);
}

ROSE_DEVICE float2 end_act_values(const rose_gemm_io &io, float2 y)
{
    return make_float2(activate(y.x, io.act), activate(y.y, io.act));
}

ROSE_DEVICE float2 end_gated_values(const rose_gemm_io &io, float2 gate, float2 up)
{
    return make_float2(activate(gate.x, io.act) * up.x, activate(gate.y, io.act) * up.y);
}

/* cap tanh(y / cap) = cap - 2 cap / (1 + exp(2 y / cap)) */
ROSE_DEVICE float end_logit(const rose_gemm_io &io, float y)
{
    if (io.softcap == 0) return y;
    return fmaf(-2.0f * io.softcap, over(1.0f, 1.0f + exp_fast(y * (2.0f / io.softcap))),
                io.softcap);
}

ROSE_DEVICE float2 *end_residual_at(const rose_gemm_io &io, uint32_t row, uint32_t n)
{
    return reinterpret_cast<float2 *>(io.x + (size_t)row * io.ld_x + n);
}

/* The end of outputs n (even) and n + 1 of a row, all ends but RESIDUAL and GATED. y has the bias.
 * Returns the larger rank key of LOGITS, else 0. */
template <typename T, int END>
ROSE_DEVICE unsigned long long end_pair(const rose_cuda_matrix &m, const rose_gemm_io &io,
                                        uint32_t row, uint32_t n, float2 y)
{
    static_assert(END == ROSE_END_ROWS || END == ROSE_END_ACT || END == ROSE_END_LOGITS, "");
    if (row >= io.rows || n >= m.n) return 0;
    if constexpr (END == ROSE_END_ACT) {
        const float2 v = end_act_values(io, y);
        store_pair(static_cast<T *>(io.out) + h_index(row, n, io.out_pitch), v.x, v.y);
    } else if constexpr (END == ROSE_END_ROWS) {
        const size_t at = (size_t)row * io.out_pitch + n;
        if (io.out_f32)
            store_pair(static_cast<float *>(io.out) + at, y.x, y.y);
        else
            store_pair(static_cast<T *>(io.out) + at, y.x, y.y);
    } else {
        float *at = io.logits + (size_t)row * io.ld_logits + n;
        at[0] = end_logit(io, y.x);
        const unsigned long long key = rank_key(at[0], n);
        if (n + 1 >= m.n) return key;
        at[1] = end_logit(io, y.y);
        const unsigned long long other = rank_key(at[1], n + 1);
        return other > key ? other : key;
    }
    return 0;
}

/* The end GATED of a row: outputs n (even) and n + 1 of the MLP, n < m.n / 2. Both have the bias.
 */
template <typename T>
ROSE_DEVICE void end_gated(const rose_cuda_matrix &m, const rose_gemm_io &io, uint32_t row,
                           uint32_t n, float2 gate, float2 up)
{
    if (row >= io.rows || n >= m.n / 2) return;
    const float2 v = end_gated_values(io, gate, up);
    store_pair(static_cast<T *>(io.out) + h_index(row, n, io.out_pitch), v.x, v.y);
}

#endif
