/* backend/checks.c - see checks.h. */
#include "backend/checks.h"

#include <stdio.h>

#define MAX_KV_PAGES ((uint64_t)INT32_MAX)

enum {
    LEAST_CONTEXT = 256, /* tokens; a shorter context is of no use */
    BUSY_TOKENS = 2048,  /* of ROSE_STEP_AUTO: tokens of a step */
    MOST_TOKENS = 8192,  /* as vLLM has them by default */
    SCRATCH_SHARE = 16   /* of the memory beside the weights */
};

/* ---- the batch of a step ---- */

/* No early exit, so that the compiler vectorises the loop. */
static bool ids_fit(const uint32_t *ids, uint32_t n, uint32_t vocab)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] > largest) largest = ids[i];
    return largest < vocab;
}

/* The ids of bias and of seen are distinct, so there are at most vocab of each. */
static bool rules_fit(const rose_output_rules *r, uint32_t vocab)
{
    return (r->score_id < vocab || r->score_id == ROSE_TOKEN_NONE) &&
           r->n_top <= ROSE_MAX_TOP_LOGPROBS && r->n_top <= vocab && r->n_bias <= vocab &&
           r->n_seen <= vocab && ids_fit(r->allowed, r->n_allowed, vocab) &&
           ids_fit(r->banned, r->n_banned, vocab) && ids_fit(r->bias_ids, r->n_bias, vocab) &&
           ids_fit(r->seen_ids, r->n_seen, vocab);
}

rose_batch_seq rose_batch_next(const rose_batch *b, uint32_t *i)
{
    rose_batch_seq whole = b->seqs[(*i)++];
    for (; *i < b->n_seqs; (*i)++) {
        const rose_batch_seq *q = &b->seqs[*i];
        if (q->table[0] != whole.table[0] || q->pos != whole.pos + whole.n) break;
        whole.n += q->n;
    }
    return whole;
}

bool rose_batch_has_rules(const rose_batch *b)
{
    for (uint32_t i = 0; i < b->n_outputs; i++)
        if (b->outs[i].rules != NULL) return true;
    return false;
}

bool rose_batch_has_sums(const rose_batch *b)
{
    for (uint32_t i = 0; i < b->n_outputs; i++)
        if (b->outs[i].sum != NULL) return true;
    return false;
}

bool rose_batch_needs_logits(const rose_batch *b, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        if (b->outs[i].sum == NULL) return true;
    return false;
}

bool rose_rules_change(const rose_output_rules *r)
{
    return r->mask != NULL || r->n_allowed > 0 || r->n_banned > 0 || r->n_bias > 0 || r->n_seen > 0;
}

static rose_status check_outputs(const rose_batch *b, uint32_t vocab, rose_err *err)
{
    uint32_t n_sums = 0;
    for (uint32_t i = 0; i < b->n_outputs; i++) {
        const rose_batch_out *o = &b->outs[i];
        if (o->row >= b->n_tokens)
            return rose_fail(err, ROSE_E_INVAL, "step: output %u of row %u, %u rows", i, o->row,
                             b->n_tokens);
        if (o->sum != NULL && (i == 0 || o->sum != o[-1].sum)) n_sums++;
        if (n_sums > b->n_seqs || (o->sum != NULL && o->rules != NULL))
            return rose_fail(err, ROSE_E_INVAL, "step: output %u has a state and %s", i,
                             o->rules != NULL ? "rules" : "more sums than sequences");
        if (o->rules != NULL && !rules_fit(o->rules, vocab))
            return rose_fail(err, ROSE_E_INVAL, "step: output %u has rules outside the vocabulary",
                             i);
    }
    return ROSE_OK;
}

/* first: the row after those of the sequences before. */
static rose_status check_sequence(const rose_batch *b, const rose_memory_plan *p, uint32_t i,
                                  uint32_t first, rose_err *err)
{
    const rose_batch_seq *s = &b->seqs[i];
    const bool gap = i > 0 && s->table[0] == s[-1].table[0] && s->pos != s[-1].pos + s[-1].n;
    if (gap || s->first != first || s->n == 0 || s->n > b->n_tokens - first ||
        s->pos > p->max_model_len || s->n > p->max_model_len - s->pos || s->adapter != 0)
        return rose_fail(err, ROSE_E_INVAL,
                         "step: sequence %u has %u rows from row %u, position %u, adapter %u", i,
                         s->n, s->first, s->pos, s->adapter);
    const uint32_t n_pages = (s->pos + s->n - 1) / ROSE_KV_PAGE_TOKENS + 1;
    for (uint32_t k = 0; k < p->n_pools; k++)
        for (uint32_t j = 0; j < n_pages; j++)
            if (s->table[k][j] >= p->pools[k].n_blocks)
                return rose_fail(err, ROSE_E_INVAL, "step: sequence %u has page %u, pool %u has %u",
                                 i, s->table[k][j], k, p->pools[k].n_blocks);
    return ROSE_OK;
}

