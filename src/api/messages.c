/* api/messages.c - the messages of a request become text with marks: by the request's own template,
 * the model's, or the plain one. Runs on a tokenizer worker, because a template is a program. */
#include <stdlib.h>

#include "api/api_internal.h"
#include "base/clock.h"

/* Steps of a template that may run on any worker, about 10 ms, and one more for each byte of the
 * body. A render that needs more begins again when the job may compile: then it never occupies more
 * workers than grammars do. */
enum { QUICK_STEPS = 250000 };

/* A longer template of a request counts as slow before it is parsed; models have at most 20 KB. */
enum { MAX_QUICK_TEMPLATE = 64 << 10 };

/* The text of the plain template. All of it counts as message text, so that no special token
 * matches. */
static bool render_plain(rose_template_text *out, const rose_api_params *p,
                         const rose_api_prompt_ctx *c, rose_api_error *err)
{
    rose_api_out text = {0};
    bool ok = rose_api_chat_render(&text, p, c->ignored, err);
    if (ok && (rose_buf_str(&text.b) == NULL || (out->runs = malloc(sizeof *out->runs)) == NULL))
        ok = rose_api_fail_nomem(err);
    if (!ok) {
        rose_api_out_free(&text);
        return false;
    }
    out->bytes = text.b.data; /* ownership moves */
    out->len = text.b.len;
    out->runs[0] = (rose_template_run){out->len, true};
    out->n_runs = 1;
    return true;
}

static bool failed(rose_status st, const rose_err *e, const char *param, rose_api_error *err)
{
    if (st == ROSE_OK) return false;
    if (st == ROSE_E_CLOSED)
        rose_api_fail(err, 499, NULL, NULL, "the client has left");
    else if (st == ROSE_E_NOMEM)
        rose_api_fail_nomem(err);
    else
        rose_api_fail(err, 400, st == ROSE_E_UNSUPPORTED ? "unsupported_field" : NULL, param, "%s",
                      e->msg);
    return true;
}

/* *out: the server's variables and then the request's, a new reference; NULL: there are none. */
static bool merge_kwargs(rose_json **out, const rose_json *ours, const rose_json *theirs,
                         rose_api_error *err)
{
    *out = NULL;
    if (ours == NULL && theirs == NULL) return true;
    /* A copy, because threads share ours. */
    *out = ours != NULL ? rose_json_copy(ours) : rose_json_object();
    if (*out != NULL && (theirs == NULL || rose_json_update(*out, theirs) == 0)) return true;
    rose_json_decref(*out);
    *out = NULL;
    return rose_api_fail_nomem(err);
}

/* False: the job must wait until it may render slowly, or is refused. */
static bool may_be_slow(rose_api_job *j, rose_api_error *err)
{
    if (j->right != ROSE_API_TURN_RUNS) j->turn.nth = ROSE_API_LAST_TURN;
    const rose_status st = rose_api_workers_may_compile(j->api->workers, j);
    j->declined = st == ROSE_E_EMPTY;
    *err = (rose_api_error){0};
    if (st == ROSE_E_FULL) rose_api_fail_status(err, st, NULL, rose_api_engine(j->api));
    return st == ROSE_OK;
}

/* What a template may cost at first. With the right to be slow, or without workers, it may take its
 * time at once (steps is 0). used: borrowed. */
static rose_template_limits first_limits(const rose_api_prompt_ctx *c, uint64_t *used)
{
    rose_template_limits limits = {
        .cpu_ms = c->api->o.template_ms, .stop = c->gone, .spent_ns = c->template_ns, .used = used};
    *used = 0;
    if (c->job->right != ROSE_API_TURN_RUNS && c->api->workers != NULL)
        limits.steps = QUICK_STEPS + c->job->body_len;
    return limits;
}

/* Whether what has just failed shall be tried again without a limit of steps. */
static bool try_longer(rose_template_limits *limits, rose_api_job *j, rose_api_error *err)
{
    if (limits->steps == 0 || *limits->used <= limits->steps) return false;
    limits->steps = 0;
    return may_be_slow(j, err);
}

bool rose_api_own_template(rose_chat **out, const rose_api_params *p, const rose_api_prompt_ctx *c,
                           rose_api_error *err)
{
    uint64_t used;
    bool ok;
    *out = NULL;
    if (p->chat_template == NULL) return true;
    const size_t len = rose_json_text_len(p->chat_template);
    rose_template_limits limits = first_limits(c, &used);
    if (limits.steps > 0 && len > MAX_QUICK_TEMPLATE) {
        if (!may_be_slow(c->job, err)) return false;
        limits.steps = 0;
    }
    do {
        rose_err e = {0};
        const rose_status st = rose_chat_derive(out, c->api->o.trusted,
                                                rose_json_text(p->chat_template), len, &limits, &e);
        ok = !failed(st, &e, "chat_template", err);
    } while (!ok && try_longer(&limits, c->job, err));
    return ok;
}

static bool render(rose_template_text *out, const rose_api_params *p, const rose_api_prompt_ctx *c,
                   rose_api_error *err)
{
    rose_json *kwargs = NULL;
    uint64_t used;
    bool ok;
    if (c->chat == NULL) return render_plain(out, p, c, err);
    if (!merge_kwargs(&kwargs, c->api->chat_kwargs, p->chat_kwargs, err)) return false;
    rose_template_limits limits = first_limits(c, &used);
    do {
        rose_err e = {0};
        const rose_template_input in = {.messages = p->messages,
                                        .tools = p->tools,
                                        .documents = p->documents,
                                        .kwargs = kwargs,
                                        .add_generation_prompt = p->add_generation_prompt,
                                        .continue_final_message = p->continue_final,
                                        .now_s = rose_unix_time(),
                                        .limits = limits};
        ok = !failed(rose_chat_render(c->chat, &in, out, &e), &e, "messages", err);
    } while (!ok && try_longer(&limits, c->job, err));
    rose_json_decref(kwargs);
    return ok;
}

bool rose_api_messages_render(rose_template_text *out, const rose_api_params *p,
                              const rose_api_prompt_ctx *c, rose_api_error *err)
{
    rose_err e = {0};
    rose_json *messages = NULL;
    rose_api_params own = *p;
    bool describe;
    *out = (rose_template_text){0};
    (void)rose_chat_calls(c->chat, c->api->o.tool_call_parser, &describe);
    if (!describe) return render(out, p, c, err);
    if (failed(rose_chat_describe(&messages, p->messages, p->tools, &e), &e, "messages", err))
        return false;
    own.messages = messages;
    own.tools = NULL;
    const bool ok = render(out, &own, c, err);
    rose_json_decref(messages);
    return ok;
}
