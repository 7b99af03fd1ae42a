/* tokenizer/tokenizer.h - byte-level BPE and SentencePiece-style BPE: text -> ids -> text, equal to
 * Hugging Face `tokenizers`, and to `sentencepiece` for its own files.
 *
 * A tokenizer is immutable after open and shared by any number of threads. An encoder holds one
 * thread's scratch and cache; make one per thread. Text is bytes with a length; NUL is an ordinary
 * byte.
 *
 * Bytes that are not UTF-8 (`tokenizers` cannot be given any): each maximal run of bytes that
 * belong to no well-formed character is a piece of its own and is encoded byte by byte, and the
 * text on either side as if it began or ended there. So no byte is lost: the token bytes
 * concatenate to the text. SentencePiece style: bytes that have a <0xXX> token. Decoding never
 * emits invalid UTF-8: maximal invalid subparts become U+FFFD, as Rust's from_utf8_lossy.
 *
 * Where we differ from `tokenizers` on purpose: a file that gives two tokens of its vocabulary one
 * id is refused; an added token decodes to its own text even if all its characters are of the byte
 * alphabet; "truncation" and "padding" are passed over; <0xXX> tokens that make no valid UTF-8
 * together lose only the invalid parts. */
#ifndef ROSE_TOKENIZER_TOKENIZER_H
#define ROSE_TOKENIZER_TOKENIZER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/gguf.h"

typedef struct rose_tokenizer rose_tokenizer;
typedef struct rose_encoder rose_encoder;

/* A growable list of token ids; zero-initialise, free with rose_ids_free. */
typedef struct rose_ids {
    uint32_t *data;
    size_t len, cap; /* in ids */
} rose_ids;

void rose_ids_free(rose_ids *ids);

/* Open the tokenizer of a model: of a GGUF file or a folder that holds one (base/folder.h), or of a
 * Hugging Face folder: tokenizer.json if present, else tokenizer.model, else vocab.json +
 * merges.txt, the last two with tokenizer_config.json and its like where present. What we do not
 * implement (another model type than BPE, an unknown normalizer, pre-tokenizer, decoder) is refused
 * by name: ROSE_E_UNSUPPORTED. Malformed files: ROSE_E_FORMAT. Never crashes on any bytes. */
rose_status rose_tokenizer_open(rose_tokenizer **out, const char *model_dir, rose_err *err);

/* Open the tokenizer in the metadata of a GGUF file (tokenizer.ggml.*; model "llama" or "gpt2").
 * The file may be closed afterwards. Errors as for rose_tokenizer_open. */
rose_status rose_tokenizer_open_gguf(rose_tokenizer **out, const rose_gguf *file, rose_err *err);
void rose_tokenizer_close(rose_tokenizer *t); /* accepts NULL */

uint32_t
rose_tokenizer_vocab_size(const rose_tokenizer *t); /* highest id + 1, added tokens included */

/* Warns in the log of tokens with ids from n_model_ids on, which the model does not have. A
 * prompt that contains such a token will be refused. */
void rose_tokenizer_warn_beyond(const rose_tokenizer *t, uint32_t n_model_ids);

bool rose_tokenizer_is_special(const rose_tokenizer *t, uint32_t id);

/* Returns the bytes of a token (borrowed, length in *len); NULL for an id that does not exist.
 * For a special or added token outside the vocabulary these are its literal content, normalised
 * if the token is matched normalised. */
const char *rose_tokenizer_token_bytes(const rose_tokenizer *t, uint32_t id, size_t *len);

/* Finds the id whose literal content is exactly text (added tokens first, then the vocabulary);
 * false if there is none. */
bool rose_tokenizer_find(const rose_tokenizer *t, const char *text, size_t len, uint32_t *id);

rose_status rose_encoder_create(rose_encoder **out, const rose_tokenizer *t, rose_err *err);
void rose_encoder_destroy(rose_encoder *e); /* accepts NULL */

