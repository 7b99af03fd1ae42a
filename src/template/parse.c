/* template/parse.c - statements, and the compile of a whole template. Tags of Jinja that read other
 * templates are refused: a chat template is alone. */
#include <stdlib.h>

#include "template/template_internal.h"

/* Ends of a block, up to three names. */
typedef struct ends {
    const char *name[3];
} ends;

static void parse_statement(tpl_parser *p, tpl_list *out);

static bool at_end_tag(const tpl_parser *p, const ends *e)
{
    for (size_t i = 0; i < 3 && e != NULL && e->name[i] != NULL; i++) {
        if (rose_tpl_at_name(p, e->name[i])) return true;
    }
    return false;
}

static void expect_tag_end(tpl_parser *p)
{
    if (p->at->type != T_BLOCK_END) rose_tpl_unexpected(p, "'%}'");
    p->at++;
}

/* Stops after the '{%' of an end tag, at its name. */
static void parse_until(tpl_parser *p, tpl_list *out, const ends *e)
{
    while (p->at->type != T_EOF) {
        const tpl_token *k = p->at++;
        tpl_node *n;
        if (k->type == T_BLOCK_BEGIN) {
            if (at_end_tag(p, e)) return;
            parse_statement(p, out);
            expect_tag_end(p);
            continue;
        }
        n = rose_tpl_node(p, k->type == T_DATA ? N_DATA : N_OUTPUT, k->line);
        n->text = k->text;
        if (k->type == T_VAR_BEGIN) {
            n->a = rose_tpl_parse_tuple(p, true, NULL, false);
            if (p->at->type != T_VAR_END) rose_tpl_unexpected(p, "'}}'");
            p->at++;
        }
        rose_tpl_list_add(p->t, out, n);
    }
    if (e != NULL) rose_tpl_unexpected(p, e->name[0]);
}

static void parse_block(tpl_parser *p, tpl_list *out, const ends *e)
{
    rose_tpl_skip_op(p, ":");
    expect_tag_end(p);
    rose_tpl_enter(p->t);
    parse_until(p, out, e);
    p->t->depth--;
}

/* A block whose end tag is not followed by anything. */
static void parse_closed(tpl_parser *p, tpl_list *out, const char *end)
{
    parse_block(p, out, &(ends){{end}});
    p->at++;
}

static void parse_for(tpl_parser *p, tpl_node *n)
{
    bool soft = p->soft;
    n->a = rose_tpl_parse_target(p, "in", false);
    if (!rose_tpl_skip_name(p, "in")) rose_tpl_unexpected(p, "'in'");
    n->b = rose_tpl_parse_tuple(p, false, "recursive", false);
    if (rose_tpl_skip_name(p, "if")) n->c = rose_tpl_parse_expr(p);
    if (rose_tpl_at_name(p, "recursive"))
        rose_tpl_fail_with(p->t, ROSE_E_UNSUPPORTED, "recursive loops");
    p->soft = false;
    p->loops++;
    parse_block(p, &n->list, &(ends){{"endfor", "else"}});
    p->loops--;
    if (rose_tpl_skip_name(p, "else"))
        parse_closed(p, &n->list2, "endfor");
    else
        p->at++;
    p->soft = soft;
}

static void parse_if(tpl_parser *p, tpl_node *n)
{
    static const ends e = {{"elif", "else", "endif"}};
    bool soft = p->soft;
    p->soft = true;
    for (;;) {
        tpl_node *next;
        n->a = rose_tpl_parse_tuple(p, false, NULL, false);
        parse_block(p, &n->list, &e);
        if (!rose_tpl_skip_name(p, "elif")) break;
        next = rose_tpl_node(p, N_IF, p->at->line);
        n->b = next; /* what an else holds, without another level */
        n = next;
    }
    if (rose_tpl_skip_name(p, "else"))
        parse_closed(p, &n->list2, "endif");
    else
        p->at++;
    p->soft = soft;
}

