/* backend/cpu/cpu_backend.c - the CPU backend: plan, open (load.c packs the weights), step,
 * collect, copy, close. The engine thread is compute thread 0, so step() runs the whole forward
 * pass and collect() only returns the ids. All memory is three mappings (weights, KV pages,
 * scratch), the thread pool and this context. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/checks.h"
#include "backend/cpu/cpu_internal.h"
#include "base/allocguard.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memlock.h"
#include "model/rope.h"

enum {
    MAX_WIDTH =
        1 << 24 /* limit of any dimension: the bytes of a product of two stay far below 2^64 */
};

#define GIB              (UINT64_C(1) << 30)
#define DEFAULT_KV_BYTES (4 * GIB)

/* ---- plan ---- */

static rose_status check_arch(const rose_arch *a, rose_err *err)
{
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    const uint32_t d_ff = rose_arch_any(a)->mlp.d_ff;
    if (m->n_kv_heads == 0 || m->n_heads == 0 || m->n_heads % m->n_kv_heads != 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: %u query heads cannot share %u KV heads",
                         a->model_type, m->n_heads, m->n_kv_heads);
    for (uint32_t i = 0; i < a->n_kinds; i++) {
        const uint32_t dim = a->kinds[i].mixer.rope.dim;
        if (dim > m->head_dim || dim % 2 != 0)
            return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: RoPE of %u values of a head of %u",
                             a->model_type, dim, m->head_dim);
    }
    if (m->head_dim == 0 || m->head_dim > ROSE_CPU_MAX_HEAD_DIM)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: head size %u, the CPU backend takes 1 .. %d",
                         a->model_type, m->head_dim, ROSE_CPU_MAX_HEAD_DIM);
    if ((uint64_t)m->n_heads * m->head_dim > MAX_WIDTH || a->n_layers == 0 || a->n_layers > 1024 ||
        a->d_model > MAX_WIDTH || d_ff == 0 || d_ff > MAX_WIDTH || a->vocab_size == 0 ||
        a->vocab_size > MAX_WIDTH || a->max_positions == 0 || a->max_positions > MAX_WIDTH)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: a size is 0 or over %d", a->model_type,
                         MAX_WIDTH);
    return ROSE_OK;
}

/* Separate matrices of q and k are packed one after the other, and a panel lies in one of them. */
static rose_status check_stacked(const rose_model *m, rose_err *err)
{
    const rose_arch *a = &m->arch;
    const rose_mixer *x = &rose_arch_any(a)->mixer;
    const uint32_t heads[2] = {x->n_heads, x->n_kv_heads};
    for (int i = 0; i < 2; i++)
        if (m->layers[0].m[ROSE_QKV].n_parts > 1 &&
            (uint64_t)heads[i] * x->head_dim % ROSE_PANEL != 0)
            return rose_fail(err, ROSE_E_UNSUPPORTED,
                             "%s: %u %s heads of head_dim %u: the CPU backend needs heads x "
                             "head_dim to be a multiple of %d",
                             a->model_type, heads[i], i == 0 ? "query" : "KV", x->head_dim,
                             ROSE_PANEL);
    return ROSE_OK;
}

static rose_status check_opts(const rose_backend_opts *o, const rose_arch *a, rose_memory_plan *p,
                              rose_isa *isa, rose_err *err)
{
    int cpus[ROSE_POOL_MAX_THREADS];

    rose_status st = rose_backend_check_opts(o, a, p, err);
    if (st != ROSE_OK) return st;
    if (o->cpu.n_cpus > 0 && o->cpu.cpus == NULL)
        return rose_fail(err, ROSE_E_INVAL, "n_cpus is %u, but cpus is NULL", o->cpu.n_cpus);
    p->n_threads = o->cpu.n_threads;
    if (p->n_threads == 0) p->n_threads = o->cpu.n_cpus;
    if (p->n_threads == 0) p->n_threads = rose_cpus_allowed(cpus, ROSE_POOL_MAX_THREADS);
    if (p->n_threads == 0) p->n_threads = 1; /* the system would not say */
    if (p->n_threads > ROSE_POOL_MAX_THREADS)
        return rose_fail(err, ROSE_E_INVAL, "threads %u: at most %d", p->n_threads,
                         ROSE_POOL_MAX_THREADS);
    return rose_isa_parse(o->cpu.isa != NULL ? o->cpu.isa : "auto", isa, err);
}

