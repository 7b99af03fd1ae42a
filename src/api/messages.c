/* api/messages.c - the messages of a request become text with marks: by the request's own template,
 * the model's, or the plain one. Runs on a tokenizer worker, because a template is a program. */
#include <stdlib.h>

#include "api/api_internal.h"
#include "base/clock.h"

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
    if (st == ROSE_E_NOMEM)
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

bool rose_api_messages_render(rose_template_text *out, const rose_api_params *p,
                              const rose_api_prompt_ctx *c, rose_api_error *err)
{
    const rose_api *a = c->api;
    rose_err e = {0};
    rose_chat *own = NULL;
    rose_json *kwargs = NULL;
    *out = (rose_template_text){0};
    if (a->o.chat == NULL && p->chat_template == NULL) return render_plain(out, p, c, err);
    if (p->chat_template != NULL) {
        const rose_status st =
            rose_chat_derive(&own, a->o.trusted, rose_json_text(p->chat_template),
                             rose_json_text_len(p->chat_template), &e);
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
                                        .now_s = rose_unix_time()};
        ok = !failed(rose_chat_render(own != NULL ? own : a->o.chat, &in, out, &e), &e, "messages",
                     err);
    }
    rose_json_decref(kwargs);
    rose_chat_close(own);
    return ok;
}
