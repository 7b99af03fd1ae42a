/* template/template_internal.h - the parts of the interpreter: arena, values, syntax tree, and the
 * functions that the files of this room share.
 *
 * The way of a template: lexer.c makes tokens, parse.c and parse_expr.c a tree (with scan.c's names
 * that are the template's own); this happens once a model. For each request render.c makes values
 * of the JSON, exec.c walks the statements and eval.c the expressions in them, filters and methods
 * are found by name in tables, and the text collects in t->out.
 *
 * Every byte of a text has a mark: whether it comes from the template or from a message. Marks
 * travel with the bytes through every operation (text.c), and the tokenizer takes a special token
 * only where all of its bytes are the template's. So no message can write one.
 *
 * Errors: whatever finds one calls rose_tpl_fail, which jumps to the trap that compile or render
 * has set. All memory belongs to the arena, so nothing leaks on the way. */
#ifndef ROSE_TEMPLATE_TEMPLATE_INTERNAL_H
#define ROSE_TEMPLATE_TEMPLATE_INTERNAL_H

#include <setjmp.h>
#include <stdatomic.h>
#include <string.h>

#include "base/utf8.h"
#include "template/template.h"

typedef struct tpl_value tpl_value;
typedef struct tpl_node tpl_node;
typedef struct rose_tpl rose_tpl;

/* ---- values ---- */

typedef enum tpl_kind {
    TPL_MISSING, /* an argument that the call leaves out; no expression yields it */
    TPL_UNDEF,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_BIG, /* an integer that does not fit int64_t, by its digits in `str`; only JSON has them */
    TPL_FLOAT,
    TPL_STR,
    TPL_LIST,
    TPL_TUPLE,
    TPL_RANGE,
    TPL_VIEW, /* dict.keys(), .values(), .items() */
    TPL_GEN,  /* what map, select and others yield: can be read once, has no length */
    TPL_DICT,
    TPL_SPACE, /* namespace() */
    TPL_LOOP,
    TPL_FUNC
} tpl_kind;

enum { TPL_TEMPLATE = 0, TPL_MESSAGE = 1 }; /* marks */

/* Immutable UTF-8 with marks. */
typedef struct tpl_text {
    const char *s;
    const uint8_t *marks; /* one for each byte; NULL: every byte has `mark` */
    size_t n;
    uint8_t mark;
} tpl_text;

typedef struct tpl_seq {
    tpl_value *items; /* immutable once built */
    size_t n;
    size_t cursor;          /* TPL_GEN: items read so far */
    bool broken;            /* TPL_GEN: of a value without items; fails when it is read */
    const char *name;       /* VIEW: type name in Python's repr */
    int64_t from, to, step; /* TPL_RANGE */
} tpl_seq;

typedef struct tpl_pair tpl_pair;
typedef struct tpl_dict {
    tpl_pair *pairs; /* in order of insertion */
    size_t n, cap;
} tpl_dict;

/* A loop with a condition tests an item when the loop comes to it, or when a member of `loop` asks
 * for later items, as jinja2 does. */
typedef struct tpl_loop {
    const tpl_value *raw; /* [n_raw] before the condition */
    tpl_value *items;     /* [n] that passed the condition; [n_raw] are allocated */
    size_t n_raw, next;   /* raw[next] is tested next */
    size_t n, at;
    const struct tpl_node *node; /* the statement */
    struct tpl_scope *outer;     /* scope of the statement */
    struct tpl_scope *test_scope;
    bool testing; /* the condition is being evaluated */
    uint32_t depth0;
    bool changed_set;
    tpl_value *changed; /* the arguments of the last loop.changed(...) */
    size_t n_changed;
} tpl_loop;

typedef struct tpl_func tpl_func;

