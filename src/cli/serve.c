/* cli/serve.c - `roseinfer serve`: opens the port, loads the model, serves until told to stop.
 *
 * The main thread starts and stops the server and sleeps in between. SIGTERM, SIGINT or SIGHUP
 * drains: new work is refused, and running requests finish. A second signal ends the process at
 * once. All other threads block these signals. A server with TLS and without a terminal cannot lose
 * the terminal; there SIGHUP reads the certificate again, as it does in nginx. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "api/doors.h"
#include "api/kv_events.h"
#include "api/serve_opts.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fds.h"
#include "base/log.h"
#include "base/memlock.h"
#include "base/procstat.h"
#include "base/progress.h"
#include "base/stall.h"
#include "base/utf8.h"
#include "base/version.h"
#include "cli/cli.h"

/* CUT_MS: after a second signal, the time in which open connections close, sockets of files are
 * removed, and the access log gets its last lines. */
enum { POLL_MS = 20, CUT_MS = 200, OWN_FDS = 256 };

typedef struct server {
    rose_model *model;
    rose_tokenizer *tok;
    rose_engine *engine;
    rose_api *api;
    rose_access_log *access;   /* or NULL */
    rose_kv_events *events;    /* or NULL */
    rose_batch_store *batches; /* or NULL */
    rose_http *http;
    rose_chat *chat;     /* NULL: the plain template */
    rose_api_keys *keys; /* NULL: the server is open */
    rose_chat *lender;   /* NULL, or it lends its tokens where there is no chat */
    rose_notify *notify; /* NULL: no service manager waits for reports */
    uint64_t last_steps; /* of the engine, at the last sign of life; the watchdog's thread */
} server;

/* A model without a chat template still has special tokens. Only --trust-request-chat-template
 * needs their texts. */
static rose_status open_lender(server *s, const rose_serve_flags *f, const char *dir, rose_err *err)
{
    const rose_status st = rose_chat_open(&s->lender, dir, "{{ '' }}", err); /* any will do */
    if (st == ROSE_OK || st == ROSE_E_NOMEM || f->trust_request_template) return st;
    rose_log(ROSE_LOG_WARN, "serve", "/tokenizer_info lacks the special tokens: %s", err->msg);
    err->msg[0] = '\0';
    return ROSE_OK;
}

/* Models that are made for embeddings or ranks; any other can be asked for them as well. */
static void log_pooling(const rose_pooling_config *p)
{
    if (p->ranks)
        rose_log(ROSE_LOG_INFO, "serve", "a reranker: /v1/rerank and /v1/score ask for yes or no");
    else if (p->embeds)
        rose_log(ROSE_LOG_INFO, "serve", "embeddings: %s%s",
                 p->pool == ROSE_POOL_MEAN ? "the mean of all states" : "the last state",
                 p->normalizes ? ", normalised" : "");
}

static void log_tools(const rose_chat *chat, const char *parser)
{
    bool describe;
    (void)rose_chat_calls(chat, parser, &describe);
    if (describe)
        rose_log(ROSE_LOG_INFO, "serve",
                 "tools: the chat template shows none, so the system message describes them, in "
                 "the format hermes (--tool-call-parser none turns this off)");
}

/* Reads the chat template, how to pool, and the sampling defaults unless they are turned off. */
static rose_status open_chat(server *s, rose_serve_flags *f, const char *dir, rose_err *err)
{
    char text[ROSE_GENERATION_TEXT];
    rose_status st = rose_chat_open(&s->chat, dir, f->chat_template, err);
    if (st == ROSE_OK && s->chat == NULL) st = open_lender(s, f, dir, err);
    if (st != ROSE_OK) return st;
    f->api.chat = s->chat;
    f->api.texts = s->chat != NULL ? s->chat : s->lender;
    if (f->trust_request_template) f->api.trusted = f->api.texts;
    if (s->chat != NULL)
        rose_log(ROSE_LOG_INFO, "serve", "chat template: %s", rose_chat_source(s->chat));
    st = rose_generation_choose(&f->api.generation, dir, f->generation_config,
                                f->generation_override, err);
    if (st != ROSE_OK) return st;
    st = rose_pooling_read(&f->api.pooling, dir, f->pooling_type, f->task, err);
    if (st != ROSE_OK) return st;
    log_pooling(&f->api.pooling);
    rose_generation_text(&f->api.generation, text);
    if (text[0] != '\0')
        rose_log(ROSE_LOG_INFO, "serve",
                 "sampling defaults: %s (--override-generation-config changes them)", text);
    return ROSE_OK;
}

