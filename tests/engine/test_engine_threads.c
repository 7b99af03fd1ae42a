/* The engine among threads: many submitters, cancels from anywhere at any time, closing under load,
 * sleeping when idle. Run under TSAN (make VARIANT=tsan tests). */
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "engine/engine_client.h"
#include "engine/engine_internal.h"

/* ---- many submitters, each a consumer with its own sink ---- */

enum { N_THREADS = 64, PER_THREAD = 40, WINDOW = 4 };

typedef struct worker {
    pthread_t thread;
    rose_engine *e;
    rose_wakeq *sink;
    uint64_t seed;
    uint64_t n_tokens, n_full;
    rec recs[WINDOW];
} worker;

static void worker_start(worker *w, rec *x)
{
    rec_random(x, &w->seed, 60, 30);
    if (rnd(&w->seed) % 2 == 0) rose_engine_expect(w->e);
    rose_status st;
    while ((st = rec_submit(x, w->e, w->sink, NULL)) == ROSE_E_FULL) {
        w->n_full++;
        usleep(200);
    }
    assert_int_equal(st, ROSE_OK);
}

/* Keeps WINDOW requests open until PER_THREAD have ended. */
static void *worker_main(void *arg)
{
    worker *w = arg;
    uint32_t started = 0, live = 0;
    for (; started < WINDOW; started++, live++)
        worker_start(w, &w->recs[started]);
    uint64_t deadline = rose_now_ns() + (uint64_t)DEADLINE_S * 1000000000u;
    while (live > 0) {
        void *p;
        rose_wakeq_clear(w->sink);
        while (rose_wakeq_pop(w->sink, &p) == ROSE_OK) {
            rec *x = rose_request_user(p);
            if (!rec_poll(x, p)) continue;
            rec_verify(x);
            w->n_tokens += x->n_got;
            live--;
            if (started == PER_THREAD) continue;
            worker_start(w, x);
            started++;
            live++;
        }
        if (rose_now_ns() > deadline) fail_msg("%u requests hang", live);
        if (live > 0) rose_wakeq_wait(w->sink, 1000000000u);
    }
    return NULL;
}

static void test_submitters(void **state)
{
    (void)state;
    uint64_t s = test_seed(), n_tokens = 0, n_full = 0;
    fake_reset();
    rose_engine_opts o = small_opts();
    o.backend.max_seqs = 32;
    o.backend.max_step_tokens = 128;
    o.backend.kv_pages = 100;
    o.max_queued = 60; /* fewer than the threads want */
    rose_engine *e = open_engine(&o);
    worker *w = calloc(N_THREADS, sizeof *w);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        w[i].e = e;
        w[i].seed = rnd(&s) | 1;
        w[i].sink = open_sink(WINDOW);
        assert_int_equal(pthread_create(&w[i].thread, NULL, worker_main, &w[i]), 0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++) {
        pthread_join(w[i].thread, NULL);
        n_tokens += w[i].n_tokens;
        n_full += w[i].n_full;
    }
    verify_idle(e);
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.finished, N_THREADS * PER_THREAD);
    assert_int_equal(st.generated_tokens, n_tokens);
    printf("%d requests of %d threads, %llu tokens, %llu refused as full, widest step %u\n",
           N_THREADS * PER_THREAD, N_THREADS, (unsigned long long)n_tokens,
           (unsigned long long)n_full, atomic_load(&fake.widest));
    rose_engine_close(e);
    for (uint32_t i = 0; i < N_THREADS; i++)
        rose_wakeq_destroy(w[i].sink);
    free(w);
}

/* ---- cancels ---- */

enum { N_CANCELS = 5000, CANCEL_WINDOW = 48 };

/* A second thread cancels what it finds in these slots; the lock keeps a request from being
 * released under it, as the header asks of callers. */
typedef struct board {
    pthread_mutex_t lock;
    rose_request *slots[CANCEL_WINDOW];
    bool stop;
    uint64_t seed;
} board;

static void *canceller(void *arg)
{
    board *b = arg;
    for (;;) {
        pthread_mutex_lock(&b->lock);
        rose_request *r = b->slots[rnd_in(&b->seed, 0, CANCEL_WINDOW - 1)];
        if (r != NULL) rose_request_cancel(r);
        bool stop = b->stop;
        pthread_mutex_unlock(&b->lock);
        if (stop) return NULL;
        usleep(rnd_in(&b->seed, 0, 60));
    }
}

static void board_set(board *b, uint32_t i, rose_request *r)
{
    pthread_mutex_lock(&b->lock);
    b->slots[i] = r;
    pthread_mutex_unlock(&b->lock);
}

