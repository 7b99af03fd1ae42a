/* backend/cuda/cuda_backend.c - the CUDA backend: open, step, collect, close.
 *
 * step() fills the tables of the step in pinned memory and copies them to the GPU in one piece. It
 * then launches a captured graph (decode steps, and short steps of one prompt) or the kernels one
 * by one. collect() waits for an event. open() allocates everything: three device regions (weights,
 * KV pages, scratch) and one block of pinned memory.
 *
 * Two steps may be in flight (ROSE_CAP_AHEAD), each with a slot of pinned memory. One stream runs
 * all steps and copies of pages in order, so that one set of activations is enough. One array of
 * sampled ids is also enough: a step's embedding reads the ids of the step before from the array,
 * and only later the step's own sampler overwrites them. Each slot has its own header on the
 * device, and its own graphs that read this header. The header of the next step can therefore be
 * copied while a step runs.
 *
 * A device error is sticky: every later call fails too. Nothing here waits without asking whether
 * the device still runs, and for at most --device-timeout-ms. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/checks.h"
#include "backend/cuda/cuda_internal.h"
#include "base/clock.h"
#include "base/log.h"

/* ---- open and close ---- */

static void free_host(rose_cuda *c)
{
    rose_gemm_tuned_free(&c->tuned);
    free(c->ranks[0].weights.layers);
    free(c->ranks[0].mega); /* NULL, unless the device is lost */
    free(c->deliveries);
    free(c->sums_to);
    free(c);
}

static void close_rank(rose_cuda_rank *rank)
{
    rose_cuda_drop_graphs(rank);
    if (rank->staged != NULL) cudaEventDestroy(rank->staged);
    if (rank->side != NULL) cudaStreamDestroy(rank->side);
    rose_cuda_mega_close(rank);
    cudaFree(rank->weights_base);
    cudaFree(rank->kv_base);
    cudaFree(rank->scratch_base);
    if (rank->stream != NULL) cudaStreamDestroy(rank->stream);
}

static void cuda_close(void *ctx)
{
    rose_cuda *c = ctx;
    if (c == NULL) return;
    rose_cuda_profile(false, false);
    if (c->ranks[0].staged != NULL && !c->lost) rose_cuda_finish(&c->ranks[0]);
    /* Every CUDA call would wait for the lost device. The driver frees its memory when the process
     * ends. */
    if (c->lost) {
        free_host(c);
        return;
    }
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS; i++) {
        if (c->slots[i].sent != NULL) cudaEventDestroy(c->slots[i].sent);
        if (c->slots[i].done != NULL) cudaEventDestroy(c->slots[i].done);
    }
    cudaFreeHost(c->pinned);
    close_rank(&c->ranks[0]);
    /* Clear an error that is not sticky, so that the next caller does not see it. */
    cudaGetLastError();
    free_host(c);
}

/* The parts of a slot in the memory that host and device share. */
static void place_slot(rose_cuda_slot *to, rose_bump *b, const rose_cuda *c)
{
    const rose_cuda_scratch *s = &c->ranks[0].scratch;
    const uint64_t tokens = c->plan.max_step_tokens, seqs = c->plan.max_seqs;
    to->header = rose_bump_take(b, s->header_bytes);
    to->rules = rose_bump_take(b, s->rules_bytes);
    to->ids = rose_bump_take(b, (tokens + ROSE_CUDA_OUT_BLOCK) * sizeof *to->ids);
    to->entries = rose_bump_take(b, tokens * (1 + ROSE_MAX_TOP_LOGPROBS) * sizeof *to->entries);
    to->sum = rose_bump_take(b, seqs * sizeof *to->sum);
    to->sums = rose_bump_floats(b, seqs * c->arch.d_model);
}

