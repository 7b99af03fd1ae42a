/* grammar/cache.c - see cache.h. Entries form one list from the most to the least recently used.
 * A text that is being compiled has an entry that is not done, on which other threads wait: so a
 * text is compiled once. A done entry has a grammar or an error. The bytes of a grammar grow while
 * it is used, so they are measured again at each use and when room is made. Few entries fit (a
 * grammar takes about 100 KiB), so a list is searched, by hash first. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/siphash.h"
#include "grammar/cache.h"

typedef struct entry {
    TAILQ_ENTRY(entry) link;
    uint64_t hash;
    rose_grammar_kind kind;
    bool schema_order;
    rose_grammar *g;  /* owned; NULL while it is compiled, and with an error */
    unsigned waiting; /* threads that wait until it is done */
    bool done;
    bool dropped;   /* out of the list; the last waiting thread frees it */
    rose_status st; /* EMPTY: only the thread that compiled it must know why it failed */
    rose_err err;
    size_t len, bytes;
    char text[];
} entry;

struct rose_grammar_cache {
    pthread_mutex_t lock;
    pthread_cond_t done;
    rose_vocab_trie *vocab;
    rose_grammar_opts opts;
    size_t max_bytes, bytes;
    TAILQ_HEAD(entries, entry) entries; /* the most recently used one first */
    unsigned n_errors;                  /* entries of texts that were refused */
    rose_grammar_cache_stats stats;
};

enum { MAX_ERRORS = 64 };

rose_status rose_grammar_cache_create(rose_grammar_cache **out, rose_vocab_trie *v,
                                      const rose_grammar_opts *opts, size_t max_bytes,
                                      rose_err *err)
{
    rose_grammar_cache *c = calloc(1, sizeof *c);
    *out = c;
    if (c == NULL) return rose_fail(err, ROSE_E_NOMEM, "grammar cache: out of memory");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->done, NULL);
    rose_vocab_trie_ref(v);
    c->vocab = v;
    TAILQ_INIT(&c->entries);
    if (opts != NULL) c->opts = *opts;
    c->max_bytes = max_bytes;
    return ROSE_OK;
}

static void unlink_entry(rose_grammar_cache *c, entry *e)
{
    TAILQ_REMOVE(&c->entries, e, link);
    c->bytes -= e->bytes;
    c->n_errors -= e->done && e->g == NULL;
}

static void push_first(rose_grammar_cache *c, entry *e)
{
    TAILQ_INSERT_HEAD(&c->entries, e, link);
    c->bytes += e->bytes;
}

static void measure(rose_grammar_cache *c, entry *e)
{
    size_t now = sizeof *e + e->len + (e->g != NULL ? rose_grammar_bytes(e->g) : 0);
    c->bytes = c->bytes - e->bytes + now;
    e->bytes = now;
}

static void free_entry(entry *e)
{
    rose_grammar_unref(e->g);
    free(e);
}

static void drop(rose_grammar_cache *c, entry *e)
{
    unlink_entry(c, e);
    c->stats.evicted += e->g != NULL;
    free_entry(e);
}

/* Drops the least recently used grammars until the rest fits. */
static void make_room(rose_grammar_cache *c)
{
    entry *e, *before, *next;
    TAILQ_FOREACH(e, &c->entries, link)
    measure(c, e);
    for (e = TAILQ_FIRST(&c->entries); e != NULL; e = next) {
        next = TAILQ_NEXT(e, link); /* an entry larger than the bound would push out all others */
        if (e->done && e->waiting == 0 && e->bytes > c->max_bytes) drop(c, e);
    }
    for (e = TAILQ_LAST(&c->entries, entries);
         e != NULL && (c->bytes > c->max_bytes || c->n_errors > MAX_ERRORS); e = before) {
        before = TAILQ_PREV(e, entries, link);
        /* An entry that is not done, or has waiting threads, is in use by another thread. */
        const bool idle = e->done && e->waiting == 0;
        if (idle && (c->bytes > c->max_bytes || e->g == NULL)) drop(c, e);
    }
}

