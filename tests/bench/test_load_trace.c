/* Traces: every format, hostile lines, random bytes; the statistics of the generator; lengths cut
 * to a context; prompts with exactly the tokens that were asked for. */
#include "bench/bench_fixture.h"

#include "bench/load_trace.h"
#include "bench/prompts.h"
#include "bench/stats.h"
#include "tokenizer/tokenizer.h"

static rose_status parse(rose_load_trace *t, const char *text, uint32_t limit)
{
    return rose_load_trace_parse(t, "t", text, strlen(text), limit, NULL, NULL);
}

static void near(double got, double want)
{
    if (!(fabs(got - want) < 1e-6)) fail_msg("got %.9g, expected %.9g", got, want);
}

static void test_azure(void **state)
{
    (void)state;
    rose_load_trace t;
    assert_int_equal(parse(&t,
                           "\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                           "2023-11-16 23:59:59.5000000,374,44\r\n"
                           "2023-11-17 00:00:01.2500000,396,109\r\n"
                           "\r\n"
                           "2024-02-29T00:00:00+00:00,10,20",
                           100),
                     ROSE_OK);
    assert_string_equal(t.format, "azure");
    assert_int_equal(t.n, 3);
    assert_int_equal(t.n_bad, 0);
    near(t.rows[0].at_s, 0);
    near(t.rows[1].at_s, 1.75);
    near(t.rows[2].at_s, 104 * 86400 + 86400 - 86399.5);
    assert_int_equal(t.rows[1].n_in, 396);
    assert_int_equal(t.rows[1].n_out, 109);
    assert_int_equal(t.block_tokens, 0);
    rose_load_trace_free(&t);
}

static void test_burstgpt(void **state)
{
    (void)state;
    rose_load_trace t;
    assert_int_equal(parse(&t,
                           "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
                           "45,ChatGPT,472,18,490,Conversation log\n"
                           "5,\"GPT-4\",1087,230,1317,API log\n"
                           "118,GPT-4,417,0,417,API log\n",
                           100),
                     ROSE_OK);
    assert_string_equal(t.format, "burstgpt");
    assert_int_equal(t.n, 2); /* a request that failed, without output, is not replayed */
    assert_int_equal(t.n_bad, 1);
    assert_int_equal(t.first_bad, 4);
    assert_int_equal(t.rows[0].n_in, 1087); /* rows are sorted by time */
    near(t.rows[1].at_s, 40);
    rose_load_trace_free(&t);
}

/* Quotes as in RFC 4180: a comma inside is text, a doubled quote is one quote. */
static void test_quotes(void **state)
{
    (void)state;
    rose_load_trace t;
    assert_int_equal(
        parse(
            &t,
            "\"Timestamp\",\"Model, or \"\"none\"\"\",Request tokens, \"Response tokens\" ,Total\n"
            "5,\"GPT-4, turbo\",\"1087\",230,1317\n"
            "6,\"say \"\"a, b\"\"\" ,17, 18 ,35\n"
            "7,\"\",1,2,3\n"
            "8,\"never closed,3,4,7\n"
            "9,a \"b\" c,5,6,11\n"
            "10,\",\",7,\"8",
            100),
        ROSE_OK);
    assert_string_equal(t.format, "burstgpt");
    assert_int_equal(t.n, 4);
    assert_int_equal(t.n_bad, 2);
    assert_int_equal(t.first_bad, 5);
    const uint32_t want[4][2] = {{1087, 230}, {17, 18}, {1, 2}, {5, 6}};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(t.rows[i].n_in, want[i][0]);
        assert_int_equal(t.rows[i].n_out, want[i][1]);
    }
    rose_load_trace_free(&t);
}