/* One block of pinned memory with a part for each slot. */
static rose_status allocate_slots(rose_cuda *c, rose_err *err)
{
    const uint64_t tokens = c->plan.max_step_tokens, seqs = c->plan.max_seqs;
    rose_bump pinned = {.align = ROSE_CUDA_ALIGN};

    c->deliveries = calloc(tokens * ROSE_CUDA_SLOTS, sizeof *c->deliveries);
    c->sums_to = calloc(seqs * ROSE_CUDA_SLOTS, sizeof *c->sums_to);
    if (c->deliveries == NULL || c->sums_to == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS; i++)
        place_slot(&c->slots[i], &pinned, c);
    cudaError_t e = cudaHostAlloc((void **)&c->pinned, pinned.used, cudaHostAllocMapped);
    pinned = (rose_bump){.base = c->pinned, .align = ROSE_CUDA_ALIGN};
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS && e == cudaSuccess; i++) {
        rose_cuda_slot *to = &c->slots[i];
        place_slot(to, &pinned, c);
        to->deliveries = c->deliveries + i * tokens;
        to->sums_to = c->sums_to + i * seqs;
        e = cudaEventCreateWithFlags(&to->done, cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&to->sent, cudaEventDisableTiming);
    }
    return rose_cuda_status(err, e, "allocating pinned memory");
}

/* The second stream, and the event that orders the two streams. */
static cudaError_t create_side(rose_cuda_rank *rank)
{
    cudaError_t e = cudaStreamCreateWithFlags(&rank->side, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaEventCreateWithFlags(&rank->staged, cudaEventDisableTiming);
    return e;
}

static rose_status allocate_rank(rose_cuda_rank *rank, const rose_model *m, rose_err *err)
{
    const rose_memory_plan *p = &rank->c->plan;
    rose_bump weights = {.align = ROSE_CUDA_ALIGN}, scratch = {.align = ROSE_CUDA_ALIGN};
    cudaError_t e = cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking);

    if (e == cudaSuccess) e = cudaMalloc(&rank->weights_base, p->weights);
    if (e == cudaSuccess) e = cudaMalloc(&rank->kv_base, p->kv);
    if (e == cudaSuccess) e = cudaMalloc(&rank->scratch_base, p->scratch);
    if (e != cudaSuccess) return rose_cuda_status(err, e, "allocating GPU memory");
    rank->weights.layers = calloc(m->arch.n_layers, sizeof *rank->weights.layers);
    if (rank->weights.layers == NULL) return rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
    weights.base = rank->weights_base;
    scratch.base = rank->scratch_base;
    rose_cuda_layout_weights(&rank->weights, &weights, m, p);
    rose_cuda_layout_scratch(&rank->scratch, &scratch, &m->arch, p, rank->device.sms);
    if (weights.used != p->weights || scratch.used != p->scratch)
        return rose_fail(err, ROSE_E_INVAL,
                         "the memory plan was made for another model or other options");

    return rose_cuda_status(err, create_side(rank), "creating events");
}

/* What the model and the options say about the steps. */
static void describe(rose_cuda *c, const rose_backend_opts *o)
{
    const rose_arch *a = &c->arch;
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    const rose_memory_plan *p = &c->plan;
    c->type = rose_compute_format(p->dtype);
    c->hd_pad = rose_cuda_attend_pad(m->head_dim);
    c->plain = rose_cuda_attend_refuses(c->type, m->n_heads, m->n_kv_heads, m->head_dim) != NULL;
    c->pdl = o->cuda.pdl && c->ranks[0].device.code >= 90;
    c->without = p->without;
    c->naive = p->prefill == ROSE_PREFILL_NAIVE;
    c->mma_prompts = o->cuda.prefill == ROSE_PREFILL_AUTO2;
    c->timeout = o->cuda.timeout_ms;
}

/* The page tables of gathered pages: 0, 1, 2, ... */
static cudaError_t fill_dense_table(rose_cuda_rank *rank)
{
    const uint32_t n = rank->scratch.n_dense;
    if (n == 0) return cudaSuccess;
    uint32_t *table = malloc(n * sizeof *table);
    cudaError_t e = table != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
    for (uint32_t i = 0; e == cudaSuccess && i < n; i++)
        table[i] = i;
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(rank->scratch.dense_table, table, n * sizeof *table,
                            cudaMemcpyHostToDevice, rank->stream);
    if (e == cudaSuccess) e = rose_cuda_finish(rank);
    free(table);
    return e;
}

