/* The scheduler: edges by hand. What happens among many is in test_sched_sim.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sched/sched.h"

static const rose_sched_opts base_opts = {.max_seqs = 4,
                                          .max_step_tokens = 16,
                                          .max_model_len = 64,
                                          .max_queued = 8,
                                          .page_tokens = 4,
                                          .chunked_prefill = true,
                                          .prefill_chunk_size = 0,
                                          .decode_first = true};

typedef struct fix {
    rose_kv_pages *pages;
    rose_sched *s;
} fix;

static uint32_t keeps_from(uint32_t window, uint32_t pos)
{
    return window != 0 && pos >= window ? pos - window + 1 : 0;
}

/* Adds a pool to the options. */
static rose_kv_pages *add_pool(rose_sched_opts *o, uint32_t n_pages, uint32_t window)
{
    rose_kv_pages **pages = &o->pools[o->n_pools];
    o->keeps_from = keeps_from;
    o->windows[o->n_pools++] = window;
    assert_int_equal(rose_kv_pages_create(pages, n_pages, NULL), ROSE_OK);
    return *pages;
}

static fix make(const rose_sched_opts *opts, uint32_t n_pages)
{
    rose_sched_opts o = *opts;
    fix f = {add_pool(&o, n_pages, 0), NULL};
    assert_int_equal(rose_sched_create(&f.s, &o, NULL), ROSE_OK);
    return f;
}

static rose_status check(const rose_sched_opts *opts, uint32_t n_pages, uint32_t n_prompt,
                         uint32_t max_tokens)
{
    rose_sched_opts o = *opts;
    rose_kv_pages *pages = add_pool(&o, n_pages, 0);
    const rose_status st = rose_sched_check(&o, n_prompt, max_tokens, NULL);
    rose_kv_pages_destroy(pages);
    return st;
}

static void drop(fix *f)
{
    rose_sched_destroy(f->s);
    assert_int_equal(rose_kv_pages_n_free(f->pages), rose_kv_pages_total(f->pages));
    rose_kv_pages_destroy(f->pages);
}

static uint32_t submit_as(rose_sched *s, const rose_sched_request *r)
{
    uint32_t seq = UINT32_MAX;
    assert_int_equal(rose_sched_submit(s, r, &seq), ROSE_OK);
    return seq;
}

static uint32_t submit(rose_sched *s, uint32_t n_prompt, uint32_t max_tokens)
{
    return submit_as(s, &(rose_sched_request){.n_prompt = n_prompt, .max_tokens = max_tokens});
}

static rose_status try_submit(rose_sched *s, uint32_t n_prompt, uint32_t max_tokens, uint32_t *seq)
{
    const rose_sched_request r = {.n_prompt = n_prompt, .max_tokens = max_tokens};
    return rose_sched_submit(s, &r, seq);
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
                              it->pos, it->n, it->n_outs > 0 ? "*" : "");
    }
    assert_string_equal(got, want);
}

static void test_options(void **state)
{
    (void)state;
    for (int i = 0; i < 17; i++) {
        rose_sched_opts o = base_opts;
        rose_kv_pages *pages = i == 11 ? NULL : add_pool(&o, 10, 0), *last = NULL;
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
        if (i == 9) o.lookahead = 4097;
        if (i == 10) o.prefix_cache = true; /* without ids */
        if (i == 12) o.n_pools = ROSE_KV_MAX_POOLS + 1;
        if (i == 15) o.busy_step_tokens = o.max_seqs - 1;
        if (i == 16) o.busy_step_tokens = o.max_step_tokens + 1;
        if (i == 13) last = add_pool(&o, 2, 9); /* a row at position 12 reads 4 .. 12 */
        if (i == 14) {                          /* a piece of 8 rows after a window of 5 */
            last = add_pool(&o, 2, 5);
            o.chunked_prefill = false;
        }
        assert_int_equal(rose_sched_create(&s, &o, &err), ROSE_E_INVAL);
        assert_null(s);
        assert_true(err.msg[0] != '\0');
        rose_kv_pages_destroy(pages);
        rose_kv_pages_destroy(last);
    }
    rose_sched_destroy(NULL);
}

