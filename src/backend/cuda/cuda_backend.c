/* backend/cuda/cuda_backend.c - the CUDA backend: which device, open, step, collect, copy, close.
 * step() fills the tables of the step in pinned memory, has them copied in one piece, and launches
 * a graph (a decode step) or the kernels one by one; collect() waits on an event. Three device
 * regions (weights, KV pages, scratch) and one block of pinned memory are all that is allocated, at
 * open.
 *
 * Two steps may be in flight (ROSE_CAP_AHEAD), in two slots of pinned memory. The stream runs them
 * one behind the other, copies of pages among them, so one set of activations and one array of
 * sampled ids are enough: an embedding reads the ids of the step before it from that array before
 * the step's own sampler writes there. Each slot has a header of its own on the device and graphs
 * that read it, so that the next step's tables arrive while this one runs.
 *
 * A device error is sticky: every call after it fails as well, and nothing here waits without
 * asking the device whether it still runs. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "base/clock.h"
#include "base/log.h"

rose_status rose_cuda_fail(rose_err *err, cudaError_t e, const char *what)
{
    rose_status st = e == cudaErrorMemoryAllocation ? ROSE_E_NOMEM : ROSE_E_BACKEND;
    if (e == cudaErrorNotReady)
        return rose_fail(err, st,
                         "CUDA: %s: the GPU has not answered in time "
                         "(--device-timeout-ms)",
                         what);
    return rose_fail(err, st, "CUDA: %s: %s (%s)", what, cudaGetErrorString(e),
                     cudaGetErrorName(e));
}

/* A decode step takes less than a sleep and a wake-up, so this asks without a pause. */
cudaError_t rose_cuda_wait(rose_cuda *c, cudaEvent_t event)
{
    const uint64_t start = rose_now_ns(), most = c->timeout * UINT64_C(1000000);
    cudaError_t e;
    if (c->lost) return cudaErrorNotReady;
    while ((e = cudaEventQuery(event)) == cudaErrorNotReady) {
        if (most == 0 || rose_now_ns() - start < most) continue;
        c->lost = true;
        break;
    }
    return e;
}

cudaError_t rose_cuda_finish(rose_cuda *c)
{
    cudaError_t e = cudaEventRecord(c->staged, c->stream);
    return e == cudaSuccess ? rose_cuda_wait(c, c->staged) : e;
}

/* ---- the device ---- */

/* Why there is none: the runtime says "insufficient driver" where there is no driver at all. */
static rose_status no_device(rose_err *err, cudaError_t e)
{
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (e == cudaErrorInsufficientDriver && driver > 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "device cuda: no usable NVIDIA GPU: the driver is for CUDA %d.%d, and "
                         "this program needs one for %d.%d or later",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (e == cudaErrorInsufficientDriver)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "device cuda: no usable NVIDIA GPU: no driver is installed");
    return rose_fail(err, ROSE_E_UNSUPPORTED, "device cuda: no usable NVIDIA GPU: %s",
                     e != cudaSuccess ? cudaGetErrorString(e) : "no device");
}

rose_status rose_cuda_select(rose_err *err)
{
    static atomic_flag opened = ATOMIC_FLAG_INIT;
    int n = 0, major = 0, minor = 0;
    const uint64_t began = rose_now_ns();
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) return no_device(err, e);
    const uint64_t found = rose_now_ns();
    e = cudaSetDevice(0);
    if (!atomic_flag_test_and_set(&opened)) /* the first call makes the context */
        rose_log(ROSE_LOG_DEBUG, "cuda", "start: driver %.1f + context %.1f ms",
                 rose_ms_between(began, found), rose_ms_between(found, rose_now_ns()));
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    if (e != cudaSuccess) return rose_cuda_fail(err, e, "opening GPU 0");
    if (major < 8)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "GPU 0 has compute capability %d.%d: 8.0 or later is needed", major,
                         minor);
    return ROSE_OK;
}

/* ---- open and close ---- */

static void free_host(rose_cuda *c)
{
    free(c->weights.layers);
    free(c->deliveries);
    free(c);
}

