/* Who owns what, and when it ends: random interleavings of requests, engine steps, loop turns,
 * clients that leave (also inside a write), refusals and failures, with and without workers. After
 * each run every request has had exactly one end, and the engine and the room hold nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "base/json.h"
#include "fakes.h"

static uint64_t rng;

static uint32_t below(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((rng >> 33) % n);
}

/* Tokens by position and prompt only, so that a reply can be predicted. */
static uint32_t next_word(const rose_request *r, uint32_t i)
{
    uint32_t h = r->prompt_sum * 2654435761u ^ (i + 1) * 0x9E3779B1u;
    h = (h ^ h >> 15) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) % 23;
    if (h == 0) return FAKE_EOS;
    if (h < 13) return FAKE_WORD0 + h % 4; /* Hello, world, ST, OP */
    return 'a' + h;
}

/* The text, token count and reason of a choice with the stop string "STOP". */
typedef struct expected {
    char text[2048];
    uint32_t n_tokens;
    const char *finish;
} expected;

static void predict(expected *x, uint32_t prompt_sum, uint32_t max_tokens, bool stop)
{
    rose_request r = {.prompt_sum = prompt_sum};
    size_t n = 0;
    x->finish = "length";
    for (x->n_tokens = 0; x->n_tokens < max_tokens;) {
        uint32_t id = next_word(&r, x->n_tokens++);
        n += fake_bytes(id, ROSE_DECODE_SKIP_SPECIAL, x->text + n);
        x->text[n] = '\0';
        char *found = stop ? strstr(x->text, "STOP") : NULL;
        if (found != NULL) *found = '\0';
        if (found != NULL || id == FAKE_EOS) {
            x->finish = "stop";
            return;
        }
    }
    x->text[n] = '\0';
}

enum { MAX_CHOICES = 4, MAX_OPEN = 24 };

typedef struct client {
    rose_http_req *r;
    uint32_t prompt_sum, max_tokens, n;
    bool stream, stop, usage;
} client;

typedef struct collected {
    char text[MAX_CHOICES][2048];
    char finish[MAX_CHOICES][8];
    uint32_t n_finished;
    int64_t completion_tokens; /* -1 = no usage */
    bool done, error;
} collected;

static void collect_choice(collected *got, rose_json *c)
{
    size_t i = (size_t)rose_json_int(rose_json_get(c, "index"));
    const char *finish = rose_json_text(rose_json_get(c, "finish_reason"));
    assert_true(i < MAX_CHOICES);
    assert_int_equal(got->finish[i][0], 0); /* nothing comes after the end */
    strcat(got->text[i], rose_json_text(rose_json_get(c, "text")));
    if (finish == NULL) return;
    snprintf(got->finish[i], sizeof got->finish[i], "%s", finish);
    got->n_finished++;
}

static void collect_object(collected *got, const char *text, size_t len)
{
    size_t i;
    rose_json *c, *v = rose_json_loadb(text, len, 0, NULL);
    assert_non_null(v);
    if (rose_json_get(v, "error") != NULL) got->error = true;
    rose_json_each_item (rose_json_get(v, "choices"), i, c)
        collect_choice(got, c);
    rose_json *usage = rose_json_get(v, "usage");
    if (rose_json_is_object(usage))
        got->completion_tokens = rose_json_int(rose_json_get(usage, "completion_tokens"));
    rose_json_decref(v);
}

static void collect(collected *got, client *k)
{
    const char *s = fake_text(k->r);
    memset(got, 0, sizeof *got);
    got->completion_tokens = -1;
    if (!k->r->begun) {
        collect_object(got, s, strlen(s));
        got->done = true;
        return;
    }
    while (*s != '\0') {
        const char *end = strstr(s, "\n\n");
        assert_non_null(end);
        assert_memory_equal(s, "data: ", 6);
        assert_false(got->done);
        if (strncmp(s, "data: [DONE]", 12) == 0)
            got->done = true;
        else
            collect_object(got, s + 6, (size_t)(end - s) - 6);
        s = end + 2;
    }
}

static void check_reply(client *k)
{
    collected got;
    expected want;
    assert_true(k->r->ended != k->r->gone);
    if (k->r->gone) return;
    collect(&got, k);
    assert_true(got.done);
    if (got.error) return;
    assert_int_equal(k->r->status, 200);
    predict(&want, k->prompt_sum, k->max_tokens, k->stop);
    assert_int_equal(got.n_finished, k->n);
    for (uint32_t i = 0; i < k->n; i++) {
        assert_string_equal(got.text[i], want.text);
        assert_string_equal(got.finish[i], want.finish);
    }
    if (!k->stream || k->usage)
        assert_int_equal(got.completion_tokens, k->n * want.n_tokens);
    else
        assert_int_equal(got.completion_tokens, -1);
}

static void arrive(client *k)
{
    char body[256];
    uint32_t a = below(256), b = below(256);
    *k = (client){.prompt_sum = a + b,
                  .max_tokens = 1 + below(40),
                  .n = 1 + below(MAX_CHOICES),
                  .stream = below(2) != 0,
                  .stop = below(2) != 0};
    k->usage = k->stream && below(2) != 0;
    int len = snprintf(body, sizeof body,
                       "{\"prompt\":[%u,%u],\"n\":%u,\"max_tokens\":%u,"
                       "\"stream\":%s%s%s}",
                       a, b, k->n, k->max_tokens, k->stream ? "true" : "false",
                       k->usage ? ",\"stream_options\":{\"include_usage\":true}" : "",
                       k->stop ? ",\"stop\":[\"zzz\",\"STOP\"]" : "");
    k->r = fake_request("/v1/completions", body, (size_t)len);
    if (below(8) == 0) k->r->gone_at_write = (int)below(10);
    fake_arrive(k->r);
}

