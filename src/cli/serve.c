/* cli/serve.c - `roseinfer serve`: opens the port, loads the model, serves until told to stop.
 *
 * The main thread owns start and stop and sleeps in between: SIGTERM or SIGINT drains (no new work,
 * what runs goes on), a second one ends at once. All other threads block these signals. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "api/api.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/fds.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memlock.h"
#include "base/opts.h"
#include "base/procstat.h"
#include "base/profile.h"
#include "base/stall.h"
#include "base/version.h"
#include "cli/cli.h"
#include "engine/flags.h"
#include "tokenizer/unicode.h"

enum { MAX_HTTP_ROWS = 40, POLL_MS = 20, OWN_FDS = 256, SPARE_CPUS = 4 };

typedef struct serve_flags {
    const char *host, *chat_template, *log_level, *io_cpus;
    rose_opt_list served_model_names;
    uint32_t port, io_threads, tokenize_workers, max_connections, max_n;
    uint32_t header_timeout_ms, body_timeout_ms, idle_timeout_ms, write_timeout_ms,
        shutdown_timeout, stream_interval, stall_warn_ms, io_slice_us, inline_admit_bytes,
        io_poll_us;
    const char *profiler_dir;
    uint32_t profiler_events;
    bool nvtx;
    uint64_t max_body_size, max_total_body_size, max_pending, max_total_pending;
    bool async_admit, early_wake, fast_sse, strict_fields, lenient;
    rose_engine_flags engine;
    int io_cpu_list[ROSE_MAX_CPUS];
} serve_flags;

typedef struct server {
    rose_model *model;
    rose_tokenizer *tok;
    rose_engine *engine;
    rose_api *api;
    rose_http *http;
} server;

static void flags_init(serve_flags *f)
{
    rose_http_opts h;
    rose_api_opts a;
    rose_http_opts_default(&h);
    rose_api_opts_default(&a);
    const bool spare = rose_cpus_allowed(f->io_cpu_list, ROSE_MAX_CPUS) >= SPARE_CPUS &&
                       rose_cpus_quota() >= SPARE_CPUS;
    *f = (serve_flags){
        .host = h.host,
        .log_level = "info",
        .port = h.port,
        .io_threads = h.n_threads,
        .tokenize_workers = a.n_workers,
        .max_connections = h.max_connections,
        .max_n = a.max_n,
        .header_timeout_ms = h.header_timeout_ms,
        .body_timeout_ms = h.body_timeout_ms,
        .idle_timeout_ms = h.idle_timeout_ms,
        .write_timeout_ms = h.write_timeout_ms,
        .shutdown_timeout = 60,
        .max_body_size = h.max_body_bytes,
        .max_pending = h.max_pending_bytes,
        .async_admit = a.async_admit,
        .inline_admit_bytes = a.inline_bytes,
        .early_wake = spare && a.early_wake,
        .io_poll_us = spare ? 2000 : 0,
        .fast_sse = a.fast_sse,
        .stream_interval = a.stream_interval,
        .io_slice_us = 100,
        .strict_fields = a.strict_fields,
        .profiler_events = a.profiler_events,
    };
    rose_engine_flags_init(&f->engine);
}

/* A table: as long as there are options. */
static size_t flags_rows(serve_flags *f, rose_opt *rows)
{
    const rose_opt all[] = {
        {.name = "Server options", .kind = ROSE_OPT_HEADING},
        ROSE_ROW_STRING("host", &f->host, "HOST", "address to listen on, or unix:PATH"),
        ROSE_ROW_U32("port", &f->port, "N", 0, 65535,
                     "port to listen on; 0 takes a free one and logs it"),
        ROSE_ROW_LIST("served-model-name", &f->served_model_names, "NAME",
                      "name of the model in the API; with several names, requests may use any and "
                      "replies have the first",
                      .unset = "the folder's name"),
        ROSE_ROW_CHOICE("chat-template", &f->chat_template, "plain",
                        "how chat messages become a prompt",
                        .unset = "plain, if the model has none"),
        ROSE_ROW_U32("io-threads", &f->io_threads, "N", 1, 64,
                     "threads for connections and streaming"),
        ROSE_ROW_STRING("io-cpus", &f->io_cpus, "LIST", "CPUs of the I/O threads, as 0-3,6",
                        .unset = "not pinned"),
        ROSE_ROW_U32(
            "io-slice-us", &f->io_slice_us, "US", 0, 100000,
            "time slice that I/O threads and tokenizer workers ask the system for: with a short "
            "one they need not wait for a CPU that computes (Linux 6.12); 0 = the system's"),
        ROSE_ROW_BOOL("async-admit", &f->async_admit,
                      "parse and tokenise on worker threads instead of the I/O threads"),
        ROSE_ROW_U32("tokenize-workers", &f->tokenize_workers, "N", 1, 64,
                     "how many of these workers"),
        ROSE_ROW_U32("inline-admit-bytes", &f->inline_admit_bytes, "N", 0, ROSE_API_MAX_INLINE,
                     "bodies of completions up to so long are parsed and tokenised on the I/O "
                     "thread, as long as that takes a fifth of its time at most; 0 = none"),
        ROSE_ROW_BOOL("early-wake", &f->early_wake,
                      "with a GPU: wake the engine thread when a request is complete, before it "
                      "is tokenised (off by default with less than 4 CPUs)"),
        ROSE_ROW_U32("io-poll-us", &f->io_poll_us, "US", 0, 1000000,
                     "with a GPU and --early-wake: how long an I/O thread polls instead of "
                     "sleeping for a request's first token (0 by default with less than 4 CPUs)"),
        ROSE_ROW_BOOL("fast-sse", &f->fast_sse,
                      "build stream chunks from prepared bytes instead of a generic JSON writer"),
        ROSE_ROW_U32("stream-interval", &f->stream_interval, "N", 1, 65536,
                     "tokens of a stream's event behind its first, which goes at once"),
        ROSE_ROW_BOOL("strict-fields", &f->strict_fields,
                      "refuse requests with fields that would be ignored; else the reply names "
                      "these fields in X-Ignored-Fields"),
        ROSE_ROW_FLAG("lenient", &f->lenient,
                      "without effect: unknown fields are ignored unless --strict-fields is given"),
        ROSE_ROW_U32("max-n", &f->max_n, "N", 1, 4096, "most choices of one request, prompts x n"),
        ROSE_ROW_BYTES("max-body-size", &f->max_body_size, 1024, (uint64_t)1 << 32,
                       "longest request body; over: 413"),
        ROSE_ROW_BYTES("max-total-body-size", &f->max_total_body_size, 0, 0,
                       "request bodies that are being received, together; over: 503",
                       .unset = "32 times --max-body-size"),
        ROSE_ROW_U32("max-connections", &f->max_connections, "N", 1, 1u << 20,
                     "open connections; one more gets 503"),
        ROSE_ROW_U32("header-timeout-ms", &f->header_timeout_ms, "MS", 1, 0,
                     "from the first byte of a request to its last header; over: 408"),
        ROSE_ROW_U32("body-timeout-ms", &f->body_timeout_ms, "MS", 1, 0,
                     "longest pause within a body; over: 408"),
        ROSE_ROW_U32("idle-timeout-ms", &f->idle_timeout_ms, "MS", 1, 0,
                     "connections without a request are closed after so long"),
        ROSE_ROW_U32("write-timeout-ms", &f->write_timeout_ms, "MS", 1, 0,
                     "a client that takes no byte for so long is dropped"),
        ROSE_ROW_BYTES("max-pending-bytes", &f->max_pending, 4096, 0,
                       "unsent bytes of one stream; a slower client is dropped"),
        ROSE_ROW_BYTES("max-total-pending-bytes", &f->max_total_pending, 0, 0,
                       "replies, whole and streamed, that clients do not take, together; over: the "
                       "one that has taken nothing for longest is dropped",
                       .unset = "256 times --max-pending-bytes"),
        ROSE_ROW_U32("shutdown-timeout", &f->shutdown_timeout, "S", 0, 0,
                     "seconds that running requests get after SIGTERM"),
        ROSE_ROW_U32("stall-warn-ms", &f->stall_warn_ms, "MS", 0, 3600000,
                     "log what took longer and why: engine step, turn of an I/O loop, tokenizer "
                     "job, client that takes nothing",
                     .unset = "off"),
        ROSE_ROW_STRING("profiler-dir", &f->profiler_dir, "DIR",
                        "allow POST /start_profile and /stop_profile, which write traces there",
                        .unset = "refused"),
        ROSE_ROW_U32("profiler-events", &f->profiler_events, "N", ROSE_PROF_MIN_EVENTS,
                     ROSE_PROF_MAX_EVENTS,
                     "events of each thread that a profile holds, 48 bytes each"),
        ROSE_ROW_FLAG("nvtx", &f->nvtx, "NVTX ranges of what a profile shows, for nsys"),
        ROSE_ROW_CHOICE("log-level", &f->log_level, "debug|info|warn|error|off",
                        "log lines on standard error"),
    };
    _Static_assert(sizeof all / sizeof *all <= MAX_HTTP_ROWS, "rows: too few");
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* A chat template of the model's own is a program in a template language, which we do not run. */
static bool has_chat_template(const char *dir)
{
    char path[4096];
    rose_buf text = {0};
    json_t *root = NULL;
    bool found = false;
    if (snprintf(path, sizeof path, "%s/chat_template.jinja", dir) < (int)sizeof path)
        found = rose_file_exists(path);
    if (!found && snprintf(path, sizeof path, "%s/tokenizer_config.json", dir) < (int)sizeof path &&
        rose_file_exists(path) && rose_file_read(&text, path, 64u << 20, NULL) == ROSE_OK &&
        rose_json_parse(&root, text.data, text.len, 0, NULL) == ROSE_OK) {
        const json_t *t = json_object_get(root, "chat_template");
        found = t != NULL && !json_is_null(t);
    }
    json_decref(root);
    rose_buf_free(&text);
    return found;
}

static rose_status start_http(server *s, serve_flags *f, const char *model_id, bool has_template,
                              rose_err *err)
{
    rose_api_opts a;
    rose_http_opts h;
    rose_api_opts_default(&a);
    a.model_id = model_id;
    a.version = rose_version();
    a.chat_template = f->chat_template;
    a.model_has_template = has_template;
    a.n_io_threads = f->io_threads;
    a.n_workers = f->tokenize_workers;
    a.async_admit = f->async_admit;
    a.inline_bytes = f->inline_admit_bytes;
    a.early_wake = f->early_wake;
    a.poll_us = f->io_poll_us;
    a.fast_sse = f->fast_sse;
    a.stream_interval = f->stream_interval;
    a.strict_fields = f->strict_fields;
    for (uint32_t i = 1; i < f->served_model_names.n; i++)
        rose_opt_list_add(&a.model_aliases, rose_opt_list_get(&f->served_model_names, i));
    a.max_n = f->max_n;
    a.profiler_dir = f->profiler_dir;
    a.profiler_events = f->profiler_events;
    rose_http_opts_default(&h);
    h.host = f->host;
    h.port = (uint16_t)f->port;
    h.n_threads = f->io_threads;
    h.max_body_bytes = f->max_body_size;
    h.max_total_body_bytes = f->max_total_body_size;
    h.max_connections = f->max_connections;
    h.header_timeout_ms = f->header_timeout_ms;
    h.body_timeout_ms = f->body_timeout_ms;
    h.idle_timeout_ms = f->idle_timeout_ms;
    h.write_timeout_ms = f->write_timeout_ms;
    h.max_pending_bytes = f->max_pending;
    h.max_total_pending_bytes = f->max_total_pending;
    if (f->io_cpus != NULL) {
        h.cpus = f->io_cpu_list;
        rose_status st =
            rose_cpu_list_parse(f->io_cpus, f->io_cpu_list, ROSE_MAX_CPUS, &h.n_cpus, err);
        if (st != ROSE_OK) return st;
    }
    rose_status st = rose_api_create(&s->api, &a, err);
    if (st != ROSE_OK) return st;
    const rose_http_callbacks cb = rose_api_callbacks(s->api);
    if ((st = rose_http_start(&s->http, &h, &cb, err)) != ROSE_OK) return st;
    return rose_api_attach(s->api, s->http, err);
}

static void stop_all(server *s)
{
    rose_http_stop(s->http);
    rose_api_stop(s->api);
    rose_engine_close(s->engine); /* before the wake queues that it signals are freed */
    rose_api_destroy(s->api);
    rose_tokenizer_close(s->tok);
    rose_model_close(s->model);
}

/* The served name: the option, or the last component of the folder. Replies are JSON, so bytes that
 * are not UTF-8 are \xNN in the latter and refused in the former. */
static rose_status model_id_of(const serve_flags *f, const char *dir, rose_buf *out, rose_err *err)
{
    const rose_opt_list *names = &f->served_model_names;
    const char *given = names->n > 0 ? rose_opt_list_get(names, 0) : NULL;
    size_t n = strlen(given != NULL ? given : dir), start;
    for (uint32_t i = 0; i < names->n; i++) {
        const char *name = rose_opt_list_get(names, i);
        if (rose_utf8_valid_prefix((const uint8_t *)name, strlen(name)) < strlen(name))
            return rose_fail(err, ROSE_E_INVAL, "--served-model-name '%s' is not UTF-8", name);
    }
    while (given == NULL && n > 1 && dir[n - 1] == '/')
        n--;
    for (start = given == NULL ? n : 0; start > 0 && dir[start - 1] != '/';)
        start--;
    if (rose_utf8_escape(out, (given != NULL ? given : dir) + start, n - start) == ROSE_OK &&
        rose_buf_str(out) != NULL)
        return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "out of memory");
}