static void test_check(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    assert_int_equal(check(&o, 100, 1, 1), ROSE_OK);
    assert_int_equal(check(&o, 100, 63, 1), ROSE_OK);
    assert_int_equal(check(&o, 100, 0, 1), ROSE_E_INVAL);
    assert_int_equal(check(&o, 100, 1, 0), ROSE_E_INVAL);
    assert_int_equal(check(&o, 100, 63, 2), ROSE_E_INVAL);
    assert_int_equal(check(&o, 100, UINT32_MAX, UINT32_MAX), ROSE_E_INVAL);
    assert_int_equal(check(&o, 100, 2, UINT32_MAX), ROSE_E_INVAL);
    /* 5 + 4 tokens take 8 places, the last is never computed: two pages of 4 */
    assert_int_equal(check(&o, 2, 5, 4), ROSE_OK);
    assert_int_equal(check(&o, 2, 5, 5), ROSE_E_INVAL);
    assert_int_equal(check(&o, 100, 17, 1), ROSE_OK);
    o.chunked_prefill = false;
    assert_int_equal(check(&o, 100, 16, 1), ROSE_OK);
    assert_int_equal(check(&o, 100, 17, 1), ROSE_E_INVAL);
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
    expect_plan(f.s, "0:10+1*"); /* the second needs a whole step; the third waits for it */
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
    uint32_t a = submit(f.s, 12, 5); /* three pages at once, the fourth when it decodes */
    uint32_t b = submit(f.s, 12, 5), c = 0;
    assert_int_equal(try_submit(f.s, 1, 1, &c), ROSE_E_FULL);
    assert_int_equal(c, UINT32_MAX);
    assert_int_equal(try_submit(f.s, 20, 3, &c), ROSE_E_INVAL); /* six pages: never */
    expect_plan(f.s, "0:0+12*");                                /* b waits for pages */
    assert_int_equal(rose_sched_n_waiting(f.s), 1);
    c = submit(f.s, 1, 1); /* would fit, but b is first */
    expect_plan(f.s, "0:12+1*");
    assert_int_equal(rose_kv_pages_n_free(f.pages), 1);
    rose_sched_finish(f.s, b); /* cancelled while waiting: the place in the queue is free */
    expect_plan(f.s, "0:13+1* 2:0+1*");
    rose_sched_finish(f.s, a);
    rose_sched_finish(f.s, c);
    assert_int_equal(rose_kv_pages_n_free(f.pages), 5);
    drop(&f);
}

/* A sequence that has sampled its last token holds no pages, even before it is finished. */
static void test_done_holds_nothing(void **state)
{
    (void)state;
    fix f = make(&base_opts, 4);
    uint32_t a = submit(f.s, 16, 1); /* the whole pool */
    uint32_t b = submit(f.s, 16, 1);
    expect_plan(f.s, "0:0+16*");
    expect_plan(f.s, "1:0+16*");
    assert_int_equal(rose_sched_n_running(f.s), 2);
    rose_sched_finish(f.s, a);
    rose_sched_finish(f.s, b);
    drop(&f);
}

/* ---- pressure ---- */

static void test_preemption(void **state)
{
    (void)state;
    fix f = make(&base_opts, 5);
    submit(f.s, 7, 10);
    submit(f.s, 7, 10);
    expect_plan(f.s, "0:0+7* 1:0+7*"); /* two pages each */
    expect_plan(f.s, "0:7+1* 1:7+1*");
    /* both are at a boundary: the last free page is the first's, the second gives way */
    expect_plan(f.s, "0:8+1*");
    assert_int_equal(rose_sched_n_preempted(f.s), 1);
    assert_int_equal(rose_sched_n_running(f.s), 1);
    assert_int_equal(rose_kv_pages_n_free(f.pages), 2);
    expect_plan(f.s, "0:9+1*"); /* it knows nine tokens, and two pages hold eight */
    uint32_t c = submit(f.s, 1, 1);
    expect_plan(f.s, "0:10+1*"); /* and nobody passes it */
    rose_sched_finish(f.s, 0);
    expect_plan(f.s, "1:0+9* 2:0+1*"); /* again from the start, sampling the same position */
    expect_plan(f.s, "1:9+1*");
    rose_sched_stats st = rose_sched_get_stats(f.s);
    assert_int_equal(st.preemptions, 1);
    assert_int_equal(st.recomputed_tokens, 8);
    rose_sched_finish(f.s, c);
    rose_sched_finish(f.s, 1);
    drop(&f);
}

static void test_preempts_the_last(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.priority_age = 100;
    fix f = make(&o, 6);
    submit_as(f.s, &(rose_sched_request){.n_prompt = 8, .max_tokens = 9, .priority = 1});
    submit_as(f.s, &(rose_sched_request){.n_prompt = 7, .max_tokens = 9});
    submit_as(f.s, &(rose_sched_request){.n_prompt = 5, .max_tokens = 9, .arrival = 1});
    expect_plan(f.s, "1:0+7* 2:0+5* 0:0+4");
    expect_plan(f.s, "1:7+1* 2:5+1* 0:4+4*");
    expect_plan(f.s, "1:8+1* 2:6+1*"); /* the first to arrive has the lowest priority */
    assert_int_equal(rose_sched_n_preempted(f.s), 1);
    rose_sched_finish(f.s, 0); /* cancelled meanwhile */
    assert_int_equal(rose_sched_n_preempted(f.s), 0);
    assert_int_equal(rose_sched_n_waiting(f.s), 0);
    drop(&f);
}

/* Who was preempted still has its place: others that begin do not take it. */
static void test_place_of_the_preempted(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.priority_age = 100;
    o.max_active = 3;
    fix f = make(&o, 5);
    submit(f.s, 3, 12);
    submit(f.s, 7, 12);
    submit(f.s, 5, 12);
    expect_plan(f.s, "0:0+3* 1:0+7* 2:0+5*");
    expect_plan(f.s, "0:3+1* 1:7+1* 2:5+1*");
    expect_plan(f.s, "0:4+1* 1:8+1*");
    submit_as(f.s, &(rose_sched_request){.n_prompt = 1, .max_tokens = 4, .priority = -1});
    expect_plan(f.s, "0:5+1* 1:9+1*"); /* three have begun */
    rose_sched_finish(f.s, 1);
    expect_plan(f.s, "0:6+1* 3:0+1* 2:0+7*");
    drop(&f);
}

