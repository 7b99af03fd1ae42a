/* engine/rules.c - see rules_internal.h. Nothing here allocates after create. */
#include "engine/rules_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bump.h"

enum { FIRST_INDEX = 16 };

/* ---- checks ---- */

static rose_status check_ids(const char *what, const uint32_t *ids, uint32_t n, uint32_t most,
                             uint32_t vocab, rose_err *err)
{
    if (n > most)
        return rose_fail(err, ROSE_E_INVAL, "%s holds %u ids, the limit is %u", what, n, most);
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= vocab)
            return rose_fail(err, ROSE_E_INVAL, "%s names id %u: ids end at %u", what, ids[i],
                             vocab - 1);
    }
    return ROSE_OK;
}

static rose_status check_numbers(const rose_request_rules *q, const rose_rules_ctx *c,
                                 rose_err *err)
{
    if (!(q->repetition > 0 && q->repetition <= 100))
        return rose_fail(err, ROSE_E_INVAL, "repetition_penalty is %g: it must be above 0",
                         (double)q->repetition);
    if (!(fabsf(q->presence) <= 100) || !(fabsf(q->frequency) <= 100))
        return rose_fail(err, ROSE_E_INVAL, "a penalty is out of range");
    for (uint32_t i = 0; i < q->n_bias; i++) {
        if (!(fabsf(q->bias[i]) <= 1e6f))
            return rose_fail(err, ROSE_E_INVAL, "the bias of id %u is out of range",
                             q->bias_ids[i]);
    }
    if (q->n_top > ROSE_MAX_TOP_LOGPROBS || q->prompt_n_top > ROSE_MAX_TOP_LOGPROBS ||
        q->n_top > c->vocab || q->prompt_n_top > c->vocab)
        return rose_fail(err, ROSE_E_INVAL, "%u logprobs for each token: at most %u are possible",
                         q->n_top > q->prompt_n_top ? q->n_top : q->prompt_n_top,
                         ROSE_MAX_TOP_LOGPROBS);
    return ROSE_OK;
}

static uint64_t n_bad_ids(const rose_request_rules *q)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < q->n_bad; i++)
        n += q->bad_len[i];
    return n;
}

static bool has_penalties(const rose_request_rules *q)
{
    return q->repetition < 1 || q->repetition > 1 || q->presence < 0 || q->presence > 0 ||
           q->frequency < 0 || q->frequency > 0;
}

static rose_status check_caps(const rose_request_rules *q, const rose_rules_ctx *c, rose_err *err)
{
    bool reports = q->logprobs || q->prompt_logprobs;
    bool logits =
        q->n_bias > 0 || q->n_allowed > 0 || q->n_bad > 0 || q->min_tokens > 0 || has_penalties(q);
    if (reports && (c->caps & ROSE_CAP_REPORTS) == 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED, "this device gives no logprobs");
    if (logits && (c->caps & ROSE_CAP_LOGIT_RULES) == 0)
        return rose_fail(
            err, ROSE_E_UNSUPPORTED,
            "this device does not support logit_bias, penalties, min_tokens, allowed_token_ids "
            "or bad_words");
    return ROSE_OK;
}

static size_t n_reports(const rose_request_rules *q, const rose_rules_ctx *c)
{
    /* token counts are below 2^29 (the scheduler's limit), so at most 21 entries for each token
     * do not overflow 64 bits */
    size_t n = 0;
    if (q->logprobs) n += (size_t)c->max_tokens * (1 + q->n_top);
    if (q->prompt_logprobs) n += (size_t)c->n_prompt * (1 + q->prompt_n_top);
    return n;
}

