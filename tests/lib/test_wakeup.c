/* The C library: one descriptor for many requests, and threads. The texts of a crowd are those
 * of each request alone. ASAN and TSAN run this test too. */
#include "lib/lib_fixture.h"

#include <poll.h>
#include <pthread.h>

enum { N = 48, TOKENS = 20 };

static const char *const prompts[] = {"Once upon a time", "The king", "A little girl said",
                                      "In the deep forest", "He was"};

static rose_lib_params params_of(uint32_t i)
{
    rose_lib_params p;
    rose_lib_params_default(&p);
    p.max_tokens = TOKENS - i % 7;
    p.temperature = i % 3 == 0 ? 0.0f : 1.0f;
    p.seed = i;
    p.ignore_eos = 1;
    return p;
}

static const char *prompt_of(uint32_t i)
{
    return prompts[i % (sizeof prompts / sizeof *prompts)];
}

/* What each request gives alone. */
static void generate_each(rose_lib *rose, char *want[N])
{
    for (uint32_t i = 0; i < N; i++) {
        const rose_lib_params p = params_of(i);
        want[i] = generate(rose, prompt_of(i), &p);
    }
}

typedef struct reply {
    uint32_t index;
    rose_buf text;
    rose_lib_finish finish;
} reply;

static rose_lib_request *submit_to_crowd(rose_lib *rose, reply *to)
{
    rose_lib_params p = params_of(to->index);
    p.wakeup = 1;
    p.user = to;
    return submit(rose, prompt_of(to->index), &p);
}

/* Reads what is there; true: the request has ended. */
static bool read_some(rose_lib_request *r)
{
    reply *to = rose_lib_user(r);
    rose_lib_piece piece;
    rose_lib_piece_init(&piece);
    while (rose_lib_next(r, &piece, 0) == 1)
        assert_int_equal(rose_buf_add(&to->text, piece.text, piece.text_len), ROSE_OK);
    to->finish = piece.finish;
    return piece.finish != ROSE_LIB_RUNNING;
}

static void wait_readable(const rose_lib *rose)
{
    struct pollfd fd = {.fd = rose_lib_wakeup_fd(rose), .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 60000), 1);
}

static void check_replies(reply *replies, char *const want[N])
{
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(replies[i].finish, ROSE_LIB_LENGTH);
        assert_string_equal(rose_buf_str(&replies[i].text), want[i]);
        rose_buf_free(&replies[i].text);
    }
}

static void free_texts(char *texts[N])
{
    for (uint32_t i = 0; i < N; i++)
        free(texts[i]);
}

/* cap: of rose_lib_ready. */
static void read_crowd(rose_lib *rose, char *const want[N], size_t cap)
{
    reply replies[N];
    rose_lib_request *ready[N];
    rose_lib_piece piece;
    uint32_t left = N;
    memset(replies, 0, sizeof replies);
    for (uint32_t i = 0; i < N; i++) {
        replies[i].index = i;
        rose_lib_request *r = submit_to_crowd(rose, &replies[i]);
        rose_lib_piece_init(&piece);
        assert_int_equal(rose_lib_next(r, &piece, 1), ROSE_LIB_E_INVAL); /* it never waits */
        assert_int_equal(rose_lib_next(r, &piece, -1), ROSE_LIB_E_INVAL);
    }
    while (left > 0) {
        wait_readable(rose);
        const size_t n = rose_lib_ready(rose, ready, cap);
        assert_true(n <= cap);
        for (size_t i = 0; i < n; i++) {
            if (!read_some(ready[i])) continue;
            rose_lib_release(ready[i]);
            left--;
        }
    }
    check_replies(replies, want);
    assert_int_equal(rose_lib_ready(rose, ready, N), 0);
    assert_int_equal(rose_lib_ready(rose, NULL, 0), 0);
}

static void one_loop(void **state)
{
    rose_lib *rose = open_with((rose_lib_options){.max_num_seqs = 8, .kv_pages = 128});
    char *want[N];
    (void)state;
    generate_each(rose, want);
    read_crowd(rose, want, N);
    read_crowd(rose, want, 1);
    free_texts(want);
    rose_lib_close(rose);
}