/* What --mlock and --prefault are for, in figures. */
static void log_memory(const rose_procstat *p)
{
    rose_log(ROSE_LOG_INFO, "serve",
             "memory: %.1f MiB resident, %.1f MiB locked; page faults until ready: %" PRIu64
             " minor, %" PRIu64 " major",
             (double)p->resident_bytes / 1048576.0, (double)rose_memory_locked() / 1048576.0,
             p->minor_faults, p->major_faults);
}

static void log_faults(const server *s, const rose_procstat *ready)
{
    const rose_procstat now = rose_procstat_read();
    rose_log(ROSE_LOG_INFO, "serve",
             "page faults since ready: %" PRIu64 " minor, %" PRIu64 " major, in %" PRIu64 " steps",
             now.minor_faults - ready->minor_faults, now.major_faults - ready->major_faults,
             rose_engine_get_stats(s->engine).steps);
}

/* A part of the memory plan, in MiB. */
static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* When each part of the start was done. */
typedef struct start_times {
    uint64_t began, model, port, tokenizer, engine;
} start_times;

static void log_ready(const server *s, const serve_flags *f, const char *device,
                      const char *model_id, const start_times *t)
{
    const rose_memory_plan *p = rose_engine_plan(s->engine);
    rose_log(ROSE_LOG_INFO, "serve",
             "ready in %.1f ms: %s on %s, %s%s, %u threads, context %u, %u KV pages",
             rose_ms_between(t->began, rose_now_ns()), model_id, device,
             rose_compute_name(p->dtype),
             p->quantization == ROSE_QUANT_INT8 ? " with int8 weights" : "", p->n_threads,
             p->max_model_len, p->kv_pages);
    rose_log(ROSE_LOG_INFO, "serve",
             "start: files of the model %.1f + port %.1f + tokenizer %.1f + engine %.1f ms",
             rose_ms_between(t->began, t->model), rose_ms_between(t->model, t->port),
             rose_ms_between(t->port, t->tokenizer), rose_ms_between(t->tokenizer, t->engine));
    rose_log(ROSE_LOG_INFO, "serve",
             "plan: weights %.1f + KV pages %.1f + scratch %.1f + graphs %.1f = %.1f MiB of %.0f "
             "that were free",
             mib(p->weights), mib(p->kv), mib(p->scratch), mib(p->graphs), mib(p->total),
             mib(p->available));
    const bool v6 = strchr(f->host, ':') != NULL; /* in an address its colons want brackets */
    if (strncmp(f->host, "unix:", 5) == 0)
        rose_log(ROSE_LOG_INFO, "serve", "listening on %s", f->host);
    else
        rose_log(ROSE_LOG_INFO, "serve", "listening on http://%s%s%s:%u", v6 ? "[" : "", f->host,
                 v6 ? "]" : "", rose_http_port(s->http));
}

