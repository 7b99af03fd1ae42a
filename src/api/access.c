/* api/access.c - the access log: one line of JSON for each request that ended (--access-log).
 *
 * I/O threads append lines to a buffer in memory. A separate thread writes all waiting lines with
 * one write(), so a slow disk or a full pipe delays no request. Lines that do not fit into the
 * buffer, or that the disk does not take, are lost. The server's log says so when it begins and
 * when it ends, and how many at most once a minute: a full disk must not also fill the log.
 *
 * A line never has a body, a query, a key, or a header that was not checked. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "api/doors.h"
#include "base/clock.h"
#include "base/cpuinfo.h"
#include "base/log.h"

enum {
    MAX_WAITING = 4 << 20, /* bytes of lines in memory */
    MAX_PATH = 1024,       /* bytes of a request's path in a line */
    PIPE_PIECE = 4096,     /* bytes that a pipe takes without blocking once poll() says POLLOUT */
    POLL_MS = 100,
    TELL_S = 60,   /* between two lines of the log about lost lines */
    STOP_MS = 1000 /* the longest that a full pipe may delay the end of the program */
};

struct rose_access_log {
    int fd;
    bool is_file; /* a regular file, which may be moved away */
    char *path;   /* owned; NULL: standard output */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards the members below, except `out` */
    pthread_cond_t more;
    rose_buf in;   /* lines that wait */
    uint64_t lost; /* lines that were not written and that the log has not counted */
    bool stopping;
    /* of the writing thread only */
    rose_buf out;     /* lines that are being written */
    bool failing;     /* the last write failed, and the log says so */
    bool lacks_end;   /* a failed write left a part of a line in the file */
    bool cannot_open; /* the path could not be opened again, and the log says so */
    uint64_t tell_ns; /* when lost lines may be counted in the log again */
};

/* ---- writing ---- */

static int open_path(const char *path)
{
    /* O_NONBLOCK: a FIFO without a reader is an error instead of a wait */
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0640);
}

/* Opens the path again if the file was moved away or removed, as programs that rotate logs do. */
static void follow(rose_access_log *l)
{
    struct stat now, ours;
    if (l->path == NULL || !l->is_file || fstat(l->fd, &ours) < 0) return;
    if (stat(l->path, &now) == 0 && now.st_dev == ours.st_dev && now.st_ino == ours.st_ino) return;
    const int fd = open_path(l->path);
    if (fd < 0) {
        if (!l->cannot_open)
            rose_log(ROSE_LOG_WARN, "api", "access log %s: %s; the lines go to the old file",
                     l->path, strerror(errno));
        l->cannot_open = true;
        return;
    }
    close(l->fd);
    l->fd = fd;
    l->cannot_open = l->lacks_end = false;
}

static bool is_stopping(rose_access_log *l)
{
    pthread_mutex_lock(&l->lock);
    const bool stopping = l->stopping;
    pthread_mutex_unlock(&l->lock);
    return stopping;
}

/* Waits until a pipe or terminal can take bytes. False: the program ends, and none could be
 * written for STOP_MS. */
static bool wait_for_room(rose_access_log *l)
{
    uint32_t waited = 0;
    for (;;) {
        struct pollfd p = {.fd = l->fd, .events = POLLOUT};
        if (poll(&p, 1, POLL_MS) > 0) return true;
        if (is_stopping(l) && (waited += POLL_MS) >= STOP_MS) return false;
    }
}

static uint64_t count_lines(const char *s, size_t n)
{
    uint64_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += s[i] == '\n';
    return lines;
}

/* Counts lost lines in the server's log, at most once in TELL_S seconds unless `now`. */
static void tell_lost(rose_access_log *l, bool now)
{
    uint64_t lost = 0;
    const uint64_t t = rose_now_ns();
    pthread_mutex_lock(&l->lock);
    if (now || t >= l->tell_ns) {
        lost = l->lost;
        l->lost = 0;
    }
    pthread_mutex_unlock(&l->lock);
    if (lost == 0) return;
    l->tell_ns = t + TELL_S * UINT64_C(1000000000);
    rose_log(ROSE_LOG_WARN, "api", "access log: %" PRIu64 " line%s lost", lost,
             lost == 1 ? " was" : "s were");
}

