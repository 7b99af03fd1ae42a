/* GET /metrics: every line through a strict parser of the text format, and the counts against what
 * was sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fakes.h"

/* ---- Prometheus' text format, version 0.0.4, read strictly ---- */

enum { MAX_SAMPLES = 2048, MAX_FAMILIES = 128 };

typedef struct sample {
    char series[256]; /* name{labels}, labels in the order of the page */
    char name[96];
    double value;
} sample;

typedef struct scrape {
    sample v[MAX_SAMPLES];
    uint32_t n;
    char family[MAX_FAMILIES][96];
    char type[MAX_FAMILIES][16];
    uint32_t n_families;
} scrape;

static const char *name_end(const char *s)
{
    if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '_' || *s == ':'))
        fail_msg("bad name: %.80s", s);
    while ((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') ||
           *s == '_' || *s == ':')
        s++;
    return s;
}

/* Returns the position after the closing brace. The only escapes are \\ \" \n; no raw quote or
 * line end. */
static const char *labels_end(const char *s)
{
    for (s++;; s++) {
        s = name_end(s);
        if (*s++ != '=' || *s++ != '"') fail_msg("bad label: %.80s", s);
        for (; *s != '"'; s++) {
            if (*s == '\n' || *s == '\0') fail_msg("open label value");
            if (*s == '\\' && strchr("\\\"n", *++s) == NULL) fail_msg("bad escape: %.20s", s);
        }
        s++;
        if (*s == '}') return s + 1;
        if (*s != ',') fail_msg("bad labels: %.80s", s);
    }
}