/* ---- several threads read ---- */

typedef struct readers {
    rose_lib *rose;
    pthread_mutex_t lock;
    uint32_t left;
} readers;

static uint32_t left_of(readers *x, uint32_t ended)
{
    pthread_mutex_lock(&x->lock);
    x->left -= ended;
    const uint32_t left = x->left;
    pthread_mutex_unlock(&x->lock);
    return left;
}

static void *read_thread(void *arg)
{
    readers *x = arg;
    rose_lib_request *ready[3];
    uint32_t ended = 0;
    while (left_of(x, ended) > 0) {
        struct pollfd fd = {.fd = rose_lib_wakeup_fd(x->rose), .events = POLLIN};
        (void)poll(&fd, 1, 10); /* another thread may have read the last piece of all */
        const size_t n = rose_lib_ready(x->rose, ready, 3);
        ended = 0;
        for (size_t i = 0; i < n; i++) {
            if (!read_some(ready[i])) continue;
            rose_lib_release(ready[i]);
            ended++;
        }
    }
    return NULL;
}

static void many_threads(void **state)
{
    rose_lib *rose = open_with((rose_lib_options){.max_num_seqs = 8, .kv_pages = 128});
    char *want[N];
    reply replies[N];
    pthread_t threads[3];
    readers x = {.rose = rose, .lock = PTHREAD_MUTEX_INITIALIZER, .left = N};
    (void)state;
    memset(replies, 0, sizeof replies);
    generate_each(rose, want);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_thread, &x), 0);
    for (uint32_t i = 0; i < N; i++) {
        replies[i].index = i;
        submit_to_crowd(rose, &replies[i]);
    }
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    check_replies(replies, want);
    free_texts(want);
    rose_lib_close(rose);
}

/* Threads that each wait for requests of their own. */
static void *own_thread(void *arg)
{
    rose_lib *rose = arg;
    for (uint32_t i = 0; i < 6; i++) {
        const rose_lib_params p = params_of(i);
        char *a = generate(rose, prompt_of(i), &p), *b = generate(rose, prompt_of(i), &p);
        assert_string_equal(a, b);
        free(a);
        free(b);
    }
    return NULL;
}

static void own_queues(void **state)
{
    rose_lib *rose = open_lib(NULL);
    pthread_t threads[3];
    (void)state;
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, own_thread, rose), 0);
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    rose_lib_close(rose);
}

/* ---- cancel and release ---- */

static void *cancel_thread(void *arg)
{
    rose_lib_cancel(arg);
    return NULL;
}

static void cancelled(void **state)
{
    rose_lib *rose = open_lib(NULL);
    (void)state;
    for (int wakeup = 0; wakeup < 2; wakeup++) {
        rose_lib_params p;
        rose_lib_request *ready[2];
        rose_lib_piece piece;
        pthread_t thread;
        rose_lib_params_default(&p);
        rose_lib_piece_init(&piece);
        p.max_tokens = 400;
        p.ignore_eos = 1;
        p.wakeup = wakeup;
        rose_lib_request *r = submit(rose, "Once", &p);
        assert_int_equal(pthread_create(&thread, NULL, cancel_thread, r), 0);
        uint32_t n = 0;
        while (piece.finish == ROSE_LIB_RUNNING) {
            if (wakeup) {
                wait_readable(rose);
                if (rose_lib_ready(rose, ready, 2) == 0) continue;
                assert_ptr_equal(ready[0], r);
            }
            while (rose_lib_next(r, &piece, wakeup ? 0 : -1) == 1)
                n += (uint32_t)piece.has_token;
        }
        pthread_join(thread, NULL);
        /* the cancel came before the end, as 400 tokens take longer; if not, the end is LENGTH */
        assert_true(piece.finish == ROSE_LIB_CANCELLED ||
                    (piece.finish == ROSE_LIB_LENGTH && n == 400));
        assert_string_equal(rose_lib_request_error(r), "");
        rose_lib_cancel(r); /* after the end it does nothing */
        rose_lib_release(r);
    }
    rose_lib_close(rose);
}

