/* base/opts_foreign.c - see opts_foreign.h. Pure text work; prints only errors, warnings and the
 * table of --help-foreign. */
#include "base/opts_foreign.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/opts_internal.h"

enum { PAGE_TOKENS = 16 };

int rose_foreign_no_memory(void)
{
    fprintf(stderr, "roseinfer: out of memory\n");
    return 1;
}

/* ---- what was taken ---- */

const char *rose_foreign_keep(rose_foreign_taken *t, const char *fmt, ...)
{
    char *text;
    va_list ap;
    if (t->n_texts == t->cap_texts) {
        const size_t cap = t->cap_texts > 0 ? 2 * t->cap_texts : 16;
        char **texts = realloc(t->texts, cap * sizeof *texts);
        if (texts == NULL) return NULL;
        t->texts = texts;
        t->cap_texts = cap;
    }
    va_start(ap, fmt);
    const int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) return NULL;
    t->texts[t->n_texts++] = text;
    return text;
}

bool rose_foreign_add(rose_foreign_taken *t, const char *from, const char *name, const char *value)
{
    if (t->n == t->cap) {
        const size_t cap = t->cap > 0 ? 2 * t->cap : 16;
        rose_foreign_pair *pairs = realloc(t->pairs, cap * sizeof *pairs);
        if (pairs == NULL) return false;
        t->pairs = pairs;
        t->cap = cap;
    }
    t->pairs[t->n++] = (rose_foreign_pair){from, name, value};
    return true;
}

void rose_foreign_free(rose_foreign_taken *t)
{
    for (size_t i = 0; i < t->n_texts; i++)
        free(t->texts[i]);
    free(t->texts);
    free(t->pairs);
    *t = (rose_foreign_taken){0};
}

/* True if the pair says what was typed, or is no option. */
static bool is_plain(const rose_foreign_pair *p)
{
    const size_t n = strlen(p->name);
    if (p->name[0] == '@') return true;
    if (strncmp(p->from, "--", 2) != 0 || strncmp(p->from + 2, p->name, n) != 0) return false;
    const char *rest = p->from + 2 + n;
    return p->value == NULL ? *rest == '\0' : *rest != '\0' && strcmp(rest + 1, p->value) == 0;
}

rose_status rose_foreign_text(const rose_foreign_taken *t, rose_buf *out)
{
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < t->n && st == ROSE_OK; i++) {
        const rose_foreign_pair *p = &t->pairs[i];
        if (is_plain(p)) continue;
        const bool model = strcmp(p->name, "MODEL") == 0;
        st = rose_buf_addf(out, "%s%s is %s%s%s%s", out->len > 0 ? ", " : "", p->from,
                           model ? "" : "--", p->name, p->value != NULL ? " " : "",
                           p->value != NULL ? p->value : "");
    }
    return st;
}

/* ---- rows ---- */

/* True if typed[0..n) is the name, with '_' for '-' after the first two bytes. */
static bool same_name(const char *typed, size_t n, const char *name, size_t len)
{
    const bool prefix = len > 0 && name[len - 1] == '*';
    if (prefix ? n < --len : n != len) return false;
    for (size_t i = 0; i < len; i++) {
        if (typed[i] != name[i] && !(typed[i] == '_' && name[i] == '-')) return false;
    }
    return true;
}

/* Finds the first row with this name; key: the name comes from a file, without dashes. NULL: none.
 */
static const rose_foreign *find(const rose_foreign_set *set, const char *typed, size_t n, bool key)
{
    for (size_t i = 0; i < set->n; i++) {
        const char *p = set->rows[i].names;
        for (size_t len; p != NULL && *p != '\0'; p += len, p += *p == ' ') {
            len = strcspn(p, " ");
            const size_t skip = key ? 2 : 0;
            if (key && strncmp(p, "--", 2) != 0) continue;
            if (same_name(typed, n, p + skip, len - skip)) return &set->rows[i];
        }
    }
    return NULL;
}

/* The row after r, if it has the same names; else NULL. */
static const rose_foreign *next_row(const rose_foreign_set *set, const rose_foreign *r)
{
    return r + 1 < set->rows + set->n && r[1].names == NULL ? r + 1 : NULL;
}

static bool number(const char *text, size_t n, double *out)
{
    char copy[32], *end;
    if (n == 0 || n >= sizeof copy) return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    *out = strtod(copy, &end);
    return *end == '\0' && isfinite(*out); /* "nan" would equal every number */
}

