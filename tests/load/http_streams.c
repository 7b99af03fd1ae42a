/* tests/load/http_streams.c - `load http` measures what connections, JSON, detokenising and SSE
 * cost. The whole server runs in this process on a backend that computes nothing, and the load
 * generator runs on this thread. The CPU time of an I/O thread shows what that thread can do, also
 * when other programs share the machine.
 *
 * It is not part of roseinfer-bench, which must not include the rooms of the server. */
#include <dirent.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/opts.h"
#include "base/version.h"
#include "bench/load.h"
#include "bench/results.h"
#include "bench/stats.h"
#include "engine/flags.h"
#include "load/instant.h"
#include "load/load.h"
#include "load/record_turns.h"

enum { MAX_POINTS = 16, MAX_STREAMS = 4096, RECORD_TURN_MS = 50 };

typedef struct http_flags {
    const char *streams, *output_dir, *io_cpus, *client_cpus;
    int io_cpu_list[ROSE_MAX_CPUS]; /* filled by read_cpus */
    uint32_t n_io_cpus;
    uint32_t output_len, input_len, io_threads;
    float rate;
    bool fast_sse, record;
} http_flags;

typedef struct served {
    rose_model *model;
    rose_tokenizer *tok;
    rose_engine *engine;
    rose_api *api;
    rose_http *http;
    rose_url url;
} served;

typedef struct point {
    uint32_t n_streams, n_failed;
    bool all_open; /* every stream had its first token before any stream ended */
    uint64_t tokens, events, tokens_open;
    double open_s;                 /* while all streams are open, for so long, tokens_open arrive */
    double wall_s;                 /* the whole run, including the opening of the streams */
    double io_cpu_s, engine_cpu_s; /* over the whole run */
    double client_cpu_s;
    rose_json *recorded; /* owned; NULL without --record */
    rose_summary ttft, itl;
    char first_error[192];
} point;

/* CPU seconds of the threads of this process whose names begin with prefix; negative if the kernel
 * does not report them. */
static double thread_cpu_s(const char *prefix)
{
    double sum = 0;
    bool any = false;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char path[320], name[32] = "";
        unsigned long long ns = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = e->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (f == NULL) continue;
        if (fgets(name, sizeof name, f) == NULL) name[0] = '\0';
        fclose(f);
        if (strncmp(name, prefix, strlen(prefix)) != 0) continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", e->d_name);
        if ((f = fopen(path, "r")) == NULL) continue;
        any |= fscanf(f, "%llu", &ns) == 1;
        fclose(f);
        sum += (double)ns * 1e-9;
    }
    if (d != NULL) closedir(d);
    return any ? sum : -1;
}

/* CPU seconds of the calling thread. */
static double own_cpu_s(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0
               ? (double)t.tv_sec + (double)t.tv_nsec * 1e-9
               : 0;
}

/* Reads --io-cpus for the I/O threads, and pins this thread to --client-cpus. All threads that this
 * one starts inherit that: the engine and its workers share the client's CPUs. */
static rose_status read_cpus(http_flags *f, rose_err *err)
{
    int cpus[ROSE_MAX_CPUS];
    uint32_t n = 0;
    cpu_set_t set;
    rose_status st = ROSE_OK;
    if (f->io_cpus != NULL)
        st = rose_cpu_list_parse(f->io_cpus, f->io_cpu_list, ROSE_MAX_CPUS, &f->n_io_cpus, err);
    if (st != ROSE_OK || f->client_cpus == NULL) return st;
    if ((st = rose_cpu_list_parse(f->client_cpus, cpus, ROSE_MAX_CPUS, &n, err)) != ROSE_OK)
        return st;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < n; i++)
        CPU_SET((size_t)cpus[i], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        return rose_fail(err, ROSE_E_IO, "--client-cpus '%s': cannot be set", f->client_cpus);
    return ROSE_OK;
}

