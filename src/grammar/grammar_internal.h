/* grammar/grammar_internal.h - what the files of this room share.
 *
 * compile.c runs a front end, which builds nodes (nodes.c): schema*.c and json.c, regex.c, ebnf.c,
 * tag.c. dfa.c and count.c intersect and subtract what strings must match. rules.c checks the
 * rules, and program.c writes the ops of one pushdown automaton. state.c follows bytes, mask.c
 * walks the trie of tokens (trie.c) from a state, matcher.c follows accepted ids.
 *
 * To add a keyword of JSON Schema: schema_*.c, by the type of value; what cannot be honoured is
 * refused with its JSON pointer (schema.c, check_keywords). To add a format: a row in
 * schema_format.c. tests/grammar/maskbench.py compares with llguidance and jsonschema-rs. */
#ifndef ROSE_GRAMMAR_GRAMMAR_INTERNAL_H
#define ROSE_GRAMMAR_GRAMMAR_INTERNAL_H

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>

#include "grammar/grammar.h"

#define GR_NONE UINT32_MAX
#define GR_INF  UINT32_MAX /* the upper bound of a repetition without one */

/* A set of bytes. */
typedef struct gr_set {
    uint64_t w[4];
} gr_set;

static inline bool gr_set_has(const gr_set *s, unsigned byte)
{
    return s->w[byte >> 6] >> (byte & 63) & 1;
}

static inline void gr_set_add(gr_set *s, unsigned lo, unsigned hi)
{
    for (unsigned i = lo; i <= hi; i++)
        s->w[i >> 6] |= UINT64_C(1) << (i & 63);
}

/* Adds to cuts each byte that a set tells from the byte before it. */
void rose_gr_set_cuts(gr_set *cuts, const gr_set *s);
/* Numbers the classes of bytes that the cuts leave; returns how many there are (program.c). */
unsigned rose_gr_classes(const gr_set *cuts, uint8_t class_of[256]);

/* ---- compiling: memory, limits, errors (build.c) ---- */

typedef uint32_t gr_node; /* an index; the nodes below are the first of every build */
enum { GR_NEVER = 0, GR_EMPTY = 1 };

typedef enum gr_node_kind {
    NODE_NEVER,   /* matches nothing */
    NODE_EMPTY,   /* matches the empty text */
    NODE_BYTES,   /* bytes[a .. a + n) in this order */
    NODE_SET,     /* one byte of sets[a] */
    NODE_SEQ,     /* kids[a .. a + n) in this order */
    NODE_ALT,     /* one of kids[a .. a + n) */
    NODE_REPEAT,  /* node a, min to max times */
    NODE_RULE,    /* rule a */
    NODE_DFA,     /* dfas[a] */
    NODE_COUNTED, /* counted[a] */
    NODE_KEYS     /* keys[a] */
} gr_node_kind;

enum {
    GR_NULLABLE = 1,   /* matches the empty text; unknown (0) for rules until they are checked */
    GR_SAFE_CHAR = 2,  /* one character; matches at least every safe character of mask.c */
    GR_STRING_CHAR = 4 /* one character of a free JSON string */
};

typedef struct gr_node_data {
    uint8_t kind, flags;
    uint32_t a, n, min, max;
} gr_node_data;

/* A deterministic automaton over bytes. State 0 is dead, state 1 is the start. */
typedef struct gr_dfa {
    uint32_t n;            /* states */
    uint16_t (*next)[256]; /* [n] */
    uint8_t *accept;       /* [n] */
} gr_dfa;

/* The members of an object in any order, each of kids[0..n) at most once. */
typedef struct gr_members {
    const gr_node *kids;  /* [n] */
    const bool *required; /* [n] */
    uint32_t n;
    gr_node other;     /* any number of times; GR_NEVER: none */
    uint32_t min, max; /* members */
    gr_node comma, close;
} gr_members;

/* An automaton whose characters are counted while matching. */
typedef struct gr_counted {
    gr_dfa *d;
    uint32_t min, max;
    uint8_t *place;    /* [d->n] 0: between two characters */
    uint32_t *lo, *hi; /* [d->n] counts with which the end can be reached; GR_NONE: none */
} gr_counted;

typedef struct gr_rule {
    gr_node body; /* GR_NONE until it is defined */
    const char *name;
} gr_rule;

/* One compile. Memory comes from chunks that are freed together. An error jumps to trap, where
 * rose_grammar_compile frees everything. */
