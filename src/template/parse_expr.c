/* template/parse_expr.c - expressions, with the precedence of jinja2's parser (its unusual parts
 * are kept: ** is left-associative, a filter binds closer than an operator). One function a level,
 * from the loosest to the closest: conditional, or, and, not, comparison, + and -, ~, * and /, **,
 * signs, then what follows a value: calls, members, filters, tests.
 *
 * A filter or test that does not exist fails when it is reached, not when it is parsed, if it
 * stands in a condition: templates guard names of newer versions in this way. */
#include "template/template_internal.h"

tpl_node *rose_tpl_node(tpl_parser *p, tpl_type type, uint32_t line)
{
    tpl_node *n = rose_tpl_take(p->t, sizeof *n);
    n->type = (uint8_t)type;
    n->line = line;
    return n;
}

void rose_tpl_list_add(rose_tpl *t, tpl_list *l, tpl_node *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap;
        l->at = rose_tpl_grown(t, l->at, l->n, &cap, sizeof(tpl_node *));
        l->cap = (uint32_t)cap;
    }
    l->at[l->n++] = n;
}

bool rose_tpl_at_op(const tpl_parser *p, const char *op)
{
    return p->at->type == T_OP && strcmp(p->at->op, op) == 0;
}

bool rose_tpl_at_name(const tpl_parser *p, const char *name)
{
    return p->at->type == T_NAME && rose_tpl_text_is(p->at->text, name);
}

bool rose_tpl_skip_op(tpl_parser *p, const char *op)
{
    bool is = rose_tpl_at_op(p, op);
    p->at += is;
    return is;
}

bool rose_tpl_skip_name(tpl_parser *p, const char *name)
{
    bool is = rose_tpl_at_name(p, name);
    p->at += is;
    return is;
}

void rose_tpl_unexpected(tpl_parser *p, const char *wanted)
{
    static const char *const names[] = {"end of the template",
                                        "text",
                                        "'{{'",
                                        "'}}'",
                                        "'{%'",
                                        "'%}'",
                                        "a name",
                                        "a string",
                                        "a number",
                                        "a number"};
    p->t->line = p->at->line;
    if (p->at->type == T_NAME)
        rose_tpl_fail_with(p->t, ROSE_E_FORMAT, "unexpected '%.*s', expected %s",
                           (int)(p->at->text->n > 40 ? 40 : p->at->text->n), p->at->text->s,
                           wanted);
    if (p->at->type == T_OP)
        rose_tpl_fail_with(p->t, ROSE_E_FORMAT, "unexpected '%s', expected %s", p->at->op, wanted);
    rose_tpl_fail_with(p->t, ROSE_E_FORMAT, "unexpected %s, expected %s", names[p->at->type],
                       wanted);
}

void rose_tpl_expect_op(tpl_parser *p, const char *op)
{
    if (!rose_tpl_skip_op(p, op)) rose_tpl_unexpected(p, op);
}

const tpl_text *rose_tpl_expect_name(tpl_parser *p)
{
    if (p->at->type != T_NAME) rose_tpl_unexpected(p, "a name");
    return (p->at++)->text;
}

static tpl_node *parse_or(tpl_parser *p);
static tpl_node *parse_unary(tpl_parser *p, bool with_filter);

static tpl_node *pair(tpl_parser *p, tpl_type type, uint32_t line, tpl_node *a, tpl_node *b)
{
    tpl_node *n = rose_tpl_node(p, type, line);
    n->a = a;
    n->b = b;
    return n;
}

tpl_node *rose_tpl_parse_expr(tpl_parser *p)
{
    uint32_t line = p->at->line;
    const tpl_node *unknown = p->unknown;
    bool soft = p->soft;
    tpl_node *n;
    rose_tpl_enter(p->t);
    p->unknown = NULL;
    n = parse_or(p);
    if (rose_tpl_at_name(p, "if")) {
        /* All parts of a conditional expression fail late, also the part before `if`. */
        p->unknown = NULL;
        p->soft = true;
    }
    while (rose_tpl_skip_name(p, "if")) {
        tpl_node *cond = pair(p, N_COND, line, n, parse_or(p));
        if (rose_tpl_skip_name(p, "else")) cond->c = rose_tpl_parse_expr(p);
        n = cond;
    }
    p->soft = soft;
    if (unknown != NULL) p->unknown = unknown;
    p->t->depth--;
    return n;
}

