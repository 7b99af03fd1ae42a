/* api/reply.c - the parts of a reply that occur once per request: usage, times, and the reply
 * that is not streamed. All times are from the monotonic clock; docs/API.md defines the names. */
#include <string.h>

#include "api/api_internal.h"

/* Returns the cached prompt tokens, counted once per prompt: the smallest number that one of its
 * choices found. The choices of a prompt also share pages with each other, but clients do not
 * ask about that. */
uint64_t rose_api_cached_tokens(const rose_api_job *j)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < j->n_choices; i += j->asked.n) {
        uint32_t least = UINT32_MAX;
        for (uint32_t k = i; k < i + j->asked.n; k++) {
            if (j->choices[k].n_cached < least) least = j->choices[k].n_cached;
        }
        total += least;
    }
    return total;
}

void rose_api_usage_counts(rose_api_out *o, uint64_t prompt, uint64_t completion)
{
    rose_api_json(o, "{'prompt_tokens':%zu,'completion_tokens':%zu,'total_tokens':%zu",
                  (size_t)prompt, (size_t)completion, (size_t)(prompt + completion));
}

void rose_api_usage_json(rose_api_out *o, const rose_api_job *j)
{
    uint64_t completion = 0, reasoning = 0, tried = 0, right = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        completion += j->choices[i].n_tokens;
        reasoning += j->choices[i].n_reasoning;
        tried += j->choices[i].guesses.n_predicted;
        right += j->choices[i].guesses.n_predicted_right;
    }
    rose_api_usage_counts(o, j->n_prompt_tokens, completion);
    rose_api_json(o, ",'prompt_tokens_details':{'cached_tokens':%llu}",
                  (unsigned long long)rose_api_cached_tokens(j));
    if (j->kind == ROSE_API_CHAT) {
        rose_api_json(o, ",'completion_tokens_details':{'reasoning_tokens':%llu",
                      (unsigned long long)reasoning);
        if (j->asked.prediction)
            rose_api_json(o, ",'accepted_prediction_tokens':%llu,'rejected_prediction_tokens':%llu",
                          (unsigned long long)right, (unsigned long long)(tried - right));
        rose_api_puts(o, "}");
    }
    rose_api_puts(o, "}");
}

/* Returns the milliseconds from time a to time b; 0 if one of the two events did not happen, or
 * if b is before a. */
static double ms_between(uint64_t a, uint64_t b)
{
    return a == 0 || b <= a ? 0.0 : (double)(b - a) * 1e-6;
}

/* Returns when a choice had its first token, or its scores; 0 before that. */
static uint64_t prefilled_ns(const rose_api_choice *c)
{
    return c->job->asked.max_tokens == 0 ? c->t_last_ns : c->t_first_ns;
}

/* Returns the choice whose first token came before that of every other choice; NULL if no choice
 * has a token yet. */
static const rose_api_choice *first_choice(const rose_api_job *j)
{
    const rose_api_choice *first = NULL;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        const rose_api_choice *c = &j->choices[i];
        if (prefilled_ns(c) == 0) continue;
        if (first == NULL || prefilled_ns(c) < prefilled_ns(first)) first = c;
    }
    return first;
}

/* Mean time per output token over the choices with two tokens or more. */
static double tpot_ms(const rose_api_job *j)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        const rose_api_choice *c = &j->choices[i];
        if (c->n_tokens < 2) continue;
        sum += ms_between(c->t_first_ns, c->t_last_ns) / (c->n_tokens - 1);
        n++;
    }
    return n == 0 ? 0.0 : sum / n;
}

static uint64_t last_token_ns(const rose_api_job *j)
{
    uint64_t t = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        if (j->choices[i].t_last_ns > t) t = j->choices[i].t_last_ns;
    }
    return t;
}

static uint64_t first_admitted_ns(const rose_api_job *j)
{
    const rose_api_choice *c = first_choice(j);
    return c == NULL ? 0 : c->t_admitted_ns;
}

void rose_api_timings_json(rose_api_out *o, const rose_api_job *j)
{
    const rose_api_choice *first = first_choice(j);
    uint64_t t_first = first == NULL ? 0 : first->t_first_ns, t_admitted = first_admitted_ns(j);
    uint64_t t_prefilled = first == NULL ? 0 : prefilled_ns(first);
    uint64_t predicted = 0, tried = 0, right = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        predicted += j->choices[i].n_tokens;
        tried += j->choices[i].guesses.n_tried;
        right += j->choices[i].guesses.n_right;
    }
    rose_api_json(o, "{'prompt_n':%u,'predicted_n':%llu", j->n_prompt_tokens,
                  (unsigned long long)predicted);
    if (tried > 0)
        rose_api_json(o, ",'draft_n':%llu,'draft_n_accepted':%llu", (unsigned long long)tried,
                      (unsigned long long)right);
    rose_api_json(o, ",'receive_ms':%.3f,'worker_wait_ms':%.3f,'parse_ms':%.3f",
                  ms_between(j->t_arrival, j->t_complete), ms_between(j->t_complete, j->t_worker),
                  ms_between(j->t_worker, j->t_parsed));
    rose_api_json(o, ",'tokenize_ms':%.3f,'queue_wait_ms':%.3f,'prefill_to_first_ms':%.3f",
                  ms_between(j->t_parsed, j->t_tokenized), ms_between(j->t_tokenized, t_admitted),
                  ms_between(t_admitted, t_prefilled));
    rose_api_json(o, ",'ttft_ms':%.3f,'tpot_ms':%.3f,'e2e_ms':%.3f}",
                  ms_between(j->t_arrival, t_first), tpot_ms(j),
                  ms_between(j->t_arrival, last_token_ns(j)));
}

