/* api/api_internal.h - declarations that the files of src/api share; no file outside src/api
 * includes it.
 *
 * A job is one HTTP request that needs the tokenizer. Who may use it:
 *   I/O thread   creates it, then hands it to a worker (queue in worker.c);
 *   worker       owns it until it pushes it into the done queue of the job's I/O thread;
 *   I/O thread   owns it from then on, and frees it when all its engine requests are released;
 *   worker       owns it once more before that, if it has a long reply to write.
 * While a worker owns the job, the I/O thread uses only `gone` and `phase`, and only the I/O thread
 * writes these two. If the worker gives notice, by pushing the job twice, the I/O thread may also
 * read timeout_s. Since the worker submits, engine events may come before the worker hands the job
 * back. They are noted in choice->pending, which only the I/O thread uses. */
#ifndef ROSE_API_API_INTERNAL_H
#define ROSE_API_API_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "api/api.h"
#include "api/guide.h"
#include "api/json_out.h"
#include "api/metrics.h"
#include "api/turns.h"
#include "base/json.h"
#include "base/siphash.h"
#include "chat/calls.h"
#include "tokenizer/stop.h"

/* ---- errors.c: OpenAI's error shape ---- */

/* status 0 = no error. Texts are valid UTF-8. */
typedef struct rose_api_error {
    int status;
    uint32_t retry_s; /* for 429 and 503: the value of Retry-After; 0 = 1 second */
    const char *code; /* a literal or NULL (null in JSON) */
    char param[96];   /* "" = null */
    char msg[ROSE_ERR_CAP];
} rose_api_error;

