/* engine/batch.c - see batch_internal.h. */
#include "engine/batch_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool rose_flight_create(rose_flight *f, uint32_t max_seqs)
{
    *f = (rose_flight){.samples = calloc(max_seqs, sizeof *f->samples)};
    return f->samples != NULL;
}

void rose_flight_drop(rose_flight *f)
{
    for (uint32_t i = 0; i < f->n_samples; i++)
        if (f->samples[i].held != NULL) rose_request_unref(f->samples[i].held);
    f->n_samples = 0;
}

void rose_flight_destroy(rose_flight *f)
{
    rose_flight_drop(f);
    free(f->samples);
    f->samples = NULL;
}

bool rose_batch_create(rose_batch_builder *b, uint32_t max_seqs, uint32_t max_tokens)
{
    memset(b, 0, sizeof *b);
    b->max_seqs = max_seqs;
    b->max_tokens = max_tokens;
    b->tokens = calloc(max_tokens, sizeof *b->tokens);
    b->seqs = calloc(max_seqs, sizeof *b->seqs);
    b->outs = calloc(max_tokens, sizeof *b->outs);
    b->rules = calloc((size_t)2 * max_tokens, sizeof *b->rules);
    b->batch = (rose_batch){.tokens = b->tokens, .seqs = b->seqs, .outs = b->outs};
    return b->tokens != NULL && b->seqs != NULL && b->outs != NULL && b->rules != NULL;
}

void rose_batch_destroy(rose_batch_builder *b)
{
    free(b->tokens);
    free(b->seqs);
    free(b->outs);
    free(b->rules);
    memset(b, 0, sizeof *b);
}

