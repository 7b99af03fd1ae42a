/* A backend whose "model" is a hash: the state after a token is mix(state before, id, position),
 * kept per position in the KV pages, and the next id is a function of the last state, the seed and
 * the position. It distrusts every batch: structure, page ids, positions, and that what it reads
 * from the pages is what this very sequence wrote there, in each pool (fake_pools). One instance
 * per process.
 *
 * fake_ahead_ops is the same, but lazy: a step is computed when it is collected, from a copy of the
 * batch, after the next one was accepted; so that everything that is touched too early shows. */
#ifndef TESTS_ENGINE_FAKE_BACKEND_H
#define TESTS_ENGINE_FAKE_BACKEND_H

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/batch_copy.h"
#include "engine/engine.h"

enum { FAKE_VOCAB = 97, FAKE_EOS = 5, FAKE_EOS2 = 77 };
#define FAKE_NAN_SEED UINT64_C(0xbad0bad0)
enum { FAKE_NAN_AFTER = 3 }; /* a request with that seed gets its 4th token as NONE */

typedef struct fake_cell {
    uint64_t state; /* 0 = never written */
    uint32_t pos, id;
} fake_cell;

typedef struct fake_pool {
    fake_cell *cells;
    uint64_t *page_step; /* the step that last wrote the page */
    uint32_t *page_seq;  /* and its row in that batch */
    uint64_t *read_step; /* the step that last read the page */
    uint32_t *read_seq;  /* and a row that did */
} fake_pool;

/* The pools of the plan; n_blocks 0 = o->kv_pages. fake_reset leaves them. */
static rose_pool fake_pools[ROSE_MAX_POOLS];
static uint32_t fake_n_pools = 1;

typedef struct fake_backend {
    /* set by the test before open */
    uint64_t fail_step, fail_collect; /* this step fails; 0 = never */
    bool fail_plan, fail_open;
    unsigned delay_us;
    /* shared */
    _Atomic uint64_t gate;    /* > 0: steps from this one on wait (lazy: their collection does) */
    _Atomic uint64_t n_steps; /* steps that began */
    _Atomic int watch_fd;     /* lazy, above 0: n_told counts the steps that begin while it is */
    _Atomic uint32_t n_told;  /* readable */
    _Atomic uint64_t n_bad;   /* checks that failed */
    _Atomic uint64_t rows;
    _Atomic uint32_t widest;  /* most sequences in a step */
    _Atomic uint32_t longest; /* most rows */
    _Atomic int opened, closed;
    /* engine thread */
    rose_memory_plan plan;
    fake_pool pools[ROSE_MAX_POOLS];
    /* by step % 2 */
    uint32_t *ids[2];
    uint32_t n_outputs[2];
    batch_copy copies[2];
    uint32_t *given;      /* the ids of the step collected last, valid until the next step */
    uint64_t n_collected; /* steps */
    bool collect_failed;
    _Atomic uint64_t n_ahead, n_refs; /* steps accepted with one in flight; references in them */
    _Atomic uint64_t n_masked;        /* outputs with a mask in the steps that were in flight */
} fake_backend;

static fake_backend fake;

static uint64_t fake_mix(uint64_t h, uint64_t a, uint64_t b)
{
    h ^= a * UINT64_C(0x9E3779B97F4A7C15) + (b << 32) + UINT64_C(0x632BE59BD9B4E019);
    h ^= h >> 29;
    h *= UINT64_C(0xBF58476D1CE4E5B9);
    h ^= h >> 32;
    return h | 1; /* never 0 */
}

static uint32_t fake_sample(uint64_t state, uint64_t seed, uint32_t out_pos)
{
    return (uint32_t)(fake_mix(state, seed, out_pos) >> 8) % FAKE_VOCAB;
}

