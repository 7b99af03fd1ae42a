/* tokenizer/tokenizer_internal.h - declarations that the files of src/tokenizer share. One
 * thread builds the tokenizer (load_*.c); after that it is read-only. */
#ifndef ROSE_TOKENIZER_INTERNAL_H
#define ROSE_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

#define ROSE_NO_ID      UINT32_MAX
#define ROSE_MAX_ID     (1u << 22) /* limit of token ids, which keeps the dense tables small */
#define ROSE_MAX_STAGES 16u        /* pre-tokenizers in sequence */
/* A post-processor adds at most this many special ids before the text, and as many after it. */
#define ROSE_MAX_TEMPLATE  16u
#define ROSE_MAX_ADDED     16384u
#define ROSE_MAX_ADDED_LEN 1024u            /* an added token has at most this many bytes */
#define ROSE_MAX_TEXT      (UINT32_MAX / 4) /* bytes of one text to encode */

enum {
    ROSE_TOK_EXISTS = 1,
    ROSE_TOK_ADDED = 2,
    ROSE_TOK_SPECIAL = 4,
    ROSE_TOK_MODEL = 8, /* of the model's vocabulary */
    ROSE_TOK_RAW = 16   /* byte-level: its text is not in the byte alphabet */
};

#define ROSE_SPACE_MARK "\xE2\x96\x81" /* U+2581: SentencePiece writes a space like this */
enum { ROSE_SPACE_MARK_LEN = 3 };

/* ---- vocabulary (vocab.c) ---- */

typedef struct rose_token {
    uint32_t off, len; /* the bytes it stands for, in vocab.blob */
    uint32_t flags;    /* ROSE_TOK_* */
} rose_token;

typedef struct rose_slot {
    uint32_t id;   /* ROSE_NO_ID: empty */
    uint32_t hash; /* of the text */
} rose_slot;

typedef struct rose_text_ref {
    uint32_t off, len; /* in vocab.texts */
} rose_text_ref;

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

/* While a file is read, every model token has its text, and the hash finds ids by text. Afterwards
 * a byte-level vocabulary finds ids by bytes and drops the texts. A vocabulary of characters keeps
 * its texts: they, not the bytes, are what normalised input is made of. */
typedef struct rose_vocab {
    rose_buf blob;      /* bytes of all tokens */
    rose_token *tokens; /* owned; [n_ids] */
    uint32_t n_ids, cap_ids;
    uint32_t n_model; /* tokens of the model, added ones apart */
    size_t max_token_bytes, max_text;
    rose_buf texts;         /* as the file writes the tokens; empty: the bytes are the texts */
    rose_text_ref *text_of; /* owned; [n_ids]; NULL: the bytes are the texts */
    rose_slot *slots;       /* owned; hash of model tokens by text */
    uint32_t slot_mask;     /* slots - 1, a power of two less one; 0 before the first token */
    rose_merge *merges;     /* owned; hash by pair */
    uint32_t merge_mask, n_merges;
    rose_whole_line *whole; /* owned; hash by bytes */
    uint32_t whole_mask;
    uint32_t byte_ids[256];  /* the token of each single byte (characters: <0xXX>), or ROSE_NO_ID */
    uint32_t ascii_ids[128]; /* characters: the token of each ASCII character, or ROSE_NO_ID */
} rose_vocab;

void rose_vocab_free(rose_vocab *v);

/* Sets the bytes of token id to bytes[0..len). If the id already has a token, returns
 * ROSE_E_FORMAT unless replace is true. */
rose_status rose_vocab_put(rose_vocab *v, uint32_t id, const char *bytes, size_t len,
                           unsigned flags, bool replace, rose_err *err);

/* Add a model token. Fails with ROSE_E_FORMAT if the id or the text is already used. */
rose_status rose_vocab_add_text(rose_vocab *v, uint32_t id, const char *text, size_t len,
                                rose_err *err);

/* After the last merge and added token: the bytes of every model token, the hash, the tables. The
 * texts of a byte-level vocabulary are in the byte alphabet; text that is not (is raw) is a token
 * which no input becomes. */
rose_status rose_vocab_finish_bytes(rose_vocab *v, rose_err *err);
/* The same for a vocabulary of characters. space_mark: U+2581 decodes to a space. byte_tokens:
 * <0xXX> decodes to a byte. */
rose_status rose_vocab_finish_chars(rose_vocab *v, bool space_mark, bool byte_tokens,
                                    rose_err *err);
/* Bytes that a token with this text decodes to, appended to out (vocabulary of characters). */
rose_status rose_vocab_text_bytes(const char *text, size_t len, bool space_mark, bool byte_tokens,
                                  rose_buf *out);