/* Fills e and returns false, so that checks read `return rose_api_fail(...)`. param may be NULL. */
bool rose_api_fail(rose_api_error *e, int status, const char *code, const char *param,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
bool rose_api_fail_nomem(rose_api_error *e);
/* "field 'name' must be `wanted`". */
bool rose_api_fail_wrong(rose_api_error *e, const char *name, const char *wanted);
/* A value of a type that is not served; name: what has the type. False. */
bool rose_api_fail_type(rose_api_error *e, const char *param, const char *name,
                        const rose_json *type);
/* A known field that is not served, because of `why`, or NULL. */
bool rose_api_fail_unsupported(rose_api_error *e, const char *name, const char *why);
/* Fills e from a status of the engine. The engine says when to try again; NULL: there is none
 * yet. */
void rose_api_fail_status(rose_api_error *e, rose_status st, const rose_err *err,
                          const rose_engine *engine);
#define ROSE_API_CODE_LATE "slo_ttft"

void rose_api_error_json(rose_api_out *o, const rose_api_error *e);
/* Replaces bytes that are not UTF-8 (also a character cut at the end) by '?'. In place. */
void rose_api_utf8_clean(char *s);

/* ---- json_in.c ---- */

/* Parses a body into a JSON object. It first refuses, in one scan that allocates nothing, bodies
 * that would cost much memory: nesting over 64, over 65536 containers, over max_values values.
 * Errors: 400 with the position. */
bool rose_api_json_load(rose_json **root, const char *body, size_t len, size_t max_values,
                        rose_api_error *err);

/* Whether v is "", [] or {}. */
bool rose_api_json_is_empty(const rose_json *v);
/* Whether v is this string, or key one of these names, which end with a NULL. v and key may be
 * NULL. */
bool rose_api_json_is(const rose_json *v, const char *text);
bool rose_api_is_one_of(const char *key, const char *const *names);

/* Finds a time-out without parsing: the value of the member `key` (written without escapes) of
 * the outermost object. Returns it if it is a number above 0 and at most ROSE_API_MAX_TIMEOUT;
 * else 0. This is one scan, so it is for short bodies. For a body that is not JSON the result is
 * arbitrary. */
enum { ROSE_API_MAX_TIMEOUT = 86400, ROSE_API_MAX_PEEK = ROSE_API_MAX_INLINE };
double rose_api_json_peek(const char *body, size_t len, const char *key);

/* ---- ignored.c: fields that a request has and the API ignores ---- */

enum { ROSE_API_MAX_IGNORED = 16, ROSE_API_IGNORED_BYTES = 64, ROSE_API_MAX_LOGGED = 256 };

/* The ignored fields of one request. Zero is empty. */
typedef struct rose_api_ignored {
    bool strict; /* --strict-fields: an unknown field is refused instead */
    uint32_t n;  /* all of them; names holds the first ones */
    char names[ROSE_API_MAX_IGNORED][ROSE_API_IGNORED_BYTES + 1]; /* safe in headers and logs */
} rose_api_ignored;

/* The names of ignored fields that the log has already shown, for all requests. Workers share
 * this list. */
typedef struct rose_api_logged_fields {
    pthread_mutex_t lock; /* guards the rest */
    uint32_t n;
    char names[ROSE_API_MAX_LOGGED][ROSE_API_IGNORED_BYTES + 1];
} rose_api_logged_fields;

/* name: any bytes; nested names as stream_options.foo, messages[0].foo. */
void rose_api_ignored_add(rose_api_ignored *g, const char *name);
/* Handles a field that the API does not know: notes it or, with `strict`, refuses it (false). */
bool rose_api_unknown_field(rose_api_ignored *g, const char *name, rose_api_error *err);
/* Handles a field that changes no answer of this server, likewise. */
bool rose_api_hint(rose_api_ignored *g, const char *name, rose_api_error *err);
/* Notes a member of a list that is left out, because this server cannot serve its type, by its name
 * (tools[1]) and the type. With `strict`, or if the type is no string, it is refused (false). */
bool rose_api_leave_out(rose_api_ignored *g, const char *name, const rose_json *type,
                        rose_api_error *err);
/* Writes "X-Ignored-Fields: a, b\r\n", or nothing if no field was ignored. */
void rose_api_ignored_header(rose_api_out *o, const rose_api_ignored *g);
/* Any thread. Writes one log line for each ignored field whose name the log has not shown yet. */
void rose_api_ignored_log(rose_api_logged_fields *l, const rose_api_ignored *g);

/* ---- schema.c: the table of fields ---- */

typedef enum rose_api_kind {
    ROSE_API_COMPLETION = 1,
    ROSE_API_CHAT = 2,
    ROSE_API_TOKENIZE = 4,
    ROSE_API_DETOKENIZE = 8,
    ROSE_API_PROFILE_START = 16,
    ROSE_API_PROFILE_STOP = 32,
    ROSE_API_APPLY = 64, /* /apply-template, and the paths that count the tokens of a prompt: the
                          * fields are those of ROSE_API_CHAT */
    ROSE_API_EMBED = 1 << 10,
    ROSE_API_RERANK = 1 << 11,
    ROSE_API_SCORE = 1 << 12,
    ROSE_API_STORE = 1 << 13, /* files and batches: batches.c */
    ROSE_API_POOLED = ROSE_API_EMBED | ROSE_API_RERANK | ROSE_API_SCORE /* nothing is generated */
} rose_api_kind;

/* The fields that ask for structured output. */
typedef enum rose_api_structured {
    ROSE_API_RESPONSE_FORMAT,
    ROSE_API_STRUCTURED_OUTPUTS,
    ROSE_API_GUIDED_JSON,
    ROSE_API_GUIDED_REGEX,
    ROSE_API_GUIDED_CHOICE,
    ROSE_API_GUIDED_GRAMMAR,
    ROSE_API_REGEX,
    ROSE_API_EBNF,
    ROSE_API_JSON_SCHEMA,
    ROSE_API_GRAMMAR,
    ROSE_API_N_STRUCTURED
} rose_api_structured;

/* The fields of requests that are pooled (pooled.c). */
typedef struct rose_api_pooled_params {
    const rose_json *input, *query, *documents, *text_1, *text_2;
    const rose_json *encoding_format, *instruction, *normalize; /* strings; a bool. NULL = absent */
    int64_t dimensions, top_n;                                  /* 0 = absent */
    int64_t truncate; /* truncate_prompt_tokens: -1 = to the context; 0 = absent */
    bool return_documents;
} rose_api_pooled_params;

/* The checked fields. Pointers are borrowed from the JSON root. */
typedef struct rose_api_params {
    double temperature, top_p, min_p;
    int64_t top_k;                             /* -1 and 0 = off */
    int64_t seed;                              /* valid if has_seed */
    int64_t n;                                 /* 1 .. max_n */
    int64_t max_tokens, max_completion_tokens; /* -1 = absent */
    int64_t n_logprobs, prompt_logprobs;       /* alternatives; -1 = no logprobs */
    int64_t top_logprobs;                      /* chat; -1 = absent */
    int64_t min_tokens;
    int64_t best_of; /* -1 = absent */
    double presence, frequency, repetition;
    double timeout; /* seconds; 0 = none */
    rose_api_pooled_params pooled;
    bool echo, token_ids, as_ids, include_stop, chat_logprobs;
    int64_t priority; /* lower is sooner */
    const rose_json
        *cache_salt; /* a JSON string of at least one byte; NULL = the request has none */
    const rose_json *logprobs, *logit_bias, *stop_token_ids, *allowed_token_ids, *bad_words;
    bool has_seed, stream, ignore_eos, include_usage, add_special_tokens;
    bool continuous_usage; /* usage in every chunk of the stream; requires include_usage */
    bool speculation;
    const rose_json *prediction; /* as it came; NULL = none */
    const rose_json *prompt, *messages, *tokens, *stop, *stream_options;
    bool add_generation_prompt, continue_final;
    const rose_json *chat_template;     /* a string, or NULL */
    const rose_json *chat_kwargs;       /* an object, or NULL */
    const rose_json *tools, *documents; /* lists of objects with at least one, or NULL */
    const rose_json *tool_choice;
    bool tools_off, tools_required; /* tool_choice "none", "required" */
    const char *tool_name;          /* the function that tool_choice names, or NULL */
    const rose_json *tool_names;    /* of rose_api_translation; NULL: all names are the client's */
    bool functions;                 /* see rose_api_legacy */
    bool parallel_calls, include_reasoning, separate_reasoning;
    const rose_json *structured[ROSE_API_N_STRUCTURED]; /* as they came */
    rose_api_structure structure;                       /* what they ask for */
    const rose_json *body;                              /* as the client sent it; set by the job */
} rose_api_params;

typedef struct rose_api_schema_opts {
    const char *model_id;
    const rose_opt_list *model_aliases; /* further names of the model */
    uint32_t max_n, max_stop;
    bool has_template;          /* there is a chat template besides the plain one */
    bool trust_template;        /* requests may bring one */
    rose_generation generation; /* defaults */
} rose_api_schema_opts;

/* What a request without any field asks for. */
rose_api_params rose_api_schema_defaults(const rose_generation *g);

/* Checks every field of root against the table; fills p and notes in g the ignored fields.
 * prompt.c checks the types of prompt, messages and tokens. Errors: 400 naming the field, 404
 * for another model. */
bool rose_api_schema_check(rose_api_params *p, const rose_json *root, rose_api_kind kind,
                           const rose_api_schema_opts *o, rose_api_ignored *g, rose_api_error *err);

/* legacy.c: rewrites the forms of tools, choices and messages that clients send beside those that
 * are checked. *functions: the request has the former field `functions`, and gets its reply in that
 * form. Errors: 400 naming the field. */
bool rose_api_legacy(rose_json *chat, bool *functions, rose_api_error *err);

/* tools.c: checks the tools of a request that generates, and its tool_choice. Tools of other types
 * are taken out of the list. Errors: 400 naming the field. */
enum { ROSE_API_MAX_TOOL_NAME = 128 };
bool rose_api_tools_check(rose_api_params *p, rose_api_ignored *g, rose_api_error *err);

/* Refuses a tool_choice that asks for a call where no tool is left. False. */
bool rose_api_tools_none_left(rose_api_error *err);

/* structured.c: reads p->structured, and fills p->structure. Errors: 400 naming the field. */
bool rose_api_structure_read(rose_api_params *p, rose_api_ignored *g, rose_api_error *err);

/* ---- jobs ---- */

typedef struct rose_api_job rose_api_job;
typedef struct rose_api_store_call rose_api_store_call; /* batches.c */

/* The priority of lines of batches: other requests come before them for 1000 times
 * --priority-age-ms. */
enum { ROSE_API_BATCH_PRIORITY = 1000 };

typedef struct rose_api_io {
    rose_api *api;
    uint32_t thread;
    rose_wakeq *sink;                                  /* engine requests with events */
    rose_wakeq *done;                                  /* jobs back from the workers */
    LIST_HEAD(rose_api_waiting, rose_api_job) waiting; /* streams that wait for their first token */
    rose_http_timer *look; /* the timer that looks at them; NULL: none waits */
    uint64_t look_ns;      /* when it fires */
    rose_encoder *encoder; /* encoder for jobs that run on this thread; created when first needed */
    uint64_t inline_from_ns;   /* when the next short job may run here */
    uint32_t n_jobs;           /* alive; this thread */
    atomic_uint n_live;        /* engine requests submitted and not released; workers increase
                                * this count */
    char *piece;               /* [detok cap + 16] */
    rose_api_metrics *metrics; /* owned */
    rose_api_out text;         /* scratch: text released by one event */
    rose_api_out out;          /* scratch: bytes to write */
    rose_api_out tail;         /* scratch: header lines */
} rose_api_io;

/* extra.c: JSON pieces of a choice that asked for more than text. */
typedef struct rose_api_extra {
    rose_api_out tokens; /* JSON items of logprobs.tokens; for chat those of logprobs.content */
    rose_api_out values, tops,
        offsets;         /* JSON items of token_logprobs, top_logprobs, text_offset */
    rose_api_out ids;    /* of token_ids */
    rose_api_out prompt; /* of prompt_logprobs */
    rose_buf name;       /* scratch: text of tokens */
    uint32_t offset;     /* characters of the tokens so far */
    bool begun;          /* the prompt's part is done */
    bool sent;           /* a chunk is out */
    size_t n_owned;      /* bytes of tokens that belong to a part, or to no text */
    size_t n_out;        /* bytes of tokens that are out, in a dialect that keeps them */
} rose_api_extra;

typedef struct rose_api_prompts {
    rose_ids *v;
    uint32_t n;
} rose_api_prompts;

/* stop_reason of a choice. */
typedef enum rose_api_stop_kind {
    ROSE_API_STOP_NONE,   /* the reply's stop_reason is null: the choice ended with the
                           * end-of-sequence token, or it did not stop */
    ROSE_API_STOP_STRING, /* stop.which of the job's strings */
    ROSE_API_STOP_ID      /* one of stop_token_ids */
} rose_api_stop_kind;

/* ---- dialects: how a job writes its reply and its stream ---- */

typedef enum rose_api_part_kind {
    ROSE_API_PART_TEXT,      /* text for the user */
    ROSE_API_PART_REASONING, /* text of the model's reasoning */
    ROSE_API_PART_CALL,      /* a call of a tool begins; its text is the name of the tool */
    ROSE_API_PART_ARGS       /* text of the arguments of a call */
} rose_api_part_kind;

enum { ROSE_API_CALL_ID = 40 }; /* bytes of a call's id, with the NUL */

/* A part of a choice. Parts have their text in the choice's buffer, one after the other. */
typedef struct rose_api_part {
    rose_api_part_kind kind;
    uint32_t call;             /* CALL, ARGS: which call of the choice, from 0 */
    size_t begin, len;         /* in choice->text; a CALL has at least one byte */
    size_t tokens, tokens_end; /* TEXT: its tokens, in extra->tokens */
    char id[ROSE_API_CALL_ID]; /* CALL: the id of the call, plain ASCII */
} rose_api_part;

/* What the stream still has to write of a part. */
typedef struct rose_api_piece {
    rose_api_part_kind kind;
    uint32_t call;
    uint32_t part;    /* its part, in choice->parts */
    const char *id;   /* CALL; else NULL */
    const char *text; /* borrowed from the choice */
    size_t len;
} rose_api_piece;

typedef struct rose_api_choice {
    rose_api_job *job;
    rose_request *req; /* owned; NULL before submit and after release */
    rose_guide guide;  /* owned until submit */
    uint32_t index;    /* in the reply: prompt * n + i */
    uint32_t prompt_n;
    uint32_t n_tokens;            /* counted as completion tokens */
    uint32_t n_sent;              /* of these, in chunks that are out */
    uint32_t n_reasoning;         /* of these, up to the end of the reasoning */
    rose_request_guesses guesses; /* set when its engine request is released */
    rose_detok detok;
    rose_stop_state stop;
    rose_api_extra *extra; /* element of the job's array; NULL = the client wants only text */
    const char *finish;    /* "stop", "length"; NULL while running */
    rose_api_stop_kind stop_kind; /* what ended it, with finish "stop" */
    uint32_t stop_id;             /* ROSE_API_STOP_ID */
    uint32_t n_cached;            /* the choice's prompt tokens that came from the prefix cache;
                                   * set when its engine request is released */
    bool pending;                 /* the sink gave it before the job was back */
    bool begun;                   /* in a stream: the first event is out */
    bool trim_space;              /* chat: drop one leading space */
    rose_calls *calls;            /* owned; finds calls and reasoning in the text; NULL: it holds
                                   * neither, or it has ended */
    bool part_lost;               /* no memory for a part that `calls` has found */
    rose_buf text;                /* the texts of the parts */
    rose_api_part *parts;         /* owned [cap_parts]; a stream may drop parts that are out */
    uint32_t n_parts, cap_parts;
    size_t n_out;         /* in a stream: the bytes of text that are out */
    uint32_t n_parts_out; /* likewise: the parts of which nothing is left */
    uint32_t n_blocks;    /* in a stream of responses or messages: blocks that have begun */
    bool block_open;      /* the last of them has not ended */
    uint32_t block_part;  /* the part with which it begins */
    rose_api_part_kind block_kind;  /* TEXT, REASONING or CALL */
    uint64_t t_admitted_ns;         /* 0 = not yet known */
    uint64_t t_first_ns, t_last_ns; /* times of the first and last counted token; if the prompt was
                                       only scored: 0, and the time of the scores */
} rose_api_choice;

/* The body of another API on its way to the body of a chat completion. */
typedef struct rose_api_translation {
    const rose_json *body; /* borrowed: as the client sent it */
    rose_json *chat;       /* owned by the caller: what it asks of a chat completion */
    rose_json *messages;   /* borrowed from chat */
    rose_json *tool_names; /* owned by the caller: from the name of a function in `chat` to an
                            * object with the client's name, its namespace, and whether it is a
                            * custom tool. NULL: all names are the client's */
    bool generates;        /* else only the prompt is wanted */
    bool templated;        /* the server has a chat template besides the plain one */
    rose_api_ignored *ignored;
    rose_api_error *err;
} rose_api_translation;

/* A field of a chat and the client's name for it. A name that begins with a dot is a part of a
 * longer name. A list ends with NULL. */
typedef struct rose_api_rename {
    const char *chat, *client;
} rose_api_rename;

/* The functions with which a job reads its body and writes what its client reads. The I/O thread
 * calls them, except for translate and head. A failed allocation is noted in `o`. */
typedef struct rose_api_dialect {
    const char *id; /* ids of replies begin with it */
    bool shortens;  /* a limit of tokens beyond the context means the rest of the context; else it
                     * is refused */
    /* Worker: fills t->chat. False: t->err says why. NULL: the body needs no translation. */
    bool (*translate)(rose_api_translation *t);
    const rose_api_rename *renames; /* NULL: there is nothing to rename */
    /* Says that a prompt has n tokens and may have `most`. NULL: OpenAI's words. */
    bool (*overflow)(rose_api_error *e, uint64_t n, uint32_t most);
    const char *count; /* the reply with the number of a prompt's tokens, up to that number */
    const char *ping;  /* Stream: a sign of life, which clients pass over */
    /* Worker: prepares bytes that the job keeps for its stream and its reply. NULL: none. */
    void (*head)(rose_api_out *head, const rose_api_job *j, const rose_api_params *p);
    /* Stream: writes the pieces that are not out yet. If last, the choice has ended with
     * choice->finish. Without a piece it is called only for the last time. */
    void (*event)(rose_api_out *o, rose_api_choice *c, bool last);
    /* Stream: writes the usage, or the job's error, and the end of the stream. */
    void (*end)(rose_api_out *o, rose_api_job *j);
    /* Writes the reply that is not streamed. */
    void (*whole)(rose_api_out *o, const rose_api_job *j);
    /* Writes the body of an error reply. */
    void (*error)(rose_api_out *o, const rose_api_error *e);
} rose_api_dialect;

#define ROSE_API_PING ": ping\n\n" /* a comment of server-sent events */

/* completion and chat: stream.c; responses and messages: blocks.c; the others: pooled.c */
extern const rose_api_dialect rose_api_dialect_completion, rose_api_dialect_chat,
    rose_api_dialect_responses, rose_api_dialect_messages, rose_api_dialect_embed,
    rose_api_dialect_rerank, rose_api_dialect_score;

/* tools.c: how the text of a chat is read. */
typedef struct rose_api_reading {
    rose_calls_format calls;
    rose_reasoning_format reasoning;
    bool in_reasoning;                         /* the prompt has begun reasoning */
    bool hide_reasoning;                       /* the client does not want it */
    bool one_call;                             /* later calls are dropped */
    bool functions;                            /* a call is written as `function_call` */
    bool short_ids;                            /* ids of calls are nine letters and digits */
    rose_json *tools;                          /* owned: the request's tools; NULL without calls */
    rose_json *tool_names;                     /* owned: of rose_api_translation; or NULL */
    uint32_t n_marks, marks[ROSE_CALLS_MARKS]; /* special tokens whose text the parser must see */
} rose_api_reading;

/* What a job waits for. The I/O thread changes it only when it has the job, so a worker that has
 * the job may read it too. */
typedef enum rose_api_phase {
    ROSE_API_READING,      /* a worker reads the body and submits requests to the engine; or the I/O
                            * thread does, without workers */
    ROSE_API_READING_HERE, /* the I/O thread does so, but it has no time for many choices */
    ROSE_API_RUNNING,      /* the engine: the I/O thread takes the events of the choices */
    ROSE_API_WRITING       /* a worker writes the reply; the engine is done */
} rose_api_phase;

/* The right to compile a grammar or to render slowly (turns.h). */
typedef enum rose_api_right {
    ROSE_API_NO_TURN,
    ROSE_API_TURN_WAITS,
    ROSE_API_TURN_RUNS
} rose_api_right;

/* What the body asks for, as far as the reply depends on it. */
typedef struct rose_api_asked {
    bool stream, usage, chunk_usage; /* stream_options.include_usage, .continuous_usage_stats */
    bool echo, logprobs, prompt_logprobs, token_ids, as_ids; /* wanted in the reply */
    bool ignore_eos;
    bool prediction;        /* the request has one: usage says what came of it */
    bool plain;             /* chat: without a template, by the rules of chat.c */
    bool shortened;         /* max_tokens is less than asked: the context ends there */
    uint32_t n, max_tokens; /* as asked or implied; max_tokens 0: the prompts are only scored */
    uint32_t n_top, prompt_n_top, min_tokens;
} rose_api_asked;

struct rose_api_job {
    /* The request: set when the job is created. */
    rose_api *api;
    rose_api_io *io;
    rose_api_kind kind;
    bool render;     /* a completion or a chat that is not submitted: the reply has its ids */
    bool background; /* a line of a batch: others come before it */
    const rose_api_dialect *dialect;
    char id[48];
    int64_t created;
    uint64_t prof_id;           /* of the request, in a profile; 0 = none */
    size_t body_len;            /* 0 when WRITING */
    char *body;                 /* owned; NULL after parsing */
    rose_api_store_call *store; /* owned; NULL but for ROSE_API_STORE */

    /* Where it is. */
    rose_api_phase phase;
    TAILQ_ENTRY(rose_api_job) queue_link; /* in the workers' queue */
    rose_api_right right;                 /* of the worker that has the job, or had it last */
    rose_api_turn turn;                   /* its client, and the grammar that it needs */
    bool declined; /* the job was only parsed, and must run again: a worker must run it, or
                    * it waits for its turn */
    bool notice;   /* the worker pushes the job twice, first with timeout_s alone */
    uint64_t t_arrival, t_complete, t_worker, t_parsed, t_tokenized;

    /* What a worker has made of the body. */
    rose_api_asked asked;
    double timeout_s;         /* 0 = none, or not yet known */
    char guided_by[64];       /* the field that asks for the grammar; "" = the text is free */
    rose_grammar *grammar;    /* what the text must obey; owned, until the choices have their
                               * guides; NULL: the text is free */
    rose_api_prompts prompts; /* owned; kept if the reply shows them */
    uint32_t n_prompt_tokens;
    rose_api_reading reading;
    rose_stops stops;
    uint32_t *stop_mem;       /* owned: the states of all choices */
    rose_api_choice *choices; /* owned [n_choices] */
    rose_api_extra *extras;   /* owned [n_choices] or NULL */
    uint32_t n_choices, n_submitted, n_released;
    struct rose_api_pooled *pooled; /* owned; NULL: the job generates text */
    uint32_t n_ignored;             /* fields of the request that were ignored */
    rose_api_out note;              /* X-Ignored-Fields as a header line; empty: none */
    rose_api_out head;              /* what the dialect has prepared */
    bool device;                    /* the backend computes on a device without the host's CPU, and
                                     * early_wake is on */

    /* The answer. */
    rose_api_error err;     /* status != 0: the answer */
    rose_api_out reply;     /* the answer, unless it is streamed */
    const char *reply_type; /* of `reply`; NULL: JSON */
    atomic_bool gone;       /* set by the I/O thread: the worker need not bother */

    /* For the I/O thread alone, whoever has the job. */
    rose_http_req *r;                   /* NULL: replied or gone */
    rose_http_timer *timer;             /* the time-out */
    double watched_s;                   /* what it was set to */
    bool noticed;                       /* the notice was seen */
    bool timed_out;                     /* a time-out was answered before the worker was done */
    bool begun;                         /* the head of the stream is out */
    bool waits;                         /* in io->waiting */
    LIST_ENTRY(rose_api_job) wait_link; /* in io->waiting */
    uint64_t ping_ns;                   /* likewise: when the next sign of life is due */
    uint32_t n_events;                  /* responses: events in the stream so far */
};

static inline bool rose_api_generates(const rose_api_job *j)
{
    return (j->kind & (ROSE_API_COMPLETION | ROSE_API_CHAT)) != 0;
}

/* Whether the client has left. relaxed: a late answer only costs work that nobody needs. */
static inline bool rose_api_is_gone(const rose_api_job *j)
{
    return atomic_load_explicit(&j->gone, memory_order_relaxed);
}

/* The plain template ends a reply, and trims it, by rules of its own. */
static inline bool rose_api_is_plain_chat(const rose_api_job *j)
{
    return j->kind == ROSE_API_CHAT && j->asked.plain;
}

/* errors.c: answers requests that have not begun a stream, counts them, and adds the client's
 * label to the headers. headers: lines, or NULL. */
void rose_api_reply(rose_api_io *io, rose_http_req *r, int status, const char *type,
                    const char *headers, const void *body, size_t len);
/* 200; takes body. type: NULL: JSON. */
void rose_api_reply_take(rose_api_io *io, rose_http_req *r, const char *type, const char *headers,
                         rose_buf *body);
void rose_api_reply_error(rose_api_io *io, rose_http_req *r, const rose_api_error *e);

/* X-Request-Id: the client's label, which is only echoed. 1 to 128 of letters, digits, ._:/+=@- */
enum { ROSE_API_MAX_LABEL = 128 };
bool rose_api_label_is_sound(const char *s);
void rose_api_put_label(rose_api_out *o, const rose_http_req *r); /* a header line; checked */

/* metrics.c. All on the I/O thread, except for the last two. */
void rose_api_count_http(rose_api_io *io, const rose_http_req *r, int status);
void rose_api_count_http_time(rose_api_io *io, const rose_http_req *r);
void rose_api_count_refusal(rose_api_io *io, const rose_api_error *e);
void rose_api_count_token(const rose_api_choice *c,
                          uint64_t t_ns); /* before the choice's times change */
void rose_api_count_choice(const rose_api_choice *c, const rose_request_times *t);
void rose_api_count_job(const rose_api_job *j);
void rose_api_count_ignored(const rose_api_job *j); /* once: it is back from its worker */
void rose_api_count_end(const rose_api_job *j);     /* all of its choices are released */
void rose_api_count_early(rose_api *a, int status); /* any thread */
void rose_api_metrics_page(rose_api_out *o, const rose_api *a);
/* The reply of /v1/loads; false: the query asks for what is not there. */
bool rose_api_loads_json(rose_api_out *o, const rose_api *a, const rose_engine *e,
                         const char *query, rose_api_error *err);

/* keys.c: a number for the client of a request: of its API key if the server has keys, else of its
 * address. Different clients have different numbers, except by chance. */
uint64_t rose_api_client_of(const rose_api *a, const rose_http_req *r);

/* job.c */
rose_api_job *rose_api_job_create(rose_api_io *io, rose_http_req *r, rose_api_kind kind,
                                  const rose_api_dialect *d);
void rose_api_job_process(rose_api_job *j,
                          rose_encoder *enc); /* worker: parse, check, tokenise, submit */
void rose_api_job_free(rose_api_job *j);
bool rose_api_fail_timeout(rose_api_error *e, double timeout_s);

/* events.c, I/O thread */
/* Starts the time-out of a job, once it is known. It counts from the arrival, whichever thread
 * has the job. */
void rose_api_job_watch(rose_api_job *j, double timeout_s);
void rose_api_job_back(rose_api_job *j); /* the worker is done with the job: answers the request, or
                                          * watches the events of its choices */
void rose_api_job_gone(rose_api_job *j); /* call when the client has gone (on_gone): nothing more
                                          * is sent, and the engine cancels the job's requests */
void rose_api_io_on_sink(void *io);      /* rose_http_watch callbacks */
void rose_api_io_on_done(void *io);
void rose_api_io_poll(void *api, uint32_t thread); /* rose_http_callbacks */

#define ROSE_API_PROMPT_FORMS                                                                      \
    "a string, a list of strings, a list of token ids, or a list of lists of token ids"

/* prompt.c: makes lists of ids from the request; the caller owns prompts[0..n) */
typedef struct rose_api_prompt_ctx {
    rose_encoder *enc;
    const rose_tokenizer *tok;
    uint32_t vocab_size;    /* ids must be below */
    uint32_t max_model_len; /* text that must be longer than this is not tokenised */
    uint32_t max_prompts;
    const atomic_bool *gone;
    rose_api_job *job;
    rose_api_ignored *ignored; /* members of messages are noted there */
    const rose_api *api;
    const rose_chat *chat; /* the request's own template or the model's; NULL: the plain one */
    uint64_t *template_ns; /* CPU time that the templates of the request have taken */
} rose_api_prompt_ctx;

/* The ids of a chat's `prediction`, which the caller frees; none if v is NULL. False: err says why.
 */
bool rose_api_prediction_load(rose_ids *out, const rose_json *v, const rose_api_prompt_ctx *c,
                              rose_api_error *err);
bool rose_api_prompts_load(rose_api_prompts *out, const rose_json *prompt, bool add_special,
                           const rose_api_prompt_ctx *c, rose_api_error *err);
void rose_api_prompts_free(rose_api_prompts *p);
bool rose_api_ids_load(rose_ids *out, const rose_json *list, const char *param, uint32_t vocab_size,
                       rose_api_error *err);
bool rose_api_encode(rose_ids *out, const char *text, size_t len, unsigned flags,
                     const rose_api_prompt_ctx *c, const char *param, rose_api_error *err);

/* Whether a text of len bytes may fit the context; false: it has at least len / rose_detok_cap
 * tokens. */
bool rose_api_may_fit(size_t len, const rose_api_prompt_ctx *c);

/* As rose_api_encode, for the text of a chat. */
bool rose_api_encode_chat(rose_ids *out, const rose_template_text *text,
                          const rose_api_prompt_ctx *c, rose_api_error *err);

/* rules.c: reads from the request body the fields that become the engine's sampling rules: bias,
 * penalties, allowed ids, stop ids, banned words, reports. Call after the schema's check. */
enum {
    ROSE_API_MAX_BAD_WORDS = 512,
    ROSE_API_MAX_REPORTS = 1 << 22 /* logprob entries of a whole request: 12 bytes each, and about
                                    * 40 in the reply */
};

typedef struct rose_api_rules {
    rose_request_rules r; /* its arrays are owned by this */
    bool any;             /* r asks for something */
    uint32_t *mem[6];     /* owned */
} rose_api_rules;

void rose_api_rules_free(rose_api_rules *u);
bool rose_api_rules_load(rose_api_rules *u, const rose_api_params *p, const rose_api_prompt_ctx *c,
                         rose_api_error *err);

/* extra.c. For choices with an extra: */
void rose_api_extra_token(rose_api_choice *c, uint32_t id); /* it is counted already */
/* Call once, before the first token's text: adds the prompt's logprobs and, with echo, appends
 * the prompt's text to `text`. */
void rose_api_extra_prompt(rose_api_choice *c, rose_api_out *text);
bool rose_api_extra_failed(const rose_api_choice *c); /* no memory for some of it */
void rose_api_extra_sent(rose_api_choice *c);         /* a chunk has it: dropped */
/* The tokens since the last call belong to this part; NULL: to no text. Works for all choices. */
void rose_api_extra_own(rose_api_choice *c, rose_api_part *part);
/* Writes the logprobs of the tokens of a text as a list: all of them, or those that are not out
 * yet. NULL: the reply has no parts, and all tokens count. */
void rose_api_extra_list(rose_api_out *o, const rose_api_choice *c, const rose_api_part *part);
void rose_api_extra_list_new(rose_api_out *o, rose_api_choice *c, const rose_api_part *part);
void rose_api_extra_free(rose_api_extra *x);
/* These work for all choices: they write the value of "logprobs", and further members. `first`
 * adds the prompt's ids and logprobs to a completion. */
void rose_api_extra_logprobs(rose_api_out *o, const rose_api_choice *c);
void rose_api_extra_members(rose_api_out *o, const rose_api_choice *c, bool first);
/* The prompt's ids and logprobs of a chat. As in vLLM they are members of the reply, or of a
 * choice's first chunk, and not of the choice. */
void rose_api_extra_chat(rose_api_out *o, const rose_api_choice *c);

/* chat.c: the plain template. It reads the messages, add_generation_prompt and continue_final. */
bool rose_api_chat_render(rose_api_out *out, const rose_api_params *p, rose_api_ignored *g,
                          rose_api_error *err);
#define ROSE_API_CHAT_STOP "\nUser:" /* implied by the plain template */

/* translate.c: what responses.c and anthropic.c share. False and NULL: t->err says why. */
bool rose_api_translate_set(rose_api_translation *t, const char *key, rose_json *v); /* takes v */
/* A field of another API's body. With `name` alone it is accepted: it asks for nothing that this
 * server lacks, or the caller reads it afterwards. */
typedef struct rose_api_translated {
    const char *name;
    const char *to; /* the field of a chat with the same meaning */
    bool (*take)(rose_api_translation *t, const rose_json *v);
    const char *why; /* why the field is refused; "": without a reason */
    bool hint;       /* as rose_api_hint */
    bool list;       /* an empty list asks for nothing */
} rose_api_translated;

/* Begins t->chat, and takes each field of the body by its row; null is an absent field. */
bool rose_api_translate_fields(rose_api_translation *t, const rose_api_translated *rows, size_t n);
/* The same for the members of a field, v, which must be an object. */
bool rose_api_translate_members(rose_api_translation *t, const char *field, const rose_json *v,
                                const rose_api_translated *rows, size_t n);
/* Copies a field that has the same meaning in a chat. */
bool rose_api_translate_copy(rose_api_translation *t, const char *to, const rose_json *v);
rose_json *rose_api_translate_message(rose_api_translation *t, const char *role); /* appended */
rose_json *rose_api_translate_last(const rose_api_translation *t); /* NULL: there is none */
/* Appends a message with the result of a call. */
rose_json *rose_api_translate_result(rose_api_translation *t, const rose_json *id);
bool rose_api_translate_text(rose_api_translation *t, rose_json *message, const rose_json *text);
/* The same; takes text, which may be NULL: no memory. */
bool rose_api_translate_text_new(rose_api_translation *t, rose_json *message, rose_json *text);
/* The compact JSON text of a value as a string; NULL: no memory. */
rose_json *rose_api_translate_dump(const rose_json *v);
/* Adds a call of a tool. arguments: a string, borrowed. */
bool rose_api_translate_call(rose_api_translation *t, rose_json *message, const rose_json *id,
                             const rose_json *name, const rose_json *arguments);
/* Adds a function to the chat's tools. Members that are NULL or null are left out. */
bool rose_api_translate_tool(rose_api_translation *t, const rose_json *name,
                             const rose_json *description, const rose_json *parameters,
                             const rose_json *strict);
/* Asks for a call of this function. */
bool rose_api_translate_choose(rose_api_translation *t, const rose_json *name);
/* Asks for JSON that fits the schema. name, strict and description may be NULL. */
bool rose_api_translate_schema(rose_api_translation *t, const rose_json *schema,
                               const rose_json *name, const rose_json *strict,
                               const rose_json *description);
/* Call last: a message with one text gets a string as its content, one without any an empty one. A
 * tool_choice whose tools were all left out is dropped, or refused if it asks for a call. */
bool rose_api_translate_end(rose_api_translation *t);
/* Replaces the name of a field of a chat, in `cap` bytes, by the client's; false: it has the same.
 */
bool rose_api_translate_name(char *name, size_t cap, const rose_api_rename *renames);
void rose_api_translate_error(rose_api_error *e, const rose_api_rename *renames); /* likewise */

/* responses.c, anthropic.c */
bool rose_api_responses_translate(rose_api_translation *t);
bool rose_api_anthropic_translate(rose_api_translation *t);

/* messages.c: compiles the request's own template, which the caller closes. NULL: it has none.
 * False: err says why, or c->job->declined is set, because the template takes long and the job must
 * wait until it may compile. */
bool rose_api_own_template(rose_chat **out, const rose_api_params *p, const rose_api_prompt_ctx *c,
                           rose_api_error *err);
/* messages.c: renders the messages with c->chat or the plain template, which get a description of
 * the tools if they show none. The caller frees *out. False: as above. */
bool rose_api_messages_render(rose_template_text *out, const rose_api_params *p,
                              const rose_api_prompt_ctx *c, rose_api_error *err);

/* tools.c, worker: decides how the text of a chat is read (j->reading). If the request demands
 * calls, or structured output that calls or reasoning may come before, p->structure becomes a
 * structural tag, *tag, which the caller owns. It may render the messages into `text`. */
bool rose_api_tools_load(rose_api_job *j, rose_api_params *p, const rose_api_prompt_ctx *c,
                         rose_template_text *text, rose_json **tag);
void rose_api_tools_prompt(rose_api_job *j, const rose_template_text *text); /* it is rendered */
bool rose_api_calls_create(rose_api_choice *c);                              /* false: no memory */
/* tools.c, I/O thread: adds the parts of a piece of text; false: no memory. After finish, which
 * also sets the finish reason, the choice has no parser any more. */
bool rose_api_calls_push(rose_api_choice *c, const char *text, size_t len);
bool rose_api_calls_finish(rose_api_choice *c);
/* Whether the text of this special token belongs to the text, because it begins or ends a call. */
bool rose_api_is_mark(const rose_api_reading *r, uint32_t id);

/* parts.c: the parts of a choice. False: no memory. */
/* Adds text to the last part, if that has this kind and call, or as a new part. */
bool rose_api_part_add(rose_api_choice *c, rose_api_part_kind kind, uint32_t call, const char *text,
                       size_t len);
/* Begins call number `call`: 0, 1, ... in this order. name has at least one byte. */
bool rose_api_part_call(rose_api_choice *c, uint32_t call, const char *id, const char *name,
                        size_t len);
/* Takes the next piece that is not out, and counts it as out. False: there is none. */
bool rose_api_piece_next(rose_api_choice *c, rose_api_piece *p);
void rose_api_parts_clear(rose_api_choice *c); /* keeps the memory */
bool rose_api_has_part(const rose_api_choice *c, rose_api_part_kind kind);
/* Writes the whole text of a kind as a JSON string. */
void rose_api_put_parts(rose_api_out *o, const rose_api_choice *c, rose_api_part_kind kind);
/* Writes the arguments of the call that begins with this part as a JSON string. They are the next
 * parts. */
void rose_api_put_args(rose_api_out *o, const rose_api_choice *c, const rose_api_part *call);

/* stream.c */
void rose_api_put_json(rose_api_out *o, const rose_json *v); /* compact; NULL: null */

/* reply.c */
void rose_api_usage_json(rose_api_out *o, const rose_api_job *j);
uint64_t rose_api_cached_tokens(const rose_api_job *j); /* of its prompts */
void rose_api_usage_counts(rose_api_out *o, uint64_t prompt, uint64_t completion); /* no } */
void rose_api_stop_reason(rose_api_out *o, const rose_api_choice *c); /* ,"stop_reason":... */
void rose_api_timings_json(rose_api_out *o, const rose_api_job *j);   /* {...} */
void rose_api_server_timing(rose_api_out *o, const rose_api_job *j);  /* "Server-Timing: ...\r\n" */
void rose_api_reply_json(rose_api_out *o,
                         const rose_api_job *j); /* the reply of a completion or a chat */

void rose_api_put_ids(rose_api_out *o, const rose_ids *ids); /* tokenize.c: [1,2,...] */

/* tokenize.c: on a worker; fill j->reply or j->err */
void rose_api_tokenize_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c);
void rose_api_detokenize_run(rose_api_job *j, const rose_api_params *p,
                             const rose_api_prompt_ctx *c);
