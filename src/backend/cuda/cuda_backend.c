/* backend/cuda/cuda_backend.c - the CUDA backend: which device, open, step, collect, copy, close.
 * step() fills the tables of the step in pinned memory, copies them in one piece, and launches a
 * graph (a decode step) or the kernels one by one; collect() waits on an event. Three device
 * regions (weights, KV pages, scratch) and one block of pinned memory are all that is allocated, at
 * open.
 *
 * Two steps may be in flight (ROSE_CAP_AHEAD), in two slots of pinned memory. On the device all
 * they share is the stream: it runs them one behind the other, copies of headers and pages among
 * them, so one header, one set of activations and one array of sampled ids are enough. An embedding
 * reads the ids of the step before it from that array before the step's own sampler writes there.
 *
 * A device error is sticky: every call after it fails as well, and nothing here waits without
 * asking the device whether it still runs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

rose_status rose_cuda_fail(rose_err *err, cudaError_t e, const char *what)
{
    rose_status st = e == cudaErrorMemoryAllocation ? ROSE_E_NOMEM : ROSE_E_BACKEND;
    return rose_fail(err, st, "CUDA: %s: %s (%s)", what, cudaGetErrorString(e),
                     cudaGetErrorName(e));
}

rose_status rose_cuda_select(rose_err *err)
{
    int n = 0, major = 0, minor = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "no usable NVIDIA GPU: %s",
                         e != cudaSuccess ? cudaGetErrorString(e) : "no device");
    if ((e = cudaSetDevice(0)) == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    if (e != cudaSuccess) return rose_cuda_fail(err, e, "opening GPU 0");
    if (major < 8)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "GPU 0 has compute capability %d.%d: 8.0 or later is needed", major,
                         minor);
    return ROSE_OK;
}

/* ---- open and close ---- */

static void cuda_close(void *ctx)
{
    rose_cuda *c = ctx;
    if (c == NULL) return;
    if (c->stream != NULL) cudaStreamSynchronize(c->stream);
    for (uint32_t i = 0; i < ROSE_CUDA_MAX_GRAPHS; i++)
        if (c->graphs[i].exec != NULL) cudaGraphExecDestroy(c->graphs[i].exec);
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS; i++)
        if (c->slots[i].done != NULL) cudaEventDestroy(c->slots[i].done);
    cudaFree(c->weights_base);
    cudaFree(c->kv_base);
    cudaFree(c->scratch_base);
    cudaFreeHost(c->pinned);
    if (c->stream != NULL) cudaStreamDestroy(c->stream);
    cudaGetLastError(); /* a sticky error stays; a passing one is not the next caller's */
    free(c->weights.layers);
    free(c);
}

static rose_status allocate(rose_cuda *c, const rose_model *m, rose_err *err)
{
    const rose_memory_plan *p = &c->plan;
    rose_cuda_bump weights = {0}, scratch = {0};
    cudaError_t e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);

    if (e == cudaSuccess) e = cudaMalloc(&c->weights_base, p->weights);
    if (e == cudaSuccess) e = cudaMalloc(&c->kv_base, p->kv);
    if (e == cudaSuccess) e = cudaMalloc(&c->scratch_base, p->scratch);
    if (e != cudaSuccess) return rose_cuda_fail(err, e, "allocating GPU memory");
    c->weights.layers = calloc(c->arch.n_layers, sizeof *c->weights.layers);
    if (c->weights.layers == NULL) return rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
    weights.base = c->weights_base;
    scratch.base = c->scratch_base;
    rose_cuda_layout_weights(&c->weights, &weights, m, p);
    rose_cuda_layout_scratch(&c->scratch, &scratch, &m->arch, p);
    if (weights.used != p->weights || scratch.used != p->scratch)
        return rose_fail(err, ROSE_E_INVAL, "the memory plan is not one of this model");

    const uint64_t ids = ((uint64_t)p->max_seqs + ROSE_CUDA_OUT_BLOCK) * sizeof(uint32_t);
    const uint64_t slot = c->scratch.header_bytes + (ids + 255) / 256 * 256;
    e = cudaHostAlloc((void **)&c->pinned, slot * ROSE_CUDA_SLOTS, cudaHostAllocMapped);
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS && e == cudaSuccess; i++) {
        c->slots[i].header = c->pinned + i * slot;
        c->slots[i].ids = (uint32_t *)(void *)(c->slots[i].header + c->scratch.header_bytes);
        e = cudaEventCreateWithFlags(&c->slots[i].done, cudaEventDisableTiming);
    }
    return e == cudaSuccess ? ROSE_OK : rose_cuda_fail(err, e, "allocating pinned memory");
}

