/* tests/api/fakes.h - the three rooms below the API, replaced by small deterministic ones, so that
 * a test decides when a token comes, what a write returns and when a client leaves. One test
 * program includes this once; its definitions take the place of the archive's.
 *
 * Tokenizer: ids 0..255 are bytes, 256 is the special "<eos>", 257.. are the words of fake_words.
 * Engine: nothing happens until fake_engine_step(), which gives every live request one event.
 * HTTP: requests are made by fake_request(); what is written to them is kept. */
#ifndef ROSE_TESTS_API_FAKES_H
#define ROSE_TESTS_API_FAKES_H

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"

/* A test that makes allocations fail defines these: the fakes' own must not. */
#ifndef FAKE_ALLOC_BEGIN
#define FAKE_ALLOC_BEGIN() ((void)0)
#define FAKE_ALLOC_END()   ((void)0)
#endif

/* ---- tokenizer ---- */

enum { FAKE_EOS = 256, FAKE_WORD0 = 257 };

static const char *const fake_words[] = {"Hello",    " world", "ST", "OP",     "\nUser",      ":",
                                         "\xE2\x82", "\xAC",   " ",  "a\"b\\", "\n\t\x01\x7F"};
enum {
    FAKE_N_WORDS = sizeof fake_words / sizeof *fake_words,
    FAKE_VOCAB = FAKE_WORD0 + FAKE_N_WORDS
};

struct rose_tokenizer {
    int unused;
};
struct rose_encoder {
    int unused;
};

static rose_tokenizer fake_tokenizer;
static unsigned fake_encode_ms;      /* how long rose_encode takes */
static atomic_bool fake_encode_held; /* it does not return while this is set */
static atomic_uint fake_n_encodes;   /* begun */
static atomic_bool fake_vocab_held;  /* nobody reads the vocabulary while this is set */
static uint64_t fake_arrival_ns = 1; /* of every request */

void rose_ids_free(rose_ids *ids)
{
    free(ids->data);
    *ids = (rose_ids){0};
}

rose_status rose_encoder_create(rose_encoder **out, const rose_tokenizer *t, rose_err *err)
{
    (void)t;
    (void)err;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? ROSE_E_NOMEM : ROSE_OK;
}

void rose_encoder_destroy(rose_encoder *e)
{
    free(e);
}

void rose_encoder_set_stop(rose_encoder *e, const atomic_bool *stop)
{
    (void)e;
    (void)stop;
}

rose_status rose_encode(rose_encoder *e, const char *text, size_t len, unsigned flags,
                        rose_ids *out, rose_err *err)
{
    (void)e;
    (void)err;
    (void)flags;
    if (fake_encode_ms > 0) usleep(fake_encode_ms * 1000);
    atomic_fetch_add(&fake_n_encodes, 1);
    while (atomic_load(&fake_encode_held))
        usleep(200);
    uint32_t *data = realloc(out->data, (out->len + len + 1) * sizeof *data);
    if (data == NULL) return ROSE_E_NOMEM;
    out->data = data;
    for (size_t i = 0; i < len; i++)
        data[out->len++] = (unsigned char)text[i];
    out->cap = out->len + 1;
    return ROSE_OK;
}

/* Template bytes of the text "<eos>" become FAKE_EOS; everything else becomes bytes. */
rose_status rose_encode_marked(rose_encoder *e, const char *text, size_t len,
                               const rose_mark_run *runs, size_t n_runs, unsigned flags,
                               rose_ids *out, rose_err *err)
{
    size_t at = 0;
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < n_runs && st == ROSE_OK; at += runs[i++].len) {
        const char *eos = runs[i].is_template ? memmem(text + at, runs[i].len, "<eos>", 5) : NULL;
        const size_t n = eos != NULL ? (size_t)(eos - text) - at : runs[i].len;
        st = rose_encode(e, text + at, n, flags, out, err);
        if (st != ROSE_OK || eos == NULL) continue;
        out->data[out->len++] = FAKE_EOS; /* rose_encode leaves room for one more */
        st = rose_encode(e, eos + 5, runs[i].len - n - 5, flags, out, err);
    }
    return at == len || st != ROSE_OK ? st : ROSE_E_INVAL;
}