static void take_comment(scrape *p, const char *line, bool *described)
{
    char family[96];
    const char *end = name_end(line + 7);
    assert_true(*end == ' ' && end - (line + 7) < 96);
    snprintf(family, sizeof family, "%.*s", (int)(end - (line + 7)), line + 7);
    if (strncmp(line, "# HELP ", 7) == 0) {
        assert_false(*described);
        *described = true;
        for (uint32_t i = 0; i < p->n_families; i++)
            if (strcmp(p->family[i], family) == 0) fail_msg("%s is there twice", family);
        assert_true(p->n_families < MAX_FAMILIES);
        snprintf(p->family[p->n_families], 96, "%s", family);
        return;
    }
    assert_true(strncmp(line, "# TYPE ", 7) == 0 && *described);
    *described = false;
    assert_string_equal(p->family[p->n_families], family); /* HELP, then TYPE of the same */
    char *type = p->type[p->n_families++];
    snprintf(type, 16, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
    assert_true(strcmp(type, "counter") == 0 || strcmp(type, "gauge") == 0 ||
                strcmp(type, "histogram") == 0);
}

/* The family that a sample belongs to must be the last one announced. */
static void check_family(const scrape *p, const sample *s)
{
    assert_true(p->n_families > 0);
    const char *family = p->family[p->n_families - 1], *type = p->type[p->n_families - 1];
    size_t n = strlen(family);
    assert_int_equal(strncmp(s->name, family, n), 0);
    if (strcmp(type, "histogram") != 0)
        assert_int_equal(s->name[n], 0);
    else
        assert_true(strcmp(s->name + n, "_bucket") == 0 || strcmp(s->name + n, "_sum") == 0 ||
                    strcmp(s->name + n, "_count") == 0);
    if (strcmp(type, "counter") == 0) {
        assert_true(n > 6 && strcmp(family + n - 6, "_total") == 0);
        assert_true(s->value >= 0);
    }
}

static void take_sample(scrape *p, const char *line)
{
    assert_true(p->n < MAX_SAMPLES);
    sample *s = &p->v[p->n++];
    const char *end = name_end(line);
    snprintf(s->name, sizeof s->name, "%.*s", (int)(end - line), line);
    if (*end == '{') end = labels_end(end);
    assert_true(end - line < 256);
    snprintf(s->series, sizeof s->series, "%.*s", (int)(end - line), line);
    if (*end++ != ' ') fail_msg("no value: %.80s", line);
    char *rest;
    s->value = strtod(end, &rest);
    if (rest == end || *rest != '\n') fail_msg("bad value: %.80s", line);
    for (uint32_t i = 0; i + 1 < p->n; i++)
        if (strcmp(p->v[i].series, s->series) == 0) fail_msg("%s is there twice", s->series);
    check_family(p, s);
}

/* Buckets ascend in le and in count, +Inf is last and equals _count. */
static void check_histograms(const scrape *p)
{
    for (uint32_t f = 0; f < p->n_families; f++) {
        char bucket[128], count[128];
        double last = -1, le = -1, n = -1;
        uint32_t n_buckets = 0;
        if (strcmp(p->type[f], "histogram") != 0) continue;
        snprintf(bucket, sizeof bucket, "%s_bucket", p->family[f]);
        snprintf(count, sizeof count, "%s_count", p->family[f]);
        for (uint32_t i = 0; i < p->n; i++) {
            if (strcmp(p->v[i].name, count) == 0) n = p->v[i].value;
            if (strcmp(p->v[i].name, bucket) != 0) continue;
            const char *at = strstr(p->v[i].series, "le=\"");
            assert_non_null(at);
            double bound = strtod(at + 4, NULL); /* "+Inf" too */
            assert_true(bound > le && p->v[i].value >= last);
            le = bound;
            last = p->v[i].value;
            n_buckets++;
        }
        assert_true(n_buckets > 10 && le > 1e300);
        assert_true(n == last);
    }
}

static void parse(scrape *p, const char *text)
{
    bool described = false;
    memset(p, 0, sizeof *p);
    while (*text != '\0') {
        const char *end = strchr(text, '\n');
        assert_non_null(end); /* the last line ends too */
        if (*text == '#')
            take_comment(p, text, &described);
        else
            take_sample(p, text);
        text = end + 1;
    }
    assert_false(described);
    check_histograms(p);
}

/* ---- the tests ---- */

static scrape page;

static void get(void)
{
    rose_http_req *r = fake_request("/metrics", NULL, 0);
    fake_arrive(r);
    assert_int_equal(r->status, 200);
    parse(&page, fake_text(r));
    fake_free(r);
}

static double value(const char *name, const char *labels)
{
    char series[256];
    snprintf(series, sizeof series, "%s{model_name=\"a\\\"b\\\\c\",engine=\"0\"%s}", name, labels);
    for (uint32_t i = 0; i < page.n; i++)
        if (strcmp(page.v[i].series, series) == 0) return page.v[i].value;
    fail_msg("no %s", series);
    return 0;
}

static double plain(const char *series)
{
    for (uint32_t i = 0; i < page.n; i++)
        if (strcmp(page.v[i].series, series) == 0) return page.v[i].value;
    return 0;
}

static rose_api *start(void)
{
    rose_api_opts o;
    rose_api_opts_default(&o);
    o.model_id = "a\"b\\c"; /* a name that needs escapes */
    o.async_admit = false;
    fake_reset();
    rose_api *a = fake_start(&o);
    assert_non_null(a);
    return a;
}

static int post(const char *path, const char *body)
{
    rose_http_req *r = fake_request(path, body, strlen(body));
    fake_arrive(r);
    fake_run(r);
    int status = r->status;
    fake_free(r);
    return status;
}

#define SAME(a, b) assert_true(!((a) < (b)) && !((a) > (b)))

static void empty_page(void **state)
{
    (void)state;
    rose_api *a = start();
    get();
    SAME(value("vllm:num_requests_running", ""), 0);
    SAME(value("vllm:time_to_first_token_seconds_count", ""), 0);
    SAME(value("roseinfer:slow_clients_dropped_total", ",reason=\"stalled\""), 10);
    SAME(value("roseinfer:slow_clients_dropped_total", ",reason=\"together\""), 12);
    SAME(value("roseinfer:connections_dropped_total", ""), 20);
    SAME(value("roseinfer:connections_refused_total", ""), 21);
    assert_true(plain("process_resident_memory_bytes") > 1e5);
    assert_true(plain("process_start_time_seconds") > 1.6e9);
    assert_true(plain("process_open_fds") > 2 && plain("process_cpu_seconds_total") > 0);
    fake_stop(a);
}

static void counts_what_was_sent(void **state)
{
    static const uint32_t script[] = {65, 66, 67, FAKE_EOS};
    (void)state;
    rose_api *a = start();
    fake_script = script;
    fake_script_len = 4;
    for (int i = 0; i < 5; i++)
        assert_int_equal(post("/v1/completions", "{\"prompt\":\"abcd\",\"max_tokens\":9}"), 200);
    for (int i = 0; i < 3; i++)
        assert_int_equal(post("/v1/completions", "{\"prompt\":[1,2],\"max_tokens\":2,\"n\":2,"
                                                 "\"stream\":true}"),
                         200);
    assert_int_equal(post("/v1/completions", "{}"), 400);
    fake.capacity = 0;
    assert_int_equal(post("/v1/completions", "{\"prompt\":\"x\"}"), 429);
    fake.capacity = 256;
    fake.fail_at = 2;
    assert_int_equal(post("/v1/completions", "{\"prompt\":\"xyz\"}"), 500);
    fake.fail_at = 0;
    assert_int_equal(post("/nowhere", "{}"), 404);
    get();
    /* 5 requests: 3 letters and the end; 3 x 2 choices of 2 tokens; 1 token before the failure */
    SAME(value("vllm:generation_tokens_total", ""), 5 * 4 + 6 * 2 + 1);
    SAME(value("vllm:prompt_tokens_total", ""), 5 * 4 + 6 * 2 + 3);
    SAME(value("vllm:request_success_total", ",finished_reason=\"stop\""), 5);
    SAME(value("vllm:request_success_total", ",finished_reason=\"length\""), 6);
    SAME(value("vllm:request_success_total", ",finished_reason=\"error\""), 1);
    SAME(value("vllm:request_success_total", ",finished_reason=\"abort\""), 0);
    SAME(value("vllm:admission_rejections_total", ",reason=\"queue_full\""), 1);
    SAME(value("vllm:time_to_first_token_seconds_count", ""), 12);
    SAME(value("vllm:inter_token_latency_seconds_count", ""), 5 * 3 + 6);
    SAME(value("vllm:e2e_request_latency_seconds_count", ""), 11);
    SAME(value("vllm:request_queue_time_seconds_count", ""), 11);
    SAME(value("vllm:request_prefill_time_seconds_count", ""), 11);
    SAME(value("vllm:request_decode_time_seconds_count", ""), 11);
    SAME(value("vllm:request_time_per_output_token_seconds_count", ""), 11);
    SAME(value("vllm:request_prompt_tokens_sum", ""), 5 * 4 + 6 * 2);
    SAME(value("vllm:request_generation_tokens_sum", ""), 5 * 4 + 6 * 2);
    SAME(value("vllm:request_prefill_kv_computed_tokens_sum", ""), 5 * 4 + 6 * 2);
    SAME(value("vllm:prompt_tokens_cached_total", ""), 0);
    SAME(value("vllm:request_max_num_generation_tokens_count", ""), 5 + 3);
    SAME(value("vllm:request_max_num_generation_tokens_sum", ""), 5 * 4 + 3 * 2);
    SAME(value("vllm:request_params_n_sum", ""), 5 + 6 + 1);
    SAME(value("vllm:request_params_max_tokens_sum", ""), 5 * 9 + 3 * 2 + 16);
    /* the fake engine's clock: 1 ms a step, so all ITL lie in the bucket up to 1 ms */
    SAME(value("vllm:inter_token_latency_seconds_bucket", ",le=\"0.001\""), 21);
    SAME(value("vllm:inter_token_latency_seconds_bucket", ",le=\"0.0005\""), 0);
    assert_true(value("vllm:inter_token_latency_seconds_sum", "") > 0.02099 &&
                value("vllm:inter_token_latency_seconds_sum", "") < 0.02101);
    SAME(plain("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"200\"}"),
         8);
    SAME(plain("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"400\"}"),
         1);
    SAME(plain("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"429\"}"),
         1);
    SAME(plain("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"500\"}"),
         1);
    SAME(plain("http_requests_total{handler=\"none\",method=\"POST\",status=\"404\"}"), 1);
    fake_stop(a);
}

static double number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    if (at == NULL) fail_msg("%s lacks %s", text, name);
    return strtod(at + strlen(name), NULL);
}

