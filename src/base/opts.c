/* base/opts.c - see opts.h. Pure text work; prints only help and errors. */
#include "base/opts.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USAGE_ERROR = 2, HELP_COLUMN = 34, HELP_WIDTH = 100 };

static void print_default(const rose_opt *o, char *buf, size_t cap)
{
    buf[0] = '\0';
    switch (o->kind) {
    case ROSE_OPT_BOOL:
        snprintf(buf, cap, "%s", *(const bool *)o->dest ? "on" : "off");
        return;
    case ROSE_OPT_U32:
        if (o->unset == NULL || *(const uint32_t *)o->dest != 0)
            snprintf(buf, cap, "%" PRIu32, *(const uint32_t *)o->dest);
        break;
    case ROSE_OPT_U64:
    case ROSE_OPT_BYTES: {
        uint64_t v = *(const uint64_t *)o->dest;
        if (o->unset != NULL && v == 0) break;
        if (o->kind == ROSE_OPT_BYTES && v >= 1048576 && v % 1048576 == 0)
            snprintf(buf, cap, "%" PRIu64 "M", v / 1048576);
        else
            snprintf(buf, cap, "%" PRIu64, v);
        break;
    }
    case ROSE_OPT_FLOAT: {
        float v = *(const float *)o->dest;
        if (o->unset == NULL || v < 0 || v > 0) snprintf(buf, cap, "%g", (double)v);
        break;
    }
    case ROSE_OPT_STRING:
    case ROSE_OPT_CHOICE: {
        const char *v = *(const char *const *)o->dest;
        if (v != NULL) snprintf(buf, cap, "%s", v);
        break;
    }
    case ROSE_OPT_LIST: {
        const rose_opt_list *l = o->dest;
        size_t len = 0;
        for (uint32_t i = 0; i < l->n && len < cap; i++)
            len += (size_t)snprintf(buf + len, cap - len, "%s%s", i > 0 ? "," : "",
                                    rose_opt_list_get(l, i));
        break;
    }
    case ROSE_OPT_FLAG:
    case ROSE_OPT_HEADING:
        return;
    }
    if (buf[0] == '\0' && o->unset != NULL) snprintf(buf, cap, "%s", o->unset);
}

/* Prints text in the help column, broken at spaces. */
static void print_wrapped(const char *text, int column)
{
    const int width = HELP_WIDTH - HELP_COLUMN;
    if (column > HELP_COLUMN - 2) {
        printf("\n%*s", HELP_COLUMN, "");
    } else {
        printf("%*s", HELP_COLUMN - column, "");
    }
    size_t len = strlen(text);
    while (len > (size_t)width) {
        size_t cut = (size_t)width;
        while (cut > 0 && text[cut] != ' ')
            cut--;
        if (cut == 0) cut = (size_t)width;
        printf("%.*s\n%*s", (int)cut, text, HELP_COLUMN, "");
        text += cut + (text[cut] == ' ');
        len = strlen(text);
    }
    puts(text);
}

static void print_option(const rose_opt *o)
{
    char left[128], def[128], text[512];
    if (o->kind == ROSE_OPT_HEADING) {
        printf("\n%s:\n", o->name);
        return;
    }
    const char *arg = o->arg != NULL ? o->arg : o->choices;
    int n = snprintf(left, sizeof left, "  %s%c%s--%s%s%s%s", o->letter ? "-" : "  ",
                     o->letter ? o->letter : ' ', o->letter ? ", " : " ",
                     o->kind == ROSE_OPT_BOOL ? "[no-]" : "", o->name, arg != NULL ? " " : "",
                     arg != NULL ? arg : "");
    print_default(o, def, sizeof def);
    if (def[0] != '\0')
        snprintf(text, sizeof text, "%s (default %s)", o->help, def);
    else
        snprintf(text, sizeof text, "%s", o->help);
    fputs(left, stdout);
    print_wrapped(text, n);
}

void rose_opts_help(const rose_command *c)
{
    printf("Usage: %s\n\n%s\n", c->usage, c->about);
    if (c->n_opts > 0 && c->opts[0].kind != ROSE_OPT_HEADING) puts("\nOptions:");
    for (size_t i = 0; i < c->n_opts; i++)
        print_option(&c->opts[i]);
    fputs("      --help", stdout);
    print_wrapped("show this text", 12);
}

