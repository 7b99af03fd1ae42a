/* backend/cpu/cpu_backend.c - the CPU backend: plan, open (with packing of the weights), step,
 * collect, copy, close. The engine thread is compute thread 0, so step() runs the whole forward
 * pass and collect() only returns the ids. All memory is three mappings (weights, KV pages,
 * scratch), the thread pool and this context. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/checks.h"
#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/rotary.h"
#include "base/allocguard.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memlock.h"
#include "model/convert.h"
#include "model/rope.h"

enum {
    MAX_SEQS = 4096,
    MAX_STEP_TOKENS = 1 << 20,
    MAX_WIDTH =
        1 << 24, /* limit of any dimension: the bytes of a product of two stay far below 2^64 */
    MAX_HEAD_DIM = 256
};

#define GIB              (UINT64_C(1) << 30)
#define DEFAULT_KV_BYTES (4 * GIB)

/* ---- plan ---- */

static rose_status check_arch(const rose_arch *a, rose_err *err)
{
    if (a->n_kv_heads == 0 || a->n_heads == 0 || a->n_heads % a->n_kv_heads != 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: %u query heads cannot share %u KV heads",
                         a->model_type, a->n_heads, a->n_kv_heads);
    for (int i = 0; i < 2; i++)
        if (a->pos == ROSE_POS_ROPE && (a->rope[i].dim > a->head_dim || a->rope[i].dim % 2 != 0))
            return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: RoPE of %u values of a head of %u",
                             a->model_type, a->rope[i].dim, a->head_dim);
    if (a->head_dim == 0 || a->head_dim > MAX_HEAD_DIM)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: head size %u, the CPU backend takes 1 .. %d",
                         a->model_type, a->head_dim, MAX_HEAD_DIM);
    if ((uint64_t)a->n_heads * a->head_dim > MAX_WIDTH || a->n_layers == 0 || a->n_layers > 1024 ||
        a->d_model > MAX_WIDTH || a->d_ff == 0 || a->d_ff > MAX_WIDTH || a->vocab_size == 0 ||
        a->vocab_size > MAX_WIDTH || a->max_positions == 0 || a->max_positions > MAX_WIDTH)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: a size is 0 or over %d", a->model_type,
                         MAX_WIDTH);
    return ROSE_OK;
}

static rose_status check_opts(const rose_backend_opts *o, const rose_arch *a, rose_memory_plan *p,
                              rose_isa *isa, rose_err *err)
{
    int cpus[ROSE_POOL_MAX_THREADS];

    if (o->max_seqs == 0 || o->max_seqs > MAX_SEQS)
        return rose_fail(err, ROSE_E_INVAL, "max-num-seqs %u is not in 1 .. %d", o->max_seqs,
                         MAX_SEQS);
    if (o->max_step_tokens < o->max_seqs || o->max_step_tokens > MAX_STEP_TOKENS)
        return rose_fail(err, ROSE_E_INVAL,
                         "max-num-batched-tokens %u is not in max-num-seqs (%u) .. %d",
                         o->max_step_tokens, o->max_seqs, MAX_STEP_TOKENS);
    if (o->max_model_len > a->max_positions)
        return rose_fail(err, ROSE_E_INVAL, "max-model-len %u: the model has %u positions",
                         o->max_model_len, a->max_positions);
    if (o->max_model_len == 1)
        return rose_fail(err, ROSE_E_INVAL,
                         "max-model-len 1 has no room for a prompt and a token: at least 2");
    if (o->cpu.n_cpus > 0 && o->cpu.cpus == NULL)
        return rose_fail(err, ROSE_E_INVAL, "n_cpus is %u, but cpus is NULL", o->cpu.n_cpus);
    p->max_seqs = o->max_seqs;
    p->max_step_tokens = o->max_step_tokens;
    p->max_model_len = o->max_model_len > 0 ? o->max_model_len : a->max_positions;
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
    uint64_t bytes = DEFAULT_KV_BYTES, pages = context * p->max_seqs;

    if (p->available > 0 && left / 2 < bytes) bytes = left / 2;
    if (bytes / p->kv_page < pages) pages = bytes / p->kv_page;
    return pages < context ? context : pages;
}