/* Without chunks, what was generated may make a sequence longer than a step. */
static void test_recompute_longer_than_a_step(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.chunked_prefill = false;
    fix f = make(&o, 9);
    submit(f.s, 8, 25);
    submit(f.s, 8, 25);
    expect_plan(f.s, "0:0+8* 1:0+8*");
    for (uint32_t i = 8; i < 16; i++) {
        rose_sched_plan p;
        assert_true(rose_sched_next(f.s, &p));
        assert_int_equal(p.n_items, 2);
    }
    expect_plan(f.s, "0:16+1*"); /* eight pages of nine, both want one */
    rose_sched_finish(f.s, 0);
    expect_plan(f.s, "1:0+16");
    expect_plan(f.s, "1:16+1*");
    drop(&f);
}

/* ---- prefixes ---- */

static uint32_t test_ids[16][64];

static void read_ids(void *user, uint32_t seq, uint32_t pos, uint32_t n, uint32_t *out)
{
    (void)user;
    memcpy(out, test_ids[seq] + pos, n * sizeof *out);
}

static rose_sched_opts prefix_opts(void)
{
    rose_sched_opts o = base_opts;
    memset(test_ids, 0, sizeof test_ids);
    o.prefix_cache = true;
    o.ids = read_ids;
    return o;
}

static void test_prefix(void **state)
{
    (void)state;
    rose_sched_opts o = prefix_opts();
    fix f = make(&o, 20);
    submit(f.s, 12, 6);
    expect_plan(f.s, "0:0+12*");
    for (uint32_t i = 12; i < 17; i++)
        rose_sched_next(f.s, &(rose_sched_plan){0});
    rose_sched_finish(f.s, 0); /* 17 computed: four full pages stay, one is free */
    const rose_kv_prefix *x = rose_sched_prefix(f.s);
    assert_int_equal(rose_kv_prefix_n_idle(x, 0), 4);
    assert_int_equal(rose_kv_pages_n_free(f.pages), 16);
    uint32_t a = submit(f.s, 12, 6); /* the last page of it is computed for its logits */
    expect_plan(f.s, "0:8+4*");
    assert_int_equal(rose_sched_cached_tokens(f.s, a), 8);
    assert_int_equal(rose_kv_prefix_n_idle(x, 0), 2);
    rose_sched_finish(f.s, a); /* its copy of the third page was not needed */
    assert_int_equal(rose_kv_prefix_n_idle(x, 0), 4);
    submit(f.s, 20, 6); /* generated text is found too */
    expect_plan(f.s, "0:16+4*");
    rose_sched_finish(f.s, 0);
    test_ids[0][5] = 1; /* one other id in the second page */
    submit(f.s, 20, 6);
    expect_plan(f.s, "0:4+16*");
    rose_sched_finish(f.s, 0);
    rose_sched_request r = {.n_prompt = 20, .max_tokens = 6, .salt = {{1, 0}}};
    submit_as(f.s, &r); /* another tenant */
    expect_plan(f.s, "0:0+16");
    rose_sched_finish(f.s, 0);
    r = (rose_sched_request){.n_prompt = 20, .max_tokens = 6, .no_lookup = true};
    submit_as(f.s, &r);
    expect_plan(f.s, "0:0+16");
    rose_sched_finish(f.s, 0);
    rose_sched_stats st = rose_sched_get_stats(f.s);
    assert_int_equal(st.prefix_queries, 12 + 12 + 5 * 20 - 20);
    assert_int_equal(st.prefix_hits, 0 + 8 + 16 + 4);
    assert_true(rose_kv_prefix_sound(x));
    drop(&f);
}

/* Choices of one prompt: the first computes it; the others wait a step and begin after it. */
static void test_same_prompt_at_once(void **state)
{
    (void)state;
    rose_sched_opts o = prefix_opts();
    fix f = make(&o, 40);
    for (int i = 0; i < 3; i++)
        submit(f.s, 14, 3);
    test_ids[3][0] = 9; /* somebody else, who passes them */
    submit(f.s, 2, 3);
    expect_plan(f.s, "0:0+14* 3:0+2*");
    expect_plan(f.s, "0:14+1* 3:2+1* 1:12+2* 2:12+2*");
    assert_int_equal(rose_kv_pages_n_free(f.pages), 40 - 3 - 3 - 1); /* 3 shared, 3 ends, 1 */
    drop(&f);
    o.prefill_chunk_size = 4; /* piece by piece: they follow when their own part begins */
    f = make(&o, 40);
    test_ids[1][8] = 5;
    submit(f.s, 20, 3);
    submit(f.s, 20, 3);
    expect_plan(f.s, "0:0+4");
    expect_plan(f.s, "0:4+4");
    expect_plan(f.s, "0:8+4 1:8+4");
    rose_sched_finish(f.s, 0);
    expect_plan(f.s, "1:12+4");
    drop(&f);
    f = make(&o, 40); /* who is waited for goes: the next one takes over */
    submit(f.s, 20, 3);
    test_ids[1][8] = 0;
    submit(f.s, 20, 3);
    submit(f.s, 20, 3);
    expect_plan(f.s, "0:0+4");
    rose_sched_finish(f.s, 0);
    expect_plan(f.s, "1:4+4");
    rose_sched_finish(f.s, 1);
    rose_sched_finish(f.s, 2);
    drop(&f);
}

