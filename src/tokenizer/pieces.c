/* tokenizer/pieces.c - builds a tokenizer of sentencepiece's pieces (model type BPE). A piece has a
 * score instead of merges: of all neighbours whose texts joined are a piece, those of the highest
 * score are joined first, then the leftmost ones. So every way to cut a piece into two pieces is a
 * merge, and equal scores have equal ranks.
 *
 * Control tokens match in the raw text, unless the caller asks for plain text; user-defined ones
 * match in the normalised text, where sentencepiece looks for them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/unicode.h"

enum { MAX_MERGED = 512 }; /* bytes of a piece that merges make; bounds the work for each */

typedef struct piece_set {
    rose_tokenizer *t;             /* borrowed, as all here but `ranks` and `specs` */
    const rose_piece_spec *pieces; /* [n] */
    size_t n;
    uint32_t *ranks; /* [n] */
    rose_added_spec *specs;
    size_t n_specs;
    const char *where;
    rose_err *err;
} piece_set;

static rose_status nomem(const piece_set *s)
{
    return rose_fail(s->err, ROSE_E_NOMEM, "%s: out of memory", s->where);
}

static rose_status check_piece(const piece_set *s, size_t i)
{
    const rose_piece_spec *p = &s->pieces[i];
    if (!rose_utf8_is_valid(p->text, p->len))
        return rose_fail(s->err, ROSE_E_FORMAT, "%s: piece %zu is not UTF-8", s->where, i);
    if (p->type < ROSE_PIECE_NORMAL || p->type > ROSE_PIECE_BYTE)
        return rose_fail(s->err, ROSE_E_FORMAT, "%s: piece %zu has the unknown type %d", s->where,
                         i, (int)p->type);
    if (!isfinite(p->score))
        return rose_fail(s->err, ROSE_E_FORMAT, "%s: the score of piece %zu is not finite",
                         s->where, i);
    if (p->type == ROSE_PIECE_NORMAL && p->len > MAX_MERGED)
        return rose_fail(s->err, ROSE_E_UNSUPPORTED, "%s: piece %zu has %zu bytes, over %d",
                         s->where, i, p->len, MAX_MERGED);
    return ROSE_OK;
}

static rose_status add_texts(piece_set *s)
{
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < s->n && st == ROSE_OK; i++) {
        const rose_piece_spec *p = &s->pieces[i];
        if ((st = check_piece(s, i)) != ROSE_OK) break;
        st = rose_vocab_add_text(&s->t->vocab, (uint32_t)i, p->text, p->len, s->err);
        if (st != ROSE_OK) break;
        if (p->type != ROSE_PIECE_NORMAL) s->t->vocab.tokens[i].flags |= ROSE_TOK_RAW;
        if (p->type == ROSE_PIECE_BYTE) s->t->byte_fallback = true;
        if (p->type == ROSE_PIECE_UNKNOWN && s->t->unk_id == ROSE_NO_ID) s->t->unk_id = (uint32_t)i;
    }
    return st;
}

static int by_score(const void *x, const void *y)
{
    const rose_piece_spec *a = *(const rose_piece_spec *const *)x;
    const rose_piece_spec *b = *(const rose_piece_spec *const *)y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a < b ? -1 : a > b;
}

static rose_status rank_pieces(piece_set *s)
{
    const rose_piece_spec **sorted = malloc((s->n + 1) * sizeof *sorted);
    s->ranks = malloc((s->n + 1) * sizeof *s->ranks);
    if (sorted == NULL || s->ranks == NULL) {
        free(sorted);
        return nomem(s);
    }
    for (size_t i = 0; i < s->n; i++)
        sorted[i] = &s->pieces[i];
    qsort(sorted, s->n, sizeof *sorted, by_score);
    uint32_t rank = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (i > 0 && sorted[i]->score != sorted[i - 1]->score) rank++;
        s->ranks[sorted[i] - s->pieces] = rank;
    }
    free(sorted);
    return ROSE_OK;
}

/* The id of a piece that takes part in merges, or ROSE_NO_ID. */
static uint32_t normal_piece(const piece_set *s, const char *text, size_t len)
{
    const uint32_t id = rose_vocab_find(&s->t->vocab, text, len);
    return id != ROSE_NO_ID && s->pieces[id].type == ROSE_PIECE_NORMAL ? id : ROSE_NO_ID;
}

