/* The scheduler: edges by hand, and a simulator that plays engine: seeded random events, every
 * invariant after every step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sched/sched.h"

static uint64_t rnd(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s >> 8;
}

static uint32_t rnd_in(uint64_t *s, uint32_t lo, uint32_t hi)
{
    return lo + (uint32_t)(rnd(s) % (hi - lo + 1));
}

static const rose_sched_opts base_opts = {.max_seqs = 4,
                                          .max_step_tokens = 16,
                                          .max_model_len = 64,
                                          .max_queued = 8,
                                          .page_tokens = 4,
                                          .chunked_prefill = true,
                                          .prefill_chunk_size = 0};

typedef struct fix {
    rose_kv_pages *pages;
    rose_sched *s;
} fix;

static fix make(const rose_sched_opts *o, uint32_t n_pages)
{
    fix f = {NULL, NULL};
    assert_int_equal(rose_kv_pages_create(&f.pages, n_pages, NULL), ROSE_OK);
    assert_int_equal(rose_sched_create(&f.s, o, f.pages, NULL), ROSE_OK);
    return f;
}

static void drop(fix *f)
{
    rose_sched_destroy(f->s);
    assert_int_equal(rose_kv_pages_n_free(f->pages), rose_kv_pages_total(f->pages));
    rose_kv_pages_destroy(f->pages);
}

static uint32_t submit(rose_sched *s, uint32_t n_prompt, uint32_t max_tokens)
{
    uint32_t seq = UINT32_MAX;
    assert_int_equal(rose_sched_submit(s, n_prompt, max_tokens, &seq), ROSE_OK);
    return seq;
}

/* The plan's items as text: "seq:pos+n" with * where a token is sampled. */
static void expect_plan(rose_sched *s, const char *want)
{
    char got[512] = "";
    rose_sched_plan p;
    bool any = rose_sched_next(s, &p);
    assert_int_equal(any, p.n_items > 0);
    size_t n = 0;
    for (uint32_t i = 0; i < p.n_items; i++) {
        const rose_sched_item *it = &p.items[i];
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%u:%u+%u%s", i ? " " : "", it->seq,
                              it->pos, it->n, it->sample ? "*" : "");
    }
    assert_string_equal(got, want);
}

static void test_options(void **state)
{
    (void)state;
    rose_kv_pages *pages = NULL;
    assert_int_equal(rose_kv_pages_create(&pages, 10, NULL), ROSE_OK);
    for (int i = 0; i < 9; i++) {
        rose_sched_opts o = base_opts;
        rose_sched *s = (rose_sched *)(void *)1;
        rose_err err = {0};
        if (i == 0) o.max_seqs = 0;
        if (i == 1) o.max_seqs = o.max_step_tokens = 4097;
        if (i == 2) o.max_step_tokens = 3;
        if (i == 3) o.max_model_len = 1;
        if (i == 4) o.max_model_len = UINT32_MAX;
        if (i == 5) o.max_queued = 0;
        if (i == 6) o.max_queued = 65537;
        if (i == 7) o.page_tokens = 0;
        if (i == 8) o.max_step_tokens = UINT32_MAX;
        assert_int_equal(rose_sched_create(&s, &o, pages, &err), ROSE_E_INVAL);
        assert_null(s);
        assert_true(err.msg[0] != '\0');
    }
    rose_sched_destroy(NULL);
    rose_kv_pages_destroy(pages);
}