void rose_api_apply_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c);
void rose_api_count_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c);
/* For j->render: one object for each of j->prompts, with the sampling fields that count. */
void rose_api_render_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c);
void rose_api_tokenizer_json(rose_api_out *o, const rose_api *a, const rose_engine *e);

/* pooled.c: /v1/embeddings, /v1/rerank, /v1/score. A choice is an input, or one of the two answers
 * of a reranker. */
void rose_api_pooled_run(rose_api_job *j, const rose_api_params *p, const rose_api_prompt_ctx *c);
/* Submits further inputs, as long as the engine takes them. Called by the worker, then by the I/O
 * thread after each end of a choice. False: the job has failed, and its requests are to be
 * cancelled. */
bool rose_api_pooled_submit(rose_api_job *j);
/* I/O thread. Takes the result of a choice that has ended well. False: the job has failed. */
bool rose_api_pooled_take(rose_api_choice *c);
/* Whether the reply takes too long to write for an I/O thread. */
bool rose_api_pooled_is_long(const rose_api_job *j);
void rose_api_pooled_free(struct rose_api_pooled *d); /* accepts NULL */

/* profile.c: checks who may ask (I/O thread), does the work, which writes a file (worker), and
 * ends a recording that still runs when the server stops (main thread). */
bool rose_api_profile_may(const rose_api *a, const rose_http_req *r, rose_api_error *err);
void rose_api_profile_run(rose_api_job *j, rose_api_ignored *g);
void rose_api_profile_close(rose_api *a);