/* Two that computed the same without knowing of each other end up with one copy. */
static void test_computed_twice(void **state)
{
    (void)state;
    rose_sched_opts o = prefix_opts();
    fix f = make(&o, 40);
    submit(f.s, 4, 9);
    submit(f.s, 3, 9);
    expect_plan(f.s, "0:0+4* 1:0+3*");
    expect_plan(f.s, "0:4+1* 1:3+1*");
    assert_int_equal(rose_kv_pages_n_free(f.pages), 40 - 3);
    expect_plan(f.s, "0:5+1* 1:4+1*");
    assert_int_equal(rose_kv_pages_n_free(f.pages), 40 - 3); /* shared, two to write */
    drop(&f);
}

static void test_eviction(void **state)
{
    (void)state;
    rose_sched_opts o = prefix_opts();
    fix f = make(&o, 8);
    const rose_kv_prefix *x = rose_sched_prefix(f.s);
    for (uint32_t k = 0; k < 3; k++) { /* three prompts of two pages */
        for (int i = 0; i < 9; i++)
            test_ids[0][i] = k;
        submit(f.s, 8, 1);
        expect_plan(f.s, "0:0+8*");
        rose_sched_finish(f.s, 0);
    }
    assert_int_equal(rose_kv_prefix_n_idle(x, 0), 6);
    for (int i = 0; i < 9; i++)
        test_ids[0][i] = 0;
    submit(f.s, 9, 1); /* the oldest is used again: it is the newest now */
    expect_plan(f.s, "0:8+1*");
    rose_sched_finish(f.s, 0);
    for (int i = 0; i < 16; i++)
        test_ids[0][i] = 7;
    submit(f.s, 16, 1); /* four pages of two free ones: the second prompt goes */
    expect_plan(f.s, "0:0+16*");
    rose_sched_finish(f.s, 0);
    assert_int_equal(rose_sched_get_stats(f.s).evictions, 2);
    for (int i = 0; i < 9; i++)
        test_ids[0][i] = 1;
    submit(f.s, 9, 1);
    expect_plan(f.s, "0:0+9*");
    rose_sched_finish(f.s, 0);
    for (int i = 0; i < 9; i++)
        test_ids[0][i] = 0;
    submit(f.s, 9, 1);
    expect_plan(f.s, "0:4+5*"); /* the third went, and the end of this one, the next in age */
    rose_sched_finish(f.s, 0);
    assert_true(rose_kv_prefix_sound(x));
    drop(&f);
    o.prefix_max_pages = 3; /* kept while nobody uses them */
    f = make(&o, 30);
    submit(f.s, 16, 5);
    expect_plan(f.s, "0:0+16*");
    expect_plan(f.s, "0:16+1*");
    assert_int_equal(rose_kv_prefix_n_cached(rose_sched_prefix(f.s)), 4);
    rose_sched_finish(f.s, 0);
    assert_int_equal(rose_kv_prefix_n_idle(rose_sched_prefix(f.s), 0), 3);
    assert_int_equal(rose_kv_pages_n_free(f.pages), 27);
    drop(&f);
}

/* Opens a scheduler with a large pool and one of n_pages with a window; *window is the latter. */
static fix make_windowed(const rose_sched_opts *opts, uint32_t n_pages, uint32_t tokens,
                         rose_kv_pages **window)
{
    rose_sched_opts o = *opts;
    fix f = {add_pool(&o, 100, 0), NULL};
    *window = add_pool(&o, n_pages, tokens);
    assert_int_equal(rose_sched_create(&f.s, &o, NULL), ROSE_OK);
    return f;
}

/* A sequence holds a window and no more; what it drops stays cached until the pages are needed. A
 * hit ends where every pool has what the next row reads. */
