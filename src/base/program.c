/* base/program.c - see program.h. Prints; owns nothing. */
#include "base/program.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/opts_internal.h"
#include "base/version.h"

static void usage(const rose_program *p, FILE *out)
{
    fprintf(out, "%s %s - %s\n\n", p->name, rose_version(), p->about);
    fprintf(out, "Usage: %s COMMAND [arguments]   (COMMAND --help lists its options)\n\n", p->name);
    for (size_t i = 0; i < p->n_commands; i++)
        fprintf(out, "  %-18s %s\n", p->commands[i].name, p->commands[i].about);
    fprintf(out, "  %-18s %s\n", "completion", "completion script of a shell: bash or zsh");
    fprintf(out, "\n%s", p->notes);
    fprintf(out, "%s --version prints the version, %s --man the manual page.\n", p->name, p->name);
}

/* Lets every command print its part of a document (the man page or a completion script). */
static void print_parts(const rose_program *p, int doc)
{
    for (size_t i = 0; i < p->n_commands; i++) {
        char ask[16];
        char *argv[3] = {ask, ask, NULL};
        if (p->apart != NULL && strcmp(p->commands[i].name, p->apart) == 0) continue;
        snprintf(ask, sizeof ask, "%s", rose_opts_docs[doc].ask);
        p->commands[i].run(2, argv);
    }
}

static int print_man(const rose_program *p)
{
    fputs(".TH ", stdout);
    for (const char *c = p->name; *c != '\0'; c++)
        putchar(toupper((unsigned char)*c));
    printf(" 1 \"%s\" \"%s %s\" \"User Commands\"\n.SH NAME\n%s \\- ", rose_commit_date(), p->name,
           rose_version(), p->name);
    rose_opts_roff(p->about);
    printf("\n.SH SYNOPSIS\n.B %s\n\\fICOMMAND\\fR [\\fIarguments\\fR]\n.SH DESCRIPTION\n",
           p->name);
    rose_opts_roff(p->notes);
    puts(".SH COMMANDS");
    for (size_t i = 0; i < p->n_commands; i++) {
        fputs(".TP\n.B ", stdout);
        rose_opts_roff(p->commands[i].name);
        putchar('\n');
        rose_opts_roff(p->commands[i].about);
        putchar('\n');
    }
    puts(".TP\n.B completion bash|zsh\nprint a completion script of that shell");
    puts(".SH OPTIONS OF THE COMMANDS");
    print_parts(p, ROSE_DOC_MAN);
    puts(".SH EXIT STATUS\n0 after success, 1 after a failure, 2 after an error in the command "
         "line.");
    return 0;
}

/* Prints the name of the shell function. It has no hyphen: _roseinfer_bench completes
 * roseinfer-bench. */
static void print_function(const rose_program *p)
{
    putchar('_');
    for (const char *c = p->name; *c != '\0'; c++)
        putchar(*c == '-' ? '_' : *c);
}

/* The command that runs another program is completed by that program's script, which the program
 * itself writes if the shell does not have it yet. */
static void print_bash_apart(const rose_program *p)
{
    if (p->apart == NULL) return;
    printf("    '%s')\n        declare -F _%s_%s > /dev/null ||\n"
           "            eval \"$(\"${COMP_WORDS[0]}\" %s completion bash 2> /dev/null)\"\n"
           "        COMP_WORDS=(\"${COMP_WORDS[@]:1}\") COMP_CWORD=$((COMP_CWORD - 1))\n"
           "        if declare -F _%s_%s > /dev/null; then _%s_%s; fi\n        return ;;\n",
           p->apart, p->name, p->apart, p->apart, p->name, p->apart, p->name, p->apart);
}

