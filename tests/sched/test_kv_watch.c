/* Checks that a watcher of the prefix index knows exactly the pages that the index holds. Random
 * requests run through the scheduler, with evictions and preemptions. The watcher has a queue that
 * is often full; a consumer applies what comes out of the queue. Whenever the queue is empty and
 * all pages were reported, both sets are compared. */
#include "sched/sched_sim.h"

enum { MAX_PAGES = 64, PAGE = 4, MAX_QUEUE = 256 };

typedef enum report_kind { STORED, REMOVED, CLEARED } report_kind;

typedef struct report {
    report_kind kind;
    rose_kv_stored page;
    uint32_t ids[PAGE];
} report;

/* A queue that takes up to `cap` reports, and a consumer's set of pages. */
typedef struct watcher {
    report queue[MAX_QUEUE];
    uint32_t first, n, cap;
    report pages[MAX_PAGES];
    uint32_t n_pages;
    uint64_t n_refused, n_cleared, n_stored, n_removed, n_compared;
} watcher;

static bool push(watcher *w, const report *r)
{
    if (w->n == w->cap) {
        w->n_refused++;
        return false;
    }
    report *to = &w->queue[(w->first + w->n++) % MAX_QUEUE];
    *to = *r;
    to->page.ids = NULL; /* borrowed during the call; ids has them */
    return true;
}

static bool on_stored(void *arg, const rose_kv_stored *page)
{
    report r = {.kind = STORED, .page = *page};
    memcpy(r.ids, page->ids, sizeof r.ids);
    return push(arg, &r);
}

static bool on_removed(void *arg, uint64_t key)
{
    return push(arg, &(report){.kind = REMOVED, .page = {.key = key}});
}

static bool on_cleared(void *arg)
{
    return push(arg, &(report){.kind = CLEARED});
}

static report *known(watcher *w, uint64_t key)
{
    for (uint32_t i = 0; i < w->n_pages; i++) {
        if (w->pages[i].page.key == key) return &w->pages[i];
    }
    return NULL;
}

static void apply(watcher *w, const report *r)
{
    switch (r->kind) {
    case STORED:
        assert_null(known(w, r->page.key));
        if (!r->page.root) assert_non_null(known(w, r->page.parent_key));
        assert_true(w->n_pages < MAX_PAGES);
        w->pages[w->n_pages++] = *r;
        w->n_stored++;
        break;
    case REMOVED: {
        report *gone = known(w, r->page.key);
        assert_non_null(gone);
        for (uint32_t i = 0; i < w->n_pages; i++) /* children went before */
            assert_true(w->pages[i].page.root || w->pages[i].page.parent_key != r->page.key);
        *gone = w->pages[--w->n_pages];
        w->n_removed++;
        break;
    }
    case CLEARED:
        w->n_pages = 0;
        w->n_cleared++;
        break;
    }
}

static void drain(watcher *w, uint32_t n)
{
    for (; n > 0 && w->n > 0; n--, w->n--) {
        apply(w, &w->queue[w->first]);
        w->first = (w->first + 1) % MAX_QUEUE;
    }
}

/* The page of the index that the consumer's page stands for. */
static uint32_t page_of(watcher *w, const rose_kv_prefix *x, const report *r)
{
    uint32_t parent = ROSE_KV_NONE;
    if (!r->page.root) {
        report *up = known(w, r->page.parent_key);
        assert_non_null(up);
        parent = page_of(w, x, up);
    }
    const uint64_t h = rose_kv_prefix_hash(x, parent, r->page.salt, r->ids);
    const uint32_t page = rose_kv_prefix_find(x, h, parent, r->page.salt, r->ids);
    assert_int_not_equal(page, ROSE_KV_NONE);
    return page;
}

/* Both sets are equal: each page of the consumer is one of the index, no two are the same, and
 * there are as many. */
static void compare(watcher *w, const rose_kv_prefix *x)
{
    bool seen[MAX_PAGES] = {false};
    for (uint32_t i = 0; i < w->n_pages; i++) {
        const uint32_t page = page_of(w, x, &w->pages[i]);
        assert_false(seen[page]);
        seen[page] = true;
    }
    assert_int_equal(w->n_pages, rose_kv_prefix_n_cached(x));
    w->n_compared++;
}

