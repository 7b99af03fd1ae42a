/* lib/params.c - reads the structs of callers, which may be compiled with an older or newer header,
 * and turns sampling parameters into the engine's rules, stop strings and guide. The engine checks
 * once more whatever depends on the model. */
#include <math.h>
#include <string.h>

#include "lib/lib_internal.h"

/* No struct comes near this size, so a larger one was never set. */
enum { MAX_STRUCT = 4096 };

bool rose_lib_size_is_sane(size_t size)
{
    return size > sizeof(size_t) && size <= MAX_STRUCT;
}

rose_status rose_lib_read(void *to, size_t known, const void *from, const char *name,
                          const char *begin, rose_err *err)
{
    size_t size;
    memcpy(&size, from, sizeof size);
    if (!rose_lib_size_is_sane(size))
        return rose_fail(err, ROSE_E_INVAL,
                         "%s.size is %zu, which is no size of this struct: call %s first", name,
                         size, begin);
    const unsigned char *bytes = from;
    for (size_t i = known; i < size; i++)
        if (bytes[i] != 0)
            return rose_fail(err, ROSE_E_INVAL,
                             "%s has %zu bytes, of which this library (version %d.%d) knows %zu, "
                             "and a later one is set: install the library of your header",
                             name, size, ROSE_LIB_VERSION_MAJOR, ROSE_LIB_VERSION_MINOR, known);
    memcpy(to, from, size < known ? size : known);
    return ROSE_OK;
}

static void recommend(rose_lib_params *p, const rose_generation *g)
{
    if ((g->has & ROSE_GENERATION_TEMPERATURE) != 0) p->temperature = g->temperature;
    if ((g->has & ROSE_GENERATION_TOP_P) != 0) p->top_p = g->top_p;
    if ((g->has & ROSE_GENERATION_TOP_K) != 0) p->top_k = g->top_k;
    if ((g->has & ROSE_GENERATION_MIN_P) != 0) p->min_p = g->min_p;
    if ((g->has & ROSE_GENERATION_REPETITION) != 0) p->repetition_penalty = g->repetition;
    if ((g->has & ROSE_GENERATION_MAX_TOKENS) != 0) p->max_tokens = g->max_tokens;
}

/* Copies d to a struct of another size: cuts d if it is smaller, adds zeros if it is larger. */
static void write_defaults(void *to, size_t size, const void *d, size_t known)
{
    if (size > known) memset((char *)to + known, 0, size - known);
    memcpy(to, d, size < known ? size : known);
}

void rose_lib_params_init(rose_lib_params *p, size_t size, const rose_lib *rose)
{
    rose_lib_params d = {
        .size = size, .max_tokens = 128, .top_p = 1.0f, .repetition_penalty = 1.0f};
    if (rose != NULL) recommend(&d, &rose->generation);
    write_defaults(p, size, &d, sizeof d);
}

int rose_lib_params_recommend(const rose_lib *rose, rose_lib_params *p, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_lib_params d;
    const rose_status st = rose_lib_read_params(&d, p, &e);
    if (st != ROSE_OK) return rose_lib_fail(st, &e, err);
    recommend(&d, &rose->generation);
    memcpy(p, &d, d.size < sizeof d ? d.size : sizeof d);
    return 0;
}

void rose_lib_embed_params_init(rose_lib_embed_params *p, size_t size)
{
    const rose_lib_embed_params d = {.size = size, .normalize = -1, .add_special = 1};
    write_defaults(p, size, &d, sizeof d);
}

rose_status rose_lib_read_params(rose_lib_params *to, const rose_lib_params *from, rose_err *err)
{
    rose_lib_params_default(to);
    if (from == NULL) return ROSE_OK;
    return rose_lib_read(to, sizeof *to, from, "rose_lib_params", "rose_lib_params_default", err);
}

/* ---- rules ---- */

/* A list and its count; most is the largest count. */
static rose_status check_list(const char *name, const void *list, size_t n, size_t most,
                              rose_err *err)
{
    if (n > most)
        return rose_fail(err, ROSE_E_INVAL, "%s holds %zu entries, the limit is %zu", name, n,
                         most);
    if (n > 0 && list == NULL)
        return rose_fail(err, ROSE_E_INVAL, "%s is NULL, and its count is %zu", name, n);
    return ROSE_OK;
}