rose_status rose_rules_check(const rose_request_rules *q, const rose_rules_ctx *c, rose_err *err)
{
    rose_status st = check_numbers(q, c, err);
    if (st == ROSE_OK)
        st = check_ids("logit_bias", q->bias_ids, q->n_bias, ROSE_MAX_BIAS, c->vocab, err);
    if (st == ROSE_OK)
        st = check_ids("allowed_token_ids", q->allowed, q->n_allowed, c->vocab, c->vocab, err);
    if (st == ROSE_OK)
        st = check_ids("stop_token_ids", q->stop_ids, q->n_stop, ROSE_MAX_STOP_IDS, c->vocab, err);
    if (st == ROSE_OK && (q->n_bad > ROSE_MAX_BAD_IDS || n_bad_ids(q) > ROSE_MAX_BAD_IDS))
        st = rose_fail(err, ROSE_E_INVAL, "bad_words have more than %d tokens", ROSE_MAX_BAD_IDS);
    if (st == ROSE_OK)
        st = check_ids("bad_words", q->bad_ids, (uint32_t)n_bad_ids(q), ROSE_MAX_BAD_IDS, c->vocab,
                       err);
    if (st == ROSE_OK && n_reports(q, c) > ROSE_MAX_REPORT_BYTES / sizeof(rose_logprob))
        st = rose_fail(err, ROSE_E_INVAL, "the logprobs of this request need more than %d MiB",
                       ROSE_MAX_REPORT_BYTES >> 20);
    if (st == ROSE_OK && q->prompt_logprobs && q->prompt_from > 0 && q->prompt_from >= c->n_prompt)
        st = rose_fail(err, ROSE_E_INVAL, "prompt logprobs from position %u of %u tokens",
                       q->prompt_from, c->n_prompt);
    return st == ROSE_OK ? check_caps(q, c, err) : st;
}

/* ---- create ---- */

static uint32_t *take(rose_bump *a, size_t n, const uint32_t *from)
{
    uint32_t *at = rose_bump_take(a, n * sizeof *at);
    if (at != NULL && from != NULL && n > 0) memcpy(at, from, n * sizeof *at);
    return at;
}

static void place(rose_rules *u, rose_bump *a, const rose_request_rules *q, const rose_rules_ctx *c)
{
    /* ids to count: all generated ids and, with a repetition penalty, the ids of the prompt */
    size_t n_seen = 0, n_index = 0;
    if (has_penalties(q)) {
        n_seen = (size_t)c->max_tokens + (q->repetition < 1 || q->repetition > 1 ? c->n_prompt : 0);
        if (n_seen > c->vocab) n_seen = c->vocab;
        for (n_index = FIRST_INDEX; n_index < 2 * n_seen;)
            n_index *= 2;
    }
    u->n_index = (uint32_t)n_index;
    u->stop = take(a, q->n_stop, q->stop_ids);
    u->bad = take(a, (size_t)n_bad_ids(q), q->bad_ids);
    u->bad_len = take(a, q->n_bad, q->bad_len);
    u->n_banned = c->n_eos + q->n_stop + q->n_bad;
    u->banned = take(a, (size_t)(1 + c->n_guess) * u->n_banned, NULL);
    u->out.allowed = take(a, q->n_allowed, q->allowed);
    u->out.bias_ids = take(a, q->n_bias, q->bias_ids);
    u->out.bias = (const float *)(const void *)take(
        a, q->n_bias, (const uint32_t *)(const void *)q->bias); /* a float has its size */
    u->n_counts = (uint32_t)n_seen;
    u->seen = take(a, n_seen, NULL);
    u->counts = take(a, (1 + c->n_guess) * n_seen, NULL);
    u->index = take(a, n_index, NULL);
    if (a->base != NULL) memset(u->index, 0, n_index * sizeof *u->index);
    size_t words = sizeof(rose_logprob) / sizeof(uint32_t); /* it has no larger member */
    u->reports = (rose_logprob *)(void *)take(
        a, q->logprobs ? (size_t)c->max_tokens * (1 + q->n_top) * words : 0, NULL);
    u->prompt_reports = (rose_logprob *)(void *)take(
        a, q->prompt_logprobs ? (size_t)c->n_prompt * (1 + q->prompt_n_top) * words : 0, NULL);
}

