/* backend/cuda/states.c - sums of hidden states, for pooled requests (embeddings). A sum lies in
 * mapped host memory of the slot. step() copies the caller's values there, a kernel adds the states
 * of each block of outputs after their norm, and collect() copies the sum back. Each value is added
 * by one thread in order of the outputs, so the bits do not depend on the blocks. */
#include <string.h>

#include "backend/cuda/cuda_internal.h"

void rose_cuda_sums_begin(const rose_cuda *c, rose_cuda_slot *slot, const rose_batch *b)
{
    const size_t d = c->arch.d_model;
    slot->n_sums = 0;
    for (uint32_t i = 0; i < b->n_outputs; i++) {
        float *to = b->outs[i].sum;
        if (to == NULL) continue;
        if (i == 0 || to != b->outs[i - 1].sum) {
            memcpy(slot->sums + slot->n_sums * d, to, d * sizeof *to);
            slot->sums_to[slot->n_sums] = to;
            slot->sum[slot->n_sums++].first = i;
        }
        slot->sum[slot->n_sums - 1].end = i + 1;
    }
}

cudaError_t rose_cuda_sums_run(rose_cuda_rank *rank, const rose_cuda_step *step, uint32_t first,
                               uint32_t n)
{
    const rose_cuda_slot *slot = step->slot;
    /* A plain launch: a step of a prompt is long, so a dependent one would gain nothing. */
    const rose_cuda_launch l = {
        .device = &rank->device, .stream = rank->stream, .type = rank->c->type};
    const rose_cuda_states a = {.h = rank->scratch.out_h,
                                .k_pad = rank->weights.head.k_pad,
                                .d = rank->c->arch.d_model,
                                .first = first,
                                .n = n,
                                .sum = slot->sum,
                                .sums = slot->sums,
                                .n_sums = slot->n_sums};
    return rose_cuda_states_run(&l, &a);
}

void rose_cuda_sums_deliver(const rose_cuda *c, const rose_cuda_slot *slot)
{
    const size_t d = c->arch.d_model;
    for (uint32_t i = 0; i < slot->n_sums; i++)
        memcpy(slot->sums_to[i], slot->sums + i * d, d * sizeof(float));
}
