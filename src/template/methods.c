/* template/methods.c - methods of strings. methods_box.c has those of other values. */
#include "template/template_internal.h"

static bool given(tpl_value v)
{
    return v.kind != TPL_MISSING && v.kind != TPL_NONE;
}

static const tpl_text *want_text(rose_tpl *t, tpl_value v)
{
    rose_tpl_want_defined(t, v);
    if (v.kind != TPL_STR) rose_tpl_fail(t, "a string is needed, not %s", rose_tpl_kind_name(v));
    return v.u.str;
}

/* ---- strip ---- */

static tpl_value strip_sides(rose_tpl *t, tpl_value v, tpl_value chars, int sides)
{
    return rose_tpl_str(
        rose_tpl_strip(t, v.u.str, given(chars) ? want_text(t, chars) : NULL, sides));
}

static tpl_value strip(const tpl_in *in)
{
    return strip_sides(in->t, in->v, in->arg[0], TPL_LEFT | TPL_RIGHT);
}

static tpl_value lstrip(const tpl_in *in)
{
    return strip_sides(in->t, in->v, in->arg[0], TPL_LEFT);
}

static tpl_value rstrip(const tpl_in *in)
{
    return strip_sides(in->t, in->v, in->arg[0], TPL_RIGHT);
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
    int64_t max =
        in->arg[1].kind == TPL_MISSING ? -1 : rose_tpl_index(in->t, in->arg[1], "maxsplit");
    if (given(in->arg[0]))
        split_by(&p, want_text(in->t, in->arg[0]), max);
    else
        split_spaces(&p, max);
    return list_of(&p);
}