static void sweep(client *open, uint32_t *n, uint32_t *n_ok)
{
    for (uint32_t i = 0; i < *n;) {
        if (!open[i].r->ended && !open[i].r->gone) {
            i++;
            continue;
        }
        check_reply(&open[i]);
        if (open[i].r->status == 200) (*n_ok)++;
        fake_free(open[i].r);
        open[i] = open[--*n];
    }
}

/* Returns how many requests were answered with 200. */
static uint32_t run_random(bool workers, uint32_t n_turns)
{
    rose_api_opts o;
    client open[MAX_OPEN];
    uint32_t n = 0, n_ok = 0;
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.async_admit = workers;
    o.n_workers = 3;
    o.inline_bytes = below(2) != 0 ? ROSE_API_MAX_INLINE : 0;
    o.poll_us = below(2) != 0 ? 1000000 : 0;
    fake_device = below(2) != 0;
    o.max_queued_jobs = 8;
    o.fast_sse = below(2) != 0;
    o.stream_interval = 1 + below(4);
    fake_reset();
    fake.next = next_word;
    fake.capacity = 20;
    rose_api *a = fake_start(&o);
    assert_non_null(a);
    for (uint32_t i = 0; i < n_turns; i++) {
        uint32_t what = below(16);
        if (what < 5 && n < MAX_OPEN) arrive(&open[n++]);
        if (what >= 4 && what < 10) fake_engine_step();
        /* with workers, wait for them now and then: on a busy machine they would never get a turn
         */
        if (what >= 8 && what < 15) fake_turn(workers && what == 8 ? 1 : 0);
        if (workers && below(64) == 0) usleep(100); /* let them in */
        if (what == 15 && n > 0 && below(4) == 0) fake_leave(open[below(n)].r);
        if (below(500) == 0) fake.fail_at = 1 + below(5);
        if (below(20) == 0) fake.fail_at = 0;
        sweep(open, &n, &n_ok);
    }
    if (below(2) != 0) { /* run dry, or stop with everything open */
        fake.fail_at = 0;
        for (int i = 0; n > 0 && i < 100000; i++) {
            fake_engine_step();
            fake_turn(workers ? 1 : 0);
            sweep(open, &n, &n_ok);
        }
        assert_int_equal(n, 0);
    }
    for (uint32_t i = 0; i < n; i++)
        fake_leave(open[i].r); /* rose_http_stop */
    fake_stop(a);
    sweep(open, &n, &n_ok);
    assert_int_equal(n, 0);
    assert_int_equal(fake.n_live, 0);
    assert_int_equal(fake.n_running, 0);
    assert_int_equal(fake.n_submitted, fake.n_released);
    return n_ok;
}

static void random_inline(void **state)
{
    uint32_t n_ok = 0;
    (void)state;
    for (int i = 0; i < 20; i++)
        n_ok += run_random(false, 3000);
    assert_true(n_ok > 1000);
}

static void random_workers(void **state)
{
    uint32_t n_ok = 0;
    (void)state;
    for (int i = 0; i < 20; i++)
        n_ok += run_random(true, 3000);
    assert_true(n_ok > 50); /* how many depends on the threads' timing */
}

static rose_api *start(bool workers)
{
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.async_admit = workers;
    o.n_workers = 1;
    o.inline_bytes = 0;
    o.max_queued_jobs = 2;
    fake_reset();
    fake.next = next_word;
    return fake_start(&o);
}

static rose_http_req *ask(const char *path, const char *body)
{
    rose_http_req *r = fake_request(path, body, body == NULL ? 0 : strlen(body));
    fake_arrive(r);
    return r;
}

/* The engine takes two of three choices: the two are taken back, the client hears 429. */
static void all_or_nothing(void **state)
{
    (void)state;
    rose_api *a = start(false);
    fake.capacity = 2;
    fake.retry_after_s = 12;
    rose_http_req *r = ask("/v1/completions", "{\"prompt\":\"x\",\"n\":3}");
    assert_int_equal(r->status, 429);
    assert_string_equal(r->headers, "Retry-After: 12\r\n");
    assert_non_null(strstr(fake_text(r), "rate_limit_error"));
    assert_int_equal(fake.n_running, 2);
    fake_engine_step();
    fake_turn(0);
    assert_int_equal(fake.n_cancelled, 2);
    assert_int_equal(fake.n_live, 0);
    fake_free(r);
    fake_stop(a);
}

/* A first token that would come too late is a 429 of its own, at the door or from the queue, before
 * any header of a stream; the wait is the engine's. */