static size_t fake_bytes(uint32_t id, unsigned flags, char *out)
{
    if (id < 256) {
        out[0] = (char)id;
        return 1;
    }
    const char *s = id == FAKE_EOS    ? ((flags & ROSE_DECODE_SKIP_SPECIAL) ? "" : "<eos>")
                    : id < FAKE_VOCAB ? fake_words[id - FAKE_WORD0]
                                      : "";
    memcpy(out, s, strlen(s));
    return strlen(s);
}

rose_status rose_decode(const rose_tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                        rose_buf *out, rose_err *err)
{
    char bytes[16];
    (void)t;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        if (rose_buf_add(out, bytes, fake_bytes(ids[i], flags, bytes)) != ROSE_OK)
            return ROSE_E_NOMEM;
    }
    return ROSE_OK;
}

const char *rose_tokenizer_token_bytes(const rose_tokenizer *t, uint32_t id, size_t *len)
{
    static char bytes[FAKE_VOCAB + 1][16]; /* a vocabulary borrows those of all ids at once */
    char *at = bytes[id < FAKE_VOCAB ? id : FAKE_VOCAB];
    (void)t;
    *len = fake_bytes(id, 0, at);
    return at;
}

bool rose_tokenizer_is_special(const rose_tokenizer *t, uint32_t id)
{
    (void)t;
    while (atomic_load(&fake_vocab_held))
        usleep(200);
    return id == FAKE_EOS;
}

bool rose_tokenizer_find(const rose_tokenizer *t, const char *text, size_t len, uint32_t *id)
{
    (void)t;
    *id = FAKE_EOS;
    if (len == 3 && memcmp(text, "yes", 3) == 0) *id = 'y';
    if (len == 2 && memcmp(text, "no", 2) == 0) *id = 'n';
    return *id != FAKE_EOS || (len == 5 && memcmp(text, "<eos>", 5) == 0);
}

size_t rose_detok_cap(const rose_tokenizer *t)
{
    (void)t;
    return 32;
}

/* Bytes of an unfinished character at the end of s. */
static size_t fake_unfinished(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if (c < 0x80) return 0;
        if (c >= 0xC0) return back < (c >= 0xF0 ? 4u : c >= 0xE0 ? 3u : 2u) ? back : 0;
    }
    return 0;
}

void rose_detok_begin(rose_detok *d, const rose_tokenizer *t, const uint32_t *prompt, size_t n,
                      unsigned flags)
{
    (void)t;
    (void)prompt;
    (void)n;
    (void)flags;
    *d = (rose_detok){0};
}

size_t rose_detok_push(rose_detok *d, const rose_tokenizer *t, uint32_t id, unsigned flags,
                       char *out)
{
    (void)t;
    memcpy(out, d->pending, d->n_pending);
    size_t n = d->n_pending + fake_bytes(id, flags, out + d->n_pending);
    size_t keep = fake_unfinished(out, n);
    memcpy(d->pending, out + n - keep, keep);
    d->n_pending = (uint8_t)keep;
    return n - keep;
}

size_t rose_detok_finish(rose_detok *d, char *out)
{
    size_t n = d->n_pending > 0 ? 3 : 0;
    memcpy(out, "\xEF\xBF\xBD", n);
    d->n_pending = 0;
    return n;
}

/* ---- engine ---- */

enum { FAKE_RING = 64, FAKE_MAX_REQS = 512, FAKE_WIDTH = 4 };

struct rose_request {
    rose_request_opts o;
    uint32_t n_cached;       /* what the engine would say */
    uint32_t prompt_sum;     /* of the ids, so that a test can tell prompts apart */
    float state[FAKE_WIDTH]; /* of a pooled request: 1, prompt_sum, -1, 0.5 */
    rose_logprob score;      /* of the last prompt token: minus its id / 16 */
    uint32_t n_done;
    bool ended, in_sink;
    atomic_bool cancelled;
    rose_event ring[FAKE_RING];
    uint32_t head, tail;
    rose_request_times times;
    rose_err guide_err; /* ROSE_FINISH_GUIDE */
};