static void parse_set(tpl_parser *p, tpl_node *n)
{
    n->a = rose_tpl_parse_target(p, NULL, true);
    if (rose_tpl_skip_op(p, "=")) {
        n->b = rose_tpl_parse_tuple(p, true, NULL, false);
        return;
    }
    n->type = N_SETBLOCK;
    n->b = rose_tpl_parse_filters(p, NULL, false);
    parse_closed(p, &n->list, "endset");
}

static void parse_signature(tpl_parser *p, tpl_node *n)
{
    rose_tpl_expect_op(p, "(");
    while (!rose_tpl_at_op(p, ")")) {
        tpl_node *name;
        if (n->list2.n > 0) rose_tpl_expect_op(p, ",");
        name = rose_tpl_node(p, N_NAME, p->at->line);
        name->text = rose_tpl_expect_name(p);
        rose_tpl_list_add(p->t, &n->list2, name);
        if (rose_tpl_skip_op(p, "="))
            rose_tpl_list_add(p->t, &n->list3, rose_tpl_parse_expr(p));
        else if (n->list3.n > 0)
            rose_tpl_unexpected(p, "a default value, as the parameter before has one");
    }
    p->at++;
}

static void parse_macro_body(tpl_parser *p, tpl_node *n, const char *end)
{
    tpl_node *macro = p->macro;
    uint32_t loops = p->loops;
    bool soft = p->soft;
    p->macro = n;
    p->loops = 0;
    p->soft = false;
    if (rose_tpl_at_op(p, "(")) parse_signature(p, n);
    if (end != NULL) parse_closed(p, &n->list, end);
    p->macro = macro;
    p->loops = loops;
    p->soft = soft;
}

static void parse_macro(tpl_parser *p, tpl_node *n)
{
    n->text = rose_tpl_expect_name(p);
    if (!rose_tpl_at_op(p, "(")) rose_tpl_unexpected(p, "(");
    parse_macro_body(p, n, "endmacro");
}

static void parse_call_block(tpl_parser *p, tpl_node *n)
{
    n->b = rose_tpl_node(p, N_MACRO, n->line);
    n->b->text = rose_tpl_text(p->t, "caller", 6, TPL_TEMPLATE);
    parse_macro_body(p, n->b, NULL);
    n->a = rose_tpl_parse_expr(p);
    if (n->a->type != N_CALL) rose_tpl_unexpected(p, "a call of a macro");
    uint32_t loops = p->loops;
    p->loops = 0;
    parse_closed(p, &n->b->list, "endcall");
    p->loops = loops;
}

static void parse_filter_block(tpl_parser *p, tpl_node *n)
{
    n->b = rose_tpl_parse_filters(p, NULL, true);
    parse_closed(p, &n->list, "endfilter");
}

static void parse_with(tpl_parser *p, tpl_node *n)
{
    while (p->at->type != T_BLOCK_END) {
        if (n->list2.n > 0) rose_tpl_expect_op(p, ",");
        rose_tpl_list_add(p->t, &n->list2, rose_tpl_parse_target(p, NULL, false));
        rose_tpl_expect_op(p, "=");
        rose_tpl_list_add(p->t, &n->list2, rose_tpl_parse_expr(p));
    }
    parse_closed(p, &n->list, "endwith");
}

static void parse_generation(tpl_parser *p, tpl_node *n)
{
    uint32_t loops = p->loops;
    p->loops = 0;
    parse_closed(p, &n->list, "endgeneration");
    p->loops = loops;
}

static void parse_jump(tpl_parser *p, tpl_node *n)
{
    (void)n; /* its type says all */
    if (p->loops == 0)
        rose_tpl_fail_with(p->t, ROSE_E_FORMAT, "break or continue outside of a loop");
}

static void parse_print(tpl_parser *p, tpl_node *n)
{
    n->a = rose_tpl_parse_expr(p);
}