static void destroy_graph(const rose_cuda_graph *g)
{
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS; i++)
        if (g->exec[i] != NULL) cudaGraphExecDestroy(g->exec[i]);
}

static void cuda_close(void *ctx)
{
    rose_cuda *c = ctx;
    if (c == NULL) return;
    rose_cuda_profile(false, false);
    if (c->staged != NULL && !c->lost) rose_cuda_finish(c);
    rose_cuda_cudnn_close(c);
    if (c->lost) { /* every call would wait for it: its memory goes with the process */
        free_host(c);
        return;
    }
    for (uint32_t i = 0; i < ROSE_CUDA_MAX_GRAPHS; i++)
        destroy_graph(&c->graphs[i]);
    for (uint32_t i = 0; i < ROSE_CUDA_MAX_PROMPTS; i++)
        destroy_graph(&c->prompts[i]);
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS; i++) {
        if (c->slots[i].sent != NULL) cudaEventDestroy(c->slots[i].sent);
        if (c->slots[i].done != NULL) cudaEventDestroy(c->slots[i].done);
    }
    if (c->staged != NULL) cudaEventDestroy(c->staged);
    if (c->fork != NULL) cudaEventDestroy(c->fork);
    if (c->join != NULL) cudaEventDestroy(c->join);
    if (c->side != NULL) cudaStreamDestroy(c->side);
    cudaFree(c->weights_base);
    cudaFree(c->kv_base);
    cudaFree(c->scratch_base);
    cudaFreeHost(c->pinned);
    if (c->stream != NULL) cudaStreamDestroy(c->stream);
    cudaGetLastError(); /* a sticky error stays; a passing one is not the next caller's */
    free_host(c);
}

static uint64_t round_up(uint64_t x)
{
    return (x + 255) / 256 * 256;
}

/* What the host and the device share of a step: one block of pinned memory for all slots. */
static rose_status allocate_slots(rose_cuda *c, rose_err *err)
{
    const uint64_t tokens = c->plan.max_step_tokens, header = round_up(c->scratch.header_bytes);
    const uint64_t rules = round_up(c->scratch.rules_bytes);
    const uint64_t ids = round_up((tokens + ROSE_CUDA_OUT_BLOCK) * sizeof(uint32_t));
    const uint64_t entries =
        round_up(tokens * (1 + ROSE_MAX_TOP_LOGPROBS) * sizeof(rose_cuda_logprob));
    const uint64_t slot = header + rules + ids + entries;

    c->deliveries = calloc(tokens * ROSE_CUDA_SLOTS, sizeof *c->deliveries);
    if (c->deliveries == NULL) return rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
    cudaError_t e = cudaHostAlloc((void **)&c->pinned, slot * ROSE_CUDA_SLOTS, cudaHostAllocMapped);
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS && e == cudaSuccess; i++) {
        rose_cuda_slot *s = &c->slots[i];
        s->header = c->pinned + i * slot;
        s->rules = s->header + header;
        s->ids = (void *)(s->rules + rules);
        s->entries = (void *)(s->rules + rules + ids);
        s->deliveries = c->deliveries + i * tokens;
        e = cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&s->sent, cudaEventDisableTiming);
    }
    return e == cudaSuccess ? ROSE_OK : rose_cuda_fail(err, e, "allocating pinned memory");
}

/* For captures of a step in halves, and for copies of tables and rules. */
static cudaError_t create_side(rose_cuda *c)
{
    cudaError_t e = cudaStreamCreateWithFlags(&c->side, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&c->staged, cudaEventDisableTiming);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&c->fork, cudaEventDisableTiming);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&c->join, cudaEventDisableTiming);
    return e;
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

    e = create_side(c);
    return e == cudaSuccess ? allocate_slots(c, err) : rose_cuda_fail(err, e, "creating events");
}

/* Plans may fail where cuDNN had said that it has them: auto2 then does without, if the device is
 * well. Its memory stays as planned. */