typedef struct fake_engine_state {
    pthread_mutex_t lock; /* workers submit while the test's thread steps */
    rose_request *live[FAKE_MAX_REQS];
    uint32_t n_live;       /* not yet released */
    uint32_t n_running;    /* not yet ended */
    uint32_t capacity;     /* running; over: FULL */
    uint32_t max_reserved; /* at once; over: INVAL */
    uint32_t n_reserved;   /* and not yet used */
    uint32_t n_cancelled, n_submitted, n_released;
    uint32_t max_model_len;
    rose_status submit_status; /* not OK: what submit gives */
    /* The i-th token of a request (FAKE_EOS ends it). */
    uint32_t (*next)(const rose_request *r, uint32_t i);
    uint32_t fail_at; /* the request fails instead of giving token fail_at - 1; 0 = never */
    uint64_t now_ns;
    bool failed;
    uint32_t retry_after_s;
    rose_finish fail_how; /* of fail_at; ERROR unless set */
    char salt[32];        /* of the last submission */
    size_t salt_len;
} fake_engine_state;

static fake_engine_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER};
static rose_memory_plan fake_plan;
static rose_arch fake_arch;
static int fake_engine_object;
#define FAKE_ENGINE ((rose_engine *)(void *)&fake_engine_object)

const rose_memory_plan *rose_engine_plan(const rose_engine *e)
{
    (void)e;
    return &fake_plan;
}

const rose_arch *rose_engine_arch(const rose_engine *e)
{
    (void)e;
    return &fake_arch;
}

bool rose_engine_has_prefix_cache(const rose_engine *e)
{
    (void)e;
    return true;
}

rose_engine_stats rose_engine_get_stats(const rose_engine *e)
{
    (void)e;
    return (rose_engine_stats){.running = fake.n_running,
                               .kv_pages = 100,
                               .kv_pages_free = 100 - fake.n_running,
                               .failed = fake.failed};
}

bool rose_engine_speculates(const rose_engine *e)
{
    (void)e;
    return true;
}

rose_spec_stats rose_engine_get_spec(const rose_engine *e)
{
    (void)e;
    return (rose_spec_stats){.n_tried = 5, .n_right = 3};
}

const char *rose_engine_failure(const rose_engine *e)
{
    (void)e;
    return fake.failed ? "fake device on fire" : NULL;
}

static rose_engine_hists fake_hists;
static uint32_t fake_eos = FAKE_EOS; /* the id that ends a text; FAKE_EOS is a special token */
static uint32_t fake_stop_id;        /* as if every request had it in stop_token_ids; 0 = none */

static rose_logprob fake_report[64];

const rose_logprob *rose_request_logprobs(const rose_request *r, uint32_t i)
{
    (void)r;
    (void)i;
    return fake_report;
}

const rose_logprob *rose_request_prompt_logprobs(const rose_request *r, uint32_t pos)
{
    (void)pos;
    return r->score.id != 0 ? &r->score : fake_report;
}

const float *rose_request_state(const rose_request *r)
{
    return r->o.pool != ROSE_POOL_NONE ? r->state : NULL;
}

const rose_engine_hists *rose_engine_get_hists(const rose_engine *e)
{
    (void)e;
    return &fake_hists;
}

static atomic_uint fake_n_expected; /* calls of rose_engine_expect */
static bool fake_device;            /* what it returns */

bool rose_engine_expect(rose_engine *e)
{
    (void)e;
    atomic_fetch_add(&fake_n_expected, 1);
    return fake_device;
}

/* It takes some of a group and refuses the rest: submit looks at the capacity. */
rose_status rose_engine_reserve(rose_engine *e, uint32_t n, uint64_t n_tokens, rose_err *err)
{
    (void)e;
    (void)n_tokens;
    if (n > fake.max_reserved) return rose_fail(err, ROSE_E_INVAL, "fake: %u at once", n);
    pthread_mutex_lock(&fake.lock);
    fake.n_reserved += n;
    pthread_mutex_unlock(&fake.lock);
    return ROSE_OK;
}

