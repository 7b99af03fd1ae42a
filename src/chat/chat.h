/* chat/chat.h - chat messages to a model's prompt: finds the chat template of a model, renders
 * messages with it, and tokenises the text so that no message can contain a control token.
 *
 * Threads: a rose_chat is read-only after open and shared by any number of threads. */
#ifndef ROSE_CHAT_CHAT_H
#define ROSE_CHAT_CHAT_H

#include "chat/calls.h"
#include "model/generation.h"
#include "model/model.h"
#include "template/template.h"
#include "tokenizer/tokenizer.h"

typedef struct rose_chat rose_chat;

/* Finds and compiles the chat template of a model (a folder or a GGUF file). *out is NULL, and the
 * result ROSE_OK, where the model has none or given is "plain".
 *
 * given (--chat-template; NULL = not given) is a file, or the template itself if it holds a brace
 * or a newline and is no file. Else the first of these counts: chat_template.jinja,
 * chat_template.json, tokenizer_config.json (a string, or a list of names and templates); a GGUF
 * file's tokenizer.chat_template. Where the model has a second template "tool_use", requests with
 * tools use it.
 * Errors: FORMAT and UNSUPPORTED (the template does not compile; the message names the place),
 * NOTFOUND, IO, NOMEM; then *out is NULL. */
rose_status rose_chat_open(rose_chat **out, const char *model, const char *given, rose_err *err);

/* As rose_chat_open for a template of n bytes that a request brings. base lends the values of
 * bos_token and the like; NULL: the template sees none. Any thread. */
rose_status rose_chat_derive(rose_chat **out, const rose_chat *base, const char *text, size_t n,
                             rose_err *err);
void rose_chat_close(rose_chat *c); /* accepts NULL */

/* Where the template comes from, for a log line: "models/x/chat_template.jinja". */
const char *rose_chat_source(const rose_chat *c);

/* What rose_chat_open found, borrowed. The template for requests without tools, UTF-8, its length
 * in *len. The special tokens: an object from bos_token, eos_token and the like to text; threads
 * share it, so count no references to its values. The class in tokenizer_config.json, such as
 * "GPT2Tokenizer"; "" = it names none. */
const char *rose_chat_text(const rose_chat *c, size_t *len);
const rose_json *rose_chat_tokens(const rose_chat *c);
const char *rose_chat_class(const rose_chat *c);

/* The formats of tool calls and reasoning that the template shows to the model; with a template
 * "tool_use", that one shows the calls. A template that does not show a request's tools has the
 * format NONE. */
rose_calls_format rose_chat_calls(const rose_chat *c);
rose_reasoning_format rose_chat_reasoning(const rose_chat *c);

/* Adds the tokenizer's eos_token, which is the end of a turn for many models, to a->eos_ids. NULL:
 * nothing happens. */
void rose_chat_add_eos(const rose_chat *c, const rose_tokenizer *t, rose_arch *a);

/* Checks and renders messages in OpenAI's form. The caller fills `in` but for tokens, which are the
 * model's. Content in text parts becomes a string where the template takes strings, and a string
 * becomes a part where it takes only parts. Arguments of tool calls, which OpenAI's API has as JSON
 * text, become the objects that templates want.
 * Errors: INVAL (a message is malformed, or the template fails or raises an exception; the message
 * says which), UNSUPPORTED (a part that is no text, by name), NOMEM; then *text is zero. */
rose_status rose_chat_render(const rose_chat *c, const rose_template_input *in,
                             rose_template_text *text, rose_err *err);

/* Appends the ids of a rendered text to ids. A special token matches only where the template wrote
 * all of its bytes. Nothing is added: the template writes a BOS token where the model wants one.
 * Errors: as rose_encode. */
rose_status rose_chat_encode(rose_encoder *e, const rose_template_text *text, rose_ids *ids,
                             rose_err *err);

/* Both of the above. text: gets the rendered text, which the caller frees; NULL = not wanted. */
rose_status rose_chat_prompt(const rose_chat *c, rose_encoder *e, const rose_template_input *in,
                             rose_template_text *text, rose_ids *ids, rose_err *err);

#endif