static rose_status cuda_open(void **ctx, const rose_model *m, const rose_backend_opts *o,
                             const rose_memory_plan *p, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_cuda *c = NULL;

    (void)o;
    *ctx = NULL;
    if ((st = rose_cuda_select(err)) != ROSE_OK) goto done;
    if ((c = calloc(1, sizeof *c)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
        goto done;
    }
    c->arch = m->arch;
    c->plan = *p;
    c->type = rose_cuda_type_of(p->dtype);
    c->hd_pad = rose_cuda_hd_pad(c->arch.head_dim);
    if ((st = allocate(c, m, err)) != ROSE_OK) goto done;
    cudaError_t e = rose_cuda_linear_init();
    if (e != cudaSuccess) {
        st = rose_cuda_fail(err, e, "preparing the kernels");
        goto done;
    }
    if ((st = rose_cuda_load(c, m, err)) != ROSE_OK) goto done;
    if ((st = rose_cuda_capture(c, err)) != ROSE_OK) goto done;
    if ((e = cudaStreamSynchronize(c->stream)) != cudaSuccess) {
        st = rose_cuda_fail(err, e, "uploading the graphs");
        goto done;
    }
    *ctx = c;
done:
    if (st != ROSE_OK) cuda_close(c);
    return st;
}

/* ---- steps ---- */

static rose_status check_batch(const rose_cuda *c, const rose_batch *b, rose_err *err)
{
    const rose_memory_plan *p = &c->plan;

    if (b->n_seqs == 0 || b->n_seqs > p->max_seqs || b->n_tokens == 0 ||
        b->n_tokens > p->max_step_tokens || b->n_outputs > p->max_seqs || b->seq_first[0] != 0 ||
        b->seq_first[b->n_seqs] != b->n_tokens)
        return rose_fail(err, ROSE_E_INVAL, "step of %u sequences, %u tokens, %u outputs",
                         b->n_seqs, b->n_tokens, b->n_outputs);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        uint32_t n_rows = b->seq_first[i + 1] - b->seq_first[i];
        if (b->seq_first[i + 1] <= b->seq_first[i] || b->seq_pos[i] > p->max_model_len ||
            n_rows > p->max_model_len - b->seq_pos[i])
            return rose_fail(err, ROSE_E_INVAL, "step: sequence %u has %u rows from position %u", i,
                             n_rows, b->seq_pos[i]);
        const uint32_t *pages = b->pages + (size_t)i * b->page_stride;
        for (uint32_t j = 0; j < (b->seq_pos[i] + n_rows + 15) / ROSE_KV_PAGE_TOKENS; j++)
            if (pages[j] >= p->kv_pages)
                return rose_fail(err, ROSE_E_INVAL, "step: page %u of %u", pages[j], p->kv_pages);
    }
    const rose_cuda_slot *before = &c->slots[c->ticket % ROSE_CUDA_SLOTS];
    const uint32_t n_before = c->ticket > 0 ? before->n_outputs : 0;
    for (uint32_t i = 0; i < b->n_tokens; i++)
        if (b->tokens[i] >= c->arch.vocab_size && b->tokens[i] - ROSE_TOKEN_OUTPUT >= n_before)
            return rose_fail(err, ROSE_E_INVAL, "step: token id %u, vocabulary of %u", b->tokens[i],
                             c->arch.vocab_size);
    for (uint32_t i = 0; i < b->n_outputs; i++)
        if (b->out_row[i] >= b->n_tokens)
            return rose_fail(err, ROSE_E_INVAL, "step: output %u of row %u, %u rows", i,
                             b->out_row[i], b->n_tokens);
    return ROSE_OK;
}

/* The smallest graph for a batch that is one row and one output each sequence; NULL: none. */
static const rose_cuda_graph *find_graph(const rose_cuda *c, const rose_batch *b)
{
    if (!c->use_graphs || b->n_tokens != b->n_seqs || b->n_outputs != b->n_seqs) return NULL;
    for (uint32_t i = 0; i < b->n_outputs; i++)
        if (b->out_row[i] != i) return NULL;
    for (uint32_t i = 0; i < c->n_graphs; i++)
        if (c->graphs[i].n >= b->n_seqs) return &c->graphs[i];
    return NULL;
}

