/* api/kv_events.c - see kv_events.h. One thread takes changes from the engine's feed, sends them
 * and answers requests for old messages. Payloads are reference-counted: libzmq sends them without
 * a copy, also to a subscriber that reads slowly, and frees its reference on a thread of its own.
 * A PUB socket never blocks; it drops messages of a subscriber that has `hwm` unread ones.
 *
 * The old messages are a ring over their numbers, bounded by `buffer_steps` messages and by
 * MAX_KEPT_BYTES. Replies to one peer wait in a queue of `buffer_steps` references; the rest of
 * what a peer asks for and does not read is dropped. */
#include "api/kv_events.h"

#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/kv_payload.h"
#include "base/cpuinfo.h"
#include "base/dl.h"
#include "base/json.h"
#include "base/log.h"

enum {
    MAX_CHANGES = 256, /* of one message */
    BURST = 16,        /* messages sent before the thread looks at requests */
    NUMBER_BYTES = 8,
    MAX_REQUEST_BYTES = 1024, /* libzmq ends a connection that sends a longer frame */
    MAX_STEPS = 1 << 20,
    MAX_HWM = 1 << 24,
    MAX_QUEUE = 1 << 20,
    MAX_TOPIC_BYTES = 512,
};
#define MAX_KEPT_BYTES ((size_t)64 << 20)

/* Values of libzmq's header, which its ABI fixes. */
enum {
    PUB = 1,
    ROUTER = 6,
    LINGER = 17,
    MAXMSGSIZE = 22,
    SNDHWM = 23,
    RCVHWM = 24,
    IPV6 = 42,
    DONTWAIT = 1,
    SNDMORE = 2,
    READABLE = 1
};

typedef struct zmq_msg {
    alignas(void *) unsigned char bytes[64];
} zmq_msg;

typedef struct zmq_poll_item {
    void *socket;
    int fd;
    short events, revents;
} zmq_poll_item;

#define ZMQ_FUNCTIONS(X)                                                                           \
    X(void *, ctx_new, "zmq_ctx_new", void)                                                        \
    X(int, ctx_term, "zmq_ctx_term", void *ctx)                                                    \
    X(void *, socket, "zmq_socket", void *ctx, int type)                                           \
    X(int, close, "zmq_close", void *socket)                                                       \
    X(int, setsockopt, "zmq_setsockopt", void *socket, int option, const void *value, size_t n)    \
    X(int, bind, "zmq_bind", void *socket, const char *endpoint)                                   \
    X(int, connect, "zmq_connect", void *socket, const char *endpoint)                             \
    X(int, send, "zmq_send", void *socket, const void *bytes, size_t n, int flags)                 \
    X(int, msg_init, "zmq_msg_init", zmq_msg *m)                                                   \
    X(int, msg_init_data, "zmq_msg_init_data", zmq_msg *m, void *data, size_t n,                   \
      void (*release)(void *, void *), void *hint)                                                 \
    X(int, msg_send, "zmq_msg_send", zmq_msg *m, void *socket, int flags)                          \
    X(int, msg_recv, "zmq_msg_recv", zmq_msg *m, void *socket, int flags)                          \
    X(int, msg_close, "zmq_msg_close", zmq_msg *m)                                                 \
    X(void *, msg_data, "zmq_msg_data", zmq_msg *m)                                                \
    X(size_t, msg_size, "zmq_msg_size", const zmq_msg *m)                                          \
    X(int, msg_more, "zmq_msg_more", const zmq_msg *m)                                             \
    X(int, poll, "zmq_poll", zmq_poll_item *items, int n, long timeout_ms)                         \
    X(int, error, "zmq_errno", void)                                                               \
    X(const char *, error_text, "zmq_strerror", int e)

typedef struct zmq {
    void *library;
    ZMQ_FUNCTIONS(ROSE_DL_MEMBER)
} zmq;

typedef struct payload {
    _Atomic uint32_t refs;
    size_t n;
    char bytes[];
} payload;

typedef struct config {
    bool on, maps;                             /* maps: of vLLM's two protocols the newer one */
    const char *publisher, *endpoint, *replay; /* borrowed from the JSON; replay NULL: none */
    const char *topic;
    uint32_t steps, hwm, queue;
} config;

