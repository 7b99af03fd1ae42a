/* backend/cuda/fp32.cu - GEMMs and attention without tensor cores, for --dtype float32, where
 * exactness matters more than time.
 *
 * A sum is one chain of fused multiply-adds for each chunk of 192 values, in ascending order of
 * k. Chunks are added as in linear.cuh, also in the head. Attention is that of attention.cu,
 * with such chains in place of tensor-core products, and with exp2f. Other types use it only
 * with --prefill-backend naive; its bits are not those of attention.cu. */
#include "backend/cuda/device.cuh"
#include "backend/cuda/launch.cuh"

enum { TILE = 32, DEPTH = 32, WARPS = 4 };

/* A block of 256 threads computes 32 rows x 32 outputs. Thread (ty, tx) computes rows ty * 2 +
 * 0, 1 and outputs tx * 2 + 0, 1. */
static __global__ void __launch_bounds__(256)
    linear_kernel(const rose_cuda_linear l, const rose_cuda_io io)
{
    __shared__ float rows[TILE][DEPTH + 1], weights[TILE][DEPTH + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const uint32_t row0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
    const float *h = static_cast<const float *>(io.h), *w = static_cast<const float *>(l.w);
    float acc[2][2] = {}, sum[2][2] = {};

    pdl_launch();
    pdl_wait();
    for (uint32_t kk = 0; kk * DEPTH < l.k_pad; kk++) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += 256) {
            const uint32_t r = i / DEPTH, k = kk * DEPTH + i % DEPTH;
            rows[r][i % DEPTH] = row0 + r < io.rows ? h[h_index(row0 + r, k, l.k_pad)] : 0.0f;
            weights[r][i % DEPTH] = w[(size_t)(n0 + r) * l.k_pad + k];
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++)
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 2; j++)
                    acc[i][j] = fmaf(rows[ty * 2 + i][k], weights[tx * 2 + j][k], acc[i][j]);
        __syncthreads();
        if ((kk + 1) % ROSE_CUDA_CHUNK_K32 != 0 && (kk + 1) * DEPTH < l.k_pad) continue;
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) {
                sum[i][j] += acc[i][j];
                acc[i][j] = 0;
            }
    }
    for (int i = 0; i < 2; i++) {
        const uint32_t row = row0 + ty * 2 + i;
        pair_inputs in;
        in.bias = load_bias(l, n0 + tx * 2);
        load_pair_inputs(&in, l, io, row, n0 + tx * 2);
        unsigned long long key =
            finish_pair<float>(l, io, row, n0 + tx * 2, sum[i][0], sum[i][1], in);
        if (io.epilogue == ROSE_CUDA_EPI_LOGITS && io.key != NULL && row < io.rows)
            atomicMax(io.key + row, key);
    }
}

template <typename T> ROSE_DEVICE float rounded(float x)
{
    T y;
    from_f32(x, &y);
    return to_f32(y);
}

/* One warp computes one row. For scores, lane j has position j of a split; for values, it has
 * dims j, j + 32, ... */
template <typename T>
static __global__ void __launch_bounds__(WARPS * 32) attention_kernel(const rose_cuda_attention a)
{
    __shared__ float query[WARPS][ROSE_CUDA_MAX_HEAD_DIM], prob[WARPS][ROSE_CUDA_SPLIT];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t index = blockIdx.y * WARPS + warp, head = blockIdx.x;
    const uint32_t hd = a.kv.head_dim;
    pdl_launch();
    pdl_wait();
    if (index / ROSE_CUDA_TILE_ROWS >= a.n_items) return;
    const rose_cuda_item it = a.items[index / ROSE_CUDA_TILE_ROWS];
    const uint32_t r = index % ROSE_CUDA_TILE_ROWS, pos = it.pos + r;
    if (r >= it.n_rows) return;
    const T *q = static_cast<const T *>(a.q) + (size_t)(it.row + r) * a.d + head * hd;
    float max = -INFINITY, sum = 0, out[ROSE_CUDA_MAX_HEAD_DIM / 32] = {};

    for (uint32_t d = lane; d < hd; d += 32)
        query[warp][d] = to_f32(q[d]);
    __syncwarp();
    for (uint32_t split = 0; split <= pos / ROSE_CUDA_SPLIT; split++) {
        const uint32_t at = split * ROSE_CUDA_SPLIT + lane;
        const uint32_t *table = a.tables + it.table + split * 2;
        float s = -INFINITY;
        if (at <= pos) {
            const T *k = kv_block<T>(a.kv, table[lane / ROSE_PAGE], head);
            s = 0;
            for (uint32_t d = 0; d < hd; d++)
                s = fmaf(query[warp][d], to_f32(k[k_index(lane % ROSE_PAGE, d)]), s);
            s *= a.scale;
        }
        float m = s;
        for (int o = 16; o > 0; o /= 2)
            m = fmaxf(m, __shfl_xor_sync(ROSE_ALL_LANES, m, o));
        float p = rounded<T>(exp2f(s - m)), l = p;
        for (int o = 16; o > 0; o /= 2)
            l += __shfl_xor_sync(ROSE_ALL_LANES, l, o);
        prob[warp][lane] = p;
        __syncwarp();
        const float top = fmaxf(max, m), x = exp2f(max - top), y = exp2f(m - top);
        max = top;
        sum = fmaf(l, y, sum * x);
        const uint32_t n = min(pos - split * ROSE_CUDA_SPLIT + 1, (uint32_t)ROSE_CUDA_SPLIT);
        for (uint32_t i = 0; i * 32 + lane < hd; i++) {
            float o = 0;
            for (uint32_t j = 0; j < n; j++) {
                const T *v =
                    kv_block<T>(a.kv, table[j / ROSE_PAGE], head) + ROSE_PAGE * a.kv.hd_pad;
                o = fmaf(prob[warp][j], to_f32(v[v_index(j % ROSE_PAGE, i * 32 + lane)]), o);
            }
            out[i] = fmaf(o, y, out[i] * x);
        }
        __syncwarp();
    }
    for (uint32_t i = 0; i * 32 + lane < hd; i++)
        from_f32(out[i] * __frcp_rn(sum),
                 static_cast<T *>(a.out) +
                     h_index(it.row + r, head * hd + i * 32 + lane, a.out_k_pad));
}

cudaError_t rose_cuda_linear_f32(const rose_cuda_launch *at, const rose_cuda_linear *l,
                                 const rose_cuda_io *io)
{
    dim3 grid((l->n + TILE - 1) / TILE, (io->rows + TILE - 1) / TILE);
    return launch_kernel(at, linear_kernel, grid, 256, 0, *l, *io);
}

cudaError_t rose_cuda_attention_plain(const rose_cuda_launch *at, const rose_cuda_attention *a)
{
    if (a->n_items == 0) return cudaSuccess;
    const uint32_t n = a->n_items * ROSE_CUDA_TILE_ROWS;
    const dim3 grid(a->kv.n_heads, (n + WARPS - 1) / WARPS);
    if (at->type == ROSE_CUDA_F16)
        return launch_kernel(at, attention_kernel<__half>, grid, WARPS * 32, 0, *a);
    if (at->type == ROSE_CUDA_BF16)
        return launch_kernel(at, attention_kernel<__nv_bfloat16>, grid, WARPS * 32, 0, *a);
    return launch_kernel(at, attention_kernel<float>, grid, WARPS * 32, 0, *a);
}
