/* chat/calls.h - finds tool calls and reasoning in the text that a model writes.
 *
 * A parser gets the text of one choice in pieces, cut anywhere, and gives parts: text, reasoning,
 * the beginning of a call with its function's name, and pieces of the call's arguments. The parts
 * of a text do not depend on where it was cut, once pieces of one kind are joined. Text is held
 * back only while it could begin a call or a reasoning block.
 *
 * The arguments of a call are JSON text. Formats that write JSON have their bytes passed on as the
 * model wrote them; from the others JSON is made, with types as in the schema of the function. What
 * is not a call is text, byte by byte. A call is announced once its name and the beginning of its
 * arguments are known; if the model then leaves the format, the rest is text.
 *
 * White space that separates calls, reasoning and text is dropped: around reasoning, before a call
 * that begins the reply, and after calls.
 *
 * A new format needs a value and its names here and in calls.c, its states in calls_json.c or
 * calls_convert.c, a form of its tag in api/tools.c, and samples in tests/chat/test_calls.c.
 *
 * Threads: a parser belongs to one thread at a time. Its tools are shared and only read. */
#ifndef ROSE_CHAT_CALLS_H
#define ROSE_CHAT_CALLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct rose_calls rose_calls;

/* How a model writes a call of f with {"a": 1}. */
typedef enum rose_calls_format {
    ROSE_CALLS_NONE,      /* no calls: everything is text */
    ROSE_CALLS_HERMES,    /* <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> */
    ROSE_CALLS_LLAMA3,    /* {"name": "f", "parameters": {"a": 1}}, maybe after <|python_tag|>;
                           * only functions of the request count */
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

/* The format that a chat template (no NUL needed) shows to its model; NONE: it shows none of them.
 */
rose_calls_format rose_calls_detect(const char *template, size_t len);
rose_reasoning_format rose_reasoning_detect(const char *template, size_t len);

/* Where a reply to a prompt begins, by the end of the prompt and the format. */
typedef enum rose_reasoning_place {
    ROSE_REASONING_BEFORE, /* reasoning may begin */
    ROSE_REASONING_IN,     /* within reasoning */
    ROSE_REASONING_AFTER   /* the prompt has ended the reasoning, or there is none */
} rose_reasoning_place;

rose_reasoning_place rose_reasoning_find(rose_reasoning_format format, const char *prompt,
                                         size_t len);

/* The texts around reasoning; "" for NONE. */
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
    const char *bytes; /* borrowed for the call of the sink; whole characters if all pieces of the
                        * text were */
    size_t len;
} rose_part;

typedef void (*rose_part_sink)(void *arg, const rose_part *part);

typedef struct rose_calls_opts {
    rose_calls_format format;
    rose_reasoning_format reasoning;
    bool in_reasoning;   /* the text begins within reasoning */
    bool one_call;       /* later calls are dropped */
    json_t *tools;       /* the request's list of tools, in OpenAI's form; the parser takes a
                          * reference. NULL: none */
    rose_part_sink sink; /* gets the parts, in order, during push and finish */
    void *arg;
} rose_calls_opts;

/* Errors: ROSE_E_NOMEM; then *out is NULL. */
rose_status rose_calls_create(rose_calls **out, const rose_calls_opts *o, rose_err *err);
void rose_calls_destroy(rose_calls *p); /* accepts NULL */

/* Takes the next piece of the text. ROSE_E_NOMEM: some of the parts are lost. Cost: O(n). */
rose_status rose_calls_push(rose_calls *p, const char *bytes, size_t n);

/* The text has ended: gives what was held back. Nothing may be pushed after it. */
rose_status rose_calls_finish(rose_calls *p);

/* The number of calls that have begun, without dropped ones. */
uint32_t rose_calls_count(const rose_calls *p);

#endif