static tpl_value rsplit(const tpl_in *in)
{
    parts p = {.t = in->t, .x = in->v.u.str};
    int64_t max =
        in->arg[1].kind == TPL_MISSING ? -1 : rose_tpl_index(in->t, in->arg[1], "maxsplit");
    if (given(in->arg[0]))
        rsplit_by(&p, want_text(in->t, in->arg[0]), max);
    else
        rsplit_spaces(&p, max);
    turn(&p);
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

static tpl_value three(parts *p, size_t from, size_t to, bool right)
{
    if (from == SIZE_MAX) from = to = right ? 0 : p->x->n;
    add_part(p, 0, from);
    add_part(p, from, to);
    add_part(p, to, p->x->n);
    return rose_tpl_seq_of(p->t, TPL_TUPLE, p->items, p->n, p->x->mark);
}

static size_t find_last(rose_tpl *t, const tpl_text *x, const tpl_text *what)
{
    for (size_t at = x->n + 1; at-- > 0;) {
        if (matches(t, x, at, what)) return at;
    }
    return SIZE_MAX;
}

static tpl_value partition(const tpl_in *in)
{
    parts p = {.t = in->t, .x = in->v.u.str};
    const tpl_text *sep = want_text(in->t, in->arg[0]);
    if (sep->n == 0) rose_tpl_fail(in->t, "an empty separator");
    size_t at = rose_tpl_find(in->t, p.x, 0, sep);
    return three(&p, at, at + sep->n, false);
}

static tpl_value rpartition(const tpl_in *in)
{
    parts p = {.t = in->t, .x = in->v.u.str};
    const tpl_text *sep = want_text(in->t, in->arg[0]);
    if (sep->n == 0) rose_tpl_fail(in->t, "an empty separator");
    size_t at = find_last(in->t, p.x, sep);
    return three(&p, at, at + sep->n, true);
}

/* ---- searching ---- */

static bool has_at(rose_tpl *t, const tpl_text *x, const tpl_text *part, bool end)
{
    rose_tpl_step(t, 0);
    if (part->n > x->n) return false;
    rose_tpl_read(t, part->n);
    return memcmp(x->s + (end ? x->n - part->n : 0), part->s, part->n) == 0;
}

static tpl_value has_end(rose_tpl *t, tpl_value v, tpl_value what, bool end)
{
    if (what.kind != TPL_TUPLE) return rose_tpl_bool(has_at(t, v.u.str, want_text(t, what), end));
    for (size_t i = 0; i < what.u.seq->n; i++) {
        if (has_at(t, v.u.str, want_text(t, what.u.seq->items[i]), end)) return rose_tpl_bool(true);
    }
    return rose_tpl_bool(false);
}

static tpl_value startswith(const tpl_in *in)
{
    return has_end(in->t, in->v, in->arg[0], false);
}

static tpl_value endswith(const tpl_in *in)
{
    return has_end(in->t, in->v, in->arg[0], true);
}

static tpl_value position(rose_tpl *t, const tpl_text *x, size_t at)
{
    tpl_text before = {.s = x->s, .n = at == SIZE_MAX ? 0 : at};
    return rose_tpl_int(at == SIZE_MAX ? -1 : (int64_t)rose_tpl_chars(t, &before), TPL_TEMPLATE);
}

static tpl_value find(const tpl_in *in)
{
    return position(in->t, in->v.u.str,
                    rose_tpl_find(in->t, in->v.u.str, 0, want_text(in->t, in->arg[0])));
}

static tpl_value rfind(const tpl_in *in)
{
    return position(in->t, in->v.u.str,
                    find_last(in->t, in->v.u.str, want_text(in->t, in->arg[0])));
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

static tpl_value upper(const tpl_in *in)
{
    return rose_tpl_str(rose_tpl_upper(in->t, in->v.u.str));
}

static tpl_value lower(const tpl_in *in)
{
    return rose_tpl_str(rose_tpl_lower(in->t, in->v.u.str));
}

static tpl_value title(const tpl_in *in)
{
    return rose_tpl_str(rose_tpl_title(in->t, in->v.u.str));
}

static tpl_value capitalize(const tpl_in *in)
{
    return rose_tpl_str(rose_tpl_capitalize(in->t, in->v.u.str));
}

static tpl_value removeprefix(const tpl_in *in)
{
    const tpl_text *x = in->v.u.str, *part = want_text(in->t, in->arg[0]);
    return rose_tpl_str(has_at(in->t, x, part, false) ? rose_tpl_part(in->t, x, part->n, x->n) : x);
}

static tpl_value removesuffix(const tpl_in *in)
{
    const tpl_text *x = in->v.u.str, *part = want_text(in->t, in->arg[0]);
    return rose_tpl_str(has_at(in->t, x, part, true) ? rose_tpl_part(in->t, x, 0, x->n - part->n)
                                                     : x);
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

static tpl_value justify(rose_tpl *t, tpl_value v, const tpl_value *arg, bool left)
{
    int64_t pad = rose_tpl_index(t, arg[0], "width") - (int64_t)rose_tpl_chars(t, v.u.str);
    const tpl_text *fill =
        arg[1].kind == TPL_MISSING ? rose_tpl_text(t, " ", 1, TPL_TEMPLATE) : want_text(t, arg[1]);
    tpl_buf b = {.t = t};
    if (rose_tpl_chars(t, fill) != 1) rose_tpl_fail(t, "the fill must be one character");
    if (left) rose_tpl_put_text(&b, v.u.str);
    for (; pad > 0; pad--)
        rose_tpl_put_text(&b, fill);
    if (!left) rose_tpl_put_text(&b, v.u.str);
    return rose_tpl_str(rose_tpl_buf_text(&b));
}

static tpl_value ljust(const tpl_in *in)
{
    return justify(in->t, in->v, in->arg, true);
}

static tpl_value rjust(const tpl_in *in)
{
    return justify(in->t, in->v, in->arg, false);
}

/* ---- what a string consists of ---- */

static bool all_ascii(const tpl_text *x, const char *ranges)
{
    for (size_t i = 0; i < x->n; i++) {
        const char *r = ranges;
        while (*r != '\0' && !(x->s[i] >= r[0] && x->s[i] <= r[1]))
            r += 2;
        if (*r == '\0') return false;
    }
    return x->n > 0;
}

/* Letters and digits outside of ASCII would need tables that no template has asked for. */
static tpl_value made_of(rose_tpl *t, tpl_value v, const char *ranges)
{
    rose_tpl_visit(t, v.u.str->n);
    for (size_t i = 0; i < v.u.str->n; i++) {
        if ((uint8_t)v.u.str->s[i] >= 0x80)
            rose_tpl_fail(t, "isdigit, isalpha and isalnum take ASCII only");
    }
    return rose_tpl_bool(all_ascii(v.u.str, ranges));
}

static tpl_value str_isdigit(const tpl_in *in)
{
    return made_of(in->t, in->v, "09");
}

static tpl_value str_isalpha(const tpl_in *in)
{
    return made_of(in->t, in->v, "azAZ");
}

static tpl_value str_isalnum(const tpl_in *in)
{
    return made_of(in->t, in->v, "azAZ09");
}

static tpl_value str_isupper(const tpl_in *in)
{
    return rose_tpl_bool(rose_tpl_all_case(in->t, in->v.u.str, true));
}

static tpl_value str_islower(const tpl_in *in)
{
    return rose_tpl_bool(rose_tpl_all_case(in->t, in->v.u.str, false));
}

static tpl_value str_isspace(const tpl_in *in)
{
    rose_tpl_visit(in->t, in->v.u.str->n);
    return rose_tpl_bool(in->v.u.str->n > 0 && skip_spaces(in->v.u.str, 0, true) == in->v.u.str->n);
}

#define STR(n, f, p, k)                                                                            \
    {                                                                                              \
        .name = n, .fn = f, .params = p, .need = k, .kind = TPL_STR, .pos_only = 1                 \
    }
static const tpl_builtin methods[] = {
    STR("strip", strip, "chars", 0),
    STR("lstrip", lstrip, "chars", 0),
    STR("rstrip", rstrip, "chars", 0),
    STR("upper", upper, "", 0),
    STR("lower", lower, "", 0),
    STR("title", title, "", 0),
    STR("capitalize", capitalize, "", 0),
    STR("startswith", startswith, "prefix", 1),
    STR("endswith", endswith, "suffix", 1),
    STR("replace", replace, "old new count", 2),
    STR("find", find, "sub", 1),
    STR("rfind", rfind, "sub", 1),
    STR("index", index_of, "sub", 1),
    STR("count", count, "sub", 1),
    STR("partition", partition, "sep", 1),
    STR("rpartition", rpartition, "sep", 1),
    STR("removeprefix", removeprefix, "prefix", 1),
    STR("removesuffix", removesuffix, "suffix", 1),
    STR("join", join, "iterable", 1),
    STR("zfill", zfill, "width", 1),
    STR("ljust", ljust, "width fillchar", 1),
    STR("rjust", rjust, "width fillchar", 1),
    STR("isdigit", str_isdigit, "", 0),
    STR("isalpha", str_isalpha, "", 0),
    STR("isalnum", str_isalnum, "", 0),
    STR("isupper", str_isupper, "", 0),
    STR("islower", str_islower, "", 0),
    STR("isspace", str_isspace, "", 0),
    {.name = "split", .fn = split, .params = "sep maxsplit", .kind = TPL_STR},
    {.name = "rsplit", .fn = rsplit, .params = "sep maxsplit", .kind = TPL_STR},
    {.name = "splitlines", .fn = splitlines, .params = "keepends", .kind = TPL_STR},
    {.name = "format", .fn = rose_tpl_method_format, .kind = TPL_STR},
    {0}};

const tpl_builtin *rose_tpl_method_text(const tpl_text *name)
{
    return rose_tpl_find_in(methods, name);
}
