/* backend/cpu/kernels.c - fills the kernel table for an instruction set level, and computes the
 * sizes of the layouts that the kernels share (kernels.h). */
#include "backend/cpu/kernels.h"

#include "backend/cpu/kernels_internal.h"
#include "backend/cpu/quant.h"

size_t rose_panel_bytes(rose_format t, uint32_t k_pad)
{
    if (rose_format_is_quant(t)) return rose_quant_panel_bytes(t, k_pad);
    return (size_t)k_pad * ROSE_PANEL * rose_format_size(t);
}

size_t rose_panels_bytes(rose_format t, uint32_t k, uint32_t n)
{
    size_t depth = ((size_t)k + ROSE_K_GROUP - 1) / ROSE_K_GROUP * ROSE_K_GROUP;
    size_t n_panels = ((size_t)n + ROSE_PANEL - 1) / ROSE_PANEL;
    size_t bytes;
    if (depth > UINT32_MAX) return 0;
    if (__builtin_mul_overflow(n_panels, rose_panel_bytes(t, (uint32_t)depth), &bytes)) return 0;
    return bytes;
}

size_t rose_matmul_scratch(uint32_t k_pad)
{
    return ROSE_AMX_SUM_BYTES + rose_amx_tile_bytes(k_pad) + (size_t)2 * ROSE_PANEL * k_pad * 2;
}

size_t rose_kv_k_bytes(bool bf16, uint32_t head_dim)
{
    return (size_t)rose_round_up(head_dim, ROSE_K_GROUP) * ROSE_PANEL * (bf16 ? 2 : 4);
}

size_t rose_kv_head_bytes(bool bf16, uint32_t head_dim)
{
    size_t v = (size_t)rose_round_up(head_dim, ROSE_PANEL) * ROSE_PANEL * (bf16 ? 2 : 4);
    return rose_kv_k_bytes(bf16, head_dim) + v;
}

size_t rose_attention_scratch(uint32_t max_ctx, uint32_t head_dim)
{
    size_t q = rose_round_up(head_dim, ROSE_K_GROUP);
    size_t tiles = ROSE_ROW_TILE * 2 * q + 5 * 1024; /* AMX: of the queries; P and 4 of V */
    return ROSE_ROW_TILE * sizeof(float) * (rose_score_stride(max_ctx) + 2 * q) + tiles;
}

#if defined(__x86_64__)

/* Returns the number of row parts into which n threads cut an AMX GEMM. Each part is cut into
 * panels by n / parts threads; threads left over are idle.
 *
 * The costs, for one k, are in units of 1/512 cycle at 2.6 GHz. 16 cycles multiply 16 rows x 16
 * outputs x 32 k. Reading weights overlaps with that, at 18 GB/s a core (two cores of a Xeon
 * with AMX, 2026-11-21), so the larger of both counts. Reading the fp32 rows is as fast, and
 * does not overlap. */
static uint32_t row_parts(const rose_matmul *a, uint32_t n)
{
    enum { WEIGHT = 148, ROW = 2 * WEIGHT };
    const uint64_t units = ((uint64_t)a->m_rows + ROSE_AMX_ROW_UNIT - 1) / ROSE_AMX_ROW_UNIT;
    const uint64_t n_panels = rose_matmul_panels(a);
    uint64_t least = UINT64_MAX;
    uint32_t best = 1;

    for (uint32_t parts = 1; parts <= n && parts <= units; parts++) {
        const uint32_t columns = n / parts;
        const uint64_t rows = (units + parts - 1) / parts * ROSE_AMX_ROW_UNIT;
        const uint64_t outputs = (n_panels + columns - 1) / columns * ROSE_PANEL;
        const uint64_t cost = (rows > WEIGHT ? rows : WEIGHT) * outputs + ROW * rows;
        if (cost < least) {
            least = cost;
            best = parts;
        }
    }
    return best;
}

/* Gives each thread a rectangle of rows and panels. The weights are read once for as many of its
 * rows as fit into L2. */
