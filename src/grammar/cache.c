/* grammar/cache.c - see cache.h. Entries form one list from the most to the least recently used.
 * A text that is being compiled has an entry without a grammar, on which other threads wait. The
 * bytes of a grammar grow while it is used, so they are measured again at each use and when room is
 * made. Few entries fit (a grammar takes about 100 KiB), so a list is searched, by hash first. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/siphash.h"
#include "grammar/cache.h"

typedef struct entry {
    struct entry *prev, *next; /* towards more and less recent use */
    uint64_t hash;
    rose_grammar_kind kind;
    bool schema_order;
    rose_grammar *g;  /* owned; NULL while it is compiled */
    unsigned waiting; /* threads that wait for g */
    bool failed;      /* out of the list; the last waiting thread frees it */
    rose_status st;
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
    entry *first, *last;
    rose_grammar_cache_stats stats;
};

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
    if (opts != NULL) c->opts = *opts;
    c->max_bytes = max_bytes;
    return ROSE_OK;
}

static void unlink_entry(rose_grammar_cache *c, entry *e)
{
    if (e->prev != NULL) e->prev->next = e->next;
    if (e->next != NULL) e->next->prev = e->prev;
    if (c->first == e) c->first = e->next;
    if (c->last == e) c->last = e->prev;
    e->prev = e->next = NULL;
    c->bytes -= e->bytes;
}

static void push_first(rose_grammar_cache *c, entry *e)
{
    e->next = c->first;
    if (c->first != NULL) c->first->prev = e;
    c->first = e;
    if (c->last == NULL) c->last = e;
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

/* Drops the least recently used grammars until the rest fits. */
static void make_room(rose_grammar_cache *c)
{
    entry *e, *before, *next;
    for (e = c->first; e != NULL; e = e->next)
        measure(c, e);
    for (e = c->first; e != NULL;
         e = next) { /* larger than the bound: it would push out all others */
        next = e->next;
        if (e->g == NULL || e->waiting > 0 || e->bytes <= c->max_bytes) continue;
        unlink_entry(c, e);
        free_entry(e);
        c->stats.evicted++;
    }
    for (e = c->last; e != NULL && c->bytes > c->max_bytes; e = before) {
        before = e->prev;
        if (e->g == NULL || e->waiting > 0) continue; /* in use by another thread of this cache */
        unlink_entry(c, e);
        free_entry(e);
        c->stats.evicted++;
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
    for (entry *e = c->first, *next; e != NULL; e = next) {
        next = e->next;
        free_entry(e);
    }
    rose_vocab_trie_unref(c->vocab);
    pthread_cond_destroy(&c->done);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static entry *find(const rose_grammar_cache *c, uint64_t hash, rose_grammar_kind kind, bool order,
                   const char *text, size_t len)
{
    for (entry *e = c->first; e != NULL; e = e->next)
        if (e->hash == hash && e->kind == kind && e->schema_order == order && e->len == len &&
            (len == 0 || memcmp(e->text, text, len) == 0))
            return e;
    return NULL;
}

/* With the lock: waits until e is compiled, and takes a reference or the error. */
static rose_status use(rose_grammar_cache *c, entry *e, rose_grammar **out, rose_err *err)
{
    c->stats.hits++;
    e->waiting++;
    while (e->g == NULL && !e->failed)
        pthread_cond_wait(&c->done, &c->lock);
    e->waiting--;
    if (e->failed) {
        rose_status st = e->st;
        if (err != NULL) *err = e->err;
        if (e->waiting == 0) free(e);
        return st;
    }
    rose_grammar_ref(e->g);
    *out = e->g;
    if (e->waiting == 0 && e != c->first) {
        unlink_entry(c, e);
        push_first(c, e);
    }
    make_room(c);
    return ROSE_OK;
}

/* With the lock, which is released while compiling. */
static rose_status compile(rose_grammar_cache *c, entry *e, rose_grammar **out, rose_err *err)
{
    rose_grammar_opts opts = c->opts;
    rose_grammar *g;
    opts.schema_order = e->schema_order;
    c->stats.misses++;
    push_first(c, e);
    pthread_mutex_unlock(&c->lock);
    e->st = rose_grammar_compile(&g, e->kind, e->text, e->len, c->vocab, &opts, &e->err);
    pthread_mutex_lock(&c->lock);
    rose_status st = e->st;
    if (st != ROSE_OK) {
        if (err != NULL) *err = e->err;
        unlink_entry(c, e);
        e->failed = true;
        if (e->waiting == 0) free(e);
    } else {
        rose_grammar_ref(g); /* the caller's */
        e->g = *out = g;
        make_room(c);
    }
    pthread_cond_broadcast(&c->done);
    return st;
}

/* A fixed key: texts of requests can at worst share a hash, and then they are compared. */
static uint64_t hash_of(const char *text, size_t len)
{
    static const uint64_t key[2] = {0x726f73656772616d, 0x6d61726361636865};
    return rose_siphash_bytes(key, text, len);
}

rose_status rose_grammar_cache_find(rose_grammar **out, rose_grammar_cache *c,
                                    rose_grammar_kind kind, bool schema_order, const char *text,
                                    size_t len)
{
    rose_status st = ROSE_E_EMPTY;
    *out = NULL;
    if (kind == ROSE_GRAMMAR_JSON_OBJECT) len = 0; /* its text is ignored */
    const uint64_t hash = hash_of(text, len);
    pthread_mutex_lock(&c->lock);
    entry *e = find(c, hash, kind, schema_order, text, len);
    if (e != NULL && e->g != NULL) st = use(c, e, out, NULL);
    pthread_mutex_unlock(&c->lock);
    return st;
}

rose_status rose_grammar_cache_get(rose_grammar **out, rose_grammar_cache *c,
                                   rose_grammar_kind kind, bool schema_order, const char *text,
                                   size_t len, rose_err *err)
{
    rose_status st;
    *out = NULL;
    if (kind == ROSE_GRAMMAR_JSON_OBJECT) len = 0; /* its text is ignored */
    const uint64_t hash = hash_of(text, len);
    pthread_mutex_lock(&c->lock);
    entry *e = find(c, hash, kind, schema_order, text, len);
    if (e != NULL) {
        st = use(c, e, out, err);
    } else if ((e = calloc(1, sizeof *e + len + 1)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "grammar cache: out of memory");
    } else {
        e->hash = hash;
        e->kind = kind;
        e->schema_order = schema_order;
        e->len = len;
        if (len > 0) memcpy(e->text, text, len);
        e->bytes = sizeof *e + len;
        st = compile(c, e, out, err);
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

void rose_grammar_cache_read(rose_grammar_cache *c, rose_grammar_cache_stats *out)
{
    pthread_mutex_lock(&c->lock);
    for (entry *e = c->first; e != NULL; e = e->next)
        measure(c, e);
    *out = c->stats;
    out->bytes = c->bytes;
    out->grammars = 0;
    for (const entry *e = c->first; e != NULL; e = e->next)
        out->grammars += e->g != NULL;
    pthread_mutex_unlock(&c->lock);
}