static cudaError_t prepare_kernels(const rose_cuda_device *device)
{
    const cudaError_t e = rose_gemm_prepare(device);
    return e == cudaSuccess ? rose_cuda_attend_prepare() : e;
}

static rose_status cuda_open(void **ctx, const rose_model *m, const rose_backend_opts *o,
                             const rose_memory_plan *p, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_cuda *c = NULL;
    rose_cuda_rank *rank;

    *ctx = NULL;
    if ((c = calloc(1, sizeof *c)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "CUDA: out of memory");
        goto done;
    }
    rank = &c->ranks[0];
    rank->c = c;
    if ((st = rose_cuda_device_open((int)o->cuda.device, &rank->device, err)) != ROSE_OK) goto done;
    c->arch = m->arch;
    c->plan = *p;
    describe(c, o);
    const uint64_t began = rose_now_ns();
    st = rose_cuda_status(err, prepare_kernels(&rank->device), "preparing the kernels");
    if (st != ROSE_OK) goto done;
    const uint64_t prepared = rose_now_ns();
    if ((st = allocate_rank(rank, m, err)) != ROSE_OK) goto done;
    if ((st = allocate_slots(c, err)) != ROSE_OK) goto done;
    const uint64_t allocated = rose_now_ns();
    if ((st = rose_cuda_load(rank, m, err)) != ROSE_OK) goto done;
    st = rose_cuda_status(err, fill_dense_table(rank), "filling the page tables");
    if (st != ROSE_OK) goto done;
    const uint64_t loaded = rose_now_ns();
    if ((st = rose_cuda_tune(rank, o->cuda.tune_dir, o->cuda.tune, err)) != ROSE_OK) goto done;
    if (o->cuda.megakernel && (st = rose_cuda_mega_open(rank, err)) != ROSE_OK) goto done;
    if (o->cuda.graph && (st = rose_cuda_capture(rank, err)) != ROSE_OK) goto done;
    st = rose_cuda_status(err, rose_cuda_finish(rank), "uploading the graphs");
    if (st != ROSE_OK) goto done;
    const uint64_t captured = rose_now_ns();
    if ((st = rose_cuda_warm(c, err)) != ROSE_OK) goto done;
    rose_log(
        ROSE_LOG_DEBUG, "cuda",
        "start: GEMM kernels %.1f + memory %.1f + weights %.1f + %u graphs %.1f + warm-up %.1f ms",
        rose_ms_between(began, prepared), rose_ms_between(prepared, allocated),
        rose_ms_between(allocated, loaded),
        (rank->n_graphs + rank->n_prompts + rank->n_guesses) * ROSE_CUDA_SLOTS,
        rose_ms_between(loaded, captured), rose_ms_between(captured, rose_now_ns()));
    rose_cuda_profile(true, o->cuda.profiler_kernels);
    *ctx = c;
done:
    if (st != ROSE_OK) cuda_close(c);
    return st;
}

/* ---- steps ---- */

static uint32_t pages_of(const rose_batch_seq *q)
{
    return (q->pos + q->n - 1) / ROSE_KV_PAGE_TOKENS + 1;
}

/* Whether the rows of a sequence are single items. Bits do not depend on it. Several rows are worth
 * it while a block for each row and KV head has an SM of its own, in a context of more than one
 * split; a tile walks over the whole context. *few counts such rows; scratch memory has room for
 * max_seqs single items. */
static bool rows_alone(const rose_cuda *c, const rose_batch *b, const rose_batch_seq *q,
                       uint32_t *few)
{
    const uint32_t n_kv = rose_arch_any(&c->arch)->mixer.n_kv_heads, n = *few + q->n;
    if (q->n == 1) return true;
    if (c->plain || c->naive || q->n > ROSE_CUDA_FEW_ROWS || q->pos < ROSE_ATTEND_SPLIT ||
        n * n_kv > c->ranks[0].device.sms || n + b->n_seqs - 1 > c->plan.max_seqs)
        return false;
    *few = n;
    return true;
}

