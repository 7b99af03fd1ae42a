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
    rose_json *tokens;                     /* an object: bos_token, eos_token and the like */
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
rose_status rose_chat_messages(rose_json **out, const rose_json *messages, rose_chat_forms forms,
                               rose_err *err);

/* ---- calls.c, calls_json.c, calls_convert.c: the parser of calls.h, an automaton over bytes ----
 */

/* Where the parser stands in the text after the reasoning. */
typedef enum rose_calls_state {
    CALLS_TEXT, /* text, or the beginning of a mark that begins a call */
    CALLS_END,  /* after a call: white space, then </tool_call> */
    /* calls_json.c */
    CALLS_OBJECT,       /* before the { of a call */
    CALLS_KEY,          /* before a key, or the } of the call */
    CALLS_IN_KEY,       /* in a key */
    CALLS_COLON,        /* after a key */
    CALLS_VALUE,        /* before a value */
    CALLS_SKIP,         /* in a value that says nothing about the call */
    CALLS_NAME,         /* in the string of the name */
    CALLS_ARGS,         /* in the value of the arguments */
    CALLS_NEXT,         /* after a value */
    CALLS_LIST_NEXT,    /* after a call of a list */
    CALLS_MISTRAL,      /* after [TOOL_CALLS] */
    CALLS_MISTRAL_NAME, /* in a name after [TOOL_CALLS] */
    CALLS_MISTRAL_MARK, /* in [ARGS] or [CALL_ID] */
    CALLS_MISTRAL_ID,   /* after [CALL_ID] */
    CALLS_MISTRAL_ARGS, /* before the { of the arguments */
    CALLS_BARE_ARGS,    /* in arguments without an object around them */
    /* calls_convert.c */
    CALLS_XML_FUNCTION, /* before <function= */
    CALLS_XML_NAME,     /* in the name after <function= */
    CALLS_XML_BODY,     /* before <parameter= or </function> */
    CALLS_XML_KEY,      /* in the name after <parameter= */
    CALLS_XML_VALUE,    /* in the value of a parameter */
    CALLS_PY_CALL,      /* before the name of a function */
    CALLS_PY_NAME,      /* in the name of a function */
    CALLS_PY_ARG,       /* before the name of an argument, or the ) of the call */
    CALLS_PY_KEY,       /* in the name of an argument */
    CALLS_PY_EQUALS,    /* after the name of an argument */
    CALLS_PY_VALUE,     /* before a value */
    CALLS_PY_STRING,    /* in a string */
    CALLS_PY_ESCAPE,    /* after a backslash */
    CALLS_PY_CODE,      /* in the digits of \x, \u or \U */
    CALLS_PY_WORD,      /* in a number, or True and the like */
    CALLS_PY_AFTER,     /* after a value */
    CALLS_PY_NEXT       /* after a call */
} rose_calls_state;

/* Finds the end of a JSON value, without checking all of its syntax. */
typedef struct rose_calls_scan {
    uint32_t depth;
    bool string, escape; /* in a string; after a backslash in it */
    bool scalar;         /* a number or a word, which ends before another byte */
} rose_calls_scan;

/* Types that the schema of a parameter allows, as bits. */
enum {
    CALLS_STRING = 1,
    CALLS_NUMBER = 2,
    CALLS_BOOL = 4,
    CALLS_NULL = 8,
    CALLS_ARRAY = 16,
    CALLS_OBJECT_TYPE = 32,
    CALLS_ANY = 63
};

enum { CALLS_PY_DEPTH = 64, CALLS_MAX_NAME = 256 };

struct rose_calls {
    rose_calls_opts o;
    bool oom;
    /* parts */
    rose_buf out; /* bytes of the part that is not yet given to the sink */
    rose_part_kind out_kind;
    uint32_t out_call;
    bool out_any;
    uint32_t n_calls; /* announced */
    /* reasoning */
    int think;         /* a think_state of calls.c */
    rose_buf thought;  /* held back: white space, then the beginning of a mark */
    size_t think_mark; /* where that mark begins in `thought` */
    /* calls */
    rose_calls_state state;
    rose_buf held; /* held back: white space, then a mark and what follows it */
    size_t mark;   /* where the mark begins in `held` */
    bool gap;      /* white space is held back here: no text yet, or after a call */
    bool said;     /* the call is announced */
    bool marked;   /* a mark began the call, so its function may be unknown */
    bool list;     /* the call stands in a list of JSON objects */
    rose_calls_scan scan;
    rose_buf name;    /* of the function */
    bool named;       /* `name` is complete */
    char key[16];     /* of the object, cut */
    size_t key_len;   /* bytes of it, also those not kept */
    bool has_args;    /* arguments were seen */
    bool args_string; /* they are JSON within a string */
    size_t args_at;   /* where they are in `held`, if they came before the name */
    size_t args_len;
    /* of calls_convert.c */
    uint32_t n_params; /* of this call so far */
    unsigned types;    /* of this parameter */
    bool listed; /* its schema lists its values, so white space around a value is not part of it */
    rose_buf word;              /* the name, number or value that is being read */
    bool begun;                 /* the first byte of the value is past */
    char stack[CALLS_PY_DEPTH]; /* open brackets of a Python value */
    uint32_t depth;
    bool comma;      /* a comma comes before the next value */
    bool dict_key;   /* the next value is a key of a dict */
    char quote;      /* of the string */
    uint32_t code;   /* of an escape */
    uint32_t digits; /* left of it */
};

static inline bool rose_calls_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* calls.c */
void rose_calls_step(rose_calls *p, char c); /* one byte after the reasoning */
void rose_calls_emit(rose_calls *p, rose_part_kind kind, const char *bytes, size_t n);
void rose_calls_hold(rose_calls *p, char c); /* appends to `held` */
/* Announces the call: the name is p->name, and nothing is held any more. */
void rose_calls_say(rose_calls *p);
/* What is held is no call but text. */
void rose_calls_give_up(rose_calls *p);
/* What is held and the byte c are no call. The parser takes c again, as text. */
void rose_calls_fail(rose_calls *p, char c);
void rose_calls_done(rose_calls *p); /* a call or a list of calls is complete */
/* Whether p->name is a function of the request; its schema of parameters, or NULL. */
bool rose_calls_known(const rose_calls *p, const rose_json **schema);
/* How much of text[0..n) the mark is: 1 all of it, 0 a beginning of it, -1 neither. */
int rose_calls_match(const char *mark, const char *text, size_t n);

/* calls_json.c */
void rose_calls_json_begin(rose_calls *p, rose_calls_state state, bool marked);
void rose_calls_json_step(rose_calls *p, char c);

/* calls_convert.c */
void rose_calls_xml_begin(rose_calls *p, rose_calls_state state);
void rose_calls_xml_step(rose_calls *p, char c);
void rose_calls_xml_finish(rose_calls *p);
void rose_calls_py_begin(rose_calls *p);
void rose_calls_py_step(rose_calls *p, char c);
void rose_calls_py_finish(rose_calls *p);

#endif