void rose_engine_unreserve(rose_engine *e, uint32_t n, uint64_t n_tokens)
{
    (void)e;
    (void)n_tokens;
    pthread_mutex_lock(&fake.lock);
    if (n > fake.n_reserved) abort();
    fake.n_reserved -= n;
    pthread_mutex_unlock(&fake.lock);
}

rose_status rose_engine_submit(rose_engine *e, const rose_request_opts *o, rose_request **out,
                               rose_err *err)
{
    rose_status st = ROSE_OK;
    (void)e;
    *out = NULL;
    pthread_mutex_lock(&fake.lock);
    if (o->n_reserved > fake.n_reserved) abort();
    if (o->n_reserved > 0) fake.n_reserved--;
    if (fake.submit_status != ROSE_OK)
        st = rose_fail(err, fake.submit_status, "fake refusal");
    else if (fake.n_running >= fake.capacity)
        st = ROSE_E_FULL;
    if (st != ROSE_OK && o->guide.ops != NULL) o->guide.ops->destroy(o->guide.state);
    if (st == ROSE_OK) {
        FAKE_ALLOC_BEGIN();
        rose_request *r = calloc(1, sizeof *r);
        FAKE_ALLOC_END();
        if (r == NULL || fake.n_live == FAKE_MAX_REQS) abort();
        r->o = *o;
        if (o->rules != NULL && o->rules->prompt_from > 0) {
            const uint32_t id = o->prompt[o->n_prompt - 1];
            if (o->rules->prompt_from != o->n_prompt - 1) abort();
            r->score = (rose_logprob){.id = id, .rank = 1, .logprob = -(float)id / 16};
        }
        r->o.rules = NULL; /* borrowed for submit */
        r->o.prompt = NULL;
        fake.salt_len = o->cache_salt_len < sizeof fake.salt ? o->cache_salt_len : sizeof fake.salt;
        if (fake.salt_len > 0) memcpy(fake.salt, o->cache_salt, fake.salt_len);
        r->o.cache_salt = NULL;
        for (uint32_t i = 0; i < o->n_prompt; i++)
            r->prompt_sum += o->prompt[i];
        const float state[FAKE_WIDTH] = {1, (float)r->prompt_sum, -1, 0.5f};
        memcpy(r->state, state, sizeof state);
        r->times.submitted = fake.now_ns;
        fake.live[fake.n_live++] = r;
        fake.n_running++;
        fake.n_submitted++;
        *out = r;
    }
    pthread_mutex_unlock(&fake.lock);
    return st;
}

void rose_request_cancel(rose_request *r)
{
    atomic_store(&r->cancelled, true);
}

rose_status rose_request_poll(rose_request *r, rose_event *out)
{
    pthread_mutex_lock(&fake.lock);
    bool any = r->head != r->tail;
    if (!r->in_sink) abort(); /* polled without having been told */
    if (any) *out = r->ring[r->head++ % FAKE_RING];
    if (!any) r->in_sink = false;
    pthread_mutex_unlock(&fake.lock);
    return any ? ROSE_OK : ROSE_E_EMPTY;
}

const char *rose_request_guide_error(const rose_request *r)
{
    return r->guide_err.msg[0] != '\0' ? r->guide_err.msg : NULL;
}

void *rose_request_user(const rose_request *r)
{
    return r->o.user;
}

uint32_t rose_engine_retry_after_s(const rose_engine *e)
{
    (void)e;
    return fake.retry_after_s;
}

static bool fake_no_room; /* requests that have not begun stay in the queue */

bool rose_engine_has_room(const rose_engine *e)
{
    (void)e;
    return !fake_no_room;
}

bool rose_request_has_begun(const rose_request *r)
{
    return r->times.admitted != 0;
}

rose_request_guesses rose_request_get_guesses(const rose_request *r)
{
    (void)r;
    return (rose_request_guesses){0};
}

uint32_t rose_request_cached_tokens(const rose_request *r)
{
    return r->n_cached;
}

rose_request_times rose_request_get_times(const rose_request *r)
{
    return r->times;
}