static rose_status add_merges_of(piece_set *s, uint32_t id)
{
    const rose_piece_spec *p = &s->pieces[id];
    rose_vocab *v = &s->t->vocab;
    for (size_t at = 1; at < p->len; at++) {
        if (rose_utf8_is_inner(p->text[at])) continue;
        const uint32_t left = normal_piece(s, p->text, at);
        if (left == ROSE_NO_ID) continue;
        const uint32_t right = normal_piece(s, p->text + at, p->len - at);
        if (right == ROSE_NO_ID) continue;
        rose_status st = rose_vocab_merges_grow(v, s->err);
        if (st != ROSE_OK) return st;
        rose_vocab_merge_put(v, left, right, s->ranks[id], id);
    }
    return ROSE_OK;
}

static rose_status add_merges(piece_set *s)
{
    rose_status st = rank_pieces(s);
    for (size_t i = 0; i < s->n && st == ROSE_OK; i++)
        if (s->pieces[i].type == ROSE_PIECE_NORMAL) st = add_merges_of(s, (uint32_t)i);
    return st;
}

/* Control and user-defined tokens, then `more`. */
static rose_status add_tokens(piece_set *s, const rose_added_spec *more, size_t n_more)
{
    size_t n = n_more;
    for (size_t i = 0; i < s->n; i++)
        n +=
            s->pieces[i].type >= ROSE_PIECE_UNKNOWN && s->pieces[i].type <= ROSE_PIECE_USER_DEFINED;
    if ((s->specs = calloc(n + 1, sizeof *s->specs)) == NULL) return nomem(s);
    for (size_t i = 0; i < s->n; i++) {
        const rose_piece_spec *p = &s->pieces[i];
        const bool user = p->type == ROSE_PIECE_USER_DEFINED;
        if (!user && p->type != ROSE_PIECE_CONTROL && p->type != ROSE_PIECE_UNKNOWN) continue;
        s->specs[s->n_specs++] = (rose_added_spec){.text = p->text,
                                                   .len = p->len,
                                                   .special = !user,
                                                   .normalized = user && !p->raw,
                                                   .rstrip = p->rstrip};
    }
    for (size_t i = 0; i < n_more; i++) {
        const uint32_t id = rose_vocab_find(&s->t->vocab, more[i].text, more[i].len);
        const int32_t type = id != ROSE_NO_ID ? s->pieces[id].type : ROSE_PIECE_NORMAL;
        if (type < ROSE_PIECE_UNKNOWN ||
            type > ROSE_PIECE_USER_DEFINED) /* else it is in the list */
            s->specs[s->n_specs++] = more[i];
    }
    return rose_load_added(s->t, s->specs, s->n_specs, s->err);
}

rose_status rose_load_pieces(rose_tokenizer *t, const rose_piece_spec *pieces, size_t n,
                             rose_prepend prefix, const rose_added_spec *more, size_t n_more,
                             const char *where, rose_err *err)
{
    piece_set s = {.t = t, .pieces = pieces, .n = n, .where = where, .err = err};
    t->is_chars = t->space_mark = t->byte_tokens = t->fuse_unk = true;
    t->stages[t->n_stages++] = (rose_stage){.kind = ROSE_STAGE_CHARS};
    t->norms[t->n_norms++] = (rose_norm){.kind = ROSE_NORM_REPLACE,
                                         .from = " ",
                                         .to = ROSE_SPACE_MARK,
                                         .n_from = 1,
                                         .n_to = ROSE_SPACE_MARK_LEN};
    if (prefix != ROSE_PREPEND_NEVER) {
        t->norms[t->n_norms++] = (rose_norm){.kind = ROSE_NORM_PREPEND,
                                             .to = ROSE_SPACE_MARK,
                                             .n_to = ROSE_SPACE_MARK_LEN,
                                             .first_only = prefix == ROSE_PREPEND_FIRST,
                                             .spares_added = true};
        t->strip = ROSE_STRIP_ONE;
    }
    rose_status st = add_texts(&s);
    if (st == ROSE_OK) st = add_merges(&s);
    if (st == ROSE_OK) st = add_tokens(&s, more, n_more);
    free(s.ranks);
    free(s.specs);
    return st == ROSE_OK ? rose_load_finish(t, err) : st;
}
