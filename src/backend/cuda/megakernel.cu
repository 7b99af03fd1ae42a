/* backend/cuda/megakernel.cu - a decode step of one sequence in one launch, sm_90a.
 *
 * A step is a list of ops: for each layer the QKV GEMM with its norm, attention, the GEMM after
 * attention, the MLP's up GEMM with its norm, its down GEMM; then the head. The blocks stay, one on
 * each SM, and every block has a share of every op: strips of 8 outputs, or inner blocks of
 * attention. An op waits for its input, computes, and publishes its output:
 *
 * - Weights, K and V do not wait. A warp copies them, in the order of use, to rings in shared
 * memory. It runs ahead across ops, so memory stays busy while blocks exchange values.
 * - Values go through slots in device memory (mega.h). Readers poll until a slot has the number of
 *   the layer and step. This takes one trip through the L2. A barrier of the grid takes three.
 * - A slot is written again only one layer later. By then every reader has read it, because the
 *   writer's inputs come, through later exchanges, from every reader.
 *
 * The sums are those of the other kernels in the same order: gemm.h, attend.h, norm.cuh. So the
 * bits are the same, too.
 *
 * Polling needs all blocks on the GPU at the same time. The host checks this and launches the
 * kernel cooperatively. Bound: memory bandwidth, or for small models the latency of six exchanges
 * and five chains a layer. */
#include "backend/cuda/launch.cuh"
#include "backend/cuda/megakernel.cuh"

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

/* Of the outputs; of a gated matrix, of the gate and of up. */
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
                                                  : a.x;
    norm_values p;
    if (pairs == 0) return;
    const rose_cuda_norm_by by = head ? a.last : l.norm[op == ROSE_MEGA_UP];
    if (norms) load_norm(&p, by, m, a.d);
    const pair_bias b = load_bias(a, m, op, bias, m.thread, pairs);
    /* The first op has its input in shared memory. The last layer's number is the head's, too. */
    if (!first)
        fetch(m, norms ? a.at.x : a.at.row, from, norms ? a.d : x.cut[x.n_parts] * 8,
              op == ROSE_MEGA_QKV ? m.number - 1 : m.number);
    if (norms) norm_x<T>(a, m, by, p);
    multiply<T>(a, m, op);
    if (!head) finish<T>(a, m, op, bias, b, pairs);
}

/* ---- attention ---- */

/* A head of the row, from the sums of the QKV GEMM: `head` counts q, then K, then V. */
template <typename T, int HD>
ROSE_DEVICE void prepare_head(const rose_mega &a, const mega &m, const rose_mega_layer &l,
                              uint32_t head)
{
    const bool is_q = head < a.n_q, is_v = head >= a.n_q + a.n_kv;
    const uint32_t kv = (head - a.n_q) % a.n_kv;
    const float *norm =
        is_v || l.q_norm == NULL ? NULL : place<float>(m, a.at.qk) + (is_q ? 0 : HD);
    const uint64_t *at[HD / 64];
    uint2 u[HD / 64];
    float2 x[ROTARY_PAIRS] = {};
#pragma unroll
    for (uint32_t i = 0; i < HD / 64; i++)
        at[i] = a.qkv + (size_t)head * HD + i * 64 + m.lane * 2;
    poll<HD / 64>(u, at, m.number);
#pragma unroll
    for (uint32_t i = 0; i < HD / 64; i++)
        x[i] = make_float2(__uint_as_float(u[i].x), __uint_as_float(u[i].y));
    if (norm != NULL) norm_head(x, norm, HD, a.eps, m.lane);
    if (!is_v && l.rope != 0) {
        /* The position's row of the tables is in shared memory: it is row 0 there. */
        const uint32_t zero = 0;
        rose_cuda_rotary r = {};
        r.kv.head_dim = HD;
        r.where = &zero;
        r.rot_dim = a.rot_dim;
        r.cos = place<float>(m, a.at.rope);
        r.sin = r.cos + a.rot_dim / 2;
        rotate_head(x, r, 0, place<float>(m, a.at.stage) + m.warp * HD, m.lane);
    }
    T *to = is_q ? place<T>(m, a.at.q) + head * HD : place<T>(m, a.at.kv) + (kv * 2 + is_v) * HD;
    T *page = static_cast<T *>(l.kv) + m.slot / ROSE_PAGE * a.page_elems +
              (size_t)(kv * 2 + is_v) * ROSE_PAGE * HD;
#pragma unroll
    for (uint32_t i = 0; i < HD / 64; i++) {
        const uint32_t d = i * 64 + m.lane * 2;
        const float2 v = is_q ? x[i] : saturated(x[i], largest(static_cast<T *>(NULL)));
        store_pair(to + d, v.x, v.y);
        if (!is_q && m.slot != ROSE_CUDA_NO_SLOT)
            store_pair(page + page_index(m.slot % ROSE_PAGE, d, HD), v.x, v.y);
    }
}