/* True if the value is p[0..len), one of a row's values. */
static bool fits(const char *p, size_t len, const char *v)
{
    double a, b;
    if (len > 2 && strncmp(p + len - 2, "..", 2) == 0)
        return number(p, len - 2, &a) && number(v, strlen(v), &b) && b >= a;
    if (len > 0 && p[len - 1] == '*') return strncasecmp(p, v, len - 1) == 0;
    if (strlen(v) == len && strncasecmp(p, v, len) == 0) return true;
    return number(p, len, &a) && number(v, strlen(v), &b) && !(a < b) && !(a > b);
}

/* Finds the row of the group that begins with r whose values have v (NULL: a switch). */
static const rose_foreign *fitting(const rose_foreign_set *set, const rose_foreign *r,
                                   const char *v)
{
    for (; r != NULL; r = next_row(set, r)) {
        if (r->values == NULL) return r;
        if (v == NULL) continue;
        for (const char *p = r->values;; p++) {
            const size_t len = strcspn(p, "|");
            if (fits(p, len, v)) return r;
            p += len;
            if (*p == '\0') break;
        }
    }
    return NULL;
}

/* ---- values ---- */

/* A JSON list of texts with commas between; a value that is none stays as it is. */
static const char *list_text(rose_foreign_taken *t, const char *v)
{
    rose_json *list = NULL;
    rose_json_error e;
    const char *out = NULL;
    if (rose_json_parse(&list, v, strlen(v), 0, &e) != ROSE_OK) return v;
    for (size_t i = 0; i < rose_json_count(list); i++) {
        const rose_json *item = rose_json_at(list, i);
        if (!rose_json_is_string(item)) continue;
        out = rose_foreign_keep(t, "%s%s%s", out != NULL ? out : "", out != NULL ? "," : "",
                                rose_json_text(item));
        if (out == NULL) break;
    }
    rose_json_decref(list);
    return out != NULL ? out : v;
}

/* The value in the form that `how` says; one that is no number stays as it is, so that our own
 * option refuses it. NULL: out of memory. */
static const char *converted(rose_foreign_taken *t, const char *how, const char *v)
{
    uint64_t u;
    double f;
    if (how[1] == '\0') return v;
    if (how[1] == 'l') return list_text(t, v);
    if (how[1] == 'k')
        return rose_opt_number(v, false, &u) ? rose_foreign_keep(t, "%" PRIu64, u) : v;
    if (how[1] == 'p')
        return rose_opt_number(v, false, &u)
                   ? rose_foreign_keep(t, "%" PRIu64, u / PAGE_TOKENS + (u % PAGE_TOKENS > 0))
                   : v;
    if (!number(v, strlen(v), &f) || f < 0 || f > 1e9) return v;
    return rose_foreign_keep(t, "%.0f", f * 1000);
}

/* Adds the options that a row's `to` names. Returns -1, or the exit code after a message. */
static int add_options(rose_foreign_taken *t, const rose_foreign *r, const char *from,
                       const char *v)
{
    for (const char *p = r->to; *p != '\0'; p += *p == ' ') {
        const size_t len = strcspn(p, " "), name = strcspn(p, "= ");
        const char *to = rose_foreign_keep(t, "%.*s", (int)name, p), *value = NULL;
        if (name < len) {
            value = rose_foreign_keep(t, "%.*s", (int)(len - name - 1), p + name + 1);
            if (value != NULL && value[0] == '$') value = converted(t, value, v);
            if (value == NULL) return rose_foreign_no_memory();
        }
        if (to == NULL || !rose_foreign_add(t, from, to, value)) return rose_foreign_no_memory();
        p += len;
    }
    return -1;
}

/* ---- one option ---- */

/* Lists the values that are not refused. */
static int wrong_value(const rose_foreign_set *set, const rose_foreign *r, const char *from)
{
    bool first = true;
    fprintf(stderr, "roseinfer: %s: expected one of ", from);
    for (; r != NULL; r = next_row(set, r)) {
        if (r->act == ROSE_FOREIGN_REFUSED || r->values == NULL) continue;
        fprintf(stderr, "%s%s", first ? "" : "|", r->values);
        first = false;
    }
    fprintf(stderr, " (see --help-foreign)\n");
    return ROSE_USAGE_ERROR;
}

/* Applies row r (NULL: no value of `first` fits) to the option a[0..len), which stands at `where`:
 * "", or a place and ": ". v: its value, or NULL. */