/* room: the queue's capacity. slow: one of this many steps takes reports out of the queue. */
static watcher watch(uint32_t n_pages, uint32_t room, uint32_t slow, uint32_t max_idle,
                     uint64_t seed, uint32_t n_steps)
{
    static watcher w;
    const sim_load load = {.n_families = 4, .n_salts = 2, .n_priorities = 3, .max_own = 12};
    const rose_kv_watch watch = {on_stored, on_removed, on_cleared, &w};
    const rose_sched_opts o = {.max_seqs = 4,
                               .max_step_tokens = 16,
                               .max_model_len = 64,
                               .max_queued = 8,
                               .page_tokens = PAGE,
                               .chunked_prefill = true,
                               .decode_first = true,
                               .priority_age = 50,
                               .prefix_cache = true,
                               .prefix_max_pages = max_idle,
                               .watch = &watch};
    w = (watcher){.cap = room};
    sim m = sim_open(o, load, n_pages, seed);
    uint64_t rng = seed + 2;
    sim_start(&m);
    const rose_kv_prefix *x = rose_sched_prefix(m.s);
    for (uint32_t k = 0; k < n_steps; k++) {
        if (rnd(&m.rng) % 4 == 0) sim_submit(&m);
        if (rnd(&m.rng) % 16 == 0) sim_cancel(&m);
        sim_step(&m);
        sim_ends(&m);
        rose_sched_catch_up(m.s, rnd_in(&rng, 0, 8));
        if (rnd(&rng) % slow == 0) drain(&w, rnd_in(&rng, 1, room));
        if (w.n == 0 && !rose_kv_prefix_is_behind(x)) compare(&w, x);
        if (k % 64 == 0) assert_true(rose_kv_prefix_sound(x));
    }
    for (uint32_t k = 0; rose_kv_prefix_is_behind(x) || w.n > 0; k++) { /* quiet: it ends */
        rose_sched_catch_up(m.s, 4);
        drain(&w, 4);
        assert_true(k < 10 * n_pages);
    }
    compare(&w, x);
    const rose_sched_stats st = rose_sched_get_stats(m.s);
    printf("%u pages, room %u, slow %u: %llu stored, %llu removed, %llu refused, %llu cleared, "
           "%llu compared; %llu evictions, %llu preemptions\n",
           n_pages, room, slow, (unsigned long long)w.n_stored, (unsigned long long)w.n_removed,
           (unsigned long long)w.n_refused, (unsigned long long)w.n_cleared,
           (unsigned long long)w.n_compared, (unsigned long long)st.evictions,
           (unsigned long long)st.preemptions);
    assert_true(st.evictions > 100 && w.n_compared > 1);
    w.cap = MAX_QUEUE; /* what the end of the scheduler reports nobody reads */
    sim_run(&m, 0);
    sim_close(&m);
    return w;
}

static void test_all_reports(void **state)
{
    (void)state;
    watcher w = watch(40, MAX_QUEUE, 1, 0, test_seed(), 20000);
    assert_int_equal(w.n_refused + w.n_cleared, 0);
    w = watch(17, MAX_QUEUE, 1, 0, test_seed() + 2, 20000); /* preempts */
    assert_int_equal(w.n_refused + w.n_cleared, 0);
    w = watch(40, MAX_QUEUE, 1, 5, test_seed() + 4, 20000); /* few idle pages */
    assert_int_equal(w.n_refused + w.n_cleared, 0);
}

static void test_full_queue(void **state)
{
    (void)state;
    static const uint32_t rooms[] = {1, 2, 5, 16};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        const watcher w = watch(24, rooms[i], 3, 0, test_seed() + 2 * i, 40000);
        assert_true(w.n_refused > 0 && w.n_cleared > 0);
    }
}

/* A key depends on the text before it and on nothing else, so another process and a later version
 * have the same one. */