static rose_status check_lists(const rose_lib *rose, const rose_lib_params *p, rose_err *err)
{
    rose_status st = check_list("stop_ids", p->stop_ids, p->n_stop_ids, ROSE_MAX_STOP_IDS, err);
    if (st == ROSE_OK) st = check_list("bias_ids", p->bias_ids, p->n_bias, ROSE_MAX_BIAS, err);
    if (st == ROSE_OK) st = check_list("bias", p->bias, p->n_bias, ROSE_MAX_BIAS, err);
    if (st == ROSE_OK)
        st =
            check_list("allowed_ids", p->allowed_ids, p->n_allowed, rose_lib_vocab_size(rose), err);
    if (st == ROSE_OK) st = check_list("bad_lens", p->bad_lens, p->n_bad, ROSE_MAX_BAD_IDS, err);
    if (st == ROSE_OK) st = check_list("bad_ids", p->bad_ids, p->n_bad, ROSE_MAX_BAD_IDS, err);
    return st;
}

/* The ranges of the server's fields. Written so that a NaN fails. */
static rose_status check_numbers(const rose_lib_params *p, rose_err *err)
{
    if (!(fabsf(p->presence_penalty) <= 2) || !(fabsf(p->frequency_penalty) <= 2))
        return rose_fail(
            err, ROSE_E_INVAL, "%s_penalty is %g: it must be -2 to 2",
            fabsf(p->presence_penalty) <= 2 ? "frequency" : "presence",
            (double)(fabsf(p->presence_penalty) <= 2 ? p->frequency_penalty : p->presence_penalty));
    for (size_t i = 0; i < p->n_bias; i++) {
        if (!(fabsf(p->bias[i]) <= 100))
            return rose_fail(err, ROSE_E_INVAL, "bias[%zu] is %g: it must be -100 to 100", i,
                             (double)p->bias[i]);
        for (size_t k = 0; k < i; k++)
            if (p->bias_ids[k] == p->bias_ids[i])
                return rose_fail(err, ROSE_E_INVAL, "bias_ids names id %u twice: name it once",
                                 p->bias_ids[i]);
    }
    for (size_t i = 0; i < p->n_bad; i++)
        if (p->bad_lens[i] == 0)
            return rose_fail(err, ROSE_E_INVAL, "bad_lens[%zu] is 0: a sequence has at least 1 id",
                             i);
    return ROSE_OK;
}

static bool differs(float x, float off)
{
    return x < off || x > off || isnan(x);
}

rose_status rose_lib_rules(const rose_lib *rose, const rose_lib_params *p, rose_request_rules *out,
                           bool *any, rose_err *err)
{
    *out = (rose_request_rules){0};
    rose_status st = check_lists(rose, p, err);
    if (st == ROSE_OK) st = check_numbers(p, err);
    if (st != ROSE_OK) return st;
    *out = (rose_request_rules){
        .logprobs = p->logprobs != 0,
        .n_top = p->logprobs != 0 ? p->top_logprobs : 0,
        .repetition = differs(p->repetition_penalty, 0) ? p->repetition_penalty : 1,
        .presence = p->presence_penalty,
        .frequency = p->frequency_penalty,
        .bias_ids = p->bias_ids,
        .bias = p->bias,
        .n_bias = (uint32_t)p->n_bias,
        .n_allowed = (uint32_t)p->n_allowed,
        .allowed = p->allowed_ids,
        .bad_ids = p->bad_ids,
        .bad_len = p->bad_lens,
        .n_bad = (uint32_t)p->n_bad,
        .stop_ids = p->stop_ids,
        .n_stop = (uint32_t)p->n_stop_ids,
        .min_tokens = p->min_tokens,
    };
    *any = out->logprobs || differs(out->repetition, 1) || differs(out->presence, 0) ||
           differs(out->frequency, 0) || out->n_bias > 0 || out->n_allowed > 0 || out->n_bad > 0 ||
           out->n_stop > 0 || out->min_tokens > 0;
    return ROSE_OK;
}