/* Edit distance, for the suggestion; strings are short. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[65];
    size_t n = strlen(b);
    if (n > 64 || strlen(a) > 64) return 99;
    for (size_t j = 0; j <= n; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        unsigned diag = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned sub = diag + (a[i - 1] != b[j - 1]);
            diag = row[j];
            unsigned best = sub;
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static int unknown_option(const rose_command *c, const char *name)
{
    const char *near = NULL;
    unsigned best = 4;
    for (size_t i = 0; i < c->n_opts; i++) {
        if (c->opts[i].kind == ROSE_OPT_HEADING) continue;
        unsigned d = distance(name, c->opts[i].name);
        if (d < best) {
            best = d;
            near = c->opts[i].name;
        }
    }
    fprintf(stderr, "roseinfer: unknown option --%s", name);
    if (near != NULL) fprintf(stderr, "; did you mean --%s?", near);
    fprintf(stderr, " (see --help)\n");
    return USAGE_ERROR;
}

static bool parse_u64(const char *s, uint64_t *out, bool suffix)
{
    char *end;
    if (*s < '0' || *s > '9') return false; /* strtoull would accept a sign and spaces */
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno != 0) return false;
    unsigned shift = 0;
    if (suffix && *end != '\0') {
        const char *units = "KMGkmg";
        const char *u = strchr(units, *end);
        if (u == NULL) return false;
        shift = 10u * (1u + (unsigned)((u - units) % 3));
        end++;
    }
    if (*end != '\0' || (shift > 0 && v > UINT64_MAX >> shift)) return false;
    *out = v << shift;
    return true;
}

static bool in_choices(const char *choices, const char *v)
{
    size_t n = strlen(v);
    for (const char *p = choices; p != NULL; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, v, n) == 0) return true;
    }
    return false;
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

static int set_value(const rose_opt *o, const char *v)
{
    uint64_t u;
    char *end;
    switch (o->kind) {
    case ROSE_OPT_U32:
    case ROSE_OPT_U64:
    case ROSE_OPT_BYTES: {
        uint64_t max = o->max != 0 ? o->max : o->kind == ROSE_OPT_U32 ? UINT32_MAX : UINT64_MAX;
        if (!parse_u64(v, &u, o->kind == ROSE_OPT_BYTES) || u < o->min || u > max) {
            fprintf(stderr,
                    "roseinfer: --%s %s: expected a whole number%s from %" PRIu64 " to %" PRIu64
                    "\n",
                    o->name, v, o->kind == ROSE_OPT_BYTES ? " of bytes (K, M, G allowed)" : "",
                    o->min, max);
            return USAGE_ERROR;
        }
        if (o->kind == ROSE_OPT_U32)
            *(uint32_t *)o->dest = (uint32_t)u;
        else
            *(uint64_t *)o->dest = u;
        return -1;
    }
    case ROSE_OPT_FLOAT: {
        float f = strtof(v, &end);
        if (end == v || *end != '\0' || !isfinite(f) || f < o->fmin || f > o->fmax) {
            fprintf(stderr, "roseinfer: --%s %s: expected a number from %g to %g\n", o->name, v,
                    (double)o->fmin, (double)o->fmax);
            return USAGE_ERROR;
        }
        *(float *)o->dest = f;
        return -1;
    }
    case ROSE_OPT_CHOICE:
        if (!in_choices(o->choices, v)) {
            fprintf(stderr, "roseinfer: --%s %s: expected one of %s\n", o->name, v, o->choices);
            return USAGE_ERROR;
        }
        *(const char **)o->dest = v;
        return -1;
    case ROSE_OPT_STRING:
        *(const char **)o->dest = v;
        return -1;
    case ROSE_OPT_LIST:
        if (rose_opt_list_add(o->dest, v)) return -1;
        fprintf(
            stderr,
            "roseinfer: --%s '%s': expected at most %d values, none of them empty, and %d bytes "
            "in all\n",
            o->name, v, ROSE_OPT_LIST_MAX, ROSE_OPT_LIST_BYTES);
        return USAGE_ERROR;
    case ROSE_OPT_BOOL:
    case ROSE_OPT_FLAG:
    case ROSE_OPT_HEADING:
        break;
    }
    return USAGE_ERROR;
}

