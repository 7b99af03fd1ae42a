/* lib/chat.c - chats: messages, as JSON or as pairs, through the model's chat template. */
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "lib/lib_internal.h"

static rose_status parse(rose_json **out, const char *text, size_t len, const char *name,
                         rose_err *err)
{
    rose_json_error e;
    const rose_status st = rose_json_parse(out, text, len, ROSE_JSON_NUL, &e);
    if (st != ROSE_E_FORMAT) return st;
    return rose_fail(err, ROSE_E_INVAL, "%s is not valid JSON: %.120s (line %d)", name, e.text,
                     e.line);
}

static rose_status wrong_option(const char *key, const char *wanted, rose_err *err)
{
    return rose_fail(err, ROSE_E_INVAL, "options_json: %s must be %s", key, wanted);
}

/* Fills in and *template; both borrow from options. */
static rose_status read_chat_options(rose_template_input *in, const rose_json **template,
                                     const rose_json *options, rose_err *err)
{
    const char *key;
    rose_json *v;
    if (!rose_json_is_object(options))
        return rose_fail(err, ROSE_E_INVAL, "options_json must be an object");
    rose_json_each (options, key, v) {
        const bool list = strcmp(key, "tools") == 0 || strcmp(key, "documents") == 0;
        const bool more = strcmp(key, "add_generation_prompt") == 0;
        if (list && !rose_json_is_array(v)) return wrong_option(key, "a list", err);
        if (list && key[0] == 't') {
            in->tools = v;
        } else if (list) {
            in->documents = v;
        } else if (strcmp(key, "chat_template") == 0) {
            if (!rose_json_is_string(v)) return wrong_option(key, "a string", err);
            *template = v;
        } else if (strcmp(key, "chat_template_kwargs") == 0) {
            if (!rose_json_is_object(v)) return wrong_option(key, "an object", err);
            in->kwargs = v;
        } else if (more || strcmp(key, "continue_final_message") == 0) {
            if (!rose_json_is_boolean(v)) return wrong_option(key, "true or false", err);
            *(more ? &in->add_generation_prompt : &in->continue_final_message) =
                rose_json_is_true(v);
        } else {
            return rose_fail(err, ROSE_E_INVAL, "options_json: '%.80s' is unknown", key);
        }
    }
    return ROSE_OK;
}

/* Renders messages by the options' own template, else by the model's. */
static rose_status render(rose_lib *rose, const rose_json *messages, const rose_json *options,
                          rose_template_text *text, rose_err *err)
{
    const rose_template_limits limits = {0};
    const rose_json *template = NULL;
    rose_chat *own = NULL;
    rose_template_input in = {
        .messages = messages, .add_generation_prompt = true, .now_s = rose_unix_time()};
    rose_status st = ROSE_OK;
    if (options != NULL) st = read_chat_options(&in, &template, options, err);
    if (st == ROSE_OK && template != NULL)
        st = rose_chat_derive(&own, rose->chat != NULL ? rose->chat : rose->lender,
                              rose_json_text(template), rose_json_text_len(template), &limits, err);
    else if (st == ROSE_OK && rose->chat == NULL)
        st = rose_fail(err, ROSE_E_INVAL,
                       "the model has no chat template; the option chat_template takes one");
    if (st == ROSE_OK) st = rose_chat_render(own != NULL ? own : rose->chat, &in, text, err);
    rose_chat_close(own);
    /* of the messages or their template, not of the model */
    return st == ROSE_E_UNSUPPORTED || st == ROSE_E_FORMAT ? ROSE_E_INVAL : st;
}

/* options_json may be NULL. */
static rose_status chat_text(rose_lib *rose, const rose_json *messages, const char *options_json,
                             rose_template_text *text, rose_err *err)
{
    rose_json *options = NULL;
    rose_status st = ROSE_OK;
    if (options_json != NULL)
        st = parse(&options, options_json, strlen(options_json), "options_json", err);
    if (st == ROSE_OK) st = render(rose, messages, options, text, err);
    rose_json_decref(options);
    return st;
}

/* Appends the ids of the prompt. */
static rose_status chat_ids(rose_lib *rose, const rose_json *messages, const char *options_json,
                            rose_ids *ids, rose_err *err)
{
    rose_template_text text = {0};
    rose_status st = chat_text(rose, messages, options_json, &text, err);
    if (st == ROSE_OK) {
        pthread_mutex_lock(&rose->encoder_lock);
        st = rose_chat_encode(rose->encoder, &text, ids, err);
        pthread_mutex_unlock(&rose->encoder_lock);
    }
    rose_template_text_free(&text);
    return st;
}

