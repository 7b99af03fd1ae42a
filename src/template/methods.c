/* template/methods.c - methods of strings. methods_box.c has those of other values. */
#include "template/template_internal.h"

static const tpl_text *want_text(rose_tpl *t, tpl_value v)
{
    rose_tpl_want_defined(t, v);
    if (v.kind != TPL_STR) rose_tpl_fail(t, "a string is needed, not %s", rose_tpl_kind_name(v));
    return v.u.str;
}

/* ---- strip ---- */

/* variant: the sides. */
static tpl_value strip(const tpl_in *in)
{
    const tpl_text *chars = rose_tpl_given(in->arg[0]) ? want_text(in->t, in->arg[0]) : NULL;
    return rose_tpl_str(rose_tpl_strip(in->t, in->v.u.str, chars, (int)in->variant));
}

/* ---- split ---- */

typedef struct parts {
    rose_tpl *t;
    const tpl_text *x;
    tpl_value *items;
    size_t n, cap;
} parts;

static void add_part(parts *p, size_t from, size_t to)
{
    if (p->n == p->cap) p->items = rose_tpl_grown(p->t, p->items, p->n, &p->cap, sizeof *p->items);
    p->items[p->n++] = rose_tpl_str(rose_tpl_part(p->t, p->x, from, to));
}

static size_t skip_spaces(const tpl_text *x, size_t at, bool spaces)
{
    while (at < x->n && rose_tpl_is_space(rose_tpl_char(x, at)) == spaces)
        at += rose_tpl_char_len(x, at);
    return at;
}

static void split_spaces(parts *p, int64_t max)
{
    rose_tpl_visit(p->t, p->x->n);
    size_t at = skip_spaces(p->x, 0, true);
    while (at < p->x->n) {
        size_t end = skip_spaces(p->x, at, false);
        if (max-- == 0) end = p->x->n;
        add_part(p, at, end);
        at = skip_spaces(p->x, end, true);
    }
}

static void split_by(parts *p, const tpl_text *sep, int64_t max)
{
    size_t from = 0;
    if (sep->n == 0) rose_tpl_fail(p->t, "an empty separator");
    while (max-- != 0) {
        size_t at = rose_tpl_find(p->t, p->x, from, sep);
        if (at == SIZE_MAX) break;
        add_part(p, from, at);
        from = at + sep->n;
    }
    add_part(p, from, p->x->n);
}

static bool matches(rose_tpl *t, const tpl_text *x, size_t at, const tpl_text *what)
{
    rose_tpl_visit(t, 1);
    if (what->n == 0) return true;
    if (x->n - at < what->n || x->s[at] != what->s[0]) return false;
    rose_tpl_read(t, what->n);
    return memcmp(x->s + at, what->s, what->n) == 0;
}

/* Positions of the last matches, found from the right. */
static void rsplit_by(parts *p, const tpl_text *sep, int64_t max)
{
    size_t end = p->x->n;
    if (sep->n == 0) rose_tpl_fail(p->t, "an empty separator");
    for (size_t at = end; max != 0 && at >= sep->n;) {
        size_t from = at - sep->n;
        if (!matches(p->t, p->x, from, sep)) {
            at--;
            continue;
        }
        add_part(p, at, end);
        end = at = from;
        max--;
    }
    add_part(p, 0, end);
}

static size_t space_before(const tpl_text *x, size_t at, bool spaces)
{
    while (at > 0) {
        size_t p = at - 1;
        while (rose_utf8_is_inner(x->s[p]))
            p--;
        if (rose_tpl_is_space(rose_tpl_char(x, p)) != spaces) break;
        at = p;
    }
    return at;
}

static void rsplit_spaces(parts *p, int64_t max)
{
    rose_tpl_visit(p->t, p->x->n);
    size_t end = space_before(p->x, p->x->n, true);
    while (end > 0) {
        size_t from = max-- == 0 ? 0 : space_before(p->x, end, false);
        add_part(p, from, end);
        end = space_before(p->x, from, true);
    }
}

static void turn(parts *p)
{
    for (size_t i = 0; i < p->n / 2; i++) {
        tpl_value v = p->items[i];
        p->items[i] = p->items[p->n - 1 - i];
        p->items[p->n - 1 - i] = v;
    }
}

