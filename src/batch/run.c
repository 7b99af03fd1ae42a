/* batch/run.c - see batch.h: the client of a batch. One thread, one loop of poll(2), a slot for
 * each request in flight. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/siphash.h"
#include "base/utf8.h"
#include "batch/batch.h"

enum { TICK_MS = 100, READ_BYTES = 64 << 10, FIRST_PAUSE_MS = 50, LAST_PAUSE_MS = 5000 };
/* MAX_LOST: of connections, for one request. MAX_TRIES: about an hour of refusals, after which the
 * refusal is the result. A slot keeps buffers up to KEEP_BYTES. */
enum { MAX_LOST = 30, MAX_TRIES = 720, KEEP_BYTES = 256 << 10, ID_CAP = 40 };

/* A request that is being made. */
typedef struct slot {
    int fd;             /* -1: it waits until `again_ns` to be sent again */
    uint32_t entry;     /* of the input */
    rose_buf id;        /* custom_id; owned, as the others */
    rose_buf send, got; /* the request; the bytes of the reply */
    size_t sent;        /* of `send` */
    size_t head, body;  /* bytes of the reply's head, 0 = not yet read, and of its body */
    int status;         /* of the reply */
    bool busy;          /* the slot has a request */
    uint32_t tries;     /* that failed */
    uint32_t lost;      /* of them: the connection ended before the reply */
    uint64_t again_ns;
    char label[ID_CAP]; /* id of the result, and X-Request-Id */
} slot;

typedef struct run {
    const rose_batch_run_opts *o;
    rose_batch_counts *c;
    rose_err *err;
    slot *slots;          /* owned [n_slots] */
    struct pollfd *polls; /* owned [n_slots]; fd -1 is passed over by poll */
    uint32_t n_slots;
    uint32_t next; /* of the input: entries before it are sent or done */
    uint32_t next_thread;
    uint64_t labels; /* state of the labels' generator */
    rose_batch_request q;
    rose_buf line; /* scratch: a result */
} run;

static rose_status out_of_memory(run *r)
{
    return rose_fail(r->err, ROSE_E_NOMEM, "batch: out of memory");
}

/* ---- results ---- */

static void next_label(run *r, char out[ID_CAP])
{
    r->labels += 0x9E3779B97F4A7C15u; /* so no label comes twice */
    snprintf(out, ID_CAP, "batch_req_%016llx", (unsigned long long)rose_mix64(r->labels));
}

/* Notes the error that r->line holds, so that somebody whose requests all fail sees why. */
static void note_error(run *r)
{
    rose_json *line = rose_json_loadb(r->line.data, r->line.len, 0, NULL);
    const rose_json *error = rose_json_get(line, "error"), *id = rose_json_get(line, "custom_id");
    if (!rose_json_is_object(error))
        error = rose_json_get(rose_json_get(rose_json_get(line, "response"), "body"), "error");
    const rose_json *msg = rose_json_get(error, "message");
    if (rose_json_is_string(msg) && rose_json_is_string(id))
        snprintf(r->c->why, sizeof r->c->why, "%.*s: %s",
                 (int)rose_utf8_valid_prefix(rose_json_text(id), strnlen(rose_json_text(id), 60)),
                 rose_json_text(id), rose_json_text(msg));
    r->c->why[rose_utf8_valid_prefix(r->c->why, strlen(r->c->why))] = '\0';
    /* No escape sequence reaches a terminal: neither of ASCII nor U+0080 to U+009F. */
    for (unsigned char *p = (unsigned char *)r->c->why; *p != '\0'; p++) {
        const bool two = *p == 0xc2 && p[1] < 0xa0;
        if (two) *p++ = '?';
        if (two || *p < 0x20 || *p == 0x7f) *p = '?';
    }
    rose_json_decref(line);
}

/* Writes r->line, the result of an entry. */
static rose_status write_result(run *r, uint32_t entry, bool failed)
{
    rose_batch_output *o = failed ? r->o->errors : r->o->out;
    const rose_status st = rose_batch_output_write(o, &r->line, r->err);
    if (st != ROSE_OK) return st;
    r->o->in->v[entry].done = true;
    r->o->in->n_done++;
    r->c->done++;
    if (failed) {
        r->o->in->n_failed++;
        r->c->failed++;
        if (r->c->why[0] == '\0') note_error(r);
    }
    return ROSE_OK;
}