/* Id of the model token with this text, or ROSE_NO_ID. */
uint32_t rose_vocab_find(const rose_vocab *v, const char *text, size_t len);

uint32_t rose_vocab_hash(const char *text, size_t len);

/* Ask for the memory that a search for a text with this hash reads: first the slot, later, when the
 * slot has come, the place of its text. */
static inline void rose_vocab_prefetch_slot(const rose_vocab *v, uint32_t hash)
{
    if (v->slots != NULL) __builtin_prefetch(&v->slots[hash & v->slot_mask]);
}

static inline void rose_vocab_prefetch_text(const rose_vocab *v, uint32_t hash)
{
    if (v->slots == NULL || v->text_of == NULL) return;
    const uint32_t id = v->slots[hash & v->slot_mask].id;
    if (id != ROSE_NO_ID) __builtin_prefetch(&v->text_of[id]);
}

/* The text of a model token: its bytes where no texts are kept. */
static inline const char *rose_vocab_text(const rose_vocab *v, uint32_t id, size_t *len)
{
    const bool kept = v->text_of != NULL;
    *len = kept ? v->text_of[id].len : v->tokens[id].len;
    return kept ? v->texts.data + v->text_of[id].off : v->blob.data + v->tokens[id].off;
}

/* Room for n merges in all; for one more. */
rose_status rose_vocab_merges_alloc(rose_vocab *v, size_t n_merges, rose_err *err);
rose_status rose_vocab_merges_grow(rose_vocab *v, rose_err *err);
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

static inline void rose_vocab_prefetch_merge(const rose_vocab *v, uint32_t left, uint32_t right)
{
    const uint64_t pair = (uint64_t)left << 32 | right;
    if (v->merges != NULL)
        __builtin_prefetch(&v->merges[(uint32_t)rose_mix64(pair) & v->merge_mask]);
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
    bool plain_special; /* the text of special tokens is plain */
    const char *marks;  /* NULL, or one byte for each of text: a special token must be all marked */
    size_t pos;         /* where the search goes on */
    size_t taken;       /* the text before this belongs to earlier hits */
    size_t ws_begin,
        ws_end; /* the last run of white space walked, so that no run is walked twice */
} rose_added_walk;

rose_status rose_added_set_build(rose_added_set *s, rose_added *all, size_t n, bool normalized,
                                 rose_err *err);
void rose_added_set_free(rose_added_set *s);
bool rose_added_next(rose_added_walk *w, rose_added_hit *hit);

/* ---- normalizer (normalize.c) ---- */

typedef enum rose_norm_kind {
    ROSE_NORM_NFC,
    ROSE_NORM_NFD,
    ROSE_NORM_NFKC,
    ROSE_NORM_NFKD,
    ROSE_NORM_PREPEND, /* `to`, unless the text is empty */
    ROSE_NORM_REPLACE  /* every `from` by `to` */
} rose_norm_kind;

enum { ROSE_NORM_TEXT = 16, ROSE_MAX_NORMS = 4 };
typedef struct rose_norm {
    rose_norm_kind kind;
    char from[ROSE_NORM_TEXT], to[ROSE_NORM_TEXT];
    uint8_t n_from, n_to; /* bytes in use */
    bool first_only;      /* only at the beginning of the text of a call */
    bool spares_added;    /* not done to the text of added tokens */
} rose_norm;

/* Normalise text[0..len) (well-formed). *out is either text itself (unchanged) or scratch's
 * content. O(n log n). marks: NULL, or one byte for each byte of text, replaced by those of *out:
 * a byte is marked if all bytes it comes from are. */
rose_status rose_normalize(const rose_norm *norm, const char *text, size_t len, rose_buf *scratch,
                           const char **out, size_t *out_len, rose_buf *marks);

/* ---- patterns (pattern.c) ---- */

/* Compiles an Oniguruma pattern as `tokenizers` would read it. Constructs that PCRE2 would read
 * differently are refused by name. Free with pcre2_code_free. */
rose_status rose_pattern_compile(pcre2_code **out, const char *pattern, size_t len, bool literal,
                                 rose_err *err);

/* ---- pre-tokenizer ---- */

/* Length of the first piece of p[0..n), n > 0, well-formed. */
typedef size_t (*rose_scan)(const uint8_t *p, size_t n);

/* scan.c: pieces of GPT-2's pattern, of Llama 3's, of Qwen 2's, and of GPT-2's after each digit was
 * cut out (SmolLM). */
