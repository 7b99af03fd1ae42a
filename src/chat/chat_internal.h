/* chat/chat_internal.h - what the files of this room share. */
#ifndef ROSE_CHAT_CHAT_INTERNAL_H
#define ROSE_CHAT_CHAT_INTERNAL_H

#include "base/buf.h"
#include "chat/chat.h"

/* sources.c: the texts that a model brings. All owned; free with rose_chat_texts_free. */
typedef struct rose_chat_texts {
    bool found;        /* there is a template: main */
    rose_buf main;     /* the template of requests without a better one */
    rose_buf tool_use; /* the template of requests with tools; empty = the model has none */
    char source[256];  /* where main comes from */
    json_t *tokens;    /* an object: bos_token, eos_token and the like */
} rose_chat_texts;

rose_status rose_chat_texts_read(rose_chat_texts *out, const char *model, const char *given,
                                 rose_err *err);
void rose_chat_texts_free(rose_chat_texts *x);

/* messages.c: what a template does with the forms of content. */
typedef struct rose_chat_forms {
    bool parts; /* it takes a list of text parts */
    bool wrap;  /* and nothing else: a string becomes a list of one part */
} rose_chat_forms;

/* *out: messages as a template wants them, a new reference. */
rose_status rose_chat_messages(json_t **out, const json_t *messages, rose_chat_forms forms,
                               rose_err *err);

#endif
