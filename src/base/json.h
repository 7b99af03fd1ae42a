/* base/json.h - JSON: values in memory, a reader, a scanner for texts that become no tree, and a
 * writer. It is the only JSON reader of the project.
 *
 * Values are counted references, as in jansson, whose names ours follow. A function whose name
 * ends in _new takes over the caller's reference to the value, also when it fails. Every function
 * accepts NULL in place of a value: questions answer false, 0 or NULL, and changes fail.
 * An object keeps the order in which its members were added.
 *
 * A number keeps the text that it was read from, so that no digit is lost when it is written
 * again. ROSE_JSON_INTEGER is an integer that fits int64_t. Every other number is a
 * ROSE_JSON_REAL, also an integer of more digits: rose_json_is_big tells it, its real value is
 * the nearest double (or infinity), and rose_json_number_text has all digits.
 *
 * Memory: a function whose allocation fails changes nothing and says so (NULL, nonzero, false or
 * ROSE_E_NOMEM).
 * Threads: any thread may read, reference and release a value; a change needs a sole owner. */
#ifndef ROSE_BASE_JSON_H
#define ROSE_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"

typedef enum rose_json_kind {
    ROSE_JSON_OBJECT,
    ROSE_JSON_ARRAY,
    ROSE_JSON_STRING,
    ROSE_JSON_INTEGER,
    ROSE_JSON_REAL,
    ROSE_JSON_TRUE,
    ROSE_JSON_FALSE,
    ROSE_JSON_NULL
} rose_json_kind;

/* The head of every value; what follows it is private to base/json*.c, and may hold pointers. */
typedef struct rose_json {
    _Alignas(8) uint32_t refs;
    uint8_t kind;  /* a rose_json_kind */
    uint8_t flags; /* private */
} rose_json;

/* ---- questions ---- */

static inline bool rose_json_is(const rose_json *v, rose_json_kind kind)
{
    return v != NULL && v->kind == kind;
}

static inline bool rose_json_is_object(const rose_json *v)
{
    return rose_json_is(v, ROSE_JSON_OBJECT);
}

static inline bool rose_json_is_array(const rose_json *v)
{
    return rose_json_is(v, ROSE_JSON_ARRAY);
}

static inline bool rose_json_is_string(const rose_json *v)
{
    return rose_json_is(v, ROSE_JSON_STRING);
}

static inline bool rose_json_is_integer(const rose_json *v)
{
    return rose_json_is(v, ROSE_JSON_INTEGER);
}

static inline bool rose_json_is_real(const rose_json *v)
{
    return rose_json_is(v, ROSE_JSON_REAL);
}

static inline bool rose_json_is_number(const rose_json *v)
{
    return rose_json_is_integer(v) || rose_json_is_real(v);
}

static inline bool rose_json_is_true(const rose_json *v)
{
    return rose_json_is(v, ROSE_JSON_TRUE);
}

static inline bool rose_json_is_false(const rose_json *v)
{
    return rose_json_is(v, ROSE_JSON_FALSE);
}

static inline bool rose_json_is_boolean(const rose_json *v)
{
    return rose_json_is_true(v) || rose_json_is_false(v);
}

static inline bool rose_json_is_null(const rose_json *v)
{
    return rose_json_is(v, ROSE_JSON_NULL);
}

/* The kind of v, which is not NULL. */
static inline rose_json_kind rose_json_kind_of(const rose_json *v)
{
    return (rose_json_kind)v->kind;
}

/* An integer that does not fit int64_t. */
bool rose_json_is_big(const rose_json *v);

/* Strings: NULL and 0 for other values. The text ends in a NUL and may contain others. */
const char *rose_json_text(const rose_json *v);
size_t rose_json_text_len(const rose_json *v);

