/* tokenizer/tokenizer_internal.h - declarations that the files of src/tokenizer share. One
 * thread builds the tokenizer (load_*.c); after that it is read-only. */
#ifndef ROSE_TOKENIZER_INTERNAL_H
#define ROSE_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

#define ROSE_NO_ID      UINT32_MAX
#define ROSE_MAX_ID     (1u << 22) /* limit of token ids, which keeps the dense tables small */
#define ROSE_MAX_STAGES 16u        /* pre-tokenizers in sequence */
/* A post-processor adds at most this many special ids before the text, and as many after it. */
#define ROSE_MAX_TEMPLATE  16u
#define ROSE_MAX_ADDED     16384u
#define ROSE_MAX_ADDED_LEN 1024u            /* an added token has at most this many bytes */
#define ROSE_MAX_TEXT      (UINT32_MAX / 4) /* bytes of one text to encode */

enum { ROSE_TOK_EXISTS = 1, ROSE_TOK_ADDED = 2, ROSE_TOK_SPECIAL = 4 };

/* ---- vocabulary (vocab.c) ---- */

typedef struct rose_token {
    uint32_t off, len; /* its bytes in vocab.blob */
    uint32_t flags;    /* ROSE_TOK_* */
} rose_token;

typedef struct rose_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX = empty slot */
    uint32_t rank; /* lower merges first */
    uint32_t id;   /* what the pair becomes */
} rose_merge;

/* A short token that the merges make of its own bytes (whole.c). */
enum { ROSE_WHOLE_MAX = 12, ROSE_WHOLE_SLOTS = 4 };
typedef struct rose_whole {
    uint64_t lo; /* its bytes, padded with zeros */
    uint32_t hi;
    uint32_t id_len; /* id << 4 | length; 0 = empty */
} rose_whole;

typedef struct rose_whole_line { /* a cache line: filled from the front, then the next line */
    rose_whole slot[ROSE_WHOLE_SLOTS];
} rose_whole_line;

typedef struct rose_vocab {
    rose_buf blob;      /* bytes of all tokens */
    rose_token *tokens; /* owned; [n_ids] */
    uint32_t n_ids, cap_ids;
    uint32_t n_model; /* tokens of the model, added ones apart */
    size_t max_token_bytes;
    uint32_t *slots;    /* owned; a hash of model tokens by bytes: id, or ROSE_NO_ID */
    uint32_t slot_mask; /* number of slots - 1 (a power of two less one); 0 before vocab_index */
    rose_merge *merges; /* owned; hash by pair */
    uint32_t merge_mask;
    rose_whole_line *whole; /* owned; hash by bytes */
    uint32_t whole_mask;
    uint32_t byte_ids[256]; /* the one-byte token of each byte, or ROSE_NO_ID */
} rose_vocab;

void rose_vocab_free(rose_vocab *v);

/* Sets the bytes of token id to bytes[0..len). If the id already has a token, returns
 * ROSE_E_FORMAT unless replace is true. */
rose_status rose_vocab_put(rose_vocab *v, uint32_t id, const char *bytes, size_t len,
                           unsigned flags, bool replace, rose_err *err);

/* Builds the hash by bytes and the byte table, after the last model token. is_raw[id] marks
 * `raw` ids: their text is not in the byte alphabet, so that no text can become them. */
rose_status rose_vocab_index(rose_vocab *v, const uint8_t *is_raw, rose_err *err);

/* Returns the id of the model token with these bytes, or ROSE_NO_ID. */
uint32_t rose_vocab_find(const rose_vocab *v, const char *bytes, size_t len);

