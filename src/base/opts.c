/* base/opts.c - see opts.h: the parser. Pure text work; prints only errors. */
#include "base/opts.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/opts_internal.h"

const rose_opt *rose_opts_find(const rose_command *c, const char *name, size_t len)
{
    for (size_t i = 0; i < c->n_opts; i++) {
        const rose_opt *o = &c->opts[i];
        if (o->kind != ROSE_OPT_HEADING && strlen(o->name) == len &&
            memcmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

const rose_opt *rose_opts_find_no(const rose_command *c, const char *name, size_t len, bool *no)
{
    const rose_opt *o = rose_opts_find(c, name, len);
    *no = o == NULL && len > 3 && strncmp(name, "no-", 3) == 0;
    if (*no) o = rose_opts_find(c, name + 3, len - 3);
    return *no && o != NULL && o->kind != ROSE_OPT_BOOL ? NULL : o;
}

const rose_opt *rose_opts_letter(const rose_command *c, char letter)
{
    for (size_t i = 0; i < c->n_opts; i++)
        if (c->opts[i].letter == letter) return &c->opts[i];
    return NULL;
}

const rose_opt *rose_opts_near(const rose_command *c, const char *name, size_t len, bool *no)
{
    rose_near near = {0};
    const bool negated = len > 3 && strncmp(name, "no-", 3) == 0;
    for (size_t i = 0; i < c->n_opts; i++) {
        if (c->opts[i].kind != ROSE_OPT_HEADING) rose_near_try(&near, name, len, c->opts[i].name);
        if (negated && c->opts[i].kind == ROSE_OPT_BOOL)
            rose_near_try(&near, name + 3, len - 3, c->opts[i].name);
    }
    const rose_opt *o = near.name != NULL ? rose_opts_find(c, near.name, strlen(near.name)) : NULL;
    *no = negated && o != NULL && o->kind == ROSE_OPT_BOOL;
    return o;
}

/* Ends the line of an unknown option. The short help of a command with many options lacks most of
 * them. */
static int see_help(const rose_command *c)
{
    bool brief = false;
    for (size_t i = 0; i < c->n_opts; i++)
        brief |= c->opts[i].brief;
    fprintf(stderr, " (see --help%s)\n", brief ? "-all" : "");
    return ROSE_USAGE_ERROR;
}

static int unknown_option(const rose_command *c, const char *name, size_t len)
{
    bool no;
    const rose_opt *o = rose_opts_near(c, name, len, &no);
    fprintf(stderr, "roseinfer: unknown option --%.*s", (int)len, name);
    if (o != NULL) fprintf(stderr, "; did you mean --%s%s?", no ? "no-" : "", o->name);
    return see_help(c);
}

/* The factor that a unit means, or 0; see rose_opt_number. */
static uint64_t unit_factor(const char *unit, bool bytes)
{
    static const char units[] = "kmgt";
    const char low = (char)(unit[0] | 0x20);
    const char *at = low >= 'a' ? strchr(units, low) : NULL;
    if (unit[0] == '\0') return 1;
    if (at == NULL) return 0;
    const bool binary = bytes ? strcasecmp(unit + 1, "b") != 0 : unit[0] != low;
    if (unit[1] != '\0' &&
        !(bytes && (!binary || strcasecmp(unit + 1, "i") == 0 || strcasecmp(unit + 1, "ib") == 0)))
        return 0;
    uint64_t factor = 1;
    for (const char *u = units; u <= at; u++)
        factor *= binary ? 1024 : 1000;
    return factor;
}

bool rose_opt_number(const char *s, bool bytes, uint64_t *out)
{
    char *end;
    if (*s < '0' || *s > '9') return false; /* strtoull would accept a sign and spaces */
    errno = 0;
    const unsigned long long v = strtoull(s, &end, 10);
    uint64_t tenths = 0, scale = 1; /* the digits after a point, and 10 to their number */
    const bool point = *end == '.' && end[1] >= '0' && end[1] <= '9';
    if (errno != 0) return false;
    for (end += point; point && *end >= '0' && *end <= '9' && scale < 10000; end++) {
        tenths = 10 * tenths + (uint64_t)(*end - '0');
        scale *= 10;
    }
    const uint64_t factor = unit_factor(end, bytes);
    if (factor == 0 || (point && factor == 1) || v > (UINT64_MAX - (factor - 1)) / factor)
        return false;
    *out = v * factor + tenths * factor / scale;
    return true;
}

int rose_opt_choice(const rose_opt *o, unsigned i, const char **text)
{
    const char *p = o->choices;
    for (; i > 0 && *p != '\0'; i--)
        p += strcspn(p, "|"), p += *p == '|';
    *text = p;
    return (int)strcspn(p, "|");
}

/* Returns the index of the choice that v names; -1 = none of them. */
static int choice_index(const char *choices, const char *v)
{
    const size_t n = strlen(v);
    int i = 0;
    for (const char *p = choices;; i++) {
        const size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, v, n) == 0) return i;
        if (p[len] == '\0') return -1;
        p += len + 1;
    }
}

const char *rose_opt_list_get(const rose_opt_list *l, uint32_t i)
{
    return l->text + l->at[i];
}

bool rose_opt_list_add(rose_opt_list *l, const char *text)
{
    const uint32_t n = l->n, used = l->used;
    for (;;) {
        const size_t len = strcspn(text, ",");
        if (len == 0 || l->n == ROSE_OPT_LIST_MAX || len >= ROSE_OPT_LIST_BYTES - l->used) {
            l->n = n;
            l->used = used;
            return false;
        }
        l->at[l->n++] = (uint16_t)l->used;
        memcpy(l->text + l->used, text, len);
        l->text[l->used + len] = '\0';
        l->used += (uint32_t)len + 1;
        if (text[len] == '\0') return true;
        text += len + 1;
    }
}

static rose_status set_number(const rose_opt *o, const char *v, rose_err *err)
{
    const uint64_t max = o->max != 0 ? o->max : o->kind == ROSE_OPT_U32 ? UINT32_MAX : UINT64_MAX;
    const bool word = o->word != NULL && strcmp(v, o->word) == 0;
    uint64_t u = UINT32_MAX;
    if (!word && (!rose_opt_number(v, o->kind == ROSE_OPT_BYTES, &u) || u < o->min || u > max))
        return rose_fail(
            err, ROSE_E_INVAL, "expected %s%sa whole number%s from %" PRIu64 " to %" PRIu64,
            o->word != NULL ? o->word : "", o->word != NULL ? " or " : "",
            o->kind == ROSE_OPT_BYTES ? " of bytes (K, M, G allowed)" : "", o->min, max);
    if (o->kind == ROSE_OPT_U32)
        *(uint32_t *)o->dest = (uint32_t)u;
    else
        *(uint64_t *)o->dest = u;
    return ROSE_OK;
}

static rose_status set_float(const rose_opt *o, const char *v, rose_err *err)
{
    char *end;
    const float f = strtof(v, &end);
    if (end == v || *end != '\0' || !isfinite(f) || f < o->fmin || f > o->fmax)
        return rose_fail(err, ROSE_E_INVAL, "expected a number from %g to %g", (double)o->fmin,
                         (double)o->fmax);
    *(float *)o->dest = f;
    return ROSE_OK;
}

static rose_status set_choice(const rose_opt *o, const char *v, rose_err *err)
{
    const int i = choice_index(o->choices, v);
    if (o->removed != NULL && strcmp(v, o->removed) == 0)
        return rose_fail(err, ROSE_E_INVAL, "%s", o->removed_why);
    if (i < 0) return rose_fail(err, ROSE_E_INVAL, "expected one of %s", o->choices);
    if (o->kind == ROSE_OPT_ENUM)
        *(unsigned *)o->dest = (unsigned)i;
    else
        *(const char **)o->dest = v;
    return ROSE_OK;
}

static rose_status set_switch(const rose_opt *o, const char *v, rose_err *err)
{
    static const char *const words[][2] = {
        {"true", "false"}, {"yes", "no"}, {"on", "off"}, {"1", "0"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        for (int off = 0; off < 2; off++) {
            if (strcasecmp(v, words[i][off]) != 0) continue;
            *(bool *)o->dest = off == 0;
            return ROSE_OK;
        }
    }
    return rose_fail(err, ROSE_E_INVAL, "expected true or false");
}

static rose_status set_list(const rose_opt *o, const char *v, rose_err *err)
{
    if (rose_opt_list_add(o->dest, v)) return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL,
                     "expected at most %d values, none of them empty, and %d bytes in all",
                     ROSE_OPT_LIST_MAX, ROSE_OPT_LIST_BYTES);
}

rose_status rose_opt_read(const rose_opt *o, const char *v, rose_err *err)
{
    switch (o->kind) {
    case ROSE_OPT_U32:
    case ROSE_OPT_U64:
    case ROSE_OPT_BYTES:
        return set_number(o, v, err);
    case ROSE_OPT_FLOAT:
        return set_float(o, v, err);
    case ROSE_OPT_CHOICE:
    case ROSE_OPT_ENUM:
        return set_choice(o, v, err);
    case ROSE_OPT_LIST:
        return set_list(o, v, err);
    case ROSE_OPT_STRING:
        *(const char **)o->dest = v;
        return ROSE_OK;
    case ROSE_OPT_BOOL:
    case ROSE_OPT_FLAG:
        return set_switch(o, v, err);
    case ROSE_OPT_HEADING:
        break;
    }
    return rose_fail(err, ROSE_E_INTERNAL, "a heading has no value");
}

int rose_opt_set(const rose_opt *o, const char *from, const char *v)
{
    rose_err err;
    const char *quote = o->kind == ROSE_OPT_LIST ? "'" : "";
    if (rose_opt_read(o, v, &err) == ROSE_OK) return -1;
    fprintf(stderr, "roseinfer: %s--%s %s%s%s: %s\n", from, o->name, quote, o->secret ? "..." : v,
            quote, err.msg);
    return ROSE_USAGE_ERROR;
}

/* The walk over argv. */
typedef struct walk {
    const rose_command *c;
    int argc, i; /* i: the argument that is being read */
    char **argv;
    const rose_opt *list; /* the option that was read last, if it takes more values */
    bool *given;          /* NULL, or: set nothing, and mark the rows that are given */
    const char **from; /* NULL, or for each argument the foreign option that became it, or NULL */
} walk;

static int take(walk *w, const rose_opt *o, const char *value)
{
    const char *foreign = w->from != NULL ? w->from[w->i] : NULL;
    char from[128] = "";
    if (foreign != NULL) snprintf(from, sizeof from, "%.120s: ", foreign);
    if (w->given == NULL) return rose_opt_set(o, from, value);
    w->given[o - w->c->opts] = true;
    if (o->config) *(const char **)o->dest = value;
    return -1;
}

static int turn(walk *w, const rose_opt *o, bool on)
{
    if (w->given == NULL)
        *(bool *)o->dest = on;
    else
        w->given[o - w->c->opts] = true;
    return -1;
}

static int give_value(walk *w, const rose_opt *o, const char *value)
{
    if (value == NULL) {
        if (w->i + 1 >= w->argc) {
            fprintf(stderr, "roseinfer: --%s needs a value\n", o->name);
            return ROSE_USAGE_ERROR;
        }
        value = w->argv[++w->i];
    }
    if (o->kind == ROSE_OPT_LIST) w->list = o;
    return take(w, o, value);
}

/* One "--name..." argument. */
static int parse_long(walk *w)
{
    const char *name = w->argv[w->i] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    bool no;
    const rose_opt *o = rose_opts_find_no(w->c, name, len, &no);
    if (o == NULL) return unknown_option(w->c, name, len);
    if (o->kind != ROSE_OPT_BOOL && o->kind != ROSE_OPT_FLAG) return give_value(w, o, value);
    if (value != NULL) {
        fprintf(stderr, "roseinfer: --%s takes no value\n", o->name);
        return ROSE_USAGE_ERROR;
    }
    return turn(w, o, !no);
}

static int parse_short(walk *w)
{
    const char *a = w->argv[w->i];
    const rose_opt *o = rose_opts_letter(w->c, a[1]);
    if (o != NULL && (o->kind == ROSE_OPT_BOOL || o->kind == ROSE_OPT_FLAG))
        return turn(w, o, true);
    if (o != NULL) return give_value(w, o, a[2] != '\0' ? a + 2 : NULL);
    fprintf(stderr, "roseinfer: unknown option %s", a);
    return see_help(w->c);
}

/* Prints help if --help or --help-all is there, whatever mistakes the arguments contain, as
 * users expect. True if so. */
static bool print_help(const rose_command *c, int argc, char **argv)
{
    for (int i = 0; argc == 2 && i < ROSE_N_DOCS; i++) {
        if (strcmp(argv[1], rose_opts_docs[i].ask) != 0) continue;
        rose_opts_docs[i].print(c);
        return true;
    }
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const bool all = strcmp(argv[i], "--help-all") == 0;
        if (c->foreign != NULL && strcmp(argv[i], "--help-foreign") == 0) {
            rose_foreign_help(c->foreign);
            return true;
        }
        if (!all && strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        rose_opts_help(c, all);
        return true;
    }
    return false;
}

/* Reports that positional argument n (from 0) is missing. Its name is the n-th word in capitals
 * of the usage line. */
static int missing_argument(const rose_command *c, uint32_t n)
{
    const char *p = c->usage;
    for (;; p += strcspn(p, " "), p += *p == ' ') {
        if (*p == '\0' || (*p >= 'A' && *p <= 'Z' && n-- == 0)) break;
    }
    const int len = (int)strcspn(p, " ");
    fprintf(stderr, "roseinfer: %.*s is missing (usage: %s; --help lists the options)\n",
            len > 0 ? len : 11, len > 0 ? p : "an argument", c->usage);
    return ROSE_USAGE_ERROR;
}

/* Reads the command line; with given, only marks which rows it gives. */
static int read_line(const rose_command *c, const rose_foreign_line *l, bool *given,
                     const char **args, uint32_t *n_args)
{
    walk w = {.c = c, .argc = l->argc, .argv = l->argv, .given = given, .from = l->from};
    bool options = true;
    *n_args = 0;
    for (w.i = 1; w.i < w.argc; w.i++) {
        const char *a = w.argv[w.i];
        const rose_opt *list = w.list;
        int rc = -1;
        w.list = NULL;
        if (options && strcmp(a, "--") == 0) {
            options = false;
        } else if (options && strncmp(a, "--", 2) == 0) {
            rc = parse_long(&w);
        } else if (options && a[0] == '-' && a[1] != '\0') {
            rc = parse_short(&w);
        } else if (*n_args < c->max_args) {
            args[(*n_args)++] = a;
        } else if (list != NULL) {
            w.list = list;
            rc = take(&w, list, a);
        } else {
            fprintf(stderr, "roseinfer: unexpected argument '%s' (usage: %s)\n", a, c->usage);
            rc = ROSE_USAGE_ERROR;
        }
        if (rc >= 0) return rc;
    }
    return -1;
}

int rose_opts_parse(const rose_command *c, int argc, char **argv, const char **args,
                    uint32_t *n_args)
{
    *n_args = 0;
    if (print_help(c, argc, argv)) return 0;
    const rose_foreign_line l = {.argv = argv, .argc = argc};
    const int rc = read_line(c, &l, NULL, args, n_args);
    if (rc >= 0) return rc;
    return *n_args >= c->min_args ? -1 : missing_argument(c, *n_args);
}

/* Reads the sources in the order of precedence. l: the command line, without foreign options. */
static int read_all(const rose_command *c, rose_opts_sources *s, const rose_foreign_line *l,
                    const char **args, uint32_t *n_args)
{
    const char *model = NULL;
    bool *given = calloc(c->n_opts + 1, sizeof *given);
    if (given == NULL) return rose_foreign_no_memory();
    int rc = read_line(c, l, given, args, n_args);
    if (rc < 0) rc = rose_opts_read_sources(c, s, given, &model);
    free(given);
    if (rc < 0) rc = read_line(c, l, NULL, args, n_args);
    if (rc >= 0) return rc;
    if (*n_args == 0 && model != NULL && c->max_args > 0) args[(*n_args)++] = model;
    return *n_args >= c->min_args ? -1 : missing_argument(c, *n_args);
}

int rose_opts_parse_from(const rose_command *c, rose_opts_sources *s, int argc, char **argv,
                         const char **args, uint32_t *n_args)
{
    rose_foreign_line l = {0};
    *n_args = 0;
    if (print_help(c, argc, argv)) return 0;
    if (c->foreign == NULL)
        return read_all(c, s, &(rose_foreign_line){.argv = argv, .argc = argc}, args, n_args);
    int rc = rose_foreign_read_line(c, &s->foreign, &l, argc, argv);
    if (rc < 0) rc = read_all(c, s, &l, args, n_args);
    rose_foreign_line_free(&l);
    return rc;
}

void rose_opts_sources_free(rose_opts_sources *s)
{
    rose_opts_file_free(&s->file);
    rose_foreign_free(&s->foreign);
    rose_foreign_free(&s->foreign_file);
}

int rose_opts_parse_one(const char *usage, const char *about, const rose_opt *opts, size_t n_opts,
                        int argc, char **argv, const char **arg)
{
    const rose_command c = {.usage = usage,
                            .about = about,
                            .opts = opts,
                            .n_opts = n_opts,
                            .min_args = 1,
                            .max_args = 1};
    uint32_t n_args;
    return rose_opts_parse(&c, argc, argv, arg, &n_args);
}

void rose_opts_default(const rose_opt *opts, size_t n_opts)
{
    for (size_t i = 0; i < n_opts; i++) {
        const rose_opt *o = &opts[i];
        switch (o->kind) {
        case ROSE_OPT_BOOL:
        case ROSE_OPT_FLAG:
            *(bool *)o->dest = o->def != 0;
            break;
        case ROSE_OPT_U32:
        case ROSE_OPT_ENUM:
            *(uint32_t *)o->dest = (uint32_t)o->def;
            break;
        case ROSE_OPT_U64:
        case ROSE_OPT_BYTES:
            *(uint64_t *)o->dest = o->def;
            break;
        case ROSE_OPT_FLOAT:
            *(float *)o->dest = (float)o->def;
            break;
        case ROSE_OPT_STRING:
        case ROSE_OPT_CHOICE:
            *(const char **)o->dest = o->sdef;
            break;
        case ROSE_OPT_LIST:
            memset(o->dest, 0, sizeof(rose_opt_list));
            break;
        case ROSE_OPT_HEADING:
            break;
        }
    }
}

static rose_status add_text(rose_buf *out, const char *name, const char *value)
{
    rose_status st = rose_buf_addf(out, " --%s '", name);
    for (; *value != '\0' && st == ROSE_OK; value++)
        st = *value == '\'' ? rose_buf_addf(out, "'\\''") : rose_buf_add(out, value, 1);
    return st == ROSE_OK ? rose_buf_addf(out, "'") : st;
}

static rose_status add_list(rose_buf *out, const char *name, const rose_opt_list *l)
{
    rose_status st = ROSE_OK;
    for (uint32_t i = 0; i < l->n && st == ROSE_OK; i++)
        st = add_text(out, name, rose_opt_list_get(l, i));
    return st;
}

static rose_status add_changed(const rose_opt *o, rose_buf *out)
{
    switch (o->kind) {
    case ROSE_OPT_BOOL:
    case ROSE_OPT_FLAG: {
        const bool on = *(const bool *)o->dest;
        if (on == (o->def != 0)) return ROSE_OK;
        return rose_buf_addf(out, " --%s%s", on ? "" : "no-", o->name);
    }
    case ROSE_OPT_U32:
        if (*(const uint32_t *)o->dest == o->def) return ROSE_OK;
        if (o->word != NULL && *(const uint32_t *)o->dest == UINT32_MAX)
            return add_text(out, o->name, o->word);
        return rose_buf_addf(out, " --%s %" PRIu32, o->name, *(const uint32_t *)o->dest);
    case ROSE_OPT_U64:
    case ROSE_OPT_BYTES:
        if (*(const uint64_t *)o->dest == o->def) return ROSE_OK;
        return rose_buf_addf(out, " --%s %" PRIu64, o->name, *(const uint64_t *)o->dest);
    case ROSE_OPT_FLOAT: {
        const float v = *(const float *)o->dest, def = (float)o->def;
        if (memcmp(&v, &def, sizeof v) == 0) return ROSE_OK;
        return rose_buf_addf(out, " --%s %.9g", o->name, (double)v);
    }
    case ROSE_OPT_STRING:
    case ROSE_OPT_CHOICE: {
        const char *v = *(const char *const *)o->dest;
        if (v == NULL || (o->sdef != NULL && strcmp(v, o->sdef) == 0)) return ROSE_OK;
        return add_text(out, o->name, v);
    }
    case ROSE_OPT_ENUM: {
        const unsigned v = *(const unsigned *)o->dest;
        const char *text;
        const int len = rose_opt_choice(o, v, &text);
        if (v == o->def) return ROSE_OK;
        return rose_buf_addf(out, " --%s %.*s", o->name, len, text);
    }
    case ROSE_OPT_LIST:
        return add_list(out, o->name, o->dest);
    case ROSE_OPT_HEADING:
        break;
    }
    return ROSE_OK;
}

rose_status rose_opts_changed(const rose_opt *opts, size_t n_opts, rose_buf *out)
{
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < n_opts && st == ROSE_OK; i++)
        st = add_changed(&opts[i], out);
    return st;
}

int rose_die(const rose_err *err)
{
    fprintf(stderr, "roseinfer: %s\n", err->msg);
    return 1;
}