void rose_request_release(rose_request *r)
{
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < fake.n_live; i++) {
        if (fake.live[i] != r) continue;
        fake.live[i] = fake.live[--fake.n_live];
        break;
    }
    fake.n_released++;
    pthread_mutex_unlock(&fake.lock);
    if (!r->ended || r->head != r->tail) abort(); /* released too early */
    if (r->o.guide.ops != NULL) r->o.guide.ops->destroy(r->o.guide.state);
    memset(r, 0xDD, sizeof *r);
    FAKE_ALLOC_BEGIN();
    free(r);
    FAKE_ALLOC_END();
}

static void fake_end(rose_request *r, rose_event *ev, rose_finish f)
{
    ev->finish = (uint8_t)f;
    r->ended = true;
    r->times.finished = fake.now_ns;
    fake.n_running--;
    if (f == ROSE_FINISH_CANCELLED) fake.n_cancelled++;
}

/* The next token of a request: the script's, but with a guide the first that it allows of: the
 * end, a byte that ends a piece of JSON, the other ids by number. False: the guide fails. */
static bool fake_next_token(rose_request *r, uint32_t *id)
{
    static const uint32_t before[] = {FAKE_EOS, '"', '}', ']'};
    uint32_t words[(FAKE_VOCAB + 31) / 32];
    const rose_guide *g = &r->o.guide;
    *id = fake.next(r, r->n_done);
    if (g->ops == NULL) return true;
    if (g->ops->mask(g->state, words, &r->guide_err) != ROSE_OK) return false;
    for (uint32_t i = 0; i < 4 + FAKE_VOCAB; i++) {
        *id = i < 4 ? before[i] : (i - 4 + '!') % FAKE_VOCAB;
        if ((words[*id / 32] >> *id % 32 & 1) != 0) break;
    }
    return *id == FAKE_EOS || g->ops->advance(g->state, *id, &r->guide_err) == ROSE_OK;
}

/* One event for a request: its next token, its end, or both. */
static void fake_advance(rose_request *r)
{
    rose_event ev = {.t_ns = fake.now_ns};
    uint32_t id;
    if (r->ended || r->tail - r->head == FAKE_RING) return;
    if (r->n_done == 0) r->times.admitted = fake.now_ns - 1000;
    if ((r->o.score_only || r->o.pool != ROSE_POOL_NONE) && !atomic_load(&r->cancelled))
        fake_end(r, &ev, fake.fail_at == 1 ? fake.fail_how : ROSE_FINISH_LENGTH);
    else if (atomic_load(&r->cancelled)) {
        fake_end(r, &ev, ROSE_FINISH_CANCELLED);
    } else if (fake.fail_at != 0 && r->n_done + 1 == fake.fail_at) {
        fake_end(r, &ev, fake.fail_how);
    } else if (!fake_next_token(r, &id)) {
        fake_end(r, &ev, ROSE_FINISH_GUIDE);
    } else {
        ev.id = id;
        r->n_done++;
        ev.has_token = 1;
        if (r->n_done == 1) r->times.first_token = fake.now_ns;
        ev.stop_id = fake_stop_id != 0 && ev.id == fake_stop_id;
        if (ev.stop_id || (ev.id == fake_eos && !r->o.ignore_eos))
            fake_end(r, &ev, ROSE_FINISH_STOP);
        else if (r->n_done >= r->o.max_tokens || r->n_done + r->o.n_prompt >= fake.max_model_len)
            fake_end(r, &ev, ROSE_FINISH_LENGTH);
    }
    r->ring[r->tail++ % FAKE_RING] = ev;
    /* as the engine: a request is in its sink at most once until it was polled empty */
    if (!r->in_sink && rose_wakeq_push(r->o.sink, r) != ROSE_OK) abort();
    r->in_sink = true;
    rose_wakeq_signal(r->o.sink);
}

static inline void fake_engine_step(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.now_ns += 1000000;
    for (uint32_t i = 0; i < fake.n_live; i++)
        fake_advance(fake.live[i]);
    pthread_mutex_unlock(&fake.lock);
}

/* ---- http ---- */

