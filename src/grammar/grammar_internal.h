/* grammar/grammar_internal.h - what the files of this room share.
 *
 * compile.c runs a front end, which builds nodes (nodes.c): schema*.c and json.c, regex.c, ebnf.c,
 * lark.c, tag.c. dfa.c and count.c intersect and subtract what strings must match. rules.c checks
 * the rules, and program.c writes the ops of one pushdown automaton. state.c follows bytes, mask.c
 * walks the trie of tokens (trie.c) from a state, matcher.c follows accepted ids.
 *
 * To add a keyword of JSON Schema: its form in schema_check.c, then schema_*.c, by the type of
 * value; what cannot be honoured is refused with its JSON pointer (schema.c, check_keywords). To
 * add a format: a row in schema_format.c. tests/grammar/maskbench.py compares with llguidance and
 * jsonschema-rs. */
#ifndef ROSE_GRAMMAR_GRAMMAR_INTERNAL_H
#define ROSE_GRAMMAR_GRAMMAR_INTERNAL_H

#include <setjmp.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "grammar/grammar.h"

#define GR_NONE      UINT32_MAX
#define GR_INF       UINT32_MAX       /* the upper bound of a repetition without one */
#define GR_MAX_COUNT (UINT32_MAX - 2) /* the largest bound of a repetition that is a number */

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
    uint16_t height; /* levels of nodes below this one */
    uint32_t a, n, min, max;
} gr_node_data;

/* A deterministic automaton over bytes. State 0 is dead, state 1 is the start. */
typedef struct gr_dfa {
    uint32_t n;            /* states */
    uint16_t (*next)[256]; /* [n] */
    uint8_t *accept;       /* [n] */
} gr_dfa;

/* The members of an object in any order, each of kids[0..n) at most once. */
enum { GR_MAX_LINKED = 1000 }; /* members, if some need others or the order counts */
typedef struct gr_members {
    const gr_node *kids;  /* [n] */
    const bool *required; /* [n] */
    uint32_t n;
    gr_node other;     /* any number of times; GR_NEVER: none */
    uint32_t min, max; /* members */
    gr_node comma, close;
    /* needs[i]: NULL, or a bit for each member that must be there if member i is, directly or
     * because another needs it; needs == NULL: no member needs another */
    uint32_t *const *needs;
    bool ordered; /* they come in the order of kids, then others */
} gr_members;
bool rose_gr_member_ends(const gr_members *m, uint32_t i, const uint8_t *can); /* rules.c */

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

/* What steps are spent for, so that an error can say what made a grammar costly (build.c). */
typedef enum gr_cost {
    COST_TEXT,     /* reading the text, making nodes */
    COST_CHOICES,  /* of a schema: each combination of anyOf and its like is a schema of its own */
    COST_SUBSETS,  /* from patterns to automata */
    COST_PRODUCTS, /* of automata */
    COST_LENGTHS,  /* counting characters in automata */
    COST_RULES,    /* checking rules */
    COST_PROGRAM,  /* writing the ops */
    N_COSTS
} gr_cost;

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
    uint64_t work, next_check; /* next_check: the work at which opts.stop is asked again */
    uint64_t spent[N_COSTS];   /* of work */
    gr_cost cost, outer_cost;  /* what is being done now; outer_cost: around scratch */
    unsigned depth;
    rose_json *root;  /* owned; NULL for other kinds than JSON */
    rose_json *made;  /* owned: a list of schemas that the schema front end wrote itself */
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
    gr_dfa *any_chars; /* of the schema front end: the insides of all strings; NULL until then */
    struct gr_categories *categories; /* of regex.c; NULL until they are needed */
    gr_node json_rules[8];            /* shared rules of json.c, GR_NONE until they are used */
} gr_build;

