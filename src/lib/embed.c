/* lib/embed.c - embeddings: requests that generate nothing and give the pooled state of their
 * text. */
#include <stdlib.h>
#include <string.h>

#include "lib/lib_internal.h"

uint32_t rose_lib_embedding_size(const rose_lib *rose)
{
    return rose_engine_arch(rose->engine)->d_model;
}

rose_lib_scoring rose_lib_scores_by(const rose_lib *rose)
{
    if (rose->pooling.ranks) return ROSE_LIB_SCORE_ANSWERS;
    return rose->no_pooling.msg[0] != '\0' || rose->pooling.own_head ? ROSE_LIB_SCORE_NONE
                                                                     : ROSE_LIB_SCORE_COSINE;
}

static rose_status read_params(rose_lib_embed_params *to, const rose_lib_embed_params *from,
                               rose_err *err)
{
    rose_lib_embed_params_default(to);
    if (from == NULL) return ROSE_OK;
    return rose_lib_read(to, sizeof *to, from, "rose_lib_embed_params",
                         "rose_lib_embed_params_default", err);
}

/* Checks p against the model; *n is the number of values of an embedding. */
static rose_status check_params(const rose_lib *rose, const rose_lib_embed_params *p, uint32_t *n,
                                rose_err *err)
{
    const uint32_t width = rose_lib_embedding_size(rose);
    *n = p->dimensions != 0 ? p->dimensions : width;
    if (rose->no_pooling.msg[0] != '\0')
        return rose_fail(err, ROSE_E_INVAL,
                         "%.300s; the option pooling \"last\" or \"mean\" chooses one",
                         rose->no_pooling.msg);
    if (p->normalize < -1 || p->normalize > 1)
        return rose_fail(err, ROSE_E_INVAL, "normalize is %d: it must be -1, 0 or 1", p->normalize);
    if (*n <= width && rose_pooling_allows(&rose->pooling, width, *n)) return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL, "dimensions is %u: the model's embeddings have %u values%s",
                     *n, width,
                     rose->pooling.n_dimensions > 0 ? " and may be cut to its matryoshka_dimensions"
                     : rose->pooling.cuts           ? " and may be cut to fewer"
                                                    : ", and its files do not say that they may "
                                                      "be cut");
}

static rose_status submit(rose_lib *rose, const uint32_t *ids, size_t n,
                          const rose_lib_embed_params *p, rose_lib_request **out, rose_err *err)
{
    rose_lib_request *r = NULL;
    uint32_t n_values;
    if (n > UINT32_MAX) return rose_fail(err, ROSE_E_INVAL, "a text of %zu tokens is too long", n);
    rose_status st = check_params(rose, p, &n_values, err);
    if (st == ROSE_OK) st = rose_lib_request_create(&r, rose, p->wakeup != 0, err);
    if (st != ROSE_OK) return st;
    r->user = p->user;
    r->n_prompt = (uint32_t)n;
    r->n_embedding = n_values;
    r->normalizes = p->normalize < 0 ? rose->pooling.normalizes : p->normalize != 0;
    if ((r->embedding = calloc(n_values, sizeof *r->embedding)) == NULL) {
        rose_lib_request_free(r);
        return ROSE_E_NOMEM;
    }
    rose_request_opts o = {
        .prompt = ids,
        .n_prompt = (uint32_t)n,
        .max_tokens = 1,
        .sampling = {.top_p = 1},
        .pool = rose->pooling.pool,
        .priority = p->priority,
        .cache_salt = p->cache_salt,
        .cache_salt_len = p->cache_salt != NULL ? strlen(p->cache_salt) : 0,
    };
    st = rose_lib_request_start(r, &o, err);
    if (st == ROSE_OK) *out = r;
    return st;
}

int rose_lib_submit_embed_ids(rose_lib *rose, const uint32_t *ids, size_t n,
                              const rose_lib_embed_params *p, rose_lib_request **out,
                              char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_lib_embed_params params;
    *out = NULL;
    rose_status st = read_params(&params, p, &e);
    if (st == ROSE_OK) st = submit(rose, ids, n, &params, out, &e);
    return rose_lib_fail(st, &e, err);
}

int rose_lib_submit_embed_text(rose_lib *rose, const char *text, size_t len,
                               const rose_lib_embed_params *p, rose_lib_request **out,
                               char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_ids ids = {0};
    rose_lib_embed_params params;
    *out = NULL;
    rose_status st = read_params(&params, p, &e);
    if (st == ROSE_OK)
        st = rose_lib_encode(rose, text, len, params.add_special != 0 ? ROSE_ENCODE_ADD_SPECIAL : 0,
                             &ids, &e);
    if (st == ROSE_OK) st = submit(rose, ids.data, ids.len, &params, out, &e);
    rose_ids_free(&ids);
    return rose_lib_fail(st, &e, err);
}