struct rose_http_req {
    rose_http_info info;
    char method[8], path[128], query[128], content_type[64];
    char label[256]; /* X-Request-Id */
    char *body;      /* owned */
    size_t body_len;
    void *user;
    uint32_t thread;
    /* what came back */
    int status; /* 0 = nothing yet */
    char headers[2048], note[ROSE_HTTP_NOTE];
    rose_buf out;
    bool begun, ended, gone, own;
    uint32_t n_writes;
    int gone_at_write; /* on_gone is called inside this write (counted from 0); -1 = never */
};

struct rose_http {
    rose_http_callbacks cb;
    struct {
        int fd;
        void (*fn)(void *);
        void *arg;
    } watch[128];
    uint32_t n_watch;
};

static rose_http fake_http;
static uint64_t fake_awake_until; /* of the last rose_http_stay_awake */
static bool fake_http_stopped;    /* the real one is freed by then */

void rose_http_stay_awake(rose_http *h, uint32_t thread, uint64_t until_ns)
{
    (void)h;
    (void)thread;
    if (fake_http_stopped) abort();
    fake_awake_until = until_ns;
}

rose_status rose_http_watch(rose_http *h, uint32_t thread, int fd, void (*fn)(void *arg), void *arg,
                            rose_err *err)
{
    (void)thread;
    (void)err;
    h->watch[h->n_watch].fd = fd;
    h->watch[h->n_watch].fn = fn;
    h->watch[h->n_watch++].arg = arg;
    return ROSE_OK;
}

uint64_t rose_http_n_slow(const rose_http *h, rose_http_slow why)
{
    (void)h;
    return 10 + (uint64_t)why;
}

uint64_t rose_http_n_dropped(const rose_http *h)
{
    (void)h;
    return 20;
}

uint64_t rose_http_n_refused(const rose_http *h)
{
    (void)h;
    return 21;
}

/* One turn of the event loop; waits up to ms for something. */
static inline void fake_turn(int ms)
{
    struct pollfd p[128];
    for (uint32_t i = 0; i < fake_http.n_watch; i++)
        p[i] = (struct pollfd){.fd = fake_http.watch[i].fd, .events = POLLIN};
    if (poll(p, fake_http.n_watch, ms) <= 0) return;
    for (uint32_t i = 0; i < fake_http.n_watch; i++) {
        if (p[i].revents != 0) fake_http.watch[i].fn(fake_http.watch[i].arg);
    }
}

/* A timer fires when the test says so. */
struct rose_http_timer {
    void (*fn)(void *arg);
    void *arg;
};

static rose_http_timer *fake_timer;
static uint32_t fake_n_timers; /* without fake_look_timer */
/* The timer that looks at waiting streams is kept apart. It first runs for at most 100 ms. */
static void (*fake_look_fn)(void *arg);
static rose_http_timer *fake_look_timer;
static uint32_t fake_look_ms;

rose_http_timer *rose_http_timer_start(rose_http *h, uint32_t thread, uint32_t ms,
                                       void (*fn)(void *arg), void *arg)
{
    (void)h;
    (void)thread;
    FAKE_ALLOC_BEGIN();
    rose_http_timer *t = malloc(sizeof *t);
    FAKE_ALLOC_END();
    if (t == NULL) abort();
    *t = (rose_http_timer){fn, arg};
    if (ms <= 100) fake_look_fn = fn;
    if (fn == fake_look_fn) {
        fake_look_ms = ms;
        if (fake_look_timer != NULL) abort();
        return fake_look_timer = t;
    }
    fake_timer = t;
    fake_n_timers++;
    return t;
}

void rose_http_timer_cancel(rose_http_timer *t)
{
    if (t == NULL) return;
    if (fake_http_stopped) abort();
    if (fake_look_timer == t)
        fake_look_timer = NULL;
    else
        fake_n_timers--;
    if (fake_timer == t) fake_timer = NULL;
    FAKE_ALLOC_BEGIN();
    free(t);
    FAKE_ALLOC_END();
}