static tpl_node *parse_not(tpl_parser *p);
static tpl_node *parse_and(tpl_parser *p)
{
    tpl_node *n = parse_not(p);
    while (rose_tpl_at_name(p, "and")) {
        uint32_t line = (p->at++)->line;
        n = pair(p, N_AND, line, n, parse_not(p));
    }
    return n;
}

static tpl_node *parse_or(tpl_parser *p)
{
    tpl_node *n = parse_and(p);
    while (rose_tpl_at_name(p, "or")) {
        uint32_t line = (p->at++)->line;
        n = pair(p, N_OR, line, n, parse_and(p));
    }
    return n;
}

/* One level of binary operators that associate to the left. */
typedef struct level {
    struct {
        const char *text;
        tpl_op op;
    } ops[4];
    tpl_node *(*next)(tpl_parser *p);
} level;

static tpl_node *parse_level(tpl_parser *p, const level *l)
{
    tpl_node *n = l->next(p);
    for (size_t i = 0; i < 4 && l->ops[i].text != NULL;) {
        uint32_t line = p->at->line;
        if (!rose_tpl_skip_op(p, l->ops[i].text)) {
            i++;
            continue;
        }
        n = pair(p, N_BINARY, line, n, NULL);
        n->op = (uint8_t)l->ops[i].op;
        n->b = l->next(p);
        i = 0;
    }
    return n;
}

static tpl_node *parse_operand(tpl_parser *p)
{
    return parse_unary(p, true);
}

static tpl_node *parse_pow(tpl_parser *p)
{
    static const level l = {{{"**", OP_POW}}, parse_operand};
    return parse_level(p, &l);
}

static tpl_node *parse_mul(tpl_parser *p)
{
    static const level l = {{{"*", OP_MUL}, {"/", OP_DIV}, {"//", OP_FLOORDIV}, {"%", OP_MOD}},
                            parse_pow};
    return parse_level(p, &l);
}

static tpl_node *parse_concat(tpl_parser *p)
{
    tpl_node *n = parse_mul(p), *all;
    if (!rose_tpl_at_op(p, "~")) return n;
    all = rose_tpl_node(p, N_CONCAT, p->at->line);
    rose_tpl_list_add(p->t, &all->list, n);
    while (rose_tpl_skip_op(p, "~"))
        rose_tpl_list_add(p->t, &all->list, parse_mul(p));
    return all;
}

static tpl_node *parse_sum(tpl_parser *p)
{
    static const level l = {{{"+", OP_ADD}, {"-", OP_SUB}}, parse_concat};
    return parse_level(p, &l);
}

static bool compare_op(tpl_parser *p, tpl_op *op)
{
    static const struct {
        const char *text;
        tpl_op op;
    } ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<", OP_LT},
               {"<=", OP_LE}, {">", OP_GT},  {">=", OP_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        *op = ops[i].op;
        if (rose_tpl_skip_op(p, ops[i].text)) return true;
    }
    *op = OP_IN;
    if (rose_tpl_skip_name(p, "in")) return true;
    *op = OP_NOTIN;
    if (!rose_tpl_at_name(p, "not") || p->at[1].type != T_NAME ||
        !rose_tpl_text_is(p->at[1].text, "in"))
        return false;
    p->at += 2;
    return true;
}

static tpl_node *parse_compare(tpl_parser *p)
{
    uint32_t line = p->at->line;
    tpl_node *first = parse_sum(p), *n = NULL;
    tpl_op op;
    while (compare_op(p, &op)) {
        tpl_node *operand = rose_tpl_node(p, N_OPERAND, p->at->line);
        if (n == NULL) n = pair(p, N_COMPARE, line, first, NULL);
        operand->op = (uint8_t)op;
        operand->a = parse_sum(p);
        rose_tpl_list_add(p->t, &n->list, operand);
    }
    return n == NULL ? first : n;
}

static tpl_node *parse_not(tpl_parser *p)
{
    uint32_t line = p->at->line;
    tpl_node *n;
    if (!rose_tpl_skip_name(p, "not")) return parse_compare(p);
    rose_tpl_enter(p->t);
    n = pair(p, N_NOT, line, parse_not(p), NULL);
    p->t->depth--;
    return n;
}

