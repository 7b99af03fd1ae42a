/* http/tls.c - TLS with OpenSSL 3. The program is built without OpenSSL and loads it only when the
 * user gives a certificate, so it also runs on machines that lack OpenSSL.
 *
 * With TLS, conn.c calls the read and write of this file instead of recv(2) and send(2). They also
 * fail with EAGAIN when they would block. Two things differ. OpenSSL may hold decrypted bytes while
 * the socket has none, so conn.c must ask for them (rose_http_tls_pending). A write may have to
 * wait for bytes of the client, as in the handshake. Then conn.c tries it again after a read.
 *
 * A reload makes a new context from the files, and replaces the old one only if all is well with
 * them. A connection holds a reference to the context that it began with.
 *
 * Not supported: client certificates, HTTP/2, renegotiation, and TLS 1.1 and older. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/dl.h"
#include "http/http_internal.h"

/* Values of OpenSSL's headers, which its ABI fixes. */
enum {
    FILETYPE_PEM = 1,
    CTRL_MODE = 33,
    CTRL_SET_MIN_PROTO_VERSION = 123,
    TLS1_2_VERSION = 0x0303,
    MODE_PARTIAL_WRITE = 0x1,
    MODE_MOVING_BUFFER = 0x2,
    MODE_RELEASE_BUFFERS = 0x10,
    ERROR_WANT_READ = 2,
    ERROR_WANT_WRITE = 3,
    ERROR_SYSCALL = 5,
    ERROR_ZERO_RETURN = 6,
    MAX_WRITE = 1 << 20
};
#define OP_IGNORE_UNEXPECTED_EOF    (UINT64_C(1) << 7)
#define OP_CIPHER_SERVER_PREFERENCE (UINT64_C(1) << 22)
#define OP_NO_RENEGOTIATION         (UINT64_C(1) << 30)

#define TLS_FUNCTIONS(X)                                                                           \
    X(const void *, method, "TLS_server_method", void)                                             \
    X(void *, ctx_new, "SSL_CTX_new", const void *method)                                          \
    X(void, ctx_free, "SSL_CTX_free", void *ctx)                                                   \
    X(int, use_chain, "SSL_CTX_use_certificate_chain_file", void *ctx, const char *file)           \
    X(int, use_key, "SSL_CTX_use_PrivateKey_file", void *ctx, const char *file, int type)          \
    X(int, check_key, "SSL_CTX_check_private_key", const void *ctx)                                \
    X(long, ctx_ctrl, "SSL_CTX_ctrl", void *ctx, int what, long value, void *more)                 \
    X(uint64_t, set_options, "SSL_CTX_set_options", void *ctx, uint64_t options)                   \
    X(void, set_passwd_cb, "SSL_CTX_set_default_passwd_cb", void *ctx,                             \
      int (*fn)(char *, int, int, void *))                                                         \
    X(void *, ssl_new, "SSL_new", void *ctx)                                                       \
    X(void, ssl_free, "SSL_free", void *ssl)                                                       \
    X(int, set_fd, "SSL_set_fd", void *ssl, int fd)                                                \
    X(void, accept_state, "SSL_set_accept_state", void *ssl)                                       \
    X(int, read, "SSL_read", void *ssl, void *out, int n)                                          \
    X(int, write, "SSL_write", void *ssl, const void *bytes, int n)                                \
    X(int, get_error, "SSL_get_error", const void *ssl, int rc)                                    \
    X(int, pending, "SSL_pending", const void *ssl)                                                \
    X(int, shutdown, "SSL_shutdown", void *ssl)                                                    \
    X(unsigned long, err_get, "ERR_get_error", void)                                               \
    X(void, err_text, "ERR_error_string_n", unsigned long e, char *out, size_t cap)                \
    X(void, err_clear, "ERR_clear_error", void)

struct rose_http_tls {
    void *library;
    pthread_mutex_t lock; /* of ctx: the I/O threads begin connections, the main thread reloads */
    void *ctx;            /* owned */
    TLS_FUNCTIONS(ROSE_DL_MEMBER)
};

static rose_status load(rose_http_tls *t, rose_err *err)
{
    static const char *const paths[] = {"libssl.so.3"};
#define ROW(type, member, name, ...) {name, &t->member},
    const rose_dl_function functions[] = {TLS_FUNCTIONS(ROW)};
#undef ROW
    rose_err why = {{0}};
    const rose_status st =
        rose_dl_open(&t->library, paths, 1, functions, sizeof functions / sizeof *functions, &why);
    if (st == ROSE_OK) return ROSE_OK;
    return rose_fail(err, st, "--ssl-certfile needs OpenSSL 3 (Debian: libssl3): %.300s", why.msg);
}

/* Refuses keys with a password. Without this callback OpenSSL would ask for it at the terminal. */
static int no_password(char *out, int cap, int writing, void *arg)
{
    (void)out;
    (void)cap;
    (void)writing;
    (void)arg;
    return 0;
}

static rose_status fail_file(const rose_http_tls *t, const char *option, const char *file,
                             rose_err *err)
{
    char text[256];
    t->err_text(t->err_get(), text, sizeof text);
    t->err_clear();
    return rose_fail(err, ROSE_E_FORMAT, "%s %.200s: %s; a PEM file without a password is needed",
                     option, file, text);
}

