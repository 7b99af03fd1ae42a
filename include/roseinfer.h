/* roseinfer.h - the C library: open an engine, submit ids, text or a chat, read tokens, close.
 *
 *     rose_lib *rose; char err[ROSE_LIB_ERR];
 *     if (rose_lib_open(&rose, "models/rose-tiny", NULL, err) != 0) { puts(err); return 1; }
 *     rose_lib_params p; rose_lib_params_default(&p);
 *     rose_lib_request *r;
 *     if (rose_lib_submit_text(rose, "Once upon a time", 16, &p, &r, err) != 0) ...
 *     rose_lib_piece piece; rose_lib_piece_init(&piece);
 *     while (rose_lib_next(r, &piece, -1) == 1)      // blocks; one piece per token
 *         fwrite(piece.text, 1, piece.text_len, stdout);
 *     rose_lib_release(r);
 *     rose_lib_close(rose);
 *
 * Link with `pkg-config --cflags --libs roseinfer`; examples/ has programs in C, C++ and Python.
 * The library writes nothing to stdout, installs no signal handler, calls no exit(); log lines
 * (warnings and above) go to stderr.
 *
 * Results: 0 is success, a negative number is one of ROSE_LIB_E_*; err (may be NULL) then gets one
 * line: what was wrong, where, what to do. Pointers must not be NULL unless a function says that it
 * accepts NULL. Texts are UTF-8. A text with a length may hold NUL bytes; a text without a length
 * ends with a NUL. A list may be NULL if its count is 0.
 *
 * Threads: an engine may be used by any number of threads; a request by one thread at a time,
 * except rose_lib_cancel, which any thread may call. No thread may use the engine during
 * rose_lib_close. Several engines may be open at the same time. After fork only the parent may use
 * the library.
 *
 * Memory: everything is owned by the library. A request is valid until rose_lib_release. What a
 * caller passes is copied, and is free for reuse when the function returns.
 *
 * Versions: the first member of a struct that may grow is `size`. The functions *_default and
 * *_init below set it to the size that the program was compiled with. The library takes a smaller
 * struct of an older header: the members that it lacks have their defaults. It refuses a larger
 * struct of a newer header, unless all bytes that it does not know are 0. Within a major version no
 * function, member or number is removed or changed. rose_lib_logprob and rose_lib_message have no
 * `size`, because lists of them are passed; they never grow. */
#ifndef ROSEINFER_H
#define ROSEINFER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROSE_LIB_API           __attribute__((visibility("default")))
#define ROSE_LIB_VERSION_MAJOR 1   /* also in the soname, libroseinfer.so.1 */
#define ROSE_LIB_VERSION_MINOR 1   /* rises when functions or members are added */
#define ROSE_LIB_ERR           512 /* bytes of an err buffer */

/* The version of the library that runs: MAJOR * 1000 + MINOR, and that of the program, "0.1.0". */
ROSE_LIB_API uint32_t rose_lib_api_version(void);
ROSE_LIB_API const char *rose_lib_version(void);

enum {
    ROSE_LIB_E_INVAL = -1,   /* an argument or parameter is out of range */
    ROSE_LIB_E_NOMEM = -2,   /* out of memory; nothing was changed */
    ROSE_LIB_E_MODEL = -3,   /* the model folder cannot be used: missing, malformed, unsupported */
    ROSE_LIB_E_FULL = -4,    /* the waiting queue is full: try again later */
    ROSE_LIB_E_BACKEND = -5, /* the engine has failed; close it */
    ROSE_LIB_E_INTERNAL = -6 /* a bug */
};

typedef struct rose_lib rose_lib;                 /* an open engine with its tokenizer */
typedef struct rose_lib_request rose_lib_request; /* one sequence */

/* ---- engines ---- */

