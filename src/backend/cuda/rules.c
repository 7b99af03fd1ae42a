/* backend/cuda/rules.c - sends the rules of a step's outputs (rose_output_rules) to the device, and
 * hands out log-probability reports. A step without rules never comes here.
 *
 * The rules of one block of logits are packed into the slot's staging area, which is pinned memory,
 * and copied in one piece. rules.cu and the sampler then work on them, after the sampler's first
 * pass over the block. If the rules do not all fit, the outputs are handled in several parts; the
 * host waits until the copy of one part has ended before it packs the next. The device writes
 * reports into mapped memory, and rules.c copies them to the caller when the step is collected. */
#include <math.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

_Static_assert(sizeof(rose_cuda_logprob) == sizeof(rose_logprob), "reports are copied as they are");

enum { ALIGN = 16, N_TABLES = 6, MIN_STAGING = 4 << 20 };

static uint32_t bitmap_words(uint32_t vocab)
{
    return vocab / 32 + 1;
}

/* Room for the largest rules that one output can have: two lists of distinct ids with their values,
 * a bitmap, and a list of banned ids. A long list of banned ids becomes a bitmap instead. */
uint64_t rose_cuda_rules_bytes(uint32_t vocab)
{
    const uint64_t most = ((uint64_t)4 * vocab + 2 * bitmap_words(vocab)) * sizeof(uint32_t) + 1024;
    return most > MIN_STAGING ? (most + 255) / 256 * 256 : MIN_STAGING;
}

bool rose_cuda_rules_change(const rose_output_rules *r)
{
    return r->score_id == ROSE_TOKEN_NONE && rose_rules_change(r);
}

static bool reports(const rose_output_rules *r)
{
    return r->report != NULL || r->score_id != ROSE_TOKEN_NONE;
}

rose_cuda_pick rose_cuda_pick_of(const rose_sampling *p, uint32_t pos)
{
    return (rose_cuda_pick){.inv_temperature =
                                1.0f / p->temperature, /* infinity for temperature 0 */
                            .top_p = p->top_p,
                            .min_p = p->min_p,
                            .top_k = p->top_k,
                            .seed_lo = (uint32_t)p->seed,
                            .seed_hi = (uint32_t)(p->seed >> 32),
                            .pos = pos};
}

/* ---- a part: the outputs that go over together ---- */

typedef struct part {
    uint32_t first, end; /* outputs [first, end), including those without rules */
    uint32_t n_changes, n_reports;
    uint64_t n_words;
} part;

/* Offsets of the tables of a part. */
typedef struct places {
    uint64_t keys, changes, picks, outs, reports, words, end;
} places;

static places place(const part *p)
{
    const uint64_t bytes[N_TABLES] = {
        p->n_changes * sizeof(uint64_t),         p->n_changes * sizeof(rose_cuda_change),
        p->n_changes * sizeof(rose_cuda_pick),   p->n_changes * sizeof(uint32_t),
        p->n_reports * sizeof(rose_cuda_report), p->n_words * sizeof(uint32_t)};
    uint64_t at[N_TABLES + 1] = {0};
    for (int i = 0; i < N_TABLES; i++)
        at[i + 1] = (at[i] + bytes[i] + ALIGN - 1) / ALIGN * ALIGN;
    return (places){at[0], at[1], at[2], at[3], at[4], at[5], at[6]};
}

static bool has_bitmap(const rose_output_rules *r, uint32_t vocab)
{
    return r->mask != NULL || r->n_allowed > 0 || r->n_banned > bitmap_words(vocab);
}

static uint64_t words_of(const rose_output_rules *r, uint32_t vocab)
{
    uint64_t n = has_bitmap(r, vocab) ? bitmap_words(vocab) : r->n_banned;
    return n + 2 * ((uint64_t)r->n_bias + r->n_seen);
}

/* Let the part hold as many outputs, from p->first on, as fit into `room` bytes. */
static void measure(part *p, const rose_cuda_rank *rank, const rose_batch *b, uint32_t end,
                    uint64_t room)
{
    for (p->end = p->first; p->end < end; p->end++) {
        const rose_output_rules *r = b->outs[p->end].rules;
        part larger = *p;
        if (r == NULL) continue;
        if (rose_cuda_rules_change(r)) {
            larger.n_changes++;
            larger.n_words += words_of(r, rank->c->arch.vocab_size);
        }
        larger.n_reports += reports(r);
        if (larger.n_changes > rank->scratch.n_changed || place(&larger).end > room) return;
        *p = larger;
    }
}