static int print_bash(const rose_program *p)
{
    printf("# bash completion of %s, written by: %s completion bash\n", p->name, p->name);
    print_function(p);
    puts("()\n{\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options value\n"
         "    COMPREPLY=()\n"
         "    # --name=value reaches us as three words.\n"
         "    if [ \"$cur\" = = ]; then cur=\n"
         "    elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
         "    if [ \"$COMP_CWORD\" -eq 1 ]; then");
    fputs("        COMPREPLY=($(compgen -W '", stdout);
    for (size_t i = 0; i < p->n_commands; i++)
        printf("%s ", p->commands[i].name);
    puts("completion --help --version --man' -- \"$cur\"))\n"
         "        return\n"
         "    fi\n"
         "    case ${COMP_WORDS[1]} in");
    print_parts(p, ROSE_DOC_BASH);
    print_bash_apart(p);
    puts("    completion)\n"
         "        COMPREPLY=($(compgen -W 'bash zsh' -- \"$cur\"))\n"
         "        return ;;\n"
         "    esac\n"
         "    if [ \"$value\" = other ]; then return\n"
         "    elif [ \"$value\" = file ]; then compopt -o filenames 2>/dev/null; "
         "COMPREPLY=($(compgen -f -- \"$cur\"))\n"
         "    elif [ -n \"$value\" ]; then COMPREPLY=($(compgen -W \"$value\" -- \"$cur\"))\n"
         "    elif [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
         "    else compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\")); fi\n"
         "}");
    fputs("complete -F ", stdout);
    print_function(p);
    printf(" %s\n", p->name);
    return 0;
}

/* Text between single quotes of a shell. */
static void put_quoted(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*text);
    }
}

static int print_zsh(const rose_program *p)
{
    printf("#compdef %s\n# zsh completion of %s, written by: %s completion zsh\n", p->name, p->name,
           p->name);
    puts("local -a commands\ncommands=(");
    for (size_t i = 0; i < p->n_commands; i++) {
        printf("    '%s:", p->commands[i].name);
        put_quoted(p->commands[i].about);
        puts("'");
    }
    puts("    'completion:completion script of a shell'\n)\n"
         "if (( CURRENT == 2 )); then\n"
         "    _describe command commands\n"
         "    return\n"
         "fi\n"
         "local command=$words[2]\n"
         "shift words\n"
         "(( CURRENT-- ))\n"
         "case $command in");
    print_parts(p, ROSE_DOC_ZSH);
    if (p->apart != NULL)
        printf("    %s) (( $+functions[_%s-%s] )) && _%s-%s ;;\n", p->apart, p->name, p->apart,
               p->name, p->apart);
    puts("    completion) _values shell bash zsh ;;\nesac");
    return 0;
}

static int completion(const rose_program *p, int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[2], "bash") == 0) return print_bash(p);
    if (argc == 3 && strcmp(argv[2], "zsh") == 0) return print_zsh(p);
    fprintf(stderr, "roseinfer: expected '%s completion bash' or '%s completion zsh'\n", p->name,
            p->name);
    return ROSE_USAGE_ERROR;
}

static int unknown_command(const rose_program *p, const char *name)
{
    rose_near near = {0};
    for (size_t i = 0; i < p->n_commands; i++)
        rose_near_try(&near, name, strlen(name), p->commands[i].name);
    for (size_t i = 0; p->elsewhere != NULL && p->elsewhere[i][0] != NULL; i++) {
        if (strcmp(name, p->elsewhere[i][0]) == 0) near.name = p->elsewhere[i][1];
    }
    fprintf(stderr, "roseinfer: unknown command '%s'", name);
    if (near.name != NULL) fprintf(stderr, "; did you mean %s?", near.name);
    fprintf(stderr, " (%s --help lists the commands)\n", p->name);
    return ROSE_USAGE_ERROR;
}

int rose_program_run(const rose_program *p, int argc, char **argv)
{
    if (argc < 2) {
        usage(p, stderr);
        return ROSE_USAGE_ERROR;
    }
    const char *name = argv[1];
    for (size_t i = 0; i < p->n_commands; i++) {
        if (strcmp(name, p->commands[i].name) == 0) return p->commands[i].run(argc - 1, argv + 1);
    }
    if (strcmp(name, "--man") == 0) return print_man(p);
    if (strcmp(name, "completion") == 0) return completion(p, argc, argv);
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        printf("%s %s (%s)\n", p->name, rose_version(), rose_commit());
        return 0;
    }
    static const char *const helps[] = {"--help", "-h", "help", "--help-all"};
    bool help = false;
    for (size_t i = 0; i < sizeof helps / sizeof *helps; i++)
        help |= strcmp(name, helps[i]) == 0;
    if (!help) return unknown_command(p, name);
    usage(p, stdout);
    return 0;
}