static tpl_value list_of(parts *p)
{
    return rose_tpl_seq_of(p->t, TPL_LIST, p->items, p->n, p->x->mark);
}

static tpl_value split(const tpl_in *in)
{
    parts p = {.t = in->t, .x = in->v.u.str};
    const bool right = in->variant == TPL_RIGHT;
    int64_t max =
        in->arg[1].kind == TPL_MISSING ? -1 : rose_tpl_index(in->t, in->arg[1], "maxsplit");
    if (rose_tpl_given(in->arg[0]))
        (right ? rsplit_by : split_by)(&p, want_text(in->t, in->arg[0]), max);
    else
        (right ? rsplit_spaces : split_spaces)(&p, max);
    if (right) turn(&p);
    return list_of(&p);
}

static bool is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

static tpl_value splitlines(const tpl_in *in)
{
    parts p = {.t = in->t, .x = in->v.u.str};
    const tpl_text *x = in->v.u.str;
    bool keep = rose_tpl_truth(in->arg[0]);
    size_t from = 0;
    rose_tpl_visit(in->t, x->n);
    for (size_t i = 0; i < x->n;) {
        size_t next = i + rose_tpl_char_len(x, i);
        if (is_line_end(rose_tpl_char(x, i))) {
            if (x->s[i] == '\r' && next < x->n && x->s[next] == '\n') next++;
            add_part(&p, from, keep ? next : i);
            from = next;
        }
        i = next;
    }
    if (from < x->n) add_part(&p, from, x->n);
    return list_of(&p);
}

static size_t find_last(rose_tpl *t, const tpl_text *x, const tpl_text *what)
{
    for (size_t at = x->n + 1; at-- > 0;) {
        if (matches(t, x, at, what)) return at;
    }
    return SIZE_MAX;
}

static size_t find_from(const tpl_in *in, const tpl_text *what)
{
    return in->variant == TPL_RIGHT ? find_last(in->t, in->v.u.str, what)
                                    : rose_tpl_find(in->t, in->v.u.str, 0, what);
}

static tpl_value partition(const tpl_in *in)
{
    parts p = {.t = in->t, .x = in->v.u.str};
    const tpl_text *sep = want_text(in->t, in->arg[0]);
    if (sep->n == 0) rose_tpl_fail(in->t, "an empty separator");
    size_t from = find_from(in, sep), to = from + sep->n;
    if (from == SIZE_MAX) from = to = in->variant == TPL_RIGHT ? 0 : p.x->n;
    add_part(&p, 0, from);
    add_part(&p, from, to);
    add_part(&p, to, p.x->n);
    return rose_tpl_seq_of(in->t, TPL_TUPLE, p.items, p.n, p.x->mark);
}

/* ---- searching ---- */

static bool has_at(rose_tpl *t, const tpl_text *x, const tpl_text *part, bool end)
{
    rose_tpl_step(t, 0);
    if (part->n > x->n) return false;
    rose_tpl_read(t, part->n);
    return memcmp(x->s + (end ? x->n - part->n : 0), part->s, part->n) == 0;
}

/* startswith and endswith */
static tpl_value has_end(const tpl_in *in)
{
    const tpl_value what = in->arg[0];
    const bool end = in->variant == TPL_RIGHT;
    if (what.kind != TPL_TUPLE)
        return rose_tpl_bool(has_at(in->t, in->v.u.str, want_text(in->t, what), end));
    for (size_t i = 0; i < what.u.seq->n; i++) {
        if (has_at(in->t, in->v.u.str, want_text(in->t, what.u.seq->items[i]), end))
            return rose_tpl_bool(true);
    }
    return rose_tpl_bool(false);
}

static tpl_value find(const tpl_in *in)
{
    const size_t at = find_from(in, want_text(in->t, in->arg[0]));
    const tpl_text before = {.s = in->v.u.str->s, .n = at == SIZE_MAX ? 0 : at};
    return rose_tpl_int(at == SIZE_MAX ? -1 : (int64_t)rose_tpl_chars(in->t, &before),
                        TPL_TEMPLATE);
}

static tpl_value index_of(const tpl_in *in)
{
    tpl_value at = find(in);
    if (at.u.i < 0) rose_tpl_fail(in->t, "substring not found");
    return at;
}

