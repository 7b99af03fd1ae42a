/* http/server.c - the I/O threads: start, post, watch, timers, drain, stop.
 *
 * Thread 0 accepts (accept.c), and a connection never changes its owner. Each thread runs its
 * own event_base without locks. Requests from other threads come through one MPSC ring and an
 * eventfd, whose wake-up also carries drain and stop. */
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/log.h"
#include "base/profile.h"
#include "http/http_internal.h"

enum { MAX_HEADER_BYTES = 16 << 20 };

typedef struct post_item {
    void (*fn)(void *arg);
    void *arg;
} post_item;

void rose_http_opts_default(rose_http_opts *o)
{
    *o = (rose_http_opts){
        .host = "127.0.0.1",
        .unix_mode = 0600,
        .port = 8888,
        .n_threads = 1,
        .max_header_bytes = 64u << 10,
        .max_body_bytes = 32u << 20,
        .max_connections = 4096,
        .header_timeout_ms = 10000,
        .body_timeout_ms = 30000,
        .body_min_rate = 1024,
        .body_total_ms = 3600000,
        .idle_timeout_ms = 75000,
        .write_timeout_ms = 30000,
        .max_pending_bytes = 4u << 20,
    };
}

/* ---- the loop of one thread ---- */

static void end_phase(rose_http_io *io, uint64_t now)
{
    if (io->phase == NULL || now - io->phase_began_ns < io->longest_ns) return;
    io->longest = io->phase;
    io->longest_ns = now - io->phase_began_ns;
}

void rose_http_phase_on(rose_http_io *io, const char *name)
{
    if (!io->turn.on) {
        rose_stall_begin(&io->turn);
        io->phase = NULL;
        io->longest = name;
        io->longest_ns = 0;
        io->n_callbacks = 0;
    }
    uint64_t now = rose_now_ns();
    end_phase(io, now);
    io->phase = name;
    io->phase_began_ns = now;
    io->n_callbacks++;
}

static void watch_turn(rose_http_io *io)
{
    if (!io->turn.on) return;
    end_phase(io, rose_now_ns());
    if (rose_stall_stop(&io->turn))
        rose_stall_report(ROSE_STALL_IO_TURN, &io->turn,
                          "%u callbacks, the longest %s with %.1f ms", io->n_callbacks, io->longest,
                          (double)io->longest_ns * 1e-6);
}

static void wake(rose_http_io *io)
{
    /* acq_rel: the thread whose exchange in on_wake reads our 1 sees what we did before */
    if (atomic_exchange_explicit(&io->wake_pending, 1, memory_order_acq_rel) != 0) return;
    uint64_t one = 1;
    if (write(io->wake_fd, &one, sizeof one) < 0 && errno != EAGAIN) abort();
}

/* The size of the queue of posts, by which new connections reach their threads. The memory of a
 * ring becomes resident only as it is used, so a larger ring would look like a leak for a long
 * time. */
static uint32_t post_cap(const rose_http *h)
{
    return h->opts.max_connections + HTTP_RESERVE + HTTP_MORE_POSTS;
}

static void run_posts(rose_http_io *io)
{
    post_item p;
    /* At most as many as the queue holds (its size is rounded up to a power of two). Otherwise
     * posts that post again could starve the sockets. */
    const uint64_t most = UINT64_C(2) * post_cap(io->h);
    for (uint64_t i = 0; i < most && rose_mpsc_pop(io->posts, &p) == ROSE_OK; i++)
        p.fn(p.arg);
}

static void drop_connections(rose_http_io *io)
{
    rose_http_conn *c;
    while ((c = TAILQ_FIRST(&io->conns)) != NULL)
        rose_http_conn_destroy(c);
}

static void drain_thread(rose_http_io *io)
{
    rose_http_conn *c;
    io->drained = true;
    if (io->index == 0) rose_http_accept_stop(io->h);
    TAILQ_FOREACH(c, &io->conns, all_link)
    rose_http_conn_drain(c);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    rose_http_io *io = arg;
    uint64_t n;
    (void)what;
    rose_http_phase(io, "wake");
    if (read(fd, &n, sizeof n) < 0 && errno != EAGAIN && errno != EINTR) abort();
    /* acq_rel: pairs with wake(); a thread that comes after this writes the eventfd again */
    atomic_exchange_explicit(&io->wake_pending, 0, memory_order_acq_rel);
    run_posts(io);
    if (!io->drained && atomic_load_explicit(&io->h->draining, memory_order_acquire))
        drain_thread(io);
    if (atomic_load_explicit(&io->h->stopping, memory_order_acquire)) {
        drop_connections(io);
        event_base_loopbreak(io->base);
    }
}

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
    rose_http_io *io = arg;
    rose_http_conn *c;
    (void)fd;
    (void)what;
    rose_http_phase(io, "send");
    const rose_prof_span span = rose_prof_begin("http.turn");
    while ((c = TAILQ_FIRST(&io->dirty)) != NULL) {
        TAILQ_REMOVE(&io->dirty, c, dirty_link);
        c->dirty = false;
        rose_http_conn_turn(c);
    }
    rose_prof_end(&span);
    io->marked_ns = 0;
    io->turn_pending = false;
}

