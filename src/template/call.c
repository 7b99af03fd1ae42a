/* template/call.c - calls of built-in functions and of macros. */
#include "template/template_internal.h"

enum { MAX_PARAMS = 6 };

/* The index of `name` among the words of `params`; -1: it is none of them. */
static int param_index(const char *params, const tpl_text *name)
{
    int i = 0;
    for (const char *p = params; *p != '\0'; i++) {
        size_t n = strcspn(p, " ");
        if (n == name->n && memcmp(p, name->s, n) == 0) return i;
        p += n;
        p += *p == ' ';
    }
    return -1;
}

static size_t param_count(const char *params)
{
    size_t n = *params != '\0';
    for (; *params != '\0'; params++)
        n += *params == ' ';
    return n;
}

static void bind(rose_tpl *t, const tpl_builtin *b, const tpl_args *args, tpl_value *out)
{
    size_t max = param_count(b->params);
    if (args->n > max)
        rose_tpl_fail(t, "%s takes at most %zu arguments, not %zu", b->name, max, args->n);
    for (size_t i = 0; i < args->n; i++)
        out[i] = args->pos[i];
    for (size_t i = 0; i < args->n_named; i++) {
        const tpl_text *name = args->named[i].key.u.str;
        int at = b->pos_only ? -1 : param_index(b->params, name);
        if (at < 0 || out[at].kind != TPL_MISSING)
            rose_tpl_fail(t, "%s got an argument '%.*s' that it does not take, or took before",
                          b->name, (int)(name->n > 60 ? 60 : name->n), name->s);
        out[at] = args->named[i].value;
    }
    for (size_t i = 0; i < b->need; i++) {
        if (out[i].kind == TPL_MISSING) rose_tpl_fail(t, "%s needs %u arguments", b->name, b->need);
    }
}

tpl_value rose_tpl_call_builtin(rose_tpl *t, const tpl_builtin *b, tpl_value self,
                                const tpl_args *args)
{
    tpl_value arg[MAX_PARAMS] = {{.kind = TPL_MISSING}};
    rose_tpl_step(t, 4);
    if (b->params != NULL) bind(t, b, args, arg);
    return b->fn(&(tpl_in){t, self, arg, args, b->variant});
}

/* ---- macros ---- */

static bool take_named(rose_tpl *t, const tpl_args *args, const tpl_text *name, bool *used,
                       tpl_value *out)
{
    rose_tpl_step(t, args->n_named / 8);
    for (size_t i = 0; i < args->n_named; i++) {
        if (!rose_tpl_text_eq(t, args->named[i].key.u.str, name)) continue;
        *out = args->named[i].value;
        used[i] = true;
        return true;
    }
    return false;
}

/* varargs, kwargs and caller: what the parameters do not take, if the body reads these names. */
static void set_rest(rose_tpl *t, const tpl_node *m, const tpl_args *args, const bool *used)
{
    size_t n_params = m->list2.n;
    tpl_value rest = rose_tpl_dict_new(t, TPL_TEMPLATE);
    bool has_caller = false;
    for (size_t i = 0; i < args->n_named; i++) {
        const tpl_text *name = args->named[i].key.u.str;
        if (used[i]) continue;
        if (m->caller && rose_tpl_text_is(name, "caller")) {
            rose_tpl_scope_set(t, t->scope, name, args->named[i].value);
            has_caller = true;
        } else if (m->kwargs) {
            rose_tpl_dict_put(t, rest.u.dict, args->named[i].key, args->named[i].value);
        } else {
            rose_tpl_fail(t, "a macro takes no argument '%.*s'", (int)(name->n > 60 ? 60 : name->n),
                          name->s);
        }
    }
    if (args->n > n_params && !m->varargs)
        rose_tpl_fail(t, "a macro takes at most %zu arguments, not %zu", n_params, args->n);
    if (m->kwargs) rose_tpl_scope_set(t, t->scope, rose_tpl_cstr(t, "kwargs").u.str, rest);
    if (m->caller && !has_caller)
        rose_tpl_scope_set(t, t->scope, rose_tpl_cstr(t, "caller").u.str,
                           rose_tpl_undef(t, "no caller is defined"));
    if (!m->varargs) return;
    size_t n = args->n > n_params ? args->n - n_params : 0;
    tpl_value more = rose_tpl_seq_new(t, TPL_TUPLE, n, TPL_TEMPLATE);
    for (size_t i = 0; i < n; i++)
        more.u.seq->items[i] = args->pos[n_params + i];
    rose_tpl_scope_set(t, t->scope, rose_tpl_cstr(t, "varargs").u.str, more);
}

static void set_params(rose_tpl *t, const tpl_node *m, const tpl_args *args)
{
    bool *used = rose_tpl_array(t, args->n_named, sizeof *used);
    size_t first_default = m->list2.n - m->list3.n;
    for (uint32_t i = 0; i < m->list2.n; i++) {
        const tpl_text *name = m->list2.at[i]->text;
        tpl_value v = rose_tpl_undef(t, "parameter '%.*s' was not provided",
                                     (int)(name->n > 60 ? 60 : name->n), name->s);
        bool named = take_named(t, args, name, used, &v);
        if (named && i < args->n) rose_tpl_fail(t, "a macro gets one parameter twice");
        if (i < args->n)
            v = args->pos[i];
        else if (!named && i >= first_default)
            v = rose_tpl_eval(t, m->list3.at[i - first_default]);
        rose_tpl_scope_set(t, t->scope, name, v);
    }
    set_rest(t, m, args, used);
}

tpl_value rose_tpl_call_macro(rose_tpl *t, const tpl_func *f, const tpl_args *args)
{
    tpl_buf out = {.t = t}, *out_before = t->out;
    tpl_scope *scope_before = t->scope;
    uint32_t line = t->line, loops = t->loop_depth;
    rose_tpl_enter(t);
    t->scope = rose_tpl_scope_new(t, f->scope);
    t->out = &out;
    t->loop_depth = 0;
    set_params(t, f->macro, args);
    rose_tpl_exec(t, &f->macro->list);
    t->scope = scope_before;
    t->out = out_before;
    t->line = line;
    t->loop_depth = loops;
    t->depth--;
    return rose_tpl_str(rose_tpl_buf_text(&out));
}

tpl_value rose_tpl_call(rose_tpl *t, tpl_value f, const tpl_args *args)
{
    rose_tpl_want_defined(t, f);
    if (f.kind != TPL_FUNC) rose_tpl_fail(t, "%s cannot be called", rose_tpl_kind_name(f));
    if (f.u.fn->builtin != NULL)
        return rose_tpl_call_builtin(t, f.u.fn->builtin, f.u.fn->self, args);
    return rose_tpl_call_macro(t, f.u.fn, args);
}