/* batches.c: checks who may ask, and notes what is asked (I/O thread; NULL: no memory); does it
 * (worker). */
bool rose_api_store_may(const rose_api *a, const rose_http_req *r, rose_api_error *err);
rose_api_store_call *rose_api_store_call_new(const rose_api *a, const rose_http_req *r);
void rose_api_store_call_free(rose_api_store_call *c); /* accepts NULL */
void rose_api_store_run(rose_api_job *j, rose_api_ignored *g);

/* batches.c: reads the body of an upload, multipart/form-data (RFC 7578). It copies nothing:
 * parts point into the body. Any thread. */
enum { ROSE_MULTIPART_BOUNDARY = 70, ROSE_MULTIPART_MAX_PARTS = 64 };

typedef struct rose_multipart {
    const char *p, *end;                    /* the rest of the body; borrowed */
    char mark[ROSE_MULTIPART_BOUNDARY + 5]; /* CR LF - - BOUNDARY */
    size_t mark_len;
    unsigned n; /* parts so far */
} rose_multipart;

typedef struct rose_multipart_part {
    const char *name, *filename, *data; /* filename: NULL: the part is no file */
    size_t name_len, filename_len, len;
} rose_multipart_part;

/* Takes the boundary from the value of Content-Type. Errors: FORMAT (the type is another one, or
 * has no sound boundary), with a message. */
