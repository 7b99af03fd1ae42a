/* backend/cuda/megakernel.cu - a decode step of one sequence in one launch, sm_90a.
 *
 * A step is a list of ops: for each layer the QKV GEMM with its norm, attention, the GEMM after
 * attention, the MLP's up GEMM with its norm, its down GEMM; then the head. The blocks stay, one on
 * each SM, and every block has a share of every op: strips of 8 outputs, or inner blocks of
 * attention. An op waits for its input, computes, and publishes its output:
 *
 * - Copies of weights, K and V need not wait for an op's input. Two warps copy them to rings in
 *   shared memory, in the order of use. These warps run ahead of the current op, so memory stays
 *   busy while blocks exchange values.
 * - Values go through slots in device memory (mega.h). Readers poll until a slot has the number of
 *   the layer and step. An exchange takes one trip through the L2; a barrier of the grid takes
 *   three.
 * - A slot is written again only one layer later. By then every reader has read it, because the
 *   writer's inputs come, through later exchanges, from every reader.
 *
 * The sums are those of the other kernels in the same order: gemm.h, attend.h, norm.cuh. So the
 * bits are also the same.
 *
 * Polling needs all blocks on the GPU at the same time. The host checks this and launches the
 * kernel cooperatively. Bound: memory bandwidth, or for small models the latency of six exchanges
 * and five chains a layer. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/mega_attend.cuh"

#if ROSE_HOPPER

/* ---- the residual stream ---- */

/* This block's values of the residual stream: the outputs of the GEMMs that add to it. */
ROSE_DEVICE uint32_t own_values(const rose_mega &a, const mega &m)
{
    return m.of[ROSE_MEGA_OUT].jobs / a.matrix[ROSE_MEGA_OUT].n_parts * 8;
}

template <typename T> ROSE_DEVICE void embed(const rose_mega &a, const mega &m)
{
    const T *tok = static_cast<const T *>(a.tok);
    float *x = place<float>(m, a.at.x), *own = place<float>(m, a.at.own);
    for (uint32_t k = m.thread; k < a.d; k += THREADS) {
        const float v = to_f32(tok[w_index(m.id, k, a.tok_k_pad, tok)]) * a.embed_scale;
        x[k] = a.pos == NULL ? v : v + a.pos[(size_t)m.pos * a.d + k];
    }
    sync_warps();
    for (uint32_t i = m.thread; i < own_values(a, m); i += THREADS)
        own[i] = x[m.of[ROSE_MEGA_OUT].first * 8 + i];
}

/* ---- GEMMs. There is one copy of the code for all five, because a step runs through it once for
 * each op, and instructions must come from a cache. ---- */

/* A thread finishes two neighbouring outputs of a share: pair i of 4 for each share. Number of the
 * first output. */
ROSE_DEVICE uint32_t output_of(const rose_mega &a, const mega &m, uint32_t op, uint32_t i)
{
    const uint32_t at = m.of[op].first + i / 4;
    return at * (8 * a.matrix[op].strips) + i % 4 * 2;
}

/* The biases of two outputs; in a gated matrix those of the gate and those of up. */
typedef struct pair_bias {
    float2 y, up;
} pair_bias;

ROSE_DEVICE pair_bias load_bias(const rose_mega &a, const mega &m, uint32_t op, const float *bias,
                                uint32_t i, uint32_t pairs)
{
    pair_bias b = {};
    if (bias == NULL || i >= pairs) return b;
    const float *at = bias + output_of(a, m, op, i);
    b.y = __ldcg(reinterpret_cast<const float2 *>(at));
    if (a.matrix[op].strips == 2) b.up = __ldcg(reinterpret_cast<const float2 *>(at + 8));
    return b;
}

/* Two neighbouring sums of a job. */
ROSE_DEVICE float2 sums_of(const rose_mega &a, const mega &m, uint32_t job, uint32_t i)
{
    return place<const float2>(m, a.at.sums)[job * 4 + i % 4];
}

ROSE_DEVICE float2 biased(float2 y, const float *bias, float2 v)
{
    return bias == NULL ? y : make_float2(y.x + v.x, y.y + v.y);
}

/* x = (((x + (p0 + bias)) + p1) + p2) + p3. The first part has the bias. */
ROSE_DEVICE float2 add_parts(const rose_mega &a, const mega &m, uint32_t job, uint32_t i,
                             float2 first)
{
    float2 *own = place<float2>(m, a.at.own) + i;
    float2 x = end_added(*own, first);
    for (uint32_t part = 1; part < ROSE_GEMM_PARTS; part++)
        x = end_added(x, sums_of(a, m, job + part, i));
    return *own = x;
}