/* Engine options. rose_lib_options_default sets the size and zeros: 0 and NULL mean the default. */
typedef struct rose_lib_options {
    size_t size; /* of this struct, in bytes */
    /* "auto" (default), "float32", "bfloat16", "float16" (cuda). auto on cuda: the type of the
     * file; for float32 and quantized files float16 for GPT-2, else bfloat16. auto on cpu: bfloat16
     * for BF16 files, else float32, for quantized GGUF files with int8 activations. */
    const char *dtype;
    const char *isa;             /* "auto" (default), "scalar", "avx2", "avx512", "avx512-bf16",
                                    "amx" */
    uint32_t threads;            /* compute threads; default one per allowed CPU */
    uint32_t max_num_seqs;       /* at most this many sequences in a step; default 256 */
    uint32_t max_batched_tokens; /* at most this many tokens in a step; default on cuda 8192, or
                                    4096 or 2048 where memory is short, on cpu 2048 */
    uint32_t max_model_len;      /* longest context in tokens; the default is the model's context
                                  * length */
    uint32_t kv_pages;           /* pages of 16 tokens; default from the memory plan */
    uint32_t max_queued;         /* waiting requests; default 1024 */
    int pin_threads;             /* 1: pin each compute thread to a CPU; default not */
    const char *device;        /* "auto" (default: cuda where there is a usable GPU), "cpu", "cuda",
                                  "cuda:1": GPU 1 of those that CUDA_VISIBLE_DEVICES shows */
    const char *quantization;  /* "none" (default), "int8" (cpu: half the weight bytes) */
    const char *chat_template; /* a file or the template itself; default: the model's own. "plain":
                                  open a model whose own template does not compile */
    const char *generation_config; /* what rose_lib_params_model reads: "auto" (default: the
                                      model's), "none", or another folder, GGUF file or
                                      generation_config.json. A GGUF file without a value has
                                      llama.cpp's temperature, top_p and top_k */
    const char *load_format; /* "auto" (default); "dummy": config.json and tokenizer alone, with
                                random weights, to measure speed */
    int no_prefix_cache;     /* 1: compute each prompt anew; default: share equal beginnings */
    const char *pooling;     /* how rose_lib_submit_embed_* pool: "auto" (default: as the model's
                                files say), "last", "mean" */
    const char *task;        /* what rose_lib_scores_by says: "auto" (default: by the model's
                                files), "embed", "rerank" */
    const char *const *more; /* [n_more] options of an engine with the names and values of
                                `roseinfer serve`, as "kv-cache-memory=2G". '_' counts as '-'; a
                                switch is true or false. They override the members above */
    size_t n_more;
} rose_lib_options;

/* The names that rose_lib_options.more takes: name i, or NULL if there are no more. Any thread. */
ROSE_LIB_API const char *rose_lib_option_name(size_t i);

static inline void rose_lib_options_default(rose_lib_options *o)
{
    memset(o, 0, sizeof *o);
    o->size = sizeof *o;
}

/* Opens a Hugging Face folder or a GGUF file; loading takes from milliseconds to minutes. options
 * may be NULL. Errors: INVAL, NOMEM, MODEL, BACKEND; then *out is NULL. */
ROSE_LIB_API int rose_lib_open(rose_lib **out, const char *model_dir,
                               const rose_lib_options *options, char err[ROSE_LIB_ERR]);

/* Cancels all running requests and frees everything, also unreleased requests. Accepts NULL. */
ROSE_LIB_API void rose_lib_close(rose_lib *rose);

/* Facts, constant after open. */
ROSE_LIB_API uint32_t rose_lib_vocab_size(const rose_lib *rose);
ROSE_LIB_API uint32_t rose_lib_max_model_len(const rose_lib *rose);
ROSE_LIB_API int rose_lib_has_chat_template(const rose_lib *rose);   /* 1: submit_chat works */
ROSE_LIB_API uint32_t rose_lib_embedding_size(const rose_lib *rose); /* values of a whole one */
/* The ids that end a sequence, in *ids (borrowed until close); returns their number. */
ROSE_LIB_API size_t rose_lib_eos_ids(const rose_lib *rose, const uint32_t **ids);

/* ---- how to generate ---- */

/* What the text must obey. The result always obeys; only max_tokens, a stop or a cancel can cut it
 * short. */
typedef enum rose_lib_structure {
    ROSE_LIB_FREE = 0,    /* nothing */
    ROSE_LIB_JSON_OBJECT, /* any JSON object; the text of the structure is ignored */
    ROSE_LIB_JSON_SCHEMA, /* a JSON schema, drafts 4 to 2020-12 */
    ROSE_LIB_REGEX,       /* a regular expression that the whole text matches */
    ROSE_LIB_CHOICE,      /* a JSON list of strings, of which the text is one */
    ROSE_LIB_GRAMMAR,     /* a grammar: GBNF, XGrammar's EBNF, or Lark */
    ROSE_LIB_TAG          /* a structural tag of XGrammar, in JSON */
} rose_lib_structure;