/* ---- primaries ---- */

static tpl_node *parse_strings(tpl_parser *p)
{
    tpl_node *n = rose_tpl_node(p, N_CONST, p->at->line);
    tpl_buf b = {.t = p->t};
    while (p->at->type == T_STRING)
        rose_tpl_put_text(&b, (p->at++)->text);
    n->value = rose_tpl_str(rose_tpl_buf_text(&b));
    return n;
}

static tpl_node *parse_name(tpl_parser *p)
{
    const tpl_text *x = p->at->text;
    tpl_node *n = rose_tpl_node(p, N_CONST, (p->at++)->line);
    if (rose_tpl_text_is(x, "true") || rose_tpl_text_is(x, "True")) {
        n->value = rose_tpl_bool(true);
    } else if (rose_tpl_text_is(x, "false") || rose_tpl_text_is(x, "False")) {
        n->value = rose_tpl_bool(false);
    } else if (rose_tpl_text_is(x, "none") || rose_tpl_text_is(x, "None")) {
        n->value = rose_tpl_none();
    } else {
        n->type = N_NAME;
        n->text = x;
        if (p->macro != NULL) {
            p->macro->varargs |= rose_tpl_text_is(x, "varargs");
            p->macro->kwargs |= rose_tpl_text_is(x, "kwargs");
            p->macro->caller |= rose_tpl_text_is(x, "caller");
        }
    }
    return n;
}

static tpl_node *parse_list(tpl_parser *p)
{
    tpl_node *n = rose_tpl_node(p, N_LIST, (p->at++)->line);
    while (!rose_tpl_at_op(p, "]")) {
        if (n->list.n > 0) rose_tpl_expect_op(p, ",");
        if (rose_tpl_at_op(p, "]")) break;
        rose_tpl_list_add(p->t, &n->list, rose_tpl_parse_expr(p));
    }
    p->at++;
    return n;
}

static tpl_node *parse_dict(tpl_parser *p)
{
    tpl_node *n = rose_tpl_node(p, N_DICT, (p->at++)->line);
    while (!rose_tpl_at_op(p, "}")) {
        if (n->list.n > 0) rose_tpl_expect_op(p, ",");
        if (rose_tpl_at_op(p, "}")) break;
        rose_tpl_list_add(p->t, &n->list, rose_tpl_parse_expr(p));
        rose_tpl_expect_op(p, ":");
        rose_tpl_list_add(p->t, &n->list, rose_tpl_parse_expr(p));
    }
    p->at++;
    return n;
}

static tpl_node *parse_primary(tpl_parser *p)
{
    tpl_node *n;
    if (p->at->type == T_NAME) return parse_name(p);
    if (p->at->type == T_STRING) return parse_strings(p);
    if (p->at->type == T_INT || p->at->type == T_FLOAT) {
        n = rose_tpl_node(p, N_CONST, p->at->line);
        n->value = (p->at++)->value;
        return n;
    }
    if (rose_tpl_at_op(p, "[")) return parse_list(p);
    if (rose_tpl_at_op(p, "{")) return parse_dict(p);
    if (!rose_tpl_skip_op(p, "(")) rose_tpl_unexpected(p, "an expression");
    n = rose_tpl_parse_tuple(p, true, NULL, true);
    rose_tpl_expect_op(p, ")");
    return n;
}

/* ---- subscripts, calls, filters and tests ---- */

static void parse_args(tpl_parser *p, tpl_node *n)
{
    rose_tpl_expect_op(p, "(");
    for (bool first = true; !rose_tpl_at_op(p, ")"); first = false) {
        if (!first) {
            rose_tpl_expect_op(p, ",");
            if (rose_tpl_at_op(p, ")")) break;
        }
        if (rose_tpl_at_op(p, "*") || rose_tpl_at_op(p, "**"))
            rose_tpl_fail_with(p->t, ROSE_E_UNSUPPORTED, "*args and **kwargs of a call");
        if (p->at->type == T_NAME && p->at[1].type == T_OP && strcmp(p->at[1].op, "=") == 0) {
            tpl_node *arg = rose_tpl_node(p, N_OPERAND, p->at->line);
            arg->text = p->at->text;
            p->at += 2;
            arg->a = rose_tpl_parse_expr(p);
            rose_tpl_list_add(p->t, &n->list2, arg);
        } else {
            if (n->list2.n > 0) rose_tpl_unexpected(p, "a keyword argument");
            rose_tpl_list_add(p->t, &n->list, rose_tpl_parse_expr(p));
        }
    }
    p->at++;
}