rose_status rose_multipart_begin(rose_multipart *m, const char *type, const char *body, size_t len,
                                 rose_err *err);
/* The next part. Errors: EMPTY (there is no further part), FORMAT (with a message). */
rose_status rose_multipart_next(rose_multipart *m, rose_multipart_part *part, rose_err *err);

/* worker.c */
typedef struct rose_api_workers rose_api_workers;
rose_status rose_api_workers_create(rose_api_workers **out, rose_api *a, uint32_t n,
                                    uint32_t max_jobs, rose_err *err);
/* Hands a job to the tokenizer workers; false: their queue is full. */
bool rose_api_workers_push(rose_api_workers *w, rose_api_job *j);
/* Lets a worker write the reply of a job whose requests have ended. The job comes back as one that
 * was processed. */
void rose_api_workers_write(rose_api_workers *w, rose_api_job *j);
/* The thread that runs the job calls the first function before it compiles a grammar or renders a
 * slow template, and the second one after it. It may have set j->turn before. EMPTY: others come
 * before it (turns.h). Set
 * j->declined, and j goes back into the queue. FULL: j is refused, because too many jobs wait to
 * compile, and other jobs need room in the queue. w may be NULL: without workers a job may always
 * compile. */
rose_status rose_api_workers_may_compile(rose_api_workers *w, rose_api_job *j);
void rose_api_workers_compiled(rose_api_workers *w, rose_api_job *j);
/* True if the clients of all jobs that need this job's grammar have left. Asked while compiling. */
bool rose_api_workers_idle(void *job);
/* Stops and joins the threads; jobs that no worker took are freed. Accepts NULL. */
void rose_api_workers_destroy(rose_api_workers *w);

