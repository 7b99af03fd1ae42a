/* template/compare.c - equality, order, membership and sorting, as Python defines them: 1 == 1.0 ==
 * true, values of other kinds are unequal but have no order, sorting is stable. */
#include "template/template_internal.h"

static bool seq_equal(rose_tpl *t, const tpl_seq *a, const tpl_seq *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        if (!rose_tpl_equal(t, a->items[i], b->items[i])) return false;
    }
    return true;
}

static bool dict_equal(rose_tpl *t, const tpl_dict *a, const tpl_dict *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const tpl_value *v = rose_tpl_dict_get(t, b, a->pairs[i].key);
        if (v == NULL || !rose_tpl_equal(t, a->pairs[i].value, *v)) return false;
    }
    return true;
}

static bool number_equal(rose_tpl *t, tpl_value a, tpl_value b)
{
    if (a.kind == TPL_FLOAT || b.kind == TPL_FLOAT)
        return rose_tpl_as_double(a) == rose_tpl_as_double(b);
    if (a.kind == TPL_BIG || b.kind == TPL_BIG)
        return a.kind == b.kind && rose_tpl_text_eq(t, a.u.str, b.u.str);
    return (a.kind == TPL_BOOL ? a.u.b : a.u.i) == (b.kind == TPL_BOOL ? b.u.b : b.u.i);
}

static bool same_kind_equal(rose_tpl *t, tpl_value a, tpl_value b)
{
    switch (a.kind) {
    case TPL_UNDEF:
    case TPL_NONE:
        return true;
    case TPL_STR:
        return rose_tpl_text_eq(t, a.u.str, b.u.str);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
        return seq_equal(t, a.u.seq, b.u.seq);
    case TPL_DICT:
        return dict_equal(t, a.u.dict, b.u.dict);
    case TPL_LOOP:
        return a.u.loop == b.u.loop;
    case TPL_FUNC:
        return a.u.fn == b.u.fn ||
               (a.u.fn->builtin != NULL && a.u.fn->builtin == b.u.fn->builtin &&
                a.u.fn->self.kind == b.u.fn->self.kind && a.u.fn->self.u.str == b.u.fn->self.u.str);
    default:
        return a.u.seq == b.u.seq;
    }
}

bool rose_tpl_equal(rose_tpl *t, tpl_value a, tpl_value b)
{
    bool is;
    rose_tpl_work(t, WORK_A_CHAR);
    if (rose_tpl_is_number(a) && rose_tpl_is_number(b)) return number_equal(t, a, b);
    if (a.kind != b.kind) return false;
    rose_tpl_enter(t);
    rose_tpl_step(t, 0);
    is = same_kind_equal(t, a, b);
    t->depth--;
    return is;
}

static int text_order(rose_tpl *t, const tpl_text *a, const tpl_text *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    rose_tpl_read(t, n);
    int c = n == 0 ? 0 : memcmp(a->s, b->s, n);
    return c != 0 ? c : (a->n > b->n) - (a->n < b->n);
}

/* Two integers beyond 64 bits: by sign, by number of digits, then by the digits. */
static int big_order(rose_tpl *t, const tpl_text *a, const tpl_text *b)
{
    const bool minus = a->s[0] == '-';
    if (minus != (b->s[0] == '-')) return minus ? -1 : 1;
    const int c = a->n != b->n ? (a->n > b->n) - (a->n < b->n) : text_order(t, a, b);
    return minus ? -c : c;
}

static int seq_order(rose_tpl *t, const tpl_seq *a, const tpl_seq *b, const char *op)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        if (!rose_tpl_equal(t, a->items[i], b->items[i]))
            return rose_tpl_order(t, a->items[i], b->items[i], op);
    }
    return (a->n > b->n) - (a->n < b->n);
}