rose_status rose_backend_check_batch(const rose_batch *b, const rose_memory_plan *p, uint32_t vocab,
                                     uint32_t n_before, rose_err *err)
{
    uint32_t first = 0;
    if (b->n_seqs == 0 || b->n_seqs > p->max_seqs || b->n_tokens == 0 ||
        b->n_tokens > p->max_step_tokens || b->n_outputs > p->max_step_tokens)
        return rose_fail(err, ROSE_E_INVAL, "step of %u sequences, %u tokens, %u outputs",
                         b->n_seqs, b->n_tokens, b->n_outputs);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const rose_status st = check_sequence(b, p, i, first, err);
        if (st != ROSE_OK) return st;
        first += b->seqs[i].n;
    }
    if (first != b->n_tokens)
        return rose_fail(err, ROSE_E_INVAL, "step of %u tokens, whose sequences have %u",
                         b->n_tokens, first);
    /* for an id below ROSE_TOKEN_OUTPUT, the subtraction wraps to a large number */
    for (uint32_t i = 0; i < b->n_tokens; i++)
        if (b->tokens[i] >= vocab && b->tokens[i] - ROSE_TOKEN_OUTPUT >= n_before)
            return rose_fail(err, ROSE_E_INVAL, "step: token id %u, vocabulary of %u", b->tokens[i],
                             vocab);
    return check_outputs(b, vocab, err);
}

/* ---- the plan ---- */

rose_status rose_backend_check_opts(const rose_backend_opts *o, const rose_arch *a,
                                    rose_memory_plan *p, rose_err *err)
{
    enum { MAX_SEQS = 4096, MAX_STEP_TOKENS = 1 << 20 };
    if (o->max_seqs == 0 || o->max_seqs > MAX_SEQS)
        return rose_fail(err, ROSE_E_INVAL, "max-num-seqs %u is not in 1 .. %d", o->max_seqs,
                         MAX_SEQS);
    if (o->max_step_tokens < o->max_seqs || o->max_step_tokens > MAX_STEP_TOKENS)
        return rose_fail(err, ROSE_E_INVAL,
                         "max-num-batched-tokens %u is not in max-num-seqs (%u) .. %d",
                         o->max_step_tokens, o->max_seqs, MAX_STEP_TOKENS);
    if (o->max_model_len > a->max_positions)
        return rose_fail(err, ROSE_E_INVAL,
                         "max-model-len %u: the model has %u positions; give at most %u, or leave "
                         "the option out",
                         o->max_model_len, a->max_positions, a->max_positions);
    if (o->max_model_len == 1)
        return rose_fail(err, ROSE_E_INVAL,
                         "max-model-len 1 has no room for a prompt and a token: at least 2");
    p->max_seqs = o->max_seqs;
    p->max_step_tokens = o->max_step_tokens;
    p->max_model_len = o->max_model_len > 0 ? o->max_model_len : a->max_positions;
    return ROSE_OK;
}

/* Tells whether the scratch memory is small beside what the weights leave. */
static bool is_light(const rose_memory_plan *p)
{
    const uint64_t other = p->weights + p->graphs;
    return p->available == 0 ||
           (p->available > other && p->scratch <= (p->available - other) / SCRATCH_SHARE);
}

rose_status rose_backend_plan_steps(rose_plan_fn *plan, bool by_default, const rose_model *m,
                                    const rose_backend_opts *o, rose_memory_plan *out,
                                    rose_err *err)
{
    const uint32_t busy = o->max_seqs > BUSY_TOKENS ? o->max_seqs : BUSY_TOKENS;
    rose_backend_opts with = *o;
    rose_status st;
    if (o->max_step_tokens == 0 && !by_default) with.max_step_tokens = busy;
    if (with.max_step_tokens != 0 && with.max_step_tokens != ROSE_STEP_AUTO)
        return plan(m, &with, out, err);
    with.max_step_tokens = MOST_TOKENS;
    while ((st = plan(m, &with, out, err)) != ROSE_OK || !is_light(out)) {
        if (with.max_step_tokens / 2 < busy) break;
        with.max_step_tokens /= 2;
    }
    if (st == ROSE_OK) out->busy_step_tokens = busy;
    return st;
}

uint64_t rose_backend_context_pages(const rose_memory_plan *p)
{
    return ((uint64_t)p->max_model_len + ROSE_KV_PAGE_TOKENS - 1) / ROSE_KV_PAGE_TOKENS;
}

void rose_backend_plan_pools(const rose_arch *a, rose_block_bytes *bytes, rose_memory_plan *p)
{
    rose_pool_spec specs[ROSE_MAX_POOLS];
    p->n_pools = rose_arch_pools(a, specs, NULL);
    for (uint32_t i = 0; i < p->n_pools; i++)
        p->pools[i] = (rose_pool){.block_bytes = bytes(a, specs[i].n_layers, p),
                                  .n_layers = specs[i].n_layers,
                                  .tokens = ROSE_KV_PAGE_TOKENS,
                                  .window = specs[i].window};
}