static void test_keys(void **state)
{
    (void)state;
    uint64_t keys[2][3];
    for (uint32_t k = 0; k < 2; k++) {
        watcher w = {.cap = MAX_QUEUE};
        const rose_kv_watch watch = {on_stored, on_removed, on_cleared, &w};
        rose_kv_pages *pages;
        rose_kv_prefix *x;
        const uint32_t ids[PAGE] = {1, 2, 3, 50000};
        uint32_t node = ROSE_KV_NONE;
        assert_int_equal(rose_kv_pages_create(&pages, 8, NULL), ROSE_OK);
        const rose_kv_prefix_opts o = {.enabled = true,
                                       .page_tokens = PAGE,
                                       .hash_key = {k, 7 * k},
                                       .n_nodes = 3 + k,
                                       .n_pools = 1,
                                       .pools = {pages}};
        assert_int_equal(rose_kv_prefix_create(&x, &o, NULL), ROSE_OK);
        rose_kv_prefix_set_watch(x, &watch);
        for (uint32_t i = 0; i < 3; i++) {
            const rose_kv_salt salt = {{i == 2 ? 9 : 0, 0}}; /* a root, its child, a salted root */
            const uint32_t parent = i == 1 ? node : ROSE_KV_NONE;
            node = rose_kv_prefix_insert(x, rose_kv_prefix_hash(x, parent, salt, ids), parent, salt,
                                         ids);
            rose_kv_prefix_move(x, ROSE_KV_NONE, node);
            keys[k][i] = w.queue[i].page.key;
        }
        assert_int_equal(w.n, 3);
        assert_true(w.queue[0].page.root && w.queue[2].page.root && !w.queue[1].page.root);
        assert_true(w.queue[1].page.parent_key == keys[k][0]);
        rose_kv_prefix_destroy(x);
        rose_kv_pages_destroy(pages);
    }
    assert_memory_equal(keys[0], keys[1], sizeof keys[0]);
    assert_true(keys[0][0] != keys[0][1] && keys[0][0] != keys[0][2] && keys[0][1] != keys[0][2]);
    const uint64_t first[3] = {UINT64_C(0xf21f495648336b4a), UINT64_C(0xd2af5fd6d165a7f4),
                               UINT64_C(0xbbb35305e92484d8)};
    assert_memory_equal(keys[0], first, sizeof first);
}

/* A path of many pages that the watcher does not know is reported a few pages a call. */
static void test_long_path(void **state)
{
    (void)state;
    enum { N = 20 };
    for (uint32_t k = 0; k < 2; k++) { /* the cursor meets the root first, or the leaf */
        watcher w = {.cap = 0};
        const rose_kv_watch watch = {on_stored, on_removed, on_cleared, &w};
        const rose_kv_salt salt = {{0, 0}};
        rose_kv_pages *pages;
        rose_kv_prefix *x;
        uint32_t nodes[N], n_calls = 0;
        assert_int_equal(rose_kv_pages_create(&pages, 1, NULL), ROSE_OK);
        const rose_kv_prefix_opts o = {
            .enabled = true, .page_tokens = PAGE, .n_nodes = N, .n_pools = 1, .pools = {pages}};
        assert_int_equal(rose_kv_prefix_create(&x, &o, NULL), ROSE_OK);
        rose_kv_prefix_set_watch(x, &watch);
        for (uint32_t i = 0; k == 1 && i < N; i++) { /* turns the chain of free nodes round */
            nodes[i] = rose_kv_prefix_insert(x, i, ROSE_KV_NONE, salt, (uint32_t[PAGE]){i});
            rose_kv_prefix_move(x, ROSE_KV_NONE, nodes[i]);
        }
        for (uint32_t i = 0; k == 1 && i < N; i++)
            rose_kv_prefix_move(x, nodes[i], ROSE_KV_NONE);
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t parent = i > 0 ? nodes[i - 1] : ROSE_KV_NONE, ids[PAGE] = {1, 2, 3, 4};
            nodes[i] = rose_kv_prefix_insert(x, rose_kv_prefix_hash(x, parent, salt, ids), parent,
                                             salt, ids);
            rose_kv_prefix_move(x, parent, nodes[i]);
        }
        assert_true(k == 0 ? nodes[0] < nodes[N - 1] : nodes[0] > nodes[N - 1]);
        assert_int_equal(w.n, 0);
        w.cap = MAX_QUEUE;
        for (; rose_kv_prefix_is_behind(x); n_calls++) {
            const uint32_t before = w.n;
            rose_kv_prefix_catch_up(x, 4);
            assert_true(w.n - before <= 4);
            assert_true(rose_kv_prefix_sound(x));
            assert_true(n_calls < 2 * N);
        }
        assert_int_equal(w.n, N);
        rose_kv_prefix_move(x, nodes[N - 1], ROSE_KV_NONE);
        assert_int_equal(rose_kv_prefix_n_cached(x), 0);
        rose_kv_prefix_destroy(x);
        rose_kv_pages_destroy(pages);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reports), cmocka_unit_test(test_full_queue),
        cmocka_unit_test(test_keys), cmocka_unit_test(test_long_path)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