struct rose_kv_events {
    config o;
    rose_json *json; /* owned */
    zmq z;
    void *ctx, *pub, *router; /* owned; router NULL: no replay */
    rose_kv_feed *feed;       /* owned */
    pthread_t thread;
    bool started;
    _Atomic bool stopping;
    /* the thread's */
    payload **kept;        /* [o.steps] owned: number n is at n % o.steps; NULL: left out */
    uint64_t oldest, next; /* numbers that kept has: [oldest, next) */
    size_t kept_bytes;
    rose_kv_change batch[MAX_CHANGES];
    rose_buf text;
    bool told; /* a bad request was logged */
};

/* ---- options ---- */

static rose_status fail_field(const char *name, const char *wants, rose_err *err)
{
    return rose_fail(err, ROSE_E_INVAL, "--kv-events-config: '%s' must be %s", name, wants);
}

static rose_status read_text(const rose_json *v, const char *name, const char **out, rose_err *err)
{
    if (!rose_json_is_string(v) || strlen(rose_json_text(v)) != rose_json_text_len(v))
        return fail_field(name, "a string without NUL", err);
    *out = rose_json_text(v);
    return ROSE_OK;
}

static rose_status read_count(const rose_json *v, const char *name, uint32_t most, uint32_t *out,
                              rose_err *err)
{
    char wants[64];
    snprintf(wants, sizeof wants, "a whole number from 1 to %u", most);
    if (!rose_json_is_integer(v) || rose_json_int(v) < 1 || rose_json_int(v) > most)
        return fail_field(name, wants, err);
    *out = (uint32_t)rose_json_int(v);
    return ROSE_OK;
}

static rose_status read_field(config *o, const char *name, const rose_json *v, rose_err *err)
{
    if (strcmp(name, "enable_kv_cache_events") == 0) {
        if (!rose_json_is_boolean(v)) return fail_field(name, "true or false", err);
        o->on = rose_json_is_true(v);
        return ROSE_OK;
    }
    if (strcmp(name, "publisher") == 0) return read_text(v, name, &o->publisher, err);
    if (strcmp(name, "endpoint") == 0) return read_text(v, name, &o->endpoint, err);
    if (strcmp(name, "replay_endpoint") == 0)
        return rose_json_is_null(v) ? ROSE_OK : read_text(v, name, &o->replay, err);
    if (strcmp(name, "topic") == 0) return read_text(v, name, &o->topic, err);
    if (strcmp(name, "encoding") == 0) {
        const char *text = "";
        if (read_text(v, name, &text, err) != ROSE_OK ||
            (strcmp(text, "array") != 0 && strcmp(text, "map") != 0))
            return fail_field(name, "\"array\" or \"map\"", err);
        o->maps = strcmp(text, "map") == 0;
        return ROSE_OK;
    }
    if (strcmp(name, "buffer_steps") == 0) return read_count(v, name, MAX_STEPS, &o->steps, err);
    if (strcmp(name, "hwm") == 0) return read_count(v, name, MAX_HWM, &o->hwm, err);
    if (strcmp(name, "max_queue_size") == 0) return read_count(v, name, MAX_QUEUE, &o->queue, err);
    return rose_fail(err, ROSE_E_INVAL,
                     "--kv-events-config: there is no '%.60s'; the members are "
                     "enable_kv_cache_events, publisher, endpoint, replay_endpoint, buffer_steps, "
                     "hwm, max_queue_size, topic and encoding",
                     name);
}

static rose_status read_config(config *o, rose_json **json, const char *text, rose_err *err)
{
    rose_json_error e;
    const char *name;
    rose_json *v;
    *o = (config){
        .endpoint = "tcp://*:5557", .topic = "", .steps = 10000, .hwm = 100000, .queue = 100000};
    rose_status st = rose_json_parse(json, text, strlen(text), 0, &e);
    if (st != ROSE_OK)
        return rose_fail(err, st, "--kv-events-config: column %d: %s", e.column, e.text);
    if (!rose_json_is_object(*json))
        return rose_fail(err, ROSE_E_INVAL,
                         "--kv-events-config must be an object, as "
                         "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\"}");
    rose_json_each (*json, name, v) {
        if ((st = read_field(o, name, v, err)) != ROSE_OK) return st;
    }
    if (o->publisher == NULL) o->publisher = o->on ? "zmq" : "null";
    if (strcmp(o->publisher, "zmq") != 0 && strcmp(o->publisher, "null") != 0)
        return fail_field("publisher", "\"zmq\" or \"null\"", err);
    if (strlen(o->topic) > MAX_TOPIC_BYTES) return fail_field("topic", "at most 512 bytes", err);
    o->on = o->on && strcmp(o->publisher, "zmq") == 0;
    return ROSE_OK;
}