static rose_status too_large(const rose_model *m, const rose_memory_plan *p, rose_err *err)
{
    const char *advice = "lower max-num-batched-tokens, max-num-seqs or threads";
    if (p->kv >= p->scratch) advice = "lower num-kv-pages, kv-cache-memory or max-model-len";
    if (p->weights >= p->kv && p->weights >= p->scratch)
        advice = m->has_blocks && p->dtype == ROSE_COMPUTE_BF16 ? "choose dtype auto"
                 : m->has_blocks                                ? "the model is too large"
                 : p->dtype == ROSE_COMPUTE_F32                 ? "choose dtype bfloat16"
                 : p->quantization == ROSE_QUANT_NONE           ? "choose quantization int8"
                                                                : "the model is too large";
    const double mib = 1048576;
    return rose_fail(
        err, ROSE_E_NOMEM,
        "the plan needs %.0f MiB (weights %.0f, KV %.0f in %u pages, scratch %.0f) but "
        "%.0f MiB are available: %s",
        (double)p->total / mib, (double)p->weights / mib, (double)p->kv / mib, p->kv_pages,
        (double)p->scratch / mib, (double)p->available / mib, advice);
}

/* Bytes of weights of which a one-row step reads at most one row: position embeddings, and token
 * embeddings that are not also the head. */
static uint64_t beside_a_row(const rose_model *m, const rose_memory_plan *p)
{
    const rose_arch *a = &m->arch;
    const uint64_t n_tok = a->tied_head ? 0 : (uint64_t)a->vocab_size * a->d_model;
    const uint64_t position = a->pos == ROSE_POS_ROPE
                                  ? a->rope[0].dim + (a->window > 0 ? a->rope[1].dim : 0)
                                  : a->d_model;
    return p->max_model_len * position * sizeof(float) +
           rose_dtype_bytes(rose_cpu_tok_dtype(m, p), n_tok);
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
                         m->name, rose_dtype_name(m->dtype));
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

static rose_status cpu_plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                            rose_err *err)
{
    rose_status st;
    rose_bump weights = {.align = ROSE_CPU_ALIGN}, scratch = {.align = ROSE_CPU_ALIGN};
    rose_cpu_weights w;
    rose_cpu_scratch s;
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
    if ((st = check_arch(&m->arch, err)) != ROSE_OK) return st;
    if ((st = check_opts(o, &m->arch, &p, &isa, err)) != ROSE_OK) return st;
    if ((st = choose_types(m, o, isa, &p, err)) != ROSE_OK) return st;
    rose_cpu_layout_weights(&w, &weights, m, &p);
    rose_cpu_layout_scratch(&s, &scratch, &m->arch, &p);
    p.weights = weights.used;
    p.weights_read = weights.used - beside_a_row(m, &p);
    p.scratch = scratch.used;
    p.kv_page = rose_cpu_kv_page_bytes(&m->arch, bf16_attention(&p));
    p.available = rose_memory_available();
    if ((st = rose_backend_plan_pages(o, default_pages(&p), &p, err)) != ROSE_OK) return st;
    p.total = p.weights + p.kv + p.scratch;
    if (p.available > 0 && p.total > p.available) return too_large(m, &p, err);
    if (o->cpu.lock_memory && (st = rose_memory_lock_probe(p.total, "mlock", err)) != ROSE_OK)
        return st;
    *out = p;
    return ROSE_OK;
}

/* ---- packing ---- */

typedef struct pack_job {
    const rose_tensor *t;    /* one tensor: the first count elements */
    const rose_linear *from; /* else a run of a matrix, to panels */
    const rose_cpu_linear *l;
    const rose_cpu_run *run;
    void *out;
    atomic_bool *not_finite;
    atomic_bool *no_memory;
    uint32_t k;
    uint64_t count;
} pack_job;