/* A value of another server's variable, or NULL: not set, or empty. */
static const char *other_key(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* People set the variables of the server that they used before. Keys of our own take precedence. */
static rose_status open_keys(server *s, rose_serve_flags *f, rose_err *err)
{
    if (f->http.no_port) return ROSE_OK; /* nobody comes */
    const char *vllm = other_key("VLLM_API_KEY"), *llama = other_key("LLAMA_API_KEY");
    const char *names = vllm == NULL
                            ? "LLAMA_API_KEY"
                            : (llama == NULL ? "VLLM_API_KEY" : "VLLM_API_KEY and LLAMA_API_KEY");
    rose_status st = rose_api_keys_read(&s->keys, &f->api_keys, f->api_key_file,
                                        getenv("ROSEINFER_API_KEY"), err);
    const bool own = s->keys != NULL, others = vllm != NULL || llama != NULL;
    if (st == ROSE_OK && !own) st = rose_api_keys_read_others(&s->keys, vllm, llama, err);
    f->api.keys = s->keys;
    if (st != ROSE_OK) return st;
    if (own && others)
        rose_log(ROSE_LOG_WARN, "serve",
                 "the keys in %s have no effect, because --api-key, --api-key-file or "
                 "ROSEINFER_API_KEY is set",
                 names);
    if (s->keys != NULL)
        rose_log(ROSE_LOG_INFO, "serve",
                 "API keys: %u, from %s; all paths but /, /health and /ready need one",
                 rose_api_keys_count(s->keys),
                 own ? "--api-key, --api-key-file or ROSEINFER_API_KEY" : names);
    return ROSE_OK;
}

static rose_status open_access(server *s, rose_serve_flags *f, rose_err *err)
{
    if (f->access_log == NULL) return ROSE_OK;
    const rose_status st = rose_access_log_open(&s->access, f->access_log, err);
    f->api.access = s->access;
    return st;
}

static rose_status open_batches(server *s, rose_serve_flags *f, rose_err *err)
{
    rose_status st = ROSE_OK;
    if (f->batch.dir == NULL) return ROSE_OK;
    f->batch.max_line_bytes = f->http.max_body_bytes + (1u << 20);
    st = rose_batch_store_open(&s->batches, &f->batch, err);
    f->api.batches = s->batches;
    return st;
}

static bool engine_failed(void *arg)
{
    return rose_engine_get_stats(((const server *)arg)->engine).failed;
}

/* Batches get three of four places of the engine, so that other requests do not wait for them. */
static rose_status start_batches(server *s, const rose_serve_flags *f, rose_err *err)
{
    const uint32_t places = rose_engine_plan(s->engine)->max_seqs;
    const rose_batch_server b = {.http = s->http,
                                 .n_threads = f->http.n_threads,
                                 .window = places > 1 ? places - places / 4 - (places < 4) : 1,
                                 .failed = engine_failed,
                                 .arg = s};
    return s->batches == NULL ? ROSE_OK : rose_batch_store_start(s->batches, &b, err);
}

static rose_status open_events(server *s, const rose_serve_flags *f, rose_engine_opts *o,
                               rose_err *err)
{
    const rose_status st = rose_kv_events_open(&s->events, f->kv_events, err);
    o->kv_feed = rose_kv_events_feed(s->events);
    if (o->kv_feed != NULL && !o->prefix_cache)
        return rose_fail(err, ROSE_E_INVAL,
                         "--kv-events-config needs the prefix cache; leave --no-prefix-cache out");
    return st;
}

static rose_status start_http(server *s, rose_serve_flags *f, const char *model_id,
                              const char *model_path, rose_err *err)
{
    f->api.model_id = model_id;
    f->api.model_path = model_path;
    f->api.version = rose_version();
    for (uint32_t i = 1; i < f->served_names.n; i++)
        rose_opt_list_add(&f->api.model_aliases, rose_opt_list_get(&f->served_names, i));
    rose_status st = rose_serve_opts_read(f, err);
    if (st == ROSE_OK) st = rose_api_create(&s->api, &f->api, err);
    if (st != ROSE_OK) return st;
    const rose_http_callbacks cb = rose_api_callbacks(s->api);
    if ((st = rose_http_start(&s->http, &f->http, &cb, err)) != ROSE_OK) return st;
    return rose_api_attach(s->api, s->http, err);
}

static void stop_all(server *s)
{
    rose_notify_close(s->notify);
    rose_batch_store_stop(s->batches);
    rose_http_stop(s->http);
    rose_api_stop(s->api);
    rose_engine_close(s->engine); /* close first, because the engine signals the wake queues that
                                     are freed next */
    rose_kv_events_close(s->events);
    rose_api_destroy(s->api);
    rose_batch_store_close(s->batches);
    rose_access_log_close(s->access);
    rose_api_keys_free(s->keys);
    rose_chat_close(s->chat);
    rose_chat_close(s->lender);
    rose_tokenizer_close(s->tok);
    rose_model_close(s->model);
}

/* Replies are JSON, so bytes of a path that are not UTF-8 are written as \xNN. */
static rose_status escape_path(rose_buf *out, const char *path, rose_err *err)
{
    if (rose_utf8_escape(out, path, strlen(path)) == ROSE_OK && rose_buf_str(out) != NULL)
        return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "out of memory");
}