/* The cell of id in the index, or the empty one for it. */
static uint32_t find_seen(const rose_rules *u, uint32_t id)
{
    uint32_t at = id * 2654435761u & (u->n_index - 1);
    while (u->index[at] != 0 && u->seen[u->index[at] - 1] != id)
        at = (at + 1) & (u->n_index - 1);
    return at;
}

/* Counts id as seen, and adds `times` to how often it was generated. O(1). */
static void see(rose_rules *u, uint32_t id, uint32_t times)
{
    const uint32_t at = find_seen(u, id);
    if (u->index[at] == 0) {
        u->seen[u->out.n_seen] = id;
        u->counts[u->out.n_seen] = 0;
        u->index[at] = ++u->out.n_seen;
    }
    u->counts[u->index[at] - 1] += times;
}

rose_rules *rose_rules_create(const rose_request_rules *q, const rose_rules_ctx *c)
{
    rose_rules count = {0};
    rose_bump a = {.used = sizeof(rose_rules), .align = sizeof(uint32_t)};
    place(&count, &a, q, c);
    rose_rules *u = malloc(a.used);
    if (u == NULL) return NULL;
    memset(u, 0, sizeof *u);
    a.base = (uint8_t *)u;
    a.used = sizeof *u;
    u->out = (rose_output_rules){.score_id = ROSE_TOKEN_NONE,
                                 .n_top = q->n_top,
                                 .n_allowed = q->n_allowed,
                                 .n_bias = q->n_bias,
                                 .repetition = q->repetition,
                                 .frequency = q->frequency,
                                 .presence = q->presence};
    u->eos = c->eos;
    u->n_eos = c->ignore_eos ? 0 : c->n_eos;
    u->min_tokens = c->guided ? 0 : q->min_tokens;
    u->n_stop = q->n_stop;
    u->n_bad = q->n_bad;
    u->prompt_n_top = q->prompt_n_top;
    u->n_prompt = c->n_prompt;
    u->vocab = c->vocab;
    u->max_tokens = c->max_tokens;
    u->logprobs = q->logprobs;
    u->prompt_logprobs = q->prompt_logprobs;
    u->n_scored = q->prompt_from > 1 ? q->prompt_from : 1; /* nothing predicts the first token */
    place(u, &a, q, c);
    u->out.seen_ids = u->seen;
    u->out.seen_counts = u->counts;
    if (q->repetition < 1 || q->repetition > 1)
        for (uint32_t i = 0; i < c->n_prompt; i++)
            see(u, c->prompt[i], 0);
    return u;
}

/* ---- steps ---- */

static bool ends_with(const rose_event *events, uint32_t n, const uint32_t *ids, uint32_t n_ids)
{
    if (n_ids > n) return false;
    for (uint32_t i = 0; i < n_ids; i++)
        if (events[n - n_ids + i].id != ids[i]) return false;
    return true;
}

static uint32_t find_banned(const rose_rules *u, const rose_event *events, uint32_t n,
                            uint32_t *banned)
{
    uint32_t k = 0;
    if (n < u->min_tokens) {
        for (uint32_t i = 0; i < u->n_eos; i++)
            banned[k++] = u->eos[i];
        for (uint32_t i = 0; i < u->n_stop; i++)
            banned[k++] = u->stop[i];
    }
    const uint32_t *word = u->bad;
    for (uint32_t i = 0; i < u->n_bad; word += u->bad_len[i++]) {
        uint32_t len = u->bad_len[i];
        if (len > 0 && ends_with(events, n, word, len - 1)) banned[k++] = word[len - 1];
    }
    return k;
}

/* Shell's sort: works in place and allocates nothing (qsort of the C library may allocate). */
static void sort_ids(uint32_t *v, uint32_t n)
{
    for (uint32_t gap = n / 2; gap > 0; gap /= 2) {
        for (uint32_t a = gap; a < n; a++) {
            uint32_t id = v[a], b = a;
            for (; b >= gap && v[b - gap] > id; b -= gap)
                v[b] = v[b - gap];
            v[b] = id;
        }
    }
}