static void test_jsonl(void **state)
{
    (void)state;
    rose_load_trace t;
    assert_int_equal(
        parse(&t,
              "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": "
              "[46, 47, 48]}\n"
              "{\"timestamp\": 30535, \"input_length\": 600, \"output_length\": 26, \"hash_ids\": "
              "[46, 2353]}\n",
              100),
        ROSE_OK);
    assert_string_equal(t.format, "mooncake");
    assert_int_equal(t.block_tokens, 512);
    near(t.rows[1].at_s, 3.053);
    assert_int_equal(t.rows[1].hash0, 3);
    assert_int_equal(t.rows[1].n_hash, 2);
    assert_true(t.hashes[3] == 46 && t.hashes[4] == 2353);
    rose_load_trace_free(&t);
    assert_int_equal(
        parse(&t,
              "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 0.5, \"input_length\": 20, "
              "\"output_length\": 5, \"type\": \"text\", \"turn\": 1, \"hash_ids\": [7, 8]}\n"
              "{\"chat_id\": 2, \"timestamp\": 2.75, \"input_length\": 1, \"output_length\": 1}\n",
              100),
        ROSE_OK);
    assert_string_equal(t.format, "qwen");
    assert_int_equal(t.block_tokens, 16);
    near(t.rows[1].at_s, 2.25);
    rose_load_trace_free(&t);
}

/* A broken line before the first request does not hide the format. */
static void test_bad_start(void **state)
{
    (void)state;
    rose_load_trace t;
    assert_int_equal(parse(&t,
                           "\n{\"timestamp\": 5, \"inp\n{\"about\": \"this trace\"}\n"
                           "  {\"chat_id\": 1, \"timestamp\": 2, \"input_length\": 3, "
                           "\"output_length\": 4}\n",
                           100),
                     ROSE_OK);
    assert_string_equal(t.format, "qwen");
    assert_int_equal(t.n, 1);
    assert_int_equal(t.n_bad, 2);
    assert_int_equal(t.first_bad, 2);
    rose_load_trace_free(&t);
    assert_int_equal(parse(&t, "{\n{}\n{\"x\": 1}\n", 100), ROSE_E_FORMAT);
}

/* A line that does not begin like JSON is left out if JSON follows within 20 lines, and only
 * then. */
static void test_foreign_start(void **state)
{
    (void)state;
    static const char request[] = "{\"timestamp\": 1, \"input_length\": 3, \"output_length\": 4}\n";
    static const char *const starts[] = {"# a trace\n", "[1]\n",     "a,b,c\n\n\n",
                                         "\"\n",        "null\n{\n", "x\ny\n"};
    char text[512];
    rose_load_trace t;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        snprintf(text, sizeof text, "%s \t%s", starts[i], request);
        assert_int_equal(parse(&t, text, 100), ROSE_OK);
        assert_string_equal(t.format, "mooncake");
        assert_true(t.n == 1 && t.n_bad == (i < 4 ? 1 : 2) && t.first_bad == 1);
        rose_load_trace_free(&t);
    }
    for (int blank = 19; blank <= 20; blank++) {
        snprintf(text, sizeof text, "x\n%.*s%s", blank, "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
                 request);
        assert_int_equal(parse(&t, text, 100), blank == 19 ? ROSE_OK : ROSE_E_FORMAT);
        rose_load_trace_free(&t);
    }
    assert_int_equal(parse(&t, "a,b,c\n1,2,{\n", 100), ROSE_E_FORMAT);
    assert_int_equal(parse(&t, "x\nTimestamp,Request tokens,Response tokens\n1,1,1\n", 100),
                     ROSE_E_FORMAT);
}

/* A number that is too large gets another message than one that is missing. */
static void test_too_long(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"{\"timestamp\": 1, \"input_length\": 99999999999, \"output_length\": 4}",
         ":1: line left out: input_length is over 16777216 tokens\n"},
        {"{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1e30}",
         ":1: line left out: output_length is over 16777216 tokens\n"},
        {"{\"timestamp\": 1, \"input_length\": \"1\", \"output_length\": 4}",
         ":1: line left out: no input_length of 1 or more\n"},
        {"Timestamp,Request tokens,Response tokens\n1,16777217,1",
         ":2: line left out: input length is over 16777216 tokens\n"},
        {"Timestamp,Request tokens,Response tokens\n1,1,0",
         ":2: line left out: no output length of 1 or more\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *report = NULL;
        size_t len = 0;
        rose_load_trace t;
        FILE *f = open_memstream(&report, &len);
        assert_int_equal(
            rose_load_trace_parse(&t, "t", cases[i].text, strlen(cases[i].text), 9, f, NULL),
            ROSE_E_FORMAT);
        fclose(f);
        assert_non_null(strstr(report, cases[i].why));
        free(report);
    }
}

