/* lib/text.c - text to ids and back. All threads share one encoder, because tokenising is not on
 * the token path. */
#include <stdlib.h>
#include <string.h>

#include "chat/rank.h"
#include "lib/lib_internal.h"

rose_status rose_lib_encode(rose_lib *rose, const char *text, size_t len, unsigned flags,
                            rose_ids *ids, rose_err *err)
{
    pthread_mutex_lock(&rose->encoder_lock);
    rose_status st = rose_encode(rose->encoder, text, len, flags, ids, err);
    pthread_mutex_unlock(&rose->encoder_lock);
    return st;
}

int rose_lib_give_ids(rose_status st, rose_ids *list, uint32_t **ids, size_t *n, const rose_err *e,
                      char err[ROSE_LIB_ERR])
{
    *ids = NULL;
    *n = 0;
    if (st != ROSE_OK) {
        rose_ids_free(list);
        return rose_lib_fail(st, e, err);
    }
    *ids = list->data;
    *n = list->len;
    return 0;
}

static int tokenize(rose_lib *rose, const char *text, size_t len, unsigned flags, uint32_t **ids,
                    size_t *n, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_ids list = {0};
    const rose_status st = rose_lib_encode(rose, text, len, flags, &list, &e);
    return rose_lib_give_ids(st, &list, ids, n, &e, err);
}

int rose_lib_tokenize(rose_lib *rose, const char *text, size_t len, uint32_t **ids, size_t *n,
                      char err[ROSE_LIB_ERR])
{
    return tokenize(rose, text, len, 0, ids, n, err);
}

int rose_lib_tokenize_special(rose_lib *rose, const char *text, size_t len, uint32_t **ids,
                              size_t *n, char err[ROSE_LIB_ERR])
{
    return tokenize(rose, text, len, ROSE_ENCODE_ADD_SPECIAL, ids, n, err);
}

static int detokenize(rose_lib *rose, const uint32_t *ids, size_t n, unsigned flags, char **text,
                      size_t *len, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_buf buf = {0};
    *text = NULL;
    *len = 0;
    rose_status st = rose_decode(rose->tok, ids, n, flags, &buf, &e);
    if (st == ROSE_OK && rose_buf_str(&buf) == NULL) st = ROSE_E_NOMEM;
    if (st == ROSE_OK) {
        *text = buf.data;
        *len = buf.len;
    } else {
        rose_buf_free(&buf);
    }
    return rose_lib_fail(st, &e, err);
}

int rose_lib_detokenize(rose_lib *rose, const uint32_t *ids, size_t n, char **text, size_t *len,
                        char err[ROSE_LIB_ERR])
{
    return detokenize(rose, ids, n, 0, text, len, err);
}

int rose_lib_detokenize_plain(rose_lib *rose, const uint32_t *ids, size_t n, char **text,
                              size_t *len, char err[ROSE_LIB_ERR])
{
    return detokenize(rose, ids, n, ROSE_DECODE_SKIP_SPECIAL, text, len, err);
}

/* Appends the prompt of a pair. */
static rose_status pair_ids(rose_lib *rose, const char *instruction, rose_rank_text query,
                            rose_rank_text document, rose_ids *ids, rose_err *err)
{
    rose_buf body = {0};
    const rose_rank_text told = {instruction, instruction != NULL ? strlen(instruction) : 0};
    rose_status st = rose_rank_body(&body, told, query, document);
    if (st == ROSE_OK)
        st = rose_lib_encode(rose, rose_rank_head, strlen(rose_rank_head), 0, ids, err);
    if (st == ROSE_OK)
        st = rose_lib_encode(rose, body.data, body.len, ROSE_ENCODE_PLAIN_SPECIAL, ids, err);
    if (st == ROSE_OK)
        st = rose_lib_encode(rose, rose_rank_tail, strlen(rose_rank_tail), 0, ids, err);
    rose_buf_free(&body);
    return st;
}

int rose_lib_tokenize_pair(rose_lib *rose, const char *instruction, const char *query,
                           size_t query_len, const char *document, size_t document_len,
                           uint32_t answers[2], uint32_t **ids, size_t *n, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_ids list = {0};
    rose_status st = rose_rank_answers(rose->tok, rose_lib_vocab_size(rose), answers, &e);
    if (st == ROSE_OK)
        st = pair_ids(rose, instruction, (rose_rank_text){query, query_len},
                      (rose_rank_text){document, document_len}, &list, &e);
    return rose_lib_give_ids(st, &list, ids, n, &e, err);
}

void rose_lib_free(void *p)
{
    free(p);
}

int rose_lib_submit_ids(rose_lib *rose, const uint32_t *ids, size_t n, const rose_lib_params *p,
                        rose_lib_request **out, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_lib_params params;
    *out = NULL;
    rose_status st = rose_lib_read_params(&params, p, &e);
    if (st == ROSE_OK) st = rose_lib_submit(rose, ids, n, &params, out, &e);
    return rose_lib_fail(st, &e, err);
}

int rose_lib_submit_text(rose_lib *rose, const char *text, size_t len, const rose_lib_params *p,
                         rose_lib_request **out, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_ids ids = {0};
    rose_lib_params params;
    *out = NULL;
    rose_status st = rose_lib_read_params(&params, p, &e);
    if (st == ROSE_OK)
        st = rose_lib_encode(rose, text, len, params.add_special != 0 ? ROSE_ENCODE_ADD_SPECIAL : 0,
                             &ids, &e);
    if (st == ROSE_OK) st = rose_lib_submit(rose, ids.data, ids.len, &params, out, &e);
    rose_ids_free(&ids);
    return rose_lib_fail(st, &e, err);
}