static uint32_t pages_of(const rose_batch *b, uint32_t seq)
{
    uint32_t end = b->seq_pos[seq] + b->seq_first[seq + 1] - b->seq_first[seq];
    return (end - 1) / ROSE_KV_PAGE_TOKENS + 1;
}

static rose_cuda_shape shape_of(const rose_batch *b, const rose_cuda_graph *g)
{
    rose_cuda_shape s = {.n_rows = b->n_tokens, .n_outputs = b->n_outputs};
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        uint32_t n = b->seq_first[i + 1] - b->seq_first[i];
        s.n_single += n == 1;
        if (n > 1) s.n_tiles += (n - 1) / ROSE_CUDA_TILE_ROWS + 1;
        s.n_table += pages_of(b, i);
    }
    if (g != NULL) s.n_rows = s.n_outputs = s.n_single = g->n;
    return s;
}

static rose_cuda_pick pick_of(const rose_sampling *p, uint32_t pos)
{
    return (rose_cuda_pick){.inv_temperature = 1.0f / p->temperature, /* 0: infinite, greedy */
                            .top_p = p->top_p,
                            .min_p = p->min_p,
                            .top_k = p->top_k,
                            .seed_lo = (uint32_t)p->seed,
                            .seed_hi = (uint32_t)(p->seed >> 32),
                            .pos = pos};
}

static void fill_outputs(uint8_t *to, const rose_cuda_header *at, const rose_batch *b, uint32_t n)
{
    rose_cuda_pick *picks = (void *)(to + at->picks);
    uint32_t *gather = (void *)(to + at->gather);
    for (uint32_t i = 0; i < b->n_outputs; i++) {
        picks[i] = pick_of(&b->out_params[i], b->out_pos[i]);
        gather[i] = b->out_row[i];
    }
    for (uint32_t i = b->n_outputs; i < n; i++) {
        picks[i] = (rose_cuda_pick){.inv_temperature = INFINITY};
        gather[i] = i;
    }
}

static void fill_rows(uint8_t *to, const rose_cuda_header *at, const rose_batch *b,
                      const rose_cuda_shape *s)
{
    uint32_t *tokens = (void *)(to + at->tokens), *where = (void *)(to + at->where);
    uint32_t *slot = (void *)(to + at->slot), *tables = (void *)(to + at->tables);
    rose_cuda_item *single = (void *)(to + at->items), *tile = single + s->n_single;
    uint32_t table = 0;

    memcpy(tokens, b->tokens, b->n_tokens * sizeof *tokens);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const uint32_t *pages = b->pages + (size_t)i * b->page_stride;
        const uint32_t first = b->seq_first[i], n = b->seq_first[i + 1] - first;
        for (uint32_t j = 0; j < n; j++) {
            uint32_t pos = b->seq_pos[i] + j;
            where[first + j] = pos;
            slot[first + j] =
                pages[pos / ROSE_KV_PAGE_TOKENS] * ROSE_KV_PAGE_TOKENS + pos % ROSE_KV_PAGE_TOKENS;
        }
        for (uint32_t j = 0; j < n; j += ROSE_CUDA_TILE_ROWS) {
            uint32_t rows = n - j < ROSE_CUDA_TILE_ROWS ? n - j : ROSE_CUDA_TILE_ROWS;
            rose_cuda_item it = {first + j, rows, b->seq_pos[i] + j, table};
            if (n == 1)
                *single++ = it;
            else
                *tile++ = it;
        }
        memcpy(tables + table, pages, pages_of(b, i) * sizeof *tables);
        table += pages_of(b, i);
    }
    for (uint32_t i = b->n_tokens; i < s->n_rows; i++) { /* padding writes nowhere */
        tokens[i] = where[i] = 0;
        slot[i] = ROSE_CUDA_NO_SLOT;
        *single++ = (rose_cuda_item){0};
    }
}

