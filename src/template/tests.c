/* template/tests.c - what may stand after `is`. */
#include "template/template_internal.h"

/* Tests of the kind alone: a set of kinds, one bit for each. */
#define BIT(kind) (1u << (kind))
#define KIND_TEST(name, kinds)                                                                     \
    static tpl_value name(const tpl_in *in)                                                        \
    {                                                                                              \
        return rose_tpl_bool((BIT(in->v.kind) & (kinds)) != 0);                                    \
    }

KIND_TEST(is_defined, ~BIT(TPL_UNDEF))
KIND_TEST(is_undefined, BIT(TPL_UNDEF))
KIND_TEST(is_none, BIT(TPL_NONE))
KIND_TEST(is_boolean, BIT(TPL_BOOL))
KIND_TEST(is_integer, BIT(TPL_INT) | BIT(TPL_BIG))
KIND_TEST(is_float, BIT(TPL_FLOAT))
KIND_TEST(is_number, BIT(TPL_INT) | BIT(TPL_BIG) | BIT(TPL_FLOAT) | BIT(TPL_BOOL))
KIND_TEST(is_string, BIT(TPL_STR))
KIND_TEST(is_mapping, BIT(TPL_DICT))
KIND_TEST(is_callable, BIT(TPL_FUNC) | BIT(TPL_UNDEF) | BIT(TPL_LOOP))
KIND_TEST(is_sequence, BIT(TPL_UNDEF) | BIT(TPL_STR) | BIT(TPL_LIST) | BIT(TPL_TUPLE) |
                           BIT(TPL_RANGE) | BIT(TPL_DICT))
KIND_TEST(is_iterable, BIT(TPL_UNDEF) | BIT(TPL_STR) | BIT(TPL_LIST) | BIT(TPL_TUPLE) |
                           BIT(TPL_RANGE) | BIT(TPL_VIEW) | BIT(TPL_GEN) | BIT(TPL_DICT) |
                           BIT(TPL_LOOP))
KIND_TEST(is_escaped, 0u)

static tpl_value is_true(const tpl_in *in)
{
    return rose_tpl_bool(in->v.kind == TPL_BOOL && in->v.u.b);
}

static tpl_value is_false(const tpl_in *in)
{
    return rose_tpl_bool(in->v.kind == TPL_BOOL && !in->v.u.b);
}

static bool rest_is(rose_tpl *t, tpl_value v, tpl_value by, int64_t rest)
{
    tpl_value r = rose_tpl_binary(t, OP_MOD, v, by);
    return rose_tpl_equal(t, r, rose_tpl_int(rest, TPL_TEMPLATE));
}

static tpl_value is_odd(const tpl_in *in)
{
    return rose_tpl_bool(rest_is(in->t, in->v, rose_tpl_int(2, TPL_TEMPLATE), 1));
}

static tpl_value is_even(const tpl_in *in)
{
    return rose_tpl_bool(rest_is(in->t, in->v, rose_tpl_int(2, TPL_TEMPLATE), 0));
}

static tpl_value is_divisible(const tpl_in *in)
{
    return rose_tpl_bool(rest_is(in->t, in->v, in->arg[0], 0));
}

static tpl_value is_lower(const tpl_in *in)
{
    return rose_tpl_bool(rose_tpl_all_case(in->t, rose_tpl_to_text(in->t, in->v), false));
}

static tpl_value is_upper(const tpl_in *in)
{
    return rose_tpl_bool(rose_tpl_all_case(in->t, rose_tpl_to_text(in->t, in->v), true));
}

static tpl_value is_in(const tpl_in *in)
{
    return rose_tpl_bool(rose_tpl_contains(in->t, in->arg[0], in->v));
}

/* Identity; two numbers or strings that are equal count as the same object. */
static tpl_value is_same(const tpl_in *in)
{
    if (in->v.kind != in->arg[0].kind) return rose_tpl_bool(false);
    if (in->v.kind == TPL_LIST || in->v.kind == TPL_TUPLE || in->v.kind == TPL_DICT)
        return rose_tpl_bool(in->v.u.seq == in->arg[0].u.seq);
    return rose_tpl_bool(rose_tpl_equal(in->t, in->v, in->arg[0]));
}