static void stop(served *s)
{
    rose_http_stop(s->http);
    rose_api_stop(s->api);
    rose_engine_close(s->engine);
    rose_api_destroy(s->api);
    rose_tokenizer_close(s->tok);
    rose_model_close(s->model);
    *s = (served){0};
}

static rose_status start(served *s, const char *dir, const http_flags *f, uint32_t most,
                         rose_err *err)
{
    rose_api_opts a;
    rose_http_opts h;
    rose_engine_opts e;
    const uint32_t len = f->input_len + f->output_len + 1;
    rose_api_opts_default(&a);
    rose_http_opts_default(&h);
    rose_engine_opts_default(&e);
    a.model_id = "instant";
    a.version = rose_version();
    a.n_io_threads = h.n_threads = f->io_threads;
    a.fast_sse = f->fast_sse;
    a.max_queued_jobs = most;
    h.host = "127.0.0.1";
    h.port = 0;
    h.cpus = f->io_cpu_list;
    h.n_cpus = f->n_io_cpus;
    h.max_connections = most + 16;
    e.max_queued = most;
    e.backend.max_seqs = most;
    e.backend.max_step_tokens = most > 2048 ? most : 2048;
    e.backend.max_model_len = len;
    e.backend.kv_pages = (most + 1) * (len / ROSE_KV_PAGE_TOKENS + 1);
    rose_status st = rose_model_open(&s->model, dir, err);
    if (st == ROSE_OK && s->model->arch.max_positions < len)
        st = rose_fail(err, ROSE_E_INVAL, "--input-len and --output-len exceed the context of %u",
                       s->model->arch.max_positions);
    if (st == ROSE_OK) st = rose_tokenizer_open(&s->tok, dir, err);
    if (st == ROSE_OK) st = rose_api_create(&s->api, &a, err);
    if (st != ROSE_OK) return st;
    const rose_http_callbacks cb = rose_api_callbacks(s->api);
    if ((st = rose_http_start(&s->http, &h, &cb, err)) != ROSE_OK) return st;
    st = rose_api_attach(s->api, s->http, err);
    if (st == ROSE_OK) st = rose_engine_open(&s->engine, &rose_instant_ops, s->model, &e, err);
    if (st != ROSE_OK) return st;
    rose_api_set_engine(s->api, s->engine, s->tok);
    s->url = (rose_url){.host = "127.0.0.1"};
    snprintf(s->url.port, sizeof s->url.port, "%u", rose_http_port(s->http));
    return ROSE_OK;
}

static rose_status summarise(point *p, const rose_reply *replies, uint32_t n)
{
    uint64_t last_first = 0, first_end = UINT64_MAX;
    rose_samples ttft = {0}, itl = {0};
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < n; i++) {
        const rose_reply *r = &replies[i];
        if (r->error[0] != '\0') {
            if (p->n_failed++ == 0) snprintf(p->first_error, sizeof p->first_error, "%s", r->error);
            continue;
        }
        p->tokens += r->n_tokens;
        p->events += r->n_events;
        if (r->first_ns > last_first) last_first = r->first_ns;
        if (r->last_ns < first_end) first_end = r->last_ns;
        if (st == ROSE_OK) st = rose_samples_add(&ttft, (double)(r->first_ns - r->start_ns) * 1e-9);
        for (uint32_t k = 1; k < r->n_events && st == ROSE_OK; k++)
            st = rose_samples_add(&itl,
                                  (double)(r->arrivals[k].t_ns - r->arrivals[k - 1].t_ns) * 1e-9);
    }
    p->all_open = p->n_failed == 0 && last_first < first_end;
    for (uint32_t i = 0; i < n && p->all_open; i++) {
        for (uint32_t k = 0; k < replies[i].n_events; k++) {
            const rose_arrival *a = &replies[i].arrivals[k];
            if (a->t_ns > last_first && a->t_ns <= first_end) p->tokens_open += a->n_tokens;
        }
    }
    if (p->all_open) p->open_s = (double)(first_end - last_first) * 1e-9;
    p->ttft = rose_summarise(ttft.v, ttft.n);
    p->itl = rose_summarise(itl.v, itl.n);
    rose_samples_free(&ttft);
    rose_samples_free(&itl);
    return st;
}

