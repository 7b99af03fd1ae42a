/* chat/calls.h - finds tool calls and reasoning in the text that a model writes.
 *
 * A parser takes the text of one choice in pieces of any length. It gives parts to a callback:
 * text, reasoning, the beginning of a call with the function's name, and pieces of the call's
 * arguments. Joined, the parts of one kind do not depend on how the text was divided into pieces.
 * The parser holds text back only while that text could begin a call or a reasoning block.
 *
 * The arguments of a call are JSON text. If the format writes JSON, the parser passes on the bytes
 * that the model wrote. For other formats it makes JSON, with the types of the function's schema.
 * Everything else stays text, unchanged. The parser reports a call when it knows the name and has
 * seen the beginning of the arguments. If the model then breaks the format, the rest is text.
 *
 * A call within reasoning is reasoning. But if the reply ends with calls before the reasoning has
 * ended, the model has forgotten the end of the reasoning, and they are calls.
 *
 * The parser drops white space around reasoning, before a call that begins the reply, and after
 * calls.
 *
 * To add a format: add a value here and its row in calls.c, its states in calls_json.c or
 * calls_convert.c or calls_python.c, its grammar tag in api/tools.c, and samples in
 * tests/chat/test_calls.c.
 *
 * Threads: a parser belongs to one thread at a time. Its tools are shared and only read. */
#ifndef ROSE_CHAT_CALLS_H
#define ROSE_CHAT_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"

typedef struct rose_calls rose_calls;

/* How a model writes a call of f with {"a": 1}. */
typedef enum rose_calls_format {
    ROSE_CALLS_NONE,      /* no calls: everything is text */
    ROSE_CALLS_HERMES,    /* <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>; also
                           * several in one tag, and a list of them */
    ROSE_CALLS_LLAMA3,    /* {"name": "f", "parameters": {"a": 1}}, or a list, maybe after
                           * <|python_tag|>; only functions of the request count */
    ROSE_CALLS_QWEN3_XML, /* <tool_call><function=f><parameter=a>1</parameter></function>
                           * </tool_call> */
    ROSE_CALLS_PYTHONIC,  /* [f(a=1)]; only functions of the request count */
    ROSE_CALLS_MISTRAL,   /* [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}], or
                           * [TOOL_CALLS]f[ARGS]{"a": 1} */
    ROSE_CALLS_LIST       /* the reply is a list [{"name": "f", "parameters": {"a": 1}}], as a
                           * grammar may ask for; only functions of the request count */
} rose_calls_format;

typedef enum rose_reasoning_format {
    ROSE_REASONING_NONE,
    ROSE_REASONING_QWEN3,    /* <think> ... </think> at the start of the reply, or a prompt that
                              * ends with <think> */
    ROSE_REASONING_DEEPSEEK, /* the reply begins with reasoning, also without <think>, unless the
                              * prompt ends with </think> */
    ROSE_REASONING_MISTRAL   /* as QWEN3 with [THINK] ... [/THINK] */
} rose_reasoning_format;

/* Finds a format by its name for options: hermes, llama3_json, qwen3_xml, pythonic, mistral, none;
 * qwen3, deepseek_r1, mistral, none. False: there is no such format. */
bool rose_calls_format_find(const char *name, rose_calls_format *out);
bool rose_reasoning_format_find(const char *name, rose_reasoning_format *out);

/* Returns the format that a chat template (no NUL needed) asks its model to write. NONE: the
 * template shows none of these formats. */
rose_calls_format rose_calls_detect(const char *template, size_t len);
rose_reasoning_format rose_reasoning_detect(const char *template, size_t len);

/* In which state a reply begins. The format and the end of the prompt decide it. */
typedef enum rose_reasoning_place {
    ROSE_REASONING_BEFORE, /* reasoning may begin */
    ROSE_REASONING_IN,     /* within reasoning */
    ROSE_REASONING_AFTER   /* the prompt has ended the reasoning, or there is none */
} rose_reasoning_place;

rose_reasoning_place rose_reasoning_find(rose_reasoning_format format, const char *prompt,
                                         size_t len);

/* The texts that begin and end reasoning; "" for NONE. */
const char *rose_reasoning_open(rose_reasoning_format format);
const char *rose_reasoning_close(rose_reasoning_format format);

/* The texts of the format that a tokenizer may have as special tokens, ended by NULL. The caller
 * must pass the text of these tokens to the parser. */
enum { ROSE_CALLS_MARKS = 6 };
void rose_calls_marks(rose_calls_format calls, rose_reasoning_format reasoning,
                      const char *marks[ROSE_CALLS_MARKS]);

typedef enum rose_part_kind {
    ROSE_PART_TEXT,
    ROSE_PART_REASONING,
    ROSE_PART_CALL, /* call number `call` begins; the bytes are the name of its function */
    ROSE_PART_ARGS  /* a piece of the JSON text of the arguments of call number `call` */
} rose_part_kind;

typedef struct rose_part {
    rose_part_kind kind;
    uint32_t call;     /* 0 for the first call of the reply */
    const char *bytes; /* valid during the callback; whole UTF-8 characters if every piece that was
                        * pushed held whole characters */
    size_t len;
} rose_part;

typedef void (*rose_part_sink)(void *arg, const rose_part *part);

typedef struct rose_calls_opts {
    rose_calls_format format;
    rose_reasoning_format reasoning;
    bool in_reasoning;   /* the text begins within reasoning */
    bool one_call;       /* only the first call becomes parts */
    rose_json *tools;    /* the request's list of tools, in OpenAI's form; the parser takes a
                          * reference. NULL: none */
    rose_part_sink sink; /* gets the parts, in order, during push and finish */
    void *arg;
} rose_calls_opts;

/* Errors: ROSE_E_NOMEM; then *out is NULL. */
rose_status rose_calls_create(rose_calls **out, const rose_calls_opts *o, rose_err *err);
void rose_calls_destroy(rose_calls *p); /* accepts NULL */

/* Takes the next piece of the text. Errors: ROSE_E_NOMEM; some parts are then lost. Cost: O(n),
 * and O(tools) for each call and each parameter (1,000 tools: about 0.1 ms). */
rose_status rose_calls_push(rose_calls *p, const char *bytes, size_t n);

/* Ends the text: the parser gives the bytes that it held back. cut: the text ended at a limit, not
 * because the model was done; a call that is not complete then stays so, since half a command must
 * not become a whole one. Push nothing after this call. */
rose_status rose_calls_finish(rose_calls *p, bool cut);

/* Whether the text stands within reasoning. */
bool rose_calls_reasons(const rose_calls *p);

/* Returns the number of calls that were reported. */
uint32_t rose_calls_count(const rose_calls *p);

#endif