static void test_window(void **state)
{
    (void)state;
    rose_sched_opts o = prefix_opts();
    rose_kv_pages *window;
    fix f = make_windowed(&o, 12, 6, &window); /* the row at 16 reads 11 .. 16: pages 2, 3, 4 */
    const rose_kv_prefix *x = rose_sched_prefix(f.s);
    submit(f.s, 8, 30);
    expect_plan(f.s, "0:0+8*");
    for (uint32_t i = 8; i < 37; i++) {
        rose_sched_next(f.s, &(rose_sched_plan){0});
        assert_true(rose_kv_pages_total(window) - rose_kv_prefix_n_available(x, 1) <= 3);
    }
    rose_sched_finish(f.s, 0);
    assert_int_equal(rose_kv_prefix_n_available(x, 1), 12);
    assert_int_equal(rose_kv_prefix_n_idle(x, 1), 9);
    submit(f.s, 40, 3);
    expect_plan(f.s, "0:36+4*");
    assert_int_equal(rose_kv_prefix_n_idle(x, 1), 9 - 2); /* 31 .. 35 in pages 7 and 8 */
    rose_sched_finish(f.s, 0);
    test_ids[0][0] = 1; /* another prompt takes all pages of the small pool: 3, then one by one */
    submit(f.s, 50, 1);
    for (uint32_t n = 0; n < 50;) {
        rose_sched_plan p;
        assert_true(rose_sched_next(f.s, &p));
        n += p.n_tokens;
    }
    rose_sched_finish(f.s, 0);
    test_ids[0][0] = 0;
    const uint64_t hits = rose_sched_get_stats(f.s).prefix_hits;
    for (int i = 0; i < 2; i++)
        submit(f.s, 10, 3); /* all nodes are there, but no page with the window of any */
    expect_plan(f.s, "0:0+10*");
    expect_plan(f.s, "0:10+1* 1:8+2*"); /* the other one has waited for the pages */
    assert_int_equal(rose_sched_get_stats(f.s).prefix_hits - hits, 8);
    rose_sched_finish(f.s, 0);
    rose_sched_finish(f.s, 1);
    assert_true(rose_kv_prefix_sound(x));
    rose_sched_destroy(f.s);
    assert_int_equal(rose_kv_pages_n_free(window), 12);
    assert_int_equal(rose_kv_pages_n_free(f.pages), 100);
    rose_kv_pages_destroy(window);
    rose_kv_pages_destroy(f.pages);
}

/* A long prompt goes on, a page a step, though all pages of the small pool but its own window
 * serve a sequence that decodes. */
static void test_window_is_tight(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    rose_kv_pages *window;
    fix f = make_windowed(&o, 6, 6, &window);
    submit(f.s, 8, 50);
    expect_plan(f.s, "0:0+8*");
    for (uint32_t i = 8; i < 17; i++)
        rose_sched_next(f.s, &(rose_sched_plan){0});
    submit(f.s, 48, 5);
    for (uint32_t pos = 0, n_steps = 0; pos < 48; n_steps++) {
        rose_sched_plan p;
        assert_true(rose_sched_next(f.s, &p) && p.n_preempted == 0);
        assert_true(n_steps < 14 && p.items[0].seq == 0 && p.n_tokens > p.items[0].n);
        pos += p.n_tokens - 1;
    }
    rose_sched_finish(f.s, 0);
    rose_sched_finish(f.s, 1);
    drop(&f);
    assert_int_equal(rose_kv_pages_n_free(window), 6);
    rose_kv_pages_destroy(window);
}

/* A preempted sequence continues after its own pages, if they are still there. */
static void test_preempted_finds_its_pages(void **state)
{
    (void)state;
    rose_sched_opts o = prefix_opts();
    fix f = make(&o, 5);
    test_ids[1][0] = 1;
    submit(f.s, 7, 10);
    submit(f.s, 7, 10);
    expect_plan(f.s, "0:0+7* 1:0+7*");
    expect_plan(f.s, "0:7+1* 1:7+1*");
    expect_plan(f.s, "0:8+1*");
    assert_int_equal(rose_kv_prefix_n_idle(rose_sched_prefix(f.s), 0), 2);
    rose_sched_finish(f.s, 0);
    expect_plan(f.s, "1:8+1*");
    assert_int_equal(rose_sched_get_stats(f.s).recomputed_tokens, 0);
    assert_int_equal(rose_sched_cached_tokens(f.s, 1), 0); /* told of the prompt only */
    drop(&f);
    f = make(&o, 5); /* so does one that began after a cached page */
    test_ids[0][0] = 1;
    submit(f.s, 4, 1);
    expect_plan(f.s, "0:0+4*");
    rose_sched_finish(f.s, 0);
    test_ids[0][0] = 0;
    submit(f.s, 7, 10);
    submit(f.s, 7, 10);
    expect_plan(f.s, "0:0+7* 1:4+3*");
    expect_plan(f.s, "0:7+1* 1:7+1*");
    expect_plan(f.s, "0:8+1*");
    rose_sched_finish(f.s, 0);
    expect_plan(f.s, "1:8+1*");
    assert_int_equal(rose_sched_cached_tokens(f.s, 1), 4);
    drop(&f);
}

/* ---- policies ---- */

static void test_priority(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.max_seqs = 1;
    o.priority_age = 10;
    fix f = make(&o, 100);
    const struct {
        int32_t priority;
        uint64_t arrival;
    } in[] = {{1, 0}, {0, 5}, {1000000, 6}, {1, 11}, {0, 12}, {-1, 13}, {-1, 13}};
    static const uint32_t want[] = {5, 6, 1, 0, 4, 3, 2}; /* keys 3 3 5 10 12 21 10006 */
    for (uint32_t i = 0; i < 7; i++) {
        rose_sched_request r = {
            .n_prompt = 1, .max_tokens = 1, .priority = in[i].priority, .arrival = in[i].arrival};
        assert_int_equal(submit_as(f.s, &r), i);
    }
    for (uint32_t i = 0; i < 7; i++) {
        rose_sched_plan p;
        assert_true(rose_sched_next(f.s, &p));
        assert_int_equal(p.items[0].seq, want[i]);
        rose_sched_finish(f.s, want[i]);
    }
    drop(&f);
    o = base_opts; /* also among prompts that have begun */
    o.priority_age = 10;
    o.prefill_chunk_size = 8;
    f = make(&o, 100);
    submit_as(f.s, &(rose_sched_request){.n_prompt = 40, .max_tokens = 1, .priority = 1});
    expect_plan(f.s, "0:0+8");
    submit(f.s, 20, 1);
    expect_plan(f.s, "0:8+8 1:0+8");
    expect_plan(f.s, "1:8+8 0:16+8");
    drop(&f);
}

