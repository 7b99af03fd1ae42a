/* grammar/schema_internal.h - what the files of the JSON Schema front end share (schema*.c). */
#ifndef ROSE_GRAMMAR_SCHEMA_INTERNAL_H
#define ROSE_GRAMMAR_SCHEMA_INTERNAL_H

#include "grammar/grammar_internal.h"

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
    rose_json **v; /* borrowed */
    size_t n, cap;
    struct gr_group {
        rose_json *list;     /* an array of schemas; borrowed */
        const char *keyword; /* where it comes from */
        rose_json *negates;  /* the schema whose negation the list is; NULL: another list */
    } * groups;
    size_t n_groups, cap_groups;
    bool never;
    bool by_ref; /* a $ref was followed: the list gets a rule */
} gr_conj;

/* The place where a result for (key, kind) is remembered; NULL in it: not known yet. Lists that are
 * made from a schema must be made once, because rules are found by the addresses of lists. */
void **rose_gr_memo(gr_build *b, const void *key, int kind);
enum {
    MEMO_ONE_OF,
    MEMO_NOT,
    MEMO_IF,
    MEMO_DEPENDENCIES,
    MEMO_NUMBER,      /* gr_dfa of a schema's demands of a number */
    MEMO_FORMAT_NODE, /* its node */
    MEMO_FORMAT,      /* gr_dfa of the expression of a format */
    MEMO_STRINGS,     /* the strings of an enum, sorted */
    MEMO_PATTERN
};
gr_dfa *rose_gr_pattern_dfa(gr_build *b, const char *pattern); /* of patternProperties */
gr_dfa *rose_gr_any_chars_dfa(gr_build *b); /* the insides of all strings, as chars.c has them */

void rose_gr_conj_add(gr_build *b, gr_conj *c, rose_json *schema);
gr_node rose_gr_conj_node(gr_build *b, gr_conj *c);
gr_conj rose_gr_conj_copy(gr_build *b, const gr_conj *c); /* by_ref is false in the copy */
/* Around all uses of one schema; finish builds the rules that its references led to. */
void rose_gr_schema_begin(gr_build *b, rose_json *schema);
void rose_gr_schema_finish(gr_build *b);
unsigned rose_gr_schema_types(const rose_json *schema); /* of its `type` alone */
/* The first of these keywords that the schema has; NULL: none. NULL ends the list. */
static inline const char *rose_gr_first_key(const rose_json *schema, const char *const *keys)
{
    while (*keys != NULL && rose_json_get(schema, *keys) == NULL)
        keys++;
    return *keys;
}
extern const char *const rose_gr_object_keys[]; /* all that demand something of objects */
unsigned rose_gr_type_bits(const char *name);   /* 0: no type has this name */
/* Refuses keywords that are malformed, in this schema and in all schemas within. */
void rose_gr_schema_check(gr_build *b, rose_json *schema);
/* No value satisfies both; required: names that both require beside their own, or NULL. */
bool rose_gr_schema_disjoint(gr_build *b, rose_json *x, rose_json *y, unsigned types,
                             const rose_json *required, unsigned depth);
rose_json *rose_gr_schema_deref(gr_build *b, rose_json *schema); /* follows $ref */
rose_json *rose_gr_negated(gr_build *b,
                           rose_json *schema); /* a list of schemas, one of which holds */
int rose_gr_schema_draft(const gr_build *b);   /* 4, 6, 7, 2019, 2020 */
_Noreturn void rose_gr_schema_refuse(gr_build *b, rose_json *at, const char *keyword,
                                     rose_status st, const char *why);
uint32_t rose_gr_schema_count(gr_build *b, rose_json *schema, const char *keyword, uint32_t other);

gr_node rose_gr_number_node(gr_build *b, const gr_conj *c, unsigned types);
gr_node rose_gr_string_node(gr_build *b, const gr_conj *c); /* with quotes */
gr_dfa *rose_gr_string_dfa(gr_build *b, const gr_conj *c);  /* without; NULL: any string */
gr_node rose_gr_array_node(gr_build *b, const gr_conj *c);
gr_node rose_gr_object_node(gr_build *b, const gr_conj *c);
/* With opts.closed: the objects of c have only the names that c speaks of. */
bool rose_gr_conj_closed(const gr_build *b, const gr_conj *c);
/* The regular expression of a format, and its largest number of characters; NULL: there is none. */
const char *rose_gr_format(const char *name, int draft, bool *known, uint32_t *max);
rose_json *rose_gr_listed(gr_build *b, rose_json *s); /* its const, else its enum; NULL: none */
gr_node rose_gr_json_literal(gr_build *b, const rose_json *value);
/* A string is checked for its type and the lists only: rose_gr_demands_dfa says the rest. from: an
 * enum that is known to hold the value, or NULL. */
bool rose_gr_value_fits(gr_build *b, const gr_conj *c, const rose_json *value,
                        const rose_json *from);
gr_dfa *rose_gr_demands_dfa(gr_build *b, const gr_conj *c);     /* NULL: nothing is demanded */
bool rose_gr_json_same(const rose_json *x, const rose_json *y); /* 1 and 1.0 are the same */
/* A number in decimal: digits before and after the point, without zeros at the ends. */
typedef struct gr_decimal {
    bool negative;
    char whole[330], part[340];
} gr_decimal;
void rose_gr_decimal(gr_build *b, const rose_json *number, gr_decimal *out);
bool rose_gr_number_fits(gr_build *b, rose_json *schema, const rose_json *value);

#endif