static rose_status open_cudnn(rose_cuda *c, const rose_backend_opts *o, rose_err *err)
{
    rose_err why = {""};
    const rose_status st = rose_cuda_cudnn_open(c, o->cuda.cudnn_library, &why);
    if (st == ROSE_OK) return ROSE_OK;
    if (o->cuda.prefill != ROSE_PREFILL_AUTO2 || st == ROSE_E_NOMEM || c->lost ||
        rose_cuda_finish(c) != cudaSuccess)
        return rose_fail(err, st, "prefill backend cudnn: %s", why.msg);
    rose_cuda_cudnn_close(c);
    c->plan.prefill = ROSE_PREFILL_FLASH;
    rose_log(ROSE_LOG_WARN, "cuda", "prefill backend auto2: flash, for %s", why.msg);
    return ROSE_OK;
}

static rose_status cuda_open(void **ctx, const rose_model *m, const rose_backend_opts *o,
                             const rose_memory_plan *p, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_cuda *c = NULL;

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
    c->pdl = o->cuda.pdl && rose_cuda_code_version() >= 90;
    c->without = p->without;
    c->naive = p->prefill == ROSE_PREFILL_NAIVE;
    c->timeout = o->cuda.timeout_ms;
    const uint64_t began = rose_now_ns();
    if ((st = allocate(c, m, err)) != ROSE_OK) goto done;
    const uint64_t allocated = rose_now_ns();
    if ((st = rose_cuda_load(c, m, err)) != ROSE_OK) goto done;
    const uint64_t loaded = rose_now_ns();
    if (p->prefill == ROSE_PREFILL_CUDNN && (st = open_cudnn(c, o, err)) != ROSE_OK) goto done;
    const uint64_t planned = rose_now_ns();
    if (o->cuda.megakernel && (st = rose_cuda_mega_open(c, err)) != ROSE_OK) goto done;
    if (o->cuda.graph && (st = rose_cuda_capture(c, err)) != ROSE_OK) goto done;
    const cudaError_t e = rose_cuda_finish(c);
    if (e != cudaSuccess) {
        st = rose_cuda_fail(err, e, "uploading the graphs");
        goto done;
    }
    const uint64_t captured = rose_now_ns();
    if ((st = rose_cuda_warm(c, err)) != ROSE_OK) goto done;
    rose_log(
        ROSE_LOG_DEBUG, "cuda",
        "start: memory %.1f + weights %.1f + cuDNN %.1f + %u graphs %.1f + first steps %.1f ms",
        rose_ms_between(began, allocated), rose_ms_between(allocated, loaded),
        rose_ms_between(loaded, planned), (c->n_graphs + c->n_prompts) * ROSE_CUDA_SLOTS,
        rose_ms_between(planned, captured), rose_ms_between(captured, rose_now_ns()));
    rose_cuda_profile(true, o->cuda.profiler_kernels);
    *ctx = c;
done:
    if (st != ROSE_OK) cuda_close(c);
    return st;
}

/* ---- steps ---- */

static rose_status check_outputs(const rose_cuda *c, const rose_batch *b, rose_err *err)
{
    for (uint32_t i = 0; i < b->n_outputs; i++) {
        const rose_output_rules *r = b->out_rules != NULL ? b->out_rules[i] : NULL;
        if (b->out_row[i] >= b->n_tokens)
            return rose_fail(err, ROSE_E_INVAL, "step: output %u of row %u, %u rows", i,
                             b->out_row[i], b->n_tokens);
        if (r != NULL && rose_cuda_rules_check(r, c->arch.vocab_size) != ROSE_OK)
            return rose_fail(err, ROSE_E_INVAL, "step: output %u has rules outside the vocabulary",
                             i);
    }
    return ROSE_OK;
}

static rose_status check_batch(const rose_cuda *c, const rose_batch *b, rose_err *err)
{
    const rose_memory_plan *p = &c->plan;

    if (b->n_seqs == 0 || b->n_seqs > p->max_seqs || b->n_tokens == 0 ||
        b->n_tokens > p->max_step_tokens || b->n_outputs > p->max_step_tokens ||
        b->seq_first[0] != 0 || b->seq_first[b->n_seqs] != b->n_tokens)
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
    return check_outputs(c, b, err);
}