size_t rose_scan_gpt2(const uint8_t *p, size_t n);
size_t rose_scan_llama3(const uint8_t *p, size_t n);
size_t rose_scan_qwen2(const uint8_t *p, size_t n);
size_t rose_scan_smollm(const uint8_t *p, size_t n);
/* Pieces that begin at each U+2581, or at each run of them. */
size_t rose_scan_mark(const uint8_t *p, size_t n);
size_t rose_scan_marks(const uint8_t *p, size_t n);
/* The scanner of exactly this pattern, or NULL. */
rose_scan rose_scan_of_pattern(const char *pattern, size_t len);
#define ROSE_GPT2_PATTERN                                                                          \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* What values of tokenizer.ggml.pre stand for (pres.c). */
enum { ROSE_PRE_PATTERNS = 6 };
typedef struct rose_pre {
    const char *names;                       /* values of the key, with spaces between them */
    rose_scan scan;                          /* NULL: `patterns` */
    const char *patterns[ROSE_PRE_PATTERNS]; /* splits in sequence, up to the first NULL */
    bool ignore_merges;                      /* a piece in the vocabulary is taken whole */
    bool add_bos; /* BOS goes first in a file without tokenizer.ggml.add_bos_token */
    bool is_nfc;
} rose_pre;
const rose_pre *rose_pre_find(const char *name); /* NULL: unknown */

typedef enum rose_stage_kind {
    ROSE_STAGE_SPLIT,
    ROSE_STAGE_DIGITS,
    ROSE_STAGE_BYTE_LEVEL, /* this and what follows are always the last */
    ROSE_STAGE_METASPACE,
    ROSE_STAGE_CHARS
} rose_stage_kind;

typedef enum rose_split { /* what becomes of the matches of a Split */
                          ROSE_SPLIT_ISOLATED,
                          ROSE_SPLIT_REMOVED,
                          ROSE_SPLIT_WITH_PREVIOUS,
                          ROSE_SPLIT_WITH_NEXT
} rose_split;

typedef enum rose_prepend {
    ROSE_PREPEND_NEVER,
    ROSE_PREPEND_FIRST,
    ROSE_PREPEND_ALWAYS
} rose_prepend;

typedef struct rose_stage {
    rose_stage_kind kind;
    pcre2_code *code;      /* owned; SPLIT */
    rose_split split;      /* SPLIT */
    bool invert;           /* SPLIT: what lies between the matches are the matches */
    bool individual;       /* DIGITS: each digit by itself */
    bool add_prefix_space; /* BYTE_LEVEL */
    rose_prepend prepend;  /* METASPACE: when U+2581 goes first */
    rose_scan scan;        /* the last stage: cuts pieces; NULL: the text is one piece */
} rose_stage;

typedef enum rose_strip { /* of the text that ids decode to, spaces that the encoder had added */
                          ROSE_STRIP_NOTHING,
                          ROSE_STRIP_ONE,        /* one space at the start */
                          ROSE_STRIP_FIRST_TOKEN /* all spaces of the first token */
} rose_strip;