static void test_limit(void **state)
{
    (void)state;
    rose_load_trace t;
    assert_int_equal(
        parse(&t, "Timestamp,Request tokens,Response tokens\n1,1,1\n2,2,2\n3,3,3\n", 2), ROSE_OK);
    assert_int_equal(t.n, 2);
    rose_load_trace_free(&t);
}

static void test_bad_lines(void **state)
{
    (void)state;
    static const char *const bad_csv[] = {
        "5,1",
        ",1,1",
        "x,1,1",
        "5,-1,1",
        "5,0,1",
        "5,1,0",
        "5,1.5,1",
        "5,1e99,1",
        "nan,1,1",
        "inf,1,1",
        "5,1,1x",
        "5,,",
        "-5,1,1",
        "5,99999999999,1",
        "2023-13-01 00:00:00,1,1",
        "2023-1-1 0:0:0,1,1",
        "2023-01-01 25:00:00,1,1",
        "2023-02-29 00:00:00,1,1",
        "2023-04-31 00:00:00,1,1",
        "2023-12-32 00:00:00,1,1",
        "2023-01-00 00:00:00,1,1",
    };
    static const char *const bad_json[] = {
        "{\"timestamp\": 1, \"input_length\": 5}",
        "{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 5}",
        "{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 5}",
        "{\"timestamp\": 1, \"input_length\": 5.5, \"output_length\": 5}",
        "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 99999999999}",
        "{\"timestamp\": \"1\", \"input_length\": 5, \"output_length\": 5}",
        "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5, \"hash_ids\": [1, \"x\"]}",
        "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5",
        "[1]",
        "null",
        "{}",
        "5,1,1",
        "\x01\xff",
    };
    for (int kind = 0; kind < 2; kind++) {
        const char *const *bad = kind == 0 ? bad_csv : bad_json;
        size_t n =
            kind == 0 ? sizeof bad_csv / sizeof *bad_csv : sizeof bad_json / sizeof *bad_json;
        for (size_t i = 0; i < n; i++) {
            char text[1024], *report = NULL;
            size_t report_len = 0;
            const char *good = kind == 0 ? "4,7,8"
                                         : "{\"timestamp\": 4, \"input_length\": 7, "
                                           "\"output_length\": 8, \"hash_ids\": [3]}";
            snprintf(text, sizeof text, "%s%s\n%s\n%s\n",
                     kind == 0 ? "Timestamp,Request tokens,Response tokens\n" : "", good, bad[i],
                     good);
            rose_load_trace t;
            FILE *f = open_memstream(&report, &report_len);
            assert_int_equal(rose_load_trace_parse(&t, "name", text, strlen(text), 9, f, NULL),
                             ROSE_OK);
            fclose(f);
            if (t.n != 2 || t.n_bad != 1) fail_msg("'%s' was taken", bad[i]);
            assert_int_equal(t.first_bad, kind == 0 ? 3 : 2);
            assert_non_null(strstr(report, kind == 0 ? "name:3: " : "name:2: "));
            /* nothing of the refused line is left */
            assert_int_equal(t.n_hashes, kind == 0 ? 0 : 2);
            free(report);
            rose_load_trace_free(&t);
        }
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const files[] = {"",
                                        "\n\n",
                                        "a,b,c\n1,2,3\n",
                                        "{\"x\": 1}\n",
                                        "{",
                                        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
                                        "TIMESTAMP,ContextTokens\n1,2\n"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        rose_load_trace t;
        rose_err err = {""};
        assert_int_equal(rose_load_trace_parse(&t, "f", files[i], strlen(files[i]), 9, NULL, &err),
                         ROSE_E_FORMAT);
        assert_true(err.msg[0] != '\0' && t.rows == NULL && t.hashes == NULL);
    }
    rose_load_trace t;
    assert_int_equal(rose_load_trace_read(&t, "/nonexistent/trace", 9, NULL, NULL),
                     ROSE_E_NOTFOUND);
}

/* Mutations and prefixes of good files neither crash nor give a bad row. */
static void test_mutations(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"
        "2023-11-16 18:15:50.99,396,109\n",
        "{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, "
        "47]}\n{\"timestamp\": 30535, \"input_length\": 60, \"output_length\": 6}\n"};
    rose_random r = {test_seed(), 1, 0};
    for (int i = 0; i < 20000; i++) {
        char text[512];
        const char *seed = seeds[i % 2];
        size_t n = strlen(seed);
        memcpy(text, seed, n);
        for (uint32_t k = rose_random_u32(&r) % 4; k > 0; k--)
            text[rose_random_u32(&r) % n] = (char)rose_random_u32(&r);
        n -= rose_random_u32(&r) % 3 == 0 ? rose_random_u32(&r) % n : 0;
        /* an exact copy, so that a sanitizer sees a read past the end */
        char *exact = malloc(n + 1);
        memcpy(exact, text, n);
        rose_load_trace t;
        if (rose_load_trace_parse(&t, "m", exact, n, 100, NULL, NULL) == ROSE_OK) {
            double at = 0;
            for (uint32_t k = 0; k < t.n; k++) {
                assert_true(t.rows[k].at_s >= at && t.rows[k].n_in >= 1 && t.rows[k].n_out >= 1);
                assert_true((size_t)t.rows[k].hash0 + t.rows[k].n_hash <= t.n_hashes);
                at = t.rows[k].at_s;
            }
        }
        rose_load_trace_free(&t);
        free(exact);
    }
}