static void test_pack(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.admission = ROSE_ADMISSION_PACK;
    o.lookahead = 4;
    o.force_fifo_every = 3;
    o.chunked_prefill = false;
    o.prefill_max_tokens = 10;
    fix f = make(&o, 100);
    submit(f.s, 9, 1);
    submit(f.s, 4, 1);
    submit(f.s, 7, 1);
    submit(f.s, 6, 1);
    submit(f.s, 1, 1);                 /* beyond the four that are looked at */
    expect_plan(f.s, "1:0+4* 3:0+6*"); /* the shorter ones that fill the ten rows */
    rose_sched_finish(f.s, 1);
    rose_sched_finish(f.s, 3);
    uint32_t a = submit(f.s, 2, 1); /* takes the handle of 3 */
    expect_plan(f.s, "4:0+1* 3:0+2* 2:0+7*");
    rose_sched_finish(f.s, 4);
    rose_sched_finish(f.s, 2);
    rose_sched_finish(f.s, a);
    submit(f.s, 1, 1);
    expect_plan(f.s, "0:0+9* 3:0+1*"); /* passed twice: nobody goes before it */
    drop(&f);
}

static void test_prefill_limits(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.prefill_max_batch = 2;
    fix f = make(&o, 100);
    for (int i = 0; i < 4; i++)
        submit(f.s, 3, 5);
    expect_plan(f.s, "0:0+3* 1:0+3*");
    expect_plan(f.s, "0:3+1* 1:3+1* 2:0+3* 3:0+3*");
    drop(&f);
    o = base_opts;
    o.prefill_max_tokens = 5;
    f = make(&o, 100);
    submit(f.s, 3, 5);
    submit(f.s, 4, 5);
    submit(f.s, 9, 5);
    expect_plan(f.s, "0:0+3* 1:0+2");
    expect_plan(f.s, "0:3+1* 1:2+2* 2:0+3");
    expect_plan(f.s, "0:4+1* 1:4+1* 2:3+5");
    drop(&f);
    o.chunked_prefill = false; /* a prompt longer than the limit goes alone */
    f = make(&o, 100);
    submit(f.s, 9, 5);
    submit(f.s, 2, 5);
    submit(f.s, 3, 5);
    submit(f.s, 1, 5);
    expect_plan(f.s, "0:0+9*");
    expect_plan(f.s, "0:9+1* 1:0+2* 2:0+3*");
    expect_plan(f.s, "0:10+1* 1:2+1* 2:3+1* 3:0+1*");
    drop(&f);
    o = base_opts;
    o.max_active = 2;
    f = make(&o, 100);
    for (int i = 0; i < 3; i++)
        submit(f.s, 3, 1);
    expect_plan(f.s, "0:0+3* 1:0+3*");
    expect_plan(f.s, "");
    rose_sched_finish(f.s, 1);
    expect_plan(f.s, "2:0+3*");
    drop(&f);
}

static void test_prompts_first(void **state)
{
    (void)state;
    rose_sched_opts o = base_opts;
    o.decode_first = false;
    o.max_step_tokens = 5;
    fix f = make(&o, 100);
    submit(f.s, 1, 9);
    submit(f.s, 1, 9);
    submit(f.s, 1, 9);
    expect_plan(f.s, "0:0+1* 1:0+1* 2:0+1*");
    submit(f.s, 13, 9);
    expect_plan(f.s, "3:0+5");
    expect_plan(f.s, "3:5+5");
    expect_plan(f.s, "3:10+3* 0:1+1* 1:1+1*"); /* two rows left for three */
    expect_plan(f.s, "0:2+1* 1:2+1* 2:1+1* 3:13+1*");
    drop(&f);
    o.prefill_chunk_size = 3; /* two rows are left each time, everybody has a turn */
    f = make(&o, 100);
    for (int i = 0; i < 3; i++)
        submit(f.s, 1, 9);
    expect_plan(f.s, "0:0+1* 1:0+1* 2:0+1*");
    submit(f.s, 13, 9);
    expect_plan(f.s, "3:0+3 0:1+1* 1:1+1*");
    expect_plan(f.s, "3:3+3 2:1+1* 0:2+1*");
    expect_plan(f.s, "3:6+3 1:2+1* 2:2+1*");
    drop(&f);
}

/* Steps of exactly 1000 + 100 decodes + 50 rows, as many as it takes to know them. */
static void teach(rose_sched *s)
{
    for (uint32_t i = 0; i < 500; i++) {
        uint32_t d = i * 7 % 5, p = i % 3 == 0 ? i * 13 % 100 : 0;
        rose_sched_observe(s, d, p, 1000 + 100 * d + 50 * p);
    }
}