/* Logits are changed in this order, as in vLLM: the structure, allowed_ids, min_tokens and banned
 * sequences, bias, penalties; then temperature and the filters top_k, top_p and min_p. Messages of
 * the engine name some fields as the server does: bad_words, allowed_token_ids, stop_token_ids. */
typedef struct rose_lib_params {
    size_t size;         /* of this struct, in bytes */
    uint32_t max_tokens; /* at most this many new tokens, >= 1; clamped to what the context leaves.
                            Default 128 */
    float temperature;   /* >= 0; 0 = greedy. Default 0 */
    float top_p;         /* (0, 1]; 1 = off. Default 1 */
    float min_p;         /* [0, 1]; 0 = off. Default 0 */
    uint32_t top_k;      /* 0 = off. Default 0 */
    uint64_t seed; /* same request and same seed give the same bits, whatever runs at the same time.
                      Default 0 */
    int ignore_eos;           /* 1: ignore end-of-sequence and continue to max_tokens. Default 0 */
    float repetition_penalty; /* 0.01 .. 100; 1 and 0 = off. Default 1 */
    float presence_penalty;   /* -2 .. 2; 0 = off. Default 0 */
    float frequency_penalty;  /* -2 .. 2; 0 = off. Default 0 */
    uint32_t min_tokens;      /* the first min_tokens tokens do not end the text, neither by id nor
                                 by a stop string. Default 0 */
    int logprobs;             /* 1: each piece has the log-probability of its token. Default 0 */
    uint32_t top_logprobs;   /* with logprobs: also of this many largest ones, 0 .. 20. Default 0 */
    const char *const *stop; /* [n_stop] texts of 1 .. 4096 bytes, each of which ends the text */
    size_t n_stop;           /* at most 128 */
    int include_stop;        /* 1: what ends the text, string or id, belongs to it. Default 0 */
    const uint32_t *stop_ids;    /* [n_stop_ids] ids that end the text, also with ignore_eos */
    size_t n_stop_ids;           /* at most 128 */
    const uint32_t *bias_ids;    /* [n_bias] distinct ids */
    const float *bias;           /* [n_bias] what is added to the logits of bias_ids; -100 .. 100 */
    size_t n_bias;               /* at most 1024 */
    const uint32_t *allowed_ids; /* [n_allowed] no other id is generated */
    size_t n_allowed;            /* 0 = all are allowed */
    const uint32_t *bad_ids;     /* sequences that are not generated, one after the other */
    const uint32_t *bad_lens;    /* [n_bad] ids of each sequence, >= 1, together at most 4096 */
    size_t n_bad;
    rose_lib_structure structure; /* what the text must obey. Default FREE */
    const char *structure_text;   /* the schema, expression, list or grammar; NULL where none */
    int structure_ordered;        /* 1: the members of objects come in the order of the schema, as
                                     for OpenAI's response_format; 0 (default): in any order */
    int skip_special;             /* 1: special tokens have no text. Default 0 */
    int add_special;  /* submit_text: 1: the tokenizer adds its BOS token or the like. Default 0 */
    int32_t priority; /* -1000 .. 1000; requests with lower values run sooner. Default 0 */
    const char *cache_salt; /* cached prefixes are shared only among equal salts; NULL: the common
                               one */
    int wakeup;             /* 1: rose_lib_wakeup_fd and rose_lib_ready tell of this request.
                               Default 0 */
    void *user;             /* what rose_lib_user returns. Default NULL */
} rose_lib_params;

/* Writes the defaults above to p and sets its size. rose: NULL, or an engine whose
 * generation_config.json recommends other values of some members. Call it through the next two. */
ROSE_LIB_API void rose_lib_params_init(rose_lib_params *p, size_t size, const rose_lib *rose);

static inline void rose_lib_params_default(rose_lib_params *p)
{
    rose_lib_params_init(p, sizeof *p, NULL);
}

static inline void rose_lib_params_model(const rose_lib *rose, rose_lib_params *p)
{
    rose_lib_params_init(p, sizeof *p, rose);
}

/* Changes the members of p that the model's generation_config.json recommends, and no other.
 * Errors: INVAL (p->size is not set). */
ROSE_LIB_API int rose_lib_params_recommend(const rose_lib *rose, rose_lib_params *p,
                                           char err[ROSE_LIB_ERR]);

/* ---- requests ---- */