/* From the sums to the slots of the next op. Hidden values travel as pairs of T. */
template <typename T>
ROSE_DEVICE void finish(const rose_mega &a, const mega &m, uint32_t op, const float *bias,
                        pair_bias b, uint32_t pairs)
{
    const rose_mega_matrix &x = a.matrix[op];
    rose_gemm_io io = {};
    io.act = a.act;
    for (uint32_t base = 0; base < pairs; base += THREADS) {
        const uint32_t i = base + m.thread, job = i / 4 * x.strips * x.n_parts;
        const uint32_t n = output_of(a, m, op, i);
        float2 y = make_float2(0, 0);
        if (base > 0) b = load_bias(a, m, op, bias, i, pairs);
        if (i < pairs) y = biased(sums_of(a, m, job, i), bias, b.y);
        if (op != ROSE_MEGA_UP) {
            if (i >= pairs) continue;
            if (op != ROSE_MEGA_QKV) y = add_parts(a, m, job, i, y);
            uint64_t *to = op == ROSE_MEGA_QKV ? a.qkv : op == ROSE_MEGA_OUT ? a.mid : a.x;
            publish(to + n, __float_as_uint(y.x), __float_as_uint(y.y), m.number);
            continue;
        }
        y = end_act_values(io, y);
        if (x.strips == 2 && i < pairs) { /* as end_gated_values */
            const float2 up = biased(sums_of(a, m, job + 1, i), bias, b.up);
            y = make_float2(y.x * up.x, y.y * up.y);
        }
        const uint32_t u = pair_f32(y.x, y.y, static_cast<const T *>(NULL));
        const uint32_t next = __shfl_xor_sync(ROSE_ALL_LANES, u, 1);
        if (i < pairs && i % 2 == 0) publish(a.hidden + m.of[op].first * 4 + i, u, next, m.number);
    }
}

/* The logits of a strip, from the sums that each warp has in its lanes. Returns the largest key. */
ROSE_DEVICE unsigned long long finish_logits(const rose_mega &a, const mega &m, uint32_t strip,
                                             float2 y)
{
    const uint32_t id = strip * 8 + m.lane % 4 * 2;
    unsigned long long key = 0;
    rose_gemm_io io = {};
    io.softcap = a.softcap;
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        if (m.lane >= 4 || id + e >= a.vocab) continue;
        const float logit = end_logit(io, e == 0 ? y.x : y.y);
        a.logits[id + e] = logit;
        key = max(key, rank_key(logit, id + e));
    }
    return key;
}

/* The sums of this block's jobs go to shared memory as [job][8]. Each warp finishes its strips of
 * the head by itself. */
template <typename T> ROSE_DEVICE void multiply(const rose_mega &a, mega &m, uint32_t op)
{
    float2 *sums = place<float2>(m, a.at.sums);
    unsigned long long key = 0;
    for (uint32_t job = first_job(m, op); job < m.of[op].jobs; job += WARPS) {
        const run r = run_of(a, m, op, job);
        const float2 y = chain<T>(a, m, r.begin, r.end);
        if (op == ROSE_MEGA_HEAD)
            key = max(key, finish_logits(a, m, r.strip, y));
        else if (m.lane < 4)
            sums[job * 4 + m.lane] = y;
    }
    if (op == ROSE_MEGA_HEAD) {
        for (int o = 2; o > 0; o /= 2)
            key = max(key, __shfl_xor_sync(ROSE_ALL_LANES, key, o));
        if (m.lane == 0 && key != 0) atomicMax(a.key, key);
    }
    sync_warps();
}

/* One op: wait for the input, norm it or not, multiply, publish. */
template <typename T>
ROSE_DEVICE void run_gemm(const rose_mega &a, mega &m, uint32_t op, uint32_t layer)
{
    const bool head = op == ROSE_MEGA_HEAD, first = op == ROSE_MEGA_QKV && layer == 0;
    const bool norms = op == ROSE_MEGA_QKV || op == ROSE_MEGA_UP || head;
    const rose_mega_matrix &x = a.matrix[op];
    const rose_mega_layer &l = layer_of(a, m, head ? 0 : layer);
    const float *bias = head ? NULL : l.bias[op];
    const uint32_t pairs = m.of[op].jobs / (x.strips * x.n_parts) * 4;
    const uint64_t *from = op == ROSE_MEGA_OUT    ? a.attended
                           : op == ROSE_MEGA_UP   ? a.mid
                           : op == ROSE_MEGA_DOWN ? a.hidden
                           : first                ? NULL /* x is in shared memory */
                                                  : a.x;
    if (pairs == 0) return;
    const rose_cuda_norm_by by = head ? a.last : l.norm[op == ROSE_MEGA_UP];
    const pair_bias b = load_bias(a, m, op, bias, m.thread, pairs);
    /* The head has the last layer's number. */
    const uint32_t number = op == ROSE_MEGA_QKV ? m.number - 1 : m.number;
    if (!norms)
        fetch(m, a.at.row, from, x.cut[x.n_parts] * 8, number);
    else if (a.d <= ROSE_MEGA_MAX_D / 2)
        norm_x<T, ROSE_MEGA_MAX_D / 2 / THREADS>(a, m, by, from, number);
    else
        norm_x<T, ROSE_MEGA_MAX_D / THREADS>(a, m, by, from, number);
    multiply<T>(a, m, op);
    if (!head) finish<T>(a, m, op, bias, b, pairs);
}