/* max_tokens 0: no token, but it waited, was computed and ended. */
static void scored(void **state)
{
    static const char body[] = "{\"prompt\":\"abcd\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0,"
                               "\"n\":2}";
    (void)state;
    rose_api *a = start();
    rose_http_req *r = fake_request("/v1/completions", body, sizeof body - 1);
    fake_arrive(r);
    fake_run(r);
    assert_int_equal(r->status, 200);
    const char *text = fake_text(r);
    /* the fake arrival is at 1 ns, its steps at 1 s and more: admitted 1 us before the score */
    assert_true(number_behind(text, "\"e2e_ms\":") > 999);
    SAME(number_behind(text, "\"prefill_to_first_ms\":"), 0.001);
    SAME(number_behind(text, "\"ttft_ms\":"), 0);
    SAME(number_behind(text, "\"tpot_ms\":"), 0);
    SAME(number_behind(r->headers, "prefill_to_first;dur="), 0.001);
    assert_true(number_behind(r->headers, "e2e;dur=") > 999);
    assert_null(strstr(r->headers, "ttft"));
    fake_free(r);
    get();
    SAME(value("vllm:request_success_total", ",finished_reason=\"length\""), 2);
    SAME(value("vllm:prompt_tokens_total", ""), 2 * 4);
    SAME(value("vllm:generation_tokens_total", ""), 0);
    SAME(value("vllm:e2e_request_latency_seconds_count", ""), 2);
    assert_true(value("vllm:e2e_request_latency_seconds_sum", "") > 2);
    SAME(value("vllm:request_queue_time_seconds_count", ""), 2);
    SAME(value("vllm:request_prefill_time_seconds_count", ""), 2);
    SAME(value("vllm:request_inference_time_seconds_count", ""), 2);
    SAME(value("vllm:request_decode_time_seconds_count", ""), 0);
    SAME(value("vllm:time_to_first_token_seconds_count", ""), 0);
    fake_stop(a);
}