/* `mark` is the origin of numbers, none, booleans and containers, for their printed form. */
struct tpl_value {
    uint8_t kind;
    uint8_t mark;
    union {
        bool b;
        int64_t i;
        double f;
        const tpl_text *str;
        tpl_seq *seq;
        tpl_dict *dict;
        tpl_loop *loop;
        const tpl_func *fn;
        const char *why; /* TPL_UNDEF: what the error says when the value is used */
    } u;
};

struct tpl_pair {
    tpl_value key, value;
};

typedef struct tpl_scope {
    struct tpl_scope *parent; /* lexical; NULL for the outermost */
    struct tpl_bind *binds;
    uint32_t n, cap;
    bool captured; /* a macro refers to it: it must stay as it is */
} tpl_scope;

struct tpl_bind {
    const tpl_text *name;
    tpl_value value;
};

typedef struct tpl_args {
    tpl_value *pos;
    size_t n;
    tpl_pair *named; /* keys are strings */
    size_t n_named;
} tpl_args;

/* Arguments are bound to `params`, names separated by spaces; the first `need` must be given.
 * params NULL: the function reads raw. */
typedef struct tpl_in {
    rose_tpl *t;
    tpl_value v;          /* what it is called on; of a function: nothing */
    const tpl_value *arg; /* by the names of `params`; MISSING where none was given */
    const tpl_args *raw;  /* as they were written */
    uint32_t variant;     /* of the builtin */
} tpl_in;
typedef tpl_value tpl_fn(const tpl_in *in);
typedef struct tpl_builtin {
    const char *name;
    tpl_fn *fn;
    const char *params;
    uint8_t need;
    uint8_t kind; /* methods: the kind of self */
    bool pos_only;
    uint32_t variant; /* where one fn serves several names: which of them, as fn defines */
} tpl_builtin;

struct tpl_func {
    const tpl_builtin *builtin; /* or NULL, and: */
    const tpl_node *macro;
    tpl_scope *scope; /* where the macro was defined */
    tpl_value self;   /* of a method */
};

/* ---- syntax tree ---- */

typedef enum tpl_type {
    /* expressions */
    N_CONST,
    N_NAME,  /* text */
    N_LIST,  /* list */
    N_TUPLE, /* list */
    N_DICT,  /* list: key, value, key, value */
    N_COND,  /* a if b else c (may be NULL) */
    N_OR,
    N_AND,
    N_NOT,
    N_COMPARE, /* a, list of N_OPERAND */
    N_OPERAND, /* op, a */
    N_BINARY,  /* op */
    N_CONCAT,  /* list */
    N_NEG,
    N_POS,
    N_ATTR,   /* a.text */
    N_ITEM,   /* a[b] */
    N_SLICE,  /* a[list[0]:list[1]:list[2]], NULL where left out */
    N_CALL,   /* a(args) */
    N_FILTER, /* a (NULL: the text of the block) | text(args) */
    N_TEST,   /* a is text(args) */
    N_NSREF,  /* target text.text2 */
    /* statements */
    N_DATA,        /* text */
    N_OUTPUT,      /* a */
    N_FOR,         /* a target, b iterable, c condition or NULL, list body, list2 else */
    N_IF,          /* a condition, list body, list2 else */
    N_SET,         /* a target, b value */
    N_SETBLOCK,    /* a target, b chain of filters or NULL, list body */
    N_MACRO,       /* text name, args: list2 names, list3 defaults; list body */
    N_CALLBLOCK,   /* a call, b the caller as N_MACRO */
    N_FILTERBLOCK, /* b chain, list body */
    N_WITH,        /* list2: target, value, ...; list body */
    N_BLOCK,       /* list body: {% generation %} */
    N_BREAK,
    N_CONTINUE
} tpl_type;

typedef enum tpl_op {
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOTIN,
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW
} tpl_op;

typedef struct tpl_list {
    tpl_node **at;
    uint32_t n, cap;
} tpl_list;

