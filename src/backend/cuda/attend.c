/* backend/cuda/attend.c - how the contexts of a decode step are divided over thread blocks, and the
 * scratch memory that this needs. Host code without CUDA calls; the engine thread calls it. */
#include "backend/cuda/attend.h"

#include <stddef.h>

enum {
    MAX_SPLITS = 16, /* of a unit */
    SM_UNITS = 8     /* warps of an SM that may have a unit each */
};

static uint32_t up_div(uint32_t x, uint32_t by)
{
    return x / by + (x % by != 0);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t rose_cuda_attend_pad(uint32_t head_dim)
{
    static const uint32_t sizes[] = {48, 64, 80, 96, 128, ROSE_ATTEND_MAX_HEAD_DIM};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (head_dim <= sizes[i]) return sizes[i];
    return 0;
}

const char *rose_cuda_attend_refuses(rose_format type, uint32_t n_q, uint32_t n_kv,
                                     uint32_t head_dim)
{
    if (type == ROSE_F32) return "float32: use the plain attention kernel";
    if (head_dim % 2 != 0 || rose_cuda_attend_pad(head_dim) == 0 || head_dim == 0)
        return "head_dim is odd or more than 256";
    if (n_kv == 0 || n_q % n_kv != 0) return "query heads are no multiple of the KV heads";
    if (n_q / n_kv > ROSE_ATTEND_MAX_GROUP) return "more than 16 query heads share a KV head";
    return NULL;
}

rose_attend_limits rose_attend_limits_of(uint32_t sms, uint32_t n_q, uint32_t n_kv,
                                         uint32_t head_dim, uint32_t max_seqs,
                                         uint32_t max_model_len, uint32_t pool_pages)
{
    rose_attend_limits l = {.sms = sms, .n_kv = n_kv};
    const uint32_t pages = ROSE_ATTEND_SPLIT / 16;
    const uint64_t all = (uint64_t)max_seqs * up_div(max_model_len, ROSE_ATTEND_SPLIT);
    const uint64_t pool = (uint64_t)up_div(pool_pages, pages) + 2 * (uint64_t)max_seqs;
    /* Small thread blocks are used until the units fill the SMs; 7 in a split may follow. */
    const uint64_t inner = (uint64_t)max_seqs * up_div(max_model_len, ROSE_ATTEND_INNER);
    const uint64_t fill = 8 * (uint64_t)up_div(sms, n_kv);
    uint64_t parts = all < pool ? all : pool;
    const uint64_t small = inner < fill ? inner : fill;
    if (parts < small) parts = small;
    l.max_parts = parts < ROSE_ATTEND_NONE / 2 ? (uint32_t)parts : ROSE_ATTEND_NONE / 2;
    l.max_units = l.max_parts + max_seqs;
    l.bytes = (uint64_t)l.max_parts * n_q * (rose_cuda_attend_pad(head_dim) + 4) * sizeof(float);
    return l;
}

/* The visible positions of an item: *first .. the result - 1. */
static uint32_t visible(const rose_cuda_item *item, uint32_t window, uint32_t *first)
{
    const uint32_t end = item->pos + 1;
    *first = window != 0 && end > window ? end - window : 0;
    return end;
}

/* How many blocks of `size` absolute positions the item meets. */
static uint32_t n_met(const rose_cuda_item *item, uint32_t window, uint32_t size)
{
    uint32_t first;
    const uint32_t end = visible(item, window, &first);
    return item->n_rows == 0 ? 0 : (end - 1) / size - first / size + 1;
}

static uint64_t all_met(const rose_cuda_item *items, uint32_t n, uint32_t window, uint32_t size,
                        uint32_t over)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t met = n_met(&items[i], window, size);
        if (met > over) sum += met;
    }
    return sum;
}

/* How many thread blocks units of this size give. */
static uint64_t n_blocks(const rose_attend_limits *l, const rose_cuda_item *items, uint32_t n,
                         uint32_t window, uint32_t unit)
{
    return all_met(items, n, window, unit, 0) * l->n_kv;
}

/* Positions that all items see. */
static uint64_t all_visible(const rose_cuda_item *items, uint32_t n, uint32_t window)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t first;
        const uint32_t end = visible(&items[i], window, &first);
        if (items[i].n_rows != 0) sum += end - first;
    }
    return sum;
}

/* An estimate of how many thread blocks share the bandwidth, if each item is one unit. While fewer
 * than SM_UNITS blocks run on an SM, each block gets more than an eighth of the SM's share. */
