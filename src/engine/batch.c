/* engine/batch.c - see batch_internal.h. */
#include "engine/batch_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool rose_batch_create(rose_batch_builder *b, uint32_t max_seqs, uint32_t max_tokens,
                       uint32_t stride)
{
    size_t n = max_seqs;
    memset(b, 0, sizeof *b);
    b->max_seqs = max_seqs;
    b->max_tokens = max_tokens;
    b->tokens = calloc(max_tokens, sizeof *b->tokens);
    b->seq_first = calloc(n + 1, sizeof *b->seq_first);
    b->seq_pos = calloc(n, sizeof *b->seq_pos);
    b->pages = calloc(n * stride, sizeof *b->pages);
    b->out_row = calloc(n, sizeof *b->out_row);
    b->out_pos = calloc(n, sizeof *b->out_pos);
    b->params = calloc(n, sizeof *b->params);
    b->row_ticket = calloc(n, sizeof *b->row_ticket); /* 0 is nobody's ticket */
    b->row_pages = calloc(n, sizeof *b->row_pages);
    b->batch = (rose_batch){.tokens = b->tokens,
                            .seq_first = b->seq_first,
                            .seq_pos = b->seq_pos,
                            .pages = b->pages,
                            .page_stride = stride,
                            .out_row = b->out_row,
                            .out_pos = b->out_pos,
                            .out_params = b->params};
    return b->tokens != NULL && b->seq_first != NULL && b->seq_pos != NULL && b->pages != NULL &&
           b->out_row != NULL && b->out_pos != NULL && b->params != NULL && b->row_ticket != NULL &&
           b->row_pages != NULL;
}

void rose_batch_destroy(rose_batch_builder *b)
{
    free(b->tokens);
    free(b->seq_first);
    free(b->seq_pos);
    free(b->pages);
    free(b->out_row);
    free(b->out_pos);
    free(b->params);
    free(b->row_ticket);
    free(b->row_pages);
    memset(b, 0, sizeof *b);
}

void rose_batch_reset(rose_batch_builder *b)
{
    b->batch.n_seqs = b->batch.n_tokens = b->batch.n_outputs = 0;
}

void rose_batch_copy_ids(uint32_t *dst, const rose_request *r, uint32_t pos, uint32_t n)
{
    uint32_t end = pos + n, p = pos;
    if (p < r->n_prompt) {
        uint32_t stop = end < r->n_prompt ? end : r->n_prompt;
        memcpy(dst, r->prompt + p, (size_t)(stop - p) * sizeof *dst);
        dst += stop - p;
        p = stop;
    }
    assert(p == end || end - r->n_prompt <= r->n_generated);
    for (; p < end; p++)
        *dst++ = r->events[p - r->n_prompt].id;
}

static void update_table(rose_batch_builder *b, uint32_t row, const rose_sched_item *it)
{
    assert(it->n_pages <= b->batch.page_stride);
    if (b->row_ticket[row] != it->ticket) {
        b->row_ticket[row] = it->ticket;
        b->row_pages[row] = 0;
    }
    uint32_t have = b->row_pages[row];
    if (have >= it->n_pages) return;
    memcpy(b->pages + (size_t)row * b->batch.page_stride + have, it->pages + have,
           (size_t)(it->n_pages - have) * sizeof *b->pages);
    b->row_pages[row] = it->n_pages;
}

void rose_batch_add(rose_batch_builder *b, const rose_sched_item *it, const rose_request *r)
{
    rose_batch *batch = &b->batch;
    uint32_t row = batch->n_seqs++;
    assert(row < b->max_seqs && it->n <= b->max_tokens - batch->n_tokens);
    rose_batch_copy_ids(b->tokens + batch->n_tokens, r, it->pos, it->n);
    b->seq_first[row] = batch->n_tokens;
    b->seq_pos[row] = it->pos;
    update_table(b, row, it);
    batch->n_tokens += it->n;
    b->seq_first[row + 1] = batch->n_tokens;
    if (!it->sample) return;
    uint32_t k = batch->n_outputs++;
    b->out_row[k] = batch->n_tokens - 1;
    b->out_pos[k] = it->pos + it->n;
    b->params[k] = r->sampling;
}
