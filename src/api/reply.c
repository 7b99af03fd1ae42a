/* api/reply.c - what is said once per request: usage, times, the reply that is not streamed. All
 * times are from the monotonic clock; the words are those of docs/API.md. */
#include <string.h>

#include "api/api_internal.h"

void api_usage_json(api_out *o, const api_job *j)
{
    uint64_t completion = 0;
    for (uint32_t i = 0; i < j->n_choices; i++)
        completion += j->choices[i].n_tokens;
    api_putf(o, "{\"prompt_tokens\":%u,\"completion_tokens\":%llu,\"total_tokens\":%llu}",
             j->n_prompt_tokens, (unsigned long long)completion,
             (unsigned long long)completion + j->n_prompt_tokens);
}

/* ms from a to b; 0 when either did not happen or they are out of order. */
static double ms_between(uint64_t a, uint64_t b)
{
    return a == 0 || b <= a ? 0.0 : (double)(b - a) * 1e-6;
}

/* The choice that gave the first token of the request, NULL before it. */
static const api_choice *first_choice(const api_job *j)
{
    const api_choice *first = NULL;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        const api_choice *c = &j->choices[i];
        if (c->t_first_ns != 0 && (first == NULL || c->t_first_ns < first->t_first_ns)) first = c;
    }
    return first;
}

/* Mean over the choices with two tokens or more. */
static double tpot_ms(const api_job *j)
{
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        const api_choice *c = &j->choices[i];
        if (c->n_tokens < 2) continue;
        sum += ms_between(c->t_first_ns, c->t_last_ns) / (c->n_tokens - 1);
        n++;
    }
    return n == 0 ? 0.0 : sum / n;
}

static uint64_t last_token_ns(const api_job *j)
{
    uint64_t t = 0;
    for (uint32_t i = 0; i < j->n_choices; i++) {
        if (j->choices[i].t_last_ns > t) t = j->choices[i].t_last_ns;
    }
    return t;
}

static uint64_t first_admitted_ns(const api_job *j)
{
    const api_choice *c = first_choice(j);
    return c == NULL ? 0 : c->t_admitted_ns;
}

void api_timings_json(api_out *o, const api_job *j)
{
    const api_choice *first = first_choice(j);
    uint64_t t_first = first == NULL ? 0 : first->t_first_ns, t_admitted = first_admitted_ns(j);
    uint64_t predicted = 0;
    for (uint32_t i = 0; i < j->n_choices; i++)
        predicted += j->choices[i].n_tokens;
    api_putf(o, "{\"prompt_n\":%u,\"predicted_n\":%llu", j->n_prompt_tokens,
             (unsigned long long)predicted);
    api_putf(o, ",\"receive_ms\":%.3f,\"worker_wait_ms\":%.3f,\"parse_ms\":%.3f",
             ms_between(j->t_arrival, j->t_complete), ms_between(j->t_complete, j->t_worker),
             ms_between(j->t_worker, j->t_parsed));
    api_putf(o, ",\"tokenize_ms\":%.3f,\"queue_wait_ms\":%.3f,\"prefill_to_first_ms\":%.3f",
             ms_between(j->t_parsed, j->t_tokenized), ms_between(j->t_tokenized, t_admitted),
             ms_between(t_admitted, t_first));
    api_putf(o, ",\"ttft_ms\":%.3f,\"tpot_ms\":%.3f,\"e2e_ms\":%.3f}",
             ms_between(j->t_arrival, t_first), tpot_ms(j),
             ms_between(j->t_arrival, last_token_ns(j)));
}

void api_server_timing(api_out *o, const api_job *j)
{
    const api_choice *first = first_choice(j);
    uint64_t t_first = first == NULL ? 0 : first->t_first_ns, t_admitted = first_admitted_ns(j);
    api_putf(o, "Server-Timing: parse;dur=%.3f, tokenize;dur=%.3f",
             ms_between(j->t_worker, j->t_parsed), ms_between(j->t_parsed, j->t_tokenized));
    if (t_admitted != 0)
        api_putf(o, ", queue_wait;dur=%.3f, prefill_to_first;dur=%.3f",
                 ms_between(j->t_tokenized, t_admitted), ms_between(t_admitted, t_first));
    if (t_first != 0) api_putf(o, ", ttft;dur=%.3f", ms_between(j->t_arrival, t_first));
    if (j->n_choices != 0 && j->n_released == j->n_choices)
        api_putf(o, ", e2e;dur=%.3f", ms_between(j->t_arrival, last_token_ns(j)));
    api_puts(o, "\r\n");
}

static void put_choice(api_out *o, const api_job *j, const api_choice *c)
{
    api_putf(o, "{\"index\":%u,", c->index);
    api_puts(o, j->kind == API_CHAT ? "\"message\":{\"role\":\"assistant\",\"content\":"
                                    : "\"text\":");
    api_put_string(o, c->text.data, c->text.len);
    if (j->kind == API_CHAT) api_puts(o, ",\"refusal\":null}");
    api_puts(o, ",\"logprobs\":null,\"finish_reason\":\"");
    api_puts(o, c->finish);
    api_puts(o, "\"}");
}

void api_reply_json(api_out *o, const api_job *j)
{
    api_puts(o, "{\"id\":\"");
    api_puts(o, j->id);
    api_puts(o, "\",\"object\":\"");
    api_puts(o, j->kind == API_CHAT ? "chat.completion" : "text_completion");
    api_putf(o, "\",\"created\":%lld,\"model\":", (long long)j->created);
    api_put_string(o, j->api->model_id, strlen(j->api->model_id));
    api_puts(o, ",\"choices\":[");
    for (uint32_t i = 0; i < j->n_choices; i++) {
        if (i > 0) api_puts(o, ",");
        put_choice(o, j, &j->choices[i]);
    }
    api_puts(o, "],\"usage\":");
    api_usage_json(o, j);
    api_puts(o, ",\"timings\":");
    api_timings_json(o, j);
    api_puts(o, "}");
}
