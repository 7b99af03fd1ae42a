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
    /* A deep copy, because threads share ours, and so must not count references to its values. */
    *out = ours != NULL ? rose_json_deep_copy(ours) : rose_json_object();
    if (*out != NULL && (theirs == NULL || rose_json_update(*out, theirs) == 0)) return true;
    rose_json_decref(*out);
    *out = NULL;
    return rose_api_fail_nomem(err);
}

/* Renders with the request's own template or the model's. */
static bool render(rose_template_text *out, const rose_api_params *p, const rose_api *a,
                   const rose_template_limits *limits, rose_api_error *err)
{
    rose_err e = {0};
    rose_chat *own = NULL;
    rose_json *kwargs = NULL;
    if (p->chat_template != NULL) {
        const rose_status st =
            rose_chat_derive(&own, a->o.trusted, rose_json_text(p->chat_template),
                             rose_json_text_len(p->chat_template), limits, &e);
        if (failed(st, &e, "chat_template", err)) return false;
    }
    bool ok = merge_kwargs(&kwargs, a->chat_kwargs, p->chat_kwargs, err);
    if (ok) {
        const rose_template_input in = {.messages = p->messages,
                                        .tools = p->tools,
                                        .documents = p->documents,
                                        .kwargs = kwargs,
                                        .add_generation_prompt = p->add_generation_prompt,
                                        .continue_final_message = p->continue_final,
                                        .now_s = rose_unix_time(),
                                        .limits = *limits};
        ok = !failed(rose_chat_render(own != NULL ? own : a->o.chat, &in, out, &e), &e, "messages",
                     err);
    }
    rose_json_decref(kwargs);
    rose_chat_close(own);
    return ok;
}

/* False: the job must wait until it may render slowly, or is refused. */
static bool may_be_slow(rose_api_job *j, rose_api_error *err)
{
    if (!j->compiles) {
        j->turn.nth = ROSE_API_LAST_TURN;
        j->turn.text = (uintptr_t)j; /* no cache has it, so it waits for no other turn's result */
    }
    const rose_status st = rose_api_workers_may_compile(j->api->workers, j);
    j->declined = st == ROSE_E_EMPTY;
    *err = (rose_api_error){0};
    if (st == ROSE_E_FULL)
        rose_api_fail_status(err, st, NULL,
                             atomic_load_explicit(&j->api->engine, memory_order_acquire));
    return st == ROSE_OK;
}

bool rose_api_messages_render(rose_template_text *out, const rose_api_params *p,
                              const rose_api_prompt_ctx *c, rose_api_error *err)
{
    const rose_api *a = c->api;
    rose_api_job *j = c->job;
    uint64_t used = 0;
    *out = (rose_template_text){0};
    if (a->o.chat == NULL && p->chat_template == NULL) return render_plain(out, p, c, err);
    rose_template_limits limits = {.cpu_ms = a->o.template_ms, .stop = c->gone, .used = &used};
    /* With this right, or without workers, a template may take its time at once. */
    if (!j->compiles && a->workers != NULL) limits.steps = QUICK_STEPS + j->body_len;
    if (limits.steps > 0 && rose_json_text_len(p->chat_template) > MAX_QUICK_TEMPLATE) {
        if (!may_be_slow(j, err)) return false;
        limits.steps = 0;
    }
    if (render(out, p, a, &limits, err)) return true;
    if (limits.steps == 0 || used <= limits.steps) return false;
    limits.steps = 0;
    return may_be_slow(j, err) && render(out, p, a, &limits, err);
}