rose_status rose_vocab_merges_alloc(rose_vocab *v, size_t n_merges, rose_err *err);
void rose_vocab_merge_put(rose_vocab *v, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

static inline uint64_t rose_mix64(uint64_t x)
{
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 32;
}

typedef struct rose_whole_key {
    uint64_t lo;
    uint32_t hi;
} rose_whole_key;

/* The key of bytes[0..n), n <= ROSE_WHOLE_MAX. */
static inline rose_whole_key rose_whole_key_of(const char *bytes, size_t n)
{
    char padded[16] = {0};
    rose_whole_key k;
    memcpy(padded, bytes, n);
    memcpy(&k.lo, padded, 8);
    memcpy(&k.hi, padded + 8, 4);
    return k;
}

/* Where the search for it begins. */
static inline uint32_t rose_whole_line_of(const rose_vocab *v, rose_whole_key k, size_t n)
{
    return (uint32_t)rose_mix64(k.lo ^ rose_mix64((uint64_t)k.hi << 4 | n)) & v->whole_mask;
}

/* The merge of a pair, or NULL. */
static inline const rose_merge *rose_vocab_merge(const rose_vocab *v, uint32_t left, uint32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | right;
    for (uint32_t i = (uint32_t)rose_mix64(pair) & v->merge_mask;; i = (i + 1) & v->merge_mask) {
        if (v->merges[i].pair == pair) return &v->merges[i];
        if (v->merges[i].pair == UINT64_MAX) return NULL;
    }
}

/* whole.c: builds the table, after the last merge and all options of the model. */
rose_status rose_whole_build(rose_tokenizer *t, rose_err *err);

/* The byte alphabet of byte-level BPE: printable Latin-1 stands for itself, and U+0100 and up
 * for the other 68 bytes. Converts text of a vocabulary file to bytes, appended to out. False if
 * a character is not in the alphabet; then the text itself was appended. text is well-formed
 * UTF-8. */
bool rose_alphabet_to_bytes(const char *text, size_t len, rose_buf *out, rose_status *st);

/* ---- added tokens (added.c) ---- */

typedef struct rose_added {
    char *content; /* owned: as the file has it */
    size_t content_len;
    char *text; /* owned: the text to search for: the content, normalised if the flag `normalized`
                   is set */
    size_t len;
    uint32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
} rose_added;

typedef struct rose_added_set {
    rose_added **items; /* owned array; items borrowed from the tokenizer; sorted by text */
    size_t n;
    bool first[256]; /* some token starts with this byte */
    int only_first;  /* the one first byte, or -1 */
} rose_added_set;

/* A token that was found: text[begin, end), with the white space that it strips, becomes id. */
typedef struct rose_added_hit {
    size_t begin, end;
    const rose_added *token;
} rose_added_hit;

/* A walk over the hits of one text from left to right; zero-initialise and set the text. */
typedef struct rose_added_walk {
    const rose_added_set *set;
    const char *text;
    size_t len;
    bool plain_special;      /* the text of special tokens is plain */
    size_t pos;              /* where the search goes on */
    size_t taken;            /* the start of the text that no earlier hit has taken */
    size_t ws_begin, ws_end; /* the last run of white space that the walk has seen, so that no
                              * run is read twice */
} rose_added_walk;

rose_status rose_added_set_build(rose_added_set *s, rose_added *all, size_t n, bool normalized,
                                 rose_err *err);
void rose_added_set_free(rose_added_set *s);
bool rose_added_next(rose_added_walk *w, rose_added_hit *hit);

/* ---- normalizer (normalize.c) ---- */

enum { ROSE_NORM_NFC, ROSE_NORM_NFD, ROSE_NORM_NFKC, ROSE_NORM_NFKD };

/* Normalises text[0..len) (well-formed) by form. *out is either text itself (if it is normal
 * already) or the content of scratch. O(n log n). */
rose_status rose_normalize(int form, const char *text, size_t len, rose_buf *scratch,
                           const char **out, size_t *out_len);

/* ---- patterns (pattern.c) ---- */

/* Compiles an Oniguruma pattern as `tokenizers` would read it. Constructs that PCRE2 would read
 * differently are refused by name. Free with pcre2_code_free. */
rose_status rose_pattern_compile(pcre2_code **out, const char *pattern, size_t len, bool literal,
                                 rose_err *err);

/* ---- pre-tokenizer ---- */

typedef enum rose_stage_kind {
    ROSE_STAGE_SPLIT,
    ROSE_STAGE_DIGITS,
    ROSE_STAGE_BYTE_LEVEL /* always the last */
} rose_stage_kind;

typedef struct rose_stage {
    rose_stage_kind kind;
    pcre2_code *code;      /* owned; SPLIT */
    bool removed, invert;  /* SPLIT: drop the matches (invert: drop the text between them) */
    bool individual;       /* DIGITS: each digit by itself */
    bool add_prefix_space; /* BYTE_LEVEL */
    bool use_regex;        /* BYTE_LEVEL: split by GPT-2's pattern */
} rose_stage;

struct rose_tokenizer {
    rose_vocab vocab;
    uint32_t unk_id; /* id for a byte without a token; ROSE_NO_ID: such bytes are dropped */
    bool fuse_unk;
    bool ignore_merges; /* a piece that is in the vocabulary is taken without merging */
    uint8_t norms[4];   /* ROSE_NORM_*, in order */
    uint32_t n_norms;
    rose_stage stages[ROSE_MAX_STAGES];
    uint32_t n_stages;
    rose_added *added; /* owned; [n_added] */
    size_t n_added;
    rose_added_set raw_set, norm_set; /* matched before and after normalisation */
    uint32_t prefix[ROSE_MAX_TEMPLATE], suffix[ROSE_MAX_TEMPLATE]; /* ROSE_ENCODE_ADD_SPECIAL */
    uint32_t n_prefix, n_suffix;
};

/* ---- loading: each fills a zeroed tokenizer; the caller frees it on failure ---- */

rose_status rose_load_tokenizer_json(rose_tokenizer *t, const char *path, rose_err *err);
rose_status rose_load_vocab_merges(rose_tokenizer *t, const char *dir, rose_err *err);

/* Shared by both (load_common.c). */
rose_status rose_load_json(json_t **out, const char *path, rose_err *err);
/* Model tokens from an object text -> id. */
rose_status rose_load_vocab(rose_tokenizer *t, const json_t *vocab, rose_err *err);
/* Index the vocabulary, and take merges: pairs of texts from next(), which returns false at the
 * end or on an error (status in *st). */
typedef struct rose_merge_source rose_merge_source;
struct rose_merge_source {
    bool (*next)(rose_merge_source *s, const char **a, size_t *na, const char **b, size_t *nb,
                 rose_status *st, rose_err *err);
    size_t n; /* an upper bound of their number */
};
rose_status rose_load_merges(rose_tokenizer *t, const json_t *vocab, rose_merge_source *src,
                             rose_err *err);

typedef struct rose_added_spec {
    const char *text; /* borrowed */
    size_t len;
    bool special, lstrip, rstrip, single_word, normalized;
    bool has_id;
    uint32_t id; /* the added token's id in the file, which must equal the id that `tokenizers`
                  * would give it */
} rose_added_spec;

/* Adds tokens in order, then builds the two sets. */
rose_status rose_load_added(rose_tokenizer *t, const json_t *vocab, const rose_added_spec *specs,
                            size_t n, rose_err *err);

#endif