/* ---- the step ---- */

template <typename T, int HD> ROSE_DEVICE void run_step(const rose_mega &a, mega &m)
{
    uint32_t op = ROSE_MEGA_QKV, layer = 0;
    rotary_angles<HD / 64> by = {}; /* of all layers */
    rose_cuda_rotary r = {};
    r.rot_dim = a.rot_dim;
    r.cos = a.cos;
    r.sin = a.sin;
    load_angles<HD / 64>(&by, r, m.pos, m.lane);
    m.number++;
#pragma unroll 1
    for (;;) {
        if (op == ROSE_MEGA_ATTEND)
            attend<T, HD>(a, m, layer_of(a, m, layer), by);
        else
            run_gemm<T>(a, m, op, layer);
        if (op == ROSE_MEGA_HEAD) return;
        if (op != ROSE_MEGA_DOWN) {
            op++;
        } else if (++layer == a.n_layers) {
            op = ROSE_MEGA_HEAD;
        } else {
            op = ROSE_MEGA_QKV;
            m.number++;
        }
    }
}

/* Everything that the step reads again and again, to shared memory. */
ROSE_DEVICE void begin(const rose_mega &a, mega &m)
{
    const uint32_t words = a.n_layers * sizeof(rose_mega_layer) / 16;
    m.pos = *a.where;
    m.slot = *a.slot;
    m.id = token_of(*a.tokens, a.sampled, a.vocab);
    m.n_pages = m.pos / ROSE_PAGE + 1;
    m.n_inner = m.pos / ROSE_ATTEND_INNER + 1;
    m.n_splits = m.pos / ROSE_ATTEND_SPLIT + 1;
    m.number = *a.turn * (a.n_layers + 1);
    m.of = place<share>(m, a.at.shares);
    if (m.thread == 0) {
        for (uint32_t i = 0; i < WARPS * a.pieces; i++) {
            barrier_init(shared_address(m.smem) + a.at.full + i * 8, 1);
            barrier_init(shared_address(m.smem) + a.at.empty + i * 8, 32);
        }
        barrier_init_done();
        divide(a, m);
        if (m.block == 0) *a.key = 0; /* before anyone can have this block's first values */
        __threadfence();
    }
    for (uint32_t i = m.thread; i < words; i += blockDim.x)
        place<uint4>(m, a.at.layers)[i] = reinterpret_cast<const uint4 *>(a.layers)[i];
    __syncthreads();
}
#endif

template <typename T, int HD>
static __global__ void __launch_bounds__(ROSE_MEGA_THREADS, 1)
    mega_kernel(const __grid_constant__ rose_mega a)
{
#if ROSE_HOPPER
    ROSE_BLOCK_MEMORY(smem);
    mega m = {};
    m.smem = smem;
    m.block = blockIdx.x;
    m.thread = threadIdx.x;
    m.warp = threadIdx.x / 32;
    m.lane = threadIdx.x % 32;
    begin(a, m);
    if (m.warp >= WARPS) {
        copy_all(a, m);
        return;
    }
    embed<T>(a, m);
    run_step<T, HD>(a, m);
#endif
}

/* ---- sizes ---- */

void rose_mega_matrix_of(rose_mega_matrix *to, const rose_cuda_matrix *m)
{
    to->n = m->n;
    to->k_pad = m->k_pad;
    to->strips = m->gated ? 2 : 1;
    to->shares = (m->n + 8 * to->strips - 1) / (8 * to->strips);
    to->n_parts = m->n_parts;
    for (uint32_t i = 0; i <= m->n_parts; i++)
        to->cut[i] = (m->cut[i] + ROSE_GEMM_GROUP - 1) / ROSE_GEMM_GROUP;
}