static bool has_id(const uint32_t *v, uint32_t n, uint32_t id)
{
    uint32_t lo = 0, hi = n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (v[mid] < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && v[lo] == id;
}

static bool in_mask(const uint32_t *mask, uint32_t id)
{
    return mask == NULL || (mask[id / 32] >> id % 32 & 1) != 0;
}

bool rose_rules_leave_one(rose_rules *u, const uint32_t *mask, const rose_event *events,
                          uint32_t n_generated)
{
    uint32_t n = find_banned(u, events, n_generated, u->banned), n_distinct = 0;
    sort_ids(u->banned, n);
    for (uint32_t i = 0; i < u->out.n_allowed; i++) {
        uint32_t id = u->out.allowed[i];
        if (in_mask(mask, id) && !has_id(u->banned, n, id)) return true;
    }
    if (u->out.n_allowed > 0) return false;
    for (uint32_t id = 0; id < u->vocab && mask != NULL; id++)
        if (in_mask(mask, id) && !has_id(u->banned, n, id)) return true;
    if (mask != NULL) return false;
    for (uint32_t i = 0; i < n; i++)
        n_distinct += i == 0 || u->banned[i] != u->banned[i - 1];
    return n_distinct < u->vocab;
}

bool rose_rules_act(const rose_rules *u, uint32_t n)
{
    return u->logprobs || u->out.n_bias > 0 || u->out.n_allowed > 0 || u->n_bad > 0 ||
           u->n_index > 0 || n < u->min_tokens;
}

/* The counts at `depth`: those of the depth before, and one more for this id of the guess. An id
 * that the text does not have yet stands in `seen` after the ids of the text. */
static void see_guess(rose_rules *u, uint32_t id, uint32_t depth)
{
    uint32_t *counts = u->counts + (size_t)depth * u->n_counts;
    const uint32_t at = find_seen(u, id), n = depth > 1 ? u->n_seen_guess : u->out.n_seen;
    uint32_t k = u->index[at] != 0 ? u->index[at] - 1 : u->out.n_seen;
    memcpy(counts, counts - u->n_counts, n * sizeof *counts);
    while (k >= u->out.n_seen && k < n && u->seen[k] != id)
        k++;
    u->n_seen_guess = n;
    if (k == n) {
        u->seen[k] = id;
        counts[k] = 0;
        u->n_seen_guess++;
    }
    counts[k]++;
}

void rose_rules_next(rose_rules *u, const rose_event *events, uint32_t n_generated, uint32_t depth,
                     rose_output_rules *out)
{
    const uint32_t n = n_generated + depth;
    uint32_t *banned = u->banned + (size_t)depth * u->n_banned;
    *out = u->out;
    out->banned = banned;
    out->n_banned = find_banned(u, events, n, banned);
    if (u->logprobs && n < u->max_tokens) out->report = u->reports + (size_t)n * (1 + u->out.n_top);
    if (depth == 0 || u->n_index == 0) return;
    see_guess(u, events[n - 1].id, depth);
    out->n_seen = u->n_seen_guess;
    out->seen_counts = u->counts + (size_t)depth * u->n_counts;
}

void rose_rules_score(rose_rules *u, uint32_t pos, uint32_t id, rose_output_rules *out)
{
    *out = (rose_output_rules){.score_id = id, .repetition = 1};
    if (!u->prompt_logprobs) return;
    out->n_top = u->prompt_n_top;
    out->report = u->prompt_reports + (size_t)pos * (1 + u->prompt_n_top);
    u->n_scored = pos + 1;
}

bool rose_rules_stops(const rose_rules *u, uint32_t id)
{
    for (uint32_t i = 0; i < u->n_stop; i++)
        if (u->stop[i] == id) return true;
    return false;
}

void rose_rules_note(rose_rules *u, uint32_t id)
{
    if (u->n_index > 0) see(u, id, 1);
}