static rose_sched_opts goal_opts(uint64_t itl_goal_ns)
{
    rose_sched_opts o = base_opts;
    o.max_step_tokens = 128;
    o.max_model_len = 256;
    o.itl_goal_ns = itl_goal_ns;
    return o;
}

/* Rows that the rest of a prompt, 73, gets beside one decode, under a goal. */
static uint32_t rows_beside(uint64_t itl_goal_ns, bool knows)
{
    const rose_sched_opts o = goal_opts(itl_goal_ns);
    fix f = make(&o, 300);
    rose_sched_plan p;
    submit(f.s, 1, 50);
    submit(f.s, 200, 2);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_tokens, 128);
    if (knows) teach(f.s);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_items, 2);
    uint32_t n = p.n_prefill_tokens;
    drop(&f);
    return n;
}

static void test_itl_goal(void **state)
{
    (void)state;
    assert_int_equal(rows_beside(0, true), 73);
    assert_int_equal(rows_beside(3100, false), 73); /* nothing is known yet */
    assert_in_range(rows_beside(1000 + 100 + 50 * 40, true), 38, 40);
    assert_int_equal(rows_beside(1000, true), 4); /* out of reach: prompts still get on */
    assert_int_equal(rows_beside(UINT64_MAX, true), 73);
    /* nobody decodes: nobody waits between two tokens */
    const rose_sched_opts o = goal_opts(1);
    fix f = make(&o, 300);
    rose_sched_plan p;
    teach(f.s);
    submit(f.s, 100, 9);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_tokens, 100);
    submit(f.s, 1, 9); /* and a goal out of reach lets one after the other run */
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_items, 1);
    rose_sched_finish(f.s, 0);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_admitted, 1);
    drop(&f);
}

/* Rows of the next step of a long prompt, after one of `before` rows that took ns. */
static uint32_t rows_after(rose_sched *s, uint32_t before, uint64_t ns)
{
    rose_sched_plan p;
    if (before > 0) rose_sched_observe(s, 0, before, ns);
    assert_true(rose_sched_next(s, &p));
    assert_int_equal(p.n_items, 1);
    return p.n_tokens;
}

/* busy_step_tokens: as many rows until costs are known; then, while nothing decodes, as many as 60
 * ms take, but at most twice the longest step so far. */
static void test_busy_rows(void **state)
{
    enum { MS = 1000000 };
    (void)state;
    rose_sched_opts o = base_opts;
    o.max_step_tokens = 512;
    o.busy_step_tokens = 16;
    o.max_model_len = 4096;
    fix f = make(&o, 2000);
    rose_sched_plan p;
    submit(f.s, 3000, 90);
    assert_int_equal(rows_after(f.s, 0, 0), 16);
    assert_int_equal(rows_after(f.s, 16, 16 * MS / 10), 32);
    assert_int_equal(rows_after(f.s, 32, 32 * MS / 10), 64);
    for (int i = 0; i < 300; i++) /* 0.1 ms a row */
        rose_sched_observe(f.s, 0, 64, 64 * MS / 10);
    assert_int_equal(rows_after(f.s, 64, 64 * MS / 10), 128);
    assert_int_equal(rows_after(f.s, 128, 128 * MS / 10), 256);
    assert_int_equal(rows_after(f.s, 256, 256 * MS / 10), 512);
    for (int i = 0; i < 300; i++) /* 0.5 ms a row */
        rose_sched_observe(f.s, 0, 512, 512 * MS / 2);
    assert_in_range(rows_after(f.s, 512, 512 * MS / 2), 90, 120);
    for (int i = 0; i < 300; i++) /* 60 ms are not enough for any */
        rose_sched_observe(f.s, 0, 512, 51200 * (uint64_t)MS);
    assert_int_equal(rows_after(f.s, 512, 51200 * (uint64_t)MS), 16);
    for (int i = 0; i < 300; i++)
        rose_sched_observe(f.s, 0, 512, MS);
    while (rose_sched_next(f.s, &p) && p.n_outputs == 0)
        continue;
    submit(f.s, 900, 9); /* beside one that decodes */
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_tokens, 16);
    rose_sched_finish(f.s, 0);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_tokens, 512);
    drop(&f);
    o.chunked_prefill = false; /* a prompt of 512 must fit into each step */
    f = make(&o, 2000);
    submit(f.s, 4, 9);
    assert_true(rose_sched_next(f.s, &p));
    submit(f.s, 500, 9);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_tokens, 501);
    drop(&f);
}

/* A step of two decodes and the smallest piece is within the goal, one of three is not. */
static void test_itl_goal_admission(void **state)
{
    const rose_sched_opts o = goal_opts(1000 + 50 * 4 + 250);
    (void)state;
    fix f = make(&o, 300);
    rose_sched_plan p;
    teach(f.s);
    for (int i = 0; i < 4; i++)
        submit(f.s, 4, 9);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_admitted, 2);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_admitted, 0);
    rose_sched_finish(f.s, 0);
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(p.n_admitted, 1);
    drop(&f);
}

static uint32_t submit_due(rose_sched *s, uint32_t n_prompt, uint64_t due_ns)
{
    return submit_as(
        s, &(rose_sched_request){.n_prompt = n_prompt, .max_tokens = 9, .due_ns = due_ns});
}

