/* engine/kv_feed.h - carries the changes of the prefix index from the engine thread to one other
 * thread, which tells routers: a bounded queue and an eventfd. The engine thread never waits and
 * never allocates for it. When the queue is full the change is dropped and counted. The index
 * notices that and, once there is room, sends CLEARED and all of its pages again. */
#ifndef ROSE_ENGINE_KV_FEED_H
#define ROSE_ENGINE_KV_FEED_H

#include "backend/backend.h"
#include "kv/prefix.h"

typedef struct rose_kv_feed rose_kv_feed;

typedef enum rose_kv_change_kind {
    ROSE_KV_STORED,
    ROSE_KV_REMOVED, /* only key is set */
    ROSE_KV_CLEARED  /* changes were lost; forget all pages */
} rose_kv_change_kind;

typedef struct rose_kv_change {
    rose_kv_change_kind kind;
    bool root;
    uint64_t key, parent_key; /* as in rose_kv_stored */
    rose_kv_salt salt;
    uint32_t ids[ROSE_KV_PAGE_TOKENS];
} rose_kv_change;

/* cap: changes that the queue holds, rounded up to a power of two, 2 .. 2^24; 112 bytes each.
 * Errors: INVAL (cap), NOMEM, IO. */
rose_status rose_kv_feed_create(rose_kv_feed **out, uint32_t cap, rose_err *err);
void rose_kv_feed_destroy(rose_kv_feed *f); /* accepts NULL; both threads have ended */

/* Engine thread. */
rose_kv_watch rose_kv_feed_watch(rose_kv_feed *f);
void rose_kv_feed_flush(rose_kv_feed *f); /* wakes the reader if it sleeps and there is news */

/* Reader: takes the oldest change; false: there is none. */
bool rose_kv_feed_take(rose_kv_feed *f, rose_kv_change *out);

/* Reader: call before a sleep in poll(2) on the descriptor. False: do not sleep, there is news.
 * After the sleep call _awake. */
bool rose_kv_feed_prepare_sleep(rose_kv_feed *f);
void rose_kv_feed_awake(rose_kv_feed *f);
int rose_kv_feed_fd(const rose_kv_feed *f);
void rose_kv_feed_wake(rose_kv_feed *f); /* any thread: ends the reader's sleep */

/* Any thread: changes that entered the queue, and those that found it full. A change that is sent
 * again after that counts again. */
uint64_t rose_kv_feed_n_changes(const rose_kv_feed *f);
uint64_t rose_kv_feed_n_dropped(const rose_kv_feed *f);

#endif