/* The pure function: what a request must give. Returns the number of tokens. */
static uint32_t fake_expect(const uint32_t *prompt, uint32_t n, uint32_t max_tokens, uint64_t seed,
                            bool ignore_eos, uint32_t *out, rose_finish *finish)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < n; i++)
        state = fake_mix(state, prompt[i], i);
    for (uint32_t k = 0; k < max_tokens; k++) {
        if (seed == FAKE_NAN_SEED && k == FAKE_NAN_AFTER) {
            *finish = ROSE_FINISH_ERROR;
            return k;
        }
        out[k] = fake_sample(state, seed, n + k);
        if (!ignore_eos && (out[k] == FAKE_EOS || out[k] == FAKE_EOS2)) {
            *finish = ROSE_FINISH_STOP;
            return k + 1;
        }
        state = fake_mix(state, out[k], n + k);
    }
    *finish = ROSE_FINISH_LENGTH;
    return max_tokens;
}

static void fake_check(bool ok, const char *what)
{
    if (ok) return;
    if (atomic_fetch_add(&fake.n_bad, 1) < 5) fprintf(stderr, "fake backend: %s\n", what);
}

static rose_status fake_plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                             rose_err *err)
{
    if (fake.fail_plan) return rose_fail(err, ROSE_E_NOMEM, "planned to fail");
    *out = (rose_memory_plan){.dtype = ROSE_COMPUTE_F32,
                              .max_seqs = o->max_seqs,
                              .max_step_tokens = o->max_step_tokens,
                              .max_model_len =
                                  o->max_model_len ? o->max_model_len : m->arch.max_positions,
                              .n_threads = 1,
                              .n_pools = fake_n_pools};
    if (o->max_step_tokens == ROSE_STEP_AUTO) {
        out->max_step_tokens = 127;
        out->busy_step_tokens = 16;
    }
    for (uint32_t k = 0; k < fake_n_pools; k++) {
        out->pools[k] = fake_pools[k];
        out->pools[k].tokens = ROSE_KV_PAGE_TOKENS;
        if (fake_pools[k].n_blocks == 0) out->pools[k].n_blocks = o->kv_pages;
    }
    return ROSE_OK;
}

static rose_status fake_open(void **ctx, const rose_model *m, const rose_backend_opts *o,
                             const rose_memory_plan *p, rose_err *err)
{
    (void)m, (void)o;
    *ctx = &fake;
    atomic_fetch_add(&fake.opened, 1);
    if (fake.fail_open) return rose_fail(err, ROSE_E_BACKEND, "opened to fail");
    fake.plan = *p;
    for (uint32_t k = 0; k < p->n_pools; k++) {
        const size_t n = p->pools[k].n_blocks;
        fake_pool *l = &fake.pools[k];
        l->cells = calloc(n * ROSE_KV_PAGE_TOKENS, sizeof *l->cells);
        l->page_step = calloc(n, sizeof *l->page_step);
        l->page_seq = calloc(n, sizeof *l->page_seq);
        l->read_step = calloc(n, sizeof *l->read_step);
        l->read_seq = calloc(n, sizeof *l->read_seq);
    }
    fake.given = calloc(p->max_step_tokens, sizeof *fake.given);
    for (int i = 0; i < 2; i++) {
        fake.ids[i] = calloc(p->max_step_tokens, sizeof *fake.ids[i]);
        batch_copy_create(&fake.copies[i], p);
    }
    return ROSE_OK;
}

static uint32_t fake_page(const rose_batch_seq *q, uint32_t k, uint32_t pos)
{
    const uint32_t page = q->table[k][pos / ROSE_KV_PAGE_TOKENS];
    const bool ok = page < fake.plan.pools[k].n_blocks;
    fake_check(ok, "a page id out of range");
    return ok ? page : 0;
}

static fake_cell *fake_at(const rose_batch_seq *q, uint32_t k, uint32_t pos)
{
    const size_t page = fake_page(q, k, pos);
    return &fake.pools[k].cells[page * ROSE_KV_PAGE_TOKENS + pos % ROSE_KV_PAGE_TOKENS];
}

/* The sequences of a step run side by side: none may read what another writes in it. */
static void fake_read(const rose_batch_seq *q, uint32_t k, uint32_t from, uint32_t s, uint64_t step)
{
    fake_pool *l = &fake.pools[k];
    for (uint32_t p = from; p < q->pos; p += ROSE_KV_PAGE_TOKENS) {
        const uint32_t page = fake_page(q, k, p);
        fake_check(l->page_step[page] != step || l->page_seq[page] == s,
                   "a page is read in the step in which another sequence writes it");
        if (l->read_step[page] == step && l->read_seq[page] != s) continue; /* keep a first */
        l->read_step[page] = step;
        l->read_seq[page] = s;
    }
}