/* True if one of the stop signals came within ms milliseconds. */
static bool wait_signal(const sigset_t *set, uint32_t ms)
{
    const struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};
    return sigtimedwait(set, NULL, &ts) >= 0;
}

/* Wait for the first signal, then for the last reply, the time-out or the second signal. */
static void serve_until_stopped(server *s, const serve_flags *f, const sigset_t *set)
{
    int sig;
    while (sigwait(set, &sig) != 0) {
    }
    rose_log(ROSE_LOG_INFO, "serve", "draining: %u requests in flight (a second signal ends them)",
             rose_http_inflight(s->http));
    rose_api_drain(s->api);
    rose_http_drain(s->http);
    uint64_t deadline = rose_now_ns() + (uint64_t)f->shutdown_timeout * 1000000000u;
    while (rose_http_inflight(s->http) > 0) {
        if (wait_signal(set, POLL_MS)) {
            rose_log(ROSE_LOG_WARN, "serve", "second signal: %u requests cut off",
                     rose_http_inflight(s->http));
            break;
        }
        if (rose_now_ns() < deadline) continue;
        rose_log(ROSE_LOG_WARN, "serve", "shutdown timeout: %u requests cut off",
                 rose_http_inflight(s->http));
        break;
    }
}

/* A limit that forbids --mlock is to be known before the port is open: planning finds it. */
static rose_status check_lock(const rose_engine_flags *f, const rose_model *m,
                              const rose_engine_opts *o, rose_err *err)
{
    const rose_backend_ops *ops = NULL;
    rose_memory_plan plan;
    rose_status st = rose_backend_pick(&ops, f->device, err);
    return st == ROSE_OK ? ops->plan(m, &o->backend, &plan, err) : st;
}