static tpl_value is_filter(const tpl_in *in)
{
    return rose_tpl_bool(in->v.kind == TPL_STR && rose_tpl_filter_find(in->v.u.str) != NULL);
}

static tpl_value is_test(const tpl_in *in)
{
    return rose_tpl_bool(in->v.kind == TPL_STR && rose_tpl_test_find(in->v.u.str) != NULL);
}

#define COMPARE_TEST(name, op)                                                                     \
    static tpl_value name(const tpl_in *in)                                                        \
    {                                                                                              \
        return rose_tpl_bool(rose_tpl_compare(in->t, op, in->v, in->arg[0]));                      \
    }

COMPARE_TEST(is_eq, OP_EQ)
COMPARE_TEST(is_ne, OP_NE)
COMPARE_TEST(is_lt, OP_LT)
COMPARE_TEST(is_le, OP_LE)
COMPARE_TEST(is_gt, OP_GT)
COMPARE_TEST(is_ge, OP_GE)

const tpl_builtin *rose_tpl_test_find(const tpl_text *name)
{
    static const tpl_builtin tests[] = {
        {.name = "!=", .fn = is_ne, .params = "b", .need = 1},
        {.name = "<", .fn = is_lt, .params = "b", .need = 1},
        {.name = "<=", .fn = is_le, .params = "b", .need = 1},
        {.name = "==", .fn = is_eq, .params = "b", .need = 1},
        {.name = ">", .fn = is_gt, .params = "b", .need = 1},
        {.name = ">=", .fn = is_ge, .params = "b", .need = 1},
        {.name = "boolean", .fn = is_boolean, .params = ""},
        {.name = "callable", .fn = is_callable, .params = ""},
        {.name = "defined", .fn = is_defined, .params = ""},
        {.name = "divisibleby", .fn = is_divisible, .params = "num", .need = 1},
        {.name = "eq", .fn = is_eq, .params = "b", .need = 1},
        {.name = "equalto", .fn = is_eq, .params = "b", .need = 1},
        {.name = "escaped", .fn = is_escaped, .params = ""},
        {.name = "even", .fn = is_even, .params = ""},
        {.name = "false", .fn = is_false, .params = ""},
        {.name = "filter", .fn = is_filter, .params = ""},
        {.name = "float", .fn = is_float, .params = ""},
        {.name = "ge", .fn = is_ge, .params = "b", .need = 1},
        {.name = "greaterthan", .fn = is_gt, .params = "b", .need = 1},
        {.name = "gt", .fn = is_gt, .params = "b", .need = 1},
        {.name = "in", .fn = is_in, .params = "seq", .need = 1},
        {.name = "integer", .fn = is_integer, .params = ""},
        {.name = "iterable", .fn = is_iterable, .params = ""},
        {.name = "le", .fn = is_le, .params = "b", .need = 1},
        {.name = "lessthan", .fn = is_lt, .params = "b", .need = 1},
        {.name = "lower", .fn = is_lower, .params = ""},
        {.name = "lt", .fn = is_lt, .params = "b", .need = 1},
        {.name = "mapping", .fn = is_mapping, .params = ""},
        {.name = "ne", .fn = is_ne, .params = "b", .need = 1},
        {.name = "none", .fn = is_none, .params = ""},
        {.name = "number", .fn = is_number, .params = ""},
        {.name = "odd", .fn = is_odd, .params = ""},
        {.name = "sameas", .fn = is_same, .params = "other", .need = 1},
        {.name = "sequence", .fn = is_sequence, .params = ""},
        {.name = "string", .fn = is_string, .params = ""},
        {.name = "test", .fn = is_test, .params = ""},
        {.name = "true", .fn = is_true, .params = ""},
        {.name = "undefined", .fn = is_undefined, .params = ""},
        {.name = "upper", .fn = is_upper, .params = ""},
        {0}};
    return rose_tpl_find_in(tests, name);
}