static void test_check(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    assert_int_equal(rose_sched_check(&o, 100, 1, 1, NULL), ROSE_OK);
    assert_int_equal(rose_sched_check(&o, 100, 63, 1, NULL), ROSE_OK);
    assert_int_equal(rose_sched_check(&o, 100, 0, 1, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_sched_check(&o, 100, 1, 0, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_sched_check(&o, 100, 63, 2, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_sched_check(&o, 100, UINT32_MAX, UINT32_MAX, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_sched_check(&o, 100, 2, UINT32_MAX, NULL), ROSE_E_INVAL);
    /* 5 + 4 tokens take 8 places, the last is never computed: two pages of 4 */
    assert_int_equal(rose_sched_check(&o, 2, 5, 4, NULL), ROSE_OK);
    assert_int_equal(rose_sched_check(&o, 2, 5, 5, NULL), ROSE_E_INVAL);
    assert_int_equal(rose_sched_check(&o, 100, 17, 1, NULL), ROSE_OK);
    o.chunked_prefill = false;
    assert_int_equal(rose_sched_check(&o, 100, 16, 1, NULL), ROSE_OK);
    assert_int_equal(rose_sched_check(&o, 100, 17, 1, NULL), ROSE_E_INVAL);
}

static void test_decode_first(void **state)
{
    (void)state;
    fix f = make(&base_opts, 100);
    expect_plan(f.s, "");
    uint32_t a = submit(f.s, 3, 10);
    expect_plan(f.s, "0:0+3*");
    uint32_t b = submit(f.s, 40, 4);
    submit(f.s, 2, 2);
    expect_plan(f.s, "0:3+1* 1:0+15"); /* the budget of 16 is used up */
    expect_plan(f.s, "0:4+1* 1:15+15");
    expect_plan(f.s, "0:5+1* 1:30+10* 2:0+2*");
    expect_plan(f.s, "0:6+1* 1:40+1* 2:2+1*");
    expect_plan(f.s, "0:7+1* 1:41+1*"); /* 2 has its two tokens, and waits for finish */
    rose_sched_finish(f.s, 2);
    rose_sched_finish(f.s, a);
    expect_plan(f.s, "1:42+1*");
    expect_plan(f.s, "");
    assert_int_equal(rose_sched_n_running(f.s), 1);
    rose_sched_finish(f.s, b);
    assert_int_equal(rose_sched_n_running(f.s), 0);
    assert_int_equal(rose_kv_pages_n_free(f.pages), 100);
    drop(&f);
}

static void test_chunks(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.prefill_chunk_size = 5;
    fix f = make(&o, 100);
    submit(f.s, 10, 2); /* exactly two pieces */
    submit(f.s, 11, 2);
    submit(f.s, 4, 2);
    submit(f.s, 60, 2);
    expect_plan(f.s, "0:0+5 1:0+5 2:0+4* 3:0+2");
    expect_plan(f.s, "2:4+1* 0:5+5* 1:5+5 3:2+5");
    expect_plan(f.s, "0:10+1* 1:10+1* 3:7+5");
    drop(&f); /* with all of them running */
    o.prefill_chunk_size = 1;
    f = make(&o, 100);
    submit(f.s, 2, 1);
    submit(f.s, 1, 1);
    expect_plan(f.s, "0:0+1 1:0+1*");
    expect_plan(f.s, "0:1+1*");
    expect_plan(f.s, "");
    drop(&f);
}

static void test_whole_prompts(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.chunked_prefill = false;
    o.prefill_chunk_size = 3; /* without effect */
    fix f = make(&o, 100);
    submit(f.s, 10, 2);
    uint32_t b = submit(f.s, 16, 1);
    submit(f.s, 1, 1);
    expect_plan(f.s, "0:0+10*");
    expect_plan(f.s, "0:10+1*"); /* the second needs a whole step; the third stays behind it */
    expect_plan(f.s, "1:0+16*");
    rose_sched_finish(f.s, b);
    expect_plan(f.s, "2:0+1*");
    drop(&f);
}

static void test_limits(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.max_seqs = 2;
    o.max_queued = 2;
    fix f = make(&o, 5);
    uint32_t a = submit(f.s, 8, 5); /* three pages */
    uint32_t b = submit(f.s, 8, 5), c = 0;
    assert_int_equal(rose_sched_submit(f.s, 1, 1, &c), ROSE_E_FULL);
    assert_int_equal(c, UINT32_MAX);
    assert_int_equal(rose_sched_submit(f.s, 20, 2, &c), ROSE_E_INVAL); /* six pages: never */
    expect_plan(f.s, "0:0+8*");                                        /* b waits for pages */
    assert_int_equal(rose_sched_n_waiting(f.s), 1);
    c = submit(f.s, 1, 1); /* would fit, but b is first */
    expect_plan(f.s, "0:8+1*");
    rose_sched_finish(f.s, b); /* cancelled while waiting: the place in the queue is free */
    expect_plan(f.s, "0:9+1* 2:0+1*");
    rose_sched_finish(f.s, a);
    rose_sched_finish(f.s, c);
    assert_int_equal(rose_kv_pages_n_free(f.pages), 5);
    drop(&f);
}

/* ---- the simulator ---- */

typedef struct sim_seq {
    bool open, admitted, sampled_last;
    uint32_t n_prompt, max_tokens, pos, n_sampled;
    uint64_t order;  /* of arrival */
    uint64_t ticket; /* of admission */
    uint64_t last_step;
} sim_seq;

typedef struct sim {
    rose_sched_opts o;
    fix f;
    uint64_t rng;
    sim_seq *seqs; /* [n] by handle */
    uint32_t n;
    uint32_t *owner; /* [pages] handle + 1 in this step */
    uint64_t n_arrivals, last_admitted, step, n_finished, n_cancelled, n_full;
} sim;

static void sim_submit(sim *m)
{
    uint32_t seq = 0, len = m->o.max_model_len;
    uint32_t n_prompt = rnd_in(&m->rng, 1, rnd(&m->rng) % 4 ? 12 : len - 1);
    uint32_t max_tokens = rnd_in(&m->rng, 1, rnd(&m->rng) % 4 ? 8 : len);
    rose_status st = rose_sched_submit(m->f.s, n_prompt, max_tokens, &seq);
    rose_status want =
        rose_sched_check(&m->o, rose_kv_pages_total(m->f.pages), n_prompt, max_tokens, NULL);
    if (want == ROSE_OK && st == ROSE_E_FULL) {
        assert_int_equal(rose_sched_n_waiting(m->f.s), m->o.max_queued);
        m->n_full++;
        return;
    }
    assert_int_equal(st, want);
    if (st != ROSE_OK) return;
    assert_true(seq < m->n && !m->seqs[seq].open);
    m->seqs[seq] = (sim_seq){.open = true,
                             .n_prompt = n_prompt,
                             .max_tokens = max_tokens,
                             .order = ++m->n_arrivals,
                             .last_step = m->step};
}

static void sim_finish(sim *m, uint32_t seq)
{
    rose_sched_finish(m->f.s, seq);
    m->seqs[seq].open = false;
    m->n_finished++;
}

static void sim_admissions(sim *m, const rose_sched_plan *p)
{
    for (uint32_t i = 0; i < p->n_admitted; i++) {
        sim_seq *q = &m->seqs[p->admitted[i]];
        assert_true(q->open && !q->admitted);
        assert_true(q->order > m->last_admitted); /* first come, first served */
        m->last_admitted = q->order;
        q->admitted = true;
    }
    for (uint32_t i = 0; i < m->n; i++) { /* nobody who waits was overtaken */
        if (m->seqs[i].open && !m->seqs[i].admitted)
            assert_true(m->seqs[i].order > m->last_admitted);
    }
}

static void sim_item(sim *m, const rose_sched_item *it)
{
    sim_seq *q = &m->seqs[it->seq];
    assert_true(it->seq < m->n && q->open && q->admitted && !q->sampled_last);
    assert_true(q->last_step < m->step || q->pos == 0); /* once in a plan */
    assert_int_equal(it->pos, q->pos);
    assert_true(it->n >= 1);
    uint32_t known = q->n_prompt + q->n_sampled;
    assert_true(it->pos + it->n <= known);
    assert_int_equal(it->sample, it->pos + it->n == known);
    if (q->n_sampled > 0) assert_int_equal(it->n, 1);
    if (q->ticket == 0) q->ticket = it->ticket;
    assert_int_equal(it->ticket, q->ticket);
    assert_true((it->pos + it->n - 1) / m->o.page_tokens < it->n_pages);
    if (m->o.chunked_prefill && m->o.prefill_chunk_size > 0)
        assert_true(it->n <= m->o.prefill_chunk_size);
    if (!m->o.chunked_prefill && q->n_sampled == 0) assert_int_equal(it->n, q->n_prompt);
    for (uint32_t i = 0; i < it->n_pages; i++) {
        assert_int_equal(rose_kv_pages_refs(m->f.pages, it->pages[i]), 1);
        assert_int_equal(m->owner[it->pages[i]], 0); /* no page twice, in no two sequences */
        m->owner[it->pages[i]] = it->seq + 1;
    }
    q->pos += it->n;
    q->n_sampled += it->sample;
    q->sampled_last = q->n_sampled == q->max_tokens;
    q->last_step = m->step;
}

/* Every open sequence is where it should be, and the decoding ones were all in the step. */
static void sim_states(sim *m, const rose_sched_plan *p)
{
    uint32_t running = 0, waiting = 0, used = 0, prefill_left_out = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        const sim_seq *q = &m->seqs[i];
        if (!q->open) continue;
        running += q->admitted;
        waiting += !q->admitted;
        if (!q->admitted) continue;
        used += (q->n_prompt + q->max_tokens - 2) / m->o.page_tokens + 1;
        if (q->last_step == m->step || q->sampled_last) continue;
        assert_int_equal(q->n_sampled, 0); /* only a prefill may be left out */
        prefill_left_out++;
    }
    if (prefill_left_out > 0) assert_int_equal(p->n_tokens, m->o.max_step_tokens);
    assert_int_equal(rose_sched_n_running(m->f.s), running);
    assert_int_equal(rose_sched_n_waiting(m->f.s), waiting);
    assert_true(running <= m->o.max_seqs && waiting <= m->o.max_queued);
    assert_int_equal(rose_kv_pages_n_free(m->f.pages) + used, rose_kv_pages_total(m->f.pages));
    if (waiting > 0) assert_true(running > 0); /* never everybody waits */
}

static void sim_step(sim *m)
{
    rose_sched_plan p;
    m->step++;
    bool any = rose_sched_next(m->f.s, &p);
    assert_int_equal(any, p.n_items > 0);
    assert_true(p.n_tokens <= m->o.max_step_tokens && p.n_items <= m->o.max_seqs);
    sim_admissions(m, &p);
    memset(m->owner, 0, rose_kv_pages_total(m->f.pages) * sizeof *m->owner);
    uint32_t n_tokens = 0, n_outputs = 0;
    for (uint32_t i = 0; i < p.n_items; i++) {
        sim_item(m, &p.items[i]);
        n_tokens += p.items[i].n;
        n_outputs += p.items[i].sample;
    }
    assert_int_equal(n_tokens, p.n_tokens);
    assert_int_equal(n_outputs, p.n_outputs);
    sim_states(m, &p);
    /* what came to its end is finished now, or (rarely) a step late; some end before, by EOS */
    for (uint32_t i = 0; i < m->n; i++) {
        const sim_seq *q = &m->seqs[i];
        if (!q->open) continue;
        if (q->sampled_last ? rnd(&m->rng) % 8 != 0 : q->n_sampled > 0 && rnd(&m->rng) % 32 == 0)
            sim_finish(m, i);
    }
}

static void sim_cancel(sim *m)
{
    uint32_t i = rnd_in(&m->rng, 0, m->n - 1);
    if (!m->seqs[i].open) return;
    sim_finish(m, i);
    m->n_cancelled++;
}

static void simulate(rose_sched_opts o, uint32_t n_pages, uint64_t seed, uint32_t n_steps)
{
    sim m = {.o = o, .f = make(&o, n_pages), .rng = seed, .n = o.max_seqs + o.max_queued};
    m.seqs = calloc(m.n, sizeof *m.seqs);
    m.owner = calloc(n_pages, sizeof *m.owner);
    for (uint32_t k = 0; k < n_steps; k++) {
        /* load comes in waves, so that the queue is full at times and empty at others */
        uint32_t arrivals = (k / 500) % 2 ? rnd_in(&m.rng, 0, 4) : rnd(&m.rng) % 16 == 0;
        while (arrivals-- > 0)
            sim_submit(&m);
        if (rnd(&m.rng) % 8 == 0) sim_cancel(&m);
        sim_step(&m);
    }
    uint64_t limit = m.step + 1000000; /* nothing starves: without arrivals, all of it ends */
    while (rose_sched_n_running(m.f.s) + rose_sched_n_waiting(m.f.s) > 0) {
        sim_step(&m);
        assert_true(m.step < limit);
    }
    assert_int_equal(m.n_finished, m.n_arrivals);
    assert_int_equal(rose_kv_pages_n_free(m.f.pages), n_pages);
    assert_true(m.n_full > 0 && m.n_cancelled > 0);
    printf("%u seqs, %u rows, %u pages, chunk %u%s: %llu sequences, %llu refused as full\n",
           o.max_seqs, o.max_step_tokens, n_pages, o.prefill_chunk_size,
           o.chunked_prefill ? "" : " off", (unsigned long long)m.n_arrivals,
           (unsigned long long)m.n_full);
    drop(&m.f);
    free(m.seqs);
    free(m.owner);
}

static void test_simulator(void **state)
{
    (void)state;
    const char *t = getenv("ROSE_TEST_SEED");
    uint64_t seed = t != NULL ? strtoull(t, NULL, 0) : 20261121;
    printf("ROSE_TEST_SEED=%llu\n", (unsigned long long)seed);
    seed = seed * 2 + 1;
    static const uint32_t chunks[] = {0, 1, 3, 4, 16, 100};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        rose_sched_opts o = base_opts;
        o.prefill_chunk_size = chunks[i];
        simulate(o, 40, seed + i * 2, 30000);
    }
    rose_sched_opts o = base_opts;
    o.chunked_prefill = false;
    simulate(o, 40, seed, 30000);
    simulate(o, 3, seed, 20000); /* one at a time, mostly */
    o = base_opts;
    o.max_seqs = 1;
    o.max_step_tokens = 1;
    o.max_queued = 1;
    simulate(o, 16, seed, 20000);
    o.max_seqs = o.max_step_tokens = 24;
    o.max_queued = 40;
    o.page_tokens = 1;
    simulate(o, 300, seed, 20000);
    o.max_seqs = 8;
    o.max_queued = 5;
    o.page_tokens = 64; /* one page each */
    o.max_step_tokens = 60;
    simulate(o, 6, seed, 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),       cmocka_unit_test(test_check),
        cmocka_unit_test(test_decode_first),  cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_whole_prompts), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_simulator),
    };
    return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