struct tpl_node {
    uint8_t type;
    uint8_t op;
    bool varargs, kwargs, caller; /* N_MACRO: which of these names its body reads */
    uint32_t line;
    tpl_node *a, *b, *c;
    tpl_list list, list2, list3;
    const tpl_text *text, *text2;
    tpl_value value;            /* N_CONST */
    const tpl_builtin *builtin; /* N_FILTER, N_TEST; NULL: unknown, fails when it is reached */
};

/* ---- state of one compile or render ---- */

typedef struct tpl_buf {
    rose_tpl *t;
    char *s;
    uint8_t *marks; /* NULL while all bytes have `mark` */
    size_t n, cap, marks_cap;
    uint8_t mark;
} tpl_buf;

struct rose_tpl {
    struct tpl_chunk *chunks; /* owned: the arena */
    size_t memory, max_memory, max_output;
    uint64_t work, max_work; /* in bytes that are copied: WORK_A_STEP of them are a step */
    uint64_t check_at;       /* at this much work the limits are looked at */
    const atomic_bool *stop; /* borrowed; NULL: nobody stops this */
    uint32_t max_cpu_ms;     /* 0: no limit */
    uint64_t cpu_began_ns;   /* if a caller sums up the time of its renders */
    uint64_t cpu_end_ns;     /* on the clock of this thread's CPU time */
    uint32_t depth, max_depth;
    uint32_t line; /* of the node at work */
    jmp_buf trap;
    rose_status st;
    rose_err *err; /* borrowed */
    tpl_buf *out;  /* where statements write */
    tpl_scope *scope;
    uint32_t loop_depth;
    int64_t now_s;
    bool utc;
};

struct rose_template {
    struct tpl_chunk *chunks; /* owned: the tree, and this struct */
    tpl_list body;
    tpl_list own; /* nodes whose names the template assigns before it reads them: see scan.c */
    const tpl_text *text;
};