/* Submits a request and returns at once. Text is tokenised, and a structure that is new to this
 * engine is compiled (milliseconds to a second), on the calling thread. p may be NULL: the
 * defaults. A prompt must have 1 .. max_model_len - 1 tokens. Errors: INVAL, FULL, NOMEM, BACKEND;
 * then *out is NULL. */
ROSE_LIB_API int rose_lib_submit_ids(rose_lib *rose, const uint32_t *ids, size_t n,
                                     const rose_lib_params *p, rose_lib_request **out,
                                     char err[ROSE_LIB_ERR]);
ROSE_LIB_API int rose_lib_submit_text(rose_lib *rose, const char *text, size_t len,
                                      const rose_lib_params *p, rose_lib_request **out,
                                      char err[ROSE_LIB_ERR]);

/* Submits chat messages through the model's chat template, as rose_lib_submit_text does a text.
 * messages_json: a list of messages in OpenAI's form, such as [{"role": "user", "content": "Hi"}].
 * No message can contain a control token. options_json: NULL, or the NUL-terminated text of an
 * object with any of "tools" (list), "documents" (list), "chat_template_kwargs" (object),
 * "chat_template" (text: instead of the model's),
 * "add_generation_prompt" (default true), "continue_final_message" (default false; true needs an
 * "add_generation_prompt" of false). Errors: also INVAL where the model has no chat template, or
 * where the template refuses the messages. */
ROSE_LIB_API int rose_lib_submit_chat(rose_lib *rose, const char *messages_json, size_t len,
                                      const char *options_json, const rose_lib_params *p,
                                      rose_lib_request **out, char err[ROSE_LIB_ERR]);

/* The same for n messages of role and text, without JSON. */
typedef struct rose_lib_message {
    const char *role;    /* "system", "user", "assistant", or what else the template knows */
    const char *content; /* NUL-terminated UTF-8 */
} rose_lib_message;

ROSE_LIB_API int rose_lib_submit_messages(rose_lib *rose, const rose_lib_message *messages,
                                          size_t n, const char *options_json,
                                          const rose_lib_params *p, rose_lib_request **out,
                                          char err[ROSE_LIB_ERR]);

/* Why a request has ended. */
typedef enum rose_lib_finish {
    ROSE_LIB_RUNNING = 0,
    ROSE_LIB_STOP,      /* an end-of-sequence id, one of stop_ids, or a stop string */
    ROSE_LIB_LENGTH,    /* max_tokens reached or the context is full; the end of an embedding */
    ROSE_LIB_CANCELLED, /* rose_lib_cancel */
    ROSE_LIB_FAILED     /* rose_lib_request_error says why */
} rose_lib_finish;

/* What stopped a request that has ended with STOP. */
typedef enum rose_lib_stop {
    ROSE_LIB_STOP_NONE = 0,
    ROSE_LIB_STOP_EOS,   /* an end-of-sequence id of the model */
    ROSE_LIB_STOP_ID,    /* another id of stop_ids: piece.id */
    ROSE_LIB_STOP_STRING /* stop[piece.stop_index] */
} rose_lib_stop;

/* The natural logarithm of the probability of an id, from the model's raw logits: without
 * temperature, bias, penalties and structure. NaN where the model gave no finite logit. */
typedef struct rose_lib_logprob {
    uint32_t id;
    uint32_t rank; /* 1 = the most probable id */
    float logprob;
} rose_lib_logprob;

/* One token, and the text that it completed: whole UTF-8 characters; often empty for a token that
 * is part of one, or while the text may be the beginning of a stop string. */
typedef struct rose_lib_piece {
    size_t size;            /* of this struct, in bytes; set before the first rose_lib_next */
    int has_token;          /* 0 only when the request ends without a further token */
    uint32_t id;            /* of the token */
    const char *text;       /* borrowed until the next call on this request; not NUL-terminated */
    size_t text_len;        /* bytes */
    rose_lib_finish finish; /* not RUNNING: this was the last piece */
    uint64_t t_ns;          /* when the token was ready, monotonic clock */
    rose_lib_stop stop;     /* with finish STOP: what stopped it */
    uint32_t stop_index;    /* with STOP_STRING: which one of params.stop */
    const rose_lib_logprob *logprobs; /* [n_logprobs] with params.logprobs: first the token's own,
                                         then the top_logprobs largest ones by rank; borrowed until
                                         the next call on this request */
    size_t n_logprobs;
} rose_lib_piece;