typedef struct gr_build {
    jmp_buf trap;
    rose_status st;
    rose_err *err;
    const char *what;           /* starts every message: "json_schema", "regex", ... */
    rose_grammar_opts opts;     /* without zeros */
    struct gr_chunk *chunks[2]; /* [1]: scratch of one operation (rose_gr_scratch_begin) */
    int arena;                  /* the list that rose_gr_take uses */
    size_t memory;
    uint64_t work;
    unsigned depth;
    json_t *root;     /* owned; NULL for other kinds than JSON */
    json_t *made;     /* owned: a list of schemas that the schema front end wrote itself */
    bool plain_class; /* characters are written as UTF-8, not as in a JSON string */
    gr_node_data *nodes;
    gr_node *kids;
    uint8_t *bytes;
    gr_set *sets;
    gr_dfa **dfas;
    gr_counted **counted;
    gr_members *keys;
    gr_rule *rules;
    size_t n_nodes, cap_nodes, n_kids, cap_kids, n_bytes, cap_bytes, n_sets, cap_sets, n_dfas,
        cap_dfas, n_counted, cap_counted, n_keys, cap_keys, n_rules, cap_rules;
    struct gr_schema *schema; /* state of the schema front end */
    gr_node json_rules[8];    /* shared rules of json.c, GR_NONE until they are used */
} gr_build;