static inline void fake_look(void)
{
    rose_http_timer *t = fake_look_timer;
    fake_look_timer = NULL;
    t->fn(t->arg);
    free(t);
}

static inline void fake_fire(void)
{
    rose_http_timer *t = fake_timer;
    fake_timer = NULL;
    fake_n_timers--;
    t->fn(t->arg);
    free(t);
}

const rose_http_info *rose_http_req_info(const rose_http_req *r)
{
    rose_http_info *info = (rose_http_info *)(uintptr_t)&r->info;
    *info = (rose_http_info){.method = r->method,
                             .path = r->path,
                             .query = r->query,
                             .arrival_ns = fake_arrival_ns,
                             .complete_ns = fake_arrival_ns + 1,
                             .thread = r->thread,
                             .own = r->own,
                             .has_body = r->body_len > 0};
    return info;
}

const char *rose_http_req_header(const rose_http_req *r, const char *name)
{
    if (strcasecmp(name, "x-request-id") == 0) return r->label[0] != '\0' ? r->label : NULL;
    return strcasecmp(name, "content-type") == 0 && r->content_type[0] != '\0' ? r->content_type
                                                                               : NULL;
}

uint32_t rose_http_req_header_count(const rose_http_req *r, const char *name)
{
    return rose_http_req_header(r, name) != NULL;
}

bool rose_http_req_is_preflight(const rose_http_req *r)
{
    return strcmp(r->method, "OPTIONS") == 0;
}

/* The client of batches, which these tests do not run. */
rose_status rose_http_connect(rose_http *h, uint32_t thread, int *fd, rose_err *err)
{
    (void)h;
    (void)thread;
    *fd = -1;
    return rose_fail(err, ROSE_E_CLOSED, "the fake server takes no connections");
}

char *rose_http_req_note(rose_http_req *r)
{
    return r->note;
}

void rose_http_req_client(const rose_http_req *r, char out[ROSE_HTTP_CLIENT])
{
    (void)r;
    memcpy(out, "127.0.0.1", 10);
}

const char *rose_http_req_body(const rose_http_req *r, size_t *len)
{
    *len = r->body_len;
    return r->body;
}

char *rose_http_req_take_body(rose_http_req *r, size_t *len)
{
    char *body = malloc(r->body_len + 1); /* may fail, as the room's */
    *len = 0;
    if (body == NULL) return NULL;
    if (r->body_len > 0) memcpy(body, r->body, r->body_len);
    body[r->body_len] = '\0';
    *len = r->body_len;
    return body;
}

void rose_http_req_set_user(rose_http_req *r, void *user)
{
    r->user = user;
}

void *rose_http_req_user(const rose_http_req *r)
{
    return r->user;
}

void rose_http_reply(rose_http_req *r, int status, const char *content_type, const char *headers,
                     const void *body, size_t len)
{
    (void)content_type;
    if (r->status != 0 || r->gone) abort(); /* replied twice, or to nobody */
    r->status = status;
    r->ended = true;
    snprintf(r->headers, sizeof r->headers, "%s", headers == NULL ? "" : headers);
    FAKE_ALLOC_BEGIN();
    if (rose_buf_add(&r->out, body, len) != ROSE_OK) abort();
    FAKE_ALLOC_END();
}

void rose_http_reply_take(rose_http_req *r, int status, const char *content_type,
                          const char *headers, rose_buf *body)
{
    rose_http_reply(r, status, content_type, headers, body->data, body->len);
    rose_buf_free(body);
}

static inline void fake_leave(rose_http_req *r)
{
    if (r->ended || r->gone) return;
    r->gone = true;
    fake_http.cb.on_gone(fake_http.cb.arg, r);
}

bool rose_http_stream_begin(rose_http_req *r, int status, const char *content_type,
                            const char *headers)
{
    (void)content_type;
    if (r->status != 0 || r->gone) abort();
    r->status = status;
    r->begun = true;
    snprintf(r->headers, sizeof r->headers, "%s", headers == NULL ? "" : headers);
    return true;
}