static void test_generator(void **state)
{
    (void)state;
    enum { N = 50000 };
    const double shapes[] = {1, 0.25, 4};
    for (int i = 0; i < 3; i++) {
        const rose_load_trace_gen g = {.seed = test_seed(),
                                       .n = N,
                                       .rate = 20,
                                       .burstiness = shapes[i],
                                       .in_median = 256,
                                       .in_sigma = 0.8,
                                       .out_median = 96,
                                       .out_sigma = 0};
        rose_load_trace t, again;
        rose_samples gaps = {0}, in = {0};
        assert_int_equal(rose_load_trace_generate(&t, &g, NULL), ROSE_OK);
        assert_int_equal(rose_load_trace_generate(&again, &g, NULL), ROSE_OK);
        assert_memory_equal(t.rows, again.rows, N * sizeof *t.rows);
        for (uint32_t k = 1; k < N; k++) {
            rose_samples_add(&gaps, t.rows[k].at_s - t.rows[k - 1].at_s);
            rose_samples_add(&in, log(t.rows[k].n_in));
            assert_int_equal(t.rows[k].n_out, 96);
        }
        const rose_summary s = rose_summarise(gaps.v, gaps.n), l = rose_summarise(in.v, in.n);
        const double cv = 1 / sqrt(shapes[i]); /* the mean and variance of gamma-distributed gaps */
        if (fabs(s.mean * 20 - 1) > 5 * cv / sqrt(N)) fail_msg("rate %g", 1 / s.mean);
        if (fabs(s.sd / s.mean / cv - 1) > 0.05) fail_msg("spread %g, not %g", s.sd / s.mean, cv);
        if (fabs(l.p50 - log(256)) > 0.03 || fabs(l.sd - 0.8) > 0.02)
            fail_msg("lengths: median %g, sigma %g", exp(l.p50), l.sd);
        rose_samples_free(&gaps);
        rose_samples_free(&in);
        rose_load_trace_free(&t);
        rose_load_trace_free(&again);
    }
    rose_load_trace t;
    assert_int_equal(rose_load_trace_generate(&t, &(rose_load_trace_gen){.n = 1}, NULL),
                     ROSE_E_INVAL);
}

/* The rate grows as in vllm bench serve: linearly over the requests, or by equal factors. With so
 * high a burstiness the gaps are almost regular. */
static void test_ramp(void **state)
{
    enum { N = 1001 };
    (void)state;
    for (int k = 0; k < 2; k++) {
        const rose_load_trace_gen g = {.seed = test_seed(),
                                       .n = N,
                                       .rate = 10,
                                       .end_rate = 1000,
                                       .exponential = k == 1,
                                       .burstiness = 10000,
                                       .in_median = 5,
                                       .out_median = 5};
        rose_load_trace t;
        assert_int_equal(rose_load_trace_generate(&t, &g, NULL), ROSE_OK);
        for (uint32_t i = 0; i + 1 < N; i++) {
            const double progress = (double)i / (N - 1),
                         want = k == 1 ? 10 * pow(100, progress) : 10 + 990 * progress,
                         rate = 1 / (t.rows[i + 1].at_s - t.rows[i].at_s);
            if (fabs(rate / want - 1) > 0.08) fail_msg("request %u: %g, not %g", i, rate, want);
        }
        rose_load_trace_free(&t);
    }
}

