/* base/opts_help.c - prints --help and --help-all of a command, from its table. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/opts_internal.h"

enum { HELP_COLUMN = 34, HELP_WIDTH = 100 };

static void list_text(const rose_opt_list *l, char *buf, size_t cap)
{
    size_t len = 0;
    for (uint32_t i = 0; i < l->n && len < cap; i++)
        len += (size_t)snprintf(buf + len, cap - len, "%s%s", i > 0 ? "," : "",
                                rose_opt_list_get(l, i));
}

static void bytes_text(uint64_t v, char *buf, size_t cap)
{
    if (v >= 1048576 && v % 1048576 == 0)
        snprintf(buf, cap, "%" PRIu64 "M", v / 1048576);
    else
        snprintf(buf, cap, "%" PRIu64, v);
}

void rose_opt_default_text(const rose_opt *o, char *buf, size_t cap)
{
    uint64_t u = 0;
    buf[0] = '\0';
    switch (o->kind) {
    case ROSE_OPT_BOOL:
    case ROSE_OPT_FLAG:
        snprintf(buf, cap, "%s", *(const bool *)o->dest ? "on" : "off");
        break;
    case ROSE_OPT_U32:
        u = *(const uint32_t *)o->dest;
        if (o->word != NULL && u == UINT32_MAX)
            snprintf(buf, cap, "%s", o->word);
        else if (o->unset == NULL || u != 0)
            snprintf(buf, cap, "%" PRIu64, u);
        break;
    case ROSE_OPT_U64:
        u = *(const uint64_t *)o->dest;
        if (o->unset == NULL || u != 0) snprintf(buf, cap, "%" PRIu64, u);
        break;
    case ROSE_OPT_BYTES:
        u = *(const uint64_t *)o->dest;
        if (o->unset == NULL || u != 0) bytes_text(u, buf, cap);
        break;
    case ROSE_OPT_FLOAT: {
        const float v = *(const float *)o->dest;
        if (o->unset == NULL || v < 0 || v > 0) snprintf(buf, cap, "%g", (double)v);
        break;
    }
    case ROSE_OPT_STRING:
    case ROSE_OPT_CHOICE: {
        const char *v = *(const char *const *)o->dest;
        if (v != NULL) snprintf(buf, cap, "%s", v);
        break;
    }
    case ROSE_OPT_ENUM: {
        const char *text;
        const int len = rose_opt_choice(o, *(const unsigned *)o->dest, &text);
        snprintf(buf, cap, "%.*s", len, text);
        break;
    }
    case ROSE_OPT_LIST:
        list_text(o->dest, buf, cap);
        break;
    case ROSE_OPT_HEADING:
        return;
    }
    if (o->says != NULL || buf[0] == '\0')
        snprintf(buf, cap, "%s", o->says != NULL ? o->says : o->unset != NULL ? o->unset : "none");
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
    char left[128], def[256], text[768];
    if (o->kind == ROSE_OPT_HEADING) {
        printf("\n%s:\n", o->name);
        return;
    }
    const char *arg = o->arg != NULL ? o->arg : o->choices;
    int n = snprintf(left, sizeof left, "  %s%c%s--%s%s%s%s", o->letter ? "-" : "  ",
                     o->letter ? o->letter : ' ', o->letter ? ", " : " ",
                     o->kind == ROSE_OPT_BOOL ? "[no-]" : "", o->name, arg != NULL ? " " : "",
                     arg != NULL ? arg : "");
    rose_opt_default_text(o, def, sizeof def);
    snprintf(text, sizeof text, "%s (default: %s)", o->help, def);
    fputs(left, stdout);
    print_wrapped(text, n);
}

/* Tells whether an earlier heading has the same title as opts[i], which is a heading. */
static bool seen(const rose_command *c, size_t i)
{
    for (size_t j = 0; j < i; j++) {
        if (c->opts[j].kind == ROSE_OPT_HEADING && strcmp(c->opts[j].name, c->opts[i].name) == 0)
            return true;
    }
    return false;
}

/* Prints the rows of the group with this heading; NULL: the rows before the first heading. */
static void print_group(const rose_command *c, const rose_opt *heading, bool all,
                        void (*fn)(const rose_opt *o))
{
    const rose_opt *at = NULL;
    bool titled = heading == NULL;
    for (const rose_opt *o = c->opts; o < c->opts + c->n_opts; o++) {
        if (o->kind == ROSE_OPT_HEADING) {
            at = o;
            continue;
        }
        const bool inside =
            heading == NULL ? at == NULL : at != NULL && strcmp(at->name, heading->name) == 0;
        if (!inside || !(all || heading == NULL || !heading->brief || o->first)) continue;
        if (!titled) fn(heading);
        titled = true;
        fn(o);
    }
}

void rose_opts_by_group(const rose_command *c, bool all, void (*fn)(const rose_opt *o))
{
    print_group(c, NULL, all, fn);
    for (size_t i = 0; i < c->n_opts; i++) {
        if (c->opts[i].kind == ROSE_OPT_HEADING && !seen(c, i))
            print_group(c, &c->opts[i], all, fn);
    }
}

void rose_opts_help(const rose_command *c, bool all)
{
    size_t n = 0;
    bool brief = false;
    char text[64];
    for (size_t i = 0; i < c->n_opts; i++) {
        n += c->opts[i].kind != ROSE_OPT_HEADING;
        brief |= c->opts[i].brief;
    }
    printf("Usage: %s\n\n%s\n", c->usage, c->about);
    if (c->n_opts > 0 && c->opts[0].kind != ROSE_OPT_HEADING) puts("\nOptions:");
    rose_opts_by_group(c, all, print_option);
    if (brief) puts("\nHelp:");
    fputs("      --help", stdout);
    print_wrapped(brief ? "show the options that people use first" : "show this text", 12);
    if (!brief) return;
    fputs("      --help-all", stdout);
    snprintf(text, sizeof text, "show all %zu options", n);
    print_wrapped(text, 16);
    if (c->foreign == NULL) return;
    fputs("      --help-foreign", stdout);
    print_wrapped("show what options of vLLM, llama-server and SGLang mean here", 20);
}
