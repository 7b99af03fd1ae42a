/* base/opts_sources.c - options from the environment and from the file of --config. The parser
 * (opts.c) says which rows the command line gives; those stay untouched here. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/opts_internal.h"

enum { MAX_NAME = 64 };
static const char PREFIX[] = "ROSEINFER_", MODEL[] = "model";

typedef struct sources {
    const rose_command *c;
    rose_opts_sources *s;
    const bool *given;   /* by the command line */
    const char **by_env; /* for each row the value of its variable, or NULL */
    const char *path;    /* the file; NULL = none */
    uint32_t *lines;     /* for each row the line of its key in the file; 0 = none */
} sources;

/* Writes name[0..n) as the name of an option: in small letters, with '-'. Returns its length, or 0
 * if it is too long for one. */
static size_t option_name(char out[MAX_NAME], const char *name, size_t n)
{
    if (n >= MAX_NAME) return 0;
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(name[i] == '_' ? '-' : tolower((unsigned char)name[i]));
    out[n] = '\0';
    return n;
}

/* ---- the environment ---- */

static void warn_unknown(const rose_command *c, const char *variable, size_t len, const char *name)
{
    bool no;
    const rose_opt *o = rose_opts_near(c, name, strlen(name), &no);
    fprintf(stderr,
            "roseinfer: warning: the environment variable %.*s names no option and has no effect",
            (int)len, variable);
    if (o != NULL) {
        fprintf(stderr, "; did you mean %s", PREFIX);
        for (const char *p = o->name; *p != '\0'; p++)
            fputc(*p == '-' ? '_' : toupper((unsigned char)*p), stderr);
        fputs(no ? "=false?" : "?", stderr);
    }
    fputc('\n', stderr);
}

/* True if variable[0..len) is in capitals, as the names of our variables are. */
static bool in_capitals(const char *variable, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (islower((unsigned char)variable[i]) || variable[i] == '-') return false;
    }
    return true;
}

/* True for the variables that Kubernetes sets in every pod when a service is named roseinfer:
 * ROSEINFER_SERVICE_HOST, ROSEINFER_PORT=tcp://10.0.0.1:80, ROSEINFER_PORT_80_TCP and the like. */
static bool is_service_link(const char *variable, size_t len)
{
    const char *name = variable + sizeof PREFIX - 1, *value = variable + len + 1;
    if (strncmp(name, "SERVICE_", 8) == 0 || strncmp(name, "PORT_", 5) == 0) return true;
    return strncmp(name, "PORT=", 5) == 0 && strstr(value, "://") != NULL;
}

/* Sorts the ROSEINFER_ variables to the rows. */
static void find_variables(sources *x, const char **model)
{
    for (char *const *e = x->s->env; e != NULL && *e != NULL; e++) {
        const size_t len = strcspn(*e, "=");
        char name[MAX_NAME] = "";
        bool no = false;
        if (strncmp(*e, PREFIX, sizeof PREFIX - 1) != 0 || (*e)[len] == '\0') continue;
        if (is_service_link(*e, len)) continue;
        option_name(name, *e + sizeof PREFIX - 1, len - (sizeof PREFIX - 1));
        const rose_opt *o =
            in_capitals(*e, len) ? rose_opts_find_no(x->c, name, strlen(name), &no) : NULL;
        const char *v = *e + len + 1;
        if (o != NULL && o->env_apart) continue;
        if (o == NULL && in_capitals(*e, len) && strcmp(name, MODEL) == 0)
            *model = *v != '\0' ? v : NULL;
        else if (o == NULL || no)
            warn_unknown(x->c, *e, len, name);
        else if (*v != '\0')
            x->by_env[o - x->c->opts] = v;
    }
}

static int apply_variables(sources *x)
{
    for (size_t i = 0; i < x->c->n_opts; i++) {
        const rose_opt *o = &x->c->opts[i];
        char from[MAX_NAME + sizeof PREFIX + 2];
        if (x->by_env[i] == NULL || x->given[i]) continue;
        size_t n = (size_t)snprintf(from, sizeof from, "%s%s: ", PREFIX, o->name);
        for (size_t k = 0; k < n && k < sizeof from - 1; k++)
            from[k] = (char)(from[k] == '-' ? '_' : toupper((unsigned char)from[k]));
        const int rc = rose_opt_set(o, from, x->by_env[i]);
        if (rc >= 0) return rc;
    }
    return -1;
}

/* ---- the file ---- */

static int unknown_key(const sources *x, const rose_opts_file_item *item, const char *name)
{
    bool no;
    const rose_opt *o = rose_opts_near(x->c, name, strlen(name), &no);
    fprintf(stderr, "roseinfer: %s:%u: unknown key '%.64s'", x->path, item->line,
            rose_opts_file_text(&x->s->file, item->key));
    if (o != NULL) fprintf(stderr, "; did you mean %s%s?", no ? "no-" : "", o->name);
    fprintf(stderr, " (--help-all lists the options)\n");
    return ROSE_USAGE_ERROR;
}

static int wrong_item(const sources *x, const rose_opts_file_item *item, const char *what)
{
    fprintf(stderr, "roseinfer: %s:%u: '%.64s' %s\n", x->path, item->line,
            rose_opts_file_text(&x->s->file, item->key), what);
    return ROSE_USAGE_ERROR;
}

/* no: the key was no-NAME. */
static int apply_values(const sources *x, const rose_opts_file_item *item, const rose_opt *o,
                        bool no)
{
    char from[4200];
    const char *v = rose_opts_file_text(&x->s->file, item->value);
    int rc = -1;
    snprintf(from, sizeof from, "%s:%u: ", x->path, item->line);
    for (uint32_t i = 0; i < item->n && rc < 0; i++, v += strlen(v) + 1)
        rc = rose_opt_set(o, from, v);
    if (rc < 0 && no) *(bool *)o->dest = !*(bool *)o->dest;
    return rc;
}