static tpl_value count(const tpl_in *in)
{
    const tpl_text *what = want_text(in->t, in->arg[0]);
    int64_t n = 0;
    if (what->n == 0)
        return rose_tpl_int((int64_t)rose_tpl_chars(in->t, in->v.u.str) + 1, TPL_TEMPLATE);
    for (size_t at = 0; (at = rose_tpl_find(in->t, in->v.u.str, at, what)) != SIZE_MAX;
         at += what->n)
        n++;
    return rose_tpl_int(n, TPL_TEMPLATE);
}

/* ---- changing ---- */

static tpl_value replace(const tpl_in *in)
{
    const tpl_text *x = in->v.u.str, *old = want_text(in->t, in->arg[0]),
                   *new = want_text(in->t, in->arg[1]);
    int64_t max = in->arg[2].kind == TPL_MISSING ? -1 : rose_tpl_index(in->t, in->arg[2], "count");
    tpl_buf b = {.t = in->t};
    size_t from = 0;
    while (max != 0) {
        /* An empty string is found before each character and at the end. */
        size_t at = rose_tpl_find(in->t, x, from, old);
        if (at == SIZE_MAX) break;
        max--;
        rose_tpl_put_part(&b, x, from, at);
        rose_tpl_put_text(&b, new);
        from = at + old->n;
        if (old->n > 0) continue;
        if (from == x->n) return rose_tpl_str(rose_tpl_buf_text(&b));
        rose_tpl_put_part(&b, x, from, from + rose_tpl_char_len(x, from));
        from += rose_tpl_char_len(x, from);
    }
    rose_tpl_put_part(&b, x, from, x->n);
    return rose_tpl_str(x->n == 0 && b.n == 0 ? x : rose_tpl_buf_text(&b));
}

/* removeprefix and removesuffix */
static tpl_value remove_end(const tpl_in *in)
{
    const tpl_text *x = in->v.u.str, *part = want_text(in->t, in->arg[0]);
    const bool end = in->variant == TPL_RIGHT;
    if (!has_at(in->t, x, part, end)) return in->v;
    return rose_tpl_str(rose_tpl_part(in->t, x, end ? 0 : part->n, end ? x->n - part->n : x->n));
}

