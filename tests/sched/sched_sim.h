/* A simulator that plays engine and backend for the scheduler. It keeps what every page holds (the
 * hash of all tokens up to and with each place), so that it knows whether a sequence reads what it
 * would have written itself; and after every step it checks every invariant that sched.h promises.
 * Prompts are drawn from a few families with common beginnings, so that prefixes meet. */
#ifndef TESTS_SCHED_SCHED_SIM_H
#define TESTS_SCHED_SCHED_SIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sched/sched.h"

static inline uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s >> 8;
}

static inline uint32_t rnd_in(uint64_t *s, uint32_t lo, uint32_t hi)
{
    return lo + (uint32_t)(rnd(s) % (hi - lo + 1));
}

static inline uint64_t test_seed(void)
{
    const char *t = getenv("ROSE_TEST_SEED");
    uint64_t seed = t != NULL ? strtoull(t, NULL, 0) : 20261121;
    static bool told;
    if (!told) printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)seed);
    told = true;
    return seed * 2 + 1;
}

static inline uint64_t sim_mix(uint64_t h, uint64_t a)
{
    h = (h ^ a) * UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

/* What the simulator is to produce besides the scheduler's options. */
typedef struct sim_load {
    uint32_t n_families; /* prompts are the beginning of one of these and then their own; 0: all
                            their own */
    uint32_t n_salts, n_priorities;
    uint32_t max_own;   /* tokens after the common beginning, and tokens of the output */
    uint32_t guided_in; /* 1 of this many sequences is guided; 0: none */
    uint32_t max_guess; /* guesses of up to this many tokens */
} sim_load;

enum { SIM_MAX_LEN = 256 };

typedef struct sim_seq {
    bool open, admitted, running, sampled_last, guided, held;
    uint32_t n_prompt, max_tokens, pos, n_sampled, n_peak;
    uint32_t n_guess; /* offered to the next plan */
    uint32_t n_right; /* of the guess that is being checked */
    uint64_t checked; /* the step that checks it; 0 = none */
    uint32_t alt;     /* its next position, unless it was preempted before the results */
    uint32_t ids[SIM_MAX_LEN];
    uint64_t hash[SIM_MAX_LEN]; /* of ids[0..i], salt and all */
    uint32_t n_known;
    uint64_t id, salt, arrival, key_time; /* id: order of arrival */
    int32_t priority;
    uint64_t last_step, waits_since, due_ns;
} sim_seq;

/* A clock: steps take exactly a + b * decodes + c * prompt rows. All 0: no clock, no goals. */
typedef struct sim_clock {
    uint64_t a_ns, b_ns, c_ns;
    uint64_t ttft_ns; /* goal; 0 = none. The goal between tokens is the scheduler's option */
} sim_clock;

typedef struct sim_pool {
    rose_kv_pages *pages;
    uint64_t *cells;      /* [pages][page_tokens] */
    uint64_t *owner_step; /* [pages] the step in which it is written */
    uint64_t *read_step;  /* [pages] the last step that reads it */
    uint32_t *holders;    /* [pages] sequences of this step that have it in their table */
} sim_pool;

typedef struct sim {
    rose_sched_opts o;
    sim_load load;
    sim_pool pools[ROSE_KV_MAX_POOLS];
    rose_sched *s;
    uint64_t rng, rng_families;
    sim_seq *seqs; /* [n] by handle */
    uint32_t n;
    uint64_t n_arrivals, step, n_finished, n_cancelled, n_full, n_tokens, n_cached, n_again;
    uint64_t longest_wait, last_admitted;
    sim_clock clock;
    uint64_t now_ns, n_late, n_in_time, n_observed, n_tight, n_tried, n_right;
    uint64_t n_long[2]; /* steps beyond busy_step_tokens, without and with decodes */
} sim;

static inline void sim_ids(void *user, uint32_t seq, uint32_t pos, uint32_t n, uint32_t *out)
{
    sim *m = user;
    const sim_seq *q = &m->seqs[seq];
    assert_true(seq < m->n && q->open);
    assert_true(pos + n <= q->n_known); /* it never asks for what nobody knows */
    memcpy(out, q->ids + pos, n * sizeof *out);
}

/* The first position whose page a row reads, in groups of 8 positions. */
static inline uint32_t sim_keeps(uint32_t window, uint32_t pos)
{
    return window != 0 && pos >= window ? (pos - window + 1) / 8 * 8 : 0;
}

static inline void sim_add_pool(sim *m, uint32_t n_pages, uint32_t window)
{
    sim_pool *l = &m->pools[m->o.n_pools];
    l->cells = calloc((size_t)n_pages * m->o.page_tokens, sizeof *l->cells);
    l->owner_step = calloc(n_pages, sizeof *l->owner_step);
    l->read_step = calloc(n_pages, sizeof *l->read_step);
    l->holders = calloc(n_pages, sizeof *l->holders);
    assert_int_equal(rose_kv_pages_create(&l->pages, n_pages, NULL), ROSE_OK);
    m->o.windows[m->o.n_pools] = window;
    m->o.pools[m->o.n_pools++] = l->pages;
}

/* The first pool has a window if the options say so. */
static inline sim sim_open(rose_sched_opts o, sim_load load, uint32_t n_pages, uint64_t seed)
{
    sim m = {
        .o = o, .load = load, .rng = seed, .rng_families = seed, .n = o.max_seqs + o.max_queued};
    assert_true(o.max_model_len <= SIM_MAX_LEN);
    m.seqs = calloc(m.n, sizeof *m.seqs);
    m.o.keeps_from = sim_keeps;
    sim_add_pool(&m, n_pages, o.windows[0]);
    return m;
}

/* The simulator must not move any more. */
static inline void sim_start(sim *m)
{
    m->o.ids = sim_ids;
    m->o.ids_user = m;
    assert_int_equal(rose_sched_create(&m->s, &m->o, NULL), ROSE_OK);
}

static inline void sim_close(sim *m)
{
    rose_sched_destroy(m->s);
    for (uint32_t k = 0; k < m->o.n_pools; k++) {
        sim_pool *l = &m->pools[k];
        assert_int_equal(rose_kv_pages_n_free(l->pages), rose_kv_pages_total(l->pages));
        rose_kv_pages_destroy(l->pages);
        free(l->cells);
        free(l->owner_step);
        free(l->read_step);
        free(l->holders);
    }
    free(m->seqs);
}

/* ---- events ---- */

static inline void sim_append(sim_seq *q, uint32_t id)
{
    uint32_t i = q->n_known++;
    q->ids[i] = id;
    q->hash[i] = sim_mix(i > 0 ? q->hash[i - 1] : q->salt + 1, id);
}

static inline void sim_prompt(sim *m, sim_seq *q)
{
    uint32_t common = 0;
    if (m->load.n_families > 0) {
        uint64_t f = m->rng_families + rnd(&m->rng) % m->load.n_families * 7919 + 1;
        common = rnd_in(&m->rng, 0, q->n_prompt);
        for (uint32_t i = 0; i < common; i++)
            sim_append(q, (uint32_t)sim_mix(f, i) & 1023);
    }
    for (uint32_t i = common; i < q->n_prompt; i++)
        sim_append(q, (uint32_t)rnd(&m->rng) & 3); /* few ids: accidents happen too */
}

static inline void sim_submit(sim *m)
{
    uint32_t seq = 0, len = m->o.max_model_len, own = m->load.max_own;
    uint32_t n_prompt = rnd_in(&m->rng, 1, rnd(&m->rng) % 4 ? own : len - 1);
    uint32_t max_tokens = rnd_in(&m->rng, 1, rnd(&m->rng) % 4 ? own : len);
    rose_sched_request r = {.n_prompt = n_prompt, .max_tokens = max_tokens, .arrival = m->step};
    r.priority =
        m->load.n_priorities > 1 ? (int32_t)rnd_in(&m->rng, 0, m->load.n_priorities - 1) : 0;
    r.salt.word[0] = m->load.n_salts > 1 ? rnd(&m->rng) % m->load.n_salts : 0;
    r.no_lookup = m->o.prefix_cache && rnd(&m->rng) % 64 == 0;
    r.guided = m->load.guided_in > 0 && rnd(&m->rng) % m->load.guided_in == 0;
    r.due_ns = m->clock.ttft_ns > 0 ? m->now_ns + m->clock.ttft_ns : 0;
    rose_status st = rose_sched_submit(m->s, &r, &seq);
    rose_status want = rose_sched_check(&m->o, n_prompt, max_tokens, NULL);
    if (want == ROSE_OK && st == ROSE_E_FULL) {
        assert_int_equal(rose_sched_n_waiting(m->s) - rose_sched_n_preempted(m->s),
                         m->o.max_queued);
        m->n_full++;
        return;
    }
    assert_int_equal(st, want);
    if (st != ROSE_OK) return;
    sim_seq *q = &m->seqs[seq];
    assert_true(seq < m->n && !q->open);
    memset(q, 0, offsetof(sim_seq, ids));
    q->open = true;
    q->guided = q->held = r.guided;
    q->n_prompt = n_prompt;
    q->max_tokens = max_tokens;
    q->n_known = 0;
    q->id = ++m->n_arrivals;
    q->salt = r.salt.word[0];
    q->priority = r.priority;
    q->arrival = m->step;
    q->last_step = 0;
    q->waits_since = m->step;
    q->due_ns = r.due_ns;
    q->key_time = m->step + (uint64_t)r.priority * m->o.priority_age;
    sim_prompt(m, q);
}

static inline void sim_finish(sim *m, uint32_t seq)
{
    rose_sched_finish(m->s, seq);
    m->seqs[seq].open = false;
    m->n_finished++;
}

static inline void sim_cancel(sim *m)
{
    uint32_t i = rnd_in(&m->rng, 0, m->n - 1);
    if (!m->seqs[i].open) return;
    sim_finish(m, i);
    m->n_cancelled++;
}

/* Before a step: the masks of some are there. */
static inline void sim_allow(sim *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        sim_seq *q = &m->seqs[i];
        if (!q->open || !q->held || q->sampled_last || q->checked != 0 || rnd(&m->rng) % 3 != 0)
            continue;
        rose_sched_allow(m->s, i);
        q->held = false;
    }
}