static rose_status write_error(run *r, uint32_t entry, const char *label, const rose_buf *id,
                               const char *code, const char *why)
{
    if (rose_batch_put_error(&r->line, label, id, code, why) != ROSE_OK) return out_of_memory(r);
    return write_result(r, entry, true);
}

/* Adds the token counts of `usage`, as any of the endpoints names them. */
static rose_status add_usage(run *r, rose_json_scan *s, rose_buf *scratch)
{
    rose_status st = ROSE_OK;
    if (rose_json_scan_peek(s) != '{') return rose_json_scan_skip(s);
    for (rose_json_member m = {0}; rose_json_scan_member(s, scratch, &m, &st);) {
        int64_t count = -1;
        const bool in =
            rose_json_member_is(&m, "prompt_tokens") || rose_json_member_is(&m, "input_tokens");
        const bool out = rose_json_member_is(&m, "completion_tokens") ||
                         rose_json_member_is(&m, "output_tokens");
        st = in || out ? rose_json_scan_id(s, UINT32_MAX, &count) : rose_json_scan_skip(s);
        if (count > 0 && in) r->c->prompt_tokens += (uint64_t)count;
        if (count > 0 && out) r->c->output_tokens += (uint64_t)count;
    }
    return st;
}

static void count_tokens(run *r, const char *body, size_t len)
{
    rose_json_scan s = {.begin = body, .p = body, .end = body + len, .path = "reply"};
    rose_buf scratch = {0};
    rose_status st = ROSE_OK;
    for (rose_json_member m = {0}; rose_json_scan_member(&s, &scratch, &m, &st);)
        st =
            rose_json_member_is(&m, "usage") ? add_usage(r, &s, &scratch) : rose_json_scan_skip(&s);
    rose_buf_free(&scratch);
}

/* ---- slots ---- */

static void hang_up(slot *s)
{
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    s->sent = s->head = s->body = 0;
    s->got.len = 0;
}

static void free_slot(run *r, slot *s)
{
    hang_up(s);
    s->busy = false;
    s->tries = s->lost = 0;
    r->c->in_flight--;
    if (s->got.cap > KEEP_BYTES) rose_buf_free(&s->got);
    if (s->send.cap > KEEP_BYTES) rose_buf_free(&s->send);
}

/* The server could not take the request: it is sent again after a pause. */
static void retry_later(slot *s)
{
    uint64_t ms = FIRST_PAUSE_MS;
    for (uint32_t i = 0; i < s->tries && ms < LAST_PAUSE_MS; i++)
        ms *= 2;
    hang_up(s);
    s->tries++;
    s->again_ns = rose_now_ns() + ms * 1000000u;
}

static void connect_slot(run *r, slot *s)
{
    const uint32_t thread = r->next_thread++ % r->o->n_threads;
    if (rose_http_connect(r->o->http, thread, &s->fd, NULL) != ROSE_OK) retry_later(s);
}

static rose_status start(run *r, slot *s, uint32_t entry)
{
    rose_batch_request *q = &r->q;
    next_label(r, s->label);
    s->send.len = s->id.len = 0;
    rose_status st = rose_buf_addf(&s->send,
                                   "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                                   "Content-Type: application/json\r\nX-Request-Id: %s\r\n"
                                   "Content-Length: %zu\r\n\r\n",
                                   q->path, s->label, q->body_len);
    if (st == ROSE_OK) st = rose_buf_add(&s->send, q->body, q->body_len);
    if (st == ROSE_OK) st = rose_buf_add(&s->id, q->id.data, q->id.len);
    if (st != ROSE_OK) return out_of_memory(r);
    s->entry = entry;
    s->busy = true;
    r->c->in_flight++;
    connect_slot(r, s);
    return ROSE_OK;
}

/* Grows to n slots. */
static rose_status make_slots(run *r, uint32_t n)
{
    if (n <= r->n_slots) return ROSE_OK;
    slot *slots = realloc(r->slots, n * sizeof *slots);
    if (slots == NULL) return out_of_memory(r);
    r->slots = slots;
    struct pollfd *polls = realloc(r->polls, n * sizeof *polls);
    if (polls == NULL) return out_of_memory(r);
    r->polls = polls;
    for (; r->n_slots < n; r->n_slots++)
        slots[r->n_slots] = (slot){.fd = -1};
    return ROSE_OK;
}

