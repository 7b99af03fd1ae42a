/* chat/chat_internal.h - declarations that the files of src/chat share. */
#ifndef ROSE_CHAT_CHAT_INTERNAL_H
#define ROSE_CHAT_CHAT_INTERNAL_H

#include <string.h>

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
    /* of the assistant's calls */
    bool null;      /* with calls it accepts null as the content */
    bool text;      /* it shows arguments that are text, ... */
    bool only_text; /* and not those that are an object */
    bool short_ids; /* it takes ids of nine letters and digits, and no long ones */
} rose_chat_forms;

/* chat.c: renders to find out what a template does. A failure of the template is an answer: *text
 * is then empty. Errors: NOMEM, CLOSED; INVAL (more steps than limits->steps, if that is set). */
rose_status rose_chat_trial(rose_template_text *text, const rose_template *t,
                            const rose_template_input *in, const rose_template_limits *limits);

/* forms.c: finds the forms of calls. Errors as of rose_chat_trial. */
rose_status rose_chat_forms_calls(rose_chat_forms *forms, const rose_template *t,
                                  const rose_json *tokens, const rose_template_limits *limits);

static inline bool rose_chat_has_role(const rose_json *m, const char *role)
{
    const char *name = rose_json_text(rose_json_get(m, "role"));
    return name != NULL && strcmp(name, role) == 0;
}

/* *out: messages as a template wants them, a new reference. */
rose_status rose_chat_messages(rose_json **out, const rose_json *messages, rose_chat_forms forms,
                               rose_err *err);

/* places.c: appends the texts of a content, a string or text parts, with a newline between two. */
rose_status rose_chat_add_texts(rose_buf *out, const rose_json *content);

/* places.c: where a template shows instructions, which are messages of the roles system and
 * developer. `first`: only instructions stand before the message; `later`: other messages do. */
typedef struct rose_chat_places {
    bool system_first, developer_first;
    bool system_later, developer_later;
    bool leads; /* several instructions may stand at the start */
    bool users; /* a user message may follow another one */
    bool parts; /* the content of a system message may be a list */
    /* The template does not fail on two messages of a user, or two replies, in a row, ... */
    bool user_rows, reply_rows;
    bool user_after_tool; /* on a user right after the result of a tool, ... */
    bool gap;             /* and if it does, not with an empty reply between them */
    bool several_calls;   /* a message may have several calls, or one call for each does not help */
} rose_chat_places;

/* Tries the template, with these tools if it fails without. Errors as of rose_chat_trial. */
rose_status rose_chat_places_find(rose_chat_places *out, const rose_template *t,
                                  rose_chat_forms forms, const rose_json *tokens,
                                  const rose_json *tools, const rose_template_limits *limits);

/* *out: the messages, which rose_chat_messages has checked, with each instruction where the
 * template shows it; a new reference. It takes the role system, becomes a marked user message, or
 * joins a neighbour. Turns that the template refuses in a row become one, or get an empty reply
 * between them. head: all instructions move to the start. Errors: NOMEM. */
rose_status rose_chat_places_apply(rose_json **out, const rose_json *messages,
                                   const rose_chat_places *places, rose_chat_forms forms,
                                   bool head);

/* The first message that must not vanish and that is not known to be in the rendered text: its
 * content, as written, is not there, or no probe has tried its role. rose_json_count(messages):
 * there is none. A template may have changed a content. So the caller then renders
 * rose_chat_places_needles (a new reference; NULL: no memory), in which such messages have other
 * contents, and rose_chat_places_lost looks for these (NOMEM). */
size_t rose_chat_places_unseen(const rose_json *messages, const rose_template_text *text);
rose_json *rose_chat_places_needles(const rose_json *messages, size_t from);
rose_status rose_chat_places_lost(size_t *lost, const rose_json *messages, size_t from,
                                  const rose_template_text *text);

/* ---- calls.c, calls_json.c, calls_convert.c, calls_python.c: the parser of calls.h, an automaton
 * over bytes ---- */

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
    CALLS_DICT,         /* in a Python dict in place of the object */
    CALLS_MISTRAL,      /* after [TOOL_CALLS] */
    CALLS_MISTRAL_NAME, /* in a name after [TOOL_CALLS] */
    CALLS_MISTRAL_MARK, /* in [ARGS] or [CALL_ID] */
    CALLS_MISTRAL_ID,   /* after [CALL_ID] */
    CALLS_MISTRAL_ARGS, /* before the { of the arguments */
    CALLS_BARE_ARGS,    /* in arguments without an object around them */
    /* calls_convert.c */
    CALLS_XML_FUNCTION,  /* before <function= */
    CALLS_XML_NAME,      /* in the name after <function= */
    CALLS_XML_BODY,      /* before <parameter= or </function> */
    CALLS_XML_KEY,       /* in the name after <parameter= */
    CALLS_XML_VALUE,     /* in the value of a parameter */
    CALLS_XML_VALUE_KEY, /* in the value, after <parameter=, which may begin the next parameter */
    CALLS_XML_VALUE_END, /* in the value, after </function>, which may end the call */
    /* calls_python.c */
    CALLS_PY_CALL,   /* before the name of a function */
    CALLS_PY_NAME,   /* in the name of a function */
    CALLS_PY_ARG,    /* before the name of an argument, or the ) of the call */
    CALLS_PY_KEY,    /* in the name of an argument */
    CALLS_PY_EQUALS, /* after the name of an argument */
    CALLS_PY_VALUE,  /* in a value, or after a string that was one */
    CALLS_PY_STRING, /* in a string that is passed on as it comes */
    CALLS_PY_NEXT    /* after a call */
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