_Noreturn void rose_gr_fail(gr_build *b, rose_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *rose_gr_take(gr_build *b, size_t n); /* zeroed, for the whole build */
void *rose_gr_grown(gr_build *b, void *old, size_t n, size_t *cap, size_t size);
void rose_gr_work(gr_build *b, uint64_t n); /* counts steps against max_work */
void rose_gr_enter(gr_build *b);            /* one level of nesting deeper */
void rose_gr_leave(gr_build *b);
/* Appends made, which it takes; NULL stands for a failed allocation. */
void rose_gr_json_add(gr_build *b, rose_json *list, rose_json *made);
rose_json *rose_gr_keep(gr_build *b, rose_json *made); /* owned by b from now on; NULL: no memory */
void rose_gr_chunks_free(struct gr_chunk *c);
/* Between the two, rose_gr_take gives memory that ends with rose_gr_scratch_end, and steps count
 * for this cost. */
void rose_gr_scratch_begin(gr_build *b, gr_cost cost);
void rose_gr_scratch_pause(gr_build *b); /* back to lasting memory, scratch still lives */
void rose_gr_scratch_end(gr_build *b);

/* Where the schema front end stands: the keyword whose choices were most, and the place in the
 * schema. Writes "" where there is none (schema.c). */
void rose_gr_schema_place(gr_build *b, const char **keyword, char *place, size_t n);

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
void rose_gr_sort_words(gr_build *b, gr_word *words, size_t n);
int rose_gr_by_bytes(const void *x, const void *y); /* of words, for bsearch */

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
gr_node rose_gr_chars_node(gr_build *b, const gr_chars *c); /* as b->plain_class says */
gr_node rose_gr_any_text(gr_build *b);                      /* any number of any characters */
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
/* All texts of bytes that hold none of the words. */
gr_dfa *rose_gr_dfa_without(gr_build *b, const gr_word *words, size_t n);
bool rose_gr_dfa_empty(const gr_dfa *d); /* of a trimmed one, as all functions return */
bool rose_gr_dfa_match(const gr_dfa *d, const void *bytes, size_t n);

/* ---- JSON without a schema (json.c) ---- */

gr_node rose_gr_string_char(gr_build *b);
gr_node rose_gr_string_rest(gr_build *b); /* the inside of a free string, and the closing quote */
gr_node rose_gr_any_string(gr_build *b);
gr_node rose_gr_any_number(gr_build *b);
gr_node rose_gr_integer(gr_build *b);
gr_node rose_gr_any_object(gr_build *b);
gr_node rose_gr_any_value(gr_build *b);
gr_node rose_gr_space(gr_build *b); /* up to max_space characters */
gr_node rose_gr_members(gr_build *b, const char *open, gr_node member, const char *close,
                        uint32_t min, uint32_t max);
gr_word rose_gr_escaped(gr_build *b, const char *s, size_t n);

/* Reads the decimal digits at the start of s[0..n) and returns how many there are. fits: the number
 * is at most GR_MAX_COUNT; otherwise *v is GR_MAX_COUNT. */
size_t rose_gr_number(const char *s, size_t n, uint32_t *v, bool *fits);
#define GR_COUNT_TOO_LARGE "a count beyond 4294967293 is not supported"

/* ---- grammars as text: what ebnf.c, lark.c and regex.c share (ebnf.c) ---- */

enum { GR_SYMBOL_BUCKETS = 1024 };
typedef struct gr_symbol {
    const char *name;
    size_t n;
    gr_node rule;
    uint32_t chain; /* the next symbol of the bucket, + 1 */
} gr_symbol;

typedef struct gr_source {
    gr_build *b;
    const char *s;
    size_t n, at;
    gr_symbol *symbols;
    size_t n_symbols, cap_symbols;
    uint32_t *buckets; /* [GR_SYMBOL_BUCKETS] 0, or a symbol + 1; NULL until the first rule */
    bool lark;
    gr_node ignore;     /* lark.c: what may follow each token */
    bool fold, dot_all; /* regex.c: the flags i and s */
} gr_source;

static inline bool gr_at_char(const gr_source *e, char c)
{
    return e->at < e->n && e->s[e->at] == c;
}

static inline bool gr_looking_at(const gr_source *e, const char *text)
{
    const size_t n = strlen(text);
    return n <= e->n - e->at && memcmp(e->s + e->at, text, n) == 0;
}

static inline bool gr_take(gr_source *e, const char *text)
{
    if (!gr_looking_at(e, text)) return false;
    e->at += strlen(text);
    return true;
}

void rose_gr_source_skip(gr_source *e);         /* white space, line ends and comments */
void rose_gr_source_skip_blanks(gr_source *e);  /* blanks; in EBNF also what `skip` skips */
size_t rose_gr_source_name(const gr_source *e); /* the length of the name here; 0: none */
/* A number, and the blanks around it. */
uint32_t rose_gr_source_number(gr_source *e);
gr_node rose_gr_source_bounded(gr_source *e, gr_node x, uint32_t min, uint32_t max);
/* x with the operator that follows it: * + ? {2} {2,} {2,5} and in Lark {,5}. */
gr_node rose_gr_source_operator(gr_source *e, gr_node x);

/* Fails the build with the line and column of e->at. */
_Noreturn void rose_gr_source_refuse(const gr_source *e, rose_status st, const char *why);
gr_node rose_gr_source_rule(gr_source *e, const char *name, size_t n); /* made if it is new */
void rose_gr_source_check_new(gr_source *e, gr_node rule); /* refuses a second definition */
/* Defines a rule; direct left recursion becomes a repetition. */
void rose_gr_source_define(gr_source *e, gr_node rule, gr_node body);
gr_node rose_gr_source_start(gr_source *e, const char *name); /* refuses one without definition */
/* One character of a literal or class that ends with `end`, escapes undone. */
uint32_t rose_gr_source_char(gr_source *e, char end);

/* ---- front ends. Each returns the node of the whole text. ---- */

gr_node rose_gr_regex(gr_build *b, const char *text, size_t n);   /* all of the text matches */
gr_node rose_gr_pattern(gr_build *b, const char *text, size_t n); /* a part of it, as a schema */
/* fold: upper and lower case are the same; dot_all: '.' is any character. */
gr_node rose_gr_regex_with(gr_build *b, const char *text, size_t n, bool fold, bool dot_all);
void rose_gr_chars_fold(gr_build *b, gr_chars *c); /* adds the other case of each character */
gr_node rose_gr_ebnf(gr_build *b, const char *text, size_t n); /* or Lark, as the text says */
gr_node rose_gr_lark(gr_build *b, const char *text, size_t n);
gr_node rose_gr_schema(gr_build *b, rose_json *schema); /* borrowed while b lives */
gr_node rose_gr_tag(gr_build *b, rose_json *tag);
/* A schema within another text: sets plain_class and the state of the schema front end. */
gr_node rose_gr_schema_within(gr_build *b, rose_json *schema, const char *style);
gr_node rose_gr_xml(gr_build *b, rose_json *schema, const char *style); /* of a structural tag */
gr_node rose_gr_text_without(gr_build *b, const char *end); /* any text, UTF-8 (tag.c) */

#endif