/* Before a step: guesses for some of those whose tokens are all known. */
static inline void sim_guess(sim *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        sim_seq *q = &m->seqs[i];
        if (!q->open || q->n_sampled == 0 || q->held || q->sampled_last || q->checked != 0)
            continue;
        const uint32_t left = q->max_tokens - q->n_sampled - 1;
        q->n_guess = rnd_in(&m->rng, 0, m->load.max_guess);
        if (q->n_guess > left) q->n_guess = left;
        rose_sched_guess(m->s, i, q->n_guess);
    }
}

/* The results of guesses of steps before `step`: what was right counts. Returns how many. */
static inline uint32_t sim_accept(sim *m, uint64_t step)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        sim_seq *q = &m->seqs[i];
        if (!q->open || q->checked == 0 || q->checked >= step) continue;
        rose_sched_accept(m->s, i, q->n_right);
        n++;
        m->n_right += q->n_right;
        q->checked = 0;
        q->n_sampled += q->n_right;
        q->sampled_last = q->n_sampled == q->max_tokens;
        if (q->pos + q->n_right > q->n_peak) q->n_peak = q->pos + q->n_right;
        if (q->running)
            q->pos += q->n_right;
        else
            q->alt = q->pos + q->n_right; /* preempted or not: its next item tells */
    }
    return n;
}