/* Walk the context that the pool keeps: every cell was written, in place, by this sequence. */
static void fake_walk(const rose_batch_seq *q, uint32_t k, uint32_t from)
{
    uint64_t state = from > 0 && from < q->pos ? fake_at(q, k, from)->state : 1;
    for (uint32_t p = from; p < q->pos; p++) {
        const fake_cell *c = fake_at(q, k, p);
        fake_check(c->state != 0 && c->pos == p, "a cell of the context was never written");
        fake_check(c->id < FAKE_VOCAB, "a cell of the context is of a token that there is not");
        if (p > from || from == 0) state = fake_mix(state, c->id, p);
        fake_check(c->state == state, "a cell of the context is another sequence's");
        fake_check(
            c->state == fake_at(q, fake.plan.n_pools - 1, p)->state || k > 0 ||
                p < rose_pool_keeps_from(fake.plan.pools[fake.plan.n_pools - 1].window, q->pos),
            "two pools disagree");
    }
}

static uint32_t fake_id(uint32_t token, uint64_t step)
{
    if (token < FAKE_VOCAB) return token;
    uint32_t out = token & ~ROSE_TOKEN_OUTPUT, before = (step - 1) % 2;
    bool ok = token >= ROSE_TOKEN_OUTPUT && out < fake.n_outputs[before];
    fake_check(ok, "an id out of range");
    return ok ? fake.ids[before][out] : 0;
}

static void fake_rows(const rose_batch *b, uint32_t s, uint64_t step)
{
    const rose_batch_seq *q = &b->seqs[s];
    uint32_t pos = q->pos;
    if (q->n == 0 || q->first + q->n > b->n_tokens) {
        fake_check(false, "rows of a sequence are not a range");
        return;
    }
    for (uint32_t k = 0; k < fake.plan.n_pools; k++) {
        const uint32_t from = rose_pool_keeps_from(fake.plan.pools[k].window, pos);
        fake_walk(q, k, from);
        fake_read(q, k, from, s, step);
    }
    for (uint32_t row = q->first; row < q->first + q->n; row++, pos++) {
        if (pos >= fake.plan.max_model_len) {
            fake_check(false, "a position beyond the context");
            return;
        }
        for (uint32_t k = 0; k < fake.plan.n_pools; k++) {
            fake_pool *l = &fake.pools[k];
            const uint32_t page = fake_page(q, k, pos), id = fake_id(b->tokens[row], step);
            const uint64_t before = pos == 0 ? 1 : fake_at(q, k, pos - 1)->state;
            fake_check(l->page_step[page] != step || l->page_seq[page] == s,
                       "two sequences write a page in one step");
            fake_check(l->read_step[page] != step || l->read_seq[page] == s,
                       "a page is written in the step in which another sequence reads it");
            l->page_step[page] = step;
            l->page_seq[page] = s;
            *fake_at(q, k, pos) = (fake_cell){fake_mix(before, id, pos), pos, id};
        }
    }
}

/* Rules: every word of them takes part in the choice; the report tells the choice. */
static uint64_t fake_rules(const rose_output_rules *r)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < r->n_banned; i++)
        h = fake_mix(h, r->banned[i], 1);
    for (uint32_t i = 0; i < r->n_seen; i++)
        h = fake_mix(h, r->seen_ids[i], r->seen_counts[i]);
    return h;
}

/* The allowed id that the hash h names. */
static uint32_t fake_masked(const uint32_t *mask, uint64_t h)
{
    uint32_t n = 0, k;
    for (uint32_t id = 0; id < FAKE_VOCAB; id++)
        n += mask[id / 32] >> id % 32 & 1;
    fake_check(mask[FAKE_VOCAB / 32] >> FAKE_VOCAB % 32 == 0, "bits after the vocabulary");
    if (n == 0) return ROSE_TOKEN_NONE;
    k = (uint32_t)(h >> 8) % n;
    for (uint32_t id = 0;; id++)
        if ((mask[id / 32] >> id % 32 & 1) != 0 && k-- == 0) return id;
}