/* Makes a context of the library from the files. key NULL: it is in cert. */
static rose_status make_context(const rose_http_tls *t, void **out, const char *cert,
                                const char *key, rose_err *err)
{
    rose_status st = ROSE_OK;
    if (key == NULL) key = cert;
    t->err_clear(); /* fail_file reads the oldest error of the queue */
    void *ctx = *out = t->ctx_new(t->method());
    if (ctx == NULL) return rose_fail(err, ROSE_E_NOMEM, "OpenSSL: out of memory");
    t->set_passwd_cb(ctx, no_password);
    t->ctx_ctrl(ctx, CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL);
    t->ctx_ctrl(ctx, CTRL_MODE, MODE_PARTIAL_WRITE | MODE_MOVING_BUFFER | MODE_RELEASE_BUFFERS,
                NULL);
    t->set_options(ctx,
                   OP_IGNORE_UNEXPECTED_EOF | OP_CIPHER_SERVER_PREFERENCE | OP_NO_RENEGOTIATION);
    if (t->use_chain(ctx, cert) != 1)
        st = fail_file(t, "--ssl-certfile", cert, err);
    else if (t->use_key(ctx, key, FILETYPE_PEM) != 1 || t->check_key(ctx) != 1)
        st = fail_file(t, "--ssl-keyfile", key, err);
    if (st == ROSE_OK) return ROSE_OK;
    t->ctx_free(ctx);
    *out = NULL;
    return st;
}

rose_status rose_http_tls_open(rose_http_tls **out, const char *cert, const char *key,
                               rose_err *err)
{
    *out = NULL;
    if (cert == NULL && key != NULL)
        return rose_fail(err, ROSE_E_INVAL, "--ssl-keyfile needs --ssl-certfile");
    if (cert == NULL) return ROSE_OK;
    rose_http_tls *t = calloc(1, sizeof *t);
    if (t == NULL) return rose_fail(err, ROSE_E_NOMEM, "http: out of memory");
    pthread_mutex_init(&t->lock, NULL);
    rose_status st = load(t, err);
    if (st == ROSE_OK) st = make_context(t, &t->ctx, cert, key, err);
    if (st == ROSE_OK)
        *out = t;
    else
        rose_http_tls_close(t);
    return st;
}

rose_status rose_http_tls_reload(rose_http_tls *t, const char *cert, const char *key, rose_err *err)
{
    void *fresh, *old;
    const rose_status st = make_context(t, &fresh, cert, key, err);
    if (st != ROSE_OK) return st;
    pthread_mutex_lock(&t->lock);
    old = t->ctx;
    t->ctx = fresh;
    pthread_mutex_unlock(&t->lock);
    t->ctx_free(old); /* open connections have references of their own */
    return ROSE_OK;
}

void rose_http_tls_close(rose_http_tls *t)
{
    if (t == NULL) return;
    if (t->ctx != NULL) t->ctx_free(t->ctx);
    pthread_mutex_destroy(&t->lock);
    free(t); /* the library stays loaded: it has registered functions for the end of the program */
}

/* ---- connections ---- */

bool rose_http_tls_begin(rose_http_conn *c)
{
    rose_http_tls *t = c->io->h->tls;
    if (t == NULL) return true;
    pthread_mutex_lock(&t->lock);
    c->ssl = t->ssl_new(t->ctx); /* takes a reference to the context */
    pthread_mutex_unlock(&t->lock);
    if (c->ssl == NULL) return false;
    t->accept_state(c->ssl);
    return t->set_fd(c->ssl, c->fd) == 1;
}

/* Turns the result of an OpenSSL call into the result that recv or send would give. */
static ssize_t result_of(rose_http_conn *c, int rc, bool reads)
{
    const rose_http_tls *t = c->io->h->tls;
    const int saved = errno;
    if (rc > 0) return rc;
    const int why = t->get_error(c->ssl, rc);
    t->err_clear();
    if (why == ERROR_ZERO_RETURN) return 0;
    if (why == ERROR_WANT_READ || why == ERROR_WANT_WRITE) {
        if (reads && why == ERROR_WANT_WRITE) c->wblocked = c->tls_read_again = true;
        if (!reads && why == ERROR_WANT_WRITE) c->wblocked = true;
        errno = EAGAIN;
        return -1;
    }
    c->tls_failed = true;
    errno =
        why == ERROR_SYSCALL && saved != 0 && saved != EAGAIN && saved != EINTR ? saved : EPROTO;
    return -1;
}

ssize_t rose_http_tls_read(rose_http_conn *c, void *out, size_t cap)
{
    const rose_http_tls *t = c->io->h->tls;
    t->err_clear(); /* OpenSSL's error queue is shared by all connections of the thread */
    errno = 0;
    return result_of(c, t->read(c->ssl, out, cap < MAX_WRITE ? (int)cap : MAX_WRITE), true);
}

ssize_t rose_http_tls_write(rose_http_conn *c, const void *bytes, size_t n)
{
    const rose_http_tls *t = c->io->h->tls;
    t->err_clear();
    errno = 0;
    const ssize_t rc =
        result_of(c, t->write(c->ssl, bytes, n < MAX_WRITE ? (int)n : MAX_WRITE), false);
    if (rc != 0) return rc;
    errno = EPIPE; /* the client has ended the session */
    return -1;
}

bool rose_http_tls_pending(const rose_http_conn *c)
{
    return c->ssl != NULL && !c->tls_failed && c->io->h->tls->pending(c->ssl) > 0;
}

void rose_http_tls_say_end(rose_http_conn *c)
{
    const rose_http_tls *t = c->io->h->tls;
    if (c->ssl == NULL || c->tls_failed || c->tls_ended) return;
    t->err_clear();
    (void)t->shutdown(c->ssl); /* no second try: the client may never read again */
    t->err_clear();
    c->tls_ended = true;
}

void rose_http_tls_free(rose_http_conn *c)
{
    if (c->ssl == NULL) return;
    rose_http_tls_say_end(c);
    c->io->h->tls->ssl_free(c->ssl);
    c->ssl = NULL;
}