static void too_late(void **state)
{
    (void)state;
    for (int queued = 0; queued < 2; queued++) {
        rose_api *a = start(false);
        fake.retry_after_s = 37;
        if (queued == 0) fake.submit_status = ROSE_E_LATE;
        fake.fail_at = 1;
        fake.fail_how = ROSE_FINISH_LATE;
        rose_http_req *r = ask("/v1/completions", "{\"prompt\":\"x\",\"n\":2,\"stream\":true}");
        fake_run(r);
        assert_int_equal(r->status, 429);
        assert_false(r->begun);
        assert_string_equal(r->headers, "Retry-After: 37\r\n");
        assert_non_null(
            strstr(fake_text(r), "\"rate_limit_error\",\"param\":null,\"code\":\"slo_ttft\""));
        assert_int_equal(fake.n_live, 0);
        fake_free(r);
        r = ask("/metrics", NULL);
        assert_non_null(strstr(fake_text(r), "reason=\"slo_ttft\"} 1\n"));
        assert_non_null(strstr(fake_text(r), "reason=\"queue_full\"} 0\n"));
        assert_non_null(strstr(fake_text(r), "finished_reason=\"error\"} 0\n"));
        fake_free(r);
        fake_stop(a);
    }
}

/* No token is left: the client's error. After a token of a stream it is an error event. */
static void no_token_left(void **state)
{
    (void)state;
    for (uint32_t at = 1; at <= 2; at++) {
        rose_api *a = start(false);
        fake.fail_at = at;
        fake.fail_how = ROSE_FINISH_NO_TOKEN;
        rose_http_req *r = ask("/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
        fake_run(r);
        assert_int_equal(r->status, at == 1 ? 400 : 200);
        assert_int_equal(strstr(r->headers, "Retry-After") != NULL, 0);
        assert_non_null(strstr(fake_text(r), "\"invalid_request_error\",\"param\":null,\"code\":"
                                             "\"no_token_left\""));
        fake_free(r);
        fake_stop(a);
    }
}

/* Tokens arrive together with the failure after them. In a stream that has begun, the text goes
 * before the error. */
static void text_before_the_error(void **state)
{
    (void)state;
    rose_api *a = start(false);
    fake.fail_at = 4;
    rose_http_req *r = ask("/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
    fake_engine_step();
    fake_turn(0);
    assert_true(r->begun);
    uint32_t n_events = 0;
    for (int i = 0; i < 3; i++)
        fake_engine_step();
    fake_run(r);
    const char *text = fake_text(r), *error = strstr(text, "{\"error\":");
    for (const char *p = text; (p = strstr(p, "\"text\":")) != NULL; p++)
        n_events += p < error;
    assert_int_equal(n_events, 3);
    fake_free(r);
    fake_stop(a);
}

/* The one worker is stuck, two bodies fit into its queue: a fourth request is refused at once. */
static void job_queue_full(void **state)
{
    (void)state;
    rose_api *a = start(true);
    rose_http_req *r[5];
    uint32_t n_refused = 0;
    pthread_mutex_lock(&fake.lock);
    for (int i = 0; i < 5; i++) {
        r[i] = ask("/v1/completions", "{\"prompt\":\"x\"}");
        n_refused += r[i]->status == 429;
    }
    pthread_mutex_unlock(&fake.lock);
    assert_true(n_refused >= 2 && n_refused <= 3);
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 100000 && !r[i]->ended; k++) {
            fake_engine_step();
            fake_turn(1);
        }
        assert_true(r[i]->status == 429 || r[i]->status == 200);
        fake_free(r[i]);
    }
    fake_stop(a);
}

/* A client that leaves, before or after its first token: all its choices end with the next step. */
static void leaving_cancels(void **state)
{
    (void)state;
    for (int n_steps = 0; n_steps < 3; n_steps++) {
        rose_api *a = start(false);
        rose_http_req *r = ask("/v1/completions", "{\"prompt\":\"x\",\"n\":3,\"stream\":true,"
                                                  "\"ignore_eos\":true,\"max_tokens\":40}");
        for (int i = 0; i < n_steps; i++) {
            fake_engine_step();
            fake_turn(0);
        }
        assert_int_equal(fake.n_running, 3);
        fake_leave(r);
        fake_engine_step();
        assert_int_equal(fake.n_running, 0);
        assert_int_equal(fake.n_cancelled, 3);
        fake_turn(0);
        assert_int_equal(fake.n_live, 0);
        fake_free(r);
        fake_stop(a);
    }
}

/* Tokens that ran ahead of the stop string are in the ring when it is found: not text, not counted.
 */
static void tokens_behind_the_stop_string(void **state)
{
    static const uint32_t script[] = {FAKE_WORD0,     FAKE_WORD0 + 2, FAKE_WORD0 + 3, FAKE_WORD0,
                                      FAKE_WORD0 + 1, FAKE_WORD0 + 1, FAKE_WORD0 + 1};
    (void)state;
    for (int ahead = 3; ahead <= 6; ahead++) {
        rose_api *a = start(false);
        fake.next = fake_next_script;
        fake_script = script;
        fake_script_len = 7;
        rose_http_req *r = ask("/v1/completions", "{\"prompt\":\"x\",\"stop\":\"STOP\"}");
        for (int i = 0; i < ahead; i++)
            fake_engine_step();
        fake_run(r);
        assert_non_null(strstr(fake_text(r), "\"text\":\"Hello\""));
        assert_non_null(strstr(fake_text(r), "\"finish_reason\":\"stop\""));
        assert_non_null(strstr(fake_text(r), "\"completion_tokens\":3,"));
        assert_int_equal(fake.n_cancelled, 1);
        fake_free(r);
        fake_stop(a);
    }
}