/* The rows of a transposed matrix that make panel p of the run. Parts other than gate and up hold
 * whole panels (check_parts). rows: room for a panel's rows, used where the file keeps them in
 * another order. */
static rose_tensor panel_rows(const pack_job *j, uint32_t p, void *rows)
{
    const rose_cpu_linear *l = j->l;
    uint64_t row = (uint64_t)(l->gated ? p / 2 : p) * ROSE_PANEL;
    const uint64_t n = j->run->n - row < ROSE_PANEL ? j->run->n - row : ROSE_PANEL;
    uint32_t part = 0;

    row += j->run->first;

    if (l->gated && p % 2 == 1) row += l->n; /* up */
    for (; part + 1 < j->from->n_parts && row >= j->from->w[part].shape[0]; part++)
        row -= j->from->w[part].shape[0];
    rose_tensor t = j->from->w[part];
    if (j->from->permuted_heads[part] != 0) {
        rose_linear_copy_rows(j->from, part, row, n, rows);
        t.data = rows;
    } else {
        t.data = (const uint8_t *)t.data + row * rose_dtype_bytes(t.dtype, j->k);
    }
    t.shape[0] = n;
    return t;
}

/* Bytes that panel_rows needs; 0 if all rows are in order. */
static size_t row_room(const pack_job *j)
{
    size_t most = 0;
    for (uint32_t i = 0; i < j->from->n_parts; i++) {
        const size_t bytes = (size_t)rose_dtype_bytes(j->from->w[i].dtype, j->k) * ROSE_PANEL;
        if (j->from->permuted_heads[i] != 0 && bytes > most) most = bytes;
    }
    return most;
}

static void pack_panels(const pack_job *j, uint32_t p0, uint32_t p1)
{
    const rose_cpu_run *r = j->run;
    const size_t panel_bytes = rose_panels_bytes(r->type, j->k, ROSE_PANEL);
    const size_t room = row_room(j);
    void *rows = room > 0 ? malloc(room) : NULL;
    bool finite = true;

    if (room > 0 && rows == NULL) {
        atomic_store_explicit(j->no_memory, true, memory_order_relaxed); /* the pool orders */
        return;
    }
    if (!j->from->transposed)
        finite =
            rose_pack_panels(r->w, r->scale, r->type, &j->from->w[0], j->k, r->n, false, p0, p1);
    for (uint32_t p = p0; j->from->transposed && p < p1; p++) {
        const rose_tensor t = panel_rows(j, p, rows);
        float *scale = r->scale != NULL ? r->scale + (size_t)p * ROSE_PANEL : NULL;
        finite &= rose_pack_panels((uint8_t *)r->w + p * panel_bytes, scale, r->type, &t, j->k,
                                   (uint32_t)t.shape[0], true, 0, 1);
    }
    free(rows);
    if (!finite)
        atomic_store_explicit(j->not_finite, true, memory_order_relaxed); /* the pool orders */
}

static void pack_thread(void *arg, uint32_t tid, uint32_t n)
{
    const pack_job *j = arg;
    if (j->from != NULL) {
        const rose_matmul shape = {.n = j->run->n, .gated = j->l->gated};
        const uint64_t n_panels = rose_matmul_panels(&shape);
        pack_panels(j, (uint32_t)rose_share(n_panels, tid, n),
                    (uint32_t)rose_share(n_panels, tid + 1, n));
        return;
    }
    uint64_t first = j->count * tid / n, end = j->count * (tid + 1) / n;
    rose_pack_f32((float *)j->out + first, j->t, first, end - first);
}