/* Before a step: those who come too late go. */
static inline void sim_late(sim *m)
{
    uint32_t late[3], n; /* fewer than there may be */
    while ((n = rose_sched_late(m->s, m->now_ns, late, 3)) > 0) {
        assert_true(n <= 3);
        for (uint32_t i = 0; i < n; i++) {
            const sim_seq *q = &m->seqs[late[i]];
            assert_true(late[i] < m->n && q->open && !q->admitted && q->due_ns != 0);
            sim_finish(m, late[i]);
            m->n_late++;
        }
    }
}

/* A step beyond busy_step_tokens is within 60 ms, or with decodes within the goal, once the costs
 * are known. */
static inline void sim_long_step(sim *m, const rose_sched_plan *p, uint64_t ns)
{
    const bool decodes = p->n_prefill_tokens < p->n_tokens;
    const uint64_t goal = decodes ? m->o.itl_goal_ns : 60000000;
    if (m->o.busy_step_tokens == 0 || p->n_tokens <= m->o.busy_step_tokens) return;
    m->n_long[decodes]++;
    assert_true(goal > 0);
    if (m->n_observed > 1000) assert_true((double)ns <= (double)goal * 1.01);
}

/* After it: the clock goes on, the scheduler is told; and if it knew its costs, the goal was kept
 * as far as prompts and admission could keep it. */