bool rose_http_stream_write(rose_http_req *r, const void *bytes, size_t len)
{
    if (!r->begun || r->ended || r->gone) abort();
    if ((int)r->n_writes++ == r->gone_at_write) {
        fake_leave(r);
        return false;
    }
    FAKE_ALLOC_BEGIN();
    if (rose_buf_add(&r->out, bytes, len) != ROSE_OK) abort();
    FAKE_ALLOC_END();
    return true;
}

void rose_http_stream_end(rose_http_req *r)
{
    if (!r->begun || r->ended || r->gone) abort();
    r->ended = true;
}

/* A POST (or, with a NULL body, a GET) that the server has just read. */
static inline rose_http_req *fake_request(const char *path, const char *body, size_t len)
{
    rose_http_req *r = calloc(1, sizeof *r);
    if (r == NULL) abort();
    snprintf(r->method, sizeof r->method, "%s", body == NULL ? "GET" : "POST");
    const size_t n = strcspn(path, "?");
    snprintf(r->path, sizeof r->path, "%.*s", (int)n, path);
    if (path[n] == '?') snprintf(r->query, sizeof r->query, "%s", path + n + 1);
    snprintf(r->content_type, sizeof r->content_type, "application/json");
    r->gone_at_write = -1;
    r->body = malloc(len + 1);
    if (r->body == NULL) abort();
    if (len > 0) memcpy(r->body, body, len);
    r->body_len = len;
    return r;
}

static inline void fake_arrive(rose_http_req *r)
{
    fake_http.cb.on_request(fake_http.cb.arg, r);
}

static inline const char *fake_text(rose_http_req *r)
{
    const char *s = rose_buf_str(&r->out);
    return s == NULL ? "" : s;
}

static inline void fake_free(rose_http_req *r)
{
    free(r->body);
    rose_buf_free(&r->out);
    free(r);
}

/* ---- all together ---- */

/* Tokens cycle through the bytes of fake_script. */
static const uint32_t *fake_script;
static uint32_t fake_script_len;

static inline uint32_t fake_next_script(const rose_request *r, uint32_t i)
{
    (void)r;
    return i < fake_script_len ? fake_script[i] : FAKE_EOS;
}

static inline void fake_reset(void)
{
    fake_http_stopped = false;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    memset(&fake, 0, sizeof fake);
    memset(&fake_http, 0, sizeof fake_http);
    fake.lock = lock;
    fake.capacity = 256;
    fake.max_reserved = UINT32_MAX;
    fake.retry_after_s = 1;
    fake.fail_how = ROSE_FINISH_ERROR;
    fake.max_model_len = 64;
    fake_plan.max_model_len = fake.max_model_len;
    fake_arch.vocab_size = FAKE_VOCAB;
    fake_arch.d_model = FAKE_WIDTH;
    fake.now_ns = 1000000000;
    fake.next = fake_next_script;
}

static inline rose_api *fake_start(const rose_api_opts *o)
{
    rose_err err = {0};
    rose_api *a = NULL;
    if (rose_api_create(&a, o, &err) != ROSE_OK) return NULL;
    fake_http.cb = rose_api_callbacks(a);
    if (rose_api_attach(a, &fake_http, &err) != ROSE_OK) return NULL;
    rose_api_set_engine(a, FAKE_ENGINE, &fake_tokenizer);
    return a;
}

/* What rose_engine_close does: all that is open ends. */
static inline void fake_engine_close(void)
{
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < fake.n_live; i++) {
        atomic_store(&fake.live[i]->cancelled, true);
        fake_advance(fake.live[i]);
    }
    pthread_mutex_unlock(&fake.lock);
}

static inline void fake_stop(rose_api *a)
{
    fake_http_stopped = true;
    rose_api_stop(a);
    if (fake.n_reserved != 0) abort(); /* places that nobody uses or gives back */
    fake_engine_close();
    rose_api_destroy(a);
}

/* Loop and engine run until the request has its reply. */
static inline void fake_run(rose_http_req *r)
{
    for (int i = 0; i < 100000 && !r->ended && !r->gone; i++) {
        fake_engine_step();
        fake_turn(0);
        if (i > 100) usleep(50); /* a worker has it, and perhaps no CPU */
    }
}

#endif