/* Finds the served name: the option, in which bytes that are not UTF-8 are refused, or the model's
 * own name. */
static rose_status model_id_of(const rose_serve_flags *f, const rose_model *m, rose_buf *out,
                               rose_err *err)
{
    const rose_opt_list *names = &f->served_names;
    const char *id = names->n > 0 ? rose_opt_list_get(names, 0) : m->name;
    for (uint32_t i = 0; i < names->n; i++) {
        const char *name = rose_opt_list_get(names, i);
        if (!rose_utf8_is_valid(name, strlen(name)))
            return rose_fail(err, ROSE_E_INVAL, "--served-model-name '%s' is not UTF-8", name);
    }
    return escape_path(out, id, err);
}

/* Logs the figures that --mlock and --prefault affect. */
static void log_memory(const rose_procstat *p)
{
    rose_log(ROSE_LOG_DEBUG, "serve",
             "memory: %.1f MiB resident, %.1f MiB locked; page faults until ready: %" PRIu64
             " minor, %" PRIu64 " major",
             (double)p->resident_bytes / 1048576.0, (double)rose_memory_locked() / 1048576.0,
             p->minor_faults, p->major_faults);
}

static void log_faults(const server *s, const rose_procstat *ready)
{
    const rose_procstat now = rose_procstat_read();
    rose_log(ROSE_LOG_DEBUG, "serve",
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

static void log_ready(const server *s, const rose_serve_flags *f, const rose_backend_ops *ops,
                      const rose_spec_opts *spec, const char *model_id, const start_times *t)
{
    const rose_memory_plan *p = rose_engine_plan(s->engine);
    char guesses[ROSE_ENGINE_SPEC_TEXT];
    log_tools(s->chat, f->api.tool_call_parser);
    rose_engine_spec_text(ops, p, spec, guesses);
    if (rose_engine_speculates(s->engine)) /* otherwise the engine or the user said why it is off */
        rose_log(ROSE_LOG_INFO, "serve", "speculation: %s", guesses);
    rose_log(ROSE_LOG_DEBUG, "serve",
             "start: files of the model %.1f + port %.1f + tokenizer %.1f + engine %.1f ms",
             rose_ms_between(t->began, t->model), rose_ms_between(t->model, t->port),
             rose_ms_between(t->port, t->tokenizer), rose_ms_between(t->tokenizer, t->engine));
    rose_log(ROSE_LOG_DEBUG, "serve",
             "plan: weights %.1f + KV pages %.1f + scratch %.1f + graphs %.1f = %.1f MiB of %.0f "
             "that were free",
             mib(p->weights), mib(p->kv), mib(p->scratch), mib(p->graphs), mib(p->total),
             mib(p->available));
    char kv[ROSE_PLAN_KV_TEXT], steps[ROSE_PLAN_STEPS_TEXT];
    rose_plan_kv_text(p, kv);
    rose_plan_steps_text(p, steps);
    rose_log(ROSE_LOG_INFO, "serve",
             "ready in %.1f ms: %s on %s, %s, %u threads, context %u, %s, KV %.1f MiB: %s",
             rose_ms_between(t->began, rose_now_ns()), model_id, ops->name, rose_plan_text(p),
             p->n_threads, p->max_model_len, steps, mib(p->kv), kv);
}

/* Tells whether the host is an address that only this machine reaches. */
static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* The last line of the start: where the server listens. On a terminal the address to open in a
 * browser stands on a line of its own. */
static void log_address(const server *s, const rose_http_opts *o, bool page)
{
    const char *const scheme = o->tls_cert != NULL ? "https" : "http", *host = o->host;
    const unsigned port = rose_http_port(s->http);
    const bool v6 = strchr(host, ':') != NULL; /* in an address its colons want brackets */
    if (o->listen_fd > 0) {
        rose_log(ROSE_LOG_INFO, "serve", "listening on the socket of LISTEN_FDS, port %u", port);
        return;
    }
    if (o->uds != NULL || strncmp(host, "unix:", 5) == 0) {
        rose_log(ROSE_LOG_INFO, "serve", "listening on %s%s", o->uds != NULL ? "unix:" : "",
                 o->uds != NULL ? o->uds : host);
        return;
    }
    rose_log(ROSE_LOG_INFO, "serve", "listening on %s://%s%s%s:%u", scheme, v6 ? "[" : "", host,
             v6 ? "]" : "", port);
    if (!page || !rose_log_shows(ROSE_LOG_INFO) || isatty(STDERR_FILENO) != 1) return;
    const bool any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0; /* names no host */
    fprintf(stderr, "%s://%s%s%s:%u/\n", scheme, v6 && !any ? "[" : "", any ? "127.0.0.1" : host,
            v6 && !any ? "]" : "", port);
}

static void warn_open(const server *s, const rose_http_opts *o)
{
    if (s->keys != NULL || o->listen_fd > 0 || o->uds != NULL || is_loopback(o->host) ||
        strncmp(o->host, "unix:", 5) == 0)
        return;
    rose_log(ROSE_LOG_WARN, "serve",
             "everybody who reaches %s, port %u, can use this server: set --api-key KEY or "
             "ROSEINFER_API_KEY, or listen on --host 127.0.0.1",
             o->host, rose_http_port(s->http));
}

/* The second signal to stop: its own thread waits for it, because the main thread may be anywhere
 * in the stop, for example waiting for the end of a step or of a compiled grammar. */
static struct second_signal {
    sigset_t set;
    atomic_bool came;
} second;

static void *await_second(void *arg)
{
    int sig;
    (void)arg;
    if (sigwait(&second.set, &sig) != 0) return NULL;
    rose_log(ROSE_LOG_WARN, "serve", "second signal: ending at once");
    atomic_store_explicit(&second.came, true, memory_order_relaxed); /* it guards no data */
    rose_sleep_ms(CUT_MS);
    _exit(0);
}

/* If the thread cannot be created, the default action of the signal ends the process. */
static void watch_second(const sigset_t *set)
{
    pthread_t thread;
    second.set = *set;
    if (pthread_create(&thread, NULL, await_second, NULL) == 0)
        pthread_detach(thread);
    else
        pthread_sigmask(SIG_UNBLOCK, set, NULL);
}

/* Tells the watchdog whether the engine works: it has not failed, and if it has requests, it made a
 * step since the last call. */
static bool engine_works(void *arg)
{
    server *s = arg;
    const rose_engine_stats now = rose_engine_get_stats(s->engine);
    const bool moved = now.steps != s->last_steps;
    s->last_steps = now.steps;
    return !now.failed && (moved || now.running + now.waiting == 0);
}

/* The signals of the main thread. */
typedef struct signals {
    sigset_t all, stop; /* stop: those that drain */
    bool reloads;       /* SIGHUP reads the certificate again; it is in all and not in stop */
} signals;

static void reload(server *s, const rose_serve_flags *f)
{
    rose_err err = {{0}};
    if (rose_http_reload_tls(s->http, &err) == ROSE_OK)
        rose_log(ROSE_LOG_INFO, "serve", "SIGHUP: new connections get the certificate of %s",
                 f->http.tls_cert);
    else
        rose_log(
            ROSE_LOG_ERROR, "serve",
            "SIGHUP: the certificate stays the old one: %s; mend the file and send SIGHUP again",
            err.msg);
}

/* Waits for the first signal to stop, then for the last reply, the time-out or the second signal.
 */
static void serve_until_stopped(server *s, const rose_serve_flags *f, const signals *sigs)
{
    int sig;
    for (;;) {
        if (sigwait(&sigs->all, &sig) != 0) continue;
        if (!sigs->reloads || sig != SIGHUP) break;
        reload(s, f);
    }
    watch_second(&sigs->stop);
    rose_log(ROSE_LOG_INFO, "serve", "draining: %u requests in flight (a second signal ends them)",
             rose_http_inflight(s->http));
    rose_notify_send(s->notify, "STOPPING=1", "draining: %u requests in flight",
                     rose_http_inflight(s->http));
    rose_batch_store_stop(s->batches); /* they go on after the next start */
    rose_api_drain(s->api);
    rose_http_drain(s->http);
    uint64_t deadline = rose_now_ns() + (uint64_t)f->shutdown_timeout * 1000000000u;
    while (rose_http_inflight(s->http) > 0) {
        const bool cut = atomic_load_explicit(&second.came, memory_order_relaxed);
        if (cut || rose_now_ns() >= deadline) {
            rose_log(ROSE_LOG_WARN, "serve", "%s: %u requests cut off",
                     cut ? "second signal" : "shutdown timeout", rose_http_inflight(s->http));
            break;
        }
        rose_sleep_ms(POLL_MS);
    }
}

/* Planning checks whether a limit forbids --mlock, so that this is known before the port is
 * open. */
static rose_status check_lock(const rose_backend_ops **ops, const rose_engine_flags *f,
                              const rose_model *m, const rose_engine_opts *o, rose_err *err)
{
    rose_memory_plan plan;
    rose_status st = rose_backend_pick_for(ops, f->device, m, err);
    return st == ROSE_OK ? (*ops)->plan(m, &o->backend, &plan, err) : st;
}

/* The signals that drain. A hangup is one of them, because a closed terminal must not cut off
 * replies. nohup ignores it, and it stays ignored. */
static void stop_signals(sigset_t *set)
{
    struct sigaction hangup;
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    if (sigaction(SIGHUP, NULL, &hangup) < 0 || hangup.sa_handler != SIG_IGN)
        sigaddset(set, SIGHUP);
}

/* Asks at the start, because the terminal is gone when its SIGHUP comes. */
static bool has_terminal(void)
{
    const int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) return false;
    close(fd);
    return true;
}

static signals main_signals(const rose_serve_flags *f)
{
    signals s;
    stop_signals(&s.stop);
    s.all = s.stop;
    s.reloads = f->http.tls_cert != NULL && sigismember(&s.all, SIGHUP) == 1 && !has_terminal();
    if (s.reloads) sigdelset(&s.stop, SIGHUP);
    return s;
}

/* Raises the limit of descriptors to fit all connections. Otherwise the connection limit would
 * never be reached. At that limit health checks are still answered. */
static void fit_connections(rose_serve_flags *f)
{
    const uint64_t limit = rose_fds_raise(f->http.max_connections + OWN_FDS);
    const uint64_t own = limit < 2 * OWN_FDS ? limit / 2 : OWN_FDS;
    if (limit - own < f->http.max_connections) {
        const uint32_t asked = f->http.max_connections;
        f->http.max_connections = limit - own > 0 ? (uint32_t)(limit - own) : 1;
        rose_log(ROSE_LOG_WARN, "serve",
                 "--max-connections is %u instead of %u: the limit of descriptors is %" PRIu64
                 " (ulimit -n)",
                 f->http.max_connections, asked, limit);
    }
    rose_fds_widen(f->http.max_connections + OWN_FDS); /* before any thread */
}

/* What a service manager wants of a server. */
static rose_status open_service(server *s, rose_serve_flags *f, const char *dir, rose_err *err)
{
    if (f->http.no_port) return ROSE_OK;
    rose_status st = rose_systemd_socket(&f->http.listen_fd, err);
    if (st == ROSE_OK) st = rose_notify_open(&s->notify, err);
    rose_notify_send(s->notify, "", "loading %s", dir);
    return st;
}

static int serve(const char *dir, rose_serve_flags *f, const rose_cli_work *work)
{
    start_times t = {.began = rose_now_ns()};
    server s = {0};
    rose_err err = {{0}};
    rose_engine_opts o;
    const rose_backend_ops *ops = NULL;
    rose_buf id = {0}, path = {0};
    int rc = 0;
    const signals sigs = main_signals(f);
    pthread_sigmask(SIG_BLOCK, &sigs.all, NULL); /* inherited by every thread started below */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file over ulimit -f is an error of its writer */

    fit_connections(f);
    rose_status st = open_service(&s, f, dir, &err);
    if (st == ROSE_OK) st = f->nvtx ? rose_backend_nvtx(&err) : ROSE_OK; /* before any thread */
    if (st == ROSE_OK) st = open_keys(&s, f, &err);
    if (st == ROSE_OK) st = open_access(&s, f, &err);
    if (st == ROSE_OK) st = open_batches(&s, f, &err);
    if (st == ROSE_OK) st = rose_engine_flags_read(&f->engine, &o, &err);
    o.offline = work != NULL; /* `batch` */
    if (st == ROSE_OK) st = open_events(&s, f, &o, &err);
    if (st == ROSE_OK) rose_cli_tune_dir(&o.backend);
    if (st == ROSE_OK) st = rose_model_open_as(&s.model, dir, f->engine.load_format, &err);
    if (st == ROSE_OK) st = model_id_of(f, s.model, &id, &err);
    if (st == ROSE_OK) st = escape_path(&path, s.model->path, &err);
    t.model = rose_now_ns();
    if (st == ROSE_OK && o.backend.cpu.lock_memory)
        st = check_lock(&ops, &f->engine, s.model, &o, &err);
    rose_thread_slice(
        f->io_slice_us); /* only the threads of HTTP and API inherit this time slice */
    if (st == ROSE_OK) st = open_chat(&s, f, dir, &err);
    if (st == ROSE_OK) st = start_http(&s, f, id.data, path.data, &err);
    rose_thread_slice(0);
    t.port = rose_now_ns();
    /* While loading there is nothing to drain, so the signals end the program by their default
     * action. One that reloads waits until the model is loaded. */
    pthread_sigmask(SIG_UNBLOCK, &sigs.stop, NULL);
    if (st == ROSE_OK) st = rose_tokenizer_open(&s.tok, dir, &err);
    if (st == ROSE_OK) {
        rose_tokenizer_warn_beyond(s.tok, s.model->arch.vocab_size);
        rose_chat_add_eos(s.chat, s.tok, &s.model->arch);
    }
    t.tokenizer = rose_now_ns();
    if (st == ROSE_OK && ops == NULL)
        st = rose_backend_pick_for(&ops, f->engine.device, s.model, &err);
    if (st == ROSE_OK) st = rose_engine_open(&s.engine, ops, s.model, &o, &err);
    pthread_sigmask(SIG_BLOCK, &sigs.stop, NULL);
    t.engine = rose_now_ns();
    if (st == ROSE_OK) {
        rose_model_close(s.model);
        s.model = NULL;
        rose_api_set_engine(s.api, s.engine, s.tok);
#ifdef __GLIBC__
        malloc_trim(0); /* what reading the model's files took */
#endif
        const rose_procstat ready = rose_procstat_read();
        log_memory(&ready);
        log_ready(&s, f, ops, &o.spec, id.data, &t);
        if (work == NULL) warn_open(&s, &f->http);
        if (work == NULL) log_address(&s, &f->http, f->api.web);
        st = rose_notify_watch(s.notify, engine_works, &s, &err);
        if (st == ROSE_OK) st = start_batches(&s, f, &err);
        if (st == ROSE_OK && work != NULL) {
            rc = work->run(work->arg, s.http, s.engine, &sigs.stop);
        } else if (st == ROSE_OK) {
            rose_notify_send(s.notify, "READY=1", "serving %s", id.data);
            serve_until_stopped(&s, f, &sigs);
        }
        rose_notify_unwatch(s.notify); /* before the engine goes */
        log_faults(&s, &ready);
    }
    const bool failed = s.engine != NULL && rose_engine_get_stats(s.engine).failed;
    stop_all(&s);
    rose_buf_free(&id);
    rose_buf_free(&path);
    if (st != ROSE_OK) return rose_die(&err);
    rose_log(ROSE_LOG_INFO, "serve", failed ? "stopped after a failure" : "stopped");
    return failed ? 1 : rc;
}

/* People should see what the options that they brought became. */
static void log_foreign(const rose_opts_sources *s)
{
    rose_buf text = {0};
    if (rose_foreign_text(&s->foreign, &text) == ROSE_OK &&
        rose_foreign_text(&s->foreign_file, &text) == ROSE_OK && text.len > 0)
        rose_log(ROSE_LOG_INFO, "serve", "options as taken here: %.*s", (int)text.len, text.data);
    rose_buf_free(&text);
}

int rose_cli_serve(const char *model, rose_serve_flags *f, const rose_cli_work *work)
{
    const char *dir = model;
    rose_log_level level = ROSE_LOG_INFO;
    rose_buf path = {0};
    rose_err err = {{0}};
    int rc;
    rose_log_parse_level(f->log_level, &level);
    rose_log_set_level(level);
    log_foreign(&f->sources);
    if (work == NULL) rose_progress_allow_waits(rose_log_shows(ROSE_LOG_INFO));
    if (rose_cli_find_model(&dir, &path, f->pull, work == NULL, &err)) {
        if (dir != model && f->served_names.n == 0) rose_opt_list_add(&f->served_names, model);
        rc = serve(dir, f, work);
    } else {
        rc = rose_die(&err);
    }
    rose_buf_free(&path);
    return rc;
}

int rose_cmd_serve(int argc, char **argv)
{
    static rose_serve_flags f;
    const char *model;
    int rc = rose_serve_opts_parse(&f, argc, argv, environ, &model);
    if (rc < 0) {
        rose_stall_set_limit((uint64_t)f.stall_warn_ms * 1000000u);
        rc = rose_cli_serve(model, &f, NULL);
    }
    rose_opts_sources_free(&f.sources);
    return rc;
}