static inline void sim_tick(sim *m, const rose_sched_plan *p)
{
    uint32_t n_decode = p->n_tokens - p->n_prefill_tokens;
    const sim_clock *k = &m->clock;
    if (p->n_items == 0) return;
    uint64_t ns = k->a_ns + k->b_ns * n_decode + k->c_ns * p->n_prefill_tokens;
    m->now_ns += ns;
    rose_sched_observe(m->s, n_decode, p->n_prefill_tokens, ns);
    m->n_observed++;
    sim_long_step(m, p, ns);
    if (m->n_observed < 1000 || m->o.itl_goal_ns == 0 || n_decode == 0) return;
    if (m->o.chunked_prefill && p->n_prefill_tokens > 4) {
        assert_true((double)ns <= (double)m->o.itl_goal_ns * 1.01);
        m->n_tight += (double)ns >= (double)m->o.itl_goal_ns * 0.8;
    }
    if (p->n_admitted > 0 && rose_sched_n_running(m->s) > 1)
        assert_true((double)(k->a_ns + k->b_ns * rose_sched_n_running(m->s)) <=
                    (double)m->o.itl_goal_ns * 1.01);
}

/* ---- invariants ---- */

static inline bool sim_before(const sim_seq *a, const sim_seq *b)
{
    return a->key_time != b->key_time ? a->key_time < b->key_time : a->id < b->id;
}

static inline void sim_admissions(sim *m, const rose_sched_plan *p)
{
    for (uint32_t i = 0; i < p->n_admitted; i++) {
        sim_seq *q = &m->seqs[p->admitted[i]];
        assert_true(p->admitted[i] < m->n && q->open && !q->admitted);
        q->admitted = q->running = true;
        uint32_t cached = rose_sched_cached_tokens(m->s, p->admitted[i]);
        assert_true(cached < q->n_prompt && cached % m->o.page_tokens == 0);
        assert_true(cached == 0 || m->o.prefix_cache);
        q->pos = cached;
        m->n_cached += cached;
        /* nobody begins whose time is over, unless there was nothing else to do */
        if (q->due_ns != 0 && m->now_ns >= q->due_ns)
            assert_int_equal(p->n_tokens, p->n_prefill_tokens);
        if (m->step - q->waits_since > m->longest_wait) m->longest_wait = m->step - q->waits_since;
    }
    if (p->n_admitted > 0) assert_int_equal(p->n_preempted, 0);
    /* nobody who waits was passed, where the policy promises it */
    if (m->o.prefix_cache || m->o.admission != ROSE_ADMISSION_FIFO) return;
    for (uint32_t k = 0; k < p->n_admitted; k++) {
        const sim_seq *a = &m->seqs[p->admitted[k]];
        for (uint32_t i = 0; i < m->n; i++) {
            const sim_seq *b = &m->seqs[i];
            if (b->open && !b->admitted && !b->held) assert_true(sim_before(a, b));
        }
    }
}

/* What the rows of an item read is what this sequence would have written, and what they write is
 * nobody else's. Each row reads from keeps_from on; the pages are the sequence's, and nobody writes
 * them in this step. What is dropped is poisoned at once: the scheduler may reuse it. */