static inline void rose_lib_piece_init(rose_lib_piece *piece)
{
    memset(piece, 0, sizeof *piece);
    piece->size = sizeof *piece;
}

/* 1: *piece is filled. 0: nothing came within timeout_ms (0 = do not wait, -1 = for ever), or
 * the request has ended and its last piece was given (piece->finish says so). Negative: INVAL, if
 * piece->size is not set, or if timeout_ms is not 0 for a request with params.wakeup. */
ROSE_LIB_API int rose_lib_next(rose_lib_request *r, rose_lib_piece *piece, int timeout_ms);

/* Asks for the end of a request: the finish of its last piece is then CANCELLED, unless another end
 * came first. Any thread, before rose_lib_release; also from a signal handler. */
ROSE_LIB_API void rose_lib_cancel(rose_lib_request *r);

/* Frees a request at any time; a running one is cancelled first, which may wait for the end of a
 * step (not with params.wakeup). Accepts NULL. */
ROSE_LIB_API void rose_lib_release(rose_lib_request *r);

/* Tokens of the prompt, with those that a chat template adds. */
ROSE_LIB_API uint32_t rose_lib_prompt_tokens(const rose_lib_request *r);

/* Tokens of the prompt that an earlier request had left in the prefix cache. Known after the first
 * piece. */
ROSE_LIB_API uint32_t rose_lib_cached_tokens(const rose_lib_request *r);

/* When the engine took the request out of its queue, monotonic clock; 0 = never. Known after the
 * first piece. */
ROSE_LIB_API uint64_t rose_lib_admitted_ns(const rose_lib_request *r);

/* The ids of the prompt, [rose_lib_prompt_tokens]; borrowed until release. */
ROSE_LIB_API const uint32_t *rose_lib_prompt_ids(const rose_lib_request *r);

/* Why the request has FAILED, one line; "" after any other finish. Borrowed until release. */
ROSE_LIB_API const char *rose_lib_request_error(const rose_lib_request *r);

ROSE_LIB_API void *rose_lib_user(const rose_lib_request *r); /* params.user */

/* ---- many requests in one event loop ---- */

/* A descriptor that is readable while a request with params.wakeup may have a piece, or has ended.
 * For poll, epoll, select, asyncio's add_reader. The library owns it: neither read nor close it. */
ROSE_LIB_API int rose_lib_wakeup_fd(const rose_lib *rose);

/* Writes to out[0..cap) requests with params.wakeup that have something new, each once, and
 * returns their number; 0 is normal. Read each with rose_lib_next(r, &piece, 0) until it gives 0:
 * only then is the request listed again. With more than cap of them the descriptor stays readable.
 * A released request is never listed. A request may be listed before the function that submitted it
 * has returned on another thread; params.user tells which one it is. Never waits. Any thread; if
 * several threads call it, each gets other requests. */
ROSE_LIB_API size_t rose_lib_ready(rose_lib *rose, rose_lib_request **out, size_t cap);

/* ---- embeddings ---- */

typedef struct rose_lib_embed_params {
    size_t size;            /* of this struct, in bytes */
    int normalize;          /* 1: length 1; 0: as the model gave it; -1 (default): as the model's
                               files say */
    uint32_t dimensions;    /* keep the first values only, where the model's files allow it; 0
                               (default) = all */
    int add_special;        /* submit_embed_text: the tokenizer adds its EOS token or the like.
                               Default 1 */
    int32_t priority;       /* as in rose_lib_params */
    const char *cache_salt; /* likewise */
    int wakeup;             /* likewise */
    void *user;             /* likewise */
} rose_lib_embed_params;

ROSE_LIB_API void rose_lib_embed_params_init(rose_lib_embed_params *p, size_t size);

static inline void rose_lib_embed_params_default(rose_lib_embed_params *p)
{
    rose_lib_embed_params_init(p, sizeof *p);
}

/* Submits a text whose states are pooled into one vector, as options.pooling says. The request
 * gives one piece, without a token, whose finish is LENGTH; then rose_lib_embedding is valid. p may
 * be NULL. Errors: as rose_lib_submit_ids; also INVAL where the model's files ask for a pooling
 * that the library does not have. */