/* Number of KV pages by the default rule of backend.h: full contexts for all sequences. The
 * pages take at most 4 GiB, and at most half of the memory that the weights leave. */
static uint64_t default_pages(const rose_memory_plan *p)
{
    const uint64_t context = rose_backend_context_pages(p);
    const uint64_t left = p->available > p->weights ? p->available - p->weights : 0;
    const uint64_t least = rose_backend_least_pages(p);
    uint64_t bytes = DEFAULT_KV_BYTES;

    if (p->available > 0 && left / 2 < bytes) bytes = left / 2;
    uint64_t pages = rose_backend_pages_in(p, bytes);
    if (pages > context * p->max_seqs) pages = context * p->max_seqs;
    return pages < least ? least : pages;
}

/* Bytes of weights of which a one-row step reads at most one row: position embeddings, and token
 * embeddings that are not also the head. */
static uint64_t beside_a_row(const rose_model *m, const rose_memory_plan *p)
{
    const rose_arch *a = &m->arch;
    const uint64_t n_tok = a->tied_head ? 0 : (uint64_t)a->vocab_size * a->d_model;
    uint64_t position = a->pos == ROSE_POS_ROPE ? 0 : a->d_model;
    for (uint32_t i = 0; i < a->n_kinds; i++)
        if (rose_rope_of_kind(a, i) == (int)i) position += a->kinds[i].mixer.rope.dim;
    return p->max_model_len * position * sizeof(float) +
           rose_values_bytes(rose_cpu_tok_dtype(m, p), n_tok);
}

/* bf16 KV pages: half the memory and bandwidth of fp32, and about the error of int8 activations
 * or less. */
static bool bf16_attention(const rose_memory_plan *p)
{
    return p->dtype == ROSE_COMPUTE_BF16 || p->int8_activations;
}

static rose_status choose_types(const rose_model *m, const rose_backend_opts *o, rose_isa isa,
                                rose_memory_plan *p, rose_err *err)
{
    p->dtype = o->dtype;
    p->quantization = o->quantization;
    if (p->quantization == ROSE_QUANT_INT8 && m->has_blocks)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "quantization int8: the weights of %s are quantized already (most are "
                         "%s); use quantization none",
                         m->name, rose_formats[m->dtype].name);
    if (p->dtype == ROSE_COMPUTE_AUTO) {
        p->int8_activations = m->has_blocks;
        p->dtype = m->dtype == ROSE_BF16 || p->quantization == ROSE_QUANT_INT8 ? ROSE_COMPUTE_BF16
                                                                               : ROSE_COMPUTE_F32;
        if (m->has_blocks) p->dtype = ROSE_COMPUTE_F32;
    }
    if (p->quantization == ROSE_QUANT_INT8 && p->dtype != ROSE_COMPUTE_BF16)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "quantization int8 computes in bfloat16: dtype %s does not go with it",
                         rose_compute_name(p->dtype));
    if (isa == ROSE_ISA_AVX512_BF16 && !bf16_attention(p))
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "isa %s multiplies bfloat16: dtype %s does not go with it",
                         rose_isa_name(isa), rose_compute_name(p->dtype));
    return ROSE_OK;
}

static uint64_t block_bytes(const rose_arch *a, uint32_t n_layers, const rose_memory_plan *p)
{
    return rose_cpu_kv_page_bytes(a, n_layers, bf16_attention(p));
}

/* Fills the sizes of p that depend on the types of the weights. */
static void size_parts(const rose_model *m, rose_memory_plan *p)
{
    rose_bump weights = {.align = ROSE_CPU_ALIGN}, scratch = {.align = ROSE_CPU_ALIGN};
    rose_cpu_weights w;
    rose_cpu_scratch s;
    rose_cpu_layout_weights(&w, &weights, m, p);
    rose_cpu_layout_scratch(&s, &scratch, &m->arch, p);
    p->weights = weights.used;
    p->weights_read = weights.used - beside_a_row(m, p);
    p->scratch = scratch.used;
    rose_backend_plan_pools(&m->arch, block_bytes, p);
}

