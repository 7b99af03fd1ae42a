/* template/tests.c - what may stand after `is`. */
#include "template/template_internal.h"

#define TEST(name)                                                                                 \
    static tpl_value name(rose_tpl *t, tpl_value v, const tpl_value *arg, const tpl_args *raw)
#define UNUSED (void)t, (void)v, (void)arg, (void)raw

/* Tests of the kind alone: a set of kinds, one bit for each. */
#define BIT(kind) (1u << (kind))
#define KIND_TEST(name, kinds)                                                                     \
    TEST(name)                                                                                     \
    {                                                                                              \
        UNUSED;                                                                                    \
        return rose_tpl_bool((BIT(v.kind) & (kinds)) != 0);                                        \
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

TEST(is_true)
{
    UNUSED;
    return rose_tpl_bool(v.kind == TPL_BOOL && v.u.b);
}

TEST(is_false)
{
    UNUSED;
    return rose_tpl_bool(v.kind == TPL_BOOL && !v.u.b);
}

static bool rest_is(rose_tpl *t, tpl_value v, tpl_value by, int64_t rest)
{
    tpl_value r = rose_tpl_binary(t, OP_MOD, v, by);
    return rose_tpl_equal(t, r, rose_tpl_int(rest, TPL_TEMPLATE));
}

TEST(is_odd)
{
    UNUSED;
    return rose_tpl_bool(rest_is(t, v, rose_tpl_int(2, TPL_TEMPLATE), 1));
}

TEST(is_even)
{
    UNUSED;
    return rose_tpl_bool(rest_is(t, v, rose_tpl_int(2, TPL_TEMPLATE), 0));
}

TEST(is_divisible)
{
    UNUSED;
    return rose_tpl_bool(rest_is(t, v, arg[0], 0));
}

TEST(is_lower)
{
    UNUSED;
    return rose_tpl_bool(rose_tpl_all_case(t, rose_tpl_to_text(t, v), false));
}

TEST(is_upper)
{
    UNUSED;
    return rose_tpl_bool(rose_tpl_all_case(t, rose_tpl_to_text(t, v), true));
}

TEST(is_in)
{
    UNUSED;
    return rose_tpl_bool(rose_tpl_contains(t, arg[0], v));
}

/* Identity; two numbers or strings that are equal count as the same object. */
TEST(is_same)
{
    UNUSED;
    if (v.kind != arg[0].kind) return rose_tpl_bool(false);
    if (v.kind == TPL_LIST || v.kind == TPL_TUPLE || v.kind == TPL_DICT)
        return rose_tpl_bool(v.u.seq == arg[0].u.seq);
    return rose_tpl_bool(rose_tpl_equal(t, v, arg[0]));
}

TEST(is_filter)
{
    UNUSED;
    return rose_tpl_bool(v.kind == TPL_STR && rose_tpl_filter_find(v.u.str) != NULL);
}

TEST(is_test)
{
    UNUSED;
    return rose_tpl_bool(v.kind == TPL_STR && rose_tpl_test_find(v.u.str) != NULL);
}

#define COMPARE_TEST(name, op)                                                                     \
    TEST(name)                                                                                     \
    {                                                                                              \
        UNUSED;                                                                                    \
        return rose_tpl_bool(rose_tpl_compare(t, op, v, arg[0]));                                  \
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