static bool stays_awake(rose_http_io *io)
{
    if (io->awake_until_ns == 0) return false;
    if (rose_now_ns() >= io->awake_until_ns) {
        io->awake_until_ns = 0;
        return false;
    }
    if (io->h->cb.poll != NULL) io->h->cb.poll(io->h->cb.arg, io->index);
    return true;
}

static void *io_main(void *arg)
{
    rose_http_io *io = arg;
    char name[16];
    snprintf(name, sizeof name, "rose-io-%u", io->index);
    rose_thread_setup(name, io->cpu);
    rose_prof_thread(name);
    while (!event_base_got_break(io->base)) { /* one turn each */
        const int how = stays_awake(io) ? EVLOOP_NONBLOCK : EVLOOP_ONCE;
        event_base_loop(io->base, how | EVLOOP_NO_EXIT_ON_EMPTY);
        watch_turn(io);
    }
    return NULL;
}

void rose_http_stay_awake(rose_http *h, uint32_t thread, uint64_t until_ns)
{
    h->ios[thread].awake_until_ns = until_ns;
}

/* ---- start and stop ---- */

static rose_status check_opts(const rose_http_opts *o, const rose_http_callbacks *cb, rose_err *err)
{
    if (cb->on_request == NULL || cb->on_gone == NULL)
        return rose_fail(err, ROSE_E_INVAL, "http: on_request and on_gone are required");
    if (o->host == NULL || o->n_threads < 1 || o->n_threads > 64)
        return rose_fail(err, ROSE_E_INVAL, "http: host missing, or threads not 1 to 64");
    if (o->port > UINT16_MAX) return rose_fail(err, ROSE_E_INVAL, "http: no port %u", o->port);
    if (o->max_header_bytes < 64 || o->max_header_bytes > MAX_HEADER_BYTES)
        return rose_fail(err, ROSE_E_INVAL, "http: header limit must be 64 bytes to 16 MiB");
    if (o->max_total_body_bytes != 0 && o->max_total_body_bytes < o->max_body_bytes)
        return rose_fail(err, ROSE_E_INVAL,
                         "http: the limit for all bodies is below the limit for one");
    if (o->max_total_pending_bytes != 0 && o->max_total_pending_bytes < o->max_pending_bytes)
        return rose_fail(err, ROSE_E_INVAL,
                         "http: the limit for all replies is below the limit for one");
    const rose_status st = rose_http_cors_check(&o->allowed_origins, err);
    if (st != ROSE_OK) return st;
    if (o->max_connections == 0 || o->max_pending_bytes == 0)
        return rose_fail(err, ROSE_E_INVAL, "http: limits must be positive");
    if (o->header_timeout_ms == 0 || o->body_timeout_ms == 0 || o->body_total_ms == 0 ||
        o->idle_timeout_ms == 0 || o->write_timeout_ms == 0)
        return rose_fail(err, ROSE_E_INVAL, "http: time-outs must be positive");
    return ROSE_OK;
}