uint64_t rose_mega_layout(rose_mega *a, uint64_t *base, uint32_t positions)
{
    const uint64_t splits = (positions + ROSE_ATTEND_SPLIT - 1) / ROSE_ATTEND_SPLIT;
    const uint64_t sizes[] = {a->d,
                              a->d,
                              a->matrix[ROSE_MEGA_QKV].n,
                              splits * a->n_q * (a->head_dim + 2),
                              a->n_q * a->head_dim / 2,
                              a->matrix[ROSE_MEGA_DOWN].k_pad / 2};
    uint64_t **to[] = {&a->x, &a->mid, &a->qkv, &a->parts, &a->attended, &a->hidden}, n = 0;
    for (uint32_t i = 0; i < 6; i++) {
        if (base != NULL) *to[i] = base + n;
        n += (sizes[i] + 31) / 32 * 32; /* each on a cache line of its own */
    }
    return n;
}

static uint32_t take_bytes(uint32_t *end, uint64_t bytes)
{
    const uint32_t at = *end;
    *end += (uint32_t)((bytes + 127) / 128 * 128);
    return at;
}

/* Most shares of a matrix that one block has. */
static uint32_t most_shares(const rose_mega_matrix *x, uint32_t grid)
{
    return (x->shares + grid - 1) / grid;
}

static void place_all(rose_mega *a, uint32_t pieces)
{
    rose_mega_places *p = &a->at;
    uint32_t end = ROSE_MEGA_WARPS * pieces * ROSE_MEGA_PIECE, row = 0, jobs = 0;
    for (uint32_t op = 0; op < ROSE_MEGA_N_OPS; op++) {
        const rose_mega_matrix *x = &a->matrix[op];
        const uint32_t n = most_shares(x, a->grid) * x->strips * x->n_parts;
        if (op == ROSE_MEGA_ATTEND) continue;
        row = x->k_pad > row ? x->k_pad : row;
        jobs = op != ROSE_MEGA_HEAD && n > jobs ? n : jobs;
    }
    a->pieces = pieces;
    p->full = take_bytes(&end, ROSE_MEGA_WARPS * pieces * 8);
    p->empty = take_bytes(&end, ROSE_MEGA_WARPS * pieces * 8);
    p->shares = take_bytes(&end, ROSE_MEGA_N_OPS * 3 * sizeof(uint32_t));
    p->layers = take_bytes(&end, a->n_layers * sizeof(rose_mega_layer));
    p->x = take_bytes(&end, a->d * 4);
    p->red = take_bytes(&end, 64 * sizeof(float));
    p->own = take_bytes(&end, most_shares(&a->matrix[ROSE_MEGA_OUT], a->grid) * 32);
    p->row = take_bytes(&end, row * 2);
    p->q = take_bytes(&end, a->n_q * a->head_dim * 2);
    p->kv = take_bytes(&end, a->n_kv * 2 * a->head_dim * 2);
    p->inner =
        take_bytes(&end, ROSE_MEGA_WARPS * (a->n_q / a->n_kv) * (a->head_dim + 2) * sizeof(float));
    p->stage = take_bytes(&end, ROSE_MEGA_WARPS * a->head_dim * 4);
    p->sums = take_bytes(&end, jobs * 32);
    p->end = end;
}

bool rose_mega_measure(rose_mega *a, uint32_t grid, size_t shared_max)
{
    a->grid = grid;
    for (uint32_t n = ROSE_MEGA_MAX_PIECES; n >= ROSE_MEGA_MIN_PIECES; n--) {
        place_all(a, n);
        if (a->at.end <= shared_max) return true;
    }
    return false;
}

/* ---- launchers ---- */

typedef void mega_fn(rose_mega);

static mega_fn *kernel_of(rose_format t, uint32_t head_dim)
{
    if (t == ROSE_F16) return head_dim == 64 ? mega_kernel<__half, 64> : mega_kernel<__half, 128>;
    return head_dim == 64 ? mega_kernel<__nv_bfloat16, 64> : mega_kernel<__nv_bfloat16, 128>;
}

cudaError_t rose_mega_prepare(const rose_cuda_device *d, rose_format t, const rose_mega *a,
                              bool *fits)
{
    const void *kernel = (const void *)kernel_of(t, a->head_dim);
    int blocks = 0;
    *fits = false;
    if (!d->hopper) return cudaSuccess;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)a->at.end);
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, ROSE_MEGA_THREADS,
                                                          a->at.end);
    *fits = e == cudaSuccess && (uint64_t)blocks * d->sms >= a->grid;
    return e;
}

cudaError_t rose_mega_run(const rose_cuda_launch *l, const rose_mega *a)
{
    return launch_together(l, kernel_of(l->type, a->head_dim), dim3(a->grid), ROSE_MEGA_THREADS,
                           a->at.end, *a);
}