static void cancel_start(rec *x, board *b, uint32_t slot, rose_engine *e, rose_wakeq *sink,
                         uint64_t *s)
{
    rec_random(x, s, 100, 28);
    uint32_t how = rnd_in(s, 0, 3);
    if (how == 0) x->cancel_after = rnd_in(s, 1, 20); /* from the consumer, during */
    assert_int_equal(rec_submit(x, e, sink, NULL), ROSE_OK);
    if (how == 1) rose_request_cancel(x->r); /* before, or just begun */
    if (how == 2) board_set(b, slot, x->r);  /* by the other thread, any time */
}

/* As rec_poll, but the request leaves the board, and is sometimes cancelled after its end. */
static bool cancel_poll(rec *x, board *b, uint32_t slot, uint64_t *s)
{
    rose_event ev;
    rose_request *r = x->r;
    while (rose_request_poll(r, &ev) == ROSE_OK) {
        if (ev.has_token) {
            x->got[x->n_got++] = ev.id;
            if (x->n_got == x->cancel_after) rose_request_cancel(r);
        }
        if (ev.finish == ROSE_FINISH_NONE) continue;
        x->finish = (rose_finish)ev.finish;
        if (rnd_in(s, 0, 3) == 0) rose_request_cancel(r); /* after */
        board_set(b, slot, NULL);
        rose_request_release(r);
        rec_verify(x);
        return true;
    }
    return false;
}

static void test_cancels(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    fake_reset();
    rose_engine_opts o = small_opts();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(CANCEL_WINDOW);
    rec *x = calloc(CANCEL_WINDOW, sizeof *x);
    board b = {.seed = rnd(&s) | 1};
    pthread_t t;
    pthread_mutex_init(&b.lock, NULL);
    assert_int_equal(pthread_create(&t, NULL, canceller, &b), 0);
    uint32_t started = 0, live = 0, cancelled = 0;
    for (; started < CANCEL_WINDOW; started++, live++)
        cancel_start(&x[started], &b, started, e, sink, &s);
    uint64_t deadline = rose_now_ns() + (uint64_t)DEADLINE_S * 1000000000u;
    while (live > 0) {
        void *p;
        rose_wakeq_clear(sink);
        while (rose_wakeq_pop(sink, &p) == ROSE_OK) {
            rec *y = rose_request_user(p);
            uint32_t slot = (uint32_t)(y - x);
            if (!cancel_poll(y, &b, slot, &s)) continue;
            cancelled += y->finish == ROSE_FINISH_CANCELLED;
            live--;
            if (cancelled >= N_CANCELS) continue;
            cancel_start(y, &b, slot, e, sink, &s);
            started++;
            live++;
        }
        if (rose_now_ns() > deadline) fail_msg("%u requests hang", live);
        if (live > 0) rose_wakeq_wait(sink, 1000000000u);
    }
    pthread_mutex_lock(&b.lock);
    b.stop = true;
    pthread_mutex_unlock(&b.lock);
    pthread_join(t, NULL);
    verify_idle(e);
    rose_engine_stats st = rose_engine_get_stats(e);
    assert_int_equal(st.cancelled, cancelled);
    assert_int_equal(st.finished, started);
    printf("%u requests, %u cancelled\n", started, cancelled);
    rose_engine_close(e);
    pthread_mutex_destroy(&b.lock);
    rose_wakeq_destroy(sink);
    free(x);
}

/* ---- cancels that race with close ---- */

static void *cancel_all(void *arg)
{
    rec *x = arg;
    for (uint32_t i = 0; i < 50; i++)
        rose_request_cancel(x[i].r);
    return NULL;
}

static void test_cancel_while_closing(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    rose_log_set_level(ROSE_LOG_OFF);
    for (int round = 0; round < 60; round++) {
        fake_reset();
        rose_engine_opts o = small_opts();
        rose_engine *e = open_engine(&o);
        rose_wakeq *sink = open_sink(50);
        rec *x = calloc(50, sizeof *x);
        for (uint32_t i = 0; i < 50; i++) {
            rec_random(&x[i], &s, 50, 28);
            assert_int_equal(rec_submit(&x[i], e, sink, NULL), ROSE_OK);
        }
        pthread_t t;
        assert_int_equal(pthread_create(&t, NULL, cancel_all, x), 0);
        usleep(rnd_in(&s, 0, 200));
        rose_engine_close(e); /* the canceller may still be about to wake the engine */
        pthread_join(t, NULL);
        consume(sink, 50);
        for (uint32_t i = 0; i < 50; i++)
            rec_verify(&x[i]);
        rose_wakeq_destroy(sink);
        free(x);
    }
    rose_log_set_level(ROSE_LOG_WARN);
}

/* ---- a cancel whose request waits for an incomplete push ---- */

enum { PAGE = 4096 };

/* A submitter that took its place in the inbox and lost its core before it filled it: its push
 * reads a page that it may not, and the handler waits. */
static struct {
    sem_t reached, go;
    void *page; /* holds what is pushed */
    rose_engine *e;
} late;

