/* backend/cuda/attend_plain.cu - attention without tensor cores, for every type (attend.h). The
 * rule is that of the other kernels, with chains of fused multiply-adds and exp2f. A thread block
 * has one query row and head: a thread for each position of an inner block, then for each dim.
 *
 * Also here: the copy of pages for --paged-attn off. */
#include "backend/cuda/attend.cuh"
#include "backend/cuda/launch.cuh"

enum { PLAIN_THREADS = 256 };

/* The score of one position; each thread below 64 has one. */
template <typename T>
ROSE_DEVICE float plain_score(const rose_cuda_attend &a, const float *q, const T *k, uint32_t token,
                              float by)
{
    float sum = 0;
    for (uint32_t d = 0; d < a.kv.head_dim; d++)
        sum = fmaf(q[d], to_f32(k[page_index(token, d, a.kv.hd_pad)]), sum);
    if (a.softcap > 0) return a.softcap * tanhf(sum * a.scale / a.softcap) * ROSE_LOG2E;
    return sum * by;
}

template <typename T>
static __global__ void __launch_bounds__(PLAIN_THREADS) plain_kernel(const rose_cuda_attend a)
{
    __shared__ float q[ROSE_ATTEND_MAX_HEAD_DIM], s[ROSE_ATTEND_INNER];
    const uint32_t i = threadIdx.x, head = blockIdx.x % a.n_q, work = blockIdx.x / a.n_q;
    const uint32_t kv = head / (a.n_q / a.kv.n_heads), hd = a.kv.head_dim;
    const rose_cuda_item item = a.items[work / a.item_rows];
    const uint32_t r = work % a.item_rows, row = item.row + r, end = item.pos + r + 1;
    const uint32_t lo = a.window != 0 && end > a.window ? end - a.window : 0;
    const uint32_t *table = a.tables + item.table;
    float m = -INFINITY, l = 0, o = 0, M = -INFINITY, L = 0, O = 0;
    pdl_launch();
    pdl_wait();
    if (r >= item.n_rows) return;
    if (i < hd)
        q[i] = to_f32(static_cast<const T *>(a.q)[((size_t)row * a.n_q + head) * a.kv.hd_pad + i]);
    for (uint32_t p0 = lo / ROSE_ATTEND_INNER * ROSE_ATTEND_INNER; p0 < end;
         p0 += ROSE_ATTEND_INNER) {
        const uint32_t from = max(lo, p0), to = min(end, p0 + ROSE_ATTEND_INNER);
        if (p0 % ROSE_ATTEND_SPLIT == 0) {
            O = merge_o(O, o, merge_ml(&M, &L, m, l));
            m = -INFINITY;
            l = o = 0;
        }
        __syncthreads();
        if (i < ROSE_ATTEND_INNER && p0 + i >= from && p0 + i < to)
            s[i] = plain_score(a, q, page_of<T>(a.kv, table[(p0 + i) / ROSE_PAGE], kv),
                               (p0 + i) % ROSE_PAGE, a.scale * ROSE_LOG2E);
        __syncthreads();
        float top = -INFINITY, sum[4] = {}, v = 0;
        for (uint32_t p = from; p < to; p++)
            top = fmaxf(top, s[p - p0]);
        const float base = top == -INFINITY ? 0.0f : top;
        for (uint32_t p = from; p < to; p++) {
            T rounded;
            from_f32(exp2f(s[p - p0] - base), &rounded);
            const float w = to_f32(rounded);
#pragma unroll
            for (uint32_t e = 0; e < 4; e++)
                if (p / 2 % 4 == e) sum[e] += w;
            if (i >= hd) continue;
            const T *page = page_of<T>(a.kv, table[p / ROSE_PAGE], kv) + ROSE_PAGE * a.kv.hd_pad;
            v = fmaf(w, to_f32(page[page_index(p % ROSE_PAGE, i, a.kv.hd_pad)]), v);
        }
        o = merge_o(o, v, merge_ml(&m, &l, top, (sum[0] + sum[1]) + (sum[2] + sum[3])));
    }
    O = merge_o(O, o, merge_ml(&M, &L, m, l));
    if (i < hd)
        from_f32(O * __frcp_rn(L),
                 static_cast<T *>(a.out) + h_index(row, head * hd + i, a.out_k_pad));
}

extern "C" cudaError_t rose_cuda_attend_plain(const rose_cuda_launch *l, const rose_cuda_attend *a)
{
    const dim3 grid(a->n_items * a->item_rows * a->n_q);
    if (a->kv.head_dim > ROSE_ATTEND_MAX_HEAD_DIM) return cudaErrorNotSupported;
    if (grid.x == 0) return cudaSuccess;
    switch (l->type) {
    case ROSE_F16:
        return launch_kernel(l, plain_kernel<__half>, grid, PLAIN_THREADS, 0, *a);
    case ROSE_BF16:
        return launch_kernel(l, plain_kernel<__nv_bfloat16>, grid, PLAIN_THREADS, 0, *a);
    default:
        return launch_kernel(l, plain_kernel<float>, grid, PLAIN_THREADS, 0, *a);
    }
}

/* ---- copies the pages that the items see to dense pages, in the order of the page tables ---- */

enum { GATHER_THREADS = 256, GATHER_BLOCKS = 32 /* for each item */ };

/* bytes: of a page of all KV heads. */
static __global__ void __launch_bounds__(GATHER_THREADS)
    gather_kernel(const rose_cuda_attend a, uint8_t *dense, const uint32_t size,
                  const uint32_t bytes)
{
    const rose_cuda_item item = a.items[blockIdx.x];
    const uint32_t seen = item.pos + 1; /* by the first row */
    const uint32_t first = a.window != 0 && seen > a.window ? seen - a.window : 0;
    pdl_launch();
    pdl_wait();
    if (item.n_rows == 0) return;
    for (uint32_t page = first / ROSE_PAGE + blockIdx.y; page * ROSE_PAGE < item.pos + item.n_rows;
         page += gridDim.y) {
        const uint64_t id = a.tables[item.table + page];
        const uint4 *from = reinterpret_cast<const uint4 *>(
            static_cast<const uint8_t *>(a.kv.base) + id * a.kv.page_elems * size);
        uint4 *to = reinterpret_cast<uint4 *>(dense + (uint64_t)(item.table + page) * bytes);
        for (uint32_t i = threadIdx.x; i < bytes / 16; i += GATHER_THREADS)
            to[i] = __ldcg(from + i);
    }
}

extern "C" cudaError_t rose_cuda_gather_run(const rose_cuda_launch *l, const rose_cuda_attend *a,
                                            void *dense)
{
    const uint32_t size = l->type == ROSE_F32 ? 4 : 2;
    if (a->n_items == 0) return cudaSuccess;
    return launch_kernel(l, gather_kernel, dim3(a->n_items, GATHER_BLOCKS), GATHER_THREADS, 0, *a,
                         static_cast<uint8_t *>(dense), size,
                         a->kv.n_heads * 2 * ROSE_PAGE * a->kv.hd_pad * size);
}
