/* base/opts_docs.c - writes a command's part of the man page and of the completion scripts, from
 * its table. base/program.c writes the text around these parts. */
#include <stdio.h>
#include <string.h>

#include "base/opts_internal.h"

/* Finds the command's own name: "offline" in "roseinfer bench offline MODEL [options]". Returns
 * its length. */
static int command_name(const rose_command *c, const char **name)
{
    const char *p = c->usage + strcspn(c->usage, " ");
    *name = p;
    while (*p == ' ' && p[1] >= 'a' && p[1] <= 'z') {
        *name = p + 1;
        p += 1 + strcspn(p + 1, " ");
    }
    return (int)(p - *name);
}

/* ---- man ---- */

void rose_opts_roff(const char *text)
{
    bool line_begins = true;
    for (; *text != '\0'; text++) {
        if (line_begins && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        if (*text == '-')
            fputs("\\-", stdout);
        else if (*text == '\\')
            fputs("\\e", stdout);
        else
            putchar(*text);
        line_begins = *text == '\n';
    }
}

static void man_option(const rose_opt *o)
{
    char def[256];
    if (o->kind == ROSE_OPT_HEADING) {
        fputs(".PP\n\\fI", stdout);
        rose_opts_roff(o->name);
        puts("\\fR");
        return;
    }
    fputs(".TP\n\\fB", stdout);
    if (o->letter) printf("\\-%c\\fR, \\fB", o->letter);
    fputs("\\-\\-", stdout);
    rose_opts_roff(o->name);
    if (o->kind == ROSE_OPT_BOOL) {
        fputs("\\fR, \\fB\\-\\-no\\-", stdout);
        rose_opts_roff(o->name);
    }
    fputs("\\fR", stdout);
    const char *arg = o->arg != NULL ? o->arg : o->choices;
    if (arg != NULL) {
        fputs(" \\fI", stdout);
        rose_opts_roff(arg);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    rose_opts_roff(o->help);
    rose_opt_default_text(o, def, sizeof def);
    fputs(" (default: ", stdout);
    rose_opts_roff(def);
    puts(")");
}

static void print_man(const rose_command *c)
{
    fputs(".SS ", stdout);
    rose_opts_roff(c->usage);
    putchar('\n');
    rose_opts_roff(c->about);
    putchar('\n');
    rose_opts_by_group(c, true, man_option);
}

/* ---- bash: a branch of the script's `case`, which sets `options`, and `words` or `files` for
 * the value of the previous option ---- */

static bool takes_value(const rose_opt *o)
{
    return o->kind != ROSE_OPT_BOOL && o->kind != ROSE_OPT_FLAG && o->kind != ROSE_OPT_HEADING;
}

static bool takes_file(const rose_opt *o)
{
    return o->arg != NULL && (strstr(o->arg, "FILE") != NULL || strstr(o->arg, "DIR") != NULL ||
                              strstr(o->arg, "PATH") != NULL);
}

static void bash_value(const rose_opt *o)
{
    printf("        --%s", o->name);
    if (o->letter) printf("|-%c", o->letter);
    fputs(") value=", stdout);
    if (o->choices == NULL) {
        puts(takes_file(o) ? "file ;;" : "other ;;");
        return;
    }
    putchar('\'');
    for (const char *p = o->choices; *p != '\0'; p++)
        putchar(*p == '|' ? ' ' : *p);
    puts("' ;;");
}

static void print_bash(const rose_command *c)
{
    const char *name;
    const int len = command_name(c, &name);
    printf("    '%.*s')\n        options='--help", len, name);
    for (size_t i = 0; i < c->n_opts; i++) {
        const rose_opt *o = &c->opts[i];
        if (o->kind == ROSE_OPT_HEADING) continue;
        printf(" --%s", o->name);
        if (o->kind == ROSE_OPT_BOOL) printf(" --no-%s", o->name);
    }
    puts(" --help-all'\n        case $prev in");
    for (size_t i = 0; i < c->n_opts; i++) {
        if (takes_value(&c->opts[i])) bash_value(&c->opts[i]);
    }
    puts("        esac ;;");
}

/* ---- zsh: the same information as arguments of _arguments ---- */

/* Prints help text as part of an argument of _arguments, within single quotes and brackets. */
static void zsh_text(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (*text == '[' || *text == ']' || *text == ':' || *text == '\\')
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void zsh_option(const rose_opt *o, const char *dashes)
{
    printf("        '%s%s%s[", o->kind == ROSE_OPT_LIST ? "*" : "", dashes, o->name);
    zsh_text(o->help);
    putchar(']');
    if (takes_value(o)) {
        putchar(':');
        zsh_text(o->arg != NULL ? o->arg : o->name);
        putchar(':');
        if (o->choices != NULL) putchar('(');
        for (const char *p = o->choices; p != NULL && *p != '\0'; p++)
            putchar(*p == '|' ? ' ' : *p);
        if (o->choices != NULL) putchar(')');
        if (takes_file(o)) fputs("_files", stdout);
    }
    puts("' \\");
}

static void print_zsh(const rose_command *c)
{
    const char *name;
    const int len = command_name(c, &name);
    printf("    '%.*s')\n        _arguments \\\n", len, name);
    for (size_t i = 0; i < c->n_opts; i++) {
        const rose_opt *o = &c->opts[i];
        if (o->kind == ROSE_OPT_HEADING) continue;
        zsh_option(o, "--");
        if (o->kind == ROSE_OPT_BOOL) zsh_option(o, "--no-");
    }
    puts("        '--help[show the options that people use first]' \\\n"
         "        '--help-all[show all options]' \\\n"
         "        '*:argument:_files' ;;");
}

const rose_opts_doc rose_opts_docs[ROSE_N_DOCS] = {
    [ROSE_DOC_MAN] = {"--help-man", print_man},
    [ROSE_DOC_BASH] = {"--help-bash", print_bash},
    [ROSE_DOC_ZSH] = {"--help-zsh", print_zsh},
};