static rose_cuda_shape shape_of(const rose_cuda *c, const rose_batch *b, const rose_cuda_graph *g)
{
    const uint32_t item_rows = rose_cuda_item_rows(&c->arch);
    rose_cuda_shape s = {.n_rows = b->n_tokens, .n_outputs = b->n_outputs};
    for (uint32_t i = 0, few = 0; i < b->n_seqs;) {
        const rose_batch_seq q = rose_batch_next(b, &i);
        const bool alone = rows_alone(c, b, &q, &few);
        s.n_single += alone ? q.n : 0;
        s.n_tiles += alone ? 0 : (q.n - 1) / item_rows + 1;
        s.shared |= alone && q.n > 1;
        s.n_table += c->plan.n_pools * pages_of(&q);
    }
    rose_cuda_shape_cuts(&s, &c->arch, &c->plan, c->ranks[0].device.sms);
    if (g != NULL) {
        const uint32_t n_table = s.n_table;
        s = g->shape;
        s.n_table = n_table;
    }
    return s;
}

/* Whether the sampler of the step takes the output's id from the plain logits. An output with a sum
 * or a given id has no use for one, and rules.c samples where rules change logits. */
static bool samples(const rose_batch_out *o)
{
    return o->sum == NULL && (o->rules == NULL || (o->rules->score_id == ROSE_TOKEN_NONE &&
                                                   !rose_cuda_rules_change(o->rules)));
}

/* Padding and outputs that are not sampled are greedy, which is the least work. */
static void fill_outputs(uint8_t *to, const rose_cuda_header *at, const rose_batch *b, uint32_t n)
{
    rose_cuda_pick *picks = (void *)(to + at->picks);
    uint32_t *gather = (void *)(to + at->gather);
    for (uint32_t i = 0; i < n; i++) {
        const rose_batch_out *o = i < b->n_outputs ? &b->outs[i] : NULL;
        gather[i] = o != NULL ? o->row : i;
        if (o != NULL && samples(o))
            picks[i] = rose_cuda_pick_of(&o->params, o->pos);
        else
            picks[i] = (rose_cuda_pick){.inv_temperature = INFINITY};
    }
}

static void fill_rows(uint8_t *to, const rose_cuda_header *at, const rose_batch *b,
                      const rose_cuda_shape *s)
{
    uint32_t *tokens = (void *)(to + at->tokens), *where = (void *)(to + at->where);
    uint32_t *slot = (void *)(to + at->slot);

    memcpy(tokens, b->tokens, b->n_tokens * sizeof *tokens);
    for (const rose_batch_seq *q = b->seqs; q < b->seqs + b->n_seqs; q++)
        for (uint32_t j = 0; j < q->n; j++)
            where[q->first + j] = q->pos + j;
    for (uint32_t i = b->n_tokens; i < s->n_rows; i++)
        tokens[i] = where[i] = 0;
    for (uint32_t k = 0; k < s->n_pools; k++, slot += s->n_rows) {
        for (const rose_batch_seq *q = b->seqs; q < b->seqs + b->n_seqs; q++)
            for (uint32_t j = 0; j < q->n; j++)
                slot[q->first + j] =
                    q->table[k][(q->pos + j) / ROSE_KV_PAGE_TOKENS] * ROSE_KV_PAGE_TOKENS +
                    (q->pos + j) % ROSE_KV_PAGE_TOKENS;
        for (uint32_t i = b->n_tokens; i < s->n_rows; i++)
            slot[i] = ROSE_CUDA_NO_SLOT; /* K and V of padding rows are written nowhere */
    }
}

/* The items and page tables of a pool. The graph of a prompt has only tiles. A graph of decode
 * steps, with guesses or without, has only single items. */