/* The heads that this block's units need: query heads, and K and V where the block has the unit of
 * the row's own position. KV heads of the units repeat in a cycle. */
template <typename T, int HD>
ROSE_DEVICE void prepare_heads(const rose_mega &a, const mega &m, const rose_mega_layer &l,
                               uint32_t units)
{
    const uint32_t group = a.n_q / a.n_kv;
    uint32_t turn = 0;
    sync_warps(); /* the weights of QK-norm are there */
    for (uint32_t i = 0; i < units; i++) {
        const uint32_t kv = unit_of(a, m, i).head;
        if (i > 0 && kv == unit_of(a, m, 0).head) break;
        const bool own = ((m.n_splits - 1) * a.n_kv + kv) % a.grid == m.block;
        for (uint32_t j = 0; j < group + (own ? 2 : 0); j++)
            if (turn++ % WARPS == m.warp)
                prepare_head<T, HD>(a, m, l,
                                    j < group ? kv * group + j : a.n_q + (j - group) * a.n_kv + kv);
    }
    sync_warps();
}

/* The row's own K or V to its place in a page in shared memory: memory may not have it yet. */
template <typename T, int HD>
ROSE_DEVICE void patch(const rose_mega &a, const mega &m, uint32_t at, uint32_t kv, uint32_t v)
{
    const uint32_t *from =
        reinterpret_cast<const uint32_t *>(place<T>(m, a.at.kv) + (kv * 2 + v) * HD);
    uint32_t *page = reinterpret_cast<uint32_t *>(m.smem + (at - shared_address(m.smem)));
#pragma unroll
    for (uint32_t i = 0; i < HD / 64; i++)
        page[page_index(m.pos % ROSE_PAGE, i * 64 + m.lane * 2, HD) / 2] = from[i * 32 + m.lane];
    bulk_written();
    __syncwarp();
}

/* An inner block by one warp. Its result goes to shared memory, `to` [group][HD + 2]. */
template <typename T, int HD>
ROSE_DEVICE void attend_inner(const rose_mega &a, mega &m, uint32_t head, uint32_t inner,
                              float scale, float *to)
{
    const uint32_t g = m.lane / 4, t = m.lane % 4, group = a.n_q / a.n_kv;
    const uint32_t pages = pages_of(m, inner);
    const uint32_t own = m.pos / ROSE_PAGE - inner * INNER_PAGES; /* the row's own page */
    const uint32_t lo[1] = {0}, end[1] = {m.pos + 1};
    const T *heads = place<const T>(m, a.at.q) + (head * group + g) * HD + t * 2;
    attend_score by;
    uint32_t q[HD / 16][4], prob[INNER_PAGES][4];
    float s[INNER_PAGES][2][4] = {}, o[HD / 8][4] = {}, max[1], sum[1];
    by.by = scale * ROSE_LOG2E;
    by.cap = 0;
#pragma unroll
    for (uint32_t c = 0; c < HD / 16; c++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++)
            q[c][e] = e % 2 == 0 && g < group
                          ? *reinterpret_cast<const uint32_t *>(heads + c * 16 + e * 4)
                          : 0;
#pragma unroll
    for (uint32_t j = 0; j < INNER_PAGES; j++) {
        if (j >= pages) continue;
        const uint32_t at = take(a, m);
        if (j == own) patch<T, HD>(a, m, at, head, 0);
#pragma unroll
        for (int c = 0; c < HD / 16; c++)
            add_scores<T>(s[j], q[c], at, c, HD * 16, m.lane);
        done(a, m);
    }
    soften<T, 1>(s, prob, max, sum, lo, end, inner * ROSE_ATTEND_INNER, by, t);
#pragma unroll
    for (uint32_t j = 0; j < INNER_PAGES; j++) {
        if (j >= pages) continue;
        const uint32_t at = take(a, m);
        if (j == own) patch<T, HD>(a, m, at, head, 1);
        add_values<T, HD / 8>(o, prob[j], at, 0, HD * 16, m.lane);
        done(a, m);
    }
    if (g >= group) return;
    to += g * (HD + 2);
#pragma unroll
    for (uint32_t d = 0; d < HD / 8; d++)
        *reinterpret_cast<float2 *>(to + d * 8 + t * 2) = make_float2(o[d][0], o[d][1]);
    if (t == 0) *reinterpret_cast<float2 *>(to + HD) = make_float2(max[0], sum[0]);
}