static int apply(const rose_foreign_set *set, rose_foreign_taken *t, const rose_foreign *first,
                 const rose_foreign *r, const char *where, const char *a, size_t len, const char *v)
{
    /* A message that holds for any value leaves it out: it may be a secret. */
    const bool any = r != NULL && r->act == ROSE_FOREIGN_REFUSED && r->values != NULL &&
                     r->names != NULL && strcmp(r->values, "*") == 0;
    const bool quote = v != NULL && !any;
    const char *from =
        rose_foreign_keep(t, "%s%.*s%s%s", where, (int)len, a, quote ? " " : "", quote ? v : "");
    if (from == NULL) return rose_foreign_no_memory();
    if (r == NULL) return wrong_value(set, first, from);
    switch (r->act) {
    case ROSE_FOREIGN_ALIAS:
        return add_options(t, r, from, v);
    case ROSE_FOREIGN_IDLE:
        fprintf(stderr, "roseinfer: warning: %s has no effect: %s\n", from, r->why);
        return -1;
    case ROSE_FOREIGN_REFUSED:
        fprintf(stderr, "roseinfer: %s: %s\n", from, r->why);
        return ROSE_USAGE_ERROR;
    case ROSE_FOREIGN_SAME:
        break;
    }
    return -1;
}

/* ---- the command line ---- */

/* The walk over argv. */
typedef struct line {
    const rose_command *c;
    rose_foreign_taken *t;
    int argc, i;
    char **argv;
} line;

/* Our option of this argument; NULL: none. */
static const rose_opt *own_option(const line *l, const char *a, size_t len)
{
    bool no;
    if (a[1] != '-') return rose_opts_letter(l->c, a[1]);
    return rose_opts_find_no(l->c, a + 2, len - 2, &no);
}

/* Finds the rows of an argument. *v: its value in the same argument, or NULL. vLLM also writes
 * --NAME.KEY for a key of a JSON value, and -tN for -t N. */
static const rose_foreign *find_rows(const line *l, const char *a, size_t len, const char **v)
{
    const rose_foreign_set *set = l->c->foreign;
    const rose_foreign *r = find(set, a, len, false);
    if (r == NULL && a[1] == '-' && memchr(a, '.', len) != NULL)
        return find(set, a, strcspn(a, "."), false);
    if (r != NULL || a[1] == '-' || a[2] < '0' || a[2] > '9') return r;
    r = find(set, a, 2, false);
    if (r == NULL || r->takes != ROSE_FOREIGN_VALUE) return NULL;
    *v = a + 2;
    return r;
}

/* Takes the argument if it is a foreign option: then *took is true. */
static int take_argument(line *l, bool *took)
{
    const char *a = l->argv[l->i];
    const size_t len = strcspn(a, "=");
    const char *v = a[len] == '=' ? a + len + 1 : NULL;
    const char *next = l->i + 1 < l->argc ? l->argv[l->i + 1] : NULL;
    const rose_opt *own = own_option(l, a, len);
    const rose_foreign_set *set = l->c->foreign;
    const rose_foreign *first = find_rows(l, a, len, &v), *r = NULL;
    const size_t name = v == a + 2 ? 2 : len;
    bool apart = false, given = true; /* apart: the value is the next argument */
    *took = false;
    if (first == NULL) return -1;
    if (v == NULL && first->takes == ROSE_FOREIGN_VALUE) {
        if (next == NULL && own == NULL) {
            fprintf(stderr, "roseinfer: %s needs a value\n", a);
            return ROSE_USAGE_ERROR;
        }
        v = next;
        apart = next != NULL;
    }
    if (v == NULL && first->takes == ROSE_FOREIGN_MAYBE) {
        apart = next != NULL && fitting(set, first, next) != NULL;
        v = apart ? next : "true";
        given = apart;
    }
    if (v != NULL && first->takes == ROSE_FOREIGN_SWITCH) {
        fprintf(stderr, "roseinfer: %.*s takes no value\n", (int)len, a);
        return ROSE_USAGE_ERROR;
    }
    r = fitting(set, first, v);
    if (r == NULL && own != NULL) return -1;
    *took = true;
    l->i += apart;
    return apply(set, l->t, first, r, "", a, name, given ? v : NULL);
}

/* Copies an argument that is ours, with its value. */
static int copy_own(line *l, char **own, int n)
{
    const char *a = l->argv[l->i];
    own[n++] = l->argv[l->i];
    const rose_opt *o = a[0] == '-' && a[1] != '\0' ? own_option(l, a, strcspn(a, "=")) : NULL;
    if (o == NULL || o->kind == ROSE_OPT_BOOL || o->kind == ROSE_OPT_FLAG) return n;
    const bool inside = a[1] == '-' ? strchr(a, '=') != NULL : a[2] != '\0';
    if (!inside && l->i + 1 < l->argc) own[n++] = l->argv[++l->i];
    return n;
}