static void fill_items(const rose_cuda *c, uint8_t *to, const rose_cuda_header *at,
                       const rose_batch *b, const rose_cuda_shape *s, uint32_t pool)
{
    uint32_t *tables = (void *)(to + at->tables), table = s->n_table / s->n_pools * pool;
    rose_cuda_item *single = rose_cuda_items(to + at->items, s, pool), *tile = single + s->n_single;
    rose_cuda_item *const singles_end = tile, *const tiles_end = tile + s->n_tiles;

    for (uint32_t i = 0, few = 0; i < b->n_seqs;) {
        const rose_batch_seq q = rose_batch_next(b, &i);
        const bool alone = s->n_single > 0 && (s->n_tiles == 0 || rows_alone(c, b, &q, &few));
        const uint32_t most = alone ? 1 : rose_cuda_item_rows(&c->arch);
        for (uint32_t j = 0; j < q.n; j += most) {
            const rose_cuda_item it = {q.first + j, q.n - j < most ? q.n - j : most, q.pos + j,
                                       table};
            *(alone ? single++ : tile++) = it;
        }
        memcpy(tables + table, q.table[pool], pages_of(&q) * sizeof *tables);
        table += pages_of(&q);
    }
    while (single < singles_end)
        *single++ = (rose_cuda_item){0};
    while (tile < tiles_end)
        *tile++ = (rose_cuda_item){0};
}

/* How attention divides the contexts of the single items: a cut for each pool. */
static void fill_cuts(const rose_cuda *c, uint8_t *to, const rose_cuda_header *at,
                      const rose_cuda_shape *s)
{
    const rose_attend_limits limits =
        rose_cuda_attend_limits(&c->arch, &c->plan, c->ranks[0].device.sms, s->n_single);

    for (uint32_t i = 0; i < s->n_pools; i++) {
        rose_attend_cutting *cutting = (rose_attend_cutting *)(void *)(to + at->cuttings) + i;
        rose_attend_unit *units =
            (rose_attend_unit *)(void *)(to + at->units) + (size_t)i * s->n_units;
        rose_attend_fold *folds =
            (rose_attend_fold *)(void *)(to + at->folds) + (size_t)i * s->n_single;
        *cutting = rose_attend_cut(&limits, rose_cuda_items(to + at->items, s, i), s->n_single,
                                   c->plan.pools[i].window, 0, units, folds);
    }
}

/* Copy the slot's header to the device. If the step before is still in flight, the copy runs on the
 * second stream, so that the header is there when that step ends. The header's memory is free: the
 * slot's last step was its last reader, and that step has ended. */
static cudaError_t send_header(rose_cuda_rank *rank, const rose_cuda_slot *slot, uint64_t bytes)
{
    const rose_cuda *c = rank->c;
    const bool behind = c->collected < c->ticket && (c->without & ROSE_CUDA_WITHOUT_FETCH) == 0;
    const cudaStream_t stream = behind ? rank->side : rank->stream;
    cudaError_t e =
        cudaMemcpyAsync(rank->header, slot->header, bytes, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess && behind) e = cudaEventRecord(slot->sent, stream);
    if (e == cudaSuccess && behind) e = cudaStreamWaitEvent(rank->stream, slot->sent, 0);
    return e;
}

/* Wait until the step that used this slot before has ended. A collected step has ended for certain.
 */
static cudaError_t take_slot(rose_cuda *c, const rose_cuda_slot *slot)
{
    if (c->lost) return cudaErrorNotReady;
    return slot->ticket > c->collected ? rose_cuda_wait(c, slot->done) : cudaSuccess;
}

