/* roseinfer.h - the C library: open an engine, submit ids or text, poll, cancel, close.
 *
 *     rose_lib *rose; char err[ROSE_LIB_ERR];
 *     if (rose_lib_open(&rose, "models/rose-tiny", NULL, err) != 0) { puts(err); return 1; }
 *     rose_lib_params p; rose_lib_params_default(&p);
 *     rose_lib_request *r;
 *     if (rose_lib_submit_text(rose, "Once upon a time", 16, &p, &r, err) != 0) ...
 *     rose_lib_piece piece;
 *     while (rose_lib_next(r, &piece, -1) == 1)      // blocks; one piece per token
 *         fwrite(piece.text, 1, piece.text_len, stdout);
 *     rose_lib_release(r);
 *     rose_lib_close(rose);
 *
 * Link with `pkg-config --cflags --libs roseinfer`. The library writes nothing to stdout, installs
 * no signal handler, calls no exit(); log lines (warnings and above) go to stderr.
 *
 * Pointers must not be NULL unless a function says that it accepts NULL.
 * Threads: an engine may be used by any number of threads; a request by one thread at a time,
 * except rose_lib_cancel, which any thread may call. Memory: everything is owned by the library; a
 * request and the pieces that it gave are valid until rose_lib_release. Results: 0 is success, a
 * negative number is one of ROSE_LIB_E_*; err (may be NULL) gets one line: what was wrong, where,
 * what to do. */
#ifndef ROSEINFER_H
#define ROSEINFER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROSE_LIB_API __attribute__((visibility("default")))
#define ROSE_LIB_ERR 512 /* bytes of an err buffer */

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

/* Engine options. Zero-initialise and set what you need: 0 and NULL mean the default. */
typedef struct rose_lib_options {
    /* "auto" (default), "float32", "bfloat16", "float16" (cuda). auto on cuda: the type of the
     * file; for float32 and quantized files float16 for GPT-2, else bfloat16. auto on cpu: bfloat16
     * for BF16 files, else float32, for quantized GGUF files with int8 activations. */
    const char *dtype;
    const char *isa;             /* "auto" (default), "scalar", "avx2", "avx512", "avx512-bf16",
                                    "amx" */
    uint32_t threads;            /* compute threads; default one per allowed CPU */
    uint32_t max_num_seqs;       /* at most this many sequences in a step; default 256 */
    uint32_t max_batched_tokens; /* at most this many tokens in a step; default 2048 */
    uint32_t max_model_len;      /* longest context in tokens; the default is the model's context
                                  * length */
    uint32_t kv_pages;           /* pages of 16 tokens; default from the memory plan */
    uint32_t max_queued;         /* waiting requests; default 1024 */
    int pin_threads;             /* 1: pin each compute thread to a CPU; default not */
    const char *device; /* "auto" (default: cuda where there is a usable GPU), "cpu", "cuda" */
    const char *quantization;  /* "none" (default), "int8" (cpu: half the weight bytes) */
    const char *chat_template; /* a file or the template itself; default: the model's own. "plain":
                                  open a model whose own template does not compile */
    const char *generation_config; /* what rose_lib_params_model reads: "auto" (default: the
                                      model's), "none", or another folder, GGUF file or
                                      generation_config.json */
    const char *load_format; /* "auto" (default); "dummy": config.json and tokenizer alone, with
                                random weights, to measure speed */
} rose_lib_options;

/* Open a Hugging Face folder or a GGUF file. options may be NULL. On failure *out is NULL. */
ROSE_LIB_API int rose_lib_open(rose_lib **out, const char *model_dir,
                               const rose_lib_options *options, char err[ROSE_LIB_ERR]);

/* Cancels all running requests and frees everything, also unreleased requests. Accepts NULL. */
ROSE_LIB_API void rose_lib_close(rose_lib *rose);