/* Writes the pairs as arguments, MODEL last: a list option that comes later takes all words that
 * follow it. */
static int put_pairs(rose_foreign_taken *t, char **argv, const char **from, int n)
{
    for (int model = 0; model < 2; model++) {
        for (size_t i = 0; i < t->n; i++) {
            const rose_foreign_pair *p = &t->pairs[i];
            if (p->name[0] == '@' || (strcmp(p->name, "MODEL") == 0) != (model == 1)) continue;
            const char *text = model == 1 ? rose_foreign_keep(t, "%s", p->value)
                               : p->value == NULL
                                   ? rose_foreign_keep(t, "--%s", p->name)
                                   : rose_foreign_keep(t, "--%s=%s", p->name, p->value);
            if (text == NULL) return -1;
            from[n] = p->from;
            argv[n++] = (char *)(uintptr_t)text;
        }
    }
    return n;
}

/* True if the words of ours that begin with own[i] give the pair's option another value. */
static bool contradicts(const line *l, const rose_foreign_pair *p, char **own, int i, int n_own)
{
    const size_t len = strcspn(own[i], "=");
    const rose_opt *o = own[i][0] == '-' && own[i][1] != '\0' ? own_option(l, own[i], len) : NULL;
    bool no;
    const rose_opt *theirs = rose_opts_find_no(l->c, p->name, strlen(p->name), &no);
    if (o == NULL || o != theirs || o->kind == ROSE_OPT_LIST) return false;
    if (p->value == NULL) return strcmp(own[i] + 2, p->name) != 0;
    const char *v = own[i][len] == '=' ? own[i] + len + 1 : i + 1 < n_own ? own[i + 1] : "";
    return strcmp(v, p->value) != 0;
}

/* An option of ours next to a foreign one that means another value of it is a mistake. */
static int check_doubles(const line *l, char **own, int n_own)
{
    for (size_t k = 0; k < l->t->n; k++) {
        const rose_foreign_pair *p = &l->t->pairs[k];
        for (int i = 0; i < n_own && strcmp(own[i], "--") != 0; i++) {
            if (p->name[0] == '@' || !contradicts(l, p, own, i, n_own)) continue;
            fprintf(stderr, "roseinfer: %s is --%s%s%s, and %s is given as well: leave one out\n",
                    p->from, p->name, p->value != NULL ? " " : "", p->value != NULL ? p->value : "",
                    own[i]);
            return ROSE_USAGE_ERROR;
        }
    }
    return -1;
}

/* Writes the new command line: the program, what foreign options became, then our own words. */
static int write_line(rose_foreign_taken *t, rose_foreign_line *out, char *program, char **own,
                      int n_own)
{
    const size_t most = t->n + (size_t)n_own + 2;
    out->argv = calloc(most, sizeof *out->argv);
    out->from = calloc(most, sizeof *out->from);
    if (out->argv == NULL || out->from == NULL) return rose_foreign_no_memory();
    out->argv[0] = program;
    out->argc = put_pairs(t, out->argv, out->from, 1);
    if (out->argc < 0) return rose_foreign_no_memory();
    memcpy(out->argv + out->argc, own, (size_t)n_own * sizeof *own);
    out->argc += n_own;
    return -1;
}

/* vLLM and llama-server read '_' in a name as '-': so do we where that gives an option of ours. */
static bool copy_argument(line *l, char **out, const char *a)
{
    const size_t len = strcspn(a, "=");
    *out = (char *)(uintptr_t)a;
    if (strncmp(a, "--", 2) != 0 || memchr(a, '_', len) == NULL) return true;
    const char *text = rose_foreign_keep(l->t, "%s", a);
    if (text == NULL) return false;
    char *name = (char *)(uintptr_t)text;
    for (size_t i = 0; i < len; i++)
        name[i] = (char)(name[i] == '_' ? '-' : name[i]);
    if (own_option(l, name, len) != NULL) *out = name;
    return true;
}