/* Names the option that makes the weights small enough, or NULL. */
static const char *smaller_weights(const rose_model *m, const rose_backend_opts *o, rose_isa isa,
                                   const rose_memory_plan *p)
{
    static const struct {
        rose_compute dtype;
        rose_quantization quantization;
        const char *option;
    } ways[] = {
        {ROSE_COMPUTE_AUTO, ROSE_QUANT_NONE, "choose dtype auto"},
        {ROSE_COMPUTE_BF16, ROSE_QUANT_NONE, "choose dtype bfloat16"},
        {ROSE_COMPUTE_BF16, ROSE_QUANT_INT8, "choose quantization int8"},
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        rose_backend_opts with = *o;
        rose_memory_plan q = *p;
        with.dtype = ways[i].dtype;
        with.quantization = ways[i].quantization;
        q.int8_activations = false;
        if (choose_types(m, &with, isa, &q, NULL) != ROSE_OK) continue;
        size_parts(m, &q);
        q.kv = rose_backend_kv_bytes(&q, rose_backend_least_pages(&q));
        if (q.weights < p->weights && q.weights + q.scratch + q.kv <= p->available)
            return ways[i].option;
    }
    return NULL;
}

static rose_status too_large(const rose_model *m, const rose_backend_opts *o, rose_isa isa,
                             const rose_memory_plan *p, rose_err *err)
{
    char kv[ROSE_KV_ADVICE];
    const char *advice = NULL;
    if (p->weights >= p->kv && p->weights >= p->scratch) advice = smaller_weights(m, o, isa, p);
    if (advice == NULL && p->scratch > p->kv && p->weights + p->kv < p->available)
        advice = "lower max-num-batched-tokens, max-num-seqs or threads";
    if (advice == NULL && rose_backend_kv_advice(p, kv)) advice = kv;
    if (advice == NULL) advice = smaller_weights(m, o, isa, p);
    if (advice == NULL)
        advice = "the model is too large for this machine: take a smaller one, or more memory";
    const double mib = 1048576;
    return rose_fail(
        err, ROSE_E_NOMEM,
        "the plan needs %.0f MiB (weights %.0f, KV %.0f in %u pages, scratch %.0f) but "
        "%.0f MiB are available: %s",
        (double)p->total / mib, (double)p->weights / mib, (double)p->kv / mib, p->pools[0].n_blocks,
        (double)p->scratch / mib, (double)p->available / mib, advice);
}

static rose_status plan_steps(const rose_model *m, const rose_backend_opts *o,
                              rose_memory_plan *out, rose_err *err)
{
    rose_status st;
    rose_memory_plan p = {0};
    rose_isa isa;

    memset(out, 0, sizeof *out);
    if (o->dtype == ROSE_COMPUTE_F16)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "dtype float16: the CPU backend has float32 and bfloat16");
    if (o->cuda.prefill != ROSE_PREFILL_AUTO && o->cuda.prefill != ROSE_PREFILL_AUTO2)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "prefill backend %s: the CPU backend has only auto",
                         rose_prefill_name(o->cuda.prefill));
    if (o->cuda.without != NULL && o->cuda.without[0] != '\0' &&
        strcmp(o->cuda.without, "none") != 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "cuda-without %s: the CPU backend has none of these to leave out",
                         o->cuda.without);
    if (o->cuda.tune)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "tune: it measures kernels of a GPU; leave the option out on the CPU");
    if ((st = check_arch(&m->arch, err)) != ROSE_OK) return st;
    if ((st = check_stacked(m, err)) != ROSE_OK) return st;
    if ((st = check_opts(o, &m->arch, &p, &isa, err)) != ROSE_OK) return st;
    if ((st = choose_types(m, o, isa, &p, err)) != ROSE_OK) return st;
    size_parts(m, &p);
    p.available = rose_memory_available();
    if ((st = rose_backend_plan_pages(o, default_pages(&p), &p, err)) != ROSE_OK) return st;
    p.total = p.weights + p.kv + p.scratch;
    if (p.available > 0 && p.total > p.available) return too_large(m, o, isa, &p, err);
    if (o->cpu.lock_memory && (st = rose_memory_lock_probe(p.total, "mlock", err)) != ROSE_OK)
        return st;
    *out = p;
    return ROSE_OK;
}