/* ---- the room's object (api.c) ---- */

enum {
    ROSE_API_MAX_LIVE = 65536
}; /* limits for one I/O thread: the number of engine requests,
    * and the number of jobs */

struct rose_api {
    rose_api_opts o;
    rose_json *chat_kwargs; /* owned: an object, or NULL; read-only */
    int64_t created;
    _Atomic(rose_engine *) engine; /* release in set_engine: tok is set before */
    const rose_tokenizer *tok;     /* borrowed */
    rose_http *http;               /* borrowed; set by attach */
    atomic_bool draining;
    atomic_uint_least64_t next_id;
    atomic_uint_least64_t unseeded;               /* prompts that got a seed from --seed */
    _Atomic uint64_t early[ROSE_METRIC_STATUSES]; /* errors that the HTTP room answered */
    rose_api_io *io;                              /* [n_io_threads] */
    rose_api_workers *workers;
    rose_api_grammars grammars;
    rose_api_logged_fields logged;
    pthread_mutex_t
        profile_lock; /* guards the next two members, because start and stop run on any worker */
    uint32_t n_profiles;
    char *profile_path; /* owned; path of the running recording, NULL = none */
};

/* NULL while loading. */
static inline rose_engine *rose_api_engine(const rose_api *a)
{
    return atomic_load_explicit(&a->engine, memory_order_acquire); /* pairs with set_engine */
}