/* The rows of a token embedding, in the file's type or rounded to bf16. */
static void copy_rows_thread(void *arg, uint32_t tid, uint32_t n)
{
    const pack_job *j = arg;
    const rose_tensor *to = j->out;
    const uint64_t width = j->t->shape[1], first = rose_share(j->count, tid, n) * width;
    const uint64_t count = rose_share(j->count, tid + 1, n) * width - first;
    const uint64_t at = rose_dtype_bytes(to->dtype, first);
    uint8_t *out = (uint8_t *)(uintptr_t)to->data + at;
    if (to->dtype == j->t->dtype)
        memcpy(out, (const uint8_t *)j->t->data + at, rose_dtype_bytes(to->dtype, count));
    else
        rose_pack_bf16((uint16_t *)(void *)out, j->t, first, count);
}

/* Tells the system that the file pages of the packed tensor are no longer needed. They leave our
 * resident size at once and stay in the page cache. Only whole pages of a real mapping are
 * dropped. */
static void drop_pages(const rose_model *m, const rose_tensor *t, uint64_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t data = (uintptr_t)t->data;
    const uintptr_t first = (data + page - 1) / page * page;
    const uintptr_t end = (data + bytes) / page * page;
    if (m->weights == NULL || end <= first) return;
    madvise((void *)first, end - first, MADV_DONTNEED);
}

static rose_status pack_matrix(rose_cpu *c, const rose_model *m, const rose_linear *from,
                               uint32_t k, rose_cpu_linear *l, rose_err *err)
{
    atomic_bool not_finite = false, no_memory = false;
    pack_job j = {.from = from, .l = l, .not_finite = &not_finite, .no_memory = &no_memory, .k = k};
    for (j.run = l->runs; j.run < l->runs + l->n_runs; j.run++)
        rose_pool_run(c->pool, pack_thread, &j);
    for (uint32_t i = 0; i < from->n_parts; i++)
        drop_pages(m, &from->w[i], rose_dtype_bytes(from->w[i].dtype, rose_tensor_n(&from->w[i])));
    if (atomic_load_explicit(&no_memory, memory_order_relaxed))
        return rose_fail(err, ROSE_E_NOMEM, "tensor %s: out of memory", from->w[0].name);
    if (atomic_load_explicit(&not_finite, memory_order_relaxed))
        return rose_fail(
            err, ROSE_E_UNSUPPORTED,
            "quantization int8: tensor %s holds NaN or infinity; use quantization none",
            from->w[0].name);
    return ROSE_OK;
}

/* A missing tensor leaves the zeros. */
static void pack_vector(rose_cpu *c, const rose_model *m, const rose_tensor *t, float *out,
                        uint64_t count)
{
    pack_job j = {.t = t, .out = out, .count = count};
    if (t->data == NULL || out == NULL) return;
    rose_pool_run(c->pool, pack_thread, &j);
    drop_pages(m, t, rose_dtype_bytes(t->dtype, count));
}

/* 1 + w, where the architecture says so. */
static void pack_norm(rose_cpu *c, const rose_model *m, const rose_tensor *t, float *out,
                      uint32_t n)
{
    pack_vector(c, m, t, out, n);
    if (out == NULL || !c->arch.norm_plus_one) return;
    for (uint32_t i = 0; i < n; i++)
        out[i] = 1.0f + out[i];
}

/* The biases of the parts, stacked; gated: in the order of the panels. */
static void pack_bias(const rose_linear *from, rose_cpu_linear *l)
{
    uint64_t at = 0;
    for (uint32_t part = 0; l->bias != NULL && part < from->n_parts; part++) {
        const uint64_t n = rose_tensor_n(&from->b[part]);
        for (uint64_t i = 0; i < n; i++, at++) {
            const uint64_t y = at % l->n, up = at / l->n * ROSE_PANEL;
            const uint64_t to =
                l->gated ? y / ROSE_PANEL * 2 * ROSE_PANEL + up + y % ROSE_PANEL : at;
            rose_linear_copy_bias(from, part, i, 1, l->bias + to);
        }
    }
}