static const rose_opt *find(const rose_command *c, const char *name, size_t len)
{
    for (size_t i = 0; i < c->n_opts; i++) {
        const rose_opt *o = &c->opts[i];
        if (o->kind != ROSE_OPT_HEADING && strlen(o->name) == len &&
            memcmp(o->name, name, len) == 0)
            return o;
    }
    return NULL;
}

/* The walk over argv. */
typedef struct walk {
    const rose_command *c;
    int argc, i; /* i: the argument that is being read */
    char **argv;
    const rose_opt *list; /* the option just read, if it takes more values */
} walk;

static int give_value(walk *w, const rose_opt *o, const char *value)
{
    if (value == NULL) {
        if (w->i + 1 >= w->argc) {
            fprintf(stderr, "roseinfer: --%s needs a value\n", o->name);
            return USAGE_ERROR;
        }
        value = w->argv[++w->i];
    }
    if (o->kind == ROSE_OPT_LIST) w->list = o;
    return set_value(o, value);
}

/* One "--name..." argument. */
static int parse_long(walk *w)
{
    const char *name = w->argv[w->i] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    const rose_opt *o = find(w->c, name, len);
    bool on = true;
    if (o == NULL && len > 3 && strncmp(name, "no-", 3) == 0) {
        o = find(w->c, name + 3, len - 3);
        if (o != NULL && o->kind != ROSE_OPT_BOOL) o = NULL;
        on = false;
    }
    if (o == NULL) return unknown_option(w->c, name);
    if (o->kind != ROSE_OPT_BOOL && o->kind != ROSE_OPT_FLAG) return give_value(w, o, value);
    if (value != NULL) {
        fprintf(stderr, "roseinfer: --%s takes no value\n", o->name);
        return USAGE_ERROR;
    }
    *(bool *)o->dest = on;
    return -1;
}

static int parse_short(walk *w)
{
    const char *a = w->argv[w->i];
    for (size_t k = 0; k < w->c->n_opts; k++) {
        const rose_opt *o = &w->c->opts[k];
        if (o->letter != a[1]) continue;
        if (o->kind != ROSE_OPT_BOOL && o->kind != ROSE_OPT_FLAG)
            return give_value(w, o, a[2] != '\0' ? a + 2 : NULL);
        *(bool *)o->dest = true;
        return -1;
    }
    fprintf(stderr, "roseinfer: unknown option %s (see --help)\n", a);
    return USAGE_ERROR;
}

static bool asks_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    }
    return false;
}

int rose_opts_parse(const rose_command *c, int argc, char **argv, const char **args,
                    uint32_t *n_args)
{
    walk w = {.c = c, .argc = argc, .argv = argv};
    bool options = true;
    *n_args = 0;
    if (asks_help(argc, argv)) { /* it wins over every mistake, as users expect */
        rose_opts_help(c);
        return 0;
    }
    for (w.i = 1; w.i < argc; w.i++) {
        const char *a = argv[w.i];
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
            rc = set_value(list, a);
        } else {
            fprintf(stderr, "roseinfer: unexpected argument '%s'\nUsage: %s\n", a, c->usage);
            rc = USAGE_ERROR;
        }
        if (rc >= 0) return rc;
    }
    if (*n_args >= c->min_args) return -1;
    fprintf(stderr, "Usage: %s\n(--help lists the options)\n", c->usage);
    return USAGE_ERROR;
}

int rose_opts_parse_one(const char *usage, const char *about, const rose_opt *opts, size_t n_opts,
                        int argc, char **argv, const char **arg)
{
    const rose_command c = {usage, about, opts, n_opts, 1, 1};
    uint32_t n_args;
    return rose_opts_parse(&c, argc, argv, arg, &n_args);
}

int rose_die(const rose_err *err)
{
    fprintf(stderr, "roseinfer: %s\n", err->msg);
    return 1;
}