static void fake_output(const rose_batch *b, uint32_t s, uint32_t k, uint32_t *id)
{
    const rose_batch_out *o = &b->outs[k];
    const rose_batch_seq *q = &b->seqs[s];
    const rose_output_rules *rules = o->rules;
    bool scores = rules != NULL && rules->score_id != ROSE_TOKEN_NONE;
    if (s == b->n_seqs || o->row < q->first) {
        fake_check(false, "an output of no row");
        *id = ROSE_TOKEN_NONE;
        return;
    }
    uint32_t pos = q->pos + o->row - q->first;
    fake_check(o->pos == pos + 1, "the position of an output");
    uint64_t seed = o->params.seed, n_prompt = o->params.top_k;
    uint64_t state = fake_at(q, 0, pos)->state;
    *id = seed == FAKE_NAN_SEED && pos + 1 - n_prompt == FAKE_NAN_AFTER
              ? ROSE_TOKEN_NONE
              : fake_sample(state, seed, o->pos);
    if (rules == NULL) return;
    *id = scores ? rules->score_id : fake_sample(state, seed ^ fake_rules(rules), o->pos);
    if (rules->mask != NULL)
        *id = fake_masked(rules->mask, fake_mix(state, seed ^ fake_rules(rules), o->pos));
    if (rules->report != NULL)
        *rules->report = (rose_logprob){.id = *id, .rank = 1, .logprob = (float)(state >> 40)};
}

static void fake_compute(const rose_batch *b, uint64_t step)
{
    uint32_t s = 0;
    fake.n_outputs[step % 2] = b->n_outputs;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        fake_rows(b, i, step);
    for (uint32_t k = 0; k < b->n_outputs; k++) {
        while (s < b->n_seqs && b->seqs[s].first + b->seqs[s].n <= b->outs[k].row)
            s++;
        fake_output(b, s, k, &fake.ids[step % 2][k]);
    }
}

/* A reference is the last row of its sequence, which the step in flight samples. */
static void fake_references(const rose_batch *b, uint64_t step, bool ahead)
{
    const rose_batch *before = &fake.copies[(step - 1) % 2].b;
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        uint32_t end = b->seqs[s].first + b->seqs[s].n, pos = b->seqs[s].pos;
        for (uint32_t row = b->seqs[s].first; row < end; row++, pos++) {
            uint32_t token = b->tokens[row], out = token & ~ROSE_TOKEN_OUTPUT;
            if (token < FAKE_VOCAB) continue;
            fake_check(ahead && token >= ROSE_TOKEN_OUTPUT, "an id out of range");
            if (!ahead) continue;
            fake_check(row == end - 1, "a reference that is not the last row");
            fake_check(out < before->n_outputs && before->outs[out].pos == pos,
                       "a reference to what is not sampled for it");
            atomic_fetch_add(&fake.n_refs, 1);
        }
    }
}

static bool fake_fits(const rose_batch *b)
{
    bool ok = b->n_seqs >= 1 && b->n_seqs <= fake.plan.max_seqs && b->n_tokens >= 1 &&
              b->n_tokens <= fake.plan.max_step_tokens && b->n_outputs <= fake.plan.max_step_tokens;
    uint32_t n_rows = 0;
    for (uint32_t s = 0; ok && s < b->n_seqs; s++) {
        ok = b->seqs[s].first == n_rows;
        n_rows += b->seqs[s].n;
    }
    ok = ok && n_rows == b->n_tokens;
    fake_check(ok, "a batch outside the plan");
    return ok;
}