static const rose_cuda_graph *smallest(const rose_cuda_graph *graphs, uint32_t n_graphs, uint32_t n)
{
    for (uint32_t i = 0; i < n_graphs; i++)
        if (graphs[i].n >= n) return &graphs[i];
    return NULL;
}

/* The smallest graph for a batch that is one row and one output each sequence, or several rows of
 * one and one output; NULL: none. */
static const rose_cuda_graph *find_graph(const rose_cuda *c, const rose_batch *b)
{
    if (!c->use_graphs || b->n_outputs != b->n_seqs) return NULL;
    if (b->n_seqs == 1 && b->n_tokens > 1) /* captured with the attention of our own */
        return c->naive || c->cudnn != NULL ? NULL
                                            : smallest(c->prompts, c->n_prompts, b->n_tokens);
    if (b->n_tokens != b->n_seqs) return NULL;
    for (uint32_t i = 0; i < b->n_outputs; i++)
        if (b->out_row[i] != i) return NULL;
    return smallest(c->graphs, c->n_graphs, b->n_seqs);
}

static uint32_t pages_of(const rose_batch *b, uint32_t seq)
{
    uint32_t end = b->seq_pos[seq] + b->seq_first[seq + 1] - b->seq_first[seq];
    return (end - 1) / ROSE_KV_PAGE_TOKENS + 1;
}

static rose_cuda_shape shape_of(const rose_cuda *c, const rose_batch *b, const rose_cuda_graph *g)
{
    rose_cuda_shape s = {.n_rows = b->n_tokens, .n_outputs = b->n_outputs};
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        uint32_t n = b->seq_first[i + 1] - b->seq_first[i];
        s.n_single += n == 1;
        if (n > 1) s.n_tiles += (n - 1) / ROSE_CUDA_TILE_ROWS + 1;
        if (n > 1 && c->cudnn != NULL) s.n_prompts++;
        s.n_table += pages_of(b, i);
    }
    if (g != NULL) {
        const uint32_t n_table = s.n_table;
        s = g->shape;
        s.n_table = n_table;
    }
    return s;
}

static void fill_outputs(uint8_t *to, const rose_cuda_header *at, const rose_batch *b, uint32_t n)
{
    rose_cuda_pick *picks = (void *)(to + at->picks);
    uint32_t *gather = (void *)(to + at->gather);
    for (uint32_t i = 0; i < n; i++) {
        const rose_output_rules *r =
            b->out_rules != NULL && i < b->n_outputs ? b->out_rules[i] : NULL;
        gather[i] = i < b->n_outputs ? b->out_row[i] : i;
        if (i >= b->n_outputs || /* padding, or chosen later or given: the least work */
            (r != NULL && (r->score_id != ROSE_TOKEN_NONE || rose_cuda_rules_change(r))))
            picks[i] = (rose_cuda_pick){.inv_temperature = INFINITY};
        else
            picks[i] = rose_cuda_pick_of(&b->out_params[i], b->out_pos[i]);
    }
}

static void fill_rows(uint8_t *to, const rose_cuda_header *at, const rose_batch *b,
                      const rose_cuda_shape *s)
{
    uint32_t *tokens = (void *)(to + at->tokens), *where = (void *)(to + at->where);
    uint32_t *slot = (void *)(to + at->slot), *tables = (void *)(to + at->tables);
    rose_cuda_item *single = (void *)(to + at->items), *tile = single + s->n_single;
    rose_cuda_item *const singles_end = tile, *const tiles_end = tile + s->n_tiles;
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
    }
    while (single < singles_end)
        *single++ = (rose_cuda_item){0};
    while (tile < tiles_end)
        *tile++ = (rose_cuda_item){0};
}

/* The slot's header to the device: behind a step that runs on a stream of its own, so that it is
 * there when that step has ended. The step that read it last, the slot's, has. */