static void on_fault(int sig)
{
    (void)sig;
    sem_post(&late.reached);
    while (sem_wait(&late.go) != 0)
        ;
    mprotect(late.page, PAGE, PROT_READ | PROT_WRITE);
}

static void *push_late(void *arg)
{
    (void)arg;
    assert_int_equal(rose_mpsc_push(late.e->inbox, late.page), ROSE_OK);
    rose_port_wake(late.e->port);
    return NULL;
}

/* rec_submit as far as the push, for which *at is ready. */
static void submit_half(rec *x, rose_engine *e, rose_wakeq *sink, rose_request **at)
{
    const rose_rules_ctx none = {0};
    const rose_request_opts o = {.prompt = x->prompt,
                                 .n_prompt = x->n_prompt,
                                 .max_tokens = x->max_tokens,
                                 .sampling = {.temperature = 1, .top_p = 1, .seed = x->seed},
                                 .ignore_eos = x->ignore_eos,
                                 .sink = sink,
                                 .user = x};
    *at = x->r = rose_request_create(&o, x->max_tokens, e->port, &none);
    assert_non_null(x->r);
    atomic_fetch_add(&e->n_queued, 1);
    atomic_fetch_add(&e->n_queued_tokens, x->n_prompt);
}

static void test_cancel_behind_a_late_push(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    struct sigaction sa = {.sa_handler = on_fault}, old;
    pthread_t t;
    rec *x = calloc(2, sizeof *x);
    fake_reset();
    rose_engine_opts o = small_opts();
    late.e = open_engine(&o);
    rose_wakeq *sink = open_sink(2);
    sem_init(&late.reached, 0, 0);
    sem_init(&late.go, 0, 0);
    late.page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(late.page, MAP_FAILED);
    rec_random(&x[0], &s, 20, 5);
    rec_random(&x[1], &s, 20, 5);
    submit_half(&x[0], late.e, sink, late.page);
    mprotect(late.page, PAGE, PROT_NONE);
    sigaction(SIGSEGV, &sa, &old);
    assert_int_equal(pthread_create(&t, NULL, push_late, NULL), 0);
    while (sem_wait(&late.reached) != 0)
        ;
    assert_int_equal(rec_submit(&x[1], late.e, sink, NULL), ROSE_OK);
    rose_request_cancel(x[1].r);
    usleep(20000); /* the engine looks: the request is still in its inbox, so it must live on */
    void *p;
    assert_int_equal(rose_wakeq_pop(sink, &p), ROSE_E_EMPTY);
    sem_post(&late.go);
    pthread_join(t, NULL);
    sigaction(SIGSEGV, &old, NULL);
    consume(sink, 2);
    rec_verify(&x[0]);
    rec_verify(&x[1]);
    assert_int_equal(x[1].finish, ROSE_FINISH_CANCELLED);
    verify_idle(late.e);
    rose_engine_close(late.e);
    rose_wakeq_destroy(sink);
    munmap(late.page, PAGE);
    free(x);
}

/* ---- idle ---- */

static void test_idle(void **state)
{
    (void)state;
    uint64_t s = test_seed();
    fake_reset();
    rose_engine_opts o = small_opts();
    rose_engine *e = open_engine(&o);
    rose_wakeq *sink = open_sink(1);
    rec *x = malloc(sizeof *x);
    for (int i = 0; i < 200; i++) { /* asleep before each */
        rec_random(x, &s, 20, 5);
        if (i % 10 == 0) usleep(2000);
        assert_int_equal(rec_submit(x, e, sink, NULL), ROSE_OK);
        consume(sink, 1);
        rec_verify(x);
    }
    struct rusage a, b;
    assert_int_equal(rose_engine_expect(e), mode_ops()->caps != 0); /* and nothing comes */
    getrusage(RUSAGE_SELF, &a);
    sleep(1);
    getrusage(RUSAGE_SELF, &b);
    long us =
        (b.ru_utime.tv_sec - a.ru_utime.tv_sec + b.ru_stime.tv_sec - a.ru_stime.tv_sec) * 1000000L +
        (b.ru_utime.tv_usec - a.ru_utime.tv_usec + b.ru_stime.tv_usec - a.ru_stime.tv_usec);
    printf("idle for 1 s: %ld us of CPU, %ld switches\n", us, b.ru_nvcsw - a.ru_nvcsw);
    assert_true(us < 500000); /* an engine that spins would take all of it */
    close_all(e, sink, x);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_submitters),
        cmocka_unit_test(test_cancels),
        cmocka_unit_test(test_cancel_while_closing),
        cmocka_unit_test(test_cancel_behind_a_late_push),
        cmocka_unit_test(test_idle),
    };
    int failed = 0;
    for (test_mode = 0; test_mode < N_MODES; test_mode++)
        failed += cmocka_run_group_tests_name("engine threads", tests, NULL, NULL);
    return failed;
}