static void clients_that_leave(void **state)
{
    static const char body[] = "{\"prompt\":\"ab\",\"max_tokens\":40,\"stream\":true}";
    static const uint32_t script[] = {65, 66, 67, 65, 66, 67, 65, 66, 67, 65, 66, 67, 65, 66};
    (void)state;
    rose_api *a = start();
    fake_script = script;
    fake_script_len = 14;
    for (int begun = 0; begun < 2; begun++) {
        rose_http_req *r = fake_request("/v1/completions", body, sizeof body - 1);
        fake_arrive(r);
        for (int i = 0; i < 3 * begun; i++) {
            fake_engine_step();
            fake_turn(0);
        }
        fake_leave(r);
        for (int i = 0; i < 3; i++) {
            fake_engine_step();
            fake_turn(0);
        }
        fake_free(r);
    }
    rose_buf b = {0};
    fake_http.cb.error_body(fake_http.cb.arg, "", 413, "too large", &b);
    rose_buf_free(&b);
    b = (rose_buf){0};
    fake_http.cb.error_body(fake_http.cb.arg, "", 503, "too many", &b);
    rose_buf_free(&b);
    get();
    SAME(value("vllm:request_success_total", ",finished_reason=\"abort\""), 2);
    SAME(value("vllm:admission_rejections_total", ",reason=\"too_many_connections\""), 1);
    SAME(plain("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"200\"}"),
         1);
    SAME(plain("http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"499\"}"),
         1);
    SAME(plain("http_requests_total{handler=\"unread\",method=\"other\",status=\"413\"}"), 1);
    assert_int_equal(fake.n_live, 0);
    fake_stop(a);
}

/* What is answered is counted under its own number: 0 stands for none that we know of. */
static void statuses_by_number(void **state)
{
    static const int unread[] = {400, 408, 413, 414, 417, 431, 501, 503, 505};
    (void)state;
    rose_api *a = start();
    assert_int_equal(post("/start_profile", "{}"), 403);
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) {
        rose_buf b = {0};
        fake_http.cb.error_body(fake_http.cb.arg, "", unread[i], "no", &b);
        rose_buf_free(&b);
    }
    get();
    SAME(plain("http_requests_total{handler=\"/start_profile\",method=\"POST\",status=\"403\"}"),
         1);
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) {
        char series[128];
        snprintf(series, sizeof series,
                 "http_requests_total{handler=\"unread\",method=\"other\",status=\"%d\"}",
                 unread[i]);
        SAME(plain(series), 1);
    }
    fake_stop(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_page),
        cmocka_unit_test(counts_what_was_sent),
        cmocka_unit_test(scored),
        cmocka_unit_test(clients_that_leave),
        cmocka_unit_test(statuses_by_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