struct rose_tokenizer {
    rose_vocab vocab;
    uint32_t unk_id; /* id for a byte without a token; ROSE_NO_ID: such bytes are dropped */
    bool fuse_unk;
    bool ignore_merges;           /* a whole piece in the vocabulary is taken as it is */
    bool is_chars;                /* symbols are characters, not bytes: SentencePiece style */
    bool byte_fallback;           /* characters without a token become the tokens of their bytes */
    bool special_reachable;       /* plain text may become a special token */
    bool space_mark, byte_tokens; /* how texts decode: see rose_vocab_finish_chars */
    rose_strip strip;
    rose_norm norms[ROSE_MAX_NORMS]; /* in order */
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

/* path: the file; dir: the folder that it is in. */
rose_status rose_load_tokenizer_json(rose_tokenizer *t, const char *dir, const char *path,
                                     rose_err *err);
rose_status rose_load_vocab_merges(rose_tokenizer *t, const char *dir, rose_err *err);
/* tokenizer.model of sentencepiece, with the tokenizer_config.json beside it (sentencepiece.c). */
rose_status rose_load_sentencepiece(rose_tokenizer *t, const char *dir, rose_err *err);
rose_status rose_load_gguf(rose_tokenizer *t, const rose_gguf *file, rose_err *err);

/* load_parts.c: the parts of tokenizer.json other than model and tokens. */
rose_status rose_load_parts(rose_tokenizer *t, const rose_json *root, const char *path,
                            rose_err *err);
rose_status rose_json_bad(rose_err *err, const char *path, const char *what);
rose_status rose_json_unsupported(rose_err *err, const char *path, const char *what,
                                  const char *name);
/* "type" of a component, "" when it has none. */
const char *rose_json_type(const rose_json *o);
/* A boolean field: its value, dflt when absent; *ok = false when it is something else. */
bool rose_json_bool(const rose_json *o, const char *name, bool dflt, bool *ok);

/* Shared (load_common.c). */
rose_status rose_load_json(rose_json **out, const char *path, rose_err *err);
/* dir/name if it exists, else *out = NULL. */
rose_status rose_load_optional_json(rose_json **out, const char *dir, const char *name,
                                    rose_err *err);
/* Model tokens from an object text -> id, without a tree. */
rose_status rose_load_vocab_object(rose_tokenizer *t, rose_json_scan *s, rose_err *err);
/* Merges named by texts, put in batches (load_merges.c). Fill v and err; flush at the end; free
 * scratch. */
enum { ROSE_MERGE_BATCH = 16, ROSE_MERGE_SHORT = 64 };
typedef struct rose_merge_text {
    const char *both; /* left and right, joined */
    size_t n_left, n_both;
    uint32_t rank, hash[3]; /* hashes of left, right and both */
    char copy[ROSE_MERGE_SHORT];
} rose_merge_text;
typedef struct rose_merges {
    rose_vocab *v; /* borrowed */
    rose_err *err; /* borrowed */
    rose_buf scratch;
    uint32_t n;
    rose_merge_text batch[ROSE_MERGE_BATCH];
} rose_merges;
/* Unknown texts are ROSE_E_FORMAT, which may come with a later merge. */
rose_status rose_merges_add(rose_merges *l, uint32_t rank, const char *a, size_t na, const char *b,
                            size_t nb);
rose_status rose_merges_flush(rose_merges *l);

typedef struct rose_added_spec {
    const char *text; /* borrowed */
    size_t len;
    bool special, lstrip, rstrip, single_word, normalized;
    bool has_id;
    uint32_t id;   /* in the file; it must be the id that the token's place gives, or by_place */
    bool by_place; /* another id in the file is only a warning, and the place counts */
} rose_added_spec;

/* Tokens that tokenizer_config.json, special_tokens_map.json and added_tokens.json name
 * (load_config.c). Open, begin with n known tokens and fill specs[0..n), read, use `specs`, close.
 */
typedef struct rose_token_files {
    const char *dir;                         /* borrowed */
    rose_json *config, *special_map, *added; /* owned; NULL: no such file */
    const rose_json *decoder;                /* of config; NULL: none */
    rose_added_spec *specs; /* owned; texts borrowed from the JSON values, or the caller's */
    size_t n_specs, cap_specs;
    rose_added_spec **sorted; /* owned; the known tokens by text */
    size_t n_known;           /* specs[0..n_known) were known before */
    rose_err *err;
} rose_token_files;
/* lenient: a file that is no JSON is ignored with a warning, because another file has the
 * vocabulary's kind. */
rose_status rose_token_files_open(rose_token_files *f, const char *dir, bool lenient,
                                  rose_err *err);
rose_status rose_token_files_begin(rose_token_files *f, size_t n);
/* fallback: bos, eos and unk where no file names them, or NULL. */
rose_status rose_token_files_read(rose_token_files *f, const rose_json *fallback);
/* Says which tokens of the tokenizer only these files name. */
void rose_token_files_log(const rose_token_files *f, const rose_tokenizer *t, const char *file);
void rose_token_files_close(rose_token_files *f); /* accepts a zeroed struct */

/* Add tokens in order, then build the two sets. After the last model token and merge. */
rose_status rose_load_added(rose_tokenizer *t, const rose_added_spec *specs, size_t n,
                            rose_err *err);
/* The last step: bytes, hash, tables. */
rose_status rose_load_finish(rose_tokenizer *t, rose_err *err);

/* Pieces of sentencepiece, from tokenizer.model or GGUF (pieces.c). */
typedef enum rose_piece_type {
    ROSE_PIECE_NORMAL = 1,
    ROSE_PIECE_UNKNOWN,
    ROSE_PIECE_CONTROL,
    ROSE_PIECE_USER_DEFINED,
    ROSE_PIECE_UNUSED,
    ROSE_PIECE_BYTE
} rose_piece_type;

typedef struct rose_piece_spec {
    const char *text; /* borrowed */
    size_t len;
    float score;
    int32_t type; /* rose_piece_type; others are FORMAT */
    bool raw;     /* of a user-defined token: matches before the text is normalised */
    bool rstrip;  /* takes the white space after it with it */
} rose_piece_spec;

/* pieces[i] becomes id i. prefix: where a space is added. where: the file, for messages. more:
 * added tokens that are no pieces. */
rose_status rose_load_pieces(rose_tokenizer *t, const rose_piece_spec *pieces, size_t n,
                             rose_prepend prefix, const rose_added_spec *more, size_t n_more,
                             const char *where, rose_err *err);

#endif
