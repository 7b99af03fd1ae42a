/* backend/cuda/plan.c - checks what the CUDA backend can run, and computes the place of everything
 * on the device and so the memory that a model takes.
 *
 * The layout functions run twice: in plan() without memory, to add up the sizes, and in open() over
 * the allocated regions. Sizes cannot overflow 64 bits, because check_arch() limits every dimension
 * first. */
#include <string.h>

#include "backend/checks.h"
#include "backend/cuda/cuda_internal.h"

enum { MAX_WIDTH = 1 << 22, MAX_HEADS = 4096 };

#define MIB (UINT64_C(1) << 20)
/* Upper estimates of the memory that the driver takes in addition to our regions: a fixed part for
 * code and context, and a part for each node of a captured graph. (An H100 with CUDA 13.0 took 23
 * MiB in all for 48 layers.) */
#define LOADED_BYTES (64 * MIB)
#define NODE_BYTES   (UINT64_C(8) << 10) /* a node of a captured graph */

/* Attention. Shapes that the kernels with tensor cores refuse run on the plain kernel. */
static rose_status check_heads(const rose_arch *a, rose_err *err)
{
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    const char *t = a->model_type;
    if (m->head_dim % 2 != 0 || rose_cuda_attend_pad(m->head_dim) == 0 || m->head_dim == 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: head size %u: the CUDA backend supports even sizes up to %d", t,
                         m->head_dim, ROSE_ATTEND_MAX_HEAD_DIM);
    if (m->n_kv_heads == 0 || m->n_heads % m->n_kv_heads != 0 || m->n_heads > MAX_HEADS)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: %u query heads and %u KV heads: the CUDA backend supports multiples "
                         "of the KV heads up to %d",
                         t, m->n_heads, m->n_kv_heads, MAX_HEADS);
    for (uint32_t i = 0; i < a->n_kinds; i++) {
        const uint32_t dim = a->kinds[i].mixer.rope.dim;
        if (dim > m->head_dim || dim % 2 != 0)
            return rose_fail(err, ROSE_E_UNSUPPORTED,
                             "%s: RoPE turns %u values of a head of %u: the CUDA backend supports "
                             "even numbers up to the head size",
                             t, dim, m->head_dim);
    }
    return ROSE_OK;
}