/* The write failed: say so once, until a write succeeds. */
static void begin_failing(rose_access_log *l, int why)
{
    if (!l->failing)
        rose_log(ROSE_LOG_WARN, "api",
                 "access log: %s; lines are lost until it can be written again, and this is said "
                 "once",
                 strerror(why));
    l->failing = true;
}

static void end_failing(rose_access_log *l)
{
    if (!l->failing) return;
    l->failing = false;
    rose_log(ROSE_LOG_INFO, "api", "access log: it is written again");
    tell_lost(l, true);
}

/* Ends the line of which an earlier write wrote only a part. */
static void end_line(rose_access_log *l)
{
    if (l->lacks_end && l->is_file && write(l->fd, "\n", 1) == 1) l->lacks_end = false;
}

/* Writes `out`. Returns how many lines were lost. */
static uint64_t write_out(rose_access_log *l)
{
    const char *data = l->out.data;
    size_t at = 0;
    end_line(l);
    while (at < l->out.len) {
        size_t n = l->out.len - at;
        if (!l->is_file) {
            if (!wait_for_room(l)) break;
            if (n > PIPE_PIECE) n = PIPE_PIECE;
        }
        const ssize_t wrote = write(l->fd, data + at, n);
        if (wrote > 0) at += (size_t)wrote;
        if (wrote < 0 && errno != EINTR && errno != EAGAIN) {
            begin_failing(l, errno);
            break;
        }
    }
    if (at == l->out.len)
        end_failing(l);
    else
        l->lacks_end = l->lacks_end || (at > 0 && data[at - 1] != '\n');
    return count_lines(data + at, l->out.len - at);
}

static void *write_main(void *arg)
{
    rose_access_log *l = arg;
    rose_thread_setup("rose-access", -1);
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (l->in.len == 0 && !l->stopping)
            pthread_cond_wait(&l->more, &l->lock);
        if (l->in.len == 0) break;
        const rose_buf lines = l->in;
        l->in = l->out;
        l->in.len = 0;
        l->out = lines;
        pthread_mutex_unlock(&l->lock);
        tell_lost(l, false);
        follow(l);
        const uint64_t failed = write_out(l);
        pthread_mutex_lock(&l->lock);
        l->lost += failed;
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void append(rose_access_log *l, const char *line, size_t len)
{
    pthread_mutex_lock(&l->lock);
    const bool fits = l->in.len + len <= MAX_WAITING;
    if (!fits || rose_buf_add(&l->in, line, len) != ROSE_OK) l->lost++;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
}

rose_status rose_access_log_open(rose_access_log **out, const char *path, rose_err *err)
{
    struct stat s;
    rose_status st = ROSE_OK;
    rose_access_log *l = calloc(1, sizeof *l);
    const bool to_stdout = strcmp(path, "-") == 0;
    *out = NULL;
    if (l == NULL) return rose_fail(err, ROSE_E_NOMEM, "access log: out of memory");
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->more, NULL);
    l->fd = to_stdout ? STDOUT_FILENO : open_path(path);
    if (l->fd < 0 || fstat(l->fd, &s) < 0) {
        st = rose_fail(err, ROSE_E_IO, "--access-log %s: %s", path, strerror(errno));
        goto done;
    }
    l->is_file = S_ISREG(s.st_mode);
    if (!to_stdout && (l->path = strdup(path)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "access log: out of memory");
        goto done;
    }
    const int rc = pthread_create(&l->thread, NULL, write_main, l);
    if (rc != 0) {
        st = rose_fail(err, ROSE_E_IO, "cannot start a thread: %s", strerror(rc));
        goto done;
    }
    l->started = true;
    *out = l;
done:
    if (st != ROSE_OK) rose_access_log_close(l);
    return st;
}

void rose_access_log_close(rose_access_log *l)
{
    if (l == NULL) return;
    if (l->started) {
        pthread_mutex_lock(&l->lock);
        l->stopping = true;
        pthread_cond_signal(&l->more);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    tell_lost(l, true);
    if (l->fd > STDERR_FILENO) close(l->fd);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->more);
    rose_buf_free(&l->in);
    rose_buf_free(&l->out);
    free(l->path);
    free(l);
}

/* ---- traceparent ---- */

static bool is_hex(const char *s, size_t n)
{
    return strspn(s, "0123456789abcdef") >= n;
}

static bool is_zero(const char *s, size_t n)
{
    return strspn(s, "0") >= n;
}