static rose_status write_body(const http_flags *f, rose_buf *b)
{
    rose_status st = rose_buf_addf(b, "{\"model\":\"instant\",\"prompt\":[");
    for (uint32_t i = 0; i < f->input_len && st == ROSE_OK; i++)
        st = rose_buf_addf(b, "%s%u", i > 0 ? "," : "", i % 100);
    if (st == ROSE_OK)
        st = rose_buf_addf(b,
                           "],\"max_tokens\":%u,\"temperature\":0,\"ignore_eos\":true,"
                           "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                           f->output_len);
    return st;
}

static uint64_t tokens_of(void *engine)
{
    return rose_engine_get_stats(engine).generated_tokens;
}

/* Records only in the middle of the run, not while streams open or end. */
static rose_status start_turns(rose_record_turns **out, const served *s, const http_flags *f,
                               uint32_t n, rose_err *err)
{
    static const char *const threads[] = {"rose-io-0", "rose-engine"};
    const uint64_t so_far = tokens_of(s->engine), all = (uint64_t)n * f->output_len;
    const rose_record_opts o = {.threads = threads,
                                .n_threads = 2,
                                .tokens = tokens_of,
                                .of = s->engine,
                                .from = so_far + all / 10,
                                .until = so_far + all - all / 10,
                                .turn_ms = RECORD_TURN_MS};
    return rose_record_turns_start(out, &o, err);
}

/* Runs n streams at once and measures what they and the threads did. */
static rose_status measure(const served *s, const http_flags *f, uint32_t n, point *p,
                           rose_err *err)
{
    rose_buf body = {0}, request = {0};
    rose_load_item *items = calloc(n, sizeof *items);
    rose_reply *replies = calloc(n, sizeof *replies);
    const rose_load_opts o = {
        .url = &s->url, .timeout_ns = 120000000000u, .stall_ns = 30000000000u};
    rose_status st = items == NULL || replies == NULL ? ROSE_E_NOMEM : write_body(f, &body);
    *p = (point){.n_streams = n};
    if (st == ROSE_OK)
        st = rose_request_write(&request, &s->url, "/v1/completions", NULL, body.data, body.len);
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++)
        items[i] = (rose_load_item){request.data, request.len, 1000000};
    if (st != ROSE_OK) rose_fail(err, st, "out of memory");
    rose_instant_hold_until(n);
    const double io = thread_cpu_s("rose-io"), engine = thread_cpu_s("rose-engine");
    rose_record_turns *turns = NULL;
    if (st == ROSE_OK && f->record) st = start_turns(&turns, s, f, n, err);
    const double client = own_cpu_s();
    const uint64_t begin = rose_now_ns();
    if (st == ROSE_OK) st = rose_load_run(&o, items, n, replies, err);
    p->recorded = rose_record_turns_end(turns);
    if (st == ROSE_OK) {
        p->wall_s = (double)(rose_now_ns() - begin) * 1e-9;
        p->client_cpu_s = own_cpu_s() - client;
        p->io_cpu_s = io < 0 ? -1 : thread_cpu_s("rose-io") - io;
        p->engine_cpu_s = engine < 0 ? -1 : thread_cpu_s("rose-engine") - engine;
        if ((st = summarise(p, replies, n)) != ROSE_OK) rose_fail(err, st, "out of memory");
    }
    for (uint32_t i = 0; replies != NULL && i < n; i++)
        rose_reply_free(&replies[i]);
    free(replies);
    free(items);
    rose_buf_free(&body);
    rose_buf_free(&request);
    return st;
}