/* Requests that are released at every stage, while others run to their end. */
static void released_early(void **state)
{
    rose_lib *rose = open_lib(NULL);
    rose_lib_request *ready[N];
    rose_lib_piece piece;
    (void)state;
    rose_lib_piece_init(&piece);
    for (uint32_t round = 0; round < 40; round++) {
        rose_lib_params p = params_of(round);
        p.wakeup = 1;
        p.max_tokens = 30;
        rose_lib_request *keep = submit(rose, prompt_of(round), &p);
        rose_lib_request *drop = submit(rose, prompt_of(round + 1), &p);
        uint32_t pieces = 0;
        bool dropped = round % 4 == 0;
        if (dropped) rose_lib_release(drop);
        for (bool over = false; !over;) {
            wait_readable(rose);
            const size_t n = rose_lib_ready(rose, ready, N);
            for (size_t i = 0; i < n; i++) {
                assert_true(ready[i] == keep || (ready[i] == drop && !dropped));
                while (rose_lib_next(ready[i], &piece, 0) == 1) {
                    if (ready[i] == keep) over = piece.finish != ROSE_LIB_RUNNING;
                    if (ready[i] != drop || ++pieces != round % 8) continue;
                    dropped = true; /* with pieces unread */
                    rose_lib_release(drop);
                    break;
                }
            }
        }
        rose_lib_release(keep);
        if (!dropped) rose_lib_release(drop);
    }
    rose_lib_close(rose);
}

static void closed_early(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        rose_lib *rose = open_lib(NULL);
        rose_lib_request *r[4], *ready[4];
        for (uint32_t i = 0; i < 4; i++) {
            rose_lib_params p = params_of(i);
            p.wakeup = i % 2 == 0;
            p.max_tokens = 300;
            r[i] = submit(rose, prompt_of(i), &p);
        }
        if (round % 3 == 1) rose_lib_release(r[0]);
        if (round % 3 == 2) {
            wait_readable(rose);
            assert_true(rose_lib_ready(rose, ready, 1) == 1);
        }
        rose_lib_close(rose); /* with requests that run, wait, were listed or were released */
    }
}

/* The shared queue is bounded: whoever does not read is told so. */
static void full(void **state)
{
    rose_lib *rose = open_with((rose_lib_options){.max_num_seqs = 2, .max_queued = 2});
    rose_lib_params p = params_of(0);
    rose_lib_request *r = NULL, *ready[64];
    char err[ROSE_LIB_ERR] = "";
    uint32_t n = 0;
    int rc = 0;
    (void)state;
    p.wakeup = 1;
    p.max_tokens = 1;
    while (rc == 0 && n < 64) {
        rc = rose_lib_submit_text(rose, "Once", 4, &p, &r, err);
        if (rc == 0) n++;
        if (rc == ROSE_LIB_E_FULL && strstr(err, "wait to be read") == NULL) rc = 0;
    }
    assert_int_equal(rc, ROSE_LIB_E_FULL);
    assert_null(r);
    assert_non_null(strstr(err, "read their pieces to the end"));
    while (n > 0) {
        wait_readable(rose);
        const size_t k = rose_lib_ready(rose, ready, 64);
        for (size_t i = 0; i < k; i++) {
            rose_lib_piece piece;
            rose_lib_piece_init(&piece);
            while (rose_lib_next(ready[i], &piece, 0) == 1)
                continue;
            if (piece.finish == ROSE_LIB_RUNNING) continue;
            rose_lib_release(ready[i]);
            n--;
        }
    }
    assert_int_equal(rose_lib_submit_text(rose, "Once", 4, &p, &r, err), 0);
    rose_lib_release(r);
    rose_lib_close(rose);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_loop),       cmocka_unit_test(many_threads),
        cmocka_unit_test(own_queues),     cmocka_unit_test(cancelled),
        cmocka_unit_test(released_early), cmocka_unit_test(closed_early),
        cmocka_unit_test(full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