/* page.c */
void rose_api_get_page(rose_api_io *io, rose_http_req *r);

/* routes.c */
/* Whether the value of Content-Type, or NULL, is that of JSON; if not, err says so. */
bool rose_api_is_json_type(const char *type, rose_api_error *err);
uint32_t rose_api_route_index(const char *path); /* below ROSE_METRIC_ROUTES; the last: none */
const char *rose_api_route_name(uint32_t index);
/* The dialect in which the errors of a path are written. */
const rose_api_dialect *rose_api_route_dialect(const char *path);
void rose_api_on_request(void *api, rose_http_req *r);
void rose_api_on_gone(void *api, rose_http_req *r);
bool rose_api_is_vital(void *api, const char *path);
void rose_api_on_error_body(void *api, const char *path, int status, const char *message,
                            rose_buf *out);

/* routes.c: tells whether the path is that of a health check, which needs no API key. */
bool rose_api_route_is_probe(const char *path);

/* access.c: callback of the HTTP server, which writes a line; and what a job adds to that line,
 * before its request is given up. */
void rose_api_on_done(void *api, rose_http_req *r, const rose_http_done *d);
void rose_api_note_job(const rose_api_job *j);

/* keys.c */
int rose_api_on_head(void *api, const rose_http_req *r, const char **why, const char **headers);

#endif
