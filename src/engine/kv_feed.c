/* engine/kv_feed.c - see kv_feed.h. The reader says that it sleeps before it looks into the queue
 * for the last time; the engine thread pushes before it looks whether the reader sleeps. One of
 * the two therefore sees the other, and the engine thread calls write(2) only for a sleeper. */
#include "engine/kv_feed.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/ring.h"

struct rose_kv_feed {
    rose_spsc *queue; /* owned: rose_kv_change */
    int fd;           /* eventfd */
    bool news;        /* engine thread: pushed since the last flush */
    _Atomic bool asleep;
    _Atomic uint64_t n_changes, n_dropped; /* the engine thread writes; relaxed, they are counts */
    rose_kv_change peeked;                 /* reader: taken by prepare_sleep */
    bool has_peeked;
};

rose_status rose_kv_feed_create(rose_kv_feed **out, uint32_t cap, rose_err *err)
{
    *out = NULL;
    rose_kv_feed *f = calloc(1, sizeof *f);
    if (f == NULL) return rose_fail(err, ROSE_E_NOMEM, "KV events: out of memory");
    f->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    rose_status st = ROSE_OK;
    if (f->fd < 0)
        st = rose_fail(err, ROSE_E_IO, "KV events: eventfd: %s", strerror(errno));
    else if ((st = rose_spsc_create(&f->queue, cap, sizeof(rose_kv_change))) != ROSE_OK)
        st = rose_fail(err, st, "KV events: no memory for a queue of %u changes", cap);
    if (st == ROSE_OK)
        *out = f;
    else
        rose_kv_feed_destroy(f);
    return st;
}

void rose_kv_feed_destroy(rose_kv_feed *f)
{
    if (f == NULL) return;
    rose_spsc_destroy(f->queue);
    if (f->fd >= 0) close(f->fd);
    free(f);
}

/* ---- engine thread ---- */

static void bump(_Atomic uint64_t *c)
{
    atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

static bool push(rose_kv_feed *f, const rose_kv_change *c)
{
    const bool ok = rose_spsc_push(f->queue, c) == ROSE_OK;
    bump(ok ? &f->n_changes : &f->n_dropped);
    f->news = f->news || ok;
    return ok;
}

static bool on_stored(void *arg, const rose_kv_stored *page)
{
    rose_kv_change c = {.kind = ROSE_KV_STORED,
                        .root = page->root,
                        .key = page->key,
                        .parent_key = page->parent_key,
                        .salt = page->salt};
    memcpy(c.ids, page->ids, sizeof c.ids);
    return push(arg, &c);
}

static bool on_removed(void *arg, uint64_t key)
{
    return push(arg, &(rose_kv_change){.kind = ROSE_KV_REMOVED, .key = key});
}

static bool on_cleared(void *arg)
{
    return push(arg, &(rose_kv_change){.kind = ROSE_KV_CLEARED});
}

rose_kv_watch rose_kv_feed_watch(rose_kv_feed *f)
{
    return (rose_kv_watch){on_stored, on_removed, on_cleared, f};
}

void rose_kv_feed_flush(rose_kv_feed *f)
{
    if (!f->news) return;
    f->news = false;
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in prepare_sleep */
    if (atomic_load_explicit(&f->asleep, memory_order_relaxed)) rose_kv_feed_wake(f);
}

/* ---- reader ---- */

bool rose_kv_feed_take(rose_kv_feed *f, rose_kv_change *out)
{
    if (f->has_peeked) {
        f->has_peeked = false;
        *out = f->peeked;
        return true;
    }
    return rose_spsc_pop(f->queue, out) == ROSE_OK;
}

bool rose_kv_feed_prepare_sleep(rose_kv_feed *f)
{
    atomic_store_explicit(&f->asleep, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst); /* pairs with the fence in flush */
    if (!f->has_peeked) f->has_peeked = rose_spsc_pop(f->queue, &f->peeked) == ROSE_OK;
    return !f->has_peeked;
}

void rose_kv_feed_awake(rose_kv_feed *f)
{
    uint64_t n;
    atomic_store_explicit(&f->asleep, false, memory_order_relaxed);
    while (read(f->fd, &n, sizeof n) < 0 && errno == EINTR) {
    }
}

int rose_kv_feed_fd(const rose_kv_feed *f)
{
    return f->fd;
}

void rose_kv_feed_wake(rose_kv_feed *f)
{
    const uint64_t one = 1;
    while (write(f->fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

uint64_t rose_kv_feed_n_changes(const rose_kv_feed *f)
{
    return atomic_load_explicit(&f->n_changes, memory_order_relaxed);
}

uint64_t rose_kv_feed_n_dropped(const rose_kv_feed *f)
{
    return atomic_load_explicit(&f->n_dropped, memory_order_relaxed);
}
