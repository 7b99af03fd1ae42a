/* Streams that wait for their first token: when the head of the response goes out, signs of life,
 * and errors before and after the head. The test fires the timer, so no clock decides. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fakes.h"

#include "base/clock.h"
#include "base/log.h"

static const uint32_t script[] = {FAKE_WORD0, FAKE_WORD0 + 1};

typedef struct path {
    const char *path, *body, *ping, *error[2]; /* texts that an error event has */
} path;

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":9"
static const path paths[] = {
    {"/v1/completions",
     "{\"prompt\":\"x\",\"stream\":true}",
     ": ping\n\n",
     {"data: {\"error\":{\"message\":\"", "data: [DONE]\n\n"}},
    {"/v1/chat/completions",
     "{" MESSAGES ",\"stream\":true}",
     ": ping\n\n",
     {"data: {\"error\":{\"message\":\"", "data: [DONE]\n\n"}},
    {"/v1/responses",
     "{\"input\":\"x\",\"stream\":true}",
     ": ping\n\n",
     {"event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,",
      "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":2,"}},
    {"/v1/messages",
     "{" MESSAGES ",\"stream\":true}",
     "event: ping\ndata: {\"type\":\"ping\"}\n\n",
     {"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"", "\"}}\n\n"}},
};
enum { N_PATHS = sizeof paths / sizeof *paths };

static rose_api *start(float ping_s)
{
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.async_admit = false;
    o.sse_ping_s = ping_s;
    fake_reset();
    fake_script = script;
    fake_script_len = 2;
    fake_no_room = false;
    fake_arrival_ns = 1; /* long ago */
    rose_api *a = fake_start(&o);
    assert_non_null(a);
    return a;
}

static rose_http_req *ask(const path *p)
{
    rose_http_req *r = fake_request(p->path, p->body, strlen(p->body));
    fake_arrive(r);
    assert_int_equal(r->status, 0);
    return r;
}

static void end(rose_api *a, rose_http_req *r)
{
    assert_null(fake_look_timer);
    fake_free(r);
    fake_stop(a);
    assert_int_equal(fake.n_live, 0);
}

/* The number of events of a stream. */
static size_t events_of(const char *text)
{
    size_t n = 0;
    for (; (text = strstr(text, "data: ")) != NULL; text++)
        n++;
    return n;
}

/* The head goes out when the engine begins; the text is that of a stream that did not wait. */
static void the_head_at_admission(void **state)
{
    (void)state;
    for (int i = 0; i < N_PATHS; i++) {
        rose_api *a = start(1000);
        rose_http_req *r = ask(&paths[i]);
        assert_int_equal(fake_look_ms, 100);
        fake_look();
        assert_true(r->begun);
        assert_true(fake_look_ms > 900000); /* the thread may sleep until a sign of life is due */
        assert_int_equal(r->status, 200);
        assert_non_null(strstr(r->headers, "Cache-Control: no-cache"));
        assert_int_equal(r->out.len, 0);
        fake_look(); /* nothing more is due */
        assert_int_equal(r->out.len, 0);
        fake_run(r);
        assert_true(r->ended);
        const size_t n = events_of(fake_text(r));
        assert_non_null(strstr(fake_text(r), "Hello"));
        fake_free(r);
        r = ask(&paths[i]);
        fake_run(r);
        assert_int_equal(events_of(fake_text(r)), n);
        end(a, r);
    }
}

/* A first token that comes soon takes the head with it. */
static void a_young_stream_is_left_alone(void **state)
{
    (void)state;
    rose_api *a = start(1000);
    fake_arrival_ns = rose_now_ns() + UINT64_C(3600000000000);
    rose_http_req *r = ask(&paths[0]);
    fake_look();
    assert_false(r->begun);
    fake_run(r);
    assert_true(r->ended);
    end(a, r);
}

/* In the queue it stays silent, then the time of a sign of life has come, and again. */
static void signs_of_life(void **state)
{
    (void)state;
    for (int i = 0; i < N_PATHS; i++) {
        const size_t n = strlen(paths[i].ping);
        rose_api *a = start(0.002f);
        fake_no_room = true;
        rose_http_req *r = ask(&paths[i]);
        if (i == 0) rose_api_drain(a); /* changes nothing for those that wait */
        for (size_t k = 1; k <= 3; k++) {
            usleep(3000);
            fake_look();
            assert_true(r->begun);
            assert_int_equal(r->out.len, k * n);
            assert_memory_equal(r->out.data + (k - 1) * n, paths[i].ping, n);
        }
        fake_run(r);
        assert_true(r->ended);
        assert_non_null(strstr(fake_text(r), "Hello"));
        assert_null(strstr(fake_text(r) + 3 * n, "\n: ping\n")); /* no more of them */
        end(a, r);
    }
}

static void in_the_queue_it_has_no_head(void **state)
{
    (void)state;
    rose_api *a = start(1000);
    fake_no_room = true;
    rose_http_req *r = ask(&paths[0]);
    fake_look();
    assert_false(r->begun);
    fake.fail_at = 1;
    fake.fail_how = ROSE_FINISH_LATE;
    fake_run(r);
    assert_int_equal(r->status, 429);
    assert_non_null(strstr(r->headers, "Retry-After"));
    end(a, r);
}

/* After the head an error is an event of the stream, in the form of its API. */
static void errors_after_the_head(void **state)
{
    static const rose_finish how[] = {ROSE_FINISH_LATE, ROSE_FINISH_ERROR, ROSE_FINISH_CANCELLED};
    (void)state;
    for (int i = 0; i < N_PATHS * 3; i++) {
        const path *p = &paths[i / 3];
        rose_api *a = start(1000);
        rose_http_req *r = ask(p);
        fake_look();
        fake.fail_at = 1;
        fake.fail_how = how[i % 3];
        fake_run(r);
        assert_true(r->ended);
        assert_int_equal(r->status, 200);
        const char *first = strstr(fake_text(r), p->error[0]);
        assert_true(first == fake_text(r));
        const char *last = strstr(first, p->error[1]);
        assert_non_null(last);
        if (strcmp(p->path, "/v1/responses") != 0)
            assert_int_equal(strlen(last), strlen(p->error[1]));
        end(a, r);
    }
}

static void none(void **state)
{
    (void)state;
    rose_api *a = start(0);
    rose_http_req *r = ask(&paths[1]);
    assert_null(fake_look_timer);
    fake_run(r);
    fake_free(r);
    static const char body[] = "{\"prompt\":\"x\"}"; /* no stream */
    fake_stop(a);
    a = start(0.002f);
    r = fake_request("/v1/completions", body, sizeof body - 1);
    fake_arrive(r);
    assert_null(fake_look_timer);
    fake_run(r);
    assert_int_equal(r->status, 200);
    end(a, r);
}

/* A client leaves while it waits, or within the write of a sign of life. */
static void clients_that_leave(void **state)
{
    (void)state;
    for (int within = 0; within < 2; within++) {
        rose_api *a = start(0.002f);
        rose_http_req *r = ask(&paths[1]);
        if (within) {
            r->gone_at_write = 0;
            usleep(3000);
            fake_look();
        } else {
            fake_leave(r);
        }
        assert_true(r->gone);
        assert_null(fake_look_timer);
        fake_engine_step();
        fake_turn(0);
        assert_int_equal(fake.n_cancelled, 1);
        end(a, r);
    }
}

/* A stream that comes later is looked at soon, although the timer was set for the next sign of
 * life. */
static void a_second_stream(void **state)
{
    (void)state;
    rose_api *a = start(1000);
    rose_http_req *first = ask(&paths[0]);
    fake_look();
    rose_http_req *second = ask(&paths[1]);
    assert_int_equal(fake_look_ms, 100);
    fake_look();
    assert_true(second->begun);
    assert_true(fake_look_ms > 900000);
    fake_run(first);
    fake_run(second);
    fake_free(first);
    end(a, second);
}

/* One timer serves all; it ends with the last stream that waits. */
static void many_wait(void **state)
{
    enum { N = 5 };
    rose_http_req *r[N];
    (void)state;
    rose_api *a = start(0.002f);
    for (int i = 0; i < N; i++)
        r[i] = ask(&paths[i % N_PATHS]); /* a second timer would abort */
    fake_leave(r[2]);
    r[1]->gone_at_write = 0;
    usleep(3000);
    fake_look();
    for (int i = 0; i < N; i++) {
        assert_int_equal(r[i]->begun, i != 2);
        assert_int_equal(r[i]->gone, i == 1 || i == 2);
        assert_int_equal(r[i]->out.len, r[i]->gone ? 0 : strlen(paths[i % N_PATHS].ping));
    }
    assert_non_null(fake_look_timer);
    for (int i = 0; i < N; i++) {
        if (!r[i]->gone) fake_run(r[i]);
        assert_int_equal(r[i]->ended, !r[i]->gone);
    }
    for (int i = 1; i < N; i++)
        fake_free(r[i]);
    end(a, r[0]);
}

int main(void)
{
    rose_log_set_level(ROSE_LOG_OFF);
    fake_arch.eos_ids[0] = FAKE_EOS;
    fake_arch.n_eos = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_head_at_admission),
        cmocka_unit_test(a_young_stream_is_left_alone),
        cmocka_unit_test(signs_of_life),
        cmocka_unit_test(in_the_queue_it_has_no_head),
        cmocka_unit_test(errors_after_the_head),
        cmocka_unit_test(none),
        cmocka_unit_test(clients_that_leave),
        cmocka_unit_test(a_second_stream),
        cmocka_unit_test(many_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
