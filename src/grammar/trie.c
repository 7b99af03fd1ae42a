/* grammar/trie.c - the tokens of a vocabulary as a trie in depth-first order, and what masks need
 * to know of them in advance.
 *
 *     node   0     1      2       3      ...
 *     byte   'a'   'b'    'c'     'b'          "a", "ab", "abc", "b"
 *     depth  0     1      2       0
 *     next   3     3      3       4            where to go on if this byte is not allowed
 *
 * A safe character can stand unescaped in a JSON string: all but quote, backslash and control
 * characters. A safe token is a whole number of safe characters. */
#include <stdlib.h>
#include <string.h>

#include "grammar/match_internal.h"

static const uint8_t *bytes_of(const rose_vocab_trie *v, uint32_t id)
{
    return v->blob + v->tokens[id].at;
}

/* qsort has no argument for the vocabulary, so ids are sorted here by merging. */
static bool sorts_after(const rose_vocab_trie *v, uint32_t x, uint32_t y)
{
    uint32_t nx = v->tokens[x].n, ny = v->tokens[y].n;
    int d = memcmp(bytes_of(v, x), bytes_of(v, y), nx < ny ? nx : ny);
    return d != 0 ? d > 0 : nx != ny ? nx > ny : x > y;
}

static void merge_sort(const rose_vocab_trie *v, uint32_t *ids, uint32_t *spare, uint32_t n)
{
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t lo = 0; lo < n; lo += 2 * width) {
            uint32_t mid = lo + width < n ? lo + width : n,
                     hi = lo + 2 * width < n ? lo + 2 * width : n;
            uint32_t i = lo, j = mid;
            for (uint32_t k = lo; k < hi; k++) {
                bool right = i == mid || (j < hi && sorts_after(v, ids[i], ids[j]));
                spare[k] = right ? ids[j++] : ids[i++];
            }
        }
        memcpy(ids, spare, n * sizeof *ids);
    }
}

static uint32_t common(const rose_vocab_trie *v, uint32_t x, uint32_t y)
{
    uint32_t n = 0;
    while (n < v->tokens[x].n && n < v->tokens[y].n && bytes_of(v, x)[n] == bytes_of(v, y)[n])
        n++;
    return n;
}

/* Builds t over ids[0..n), which are sorted. open: scratch of max_token + 1 node numbers. */
static rose_status make_trie(const rose_vocab_trie *v, gr_trie *t, const uint32_t *ids, uint32_t n,
                             uint32_t *open)
{
    size_t n_nodes = 0;
    uint32_t depth = 0;
    for (uint32_t i = 0; i < n; i++)
        n_nodes += v->tokens[ids[i]].n - (i == 0 ? 0 : common(v, ids[i - 1], ids[i]));
    t->nodes = malloc((n_nodes + 1) * sizeof *t->nodes);
    t->sorted = malloc(((size_t)n + 1) * sizeof *t->sorted);
    if (t->nodes == NULL || t->sorted == NULL) return ROSE_E_NOMEM;
    if (n > 0) memcpy(t->sorted, ids, n * sizeof *ids);
    t->n_sorted = n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = ids[i], len = v->tokens[id].n, same = i == 0 ? 0 : common(v, ids[i - 1], id);
        for (; depth > same; depth--)
            t->nodes[open[depth - 1]].next = t->n;
        for (; depth < len; depth++) {
            open[depth] = t->n;
            t->nodes[t->n++] = (gr_trie_node){
                .first = i, .depth = (uint16_t)depth, .byte = bytes_of(v, id)[depth]};
        }
        if (t->nodes[open[len - 1]].n < UINT16_MAX) t->nodes[open[len - 1]].n++;
    }
    for (; depth > 0; depth--)
        t->nodes[open[depth - 1]].next = t->n;
    return ROSE_OK;
}