_Noreturn void rose_gr_fail(gr_build *b, rose_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *rose_gr_take(gr_build *b, size_t n); /* zeroed, for the whole build */
void *rose_gr_grown(gr_build *b, void *old, size_t n, size_t *cap, size_t size);
void rose_gr_work(gr_build *b, uint64_t n); /* counts steps against max_work */
void rose_gr_enter(gr_build *b);            /* one level of nesting deeper */
void rose_gr_leave(gr_build *b);
void rose_gr_chunks_free(struct gr_chunk *c);
/* Between the two, rose_gr_take gives memory that ends with rose_gr_scratch_end. */
void rose_gr_scratch_begin(gr_build *b);
void rose_gr_scratch_pause(gr_build *b); /* back to lasting memory, scratch still lives */
void rose_gr_scratch_end(gr_build *b);

/* ---- nodes (nodes.c). All simplify: NEVER and EMPTY vanish where they can. ---- */

void rose_gr_nodes_init(gr_build *b);
gr_node rose_gr_bytes(gr_build *b, const void *bytes, size_t n);
gr_node rose_gr_text(gr_build *b, const char *text);
gr_node rose_gr_set(gr_build *b, const gr_set *s);
gr_node rose_gr_range(gr_build *b, unsigned lo, unsigned hi);
gr_node rose_gr_seq(gr_build *b, const gr_node *kids, size_t n);
gr_node rose_gr_alt(gr_build *b, const gr_node *kids, size_t n);
gr_node rose_gr_repeat(gr_build *b, gr_node kid, uint32_t min, uint32_t max);
gr_node rose_gr_dfa_node(gr_build *b, gr_dfa *d);
gr_node rose_gr_counted_node(gr_build *b, gr_counted *k);
gr_node rose_gr_keys_node(gr_build *b, const gr_members *m);
gr_node rose_gr_rule_new(gr_build *b, const char *name); /* a NODE_RULE; define it later */
void rose_gr_rule_define(gr_build *b, gr_node rule, gr_node body);
#define GR_SEQ(b, ...)                                                                             \
    rose_gr_seq(b, (gr_node[]){__VA_ARGS__}, sizeof((gr_node[]){__VA_ARGS__}) / sizeof(gr_node))
#define GR_ALT(b, ...)                                                                             \
    rose_gr_alt(b, (gr_node[]){__VA_ARGS__}, sizeof((gr_node[]){__VA_ARGS__}) / sizeof(gr_node))
static inline gr_node rose_gr_opt(gr_build *b, gr_node kid)
{
    return rose_gr_repeat(b, kid, 0, 1);
}

/* A list of nodes that grows. */
typedef struct gr_list {
    gr_node *v;
    size_t n, cap;
} gr_list;
void rose_gr_push(gr_build *b, gr_list *l, gr_node x);

/* One of n words, as a tree of their common starts. The words may be in any order. */
typedef struct gr_word {
    const char *bytes;
    size_t n;
} gr_word;
gr_node rose_gr_words(gr_build *b, gr_word *words, size_t n);

/* ---- characters (chars.c) ---- */

typedef struct gr_chars { /* code points, sorted disjoint ranges [lo, hi] */
    struct gr_span {
        uint32_t lo, hi;
    } * v;
    size_t n, cap;
} gr_chars;
void rose_gr_chars_add(gr_build *b, gr_chars *c, uint32_t lo, uint32_t hi); /* unsorted yet */
void rose_gr_chars_normal(gr_chars *c); /* sorts, joins, drops surrogates */
void rose_gr_chars_invert(gr_build *b, gr_chars *c);
bool rose_gr_chars_has(const gr_chars *c, uint32_t cp);
gr_node rose_gr_chars_node(gr_build *b, const gr_chars *c); /* as b->plain_class says */
size_t rose_gr_utf8(uint32_t cp, uint8_t out[4]);
/* Decodes one character of s[0..n), n > 0; invalid UTF-8 fails the build. */
uint32_t rose_gr_char_at(gr_build *b, const char *s, size_t n, size_t *len);

/* ---- deterministic automata (dfa.c) ---- */

gr_dfa *rose_gr_dfa_of(gr_build *b, gr_node x); /* x holds no rules */
enum { GR_DFA_STATES = 60000 };
/* Copies d from scratch to lasting memory, trimmed, and ends scratch. */
gr_dfa *rose_gr_dfa_finish(gr_build *b, const gr_dfa *d);
typedef enum gr_dfa_op { DFA_AND, DFA_MINUS } gr_dfa_op;
/* The texts of d that have min to max characters, as chars.c writes them in a JSON string. */
gr_dfa *rose_gr_dfa_length(gr_build *b, const gr_dfa *d, uint32_t min, uint32_t max);
/* The same, counted on the stack; NULL: the possible counts of a state have gaps. */
gr_counted *rose_gr_counted(gr_build *b, const gr_dfa *d, uint32_t min, uint32_t max);
gr_dfa *rose_gr_dfa_combine(gr_build *b, const gr_dfa *x, const gr_dfa *y, gr_dfa_op op);
gr_dfa *rose_gr_dfa_words(gr_build *b, const gr_word *words, size_t n);
bool rose_gr_dfa_empty(const gr_dfa *d); /* of a trimmed one, as all functions return */
bool rose_gr_dfa_match(const gr_dfa *d, const void *bytes, size_t n);

/* ---- JSON without a schema (json.c) ---- */

gr_node rose_gr_string_char(gr_build *b);
gr_node rose_gr_string_rest(gr_build *b); /* the inside of a free string, and the closing quote */
gr_node rose_gr_any_string(gr_build *b);
gr_node rose_gr_any_number(gr_build *b);
gr_node rose_gr_integer(gr_build *b);
gr_node rose_gr_any_object(gr_build *b);
gr_node rose_gr_any_array(gr_build *b);
gr_node rose_gr_any_value(gr_build *b);
gr_node rose_gr_space(gr_build *b); /* up to max_space characters */
gr_node rose_gr_members(gr_build *b, const char *open, gr_node member, const char *close,
                        uint32_t min, uint32_t max);
gr_word rose_gr_escaped(gr_build *b, const char *s, size_t n);

/* ---- JSON Schema (schema*.c) ---- */

enum { /* types of JSON values; a whole number is an integer, any other number is not */
       TYPE_NULL = 1,
       TYPE_BOOL = 2,
       TYPE_INTEGER = 4,
       TYPE_FRACTION = 8,
       TYPE_STRING = 16,
       TYPE_ARRAY = 32,
       TYPE_OBJECT = 64,
       TYPE_ALL = 127
};

/* Schemas that must all hold: objects without $ref, and choices (anyOf and what becomes one) of
 * which one must hold each. */
typedef struct gr_conj {
    json_t **v; /* borrowed */
    size_t n, cap;
    struct gr_group {
        json_t *list; /* an array of schemas; borrowed */
    } * groups;
    size_t n_groups, cap_groups;
    bool never;
    bool by_ref; /* a $ref was followed: the list gets a rule */
} gr_conj;

/* The place where a result for (key, kind) is remembered; NULL in it: not known yet. Lists that are
 * made from a schema must be made once, because rules are found by the addresses of lists. */
void **rose_gr_memo(gr_build *b, const void *key, int kind);
enum { MEMO_ONE_OF, MEMO_NOT, MEMO_IF, MEMO_DEPENDENCIES, MEMO_PATTERN = 8 };
gr_dfa *rose_gr_pattern_dfa(gr_build *b, const char *pattern); /* of patternProperties */
gr_dfa *rose_gr_any_chars_dfa(gr_build *b); /* the insides of all strings, as chars.c has them */

void rose_gr_conj_add(gr_build *b, gr_conj *c, json_t *schema);
gr_node rose_gr_conj_node(gr_build *b, gr_conj *c);
json_t *rose_gr_keep(gr_build *b, json_t *made);     /* owned by b from now on; NULL: no memory */
unsigned rose_gr_schema_types(const json_t *schema); /* of its `type` alone */
/* No value satisfies both; required: names that both require beside their own, or NULL. */
bool rose_gr_schema_disjoint(gr_build *b, json_t *x, json_t *y, unsigned types,
                             const json_t *required, unsigned depth);
json_t *rose_gr_schema_deref(gr_build *b, json_t *schema); /* follows $ref */
json_t *rose_gr_negated(gr_build *b, json_t *schema); /* a list of schemas, one of which holds */
bool rose_gr_schema_legacy(const gr_build *b); /* before 2019-09: nothing beside a $ref counts */
int rose_gr_schema_draft(const gr_build *b);   /* 4, 6, 7, 2019, 2020 */
_Noreturn void rose_gr_schema_refuse(gr_build *b, json_t *at, const char *keyword, rose_status st,
                                     const char *why);
uint32_t rose_gr_schema_count(gr_build *b, json_t *schema, const char *keyword, uint32_t other);

gr_node rose_gr_number_node(gr_build *b, const gr_conj *c, unsigned types);
gr_node rose_gr_string_node(gr_build *b, const gr_conj *c); /* with quotes */
gr_dfa *rose_gr_string_dfa(gr_build *b, const gr_conj *c);  /* without; NULL: any string */
gr_node rose_gr_array_node(gr_build *b, const gr_conj *c);
gr_node rose_gr_object_node(gr_build *b, const gr_conj *c);
/* The regular expression of a format, and its largest number of characters; NULL: there is none. */
const char *rose_gr_format(const char *name, bool *known, uint32_t *max);
gr_node rose_gr_json_literal(gr_build *b, const json_t *value);
/* A string is checked for its type and the lists only: rose_gr_demands_dfa says the rest. */
bool rose_gr_value_fits(gr_build *b, const gr_conj *c, const json_t *value);
gr_dfa *rose_gr_demands_dfa(gr_build *b, const gr_conj *c); /* NULL: nothing is demanded */
bool rose_gr_json_same(const json_t *x, const json_t *y);   /* 1 and 1.0 are the same */
/* A number in decimal: digits before and after the point, without zeros at the ends. */
typedef struct gr_decimal {
    bool negative;
    char whole[330], part[340];
} gr_decimal;
void rose_gr_decimal(gr_build *b, const json_t *number, gr_decimal *out);
bool rose_gr_number_fits(gr_build *b, json_t *schema, const json_t *value);

/* ---- front ends. Each returns the node of the whole text. ---- */

gr_node rose_gr_regex(gr_build *b, const char *text, size_t n);   /* all of the text matches */
gr_node rose_gr_pattern(gr_build *b, const char *text, size_t n); /* a part of it, as a schema */
gr_node rose_gr_ebnf(gr_build *b, const char *text, size_t n);
gr_node rose_gr_schema(gr_build *b, json_t *schema); /* borrowed while b lives */
gr_node rose_gr_tag(gr_build *b, json_t *tag);

/* ---- the program (program.c) ---- */

typedef enum gr_op_kind {
    OP_MATCH,  /* the end of the text */
    OP_RETURN, /* the end of a rule: the frame on the stack says where to go on */
    OP_RANGE,  /* a byte of [lo, hi], then a */
    OP_SET,    /* a byte of sets[b], then a */
    OP_EDGES,  /* a byte of one of edges[a .. a + b), then its target */
    OP_FORK,   /* all of targets[a .. a + b) */
    OP_CALL,   /* pushes the frame "go on at b", goes to a */
    OP_ENTER,  /* pushes a counter of loops[b] at 0, goes to the loop's OP_LOOP */
    OP_LOOP,   /* the counter of loops[b]: once more, or pops it and leaves */
    OP_NEXT,   /* counts one round of loops[b], goes to its OP_LOOP */
    OP_TICK,   /* adds lo to the count of loops[b]; goes to a if the sum is one of
                * [targets[bit], targets[bit + 1]] */
    OP_OPEN,   /* pushes the frames of keys[b], goes to a */
    OP_MORE,   /* if a member of keys[b] may still come: goes to a */
    OP_TAKE,   /* marks member `bit` of the keys on the stack, if it is not marked; goes to a */
    OP_CLOSE   /* if all that is required is marked: pops the frames of keys[b], goes to a */
} gr_op_kind;

/* What mask.c knows of an op without a walk; a safe token has only safe characters. */
typedef enum gr_wild {
    WILD_NO,
    WILD_COUNT, /* OP_LOOP: each round takes one safe character */
    WILD_SAFE,  /* all safe tokens survive from here */
    WILD_STRING /* the inside of a free JSON string, as the vocabulary prepared it */
} gr_wild;

typedef struct gr_op {
    uint8_t kind, wild, lo, hi;
    uint32_t a, b;
    uint32_t bit; /* OP_TAKE: GR_NONE: a member without a mark */
} gr_op;

typedef struct gr_edge {
    uint8_t lo, hi;
    uint32_t to;
} gr_edge;

typedef struct gr_loop {
    uint32_t min, max, body, exit, head; /* ops; head: its OP_LOOP */
    uint32_t plain_lo, plain_hi; /* between these, and far from plain_hi, all counts are alike */
    uint32_t safe_hi;            /* counted automata: the limit where all safe tokens survive */
    bool lo_is_plain;            /* far below min all counts are alike as well */
} gr_loop;

/* Which members of an object were written: n_words frames, of which the top one has members 0 to
 * 31; with bounds one more, the lowest, counts all members. */
typedef struct gr_keys {
    uint32_t n_words, n_frames, min, max;
    uint32_t required; /* targets[required .. required + n_words): bits; then those that can end */
    bool other;        /* members without a mark are allowed */
} gr_keys;

typedef struct gr_program { /* owned arrays */
    gr_op *ops;
    gr_edge *edges;
    uint32_t *targets;
    gr_loop *loops;
    gr_keys *keys;
    gr_set *sets;
    uint32_t n_keys, n_ops, n_edges, n_targets, n_loops, n_sets, n_classes, start;
    uint8_t class_of[256], byte_of[256]; /* bytes of one class behave alike everywhere */
} gr_program;

/* Refuses rules that are not defined or begin with themselves, and a root that never ends
 * (rules.c). */
/* Returns, for each node, 1 if it can end: the others are left out of the program. */
uint8_t *rose_gr_check_rules(gr_build *b, gr_node root);
void rose_gr_program_make(gr_build *b, gr_node root, gr_program *out);
void rose_gr_program_free(gr_program *p);

/* ---- the trie (trie.c) ---- */

typedef struct gr_trie_node { /* in depth-first order */
    uint32_t next;            /* the first node after the subtree */
    uint32_t first;           /* sorted[first .. first + n): the ids that end here */
    uint16_t n, depth;
    uint8_t byte;
} gr_trie_node;

typedef struct gr_trie {
    gr_trie_node *nodes;
    uint32_t n;
    uint32_t *sorted;
    uint32_t n_sorted;
} gr_trie;

struct rose_vocab_trie {
    atomic_uint refs;
    uint32_t n_ids, n_words, max_token; /* max_token: bytes of the longest token */
    uint8_t *blob;                      /* bytes of all tokens */
    struct gr_span_of {
        uint32_t at, n;
    } * tokens; /* [n_ids] into blob; n == 0: no text */
    uint32_t *eos;
    size_t n_eos;
    gr_trie all;
    gr_trie unsafe;        /* tokens that are not made of safe characters */
    gr_trie quoted;        /* tokens that contain '"' */
    uint32_t *safe_mask;   /* [n_words] tokens of safe characters */
    uint32_t *inside_mask; /* [n_words] tokens that stay inside a free JSON string */
    uint32_t *safe_ids;    /* by length in characters */
    uint32_t *safe_end; /* [max_safe + 1]: safe_ids[0 .. safe_end[k]) have at most k characters */
    uint32_t max_safe;
    size_t bytes;
};

static inline bool rose_gr_is_eos(const rose_vocab_trie *v, uint32_t id)
{
    for (size_t i = 0; i < v->n_eos; i++)
        if (v->eos[i] == id) return true;
    return false;
}

static inline void rose_gr_set_bit(uint32_t *mask, uint32_t id)
{
    mask[id / 32] |= UINT32_C(1) << (id % 32);
}

/* ---- states (state.c). All need the lock of the grammar. ---- */

typedef struct gr_frame {
    uint32_t parent; /* a frame; 0 is the empty stack */
    uint32_t op;     /* where to go on; or GR_COUNTER | a loop; or GR_KEYS | keys */
    uint32_t count;  /* rounds of the loop; marks or number of members */
    uint32_t depth;
    uint32_t plain; /* the frame with plain counters (mask.c); GR_NONE: not known yet */
    uint32_t chain; /* of the hash table */
} gr_frame;
#define GR_COUNTER 0x80000000u
#define GR_KEYS    0x40000000u

typedef struct gr_item {
    uint32_t op, frame;
} gr_item;

typedef struct gr_state {
    uint32_t first, n; /* items */
    uint32_t hash, chain;
    uint32_t *next;          /* [n_classes] states, GR_NONE: not known yet; NULL until one is */
    uint32_t *mask;          /* NULL: not known yet */
    uint32_t n_allowed, one; /* with mask: its bits; one of the ids */
    uint32_t plain;          /* the state with plain counters; GR_NONE: not known yet */
    gr_item wild_item;
    uint32_t wild_left; /* WILD_COUNT: characters that are left */
    uint8_t wild;
    bool accepting;
} gr_state;
enum { GR_DEAD = 0 }; /* the state without items */

typedef struct gr_states {
    gr_state *v;
    gr_item *items;
    gr_frame *frames;
    uint32_t n, cap, n_items, cap_items, n_frames, cap_frames;
    uint32_t *buckets, n_buckets, *frame_buckets, n_frame_buckets;
    size_t bytes;
    uint32_t start;
} gr_states;

struct rose_grammar {
    atomic_uint refs;
    atomic_size_t bytes;  /* written with the lock, read without: a figure, nothing depends on it */
    pthread_mutex_t lock; /* of everything below */
    rose_vocab_trie *vocab;
    rose_grammar_opts opts;
    gr_program p;
    size_t program_bytes;
    gr_states s;
    rose_matcher *matchers; /* all that live, so that their states survive a clean-up */
    /* scratch */
    gr_item *work, *found;
    uint32_t n_work, cap_work, n_found, cap_found;
    uint64_t *seen; /* a hash table of (stamp, item) */
    uint32_t *seen_stamp, n_seen, stamp, n_marked;
    gr_item wild_item;
    uint32_t wild_left;
    uint8_t wild;
    uint32_t *walk; /* [max_token + 2] states along a path of the trie */
    uint32_t steps; /* of the closings of one call from outside */
    rose_status st; /* why the last GR_NONE came back */
};

struct rose_matcher {
    rose_grammar *g;
    rose_matcher *prev, *next; /* in g->matchers */
    uint32_t state, moved;     /* moved: used by rose_gr_clean */
    bool ended;
};

void rose_gr_unlock(rose_grammar *g); /* notes the bytes in use */
rose_status rose_gr_states_init(rose_grammar *g);
void rose_gr_states_free(gr_states *s);
/* The state after one byte; GR_DEAD if there is none; GR_NONE after an error (g->st). */
uint32_t rose_gr_step(rose_grammar *g, uint32_t state, uint8_t byte);
/* The state of these items, which are sorted and closed; GR_NONE after an error. */
uint32_t rose_gr_intern(rose_grammar *g, const gr_item *items, uint32_t n);
uint32_t rose_gr_frame(rose_grammar *g, uint32_t parent, uint32_t op, uint32_t count);
/* Closes one item into g->found[0 .. g->n_found), sorted; false after an error. */
bool rose_gr_close(rose_grammar *g, gr_item from);
void rose_gr_sort_items(gr_item *v, uint32_t n);
/* Drops cached states when they take more than the limit; ids of states change. */
rose_status rose_gr_clean(rose_grammar *g);

/* ---- masks (mask.c) ---- */

/* Finds or computes the mask of a state, which is g->s.v[*at].mask. */
rose_status rose_gr_mask(rose_grammar *g, uint32_t state, uint32_t *at);

/* Fills in v->inside_mask. */
rose_status rose_gr_inside(rose_vocab_trie *v);

/* A grammar without cached states around a node; used by rose_grammar_compile and rose_gr_inside.
 */
rose_status rose_gr_compile(rose_grammar **out, rose_vocab_trie *v, const rose_grammar_opts *opts,
                            const char *what, gr_node (*front)(gr_build *, void *), void *arg,
                            rose_err *err);

#endif