/* Facts, constant after open. */
ROSE_LIB_API uint32_t rose_lib_vocab_size(const rose_lib *rose);
ROSE_LIB_API uint32_t rose_lib_max_model_len(const rose_lib *rose);
ROSE_LIB_API int rose_lib_has_chat_template(const rose_lib *rose); /* 1: submit_chat works */
ROSE_LIB_API const char *rose_lib_version(void);                   /* "0.1.0" */

/* How to generate. */
typedef struct rose_lib_params {
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
} rose_lib_params;

ROSE_LIB_API void rose_lib_params_default(rose_lib_params *p);

/* The defaults above, but for the fields that the model's generation_config.json recommends. */
ROSE_LIB_API void rose_lib_params_model(const rose_lib *rose, rose_lib_params *p);

/* Submits a request and returns at once. prompt is copied. Text is tokenised on the calling
 * thread. A prompt must have 1 .. max_model_len - 1 tokens. Errors: INVAL, FULL, NOMEM, BACKEND;
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
 * "add_generation_prompt" (default true), "continue_final_message" (default false; true needs an
 * "add_generation_prompt" of false). Errors: also INVAL where the model has no chat template, or
 * where the template refuses the messages. */
ROSE_LIB_API int rose_lib_submit_chat(rose_lib *rose, const char *messages_json, size_t len,
                                      const char *options_json, const rose_lib_params *p,
                                      rose_lib_request **out, char err[ROSE_LIB_ERR]);

typedef enum rose_lib_finish {
    ROSE_LIB_RUNNING = 0,
    ROSE_LIB_STOP,   /* end-of-sequence id; its text is empty */
    ROSE_LIB_LENGTH, /* max_tokens reached or the context is full */
    ROSE_LIB_CANCELLED,
    ROSE_LIB_FAILED
} rose_lib_finish;

/* Tokens of the prompt, with those that a chat template adds. */
ROSE_LIB_API uint32_t rose_lib_prompt_tokens(const rose_lib_request *r);

/* Tokens of the prompt that an earlier request had left in the prefix cache. Known after the first
 * piece. */
ROSE_LIB_API uint32_t rose_lib_cached_tokens(const rose_lib_request *r);

/* One token, and the text that it completed: whole UTF-8 characters; often empty for a token
 * that is part of one. */
typedef struct rose_lib_piece {
    int has_token; /* 0 only when the request ends without a further token */
    uint32_t id;
    const char *text;       /* borrowed until the next call on this request; not NUL-terminated */
    size_t text_len;        /* bytes */
    rose_lib_finish finish; /* not RUNNING: this was the last piece */
    uint64_t t_ns;          /* when the token was ready, monotonic clock */
} rose_lib_piece;

/* 1: *piece is filled. 0: nothing came within timeout_ms (0 = do not wait, -1 = for ever), or
 * the request has ended and its last piece was given (piece->finish says so). Negative: an
 * error. */
ROSE_LIB_API int rose_lib_next(rose_lib_request *r, rose_lib_piece *piece, int timeout_ms);

/* The finish of the last piece is then CANCELLED. Any thread; also from a signal handler. */
ROSE_LIB_API void rose_lib_cancel(rose_lib_request *r);
ROSE_LIB_API void
rose_lib_release(rose_lib_request *r); /* at any time; cancels first; accepts NULL */

/* Text <-> ids. *ids / *text is malloc'ed, the caller frees it with rose_lib_free. */
ROSE_LIB_API int rose_lib_tokenize(rose_lib *rose, const char *text, size_t len, uint32_t **ids,
                                   size_t *n, char err[ROSE_LIB_ERR]);
ROSE_LIB_API int rose_lib_detokenize(rose_lib *rose, const uint32_t *ids, size_t n, char **text,
                                     size_t *len, char err[ROSE_LIB_ERR]);
ROSE_LIB_API void rose_lib_free(void *p);

#ifdef __cplusplus
}
#endif

#endif