/* The characters of a safe token; 0 if it is none. */
static uint32_t safe_chars(const uint8_t *p, uint32_t n)
{
    uint32_t count = 0, cp;
    for (const uint8_t *end = p + n; p < end; count++) {
        const unsigned len = rose_utf8_decode(p, end, &cp);
        if (len == 0 || cp < 0x20 || cp == '"' || cp == '\\') return 0;
        p += len;
    }
    return count;
}

/* The tables of safe tokens; chars[id] is the length of a safe token, else 0. */
static rose_status index_safe(rose_vocab_trie *v, const uint32_t *chars)
{
    for (uint32_t id = 0; id < v->n_ids; id++)
        if (chars[id] > v->max_safe) v->max_safe = chars[id];
    v->safe_mask = calloc(v->n_words + 1, sizeof *v->safe_mask);
    v->safe_ids = malloc(((size_t)v->n_ids + 1) * sizeof *v->safe_ids);
    v->safe_end = calloc(v->max_safe + 2, sizeof *v->safe_end);
    if (v->safe_mask == NULL || v->safe_ids == NULL || v->safe_end == NULL) return ROSE_E_NOMEM;
    for (uint32_t id = 0; id < v->n_ids; id++)
        v->safe_end[chars[id] + 1]++;
    v->safe_end[1] = 0; /* chars == 0: not safe */
    for (uint32_t k = 1; k <= v->max_safe + 1; k++)
        v->safe_end[k] += v->safe_end[k - 1];
    for (uint32_t id = 0; id < v->n_ids; id++) {
        if (chars[id] == 0) continue;
        v->safe_ids[v->safe_end[chars[id]]++] = id;
        rose_gr_set_bit(v->safe_mask, id);
    }
    return ROSE_OK;
}

static rose_status make_tries(rose_vocab_trie *v, uint32_t *ids, uint32_t *some, uint32_t *chars)
{
    uint32_t n = 0, k = 0;
    rose_status st;
    for (uint32_t id = 0; id < v->n_ids; id++)
        if (v->tokens[id].n > 0) ids[n++] = id;
    merge_sort(v, ids, some, n);
    for (uint32_t i = 0; i < n; i++)
        chars[ids[i]] = safe_chars(bytes_of(v, ids[i]), v->tokens[ids[i]].n);
    if ((st = index_safe(v, chars)) != ROSE_OK) return st;
    uint32_t *open = malloc((v->max_token + 1) * sizeof *open);
    if (open == NULL) return ROSE_E_NOMEM;
    st = make_trie(v, &v->all, ids, n, open);
    for (uint32_t i = 0; i < n; i++)
        if (chars[ids[i]] == 0) some[k++] = ids[i];
    if (st == ROSE_OK) st = make_trie(v, &v->unsafe, some, k, open);
    k = 0;
    for (uint32_t i = 0; i < n; i++)
        if (memchr(bytes_of(v, ids[i]), '"', v->tokens[ids[i]].n) != NULL) some[k++] = ids[i];
    if (st == ROSE_OK) st = make_trie(v, &v->quoted, some, k, open);
    free(open);
    return st;
}

static rose_status copy_tokens(rose_vocab_trie *v, const rose_vocab_token *tokens)
{
    size_t total = 0;
    for (uint32_t id = 0; id < v->n_ids; id++)
        total += tokens[id].bytes ? tokens[id].n_bytes : 0;
    if (total > UINT32_MAX) return ROSE_E_INVAL;
    v->blob = malloc(total + 1);
    v->tokens = calloc((size_t)v->n_ids + 1, sizeof *v->tokens);
    if (v->blob == NULL || v->tokens == NULL) return ROSE_E_NOMEM;
    total = 0;
    for (uint32_t id = 0; id < v->n_ids; id++) {
        uint32_t n = tokens[id].n_bytes;
        if (tokens[id].bytes == NULL || n == 0 || n > ROSE_VOCAB_TOKEN_BYTES ||
            rose_gr_is_eos(v, id))
            continue;
        memcpy(v->blob + total, tokens[id].bytes, n);
        v->tokens[id].at = (uint32_t)total;
        v->tokens[id].n = n;
        if (n > v->max_token) v->max_token = n;
        total += n;
    }
    return ROSE_OK;
}

