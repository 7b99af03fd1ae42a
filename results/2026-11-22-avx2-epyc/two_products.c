/* Two versions of a matrix product in turn on one CPU, weights in cache: best and median speed of each, and the median
 * of the ratios of neighbours; the bits compared. BEFORE and AFTER are the names of the two functions (commands.sh). */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/kernels_internal.h"
#include "base/clock.h"

enum { PAIRS = 200, N_OUT = 768, MOST_ROWS = 64 };

void BEFORE(const rose_matmul *a, uint32_t p0, uint32_t p1);
void AFTER(const rose_matmul *a, uint32_t p0, uint32_t p1);

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double seconds(rose_matmul_fn fn, const rose_matmul *a)
{
    const uint64_t began = rose_now_ns();
    fn(a, 0, N_OUT / ROSE_PANEL);
    return (double)(rose_now_ns() - began) * 1e-9;
}

/* Twelve chains of FMAs of eight lanes and nothing else: what the core can do. */
static double fma_gflops(void)
{
    enum { TURNS = 2000000 };
    double best = 0;
    for (int i = 0; i < 50; i++) {
        const uint64_t began = rose_now_ns();
        __asm__ volatile("vxorps %%ymm14,%%ymm14,%%ymm14" ::: "xmm14");
        for (int n = 0; n < TURNS; n++)
#define FMA(r) "vfmadd231ps %%ymm14,%%ymm14,%%ymm" #r "\n"
            __asm__ volatile(FMA(0) FMA(1) FMA(2) FMA(3) FMA(4) FMA(5) FMA(6) FMA(7) FMA(8) FMA(9) FMA(10) FMA(11)::
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                                   "xmm11");
        const double now = 12.0 * 16 * TURNS / (double)(rose_now_ns() - began);
        if (now > best) best = now;
    }
    return best;
}

static void compare(rose_matmul *a, float *kept)
{
    static double before[PAIRS], after[PAIRS], ratio[PAIRS];
    const double gflop = 2e-9 * a->m_rows * a->k_pad * N_OUT;
    const size_t bytes = (size_t)a->m_rows * N_OUT * sizeof(float);
    BEFORE(a, 0, N_OUT / ROSE_PANEL);
    memcpy(kept, a->y, bytes);
    memset(a->y, 0x55, bytes);
    AFTER(a, 0, N_OUT / ROSE_PANEL);
    const char *bits = memcmp(kept, a->y, bytes) == 0 ? "same" : "DIFFER";
    for (int i = 0; i < PAIRS; i++) {
        before[i] = seconds(BEFORE, a);
        after[i] = seconds(AFTER, a);
        ratio[i] = before[i] / after[i];
    }
    qsort(before, PAIRS, sizeof *before, by_value);
    qsort(after, PAIRS, sizeof *after, by_value);
    qsort(ratio, PAIRS, sizeof *ratio, by_value);
    printf("k %4u m %2u %s best %.1f %.1f  median %.1f %.1f  old/new: best %.3f median of pairs %.3f\n", a->k_pad, a->m_rows, bits,
           gflop / before[0], gflop / after[0], gflop / before[PAIRS / 2], gflop / after[PAIRS / 2], before[0] / after[0],
           ratio[PAIRS / 2]);
}

int main(void)
{
    static const uint32_t depths[] = {768, 3072}, rows[] = {1, 2, 4, 8, 16, 17, 24, 64};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(1, &one);
    sched_setaffinity(0, sizeof one, &one);
    printf("FMAs alone: %.1f GFLOP/s\n", fma_gflops());
    for (int d = 0; d < 2; d++) {
        const uint32_t k = depths[d];
        uint16_t *w = aligned_alloc(64, (size_t)k * N_OUT * 2); /* read as int8: of half the bytes */
        float *x = aligned_alloc(64, (size_t)MOST_ROWS * k * 4), *y = aligned_alloc(64, MOST_ROWS * N_OUT * 4);
        float *kept = aligned_alloc(64, MOST_ROWS * N_OUT * 4), *bias = calloc(N_OUT, 4);
        void *scratch = aligned_alloc(64, (rose_matmul_scratch(k) + 63) / 64 * 64);
        for (size_t i = 0; i < (size_t)k * N_OUT; i++)
            w[i] = (uint16_t)(0x3c00 + i * 7919 % 512);
        for (size_t i = 0; i < (size_t)MOST_ROWS * k; i++)
            x[i] = (float)(i * 31 % 97) / 97 - 0.5f;
        for (int i = 0; i < 8; i++) {
            rose_matmul a = {.w = w, .k_pad = k, .n = N_OUT, .x = x, .ldx = k, .m_rows = rows[i], .bias = bias, .y = y,
                             .ldy = N_OUT, .scratch = scratch};
            compare(&a, kept);
        }
    }
    return 0;
}
