/* template/tests.c - what may stand after `is`. */
#include "template/template_internal.h"

/* Sets of kinds, one bit for each. */
#define BIT(kind) (1u << (kind))
#define SEQUENCE                                                                                   \
    (BIT(TPL_UNDEF) | BIT(TPL_STR) | BIT(TPL_LIST) | BIT(TPL_TUPLE) | BIT(TPL_RANGE) |             \
     BIT(TPL_DICT))

/* variant: a set of kinds. */
static tpl_value is_kind(const tpl_in *in)
{
    return rose_tpl_bool((BIT(in->v.kind) & in->variant) != 0);
}

/* variant: the boolean that it is. */
static tpl_value is_bool(const tpl_in *in)
{
    return rose_tpl_bool(in->v.kind == TPL_BOOL && in->v.u.b == in->variant);
}

static bool rest_is(rose_tpl *t, tpl_value v, tpl_value by, int64_t rest)
{
    tpl_value r = rose_tpl_binary(t, OP_MOD, v, by);
    return rose_tpl_equal(t, r, rose_tpl_int(rest, TPL_TEMPLATE));
}

/* variant: what a division by two leaves. */
static tpl_value is_parity(const tpl_in *in)
{
    return rose_tpl_bool(rest_is(in->t, in->v, rose_tpl_int(2, TPL_TEMPLATE), in->variant));
}

static tpl_value is_divisible(const tpl_in *in)
{
    return rose_tpl_bool(rest_is(in->t, in->v, in->arg[0], 0));
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

/* variant: a tpl_op. */
static tpl_value is_compared(const tpl_in *in)
{
    return rose_tpl_bool(rose_tpl_compare(in->t, (tpl_op)in->variant, in->v, in->arg[0]));
}

#define KIND(n, kinds)                                                                             \
    {                                                                                              \
        .name = n, .fn = is_kind, .params = "", .variant = kinds                                   \
    }
#define COMPARE(n, op)                                                                             \
    {                                                                                              \
        .name = n, .fn = is_compared, .params = "b", .need = 1, .variant = op                      \
    }

const tpl_builtin *rose_tpl_test_find(const tpl_text *name)
{
    static const tpl_builtin tests[] = {
        COMPARE("!=", OP_NE),
        COMPARE("<", OP_LT),
        COMPARE("<=", OP_LE),
        COMPARE("==", OP_EQ),
        COMPARE(">", OP_GT),
        COMPARE(">=", OP_GE),
        KIND("boolean", BIT(TPL_BOOL)),
        KIND("callable", BIT(TPL_FUNC) | BIT(TPL_UNDEF) | BIT(TPL_LOOP)),
        KIND("defined", ~BIT(TPL_UNDEF)),
        {.name = "divisibleby", .fn = is_divisible, .params = "num", .need = 1},
        COMPARE("eq", OP_EQ),
        COMPARE("equalto", OP_EQ),
        KIND("escaped", 0),
        {.name = "even", .fn = is_parity, .params = "", .variant = 0},
        {.name = "false", .fn = is_bool, .params = "", .variant = false},
        {.name = "filter", .fn = is_filter, .params = ""},
        KIND("float", BIT(TPL_FLOAT)),
        COMPARE("ge", OP_GE),
        COMPARE("greaterthan", OP_GT),
        COMPARE("gt", OP_GT),
        {.name = "in", .fn = is_compared, .params = "seq", .need = 1, .variant = OP_IN},
        KIND("integer", BIT(TPL_INT) | BIT(TPL_BIG)),
        KIND("iterable", SEQUENCE | BIT(TPL_VIEW) | BIT(TPL_GEN) | BIT(TPL_LOOP)),
        COMPARE("le", OP_LE),
        COMPARE("lessthan", OP_LT),
        {.name = "lower", .fn = rose_tpl_test_case, .params = "", .variant = TPL_LOWER},
        COMPARE("lt", OP_LT),
        KIND("mapping", BIT(TPL_DICT)),
        COMPARE("ne", OP_NE),
        KIND("none", BIT(TPL_NONE)),
        KIND("number", BIT(TPL_INT) | BIT(TPL_BIG) | BIT(TPL_FLOAT) | BIT(TPL_BOOL)),
        {.name = "odd", .fn = is_parity, .params = "", .variant = 1},
        {.name = "sameas", .fn = is_same, .params = "other", .need = 1},
        KIND("sequence", SEQUENCE),
        KIND("string", BIT(TPL_STR)),
        {.name = "test", .fn = is_test, .params = ""},
        {.name = "true", .fn = is_bool, .params = "", .variant = true},
        KIND("undefined", BIT(TPL_UNDEF)),
        {.name = "upper", .fn = rose_tpl_test_case, .params = "", .variant = TPL_UPPER},
        {0}};
    return rose_tpl_find_in(tests, name);
}