/* Takes the key if it is an option of another server: then *took is true. A list becomes one text
 * with commas. */
static int take_foreign(sources *x, const rose_opts_file_item *item, const char *name, bool own,
                        bool *took)
{
    rose_foreign_taken *t = &x->s->foreign_file;
    const char *v = rose_opts_file_text(&x->s->file, item->value), *all = item->n > 0 ? v : "";
    *took = false;
    if (x->c->foreign == NULL) return -1;
    for (uint32_t i = 1; i < item->n && all != NULL; i++) {
        v += strlen(v) + 1;
        all = rose_foreign_keep(t, "%s,%s", all, v);
    }
    const char *where = rose_foreign_keep(t, "%s:%u: ", x->path, item->line);
    if (all != NULL && where != NULL)
        return rose_foreign_take_key(x->c, t, where, name, all, own, took);
    return rose_foreign_no_memory();
}

/* Sets what the foreign keys became, unless the command line or a variable gives it. */
static int apply_foreign(sources *x, const char **model)
{
    rose_foreign_taken *t = &x->s->foreign_file;
    int rc = t->n > 0 && x->c->foreign->finish != NULL ? x->c->foreign->finish(t) : -1;
    for (size_t i = 0; i < t->n && rc < 0; i++) {
        const rose_foreign_pair *p = &t->pairs[i];
        bool no;
        char from[200];
        const rose_opt *o = rose_opts_find_no(x->c, p->name, strlen(p->name), &no);
        if (strcmp(p->name, "MODEL") == 0 && *model == NULL) *model = p->value;
        const size_t row = o != NULL ? (size_t)(o - x->c->opts) : 0;
        if (o != NULL && x->lines[row] != 0) {
            fprintf(stderr, "roseinfer: %s is '%s', which line %u gives as well\n", p->from,
                    p->name, x->lines[row]);
            return ROSE_USAGE_ERROR;
        }
        if (o == NULL || x->given[row] || x->by_env[row] != NULL) continue;
        snprintf(from, sizeof from, "%.190s: ", p->from);
        if (p->value == NULL)
            *(bool *)o->dest = !no;
        else
            rc = rose_opt_set(o, from, p->value);
    }
    return rc;
}

/* A key of the file: refused if no option has this name, if two keys name the same option, or if
 * its value has the wrong form. Otherwise applied unless a stronger source gives the option. */
static int apply_item(sources *x, const rose_opts_file_item *item, const char **model)
{
    const char *key = rose_opts_file_text(&x->s->file, item->key);
    char name[MAX_NAME] = "";
    bool no;
    option_name(name, key, strlen(key));
    const rose_opt *o = rose_opts_find_no(x->c, name, strlen(name), &no);
    const bool is_model = o == NULL && strcmp(name, MODEL) == 0;
    bool took = false;
    if (!is_model) {
        const int rc = take_foreign(x, item, name, o != NULL, &took);
        if (rc >= 0 || took) return rc;
    }
    const size_t row = o != NULL ? (size_t)(o - x->c->opts) : x->c->n_opts;
    if (o == NULL && !is_model) return unknown_key(x, item, name);
    if (o != NULL && o->config) return wrong_item(x, item, "cannot name another file");
    if (x->lines[row] != 0) {
        fprintf(stderr, "roseinfer: %s:%u: '%.64s' is given a second time, after line %u\n",
                x->path, item->line, key, x->lines[row]);
        return ROSE_USAGE_ERROR;
    }
    x->lines[row] = item->line;
    if (item->list && (is_model || o->kind != ROSE_OPT_LIST))
        return wrong_item(x, item, "takes one value, not a list");
    if (is_model) {
        if (*model == NULL) *model = rose_opts_file_text(&x->s->file, item->value);
        return -1;
    }
    if (x->given[row] || x->by_env[row] != NULL) return -1;
    return apply_values(x, item, o, no);
}

static int apply_file(sources *x, const char **model)
{
    rose_err err = {{0}};
    const rose_status st = rose_opts_file_read(&x->s->file, x->path, &err);
    int rc = -1;
    if (st != ROSE_OK) {
        rose_die(&err);
        return st == ROSE_E_FORMAT ? ROSE_USAGE_ERROR : 1;
    }
    for (size_t i = 0; i < x->s->file.n && rc < 0; i++)
        rc = apply_item(x, &x->s->file.items[i], model);
    return rc < 0 ? apply_foreign(x, model) : rc;
}

/* The file's path, from the command line or the environment. */
static const char *file_path(const sources *x)
{
    for (size_t i = 0; i < x->c->n_opts; i++) {
        const rose_opt *o = &x->c->opts[i];
        if (o->config && !x->given[i] && x->by_env[i] != NULL) return x->by_env[i];
        if (o->config) return *(const char **)o->dest;
    }
    return NULL;
}

int rose_opts_read_sources(const rose_command *c, rose_opts_sources *s, const bool *given,
                           const char **model)
{
    sources x = {.c = c, .s = s, .given = given};
    int rc;
    x.by_env = calloc(c->n_opts + 1, sizeof *x.by_env);
    x.lines = calloc(c->n_opts + 1, sizeof *x.lines);
    if (x.by_env != NULL && x.lines != NULL) {
        find_variables(&x, model);
        x.path = file_path(&x);
        rc = x.path != NULL ? apply_file(&x, model) : -1;
        if (rc < 0) rc = apply_variables(&x);
    } else {
        rc = rose_foreign_no_memory();
    }
    free(x.by_env);
    free(x.lines);
    return rc;
}