static inline void sim_content(sim *m, const rose_sched_item *it, const sim_seq *q, uint32_t k)
{
    sim_pool *l = &m->pools[k];
    const uint32_t pt = m->o.page_tokens, end = it->pos + it->n, *table = it->table[k];
    const uint32_t from = m->o.keeps_from(m->o.windows[k], it->pos);
    const rose_kv_span own = it->own[k];
    assert_true(own.from * pt <= from && end <= own.end * pt);
    for (uint32_t j = 0; j < own.end; j++) /* also before `from` entries are numbers of pages */
        assert_true(table[j] < rose_kv_pages_total(l->pages));
    for (uint32_t j = from / pt; j * pt < it->pos; j++) { /* what is read is of an earlier step */
        assert_true(l->owner_step[table[j]] != m->step);
        l->read_step[table[j]] = m->step;
    }
    for (uint32_t i = from; i < it->pos; i++)
        assert_true(l->cells[(size_t)table[i / pt] * pt + i % pt] == q->hash[i]);
    const uint32_t right =
        q->n_prompt + q->n_sampled + q->n_right; /* rows before this have their ids */
    for (uint32_t i = it->pos; i < end; i++) {
        uint32_t page = table[i / pt];
        if (i == it->pos || i % pt == 0) {
            assert_int_equal(rose_kv_pages_refs(l->pages, page), 1); /* written: unshared */
            assert_true(l->owner_step[page] != m->step);
            assert_true(l->read_step[page] != m->step || i % pt != 0);
            l->owner_step[page] = m->step;
        }
        l->cells[(size_t)page * pt + i % pt] = i < right ? q->hash[i] : 0xbad;
    }
    for (uint32_t j = own.from; j < own.end; j++)
        l->holders[table[j]]++;
}

/* Overwrites what is free, as a new owner would. */
static inline void sim_poison(sim *m)
{
    for (uint32_t k = 0; k < m->o.n_pools; k++)
        for (uint32_t page = 0; page < rose_kv_pages_total(m->pools[k].pages); page++)
            if (rose_kv_pages_refs(m->pools[k].pages, page) == 0)
                for (uint32_t i = 0; i < m->o.page_tokens; i++)
                    m->pools[k].cells[(size_t)page * m->o.page_tokens + i] = 0xdead;
}

static inline void sim_item(sim *m, const rose_sched_item *it)
{
    assert_true(it->seq < m->n);
    sim_seq *q = &m->seqs[it->seq];
    assert_true(q->open && q->admitted && !q->sampled_last && it->n >= 1);
    assert_true(q->last_step < m->step); /* once in a plan */
    uint32_t known = q->n_prompt + q->n_sampled;
    const uint32_t n_guess = it->n_outs > 0 ? it->n_outs - 1 : 0, n = it->n - n_guess;
    assert_true(n_guess <= q->n_guess && q->checked == 0);
    if (q->alt != 0 && it->pos == q->alt) q->pos = q->alt;
    q->alt = q->n_guess = 0;
    if (it->pos != q->pos) { /* back from a preemption, perhaps after a cached part */
        assert_true(!q->running && it->pos % m->o.page_tokens == 0 && it->pos < known);
        assert_true(it->pos == 0 || m->o.prefix_cache);
        q->pos = it->pos;
    }
    q->running = true;
    assert_true(it->pos + n <= known);
    assert_int_equal(it->n_outs > 0, it->pos + n == known);
    if (m->o.chunked_prefill && m->o.prefill_chunk_size > 0)
        assert_true(n <= m->o.prefill_chunk_size);
    if (!m->o.chunked_prefill && known - it->pos <= m->o.max_step_tokens && q->n_sampled == 0)
        assert_int_equal(it->n, known - it->pos);
    q->n_right = rnd_in(&m->rng, 0, n_guess);
    /* the tokens: a function of all before them, so that equal beginnings go on equally */
    for (uint32_t i = 0; it->n_outs > 0 && i <= q->n_right && q->n_sampled + 1 + i < q->max_tokens;
         i++)
        sim_append(q, (uint32_t)(q->hash[q->n_known - 1] >> 20) & 1023);
    for (uint32_t k = 0; k < m->o.n_pools; k++)
        sim_content(m, it, q, k);
    if (it->pos < q->n_peak)
        m->n_again += (it->pos + n < q->n_peak ? it->pos + n : q->n_peak) - it->pos;
    q->pos += n;
    if (q->pos > q->n_peak) q->n_peak = q->pos;
    q->last_step = m->step;
    if (it->n_outs == 0) return;
    assert_false(q->held);
    q->held = q->guided;
    q->n_sampled++;
    if (q->n_sampled == 1 && q->due_ns != 0) m->n_in_time += m->now_ns <= q->due_ns;
    q->sampled_last = q->n_sampled == q->max_tokens;
    if (n_guess > 0) q->checked = m->step;
    m->n_tried += n_guess;
}

