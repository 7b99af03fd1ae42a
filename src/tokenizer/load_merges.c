/* tokenizer/load_merges.c - puts merges that are named by texts. Each needs three ids from a hash
 * far larger than the caches. So merges wait in a batch while the lines of memory that their ids
 * need are on the way. */
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* Texts of merge m: left, right, joined. */
static const char *part_of(const rose_merge_text *m, int part, size_t *len)
{
    *len = part == 0 ? m->n_left : part == 1 ? m->n_both - m->n_left : m->n_both;
    return part == 1 ? m->both + m->n_left : m->both;
}

static rose_status put(rose_merges *l, const rose_merge_text *m, const uint32_t ids[3])
{
    const size_t na = m->n_left, nb = m->n_both - m->n_left;
    if (ids[0] == ROSE_NO_ID || ids[1] == ROSE_NO_ID || ids[2] == ROSE_NO_ID)
        return rose_fail(l->err, ROSE_E_FORMAT,
                         "tokenizer: merge %u (\"%.*s\" \"%.*s\") names a token that is not in "
                         "the vocabulary",
                         m->rank, (int)(na < 40 ? na : 40), m->both, (int)(nb < 40 ? nb : 40),
                         m->both + na);
    rose_status st = rose_vocab_merges_grow(l->v, l->err);
    if (st == ROSE_OK) rose_vocab_merge_put(l->v, ids[0], ids[1], m->rank, ids[2]);
    return st;
}

static void find_ids(const rose_merges *l, const rose_merge_text *m, uint32_t ids[3])
{
    for (int i = 0; i < 3; i++) {
        size_t len;
        const char *text = part_of(m, i, &len);
        ids[i] = rose_vocab_find(l->v, text, len);
    }
}

rose_status rose_merges_flush(rose_merges *l)
{
    uint32_t ids[ROSE_MERGE_BATCH][3];
    rose_status st = ROSE_OK;
    for (uint32_t k = 0; k < l->n; k++)
        for (int i = 0; i < 3; i++)
            rose_vocab_prefetch_text(l->v, l->batch[k].hash[i]);
    for (uint32_t k = 0; k < l->n; k++) {
        find_ids(l, &l->batch[k], ids[k]);
        rose_vocab_prefetch_merge(l->v, ids[k][0], ids[k][1]);
    }
    for (uint32_t k = 0; k < l->n && st == ROSE_OK; k++)
        st = put(l, &l->batch[k], ids[k]);
    l->n = 0;
    return st;
}

rose_status rose_merges_add(rose_merges *l, uint32_t rank, const char *a, size_t na, const char *b,
                            size_t nb)
{
    rose_merge_text *m = &l->batch[l->n];
    rose_status st = ROSE_OK;
    if (na + nb > ROSE_MERGE_SHORT) {
        if ((st = rose_merges_flush(l)) != ROSE_OK) return st;
        l->scratch.len = 0;
        st = rose_buf_add(&l->scratch, a, na);
        if (st == ROSE_OK) st = rose_buf_add(&l->scratch, b, nb);
        if (st != ROSE_OK) return rose_fail(l->err, st, "tokenizer: out of memory");
        const rose_merge_text whole = {
            .both = l->scratch.data, .n_left = na, .n_both = na + nb, .rank = rank};
        uint32_t ids[3];
        find_ids(l, &whole, ids);
        return put(l, &whole, ids);
    }
    *m = (rose_merge_text){.both = m->copy, .n_left = na, .n_both = na + nb, .rank = rank};
    memcpy(m->copy, a, na);
    memcpy(m->copy + na, b, nb);
    for (int i = 0; i < 3; i++) {
        size_t len;
        const char *text = part_of(m, i, &len);
        m->hash[i] = rose_vocab_hash(text, len);
        rose_vocab_prefetch_slot(l->v, m->hash[i]);
    }
    if (++l->n < ROSE_MERGE_BATCH) return ROSE_OK;
    return rose_merges_flush(l);
}