static tpl_node *parse_slice(tpl_parser *p, tpl_node *of, tpl_node *first)
{
    tpl_node *n = rose_tpl_node(p, N_SLICE, p->at->line);
    tpl_node *part[3] = {first, NULL, NULL};
    n->a = of;
    for (int i = 1; i < 3 && rose_tpl_skip_op(p, ":"); i++) {
        if (!rose_tpl_at_op(p, ":") && !rose_tpl_at_op(p, "]")) part[i] = rose_tpl_parse_expr(p);
    }
    for (int i = 0; i < 3; i++)
        rose_tpl_list_add(p->t, &n->list, part[i]);
    return n;
}

static tpl_node *parse_subscript(tpl_parser *p, tpl_node *of)
{
    uint32_t line = (p->at++)->line;
    tpl_node *n, *key = NULL;
    if (!rose_tpl_at_op(p, ":")) key = rose_tpl_parse_expr(p);
    if (rose_tpl_at_op(p, ":"))
        n = parse_slice(p, of, key);
    else
        n = pair(p, N_ITEM, line, of, key);
    if (rose_tpl_at_op(p, ","))
        rose_tpl_fail_with(p->t, ROSE_E_UNSUPPORTED, "a subscript of several values");
    rose_tpl_expect_op(p, "]");
    return n;
}

static tpl_node *parse_dot(tpl_parser *p, tpl_node *of)
{
    tpl_node *n = rose_tpl_node(p, N_ATTR, (p->at++)->line);
    n->a = of;
    if (p->at->type == T_INT) {
        n->type = N_ITEM;
        n->b = rose_tpl_node(p, N_CONST, p->at->line);
        n->b->value = (p->at++)->value;
    } else {
        n->text = rose_tpl_expect_name(p);
    }
    return n;
}

static tpl_node *parse_call(tpl_parser *p, tpl_node *of)
{
    tpl_node *n = pair(p, N_CALL, p->at->line, of, NULL);
    parse_args(p, n);
    return n;
}

static tpl_node *parse_postfix(tpl_parser *p, tpl_node *n)
{
    for (;;) {
        if (rose_tpl_at_op(p, "."))
            n = parse_dot(p, n);
        else if (rose_tpl_at_op(p, "["))
            n = parse_subscript(p, n);
        else if (rose_tpl_at_op(p, "("))
            n = parse_call(p, n);
        else
            return n;
    }
}

static const tpl_text *dotted_name(tpl_parser *p)
{
    const tpl_text *x = rose_tpl_expect_name(p);
    if (rose_tpl_at_op(p, ".")) rose_tpl_unexpected(p, "a filter or test of one word");
    return x;
}

/* The parser fails for it at the end, unless a condition decides whether it is reached. */
static void note_unknown(tpl_parser *p, const tpl_node *n)
{
    if (n->builtin == NULL && !p->soft && p->unknown == NULL) p->unknown = n;
}

tpl_node *rose_tpl_parse_filters(tpl_parser *p, tpl_node *node, bool inline_start)
{
    while (inline_start || rose_tpl_skip_op(p, "|")) {
        tpl_node *n = pair(p, N_FILTER, p->at->line, node, NULL);
        inline_start = false;
        n->text = dotted_name(p);
        n->builtin = rose_tpl_filter_find(n->text);
        if (rose_tpl_at_op(p, "(")) parse_args(p, n);
        note_unknown(p, n);
        node = n;
    }
    return node;
}

static bool at_test_argument(const tpl_parser *p)
{
    if (p->at->type == T_NAME)
        return !rose_tpl_at_name(p, "else") && !rose_tpl_at_name(p, "or") &&
               !rose_tpl_at_name(p, "and");
    return p->at->type == T_STRING || p->at->type == T_INT || p->at->type == T_FLOAT ||
           rose_tpl_at_op(p, "[") || rose_tpl_at_op(p, "{");
}