/* Pages: what the tables and the index hold is all that is taken, counted one by one. Only tables
 * of this step are seen, so this runs when every running sequence was in it. */
static inline void sim_page_counts(const sim *m, uint32_t k)
{
    const sim_pool *l = &m->pools[k];
    uint32_t total = rose_kv_pages_total(l->pages), free_pages = 0, n_idle = 0, in_use = 0;
    for (uint32_t i = 0; i < total; i++) {
        uint32_t refs = rose_kv_pages_refs(l->pages, i);
        assert_true(refs == l->holders[i] || refs == l->holders[i] + 1);
        if (refs == 0)
            free_pages++;
        else if (l->holders[i] == 0)
            n_idle++; /* only the index's */
        else
            in_use++;
        if (l->holders[i] > 1) assert_int_equal(refs, l->holders[i] + 1); /* shared: indexed */
    }
    assert_int_equal(free_pages, rose_kv_pages_n_free(l->pages));
    assert_int_equal(n_idle, rose_kv_prefix_n_idle(rose_sched_prefix(m->s), k));
    assert_int_equal(free_pages + n_idle + in_use, total);
}

static inline void sim_states(sim *m, const rose_sched_plan *p, uint32_t n_accepted)
{
    uint32_t open_begun = 0, waiting = 0, in_step = 0, done = 0, held = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        sim_seq *q = &m->seqs[i];
        if (!q->open) continue;
        open_begun += q->admitted;
        waiting += !q->admitted;
        in_step += q->last_step == m->step;
        held += (q->held || q->checked != 0) && q->last_step != m->step;
        done += q->sampled_last && q->last_step != m->step;
    }
    uint32_t preempted = rose_sched_n_preempted(m->s);
    assert_int_equal(rose_sched_n_running(m->s), open_begun - preempted);
    assert_int_equal(rose_sched_n_waiting(m->s), waiting + preempted);
    assert_int_equal(in_step, p->n_items);
    assert_true(open_begun <= (m->o.max_active ? m->o.max_active : m->o.max_seqs));
    assert_true(waiting <= m->o.max_queued);
    /* somebody always gets on, unless all that holds a place has sampled its last token or waits
     * for its mask */
    if (waiting + preempted > 0 && done + held + n_accepted == 0) assert_true(p->n_items > 0);
    if (n_accepted > 0) return; /* since the plan: the last of those that ended keep their pages */
    for (uint32_t k = 0; k < m->o.n_pools && in_step + done >= rose_sched_n_running(m->s); k++)
        sim_page_counts(m, k);
    if (m->step % 512 == 0) assert_true(rose_kv_prefix_sound(rose_sched_prefix(m->s)));
}

static inline void sim_budget(sim *m, const rose_sched_plan *p)
{
    uint32_t n_tokens = 0, n_outputs = 0, n_prefill = 0;
    for (uint32_t i = 0; i < p->n_items; i++) {
        n_tokens += p->items[i].n;
        n_outputs += p->items[i].n_outs;
    }
    assert_int_equal(n_tokens, p->n_tokens);
    assert_int_equal(n_outputs, p->n_outputs);
    assert_true(n_tokens <= m->o.max_step_tokens && p->n_items <= m->o.max_seqs);
    assert_true(p->n_prefill_seqs <= p->n_items && p->n_prefill_tokens <= n_tokens);
    if (m->o.prefill_max_batch > 0) assert_true(p->n_prefill_seqs <= m->o.prefill_max_batch);
    if (m->o.prefill_max_tokens > 0 && (m->o.chunked_prefill || p->n_prefill_seqs > 1))
        assert_true(p->n_prefill_tokens <= m->o.prefill_max_tokens || p->n_prefill_seqs == 1);
    (void)n_prefill;
}