ROSE_LIB_API int rose_lib_submit_embed_ids(rose_lib *rose, const uint32_t *ids, size_t n,
                                           const rose_lib_embed_params *p, rose_lib_request **out,
                                           char err[ROSE_LIB_ERR]);
ROSE_LIB_API int rose_lib_submit_embed_text(rose_lib *rose, const char *text, size_t len,
                                            const rose_lib_embed_params *p, rose_lib_request **out,
                                            char err[ROSE_LIB_ERR]);

/* The values of a finished request of rose_lib_submit_embed_*, fp32, their number in *n; borrowed
 * until release. NULL and 0 before its end, after another finish than LENGTH, and for a request
 * that generates. */
ROSE_LIB_API const float *rose_lib_embedding(const rose_lib_request *r, size_t *n);

/* ---- scores of pairs of texts ---- */

/* How a model scores a pair. */
typedef enum rose_lib_scoring {
    ROSE_LIB_SCORE_COSINE = 0, /* the cosine of the embeddings of both texts */
    ROSE_LIB_SCORE_ANSWERS,    /* a reranker: rose_lib_tokenize_pair makes a prompt, and the score
                                  is P(yes) / (P(yes) + P(no)) of the next token */
    ROSE_LIB_SCORE_NONE        /* it has another head or pooling, which is not supported */
} rose_lib_scoring;
ROSE_LIB_API rose_lib_scoring rose_lib_scores_by(const rose_lib *rose);

/* The prompt in which a reranker judges a document, by the template of Qwen3-Reranker's model card;
 * *ids as for rose_lib_tokenize. instruction: what to judge, NUL-terminated; NULL = that of the
 * card. answers gets the ids of yes and no. Errors: NOMEM, INVAL (a text is too long; the
 * vocabulary lacks an answer). */
ROSE_LIB_API int rose_lib_tokenize_pair(rose_lib *rose, const char *instruction, const char *query,
                                        size_t query_len, const char *document, size_t document_len,
                                        uint32_t answers[2], uint32_t **ids, size_t *n,
                                        char err[ROSE_LIB_ERR]);

/* ---- text and ids ---- */

/* *ids / *text is malloc'ed, the caller frees it with rose_lib_free; on failure it is NULL and the
 * number 0. The ids are those that rose_lib_submit_text (without add_special) and
 * rose_lib_submit_chat give to the model. *text is not NUL-terminated. Errors: INVAL, NOMEM. */
ROSE_LIB_API int rose_lib_tokenize(rose_lib *rose, const char *text, size_t len, uint32_t **ids,
                                   size_t *n, char err[ROSE_LIB_ERR]);
ROSE_LIB_API int rose_lib_tokenize_chat(rose_lib *rose, const char *messages_json, size_t len,
                                        const char *options_json, uint32_t **ids, size_t *n,
                                        char err[ROSE_LIB_ERR]);
ROSE_LIB_API int rose_lib_detokenize(rose_lib *rose, const uint32_t *ids, size_t n, char **text,
                                     size_t *len, char err[ROSE_LIB_ERR]);
ROSE_LIB_API void rose_lib_free(void *p); /* accepts NULL */

/* The same, where the tokenizer adds its BOS token or the like (as with add_special); and where
 * special tokens have no text (as with skip_special). */
ROSE_LIB_API int rose_lib_tokenize_special(rose_lib *rose, const char *text, size_t len,
                                           uint32_t **ids, size_t *n, char err[ROSE_LIB_ERR]);
ROSE_LIB_API int rose_lib_detokenize_plain(rose_lib *rose, const uint32_t *ids, size_t n,
                                           char **text, size_t *len, char err[ROSE_LIB_ERR]);

/* The text that rose_lib_submit_chat gives to the tokenizer; *text as for rose_lib_detokenize. */
ROSE_LIB_API int rose_lib_chat_text(rose_lib *rose, const char *messages_json, size_t len,
                                    const char *options_json, char **text, size_t *n,
                                    char err[ROSE_LIB_ERR]);

/* Both borrowed until close. The model's chat template, its length in *len; NULL = it has none. The
 * text of the special token "bos_token", "eos_token", "pad_token" or the like and its id; NULL =
 * the model's files name none. */
ROSE_LIB_API const char *rose_lib_chat_template(const rose_lib *rose, size_t *len);
ROSE_LIB_API const char *rose_lib_special_token(const rose_lib *rose, const char *name,
                                                uint32_t *id);

#ifdef __cplusplus
}
#endif

#endif