/* python.c: a string of Python, byte by byte. */
typedef enum rose_python_took {
    PYTHON_MORE,  /* the byte belongs to the string, which goes on */
    PYTHON_ENDED, /* the byte ends the string */
    PYTHON_BEFORE /* the string has ended before the byte */
} rose_python_took;

typedef struct rose_python_string {
    char quote;
    bool triple, raw, oom;
    enum { PYTHON_OPEN, PYTHON_TEXT, PYTHON_ESCAPE, PYTHON_CODE } state;
    uint32_t n_quotes;           /* at the beginning, or at what may be the end */
    uint32_t code, digits, base; /* of an escape; digits are left of it */
    uint32_t high;               /* a surrogate that waits for its other half; 0: none */
} rose_python_string;

struct rose_calls {
    rose_calls_opts o;
    bool oom;
    bool cut; /* the text has ended at a limit */
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
    size_t call_at;    /* in THINK_CALL: what follows the mark of a call in `thought` */
    /* calls */
    rose_calls_state state;
    rose_buf held; /* held back: white space, then a mark and what follows it */
    size_t mark;   /* where the mark begins in `held` */
    bool gap;      /* white space is held back here: no text yet, or after a call */
    bool said;     /* the call is announced */
    bool marked;   /* a mark began the call, so its function may be unknown */
    bool list;     /* the call stands in a list of JSON objects */
    bool nested;   /* in the object of the member "function" of a call */
    rose_calls_scan scan;
    rose_buf name;    /* of the function */
    bool named;       /* `name` is complete */
    char key[16];     /* of the object, cut */
    size_t key_len;   /* bytes of it, also those not kept */
    bool has_args;    /* arguments were seen */
    bool args_string; /* they are JSON within a string */
    size_t args_at;   /* where they are in `held`, if they came before the name; in
                       * CALLS_DICT where the dict is; in
                       * CALLS_XML_VALUE_END where the text after the tag is */
    size_t args_len;
    /* of calls_convert.c and calls_python.c */
    uint32_t n_params; /* of this call so far */
    unsigned types;    /* of this parameter */
    bool listed; /* its schema lists its values, so white space around a value is not part of it */
    rose_buf word;  /* the name or value that is being read */
    rose_buf param; /* the name of this parameter */
    rose_buf json;  /* scratch: bytes of the arguments */
    bool begun;     /* the first byte of the value is past */
    uint32_t depth; /* open brackets of a Python value */
    rose_python_string str;
    bool in_str;   /* in a string within a Python value */
    bool open_str; /* a string is passed on, and its end is not yet */
};

static inline bool rose_calls_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static inline bool rose_calls_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* s[0..*n) without white space around it; *n becomes its length. */
static inline const char *rose_calls_trimmed(const char *s, size_t *n)
{
    while (*n > 0 && rose_calls_space(s[*n - 1]))
        --*n;
    for (; *n > 0 && rose_calls_space(*s); --*n)
        s++;
    return s;
}

/* calls.c */
void rose_calls_step(rose_calls *p, char c); /* one byte after the reasoning */
void rose_calls_emit(rose_calls *p, rose_part_kind kind, const char *bytes, size_t n);
void rose_calls_add(rose_calls *p, rose_buf *b, char c); /* appends to a buffer of p */
void rose_calls_hold(rose_calls *p, char c);             /* appends to `held` */
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
/* The best of these for any of the marks, a list that NULL ends; *which is set if it is not -1. */
int rose_calls_best(const char *const *marks, const char *text, size_t n, int *which);
/* The bytes that are held from `from` on are taken again, after `before` has run. */
void rose_calls_take_again(rose_calls *p, size_t from, void (*before)(rose_calls *p));

/* calls_json.c */
void rose_calls_json_begin(rose_calls *p, rose_calls_state state, bool marked);
void rose_calls_json_step(rose_calls *p, char c);

/* calls_convert.c */
void rose_calls_put(rose_calls *p, const char *text);                   /* arguments as they are */
void rose_calls_put_string(rose_calls *p, const char *bytes, size_t n); /* as a JSON string */
/* Announces the call, unless it is, and the parameter `param`. */
void rose_calls_say_call(rose_calls *p);
void rose_calls_say_param(rose_calls *p);
void rose_calls_xml_begin(rose_calls *p, rose_calls_state state);
void rose_calls_xml_step(rose_calls *p, char c);
void rose_calls_xml_finish(rose_calls *p);

/* calls_python.c */
void rose_calls_py_begin(rose_calls *p);
void rose_calls_py_step(rose_calls *p, char c);
void rose_calls_py_finish(rose_calls *p);

/* python.c. A failed allocation sets *oom. */
/* Appends bytes as they stand within a JSON string. */
void rose_python_escape(rose_buf *out, const char *bytes, size_t n, bool *oom);
/* Whether the letters s[0..n) may stand before the quote of a string; *raw: they make it raw. */
bool rose_python_prefix(const char *s, size_t n, bool *raw);
/* The first quote is past. */
void rose_python_string_begin(rose_python_string *s, char quote, bool raw);
/* Appends what the byte adds to the string, as it stands within a JSON string. out: NULL = the end
 * of the string is all that is wanted. */
rose_python_took rose_python_string_step(rose_python_string *s, rose_buf *out, char c);
/* Appends the JSON form of the one literal that text[0..n) holds; *type is one of CALLS_STRING and
 * so on. False: it holds none, and nothing is appended. */
bool rose_python_value(rose_buf *out, const char *text, size_t n, unsigned *type, bool *oom);

#endif