bool rose_api_trace_read(rose_api_trace *out, const char *value)
{
    enum { TRACE = 3, PARENT = 36, FLAGS = 53, LENGTH = 55 };
    const size_t len = strlen(value);
    *out = (rose_api_trace){.trace_id = ""};
    if (len < LENGTH || value[2] != '-' || value[PARENT - 1] != '-' || value[FLAGS - 1] != '-')
        return false;
    if (!is_hex(value, 2) || !is_hex(value + TRACE, 32) || !is_hex(value + PARENT, 16) ||
        !is_hex(value + FLAGS, 2))
        return false;
    if (memcmp(value, "ff", 2) == 0 || is_zero(value + TRACE, 32) || is_zero(value + PARENT, 16))
        return false;
    /* A value of version 00 has exactly this length; later versions may add fields after a dash. */
    if (len > LENGTH && (memcmp(value, "00", 2) == 0 || value[LENGTH] != '-')) return false;
    memcpy(out->trace_id, value + TRACE, 32);
    memcpy(out->parent_id, value + PARENT, 16);
    return true;
}

/* ---- a line ---- */

static void put_time(rose_api_out *o)
{
    char text[32];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    rose_api_putf(o, "{\"time\":\"%s.%03ldZ\"", text, ts.tv_nsec / 1000000);
}

/* Writes the time between two moments in ms. Writes nothing if one of them never came. */
static void put_ms(rose_api_out *o, const char *name, uint64_t from, uint64_t t)
{
    if (t != 0 && from != 0 && t >= from)
        rose_api_json(o, ",'%s':%.3f", name, (double)(t - from) * 1e-6);
}

static void put_headers(rose_api_out *o, const rose_http_req *r)
{
    const char *label = rose_http_req_header(r, "X-Request-Id");
    const char *parent = rose_http_req_header(r, "traceparent");
    rose_api_trace t;
    if (label != NULL && rose_api_label_is_sound(label))
        rose_api_json(o, ",'x_request_id':%-s", label);
    if (parent != NULL && rose_http_req_header_count(r, "traceparent") == 1 &&
        rose_api_trace_read(&t, parent))
        rose_api_json(o, ",'trace_id':'%s','parent_id':'%s'", t.trace_id, t.parent_id);
}

void rose_api_on_done(void *arg, rose_http_req *r, const rose_http_done *d)
{
    rose_api *a = arg;
    const uint64_t arrival = rose_http_req_info(r)->arrival_ns;
    char client[ROSE_HTTP_CLIENT];
    rose_api_out o = {0};
    put_time(&o);
    rose_http_req_client(r, client);
    rose_api_json(&o, ",'client':'%s'", client);
    if (d->readable) {
        const char *path = rose_http_req_info(r)->path;
        rose_api_json(&o, ",'method':%-s,'path':%-.*s", rose_http_req_info(r)->method,
                      (int)strnlen(path, MAX_PATH), path);
    }
    if (d->status != 0) rose_api_json(&o, ",'status':%d", d->status);
    if (d->gone) rose_api_json(&o, ",'client_left':true");
    rose_api_json(&o, ",'bytes_in':%" PRIu64 ",'bytes_out':%" PRIu64, d->bytes_in, d->bytes_out);
    put_ms(&o, "receive_ms", arrival, rose_http_req_info(r)->complete_ns);
    put_ms(&o, "first_byte_ms", arrival, d->first_ns);
    put_ms(&o, "duration_ms", arrival, d->end_ns);
    if (d->readable) put_headers(&o, r);
    if (rose_http_req_note(r)[0] != '\0') {
        rose_api_json(&o, ",'model':%-s%s", a->o.model_id, rose_http_req_note(r));
    }
    rose_api_puts(&o, "}\n");
    if (o.oom)
        append(a->o.access, "", 0);
    else
        append(a->o.access, o.b.data, o.b.len);
    rose_api_out_free(&o);
}

void rose_api_note_job(const rose_api_job *j)
{
    uint64_t n = 0;
    if (j->api->o.access == NULL || j->id[0] == '\0') return;
    for (uint32_t i = 0; i < j->n_choices; i++)
        n += j->choices[i].n_tokens;
    snprintf(rose_http_req_note(j->r), ROSE_HTTP_NOTE,
             ",\"id\":\"%s\",\"prompt_tokens\":%u,\"completion_tokens\":%" PRIu64, j->id,
             j->n_prompt_tokens, n);
}