static int run(const char *dir, serve_flags *f)
{
    start_times t = {.began = rose_now_ns()};
    server s = {0};
    rose_err err = {{0}};
    rose_engine_opts o;
    const rose_backend_ops *ops = NULL;
    rose_buf id = {0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* inherited by every thread started below */
    signal(SIGPIPE, SIG_IGN);

    rose_fds_widen(f->max_connections + OWN_FDS); /* before any thread */
    rose_status st = model_id_of(f, dir, &id, &err);
    if (st == ROSE_OK && f->nvtx) st = rose_backend_nvtx(&err); /* before any thread */
    if (st == ROSE_OK) st = rose_engine_flags_read(&f->engine, &o, &err);
    if (st == ROSE_OK) st = rose_model_open(&s.model, dir, &err);
    t.model = rose_now_ns();
    if (st == ROSE_OK && o.backend.lock_memory) st = check_lock(&f->engine, s.model, &o, &err);
    rose_thread_slice(f->io_slice_us); /* inherited by the threads of HTTP and API alone */
    if (st == ROSE_OK) st = start_http(&s, f, id.data, has_chat_template(dir), &err);
    rose_thread_slice(0);
    t.port = rose_now_ns();
    /* Loading has nothing to drain: there the signals end the program by their default action. */
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    if (st == ROSE_OK) st = rose_tokenizer_open(&s.tok, dir, &err);
    t.tokenizer = rose_now_ns();
    if (st == ROSE_OK) st = rose_backend_pick(&ops, f->engine.device, &err);
    if (st == ROSE_OK) st = rose_engine_open(&s.engine, ops, s.model, &o, &err);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    t.engine = rose_now_ns();
    if (st == ROSE_OK) {
        rose_model_close(s.model);
        s.model = NULL;
        rose_api_set_engine(s.api, s.engine, s.tok);
        log_ready(&s, f, ops->name, id.data, &t);
#ifdef __GLIBC__
        malloc_trim(0); /* what reading the model's files took */
#endif
        const rose_procstat ready = rose_procstat_read();
        log_memory(&ready);
        serve_until_stopped(&s, f, &set);
        log_faults(&s, &ready);
    }
    const bool failed = s.engine != NULL && rose_engine_get_stats(s.engine).failed;
    stop_all(&s);
    rose_buf_free(&id);
    if (st != ROSE_OK) return rose_die(&err);
    rose_log(ROSE_LOG_INFO, "serve", failed ? "stopped after a failure" : "stopped");
    return failed ? 1 : 0;
}

int rose_cmd_serve(int argc, char **argv)
{
    static serve_flags f;
    flags_init(&f);
    rose_opt opts[MAX_HTTP_ROWS + ROSE_ENGINE_FLAG_ROWS];
    size_t n = flags_rows(&f, opts);
    n += rose_engine_flags_rows(&f.engine, opts + n);
    const char *model;
    const int rc = rose_opts_parse_one(
        "roseinfer serve MODEL [options]",
        "Serves a model over an OpenAI-compatible HTTP API: /v1/completions, "
        "/v1/chat/completions,\n"
        "/v1/models, /tokenize, /detokenize, /health, /ready, /version, /metrics;\n"
        "/start_profile and /stop_profile with --profiler-dir.\n"
        "SIGTERM or Ctrl-C lets running requests finish; a second one ends at once. The exit\n"
        "code is 1 where the engine had failed (then /health is 503 until it is stopped).",
        opts, n, argc, argv, &model);
    if (rc >= 0) return rc;
    rose_log_level level = ROSE_LOG_INFO;
    rose_log_parse_level(f.log_level, &level);
    rose_log_set_level(level);
    if (f.lenient)
        rose_log(ROSE_LOG_WARN, "serve",
                 "--lenient has no effect: unknown request fields are ignored by default "
                 "(--strict-fields refuses them), and fields that would change the answer are "
                 "always refused");
    rose_stall_set_limit((uint64_t)f.stall_warn_ms * 1000000u);
    return run(model, &f);
}