static rose_json *point_json(const point *p)
{
    rose_json *o = rose_json_pack(
        "{s:i, s:i, s:b, s:I, s:I, s:f, s:o, s:f, s:f, s:o, s:o, s:o, s:o}", "streams",
        (int)p->n_streams, "num_error", (int)p->n_failed, "all_open_at_once", (int)p->all_open,
        "tokens", (int64_t)p->tokens, "events", (int64_t)p->events, "open_s", p->open_s,
        "tok_per_s",
        p->open_s > 0 ? rose_json_real((double)p->tokens_open / p->open_s) : rose_json_null(),
        "wall_s", p->wall_s, "client_cpu_s", p->client_cpu_s, "io_cpu_s",
        p->io_cpu_s >= 0 ? rose_json_real(p->io_cpu_s) : rose_json_null(), "engine_cpu_s",
        p->engine_cpu_s >= 0 ? rose_json_real(p->engine_cpu_s) : rose_json_null(),
        "tok_per_io_cpu_s",
        p->io_cpu_s > 0 ? rose_json_real((double)p->tokens / p->io_cpu_s) : rose_json_null(),
        "first_error",
        p->first_error[0] != '\0' ? rose_json_string(p->first_error) : rose_json_null());
    if (p->recorded != NULL) rose_json_set(o, "recorder", p->recorded);
    rose_json_set_new(o, "ttft_ms", rose_summary_json(&p->ttft, 1e3));
    rose_json_set_new(o, "itl_ms", rose_summary_json(&p->itl, 1e3));
    return o;
}

static rose_status parse_streams(const char *text, uint32_t *out, uint32_t *n, uint32_t *most,
                                 rose_err *err)
{
    *n = *most = 0;
    for (const char *p = text;;) {
        char *end;
        const unsigned long v = strtoul(p, &end, 10);
        if (end == p || *p == '-' || v < 1 || v > MAX_STREAMS || *n == MAX_POINTS ||
            (*end != ',' && *end != '\0'))
            return rose_fail(err, ROSE_E_INVAL,
                             "--streams '%s': expected up to %d numbers from 1 to %d, as 64,500",
                             text, MAX_POINTS, MAX_STREAMS);
        out[(*n)++] = (uint32_t)v;
        if (v > *most) *most = (uint32_t)v;
        if (*end == '\0') return ROSE_OK;
        p = end + 1;
    }
}

/* Raises the limit of open files: both ends of every connection are in this process. */
static rose_status allow_files(uint32_t most, rose_err *err)
{
    struct rlimit l;
    const rlim_t need = 2 * (rlim_t)most + 64;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0) return ROSE_OK;
    if (l.rlim_cur < need) {
        l.rlim_cur = l.rlim_max < need ? l.rlim_max : need;
        setrlimit(RLIMIT_NOFILE, &l);
    }
    if (l.rlim_cur >= need) return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL, "%u streams need %llu open files; the limit is %llu", most,
                     (unsigned long long)need, (unsigned long long)l.rlim_max);
}