static void refuse(tpl_parser *p, const char *name)
{
    static const char *const known[] = {"include", "import", "from",
                                        "extends", "block",  "autoescape"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i]) == 0)
            rose_tpl_fail_with(p->t, ROSE_E_UNSUPPORTED, "the tag '%s' of Jinja", name);
    }
    rose_tpl_fail_with(p->t, ROSE_E_FORMAT, "unknown tag '%s'", name);
}

static void parse_statement(tpl_parser *p, tpl_list *out)
{
    static const struct {
        const char *name;
        void (*parse)(tpl_parser *p, tpl_node *n);
        tpl_type type;
    } tags[] = {{"for", parse_for, N_FOR},
                {"if", parse_if, N_IF},
                {"set", parse_set, N_SET},
                {"macro", parse_macro, N_MACRO},
                {"call", parse_call_block, N_CALLBLOCK},
                {"filter", parse_filter_block, N_FILTERBLOCK},
                {"with", parse_with, N_WITH},
                {"generation", parse_generation, N_BLOCK},
                {"break", parse_jump, N_BREAK},
                {"continue", parse_jump, N_CONTINUE},
                {"print", parse_print, N_OUTPUT}};
    uint32_t line = p->at->line;
    const tpl_text *x = rose_tpl_expect_name(p);
    tpl_node *n = rose_tpl_node(p, N_DATA, line);
    char name[24];
    p->t->line = line;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (!rose_tpl_text_is(x, tags[i].name)) continue;
        n->type = (uint8_t)tags[i].type;
        tags[i].parse(p, n);
        rose_tpl_list_add(p->t, out, n);
        return;
    }
    memset(name, 0, sizeof name);
    memcpy(name, x->s, x->n < sizeof name ? x->n : sizeof name - 1);
    refuse(p, name);
}

void rose_tpl_parse_body(tpl_parser *p, tpl_list *out)
{
    parse_until(p, out, NULL);
    if (p->unknown == NULL) return;
    p->t->line = p->unknown->line;
    rose_tpl_fail_with(
        p->t, ROSE_E_FORMAT, "no %s named '%.*s'", p->unknown->type == N_FILTER ? "filter" : "test",
        (int)(p->unknown->text->n > 60 ? 60 : p->unknown->text->n), p->unknown->text->s);
}

/* ---- compile ---- */

enum { MAX_TEMPLATE = 1 << 20, COMPILE_DEPTH = 400, COMPILE_STEPS = 500000, STEPS_A_BYTE = 8 };

static rose_template *compile(rose_tpl *t, const char *text, size_t n)
{
    rose_template *out;
    tpl_parser p = {.t = t};
    char *copy;
    if (n > MAX_TEMPLATE)
        rose_tpl_fail_with(t, ROSE_E_UNSUPPORTED, "is longer than %d KiB", MAX_TEMPLATE >> 10);
    out = rose_tpl_take(t, sizeof *out);
    copy = rose_tpl_take(t, n + 1);
    memcpy(copy, text, n);
    out->text = rose_tpl_text(t, copy, n, TPL_TEMPLATE);
    p.at = rose_tpl_lex(t, text, n);
    rose_tpl_parse_body(&p, &out->body);
    rose_tpl_scan(t, &out->body, &out->own);
    out->chunks = t->chunks;
    return out;
}

rose_status rose_template_compile(rose_template **out, const char *text, size_t n, rose_err *err)
{
    rose_tpl t = {.err = err,
                  .max_memory = (size_t)1 << 29,
                  .max_output = (size_t)1 << 24,
                  .max_work = (COMPILE_STEPS + (uint64_t)n * STEPS_A_BYTE) * WORK_A_STEP,
                  .max_depth = COMPILE_DEPTH};
    *out = NULL;
    if (setjmp(t.trap) != 0) {
        rose_tpl_chunks_free(t.chunks);
        return t.st;
    }
    *out = compile(&t, text, n);
    return ROSE_OK;
}

void rose_template_free(rose_template *t)
{
    if (t != NULL) rose_tpl_chunks_free(t->chunks);
}
