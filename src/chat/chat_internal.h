/* chat/chat_internal.h - declarations that the files of src/chat share. */
#ifndef ROSE_CHAT_CHAT_INTERNAL_H
#define ROSE_CHAT_CHAT_INTERNAL_H

#include "base/buf.h"
#include "chat/chat.h"

enum { ROSE_CHAT_CLASS = 64 };

/* sources.c: the texts that a model brings. All owned; free with rose_chat_texts_free. */
typedef struct rose_chat_texts {
    bool found;        /* the model has a chat template, which is in main */
    rose_buf main;     /* the template of requests that tool_use does not serve */
    rose_buf tool_use; /* the template of requests with tools; empty = the model has none */
    char source[256];  /* where main comes from */
    char tokenizer_class[ROSE_CHAT_CLASS]; /* "" = none */
    json_t *tokens;                        /* an object: bos_token, eos_token and the like */
} rose_chat_texts;

rose_status rose_chat_texts_read(rose_chat_texts *out, const char *model, const char *given,
                                 rose_err *err);
void rose_chat_texts_free(rose_chat_texts *x);

/* messages.c: which forms of a message's content a template accepts. */
typedef struct rose_chat_forms {
    bool parts; /* it accepts a list of text parts */
    bool wrap;  /* it accepts only lists, so a string becomes a list of one part */
} rose_chat_forms;

/* *out: messages as a template wants them, a new reference. */
rose_status rose_chat_messages(json_t **out, const json_t *messages, rose_chat_forms forms,
                               rose_err *err);

#endif