/* Numbers: 0 for other values. */
int64_t rose_json_int(const rose_json *v);         /* of a ROSE_JSON_INTEGER */
double rose_json_real_value(const rose_json *v);   /* of a ROSE_JSON_REAL */
double rose_json_number_value(const rose_json *v); /* of either */
/* The digits of a number as a JSON text, from v or from buf. */
enum { ROSE_JSON_NUMBER_CAP = 32 };
const char *rose_json_number_text(const rose_json *v, char buf[ROSE_JSON_NUMBER_CAP]);

/* Arrays; the result is borrowed, or NULL beyond the end. */
size_t rose_json_count(const rose_json *array);
rose_json *rose_json_at(const rose_json *array, size_t i);

/* Objects. A key and a member, in the order of the
 * members, are borrowed; NULL beyond the end. */
size_t rose_json_size(const rose_json *object);
rose_json *rose_json_get(const rose_json *object, const char *key);
rose_json *rose_json_getn(const rose_json *object, const char *key, size_t len);
const char *rose_json_key_at(const rose_json *object, size_t i, size_t *len); /* len: or NULL */
rose_json *rose_json_member_at(const rose_json *object, size_t i);

/* Loops over the members of an object (key: const char *, value: rose_json *, const or not) and
 * the elements of an array (i: size_t). No member may be added or removed inside. */
#define ROSE_JSON_JOIN_(a, b) a##b
#define ROSE_JSON_JOIN(a, b)  ROSE_JSON_JOIN_(a, b)
#define ROSE_JSON_EACH_(o, i, key, len, value)                                                     \
    for (size_t i = 0; ((key) = rose_json_key_at(o, i, len)) != NULL &&                            \
                       ((value) = rose_json_member_at(o, i)) != NULL;                              \
         i++)
#define rose_json_each(o, key, value)                                                              \
    ROSE_JSON_EACH_(o, ROSE_JSON_JOIN(rose_json_i_, __LINE__), key, NULL, value)
#define rose_json_each_n(o, key, len, value)                                                       \
    ROSE_JSON_EACH_(o, ROSE_JSON_JOIN(rose_json_i_, __LINE__), key, &(len), value)
#define rose_json_each_item(a, i, value)                                                           \
    for ((i) = 0; ((value) = rose_json_at(a, i)) != NULL; (i)++)

/* The same value: objects in any order of members, numbers of the same kind and value. */
bool rose_json_equal(const rose_json *a, const rose_json *b);

/* ---- building ---- */

rose_json *rose_json_incref(const rose_json *v); /* v itself */
void rose_json_decref(rose_json *v);

/* Each returns a new reference. Strings must be well-formed UTF-8 and reals finite, else NULL. */
rose_json *rose_json_object(void);
rose_json *rose_json_array(void);
rose_json *rose_json_string(const char *s);
rose_json *rose_json_stringn(const char *s, size_t len);
rose_json *rose_json_integer(int64_t i);
rose_json *rose_json_real(double d);
rose_json *rose_json_null(void);
rose_json *rose_json_true(void);
rose_json *rose_json_false(void);
rose_json *rose_json_boolean(bool b);

/* Changes: 0, or -1 (no memory, a value of another kind, no value, a key that is not UTF-8). */
int rose_json_set(rose_json *object, const char *key, rose_json *value);
int rose_json_set_new(rose_json *object, const char *key, rose_json *value);
int rose_json_setn_new(rose_json *object, const char *key, size_t len, rose_json *value);
int rose_json_del(rose_json *object, const char *key);
/* Sets every member of `from`; the second keeps the members that `to` has. */
int rose_json_update(rose_json *to, const rose_json *from);
int rose_json_update_missing(rose_json *to, const rose_json *from);
int rose_json_append(rose_json *array, rose_json *value);
int rose_json_append_new(rose_json *array, rose_json *value);
int rose_json_insert_new(rose_json *array, size_t at, rose_json *value);
int rose_json_replace_new(rose_json *array, size_t at, rose_json *value);
int rose_json_remove(rose_json *array, size_t at);
int rose_json_extend(rose_json *array, const rose_json *more);

rose_json *rose_json_copy(const rose_json *v); /* shares the elements and members */