static tpl_node *parse_test(tpl_parser *p, tpl_node *of)
{
    uint32_t line = (p->at++)->line;
    bool negated = rose_tpl_skip_name(p, "not");
    tpl_node *n = pair(p, N_TEST, line, of, NULL);
    n->text = dotted_name(p);
    n->builtin = rose_tpl_test_find(n->text);
    if (rose_tpl_at_op(p, "(")) {
        parse_args(p, n);
    } else if (at_test_argument(p)) {
        if (rose_tpl_at_name(p, "is")) rose_tpl_unexpected(p, "one test, not a chain of them");
        rose_tpl_list_add(p->t, &n->list, parse_postfix(p, parse_primary(p)));
    }
    note_unknown(p, n);
    return negated ? pair(p, N_NOT, line, n, NULL) : n;
}

static tpl_node *parse_unary(tpl_parser *p, bool with_filter)
{
    uint32_t line = p->at->line;
    tpl_node *n;
    rose_tpl_enter(p->t);
    if (rose_tpl_skip_op(p, "-"))
        n = pair(p, N_NEG, line, parse_unary(p, false), NULL);
    else if (rose_tpl_skip_op(p, "+"))
        n = pair(p, N_POS, line, parse_unary(p, false), NULL);
    else
        n = parse_primary(p);
    n = parse_postfix(p, n);
    while (with_filter) {
        if (rose_tpl_at_op(p, "|"))
            n = rose_tpl_parse_filters(p, n, false);
        else if (rose_tpl_at_name(p, "is"))
            n = parse_test(p, n);
        else if (rose_tpl_at_op(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    p->t->depth--;
    return n;
}

/* ---- tuples and targets ---- */

static bool at_tuple_end(const tpl_parser *p, const char *end)
{
    return p->at->type == T_VAR_END || p->at->type == T_BLOCK_END || rose_tpl_at_op(p, ")") ||
           (end != NULL && rose_tpl_at_name(p, end));
}

tpl_node *rose_tpl_parse_tuple(tpl_parser *p, bool with_cond, const char *end, bool parens)
{
    tpl_node *all = rose_tpl_node(p, N_TUPLE, p->at->line);
    bool is_tuple = false;
    while (!at_tuple_end(p, end)) {
        rose_tpl_list_add(p->t, &all->list, with_cond ? rose_tpl_parse_expr(p) : parse_or(p));
        if (!rose_tpl_skip_op(p, ",")) break;
        is_tuple = true;
    }
    if (!is_tuple && all->list.n > 0) return all->list.at[0];
    if (!is_tuple && !parens) rose_tpl_unexpected(p, "an expression");
    return all;
}

static void check_target(tpl_parser *p, const tpl_node *n)
{
    if (n->type == N_TUPLE || n->type == N_LIST) {
        for (uint32_t i = 0; i < n->list.n; i++)
            check_target(p, n->list.at[i]);
    } else if (n->type != N_NAME && n->type != N_NSREF) {
        p->t->line = n->line;
        rose_tpl_fail_with(p->t, ROSE_E_FORMAT, "can't assign to this expression");
    }
}

static tpl_node *parse_target_part(tpl_parser *p, bool with_space)
{
    tpl_node *n = parse_primary(p);
    if (!with_space || n->type != N_NAME || !rose_tpl_skip_op(p, ".")) return n;
    n->type = N_NSREF;
    n->text2 = rose_tpl_expect_name(p);
    return n;
}

tpl_node *rose_tpl_parse_target(tpl_parser *p, const char *end, bool with_space)
{
    tpl_node *all = rose_tpl_node(p, N_TUPLE, p->at->line);
    bool is_tuple = false;
    while (!at_tuple_end(p, end)) {
        rose_tpl_list_add(p->t, &all->list, parse_target_part(p, with_space));
        if (!rose_tpl_skip_op(p, ",")) break;
        is_tuple = true;
    }
    if (!is_tuple && all->list.n == 0) rose_tpl_unexpected(p, "a name");
    if (!is_tuple) all = all->list.at[0];
    check_target(p, all);
    return all;
}