static void refused_by_engine(void **state)
{
    static const struct {
        rose_status st;
        int status;
    } rows[] = {{ROSE_E_FULL, 429},    {ROSE_E_CLOSED, 503},      {ROSE_E_INVAL, 400},
                {ROSE_E_NOMEM, 503},   {ROSE_E_UNSUPPORTED, 400}, {ROSE_E_BACKEND, 500},
                {ROSE_E_INTERNAL, 500}};
    (void)state;
    rose_api *a = start(false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fake.submit_status = rows[i].st;
        rose_http_req *r = ask("/v1/completions", "{\"prompt\":\"x\",\"stream\":true}");
        assert_int_equal(r->status, rows[i].status);
        assert_int_equal(strstr(r->headers, "Retry-After") != NULL,
                         r->status == 429 || r->status == 503);
        fake_free(r);
    }
    fake_stop(a);
}

static void expect_status(const char *path, const char *body, int status)
{
    rose_http_req *r = ask(path, body);
    assert_int_equal(r->status, status);
    fake_free(r);
}

static void loading_draining_failed(void **state)
{
    rose_api_opts o;
    rose_api *a;
    rose_err err = {0};
    (void)state;
    fake_reset();
    rose_api_opts_default(&o);
    assert_int_equal(rose_api_create(&a, &o, &err), ROSE_OK);
    fake_http.cb = rose_api_callbacks(a);
    assert_int_equal(rose_api_attach(a, &fake_http, &err), ROSE_OK);
    expect_status("/health", NULL, 503);
    expect_status("/ready", NULL, 503);
    expect_status("/v1/models", NULL, 503);
    expect_status("/v1/models/model", NULL, 503);
    expect_status("/tokenizer_info", NULL, 503);
    expect_status("/get_model_info", NULL, 503);
    expect_status("/server_info", NULL, 503);
    expect_status("/v1/loads", NULL, 503);
    expect_status("/v1/completions/render", "{\"prompt\":\"x\"}", 503);
    expect_status("/v1/completions", "{\"prompt\":\"x\"}", 503);
    expect_status("/tokenize", "{\"prompt\":\"x\"}", 503);
    rose_api_set_engine(a, FAKE_ENGINE, &fake_tokenizer);
    expect_status("/ready", NULL, 200);
    rose_api_drain(a);
    expect_status("/health", NULL, 200);
    expect_status("/ready", NULL, 503);
    expect_status("/v1/completions", "{\"prompt\":\"x\"}", 503);
    fake.failed = true;
    expect_status("/health", NULL, 503);
    fake_stop(a);
}

/* /v1/loads tells the engine's own counts. */
static void loads(void **state)
{
    (void)state;
    rose_api *a = start(false);
    fake.n_running = 3;
    rose_http_req *r = ask("/v1/loads?include=core", NULL);
    assert_int_equal(r->status, 200);
    assert_non_null(strstr(fake_text(r),
                           "\"dp_rank_count\":1,\"loads\":[{\"dp_rank\":0,\"num_running_reqs\":3,"
                           "\"num_waiting_reqs\":0,\"num_total_reqs\":3,\"num_used_tokens\":48,"
                           "\"num_total_tokens\":48,\"max_total_num_tokens\":1600,"
                           "\"token_usage\":0.03}]}"));
    fake_free(r);
    fake_stop(a);
}

/* A render takes the way of its request up to the engine, and no further. */
static void render_submits_nothing(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        rose_api *a = start(async != 0);
        fake.submit_status = ROSE_E_BACKEND;
        rose_http_req *r = ask("/v1/completions/render", "{\"prompt\":[\"ab\",\"c\"],\"n\":4}");
        fake_run(r);
        assert_int_equal(r->status, 200);
        assert_int_equal(fake.n_live, 0);
        assert_non_null(strstr(fake_text(r), "\"token_ids\":[97,98],"));
        assert_non_null(strstr(fake_text(r), "\"token_ids\":[99],"));
        fake_free(r);
        fake_stop(a);
    }
}

/* A short chat with a template runs on a worker, because a template is a program. The template's
 * text counts, and nothing of the plain template does. */