/* A panel lies in one part. */
static rose_status check_parts(const rose_linear *from, const rose_cpu_linear *l, rose_err *err)
{
    for (uint32_t i = 0; !l->gated && i + 1 < from->n_parts; i++)
        if (from->w[i].shape[0] % ROSE_PANEL != 0)
            return rose_fail(err, ROSE_E_UNSUPPORTED,
                             "tensor %s: %llu rows; the CPU backend stacks multiples of %d",
                             from->w[i].name, (unsigned long long)from->w[i].shape[0], ROSE_PANEL);
    if (!from->transposed && (l->gated || from->n_parts > 1))
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "tensor %s: the CPU backend stacks matrices stored by output",
                         from->w[0].name);
    return ROSE_OK;
}

static rose_status pack_linear(rose_cpu *c, const rose_model *m, const rose_linear *from,
                               uint32_t k, rose_cpu_linear *l, rose_err *err)
{
    const rose_status st = check_parts(from, l, err);
    if (st != ROSE_OK) return st;
    pack_bias(from, l);
    return pack_matrix(c, m, from, k, l, err);
}

static rose_status pack_layer(rose_cpu *c, const rose_model *m, const rose_layer *from,
                              rose_cpu_layer *l, rose_err *err)
{
    const rose_arch *a = &c->arch;
    const uint32_t d = a->d_model;
    rose_status st;
    pack_norm(c, m, &from->ln1_w, l->ln1_w, d);
    pack_vector(c, m, &from->ln1_b, l->ln1_b, d);
    pack_norm(c, m, &from->ln2_w, l->ln2_w, d);
    pack_vector(c, m, &from->ln2_b, l->ln2_b, d);
    pack_norm(c, m, &from->post1, l->post1, d);
    pack_norm(c, m, &from->post2, l->post2, d);
    pack_norm(c, m, &from->q_norm, l->q_norm, a->head_dim);
    pack_norm(c, m, &from->k_norm, l->k_norm, a->head_dim);
    if ((st = pack_linear(c, m, &from->qkv, d, &l->qkv, err)) != ROSE_OK) return st;
    st = pack_linear(c, m, &from->proj, a->n_heads * a->head_dim, &l->proj, err);
    if (st != ROSE_OK) return st;
    if ((st = pack_linear(c, m, &from->fc1, d, &l->fc1, err)) != ROSE_OK) return st;
    return pack_linear(c, m, &from->fc2, a->d_ff, &l->fc2, err);
}

/* ---- sines and cosines ---- */

typedef struct rope_job {
    const rose_cpu_rope *r;
    const float *inv_freq;
    float factor;
    uint32_t positions;
} rope_job;

static void rope_thread(void *arg, uint32_t tid, uint32_t n)
{
    const rope_job *j = arg;
    rose_rotary_rows(j->r->cos, j->r->sin, j->inv_freq, j->r->half, j->factor,
                     (uint32_t)rose_share(j->positions, tid, n),
                     (uint32_t)rose_share(j->positions, tid + 1, n));
}

static void make_ropes(rose_cpu *c)
{
    for (int i = 0; i < 2; i++) {
        float inv_freq[MAX_HEAD_DIM / 2];
        rope_job j = {.r = &c->weights.rope[i], .inv_freq = inv_freq};
        if (j.r->half == 0) continue;
        j.positions = c->plan.max_model_len;
        rose_rope_table(&c->arch.rope[i], j.positions, inv_freq, &j.factor);
        rose_pool_run(c->pool, rope_thread, &j);
    }
}

static rose_status pack_model(rose_cpu *c, const rose_model *m, rose_err *err)
{
    const rose_arch *a = &c->arch;
    rose_cpu_weights *w = &c->weights;

    for (uint32_t i = 0; i < a->n_layers; i++) {
        rose_status st = pack_layer(c, m, &m->layers[i], &w->layers[i], err);
        if (st != ROSE_OK) return st;
    }
    pack_vector(c, m, &m->pos_embed, w->pos, (uint64_t)c->plan.max_model_len * a->d_model);
    make_ropes(c);
    pack_norm(c, m, &m->lnf_w, w->lnf_w, a->d_model);
    pack_vector(c, m, &m->lnf_b, w->lnf_b, a->d_model);
    if (w->tok.data != NULL) {
        pack_job j = {.t = &m->tok_embed, .out = &w->tok, .count = a->vocab_size};
        rose_pool_run(c->pool, copy_rows_thread, &j);
        drop_pages(m, &m->tok_embed,
                   rose_dtype_bytes(m->tok_embed.dtype, rose_tensor_n(&m->tok_embed)));
    }
    const rose_linear head = rose_cpu_head(m);
    return pack_matrix(c, m, &head, a->d_model, &w->head, err);
}