/* ---- stop strings ---- */

enum { MAX_STOPS = 128 };

rose_status rose_lib_stops(const rose_lib_params *p, rose_stops *out, rose_err *err)
{
    rose_status st = check_list("stop", p->stop, p->n_stop, MAX_STOPS, err);
    out->include = p->include_stop != 0;
    for (size_t i = 0; i < p->n_stop && st == ROSE_OK; i++) {
        const char *s = p->stop[i];
        const size_t n = s != NULL ? strnlen(s, ROSE_STOP_MAX_BYTES + 1) : 0;
        if (n == 0 || n > ROSE_STOP_MAX_BYTES)
            return rose_fail(err, ROSE_E_INVAL, "stop[%zu] is %s: a stop string has 1 to %d bytes",
                             i,
                             s == NULL ? "NULL"
                             : n == 0  ? "empty"
                                       : "too long",
                             ROSE_STOP_MAX_BYTES);
        st = rose_stops_add(out, s, n);
    }
    return st;
}

/* ---- structured output ---- */

/* Most bytes of grammars that are kept for later requests; the default of --grammar-cache-bytes. */
#define MAX_CACHE_BYTES ((size_t)128 << 20)

static const rose_guide_ops guide_ops = ROSE_MATCHER_GUIDE;

static rose_status get_cache(rose_lib *rose, rose_grammar_cache **out, rose_err *err)
{
    const rose_arch *a = rose_engine_arch(rose->engine);
    rose_status st = ROSE_OK;
    pthread_mutex_lock(&rose->grammar_lock);
    if (rose->grammars == NULL)
        st = rose_grammar_cache_open(&rose->grammars, rose->tok, a->vocab_size, a->eos_ids,
                                     a->n_eos, MAX_CACHE_BYTES, err);
    *out = rose->grammars;
    pthread_mutex_unlock(&rose->grammar_lock);
    return st;
}

/* FREE has none. */
static const rose_grammar_kind kinds[] = {
    [ROSE_LIB_JSON_OBJECT] = ROSE_GRAMMAR_JSON_OBJECT,
    [ROSE_LIB_JSON_SCHEMA] = ROSE_GRAMMAR_JSON_SCHEMA,
    [ROSE_LIB_REGEX] = ROSE_GRAMMAR_REGEX,
    [ROSE_LIB_CHOICE] = ROSE_GRAMMAR_CHOICE,
    [ROSE_LIB_GRAMMAR] = ROSE_GRAMMAR_EBNF,
    [ROSE_LIB_TAG] = ROSE_GRAMMAR_TAG,
};

rose_status rose_lib_guide(rose_lib *rose, const rose_lib_params *p, rose_guide *out, rose_err *err)
{
    rose_grammar_cache *cache;
    rose_grammar *grammar = NULL;
    rose_matcher *m = NULL;
    const bool object = p->structure == ROSE_LIB_JSON_OBJECT;
    *out = (rose_guide){0};
    if (p->structure == ROSE_LIB_FREE) return ROSE_OK;
    if ((size_t)p->structure >= sizeof kinds / sizeof *kinds)
        return rose_fail(err, ROSE_E_INVAL, "structure is %d: it must be one of rose_lib_structure",
                         (int)p->structure);
    if (p->structure_text == NULL && !object)
        return rose_fail(err, ROSE_E_INVAL,
                         "structure_text is NULL: this structure needs its schema, expression, "
                         "list or grammar there");
    const char *text = object ? "" : p->structure_text;
    rose_status st = get_cache(rose, &cache, err);
    if (st == ROSE_OK)
        st = rose_grammar_cache_get(&grammar, cache, kinds[p->structure], p->structure_ordered != 0,
                                    text, strlen(text), NULL, err);
    if (st == ROSE_OK) st = rose_matcher_create(&m, grammar, err);
    rose_grammar_unref(grammar); /* the matcher has a reference of its own */
    if (st == ROSE_OK) *out = (rose_guide){.ops = &guide_ops, .state = m};
    return st == ROSE_E_UNSUPPORTED ? ROSE_E_INVAL : st; /* of the structure, not of the model */
}