static void templates_run_on_workers(void **state)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"<eos>\"}]}";
    rose_api_opts o;
    rose_err err = {0};
    rose_chat *chat = NULL;
    (void)state;
    if (rose_chat_open(&chat, "nowhere", "<eos>{{ messages[0].content }}", &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.n_workers = 1;
    o.chat = chat;
    fake_reset();
    fake.next = next_word;
    rose_api *a = fake_start(&o);
    atomic_store(&fake_encode_held, true);
    rose_http_req *r = ask("/v1/chat/completions", body); /* this thread does not wait */
    assert_false(r->ended);
    atomic_store(&fake_encode_held, false);
    fake_run(r);
    assert_int_equal(r->status, 200);
    fake_free(r);
    r = ask("/tokenize", body);
    fake_run(r);
    assert_non_null(strstr(fake_text(r), "\"tokens\":[256,60,101,111,115,62]"));
    fake_free(r);
    fake_stop(a);
    rose_chat_close(chat);
}

/* Bodies of up to 100 bytes may run inline; the only worker has the job of *busy until
 * fake_encode_held is false. */
static rose_api *start_with_busy_worker(rose_http_req **busy)
{
    char longer[300];
    rose_api_opts o;
    snprintf(longer, sizeof longer, "{\"prompt\":\"x\",\"max_tokens\":1,\"user\":\"%0200d\"}", 0);
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.n_workers = 1;
    o.inline_bytes = 100;
    fake_reset();
    fake.next = next_word;
    rose_api *a = fake_start(&o);
    const unsigned before = atomic_load(&fake_n_encodes);
    atomic_store(&fake_encode_held, true);
    *busy = ask("/v1/completions", longer);
    while (atomic_load(&fake_n_encodes) == before)
        usleep(100);
    return a;
}

/* Short completions run on the I/O thread while the only worker is held, if enough time has
 * passed since the last one. Long ones, those with many choices, and other paths wait for the
 * worker. */
static void short_bodies_run_here(void **state)
{
    (void)state;
    static const char ids[] = "{\"prompt\":[1,2],\"max_tokens\":1}";
    char many[] = "{\"prompt\":[1,2],\"max_tokens\":1,\"n\":5}";
    rose_http_req *r[6];
    rose_api *a = start_with_busy_worker(&r[0]);
    r[1] = ask("/v1/completions", ids);
    assert_int_equal(fake.n_submitted, 1);
    r[2] = ask("/v1/completions", ids); /* too soon */
    assert_int_equal(fake.n_submitted, 1);
    fake_arrival_ns = UINT64_MAX / 2;
    r[3] = ask("/v1/completions", ids);
    assert_int_equal(fake.n_submitted, 2);
    r[4] = ask("/v1/completions", many);
    r[5] = ask("/tokenize", ids);
    assert_int_equal(fake.n_submitted, 2);
    fake_arrival_ns = 1;
    atomic_store(&fake_encode_held, false);
    for (int i = 0; i < 6; i++) {
        fake_run(r[i]);
        assert_int_equal(r[i]->status, i == 5 ? 400 : 200); /* /tokenize takes text */
        fake_free(r[i]);
    }
    assert_int_equal(fake.n_submitted, 9);
    fake_stop(a);
}

/* Prompts are choices too, and a key may be written with escapes: what is short by its bytes alone
 * is no work for the I/O thread. */
static void many_choices_run_elsewhere(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":[[1],[1],[1],[1],[1]],\"max_tokens\":1}",
        "{\"prompt\":[[1],[1],[1]],\"n\":2,\"max_tokens\":1}",
        "{\"prompt\":[1],\"\\u006e\":5,\"max_tokens\":1}",
        "{\"prompt\":[[1],[1],[1],[1]],\"max_tokens\":1}",
        "{\"prompt\":[1,1,1,1,1,1,1],\"max_tokens\":1}",
    };
    rose_http_req *r[6];
    rose_api *a = start_with_busy_worker(&r[5]);
    fake_arrival_ns = UINT64_MAX / 2; /* each comes long after the one before */
    for (int i = 0; i < 5; i++) {
        r[i] = ask("/v1/completions", bodies[i]);
        assert_int_equal(fake.n_submitted, i < 3 ? 0 : i == 3 ? 4 : 5);
    }
    fake_arrival_ns = 1;
    atomic_store(&fake_encode_held, false);
    for (int i = 0; i < 6; i++) {
        fake_run(r[i]);
        assert_int_equal(r[i]->status, 200);
        fake_free(r[i]);
    }
    assert_int_equal(fake.n_submitted, 5 + 6 + 5 + 4 + 1 + 1);
    fake_stop(a);
}

/* Two workers, two long texts: the second waits, and what is short passes it. */
static void long_bodies_leave_a_worker(void **state)
{
    (void)state;
    enum { LONG = 300 << 10 };
    char *text = malloc(LONG);
    rose_api_opts o;
    rose_http_req *r[3];
    assert_non_null(text);
    const int head = sprintf(text, "{\"prompt\":\"");
    memset(text + head, 'x', LONG - (size_t)head);
    memcpy(text + LONG - 3, "\"}", 3);
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.n_workers = 2;
    o.inline_bytes = 0;
    fake_reset();
    fake.next = next_word;
    rose_api *a = fake_start(&o);
    const unsigned before = atomic_load(&fake_n_encodes);
    atomic_store(&fake_encode_held, true);
    r[0] = ask("/tokenize", text);
    r[1] = ask("/tokenize", text);
    r[2] = ask("/v1/completions", "{\"prompt\":[1,2],\"max_tokens\":1}");
    for (uint32_t n = 0; n == 0; usleep(100)) { /* without end if both workers were held */
        pthread_mutex_lock(&fake.lock);
        n = fake.n_submitted;
        pthread_mutex_unlock(&fake.lock);
    }
    fake_run(r[2]);
    assert_int_equal(r[2]->status, 200);
    assert_true(atomic_load(&fake_n_encodes) <= before + 1);
    atomic_store(&fake_encode_held, false);
    for (int i = 0; i < 3; i++) {
        fake_run(r[i]);
        assert_int_equal(r[i]->status, 200);
        fake_free(r[i]);
    }
    fake_stop(a);
    free(text);
}

/* While a worker compiles a grammar (here it reads the vocabulary), other grammars wait in the
 * queue, and what has none passes them. */