void rose_api_server_timing(rose_api_out *o, const rose_api_job *j)
{
    const rose_api_choice *first = first_choice(j);
    uint64_t t_first = first == NULL ? 0 : first->t_first_ns, t_admitted = first_admitted_ns(j);
    uint64_t t_prefilled = first == NULL ? 0 : prefilled_ns(first);
    rose_api_putf(o, "Server-Timing: parse;dur=%.3f, tokenize;dur=%.3f",
                  ms_between(j->t_worker, j->t_parsed), ms_between(j->t_parsed, j->t_tokenized));
    if (t_admitted != 0)
        rose_api_putf(o, ", queue_wait;dur=%.3f, prefill_to_first;dur=%.3f",
                      ms_between(j->t_tokenized, t_admitted), ms_between(t_admitted, t_prefilled));
    if (t_first != 0) rose_api_putf(o, ", ttft;dur=%.3f", ms_between(j->t_arrival, t_first));
    if (j->n_choices != 0 && j->n_released == j->n_choices)
        rose_api_putf(o, ", e2e;dur=%.3f", ms_between(j->t_arrival, last_token_ns(j)));
    rose_api_puts(o, "\r\n");
}

void rose_api_stop_reason(rose_api_out *o, const rose_api_choice *c)
{
    rose_api_json(o, ",'stop_reason':");
    if (c->stop_kind == ROSE_API_STOP_STRING) {
        const struct rose_stop *s = &c->job->stops.v[c->stop.which];
        rose_api_put_string(o, s->text, s->len);
    } else if (c->stop_kind == ROSE_API_STOP_ID) {
        rose_api_put_u64(o, c->stop_id);
    } else {
        rose_api_puts(o, "null");
    }
}

/* The former form of a reply's call. */
static void put_function_call(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part)
{
    rose_api_json(o, ",'function_call':{'name':%-.*s,'arguments':", (int)part->len,
                  c->text.data + part->begin);
    rose_api_put_args(o, c, part);
    rose_api_puts(o, "}");
}

static void put_calls(rose_api_out *o, const rose_api_choice *c)
{
    const char *before = ",\"tool_calls\":[";
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const rose_api_part *part = &c->parts[i];
        if (part->kind != ROSE_API_PART_CALL) continue;
        if (c->job->reading.functions) {
            put_function_call(o, c, part);
            return;
        }
        rose_api_json(o, "%s{'id':'%s','type':'function','function':{'name':%-.*s,'arguments':",
                      before, part->id, (int)part->len, c->text.data + part->begin);
        rose_api_put_args(o, c, part);
        rose_api_puts(o, "}}");
        before = ",";
    }
    if (before[1] == '\0') rose_api_puts(o, "]");
}

/* A reply without text has the content null, if it has calls or reasoning instead. */
static void put_message(rose_api_out *o, const rose_api_choice *c)
{
    const bool thinks = rose_api_has_part(c, ROSE_API_PART_REASONING);
    const bool other = thinks || rose_api_has_part(c, ROSE_API_PART_CALL);
    rose_api_json(o, "'message':{'role':'assistant','content':");
    if (other && !rose_api_has_part(c, ROSE_API_PART_TEXT))
        rose_api_puts(o, "null");
    else
        rose_api_put_parts(o, c, ROSE_API_PART_TEXT);
    if (thinks) {
        rose_api_json(o, ",'reasoning_content':");
        rose_api_put_parts(o, c, ROSE_API_PART_REASONING);
        rose_api_json(o, ",'reasoning':");
        rose_api_put_parts(o, c, ROSE_API_PART_REASONING);
    }
    put_calls(o, c);
    rose_api_json(o, ",'refusal':null}");
}

static void put_choice(rose_api_out *o, const rose_api_job *j, const rose_api_choice *c)
{
    rose_api_json(o, "{'index':%u,", c->index);
    if (j->kind == ROSE_API_CHAT) {
        put_message(o, c);
    } else {
        rose_api_json(o, "'text':");
        rose_api_put_parts(o, c, ROSE_API_PART_TEXT);
    }
    rose_api_json(o, ",'logprobs':");
    rose_api_extra_logprobs(o, c);
    rose_api_json(o, ",'finish_reason':'%s'", c->finish);
    rose_api_stop_reason(o, c);
    rose_api_extra_members(o, c, true);
    rose_api_puts(o, "}");
}

void rose_api_reply_json(rose_api_out *o, const rose_api_job *j)
{
    rose_api_json(o, "{'id':'%s','object':'%s','created':%lld,'model':%-s,'choices':[", j->id,
                  j->kind == ROSE_API_CHAT ? "chat.completion" : "text_completion",
                  (long long)j->created, j->api->o.model_id);
    for (uint32_t i = 0; i < j->n_choices; i++) {
        if (i > 0) rose_api_puts(o, ",");
        put_choice(o, j, &j->choices[i]);
    }
    rose_api_puts(o, "]");
    rose_api_extra_chat(o, &j->choices[0]);
    rose_api_json(o, ",'usage':");
    rose_api_usage_json(o, j);
    rose_api_json(o, ",'timings':");
    rose_api_timings_json(o, j);
    rose_api_puts(o, "}");
}