/* Results that are being merged: maximum, sum, and some dims. */
template <int N> struct merged {
    float m, l, o[N];
};

template <int N> ROSE_DEVICE merged<N> nothing(void)
{
    merged<N> r = {};
    r.m = -INFINITY;
    return r;
}

template <int N> ROSE_DEVICE void add(merged<N> *to, const merged<N> &one)
{
    float a, b;
    to->m = merge_factors(to->m, one.m, &a, &b);
    to->l = fmaf(one.l, b, to->l * a);
#pragma unroll
    for (int i = 0; i < N; i++)
        to->o[i] = fmaf(one.o[i], b, to->o[i] * a);
}

/* Merges the inner blocks of a unit, which are in shared memory: a thread has 4 dims of a query
 * head. The result is the output, if the context has no other split, or goes to the slots `parts`.
 */
template <typename T, int HD>
ROSE_DEVICE void merge_inner(const rose_mega &a, const mega &m, const unit &u, const float *from)
{
    const uint32_t group = a.n_q / a.n_kv;
    const T *type = NULL;
    for (uint32_t i = m.thread; i < group * (HD / 4); i += THREADS) {
        const uint32_t g = i / (HD / 4), d = i % (HD / 4) * 4, q = u.head * group + g;
        merged<4> split = nothing<4>(), all = nothing<4>();
        for (uint32_t b = 0; b < u.n_inner; b++) {
            const float *p = from + (b * group + g) * (HD + 2);
            add(&split, {p[HD], p[HD + 1], {p[d], p[d + 1], p[d + 2], p[d + 3]}});
        }
        if (m.n_splits > 1) {
            uint64_t *to = a.parts + ((size_t)u.split * a.n_q + q) * (HD + 2);
            publish(to + d, __float_as_uint(split.o[0]), __float_as_uint(split.o[1]), m.number);
            publish(to + d + 2, __float_as_uint(split.o[2]), __float_as_uint(split.o[3]), m.number);
            if (d == 0)
                publish(to + HD, __float_as_uint(split.m), __float_as_uint(split.l), m.number);
            continue;
        }
        add(&all, split);
        const float inv = __frcp_rn(all.l);
        publish(a.attended + (q * HD + d) / 2, pair_f32(all.o[0] * inv, all.o[1] * inv, type),
                pair_f32(all.o[2] * inv, all.o[3] * inv, type), m.number);
    }
}

/* Merges the splits of 64 dims of a query head: a lane has 2 dims. */
template <typename T, int HD>
ROSE_DEVICE void merge_splits(const rose_mega &a, const mega &m, uint32_t q, uint32_t slice)
{
    enum { AHEAD = 8 }; /* splits whose loads overlap */
    const uint32_t dim = slice * 64 + m.lane * 2;
    merged<2> all = nothing<2>();
    for (uint32_t first = 0; first < m.n_splits; first += AHEAD) {
        const uint64_t *at[2 * AHEAD];
        uint2 v[2 * AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            const uint64_t *part =
                a.parts + ((size_t)min(first + i, m.n_splits - 1) * a.n_q + q) * (HD + 2);
            at[i * 2] = part + dim;
            at[i * 2 + 1] = part + HD;
        }
        poll<2 * AHEAD>(v, at, m.number);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (first + i < m.n_splits)
                add(&all, {__uint_as_float(v[i * 2 + 1].x),
                           __uint_as_float(v[i * 2 + 1].y),
                           {__uint_as_float(v[i * 2].x), __uint_as_float(v[i * 2].y)}});
    }
    const float inv = __frcp_rn(all.l);
    const uint32_t u = pair_f32(all.o[0] * inv, all.o[1] * inv, static_cast<const T *>(NULL));
    const uint32_t other = __shfl_xor_sync(ROSE_ALL_LANES, u, 1);
    if (m.lane % 2 == 0) publish(a.attended + (q * HD + dim) / 2, u, other, m.number);
}

/* A unit is a split of a KV head. The warps of a block take its inner blocks, so contexts of up to
 * 512 positions need no exchange within attention. */