static rose_status cpu_plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                            rose_err *err)
{
    return rose_backend_plan_steps(plan_steps, false, m, o, out, err);
}

/* ---- open and close ---- */

static void cpu_close(void *ctx)
{
    rose_cpu *c = ctx;
    if (c == NULL) return;
    rose_pool_destroy(c->pool);
    rose_region_unmap(&c->weights_region);
    rose_region_unmap(&c->kv_region);
    rose_region_unmap(&c->scratch_region);
    free(c);
}

static rose_status lock_regions(rose_cpu *c, rose_err *err)
{
    rose_region *const all[] = {&c->weights_region, &c->kv_region, &c->scratch_region};
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all && st == ROSE_OK; i++)
        st = rose_memory_lock(all[i]->base, all[i]->size, "mlock", err);
    return st;
}

/* Each compute thread runs this: it touches its own share of the memory region, in whole pages. */
static void touch_thread(void *arg, uint32_t tid, uint32_t n)
{
    const rose_region *r = arg;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n_pages = (r->size + page - 1) / page;
    const uint64_t begin = n_pages * tid / n * page, end = n_pages * (tid + 1) / n * page;
    rose_memory_touch((uint8_t *)r->base + begin, (end < r->size ? end : r->size) - begin);
}

static void touch_regions(rose_cpu *c)
{
    rose_pool_run(c->pool, touch_thread, &c->weights_region);
    rose_pool_run(c->pool, touch_thread, &c->kv_region);
    rose_pool_run(c->pool, touch_thread, &c->scratch_region);
}

/* Says of each layer where its K and V are in the blocks of its pool. */
static void place_layers(rose_cpu *c)
{
    const rose_arch *a = &c->arch;
    const uint32_t n_kv = rose_arch_any(a)->mixer.n_kv_heads;
    uint8_t pool_of_kind[ROSE_MAX_KINDS];
    rose_pool_spec specs[ROSE_MAX_POOLS];
    uint8_t *next[ROSE_MAX_POOLS], *base = c->kv;
    const uint32_t n_pools = rose_arch_pools(a, specs, pool_of_kind);
    for (uint32_t i = 0; i < n_pools; i++) {
        next[i] = base;
        base += c->plan.pools[i].block_bytes * c->plan.pools[i].n_blocks;
    }
    for (uint32_t i = 0; i < a->n_layers; i++) {
        rose_cpu_layer *l = &c->weights.layers[i];
        l->pool = pool_of_kind[a->kind_of[i]];
        l->kv = next[l->pool];
        l->kv_block_bytes = c->plan.pools[l->pool].block_bytes;
        next[l->pool] += n_kv * c->kv_head_bytes;
    }
}

static rose_status map_regions(rose_cpu *c, const rose_model *m, rose_err *err)
{
    rose_status st;
    const rose_memory_plan *p = &c->plan;
    rose_bump weights = {.align = ROSE_CPU_ALIGN}, scratch = {.align = ROSE_CPU_ALIGN};

    if ((st = rose_region_map(&c->weights_region, p->weights, "weights", err)) != ROSE_OK)
        return st;
    if ((st = rose_region_map(&c->kv_region, p->kv, "KV pages", err)) != ROSE_OK) return st;
    if ((st = rose_region_map(&c->scratch_region, p->scratch, "scratch", err)) != ROSE_OK)
        return st;
    weights.base = c->weights_region.base;
    scratch.base = c->scratch_region.base;
    rose_cpu_layout_weights(&c->weights, &weights, m, p);
    rose_cpu_layout_scratch(&c->scratch, &scratch, &m->arch, p);
    if (weights.used != p->weights || scratch.used != p->scratch)
        return rose_fail(err, ROSE_E_INVAL, "the memory plan was made for another model");
    c->kv = c->kv_region.base;
    place_layers(c);
    return ROSE_OK;
}

