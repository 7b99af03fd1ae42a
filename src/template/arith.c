/* template/arith.c - operators on values. Integers are of 64 bits: what would be larger in Python
 * fails here. */
#include "template/template_internal.h"

#include <math.h>

static _Noreturn void bad(rose_tpl *t, const char *op, tpl_value a, tpl_value b)
{
    rose_tpl_want_defined(t, a);
    rose_tpl_want_defined(t, b);
    rose_tpl_fail(t, "'%s' is not supported between %s and %s", op, rose_tpl_kind_name(a),
                  rose_tpl_kind_name(b));
}

static _Noreturn void too_large(rose_tpl *t)
{
    rose_tpl_fail(t, "an integer does not fit 64 bits");
}

int64_t rose_tpl_as_int(rose_tpl *t, tpl_value v)
{
    if (v.kind == TPL_BIG) too_large(t);
    return v.kind == TPL_BOOL ? v.u.b : v.u.i;
}

static int64_t floor_div(rose_tpl *t, int64_t a, int64_t b)
{
    if (a == INT64_MIN && b == -1) too_large(t);
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static int64_t int_pow(rose_tpl *t, int64_t a, int64_t n)
{
    int64_t out = 1;
    for (; n > 0; n >>= 1) {
        if ((n & 1) && __builtin_mul_overflow(out, a, &out)) too_large(t);
        if (n > 1 && __builtin_mul_overflow(a, a, &a)) too_large(t);
    }
    return out;
}

static tpl_value int_op(rose_tpl *t, tpl_op op, int64_t a, int64_t b, uint8_t mark)
{
    int64_t out = 0;
    bool over = false;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        rose_tpl_fail(t, "division by zero");
    if (op == OP_DIV) return rose_tpl_float((double)a / (double)b, mark);
    if (op == OP_POW && b < 0) {
        if (a == 0) rose_tpl_fail(t, "division by zero");
        return rose_tpl_float(pow((double)a, (double)b), mark);
    }
    if (op == OP_ADD) over = __builtin_add_overflow(a, b, &out);
    if (op == OP_SUB) over = __builtin_sub_overflow(a, b, &out);
    if (op == OP_MUL) over = __builtin_mul_overflow(a, b, &out);
    if (op == OP_FLOORDIV) out = floor_div(t, a, b);
    if (op == OP_MOD) out = b == -1 ? 0 : a - floor_div(t, a, b) * b;
    if (op == OP_POW) out = int_pow(t, a, b);
    if (over) too_large(t);
    return rose_tpl_int(out, mark);
}

static double float_mod(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0) return copysign(0.0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

/* Python's float_divmod: the quotient of what fmod leaves, rounded to the nearest integer. */
static double float_floor_div(double a, double b)
{
    double m = fmod(a, b), q = (a - m) / b, f;
    if (m != 0 && (m < 0) != (b < 0)) q -= 1;
    if (q == 0) return copysign(0.0, a / b);
    f = floor(q);
    return q - f > 0.5 ? f + 1 : f;
}

static tpl_value float_op(rose_tpl *t, tpl_op op, double a, double b, uint8_t mark)
{
    double out = 0;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        rose_tpl_fail(t, "division by zero");
    if (op == OP_ADD) out = a + b;
    if (op == OP_SUB) out = a - b;
    if (op == OP_MUL) out = a * b;
    if (op == OP_DIV) out = a / b;
    if (op == OP_FLOORDIV) out = float_floor_div(a, b);
    if (op == OP_MOD) out = float_mod(a, b);
    if (op == OP_POW) {
        if (a == 0 && b < 0) rose_tpl_fail(t, "division by zero");
        out = pow(a, b);
        if (a < 0 && isfinite(a) && b != floor(b)) rose_tpl_fail(t, "the power is not real");
        if (isinf(out) && isfinite(a) && isfinite(b)) rose_tpl_fail(t, "the power is too large");
    }
    return rose_tpl_float(out, mark);
}

static tpl_value joined(rose_tpl *t, tpl_value a, tpl_value b)
{
    size_t n = a.u.seq->n + b.u.seq->n;
    tpl_value out = rose_tpl_seq_new(t, (tpl_kind)a.kind, n, a.mark | b.mark);
    tpl_value *to = out.u.seq->items;
    if (a.u.seq->n > 0) memcpy(to, a.u.seq->items, a.u.seq->n * sizeof *to);
    if (b.u.seq->n > 0) memcpy(to + a.u.seq->n, b.u.seq->items, b.u.seq->n * sizeof *to);
    return out;
}

static tpl_value add(rose_tpl *t, tpl_value a, tpl_value b)
{
    tpl_buf buf = {.t = t};
    if (a.kind != b.kind) bad(t, "+", a, b);
    if (a.kind == TPL_LIST || a.kind == TPL_TUPLE) return joined(t, a, b);
    if (a.kind != TPL_STR) bad(t, "+", a, b);
    if (a.u.str->n == 0) return b;
    if (b.u.str->n == 0) return a;
    rose_tpl_put_text(&buf, a.u.str);
    rose_tpl_put_text(&buf, b.u.str);
    return rose_tpl_str(rose_tpl_buf_text(&buf));
}

static tpl_value repeat(rose_tpl *t, tpl_value a, int64_t times)
{
    tpl_buf buf = {.t = t};
    size_t count = times < 0 ? 0 : (size_t)times, n;
    if (a.kind == TPL_STR) {
        for (size_t i = 0; i < count && a.u.str->n > 0; i++)
            rose_tpl_put_text(&buf, a.u.str);
        return rose_tpl_str(rose_tpl_buf_text(&buf));
    }
    if (__builtin_mul_overflow(a.u.seq->n, count, &n)) rose_tpl_fail(t, "a list is too long");
    tpl_value out = rose_tpl_seq_new(t, (tpl_kind)a.kind, n, a.mark);
    for (size_t i = 0; i < n; i++)
        out.u.seq->items[i] = a.u.seq->items[i % a.u.seq->n];
    return out;
}

static bool repeats(tpl_value a, tpl_value b)
{
    return (a.kind == TPL_STR || a.kind == TPL_LIST || a.kind == TPL_TUPLE) &&
           (b.kind == TPL_INT || b.kind == TPL_BOOL);
}

tpl_value rose_tpl_binary(rose_tpl *t, tpl_op op, tpl_value a, tpl_value b)
{
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (rose_tpl_is_number(a) && rose_tpl_is_number(b)) {
        uint8_t mark = a.mark | b.mark;
        if (a.kind == TPL_FLOAT || b.kind == TPL_FLOAT)
            return float_op(t, op, rose_tpl_as_double(a), rose_tpl_as_double(b), mark);
        return int_op(t, op, rose_tpl_as_int(t, a), rose_tpl_as_int(t, b), mark);
    }
    if (op == OP_ADD) return add(t, a, b);
    if (op == OP_MUL && repeats(a, b)) return repeat(t, a, rose_tpl_as_int(t, b));
    if (op == OP_MUL && repeats(b, a)) return repeat(t, b, rose_tpl_as_int(t, a));
    if (op == OP_MOD && a.kind == TPL_STR) return rose_tpl_percent(t, a.u.str, b);
    bad(t, names[op - OP_ADD], a, b);
}

tpl_value rose_tpl_negate(rose_tpl *t, tpl_value v)
{
    rose_tpl_want_defined(t, v);
    if (!rose_tpl_is_number(v))
        rose_tpl_fail(t, "'-' is not supported for %s", rose_tpl_kind_name(v));
    if (v.kind == TPL_FLOAT) return rose_tpl_float(-v.u.f, v.mark);
    if (v.kind == TPL_INT && v.u.i == INT64_MIN) too_large(t);
    return rose_tpl_int(-rose_tpl_as_int(t, v), v.mark);
}