static uint64_t n_places(const rose_attend_limits *l, uint32_t n)
{
    uint32_t each = 1;
    while (each < SM_UNITS && (uint64_t)n * l->n_kv > (uint64_t)l->sms * each)
        each *= 2;
    return (uint64_t)l->sms * each;
}

/* Positions in a unit. A context of one split is always one unit, so that no block waits for
 * another one. Units of one split (512) are best as soon as they fill half of the SMs: smaller
 * units leave a partial result for each inner block, so more is merged (1 x 8,000: 13.7 us with 512
 * against 19.9, H100). With fewer units they shrink until there is about one block for each SM.
 * With many units they grow, so that a block refills its ring less often and fewer results are
 * merged, but at most to twice the positions that each place on an SM would get (32 x 1,100: 63 us
 * with 512, 43 with whole contexts, H200). Otherwise one long context among many short ones could
 * be the work of a single block. */
static uint32_t choose_unit(const rose_attend_limits *l, const rose_cuda_item *items, uint32_t n,
                            uint32_t window)
{
    uint32_t unit = ROSE_ATTEND_SPLIT;
    if (all_met(items, n, window, unit, 1) == 0) return unit;
    if (n_blocks(l, items, n, window, unit) >= l->sms / 2) {
        const uint64_t each = all_visible(items, n, window) * l->n_kv / n_places(l, n);
        while (unit < ROSE_ATTEND_SPLIT * MAX_SPLITS && unit <= each)
            unit *= 2;
        return unit;
    }
    if (all_met(items, n, window, ROSE_ATTEND_INNER, 0) > l->max_parts) return unit;
    for (unit = ROSE_ATTEND_INNER; unit < ROSE_ATTEND_SPLIT; unit *= 2)
        if (n_blocks(l, items, n, window, unit) <= l->sms) break;
    return unit;
}

/* Items that meet up to this many splits are one unit each, so that the partial results of the
 * others have room. */
static uint32_t choose_whole(const rose_attend_limits *l, const rose_cuda_item *items, uint32_t n,
                             uint32_t window)
{
    uint32_t whole = 1;
    while (all_met(items, n, window, ROSE_ATTEND_SPLIT, whole) > l->max_parts)
        whole *= 2;
    return whole;
}

static rose_attend_unit unit_of(const rose_cuda_item *item, uint32_t i, uint32_t begin,
                                uint32_t end, uint32_t part, uint32_t written)
{
    return (rose_attend_unit){i, begin, end, part, item->row, item->pos, item->table, written};
}

rose_attend_cutting rose_attend_cut(const rose_attend_limits *l, const rose_cuda_item *items,
                                    uint32_t n_items, uint32_t window, uint32_t unit,
                                    rose_attend_unit *units, rose_attend_fold *folds)
{
    rose_attend_cutting c = {.n_folds = n_items};
    if (unit == 0) unit = choose_unit(l, items, n_items, window);
    c.inner = unit < ROSE_ATTEND_SPLIT;
    const uint32_t size = c.inner ? ROSE_ATTEND_INNER : ROSE_ATTEND_SPLIT;
    const uint32_t whole = c.inner ? 1 : choose_whole(l, items, n_items, window);
    uint32_t part = 0, written = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        if (i == 0 || items[i].table != items[i - 1].table) written = items[i].pos;
        const uint32_t n = n_met(&items[i], window, size);
        uint32_t first;
        const uint32_t end = visible(&items[i], window, &first);
        folds[i] = (rose_attend_fold){ROSE_ATTEND_NONE, 0, 0, ROSE_ATTEND_NONE};
        if (n == 0) continue;
        if (n <= whole || first / unit == (end - 1) / unit) {
            units[c.n_units++] = unit_of(&items[i], i, first, end, ROSE_ATTEND_NONE, written);
            continue;
        }
        folds[i] = (rose_attend_fold){
            i, part, n,
            c.inner ? first / size % (ROSE_ATTEND_SPLIT / ROSE_ATTEND_INNER) : ROSE_ATTEND_NONE};
        for (uint32_t at = first; at < end;) {
            const uint32_t next = least(end, at / unit * unit + unit);
            units[c.n_units++] = unit_of(&items[i], i, at, next, part, written);
            part += (next - 1) / size - at / size + 1;
            at = next;
        }
    }
    return c;
}