/* Sends requests until the window is full. */
static rose_status fill(run *r)
{
    rose_batch_input *in = r->o->in;
    const uint32_t window = r->o->window(r->o->arg);
    rose_status st = make_slots(r, window);
    for (uint32_t i = 0; st == ROSE_OK && r->c->in_flight < window && r->next < in->n;) {
        const uint32_t entry = r->next;
        if (in->v[entry].done) {
            r->next++;
            continue;
        }
        while (r->slots[i].busy)
            i++;
        st = rose_batch_input_read(in, entry, &r->q, r->err);
        if (st != ROSE_OK) break;
        r->next++;
        if (r->q.code == NULL) {
            st = start(r, &r->slots[i], entry);
            continue;
        }
        char label[ID_CAP];
        next_label(r, label);
        st = write_error(r, entry, label, &r->q.id, r->q.code, r->q.why);
    }
    return st;
}

/* ---- replies ---- */

/* Reads the head, once it is complete. False: it is none. */
static bool read_head(slot *s)
{
    const char *end = memmem(s->got.data, s->got.len, "\r\n\r\n", 4);
    if (end == NULL) return true;
    s->head = (size_t)(end - s->got.data) + 4;
    const char *length = NULL;
    for (const char *p = s->got.data; p < end; p++) {
        static const char name[] = "\r\nContent-Length:";
        if (strncasecmp(p, name, sizeof name - 1) == 0) length = p + sizeof name - 1;
    }
    if (s->got.len < 12 || memcmp(s->got.data, "HTTP/1.1 ", 9) != 0 || length == NULL) return false;
    s->status = atoi(s->got.data + 9);
    s->body = strtoull(length, NULL, 10);
    return true;
}

static rose_status give_up(run *r, slot *s, const char *why)
{
    const rose_status st = write_error(r, s->entry, s->label, &s->id, "server_error", why);
    free_slot(r, s);
    return st;
}

/* The reply is complete. */
static rose_status take_reply(run *r, slot *s)
{
    const char *body = s->got.data + s->head;
    rose_status st;
    if ((s->status == 429 || s->status == 503) && s->tries < MAX_TRIES) {
        retry_later(s);
        return ROSE_OK;
    }
    if (s->status >= 500 && r->o->ask(r->o->arg, r->c) == ROSE_BATCH_STOP) return ROSE_OK;
    if (s->body == 0 || body[0] != '{')
        return give_up(r, s, "the server's reply is no JSON object");
    if (rose_batch_put_response(&r->line, s->label, &s->id, s->status, body, s->body) != ROSE_OK)
        return out_of_memory(r);
    if ((st = write_result(r, s->entry, s->status != 200)) != ROSE_OK) return st;
    if (s->status == 200) count_tokens(r, body, s->body);
    free_slot(r, s);
    return ROSE_OK;
}

static void send_some(slot *s)
{
    while (s->sent < s->send.len) {
        const ssize_t n = send(s->fd, s->send.data + s->sent, s->send.len - s->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0) { /* the server has refused the rest; its reply says why */
            s->sent = s->send.len;
            return;
        }
        s->sent += (size_t)n;
    }
}

/* Reads what has come. A connection that ends before its reply is made again: the server dropped it
 * because it had too many. */