template <typename T, int HD>
ROSE_DEVICE void attend(const rose_mega &a, mega &m, const rose_mega_layer &l)
{
    const uint32_t units = m.of[ROSE_MEGA_ATTEND].jobs / WARPS;
    const uint32_t mine = first_job(m, ROSE_MEGA_ATTEND), tasks = a.n_q * (HD / 64);
    float *results = place<float>(m, a.at.inner);
    if (units > 0) prepare_heads<T, HD>(a, m, l, units);
    for (uint32_t i = 0; i < units; i++) {
        const unit u = unit_of(a, m, i);
        if (i > 0) sync_warps(); /* the results of the unit before have been read */
        if (mine < u.n_inner)
            attend_inner<T, HD>(a, m, u.head, u.inner + mine, l.scale,
                                results + mine * (a.n_q / a.n_kv) * (HD + 2));
        sync_warps();
        merge_inner<T, HD>(a, m, u, results);
    }
    if (m.n_splits == 1) return;
    /* The last blocks come first: they have the fewest units. */
    for (uint32_t i = a.grid - 1 - m.block, turn = m.warp; i < tasks; i += a.grid, turn++)
        if (turn % WARPS == 0) merge_splits<T, HD>(a, m, i / (HD / 64), i % (HD / 64));
}

/* ---- the step ---- */

/* The layer's weights of QK-norm; the block meets before they are read. */
template <int HD>
ROSE_DEVICE void load_qk_norm(const rose_mega &a, const mega &m, const rose_mega_layer &l)
{
    if (l.q_norm == NULL || m.thread >= 2 * HD) return;
    place<float>(m, a.at.qk)[m.thread] =
        __ldcg(m.thread < HD ? l.q_norm + m.thread : l.k_norm + m.thread - HD);
}

template <typename T, int HD> ROSE_DEVICE void run_step(const rose_mega &a, mega &m)
{
    uint32_t op = ROSE_MEGA_QKV, layer = 0;
    m.number++;
#pragma unroll 1
    for (;;) {
        if (op == ROSE_MEGA_QKV) load_qk_norm<HD>(a, m, layer_of(a, m, layer));
        if (op == ROSE_MEGA_ATTEND)
            attend<T, HD>(a, m, layer_of(a, m, layer));
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
    const uint32_t words = a.n_layers * sizeof(rose_mega_layer) / 16, half = a.rot_dim / 2;
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
            barrier_init(shared_address(m.smem) + a.at.empty + i * 8, 1);
        }
        barrier_init_done();
        divide(a, m);
        if (m.block == 0) *a.key = 0; /* before anyone can have this block's first values */
        __threadfence();
    }
    for (uint32_t i = m.thread; i < words; i += blockDim.x)
        place<uint4>(m, a.at.layers)[i] = reinterpret_cast<const uint4 *>(a.layers)[i];
    for (uint32_t i = m.thread; i < half; i += blockDim.x) {
        place<float>(m, a.at.rope)[i] = a.cos[(size_t)m.pos * half + i];
        place<float>(m, a.at.rope)[half + i] = a.sin[(size_t)m.pos * half + i];
    }
    __syncthreads();
}
#endif

template <typename T, int HD>
static __global__ void __launch_bounds__(ROSE_MEGA_WARPS * 32 + 32, 1)
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
    if (m.warp == WARPS) {
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
    p->own = take_bytes(&end, most_shares(&a->matrix[ROSE_MEGA_OUT], a->grid) * 32);
    p->row = take_bytes(&end, row * 2);
    p->q = take_bytes(&end, a->n_q * a->head_dim * 2);
    p->kv = take_bytes(&end, a->n_kv * 2 * a->head_dim * 2);
    p->inner =
        take_bytes(&end, ROSE_MEGA_WARPS * (a->n_q / a->n_kv) * (a->head_dim + 2) * sizeof(float));
    p->stage = take_bytes(&end, ROSE_MEGA_WARPS * a->head_dim * 4);
    p->rope = take_bytes(&end, a->rot_dim * 4);
    p->qk = take_bytes(&end, 2 * a->head_dim * 4);
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

static mega_fn *kernel_of(rose_cuda_type t, uint32_t head_dim)
{
    if (t == ROSE_CUDA_F16)
        return head_dim == 64 ? mega_kernel<__half, 64> : mega_kernel<__half, 128>;
    return head_dim == 64 ? mega_kernel<__nv_bfloat16, 64> : mega_kernel<__nv_bfloat16, 128>;
}

cudaError_t rose_mega_prepare(const rose_cuda_device *d, rose_cuda_type t, const rose_mega *a,
                              bool *fits)
{
    const void *kernel = (const void *)kernel_of(t, a->head_dim);
    int blocks = 0;
    *fits = false;
    if (!d->hopper) return cudaSuccess;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)a->at.end);
    if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel,
                                                          ROSE_MEGA_WARPS * 32 + 32, a->at.end);
    *fits = e == cudaSuccess && (uint64_t)blocks * d->sms >= a->grid;
    return e;
}

cudaError_t rose_mega_run(const rose_cuda_launch *l, const rose_mega *a)
{
    return launch_together(l, kernel_of(l->type, a->head_dim), dim3(a->grid),
                           ROSE_MEGA_WARPS * 32 + 32, a->at.end, *a);
}