static rose_status check_arch(const rose_arch *a, rose_err *err)
{
    const uint32_t d_ff = rose_arch_any(a)->mlp.d_ff;
    const char *t = a->model_type;
    if (a->d_model == 0 || a->d_model > ROSE_CUDA_MAX_D || a->d_model % 8 != 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: width %u: the CUDA backend supports multiples of 8 up to %d", t,
                         a->d_model, ROSE_CUDA_MAX_D);
    if (d_ff == 0 || d_ff % 8 != 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: MLP width %u: the CUDA backend supports multiples of 8", t, d_ff);
    if (a->n_layers == 0 || a->n_layers > ROSE_MAX_LAYERS || d_ff > MAX_WIDTH ||
        a->vocab_size == 0 || a->vocab_size > MAX_WIDTH || a->max_positions == 0 ||
        a->max_positions > MAX_WIDTH)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: a dimension is 0 or above %d", t, MAX_WIDTH);
    return check_heads(a, err);
}

static rose_status check_opts(const rose_backend_opts *o, const rose_arch *a, rose_memory_plan *p,
                              rose_err *err)
{
    rose_status st = rose_backend_check_opts(o, a, p, err);
    if (st != ROSE_OK) return st;
    if (o->cpu.lock_memory || o->cpu.prefault)
        return rose_fail(
            err, ROSE_E_UNSUPPORTED,
            "%s is for the CPU backend: the CUDA backend allocates and pins all of its "
            "memory at the start",
            o->cpu.lock_memory ? "mlock" : "prefault");
    if (!(o->cuda.memory_utilization >= 0 && o->cuda.memory_utilization <= 1))
        return rose_fail(err, ROSE_E_INVAL, "gpu-memory-utilization %g is not in 0 .. 1",
                         (double)o->cuda.memory_utilization);
    p->n_threads = 1; /* one thread, because only the engine thread computes on the host */
    return ROSE_OK;
}

/* The default number of KV pages, for options that give neither a number of pages nor bytes. */
static uint64_t default_pages(const rose_backend_opts *o, const rose_memory_plan *p,
                              uint64_t device_bytes)
{
    const uint64_t taken = p->weights + p->scratch + p->graphs, least = rose_backend_least_pages(p),
                   context = rose_backend_context_pages(p);
    uint64_t most, pages = context * p->max_seqs;

    if (o->cuda.memory_utilization > 0) {
        most = (uint64_t)((double)o->cuda.memory_utilization * (double)device_bytes);
        return most > taken ? rose_backend_pages_in(p, most - taken) : 0;
    }
    most = p->available > taken ? (p->available - taken) / 10 * 9 : 0;
    most = rose_backend_pages_in(p, most);
    if (most < pages) pages = most;
    return pages < least ? least : pages;
}

static rose_status too_large(const rose_memory_plan *p, rose_err *err)
{
    char kv[ROSE_KV_ADVICE];
    const char *advice = "the model is too large for this GPU: take a smaller one";
    if (p->scratch > p->kv && p->weights + p->graphs + p->kv < p->available)
        advice = "lower max-num-batched-tokens or max-num-seqs";
    else if (p->dtype == ROSE_COMPUTE_F32 && p->weights >= p->kv &&
             p->weights / 2 + p->scratch + p->graphs < p->available)
        advice = "choose dtype bfloat16"; /* half of the weights */
    else if (rose_backend_kv_advice(p, kv))
        advice = kv;
    const double mib = 1048576;
    return rose_fail(err, ROSE_E_NOMEM,
                     "the plan needs %.0f MiB of GPU memory (weights %.0f, KV %.0f in %u pages, "
                     "scratch %.0f, graphs %.0f) but %.0f MiB are available: %s",
                     (double)p->total / mib, (double)p->weights / mib, (double)p->kv / mib,
                     p->pools[0].n_blocks, (double)p->scratch / mib, (double)p->graphs / mib,
                     (double)p->available / mib, advice);
}

/* The scratch memory for this number of KV pages: the longer the contexts together, the more
 * partial results of attention. */
static uint64_t scratch_bytes(const rose_arch *a, const rose_memory_plan *p, uint32_t sms,
                              uint64_t kv_pages)
{
    rose_bump b = {.align = ROSE_CUDA_ALIGN};
    rose_cuda_scratch s = {0};
    rose_memory_plan with = *p;
    with.pools[0].n_blocks = kv_pages < UINT32_MAX ? (uint32_t)kv_pages : UINT32_MAX;
    rose_cuda_layout_scratch(&s, &b, a, &with, sms);
    return b.used;
}

rose_status rose_cuda_check(const rose_model *m, rose_err *err)
{
    return check_arch(&m->arch, err);
}

/* The type of most weights of the file. Files in fp32 or in block types do not say in which type
 * the model is meant to run: GPT-2 stays within the range of fp16, the others were trained in bf16.
 */
static rose_compute default_dtype(const rose_model *m)
{
    if (m->dtype == ROSE_F16) return ROSE_COMPUTE_F16;
    if (m->dtype == ROSE_BF16) return ROSE_COMPUTE_BF16;
    return m->arch.norm == ROSE_NORM_LAYER ? ROSE_COMPUTE_F16 : ROSE_COMPUTE_BF16;
}

static rose_status plan_steps(const rose_model *m, const rose_backend_opts *o,
                              rose_memory_plan *out, rose_err *err)
{
    rose_status st;
    rose_bump weights = {.align = ROSE_CUDA_ALIGN};
    rose_cuda_weights w = {0};
    rose_memory_plan p = {.dtype = o->dtype};
    size_t free_bytes = 0, total_bytes = 0;
    rose_cuda_device device;

    memset(out, 0, sizeof *out);
    if (o->quantization != ROSE_QUANT_NONE)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "quantization %s: the CUDA backend does not support it",
                         rose_quantization_name(o->quantization));
    if ((st = rose_cuda_check(m, err)) != ROSE_OK) return st;
    if ((st = check_opts(o, &m->arch, &p, err)) != ROSE_OK) return st;
    if ((st = rose_cuda_switches_read(&o->cuda, &p.without, err)) != ROSE_OK) return st;
    if ((st = rose_cuda_device_open((int)o->cuda.device, &device, err)) != ROSE_OK) return st;
    if (p.dtype == ROSE_COMPUTE_AUTO) p.dtype = default_dtype(m);
    p.prefill = o->cuda.prefill == ROSE_PREFILL_NAIVE ? ROSE_PREFILL_NAIVE : ROSE_PREFILL_FLASH;
    cudaError_t e = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (e != cudaSuccess) return rose_cuda_status(err, e, "reading the GPU's free memory");
    if (!device.hopper) p.without |= ROSE_CUDA_WITHOUT_WIDE;
    if (!o->cuda.guesses || p.prefill == ROSE_PREFILL_NAIVE) p.without |= ROSE_CUDA_WITHOUT_GUESSES;
    rose_cuda_layout_weights(&w, &weights, m, &p);
    p.weights = weights.used;
    rose_backend_plan_pools(&m->arch, rose_cuda_kv_block_bytes, &p);
    p.scratch = scratch_bytes(&m->arch, &p, device.sms, rose_backend_pages_in(&p, total_bytes));
    p.graphs = LOADED_BYTES;
    if (o->cuda.graph) p.graphs += rose_cuda_graph_nodes(&m->arch, p.without) * NODE_BYTES;
    p.available = free_bytes > 0 ? free_bytes : 1; /* 0 would mean unknown */
    st = rose_backend_plan_pages(o, default_pages(o, &p, total_bytes), &p, err);
    p.scratch = scratch_bytes(&m->arch, &p, device.sms, p.pools[0].n_blocks);
    p.total = p.weights + p.kv + p.scratch + p.graphs;
    if (st == ROSE_OK && p.total > p.available) st = too_large(&p, err);
    if (st == ROSE_OK) *out = p;
    return st;
}

rose_status rose_cuda_plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                           rose_err *err)
{
    return rose_backend_plan_steps(plan_steps, true, m, o, out, err);
}