/* ---- libzmq ---- */

static rose_status load(zmq *z, rose_err *err)
{
    static const char *const paths[] = {"libzmq.so.5"};
#define ROW(type, member, name, ...) {name, &z->member},
    const rose_dl_function functions[] = {ZMQ_FUNCTIONS(ROW)};
#undef ROW
    rose_err why = {{0}};
    const rose_status st =
        rose_dl_open(&z->library, paths, 1, functions, sizeof functions / sizeof *functions, &why);
    if (st == ROSE_OK) return ROSE_OK;
    return rose_fail(err, st, "--kv-events-config needs libzmq 4 (Debian: libzmq5): %.300s",
                     why.msg);
}

/* vLLM's rule: an address that names no single machine is bound, any other is connected to. */
static bool is_bound(const char *endpoint)
{
    return strchr(endpoint, '*') != NULL || strstr(endpoint, "::") != NULL ||
           strncmp(endpoint, "ipc://", 6) == 0 || strncmp(endpoint, "inproc://", 9) == 0;
}

static rose_status open_socket(rose_kv_events *x, void **out, int type, const char *name,
                               const char *endpoint, uint32_t hwm, rose_err *err)
{
    const zmq *z = &x->z;
    const int zero = 0, one = 1, limit = (int)hwm;
    const int64_t most = MAX_REQUEST_BYTES;
    const bool binds = type == ROUTER || is_bound(endpoint);
    if ((*out = z->socket(x->ctx, type)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "--kv-events-config: a socket: %s",
                         z->error_text(z->error()));
    z->setsockopt(*out, LINGER, &zero, sizeof zero);
    z->setsockopt(*out, SNDHWM, &limit, sizeof limit);
    z->setsockopt(*out, MAXMSGSIZE, &most, sizeof most);
    if (strchr(endpoint, '[') != NULL || strstr(endpoint, "::") != NULL)
        z->setsockopt(*out, IPV6, &one, sizeof one);
    if ((binds ? z->bind(*out, endpoint) : z->connect(*out, endpoint)) == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_IO,
                     "--kv-events-config: %s '%.200s': %s; it must be an address "
                     "such as tcp://*:5557 or ipc:///run/roseinfer/kv, which no other program uses",
                     name, endpoint, z->error_text(z->error()));
}

static rose_status open_sockets(rose_kv_events *x, rose_err *err)
{
    if ((x->ctx = x->z.ctx_new()) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "--kv-events-config: libzmq: out of memory");
    rose_status st = open_socket(x, &x->pub, PUB, "endpoint", x->o.endpoint, x->o.hwm, err);
    if (st == ROSE_OK && x->o.replay != NULL)
        st =
            open_socket(x, &x->router, ROUTER, "replay_endpoint", x->o.replay, x->o.steps + 1, err);
    return st;
}

/* ---- messages ---- */

static void unref(payload *p)
{
    /* acq_rel: pairs with the other unrefs; the last one frees */
    if (p != NULL && atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1) free(p);
}

static void release(void *data, void *hint)
{
    (void)data;
    unref(hint);
}

/* Sends the bytes of p as the last frame. */
static void send_payload(rose_kv_events *x, void *socket, payload *p)
{
    zmq_msg m;
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    if (x->z.msg_init_data(&m, p->bytes, p->n, release, p) != 0)
        unref(p);
    else if (x->z.msg_send(&m, socket, DONTWAIT) < 0)
        x->z.msg_close(&m);
}

static void number_bytes(uint8_t out[NUMBER_BYTES], uint64_t n)
{
    for (int i = 0; i < NUMBER_BYTES; i++)
        out[i] = (uint8_t)(n >> 8 * (NUMBER_BYTES - 1 - i));
}

static void drop_oldest(rose_kv_events *x)
{
    payload **p = &x->kept[x->oldest++ % x->o.steps];
    if (*p != NULL) x->kept_bytes -= (*p)->n;
    unref(*p);
    *p = NULL;
}

/* Takes the next number and keeps p under it. p NULL: the number is left out. */
static void keep(rose_kv_events *x, payload *p)
{
    if (x->next - x->oldest == x->o.steps) drop_oldest(x);
    x->kept[x->next++ % x->o.steps] = p;
    if (p != NULL) x->kept_bytes += p->n;
    while (x->kept_bytes > MAX_KEPT_BYTES && x->oldest + 1 < x->next)
        drop_oldest(x);
}

static double unix_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static payload *make_payload(rose_kv_events *x, uint32_t n)
{
    x->text.len = 0;
    if (rose_kv_payload_write(&x->text, x->o.maps, unix_now(), x->batch, n) != ROSE_OK) return NULL;
    payload *p = malloc(sizeof *p + x->text.len);
    if (p == NULL) return NULL;
    atomic_init(&p->refs, 1);
    p->n = x->text.len;
    memcpy(p->bytes, x->text.data, x->text.len);
    return p;
}

/* Sends batch[0..n). Without memory the message is lost, and its number is left out. */
static void publish(rose_kv_events *x, uint32_t n)
{
    uint8_t number[NUMBER_BYTES];
    payload *p = make_payload(x, n);
    if (p == NULL)
        rose_log(ROSE_LOG_ERROR, "kv-events", "out of memory: message %llu is lost",
                 (unsigned long long)x->next);
    number_bytes(number, x->next);
    if (p != NULL && x->z.send(x->pub, x->o.topic, strlen(x->o.topic), SNDMORE | DONTWAIT) >= 0 &&
        x->z.send(x->pub, number, sizeof number, SNDMORE | DONTWAIT) >= 0)
        send_payload(x, x->pub, p);
    keep(x, p);
}

/* Publishes one message; false: there is nothing to publish. CLEARED always begins a new message,
 * so that subscribers see the gap in the numbers before they see CLEARED. */
static bool publish_next(rose_kv_events *x)
{
    uint32_t n = 0;
    while (n < MAX_CHANGES && rose_kv_feed_take(x->feed, &x->batch[n])) {
        if (x->batch[n].kind != ROSE_KV_CLEARED) {
            n++;
            continue;
        }
        const rose_kv_change cleared = x->batch[n];
        if (n > 0) publish(x, n);
        rose_log(ROSE_LOG_WARN, "kv-events",
                 "message %llu is left out: changes came faster than they were sent, and "
                 "max_queue_size is %u. All pages are sent again",
                 (unsigned long long)x->next, x->o.queue);
        keep(x, NULL);
        x->batch[0] = cleared;
        n = 1;
    }
    if (n > 0) publish(x, n);
    return n > 0;
}

/* ---- old messages ---- */

/* Sends the frames before the payload of a reply. False: the peer left, or does not read. */
static bool begin_reply(rose_kv_events *x, const zmq_msg *peer, uint64_t number)
{
    uint8_t bytes[NUMBER_BYTES];
    zmq_msg *p = (zmq_msg *)(uintptr_t)peer; /* msg_data only reads */
    const char *topic = number != UINT64_MAX ? x->o.topic : "";
    number_bytes(bytes, number);
    return x->z.send(x->router, x->z.msg_data(p), x->z.msg_size(p), SNDMORE | DONTWAIT) >= 0 &&
           x->z.send(x->router, "", 0, SNDMORE | DONTWAIT) >= 0 &&
           (!x->o.maps || x->z.send(x->router, topic, strlen(topic), SNDMORE | DONTWAIT) >= 0) &&
           x->z.send(x->router, bytes, sizeof bytes, SNDMORE | DONTWAIT) >= 0;
}

static void replay(rose_kv_events *x, const zmq_msg *peer, uint64_t from)
{
    for (uint64_t n = from > x->oldest ? from : x->oldest; n < x->next; n++) {
        payload *p = x->kept[n % x->o.steps];
        if (p == NULL) continue;
        if (!begin_reply(x, peer, n)) return;
        send_payload(x, x->router, p);
    }
    if (begin_reply(x, peer, UINT64_MAX)) (void)x->z.send(x->router, "", 0, DONTWAIT);
}

/* Reads one request and answers it; false: there is none. */
static bool serve_request(rose_kv_events *x)
{
    const zmq *z = &x->z;
    zmq_msg peer, frame;
    uint64_t from = 0;
    bool good = true;
    uint32_t n = 1;
    z->msg_init(&peer);
    if (z->msg_recv(&peer, x->router, DONTWAIT) < 0) {
        z->msg_close(&peer);
        return false;
    }
    for (bool more = z->msg_more(&peer) != 0; more; n++) {
        z->msg_init(&frame);
        if (z->msg_recv(&frame, x->router, DONTWAIT) < 0) break; /* a message comes whole */
        const size_t size = z->msg_size(&frame);
        const uint8_t *bytes = z->msg_data(&frame);
        if (n == 1 && size != 0) good = false;
        if (n == 2 && size != NUMBER_BYTES) good = false;
        for (uint32_t i = 0; n == 2 && good && i < NUMBER_BYTES; i++)
            from = from << 8 | bytes[i];
        more = z->msg_more(&frame) != 0;
        z->msg_close(&frame);
    }
    if (good && n == 3)
        replay(x, &peer, from);
    else if (!x->told)
        rose_log(ROSE_LOG_WARN, "kv-events",
                 "a request to replay_endpoint is ignored: it must have two frames, an empty one "
                 "and a number of 8 bytes, and this one has %u frames or other sizes. Later "
                 "requests with this fault are not logged",
                 n - 1);
    if (!good || n != 3) x->told = true;
    z->msg_close(&peer);
    return true;
}

/* ---- the thread ---- */

static void *publisher_main(void *arg)
{
    rose_kv_events *x = arg;
    zmq_poll_item items[2] = {{.fd = rose_kv_feed_fd(x->feed), .events = READABLE},
                              {.socket = x->router, .events = READABLE}};
    const int n_items = x->router != NULL ? 2 : 1;
    rose_thread_setup("rose-kv-events", -1);
    x->batch[0] = (rose_kv_change){.kind = ROSE_KV_CLEARED}; /* a new server has no pages */
    publish(x, 1);
    /* acquire: pairs with the release in close */
    while (!atomic_load_explicit(&x->stopping, memory_order_acquire)) {
        uint32_t n = 0;
        while (n < BURST && publish_next(x))
            n++;
        const bool asked = x->router != NULL && serve_request(x);
        if (n == BURST || asked) continue;
        if (rose_kv_feed_prepare_sleep(x->feed)) x->z.poll(items, n_items, -1);
        rose_kv_feed_awake(x->feed);
    }
    while (publish_next(x)) {
    }
    return NULL;
}

static rose_status start_thread(rose_kv_events *x, rose_err *err)
{
    const int rc = rose_thread_start(&x->thread, publisher_main, x);
    x->started = rc == 0;
    return rc == 0 ? ROSE_OK : rose_fail(err, ROSE_E_IO, "thread of KV events: %s", strerror(rc));
}

rose_status rose_kv_events_open(rose_kv_events **out, const char *json, rose_err *err)
{
    *out = NULL;
    if (json == NULL) return ROSE_OK;
    rose_kv_events *x = calloc(1, sizeof *x);
    if (x == NULL) return rose_fail(err, ROSE_E_NOMEM, "KV events: out of memory");
    rose_status st = read_config(&x->o, &x->json, json, err);
    if (st != ROSE_OK || !x->o.on) goto done;
    if ((st = load(&x->z, err)) != ROSE_OK) goto done;
    if ((x->kept = calloc(x->o.steps, sizeof *x->kept)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "KV events: out of memory");
        goto done;
    }
    if ((st = rose_kv_feed_create(&x->feed, x->o.queue, err)) != ROSE_OK) goto done;
    if ((st = open_sockets(x, err)) != ROSE_OK) goto done;
    if ((st = start_thread(x, err)) != ROSE_OK) goto done;
    rose_log(ROSE_LOG_INFO, "kv-events",
             "KV events at %s; they have the token ids of prompts, so only routers may read them",
             x->o.endpoint);
    *out = x;
done:
    if (*out == NULL) rose_kv_events_close(x);
    return st;
}

rose_kv_feed *rose_kv_events_feed(rose_kv_events *x)
{
    return x != NULL ? x->feed : NULL;
}

void rose_kv_events_close(rose_kv_events *x)
{
    if (x == NULL) return;
    if (x->started) {
        /* release: pairs with the acquire in publisher_main; the engine's changes are in the feed
         */
        atomic_store_explicit(&x->stopping, true, memory_order_release);
        rose_kv_feed_wake(x->feed);
        pthread_join(x->thread, NULL);
    }
    if (x->pub != NULL) x->z.close(x->pub);
    if (x->router != NULL) x->z.close(x->router);
    if (x->ctx != NULL) {
        while (x->z.ctx_term(x->ctx) != 0 && x->z.error() == EINTR) {
        }
    }
    for (uint32_t i = 0; x->kept != NULL && i < x->o.steps; i++)
        unref(x->kept[i]); /* after ctx_term, which gave the other references back */
    free(x->kept);
    rose_kv_feed_destroy(x->feed);
    rose_buf_free(&x->text);
    rose_json_decref(x->json);
    free(x); /* libzmq stays loaded: TSAN aborts if a library named in tsan.supp is unloaded */
}