/* Builds a value from a format: { "key" value ... } and [ value ... ] with s (const char *; s# with
 * an int length, s? for NULL as null), b (int), i (int), I (int64_t), f (double), n (null),
 * o (takes over a reference) and O (adds one). White space, commas and colons are ignored. NULL
 * when memory ran out or an argument is no value; what `o` gave is released then. */
rose_json *rose_json_pack(const char *format, ...);

/* ---- reading ---- */

/* Options of a parse. Without any, the text is one object or array, and duplicate keys and \u0000
 * are refused. */
enum {
    ROSE_JSON_ANY = 1,       /* the text may be any value */
    ROSE_JSON_NUL = 2,       /* \u0000 is allowed in strings, not in keys */
    ROSE_JSON_LAST_WINS = 4, /* the last of duplicate keys counts, as in Python */
    ROSE_JSON_NONFINITE = 8, /* NaN, Infinity, -Infinity and 1e999 are numbers, as in Python */
    ROSE_JSON_CONTROL = 16,  /* strings may contain control characters, such as line ends */
    /* What a model wrote wrong or was cut is read as far as it goes: commas before a closing
     * bracket and unknown escapes are passed over, half a surrogate pair is U+FFFD, and what is
     * open at the end is closed there, without a member or element that has only begun. */
    ROSE_JSON_REPAIR = 32,
    /* Files of models, which Python programs write and read. */
    ROSE_JSON_PYTHON = ROSE_JSON_NUL | ROSE_JSON_LAST_WINS | ROSE_JSON_NONFINITE
};

/* What a hostile text may cost; a member that is 0 stands for the default. */
typedef struct rose_json_limits {
    size_t depth;      /* nested arrays and objects (2048) */
    size_t containers; /* arrays and objects (no limit) */
    size_t values;     /* elements and members beyond the first of their container (no limit) */
} rose_json_limits;

/* The limits, as a parse names the one that ended it. */
enum { ROSE_JSON_NO_LIMIT, ROSE_JSON_DEPTH, ROSE_JSON_CONTAINERS, ROSE_JSON_VALUES };

typedef struct rose_json_error {
    int line, column; /* from 1; column counts characters */
    int position;     /* bytes up to here */
    int limit;        /* the ROSE_JSON_... limit that ended the parse; the text may be correct */
    char text[160];   /* what is wrong, one line of ASCII */
} rose_json_error;

/* Parses n bytes (no NUL needed at the end) into *out, a new reference. limits: or NULL. On failure
 * *out is NULL, *e (or NULL) says where and why, and the status is ROSE_E_FORMAT or
 * ROSE_E_NOMEM. */
rose_status rose_json_parse(rose_json **out, const char *text, size_t n, unsigned flags,
                            rose_json_error *e);
rose_status rose_json_parse_limited(rose_json **out, const char *text, size_t n, unsigned flags,
                                    const rose_json_limits *limits, rose_json_error *e);

/* The value, or NULL if the text is wrong or memory ran out. */
rose_json *rose_json_loads(const char *text, unsigned flags, rose_json_error *e);
rose_json *rose_json_loadb(const char *text, size_t n, unsigned flags, rose_json_error *e);

/* ---- scanning ----
 * A walk over a text without a tree: vocabularies and merges are most of a file of 9 to 33 MB. The
 * parser above is built of the same functions. One thread; the text outlives the scan. */

typedef struct rose_json_scan {
    const char *begin, *p, *end; /* the text, and where the scan is; borrowed */
    const char *path;            /* for messages; borrowed */
    rose_err *err;               /* borrowed, or NULL */
    unsigned flags;              /* as of a parse: ROSE_JSON_CONTROL, ROSE_JSON_REPAIR */
    const char *what;            /* what was wrong; NULL: nothing, or memory ran out */
} rose_json_scan;

/* ROSE_E_FORMAT; sets `what`, and err with path and line. */
rose_status rose_json_scan_bad(rose_json_scan *s, const char *what);