static cudaError_t enqueue(rose_cuda *c, const rose_batch *b, rose_cuda_slot *slot)
{
    const rose_cuda_graph *g = find_graph(c, b);
    const rose_cuda_shape s = shape_of(b, g);
    rose_cuda_header at;
    rose_cuda_layout_header(&at, &s);
    memcpy(slot->header + at.ids, &slot->ids, sizeof slot->ids);
    fill_outputs(slot->header, &at, b, s.n_outputs);
    fill_rows(slot->header, &at, b, &s);

    const size_t row = c->arch.vocab_size * sizeof(float);
    cudaError_t e =
        cudaMemcpyAsync(c->scratch.header, slot->header, at.end, cudaMemcpyHostToDevice, c->stream);
    c->copy_logits = b->logits;
    if (e == cudaSuccess && g == NULL) e = rose_cuda_forward(c, &s);
    if (e == cudaSuccess && g != NULL) e = cudaGraphLaunch(g->exec, c->stream);
    if (e == cudaSuccess && g != NULL && b->logits != NULL)
        e = cudaMemcpy2DAsync(b->logits, row, c->scratch.logits,
                              c->scratch.ld_logits * sizeof(float), row, b->n_outputs,
                              cudaMemcpyDeviceToHost, c->stream);
    c->copy_logits = NULL;
    if (e == cudaSuccess) e = cudaEventRecord(slot->done, c->stream);
    if (e == cudaSuccess && b->logits != NULL) e = cudaStreamSynchronize(c->stream);
    return e;
}

static rose_status cuda_step(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    rose_cuda *c = ctx;
    rose_cuda_slot *slot = &c->slots[(c->ticket + 1) % ROSE_CUDA_SLOTS];

    *ticket = 0;
    rose_status st = check_batch(c, b, err);
    if (st != ROSE_OK) return st;
    cudaError_t e = slot->ticket > 0 ? cudaEventSynchronize(slot->done) : cudaSuccess;
    if (e == cudaSuccess) e = enqueue(c, b, slot);
    if (e != cudaSuccess) return rose_cuda_fail(err, e, "step");
    slot->n_outputs = b->n_outputs;
    slot->ticket = *ticket = ++c->ticket;
    return ROSE_OK;
}

static rose_status cuda_collect(void *ctx, uint64_t ticket, rose_step_result *out, rose_err *err)
{
    rose_cuda *c = ctx;
    rose_cuda_slot *slot = &c->slots[ticket % ROSE_CUDA_SLOTS];

    *out = (rose_step_result){0};
    if (ticket == 0 || ticket != slot->ticket)
        return rose_fail(err, ROSE_E_INVAL, "collect: ticket %llu, the last step is %llu",
                         (unsigned long long)ticket, (unsigned long long)c->ticket);
    cudaError_t e;
    while ((e = cudaEventQuery(slot->done)) == cudaErrorNotReady)
        ; /* a decode step takes less than a sleep and a wake-up */
    if (e != cudaSuccess) return rose_cuda_fail(err, e, "step");
    *out = (rose_step_result){.n_outputs = slot->n_outputs, .ids = slot->ids};
    return ROSE_OK;
}

static rose_status cuda_copy_pages(void *ctx, const uint32_t *src, const uint32_t *dst, uint32_t n,
                                   rose_err *err)
{
    rose_cuda *c = ctx;
    const uint64_t bytes = c->plan.kv_page;
    uint8_t *kv = c->kv_base;

    for (uint32_t i = 0; i < n; i++)
        if (src[i] >= c->plan.kv_pages || dst[i] >= c->plan.kv_pages)
            return rose_fail(err, ROSE_E_INVAL, "copy of page %u to %u, %u pages", src[i], dst[i],
                             c->plan.kv_pages);
    for (uint32_t i = 0; i < n; i++) {
        if (src[i] == dst[i]) continue;
        cudaError_t e = cudaMemcpyAsync(kv + dst[i] * bytes, kv + src[i] * bytes, bytes,
                                        cudaMemcpyDeviceToDevice, c->stream);
        if (e != cudaSuccess) return rose_cuda_fail(err, e, "copying pages");
    }
    return ROSE_OK;
}

rose_status rose_backend_cuda(const rose_backend_ops **out, rose_err *err)
{
    static const rose_backend_ops ops = {
        .name = "cuda",
        .caps = ROSE_CAP_AHEAD,
        .plan = rose_cuda_plan,
        .open = cuda_open,
        .step = cuda_step,
        .collect = cuda_collect,
        .copy_pages = cuda_copy_pages,
        .close = cuda_close,
    };
    *out = NULL;
    rose_status st = rose_cuda_select(err);
    if (st == ROSE_OK) *out = &ops;
    return st;
}
