/* backend/cuda/prompts.cu - what attention by another library wants of us: K and V of prompts'
 * whole contexts as rows, and its rows of output as blocks. Values move, whatever 16-bit type they
 * are; both are bound by bytes. */
#include "backend/cuda/instructions.cuh"
#include "backend/cuda/launch.cuh"

enum { THREADS = 256, GROUP = 8 /* values: 16 bytes of a row */ };

/* The lengths and places of all sequences of a plan, those that are not there being empty. */
ROSE_DEVICE void put_tables(const rose_cuda_unpack &a)
{
    for (uint32_t i = threadIdx.x; i <= a.n_seqs; i += THREADS) {
        const bool has = i < a.n_prompts;
        const rose_cuda_prompt p = a.prompts[has ? i : a.n_prompts - 1]; /* or the last */
        const uint32_t end = (p.pos + p.n_rows + ROSE_PAGE - 1) / ROSE_PAGE * ROSE_PAGE;
        a.q_at[i] = (int32_t)((p.row + (has ? 0 : p.n_rows)) * a.d);
        a.kv_at[i] = (int32_t)((p.kv_row + (has ? 0 : end)) * a.d);
        if (i == a.n_seqs) continue;
        a.q_len[i] = has ? (int32_t)p.n_rows : 0;
        a.kv_len[i] = has ? (int32_t)(p.pos + p.n_rows) : 0;
    }
}

/* 8 dims of a token's K: pairs of four neighbouring lanes' operands. */
ROSE_DEVICE uint4 take_k(const uint16_t *page, uint32_t token, uint32_t dim)
{
    const uint32_t *from = reinterpret_cast<const uint32_t *>(page + k_index(token, dim));
    return make_uint4(from[0], from[4], from[8], from[12]);
}

/* And of its V. */
ROSE_DEVICE uint4 take_v(const uint16_t *page, uint32_t token, uint32_t dim)
{
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = page[v_index(token, dim + 2 * i)] | (uint32_t)page[v_index(token, dim + 2 * i + 1)]
                                                       << 16;
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* A block a page: x is the page of prompt y's context. All 16 tokens go over: those behind the
 * context are finite, as all memory of pages is. */
static __global__ void __launch_bounds__(THREADS) unpack_kernel(const rose_cuda_unpack a)
{
    pdl_launch();
    pdl_wait();
    const rose_cuda_prompt p = a.prompts[blockIdx.y];
    const uint32_t groups = a.kv.head_dim / GROUP, per_token = a.kv.n_heads * groups;
    if (blockIdx.x == 0 && blockIdx.y == 0) put_tables(a);
    if (blockIdx.x * ROSE_PAGE >= p.pos + p.n_rows) return;
    const uint32_t page = a.tables[p.table + blockIdx.x];
    const size_t first = p.kv_row + (size_t)blockIdx.x * ROSE_PAGE;
    for (uint32_t i = threadIdx.x; i < ROSE_PAGE * per_token; i += THREADS) {
        const uint32_t token = i / per_token, head = i % per_token / groups;
        const uint32_t dim = i % groups * GROUP;
        const uint16_t *k = kv_block<uint16_t>(a.kv, page, head), *v = k + ROSE_PAGE * a.kv.hd_pad;
        const size_t to = (first + token) * a.d + head * a.kv.head_dim + dim;
        *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.k) + to) = take_k(k, token, dim);
        *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.v) + to) = take_v(v, token, dim);
    }
}

/* A block an item. */
static __global__ void __launch_bounds__(THREADS) block_rows_kernel(const rose_cuda_rows a)
{
    pdl_launch();
    pdl_wait();
    const rose_cuda_item it = a.items[blockIdx.x];
    const uint32_t groups = a.d / GROUP;
    for (uint32_t i = threadIdx.x; i < it.n_rows * groups; i += THREADS) {
        const uint32_t row = it.row + i / groups, dim = i % groups * GROUP;
        *reinterpret_cast<uint4 *>(static_cast<uint16_t *>(a.out) +
                                   h_index(row, dim, a.out_k_pad)) =
            *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(a.rows) +
                                             (size_t)row * a.d + dim);
    }
}

cudaError_t rose_cuda_unpack_run(const rose_cuda_launch *at, const rose_cuda_unpack *a)
{
    if (at->type == ROSE_CUDA_F32 || a->kv.head_dim % GROUP != 0 || a->n_prompts == 0 ||
        a->n_prompts > a->n_seqs)
        return cudaErrorInvalidValue;
    return launch_kernel(at, unpack_kernel, dim3(a->most_pages, a->n_prompts), THREADS, 0, *a);
}

cudaError_t rose_cuda_block_rows_run(const rose_cuda_launch *at, const rose_cuda_rows *a)
{
    if (at->type == ROSE_CUDA_F32 || a->d % GROUP != 0) return cudaErrorInvalidValue;
    if (a->n_items == 0) return cudaSuccess;
    return launch_kernel(at, block_rows_kernel, dim3(a->n_items), THREADS, 0, *a);
}