static rose_status submit(rose_lib *rose, const rose_json *messages, const char *options_json,
                          const rose_lib_params *p, rose_lib_request **out, rose_err *err)
{
    rose_ids ids = {0};
    rose_lib_params params;
    rose_status st = rose_lib_read_params(&params, p, err);
    if (st == ROSE_OK) st = chat_ids(rose, messages, options_json, &ids, err);
    if (st == ROSE_OK) st = rose_lib_submit(rose, ids.data, ids.len, &params, out, err);
    rose_ids_free(&ids);
    return st;
}

int rose_lib_submit_chat(rose_lib *rose, const char *messages_json, size_t len,
                         const char *options_json, const rose_lib_params *p, rose_lib_request **out,
                         char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_json *messages = NULL;
    *out = NULL;
    rose_status st = parse(&messages, messages_json, len, "messages_json", &e);
    if (st == ROSE_OK) st = submit(rose, messages, options_json, p, out, &e);
    rose_json_decref(messages);
    return rose_lib_fail(st, &e, err);
}

/* Appends message i as an object. */
static rose_status add_message(rose_json *list, const rose_lib_message *m, size_t i, rose_err *err)
{
    const char *bad = m->role == NULL ? "role" : m->content == NULL ? "content" : NULL;
    if (bad != NULL) return rose_fail(err, ROSE_E_INVAL, "messages[%zu].%s is NULL", i, bad);
    rose_json *role = rose_json_string(m->role), *content = rose_json_string(m->content);
    rose_json *both = rose_json_object();
    rose_status st = ROSE_OK;
    if (role == NULL || content == NULL) /* or memory is short, which the next call will tell */
        st = rose_fail(err, ROSE_E_INVAL, "messages[%zu].%s is not valid UTF-8", i,
                       role == NULL ? "role" : "content");
    else if (rose_json_set(both, "role", role) != 0 ||
             rose_json_set(both, "content", content) != 0 || rose_json_append(list, both) != 0)
        st = ROSE_E_NOMEM;
    rose_json_decref(role);
    rose_json_decref(content);
    rose_json_decref(both);
    return st;
}

int rose_lib_submit_messages(rose_lib *rose, const rose_lib_message *messages, size_t n,
                             const char *options_json, const rose_lib_params *p,
                             rose_lib_request **out, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_json *list = rose_json_array();
    *out = NULL;
    rose_status st = list != NULL ? ROSE_OK : ROSE_E_NOMEM;
    for (size_t i = 0; i < n && st == ROSE_OK; i++)
        st = add_message(list, &messages[i], i, &e);
    if (st == ROSE_OK) st = submit(rose, list, options_json, p, out, &e);
    rose_json_decref(list);
    return rose_lib_fail(st, &e, err);
}

int rose_lib_tokenize_chat(rose_lib *rose, const char *messages_json, size_t len,
                           const char *options_json, uint32_t **ids, size_t *n,
                           char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_ids list = {0};
    rose_json *messages = NULL;
    rose_status st = parse(&messages, messages_json, len, "messages_json", &e);
    if (st == ROSE_OK) st = chat_ids(rose, messages, options_json, &list, &e);
    rose_json_decref(messages);
    return rose_lib_give_ids(st, &list, ids, n, &e, err);
}

int rose_lib_chat_text(rose_lib *rose, const char *messages_json, size_t len,
                       const char *options_json, char **text, size_t *n, char err[ROSE_LIB_ERR])
{
    rose_err e = {{0}};
    rose_json *messages = NULL;
    rose_template_text t = {0};
    rose_status st = parse(&messages, messages_json, len, "messages_json", &e);
    if (st == ROSE_OK) st = chat_text(rose, messages, options_json, &t, &e);
    rose_json_decref(messages);
    *text = t.bytes; /* NULL and 0 after an error */
    *n = t.len;
    t.bytes = NULL;
    rose_template_text_free(&t);
    return rose_lib_fail(st, &e, err);
}

const char *rose_lib_chat_template(const rose_lib *rose, size_t *len)
{
    *len = 0;
    return rose->chat != NULL ? rose_chat_text(rose->chat, len) : NULL;
}

const char *rose_lib_special_token(const rose_lib *rose, const char *name, uint32_t *id)
{
    const rose_chat *c = rose->chat != NULL ? rose->chat : rose->lender;
    const rose_json *token = c != NULL ? rose_json_get(rose_chat_tokens(c), name) : NULL;
    if (!rose_json_is_string(token)) return NULL;
    const char *text = rose_json_text(token);
    return rose_tokenizer_find(rose->tok, text, rose_json_text_len(token), id) ? text : NULL;
}