static rose_status copy_eos(rose_vocab_trie *v, const uint32_t *eos, size_t n, rose_err *err)
{
    v->eos = malloc((n + 1) * sizeof *v->eos);
    if (v->eos == NULL) return rose_fail(err, ROSE_E_NOMEM, "grammar vocabulary: out of memory");
    if (n > 0) memcpy(v->eos, eos, n * sizeof *eos);
    v->n_eos = n;
    for (size_t i = 0; i < n; i++)
        if (eos[i] >= v->n_ids)
            return rose_fail(err, ROSE_E_INVAL,
                             "grammar vocabulary: the eos id %u is not below %u, the number of ids",
                             eos[i], v->n_ids);
    return ROSE_OK;
}

rose_status rose_vocab_trie_create(rose_vocab_trie **out, const rose_vocab_token *tokens,
                                   uint32_t n_ids, const uint32_t *eos, size_t n_eos, rose_err *err)
{
    rose_vocab_trie *v = calloc(1, sizeof *v);
    uint32_t *scratch = calloc(3 * ((size_t)n_ids + 1), sizeof *scratch);
    rose_status st = ROSE_E_NOMEM;
    *out = NULL;
    if (v == NULL || scratch == NULL) {
        rose_fail(err, st, "grammar vocabulary: out of memory");
        goto done;
    }
    atomic_init(&v->refs, 1);
    v->n_ids = n_ids;
    v->n_words = (uint32_t)(((uint64_t)n_ids + 31) / 32);
    if ((st = copy_eos(v, eos, n_eos, err)) != ROSE_OK) goto done;
    st = copy_tokens(v, tokens);
    if (st == ROSE_OK)
        st = make_tries(v, scratch, scratch + n_ids + 1, scratch + 2 * ((size_t)n_ids + 1));
    if (st == ROSE_OK) st = rose_gr_inside(v);
    if (st != ROSE_OK) {
        rose_fail(err, st,
                  st == ROSE_E_NOMEM ? "grammar vocabulary: out of memory"
                                     : "grammar vocabulary: the tokens have 4 GiB or more of text");
        goto done;
    }
    *out = v;
done:
    free(scratch);
    if (st != ROSE_OK) {
        if (v != NULL) atomic_init(&v->refs, 1);
        rose_vocab_trie_unref(v);
    }
    return st;
}

rose_status rose_vocab_trie_open(rose_vocab_trie **out, const rose_tokenizer *t, uint32_t n_ids,
                                 const uint32_t *eos, size_t n_eos, rose_err *err)
{
    rose_vocab_token *tokens = calloc((size_t)n_ids + 1, sizeof *tokens);
    *out = NULL;
    if (tokens == NULL) return rose_fail(err, ROSE_E_NOMEM, "grammar vocabulary: out of memory");
    for (uint32_t id = 0; id < n_ids; id++) {
        size_t n;
        const char *bytes = rose_tokenizer_token_bytes(t, id, &n);
        if (bytes == NULL || rose_tokenizer_is_special(t, id) || n > ROSE_VOCAB_TOKEN_BYTES)
            continue;
        tokens[id] = (rose_vocab_token){bytes, (uint32_t)n};
    }
    rose_status st = rose_vocab_trie_create(out, tokens, n_ids, eos, n_eos, err);
    free(tokens);
    return st;
}

void rose_vocab_trie_ref(rose_vocab_trie *v)
{
    atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
}

void rose_vocab_trie_unref(rose_vocab_trie *v)
{
    if (v == NULL) return;
    /* acq_rel: the last holder frees what the others have read */
    if (atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1) return;
    gr_trie *tries[] = {&v->all, &v->unsafe, &v->quoted};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        free(tries[i]->nodes);
        free(tries[i]->sorted);
    }
    free(v->blob);
    free(v->tokens);
    free(v->eos);
    free(v->safe_mask);
    free(v->inside_mask);
    free(v->safe_ids);
    free(v->safe_end);
    free(v);
}