int rose_foreign_read_line(const rose_command *c, rose_foreign_taken *t, rose_foreign_line *out,
                           int argc, char **argv)
{
    const size_t most = (size_t)argc + 1;
    char **words = calloc(2 * most, sizeof *words), **own = words != NULL ? words + most : NULL;
    line l = {.c = c, .t = t, .argc = argc, .argv = words};
    int rc = words != NULL ? -1 : rose_foreign_no_memory(), n_own = 0;
    bool options = true;
    for (int i = 0; i < argc && rc < 0; i++)
        rc = copy_argument(&l, &words[i], argv[i]) ? -1 : rose_foreign_no_memory();
    for (l.i = 1; l.i < argc && rc < 0; l.i++) {
        const char *a = words[l.i];
        bool took = false;
        options = options && strcmp(a, "--") != 0;
        if (options && a[0] == '-' && a[1] != '\0') rc = take_argument(&l, &took);
        if (rc < 0 && !took && options) n_own = copy_own(&l, own, n_own);
        if (rc < 0 && !options) own[n_own++] = words[l.i];
    }
    if (rc < 0 && c->foreign->finish != NULL) rc = c->foreign->finish(t);
    if (rc < 0) rc = check_doubles(&l, own, n_own);
    if (rc < 0) rc = write_line(t, out, argv[0], own, n_own);
    free(words);
    return rc;
}

void rose_foreign_line_free(rose_foreign_line *l)
{
    free(l->argv);
    free(l->from);
    *l = (rose_foreign_line){0};
}

/* ---- a key of a file ---- */

int rose_foreign_take_key(const rose_command *c, rose_foreign_taken *t, const char *where,
                          const char *key, const char *v, bool own, bool *took)
{
    static const char *const off[] = {"false", "no", "off", "0"};
    const rose_foreign *first = find(c->foreign, key, strlen(key), true);
    bool no = false;
    *took = false;
    if (first == NULL) return -1;
    if (first->takes == ROSE_FOREIGN_SWITCH) {
        for (size_t i = 0; i < sizeof off / sizeof *off; i++)
            no |= strcasecmp(v, off[i]) == 0;
        const char *other = no ? rose_foreign_keep(t, "no-%s", key) : key;
        if (other == NULL) return rose_foreign_no_memory();
        *took = true;
        first = find(c->foreign, other, strlen(other), true);
        if (first == NULL) return -1; /* false is as if not given */
        return apply(c->foreign, t, first, first, where, other, strlen(other), NULL);
    }
    const rose_foreign *r = fitting(c->foreign, first, v);
    if (r == NULL && own) return -1;
    *took = true;
    return apply(c->foreign, t, first, r, where, key, strlen(key), v);
}

/* ---- the table ---- */

/* Prints words with a separator between, each in backquotes. */
static void put_words(const char *text, char at, const char *between)
{
    for (;;) {
        const char *end = strchr(text, at);
        const int len = (int)(end != NULL ? end - text : (ptrdiff_t)strlen(text));
        printf("`%.*s`", len, text);
        if (end == NULL) return;
        fputs(between, stdout);
        text = end + 1;
    }
}

/* Prints our options of an alias: `--max-num-seqs VALUE`. */
static void put_options(const char *to)
{
    for (const char *p = to; *p != '\0'; p += *p == ' ') {
        const size_t len = strcspn(p, " "), name = strcspn(p, "= ");
        const bool private = *p == '@', model = strncmp(p, "MODEL", 5) == 0;
        if (p > to) fputs(" ", stdout);
        if (!private) {
            printf("`%s%.*s", model ? "" : "--", (int)name, p);
            if (!model && name < len && p[name + 1] == '$')
                fputs(" VALUE", stdout);
            else if (!model && name < len)
                printf(" %.*s", (int)(len - name - 1), p + name + 1);
            putchar('`');
        }
        p += len;
    }
}

static void put_row(const rose_foreign *r)
{
    static const char *const acts[] = {"", "accepted", "no effect", "refused"};
    fputs(" | ", stdout);
    if (r->values != NULL && strcmp(r->values, "*") == 0)
        fputs(r->names != NULL ? "any" : "other", stdout);
    else if (r->values != NULL)
        put_words(r->values, '|', ", ");
    fputs(" | ", stdout);
    fputs(acts[r->act], stdout);
    if (r->act == ROSE_FOREIGN_ALIAS) put_options(r->to);
    if (r->why != NULL) printf("%s%s", r->act != ROSE_FOREIGN_ALIAS ? ": " : "", r->why);
    puts(" |");
}

void rose_foreign_help(const rose_foreign_set *set)
{
    puts("| option | of | value | here |\n|---|---|---|---|");
    for (const rose_foreign *r = set->rows; r < set->rows + set->n; r++) {
        fputs("| ", stdout);
        if (r->names != NULL) put_words(r->names, ' ', ", ");
        fputs(" | ", stdout);
        for (const char *p = r->names != NULL ? r->whose : ""; *p != '\0'; p++)
            printf("%s%s", p > r->whose ? ", " : "",
                   *p == 'v' ? "vLLM" : (*p == 'l' ? "llama-server" : "SGLang"));
        put_row(r);
    }
}
