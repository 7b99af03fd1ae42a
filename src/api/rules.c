/* api/rules.c - the fields of a request that become the engine's sampling rules. Every count is
 * checked against its limit before memory of that size is allocated. The engine checks once more
 * whatever depends on the model (ids, backend). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"

void rose_api_rules_free(rose_api_rules *u)
{
    for (size_t i = 0; i < sizeof u->mem / sizeof *u->mem; i++)
        free(u->mem[i]);
    *u = (rose_api_rules){0};
}

/* Loads a list of at most `most` ids; the caller owns *out. */
static bool load_ids(uint32_t **out, uint32_t *n, const rose_json *list, const char *name,
                     uint32_t most, uint32_t vocab, rose_api_error *err)
{
    rose_ids ids = {0};
    if (list == NULL) return true;
    if (!rose_json_is_array(list)) return rose_api_fail_wrong(err, name, "a list of token ids");
    if (rose_json_count(list) > most)
        return rose_api_fail(err, 400, NULL, name, "field '%s' holds %zu ids, the limit is %u",
                             name, rose_json_count(list), most);
    bool ok = rose_api_ids_load(&ids, list, name, vocab, err);
    *out = ids.data;
    *n = (uint32_t)ids.len;
    return ok;
}

/* "123" and nothing else. */
static bool parse_id(const char *s, uint32_t vocab, uint32_t *id)
{
    uint64_t v = 0;
    if (*s == '\0' || (s[0] == '0' && s[1] != '\0')) return false;
    for (; *s != '\0'; s++) {
        if (*s < '0' || *s > '9' || v > UINT32_MAX) return false;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *id = (uint32_t)v;
    return v < vocab;
}

static bool load_bias(rose_api_rules *u, const rose_json *map, uint32_t vocab, rose_api_error *err)
{
    const char *key, *name = "logit_bias";
    rose_json *v;
    if (map == NULL) return true;
    if (!rose_json_is_object(map))
        return rose_api_fail_wrong(err, name, "an object of token ids and numbers");
    size_t n = rose_json_size(map);
    if (n > ROSE_MAX_BIAS)
        return rose_api_fail(err, 400, NULL, name,
                             "field 'logit_bias' holds %zu ids, the limit is %d", n, ROSE_MAX_BIAS);
    if (n == 0) return true;
    uint32_t *ids = calloc(n, sizeof *ids);
    float *bias = calloc(n, sizeof *bias);
    u->mem[0] = ids;
    u->mem[1] = (uint32_t *)(void *)bias;
    if (ids == NULL || bias == NULL) return rose_api_fail_nomem(err);
    rose_json_each (map, key, v) {
        uint32_t at = u->r.n_bias++;
        double b = rose_json_number_value(v);
        if (!parse_id(key, vocab, &ids[at]))
            return rose_api_fail(err, 400, NULL, name,
                                 "'%.40s' in 'logit_bias' is not an id of the vocabulary (0 to %u)",
                                 key, vocab - 1);
        if (!rose_json_is_number(v) || !(b >= -100 && b <= 100))
            return rose_api_fail(err, 400, NULL, name,
                                 "the bias of id %s must be a number from -100 to 100", key);
        bias[at] = (float)b;
    }
    u->r.bias_ids = ids;
    u->r.bias = bias;
    return true;
}

/* Adds one form of a word: the word itself, or (spaced) the word after a space. vLLM's rule: the
 * second form counts only if it has as many tokens and begins with another one. */
static bool add_word(rose_ids *all, uint32_t *lens, uint32_t *n, const rose_json *word, bool spaced,
                     const rose_api_prompt_ctx *c, rose_api_error *err)
{
    const char *text = rose_json_text(word);
    size_t len = rose_json_text_len(word), begin = all->len;
    char *with = NULL;
    if (spaced) {
        while (len > 0 && *text == ' ') {
            text++;
            len--;
        }
        if ((with = malloc(len + 2)) == NULL) return rose_api_fail_nomem(err);
        with[0] = ' ';
        memcpy(with + 1, text, len);
        text = with;
        len++;
    }
    bool ok = rose_api_encode(all, text, len, 0, c, "bad_words", err);
    free(with);
    if (!ok) return false;
    uint32_t count = (uint32_t)(all->len - begin);
    bool same = spaced && *n > 0 &&
                (count != lens[*n - 1] || all->data[begin] == all->data[begin - lens[*n - 1]]);
    if (same || count == 0)
        all->len = begin;
    else
        lens[(*n)++] = count;
    return true;
}

static bool load_bad_words(rose_api_rules *u, const rose_json *list, const rose_api_prompt_ctx *c,
                           rose_api_error *err)
{
    rose_ids all = {0};
    bool ok = true;
    if (list == NULL) return true;
    size_t n = rose_json_count(list);
    if (!rose_json_is_array(list) || n > ROSE_API_MAX_BAD_WORDS)
        return rose_api_fail(err, 400, NULL, "bad_words",
                             "field 'bad_words' must be a list of at most %d strings",
                             ROSE_API_MAX_BAD_WORDS);
    uint32_t *lens = u->mem[3] = calloc(2 * n + 1, sizeof *lens);
    if (lens == NULL) return rose_api_fail_nomem(err);
    for (size_t i = 0; ok && i < n; i++) {
        const rose_json *w = rose_json_at(list, i);
        if (!rose_json_is_string(w) || rose_json_text_len(w) == 0 ||
            rose_json_text_len(w) > ROSE_STOP_MAX_BYTES)
            ok = rose_api_fail(err, 400, NULL, "bad_words",
                               "a word of 'bad_words' must be a string of 1 to %d bytes",
                               ROSE_STOP_MAX_BYTES);
        ok = ok && add_word(&all, lens, &u->r.n_bad, w, false, c, err) &&
             add_word(&all, lens, &u->r.n_bad, w, true, c, err);
        if (ok && all.len > ROSE_MAX_BAD_IDS)
            ok = rose_api_fail(err, 400, NULL, "bad_words", "'bad_words' are more than %d tokens",
                               ROSE_MAX_BAD_IDS);
    }
    u->mem[2] = all.data;
    u->r.bad_ids = all.data;
    u->r.bad_len = lens;
    return ok;
}

static void load_reports(rose_api_rules *u, const rose_api_params *p)
{
    rose_request_rules *r = &u->r;
    r->logprobs = p->n_logprobs >= 0;
    r->n_top = r->logprobs ? (uint32_t)p->n_logprobs : 0;
    /* echo shows logprobs of the prompt's tokens like those of the others */
    r->prompt_logprobs = p->prompt_logprobs >= 0 || (p->echo && r->logprobs);
    if (p->prompt_logprobs > 0) r->prompt_n_top = (uint32_t)p->prompt_logprobs;
    if (p->echo && r->n_top > r->prompt_n_top) r->prompt_n_top = r->n_top;
}

static bool differs(float x, float off)
{
    return x < off || x > off;
}

bool rose_api_rules_load(rose_api_rules *u, const rose_api_params *p, const rose_api_prompt_ctx *c,
                         rose_api_error *err)
{
    rose_request_rules *r = &u->r;
    uint32_t vocab = c->vocab_size;
    r->repetition = (float)p->repetition;
    r->presence = (float)p->presence;
    r->frequency = (float)p->frequency;
    r->min_tokens = (uint32_t)p->min_tokens;
    load_reports(u, p);
    bool ok = load_bias(u, p->logit_bias, vocab, err) && load_bad_words(u, p->bad_words, c, err) &&
              load_ids(&u->mem[4], &r->n_allowed, p->allowed_token_ids, "allowed_token_ids", vocab,
                       vocab, err) &&
              load_ids(&u->mem[5], &r->n_stop, p->stop_token_ids, "stop_token_ids",
                       ROSE_MAX_STOP_IDS, vocab, err);
    r->allowed = u->mem[4];
    r->stop_ids = u->mem[5];
    u->any = r->logprobs || r->prompt_logprobs || differs(r->repetition, 1) ||
             differs(r->presence, 0) || differs(r->frequency, 0) || r->min_tokens > 0 ||
             r->n_bias > 0 || r->n_bad > 0 || r->n_allowed > 0 || r->n_stop > 0;
    return ok;
}