/* From now on rose_encode stops with ROSE_E_CLOSED soon after another thread sets *stop, for
 * example because the client of a text of many megabytes left. stop is borrowed. NULL (the
 * default): rose_encode never stops early. */
void rose_encoder_set_stop(rose_encoder *e, const atomic_bool *stop);

enum {
    ROSE_ENCODE_PLAIN_SPECIAL = 1u << 0, /* flag: treat the text of special tokens as plain text */
    ROSE_ENCODE_ADD_SPECIAL = 1u << 1    /* flag: run the tokenizer's post-processor (which adds
                                          * BOS, for example), if it has one */
};

/* Appends the ids of text[0..len) to out. Its time is O(len log len) for any input. Errors:
 * ROSE_E_NOMEM; ROSE_E_INVAL for a text of 1 GiB or more; ROSE_E_UNSUPPORTED when the
 * tokenizer's own regular expression gives up (never GPT-2's pattern); ROSE_E_CLOSED when it was
 * stopped. After an error out is unchanged. */
rose_status rose_encode(rose_encoder *e, const char *text, size_t len, unsigned flags,
                        rose_ids *out, rose_err *err);

/* A stretch of a text that a template and messages make together. */
typedef struct rose_mark_run {
    size_t len;       /* bytes */
    bool is_template; /* written by the template, not by a message */
} rose_mark_run;

/* As rose_encode, but a special token matches only if all its bytes are template bytes, and plain
 * text never becomes a special token, whatever the merges are. The unknown token may appear. The
 * text is tokenised as a whole: messages that spell no special token get the ids of rose_encode.
 * The runs cover the text exactly: else ROSE_E_INVAL. Two limits: a byte or character whose only
 * token is special becomes the unknown token, or nothing; and where NFC, NFD, NFKC or NFKD changes
 * a stretch that has message bytes, no special token that is matched normalised is found in it. */
rose_status rose_encode_marked(rose_encoder *e, const char *text, size_t len,
                               const rose_mark_run *runs, size_t n_runs, unsigned flags,
                               rose_ids *out, rose_err *err);

enum {
    ROSE_DECODE_SKIP_SPECIAL = 1u << 0,
    ROSE_DECODE_CONTINUES = 1u << 1 /* the ids continue a text: a space at their start stays */
};

/* Appends the text of ids[0..n) to out: valid UTF-8. An id that does not exist gives
 * ROSE_E_INVAL, which names it, and out is unchanged. */
rose_status rose_decode(const rose_tokenizer *t, const uint32_t *ids, size_t n, unsigned flags,
                        rose_buf *out, rose_err *err);

/* Incremental detokenisation. All pieces and the final flush concatenate to rose_decode of all
 * ids, and no piece ends inside a character. A plain value, zero-initialise; no allocation. */
typedef struct rose_detok {
    uint8_t pending[4]; /* start of a character that later tokens may complete */
    uint8_t n_pending;
    bool started; /* the start of the text, where a space may be dropped, is past */
} rose_detok;

/* Begins a stream that continues prompt[0..n): its text is that of prompt and stream together,
 * without the text of the prompt. So a space at its start stays, unless all of the prompt is
 * special tokens that flags (as for rose_decode) skip. */
void rose_detok_begin(rose_detok *d, const rose_tokenizer *t, const uint32_t *prompt, size_t n,
                      unsigned flags);

/* Bytes that are enough for one piece of any token of this vocabulary. */
size_t rose_detok_cap(const rose_tokenizer *t);

/* Writes the text that token id completes to out[0..cap), cap >= rose_detok_cap(t); returns its
 * length (0 is normal). An id that does not exist contributes nothing. flags as for rose_decode. */
size_t rose_detok_push(rose_detok *d, const rose_tokenizer *t, uint32_t id, unsigned flags,
                       char *out);

/* Writes an incomplete character, as U+FFFD; returns its length, at most 12 bytes. Resets d. */
size_t rose_detok_finish(rose_detok *d, char *out);

#endif