static void test_clamp(void **state)
{
    (void)state;
    rose_random r = {test_seed(), 3, 0};
    for (int i = 0; i < 20000; i++) {
        rose_load_trace_row row = {0, 1 + rose_random_u32(&r) % 100, 1 + rose_random_u32(&r) % 100,
                                   0, 0};
        const rose_load_trace_row was = row;
        rose_load_trace t = {.rows = &row, .n = 1};
        const uint32_t context = 3 + rose_random_u32(&r) % 120, max_in = rose_random_u32(&r) % 50,
                       max_out = rose_random_u32(&r) % 50;
        uint32_t changed = rose_load_trace_clamp(&t, context, max_in, max_out);
        assert_true(row.n_in >= 1 && row.n_out >= 1 && row.n_in + row.n_out < context);
        assert_true(row.n_in <= was.n_in && row.n_out <= was.n_out);
        assert_true((max_in == 0 || row.n_in <= max_in) && (max_out == 0 || row.n_out <= max_out));
        assert_int_equal(changed, row.n_in != was.n_in || row.n_out != was.n_out);
    }
}

/* ---- prompts ---- */

static rose_prompts *prompts;
static rose_tokenizer *tok;

static int open_prompts(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/models/rose-tiny", repo_root());
    return rose_prompts_open(&prompts, path, NULL) == ROSE_OK &&
                   rose_tokenizer_open(&tok, path, NULL) == ROSE_OK
               ? 0
               : -1;
}

static int close_prompts(void **state)
{
    (void)state;
    rose_prompts_close(prompts);
    rose_tokenizer_close(tok);
    return 0;
}

static void write_prompt(const rose_prompt_spec *s, const rose_load_trace *t, uint32_t i,
                         rose_ids *ids)
{
    rose_buf b = {0};
    assert_int_equal(rose_prompt_write(prompts, s, t, i, &b), ROSE_OK);
    ids->len = 0;
    if (s->as_ids) {
        assert_non_null(rose_buf_str(&b));
        char *p = b.data + 1;
        assert_true(b.data[0] == '[' && b.data[b.len - 1] == ']');
        ids->data = realloc(ids->data, (b.len + 1) * sizeof *ids->data);
        while (*p != '\0') {
            ids->data[ids->len++] = (uint32_t)strtoul(p, &p, 10);
            p++;
        }
    } else {
        rose_encoder *e = NULL;
        assert_int_equal(rose_encoder_create(&e, tok, NULL), ROSE_OK);
        assert_true(b.data[0] == '"' && b.data[b.len - 1] == '"');
        assert_null(memchr(b.data, '\\', b.len));
        assert_int_equal(rose_encode(e, b.data + 1, b.len - 2, 0, ids, NULL), ROSE_OK);
        rose_encoder_destroy(e);
    }
    rose_buf_free(&b);
}

static size_t common_prefix(const rose_ids *a, const rose_ids *b)
{
    size_t n = 0;
    while (n < a->len && n < b->len && a->data[n] == b->data[n])
        n++;
    return n;
}

static void test_prompt_lengths(void **state)
{
    (void)state;
    rose_load_trace_row rows[] = {
        {0, 1, 1, 0, 0}, {0, 2, 1, 0, 0}, {0, 300, 1, 0, 0}, {0, 511, 1, 0, 0}};
    const rose_load_trace t = {.rows = rows, .n = 4};
    for (int mode = 0; mode < 3; mode++) {
        for (uint32_t i = 0; i < 4; i++) {
            rose_prompt_spec s = {.mode = (rose_prompt_mode)mode, .seed = test_seed()};
            rose_ids text = {0}, ids = {0};
            write_prompt(&s, &t, i, &text);
            s.as_ids = true;
            write_prompt(&s, &t, i, &ids);
            assert_int_equal(text.len, rows[i].n_in);
            assert_int_equal(ids.len, rows[i].n_in);
            /* both forms hold the same tokens */
            assert_int_equal(common_prefix(&text, &ids), rows[i].n_in);
            free(ids.data);
            rose_ids_free(&text);
        }
    }
}