void rose_batch_reset(rose_batch_builder *b, rose_flight *f)
{
    b->flight = f;
    b->n_steps++;
    f->n_samples = 0;
    f->number = b->n_steps;
    b->batch.n_seqs = b->batch.n_tokens = b->batch.n_outputs = 0;
    b->n_waiting = 0;
    b->bound = false;
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

static uint32_t add_output(rose_batch_builder *b, uint32_t row, uint32_t pos, const rose_request *r)
{
    uint32_t k = b->batch.n_outputs++;
    assert(k < b->max_tokens);
    b->outs[k] = (rose_batch_out){.row = row, .pos = pos, .params = r->sampling};
    return k;
}

static rose_output_rules *with_rules(rose_batch_builder *b, uint32_t k, const rose_request *r)
{
    rose_output_rules *rules = b->rules + (b->n_steps % 2) * b->max_tokens + k;
    b->outs[k].rules = rules;
    if (r->guided == NULL) b->bound = true;
    return rules;
}

/* Adds outputs that score the prompt's tokens at positions [it->pos + 1, end), unless these
 * scores were already reported. After a preemption a row may be computed again. */
static void add_scores(rose_batch_builder *b, const rose_sched_item *it, const rose_request *r,
                       uint32_t end)
{
    uint32_t first_row = b->batch.n_tokens - it->n;
    uint32_t pos = it->pos + 1 > r->rules->n_scored ? it->pos + 1 : r->rules->n_scored;
    for (; pos < end; pos++) {
        uint32_t k = add_output(b, first_row + (pos - 1 - it->pos), pos, r);
        rose_rules_score(r->rules, pos, r->prompt[pos], with_rules(b, k, r));
    }
}

/* Adds outputs for the states that the request pools, unless they are in the sum already. After a
 * preemption a row may be computed again. */
static void add_states(rose_batch_builder *b, const rose_sched_item *it, rose_request *r)
{
    uint32_t first_row = b->batch.n_tokens - it->n;
    uint32_t pos = it->pos > r->n_pooled ? it->pos : r->n_pooled;
    if (r->pool == ROSE_POOL_LAST) pos = r->n_prompt - 1;
    for (; pos < it->pos + it->n; pos++) {
        uint32_t k = add_output(b, first_row + (pos - it->pos), pos + 1, r);
        b->outs[k].sum = r->state;
        b->bound = true;
        r->n_pooled = pos + 1;
    }
}

/* The rows of an item whose ids are a guess: its last ones. */
static uint32_t n_guessed(const rose_sched_item *it)
{
    return it->n_outs > 0 ? it->n_outs - 1 : 0;
}

/* Adds the output that samples the token at position pos, after `depth` ids of a guess. */
static void add_sample(rose_batch_builder *b, uint32_t row, uint32_t pos, uint32_t depth,
                       const rose_request *r)
{
    const uint32_t k = add_output(b, row, pos, r);
    const bool act =
        r->rules != NULL && r->max_tokens > 0 && rose_rules_act(r->rules, pos - r->n_prompt);
    if (!act && r->guided == NULL) return;
    rose_output_rules *out = with_rules(b, k, r);
    assert(pos - r->n_prompt == r->n_generated + depth); /* nothing of it is in flight */
    *out = (rose_output_rules){.score_id = ROSE_TOKEN_NONE, .repetition = 1};
    if (act) rose_rules_next(r->rules, r->events, r->n_generated, depth, out);
    if (r->guided != NULL) out->mask = rose_guided_mask(r->guided, depth);
}

static void add_outputs(rose_batch_builder *b, const rose_sched_item *it, rose_request *r)
{
    const uint32_t n_guess = n_guessed(it);
    const uint32_t pos = it->pos + it->n - n_guess; /* what the last row with a known id predicts */
    bool scores = r->rules != NULL && r->rules->prompt_logprobs;
    /* A prompt that is only scored still ends in one output. If scores are wanted, that is the
     * score of its last token; otherwise a token is sampled and ignored. */
    if (scores) add_scores(b, it, r, pos < r->n_prompt ? pos + 1 : r->n_prompt);
    if (r->pool != ROSE_POOL_NONE) add_states(b, it, r);
    if (it->n_outs == 0) return;
    if (!(scores && pos < r->n_prompt) && r->pool == ROSE_POOL_NONE) {
        const uint32_t row = b->batch.n_tokens - it->n_outs;
        for (uint32_t i = 0; i <= n_guess; i++)
            add_sample(b, row + i, pos + i, i, r);
    }
    r->out = b->batch.n_outputs - 1 - n_guess;
    r->out_step = b->n_steps;
    b->flight->samples[b->flight->n_samples++] =
        (rose_flight_sample){.seq = it->seq,
                             .out = r->out,
                             .n = 1 + n_guess,
                             .number = r->number,
                             .held = r->guided != NULL ? r : NULL};
    b->n_waiting += r->guided != NULL || r->eager;
    if (r->guided == NULL) return;
    /* relaxed: r is an open request, whose consumer holds a reference */
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

/* All ids are known, or all but the last. The ids of a guess follow them. */
static void add_tokens(rose_batch_builder *b, const rose_sched_item *it, const rose_request *r)
{
    const uint32_t n_guess = n_guessed(it);
    uint32_t *to = b->tokens + b->batch.n_tokens, n = it->n - n_guess;
    memcpy(to + n, r->guess.ids, n_guess * sizeof *to);
    if (it->pos + n > r->n_prompt + r->n_generated) {
        assert(it->pos + n == r->n_prompt + r->n_generated + 1 && r->out_step + 1 == b->n_steps);
        to[--n] = ROSE_TOKEN_OUTPUT | r->out;
    }
    rose_batch_copy_ids(to, r, it->pos, n);
}

void rose_batch_add(rose_batch_builder *b, const rose_sched_item *it, rose_request *r)
{
    rose_batch *batch = &b->batch;
    uint32_t row = batch->n_seqs++;
    assert(row < b->max_seqs && it->n <= b->max_tokens - batch->n_tokens);
    add_tokens(b, it, r);
    b->seqs[row] = (rose_batch_seq){.first = batch->n_tokens, .n = it->n, .pos = it->pos};
    memcpy(b->seqs[row].table, it->table, sizeof it->table);
    batch->n_tokens += it->n;
    add_outputs(b, it, r);
}