static cudaError_t enqueue(rose_cuda *c, const rose_batch *b, rose_cuda_slot *slot)
{
    rose_cuda_rank *rank = &c->ranks[0];
    const rose_cuda_graph *g = rose_cuda_graph_for(rank, b);
    const rose_cuda_shape s = shape_of(c, b, g);
    const uint32_t at = (uint32_t)(slot - c->slots);
    rose_cuda_step step = {.batch = b, .slot = slot};
    rank->header = rank->scratch.header[at];
    rose_cuda_layout_header(&step.at, &s);
    const uint32_t turn = (uint32_t)c->ticket + 1;
    memcpy(slot->header + step.at.turn, &turn, sizeof turn);
    memcpy(slot->header + step.at.ids, &slot->ids, sizeof slot->ids);
    fill_outputs(slot->header, &step.at, b, s.n_outputs);
    rose_cuda_sums_begin(c, slot, b);
    fill_rows(slot->header, &step.at, b, &s);
    for (uint32_t k = 0; k < s.n_pools; k++)
        fill_items(c, slot->header, &step.at, b, &s, k);
    if (!c->plain && s.n_single > 0) fill_cuts(c, slot->header, &step.at, &s);
    slot->n_entries = slot->n_deliveries = 0;
    slot->rules_used = 0;
    slot->rules_again = false;

    cudaError_t e = send_header(rank, slot, step.at.end);
    if (e == cudaSuccess && g == NULL) e = rose_cuda_forward(rank, &s, &step);
    if (e == cudaSuccess && g != NULL) e = cudaGraphLaunch(g->exec[at], rank->stream);
    if (e == cudaSuccess && g != NULL) e = rose_cuda_after(rank, &step, 0, b->n_outputs);
    if (e == cudaSuccess) e = cudaEventRecord(slot->done, rank->stream);
    if (e == cudaSuccess && b->logits != NULL) e = rose_cuda_wait(c, slot->done);
    return e;
}

static rose_status cuda_step(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    rose_cuda *c = ctx;
    rose_cuda_slot *slot = &c->slots[(c->ticket + 1) % ROSE_CUDA_SLOTS];

    *ticket = 0;
    const rose_cuda_slot *before = &c->slots[c->ticket % ROSE_CUDA_SLOTS];
    const uint32_t n_before = c->ticket > 0 ? before->n_outputs : 0;
    rose_status st = rose_backend_check_batch(b, &c->plan, c->arch.vocab_size, n_before, err);
    if (st != ROSE_OK) return st;
    cudaError_t e = take_slot(c, slot);
    if (e == cudaSuccess) e = enqueue(c, b, slot);
    if (e != cudaSuccess) return rose_cuda_status(err, e, "step");
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
        return rose_fail(err, ROSE_E_INVAL,
                         "collect: ticket %llu is not a step in flight; the last step is %llu",
                         (unsigned long long)ticket, (unsigned long long)c->ticket);
    cudaError_t e = rose_cuda_wait(c, slot->done);
    if (e != cudaSuccess) return rose_cuda_status(err, e, "step");
    c->collected = ticket;
    rose_cuda_rules_deliver(slot);
    rose_cuda_sums_deliver(c, slot);
    *out = (rose_step_result){.n_outputs = slot->n_outputs, .ids = slot->ids};
    return ROSE_OK;
}

const rose_backend_ops rose_cuda_ops = {
    .name = "cuda",
    .caps = ROSE_CAP_REPORTS | ROSE_CAP_LOGIT_RULES | ROSE_CAP_AHEAD | ROSE_CAP_STATES,
    .check = rose_cuda_check,
    .plan = rose_cuda_plan,
    .open = cuda_open,
    .step = cuda_step,
    .collect = cuda_collect,
    .close = cuda_close,
};

rose_status rose_backend_cuda(const rose_backend_ops **out, uint32_t gpu, rose_err *err)
{
    const rose_status st = rose_cuda_select((int)gpu, err);
    *out = st == ROSE_OK ? &rose_cuda_ops : NULL;
    return st;
}

bool rose_backend_gpu_name(char *out, size_t cap)
{
    struct cudaDeviceProp device;
    int n = 0;
    const bool ok = cudaGetDeviceCount(&n) == cudaSuccess && n > 0 &&
                    cudaGetDeviceProperties(&device, 0) == cudaSuccess;
    if (!ok) cudaGetLastError(); /* clear the error, so that a later call does not report it */
    snprintf(out, cap, "%s", ok ? device.name : "");
    return ok;
}