static void grammars_leave_a_worker(void **state)
{
    (void)state;
    enum { N = 6 };
    static const char *const bodies[N] = {
        "{\"prompt\":[1],\"regex\":\"a\"}",
        "{\"prompt\":[1],\"regex\":\"b\"}",
        "{\"prompt\":[1],\"guided_json\":{\"const\":\"c\"}}",
        "{\"prompt\":[1],\"guided_json\":{\"type\":\"nothing\"}}",
        "{\"prompt\":[1],\"regex\":\"a\"}",
        "{\"prompt\":[1,2],\"max_tokens\":1}",
    };
    for (int way = 0; way < 2; way++) {
        rose_api_opts o;
        rose_http_req *r[N];
        rose_api_opts_default(&o);
        o.model_id = "m";
        o.n_workers = way == 0 ? 2 : 3;
        o.inline_bytes = way == 0 ? 0 : 4096; /* the I/O thread gives grammars to a worker */
        fake_reset();
        fake.next = next_word;
        fake_arch.eos_ids[0] = FAKE_EOS;
        fake_arch.n_eos = 1;
        fake_arrival_ns = UINT64_MAX / 2;
        rose_api *a = fake_start(&o);
        atomic_store(&fake_vocab_held, true);
        for (int i = 0; i < N; i++)
            r[i] = ask("/v1/completions", bodies[i]);
        fake_run(r[N - 1]);
        assert_int_equal(r[N - 1]->status, 200);
        assert_int_equal(fake.n_submitted, 1);
        atomic_store(&fake_vocab_held, false);
        for (int i = 0; i < N; i++) {
            fake_run(r[i]);
            assert_int_equal(r[i]->status, i == 3 ? 400 : 200);
        }
        assert_non_null(strstr(fake_text(r[0]), "\"text\":\"a\""));
        assert_non_null(strstr(fake_text(r[1]), "\"text\":\"b\""));
        assert_non_null(strstr(fake_text(r[2]), "\"text\":\"\\\"c\\\"\""));
        assert_non_null(strstr(fake_text(r[4]), "\"text\":\"a\""));
        for (int i = 0; i < N; i++)
            fake_free(r[i]);
        fake_stop(a);
    }
    fake_arch.n_eos = 0;
    fake_arrival_ns = 1;
}

/* Jobs that wait for a compile fill at most half of the queue, and those of one client half of
 * that: here one compiles, two wait, and the last is refused. */
static void grammars_leave_room(void **state)
{
    (void)state;
    rose_api_opts o;
    rose_http_req *r[5];
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.n_workers = 2;
    o.max_queued_jobs = 8;
    o.inline_bytes = 0;
    fake_reset();
    fake.next = next_word;
    fake_arch.eos_ids[0] = FAKE_EOS;
    fake_arch.n_eos = 1;
    rose_api *a = fake_start(&o);
    atomic_store(&fake_vocab_held, true);
    for (int i = 0; i < 4; i++) {
        char body[64];
        snprintf(body, sizeof body, "{\"prompt\":[1],\"regex\":\"%c\"}", 'a' + i);
        r[i] = ask("/v1/completions", body);
    }
    fake_run(r[3]);
    assert_int_equal(r[3]->status, 429);
    r[4] = ask("/v1/completions", "{\"prompt\":[1,2],\"max_tokens\":1}");
    fake_run(r[4]);
    assert_int_equal(r[4]->status, 200);
    atomic_store(&fake_vocab_held, false);
    for (int i = 0; i < 3; i++) {
        fake_run(r[i]);
        assert_int_equal(r[i]->status, 200);
    }
    for (int i = 0; i < 5; i++)
        fake_free(r[i]);
    fake_stop(a);
    fake_arch.n_eos = 0;
}

/* Clients that leave while their jobs wait for a compile, and a stop then: nothing is left. */
static void gone_before_the_grammar(void **state)
{
    (void)state;
    rose_api_opts o;
    rose_http_req *r[4];
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.n_workers = 2;
    fake_reset();
    fake.next = next_word;
    fake_arch.eos_ids[0] = FAKE_EOS;
    fake_arch.n_eos = 1;
    rose_api *a = fake_start(&o);
    atomic_store(&fake_vocab_held, true);
    for (int i = 0; i < 4; i++) {
        char body[64];
        snprintf(body, sizeof body, "{\"prompt\":[1],\"n\":5,\"regex\":\"%c\"}", 'a' + i);
        r[i] = ask("/v1/completions", body);
    }
    for (int i = 0; i < 3; i++)
        fake_leave(r[i]);
    atomic_store(&fake_vocab_held, false);
    fake_run(r[3]);
    assert_int_equal(r[3]->status, 200);
    for (int i = 0; i < 4; i++)
        fake_free(r[i]);
    fake_stop(a);
    assert_int_equal(fake.n_live, 0);
    fake_arch.n_eos = 0;
}

/* The engine hears of a job before it is submitted; where a device works on it the I/O thread stays
 * awake and has the first token without a signal. */
static void awake_for_the_first_token(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":[1,2],\"max_tokens\":2,\"stream\":true}";
    for (int way = 0; way < 4; way++) {
        rose_api_opts o;
        rose_api_opts_default(&o);
        o.model_id = "m";
        o.early_wake = way != 0;
        o.poll_us = way != 1 ? 1000 : 0;
        fake_device = way != 2;
        fake_awake_until = 0;
        fake_reset();
        fake.next = next_word;
        rose_api *a = fake_start(&o);
        const unsigned before = atomic_load(&fake_n_expected);
        rose_http_req *r = ask("/v1/completions", body);
        assert_int_equal(atomic_load(&fake_n_expected) - before, way != 0);
        assert_int_equal(fake_awake_until != 0, way == 3);
        fake_http.cb.poll(fake_http.cb.arg, 0); /* nothing yet */
        assert_false(r->begun);
        fake_engine_step();
        fake_http.cb.poll(fake_http.cb.arg, 0);
        assert_true(r->begun);
        assert_int_equal(fake_awake_until, 0);
        fake_turn(0); /* the signal finds nothing to do */
        fake_run(r);
        assert_int_equal(r->status, 200);
        fake_free(r);
        fake_stop(a);
    }
    fake_device = false;
}