static rose_status receive(run *r, slot *s)
{
    for (;;) {
        if (rose_buf_reserve(&s->got, READ_BYTES + 1) != ROSE_OK) return out_of_memory(r);
        const ssize_t n = recv(s->fd, s->got.data + s->got.len, READ_BYTES, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return ROSE_OK;
        if (n <= 0 && s->lost >= MAX_LOST)
            return give_up(r, s, "the connection ended again and again before the reply");
        if (n <= 0) {
            s->lost++;
            retry_later(s);
            return ROSE_OK;
        }
        s->got.len += (size_t)n;
        s->got.data[s->got.len] = '\0';
        if (s->head == 0 && !read_head(s)) return give_up(r, s, "the server's reply has no length");
        if (s->head > 0 && s->got.len - s->head >= s->body) return take_reply(r, s);
    }
}

/* Waits for the next event and handles all that are there. */
static rose_status wait_and_handle(run *r)
{
    uint64_t now = rose_now_ns();
    int wait_ms = TICK_MS;
    for (uint32_t i = 0; i < r->n_slots; i++) {
        slot *s = &r->slots[i];
        r->polls[i] = (struct pollfd){.fd = s->busy ? s->fd : -1, .events = POLLIN};
        if (s->busy && s->fd >= 0 && s->sent < s->send.len) r->polls[i].events |= POLLOUT;
        if (s->busy && s->fd < 0 && s->again_ns <= now) wait_ms = 0;
    }
    if (poll(r->polls, r->n_slots, wait_ms) < 0 && errno != EINTR)
        return rose_fail(r->err, ROSE_E_IO, "poll: %s", strerror(errno));
    now = rose_now_ns();
    for (uint32_t i = 0; i < r->n_slots; i++) {
        slot *s = &r->slots[i];
        rose_status st = ROSE_OK;
        if (s->busy && s->fd < 0 && s->again_ns <= now) connect_slot(r, s);
        if (r->polls[i].fd < 0 || !s->busy || r->polls[i].fd != s->fd) continue;
        if ((r->polls[i].revents & POLLOUT) != 0) send_some(s);
        if ((r->polls[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) st = receive(r, s);
        if (st != ROSE_OK) return st;
    }
    return ROSE_OK;
}

/* ---- the run ---- */

static rose_status sync_both(run *r, bool at_once)
{
    rose_status st = rose_batch_output_sync(r->o->out, at_once, r->err);
    if (st == ROSE_OK && r->o->errors != r->o->out)
        st = rose_batch_output_sync(r->o->errors, at_once, r->err);
    return st;
}

static rose_status loop(run *r)
{
    for (;;) {
        const rose_batch_order order = r->o->ask(r->o->arg, r->c);
        rose_status st = ROSE_OK;
        if (order == ROSE_BATCH_STOP) return ROSE_OK;
        if (order == ROSE_BATCH_GO) st = fill(r);
        if (st == ROSE_OK && r->c->in_flight == 0 &&
            (order != ROSE_BATCH_GO || r->next == r->o->in->n))
            return ROSE_OK;
        if (st == ROSE_OK) st = wait_and_handle(r);
        if (st == ROSE_OK) st = sync_both(r, false);
        if (st != ROSE_OK) return st;
    }
}

rose_status rose_batch_run(const rose_batch_run_opts *o, rose_batch_counts *c, rose_err *err)
{
    run r = {.o = o, .c = c, .err = err};
    *c = (rose_batch_counts){.total = o->in->n, .done = o->in->n_done, .failed = o->in->n_failed};
    rose_status st = ROSE_OK;
    if (getrandom(&r.labels, sizeof r.labels, 0) != (ssize_t)sizeof r.labels)
        r.labels = rose_now_ns();
    st = loop(&r);
    if (st == ROSE_OK) st = sync_both(&r, true);
    for (uint32_t i = 0; i < r.n_slots; i++) {
        hang_up(&r.slots[i]);
        rose_buf_free(&r.slots[i].id);
        rose_buf_free(&r.slots[i].send);
        rose_buf_free(&r.slots[i].got);
    }
    c->in_flight = 0;
    free(r.slots);
    free(r.polls);
    rose_batch_request_free(&r.q);
    rose_buf_free(&r.line);
    return st;
}

rose_status rose_batch_fail_rest(rose_batch_input *in, rose_batch_output *errors, const char *code,
                                 const char *message, rose_err *err)
{
    rose_batch_counts c = {0};
    const rose_batch_run_opts o = {.in = in, .out = errors, .errors = errors};
    run r = {.o = &o, .c = &c, .err = err, .labels = rose_now_ns()};
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < in->n && st == ROSE_OK; i++) {
        char label[ID_CAP];
        if (in->v[i].done) continue;
        st = rose_batch_input_read(in, i, &r.q, err);
        next_label(&r, label);
        if (st == ROSE_OK) st = write_error(&r, i, label, &r.q.id, code, message);
    }
    rose_batch_request_free(&r.q);
    rose_buf_free(&r.line);
    return st;
}