static uint64_t pages_for(const rose_memory_plan *p, uint64_t positions)
{
    const uint64_t most = rose_backend_context_pages(p),
                   n = (positions + ROSE_KV_PAGE_TOKENS - 1) / ROSE_KV_PAGE_TOKENS;
    return n < most ? n : most;
}

/* Pages of pool k that one sequence of the longest context takes at most. */
static uint64_t least_pages(const rose_memory_plan *p, uint32_t k)
{
    const uint64_t window = p->pools[k].window;
    if (window == 0) return rose_backend_context_pages(p);
    return pages_for(p, window + p->max_step_tokens + ROSE_KV_KEEP);
}

/* Pages of pool k that a sequence takes whose context is four times the longest window. */
static uint64_t usual_pages(const rose_memory_plan *p, uint32_t k)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < p->n_pools; i++)
        if (p->pools[i].window > longest) longest = p->pools[i].window;
    const uint64_t window = p->pools[k].window, all = pages_for(p, 4 * longest);
    const uint64_t n = pages_for(p, window + ROSE_KV_KEEP);
    return window == 0 || n > all ? all : n;
}

static uint64_t pool_pages(const rose_memory_plan *p, uint32_t k, uint64_t first)
{
    if (k == 0) return first;
    const uint64_t usual = usual_pages(p, 0), least = least_pages(p, k);
    const uint64_t n = (first * usual_pages(p, k) + usual - 1) / usual;
    return n > least ? n : least;
}

uint64_t rose_backend_least_pages(const rose_memory_plan *p)
{
    return least_pages(p, 0);
}

uint64_t rose_backend_kv_bytes(const rose_memory_plan *p, uint64_t pages)
{
    uint64_t bytes = 0;
    for (uint32_t k = 0; k < p->n_pools; k++)
        bytes += p->pools[k].block_bytes * pool_pages(p, k, pages);
    return bytes;
}

uint64_t rose_backend_pages_in(const rose_memory_plan *p, uint64_t bytes)
{
    uint64_t fit = 0, end = bytes / p->pools[0].block_bytes + 1;
    if (end > MAX_KV_PAGES + 1) end = MAX_KV_PAGES + 1;
    while (fit + 1 < end) {
        const uint64_t half = fit + (end - fit) / 2;
        if (rose_backend_kv_bytes(p, half) <= bytes)
            fit = half;
        else
            end = half;
    }
    return fit;
}

uint32_t rose_backend_least_blocks(const rose_memory_plan *p)
{
    uint32_t least = p->pools[0].n_blocks;
    for (uint32_t i = 1; i < p->n_pools; i++)
        if (p->pools[i].n_blocks < least) least = p->pools[i].n_blocks;
    return least;
}

rose_status rose_backend_plan_pages(const rose_backend_opts *o, uint64_t default_pages,
                                    rose_memory_plan *p, rose_err *err)
{
    const uint64_t least = rose_backend_least_pages(p);
    uint64_t pages = default_pages;

    if (o->kv_bytes > 0) pages = rose_backend_pages_in(p, o->kv_bytes);
    if (o->kv_pages > 0) pages = o->kv_pages;
    if (pages > MAX_KV_PAGES) pages = MAX_KV_PAGES;
    if (pages < least)
        return rose_fail(err, ROSE_E_INVAL,
                         "kv pages: %llu hold %llu tokens, less than one context of %u, which "
                         "keeps %llu pages (%llu MiB in all); raise num-kv-pages, kv-cache-memory "
                         "or (cuda) gpu-memory-utilization, or lower max-model-len",
                         (unsigned long long)pages, (unsigned long long)pages * ROSE_KV_PAGE_TOKENS,
                         p->max_model_len, (unsigned long long)least,
                         (unsigned long long)(rose_backend_kv_bytes(p, least) >> 20));
    for (uint32_t i = 0; i < p->n_pools; i++)
        p->pools[i].n_blocks = (uint32_t)pool_pages(p, i, pages);
    p->kv = rose_backend_kv_bytes(p, pages);
    return ROSE_OK;
}

bool rose_backend_kv_advice(const rose_memory_plan *p, char out[ROSE_KV_ADVICE])
{
    const uint64_t other = p->weights + p->scratch + p->graphs;
    const uint64_t pages =
        other < p->available ? rose_backend_pages_in(p, p->available - other) : 0;
    uint64_t tokens = pages * ROSE_KV_PAGE_TOKENS;
    if (pages >= rose_backend_least_pages(p)) {
        snprintf(out, ROSE_KV_ADVICE,
                 "lower num-kv-pages, kv-cache-memory or (cuda) gpu-memory-utilization: %llu pages "
                 "(%llu MiB) fit",
                 (unsigned long long)pages,
                 (unsigned long long)(rose_backend_kv_bytes(p, pages) >> 20));
        return true;
    }
    if (tokens > 1024) tokens -= tokens % 1024; /* free memory varies from start to start */
    if (tokens < LEAST_CONTEXT) return false;
    snprintf(out, ROSE_KV_ADVICE, "lower max-model-len: %llu tokens fit",
             (unsigned long long)tokens);
    return true;
}