int rose_tpl_order(rose_tpl *t, tpl_value a, tpl_value b, const char *op)
{
    int c;
    rose_tpl_want_defined(t, a);
    rose_tpl_want_defined(t, b);
    rose_tpl_enter(t);
    rose_tpl_step(t, 0);
    if (rose_tpl_is_number(a) && rose_tpl_is_number(b)) {
        if (a.kind == TPL_INT && b.kind == TPL_INT) {
            c = (a.u.i > b.u.i) - (a.u.i < b.u.i);
        } else if (a.kind == TPL_BIG && b.kind == TPL_BIG) {
            c = big_order(t, a.u.str, b.u.str);
            c = (c > 0) - (c < 0);
        } else {
            double x = rose_tpl_as_double(a), y = rose_tpl_as_double(b);
            c = x != x || y != y ? 2 : (x > y) - (x < y);
        }
    } else if (a.kind == TPL_STR && b.kind == TPL_STR) {
        c = text_order(t, a.u.str, b.u.str);
        c = (c > 0) - (c < 0);
    } else if (a.kind == b.kind && (a.kind == TPL_LIST || a.kind == TPL_TUPLE)) {
        c = seq_order(t, a.u.seq, b.u.seq, op);
    } else {
        rose_tpl_fail(t, "'%s' is not supported between %s and %s", op, rose_tpl_kind_name(a),
                      rose_tpl_kind_name(b));
    }
    t->depth--;
    return c;
}

bool rose_tpl_contains(rose_tpl *t, tpl_value box, tpl_value v)
{
    size_t n;
    const tpl_value *items;
    if (box.kind == TPL_STR) {
        rose_tpl_want_defined(t, v);
        if (v.kind != TPL_STR)
            rose_tpl_fail(t, "'in <string>' requires a string, not %s", rose_tpl_kind_name(v));
        return rose_tpl_find(t, box.u.str, 0, v.u.str) != SIZE_MAX;
    }
    if (box.kind == TPL_DICT) return rose_tpl_dict_get(t, box.u.dict, v) != NULL;
    items = rose_tpl_items(t, box, &n);
    for (size_t i = 0; i < n; i++) {
        if (rose_tpl_equal(t, items[i], v)) return true;
    }
    return false;
}

bool rose_tpl_compare(rose_tpl *t, tpl_op op, tpl_value a, tpl_value b)
{
    int c;
    switch (op) {
    case OP_EQ:
        return rose_tpl_equal(t, a, b);
    case OP_NE:
        return !rose_tpl_equal(t, a, b);
    case OP_IN:
        return rose_tpl_contains(t, b, a);
    case OP_NOTIN:
        return !rose_tpl_contains(t, b, a);
    case OP_LT:
        return rose_tpl_order(t, a, b, "<") == -1;
    case OP_LE:
        c = rose_tpl_order(t, a, b, "<=");
        return c == -1 || c == 0;
    case OP_GT:
        return rose_tpl_order(t, a, b, ">") == 1;
    case OP_GE:
        c = rose_tpl_order(t, a, b, ">=");
        return c == 1 || c == 0;
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
    case OP_DIV:
    case OP_FLOORDIV:
    case OP_MOD:
    case OP_POW:
        break;
    }
    return false;
}

void rose_tpl_hashable(rose_tpl *t, tpl_value v)
{
    rose_tpl_step(t, 0);
    if (v.kind == TPL_TUPLE) {
        rose_tpl_enter(t);
        for (size_t i = 0; i < v.u.seq->n; i++)
            rose_tpl_hashable(t, v.u.seq->items[i]);
        t->depth--;
    } else if (v.kind == TPL_LIST || v.kind == TPL_DICT) {
        rose_tpl_fail(t, "a %s cannot be a key", rose_tpl_kind_name(v));
    }
}

/* ---- merge sort: stable, also in reverse, as Python's ---- */

static void merge(rose_tpl *t, const tpl_value *keys, size_t *order, size_t *spare, size_t n,
                  bool reverse)
{
    size_t half = n / 2, i = 0, k = half, at = 0;
    while (i < half && k < n) {
        int c = reverse ? rose_tpl_order(t, keys[order[i]], keys[order[k]], "<")
                        : rose_tpl_order(t, keys[order[k]], keys[order[i]], "<");
        spare[at++] = c == -1 ? order[k++] : order[i++];
    }
    while (i < half)
        spare[at++] = order[i++];
    while (k < n)
        spare[at++] = order[k++];
    memcpy(order, spare, n * sizeof *order);
}

static void sort(rose_tpl *t, const tpl_value *keys, size_t *order, size_t *spare, size_t n,
                 bool reverse)
{
    if (n < 2) return;
    sort(t, keys, order, spare, n / 2, reverse);
    sort(t, keys, order + n / 2, spare, n - n / 2, reverse);
    merge(t, keys, order, spare, n, reverse);
}

void rose_tpl_sort(rose_tpl *t, const tpl_value *keys, size_t *order, size_t n, bool reverse)
{
    size_t *spare = rose_tpl_array(t, n, sizeof *spare);
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    sort(t, keys, order, spare, n, reverse);
}
