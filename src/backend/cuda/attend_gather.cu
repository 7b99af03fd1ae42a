/* backend/cuda/attend_gather.cu - for --paged-attn off: copies the pages that the items see to
 * dense pages, in the order of the page tables (attend.h). Bound by memory. */
#include "backend/cuda/attend.cuh"
#include "backend/cuda/launch.cuh"

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
    const uint32_t size = l->type == ROSE_CUDA_F32 ? 4 : 2;
    if (a->n_items == 0) return cudaSuccess;
    return launch_kernel(l, gather_kernel, dim3(a->n_items, GATHER_BLOCKS), GATHER_THREADS, 0, *a,
                         static_cast<uint8_t *>(dense), size,
                         a->kv.n_heads * 2 * ROSE_PAGE * a->kv.hd_pad * size);
}
