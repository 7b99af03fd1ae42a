/* model/finite.c - searches the weights for NaN and infinity, in one pass over the bit patterns.
 * A model with such a weight gives no finite logit, so every request would fail. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "model/model.h"
#include "model/weights.h"

/* Elements that are checked together: a fixed count, so that the compiler vectorises the loop. */
enum { BLOCK = 512 };

/* The bits of an exponent that is all ones, as NaN and infinity have. */
static uint32_t exponent_bits(rose_format t)
{
    return t == ROSE_F32 ? 0x7F800000u : t == ROSE_F16 ? 0x7C00u : 0x7F80u;
}

static bool block_is_finite32(const uint8_t *p)
{
    uint32_t v[BLOCK], bad = 0;
    memcpy(v, p, sizeof v);
    for (int i = 0; i < BLOCK; i++)
        bad |= (v[i] & 0x7F800000u) == 0x7F800000u ? UINT32_MAX : 0;
    return bad == 0;
}

static bool block_is_finite16(const uint8_t *p, uint16_t exponent)
{
    uint16_t v[BLOCK], bad = 0;
    memcpy(v, p, sizeof v);
    for (int i = 0; i < BLOCK; i++)
        bad |= (v[i] & exponent) == exponent ? UINT16_MAX : 0;
    return bad == 0;
}

/* Returns the index of the first element in [at, end) that is NaN or infinite; end if there is
 * none. */
static uint64_t find_bad(const rose_st_tensor *t, uint64_t at, uint64_t end)
{
    const size_t size = rose_format_size(t->dtype);
    const uint32_t exponent = exponent_bits(t->dtype);
    for (; at < end; at++) {
        uint32_t v = 0;
        memcpy(&v, t->data + at * size, size); /* little-endian, as the file is */
        if ((v & exponent) == exponent) return at;
    }
    return end;
}

static uint64_t first_bad(const rose_st_tensor *t, uint64_t n)
{
    const size_t size = rose_format_size(t->dtype);
    uint64_t at = 0;
    for (; at + BLOCK <= n; at += BLOCK) {
        const uint8_t *p = t->data + at * size;
        const bool ok = size == 4 ? block_is_finite32(p)
                                  : block_is_finite16(p, (uint16_t)exponent_bits(t->dtype));
        if (!ok) return find_bad(t, at, at + BLOCK);
    }
    return find_bad(t, at, n);
}

/* Tells NaN from infinity for an element that is not finite: a NaN has bits set below the
 * exponent, and infinity has none. */
static bool is_nan(const rose_st_tensor *t, uint64_t i)
{
    const size_t size = rose_format_size(t->dtype);
    const uint32_t sign = size == 4 ? 0x80000000u : 0x8000u;
    uint32_t v = 0;
    memcpy(&v, t->data + i * size, size);
    return (v & ~sign) != exponent_bits(t->dtype);
}

/* Blocks hold integers and one or two fp16 scales. The first block with a scale that is NaN or
 * infinite; the number of blocks if there is none. */
static uint64_t first_bad_block(const rose_st_tensor *t)
{
    const rose_format_row *f = &rose_formats[t->dtype];
    const uint64_t n = (t->end - t->begin) / f->bytes;
    for (uint64_t i = 0; i < n; i++)
        for (int k = 0; k <= f->min; k++) {
            uint16_t h;
            memcpy(&h, t->data + i * f->bytes + f->scale_at + 2 * k, sizeof h);
            if ((h & 0x7C00u) == 0x7C00u) return i;
        }
    return n;
}

static rose_status check_blocks(const rose_weights *w, const rose_st_tensor *t, rose_err *err)
{
    const uint64_t bad = first_bad_block(t), block = rose_formats[t->dtype].block;
    if (bad == (t->end - t->begin) / rose_formats[t->dtype].bytes) return ROSE_OK;
    return rose_fail(err, ROSE_E_FORMAT,
                     "%s: tensor '%.100s': a scale of the elements from %" PRIu64
                     " on is NaN or infinite: the weights are damaged",
                     rose_weights_label(w, t), t->name, bad * block);
}

static rose_status check_tensor(const rose_weights *w, const rose_st_tensor *t, rose_err *err)
{
    if (!t->used) return ROSE_OK;
    if (rose_format_is_quant(t->dtype)) return check_blocks(w, t, err);
    const uint64_t n = (t->end - t->begin) / rose_format_size(t->dtype), bad = first_bad(t, n);
    if (bad == n) return ROSE_OK;
    return rose_fail(err, ROSE_E_FORMAT,
                     "%s: tensor '%.100s' is %s at element %" PRIu64
                     ": the weights are damaged, or the training diverged",
                     rose_weights_label(w, t), t->name, is_nan(t, bad) ? "NaN" : "infinite", bad);
}

/* ---- several threads ---- */

enum { MAX_THREADS = 8 };

/* Each thread takes the next tensor. The counters order no other data: the end of the threads does.
 */
typedef struct search {
    const rose_weights *w;
    atomic_size_t next;
    atomic_size_t bad; /* the first damaged tensor so far; n_tensors: none */
} search;

static void *search_tensors(void *arg)
{
    search *s = arg;
    for (size_t i;
         (i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->w->n_tensors;) {
        size_t bad = atomic_load_explicit(&s->bad, memory_order_relaxed);
        if (check_tensor(s->w, s->w->by_name[i], NULL) == ROSE_OK) continue;
        while (i < bad && !atomic_compare_exchange_weak_explicit(
                              &s->bad, &bad, i, memory_order_relaxed, memory_order_relaxed))
            ;
    }
    return NULL;
}

rose_status rose_model_check_finite(const rose_model *m, uint32_t n_threads, rose_err *err)
{
    pthread_t threads[MAX_THREADS];
    bool created[MAX_THREADS] = {false};
    search s = {.w = m->weights};
    if (m->weights == NULL || m->dummy) return ROSE_OK; /* random values are within bounds */
    atomic_init(&s.next, 0);
    atomic_init(&s.bad, m->weights->n_tensors);
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    for (uint32_t i = 1; i < n_threads; i++)
        created[i] = pthread_create(&threads[i], NULL, search_tensors, &s) == 0;
    search_tensors(&s);
    for (uint32_t i = 1; i < n_threads; i++)
        if (created[i]) pthread_join(threads[i], NULL);
    const size_t bad = atomic_load_explicit(&s.bad, memory_order_relaxed);
    return bad < m->weights->n_tensors ? check_tensor(m->weights, m->weights->by_name[bad], err)
                                       : ROSE_OK;
}