static void test_late(void **state)
{
    rose_sched_opts o = goal_opts(0);
    o.max_active = 1;
    (void)state;
    fix f = make(&o, 300);
    rose_sched_plan p;
    uint32_t late[4];
    uint32_t a = submit_due(f.s, 10, 1);
    assert_int_equal(rose_sched_late(f.s, 0, late, 4), 0); /* nothing is known */
    teach(f.s);
    assert_int_equal(rose_sched_late(f.s, 5000, late, 4), 0); /* it may begin at once */
    assert_true(rose_sched_next(f.s, &p));
    assert_int_equal(rose_sched_late(f.s, 5000, late, 4), 0); /* it has begun */
    /* 20 rows take 1000 + 100 + 1000 */
    uint32_t b = submit_due(f.s, 20, 6000), c = submit_due(f.s, 20, 8000), d = submit(f.s, 20, 9);
    assert_int_equal(rose_sched_late(f.s, 3800, late, 4), 0);
    assert_int_equal(rose_sched_late(f.s, 4000, late, 0), 0);
    assert_int_equal(rose_sched_late(f.s, 4000, late, 4), 1);
    assert_int_equal(late[0], b);
    rose_sched_finish(f.s, b);
    assert_int_equal(rose_sched_late(f.s, 4000, late, 4), 0);
    assert_int_equal(rose_sched_late(f.s, UINT64_MAX, late, 4), 1); /* d has no time */
    assert_int_equal(late[0], c);
    rose_sched_finish(f.s, c);
    /* one place: a sequence after d waits for two outputs, once their length is known */
    rose_sched_finish(f.s, a);
    assert_true(rose_sched_next(f.s, &p));
    for (int i = 0; i < 5; i++)
        assert_true(rose_sched_next(f.s, &p));
    rose_sched_finish(f.s, d);
    submit(f.s, 4, 9);
    assert_true(rose_sched_next(f.s, &p));
    const rose_sched_load l = rose_sched_get_load(f.s);
    assert_true(l.known && l.n_free == 0 && l.n_running == 1 && l.place_ns > 0);
    uint64_t wait = (uint64_t)rose_sched_wait_ns(&l, 1, 20, 20);
    assert_true(rose_sched_wait_ns(&l, 0, 0, 20) < (double)wait);
    submit(f.s, 20, 9);
    uint32_t e = submit_due(f.s, 20, 100000);
    assert_int_equal(rose_sched_late(f.s, 100000 - wait * 11 / 10, late, 4), 0);
    assert_int_equal(rose_sched_late(f.s, 100000 - wait * 9 / 10, late, 4), 1);
    assert_int_equal(late[0], e);
    drop(&f);
}

/* A guided sequence samples once for each allow, and nobody waits for it. */
static void test_guided(void **state)
{
    (void)state;
    fix f = make(&base_opts, 40);
    const rose_sched_request guided = {.n_prompt = 5, .max_tokens = 3, .guided = true};
    const rose_sched_request longer = {.n_prompt = 40, .max_tokens = 2, .guided = true};
    assert_int_equal(submit_as(f.s, &guided), 0);
    assert_int_equal(submit(f.s, 3, 9), 1);
    expect_plan(f.s, "1:0+3*"); /* 0 waits in the queue and is passed */
    assert_int_equal(rose_sched_n_running(f.s), 1);
    expect_plan(f.s, "1:3+1*");
    rose_sched_allow(f.s, 0);
    expect_plan(f.s, "1:4+1* 0:0+5*");
    expect_plan(f.s, "1:5+1*");
    rose_sched_allow(f.s, 0);
    expect_plan(f.s, "1:6+1* 0:5+1*");
    rose_sched_finish(f.s, 1);
    expect_plan(f.s, "");
    /* a prompt of several pieces waits before its last */
    assert_int_equal(submit_as(f.s, &longer), 1);
    expect_plan(f.s, "1:0+16");
    expect_plan(f.s, "1:16+16");
    expect_plan(f.s, "");
    rose_sched_allow(f.s, 0);
    expect_plan(f.s, "0:6+1*");
    rose_sched_allow(f.s, 1);
    expect_plan(f.s, "1:32+8*");
    rose_sched_allow(f.s, 1);
    expect_plan(f.s, "1:40+1*");
    expect_plan(f.s, ""); /* both have sampled their last */
    rose_sched_finish(f.s, 0);
    rose_sched_finish(f.s, 1);
    drop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_decode_first),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_whole_prompts),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_done_holds_nothing),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_preempts_the_last),
        cmocka_unit_test(test_place_of_the_preempted),
        cmocka_unit_test(test_recompute_longer_than_a_step),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_same_prompt_at_once),
        cmocka_unit_test(test_computed_twice),
        cmocka_unit_test(test_eviction),
        cmocka_unit_test(test_preempted_finds_its_pages),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_window_is_tight),
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_prefill_limits),
        cmocka_unit_test(test_prompts_first),
        cmocka_unit_test(test_itl_goal),
        cmocka_unit_test(test_busy_rows),
        cmocka_unit_test(test_itl_goal_admission),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_guided),
    };
    return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