static void amx_share(rose_matmul_fn *fn, const rose_matmul *whole, uint32_t tid, uint32_t n)
{
    const uint64_t units = ((uint64_t)whole->m_rows + ROSE_AMX_ROW_UNIT - 1) / ROSE_AMX_ROW_UNIT;
    const uint32_t unit = whole->gated ? 2 : 1; /* panels that stay together */
    const uint64_t n_units = rose_matmul_panels(whole) / unit;
    const uint32_t parts = row_parts(whole, n), columns = n / parts;
    if (tid >= parts * columns) return;
    const uint64_t from = rose_share(units, tid / columns, parts) * ROSE_AMX_ROW_UNIT;
    const uint64_t end = rose_share(units, tid / columns + 1, parts) * ROSE_AMX_ROW_UNIT;
    const uint64_t p0 = rose_share(n_units, tid % columns, columns) * unit;
    const uint64_t p1 = rose_share(n_units, tid % columns + 1, columns) * unit;
    rose_matmul a = *whole;

    a.x += from * a.ldx;
    a.y += from * a.ldy;
    a.m_rows = (uint32_t)((end < whole->m_rows ? end : whole->m_rows) - from);
    if (a.m_rows > 0 && p0 < p1) fn(&a, (uint32_t)p0, (uint32_t)p1);
}

#endif

void rose_cpu_matmul_share(rose_matmul_fn *fn, const rose_matmul *whole, uint32_t tid, uint32_t n)
{
    enum { MOST = 64 }; /* rows of a block; blocks are alike, or who has the last one waits */
    const uint32_t unit = whole->gated ? 2 : 1; /* panels that stay together */
    const uint64_t n_panels = rose_matmul_panels(whole), n_units = n_panels / unit;
    const uint32_t n_blocks = (uint32_t)(((uint64_t)whole->m_rows + MOST - 1) / MOST);
    const uint64_t end = rose_share(n_units * n_blocks, tid + 1, n) * unit;
    uint64_t at = rose_share(n_units * n_blocks, tid, n) * unit;

#if defined(__x86_64__)
    if (fn == rose_matmul_bf16_amx || fn == rose_matmul_i8_amx) {
        amx_share(fn, whole, tid, n);
        return;
    }
#endif
    while (at < end) {
        const uint32_t b = (uint32_t)(at / n_panels);
        const uint64_t row = rose_share(whole->m_rows, b, n_blocks);
        const uint64_t p0 = at % n_panels;
        const uint64_t p1 = n_panels - p0 < end - at ? n_panels : p0 + (end - at);
        rose_matmul a = *whole;
        a.x += row * a.ldx;
        a.y += row * a.ldy;
        a.m_rows = (uint32_t)(rose_share(whole->m_rows, b + 1, n_blocks) - row);
        fn(&a, (uint32_t)p0, (uint32_t)p1);
        at += p1 - p0;
    }
}

rose_matmul_fn *rose_cpu_matmul_fn(const rose_cpu_kernels *k, rose_format type,
                                   bool int8_activations)
{
    if (rose_format_is_quant(type)) return (int8_activations ? k->quant->i8 : k->quant->f32)[type];
    return k->matmul[type];
}

void rose_cpu_kernels_init(rose_cpu_kernels *k, rose_isa isa)
{
    *k = (rose_cpu_kernels){
        .isa = ROSE_ISA_SCALAR,
        .quant = &rose_quant_ref,
        .matmul[ROSE_F32] = rose_matmul_f32_ref,
        .matmul[ROSE_BF16] = rose_matmul_bf16_ref,
        .matmul[ROSE_I8] = rose_matmul_i8_ref,
        .attention = rose_attention_ref,
        .kv_append = rose_kv_append_ref,
        .layernorm = rose_layernorm_ref,
        .rmsnorm = rose_rmsnorm_ref,
        .rope = rose_rope_ref,
        .max_index = rose_max_index_ref,
        .exp_weights = rose_exp_weights_ref,
        .exp_sums = rose_exp_sums_ref,
    };
#if defined(__x86_64__)
    if (isa == ROSE_ISA_SCALAR) return;
    if (isa == ROSE_ISA_AVX2) {
        *k = rose_kernels_avx2;
        if (rose_cpu_has_avxvnni()) k->quant = &rose_quant_avxvnni;
        return;
    }
    *k = rose_kernels_avx512;
    if (rose_cpu_has_avx512vnni()) k->quant = &rose_quant_avx512vnni;
    k->isa = isa;
    if (isa == ROSE_ISA_AVX512_BF16) {
        k->attention = rose_attention_avx512bf16;
        k->matmul[ROSE_BF16] = rose_matmul_bf16_avx512bf16;
        k->matmul[ROSE_I8] = rose_matmul_i8_avx512bf16;
    } else if (isa == ROSE_ISA_AMX) {
        k->attention = rose_attention_amx;
        k->matmul[ROSE_BF16] = rose_matmul_bf16_amx;
        k->matmul[ROSE_I8] = rose_matmul_i8_amx;
    }
#elif defined(__aarch64__)
    if (isa != ROSE_ISA_SCALAR) *k = rose_kernels_neon;
#else
    (void)isa;
#endif
}