/* ---- open and close ---- */

static void log_phases(const rose_cpu *c)
{
#ifdef ROSE_CPU_PHASES
    static const char *const names[ROSE_N_PHASES] = {"embed", "norm", "qkv",  "attention", "proj",
                                                     "fc1",   "fc2",  "head", "sample"};
    for (int i = 0; i < ROSE_N_PHASES && c->n_steps > 0; i++)
        rose_log(ROSE_LOG_INFO, "cpu", "%-10s %10.1f us a step", names[i],
                 (double)c->phase_ns[i] / 1e3 / (double)c->n_steps);
#else
    (void)c;
#endif
}

static void cpu_close(void *ctx)
{
    rose_cpu *c = ctx;
    if (c == NULL) return;
    log_phases(c);
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
    return ROSE_OK;
}

static rose_status cpu_open(void **ctx, const rose_model *m, const rose_backend_opts *o,
                            const rose_memory_plan *p, rose_err *err)
{
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
    c->kv_head_bytes = rose_kv_head_bytes(c->bf16, c->arch.head_dim);
    c->kv_layer_bytes = c->arch.n_kv_heads * c->kv_head_bytes;
    c->kv_page_bytes = p->kv_page;
    rose_cpu_kernels_init(&c->kernels, isa);
    const uint64_t began = rose_now_ns();
    if ((st = map_regions(c, m, err)) != ROSE_OK) goto done;
    if (o->cpu.lock_memory && (st = lock_regions(c, err)) != ROSE_OK) goto done;
    st = rose_pool_create(&c->pool, p->n_threads, o->cpu.cpus, o->cpu.n_cpus, err);
    if (st != ROSE_OK) goto done;
    const uint64_t mapped = rose_now_ns();
    if ((st = pack_model(c, m, err)) != ROSE_OK) goto done;
    rose_log(ROSE_LOG_DEBUG, "cpu", "memory and threads %.1f ms, packing %.1f MiB %.1f ms",
             (double)(mapped - began) * 1e-6, (double)p->weights / 1048576.0,
             (double)(rose_now_ns() - mapped) * 1e-6);
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

static rose_status cpu_copy_pages(void *ctx, const uint32_t *src, const uint32_t *dst, uint32_t n,
                                  rose_err *err)
{
    rose_cpu *c = ctx;
    for (uint32_t i = 0; i < n; i++)
        if (src[i] >= c->plan.kv_pages || dst[i] >= c->plan.kv_pages)
            return rose_fail(err, ROSE_E_INVAL, "copy of page %u to %u, %u pages", src[i], dst[i],
                             c->plan.kv_pages);
    for (uint32_t i = 0; i < n; i++)
        if (src[i] != dst[i])
            memcpy(c->kv + dst[i] * c->kv_page_bytes, c->kv + src[i] * c->kv_page_bytes,
                   c->kv_page_bytes);
    return ROSE_OK;
}

const rose_backend_ops *rose_backend_cpu(void)
{
    static const rose_backend_ops ops = {
        .name = "cpu",
        .caps = ROSE_CAP_REPORTS | ROSE_CAP_LOGIT_RULES,
        .plan = cpu_plan,
        .open = cpu_open,
        .step = cpu_step,
        .collect = cpu_collect,
        .copy_pages = cpu_copy_pages,
        .close = cpu_close,
    };
    return &ops;
}