static tpl_value join(const tpl_in *in)
{
    size_t n;
    const tpl_value *all = rose_tpl_items(in->t, in->arg[0], &n);
    tpl_buf b = {.t = in->t};
    for (size_t i = 0; i < n; i++) {
        if (i > 0) rose_tpl_put_text(&b, in->v.u.str);
        rose_tpl_put_text(&b, want_text(in->t, all[i]));
    }
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

static tpl_value zfill(const tpl_in *in)
{
    int64_t pad =
        rose_tpl_index(in->t, in->arg[0], "width") - (int64_t)rose_tpl_chars(in->t, in->v.u.str);
    size_t sign = in->v.u.str->n > 0 && (in->v.u.str->s[0] == '-' || in->v.u.str->s[0] == '+');
    tpl_buf b = {.t = in->t};
    rose_tpl_put_part(&b, in->v.u.str, 0, sign);
    for (; pad > 0; pad--)
        rose_tpl_puts(&b, "0", TPL_TEMPLATE);
    rose_tpl_put_part(&b, in->v.u.str, sign, in->v.u.str->n);
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

/* ljust and rjust; variant: the side of the text */
static tpl_value justify(const tpl_in *in)
{
    rose_tpl *t = in->t;
    const tpl_text *x = in->v.u.str;
    const tpl_value *arg = in->arg;
    int64_t pad = rose_tpl_index(t, arg[0], "width") - (int64_t)rose_tpl_chars(t, x);
    const tpl_text *fill =
        arg[1].kind == TPL_MISSING ? rose_tpl_text(t, " ", 1, TPL_TEMPLATE) : want_text(t, arg[1]);
    tpl_buf b = {.t = t};
    if (rose_tpl_chars(t, fill) != 1) rose_tpl_fail(t, "the fill must be one character");
    if (in->variant == TPL_LEFT) rose_tpl_put_text(&b, x);
    for (; pad > 0; pad--)
        rose_tpl_put_text(&b, fill);
    if (in->variant == TPL_RIGHT) rose_tpl_put_text(&b, x);
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

/* ---- what a string consists of ---- */

enum { DIGITS = 1, LETTERS = 2 };

static unsigned class_of(char c)
{
    if (c >= '0' && c <= '9') return DIGITS;
    return ((c | 32) >= 'a' && (c | 32) <= 'z') ? LETTERS : 0;
}

/* isdigit, isalpha and isalnum; variant: DIGITS, LETTERS or both. Letters and digits outside of
 * ASCII would need tables that no template has asked for. */
static tpl_value made_of(const tpl_in *in)
{
    const tpl_text *x = in->v.u.str;
    bool all = x->n > 0;
    rose_tpl_visit(in->t, x->n);
    for (size_t i = 0; i < x->n; i++) {
        if ((uint8_t)x->s[i] >= 0x80)
            rose_tpl_fail(in->t, "isdigit, isalpha and isalnum take ASCII only");
        all = all && (class_of(x->s[i]) & in->variant) != 0;
    }
    return rose_tpl_bool(all);
}

static tpl_value str_isspace(const tpl_in *in)
{
    rose_tpl_visit(in->t, in->v.u.str->n);
    return rose_tpl_bool(in->v.u.str->n > 0 && skip_spaces(in->v.u.str, 0, true) == in->v.u.str->n);
}

#define STR(n, f, p, k, v)                                                                         \
    {                                                                                              \
        .name = n, .fn = f, .params = p, .need = k, .kind = TPL_STR, .pos_only = 1, .variant = v   \
    }
static const tpl_builtin methods[] = {
    STR("strip", strip, "chars", 0, TPL_LEFT | TPL_RIGHT),
    STR("lstrip", strip, "chars", 0, TPL_LEFT),
    STR("rstrip", strip, "chars", 0, TPL_RIGHT),
    STR("upper", rose_tpl_filter_case, "", 0, TPL_UPPER),
    STR("lower", rose_tpl_filter_case, "", 0, TPL_LOWER),
    STR("title", rose_tpl_filter_case, "", 0, TPL_TITLE),
    STR("capitalize", rose_tpl_filter_case, "", 0, TPL_CAPITALIZE),
    STR("startswith", has_end, "prefix", 1, TPL_LEFT),
    STR("endswith", has_end, "suffix", 1, TPL_RIGHT),
    STR("replace", replace, "old new count", 2, 0),
    STR("find", find, "sub", 1, TPL_LEFT),
    STR("rfind", find, "sub", 1, TPL_RIGHT),
    STR("index", index_of, "sub", 1, TPL_LEFT),
    STR("count", count, "sub", 1, 0),
    STR("partition", partition, "sep", 1, TPL_LEFT),
    STR("rpartition", partition, "sep", 1, TPL_RIGHT),
    STR("removeprefix", remove_end, "prefix", 1, TPL_LEFT),
    STR("removesuffix", remove_end, "suffix", 1, TPL_RIGHT),
    STR("join", join, "iterable", 1, 0),
    STR("zfill", zfill, "width", 1, 0),
    STR("ljust", justify, "width fillchar", 1, TPL_LEFT),
    STR("rjust", justify, "width fillchar", 1, TPL_RIGHT),
    STR("isdigit", made_of, "", 0, DIGITS),
    STR("isalpha", made_of, "", 0, LETTERS),
    STR("isalnum", made_of, "", 0, DIGITS | LETTERS),
    STR("isupper", rose_tpl_test_case, "", 0, TPL_UPPER),
    STR("islower", rose_tpl_test_case, "", 0, TPL_LOWER),
    STR("isspace", str_isspace, "", 0, 0),
    {.name = "split", .fn = split, .params = "sep maxsplit", .kind = TPL_STR, .variant = TPL_LEFT},
    {.name = "rsplit",
     .fn = split,
     .params = "sep maxsplit",
     .kind = TPL_STR,
     .variant = TPL_RIGHT},
    {.name = "splitlines", .fn = splitlines, .params = "keepends", .kind = TPL_STR},
    {.name = "format", .fn = rose_tpl_method_format, .kind = TPL_STR},
    {0}};

const tpl_builtin *rose_tpl_method_text(const tpl_text *name)
{
    return rose_tpl_find_in(methods, name);
}