/* Most bytes of the grammars of running and waiting requests, beside those that the cache may
 * keep. */
#define MAX_USED_BYTES ((size_t)2 << 30)

rose_status rose_grammar_cache_open(rose_grammar_cache **out, const rose_tokenizer *t,
                                    uint32_t n_ids, const uint32_t *eos, size_t n_eos,
                                    size_t max_bytes, rose_err *err)
{
    const rose_grammar_opts opts = {.closed = true, .max_live_bytes = max_bytes + MAX_USED_BYTES};
    rose_vocab_trie *v = NULL;
    *out = NULL;
    if (n_eos == 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "structured output needs a model with an end-of-sequence token");
    rose_status st = rose_vocab_trie_open(&v, t, n_ids, eos, n_eos, err);
    if (st == ROSE_OK) st = rose_grammar_cache_create(out, v, &opts, max_bytes, err);
    rose_vocab_trie_unref(v); /* the cache has a reference of its own */
    return st;
}

void rose_grammar_cache_destroy(rose_grammar_cache *c)
{
    if (c == NULL) return;
    for (entry *e; (e = TAILQ_FIRST(&c->entries)) != NULL; free_entry(e))
        TAILQ_REMOVE(&c->entries, e, link);
    rose_vocab_trie_unref(c->vocab);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static entry *find(const rose_grammar_cache *c, uint64_t hash, rose_grammar_kind kind, bool order,
                   const char *text, size_t len)
{
    entry *e;
    TAILQ_FOREACH(e, &c->entries, link)
    if (e->hash == hash && e->kind == kind && e->schema_order == order && e->len == len &&
        (len == 0 || memcmp(e->text, text, len) == 0))
        return e;
    return NULL;
}

/* With the lock: waits until e is compiled, takes a reference or the error. EMPTY: try again. */
static rose_status use(rose_grammar_cache *c, entry *e, rose_grammar **out, rose_err *err)
{
    e->waiting++;
    while (!e->done)
        pthread_cond_wait(&c->done, &c->lock);
    e->waiting--;
    const rose_status st = e->st;
    c->stats.hits += st != ROSE_E_EMPTY;
    if (st != ROSE_OK && err != NULL) *err = e->err;
    if (st == ROSE_OK) {
        rose_grammar_ref(e->g);
        *out = e->g;
    }
    if (e->dropped) {
        if (e->waiting == 0) free(e);
        return st;
    }
    if (e->waiting == 0 && e != TAILQ_FIRST(&c->entries)) {
        unlink_entry(c, e);
        push_first(c, e);
    }
    make_room(c);
    return st;
}

/* What the bounds of one thread cause is no concern of others; nor is a lack of memory. */
static bool is_lasting(rose_status st, const rose_grammar_opts *own)
{
    const bool bounded =
        own != NULL && own->max_work > 0 && own->work != NULL && *own->work > own->max_work;
    return st == ROSE_E_INVAL || (st == ROSE_E_UNSUPPORTED && !bounded);
}

/* With the lock, which is released while compiling. */
static rose_status compile(rose_grammar_cache *c, entry *e, const rose_grammar_opts *own,
                           rose_grammar **out, rose_err *err)
{
    rose_grammar_opts opts = c->opts;
    uint64_t work = 0;
    opts.schema_order = e->schema_order;
    opts.work = &work;
    if (own != NULL) {
        if (own->max_work > 0) opts.max_work = own->max_work;
        if (own->work != NULL) opts.work = own->work;
        opts.stop = own->stop;
        opts.stop_arg = own->stop_arg;
    }
    c->stats.misses++;
    push_first(c, e);
    pthread_mutex_unlock(&c->lock);
    const rose_status st =
        rose_grammar_compile(out, e->kind, e->text, e->len, c->vocab, &opts, &e->err);
    pthread_mutex_lock(&c->lock);
    e->g = *out;
    if (st == ROSE_OK) rose_grammar_ref(e->g); /* the caller's */
    if (st != ROSE_OK && err != NULL) *err = e->err;
    e->st = st;
    if (st != ROSE_OK && !is_lasting(st, own)) {
        unlink_entry(c, e);
        e->dropped = true;
        if (st == ROSE_E_CLOSED || st == ROSE_E_UNSUPPORTED) e->st = ROSE_E_EMPTY;
    }
    e->done = true;
    pthread_cond_broadcast(&c->done);
    if (e->dropped) {
        if (e->waiting == 0) free(e);
        return st;
    }
    c->n_errors += st != ROSE_OK;
    make_room(c);
    return st;
}

/* A fixed key: texts of requests can at worst share a hash, and then they are compared. */
static uint64_t hash_of(const char *text, size_t len)
{
    static const uint64_t key[2] = {0x726f73656772616d, 0x6d61726361636865};
    return rose_siphash_bytes(key, text, len);
}

uint64_t rose_grammar_cache_key(rose_grammar_kind kind, bool schema_order, const char *text,
                                size_t len)
{
    if (kind == ROSE_GRAMMAR_JSON_OBJECT) len = 0; /* its text is ignored */
    return hash_of(text, len) + 2 * (uint64_t)kind + schema_order;
}

rose_status rose_grammar_cache_find(rose_grammar **out, rose_grammar_cache *c,
                                    rose_grammar_kind kind, bool schema_order, const char *text,
                                    size_t len, rose_err *err)
{
    rose_status st = ROSE_E_EMPTY;
    *out = NULL;
    if (kind == ROSE_GRAMMAR_JSON_OBJECT) len = 0; /* its text is ignored */
    const uint64_t hash = hash_of(text, len);
    pthread_mutex_lock(&c->lock);
    entry *e = find(c, hash, kind, schema_order, text, len);
    if (e != NULL && e->done) st = use(c, e, out, err);
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* A new entry; NULL: out of memory. */
static entry *new_entry(uint64_t hash, rose_grammar_kind kind, bool schema_order, const char *text,
                        size_t len)
{
    entry *e = calloc(1, sizeof *e + len + 1);
    if (e == NULL) return NULL;
    e->hash = hash;
    e->kind = kind;
    e->schema_order = schema_order;
    e->len = len;
    if (len > 0) memcpy(e->text, text, len);
    e->bytes = sizeof *e + len;
    return e;
}

rose_status rose_grammar_cache_get(rose_grammar **out, rose_grammar_cache *c,
                                   rose_grammar_kind kind, bool schema_order, const char *text,
                                   size_t len, const rose_grammar_opts *own, rose_err *err)
{
    rose_status st = ROSE_E_EMPTY;
    *out = NULL;
    if (kind == ROSE_GRAMMAR_JSON_OBJECT) len = 0; /* its text is ignored */
    const uint64_t hash = hash_of(text, len);
    pthread_mutex_lock(&c->lock);
    while (st == ROSE_E_EMPTY) {
        entry *e = find(c, hash, kind, schema_order, text, len);
        if (e != NULL)
            st = use(c, e, out, err);
        else if ((e = new_entry(hash, kind, schema_order, text, len)) != NULL)
            st = compile(c, e, own, out, err);
        else
            st = rose_fail(err, ROSE_E_NOMEM, "grammar cache: out of memory");
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

void rose_grammar_cache_read(rose_grammar_cache *c, rose_grammar_cache_stats *out)
{
    entry *e;
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    out->grammars = 0;
    TAILQ_FOREACH(e, &c->entries, link)
    {
        measure(c, e);
        out->grammars += e->g != NULL;
    }
    out->bytes = c->bytes;
    pthread_mutex_unlock(&c->lock);
}