/* A job that comes back when the I/O threads have ended keeps none of them awake. */
static void back_after_the_stop(void **state)
{
    (void)state;
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.model_id = "m";
    o.inline_bytes = 0;
    o.poll_us = 1000;
    fake_device = true;
    fake_reset();
    fake.next = next_word;
    rose_api *a = fake_start(&o);
    rose_http_req *r = ask("/v1/completions", "{\"prompt\":[1,2]}");
    for (uint32_t n = 0; n == 0; usleep(100)) {
        pthread_mutex_lock(&fake.lock);
        n = fake.n_submitted;
        pthread_mutex_unlock(&fake.lock);
    }
    fake_leave(r);
    fake_stop(a);
    fake_free(r);
    fake_device = false;
}

static void options_are_checked(void **state)
{
    rose_api_opts o;
    rose_api *a;
    (void)state;
    for (int i = 0; i < 8; i++) {
        rose_api_opts_default(&o);
        o.model_id = "m";
        if (i == 0) o.model_id = "";
        if (i == 1) o.n_io_threads = 0;
        if (i == 2) o.n_workers = 65;
        if (i == 3) o.max_queued_jobs = 0;
        if (i == 4) o.max_n = 0;
        if (i == 5) o.chat_kwargs = "[]";
        if (i == 6) o.n_io_threads = 65;
        if (i == 7) o.inline_bytes = ROSE_API_MAX_INLINE + 1;
        rose_err err = {0};
        assert_int_not_equal(rose_api_create(&a, &o, &err), ROSE_OK);
        assert_null(a);
        assert_true(err.msg[0] != '\0');
    }
    rose_api_stop(NULL);
    rose_api_destroy(NULL);
}

static void room_error_bodies(void **state)
{
    (void)state;
    rose_api *a = start(false);
    rose_buf b = {0};
    fake_http.cb.error_body(fake_http.cb.arg, "", 413, "the body is \"too\" long", &b);
    assert_string_equal(rose_buf_str(&b),
                        "{\"error\":{\"message\":\"the body is \\\"too\\\" long\",\"type\":"
                        "\"invalid_request_error\",\"param\":null,\"code\":null}}");
    rose_buf_free(&b);
    fake_stop(a);
}

/* ---- pooled requests ---- */

/* A body of n inputs; input i has the sum 97 + i % 200 of its ids. */
static rose_http_req *many_inputs(uint32_t n)
{
    static char body[65536];
    size_t at = (size_t)snprintf(body, sizeof body, "{\"input\":[");
    for (uint32_t i = 0; i < n; i++)
        at += (size_t)snprintf(body + at, sizeof body - at, "%s[97,%u]", i > 0 ? "," : "", i % 200);
    snprintf(body + at, sizeof body - at, "],\"normalize\":false}");
    return fake_request("/v1/embeddings", body, strlen(body));
}

/* More inputs than the engine takes: each end submits the next ones. */
static void inputs_in_pieces(void **state)
{
    enum { N = 200 };
    (void)state;
    for (int workers = 0; workers < 2; workers++) {
        rose_api *a = start(workers != 0);
        fake.capacity = 7;
        fake.max_reserved = 0; /* nothing is reserved */
        rose_http_req *r = many_inputs(N);
        fake_arrive(r);
        fake_run(r);
        rose_json *reply = rose_json_loads(fake_text(r), 0, NULL);
        const rose_json *data = rose_json_get(reply, "data");
        assert_int_equal(r->status, 200);
        assert_int_equal(rose_json_count(data), N);
        for (uint32_t i = 0; i < N; i++) {
            const rose_json *v = rose_json_get(rose_json_at(data, i), "embedding");
            assert_int_equal(rose_json_int(rose_json_get(rose_json_at(data, i), "index")), i);
            assert_int_equal(rose_json_count(v), FAKE_WIDTH);
            assert_true(rose_json_real_value(rose_json_at(v, 1)) == 97.0 + i);
            assert_true(rose_json_real_value(rose_json_at(v, 3)) == 0.5);
        }
        assert_int_equal(fake.n_submitted, N);
        assert_int_equal(fake.n_released, N);
        rose_json_decref(reply);
        fake_free(r);
        fake_stop(a);
    }
}

/* Asks for many inputs, and holds the only worker before the last of them ends. Returns when the
 * engine is done with all. *busy: what the worker has. */
static rose_http_req *ask_long_reply(uint32_t n, rose_http_req **busy)
{
    rose_http_req *r = many_inputs(n);
    fake_arrive(r);
    for (int i = 0; i < 100000 && fake.n_released < n / 2; i++) {
        fake_engine_step();
        fake_turn(1);
    }
    const unsigned before = atomic_load(&fake_n_encodes);
    atomic_store(&fake_encode_held, true);
    *busy = ask("/tokenize", "{\"prompt\":\"x\"}");
    while (atomic_load(&fake_n_encodes) == before)
        usleep(100);
    for (int i = 0; i < 100000 && fake.n_released < n; i++) {
        fake_engine_step();
        fake_turn(0);
    }
    assert_int_equal(fake.n_released, n);
    assert_false(r->ended);
    return r;
}