static uint32_t put_words(uint32_t *words, uint32_t *used, const void *from, uint32_t n)
{
    uint32_t at = *used;
    if (n > 0) memcpy(words + at, from, n * sizeof *words);
    *used += n;
    return at;
}

/* Write a bitmap of the ids that are in the mask, allowed and not banned. */
static uint32_t put_bitmap(uint32_t *words, uint32_t *used, const rose_output_rules *r,
                           uint32_t vocab)
{
    const uint32_t at = *used, n = bitmap_words(vocab);
    uint32_t *map = words + at;
    const uint32_t mask_words = (vocab + 31) / 32; /* n - 1 if 32 divides vocab, else n */
    const bool masked = r->mask != NULL, listed = r->n_allowed > 0;
    if (masked && !listed) {
        map[n - 1] = UINT32_MAX;
        memcpy(map, r->mask, mask_words * sizeof *map);
    } else {
        memset(map, listed ? 0 : 0xff, n * sizeof *map);
    }
    for (uint32_t i = 0; i < r->n_allowed; i++)
        map[r->allowed[i] / 32] |= 1u << r->allowed[i] % 32;
    for (uint32_t i = 0; i < mask_words && masked && listed; i++)
        map[i] &= r->mask[i];
    for (uint32_t i = 0; i < r->n_banned; i++)
        map[r->banned[i] / 32] &= ~(1u << r->banned[i] % 32);
    *used += n;
    return at;
}

static rose_cuda_change change_of(const rose_output_rules *r, uint32_t row, uint32_t vocab,
                                  uint32_t *words, uint32_t *used)
{
    rose_cuda_change c = {.row = row,
                          .allowed = ROSE_CUDA_ALL_IDS,
                          .n_bias = r->n_bias,
                          .n_seen = r->n_seen,
                          .repetition = r->repetition,
                          .frequency = r->frequency,
                          .presence = r->presence};
    if (has_bitmap(r, vocab)) {
        c.allowed = put_bitmap(words, used, r, vocab);
    } else {
        c.banned = put_words(words, used, r->banned, r->n_banned);
        c.n_banned = r->n_banned;
    }
    c.bias = put_words(words, used, r->bias_ids, r->n_bias);
    put_words(words, used, r->bias, r->n_bias);
    c.seen = put_words(words, used, r->seen_ids, r->n_seen);
    put_words(words, used, r->seen_counts, r->n_seen);
    return c;
}

static rose_cuda_report report_of(const rose_output_rules *r, uint32_t row, uint32_t out,
                                  rose_cuda_slot *slot)
{
    rose_cuda_report p = {
        .row = row, .out = out, .score_id = r->score_id, .at = UINT32_MAX, .n_top = r->n_top};
    if (r->report == NULL) return p;
    p.at = slot->n_entries;
    slot->n_entries += 1 + r->n_top;
    slot->deliveries[slot->n_deliveries++] =
        (rose_cuda_delivery){.to = r->report, .at = p.at, .n = 1 + r->n_top};
    return p;
}

/* Write the tables of a part. `block` is the first output of the block of logits: output i is row i
 * - block. */
static void fill(const part *p, const rose_cuda_rank *rank, const rose_cuda_step *step,
                 uint32_t block, uint8_t *to)
{
    const rose_batch *b = step->batch;
    const places at = place(p);
    rose_cuda_change *changes = (void *)(to + at.changes);
    rose_cuda_pick *picks = (void *)(to + at.picks);
    uint32_t *outs = (void *)(to + at.outs), *words = (void *)(to + at.words), used = 0;
    rose_cuda_report *report = (void *)(to + at.reports);

    memset(to + at.keys, 0, p->n_changes * sizeof(uint64_t)); /* change_kernel raises them */
    for (uint32_t i = p->first; i < p->end; i++) {
        const rose_output_rules *r = b->outs[i].rules;
        if (r == NULL) continue;
        if (rose_cuda_rules_change(r)) {
            *changes++ = change_of(r, i - block, rank->c->arch.vocab_size, words, &used);
            *picks++ = rose_cuda_pick_of(&b->outs[i].params, b->outs[i].pos);
            *outs++ = i;
        }
        if (reports(r)) *report++ = report_of(r, i - block, i, step->slot);
    }
}

/* Launch the kernels that apply one part of the step's sampling rules. `from` is the device address
 * of that part. */
