/* backend/cuda/attend_hopper.cuh - products of a warpgroup with V as the second operand: V lies in
 * pages of [2][HD / 8][8 tokens][8 dims], so the values of a token are neighbours, and wgmma has to
 * transpose (the operand is "MN-major"). The first operand is in registers. Tests put a C++ of
 * their own in its place (tests/backend/emulated). Device code only. */
#ifndef ROSE_BACKEND_CUDA_ATTEND_HOPPER_CUH
#define ROSE_BACKEND_CUDA_ATTEND_HOPPER_CUH

#include "backend/cuda/hopper.cuh"

#if ROSE_HOPPER

/* 16 tokens of V at a shared address: cores that follow in the dims lie 128 bytes apart, cores that
 * follow in the tokens `half` bytes. */
ROSE_DEVICE uint64_t value_cores(uint32_t at, uint32_t half)
{
    return (uint64_t)(at << 14 >> 18) | (uint64_t)(half >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
}

/* clang-format off */
/* keep 0: d is overwritten. */
#define VALUES(N, REGS, OUT, A, B, KEEP, T, NAME)                                                  \
    ROSE_DEVICE void wgmma_values(float (&d)[N / 2], const uint32_t *a, uint64_t b, int keep,      \
                                  const T *)                                                       \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p," KEEP ",0;\n"                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" REGS     \
                     "}, {" A "}, " B ", p, 1, 1, 1;\n}"                                           \
                     : OUT(d)                                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));             \
    }
#define VALUES_TYPES(N, REGS, OUT, A, B, KEEP)                                                     \
    VALUES(N, REGS, OUT, A, B, KEEP, __half, "f16")                                                \
    VALUES(N, REGS, OUT, A, B, KEEP, __nv_bfloat16, "bf16")

VALUES_TYPES(64, D32, O32, "%32,%33,%34,%35", "%36", "%37")
VALUES_TYPES(128, D64, O64, "%64,%65,%66,%67", "%68", "%69")
#undef VALUES_TYPES
#undef VALUES
/* clang-format on */

#endif
#endif