static rose_status io_init(rose_http_io *io, rose_err *err)
{
    struct event_config *cfg = event_config_new();
    if (cfg != NULL) {
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
        io->base = event_base_new_with_config(cfg);
        event_config_free(cfg);
    }
    io->scratch = malloc(HTTP_SCRATCH);
    if (io->base == NULL || io->scratch == NULL ||
        rose_mpsc_create(&io->posts, post_cap(io->h), sizeof(post_item)) != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "http: out of memory");
    if ((io->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return rose_fail(err, ROSE_E_IO, "eventfd: %s", strerror(errno));
    event_assign(&io->ev_turn, io->base, -1, 0, on_turn, io);
    event_assign(&io->ev_wake, io->base, io->wake_fd, EV_READ | EV_PERSIST, on_wake, io);
    if (event_add(&io->ev_wake, NULL) < 0)
        return rose_fail(err, ROSE_E_IO, "http: cannot watch an eventfd");
    io->wake_added = true;
    return ROSE_OK;
}

static void io_free(rose_http_io *io)
{
    drop_connections(io); /* those that a late post has brought */
    while (!LIST_EMPTY(&io->timers))
        rose_http_timer_cancel(LIST_FIRST(&io->timers));
    while (!LIST_EMPTY(&io->watches)) {
        http_watch *w = LIST_FIRST(&io->watches);
        LIST_REMOVE(w, link);
        event_del(&w->ev);
        free(w);
    }
    if (io->wake_added) {
        event_del(&io->ev_wake);
        event_del(&io->ev_turn);
    }
    if (io->wake_fd >= 0) close(io->wake_fd);
    if (io->base != NULL) event_base_free(io->base);
    rose_mpsc_destroy(io->posts);
    free(io->scratch);
}

static rose_status start_threads(rose_http *h, rose_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < h->opts.n_threads && rc == 0; i++) {
        rc = rose_thread_start(&h->ios[i].thread, io_main, &h->ios[i]);
        h->ios[i].started = rc == 0;
    }
    if (rc != 0) return rose_fail(err, ROSE_E_IO, "cannot start a thread: %s", strerror(rc));
    return ROSE_OK;
}

static void log_libevent(int severity, const char *text)
{
    (void)severity; /* out of memory or descriptors: the call that failed handles the error */
    rose_log(ROSE_LOG_WARN, "http", "libevent: %s", text);
}

/* Sets up the state that the two libraries keep for the whole process. */
static void set_up_libraries(void)
{
    http_parser_set_max_header_size(2u * MAX_HEADER_BYTES); /* our own limit is exact */
    event_set_log_callback(log_libevent);
}

rose_status rose_http_start(rose_http **out, const rose_http_opts *o, const rose_http_callbacks *cb,
                            rose_err *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    rose_http *h = NULL;
    *out = NULL;
    rose_status st = check_opts(o, cb, err);
    if (st != ROSE_OK) return st;
    pthread_once(&once, set_up_libraries);

    if ((h = calloc(1, sizeof *h)) == NULL ||
        (h->ios = calloc(o->n_threads, sizeof *h->ios)) == NULL) {
        free(h);
        return rose_fail(err, ROSE_E_NOMEM, "http: out of memory");
    }
    h->opts = *o;
    if (h->opts.max_total_body_bytes == 0)
        h->opts.max_total_body_bytes =
            o->max_body_bytes < SIZE_MAX / 32 ? 32 * o->max_body_bytes : SIZE_MAX;
    if (h->opts.max_total_pending_bytes == 0)
        h->opts.max_total_pending_bytes =
            o->max_pending_bytes < SIZE_MAX / 256 ? 256 * o->max_pending_bytes : SIZE_MAX;
    h->cb = *cb;
    h->listen_fd = h->spare_fd = -1;
    for (uint32_t i = 0; i < o->n_threads; i++) {
        rose_http_io *io = &h->ios[i];
        io->h = h;
        io->index = i;
        io->cpu = o->n_cpus > 0 ? o->cpus[i % o->n_cpus] : -1;
        io->wake_fd = -1;
        io->date_s = -1;
        io->max_held = h->opts.max_total_pending_bytes / o->n_threads;
        if (io->max_held < o->max_pending_bytes) io->max_held = o->max_pending_bytes;
        TAILQ_INIT(&io->conns);
        TAILQ_INIT(&io->dirty);
        TAILQ_INIT(&io->waiting);
        TAILQ_INIT(&io->reserve);
        LIST_INIT(&io->timers);
        LIST_INIT(&io->watches);
    }
    if ((st = rose_http_tls_open(&h->tls, o->tls_cert, o->tls_key, err)) != ROSE_OK) goto done;
    if ((st = rose_http_listen(h, err)) != ROSE_OK) goto done;
    for (uint32_t i = 0; i < o->n_threads; i++) {
        if ((st = io_init(&h->ios[i], err)) != ROSE_OK) goto done;
    }
    if ((st = rose_http_accept_start(h, err)) != ROSE_OK) goto done;
    if ((st = start_threads(h, err)) != ROSE_OK) goto done;
    *out = h;
done:
    if (st != ROSE_OK) rose_http_stop(h);
    return st;
}

void rose_http_stop(rose_http *h)
{
    if (h == NULL) return;
    /* release: pairs with the acquire in on_wake */
    atomic_store_explicit(&h->stopping, true, memory_order_release);
    for (uint32_t i = 0; i < h->opts.n_threads; i++) {
        if (h->ios[i].started) wake(&h->ios[i]);
    }
    for (uint32_t i = 0; i < h->opts.n_threads; i++) {
        if (h->ios[i].started) pthread_join(h->ios[i].thread, NULL);
    }
    rose_http_accept_stop(h);
    /* Accepted posts run exactly once. The remaining ones run here, where no I/O thread is left. */
    for (uint32_t i = 0; i < h->opts.n_threads; i++) {
        if (h->ios[i].posts != NULL) run_posts(&h->ios[i]);
    }
    for (uint32_t i = 0; i < h->opts.n_threads; i++)
        io_free(&h->ios[i]);
    rose_http_tls_close(h->tls);
    free(h->ios);
    free(h);
}

void rose_http_drain(rose_http *h)
{
    /* release: pairs with the acquire in on_wake */
    atomic_store_explicit(&h->draining, true, memory_order_release);
    for (uint32_t i = 0; i < h->opts.n_threads; i++)
        wake(&h->ios[i]);
}

rose_status rose_http_reload_tls(rose_http *h, rose_err *err)
{
    return rose_http_tls_reload(h->tls, h->opts.tls_cert, h->opts.tls_key, err);
}

uint16_t rose_http_port(const rose_http *h)
{
    return h->port;
}

uint32_t rose_http_inflight(const rose_http *h)
{
    return atomic_load_explicit(&h->inflight, memory_order_relaxed);
}

uint32_t rose_http_connections(const rose_http *h)
{
    return atomic_load_explicit(&h->connections, memory_order_relaxed);
}

uint64_t rose_http_n_slow(const rose_http *h, rose_http_slow why)
{
    return atomic_load_explicit(&h->n_slow[why], memory_order_relaxed);
}

uint64_t rose_http_n_dropped(const rose_http *h)
{
    return atomic_load_explicit(&h->n_dropped, memory_order_relaxed);
}

uint64_t rose_http_n_refused(const rose_http *h)
{
    return atomic_load_explicit(&h->n_refused, memory_order_relaxed);
}

/* ---- post, watch, timers ---- */

rose_status rose_http_post(rose_http *h, uint32_t thread, void (*fn)(void *arg), void *arg)
{
    rose_http_io *io = &h->ios[thread];
    post_item p = {fn, arg};
    if (atomic_load_explicit(&h->stopping, memory_order_relaxed)) return ROSE_E_CLOSED;
    rose_status st = rose_mpsc_push(io->posts, &p);
    if (st == ROSE_OK) wake(io);
    return st;
}

typedef struct watch_order {
    rose_http_io *io;
    http_watch *watch;
    int fd;
    bool ok;
    sem_t done;
} watch_order;

static void on_watch(evutil_socket_t fd, short what, void *arg)
{
    http_watch *w = arg;
    (void)fd;
    (void)what;
    rose_http_phase(w->io, "events");
    const rose_prof_span span = rose_prof_begin("http.events");
    w->fn(w->arg);
    rose_prof_end(&span);
}

static void add_watch(void *arg)
{
    watch_order *order = arg;
    http_watch *w = order->watch;
    event_assign(&w->ev, order->io->base, order->fd, EV_READ | EV_PERSIST, on_watch, w);
    order->ok = order->fd >= 0 && event_add(&w->ev, NULL) == 0;
    if (order->ok) LIST_INSERT_HEAD(&order->io->watches, w, link);
    sem_post(&order->done);
}

rose_status rose_http_watch(rose_http *h, uint32_t thread, int fd, void (*fn)(void *arg), void *arg,
                            rose_err *err)
{
    rose_http_io *io = &h->ios[thread];
    watch_order order = {.io = io, .fd = fd};
    if ((order.watch = calloc(1, sizeof *order.watch)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "http: out of memory");
    order.watch->fn = fn;
    order.watch->arg = arg;
    order.watch->io = io;
    sem_init(&order.done, 0, 0);
    rose_status st = ROSE_OK;
    if (pthread_equal(pthread_self(), io->thread))
        add_watch(&order);
    else
        st = rose_http_post(h, thread, add_watch, &order);
    if (st != ROSE_OK) {
        rose_fail(err, st, "http: thread %u takes no work: %s", thread, rose_status_name(st));
    } else {
        while (sem_wait(&order.done) < 0) {
        }
        if (!order.ok) st = rose_fail(err, ROSE_E_IO, "http: cannot watch descriptor %d", fd);
    }
    if (st != ROSE_OK) free(order.watch);
    sem_destroy(&order.done);
    return st;
}

static void on_user_timer(evutil_socket_t fd, short what, void *arg)
{
    rose_http_timer *t = arg;
    void (*fn)(void *) = t->fn;
    void *fn_arg = t->arg;
    (void)fd;
    (void)what;
    rose_http_phase(t->io, "timer");
    rose_http_timer_cancel(t);
    fn(fn_arg);
}

rose_http_timer *rose_http_timer_start(rose_http *h, uint32_t thread, uint32_t ms,
                                       void (*fn)(void *arg), void *arg)
{
    rose_http_io *io = &h->ios[thread];
    rose_http_timer *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    struct timeval tv = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};
    t->io = io;
    t->fn = fn;
    t->arg = arg;
    evtimer_assign(&t->ev, io->base, on_user_timer, t);
    if (evtimer_add(&t->ev, &tv) < 0) {
        free(t);
        return NULL;
    }
    LIST_INSERT_HEAD(&io->timers, t, link);
    return t;
}

void rose_http_timer_cancel(rose_http_timer *t)
{
    if (t == NULL) return;
    event_del(&t->ev);
    LIST_REMOVE(t, link);
    free(t);
}
