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
 * given (--chat-template; NULL = not given) is "chatml" (that format), a file, or the template
 * itself if it holds a brace or a newline and is no file. Else the first of these counts:
 * chat_template.jinja, chat_template.json, tokenizer_config.json (a string, or a list of names and
 * templates); a GGUF file's tokenizer.chat_template. Where the model has a second template
 * "tool_use", requests with tools use it. Errors: FORMAT and UNSUPPORTED (the template does not
 * compile; the message names the place), NOTFOUND, IO, NOMEM; then *out is NULL. */
rose_status rose_chat_open(rose_chat **out, const char *model, const char *given, rose_err *err);

/* As rose_chat_open for a template of n bytes that a request brings. base lends the values of
 * bos_token and the like; NULL: the template sees none. limits holds for each of the trial renders
 * that find out what the template takes; 0 steps: as many as at open. A trial that takes more steps
 * than limits->steps is INVAL. Any thread. */
rose_status rose_chat_derive(rose_chat **out, const rose_chat *base, const char *text, size_t n,
                             const rose_template_limits *limits, rose_err *err);
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

/* The format in which the model writes calls. parser is the option --tool-call-parser: the name of
 * a format, or "auto", which means the one that the template shows (the template "tool_use", if
 * there is one). *describe: the template does not show a request's tools, or shows them in a format
 * that is not known. Then rose_chat_describe must do it, in the format hermes. c: NULL = a template
 * that shows nothing but texts. NONE: no calls. */
rose_calls_format rose_chat_calls(const rose_chat *c, const char *parser, bool *describe);

/* The format of reasoning that the template shows. */
rose_reasoning_format rose_chat_reasoning(const rose_chat *c);

/* *out: the conversation without anything that only a template with tools could show, a new
 * reference. The system message at its start describes the tools (an array or NULL); there is a new
 * one if there was none. Calls become text of the assistant, and results text of the user. What
 * needs no change stays the same. Errors: as rose_chat_render; then *out is NULL. */
rose_status rose_chat_describe(rose_json **out, const rose_json *messages, const rose_json *tools,
                               rose_err *err);

/* Adds the tokenizer's eos_token, which is the end of a turn for many models, to a->eos_ids. NULL:
 * nothing happens. */
void rose_chat_add_eos(const rose_chat *c, const rose_tokenizer *t, rose_arch *a);

/* Checks and renders messages in OpenAI's form. The caller fills `in` but for tokens, which are the
 * model's. Content in text parts becomes a string where the template takes strings, and a string
 * becomes a part where it takes only parts. Arguments of tool calls, which OpenAI's API has as JSON
 * text, become the objects that templates want. Messages of the roles system and developer that the
 * template does not show at their place become marked messages of a user, or join a neighbour.
 * Errors: INVAL (a message is malformed, or the template fails, raises an exception or drops a
 * message; the message says which), UNSUPPORTED (a part that is no text, by name), NOMEM; then
 * *text is zero. */
rose_status rose_chat_render(const rose_chat *c, const rose_template_input *in,
                             rose_template_text *text, rose_err *err);

/* Appends the ids of a rendered text to ids. A special token matches only where the template wrote
 * all of its bytes. Nothing is added: the template writes a BOS token where the model wants one.
 * Errors: as rose_encode. */
rose_status rose_chat_encode(rose_encoder *e, const rose_template_text *text, rose_ids *ids,
                             rose_err *err);

/* ---- rank.c: the prompt in which a reranker judges a document, the template of Qwen3-Reranker's
 * model card. Its answer is yes or no, and the score is P(yes) / (P(yes) + P(no)). The prompt is
 * head, body and tail; no special token may match in the body, which holds foreign texts. ---- */

extern const char rose_rank_head[], rose_rank_tail[];

/* A text of len bytes; text NULL = not given. */
typedef struct rose_rank_text {
    const char *text;
    size_t len;
} rose_rank_text;

/* Appends the body. instruction: what to judge; not given = that of the model card. Errors: NOMEM.
 */
rose_status rose_rank_body(rose_buf *out, rose_rank_text instruction, rose_rank_text query,
                           rose_rank_text document);

/* The ids of the answers yes and no; vocab: ids that the model has. INVAL: it lacks one. */
rose_status rose_rank_answers(const rose_tokenizer *t, uint32_t vocab, uint32_t answers[2],
                              rose_err *err);

/* Writes an id of nine letters and digits that follows from x: Mistral's templates refuse other
 * ids of calls. */
enum { ROSE_CHAT_SHORT_ID = 10 }; /* bytes, with the NUL */
void rose_chat_short_id(char out[ROSE_CHAT_SHORT_ID], uint64_t x);

#endif