static void log_types(const rose_model *m, const rose_memory_plan *p)
{
    char types[160];
    rose_cpu_types_text(types, sizeof types, m, p);
    rose_log(ROSE_LOG_INFO, "cpu", "%s; matrices in memory: %s", rose_plan_text(p), types);
}

static rose_status cpu_open(void **ctx, const rose_model *m, const rose_backend_opts *o,
                            const rose_memory_plan *p, rose_err *err)
{
    const rose_mixer *mixer = &rose_arch_any(&m->arch)->mixer;
    rose_status st = ROSE_OK;
    rose_cpu *c = NULL;
    rose_isa isa;

    *ctx = NULL;
    if ((st = rose_isa_parse(o->cpu.isa != NULL ? o->cpu.isa : "auto", &isa, err)) != ROSE_OK)
        goto done;
    if ((c = calloc(1, sizeof *c)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "CPU backend: out of memory");
        goto done;
    }
    if (o->cuda.prefill == ROSE_PREFILL_AUTO2)
        rose_log(ROSE_LOG_INFO, "cpu",
                 "prefill backend auto2: the CPU backend has one way to attend, so auto2 is auto");
    c->arch = m->arch;
    c->plan = *p;
    c->bf16 = bf16_attention(p);
    c->kv_head_bytes = rose_kv_head_bytes(c->bf16, mixer->head_dim);
    rose_cpu_kernels_init(&c->kernels, isa);
    const uint64_t began = rose_now_ns();
    if ((st = map_regions(c, m, err)) != ROSE_OK) goto done;
    if (o->cpu.lock_memory && (st = lock_regions(c, err)) != ROSE_OK) goto done;
    st = rose_pool_create(&c->pool, p->n_threads, o->cpu.cpus, o->cpu.n_cpus, err);
    if (st != ROSE_OK) goto done;
    const uint64_t mapped = rose_now_ns();
    if ((st = rose_cpu_load(c, m, err)) != ROSE_OK) goto done;
    rose_log(ROSE_LOG_DEBUG, "cpu", "memory and threads %.1f ms, packing %.1f MiB %.1f ms",
             (double)(mapped - began) * 1e-6, (double)p->weights / 1048576.0,
             (double)(rose_now_ns() - mapped) * 1e-6);
    if (m->has_blocks) log_types(m, p);
    if (o->cpu.prefault) touch_regions(c);
    *ctx = c;
done:
    if (st != ROSE_OK) cpu_close(c);
    return st;
}

/* ---- steps ---- */

static rose_status cpu_step(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    rose_cpu *c = ctx;
    *ticket = 0;
    rose_status st = rose_backend_check_batch(b, &c->plan, c->arch.vocab_size, 0, err);
    if (st != ROSE_OK) return st;
    rose_cpu_forward(c, b);
    c->n_results = b->n_outputs;
    *ticket = ++c->ticket;
    return ROSE_OK;
}

static rose_status cpu_collect(void *ctx, uint64_t ticket, rose_step_result *out, rose_err *err)
{
    rose_cpu *c = ctx;
    *out = (rose_step_result){0};
    if (ticket == 0 || ticket != c->ticket)
        return rose_fail(err, ROSE_E_INVAL, "collect: ticket %llu, the last step is %llu",
                         (unsigned long long)ticket, (unsigned long long)c->ticket);
    *out = (rose_step_result){.n_outputs = c->n_results, .ids = c->scratch.ids};
    return ROSE_OK;
}

const rose_backend_ops *rose_backend_cpu(void)
{
    static const rose_backend_ops ops = {
        .name = "cpu",
        .caps = ROSE_CAP_REPORTS | ROSE_CAP_LOGIT_RULES | ROSE_CAP_STATES,
        .plan = cpu_plan,
        .kept = rose_cpu_kept,
        .open = cpu_open,
        .step = cpu_step,
        .collect = cpu_collect,
        .close = cpu_close,
    };
    return &ops;
}