static void test_prompt_prefixes(void **state)
{
    (void)state;
    uint64_t hashes[] = {1, 2, 3, 1, 2, 9};
    rose_load_trace_row rows[] = {{0, 200, 1, 0, 3}, {0, 150, 1, 3, 3}};
    const rose_load_trace t = {
        .rows = rows, .n = 2, .hashes = hashes, .n_hashes = 6, .block_tokens = 16};
    const struct {
        rose_prompt_mode mode;
        size_t least, most;
    } want[] = {
        {ROSE_PROMPT_UNIQUE, 0, 3}, {ROSE_PROMPT_SHARED, 150, 150}, {ROSE_PROMPT_TRACE, 32, 35}};
    for (int i = 0; i < 3; i++) {
        rose_prompt_spec s = {.mode = want[i].mode, .seed = 11};
        rose_ids a = {0}, b = {0}, other = {0};
        write_prompt(&s, &t, 0, &a);
        write_prompt(&s, &t, 1, &b);
        s.variant = 1;
        write_prompt(&s, &t, 0, &other);
        size_t n = common_prefix(&a, &b);
        if (n < want[i].least || n > want[i].most) fail_msg("mode %d: %zu tokens shared", i, n);
        assert_true(common_prefix(&a, &other) < 4); /* another variant gives other text */
        rose_ids_free(&a);
        rose_ids_free(&b);
        rose_ids_free(&other);
    }
}

/* Sentences up to the length that was asked for; every second prompt asks for its text again. */
static void test_prompt_text(void **state)
{
    (void)state;
    static const char again[] = " The same text once more:";
    rose_load_trace_row rows[] = {{0, 200, 1, 0, 0}, {0, 200, 1, 0, 0}, {0, 1, 1, 0, 0},
                                  {0, 40, 1, 0, 0},  {0, 90, 1, 0, 0},  {0, 9000, 1, 0, 0}};
    const rose_load_trace t = {.rows = rows, .n = 6};
    for (uint32_t i = 0; i < 6; i++) {
        rose_prompt_spec s = {.mode = ROSE_PROMPT_TEXT, .seed = test_seed()};
        rose_ids text = {0}, ids = {0}, other = {0};
        rose_buf b = {0};
        write_prompt(&s, &t, i, &text);
        assert_int_equal(rose_prompt_write(prompts, &s, &t, i, &b), ROSE_OK);
        assert_non_null(rose_buf_str(&b));
        char *tail = strstr(b.data, again);
        assert_int_equal(tail != NULL, i == 0 || i == 4);
        if (tail != NULL) { /* what follows is the beginning of the text */
            tail += sizeof again - 1;
            const size_t n = strlen(tail) - 1;
            assert_true(n >= 10 && memcmp(b.data + 1, tail, n) == 0);
        }
        s.as_ids = true;
        write_prompt(&s, &t, i, &ids);
        assert_int_equal(ids.len, text.len);
        assert_int_equal(common_prefix(&text, &ids), ids.len);
        assert_true(ids.len >= 1 && ids.len <= rows[i].n_in);
        if (i < 5) assert_true(ids.len + 16 > rows[i].n_in); /* but for one word */
        s.variant = 1;
        write_prompt(&s, &t, i, &other);
        if (i != 2) assert_true(common_prefix(&ids, &other) < ids.len);
        rose_buf_free(&b);
        rose_ids_free(&text);
        free(ids.data);
        free(other.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_azure),          cmocka_unit_test(test_burstgpt),
        cmocka_unit_test(test_quotes),         cmocka_unit_test(test_jsonl),
        cmocka_unit_test(test_bad_start),      cmocka_unit_test(test_foreign_start),
        cmocka_unit_test(test_too_long),       cmocka_unit_test(test_limit),
        cmocka_unit_test(test_bad_lines),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_mutations),      cmocka_unit_test(test_generator),
        cmocka_unit_test(test_ramp),           cmocka_unit_test(test_clamp),
        cmocka_unit_test(test_prompt_lengths), cmocka_unit_test(test_prompt_prefixes),
        cmocka_unit_test(test_prompt_text),
    };
    return cmocka_run_group_tests(tests, open_prompts, close_prompts);
}