/* ---- arena.c ---- */
_Noreturn void rose_tpl_fail(rose_tpl *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void rose_tpl_fail_with(rose_tpl *t, rose_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *rose_tpl_take(rose_tpl *t, size_t n); /* zeroed; jumps when there is none */
void *rose_tpl_array(rose_tpl *t, size_t n, size_t size);
void *rose_tpl_grown(rose_tpl *t, const void *old, size_t n, size_t *cap, size_t size);
void rose_tpl_chunks_free(struct tpl_chunk *c);
/* From now on; spent_ns of the time are over already. */
void rose_tpl_limit_cpu(rose_tpl *t, uint32_t ms, uint64_t spent_ns);
void rose_tpl_check(rose_tpl *t); /* fails where a limit is passed */
void rose_tpl_enter(rose_tpl *t); /* one level deeper; the caller subtracts 1 from depth */

/* ---- work: whatever reads, writes or visits something pays for it, before or while it does so.
 * Only then are the limits of a render limits of its time. ---- */
enum {
    WORK_A_STEP = 64,   /* a step is about 40 ns */
    WORK_A_CHAR = 8,    /* a byte that is looked at by itself */
    WORK_A_PUT = 8,     /* a piece that is written */
    STEPS_A_FLOAT = 32, /* decimal digits of a float, either way */
    STEPS_A_DATE = 500
};

static inline void rose_tpl_work(rose_tpl *t, uint64_t work)
{
    t->work += work;
    if (t->work >= t->check_at) rose_tpl_check(t);
}

static inline void rose_tpl_step(rose_tpl *t, size_t n) /* n + 1 steps */
{
    rose_tpl_work(t, ((uint64_t)n + 1) * WORK_A_STEP);
}

static inline void rose_tpl_read(rose_tpl *t, size_t n) /* n bytes, compared, searched or copied */
{
    rose_tpl_work(t, n);
}

static inline void rose_tpl_visit(rose_tpl *t, size_t n) /* n bytes, one by one */
{
    rose_tpl_work(t, (uint64_t)n * WORK_A_CHAR);
}

/* ---- text.c: what looks at bytes pays for them ---- */
void rose_tpl_put(tpl_buf *b, const char *s, size_t n, uint8_t mark);
void rose_tpl_puts(tpl_buf *b, const char *s, uint8_t mark);
void rose_tpl_put_text(tpl_buf *b, const tpl_text *x);
void rose_tpl_put_part(tpl_buf *b, const tpl_text *x, size_t from, size_t to);
void rose_tpl_put_char(tpl_buf *b, uint32_t code, uint8_t mark);
const tpl_text *rose_tpl_buf_text(tpl_buf *b);
const tpl_text *rose_tpl_text(rose_tpl *t, const char *s, size_t n, uint8_t mark); /* borrows s */
const tpl_text *rose_tpl_part(rose_tpl *t, const tpl_text *x, size_t from, size_t to);
uint8_t rose_tpl_text_mark(rose_tpl *t, const tpl_text *x, size_t from,
                           size_t to); /* message if any byte is */
bool rose_tpl_text_eq(rose_tpl *t, const tpl_text *a, const tpl_text *b);
bool rose_tpl_text_is(const tpl_text *a, const char *s);
size_t rose_tpl_chars(rose_tpl *t, const tpl_text *x);
size_t rose_tpl_char_len(const tpl_text *x, size_t at);
uint32_t rose_tpl_char(const tpl_text *x, size_t at);
size_t rose_tpl_offset(rose_tpl *t, const tpl_text *x,
                       size_t chars); /* byte offset of that character */
size_t rose_tpl_find(rose_tpl *t, const tpl_text *x, size_t from,
                     const tpl_text *what); /* SIZE_MAX: nowhere */
bool rose_tpl_is_space(uint32_t code);      /* as Python's str.isspace */
const tpl_text *rose_tpl_strip(rose_tpl *t, const tpl_text *x, const tpl_text *chars, int sides);
enum { TPL_LEFT = 1, TPL_RIGHT = 2 };

/* ---- letters.c: case, as Python's str ---- */
typedef enum tpl_case {
    TPL_UPPER,
    TPL_LOWER,
    TPL_CAPITALIZE,
    TPL_TITLE,      /* str.title */
    TPL_TITLE_WORDS /* the filter title */
} tpl_case;
const tpl_text *rose_tpl_to_case(rose_tpl *t, const tpl_text *x, tpl_case to);
tpl_fn rose_tpl_filter_case; /* filter and method; variant: a tpl_case */
tpl_fn rose_tpl_test_case;   /* test and method; variant: TPL_UPPER or TPL_LOWER */

/* ---- value.c ---- */
tpl_value rose_tpl_none(void);
tpl_value rose_tpl_bool(bool b);
tpl_value rose_tpl_int(int64_t i, uint8_t mark);
tpl_value rose_tpl_float(double f, uint8_t mark);
tpl_value rose_tpl_str(const tpl_text *x);
tpl_value rose_tpl_cstr(rose_tpl *t, const char *s); /* template bytes; borrows s */
tpl_value rose_tpl_undef(rose_tpl *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
tpl_value rose_tpl_seq_new(rose_tpl *t, tpl_kind kind, size_t n, uint8_t mark);
tpl_value rose_tpl_seq_of(rose_tpl *t, tpl_kind kind, tpl_value *items, size_t n, uint8_t mark);
tpl_value rose_tpl_pair(rose_tpl *t, const tpl_pair *p, uint8_t mark); /* as a tuple */
tpl_value rose_tpl_dict_new(rose_tpl *t, uint8_t mark);
void rose_tpl_dict_put(rose_tpl *t, tpl_dict *d, tpl_value key, tpl_value value);
const tpl_value *rose_tpl_dict_get(rose_tpl *t, const tpl_dict *d, tpl_value key);
const tpl_value *rose_tpl_dict_gets(rose_tpl *t, const tpl_dict *d, const char *key);
tpl_value rose_tpl_from_json(rose_tpl *t, const rose_json *v, uint8_t mark);
const char *rose_tpl_kind_name(tpl_value v);
bool rose_tpl_given(tpl_value v);     /* an argument other than none */
bool rose_tpl_is_seq(tpl_value v);    /* has items: list, tuple, range, view, generator */
bool rose_tpl_is_number(tpl_value v); /* int, float, bool */
bool rose_tpl_truth(tpl_value v);
double rose_tpl_as_double(tpl_value v);
int64_t rose_tpl_as_int(rose_tpl *t, tpl_value v); /* of an integer or bool; ends the render if it
                                                    * does not fit */
int64_t rose_tpl_index(rose_tpl *t, tpl_value v, const char *what); /* int or bool, or fails */
void rose_tpl_want_defined(rose_tpl *t, tpl_value v); /* fails for an undefined value */
/* All items of anything that can be looped over; consumes a generator. */
tpl_value *rose_tpl_items(rose_tpl *t, tpl_value v, size_t *n);
size_t rose_tpl_length(rose_tpl *t, tpl_value v);

/* ---- compare.c ---- */
bool rose_tpl_equal(rose_tpl *t, tpl_value a, tpl_value b);
int rose_tpl_order(rose_tpl *t, tpl_value a, tpl_value b, const char *op); /* < 0, 0, > 0, 2: NaN */
bool rose_tpl_contains(rose_tpl *t, tpl_value box, tpl_value v);
bool rose_tpl_compare(rose_tpl *t, tpl_op op, tpl_value a, tpl_value b);
void rose_tpl_hashable(rose_tpl *t, tpl_value v);
/* A stable order of indices by keys. */
void rose_tpl_sort(rose_tpl *t, const tpl_value *keys, size_t *order, size_t n, bool reverse);

/* ---- print.c ---- */
const tpl_text *rose_tpl_to_text(rose_tpl *t, tpl_value v); /* Python's str() */
void rose_tpl_put_repr(tpl_buf *b, tpl_value v);
void rose_tpl_put_escaped(tpl_buf *b, uint32_t c, uint8_t mark); /* as \x, \u or \U */
void rose_tpl_format_float(rose_tpl *t, char out[40], double f);

/* ---- tojson.c ---- */
tpl_fn rose_tpl_filter_tojson;

/* ---- arith.c ---- */
tpl_value rose_tpl_binary(rose_tpl *t, tpl_op op, tpl_value a, tpl_value b);
tpl_value rose_tpl_negate(rose_tpl *t, tpl_value v);
double rose_tpl_round(rose_tpl *t, double f, int64_t digits);

/* ---- format.c: "..." % values, and str.format ---- */
tpl_value rose_tpl_percent(rose_tpl *t, const tpl_text *format, tpl_value values);
tpl_fn rose_tpl_method_format;

/* ---- access.c ---- */
tpl_value rose_tpl_attr(rose_tpl *t, tpl_value v, const tpl_text *name);
tpl_value rose_tpl_item(rose_tpl *t, tpl_value v, tpl_value key);
tpl_value rose_tpl_slice(rose_tpl *t, tpl_value v, const tpl_value part[3]);

/* ---- methods.c, methods_box.c ---- */
const tpl_builtin *rose_tpl_method_text(const tpl_text *name);
const tpl_builtin *rose_tpl_method(tpl_value v, const tpl_text *name);
bool rose_tpl_method_changes(tpl_value v, const tpl_text *name); /* the sandbox hides it */

/* ---- filters*.c, tests.c, functions.c ---- */
const tpl_builtin *rose_tpl_filter_find(const tpl_text *name);
const tpl_builtin *rose_tpl_filter_text_find(const tpl_text *name);
const tpl_builtin *rose_tpl_filter_seq_find(const tpl_text *name);
const tpl_builtin *rose_tpl_test_find(const tpl_text *name);
const tpl_builtin *rose_tpl_find_in(const tpl_builtin *table, const tpl_text *name);
void rose_tpl_functions_add(rose_tpl *t, tpl_scope *s);
tpl_value rose_tpl_path(rose_tpl *t, tpl_value v, tpl_value path); /* "a.0.b" of a value */

/* ---- call.c ---- */
tpl_value rose_tpl_call(rose_tpl *t, tpl_value f, const tpl_args *args);
tpl_value rose_tpl_call_builtin(rose_tpl *t, const tpl_builtin *b, tpl_value self,
                                const tpl_args *args);
tpl_value rose_tpl_call_macro(rose_tpl *t, const tpl_func *f, const tpl_args *args);

/* ---- eval.c, exec.c, scope.c ---- */
tpl_value rose_tpl_eval(rose_tpl *t, const tpl_node *n);
void rose_tpl_eval_args(rose_tpl *t, const tpl_node *n, tpl_args *out);
tpl_value rose_tpl_apply_filters(rose_tpl *t, const tpl_node *chain, tpl_value v);
typedef enum tpl_flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } tpl_flow;
tpl_flow rose_tpl_exec(rose_tpl *t, const tpl_list *body);
/* Tests items of a loop until n of them have passed its condition or none is left; returns how many
 * have passed. */
size_t rose_tpl_loop_find(rose_tpl *t, tpl_loop *loop, size_t n);
tpl_scope *rose_tpl_scope_new(rose_tpl *t, tpl_scope *parent);
void rose_tpl_scope_set(rose_tpl *t, tpl_scope *s, const tpl_text *name, tpl_value v);
const tpl_value *rose_tpl_scope_get(rose_tpl *t, const tpl_scope *s, const tpl_text *name);
void rose_tpl_assign(rose_tpl *t, const tpl_node *target, tpl_value v);

/* ---- lexer.c, parse.c ---- */
typedef enum tpl_token_type {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP
} tpl_token_type;

typedef struct tpl_token {
    uint8_t type;
    char op[3]; /* T_OP: the operator, NUL-terminated */
    uint32_t line;
    const tpl_text *text; /* T_DATA, T_NAME, T_STRING */
    tpl_value value;      /* T_INT, T_FLOAT */
} tpl_token;

tpl_token *rose_tpl_lex(rose_tpl *t, const char *text, size_t n); /* ends with T_EOF */

typedef struct tpl_parser {
    rose_tpl *t;
    const tpl_token *at;
    bool soft; /* inside a condition: an unknown filter or test fails only when it is reached */
    const tpl_node *unknown; /* the first filter or test that does not exist, or NULL */
    uint32_t loops;          /* loops around the current tag, for break and continue */
    tpl_node *macro;         /* the macro that is being parsed, or NULL */
} tpl_parser;

tpl_node *rose_tpl_node(tpl_parser *p, tpl_type type, uint32_t line);
void rose_tpl_list_add(rose_tpl *t, tpl_list *l, tpl_node *n);
bool rose_tpl_at_op(const tpl_parser *p, const char *op);
bool rose_tpl_at_name(const tpl_parser *p, const char *name);
bool rose_tpl_skip_op(tpl_parser *p, const char *op);
bool rose_tpl_skip_name(tpl_parser *p, const char *name);
void rose_tpl_expect_op(tpl_parser *p, const char *op);
const tpl_text *rose_tpl_expect_name(tpl_parser *p);
_Noreturn void rose_tpl_unexpected(tpl_parser *p, const char *wanted);
tpl_node *rose_tpl_parse_expr(tpl_parser *p);
tpl_node *rose_tpl_parse_tuple(tpl_parser *p, bool with_cond, const char *end, bool parens);
tpl_node *rose_tpl_parse_target(tpl_parser *p, const char *end, bool with_space);
tpl_node *rose_tpl_parse_filters(tpl_parser *p, tpl_node *node, bool inline_start);
void rose_tpl_scan(rose_tpl *t, const tpl_list *body, tpl_list *own); /* scan.c */
void rose_tpl_parse_body(tpl_parser *p, tpl_list *out);               /* a whole template */

#endif