static int run(const char *dir, http_flags *f, int argc, char **argv)
{
    uint32_t streams[MAX_POINTS], n, most, failed = 0;
    served s = {0};
    rose_err err = {{0}};
    rose_json *list = rose_json_array();
    rose_status st = parse_streams(f->streams, streams, &n, &most, &err);
    if (st == ROSE_OK) st = allow_files(most, &err);
    if (st == ROSE_OK) st = read_cpus(f, &err);
    signal(SIGPIPE, SIG_IGN);
    rose_instant_set_rate((double)f->rate);
    if (st == ROSE_OK) st = start(&s, dir, f, most, &err);
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++) {
        point p;
        if (i == 0) { /* warm-up of buffers and connections */
            st = measure(&s, f, streams[0], &p, &err);
            if (st == ROSE_OK) rose_json_decref(p.recorded);
        }
        if (st == ROSE_OK) st = measure(&s, f, streams[i], &p, &err);
        if (st != ROSE_OK) {
            rose_json_decref(p.recorded);
            break;
        }
        failed += p.n_failed;
        fprintf(stderr,
                "%u streams: %.0f tok/s while all are open; %.0f tok per second of I/O CPU; ITL "
                "p50 %.3f p99 %.3f "
                "ms; CPU I/O %.2f client %.2f engine %.2f of %.2f s%s%s%s\n",
                p.n_streams, p.open_s > 0 ? (double)p.tokens_open / p.open_s : 0,
                p.io_cpu_s > 0 ? (double)p.tokens / p.io_cpu_s : 0, p.itl.p50 * 1e3,
                p.itl.p99 * 1e3, p.io_cpu_s, p.client_cpu_s, p.engine_cpu_s, p.wall_s,
                p.all_open ? "" : "; some streams ended before the last one began",
                p.n_failed > 0 ? "; FAILED: " : "", p.first_error);
        rose_json_append_new(list, point_json(&p));
        rose_json_decref(p.recorded);
    }
    stop(&s);
    if (st != ROSE_OK) {
        rose_json_decref(list);
        return rose_die(&err);
    }
    rose_json *meta = rose_results_meta(argc, argv);
    rose_json *root =
        rose_json_pack("{s:o, s:s, s:f, s:i, s:i, s:i, s:b, s:b, s:o}", "meta", meta, "bench",
                       "http", "rate", (double)f->rate, "io_threads", (int)f->io_threads,
                       "input_len", (int)f->input_len, "output_len", (int)f->output_len, "fast_sse",
                       (int)f->fast_sse, "record", (int)f->record, "results", list);
    const int rc = rose_results_emit(root, f->output_dir, "http");
    return failed == 0 ? rc : 1;
}

int rose_load_http(int argc, char **argv)
{
    http_flags f = {.streams = "64,500,2000",
                    .output_len = 256,
                    .input_len = 16,
                    .io_threads = 1,
                    .rate = 200000,
                    .fast_sse = true};
    const rose_opt opts[] = {
        ROSE_ROW_STRING("streams", &f.streams, "LIST",
                        "one run for each number of streams, which are all open at once"),
        ROSE_ROW_FLOAT(
            "rate", &f.rate, "N", 0, 1e9f,
            "tokens per second of the backend, over all streams; 0 is as fast as possible"),
        ROSE_ROW_U32("output-len", &f.output_len, "N", 1, 1u << 20, "tokens of each stream"),
        ROSE_ROW_U32("input-len", &f.input_len, "N", 1, 1u << 20, "token ids of each prompt"),
        ROSE_ROW_U32("io-threads", &f.io_threads, "N", 1, 64, "I/O threads of the server"),
        ROSE_ROW_STRING("io-cpus", &f.io_cpus, "LIST", "CPUs of the I/O threads, as 0-3,6",
                        .unset = "not pinned"),
        ROSE_ROW_STRING("client-cpus", &f.client_cpus, "LIST",
                        "CPUs of the load generator and of all threads other than the I/O threads",
                        .unset = "not pinned"),
        ROSE_ROW_BOOL("fast-sse", &f.fast_sse, "as in serve"),
        ROSE_ROW_BOOL("record", &f.record,
                      "record in every other 50 ms, and report the CPU time a token with and "
                      "without recording, in pairs"),
        ROSE_ROW_OUTPUT_DIR(&f.output_dir, "http"),
    };
    const char *model;
    const int rc =
        rose_opts_parse_one("load http MODEL [options]",
                            "Streams of a whole server on a backend that computes nothing: tokens "
                            "per second over SSE, by wall\nclock and by CPU time of the I/O "
                            "threads. MODEL gives the tokenizer; its weights are not read.",
                            opts, sizeof opts / sizeof *opts, argc, argv, &model);
    if (rc >= 0) return rc;
    rose_log_set_level(ROSE_LOG_WARN);
    return run(model, &f, argc, argv);
}
