/* tests/backend/emulated/backend/cuda/attend_hopper.cuh - in place of the one of src: the same on
 * machine.h. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_HOPPER_CUH
#define ROSE_BACKEND_CUDA_ATTEND_HOPPER_CUH

#include "backend/cuda/hopper.cuh"

ROSE_DEVICE uint64_t value_cores(uint32_t at, uint32_t half)
{
    return (uint64_t)(at << 14 >> 18) | (uint64_t)(half >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
}

template <int N, typename T>
static inline void wgmma_values(float (&d)[N], const uint32_t *a, uint64_t b, int keep, const T *)
{
    struct {
        uint64_t of[2][32];
    } x;
    float *to = d;
    const uint8_t *arena = machine::g_block->arena;
    memcpy(x.of[0], machine::exchange(a[0] | (uint64_t)a[1] << 32), sizeof x.of[0]);
    memcpy(x.of[1], machine::exchange(a[2] | (uint64_t)a[3] << 32), sizeof x.of[1]);
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    machine::issue([=] {
        const double *value = values<T>();
        const uint8_t *from = arena + ((b & 0x3fff) << 4);
        const uint32_t tokens = (uint32_t)(b >> 16 & 0x3fff) << 4,
                       dims = (uint32_t)(b >> 32 & 0x3fff) << 4;
        for (uint32_t i = 0; i < N * 2 / 8; i++)
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t h = 0; h < 2; h++) {
                    sixteen p, v;
                    for (uint32_t k = 0; k < 16; k++) {
                        uint16_t bits;
                        memcpy(&bits,
                               from + k / 8 * tokens + i * dims + k % 8 * 16 + (t * 2 + c) * 2, 2);
                        v.of[k] = value[bits];
                        p.of[k] =
                            value[x.of[k / 8][g * 4 + k % 8 / 2] >> (h * 32 + k % 2 * 16) & 0xffff];
                    }
                    float *y = &to[i * 4 + h * 2 + c];
                    *y = add_products(keep != 0 ? *y : 0.0f, p, v);
                }
    });
}

#endif