static inline bool sim_step(sim *m)
{
    rose_sched_plan p;
    m->step++;
    (void)sim_accept(m, m->step - (rnd(&m->rng) % 2)); /* some a step late, as with overlap */
    if (m->load.guided_in > 0) sim_allow(m);
    if (m->load.max_guess > 0) sim_guess(m);
    if (m->clock.ttft_ns > 0) sim_late(m);
    bool any = rose_sched_next(m->s, &p);
    assert_int_equal(any, p.n_items > 0);
    sim_budget(m, &p);
    /* who was preempted is not told: all that run and are not in the step may have been */
    if (p.n_preempted > 0) {
        for (uint32_t i = 0; i < m->n; i++)
            m->seqs[i].running = false;
    }
    const uint32_t n_accepted = sim_accept(m, m->step);
    sim_admissions(m, &p);
    for (uint32_t k = 0; k < m->o.n_pools; k++)
        memset(m->pools[k].holders, 0,
               rose_kv_pages_total(m->pools[k].pages) * sizeof *m->pools[k].holders);
    for (uint32_t i = 0; i < p.n_items; i++)
        sim_item(m, &p.items[i]);
    m->n_tokens += p.n_tokens;
    sim_poison(m);
    sim_states(m, &p, n_accepted);
    if (m->clock.a_ns > 0) sim_tick(m, &p);
    return any;
}

/* What came to its end is finished now, or (rarely) some steps late; some end before, by EOS. */
static inline void sim_ends(sim *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        const sim_seq *q = &m->seqs[i];
        if (!q->open || !q->admitted) continue;
        if (q->sampled_last ? rnd(&m->rng) % 8 != 0 : q->n_sampled > 0 && rnd(&m->rng) % 64 == 0)
            sim_finish(m, i);
    }
}

/* n_steps of load in waves, so that the queue is full at times and empty at others, then to the end
 * of all: nothing starves. */
static inline void sim_run(sim *m, uint32_t n_steps)
{
    for (uint32_t k = 0; k < n_steps; k++) {
        uint32_t arrivals = (k / 500) % 2 ? rnd_in(&m->rng, 0, 3) : rnd(&m->rng) % 16 == 0;
        while (arrivals-- > 0)
            sim_submit(m);
        if (rnd(&m->rng) % 8 == 0) sim_cancel(m);
        sim_step(m);
        sim_ends(m);
    }
    uint64_t limit = m->step + 1000000;
    while (rose_sched_n_running(m->s) + rose_sched_n_waiting(m->s) > 0) {
        sim_step(m);
        sim_ends(m);
        assert_true(m->step < limit);
    }
    const rose_kv_prefix *x = rose_sched_prefix(m->s);
    assert_int_equal(m->n_finished, m->n_arrivals);
    assert_int_equal(rose_sched_get_stats(m->s).recomputed_tokens, m->n_again);
    assert_true(rose_kv_prefix_sound(x));
    for (uint32_t k = 0; k < m->o.n_pools; k++)
        assert_int_equal(rose_kv_prefix_n_available(x, k), rose_kv_pages_total(m->pools[k].pages));
    if (m->o.windows[0] == 0)
        assert_int_equal(rose_kv_prefix_n_idle(x, 0), rose_kv_prefix_n_cached(x));
}

static inline void sim_print(const sim *m, const char *name)
{
    rose_sched_stats st = rose_sched_get_stats(m->s);
    printf("%s: %llu steps, %llu sequences, %llu refused, %llu rows (%llu again), %llu prompt "
           "tokens of %llu cached, %llu evictions, %llu preemptions, longest wait %llu\n",
           name, (unsigned long long)m->step, (unsigned long long)m->n_arrivals,
           (unsigned long long)m->n_full, (unsigned long long)m->n_tokens,
           (unsigned long long)st.recomputed_tokens, (unsigned long long)st.prefix_hits,
           (unsigned long long)st.prefix_queries, (unsigned long long)st.evictions,
           (unsigned long long)st.preemptions, (unsigned long long)m->longest_wait);
}

#endif