/* The next byte after white space, or 0 at the end of the text. */
char rose_json_scan_peek(rose_json_scan *s);
/* Steps over the byte c if it is next. */
bool rose_json_scan_take(rose_json_scan *s, char c);

/* A string: *text points into the text or, if the string has escapes, to scratch. Well-formed
 * UTF-8 without control characters, else ROSE_E_FORMAT. */
rose_status rose_json_scan_string(rose_json_scan *s, rose_buf *scratch, const char **text,
                                  size_t *len);

/* Steps over a number. *whole: it has neither a fraction nor an exponent. */
rose_status rose_json_scan_number(rose_json_scan *s, bool *whole);

/* A number that is an integer in [0, limit); -1 if the value is anything else. Steps over it. */
rose_status rose_json_scan_id(rose_json_scan *s, uint32_t limit, int64_t *id);

/* Steps over any value. Brackets and quotes are checked, the rest is not. */
rose_status rose_json_scan_skip(rose_json_scan *s);

/* The members of an object and the elements of a list:
 *     rose_status st = rose_json_scan_open(s, '{');
 *     for (bool first = true; rose_json_scan_more(s, '}', &first, &st);) ...
 * A member's name and colon are the caller's to read (rose_json_scan_key), or:
 *     rose_status st = ROSE_OK;
 *     for (rose_json_member m = {0}; rose_json_scan_member(s, scratch, &m, &st);) st = value... */
rose_status rose_json_scan_open(rose_json_scan *s, char bracket);
bool rose_json_scan_more(rose_json_scan *s, char bracket, bool *first, rose_status *st);
rose_status rose_json_scan_key(rose_json_scan *s, rose_buf *scratch, const char **text,
                               size_t *len);

/* Steps to the next member's value, from the object's bracket on. False: at the object's end, or
 * *st says what is wrong. A name may point to scratch. */
typedef struct rose_json_member {
    const char *name;
    size_t len;
    bool begun; /* the bracket was read */
} rose_json_member;
bool rose_json_scan_member(rose_json_scan *s, rose_buf *scratch, rose_json_member *m,
                           rose_status *st);
bool rose_json_member_is(const rose_json_member *m, const char *name);

/* ---- writing ---- */

/* Without a flag the separators are ", " and ": ". */
#define ROSE_JSON_INDENT(n)         ((unsigned)(n)&31u)         /* a line for each value */
#define ROSE_JSON_COMPACT           32u                         /* separators without spaces */
#define ROSE_JSON_REAL_PRECISION(n) (((unsigned)(n)&31u) << 8u) /* of all reals */

/* Appends v as JSON text. Errors: NOMEM; INVAL if v is NULL. */
rose_status rose_json_dump(rose_buf *out, const rose_json *v, unsigned flags);
char *rose_json_dumps(const rose_json *v, unsigned flags);           /* for free(); or NULL */
int rose_json_dumpf(const rose_json *v, FILE *file, unsigned flags); /* 0, or -1 */
/* Appends the inside of a JSON string: \" \\ \b \f \n \r \t and \u00XX (upper case) for other
 * bytes below 0x20; all other bytes as they are. s is well-formed UTF-8. */
rose_status rose_json_escape(rose_buf *out, const char *s, size_t len);
/* The same with digits in lower case, as Python writes them; s: any bytes. */
rose_status rose_json_escape_lower(rose_buf *out, const char *s, size_t len);
enum { ROSE_JSON_BYTE_CAP = 6, ROSE_JSON_CODE_CAP = 12 };
/* The same for one byte: itself, or its escape of 2 or 6 bytes. Returns the length; adds no NUL. */
unsigned rose_json_escape_byte(char out[ROSE_JSON_BYTE_CAP], char byte);
/* Writes a character as \uXXXX, or as two of them from U+10000 on, in lower case. Returns the
 * length. */
unsigned rose_json_escape_code(char out[ROSE_JSON_CODE_CAP], uint32_t cp);

#endif