static cudaError_t launch(rose_cuda_rank *rank, const rose_cuda_step *step, const part *p,
                          uint32_t block, uint8_t *from)
{
    const rose_cuda_scratch *s = &rank->scratch;
    const places at = place(p);
    /* Not a dependent launch: the kernel needs the copy before it. */
    rose_cuda_launch l = {.device = &rank->device, .stream = rank->stream, .type = rank->c->type};
    const rose_cuda_changes changes = {.logits = s->logits,
                                       .change = (const void *)(from + at.changes),
                                       .words = (const void *)(from + at.words),
                                       .changed = s->changed,
                                       .key = (void *)(from + at.keys),
                                       .vocab = rank->c->arch.vocab_size,
                                       .ld_logits = s->ld_logits,
                                       .rows = p->n_changes};
    const rose_cuda_sampler sampler = {.logits = s->changed,
                                       .key = (void *)(from + at.keys),
                                       .pick = (const void *)(from + at.picks),
                                       .ids = (void *)(rank->header + step->at.ids),
                                       .out = (const void *)(from + at.outs),
                                       .vocab = rank->c->arch.vocab_size,
                                       .ld_logits = s->ld_logits,
                                       .rows = p->n_changes,
                                       .sampled = s->sampled};
    const rose_cuda_reports reported = {.logits = s->logits,
                                        .key = s->key + block,
                                        .report = (const void *)(from + at.reports),
                                        .ids = (void *)(rank->header + step->at.ids),
                                        .sampled = s->sampled,
                                        .entries = step->slot->entries,
                                        .vocab = rank->c->arch.vocab_size,
                                        .ld_logits = s->ld_logits,
                                        .rows = p->n_reports};
    cudaError_t e = rose_cuda_changes_run(&l, &changes);
    l.dependent = rank->c->pdl && p->n_changes > 0;
    if (e == cudaSuccess) e = rose_cuda_sampler_run(&l, &sampler);
    if (e == cudaSuccess) e = rose_cuda_reports_run(&l, &reported);
    return e;
}

/* Copy a part to the device. aside: on the second stream, while the step's graph runs, so that the
 * step need not wait for the copy. The copy overwrites rules of the step before, so it first waits
 * for the end of that step. */
static cudaError_t copy_over(rose_cuda_rank *rank, const rose_cuda_slot *slot, uint64_t used,
                             uint64_t bytes, bool aside)
{
    const cudaStream_t stream = aside ? rank->side : rank->stream;
    const rose_cuda_slot *before = &rank->c->slots[rank->c->ticket % ROSE_CUDA_SLOTS];
    cudaError_t e = cudaSuccess;

    if (aside && rank->c->ticket > 0) e = cudaStreamWaitEvent(stream, before->done, 0);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(rank->scratch.rules + used, slot->rules + used, bytes,
                            cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess) e = cudaEventRecord(rank->staged, stream);
    if (e == cudaSuccess && aside) e = cudaStreamWaitEvent(rank->stream, rank->staged, 0);
    return e;
}

cudaError_t rose_cuda_rules_run(rose_cuda_rank *rank, const rose_cuda_step *step, uint32_t first,
                                uint32_t n)
{
    rose_cuda_slot *slot = step->slot;
    const uint64_t all = rank->scratch.rules_bytes;
    part p = {.first = first};
    cudaError_t e = cudaSuccess;

    while (p.first < first + n && e == cudaSuccess) {
        measure(&p, rank, step->batch, first + n, all - slot->rules_used);
        /* The staging area is full: wait for its last copy, then start again at its beginning. */
        if (p.end == p.first) {
            /* Cannot happen: the plan has room for the rules of one output. */
            if (slot->rules_used == 0) return cudaErrorInvalidValue;
            if ((e = rose_cuda_wait(rank->c, rank->staged)) != cudaSuccess) return e;
            slot->rules_used = 0;
            slot->rules_again = true;
            continue;
        }
        const uint64_t used = slot->rules_used, bytes = place(&p).end;
        if (bytes > 0) {
            fill(&p, rank, step, first, slot->rules + used);
            e = copy_over(rank, slot, used, bytes, !slot->rules_again);
            if (e == cudaSuccess) e = launch(rank, step, &p, first, rank->scratch.rules + used);
            slot->rules_used += bytes;
        }
        p = (part){.first = p.end};
    }
    return e;
}

/* Call after the step has ended: its entries are then in host memory. */
void rose_cuda_rules_deliver(const rose_cuda_slot *slot)
{
    for (uint32_t i = 0; i < slot->n_deliveries; i++) {
        const rose_cuda_delivery *d = &slot->deliveries[i];
        memcpy(d->to, slot->entries + d->at, d->n * sizeof *d->to);
    }
}
