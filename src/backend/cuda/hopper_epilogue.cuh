/* backend/cuda/hopper_epilogue.cuh - what the epilogues of linear_team.cuh and linear_wide.cuh
 * share: the same as in finish_pair of device.cuh, to four outputs n .. n + 3 of a row at a time.
 */
#ifndef ROSE_BACKEND_CUDA_HOPPER_EPILOGUE_CUH
#define ROSE_BACKEND_CUDA_HOPPER_EPILOGUE_CUH

#include "backend/cuda/hopper.cuh"

#if ROSE_HOPPER

ROSE_DEVICE float4 add4(const float4 &a, const float4 &b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <typename T> ROSE_DEVICE uint2 pack4(const float4 &v, const T *tag)
{
    return make_uint2(pair_f32(v.x, v.y, tag), pair_f32(v.z, v.w, tag));
}

ROSE_DEVICE float4 clamp4(const float4 &v, float top)
{
    return make_float4(fminf(fmaxf(v.x, -top), top), fminf(fmaxf(v.y, -top), top),
                       fminf(fmaxf(v.z, -top), top), fminf(fmaxf(v.w, -top), top));
}

ROSE_DEVICE float *residual_at(const rose_cuda_io &io, uint32_t row, uint32_t n)
{
    return io.x + (size_t)row * io.ld_x + n;
}

/* `act` a constant where it can be: the code of the others is then not fetched. */
ROSE_DEVICE float4 activate4(const float4 &v, uint32_t act)
{
    return make_float4(activate(v.x, act), activate(v.y, act), activate(v.z, act),
                       activate(v.w, act));
}

template <typename T>
ROSE_DEVICE void store_act4(const rose_cuda_io &io, uint32_t row, uint32_t n, const float4 &y)
{
    T *out = static_cast<T *>(io.out) + h_index(row, n, io.out_k_pad);
    *reinterpret_cast<uint2 *>(out) = pack4(y, out);
}

ROSE_DEVICE void store_logits4(const rose_cuda_linear &l, const rose_cuda_io &io, uint32_t row,
                               uint32_t n, const float4 &v)
{
    float *at = io.logits + (size_t)row * io.ld_logits + n;
    if (io.ld_logits % 4 == 0 && n + 3 < l.n) {
        *reinterpret_cast<float4 *>(at) = v;
        return;
    }
    at[0] = v.x;
    if (n + 1 < l.n) at[1] = v.y;
    if (n + 2 < l.n) at[2] = v.z;
    if (n + 3 < l.n) at[3] = v.w;
}

#endif
#endif