static cudaError_t send_header(rose_cuda *c, const rose_cuda_slot *slot, uint64_t bytes)
{
    const bool behind = c->collected < c->ticket && (c->without & ROSE_CUDA_WITHOUT_FETCH) == 0;
    const cudaStream_t stream = behind ? c->side : c->stream;
    cudaError_t e = cudaMemcpyAsync(c->header, slot->header, bytes, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess && behind) e = cudaEventRecord(slot->sent, stream);
    if (e == cudaSuccess && behind) e = cudaStreamWaitEvent(c->stream, slot->sent, 0);
    return e;
}

/* The step that had the slot before has ended; one that was collected is not asked again. */
static cudaError_t take_slot(rose_cuda *c, const rose_cuda_slot *slot)
{
    if (c->lost) return cudaErrorNotReady;
    return slot->ticket > c->collected ? rose_cuda_wait(c, slot->done) : cudaSuccess;
}

static cudaError_t enqueue(rose_cuda *c, const rose_batch *b, rose_cuda_slot *slot)
{
    const rose_cuda_graph *g = find_graph(c, b);
    const rose_cuda_shape s = shape_of(c, b, g);
    const uint32_t at = (uint32_t)(slot - c->slots);
    rose_cuda_step step = {.batch = b, .slot = slot};
    c->header = c->scratch.header[at];
    rose_cuda_layout_header(&step.at, &s);
    const uint32_t turn = (uint32_t)c->ticket + 1;
    memcpy(slot->header + step.at.turn, &turn, sizeof turn);
    memcpy(slot->header + step.at.ids, &slot->ids, sizeof slot->ids);
    fill_outputs(slot->header, &step.at, b, s.n_outputs);
    fill_rows(slot->header, &step.at, b, &s);
    if (s.n_prompts > 0) rose_cuda_cudnn_fill(c, (void *)(slot->header + step.at.prompts), b);
    slot->n_entries = slot->n_deliveries = 0;
    slot->rules_used = 0;
    slot->rules_again = false;

    cudaError_t e = send_header(c, slot, step.at.end);
    if (e == cudaSuccess && g == NULL) e = rose_cuda_forward(c, &s, &step);
    if (e == cudaSuccess && g != NULL) e = cudaGraphLaunch(g->exec[at], c->stream);
    if (e == cudaSuccess && g != NULL) e = rose_cuda_after(c, &step, 0, b->n_outputs);
    if (e == cudaSuccess) e = cudaEventRecord(slot->done, c->stream);
    if (e == cudaSuccess && b->logits != NULL) e = rose_cuda_wait(c, slot->done);
    return e;
}

static rose_status cuda_step(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    rose_cuda *c = ctx;
    rose_cuda_slot *slot = &c->slots[(c->ticket + 1) % ROSE_CUDA_SLOTS];

    *ticket = 0;
    if (c->trouble.msg[0] != '\0') /* as sticky as an error of the device */
        return rose_fail(err, ROSE_E_BACKEND, "step: %s", c->trouble.msg);
    rose_status st = check_batch(c, b, err);
    if (st != ROSE_OK) return st;
    cudaError_t e = take_slot(c, slot);
    if (e == cudaSuccess) e = enqueue(c, b, slot);
    if (e != cudaSuccess && c->trouble.msg[0] != '\0')
        return rose_fail(err, ROSE_E_BACKEND, "step: %s", c->trouble.msg);
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
    cudaError_t e = rose_cuda_wait(c, slot->done);
    if (e != cudaSuccess) return rose_cuda_fail(err, e, "step");
    c->collected = ticket;
    rose_cuda_rules_deliver(slot);
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
        .caps = ROSE_CAP_REPORTS | ROSE_CAP_LOGIT_RULES | ROSE_CAP_AHEAD,
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

bool rose_backend_gpu_name(char *out, size_t cap)
{
    struct cudaDeviceProp device;
    int n = 0;
    const bool ok = cudaGetDeviceCount(&n) == cudaSuccess && n > 0 &&
                    cudaGetDeviceProperties(&device, 0) == cudaSuccess;
    if (!ok) cudaGetLastError(); /* none of it concerns a later call */
    snprintf(out, cap, "%s", ok ? device.name : "");
    return ok;
}