static rose_status fake_accept(const rose_batch *b, uint64_t step, bool lazy, rose_err *err)
{
    uint64_t in_flight = step - 1 - fake.n_collected;
    fake_check(in_flight <= lazy, "a step before the last one was collected");
    if (step == fake.fail_step) return rose_fail(err, ROSE_E_BACKEND, "step %d fails", (int)step);
    if (!fake_fits(b)) return rose_fail(err, ROSE_E_BACKEND, "a batch outside the plan");
    if (in_flight > 0) {
        atomic_fetch_add(&fake.n_ahead, 1);
        const rose_batch *before = &fake.copies[(step - 1) % 2].b;
        for (uint32_t k = 0; k < before->n_outputs; k++) {
            const rose_output_rules *r = before->outs[k].rules;
            fake_check(r == NULL || r->mask != NULL, "a step ahead of one with rules");
            atomic_fetch_add(&fake.n_masked, r != NULL);
        }
    }
    fake_references(b, step, in_flight > 0);
    memset(fake.given, 0x7f, fake.plan.max_step_tokens * sizeof *fake.given);
    batch_copy_take(&fake.copies[step % 2], b);
    atomic_fetch_add(&fake.rows, b->n_tokens);
    if (b->n_seqs > atomic_load(&fake.widest)) atomic_store(&fake.widest, b->n_seqs);
    if (b->n_tokens > atomic_load(&fake.longest)) atomic_store(&fake.longest, b->n_tokens);
    return ROSE_OK;
}

static void fake_wait(uint64_t step)
{
    uint64_t gate;
    while ((gate = atomic_load(&fake.gate)) > 0 && step >= gate)
        usleep(50);
    if (fake.delay_us > 0) usleep(fake.delay_us);
}

static rose_status fake_step(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    uint64_t step = atomic_fetch_add(&fake.n_steps, 1) + 1;
    fake_check(ctx == &fake, "ctx");
    fake_wait(step);
    rose_status st = fake_accept(b, step, false, err);
    if (st == ROSE_OK) fake_compute(b, step);
    *ticket = step;
    return st;
}

static rose_status fake_step_ahead(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    uint64_t step = atomic_fetch_add(&fake.n_steps, 1) + 1;
    struct pollfd p = {.fd = atomic_load(&fake.watch_fd), .events = POLLIN};
    if (p.fd > 0 && poll(&p, 1, 0) > 0) atomic_fetch_add(&fake.n_told, 1);
    fake_check(ctx == &fake, "ctx");
    *ticket = step;
    return fake_accept(b, step, true, err);
}

static rose_status fake_collect(void *ctx, uint64_t ticket, rose_step_result *out, rose_err *err)
{
    (void)ctx;
    fake_check(!fake.collect_failed, "a collect after a failure");
    fake.collect_failed = ticket == fake.fail_collect;
    if (fake.collect_failed) return rose_fail(err, ROSE_E_BACKEND, "collect fails");
    fake_check(ticket == ++fake.n_collected && ticket <= atomic_load(&fake.n_steps), "ticket");
    out->n_outputs = fake.n_outputs[ticket % 2];
    out->ids = memcpy(fake.given, fake.ids[ticket % 2], out->n_outputs * sizeof *fake.given);
    return ROSE_OK;
}

static rose_status fake_collect_ahead(void *ctx, uint64_t ticket, rose_step_result *out,
                                      rose_err *err)
{
    fake_wait(ticket);
    if (ticket != fake.fail_collect) fake_compute(&fake.copies[ticket % 2].b, ticket);
    return fake_collect(ctx, ticket, out, err);
}

static void fake_close(void *ctx)
{
    if (ctx == NULL) return;
    atomic_fetch_add(&fake.closed, 1);
    for (uint32_t k = 0; k < ROSE_MAX_POOLS; k++) {
        free(fake.pools[k].cells);
        free(fake.pools[k].page_step);
        free(fake.pools[k].page_seq);
        free(fake.pools[k].read_step);
        free(fake.pools[k].read_seq);
        fake.pools[k] = (fake_pool){0};
    }
    free(fake.given);
    fake.given = NULL;
    for (int i = 0; i < 2; i++) {
        free(fake.ids[i]);
        batch_copy_destroy(&fake.copies[i]);
        fake.ids[i] = NULL;
    }
}

static inline void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
}

static const rose_backend_ops fake_ops = {.name = "fake",
                                          .plan = fake_plan,
                                          .open = fake_open,
                                          .step = fake_step,
                                          .collect = fake_collect,
                                          .close = fake_close};

static const rose_backend_ops fake_ahead_ops = {.name = "fake, ahead",
                                                .caps = ROSE_CAP_AHEAD,
                                                .plan = fake_plan,
                                                .open = fake_open,
                                                .step = fake_step_ahead,
                                                .collect = fake_collect_ahead,
                                                .close = fake_close};

#endif