/* A worker writes a long reply: with the only one busy, the reply waits. */
static void workers_write_long_replies(void **state)
{
    enum { N = 1100 }; /* 4,400 values */
    rose_http_req *busy;
    (void)state;
    rose_api *a = start(true);
    rose_http_req *r = ask_long_reply(N, &busy);
    atomic_store(&fake_encode_held, false);
    fake_run(r);
    fake_run(busy);
    assert_int_equal(r->status, 200);
    rose_json *reply = rose_json_loads(fake_text(r), 0, NULL);
    const rose_json *data = rose_json_get(reply, "data");
    assert_int_equal(rose_json_count(data), N);
    for (uint32_t i = 0; i < N; i++) {
        const rose_json *v = rose_json_get(rose_json_at(data, i), "embedding");
        assert_true(rose_json_real_value(rose_json_at(v, 1)) == 97.0 + i % 200);
    }
    rose_json_decref(reply);
    fake_free(r);
    fake_free(busy);
    fake_stop(a);
}

/* The client leaves, and then the server may stop, while the reply waits for a worker. */
static void long_replies_that_nobody_gets(void **state)
{
    (void)state;
    for (int stops = 0; stops < 2; stops++) {
        rose_http_req *busy;
        rose_api *a = start(true);
        rose_http_req *r = ask_long_reply(1100, &busy);
        fake_leave(r);
        if (stops) fake_leave(busy);
        atomic_store(&fake_encode_held, false);
        if (!stops) fake_run(busy);
        fake_stop(a);
        assert_false(r->ended);
        fake_free(r);
        fake_free(busy);
    }
}

/* The engine takes none at the start, fails one later, or the client leaves: one end, and all that
 * was submitted is released. */
static void inputs_that_fail(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        rose_api *a = start(false);
        fake.capacity = way == 0 ? 0 : 5;
        rose_http_req *r = many_inputs(50);
        fake_arrive(r);
        for (int i = 0; i < 3; i++) {
            fake_engine_step();
            fake_turn(0);
        }
        const uint32_t n = fake.n_submitted;
        if (way == 1) fake.fail_at = 1;
        if (way == 2) fake.submit_status = ROSE_E_CLOSED;
        if (way == 3) fake_leave(r);
        fake_run(r);
        for (int i = 0; i < 5; i++) {
            fake_engine_step();
            fake_turn(0);
        }
        assert_int_equal(n == 0, way == 0);
        assert_true(fake.n_submitted < 50);
        assert_int_equal(fake.n_released, fake.n_submitted);
        if (way < 3) assert_int_equal(r->status, way == 0 ? 429 : way == 1 ? 500 : 503);
        fake_free(r);
        fake_stop(a);
    }
}

/* A reranker: score = 1 / (1 + exp(no - yes)), each answer a request of its own. */
static void ranks_by_two_answers(void **state)
{
    static const char body[] = "{\"query\":\"q\",\"documents\":[\"a\",\"b\"],\"top_n\":1}";
    rose_api_opts o;
    (void)state;
    rose_api_opts_default(&o);
    o.async_admit = false;
    o.pooling.ranks = true;
    fake_reset();
    fake.max_model_len = fake_plan.max_model_len = 4096; /* a token a byte */
    rose_api *a = fake_start(&o);
    rose_http_req *r = fake_request("/rerank", body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    rose_json *reply = rose_json_loads(fake_text(r), 0, NULL);
    const rose_json *results = rose_json_get(reply, "results");
    const rose_json *best = rose_json_at(results, 0);
    assert_int_equal(r->status, 200);
    assert_int_equal(rose_json_count(results), 1);
    assert_int_equal(fake.n_submitted, 4);
    assert_int_equal(rose_json_int(rose_json_get(best, "index")), 0); /* of equal ones */
    const double want = 1 / (1 + exp((double)('y' - 'n') / 16));
    assert_true(fabs(rose_json_real_value(rose_json_get(best, "relevance_score")) - want) < 1e-7);
    rose_json_decref(reply);
    fake_free(r);
    fake_stop(a);
}

int main(void)
{
    const char *seed = getenv("ROSE_TEST_SEED");
    rng = seed != NULL ? strtoull(seed, NULL, 0) : 20261121;
    printf("seed %llu\n", (unsigned long long)rng);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_inline),
        cmocka_unit_test(random_workers),
        cmocka_unit_test(all_or_nothing),
        cmocka_unit_test(too_late),
        cmocka_unit_test(no_token_left),
        cmocka_unit_test(text_before_the_error),
        cmocka_unit_test(job_queue_full),
        cmocka_unit_test(refused_by_engine),
        cmocka_unit_test(leaving_cancels),
        cmocka_unit_test(tokens_behind_the_stop_string),
        cmocka_unit_test(loading_draining_failed),
        cmocka_unit_test(loads),
        cmocka_unit_test(render_submits_nothing),
        cmocka_unit_test(short_bodies_run_here),
        cmocka_unit_test(many_choices_run_elsewhere),
        cmocka_unit_test(long_bodies_leave_a_worker),
        cmocka_unit_test(awake_for_the_first_token),
        cmocka_unit_test(back_after_the_stop),
        cmocka_unit_test(templates_run_on_workers),
        cmocka_unit_test(grammars_leave_a_worker),
        cmocka_unit_test(grammars_leave_room),
        cmocka_unit_test(gone_before_the_grammar),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(room_error_bodies),
        cmocka_unit_test(inputs_in_pieces),
        cmocka_unit_test(inputs_that_fail),
        cmocka_unit_test(workers_write_long_replies),
        cmocka_unit_test(long_replies_that_nobody_gets),
        cmocka_unit_test(ranks_by_two_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
