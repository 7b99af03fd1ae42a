/* base/gguf.h - one GGUF file, mapped and checked: the container only. What the metadata and the
 * tensors mean is known to the rooms that read them (model, tokenizer).
 *
 * Layout, all little-endian: "GGUF", u32 version (2 or 3), u64 number of tensors, u64 number of
 * key-value pairs; the pairs; the tensor directory; padding; the data. Opening checks every count,
 * string, array, type and offset against the file. Later readers therefore need no check of their
 * own. The tensors tile the data: each begins where the one before ends, rounded up to the
 * alignment. Values and tensor data stay in the mapping; opening does not touch tensor data.
 * Threads: immutable after open, any thread. */
#ifndef ROSE_BASE_GGUF_H
#define ROSE_BASE_GGUF_H

#include "base/file.h"

enum { ROSE_GGUF_MAX_DIMS = 4, ROSE_GGUF_MAX_NAME = 127, ROSE_GGUF_MAX_SPLITS = 4096 };

/* Types of metadata values, numbered as in the file. */
typedef enum rose_gguf_type {
    ROSE_GGUF_U8,
    ROSE_GGUF_I8,
    ROSE_GGUF_U16,
    ROSE_GGUF_I16,
    ROSE_GGUF_U32,
    ROSE_GGUF_I32,
    ROSE_GGUF_F32,
    ROSE_GGUF_BOOL,
    ROSE_GGUF_STRING,
    ROSE_GGUF_ARRAY,
    ROSE_GGUF_U64,
    ROSE_GGUF_I64,
    ROSE_GGUF_F64
} rose_gguf_type;

/* Bytes in the mapping: any bytes, not ended by NUL. */
typedef struct rose_gguf_str {
    const char *s; /* borrowed: from the mapping */
    size_t n;
} rose_gguf_str;

/* A value. For an array: the type and the number of its elements. An element is never an array.
 * Elements lie packed at data, unaligned; a string is a u64 length and its bytes. */
typedef struct rose_gguf_value {
    rose_gguf_type type;
    bool is_array;
    uint64_t n;          /* elements; 1 if it is no array */
    const uint8_t *data; /* borrowed: from the mapping */
    size_t n_bytes;
} rose_gguf_value;

typedef struct rose_gguf_pair {
    rose_gguf_str key; /* printable ASCII, 1 .. 65,535 bytes */
    rose_gguf_value value;
} rose_gguf_pair;

/* How elements of a tensor are stored; static. */
typedef struct rose_gguf_format {
    uint32_t id;      /* in the file */
    const char *name; /* as ggml spells it: "F32", "Q4_K" */
    uint32_t block;   /* elements that are stored together; a row is a whole number of blocks */
    uint32_t block_bytes;
} rose_gguf_format;

/* The format with this id; NULL = unknown. */
const rose_gguf_format *rose_gguf_format_find(uint32_t id);

typedef struct rose_gguf_tensor {
    char name[ROSE_GGUF_MAX_NAME + 1]; /* printable ASCII, never empty */
    const rose_gguf_format *format;
    uint32_t n_dims;                    /* 1 .. 4 */
    uint64_t shape[ROSE_GGUF_MAX_DIMS]; /* outermost first, reversed from the file's order: the
                                           last one counts the elements of a row */
    uint64_t begin, end;                /* bytes within the data */
    const uint8_t *data;                /* borrowed: from the mapping */
} rose_gguf_tensor;

typedef struct rose_gguf {
    char label[256]; /* the path as messages show it: its tail where it is long */
    rose_map map;    /* owned; {0} if parsed from borrowed memory */
    size_t size;     /* bytes of the whole file */
    uint32_t version;
    uint32_t alignment;
    rose_gguf_pair *pairs; /* [n_pairs], owned, sorted by key */
    size_t n_pairs;
    rose_gguf_tensor *tensors; /* [n_tensors], owned, by rising offset */
    size_t n_tensors;
} rose_gguf;

/* The name of one file of a split model, "<prefix>-00002-of-00003.gguf", taken apart. */
typedef struct rose_gguf_split {
    size_t prefix;      /* bytes */
    uint32_t no, count; /* from 1; count is 0 if the name has another form */
} rose_gguf_split;
rose_gguf_split rose_gguf_read_split(const char *path);

/* Map and check the file at path. On failure *out is {0} and err names the file, the key or tensor,
 * what was found and what was expected. Errors: NOTFOUND, IO, FORMAT, UNSUPPORTED (version 1,
 * big-endian, nested arrays), NOMEM. */
rose_status rose_gguf_open(rose_gguf *out, const char *path, rose_err *err);

/* The same checks over bytes in memory, which must outlive out. label: the name in messages. */
rose_status rose_gguf_parse(rose_gguf *out, const uint8_t *bytes, size_t n, const char *label,
                            rose_err *err);
void rose_gguf_close(rose_gguf *g); /* accepts {0}; leaves {0} */

/* The value of a key; NULL = absent. */
const rose_gguf_value *rose_gguf_get(const rose_gguf *g, const char *key);

/* Each reads one value into *out. Absent: ROSE_OK, and *out keeps the default that the caller put
 * there. Another type than asked for, or a number that does not fit, is ROSE_E_FORMAT. _u32 accepts
 * every integer type whose value fits; _f32 accepts F32 and F64, finite. */
rose_status rose_gguf_get_u32(const rose_gguf *g, const char *key, uint32_t *out, rose_err *err);
rose_status rose_gguf_get_f32(const rose_gguf *g, const char *key, float *out, rose_err *err);
rose_status rose_gguf_get_bool(const rose_gguf *g, const char *key, bool *out, rose_err *err);
rose_status rose_gguf_get_string(const rose_gguf *g, const char *key, rose_gguf_str *out,
                                 rose_err *err);

/* *out: the array of this key, NULL if the key is absent; elements of another type are
 * ROSE_E_FORMAT. ROSE_GGUF_I32 and ROSE_GGUF_U32 stand for each other. */
rose_status rose_gguf_get_array(const rose_gguf *g, const char *key, rose_gguf_type type,
                                const rose_gguf_value **out, rose_err *err);

/* Elements of an array with the type named; i < n (asserted). */
uint32_t rose_gguf_u32_at(const rose_gguf_value *v, uint64_t i); /* U32, I32 (its bits) */
float rose_gguf_f32_at(const rose_gguf_value *v, uint64_t i);
bool rose_gguf_bool_at(const rose_gguf_value *v, uint64_t i);

/* gguf_tokens.c: a token by its text, where its type (tokenizer.ggml.token_type) may be wrong.
 * Tokens that end a text are also control tokens. */
typedef enum rose_gguf_token_kind {
    ROSE_GGUF_PLAIN, /* as the type says */
    ROSE_GGUF_CONTROLS,
    ROSE_GGUF_ENDS_TEXT
} rose_gguf_token_kind;
enum { ROSE_GGUF_USER_DEFINED = 4 }; /* a value of token_type */
rose_gguf_token_kind rose_gguf_token_kind_of(rose_gguf_str text, int32_t type);
bool rose_gguf_str_is(rose_gguf_str s, const char *text);

/* The id of a token under a key. Absent: true, *id unchanged. No token has the value (it is
 * negative, n_ids or more, or no number): false, *id unchanged; the caller warns. */
bool rose_gguf_get_id(const rose_gguf *g, const char *key, uint64_t n_ids, uint32_t *id);

/* Walks the strings of an array: *at starts as 0 and moves on. False after the last one. */
bool rose_gguf_next_string(const rose_gguf_value *v, size_t *at, rose_gguf_str *out);

#endif
